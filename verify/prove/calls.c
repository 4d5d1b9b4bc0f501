/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives, sequences of them, and the backend that records them. */
#include "verify/prove/calls.h"

#include "cddp/device.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/comm/adopt.h"
#include "core/comm/operands.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- calls ---- */

static bool is_receiver(const cddp_collective *c, uint32_t group_rank)
{
    return ((c->op == CDDP_OP_BROADCAST || c->op == CDDP_OP_SCATTER) && c->root != group_rank) ||
           c->op == CDDP_OP_RECV;
}

void cd_call_make(cd_call *call, const char *group, const cddp_collective *c, uint32_t group_rank)
{
    const cddp_tensor *t =
        c->op == CDDP_OP_BROADCAST || c->op == CDDP_OP_SCATTER || c->op == CDDP_OP_RECV ? &c->output
                                                                                        : &c->input;
    *call = (cd_call){.group = cd_hash_text(group),
                      .label = c->label,
                      .op = c->op,
                      .dtype = CDDP_DTYPE_COUNT};
    if (cd_op_is_reduction(c->op)) call->reduce_op = c->reduce_op;
    if (cd_op_is_rooted(c->op)) call->root = c->root;
    if (c->op == CDDP_OP_BARRIER || t->device == NULL) return;
    call->dtype = t->dtype;
    call->numel = c->counts != NULL || c->send_counts != NULL ? -1 : cddp_tensor_numel(t);
    if (!is_receiver(c, group_rank) &&
        (t->device->flags & (CDDP_DEVICE_VALUES | CDDP_DEVICE_EXACT)) != 0 &&
        t->device->digest(t, &call->digest, NULL) != CDDP_OK)
        call->digest = UINT64_MAX;
}

bool cd_call_fits(const cd_call *a, const cd_call *b)
{
    return a->group == b->group && a->op == b->op && a->reduce_op == b->reduce_op &&
           a->root == b->root && a->dtype == b->dtype && a->numel == b->numel &&
           a->label == b->label && (a->content == b->content || a->content == 0 || b->content == 0);
}

void cd_call_print(cd_text *text, const cd_call *l)
{
    cd_text_printf(text, "%s", cddp_op_name((cddp_op)l->op));
    if (cd_op_is_reduction((cddp_op)l->op))
        cd_text_printf(text, " %s", cddp_red_op_name((cddp_red_op)l->reduce_op));
    if (l->dtype < CDDP_DTYPE_COUNT && l->numel >= 0)
        cd_text_printf(text, " of %" PRId64 " %s", l->numel, cddp_dtype_name((cddp_dtype)l->dtype));
    if (cd_op_is_rooted((cddp_op)l->op)) cd_text_printf(text, " root %" PRIu32, l->root);
    if (l->label > 0) cd_text_printf(text, ", bucket %" PRIu64, l->label - 1);
}

/* ---- sequences ---- */

cddp_status cd_calls_push(cd_calls *calls, size_t at, const cd_call *call, cddp_error *err)
{
    if (!cd_vec_grow(cddp_allocator_default(), (void **)&calls->items, &calls->capacity, at + 1,
                     sizeof *calls->items))
        return cd_fail_memory(err, "a sequence of %zu collectives", at);
    calls->items[at] = *call;
    calls->count = at + 1;
    return CDDP_OK;
}

cddp_status cd_calls_copy(cd_calls *to, const cd_calls *from, cddp_error *err)
{
    to->count = 0;
    for (size_t i = 0; i < from->count; i++) CD_TRY(cd_calls_push(to, i, &from->items[i], err));
    return CDDP_OK;
}

void cd_calls_fini(cd_calls *calls)
{
    cd_release(cddp_allocator_default(), calls->items, calls->capacity * sizeof *calls->items);
    *calls = (cd_calls){0};
}

uint64_t cd_calls_digest(const cd_calls *calls)
{
    uint64_t h = calls->count;
    for (size_t i = 0; i < calls->count; i++) {
        const cd_call *l = &calls->items[i];
        const uint64_t fields[] = {l->group,
                                   l->label,
                                   l->digest,
                                   (uint64_t)l->numel,
                                   (uint64_t)l->op << 32 | l->reduce_op,
                                   (uint64_t)l->root << 32 | l->dtype};
        h = cd_hash64(fields, sizeof fields, h);
    }
    return h;
}

/* ---- several sequences ---- */

/* The place of the next call of this group at or behind `at`; count when there is none. */
static size_t next_of_group(const cd_calls *calls, uint64_t group, size_t at)
{
    while (at < calls->count && calls->items[at].group != group) at++;
    return at;
}

static bool group_fits(const cd_calls *sequences, uint32_t a, uint32_t b, uint64_t group,
                       cd_calls_conflict *conflict)
{
    size_t i = next_of_group(&sequences[a], group, 0), j = next_of_group(&sequences[b], group, 0);
    if (j == sequences[b].count) return true; /* no member */
    for (;;) {
        const bool has_i = i < sequences[a].count, has_j = j < sequences[b].count;
        if (!has_i && !has_j) return true;
        if (!has_i || !has_j || !cd_call_fits(&sequences[a].items[i], &sequences[b].items[j])) {
            *conflict = (cd_calls_conflict){CD_CALLS_PART, {a, b}, {i, j}, {has_i, has_j}};
            return false;
        }
        i = next_of_group(&sequences[a], group, i + 1);
        j = next_of_group(&sequences[b], group, j + 1);
    }
}

/* Is rank r a member of the group, and has it not yet reached its next collective? */
static bool is_missing(const cd_calls *sequences, const size_t *at, uint32_t r, uint64_t group)
{
    return next_of_group(&sequences[r], group, at[r]) < sequences[r].count &&
           sequences[r].items[at[r]].group != group;
}

/* Lets every collective take place that all members have reached, until none is left, or nobody can
** go on. */
static void wait_in_turn(const cd_calls *sequences, uint32_t count, size_t *at,
                         cd_calls_conflict *conflict)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t r = 0; r < count; r++) {
            if (at[r] == sequences[r].count) continue;
            const uint64_t group = sequences[r].items[at[r]].group;
            bool complete = true;
            for (uint32_t q = 0; q < count; q++)
                complete = complete && !is_missing(sequences, at, q, group);
            if (!complete) continue;
            for (uint32_t q = 0; q < count; q++)
                if (at[q] < sequences[q].count && sequences[q].items[at[q]].group == group) at[q]++;
            moved = true;
        }
    }
    for (uint32_t r = 0; r < count; r++)
        for (uint32_t q = 0; at[r] < sequences[r].count && q < count; q++)
            if (is_missing(sequences, at, q, sequences[r].items[at[r]].group)) {
                *conflict =
                    (cd_calls_conflict){CD_CALLS_WAIT, {r, q}, {at[r], at[q]}, {true, true}};
                return;
            }
}

cddp_status cd_calls_compare(const cd_calls *sequences, uint32_t count, cd_calls_conflict *conflict,
                             cddp_error *err)
{
    *conflict = (cd_calls_conflict){.end = CD_CALLS_FIT};
    for (uint32_t a = 0; a < count; a++)
        for (size_t i = 0; i < sequences[a].count; i++) {
            const uint64_t group = sequences[a].items[i].group;
            if (next_of_group(&sequences[a], group, 0) != i) continue;
            for (uint32_t b = a + 1; b < count; b++)
                if (!group_fits(sequences, a, b, group, conflict)) return CDDP_OK;
        }
    size_t *at = calloc(count + 1, sizeof *at);
    if (at == NULL) return cd_fail_memory(err, "a comparison of %" PRIu32 " sequences", count);
    wait_in_turn(sequences, count, at, conflict);
    free(at);
    return CDDP_OK;
}

/* ---- results ---- */

const cd_received *cd_results_find(const cd_results *results, uint32_t rank, uint64_t group,
                                   uint64_t sequence)
{
    for (size_t i = 0; i < results->count; i++) {
        const cd_received *t = &results->items[i];
        if (t->sequence == sequence && t->group == group && t->rank == rank) return t;
    }
    return NULL;
}

void cd_results_fini(cd_results *results)
{
    for (size_t i = 0; i < results->count; i++) {
        const cddp_tensor *t = &results->items[i].tensor;
        t->device->release(t->device, t->dtype, cddp_tensor_numel(t) + 1, t->storage);
    }
    cd_release(cddp_allocator_default(), results->items,
               results->capacity * sizeof *results->items);
    *results = (cd_results){0};
}

static cddp_status results_push(cd_results *results, const cd_received *received,
                                const cddp_tensor *value, cddp_error *err)
{
    if (!cd_vec_grow(cddp_allocator_default(), (void **)&results->items, &results->capacity,
                     results->count + 1, sizeof *results->items))
        return cd_fail_memory(err, "%zu results", results->count);
    const cddp_device *device = value->device;
    const int64_t numel = cddp_tensor_numel(value);
    void *storage = NULL;
    CD_TRY(device->allocate(device, value->dtype, numel + 1, &storage, err));
    cd_received *t = &results->items[results->count];
    *t = *received;
    t->tensor = cddp_tensor_of(device, storage, 0, value->dtype, value->sizes, value->dim_count);
    results->count++;
    return numel > 0 ? device->copy(&t->tensor, value, NULL, err) : CDDP_OK;
}

/* ---- the tap ---- */

typedef struct tap_group {
    cd_call_tap *tap;
    cddp_rank *rank;
    void *inner;
    uint32_t group_rank, group_size;
    uint64_t name;
    char text[64];
} tap_group;

typedef struct tap_work {
    void *inner;
    cddp_collective collective;
    bool is_received;
} tap_work;

static cddp_status tap_open(const cddp_backend *backend, cddp_rank *rank,
                            const cddp_group_spec *spec, void **group, cddp_error *err)
{
    cd_call_tap *tap = backend->self;
    tap_group *g = cd_allocate_zero(rank->allocator, sizeof *g);
    if (g == NULL) return cd_fail_memory(err, "group '%s'", spec->name);
    *g = (tap_group){.tap = tap,
                     .rank = rank,
                     .group_rank = spec->group_rank,
                     .group_size = spec->group_size,
                     .name = cd_hash_text(spec->name)};
    snprintf(g->text, sizeof g->text, "%s", spec->name);
    cddp_status status = tap->inner.open(tap->given, rank, spec, &g->inner, err);
    if (status != CDDP_OK) {
        cd_release(rank->allocator, g, sizeof *g);
        return status;
    }
    *group = g;
    return CDDP_OK;
}

static void tap_close(void *group)
{
    tap_group *g = group;
    if (g == NULL) return;
    g->tap->inner.close(g->inner);
    cd_release(g->rank->allocator, g, sizeof *g);
}

static cddp_status tap_post(void *group, const cddp_collective *c, void **work, cddp_error *err)
{
    tap_group *g = group;
    cd_call call;
    tap_work *w = cd_allocate_zero(g->rank->allocator, sizeof *w);
    if (w == NULL) return cd_fail_memory(err, "an operation");
    w->collective = *c;
    cd_call_make(&call, g->text, c, g->group_rank);
    cd_calls *calls = &g->tap->sequences[g->rank->rank];
    cddp_status status = cd_calls_push(calls, calls->count, &call, err);
    if (status == CDDP_OK) status = g->tap->inner.post(g->inner, c, &w->inner, err);
    if (status != CDDP_OK) {
        cd_release(g->rank->allocator, w, sizeof *w);
        return status;
    }
    *work = w;
    return CDDP_OK;
}

static cddp_status keep(tap_group *g, tap_work *w, cddp_error *err)
{
    const cddp_tensor *out = &w->collective.output;
    if (w->is_received || out->device == NULL ||
        (out->device->flags & (CDDP_DEVICE_VALUES | CDDP_DEVICE_EXACT)) == 0)
        return CDDP_OK;
    w->is_received = true;
    const cd_received received = {.group = g->name,
                                  .sequence = w->collective.sequence,
                                  .rank = g->rank->rank,
                                  .group_size = g->group_size,
                                  .op = w->collective.op,
                                  .reduce_op = w->collective.reduce_op};
    return CD_PASS(results_push(&g->tap->results, &received, out, err));
}

static cddp_status tap_test(void *group, void *work, bool *done, cddp_error *err)
{
    tap_group *g = group;
    tap_work *w = work;
    CD_TRY(g->tap->inner.test(g->inner, w->inner, done, err));
    if (*done) CD_TRY(keep(g, w, err));
    return CDDP_OK;
}

static cddp_status tap_wait(void *group, void *work, uint64_t timeout_ns, cddp_error *err)
{
    tap_group *g = group;
    tap_work *w = work;
    CD_TRY(g->tap->inner.wait(g->inner, w->inner, timeout_ns, err));
    CD_TRY(keep(g, w, err));
    return CDDP_OK;
}

static void tap_release(void *group, void *work)
{
    tap_group *g = group;
    tap_work *w = work;
    g->tap->inner.release(g->inner, w->inner);
    cd_release(g->rank->allocator, w, sizeof *w);
}

static cddp_status tap_abort(void *group, const char *reason, cddp_error *err)
{
    tap_group *g = group;
    return CD_PASS(g->tap->inner.abort(g->inner, reason, err));
}

static void tap_describe(void *group, void *work, char *text, size_t text_bytes)
{
    tap_group *g = group;
    g->tap->inner.describe(g->inner, ((tap_work *)work)->inner, text, text_bytes);
}

cddp_status cd_call_tap_init(cd_call_tap *tap, const cddp_backend *inner, uint32_t rank_count,
                             cddp_error *err)
{
    *tap = (cd_call_tap){.given = inner, .rank_count = rank_count};
    CD_TRY(cd_backend_adopt(inner, &tap->inner, err));
    tap->sequences = calloc(rank_count, sizeof *tap->sequences);
    if (tap->sequences == NULL)
        return cd_fail_memory(err, "the collectives of %" PRIu32 " ranks", rank_count);
    tap->table = (cddp_backend){.size = sizeof tap->table,
                                .abi = CDDP_BACKEND_ABI,
                                .name = inner->name,
                                .capabilities = tap->inner.capabilities,
                                .self = tap,
                                .open = tap_open,
                                .close = tap_close,
                                .post = tap_post,
                                .test = tap_test,
                                .wait = tap_wait,
                                .release = tap_release,
                                .abort = tap_abort,
                                .describe = tap_describe};
    return CDDP_OK;
}

void cd_call_tap_fini(cd_call_tap *tap)
{
    for (uint32_t r = 0; tap->sequences != NULL && r < tap->rank_count; r++)
        cd_calls_fini(&tap->sequences[r]);
    free(tap->sequences);
    cd_results_fini(&tap->results);
    *tap = (cd_call_tap){0};
}
