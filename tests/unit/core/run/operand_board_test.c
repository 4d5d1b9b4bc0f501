/* SPDX-License-Identifier: Apache-2.0 */
/* A board of three ranks in plain memory: what they post is found when all have posted, and nothing
** else is. */
#include "core/run/operand_board.h"

#include "cddp/device.h"

#include "tests/support/test.h"

#include <stdlib.h>

enum { RANKS = 3, NUMEL = 5, BYTES = 3 * 80000 };

typedef struct job {
    cd_operand_board boards[RANKS];
    void *memory;
    float storage[64];
} job;

static void open_job(job *j)
{
    j->memory = calloc(1, BYTES);
    assert_non_null(j->memory);
    for (uint32_t r = 0; r < RANKS; r++)
        assert_true(cd_operand_board_init(&j->boards[r], j->memory, BYTES, r, RANKS));
}

static void post(job *j, uint32_t rank, uint64_t sequence, double first, size_t count)
{
    double *numbers = calloc(count, sizeof *numbers);
    int64_t numel = NUMEL;
    const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), j->storage, 0, CDDP_BF16, &numel, 1);
    assert_non_null(numbers);
    for (size_t i = 0; i < count; i++) numbers[i] = first + (double)i;
    cd_operand_board_post(&j->boards[rank],
                          &(cd_tracer_reduction){.group = 7,
                                                 .sequence = sequence,
                                                 .member = RANKS - 1 - rank,
                                                 .members = RANKS,
                                                 .numbers = &t},
                          numbers, count);
    free(numbers);
}

static bool read_all(job *j, uint64_t sequence, cddp_red_op op, double *operands)
{
    int64_t numel = NUMEL;
    const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), j->storage, 0, CDDP_BF16, &numel, 1);
    return cd_operand_board_read(&j->boards[0],
                                 &(cd_tracer_reduction){.group = 7,
                                                        .sequence = sequence,
                                                        .members = RANKS,
                                                        .op = op,
                                                        .numbers = &t},
                                 operands, NUMEL);
}

TEST(operand_board, has_what_every_member_posted)
{
    (void)state;
    job j;
    double x[RANKS * NUMEL];
    open_job(&j);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_false(read_all(&j, 3, CDDP_RED_SUM, x));
        post(&j, r, 2, -1, NUMEL);
        post(&j, r, 3, 100.0 * r, NUMEL);
    }
    assert_true(read_all(&j, 3, CDDP_RED_SUM, x));
    for (int m = 0; m < RANKS; m++)
        for (int i = 0; i < NUMEL; i++)
            assert_true(x[m * NUMEL + i] == 100.0 * (RANKS - 1 - m) + i);
    assert_false(read_all(&j, 3, CDDP_RED_AVG, x));
    assert_false(read_all(&j, 4, CDDP_RED_SUM, x));
    free(j.memory);
}

TEST(operand_board, loses_what_is_overwritten_and_says_so)
{
    (void)state;
    job j;
    double x[RANKS * NUMEL];
    open_job(&j);
    for (uint32_t r = 0; r < RANKS; r++) post(&j, r, 0, r, NUMEL);
    assert_true(read_all(&j, 0, CDDP_RED_SUM, x));
    for (uint64_t k = 2; k < 200; k++) post(&j, 1, k, 0, 700); /* around the ring */
    assert_false(read_all(&j, 0, CDDP_RED_SUM, x));
    for (uint32_t r = 0; r < RANKS; r++) post(&j, r, 500, r, NUMEL);
    assert_true(read_all(&j, 500, CDDP_RED_SUM, x));
    for (uint64_t k = 501; k < 800; k++) post(&j, 2, k, 0, 1); /* more entries than are kept */
    assert_false(read_all(&j, 500, CDDP_RED_SUM, x));
    free(j.memory);
}

TEST(operand_board, has_every_nth_number_of_what_is_longer_than_the_ring)
{
    (void)state;
    enum { LONG = 100001 };
    job j;
    open_job(&j);
    const uint32_t stride = cd_operand_board_get_stride(&j.boards[0], LONG, RANKS);
    const size_t kept = (LONG + stride - 1) / stride;
    int64_t numel = LONG;
    const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), j.storage, 0, CDDP_BF16, &numel, 1);
    const cd_tracer_reduction ended = {.group = 7, .sequence = 1, .members = RANKS, .numbers = &t};
    double *x = calloc(RANKS * kept, sizeof *x);
    assert_non_null(x);
    assert_true(stride > 1 && kept >= 1000);
    assert_int_equal(cd_operand_board_get_stride(&j.boards[0], NUMEL, RANKS), 1);
    for (uint32_t r = 0; r < RANKS; r++) post(&j, r, 1, 1000000.0 * r, LONG);
    assert_true(cd_operand_board_read(&j.boards[0], &ended, x, LONG));
    for (size_t m = 0; m < RANKS; m++)
        for (size_t i = 0; i < kept; i++)
            assert_true(x[m * kept + i] ==
                        1000000.0 * (double)(RANKS - 1 - m) + (double)(i * stride));
    free(x);
    free(j.memory);
}

TEST(operand_board, of_little_memory_is_none)
{
    (void)state;
    char memory[64];
    cd_operand_board board;
    assert_false(cd_operand_board_init(&board, memory, sizeof memory, 0, RANKS));
    assert_false(cd_operand_board_init(&board, NULL, 0, 0, RANKS));
}

TEST_MAIN()
