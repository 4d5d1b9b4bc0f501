/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizers' formulas in the arithmetic of the parameter's dtype: which bits a step leaves.
**
** The order of operations is PyTorch's, and every operation is rounded once. Nothing here is shared
** with core/model/optim, nor with the formulas in f64 (formula.h).
**
** Threads    no state.
*/
#pragma once
#include "core/oracle/second/formula.h"

#define CD_REPEAT_WAYS_MAX 8

/* A scalar of the step, such as 1 − βᵗ, may lie on the boundary between two numbers of the dtype.
** Then there is a result for each. Their radii are 0. */
typedef struct cd_repeat {
    cd_formula_result ways[CD_REPEAT_WAYS_MAX];
    uint32_t count; /* 0: no bits are predicted (f64, sparse gradients) */
} cd_repeat;

cd_repeat cd_formula_repeat(const cd_formula *formula, const cd_formula_element *before);
