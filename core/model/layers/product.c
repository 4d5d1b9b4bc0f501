/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/layers/product.h"

#include "core/tensor/linalg.h"

cddp_status cd_product_run(cd_graph *graph, cddp_dtype dtype, const cd_product *product,
                           cddp_error *err)
{
    const cd_product *p = product;
    cd_matmul_args args = {.shape = {.m = p->m,
                                     .n = p->n,
                                     .k = p->k,
                                     .a_row = p->a_transposed ? 1 : p->k,
                                     .a_k = p->a_transposed ? p->m : 1,
                                     .b_k = p->b_transposed ? 1 : p->n,
                                     .b_col = p->b_transposed ? p->k : 1,
                                     .dst_row = p->n,
                                     .dst_col = 1},
                           .dtype = dtype,
                           .dst = p->dst,
                           .a = p->a,
                           .b = p->b,
                           .accumulate = p->accumulate};
    if (p->m == 0 || p->n == 0) return CDDP_OK;
    cd_arena_mark mark = cd_arena_get_mark(&graph->arena);
    cddp_status status = cd_matmul(&args, cd_isa_best(), &graph->scratch, err);
    cd_arena_rewind(&graph->arena, mark);
    if (status != CDDP_OK) cd_error_frame(err, __FILE__, __func__, __LINE__);
    return status;
}
