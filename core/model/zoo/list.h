/* SPDX-License-Identifier: Apache-2.0 */
/* Models that are lists of parameters: every parameter contributes x_s·⟨c, p⟩ to an output
** (layers/inner.h), in order. On devices without arithmetic nothing is computed at all, so the
** lists of very large networks cost nothing.
*/
#pragma once
#include "core/model/type.h"

/* Input "x": one number per sample. */
cddp_status cd_list_add_input(cd_model *model, cddp_error *err) CDDP_MUST_CHECK;
/* acc = acc + x·⟨c, p⟩ for one use of a parameter; *acc NULL: the first. */
cddp_status cd_list_use(const cd_model *model, cd_graph *graph, uint32_t parameter, cd_value *x,
                        cd_value **acc, cddp_error *err) CDDP_MUST_CHECK;

/* The pieces that the real networks are made of. Scopes are pushed and popped by dots in the
** name. */
typedef struct cd_list_item {
    const char *name;
    uint32_t dim_count;
    int64_t sizes[4];
    /* how often its elements are used per sample, for the cost; 0: rows are only looked up */
    int64_t positions;
} cd_list_item;
cddp_status cd_list_add(cd_model *model, const cd_list_item *item, cddp_error *err) CDDP_MUST_CHECK;
/* Input, output "out", nothing else: called after the parameters. */
cddp_status cd_list_finish(cd_model *model, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_list_forward(cd_model *model, cd_graph *graph, const cd_batch *batch,
                            cd_outputs *outputs, cddp_error *err);
cddp_status cd_list_losses(cd_model *model, cd_graph *graph, uint32_t output, cd_value *value,
                           const cddp_tensor *target, cd_value **losses, cddp_error *err);
