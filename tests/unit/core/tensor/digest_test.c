/* SPDX-License-Identifier: Apache-2.0 */
/* Digests that are taken in one pass are the device's, whatever the parts are. */
#include "core/tensor/digest.h"

#include "core/base/error.h"
#include "tests/support/test.h"

#include <float.h>
#include <math.h>
#include <string.h>

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
        int64_t found = -2, nonfinite = -1;
        assert_int_equal(cd_digest_pass_part(&pass, &parts[i], i % 2 == 0 ? &found : NULL),
                         digest_of(&parts[i]));
        assert_ok(parts[i].device->find_nonfinite(&parts[i], &nonfinite, NULL), NULL);
        if (i % 2 == 0) assert_int_equal(found, nonfinite);
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

/* ---- what is written ---- */

enum { WRITTEN = 3 * 4096 + 5 };
static _Alignas(64) double wide_from[WRITTEN], wide_to[WRITTEN];
static _Alignas(64) double wide_expected[WRITTEN];

static cddp_tensor wide(double *storage, cddp_dtype dtype, int64_t offset, int64_t numel)
{
    return cddp_tensor_of(cddp_device_cpu(), storage, offset, dtype, &numel, 1);
}

static void fill_wide(cddp_dtype dtype)
{
    cddp_error err = CDDP_ERROR_INIT;
    for (int64_t i = 0; i < WRITTEN; i++) {
        const cddp_tensor one = wide(wide_from, dtype, i, 1);
        assert_ok(one.device->fill(&one, (double)(i * 7919 % 1009) - 500, NULL, &err), &err);
    }
}

TEST(digest, what_is_written_is_hashed_as_behind_one_call)
{
    static const cddp_dtype dtypes[] = {CDDP_F64, CDDP_F32, CDDP_BF16, CDDP_F16, CDDP_C64};
    static const int64_t places[] = {-1, 0, 2047, 2048, 4096, WRITTEN - 4};
    cddp_error err = CDDP_ERROR_INIT;
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
            cd_test_row("dtype %s, an infinity at %d", cddp_dtype_name(dtypes[d]), (int)places[p]);
            fill_wide(dtypes[d]);
            const cddp_tensor from = wide(wide_from, dtypes[d], 3, WRITTEN - 3),
                              to = wide(wide_to, dtypes[d], 1, WRITTEN - 3),
                              expected = wide(wide_expected, dtypes[d], 1, WRITTEN - 3);
            if (places[p] >= 0) {
                const cddp_tensor one = wide(wide_from, dtypes[d], 3 + places[p], 1);
                assert_ok(one.device->fill(&one, (double)INFINITY, NULL, &err), &err);
            }
            const cddp_copy_pair pair = {to, from};
            assert_true(cd_digest_may_follow(&to, &from));
            for (int64_t n = 0; n <= 3; n += 3) {
                cd_digest_written written = {.nonfinite = places[p]};
                int64_t nonfinite = -1;
                if (n == 0) {
                    assert_ok(cd_digest_copy(&pair, &written, &err), &err);
                    assert_ok(to.device->copy(&expected, &from, NULL, &err), &err);
                } else {
                    assert_ok(cd_digest_multiply_reciprocal(&pair, n, &written.digest, &err), &err);
                    assert_ok(to.device->multiply_reciprocal(&expected, &from, n, NULL, &err),
                              &err);
                }
                assert_int_equal(written.digest, digest_of(&expected));
                assert_int_equal(written.digest, digest_of(&to));
                assert_ok(to.device->find_nonfinite(&expected, &nonfinite, &err), &err);
                assert_int_equal(written.nonfinite, nonfinite);
                assert_int_equal(written.nonfinite, places[p]);
            }
        }
    }
}

/* A copy is hashed as it is. It stands for what it was copied from only where both are the same. */
static int64_t spoiled; /* an element of the copy; -1: none */

static cddp_status copy_and_spoil(const cddp_tensor *dst, const cddp_tensor *src,
                                  cddp_stream *stream, cddp_error *err)
{
    const int64_t at = spoiled - dst->offset;
    cddp_tensor one = *dst;
    CD_TRY(cddp_device_cpu()->copy(dst, src, stream, err));
    if (spoiled < 0 || at < 0 || at >= dst->sizes[0]) return CDDP_OK;
    one.offset = spoiled;
    one.sizes[0] = 1;
    return CD_PASS(one.device->fill(&one, 77, NULL, err));
}

TEST(digest, parts_are_copied_and_each_is_hashed_as_it_is)
{
    static const int64_t cuts[][PARTS_MAX] = {
        {WRITTEN},                          /* the whole */
        {1, 4096, 4096, WRITTEN - 8193},    /* no block of a part is one of the whole */
        {1024, 1024, 2048, WRITTEN - 4096}, /* each is */
        {5, 0, 2049, 0, 4095, WRITTEN - 6149},
    };
    static const int64_t places[] = {-1, 0, 4095, 4096, WRITTEN - 1};
    static const cddp_dtype dtypes[] = {CDDP_F64, CDDP_BF16, CDDP_C64};
    cddp_device device = *cddp_device_cpu();
    cddp_error err = CDDP_ERROR_INIT;
    device.copy = copy_and_spoil;
    for (size_t row = 0; row < 4 * 5 * 3; row++) {
        const cddp_dtype dtype = dtypes[row % 3];
        const int64_t *cut = cuts[row / 3 % 4];
        spoiled = places[row / 12];
        cd_test_row("%s, cuts %d, spoiled %d", cddp_dtype_name(dtype), (int)(row / 3 % 4),
                    (int)spoiled);
        fill_wide(dtype);
        cddp_tensor whole = wide(wide_from, dtype, 0, WRITTEN);
        cd_digest_pass pass;
        cd_digest_pass_begin(&pass, &whole);
        for (int64_t i = 0, at = 0; i < PARTS_MAX && at < WRITTEN; at += cut[i++]) {
            cddp_copy_pair pair = {wide(wide_to, dtype, at, cut[i]),
                                   wide(wide_from, dtype, at, cut[i])};
            cd_digest_written written = {.nonfinite = 5};
            uint64_t part = 0;
            pair.dst.device = pair.src.device = &device;
            assert_true(cd_digest_may_copy(&pair.dst, &pair.src));
            assert_ok(cd_digest_pass_copy(&pass, &pair, &part, &written, &err), &err);
            assert_int_equal(part, digest_of(&pair.src));
            assert_int_equal(written.digest, digest_of(&pair.dst));
            assert_int_equal(written.nonfinite, -1);
            assert_int_equal(part != written.digest, spoiled >= at && spoiled < at + cut[i]);
        }
        assert_int_equal(cd_digest_pass_end(&pass), digest_of(&whole));
    }
}

/* A device that does something else is asked as one that does everything at once would be. */
TEST(digest, what_does_not_lie_in_one_piece_is_not_followed)
{
    const int64_t sizes[] = {64, 128}, strides[] = {1, 64};
    cddp_device other = *cddp_device_cpu();
    cddp_tensor turned = wide(wide_from, CDDP_F64, 0, 64 * 128);
    const cddp_tensor plain = wide(wide_to, CDDP_F64, 0, 64 * 128),
                      small = wide(wide_to, CDDP_F64, 0, 8);
    turned.dim_count = 2;
    for (int i = 0; i < 2; i++) turned.sizes[i] = sizes[i], turned.strides[i] = strides[i];
    assert_false(cd_digest_may_follow(&plain, &turned));
    assert_false(cd_digest_may_follow(&turned, &plain));
    assert_false(cd_digest_may_follow(&small, &small));
    cddp_tensor narrow = plain, elsewhere = plain;
    narrow.dtype = CDDP_F32;
    elsewhere.device = &other;
    assert_false(cd_digest_may_follow(&plain, &narrow));
    assert_false(cd_digest_may_follow(&plain, &elsewhere));
}

/* As norm and find_nonfinite say, or not at all. */
TEST(digest, a_glance_says_what_the_device_says)
{
    const float least = nextafterf(0, 1);
    const float specials[] = {0, -0.0f, least, -least, 1, FLT_MAX, INFINITY, -INFINITY, NAN, -NAN};
    const size_t count = sizeof specials / sizeof specials[0];
    cddp_error err = CDDP_ERROR_INIT;
    for (int64_t numel = 0; numel < 70; numel++) {
        for (size_t which = 0; which < count * (size_t)(numel + 1); which++) {
            bool is_zero = false;
            int64_t found = -2, nonfinite = -1;
            double norm = 0;
            memset(numbers, 0, sizeof numbers);
            numbers[2 + which / count] = specials[which % count];
            if (which % 3 == 0) numbers[2 + numel / 2] = specials[which / 3 % count];
            const cddp_tensor t = view(2, numel);
            if (!cd_glance(&t, &is_zero, &nonfinite)) {
                assert_true(numel > 64);
                continue;
            }
            assert_ok(t.device->norm(&t, &norm, &err), &err);
            assert_ok(t.device->find_nonfinite(&t, &found, &err), &err);
            cd_test_row("%d elements, %zu", (int)numel, which);
            assert_int_equal(is_zero, norm == 0.0);
            assert_int_equal(nonfinite, found);
        }
    }
    const cddp_tensor doubles =
        cddp_tensor_of(cddp_device_cpu(), numbers, 0, CDDP_F64, (const int64_t[]){4}, 1);
    bool is_zero = false;
    int64_t nonfinite = -1;
    assert_false(cd_glance(&doubles, &is_zero, &nonfinite));
}

TEST_MAIN()
