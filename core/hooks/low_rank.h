/* SPDX-License-Identifier: Apache-2.0 */
/* The engine of both PowerSGD hooks: M ≈ P·Qᵀ with error feedback and warm start (PSG-01…16).
**
** State lives per parameter, not per bucket: the error of each gradient and the last Q of each
** matrix. So it survives a rebuild of buckets and a resume into another layout. PyTorch's state is
** keyed by bucket index and does not survive (REB-10). Random factors follow from (seed,
** parameter), so that ranks agree in any order of calls.
**
** Lifetime   create → run per bucket … → destroy; save and load in between.
** Threads    the rank's thread.
** Errors     refused settings are named; a state of another model is refused at its first use.
*/
#pragma once
#include "cddp/hook.h"

typedef struct cd_low_rank cd_low_rank;

typedef struct cd_low_rank_statistics {
    uint64_t iteration;                       /* backwards seen */
    uint64_t elements_before, elements_after; /* since the start of compression */
    double bytes_before, bytes_after;
} cd_low_rank_statistics;

/* batched: the whole bucket as one square matrix (PSG-14). */
cddp_status cd_low_rank_create(const cddp_hook_context *context, bool batched, void **self,
                               cddp_error *err);
void cd_low_rank_destroy(void *self);
uint64_t cd_low_rank_promise(const void *self, const cddp_grad_bucket *bucket);
cddp_status cd_low_rank_run(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                            cddp_future *future, cddp_error *err);
cddp_status cd_low_rank_rebuilt(void *self, uint32_t bucket_count, cddp_error *err);
cddp_status cd_low_rank_save(void *self, const cddp_state_writer *writer, cddp_error *err);
cddp_status cd_low_rank_load(void *self, const cddp_state_reader *reader, cddp_error *err);

cd_low_rank_statistics cd_low_rank_get_statistics(const void *self);
/* For comparison with other implementations: the factor that parameter's next compression starts
** from, (columns × rank) row by row. Batched: the parameter is the first of its bucket. */
cddp_status cd_low_rank_set_factor(void *self, uint32_t parameter, const double *q, int64_t numel,
                                   cddp_error *err);
