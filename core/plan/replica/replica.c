/* SPDX-License-Identifier: Apache-2.0 */
/* Building a replica from a plan, and one micro-step of it.
**
** Not here: its optimizers (optimizers.c), names in a plan that the model does not have (names.c).
*/
#include "core/plan/replica/replica.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/model/layers/shapes.h"
#include "core/plan/replica/names.h"
#include "core/tensor/cpu.h"
#include "core/tensor/symbol.h"
#include "core/tensor/view.h"

#include <math.h>
#include <string.h>

#define MEMORY_BLOCK_BYTES ((size_t)1 << 12)

static const cddp_device *device_of_heap(int64_t word)
{
    switch (word) {
    case CDDP_MODEL_DEVICE_SYMBOL:
        return cddp_device_symbol();
    case CDDP_MODEL_DEVICE_SHAPE:
        return cddp_device_shape();
    default:
        return cddp_device_cpu();
    }
}

void cd_replica_make_devices(const cddp_allocator *allocator,
                             cddp_device devices[CD_REPLICA_DEVICES])
{
    for (int64_t word = 0; word < CD_REPLICA_DEVICES; word++)
        devices[word] = cd_device_with_allocator(device_of_heap(word), allocator);
}

const cddp_device *cd_replica_device(const cddp_plan_settings *settings, const cddp_device *devices)
{
    const int64_t word = (int64_t)settings->model.device;
    return devices != NULL && word < CD_REPLICA_DEVICES ? &devices[word] : device_of_heap(word);
}

static cddp_status check_layout(const cd_replica *r, cddp_error *err)
{
    const cd_module *module = r->model->module;
    bool has_images = !module->channels_last;
    for (size_t i = 0; i < module->parameter_count; i++)
        has_images = has_images || module->parameters[i].tensor.dim_count == 4;
    if (!has_images)
        return cd_fail(err, CDDP_E_CONFIG,
                       "model.layout has no effect: no parameter of model '%s' has four dimensions",
                       r->settings.model.name);
    if (module->channels_last && !cd_device_is_direct(module->device))
        return cd_fail(err, CDDP_E_CONFIG,
                       "model.layout = \"channels_last\": device %s has layers for contiguous "
                       "parameters; use model.memory = \"host\"",
                       module->device->name);
    return CDDP_OK;
}

/* Gradients of a recording are those of its ranks, one backward per micro-step. */
static cddp_status check_recorded(const cd_replica *r, cddp_error *err)
{
    const cddp_plan_settings *s = &r->settings;
    const uint32_t recorded = r->model->recorded_ranks;
    if (recorded == 0) return CDDP_OK;
    if (recorded != r->plan->world.size)
        return cd_fail(err, CDDP_E_CONFIG,
                       "model %s: the gradients are of %u ranks, and the scenario has %u",
                       s->model.name, (unsigned)recorded, (unsigned)r->plan->world.size);
    if (s->model.init == CDDP_MODEL_INIT_DISTINCT)
        return cd_fail(err, CDDP_E_CONFIG,
                       "model %s: model.init has no effect: values are recorded as well",
                       s->model.name);
    if (s->train.loss != CDDP_LOSS_SUM || s->data.samples != 1)
        return cd_fail(err, CDDP_E_CONFIG,
                       "model %s: needs train.loss = \"sum\" and data.samples = 1: a sample is a "
                       "backward of the recording",
                       s->model.name);
    return CDDP_OK;
}

static cddp_status make_model(cd_replica *r, const cddp_device *device, cddp_error *err)
{
    const cddp_plan_model *model = &r->settings.model;
    const cd_prng root = cd_prng_seed(r->plan->world.seed);
    const cd_prng shared = cd_prng_split(&root, "model");
    const cd_prng prng = model->init == CDDP_MODEL_INIT_DISTINCT
                             ? cd_prng_split_index(&root, "model", r->rank + 1u)
                             : shared;
    const cd_model_options options = {.name = model->name,
                                      .options = model->options,
                                      .dtype = (cddp_dtype)model->dtype,
                                      .dyadic = model->exact,
                                      .channels_last =
                                          model->layout == CDDP_MODEL_LAYOUT_CHANNELS_LAST,
                                      .device = device,
                                      .allocator = r->allocator,
                                      .prng = &prng,
                                      /* a sample has its mask on whichever rank it is */
                                      .masks = &shared};
    r->model_prng = prng;
    CD_TRY(cd_model_create(&options, &r->model, err));
    r->data_prng = cd_prng_split(&root, "data");
    cd_module *module = r->model->module;
    CD_TRY(check_layout(r, err));
    CD_TRY(check_recorded(r, err));
    r->parameters = cd_arena_array(&r->memory, module->parameter_count + 1, sizeof *r->parameters);
    r->uses = cd_arena_array(&r->memory, r->model->unit_count + 1, sizeof *r->uses);
    r->order = cd_arena_array(&r->memory, module->parameter_count + 1, sizeof *r->order);
    CD_TRY(cd_arena_check(&r->memory, err, "a replica"));
    for (size_t i = 0; i < module->parameter_count; i++) {
        cd_parameter *p = &module->parameters[i];
        p->requires_grad = p->requires_grad && !cd_patterns_match(&model->freeze, p->name);
        r->parameters[i].requires_grad = p->requires_grad;
    }
    CD_TRY(cd_graph_create(module, r->allocator, &r->graph, err));
    return CDDP_OK;
}

/* ---- life ---- */

cddp_status cd_replica_create(const cd_replica_options *options, cd_replica **replica,
                              cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_arena memory;
    cd_arena_init(&memory, options->allocator, MEMORY_BLOCK_BYTES);
    cd_replica *r = cd_arena_push(&memory, sizeof *r);
    CD_TRY(cd_arena_check(&memory, err, "a replica"));
    r->memory = memory;
    r->plan = options->plan;
    r->rank = options->rank;
    r->allocator = options->allocator;
    CD_TRY_OUT(cddp_plan_rank_settings(r->plan, r->rank, &r->settings, err));
    if (options->in_f64) r->settings.model.dtype = CDDP_F64;
    const cddp_device *device = options->device;
    CD_TRY_OUT(make_model(r, device != NULL ? device : cd_replica_device(&r->settings, NULL), err));
    if (!options->only_names) {
        CD_TRY_OUT(cd_replica_check_names(r, err));
        CD_TRY_OUT(cd_replica_make_optimizers(r, options->cutter, err));
    }
    *replica = r;
    r = NULL;
out:
    cd_replica_destroy(r);
    return status;
}

void cd_replica_destroy(cd_replica *r)
{
    if (r == NULL) return;
    cd_replica_drop_optimizers(r);
    cd_graph_destroy(r->graph);
    cd_model_destroy(r->model);
    cd_arena_fini(&r->memory);
}

/* ---- a step ---- */

void cd_replica_begin_step(cd_replica *r, uint32_t rank, uint32_t step)
{
    cd_module *module = r->model->module;
    for (size_t i = 0; i < module->parameter_count; i++) {
        cd_parameter *p = &module->parameters[i];
        cd_parameter_fate fate = {.requires_grad = r->parameters[i].requires_grad};
        cd_micro_resolve_parameter(r->plan, (cd_micro_place){rank, step, 0}, p->name, &fate);
        p->requires_grad = fate.requires_grad;
        r->parameters[i].is_replaced = fate.is_replaced;
    }
}

/* ---- one micro-step ---- */

int64_t cd_replica_token_count(const cd_replica *r, const int64_t *sample_ids, uint32_t count)
{
    int64_t tokens = 0;
    for (uint32_t i = 0; i < count; i++)
        tokens += cd_model_token_count(r->model, &r->data_prng, sample_ids[i]);
    return tokens;
}

cddp_status cd_replica_read_use(const cd_replica *r, const char *text, cd_unit_use *use,
                                cddp_error *err)
{
    char unit[CD_NAME_BYTES_MAX];
    const char *equals = strchr(text, '=');
    const size_t length = equals != NULL ? (size_t)(equals - text) : 0;
    if (equals == NULL || length >= sizeof unit || equals[1] < '0' || equals[1] > '9' ||
        equals[2] != '\0')
        return cd_fail(err, CDDP_E_CONFIG, "when.uses '%s': write \"unit=0\" to \"unit=9\"", text);
    memcpy(unit, text, length);
    unit[length] = '\0';
    const int64_t index = cd_model_find_unit(r->model, unit);
    if (index < 0) {
        return cd_fail(err, CDDP_E_CONFIG, "when.uses: model '%s' has no unit '%s'",
                       r->settings.model.name, unit);
    }
    *use = (cd_unit_use){(uint32_t)index, (uint8_t)(equals[1] - '0')};
    return CDDP_OK;
}

cddp_status cd_replica_find_output(const cd_replica *r, const char *name, uint32_t *output,
                                   cddp_error *err)
{
    const int64_t index = cd_model_find_output(r->model, name);
    if (index < 0) {
        return cd_fail(err, CDDP_E_CONFIG,
                       "model '%s' has no output '%s'; its %u go from '%s' to '%s'",
                       r->settings.model.name, name, r->model->output_count,
                       r->model->targets[0].name,
                       r->model->targets[r->model->output_count - 1].name);
    }
    *output = (uint32_t)index;
    return CDDP_OK;
}

/* "unit=2" of the plan into counts of the model. */
static cddp_status resolve_uses(cd_replica *r, const cd_micro *micro, cddp_error *err)
{
    for (size_t i = 0; i < r->model->unit_count; i++) r->uses[i] = r->model->units[i].uses;
    for (size_t i = 0; i < micro->uses.count; i++) {
        cd_unit_use use = {0};
        CD_TRY(cd_replica_read_use(r, micro->uses.items[i], &use, err));
        r->uses[use.unit] = use.count;
    }
    return CDDP_OK;
}

/* FMP-05 */
static cddp_status cast_inputs(cd_replica *r, cd_pass *pass, cddp_error *err)
{
    for (uint32_t i = 0; pass->input_dtype != NULL && i < r->model->input_count; i++) {
        const cddp_tensor *t = &pass->batch.inputs[i];
        cddp_tensor low;
        if (!cddp_dtype_is_float(t->dtype) || !cd_graph_computes(r->graph)) continue;
        CD_TRY(cd_graph_tensor(r->graph, *pass->input_dtype, t->sizes, t->dim_count, &low, err));
        CD_TRY(t->device->copy(&low, t, NULL, err));
        CD_TRY(t->device->copy(t, &low, NULL, err));
    }
    return CDDP_OK;
}

cddp_status cd_replica_forward(cd_replica *r, cd_pass *pass, cddp_error *err)
{
    const cd_micro *micro = pass->micro;
    const cd_batch_request request = {.sample_ids = pass->samples->ids + pass->first,
                                      .sample_count = pass->count,
                                      .prng = &r->data_prng,
                                      .exact = r->settings.model.exact};
    CD_TRY(cd_batch_make(r->graph, r->model, &request, &pass->batch, err));
    CD_TRY(cast_inputs(r, pass, err));
    CD_TRY(resolve_uses(r, micro, err));
    pass->batch.weights = pass->samples->weights + pass->first;
    pass->batch.divisor = pass->divisor;
    pass->batch.terms = pass->has_terms ? pass->terms : NULL;
    pass->batch.branch = micro->branch;
    pass->batch.uses = r->model->unit_count > 0 ? r->uses : NULL;
    pass->batch.iteration = micro->number;
    CD_TRY(cd_model_forward(r->model, r->graph, &pass->batch, &pass->outputs, err));
    return CDDP_OK;
}

/* Of the outputs in the mask. */
static cddp_status add_loss(cd_replica *r, cd_pass *pass, uint32_t mask, cddp_error *err)
{
    cd_value **loss = &pass->losses[pass->loss_count++];
    CD_TRY(cd_model_loss(r->model, r->graph, &pass->batch, &pass->outputs, mask, loss, err));
    if (pass->loss_scale != 1.0) CD_TRY(cd_scale(r->graph, *loss, pass->loss_scale, loss, err));
    return CDDP_OK;
}

cddp_status cd_replica_loss(cd_replica *r, cd_pass *pass, cddp_error *err)
{
    uint32_t mask = pass->micro->outputs.count > 0 ? 0 : UINT32_MAX;
    for (size_t i = 0; i < pass->micro->outputs.count; i++) {
        uint32_t output = 0;
        CD_TRY(cd_replica_find_output(r, pass->micro->outputs.items[i], &output, err));
        mask |= 1u << output;
    }
    if (!pass->micro->loss_each) return CD_PASS(add_loss(r, pass, mask, err));
    pass->loss_count = 0;
    for (uint32_t i = 0; i < pass->outputs.count; i++) {
        if ((mask >> i & 1) != 0 && pass->outputs.values[i] != NULL)
            CD_TRY(add_loss(r, pass, 1u << i, err));
    }
    return CDDP_OK;
}

void cd_replica_add_losses(const cd_pass *pass, cd_replica_losses *losses)
{
    const cd_micro *micro = pass->micro;
    for (uint32_t i = 0; i < pass->loss_count; i++)
        losses->items[losses->count++] = pass->losses[i];
    losses->together = micro->loss_each || micro->backward_each ? 1 : losses->count;
}

/* The order that the plan asks for; the count of parameters in r->order. */
static cddp_status resolve_order(cd_replica *r, const cd_micro *micro, uint32_t *count,
                                 cddp_error *err)
{
    const cd_module *module = r->model->module;
    const size_t parameter_count = module->parameter_count;
    if (micro->ready == CDDP_WHEN_READY_LISTED) {
        for (size_t i = 0; i < micro->ready_order.count; i++) {
            const int64_t ordinal = cd_module_find_parameter(module, micro->ready_order.items[i]);
            if (ordinal < 0 || i >= parameter_count) {
                return cd_fail(err, CDDP_E_CONFIG,
                               "when.ready_order: model '%s' has no parameter '%s' left to name",
                               r->settings.model.name, micro->ready_order.items[i]);
            }
            r->order[i] = (uint32_t)ordinal;
        }
        *count = (uint32_t)micro->ready_order.count;
        return CDDP_OK;
    }
    for (size_t i = 0; i < parameter_count; i++) {
        r->order[i] = (uint32_t)i; /* registration order: the reverse of the engine's */
    }
    if (micro->ready == CDDP_WHEN_READY_SHUFFLED) {
        const cd_prng root = cd_prng_seed(r->plan->world.seed);
        const cd_prng rank = cd_prng_split_index(&root, "ready", micro->place.rank);
        const cd_prng step = cd_prng_split_index(&rank, "step", micro->place.step);
        cd_prng prng = cd_prng_split_index(&step, "micro-step", micro->place.micro_step);
        cd_prng_shuffle(&prng, r->order, parameter_count);
    }
    *count = (uint32_t)parameter_count;
    return CDDP_OK;
}

cddp_status cd_replica_backward(cd_replica *r, const cd_micro *micro, cd_value *const *losses,
                                uint32_t loss_count, bool retain_graph, cddp_error *err)
{
    cd_backward_options options = {.roots = losses,
                                   .root_count = loss_count,
                                   .retain_graph = retain_graph,
                                   .create_graph = micro->create_graph};
    r->first_ready = UINT32_MAX;
    r->ready_count = 0;
    if (micro->ready == CDDP_WHEN_READY_CHOSEN) {
        options.order = CD_READY_CHOSEN;
    } else if (micro->ready != CDDP_WHEN_READY_ENGINE) {
        options.order = CD_READY_GIVEN;
        options.given = r->order;
        CD_TRY(resolve_order(r, micro, &options.given_count, err));
    }
    CD_TRY(cd_graph_backward(r->graph, &options, err));
    return CDDP_OK;
}

cddp_status cd_tensor_add_number(const cddp_tensor *tensor, double number, cddp_error *err)
{
    const cddp_device *device = tensor->device;
    const int64_t numel = cddp_tensor_numel(tensor);
    cddp_status status = CDDP_OK;
    void *storage = NULL;
    CD_TRY(device->allocate(device, tensor->dtype, numel + 1, &storage, err));
    const cddp_tensor addend =
        cddp_tensor_of(device, storage, 0, tensor->dtype, tensor->sizes, tensor->dim_count);
    CD_TRY_OUT(device->fill(&addend, number, NULL, err));
    CD_TRY_OUT(device->reduce(CDDP_RED_SUM, tensor, &addend, NULL, err));
out:
    device->release(device, tensor->dtype, numel + 1, storage);
    return status;
}

void cd_replica_offer(cd_replica *r, uint32_t parameter)
{
    if (r->first_ready == UINT32_MAX) r->first_ready = parameter;
}

cddp_status cd_replica_make_ready(cd_replica *r, const cd_micro *micro, uint32_t parameter,
                                  cddp_grad *grad, cddp_error *err)
{
    const char *name = r->model->module->parameters[parameter].name;
    cd_replica_offer(r, parameter);
    r->ready_count++;
    const bool is_meant = micro->poison_parameter != NULL
                              ? strcmp(micro->poison_parameter, name) == 0
                              : parameter == r->first_ready;
    if (micro->poison == CDDP_POISON_NOTHING || !is_meant || grad->kind != CDDP_GRAD_DENSE ||
        cddp_tensor_numel(&grad->value) == 0)
        return CDDP_OK;
    /* The first element, as a view without dimensions. */
    const cddp_tensor *value = &grad->value;
    const cddp_tensor element =
        cddp_tensor_of(value->device, value->storage, value->offset, value->dtype, NULL, 0);
    /* A finite number is added, so that it is one more addend of the sum over all samples. */
    if (micro->poison == CDDP_POISON_LARGE)
        return CD_PASS(cd_tensor_add_number(&element, 1048576.0, err));
    CD_TRY(value->device->fill(&element, micro->poison == CDDP_POISON_NAN ? NAN : INFINITY, NULL,
                               err));
    return CDDP_OK;
}

cddp_status cd_replica_write_atoms(const cd_micro *micro, uint32_t parameter,
                                   const cddp_tensor *dst, cddp_error *err)
{
    if ((dst->device->flags & CDDP_DEVICE_EXACT) == 0) return CDDP_OK;
    const cd_atom atom = {.kind = CD_ATOM_GRADIENT,
                          .source = parameter,
                          .rank = micro->place.rank,
                          .micro_step = micro->place.micro_step,
                          .step = micro->place.step};
    CD_TRY(cd_symbol_write_atoms(dst, &atom, err));
    return CDDP_OK;
}

/* ---- the grid ---- */

static double regrid_number(double x)
{
    if (!(x > -1e15 && x < 1e15)) {
        return x; /* what is not finite stays visible */
    }
    const double k = floor(x * 8.0 + 0.5);
    return (k - 17.0 * floor((k + 8.0) / 17.0)) / 8.0;
}

/* numbers: (numel) contiguous. */
static void regrid_numbers(double *numbers, int64_t numel)
{
    for (int64_t i = 0; i < numel; i++) numbers[i] = regrid_number(numbers[i]);
}

/* The same in f32: the grid has no number that f32 rounds. */
static void regrid_floats(float *numbers, int64_t numel)
{
    for (int64_t i = 0; i < numel; i++) numbers[i] = (float)regrid_number((double)numbers[i]);
}

/* Numbers that `cpu` would cast to f64 and back; NULL: others, which the device must cast. */
static float *find_floats(const cddp_tensor *t, int64_t *numel)
{
    const bool is_plain = cd_view_is_sound(t) && t->dtype == CDDP_F32 &&
                          t->device->copy == cddp_device_cpu()->copy &&
                          cd_view_is_contiguous(t, numel);
    return is_plain ? (float *)t->storage + t->offset : NULL;
}

/* The same where the host cannot reach: through memory of the host. */
static cddp_status regrid_away(const cddp_allocator *allocator, const cddp_tensor *wide,
                               cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const int64_t numel = cddp_tensor_numel(wide);
    const size_t bytes = (size_t)numel * sizeof(double);
    double *numbers = cd_allocate_array(allocator, (size_t)numel + 1, sizeof *numbers);
    if (numbers == NULL)
        return cd_fail_memory(err, "%lld numbers to put on their grid", (long long)numel);
    CD_TRY_OUT(wide->device->read(wide, numbers, bytes, err));
    regrid_numbers(numbers, numel);
    CD_TRY_OUT(wide->device->write(wide, numbers, bytes, err));
out:
    cd_release(allocator, numbers, ((size_t)numel + 1) * sizeof *numbers);
    return status;
}

cddp_status cd_regrid_tensor(const cddp_allocator *allocator, const cddp_tensor *tensor,
                             cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const cddp_device *device = tensor->device;
    int64_t numel = 0;
    void *storage;
    float *floats = find_floats(tensor, &numel);
    if (floats != NULL) {
        regrid_floats(floats, numel);
        return CDDP_OK;
    }
    numel = cddp_tensor_numel(tensor);
    CD_TRY(device->allocate(device, CDDP_F64, numel + 1, &storage, err));
    const cddp_tensor wide =
        cddp_tensor_of(device, storage, 0, CDDP_F64, tensor->sizes, tensor->dim_count);
    CD_TRY_OUT(device->copy(&wide, tensor, NULL, err));
    if (cd_device_is_direct(device))
        regrid_numbers(storage, numel);
    else
        CD_TRY_OUT(regrid_away(allocator, &wide, err));
    CD_TRY_OUT(device->copy(tensor, &wide, NULL, err));
out:
    device->release(device, CDDP_F64, numel + 1, storage);
    return status;
}

cddp_status cd_replica_regrid(cd_replica *r, cddp_error *err)
{
    cd_module *module = r->model->module;
    for (size_t i = 0;
         r->settings.model.exact && cd_graph_computes(r->graph) && i < module->parameter_count;
         i++) {
        const cd_parameter *parameter = &module->parameters[i];
        if (parameter->requires_grad && cddp_dtype_is_float(parameter->tensor.dtype))
            CD_TRY(cd_regrid_tensor(r->allocator, &parameter->tensor, err));
    }
    return CDDP_OK;
}
