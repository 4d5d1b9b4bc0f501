/* SPDX-License-Identifier: Apache-2.0 */
/* What a recorded run shows of its training, step by step and tensor by tensor: samples, gradients
** before and after their reduction, parameters. Content is digests and projections.
**
** Lifetime   init → push every event → read → fini. Names are copied.
** Errors     without memory is_out_of_memory is set, and nothing is to be compared.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/trace.h"

/* Note [The last one is used]
** A rank may show a tensor several times in a step: each micro-step's reduction, or values before
** and after loading. The last one is what it goes on with. Ranks are interleaved, so the k-th
** of a rank is held to the k-th of the others, and the furthest k stays. */
typedef struct cd_traced_last {
    int64_t digest; /* 0: not shown */
    uint32_t round; /* how often the furthest ranks showed it */
    uint32_t ranks; /* that got so far */
    uint32_t all;   /* ranks that showed it at all; more than `ranks`: some stopped before */
    bool is_split;  /* they showed different ones */
} cd_traced_last;

typedef struct cd_traced_tensor {
    char *name; /* NULL: not declared */
    int64_t numel, dtype, shape;
    cd_traced_last initial; /* before the first step */
} cd_traced_tensor;

/* A tensor in a step. */
typedef struct cd_traced_cell {
    cd_traced_last gradient; /* after its reduction */
    cd_traced_last after;    /* the parameter after the step */
    double local, magnitude; /* of the projections before the reduction, summed over the ranks */
    double reduced, reduced_magnitude; /* of the projection after it */
    int64_t numel, dtype;
    uint32_t locals, shown; /* ranks that showed their gradient, and the result */
} cd_traced_cell;

typedef struct cd_traced_step {
    uint32_t number;
    uint64_t samples, ids; /* how many, and an order-free digest */
    uint64_t forwards;     /* likewise, of the samples of each forward */
    double rate;           /* of the optimizer that stepped last */
    bool has_stepped, is_skipped, has_samples;
    cd_traced_cell *cells; /* (cell_count) by variable */
    size_t cell_count, cell_capacity;
} cd_traced_step;

/* How often a rank has shown something in a step. */
typedef struct cd_traced_round {
    uint32_t step, count;
} cd_traced_round;

/* What a rank showed last, until its next backward replaces it. */
typedef struct cd_traced_local {
    double sum, magnitude;
    uint32_t step;
    bool is_pending, is_result_pending;
    bool is_counted; /* among those that showed the result */
    cd_traced_round initial, gradient, after;
} cd_traced_local;

typedef struct cd_traced_rank {
    cd_traced_local *locals; /* (count) by variable */
    size_t count, capacity;
    uint32_t last_step; /* of its optimizer */
    uint32_t reached;   /* the furthest step of an event */
    bool has_stepped, has_events;
} cd_traced_rank;

typedef struct cd_traced {
    const cddp_allocator *allocator;
    uint32_t rank_count;
    cd_traced_tensor *tensors; /* (tensor_count) by variable */
    size_t tensor_count, tensor_capacity;
    cd_traced_step *steps; /* (step_count), numbers rise */
    size_t step_count, step_capacity;
    cd_traced_rank *ranks; /* (rank_count) */
    char hook[64];         /* the comm hook in force; "": none */
    bool accumulates;      /* each micro-step's gradient was given to it (accumulate_in_hook) */
    bool has_models;       /* two of them, whose parameters have the same numbers */
    bool has_join, is_complete, is_out_of_memory;
} cd_traced;

cddp_status cd_traced_init(cd_traced *facts, uint32_t rank_count, const cddp_allocator *allocator,
                           cddp_error *err) CDDP_MUST_CHECK;
void cd_traced_fini(cd_traced *facts); /* accepts a zeroed one */
void cd_traced_push(cd_traced *facts, const cddp_event *event);
/* NULL: the run has no such step. */
const cd_traced_step *cd_traced_find(const cd_traced *facts, uint32_t number);
