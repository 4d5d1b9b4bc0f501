/* SPDX-License-Identifier: Apache-2.0 */
/* Synchronised batch norm on one process: the values that ranks exchange in a micro-step, found by
** running the ranks in turn.
**
** The statistics of each rank depend on what the others send. A run of a rank records the values
** that it sends at its k-th exchange. It receives what the others last sent there, or its own
** values if they have sent none. The first exchange of a forward depends on no other, the next on
** the first, and so on. So after as many rounds as there are exchanges nothing changes any more,
** and the record is what W processes exchange, bit for bit.
**
** Lifetime   init → (forget → (begin → a run with the two callbacks)* )* → fini.
** Threads    one thread.
*/
#pragma once
#include "cddp/device.h"
#include "core/base/arena.h"

typedef struct cd_exchange {
    cd_arena arena; /* owns the tables, from one width to the next */
    double *said;   /* (world, width) */
    /* (world, width) on the way from a tensor and to one, which may be on a device */
    double *words;
    bool *knows; /* (world) */
    size_t width;
    int64_t buffer; /* that names the layer which exchanged in a forward; -1: none did */
} cd_exchange;

typedef struct cd_statistics {
    const cddp_allocator *allocator;
    uint32_t world, rank; /* who runs */
    size_t call;          /* of the run: which exchange is next */
    cd_exchange *exchanges;
    size_t count, capacity;
    bool has_changed; /* since it was last set to false: somebody said something new */
} cd_statistics;

void cd_statistics_init(cd_statistics *statistics, uint32_t world, const cddp_allocator *allocator);
void cd_statistics_forget(cd_statistics *statistics);
void cd_statistics_begin(cd_statistics *statistics, uint32_t rank);
/* As cd_graph_callbacks wants them. */
cddp_status cd_statistics_allgather(cd_statistics *statistics, const cddp_tensor *mine,
                                    const cddp_tensor *all, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_statistics_allreduce(cd_statistics *statistics, const cddp_tensor *sums,
                                    cddp_error *err) CDDP_MUST_CHECK;
/* The layer of this buffer has used what the latest exchange gave. */
void cd_statistics_combined(cd_statistics *statistics, uint32_t buffer);
void cd_statistics_fini(cd_statistics *statistics); /* accepts a zeroed one */
