/* SPDX-License-Identifier: Apache-2.0 */
/* The table of compiled-in hooks, and futures that go on stage by stage.
**
** Not here: when hooks are called and what becomes of their results (core/ddp/reducer/reducer.c,
** finalize.c).
*/
#include "core/hooks/hook.h"

#include "core/base/assert.h"
#include "core/base/error.h"

#include <string.h>

static const cd_hook_row rows[] = {
#define CD_HOOK(name, summary) {&cd_hook_##name, summary},
#include "core/hooks/hooks.def"
#undef CD_HOOK
};

const cd_hook_row *cd_hook_get_row(size_t index)
{
    return index < sizeof rows / sizeof rows[0] ? &rows[index] : NULL;
}

const cddp_hook *cd_hook_find(const char *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].hook->name, name) == 0) return rows[i].hook;
    return NULL;
}

cddp_status cd_hook_check(const cddp_hook *hook, cddp_error *err)
{
    if (hook == NULL) return cd_fail(err, CDDP_E_ARG, "the comm hook is NULL");
    if (hook->size < sizeof *hook || hook->abi != CDDP_HOOK_ABI)
        return cd_fail(err, CDDP_E_ARG, "a comm hook of %u bytes, abi %u; wanted %zu bytes, abi %u",
                       hook->size, hook->abi, sizeof *hook, CDDP_HOOK_ABI);
    if (hook->name == NULL || hook->name[0] == '\0')
        return cd_fail(err, CDDP_E_ARG, "a comm hook without a name");
    if (hook->run == NULL)
        return cd_fail(err, CDDP_E_ARG, "comm hook %s has no run function", hook->name);
    if ((hook->flags & CDDP_HOOK_STATEFUL) != 0 && (hook->save == NULL || hook->load == NULL))
        return cd_fail(err, CDDP_E_ARG, "comm hook %s is declared stateful but has no %s function",
                       hook->name, hook->save == NULL ? "save" : "load");
    if ((hook->accumulate == NULL) != (hook->begin_backward == NULL))
        return cd_fail(
            err, CDDP_E_ARG,
            "comm hook %s has one of accumulate and begin_backward; they come only as a pair",
            hook->name);
    if (hook->create == NULL && hook->destroy != NULL)
        return cd_fail(err, CDDP_E_ARG,
                       "comm hook %s has a destroy function but no create function", hook->name);
    return CDDP_OK;
}

cddp_status cd_future_advance(cddp_future *future, void *self, cddp_grad_bucket *bucket,
                              bool *complete, cddp_error *err)
{
    for (uint32_t i = 0; i < future->work_count; i++) {
        cddp_work *work = future->works[i];
        future->works[i] = NULL;
        if (work != NULL) CD_TRY(cddp_work_wait(work, 0, err));
    }
    future->work_count = 0;
    if (future->next != NULL) {
        cddp_stage_fn stage = future->next;
        const uint32_t idle = future->idle_stages;
        future->next = NULL;
        if (idle > CDDP_FUTURE_IDLE_STAGES_MAX)
            return cd_fail(err, CDDP_E_STATE,
                           "the stages of bucket %u name each other without end and no works",
                           bucket->index);
        CD_TRY(stage(self, bucket, future, err));
        future->idle_stages = future->next != NULL && future->work_count == 0 ? idle + 1 : 0;
    }
    *complete = future->next == NULL && future->work_count == 0;
    return CDDP_OK;
}

void cd_future_abandon(cddp_future *future)
{
    for (uint32_t i = 0; i < future->work_count; i++) cddp_work_release(future->works[i]);
    *future = (cddp_future){.size = sizeof *future};
}

cddp_status cd_future_add_allreduce(cddp_future *future, const cddp_grad_bucket *bucket,
                                    const cddp_tensor *t, cddp_group *group, cddp_error *err)
{
    CD_ASSERT(future->work_count < CDDP_FUTURE_WORKS_MAX);
    cddp_collective c = {.size = sizeof c,
                         .op = CDDP_OP_ALLREDUCE,
                         .reduce_op = CDDP_RED_SUM,
                         .input = *t,
                         .output = *t,
                         .label = (uint64_t)bucket->index + 1};
    CD_TRY(cddp_group_post(group, &c, &future->works[future->work_count], err));
    future->work_count++;
    return CDDP_OK;
}

cddp_status cd_hook_refuse_sparse(const cddp_grad_bucket *bucket, const char *name, cddp_error *err)
{
    if (bucket->sparse != NULL)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "comm hook %s works on flat buckets; bucket %u holds a sparse gradient",
                       name, bucket->index);
    return CDDP_OK;
}

cddp_status cd_hook_refuse_inner(const cddp_hook_context *context, const char *name,
                                 cddp_error *err)
{
    if (context->inner != NULL)
        return cd_fail(err, CDDP_E_CONFIG, "comm hook %s does not wrap another hook; got %s", name,
                       context->inner->name);
    return CDDP_OK;
}

cddp_status cd_hook_refuse_options(const cddp_hook_context *context, const char *name,
                                   cddp_error *err)
{
    CD_TRY(cd_hook_refuse_inner(context, name, err));
    if (context->options != NULL && context->options[0] != '\0')
        return cd_fail(err, CDDP_E_CONFIG, "comm hook %s takes no options; got \"%s\"", name,
                       context->options);
    return CDDP_OK;
}
