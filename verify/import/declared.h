/* SPDX-License-Identifier: Apache-2.0 */
/* What a recorded program showed, and what it owes: a trace without a plan is verified only when
** it shows, on every rank, gradients before and after their reduction, the steps that consumed
** them, the parameters that came out, and the end.
**
** Lifetime   init → push every event → print → fini. Texts lie in the arena that is given.
** Errors     without memory nothing is verified.
*/
#pragma once
#include "cddp/check.h"
#include "cddp/run.h"
#include "core/base/arena.h"
#include "verify/import/consumed.h"
#include "verify/import/feedback.h"
#include "verify/import/forwards.h"
#include "verify/import/means.h"
#include "verify/import/own_samples.h"
#include "verify/import/windows.h"

/* What is owed and was not seen, each with the first place. */
typedef enum cd_declared_gap {
    CD_DECLARED_BEGIN,      /* nothing of the rank */
    CD_DECLARED_END,        /* its end */
    CD_DECLARED_PARAMETERS, /* which there are: no wrapper, none declared */
    CD_DECLARED_MODELS,     /* which of several wrappers a call or a parameter belongs to */
    CD_DECLARED_STEP,       /* an optimizer's step */
    CD_DECLARED_TOUCH,      /* what a step did to a parameter */
    CD_DECLARED_LOCAL,      /* the gradient of a parameter before its reduction */
    CD_DECLARED_REDUCED,    /* and after it */
    CD_DECLARED_MEAN,       /* that a reduction made the mean, or always the sum */
    CD_DECLARED_HOOK,       /* that a comm hook made it, or which law it keeps */
    CD_DECLARED_APART,      /* what ranks get that need not get the same */
    CD_DECLARED_SIDES,      /* what entered a reduction, or what it delivered */
    CD_DECLARED_DIVISOR,    /* by what it divides, in low precision */
    CD_DECLARED_VALUE,      /* the parameter after the last step that changed it */
    CD_DECLARED_HELD,       /* that it stays as it is until the next step, or to the end */
    CD_DECLARED_CHANGED,    /* why it was changed outside of the steps */
    CD_DECLARED_LATE,       /* and behind the last one */
    CD_DECLARED_CLEARED,    /* that zero_grad did what was said of it */
    CD_DECLARED_CONTENT,    /* digests */
    CD_DECLARED_SHARDED,    /* what sharded units must be: no judge knows it */
    CD_DECLARED_REWRITE,    /* what the program made of gradients after their reduction */
    CD_DECLARED_OUTSIDE,    /* how parameters are reduced that an optimizer has and no wrapper */
    CD_DECLARED_EXIT,       /* why parameters changed after the last step, not alike on all ranks */
    CD_DECLARED_BUFFERS,    /* why buffers changed outside of training, on some ranks alone */
    CD_DECLARED_FROZEN,     /* why parameters were frozen on some ranks alone */
    CD_DECLARED_SAMPLES,    /* which samples are whose: ranks take the same ones */
    CD_DECLARED_GIVEN,      /* what changed a gradient on its way to a comm hook */
    CD_DECLARED_ACCUMULATED, /* what changed a gradient between two backwards that add up */
    CD_DECLARED_TAKEN,       /* which gradient a step took: not the one in its place */
    CD_DECLARED_UNEVEN,      /* why ranks add up other numbers of backwards */
    CD_DECLARED_UNANNOUNCED, /* what became of gradients before a backward that nobody announced */
    CD_DECLARED_DROPPED,     /* why unreduced gradients were dropped */
    CD_DECLARED_FORWARD,     /* why ranks run a forward on parameters that differ */
    CD_DECLARED_SERVED,      /* how ranks get parameters that others step */
    CD_DECLARED_SECOND,      /* on which parameters the second backward of a step ran */
    CD_DECLARED_NUMBER,      /* where a step begins */
    CD_DECLARED_COUNT
} cd_declared_gap;

typedef struct cd_declared_place {
    uint64_t count; /* how often something was missing; 0: never */
    uint32_t rank, step;
    int64_t variable; /* -1: none */
} cd_declared_place;

/* A reduced parameter of a rank. */
typedef struct cd_declared_variable {
    int64_t name; /* its digest */
    char words[96];
    bool is_empty; /* it has no elements */
    bool is_declared, has_local, has_reduced, has_value;
    bool is_seen;         /* an optimizer took it, or left it for want of a gradient */
    int64_t optimizer;    /* that did so last */
    int64_t start;        /* its content where the training starts; 0: nobody showed it */
    int64_t digest;       /* after the last step that showed it; 0: none did */
    int64_t last, exit;   /* after construction or the last step; as the rank left its group */
    uint64_t touches, at; /* at: the rank's step in which the optimizer did */
    uint64_t begins;      /* steps at whose begin its content was shown */
    uint64_t taken_locals, taken_zeros; /* the rank's gradients and zero_grads at that */
    uint64_t cleared_by; /* the zero_grad behind which its gradient was shown, counted */
    uint64_t left_by;    /* the one that left its gradient as it was */
    uint64_t shown_in;   /* the rank's step behind which its content was shown last */
    bool is_held;        /* and it was the same when somebody looked, since its last update */
    bool has_gradient;   /* a backward has added to it once */
    bool has_slope;      /* its reduced gradient was not zero */
    bool must_move;      /* a step took it, and nobody has shown what that made */
} cd_declared_variable;

/* A parameter that no gradient changes, by its ordinal. */
typedef struct cd_declared_still {
    int64_t last, exit; /* after construction or the last step; as the rank left its group */
    bool has_moved;     /* some step, or what came between two of them, changed it */
    bool is_ignored;    /* by the wrapper: ranks may differ */
} cd_declared_still;

typedef struct cd_declared_rank {
    cd_declared_variable *variables; /* (variable_count) */
    size_t variable_count, variable_capacity;
    cd_declared_still *stills; /* (still_count) */
    size_t still_count, still_capacity;
    uint64_t events, steps, samples, waits, zero_grads;
    uint64_t locals;     /* gradients that backwards made */
    uint64_t touches;    /* of the optimizer's step at hand */
    uint64_t taken;      /* a digest of which parameters its steps took when */
    bool is_served;      /* some step passed over a parameter that has a gradient */
    uint64_t updates;    /* steps of any optimizer, this one included */
    int64_t optimizer;   /* whose it is */
    int64_t group;       /* of its wrapper */
    uint64_t frozen;     /* a digest of how many parameters were frozen when; 0: none ever */
    int64_t evaluations; /* after which buffers were others than the training left them */
    double rate;         /* of the optimizer's step at hand */
    bool has_wrapper, has_ended, is_stepping, is_skipping, has_join;
    bool has_exited; /* by exit, without a word that it was done: it may have left in the middle */
    bool averages;   /* its parameters: what it steps on need not be reduced */
    bool is_apart;   /* it stepped on what was not reduced, since the last gradient came */
    bool owes_clear; /* zero_grad was said, and no mark says that it was done */
    bool has_moved;  /* a parameter changed outside of a step that had a next one */
    uint32_t step;   /* of that */
} cd_declared_rank;

typedef struct cd_declared {
    const cddp_allocator *allocator;
    cd_declared_rank *ranks; /* (rank_count) */
    uint32_t rank_count;
    uint32_t split; /* the first rank whose wrapper has a group of fewer ranks; rank_count: none */
    cd_declared_place gaps[CD_DECLARED_COUNT];
    cd_declared_place unskipped; /* a parameter that a skipped step changed */
    /* one that kept every bit in a step that took a gradient other than zero, at a rate other than
    ** zero */
    cd_declared_place unmoved;
    bool is_of_torch;        /* whose calls the recorder saw itself */
    int64_t hooked;          /* parameters with tensor hooks */
    uint64_t unused_samples; /* of all ranks: a loader gave them, and no forward took them */
    uint64_t again;          /* reduced gradients of rank 0 that an optimizer took once more */
    uint64_t late;           /* parameters that changed after the last step, alike on all ranks */
    uint64_t exchanged; /* parameters of rank 0 that a forward had otherwise, as the program says */
    uint64_t buffers;   /* of a wrapper; and whether somebody showed one */
    bool has_buffers_shown;
    uint64_t moved;   /* parameters without gradients that changed, of the rank with most of them */
    uint64_t ignored; /* parameters of rank 0 on the ignore list */
    uint64_t reduced; /* gradients that a rank showed behind their reduction */
    cd_feedback feedback;
    cd_forwards forwards;
    cd_means means;
    cd_consumed consumed;
    cd_own_samples samples;
    cd_windows windows;
    int64_t model_count; /* wrapped modules of the program */
    bool is_out_of_memory;
} cd_declared;

cddp_status cd_declared_init(cd_declared *declared, uint32_t rank_count,
                             const cddp_allocator *allocator, cddp_error *err) CDDP_MUST_CHECK;
void cd_declared_fini(cd_declared *declared); /* accepts a zeroed one */
void cd_declared_push(cd_declared *declared, const cddp_event *event);
/* Calls of the program may be about another wrapper than they seem to be. */
void cd_declared_note_models(cd_declared *declared);
/* One line for each thing that is missing, with the call that shows it. "": nothing is. NULL: no
** memory. To be called once, after the last event. */
const char *cd_declared_print_gaps(cd_declared *declared, const cddp_verdict *verdict,
                                   cd_arena *arena);
/* A comm hook that makes something else than it promises, or than any hook may make, a gradient
** that is not what the program said of it, a parameter that some ranks change between steps, a
** skipped step that changes parameters, ranks that take the same samples, a part of a data set that
** no rank takes, or a comm hook's error that a rank alone loses: *finding says which.
** For a trace in which no check found anything. Before cd_declared_print_gaps. */
bool cd_declared_accuses(const cd_declared *declared, cddp_finding *finding);
/* A digest of the parameters' names and of what they start from, on the first rank that trains; 0:
** not all of that was shown. */
uint64_t cd_declared_get_start(const cd_declared *declared);
/* What was shown, in words. */
const char *cd_declared_print_proven(const cd_declared *declared, cd_arena *arena);
/* Parameters of several models have the same numbers, so no finding about them can be trusted. */
bool cd_declared_has_models(const cd_declared *declared);
/* Of the rank that made most of them. */
uint64_t cd_declared_steps(const cd_declared *declared);
/* What was not judged although nothing is missing. */
const char *cd_declared_print_unjudged(const cd_declared *declared, cd_arena *arena);
