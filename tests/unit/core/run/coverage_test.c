/* SPDX-License-Identifier: Apache-2.0 */
/* Comparisons made, owed and given up; and the gap between them. */
#include "core/run/coverage.h"

#include "core/trace/tracer.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void push_owed(cd_coverage *c, int64_t link, int64_t count)
{
    cddp_event e = {.kind = CDDP_EV_owed};
    e.as.owed = (cddp_event_owed){.link = link, .count = count};
    cd_coverage_push(c, &e);
}

static void push_unjudged(cd_coverage *c, int64_t link, int64_t count, const char *why)
{
    cddp_event e = {.kind = CDDP_EV_unjudged, .text = why};
    e.as.unjudged = (cddp_event_unjudged){.link = link, .count = count};
    cd_coverage_push(c, &e);
}

static void push_compares(cd_coverage *c, int64_t link, size_t count)
{
    cddp_event e = {.kind = CDDP_EV_compare};
    e.as.compare.link = link;
    for (size_t i = 0; i < count; i++) cd_coverage_push(c, &e);
}

static const char *gap_of(const cd_coverage *c, uint64_t ranks, cd_arena *arena)
{
    bool is_exhausted = false;
    const char *gap = cd_coverage_find_gap(c, ranks, arena, &is_exhausted);
    assert_false(is_exhausted);
    return gap;
}

TEST(coverage, a_comparison_that_is_owed_and_not_made_is_a_gap)
{
    cd_coverage c = {0};
    cd_arena arena;
    cd_arena_init(&arena, NULL, 256);
    push_owed(&c, CD_LINK_PRESENCE, 6);
    push_owed(&c, CD_LINK_UPDATE, 4);
    push_compares(&c, CD_LINK_PRESENCE, 6);
    push_compares(&c, CD_LINK_UPDATE, 3);
    assert_non_null(
        strstr(gap_of(&c, 1, &arena), "of 4 comparisons that the plan owes (update), 3"));
    push_unjudged(&c, CD_LINK_UPDATE, 1, "a gradient overflowed");
    assert_null(gap_of(&c, 1, &arena)); /* given up, with a reason */
    assert_string_equal(cd_coverage_print_unjudged(&c, &arena),
                        "update (1): a gradient overflowed");
    cd_arena_fini(&arena);
}

/* One of two results is lost: it is owed. Of a backward that was left it is not, and it is said. */
TEST(coverage, results_under_way_in_a_backward_that_was_left_are_not_owed)
{
    for (int leaves = 0; leaves < 2; leaves++) {
        cd_coverage c = {.owing_ranks = 1};
        cd_arena arena;
        const cddp_event post = {.kind = CDDP_EV_collective_post},
                         done = {.kind = CDDP_EV_collective_done},
                         left = {.kind = CDDP_EV_mark, .text = CD_TRACER_LEFT};
        cd_arena_init(&arena, NULL, 256);
        cd_coverage_push(&c, &post);
        cd_coverage_push(&c, &done);
        cd_coverage_push(&c, &post);
        if (leaves) cd_coverage_push(&c, &left);
        assert_int_equal(gap_of(&c, 1, &arena) == NULL, leaves);
        assert_int_equal(strstr(cd_coverage_print_unjudged(&c, &arena), "nobody takes it") != NULL,
                         leaves);
        cd_coverage_push(&c, &done); /* late: it does not stand for another one */
        cd_coverage_push(&c, &post);
        assert_non_null(gap_of(&c, 1, &arena));
        cd_arena_fini(&arena);
    }
}

TEST(coverage, an_update_by_another_rank_is_an_update)
{
    cd_coverage c = {0};
    cd_arena arena;
    cd_arena_init(&arena, NULL, 256);
    push_owed(&c, CD_LINK_PRESENCE, 0);
    push_owed(&c, CD_LINK_UPDATE, 4);
    push_compares(&c, CD_LINK_UPDATE, 1);
    push_compares(&c, CD_LINK_SHARE, 3);
    assert_null(gap_of(&c, 1, &arena));
    cd_arena_fini(&arena);
}

TEST(coverage, events_that_are_owed_and_do_not_come_are_listed)
{
    cd_coverage c = {0};
    cd_arena arena;
    cd_arena_init(&arena, NULL, 256);
    cddp_event owed = {.kind = CDDP_EV_owed, .text = cd_owed_name(CD_OWED_SAMPLES)},
               sample = {.kind = CDDP_EV_sample};
    owed.as.owed.count = 2;
    push_owed(&c, CD_LINK_PRESENCE, 1);
    cd_coverage_push(&c, &owed);
    cd_coverage_push(&c, &sample);
    assert_string_equal(gap_of(&c, 1, &arena),
                        "of 1 comparisons that the plan owes (presence), 0 were made; "
                        "of 2 comparisons that the plan owes (samples), 1 were made");
    cd_coverage_push(&c, &sample);
    push_compares(&c, CD_LINK_PRESENCE, 1);
    assert_null(gap_of(&c, 1, &arena));
    cd_arena_fini(&arena);
}

TEST(coverage, an_event_whose_pair_is_missing_is_a_gap)
{
    static const struct {
        const char *name;
        cddp_event_kind first, second;
    } pairs[] = {{"buffers of the wrapper", CDDP_EV_wrap, CDDP_EV_buffer},
                 {"ends of forwards", CDDP_EV_forward_begin, CDDP_EV_forward_end},
                 {"begins of forwards", CDDP_EV_forward_end, CDDP_EV_forward_begin},
                 {"results of collectives", CDDP_EV_collective_post, CDDP_EV_collective_done},
                 {"groups closed", CDDP_EV_group, CDDP_EV_group_close},
                 {"begins of backwards", CDDP_EV_backward_end, CDDP_EV_backward_begin}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        cd_coverage c = {0};
        cd_arena arena;
        cddp_event first = {.kind = (uint16_t)pairs[i].first},
                   second = {.kind = (uint16_t)pairs[i].second};
        if (pairs[i].first == CDDP_EV_wrap) first.as.wrap.buffers = 1;
        cd_arena_init(&arena, NULL, 256);
        cd_test_row("%s", pairs[i].name);
        cd_coverage_push(&c, &first);
        assert_null(gap_of(&c, 0, &arena)); /* a recording */
        push_owed(&c, CD_LINK_PRESENCE, 0);
        assert_non_null(strstr(gap_of(&c, 1, &arena), pairs[i].name));
        cd_coverage_push(&c, &second);
        assert_null(gap_of(&c, 1, &arena));
        cd_arena_fini(&arena);
    }
}

TEST(coverage, a_law_that_a_hook_owes_and_does_not_state_is_a_gap)
{
    cd_coverage c = {0};
    cd_arena arena;
    cddp_event owed = {.kind = CDDP_EV_owed, .text = CD_STATED_LAWS},
               stated = {.kind = CDDP_EV_hook_law};
    cd_arena_init(&arena, NULL, 256);
    owed.as.owed.count = 1;
    push_owed(&c, CD_LINK_PRESENCE, 0);
    cd_coverage_push(&c, &owed);
    stated.as.hook_law.bucket = -1; /* of an average */
    cd_coverage_push(&c, &stated);
    assert_non_null(strstr(gap_of(&c, 1, &arena), CD_STATED_LAWS));
    stated.as.hook_law.bucket = 0;
    stated.as.hook_law.bound = cd_f64_bits((double)INFINITY); /* which nothing can break */
    cd_coverage_push(&c, &stated);
    assert_non_null(strstr(gap_of(&c, 1, &arena), CD_STATED_LAWS));
    stated.as.hook_law.bound = 0;
    cd_coverage_push(&c, &stated);
    assert_null(gap_of(&c, 1, &arena));
    cd_arena_fini(&arena);
}

TEST(coverage, a_rank_that_nobody_observed_is_a_gap)
{
    cd_coverage c = {0};
    cd_arena arena;
    cd_arena_init(&arena, NULL, 256);
    push_owed(&c, CD_LINK_PRESENCE, 0);
    assert_null(gap_of(&c, 1, &arena));
    assert_string_equal(gap_of(&c, 3, &arena), "2 of 3 ranks were not observed");
    cd_arena_fini(&arena);
}

TEST(coverage, a_reduction_without_a_reference_is_a_gap)
{
    cd_coverage c = {0};
    cd_arena arena;
    cd_arena_init(&arena, NULL, 256);
    cd_coverage_push(&c, &(cddp_event){.kind = CDDP_EV_uncompared});
    assert_non_null(strstr(gap_of(&c, 0, &arena), "1 reductions have no reference"));
    cd_arena_fini(&arena);
}

TEST(coverage, reasons_are_counted_together_and_beyond_a_number_only_counted)
{
    cd_coverage c = {0};
    cd_arena arena;
    char why[32];
    cd_arena_init(&arena, NULL, 4096);
    assert_string_equal(cd_coverage_print_unjudged(&c, &arena), "");
    for (int i = 0; i < CD_COVERAGE_REASONS_MAX + 2; i++) {
        snprintf(why, sizeof why, "reason %d", i);
        push_unjudged(&c, CD_LINK_FREE, 3, why);
        push_unjudged(&c, CD_LINK_FREE, 2, why);
    }
    const char *words = cd_coverage_print_unjudged(&c, &arena);
    assert_non_null(strstr(words, "free-running (5): reason 0; free-running (5): reason 1"));
    assert_non_null(strstr(words, "; 10 more"));
    cd_arena_fini(&arena);
}

TEST_MAIN()
