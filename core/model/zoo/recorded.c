/* SPDX-License-Identifier: Apache-2.0 */
/* recorded: the gradients that a PyTorch job recorded, rank by rank and backward by backward.
**
** Sample s is backward s div W of rank s mod W, where W is the number of ranks that recorded. So
** with one sample per rank and micro-step, and loss "sum", each rank has in each micro-step the
** very gradients that it had there. A parameter without a gradient in a backward is not used by
** its forward. Initial values are those of rank 0.
*/
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/model/gradient_file.h"
#include "core/model/layers/given.h"
#include "core/model/layers/shapes.h"
#include "core/model/zoo/list.h"

typedef struct recorded {
    const char *from;
    cd_gradient_file *files; /* (rank_count) */
    uint32_t rank_count;
} recorded;

static const cd_option options[] = {
    {"from", CD_OPTION_TEXT, offsetof(recorded, from), "", NULL, 0, 0,
     "folder of a recording with gradients: rank.0.gradients, …"},
};

static cddp_status open_files(cd_model *model, recorded *m, cddp_error *err)
{
    cd_gradient_file first = {0};
    CD_TRY(cd_gradient_file_open(&first, m->from, 0, model->allocator, err));
    m->files = cd_arena_array(&model->arena, first.world_size, sizeof *m->files);
    if (m->files == NULL) {
        cd_gradient_file_close(&first);
        return cd_fail_memory(err, "model recorded");
    }
    m->files[0] = first;
    m->rank_count = model->recorded_ranks = first.world_size;
    for (uint32_t r = 1; r < m->rank_count; r++) {
        CD_TRY(cd_gradient_file_open(&m->files[r], m->from, r, model->allocator, err));
        CD_TRY(cd_gradient_file_compare(&m->files[0], &m->files[r], err));
    }
    return CDDP_OK;
}

static cddp_status add_parameter(cd_model *model, const cd_gradient_file *file, uint32_t index,
                                 cddp_error *err)
{
    const cd_gradient_parameter *p = &file->parameters[index];
    uint32_t added = 0;
    cd_parameter_spec spec = {.name = p->name,
                              .dtype = (cddp_dtype)p->dtype,
                              .dim_count = p->dim_count,
                              .init = {CD_INIT_GIVEN, 0},
                              .frozen = !p->is_trained};
    for (uint32_t i = 0; i < p->dim_count; i++) spec.sizes[i] = p->sizes[i];
    if (spec.dtype == CDDP_F64) model->compute_dtype = CDDP_F64;
    CD_TRY(cd_module_add_parameter(model->module, &spec, &added, err));
    CD_TRY(cd_model_add_unit(model, p->name, 1, err));
    const cddp_device *device = model->module->device;
    const size_t bytes = (size_t)cd_gradient_file_numel(file, index) * cddp_dtype_bytes(spec.dtype);
    if (!(device->flags & CDDP_DEVICE_VALUES) || bytes == 0) return CDDP_OK;
    void *values = cd_allocate(model->allocator, bytes);
    if (values == NULL) return cd_fail_memory(err, "the values of \"%s\"", p->name);
    cddp_status status = cd_gradient_file_read_initial(file, index, values, err);
    if (status == CDDP_OK)
        status = device->write(&model->module->parameters[added].tensor, values, bytes, err);
    cd_release(model->allocator, values, bytes);
    return CD_PASS(status);
}

static cddp_status build(cd_model *model, cddp_error *err)
{
    recorded *m = model->state;
    if (m->from[0] == '\0')
        return cd_fail(err, CDDP_E_CONFIG,
                       "model recorded: options = \"from=DIR\" names the recording");
    if (model->module->dyadic)
        return cd_fail(err, CDDP_E_CONFIG,
                       "model recorded: set model.exact = false; recorded gradients round");
    CD_TRY(open_files(model, m, err));
    for (uint32_t i = 0; i < m->files[0].parameter_count; i++)
        CD_TRY(add_parameter(model, &m->files[0], i, err));
    return CD_PASS(
        cd_model_add_output(model, &(cd_field){.name = "out", .kind = CD_FIELD_NONE}, err));
}

/* ---- forward ---- */

typedef struct row {
    const cd_gradient_file *file;
    int64_t number;
    unsigned char *present; /* (parameter_count) */
} row;

static cddp_status find_rows(const recorded *m, cd_graph *graph, const cd_batch *batch, row **rows,
                             cddp_error *err)
{
    void *memory = NULL;
    CD_TRY(cd_graph_push(graph, (size_t)batch->sample_count * sizeof **rows, &memory, err));
    row *found = memory;
    for (int64_t s = 0; s < batch->sample_count; s++) {
        found[s].file = &m->files[batch->sample_ids[s] % m->rank_count];
        found[s].number = batch->sample_ids[s] / m->rank_count;
        CD_TRY(cd_graph_push(graph, found[s].file->parameter_count, &memory, err));
        found[s].present = memory;
        CD_TRY(cd_gradient_file_read_present(found[s].file, found[s].number, memory, err));
    }
    *rows = found;
    return CDDP_OK;
}

static bool is_used(const row *rows, int64_t count, uint32_t parameter)
{
    for (int64_t s = 0; s < count; s++)
        if (rows[s].present[parameter]) return true;
    return false;
}

static cddp_status use(const cd_model *model, cd_graph *graph, const row *rows, cd_given *given,
                       uint32_t parameter, cd_value **acc, cddp_error *err)
{
    const recorded *m = model->state;
    const int64_t numel = cd_gradient_file_numel(&m->files[0], parameter);
    given->acc = *acc;
    given->constants = NULL;
    if (cd_graph_computes(graph)) {
        void *memory = NULL;
        const size_t count = (size_t)given->sample_count * (size_t)numel;
        CD_TRY(cd_graph_push(graph, (count + 1) * sizeof(double), &memory, err));
        double *constants = memory;
        for (int64_t s = 0; s < given->sample_count; s++)
            if (rows[s].present[parameter])
                CD_TRY(cd_gradient_file_read(rows[s].file, rows[s].number, parameter,
                                             constants + s * numel, err));
        given->constants = constants;
    }
    CD_TRY(cd_graph_parameter(graph, parameter, &given->p, err));
    if (given->p->tensor.dtype != model->compute_dtype)
        CD_TRY(cd_cast(graph, given->p, model->compute_dtype, &given->p, err));
    return CD_PASS(cd_given_layer(graph, given, acc, err));
}

static cddp_status forward(cd_model *model, cd_graph *graph, const cd_batch *batch,
                           cd_outputs *outputs, cddp_error *err)
{
    const recorded *m = model->state;
    cd_given given = {.sample_count = batch->sample_count};
    row *rows = NULL;
    CD_TRY(find_rows(m, graph, batch, &rows, err));
    for (uint32_t i = 0; i < model->module->parameter_count; i++)
        for (uint8_t n = 0; n < cd_model_unit_uses(model, batch, i); n++)
            if (is_used(rows, batch->sample_count, i))
                CD_TRY(use(model, graph, rows, &given, i, &outputs->values[0], err));
    if (outputs->values[0] == NULL)
        return cd_fail(err, CDDP_E_CONFIG,
                       "model recorded: backward %lld of '%s' gave no parameter a gradient",
                       (long long)rows[0].number + 1, rows[0].file->path);
    return CDDP_OK;
}

static void release(cd_model *model)
{
    recorded *m = model->state;
    for (uint32_t r = 0; r < m->rank_count; r++) cd_gradient_file_close(&m->files[r]);
}

const cd_model_type cd_model_recorded = {
    .name = "recorded",
    .summary = "the gradients that a PyTorch job recorded, by rank and backward",
    .options = options,
    .option_count = CD_COUNT_OF(options),
    .state_bytes = sizeof(recorded),
    .build = build,
    .forward = forward,
    .losses = cd_list_losses,
    .release = release,
};
