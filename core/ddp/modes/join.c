/* SPDX-License-Identifier: Apache-2.0 */
/* Each question is one number of every rank. Notifications and votes are in flight across a
** forward; the others block.
**
** Not here: what a joined rank does with the answers (core/ddp/wrap/shadow.c).
*/
#include "core/ddp/modes/join.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/trace/tracer.h"

#include <string.h>

void cd_join_fini(cd_join *j)
{
    cd_join_abandon(j);
    cd_control_fini(&j->notify);
    cd_control_fini(&j->vote);
    cd_control_fini(&j->one);
    memset(j, 0, sizeof *j);
}

void cd_join_abandon(cd_join *j)
{
    cddp_work_release(j->notify_work);
    cddp_work_release(j->vote_work);
    j->notify_work = j->vote_work = NULL;
}

static cddp_status make_controls(cd_join *j, const cd_join_spec *spec, cddp_error *err)
{
    if (j->notify.host != NULL) return CDDP_OK;
    cd_control_spec control = {.allocator = spec->allocator,
                               .group = spec->group,
                               .device = spec->device,
                               .dtype = CDDP_F32,
                               .numel = 1};
    CD_TRY(cd_control_init(&j->notify, &control, err));
    CD_TRY(cd_control_init(&j->vote, &control, err));
    control.dtype = CDDP_I32;
    CD_TRY(cd_control_init(&j->one, &control, err));
    return CDDP_OK;
}

cddp_status cd_join_configure(cd_join *j, const cd_join_spec *spec, cddp_error *err)
{
    j->group = spec->group;
    j->tracer = spec->tracer;
    CD_TRY(make_controls(j, spec, err));
    j->is_enabled = spec->options->enable;
    j->is_follower = spec->first != NULL;
    j->first = spec->first;
    j->begun = 0;
    j->divide_by_initial_world_size = spec->options->divide_by_initial_world_size;
    j->throw_on_early_termination = spec->options->throw_on_early_termination;
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

/* A number that came over the wire; NaN is refused too. */
static cddp_status check_number(const cd_join *j, double number, cddp_error *err)
{
    const uint32_t size = cddp_group_size(j->group);
    if (number >= 0.0 && number <= (double)size && number == (double)(uint32_t)number)
        return CDDP_OK;
    return cd_fail(err, CDDP_E_CORRUPT, "join: the number of ranks is %g, in a group of %u", number,
                   size);
}

static cddp_status read_number(const cd_join *j, cd_control *control, cddp_work **work,
                               uint64_t *value, cddp_error *err)
{
    CD_TRY(await(work, err));
    CD_TRY(cd_control_download(control, err));
    const float sum = *(float *)control->host;
    CD_TRY(check_number(j, (double)sum, err));
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
    j->begun++;
    if (!j->is_follower) CD_TRY(post_number(j, &j->notify, true, &j->notify_work, err));
    CD_EMIT(j->tracer, join_notify, NULL, .active = 1, .active_ranks = -1);
    if (j->is_follower || !j->throw_on_early_termination) return CDDP_OK;
    int32_t exhausted = 0;
    CD_TRY(ask(j, 0, CDDP_RED_SUM, &exhausted, err));
    CD_TRY(check_number(j, exhausted, err));
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
    if ((uint32_t)winner >= cddp_group_size(j->group))
        return cd_fail(err, CDDP_E_CORRUPT,
                       "join: rank %d is to broadcast buffers, in a group of %u", winner,
                       cddp_group_size(j->group));
    *rank = (uint32_t)winner;
    return CDDP_OK;
}

cddp_status cd_join_active_ranks(cd_join *j, uint64_t *count, cddp_error *err)
{
    if (!j->is_enabled || j->divide_by_initial_world_size) return CDDP_OK;
    cd_join *first = j->is_follower ? j->first : j;
    uint64_t active = 0;
    if (first == NULL)
        return cd_fail(err, CDDP_E_STATE,
                       "join: the wrapper that this one joined together with is gone, so the "
                       "number of active ranks is not known");
    CD_TRY(read_number(first, &first->notify, &first->notify_work, &active, err));
    if (active == 0)
        return cd_fail(err, CDDP_E_STATE,
                       "join: this backward has no forward inside of join_begin, so the number of "
                       "active ranks is not known");
    *count = active;
    CD_EMIT(j->tracer, join_notify, NULL, .active = 1, .active_ranks = (int64_t)*count);
    return CDDP_OK;
}

/* ---- a joined rank ---- */

cddp_status cd_join_await(cd_join *j, cddp_error *err)
{
    CD_TRY(await(&j->notify_work, err));
    CD_TRY(await(&j->vote_work, err));
    return CDDP_OK;
}

cddp_status cd_join_count_active(cd_join *j, uint64_t *active, cddp_error *err)
{
    CD_TRY(post_number(j, &j->notify, false, &j->notify_work, err));
    CD_TRY(read_number(j, &j->notify, &j->notify_work, active, err));
    CD_EMIT(j->tracer, join_notify, NULL, .active = 0, .active_ranks = (int64_t)*active);
    return CDDP_OK;
}

cddp_status cd_join_count_votes(cd_join *j, uint64_t *votes, cddp_error *err)
{
    CD_TRY(post_number(j, &j->vote, false, &j->vote_work, err));
    CD_TRY(read_number(j, &j->vote, &j->vote_work, votes, err));
    return CDDP_OK;
}

cddp_status cd_join_stop_early(cd_join *j, uint64_t active, cddp_error *err)
{
    int32_t exhausted = 0;
    CD_TRY(ask(j, 1, CDDP_RED_SUM, &exhausted, err));
    return cd_fail(err, CDDP_E_ABORTED,
                   "rank %u ran out of inputs while %llu rank%s had more; "
                   "throw_on_early_termination stops all of them",
                   cddp_group_rank(j->group), (unsigned long long)active, cd_plural(active));
}
