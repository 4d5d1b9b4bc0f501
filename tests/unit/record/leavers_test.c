/* SPDX-License-Identifier: Apache-2.0 */
/* Who left early, and who was ended for it: each row is a job of three ranks. */
#include "verify/import/leavers.h"

#include "cddp/world.h"
#include "core/trace/tracer.h"
#include "tests/support/test.h"

#include <string.h>

enum { RANKS = 3, WORK_OF_A_STEP = 2 };

typedef enum end { NO_END, BY_EXIT, BY_CLOSE, BY_CODE, SEEN, JOINS } end;

typedef struct job {
    const char *name;
    uint64_t work[RANKS];
    end ends[RANKS];
    const char *left, *ended; /* a letter of each rank: x or . */
} job;

static const job jobs[] = {
    {"all are done", {9, 9, 9}, {BY_CLOSE, BY_CLOSE, BY_EXIT}, "...", "..."},
    {"one leaves", {9, 5, 9}, {NO_END, BY_EXIT, NO_END}, ".x.", "x.x"},
    {"with as much work", {9, 9, 9}, {NO_END, BY_EXIT, NO_END}, ".x.", "x.x"},
    {"one closes with less work", {9, 5, 9}, {NO_END, BY_CLOSE, NO_END}, ".x.", "x.x"},
    {"one is done, and two die", {9, 9, 9}, {NO_END, BY_CLOSE, NO_END}, "...", "..."},
    {"two are done, and one dies", {9, 9, 9}, {BY_EXIT, NO_END, BY_EXIT}, "...", "..."},
    {"one dies early", {9, 5, 9}, {BY_CLOSE, NO_END, BY_CLOSE}, "...", "..."},
    {"one fails", {9, 5, 9}, {NO_END, BY_CODE, NO_END}, "...", "x.x"},
    {"one dies, and another fails for it", {9, 5, 9}, {BY_CODE, NO_END, NO_END}, "...", "..x"},
    {"one fails, and one lags a step", {9, 7, 9}, {BY_CODE, NO_END, NO_END}, "...", ".xx"},
    {"one leaves, and one lags a step", {9, 9, 7}, {NO_END, BY_EXIT, NO_END}, ".x.", "x.x"},
    {"one leaves, and one died before", {9, 9, 5}, {NO_END, BY_EXIT, NO_END}, ".x.", "x.."},
    {"one joins", {9, 5, 9}, {NO_END, JOINS, NO_END}, "...", "..."},
    {"one was seen to die", {9, 5, 9}, {SEEN, BY_EXIT, NO_END}, ".x.", "..x"},
    {"nobody leaves", {9, 5, 9}, {NO_END, NO_END, NO_END}, "...", "..."},
};

static cd_leaver fill(uint64_t work, end how)
{
    cd_leaver l = {.is_open = how == NO_END};
    cddp_event e = {.kind = CDDP_EV_grad_local};
    for (uint64_t i = 0; i < work; i++) {
        e.step = (uint32_t)(i / WORK_OF_A_STEP);
        cd_leaver_push(&l, &e);
    }
    e = (cddp_event){.kind = CDDP_EV_mark, .text = CD_TRACER_LEFT_BY_EXIT};
    if (how == BY_EXIT) cd_leaver_push(&l, &e);
    e = (cddp_event){.kind = CDDP_EV_join_notify};
    if (how == JOINS) cd_leaver_push(&l, &e);
    e = (cddp_event){.kind = CDDP_EV_rank_end};
    e.as.rank_end = (cddp_event_rank_end){.end = how == BY_CODE ? CDDP_RANK_CRASHED : 0,
                                          .detail = how == BY_CODE ? 3 : 0};
    if (how != NO_END && how != SEEN) cd_leaver_push(&l, &e);
    return l;
}

TEST(leavers, are_found_and_so_are_those_that_were_ended_for_them)
{
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        cd_leaver all[RANKS];
        char left[RANKS + 1] = "", ended[RANKS + 1] = "";
        cd_test_row("%s", jobs[i].name);
        for (size_t r = 0; r < RANKS; r++) all[r] = fill(jobs[i].work[r], jobs[i].ends[r]);
        cd_leavers_settle(all, RANKS);
        for (size_t r = 0; r < RANKS; r++) {
            left[r] = all[r].has_left_early ? 'x' : '.';
            ended[r] = all[r].was_ended ? 'x' : '.';
        }
        assert_string_equal(left, jobs[i].left);
        assert_string_equal(ended, jobs[i].ended);
    }
}

TEST_MAIN()
