/* SPDX-License-Identifier: Apache-2.0 */
/* What a collective of the program itself must give.
**
** Element i of what rank r of the world gives is r mod 4 + 1 + i mod 3: so every element of the
** result is known without asking anybody. An element too far, a rank too few and a reduction that
** is ignored give other numbers. Sums, products and averages of such numbers round seldom: where
** nothing rounds the bound is 0. Otherwise it is γ(W + 1) times the size of the result, which all
** terms together have, since they are positive.
*/
#pragma once
#include "cddp/plan.h"
#include "core/oracle/compare.h"
#include "core/tensor/numbers.h"

typedef struct cd_expected_collective {
    const cddp_plan_collective *planned;
    const cddp_plan_group *members; /* NULL: the whole world */
    uint32_t size, me;
} cd_expected_collective;

/* What this member got, compared. Without words when all is well. */
cddp_status cd_collective_compare(const cd_expected_collective *expected, cd_numbers *numbers,
                                  const cddp_tensor *output, cd_comparison *found,
                                  cddp_error *err) CDDP_MUST_CHECK;
