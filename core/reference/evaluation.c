/* SPDX-License-Identifier: Apache-2.0 */
/* A replica for itself, so that what the other references have loaded stays as it is. */
#include "core/reference/evaluation.h"

#include "core/base/error.h"
#include "core/reference/own_pass.h"
#include "core/reference/planned.h"

#define MEMORY_BLOCK_BYTES ((size_t)1 << 10)

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

static cddp_status use(void *context, uint32_t parameter, bool in_backward, cddp_error *err)
{
    cd_evaluation *e = context;
    (void)in_backward;
    (void)err;
    cd_crossed_use(&e->crossed, e->replica->graph, parameter);
    return CDDP_OK;
}

static cddp_status cross(void *context, cd_value *value, cd_value **read, cddp_error *err)
{
    cd_evaluation *e = context;
    return CD_PASS(cd_crossed_read(&e->crossed, e->replica->graph, value, read, err));
}

static cddp_status find_casts(cd_evaluation *e, const cd_evaluation_request *q, cddp_error *err)
{
    const cd_module *module = e->replica->model->module;
    if (!q->settings->fsdp.enable) return CDDP_OK;
    cd_arena_init(&e->memory, q->allocator, MEMORY_BLOCK_BYTES);
    cd_planned_precision *precisions =
        cd_arena_array(&e->memory, module->parameter_count + 1, sizeof *precisions);
    CD_TRY(cd_arena_check(&e->memory, err, "the casts of an evaluation"));
    e->precisions = precisions;
    CD_TRY(cd_planned_find_precision(q->plan, q->settings, module, &e->memory, precisions, err));
    CD_TRY(cd_crossed_init(&e->crossed, q->plan, q->settings, module, &e->memory, err));
    if (!e->crossed.is_needed) return CDDP_OK;
    const cd_graph_callbacks callbacks = {.context = e, .use = use, .cross = cross};
    cd_graph_set_callbacks(e->replica->graph, &callbacks);
    return CDDP_OK;
}

/* FMP-01: each number becomes the nearest one of its unit's param_dtype. */
static cddp_status round_parameters(const cd_evaluation *e, cddp_error *err)
{
    const cd_module *module = e->replica->model->module;
    for (size_t i = 0; e->precisions != NULL && i < module->parameter_count; i++) {
        const cddp_tensor *t = &module->parameters[i].tensor;
        cddp_tensor narrow;
        if (e->precisions[i].param == CDDP_DTYPE_COUNT || cddp_tensor_numel(t) == 0) continue;
        CD_TRY(cd_graph_tensor(e->replica->graph, e->precisions[i].param, t->sizes, t->dim_count,
                               &narrow, err));
        CD_TRY(module->device->copy(&narrow, t, NULL, err));
        CD_TRY(module->device->copy(t, &narrow, NULL, err));
    }
    return CDDP_OK;
}

/* Outputs leave the model before the loss reads them. */
static cddp_status run_forward(cd_evaluation *e, const cd_evaluation_request *q, cd_pass *pass,
                               cddp_error *err)
{
    cd_graph *graph = e->replica->graph;
    const bool is_sharded = e->precisions != NULL;
    if (is_sharded) {
        pass->input_dtype = cd_crossed_get_input(&e->crossed);
        cd_crossed_begin(&e->crossed, graph);
    }
    CD_TRY(cd_own_forward(e->replica, q->settings, pass, err));
    return is_sharded ? CD_PASS(cd_crossed_end(&e->crossed, graph, &pass->outputs, err)) : CDDP_OK;
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
        CD_TRY(find_casts(evaluation, q, err));
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
    CD_TRY(round_parameters(evaluation, err));
    CD_TRY(run_forward(evaluation, q, &pass, err));
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
    if (evaluation->precisions != NULL) cd_arena_fini(&evaluation->memory);
    *evaluation = (cd_evaluation){.replica = NULL};
}
