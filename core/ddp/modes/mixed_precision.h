/* SPDX-License-Identifier: Apache-2.0 */
/* DDP's own mixed precision: forward and backward compute in param_dtype, buckets travel in
** reduce_dtype, parameters and averaged gradients keep full precision (MIX-01…06).
**
** Ownership  owns the low-precision copies; their table lies in the arena of init. Gradient slots
**            borrow low-precision homes between forward and the end of backward.
*/
#pragma once
#include "core/ddp/parts/module.h"
#include "core/ddp/parts/options.h"

typedef struct cd_mixed_parameter {
    cddp_tensor low;           /* copy in param_dtype; undefined when the parameter is not cast */
    cddp_tensor low_backing;   /* where its gradient is born in param_dtype */
    cddp_backing full_backing; /* the slot's own storage, while it borrows the low one */
    bool full_backing_is_borrowed;
} cd_mixed_parameter;

typedef struct cd_mixed {
    const cddp_allocator *allocator;
    cd_wrapped *module;
    cddp_dtype param_dtype, reduce_dtype;
    bool is_active;
    bool is_low;                    /* forward and backward are under way in low precision */
    cd_mixed_parameter *parameters; /* (parameter_count) */
    cddp_tensor *wires;             /* (wire_count) buckets in reduce_dtype, by first variable */
    size_t wire_count, wire_capacity;
    uint64_t growth_count;
} cd_mixed;

cddp_status cd_mixed_init(cd_mixed *mixed, cd_wrapped *module, const cd_ddp_config *config,
                          cd_arena *arena, cddp_error *err);
void cd_mixed_fini(cd_mixed *mixed); /* accepts a zeroed struct */
/* MIX-02: before forward. */
cddp_status cd_mixed_begin(cd_mixed *mixed, cddp_error *err);
/* MIX-04: gradients and parameters have full precision again. Does nothing when they have. */
cddp_status cd_mixed_end(cd_mixed *mixed, cddp_error *err);
/* The copy that forward computes with, or NULL: with the parameter itself. */
const cddp_tensor *cd_mixed_get_copy(const cd_mixed *mixed, size_t ordinal);
/* MIX-04: cast, SUM, divide afterwards. self is the cd_mixed. */
extern const cddp_hook cd_mixed_hook;
