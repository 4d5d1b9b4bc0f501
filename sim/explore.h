/* SPDX-License-Identifier: Apache-2.0 */
/* Exploration: which schedule to try next.
**
**     cd_explorer_init(&explorer, &options, err);
**     while ((chooser = cd_explorer_next(&explorer)) != NULL) {
**         … run once under *chooser …
**         cd_explorer_done(&explorer, outcome digest);
**     }
**
** random       every option of every choice equally likely
** pct          priorities with depth - 1 changes (sim/choose_pct.h), with its guarantee
** exhaustive   every combination of answers, by counting: the last answer that can grow grows, what follows is fifo.
**              Each run starts anew from the beginning; no two runs give the same answers.
**
** Lifetime   init → next/done … → fini. The chooser is valid until done.
** Threads    one thread per explorer; explorers with different seeds share nothing.
*/
#pragma once
#include "cddp/alloc.h"
#include "sim/choose_pct.h"

typedef enum cd_strategy { CD_STRATEGY_RANDOM, CD_STRATEGY_PCT, CD_STRATEGY_EXHAUSTIVE, CD_STRATEGY_COUNT } cd_strategy;

typedef struct cd_explore_options {
    cd_strategy strategy;
    uint64_t seed;
    uint32_t depth; /* pct */
    uint64_t runs_max; /* 0: no limit */
    uint64_t choices_max; /* exhaustive: only the first so many choices of a run are varied; 0: all */
    const cddp_allocator *allocator;
} cd_explore_options;

typedef struct cd_answer {
    uint32_t value, options;
} cd_answer;

typedef struct cd_explorer {
    cd_explore_options options;
    uint64_t runs;            /* done */
    uint64_t choices_longest; /* of any run */
    uint64_t contenders_max;
    bool exhausted;           /* exhaustive: there is nothing left to try */
    bool bounded;             /* exhaustive: some run had more choices than were varied */
    uint64_t *outcomes;       /* (outcome_capacity) open addressing, 0: free; distinct outcome digests */
    size_t outcome_count, outcome_capacity;
    /* of the run in progress */
    cd_chooser chooser, inner;
    cd_random_chooser random;
    cd_pct_chooser pct;
    cd_answer *answers; /* (answer_count) exhaustive: given so far in this run, and those to give */
    size_t answer_count, answer_capacity, planned;
    uint64_t choices;
    bool failed; /* memory ran out inside a chooser */
} cd_explorer;

cddp_status cd_explorer_init(cd_explorer *explorer, const cd_explore_options *options, cddp_error *err) CDDP_MUST_CHECK;
void cd_explorer_fini(cd_explorer *explorer);
/* NULL: the budget is used up, or everything was tried. */
const cd_chooser *cd_explorer_next(cd_explorer *explorer);
/* outcome: a digest of what the run came to. */
cddp_status cd_explorer_done(cd_explorer *explorer, uint64_t outcome, cddp_error *err) CDDP_MUST_CHECK;

/* pct: the least chance of meeting a bug of the configured depth in one run, as 1 / *inverse, and over all runs so
** far the greatest chance of having missed it. */
double cd_explorer_miss_chance(const cd_explorer *explorer, double *inverse);
/* exhaustive: the part of the tree behind us, 0 … 1, if all subtrees were of one size. */
double cd_explorer_progress(const cd_explorer *explorer);

const char *cd_strategy_name(cd_strategy strategy);
