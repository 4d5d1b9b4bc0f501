/* SPDX-License-Identifier: Apache-2.0 */
/* Adding gradients: inside the graph, where paths meet, and into the slot of a parameter.
**
** Lifetime   in-graph sums live in the graph's arena; slots keep their storage in the parameter.
*/
#pragma once
#include "core/model/graph.h"

/* sum = sum + gradient, where either may be undefined, dense or sparse. An unowned sum is copied
** first, since the same tensor may be on its way to several nodes. */
cddp_status cd_gradient_add(cd_graph *graph, cd_gradient *sum, const cd_gradient *gradient,
                            cddp_error *err) CDDP_MUST_CHECK;

/* Adds a gradient to a parameter's slot as AccumulateGrad does: in place where the slot is defined
** (it may be a bucket view), else into storage that is made once. On devices without arithmetic the
** callback `fresh` writes what is added. */
cddp_status cd_grad_accumulate(cd_graph *graph, uint32_t parameter, const cd_gradient *gradient,
                               cddp_error *err) CDDP_MUST_CHECK;
