/* SPDX-License-Identifier: Apache-2.0 */
/* What the two ways to drive a trial share: hook_trial.c by hand, hook_ride.c through the reducer. */
#pragma once
#include "cli/hook_trial.h"

/* What a rank's backward of a step brings for an element (of all parameters), when nothing is lacking. */
double cd_trial_gradient(const cd_trial *trial, uint32_t rank, uint32_t step, int64_t element);
/* A rank's whole run under DDP. */
cddp_status cd_trial_ride(const cd_trial *trial, cd_trial_result *result, cddp_group *group, cddp_error *err);
