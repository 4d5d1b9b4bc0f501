/* SPDX-License-Identifier: Apache-2.0 */
/* The expected result of a collective of the program.
**
** Element i of rank r's input is r mod 4 + 1 + i mod 3. So every element of the result is known
** without communication. An element too far, a rank too few and a reduction that is ignored give
** other numbers. Sums, products and averages of such numbers round seldom: where nothing rounds the
** bound is 0. Otherwise it is γ(W + 1) times the size of the result: all terms are positive, so
** their sizes add up to it.
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

/* Compares this member's result. The comparison has no text when they are equal. */
cddp_status cd_collective_compare(const cd_expected_collective *expected, cd_numbers *numbers,
                                  const cddp_tensor *output, cd_comparison *found,
                                  cddp_error *err) CDDP_MUST_CHECK;
