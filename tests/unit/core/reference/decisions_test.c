/* SPDX-License-Identifier: Apache-2.0 */
/* What plans decide, against tables made by hand. */
#include "core/reference/decisions.h"

#include "core/plan/plan.h"
#include "core/tensor/cpu.h"
#include "core/trace/sink.h"
#include "core/trace/tracer.h"
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

typedef struct judged {
    cddp_plan *plan;
    cd_arena memory;
    cd_replica *replica;
    cd_samples samples;
    cd_decisions decisions;
    cd_memory_sink trace;
    struct cddp_tracer *tracer;
} judged;

static void begin(judged *j, const char *const *sets)
{
    cddp_error err = CDDP_ERROR_INIT;
    memset(j, 0, sizeof *j);
    assert_ok(cddp_plan_create(NULL, &j->plan, &err), &err);
    for (; sets[0] != NULL; sets += 2)
        assert_ok(cddp_plan_set(j->plan, sets[0], sets[1], &err), &err);
    const cd_replica_options replica = {.plan = j->plan, .rank = 1};
    assert_ok(cd_replica_create(&replica, &j->replica, &err), &err);
    cd_arena_init(&j->memory, NULL, 1024);
    cd_samples_init(&j->samples, j->plan, NULL);
    const cd_decisions_options options = {.plan = j->plan,
                                          .rank = 1,
                                          .replica = j->replica,
                                          .samples = &j->samples,
                                          .memory = &j->memory};
    assert_ok(cd_decisions_init(&j->decisions, &options, &err), &err);
    cd_memory_sink_init(&j->trace, NULL);
    assert_ok(cddp_tracer_create(NULL, &j->trace.sink, CDDP_TRACE_DIGEST, &j->tracer, &err), &err);
    assert_ok(cd_decisions_emit(&j->decisions, j->tracer, &err), &err);
}

static void end(judged *j)
{
    cddp_tracer_destroy(j->tracer);
    cd_memory_sink_fini(&j->trace);
    cd_samples_fini(&j->samples);
    cd_arena_fini(&j->memory);
    cd_replica_destroy(j->replica);
    cddp_plan_destroy(j->plan);
}

/* The decision of this kind for a step and an id; one of them must be there. */
static cddp_event get(const judged *j, int64_t decision, int64_t step, int64_t id)
{
    for (size_t i = 0; i < j->trace.count; i++) {
        const cddp_event e = cd_memory_sink_get(&j->trace, i);
        const cddp_event_decision *d = &e.as.decision;
        if (d->decision == decision && d->at_step == step && d->id == id) return e;
    }
    fail_msg("no decision %d of step %d on %d", (int)decision, (int)step, (int)id);
    return (cddp_event){0};
}

static size_t count(const judged *j, int64_t decision)
{
    size_t found = 0;
    for (size_t i = 0; i < j->trace.count; i++)
        found += cd_memory_sink_get(&j->trace, i).as.decision.decision == decision;
    return found;
}

TEST(decisions, steps_end_with_inputs_or_where_the_rank_stops)
{
    judged j;
    static const char *const all[] = {"train.steps", "5", NULL};
    static const char *const inputs[] = {"train.steps", "5", "data.inputs@1", "3", NULL};
    static const char *const nothing[] = {"train.steps", "5", "data.inputs@1", "0", NULL};
    static const char *const stops[] = {
        "train.steps", "5", "when.0.steps", "2", "when.0.ranks", "1", "when.0.stop", "true", NULL};
    static const char *const other[] = {
        "train.steps", "5", "when.0.steps", "2", "when.0.ranks", "0", "when.0.stop", "true", NULL};
    const struct {
        const char *const *sets;
        uint32_t steps;
    } cases[] = {{all, 5}, {inputs, 3}, {nothing, 0}, {stops, 2}, {other, 5}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%zu", i);
        begin(&j, cases[i].sets);
        assert_int_equal(cd_decisions_count_steps(&j.decisions), cases[i].steps);
        assert_int_equal(get(&j, CDDP_DECISION_STEPS, -1, -1).as.decision.value, cases[i].steps);
        assert_int_equal(count(&j, CDDP_DECISION_UPDATE), cases[i].steps);
        end(&j);
    }
}

TEST(decisions, an_update_is_due_or_skipped_at_its_own_rate)
{
    judged j;
    static const char *const sets[] = {"train.steps",
                                       "4",
                                       "train.lr_decay",
                                       "0.5",
                                       "optimizer.0.lr",
                                       "0.5",
                                       "optimizer.0.steps",
                                       "1%2",
                                       "when.0.steps",
                                       "2",
                                       "when.0.skip",
                                       "step",
                                       NULL};
    static const struct {
        int64_t update;
        double rate;
    } expected[] = {{CD_UPDATE_NONE, 0.5},
                    {CD_UPDATE_STEP, 0.25},
                    {CD_UPDATE_SKIP, 0.125},
                    {CD_UPDATE_STEP, 0.0625}};
    begin(&j, sets);
    for (int64_t step = 0; step < 4; step++) {
        const cddp_event e = get(&j, CDDP_DECISION_UPDATE, step, 0);
        cd_test_row("step %d", (int)step);
        assert_int_equal(e.as.decision.value, expected[step].update);
        assert_true(cd_f64_of(e.as.decision.real) == expected[step].rate);
    }
    end(&j);
}

TEST(decisions, windows_close_at_synchronising_micro_steps)
{
    judged j;
    static const char *const sets[] = {"train.steps",
                                       "2",
                                       "train.micro_steps",
                                       "4",
                                       "when.0.micro_steps",
                                       "1",
                                       "when.0.sync",
                                       "true",
                                       "when.0.steps",
                                       "1",
                                       NULL};
    static const struct {
        uint32_t step, micro, first;
        bool closes;
    } expected[] = {{0, 0, 0, false}, {0, 1, 0, false}, {0, 3, 0, true}, {1, 0, 0, false},
                    {1, 1, 0, true},  {1, 2, 2, false}, {1, 3, 2, true}};
    begin(&j, sets);
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        const cd_micro_place place = {1, expected[i].step, expected[i].micro};
        cd_test_row("step %u micro-step %u", place.step, place.micro_step);
        assert_int_equal(cd_decisions_closes(&j.decisions, place), expected[i].closes);
        assert_int_equal(cd_decisions_get_window_first(&j.decisions, place), expected[i].first);
    }
    end(&j);
}

TEST(decisions, local_sgd_averages_in_blocks_once_it_has_started)
{
    judged j;
    static const char *const sets[] = {"world.size",
                                       "4",
                                       "train.steps",
                                       "4",
                                       "hook.name",
                                       "post_local_sgd",
                                       "hook.options",
                                       "start_localSGD_iter=2,subgroup_size=2",
                                       "averager.kind",
                                       "periodic",
                                       "averager.levels",
                                       "2",
                                       "averager.warmup_steps",
                                       "1",
                                       NULL};
    static const struct {
        int64_t block, due, parameters, state;
    } expected[] = {{4, 0, 4, 4}, {4, 4, 4, 4}, {2, 0, 2, 2}, {2, 4, 4, 2}};
    begin(&j, sets);
    for (uint32_t step = 0; step < 4; step++) {
        const cddp_event a = get(&j, CDDP_DECISION_AGREEMENT, step, -1);
        cd_test_row("step %u", step);
        assert_int_equal(cd_decisions_get_block(&j.decisions, (cd_micro_place){1, step, 0}),
                         expected[step].block);
        assert_int_equal(get(&j, CDDP_DECISION_AVERAGE, step, 0).as.decision.value,
                         expected[step].due);
        assert_int_equal(a.as.decision.value, expected[step].block);
        assert_int_equal(a.as.decision.detail, expected[step].parameters);
        assert_true(cd_f64_of(a.as.decision.real) == (double)expected[step].state);
    }
    assert_true(cd_f64_of(get(&j, CDDP_DECISION_HOOK_OPTION, -1, 0).as.decision.real) == 2);
    end(&j);
}

TEST(decisions, hooks_are_named_in_three_ways)
{
    judged j;
    static const struct {
        const char *sets[7], *name, *inner;
        uint64_t start;
    } cases[] = {
        {{NULL}, "", NULL, 0},
        {{"hook.name", "powersgd", NULL}, "powersgd", NULL, 1000},
        {{"hook.name", "powersgd", "ddp.comm_hook", "topk:k=3", NULL}, "topk", NULL, 0},
        {{"hook.name", "powersgd", "ddp.comm_hook", "no", NULL}, "", NULL, 0},
        {{"ddp.comm_hook", "power_sgd:start_powerSGD_iter=3", NULL}, "powersgd", NULL, 3},
        {{"hook.comm_hook", "power_sgd", "hook.comm_wrapper", "bf16", NULL},
         "bf16_compress_wrapper",
         "powersgd",
         0},
        {{"hook.comm_wrapper", "bf16", NULL}, "", NULL, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%zu", i);
        begin(&j, cases[i].sets);
        assert_string_equal(j.decisions.hook.name, cases[i].name);
        if (cases[i].inner != NULL) assert_string_equal(j.decisions.hook.inner, cases[i].inner);
        assert_int_equal(cd_decided_hook_start(&j.decisions.hook), cases[i].start);
        end(&j);
    }
}

TEST(decisions, parameters_are_frozen_ignored_or_delayed_by_the_lists)
{
    judged j;
    static const char *const sets[] = {"model.freeze", "layers.0.weight", "model.ignore",
                                       "layers.0.bias", NULL};
    static const struct {
        int64_t taken, trained;
    } expected[] = {{0, 0}, {0, 1}, {1, 1}, {1, 1}};
    begin(&j, sets);
    for (int64_t i = 0; i < 4; i++) {
        const cddp_event e = get(&j, CDDP_DECISION_PARAMETER, -1, i);
        assert_int_equal(e.as.decision.value, expected[i].taken);
        assert_int_equal(e.as.decision.detail, expected[i].trained);
    }
    end(&j);
}

/* One gradient of (3, 4) has the norm 5, twice the limit and more; a NaN in it is an overflow. */
TEST(decisions, judged_gradients_decide_scale_clip_and_skip)
{
    judged j;
    cddp_error err = CDDP_ERROR_INIT;
    static const char *const sets[] = {
        "amp.enable", "true",          "amp.init_scale", "8", "amp.growth_interval",
        "1",          "clip.max_norm", "0.25",           NULL};
    static float values[2] = {3, 4};
    static const int64_t two = 2;
    begin(&j, sets);
    const size_t parameters = j.replica->model->module->parameter_count;
    cddp_grad gradients[16] = {{0}};
    cd_numbers numbers = {0};
    assert_true(parameters <= 16);
    gradients[1].kind = CDDP_GRAD_DENSE;
    gradients[1].value = cddp_tensor_of(cddp_device_cpu(), values, 0, CDDP_F32, &two, 1);
    assert_true(cd_decisions_begin_step(&j.decisions, 0, j.tracer) == 8);
    assert_ok(cd_decisions_judge(&j.decisions, 0, gradients, &numbers, j.tracer, &err), &err);
    const double factor = 0.25 / (5.0 / 8 + 1e-6);
    const cddp_event clip = get(&j, CDDP_DECISION_CLIP, 0, -1);
    assert_true(fabs(cd_f64_of(clip.as.decision.real) - factor) <= 1e-15);
    assert_true(cd_f64_of(clip.as.decision.bound) < 1e-6);
    assert_int_equal(get(&j, CDDP_DECISION_OVERFLOW, 0, 0).as.decision.value, 0);
    assert_true(cd_decisions_has_step(&j.decisions, 0, 0));
    assert_true(cd_decisions_begin_step(&j.decisions, 1, j.tracer) == 16);
    values[0] = NAN;
    assert_ok(cd_decisions_judge(&j.decisions, 1, gradients, &numbers, j.tracer, &err), &err);
    assert_int_equal(get(&j, CDDP_DECISION_OVERFLOW, 1, 0).as.decision.value, 1);
    assert_false(cd_decisions_has_step(&j.decisions, 1, 0));
    assert_true(cd_decisions_begin_step(&j.decisions, 2, j.tracer) == 8);
    values[0] = 3;
    cd_numbers_fini(&numbers);
    end(&j);
}

static cddp_status starve(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    const judged *j = argument;
    cd_arena memory;
    cd_decisions decisions;
    cd_arena_init(&memory, allocator, 64);
    const cd_decisions_options options = {.plan = j->plan,
                                          .rank = 1,
                                          .replica = j->replica,
                                          .samples = (cd_samples *)&j->samples,
                                          .memory = &memory};
    const cddp_status status = cd_decisions_init(&decisions, &options, err);
    cd_arena_fini(&memory);
    return status;
}

TEST(decisions, running_out_of_memory_leaves_nothing_behind)
{
    judged j;
    begin(&j, (const char *const[]){NULL});
    cd_test_oom_loop(starve, &j);
    end(&j);
}

TEST_MAIN()
