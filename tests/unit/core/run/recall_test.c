/* SPDX-License-Identifier: Apache-2.0 */
/* The digest of what a rank observed: any other bit of a number gives another one, and where the
** number lies does not count. Nor does the order of parameters in a backward. */
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

/* A function per row that a test asks: the digest of a rank that observed this and nothing else. */
#define DIGEST_OF(row)                                                                    \
    static uint64_t digest_of_##row(cd_recall *recall, const cd_observed_##row *observed) \
    {                                                                                     \
        cddp_error err = CDDP_ERROR_INIT;                                                 \
        cd_recall_rank rank = {.recall = recall};                                         \
        cd_recall_begin(recall, CD_RECALL_LOOKS);                                         \
        assert_ok(cd_recalled_##row(&rank, observed, &err), &err);                        \
        cd_recall_end(&rank);                                                             \
        return cd_recall_get_digest(recall);                                              \
    }
DIGEST_OF(normalised)
DIGEST_OF(before_update)
DIGEST_OF(updated)
DIGEST_OF(assigned)
DIGEST_OF(leaves)
DIGEST_OF(clips)

/* `changed` is a part of *observed: it counts, whatever its type. */
#define CHANGES(row, observed, changed, value)                              \
    do {                                                                    \
        const uint64_t before = digest_of_##row(recall, &(observed));       \
        unsigned char kept[sizeof(changed)];                                \
        memcpy(kept, &(changed), sizeof kept);                              \
        (changed) = (value);                                                \
        cd_test_row("%s", #row ": " #changed);                              \
        assert_int_not_equal(digest_of_##row(recall, &(observed)), before); \
        memcpy(&(changed), kept, sizeof kept);                              \
    } while (0)

TEST(recall, reals_bytes_and_lists_count)
{
    cd_recall *recall = make_recall();
    double mean[] = {1, 2}, spread[] = {3, 4};
    cd_observed_normalised normalised = {.mean = {mean, 2}, .spread = {spread, 2}};
    CHANGES(normalised, normalised, mean[1], 5);
    CHANGES(normalised, normalised, spread[1], 5);
    CHANGES(normalised, normalised, normalised.buffer, 1);
    CHANGES(normalised, normalised, normalised.exchange, 1);
    uint8_t bytes[] = {1, 2, 3};
    const cd_blob blob = {.bytes = bytes, .used = sizeof bytes};
    cd_observed_before_update before_update = {.optimizer_state = {&blob}};
    CHANGES(before_update, before_update, bytes[2], 4);
    uint32_t ranks[] = {0, 2}, in_bucket[] = {0, 1};
    cd_observed_clips clips = {.norm = 1, .ranks = {ranks, 2}};
    CHANGES(clips, clips, ranks[1], 3);
    CHANGES(clips, clips, clips.norm, 2);
    const cd_observed_bucket bucket = {in_bucket, 2};
    cd_observed_assigned assigned = {.buckets = {&bucket, 1}};
    CHANGES(assigned, assigned, in_bucket[1], 2);
    int64_t offsets[] = {0, 8}, lengths[] = {8, 4};
    cd_observed_leaves leaves = {.places = {in_bucket, offsets, lengths, 2}};
    CHANGES(leaves, leaves, in_bucket[1], 2);
    CHANGES(leaves, leaves, offsets[1], 9);
    CHANGES(leaves, leaves, lengths[1], 5);
    CHANGES(leaves, leaves, leaves.hook.flags, 1);
    CHANGES(leaves, leaves, leaves.hook.is_present, true);
    cd_recall_destroy(recall);
}

TEST(recall, all_of_an_optimizers_state_counts)
{
    cd_recall *recall = make_recall();
    uint32_t bits = 1;
    int32_t of = 0;
    cd_oracle_optimized o = {.parameter = 1, .slots = {number_at(&bits, CDDP_F32)}};
    cd_observed_updated updated = {.optimized = {&o, 1}, .slot_parameters = {&of, 1}};
    CHANGES(updated, updated, bits, 2);
    CHANGES(updated, updated, of, 1);
    CHANGES(updated, updated, o.settings[0], 1);
    CHANGES(updated, updated, o.settings[CD_ORACLE_SETTINGS - 1], 1);
    CHANGES(updated, updated, o.parameter, 2);
    CHANGES(updated, updated, o.optimizer, 1);
    CHANGES(updated, updated, o.steps, 1);
    CHANGES(updated, updated, o.is_held, true);
    CHANGES(updated, updated, o.is_present, true);
    cd_recall_destroy(recall);
}

/* Of a rank to which these gradients came, one after the other, in one backward. */
static uint64_t digest_of_arrivals(cd_recall *recall, const uint32_t *bits, const size_t *of,
                                   size_t count)
{
    cddp_error err = CDDP_ERROR_INIT;
    uint64_t arrivals[2] = {0};
    cd_recall_rank rank = {.recall = recall, .arrivals = arrivals, .parameter_count = 2};
    cd_recall_begin(recall, CD_RECALL_LOOKS);
    for (size_t i = 0; i < count; i++) {
        const cd_observed_accumulated observed = {
            .parameter = of[i],
            .gradient = {{.kind = CDDP_GRAD_DENSE, .value = number_at(&bits[i], CDDP_F32)}}};
        rank.parameter = of[i];
        assert_ok(cd_recalled_accumulated(&rank, &observed, &err), &err);
    }
    cd_recall_end(&rank);
    return cd_recall_get_digest(recall);
}

TEST(recall, gradients_are_a_set_over_parameters_and_in_their_order_for_each)
{
    cd_recall *recall = make_recall();
    const uint32_t bits[] = {1, 2}, turned[] = {2, 1};
    const size_t each[] = {0, 1}, other[] = {1, 0}, one[] = {0, 0};
    assert_int_equal(digest_of_arrivals(recall, bits, each, 2),
                     digest_of_arrivals(recall, turned, other, 2));
    assert_int_not_equal(digest_of_arrivals(recall, bits, each, 2),
                         digest_of_arrivals(recall, bits, other, 2));
    assert_int_not_equal(digest_of_arrivals(recall, bits, one, 2),
                         digest_of_arrivals(recall, turned, one, 2));
    cd_recall_destroy(recall);
}

TEST_MAIN()
