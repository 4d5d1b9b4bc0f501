/* SPDX-License-Identifier: Apache-2.0 */
/* When a run is said to have no end, and when it is only long. */
#include "core/run/bound.h"
#include "tests/support/test.h"

#include <string.h>

typedef struct world {
    cddp_plan plan;
    cddp_relay_sink relay;
    cd_bound bound;
    uint64_t passed_on;
} world;

static void count_event(void *self, const cddp_event *event)
{
    (void)event;
    ((world *)self)->passed_on++;
}

static cddp_trace_sink next;

static void open_world(world *w, size_t collectives)
{
    memset(w, 0, sizeof *w);
    w->plan.world.size = 2;
    w->plan.settings.train.steps = 3;
    w->plan.collective_count = collectives;
    cddp_relay_sink_init(&w->relay);
    next = (cddp_trace_sink){.size = sizeof next,
                             .abi = CDDP_TRACE_ABI,
                             .self = w,
                             .event = count_event};
    const cddp_run_options options = {.size = sizeof options, .plan = &w->plan, .relay = &w->relay};
    cd_bound_init(&w->bound, &options, &next);
}

static void put(world *w, cddp_event_kind kind, uint32_t step, uint64_t times, bool joined)
{
    cddp_event e = {.rank = 1, .step = step, .kind = (uint16_t)kind};
    if (kind == CDDP_EV_forward_begin) e.as.forward_begin.joined = joined;
    for (uint64_t i = 0; i < times; i++) w->bound.sink.event(w->bound.sink.self, &e);
}

static void close_world(world *w, bool is_endless)
{
    assert_int_equal(w->relay.is_endless, is_endless);
    assert_int_equal(w->bound.is_over, is_endless);
    if (is_endless) assert_int_equal(w->bound.rank, 1);
    cd_bound_fini(&w->bound);
}

TEST(bound, ends_what_repeats_without_end_and_nothing_that_a_plan_asks_for)
{
    (void)state;
    static const struct {
        const char *name;
        size_t collectives; /* that the plan asks for */
        cddp_event_kind kind;
        uint64_t times;
        uint32_t step;
        bool joined, is_endless;
    } cases[] = {{"collectives", 0, CDDP_EV_collective_post, 5000, 0, false, true},
                 {"as many as may be", 0, CDDP_EV_collective_post, 4000, 0, false, false},
                 {"as many as planned", 6000, CDDP_EV_collective_post, 6000, 0, false, false},
                 {"more than planned", 6000, CDDP_EV_collective_post, 20000, 0, false, true},
                 {"passes", 0, CDDP_EV_forward_begin, 5000, 0, false, true},
                 {"some passes", 0, CDDP_EV_forward_begin, 4000, 0, false, false},
                 {"shadows of nobody", 0, CDDP_EV_forward_begin, 1100, 0, true, true},
                 {"a few shadows", 0, CDDP_EV_forward_begin, 900, 0, true, false},
                 {"a step behind the end", 0, CDDP_EV_forward_begin, 1, 4, false, false},
                 {"steps behind the end", 0, CDDP_EV_forward_begin, 1, 71, false, true},
                 {"other events", 0, CDDP_EV_mark, 2000000, 0, false, true},
                 {"many other events", 0, CDDP_EV_mark, 1000000, 0, false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        world w;
        cd_test_row("%s", cases[i].name);
        open_world(&w, cases[i].collectives);
        put(&w, cases[i].kind, cases[i].step, cases[i].times, cases[i].joined);
        assert_int_equal(w.passed_on, cases[i].times);
        close_world(&w, cases[i].is_endless);
    }
}

/* Another rank begins each pass that is shadowed. */
TEST(bound, a_long_join_is_no_circle)
{
    (void)state;
    world w;
    open_world(&w, 0);
    for (int i = 0; i < 20000; i++) {
        cddp_event own = {.rank = 0, .kind = CDDP_EV_forward_begin, .step = 2};
        w.bound.sink.event(w.bound.sink.self, &own);
        own.kind = CDDP_EV_backward_begin;
        own.micro_step = (uint32_t)i; /* it trains on */
        w.bound.sink.event(w.bound.sink.self, &own);
        put(&w, CDDP_EV_forward_begin, 1, 1, true);
        put(&w, CDDP_EV_collective_post, 1, 3, false);
    }
    close_world(&w, false);
}

/* Ranks that clean up behind the end are no part of the run. */
TEST(bound, hears_nobody_behind_the_end)
{
    (void)state;
    world w;
    open_world(&w, 0);
    w.relay.muted = true;
    put(&w, CDDP_EV_collective_post, 0, 5000, false);
    close_world(&w, false);
}

TEST_MAIN()
