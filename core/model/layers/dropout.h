/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout. Its mask is a function of (seed, layer, iteration, sample id, element). So it is the
** same on every rank, at every position of a batch, and in the second run of a checkpoint.
*/
#pragma once
#include "core/model/graph.h"

typedef struct cd_dropout {
    double probability; /* of zeroing, 0 <= p < 1; kept elements are scaled by 1/(1-p) */
    uint64_t seed;
    uint64_t layer; /* distinguishes the dropouts of a model */
    uint64_t iteration;
    const int64_t *sample_ids; /* (sample_count) borrowed until the next begin */
} cd_dropout;

/* The identity when the graph is not training. */
cddp_status cd_dropout_layer(cd_graph *graph, cd_value *x, const cd_dropout *dropout, cd_value **y,
                             cddp_error *err) CDDP_MUST_CHECK;
