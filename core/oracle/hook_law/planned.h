/* SPDX-License-Identifier: Apache-2.0 */
/* A comm hook as the plan's words define it: the judge's own reading, which no hook takes part in.
**
** docs/hooks.md defines names and options. Errors in options are the hook's to report: here an
** option that cannot be read keeps its default.
*/
#pragma once
#include "cddp/tensor.h"

#define CD_PLANNED_STEPS_MAX 32

typedef enum cd_planned_kind {
    CD_PLANNED_UNKNOWN, /* a plugin's: no law is known but what its table promises */
    CD_PLANNED_MEAN, /* allreduce, casts, mixed precision, reproducible: the mean of what is cast */
    CD_PLANNED_NOTHING, /* noop */
    CD_PLANNED_LOW_RANK,
    CD_PLANNED_TOPK,
    CD_PLANNED_CODES, /* quantisers */
    CD_PLANNED_LOCAL  /* post_local_sgd */
} cd_planned_kind;

typedef struct cd_planned_step {
    uint64_t from, rank;
} cd_planned_step;

typedef struct cd_planned_hook {
    char name[64], inner[64];
    cd_planned_kind kind;
    cddp_dtype low;       /* the bucket is cast to it first; CDDP_DTYPE_COUNT: no cast */
    cddp_dtype lower;     /* by the hook inside a wrapper, once more; else as low */
    bool is_wrapped;      /* and the result stays in it */
    bool divides_after;   /* the sum, once, instead of each share */
    bool is_followed;     /* a plugin's hook, which says that it follows this law */
    bool is_reproducible; /* how much it sends depends on the numbers */
    uint64_t start;       /* reductions that are the plain mean */
    uint64_t rank;        /* low rank */
    uint64_t feedback_every, seed;
    double min_rate, epsilon;
    bool is_batched, has_feedback, is_warm, groups_shapes;
    cd_planned_step steps[CD_PLANNED_STEPS_MAX]; /* (step_count) of the rank */
    uint32_t step_count;
    uint64_t k; /* top-k; 0: by ratio */
    double ratio;
    uint64_t row;   /* codes: elements per scale; 0: the bucket has one */
    uint64_t block; /* local: ranks that reduce together after the start; 0: nobody */
} cd_planned_hook;

/* What a scenario writes: all but the name may be NULL. */
typedef struct cd_planned_words {
    const char *name, *inner, *options;
} cd_planned_words;
void cd_planned_hook_read(const cd_planned_words *words, cd_planned_hook *hook);

/* The wrapper's mixed precision stands in the place of a hook (MIX-04). */
void cd_planned_hook_cast(cd_planned_hook *hook, cddp_dtype wire);

/* A plugin's hook keeps its name and follows the law of another one, with that one's options. */
void cd_planned_hook_follow(cd_planned_hook *hook, const char *followed, const char *options);

/* The rank in force at an iteration. */
uint64_t cd_planned_rank(const cd_planned_hook *hook, uint64_t iteration);
/* How many elements of a bucket are sent. */
int64_t cd_planned_k(const cd_planned_hook *hook, int64_t numel);
/* Is a matrix worth sending as two factors? */
bool cd_planned_compresses(const cd_planned_hook *hook, int64_t rows, int64_t columns,
                           int64_t rank);
