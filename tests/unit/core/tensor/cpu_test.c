/* SPDX-License-Identifier: Apache-2.0 */
/* The cpu device: the golden bits of division, every operation on every layout, storage,
** refusals. */
#include "core/base/alloc.h"
#include "core/base/prng.h"
#include "core/tensor/cpu.h"
#include "core/tensor/dtype.h"
#include "tests/unit/core/tensor/fixture.h"

#include <math.h>

static const cddp_device *cpu(void) { return cddp_device_cpu(); }

/* ---- division (GRD-03, GRD-04, GRD-05) ---- */

static float one_f32(float x, int64_t n, cddp_copy_scale scale)
{
    fixture f = FIXTURE_INIT;
    cddp_tensor src = fixture_make(&f, cpu(), CDDP_F32, SIZES(1)),
                dst = fixture_make(&f, cpu(), CDDP_F32, SIZES(1));
    float y;
    fixture_write(&f, &src, &x);
    assert_ok(cpu()->copy_many(cpu(), &(cddp_copy_pair){dst, src}, 1, scale, n, NULL, &f.err),
              &f.err);
    fixture_read(&f, &dst, &y);
    fixture_fini(&f);
    return y;
}

TEST(cpu, division_has_the_golden_bits_of_both_paths)
{
    static const struct {
        const char *name;
        float x;
        int64_t n;
        uint32_t multiplied, divided;
    } cases[] = {{"5/3", 5, 3, 0x3fd55556, 0x3fd55555},  {"7/3", 7, 3, 0x40155556, 0x40155555},
                 {"1/3", 1, 3, 0x3eaaaaab, 0x3eaaaaab},  {"1/5", 1, 5, 0x3e4ccccd, 0x3e4ccccd},
                 {"1/6", 1, 6, 0x3e2aaaab, 0x3e2aaaab},  {"1/7", 1, 7, 0x3e124925, 0x3e124925},
                 {"1/10", 1, 10, 0x3dcccccd, 0x3dcccccd}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%s", cases[i].name);
        assert_int_equal(cd_f32_bits(one_f32(cases[i].x, cases[i].n, CDDP_COPY_MULTIPLY)),
                         cases[i].multiplied);
        assert_int_equal(cd_f32_bits(one_f32(cases[i].x, cases[i].n, CDDP_COPY_DIVIDE)),
                         cases[i].divided);
    }
}

/* Three ranks contribute 7.0, each multiplied by the reciprocal of 3, then summed. */
static double three_sevens(cddp_dtype dtype)
{
    fixture f = FIXTURE_INIT;
    cddp_tensor grad = fixture_make(&f, cpu(), dtype, SIZES(1)),
                one = fixture_make(&f, cpu(), dtype, SIZES(1));
    cddp_tensor sum = fixture_make(&f, cpu(), dtype, SIZES(1));
    unsigned char value[8];
    assert_ok(cpu()->fill(&grad, 7, NULL, &f.err), &f.err);
    assert_ok(cpu()->fill(&sum, 0, NULL, &f.err), &f.err);
    for (int rank = 0; rank < 3; rank++) {
        assert_ok(cpu()->multiply_reciprocal(&one, &grad, 3, NULL, &f.err), &f.err);
        assert_ok(cpu()->reduce(CDDP_RED_SUM, &sum, &one, NULL, &f.err), &f.err);
    }
    fixture_read(&f, &sum, value);
    fixture_fini(&f);
    return cd_element_get(dtype, value);
}

TEST(cpu, three_sevens_divided_by_three_are_the_observed_numbers)
{
    assert_int_equal(cd_f32_bits((float)three_sevens(CDDP_F32)), 0x40e00001);
    assert_true(three_sevens(CDDP_F64) == 6.999999999999999);
    assert_true(three_sevens(CDDP_F16) == 6.99609375);
}

TEST(cpu, a_third_of_uniform_values_differs_between_the_paths)
{
    cd_prng prng = cd_prng_seed(cd_test_seed());
    int differ = 0;
    for (int i = 0; i < 20000; i++) {
        float x = 0.5f + (float)(cd_prng_next(&prng) >> 40) * 0x1p-24f;
        float a = one_f32(x, 3, CDDP_COPY_MULTIPLY), b = one_f32(x, 3, CDDP_COPY_DIVIDE);
        differ += a != b;
        assert_in_range(cd_f32_bits(a) - cd_f32_bits(b) + 1, 0, 2); /* never more than one ulp */
    }
    assert_in_range(differ, 6200, 7200); /* observed 33522 of 100000 */
}

TEST(cpu, predivided_f16_can_still_overflow_for_three_ranks)
{
    fixture f = FIXTURE_INIT;
    cddp_tensor t = fixture_make(&f, cpu(), CDDP_F16, SIZES(1)),
                sum = fixture_make(&f, cpu(), CDDP_F16, SIZES(1));
    uint16_t h = 0x7bff; /* 65504 */
    fixture_write(&f, &t, &h);
    assert_ok(cpu()->divide(&t, &t, 3, NULL, &f.err), &f.err);
    fixture_read(&f, &t, &h);
    assert_true(cd_f16_to_f32(h) == 21840);
    assert_ok(cpu()->copy(&sum, &t, NULL, &f.err), &f.err);
    for (int rank = 1; rank < 3; rank++)
        assert_ok(cpu()->reduce(CDDP_RED_SUM, &sum, &t, NULL, &f.err), &f.err);
    fixture_read(&f, &sum, &h);
    assert_int_equal(h, 0x7c00);
    fixture_fini(&f);
}

/* dst = src ÷ n is correctly rounded: checked against the quotient in long double, where no tie can
** hide. */
TEST(cpu, division_is_correctly_rounded_in_every_float_dtype)
{
    static const cddp_dtype dtypes[] = {CDDP_F32, CDDP_F16, CDDP_BF16};
    cd_prng prng = cd_prng_seed(cd_test_seed());
    fixture f = FIXTURE_INIT;
    for (size_t d = 0; d < 3; d++) {
        cddp_tensor t = fixture_make(&f, cpu(), dtypes[d], SIZES(1));
        for (int i = 0; i < 20000; i++) {
            unsigned char value[4], wanted[4];
            int64_t n = i % 2 == 0 ? cd_prng_between(&prng, 1, 100)
                                   : cd_prng_between(&prng, 1, INT64_C(1) << 34);
            double x = ((double)(cd_prng_next(&prng) >> 11) * 0x1p-53 + 0.5) *
                       (double)(1 << cd_prng_below(&prng, 8));
            cd_element_set(dtypes[d], value, x);
            fixture_write(&f, &t, value);
            x = cd_element_get(dtypes[d], value);
            assert_ok(cpu()->divide(&t, &t, n, NULL, &f.err), &f.err);
            fixture_read(&f, &t, value);
            /* The quotient to 64 bits, made odd where inexact, rounds once more without error. */
            long double q = (long double)x / (long double)n;
            cd_element_set(dtypes[d], wanted, (double)q);
            cd_test_row("%a / %lld in %s", x, (long long)n, cddp_dtype_name(dtypes[d]));
            assert_true(cd_element_get(dtypes[d], value) == cd_element_get(dtypes[d], wanted));
        }
    }
    fixture_fini(&f);
}

/* ---- every operation, dtype and layout ---- */

typedef enum unary_op {
    OP_DIVIDE,
    OP_RECIPROCAL,
    OP_SCALE,
    OP_AXPY,
    OP_SUM,
    OP_MIN,
    OP_MAX,
    OP_PRODUCT,
    OP_COPY,
    OP_COUNT
} unary_op;

static cddp_status perform(unary_op op, const cddp_tensor *dst, const cddp_tensor *src,
                           cddp_error *err)
{
    switch (op) {
    case OP_DIVIDE:
        return cpu()->divide(dst, src, 3, NULL, err);
    case OP_RECIPROCAL:
        return cpu()->multiply_reciprocal(dst, src, 3, NULL, err);
    case OP_SCALE:
        return cpu()->scale(dst, src, 3, NULL, err);
    case OP_AXPY:
        return cpu()->axpy(dst, 2, src, NULL, err);
    case OP_SUM:
        return cpu()->reduce(CDDP_RED_SUM, dst, src, NULL, err);
    case OP_MIN:
        return cpu()->reduce(CDDP_RED_MIN, dst, src, NULL, err);
    case OP_MAX:
        return cpu()->reduce(CDDP_RED_MAX, dst, src, NULL, err);
    case OP_PRODUCT:
        return cpu()->reduce(CDDP_RED_PRODUCT, dst, src, NULL, err);
    default:
        return cpu()->copy(dst, src, NULL, err);
    }
}

static double model_op(unary_op op, cddp_dtype dtype, double d, double s)
{
    unsigned char bytes[8];
    double third;
    bool whole = dtype == CDDP_I64 || dtype == CDDP_I32 || dtype == CDDP_U8;
    switch (op) {
    case OP_DIVIDE:
        return whole ? (double)((int64_t)s / 3) : s / 3;
    case OP_RECIPROCAL:
        cd_element_set(dtype, bytes, 1.0 / 3.0);
        third = cd_element_get(dtype, bytes);
        return s * third;
    case OP_SCALE:
        return s * 3;
    case OP_AXPY:
        return d + 2 * s;
    case OP_SUM:
        return d + s;
    case OP_MIN:
        return d < s ? d : s;
    case OP_MAX:
        return d > s ? d : s;
    case OP_PRODUCT:
        return d * s;
    default:
        return s;
    }
}

enum { ROWS = 7, COLUMNS = 5, DEPTH = 13, CELLS = ROWS * COLUMNS * DEPTH };

static void check_operation(unary_op op, cddp_dtype dtype, bool dst_permuted, bool src_permuted)
{
    fixture f = FIXTURE_INIT;
    cddp_tensor dst = fixture_make(&f, cpu(), dtype, SIZES(ROWS, COLUMNS, DEPTH));
    cddp_tensor src = fixture_make(&f, cpu(), dtype, SIZES(ROWS, COLUMNS, DEPTH));
    double d[CELLS], s[CELLS];
    unsigned char bytes[CELLS * 8];
    if (dst_permuted) dst = fixture_permuted(&dst);
    if (src_permuted) src = fixture_permuted(&src);
    for (int i = 0; i < CELLS; i++) {
        d[i] = i % 11;
        s[i] = (i * 7) % 10;
    }
    cd_convert(dtype, bytes, CDDP_F64, d, CELLS);
    fixture_write(&f, &dst, bytes);
    cd_convert(dtype, bytes, CDDP_F64, s, CELLS);
    fixture_write(&f, &src, bytes);
    assert_ok(perform(op, &dst, &src, &f.err), &f.err);
    fixture_read(&f, &dst, bytes);
    for (int i = 0; i < CELLS; i++) {
        unsigned char wanted[8];
        cd_element_set(dtype, wanted, model_op(op, dtype, d[i], s[i]));
        double got = cd_element_get(dtype, bytes + (size_t)i * cddp_dtype_bytes(dtype));
        assert_true(got == cd_element_get(dtype, wanted));
    }
    fixture_fini(&f);
}

TEST(cpu, every_operation_is_right_in_every_dtype_and_layout)
{
    for (int dtype = 0; dtype < CDDP_DTYPE_COUNT; dtype++)
        for (int op = 0; op < OP_COUNT; op++)
            for (int layout = 0; layout < 4; layout++) {
                bool integer = dtype == CDDP_I64 || dtype == CDDP_I32 || dtype == CDDP_U8;
                if (integer && op == OP_RECIPROCAL) continue;
                if (dtype == CDDP_C64 && (op == OP_MIN || op == OP_MAX)) continue;
                cd_test_row("operation %d, %s, layout %d", op, cddp_dtype_name((cddp_dtype)dtype),
                            layout);
                check_operation((unary_op)op, (cddp_dtype)dtype, layout & 1, layout & 2);
            }
}

TEST(cpu, operations_leave_what_is_around_a_view_alone)
{
    fixture f = FIXTURE_INIT;
    cddp_tensor whole = fixture_make(&f, cpu(), CDDP_F32, SIZES(1000)),
                src = fixture_make(&f, cpu(), CDDP_F32, SIZES(611));
    float values[1000];
    assert_ok(cpu()->fill(&whole, 1, NULL, &f.err), &f.err);
    assert_ok(cpu()->fill(&src, 3, NULL, &f.err), &f.err);
    cddp_tensor part = cddp_tensor_slice(&whole, 133, 611); /* 4-byte aligned only */
    assert_ok(cpu()->reduce(CDDP_RED_SUM, &part, &src, NULL, &f.err), &f.err);
    fixture_read(&f, &whole, values);
    for (int i = 0; i < 1000; i++) assert_true(values[i] == (i >= 133 && i < 744 ? 4.0f : 1.0f));
    fixture_fini(&f);
}

TEST(cpu, f16_axpy_rounds_the_factor_the_product_and_the_sum)
{
    /* Observed with PyTorch 1.13: x.add_(y, alpha=a) in half rounds three times. */
    fixture f = FIXTURE_INIT;
    cddp_tensor x = fixture_make(&f, cpu(), CDDP_F16, SIZES(4096)),
                y = fixture_make(&f, cpu(), CDDP_F16, SIZES(4096));
    uint16_t xs[4096], ys[4096], got[4096];
    cd_prng prng = cd_prng_seed(cd_test_seed());
    int differs_from_one_rounding = 0;
    for (int i = 0; i < 4096; i++) {
        xs[i] = (uint16_t)(0x3400 + cd_prng_below(&prng, 0x0c00));
        ys[i] = (uint16_t)(0x3400 + cd_prng_below(&prng, 0x0c00));
    }
    fixture_write(&f, &x, xs);
    fixture_write(&f, &y, ys);
    assert_ok(cpu()->axpy(&x, 0.3, &y, NULL, &f.err), &f.err);
    fixture_read(&f, &x, got);
    const float alpha = cd_f16_to_f32(cd_f64_to_f16(0.3));
    for (int i = 0; i < 4096; i++) {
        float product = cd_f16_to_f32(cd_f32_to_f16(alpha * cd_f16_to_f32(ys[i])));
        assert_int_equal(got[i], cd_f32_to_f16(cd_f16_to_f32(xs[i]) + product));
        differs_from_one_rounding +=
            got[i] != cd_f32_to_f16(cd_f16_to_f32(xs[i]) + alpha * cd_f16_to_f32(ys[i]));
    }
    assert_true(differs_from_one_rounding > 0);
    fixture_fini(&f);
}

TEST(cpu, nan_is_never_lost)
{
    static const cddp_dtype dtypes[] = {CDDP_F64, CDDP_F32, CDDP_F16, CDDP_BF16};
    for (size_t d = 0; d < 4; d++)
        for (int op = 0; op < OP_COUNT; op++)
            for (int where = 0; where < 2; where++) {
                fixture f = FIXTURE_INIT;
                cddp_tensor dst = fixture_make(&f, cpu(), dtypes[d], SIZES(3)),
                            src = fixture_make(&f, cpu(), dtypes[d], SIZES(3));
                assert_ok(cpu()->fill(&dst, where == 0 ? NAN : 1, NULL, &f.err), &f.err);
                assert_ok(cpu()->fill(&src, where == 1 ? NAN : 1, NULL, &f.err), &f.err);
                bool reads_dst = op == OP_AXPY || op == OP_SUM || op == OP_MIN || op == OP_MAX ||
                                 op == OP_PRODUCT;
                assert_ok(perform((unary_op)op, &dst, &src, &f.err), &f.err);
                int64_t index;
                assert_ok(cpu()->find_nonfinite(&dst, &index, &f.err), &f.err);
                cd_test_row("%s, operation %d, NaN in %s", cddp_dtype_name(dtypes[d]), op,
                            where == 0 ? "dst" : "src");
                assert_int_equal(index, where == 1 || reads_dst ? 0 : -1);
                fixture_fini(&f);
            }
}

TEST(cpu, integers_wrap_and_know_bits)
{
    fixture f = FIXTURE_INIT;
    cddp_tensor a = fixture_make(&f, cpu(), CDDP_I32, SIZES(2)),
                b = fixture_make(&f, cpu(), CDDP_I32, SIZES(2));
    static const struct {
        cddp_red_op op;
        int32_t wanted[2];
    } cases[] = {{CDDP_RED_SUM, {INT32_MIN, 1}},
                 {CDDP_RED_PRODUCT, {INT32_MAX, -12}},
                 {CDDP_RED_BAND, {1, 4}},
                 {CDDP_RED_BOR, {INT32_MAX, -3}},
                 {CDDP_RED_BXOR, {INT32_MAX - 1, -7}},
                 {CDDP_RED_MIN, {1, -3}},
                 {CDDP_RED_MAX, {INT32_MAX, 4}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int32_t got[2];
        fixture_write(&f, &a, (int32_t[]){INT32_MAX, 4});
        fixture_write(&f, &b, (int32_t[]){1, -3});
        assert_ok(cpu()->reduce(cases[i].op, &a, &b, NULL, &f.err), &f.err);
        fixture_read(&f, &a, got);
        cd_test_row("%s", cddp_red_op_name(cases[i].op));
        assert_int_equal(got[0], cases[i].wanted[0]);
        assert_int_equal(got[1], cases[i].wanted[1]);
    }
    fixture_fini(&f);
}

TEST(cpu, complex_numbers_multiply_as_complex_numbers)
{
    fixture f = FIXTURE_INIT;
    cddp_tensor a = fixture_make(&f, cpu(), CDDP_C64, SIZES(1)),
                b = fixture_make(&f, cpu(), CDDP_C64, SIZES(1));
    float got[2];
    fixture_write(&f, &a, (float[]){1, 2});
    fixture_write(&f, &b, (float[]){3, -5});
    assert_ok(cpu()->reduce(CDDP_RED_PRODUCT, &a, &b, NULL, &f.err), &f.err);
    fixture_read(&f, &a, got);
    assert_true(got[0] == 13 && got[1] == 1);
    assert_ok(cpu()->divide(&a, &a, 2, NULL, &f.err), &f.err);
    fixture_read(&f, &a, got);
    assert_true(got[0] == 6.5f && got[1] == 0.5f);
    fixture_fini(&f);
}

/* ---- whole-tensor results ---- */

TEST(cpu, norm_and_digest_depend_on_logical_content_only)
{
    fixture f = FIXTURE_INIT;
    cddp_tensor a = fixture_make(&f, cpu(), CDDP_F32, SIZES(31, 17, 9)),
                b = fixture_make(&f, cpu(), CDDP_F32, SIZES(31, 17, 9));
    cddp_tensor p = fixture_permuted(&b);
    cd_prng prng = cd_prng_seed(cd_test_seed());
    float values[31 * 17 * 9];
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        values[i] = (float)cd_prng_below(&prng, 1000000) * 1e-5f;
    fixture_write(&f, &a, values);
    fixture_write(&f, &p, values);
    double na, np;
    uint64_t da, dp, db;
    assert_ok(cpu()->norm(&a, &na, &f.err), &f.err);
    assert_ok(cpu()->norm(&p, &np, &f.err), &f.err);
    assert_true(na == np && na > 0);
    assert_ok(cpu()->digest(&a, &da, &f.err), &f.err);
    assert_ok(cpu()->digest(&p, &dp, &f.err), &f.err);
    /* another logical order of the same storage */
    assert_ok(cpu()->digest(&b, &db, &f.err), &f.err);
    assert_true(da == dp && da != db);
    fixture_fini(&f);
}

TEST(cpu, norm_sums_in_eight_lanes_as_stated)
{
    fixture f = FIXTURE_INIT;
    cddp_tensor t = fixture_make(&f, cpu(), CDDP_F64, SIZES(1003));
    double x[1003], lanes[8] = {0}, norm;
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (int i = 0; i < 1003; i++) {
        x[i] = (double)(cd_prng_next(&prng) >> 11) * 0x1p-53;
        volatile double square = x[i] * x[i]; /* volatile: nothing can be reordered or fused */
        volatile double sum = lanes[i % 8] + square;
        lanes[i % 8] = sum;
    }
    volatile double a = lanes[0] + lanes[4], b = lanes[2] + lanes[6], c = lanes[1] + lanes[5],
                    d = lanes[3] + lanes[7];
    volatile double ab = a + b, cd = c + d, total = ab + cd;
    fixture_write(&f, &t, x);
    assert_ok(cpu()->norm(&t, &norm, &f.err), &f.err);
    assert_true(norm == sqrt(total));
    fixture_fini(&f);
}

TEST(cpu, digests_have_golden_values_and_see_every_bit)
{
    fixture f = FIXTURE_INIT;
    cddp_tensor t = fixture_make(&f, cpu(), CDDP_U8, SIZES(10000));
    unsigned char bytes[10000];
    uint64_t whole, empty, other;
    for (int i = 0; i < 10000; i++) bytes[i] = (unsigned char)(i * 31);
    fixture_write(&f, &t, bytes);
    assert_ok(cpu()->digest(&t, &whole, &f.err), &f.err);
    assert_true(whole == UINT64_C(0x2350ee8bc1012ee6));
    cddp_tensor none = cddp_tensor_slice(&t, 5, 0);
    assert_ok(cpu()->digest(&none, &empty, &f.err), &f.err);
    assert_true(empty == 0);
    for (int i = 0; i < 10000; i += 997) {
        bytes[i] ^= 0x10;
        fixture_write(&f, &t, bytes);
        assert_ok(cpu()->digest(&t, &other, &f.err), &f.err);
        assert_true(other != whole);
        bytes[i] ^= 0x10;
    }
    fixture_fini(&f);
}

/* Short rows take a shorter way: with one dimension or two, the content is the same. */
TEST(cpu, a_row_has_the_digest_of_its_elements_whatever_its_dimensions)
{
    static const int64_t lengths[] = {0, 1, 2, 7, 240, 511, 512, 513, 1024, 1025, 4097};
    fixture f = FIXTURE_INIT;
    for (int dtype = 0; dtype < CDDP_DTYPE_COUNT; dtype++) {
        cddp_tensor t = fixture_make(&f, cpu(), (cddp_dtype)dtype, SIZES(4100));
        for (size_t i = 0; i < 4100 * cddp_dtype_bytes((cddp_dtype)dtype); i++)
            ((unsigned char *)t.storage)[i] = (unsigned char)(i * 37 + i / 251);
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            uint64_t row = 0, matrix = 1;
            const cddp_tensor a = cddp_tensor_slice(&t, 3, lengths[i]);
            const cddp_tensor b =
                cddp_tensor_of(cpu(), t.storage, 3, t.dtype, SIZES(1, lengths[i]));
            cd_test_row("%lld of dtype %d", (long long)lengths[i], dtype);
            assert_ok(cpu()->digest(&a, &row, &f.err), &f.err);
            assert_ok(cpu()->digest(&b, &matrix, &f.err), &f.err);
            assert_true(row == matrix);
        }
        cddp_tensor odd = cddp_tensor_slice(&t, 0, 2);
        uint64_t beside = 0, apart = 0;
        assert_ok(cpu()->digest(&odd, &beside, &f.err), &f.err);
        odd.strides[0] = 5;
        assert_ok(cpu()->digest(&odd, &apart, &f.err), &f.err);
        assert_true(beside != apart);
        odd.storage = NULL;
        assert_int_equal(cpu()->digest(&odd, &apart, NULL), CDDP_E_ARG);
    }
    fixture_fini(&f);
}

TEST(cpu, find_nonfinite_names_the_first_in_logical_order)
{
    fixture f = FIXTURE_INIT;
    cddp_tensor t = fixture_make(&f, cpu(), CDDP_BF16, SIZES(40, 30));
    uint16_t h[1200] = {0};
    int64_t index;
    cddp_tensor p = fixture_permuted(&t);
    h[700] = 0x7f80;
    h[701] = 0x7fc0;
    fixture_write(&f, &p, h);
    assert_ok(cpu()->find_nonfinite(&p, &index, &f.err), &f.err);
    assert_int_equal(index, 700);
    h[700] = 0x7f7f; /* the largest finite */
    h[701] = 0;
    fixture_write(&f, &p, h);
    assert_ok(cpu()->find_nonfinite(&p, &index, &f.err), &f.err);
    assert_int_equal(index, -1);
    fixture_fini(&f);
}

/* Fewer elements than a vector loop takes, and more than one block of it; beside the largest finite
** numbers of both signs. */
TEST(cpu, find_nonfinite_finds_what_is_not_finite_in_every_place)
{
    static const struct {
        cddp_dtype dtype;
        uint64_t sign, finite, infinite;
    } rows[] = {{CDDP_F16, 0x8000, 0x7bff, 0x7c00},
                {CDDP_BF16, 0x8000, 0x7f7f, 0x7f80},
                {CDDP_F32, 0x80000000, 0x7f7fffff, 0x7f800000},
                {CDDP_F64, UINT64_C(1) << 63, UINT64_C(0x7fefffffffffffff),
                 UINT64_C(0x7ff0000000000000)}};
    static const int64_t counts[] = {5, 100, 255, 300, 2200};
    fixture f = FIXTURE_INIT;
    cddp_error *err = &f.err;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            cddp_tensor t = fixture_make(&f, cpu(), rows[i].dtype, SIZES(counts[c]));
            const size_t bytes = cddp_dtype_bytes(t.dtype);
            char *elements = t.storage;
            int64_t index = 0;
            cd_test_row("%lld of dtype %d", (long long)counts[c], (int)t.dtype);
            for (int64_t k = 0; k < counts[c]; k++) {
                const uint64_t finite = rows[i].finite | (k % 2 == 0 ? rows[i].sign : 0);
                memcpy(elements + (size_t)k * bytes, &finite, bytes); /* little-endian */
            }
            assert_ok(cpu()->find_nonfinite(&t, &index, err), err);
            assert_int_equal(index, -1);
            for (int64_t k = 0; k < counts[c]; k++) {
                const uint64_t bad =
                    rows[i].infinite | (k % 3 == 0 ? rows[i].sign : 0) | (uint64_t)(k % 2);
                char kept[sizeof bad], *at = elements + (size_t)k * bytes;
                memcpy(kept, at, bytes);
                memcpy(at, &bad, bytes);
                assert_ok(cpu()->find_nonfinite(&t, &index, err), err);
                assert_int_equal(index, k);
                memcpy(at, kept, bytes);
            }
        }
    fixture_fini(&f);
}

/* ---- storage and refusals ---- */

TEST(cpu, fresh_storage_is_aligned_and_reads_as_nan)
{
    fixture f = FIXTURE_INIT;
    cddp_tensor t = fixture_make(&f, cpu(), CDDP_F32, SIZES(77)),
                n = fixture_make(&f, cpu(), CDDP_I32, SIZES(3));
    float values[77];
    int32_t whole[3];
    fixture_read(&f, &t, values);
    fixture_read(&f, &n, whole);
    for (int i = 0; i < 77; i++) assert_true(isnan(values[i]));
    assert_int_equal(whole[1], -1);
    assert_int_equal((uintptr_t)t.storage % 64, 0);
    fixture_fini(&f);
}

static cddp_status allocate_and_multiply(const cddp_allocator *allocator, void *argument,
                                         cddp_error *err)
{
    (void)argument;
    cddp_device mine = cd_device_with_allocator(cpu(), allocator);
    void *storage;
    cddp_status status = mine.allocate(&mine, CDDP_F16, 16, &storage, err);
    if (status != CDDP_OK) return status;
    cddp_tensor t = cddp_tensor_of(&mine, storage, 0, CDDP_F16, (int64_t[]){4, 4}, 2);
    status = mine.fill(&t, 1, NULL, err);
    if (status == CDDP_OK) status = mine.matmul(&t, &(cddp_matmul){.a = &t, .b = &t}, NULL, err);
    mine.release(&mine, CDDP_F16, 16, storage);
    return status;
}

TEST(cpu, running_out_of_memory_leaves_nothing_behind)
{
    /* storage, widened copies, packing */
    assert_int_equal(cd_test_oom_loop(allocate_and_multiply, NULL), 3);
}

TEST(cpu, operands_that_do_not_fit_are_refused_by_name)
{
    fixture f = FIXTURE_INIT;
    cddp_tensor a = fixture_make(&f, cpu(), CDDP_F32, SIZES(2, 3)),
                b = fixture_make(&f, cpu(), CDDP_F32, SIZES(3, 2));
    cddp_tensor h = fixture_make(&f, cpu(), CDDP_F16, SIZES(2, 3)),
                i = fixture_make(&f, cpu(), CDDP_I64, SIZES(2, 3));
    cddp_tensor s = fixture_make(&f, cddp_device_shape(), CDDP_F32, SIZES(2, 3)), none = {0},
                flat = cddp_tensor_slice(&a, 0, 6);
    cddp_tensor c = fixture_make(&f, cpu(), CDDP_C64, SIZES(2, 3));
    cddp_error *e = &f.err;
    assert_ok(cpu()->fill(&a, 1, NULL, e), e);
    assert_ok(cpu()->copy(&flat, &a, NULL, e), e);
    assert_fails(cpu()->copy(&a, &b, NULL, e), CDDP_E_ARG, e,
                 "f32 (2, 3) and the source f32 (3, 2)");
    assert_fails(cpu()->copy(&a, &s, NULL, e), CDDP_E_ARG, e,
                 "on device cpu and the source on shape");
    assert_fails(cpu()->copy(&a, &none, NULL, e), CDDP_E_ARG, e,
                 "the source is an undefined tensor");
    assert_fails(cpu()->reduce(CDDP_RED_SUM, &a, &h, NULL, e), CDDP_E_ARG, e,
                 "f32 and the source f16");
    assert_fails(cpu()->reduce(CDDP_RED_AVG, &a, &a, NULL, e), CDDP_E_UNSUPPORTED, e, "avg");
    assert_fails(cpu()->reduce(CDDP_RED_BAND, &a, &a, NULL, e), CDDP_E_UNSUPPORTED, e, "band");
    assert_fails(cpu()->reduce(CDDP_RED_MAX, &c, &c, NULL, e), CDDP_E_UNSUPPORTED, e, "c64");
    assert_fails(cpu()->divide(&a, &a, 0, NULL, e), CDDP_E_ARG, e, "n is 0");
    assert_fails(cpu()->scale(&i, &i, 0.5, NULL, e), CDDP_E_UNSUPPORTED, e,
                 "i64 elements times 0.5");
    assert_fails(cpu()->matmul(&a, &(cddp_matmul){.a = &a, .b = &a}, NULL, e), CDDP_E_ARG, e,
                 "does not give");
    assert_fails(cpu()->read(&a, NULL, 23, e), CDDP_E_ARG, e, "24 bytes and the host buffer 23");
    cddp_copy_pair pairs[] = {{flat, flat}, {a, b}};
    float values[6];
    assert_fails(cpu()->copy_many(cpu(), pairs, 2, CDDP_COPY_DIVIDE, 2, NULL, e), CDDP_E_ARG, e,
                 "copy_many");
    fixture_read(&f, &a, values);
    assert_true(values[0] == 1); /* the first pair was not divided either */
    fixture_fini(&f);
}

TEST_MAIN()
