/* SPDX-License-Identifier: Apache-2.0 */
/* y = x·weightᵀ + bias over the last dimension. */
#pragma once
#include "core/model/graph.h"

/* x (sample_count, …, in), weight (out, in), bias (out) or NULL → y (sample_count, …, out). */
cddp_status cd_linear(cd_graph *graph, cd_value *x, cd_value *weight, cd_value *bias, cd_value **y,
                      cddp_error *err) CDDP_MUST_CHECK;
