/* SPDX-License-Identifier: Apache-2.0 */
/* The studies of docs/paper.md: each number is one or two runs of a scenario of scenarios/paper. */
#pragma once
#include "tests/paper/paper.h"

#include <stddef.h>

/* overlap_two_ranks: ms; local 0 or 1 as in published_overlap_ms; cap_mb 0: one bucket. */
double study_overlap_ms(int local, double cap_mb);

/* no_sync_amortised: ms per micro-step when every windows-th one reduces, each taking local_ms. */
double study_window_ms(unsigned window, double local_ms);

/* gloo_bucket_sweep: ms of a backward. */
typedef enum study_reducer { STUDY_DDP, STUDY_PYTHON_ASYNC, STUDY_PYTHON_SYNC } study_reducer;
double study_sweep_ms(study_reducer reducer, unsigned x);
/* The sizes in MiB of the buckets of the reducers in Python, from the end of the model. */
void study_print_python_buckets(unsigned x, char *list, size_t bytes);

/* nvlink_and_infiniband: ms of an iteration; model 0: ResNet-50, 1: ResNet-101. */
double study_gpus_ms(int model, unsigned ranks, double cap_mb);

/* four_servers_of_eight: ms of an iteration. */
typedef enum study_backend { STUDY_NCCL, STUDY_GLOO } study_backend;
typedef enum study_model { STUDY_RESNET, STUDY_BERT } study_model;
typedef struct study_cluster {
    study_backend backend;
    study_model model;
    unsigned ranks, micro_steps;
    double cap_mb; /* 0: a bucket per parameter; 1e5: one bucket */
} study_cluster;
double study_cluster_ms(const study_cluster *cluster);
/* The saving of overlap, in percent of an iteration without it. */
double study_gain_percent(study_backend backend, study_model model);

/* ring_of_100_mib: seconds. */
double study_ring_s(unsigned ranks);

/* reduce_on_hosts: ms of an all-reduce of so many numbers. */
double study_pcie_ms(const char *algorithm, unsigned ranks, unsigned numel);

/* groups_in_turn: ms of an iteration. */
double study_turns_ms(study_backend backend, study_model model, unsigned groups);

/* powersgd_bytes: bytes that a rank gives to collectives per iteration; rank 0: without a hook. */
typedef enum study_net { STUDY_RESNET18, STUDY_LSTM } study_net;
unsigned long long study_powersgd_bytes(study_net net, unsigned rank);
