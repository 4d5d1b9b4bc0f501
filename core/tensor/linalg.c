/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix product in register tiles.
**
**            NR columns              A tile of MR rows × NR columns keeps its sums in registers
**        ┌───────┐ panel of b,       while k runs from 0 to the end; a is broadcast, a row of
**      k │░░░░░░░│ packed k-major,   the panel is one vector load. The sum over k is never split:
**        └───────┘ zero-padded       so its order is the same in every tile shape, and a tile at
**   a ┌────┐ ┌───────┐               the border, padded, gives the bits that a full one gives.
**  MR │    │ │ tile  │
**     └────┘ └───────┘                Limitations: the packed panel is k × NR elements, so beyond a
**                                     k of some 10,000 it leaves the L2 cache and speed drops.
**
** The same tile body is compiled for several instruction sets; only element-wise multiply and add
** occur, each rounded, so the width of a vector cannot change a bit.
**
** Low rank makes thin products, which only move memory, so what counts is that large matrices are
** walked along their rows:
**   few columns   the transpose is made instead: products commute, and then it is
**   few rows      all sums stay in memory that is small, and b is read once from its begin to its
**                 end;
**   few k         the panels of many columns fit the cache together, and a row of the result is
**                 written to its end. */
#include "core/tensor/linalg.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/tensor/kernels.h"

#include <string.h>

/* One tile with its version's width: tile (rows, width) = a (rows, k) × panel (k, width). */
typedef struct tile_args {
    const void *a; /* first element of the tile's first row */
    int64_t a_row, a_k;
    const void *panel;
    int64_t panel_stride; /* elements from one k to the next */
    int64_t k;
} tile_args;

/* tile: (rows, width), packed, to be overwritten */
typedef void (*tile_fn)(const tile_args *args, void *tile);

#define ROWS_MAX 8
#define WIDTH_MAX 32
#define FEW 4             /* rows or columns of a thin result */
#define LONG 64           /* columns from which few rows are worth sums in memory */
#define GROUP_BYTES 32768 /* of panels that stay in the cache together */

#if defined(__GNUC__)
/* Vectors in the compiler's own notation: element-wise, any target, no intrinsics; a scalar factor
** is broadcast. A tile is two vectors wide. Its sums are variables, not an array: compilers keep
** only those in registers. */
#define ZERO(r) vector s##r##0 = {0}, s##r##1 = {0};
#define STEP(r)                 \
    s##r##0 += a[r * row] * b0; \
    s##r##1 += a[r * row] * b1;
#define KEEP(r)                                         \
    memcpy(sums + r * WIDTH, &s##r##0, sizeof s##r##0); \
    memcpy(sums + r * WIDTH + WIDTH / 2, &s##r##1, sizeof s##r##1);
#define ROWS_1(X) X(0)
#define ROWS_4(X) X(0) X(1) X(2) X(3)
#define ROWS_6(X) ROWS_4(X) X(4) X(5)
#define ROWS_8(X) ROWS_6(X) X(6) X(7)
#define TILE(name, attributes, T, bytes, ROWS)                                               \
    attributes static void name(const tile_args *args, void *tile)                           \
    {                                                                                        \
        typedef T vector __attribute__((vector_size(bytes)));                                \
        typedef T loose __attribute__((vector_size(bytes), aligned(sizeof(T)),               \
                                       may_alias)); /* lies anywhere */                      \
        enum { WIDTH = 2 * (bytes) / sizeof(T) };                                            \
        const T *a = args->a, *panel = args->panel;                                          \
        const int64_t row = args->a_row;                                                     \
        T *sums = tile;                                                                      \
        ROWS(ZERO)                                                                           \
        for (int64_t k = 0; k < args->k; k++, a += args->a_k, panel += args->panel_stride) { \
            const vector b0 = *(const loose *)(const void *)panel;                           \
            const vector b1 = *(const loose *)(const void *)(panel + WIDTH / 2);             \
            ROWS(STEP)                                                                       \
        }                                                                                    \
        ROWS(KEEP)                                                                           \
    }
#else
#define ROWS_1 1
#define ROWS_4 4
#define TILE(name, attributes, T, bytes, ROWS)                                                    \
    static void name(const tile_args *args, void *tile)                                           \
    {                                                                                             \
        enum { WIDTH = 2 * (bytes) / sizeof(T) };                                                 \
        T sums[ROWS][WIDTH];                                                                      \
        memset(sums, 0, sizeof sums);                                                             \
        const T *a = args->a, *panel = args->panel;                                               \
        for (int64_t k = 0; k < args->k; k++, a += args->a_k, panel += args->panel_stride)        \
            for (int r = 0; r < ROWS; r++)                                                        \
                for (int j = 0; j < (int)WIDTH; j++) sums[r][j] += a[r * args->a_row] * panel[j]; \
        memcpy(tile, sums, sizeof sums);                                                          \
    }
#endif

#if defined(__GNUC__) && defined(__x86_64__)
#define CD_HAS_X86 1
#define TARGET(isa) __attribute__((target(isa)))
TILE(tile_f32_avx2, TARGET("avx2"), float, 32, ROWS_6)
TILE(line_f32_avx2, TARGET("avx2"), float, 32, ROWS_1)
TILE(tile_f64_avx2, TARGET("avx2"), double, 32, ROWS_6)
TILE(line_f64_avx2, TARGET("avx2"), double, 32, ROWS_1)
TILE(tile_f32_avx512, TARGET("avx512f"), float, 64, ROWS_8)
TILE(line_f32_avx512, TARGET("avx512f"), float, 64, ROWS_1)
TILE(tile_f64_avx512, TARGET("avx512f"), double, 64, ROWS_8)
TILE(line_f64_avx512, TARGET("avx512f"), double, 64, ROWS_1)
#else
#define CD_HAS_X86 0
#endif
TILE(tile_f32, , float, 16, ROWS_4)
TILE(line_f32, , float, 16, ROWS_1)
TILE(tile_f64, , double, 16, ROWS_4)
TILE(line_f64, , double, 16, ROWS_1)

/* sums (m, n), packed and zero at first, with b's rows contiguous: four k at a time, in order. */
#define FLAT(name, attributes, T)                                                               \
    attributes static void name(const cd_matmul_args *args, void *to)                           \
    {                                                                                           \
        const cd_matmul_shape *s = &args->shape;                                                \
        const T *b = args->b;                                                                   \
        int64_t k = 0;                                                                          \
        for (; k + 4 <= s->k; k += 4, b += 4 * s->b_k)                                          \
            for (int64_t r = 0; r < s->m; r++) {                                                \
                const T *a = (const T *)args->a + r * s->a_row + k * s->a_k, *b1 = b + s->b_k,  \
                        *b2 = b1 + s->b_k, *b3 = b2 + s->b_k;                                   \
                const T x0 = a[0], x1 = a[s->a_k], x2 = a[2 * s->a_k], x3 = a[3 * s->a_k];      \
                T *restrict sums = (T *)to + r * s->n;                                          \
                for (int64_t j = 0; j < s->n; j++)                                              \
                    sums[j] = (((sums[j] + x0 * b[j]) + x1 * b1[j]) + x2 * b2[j]) + x3 * b3[j]; \
            }                                                                                   \
        for (; k < s->k; k++, b += s->b_k)                                                      \
            for (int64_t r = 0; r < s->m; r++) {                                                \
                const T x = ((const T *)args->a)[r * s->a_row + k * s->a_k];                    \
                T *restrict sums = (T *)to + r * s->n;                                          \
                for (int64_t j = 0; j < s->n; j++) sums[j] += x * b[j];                         \
            }                                                                                   \
    }
#if CD_HAS_X86
FLAT(flat_f32_avx2, TARGET("avx2"), float)
FLAT(flat_f64_avx2, TARGET("avx2"), double)
#endif
FLAT(flat_f32, , float)
FLAT(flat_f64, , double)

typedef void (*flat_fn)(const cd_matmul_args *args, void *sums);

static flat_fn flat_of(cd_isa isa, bool is_f64)
{
#if CD_HAS_X86
    if (isa != CD_ISA_PORTABLE) return is_f64 ? flat_f64_avx2 : flat_f32_avx2;
#endif
    (void)isa;
    return is_f64 ? flat_f64 : flat_f32;
}

/* A pair of versions: full tiles, and single rows for the rest. */
typedef struct tile_version {
    tile_fn tile, line;
    int64_t rows, width;
} tile_version;

static tile_version version_of(cd_isa isa, bool is_f64)
{
#if CD_HAS_X86
    if (isa == CD_ISA_AVX512)
        return is_f64 ? (tile_version){tile_f64_avx512, line_f64_avx512, 8, 16}
                      : (tile_version){tile_f32_avx512, line_f32_avx512, 8, 32};
    if (isa == CD_ISA_AVX2)
        return is_f64 ? (tile_version){tile_f64_avx2, line_f64_avx2, 6, 8}
                      : (tile_version){tile_f32_avx2, line_f32_avx2, 6, 16};
#endif
    (void)isa;
    return is_f64 ? (tile_version){tile_f64, line_f64, 4, 4}
                  : (tile_version){tile_f32, line_f32, 4, 8};
}

bool cd_isa_is_available(cd_isa isa)
{
#if CD_HAS_X86
    if (isa == CD_ISA_AVX512) return __builtin_cpu_supports("avx512f") != 0;
    if (isa == CD_ISA_AVX2) return __builtin_cpu_supports("avx2") != 0;
#endif
    return isa == CD_ISA_PORTABLE;
}

cd_isa cd_isa_best(void)
{
#if CD_HAS_X86
    /* Zen 4 splits 512-bit operations: 98 GFLOP/s with AVX2, 75 with AVX-512
    ** (bench/tensor_bench.c). */
    if (cd_isa_is_available(CD_ISA_AVX512) && !__builtin_cpu_is("amd")) return CD_ISA_AVX512;
    if (cd_isa_is_available(CD_ISA_AVX2)) return CD_ISA_AVX2;
#endif
    return CD_ISA_PORTABLE;
}

/* Copies columns first … first + width - 1 of b, k-major; columns beyond n are zeros. When k runs
** along the rows of b, one line of each row is read at a time. Rows at a distance of a power of two
** would evict each other from the cache. */
#define PACK(T, name)                                                                            \
    static void name(const cd_matmul_args *args, int64_t first, int64_t width, T *panel)         \
    {                                                                                            \
        enum { LINE = 64 / sizeof(T) };                                                          \
        const cd_matmul_shape *s = &args->shape;                                                 \
        const int64_t valid = s->n - first < width ? s->n - first : width,                       \
                      ahead = s->b_k == 1 ? LINE : 1;                                            \
        const T *b = (const T *)args->b + first * s->b_col;                                      \
        for (int64_t k = 0; k < s->k; k += ahead, b += ahead * s->b_k, panel += ahead * width) { \
            const int64_t here = s->k - k < ahead ? s->k - k : ahead;                            \
            for (int64_t j = 0; j < valid; j++)                                                  \
                for (int64_t i = 0; i < here; i++) panel[i * width + j] = b[j * s->b_col + i];   \
            for (int64_t i = 0; i < here && valid < width; i++)                                  \
                for (int64_t j = valid; j < width; j++) panel[i * width + j] = 0;                \
        }                                                                                        \
    }
PACK(float, pack_f32)
PACK(double, pack_f64)

/* Where a finished tile goes. */
typedef struct tile_place {
    int64_t row, rows;       /* of the result */
    int64_t column, columns; /* valid ones */
    int64_t width;
} tile_place;

#define STORE(T, name)                                                                    \
    static void name(const cd_matmul_args *args, const tile_place *p, const T *tile)      \
    {                                                                                     \
        const cd_matmul_shape *s = &args->shape;                                          \
        for (int64_t r = 0; r < p->rows; r++) {                                           \
            T *dst = (T *)args->dst + (p->row + r) * s->dst_row + p->column * s->dst_col; \
            const T *sums = tile + r * p->width;                                          \
            if (s->dst_col == 1 && !args->accumulate) {                                   \
                memcpy(dst, sums, (size_t)p->columns * sizeof *sums);                     \
                continue;                                                                 \
            }                                                                             \
            for (int64_t j = 0; j < p->columns; j++) {                                    \
                T *d = dst + j * s->dst_col;                                              \
                *d = args->accumulate ? *d + sums[j] : sums[j];                           \
            }                                                                             \
        }                                                                                 \
    }
STORE(float, store_f32)
STORE(double, store_f64)

/* Panels of neighbouring columns. */
typedef struct panel_group {
    int64_t column, count; /* its first column of the result; panels */
    char *packed;
    size_t panel_bytes;
} panel_group;

/* With few rows a panel is read too seldom to be worth packing. */
static bool is_direct(const cd_matmul_args *args, const tile_version *version, int64_t column)
{
    const cd_matmul_shape *s = &args->shape;
    return s->b_col == 1 && s->n - column >= version->width && s->m <= 2 * version->rows;
}

static void pack_group(const cd_matmul_args *args, const tile_version *version,
                       const panel_group *g)
{
    for (int64_t i = 0; i < g->count; i++) {
        int64_t column = g->column + i * version->width;
        void *panel = g->packed + (size_t)i * g->panel_bytes;
        if (is_direct(args, version, column)) continue;
        if (args->dtype == CDDP_F64)
            pack_f64(args, column, version->width, panel);
        else
            pack_f32(args, column, version->width, panel);
    }
}

/* All rows of the group's columns, row by row. */
static void run_group(const cd_matmul_args *args, const tile_version *version, const panel_group *g)
{
    const cd_matmul_shape *s = &args->shape;
    const bool is_f64 = args->dtype == CDDP_F64;
    const int64_t element = is_f64 ? 8 : 4;
    tile_place place = {.width = version->width};
    tile_args t = {.a_row = s->a_row, .a_k = s->a_k, .k = s->k};
    double tile[ROWS_MAX * WIDTH_MAX]; /* as T; sized for the larger one */
    for (place.row = 0; place.row < s->m; place.row += place.rows) {
        place.rows = s->m - place.row >= version->rows ? version->rows : 1;
        t.a = (const char *)args->a + place.row * s->a_row * element;
        for (int64_t i = 0; i < g->count; i++) {
            place.column = g->column + i * version->width;
            place.columns =
                s->n - place.column < version->width ? s->n - place.column : version->width;
            bool direct = is_direct(args, version, place.column);
            t.panel = direct ? (const char *)args->b + place.column * element
                             : g->packed + (size_t)i * g->panel_bytes;
            t.panel_stride = direct ? s->b_k : version->width;
            (place.rows == 1 ? version->line : version->tile)(&t, tile);
            if (is_f64)
                store_f64(args, &place, tile);
            else
                store_f32(args, &place, (const float *)(const void *)tile);
        }
    }
}

/* One row after the other of a result of few long rows. */
static cddp_status matmul_flat(const cd_matmul_args *args, cd_isa isa,
                               const cddp_allocator *allocator, cddp_error *err)
{
    const cd_matmul_shape *s = &args->shape;
    const bool is_f64 = args->dtype == CDDP_F64;
    const size_t bytes = (size_t)(s->m * s->n) * (is_f64 ? 8 : 4);
    tile_place place = {.rows = s->m, .columns = s->n, .width = s->n};
    void *sums = cd_allocate(allocator, bytes);
    if (sums == NULL) return cd_fail_memory(err, "%zu bytes of sums in matmul", bytes);
    memset(sums, 0, bytes);
    flat_of(isa, is_f64)(args, sums);
    if (is_f64)
        store_f64(args, &place, sums);
    else
        store_f32(args, &place, sums);
    cd_release(allocator, sums, bytes);
    return CDDP_OK;
}

static cddp_status matmul_tiled(const cd_matmul_args *args, cd_isa isa,
                                const cddp_allocator *allocator, cddp_error *err)
{
    const cd_matmul_shape *s = &args->shape;
    const bool is_f64 = args->dtype == CDDP_F64;
    const tile_version version = version_of(isa, is_f64);
    const int64_t panels = (s->n + version.width - 1) / version.width;
    panel_group g = {.panel_bytes = (size_t)(s->k * version.width) * (is_f64 ? 8 : 4)};
    int64_t together = g.panel_bytes > 0 ? GROUP_BYTES / (int64_t)g.panel_bytes : panels;
    together = together < 1 ? 1 : together > panels ? panels : together;
    const size_t bytes = (size_t)together * g.panel_bytes;
    g.packed = cd_allocate(allocator, bytes);
    if (g.packed == NULL)
        return cd_fail_memory(err, "%zu bytes of packed operands in matmul", bytes);
    for (int64_t first = 0; first < panels; first += together) {
        g.column = first * version.width;
        g.count = panels - first < together ? panels - first : together;
        pack_group(args, &version, &g);
        run_group(args, &version, &g);
    }
    cd_release(allocator, g.packed, bytes);
    return CDDP_OK;
}

/* dstᵀ = bᵀ·aᵀ. */
static cd_matmul_args turned(const cd_matmul_args *args)
{
    const cd_matmul_shape *s = &args->shape;
    cd_matmul_args t = *args;
    t.a = args->b;
    t.b = args->a;
    t.shape = (cd_matmul_shape){.m = s->n,
                                .n = s->m,
                                .k = s->k,
                                .a_row = s->b_col,
                                .a_k = s->b_k,
                                .b_k = s->a_k,
                                .b_col = s->a_row,
                                .dst_row = s->dst_col,
                                .dst_col = s->dst_row};
    return t;
}

/* f32 and f64. */
static cddp_status matmul_wide(const cd_matmul_args *args, cd_isa isa,
                               const cddp_allocator *allocator, cddp_error *err)
{
    const bool is_turned = args->shape.n <= FEW && args->shape.n < args->shape.m;
    const cd_matmul_args thin = is_turned ? turned(args) : *args;
    const cd_matmul_shape *s = &thin.shape;
    if (s->m <= FEW && s->n >= LONG && s->b_col == 1)
        return CD_PASS(matmul_flat(&thin, isa, allocator, err));
    return CD_PASS(matmul_tiled(&thin, isa, allocator, err));
}

/* A dense f32 copy (rows, columns) of a strided 16-bit matrix. */
typedef struct widening {
    cddp_dtype dtype;
    const uint16_t *src;
    int64_t rows, columns, row_stride, column_stride;
} widening;

static void widen(const widening *w, float *dst)
{
    for (int64_t r = 0; r < w->rows; r++)
        for (int64_t c = 0; c < w->columns; c++) {
            uint16_t h = w->src[r * w->row_stride + c * w->column_stride];
            *dst++ = w->dtype == CDDP_F16 ? cd_f16_to_f32(h) : cd_bf16_to_f32(h);
        }
}

/* Rounds the sums; an accumulation is one more operation, with its own rounding. */
static void narrow(const cd_matmul_args *args, const float *sums)
{
    const cd_matmul_shape *s = &args->shape;
    for (int64_t r = 0; r < s->m; r++)
        for (int64_t c = 0; c < s->n; c++) {
            uint16_t *d = (uint16_t *)args->dst + r * s->dst_row + c * s->dst_col, rounded;
            cd_convert(args->dtype, &rounded, CDDP_F32, sums++, 1);
            if (args->accumulate)
                cd_kernel_reduce(CDDP_RED_SUM, args->dtype)(d, &rounded, 1, NULL);
            else
                *d = rounded;
        }
}

/* f16 and bf16: through dense f32 copies of all three matrices. */
static cddp_status matmul_16(const cd_matmul_args *args, cd_isa isa,
                             const cddp_allocator *allocator, cddp_error *err)
{
    const cd_matmul_shape *s = &args->shape;
    const size_t count = (size_t)(s->m * s->k + s->k * s->n + s->m * s->n);
    float *a = cd_allocate_array(allocator, count, sizeof *a);
    if (a == NULL) return cd_fail_memory(err, "%zu widened elements of matmul", count);
    float *b = a + s->m * s->k, *sums = b + s->k * s->n;
    widen(&(widening){args->dtype, args->a, s->m, s->k, s->a_row, s->a_k}, a);
    widen(&(widening){args->dtype, args->b, s->k, s->n, s->b_k, s->b_col}, b);
    cd_matmul_args wide = {.shape = {.m = s->m,
                                     .n = s->n,
                                     .k = s->k,
                                     .a_row = s->k,
                                     .a_k = 1,
                                     .b_k = s->n,
                                     .b_col = 1,
                                     .dst_row = s->n,
                                     .dst_col = 1},
                           .dtype = CDDP_F32,
                           .dst = sums,
                           .a = a,
                           .b = b};
    cddp_status status = matmul_wide(&wide, isa, allocator, err);
    if (status == CDDP_OK) narrow(args, sums);
    cd_release(allocator, a, count * sizeof *a);
    return status;
}

cddp_status cd_matmul(const cd_matmul_args *args, cd_isa isa, const cddp_allocator *allocator,
                      cddp_error *err)
{
    if (args->shape.m == 0 || args->shape.n == 0) return CDDP_OK;
    if (args->dtype == CDDP_F64 || args->dtype == CDDP_F32)
        return CD_PASS(matmul_wide(args, isa, allocator, err));
    return CD_PASS(matmul_16(args, isa, allocator, err));
}
