/* SPDX-License-Identifier: Apache-2.0 */
/* The digest of what a rank observed: any other bit of a number gives another one, and where the
** number lies does not count. */
#include "core/run/recall.h"

#include "cddp/device.h"
#include "tests/support/test.h"

#include <string.h>

static cddp_tensor number_at(const uint32_t *bits, cddp_dtype dtype)
{
    const int64_t one = 1;
    return cddp_tensor_of(cddp_device_cpu(), (void *)(uintptr_t)bits, 0, dtype, &one, 1);
}

/* Of a rank that ended with these parameters. */
static uint64_t digest_of(cd_recall *recall, const cddp_tensor *parameters, size_t count)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_recall_rank rank = {.recall = recall};
    const cd_observed_finish observed = {.parameters = {parameters, count}};
    cd_recall_begin(recall, CD_RECALL_LOOKS);
    assert_ok(cd_recalled_finish(&rank, &observed, &err), &err);
    cd_recall_end(&rank);
    return cd_recall_get_digest(recall);
}

static cd_recall *make_recall(void)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_recall *recall = NULL;
    assert_ok(cd_recall_create(&recall, &err), &err);
    return recall;
}

TEST(recall, every_bit_of_a_number_counts)
{
    cd_recall *recall = make_recall();
    uint32_t bits[2] = {UINT32_C(0x3f800000), UINT32_C(0xc0490fdb)};
    const cddp_tensor tensors[2] = {number_at(&bits[0], CDDP_F32), number_at(&bits[1], CDDP_F32)};
    const uint64_t before = digest_of(recall, tensors, 2);
    for (uint32_t i = 0; i < 64; i++) {
        bits[i / 32] ^= UINT32_C(1) << i % 32;
        cd_test_row("bit %u", (unsigned)i);
        assert_int_not_equal(digest_of(recall, tensors, 2), before);
        bits[i / 32] ^= UINT32_C(1) << i % 32;
    }
    assert_int_equal(digest_of(recall, tensors, 2), before);
    cd_recall_destroy(recall);
}

TEST(recall, numbers_count_by_their_places_and_types)
{
    cd_recall *recall = make_recall();
    const uint32_t bits[2] = {1, UINT32_C(0x80000000)};
    const cddp_tensor a = number_at(&bits[0], CDDP_F32), b = number_at(&bits[1], CDDP_F32),
                      whole = number_at(&bits[0], CDDP_I32);
    const uint64_t before = digest_of(recall, (cddp_tensor[]){a, b}, 2);
    assert_int_not_equal(digest_of(recall, (cddp_tensor[]){b, a}, 2), before);
    assert_int_not_equal(digest_of(recall, (cddp_tensor[]){whole, b}, 2), before);
    assert_int_not_equal(digest_of(recall, (cddp_tensor[]){a, a}, 2), before);
    assert_int_not_equal(digest_of(recall, &a, 1), before);
    cd_recall_destroy(recall);
}

/* The judge has copies, which lie elsewhere and closer together. */
TEST(recall, a_copy_gives_the_same_digest)
{
    cd_recall *recall = make_recall();
    const uint32_t theirs[3] = {7, UINT32_C(0x40400000), 9}, ours = UINT32_C(0x40400000);
    cddp_tensor slice = number_at(theirs, CDDP_F32);
    const cddp_tensor copy = number_at(&ours, CDDP_F32);
    slice.offset = 1;
    slice.strides[0] = 2;
    assert_int_equal(digest_of(recall, &slice, 1), digest_of(recall, &copy, 1));
    cd_recall_destroy(recall);
}

TEST_MAIN()
