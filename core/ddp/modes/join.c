/* SPDX-License-Identifier: Apache-2.0 */
/* The join protocol.
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
** At the end the largest rank among those that ran longest broadcasts parameters and buffers
** (JON-12), and optimizer state when asked for: without it replicas part again in the next step
** (INT-01).
**
** Limitations: models with further collectives need throw_on_early_termination;
** skip_all_reduce_unused_params must not skip while ranks are joined; a rank that joins before the
** first synchronised backward of a static graph shadows that pass too, but cannot train on
** afterwards with the recorded counts (JON-18).
*/
#include "core/ddp/modes/join.h"

#include "cddp/device.h"
#include "core/base/error.h"
#include "core/ddp/wrap/ddp.h"
#include "core/ddp/reducer/rebuild.h"
#include "core/hooks/hook.h"
#include "core/trace/tracer.h"

#include <string.h>

void cd_join_fini(cd_join *j)
{
    cddp_work_release(j->notify_work);
    cddp_work_release(j->vote_work);
    cd_control_fini(&j->notify);
    cd_control_fini(&j->vote);
    cd_control_fini(&j->one);
    for (size_t b = 0; j->has_shadow && b < j->shadow.bucket_count; b++)
        cd_future_abandon(&j->shadow.buckets[b].future);
    cd_bucket_set_fini(&j->shadow);
    memset(j, 0, sizeof *j);
}

static cddp_status make_controls(cddp_ddp *d, cddp_error *err)
{
    cd_join *j = &d->join;
    if (j->notify.host != NULL) return CDDP_OK;
    cd_control_spec spec = {.allocator = d->allocator,
                            .group = d->group,
                            .device = cd_module_device(&d->module),
                            .dtype = CDDP_F32,
                            .numel = 1};
    CD_TRY(cd_control_init(&j->notify, &spec, err));
    CD_TRY(cd_control_init(&j->vote, &spec, err));
    spec.dtype = CDDP_I32;
    CD_TRY(cd_control_init(&j->one, &spec, err));
    return CDDP_OK;
}

cddp_status cd_join_configure(cddp_ddp *d, const cddp_join_options *o, cddp_error *err)
{
    cd_join *j = &d->join;
    if (j->in_context) return cd_fail(err, CDDP_E_STATE, "join contexts do not nest"); /* ERR-16 */
    if (!d->has_reducer)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "join needs a reducer; every parameter here is delayed");
    if (o->optimizer_state_count > 0 && !d->config.join_broadcast_optimizer_state)
        return cd_fail(
            err, CDDP_E_CONFIG,
            "join received %zu optimizer tensors, but join_broadcast_optimizer_state is off",
            o->optimizer_state_count);
    if (d->buffers.hook != NULL && o->enable)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "join cannot shadow a custom buffer hook");
    if (d->reducer.zero.is_set && o->enable) /* ZRO-09 */
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "join cannot shadow hook_with_zero_step: no rank would step the parameters "
                       "of a joined rank");
    j->group = d->group;
    j->tracer = d->tracer;
    CD_TRY(make_controls(d, err));
    j->in_context = true;
    j->is_enabled = o->enable;
    j->divide_by_initial_world_size = o->divide_by_initial_world_size;
    j->throw_on_early_termination = o->throw_on_early_termination;
    j->optimizer_state = o->optimizer_state;
    j->optimizer_state_count = o->optimizer_state_count;
    return CDDP_OK;
}

/* ---- questions to all ranks ---- */

static cddp_status await(cddp_work **work, cddp_error *err)
{
    cddp_work *w = *work;
    *work = NULL;
    if (w != NULL) CD_TRY(cddp_work_wait(w, 0, err));
    return CDDP_OK;
}

static cddp_status post_number(const cd_join *j, cd_control *control, bool value, cddp_work **work,
                               cddp_error *err)
{
    CD_TRY(await(work, err));
    *(float *)control->host = value ? 1.0f : 0.0f;
    CD_TRY(cd_control_upload(control, err));
    return CD_PASS(cddp_group_allreduce(j->group, &control->tensor, CDDP_RED_SUM, work, err));
}

static cddp_status read_number(cd_control *control, cddp_work **work, uint64_t *value,
                               cddp_error *err)
{
    CD_TRY(await(work, err));
    CD_TRY(cd_control_download(control, err));
    const float sum = *(float *)control->host;
    if (!(sum >= 0.0f && sum <= (float)INT32_MAX)) /* NaN too */
        return cd_fail(err, CDDP_E_CORRUPT, "join: the number of ranks is %g", (double)sum);
    *value = (uint64_t)sum;
    return CDDP_OK;
}

static cddp_status ask(cd_join *j, int32_t mine, cddp_red_op op, int32_t *answer, cddp_error *err)
{
    cd_control *one = &j->one;
    *(int32_t *)one->host = mine;
    CD_TRY(cd_control_allreduce(j->group, one, op, err));
    *answer = *(int32_t *)one->host;
    return CDDP_OK;
}

/* ---- an active rank ---- */

cddp_status cd_join_notify(cd_join *j, cddp_error *err)
{
    if (!j->is_enabled) return CDDP_OK;
    CD_TRY(post_number(j, &j->notify, true, &j->notify_work, err));
    CD_EMIT(j->tracer, join_notify, NULL, .active = 1, .active_ranks = -1);
    if (!j->throw_on_early_termination) return CDDP_OK;
    int32_t exhausted = 0;
    CD_TRY(ask(j, 0, CDDP_RED_SUM, &exhausted, err));
    if (exhausted > 0)
        return cd_fail(
            err, CDDP_E_ABORTED,
            "%d of %u ranks ran out of inputs; throw_on_early_termination stops all of them",
            exhausted, cddp_group_size(j->group));
    return CDDP_OK;
}

cddp_status cd_join_vote(cd_join *j, bool will_sync, cddp_error *err)
{
    if (!j->is_enabled) return CDDP_OK;
    return CD_PASS(post_number(j, &j->vote, will_sync, &j->vote_work, err));
}

cddp_status cd_join_find_authority(cd_join *j, bool proposes, uint32_t *rank, cddp_error *err)
{
    *rank = 0;
    if (!j->is_enabled) return CDDP_OK;
    int32_t winner = -1;
    CD_TRY(ask(j, proposes ? (int32_t)cddp_group_rank(j->group) : -1, CDDP_RED_MAX, &winner, err));
    if (winner < 0)
        return cd_fail(err, CDDP_E_STATE, "no rank is active, but buffers are to be synchronised");
    *rank = (uint32_t)winner;
    return CDDP_OK;
}

cddp_status cd_join_active_ranks(cd_join *j, uint64_t *count, cddp_error *err)
{
    if (!j->is_enabled || j->divide_by_initial_world_size) return CDDP_OK;
    uint64_t active = 0;
    CD_TRY(read_number(&j->notify, &j->notify_work, &active, err));
    if (active == 0)
        return cd_fail(err, CDDP_E_STATE,
                       "join: this backward has no forward inside of join_begin, so the number of "
                       "active ranks is not known");
    *count = active;
    CD_EMIT(j->tracer, join_notify, NULL, .active = 1, .active_ranks = (int64_t)*count);
    return CDDP_OK;
}

/* ---- a joined rank ---- */

static cddp_status need_shadow(cddp_ddp *d, cddp_error *err)
{
    cd_join *j = &d->join;
    cd_reducer *r = &d->reducer;
    bool is_shown = r->hook == NULL || j->shadow.hook_buckets != NULL;
    if (j->has_shadow && j->shadow.generation == r->buckets.generation && is_shown) return CDDP_OK;
    cd_bucket_set_fini(&j->shadow);
    j->has_shadow = false;
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
    CD_TRY_OUT(cd_bucket_set_init(&j->shadow, &spec, d->allocator, err));
    j->has_shadow = true;
    j->growth_count++;
    return CDDP_OK;
out:
    cd_bucket_layout_fini(&layout);
    return status;
}

static cddp_status launch_shadow(cddp_ddp *d, cd_bucket *bucket, bool first_static, cddp_error *err)
{
    if (!bucket->is_sparse) CD_TRY(bucket->flat.device->fill(&bucket->flat, 0.0, NULL, err));
    bucket->is_complete = false;
    return CD_PASS(cd_reducer_start_bucket(&d->reducer, &d->join.shadow, bucket,
                                           first_static ? 0 : bucket->index, err));
}

/* In the same rounds as finalisation, so that a hook's later collectives line up. */
static cddp_status complete_shadows(cddp_ddp *d, cddp_error *err)
{
    cd_bucket_set *set = &d->join.shadow;
    for (size_t left = set->bucket_count; left > 0;)
        for (size_t b = 0; b < set->bucket_count; b++) {
            cd_bucket *bucket = &set->buckets[b];
            if (bucket->is_complete) continue;
            void *self = d->reducer.hook != NULL ? d->reducer.hook_self : bucket->future_self;
            cddp_grad_bucket plain;
            CD_TRY(cd_future_advance(&bucket->future, self,
                                     cd_bucket_set_reported(set, bucket, &plain),
                                     &bucket->is_complete, err));
            CD_TRY(cd_reducer_check_future(&d->reducer, bucket, err));
            if (bucket->is_complete) CD_TRY(cd_reducer_show(&d->reducer, set, bucket, true, err));
            left -= bucket->is_complete;
        }
    return CDDP_OK;
}

static cddp_status shadow_all_reduce(cddp_ddp *d, cddp_error *err)
{
    cd_join *j = &d->join;
    cd_reducer *r = &d->reducer;
    bool first_static = cd_reducer_is_first_static(r) && !j->shadowed_first_static;
    CD_TRY(need_shadow(d, err));
    if (first_static) CD_TRY(cd_unused_map_post(&r->used_map, d->group, d->tracer, false, err));
    for (size_t b = 0; b < j->shadow.bucket_count; b++)
        CD_TRY(launch_shadow(d, &j->shadow.buckets[b], first_static, err));
    if (cd_reducer_is_dynamic(r))
        CD_TRY(cd_unused_map_post(&r->used_map, d->group, d->tracer, false, err));
    CD_TRY(complete_shadows(d, err));
    if (first_static || cd_reducer_is_dynamic(r)) {
        CD_TRY(cd_unused_map_await(&r->used_map, d->tracer, false, err));
        cd_unused_map_close_window(&r->used_map);
    }
    if (first_static)
        j->shadowed_first_static = true;
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
    CD_TRY(post_number(&d->join, &d->join.vote, false, &d->join.vote_work, err));
    CD_TRY(read_number(&d->join.vote, &d->join.vote_work, &votes, err));
    d->buffers.require_forward_param_sync = votes > 0;
    if (votes > 0) CD_TRY(shadow_all_reduce(d, err));
    return CDDP_OK;
}

static cddp_status count_active(cddp_ddp *d, uint64_t *active, cddp_error *err)
{
    cd_join *j = &d->join;
    CD_TRY(post_number(j, &j->notify, false, &j->notify_work, err));
    CD_TRY(read_number(&j->notify, &j->notify_work, active, err));
    CD_EMIT(d->tracer, join_notify, NULL, .active = 0, .active_ranks = (int64_t)*active);
    return CDDP_OK;
}

static cddp_status shadow_until_all_joined(cddp_ddp *d, bool *is_last_joiner, uint64_t *shadows,
                                           cddp_error *err)
{
    *is_last_joiner = true;
    for (*shadows = 0;; ++*shadows) {
        uint64_t active = 0;
        CD_TRY(count_active(d, &active, err));
        if (active == 0) return CDDP_OK;
        *is_last_joiner = false;
        if (d->join.throw_on_early_termination) {
            int32_t exhausted = 0;
            CD_TRY(ask(&d->join, 1, CDDP_RED_SUM, &exhausted, err));
            return cd_fail(err, CDDP_E_ABORTED,
                           "rank %u ran out of inputs while %llu ranks had more; "
                           "throw_on_early_termination stops all of them",
                           cddp_group_rank(d->group), (unsigned long long)active);
        }
        if (*shadows == CD_JOIN_SHADOW_WARNING)
            CD_EMIT(d->tracer, mark, "join_shadows_many_iterations", .value = (int64_t)*shadows);
        CD_TRY(shadow_iteration(d, err));
    }
}

/* After a failure in the middle of a shadow iteration: works are given back, and the used map takes
** no part in what comes next. */
static void abandon(cddp_ddp *d)
{
    cd_join *j = &d->join;
    cd_reducer *r = &d->reducer;
    cddp_work_release(j->notify_work);
    cddp_work_release(j->vote_work);
    j->notify_work = j->vote_work = NULL;
    for (size_t b = 0; j->has_shadow && b < j->shadow.bucket_count; b++)
        cd_future_abandon(&j->shadow.buckets[b].future);
    if (r->phase == CD_REDUCER_REDUCING || r->static_graph_recorded) return;
    cd_unused_map_abandon(&r->used_map);
}

static cddp_status shadow_and_end(cddp_ddp *d, cddp_error *err)
{
    cd_join *j = &d->join;
    bool is_last_joiner = true;
    uint64_t shadows = 0;
    uint32_t authority = 0;
    CD_TRY(await(&j->notify_work, err));
    CD_TRY(await(&j->vote_work, err));
    CD_TRY(shadow_until_all_joined(d, &is_last_joiner, &shadows, err));
    CD_TRY(cd_join_find_authority(j, is_last_joiner, &authority, err));
    cd_state_broadcast what = {.root = authority,
                               .extra = j->optimizer_state,
                               .extra_count = j->optimizer_state_count};
    CD_TRY(cd_ddp_broadcast_state(d, &what, err));
    if (d->config.broadcast_buffers && d->buffers.listed_count > 0)
        CD_EMIT(d->tracer, buffer_sync, NULL, .authority = authority,
                .location = CDDP_LOCATION_JOIN_END);
    CD_EMIT(d->tracer, join_end, NULL, .last_joiner = is_last_joiner, .authority = authority,
            .shadow_iterations = (int64_t)shadows);
    return CDDP_OK;
}

cddp_status cd_join_leave(cddp_ddp *d, cddp_error *err)
{
    cd_join *j = &d->join;
    if (!j->in_context) return cd_fail(err, CDDP_E_STATE, "join_end without join_begin");
    j->in_context = false;
    if (!j->is_enabled) return CDDP_OK;
    cddp_status status = shadow_and_end(d, err);
    if (status == CDDP_OK) return CDDP_OK;
    abandon(d);
    cd_error_frame(err, __FILE__, __func__, __LINE__);
    return status;
}
