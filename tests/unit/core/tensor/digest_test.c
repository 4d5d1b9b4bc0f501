/* SPDX-License-Identifier: Apache-2.0 */
/* Digests that are taken in one pass are the device's, whatever the parts are. */
#include "core/tensor/digest.h"

#include "tests/support/test.h"

#include <math.h>

enum { NUMEL = 5000, PARTS_MAX = 8 };

static _Alignas(64) float numbers[NUMEL];

static cddp_tensor view(int64_t offset, int64_t numel)
{
    return cddp_tensor_of(cddp_device_cpu(), numbers, offset, CDDP_F32, &numel, 1);
}

static uint64_t digest_of(const cddp_tensor *t)
{
    uint64_t digest = 0;
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(t->device->digest(t, &digest, &err), &err);
    return digest;
}

static void check(const cddp_tensor *whole, const cddp_tensor *parts, size_t count)
{
    cd_digest_pass pass;
    cd_digest_pass_begin(&pass, whole);
    for (size_t i = 0; i < count; i++) {
        cd_test_row("part %zu of %zu", i, count);
        assert_int_equal(cd_digest_pass_part(&pass, &parts[i]), digest_of(&parts[i]));
    }
    assert_int_equal(cd_digest_pass_end(&pass), digest_of(whole));
}

TEST(digest, parts_of_any_length_are_hashed_as_by_themselves)
{
    static const int64_t cuts[][PARTS_MAX] = {
        {NUMEL},   {1, NUMEL - 1},     {1024, 1024, 1024, NUMEL - 3072},
        {1023, 2}, {0, 3000, 0, 2000}, {700, 700, 700, 700, 700, 700, 800},
        {2048},    {4999, 1},          {1, 1, 1, 1},
    };
    for (int64_t i = 0; i < NUMEL; i++) numbers[i] = (float)(i * 7919 % 1009);
    const cddp_tensor whole = view(0, NUMEL), inner = view(3, 4100);
    for (size_t row = 0; row < sizeof cuts / sizeof cuts[0]; row++) {
        cddp_tensor parts[PARTS_MAX];
        size_t count = 0;
        for (int64_t at = 0; count < PARTS_MAX && at < NUMEL; at += cuts[row][count++])
            parts[count] = view(at, cuts[row][count]);
        check(&whole, parts, count);
        check(&inner, parts, count); /* parts that begin before it and end behind it */
    }
}

TEST(digest, parts_with_gaps_or_elsewhere_are_hashed_as_by_themselves)
{
    static _Alignas(64) float others[NUMEL];
    for (int64_t i = 0; i < NUMEL; i++) others[i] = numbers[i] = (float)i;
    const cddp_tensor whole = view(0, NUMEL);
    cddp_tensor every_third = view(10, 1000), apart = view(0, 2000);
    every_third.strides[0] = 3;
    apart.storage = others;
    const cddp_tensor parts[] = {view(4000, 500), view(100, 2000), every_third, apart,
                                 view(100, 2000)};
    check(&whole, parts, sizeof parts / sizeof parts[0]);
    check(&every_third, parts, sizeof parts / sizeof parts[0]);
}

TEST(digest, the_first_number_that_is_not_finite_is_found_on_the_way)
{
    static const int64_t places[] = {-1, 0, 1023, 1024, 1025, 4095, NUMEL - 1};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        int64_t found = 0;
        for (int64_t k = 0; k < NUMEL; k++) numbers[k] = 1;
        if (places[i] >= 0) numbers[places[i]] = i % 2 == 0 ? NAN : INFINITY;
        if (places[i] >= 0) numbers[NUMEL - 1] = NAN;
        const cddp_tensor whole = view(0, NUMEL);
        assert_int_equal(cd_digest_and_find_nonfinite(&whole, &found), digest_of(&whole));
        cd_test_row("at %lld", (long long)places[i]);
        assert_int_equal(found, places[i]);
    }
    cddp_tensor undefined = {.device = NULL};
    int64_t found = 0;
    assert_int_equal(cd_digest_and_find_nonfinite(&undefined, &found), 0);
    assert_int_equal(found, -1);
}

TEST_MAIN()
