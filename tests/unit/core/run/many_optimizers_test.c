/* SPDX-License-Identifier: Apache-2.0 */
/* More optimizers than a word has bits: each is due, unscaled, skipped and stepped by itself. */
#include "cddp/cddp.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

#define OPTIMIZERS 40
#define LAYERS (OPTIMIZERS / 2)
#define STEPS 3
#define POISONED 37 /* its gradient overflows in step 1 */
#define RESTING 38  /* it steps in the last step only */

typedef struct seen {
    int stepped[OPTIMIZERS][STEPS], skipped[OPTIMIZERS][STEPS], touched[OPTIMIZERS][STEPS];
    double scale[STEPS];
} seen;

static void look(void *self, const cddp_event *event)
{
    seen *s = self;
    if (event->kind == CDDP_EV_optimizer_step) {
        const cddp_event_optimizer_step *o = &event->as.optimizer_step;
        (o->skipped ? s->skipped : s->stepped)[o->optimizer][event->step]++;
        memcpy(&s->scale[event->step], &o->loss_scale, sizeof s->scale[0]);
    } else if (event->kind == CDDP_EV_optimizer_touch) {
        s->touched[event->as.optimizer_touch.optimizer][event->step]++;
    }
}

static void set(cddp_plan *plan, const char *key, const char *value)
{
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(cddp_plan_set(plan, key, value, &err), &err);
}

static void name_parameter(char *name, size_t bytes, int i)
{
    const char *kind = i % 2 == 0 ? "weight" : "bias";
    if (i / 2 + 1 < LAYERS)
        snprintf(name, bytes, "layers.%d.%s", i / 2, kind);
    else
        snprintf(name, bytes, "out.%s", kind);
}

/* A parameter each, with a loss scaler. */
static cddp_plan *make_plan(bool overflows)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    char widths[8 + 2 * LAYERS + 1] = "widths=2";
    for (int i = 0; i < LAYERS; i++) memcpy(widths + 8 + 2 * i, ":2", 3);
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    set(plan, "title", "forty optimizers");
    set(plan, "world.size", "1");
    set(plan, "train.steps", "3");
    set(plan, "model.name", "mlp");
    set(plan, "model.options", widths);
    set(plan, "amp.enable", "true");
    set(plan, "amp.init_scale", "1024");
    for (int i = 0; i < OPTIMIZERS; i++) {
        char key[64], name[64];
        snprintf(key, sizeof key, "optimizer.%d.parameters", i);
        name_parameter(name, sizeof name, i);
        set(plan, key, name);
    }
    set(plan, "optimizer.38.steps", "2");
    if (overflows) {
        char name[64];
        name_parameter(name, sizeof name, POISONED);
        set(plan, "when.0.steps", "1");
        set(plan, "when.0.poison", "inf");
        set(plan, "when.0.poison_parameter", name);
    }
    assert_ok(cddp_plan_check(plan, &err), &err);
    return plan;
}

static void run(const cddp_plan *plan, seen *s)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_registry *registry = NULL;
    cddp_solo_world *world = NULL;
    cddp_verdict *verdict = NULL;
    const cddp_solo_options solo = {.size = sizeof solo, .world_size = 1};
    const cddp_trace_sink sink = {.size = sizeof sink,
                                  .abi = CDDP_TRACE_ABI,
                                  .self = s,
                                  .event = look},
                          *sinks[] = {&sink};
    cddp_run_options options = cddp_run_options_default();
    memset(s, 0, sizeof *s);
    assert_ok(cddp_registry_create(NULL, &registry, &err), &err);
    assert_ok(cddp_solo_world_open(&solo, &world, &err), &err);
    options.plan = plan;
    options.world_ops = cddp_solo_world_ops();
    options.world = world;
    options.backend = cddp_backend_self();
    options.registry = registry;
    options.sinks = sinks;
    options.sink_count = 1;
    options.judge = true;
    assert_ok(cddp_run(&options, &verdict, &err), &err);
    assert_int_equal(verdict->outcome, CDDP_OUTCOME_VERIFIED);
    cddp_verdict_destroy(verdict);
    cddp_solo_world_close(world);
    cddp_registry_destroy(registry);
}

TEST(many_optimizers, each_steps_when_it_is_due)
{
    seen s;
    cddp_plan *plan = make_plan(false);
    run(plan, &s);
    for (int i = 0; i < OPTIMIZERS; i++) {
        for (int step = 0; step < STEPS; step++) {
            cd_test_row("optimizer %d in step %d", i, step);
            assert_int_equal(s.stepped[i][step], i != RESTING || step == 2);
            assert_int_equal(s.touched[i][step], i != RESTING || step == 2);
            assert_int_equal(s.skipped[i][step], 0);
        }
    }
    cddp_plan_destroy(plan);
}

TEST(many_optimizers, only_the_one_that_overflowed_skips_its_step)
{
    seen s;
    cddp_plan *plan = make_plan(true);
    run(plan, &s);
    for (int i = 0; i < OPTIMIZERS; i++) {
        cd_test_row("optimizer %d", i);
        assert_int_equal(s.skipped[i][1], i == POISONED);
        assert_int_equal(s.touched[i][1], i != POISONED && i != RESTING);
        assert_int_equal(s.skipped[i][2], 0);
    }
    assert_true(s.scale[1] == 1024 && s.scale[2] == 512);
    cddp_plan_destroy(plan);
}

TEST_MAIN()
