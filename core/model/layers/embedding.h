/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a table by index, one by one or summed per sample (embedding bag, mode sum). */
#pragma once
#include "core/model/graph.h"

typedef struct cd_embedding {
    /* (sample_count, positions) i64, values in 0 … rows-1; borrowed until the next begin */
    const cddp_tensor *indices;
    /* sum over positions: (sample_count, width) instead of (sample_count, positions, width) */
    bool bag;
    bool sparse; /* the table's gradient is CDDP_GRAD_SPARSE, rows increasing */
} cd_embedding;

/* table (rows, width). */
cddp_status cd_embedding_layer(cd_graph *graph, cd_value *table, const cd_embedding *embedding,
                               cd_value **y, cddp_error *err) CDDP_MUST_CHECK;
