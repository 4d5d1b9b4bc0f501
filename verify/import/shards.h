/* SPDX-License-Identifier: Apache-2.0 */
/* The shards of a recorded job as traces: one run per restart of the job, its ranks merged by
** (time, rank, sequence).
**
** Lifetime   open → get, replay… → close.
** Threads    one thread.
** Errors     a file that is no shard, is damaged, or does not belong to the others is named.
*/
#pragma once
#include "cddp/shard.h"

typedef struct cd_shards cd_shards;

/* One run of the job. Texts are borrowed until close. */
typedef struct cd_shards_run {
    uint32_t generation, world_size, level;
    uint32_t rank_count; /* whose shard is here */
    uint32_t missing;    /* the first rank whose shard is not; world_size: none */
    uint32_t cut;        /* the first rank whose recording ended early; world_size: none */
    uint64_t lost;       /* events of it that are missing */
    const char *failure; /* why */
    const char *program;
    uint64_t identity; /* of these shards: equal when they are read again */
    size_t host_count;
} cd_shards_run;

/* Is this file a shard, whatever else is wrong with it? */
bool cd_shards_is_shard(const char *path);
cddp_status cd_shards_open(const char *const *paths, size_t path_count, cd_shards **shards,
                           cddp_error *err) CDDP_MUST_CHECK;
void cd_shards_close(cd_shards *shards); /* accepts NULL */
size_t cd_shards_run_count(const cd_shards *shards);
/* For how long ranks must have shown nothing to have hung; the default is 30 s. */
void cd_shards_set_stall(cd_shards *shards, uint64_t stall_ns);
uint64_t cd_shards_get_stall(const cd_shards *shards);
void cd_shards_get(const cd_shards *shards, size_t run, cd_shards_run *found);
/* Shows the run to a sink, from run_begin to run_end; as often as wanted. */
cddp_status cd_shards_replay(cd_shards *shards, size_t run, const cddp_trace_sink *sink,
                             cddp_error *err) CDDP_MUST_CHECK;
