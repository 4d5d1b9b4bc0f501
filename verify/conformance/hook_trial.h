/* SPDX-License-Identifier: Apache-2.0 */
/* One run of a comm hook over simulated ranks, by hand: what went in, what came out, what else was
** touched.
**
** The model of a trial has four parameters, two matrices of one shape, a vector and a scalar, in
** two buckets; from rebuild_at on they lie in other buckets. Every buffer lies inside its
** own guarded memory, which is left alone after its step. So a write at a wrong place, or too late,
** is seen.
**
** With through_reducer the reducer drives the hook instead (hook_ride.c): for what changes when and
** with what a hook is called.
**
** Lifetime   a trial is the caller's; it owns nothing.
** Errors     what a rank's hook answers is in `failure`; run fails only when no world can be made.
*/
#pragma once
#include "cddp/hook.h"

#define CD_TRIAL_RANKS_MAX 8
#define CD_TRIAL_STEPS_MAX 96
#define CD_TRIAL_NUMEL_MAX 72
#define CD_TRIAL_BUCKETS 2
#define CD_TRIAL_STATED_MAX 16

/* In order of registration. The twin is there for whoever tells parameters by their shapes. */
enum { CD_TRIAL_MATRIX, CD_TRIAL_TWIN, CD_TRIAL_VECTOR, CD_TRIAL_SCALAR, CD_TRIAL_PARAMETERS };

typedef enum cd_trial_values {
    CD_TRIAL_DIFFERENT, /* every rank has its own */
    CD_TRIAL_ALIKE,     /* all ranks have the same */
    CD_TRIAL_LARGE,     /* 2^15 everywhere: half of what f16 holds (GRD-11) */
    /* different, but from the second step on the last rank's matrix and scalar are not finite */
    CD_TRIAL_OVERFLOWN
} cd_trial_values;

typedef enum cd_trial_lack {
    CD_TRIAL_WHOLE,
    CD_TRIAL_IN_PARTS, /* three micro-steps, the first two inside no_sync */
    CD_TRIAL_UNUSED,   /* some parameters have no gradient on some ranks, or on any */
    /* a bucket that nobody used is not reduced (skip_all_reduce_unused_params) */
    CD_TRIAL_LEFT_OUT,
    CD_TRIAL_UNEVEN /* ranks run out of inputs, and join */
} cd_trial_lack;

/* Which function of the hook is called: in memory that outlives a process which ends in it. */
typedef struct cd_trial_place {
    char function[16]; /* "run"; "": none */
    uint32_t rank, ranks, step;
    cddp_dtype dtype;
} cd_trial_place;

typedef struct cd_trial {
    cd_trial_place *place; /* written before each call; NULL: nobody asks */
    const cddp_hook *hook, *inner;
    const char *options;
    uint32_t ranks, steps;
    uint32_t active_steps; /* later gradients are zero, so that what is owed can be sent */
    /* 0; else gradients are zero in every step but this one, counted from 1 */
    uint32_t alone;
    cddp_dtype dtype;
    cd_trial_values values;
    uint32_t swap_at;    /* save, destroy, create and load before this step; 0: never */
    uint32_t rebuild_at; /* other buckets from this step on; 0: never */
    uint64_t schedule;   /* 0: first come, first served; else the seed of random choices */
    bool empty_vector;   /* the vector has no elements */
    bool through_reducer;
    cd_trial_lack lack; /* through the reducer only */
    /* the twin: one whole backward of everything, zeros where the other has nothing */
    bool fills_up;
    bool accumulates; /* accumulate_in_hook */
} cd_trial;

/* A law that the hook stated of itself (cddp_tracer_law). */
typedef struct cd_stated_law {
    char name[112];
    uint64_t count; /* how often it could be judged */
} cd_stated_law;

typedef struct cd_trial_result {
    int64_t numel; /* of all parameters */
    bool refused;  /* CDDP_E_UNSUPPORTED from every rank: the hook does not take this */
    bool created;  /* on some rank */
    /* CDDP_E_CONFIG from every rank at creation: its options are wrong, or not for so many ranks */
    bool misconfigured;
    char failure[280];     /* the first rank that did not come to the end; "" when all did */
    char damage[200];      /* memory that the hook had no business in; "" when untouched */
    char shape[200];       /* a result that is no result: wrong count of elements, undefined */
    uint64_t bytes;        /* that rank 0 gave to collectives */
    uint64_t bytes_active; /* of these, those of the active steps */
    /* how many consecutive ranks the hook said would get the same; 0: all */
    uint32_t agreement[CD_TRIAL_STEPS_MAX];
    cd_stated_law stated[CD_TRIAL_STATED_MAX]; /* (stated_count) */
    uint32_t stated_count;
    char breach[280]; /* the first of them that did not hold; "" when all did */
    /* what the judge's own laws found (hook_judged.h) */
    uint64_t judged_count;
    char judged_breach[320];
    uint64_t draw_count; /* random numbers that the hook reported */
    char draw_breach[200];
    bool was_offered;  /* the hook of another model was given a saved state */
    char foreign[120]; /* how it took it, unless it refused it with a reason */
    uint64_t promised; /* that it would give at most; CDDP_PROMISE_NOTHING */
    /* by parameter, then element */
    double in[CD_TRIAL_RANKS_MAX][CD_TRIAL_STEPS_MAX][CD_TRIAL_NUMEL_MAX];
    double out[CD_TRIAL_RANKS_MAX][CD_TRIAL_STEPS_MAX][CD_TRIAL_NUMEL_MAX];
} cd_trial_result;

/* The bucket of a parameter at a step. */
uint32_t cd_trial_bucket_of(const cd_trial *trial, uint32_t parameter, uint32_t step);
/* The first element of a parameter in a result's arrays, and how many it has. */
int64_t cd_trial_offset(const cd_trial *trial, uint32_t parameter, int64_t *numel);

/* How many backwards a rank has, and whether it has no gradient of a parameter in one. */
uint32_t cd_trial_inputs(const cd_trial *trial, uint32_t rank);
bool cd_trial_is_absent(const cd_trial *trial, uint32_t rank, uint32_t step, uint32_t parameter);

/* Notes that a function of the hook is about to be called. */
void cd_trial_enter(const cd_trial *trial, const char *function, uint32_t rank, uint32_t step);

cddp_status cd_trial_run(const cd_trial *trial, cd_trial_result *result, cddp_error *err);
