/* SPDX-License-Identifier: Apache-2.0 */
/* Copies what a micro-step is made of, out of the replica's batches. */
#include "core/reference/example.h"

#include "core/base/error.h"
#include "core/model/layers/loss.h"
#include "core/oracle/numbers.h"
#include "core/reference/own_pass.h"
#include "core/reference/sample_numbers.h"

#include <string.h>

#define EXAMPLE_BLOCK_BYTES ((size_t)1 << 14)
#define NUMBERS_MAX ((size_t)1 << 22)

void cd_example_init(cd_example *example, const cddp_allocator *allocator)
{
    *example = (cd_example){.numbers = {.allocator = allocator, .has_lanes = true}};
    cd_arena_init(&example->memory, allocator, EXAMPLE_BLOCK_BYTES);
}

void cd_example_fini(cd_example *example)
{
    cd_arena_fini(&example->memory);
    cd_numbers_fini(&example->numbers);
}

static cddp_status copy_values(cd_example *x, const cddp_tensor *tensor, const double **values,
                               size_t *numel, cddp_error *err)
{
    CD_TRY(cd_numbers_read(&x->numbers, tensor, err));
    double *copy = cd_arena_array(&x->memory, x->numbers.count + 1, sizeof *copy);
    CD_TRY(cd_arena_check(&x->memory, err, "%zu numbers of an example", x->numbers.count));
    if (x->numbers.count > 0) memcpy(copy, x->numbers.values, x->numbers.count * sizeof *copy);
    *values = copy;
    *numel = x->numbers.count;
    return CDDP_OK;
}

/* ---- parameters ---- */

static cddp_status fill_parameters(cd_example *x, const cd_example_request *r,
                                   cd_second_program *program, cddp_error *err)
{
    const cd_module *module = r->replica->model->module;
    cd_second_parameter *made =
        cd_arena_array(&x->memory, module->parameter_count + 1, sizeof *made);
    CD_TRY(cd_arena_check(&x->memory, err, "the parameters of an example"));
    for (size_t i = 0; i < module->parameter_count; i++) {
        const cd_parameter *p = &module->parameters[i];
        const cddp_tensor *used = r->forward_parameter(r->context, (uint32_t)i);
        made[i] = (cd_second_parameter){.name = p->name,
                                        .roundoff = cd_dtype_roundoff(used->dtype),
                                        .underflow = 4 * cd_dtype_underflow(used->dtype),
                                        .wants_gradient = p->requires_grad};
        CD_TRY(copy_values(x, used, &made[i].values, &made[i].numel, err));
    }
    program->parameters = made;
    program->parameter_count = module->parameter_count;
    const char **buffers = cd_arena_array(&x->memory, module->buffer_count + 1, sizeof *buffers);
    CD_TRY(cd_arena_check(&x->memory, err, "the buffers of an example"));
    for (size_t i = 0; i < module->buffer_count; i++) buffers[i] = module->buffers[i].name;
    program->buffer_names = buffers;
    program->buffer_count = module->buffer_count;
    return CDDP_OK;
}

/* ---- forwards ---- */

/* One forward of one rank, and where its samples go among those of all ranks. */
typedef struct batch_place {
    const cd_example_batch *rank;
    uint32_t forward;
    cd_batch batch;
    size_t at, all; /* samples before it; of all ranks */
} batch_place;

/* Appends the rows of a field to those of the ranks before. The numbers are drawn again: the
** engine's batch says only how many there are. */
static cddp_status append_field(cd_example *x, const batch_place *place, const cddp_tensor *tensor,
                                const cd_sample_source *source, cd_second_field *field,
                                cddp_error *err)
{
    if (tensor->device == NULL) return CDDP_OK;
    const size_t samples = place->rank->micro->samples;
    if (field->values == NULL) {
        field->width = (size_t)cddp_tensor_numel(tensor) / samples;
        field->values = cd_arena_array(&x->memory, place->all * field->width + 1, sizeof(double));
        CD_TRY(cd_arena_check(&x->memory, err, "the samples of an example"));
    }
    const int64_t *ids = place->rank->samples->ids + place->forward * samples;
    for (size_t i = 0; i < samples; i++) {
        cd_sample_numbers_draw(source, ids[i], field->width,
                               (double *)field->values + (place->at + i) * field->width);
    }
    return CDDP_OK;
}

/* The divisor of a forward, by the definition of the loss. table: 0: without one, else + 1. */
static double count_divisor(const cd_example_request *r, const batch_place *place,
                            const cd_second_forward *f, size_t table)
{
    const cddp_plan *plan = r->replica->plan;
    const bool is_apart = table > 0 && plan->outputs[table - 1].loss != CDDP_OUTPUT_LOSS_COMMON;
    const int64_t loss = is_apart ? plan->outputs[table - 1].loss : r->replica->settings.train.loss;
    if (loss == CDDP_LOSS_MEAN) return place->rank->micro->samples;
    if (loss != CDDP_LOSS_TOKEN_MEAN)
        return place->rank->divisors[place->forward * (plan->output_count + 1) + table];
    double tokens = 0;
    bool has_classes = false;
    for (uint32_t k = 0; k < r->replica->model->output_count; k++) {
        const cd_second_field *target = &f->targets[k];
        if (r->replica->model->targets[k].kind != CD_FIELD_CLASS) continue;
        has_classes = true;
        const size_t first = place->at * target->width;
        for (size_t i = 0; i < place->rank->micro->samples * target->width; i++)
            tokens += target->values[first + i] != CD_IGNORE_CLASS;
    }
    return has_classes ? tokens : place->rank->micro->samples;
}

static void append_terms(const cd_example_request *r, const batch_place *place,
                         const cd_second_forward *f, double common)
{
    const cddp_plan *plan = r->replica->plan;
    const cd_model *model = r->replica->model;
    double *divisors = (double *)f->output_divisors, *weights = (double *)f->output_weights;
    for (uint32_t k = 0; divisors != NULL && k < model->output_count; k++) {
        double divisor = common;
        weights[k] = 1;
        for (size_t i = 0; i < plan->output_count; i++) {
            if (strcmp(plan->outputs[i].name, model->targets[k].name) != 0) continue;
            divisor = count_divisor(r, place, f, i + 1);
            weights[k] = plan->outputs[i].weight;
        }
        for (uint32_t i = 0; i < place->rank->micro->samples; i++)
            divisors[(place->at + i) * CD_SECOND_OUTPUTS_MAX + k] = divisor;
    }
}

static cddp_status append_batch(cd_example *x, const cd_example_request *r, batch_place *place,
                                cd_second_forward *f, cddp_error *err)
{
    const cd_micro *micro = place->rank->micro;
    const uint32_t first = place->forward * micro->samples;
    const cd_prng root = cd_prng_seed(r->replica->plan->world.seed);
    const cd_prng data = cd_prng_split(&root, "data");
    const cd_batch_request request = {.sample_ids = place->rank->samples->ids + first,
                                      .sample_count = micro->samples,
                                      .prng = &data,
                                      .exact = r->replica->settings.model.exact};
    cd_graph_begin(r->replica->graph);
    CD_TRY(cd_batch_make(r->replica->graph, r->replica->model, &request, &place->batch, err));
    const cd_model *model = r->replica->model;
    cd_sample_source source = {.prng = request.prng, .is_exact = request.exact};
    for (uint32_t k = 0; k < CD_SECOND_INPUTS_MAX && k < model->input_count; k++) {
        source.field = &model->inputs[k];
        CD_TRY(append_field(x, place, &place->batch.inputs[k], &source, &f->inputs[k], err));
    }
    source.is_target = true;
    for (uint32_t k = 0; k < CD_SECOND_OUTPUTS_MAX && k < model->output_count; k++) {
        source.field = &model->targets[k];
        CD_TRY(append_field(x, place, &place->batch.targets[k], &source, &f->targets[k], err));
    }
    const double divisor = count_divisor(r, place, f, 0);
    append_terms(r, place, f, divisor);
    for (uint32_t i = 0; i < micro->samples; i++) {
        const size_t at = place->at + i;
        ((int64_t *)f->ids)[at] = place->rank->samples->ids[first + i];
        ((double *)f->weights)[at] = place->rank->samples->weights[first + i];
        ((double *)f->divisors)[at] = divisor;
        ((bool *)f->are_own)[at] = place->rank->is_own;
    }
    place->at += micro->samples;
    return CDDP_OK;
}

static cddp_status fill_uses(cd_example *x, const cd_example_request *r, const cd_micro *micro,
                             cd_second_forward *f, cddp_error *err)
{
    const cd_model *model = r->replica->model;
    uint8_t *uses = cd_arena_array(&x->memory, model->unit_count + 1, sizeof *uses);
    CD_TRY(cd_arena_check(&x->memory, err, "the units of an example"));
    CD_TRY(cd_own_find_uses(model, micro, uses, err));
    f->uses = uses;
    f->unit_count = model->unit_count;
    return CD_PASS(cd_own_find_outputs(model, micro, &f->outputs, err));
}

static cddp_status fill_forward(cd_example *x, const cd_example_request *r, uint32_t index,
                                cd_second_forward *f, cddp_error *err)
{
    const cd_micro *own = NULL;
    batch_place place = {.forward = index};
    for (size_t i = 0; i < r->rank_count; i++) {
        place.all += r->ranks[i].micro->samples;
        if (r->ranks[i].is_own) own = r->ranks[i].micro;
    }
    f->ids = cd_arena_array(&x->memory, place.all + 1, sizeof *f->ids);
    f->weights = cd_arena_array(&x->memory, place.all + 1, sizeof *f->weights);
    f->divisors = cd_arena_array(&x->memory, place.all + 1, sizeof *f->divisors);
    f->are_own = cd_arena_array(&x->memory, place.all + 1, sizeof *f->are_own);
    if (r->replica->plan->output_count > 0) {
        f->output_divisors = cd_arena_array(&x->memory, (place.all + 1) * CD_SECOND_OUTPUTS_MAX,
                                            sizeof *f->output_divisors);
        f->output_weights =
            cd_arena_array(&x->memory, CD_SECOND_OUTPUTS_MAX, sizeof *f->output_weights);
    }
    CD_TRY(cd_arena_check(&x->memory, err, "the samples of an example"));
    for (size_t i = 0; i < r->rank_count; i++) {
        place.rank = &r->ranks[i];
        CD_TRY(append_batch(x, r, &place, f, err));
    }
    f->samples = place.all;
    f->branch = own->branch;
    f->iteration = own->number;
    CD_TRY(fill_uses(x, r, own, f, err));
    return CDDP_OK;
}

/* ---- the whole ---- */

static bool is_same_program(const cd_micro *a, const cd_micro *b)
{
    return a->forwards == b->forwards && a->backwards == b->backwards && a->branch == b->branch &&
           a->outputs.items == b->outputs.items && a->uses.items == b->uses.items;
}

static const char *find_refusal(const cd_example_request *r)
{
    const cd_micro *own = NULL;
    size_t numel = 0;
    const cd_module *module = r->replica->model->module;
    for (size_t i = 0; i < r->rank_count; i++)
        if (r->ranks[i].is_own) own = r->ranks[i].micro;
    for (size_t i = 0; i < module->parameter_count; i++)
        numel += (size_t)cddp_tensor_numel(&module->parameters[i].tensor);
    if (numel > NUMBERS_MAX) return "the model has too many parameters for its second form";
    if (own->poison != CDDP_POISON_NOTHING) return "the plan changes a gradient of this backward";
    if (own->abort_after > 0) return "the plan leaves this backward early";
    for (size_t i = 0; i < r->rank_count; i++)
        if (!is_same_program(own, r->ranks[i].micro))
            return "ranks that share statistics run different programs";
    return NULL;
}

cddp_status cd_example_fill(cd_example *example, const cd_example_request *request,
                            cd_second_program *program, const char **why, cddp_error *err)
{
    cd_example *x = example;
    const cd_replica *replica = request->replica;
    const cd_micro *micro = request->ranks[0].micro;
    cd_arena_rewind(&x->memory, (cd_arena_mark){0});
    *why = find_refusal(request);
    if (*why != NULL) return CDDP_OK;
    *program = (cd_second_program){.model = replica->settings.model.name,
                                   .options = replica->settings.model.options,
                                   .scale = request->loss_scale * micro->backwards,
                                   .dropout_seed = replica->model->seed,
                                   .roundoff = cd_dtype_roundoff(replica->model->compute_dtype)};
    CD_TRY(fill_parameters(x, request, program, err));
    x->forward_count = micro->forwards;
    x->forwards = cd_arena_array(&x->memory, x->forward_count + 1, sizeof *x->forwards);
    CD_TRY(cd_arena_check(&x->memory, err, "the forwards of an example"));
    for (uint32_t f = 0; f < micro->forwards; f++)
        CD_TRY(fill_forward(x, request, f, &x->forwards[f], err));
    program->forwards = x->forwards;
    program->forward_count = x->forward_count;
    return CDDP_OK;
}
