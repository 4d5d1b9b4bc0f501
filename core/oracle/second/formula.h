/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizers' published formulas, for one element: from its parameter, gradient and state
** before a step to those after it.
**
** Nothing here is shared with core/model/optim. See docs/oracle.md, link 14.
**
** Threads    no state.
*/
#pragma once
#include "core/oracle/second/ball.h"

#include <stdint.h>

typedef enum cd_formula_kind {
    CD_FORMULA_SGD,
    CD_FORMULA_ADAM,
    CD_FORMULA_ADAMW,
    CD_FORMULA_ADAGRAD
} cd_formula_kind;

#define CD_FORMULA_SLOTS_MAX 2

/* Of one optimizer in one step, as the plan has it. */
typedef struct cd_formula {
    cd_formula_kind kind;
    cd_ball rate; /* of this step */
    double weight_decay, momentum, dampening, beta1, beta2, eps;
    bool nesterov;
} cd_formula;

typedef struct cd_formula_element {
    cddp_dtype dtype;
    double parameter, gradient;
    double slots[CD_FORMULA_SLOTS_MAX]; /* momentum; first and second moment; sum of squares */
    bool has_slots;                     /* false: this is the first step of the parameter */
    uint64_t steps;                     /* made before, by this parameter */
    uint64_t addends;                   /* rows of a sparse gradient may name an element so often */
} cd_formula_element;

/* The same where nothing but balls is known. */
typedef struct cd_formula_state {
    cddp_dtype dtype;
    cd_ball parameter, gradient, slots[CD_FORMULA_SLOTS_MAX];
    bool has_slots;
    uint64_t steps, addends;
} cd_formula_state;

typedef struct cd_formula_result {
    cd_ball parameter, slots[CD_FORMULA_SLOTS_MAX];
    uint32_t slot_count;
} cd_formula_result;

cd_formula_result cd_formula_apply(const cd_formula *formula, const cd_formula_element *before);
cd_formula_result cd_formula_carry(const cd_formula *formula, const cd_formula_state *before);
/* "exp_avg": of a slot of this kind. */
const char *cd_formula_slot_name(cd_formula_kind kind, uint32_t slot);
