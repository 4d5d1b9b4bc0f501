/* SPDX-License-Identifier: Apache-2.0 */
/* Dumps of PyTorch's NCCL Flight Recorder, one file per rank, as a trace.
**
** A dump has the last operations of each process group, from a ring: rings of several ranks begin
** at different places. They are compared from the first collective that all of them still have.
** What a dump lacks (reduction, root, contents) is equal on all ranks here, and so never differs.
** A rank of a group that left no dump is a rank that hangs: it may be the one that failed.
** A log with a mismatch (verify/import/torch_log.h) stands for dumps of the ranks that it names,
** and says nothing of others.
**
** Lifetime   open → get, replay… → close.
** Threads    one thread.
** Errors     a file that is no dump, is damaged, or would execute something is named.
*/
#pragma once
#include "cddp/trace.h"

typedef struct cd_flights cd_flights;

typedef struct cd_flights_facts {
    uint32_t world_size, dump_count;
    uint32_t missing; /* the first rank without a dump; world_size: none */
    size_t entry_count;
    const char *version; /* of the first dump; borrowed until close */
} cd_flights_facts;

cddp_status cd_flights_open(const char *const *paths, size_t path_count, cd_flights **flights,
                            cddp_error *err) CDDP_MUST_CHECK;
void cd_flights_close(cd_flights *flights); /* accepts NULL */
cd_flights_facts cd_flights_get(const cd_flights *flights);
/* Shows the run to a sink, from run_begin to run_end. */
cddp_status cd_flights_replay(cd_flights *flights, const cddp_trace_sink *sink,
                              cddp_error *err) CDDP_MUST_CHECK;
/* Could this be a dump, by its first byte, or a log with a mismatch? */
bool cd_flights_is_dump(const char *path);
