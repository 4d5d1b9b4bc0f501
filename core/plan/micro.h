/* SPDX-License-Identifier: Apache-2.0 */
/* One micro-step of one rank, as the plan has it: a pure function of plan, rank, step and
** micro-step.
**
** So every rank can know what every other rank does, without asking it. The judge reads the plan by
** itself (core/reference/planned.h), and shares the types.
*/
#pragma once
#include "cddp/plan.h"

typedef struct cd_micro_place {
    uint32_t rank, step, micro_step;
} cd_micro_place;

typedef struct cd_micro {
    cd_micro_place place;
    uint64_t number; /* among all of its rank */
    bool sync, sync_backward;
    /* contexts around a forward that does not synchronise; all but the outer one end before it */
    uint32_t no_sync_depth;
    uint32_t forwards, backwards;
    bool backward_each, loss_each, grad_mode, bypass;
    cddp_plan_when_evaluate evaluate; /* before the first forward */
    uint32_t samples;                 /* of each forward */
    uint32_t branch;
    cddp_text_list outputs, uses;
    cddp_plan_when_ready ready;
    cddp_text_list ready_order;
    cddp_plan_when_skip skip;
    bool stop;
    cddp_plan_when_poison poison;
    const char *poison_parameter; /* NULL: the one that the engine takes first */
    uint32_t abort_after;         /* 0: never */
    bool early_step, touch_buffers, touch_parameters, replace_buffers, create_graph,
        await_producers;
    cddp_plan_when_statistics statistics;
    uint64_t compute_us;
} cd_micro;

/* The micro-batch of one place. Arrays belong to who found it. */
typedef struct cd_micro_batch {
    uint32_t count;         /* samples of all forwards of the micro-step */
    uint32_t epoch;         /* of the first */
    const int64_t *ids;     /* (count) */
    const uint32_t *epochs; /* (count) */
    const double *weights;  /* (count) in the declared loss */
} cd_micro_batch;

/* settings: those of the rank. */
void cd_micro_resolve(const cddp_plan *plan, const cddp_plan_settings *settings,
                      cd_micro_place place, cd_micro *micro);
/* What the plan does to one parameter for good. */
typedef struct cd_parameter_fate {
    bool requires_grad;
    bool is_replaced; /* by a parameter that the wrapper does not know */
} cd_parameter_fate;
/* *fate: before training; afterwards as every step up to place.step leaves it. */
void cd_micro_resolve_parameter(const cddp_plan *plan, cd_micro_place place, const char *name,
                                cd_parameter_fate *fate);
/* Does a [[when]] table make this frozen parameter require gradients, on any rank? */
bool cd_plan_unfreezes(const cddp_plan *plan, const char *name);
/* Steps of one join context; all of them without epochs. */
uint32_t cd_epoch_length(const cddp_plan_settings *settings);
/* The process group of a rank's wrapper in a step; NULL: the world's. */
const char *cd_plan_group_at(const cddp_plan *plan, uint32_t rank, uint32_t step);
/* No name is the world's, of which all ranks are members. */
bool cd_plan_is_member(const cddp_plan *plan, const char *group, uint32_t rank);
/* Does this rank train in this step: it has inputs left in its epoch and did not stop in it? */
bool cd_rank_has_step(const cddp_plan *plan, const cddp_plan_settings *settings, uint32_t rank,
                      uint32_t step);
/* Do its samples reach the optimizer: it trains, runs the micro-step, and runs a backward? */
bool cd_micro_contributes(const cd_micro *micro);

/* The micro-steps between two reductions of a step, end excluded: a window. The last micro-step
** closes the last one. */
typedef struct cd_micro_span {
    uint32_t first, end;
} cd_micro_span;
/* Some rank has other windows than the others. */
bool cd_plan_windows_differ(const cddp_plan *plan);
/* The position of the window that has this micro-step, from 0. */
uint32_t cd_micro_find_window(const cddp_plan *plan, const cddp_plan_settings *settings,
                              cd_micro_place place);
/* The window at that position; empty where the rank has no such one. place: rank and step. */
cd_micro_span cd_micro_get_window(const cddp_plan *plan, const cddp_plan_settings *settings,
                                  cd_micro_place place, uint32_t position);

bool cd_patterns_match(const cddp_text_list *patterns, const char *name);

/* The dtype that a key of [mixed_precision] names; CDDP_DTYPE_COUNT: none. */
cddp_dtype cd_mixed_dtype(int64_t choice);
