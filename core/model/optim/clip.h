/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient clipping by global norm, as torch.nn.utils.clip_grad_norm_. */
#pragma once
#include "cddp/device.h"
#include "core/tensor/p_norm.h"

/* Scales every defined gradient by min(1, max_norm / (total + 1e-6)), the factor rounded to its
** dtype; also when the factor is 1. total = √(n₀² + n₁² + …) in f64, in the order of the slots;
** undefined ones do not count. *total is the norm before clipping; may be NULL. A total that is not
** finite is passed on as PyTorch does: an infinite one makes the factor 0, NaN makes every gradient
** NaN. */
cddp_status cd_clip_grad_norm(cddp_grad *const *grads, size_t count, double max_norm, double *total,
                              cddp_error *err) CDDP_MUST_CHECK;

/* The p-norm of the same gradients, added to *norm. */
cddp_status cd_clip_add_norm(const cddp_grad *const *grads, size_t count, cd_p_norm *norm,
                             cddp_error *err) CDDP_MUST_CHECK;
/* The same in two parts, where what is between them is another's: adds n₀² + n₁² + … to *squares;
** and scales by a given total. */
cddp_status cd_clip_add_squares(const cddp_grad *const *grads, size_t count, double *squares,
                                cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_clip_scale(cddp_grad *const *grads, size_t count, double factor,
                          cddp_error *err) CDDP_MUST_CHECK;
/* min(1, max_norm / (total + 1e-6)) */
double cd_clip_factor(double max_norm, double total);
