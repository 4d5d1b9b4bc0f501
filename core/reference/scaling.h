/* SPDX-License-Identifier: Apache-2.0 */
/* The loss scale and the clip factor that follow from judged gradients: the reference's own policy.
**
** A scale is kept in f32. It is multiplied by backoff_factor after a step in which an optimizer saw
** an infinity or a NaN, and by growth_factor after growth_interval steps in a row in which none
** did; a product that is not finite is not taken.
*/
#pragma once
#include "cddp/plan.h"

typedef struct cd_scaling {
    const cddp_plan_amp *amp; /* borrowed */
    float scale;
    uint64_t until_growth; /* clean steps that are still missing */
} cd_scaling;

void cd_scaling_init(cd_scaling *scaling, const cddp_plan_amp *amp);
double cd_scaling_get(const cd_scaling *scaling); /* 1 where nothing is scaled */
/* What gradients are multiplied with before an optimizer steps. */
double cd_scaling_get_inverse(const cd_scaling *scaling);
/* A step ended in which some optimizer was due. */
void cd_scaling_end_step(cd_scaling *scaling, bool found_nonfinite);

/* Gradients whose norm is larger become max_norm long. */
double cd_scaling_clip(double max_norm, double norm);
