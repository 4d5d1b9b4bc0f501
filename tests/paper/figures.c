/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the figures of docs/paper.md: our curves as lines, published measurements as rings. Our
** numbers are rows of sweeps (sweeps.sh); nothing is run here.
**
**     paper_figures ROWS FIGURES [FIGURE...]    folders, and the figures of sweeps.sh
**     paper_figures --python-buckets            caps for sweeps.sh: a list for each x
*/
#include "tests/paper/chart.h"
#include "tests/paper/published.h"
#include "tests/paper/rows.h"
#include "tests/paper/studies.h"

#include <stdlib.h>
#include <string.h>

/* Where rows are read, and where figures go. */
typedef struct folders {
    const char *rows, *figures;
} folders;

#define CAPS "ddp.bucket_cap_mb_list"
#define SIZE "world.size"
#define ONE_BUCKET "1000000"
#define BUCKET_PER_PARAMETER "0.000001"

/* A first bucket of 1 MiB, and others of cap_mb. */
static const char *caps_of(double cap_mb)
{
    static char text[40];
    snprintf(text, sizeof text, "[1,%g]", cap_mb);
    return text;
}

static const char *number_of(unsigned value)
{
    static char text[16];
    snprintf(text, sizeof text, "%u", value);
    return text;
}

static void write_chart(const chart *c, const folders *to, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.svg", to->figures, name);
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    chart_write(c, file);
    if (fclose(file) != 0) {
        perror(path);
        exit(EXIT_FAILURE);
    }
}

static void draw_overlap(const folders *f)
{
    chart c = {.title = "Two ranks over Gloo, ResNet-50: overlap and the size of buckets",
               .x_label = "bucket cap, MB",
               .y_label = "iteration, ms",
               .x_is_logarithmic = true,
               .y_low = 100,
               .y_high = 400,
               .series = {{"simulated, backward 119.6 ms", true, 0, 0, {0}, {0}},
                          {"measured", false, 0, 0, {0}, {0}},
                          {"simulated, backward 272.5 ms", true, 1, 0, {0}, {0}},
                          {"measured", false, 1, 0, {0}, {0}}}};
    rows r = rows_read(f->rows, "overlap");
    for (int local = 0; local < 2; local++)
        for (int i = 0; i + 1 < PUBLISHED_CAPS; i++) {
            chart_add(&c, 2 * local, published_caps_mb[i],
                      rows_ms(&r, "train.backward_us", local == 0 ? "743" : "1693", CAPS,
                              caps_of(published_caps_mb[i])));
            chart_add(&c, 2 * local + 1, published_caps_mb[i], published_overlap_ms[local][i]);
        }
    rows_free(&r);
    write_chart(&c, f, "overlap_two_ranks");
}

static void draw_windows(const folders *f)
{
    chart c = {.title = "Two ranks over Gloo, ResNet-50: a reduction in every n-th micro-step",
               .x_label = "n",
               .y_label = "micro-step, ms",
               .x_is_logarithmic = true,
               .y_low = 0,
               .y_high = 100,
               .series = {{"simulated", true, 0, 0, {0}, {0}},
                          {"measured", false, 0, 0, {0}, {0}}}};
    for (int i = 0; i < PUBLISHED_WINDOWS; i++) {
        char name[32];
        snprintf(name, sizeof name, "no_sync_%u", published_windows[i]);
        rows r = rows_read(f->rows, name);
        const char *window = number_of(published_windows[i]);
        chart_add(&c, 0, published_windows[i],
                  rows_ms(&r, "train.micro_steps", window, NULL, NULL) / published_windows[i]);
        rows_free(&r);
        chart_add(&c, 1, published_windows[i], published_window_ms[i]);
    }
    write_chart(&c, f, "no_sync_amortised");
}

#define FORWARD_MS 210.4 /* of gloo_bucket_sweep */

/* "[0.5,2.25]" */
static void print_python_buckets(unsigned x, char *list, size_t bytes)
{
    char sizes[1000];
    study_print_python_buckets(x, sizes, sizeof sizes);
    snprintf(list, bytes, "[%s]", sizes);
}

static void draw_sweep(const folders *f)
{
    chart c = {.title = "Two GPUs over Gloo, ResNet-50: three reducers and the size of buckets",
               .x_label = "x: MB of a bucket (DDP), or 2^20 elements (Python)",
               .y_label = "backward, ms",
               .y_low = 460,
               .y_high = 580,
               .series = {{"simulated, DDP", true, 0, 0, {0}, {0}},
                          {"published", false, 0, 0, {0}, {0}},
                          {"simulated, Python, async", true, 1, 0, {0}, {0}},
                          {"published", false, 1, 0, {0}, {0}},
                          {"simulated, Python, sync", true, 2, 0, {0}, {0}},
                          {"published", false, 2, 0, {0}, {0}}}};
    const double *published[3] = {published_ddp_ms, published_async_ms, published_sync_ms};
    static const char *const names[] = {"ddp", "python_async", "python_sync"};
    for (int k = 0; k < 3; k++) {
        rows r = rows_read(f->rows, names[k]);
        for (unsigned i = 0; i < PUBLISHED_SWEEP; i++) {
            const unsigned x = PUBLISHED_SWEEP_FIRST + i;
            char list[1024] = ONE_BUCKET; /* after the backward: as one bucket */
            if (k == 0) snprintf(list, sizeof list, "%s", caps_of(x));
            if (k == 1) print_python_buckets(x, list, sizeof list);
            chart_add(&c, 2 * k, x, rows_ms(&r, CAPS, list, NULL, NULL) - FORWARD_MS);
            chart_add(&c, 2 * k + 1, x, published[k][i]);
        }
        rows_free(&r);
    }
    write_chart(&c, f, "gloo_bucket_sweep");
}

static double gpus_ms(const folders *f, int model, unsigned ranks, double cap_mb)
{
    char name[32];
    snprintf(name, sizeof name, "gpus_%d%s", model == 0 ? 50 : 101, ranks == 1 ? "_one" : "");
    rows r = rows_read(f->rows, name);
    const double ms = rows_ms(&r, SIZE, number_of(ranks), CAPS, caps_of(cap_mb));
    rows_free(&r);
    return ms;
}

static void draw_gpus(const folders *f)
{
    chart c = {.title = "V100, batch 32: an iteration against one without DDP",
               .x_label = "GPUs",
               .y_label = "ratio",
               .x_is_logarithmic = true,
               .y_low = 1,
               .y_high = 1.12,
               .series = {{"simulated, ResNet-50", true, 0, 0, {0}, {0}},
                          {"published", false, 0, 0, {0}, {0}},
                          {"simulated, ResNet-101", true, 1, 0, {0}, {0}},
                          {"published", false, 1, 0, {0}, {0}}}};
    for (int m = 0; m < 2; m++)
        for (int i = 0; i < PUBLISHED_WORLDS; i++) {
            unsigned ranks = published_worlds[i];
            chart_add(&c, 2 * m, ranks, gpus_ms(f, m, ranks, 25) / published_alone_ms[m]);
            chart_add(&c, 2 * m + 1, ranks, published_gpus_ms[m][i] / published_alone_ms[m]);
        }
    write_chart(&c, f, "one_to_sixteen_gpus");

    chart p = {.title = "V100, ResNet-50: what buckets of 1 MB cost against 25 MB",
               .x_label = "GPUs",
               .y_label = "percent",
               .x_is_logarithmic = true,
               .y_low = 0,
               .y_high = 4.5,
               .series = {{"simulated", true, 0, 0, {0}, {0}},
                          {"published", false, 0, 0, {0}, {0}}}};
    for (int i = 0; i < PUBLISHED_WORLDS; i++) {
        unsigned ranks = published_worlds[i];
        chart_add(&p, 0, ranks, 100 * (gpus_ms(f, 0, ranks, 1) / gpus_ms(f, 0, ranks, 25) - 1));
        chart_add(&p, 1, ranks, published_small_buckets_percent[i]);
    }
    write_chart(&p, f, "small_buckets");
}

/* b: NCCL or Gloo, m: ResNet-50 or BERT-large. */
static rows pair_rows(const folders *f, const char *figure, int b, int m)
{
    char name[64];
    snprintf(name, sizeof name, "%s_%s_%s", figure, m == 0 ? "resnet" : "bert",
             b == 0 ? "nccl" : "gloo");
    return rows_read(f->rows, name);
}

static void draw_gain(const folders *f)
{
    chart c = {.title = "32 GPUs: what overlapping saves",
               .x_label = "1, 2: NCCL, 3, 4: Gloo; each ResNet-50, then BERT-large",
               .y_label = "percent of an iteration without",
               .x_is_a_number = true,
               .y_low = 0,
               .y_high = 45,
               .series = {{"simulated", true, 0, 0, {0}, {0}},
                          {"published", false, 0, 0, {0}, {0}}}};
    for (int b = 0; b < 2; b++)
        for (int m = 0; m < 2; m++) {
            rows r = pair_rows(f, "servers", b, m);
            const double whole = rows_ms(&r, SIZE, "32", CAPS, ONE_BUCKET),
                         overlapped = rows_ms(&r, SIZE, "32", CAPS, caps_of(25));
            rows_free(&r);
            chart_add(&c, 0, 2 * b + m + 1, 100 * (1 - overlapped / whole));
            chart_add(&c, 1, 2 * b + m + 1, published_gain_percent[b][m]);
        }
    write_chart(&c, f, "overlap_gain");
}

static const char *const cluster_labels[] = {"ResNet-50, NCCL", "BERT-large, NCCL",
                                             "ResNet-50, Gloo", "BERT-large, Gloo"};

/* Iterations against the best of each curve. */
static void draw_buckets(const folders *f, unsigned ranks, const char *title, const char *name)
{
    static const double caps[] = {0, 1, 5, 10, 25, 50, 100};
    chart c = {.title = title,
               .x_label = "bucket cap, MB (0.5: a bucket per parameter)",
               .y_label = "iteration, best = 1",
               .x_is_logarithmic = true,
               .y_low = 1,
               .y_high = 1.9};
    for (int b = 0; b < 2; b++)
        for (int m = 0; m < 2; m++) {
            double ms[7], best = 1e9;
            chart_series *s = &c.series[2 * b + m];
            s->label = cluster_labels[2 * b + m];
            s->is_ours = true;
            s->colour = 2 * b + m;
            rows r = pair_rows(f, "servers", b, m);
            for (int i = 0; i < 7; i++) {
                ms[i] = rows_ms(&r, SIZE, number_of(ranks), CAPS,
                                i == 0 ? BUCKET_PER_PARAMETER : caps_of(caps[i]));
                if (ms[i] < best) best = ms[i];
            }
            rows_free(&r);
            for (int i = 0; i < 7; i++)
                chart_add(&c, 2 * b + m, i == 0 ? 0.5 : caps[i], ms[i] / best);
        }
    write_chart(&c, f, name);
}

static void draw_scaling(const folders *f)
{
    chart c = {.title = "Servers of eight V100: an iteration against one GPU",
               .x_label = "GPUs",
               .y_label = "ratio",
               .x_is_logarithmic = true,
               .y_low = 0.9,
               .y_high = 2.4};
    for (int b = 0; b < 2; b++)
        for (int m = 0; m < 2; m++) {
            double one = 0;
            chart_series *s = &c.series[2 * b + m];
            s->label = cluster_labels[2 * b + m];
            s->is_ours = true;
            s->colour = 2 * b + m;
            rows r = pair_rows(f, "scaling", b, m);
            for (unsigned ranks = 1; ranks <= 256; ranks *= 2) {
                double ms = rows_ms(&r, SIZE, number_of(ranks), NULL, NULL);
                if (ranks == 1) one = ms;
                chart_add(&c, 2 * b + m, ranks, ms / one);
            }
            rows_free(&r);
        }
    write_chart(&c, f, "one_to_256_gpus");
}

static void draw_ring(const folders *f)
{
    chart c = {.title = "A ring all-reduce of 100 MiB",
               .x_label = "ranks",
               .y_label = "seconds",
               .x_is_logarithmic = true,
               .y_is_logarithmic = true,
               .y_low = 0.01,
               .y_high = 0.5,
               .series = {{"simulated", true, 0, 0, {0}, {0}},
                          {"SimGrid 3.32, LV08", false, 0, 0, {0}, {0}}}};
    rows r = rows_read(f->rows, "ring");
    for (unsigned ranks = 16; ranks <= 1024; ranks *= 2)
        chart_add(&c, 0, ranks, rows_ms(&r, SIZE, number_of(ranks), NULL, NULL) / 1000);
    rows_free(&r);
    for (int i = 0; i < PUBLISHED_RINGS; i++)
        chart_add(&c, 1, published_ring_ranks[i], published_ring_s[i]);
    write_chart(&c, f, "ring_of_100_mib");
}

static void draw_hosts(const folders *f)
{
    chart c = {.title = "186 MiB on servers of eight PCIe GPUs: summed by hosts, or in a ring",
               .x_label = "GPUs",
               .y_label = "GB/s of gradients",
               .x_is_logarithmic = true,
               .y_low = 0,
               .y_high = 14,
               .series = {{"simulated, hfreduce", true, 0, 0, {0}, {0}},
                          {"published, 16 and 1,440 GPUs", false, 0, 0, {0}, {0}},
                          {"simulated, ring", true, 1, 0, {0}, {0}},
                          {"published, NCCL", false, 1, 0, {0}, {0}}}};
    const double gb = 186 * 1048576 / 1e6; /* per ms */
    rows hosts = rows_read(f->rows, "hosts"), ring = rows_read(f->rows, "hosts_ring");
    for (unsigned ranks = 16; ranks <= 256; ranks *= 2) {
        chart_add(&c, 0, ranks, gb / rows_ms(&hosts, SIZE, number_of(ranks), NULL, NULL));
        chart_add(&c, 2, ranks, gb / rows_ms(&ring, SIZE, number_of(ranks), NULL, NULL));
    }
    rows_free(&hosts);
    rows_free(&ring);
    for (int i = 0; i < 2; i++) {
        chart_add(&c, 1, published_host_ranks[i], published_host_gb_per_s[0][i]);
        chart_add(&c, 3, published_host_ranks[i], published_host_gb_per_s[1][i]);
    }
    write_chart(&c, f, "sums_on_hosts");
}

static void draw_turns(const folders *f)
{
    chart c = {.title = "16 GPUs: several groups in turn",
               .x_label = "groups",
               .y_label = "iteration, one group = 1",
               .y_low = 0.6,
               .y_high = 1.05};
    for (int b = 0; b < 2; b++)
        for (int m = 0; m < 2; m++) {
            static const char *const backends[] = {"rr:1:sim", "rr:3:sim", "rr:5:sim"};
            rows r = pair_rows(f, "turns", b, m);
            const double one = rows_ms(&r, "world.backend", backends[0], NULL, NULL);
            chart_series *s = &c.series[2 * b + m];
            s->label = cluster_labels[2 * b + m];
            s->is_ours = true;
            s->colour = 2 * b + m;
            for (unsigned i = 0; i < 3; i++)
                chart_add(&c, 2 * b + m, 2 * i + 1,
                          rows_ms(&r, "world.backend", backends[i], NULL, NULL) / one);
            rows_free(&r);
        }
    write_chart(&c, f, "groups_in_turn");
}

static void draw_sharded(const folders *f)
{
    static const char *const strategies[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"};
    chart c = {.title = "Eight layers over a slow network: fully sharded, or as DDP",
               .x_label = "ranks",
               .y_label = "ms a step",
               .x_is_logarithmic = true,
               .y_low = 0,
               .y_high = 8};
    rows r = rows_read(f->rows, "sharded");
    for (int i = 0; i < 3; i++) {
        chart_series *s = &c.series[i];
        s->label = i < 2 ? strategies[i] : "NO_SHARD, as DDP";
        s->is_ours = true;
        s->colour = i;
        for (unsigned ranks = 2; ranks <= 16; ranks *= 2)
            chart_add(&c, i, ranks,
                      rows_ms(&r, "fsdp.sharding_strategy", strategies[i], SIZE, number_of(ranks)));
    }
    rows_free(&r);
    write_chart(&c, f, "sharded_strategies");
}

static void draw_servers(const folders *f)
{
    draw_gain(f);
    draw_buckets(f, 16, "16 GPUs: the size of buckets", "buckets_16");
    draw_buckets(f, 32, "32 GPUs: the size of buckets", "buckets_32");
}

/* Several x may mean the same buckets, and a sweep takes a value once. */
static int print_all_python_buckets(void)
{
    char list[1024], last[1024] = "";
    for (unsigned i = 0; i < PUBLISHED_SWEEP; i++) {
        print_python_buckets(PUBLISHED_SWEEP_FIRST + i, list, sizeof list);
        if (strcmp(list, last) != 0) printf("%s%s", i > 0 ? "," : "", list);
        memcpy(last, list, sizeof last);
    }
    return printf("\n") < 0;
}

static bool is_wanted(const char *name, int argc, char **argv)
{
    for (int i = 3; i < argc; i++)
        if (strcmp(name, argv[i]) == 0) return true;
    return argc == 3;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*draw)(const folders *f);
    } figures[] = {
        {"overlap", draw_overlap}, {"no_sync", draw_windows}, {"python_reducers", draw_sweep},
        {"gpus", draw_gpus},       {"servers", draw_servers}, {"scaling", draw_scaling},
        {"ring", draw_ring},       {"hosts", draw_hosts},     {"turns", draw_turns},
        {"sharded", draw_sharded}};
    if (argc == 2 && strcmp(argv[1], "--python-buckets") == 0) return print_all_python_buckets();
    if (argc < 3) return fprintf(stderr, "usage: paper_figures ROWS FIGURES [FIGURE...]\n"), 2;
    const folders f = {argv[1], argv[2]};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        if (is_wanted(figures[i].name, argc, argv)) figures[i].draw(&f);
    return 0;
}
