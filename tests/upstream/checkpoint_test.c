/* SPDX-License-Identifier: Apache-2.0 */
/* Upstream's test of checkpointing with a shared weight: the wrapped model as a whole inside a
** checkpoint.
**
** A re-entrant checkpoint runs DDP's forward twice, without gradients in forward and with them in
** the middle of backward; the other kind runs it with gradients both times. The two layers share
** one weight. Numbers are small integers, so that every sum is exact: gradients are those of one
** process on the batches of all ranks, bit for bit.
**
** Checkpoints inside the model: scenarios/models/checkpointed_*.toml,
** scenarios/static_graph/checkpointed_*.toml.
*/
#include "core/base/prng.h"
#include "core/model/checkpoint.h"
#include "core/model/engine.h"
#include "core/model/layers/linear.h"
#include "core/model/layers/loss.h"
#include "tests/unit/core/ddp/fixture.h"

enum { SAMPLES = 4, WIDTH = 5, WRAPPED = 3, INPUT = 3, STEPS = 5 };

typedef struct setting {
    cd_checkpoint_kind kind;
    bool views, static_graph;
} setting;

/* Both layers and their input, which is a separate leaf so that it gets a gradient. */
typedef struct network {
    lane *l;
    bool is_wrapped; /* the lane's DDP gets the call */
    cd_module *module;
    cd_graph *graph;
    uint32_t forwards; /* that DDP saw */
} network;

static void fill_integers(const cddp_tensor *t, uint64_t salt)
{
    cd_prng root = cd_prng_seed(7), p = cd_prng_split_index(&root, "values", salt);
    double *at = (double *)t->storage + t->offset;
    for (int64_t i = 0; i < cddp_tensor_numel(t); i++) at[i] = (double)cd_prng_between(&p, -4, 4);
}

static cddp_status hear(void *context, uint32_t parameter, cddp_grad *grad, cddp_error *err)
{
    network *n = context;
    (void)grad;
    if (!n->is_wrapped || parameter == INPUT) return CDDP_OK;
    return cddp_ddp_mark_parameter_ready(n->l->ddp, parameter, err);
}

static void open_network(network *n, lane *l, bool is_wrapped)
{
    static const cd_parameter_spec specs[4] = {
        {.name = "weight", .dtype = CDDP_F64, .dim_count = 2, .sizes = {WIDTH, WIDTH}},
        {.name = "l1.bias", .dtype = CDDP_F64, .dim_count = 1, .sizes = {WIDTH}},
        {.name = "l2.bias", .dtype = CDDP_F64, .dim_count = 1, .sizes = {WIDTH}},
        {.name = "input", .dtype = CDDP_F64, .dim_count = 2, .sizes = {SAMPLES, WIDTH}}};
    const cd_prng prng = cd_prng_seed(1);
    *n = (network){.l = l, .is_wrapped = is_wrapped};
    CHECK_OK(cd_module_create(NULL, cddp_device_cpu(), &prng, &n->module, &l->err));
    for (uint64_t i = 0; i < 4; i++) {
        uint32_t index = 0;
        CHECK_OK(cd_module_add_parameter(n->module, &specs[i], &index, &l->err));
        fill_integers(&n->module->parameters[i].tensor, i);
    }
    CHECK_OK(cd_graph_create(n->module, NULL, &n->graph, &l->err));
    const cd_graph_callbacks callbacks = {.context = n, .ready = hear};
    cd_graph_set_callbacks(n->graph, &callbacks);
}

static void close_network(network *n)
{
    cd_graph_destroy(n->graph);
    cd_module_destroy(n->module);
}

static cddp_status run_layer(cd_graph *graph, uint32_t bias, cd_value **x, cddp_error *err)
{
    cd_value *w = NULL, *b = NULL;
    cddp_status status = cd_graph_parameter(graph, 0, &w, err);
    if (status == CDDP_OK) status = cd_graph_parameter(graph, bias, &b, err);
    return status != CDDP_OK ? status : cd_linear(graph, *x, w, b, x, err);
}

/* The function of the checkpoint, also for the recomputation: the wrapper and the layers. */
static cddp_status run_wrapped(cd_graph *graph, void *context, cd_value *x, cd_value **y,
                               cddp_error *err)
{
    network *n = context;
    cddp_status status = CDDP_OK;
    *y = x;
    if (n->is_wrapped) status = cddp_ddp_forward_begin(n->l->ddp, graph->grad_enabled, err);
    if (status == CDDP_OK) status = run_layer(graph, 1, y, err);
    if (status == CDDP_OK) status = run_layer(graph, 2, y, err);
    if (status == CDDP_OK && n->is_wrapped) status = cddp_ddp_forward_end(n->l->ddp, NULL, err);
    n->forwards++;
    return status;
}

/* Leaves in the module's gradients what the batch of `rank` in `step` gives. */
static void differentiate(network *n, uint32_t rank, int step, cd_checkpoint_kind kind)
{
    const cd_checkpoint checkpoint = {kind, run_wrapped, n};
    const uint64_t salt = 100 + rank * 1000 + (uint64_t)step;
    cd_value *x = NULL, *y = NULL, *target = NULL, *losses = NULL, *loss = NULL;
    cddp_tensor t;
    lane *l = n->l;
    for (int i = 0; i < 4; i++) cddp_grad_drop(&n->module->parameters[i].grad);
    fill_integers(&n->module->parameters[INPUT].tensor, salt);
    cd_graph_begin(n->graph);
    CHECK_OK(cd_graph_parameter(n->graph, INPUT, &x, &l->err));
    CHECK_OK(cd_checkpoint_run(n->graph, &checkpoint, x, &y, &l->err));
    CHECK_OK(
        cd_graph_tensor(n->graph, CDDP_F64, (const int64_t[2]){SAMPLES, WIDTH}, 2, &t, &l->err));
    fill_integers(&t, salt + 500);
    CHECK_OK(cd_graph_input(n->graph, &t, &target, &l->err));
    CHECK_OK(cd_inner_product(n->graph, y, target, &losses, &l->err));
    CHECK_OK(cd_weighted_sum(n->graph, losses, NULL, 0, &loss, &l->err));
    const cd_backward_options backward = {.roots = &loss, .root_count = 1};
    CHECK_OK(cd_graph_backward(n->graph, &backward, &l->err));
}

static const double *gradient_of(const network *n, int parameter)
{
    const cddp_grad *grad = &n->module->parameters[parameter].grad;
    const lane *l = n->l;
    CHECK(grad->kind == CDDP_GRAD_DENSE);
    return (const double *)grad->value.storage + grad->value.offset;
}

static void body(lane *l)
{
    const setting *s = l->lab->data;
    network wrapped, alone;
    open_network(&wrapped, l, true);
    open_network(&alone, l, false);
    for (int i = 0; i < WRAPPED; i++) {
        cd_parameter *p = &wrapped.module->parameters[i];
        l->parameters[i] = (cddp_parameter){.name = p->name,
                                            .tensor = p->tensor,
                                            .grad = &p->grad,
                                            .requires_grad = true};
    }
    l->count = WRAPPED;
    l->options.gradient_as_bucket_view = s->views;
    l->options.static_graph = s->static_graph;
    l->options.bucket_cap_mb = 0.0001; /* two buckets after the rebuild */
    lane_wrap(l);
    for (int step = 0; step < STEPS; step++) {
        double mean[WRAPPED][WIDTH * WIDTH] = {{0}};
        wrapped.forwards = 0;
        differentiate(&wrapped, l->r, step, s->kind);
        lane_end(l);
        CHECK(wrapped.forwards == (s->kind == CD_CHECKPOINT_NONE ? 1 : 2));
        for (uint32_t r = 0; r < l->w; r++) {
            differentiate(&alone, r, step, CD_CHECKPOINT_NONE);
            for (int i = 0; i < WRAPPED; i++)
                for (int k = 0; k < (i == 0 ? WIDTH * WIDTH : WIDTH); k++)
                    mean[i][k] += gradient_of(&alone, i)[k] / l->w;
        }
        for (int i = 0; i < WRAPPED; i++)
            CHECK(memcmp(gradient_of(&wrapped, i), mean[i],
                         (i == 0 ? WIDTH * WIDTH : WIDTH) * sizeof(double)) == 0);
    }
    lane_unwrap(l);
    l->count = 0;
    close_network(&alone);
    close_network(&wrapped);
}

TEST(checkpoint, around_the_wrapper_of_layers_that_share_a_weight) /* TI-I-07 */
{
    static const cd_checkpoint_kind kinds[3] = {CD_CHECKPOINT_REENTRANT,
                                                CD_CHECKPOINT_NON_REENTRANT, CD_CHECKPOINT_NONE};
    for (int k = 0; k < 12; k++) {
        setting s = {kinds[k / 4], k % 2 == 1, k / 2 % 2 == 1};
        cd_test_row("kind %d, views %d, static graph %d", (int)s.kind, s.views, s.static_graph);
        lab_of(2, body, &s);
    }
}

TEST_MAIN()
