/* SPDX-License-Identifier: Apache-2.0 */
/* The watchdog's judgement. */
#include "backends/nccl/watch.h"
#include "tests/support/test.h"

#include <string.h>

static const cd_watch_look late = {.now_ns = 5000000000,
                                   .has_oldest = true,
                                   .op = CDDP_OP_ALLREDUCE,
                                   .sequence = 17,
                                   .posted_ns = 1000000000,
                                   .deadline_ns = 4000000000};

TEST(watch, stays_silent_until_the_deadline)
{
    cd_watch w = {.rank = 2, .group = "world"};
    cd_watch_look l = late;
    l.now_ns = l.deadline_ns - 1;
    assert_false(cd_watch_step(&w, &l));
    assert_false(w.failed);
    l.has_oldest = false;
    l.now_ns = UINT64_MAX;
    assert_false(cd_watch_step(&w, &l));
}

TEST(watch, a_time_out_names_rank_group_collective_and_sequence_number_once)
{
    cd_watch w = {.rank = 2, .group = "world"};
    assert_true(cd_watch_step(&w, &late));
    assert_int_equal(w.status, CDDP_E_TIMEOUT);
    assert_non_null(
        strstr(w.reason, "rank 2, group 'world': allreduce #17 did not end within 3000 ms"));
    assert_false(cd_watch_step(&w, &late));
}

TEST(watch, an_asynchronous_error_is_reported_with_the_oldest_operation)
{
    cd_watch w = {.rank = 0, .group = "tp"};
    cd_watch_look l = late;
    l.now_ns = 0;
    l.async_error = "remote process exited";
    assert_true(cd_watch_step(&w, &l));
    assert_int_equal(w.status, CDDP_E_BACKEND);
    assert_non_null(strstr(
        w.reason,
        "NCCL reports remote process exited; the oldest operation in flight was allreduce #17"));
}

TEST(watch, the_first_reason_stays)
{
    cd_watch w = {.rank = 2, .group = "world"};
    assert_true(cd_watch_abort(&w, "the user changed their mind"));
    assert_int_equal(w.status, CDDP_E_ABORTED);
    assert_false(cd_watch_step(&w, &late));
    assert_false(cd_watch_abort(&w, "again"));
    assert_non_null(strstr(w.reason, "changed their mind"));
}

TEST_MAIN()
