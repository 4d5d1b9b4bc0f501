/* SPDX-License-Identifier: Apache-2.0 */
/* A trial in which the reducer drives the hook: no_sync, parameters without gradients, uneven
** inputs.
**
** All of them change when and with what a hook is called, and none of them may change what it makes
** of it. So each trial has a twin in which everything is there in one backward, zeros where the
** other has nothing; results must agree bit for bit.
**
** The model is hook_trial.h's. Where parameters may be unused each has its own bucket.
** Elsewhere the scalar moves from the vector's bucket into its own one when buckets are rebuilt.
*/
#include "verify/conformance/hook_trial.h"
#include "verify/conformance/hook_trial_parts.h"

#include "cddp/cddp.h"
#include "core/base/error.h"
#include "core/hooks/host.h"

#include <stdlib.h>
#include <string.h>

#define NO_SYNC_PARTS 3

/* A rank's model. */
typedef struct ride {
    const cd_trial *trial;
    cd_trial_result *result;
    cddp_ddp *ddp;
    uint32_t rank;
    cddp_parameter parameters[CD_TRIAL_PARAMETERS];
    cddp_grad grads[CD_TRIAL_PARAMETERS];
    double storage[CD_TRIAL_NUMEL_MAX]; /* of the parameters, wide enough for every dtype */
} ride;

uint32_t cd_trial_inputs(const cd_trial *trial, uint32_t rank)
{
    return trial->lack == CD_TRIAL_UNEVEN ? trial->steps - 2 * (rank % 3) : trial->steps;
}

bool cd_trial_is_absent(const cd_trial *trial, uint32_t rank, uint32_t step, uint32_t parameter)
{
    switch (trial->lack) {
    case CD_TRIAL_UNEVEN:
        return step >= cd_trial_inputs(trial, rank);
    /* the vector on odd ranks now and then and once on all; the scalar, a bucket, on the last
    ** rank */
    case CD_TRIAL_UNUSED:
        return (parameter == CD_TRIAL_VECTOR && (step == 5 || (rank % 2 == 1 && step % 2 == 1))) ||
               (parameter == CD_TRIAL_SCALAR && step % 3 == 0 && rank + 1 == trial->ranks &&
                rank > 0);
    /* the whole first bucket, on all ranks */
    case CD_TRIAL_LEFT_OUT:
        return parameter == CD_TRIAL_SCALAR && (step == 3 || step == 5);
    case CD_TRIAL_WHOLE:
    case CD_TRIAL_IN_PARTS:
        break;
    }
    return false;
}

static bool is_lacking(const ride *r)
{
    return r->trial->lack != CD_TRIAL_WHOLE && !r->trial->fills_up;
}

static cddp_status make_model(ride *r, cddp_group *group, cddp_error *err)
{
    static const char *const names[CD_TRIAL_PARAMETERS] = {"matrix", "twin", "vector", "scalar"};
    static const double caps[] = {1e-9, 1.0}; /* the first bucket is full with one parameter */
    const cd_trial *t = r->trial;
    const int64_t matrix[2] = {6, 5};
    for (uint32_t p = 0; p < CD_TRIAL_PARAMETERS; p++) {
        int64_t own, from = cd_trial_offset(t, p, &own);
        cddp_tensor tensor =
            cddp_tensor_of(cddp_device_cpu(), r->storage, from, t->dtype,
                           p <= CD_TRIAL_TWIN ? matrix : &own, p <= CD_TRIAL_TWIN ? 2 : 1);
        CD_TRY(tensor.device->fill(&tensor, 1.0, NULL, err));
        r->parameters[p] = (cddp_parameter){.name = names[p],
                                            .tensor = tensor,
                                            .grad = &r->grads[p],
                                            .requires_grad = true};
    }
    cddp_ddp_options o = cddp_ddp_options_default();
    o.parameters = r->parameters;
    o.parameter_count = CD_TRIAL_PARAMETERS;
    o.group = group;
    o.find_unused_parameters = t->lack == CD_TRIAL_UNUSED || t->lack == CD_TRIAL_LEFT_OUT;
    o.bucket_cap_mb_list = caps;
    o.bucket_cap_mb_list_count = o.find_unused_parameters ? 1 : 2;
    o.skip_all_reduce_unused_params = t->lack == CD_TRIAL_LEFT_OUT;
    o.accumulate_in_hook = t->accumulates;
    CD_TRY(cddp_ddp_create(&o, &r->ddp, err));
    CD_TRY(cddp_ddp_register_comm_hook(r->ddp, t->hook, t->inner, t->options, err));
    return CDDP_OK;
}

/* The share of a micro-step: multiples of 1/4 again, so that their sum is the whole without
** rounding. */
static double share_of(double whole, uint32_t micro, uint32_t micros)
{
    double quarter = whole < 0 ? -0.25 : 0.25;
    return micro + 1 < micros ? quarter : whole - quarter * (micros - 1);
}

static cddp_status bring(ride *r, uint32_t p, uint32_t step, uint32_t micro, uint32_t micros,
                         cddp_error *err)
{
    const cd_trial *t = r->trial;
    int64_t own, from = cd_trial_offset(t, p, &own);
    cddp_grad *g = &r->grads[p];
    bool fresh = g->kind == CDDP_GRAD_UNDEFINED, absent = cd_trial_is_absent(t, r->rank, step, p);
    CD_TRY(cddp_grad_define(g, &r->parameters[p].tensor, err));
    for (int64_t e = 0; e < own; e++) {
        double whole = absent ? 0.0 : cd_trial_gradient(t, r->rank, step, from + e),
               before = fresh ? 0.0 : cd_host_get(&g->value, e);
        cd_host_set(&g->value, e, before + share_of(whole, micro, micros));
    }
    CD_TRY(cddp_ddp_mark_variable_ready(r->ddp, p, err));
    return CDDP_OK;
}

static cddp_status backward(ride *r, uint32_t step, uint32_t micro, uint32_t micros,
                            cddp_error *err)
{
    bool reachable[CD_TRIAL_PARAMETERS];
    for (uint32_t p = 0; p < CD_TRIAL_PARAMETERS; p++)
        reachable[p] = !is_lacking(r) || !cd_trial_is_absent(r->trial, r->rank, step, p);
    CD_TRY(cddp_ddp_forward_begin(r->ddp, true, err));
    CD_TRY(cddp_ddp_forward_end(r->ddp, reachable, err));
    for (uint32_t p = CD_TRIAL_PARAMETERS; p-- > 0;)
        if (reachable[p]) CD_TRY(bring(r, p, step, micro, micros, err));
    CD_TRY(cddp_ddp_backward_end(r->ddp, err));
    return CDDP_OK;
}

static void keep(ride *r, uint32_t step)
{
    for (uint32_t p = 0; p < CD_TRIAL_PARAMETERS; p++) {
        int64_t own, from = cd_trial_offset(r->trial, p, &own);
        for (int64_t e = 0; e < own && r->grads[p].kind != CDDP_GRAD_UNDEFINED; e++)
            r->result->out[r->rank][step][from + e] = cd_host_get(&r->grads[p].value, e);
        cddp_grad_drop(&r->grads[p]);
    }
}

static cddp_status one_step(ride *r, uint32_t step, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    uint32_t micros = is_lacking(r) && r->trial->lack == CD_TRIAL_IN_PARTS ? NO_SYNC_PARTS : 1;
    for (uint32_t micro = 0; status == CDDP_OK && micro < micros; micro++) {
        if (micro + 1 < micros) cddp_ddp_no_sync_begin(r->ddp);
        status = backward(r, step, micro, micros, err);
        if (micro + 1 < micros) cddp_ddp_no_sync_end(r->ddp);
    }
    if (status == CDDP_OK) keep(r, step);
    return status;
}

cddp_status cd_trial_ride(const cd_trial *trial, cd_trial_result *result, cddp_group *group,
                          cddp_error *err)
{
    cddp_status status = CDDP_OK;
    ride *r = calloc(1, sizeof *r);
    if (r == NULL) return cd_fail_memory(err, "the model of a trial");
    *r = (ride){.trial = trial, .result = result, .rank = cddp_group_rank(group)};
    bool joins = is_lacking(r) && trial->lack == CD_TRIAL_UNEVEN;
    cddp_join_options join = cddp_join_options_default();
    CD_TRY_OUT(make_model(r, group, err));
    if (joins) CD_TRY_OUT(cddp_ddp_join_begin(r->ddp, &join, err));
    for (uint32_t step = 0; step < (joins ? cd_trial_inputs(trial, r->rank) : trial->steps); step++)
        CD_TRY_OUT(one_step(r, step, err));
    if (joins) CD_TRY_OUT(cddp_ddp_join_end(r->ddp, err));
out:
    cddp_ddp_destroy(r->ddp);
    for (uint32_t p = 0; p < CD_TRIAL_PARAMETERS; p++) cddp_grad_fini(&r->grads[p]);
    free(r);
    return status;
}
