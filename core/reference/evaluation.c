/* SPDX-License-Identifier: Apache-2.0 */
/* A replica for itself, so that what the other references have loaded stays as it is. */
#include "core/reference/evaluation.h"

#include "core/base/error.h"
#include "core/reference/own_pass.h"
#include "core/reference/planned.h"

bool cd_evaluation_is_planned(const cd_micro *micro)
{
    return micro->skip != CDDP_SKIP_ALL && micro->evaluate != CDDP_EVALUATE_NOTHING &&
           micro->samples > 0;
}

static cddp_status load(const cd_replica *replica, const cd_evaluation_request *q, cddp_error *err)
{
    cd_module *module = replica->model->module;
    for (size_t i = 0; i < module->parameter_count; i++)
        CD_TRY(module->device->copy(&module->parameters[i].tensor, &q->parameters[i], NULL, err));
    for (size_t i = 0; i < module->buffer_count; i++)
        CD_TRY(module->device->copy(&module->buffers[i].tensor, &q->buffers[i], NULL, err));
    return CDDP_OK;
}

cddp_status cd_evaluation_find(cd_evaluation *evaluation, const cd_evaluation_request *q,
                               double *loss, cddp_error *err)
{
    cd_micro micro;
    cd_micro_batch samples;
    if (evaluation->replica == NULL) {
        const cd_replica_options options = {.plan = q->plan,
                                            .rank = q->place.rank,
                                            .device = q->device,
                                            .allocator = q->allocator};
        CD_TRY(cd_replica_create(&options, &evaluation->replica, err));
    }
    cd_replica *replica = evaluation->replica;
    cd_planned_micro(q->plan, q->settings, q->place, &micro);
    CD_TRY(cd_samples_fill(q->samples, q->settings, &micro, &samples, err));
    CD_TRY(load(replica, q, err));
    cd_pass pass = {.micro = &micro,
                    .samples = &samples,
                    .count = micro.samples,
                    .loss_scale = 1.0};
    cd_graph_begin(replica->graph);
    replica->graph->training = replica->graph->grad_enabled = false;
    CD_TRY(cd_own_forward(replica, q->settings, &pass, err));
    CD_TRY(cd_own_loss(replica, &pass, err));
    *loss = 0;
    for (uint32_t i = 0; i < pass.loss_count; i++) {
        CD_TRY(cd_numbers_read(q->numbers, &pass.losses[i]->tensor, err));
        *loss += q->numbers->values[0];
    }
    return CDDP_OK;
}

void cd_evaluation_fini(cd_evaluation *evaluation)
{
    cd_replica_destroy(evaluation->replica);
    evaluation->replica = NULL;
}
