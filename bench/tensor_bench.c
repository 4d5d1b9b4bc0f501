/* SPDX-License-Identifier: Apache-2.0 */
/* Speed of the cpu device: the matrix product against OpenBLAS on one thread (where it is
** installed), and element-wise kernels against memcpy, which is what memory allows.
**
** Each number is the best of several runs: what disturbs a run only ever makes it slower.
** Usage: cddp-bench-tensor [matmul | memory]. Exit 1 when the product is below a quarter of
** OpenBLAS at 512³. */
#include "cddp/device.h"
#include "core/base/os.h"
#include "core/tensor/linalg.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(CDDP_BENCH_OPENBLAS)
#include <cblas.h>
#endif

typedef void (*work_fn)(void *context);

/* Seconds of the fastest of `tries` runs. */
static double best_seconds(work_fn work, void *context, int tries)
{
    double best = 1e9;
    for (int i = 0; i < tries; i++) {
        uint64_t start = cd_os_now_ns();
        work(context);
        double seconds = (double)(cd_os_now_ns() - start) * 1e-9;
        if (seconds < best) best = seconds;
    }
    return best;
}

static void require(cddp_status status, const cddp_error *err)
{
    if (status == CDDP_OK) return;
    fprintf(stderr, "%s: %s\n", cddp_status_text(status), err->message);
    exit(2);
}

/* ---- matrix product ---- */

typedef struct product {
    int64_t n;
    cd_isa isa;
    bool is_f64;
    void *a, *b, *c;
} product;

static void run_own(void *context)
{
    product *p = context;
    cddp_error err = CDDP_ERROR_INIT;
    cd_matmul_args args = {.dtype = p->is_f64 ? CDDP_F64 : CDDP_F32,
                           .dst = p->c,
                           .a = p->a,
                           .b = p->b,
                           .shape = {.m = p->n,
                                     .n = p->n,
                                     .k = p->n,
                                     .a_row = p->n,
                                     .a_k = 1,
                                     .b_k = p->n,
                                     .b_col = 1,
                                     .dst_row = p->n,
                                     .dst_col = 1}};
    require(cd_matmul(&args, p->isa, NULL, &err), &err);
}

#if defined(CDDP_BENCH_OPENBLAS)
static void run_openblas(void *context)
{
    product *p = context;
    const int n = (int)p->n;
    if (p->is_f64)
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, p->a, n, p->b, n, 0,
                    p->c, n);
    else
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, p->a, n, p->b, n, 0,
                    p->c, n);
}
#endif

static void fill(product *p)
{
    for (int64_t i = 0; i < p->n * p->n; i++) {
        double x = (double)(i * 37 % 64 - 31) / 16, y = (double)(i * 53 % 64 - 31) / 16;
        if (p->is_f64)
            ((double *)p->a)[i] = x, ((double *)p->b)[i] = y;
        else
            ((float *)p->a)[i] = (float)x, ((float *)p->b)[i] = (float)y;
    }
}

/* GFLOP/s of every version (* is the one that runs), and its ratio to OpenBLAS; 0 without it. */
static double bench_product(int64_t n, bool is_f64)
{
    static const char *const names[CD_ISA_COUNT] = {"portable", "avx2", "avx512"};
    const double operations = 2e-9 * (double)n * (double)n * (double)n;
    const int tries = n > 600 ? 5 : 20;
    size_t bytes = (size_t)(n * n) * (is_f64 ? 8 : 4);
    product p = {
        .n = n, .is_f64 = is_f64, .a = malloc(bytes), .b = malloc(bytes), .c = malloc(bytes)};
    double own[CD_ISA_COUNT] = {0}, ratio = 0;
    fill(&p);
    printf("matmul %s %4" PRId64 "³", is_f64 ? "f64" : "f32", n);
    for (int isa = CD_ISA_PORTABLE; isa < CD_ISA_COUNT; isa++) {
        p.isa = (cd_isa)isa;
        if (!cd_isa_is_available(p.isa)) continue;
        own[isa] = operations / best_seconds(run_own, &p, tries);
        printf("  %s%s %6.1f", names[isa], p.isa == cd_isa_best() ? "*" : "", own[isa]);
    }
#if defined(CDDP_BENCH_OPENBLAS)
    double blas = operations / best_seconds(run_openblas, &p, tries);
    ratio = own[cd_isa_best()] / blas;
    printf("  OpenBLAS %6.1f GFLOP/s  ratio %.2f\n", blas, ratio);
#else
    (void)own; /* nothing to divide by */
    printf("  GFLOP/s  (OpenBLAS not found)\n");
#endif
    free(p.a);
    free(p.b);
    free(p.c);
    return ratio;
}

static int bench_matmul(void)
{
    static const int64_t sizes[] = {64, 128, 256, 512, 1024};
    int status = 0;
#if defined(CDDP_BENCH_OPENBLAS)
    openblas_set_num_threads(1);
#endif
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        double ratio = bench_product(sizes[i], false);
        if (sizes[i] == 512 && ratio > 0 && ratio < 0.25) status = 1;
    }
    bench_product(512, true);
    return status;
}

/* ---- memory ---- */

enum { NUMEL = 1 << 24 };

typedef struct memory_case {
    const char *name;
    cddp_dtype dst_dtype, src_dtype;
    /* 0 copy, 1 scale, 2 sum, 3 multiply by 1/3, 4 divide by 3, 5 axpy, 6 norm, 7 digest, 8
    ** find_nonfinite */
    int op;
} memory_case;

typedef struct memory_run {
    const memory_case *what;
    cddp_tensor dst, src;
} memory_run;

static void run_memory(void *context)
{
    const memory_run *r = context;
    const cddp_device *cpu = cddp_device_cpu();
    cddp_error err = CDDP_ERROR_INIT;
    double norm;
    uint64_t digest;
    int64_t index;
    switch (r->what->op) {
    case 0:
        require(cpu->copy(&r->dst, &r->src, NULL, &err), &err);
        break;
    case 1:
        require(cpu->scale(&r->dst, &r->src, 1.5, NULL, &err), &err);
        break;
    case 2:
        require(cpu->reduce(CDDP_RED_SUM, &r->dst, &r->src, NULL, &err), &err);
        break;
    case 3:
        require(cpu->multiply_reciprocal(&r->dst, &r->src, 3, NULL, &err), &err);
        break;
    case 4:
        require(cpu->divide(&r->dst, &r->src, 3, NULL, &err), &err);
        break;
    case 5:
        require(cpu->axpy(&r->dst, 0.25, &r->src, NULL, &err), &err);
        break;
    case 6:
        require(cpu->norm(&r->src, &norm, &err), &err);
        break;
    case 7:
        require(cpu->digest(&r->src, &digest, &err), &err);
        break;
    default:
        require(cpu->find_nonfinite(&r->src, &index, &err), &err);
        break;
    }
}

/* Bytes that the operation must move at least. */
static double bytes_of(const memory_case *c)
{
    double dst = (double)cddp_dtype_bytes(c->dst_dtype),
           src = (double)cddp_dtype_bytes(c->src_dtype);
    if (c->op >= 6) return NUMEL * src;
    bool reads_dst = c->op == 2 || c->op == 5;
    return NUMEL * (src + dst * (reads_dst ? 2 : 1));
}

static void run_memcpy(void *context)
{
    const memory_run *r = context;
    memcpy(r->dst.storage, r->src.storage, NUMEL * sizeof(float));
}

static cddp_tensor make(cddp_dtype dtype)
{
    cddp_error err = CDDP_ERROR_INIT;
    void *storage;
    const int64_t numel = NUMEL;
    require(cddp_device_cpu()->allocate(cddp_device_cpu(), dtype, numel, &storage, &err), &err);
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), storage, 0, dtype, &numel, 1);
    require(cddp_device_cpu()->fill(&t, 1, NULL, &err), &err);
    return t;
}

static void release(const cddp_tensor *t)
{
    cddp_device_cpu()->release(cddp_device_cpu(), t->dtype, NUMEL, t->storage);
}

static int bench_memory(void)
{
    static const memory_case cases[] = {
        {"copy f32", CDDP_F32, CDDP_F32, 0},          {"cast f32 to f16", CDDP_F16, CDDP_F32, 0},
        {"cast f16 to f32", CDDP_F32, CDDP_F16, 0},   {"cast f32 to bf16", CDDP_BF16, CDDP_F32, 0},
        {"cast bf16 to f32", CDDP_F32, CDDP_BF16, 0}, {"scale f32", CDDP_F32, CDDP_F32, 1},
        {"sum f32", CDDP_F32, CDDP_F32, 2},           {"times 1/3 f32", CDDP_F32, CDDP_F32, 3},
        {"divide by 3 f32", CDDP_F32, CDDP_F32, 4},   {"axpy f32", CDDP_F32, CDDP_F32, 5},
        {"sum f16", CDDP_F16, CDDP_F16, 2},           {"times 1/3 f16", CDDP_F16, CDDP_F16, 3},
        {"divide by 3 f16", CDDP_F16, CDDP_F16, 4},   {"sum bf16", CDDP_BF16, CDDP_BF16, 2},
        {"norm f32", CDDP_F32, CDDP_F32, 6},          {"digest f32", CDDP_F32, CDDP_F32, 7},
        {"find_nonfinite f32", CDDP_F32, CDDP_F32, 8}};
    memory_run base = {.dst = make(CDDP_F32), .src = make(CDDP_F32)};
    const double memory = 2.0 * NUMEL * sizeof(float) / best_seconds(run_memcpy, &base, 7);
    printf("memcpy %6.1f GB/s (read and written)\n", memory * 1e-9);
    release(&base.dst);
    release(&base.src);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memory_run r = {.what = &cases[i],
                        .dst = make(cases[i].dst_dtype),
                        .src = make(cases[i].src_dtype)};
        double rate = bytes_of(&cases[i]) / best_seconds(run_memory, &r, 7);
        printf("%-20s %6.1f GB/s  %.2f of memcpy\n", cases[i].name, rate * 1e-9, rate / memory);
        release(&r.dst);
        release(&r.src);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (argc > 2 ||
        (what[0] != '\0' && strcmp(what, "matmul") != 0 && strcmp(what, "memory") != 0)) {
        fprintf(stderr, "usage: %s [matmul | memory]\n", argv[0]);
        return 2;
    }
    int status = 0;
    if (strcmp(what, "memory") != 0) status = bench_matmul();
    if (strcmp(what, "matmul") != 0) bench_memory();
    return status;
}
