/* SPDX-License-Identifier: Apache-2.0 */
/* Batch norm, plain and synchronised.
**
** Synchronised: forward gathers (mean, Σ(x-mean)², count) of every rank and combines them in rank
** order, so that all ranks get the same bits; backward sums (Σdy, Σdy·xhat) over ranks. That is one
** all-gather and one all-reduce per layer and iteration, as in PyTorch. A checkpoint that runs the
** layer again moves the running statistics again, as in PyTorch too.
*/
#include "core/model/layers/norm.h"

#include "core/base/error.h"
#include "core/model/op.h"

#include <math.h>

typedef struct batch_norm_state {
    cd_batch_norm norm;
    const cd_module *module;
    bool training;
    int64_t samples, channels, area;
    double count;                    /* values per channel, over all ranks that share statistics */
    double *mean, *spread, *inverse; /* (channels) spread: Σ(x-mean)² */
    /* on a device that computes: given[3] of CDDP_LAYER_BATCH_NORM or …_SHARED */
    cddp_tensor there;
} batch_norm_state;

/* The running statistics where kernels can reach them: the buffers themselves, or copies on the
** tape. */
static cddp_status open_buffer(const cd_op_call *c, const batch_norm_state *s, uint32_t buffer,
                               void *data, cddp_error *err)
{
    const cddp_tensor *t = &s->module->buffers[buffer].tensor;
    cddp_tensor copy = *t;
    if (!cd_device_is_direct(t->device)) {
        CD_TRY(cd_graph_tensor(c->graph, t->dtype, t->sizes, t->dim_count, &copy, err));
        size_t bytes = (size_t)cddp_tensor_numel(t) * cddp_dtype_bytes(t->dtype);
        CD_TRY(t->device->read(t, copy.storage, bytes, err));
    }
    *(void **)data = cd_tensor_data(&copy);
    return CDDP_OK;
}

static cddp_status close_buffer(const batch_norm_state *s, uint32_t buffer, const void *data,
                                cddp_error *err)
{
    const cddp_tensor *t = &s->module->buffers[buffer].tensor;
    if (cd_device_is_direct(t->device)) return CDDP_OK;
    return CD_PASS(
        t->device->write(t, data, (size_t)cddp_tensor_numel(t) * cddp_dtype_bytes(t->dtype), err));
}

static bool is_shared(const cd_graph *graph, const batch_norm_state *s)
{
    return s->norm.synchronised && graph->callbacks.rank_count > 1;
}

/* all (rank_count, 2·channels + 1): mean, spread and count of each rank. Chan's parallel formula,
** in rank order. */
static void combine_ranks(batch_norm_state *s, const double *all, uint32_t rank_count)
{
    int64_t width = 2 * s->channels + 1;
    s->count = 0;
    for (uint32_t r = 0; r < rank_count; r++) s->count += all[r * width + 2 * s->channels];
    for (int64_t k = 0; k < s->channels; k++) {
        double sum = 0, spread = 0;
        for (uint32_t r = 0; r < rank_count; r++)
            sum += all[r * width + 2 * s->channels] * all[r * width + k];
        s->mean[k] = sum / s->count;
        for (uint32_t r = 0; r < rank_count; r++) {
            double distance = all[r * width + k] - s->mean[k];
            spread += all[r * width + s->channels + k] +
                      all[r * width + 2 * s->channels] * distance * distance;
        }
        s->spread[k] = spread;
    }
}

static cddp_status gather_moments(const cd_op_call *c, batch_norm_state *s, cddp_error *err)
{
    const cd_graph_callbacks *cb = &c->graph->callbacks;
    cddp_tensor mine, all;
    CD_TRY(cd_graph_tensor(c->graph, CDDP_F64, &(int64_t){2 * s->channels + 1}, 1, &mine, err));
    CD_TRY(cd_graph_tensor(c->graph, CDDP_F64,
                           (const int64_t[2]){cb->rank_count, 2 * s->channels + 1}, 2, &all, err));
    double *values = cd_tensor_data(&mine);
    for (int64_t k = 0; k < s->channels; k++) {
        values[k] = s->mean[k];
        values[s->channels + k] = s->spread[k];
    }
    values[2 * s->channels] = s->count;
    CD_TRY(cb->allgather(cb->context, &mine, &all, err));
    combine_ranks(s, cd_tensor_data(&all), cb->rank_count);
    return CDDP_OK;
}

/* Passes the layer's statistics to the callback, if there is one. */
static cddp_status report_combined(const cd_op_call *c, const batch_norm_state *s, cddp_error *err)
{
    const cd_graph_callbacks *cb = &c->graph->callbacks;
    if (cb->combined == NULL || !is_shared(c->graph, s)) return CDDP_OK;
    return CD_PASS(
        cb->combined(cb->context, s->norm.running_mean, s->mean, s->spread, s->channels, err));
}

static cddp_status check_count(double count, cddp_error *err)
{
    if (count >= 2) return CDDP_OK;
    return cd_fail(err, CDDP_E_ARG,
                   "batch norm: expected more than 1 value per channel when training, got %g",
                   count);
}

static cddp_status combine_moments(const cd_op_call *c, batch_norm_state *s, cddp_error *err)
{
    if (is_shared(c->graph, s)) CD_TRY(gather_moments(c, s, err));
    CD_TRY(check_count(s->count, err));
    CD_TRY(report_combined(c, s, err));
    for (int64_t k = 0; k < s->channels; k++)
        s->inverse[k] = 1 / sqrt(s->spread[k] / s->count + s->norm.eps);
    return CDDP_OK;
}

/* ---- on a device that computes ---- */

/* Numbers of one rank in an exchange, and where they lie in `there`. */
static int64_t own_count(const batch_norm_state *s) { return 2 * s->channels + 1; }

static cddp_tensor own_part(const batch_norm_state *s, int64_t numel)
{
    return cddp_tensor_slice(&s->there, 3 * s->channels + 1, numel);
}

static cddp_status describe(const cd_op_call *c, cddp_layer_call *layer, cddp_error *err)
{
    batch_norm_state *s = c->state;
    const cd_buffer *buffers = s->module->buffers;
    const bool shares = s->training && is_shared(c->graph, s);
    const int64_t exchanged = (1 + (int64_t)c->graph->callbacks.rank_count) * own_count(s);
    const int64_t numel = shares ? 3 * s->channels + 1 + exchanged : 3 * s->channels;
    if (shares) layer->layer = CDDP_LAYER_BATCH_NORM_SHARED;
    if (s->training && !shares) CD_TRY(check_count((double)(s->samples * s->area), err));
    if (s->there.device == NULL)
        CD_TRY(cd_graph_give(c->graph, CDDP_F64, &numel, 1, NULL, &s->there, err));
    layer->integers[0] = s->training;
    layer->reals[0] = s->norm.eps;
    layer->reals[1] = s->norm.momentum;
    layer->given[0] = buffers[s->norm.running_mean].tensor;
    layer->given[1] = buffers[s->norm.running_var].tensor;
    layer->given[2] = buffers[s->norm.num_batches_tracked].tensor;
    layer->given[3] = s->there;
    return CDDP_OK;
}

/* all: (rank_count, 2·channels + 1). A rank with two local values needs no look at the others: two
** are enough. */
static cddp_status check_all(const cd_op_call *c, const batch_norm_state *s, const cddp_tensor *all,
                             cddp_error *err)
{
    cddp_tensor here;
    double count = 0;
    if (s->samples * s->area >= 2) return CDDP_OK;
    CD_TRY(cd_graph_host_tensor(c->graph, CDDP_F64, all->sizes, 2, &here, err));
    const double *values = cd_tensor_data(&here);
    CD_TRY(all->device->read(all, cd_tensor_data(&here),
                             (size_t)cddp_tensor_numel(all) * sizeof *values, err));
    for (int64_t r = 0; r < all->sizes[0]; r++) count += values[(r + 1) * own_count(s) - 1];
    return CD_PASS(check_count(count, err));
}

/* Reads the device's statistics back, if there is a callback for them. */
static cddp_status report_kept(const cd_op_call *c, batch_norm_state *s, cddp_error *err)
{
    /* mean, spread: as in the state */
    const cddp_tensor kept = cddp_tensor_slice(&s->there, 0, 2 * s->channels);
    if (c->graph->callbacks.combined == NULL) return CDDP_OK;
    CD_TRY(kept.device->read(&kept, s->mean, 2 * (size_t)s->channels * sizeof *s->mean, err));
    return CD_PASS(report_combined(c, s, err));
}

static cddp_status run_half(const cd_op_call *c, cddp_layer_call *layer, int64_t half,
                            cddp_error *err)
{
    layer->integers[1] = half;
    return CD_PASS(c->graph->layers->run(c->graph->device, layer, err));
}

static cddp_status run_parts(const cd_op_call *c, cddp_layer_call *layer, cddp_error *err)
{
    batch_norm_state *s = c->state;
    const cd_graph_callbacks *cb = &c->graph->callbacks;
    if (layer->layer == CDDP_LAYER_BATCH_NORM)
        return CD_PASS(c->graph->layers->run(c->graph->device, layer, err));
    CD_TRY(run_half(c, layer, 1, err));
    if (layer->is_backward) {
        const cddp_tensor sums = own_part(s, 2 * s->channels);
        CD_TRY(cb->allreduce(cb->context, &sums, err));
        return CD_PASS(run_half(c, layer, 2, err));
    }
    const cddp_tensor own = own_part(s, own_count(s));
    cddp_tensor all = cddp_tensor_of(own.device, own.storage, own.offset + own_count(s), CDDP_F64,
                                     (const int64_t[2]){cb->rank_count, own_count(s)}, 2);
    CD_TRY(cb->allgather(cb->context, &own, &all, err));
    CD_TRY(check_all(c, s, &all, err));
    CD_TRY(run_half(c, layer, 2, err));
    return CD_PASS(report_kept(c, s, err));
}

#define KERNELS "core/model/layers/batch_norm_kernels.h"
#include "core/model/layers/each_real.h"

static const cd_op batch_norm_op = {.name = "BatchNorm",
                                    .forward = {batch_norm_forward_f32, batch_norm_forward_f64},
                                    .backward = {batch_norm_backward_f32, batch_norm_backward_f64},
                                    .layer = CDDP_LAYER_BATCH_NORM,
                                    .describe = describe,
                                    .run_parts = run_parts};

cddp_status cd_batch_norm_register(cd_module *module, int64_t channels, cddp_dtype dtype,
                                   cd_batch_norm *norm, cddp_error *err)
{
    cddp_dtype statistics = dtype == CDDP_F64 ? CDDP_F64 : CDDP_F32;
    cd_batch_norm made = {.momentum = 0.1, .eps = 1e-5};
    cd_parameter_spec spec = {.name = "weight",
                              .dtype = dtype,
                              .dim_count = 1,
                              .sizes = {channels},
                              .init = {CD_INIT_ONE, 0}};
    CD_TRY(cd_module_add_parameter(module, &spec, &made.weight, err));
    spec.name = "bias", spec.init.kind = CD_INIT_ZERO;
    CD_TRY(cd_module_add_parameter(module, &spec, &made.bias, err));
    spec.name = "running_mean", spec.dtype = statistics;
    CD_TRY(cd_module_add_buffer(module, &spec, &made.running_mean, err));
    spec.name = "running_var", spec.init.kind = CD_INIT_ONE;
    CD_TRY(cd_module_add_buffer(module, &spec, &made.running_var, err));
    spec = (cd_parameter_spec){.name = "num_batches_tracked", .dtype = CDDP_I64};
    CD_TRY(cd_module_add_buffer(module, &spec, &made.num_batches_tracked, err));
    *norm = made;
    return CDDP_OK;
}

static cddp_status make_state(cd_graph *graph, const cd_batch_norm *norm, const cddp_tensor *x,
                              batch_norm_state **made, cddp_error *err)
{
    void *memory = NULL, *moments = NULL;
    CD_TRY(cd_graph_push(graph, sizeof(batch_norm_state), &memory, err));
    batch_norm_state *s = memory;
    *s = (batch_norm_state){.norm = *norm,
                            .module = graph->module,
                            .training = graph->training,
                            .samples = x->sizes[0],
                            .channels = x->sizes[1],
                            .area = x->dim_count == 4 ? x->sizes[2] * x->sizes[3] : 1};
    CD_TRY(cd_graph_push(graph, 3 * (size_t)s->channels * sizeof(double), &moments, err));
    s->mean = moments;
    s->spread = s->mean + s->channels;
    s->inverse = s->spread + s->channels;
    *made = s;
    return CDDP_OK;
}

cddp_status cd_batch_norm_layer(cd_graph *graph, cd_value *x, const cd_batch_norm *norm,
                                cd_value **y, cddp_error *err)
{
    cd_value *inputs[3] = {x};
    char left[CD_SIZES_BYTES], right[CD_SIZES_BYTES];
    CD_TRY(cd_graph_parameter(graph, norm->weight, &inputs[1], err));
    CD_TRY(cd_graph_parameter(graph, norm->bias, &inputs[2], err));
    CD_TRY(cd_op_check_dtypes("batch norm", inputs, 3, err));
    const cddp_tensor *t = &x->tensor, *w = &inputs[1]->tensor;
    if ((t->dim_count != 2 && t->dim_count != 4) || t->sizes[1] != w->sizes[0])
        return cd_fail(err, CDDP_E_ARG, "batch norm: x %s does not fit weight %s",
                       cd_tensor_print_sizes(t, left, sizeof left),
                       cd_tensor_print_sizes(w, right, sizeof right));
    batch_norm_state *state = NULL;
    CD_TRY(make_state(graph, norm, t, &state, err));
    cd_apply apply = {.op = &batch_norm_op,
                      .inputs = inputs,
                      .input_count = 3,
                      .state = state,
                      .shapes = t,
                      .output_count = 1};
    return CD_PASS(cd_op_apply(graph, &apply, y, err));
}
