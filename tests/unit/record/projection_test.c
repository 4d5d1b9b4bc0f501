/* SPDX-License-Identifier: Apache-2.0 */
/* Projections have the same bits on every processor: eight sums in turn, by blocks of 1024. */
#include "core/base/prng.h"
#include "record/projection.h"
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

enum { ELEMENTS_MAX = 3 * CD_PROJECTION_BLOCK_ELEMENTS + 5, LANES = 8 };

/* As the definition has it, an element at a time. */
static cd_projection slowly(const double *x, int64_t count)
{
    cd_projection all = {0};
    for (int64_t begin = 0; begin < count; begin += CD_PROJECTION_BLOCK_ELEMENTS) {
        const int64_t left = count - begin;
        const int64_t size =
            left < CD_PROJECTION_BLOCK_ELEMENTS ? left : CD_PROJECTION_BLOCK_ELEMENTS;
        double sums[LANES] = {0}, magnitudes[LANES] = {0}, sum = 0, magnitude = 0;
        for (int64_t i = 0; i < size; i++) {
            const int64_t lane = i < size / LANES * LANES ? i % LANES : 0;
            const double term = x[begin + i] * cd_projection_weight((uint32_t)i);
            sums[lane] += term;
            magnitudes[lane] += fabs(term);
        }
        for (int k = 0; k < LANES; k++) {
            sum += sums[k];
            magnitude += magnitudes[k];
        }
        const double weight =
            cd_projection_weight((uint32_t)(begin / CD_PROJECTION_BLOCK_ELEMENTS) + 7);
        all.sum += weight * sum;
        all.magnitude += weight * magnitude;
    }
    return all;
}

TEST(projection, has_the_bits_of_its_definition_for_every_count)
{
    static const int64_t counts[] = {0,  1,  7,    8,    9,    15,   16,          31,
                                     32, 33, 1023, 1024, 1025, 2047, ELEMENTS_MAX};
    static float single[ELEMENTS_MAX];
    static double exact[ELEMENTS_MAX], of_single[ELEMENTS_MAX];
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (int i = 0; i < ELEMENTS_MAX; i++) {
        const double unit = (double)(cd_prng_next(&prng) >> 11) * 0x1p-53;
        exact[i] = ldexp(unit - 0.5, (int)(cd_prng_next(&prng) % 40) - 20);
        single[i] = (float)exact[i];
        of_single[i] = (double)single[i];
    }
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        const cd_projection wanted[] = {slowly(of_single, counts[c]), slowly(exact, counts[c])};
        cd_projection found[2];
        assert_true(cd_projection_of(single, counts[c], CDDP_F32, &found[0]));
        assert_true(cd_projection_of(exact, counts[c], CDDP_F64, &found[1]));
        assert_memory_equal(found, wanted, sizeof found);
    }
}

TEST(projection, shows_what_is_not_finite)
{
    float x[19] = {0};
    cd_projection p;
    for (int at = 0; at < 19; at++) {
        x[at] = at % 2 == 0 ? NAN : INFINITY;
        assert_true(cd_projection_of(x, 19, CDDP_F32, &p));
        assert_true(!isfinite(p.magnitude));
        x[at] = 0;
    }
    assert_true(cd_projection_of(x, 19, CDDP_F32, &p));
    assert_true(p.magnitude == 0);
}

TEST_MAIN()
