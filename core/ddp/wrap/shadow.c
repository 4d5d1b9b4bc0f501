/* SPDX-License-Identifier: Apache-2.0 */
/* The join protocol: a rank without inputs shadows the collectives of those that have some.
**
**     active rank, one iteration                      joined rank, one shadow iteration
**     notify 1 (async) ······························ notify 0  → number of active ranks; 0: leave
**     [throw: 0]                                      [throw: 1, then fail]
**     [rebuild: 2 broadcasts]                         the same, with its registration order
**                                                     (JON-08)
**     [buffers: MAX of rank, broadcasts]              MAX of -1, broadcasts
**     vote 1 or 0 (async)                             vote 0    → does anybody synchronise?
**     buckets in index order, [used map]              zeros in index order, zeros for the map
**
** Deviation: a joined rank contributes zeros to the used map. PyTorch sends its last reduced map
** again, so a parameter used before the join never counts as globally unused afterwards (JON-15).
**
** Several wrappers that joined together: the first one notifies, and a joined rank runs the shadow
** iteration of each in turn before it asks again (JON-01, JON-04).
**
** Deviation: each of them divides by the active ranks that the first one counted. In PyTorch those
** behind the first never hear the number, and divide by all ranks (JON-11).
**
** At the end the largest rank among those that ran longest broadcasts parameters and buffers
** (JON-12), and optimizer state when asked for: without it replicas part again in the next step
** (INT-01).
**
** Limitations: models with further collectives need throw_on_early_termination;
** skip_all_reduce_unused_params must not skip while ranks are joined; a rank that joins before the
** first synchronised backward of a static graph shadows that pass too, but cannot train on
** afterwards with the recorded counts (JON-18).
*/
#include "core/ddp/wrap/shadow.h"

#include "cddp/device.h"
#include "core/base/error.h"
#include "core/ddp/reducer/rebuild.h"
#include "core/ddp/wrap/ddp.h"
#include "core/ddp/wrap/settings.h"
#include "core/hooks/hook.h"
#include "core/trace/points.h"
#include "core/trace/tracer.h"

#include <string.h>

#define SHADOW_WARNING 1000 /* iterations (JON-04) */

void cd_shadow_fini(cd_shadow *s)
{
    for (size_t b = 0; s->is_made && b < s->buckets.bucket_count; b++)
        cd_future_abandon(&s->buckets.buckets[b].future);
    cd_bucket_set_fini(&s->buckets);
    memset(s, 0, sizeof *s);
}

/* ---- several that join together ---- */

void cd_shadow_leave(cddp_ddp *d)
{
    cd_shadow *s = &d->shadow;
    for (cddp_ddp *at = s->first; at != NULL; at = at->shadow.next)
        if (at->shadow.next == d) at->shadow.next = s->next;
    /* the first one goes: the others know nobody who notifies */
    for (cddp_ddp *at = s->first == NULL ? s->next : NULL, *next; at != NULL; at = next) {
        next = at->shadow.next;
        at->shadow.first = at->shadow.next = NULL;
        at->join.first = NULL;
    }
    s->first = s->next = NULL;
    d->join.first = NULL;
}

static cddp_status check_first(const cddp_ddp *d, const cddp_join_options *o, cddp_error *err)
{
    const cddp_ddp *first = o->first;
    if (first == NULL) return CDDP_OK;
    if (first == d || !first->shadow.in_context || first->shadow.first != NULL)
        return cd_fail(err, CDDP_E_STATE,
                       "join options.first is no wrapper whose join has begun and which is the "
                       "first one: call join_begin of the first wrapper, then of the others");
    if (first->group != d->group)
        return cd_fail(err, CDDP_E_CONFIG,
                       "wrappers that join together have one process group: the first one's is "
                       "another"); /* JON-01 */
    if (first->join.is_enabled != o->enable)
        return cd_fail(err, CDDP_E_CONFIG,
                       "join options.enable is %s for the first wrapper, and %s for this one",
                       first->join.is_enabled ? "true" : "false", o->enable ? "true" : "false");
    return CDDP_OK;
}

static void follow(cddp_ddp *d, cddp_ddp *first)
{
    cddp_ddp *last = first;
    if (first == NULL) return;
    while (last->shadow.next != NULL) last = last->shadow.next;
    last->shadow.next = d;
    d->shadow.first = first;
}

cddp_status cd_shadow_check_turn(const cddp_ddp *d, cddp_error *err)
{
    const cd_shadow *s = &d->shadow;
    if (!s->in_context || !d->join.is_enabled) return CDDP_OK;
    if (s->first != NULL && s->first->join.begun != d->join.begun + 1)
        return cd_fail(err, CDDP_E_STATE,
                       "forward_begin before that of the first wrapper of the join context: the "
                       "first one's says that this rank has inputs, so it begins each iteration");
    for (const cddp_ddp *at = s->next; at != NULL; at = at->shadow.next)
        if (at->join.begun != d->join.begun)
            return cd_fail(err, CDDP_E_STATE,
                           "forward_begin again before that of another wrapper of the join "
                           "context: a rank without inputs shadows all of them in each iteration");
    return CDDP_OK;
}

/* What follows is about this wrapper. */
static void turn_to(const cddp_ddp *d)
{
    cd_tracer_select(d->tracer, d->wrapper);
    if (d->tracer != NULL) d->tracer->operands = d->shadow.operands;
}

/* ---- the context ---- */

cddp_status cd_shadow_begin_join(cddp_ddp *d, const cddp_join_options *o, cddp_error *err)
{
    cd_shadow *s = &d->shadow;
    if (s->in_context) return cd_fail(err, CDDP_E_STATE, "join contexts do not nest"); /* ERR-16 */
    if (!d->has_reducer)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "join needs a reducer; every parameter here is delayed");
    if (o->optimizer_state_count > 0 && !d->config.join_broadcast_optimizer_state)
        return cd_fail(
            err, CDDP_E_CONFIG,
            "join received %zu optimizer tensors, but join_broadcast_optimizer_state is off",
            o->optimizer_state_count);
    if (cd_buffers_has_hook(&d->buffers) && o->enable)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "join cannot shadow a custom buffer hook");
    if (d->reducer.zero != NULL && o->enable) /* ZRO-09 */
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "join cannot shadow hook_with_zero_step: no rank would step the parameters "
                       "of a joined rank");
    const cd_join_spec spec = {.allocator = d->allocator,
                               .group = d->group,
                               .tracer = d->tracer,
                               .device = cd_module_device(&d->module),
                               .options = o,
                               .first = o->first != NULL ? &o->first->join : NULL};
    CD_TRY(check_first(d, o, err));
    cd_shadow_leave(d);
    CD_TRY(cd_join_configure(&d->join, &spec, err));
    follow(d, o->first);
    if (d->says_settings) cd_join_settings_emit(o, d->tracer);
    s->in_context = true;
    s->operands = d->tracer != NULL ? d->tracer->operands : NULL;
    s->optimizer_state = o->optimizer_state;
    s->optimizer_state_count = o->optimizer_state_count;
    return CDDP_OK;
}

/* ---- a joined rank ---- */

static cddp_status need_shadow(cddp_ddp *d, cddp_error *err)
{
    cd_shadow *s = &d->shadow;
    cd_reducer *r = &d->reducer;
    bool is_shown = r->hook == NULL || s->buckets.hook_buckets != NULL;
    if (s->is_made && s->buckets.generation == r->buckets.generation && is_shown) return CDDP_OK;
    cd_bucket_set_fini(&s->buckets);
    s->is_made = false;
    cddp_status status = CDDP_OK;
    const cd_bucket_layout *from = &r->buckets.layout;
    cd_bucket_layout layout = {0};
    CD_TRY_OUT(cd_bucket_layout_init(&layout, from->variable_count, d->allocator, err));
    layout.variable_count = from->variable_count;
    layout.bucket_count = from->bucket_count;
    memcpy(layout.indices, from->indices, from->variable_count * sizeof *from->indices);
    memcpy(layout.starts, from->starts, (from->bucket_count + 1) * sizeof *from->starts);
    memcpy(layout.limits, from->limits, from->bucket_count * sizeof *from->limits);
    cd_bucket_set_spec spec = {.module = &d->module,
                               .layout = &layout,
                               .generation = r->buckets.generation,
                               .for_hook = r->hook != NULL,
                               .dtype = d->config.param_dtype};
    CD_TRY_OUT(cd_bucket_set_init(&s->buckets, &spec, d->allocator, err));
    s->is_made = true;
    s->growth_count++;
    return CDDP_OK;
out:
    cd_bucket_layout_fini(&layout);
    return status;
}

static cddp_status launch_shadow(cddp_ddp *d, cd_bucket *bucket, bool first_static, cddp_error *err)
{
    if (!bucket->is_sparse) CD_TRY(bucket->flat.device->fill(&bucket->flat, 0.0, NULL, err));
    bucket->is_complete = false;
    return CD_PASS(cd_reducer_start_bucket(&d->reducer, &d->shadow.buckets, bucket,
                                           first_static ? 0 : bucket->index, err));
}

static cddp_status advance_shadow(cddp_ddp *d, cd_bucket *bucket, cddp_error *err)
{
    const cd_reducer *r = &d->reducer;
    const bool has_hook = cd_reducer_hook_of(r, bucket) != NULL;
    void *self = has_hook ? r->hook_self : bucket->future_self;
    cddp_grad_bucket plain;
    if (has_hook) cd_tracer_call(r->tracer, r->hook->name, "a stage");
    const cddp_status status =
        cd_future_advance(&bucket->future, self,
                          cd_bucket_set_reported(&d->shadow.buckets, bucket, &plain),
                          &bucket->is_complete, err);
    if (has_hook) cd_tracer_call(r->tracer, NULL, NULL);
    return CD_PASS(status);
}

/* In the same rounds as finalisation, so that a hook's later collectives line up. */
static cddp_status complete_shadows(cddp_ddp *d, cddp_error *err)
{
    cd_bucket_set *set = &d->shadow.buckets;
    for (size_t left = set->bucket_count; left > 0;)
        for (size_t b = 0; b < set->bucket_count; b++) {
            cd_bucket *bucket = &set->buckets[b];
            if (bucket->is_complete) continue;
            CD_TRY(advance_shadow(d, bucket, err));
            CD_TRY(cd_reducer_check_future(&d->reducer, bucket, err));
            if (bucket->is_complete) CD_TRY(cd_reducer_show(&d->reducer, set, bucket, true, err));
            left -= bucket->is_complete;
        }
    return CDDP_OK;
}

static cddp_status shadow_all_reduce(cddp_ddp *d, cddp_error *err)
{
    cd_shadow *s = &d->shadow;
    cd_reducer *r = &d->reducer;
    bool first_static = cd_reducer_is_first_static(r) && !s->passed_first_static;
    CD_TRY(need_shadow(d, err));
    if (first_static) CD_TRY(cd_unused_map_post(&r->used_map, d->group, d->tracer, false, err));
    for (size_t b = 0; b < s->buckets.bucket_count; b++)
        CD_TRY(launch_shadow(d, &s->buckets.buckets[b], first_static, err));
    if (cd_reducer_is_dynamic(r))
        CD_TRY(cd_unused_map_post(&r->used_map, d->group, d->tracer, false, err));
    CD_TRY(complete_shadows(d, err));
    if (first_static || cd_reducer_is_dynamic(r)) {
        CD_TRY(cd_unused_map_await(&r->used_map, d->tracer, false, err));
        cd_unused_map_close_window(&r->used_map);
    }
    if (first_static)
        s->passed_first_static = true;
    else
        cd_reducer_push_all_arrivals(r);
    return CDDP_OK;
}

static cddp_status shadow_iteration(cddp_ddp *d, cddp_error *err)
{
    bool rebuilt = false;
    CD_EMIT(d->tracer, forward_begin, NULL, .iteration = (int64_t)d->reducer.iteration,
            .joined = 1);
    CD_TRY(cd_reducer_rebuild_buckets(&d->reducer, &rebuilt, err));
    if (cd_buffers_will_sync(&d->buffers, false)) {
        uint32_t authority = 0;
        CD_TRY(cd_join_find_authority(&d->join, false, &authority, err));
        CD_TRY(cd_buffers_sync(&d->buffers, d->group, d->tracer, authority, 0, err));
    }
    uint64_t votes = 0;
    CD_TRY(cd_join_count_votes(&d->join, &votes, err));
    d->buffers.require_forward_param_sync = votes > 0;
    if (votes > 0) CD_TRY(shadow_all_reduce(d, err));
    return CDDP_OK;
}

/* Every wrapper mirrors one iteration, in the order in which they joined (JON-04). */
static cddp_status shadow_all(cddp_ddp *first, uint64_t active, cddp_error *err)
{
    CD_TRY(shadow_iteration(first, err));
    for (cddp_ddp *d = first->shadow.next; d != NULL; d = d->shadow.next) {
        turn_to(d);
        CD_EMIT(d->tracer, join_notify, NULL, .active = 0, .active_ranks = (int64_t)active);
        CD_TRY(shadow_iteration(d, err));
    }
    if (first->shadow.next != NULL) turn_to(first);
    return CDDP_OK;
}

static cddp_status shadow_until_all_joined(cddp_ddp *d, bool *is_last_joiner, uint64_t *shadows,
                                           cddp_error *err)
{
    *is_last_joiner = true;
    for (*shadows = 0;; ++*shadows) {
        uint64_t active = 0;
        CD_TRY(cd_join_count_active(&d->join, &active, err));
        if (active == 0) return CDDP_OK;
        *is_last_joiner = false;
        if (d->join.throw_on_early_termination)
            return CD_PASS(cd_join_stop_early(&d->join, active, err));
        if (*shadows == SHADOW_WARNING)
            CD_EMIT(d->tracer, mark, "join_shadows_many_iterations", .value = (int64_t)*shadows);
        CD_TRY(shadow_all(d, active, err));
    }
}

/* After a failure in the middle of a shadow iteration: works are given back, and the used map takes
** no part in what comes next. */
static void abandon(cddp_ddp *d)
{
    cd_shadow *s = &d->shadow;
    cd_reducer *r = &d->reducer;
    cd_join_abandon(&d->join);
    for (size_t b = 0; s->is_made && b < s->buckets.bucket_count; b++)
        cd_future_abandon(&s->buckets.buckets[b].future);
    if (r->phase == CD_REDUCER_REDUCING || r->static_graph_recorded) return;
    cd_unused_map_abandon(&r->used_map);
}

/* JON-12 */
static cddp_status hand_on(cddp_ddp *d, bool is_last_joiner, uint64_t shadows, cddp_error *err)
{
    cd_shadow *s = &d->shadow;
    uint32_t authority = 0;
    CD_TRY(cd_join_find_authority(&d->join, is_last_joiner, &authority, err));
    CD_POINT_TRACED(COUNT, "join.authority", d->tracer, authority);
    cd_state_broadcast what = {.root = authority,
                               .extra = s->optimizer_state,
                               .extra_count = s->optimizer_state_count};
    CD_TRY(cd_ddp_broadcast_state(d, &what, err));
    if (d->config.broadcast_buffers && d->buffers.listed_count > 0)
        CD_EMIT(d->tracer, buffer_sync, NULL, .authority = authority,
                .location = CDDP_LOCATION_JOIN_END);
    CD_EMIT(d->tracer, join_end, NULL, .last_joiner = is_last_joiner, .authority = authority,
            .shadow_iterations = (int64_t)shadows);
    return CDDP_OK;
}

static cddp_status shadow_and_end(cddp_ddp *first, cddp_error *err)
{
    bool is_last_joiner = true;
    uint64_t shadows = 0;
    for (cddp_ddp *d = first; d != NULL; d = d->shadow.next) CD_TRY(cd_join_await(&d->join, err));
    CD_TRY(shadow_until_all_joined(first, &is_last_joiner, &shadows, err));
    for (cddp_ddp *d = first; d != NULL; d = d->shadow.next) {
        if (d != first) turn_to(d);
        CD_TRY(hand_on(d, is_last_joiner, shadows, err));
    }
    return CDDP_OK;
}

cddp_status cd_shadow_end_join(cddp_ddp *d, cddp_error *err)
{
    cd_shadow *s = &d->shadow;
    if (!s->in_context) return cd_fail(err, CDDP_E_STATE, "join_end without join_begin");
    if (s->first != NULL)
        return cd_fail(err, CDDP_E_STATE,
                       "join_end of a wrapper that joined together with another one: that of the "
                       "first one ends all");
    for (cddp_ddp *at = d; at != NULL; at = at->shadow.next) at->shadow.in_context = false;
    if (!d->join.is_enabled) return CDDP_OK;
    cddp_status status = shadow_and_end(d, err);
    if (s->next != NULL) turn_to(d);
    if (status == CDDP_OK) return CDDP_OK;
    for (cddp_ddp *at = d; at != NULL; at = at->shadow.next) abandon(at);
    cd_error_frame(err, __FILE__, __func__, __LINE__);
    return status;
}
