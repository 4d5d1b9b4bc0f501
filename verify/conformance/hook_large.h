/* SPDX-License-Identifier: Apache-2.0 */
/* A hook over one large bucket: as long as the pieces in which hooks work, and a little longer or
** shorter; longer than 16 bits can count; longer than a MiB. Small trials (hook_trial.h) see none
** of that.
**
** Only the first backward brings gradients. Their magnitudes are alike, their signs are not, so
** that a hook may compress them as it likes, but not one part of them otherwise than another.
**
** Lifetime   the numbers are the caller's.
** Errors     as of cd_trial_run.
*/
#pragma once
#include "verify/conformance/hook_trial.h"

typedef struct cd_large {
    int64_t numel;
    /* all elements are zero but a few, so that whoever owes has soon sent everything */
    bool is_sparse;
    double *out; /* (ranks · steps · numel) what came out; the caller's */
} cd_large;

/* Of the trial: hook, inner, options, ranks, steps and dtype. Of the result: everything but `in`
** and `out`. */
cddp_status cd_large_run(const cd_trial *trial, const cd_large *large, cd_trial_result *result,
                         cddp_error *err);

/* What a rank's first backward brings for an element, and the mean over the ranks. */
double cd_large_gradient(const cd_large *large, uint32_t rank, int64_t element);
double cd_large_mean(const cd_trial *trial, const cd_large *large, int64_t element);
/* What came out of a step for an element on a rank. */
double cd_large_out(const cd_trial *trial, const cd_large *large, uint32_t rank, uint32_t step,
                    int64_t element);
