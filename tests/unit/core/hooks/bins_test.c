/* SPDX-License-Identifier: Apache-2.0 */
/* Exact sums in absolute bins, held against the oracle's exact sums, which share no code with
** them. */
#include "tests/support/test.h"

#include "core/base/alloc.h"
#include "core/base/hash.h"
#include "core/base/prng.h"
#include "core/hooks/bins.h"
#include "core/hooks/host.h"
#include "core/oracle/wide_sum.h"
#include "core/tensor/dtype.h"

#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NUMEL 600
#define PARTS_MAX 64

static const cddp_dtype dtypes[] = {CDDP_F32, CDDP_F64, CDDP_F16, CDDP_BF16};

typedef struct contributions {
    cddp_dtype dtype;
    uint32_t count;
    int64_t numel;
    unsigned char values[PARTS_MAX][NUMEL * sizeof(double)];
} contributions;

static void *at(contributions *c, uint32_t part, int64_t i)
{
    return c->values[part] + (size_t)i * cddp_dtype_bytes(c->dtype);
}

/* spread: binades between the largest and the least magnitude. */
static contributions *draw(cddp_dtype dtype, uint32_t count, int spread, uint64_t seed)
{
    contributions *c = calloc(1, sizeof *c);
    cd_prng p = cd_prng_seed(seed);
    c->dtype = dtype;
    c->count = count;
    c->numel = NUMEL;
    for (uint32_t k = 0; k < count; k++)
        for (int64_t i = 0; i < c->numel; i++) {
            double m = (double)cd_prng_between(&p, 0, INT64_C(1) << 53) - 0x1p52;
            cd_element_set(dtype, at(c, k, i), ldexp(m, -52 - (int)cd_prng_between(&p, 0, spread)));
        }
    return c;
}

/* The contributions as `worlds` ranks that accumulate theirs, reduced and averaged over all of
** them. */
static void average(contributions *c, uint32_t worlds, uint32_t divisor, void *out)
{
    cd_bins *bins = calloc(worlds, sizeof *bins);
    cd_bins_span all = {.first = 1000, .last = -1000};
    cddp_error err = CDDP_ERROR_INIT;
    for (uint32_t w = 0; w < worlds; w++) {
        assert_ok(cd_bins_init(&bins[w], NULL, c->dtype, c->numel, &err), &err);
        for (uint32_t k = w; k < c->count; k += worlds)
            assert_ok(cd_bins_add(&bins[w], c->values[k], &err), &err);
        cd_bins_span one = cd_bins_get_span(&bins[w]);
        all.special |= one.special;
        if (one.first > one.last) continue;
        if (one.first < all.first) all.first = one.first;
        if (one.last > all.last) all.last = one.last;
    }
    int64_t rows = cd_bins_rows(&all);
    int32_t *sum = calloc((size_t)(rows * c->numel) + 1, sizeof *sum),
            *own = calloc((size_t)(rows * c->numel) + 1, sizeof *own);
    for (uint32_t w = 0; w < worlds; w++) {
        cd_bins_encode(&bins[w], &all, own, c->numel);
        for (int64_t i = 0; i < rows * c->numel; i++) sum[i] += own[i];
        cd_bins_fini(&bins[w]);
    }
    cd_bins_decode(c->dtype, sum, c->numel, &all, divisor, out, c->numel);
    free(sum);
    free(own);
    free(bins);
}

/* |sum - divisor · actual| ≤ divisor · (half the distance to the neighbour), in exact
** arithmetic. */
static void expect_rounded_once(contributions *c, uint32_t divisor, const void *out)
{
    cd_wide_sum sum;
    cddp_error err = CDDP_ERROR_INIT;
    double values[NUMEL];
    assert_ok(cd_wide_sum_init(&sum, NULL, c->dtype, (size_t)c->numel, &err), &err);
    for (uint32_t k = 0; k < c->count; k++) {
        for (int64_t i = 0; i < c->numel; i++) values[i] = cd_element_get(c->dtype, at(c, k, i));
        cd_wide_sum_push(&sum, values);
    }
    size_t width = cddp_dtype_bytes(c->dtype);
    for (int64_t i = 0; i < c->numel; i++) {
        double actual = cd_element_get(c->dtype, (const unsigned char *)out + (size_t)i * width);
        double residual = cd_wide_sum_residual(&sum, (size_t)i, actual, divisor) / divisor;
        int precision = c->dtype == CDDP_F64    ? 53
                        : c->dtype == CDDP_F16  ? 11
                        : c->dtype == CDDP_BF16 ? 8
                                                : 24;
        double gap = actual == 0 ? 0 : ldexp(1.0, ilogb(actual) + 1 - precision);
        double least = cd_host_least(c->dtype) * 2;
        assert_true(fabs(residual) <= (gap > least ? gap : least) / 2 * (1 + 0x1p-50));
    }
    cd_wide_sum_fini(&sum);
}

TEST(bins, every_number_of_parts_gives_the_same_bits)
{
    for (size_t d = 0; d < 4; d++) {
        const int spreads[] = {0, 12, 40, dtypes[d] == CDDP_F64 ? 900 : 140};
        for (size_t s = 0; s < 4; s++) {
            contributions *c = draw(dtypes[d], PARTS_MAX, spreads[s], 7 + s);
            unsigned char first[NUMEL * 8] = {0}, other[NUMEL * 8] = {0};
            average(c, 1, 67, first);
            expect_rounded_once(c, 67, first);
            for (uint32_t worlds = 2; worlds <= PARTS_MAX; worlds += worlds < 9 ? 1 : 11) {
                memset(other, 0, sizeof other);
                average(c, worlds, 67, other);
                assert_true(memcmp(first, other, sizeof first) == 0);
            }
            free(c);
        }
    }
}

TEST(bins, numbers_added_once_take_the_same_way)
{
    for (size_t d = 0; d < 4; d++) {
        contributions *c = draw(dtypes[d], 1, 30, 3);
        unsigned char one[NUMEL * 8] = {0}, two[NUMEL * 8] = {0};
        cd_bins_span span = cd_bins_span_of(c->dtype, c->values[0], c->numel);
        int32_t *rows = calloc((size_t)(cd_bins_rows(&span) * c->numel) + 1, sizeof *rows);
        cd_bins_encode_values(c->dtype, c->values[0], c->numel, &span, rows, c->numel);
        cd_bins_decode(c->dtype, rows, c->numel, &span, 1, one, c->numel);
        size_t bytes = (size_t)c->numel * cddp_dtype_bytes(c->dtype);
        for (int64_t i = 0; i < c->numel; i++) /* -0 comes back as +0 */
            assert_true(cd_element_get(c->dtype, one + (size_t)i * cddp_dtype_bytes(c->dtype)) ==
                        cd_element_get(c->dtype, at(c, 0, i)));
        average(c, 1, 1, two);
        assert_true(memcmp(one, two, bytes) == 0);
        free(rows);
        free(c);
    }
}

static float mean_of(const float *values, uint32_t count, uint32_t divisor)
{
    contributions *c = calloc(1, sizeof *c);
    float out = 77;
    c->dtype = CDDP_F32;
    c->count = count;
    c->numel = 1;
    for (uint32_t k = 0; k < count; k++) memcpy(c->values[k], &values[k], sizeof(float));
    float split = 77;
    average(c, 1, divisor, &out);
    average(c, count, divisor, &split);
    assert_true(memcmp(&out, &split, sizeof out) == 0 || (isnan(out) && isnan(split)));
    free(c);
    return out;
}

TEST(bins, what_is_special_comes_out_as_ieee_addition_has_it)
{
    assert_true(isnan(mean_of((float[]){1, NAN, 2}, 3, 3)));
    assert_true(isnan(mean_of((float[]){INFINITY, 1, -INFINITY}, 3, 3)));
    assert_true(mean_of((float[]){INFINITY, 1, INFINITY}, 3, 3) == INFINITY);
    assert_true(mean_of((float[]){-1, -INFINITY, 5}, 3, 3) == -INFINITY);
    assert_true(mean_of((float[]){-0.0f, -0.0f}, 2, 2) == 0.0f);
    assert_false(signbit(mean_of((float[]){-0.0f, -0.0f}, 2, 2)));
}

/* A digest of every sum and of what did not fit, after three additions of numbers like these. */
static uint64_t digest_of(cddp_dtype dtype, int64_t numel, cd_isa isa, int spread, float special)
{
    contributions *c = draw(dtype, 3, spread, 11);
    cddp_error err = CDDP_ERROR_INIT;
    cd_bins bins;
    c->numel = numel;
    if (special != 0) cd_element_set(dtype, at(c, 1, numel / 2), (double)special);
    assert_ok(cd_bins_init(&bins, NULL, dtype, c->numel, &err), &err);
    bins.isa = isa;
    for (uint32_t k = 0; k < c->count; k++) assert_ok(cd_bins_add(&bins, c->values[k], &err), &err);
    uint64_t digest = cd_hash64(bins.high, (size_t)c->numel * sizeof *bins.high,
                                bins.spilled * 2u + bins.special);
    if (bins.spilled)
        digest =
            cd_hash64(bins.spill, (size_t)c->numel * bins.spill_bins * sizeof *bins.spill, digest);
    if (dtype == CDDP_F32 && special == 0 && spread != 28)
        assert_int_equal(bins.spilled, spread > 28);
    cd_bins_fini(&bins);
    free(c);
    return digest;
}

TEST(bins, every_instruction_set_adds_to_the_same_bits)
{
    /* all exact; nearly so; many that do not fit a double */
    static const int spreads[] = {8, 28, 60};
    static const int64_t sizes[] = {NUMEL, 203}; /* the second is short */
    for (size_t d = 0; d < 4; d++)
        for (size_t i = 0; i < 3; i++)
            for (int isa = CD_ISA_AVX2; isa < CD_ISA_COUNT; isa++) {
                if (!cd_isa_is_available((cd_isa)isa)) continue;
                for (int special = 0; special < 6; special++) {
                    const float odd = special % 3 == 0 ? 0 : special % 3 == 1 ? INFINITY : NAN;
                    const int64_t numel = sizes[special / 3];
                    cd_test_row("%s, %lld elements, spread %d, instruction set %d, with %g",
                                cddp_dtype_name(dtypes[d]), (long long)numel, spreads[i], isa,
                                (double)odd);
                    assert_true(digest_of(dtypes[d], numel, (cd_isa)isa, spreads[i], odd) ==
                                digest_of(dtypes[d], numel, CD_ISA_PORTABLE, spreads[i], odd));
                }
            }
}

/* One number of many does not fit, the new one or what was there before, or is not finite: first of
** a group or in the odd end, on the way up or back. */
TEST(bins, what_does_not_fit_is_noticed_wherever_it_is)
{
    static const int64_t sizes[] = {1, 7, 8, 9, 15, 16, 17, 31, 255, 256, 257, 384, 385, 403, 600};
    static const float odd[] = {0x1p-60f, INFINITY, NAN};
    cddp_error err = CDDP_ERROR_INIT;
    float x[600];
    for (int i = 0; i < 600; i++) x[i] = (float)(i + 1);
    for (int isa = CD_ISA_PORTABLE; isa < CD_ISA_COUNT; isa++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            cd_bins bins;
            if (!cd_isa_is_available((cd_isa)isa)) continue;
            assert_ok(cd_bins_init(&bins, NULL, CDDP_F32, sizes[s], &err), &err);
            bins.isa = (cd_isa)isa;
            for (int64_t i = 0; i < sizes[s]; i++)
                for (int which = 0; which < 8; which++) {
                    const int before = 1 + which % 2;
                    cd_bins_clear(&bins);
                    if (which >= 6) x[i] = 0x1p-60f;
                    for (int k = 0; k < before; k++) assert_ok(cd_bins_add(&bins, x, &err), &err);
                    assert_false(bins.spilled || bins.special);
                    x[i] = which >= 6 ? (float)(i + 1) : odd[which / 2];
                    assert_ok(cd_bins_add(&bins, x, &err), &err);
                    cd_test_row("instruction set %d, %lld elements, %g at %lld after %d additions",
                                isa, (long long)sizes[s], (double)x[i], (long long)i, before);
                    x[i] = (float)(i + 1);
                    if (which / 2 % 3 == 0)
                        assert_true(bins.spilled && !bins.special);
                    else
                        assert_true(bins.special);
                }
            cd_bins_fini(&bins);
        }
}

/* The same where memory decides what takes least; in one block, in the middle, in the last whole
** group and in the odd end. */
TEST(bins, what_does_not_fit_a_large_array_is_noticed)
{
    enum { LARGE = 1024 * 1024 + 23 };
    static const int64_t places[] = {9, 262144, LARGE - 24, LARGE - 1};
    cddp_error err = CDDP_ERROR_INIT;
    float *x = malloc(LARGE * sizeof *x);
    for (size_t i = 0; i < LARGE; i++) x[i] = (float)(i % 1000 + 1);
    for (int isa = CD_ISA_PORTABLE; isa < CD_ISA_COUNT; isa++)
        for (int p = 0; p < 4; p++) {
            const int before = 1 + p % 2;
            const float old = x[places[p]], odd = p == 1 ? NAN : 0x1p-60f;
            int64_t wrong = 0;
            cd_bins bins;
            if (!cd_isa_is_available((cd_isa)isa)) continue;
            assert_ok(cd_bins_init(&bins, NULL, CDDP_F32, LARGE, &err), &err);
            bins.isa = (cd_isa)isa;
            for (int k = 0; k < before; k++) assert_ok(cd_bins_add(&bins, x, &err), &err);
            for (int64_t i = 0; i < LARGE; i++)
                wrong += bins.high[i] != (double)before * (double)x[i];
            assert_int_equal(wrong, 0);
            assert_false(bins.spilled || bins.special);
            x[places[p]] = odd;
            assert_ok(cd_bins_add(&bins, x, &err), &err);
            x[places[p]] = old;
            cd_test_row("instruction set %d, %g at %lld after %d additions", isa, (double)odd,
                        (long long)places[p], before);
            assert_true(bins.spilled && bins.special == (p == 1));
            for (int64_t i = 0; i < LARGE; i++)
                wrong += i != places[p] && bins.high[i] != (double)(before + 1) * (double)x[i];
            assert_int_equal(wrong, 0);
            cd_bins_fini(&bins);
        }
    free(x);
}

/* A sum of nothing is +0 and one of negative zeros -0, however it was found to be exact. */
TEST(bins, zeros_have_the_sign_of_ieee_addition)
{
    static const float pairs[][2] = {{1, -1},       {-0x1p-149f, 0x1p-149f}, {-0.0f, -0.0f},
                                     {0.0f, -0.0f}, {-0.0f, 0.0f},           {0.0f, 0.0f}};
    static const int64_t sizes[] = {6, 23, 600};
    cddp_error err = CDDP_ERROR_INIT;
    float x[2][600];
    for (size_t i = 0; i < 600; i++)
        for (size_t k = 0; k < 2; k++) x[k][i] = pairs[i % 6][k];
    for (int isa = CD_ISA_PORTABLE; isa < CD_ISA_COUNT; isa++)
        for (size_t s = 0; s < 3; s++) {
            cd_bins bins;
            if (!cd_isa_is_available((cd_isa)isa)) continue;
            assert_ok(cd_bins_init(&bins, NULL, CDDP_F32, sizes[s], &err), &err);
            bins.isa = (cd_isa)isa;
            for (size_t k = 0; k < 2; k++) assert_ok(cd_bins_add(&bins, x[k], &err), &err);
            cd_test_row("instruction set %d, %lld elements", isa, (long long)sizes[s]);
            for (int64_t i = 0; i < sizes[s]; i++)
                assert_true(bins.high[i] == 0 &&
                            signbit(bins.high[i]) == (i % 6 == 2 ? signbit(-1.0) : 0));
            assert_false(bins.spilled);
            cd_bins_fini(&bins);
        }
}

/* Long arrays are added block by block, forwards and backwards; three numbers of one binade fit a
** double. */
TEST(bins, every_block_of_a_long_array_is_added_once)
{
    enum { MANY = 400001 };
    cddp_error err = CDDP_ERROR_INIT;
    float *x = calloc(3 * (size_t)MANY, sizeof *x);
    cd_prng p = cd_prng_seed(3);
    for (size_t i = 0; i < 3 * (size_t)MANY; i++)
        x[i] = (float)cd_prng_between(&p, 1 << 22, 1 << 23) * 0x1p-23f;
    for (int isa = CD_ISA_PORTABLE; isa < CD_ISA_COUNT; isa++) {
        cd_bins bins;
        int64_t wrong = 0;
        if (!cd_isa_is_available((cd_isa)isa)) continue;
        assert_ok(cd_bins_init(&bins, NULL, CDDP_F32, MANY, &err), &err);
        bins.isa = (cd_isa)isa;
        for (size_t k = 0; k < 3; k++) assert_ok(cd_bins_add(&bins, x + k * MANY, &err), &err);
        for (size_t i = 0; i < MANY; i++)
            wrong += bins.high[i] !=
                     (double)x[i] + (double)x[i + MANY] + (double)x[i + 2 * (size_t)MANY];
        cd_test_row("instruction set %d", isa);
        assert_int_equal(wrong, 0);
        assert_false(bins.spilled);
        cd_bins_fini(&bins);
    }
    free(x);
}

/* Sums move over with every addition, by a block or by all of a short array; where they lie
** afterwards is where they are read. */
TEST(bins, short_arrays_and_odd_ends_go_to_and_fro)
{
    static const int64_t sizes[] = {0, 1, 7, 8, 9, 255, 256, 257, 511, 513, 600};
    cddp_error err = CDDP_ERROR_INIT;
    float x[600];
    for (int isa = CD_ISA_PORTABLE; isa < CD_ISA_COUNT; isa++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            cd_bins bins;
            if (!cd_isa_is_available((cd_isa)isa)) continue;
            assert_ok(cd_bins_init(&bins, NULL, CDDP_F32, sizes[s], &err), &err);
            bins.isa = (cd_isa)isa;
            for (int round = 0; round < 2; round++) {
                for (int add = 1; add <= 5; add++) {
                    for (int64_t i = 0; i < sizes[s]; i++) x[i] = (float)(i + add * 1000);
                    assert_ok(cd_bins_add(&bins, x, &err), &err);
                    cd_test_row("instruction set %d, %lld elements, addition %d", isa,
                                (long long)sizes[s], add);
                    for (int64_t i = 0; i < sizes[s]; i++)
                        assert_true(bins.high[i] == (double)(add * i + 500 * add * (add + 1)));
                }
                cd_bins_clear(&bins);
            }
            assert_false(bins.spilled);
            cd_bins_fini(&bins);
        }
}

/* What a cleared one stands for is zero, whatever lies where its sums were; the first addition does
** not look there. */
TEST(bins, nothing_is_left_of_the_window_before)
{
    enum { MANY = 20001 }; /* long enough to be fetched ahead */
    static const cddp_dtype narrow[] = {CDDP_F32, CDDP_F16, CDDP_BF16};
    cddp_error err = CDDP_ERROR_INIT;
    unsigned char *x = calloc(MANY, sizeof(float));
    int32_t *rows = malloc(3 * (size_t)MANY * sizeof *rows);
    for (size_t d = 0; d < 3; d++)
        for (int isa = CD_ISA_PORTABLE; isa < CD_ISA_COUNT; isa++)
            for (int before = 0; before <= 3; before++) {
                const cd_bins_span all = {.first = -1, .last = 0, .special = true};
                const size_t width = cddp_dtype_bytes(narrow[d]);
                int64_t wrong = 0;
                cd_bins bins;
                if (!cd_isa_is_available((cd_isa)isa)) continue;
                cd_test_row("%s, instruction set %d, %d additions before",
                            cddp_dtype_name(narrow[d]), isa, before);
                assert_ok(cd_bins_init(&bins, NULL, narrow[d], MANY, &err), &err);
                bins.isa = (cd_isa)isa;
                cd_element_set(narrow[d], x + 19000 * width, (double)NAN);
                for (int k = 0; k < before; k++) assert_ok(cd_bins_add(&bins, x, &err), &err);
                cd_bins_clear(&bins);
                for (int64_t i = 0; i < MANY; i++) bins.high[i] = i % 2 == 0 ? 77 : (double)NAN;
                const cd_bins_span none = cd_bins_get_span(&bins);
                assert_true(none.first > none.last && !none.special);
                memset(rows, 1, 3 * (size_t)MANY * sizeof *rows);
                cd_bins_encode(&bins, &all, rows, MANY);
                for (int64_t i = 0; i < 3 * (int64_t)MANY; i++) wrong += rows[i] != 0;
                for (int64_t i = 0; i < MANY; i++)
                    cd_element_set(narrow[d], x + (size_t)i * width, (double)(i % 200));
                for (int k = 0; k < 2; k++) assert_ok(cd_bins_add(&bins, x, &err), &err);
                for (int64_t i = 0; i < MANY; i++) wrong += bins.high[i] != 2 * (double)(i % 200);
                assert_int_equal(wrong, 0);
                assert_false(bins.special || bins.spilled);
                cd_bins_fini(&bins);
            }
    free(x);
    free(rows);
}

/* Numbers that are not finite are noticed where they come first. */
TEST(bins, a_window_may_begin_with_a_number_that_is_not_finite)
{
    cddp_error err = CDDP_ERROR_INIT;
    for (int isa = CD_ISA_PORTABLE; isa < CD_ISA_COUNT; isa++)
        for (int place = 0; place < NUMEL; place += 37) {
            float x[NUMEL];
            cd_bins bins;
            if (!cd_isa_is_available((cd_isa)isa)) continue;
            for (int i = 0; i < NUMEL; i++) x[i] = i == place ? -INFINITY : 1;
            cd_test_row("instruction set %d, element %d", isa, place);
            assert_ok(cd_bins_init(&bins, NULL, CDDP_F32, NUMEL, &err), &err);
            bins.isa = (cd_isa)isa;
            assert_ok(cd_bins_add(&bins, x, &err), &err);
            assert_true(bins.special && cd_bins_get_span(&bins).special);
            assert_true(bins.high[place] == -INFINITY && bins.high[place == 0] == 1);
            cd_bins_clear(&bins);
            assert_false(bins.special);
            cd_bins_fini(&bins);
        }
}

static void *allocate_some(void *left, size_t bytes)
{
    return (*(int *)left)-- > 0 ? malloc(bytes) : NULL;
}
static void *resize_never(void *left, void *block, size_t bytes_old, size_t bytes_new)
{
    (void)left, (void)block, (void)bytes_old, (void)bytes_new;
    return NULL;
}
static void release_some(void *left, void *block, size_t bytes)
{
    (void)left, (void)bytes;
    free(block);
}

/* The addition that needs the spill fails; what was there before it is still there, element by
** element, with it or without. */
TEST(bins, without_memory_no_sum_is_lost)
{
    int left = 0;
    const cddp_allocator allocator = {.size = sizeof allocator,
                                      .context = &left,
                                      .allocate = allocate_some,
                                      .resize = resize_never,
                                      .release = release_some};
    float x[NUMEL];
    for (int isa = CD_ISA_PORTABLE; isa < CD_ISA_COUNT; isa++)
        for (int before = 1; before <= 2; before++) { /* so that the failing one goes either way */
            cddp_error err = CDDP_ERROR_INIT;
            cd_bins bins;
            size_t added = 0;
            if (!cd_isa_is_available((cd_isa)isa)) continue;
            left = 2;
            for (int i = 0; i < NUMEL; i++) x[i] = (float)(i + 1);
            assert_ok(cd_bins_init(&bins, &allocator, CDDP_F32, NUMEL, &err), &err);
            bins.isa = (cd_isa)isa;
            for (int k = 0; k < before; k++) assert_ok(cd_bins_add(&bins, x, &err), &err);
            x[300] = 0x1p-60f;
            assert_int_equal(cd_bins_add(&bins, x, &err), CDDP_E_NOMEM);
            cd_test_row("instruction set %d, after %d additions", isa, before);
            for (int i = 0; i < NUMEL; i++) {
                const double old = before * (i + 1);
                assert_true(bins.high[i] == old || (i != 300 && bins.high[i] == old + i + 1));
                added += bins.high[i] != old;
            }
            assert_true(added > 0 && added < NUMEL - 1); /* it failed on the way */
            cd_bins_fini(&bins);
        }
}

/* Whoever watches for rounding around a whole reduction sees what was there before. */
TEST(bins, leave_the_inexact_flag_as_they_found_it)
{
    float values[600];
    cddp_error err = CDDP_ERROR_INIT;
    for (int i = 0; i < 600; i++) values[i] = (float)i;
    for (int isa = CD_ISA_PORTABLE; isa < CD_ISA_COUNT; isa++)
        for (int64_t numel = 16; numel <= 600; numel += 584) { /* a short one and one that is not */
            cd_bins bins;
            if (!cd_isa_is_available((cd_isa)isa)) continue;
            assert_ok(cd_bins_init(&bins, NULL, CDDP_F32, numel, &err), &err);
            bins.isa = (cd_isa)isa;
            for (int which = 0; which < 6; which++) {
                const int raised = which % 2;
                feclearexcept(FE_INEXACT);
                if (raised) feraiseexcept(FE_INEXACT);
                assert_ok(cd_bins_add(&bins, values, &err), &err);
                cd_test_row("instruction set %d, %lld elements, addition %d", isa, (long long)numel,
                            which);
                assert_int_equal(fetestexcept(FE_INEXACT) != 0, raised);
            }
            cd_bins_fini(&bins);
        }
    feclearexcept(FE_INEXACT);
}

TEST(bins, ends_of_the_range_are_exact)
{
    float most = 0x1.fffffep127f, least = 0x1p-149f;
    assert_true(mean_of((float[]){most, most, most}, 3, 3) == most);    /* a plain sum overflows */
    assert_true(mean_of((float[]){most, least, -most}, 3, 1) == least); /* a plain sum loses it */
    /* a plain division first loses all */
    assert_true(mean_of((float[]){least, least, least}, 3, 3) == least);
    assert_true(mean_of((float[]){least, 0, 0}, 3, 2) == 0.0f); /* a tie goes to even */
    assert_true(mean_of((float[]){3 * least, 0, 0}, 3, 2) == 2 * least);
    assert_true(mean_of((float[]){most, most, 0}, 3, 1) == INFINITY);
    assert_true(mean_of((float[]){0x1p100f, 1, -0x1p100f, 0x1p-100f}, 4, 1) == 1.0f);
    assert_true(mean_of((float[]){0x1p-100f, 0x1p24f, 1, 0}, 4, 1) ==
                0x1.000002p24f); /* above the tie by far less than a double holds */
    assert_true(mean_of((float[]){0, 0x1p24f, 1, 0}, 4, 1) == 0x1p24f);
}

TEST_MAIN()
