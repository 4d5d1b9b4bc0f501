/* SPDX-License-Identifier: Apache-2.0 */
/* A parameter whose gradient is given: y_s = acc_s + ⟨c_s, p⟩, with constants c_s that the caller
** has for each sample.
**
** The gradient of p is Σ_s dy_s·c_s. With one sample and dy = 1 it is c_s bit for bit, the sign of
** a zero included.
*/
#pragma once
#include "core/model/graph.h"

typedef struct cd_given {
    cd_value *acc; /* (sample_count), or NULL: zero */
    cd_value *p;   /* any sizes; f32 or f64 */
    /* (sample_count, numel of p) borrowed until the graph's next begin; NULL where the graph does
    ** not compute */
    const double *constants;
    int64_t sample_count;
} cd_given;

cddp_status cd_given_layer(cd_graph *graph, const cd_given *given, cd_value **y,
                           cddp_error *err) CDDP_MUST_CHECK;
