/* SPDX-License-Identifier: Apache-2.0 */
/* Fingerprints of the guard: calls that fit together agree on every member, others on none. */
#include "backends/guard/call_fingerprint.h"

#include "cddp/device.h"
#include "tests/support/test.h"

#include <string.h>

#define RANKS 3

static const uint32_t members[RANKS] = {0, 1, 2};
static float memory[64];

static cddp_tensor floats(int64_t numel)
{
    return cddp_tensor_of(cddp_device_cpu(), memory, 0, CDDP_F32, &numel, 1);
}

/* Every member's answer; all must be the same. */
static cddp_status answer(const cddp_collective calls[RANKS], cddp_error *err)
{
    cd_call_fingerprint all[RANKS];
    cddp_status status = CDDP_OK;
    for (uint32_t r = 0; r < RANKS; r++) all[r] = cd_call_fingerprint_of(&calls[r], r, RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        const cddp_status own = cd_call_fingerprint_agree(all, members, r, RANKS, err);
        if (r > 0) assert_int_equal(own, status);
        status = own;
    }
    return status;
}

static void exchange_of(const int64_t given[RANKS][RANKS], const int64_t taken[RANKS][RANKS],
                        cddp_collective calls[RANKS])
{
    for (uint32_t r = 0; r < RANKS; r++)
        calls[r] = (cddp_collective){.op = CDDP_OP_ALLTOALL,
                                     .input = floats(9),
                                     .output = floats(9),
                                     .counts = taken[r],
                                     .send_counts = given[r]};
}

TEST(call_fingerprint, shares_of_an_exchange_are_compared_with_what_the_other_end_expects)
{
    cddp_error err = CDDP_ERROR_INIT;
    static const int64_t given[RANKS][RANKS] = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}},
                         taken[RANKS][RANKS] = {{1, 4, 7}, {2, 5, 8}, {3, 6, 9}};
    int64_t other[RANKS][RANKS] = {{1, 4, 7}, {2, 5, 8}, {3, 6, 9}};
    cddp_collective calls[RANKS];
    exchange_of(given, taken, calls);
    assert_ok(answer(calls, &err), &err);
    /* the sums over a row stay the same */
    other[1][0] = 3;
    other[1][2] = 7;
    exchange_of(given, (const int64_t(*)[RANKS])other, calls);
    assert_int_equal(answer(calls, &err), CDDP_E_MISMATCH);
    assert_non_null(strstr(err.message, "than that one expects"));
}

TEST(call_fingerprint, an_exchange_of_equal_shares_has_one_size)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_collective calls[RANKS];
    for (uint32_t r = 0; r < RANKS; r++)
        calls[r] =
            (cddp_collective){.op = CDDP_OP_ALLTOALL, .input = floats(9), .output = floats(9)};
    assert_ok(answer(calls, &err), &err);
    calls[2].input = calls[2].output = floats(6);
    assert_int_equal(answer(calls, &err), CDDP_E_MISMATCH);
    assert_non_null(strstr(err.message, "ranks disagree"));
}

/* A rank that has ended its part of a broadcast is as silent as one that takes no part. */
TEST(silent, one_alone_is_lost_where_all_need_it_and_else_nobody_is_accused)
{
    cddp_error err = CDDP_ERROR_INIT;
    assert_fails(cd_call_fail_silent(CDDP_OP_ALLREDUCE, "rank 2", 1, "gloo: late", &err),
                 CDDP_E_TIMEOUT, &err, "lost rank 2: no part was taken in it in time (gloo: late)");
    assert_fails(cd_call_fail_silent(CDDP_OP_ALLREDUCE, "ranks 0 and 2", 2, "gloo: late", &err),
                 CDDP_E_TIMEOUT, &err, "nothing was heard of ranks 0 and 2");
    assert_null(strstr(err.message, "lost"));
    assert_fails(cd_call_fail_silent(CDDP_OP_BROADCAST, "rank 0", 1, "gloo: late", &err),
                 CDDP_E_TIMEOUT, &err, "nothing was heard of rank 0");
    assert_null(strstr(err.message, "lost"));
}

TEST_MAIN()
