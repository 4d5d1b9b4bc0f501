/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix product has the bits of the plainest triple loop, in every version, shape, layout and
** dtype; a row does not know how many others there are. Gram-Schmidt makes columns orthonormal. */
#include "core/base/prng.h"
#include "core/tensor/dtype.h"
#include "core/tensor/linalg.h"
#include "tests/unit/core/tensor/fixture.h"

#include <math.h>
#include <stdlib.h>

enum { M_MAX = 37, N_MAX = 71, K_MAX = 53, CELLS = 80 * 80 };

typedef struct matrices {
    _Alignas(8) unsigned char a[CELLS * 8], b[CELLS * 8], dst[CELLS * 8], wanted[CELLS * 8];
} matrices;

static void fill_random(cd_prng *prng, cddp_dtype dtype, void *to)
{
    double x[CELLS];
    for (int i = 0; i < CELLS; i++) x[i] = (double)(int64_t)cd_prng_next(prng) * 0x1p-62;
    cd_convert(dtype, to, CDDP_F64, x, CELLS);
}

static double at(cddp_dtype dtype, const unsigned char *from, int64_t index)
{
    return cd_element_get(dtype, from + (size_t)index * cddp_dtype_bytes(dtype));
}

/* The stated sum: k in order, each product and each sum rounded (volatile: nothing is fused or
** reordered). */
static double stated_sum(const cd_matmul_args *args, int64_t i, int64_t j)
{
    const cd_matmul_shape *s = &args->shape;
    volatile double sum64 = 0;
    volatile float sum32 = 0;
    for (int64_t k = 0; k < s->k; k++) {
        double x = at(args->dtype, args->a, i * s->a_row + k * s->a_k),
               y = at(args->dtype, args->b, k * s->b_k + j * s->b_col);
        volatile double product64 = x * y;
        volatile float product32 = (float)x * (float)y;
        sum64 = sum64 + product64;
        sum32 = sum32 + product32;
    }
    return args->dtype == CDDP_F64 ? sum64 : (double)sum32;
}

static void stated_product(const cd_matmul_args *args, unsigned char *wanted)
{
    const cd_matmul_shape *s = &args->shape;
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t j = 0; j < s->n; j++) {
            unsigned char *cell =
                wanted + (size_t)(i * s->dst_row + j * s->dst_col) * cddp_dtype_bytes(args->dtype);
            double old = cd_element_get(args->dtype, cell);
            cd_element_set(args->dtype, cell, stated_sum(args, i, j));
            if (args->accumulate)
                cd_element_set(args->dtype, cell, old + cd_element_get(args->dtype, cell));
        }
}

static void check_product(matrices *m, cd_matmul_args args, cd_isa isa)
{
    cddp_error err = CDDP_ERROR_INIT;
    memcpy(m->wanted, m->dst, sizeof m->dst);
    args.dst = m->dst;
    args.a = m->a;
    args.b = m->b;
    stated_product(&args, m->wanted);
    assert_ok(cd_matmul(&args, isa, NULL, &err), &err);
    assert_memory_equal(m->dst, m->wanted, sizeof m->dst); /* also what lies around the result */
}

static cd_matmul_shape shape_of(int64_t m, int64_t n, int64_t k, bool a_transposed,
                                bool b_transposed)
{
    return (cd_matmul_shape){.m = m,
                             .n = n,
                             .k = k,
                             .a_row = a_transposed ? 1 : k + 2,
                             .a_k = a_transposed ? m + 3 : 1,
                             .b_k = b_transposed ? 1 : n + 1,
                             .b_col = b_transposed ? k + 5 : 1,
                             .dst_row = n + 4,
                             .dst_col = 1};
}

TEST(matmul, every_version_has_the_bits_of_the_plain_loop)
{
    static const int64_t sizes[][3] = {{1, 1, 1},
                                       {1, 71, 53},
                                       {37, 1, 53},
                                       {37, 71, 1},
                                       {6, 16, 53},
                                       {7, 17, 13},
                                       {8, 32, 40},
                                       {9, 33, 41},
                                       {37, 71, 53},
                                       {3, 5, 0},
                                       /* thin: few columns, few rows, no sum at all; and more
                                       ** panels than stay together */
                                       {71, 3, 53},
                                       {70, 4, 40},
                                       {66, 2, 7},
                                       {4, 71, 54},
                                       {70, 2, 0},
                                       {7, 79, 72}};
    static const cddp_dtype dtypes[] = {CDDP_F32, CDDP_F64, CDDP_F16, CDDP_BF16};
    cd_prng prng = cd_prng_seed(cd_test_seed());
    matrices *m = calloc(1, sizeof *m);
    for (int isa = CD_ISA_PORTABLE; isa < CD_ISA_COUNT; isa++)
        for (size_t d = 0; d < 4 && cd_isa_is_available((cd_isa)isa); d++)
            for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
                for (int variant = 0; variant < 8; variant++) {
                    cd_matmul_args args = {.dtype = dtypes[d], .accumulate = (variant & 4) != 0};
                    args.shape =
                        shape_of(sizes[i][0], sizes[i][1], sizes[i][2], variant & 1, variant & 2);
                    fill_random(&prng, dtypes[d], m->a);
                    fill_random(&prng, dtypes[d], m->b);
                    fill_random(&prng, dtypes[d], m->dst);
                    cd_test_row("version %d, %s, (%d, %d, %d), variant %d", isa,
                                cddp_dtype_name(dtypes[d]), (int)sizes[i][0], (int)sizes[i][1],
                                (int)sizes[i][2], variant);
                    check_product(m, args, (cd_isa)isa);
                }
    free(m);
}

TEST(matmul, a_row_does_not_depend_on_the_rows_around_it)
{
    cd_prng prng = cd_prng_seed(cd_test_seed());
    cddp_error err = CDDP_ERROR_INIT;
    matrices *m = calloc(1, sizeof *m);
    fill_random(&prng, CDDP_F32, m->a);
    fill_random(&prng, CDDP_F32, m->b);
    cd_matmul_args all = {.dtype = CDDP_F32,
                          .dst = m->wanted,
                          .a = m->a,
                          .b = m->b,
                          .shape = shape_of(M_MAX, N_MAX, K_MAX, false, false)};
    assert_ok(cd_matmul(&all, cd_isa_best(), NULL, &err), &err);
    for (int64_t rows = 1; rows <= M_MAX; rows++)
        for (int64_t first = 0; first + rows <= M_MAX; first += 5) {
            cd_matmul_args part = all;
            part.shape.m = rows;
            part.a = m->a + (size_t)(first * all.shape.a_row) * 4;
            part.dst = m->dst;
            assert_ok(cd_matmul(&part, cd_isa_best(), NULL, &err), &err);
            for (int64_t i = 0; i < rows; i++)
                assert_memory_equal(m->dst + i * all.shape.dst_row * 4,
                                    m->wanted + (first + i) * all.shape.dst_row * 4, N_MAX * 4);
        }
    free(m);
}

TEST(matmul, the_device_takes_transposed_and_strided_views)
{
    fixture f = FIXTURE_INIT;
    const cddp_device *cpu = cddp_device_cpu();
    cddp_tensor a = fixture_make(&f, cpu, CDDP_F32, SIZES(2, 3)),
                b = fixture_make(&f, cpu, CDDP_F32, SIZES(2, 2));
    cddp_tensor dst = fixture_make(&f, cpu, CDDP_F32, SIZES(3, 2)), turned = fixture_permuted(&dst);
    float got[6];
    fixture_write(&f, &a, (float[]){1, 2, 3, 4, 5, 6});
    fixture_write(&f, &b, (float[]){1, 10, 100, 1000});
    assert_ok(cpu->matmul(&dst, &(cddp_matmul){.a = &a, .b = &b, .a_transposed = true}, NULL,
                          &f.err),
              &f.err);
    fixture_read(&f, &dst, got);
    assert_memory_equal(got, ((float[]){401, 4010, 502, 5020, 603, 6030}), sizeof got);
    assert_ok(
        cpu->matmul(&turned,
                    &(cddp_matmul){.a = &a, .b = &b, .a_transposed = true, .b_transposed = true},
                    NULL, &f.err),
        &f.err);
    fixture_read(&f, &turned, got);
    assert_memory_equal(got, ((float[]){41, 4100, 52, 5200, 63, 6300}), sizeof got);
    assert_ok(cpu->matmul(&turned,
                          &(cddp_matmul){.a = &a,
                                         .b = &b,
                                         .a_transposed = true,
                                         .b_transposed = true,
                                         .accumulate = true},
                          NULL, &f.err),
              &f.err);
    fixture_read(&f, &turned, got);
    assert_true(got[0] == 82 && got[5] == 12600);
    fixture_fini(&f);
}

/* Up to 256 rows sums run over four lanes, above over 256. */
TEST(orthonormalize, columns_become_orthonormal_and_span_what_they_did)
{
    static const int64_t rows[] = {8, 60, 256, 257, 1000};
    static double before[1000 * 8], after[1000 * 8];
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        for (int64_t i = 0; i < rows[r] * 8; i++)
            before[i] = after[i] = (double)(int64_t)(cd_prng_next(&prng) % 2001) / 1000 - 1;
        cd_orthonormalize(after, rows[r], 8, 0);
        for (int64_t x = 0; x < 8; x++) {
            double rest = 0;
            for (int64_t y = 0; y < 8; y++) {
                double sum = 0;
                for (int64_t row = 0; row < rows[r]; row++)
                    sum += after[row * 8 + x] * after[row * 8 + y];
                cd_test_row("%lld rows, columns %lld and %lld: %g", (long long)rows[r],
                            (long long)x, (long long)y, sum);
                assert_true(fabs(sum - (x == y)) < 0x1p-52 * (double)rows[r]);
            }
            /* The column that it was is a sum of those up to it; three rows tell. */
            for (int64_t row = 0; row < 3; row++) {
                double left = before[row * 8 + x];
                for (int64_t y = 0; y <= x; y++) {
                    double along = 0;
                    for (int64_t i = 0; i < rows[r]; i++)
                        along += before[i * 8 + x] * after[i * 8 + y];
                    left -= along * after[row * 8 + y];
                }
                rest += fabs(left);
            }
            assert_true(rest < 1e-10);
        }
    }
}

TEST(orthonormalize, what_depends_becomes_zero_epsilon_shortens_and_what_is_not_finite_stays)
{
    double twice[] = {3, 6, 0, 4, 8, 0}, shorter[] = {3, 4}, lost[] = {NAN, 1, 1, 2};
    double overflown[] = {1, INFINITY, 0, 2};
    cd_orthonormalize(twice, 2, 3, 0);
    assert_true(twice[0] == 3 * (1.0 / 5) && twice[3] == 4 * (1.0 / 5));
    assert_true(twice[1] == 0 && twice[4] == 0 && twice[2] == 0 && twice[5] == 0);
    cd_orthonormalize(shorter, 2, 1, 5);
    assert_true(shorter[0] == 3 * 0.1 && shorter[1] == 4 * 0.1);
    cd_orthonormalize(lost, 2, 2, 0);
    assert_true(isnan(lost[0]) && isnan(lost[1]));
    cd_orthonormalize(overflown, 2, 2, 0);
    assert_true(overflown[0] == 1 && isnan(overflown[1]));
}

TEST_MAIN()
