/* SPDX-License-Identifier: Apache-2.0 */
/* Our transcendental functions against the long double ones of the platform: within 2 ulp over the
** whole range. f64 is sampled by bit pattern (every exponent is as likely as another) and densely
** where functions bend; f32 is swept with a stride over all of its patterns. */
#include "core/base/prng.h"
#include "core/tensor/dtype.h"
#include "core/tensor/math.h"
#include "tests/support/test.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

static long double reference_sigmoid(long double x) { return 1 / (1 + expl(-x)); }

static long double sine_of_turns(long double x, int shift)
{
    /* Exact reduction, then the quarter that keeps the argument small. */
    long double rest = fmodl(x, 2), n = rintl(2 * rest),
                t = (rest - n / 2) * 3.14159265358979323846264338327950288L;
    int quarter = ((int)n + shift + 8) % 4;
    long double value = quarter % 2 == 0 ? sinl(t) : cosl(t);
    return quarter >= 2 ? -value : value;
}
static long double reference_sinpi(long double x) { return sine_of_turns(x, 0); }
static long double reference_cospi(long double x) { return sine_of_turns(x, 1); }

typedef struct function {
    const char *name;
    double (*f64)(double);
    float (*f32)(float);
    long double (*reference)(long double);
    double low, high; /* where it bends: sampled densely */
} function;

static const function functions[] = {
    {"exp", cd_exp, cd_exp_f32, expl, -746, 710},
    {"expm1", cd_expm1, cd_expm1_f32, expm1l, -40, 40},
    {"log", cd_log, cd_log_f32, logl, 0.5, 2},
    {"log1p", cd_log1p, cd_log1p_f32, log1pl, -1, 2},
    {"tanh", cd_tanh, cd_tanh_f32, tanhl, -3, 3},
    {"sigmoid", cd_sigmoid, cd_sigmoid_f32, reference_sigmoid, -746, 40},
    {"erf", cd_erf, cd_erf_f32, erfl, -6.5, 6.5},
    {"sinpi", cd_sinpi, cd_sinpi_f32, reference_sinpi, -2.5, 2.5},
    {"cospi", cd_cospi, cd_cospi_f32, reference_cospi, -2.5, 2.5},
};
#define FUNCTION_COUNT (sizeof functions / sizeof functions[0])

/* Distance from the true value in units of the last place of the nearest double. */
static double ulps(double got, long double wanted, int precision, int exponent_min)
{
    if (isnan(wanted)) return isnan(got) ? 0 : INFINITY;
    int exponent;
    frexpl(wanted, &exponent);
    if (exponent < exponent_min) exponent = exponent_min;
    long double ulp = ldexpl(1, exponent - precision);
    long double largest = precision == 53 ? (long double)DBL_MAX : (long double)FLT_MAX;
    if (isinf(got)) return (fabsl(wanted) >= largest && (wanted > 0) == (got > 0)) ? 0 : INFINITY;
    if (isinf(wanted)) return INFINITY;
    return (double)(fabsl((long double)got - wanted) / ulp);
}

static double worst_f64(const function *f, double x, double worst)
{
    double error = ulps(f->f64(x), f->reference((long double)x), 53, -1021);
    if (!(error <= 2)) {
        print_error("%s(%a) = %a, true %La: %g ulp\n", f->name, x, f->f64(x),
                    f->reference((long double)x), error);
        fail();
    }
    return error > worst ? error : worst;
}

static void require_long_double(void)
{
    if (LDBL_MANT_DIG < 64) cd_test_skip_all("long double is no wider than double here");
}

TEST(math, f64_functions_stay_within_two_ulp)
{
    require_long_double();
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (size_t i = 0; i < FUNCTION_COUNT; i++) {
        const function *f = &functions[i];
        double worst = 0;
        cd_test_row("%s", f->name);
        for (int n = 0; n < 60000; n++) {
            worst = worst_f64(f, cd_f64_of_bits(cd_prng_next(&prng)), worst); /* any pattern */
            double t = (double)(cd_prng_next(&prng) >> 11) * 0x1p-53;
            worst = worst_f64(f, f->low + (f->high - f->low) * t, worst);
            worst = worst_f64(f, (t - 0.5) * 0x1p-3, worst);
        }
        printf("%-8s f64 worst %.3f ulp\n", f->name, worst);
    }
}

TEST(math, f32_functions_stay_within_two_ulp_over_all_patterns_by_stride)
{
    require_long_double();
    for (size_t i = 0; i < FUNCTION_COUNT; i++) {
        const function *f = &functions[i];
        double worst = 0;
        cd_test_row("%s", f->name);
        for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 21701) {
            float x = cd_f32_of_bits((uint32_t)bits), got = f->f32(x);
            double error = ulps((double)got, f->reference((long double)x), 24, -125);
            if (!(error <= 0.501))
                print_error("%s(%a) = %a: %g ulp\n", f->name, (double)x, (double)got, error);
            assert_true(error <= 0.501);
            worst = error > worst ? error : worst;
        }
        printf("%-8s f32 worst %.4f ulp\n", f->name, worst);
    }
}

TEST(math, edges_are_what_annex_f_says)
{
    const double tiny = 0x1p-1074;
    assert_true(cd_exp(0) == 1 && cd_exp(-INFINITY) == 0 && cd_exp(INFINITY) == INFINITY &&
                isnan(cd_exp(NAN)));
    assert_true(cd_exp(709.78) < INFINITY && cd_exp(709.79) == INFINITY);
    assert_true(cd_exp(-745.13) == tiny && cd_exp(-745.14) == 0);
    assert_true(cd_log(1) == 0 && cd_log(0) == -INFINITY && isnan(cd_log(-1)) &&
                cd_log(INFINITY) == INFINITY);
    assert_true(cd_log1p(-1) == -INFINITY && isnan(cd_log1p(-1.5)) && signbit(cd_log1p(-0.0)) &&
                cd_log1p(tiny) == tiny);
    assert_true(cd_expm1(-INFINITY) == -1 && cd_expm1(INFINITY) == INFINITY &&
                signbit(cd_expm1(-0.0)));
    assert_true(cd_tanh(INFINITY) == 1 && cd_tanh(-INFINITY) == -1 && signbit(cd_tanh(-0.0)) &&
                cd_tanh(tiny) == tiny);
    assert_true(cd_sigmoid(0) == 0.5 && cd_sigmoid(INFINITY) == 1 && cd_sigmoid(-INFINITY) == 0);
    assert_true(cd_erf(INFINITY) == 1 && cd_erf(-INFINITY) == -1 && cd_erf(0) == 0 &&
                signbit(cd_erf(-0.0)));
    assert_true(signbit(cd_sinpi(-0.0)) && cd_sinpi(1) == 0 && cd_sinpi(0.5) == 1 &&
                cd_sinpi(1e300) == 0 && isnan(cd_sinpi(INFINITY)));
    assert_true(cd_cospi(1) == -1 && cd_cospi(0.5) == 0 && cd_cospi(0x1p60) == 1 &&
                isnan(cd_cospi(NAN)));
}

TEST(math, odd_functions_are_odd_and_cosine_is_even)
{
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (int n = 0; n < 5000; n++) {
        double x = cd_f64_of_bits(cd_prng_next(&prng));
        if (isnan(x) || isinf(x)) continue;
        assert_true(cd_tanh(-x) == -cd_tanh(x));
        assert_true(cd_erf(-x) == -cd_erf(x));
        assert_true(cd_sinpi(-x) == -cd_sinpi(x));
        assert_true(cd_cospi(-x) == cd_cospi(x));
    }
}

TEST(math, integer_powers_stay_within_one_ulp)
{
    require_long_double();
    static const double bases[] = {0.9,  0.999, 0.5, -0.9, 1.0000001, 3, -7, 0x1.fffffffffffffp-1,
                                   1e-5, 1e10};
    for (size_t b = 0; b < sizeof bases / sizeof bases[0]; b++)
        for (uint64_t n = 0; n < 3000; n = n < 20 ? n + 1 : n + n / 7) {
            /* Each step of the reference is rounded to 64 bits: n of them stay below n/2048 ulp of
            ** a double. */
            long double wanted = powl((long double)bases[b], (long double)n);
            double got = cd_powi(bases[b], n), error = ulps(got, wanted, 53, -1021);
            cd_test_row("%g^%llu", bases[b], (unsigned long long)n);
            assert_true(error <= 1);
        }
    assert_true(cd_powi(0, 0) == 1 && cd_powi(0, 5) == 0 && signbit(cd_powi(-0.0, 3)) &&
                !signbit(cd_powi(-0.0, 4)));
    assert_true(cd_powi(10, 400) == INFINITY && cd_powi(-10, 401) == -INFINITY &&
                cd_powi(10, 308) < INFINITY);
    assert_true(cd_powi(0.5, 1074) == 0x1p-1074 && cd_powi(0.5, 1080) == 0 &&
                isnan(cd_powi(NAN, 2)));
    assert_true(cd_powi(1, UINT64_C(1) << 39) == 1);
}

TEST_MAIN()
