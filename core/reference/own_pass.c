/* SPDX-License-Identifier: Apache-2.0 */
#include "core/reference/own_pass.h"

#include "core/base/error.h"
#include "core/model/layers/shapes.h"
#include "core/reference/planned.h"
#include "core/tensor/symbol.h"

#include <math.h>
#include <string.h>

/* "large" adds 2^20: one more addend of the sum over all samples. */
#define LARGE 1048576.0

void cd_own_begin_step(cd_replica *r, uint32_t rank, uint32_t step)
{
    const cd_micro_place place = {rank, step, 0};
    const cd_module *module = r->model->module;
    for (size_t i = 0; i < module->parameter_count; i++)
        module->parameters[i].requires_grad =
            cd_planned_requires_grad(r->plan, place, module->parameters[i].name,
                                     r->parameters[i].requires_grad);
}

/* ---- what of the model runs ---- */

static cddp_status refuse(const char *what, const char *text, cddp_error *err)
{
    return cd_fail(err, CDDP_E_CONFIG, "the model of the reference has no %s '%s'", what, text);
}

/* "unit=2" */
cddp_status cd_own_find_uses(const cd_model *model, const cd_micro *micro, uint8_t *uses,
                             cddp_error *err)
{
    for (size_t i = 0; i < model->unit_count; i++) uses[i] = model->units[i].uses;
    for (size_t k = 0; k < micro->uses.count; k++) {
        const char *text = micro->uses.items[k], *sign = strrchr(text, '=');
        bool is_found = false;
        for (size_t i = 0; sign != NULL && i < model->unit_count; i++) {
            const size_t length = strlen(model->units[i].name);
            if (length != (size_t)(sign - text) || memcmp(model->units[i].name, text, length) != 0)
                continue;
            uses[i] = (uint8_t)(sign[1] - '0');
            is_found = true;
        }
        if (!is_found) return CD_PASS(refuse("unit", text, err));
    }
    return CDDP_OK;
}

cddp_status cd_own_find_outputs(const cd_model *model, const cd_micro *micro, uint32_t *mask,
                                cddp_error *err)
{
    uint32_t found = 0;
    for (size_t k = 0; k < micro->outputs.count; k++) {
        uint32_t output = 0;
        while (output < model->output_count &&
               strcmp(model->targets[output].name, micro->outputs.items[k]) != 0)
            output++;
        if (output == model->output_count)
            return CD_PASS(refuse("output", micro->outputs.items[k], err));
        found |= UINT32_C(1) << output;
    }
    *mask = micro->outputs.count == 0 ? UINT32_MAX : found;
    return CDDP_OK;
}

/* ---- forward ---- */

/* FMP-05: each number becomes the nearest one of the narrower dtype. */
static cddp_status narrow_inputs(const cd_replica *r, cd_pass *pass, cddp_error *err)
{
    const bool has_numbers = (r->model->module->device->flags & CDDP_DEVICE_VALUES) != 0;
    if (pass->input_dtype == NULL || !has_numbers) return CDDP_OK;
    for (uint32_t i = 0; i < r->model->input_count; i++) {
        const cddp_tensor *input = &pass->batch.inputs[i];
        cddp_tensor narrow;
        if (r->model->inputs[i].kind != CD_FIELD_REAL) continue;
        CD_TRY(cd_graph_tensor(r->graph, *pass->input_dtype, input->sizes, input->dim_count,
                               &narrow, err));
        CD_TRY(narrow.device->copy(&narrow, input, NULL, err));
        CD_TRY(narrow.device->copy(input, &narrow, NULL, err));
    }
    return CDDP_OK;
}

cddp_status cd_own_forward(cd_replica *r, const cddp_plan_settings *settings, cd_pass *pass,
                           cddp_error *err)
{
    const cd_micro *micro = pass->micro;
    const cd_prng seed = cd_prng_seed(r->plan->world.seed);
    const cd_prng data = cd_prng_split(&seed, "data");
    const cd_batch_request request = {.prng = &data,
                                      .exact = settings->model.exact,
                                      .sample_count = pass->count,
                                      .sample_ids = &pass->samples->ids[pass->first]};
    CD_TRY(cd_batch_make(r->graph, r->model, &request, &pass->batch, err));
    CD_TRY(narrow_inputs(r, pass, err));
    CD_TRY(cd_own_find_uses(r->model, micro, r->uses, err));
    pass->batch.iteration = micro->number;
    pass->batch.branch = micro->branch;
    pass->batch.divisor = pass->divisor;
    pass->batch.terms = pass->has_terms ? pass->terms : NULL;
    pass->batch.uses = r->model->unit_count == 0 ? NULL : r->uses;
    pass->batch.weights = &pass->samples->weights[pass->first];
    return CD_PASS(cd_model_forward(r->model, r->graph, &pass->batch, &pass->outputs, err));
}

static cddp_status find_loss(cd_replica *r, cd_pass *pass, uint32_t outputs, cddp_error *err)
{
    cd_value *loss = NULL;
    CD_TRY(cd_model_loss(r->model, r->graph, &pass->batch, &pass->outputs, outputs, &loss, err));
    if (pass->loss_scale != 1.0) CD_TRY(cd_scale(r->graph, loss, pass->loss_scale, &loss, err));
    pass->losses[pass->loss_count++] = loss;
    return CDDP_OK;
}

cddp_status cd_own_loss(cd_replica *r, cd_pass *pass, cddp_error *err)
{
    uint32_t mask;
    CD_TRY(cd_own_find_outputs(r->model, pass->micro, &mask, err));
    pass->loss_count = 0;
    if (!pass->micro->loss_each) return CD_PASS(find_loss(r, pass, mask, err));
    for (uint32_t left = mask, i = 0; i < pass->outputs.count; i++, left >>= 1) {
        const bool is_there = pass->outputs.values[i] != NULL;
        if (is_there && left % 2 != 0) CD_TRY(find_loss(r, pass, UINT32_C(1) << i, err));
    }
    return CDDP_OK;
}

/* ---- backward ---- */

/* Listed ones first to last; else all in the order of registration, or shuffled. */
static cddp_status find_order(cd_replica *r, const cd_micro *micro, uint32_t *count,
                              cddp_error *err)
{
    const cd_module *module = r->model->module;
    *count = 0;
    if (micro->ready == CDDP_WHEN_READY_LISTED) {
        for (size_t k = 0; k < micro->ready_order.count; k++) {
            const char *name = micro->ready_order.items[k];
            uint32_t i = 0;
            while (i < module->parameter_count && strcmp(module->parameters[i].name, name) != 0)
                i++;
            if (i == module->parameter_count || *count == module->parameter_count)
                return CD_PASS(refuse("parameter", name, err));
            r->order[(*count)++] = i;
        }
        return CDDP_OK;
    }
    while (*count < module->parameter_count) {
        r->order[*count] = *count;
        (*count)++;
    }
    if (micro->ready != CDDP_WHEN_READY_SHUFFLED) return CDDP_OK;
    const cd_prng seed = cd_prng_seed(r->plan->world.seed);
    const cd_prng of_rank = cd_prng_split_index(&seed, "ready", micro->place.rank);
    const cd_prng of_step = cd_prng_split_index(&of_rank, "step", micro->place.step);
    cd_prng drawn = cd_prng_split_index(&of_step, "micro-step", micro->place.micro_step);
    cd_prng_shuffle(&drawn, r->order, *count);
    return CDDP_OK;
}

cddp_status cd_own_backward(cd_replica *r, const cd_micro *micro, cd_value *const *losses,
                            uint32_t count, bool retain_graph, cddp_error *err)
{
    cd_backward_options options = {.roots = losses,
                                   .root_count = count,
                                   .create_graph = micro->create_graph,
                                   .retain_graph = retain_graph};
    r->ready_count = 0;
    r->first_ready = UINT32_MAX;
    switch (micro->ready) {
    case CDDP_WHEN_READY_ENGINE:
        break;
    case CDDP_WHEN_READY_CHOSEN:
        options.order = CD_READY_CHOSEN;
        break;
    default:
        options.order = CD_READY_GIVEN;
        options.given = r->order;
        CD_TRY(find_order(r, micro, &options.given_count, err));
    }
    return CD_PASS(cd_graph_backward(r->graph, &options, err));
}

cddp_status cd_own_make_ready(cd_replica *r, const cd_micro *micro, uint32_t parameter,
                              cddp_grad *grad, cddp_error *err)
{
    const char *name = r->model->module->parameters[parameter].name;
    if (r->ready_count++ == 0) r->first_ready = parameter;
    const bool is_struck = micro->poison_parameter == NULL
                               ? r->first_ready == parameter
                               : strcmp(name, micro->poison_parameter) == 0;
    if (micro->poison == CDDP_POISON_NOTHING || !is_struck || grad->kind != CDDP_GRAD_DENSE)
        return CDDP_OK;
    const cddp_tensor *g = &grad->value;
    if (cddp_tensor_numel(g) == 0) return CDDP_OK;
    const cddp_tensor first = cddp_tensor_of(g->device, g->storage, g->offset, g->dtype, NULL, 0);
    if (micro->poison == CDDP_POISON_LARGE)
        return CD_PASS(cd_tensor_add_number(&first, LARGE, err));
    const double number = micro->poison == CDDP_POISON_NAN ? (double)NAN : (double)INFINITY;
    return CD_PASS(g->device->fill(&first, number, NULL, err));
}

cddp_status cd_own_write_atoms(const cd_micro *micro, uint32_t parameter, const cddp_tensor *dst,
                               cddp_error *err)
{
    const cd_atom atom = {.kind = CD_ATOM_GRADIENT,
                          .source = parameter,
                          .step = micro->place.step,
                          .micro_step = micro->place.micro_step,
                          .rank = micro->place.rank};
    if ((dst->device->flags & CDDP_DEVICE_EXACT) == 0) return CDDP_OK;
    return CD_PASS(cd_symbol_write_atoms(dst, &atom, err));
}
