/* SPDX-License-Identifier: Apache-2.0 */
/* Published measurements, for comparison with the simulator. docs/paper.md gives the source of
** each number. */
#pragma once

enum {
    PUBLISHED_CAPS = 6,
    PUBLISHED_WINDOWS = 4,
    PUBLISHED_SWEEP_FIRST = 3,
    PUBLISHED_SWEEP = 23,
    PUBLISHED_WORLDS = 5,
    PUBLISHED_RINGS = 3
};

/* ResNet-50's list on two ranks of PyTorch 1.13 over Gloo, one machine, two cores: milliseconds per
** iteration, by bucket cap in MB (0: everything in one bucket), for a backward of 119.6 and of
** 272.5 ms that leaves the cores free.
*/
static const double published_caps_mb[PUBLISHED_CAPS] = {1, 5, 25, 50, 100, 0};
static const double published_overlap_ms[2][PUBLISHED_CAPS] = {
    {152.1, 154.7, 155.3, 166.9, 194.6, 200.4}, {306.9, 295.2, 305.6, 310.1, 357.3, 358.7}};

/* The same machine, a backward that needs the cores: milliseconds per micro-step when every n-th
** one reduces; and those without any reduction. */
static const unsigned published_windows[PUBLISHED_WINDOWS] = {1, 2, 4, 8};
static const double published_window_ms[PUBLISHED_WINDOWS] = {92.5, 52.5, 34.5, 23.8};
static const double published_local_ms[PUBLISHED_WINDOWS] = {9.05, 11.1, 12.5, 13.1};

/* pytorch/pytorch, benchmarks/distributed/ddp/compare/README.md: two GPUs over Gloo, ResNet-50,
** batch 32: mean milliseconds of a backward, for x = 3 … 25. DDP takes x as bucket_cap_mb, the two
** Python reducers as 2^20 elements.
*/
static const double published_ddp_ms[PUBLISHED_SWEEP] = {471.9, 470.8, 471.9, 471.9, 475.4, 471.4,
                                                         475.7, 471.3, 470.1, 477.8, 471.4, 475.4,
                                                         473.9, 471.4, 485.2, 480.5, 478.8, 475.1,
                                                         473.3, 482.1, 481.2, 478.4, 479.0};
static const double published_async_ms[PUBLISHED_SWEEP] = {483.8, 485.7, 491.6, 491.3, 495.6, 503.3,
                                                           505.6, 506.9, 512.0, 518.9, 514.2, 524.3,
                                                           531.0, 532.4, 527.4, 537.2, 540.2, 550.9,
                                                           538.1, 560.9, 564.4, 553.5, 569.3};
static const double published_sync_ms[PUBLISHED_SWEEP] = {566.4, 567.6, 568.7, 570.1, 570.2, 571.2,
                                                          571.2, 568.9, 572.0, 570.1, 567.5, 573.6,
                                                          572.3, 570.8, 575.9, 561.5, 570.9, 574.1,
                                                          575.2, 575.8, 571.4, 572.7, 572.3};

/* pytorch/pytorch, benchmarks/distributed/ddp/README.md: V100, NCCL, batch 32, median milliseconds
** per iteration on 1, 2, 4, 8 and 16 GPUs; without DDP 97 (ResNet-50) and 162 (ResNet-101). And by
** how many percent the 75th percentile of the throughput falls with 1 MB buckets. */
static const unsigned published_worlds[PUBLISHED_WORLDS] = {1, 2, 4, 8, 16};
static const double published_alone_ms[2] = {97, 162};
static const double published_gpus_ms[2][PUBLISHED_WORLDS] = {{100, 103, 103, 104, 104},
                                                              {171, 176, 176, 179, 179}};
static const double published_small_buckets_percent[PUBLISHED_WORLDS] = {0.3, 1.0, 1.6, 2.6, 3.8};

/* Li et al., VLDB 13(12), 2020, as quoted elsewhere: the saving of overlap on 32 GPUs, percent of
** an iteration without: NCCL and Gloo, each ResNet-50 and BERT. */
static const double published_gain_percent[2][2] = {{38.0, 35.2}, {26.8, 21.5}};

/* Fire-Flyer 2, arXiv 2408.14158, as quoted elsewhere: GB/s of an all-reduce by HFReduce and by
** NCCL on 16 to 1,440 PCIe GPUs, one card of 200 Gb/s per eight; that the ends of the ranges belong
** to the ends of the sizes is assumed. */
static const unsigned published_host_ranks[2] = {16, 1440};
static const double published_host_gb_per_s[2][2] = {{8.1, 6.3}, {4.8, 1.6}};

/* SimGrid 3.32, a ring all-reduce of 100 MiB on 16, 256 and 1024 hosts with links of 12.5 GB/s and
** 5 us, its default network model: simulated seconds. */
static const unsigned published_ring_ranks[PUBLISHED_RINGS] = {16, 256, 1024};
static const double published_ring_s[PUBLISHED_RINGS] = {.021319, .091076, .316026};
