/* SPDX-License-Identifier: Apache-2.0 */
/* A sharded optimizer (ZeRO stage 1, ZeroRedundancyOptimizer): every parameter has one rank that
** steps it and keeps its optimizer state; the others receive the parameter after the step (ZRO-01,
** ZRO-02). It needs no cddp_ddp: whatever made the gradients equal on all ranks will do.
**
**     cddp_zero_create → (equal gradients on all ranks → cddp_zero_step)* → cddp_zero_destroy
**
** The arithmetic is the program's: it is called for each parameter that this rank owns and that has
** a gradient, and keeps state for those alone. For an optimizer that treats each parameter by
** itself the result is that of the same optimizer over all parameters on every rank (ZRO-03).
**
** Lifetime   created on every member of the group, with the same parameters. Parameters, gradient
**            slots and group are borrowed until destroy; names are not kept.
** Threads    the rank's thread.
** Errors     parameters of several dtypes, without elements in storage, or sparse are refused by
**            name (ZRO-08). After a step that failed, parameters of other ranks may be old.
*/
#pragma once
#include "cddp/ddp.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cddp_zero cddp_zero;

/* Who steps which of `count` parameters, without any communication: the largest first, each to the
** rank with the fewest elements so far, the lowest of several (ZRO-01). by_size false: in the order
** in which they are given. owners: (count) ranks; order: (count) positions in the order of
** assignment, or NULL. Memory comes from allocator; NULL: the process heap. */
CDDP_API cddp_status cddp_zero_assign(const int64_t *numels, size_t count, uint32_t world,
                                      bool by_size, const cddp_allocator *allocator,
                                      uint32_t *owners, uint32_t *order,
                                      cddp_error *err) CDDP_MUST_CHECK;

typedef struct cddp_zero_options {
    uint32_t size; /* sizeof(cddp_zero_options) known to the writer */
    cddp_group *group;
    const cddp_parameter *parameters; /* (parameter_count) dense; requires_grad is not read */
    size_t parameter_count;
    /* does: steps one parameter with its gradient, which is not sparse */
    cddp_optimizer_fn step;
    void *context;
    bool by_size; /* true: as cddp_zero_assign; equal on all ranks */
    /* true: what a rank owns travels as one flat broadcast (parameters_as_bucket_view); else each
    ** parameter has its own */
    bool coalesced;
    const cddp_allocator *allocator; /* NULL: the rank's */
} cddp_zero_options;

/* by_size and its own size; all else is zero. Fill in group, parameters and step afterwards. */
CDDP_API cddp_zero_options cddp_zero_options_default(void);

CDDP_API cddp_status cddp_zero_create(const cddp_zero_options *options, cddp_zero **zero,
                                      cddp_error *err) CDDP_MUST_CHECK;
CDDP_API void cddp_zero_destroy(cddp_zero *zero); /* accepts NULL */

/* The group rank that steps a parameter; -1 past the end. */
CDDP_API int64_t cddp_zero_get_owner(const cddp_zero *zero, size_t parameter);

/* Steps what this rank owns, then sends it and receives the rest. A parameter without a gradient is
** not stepped, and is sent as it is. Collective over the group; blocks. */
CDDP_API cddp_status cddp_zero_step(cddp_zero *zero, cddp_error *err) CDDP_MUST_CHECK;

/* Brings the state of all parameters to one member, so that it can save a whole checkpoint
** (ZRO-06). state: (parameter_count, slots) contiguous tensors, row by row, sizes and dtypes equal
** on all ranks. Storage is needed for what this rank owns, and on `to` for everything: it is
** written there. Elsewhere storage may be NULL. What was consolidated does not follow later steps.
** Collective over the group; blocks. */
CDDP_API cddp_status cddp_zero_consolidate(cddp_zero *zero, const cddp_tensor *state, size_t slots,
                                           uint32_t to, cddp_error *err) CDDP_MUST_CHECK;

#ifdef __cplusplus
}
#endif
