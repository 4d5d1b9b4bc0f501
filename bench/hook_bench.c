/* SPDX-License-Identifier: Apache-2.0 */
/* What comm hooks compute, beside what the memory does: casts against a copy of the same bytes, the reproducible hook's
** kernels against a plain addition. Every pair is measured in the same rounds; quote the ratios.
**
**     hook_bench [--rounds N] [--mib N | --kib N]     arrays of so many MiB or KiB of f32
*/
#define _POSIX_C_SOURCE 200809L
#include "core/base/alloc.h"
#include "core/base/os.h"
#include "core/base/prng.h"
#include "core/hooks/bins.h"
#include "core/tensor/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_MAX 101

typedef struct arrays {
    size_t numel;
    float *x, *y;
    uint16_t *half;
    int32_t *rows;
    cd_bins bins;
    cd_bins_span span;
} arrays;

static void copy(arrays *a) { memcpy(a->y, a->x, a->numel * sizeof(float)); }
/* As many bytes as a cast between f32 and a half type moves. */
static void copy_three_quarters(arrays *a) { memcpy(a->y, a->x, a->numel * 3); }
static void to_f16(arrays *a) { cd_convert_f32_to_f16(a->half, a->x, a->numel); }
static void from_f16(arrays *a) { cd_convert_f16_to_f32(a->y, a->half, a->numel); }
static void to_bf16(arrays *a) { cd_convert_f32_to_bf16(a->half, a->x, a->numel); }
static void from_bf16(arrays *a) { cd_convert_bf16_to_f32(a->y, a->half, a->numel); }
static void plain_add(arrays *a)
{
    float *restrict y = a->y;
    const float *restrict x = a->x;
    for (size_t i = 0; i < a->numel; i++) y[i] += x[i];
}
static void bins_add(arrays *a)
{
    if (cd_bins_add(&a->bins, a->x, NULL) != CDDP_OK) abort();
}
static void bins_span(arrays *a) { a->span = cd_bins_span_of(CDDP_F32, a->x, (int64_t)a->numel); }
static void bins_encode(arrays *a)
{
    cd_bins_encode_values(CDDP_F32, a->x, (int64_t)a->numel, &a->span, a->rows, (int64_t)a->numel);
}
static void bins_decode(arrays *a)
{
    cd_bins_decode(CDDP_F32, a->rows, (int64_t)a->numel, &a->span, 3, a->y, (int64_t)a->numel);
}

typedef struct phase {
    const char *name;
    void (*run)(arrays *);
    int against; /* the phase whose time divides this one's; -1: none */
    double times[ROUNDS_MAX];
} phase;

static phase phases[] = {
    {"copy", copy, -1, {0}},
    {"copy of 3/4 of the bytes", copy_three_quarters, -1, {0}},
    {"f32 to f16", to_f16, 1, {0}},
    {"f16 to f32", from_f16, 1, {0}},
    {"f32 to bf16", to_bf16, 1, {0}},
    {"bf16 to f32", from_bf16, 1, {0}},
    {"plain addition", plain_add, -1, {0}},
    {"bins: accumulate", bins_add, 6, {0}},
    {"bins: find the span", bins_span, 6, {0}},
    {"bins: encode", bins_encode, 6, {0}},
    {"bins: decode", bins_decode, 6, {0}},
};
#define PHASES (sizeof phases / sizeof phases[0])

/* Whatever else the machine does only ever adds time: the best round is the one that was disturbed least. */
static double best(const phase *p, int count)
{
    double least = p->times[0];
    for (int r = 1; r < count; r++) least = p->times[r] < least ? p->times[r] : least;
    return least;
}

static void fill(arrays *a)
{
    cd_prng p = cd_prng_seed(5);
    for (size_t i = 0; i < a->numel; i++) {
        double u = (double)cd_prng_between(&p, 1, 1u << 30) / 0x1p30, sign = cd_prng_between(&p, 0, 1) ? 1 : -1;
        a->x[i] = (float)(sign * u * u * u * 0.01); /* seven orders of magnitude, as gradients have them */
        a->y[i] = 0;
    }
}

int main(int argc, char **argv)
{
    int rounds = 21;
    size_t kib = 100 << 10; /* beyond the caches */
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--rounds") == 0) rounds = atoi(argv[i + 1]);
        if (strcmp(argv[i], "--mib") == 0) kib = (size_t)atoi(argv[i + 1]) << 10;
        if (strcmp(argv[i], "--kib") == 0) kib = (size_t)atoi(argv[i + 1]);
    }
    if (rounds < 1 || rounds > ROUNDS_MAX || kib < 1 || kib > 1024 << 10) {
        fprintf(stderr, "hook_bench: rounds are 1 to %d, arrays 1 KiB to 1024 MiB\n", ROUNDS_MAX);
        return 2;
    }
    arrays a = {.numel = kib << 8};
    cddp_error err = CDDP_ERROR_INIT;
    a.x = malloc(a.numel * sizeof *a.x);
    a.y = malloc(a.numel * sizeof *a.y);
    a.half = malloc(a.numel * sizeof *a.half);
    if (a.x == NULL || a.y == NULL || a.half == NULL ||
        cd_bins_init(&a.bins, NULL, CDDP_F32, (int64_t)a.numel, &err) != CDDP_OK)
        return 2;
    fill(&a);
    bins_span(&a);
    int64_t rows = cd_bins_rows(&a.span);
    a.rows = calloc(a.numel * (size_t)rows, sizeof *a.rows);
    if (a.rows == NULL) return 2;
    to_f16(&a);
    for (int r = -1; r < rounds; r++)
        for (size_t i = 0; i < PHASES; i++) {
            phases[i].run(&a); /* so that every measured run finds its own arrays in the caches, or itself to blame */
            uint64_t from = cd_os_now_ns();
            phases[i].run(&a);
            if (r >= 0) phases[i].times[r] = (double)(cd_os_now_ns() - from);
        }
    printf("%zu KiB of f32, %d rounds; the bins in use are %lld, %s\n", kib, rounds, (long long)rows,
           a.bins.spilled ? "some sums needed more than an f64" : "every sum fitted an f64");
    for (size_t i = 0; i < PHASES; i++) {
        printf("  %-26s %9.3f ms", phases[i].name, best(&phases[i], rounds) * 1e-6);
        if (phases[i].against >= 0)
            printf("   %.2f times %s", best(&phases[i], rounds) / best(&phases[phases[i].against], rounds),
                   phases[phases[i].against].name);
        printf("\n");
    }
    cd_bins_fini(&a.bins);
    free(a.x);
    free(a.y);
    free(a.half);
    free(a.rows);
    return 0;
}
