/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions against an independent model: the target's neighbours are found by arithmetic in long
** double, not by bit manipulation, and the nearer one (the even one of two) is what must come
** out. */
#include "core/base/prng.h"
#include "core/tensor/dtype.h"
#include "tests/support/test.h"

#include <math.h>

typedef struct format {
    const char *name;
    cddp_dtype dtype;
    int fraction_bits, exponent_min, exponent_max; /* of normal numbers 1.f × 2^e */
} format;

static const format formats[] = {{"f16", CDDP_F16, 10, -14, 15}, {"bf16", CDDP_BF16, 7, -126, 127}};

/* The value of a pattern, from the definition of the format. */
static double model_value(const format *f, uint16_t bits)
{
    int exponent_bits = 15 - f->fraction_bits;
    int field = bits >> f->fraction_bits & ((1 << exponent_bits) - 1),
        fraction = bits & ((1 << f->fraction_bits) - 1);
    double sign = bits & 0x8000 ? -1 : 1;
    if (field == (1 << exponent_bits) - 1) return fraction != 0 ? NAN : sign * INFINITY;
    if (field == 0) return sign * ldexp(fraction, f->exponent_min - f->fraction_bits);
    return sign *
           ldexp(fraction + (1 << f->fraction_bits), field - f->exponent_max - f->fraction_bits);
}

/* The pattern nearest to x, ties to the even one. */
static uint16_t model_round(const format *f, double x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double size = fabs(x);
    int exponent;
    frexp(size, &exponent);
    exponent--;
    if (size == 0 || exponent < f->exponent_min) exponent = f->exponent_min;
    if (isinf(size) || exponent > f->exponent_max)
        return (uint16_t)(sign | ((1 << (15 - f->fraction_bits)) - 1) << f->fraction_bits);
    /* Exact in long double: at most 53 bits minus the grid's exponent. rintl rounds ties to
    ** even. */
    long double steps = rintl(ldexpl((long double)size, f->fraction_bits - exponent));
    long count = (long)steps + ((long)(exponent - f->exponent_min) << f->fraction_bits);
    return (uint16_t)(sign | count); /* a carry runs into the exponent, as it should */
}

static uint16_t round_f32(const format *f, float x)
{
    return f->dtype == CDDP_F16 ? cd_f32_to_f16(x) : cd_f32_to_bf16(x);
}
static float widen(const format *f, uint16_t h)
{
    return f->dtype == CDDP_F16 ? cd_f16_to_f32(h) : cd_bf16_to_f32(h);
}
static uint16_t round_f64(const format *f, double x)
{
    return f->dtype == CDDP_F16 ? cd_f64_to_f16(x) : cd_f64_to_bf16(x);
}

TEST(dtype, all_65536_patterns_widen_exactly_and_come_back)
{
    for (size_t i = 0; i < 2; i++)
        for (uint32_t h = 0; h <= UINT16_MAX; h++) {
            const format *f = &formats[i];
            double wanted = model_value(f, (uint16_t)h);
            float got = widen(f, (uint16_t)h);
            cd_test_row("%s %04x", f->name, h);
            if (isnan(wanted)) {
                uint16_t quiet = (uint16_t)(h | 1u << (f->fraction_bits - 1));
                assert_true(isnan(got));
                assert_int_equal(round_f32(f, got), quiet); /* sign and payload kept, made quiet */
                continue;
            }
            assert_true((double)got == wanted && !signbit((double)got) == !signbit(wanted));
            assert_int_equal(round_f32(f, got), h);
            assert_int_equal(round_f64(f, wanted), h);
        }
}

TEST(dtype, arrays_have_the_bits_of_the_scalar_functions)
{
    enum { COUNT = 1 << 16 };
    static uint16_t narrow[COUNT], back[COUNT];
    static float wide[COUNT];
    for (uint32_t h = 0; h < COUNT; h++) narrow[h] = (uint16_t)h;
    cd_convert_f16_to_f32(wide, narrow, COUNT);
    for (uint32_t h = 0; h < COUNT; h++)
        assert_int_equal(cd_f32_bits(wide[h]), cd_f32_bits(cd_f16_to_f32(narrow[h])));
    cd_convert_bf16_to_f32(wide, narrow, COUNT);
    for (uint32_t h = 0; h < COUNT; h++)
        assert_int_equal(cd_f32_bits(wide[h]), cd_f32_bits(cd_bf16_to_f32(narrow[h])));
    for (uint64_t start = 0; start <= UINT32_MAX; start += (uint64_t)COUNT * 251) {
        for (uint32_t i = 0; i < COUNT; i++) wide[i] = cd_f32_of_bits((uint32_t)(start + i * 251u));
        cd_convert_f32_to_f16(back, wide, COUNT);
        for (uint32_t i = 0; i < COUNT; i++) assert_int_equal(back[i], cd_f32_to_f16(wide[i]));
        cd_convert_f32_to_bf16(back, wide, COUNT - 3); /* not a multiple of any vector */
        for (uint32_t i = 0; i < COUNT - 3; i++) assert_int_equal(back[i], cd_f32_to_bf16(wide[i]));
    }
}

/* ---- NaN: the sign and the upper payload bits stay, and it is quiet ---- */

/* Any NaN with this sign and payload: the `from_bits` bits of a fraction, of which a format with
** fraction_bits keeps the upper ones, or to which it adds zeros below. */
static uint64_t model_nan(bool sign, uint64_t payload, int from_bits, int exponent_bits,
                          int fraction_bits)
{
    uint64_t kept = fraction_bits < from_bits ? payload >> (from_bits - fraction_bits)
                                              : payload << (fraction_bits - from_bits);
    uint64_t special = ((UINT64_C(1) << exponent_bits) - 1) << fraction_bits,
             quiet = UINT64_C(1) << (fraction_bits - 1);
    return (uint64_t)sign << (exponent_bits + fraction_bits) | special | quiet | kept;
}

static uint16_t model_nan_of_f32(const format *f, uint32_t bits)
{
    return (uint16_t)model_nan(bits >> 31 != 0, bits & 0x7fffff, 23, 15 - f->fraction_bits,
                               f->fraction_bits);
}

TEST(dtype, a_nan_widens_with_its_sign_and_payload)
{
    for (size_t i = 0; i < 2; i++)
        for (uint32_t h = 0; h <= UINT16_MAX; h++) {
            const format *f = &formats[i];
            if (!isnan(model_value(f, (uint16_t)h))) continue;
            const uint64_t payload = h & ((1u << f->fraction_bits) - 1);
            double wide;
            float single;
            cd_test_row("%s %04x", f->name, h);
            assert_int_equal(cd_f32_bits(widen(f, (uint16_t)h)),
                             model_nan(h >> 15 != 0, payload, f->fraction_bits, 8, 23));
            cd_convert(CDDP_F64, &wide, f->dtype, &(uint16_t){(uint16_t)h}, 1);
            assert_true(cd_f64_bits(wide) ==
                        model_nan(h >> 15 != 0, payload, f->fraction_bits, 11, 52));
            cd_convert(CDDP_F32, &single, f->dtype, &(uint16_t){(uint16_t)h}, 1);
            assert_int_equal(cd_f32_bits(single), cd_f32_bits(widen(f, (uint16_t)h)));
        }
}

/* Payloads of f64: each bit alone, all, and drawn ones; of those that are lost below, the NaN stays
** one. */
TEST(dtype, a_nan_of_f64_narrows_with_its_sign_and_upper_payload)
{
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (int n = 0; n < 53 + 20000; n++) {
        const bool sign = n % 2 == 1;
        uint64_t payload = n < 52    ? UINT64_C(1) << n
                           : n == 52 ? (UINT64_C(1) << 52) - 1
                                     : cd_prng_next(&prng) >> 12;
        if (payload == 0) payload = 1;
        const double x = cd_f64_of_bits((uint64_t)sign << 63 | UINT64_C(0x7ff) << 52 | payload);
        float single;
        cd_test_row("payload %013llx", (unsigned long long)payload);
        cd_convert(CDDP_F32, &single, CDDP_F64, &x, 1);
        assert_int_equal(cd_f32_bits(single), model_nan(sign, payload, 52, 8, 23));
        for (size_t i = 0; i < 2; i++)
            assert_int_equal(round_f64(&formats[i], x),
                             model_nan(sign, payload, 52, 15 - formats[i].fraction_bits,
                                       formats[i].fraction_bits));
    }
}

/* All payloads of f32, through the arrays: eight and more at a time where the processor converts
** them itself. */
TEST(dtype, every_nan_of_f32_narrows_with_its_sign_and_upper_payload)
{
    enum { COUNT = 1 << 12 };
    static float wide[COUNT];
    static uint16_t narrow[2][COUNT];
    for (uint32_t first = 0; first <= 0x7fffff; first += COUNT)
        for (uint32_t sign = 0; sign < 2; sign++) {
            for (uint32_t i = 0; i < COUNT; i++)
                wide[i] =
                    cd_f32_of_bits(sign << 31 | 0x7f800000u | (first + i > 0 ? first + i : 1));
            cd_convert_f32_to_f16(narrow[0], wide, COUNT);
            cd_convert_f32_to_bf16(narrow[1], wide, COUNT);
            for (uint32_t i = 0; i < COUNT; i++)
                for (size_t k = 0; k < 2; k++)
                    if (narrow[k][i] != model_nan_of_f32(&formats[k], cd_f32_bits(wide[i])))
                        fail_msg("%s of %08x is %04x", formats[k].name, cd_f32_bits(wide[i]),
                                 narrow[k][i]);
        }
}

static void check_f32(const format *f, uint32_t bits)
{
    float x = cd_f32_of_bits(bits);
    uint16_t got = round_f32(f, x);
    if (isnan(x)) {
        assert_int_equal(got, model_nan_of_f32(f, bits));
        return;
    }
    if (got != model_round(f, (double)x)) print_error("%s of %a\n", f->name, (double)x);
    assert_int_equal(got, model_round(f, (double)x));
}

TEST(dtype, f32_rounds_to_nearest_even)
{
    for (size_t i = 0; i < 2; i++) {
        for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 1021)
            check_f32(&formats[i], (uint32_t)bits);
        /* Around every representable value and every midpoint: ties, and one bit on each side of
        ** them. */
        for (uint32_t h = 0; h < 0x8000; h += 3)
            for (int32_t around = -1; around <= 1; around++) {
                uint32_t half = formats[i].dtype == CDDP_F16 ? 1u << 12 : 1u << 15;
                uint32_t bits = cd_f32_bits(widen(&formats[i], (uint16_t)h)) + (uint32_t)around;
                check_f32(&formats[i], bits);
                check_f32(&formats[i], bits + half);
                check_f32(&formats[i], (bits + half) | 0x80000000u);
            }
    }
}

TEST(dtype, edges_of_f16_are_where_they_should_be)
{
    static const struct {
        const char *name;
        float x;
        uint16_t h;
    } cases[] = {{"largest", 65504, 0x7bff},
                 {"just below the tie to infinity", 65519.996f, 0x7bff},
                 {"the tie goes to infinity", 65520, 0x7c00},
                 {"smallest normal", 0x1p-14f, 0x0400},
                 {"largest subnormal", 0x1.ff8p-15f, 0x03ff},
                 {"smallest subnormal", 0x1p-24f, 0x0001},
                 {"half of it ties to zero", 0x1p-25f, 0x0000},
                 {"just above half of it", 0x1.000002p-25f, 0x0001},
                 {"minus zero", -0.0f, 0x8000},
                 {"tie to even below", 2049, 0x6800},
                 {"tie to even above", 2051, 0x6802}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%s", cases[i].name);
        assert_int_equal(cd_f32_to_f16(cases[i].x), cases[i].h);
    }
}

TEST(dtype, f64_is_rounded_once_not_through_f32)
{
    /* Just above a tie of the target; f32 would round it onto the tie, and the tie to even then
    ** goes down. */
    assert_int_equal(cd_f64_to_f16(1 + 0x1p-11 + 0x1p-40), 0x3c01);
    assert_int_equal(cd_f32_to_f16((float)(1 + 0x1p-11 + 0x1p-40)), 0x3c00);
    assert_int_equal(cd_f64_to_bf16(1 + 0x1p-8 + 0x1p-40), 0x3f81);
    assert_int_equal(cd_f64_to_f16(0x1p-25 + 0x1p-60), 0x0001);
    assert_int_equal(cd_f64_to_f16(1e300), 0x7c00);
    assert_int_equal(cd_f64_to_bf16(-1e300), 0xff80);
    assert_int_equal(cd_f64_to_bf16(3.397e38), 0x7f80);
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (int n = 0; n < 200000; n++) {
        /* Exponents around the range of the targets. */
        int exponent = (int)cd_prng_between(&prng, -150, 130);
        double x = ldexp((double)(cd_prng_next(&prng) >> 11) * 0x1p-53 + 0x1p-54, exponent);
        if (cd_prng_chance(&prng, 1, 2)) x = -x;
        for (size_t i = 0; i < 2; i++)
            assert_int_equal(round_f64(&formats[i], x), model_round(&formats[i], x));
    }
}

TEST(dtype, integers_round_once_too)
{
    /* bf16: 2^60 (1 + 2^-8 + a little) */
    const int64_t tie_and_more = (INT64_C(1) << 60) + (INT64_C(1) << 52) + 1;
    uint16_t h;
    float f;
    cd_convert(CDDP_BF16, &h, CDDP_I64, &tie_and_more, 1);
    assert_int_equal(h, cd_f32_to_bf16(0x1.02p60f));
    cd_convert(CDDP_F32, &f, CDDP_I64, &(int64_t){(1 << 24) + 1}, 1);
    assert_true(f == 0x1p24f);
    cd_convert(CDDP_F16, &h, CDDP_I32, &(int32_t){-2049}, 1);
    assert_int_equal(h, 0xe800);
}

TEST(dtype, floats_become_integers_by_truncation_and_saturation)
{
    static const struct {
        const char *name;
        double x;
        int64_t i64;
        int32_t i32;
        uint8_t u8;
    } cases[] = {{"down", 2.9, 2, 2, 2},
                 {"toward zero", -2.9, -2, -2, 0},
                 {"nan", NAN, 0, 0, 0},
                 {"huge", 1e30, INT64_MAX, INT32_MAX, 255},
                 {"minus infinity", -INFINITY, INT64_MIN, INT32_MIN, 0},
                 {"2^31", 0x1p31, INT64_C(1) << 31, INT32_MAX, 255},
                 {"256", 256, 256, 256, 255}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t i64;
        int32_t i32;
        uint8_t u8;
        cd_test_row("%s", cases[i].name);
        cd_convert(CDDP_I64, &i64, CDDP_F64, &cases[i].x, 1);
        cd_convert(CDDP_I32, &i32, CDDP_F64, &cases[i].x, 1);
        cd_convert(CDDP_U8, &u8, CDDP_F64, &cases[i].x, 1);
        assert_true(i64 == cases[i].i64 && i32 == cases[i].i32 && u8 == cases[i].u8);
    }
}

TEST(dtype, every_pair_of_dtypes_agrees_on_small_numbers)
{
    /* 0 … 100 is exact in every dtype, so that any way round must come back. 300 is more than one
    ** chunk. */
    enum { COUNT = 300 };
    for (int a = 0; a < CDDP_DTYPE_COUNT; a++)
        for (int b = 0; b < CDDP_DTYPE_COUNT; b++) {
            double wide[COUNT], back[COUNT];
            unsigned char x[COUNT * 8], y[COUNT * 8];
            for (int i = 0; i < COUNT; i++) wide[i] = i % 101;
            cd_test_row("%s → %s", cddp_dtype_name((cddp_dtype)a), cddp_dtype_name((cddp_dtype)b));
            cd_convert((cddp_dtype)a, x, CDDP_F64, wide, COUNT);
            cd_convert((cddp_dtype)b, y, (cddp_dtype)a, x, COUNT);
            cd_convert(CDDP_F64, back, (cddp_dtype)b, y, COUNT);
            for (int i = 0; i < COUNT; i++) assert_true(back[i] == wide[i]);
        }
}

TEST_MAIN()
