/* SPDX-License-Identifier: Apache-2.0 */
/* The barrier that names who did not come, over simulated ranks. */
#include "cddp/device.h"
#include "core/base/error.h"
#include "tests/unit/sim/fixture.h"

#include <string.h>

#define RANKS 5
#define S UINT64_C(1000000000)

static cddp_status sum_of_ones(cddp_group *group, float *sum, cddp_error *err)
{
    const int64_t one = 1;
    *sum = 1;
    const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), sum, 0, CDDP_F32, &one, 1);
    cddp_work *work = NULL;
    CD_TRY(cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, err));
    CD_TRY(cddp_work_wait(work, 0, err));
    return CDDP_OK;
}

static cddp_status all_come(cddp_rank *rank, void *argument, cddp_error *err)
{
    cddp_group *group = NULL;
    float sum = 0;
    CD_TRY(fixture_group(argument, rank, "world", &group, err));
    cddp_status status = CDDP_OK;
    /* the last one comes late, but in time */
    if (rank->rank == RANKS - 1) CD_TRY_OUT(rank->ops->sleep_ns(rank, S, err));
    CD_TRY_OUT(cddp_barrier_monitored(group, 5 * S, err));
    CD_TRY_OUT(cddp_barrier_monitored(group, 5 * S, err));
    /* nobody waited for the time-out */
    if (rank->ops->now_ns(rank) >= 2 * S) CD_TRY_OUT(cd_fail(err, CDDP_E_MISMATCH, "too late"));
    /* operations have one number on all members again */
    CD_TRY_OUT(sum_of_ones(group, &sum, err));
    if (sum != RANKS) status = cd_fail(err, CDDP_E_MISMATCH, "the sum is %g", (double)sum);
out:
    cddp_group_destroy(group);
    return status;
}

/* These ranks stay away for a while, and then leave. */
static cddp_status some_are_missing(cddp_rank *rank, void *argument, uint32_t away, cddp_error *err)
{
    cddp_group *group = NULL;
    CD_TRY(fixture_group(argument, rank, "world", &group, err));
    const bool stays_away = (away >> rank->rank & 1u) != 0;
    const cddp_status status = stays_away ? rank->ops->sleep_ns(rank, 60 * S, err)
                                          : cddp_barrier_monitored(group, 5 * S, err);
    cddp_group_destroy(group);
    return status;
}

static cddp_status two_are_missing(cddp_rank *rank, void *argument, cddp_error *err)
{
    return CD_PASS(some_are_missing(rank, argument, 1u << 1 | 1u << 3, err));
}

static cddp_status all_but_one_are_missing(cddp_rank *rank, void *argument, cddp_error *err)
{
    return CD_PASS(some_are_missing(rank, argument, 0x1e, err));
}

static cddp_status the_first_is_missing(cddp_rank *rank, void *argument, cddp_error *err)
{
    return CD_PASS(some_are_missing(rank, argument, 1, err));
}

TEST(monitored, all_members_pass_when_all_come)
{
    sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
    f.config.world_size = RANKS;
    fixture_run(&f, all_come);
    fixture_destroy(&f);
}

TEST(monitored, the_first_member_names_all_that_are_missing_and_the_others_the_lowest)
{
    sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
    f.config.world_size = RANKS;
    fixture_create(&f);
    fixture_launch(&f, two_are_missing);
    static const char *const words[RANKS] = {"no message came from ranks 1 and 3", NULL,
                                             "lost rank 1", NULL, "lost rank 1"};
    for (uint32_t r = 0; r < RANKS; r++) {
        cd_test_row("rank %u: %s", r, f.results[r].error.message);
        assert_int_equal(f.results[r].status, words[r] != NULL ? CDDP_E_TIMEOUT : CDDP_OK);
        if (words[r] != NULL) assert_non_null(strstr(f.results[r].error.message, words[r]));
    }
    assert_non_null(strstr(f.results[0].error.message,
                           "lost rank 1: it did not come to the monitored barrier of group 'world' "
                           "within 5 s"));
    fixture_destroy(&f);
}

TEST(monitored, the_first_member_alone_names_all_others)
{
    sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
    f.config.world_size = RANKS;
    fixture_create(&f);
    fixture_launch(&f, all_but_one_are_missing);
    cd_test_row("%s", f.results[0].error.message);
    assert_int_equal(f.results[0].status, CDDP_E_TIMEOUT);
    assert_non_null(strstr(f.results[0].error.message, "no message came from ranks 1-4"));
    fixture_destroy(&f);
}

TEST(monitored, the_others_name_the_first_member_when_it_is_missing)
{
    sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
    f.config.world_size = RANKS;
    fixture_create(&f);
    fixture_launch(&f, the_first_is_missing);
    for (uint32_t r = 1; r < RANKS; r++) {
        cd_test_row("rank %u: %s", r, f.results[r].error.message);
        assert_int_equal(f.results[r].status, CDDP_E_TIMEOUT);
        assert_non_null(strstr(f.results[r].error.message, "lost rank 0: it gave no answer"));
    }
    fixture_destroy(&f);
}

TEST(monitored, a_time_out_and_a_group_are_required)
{
    cddp_error err = CDDP_ERROR_INIT;
    assert_int_equal(cddp_barrier_monitored(NULL, S, &err), CDDP_E_ARG);
}

TEST_MAIN()
