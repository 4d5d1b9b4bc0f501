/* SPDX-License-Identifier: Apache-2.0 */
/* A recorded run, wherever it lies: shards (run.db.0 run.db.1 …), all shards of a run by its name
** (run.db), or a run of a store.
**
** Lifetime   open → replay, as often as wanted → close.
** Errors     a file that is neither is named.
*/
#pragma once
#include "cddp/store.h"
#include "verify/import/shards.h"

typedef struct cd_source {
    cd_shards *shards; /* NULL: a store's */
    size_t shard_run;
    cddp_store *store;
    int64_t run;
    uint32_t world_size, level;
    const char *program; /* borrowed until close; "" */
    /* (step_count) ascending: the steps that were recorded, where replay numbers them from 0 on;
    ** NULL: they keep their numbers */
    uint32_t *steps;
    size_t step_count, step_capacity;
} cd_source;

/* Of several runs in a store, or restarts of a job, the last one. */
cddp_status cd_source_open(cd_source *source, const char *const *paths, size_t path_count,
                           cddp_error *err) CDDP_MUST_CHECK;
/* Steps of a job that was resumed, or that counts something else, become 0, 1, 2, … */
cddp_status cd_source_number_steps(cd_source *source, cddp_error *err) CDDP_MUST_CHECK;
void cd_source_close(cd_source *source); /* accepts a zeroed one */
cddp_status cd_source_replay(const cd_source *source, const cddp_trace_sink *sink,
                             cddp_error *err) CDDP_MUST_CHECK;

/* Does this name a shard, or a run of which only shards exist? */
bool cd_source_is_shards(const char *path);

/* The names of shards: those given, for "run.db" those of all ranks that lie beside it, and those
** of a folder. */
typedef struct cd_shard_names {
    char **paths; /* (count) */
    size_t count, capacity;
} cd_shard_names;
/* Nothing is found where a name is of something else. */
cddp_status cd_shard_names_find(cd_shard_names *names, const char *const *paths, size_t path_count,
                                cddp_error *err) CDDP_MUST_CHECK;
void cd_shard_names_fini(cd_shard_names *names);
/* Why the shard of a rank is missing though its file is there, beside those given; false: nothing
** has its name. */
bool cd_shard_names_explain(const cd_shard_names *names, const cd_shards_run *run, uint32_t rank,
                            cddp_error *why);
/* Refuses to write a result over a shard that an operand names, by its run or its folder too, or
** over the note of how its rank ended. */
cddp_status cd_sources_check_output(const char *path, const char *operand,
                                    cddp_error *err) CDDP_MUST_CHECK;
