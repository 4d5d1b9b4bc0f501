/* SPDX-License-Identifier: Apache-2.0 */
/* What the plan decides: a function of plan, rank, step and micro-step, and of judged gradients
** where the plan lets a decision follow from them. Nothing here is asked of the run.
**
** Every decision enters the trace as an event, before the run can show what it did. The checks
** compare the two (docs/oracle.md, "Decisions").
**
** Lifetime   init → emit → (begin_step → judge)* → fini. Borrows the plan, the replica (names and
**            sizes of parameters, counts of tokens) and the samples.
** Threads    the rank's.
** Errors     memory.
*/
#pragma once
#include "core/base/arena.h"
#include "core/oracle/partition.h"
#include "core/plan/replica/replica.h"
#include "core/reference/normaliser.h"
#include "core/reference/decided_hook.h"
#include "core/reference/samples.h"
#include "core/reference/scaling.h"
#include "core/tensor/numbers.h"

struct cddp_tracer;
struct cd_unit_law;

/* What an optimizer is to do at the end of a step. */
typedef enum cd_decided_update {
    CD_UPDATE_NONE,   /* nothing: it is not due */
    CD_UPDATE_STEP,   /* step, unless a gradient overflowed */
    CD_UPDATE_SKIP,   /* say that it skips: the plan does */
    CD_UPDATE_UNKNOWN /* whether it steps, and how often, depends on a backward that is left early
                      ** or stepped in */
} cd_decided_update;

/* What is known of an update that is not: a backward of the step may be left. */
typedef enum cd_decided_leaving {
    CD_LEAVING_NONE,
    CD_LEAVING_NO_STEP,   /* no optimizer steps behind it, and this one does not without it */
    CD_LEAVING_ELSE_STEPS /* no optimizer steps behind it; without it this one does */
} cd_decided_leaving;

/* How many reductions a rank closed before a place. Of a backward that is left nobody knows before
** whether its last bucket was called, by which hooks count. */
typedef struct cd_reduction_walk {
    uint32_t step, micro_step; /* the next place */
    uint64_t closed, left;
} cd_reduction_walk;

typedef struct cd_decisions {
    const cddp_plan *plan;
    const char *group; /* in which the wrapper reduces until a [[when]] changes it */
    uint32_t rank;
    cddp_plan_settings settings; /* of the rank */
    const cd_replica *replica;
    cd_samples *samples;
    cd_normaliser normaliser;
    cd_decided_hook hook;
    cd_scaling scaling;
    cd_reduction_walk walk;
    const cd_part *parts; /* (parameter_count) who steps what, for the norm; NULL: everybody all */
    bool *overflows;      /* (optimizer_count) of the step at hand */
    uint64_t begun;       /* + 1: the last step that began; 0: none */
    /* Where the decisions stand that are in the trace already, ahead of the run. */
    uint32_t emitted, planned;              /* steps, those without inputs too */
    cd_reduction_walk ahead;                /* as .walk, of the emission */
    cd_sample_walk sample_ahead;            /* likewise, of the rank's own samples */
    struct cd_decided_averaging *averaging; /* NULL: no model averager */
    struct cd_unit_law *units;              /* of a sharded model; else NULL */
    cd_arena *memory;
    /* false: an optimizer stepped on gradients that nobody judged (when.early_step) */
    bool knows_scale;
    bool has_left; /* a backward that was emitted is left early, or stepped in */
    /* Of the judged gradients of the step at hand, by which they are clipped, and how far another
    ** order of rounding may be from it. */
    double norm, norm_bound;
    bool knows_norm;
} cd_decisions;

typedef struct cd_decisions_options {
    const cddp_plan *plan;
    const char *group; /* of the wrapper; borrowed */
    uint32_t rank;
    const cd_replica *replica;
    cd_samples *samples;
    const cd_part *parts;
    struct cd_unit_law *units; /* of a sharded model; else NULL */
    cd_arena *memory;          /* what decisions need lives as long as this */
} cd_decisions_options;

cddp_status cd_decisions_init(cd_decisions *decisions, const cd_decisions_options *options,
                              cddp_error *err) CDDP_MUST_CHECK;

/* ---- one by one ---- */

/* Steps that the rank begins. */
uint32_t cd_decisions_count_steps(const cd_decisions *decisions);
cd_decided_update cd_decisions_get_update(const cd_decisions *decisions, uint32_t step,
                                          size_t optimizer);
cd_decided_leaving cd_decisions_get_leaving(const cd_decisions *decisions, uint32_t step,
                                            size_t optimizer);
/* Whether it steps, now that the gradients of the step were judged. */
bool cd_decisions_has_step(const cd_decisions *decisions, uint32_t step, size_t optimizer);
/* Does a reduction close with this micro-step, and which is the first that enters it? */
bool cd_decisions_closes(const cd_decisions *decisions, cd_micro_place place);
uint32_t cd_decisions_get_window_first(const cd_decisions *decisions, cd_micro_place place);
/* PSG-04, LSG-01: whether the hook's reduction at this place is still that of the allreduce
** hook, or may be. */
bool cd_decisions_is_before_start(cd_decisions *decisions, cd_micro_place place);
bool cd_decisions_may_be_before_start(cd_decisions *decisions, cd_micro_place place);
/* LSG-02: over how many consecutive ranks the hook averages there. 0: the plan does not say. */
uint32_t cd_decisions_get_block(cd_decisions *decisions, cd_micro_place place);

/* Mixed precision and optimizers in backward take the hook's slot for themselves. */
bool cd_decisions_has_free_slot(const cd_decisions *decisions);

/* Says that the judge does not decide something, and why. */
void cd_decisions_give_up(struct cddp_tracer *tracer, uint64_t count, const char *why);
/* The norm to clip by: the rank's where it is the judge's but for the order of rounding, else the
** judge's. False: the plan does not say whose squares enter. */
bool cd_decisions_get_norm(const cd_decisions *decisions, double said, double *norm);

/* ---- as a whole ---- */

/* Emits what follows from the plan alone and is of no step, and the first steps. */
cddp_status cd_decisions_emit(cd_decisions *decisions, struct cddp_tracer *tracer,
                              cddp_error *err) CDDP_MUST_CHECK;
/* Emits what is decided of further steps, when few are left ahead of this one. A run of a million
** steps does not begin with a million decisions; one that ends early has some that it left out. */
cddp_status cd_decisions_emit_ahead(cd_decisions *decisions, uint32_t step,
                                    struct cddp_tracer *tracer, cddp_error *err) CDDP_MUST_CHECK;
/* A step begins; the first call for a step counts. Emits the loss scale and returns it. */
double cd_decisions_begin_step(cd_decisions *decisions, uint32_t step, struct cddp_tracer *tracer);
/* The last reduction of a step was judged. Emits what follows from its gradients, (parameter_count
** of the replica): who overflows, and by what is clipped. Afterwards .overflows is of this step. */
cddp_status cd_decisions_judge(cd_decisions *decisions, uint32_t step, const cddp_grad *gradients,
                               cd_numbers *numbers, struct cddp_tracer *tracer,
                               cddp_error *err) CDDP_MUST_CHECK;
