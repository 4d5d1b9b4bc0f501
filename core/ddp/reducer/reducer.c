/* SPDX-License-Identifier: Apache-2.0 */
/* The reducer. It promises: when backward_end returns with *finalized, every reduced gradient on
** every rank is the average of what the ranks had accumulated, a gradient that nobody used is
** untouched, and all ranks issued the same collectives in the same order, whatever the order in
** which their gradients became ready.
**
** The main idea: a gradient becomes ready and is scaled into its bucket. A bucket is sent when its
** last gradient is there, but never before its predecessors. See
** Note [Bucket order is a contract between ranks]. `.grad` keeps the local value until the whole
** backward is over (RED-09).
**
** Invariants (cd_reducer_audit):
**   R1  in IDLE and ARMED every field that lives for an iteration is zero (reducer_state.def);
**   R2  a bucket's pending count plus its ready variables is its size;
**   R3  the buckets launched or skipped are exactly those below next_bucket: launches happen in
**       index order (RED-06);
**   R4  ready_count is the size of the ready set, and a variable enters it once per iteration
**       (ERR-03);
**   R5  the divide factor is known exactly while variables are ready (GRD-01);
**   R6  the used map travels only in modes that have one, at most once per window;
**   R7  the unused list is ascending and names the same variables as the unused set;
**   R8  a failure is kept exactly in FAILED;
**   R9  layout and offsets are intact (cd_bucket_set_audit).
**
** An audit asserts only what no caller, hook, backend or peer can cause. What they can cause is an
** error: it is kept, the machine enters FAILED, and every call answers with it until backward_end
** or reset.
**
**                      prepare_for_backward               mark_variable_ready
**          ┌──────┐ ─────────────────────────▶ ┌───────┐ ────────────────────▶ ┌──────────┐
**          │ IDLE │                            │ ARMED │                       │ REDUCING │
**     ┌──▶ └──────┘ ◀───────┐                  └───────┘ ◀──┐ prepare again    └──────────┘
**     │     no_sync hooks   │                      └────────┘ (FWD-08)              │ backward_end,
**     └──── (self-loop)     │                                                       │ all launched
**                           │                  ┌────────────┐                       │
**                           └───────────────── │ FINALIZING │ ◀─────────────────────┘
**                        finalize_backward     └────────────┘
**                           ▲
**                           │ backward_end, reset ┌────────┐  cd_reducer_fail
**                           └──────────────────── │ FAILED │ ◀───────────────── any phase
**                                                 └────────┘
**
**   IDLE → ARMED             cd_reducer_prepare_for_backward   synchronising forward
**   ARMED → ARMED            cd_reducer_prepare_for_backward   another forward first (FWD-08)
**   IDLE → IDLE              cd_reducer_autograd_hook          no_sync, or after the end (FWD-09)
**   ARMED → REDUCING         mark_variable_ready               first gradient (RED-04.6)
**   REDUCING → FINALIZING    cd_reducer_backward_end           every bucket was launched
**   ARMED → FINALIZING       cd_reducer_backward_end           static graph's first pass
**   REDUCING, ARMED → same   cd_reducer_backward_end           the next forward says why (RED-11)
**   REDUCING → FAILED        cd_reducer_leave_unfinished       the next forward; nobody goes on
**   FINALIZING → IDLE        cd_reducer_finalize_backward      finalize.c
**   any → FAILED             cd_reducer_fail                   a gradient, hook, collective failed
**   FAILED → IDLE            cd_reducer_backward_end           answers with the first error
**   any → IDLE               cd_reducer_reset                  group update, failure (UPG-01)
**
** Not here: making and unmaking it (reducer_life.c), bucket assignment (bucket_plan.c), how a
** gradient gets into its bucket (contribute.c), awaiting and writing back (finalize.c), the
** unused-parameter bitmap (unused_map.c), rebuilding (rebuild.c), static graph (static_graph.c).
*/
#include "core/ddp/reducer/reducer.h"

#include "core/base/assert.h"
#include "core/base/bitset.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/ddp/reducer/static_graph.h"
#include "core/ddp/reducer/untouched.h"
#include "core/hooks/hook.h"
#include "core/tensor/digest.h"
#include "core/trace/points.h"
#include "core/trace/tracer.h"

#include <stdio.h>
#include <string.h>

/* Note [Bucket order is a contract between ranks] Collectives of one group must be issued in the
** same order by every member (C10-03), but gradients become ready in whatever order a rank's
** backward produces them. So a complete bucket waits for its predecessors: communication order is
** index order on every rank. The layout itself is agreed beforehand: a pure function of the
** verified parameter list, or rank 0's rebuilt layout (REB-07). Nothing that happens on one rank
** alone may change the order. */

/* ---- prepare ---- */

/* Back to zero: every field that lives no longer than `life` (reducer_state.def). */
static inline void set_back(cd_reducer *r, int life)
{
    const size_t n = r->variable_count;
#define CD_FIXED(type, name)
#define CD_PART(kind, type, name)
#define CD_FLAG(kind, lives, name) \
    if (CD_LIFE_##lives <= life) r->name = false;
#define CD_NUMBER(kind, lives, type, name) \
    if (CD_LIFE_##lives <= life) r->name = 0;
#define CD_TABLE(kind, lives, type, name, room, used) \
    if (CD_LIFE_##lives <= life) memset(r->name, 0, (room) * sizeof *r->name);
#include "core/ddp/reducer/reducer_state.def"
#undef CD_FIXED
#undef CD_PART
#undef CD_FLAG
#undef CD_NUMBER
#undef CD_TABLE
}

void cd_reducer_reset_iteration(cd_reducer *r)
{
    set_back(r, CD_LIFE_ITERATION);
    for (size_t b = 0; b < r->buckets.bucket_count; b++) {
        cd_bucket *bucket = &r->buckets.buckets[b];
        bucket->pending = bucket->variable_count;
        bucket->is_launched = bucket->is_skipped = bucket->is_complete = false;
        bucket->is_reported = bucket->is_answered = false;
        bucket->reading = (cd_reading){.is_known = false};
    }
}

/* RED-03, UNU-11: the unused set of this iteration, in ascending order (PyTorch's order is a hash
** map's). */
static void search_unused(cd_reducer *r, const bool *reachable)
{
    r->unused_count = 0;
    cd_bitset_clear(r->unused_set, r->variable_count);
    for (size_t v = 0; v < r->variable_count; v++) {
        if (reachable[v]) continue;
        r->unused[r->unused_count++] = (uint32_t)v;
        cd_bitset_add(r->unused_set, v);
    }
    size_t bytes = r->unused_count * sizeof *r->unused;
    if (r->has_previous_unused && r->graph_was_static)
        r->graph_was_static = r->unused_count == r->previous_unused_count &&
                              memcmp(r->unused, r->previous_unused, bytes) == 0;
    memcpy(r->previous_unused, r->unused, bytes);
    r->previous_unused_count = r->unused_count;
    if (!r->has_previous_unused && r->unused_count == 0)
        CD_EMIT(r->tracer, mark, "find_unused_parameters_not_needed", .value = 0);
    r->has_previous_unused = true;
}

/* Static graph's first pass counts from zero: firings of a backward that was left half-way are not
** part of the graph. */
static void forget_first_pass(cd_reducer *r)
{
    memset(r->hook_counts, 0, r->variable_count * sizeof *r->hook_counts);
    r->unused_count = 0;
    cd_bitset_clear(r->unused_set, r->variable_count);
}

cddp_status cd_reducer_prepare_for_backward(cd_reducer *r, const bool *reachable, cddp_error *err)
{
    /* Gradients may have become ready since forward began, and so does a failure. */
    CD_TRY(cd_reducer_leave_unfinished(r, err));
    if (r->phase == CD_REDUCER_ARMED)
        CD_EMIT(r->tracer, mark, "forward_before_backward", .value = (int64_t)r->iteration);
    cd_reducer_reset_iteration(r);
    r->ready_order_count = 0;
    if (r->static_graph && r->static_graph_recorded)
        memcpy(r->remaining, r->hook_counts, r->variable_count * sizeof *r->remaining);
    if (cd_reducer_is_first_static(r)) forget_first_pass(r);
    if (cd_reducer_is_dynamic(r)) search_unused(r, reachable);
    r->phase = CD_REDUCER_ARMED;
    cd_reducer_audit(r);
    return CDDP_OK;
}

/* ---- hooks ---- */

static void note_hook(cd_reducer *r)
{
    if (!r->has_first_hook) {
        r->has_first_hook = true;
        r->backward_count++;
    }
    if (r->in_backward) return;
    r->in_backward = true;
    if (r->config->accumulate_in_hook && r->hook != NULL && !r->is_after_finalize) {
        cd_tracer_call(r->tracer, r->hook->name, "begin_backward");
        r->hook->begin_backward(r->hook_self);
        cd_tracer_call(r->tracer, NULL, NULL);
    }
    CD_EMIT(r->tracer, backward_begin, NULL, .sync = r->phase != CD_REDUCER_IDLE);
}

static cddp_status mark_unused_ready(cd_reducer *r, cddp_error *err)
{
    r->has_marked_unused = true;
    for (size_t i = 0; i < r->unused_count; i++)
        CD_TRY(cd_reducer_mark_variable_ready(r, r->unused[i], true, err));
    return CDDP_OK;
}

static void record_arrival(cd_reducer *r, size_t variable)
{
    if (cd_reducer_should_rebuild(r) && r->arrival_count < r->variable_count)
        r->arrival[r->arrival_count++] = (uint32_t)variable;
}

/* A gradient that nobody will reduce. Inside no_sync that is intended. After a finalisation of the
** same forward it silently makes replicas differ (FWD-09), so it is reported. */
static void note_unsynchronised(const cd_reducer *r, size_t variable)
{
    if (!r->is_after_finalize) return;
    CD_EMIT(r->tracer, unsynced_grad, NULL, .param = (int64_t)variable);
}

static cddp_status take_gradient(cd_reducer *r, size_t variable, cddp_error *err)
{
    const cd_variable *v = cd_wrapped_variable(r->module, variable);
    if (r->config->strict && v->grad->kind == CDDP_GRAD_UNDEFINED && !v->expect_sparse)
        return cd_fail(err, CDDP_E_STATE,
                       "'%s' was marked ready before its gradient was accumulated: its slot is "
                       "undefined",
                       v->name);
    note_hook(r);
    bool is_first_static = cd_reducer_is_first_static(r);
    /* Before the next check, so that micro-steps inside no_sync count as use (NSY-04). */
    if ((is_first_static || cd_reducer_is_dynamic(r)) && v->grad->kind != CDDP_GRAD_UNDEFINED)
        cd_unused_map_mark_used(&r->used_map, variable);
    if (r->phase == CD_REDUCER_IDLE) {
        note_unsynchronised(r, variable);
        return CD_PASS(cd_reducer_hand_over(r, variable, err));
    }
    if (is_first_static) {
        r->hook_counts[variable]++;
        return CDDP_OK;
    }
    if (r->ready_order_count < r->variable_count)
        r->ready_order[r->ready_order_count++] = (uint32_t)variable;
    if (!r->has_marked_unused) CD_TRY(mark_unused_ready(r, err));
    if (r->static_graph) {
        if (r->remaining[variable] == 0) /* ERR-05 */
            return cd_fail(
                err, CDDP_E_STATE,
                "static_graph, but the graph changed: '%s' received a gradient %u time%s "
                "in the first iteration and now once more; do not set static_graph for "
                "this model",
                v->name, r->hook_counts[variable], r->hook_counts[variable] == 1 ? "" : "s");
        if (--r->remaining[variable] > 0) return CDDP_OK;
    }
    record_arrival(r, variable);
    CD_TRY(cd_reducer_mark_variable_ready(r, variable, false, err));
    return CDDP_OK;
}

cddp_status cd_reducer_autograd_hook(cd_reducer *r, size_t variable, cddp_error *err)
{
    CD_ASSERT(r->phase != CD_REDUCER_FINALIZING); /* the facade refuses calls from inside itself */
    if (r->phase == CD_REDUCER_FAILED) return CD_PASS(cd_reducer_fail(r, r->failure.status, err));
    cddp_status status = take_gradient(r, variable, err);
    return CD_PASS(status == CDDP_OK ? CDDP_OK : cd_reducer_fail(r, status, err));
}

static cddp_status fail_ready_twice(const cd_reducer *r, size_t variable, cddp_error *err)
{
    return cd_fail(
        err, CDDP_E_STATE,
        "'%s' became ready twice in one iteration. Either it is used outside of forward or shared "
        "between "
        "two graphs, or backward was re-entered (checkpointing the same layer twice: try "
        "static_graph)%s",
        cd_wrapped_variable(r->module, variable)->name,
        r->unused_count > 0 && r->has_marked_unused
            ? ", or the search from the outputs did not find it and it was taken for unused"
            : "");
}

/* ---- buckets ---- */

static bool is_wholly_unused(const cd_reducer *r, const cd_bucket *bucket)
{
    if (r->unused_count == 0) return false;
    for (uint32_t i = 0; i < bucket->variable_count; i++)
        if (!cd_bitset_has(r->unused_set, r->buckets.layout.indices[bucket->first_slot + i]))
            return false;
    return true;
}

cddp_status cd_reducer_check_future(const cd_reducer *r, cd_bucket *bucket, cddp_error *err)
{
    const uint32_t count = bucket->future.work_count;
    const char *hook = r->hook != NULL ? r->hook->name : "all-reduce";
    if (bucket->future.idle_stages > CDDP_FUTURE_IDLE_STAGES_MAX)
        return cd_fail(err, CDDP_E_STATE,
                       "comm hook %s: %u stages in a row of bucket %u named a next stage and no "
                       "works; does one name itself?",
                       hook, bucket->future.idle_stages, bucket->index);
    if (count <= CDDP_FUTURE_WORKS_MAX) return CDDP_OK;
    bucket->future.work_count = CDDP_FUTURE_WORKS_MAX;
    return cd_fail(err, CDDP_E_STATE, "comm hook %s posted %u works for bucket %u; a stage has %u",
                   hook, count, bucket->index, CDDP_FUTURE_WORKS_MAX);
}

/* Its digest, and *slices: those of its slices, folded, as mark_ready has them. */
static int64_t digest_bucket(const cd_reducer *r, const cd_bucket_set *set, const cd_bucket *bucket,
                             int64_t *slices)
{
    cd_digest_pass pass;
    uint64_t digest = 0;
    *slices = 0;
    if (bucket->is_sparse || !cd_tracer_wants_digest(r->tracer)) return 0;
    const bool is_watched = cd_untouched_is_watched(r, bucket);
    cd_digest_pass_begin(&pass, &bucket->flat);
    for (uint32_t i = 0; set == &r->buckets && i < bucket->variable_count; i++) {
        const uint32_t variable = set->layout.indices[bucket->first_slot + i];
        const bool has_slice = !cd_wrapped_variable(r->module, variable)->expect_sparse;
        const cddp_tensor slice = cd_bucket_set_view(&r->buckets, variable);
        const uint64_t part = has_slice ? cd_digest_pass_part(&pass, &slice, NULL) : 0;
        digest = cd_hash_mix(digest, part);
        if (is_watched) cd_untouched_compare_ready(r, variable, (int64_t)part);
    }
    *slices = (int64_t)digest;
    return (int64_t)cd_digest_pass_end(&pass);
}

/* Returns the digest. */
static int64_t emit_launch(const cd_reducer *r, const cd_bucket_set *set, const cd_bucket *bucket,
                           bool is_last)
{
    int64_t slices = 0;
    const int64_t digest = digest_bucket(r, set, bucket, &slices);
    CD_EMIT(r->tracer, bucket_launch, NULL, .bucket = bucket->index, .generation = set->generation,
            .numel = cddp_tensor_numel(&bucket->flat), .dtype = bucket->flat.dtype,
            .content = (int64_t)bucket->content_digest, .digest = digest, .is_last = is_last,
            .shadow = set != &r->buckets, .group = cddp_group_id(r->group),
            .sequence = (int64_t)cddp_group_sequence(r->group), .slices = slices);
    return digest;
}

cddp_status cd_reducer_show(const cd_reducer *r, const cd_bucket_set *set, const cd_bucket *bucket,
                            bool is_result, cddp_error *err)
{
    const cd_bucket_observer *o = r->observer;
    if (o == NULL || r->hook == NULL || bucket->is_sparse) return CDDP_OK;
    const cd_shown_bucket shown = {.index = bucket->index,
                                   .generation = set->generation,
                                   .is_last = cd_bucket_set_reported(set, bucket, NULL)->is_last,
                                   .is_shadow = set != &r->buckets,
                                   .flat = is_result ? &bucket->future.result : &bucket->flat,
                                   .count = bucket->variable_count,
                                   .variables = set->layout.indices + bucket->first_slot,
                                   .offsets = set->offsets + bucket->first_slot,
                                   .lengths = set->lengths + bucket->first_slot};
    return CD_PASS((is_result ? o->returns : o->leaves)(o->self, &shown, err));
}

/* What the program says that it gave may be said too early; this is what the hook gets. */
static void watch_bucket(const cd_reducer *r, const cd_bucket_set *set, const cd_bucket *bucket)
{
    const cd_tracer_watch *watch = r->tracer != NULL ? r->tracer->watch : NULL;
    if (watch == NULL || set != &r->buckets || bucket->is_sparse || r->config->accumulate_in_hook)
        return;
    for (uint32_t i = 0; i < bucket->variable_count; i++) {
        const uint32_t variable = set->layout.indices[bucket->first_slot + i];
        const cddp_tensor slice = cd_bucket_set_view(set, variable);
        watch->entered(r->tracer, variable, &slice);
    }
}

static cddp_status run_hook(cd_reducer *r, const cd_bucket_set *set, cd_bucket *bucket,
                            cddp_error *err)
{
    cddp_grad_bucket *reported = cd_bucket_set_reported(set, bucket, NULL);
    CD_TRY(cd_reducer_show(r, set, bucket, false, err));
    watch_bucket(r, set, bucket);
    CD_EMIT(r->tracer, hook_call, r->hook->name, .bucket = bucket->index,
            .generation = set->generation, .is_last = reported->is_last,
            .dtype = bucket->flat.dtype,
            .bytes =
                cddp_tensor_numel(&bucket->flat) * (int64_t)cddp_dtype_bytes(bucket->flat.dtype));
    cd_tracer_call(r->tracer, r->hook->name, "run");
    const cddp_status status =
        r->hook->run(r->hook_self, reported, r->hook_group, &bucket->future, err);
    cd_tracer_call(r->tracer, NULL, NULL);
    if (status != CDDP_OK && err != NULL && err->status != status)
        return cd_fail(err, status, "hook %s: %s (it says nothing more)", r->hook->name,
                       cddp_status_text(status));
    return CD_PASS(status);
}

static cddp_status start_sparse(cd_reducer *r, const cd_bucket_set *set, cd_bucket *bucket,
                                cddp_error *err)
{
    uint32_t v = set->layout.indices[bucket->first_slot];
    cd_sparse_launch launch = {.variable = cd_wrapped_variable(r->module, v),
                               .index = v,
                               .bucket = bucket->index,
                               .group = r->hook != NULL ? r->hook_group : r->group,
                               .contribute = set == &r->buckets};
    CD_TRY(
        cd_sparse_launch_reduce(&r->sparse, &launch, &bucket->future, &bucket->future_self, err));
    return CDDP_OK;
}

static cddp_status add_allreduce(const cd_reducer *r, cd_bucket *bucket, cddp_error *err)
{
    /* The label is the bucket's own index, also where hooks see 0 (STA-04). */
    const cddp_grad_bucket label = {.index = bucket->index};
    CD_TRY(cd_future_add_allreduce(&bucket->future, &label, &bucket->flat, r->group, err));
    bucket->future.result = bucket->flat;
    return CDDP_OK;
}

/* digest: of the bucket, which was read for its launch. */
static cddp_status start_plain(cd_reducer *r, cd_bucket *bucket, int64_t digest, cddp_error *err)
{
    const bool is_shared = cd_reading_may_be_shared(r->tracer, bucket);
    if (is_shared) cd_reader_begin_post(&r->reader, bucket, r->tracer, digest);
    const cddp_status status = add_allreduce(r, bucket, err);
    if (is_shared) cd_reader_end(&r->reader, r->tracer);
    return CD_PASS(status);
}

cddp_status cd_reducer_start_bucket(cd_reducer *r, cd_bucket_set *set, cd_bucket *bucket,
                                    uint32_t index, cddp_error *err)
{
    cddp_group *group = r->hook != NULL ? r->hook_group : r->group;
    CD_POINT_TRACED(TENSOR, "bucket.packed", r->tracer, bucket->index, &bucket->flat);
    const int64_t digest = emit_launch(r, set, bucket, cd_bucket_set_report(set, bucket, index));
    CD_POINT_TRACED(TENSOR, "bucket.launched", r->tracer, bucket->index, &bucket->flat);
    uint64_t bytes = cddp_group_bytes(group);
    bucket->future = (cddp_future){.size = sizeof bucket->future};
    if (cd_reducer_hook_of(r, bucket) != NULL)
        CD_TRY(run_hook(r, set, bucket, err));
    else if (bucket->is_sparse)
        CD_TRY(start_sparse(r, set, bucket, err));
    else
        CD_TRY(start_plain(r, bucket, digest, err));
    bucket->wire_bytes = cddp_group_bytes(group) - bytes;
    CD_TRY(cd_reducer_check_future(r, bucket, err));
    if (r->tracer != NULL && set == &r->buckets) cd_untouched_keep(r, bucket);
    return CDDP_OK;
}

static cddp_status launch_bucket(cd_reducer *r, cd_bucket *bucket, cddp_error *err)
{
    CD_TRY(cd_bucket_check_red_zone(bucket, err));
    if (r->logger->is_sampling && r->logger->comm_begin_ns == 0)
        r->logger->comm_begin_ns = cd_reducer_now(r);
    bucket->is_launched = true;
    r->incomplete_count++;
    /* STA-04: in static graph's first pass the counter does not advance, and a hook sees index 0
    ** every time. */
    CD_TRY(cd_reducer_start_bucket(r, &r->buckets, bucket,
                                   cd_reducer_is_first_static(r) ? 0 : bucket->index, err));
    return CDDP_OK;
}

cddp_status cd_reducer_send_bucket(cd_reducer *r, cd_bucket *bucket, cddp_error *err)
{
    CD_TRY(cd_reducer_continue(r, false, err));
    CD_TRY(launch_bucket(r, bucket, err));
    const cd_consumers *c = &r->consumers;
    for (uint32_t i = 0; i < c->count; i++)
        if (c->items[i]->launched != NULL) CD_TRY(c->items[i]->launched(r, bucket, err));
    return CDDP_OK;
}

void cd_reducer_add_consumer(cd_reducer *r, const cd_bucket_consumer *consumer, bool is_first)
{
    cd_consumers *c = &r->consumers;
    CD_ASSERT(c->count < CD_CONSUMERS_MAX);
    uint32_t at = c->count++;
    for (; is_first && at > 0; at--) c->items[at] = c->items[at - 1];
    c->items[at] = consumer;
}

cddp_status cd_reducer_take_hook(cd_reducer *r, const cddp_hook *hook, void *self, cddp_error *err)
{
    CD_TRY(cd_bucket_set_show_to_hook(&r->buckets, err));
    r->hook = hook;
    r->hook_self = self;
    r->hook_group = r->group;
    r->scales_in_hook = true; /* GRD-02 */
    return CDDP_OK;
}

int64_t cd_reducer_slice_digest(const cd_reducer *r, size_t variable)
{
    if (cd_wrapped_variable(r->module, variable)->expect_sparse) return 0;
    const cddp_tensor view = cd_bucket_set_view(&r->buckets, variable);
    return cd_tracer_digest(r->tracer, &view);
}

/* RED-06: a bucket that is complete too early waits; when the next one in turn is complete, it and
** its complete successors go. */
static cddp_status mark_bucket_ready(cd_reducer *r, const cd_bucket *ready, cddp_error *err)
{
    if (ready->index > r->next_bucket) return CDDP_OK;
    while (r->next_bucket < r->buckets.bucket_count &&
           r->buckets.buckets[r->next_bucket].pending == 0) {
        cd_bucket *bucket = &r->buckets.buckets[r->next_bucket];
        bool wholly_unused = is_wholly_unused(r, bucket);
        if (wholly_unused) CD_EMIT(r->tracer, mark, "bucket_wholly_unused", .value = bucket->index);
        if (wholly_unused && r->config->skip_all_reduce_unused_params) { /* UNU-14 */
            bucket->is_skipped = true;
            CD_EMIT(r->tracer, bucket_skip, NULL, .bucket = bucket->index);
        } else {
            CD_TRY(cd_reducer_send_bucket(r, bucket, err));
        }
        r->next_bucket++;
    }
    return CDDP_OK;
}

static inline cddp_status fill_slice(cd_reducer *r, size_t variable, bool is_unused,
                                     cddp_error *err)
{
    const cd_bucket *bucket = &r->buckets.buckets[r->buckets.bucket_of[variable]];
    cd_contribution contribution;
    CD_TRY(cd_reducer_contribute(r, variable, &contribution, err));
    if (r->tracer == NULL) return CDDP_OK;
    const int64_t digest =
        contribution.is_hashed ? contribution.digest : cd_reducer_slice_digest(r, variable);
    CD_EMIT(r->tracer, mark_ready, NULL, .param = (int64_t)variable, .bucket = bucket->index,
            .slot = (int64_t)r->buckets.slot_of[variable] - (int64_t)bucket->first_slot,
            .path = contribution.path, .factor = (int64_t)r->divide_factor, .unused = is_unused,
            .digest = digest);
    cd_untouched_keep_ready(r, variable, contribution.path == CDDP_PATH_DEFERRED ? 0 : digest);
    cd_untouched_keep_gradient(r, variable);
    return CDDP_OK;
}

cddp_status cd_reducer_fill_slice(cd_reducer *r, size_t variable, bool is_unused, cddp_error *err)
{
    return CD_PASS(fill_slice(r, variable, is_unused, err));
}

cddp_status cd_reducer_mark_variable_ready(cd_reducer *r, size_t variable, bool is_unused,
                                           cddp_error *err)
{
    if (cd_bitset_has(r->ready, variable)) return CD_PASS(fail_ready_twice(r, variable, err));
    cd_bitset_add(r->ready, variable);
    r->ready_count++;
    r->phase = CD_REDUCER_REDUCING;
    if (r->divide_factor == 0) CD_TRY(cd_reducer_compute_divide_factor(r, err));
    CD_TRY(fill_slice(r, variable, is_unused, err));
    cd_bucket *bucket = &r->buckets.buckets[r->buckets.bucket_of[variable]];
    if (--bucket->pending > 0) return CDDP_OK;
    CD_TRY(cd_reducer_contribute_deferred(r, bucket, err));
    CD_TRY(mark_bucket_ready(r, bucket, err));
    if (r->next_bucket < r->buckets.bucket_count) return CDDP_OK;
    if (r->logger->is_sampling) r->logger->backward_compute_end_ns = cd_reducer_now(r);
    /* UNU-07: behind the last bucket, so that buckets never wait for the map. */
    if (cd_reducer_is_dynamic(r))
        CD_TRY(cd_unused_map_post(&r->used_map, r->group, r->tracer, true, err));
    return CDDP_OK;
}

/* ---- the end of a backward ---- */

static cddp_status finish(cd_reducer *r, cddp_error *err)
{
    if (r->static_graph && r->static_graph_recorded && cd_reducer_should_rebuild(r))
        for (size_t i = 0; i < r->unused_count; i++) record_arrival(r, r->unused[i]); /* REB-02 */
    CD_TRY(cd_reducer_finalize_backward(r, err));
    cd_reducer_reset_iteration(r);
    r->has_first_hook = false;
    r->is_after_finalize = true;
    r->phase = CD_REDUCER_IDLE;
    return CDDP_OK;
}

/* RED-11, at once. Inside no_sync nothing is missing. */
static cddp_status check_whole(cd_reducer *r, cddp_error *err)
{
    if (r->phase == CD_REDUCER_ARMED)
        return cd_fail(err, CDDP_E_STATE,
                       "the backward ends, but none of %zu parameters was marked ready: call "
                       "cddp_ddp_mark_variable_ready for each whose gradient was accumulated",
                       r->variable_count);
    return CD_PASS(cd_reducer_check_finalized(r, err));
}

cddp_status cd_reducer_backward_end(cd_reducer *r, bool *finalized, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    bool delayed = cd_reducer_is_first_static(r) && r->phase == CD_REDUCER_ARMED;
    bool complete = r->phase == CD_REDUCER_REDUCING && r->next_bucket == r->buckets.bucket_count;
    r->in_backward = false;
    if (r->phase == CD_REDUCER_FAILED) status = r->failure.status;
    if (delayed) status = cd_static_graph_reduce_delayed(r, err);
    if (r->config->strict && !delayed && !complete && status == CDDP_OK)
        status = check_whole(r, err);
    if (r->config->strict && (complete || delayed) && status == CDDP_OK)
        status = cd_reducer_check_storage(r, err);
    if (status == CDDP_OK && (delayed || complete)) status = finish(r, err);
    if (status != CDDP_OK) {
        cd_reducer_fail(r, status, err);
        cd_reducer_abandon(r);
        r->is_after_finalize = true; /* what follows without a forward stays local (FWD-09) */
        cd_error_frame(err, __FILE__, __func__, __LINE__);
        return status;
    }
    *finalized = delayed || complete;
    CD_EMIT(r->tracer, backward_end, NULL, .finalized = *finalized);
    cd_reducer_audit(r);
    return CDDP_OK;
}

/* "'a', 'b' and 3 more" of the variables that were not ready. */
static size_t print_missing(const cd_reducer *r, char *text, size_t text_bytes)
{
    size_t missing = 0, printed = 0, used = 0;
    text[0] = '\0';
    for (size_t v = 0; v < r->variable_count; v++) {
        if (cd_bitset_has(r->ready, v)) continue;
        missing++;
        const char *name = cd_wrapped_variable(r->module, v)->name;
        size_t wanted = strlen(name) + 4;
        if (used + wanted + 16 > text_bytes || printed + 1 < missing) continue;
        used += (size_t)snprintf(text + used, text_bytes - used, "%s'%s'", printed > 0 ? ", " : "",
                                 name);
        printed++;
    }
    if (printed < missing)
        snprintf(text + used, text_bytes - used, " and %zu more", missing - printed);
    return missing;
}

cddp_status cd_reducer_fail(cd_reducer *r, cddp_status status, cddp_error *err)
{
    if (r->phase != CD_REDUCER_FAILED) {
        r->phase = CD_REDUCER_FAILED;
        if (err != NULL && err->status == status)
            r->failure = *err;
        else /* a hook or a backend that returned a status and no words */
            cd_fail(&r->failure, status, "%s", cddp_status_text(status));
    }
    if (err != NULL) *err = r->failure;
    return r->failure.status;
}

cddp_status cd_reducer_check_finalized(cd_reducer *r, cddp_error *err)
{
    if (r->phase == CD_REDUCER_FAILED) return CD_PASS(cd_reducer_fail(r, r->failure.status, err));
    if (r->phase != CD_REDUCER_REDUCING) return CDDP_OK;
    char names[200];
    size_t missing = print_missing(r, names, sizeof names);
    if (missing == 0)
        return cd_fail(err, CDDP_E_STATE,
                       "the previous backward is not reduced: every gradient is ready, but "
                       "backward_end was not called");
    const char *advice = "set find_unused_parameters and use every output in the loss, or find out "
                         "why they got none";
    if (cd_reducer_is_dynamic(r))
        advice = "they are reachable from the outputs that forward returned, but not all outputs "
                 "were used in the loss";
    else if (r->static_graph)
        advice = "they were used in the first iteration: this graph is not static, do not set "
                 "static_graph";
    return cd_fail(err, CDDP_E_STATE,
                   "the %sbackward is not reduced: on rank %u, %zu of %zu parameters received no "
                   "gradient (%s); %s",
                   r->config->strict ? "" : "previous ", cddp_group_rank(r->group), missing,
                   r->variable_count, names, advice);
}

cddp_status cd_reducer_leave_unfinished(cd_reducer *r, cddp_error *err)
{
    const cddp_status status = cd_reducer_check_finalized(r, err);
    if (status == CDDP_OK || r->next_bucket == r->buckets.bucket_count) return CD_PASS(status);
    return CD_PASS(cd_reducer_fail(r, status, err));
}

/* The map of a static graph survives a failed backward, because all later ones use it (STA-06).
** Before it is recorded, and in the other modes, the window is closed and its marks are dropped. */
void cd_reducer_abandon(cd_reducer *r)
{
    for (size_t b = 0; b < r->buckets.bucket_count; b++)
        cd_future_abandon(&r->buckets.buckets[b].future);
    if (!r->static_graph_recorded) cd_unused_map_abandon(&r->used_map);
    for (uint32_t i = 0; i < r->consumers.count; i++)
        if (r->consumers.items[i]->abandon != NULL) r->consumers.items[i]->abandon(r);
    cd_sparse_drop_metadata(&r->sparse);
    cd_reducer_reset_iteration(r);
    set_back(r, CD_LIFE_BACKWARD); /* arrivals of half a backward are no order to rebuild by */
    cd_error_reset(&r->failure);
}

/* Another group has other members: who used what is asked again, as it was for the first group. */
void cd_reducer_reset(cd_reducer *r)
{
    set_back(r, CD_LIFE_GROUP);
    if (r->static_graph) forget_first_pass(r);
    cd_reducer_abandon(r);
    cd_reducer_audit(r);
}

void cd_reducer_emit_layout(const cd_reducer *r)
{
    if (r->tracer == NULL) return;
    const cd_bucket_set *set = &r->buckets;
    for (size_t b = 0; b < set->bucket_count; b++)
        for (uint32_t i = 0; i < set->buckets[b].variable_count; i++) {
            uint32_t s = set->buckets[b].first_slot + i;
            CD_EMIT(r->tracer, bucket_layout, NULL, .generation = set->generation,
                    .bucket = (int64_t)b, .slot = i, .param = set->layout.indices[s],
                    .offset = set->offsets[s], .numel = set->lengths[s],
                    .dtype = set->buckets[b].flat.dtype,
                    .limit = (int64_t)set->buckets[b].limit_bytes);
        }
}

/* ---- audit ---- */

static void audit_buckets(const cd_reducer *r)
{
    const cd_bucket_set *set = &r->buckets;
    for (size_t b = 0; b < set->bucket_count; b++) {
        const cd_bucket *bucket = &set->buckets[b];
        uint32_t ready = 0;
        for (uint32_t i = 0; i < bucket->variable_count; i++)
            ready += cd_bitset_has(r->ready, set->layout.indices[bucket->first_slot + i]);
        CD_ASSERT(bucket->pending + ready == bucket->variable_count);                   /* R2 */
        CD_ASSERT((bucket->is_launched || bucket->is_skipped) == (b < r->next_bucket)); /* R3 */
    }
}

static void audit_set_back(const cd_reducer *r)
{
#define CD_FIXED(type, name)
#define CD_PART(kind, type, name)
#define CD_TABLE(kind, lives, type, name, room, used)
#define CD_FLAG(kind, lives, name) \
    if (CD_LIFE_##lives == CD_LIFE_ITERATION) CD_ASSERT(!r->name);
#define CD_NUMBER(kind, lives, type, name) \
    if (CD_LIFE_##lives == CD_LIFE_ITERATION) CD_ASSERT(r->name == 0);
#include "core/ddp/reducer/reducer_state.def"
#undef CD_FIXED
#undef CD_PART
#undef CD_TABLE
#undef CD_FLAG
#undef CD_NUMBER
}

void cd_reducer_audit(const cd_reducer *r)
{
    if (r->phase == CD_REDUCER_IDLE || r->phase == CD_REDUCER_ARMED) audit_set_back(r); /* R1 */
    size_t ready = 0;
    for (size_t v = 0; v < r->variable_count; v++) ready += cd_bitset_has(r->ready, v);
    CD_ASSERT(ready == r->ready_count);                        /* R4 */
    CD_ASSERT((r->ready_count > 0) == (r->divide_factor > 0)); /* R5 */
    if (r->phase < CD_REDUCER_FINALIZING) audit_buckets(r);
    /* R6 */
    CD_ASSERT(r->used_map.count == 0 || r->config->find_unused_parameters || r->static_graph);
    if (r->used_map.count > 0) cd_unused_map_audit(&r->used_map);
    for (size_t i = 0; i < r->unused_count; i++) { /* R7 */
        CD_ASSERT(i == 0 || r->unused[i - 1] < r->unused[i]);
        CD_ASSERT(cd_bitset_has(r->unused_set, r->unused[i]));
    }
    CD_ASSERT((r->phase == CD_REDUCER_FAILED) == (r->failure.status != CDDP_OK)); /* R8 */
    cd_bucket_set_audit(&r->buckets);                                             /* R9 */
}
