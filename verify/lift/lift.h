/* SPDX-License-Identifier: Apache-2.0 */
/* The scenario that does what a recorded program did: its parameters by name, options, orders of
** arrival, uses, sync windows, loop and collectives.
**
** It is the model `recorded` that trains there, where gradients were recorded, else `params`. Then
** what the program computed is not known, and does not matter for who reduces what when. What a
** scenario cannot express is a list of notes.
**
** Lifetime   init → push every event → write → fini.
** Errors     without memory nothing is written.
*/
#pragma once
#include "cddp/trace.h"
#include "core/base/arena.h"
#include "core/base/text.h"

typedef struct cd_lift_parameter {
    const char *name;
    int64_t variable, numel, dtype;
    int64_t shape; /* digest of its sizes */
    bool requires_grad, is_ignored;
} cd_lift_parameter;

#define CD_LIFT_DIMS_MAX 4u

/* A forward with gradients, and its backward. */
typedef struct cd_lift_pass {
    uint32_t rank, step, micro_step;
    bool is_sync, has_backward;
    bool has_step;    /* an optimizer stepped behind it, or said that it skips */
    bool is_joined;   /* it began in a join context */
    int64_t samples;  /* -1: not shown */
    int64_t *arrived; /* (arrived_count) variables, first ready first */
    size_t arrived_count, arrived_capacity;
} cd_lift_pass;

typedef enum cd_lift_place {
    CD_LIFT_BEFORE_FORWARD,
    CD_LIFT_BEFORE_BACKWARD,
    CD_LIFT_AFTER_BACKWARD,
    CD_LIFT_AFTER_STEP
} cd_lift_place;

/* What a rank trained from the begin of a join context to its end. */
typedef struct cd_lift_context {
    uint32_t rank, first, steps; /* steps: how many it had inputs for */
    bool is_whole;               /* the rank left it */
} cd_lift_context;

/* An operation that the program posted itself. */
typedef struct cd_lift_collective {
    uint32_t rank, step;
    cd_lift_place place;
    int64_t group, op, reduction, root, dtype, numel;
} cd_lift_collective;

/* One that a rank posted although it wrapped nothing, as all are of a flight recorder's dump. */
typedef struct cd_lift_post {
    cd_lift_collective what;
    int64_t number; /* in its group */
} cd_lift_post;

typedef struct cd_lift_setting {
    uint32_t rank;
    int64_t key, item, items, value;
    double real;
    const char *text;
} cd_lift_setting;

typedef struct cd_lift_group {
    int64_t id, members;
    const char *name;
    uint32_t *ranks;  /* (members) by group rank; UINT32_MAX: not known */
    int64_t digest;   /* of its members */
    bool is_disputed; /* ranks named other members */
} cd_lift_group;

typedef struct cd_lift_rank {
    size_t pass; /* + 1: the last one; 0: none */
    int64_t samples;
    uint32_t step, steps; /* steps: begun */
    uint32_t stepped;     /* + 1: the last one in which an optimizer stepped */
    uint32_t stepped_count;
    uint64_t collectives, skipped;
    /* posted before the wrapper was there; of these, broadcasts in a row at the end */
    uint64_t before_wrap, last_broadcasts;
    int64_t outstanding; /* posted, and not done */
    bool has_gathered;   /* the operation before these broadcasts is an all-gather: PyTorch's */
    bool has_failed;     /* an operation ended with an error */
    cd_lift_place place;
    bool has_wrapper, in_forward, in_backward, is_over;
    bool has_left;         /* a join context */
    bool in_join, in_exit; /* in_exit: what it posts is the join's, until it has left */
    bool has_begun;        /* it has trained a step since it left the last join context, */
    uint32_t first;        /* this one first */
    int64_t status, end;
    int64_t module; /* the wrapper that its next events are about */
} cd_lift_rank;

typedef struct cd_lift {
    cd_arena arena;
    uint32_t rank_count;
    const char *program;   /* borrowed; "" */
    const char *gradients; /* borrowed: the folder that has them; NULL: they were not recorded */
    cd_lift_rank *ranks;
    cd_lift_parameter *parameters; /* (parameter_count) by ordinal, of rank 0 */
    size_t parameter_count, parameter_capacity;
    cd_lift_pass *passes;
    size_t pass_count, pass_capacity;
    cd_lift_collective *collectives;
    size_t collective_count, collective_capacity;
    cd_lift_post *posts; /* (post_count) in the order of each rank */
    size_t post_count, post_capacity;
    cd_lift_setting *settings;
    size_t setting_count, setting_capacity;
    cd_lift_group *groups;
    size_t group_count, group_capacity;
    struct cd_lift_skip {
        uint32_t rank, step;
    } * skips; /* (skip_count) optimizer steps that were left out */
    size_t skip_count, skip_capacity;
    struct cd_lift_slot {
        int64_t bucket, variable;
    } * slots; /* (slot_count) of the last layout, by bucket */
    size_t slot_count, slot_capacity;
    int64_t generation;        /* of that layout */
    cd_lift_context *contexts; /* (context_count) in the order of each rank */
    size_t context_count, context_capacity;
    uint32_t context_length; /* of the longest */
    const char **notes;      /* (note_count) what could not be expressed */
    size_t note_count, note_capacity;
    const char *hook, *inner, *optimizer;
    cd_text hook_options;
    double rate;
    int64_t bucket_cap;   /* bytes, as asked for; 0: the default */
    int64_t first_bucket; /* bytes; 0: PyTorch's recorder did not say so */
    int64_t reducer;      /* its group */
    size_t wrapper_count, buffer_count, local_count;
    int64_t module;         /* the wrapper that trains */
    bool is_joint;          /* each of the others has its own lift */
    const char *why_apart;  /* why they have not; NULL: nobody asked */
    bool is_interleaved;    /* another wrapper posted within a backward of the first one */
    bool has_continuations; /* operations were posted in continuations of others */
    bool reduces_itself;    /* behind backwards inside no_sync */
    bool is_of_torch;       /* its hooks may be Python functions */
    bool has_outside;       /* operations between join contexts, or behind them */
    bool has_join, has_rates, has_zero_grad, zeroes, is_complete;
} cd_lift;

cddp_status cd_lift_init(cd_lift *lift, uint32_t rank_count, const char *program,
                         const cddp_allocator *allocator, cddp_error *err) CDDP_MUST_CHECK;
void cd_lift_fini(cd_lift *lift); /* accepts a zeroed one */
void cd_lift_push(cd_lift *lift, const cddp_event *event);
/* A rank that ended before others goes on with their operations, as if it had not: what happens to
** it in the scenario happens before the next one. */
void cd_lift_continue(cd_lift *lift, uint32_t rank, uint32_t as);
/* The scenario; its notes are in it as comments, too. Refuses a run that no scenario is like. */
cddp_status cd_lift_write(cd_lift *lift, cd_text *toml, cddp_error *err) CDDP_MUST_CHECK;

/* ---- for the other files of this module ---- */

/* A hook's name here, of its name in PyTorch; any other is as it was. Returns borrowed. */
const char *cd_lift_translate_hook(const char *name);
/* Whether a hook of PyTorch's that is called this, in either way, is one of the library's. */
bool cd_lift_knows_hook(const char *name);
/* The number of dimensions, with their sizes; 0: the digest is not of PyTorch's recorder, or of a
** parameter with more dimensions. */
uint32_t cd_lift_find_sizes(const cd_lift_parameter *parameter, int64_t sizes[CD_LIFT_DIMS_MAX]);
/* Caps of buckets, as PyTorch's recorder says them beside recorded gradients. */
void cd_lift_take_mark(cd_lift *lift, const cddp_event *event);
void cd_lift_take_slot(cd_lift *lift, const cddp_event *event);
void cd_lift_take_notify(cd_lift *lift, const cddp_event *event);
void cd_lift_take_join_end(cd_lift *lift, uint32_t rank);
/* After the last event: every step gets the number that it has in the scenario. */
void cd_lift_end_joins(cd_lift *lift);
/* A recording of operations alone: those from the last one on which ranks agreed become collectives
** of one step. False: there are none, or it has more than operations. */
bool cd_lift_is_bare(const cd_lift *lift);
cddp_status cd_lift_keep_bare(cd_lift *lift, cddp_error *err) CDDP_MUST_CHECK;
/* Copies; one that is there already is not repeated. */
void cd_lift_note(cd_lift *lift, const char *note);
/* The number-th join context of a rank; NULL: it has fewer. */
const cd_lift_context *cd_lift_find_context(const cd_lift *lift, uint32_t rank, uint32_t number);
uint32_t cd_lift_context_count(const cd_lift *lift, uint32_t rank);
/* For how many steps of a context the rank has inputs, at most. */
uint32_t cd_lift_inputs(const cd_lift *lift, uint32_t rank);
