/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle: what one process would have computed, and by how much a rank may differ from it.
**
** Every rank asks its own oracle, so it works where ranks are processes. The oracle drives a
** private replica of the model through a table that core/reference fills in. It never sees ddp,
** comm or hooks. Its results enter the trace as `compare` events.
**
** Per optimizer step the rank calls
**     begin_step
**     → for each micro-step: enter_forward → (forward, backward: push_local per gradient)
**     → judge_gradients (after a synchronising backward) → judge_update (after the optimizers)
** and finish at the end.
**
** Lifetime   parameters, the engine, the tracer and the share are borrowed until destroy.
** Threads    the rank's thread. A share is for ranks that take turns on one thread.
** Errors     a difference is an event, not an error. A failing engine or no memory is an error.
*/
#pragma once
#include "cddp/tensor.h"
#include "cddp/trace.h"
#include "core/oracle/compare.h"
#include "core/oracle/partition.h"
#include "core/oracle/second/formula.h"
#include "core/oracle/second/program.h"

typedef struct cd_oracle cd_oracle;
typedef struct cd_oracle_share cd_oracle_share;

#define CD_ORACLE_ALL UINT32_MAX

/* In which numbers the engine computes a part. */
typedef enum cd_oracle_precision {
    CD_ORACLE_AS_PLANNED,
    CD_ORACLE_IN_F32, /* no parameter and no gradient is of a half type; only where has_full */
    CD_ORACLE_IN_F64  /* only where has_wide */
} cd_oracle_precision;

/* The part that the replica computes: one sample of a micro-batch, or all of them. */
typedef struct cd_oracle_part {
    uint32_t rank, step, micro_step;
    uint32_t sample; /* position in the micro-batch, or CD_ORACLE_ALL */
    bool objective;  /* the intended training, where its ranks do something else */
    bool reenters;   /* buffers are given again before the last forward, as load had them */
    bool is_plain;   /* values cross units of a sharded model as they are: nothing casts them */
    cd_oracle_precision precision;
} cd_oracle_part;

/* State of the optimizers, slot by slot, in the engine's own order. An undefined tensor (device
** NULL) is a slot that does not exist yet: absent is not zero. */
typedef struct cd_oracle_slots {
    const cddp_tensor *tensors; /* (count) */
    const int32_t *parameters;  /* (count) the ordinal each belongs to */
    size_t count;
} cd_oracle_slots;

typedef struct cd_oracle_update {
    uint32_t step;
    const cddp_tensor *parameters; /* (parameter_count) */
    const cddp_grad *gradients;    /* (parameter_count) as the optimizers saw them */
    cd_oracle_slots state;
    bool restarts; /* a free-running engine takes the run's optimizer state of before the step */
} cd_oracle_update;

/* What ranks said at one exchange of statistics. */
typedef struct cd_oracle_exchange {
    const double *rows; /* (world, width), borrowed until the next call */
    int64_t buffer;     /* the running mean of the layer that exchanged; -1: it is not known */
} cd_oracle_exchange;

/* One process with one replica of the model. All functions but the last are required. */
typedef struct cd_oracle_engine {
    void *self;
    /* does: gives the replica these values and drops its gradients. buffers: borrowed until the
    ** next call; NULL: they stay. */
    cddp_status (*load)(void *self, const cddp_tensor *parameters, const cddp_tensor *buffers,
                        cddp_error *err);
    /* does: makes the replica's gradient of parameter i equal to this one (an earlier step's,
    ** kept). */
    cddp_status (*set_gradient)(void *self, size_t parameter, const cddp_grad *gradient,
                                cddp_error *err);
    /* does: drops the replica's gradients. */
    void (*drop_gradients)(void *self);
    /* does: forward and backward of a part, as its rank would do them, without communication;
    ** accumulates. A part that its rank does not run (no inputs left, skipped) adds nothing. */
    cddp_status (*run)(void *self, const cd_oracle_part *part, cddp_error *err);
    /* does: how many samples the part's micro-batch has; 0 when its rank does not run it. */
    uint32_t (*sample_count)(void *self, const cd_oracle_part *part);
    /* (parameter_count), (buffer_count), borrowed until the next call. */
    const cddp_tensor *(*parameters)(void *self);
    const cddp_grad *(*gradients)(void *self);
    const cddp_tensor *(*buffers)(void *self);
    /* does: the optimizers of the step, from these parameters, gradients and state; leaves the
    ** results in parameters() and *state (borrowed until the next call). */
    cddp_status (*update)(void *self, const cd_oracle_update *before, cd_oracle_slots *state,
                          cddp_error *err);
    /* does: what every rank said at the n-th exchange of statistics of a part. (optional: NULL
    ** where nothing is exchanged) */
    cddp_status (*statistics)(void *self, const cd_oracle_part *part, size_t exchange, size_t width,
                              cd_oracle_exchange *found, cddp_error *err);
    /* does: describes a whole micro-batch for a second form of the model, or says why it cannot
    ** (*why). Called after the part was run; borrowed until the next call. (optional: link 15 is
    ** not judged) */
    cddp_status (*example)(void *self, const cd_oracle_part *part, cd_second_program *program,
                           const char **why, cddp_error *err);
    /* ranks compute with parameters of a half type, and it can do the same in f32, from the same
    ** numbers */
    bool has_full;
    /* ranks compute in a narrower dtype than f64, and it can do the same in f64, from the same
    ** numbers */
    bool has_wide;
    bool casts_values; /* where they enter and leave units, unless a part is plain */
    /* does: how often the gradient of each parameter was added to in the last run (optional: what
    ** a cast makes of it is not judged) */
    const uint32_t *(*uses)(void *self);
} cd_oracle_engine;

/* The statistics that a synchronised layer used. */
typedef struct cd_oracle_moments {
    uint32_t step, micro_step;
    size_t exchange;             /* of the micro-step's forwards, from 0 */
    uint32_t buffer;             /* that names the layer: its running mean */
    const double *mean, *spread; /* (channels) */
    size_t channels;
} cd_oracle_moments;

/* How a gradient becomes an average over the ranks. */
typedef enum cd_oracle_path {
    CD_ORACLE_PATH_LOCAL,  /* it does not: ignored, frozen when the model was wrapped */
    CD_ORACLE_PATH_BUCKET, /* by its bucket, as the reduction declares */
    /* by the delayed all-reduce: truly divided, then summed, with any hook (DEL-03); its gradient
    ** always exists (DEL-04) */
    CD_ORACLE_PATH_DELAYED
} cd_oracle_path;

/* In which dtypes the gradient of a parameter is made, summed and kept for its optimizer;
** CDDP_DTYPE_COUNT: its own. */
typedef struct cd_oracle_casts {
    bool is_given; /* else as the reduction says of all */
    cddp_dtype wire, local, kept;
} cd_oracle_casts;

typedef struct cd_oracle_parameter {
    const char *name; /* borrowed until destroy */
    int64_t numel;    /* numbers in it: two of each complex one */
    cddp_dtype dtype;
    /* variable index among the reduced parameters, -1 when it is not one of them */
    int32_t variable;
    cd_oracle_path path;
    cd_part part; /* whose step it gets, where its optimizer is sharded */
    /* those of one number are reduced as one: where one of them has a gradient the others have
    ** zeros (FPM-07); 0: it is reduced by itself */
    uint32_t unit;
    cd_oracle_casts casts;
} cd_oracle_parameter;

/* Why the free-running reference cannot repeat a step. */
typedef enum cd_free_gap {
    CD_FREE_NO_GAP,
    CD_FREE_ROUNDED,
    CD_FREE_BLOCK,
    CD_FREE_APART,
    CD_FREE_CHANGED,
    CD_FREE_SHARDED,
    CD_FREE_AVERAGED,
    CD_FREE_DISTINCT,
    CD_FREE_WIDE,
    CD_FREE_RECEIVED,
    CD_FREE_GAP_COUNT
} cd_free_gap;

typedef struct cd_oracle_options {
    /* (parameter_count) in the order of named_parameters() */
    const cd_oracle_parameter *parameters;
    size_t parameter_count;
    size_t buffer_count;
    uint32_t rank, world_size;
    const cd_oracle_engine *engine;
    /* a second replica for the free-running reference; NULL: none */
    const cd_oracle_engine *free_engine;
    /* AVERAGED: it is never longer than a step; DISTINCT: its initial values are not the run's */
    cd_free_gap free_gap;
    /* ranks of one thread share what they recompute; NULL: each for itself */
    cd_oracle_share *share;
    struct cddp_tracer *tracer; /* may be NULL: then only cd_oracle_get_summary has the result */
    const cddp_allocator *allocator;
    /* a sample's gradient does not depend on the rest of its micro-batch, and no cast rounds it;
    ** false with batch norm */
    bool sample_wise;
    bool routes_by_values; /* parameters decide which of them a sample uses */
    bool has_no_state;     /* of optimizers, from which a free-running engine could restart */
    bool separate; /* every micro-step begins without gradients: the comm hook adds them up */
    /* what a step reduces later is added to what it reduced before, which does not enter into it
    ** (FSY-05) */
    bool adds_reductions;
    bool exact_inputs; /* the plan promises that no sum rounds; the witness is still checked */
    /* Link 15 judges each parameter in the first step, the last, and one that the seed draws. */
    uint32_t step_count;
    uint64_t seed;
    /* gradients are clipped to this norm after the reduction; 0: not, below 0: to one of some of
    ** them, or in another place */
    bool rounds_buffers;     /* a forward leaves buffers in numbers of buffer_dtype (FMP-07) */
    cddp_dtype buffer_dtype; /* where it does */
    double clip_max_norm;
    double clip_norm_type; /* p of that norm */
    bool clips_scaled;     /* before the loss scale is taken back */
    /* after each step the parameters go to the nearest k/8, -8 ≤ k ≤ 8, ties up, modulo 17 */
    bool on_grid;
} cd_oracle_options;

/* One reduction, as the plan declares it. */
typedef enum cd_oracle_division {
    /* either form, or after the sum: bounded unless the divisor is a power of two */
    CD_ORACLE_DIVISION_ANY,
    CD_ORACLE_DIVISION_EITHER, /* either form, before the sum (GRD-06) */
    CD_ORACLE_DIVISION_AFTER,  /* the sum, cast to the wire's dtype, is truly divided (MIX-04) */
    CD_ORACLE_DIVISION_RECIPROCAL, /* × fl(1/n) before the sum (GRD-03) */
    CD_ORACLE_DIVISION_TRUE,       /* ÷ n before the sum (GRD-04) */
    CD_ORACLE_DIVISION_CAST,     /* cast to the wire's dtype, ÷ n there, before the sum (HK-02) */
    CD_ORACLE_DIVISION_CAST_ONCE /* cast to the wire's dtype; sum and ÷ n are rounded once */
} cd_oracle_division;

/* Micro-steps of a rank, end excluded. */
typedef struct cd_oracle_span {
    uint32_t first, end;
} cd_oracle_span;

typedef struct cd_oracle_reduction {
    uint32_t step, micro_step; /* the synchronising micro-step */
    uint64_t divisor;          /* W, or the ranks still active (JON-11) */
    cd_oracle_division division;
    cddp_dtype wire; /* CDDP_DTYPE_COUNT: each parameter's own (GRD-17) */
    /* under mixed precision gradients are born and added up in `local` (MIX-02) */
    bool accumulates_low;
    cddp_dtype local;
    /* with CD_ORACLE_DIVISION_AFTER: addends are divided by `before`, a power of two, and the sum
    ** by divisor / before in two exact steps and one that rounds (FSD-06); 0 or 1: they are not */
    uint64_t before;
    bool has_stages; /* it is a mean of means (HSD-02) */
    /* additions on the longest path of the reduction; 0: world_size - 1 */
    uint32_t depth;
    bool lossy;           /* the hook obeys its own law: links 1 and 2 are not judged */
    bool is_probe;        /* inside no_sync, and no optimizer takes it: nor are they */
    uint32_t micro_first; /* first micro-step that entered since gradients were dropped */
    /* how loss and objective are normalised, when they are not alike; else NULL */
    const char *normalisation;
    /* (world_size) the micro-steps of each rank that enter; NULL: micro_first … micro_step */
    const cd_oracle_span *spans;
    /* gradients of micro-steps enter one by one; their sum is never in `.grad` */
    bool separate;
    bool has_forgotten; /* of one of them: what was kept went with an earlier one */
    /* the reduction promises the exact mean of what entered, rounded once */
    bool rounded_once;
    bool is_batched;  /* copies wait for their bucket, and are divided together (GRD-08) */
    bool is_followed; /* each bucket was followed bit by bit: its cast, its sum and its division */
    /* of this rank, which the engine applies to every rank's gradients */
    double loss_scale;
    /* local SGD: the ranks that are averaged together; rank_count 0: all */
    uint32_t rank_first, rank_count;
    bool has_parted; /* ranks have their own parameters, and the plan does not say which */
    const cddp_grad *gradients; /* (parameter_count) after backward */
} cd_oracle_reduction;

/* A norm by which gradients are about to be clipped. */
typedef struct cd_oracle_norm {
    const cddp_grad *gradients; /* (parameter_count) as they are now */
    double norm, p;             /* p: of the p-norm */
    const uint32_t *ranks;      /* (rank_count) whose parts entered, as the program has it */
    uint32_t rank_count;
} cd_oracle_norm;

/* What an optimizer computes with, as PyTorch calls it. What its kind does not have is 0. */
typedef enum cd_oracle_setting {
    CD_ORACLE_WEIGHT_DECAY,
    CD_ORACLE_MOMENTUM,
    CD_ORACLE_DAMPENING,
    CD_ORACLE_NESTEROV,
    CD_ORACLE_BETA1,
    CD_ORACLE_BETA2,
    CD_ORACLE_EPS,
    CD_ORACLE_SETTINGS
} cd_oracle_setting;

/* A parameter of an optimizer, and its state. */
typedef struct cd_oracle_optimized {
    double settings[CD_ORACLE_SETTINGS]; /* of its optimizer */
    size_t parameter;
    uint32_t optimizer;
    bool is_held;    /* by this rank; of a sharded optimizer: a part of it */
    bool is_present; /* it has state */
    uint64_t steps;  /* that the optimizer counts for it */
    /* undefined where there is none; of a sharded optimizer: of this rank's elements */
    cddp_tensor slots[CD_FORMULA_SLOTS_MAX];
} cd_oracle_optimized;

typedef struct cd_oracle_formulas {
    const cd_formula *formulas;       /* (optimizer_count) */
    const bool *due;                  /* (optimizer_count) which stepped */
    const cddp_tensor *parameters;    /* (parameter_count) after the step */
    const cddp_grad *gradients;       /* (parameter_count) as the optimizers saw them */
    const cd_oracle_optimized *after; /* (count) */
    size_t count;
} cd_oracle_formulas;

typedef struct cd_oracle_summary {
    uint64_t compared, differing, exact, bounded; /* tensors */
} cd_oracle_summary;

cddp_status cd_oracle_share_create(const cddp_allocator *allocator, cd_oracle_share **share,
                                   cddp_error *err) CDDP_MUST_CHECK;
void cd_oracle_share_destroy(cd_oracle_share *share); /* accepts NULL */

cddp_status cd_oracle_create(const cd_oracle_options *options, cd_oracle **oracle,
                             cddp_error *err) CDDP_MUST_CHECK;
/* parts: (parameter_count), valid from now on. For optimizers whose parts are only known during the
** training. */
void cd_oracle_declare_parts(cd_oracle *oracle, const cd_part *parts);
const cd_part *cd_oracle_get_part(const cd_oracle *oracle, size_t parameter);
void cd_oracle_destroy(cd_oracle *oracle); /* accepts NULL */

/* Before the first micro-step: parameters and the gradients that were kept. Borrowed until the next
** call. */
cddp_status cd_oracle_begin_step(cd_oracle *oracle, uint32_t step, const cddp_tensor *parameters,
                                 const cddp_grad *gradients, cddp_error *err) CDDP_MUST_CHECK;
/* At forward entry, after the wrapper synchronised buffers: the last forward's are compared.
** Borrowed until the next call. */
void cd_oracle_enter_forward(cd_oracle *oracle, const cddp_tensor *buffers);
/* Link 10 statistics: the values that a synchronised layer of this forward normalises with.
** *buffer: that names the layer which exchanges here; -1: it is not known. */
cddp_status cd_oracle_judge_statistics(cd_oracle *oracle, const cd_oracle_moments *used,
                                       int64_t *buffer, cddp_error *err) CDDP_MUST_CHECK;
/* Link 6 of a micro-step that ends no window, after its backward. */
cddp_status cd_oracle_leave_micro(cd_oracle *oracle, uint32_t step, uint32_t micro_step,
                                  const cddp_tensor *buffers, cddp_error *err) CDDP_MUST_CHECK;
/* Whether the model has this parameter, and the gradient its size. */
bool cd_oracle_takes_local(const cd_oracle *oracle, size_t parameter, const cddp_grad *gradient);
/* After the engine accumulated into parameter i, before the wrapper's hook runs. Copies. */
cddp_status cd_oracle_push_local(cd_oracle *oracle, size_t parameter, const cddp_grad *gradient,
                                 cddp_error *err) CDDP_MUST_CHECK;
/* Links 1 mathematics, 2 reduction, 3 precision, 6 buffers, 7 presence. buffers: after the
** forwards, or NULL. */
cddp_status cd_oracle_judge_gradients(cd_oracle *oracle, const cd_oracle_reduction *reduction,
                                      const cddp_tensor *buffers, cddp_error *err) CDDP_MUST_CHECK;
/* Link 13: it is the norm of all gradients, each counted once. */
cddp_status cd_oracle_judge_norm(cd_oracle *oracle, const cd_oracle_norm *norm,
                                 cddp_error *err) CDDP_MUST_CHECK;
/* Links 4 update, 12 updates by other ranks and 5 optimizer state: from `before`, the engine's
** optimizers must arrive at `after`. */
cddp_status cd_oracle_judge_update(cd_oracle *oracle, const cd_oracle_update *before,
                                   const cd_oracle_update *after, cddp_error *err) CDDP_MUST_CHECK;
/* Link 14: the published formulas, on drawn elements. Asked before the first optimizer of a step:
** does the oracle want the state of this one? */
bool cd_oracle_wants_formulas(const cd_oracle *oracle);
/* Copies. entries: (count) every parameter of every optimizer. */
cddp_status cd_oracle_keep_optimized(cd_oracle *oracle, const cddp_tensor *parameters,
                                     const cd_oracle_optimized *entries, size_t count,
                                     cddp_error *err) CDDP_MUST_CHECK;
/* After the optimizers; without a keep before it, nothing is judged. */
cddp_status cd_oracle_judge_formulas(cd_oracle *oracle, const cd_oracle_formulas *formulas,
                                     cddp_error *err) CDDP_MUST_CHECK;
/* Link 8: the free-running reference against the final parameters. */
/* Between two steps the rank received what other ranks trained without it. */
void cd_oracle_receive(cd_oracle *oracle);
cddp_status cd_oracle_finish(cd_oracle *oracle, const cddp_tensor *parameters,
                             cddp_error *err) CDDP_MUST_CHECK;

cd_oracle_summary cd_oracle_get_summary(const cd_oracle *oracle);
