/* SPDX-License-Identifier: Apache-2.0 */
/* A mean that rounds in 16 bits prefers neither side; one that is a little too large does. */
#include "core/base/prng.h"
#include "core/tensor/dtype.h"
#include "record/roundings.h"
#include "tests/support/test.h"

#include <math.h>

enum { ELEMENTS = 5000, RANKS_MAX = 8 };

static double rounded(cddp_dtype dtype, double x)
{
    unsigned char bytes[8];
    cd_element_set(dtype, bytes, x);
    return cd_element_get(dtype, bytes);
}

/* Gradients that agree more or less, of sizes that differ. */
static void draw(float *gradients, uint32_t ranks, cd_prng *prng)
{
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        const double common = ldexp((double)(cd_prng_next(prng) >> 11) * 0x1p-53 - 0.5,
                                    (int)(cd_prng_next(prng) % 6));
        for (uint32_t r = 0; r < ranks; r++) {
            const double own = (double)(cd_prng_next(prng) >> 11) * 0x1p-53 - 0.5;
            gradients[r * ELEMENTS + i] = (float)(common + 0.2 * own);
        }
    }
}

/* As a hook does that casts, divides and adds up in this dtype. */
static void average(const float *gradients, uint32_t ranks, cddp_dtype dtype, double factor,
                    float *mean)
{
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        double sum = 0;
        for (uint32_t r = 0; r < ranks; r++) {
            const double cast = rounded(dtype, (double)gradients[r * ELEMENTS + i]);
            sum = rounded(dtype, sum + rounded(dtype, cast / ranks));
        }
        mean[i] = (float)(factor * sum);
    }
}

/* How far the ranks together are off, in bounds. */
static double distance(float *gradients, uint32_t ranks, cddp_dtype dtype, float *mean)
{
    const int64_t count = ELEMENTS;
    const double unit = dtype == CDDP_F16 ? 0x1p-11 : 0x1p-8;
    double given = 0, got = 0, bound = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        cd_roundings x = {.drawn = NULL};
        const cddp_tensor local = cddp_tensor_of(cddp_device_cpu(), gradients, r * count, CDDP_F32,
                                                 &count, 1),
                          result = cddp_tensor_of(cddp_device_cpu(), mean, 0, CDDP_F32, &count, 1);
        cd_roundings_begin(&x);
        cd_roundings_add(&x, &local, &result);
        assert_int_equal(x.seen, CD_ROUNDINGS_MAX);
        given += x.given / ranks;
        got += x.got / ranks;
        bound += cd_roundings_bound(&x, ranks, unit, 0);
        cd_roundings_fini(&x);
    }
    return fabs(given - got) / bound;
}

TEST(roundings, of_a_right_mean_are_within_their_bound_and_a_ratio_is_not)
{
    static const uint32_t worlds[] = {2, 3, 5, RANKS_MAX};
    static float gradients[RANKS_MAX * ELEMENTS], mean[ELEMENTS];
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
        for (int half = 0; half < 2; half++) {
            const cddp_dtype dtype = half ? CDDP_F16 : CDDP_BF16;
            draw(gradients, worlds[w], &prng);
            average(gradients, worlds[w], dtype, 1, mean);
            assert_true(distance(gradients, worlds[w], dtype, mean) < 0.5);
            average(gradients, worlds[w], dtype, half ? 1.001 : 1.008, mean);
            assert_true(distance(gradients, worlds[w], dtype, mean) > 1);
        }
    }
}

TEST(roundings, of_equal_elements_or_gradients_that_cancel_say_nothing)
{
    static float gradients[2 * ELEMENTS], mean[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++) gradients[i] = gradients[ELEMENTS + i] = 0.1F;
    average(gradients, 2, CDDP_BF16, 1, mean);
    assert_true(distance(gradients, 2, CDDP_BF16, mean) == 0);
    cd_prng prng = cd_prng_seed(cd_test_seed());
    draw(gradients, 1, &prng);
    for (int i = 0; i < ELEMENTS; i++)
        gradients[ELEMENTS + i] = -gradients[i] + (i % 2 == 0 ? 1e-5F : 0);
    average(gradients, 2, CDDP_BF16, 1, mean);
    assert_true(distance(gradients, 2, CDDP_BF16, mean) == 0);
}

TEST_MAIN()
