/* SPDX-License-Identifier: Apache-2.0 */
/* Same bits everywhere: every kernel runs on seeded inputs, and the digest of what it gave is
** compared with the one in bits_golden.def. This file is built several times together with the
** kernels' sources (CMakeLists.txt): without optimisation, with all of it, with AVX2 and FMA
** allowed, by the other compiler. A difference in any of them is a reordered sum, a contraction or
** another rounding.
**
** --print writes the table anew. Inputs are finite; a NaN result counts as one and the same. */
#include "core/base/hash.h"
#include "core/base/prng.h"
#include "core/tensor/kernels.h"
#include "core/tensor/linalg.h"
#include "core/tensor/math.h"
#include "tests/support/test.h"

#include <inttypes.h>
#include <stdio.h>

enum { COUNT = 1000 };

typedef struct block {
    _Alignas(8) unsigned char bytes[COUNT * 8];
} block;

static bool is_nan(cddp_dtype dtype, const unsigned char *element)
{
    double x = cd_element_get(dtype, element);
    return x != x;
}

/* NaNs become all ones; c64 is looked at part by part. */
static uint64_t digest(cddp_dtype dtype, block *b)
{
    cddp_dtype part = dtype == CDDP_C64 ? CDDP_F32 : dtype;
    size_t bytes = cddp_dtype_bytes(part), used = COUNT * cddp_dtype_bytes(dtype);
    for (size_t at = 0; at < used; at += bytes)
        if (is_nan(part, b->bytes + at)) memset(b->bytes + at, 0xff, bytes);
    return cd_hash64(b->bytes, used, 0);
}

/* Any finite pattern: subnormal, tiny, huge. `moderate`: between 2^-9 and 2^8, so that sums
** round. */
static block inputs(cddp_dtype dtype, const char *label, bool moderate)
{
    cd_prng root = cd_prng_seed(1), prng = cd_prng_split(&root, label);
    block b;
    for (size_t i = 0; i < sizeof b.bytes; i += 8) {
        uint64_t word = cd_prng_next(&prng);
        memcpy(b.bytes + i, &word, sizeof word);
    }
    cddp_dtype part = dtype == CDDP_C64 ? CDDP_F32 : dtype;
    size_t bytes = cddp_dtype_bytes(part), used = COUNT * cddp_dtype_bytes(dtype);
    for (size_t at = 0; at < used; at += bytes) {
        double x = cd_element_get(part, b.bytes + at);
        double small = (double)(int64_t)cd_prng_next(&prng) * 0x1p-62;
        /* a second statement: operands have no order */
        small *= (double)(1 << cd_prng_below(&prng, 8));
        if (x - x != 0 || (moderate && cddp_dtype_is_float(part)))
            cd_element_set(part, b.bytes + at, small);
    }
    return b;
}

/* ---- results ---- */

typedef struct golden_row {
    const char *name;
    uint64_t digest;
} golden_row;

static const golden_row golden[] = {
#define CD_BITS(name, digest) {name, digest},
#include "tests/unit/core/tensor/bits_golden.def"
#undef CD_BITS
    {NULL, 0},
};
static size_t compared, differing;
static bool printing;

static void result(const char *name, uint64_t got)
{
    if (printing) {
        printf("CD_BITS(\"%s\", UINT64_C(0x%016" PRIx64 "))\n", name, got);
        return;
    }
    const golden_row *row = golden;
    while (row->name != NULL && strcmp(row->name, name) != 0) row++;
    compared++;
    if (row->name != NULL && row->digest == got) return;
    differing++;
    print_error("%s: %016" PRIx64 ", stored %016" PRIx64 "\n", name, got, row->digest);
}

/* ---- what runs ---- */

static void run_elementwise(const char *operation, cddp_dtype dtype, cd_kernel_fn kernel,
                            const cd_kernel_scalar *scalar)
{
    char name[64];
    if (kernel == NULL) return;
    for (int moderate = 0; moderate < 2; moderate++) {
        block dst = inputs(dtype, "dst", moderate != 0), src = inputs(dtype, "src", moderate != 0);
        snprintf(name, sizeof name, "%s %s %s", operation, cddp_dtype_name(dtype),
                 moderate ? "moderate" : "any");
        kernel(dst.bytes, src.bytes, COUNT, scalar);
        result(name, digest(dtype, &dst));
    }
}

static void run_kernels(void)
{
    for (int d = 0; d < CDDP_DTYPE_COUNT; d++) {
        const cddp_dtype dtype = (cddp_dtype)d;
        const bool whole = dtype == CDDP_I64 || dtype == CDDP_I32 || dtype == CDDP_U8;
        const cd_kernel_scalar scalar = {.value = whole ? 3 : 1.0 / 3.0, .count = 7},
                               large = {.count = (1 << 24) + 3};
        run_elementwise("scale", dtype, cd_kernel_scale(dtype), &scalar);
        run_elementwise("axpy", dtype, cd_kernel_axpy(dtype), &scalar);
        run_elementwise("divide", dtype, cd_kernel_divide(dtype), &scalar);
        run_elementwise("divide by many", dtype, cd_kernel_divide(dtype), &large);
        for (int op = 0; op < CDDP_RED_COUNT; op++)
            run_elementwise(cddp_red_op_name((cddp_red_op)op), dtype,
                            cd_kernel_reduce((cddp_red_op)op, dtype), &scalar);
    }
}

static void run_conversions(void)
{
    char name[64];
    for (int from = 0; from < CDDP_DTYPE_COUNT; from++)
        for (int to = 0; to < CDDP_DTYPE_COUNT; to++) {
            block src = inputs((cddp_dtype)from, "cast", false), dst;
            memset(&dst, 0, sizeof dst);
            cd_convert((cddp_dtype)to, dst.bytes, (cddp_dtype)from, src.bytes, COUNT);
            snprintf(name, sizeof name, "cast %s to %s", cddp_dtype_name((cddp_dtype)from),
                     cddp_dtype_name((cddp_dtype)to));
            result(name, digest((cddp_dtype)to, &dst));
        }
}

static void run_squares(void)
{
    char name[64];
    for (int d = 0; d < CDDP_DTYPE_COUNT; d++) {
        block src = inputs((cddp_dtype)d, "squares", true);
        cd_squares squares = {.count = 0};
        cd_kernel_squares(&squares, (cddp_dtype)d, src.bytes, 333);
        cd_kernel_squares(&squares, (cddp_dtype)d, src.bytes, COUNT);
        snprintf(name, sizeof name, "squares %s", cddp_dtype_name((cddp_dtype)d));
        result(name, cd_f64_bits(cd_kernel_squares_total(&squares)));
    }
}

/* All versions that run here have one golden digest. */
static void run_matmul(void)
{
    char name[64];
    for (int d = CDDP_F64; d <= CDDP_BF16; d++)
        for (int isa = CD_ISA_PORTABLE; isa < (printing ? 1 : CD_ISA_COUNT); isa++) {
            if (!cd_isa_is_available((cd_isa)isa)) continue;
            block a = inputs((cddp_dtype)d, "a", true), b = inputs((cddp_dtype)d, "b", true),
                  dst = inputs((cddp_dtype)d, "c", true);
            cd_matmul_args args = {.dtype = (cddp_dtype)d,
                                   .dst = dst.bytes,
                                   .a = a.bytes,
                                   .b = b.bytes,
                                   .accumulate = true,
                                   .shape = {.m = 23,
                                             .n = 37,
                                             .k = 27,
                                             .a_row = 27,
                                             .a_k = 1,
                                             .b_k = 37,
                                             .b_col = 1,
                                             .dst_row = 43,
                                             .dst_col = 1}};
            assert_int_equal(cd_matmul(&args, (cd_isa)isa, NULL, NULL), CDDP_OK);
            snprintf(name, sizeof name, "matmul %s", cddp_dtype_name((cddp_dtype)d));
            result(name, digest((cddp_dtype)d, &dst));
        }
}

/* Sums over four lanes and over 256. */
static void run_orthonormalize(void)
{
    for (int many = 0; many < 2; many++) {
        block m = inputs(CDDP_F64, "columns", true);
        cd_orthonormalize((double *)(void *)m.bytes, many ? 333 : 200, many ? 3 : 5, 1e-8);
        result(many ? "orthonormalize 333" : "orthonormalize 200", digest(CDDP_F64, &m));
    }
}

static void run_functions(void)
{
    static const struct {
        const char *name;
        double (*f64)(double);
        float (*f32)(float);
    } functions[] = {{"exp", cd_exp, cd_exp_f32},      {"expm1", cd_expm1, cd_expm1_f32},
                     {"log", cd_log, cd_log_f32},      {"log1p", cd_log1p, cd_log1p_f32},
                     {"tanh", cd_tanh, cd_tanh_f32},   {"sigmoid", cd_sigmoid, cd_sigmoid_f32},
                     {"erf", cd_erf, cd_erf_f32},      {"sinpi", cd_sinpi, cd_sinpi_f32},
                     {"cospi", cd_cospi, cd_cospi_f32}};
    char name[64];
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        for (int moderate = 0; moderate < 2; moderate++) {
            block wide = inputs(CDDP_F64, functions[i].name, moderate != 0),
                  narrow = inputs(CDDP_F32, functions[i].name, moderate != 0);
            double *x = (double *)(void *)wide.bytes;
            float *y = (float *)(void *)narrow.bytes;
            for (int n = 0; n < COUNT; n++) {
                x[n] = functions[i].f64(x[n]);
                y[n] = functions[i].f32(y[n]);
            }
            snprintf(name, sizeof name, "%s f64 %s", functions[i].name,
                     moderate ? "moderate" : "any");
            result(name, digest(CDDP_F64, &wide));
            snprintf(name, sizeof name, "%s f32 %s", functions[i].name,
                     moderate ? "moderate" : "any");
            result(name, digest(CDDP_F32, &narrow));
        }
    block powers = inputs(CDDP_F64, "powers", true);
    double *x = (double *)(void *)powers.bytes;
    for (int n = 0; n < COUNT; n++) x[n] = cd_powi(x[n], (uint64_t)n);
    result("powi", digest(CDDP_F64, &powers));
}

static void run_all(void)
{
    run_kernels();
    run_conversions();
    run_squares();
    run_matmul();
    run_orthonormalize();
    run_functions();
}

TEST(bits, every_kernel_gives_the_stored_bits)
{
    compared = differing = 0;
    run_all();
    assert_true(compared + 1 >= sizeof golden / sizeof golden[0]); /* no stored row is left out */
    assert_int_equal(differing, 0);
}

int main(int argc, char **argv)
{
#if defined(__x86_64__) && defined(CDDP_BITS_NEEDS)
    if (!__builtin_cpu_supports(CDDP_BITS_NEEDS))
        cd_test_skip_all("this processor has no " CDDP_BITS_NEEDS);
#endif
    if (argc == 2 && strcmp(argv[1], "--print") == 0) {
        printf("/* SPDX-License-Identifier: Apache-2.0 */\n"
               "/* Digests of what every kernel gives on the inputs of bits_test.c, written by "
               "tensor_bits_test "
               "--print. */\n");
        printing = true;
        run_all();
        return 0;
    }
    return cd_test_main(argc, argv, __FILE__);
}
