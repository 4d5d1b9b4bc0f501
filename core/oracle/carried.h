/* SPDX-License-Identifier: Apache-2.0 */
/* Link 8 over steps that round: some elements of every parameter, followed from the plan's initial
** values as balls. Inside core/oracle only.
**
** A step adds what the optimizer's formula makes of the single-process gradient, known within link
** 1's bound. See docs/oracle.md, link 8.
*/
#pragma once
#include "core/oracle/state.h"

cddp_status cd_carried_create(cd_oracle *o, cddp_error *err);
/* A step begins with the oracle's values. */
/* Its elements are others' from here on. */
void cd_carried_receive(cd_oracle *o);
cddp_status cd_carried_begin(cd_oracle *o, cddp_error *err);
/* What the gradient of a parameter must be: within the rule of the sum over the samples (link 1),
** and what some order of the reduction's additions gives (link 2). */
typedef struct cd_carried_sum {
    const cd_wide_sum *sum;
    const cd_sum_rule *rule;
    const cd_any_order *addends;
} cd_carried_sum;
void cd_carried_take_gradient(cd_oracle *o, size_t i, const cd_carried_sum *from);
/* The optimizers have stepped: their formulas follow. */
void cd_carried_expect_step(cd_oracle *o);
cddp_status cd_carried_step(cd_oracle *o, const cd_oracle_formulas *formulas, cddp_error *err);
/* Compares what is still carried. */
cddp_status cd_carried_finish(cd_oracle *o, const cddp_tensor *parameters, cddp_error *err);
