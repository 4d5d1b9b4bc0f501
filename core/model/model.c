/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a named model, runs it, and computes its loss. zoo/ has the differences between models.
**
** Loss: the losses of the chosen outputs are added sample by sample, in output order, then weighted
** and summed over samples (layers/loss.h).
*/
#include "core/model/model.h"

#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/model/layers/loss.h"
#include "core/model/layers/shapes.h"
#include "core/model/type.h"

#include <string.h>

#define CD_MODEL(name) extern const cd_model_type cd_model_##name;
#include "core/model/models.def"
#undef CD_MODEL

static const cd_model_type *const types[] = {
#define CD_MODEL(name) &cd_model_##name,
#include "core/model/models.def"
#undef CD_MODEL
};

size_t cd_model_type_count(void) { return CD_COUNT_OF(types); }

const char *cd_model_type_name(size_t index)
{
    return index < CD_COUNT_OF(types) ? types[index]->name : NULL;
}

const char *cd_model_type_summary(size_t index)
{
    return index < CD_COUNT_OF(types) ? types[index]->summary : NULL;
}

bool cd_model_type_option(size_t type, size_t option, const char **name, const char **initial,
                          const char **doc)
{
    if (type >= CD_COUNT_OF(types) || option >= types[type]->option_count) return false;
    const cd_option *o = &types[type]->options[option];
    *name = o->name;
    *initial = o->initial;
    *doc = o->doc;
    return true;
}

static cddp_status find_type(const char *name, const cd_model_type **type, cddp_error *err)
{
    char known[256] = "";
    cd_suggestion s;
    cd_suggest_begin(&s, name);
    for (size_t i = 0; i < CD_COUNT_OF(types); i++) {
        if (strcmp(types[i]->name, name) == 0) {
            *type = types[i];
            return CDDP_OK;
        }
        cd_suggest_offer(&s, types[i]->name);
        size_t used = strlen(known), more = strlen(types[i]->name);
        if (used + more + 2 >= sizeof known) continue;
        if (used > 0) known[used++] = ' ';
        memcpy(known + used, types[i]->name, more + 1);
    }
    if (s.best != NULL)
        return cd_fail(err, CDDP_E_CONFIG, "no model is called \"%s\"; did you mean '%s'?", name,
                       s.best);
    return cd_fail(err, CDDP_E_CONFIG, "no model is called \"%s\"; there are: %s", name, known);
}

#define MODEL_BLOCK_BYTES ((size_t)1024)

static cddp_status build(cd_model *m, const cd_model_options *options, cddp_error *err)
{
    const char *text = options->options != NULL ? options->options : "";
    m->state = cd_arena_push(&m->arena, m->type->state_bytes);
    m->options = cd_arena_strdup(&m->arena, text);
    CD_TRY(cd_arena_check(&m->arena, err, "model %s", m->type->name));
    CD_TRY(cd_options_parse(m->type, m->options, m->state, err));
    cd_prng initial = cd_prng_split(options->prng, "parameters");
    CD_TRY(cd_module_create(m->allocator, options->device, &initial, &m->module, err));
    m->module->dyadic = options->dyadic;
    m->module->channels_last = options->channels_last;
    CD_TRY(m->type->build(m, err));
    CD_ASSERT(m->module->scope_depth == 0 && m->output_count > 0);
    return CDDP_OK;
}

cddp_status cd_model_create(const cd_model_options *options, cd_model **model, cddp_error *err)
{
    const cd_model_type *type = NULL;
    CD_TRY(find_type(options->name, &type, err));
    if (!cddp_dtype_is_float(options->dtype))
        return cd_fail(err, CDDP_E_CONFIG, "model %s: parameters cannot be %s", options->name,
                       cddp_dtype_name(options->dtype));
    cd_arena arena;
    cd_arena_init(&arena, options->allocator, MODEL_BLOCK_BYTES);
    cd_model *m = cd_arena_push(&arena, sizeof *m);
    if (m == NULL) return cd_fail_memory(err, "model %s", options->name);
    m->type = type;
    m->arena = arena;
    m->allocator = options->allocator;
    m->dtype = options->dtype;
    m->compute_dtype = options->dtype == CDDP_F64 ? CDDP_F64 : CDDP_F32;
    cd_prng dropout =
        cd_prng_split(options->masks != NULL ? options->masks : options->prng, "dropout");
    m->seed = cd_prng_next(&dropout);
    cddp_status status = build(m, options, err);
    if (status != CDDP_OK) {
        cd_error_frame(err, __FILE__, __func__, __LINE__);
        cd_model_destroy(m);
        return status;
    }
    *model = m;
    return CDDP_OK;
}

cddp_status cd_model_add_input(cd_model *model, const cd_field *field, cddp_error *err)
{
    if (model->input_count == CD_BATCH_FIELDS_MAX)
        return cd_fail(err, CDDP_E_LIMIT, "model %s: more than %d inputs", model->type->name,
                       CD_BATCH_FIELDS_MAX);
    model->inputs[model->input_count++] = *field;
    return CDDP_OK;
}

cddp_status cd_model_add_output(cd_model *model, const cd_field *target, cddp_error *err)
{
    if (model->output_count == CD_MODEL_OUTPUTS_MAX)
        return cd_fail(err, CDDP_E_LIMIT, "model %s: more than %d outputs", model->type->name,
                       CD_MODEL_OUTPUTS_MAX);
    model->targets[model->output_count++] = *target;
    return CDDP_OK;
}

cddp_status cd_model_add_unit(cd_model *model, const char *name, uint8_t uses, cddp_error *err)
{
    if (!cd_vec_grow(model->allocator, (void **)&model->units, &model->unit_capacity,
                     model->unit_count + 1, sizeof *model->units))
        return cd_fail_memory(err, "model %s", model->type->name);
    cd_unit unit = {cd_arena_strdup(&model->arena, name), uses};
    if (unit.name == NULL) return cd_fail_memory(err, "model %s", model->type->name);
    model->units[model->unit_count++] = unit;
    return CDDP_OK;
}

uint8_t cd_model_unit_uses(const cd_model *model, const cd_batch *batch, size_t unit)
{
    CD_ASSERT(unit < model->unit_count);
    return batch->uses != NULL ? batch->uses[unit] : model->units[unit].uses;
}

cddp_status cd_model_forward(cd_model *model, cd_graph *graph, const cd_batch *batch,
                             cd_outputs *outputs, cddp_error *err)
{
    cd_outputs made = {.count = model->output_count};
    if (batch->sample_count < 1)
        return cd_fail(err, CDDP_E_ARG, "model %s: forward over %lld samples", model->type->name,
                       (long long)batch->sample_count);
    CD_TRY(model->type->forward(model, graph, batch, &made, err));
    *outputs = made;
    return CDDP_OK;
}

static cddp_status refuse_empty_loss(const cd_model *model, cddp_error *err)
{
    return cd_fail(err, CDDP_E_ARG, "model %s: the loss uses none of its outputs",
                   model->type->name);
}

/* Outputs in their order: each one's weighted sum over its samples, divided, times its weight. */
static cddp_status add_terms(cd_model *model, cd_graph *graph, const cd_batch *batch,
                             const cd_outputs *outputs, uint32_t mask, cd_value **loss,
                             cddp_error *err)
{
    cd_value *total = NULL;
    for (uint32_t i = 0; i < outputs->count; i++) {
        cd_value *losses = NULL, *one = NULL, *sum = NULL;
        if (!(mask >> i & 1) || outputs->values[i] == NULL) continue;
        CD_TRY(model->type->losses(model, graph, i, outputs->values[i], &batch->targets[i], &losses,
                                   err));
        CD_TRY(cd_weighted_sum(graph, losses, batch->weights, batch->terms[i].divisor, &one, err));
        if (batch->terms[i].weight != 1.0)
            CD_TRY(cd_scale(graph, one, batch->terms[i].weight, &one, err));
        if (total != NULL) CD_TRY(cd_add(graph, total, one, &sum, err));
        total = total == NULL ? one : sum;
    }
    if (total == NULL) return CD_PASS(refuse_empty_loss(model, err));
    *loss = total;
    return CDDP_OK;
}

cddp_status cd_model_loss(cd_model *model, cd_graph *graph, const cd_batch *batch,
                          const cd_outputs *outputs, uint32_t mask, cd_value **loss,
                          cddp_error *err)
{
    cd_value *total = NULL;
    if (batch->terms != NULL)
        return CD_PASS(add_terms(model, graph, batch, outputs, mask, loss, err));
    for (uint32_t i = 0; i < outputs->count; i++) {
        cd_value *losses = NULL, *sum = NULL;
        if (!(mask >> i & 1) || outputs->values[i] == NULL) continue;
        CD_TRY(model->type->losses(model, graph, i, outputs->values[i], &batch->targets[i], &losses,
                                   err));
        if (total == NULL) {
            total = losses;
            continue;
        }
        CD_TRY(cd_add(graph, total, losses, &sum, err));
        total = sum;
    }
    if (total == NULL) return CD_PASS(refuse_empty_loss(model, err));
    return CD_PASS(cd_weighted_sum(graph, total, batch->weights, batch->divisor, loss, err));
}

int64_t cd_model_find_output(const cd_model *model, const char *name)
{
    for (uint32_t i = 0; i < model->output_count; i++)
        if (strcmp(model->targets[i].name, name) == 0) return i;
    return -1;
}

int64_t cd_model_find_unit(const cd_model *model, const char *name)
{
    for (size_t i = 0; i < model->unit_count; i++)
        if (strcmp(model->units[i].name, name) == 0) return (int64_t)i;
    return -1;
}

void cd_model_destroy(cd_model *model)
{
    if (model == NULL) return;
    if (model->type->release != NULL && model->state != NULL) model->type->release(model);
    cd_module_destroy(model->module);
    cd_release(model->allocator, model->units, model->unit_capacity * sizeof *model->units);
    cd_arena_fini(&model->arena);
}
