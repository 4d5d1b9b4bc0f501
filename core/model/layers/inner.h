/* SPDX-License-Identifier: Apache-2.0 */
/* A parameter that only has to receive a gradient: y_s = acc_s + x_s·⟨c, p⟩ with the constants c of
** cd_inner_constant.
**
** The gradient of p is c·Σ_s dy_s·x_s: known in advance, exact for small x, and different for every
** element. For a complex p it is Re⟨c̄, p⟩ and the gradient is c again (PyTorch's convention for
** real losses).
*/
#pragma once
#include "core/model/graph.h"
#include "core/tensor/constants_code.h"

typedef struct cd_inner {
    cd_value *acc; /* (sample_count), or NULL: zero */
    cd_value *p;   /* any sizes; f32, f64 or c64 */
    cd_value *x;   /* (sample_count) f32 or f64; f32 for c64 */
    uint64_t key;  /* distinguishes the constants of two parameters */
} cd_inner;

cddp_status cd_inner_layer(cd_graph *graph, const cd_inner *inner, cd_value **y,
                           cddp_error *err) CDDP_MUST_CHECK;
