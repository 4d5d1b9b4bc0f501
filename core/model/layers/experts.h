/* SPDX-License-Identifier: Apache-2.0 */
/* Mixture of experts with top-1 routing: which sample goes where, taking its row there, and
** bringing results back.
**
** An expert that no sample chose is not run: its parameters are unused in this forward.
*/
#pragma once
#include "core/model/graph.h"

#define CD_EXPERTS_MAX 64

typedef struct cd_routing {
    int64_t sample_count, expert_count;
    const int64_t *expert;   /* (sample_count) chosen by each sample; ties go to the lowest */
    const int64_t *position; /* (sample_count) its row within its expert's batch */
    const int64_t *count;    /* (expert_count) samples per expert */
    cd_value *gates;         /* (sample_count) softmax probability of the chosen expert */
    cddp_tensor expert_there, position_there; /* on a device that computes layers; else undefined */
} cd_routing;

/* logits (sample_count, experts). Where the graph does not compute, sample s goes to expert
** sample_ids[s] mod experts.
*/
cddp_status cd_route_top1(cd_graph *graph, cd_value *logits, const int64_t *sample_ids,
                          cd_routing *routing, cddp_error *err) CDDP_MUST_CHECK;
/* The rows of x (sample_count, width) that chose this expert, in sample order. */
cddp_status cd_expert_take(cd_graph *graph, cd_value *x, const cd_routing *routing, int64_t expert,
                           cd_value **rows, cddp_error *err) CDDP_MUST_CHECK;
/* y[s] = gate[s] · results[expert[s]][position[s]]; results[e] is NULL for experts without
** samples. */
cddp_status cd_expert_combine(cd_graph *graph, cd_value *const *results, const cd_routing *routing,
                              cd_value **y, cddp_error *err) CDDP_MUST_CHECK;
