/* SPDX-License-Identifier: Apache-2.0 */
/* The p-norm of several tensors as if they were one: (Σ|x|^p)^(1/p), or the largest |x| (p = ∞).
**
** Ownership  a value; p ≥ 1 is its caller's to check. Parts of it are added up with cd_p_norm_add,
**            and over ranks with the reduction that cd_p_norm_reduction names.
** Accuracy   f64, in the order of the elements.
** Errors     a tensor that cannot be read.
*/
#pragma once
#include "cddp/device.h"

typedef struct cd_p_norm {
    double p;
    double sum; /* Σ|x|^p so far, or the maximum */
} cd_p_norm;

/* Adds a part: the sum of other elements. A NaN stays: no maximum hides it. */
void cd_p_norm_add(cd_p_norm *norm, double part);
cddp_status cd_p_norm_add_tensor(cd_p_norm *norm, const cddp_tensor *tensor,
                                 cddp_error *err) CDDP_MUST_CHECK;
double cd_p_norm_get(const cd_p_norm *norm);
cddp_red_op cd_p_norm_reduction(double p); /* of parts over ranks */
