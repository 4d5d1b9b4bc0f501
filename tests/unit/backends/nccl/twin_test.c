/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda device beside its twin, the cpu device: every operation, every dtype, odd sizes,
** unaligned and permuted views, all bit patterns (NaN, infinities, subnormals). Equal bits are
** asked for everywhere, but for the payload of a NaN that arithmetic makes or passes on.
**
** One source, two programs: cuda_twin over fake_cuda, where kernels.cu is C++ and runs on the host;
** cuda_twin_gpu over CUDA, skipped with the reason where there is no GPU.
*/
#include "backends/nccl/cuda.h"
#include "core/base/prng.h"
#include "core/tensor/dtype.h"
#include "core/tensor/linalg.h"
#include "core/tensor/quantizer.h"
#include "core/tensor/view.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROOM 40000

static const cddp_device *cuda(void) { return &cd_cuda_device; }

/* A tensor twice: the same view of the same bytes on both devices. */
typedef struct twin {
    cddp_tensor host, gpu;
    int64_t numel; /* of the storage */
} twin;

static cddp_error err = CDDP_ERROR_INIT;
static unsigned char bytes[ROOM * 8], more[ROOM * 8];

typedef enum filling { RANDOM_BITS, SMALL_NUMBERS } filling;

static void fill_bytes(cd_prng *prng, cddp_dtype dtype, int64_t numel, filling how)
{
    const size_t width = cddp_dtype_bytes(dtype);
    for (int64_t i = 0; i < numel; i++) {
        uint64_t bits = cd_prng_next(prng);
        if (how == RANDOM_BITS)
            memcpy(bytes + (size_t)i * width, &bits, width);
        else
            cd_element_set(dtype, bytes + (size_t)i * width,
                           (double)(int64_t)(bits % 2001) / 8 - 125);
        /* A quarter of the floats are special: exponent all ones, or zero. */
        if (how == RANDOM_BITS && dtype == CDDP_F32 && i % 4 == 0) {
            uint32_t special = (uint32_t)bits & (i % 8 == 0 ? 0x807fffffu : 0xffffffffu);
            if (i % 8 != 0) special |= 0x7f800000u;
            memcpy(bytes + (size_t)i * width, &special, 4);
        }
    }
}

/* sizes[0] == -1: one dimension of numel. offset: elements before the view. */
static twin make(cd_prng *prng, cddp_dtype dtype, int64_t numel, int64_t offset, filling how)
{
    twin t = {.numel = numel + offset};
    void *host = NULL, *gpu = NULL;
    const cddp_device *cpu = cddp_device_cpu();
    assert_true(t.numel <= ROOM);
    assert_ok(cpu->allocate(cpu, dtype, t.numel, &host, &err), &err);
    assert_ok(cuda()->allocate(cuda(), dtype, t.numel, &gpu, &err), &err);
    fill_bytes(prng, dtype, t.numel, how);
    t.host = cddp_tensor_of(cpu, host, 0, dtype, &t.numel, 1);
    t.gpu = cddp_tensor_of(cuda(), gpu, 0, dtype, &t.numel, 1);
    assert_ok(cpu->write(&t.host, bytes, (size_t)t.numel * cddp_dtype_bytes(dtype), &err), &err);
    assert_ok(cuda()->write(&t.gpu, bytes, (size_t)t.numel * cddp_dtype_bytes(dtype), &err), &err);
    t.host = cddp_tensor_of(cpu, host, offset, dtype, &numel, 1);
    t.gpu = cddp_tensor_of(cuda(), gpu, offset, dtype, &numel, 1);
    return t;
}

static void drop(twin *t)
{
    t->host.device->release(t->host.device, t->host.dtype, t->numel, t->host.storage);
    cuda()->release(cuda(), t->gpu.dtype, t->numel, t->gpu.storage);
}

static void shape(twin *t, const int64_t *sizes, const int64_t *strides, uint32_t dim_count)
{
    cddp_tensor *views[] = {&t->host, &t->gpu};
    for (int v = 0; v < 2; v++) {
        views[v]->dim_count = dim_count;
        for (uint32_t i = 0; i < dim_count; i++) {
            views[v]->sizes[i] = sizes[i];
            views[v]->strides[i] = strides[i];
        }
    }
}

static bool is_nan_at(cddp_dtype dtype, const unsigned char *element)
{
    float part;
    if (dtype != CDDP_C64)
        return cddp_dtype_is_float(dtype) && isnan(cd_element_get(dtype, element));
    memcpy(&part, element, 4);
    return isnan(part);
}

/* The whole storage of both, so that what must not change is looked at, too. */
static void assert_twins(const twin *t, bool exact_nan)
{
    const cddp_dtype dtype = t->host.dtype == CDDP_C64 ? CDDP_F32 : t->host.dtype;
    const int64_t numel = t->host.dtype == CDDP_C64 ? 2 * t->numel : t->numel;
    const size_t width = cddp_dtype_bytes(dtype);
    cddp_tensor host = cddp_tensor_of(t->host.device, t->host.storage, 0, dtype, &numel, 1);
    cddp_tensor gpu = cddp_tensor_of(cuda(), t->gpu.storage, 0, dtype, &numel, 1);
    assert_ok(host.device->read(&host, bytes, (size_t)numel * width, &err), &err);
    assert_ok(cuda()->read(&gpu, more, (size_t)numel * width, &err), &err);
    for (int64_t i = 0; i < numel; i++) {
        const unsigned char *a = bytes + (size_t)i * width, *b = more + (size_t)i * width;
        if (memcmp(a, b, width) == 0 || (!exact_nan && is_nan_at(dtype, a) && is_nan_at(dtype, b)))
            continue;
        uint64_t x = 0, y = 0;
        memcpy(&x, a, width);
        memcpy(&y, b, width);
        fail_msg("element %lld of %s: cpu %llx, cuda %llx", (long long)i, cddp_dtype_name(dtype),
                 (unsigned long long)x, (unsigned long long)y);
    }
}

static const int64_t numels[] = {1, 2, 3, 15, 16, 17, 255, 257, 1021, 16384 + 5};
#define NUMELS (sizeof numels / sizeof numels[0])

typedef enum operation { SCALE, DIVIDE, RECIPROCAL, AXPY, REDUCE, OPERATIONS } operation;

static cddp_status run(const cddp_device *d, operation what, cddp_red_op op, const cddp_tensor *dst,
                       const cddp_tensor *src)
{
    const bool whole = cd_dtype_is_integer(dst->dtype);
    switch (what) {
    case SCALE:
        return d->scale(dst, src, whole ? -3 : 0.3, NULL, &err);
    case DIVIDE:
        return d->divide(dst, src, 3, NULL, &err);
    case RECIPROCAL:
        return d->multiply_reciprocal(dst, src, whole ? 1 : 3, NULL, &err);
    case AXPY:
        return d->axpy(dst, whole ? 5 : -0.7, src, NULL, &err);
    case REDUCE:
    case OPERATIONS:
        break;
    }
    return d->reduce(op, dst, src, NULL, &err);
}

static void compare(cd_prng *prng, operation what, cddp_red_op op, cddp_dtype dtype)
{
    for (size_t i = 0; i < NUMELS; i++) {
        const int64_t offset = (int64_t)i % 4;
        twin dst = make(prng, dtype, numels[i], offset, RANDOM_BITS),
             src = make(prng, dtype, numels[i], (offset + (int64_t)(i / 4)) % 3, RANDOM_BITS);
        cd_test_row("operation %d %s, %s, %lld elements", (int)what, cddp_red_op_name(op),
                    cddp_dtype_name(dtype), (long long)numels[i]);
        cddp_status wanted = run(dst.host.device, what, op, &dst.host, &src.host),
                    got = run(cuda(), what, op, &dst.gpu, &src.gpu);
        assert_int_equal(got, wanted);
        assert_twins(&dst, false);
        assert_twins(&src, true);
        drop(&src);
        drop(&dst);
    }
}

TEST(cuda, arithmetic_has_the_bits_of_the_cpu)
{
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (cddp_dtype dtype = 0; dtype < CDDP_DTYPE_COUNT; dtype++) {
        for (operation what = 0; what < REDUCE; what++) compare(&prng, what, CDDP_RED_SUM, dtype);
        for (cddp_red_op op = 0; op < CDDP_RED_COUNT; op++) compare(&prng, REDUCE, op, dtype);
    }
}

TEST(cuda, division_by_large_counts_rounds_once)
{
    cd_prng prng = cd_prng_seed(cd_test_seed());
    static const int64_t counts[] = {1, 7, 2048, 2049, 65537, (1 << 24) + 1, INT64_C(1) << 39};
    for (cddp_dtype dtype = 0; dtype < CDDP_DTYPE_COUNT; dtype++)
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            twin t = make(&prng, dtype, 1021, 1, RANDOM_BITS);
            cd_test_row("%s divided by %lld", cddp_dtype_name(dtype), (long long)counts[i]);
            assert_ok(t.host.device->divide(&t.host, &t.host, counts[i], NULL, &err), &err);
            assert_ok(cuda()->divide(&t.gpu, &t.gpu, counts[i], NULL, &err), &err);
            assert_twins(&t, false);
            drop(&t);
        }
}

/* f32 ↔ f16, bf16 keep the payload of a NaN. */
static bool keeps_payload(cddp_dtype to, cddp_dtype from)
{
    bool to_16 = to == CDDP_F16 || to == CDDP_BF16, from_16 = from == CDDP_F16 || from == CDDP_BF16;
    return to == from || (from == CDDP_F32 && to_16) || (to == CDDP_F32 && from_16);
}

TEST(cuda, conversions_have_the_bits_of_the_cpu)
{
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (cddp_dtype to = 0; to < CDDP_DTYPE_COUNT; to++)
        for (cddp_dtype from = 0; from < CDDP_DTYPE_COUNT; from++)
            for (size_t i = 0; i < NUMELS; i++) {
                twin src = make(&prng, from, numels[i], (int64_t)i % 3,
                                i % 2 == 0 ? RANDOM_BITS : SMALL_NUMBERS);
                twin dst = make(&prng, to, numels[i], (int64_t)i % 4, SMALL_NUMBERS);
                cd_test_row("%s to %s, %lld elements", cddp_dtype_name(from), cddp_dtype_name(to),
                            (long long)numels[i]);
                assert_ok(dst.host.device->copy(&dst.host, &src.host, NULL, &err), &err);
                assert_ok(cuda()->copy(&dst.gpu, &src.gpu, NULL, &err), &err);
                assert_twins(&dst, keeps_payload(to, from));
                drop(&dst);
                drop(&src);
            }
}

/* All 65536 bit patterns of both 16-bit dtypes, and every f32 near the edges of theirs. */
TEST(cuda, every_16_bit_pattern_converts_as_on_the_cpu)
{
    static const cddp_dtype dtypes[] = {CDDP_F16, CDDP_BF16};
    for (int d = 0; d < 2; d++)
        for (int half = 0; half < 2; half++) {
            const int64_t numel = 32768;
            cd_prng prng = cd_prng_seed(1);
            twin narrow = make(&prng, dtypes[d], numel, 0, SMALL_NUMBERS),
                 wide = make(&prng, CDDP_F32, numel, 0, SMALL_NUMBERS);
            for (uint32_t i = 0; i < 32768; i++) {
                uint16_t bits = (uint16_t)(i + (half ? 32768u : 0u));
                memcpy(bytes + 2 * i, &bits, 2);
            }
            assert_ok(narrow.host.device->write(&narrow.host, bytes, 65536, &err), &err);
            assert_ok(cuda()->write(&narrow.gpu, bytes, 65536, &err), &err);
            assert_ok(wide.host.device->copy(&wide.host, &narrow.host, NULL, &err), &err);
            assert_ok(cuda()->copy(&wide.gpu, &narrow.gpu, NULL, &err), &err);
            assert_twins(&wide, true);
            drop(&wide);
            drop(&narrow);
        }
}

static void views_of(twin *dst, twin *src, int layout)
{
    static const int64_t sizes[] = {5, 7, 11};
    static const int64_t row_major[] = {77, 11, 1}, last_slowest[] = {1, 5, 35},
                         gaps[] = {160, 22, 2};
    const int64_t *strides[] = {row_major, last_slowest, gaps};
    shape(dst, sizes, strides[layout % 3], 3);
    shape(src, sizes, strides[layout / 3], 3);
}

TEST(cuda, every_pair_of_layouts_is_walked_in_logical_order)
{
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (int layout = 0; layout < 9; layout++)
        for (cddp_dtype dtype = 0; dtype < CDDP_DTYPE_COUNT; dtype++) {
            twin dst = make(&prng, dtype, 900, 3, SMALL_NUMBERS),
                 src = make(&prng, dtype, 900, 1, SMALL_NUMBERS);
            views_of(&dst, &src, layout);
            cd_test_row("layout %d, %s", layout, cddp_dtype_name(dtype));
            assert_ok(dst.host.device->copy(&dst.host, &src.host, NULL, &err), &err);
            assert_ok(cuda()->copy(&dst.gpu, &src.gpu, NULL, &err), &err);
            assert_twins(&dst, true);
            assert_ok(dst.host.device->reduce(CDDP_RED_SUM, &dst.host, &src.host, NULL, &err),
                      &err);
            assert_ok(cuda()->reduce(CDDP_RED_SUM, &dst.gpu, &src.gpu, NULL, &err), &err);
            assert_ok(dst.host.device->fill(&src.host, 7, NULL, &err), &err);
            assert_ok(cuda()->fill(&src.gpu, 7, NULL, &err), &err);
            assert_twins(&dst, false);
            assert_twins(&src, true);
            drop(&src);
            drop(&dst);
        }
}

#define MANY 3000

/* A bucket of thousands of gradients: sizes 0 … 40, one large one, dtypes that differ where nothing
** is scaled. */
static void gather_at(cddp_copy_scale scale, cddp_dtype dtype, bool mixed, int64_t offset)
{
    static cddp_copy_pair host_pairs[MANY], gpu_pairs[MANY];
    cd_prng prng = cd_prng_seed(cd_test_seed());
    twin bucket = make(&prng, dtype, 39000, 1, SMALL_NUMBERS),
         grads = make(&prng, dtype, 39000, offset, RANDOM_BITS);
    twin other = make(&prng, mixed ? CDDP_F32 : dtype, 39000, 0, RANDOM_BITS);
    size_t count = 0;
    int64_t at = 0;
    while (count < MANY && at < 38000) {
        int64_t numel = count == 5 ? 20001 : (int64_t)(cd_prng_next(&prng) % 13);
        if (at + numel > 39000) break;
        const twin *from = mixed && count % 3 == 1 ? &other : &grads;
        host_pairs[count] = (cddp_copy_pair){cddp_tensor_slice(&bucket.host, at, numel),
                                             cddp_tensor_slice(&from->host, at, numel)};
        gpu_pairs[count] = (cddp_copy_pair){cddp_tensor_slice(&bucket.gpu, at, numel),
                                            cddp_tensor_slice(&from->gpu, at, numel)};
        if (count % 7 == 3 && numel % 2 == 0 && numel > 0) { /* not parallel: goes on its own */
            const int64_t sizes[] = {2, numel / 2}, strides[] = {1, 2};
            twin view = {.host = host_pairs[count].src, .gpu = gpu_pairs[count].src};
            shape(&view, sizes, strides, 2);
            host_pairs[count].src = view.host;
            gpu_pairs[count].src = view.gpu;
        }
        at += numel;
        count++;
    }
    assert_true(count > 1000);
    assert_ok(bucket.host.device->copy_many(bucket.host.device, host_pairs, count, scale, 3, NULL,
                                            &err),
              &err);
    assert_ok(cuda()->copy_many(cuda(), gpu_pairs, count, scale, 3, NULL, &err), &err);
    assert_twins(&bucket, scale == CDDP_COPY_PLAIN && !mixed);
    drop(&other);
    drop(&grads);
    drop(&bucket);
}

/* Both sides off a boundary by the same, where wide accesses begin behind it, and by different
** amounts. */
static void gather(cddp_copy_scale scale, cddp_dtype dtype, bool mixed)
{
    gather_at(scale, dtype, mixed, 1);
    gather_at(scale, dtype, mixed, 2);
}

TEST(cuda, a_bucket_is_gathered_and_scaled_as_on_the_cpu)
{
    for (cddp_dtype dtype = 0; dtype < CDDP_DTYPE_COUNT; dtype++) {
        cd_test_row("%s", cddp_dtype_name(dtype));
        gather(CDDP_COPY_PLAIN, dtype, false);
        gather(CDDP_COPY_DIVIDE, dtype, false);
        if (!cd_dtype_is_integer(dtype)) gather(CDDP_COPY_MULTIPLY, dtype, false);
    }
    gather(CDDP_COPY_PLAIN, CDDP_F16, true);
    gather(CDDP_COPY_PLAIN, CDDP_BF16, true);
}

TEST(cuda, a_batch_of_nothing_and_of_empty_tensors_is_nothing)
{
    cd_prng prng = cd_prng_seed(1);
    twin t = make(&prng, CDDP_F32, 8, 0, SMALL_NUMBERS);
    cddp_copy_pair empty = {cddp_tensor_slice(&t.gpu, 0, 0), cddp_tensor_slice(&t.gpu, 4, 0)};
    assert_ok(cuda()->copy_many(cuda(), NULL, 0, CDDP_COPY_PLAIN, 1, NULL, &err), &err);
    assert_ok(cuda()->copy_many(cuda(), &empty, 1, CDDP_COPY_DIVIDE, 2, NULL, &err), &err);
    assert_twins(&t, true);
    drop(&t);
}

TEST(cuda, whole_tensor_results)
{
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (cddp_dtype dtype = 0; dtype < CDDP_DTYPE_COUNT; dtype++) {
        twin t = make(&prng, dtype, 20011, 1, SMALL_NUMBERS);
        double norm = 0, twin_norm = 0;
        uint64_t digest = 0, twin_digest = 0;
        int64_t index = 0, twin_index = 0;
        cd_test_row("%s", cddp_dtype_name(dtype));
        assert_ok(t.host.device->norm(&t.host, &norm, &err), &err);
        assert_ok(cuda()->norm(&t.gpu, &twin_norm, &err), &err);
        /* Two orders of one sum of n squares: at most 2(n + 1) roundings apart, half that after the
        ** root. */
        assert_true(fabs(norm - twin_norm) <= norm * 40100 * 0x1p-53);
        assert_ok(t.host.device->digest(&t.host, &digest, &err), &err);
        assert_ok(cuda()->digest(&t.gpu, &twin_digest, &err), &err);
        assert_int_equal(digest, twin_digest);
        assert_ok(cuda()->find_nonfinite(&t.gpu, &twin_index, &err), &err);
        assert_int_equal(twin_index, -1);
        if (!cd_dtype_is_integer(dtype)) {
            cddp_tensor late = cddp_tensor_slice(&t.gpu, 19000, 1),
                        early = cddp_tensor_slice(&t.gpu, 10808, 1); /* of one lane */
            assert_ok(cuda()->fill(&late, NAN, NULL, &err), &err);
            assert_ok(cuda()->find_nonfinite(&t.gpu, &twin_index, &err), &err);
            assert_int_equal(twin_index, 19000);
            assert_ok(cuda()->fill(&early, -INFINITY, NULL, &err), &err);
            assert_ok(cuda()->find_nonfinite(&t.gpu, &twin_index, &err), &err);
            assert_int_equal(twin_index, 10808);
        }
        (void)index;
        drop(&t);
    }
}

TEST(cuda, products_of_the_kernel_have_the_bits_of_the_cpu)
{
    cd_prng prng = cd_prng_seed(cd_test_seed());
    static const cddp_dtype dtypes[] = {CDDP_F64, CDDP_F32, CDDP_F16, CDDP_BF16};
    /* Strides that cuBLAS does not take, so that this is our kernel wherever it runs. */
    static const int64_t a_sizes[] = {7, 13}, b_sizes[] = {13, 5}, c_sizes[] = {7, 5};
    static const int64_t a_strides[] = {30, 2}, b_strides[] = {12, 2}, c_strides[] = {11, 2};
    for (int d = 0; d < 4; d++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            twin a = make(&prng, dtypes[d], 300, 0, SMALL_NUMBERS),
                 b = make(&prng, dtypes[d], 300, 1, SMALL_NUMBERS);
            twin c = make(&prng, dtypes[d], 100, 2, SMALL_NUMBERS);
            shape(&a, a_sizes, a_strides, 2);
            shape(&b, b_sizes, b_strides, 2);
            shape(&c, c_sizes, c_strides, 2);
            cd_test_row("%s%s", cddp_dtype_name(dtypes[d]), accumulate ? ", accumulated" : "");
            cddp_matmul host = {.a = &a.host, .b = &b.host, .accumulate = accumulate},
                        gpu = {.a = &a.gpu, .b = &b.gpu, .accumulate = accumulate};
            assert_ok(c.host.device->matmul(&c.host, &host, NULL, &err), &err);
            assert_ok(cuda()->matmul(&c.gpu, &gpu, NULL, &err), &err);
            assert_twins(&c, true);
            drop(&c);
            drop(&b);
            drop(&a);
        }
}

/* Small integers: every order of summation is exact, so cuBLAS and the cpu agree bit for bit. */
TEST(cuda, products_of_small_integers_are_exact_in_every_orientation)
{
    static const int64_t m = 33, k = 21, n = 10;
    for (int which = 0; which < 8; which++) {
        const bool ta = which & 1, tb = which & 2, by_columns = which & 4;
        cd_prng prng = cd_prng_seed(5);
        twin a = make(&prng, CDDP_F32, m * k, 0, SMALL_NUMBERS),
             b = make(&prng, CDDP_F32, k * n, 0, SMALL_NUMBERS);
        twin c = make(&prng, CDDP_F32, m * n, 0, SMALL_NUMBERS);
        const int64_t a_sizes[] = {ta ? k : m, ta ? m : k}, b_sizes[] = {tb ? n : k, tb ? k : n},
                      c_sizes[] = {m, n};
        const int64_t a_strides[] = {a_sizes[1], 1}, b_strides[] = {b_sizes[1], 1}, rows[] = {n, 1},
                      columns[] = {1, m};
        shape(&a, a_sizes, a_strides, 2);
        shape(&b, b_sizes, b_strides, 2);
        shape(&c, c_sizes, by_columns ? columns : rows, 2);
        cd_test_row("a%s, b%s, result by %s", ta ? " transposed" : "", tb ? " transposed" : "",
                    by_columns ? "columns" : "rows");
        cddp_matmul host = {.a = &a.host, .b = &b.host, .a_transposed = ta, .b_transposed = tb};
        cddp_matmul gpu = {.a = &a.gpu, .b = &b.gpu, .a_transposed = ta, .b_transposed = tb};
        assert_ok(c.host.device->matmul(&c.host, &host, NULL, &err), &err);
        assert_ok(cuda()->matmul(&c.gpu, &gpu, NULL, &err), &err);
        assert_twins(&c, true);
        drop(&c);
        drop(&b);
        drop(&a);
    }
}

static const cddp_dtype floats[] = {CDDP_F64, CDDP_F32, CDDP_F16, CDDP_BF16};

/* The cpu's result for the same view: in f64, and rounded at the end. */
static void orthonormalize_on_host(const cddp_tensor *m, double epsilon)
{
    static double work[4 * 1021];
    const size_t width = cddp_dtype_bytes(m->dtype);
    for (int store = 0; store < 2; store++) {
        for (int64_t i = 0; i < m->sizes[0] * m->sizes[1]; i++) {
            int64_t at = i / m->sizes[1] * m->strides[0] + i % m->sizes[1] * m->strides[1];
            void *element = (char *)m->storage + (size_t)(m->offset + at) * width;
            if (store)
                cd_element_set(m->dtype, element, work[i]);
            else
                work[i] = cd_element_get(m->dtype, element);
        }
        if (!store) cd_orthonormalize(work, m->sizes[0], m->sizes[1], epsilon);
    }
}

TEST(cuda, orthonormalisation_has_the_bits_of_the_cpu)
{
    static const int64_t rows[] = {1, 3, 255, 256, 257, 1021};
    for (int d = 0; d < 4; d++) {
        for (int64_t columns = 1; columns <= 4; columns++) {
            for (size_t r = 0; r < 6; r++) {
                cd_prng prng = cd_prng_seed(cd_test_seed());
                const int64_t sizes[] = {rows[r], columns}, by_rows[] = {columns, 1},
                              by_columns[] = {1, rows[r]};
                twin t = make(&prng, floats[d], rows[r] * columns, 3, SMALL_NUMBERS);
                cd_test_row("%s, %lld rows, %lld columns", cddp_dtype_name(floats[d]),
                            (long long)rows[r], (long long)columns);
                shape(&t, sizes, r % 2 == 0 ? by_rows : by_columns, 2);
                /* The last of three columns is the first one: it becomes zero. */
                for (int copy = 0; copy < 2 && columns == 3; copy++) {
                    cddp_tensor *whole = copy ? &t.gpu : &t.host, from = *whole, to = *whole;
                    from.sizes[1] = to.sizes[1] = 1;
                    to.offset += 2 * whole->strides[1];
                    assert_ok(whole->device->copy(&to, &from, NULL, &err), &err);
                }
                const double epsilon = columns == 4 ? 1e-8 : 0;
                orthonormalize_on_host(&t.host, epsilon);
                assert_ok(cuda()->orthonormalize(&t.gpu, epsilon, NULL, &err), &err);
                assert_twins(&t, false);
                drop(&t);
            }
        }
    }
}

TEST(cuda, codes_of_8_bits_have_the_bits_of_the_cpu)
{
    static const struct {
        int64_t rows, length;
    } cases[] = {{1, 1}, {1, 33}, {1, 3001}, {7, 512}, {3, 31}, {130, 5}};
    static uint8_t codes[2 * 8192];
    static cd_quantizer rows[2 * 256];
    static float sum[8192];
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        for (int how = 0; how < 2; how++) {
            const int64_t n = cases[c].rows, l = cases[c].length, all = n * l, sizes[] = {n, l},
                          two[] = {n, 2};
            const int64_t parts[] = {2, n, l}, of_parts[] = {2, n, 2};
            cd_prng prng = cd_prng_seed(c);
            cd_test_row("%lld rows of %lld, %s", (long long)n, (long long)l,
                        how == RANDOM_BITS ? "bits" : "numbers");
            twin code = make(&prng, CDDP_U8, 2 * all, 0, RANDOM_BITS),
                 row = make(&prng, CDDP_F32, 2 * 2 * n, 0, SMALL_NUMBERS);
            twin to = make(&prng, CDDP_F32, all - all / 3, 0, SMALL_NUMBERS);
            for (int64_t part = 0; part < 2; part++) {
                twin value = make(&prng, CDDP_F32, all, 0, (filling)how);
                const float *x = value.host.storage;
                shape(&value, sizes, (const int64_t[]){l, 1}, 2);
                for (int64_t r = 0; r < n; r++) {
                    cd_quantizer_range range = {0, 0};
                    for (int64_t i = 0; i < l; i++) range = cd_quantizer_see(range, x[r * l + i]);
                    rows[part * n + r] = cd_quantizer_of(range);
                    for (int64_t i = 0; i < l; i++)
                        codes[(part * n + r) * l + i] =
                            cd_quantizer_encode(rows[part * n + r], x[r * l + i]);
                }
                cddp_tensor code_part =
                    cddp_tensor_of(cuda(), code.gpu.storage, part * all, CDDP_U8, sizes, 2);
                cddp_tensor row_part =
                    cddp_tensor_of(cuda(), row.gpu.storage, part * 2 * n, CDDP_F32, two, 2);
                assert_ok(cuda()->quantize(&code_part, &row_part, &value.gpu, NULL, &err), &err);
                drop(&value);
            }
            for (int64_t i = 0; i < all - all / 3; i++) {
                sum[i] = 0;
                for (int64_t part = 0; part < 2; part++)
                    sum[i] += cd_quantizer_decode(rows[part * n + i / l], codes[part * all + i]);
            }
            memcpy(code.host.storage, codes, (size_t)(2 * all));
            memcpy(row.host.storage, rows, (size_t)(2 * n) * sizeof *rows);
            memcpy(to.host.storage, sum, (size_t)(all - all / 3) * sizeof *sum);
            shape(&code, parts, (const int64_t[]){all, l, 1}, 3);
            shape(&row, of_parts, (const int64_t[]){2 * n, 2, 1}, 3);
            assert_ok(cuda()->dequantize_sum(&to.gpu, &code.gpu, &row.gpu, NULL, &err), &err);
            assert_twins(&code, true);
            assert_twins(&row, false);
            assert_twins(&to, false);
            drop(&to);
            drop(&row);
            drop(&code);
        }
    }
}

/* Larger first, NaN above everything, then the smaller index; by repeated search. */
static void take_on_host(const cddp_tensor *flat, int64_t k, bool *chosen)
{
    const size_t width = cddp_dtype_bytes(flat->dtype);
    const int64_t numel = cddp_tensor_numel(flat);
    memset(chosen, 0, (size_t)numel);
    for (int64_t taken = 0; taken < k; taken++) {
        int64_t best = -1;
        double largest = -1;
        for (int64_t i = 0; i < numel; i++) {
            double x = fabs(cd_element_get(flat->dtype, (char *)flat->storage +
                                                            (size_t)(flat->offset + i) * width));
            if (chosen[i] || (best >= 0 && (isnan(largest) || x <= largest))) continue;
            best = i;
            largest = x;
        }
        chosen[best] = true;
    }
}

TEST(cuda, the_largest_are_taken_and_added_as_on_the_cpu)
{
    static bool chosen[9001];
    static const int64_t sizes[] = {1, 5, 255, 9001};
    for (int d = 0; d < 4; d++) {
        const size_t width = cddp_dtype_bytes(floats[d]);
        for (size_t n = 0; n < 4; n++) {
            const int64_t numel = sizes[n],
                          counts[] = {1, numel / 3 > 90 ? 90 : numel / 3, numel > 255 ? 40 : numel};
            for (int c = 0; c < 6; c++) {
                const int64_t k = counts[c / 2];
                cd_prng prng = cd_prng_seed(cd_test_seed() + n);
                twin flat =
                    make(&prng, floats[d], numel, 1, c % 2 == 0 ? SMALL_NUMBERS : RANDOM_BITS);
                twin index = make(&prng, CDDP_I32, k, 0, SMALL_NUMBERS),
                     value = make(&prng, floats[d], k, 0, SMALL_NUMBERS);
                cd_test_row("%s, %lld of %lld", cddp_dtype_name(floats[d]), (long long)k,
                            (long long)numel);
                take_on_host(&flat.host, k, chosen);
                int32_t *indices = index.host.storage;
                char *values = value.host.storage, *elements = (char *)flat.host.storage + width;
                int64_t taken = 0;
                for (int64_t i = 0; i < numel; i++) {
                    if (!chosen[i]) continue;
                    indices[taken] = (int32_t)i;
                    memcpy(values + (size_t)taken++ * width, elements + (size_t)i * width, width);
                    memset(elements + (size_t)i * width, 0, width);
                }
                assert_ok(cuda()->take_largest(&flat.gpu, &index.gpu, &value.gpu, NULL, &err),
                          &err);
                assert_twins(&index, true);
                assert_twins(&value, true);
                assert_twins(&flat, true);
                for (int twice = 0; twice < 2; twice++) {
                    for (int64_t i = 0; i < k; i++) {
                        void *at = elements + (size_t)indices[i] * width;
                        cd_element_set(floats[d], at,
                                       cd_element_get(floats[d], at) +
                                           cd_element_get(floats[d], values + (size_t)i * width));
                    }
                    assert_ok(cuda()->add_at(&flat.gpu, &index.gpu, &value.gpu, NULL, &err), &err);
                }
                assert_twins(&flat, false);
                drop(&value);
                drop(&index);
                drop(&flat);
            }
        }
    }
}

TEST(cuda, an_index_that_is_not_there_becomes_a_nan)
{
    static const int32_t bad[] = {0, -1, 2};
    const int64_t three = 3;
    float numbers[3];
    cd_prng prng = cd_prng_seed(1);
    twin flat = make(&prng, CDDP_F32, 3, 0, SMALL_NUMBERS),
         index = make(&prng, CDDP_I32, 3, 0, SMALL_NUMBERS);
    cddp_tensor at = cddp_tensor_of(cuda(), index.gpu.storage, 0, CDDP_I32, &three, 1);
    assert_ok(cuda()->write(&at, bad, sizeof bad, &err), &err);
    assert_ok(cuda()->add_at(&flat.gpu, &at, &flat.gpu, NULL, &err), &err);
    assert_ok(cuda()->read(&flat.gpu, numbers, sizeof numbers, &err), &err);
    assert_true(isnan(numbers[0]));
    drop(&index);
    drop(&flat);
}

TEST(cuda, refuses_what_the_cpu_refuses)
{
    cd_prng prng = cd_prng_seed(1);
    twin f = make(&prng, CDDP_F32, 6, 0, SMALL_NUMBERS),
         i = make(&prng, CDDP_I32, 6, 0, SMALL_NUMBERS);
    cddp_tensor shorter = cddp_tensor_slice(&f.gpu, 0, 5);
    assert_fails(cuda()->copy(&f.gpu, &f.host, NULL, &err), CDDP_E_ARG, &err,
                 "go through read and write");
    assert_fails(cuda()->copy(&f.gpu, &shorter, NULL, &err), CDDP_E_ARG, &err, "copy");
    assert_fails(cuda()->divide(&f.gpu, &f.gpu, 0, NULL, &err), CDDP_E_ARG, &err, "at least 1");
    assert_fails(cuda()->scale(&i.gpu, &i.gpu, 0.5, NULL, &err), CDDP_E_UNSUPPORTED, &err, "0.5");
    assert_fails(cuda()->reduce(CDDP_RED_BAND, &f.gpu, &f.gpu, NULL, &err), CDDP_E_UNSUPPORTED,
                 &err, "reduce");
    assert_fails(cuda()->read(&f.gpu, bytes, 7, &err), CDDP_E_ARG, &err, "24 bytes");
    assert_fails(cuda()->matmul(&f.gpu, &(cddp_matmul){.a = &f.gpu, .b = &f.gpu}, NULL, &err),
                 CDDP_E_ARG, &err, "two-dimensional");
    assert_fails(cuda()->orthonormalize(&f.gpu, 0, NULL, &err), CDDP_E_ARG, &err,
                 "1 dimensions, not a floating matrix");
    assert_fails(cuda()->quantize(&i.gpu, &f.gpu, &f.gpu, NULL, &err), CDDP_E_ARG, &err,
                 "codes is of i32");
    assert_fails(cuda()->take_largest(&shorter, &i.gpu, &f.gpu, NULL, &err), CDDP_E_ARG, &err,
                 "6 indices and 6 values of 5");
    assert_fails(cuda()->add_at(&f.gpu, &f.gpu, &f.gpu, NULL, &err), CDDP_E_ARG, &err,
                 "indices is of f32");
    drop(&i);
    drop(&f);
}

/* Work on two streams, ordered by marks alone. */
TEST(cuda, marks_order_streams)
{
    cd_prng prng = cd_prng_seed(2);
    const cddp_device *d = cuda();
    twin a = make(&prng, CDDP_F32, 1021, 0, SMALL_NUMBERS),
         b = make(&prng, CDDP_F32, 1021, 0, SMALL_NUMBERS);
    cddp_stream *stream = NULL;
    cddp_mark *mark = NULL;
    assert_ok(d->stream_create(d, &stream, &err), &err);
    assert_ok(d->mark_create(d, &mark, &err), &err);
    for (int round = 0; round < 20; round++) {
        assert_ok(d->scale(&a.gpu, &a.gpu, 0.5, NULL, &err), &err);
        assert_ok(d->mark_record(d, mark, NULL, &err), &err);
        assert_ok(d->mark_wait(d, mark, stream, &err), &err);
        assert_ok(d->reduce(CDDP_RED_SUM, &b.gpu, &a.gpu, stream, &err), &err);
        assert_ok(d->mark_record(d, mark, stream, &err), &err);
        assert_ok(d->mark_wait(d, mark, NULL, &err), &err);
        assert_ok(a.host.device->scale(&a.host, &a.host, 0.5, NULL, &err), &err);
        assert_ok(a.host.device->reduce(CDDP_RED_SUM, &b.host, &a.host, NULL, &err), &err);
    }
    assert_twins(&b, true);
    assert_ok(d->stream_synchronize(d, stream, &err), &err);
    d->mark_destroy(d, mark);
    d->stream_destroy(d, stream);
    drop(&b);
    drop(&a);
}

/* The work of a repeated iteration: nothing waits for the GPU and nothing is allocated. */
TEST(cuda, a_steady_iteration_neither_waits_nor_allocates)
{
    cd_prng prng = cd_prng_seed(3);
    const cddp_device *d = cuda();
    twin bucket = make(&prng, CDDP_F32, 4096, 0, SMALL_NUMBERS),
         grad = make(&prng, CDDP_F32, 4096, 0, SMALL_NUMBERS);
    float control[16] = {1};
    uint64_t waits = 0, asked = 0;
    for (int round = 0; round < 3; round++) {
        void *scratch = NULL;
        cddp_copy_pair pairs[2] = {{cddp_tensor_slice(&bucket.gpu, 0, 2000),
                                    cddp_tensor_slice(&grad.gpu, 0, 2000)},
                                   {cddp_tensor_slice(&bucket.gpu, 2000, 2096),
                                    cddp_tensor_slice(&grad.gpu, 2000, 2096)}};
        cddp_tensor head = cddp_tensor_slice(&bucket.gpu, 0, 16);
        if (round == 2) {
            waits = cd_cuda_here.host_waits;
            asked = cd_cuda_here.memory.source_calls;
        }
        assert_ok(d->copy_many(d, pairs, 2, CDDP_COPY_DIVIDE, 4, NULL, &err), &err);
        assert_ok(d->write(&head, control, sizeof control, &err), &err);
        assert_ok(d->allocate(d, CDDP_F32, 777, &scratch, &err), &err);
        d->release(d, CDDP_F32, 777, scratch);
        assert_ok(d->axpy(&grad.gpu, -1, &bucket.gpu, NULL, &err), &err);
    }
    assert_int_equal(cd_cuda_here.host_waits, waits);
    assert_int_equal(cd_cuda_here.memory.source_calls, asked);
    drop(&grad);
    drop(&bucket);
}

int main(int argc, char **argv)
{
#ifdef CDDP_ON_GPU
    if (cd_cuda_probe(&err) != CDDP_OK) cd_test_skip_all(err.message);
#endif
    int failed = cd_test_main(argc, argv, __FILE__);
    cd_cuda_close(&cd_cuda_here);
    return failed;
}
