/* SPDX-License-Identifier: Apache-2.0 */
/* Losses: first one number per sample, then their weighted sum.
**
** Per sample everything is summed, never averaged: elements in index order. The scalar is (Σ_s
** w_s·l_s) ÷ divisor, s in sample order; weights of 1 and the divisor sample_count make it the
** mean. With dyadic weights and no divisor it is exact for exact inputs.
*/
#pragma once
#include "core/model/graph.h"

/* Σ (y-t)²; y and target have the same sizes. */
cddp_status cd_squared_error(cd_graph *graph, cd_value *y, cd_value *target, cd_value **losses,
                             cddp_error *err) CDDP_MUST_CHECK;
/* Σ max(y,0) - y·t + log(1 + exp(-|y|)): binary cross-entropy with logits. */
cddp_status cd_bce_with_logits(cd_graph *graph, cd_value *y, cd_value *target, cd_value **losses,
                               cddp_error *err) CDDP_MUST_CHECK;
/* Σ y·t: gradients are the targets, exactly. */
cddp_status cd_inner_product(cd_graph *graph, cd_value *y, cd_value *target, cd_value **losses,
                             cddp_error *err) CDDP_MUST_CHECK;

#define CD_IGNORE_CLASS (-100) /* PyTorch's ignore_index */
/* Σ over positions of -log softmax(y)[class]; y (sample_count, …, classes), classes (sample_count,
** …) i64. */
cddp_status cd_cross_entropy(cd_graph *graph, cd_value *y, const cddp_tensor *classes,
                             cd_value **losses, cddp_error *err) CDDP_MUST_CHECK;

/* weights (sample_count) or NULL for ones, copied; divisor 0: none. → a scalar without
** dimensions. */
cddp_status cd_weighted_sum(cd_graph *graph, cd_value *losses, const double *weights,
                            double divisor, cd_value **loss, cddp_error *err) CDDP_MUST_CHECK;
