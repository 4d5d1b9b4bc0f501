/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that a trial's result comes down to. What they must be is hook_battery.c's.
**
** Threads    no state.
*/
#pragma once
#include "verify/conformance/hook_trial.h"

bool cd_measure_same_bits(double x, double y);
/* Compares results of two runs rank by rank; at names the first difference. */
bool cd_measure_equal(const cd_trial *trial, const cd_trial_result *a, const cd_trial_result *b,
                      char *at, size_t at_bytes);
/* What the plain all-reduce gives for an element at a step. */
double cd_measure_mean(const cd_trial *trial, const cd_trial_result *result, uint32_t step,
                       int64_t element);
/* Of all steps: what rank 0 got for an element, and what there was to get. */
double cd_measure_out(const cd_trial *trial, const cd_trial_result *result, int64_t element);
double cd_measure_in(const cd_trial *trial, const cd_trial_result *result, int64_t element);
/* How far all that came out is from all that went in, as a part of the largest of it. */
double cd_measure_drift(const cd_trial *trial, const cd_trial_result *result);
/* How much of what went in came out, by direction: 1 when it is the same; of what lies in a bucket
** at a step, -1: of everything. */
double cd_measure_share(const cd_trial *trial, const cd_trial_result *result, int64_t bucket,
                        uint32_t step);
/* The largest number that rank 0 got from this step on. */
double cd_measure_largest_from(const cd_trial *trial, const cd_trial_result *result, uint32_t step);
