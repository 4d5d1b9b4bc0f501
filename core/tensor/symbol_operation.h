/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of device `symbol`, piece by piece. Inside core/tensor only.
**
** Every operation reads its operands piece by piece into a list of result pieces, and writes that
** list at the end. So operands may share storage, and a failure changes nothing. A result piece is
** as long as the operands' pieces overlap, or one element where terms could meet
** (cd_terms_can_add).
*/
#pragma once
#include "core/tensor/symbol_storage.h"

typedef struct cd_symbol_operation cd_symbol_operation;

/* does: result = f(dst piece, src piece). dst is empty unless the operation reads it. */
typedef cddp_status (*cd_symbol_piece_fn)(const cd_symbol_operation *o, const cd_terms *dst,
                                          const cd_terms *src, cd_terms *result, cddp_error *err);

struct cd_symbol_operation {
    const char *name; /* for messages */
    cd_symbol_piece_fn apply;
    bool reads_dst;
    cd_ratio factor;
    int64_t divisor;
    cddp_red_op red_op;
    /* Set by cd_symbol_operation_run: */
    cddp_dtype src_dtype, dst_dtype;
    const cddp_allocator *allocator;
};

/* Operands are checked by the caller: as many elements, inside their storage. */
cddp_status cd_symbol_operation_run(cd_symbol_operation *o, const cddp_tensor *dst,
                                    const cddp_tensor *src, cddp_error *err);

/* dst = src */
cddp_status cd_symbol_piece_copy(const cd_symbol_operation *o, const cd_terms *dst,
                                 const cd_terms *src, cd_terms *result, cddp_error *err);
/* dst = src in another dtype, refused where it could round */
cddp_status cd_symbol_piece_cast(const cd_symbol_operation *o, const cd_terms *dst,
                                 const cd_terms *src, cd_terms *result, cddp_error *err);
/* dst = factor × src */
cddp_status cd_symbol_piece_scale(const cd_symbol_operation *o, const cd_terms *dst,
                                  const cd_terms *src, cd_terms *result, cddp_error *err);
/* dst = src ÷ divisor: exact, but numbers of integer dtypes truncate */
cddp_status cd_symbol_piece_divide(const cd_symbol_operation *o, const cd_terms *dst,
                                   const cd_terms *src, cd_terms *result, cddp_error *err);
/* dst += factor × src */
cddp_status cd_symbol_piece_add(const cd_symbol_operation *o, const cd_terms *dst,
                                const cd_terms *src, cd_terms *result, cddp_error *err);
/* dst = dst red_op src, of numbers only */
cddp_status cd_symbol_piece_reduce(const cd_symbol_operation *o, const cd_terms *dst,
                                   const cd_terms *src, cd_terms *result, cddp_error *err);

/* The form of one element, for messages. Returns text. */
const char *cd_symbol_terms_print(const cd_terms *terms, char *text, size_t text_bytes);
