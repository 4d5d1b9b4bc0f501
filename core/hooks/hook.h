/* SPDX-License-Identifier: Apache-2.0 */
/* The compiled-in hooks as a table, what makes a hook table acceptable, and how futures go on.
**
** A hook sees a bucket and the public comm.h, as a user's hook does; the helpers below only spare
** it typing.
*/
#pragma once
#include "cddp/hook.h"

#define CD_HOOK(name, summary) extern const cddp_hook cd_hook_##name;
#include "core/hooks/hooks.def"
#undef CD_HOOK

typedef struct cd_hook_row {
    const cddp_hook *hook;
    const char *summary;
} cd_hook_row;

/* The largest block of a hook's arena; what is larger has a block for itself. */
#define CD_HOOK_BLOCK_BYTES ((size_t)1 << 16)

/* The i-th compiled-in hook; NULL past the end. */
const cd_hook_row *cd_hook_get_row(size_t index);
const cddp_hook *cd_hook_find(const char *name); /* NULL when there is none */

/* HOOK-02 in C: a hook has the right size and abi, a name and a run function; a stateful one can be
** saved. */
cddp_status cd_hook_check(const cddp_hook *hook, cddp_error *err);

/* One round: waits for the future's works in order, then runs its next stage if it has one.
** *complete is true when the result is there. */
cddp_status cd_future_advance(cddp_future *future, void *self, cddp_grad_bucket *bucket,
                              bool *complete, cddp_error *err);
/* After a failure: gives back the works that nobody will wait for. */
void cd_future_abandon(cddp_future *future);

/* Posts a SUM all-reduce of t, labelled with the bucket, as one more work of the future. */
cddp_status cd_future_add_allreduce(cddp_future *future, const cddp_grad_bucket *bucket,
                                    const cddp_tensor *t, cddp_group *group, cddp_error *err);
/* HOOK-12: hooks that work on the flat buffer cannot take a sparse bucket. */
cddp_status cd_hook_refuse_sparse(const cddp_grad_bucket *bucket, const char *name,
                                  cddp_error *err);
/* For hooks that are no wrappers. */
cddp_status cd_hook_refuse_inner(const cddp_hook_context *context, const char *name,
                                 cddp_error *err) CDDP_MUST_CHECK;
/* For hooks that have no options: refuses any, quoting them. */
cddp_status cd_hook_refuse_options(const cddp_hook_context *context, const char *name,
                                   cddp_error *err);
