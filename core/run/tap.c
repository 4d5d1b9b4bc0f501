/* SPDX-License-Identifier: Apache-2.0 */
/* The tap: one place where every event of a run passes. */
#include "core/run/tap.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/trace/event.h"

#include <stdio.h>
#include <string.h>

static void count_mark(cd_tap *tap, const char *name)
{
    for (size_t i = 0; i < tap->mark_count; i++) {
        if (strcmp(tap->marks[i].name, name) == 0) {
            tap->marks[i].count++;
            return;
        }
    }
    if (tap->mark_count < CD_TAP_MARKS_MAX) {
        snprintf(tap->marks[tap->mark_count].name, sizeof tap->marks[0].name, "%s", name);
        tap->marks[tap->mark_count++].count = 1;
    }
}

/* Coverage marks that other events imply, so that a stored trace has them too. */
static void count_implied(cd_tap *tap, const cddp_event *event)
{
    switch (event->kind) {
    case CDDP_EV_mark:
        count_mark(tap, event->text != NULL ? event->text : "?");
        break;
    case CDDP_EV_rebuild:
        count_mark(tap, "rebuild");
        break;
    case CDDP_EV_bucket_skip:
        count_mark(tap, "bucket_left_out");
        break;
    case CDDP_EV_unsynced_grad:
        count_mark(tap, "unsynced_gradient");
        break;
    case CDDP_EV_fault:
        count_mark(tap, "fault");
        break;
    case CDDP_EV_store_done:
        if (event->as.store_done.status != CDDP_OK)
            count_mark(tap, "meeting_failed");
        else if (event->as.store_done.attempt > 1)
            count_mark(tap, "meeting_retried");
        break;
    case CDDP_EV_join_end:
        if (event->as.join_end.shadow_iterations > 0) count_mark(tap, "join_shadow");
        break;
    default:
        break;
    }
}

static void keep_end(cd_tap_rank *rank, const cddp_event *event)
{
    rank->result.size = sizeof rank->result;
    rank->result.status = (cddp_status)event->as.rank_end.status;
    rank->result.end = (cddp_rank_end)event->as.rank_end.end;
    rank->result.detail = (int32_t)event->as.rank_end.detail;
    rank->result.error.status = rank->result.status;
    snprintf(rank->result.error.message, sizeof rank->result.error.message, "%s",
             event->text != NULL ? event->text : "");
}

static void tap_event(void *self, const cddp_event *event)
{
    cd_tap *tap = self;
    const size_t slot = event->rank < tap->rank_count ? event->rank : tap->rank_count;
    cd_tap_rank *rank = &tap->ranks[slot];
    if (slot < tap->rank_count && tap->relay != NULL && tap->relay->muted) {
        return; /* a rank that is being unwound: what it still does is not part of the run */
    }
    if (!tap->without_digests) cd_event_digest_both(&rank->digest, &rank->timeless, event);
    rank->count++;
    rank->time_ns = event->time_ns;
    count_implied(tap, event);
    cd_coverage_push(&tap->coverage, event);
    cd_strikes_push(&tap->strikes, event);
    if (event->kind == CDDP_EV_rank_end)
        keep_end(rank, event);
    else
        rank->step = event->step;
    if (tap->judge != NULL) tap->judge->event(tap->judge->self, event);
    for (size_t i = 0; i < tap->target_count; i++)
        tap->targets[i]->event(tap->targets[i]->self, event);
}

static cddp_status tap_flush(void *self, cddp_error *err)
{
    const cd_tap *tap = self;
    for (size_t i = 0; i < tap->target_count; i++) {
        if (tap->targets[i]->flush != NULL)
            CD_TRY(tap->targets[i]->flush(tap->targets[i]->self, err));
    }
    return CDDP_OK;
}

cddp_status cd_tap_init(cd_tap *tap, const cddp_run_options *options, const cddp_trace_sink *judge,
                        cddp_error *err)
{
    memset(tap, 0, sizeof *tap);
    tap->allocator = options->allocator;
    tap->rank_count = (size_t)options->plan->world.size;
    tap->ranks = cd_allocate_array(tap->allocator, tap->rank_count + 1, sizeof *tap->ranks);
    if (tap->ranks == NULL) return cd_fail_memory(err, "the events of %zu ranks", tap->rank_count);
    tap->sink = (cddp_trace_sink){.size = sizeof tap->sink,
                                  .abi = CDDP_TRACE_ABI,
                                  .self = tap,
                                  .event = tap_event,
                                  .flush = tap_flush};
    tap->relay = options->relay;
    tap->judge = judge;
    tap->targets = options->sinks;
    tap->target_count = options->sink_count;
    return CD_PASS(cd_strikes_init(&tap->strikes, options->plan, tap->allocator, err));
}

void cd_tap_fini(cd_tap *tap)
{
    cd_release(tap->allocator, tap->ranks, (tap->rank_count + 1) * sizeof *tap->ranks);
    tap->ranks = NULL;
    cd_strikes_fini(&tap->strikes);
}

uint64_t cd_tap_digest(const cd_tap *tap, bool timeless)
{
    uint64_t digest = 0;
    for (size_t i = 0; i <= tap->rank_count; i++)
        digest = cd_hash_mix(digest, timeless ? tap->ranks[i].timeless : tap->ranks[i].digest);
    return digest;
}

uint64_t cd_tap_count(const cd_tap *tap)
{
    uint64_t count = 0;
    for (size_t i = 0; i <= tap->rank_count; i++) count += tap->ranks[i].count;
    return count;
}

uint64_t cd_tap_time(const cd_tap *tap)
{
    uint64_t time_ns = 0;
    for (size_t i = 0; i <= tap->rank_count; i++)
        time_ns = tap->ranks[i].time_ns > time_ns ? tap->ranks[i].time_ns : time_ns;
    return time_ns;
}

/* ---- the relay ---- */

static void relay_event(void *self, const cddp_event *event)
{
    const cddp_relay_sink *relay = self;
    if (relay->target != NULL) relay->target->event(relay->target->self, event);
}

void cddp_relay_sink_init(cddp_relay_sink *relay)
{
    *relay = (cddp_relay_sink){.sink = {.size = sizeof relay->sink,
                                        .abi = CDDP_TRACE_ABI,
                                        .self = relay,
                                        .event = relay_event}};
}
