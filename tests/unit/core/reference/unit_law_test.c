/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan has a rank do with its units, against sequences and peaks that PyTorch 1.13.1 showed
** (docs/fsdp.md). Five layers of 20 elements: four units, and the root has the last layer. */
#include "core/reference/unit_law.h"

#include "cddp/backend.h"
#include "core/plan/plan.h"
#include "core/reference/planned.h"
#include "core/reference/unit_sums.h"
#include "core/trace/sink.h"
#include "core/trace/tracer.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

#define LAYER_BYTES 80

static const char *const model[] = {"world.size",
                                    "2",
                                    "model.name",
                                    "chain",
                                    "model.options",
                                    "depth=5",
                                    "train.steps",
                                    "3",
                                    "fsdp.enable",
                                    "true",
                                    "fsdp.auto_wrap_policy",
                                    "modules",
                                    "fsdp.wrap_modules",
                                    "layers.0,layers.1,layers.2,layers.3",
                                    NULL};

typedef struct law {
    cddp_plan *plan;
    cd_samples samples;
    cd_unit_law *law;
    cd_memory_sink trace;
    struct cddp_tracer *tracer;
} law;

static void set_all(cddp_plan *plan, const char *const *sets)
{
    cddp_error err = CDDP_ERROR_INIT;
    for (size_t i = 0; sets[i] != NULL; i += 2)
        assert_ok(cddp_plan_set(plan, sets[i], sets[i + 1], &err), &err);
}

/* All micro-steps of the plan. */
static void begin(law *l, const char *const *sets)
{
    cddp_error err = CDDP_ERROR_INIT;
    memset(l, 0, sizeof *l);
    assert_ok(cddp_plan_create(NULL, &l->plan, &err), &err);
    set_all(l->plan, model);
    set_all(l->plan, sets);
    cd_samples_init(&l->samples, l->plan, NULL);
    const cd_unit_law_options options = {.plan = l->plan, .rank = 1, .samples = &l->samples};
    assert_ok(cd_unit_law_create(&options, &l->law, &err), &err);
    cd_memory_sink_init(&l->trace, NULL);
    assert_ok(cddp_tracer_create(NULL, &l->trace.sink, CDDP_TRACE_DIGEST, &l->tracer, &err), &err);
    for (uint32_t step = 0; step < l->plan->settings.train.steps; step++)
        for (uint32_t m = 0; m < l->plan->settings.train.micro_steps; m++) {
            cd_micro micro;
            cd_planned_micro(l->plan, &l->plan->settings, (cd_micro_place){1, step, m}, &micro);
            assert_ok(cd_unit_law_emit(l->law, &micro, l->tracer, &err), &err);
        }
}

static void end(law *l)
{
    cddp_tracer_destroy(l->tracer);
    cd_memory_sink_fini(&l->trace);
    cd_unit_law_destroy(l->law);
    cd_samples_fini(&l->samples);
    cddp_plan_destroy(l->plan);
}

static cddp_event_planned_units get_totals(const law *l, int64_t step, int64_t micro)
{
    for (size_t i = 0; i < l->trace.count; i++) {
        const cddp_event e = cd_memory_sink_get(&l->trace, i);
        if (e.kind == CDDP_EV_planned_units && e.as.planned_units.at_step == step &&
            e.as.planned_units.at_micro == micro)
            return e.as.planned_units;
    }
    fail_msg("nothing is derived for step %d, micro-step %d", (int)step, (int)micro);
    return (cddp_event_planned_units){0};
}

/* "AG R AG 0 …" of a step. */
static void print_sequence(const law *l, int64_t step, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < l->trace.count; i++) {
        const cddp_event e = cd_memory_sink_get(&l->trace, i);
        const cddp_event_planned_collective *c = &e.as.planned_collective;
        if (e.kind != CDDP_EV_planned_collective || c->at_step != step || c->dtype == CDDP_I64)
            continue;
        const char *op = c->op == CDDP_OP_ALLGATHER   ? "AG"
                         : c->op == CDDP_OP_ALLREDUCE ? "AR"
                                                      : "RS";
        const char *unit = strcmp(e.text, "(root)") == 0 ? "R" : e.text + strlen("layers.");
        used +=
            (size_t)snprintf(text + used, bytes - used, "%s%s %s", used > 0 ? " " : "", op, unit);
    }
}

TEST(unit_law, sequences_are_those_of_the_strategy)
{
    (void)state;
    static const struct {
        const char *name, *sets[5], *sequence;
    } rows[] = {
        {"none",
         {"fsdp.backward_prefetch", "none", NULL},
         "AG R AG 0 AG 1 AG 2 AG 3 AG 3 RS 3 AG 2 RS 2 AG 1 RS 1 AG 0 RS 0 RS R"},
        {"before",
         {"fsdp.backward_prefetch", "BACKWARD_PRE", NULL},
         "AG R AG 0 AG 1 AG 2 AG 3 AG 3 AG 2 RS 3 AG 1 RS 2 AG 0 RS 1 RS 0 RS R"},
        {"after",
         {"fsdp.backward_prefetch", "BACKWARD_POST", NULL},
         "AG R AG 0 AG 1 AG 2 AG 3 AG 3 AG 2 RS 3 AG 1 RS 2 AG 0 RS 1 RS 0 RS R"},
        {"kept",
         {"fsdp.sharding_strategy", "SHARD_GRAD_OP", NULL},
         "AG R AG 0 AG 1 AG 2 AG 3 RS 3 RS 2 RS 1 RS 0 RS R"},
        {"whole", {"fsdp.sharding_strategy", "NO_SHARD", NULL}, "AR 3 AR 2 AR 1 AR 0 AR R"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        law l;
        char text[256];
        cd_test_row("%s", rows[i].name);
        begin(&l, rows[i].sets);
        print_sequence(&l, 1, text, sizeof text);
        assert_string_equal(text, rows[i].sequence);
        print_sequence(&l, 2, text, sizeof text);
        assert_string_equal(text, rows[i].sequence);
        end(&l);
    }
}

TEST(unit_law, the_first_iteration_compares_before_each_gather_and_reduction)
{
    (void)state;
    static const char *const full[] = {"fsdp.order_check", "first_iteration", NULL};
    static const char *const none[] = {"fsdp.order_check", "none", NULL};
    static const char *const every[] = {"fsdp.order_check", "every_iteration", NULL};
    law l;
    begin(&l, full);
    assert_int_equal(get_totals(&l, 0, 0).count, 28);
    assert_int_equal(get_totals(&l, 1, 0).count, 14);
    end(&l);
    begin(&l, none);
    assert_int_equal(get_totals(&l, 0, 0).count, 14);
    end(&l);
    begin(&l, every);
    assert_int_equal(get_totals(&l, 2, 0).count, 28);
    end(&l);
}

/* PyTorch 1.13.1, of a root and five units of one size: twice, three times, six times that size. */
TEST(unit_law, the_peak_is_the_root_and_one_unit_or_two_or_all)
{
    (void)state;
    static const struct {
        const char *name, *sets[5];
        int64_t layers;
    } rows[] = {
        {"none", {"fsdp.backward_prefetch", "none", NULL}, 2},
        {"after", {"fsdp.backward_prefetch", "BACKWARD_POST", NULL}, 2},
        {"before", {"fsdp.backward_prefetch", "BACKWARD_PRE", NULL}, 3},
        {"forward", {"fsdp.backward_prefetch", "none", "fsdp.forward_prefetch", "true", NULL}, 3},
        {"kept", {"fsdp.sharding_strategy", "SHARD_GRAD_OP", NULL}, 5},
        {"whole", {"fsdp.sharding_strategy", "NO_SHARD", NULL}, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        law l;
        cd_test_row("%s", rows[i].name);
        begin(&l, rows[i].sets);
        assert_int_equal(get_totals(&l, 1, 0).peak, rows[i].layers * LAYER_BYTES);
        assert_int_equal(get_totals(&l, 1, 0).left, 0);
        end(&l);
    }
}

/* Of a root and four units. Freed ones count until the host has waited for them: one, where it
** waits for the older of two (FSH-12); all of the iteration, where it waits for none. */
TEST(unit_law, with_streams_what_was_freed_counts_until_the_host_has_waited)
{
    (void)state;
    static const struct {
        const char *name, *sets[9];
        int64_t layers, waits;
    } rows[] = {
        {"none", {"streams.producers", "1", "fsdp.backward_prefetch", "none", NULL}, 3, 6},
        {"before", {"streams.producers", "1", NULL}, 4, 6},
        {"forward",
         {"streams.producers", "1", "fsdp.backward_prefetch", "none", "fsdp.forward_prefetch",
          "true", NULL},
         4,
         6},
        {"kept", {"streams.producers", "1", "fsdp.sharding_strategy", "SHARD_GRAD_OP", NULL}, 5, 2},
        {"unlimited",
         {"streams.producers", "1", "fsdp.backward_prefetch", "none", "fsdp.limit_all_gathers",
          "false", NULL},
         9,
         0},
        {"no streams", {"fsdp.backward_prefetch", "none", NULL}, 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        law l;
        cd_test_row("%s", rows[i].name);
        begin(&l, rows[i].sets);
        const cddp_event_planned_units totals = get_totals(&l, 1, 0);
        assert_int_equal(totals.reserved, rows[i].layers * LAYER_BYTES);
        assert_int_equal(totals.waits, rows[i].waits);
        end(&l);
    }
}

TEST(unit_law, a_window_reduces_once_and_keeps_what_the_strategy_keeps)
{
    (void)state;
    static const char *const full[] = {"train.micro_steps", "2", NULL};
    static const char *const kept[] = {"train.micro_steps", "2", "fsdp.sharding_strategy",
                                       "SHARD_GRAD_OP", NULL};
    law l;
    begin(&l, full);
    assert_int_equal(get_totals(&l, 1, 0).count, 9);
    assert_int_equal(get_totals(&l, 1, 0).left, 0);
    assert_int_equal(get_totals(&l, 1, 1).count, 14);
    end(&l);
    begin(&l, kept);
    assert_int_equal(get_totals(&l, 1, 0).count, 5);
    assert_int_equal(get_totals(&l, 1, 0).left, 5 * LAYER_BYTES);
    assert_int_equal(get_totals(&l, 1, 1).count, 5);
    assert_int_equal(get_totals(&l, 1, 1).left, 0);
    end(&l);
}

TEST(unit_law, hybrid_shares_go_on_to_the_replicas_before_the_next_reduction)
{
    (void)state;
    static const char *const sets[] = {
        "world.size", "4", "fsdp.sharding_strategy", "HYBRID_SHARD", "fsdp.shard_group_size",
        "2",          NULL};
    law l;
    char text[256];
    begin(&l, sets);
    print_sequence(&l, 1, text, sizeof text);
    assert_string_equal(text, "AG R AG 0 AG 1 AG 2 AG 3 AG 3 AG 2 RS 3 AG 1 AR 3 RS 2 AG 0 AR 2 "
                              "RS 1 AR 1 RS 0 AR 0 RS R AR R");
    end(&l);
}

/* ψ of a unit of one size on every rank: what is sent is (W-1)/W of gathers and reductions. */
TEST(unit_law, volume_is_that_of_the_formula)
{
    (void)state;
    static const char *const full[] = {"fsdp.order_check", "none", NULL};
    int64_t gathered = 0, reduced = 0;
    law l;
    begin(&l, full);
    for (size_t i = 0; i < l.trace.count; i++) {
        const cddp_event e = cd_memory_sink_get(&l.trace, i);
        const cddp_event_planned_collective *c = &e.as.planned_collective;
        if (e.kind != CDDP_EV_planned_collective || c->at_step != 1) continue;
        if (c->op == CDDP_OP_ALLGATHER) gathered += c->numel * 2;
        if (c->op == CDDP_OP_REDUCE_SCATTER) reduced += c->numel;
    }
    assert_int_equal(gathered, (2 * 5 - 1) * 20); /* 2P - R */
    assert_int_equal(reduced, 5 * 20);            /* P */
    end(&l);
}

static cddp_status starve(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    law *l = argument;
    cd_unit_law *made = NULL;
    const cd_unit_law_options options = {.plan = l->plan,
                                         .rank = 1,
                                         .samples = &l->samples,
                                         .allocator = allocator};
    const cddp_status status = cd_unit_law_create(&options, &made, err);
    if (status == CDDP_OK) cd_unit_law_destroy(made);
    return status;
}

TEST(unit_law, running_out_of_memory_leaves_nothing_behind)
{
    (void)state;
    law l;
    begin(&l, (const char *const[]){NULL});
    cd_test_oom_loop(starve, &l);
    end(&l);
}

typedef struct sums {
    cd_unit_law *law;
    const cd_module *module;
} sums;

static cddp_status starve_sums(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    const sums *s = argument;
    cd_unit_sums made = {.offsets = NULL};
    const cd_unit_sums_options options = {.law = s->law,
                                          .allocator = allocator,
                                          .module = s->module,
                                          .mesh = {2, 1}};
    const cddp_status status = cd_unit_sums_init(&made, &options, err);
    cd_unit_sums_fini(&made);
    return status;
}

TEST(unit_sums, running_out_of_memory_leaves_nothing_behind)
{
    (void)state;
    law l;
    cddp_error err = CDDP_ERROR_INIT;
    cd_replica *replica = NULL;
    begin(&l, (const char *const[]){NULL});
    const cd_replica_options options = {.plan = l.plan, .device = cddp_device_shape()};
    assert_ok(cd_replica_create(&options, &replica, &err), &err);
    sums s = {l.law, replica->model->module};
    cd_test_oom_loop(starve_sums, &s);
    cd_replica_destroy(replica);
    end(&l);
}

TEST_MAIN()
