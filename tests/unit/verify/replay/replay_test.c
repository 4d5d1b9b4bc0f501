/* SPDX-License-Identifier: Apache-2.0 */
/* A record and a run, event by event; and the plan of a record on another backend. */
#include "verify/replay/recipe.h"
#include "verify/replay/replay.h"

#include "core/base/error.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

/* Three ranks launch four buckets each. */
#define EVENTS 12
static cddp_event event_of(size_t number)
{
    cddp_event e = {.kind = CDDP_EV_bucket_launch,
                    .rank = (uint32_t)(number % 3),
                    .sequence = number / 3,
                    .time_ns = number * 100};
    e.as.bucket_launch.bucket = (int64_t)(number / 3);
    return e;
}

static void load(cd_replay *r)
{
    cd_replay_init(r);
    for (size_t i = 0; i < EVENTS; i++) {
        const cddp_event e = event_of(i);
        r->recorded.sink.event(r->recorded.sink.self, &e);
    }
    r->total = r->recorded.count;
    assert_int_equal(r->total, EVENTS);
}

static void meet(cd_replay *r, const cddp_event *e) { r->sink.event(r->sink.self, e); }

TEST(replay, equal_events_in_equal_order_are_the_same_run)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_replay r;
    load(&r);
    for (size_t i = 0; i < EVENTS; i++) {
        const cddp_event e = event_of(i);
        meet(&r, &e);
    }
    assert_ok(r.sink.flush(r.sink.self, &err), &err);
    assert_true(cd_replay_end(&r));
    cd_replay_fini(&r);
}

TEST(replay, the_first_event_that_differs_is_where_they_part)
{
    static const struct {
        const char *name;
        size_t at;
        int change;
    } cases[] = {{"another bucket", 4, 0}, {"another time", 7, 1}, {"another rank", 2, 2}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_replay r;
        cd_test_row("%s", cases[k].name);
        load(&r);
        for (size_t i = 0; i < EVENTS; i++) {
            cddp_event e = event_of(i);
            if (i == cases[k].at && cases[k].change == 0) e.as.bucket_launch.bucket++;
            if (i == cases[k].at && cases[k].change == 1) e.time_ns++;
            if (i == cases[k].at && cases[k].change == 2) e.rank++;
            meet(&r, &e);
        }
        assert_int_equal(r.sink.flush(r.sink.self, &err), CDDP_E_ABORTED);
        assert_true(r.parted);
        assert_false(r.was_interrupted);
        assert_int_equal(r.met, cases[k].at);
        assert_int_equal(r.expected, cases[k].at);
        assert_false(cd_replay_end(&r));
        cd_replay_fini(&r);
    }
}

static bool say_yes(void) { return true; }

TEST(replay, a_run_that_ended_early_is_not_the_same_and_an_interrupted_one_says_so)
{
    cd_replay r;
    const cddp_event first = event_of(0), last = event_of(EVENTS - 1);
    load(&r);
    meet(&r, &first);
    assert_false(cd_replay_end(&r));
    assert_int_equal(r.expected, 1);
    assert_false(r.parted);
    r.interrupted = say_yes;
    meet(&r, &last);
    assert_true(r.parted);
    assert_true(r.was_interrupted);
    cd_replay_fini(&r);
}

TEST(replay, across_worlds_ranks_may_come_in_any_order_at_any_time)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_replay r;
    load(&r);
    assert_ok(cd_replay_set_across(&r, true, &err), &err);
    for (size_t rank = 3; rank-- > 0;)
        for (size_t i = rank; i < EVENTS; i += 3) {
            cddp_event e = event_of(i);
            e.time_ns += 12345;
            meet(&r, &e);
        }
    assert_true(cd_replay_end(&r));
    cd_replay_fini(&r);
    /* But a rank's own order counts. */
    load(&r);
    assert_ok(cd_replay_set_across(&r, true, &err), &err);
    const cddp_event second = event_of(3);
    meet(&r, &second);
    assert_true(r.parted);
    cd_replay_fini(&r);
}

/* How a rank fails, and what it does then, is compared by the verdicts. That it fails where it
** failed in the other world is compared here. */
TEST(replay, across_worlds_a_failure_meets_a_failure)
{
    static const struct {
        const char *name;
        uint16_t kind;
        int64_t field;
        bool is_met;
    } cases[] = {{"an operation that failed otherwise", CDDP_EV_collective_done, 0, true},
                 {"an error", CDDP_EV_error, 0, true},
                 {"the end of a rank that was killed", CDDP_EV_rank_end, CDDP_RANK_KILLED, true},
                 {"the end of a rank without an error", CDDP_EV_rank_end, 0, false},
                 {"no failure", CDDP_EV_bucket_launch, 0, false}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_event failure = {.kind = CDDP_EV_collective_done, .rank = 1}, now = {.rank = 1};
        cd_replay r;
        cd_test_row("%s", cases[k].name);
        load(&r);
        failure.as.collective_done.status = CDDP_E_BACKEND;
        r.recorded.sink.event(r.recorded.sink.self, &failure);
        failure.kind = CDDP_EV_error;
        r.recorded.sink.event(r.recorded.sink.self, &failure);
        assert_ok(cd_replay_set_across(&r, true, &err), &err);
        assert_int_equal(r.total, EVENTS);
        for (size_t i = 0; i < EVENTS; i++) {
            const cddp_event e = event_of(i);
            meet(&r, &e);
        }
        now.kind = cases[k].kind;
        if (now.kind == CDDP_EV_collective_done) now.as.collective_done.status = CDDP_E_TIMEOUT;
        if (now.kind == CDDP_EV_rank_end) now.as.rank_end.end = cases[k].field;
        meet(&r, &now);
        assert_int_equal(r.parted, !cases[k].is_met);
        assert_int_equal(r.has_failed, cases[k].is_met);
        now.kind = CDDP_EV_bucket_launch;
        meet(&r, &now);
        assert_int_equal(cd_replay_end(&r), cases[k].is_met);
        cd_replay_fini(&r);
    }
}

/* A rank whose operation the recorded transport refused goes on in the simulator. */
TEST(replay, across_worlds_what_follows_a_refusal_is_compared_by_the_verdicts)
{
    static const cddp_status refused[] = {CDDP_E_MISMATCH, CDDP_E_BACKEND};
    for (size_t k = 0; k < 2; k++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_event failure = {.kind = CDDP_EV_collective_done, .rank = 1}, now = failure;
        cd_replay r;
        load(&r);
        failure.as.collective_done.status = refused[k];
        r.recorded.sink.event(r.recorded.sink.self, &failure);
        assert_ok(cd_replay_set_across(&r, true, &err), &err);
        for (size_t i = 0; i < EVENTS; i++) {
            const cddp_event e = event_of(i);
            meet(&r, &e);
        }
        meet(&r, &now);
        assert_int_equal(r.was_refused, k == 0);
        assert_int_equal(r.has_failed, k == 0);
        assert_int_equal(cd_replay_end(&r), k == 0);
        cd_replay_fini(&r);
    }
}

/* Rank 1 posts one operation a letter: h: it ends on all ranks; e: elsewhere alone; n: nowhere. */
static void record_death(cd_replay *r, const char *operations)
{
    cddp_event e = {.rank = 1, .kind = CDDP_EV_collective_post};
    cd_replay_init(r);
    for (int64_t k = 0; operations[k] != '\0'; k++) {
        e.as.collective_post = (cddp_event_collective_post){.group = 7, .sequence = k};
        r->recorded.sink.event(r->recorded.sink.self, &e);
    }
    e.kind = CDDP_EV_collective_done;
    for (int64_t k = 0; operations[k] != '\0'; k++)
        for (e.rank = 0; e.rank < 2; e.rank++) {
            const bool is_well = operations[k] == 'h' || (operations[k] == 'e' && e.rank == 0);
            e.as.collective_done =
                (cddp_event_collective_done){.group = 7,
                                             .sequence = k,
                                             .status = is_well ? CDDP_OK : CDDP_E_BACKEND};
            if (is_well || e.rank == 0) r->recorded.sink.event(r->recorded.sink.self, &e);
        }
    e = (cddp_event){.rank = 1, .kind = CDDP_EV_rank_end};
    e.as.rank_end = (cddp_event_rank_end){.end = CDDP_RANK_KILLED, .detail = 9};
    r->recorded.sink.event(r->recorded.sink.self, &e);
}

TEST(replay, a_rank_that_a_signal_ended_dies_in_the_first_operation_that_ended_nowhere)
{
    static const struct {
        const char *operations;
        cddp_plan_fault_when when;
        uint64_t at;
        bool is_held; /* what ended elsewhere ends first */
    } cases[] = {{"", CDDP_FAULT_BEFORE, 0, false},    {"hh", CDDP_FAULT_BEFORE, 2, false},
                 {"hn", CDDP_FAULT_INSIDE, 1, false},  {"hnn", CDDP_FAULT_INSIDE, 1, false},
                 {"hen", CDDP_FAULT_INSIDE, 2, true},  {"he", CDDP_FAULT_AFTER, 1, false},
                 {"hee", CDDP_FAULT_AFTER, 2, false},  {"hnh", CDDP_FAULT_INSIDE, 1, false},
                 {"heenn", CDDP_FAULT_INSIDE, 3, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_plan *plan = NULL;
        cd_replay r;
        cd_test_row("'%s'", cases[i].operations);
        record_death(&r, cases[i].operations);
        assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
        assert_ok(cddp_plan_set(plan, "world.timeout_ms", "2000", &err), &err);
        assert_ok(cd_replay_plant(&r, plan, &err), &err);
        assert_int_equal(plan->fault_count, 1 + cases[i].is_held);
        const cddp_plan_fault *death = &plan->faults[plan->fault_count - 1];
        assert_string_equal(death->kind, "kill");
        assert_int_equal(death->when, cases[i].when);
        assert_int_equal(death->at, cases[i].at);
        assert_int_equal(death->rank, 1);
        if (cases[i].is_held) {
            assert_string_equal(plan->faults[0].kind, "hang");
            assert_int_equal(plan->faults[0].when, CDDP_FAULT_BEFORE);
            assert_int_equal(plan->faults[0].at, cases[i].at);
            assert_int_equal(plan->faults[0].duration_ns, 500000000);
        }
        cddp_plan_destroy(plan);
        cd_replay_fini(&r);
    }
}

TEST(replay, it_stops_where_it_was_asked_to)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_replay r;
    load(&r);
    r.until = 2;
    for (size_t i = 0; i < 4; i++) {
        const cddp_event e = event_of(i);
        meet(&r, &e);
    }
    assert_true(r.stopped);
    assert_int_equal(r.met, 2);
    assert_int_equal(r.sink.flush(r.sink.self, &err), CDDP_E_ABORTED);
    assert_true(cd_replay_end(&r));
    cd_replay_fini(&r);
}

TEST(recipe, a_record_of_real_processes_becomes_the_same_plan_on_the_simulator)
{
    static const struct {
        const char *backend, *becomes;
        bool is_foreign;
    } cases[] = {{"sim", "sim", false},
                 {"gloo", "sim", true},
                 {"hier:gloo", "hier:sim", true},
                 {"cpu:gloo,cuda:nccl", "cpu:sim,cuda:sim", true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_plan *plan = NULL;
        char backend[64], algorithm[] = "";
        snprintf(backend, sizeof backend, "%s", cases[i].backend);
        const cd_recipe recipe = {.backend = backend, .algorithm = algorithm};
        cd_test_row("%s", backend);
        assert_int_equal(cd_recipe_is_foreign(&recipe), cases[i].is_foreign);
        assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
        assert_ok(cd_recipe_transfer(&recipe, plan, &err), &err);
        assert_string_equal(plan->world.backend, cases[i].becomes);
        cddp_plan_destroy(plan);
    }
}

/* Time that real processes did not let pass makes no rank late in the simulator. */
TEST(recipe, what_real_processes_did_not_wait_for_is_not_waited_for_in_the_simulator)
{
    for (int is_offloaded = 0; is_offloaded < 2; is_offloaded++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_plan *plan = NULL;
        cddp_plan_settings one;
        char backend[] = "gloo", algorithm[] = "";
        const cd_recipe recipe = {.backend = backend, .algorithm = algorithm};
        assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
        assert_ok(cddp_plan_set(plan, "when.0.ranks", "1", &err), &err);
        assert_ok(cddp_plan_set(plan, "when.0.compute_us", "60000000", &err), &err);
        assert_ok(cddp_plan_set(plan, "train.forward_us", "70000000", &err), &err);
        assert_ok(cddp_plan_set(plan, "train.backward_us@1", "80000000", &err), &err);
        if (is_offloaded) assert_ok(cddp_plan_set(plan, "train.offloaded", "true", &err), &err);
        assert_ok(cd_recipe_transfer(&recipe, plan, &err), &err);
        assert_ok(cddp_plan_rank_settings(plan, 1, &one, &err), &err);
        cd_test_row("offloaded: %d", is_offloaded);
        assert_int_equal(plan->whens[0].compute_us, is_offloaded ? 60000000 : 0);
        assert_int_equal(one.train.forward_us, is_offloaded ? 70000000 : 100);
        assert_int_equal(one.train.backward_us, is_offloaded ? 80000000 : 20);
        cddp_plan_destroy(plan);
    }
}

TEST(recipe, a_plan_that_no_longer_means_the_same_is_refused)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    char backend[] = "", algorithm[] = "";
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    cd_recipe recipe = {.backend = backend,
                        .algorithm = algorithm,
                        .plan_digest = cddp_plan_digest(plan),
                        .seed = plan->world.seed,
                        .world_size = plan->world.size,
                        .steps = plan->settings.train.steps};
    assert_ok(cd_recipe_check_plan(&recipe, plan, &err), &err);
    recipe.seed++;
    assert_int_equal(cd_recipe_check_plan(&recipe, plan, &err), CDDP_E_CORRUPT);
    assert_non_null(strstr(err.message, "its column seed says"));
    cd_error_reset(&err);
    recipe.plan_digest++;
    assert_int_equal(cd_recipe_check_plan(&recipe, plan, &err), CDDP_E_MISMATCH);
    cddp_plan_destroy(plan);
}

TEST_MAIN()
