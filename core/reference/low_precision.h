/* SPDX-License-Identifier: Apache-2.0 */
/* The reference's own mixed precision: parameters cast before a forward, gradients born in the low
** dtype (MIX-02). And its opposite: the same pass in full precision.
**
** Separate from the runtime's on purpose: the reference must not use the code that it judges.
**
** Lifetime   init → (begin → forwards and backwards → end)* → fini. Borrows the module. Slots
**            borrow low-precision storage between begin and end.
*/
#pragma once
#include "cddp/plan.h"
#include "core/model/module.h"
#include "core/reference/units.h"

typedef struct cd_low_parameter {
    cddp_tensor value;         /* device NULL: this parameter is not cast */
    const cddp_tensor *rounds; /* the value is rounded to this one's dtype first; NULL: it is not */
    cddp_tensor backing;       /* of its gradient, while low */
    cddp_backing full_backing; /* the slot's own */
} cd_low_parameter;

typedef struct cd_low_precision {
    cd_module *module;
    const cddp_allocator *allocator;
    cd_low_parameter *parameters; /* (parameter_count); NULL: full precision */
    bool is_low;
} cd_low_precision;

/* What a module's parameters are cast to. */
typedef struct cd_low_options {
    const cddp_plan_settings *settings;
    const cd_planned_precision *precisions; /* (parameter_count) */
    cd_module *module;
    const cddp_allocator *allocator;
} cd_low_options;
cddp_status cd_low_precision_init(cd_low_precision *low, const cd_low_options *options,
                                  cddp_error *err) CDDP_MUST_CHECK;
/* Parameters of a half type, and those that low casts to one, are cast to f32 after that. Their
** gradients are born there. Borrows low. */
cddp_status cd_full_precision_init(cd_low_precision *full, const cd_low_precision *low,
                                   cddp_error *err) CDDP_MUST_CHECK;
void cd_low_precision_fini(cd_low_precision *low); /* accepts a zeroed struct */
/* Casts parameters, and gradients that exist. */
cddp_status cd_low_precision_begin(cd_low_precision *low, cddp_error *err) CDDP_MUST_CHECK;
/* Slots have their own storage again; gradients are cast up. Does nothing when they have. */
cddp_status cd_low_precision_end(cd_low_precision *low, cddp_error *err) CDDP_MUST_CHECK;
/* The tensor that forward computes with. */
const cddp_tensor *cd_low_precision_get(const cd_low_precision *low, uint32_t parameter);
