/* SPDX-License-Identifier: Apache-2.0 */
/* Our engine against PyTorch's (engine.txt, made by engine.py): order of arrival, which gradients
** are defined, and the gradients, for checkpoints of both kinds, the sink, layers used twice,
** retained graphs. The file is the first argument, so that the same executable judges freshly made
** numbers.
*/
#include "tests/golden/pytorch/golden.h"

#include "core/base/prng.h"
#include "core/model/checkpoint.h"
#include "core/model/engine.h"
#include "core/model/layers/linear.h"
#include "core/model/layers/loss.h"
#include "core/model/layers/shapes.h"

#include <stdio.h>
#include <string.h>

static const char *path;

typedef struct engine_case {
    cddp_error err;
    cd_module *module;
    cd_graph *graph;
    char order[128];
} engine_case;

static cddp_status note(void *context, uint32_t parameter, cddp_grad *grad, cddp_error *err)
{
    engine_case *c = context;
    (void)grad;
    (void)err;
    size_t used = strlen(c->order);
    snprintf(c->order + used, sizeof c->order - used, "%s%u", used > 0 ? " " : "",
             (unsigned)parameter);
    return CDDP_OK;
}

static void open_case(engine_case *c)
{
    static const char *const names[6] = {"0", "1", "2", "3", "4", "5"};
    cd_prng prng = cd_prng_seed(1);
    memset(c, 0, sizeof *c);
    assert_ok(cd_module_create(NULL, cddp_device_cpu(), &prng, &c->module, &c->err), &c->err);
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t index = 0;
        cd_parameter_spec spec = {.name = names[i],
                                  .dtype = CDDP_F64,
                                  .dim_count = i % 2 == 0 ? 2 : 1,
                                  .sizes = {3, 3}};
        assert_ok(cd_module_add_parameter(c->module, &spec, &index, &c->err), &c->err);
        fill_pattern(&c->module->parameters[i].tensor, i, 8);
    }
    assert_ok(cd_graph_create(c->module, NULL, &c->graph, &c->err), &c->err);
    cd_graph_callbacks callbacks = {.context = c, .ready = note};
    cd_graph_set_callbacks(c->graph, &callbacks);
}

static cd_value *input(engine_case *c, int64_t salt)
{
    cddp_tensor t;
    cd_value *value = NULL;
    assert_ok(cd_graph_tensor(c->graph, CDDP_F64, (const int64_t[2]){2, 3}, 2, &t, &c->err),
              &c->err);
    fill_pattern(&t, salt, 1);
    assert_ok(cd_graph_input(c->graph, &t, &value, &c->err), &c->err);
    return value;
}

static cd_value *layer(engine_case *c, uint32_t i, cd_value *x)
{
    cd_value *w = NULL, *b = NULL, *y = NULL;
    assert_ok(cd_graph_parameter(c->graph, 2 * i, &w, &c->err), &c->err);
    assert_ok(cd_graph_parameter(c->graph, 2 * i + 1, &b, &c->err), &c->err);
    assert_ok(cd_linear(c->graph, x, w, b, &y, &c->err), &c->err);
    return y;
}

static cd_value *loss_of(engine_case *c, cd_value *y)
{
    cd_value *losses = NULL, *loss = NULL;
    assert_ok(cd_inner_product(c->graph, y, input(c, 50), &losses, &c->err), &c->err);
    assert_ok(cd_weighted_sum(c->graph, losses, NULL, 0, &loss, &c->err), &c->err);
    return loss;
}

static void backward(engine_case *c, cd_value *loss, bool retain_graph)
{
    cd_backward_options options = {.roots = &loss, .root_count = 1, .retain_graph = retain_graph};
    assert_ok(cd_graph_backward(c->graph, &options, &c->err), &c->err);
}

/* Layers first … last; with `nested` the last one has its own checkpoint. */
typedef struct part {
    engine_case *c;
    uint32_t first, last;
    const struct part *nested;
} part;

static cddp_status run_part(cd_graph *graph, void *context, cd_value *x, cd_value **y,
                            cddp_error *err)
{
    const part *p = context;
    for (uint32_t i = p->first; i <= p->last; i++) x = layer(p->c, i, x);
    *y = x;
    if (p->nested == NULL) return CDDP_OK;
    cd_checkpoint checkpoint = {CD_CHECKPOINT_REENTRANT, run_part, (void *)(uintptr_t)p->nested};
    return cd_checkpoint_run(graph, &checkpoint, x, y, err);
}

static cd_value *checkpointed(const part *p, cd_checkpoint_kind kind, cd_value *x)
{
    cd_value *y = NULL;
    cd_checkpoint checkpoint = {kind, run_part, (void *)(uintptr_t)p};
    assert_ok(cd_checkpoint_run(p->c->graph, &checkpoint, x, &y, &p->c->err), &p->c->err);
    return y;
}

static cd_value *three_layers(engine_case *c)
{
    return layer(c, 2, layer(c, 1, layer(c, 0, input(c, 90))));
}

static void plain(engine_case *c) { backward(c, loss_of(c, three_layers(c)), false); }

static void one_checkpoint(engine_case *c, cd_checkpoint_kind kind)
{
    part p = {c, 1, 2, NULL};
    backward(c, loss_of(c, checkpointed(&p, kind, layer(c, 0, input(c, 90)))), false);
}
static void reentrant(engine_case *c) { one_checkpoint(c, CD_CHECKPOINT_REENTRANT); }
static void non_reentrant(engine_case *c) { one_checkpoint(c, CD_CHECKPOINT_NON_REENTRANT); }

static void two_checkpoints(engine_case *c, cd_checkpoint_kind kind)
{
    part p = {c, 1, 1, NULL};
    cd_value *x = checkpointed(&p, kind, layer(c, 0, input(c, 90)));
    backward(c, loss_of(c, checkpointed(&p, kind, x)), false);
}
static void reentrant_twice(engine_case *c) { two_checkpoints(c, CD_CHECKPOINT_REENTRANT); }
static void non_reentrant_twice(engine_case *c) { two_checkpoints(c, CD_CHECKPOINT_NON_REENTRANT); }

static void nested(engine_case *c)
{
    part inner = {c, 2, 2, NULL}, outer = {c, 1, 1, &inner};
    backward(c,
             loss_of(c, checkpointed(&outer, CD_CHECKPOINT_REENTRANT, layer(c, 0, input(c, 90)))),
             false);
}

static void used_twice(engine_case *c)
{
    backward(c, loss_of(c, layer(c, 1, layer(c, 1, layer(c, 0, input(c, 90))))), false);
}

static void retained(engine_case *c)
{
    cd_value *loss = loss_of(c, three_layers(c));
    backward(c, loss, true);
    backward(c, loss, false);
}

static void two_outputs(engine_case *c, cd_checkpoint_kind kind, bool sink)
{
    part p = {c, 2, 2, NULL};
    cd_value *x = layer(c, 0, input(c, 90)), *outputs[2];
    outputs[0] = layer(c, 1, x);
    outputs[1] = checkpointed(&p, kind, x);
    if (sink) assert_ok(cd_sink(c->graph, outputs, 2, &c->err), &c->err);
    backward(c, loss_of(c, outputs[0]), false);
}
static void sunk(engine_case *c) { two_outputs(c, CD_CHECKPOINT_NONE, true); }
static void sunk_checkpoint(engine_case *c) { two_outputs(c, CD_CHECKPOINT_REENTRANT, true); }
static void not_sunk(engine_case *c) { two_outputs(c, CD_CHECKPOINT_NONE, false); }

static void two_forwards(engine_case *c)
{
    cd_value *sum = NULL, *a = loss_of(c, three_layers(c)), *b = loss_of(c, three_layers(c));
    assert_ok(cd_add(c->graph, a, b, &sum, &c->err), &c->err);
    backward(c, sum, false);
}

static const struct {
    const char *name;
    void (*run)(engine_case *c);
} cases[] = {
    {"plain", plain},
    {"reentrant", reentrant},
    {"non_reentrant", non_reentrant},
    {"reentrant_twice", reentrant_twice},
    {"non_reentrant_twice", non_reentrant_twice},
    {"nested", nested},
    {"used_twice", used_twice},
    {"retained", retained},
    {"sunk", sunk},
    {"sunk_checkpoint", sunk_checkpoint},
    {"not_sunk", not_sunk},
    {"two_forwards", two_forwards},
};

static void assert_text(const char *name, const char *what, const char *got)
{
    char key[64];
    snprintf(key, sizeof key, "%s.%s", name, what);
    assert_non_null(golden_text(path, key));
    assert_string_equal(got, golden_text(path, key));
}

TEST(engine, agrees_with_pytorch_in_order_presence_and_gradients)
{
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        engine_case c;
        char defined[16] = "", key[64];
        cd_test_row("%s", cases[k].name);
        open_case(&c);
        cases[k].run(&c);
        for (size_t i = 0; i < 6; i++) {
            const cddp_grad *grad = &c.module->parameters[i].grad;
            bool is_defined = grad->kind == CDDP_GRAD_DENSE;
            snprintf(defined + strlen(defined), sizeof defined - strlen(defined), "%s%d",
                     i > 0 ? " " : "", is_defined);
            snprintf(key, sizeof key, "%s.%zu", cases[k].name, i);
            if (is_defined) assert_golden(path, key, &grad->value);
        }
        assert_text(cases[k].name, "order", c.order);
        assert_text(cases[k].name, "defined", defined);
        cd_graph_destroy(c.graph);
        cd_module_destroy(c.module);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s engine.txt\n", argv[0]);
        return 2;
    }
    path = argv[1];
    argv[1] = argv[0];
    return cd_test_main(argc - 1, argv + 1, __FILE__);
}
