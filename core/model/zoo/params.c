/* SPDX-License-Identifier: Apache-2.0 */
/* params: a free list of parameters, given by the scenario.
**
**     list=a:4x3;b:7:f16;c:2:uses2;d:5:output1;e:0;f:3:c64;g:6:frozen;h:2:uses0
**
** Each item is name:shape with shapes like 4x3 (a zero makes it empty, "scalar" has no dimensions),
** then any of a dtype, usesN (how often a forward uses it; a batch may change that), outputN (which
** output it goes into), frozen. Without a list: count parameters p0, p1, … of numel elements.
** `order` is the order of their use; the last one used is the first whose gradient is ready.
*/
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/model/zoo/list.h"

#include <stdio.h>
#include <string.h>

#define PARAMETERS_MAX 1024

typedef struct params {
    const char *list;
    int64_t count, numel;
    cd_integers order;
    uint8_t output[PARAMETERS_MAX]; /* by parameter */
} params;

static const cd_option options[] = {
    {"list", CD_OPTION_TEXT, offsetof(params, list), "", NULL, 0, 0,
     "name:shape[:dtype][:usesN][:outputN][:frozen];… as in a:4x3;b:7:f16"},
    {"count", CD_OPTION_INTEGER, offsetof(params, count), "4", NULL, 1, PARAMETERS_MAX,
     "without a list: parameters p0, p1, …"},
    {"numel", CD_OPTION_INTEGER, offsetof(params, numel), "5", NULL, 0, 1 << 30,
     "without a list: elements of each"},
    {"order", CD_OPTION_INTEGERS, offsetof(params, order), "-1", NULL, -1, PARAMETERS_MAX - 1,
     "in which order a forward uses them, first to last; -1: as listed"},
};

static const char *const output_names[CD_MODEL_OUTPUTS_MAX] = {
    "output0", "output1", "output2",  "output3",  "output4",  "output5",  "output6",  "output7",
    "output8", "output9", "output10", "output11", "output12", "output13", "output14", "output15"};

typedef struct item {
    cd_parameter_spec spec;
    int uses, output;
} item;

static cddp_status parse_shape(const char *word, cd_parameter_spec *spec, cddp_error *err)
{
    spec->dim_count = 0;
    if (strcmp(word, "scalar") == 0) return CDDP_OK;
    for (const char *at = word; spec->dim_count < CDDP_DIMS_MAX;) {
        int digits = 0;
        long long size = 0;
        if (sscanf(at, "%10lld%n", &size, &digits) != 1 || size < 0) break;
        spec->sizes[spec->dim_count++] = size;
        at += digits;
        if (*at == 0) return CDDP_OK;
        if (*at++ != 'x') break;
    }
    return cd_fail(err, CDDP_E_CONFIG, "model params: \"%s\" of \"%s\" is not a shape like 4x3",
                   word, spec->name);
}

static bool parse_dtype(const char *word, cddp_dtype *dtype)
{
    for (int d = 0; d < CDDP_DTYPE_COUNT; d++)
        if (strcmp(word, cddp_dtype_name((cddp_dtype)d)) == 0 &&
            (cddp_dtype_is_float((cddp_dtype)d) || d == CDDP_C64)) {
            *dtype = (cddp_dtype)d;
            return true;
        }
    return false;
}

static cddp_status parse_attribute(const char *word, item *it, cddp_error *err)
{
    int number = 0, digits = 0;
    if (parse_dtype(word, &it->spec.dtype)) return CDDP_OK;
    if (strcmp(word, "frozen") == 0) {
        it->spec.frozen = true;
        return CDDP_OK;
    }
    if (sscanf(word, "uses%4d%n", &number, &digits) == 1 && word[digits] == 0 && number >= 0 &&
        number <= 255) {
        it->uses = number;
        return CDDP_OK;
    }
    digits = 0;
    if (sscanf(word, "output%4d%n", &number, &digits) == 1 && word[digits] == 0 && number >= 0 &&
        number < CD_MODEL_OUTPUTS_MAX) {
        it->output = number;
        return CDDP_OK;
    }
    return cd_fail(
        err, CDDP_E_CONFIG,
        "model params: \"%s\" of \"%s\" is neither a dtype nor usesN, output0 … output%d, frozen",
        word, it->spec.name, CD_MODEL_OUTPUTS_MAX - 1);
}

static cddp_status parse_item(char *text, item *it, cddp_error *err)
{
    char *colon = strchr(text, ':');
    if (colon == NULL || colon == text)
        return cd_fail(err, CDDP_E_CONFIG, "model params: \"%s\" is not name:shape", text);
    it->spec.name = text;
    for (int word = 0; colon != NULL; word++) {
        char *start = colon + 1;
        *colon = 0;
        colon = strchr(start, ':');
        if (colon != NULL) *colon = 0;
        if (word == 0)
            CD_TRY(parse_shape(start, &it->spec, err));
        else
            CD_TRY(parse_attribute(start, it, err));
    }
    return CDDP_OK;
}

static cddp_status add_item(cd_model *model, const item *it, cddp_error *err)
{
    params *m = model->state;
    uint32_t index = 0;
    if (it->spec.dtype == CDDP_C64 && model->compute_dtype != CDDP_F32)
        return cd_fail(err, CDDP_E_CONFIG, "model params: \"%s\" is c64, the model computes in %s",
                       it->spec.name, cddp_dtype_name(model->compute_dtype));
    if (model->module->parameter_count == PARAMETERS_MAX)
        return cd_fail(err, CDDP_E_LIMIT, "model params: more than %d parameters", PARAMETERS_MAX);
    CD_TRY(cd_module_add_parameter(model->module, &it->spec, &index, err));
    m->output[index] = (uint8_t)it->output;
    return CD_PASS(cd_model_add_unit(model, it->spec.name, (uint8_t)it->uses, err));
}

/* The list is cut at semicolons in a copy: names are copied by the module. */
static cddp_status build_list(cd_model *model, const char *list, int *outputs, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    size_t bytes = strlen(list) + 1;
    char *copy = cd_allocate(model->allocator, bytes);
    if (copy == NULL) return cd_fail_memory(err, "the parameters of a model");
    memcpy(copy, list, bytes);
    for (char *text = copy; text != NULL && *text != 0;) {
        char *semicolon = strchr(text, ';');
        if (semicolon != NULL) *semicolon = 0;
        item it = {.spec = {.dtype = model->dtype, .init = {CD_INIT_DYADIC, 0}}, .uses = 1};
        CD_TRY_OUT(parse_item(text, &it, err));
        CD_TRY_OUT(add_item(model, &it, err));
        if (it.output >= *outputs) *outputs = it.output + 1;
        text = semicolon != NULL ? semicolon + 1 : NULL;
    }
out:
    cd_release(model->allocator, copy, bytes);
    return status;
}

static cddp_status build_count(cd_model *model, const params *m, cddp_error *err)
{
    for (int64_t i = 0; i < m->count; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", (int)i);
        item it = {.spec = {.name = name,
                            .dtype = model->dtype,
                            .dim_count = 1,
                            .sizes = {m->numel},
                            .init = {CD_INIT_DYADIC, 0}},
                   .uses = 1};
        CD_TRY(add_item(model, &it, err));
    }
    return CDDP_OK;
}

static cddp_status check_order(const cd_model *model, const params *m, cddp_error *err)
{
    bool seen[PARAMETERS_MAX] = {false};
    if (m->order.count == 1 && m->order.items[0] < 0) return CDDP_OK;
    for (uint32_t i = 0; i < m->order.count; i++) {
        int64_t p = m->order.items[i];
        if (p < 0 || (size_t)p >= model->module->parameter_count || seen[p])
            return cd_fail(err, CDDP_E_CONFIG,
                           "model params: order names %lld, which is no parameter or named twice",
                           (long long)p);
        seen[p] = true;
    }
    if (m->order.count == model->module->parameter_count) return CDDP_OK;
    return cd_fail(err, CDDP_E_CONFIG, "model params: order names %u of %zu parameters",
                   (unsigned)m->order.count, model->module->parameter_count);
}

static cddp_status build(cd_model *model, cddp_error *err)
{
    params *m = model->state;
    int outputs = 1;
    if (m->list[0] != 0)
        CD_TRY(build_list(model, m->list, &outputs, err));
    else
        CD_TRY(build_count(model, m, err));
    CD_TRY(check_order(model, m, err));
    CD_TRY(cd_list_add_input(model, err));
    for (int i = 0; i < outputs; i++) {
        const char *name = outputs == 1 ? "out" : output_names[i];
        CD_TRY(cd_model_add_output(model, &(cd_field){.name = name, .kind = CD_FIELD_NONE}, err));
    }
    return CDDP_OK;
}

static cddp_status forward(cd_model *model, cd_graph *graph, const cd_batch *batch,
                           cd_outputs *outputs, cddp_error *err)
{
    const params *m = model->state;
    bool listed = m->order.items[0] < 0;
    cd_value *x = NULL;
    CD_TRY(cd_graph_input(graph, &batch->inputs[0], &x, err));
    for (uint32_t i = 0; i < model->module->parameter_count; i++) {
        uint32_t p = listed ? i : (uint32_t)m->order.items[i];
        for (uint8_t use = 0; use < cd_model_unit_uses(model, batch, p); use++)
            CD_TRY(cd_list_use(model, graph, p, x, &outputs->values[m->output[p]], err));
    }
    return CDDP_OK;
}

const cd_model_type cd_model_params = {
    .name = "params",
    .summary = "a free list of parameters: names, shapes, dtypes, uses, outputs, order",
    .options = options,
    .option_count = CD_COUNT_OF(options),
    .state_bytes = sizeof(params),
    .build = build,
    .forward = forward,
    .losses = cd_list_losses,
};
