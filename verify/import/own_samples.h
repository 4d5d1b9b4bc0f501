/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of loaders that have no sampler for each rank. Nobody knows their numbers, so they are
** known by their content: two ranks that take the same rows train on the same samples.
**
** PyTorch's recorder makes two marks: CD_OWN_BATCH with the rows of a forward, then
** CD_OWN_SAMPLE with the digest of each of the first rows. Rows that a program changes
** before its forward (augmentation) have nothing in common, and then nothing is judged.
**
** Streams  Of a loader of which nobody knows whether it takes all samples (a dataset that is
**          iterated, draws with replacement), and of a loop without one: CD_OWN_STREAM with the
**          digest of all that a forward gets. Single samples may be the same by right there. The
**          same batches in the same order are not, unless there is but one batch: full-batch
**          training, a fixed grid. A rank whose samples are known otherwise is not judged so.
**          CD_STREAM_WORKERS says how many workers iterate over such a dataset, each by itself.
**          Where they do not share it out, each batch comes as often as there are workers.
** Parts    A DistributedSampler shares a data set out among as many ranks as it got.
**          CD_SAMPLER_REPLICAS says that number and the rank of the part: number << 24 | rank.
**
** Lifetime   init → push every event → find twins, find missing, count shared → fini.
** Errors     without memory nothing is shown.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/trace.h"

#define CD_OWN_BATCH "own batch"
#define CD_OWN_SAMPLE "own sample"
#define CD_OWN_STREAM "own stream"
#define CD_OWN_ORDER \
    "own order of samples" /* a sampler of the program: it may repeat what it likes */
#define CD_STREAM_WORKERS "stream workers"
#define CD_SAMPLER_REPLICAS "sampler replicas"
#define CD_OWN_SAMPLES_MAX 4096 /* of a rank: the first ones */

/* How many samples a rank used in a step. */
typedef struct cd_own_samples_use {
    uint32_t step;
    int64_t count;
} cd_own_samples_use;

typedef struct cd_own_samples_rank {
    int64_t *taken; /* (count) in order */
    size_t count, capacity;
    uint64_t batches;
    cd_own_samples_use *used; /* (used_count) in order */
    size_t used_count, used_capacity;
    int64_t *streamed; /* (streamed_count) digests of forwards */
    size_t streamed_count, streamed_capacity;
    int64_t workers; /* of the loader of all of these; 0: none; -1: of several, or of some */
    int64_t group;   /* of its wrapper */
    bool has_join;
    bool is_known; /* a sampler says which samples it has */
} cd_own_samples_rank;

/* What a rank takes of a data set: the part of one of so many ranks. */
typedef struct cd_own_samples_part {
    int64_t replicas, rank;
} cd_own_samples_part;

typedef struct cd_own_samples {
    const cddp_allocator *allocator;
    cd_own_samples_rank *ranks; /* (rank_count) */
    uint32_t rank_count;
    cd_own_samples_part *parts; /* (part_count) in order, each once */
    size_t part_count, part_capacity;
    bool has_own_order;
    bool is_out_of_memory;
} cd_own_samples;

/* Two ranks of a group that take the same samples in the same order. */
typedef struct cd_own_samples_twins {
    uint32_t first, second;
    bool are_all;     /* so do all ranks */
    bool are_batches; /* count is of batches, nothing is known of single samples */
    size_t count;
    uint64_t batches;
} cd_own_samples_twins;

cddp_status cd_own_samples_init(cd_own_samples *samples, uint32_t rank_count,
                                const cddp_allocator *allocator, cddp_error *err) CDDP_MUST_CHECK;
void cd_own_samples_fini(cd_own_samples *samples); /* accepts a zeroed one */
/* event->rank is below rank_count. */
void cd_own_samples_push(cd_own_samples *samples, const cddp_event *event);
/* A few samples, or the same one many times, show nothing. */
bool cd_own_samples_find_twins(const cd_own_samples *samples, cd_own_samples_twins *twins);
/* Steps in which ranks of a group used other numbers of samples, outside of join. */
uint64_t cd_own_samples_count_uneven(const cd_own_samples *samples);
/* The first rank to which every worker of its loader gives the same batches. */
bool cd_own_samples_find_copies(const cd_own_samples *samples, uint32_t *rank);
/* A part that no rank takes: the first one of its sampler, and how many there are. */
typedef struct cd_own_samples_missing {
    int64_t replicas, rank, count;
} cd_own_samples_missing;
bool cd_own_samples_find_missing(const cd_own_samples *samples, cd_own_samples_missing *missing);
/* Samples that several ranks of a group take. 0 too where they are so few of all that a data set
** may just have them twice. */
uint64_t cd_own_samples_count_shared(cd_own_samples *samples);
