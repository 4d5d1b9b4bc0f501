/* SPDX-License-Identifier: Apache-2.0 */
/* Data from (seed, field, sample id). Exact values are k/4 with k in -8…8; others are uniform in
** [-1, 1), drawn as integers, so that they are the same on every machine.
*/
#include "core/model/batch.h"

#include "core/base/error.h"
#include "core/model/layers/loss.h"
#include "core/model/model.h"
#include "core/model/op.h"

#include <string.h>

static double draw_real(cd_prng *prng, bool exact)
{
    if (exact) return (double)cd_prng_between(prng, -8, 8) / 4;
    return (double)cd_prng_between(prng, -(1 << 23), (1 << 23) - 1) / (double)(1 << 23);
}

static void fill_real(const cddp_tensor *t, int64_t sample, cd_prng *prng, bool exact)
{
    int64_t width = cd_tensor_row_numel(t);
    for (int64_t i = sample * width; i < (sample + 1) * width; i++) {
        double value = draw_real(prng, exact);
        if (t->dtype == CDDP_F64)
            ((double *)cd_tensor_data(t))[i] = value;
        else
            ((float *)cd_tensor_data(t))[i] = (float)value;
    }
}

/* The first number drawn for a target of classes: how many of its positions count. */
static int64_t draw_valid(const cd_field *field, int64_t width, cd_prng *prng)
{
    return field->ragged ? 1 + (int64_t)cd_prng_below(prng, (uint64_t)width) : width;
}

static void fill_class(const cddp_tensor *t, int64_t sample, cd_prng *prng, const cd_field *field)
{
    int64_t width = cd_tensor_row_numel(t), *classes = cd_tensor_data(t);
    int64_t valid = draw_valid(field, width, prng);
    for (int64_t i = 0; i < width; i++) {
        int64_t value = (int64_t)cd_prng_below(prng, (uint64_t)field->class_count);
        classes[sample * width + i] = i < valid ? value : CD_IGNORE_CLASS;
    }
}

static cddp_status make_field(cd_graph *graph, const cd_field *field, cddp_dtype real,
                              const cd_batch_request *request, cddp_tensor *tensor, cddp_error *err)
{
    int64_t sizes[CDDP_DIMS_MAX] = {request->sample_count};
    if (field->kind == CD_FIELD_NONE) return CDDP_OK;
    for (uint32_t i = 0; i < field->dim_count; i++) sizes[i + 1] = field->sizes[i];
    cddp_tensor t;
    const cddp_dtype dtype = field->kind == CD_FIELD_REAL ? real : CDDP_I64;
    CD_TRY(cd_graph_host_tensor(graph, dtype, sizes, field->dim_count + 1, &t, err));
    for (int64_t s = 0; s < request->sample_count && t.storage != NULL; s++) {
        cd_prng prng =
            cd_prng_split_index(request->prng, field->name, (uint64_t)request->sample_ids[s]);
        if (field->kind == CD_FIELD_REAL)
            fill_real(&t, s, &prng, request->exact);
        else
            fill_class(&t, s, &prng, field);
    }
    return CD_PASS(cd_graph_place(graph, &t, tensor, err));
}

cddp_status cd_batch_make(cd_graph *graph, const cd_model *model, const cd_batch_request *request,
                          cd_batch *batch, cddp_error *err)
{
    if (request->sample_count < 0)
        return cd_fail(err, CDDP_E_ARG, "batch: %lld samples", (long long)request->sample_count);
    cd_batch made = {.sample_count = request->sample_count};
    size_t bytes = (size_t)request->sample_count * sizeof(int64_t);
    void *ids = NULL;
    CD_TRY(cd_graph_push(graph, bytes, &ids, err));
    if (bytes > 0) memcpy(ids, request->sample_ids, bytes);
    made.sample_ids = ids;
    for (uint32_t i = 0; i < model->input_count; i++)
        CD_TRY(make_field(graph, &model->inputs[i], model->compute_dtype, request, &made.inputs[i],
                          err));
    for (uint32_t i = 0; i < model->output_count; i++) {
        /* An output's target has the output's name; it must not repeat an input's values. */
        cd_batch_request targets = *request;
        cd_prng prng = cd_prng_split(request->prng, "targets");
        targets.prng = &prng;
        CD_TRY(make_field(graph, &model->targets[i], model->compute_dtype, &targets,
                          &made.targets[i], err));
    }
    *batch = made;
    return CDDP_OK;
}

int64_t cd_model_token_count(const cd_model *model, const cd_prng *prng, int64_t sample_id)
{
    int64_t count = 0;
    bool any = false;
    for (uint32_t i = 0; i < model->output_count; i++) {
        const cd_field *field = &model->targets[i];
        if (field->kind != CD_FIELD_CLASS) continue;
        int64_t width = 1;
        for (uint32_t d = 0; d < field->dim_count; d++) width *= field->sizes[d];
        cd_prng targets = cd_prng_split(prng, "targets");
        cd_prng drawn = cd_prng_split_index(&targets, field->name, (uint64_t)sample_id);
        any = true;
        count += draw_valid(field, width, &drawn);
    }
    return any ? count : 1;
}
