/* SPDX-License-Identifier: Apache-2.0 */
/* How many comparisons of each link a rank owes, counted from the plan before the rank trains.
**
** A run in which fewer are made is not verified, whatever they say: coverage that is lost silently
** would let a run that shows less look like one that does right.
*/
#pragma once
#include "core/oracle/oracle.h"
#include "core/plan/plan.h"

struct cddp_tracer;

typedef struct cd_owing_rank {
    const cddp_plan *plan;
    const cddp_plan_settings *settings; /* of the rank */
    uint32_t rank;
    size_t parameter_count, buffer_count;
    /* of the parameters, those whose update is compared: a sharded one without elements has no
    ** owner */
    size_t updated_count;
    bool has_numbers;          /* the device has values; else exact forms */
    bool has_digests;          /* the trace has content */
    bool sums, has_law;        /* averages are compared with a sum; a comm hook by its own law */
    bool exchanges, has_state; /* batch norm is synchronised; all optimizers have slots */
    bool has_one_dtype;        /* all parameters have the plan's */
    bool leaves_parts_out;     /* the model: which layers run, its batch says */
    bool is_sharded;           /* an optimizer: a rank may step nothing of it */
} cd_owing_rank;

/* What is owed besides the oracle's links: events of the run itself, which checks judge. */
typedef enum cd_owed_kind {
    CD_OWED_SAMPLES, /* what forwards consume (I-DATA) */
    CD_OWED_LOSSES,  /* by what a loss is divided and multiplied (I-DATA, I-STEP) */
    CD_OWED_STEPS,   /* that optimizers step, or skip (I-STEP) */
    CD_OWED_VALUES,  /* parameters at the begin of a step and after it (I-CHAIN) */
    CD_OWED_SHOWN,   /* the judge's copies of them (I-SHOWN) */
    CD_OWED_UNITS,   /* iterations of a sharded model that end (I-COUNT, I-MEM) */
    CD_OWED_LAWS,    /* that the hook itself states; the judge of hooks counts them */
    CD_OWED_BATCHES, /* forwards that say what they consumed (I-DATA) */
    CD_OWED_STREAMS, /* states of the random streams of model and data (I-SEED) */
    CD_OWED_ENTRIES, /* how gradients stand before a step's first backward (I-STEP) */
    CD_OWED_DTYPES,  /* the declared dtype of gradients (I-DTYPE) */
    CD_OWED_READS,   /* full parameters with which layers on streams computed (I-FRESH) */
    /* what comes in pairs, counted from the other event of the pair; that a backward and a hook's
    ** call end, I-ONCE and I-HOOK judge */
    CD_OWED_BUFFERS,
    CD_OWED_FORWARD_ENDS,
    CD_OWED_FORWARD_BEGINS,
    CD_OWED_BACKWARD_BEGINS,
    CD_OWED_GROUP_CLOSES,
    CD_OWED_RESULTS,
    CD_OWED_NO_SYNC_ENDS,
    CD_OWED_KINDS
} cd_owed_kind;
/* "model" and "data", as the texts of seed events; a comm hook has others. */
#define CD_OWED_STREAM_COUNT 2
/* As the text of an `owed` event without a link has it. */
const char *cd_owed_name(cd_owed_kind kind);

/* At least these; a number that depends on values is in neither. Where the plan does not say which
** parameters a model uses, a reduction owes one of them. */
typedef struct cd_owed {
    uint64_t presence; /* a parameter's gradient after each reduction (link 7) */
    uint64_t buffers;  /* a buffer after each reduction whose micro-step ran forwards (link 6) */
    uint64_t updates;  /* a parameter after each step in which an optimizer is due (links 4, 12) */
    uint64_t locals;   /* of a window to which the rank contributes (link 3) */
    uint64_t sums;     /* likewise, of its average (links 1 and 2) */
    uint64_t laws;     /* a comm hook's result of such a window (link 9) */
    uint64_t states;   /* of an update by an optimizer with slots (link 5) */
    uint64_t statistics;  /* of a forward with synchronised batch norm (link 10) */
    uint64_t collectives; /* of the program itself, with a result on every rank (link 11) */
    uint64_t norms;       /* by which gradients are clipped (link 13) */
    uint64_t formulas;    /* of an update (link 14) */
    uint64_t derivatives; /* of each micro-step of a window (link 15) */
    uint64_t evaluations; /* that the plan has between its forwards (link 16) */
    uint64_t events[CD_OWED_KINDS];
} cd_owed;

cd_owed cd_owed_count(const cd_owing_rank *rank);
/* An `owed` event per link and kind. */
void cd_owed_emit(const cd_owing_rank *rank, struct cddp_tracer *tracer);
