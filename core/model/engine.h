/* SPDX-License-Identifier: Apache-2.0 */
/* Backward: from roots to the gradient slots of parameters, in the order of PyTorch's engine or in
** any other that the graph permits.
**
** Errors     backward through freed saved tensors is CDDP_E_STATE with PyTorch's message. A failing
**            callback ends the backward with its status; gradients that were accumulated before
**            stay.
*/
#pragma once
#include "core/model/graph.h"

/* In which order accumulation nodes that are ready fire (REB-05). */
typedef enum cd_ready_order {
    /* as soon as they are ready, as PyTorch: 5,4,3,2,1,0 for three Linear layers */
    CD_READY_PRIORITY,
    /* all interior nodes first; then callbacks.choose picks among all that are ready */
    CD_READY_CHOSEN,
    /* all interior nodes first; then the given order, others after it by priority */
    CD_READY_GIVEN
} cd_ready_order;

typedef struct cd_backward_options cd_backward_options;
struct cd_backward_options {
    cd_value *const *roots; /* (root_count) */
    uint32_t root_count;
    const cd_gradient *root_gradients; /* (root_count), or NULL: ones */
    bool retain_graph;
    bool create_graph; /* marks gradients as requires_grad (GRD-09) and retains the graph */
    cd_ready_order order;
    const uint32_t *given; /* (given_count) parameter indices, CD_READY_GIVEN */
    uint32_t given_count;
};

cddp_status cd_graph_backward(cd_graph *graph, const cd_backward_options *options,
                              cddp_error *err) CDDP_MUST_CHECK;

/* autograd.grad (FWD-11): gradients of the roots with respect to values, no accumulation and no
** hooks. */
cddp_status cd_graph_grad(cd_graph *graph, const cd_backward_options *options,
                          cd_value *const *values, uint32_t value_count, cd_gradient *gradients,
                          cddp_error *err) CDDP_MUST_CHECK;
