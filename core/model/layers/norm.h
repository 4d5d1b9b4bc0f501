/* SPDX-License-Identifier: Apache-2.0 */
/* Layer norm; batch norm over (sample_count, channels) or (sample_count, channels, height, width),
** plain or with the statistics of all ranks.
*/
#pragma once
#include "core/model/graph.h"

/* Over the last dimension; weight and bias have its size. */
cddp_status cd_layer_norm(cd_graph *graph, cd_value *x, cd_value *weight, cd_value *bias,
                          cd_value **y, cddp_error *err) CDDP_MUST_CHECK;

/* Indices into the module: parameters weight, bias (channels) and buffers running_mean, running_var
** (channels), num_batches_tracked (i64 scalar). */
typedef struct cd_batch_norm {
    uint32_t weight, bias;
    uint32_t running_mean, running_var, num_batches_tracked;
    double momentum;   /* 0.1 */
    double eps;        /* 1e-5 */
    bool synchronised; /* statistics over all ranks, through the graph's callbacks */
} cd_batch_norm;

/* Adds the five tensors to the module under the current scope. */
cddp_status cd_batch_norm_register(cd_module *module, int64_t channels, cddp_dtype dtype,
                                   cd_batch_norm *norm, cddp_error *err) CDDP_MUST_CHECK;
/* Training: batch statistics, and the running ones move. Otherwise: running statistics. A sample's
** bits depend on the batch around it, by definition. */
cddp_status cd_batch_norm_layer(cd_graph *graph, cd_value *x, const cd_batch_norm *norm,
                                cd_value **y, cddp_error *err) CDDP_MUST_CHECK;
