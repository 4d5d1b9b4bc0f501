/* SPDX-License-Identifier: Apache-2.0 */
/* One reduction as a single process sees it: every rank's contribution, and their exact sums.
**
** The engine computes each rank's part by itself; nothing here talks to another rank.
**
** Lifetime   a window is made once per oracle (or share), and computed again for every reduction.
** Errors     memory, and errors of the engine.
*/
#pragma once
#include "core/oracle/any_order.h"
#include "core/oracle/explain.h"
#include "core/oracle/numbers.h"
#include "core/oracle/oracle.h"

/* The state that a step starts from, and the shape of the model. */
typedef struct cd_start {
    const cd_oracle_parameter *parameters; /* (parameter_count) */
    size_t parameter_count;
    const size_t *offsets;      /* (parameter_count + 1) */
    const cddp_tensor *values;  /* (parameter_count) of the parameters */
    const cddp_tensor *buffers; /* or NULL */
    const cddp_grad *kept;      /* (parameter_count) gradients kept from before the step */
    const cd_oracle_engine *engine;
    uint32_t world_size;
    bool sample_wise;
    uint64_t digest; /* of values and kept gradients, with their sizes */
} cd_start;

typedef struct cd_window_parameter {
    cd_wide_sum samples; /* Σ over samples of all ranks: link 1 */
    /* Σ over ranks of their contributions, already divided when the division is known: link 2 */
    cd_wide_sum contributions;
    cd_any_order addends;   /* the same, one by one, as they are added */
    uint64_t divided_after; /* by what their sum is divided; 1: it is not */
    uint64_t times_after;   /* and multiplied, by a power of two; 1: it is not */
    cddp_dtype added_in;    /* the dtype of the additions */
    cddp_tensor expected;   /* exact devices: the whole expected form, contiguous */
    bool is_quotient;       /* likewise: the device divided it rightly */
    bool fired;             /* the backward of some rank gave it a gradient */
    bool fired_here;        /* and of a rank that is averaged with this one */
} cd_window_parameter;

typedef struct cd_window {
    const cddp_allocator *allocator;
    cd_window_parameter *parameters; /* (parameter_count) */
    size_t parameter_count;
    cd_numbers numbers, more;
    bool is_valid, is_exact_device, divided; /* divided: contributions hold divided values */
    /* the computation of a sample rounds: sums are then taken over whole micro-batches */
    bool rounds;
    bool counts;     /* this rank is averaged; of other ranks only `fired` matters */
    bool has_stages; /* means of means */
    bool separate;   /* the hook adds up micro-steps: nothing is known of its additions */
    uint32_t contributors, parts;
    cd_locals locals; /* every rank's gradients of this reduction, gathered after an error */
    bool has_locals;
    bool has_failed; /* some rank was found to have other values */
    uint64_t used;   /* the time of its last use */
    /* The reduction that it was computed for. */
    uint32_t step, micro_first, micro_step, rank_first, rank_count;
    uint64_t divisor, before, digest;
    double loss_scale;
    cd_oracle_division division;
    cddp_dtype wire;
} cd_window;

/* In which dtype gradients of a parameter are summed; CDDP_DTYPE_COUNT: its own. */
cddp_dtype cd_window_get_wire(const cd_window *window, const cd_oracle_parameter *parameter);

void cd_window_init(cd_window *window, const cddp_allocator *allocator);
void cd_window_fini(cd_window *window);
/* Does nothing when the window already holds this reduction from this start. */
cddp_status cd_window_compute(cd_window *window, const cd_start *start,
                              const cd_oracle_reduction *reduction, cddp_error *err);
/* Every rank's gradients of every micro-step, for explaining an error: once for a window, into its
** locals. */
cddp_status cd_window_gather(cd_window *window, const cd_start *start,
                             const cd_oracle_reduction *reduction, cddp_error *err);
void cd_window_release_locals(cd_window *window);
/* Whether the window already holds this reduction from this start. */
bool cd_window_holds(const cd_window *window, const cd_start *start,
                     const cd_oracle_reduction *reduction);
/* The replica's gradients after all of a rank's micro-steps of the reduction. */
cddp_status cd_start_run_rank(const cd_start *start, const cd_oracle_reduction *reduction,
                              uint32_t rank, cddp_error *err);
