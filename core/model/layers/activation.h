/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise functions: relu, gelu (the exact one, with erf), tanh, sigmoid. */
#pragma once
#include "core/model/graph.h"

cddp_status cd_relu(cd_graph *graph, cd_value *x, cd_value **y, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_gelu_layer(cd_graph *graph, cd_value *x, cd_value **y,
                          cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_tanh_layer(cd_graph *graph, cd_value *x, cd_value **y,
                          cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_sigmoid_layer(cd_graph *graph, cd_value *x, cd_value **y,
                             cddp_error *err) CDDP_MUST_CHECK;
