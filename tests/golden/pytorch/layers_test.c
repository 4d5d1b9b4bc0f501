/* SPDX-License-Identifier: Apache-2.0 */
/* Every layer's output and gradients against PyTorch's (layers.txt, made by layers.py). The file is
** the first argument, so that the same executable judges freshly made numbers.
*/
#include "tests/golden/pytorch/golden.h"

#include "core/base/prng.h"
#include "core/model/engine.h"
#include "core/model/layers/activation.h"
#include "core/model/layers/attention.h"
#include "core/model/layers/conv.h"
#include "core/model/layers/embedding.h"
#include "core/model/layers/linear.h"
#include "core/model/layers/loss.h"
#include "core/model/layers/norm.h"
#include "core/model/op.h"
#include "core/reference/statistics.h"

#include <stdio.h>
#include <string.h>

static const char *path;

typedef struct run {
    cddp_error err;
    cd_module *module;
    cd_graph *graph;
    cd_value *p[3];
    cd_batch_norm norm;
} run;
typedef cddp_status (*layer_fn)(run *r, cd_value **y);

static cddp_status linear(run *r, cd_value **y)
{
    return cd_linear(r->graph, r->p[0], r->p[1], r->p[2], y, &r->err);
}
static cddp_status conv(run *r, cd_value **y)
{
    return cd_conv2d_layer(r->graph, r->p, &(cd_conv2d){1, 1}, y, &r->err);
}
static cddp_status conv_stride(run *r, cd_value **y)
{
    return cd_conv2d_layer(r->graph, r->p, &(cd_conv2d){2, 0}, y, &r->err);
}
static cddp_status pool(run *r, cd_value **y)
{
    return cd_average_pool2d(r->graph, r->p[0], 2, y, &r->err);
}
static cddp_status upsample(run *r, cd_value **y)
{
    return cd_upsample2d(r->graph, r->p[0], 2, y, &r->err);
}
static cddp_status relu(run *r, cd_value **y) { return cd_relu(r->graph, r->p[0], y, &r->err); }
static cddp_status gelu(run *r, cd_value **y)
{
    return cd_gelu_layer(r->graph, r->p[0], y, &r->err);
}
static cddp_status hyperbolic(run *r, cd_value **y)
{
    return cd_tanh_layer(r->graph, r->p[0], y, &r->err);
}
static cddp_status sigmoid(run *r, cd_value **y)
{
    return cd_sigmoid_layer(r->graph, r->p[0], y, &r->err);
}
static cddp_status layer_norm(run *r, cd_value **y)
{
    return cd_layer_norm(r->graph, r->p[0], r->p[1], r->p[2], y, &r->err);
}
static cddp_status batch_norm(run *r, cd_value **y)
{
    return cd_batch_norm_layer(r->graph, r->p[0], &r->norm, y, &r->err);
}

static cddp_status batch_norm_evaluation(run *r, cd_value **y)
{
    r->graph->training = false;
    return cd_batch_norm_layer(r->graph, r->p[0], &r->norm, y, &r->err);
}

static cddp_status attention(run *r, cd_value **y)
{
    return cd_attention_layer(r->graph, r->p[0], &(cd_attention){2, false}, y, &r->err);
}
static cddp_status causal(run *r, cd_value **y)
{
    return cd_attention_layer(r->graph, r->p[0], &(cd_attention){1, true}, y, &r->err);
}

static cddp_status look_up(run *r, bool bag, bool sparse, cd_value **y)
{
    cddp_tensor index;
    cddp_status status =
        cd_graph_tensor(r->graph, CDDP_I64, (const int64_t[2]){3, 4}, 2, &index, &r->err);
    if (status != CDDP_OK) return status;
    fill_classes(&index, 6, 5, 2);
    return cd_embedding_layer(r->graph, r->p[0], &(cd_embedding){&index, bag, sparse}, y, &r->err);
}

static cddp_status embedding(run *r, cd_value **y) { return look_up(r, false, false, y); }
static cddp_status embedding_bag(run *r, cd_value **y) { return look_up(r, true, false, y); }
static cddp_status embedding_bag_sparse(run *r, cd_value **y) { return look_up(r, true, true, y); }

static cddp_status pair_loss(run *r,
                             cddp_status (*loss)(cd_graph *, cd_value *, cd_value *, cd_value **,
                                                 cddp_error *),
                             cd_value **y)
{
    const cddp_tensor *x = &r->p[0]->tensor;
    cddp_tensor t;
    cd_value *target = NULL;
    cddp_status status = cd_graph_tensor(r->graph, CDDP_F64, x->sizes, x->dim_count, &t, &r->err);
    for (int64_t i = 0; status == CDDP_OK && i < cddp_tensor_numel(&t); i++)
        ((double *)t.storage)[i] = (pattern(i, 60) + 2) / 4;
    if (status == CDDP_OK) status = cd_graph_input(r->graph, &t, &target, &r->err);
    return status == CDDP_OK ? loss(r->graph, r->p[0], target, y, &r->err) : status;
}

static cddp_status squared_error(run *r, cd_value **y) { return pair_loss(r, cd_squared_error, y); }
static cddp_status bce(run *r, cd_value **y) { return pair_loss(r, cd_bce_with_logits, y); }

static cddp_status cross_entropy(run *r, cd_value **y)
{
    const cddp_tensor *x = &r->p[0]->tensor;
    cddp_tensor t;
    cddp_status status =
        cd_graph_tensor(r->graph, CDDP_I64, x->sizes, x->dim_count - 1, &t, &r->err);
    if (status != CDDP_OK) return status;
    fill_classes(&t, 4, 5, 1);
    for (int64_t i = 0; i < cddp_tensor_numel(&t); i++)
        if (((int64_t *)t.storage)[i] == 3) ((int64_t *)t.storage)[i] = CD_IGNORE_CLASS;
    return cd_cross_entropy(r->graph, r->p[0], &t, y, &r->err);
}

static const struct {
    const char *name;
    layer_fn layer;
    struct {
        uint32_t dim_count;
        int64_t sizes[4];
    } operands[3];
    bool norm; /* operands 1 and 2 and two buffers are batch norm's */
} cases[] = {
    {"linear", linear, {{2, {3, 4}}, {2, {5, 4}}, {1, {5}}}, false},
    {"linear_positions", linear, {{3, {3, 2, 4}}, {2, {5, 4}}, {1, {5}}}, false},
    {"conv2d", conv, {{4, {2, 2, 5, 4}}, {4, {3, 2, 3, 3}}, {1, {3}}}, false},
    {"conv2d_stride", conv_stride, {{4, {2, 2, 6, 7}}, {4, {3, 2, 2, 3}}, {1, {3}}}, false},
    {"average_pool", pool, {{4, {2, 3, 4, 6}}}, false},
    {"upsample", upsample, {{4, {2, 3, 2, 3}}}, false},
    {"relu", relu, {{2, {3, 7}}}, false},
    {"gelu", gelu, {{2, {3, 7}}}, false},
    {"tanh", hyperbolic, {{2, {3, 7}}}, false},
    {"sigmoid", sigmoid, {{2, {3, 7}}}, false},
    {"layer_norm", layer_norm, {{3, {3, 2, 5}}, {1, {5}}, {1, {5}}}, false},
    {"batch_norm", batch_norm, {{2, {4, 3}}}, true},
    {"batch_norm_images", batch_norm, {{4, {2, 3, 2, 3}}}, true},
    {"batch_norm_evaluation", batch_norm_evaluation, {{4, {2, 3, 2, 3}}}, true},
    {"attention", attention, {{3, {2, 3, 12}}}, false},
    {"causal_attention", causal, {{3, {2, 4, 9}}}, false},
    {"embedding", embedding, {{2, {6, 3}}}, false},
    {"embedding_bag", embedding_bag, {{2, {6, 3}}}, false},
    {"embedding_bag_sparse", embedding_bag_sparse, {{2, {6, 3}}}, false},
    {"squared_error", squared_error, {{2, {3, 4}}}, false},
    {"bce_with_logits", bce, {{2, {3, 4}}}, false},
    {"cross_entropy", cross_entropy, {{2, {3, 4}}}, false},
    {"cross_entropy_positions", cross_entropy, {{3, {3, 2, 4}}}, false},
};

static void open_case(run *r, size_t k)
{
    static const char *const names[3] = {"0", "1", "2"};
    cd_prng prng = cd_prng_seed(1);
    *r = (run){.module = NULL};
    assert_ok(cd_module_create(NULL, cddp_device_cpu(), &prng, &r->module, &r->err), &r->err);
    for (uint32_t i = 0; i < 3 && cases[k].operands[i].dim_count > 0; i++) {
        uint32_t index = 0;
        cd_parameter_spec spec = {.name = names[i],
                                  .dtype = CDDP_F64,
                                  .dim_count = cases[k].operands[i].dim_count};
        memcpy(spec.sizes, cases[k].operands[i].sizes, sizeof cases[k].operands[i].sizes);
        assert_ok(cd_module_add_parameter(r->module, &spec, &index, &r->err), &r->err);
    }
    if (cases[k].norm) {
        assert_ok(cd_batch_norm_register(r->module, 3, CDDP_F64, &r->norm, &r->err), &r->err);
        const cddp_tensor *var = &r->module->buffers[r->norm.running_var].tensor;
        fill_pattern(&r->module->buffers[r->norm.running_mean].tensor, 70, 1);
        fill_pattern(var, 71, 1);
        for (int64_t i = 0; i < 3; i++) ((double *)cd_tensor_data(var))[i] += 2.5;
    }
    for (uint32_t i = 0; i < r->module->parameter_count; i++)
        fill_pattern(&r->module->parameters[i].tensor, i, 1);
    assert_ok(cd_graph_create(r->module, NULL, &r->graph, &r->err), &r->err);
    for (uint32_t i = 0; i < r->module->parameter_count; i++)
        assert_ok(cd_graph_parameter(r->graph, i, &r->p[i], &r->err), &r->err);
}

/* loss = Σ y·pattern(i, 50) */
static void go_back(run *r, cd_value *y)
{
    cddp_tensor t;
    cd_value *weights = NULL, *losses = NULL, *loss = NULL;
    assert_ok(cd_graph_tensor(r->graph, CDDP_F64, y->tensor.sizes, y->tensor.dim_count, &t,
                              &r->err),
              &r->err);
    fill_pattern(&t, 50, 1);
    assert_ok(cd_graph_input(r->graph, &t, &weights, &r->err), &r->err);
    assert_ok(cd_inner_product(r->graph, y, weights, &losses, &r->err), &r->err);
    assert_ok(cd_weighted_sum(r->graph, losses, NULL, 0, &loss, &r->err), &r->err);
    cd_backward_options options = {.roots = &loss, .root_count = 1};
    assert_ok(cd_graph_backward(r->graph, &options, &r->err), &r->err);
}

/* The gradient of a slot as a dense tensor in `dense`. */
static const cddp_tensor *densify(const cd_parameter *p, cddp_tensor *dense, double *storage)
{
    if (p->grad.kind == CDDP_GRAD_DENSE) return &p->grad.value;
    *dense = cddp_tensor_of(cddp_device_cpu(), storage, 0, CDDP_F64, p->tensor.sizes,
                            p->tensor.dim_count);
    memset(storage, 0, (size_t)cddp_tensor_numel(dense) * sizeof *storage);
    if (p->grad.kind == CDDP_GRAD_UNDEFINED) return dense;
    int64_t width = cd_tensor_row_numel(dense);
    const int64_t *rows = (const int64_t *)p->grad.rows.storage + p->grad.rows.offset;
    for (int64_t i = 0; i < p->grad.rows.count; i++)
        memcpy(storage + rows[i] * width, (double *)cd_tensor_data(&p->grad.value) + i * width,
               (size_t)width * sizeof *storage);
    return dense;
}

TEST(layers, agree_with_pytorch)
{
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        run r;
        cd_value *y = NULL;
        char key[80];
        cd_test_row("%s", cases[k].name);
        open_case(&r, k);
        assert_ok(cases[k].layer(&r, &y), &r.err);
        snprintf(key, sizeof key, "%s.y", cases[k].name);
        assert_golden(path, key, &y->tensor);
        go_back(&r, y);
        for (uint32_t i = 0; i < r.module->parameter_count; i++) {
            cddp_tensor dense;
            double storage[64];
            snprintf(key, sizeof key, "%s.%u", cases[k].name, (unsigned)i);
            assert_golden(path, key, densify(&r.module->parameters[i], &dense, storage));
        }
        if (cases[k].norm) {
            snprintf(key, sizeof key, "%s.running_mean", cases[k].name);
            assert_golden(path, key, &r.module->buffers[r.norm.running_mean].tensor);
            snprintf(key, sizeof key, "%s.running_var", cases[k].name);
            assert_golden(path, key, &r.module->buffers[r.norm.running_var].tensor);
        }
        cd_graph_destroy(r.graph);
        cd_module_destroy(r.module);
    }
}

/* ---- synchronised batch norm: shares of a batch, whose ranks run in turn until their statistics
** settle ---- */

enum { BATCH = 4, CHANNELS = 3 };

typedef struct share {
    uint32_t world;
    int64_t counts[BATCH];
} share;

static cddp_status say(void *context, const cddp_tensor *mine, const cddp_tensor *all,
                       cddp_error *err)
{
    return cd_statistics_allgather(context, mine, all, err);
}

static cddp_status add_up(void *context, const cddp_tensor *sums, cddp_error *err)
{
    return cd_statistics_allreduce(context, sums, err);
}

/* Joins the results of all ranks: outputs and gradients of x are stacked, gradients of weight and
** bias are summed. */
typedef struct whole {
    double x[BATCH * CHANNELS], loss[BATCH * CHANNELS], y[BATCH * CHANNELS], dx[BATCH * CHANNELS],
        dw[2][CHANNELS];
    double running[2][CHANNELS];
} whole;

static cddp_tensor view_of(double *numbers, int64_t rows)
{
    return cddp_tensor_of(cddp_device_cpu(), numbers, 0, CDDP_F64,
                          (const int64_t[2]){rows, CHANNELS}, 2);
}

static void open_share(run *r, whole *w, int64_t first, int64_t count, cd_statistics *statistics)
{
    cd_prng prng = cd_prng_seed(1);
    uint32_t index = 0;
    cd_parameter_spec spec = {.name = "0",
                              .dtype = CDDP_F64,
                              .dim_count = 2,
                              .sizes = {count, CHANNELS}};
    const cd_graph_callbacks callbacks = {.context = statistics,
                                          .rank_count = statistics->world,
                                          .allgather = say,
                                          .allreduce = add_up};
    *r = (run){.module = NULL};
    assert_ok(cd_module_create(NULL, cddp_device_cpu(), &prng, &r->module, &r->err), &r->err);
    assert_ok(cd_module_add_parameter(r->module, &spec, &index, &r->err), &r->err);
    assert_ok(cd_batch_norm_register(r->module, CHANNELS, CDDP_F64, &r->norm, &r->err), &r->err);
    r->norm.synchronised = true;
    const cddp_tensor *var = &r->module->buffers[r->norm.running_var].tensor;
    fill_pattern(&r->module->buffers[r->norm.running_mean].tensor, 70, 1);
    fill_pattern(var, 71, 1);
    for (int64_t i = 0; i < CHANNELS; i++) ((double *)cd_tensor_data(var))[i] += 2.5;
    for (uint32_t i = 1; i < 3; i++) fill_pattern(&r->module->parameters[i].tensor, i, 1);
    memcpy(cd_tensor_data(&r->module->parameters[0].tensor), w->x + first * CHANNELS,
           (size_t)count * CHANNELS * sizeof(double));
    assert_ok(cd_graph_create(r->module, NULL, &r->graph, &r->err), &r->err);
    cd_graph_set_callbacks(r->graph, &callbacks);
    assert_ok(cd_graph_parameter(r->graph, 0, &r->p[0], &r->err), &r->err);
}

static void run_share(whole *w, int64_t first, int64_t count, cd_statistics *statistics)
{
    run r;
    cd_value *y = NULL, *weights = NULL, *losses = NULL, *loss = NULL;
    const cddp_tensor factors = view_of(w->loss + first * CHANNELS, count);
    open_share(&r, w, first, count, statistics);
    assert_ok(batch_norm(&r, &y), &r.err);
    memcpy(w->y + first * CHANNELS, cd_tensor_data(&y->tensor),
           (size_t)count * CHANNELS * sizeof(double));
    assert_ok(cd_graph_input(r.graph, &factors, &weights, &r.err), &r.err);
    assert_ok(cd_inner_product(r.graph, y, weights, &losses, &r.err), &r.err);
    assert_ok(cd_weighted_sum(r.graph, losses, NULL, 0, &loss, &r.err), &r.err);
    cd_backward_options options = {.roots = &loss, .root_count = 1};
    assert_ok(cd_graph_backward(r.graph, &options, &r.err), &r.err);
    const cd_parameter *p = r.module->parameters;
    memcpy(w->dx + first * CHANNELS, cd_tensor_data(&p[0].grad.value),
           (size_t)count * CHANNELS * sizeof(double));
    for (int i = 0; i < 2; i++) {
        const uint32_t buffer = i == 0 ? r.norm.running_mean : r.norm.running_var;
        for (int64_t k = 0; k < CHANNELS; k++)
            w->dw[i][k] += ((double *)cd_tensor_data(&p[i + 1].grad.value))[k];
        memcpy(w->running[i], cd_tensor_data(&r.module->buffers[buffer].tensor),
               sizeof w->running[i]);
    }
    cd_graph_destroy(r.graph);
    cd_module_destroy(r.module);
}

TEST(layers, synchronised_batch_norm_over_uneven_shares_is_pytorch_s_on_the_whole_batch)
{
    static const share shares[] = {{2, {2, 2}}, {2, {1, 3}}, {3, {1, 2, 1}}, {4, {1, 1, 1, 1}}};
    for (size_t k = 0; k < sizeof shares / sizeof shares[0]; k++) {
        whole w = {.x = {0}};
        cd_statistics statistics;
        cddp_tensor t = view_of(w.x, BATCH);
        size_t rounds = 0;
        cd_test_row("%u ranks, the first with %d samples", (unsigned)shares[k].world,
                    (int)shares[k].counts[0]);
        fill_pattern(&t, 0, 1);
        t.storage = w.loss;
        fill_pattern(&t, 50, 1);
        cd_statistics_init(&statistics, shares[k].world, NULL);
        do {
            statistics.has_changed = false;
            memset(w.dw, 0, sizeof w.dw);
            int64_t first = 0;
            for (uint32_t rank = 0; rank < shares[k].world; first += shares[k].counts[rank++]) {
                cd_statistics_begin(&statistics, rank);
                run_share(&w, first, shares[k].counts[rank], &statistics);
            }
        } while (statistics.has_changed && ++rounds < 10);
        /* one exchange in the forward, one in the backward */
        assert_int_equal(statistics.count, 2);
        /* moments; sums from right moments; a third round says nothing new */
        assert_int_equal(rounds, 2);
        t.storage = w.y;
        assert_golden(path, "batch_norm.y", &t);
        t.storage = w.dx;
        assert_golden(path, "batch_norm.0", &t);
        t = cddp_tensor_of(cddp_device_cpu(), w.dw[0], 0, CDDP_F64, (const int64_t[1]){CHANNELS},
                           1);
        assert_golden(path, "batch_norm.1", &t);
        t.storage = w.dw[1];
        assert_golden(path, "batch_norm.2", &t);
        t.storage = w.running[0];
        assert_golden(path, "batch_norm.running_mean", &t);
        t.storage = w.running[1];
        assert_golden(path, "batch_norm.running_var", &t);
        cd_statistics_fini(&statistics);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s layers.txt\n", argv[0]);
        return 2;
    }
    path = argv[1];
    argv[1] = argv[0];
    return cd_test_main(argc - 1, argv + 1, __FILE__);
}
