/* SPDX-License-Identifier: Apache-2.0 */
/* Ops that move or combine values without parameters: the sink, sums, casts, concat and split,
** scaling. */
#pragma once
#include "core/model/graph.h"

/* FWD-05: one identity node over all outputs that have a history; the others pass untouched. In
** place. An output that the loss does not use delivers an undefined gradient, not zeros. */
cddp_status cd_sink(cd_graph *graph, cd_value **values, uint32_t count,
                    cddp_error *err) CDDP_MUST_CHECK;

cddp_status cd_add(cd_graph *graph, cd_value *a, cd_value *b, cd_value **sum,
                   cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_scale(cd_graph *graph, cd_value *x, double factor, cd_value **y,
                     cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_cast(cd_graph *graph, cd_value *x, cddp_dtype dtype, cd_value **y,
                    cddp_error *err) CDDP_MUST_CHECK;
/* Same elements, other sizes. */
cddp_status cd_reshape(cd_graph *graph, cd_value *x, const int64_t *sizes, uint32_t dim_count,
                       cd_value **y, cddp_error *err) CDDP_MUST_CHECK;
/* Along the last dimension. */
cddp_status cd_concat(cd_graph *graph, cd_value *const *parts, uint32_t count, cd_value **whole,
                      cddp_error *err) CDDP_MUST_CHECK;
/* Along the last dimension, into `count` parts of these sizes. */
cddp_status cd_split(cd_graph *graph, cd_value *whole, const int64_t *sizes, uint32_t count,
                     cd_value **parts, cddp_error *err) CDDP_MUST_CHECK;
