/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: order of arrival, undefined gradients, retained and freed graphs, reachability,
** checkpointing. */
#include "tests/unit/core/model/fixture.h"

#include "core/model/checkpoint.h"
#include "core/model/layers/activation.h"
#include "core/model/layers/inner.h"
#include "core/model/layers/linear.h"
#include "core/model/layers/loss.h"
#include "core/model/layers/shapes.h"

#include <string.h>

/* Three linear layers of width 3, parameters in the order weight, bias. */
typedef struct three {
    fixture f;
    arrivals a;
} three;

static void three_open(three *t)
{
    static const char *const names[6] = {"0.weight", "0.bias",   "1.weight",
                                         "1.bias",   "2.weight", "2.bias"};
    memset(t, 0, sizeof *t);
    fixture_open(&t->f);
    for (uint32_t i = 0; i < 6; i++)
        fixture_parameter(&t->f, names[i], CDDP_F32, (const int64_t[2]){3, 3}, i % 2 == 0 ? 2 : 1);
    fixture_begin(&t->f);
    arrivals_listen(&t->f, &t->a);
}

static cd_value *constant(fixture *f, const int64_t *sizes, uint32_t dim_count)
{
    cddp_tensor t;
    cd_value *value = NULL;
    assert_ok(cd_graph_tensor(f->graph, CDDP_F32, sizes, dim_count, &t, &f->err), &f->err);
    for (int64_t i = 0; i < cddp_tensor_numel(&t); i++) element_set(&t, i, (double)(i % 5) - 1.5);
    assert_ok(cd_graph_input(f->graph, &t, &value, &f->err), &f->err);
    return value;
}

static cd_value *run_layer(fixture *f, uint32_t layer, cd_value *x)
{
    cd_value *w = NULL, *b = NULL, *y = NULL;
    assert_ok(cd_graph_parameter(f->graph, 2 * layer, &w, &f->err), &f->err);
    assert_ok(cd_graph_parameter(f->graph, 2 * layer + 1, &b, &f->err), &f->err);
    assert_ok(cd_linear(f->graph, x, w, b, &y, &f->err), &f->err);
    return y;
}

static cd_value *sum_of(fixture *f, cd_value *y)
{
    cd_value *losses = NULL, *loss = NULL,
             *ones = constant(f, y->tensor.sizes, y->tensor.dim_count);
    assert_ok(cd_inner_product(f->graph, y, ones, &losses, &f->err), &f->err);
    assert_ok(cd_weighted_sum(f->graph, losses, NULL, 0, &loss, &f->err), &f->err);
    return loss;
}

static cd_value *three_forward(three *t)
{
    cd_value *x = constant(&t->f, (const int64_t[2]){2, 3}, 2);
    for (uint32_t layer = 0; layer < 3; layer++) x = run_layer(&t->f, layer, x);
    return x;
}

TEST(ready_order, is_5_4_3_2_1_0_for_three_linear_layers)
{
    three t;
    three_open(&t);
    assert_ok(backward_from(&t.f, sum_of(&t.f, three_forward(&t)), false), &t.f.err);
    assert_order(&t.a, (const uint32_t[]){5, 4, 3, 2, 1, 0}, 6);
    fixture_close(&t.f);
}

TEST(ready_order, may_be_given_and_the_rest_follows_by_priority)
{
    three t;
    three_open(&t);
    cd_value *loss = sum_of(&t.f, three_forward(&t));
    const uint32_t given[] = {0, 4, 2};
    cd_backward_options options = {
        .roots = &loss, .root_count = 1, .order = CD_READY_GIVEN, .given = given, .given_count = 3};
    assert_ok(cd_graph_backward(t.f.graph, &options, &t.f.err), &t.f.err);
    assert_order(&t.a, (const uint32_t[]){0, 4, 2, 5, 3, 1}, 6);
    fixture_close(&t.f);
}

typedef struct chooser {
    arrivals a;
    uint64_t offered[8][8];
    uint32_t counts[8], calls;
} chooser;

static uint32_t choose_last(void *context, const uint64_t *options, uint32_t count)
{
    chooser *c = context;
    for (uint32_t i = 0; i < count; i++) c->offered[c->calls][i] = options[i];
    c->counts[c->calls++] = count;
    return count - 1;
}

static uint32_t choose_nonsense(void *context, const uint64_t *options, uint32_t count)
{
    (void)context;
    (void)options;
    return count;
}

TEST(ready_order, can_be_driven_with_parameters_as_options_and_the_natural_one_first)
{
    three t;
    chooser c = {.calls = 0};
    three_open(&t);
    cd_value *loss = sum_of(&t.f, three_forward(&t));
    cd_graph_callbacks callbacks = {.context = &c, .ready = arrivals_ready, .choose = choose_last};
    cd_graph_set_callbacks(t.f.graph, &callbacks);
    cd_backward_options options = {.roots = &loss,
                                   .root_count = 1,
                                   .order = CD_READY_CHOSEN,
                                   .retain_graph = true};
    assert_ok(cd_graph_backward(t.f.graph, &options, &t.f.err), &t.f.err);
    assert_order(&c.a, (const uint32_t[]){0, 1, 2, 3, 4, 5}, 6);
    assert_int_equal(c.calls, 5); /* the last one is no choice */
    static const uint64_t first[] = {5, 4, 3, 2, 1, 0};
    assert_int_equal(c.counts[0], 6);
    assert_memory_equal(c.offered[0], first, sizeof first);
    callbacks.choose = choose_nonsense;
    cd_graph_set_callbacks(t.f.graph, &callbacks);
    assert_fails(cd_graph_backward(t.f.graph, &options, &t.f.err), CDDP_E_ARG, &t.f.err,
                 "answered 6 of 6");
    fixture_close(&t.f);
}

TEST(gradients, do_not_depend_on_the_ready_order)
{
    double first[6][9];
    for (int run = 0; run < 2; run++) {
        three t;
        three_open(&t);
        cd_value *loss = sum_of(&t.f, three_forward(&t));
        const uint32_t given[] = {3, 0};
        cd_backward_options options = {.roots = &loss,
                                       .root_count = 1,
                                       .order = run ? CD_READY_GIVEN : CD_READY_PRIORITY,
                                       .given = given,
                                       .given_count = 2};
        assert_ok(cd_graph_backward(t.f.graph, &options, &t.f.err), &t.f.err);
        for (int p = 0; p < 6; p++)
            for (int i = 0; i < (p % 2 == 0 ? 9 : 3); i++) {
                double g = element_get(&t.f.module->parameters[p].grad.value, i);
                if (run == 0)
                    first[p][i] = g;
                else
                    assert_true(first[p][i] == g);
            }
        fixture_close(&t.f);
    }
}

TEST(backward, twice_needs_retain_graph)
{
    three t;
    three_open(&t);
    cd_value *loss = sum_of(&t.f, three_forward(&t));
    assert_ok(backward_from(&t.f, loss, true), &t.f.err);
    double once = element_get(&t.f.module->parameters[1].grad.value, 0);
    assert_ok(backward_from(&t.f, loss, false), &t.f.err);
    assert_true(element_get(&t.f.module->parameters[1].grad.value, 0) == 2 * once);
    assert_int_equal(t.a.count, 12);
    assert_fails(backward_from(&t.f, loss, false), CDDP_E_STATE, &t.f.err,
                 "backward through the graph a second time");
    assert_true(element_get(&t.f.module->parameters[1].grad.value, 0) == 2 * once);
    fixture_close(&t.f);
}

TEST(backward, refuses_roots_without_history_and_roots_that_are_not_scalars)
{
    three t;
    three_open(&t);
    cd_value *x = constant(&t.f, (const int64_t[2]){2, 3}, 2), *y = run_layer(&t.f, 0, x);
    assert_fails(backward_from(&t.f, x, false), CDDP_E_STATE, &t.f.err, "does not require grad");
    assert_fails(backward_from(&t.f, y, false), CDDP_E_STATE, &t.f.err,
                 "only for scalar outputs; root 0 has sizes (2, 3)");
    assert_int_equal(t.a.count, 0);
    fixture_close(&t.f);
}

TEST(backward, under_no_grad_records_nothing)
{
    three t;
    three_open(&t);
    t.f.graph->grad_enabled = false;
    cd_value *y = three_forward(&t);
    assert_null(y->node);
    assert_int_equal(t.f.graph->node_count, 0);
    fixture_close(&t.f);
}

TEST(parameters, that_are_frozen_get_no_gradient_and_do_not_fire)
{
    three t;
    three_open(&t);
    t.f.module->parameters[2].requires_grad = false;
    assert_ok(backward_from(&t.f, sum_of(&t.f, three_forward(&t)), false), &t.f.err);
    assert_order(&t.a, (const uint32_t[]){5, 4, 3, 1, 0}, 5);
    assert_int_equal(t.f.module->parameters[2].grad.kind, CDDP_GRAD_UNDEFINED);
    /* Unfrozen late, it takes part from the next forward on. */
    t.f.module->parameters[2].requires_grad = true;
    fixture_begin(&t.f);
    arrivals_listen(&t.f, &t.a);
    assert_ok(backward_from(&t.f, sum_of(&t.f, three_forward(&t)), false), &t.f.err);
    assert_int_equal(t.a.count, 6);
    fixture_close(&t.f);
}

TEST(parameters, used_twice_fire_once_with_the_sum)
{
    three t;
    three_open(&t);
    cd_value *x = constant(&t.f, (const int64_t[2]){2, 3}, 2), *sum = NULL;
    cd_value *a = run_layer(&t.f, 1, x), *b = run_layer(&t.f, 1, x);
    assert_ok(cd_add(t.f.graph, a, b, &sum, &t.f.err), &t.f.err);
    assert_ok(backward_from(&t.f, sum_of(&t.f, sum), false), &t.f.err);
    assert_order(&t.a, (const uint32_t[]){3, 2}, 2);
    double twice = element_get(&t.f.module->parameters[2].grad.value, 4);
    assert_ok(cd_module_zero_grad(t.f.module, CD_ZERO_GRAD_TO_NONE, &t.f.err), &t.f.err);
    fixture_begin(&t.f);
    x = constant(&t.f, (const int64_t[2]){2, 3}, 2);
    assert_ok(backward_from(&t.f, sum_of(&t.f, run_layer(&t.f, 1, x)), false), &t.f.err);
    assert_true(twice == 2 * element_get(&t.f.module->parameters[2].grad.value, 4) && twice != 0);
    fixture_close(&t.f);
}

/* Two outputs over a common layer, the loss over the first. */
static void two_outputs(three *t, cd_value *outputs[2])
{
    cd_value *x = run_layer(&t->f, 0, constant(&t->f, (const int64_t[2]){2, 3}, 2));
    outputs[0] = run_layer(&t->f, 1, x);
    outputs[1] = run_layer(&t->f, 2, x);
}

TEST(sink, gives_an_undefined_gradient_to_outputs_the_loss_does_not_use)
{
    three t;
    cd_value *outputs[2];
    three_open(&t);
    two_outputs(&t, outputs);
    assert_ok(cd_sink(t.f.graph, outputs, 2, &t.f.err), &t.f.err);
    assert_ok(backward_from(&t.f, sum_of(&t.f, outputs[0]), false), &t.f.err);
    /* UNU-03: parameters 4 and 5 fire, with undefined slots. */
    assert_int_equal(t.a.count, 6);
    for (uint32_t i = 0; i < t.a.count; i++) assert_true(t.a.defined[i] == (t.a.order[i] < 4));
    assert_int_equal(t.f.module->parameters[4].grad.kind, CDDP_GRAD_UNDEFINED);
    assert_int_equal(t.f.module->parameters[0].grad.kind, CDDP_GRAD_DENSE);
    fixture_close(&t.f);
}

TEST(sink, is_absent_and_unused_parameters_do_not_fire_at_all)
{
    three t;
    cd_value *outputs[2];
    three_open(&t);
    two_outputs(&t, outputs);
    assert_ok(backward_from(&t.f, sum_of(&t.f, outputs[0]), false), &t.f.err);
    assert_order(&t.a, (const uint32_t[]){3, 2, 1, 0}, 4);
    fixture_close(&t.f);
}

TEST(sink, makes_separate_backwards_over_two_outputs_fail)
{
    for (int with_sink = 0; with_sink < 2; with_sink++) { /* FWD-06 */
        three t;
        cd_value *outputs[2], *losses[2];
        three_open(&t);
        cd_value *x = constant(&t.f, (const int64_t[2]){2, 3}, 2);
        outputs[0] = run_layer(&t.f, 1, x);
        outputs[1] = run_layer(&t.f, 2, x);
        if (with_sink) assert_ok(cd_sink(t.f.graph, outputs, 2, &t.f.err), &t.f.err);
        for (int i = 0; i < 2; i++) losses[i] = sum_of(&t.f, outputs[i]);
        assert_ok(backward_from(&t.f, losses[0], false), &t.f.err);
        if (with_sink)
            assert_fails(backward_from(&t.f, losses[1], false), CDDP_E_STATE, &t.f.err,
                         "a second time");
        else
            assert_ok(backward_from(&t.f, losses[1], false), &t.f.err);
        fixture_close(&t.f);
    }
}

TEST(sink, leaves_outputs_without_history_untouched)
{
    three t;
    three_open(&t);
    cd_value *outputs[2] = {constant(&t.f, (const int64_t[2]){2, 3}, 2), three_forward(&t)},
             *before = outputs[0], *other = outputs[1];
    assert_ok(cd_sink(t.f.graph, outputs, 2, &t.f.err), &t.f.err);
    assert_ptr_equal(outputs[0], before);
    assert_ptr_not_equal(outputs[1], other);
    assert_ptr_equal(outputs[1]->tensor.storage, other->tensor.storage);
    fixture_close(&t.f);
}

TEST(reachable, are_parameters_behind_the_outputs_whatever_the_loss_uses)
{
    three t;
    cd_value *outputs[2];
    bool reachable[6];
    three_open(&t);
    two_outputs(&t, outputs);
    assert_ok(cd_graph_reachable(t.f.graph, outputs, 1, reachable, &t.f.err), &t.f.err);
    static const bool one[6] = {true, true, true, true, false, false};
    assert_memory_equal(reachable, one, sizeof one);
    assert_ok(cd_graph_reachable(t.f.graph, outputs, 2, reachable, &t.f.err), &t.f.err);
    for (int p = 0; p < 6; p++) assert_true(reachable[p]);
    cd_value *x = constant(&t.f, (const int64_t[2]){2, 3}, 2);
    assert_ok(cd_graph_reachable(t.f.graph, &x, 1, reachable, &t.f.err), &t.f.err);
    for (int p = 0; p < 6; p++) assert_false(reachable[p]);
    fixture_close(&t.f);
}

TEST(grad, bypasses_accumulation_and_hooks)
{
    three t;
    three_open(&t);
    cd_value *y = three_forward(&t), *loss = sum_of(&t.f, y), *w = NULL;
    assert_ok(cd_graph_parameter(t.f.graph, 2, &w, &t.f.err), &t.f.err);
    cd_value *wanted[2] = {w, y};
    cd_gradient got[2];
    cd_backward_options options = {.roots = &loss, .root_count = 1, .retain_graph = true};
    assert_ok(cd_graph_grad(t.f.graph, &options, wanted, 2, got, &t.f.err), &t.f.err);
    assert_int_equal(t.a.count, 0);
    for (int p = 0; p < 6; p++)
        assert_int_equal(t.f.module->parameters[p].grad.kind, CDDP_GRAD_UNDEFINED);
    assert_ok(backward_from(&t.f, loss, false), &t.f.err);
    for (int i = 0; i < 9; i++)
        assert_true(element_get(&got[0].value, i) ==
                    element_get(&t.f.module->parameters[2].grad.value, i));
    assert_true(element_get(&got[1].value, 1) == -0.5); /* the second constant of sum_of */
    fixture_close(&t.f);
}

TEST(forwards, several_before_one_backward_add_up)
{
    three t;
    three_open(&t);
    cd_value *sum = NULL, *a = sum_of(&t.f, three_forward(&t)),
             *b = sum_of(&t.f, three_forward(&t));
    assert_ok(cd_add(t.f.graph, a, b, &sum, &t.f.err), &t.f.err);
    assert_ok(backward_from(&t.f, sum, false), &t.f.err); /* FWD-08 */
    assert_int_equal(t.a.count, 6);
    double both = element_get(&t.f.module->parameters[0].grad.value, 0);
    assert_ok(cd_module_zero_grad(t.f.module, CD_ZERO_GRAD_TO_NONE, &t.f.err), &t.f.err);
    fixture_begin(&t.f);
    assert_ok(backward_from(&t.f, sum_of(&t.f, three_forward(&t)), false), &t.f.err);
    assert_true(both == 2 * element_get(&t.f.module->parameters[0].grad.value, 0));
    fixture_close(&t.f);
}

static cddp_status stop_after_two(void *context, uint32_t parameter, cddp_grad *grad,
                                  cddp_error *err)
{
    uint32_t *count = context;
    (void)parameter;
    (void)grad;
    if (++*count == 2) return cddp_error_set(err, CDDP_E_ABORTED, "enough");
    return CDDP_OK;
}

TEST(hooks, that_fail_end_the_backward_and_the_graph_stays_usable)
{
    three t;
    uint32_t count = 0;
    three_open(&t);
    cd_graph_callbacks callbacks = {.context = &count, .ready = stop_after_two};
    cd_graph_set_callbacks(t.f.graph, &callbacks);
    assert_fails(backward_from(&t.f, sum_of(&t.f, three_forward(&t)), false), CDDP_E_ABORTED,
                 &t.f.err, "enough");
    assert_int_equal(t.f.module->parameters[4].grad.kind, CDDP_GRAD_DENSE);
    assert_int_equal(t.f.module->parameters[3].grad.kind, CDDP_GRAD_UNDEFINED);
    fixture_begin(&t.f);
    arrivals_listen(&t.f, &t.a);
    assert_ok(backward_from(&t.f, sum_of(&t.f, three_forward(&t)), false), &t.f.err);
    assert_int_equal(t.a.count, 6);
    fixture_close(&t.f);
}

TEST(create_graph, marks_gradients_and_keeps_the_graph)
{
    three t;
    three_open(&t);
    cd_value *loss = sum_of(&t.f, three_forward(&t));
    cd_backward_options options = {.roots = &loss, .root_count = 1, .create_graph = true};
    assert_ok(cd_graph_backward(t.f.graph, &options, &t.f.err), &t.f.err);
    for (int p = 0; p < 6; p++) assert_true(t.f.module->parameters[p].grad.requires_grad);
    assert_ok(backward_from(&t.f, loss, false), &t.f.err);
    assert_false(t.f.module->parameters[0].grad.requires_grad);
    fixture_close(&t.f);
}

/* ---- checkpointing ---- */

typedef struct part {
    three *t;
    uint32_t first, last; /* layers */
    uint32_t runs;
    bool changes; /* records something else the second time */
} part;

static cddp_status run_part(cd_graph *graph, void *context, cd_value *x, cd_value **y,
                            cddp_error *err)
{
    part *p = context;
    (void)err;
    for (uint32_t layer = p->first; layer <= p->last; layer++) x = run_layer(&p->t->f, layer, x);
    if (p->changes && p->runs > 0) CD_TRY(cd_tanh_layer(graph, x, &x, err));
    p->runs++;
    *y = x;
    return CDDP_OK;
}

/* Layer 0, then layers 1 and 2 in a checkpoint. */
static cd_value *checkpointed_forward(three *t, part *p, cd_checkpoint_kind kind)
{
    *p = (part){.t = t, .first = 1, .last = 2, .changes = p->changes};
    cd_checkpoint checkpoint = {kind, run_part, p};
    cd_value *y = NULL, *x = run_layer(&t->f, 0, constant(&t->f, (const int64_t[2]){2, 3}, 2));
    assert_ok(cd_checkpoint_run(t->f.graph, &checkpoint, x, &y, &t->f.err), &t->f.err);
    return y;
}

TEST(checkpoint, of_both_kinds_gives_the_same_gradients_and_order)
{
    double plain[6][9];
    static const cd_checkpoint_kind kinds[] = {CD_CHECKPOINT_NONE, CD_CHECKPOINT_REENTRANT,
                                               CD_CHECKPOINT_NON_REENTRANT};
    for (int k = 0; k < 3; k++) {
        three t;
        part p = {.changes = false};
        three_open(&t);
        cd_value *loss = sum_of(&t.f, checkpointed_forward(&t, &p, kinds[k]));
        assert_int_equal(p.runs, 1);
        assert_ok(backward_from(&t.f, loss, false), &t.f.err);
        assert_int_equal(p.runs, kinds[k] == CD_CHECKPOINT_NONE ? 1 : 2);
        assert_order(&t.a, (const uint32_t[]){5, 4, 3, 2, 1, 0}, 6);
        for (int q = 0; q < 6; q++)
            for (int i = 0; i < (q % 2 == 0 ? 9 : 3); i++) {
                double g = element_get(&t.f.module->parameters[q].grad.value, i);
                if (k == 0)
                    plain[q][i] = g;
                else
                    assert_true(plain[q][i] == g);
            }
        fixture_close(&t.f);
    }
}

TEST(checkpoint, hides_parameters_from_the_search_only_when_it_is_reentrant)
{
    for (int reentrant = 0; reentrant < 2; reentrant++) { /* UNU-10 */
        three t;
        part p = {.changes = false};
        bool reachable[6];
        three_open(&t);
        cd_value *y =
            checkpointed_forward(&t, &p,
                                 reentrant ? CD_CHECKPOINT_REENTRANT : CD_CHECKPOINT_NON_REENTRANT);
        assert_ok(cd_graph_reachable(t.f.graph, &y, 1, reachable, &t.f.err), &t.f.err);
        for (int q = 0; q < 6; q++) assert_true(reachable[q] == (q < 2 || !reentrant));
        fixture_close(&t.f);
    }
}

TEST(checkpoint, run_twice_over_the_same_layer_fires_twice_only_when_it_is_reentrant)
{
    for (int reentrant = 0; reentrant < 2; reentrant++) { /* UNU-10, STA-05 */
        three t;
        part p = {.t = NULL};
        three_open(&t);
        p = (part){.t = &t, .first = 1, .last = 1};
        cd_checkpoint checkpoint = {reentrant ? CD_CHECKPOINT_REENTRANT
                                              : CD_CHECKPOINT_NON_REENTRANT,
                                    run_part, &p};
        cd_value *x = run_layer(&t.f, 0, constant(&t.f, (const int64_t[2]){2, 3}, 2));
        for (int i = 0; i < 2; i++)
            assert_ok(cd_checkpoint_run(t.f.graph, &checkpoint, x, &x, &t.f.err), &t.f.err);
        assert_ok(backward_from(&t.f, sum_of(&t.f, x), false), &t.f.err);
        if (reentrant)
            assert_order(&t.a, (const uint32_t[]){3, 2, 3, 2, 1, 0}, 6);
        else
            assert_order(&t.a, (const uint32_t[]){3, 2, 1, 0}, 4);
        fixture_close(&t.f);
    }
}

TEST(checkpoint, reentrant_over_an_input_without_gradient_trains_nothing)
{
    three t;
    part p = {.t = &t, .first = 0, .last = 1};
    cd_value *y = NULL;
    three_open(&t);
    p.t = &t;
    cd_checkpoint checkpoint = {CD_CHECKPOINT_REENTRANT, run_part, &p};
    assert_ok(cd_checkpoint_run(t.f.graph, &checkpoint, constant(&t.f, (const int64_t[2]){2, 3}, 2),
                                &y, &t.f.err),
              &t.f.err);
    assert_null(y->node);
    fixture_close(&t.f);
}

/* Layer 1, then layer 2 in its own checkpoint. */
static cddp_status run_nested(cd_graph *graph, void *context, cd_value *x, cd_value **y,
                              cddp_error *err)
{
    part *inner = context;
    cd_checkpoint checkpoint = {CD_CHECKPOINT_REENTRANT, run_part, inner};
    return cd_checkpoint_run(graph, &checkpoint, run_layer(&inner->t->f, 1, x), y, err);
}

TEST(checkpoint, reentrant_nests_a_backward_in_a_backward_in_a_backward)
{
    three t;
    three_open(&t);
    part inner = {.t = &t, .first = 2, .last = 2};
    cd_checkpoint outer = {CD_CHECKPOINT_REENTRANT, run_nested, &inner};
    cd_value *x = run_layer(&t.f, 0, constant(&t.f, (const int64_t[2]){2, 3}, 2));
    assert_ok(cd_checkpoint_run(t.f.graph, &outer, x, &x, &t.f.err), &t.f.err);
    assert_ok(backward_from(&t.f, sum_of(&t.f, x), false), &t.f.err);
    assert_order(&t.a, (const uint32_t[]){5, 4, 3, 2, 1, 0}, 6);
    /* forward, again for the outer backward, again for the inner one */
    assert_int_equal(inner.runs, 3);
    fixture_close(&t.f);
}

static cddp_status run_segment_inside(cd_graph *graph, void *context, cd_value *x, cd_value **y,
                                      cddp_error *err)
{
    cd_checkpoint checkpoint = {CD_CHECKPOINT_NON_REENTRANT, run_part, context};
    return cd_checkpoint_run(graph, &checkpoint, x, y, err);
}

TEST(checkpoint, non_reentrant_inside_a_reentrant_one_works_and_inside_its_like_is_refused)
{
    three t;
    three_open(&t);
    part inner = {.t = &t, .first = 1, .last = 2};
    cd_value *y = NULL, *x = run_layer(&t.f, 0, constant(&t.f, (const int64_t[2]){2, 3}, 2));
    cd_checkpoint outer = {CD_CHECKPOINT_NON_REENTRANT, run_segment_inside, &inner};
    assert_fails(cd_checkpoint_run(t.f.graph, &outer, x, &y, &t.f.err), CDDP_E_UNSUPPORTED,
                 &t.f.err, "inside another one");
    outer.kind = CD_CHECKPOINT_REENTRANT;
    assert_ok(cd_checkpoint_run(t.f.graph, &outer, x, &y, &t.f.err), &t.f.err);
    assert_ok(backward_from(&t.f, sum_of(&t.f, y), false), &t.f.err);
    assert_order(&t.a, (const uint32_t[]){5, 4, 3, 2, 1, 0}, 6);
    fixture_close(&t.f);
}

/* An output that the loss does not use, behind a checkpoint: PyTorch's re-entrant one sees zeros
** and trains with them.
*/
TEST(checkpoint, reentrant_turns_an_undefined_gradient_into_zeros)
{
    for (int reentrant = 0; reentrant < 2; reentrant++) {
        three t;
        cd_value *outputs[2];
        three_open(&t);
        part p = {.t = &t, .first = 2, .last = 2};
        cd_checkpoint checkpoint = {reentrant ? CD_CHECKPOINT_REENTRANT : CD_CHECKPOINT_NONE,
                                    run_part, &p};
        cd_value *x = run_layer(&t.f, 0, constant(&t.f, (const int64_t[2]){2, 3}, 2));
        outputs[0] = run_layer(&t.f, 1, x);
        assert_ok(cd_checkpoint_run(t.f.graph, &checkpoint, x, &outputs[1], &t.f.err), &t.f.err);
        assert_ok(cd_sink(t.f.graph, outputs, 2, &t.f.err), &t.f.err);
        assert_ok(backward_from(&t.f, sum_of(&t.f, outputs[0]), false), &t.f.err);
        const cddp_grad *grad = &t.f.module->parameters[4].grad;
        assert_int_equal(grad->kind, reentrant ? CDDP_GRAD_DENSE : CDDP_GRAD_UNDEFINED);
        if (reentrant) assert_true(element_get(&grad->value, 0) == 0);
        fixture_close(&t.f);
    }
}

TEST(checkpoint, refuses_a_part_that_records_something_else_the_second_time)
{
    three t;
    part p = {.changes = true};
    three_open(&t);
    cd_value *loss = sum_of(&t.f, checkpointed_forward(&t, &p, CD_CHECKPOINT_NON_REENTRANT));
    assert_fails(backward_from(&t.f, loss, false), CDDP_E_STATE, &t.f.err,
                 "recomputing recorded Tanh where forward recorded nothing");
    fixture_close(&t.f);
}

TEST(checkpoint, reentrant_is_refused_under_grad)
{
    three t;
    part p = {.changes = false};
    three_open(&t);
    cd_value *loss = sum_of(&t.f, checkpointed_forward(&t, &p, CD_CHECKPOINT_REENTRANT)), *w = NULL;
    cd_gradient got;
    assert_ok(cd_graph_parameter(t.f.graph, 0, &w, &t.f.err), &t.f.err);
    cd_backward_options options = {.roots = &loss, .root_count = 1};
    assert_fails(cd_graph_grad(t.f.graph, &options, &w, 1, &got, &t.f.err), CDDP_E_STATE, &t.f.err,
                 "re-entrant backward");
    fixture_close(&t.f);
}

TEST_MAIN()
