/* SPDX-License-Identifier: Apache-2.0 */
/* Multi-head self-attention between given projections. */
#pragma once
#include "core/model/graph.h"

typedef struct cd_attention {
    int64_t heads; /* divides the width */
    bool causal;   /* a position sees itself and earlier ones */
} cd_attention;

/* qkv (sample_count, positions, 3·width): queries, keys and values side by side → y (sample_count,
** positions, width).
*/
cddp_status cd_attention_layer(cd_graph *graph, cd_value *qkv, const cd_attention *attention,
                               cd_value **y, cddp_error *err) CDDP_MUST_CHECK;
