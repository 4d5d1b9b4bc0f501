/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of comm hooks relative to memory: casts against a copy of the same bytes, the
** reproducible hook's kernels against a plain addition. Every pair is measured in the same rounds,
** by the processor's clock; quote the ratios. A window is four micro-steps, from bins or gradients
** without anything in them.
**
**     hook_bench [--limits] [--rounds N] [--isa portable|avx2|avx512]
**                [--mib N | --kib N | --sweep | --list NAME]
**
**     --mib, --kib    arrays of so many MiB or KiB of f32
**     --sweep         accumulation alone, a line for each size from 1 KiB to 100 MiB; takes minutes
**     --list          resnet50, tiny or mlp: additions go gradient by gradient, each into its
**                     own bins, as in a backward
**
** With --limits a ratio above its limit ends with 1. --isa: the kernel that accumulates, where it
** is not to be the fastest.
**
** What an exact accumulation can cost: it reads 4 bytes of f32 and reads and writes 8 of f64, a
** plain addition reads 8 and writes 4. Where bandwidth decides that is 20/12 = 1.67. Between, where
** the 8 bytes per element of one still fit a cache and the 12 of the other do not, the ratio is
** that of two levels of memory.
**
** The plain addition is the compiler's code for the loop on any processor of the architecture,
** without a call per array. The wide one is the same loop in AVX2, where available. Arrays start
** at different offsets of their pages. When a write is a little ahead of a read, modulo a page,
** processors confuse the two, and a plain addition takes five times as long (malloc places arrays
** of 16 KiB that way).
*/
#define _POSIX_C_SOURCE 200809L
#include "bench/list.h"
#include "core/base/alloc.h"
#include "core/base/prng.h"
#include "core/hooks/bins.h"
#include "core/tensor/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS_MAX 101
#define WINDOW 4       /* micro-steps */
#define LEAST_NS 200e3 /* of one measurement: reading the clock takes less than a hundredth of it */
#define PAGE ((size_t)4096)

typedef struct arrays {
    size_t numel;
    char *all; /* x, y and half */
    float *x, *y;
    uint16_t *half;
    int32_t *rows;
    bench_list gradients; /* one after the other; one, where there is no list */
    cd_bins bins[BENCH_PARAMETERS_MAX];
    cd_bins_span span;
} arrays;

static void copy(arrays *a) { memcpy(a->y, a->x, a->numel * sizeof(float)); }
/* As many bytes as a cast between f32 and a half type moves. */
static void copy_three_quarters(arrays *a) { memcpy(a->y, a->x, a->numel * 3); }
static void to_f16(arrays *a) { cd_convert_f32_to_f16(a->half, a->x, a->numel); }
static void from_f16(arrays *a) { cd_convert_f16_to_f32(a->y, a->half, a->numel); }
static void to_bf16(arrays *a) { cd_convert_f32_to_bf16(a->half, a->x, a->numel); }
static void from_bf16(arrays *a) { cd_convert_bf16_to_f32(a->y, a->half, a->numel); }
#define PLAIN_ADD(name, attributes)                                           \
    attributes static void name(arrays *a)                                    \
    {                                                                         \
        float *restrict y = a->y;                                             \
        const float *restrict x = a->x;                                       \
        for (size_t p = 0; p < a->gradients.count; p++) {                     \
            for (int64_t i = 0; i < a->gradients.numel[p]; i++) y[i] += x[i]; \
            x += a->gradients.numel[p], y += a->gradients.numel[p];           \
        }                                                                     \
    }
PLAIN_ADD(plain_add, )
#if defined(__GNUC__) && defined(__x86_64__)
PLAIN_ADD(wide_add_avx2, __attribute__((target("avx2"))))
static void wide_add(arrays *a)
{
    (cd_isa_is_available(CD_ISA_AVX2) ? wide_add_avx2 : plain_add)(a);
}
#else
static void wide_add(arrays *a) { plain_add(a); }
#endif
static void bins_add(arrays *a)
{
    const float *x = a->x;
    for (size_t p = 0; p < a->gradients.count; x += a->gradients.numel[p++])
        if (cd_bins_add(&a->bins[p], x, NULL) != CDDP_OK) abort();
}
/* Four micro-steps from the beginning, where there is nothing yet to add to. */
static void plain_window(arrays *a)
{
    copy(a);
    for (int k = 1; k < WINDOW; k++) plain_add(a);
}
static void bins_window(arrays *a)
{
    for (size_t p = 0; p < a->gradients.count; p++) cd_bins_clear(&a->bins[p]);
    for (int k = 0; k < WINDOW; k++) bins_add(a);
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
    int against;  /* the phase whose time divides this one's; -1: none */
    double limit; /* of the ratio; 0: none */
    int repeats;
    double times[ROUNDS_MAX]; /* nanoseconds of one run */
} phase;

/* A cast is to reach half of the bandwidth of a copy, an exact accumulation to cost at most two
** plain additions. */
static phase phases[] = {
    {"copy", copy, -1, 0, 1, {0}},
    {"copy of 3/4 of the bytes", copy_three_quarters, -1, 0, 1, {0}},
    {"f32 to f16", to_f16, 1, 2, 1, {0}},
    {"f16 to f32", from_f16, 1, 2, 1, {0}},
    {"f32 to bf16", to_bf16, 1, 2, 1, {0}},
    {"bf16 to f32", from_bf16, 1, 2, 1, {0}},
    {"plain addition", plain_add, -1, 0, 1, {0}},
    {"bins: accumulate", bins_add, 6, 2, 1, {0}},
    {"plain window", plain_window, -1, 0, 1, {0}},
    {"bins: window", bins_window, 8, 2, 1, {0}},
    {"bins: find the span", bins_span, 6, 0, 1, {0}},
    {"bins: encode", bins_encode, 6, 0, 1, {0}},
    {"bins: decode", bins_decode, 6, 0, 1, {0}},
    {"wide addition", wide_add, 6, 0, 1, {0}},
};
#define PHASES (sizeof phases / sizeof phases[0])

/* The measurements of --sweep. */
static const bool is_accumulation[PHASES] = {
    [6] = true, [7] = true, [8] = true, [9] = true, [13] = true};
static const size_t sweep_kib[] = {1,    2,    4,     8,     16,    32,    64,    256,
                                   1024, 4096, 16384, 24576, 32768, 40960, 65536, 102400};

static double processor_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double run(const phase *p, arrays *a)
{
    double from = processor_ns();
    for (int i = 0; i < p->repeats; i++) p->run(a);
    return (processor_ns() - from) / p->repeats;
}

/* Every phase runs until its own arrays are in the caches, or it is itself to blame, and often
** enough for the clock. */
static void measure(arrays *a, int rounds, bool is_sweep)
{
    for (size_t i = 0; i < PHASES; i++) {
        phases[i].repeats = 1;
        while ((!is_sweep || is_accumulation[i]) &&
               run(&phases[i], a) * phases[i].repeats < LEAST_NS)
            phases[i].repeats *= 2;
    }
    for (int r = 0; r < rounds; r++)
        for (size_t i = 0; i < PHASES; i++) {
            if (is_sweep && !is_accumulation[i]) continue;
            for (int w = 0; w < 8; w++) (void)run(&phases[i], a);
            phases[i].times[r] = run(&phases[i], a);
        }
}

/* Whatever else the machine does only ever adds time: the best round is the one that was disturbed
** least. */
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
        double u = (double)cd_prng_between(&p, 1, 1u << 30) / 0x1p30,
               sign = cd_prng_between(&p, 0, 1) ? 1 : -1;
        /* seven orders of magnitude, as gradients have them */
        a->x[i] = (float)(sign * u * u * u * 0.01);
        a->y[i] = 0;
    }
}

static double ratio_of(const phase *p, int rounds)
{
    return best(p, rounds) / best(&phases[p->against], rounds);
}

static bool is_above(const phase *p, int rounds)
{
    return p->limit > 0 && ratio_of(p, rounds) > p->limit;
}

static int print_line(size_t kib, int rounds)
{
    int above = 0;
    printf("%7zu KiB", kib);
    for (size_t i = 0; i < PHASES; i++) {
        if (!is_accumulation[i]) continue;
        if (phases[i].against < 0)
            printf("   %s %.3f us", phases[i].name, best(&phases[i], rounds) * 1e-3);
        else
            printf(", %s %.2f of a %s%s", phases[i].name, ratio_of(&phases[i], rounds),
                   phases[phases[i].against].name,
                   is_above(&phases[i], rounds) ? " (too slow)" : "");
        above += phases[i].against >= 0 && is_above(&phases[i], rounds);
    }
    printf("\n");
    fflush(stdout);
    return above;
}

/* The number of ratios above their limits. */
static int print(int rounds)
{
    int above = 0;
    for (size_t i = 0; i < PHASES; i++) {
        const phase *p = &phases[i];
        printf("  %-26s %9.3f us", p->name, best(p, rounds) * 1e-3);
        if (p->against >= 0)
            printf("   %.2f times %s", ratio_of(p, rounds), phases[p->against].name);
        if (p->limit > 0) printf("; the limit is %.0f", p->limit);
        if (is_above(p, rounds)) printf(": too slow"), above++;
        printf("\n");
    }
    return above;
}

/* Whole pages, and so much that three arrays begin at a third of a page each. */
static size_t room_for(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE + PAGE / 64 * 21; }

static bool create(arrays *a, const bench_list *gradients, cd_isa isa)
{
    cddp_error err = CDDP_ERROR_INIT;
    size_t numel = 0;
    *a = (arrays){.gradients = *gradients};
    for (size_t p = 0; p < a->gradients.count; p++) numel += (size_t)a->gradients.numel[p];
    const size_t room = room_for(numel * sizeof(float));
    a->numel = numel;
    a->all = aligned_alloc(PAGE, (3 * room + PAGE - 1) / PAGE * PAGE);
    if (a->all == NULL) return false;
    a->x = (float *)(void *)a->all;
    a->y = (float *)(void *)(a->all + room);
    a->half = (uint16_t *)(void *)(a->all + 2 * room);
    for (size_t p = 0; p < a->gradients.count; p++) {
        if (cd_bins_init(&a->bins[p], NULL, CDDP_F32, a->gradients.numel[p], &err) != CDDP_OK)
            return false;
        if (isa < CD_ISA_COUNT) a->bins[p].isa = isa;
    }
    fill(a);
    to_f16(a);
    bins_span(a);
    a->rows = calloc(numel * (size_t)cd_bins_rows(&a->span), sizeof *a->rows);
    return a->rows != NULL;
}

static void destroy(arrays *a)
{
    for (size_t p = 0; p < a->gradients.count; p++) cd_bins_fini(&a->bins[p]);
    free(a->all);
    free(a->rows);
}

static bench_list one_of(size_t kib)
{
    return (bench_list){.count = 1, .numel = {(int64_t)kib << 8}};
}

/* The number of ratios above their limits, or -1 without memory. */
static int compare(const bench_list *gradients, cd_isa isa, int rounds)
{
    static arrays a;
    bool spilled = false;
    int above = -1;
    if (create(&a, gradients, isa)) {
        measure(&a, rounds, false);
        for (size_t p = 0; p < a.gradients.count; p++) spilled |= a.bins[p].spilled;
        printf("%zu KiB of f32, %d rounds; the bins in use are %lld, %s\n", a.numel >> 8, rounds,
               (long long)cd_bins_rows(&a.span),
               spilled ? "some sums needed more than an f64" : "every sum fitted an f64");
        above = print(rounds);
    }
    destroy(&a);
    return above;
}

static int sweep(cd_isa isa, int rounds)
{
    static arrays a;
    int above = 0;
    for (size_t s = 0; s < sizeof sweep_kib / sizeof sweep_kib[0] && above >= 0; s++) {
        const bench_list one = one_of(sweep_kib[s]);
        const bool has_memory = create(&a, &one, isa);
        if (has_memory) measure(&a, rounds, true);
        above = has_memory ? above + print_line(sweep_kib[s], rounds) : -1;
        destroy(&a);
    }
    return above;
}

static cd_isa isa_named(const char *name)
{
    cd_isa isa = strcmp(name, "portable") == 0 ? CD_ISA_PORTABLE
                 : strcmp(name, "avx2") == 0   ? CD_ISA_AVX2
                 : strcmp(name, "avx512") == 0 ? CD_ISA_AVX512
                                               : CD_ISA_COUNT;
    return isa < CD_ISA_COUNT && cd_isa_is_available(isa) ? isa : CD_ISA_COUNT;
}

int main(int argc, char **argv)
{
    int rounds = 21;
    cd_isa isa = CD_ISA_COUNT; /* the fastest */
    size_t kib = 100 << 10;    /* beyond the caches */
    const bench_list *list = NULL;
    int sizes = 0; /* ways to say them: one at most */
    bool limits = false, sweeps = false;
    for (int i = 1; i < argc; i++) {
        bool has_value = i + 1 < argc;
        sizes += strcmp(argv[i], "--sweep") == 0 || strcmp(argv[i], "--mib") == 0 ||
                 strcmp(argv[i], "--kib") == 0 || strcmp(argv[i], "--list") == 0;
        if (strcmp(argv[i], "--limits") == 0)
            limits = true;
        else if (strcmp(argv[i], "--sweep") == 0)
            sweeps = true;
        else if (has_value && strcmp(argv[i], "--rounds") == 0)
            rounds = atoi(argv[++i]);
        else if (has_value && strcmp(argv[i], "--isa") == 0)
            rounds = (isa = isa_named(argv[++i])) == CD_ISA_COUNT ? 0 : rounds;
        else if (has_value && strcmp(argv[i], "--mib") == 0)
            kib = (size_t)atoi(argv[++i]) << 10;
        else if (has_value && strcmp(argv[i], "--kib") == 0)
            kib = (size_t)atoi(argv[++i]);
        else if (has_value && strcmp(argv[i], "--list") == 0)
            rounds = (list = bench_list_find(argv[++i])) == NULL ? 0 : rounds;
        else
            rounds = 0;
    }
    if (rounds < 1 || rounds > ROUNDS_MAX || sizes > 1 || kib < 1 || kib > 1024 << 10) {
        fprintf(stderr,
                "hook_bench [--limits] [--rounds 1 to %d] [--isa one this processor has] [--mib N "
                "| --kib N | --sweep | --list resnet50|tiny|mlp], arrays of 1 KiB to 1024 MiB\n",
                ROUNDS_MAX);
        return 2;
    }
    const bench_list one = one_of(kib);
    const int above =
        sweeps ? sweep(isa, rounds) : compare(list != NULL ? list : &one, isa, rounds);
    return above < 0 ? 2 : limits && above > 0 ? 1 : 0;
}
