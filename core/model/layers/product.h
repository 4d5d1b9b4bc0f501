/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products inside kernels: core/tensor's stated order (k = 0, 1, 2, … one after the other),
** packing buffers from the tape.
*/
#pragma once
#include "core/model/op.h"

/* dst (m, n) = a (m, k) · b (k, n); all row-major, a and b as stored when transposed. */
typedef struct cd_product {
    void *dst;
    const void *a, *b;
    int64_t m, n, k;
    bool a_transposed; /* a is stored (k, m) */
    bool b_transposed; /* b is stored (n, k) */
    bool accumulate;   /* dst += finished product */
} cd_product;

cddp_status cd_product_run(cd_graph *graph, cddp_dtype dtype, const cd_product *product,
                           cddp_error *err) CDDP_MUST_CHECK;
