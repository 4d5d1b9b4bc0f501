/* SPDX-License-Identifier: Apache-2.0 */
/* The layers, the optimizers and whole trainings on the cuda device beside the cpu: equal bits, but
** for the payload of
*** a NaN, at odd sizes, unaligned views, no samples at all, NaN, infinities and subnormals; and a
**  steady iteration for
*** which the host waits nowhere and nothing is allocated.
***
*** One source, two programs, as twin_test.c: cuda_layers over fake_cuda, cuda_layers_gpu over CUDA.
*/
#define _POSIX_C_SOURCE 200809L
#include "backends/nccl/cuda.h"
#include "backends/nccl/layers.h"
#include "core/base/alloc.h"
#include "core/model/engine.h"
#include "core/model/layers/activation.h"
#include "core/model/layers/attention.h"
#include "core/model/layers/conv.h"
#include "core/model/layers/dropout.h"
#include "core/model/layers/embedding.h"
#include "core/model/layers/experts.h"
#include "core/model/layers/inner.h"
#include "core/model/layers/linear.h"
#include "core/model/layers/loss.h"
#include "core/model/layers/norm.h"
#include "core/model/layers/shapes.h"
#include "core/model/model.h"
#include "core/model/op.h"
#include "core/model/optim/clip.h"
#include "core/model/optim/optimizer.h"
#include "core/tensor/dtype.h"
#include "tests/support/test.h"
#ifndef CDDP_ON_GPU
#include "tests/unit/backends/nccl/fake_cuda.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <math.h>
#include <string.h>

#define SAMPLES 5
#define ROOM (1 << 21)

static const cddp_device *cuda(void) { return &cd_cuda_device; }

/* The result of one side, as bytes. */
typedef struct record {
    unsigned char bytes[ROOM];
    size_t count;
    cddp_dtype dtypes[512];
    size_t starts[513], tensor_count;
} record;
static record ours, theirs;

static void keep(record *r, const cddp_tensor *t)
{
    cddp_error err;
    const size_t bytes = (size_t)cddp_tensor_numel(t) * cddp_dtype_bytes(t->dtype);
    assert_true(r->count + bytes <= ROOM && r->tensor_count < 512);
    if (bytes > 0) assert_ok(t->device->read(t, r->bytes + r->count, bytes, &err), &err);
    r->dtypes[r->tensor_count] = t->dtype == CDDP_C64 ? CDDP_F32 : t->dtype;
    r->starts[r->tensor_count++] = r->count;
    r->count += bytes;
    r->starts[r->tensor_count] = r->count;
}

static bool is_same(cddp_dtype dtype, const unsigned char *a, const unsigned char *b)
{
    if (memcmp(a, b, cddp_dtype_bytes(dtype)) == 0) return true;
    const double x = cd_element_get(dtype, a), y = cd_element_get(dtype, b);
    return x != x && y != y;
}

/* The first place where two records differ, or -1. */
static long first_difference(const record *a, const record *b)
{
    if (a->count != b->count || a->tensor_count != b->tensor_count) return 0;
    for (size_t t = 0; t < a->tensor_count; t++)
        for (size_t at = a->starts[t]; at < a->starts[t + 1]; at += cddp_dtype_bytes(a->dtypes[t]))
            if (!is_same(a->dtypes[t], a->bytes + at, b->bytes + at)) return (long)at;
    return -1;
}

static void assert_same(void)
{
    const long at = first_difference(&ours, &theirs);
    if (at < 0) return;
    size_t t = 0;
    while (t + 1 < ours.tensor_count && ours.starts[t + 1] <= (size_t)at) t++;
    fail_msg("tensor %zu, byte %ld of it: the cpu has %.17g, the device %.17g", t,
             at - (long)ours.starts[t], cd_element_get(ours.dtypes[t], ours.bytes + at),
             cd_element_get(ours.dtypes[t], theirs.bytes + at));
}

/* ---- values ---- */

typedef enum filling { MODERATE, TINY, SPECIAL, INTEGERS, FILLING_COUNT } filling;
static const char *const filling_names[] = {"moderate", "tiny", "special", "integers"};

/* SPECIAL: a third are NaN, infinities, subnormals and zeros of both signs. */
static double draw(cd_prng *prng, filling how, cddp_dtype dtype)
{
    static const double odd[] = {0.0, -0.0, 0x1p-149, -0x1p-1074, 1e30, -1e300};
    const double x = (double)cd_prng_between(prng, -1000003, 1000003) / 999983 * 1.7;
    if (how == INTEGERS) return (double)cd_prng_between(prng, -4, 4);
    if (how == TINY) return x * (dtype == CDDP_F64 ? 0x1p-1060 : 0x1p-140);
    if (how == MODERATE || cd_prng_chance(prng, 2, 3)) return x;
    const uint64_t which = cd_prng_below(prng, 9);
    return which < 6    ? odd[which]
           : which == 6 ? (double)NAN
           : which == 7 ? (double)INFINITY
                        : (double)-INFINITY;
}

static void fill_host(const cddp_tensor *t, cd_prng *prng, filling how)
{
    const size_t bytes = cddp_dtype_bytes(t->dtype);
    for (int64_t i = 0, n = cddp_tensor_numel(t); i < n; i++)
        cd_element_set(t->dtype, (unsigned char *)cd_tensor_data(t) + (size_t)i * bytes,
                       draw(prng, how, t->dtype));
}

static void fill_there(const cddp_tensor *t, cd_prng *prng, filling how)
{
    static unsigned char values[ROOM];
    cddp_error err;
    const bool is_complex = t->dtype == CDDP_C64;
    const cddp_dtype dtype = is_complex ? CDDP_F32 : t->dtype;
    const size_t width = cddp_dtype_bytes(dtype),
                 count = (size_t)cddp_tensor_numel(t) * (is_complex ? 2 : 1);
    assert_true(count * width <= ROOM);
    for (size_t i = 0; i < count; i++)
        cd_element_set(dtype, values + i * width, draw(prng, how, dtype));
    if (count > 0) assert_ok(t->device->write(t, values, count * width, &err), &err);
}

/* ---- one layer ---- */

typedef struct run {
    cd_graph *graph;
    cd_value *p[6];
    const int64_t *ids;
    int64_t samples;
    cd_prng prng; /* of constants: targets, indices */
    filling how;
    cd_batch_norm norm;
} run;
typedef cddp_status (*layer_fn)(run *r, cd_value **y, cddp_error *err);

static cddp_status constant(run *r, cddp_dtype dtype, const int64_t *sizes, uint32_t dim_count,
                            cd_value **value, cddp_error *err)
{
    cddp_tensor host, placed;
    CD_TRY(cd_graph_host_tensor(r->graph, dtype, sizes, dim_count, &host, err));
    fill_host(&host, &r->prng, r->how);
    CD_TRY(cd_graph_place(r->graph, &host, &placed, err));
    return cd_graph_input(r->graph, &placed, value, err);
}

static cddp_status classes_below(run *r, int64_t count, const int64_t *sizes, uint32_t dim_count,
                                 bool ignore, cddp_tensor *t, cddp_error *err)
{
    CD_TRY(cd_graph_tensor(r->graph, CDDP_I64, sizes, dim_count, t, err));
    for (int64_t i = 0; i < cddp_tensor_numel(t); i++) {
        const int64_t drawn = (int64_t)cd_prng_below(&r->prng, (uint64_t)count);
        ((int64_t *)t->storage)[i] = ignore && i % 4 == 2 ? CD_IGNORE_CLASS : drawn;
    }
    return CDDP_OK;
}

static cddp_status run_linear(run *r, cd_value **y, cddp_error *err)
{
    return cd_linear(r->graph, r->p[0], r->p[1], r->p[2], y, err);
}
static cddp_status run_conv(run *r, cd_value **y, cddp_error *err)
{
    return cd_conv2d_layer(r->graph, r->p, &(cd_conv2d){1, 1}, y, err);
}
static cddp_status run_conv_stride(run *r, cd_value **y, cddp_error *err)
{
    return cd_conv2d_layer(r->graph, (cd_value *const[3]){r->p[0], r->p[1], NULL},
                           &(cd_conv2d){2, 1}, y, err);
}
static cddp_status run_pool(run *r, cd_value **y, cddp_error *err)
{
    return cd_average_pool2d(r->graph, r->p[0], 3, y, err);
}
static cddp_status run_upsample(run *r, cd_value **y, cddp_error *err)
{
    return cd_upsample2d(r->graph, r->p[0], 3, y, err);
}
static cddp_status run_relu(run *r, cd_value **y, cddp_error *err)
{
    return cd_relu(r->graph, r->p[0], y, err);
}
static cddp_status run_gelu(run *r, cd_value **y, cddp_error *err)
{
    return cd_gelu_layer(r->graph, r->p[0], y, err);
}
static cddp_status run_tanh(run *r, cd_value **y, cddp_error *err)
{
    return cd_tanh_layer(r->graph, r->p[0], y, err);
}
static cddp_status run_sigmoid(run *r, cd_value **y, cddp_error *err)
{
    return cd_sigmoid_layer(r->graph, r->p[0], y, err);
}
static cddp_status run_dropout(run *r, cd_value **y, cddp_error *err)
{
    return cd_dropout_layer(r->graph, r->p[0], &(cd_dropout){0.375, 7, 2, 3, r->ids}, y, err);
}
static cddp_status run_layer_norm(run *r, cd_value **y, cddp_error *err)
{
    return cd_layer_norm(r->graph, r->p[0], r->p[1], r->p[2], y, err);
}
static cddp_status run_batch_norm(run *r, cd_value **y, cddp_error *err)
{
    return cd_batch_norm_layer(r->graph, r->p[0], &r->norm, y, err);
}
/* As one of three ranks, the middle one: the others have numbers that follow from its own. */
static cddp_status run_batch_norm_shared(run *r, cd_value **y, cddp_error *err)
{
    r->norm.synchronised = true;
    return cd_batch_norm_layer(r->graph, r->p[0], &r->norm, y, err);
}
static cddp_status run_batch_norm_eval(run *r, cd_value **y, cddp_error *err)
{
    r->graph->training = false;
    cddp_status status = cd_batch_norm_layer(r->graph, r->p[0], &r->norm, y, err);
    r->graph->training = true;
    return status;
}
static cddp_status run_attention(run *r, cd_value **y, cddp_error *err)
{
    return cd_attention_layer(r->graph, r->p[0], &(cd_attention){3, false}, y, err);
}
static cddp_status run_causal(run *r, cd_value **y, cddp_error *err)
{
    return cd_attention_layer(r->graph, r->p[0], &(cd_attention){1, true}, y, err);
}
static cddp_status run_moves(run *r, cd_value **y, cddp_error *err)
{
    cd_value *parts[3] = {NULL}, *joined = NULL, *scaled = NULL, *narrow = NULL, *wide = NULL;
    const cddp_dtype dtype = r->p[0]->tensor.dtype;
    CD_TRY(cd_split(r->graph, r->p[0], (const int64_t[3]){4, 1, 6}, 3, parts, err));
    CD_TRY(cd_concat(r->graph, (cd_value *const[2]){parts[2], parts[0]}, 2, &joined, err));
    CD_TRY(cd_scale(r->graph, joined, -2.5, &scaled, err));
    CD_TRY(cd_cast(r->graph, joined, CDDP_BF16, &narrow, err));
    CD_TRY(cd_cast(r->graph, narrow, dtype, &wide, err));
    CD_TRY(cd_add(r->graph, scaled, wide, y, err));
    return cd_reshape(r->graph, *y, (const int64_t[3]){r->samples, 5, 6}, 3, y, err);
}
static cddp_status embed(run *r, bool bag, cd_value **y, cddp_error *err)
{
    cddp_tensor index;
    CD_TRY(classes_below(r, 7, (const int64_t[2]){r->samples, 9}, 2, false, &index, err));
    return cd_embedding_layer(r->graph, r->p[1], &(cd_embedding){&index, bag, false}, y, err);
}
static cddp_status run_embedding(run *r, cd_value **y, cddp_error *err)
{
    return embed(r, false, y, err);
}
static cddp_status run_embedding_bag(run *r, cd_value **y, cddp_error *err)
{
    return embed(r, true, y, err);
}
static cddp_status run_bad_index(run *r, cd_value **y, cddp_error *err)
{
    cddp_tensor index;
    CD_TRY(classes_below(r, 7, (const int64_t[2]){r->samples, 9}, 2, true, &index, err));
    return cd_embedding_layer(r->graph, r->p[1], &(cd_embedding){&index, false, false}, y, err);
}
static cddp_status run_experts(run *r, cd_value **y, cddp_error *err)
{
    cd_value *logits = NULL, *results[3] = {NULL};
    cd_routing routing;
    CD_TRY(cd_linear(r->graph, r->p[0], r->p[1], NULL, &logits, err));
    CD_TRY(cd_route_top1(r->graph, logits, r->ids, &routing, err));
    for (int64_t e = 0; e < 3; e++) {
        if (routing.count[e] == 0) continue;
        CD_TRY(cd_expert_take(r->graph, r->p[0], &routing, e, &results[e], err));
        CD_TRY(cd_linear(r->graph, results[e], r->p[2 + e], NULL, &results[e], err));
    }
    return cd_expert_combine(r->graph, results, &routing, y, err);
}
/* Of eight small integers without their signs two are often the largest, and the first one
** counts. */
static cddp_status run_ties(run *r, cd_value **y, cddp_error *err)
{
    cd_value *logits = NULL, *results[8] = {NULL};
    cd_routing routing;
    CD_TRY(cd_relu(r->graph, r->p[0], &logits, err));
    CD_TRY(cd_route_top1(r->graph, logits, r->ids, &routing, err));
    for (int64_t e = 0; e < 8; e++)
        if (routing.count[e] > 0)
            CD_TRY(cd_expert_take(r->graph, r->p[0], &routing, e, &results[e], err));
    return cd_expert_combine(r->graph, results, &routing, y, err);
}
static cddp_status run_inner(run *r, cd_value **y, cddp_error *err)
{
    cd_inner inner = {.p = r->p[1], .key = 5};
    CD_TRY(cd_reshape(r->graph, r->p[0], &r->samples, 1, &inner.acc, err));
    CD_TRY(constant(r, r->p[0]->tensor.dtype, &r->samples, 1, &inner.x, err));
    return cd_inner_layer(r->graph, &inner, y, err);
}
static cddp_status run_first_inner(run *r, cd_value **y, cddp_error *err)
{
    cd_inner inner = {.p = r->p[1], .key = UINT64_MAX - 6};
    CD_TRY(constant(r, r->p[0]->tensor.dtype, &r->samples, 1, &inner.x, err));
    return cd_inner_layer(r->graph, &inner, y, err);
}
static cddp_status target_of(run *r, cd_value **target, cddp_error *err)
{
    return constant(r, r->p[0]->tensor.dtype, r->p[0]->tensor.sizes, r->p[0]->tensor.dim_count,
                    target, err);
}
static cddp_status run_squared_error(run *r, cd_value **y, cddp_error *err)
{
    cd_value *target = NULL;
    CD_TRY(target_of(r, &target, err));
    return cd_squared_error(r->graph, r->p[0], target, y, err);
}
static cddp_status run_bce(run *r, cd_value **y, cddp_error *err)
{
    cd_value *target = NULL;
    CD_TRY(target_of(r, &target, err));
    return cd_bce_with_logits(r->graph, r->p[0], target, y, err);
}
static cddp_status entropy(run *r, int64_t classes, cd_value **y, cddp_error *err)
{
    cddp_tensor t;
    CD_TRY(classes_below(r, classes, r->p[0]->tensor.sizes, r->p[0]->tensor.dim_count - 1, true, &t,
                         err));
    return cd_cross_entropy(r->graph, r->p[0], &t, y, err);
}
static cddp_status run_cross_entropy(run *r, cd_value **y, cddp_error *err)
{
    return entropy(r, 11, y, err);
}
static cddp_status run_bad_class(run *r, cd_value **y, cddp_error *err)
{
    return entropy(r, 1000, y, err);
}
static cddp_status run_weighted(run *r, cd_value **y, cddp_error *err)
{
    static const double weights[SAMPLES] = {0.5, 3, 0.3, 1.0 / 3, 2};
    cd_value *losses = NULL, *sum = NULL;
    CD_TRY(cd_reshape(r->graph, r->p[0], &r->samples, 1, &losses, err));
    CD_TRY(cd_weighted_sum(r->graph, losses, weights, 7, &sum, err));
    return cd_reshape(r->graph, sum, (const int64_t[1]){1}, 1, y, err);
}

typedef struct layer_case {
    const char *name;
    layer_fn fn;
    int64_t norm_channels; /* batch norm's parameters behind the operands */
    uint32_t operand_count;
    struct {
        uint32_t dim_count;
        int64_t sizes[4];
    } operands[5]; /* without the sample dimension for the first one */
} layer_case;

static const layer_case cases[] = {
    /* clang-format off */
    {"linear", run_linear, 0, 3, {{1, {13}}, {2, {7, 13}}, {1, {7}}}},
    {"linear over positions", run_linear, 0, 3, {{2, {3, 5}}, {2, {9, 5}}, {1, {9}}}},
    {"linear without bias", run_linear, 0, 2, {{1, {1}}, {2, {17, 1}}}},
    {"conv2d", run_conv, 0, 3, {{3, {3, 5, 7}}, {4, {5, 3, 3, 3}}, {1, {5}}}},
    {"conv2d with stride", run_conv_stride, 0, 2, {{3, {2, 7, 6}}, {4, {3, 2, 2, 3}}}},
    {"average pooling", run_pool, 0, 1, {{3, {3, 6, 9}}}},
    {"upsampling", run_upsample, 0, 1, {{3, {3, 2, 5}}}},
    {"relu", run_relu, 0, 1, {{1, {131}}}},
    {"gelu", run_gelu, 0, 1, {{1, {131}}}},
    {"tanh", run_tanh, 0, 1, {{1, {131}}}},
    {"sigmoid", run_sigmoid, 0, 1, {{1, {131}}}},
    {"dropout", run_dropout, 0, 1, {{2, {7, 19}}}},
    {"layer norm", run_layer_norm, 0, 3, {{1, {13}}, {1, {13}}, {1, {13}}}},
    {"layer norm over positions", run_layer_norm, 0, 3, {{2, {3, 9}}, {1, {9}}, {1, {9}}}},
    {"batch norm", run_batch_norm, 7, 1, {{1, {7}}}},
    {"batch norm over images", run_batch_norm, 5, 1, {{3, {5, 3, 3}}}},
    {"batch norm in evaluation", run_batch_norm_eval, 5, 1, {{3, {5, 3, 3}}}},
    {"synchronised batch norm", run_batch_norm_shared, 7, 1, {{1, {7}}}},
    {"synchronised batch norm over images", run_batch_norm_shared, 5, 1, {{3, {5, 3, 3}}}},
    {"attention", run_attention, 0, 1, {{2, {7, 27}}}},
    {"causal attention", run_causal, 0, 1, {{2, {5, 21}}}},
    {"moves", run_moves, 0, 1, {{2, {3, 11}}}},
    {"embedding", run_embedding, 0, 2, {{1, {1}}, {2, {7, 5}}}},
    {"embedding bag", run_embedding_bag, 0, 2, {{1, {1}}, {2, {7, 5}}}},
    {"embedding, index out of range", run_bad_index, 0, 2, {{1, {1}}, {2, {7, 5}}}},
    {"mixture of experts", run_experts, 0, 5, {{1, {9}}, {2, {3, 9}}, {2, {9, 9}}, {2, {9, 9}}, {2, {9, 9}}}},
    {"mixture of experts with ties", run_ties, 0, 1, {{1, {8}}}},
    {"inner product with a parameter", run_inner, 0, 2, {{1, {1}}, {2, {3, 7}}}},
    {"inner product without a sum so far", run_first_inner, 0, 2, {{1, {1}}, {1, {131}}}},
    {"squared error", run_squared_error, 0, 1, {{2, {3, 7}}}},
    {"binary cross-entropy", run_bce, 0, 1, {{1, {13}}}},
    {"cross-entropy", run_cross_entropy, 0, 1, {{2, {7, 11}}}},
    {"cross-entropy, class out of range", run_bad_class, 0, 1, {{2, {7, 11}}}},
    {"weighted sum", run_weighted, 0, 1, {{1, {1}}}},
    /* clang-format on */
};

/* ---- the other ranks of synchronised batch norm ---- */

#define OTHER_RANKS 2
static double exchanged[(1 + OTHER_RANKS) * 64];

/* Ranks 0 and 2 say 1.5 and 2.25 times what this one says. */
static const double *rows_of(const cddp_tensor *mine, cddp_error *err)
{
    const size_t width = (size_t)cddp_tensor_numel(mine);
    static double own[64];
    assert_true(width <= 64);
    assert_ok(mine->device->read(mine, own, width * sizeof *own, err), err);
    for (size_t i = 0; i < width; i++) {
        exchanged[i] = own[i] * 1.5;
        exchanged[width + i] = own[i];
        exchanged[2 * width + i] = own[i] * 2.25;
    }
    return exchanged;
}

static cddp_status gather_rows(void *context, const cddp_tensor *mine, const cddp_tensor *all,
                               cddp_error *err)
{
    (void)context;
    const size_t bytes = (size_t)cddp_tensor_numel(all) * sizeof(double);
    return all->device->write(all, rows_of(mine, err), bytes, err);
}

static cddp_status sum_rows(void *context, const cddp_tensor *sums, cddp_error *err)
{
    (void)context;
    const size_t width = (size_t)cddp_tensor_numel(sums);
    double total[64] = {0};
    const double *rows = rows_of(sums, err);
    for (size_t r = 0; r <= OTHER_RANKS; r++)
        for (size_t i = 0; i < width; i++) total[i] += rows[r * width + i];
    return sums->device->write(sums, total, width * sizeof *total, err);
}

/* The comparison includes a layer's statistics. */
static cddp_status keep_combined(void *context, uint32_t buffer, const double *mean,
                                 const double *spread, int64_t channels, cddp_error *err)
{
    (void)buffer;
    (void)err;
    const cddp_tensor both[2] = {cddp_tensor_of(cddp_device_cpu(), (void *)(uintptr_t)mean, 0,
                                                CDDP_F64, &channels, 1),
                                 cddp_tensor_of(cddp_device_cpu(), (void *)(uintptr_t)spread, 0,
                                                CDDP_F64, &channels, 1)};
    keep(context, &both[0]);
    keep(context, &both[1]);
    return CDDP_OK;
}

/* samples: of the batch; shifted: they are a constant that begins behind the first one of six,
** unaligned. */
typedef struct variant {
    cddp_dtype dtype;
    filling how;
    int64_t samples;
    bool shifted;
} variant;

static cddp_status weigh(run *r, cd_value *y, cd_value **loss, cddp_error *err)
{
    cd_value *weights = NULL, *losses = NULL;
    CD_TRY(constant(r, y->tensor.dtype, y->tensor.sizes, y->tensor.dim_count, &weights, err));
    CD_TRY(cd_inner_product(r->graph, y, weights, &losses, err));
    return cd_weighted_sum(r->graph, losses, NULL, 0, loss, err);
}

static cddp_status forward_and_back(const layer_case *c, const variant *v, run *r, record *to,
                                    cddp_error *err)
{
    cd_value *y = NULL, *loss = NULL;
    for (uint32_t i = 0; i < c->operand_count; i++)
        CD_TRY(cd_graph_parameter(r->graph, i, &r->p[i], err));
    if (v->shifted || v->samples == 0) {
        cddp_tensor part = r->p[0]->tensor;
        part.offset += v->shifted ? cd_tensor_row_numel(&part) : 0;
        part.sizes[0] = v->samples;
        CD_TRY(cd_graph_input(r->graph, &part, &r->p[0], err));
    }
    CD_TRY(c->fn(r, &y, err));
    CD_TRY(weigh(r, y, &loss, err));
    keep(to, &y->tensor);
    keep(to, &loss->tensor);
    if (loss->node == NULL) return CDDP_OK; /* nothing wants a gradient */
    cd_backward_options backward = {.roots = &loss, .root_count = 1};
    return cd_graph_backward(r->graph, &backward, err);
}

/* Runs a case on one device, twice, so that the second tape lies where the first one was. */
static cddp_status run_side(const layer_case *c, const variant *v, const cddp_device *device,
                            record *to, cddp_error *err)
{
    static const char *const names[5] = {"x", "b", "c", "d", "e"};
    static const int64_t ids[SAMPLES] = {3, 0, 7, 12, 1};
    cd_prng prng = cd_prng_seed(20260101);
    cd_module *module = NULL;
    run r = {.ids = ids, .samples = v->samples, .how = v->how};
    cddp_status status = CDDP_OK;
    to->count = to->tensor_count = 0;
    assert_ok(cd_module_create(NULL, device, &prng, &module, err), err);
    for (uint32_t i = 0; i < c->operand_count; i++) {
        uint32_t index = 0;
        cd_parameter_spec spec = {.name = names[i],
                                  .dtype = v->dtype,
                                  .dim_count = c->operands[i].dim_count};
        if (i == 0) { /* the samples, and one that a constant part leaves out */
            spec.sizes[0] = v->samples + (v->shifted || v->samples == 0 ? 1 : 0);
            spec.dim_count++;
        }
        for (uint32_t d = 0; d < c->operands[i].dim_count; d++)
            spec.sizes[d + (i == 0)] = c->operands[i].sizes[d];
        assert_ok(cd_module_add_parameter(module, &spec, &index, err), err);
    }
    if (c->norm_channels > 0)
        assert_ok(cd_batch_norm_register(module, c->norm_channels, v->dtype, &r.norm, err), err);
    cd_prng values = cd_prng_seed(77);
    for (size_t i = 0; i < module->parameter_count; i++)
        fill_there(&module->parameters[i].tensor, &values, v->how);
    assert_ok(cd_graph_create(module, NULL, &r.graph, err), err);
    const cd_graph_callbacks ranks = {.context = to,
                                      .rank_count = 1 + OTHER_RANKS,
                                      .allgather = gather_rows,
                                      .allreduce = sum_rows,
                                      .combined = keep_combined};
    cd_graph_set_callbacks(r.graph, &ranks);
    for (int round = 0; round < 2 && status == CDDP_OK; round++) {
        r.prng = cd_prng_seed(5);
        cd_graph_begin(r.graph);
        status = forward_and_back(c, v, &r, to, err);
    }
    for (size_t i = 0; i < module->parameter_count && status == CDDP_OK; i++)
        if (module->parameters[i].grad.kind == CDDP_GRAD_DENSE)
            keep(to, &module->parameters[i].grad.value);
    for (size_t i = 0; i < module->buffer_count; i++) keep(to, &module->buffers[i].tensor);
    cd_graph_destroy(r.graph);
    cd_module_destroy(module);
    return status;
}

static void compare(const layer_case *c, const variant *v, const cddp_device *device)
{
    static cddp_error near_err, far_err;
    cd_test_row("%s, %s, %s, %d samples%s", c->name, cddp_dtype_name(v->dtype),
                filling_names[v->how], (int)v->samples, v->shifted ? ", unaligned" : "");
    const cddp_status near = run_side(c, v, cddp_device_cpu(), &ours, &near_err);
    const cddp_status far = run_side(c, v, device, &theirs, &far_err);
    if (near == CDDP_OK) assert_ok(far, &far_err);
    assert_int_equal(near, far);
    if (near != CDDP_OK) assert_string_equal(near_err.message, far_err.message);
    assert_same();
}

TEST(layers, have_the_bits_of_the_cpu)
{
    static const cddp_dtype dtypes[] = {CDDP_F32, CDDP_F64};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++)
        for (int d = 0; d < 2; d++) {
            for (int how = 0; how < FILLING_COUNT; how++)
                compare(&cases[k], &(variant){dtypes[d], (filling)how, SAMPLES, false}, cuda());
            compare(&cases[k], &(variant){dtypes[d], MODERATE, SAMPLES - 2, true}, cuda());
            compare(&cases[k], &(variant){dtypes[d], MODERATE, 1, false}, cuda());
            compare(&cases[k], &(variant){dtypes[d], MODERATE, 0, false}, cuda());
        }
}

/* Large enough for cuBLAS, whose order is its own, and with sums that are exact in every order. */
TEST(layers, large_products_of_small_integers_are_exact)
{
    static const layer_case large[] = {
        {"linear", run_linear, 0, 3, {{1, {1031}}, {2, {211, 1031}}, {1, {211}}}},
        {"linear over positions", run_linear, 0, 3, {{2, {64, 67}}, {2, {65, 67}}, {1, {65}}}}};
    assert_true(SAMPLES * 1031 * 211 >= CD_CUDA_LARGE_PRODUCT &&
                SAMPLES * 64 * 67 * 65 >= CD_CUDA_LARGE_PRODUCT);
    for (int k = 0; k < 2; k++)
        compare(&large[k], &(variant){CDDP_F32, INTEGERS, SAMPLES, false}, cuda());
}

/* The comparison sees one bit, in any tensor, and takes two NaN for equal. */
TEST(layers, the_comparison_sees_one_bit)
{
    float values[3] = {1, 2, NAN};
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), values, 0, CDDP_F32, &(int64_t){3}, 1);
    ours.count = ours.tensor_count = theirs.count = theirs.tensor_count = 0;
    keep(&ours, &t);
    keep(&theirs, &t);
    theirs.bytes[8] ^= 1;
    assert_int_equal(first_difference(&ours, &theirs), -1);
    theirs.bytes[4] ^= 1;
    assert_int_equal(first_difference(&ours, &theirs), 4);
}

/* A device that has no layer, or some: the others run on the host over copies, and nothing
** changes. */
TEST(layers, that_a_device_lacks_are_computed_on_the_host)
{
    cddp_layers few = cd_cuda_layers;
    cddp_device device = cd_cuda_device;
    device.layers = &few;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++)
        for (int half = 0; half < 3; half++) {
            few.layers =
                half == 0 ? 0 : cd_cuda_layers.layers & (half == 1 ? 0x55555555 : 0xaaaaaaaa);
            compare(&cases[k], &(variant){CDDP_F32, MODERATE, SAMPLES, false}, &device);
        }
}

TEST(layers, refuse_operands_that_do_not_fit)
{
    cddp_error err;
    float host[6] = {0};
    void *storage = NULL;
    assert_ok(cuda()->allocate(cuda(), CDDP_F32, 6, &storage, &err), &err);
    const int64_t sizes[2] = {2, 3};
    const cddp_tensor here = cddp_tensor_of(cddp_device_cpu(), host, 0, CDDP_F32, sizes, 2);
    const cddp_tensor there = cddp_tensor_of(cuda(), storage, 0, CDDP_F32, sizes, 2);
    cddp_tensor gaps = there, bytes = there;
    gaps.strides[0] = 1;
    bytes.dtype = CDDP_U8;
    cddp_layer_call call = {.size = sizeof call,
                            .layer = CDDP_LAYER_RELU,
                            .input_count = 1,
                            .output_count = 1};
    const cddp_layers *layers = &cd_cuda_layers;
    call.outputs = &there;
    call.inputs = &here;
    assert_fails(layers->run(cuda(), &call, &err), CDDP_E_ARG, &err,
                 "relu: input 0 is on device cpu");
    call.inputs = &gaps;
    assert_fails(layers->run(cuda(), &call, &err), CDDP_E_ARG, &err, "relu: input 0 has gaps");
    call.inputs = &bytes;
    assert_fails(layers->run(cuda(), &call, &err), CDDP_E_ARG, &err,
                 "relu: input 0 is u8 beside f32");
    call.outputs = &bytes;
    assert_fails(layers->run(cuda(), &call, &err), CDDP_E_ARG, &err, "f32 and f64, not in u8");
    call.layer = CDDP_LAYER_LINEAR;
    assert_fails(layers->run(cuda(), &call, &err), CDDP_E_ARG, &err,
                 "linear: 1 inputs and 1 outputs");
    call.layer = CDDP_LAYER_COUNT;
    assert_fails(layers->run(cuda(), &call, &err), CDDP_E_ARG, &err, "layer 24");
    cddp_update_call update = {.size = sizeof update, .tensors = {&there, &here}};
    assert_fails(layers->update(cuda(), &update, &err), CDDP_E_ARG, &err,
                 "tensor 1 is on device cpu");
    update.tensors[1] = &bytes;
    assert_fails(layers->update(cuda(), &update, &err), CDDP_E_ARG, &err, "tensor 1 is u8");
    update.rule = CDDP_UPDATE_COUNT;
    assert_fails(layers->update(cuda(), &update, &err), CDDP_E_ARG, &err, "update rule 2");
    cuda()->release(cuda(), CDDP_F32, 6, storage);
}

/* ---- optimizers ---- */

static const struct {
    const char *name;
    cd_optimizer_kind kind;
    double weight_decay, momentum;
    bool flag; /* nesterov, amsgrad */
} rules[] = {{"sgd", CD_OPTIMIZER_sgd, 0.01, 0.9, true},
             {"adam", CD_OPTIMIZER_adam, 0.01, 0, false},
             {"amsgrad", CD_OPTIMIZER_adam, 0, 0, true},
             {"adamw", CD_OPTIMIZER_adamw, 0.05, 0, true},
             {"adagrad", CD_OPTIMIZER_adagrad, 0.01, 0, false}};

#define PARAMETERS 3

static cddp_tensor make_tensor(const cddp_device *device, cddp_dtype dtype, int which,
                               cddp_error *err)
{
    static const int64_t sizes[PARAMETERS][2] = {{7, 19}, {0, 3}, {5, 1}};
    void *storage = NULL;
    assert_ok(device->allocate(device, dtype, 140, &storage, err), err);
    cddp_tensor t = cddp_tensor_of(device, storage, 1, dtype, sizes[which], 2);
    if (which == 0) { /* by columns, as a channels-last weight */
        t.strides[0] = 1;
        t.strides[1] = t.sizes[0];
    }
    return t;
}

static void optimize(const cddp_device *device, size_t k, cddp_dtype dtype, filling how, record *to)
{
    static const char *const names[PARAMETERS] = {"matrix", "nothing", "column"};
    cddp_error err;
    cddp_grad grads[PARAMETERS] = {{0}};
    cd_optimizer_parameter parameters[PARAMETERS];
    cd_optimizer *optimizer = NULL;
    cd_prng prng = cd_prng_seed(9);
    to->count = to->tensor_count = 0;
    for (int i = 0; i < PARAMETERS; i++) {
        parameters[i] =
            (cd_optimizer_parameter){names[i], make_tensor(device, dtype, i, &err), &grads[i]};
        fill_there(&parameters[i].tensor, &prng, MODERATE);
        assert_ok(cddp_grad_define(&grads[i], &parameters[i].tensor, &err), &err);
    }
    cd_optimizer_options options = cd_optimizer_options_default(rules[k].kind);
    options.weight_decay = rules[k].weight_decay;
    options.momentum = rules[k].momentum;
    options.nesterov = options.momentum != 0;
    options.amsgrad = rules[k].flag && rules[k].momentum == 0;
    options.lr_decay = 0.125;
    assert_ok(cd_optimizer_create(&options, parameters, PARAMETERS, NULL, &optimizer, &err), &err);
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < PARAMETERS; i++) fill_there(&grads[i].value, &prng, how);
        assert_ok(cd_optimizer_step(optimizer, &err), &err);
    }
    for (int i = 0; i < PARAMETERS; i++) {
        cd_optimizer_state state;
        cd_optimizer_get_state(optimizer, (size_t)i, &state);
        keep(to, &parameters[i].tensor);
        for (uint32_t s = 0; s < state.slot_count; s++) keep(to, &state.slots[s]);
    }
    cd_optimizer_destroy(optimizer);
    for (int i = 0; i < PARAMETERS; i++) {
        cddp_grad_fini(&grads[i]);
        device->release(device, dtype, 140, parameters[i].tensor.storage);
    }
}

TEST(optimizers, have_the_bits_of_the_cpu)
{
    static const cddp_dtype dtypes[] = {CDDP_F64, CDDP_F32, CDDP_F16, CDDP_BF16, CDDP_C64};
    for (size_t k = 0; k < sizeof rules / sizeof rules[0]; k++)
        for (int d = 0; d < 5; d++)
            for (int how = MODERATE; how <= SPECIAL; how++) {
                cd_test_row("%s, %s, %s gradients", rules[k].name, cddp_dtype_name(dtypes[d]),
                            filling_names[how]);
                optimize(cddp_device_cpu(), k, dtypes[d], (filling)how, &ours);
                optimize(cuda(), k, dtypes[d], (filling)how, &theirs);
                assert_same();
            }
}

/* Sums of squares of small integers are exact in every order, so the norm is the cpu's, and the
** factor too. */
TEST(optimizers, clipping_scales_by_the_same_factor)
{
    const cddp_device *const devices[2] = {cddp_device_cpu(), cuda()};
    double totals[2];
    for (int side = 0; side < 2; side++) {
        cddp_error err;
        cd_prng prng = cd_prng_seed(4);
        record *to = side == 0 ? &ours : &theirs;
        cddp_grad grads[2] = {{0}}, *slots[2] = {&grads[0], &grads[1]};
        to->count = to->tensor_count = 0;
        for (int i = 0; i < 2; i++) {
            cddp_tensor like = make_tensor(devices[side], CDDP_F32, 2 * i, &err);
            assert_ok(cddp_grad_define(&grads[i], &like, &err), &err);
            fill_there(&grads[i].value, &prng, INTEGERS);
            devices[side]->release(devices[side], CDDP_F32, 140, like.storage);
        }
        assert_ok(cd_clip_grad_norm(slots, 2, 3, &totals[side], &err), &err);
        for (int i = 0; i < 2; i++) {
            keep(to, &grads[i].value);
            cddp_grad_fini(&grads[i]);
        }
    }
    assert_true(totals[0] == totals[1] && totals[0] > 3);
    assert_same();
}

/* ---- whole trainings ---- */

typedef struct training {
    const char *name, *options;
    cddp_dtype dtype;
    cd_optimizer_kind optimizer;
    bool waits; /* the host looks at numbers: a routing */
} training;

static const training trainings[] = {
    {"mlp", "norm=batch,dropout=0.25", CDDP_F32, CD_OPTIMIZER_adamw, false},
    {"mlp", "norm=layer,checkpoint=reentrant,widths=4:4:4:2", CDDP_F64, CD_OPTIMIZER_adam, false},
    {"mlp", "checkpoint=non_reentrant", CDDP_BF16, CD_OPTIMIZER_sgd, false},
    {"cnn", "norm=batch", CDDP_F32, CD_OPTIMIZER_sgd, false},
    {"cnn", NULL, CDDP_F64, CD_OPTIMIZER_adagrad, false},
    {"transformer", NULL, CDDP_F32, CD_OPTIMIZER_adamw, false},
    {"transformer", "dropout=0.25,checkpoint=non_reentrant", CDDP_F32, CD_OPTIMIZER_adam, false},
    {"tied_lm", NULL, CDDP_F16, CD_OPTIMIZER_adam, false},
    {"gan", "norm=batch", CDDP_F32, CD_OPTIMIZER_adam, false},
    {"moe", NULL, CDDP_F32, CD_OPTIMIZER_adam, true},
    {"params", "list=a:3;b:0;c:2x2:uses2;d:3:c64;e:scalar", CDDP_F32, CD_OPTIMIZER_sgd, false},
};

enum { ROUNDS = 4, STEADY_FROM = 2 };

static cddp_status iterate(cd_model *model, cd_graph *graph, cd_optimizer *optimizer,
                           const cd_prng *prng, int round, cd_value **loss, cddp_error *err)
{
    const int64_t ids[3] = {3 + round, 7 * round, 40};
    cd_batch batch;
    cd_outputs outputs;
    CD_TRY(cd_module_zero_grad(model->module, CD_ZERO_GRAD_TO_NONE, err));
    cd_graph_begin(graph);
    cd_batch_request request = {.sample_ids = ids, .sample_count = 3, .prng = prng};
    CD_TRY(cd_batch_make(graph, model, &request, &batch, err));
    batch.iteration = (uint64_t)round;
    batch.divisor = 3;
    CD_TRY(cd_model_forward(model, graph, &batch, &outputs, err));
    CD_TRY(cd_model_loss(model, graph, &batch, &outputs, UINT32_MAX, loss, err));
    cd_backward_options backward = {.roots = loss, .root_count = 1};
    CD_TRY(cd_graph_backward(graph, &backward, err));
    return cd_optimizer_step(optimizer, err);
}

static void train(const training *t, const cddp_device *device, record *to)
{
    cddp_error err;
    cd_prng prng = cd_prng_seed(5);
    cd_model *model = NULL;
    cd_graph *graph = NULL;
    cd_optimizer *optimizer = NULL;
    cd_value *loss = NULL;
    cd_optimizer_parameter parameters[256];
    uint64_t waits = 0, asked = 0;
#ifndef CDDP_ON_GPU
    uint64_t allocations = 0;
#endif
    cd_model_options options = {
        .name = t->name, .options = t->options, .dtype = t->dtype, .device = device, .prng = &prng};
    to->count = to->tensor_count = 0;
    assert_ok(cd_model_create(&options, &model, &err), &err);
    const size_t count = model->module->parameter_count;
    assert_true(count <= 256);
    for (size_t i = 0; i < count; i++)
        parameters[i] = (cd_optimizer_parameter){model->module->parameters[i].name,
                                                 model->module->parameters[i].tensor,
                                                 &model->module->parameters[i].grad};
    cd_optimizer_options settings = cd_optimizer_options_default(t->optimizer);
    settings.lr = 0.05;
    assert_ok(cd_optimizer_create(&settings, parameters, count, NULL, &optimizer, &err), &err);
    assert_ok(cd_graph_create(model->module, NULL, &graph, &err), &err);
    for (int round = 0; round < ROUNDS; round++) {
        if (round == STEADY_FROM) {
            if (device->stream_synchronize != NULL)
                assert_ok(device->stream_synchronize(device, NULL, &err), &err);
            waits = cd_cuda_here.host_waits;
            asked = cd_cuda_here.memory.source_calls;
#ifndef CDDP_ON_GPU
            allocations = fake_cuda.allocations; /* pinned memory too */
#endif
        }
        assert_ok(iterate(model, graph, optimizer, &prng, round, &loss, &err), &err);
    }
    if (!t->waits) assert_int_equal(cd_cuda_here.host_waits, waits);
#ifndef CDDP_ON_GPU
    assert_int_equal(fake_cuda.allocations, allocations);
#endif
    if (t->waits && device != cddp_device_cpu()) assert_true(cd_cuda_here.host_waits > waits);
    assert_int_equal(cd_cuda_here.memory.source_calls, asked);
    keep(to, &loss->tensor);
    for (size_t i = 0; i < count; i++) keep(to, &model->module->parameters[i].tensor);
    for (size_t i = 0; i < model->module->buffer_count; i++)
        keep(to, &model->module->buffers[i].tensor);
    cd_graph_destroy(graph);
    cd_optimizer_destroy(optimizer);
    cd_model_destroy(model);
}

TEST(trainings, have_the_bits_of_the_cpu_and_wait_for_nothing)
{
    for (size_t k = 0; k < sizeof trainings / sizeof trainings[0]; k++) {
        const training *t = &trainings[k];
        cd_test_row("%s %s, %s", t->name, t->options != NULL ? t->options : "",
                    cddp_dtype_name(t->dtype));
        train(t, cddp_device_cpu(), &ours);
        train(t, cuda(), &theirs);
        assert_same();
    }
}

#ifndef CDDP_ON_GPU
/* One iteration on the device; whatever was made is given back. */
static cddp_status try_iteration(const cddp_allocator *allocator, cddp_error *err)
{
    static const int64_t ids[3] = {1, 2, 3};
    cd_prng prng = cd_prng_seed(5);
    cd_model *model = NULL;
    cd_graph *graph = NULL;
    cd_batch batch;
    cd_outputs outputs;
    cd_value *loss = NULL;
    cddp_status status = CDDP_OK;
    cd_model_options options = {.name = "transformer",
                                .options = "dropout=0.25",
                                .dtype = CDDP_F32,
                                .device = cuda(),
                                .allocator = allocator,
                                .prng = &prng};
    cd_batch_request request = {.sample_ids = ids, .sample_count = 3, .prng = &prng};
    CD_TRY_OUT(cd_model_create(&options, &model, err));
    CD_TRY_OUT(cd_graph_create(model->module, allocator, &graph, err));
    CD_TRY_OUT(cd_batch_make(graph, model, &request, &batch, err));
    CD_TRY_OUT(cd_model_forward(model, graph, &batch, &outputs, err));
    CD_TRY_OUT(cd_model_loss(model, graph, &batch, &outputs, UINT32_MAX, &loss, err));
    CD_TRY_OUT(
        cd_graph_backward(graph, &(cd_backward_options){.roots = &loss, .root_count = 1}, err));
out:
    cd_graph_destroy(graph);
    cd_model_destroy(model);
    return status;
}

/* The base of the fake's tests: a host that takes the device's storage for an address crashes. */
TEST(far, a_host_that_touches_storage_of_the_device_is_ended)
{
    cddp_error err;
    void *storage = NULL;
    const int64_t numel = 3;
    cd_cuda_close(&cd_cuda_here); /* and what it has on its shelves */
    fake_cuda_is_far = true;
    assert_ok(cuda()->allocate(cuda(), CDDP_F32, numel, &storage, &err), &err);
    const cddp_tensor t = cddp_tensor_of(cuda(), storage, 0, CDDP_F32, &numel, 1);
    float values[3] = {1, 2, 3}, back[3] = {0};
    assert_ok(cuda()->write(&t, values, sizeof values, &err), &err);
    assert_ok(cuda()->read(&t, back, sizeof back, &err), &err);
    assert_memory_equal(values, back, sizeof values);
    for (int writes = 0; writes < 2; writes++) {
        int how = 0;
        const pid_t child = fork();
        if (child == 0) {
            volatile float *at = storage;
            (void)signal(SIGSEGV, SIG_DFL); /* a sanitizer would print a long report */
            if (writes) *at = 1;
            _exit(writes || *at > 0);
        }
        cd_test_row("%s", writes ? "writing" : "reading");
        assert_true(child > 0 && waitpid(child, &how, 0) == child);
        assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGSEGV);
    }
    cuda()->release(cuda(), CDDP_F32, numel, storage);
    cd_cuda_close(&cd_cuda_here);
    fake_cuda_is_far = false;
}

/* Every allocation fails once, of the host's memory and of the GPU's: an error, and nothing is
** left. */
TEST(trainings, without_memory_fail_and_leave_nothing)
{
    cddp_error err;
    cd_cuda_close(&cd_cuda_here);
    for (int gpu = 0; gpu < 2; gpu++) {
        cddp_status status = CDDP_E_NOMEM;
        uint64_t n = 0;
        while (status != CDDP_OK) {
            cd_watch_allocator watch;
            cd_watch_allocator_init(&watch, cddp_allocator_default());
            n++;
            cd_test_row("%s allocation %d", gpu ? "GPU" : "host", (int)n);
            watch.fail_at = gpu ? 0 : n;
            fake_cuda_fail_malloc_at = gpu ? n : 0;
            fake_cuda_fails_on = true; /* the pool tries twice */
            status = try_iteration(&watch.table, &err);
            fake_cuda_fail_malloc_at = 0;
            fake_cuda_fails_on = false;
            assert_true(status == CDDP_OK || status == CDDP_E_NOMEM);
            assert_int_equal(watch.live_count, 0);
            cd_cuda_close(&cd_cuda_here);
            assert_int_equal(fake_cuda.live_allocations, 0);
        }
        assert_true(n > 3);
    }
}
#endif

int main(int argc, char **argv)
{
#ifdef CDDP_ON_GPU
    cddp_error err;
    if (cd_cuda_probe(&err) != CDDP_OK) cd_test_skip_all(err.message);
#endif
    int failed = cd_test_main(argc, argv, __FILE__);
    cd_cuda_close(&cd_cuda_here);
    return failed;
}
