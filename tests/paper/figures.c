/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the figures of docs/paper.md: our curves as lines, published measurements as rings.
**
**     paper_figures FOLDER
*/
#include "tests/paper/chart.h"
#include "tests/paper/published.h"
#include "tests/paper/studies.h"

#include <stdlib.h>
#include <string.h>

static void write_chart(const chart *c, const char *folder, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.svg", folder, name);
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

static void draw_overlap(const char *folder)
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
    for (int local = 0; local < 2; local++)
        for (int i = 0; i + 1 < PUBLISHED_CAPS; i++) {
            chart_add(&c, 2 * local, published_caps_mb[i],
                      study_overlap_ms(local, published_caps_mb[i]));
            chart_add(&c, 2 * local + 1, published_caps_mb[i], published_overlap_ms[local][i]);
        }
    write_chart(&c, folder, "overlap_two_ranks");
}

static void draw_windows(const char *folder)
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
        chart_add(&c, 0, published_windows[i],
                  study_window_ms(published_windows[i], published_local_ms[i]));
        chart_add(&c, 1, published_windows[i], published_window_ms[i]);
    }
    write_chart(&c, folder, "no_sync_amortised");
}

static void draw_sweep(const char *folder)
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
    for (int r = 0; r < 3; r++)
        for (unsigned i = 0; i < PUBLISHED_SWEEP; i++) {
            unsigned x = PUBLISHED_SWEEP_FIRST + i;
            chart_add(&c, 2 * r, x, study_sweep_ms((study_reducer)r, x));
            chart_add(&c, 2 * r + 1, x, published[r][i]);
        }
    write_chart(&c, folder, "gloo_bucket_sweep");
}

static void draw_gpus(const char *folder)
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
            chart_add(&c, 2 * m, ranks, study_gpus_ms(m, ranks, 25) / published_alone_ms[m]);
            chart_add(&c, 2 * m + 1, ranks, published_gpus_ms[m][i] / published_alone_ms[m]);
        }
    write_chart(&c, folder, "one_to_sixteen_gpus");

    chart p = {.title = "V100, ResNet-50: what buckets of 1 MB cost against 25 MB",
               .x_label = "GPUs",
               .y_label = "percent",
               .x_is_logarithmic = true,
               .y_low = 0,
               .y_high = 4,
               .series = {{"simulated", true, 0, 0, {0}, {0}},
                          {"published", false, 0, 0, {0}, {0}}}};
    for (int i = 0; i < PUBLISHED_WORLDS; i++) {
        unsigned ranks = published_worlds[i];
        chart_add(&p, 0, ranks,
                  100 * (study_gpus_ms(0, ranks, 1) / study_gpus_ms(0, ranks, 25) - 1));
        chart_add(&p, 1, ranks, published_small_buckets_percent[i]);
    }
    write_chart(&p, folder, "small_buckets");
}

static void draw_gain(const char *folder)
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
            chart_add(&c, 0, 2 * b + m + 1, study_gain_percent((study_backend)b, (study_model)m));
            chart_add(&c, 1, 2 * b + m + 1, published_gain_percent[b][m]);
        }
    write_chart(&c, folder, "overlap_gain");
}

static const char *const cluster_labels[] = {"ResNet-50, NCCL", "BERT-large, NCCL",
                                             "ResNet-50, Gloo", "BERT-large, Gloo"};

/* Iterations against the best of each curve. */
static void draw_buckets(const char *folder, unsigned ranks, const char *title, const char *name)
{
    static const double caps[] = {0, 1, 5, 10, 25, 50, 100};
    chart c = {.title = title,
               .x_label = "bucket cap, MB (0.5: a bucket per parameter)",
               .y_label = "iteration, best = 1",
               .x_is_logarithmic = true,
               .y_low = 1,
               .y_high = 1.6};
    for (int b = 0; b < 2; b++)
        for (int m = 0; m < 2; m++) {
            double ms[7], best = 1e9;
            chart_series *s = &c.series[2 * b + m];
            s->label = cluster_labels[2 * b + m];
            s->is_ours = true;
            s->colour = 2 * b + m;
            for (int i = 0; i < 7; i++) {
                ms[i] = study_cluster_ms(
                    &(study_cluster){(study_backend)b, (study_model)m, ranks, 1, caps[i]});
                if (ms[i] < best) best = ms[i];
            }
            for (int i = 0; i < 7; i++)
                chart_add(&c, 2 * b + m, i == 0 ? 0.5 : caps[i], ms[i] / best);
        }
    write_chart(&c, folder, name);
}

static void draw_scaling(const char *folder)
{
    chart c = {.title = "Servers of eight V100: an iteration against one GPU",
               .x_label = "GPUs",
               .y_label = "ratio",
               .x_is_logarithmic = true,
               .y_low = 0.9,
               .y_high = 2};
    for (int b = 0; b < 2; b++)
        for (int m = 0; m < 2; m++) {
            double one = 0;
            chart_series *s = &c.series[2 * b + m];
            s->label = cluster_labels[2 * b + m];
            s->is_ours = true;
            s->colour = 2 * b + m;
            for (unsigned ranks = 1; ranks <= 256; ranks *= 2) {
                double ms = study_cluster_ms(
                    &(study_cluster){(study_backend)b, (study_model)m, ranks, 1, 25});
                if (ranks == 1) one = ms;
                chart_add(&c, 2 * b + m, ranks, ms / one);
            }
        }
    write_chart(&c, folder, "one_to_256_gpus");
}

static void draw_ring(const char *folder)
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
    for (unsigned ranks = 16; ranks <= 1024; ranks *= 2)
        chart_add(&c, 0, ranks, study_ring_s(ranks));
    for (int i = 0; i < PUBLISHED_RINGS; i++)
        chart_add(&c, 1, published_ring_ranks[i], published_ring_s[i]);
    write_chart(&c, folder, "ring_of_100_mib");
}

static void draw_hosts(const char *folder)
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
    for (unsigned ranks = 16; ranks <= 256; ranks *= 2) {
        chart_add(&c, 0, ranks, gb / study_pcie_ms("hfreduce", ranks, 48758784));
        chart_add(&c, 2, ranks, gb / study_pcie_ms("ring", ranks, 48758784));
    }
    for (int i = 0; i < 2; i++) {
        chart_add(&c, 1, published_host_ranks[i], published_host_gb_per_s[0][i]);
        chart_add(&c, 3, published_host_ranks[i], published_host_gb_per_s[1][i]);
    }
    write_chart(&c, folder, "sums_on_hosts");
}

static void draw_turns(const char *folder)
{
    chart c = {.title = "16 GPUs: several groups in turn",
               .x_label = "groups",
               .y_label = "iteration, one group = 1",
               .y_low = 0.6,
               .y_high = 1.05};
    for (int b = 0; b < 2; b++)
        for (int m = 0; m < 2; m++) {
            double one = study_turns_ms((study_backend)b, (study_model)m, 1);
            chart_series *s = &c.series[2 * b + m];
            s->label = cluster_labels[2 * b + m];
            s->is_ours = true;
            s->colour = 2 * b + m;
            for (unsigned groups = 1; groups <= 5; groups += 2)
                chart_add(&c, 2 * b + m, groups,
                          study_turns_ms((study_backend)b, (study_model)m, groups) / one);
        }
    write_chart(&c, folder, "groups_in_turn");
}

int main(int argc, char **argv)
{
    if (argc != 2) return fprintf(stderr, "usage: paper_figures FOLDER\n"), 2;
    const char *folder = argv[1];
    draw_overlap(folder);
    draw_windows(folder);
    draw_sweep(folder);
    draw_gpus(folder);
    draw_gain(folder);
    draw_buckets(folder, 16, "16 GPUs: the size of buckets", "buckets_16");
    draw_buckets(folder, 32, "32 GPUs: the size of buckets", "buckets_32");
    draw_scaling(folder);
    draw_ring(folder);
    draw_hosts(folder);
    draw_turns(folder);
    return 0;
}
