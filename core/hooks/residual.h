/* SPDX-License-Identifier: Apache-2.0 */
/* Error feedback for hooks that send a part of the bucket: the debt of each parameter.
**
** Kept per parameter and in the gradient's dtype, so that it survives a rebuild and a resume into
** other buckets (REB-10). Only elements that were not sent are owed; a sent element owes exactly
** nothing.
**
** Lifetime   init → add, keep per bucket … → fini.
** Errors     a state of another model is refused when it is loaded, or where the model is not known
**            at its first use.
*/
#pragma once
#include "core/base/arena.h"
#include "core/hooks/host.h"

typedef struct cd_residual_slot {
    /* (numel) where the gradient lives; a loaded one is on the host until a bucket shows where that
    ** is */
    cd_flat owed;
    int64_t numel; /* -1: nothing yet */
    cddp_dtype dtype;
} cd_residual_slot;

typedef struct cd_residual {
    const char *name; /* of the hook, for messages */
    cd_arena memory;
    cd_state_model model;
    cd_residual_slot *slots; /* (slot_count) by variable index */
    size_t slot_count, slot_capacity;
} cd_residual;

void cd_residual_init(cd_residual *r, const cddp_allocator *allocator, const cd_state_model *model,
                      const char *name);
void cd_residual_fini(cd_residual *r);
/* bucket += what is owed. */
cddp_status cd_residual_add(cd_residual *r, const cddp_grad_bucket *bucket, cddp_error *err);
/* Keeps the bucket as the new debt, after the caller has zeroed the elements that it sends. */
cddp_status cd_residual_keep(cd_residual *r, const cddp_grad_bucket *bucket, cddp_error *err);
/* For storage that the host can read. */
void cd_residual_sum(const cd_residual *r, const cddp_grad_bucket *bucket, cd_host_sums *sums);

cddp_status cd_residual_save(const cd_residual *r, const cddp_state_writer *writer,
                             cddp_error *err);
/* Leaves r as it was when the saved state is damaged. */
cddp_status cd_residual_load(cd_residual *r, const cddp_state_reader *reader, cddp_error *err);
