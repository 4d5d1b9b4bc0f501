/* SPDX-License-Identifier: Apache-2.0 */
/* The digest of the ranks' past. See past.h. */
#include "sim/past.h"

#include "core/base/hash.h"
#include "core/trace/event.h"

#include <string.h>

#define PAST_BLOCK_BYTES ((size_t)1024)

/* True for events that name the rank and otherwise equal those of other ranks. */
static bool names_the_rank(const cddp_event *event)
{
    switch (event->kind) {
    case CDDP_EV_group:
    case CDDP_EV_seed:
    case CDDP_EV_sample:
    case CDDP_EV_samples:
        return true;
    default:
        return false;
    }
}

static uint64_t digest_of(const cd_past *past, const cddp_event *event)
{
    if (!past->options.interchangeable) return cd_event_digest(0, event, true);
    cddp_event anonymous = *event;
    anonymous.rank = 0;
    return cd_event_digest(0, &anonymous, true);
}

static void become_ready(const cd_past *past, cd_past_rank *r, const cddp_event *event)
{
    uint64_t digest = digest_of(past, event);
    r->ready += digest;
    if (event->kind != CDDP_EV_mark_ready) return;
    r->by_bucket[(uint64_t)event->as.mark_ready.bucket % CD_PAST_BUCKETS] += digest;
    if (!past->options.without_rebuild)
        r->arrival = cd_hash_mix(r->arrival, (uint64_t)event->as.mark_ready.param);
}

/* The gradients that a launch depends on are those of its bucket. */
static uint64_t ready_before(const cd_past_rank *r, const cddp_event *event)
{
    int64_t bucket = -1;
    switch (event->kind) {
    case CDDP_EV_bucket_launch:
        bucket = event->as.bucket_launch.bucket;
        break;
    case CDDP_EV_collective_post:
        bucket = event->as.collective_post.bucket;
        break;
    case CDDP_EV_hook_call:
        bucket = event->as.hook_call.bucket;
        break;
    default:
        break;
    }
    return bucket < 0 ? r->ready : r->by_bucket[(uint64_t)bucket % CD_PAST_BUCKETS];
}

static void take_event(void *self, const cddp_event *event)
{
    cd_past *past = self;
    /* the world's: choices, and times of computing */
    if (event->rank >= past->options.world_size) return;
    if (past->options.interchangeable && names_the_rank(event)) return;
    cd_past_rank *r = &past->ranks[event->rank];
    if (event->kind == CDDP_EV_grad_local || event->kind == CDDP_EV_mark_ready) {
        become_ready(past, r, event);
        return;
    }
    /* comes with the first gradient, whichever it is */
    if (event->kind == CDDP_EV_backward_begin) {
        r->ordered = cd_hash_mix(r->ordered, CDDP_EV_backward_begin);
        return;
    }
    r->ordered =
        cd_hash_mix(cd_hash_mix(r->ordered, digest_of(past, event)), ready_before(r, event));
}

cddp_status cd_past_init(cd_past *past, const cd_past_options *options, cddp_error *err)
{
    *past = (cd_past){.options = *options};
    past->sink = (cddp_trace_sink){.size = sizeof past->sink,
                                   .abi = CDDP_TRACE_ABI,
                                   .self = past,
                                   .event = take_event};
    cd_arena_init(&past->arena, options->allocator, PAST_BLOCK_BYTES);
    past->ranks = cd_arena_array(&past->arena, options->world_size, sizeof *past->ranks);
    past->scratch = cd_arena_array(&past->arena, options->world_size, sizeof *past->scratch);
    cddp_status status =
        cd_arena_check(&past->arena, err, "the past of %u ranks", options->world_size);
    if (status != CDDP_OK) cd_past_fini(past);
    return status;
}

void cd_past_fini(cd_past *past) { cd_arena_fini(&past->arena); }

void cd_past_begin(cd_past *past)
{
    memset(past->ranks, 0, past->options.world_size * sizeof *past->ranks);
}

static uint64_t digest_of_rank(const cd_past_rank *r)
{
    return cd_hash_mix(cd_hash_mix(r->ordered, r->ready), r->arrival);
}

static void sort(uint64_t *items, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t k = i; k > 0 && items[k] < items[k - 1]; k--) {
            uint64_t item = items[k];
            items[k] = items[k - 1];
            items[k - 1] = item;
        }
}

uint64_t cd_past_get(const cd_past *past, const cddp_choice *choice)
{
    uint32_t n = past->options.world_size;
    bool is_rank = choice->rank < n;
    for (uint32_t i = 0; i < n; i++) {
        past->scratch[i] = digest_of_rank(&past->ranks[i]);
        if (is_rank && i == choice->rank)
            past->scratch[i] = cd_hash_mix(past->scratch[i], choice->kind + 1u); /* it chooses */
    }
    if (past->options.interchangeable && n > 1) sort(past->scratch + 1, n - 1);
    uint64_t digest = cd_hash_mix(choice->kind, choice->option_count);
    if (!past->options.interchangeable || !is_rank) digest = cd_hash_mix(digest, choice->rank);
    for (uint32_t i = 0; i < n; i++) digest = cd_hash_mix(digest, past->scratch[i]);
    for (uint32_t i = 0; choice->options != NULL && i < choice->option_count; i++)
        digest = cd_hash_mix(digest, choice->options[i]);
    return digest;
}
