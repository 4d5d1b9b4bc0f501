/* SPDX-License-Identifier: Apache-2.0 */
/* Exploration: which schedule to try next.
**
**     cd_explorer_init(&explorer, &options, err);
**     while ((chooser = cd_explorer_next(&explorer)) != NULL) {
**         … run once under *chooser, its events to cd_explorer_get_sink(&explorer) …
**         cd_explorer_done(&explorer, outcome digest);
**     }
**
** random       every option of every choice equally likely: every schedule, when the runs have
**              equally many
** pct          priorities with depth - 1 changes (sim/choose_pct.h), with its guarantee
** exhaustive   every combination of answers, by counting: the last answer that can grow grows, what
**              follows is fifo. Each run starts anew from the beginning; no two runs give the same
**              answers.
** cover        a sequence covering array of gradients becoming ready (sim/choose_cover.h)
**
** Each of these makes a search smaller without losing an outcome:
** reduce       turns, and the time when a completed operation is noticed, are not varied. Ranks
**              meet only where they wait for each other, so these commute. A run with a race
**              (cd_sim_stats.races) shows that they do not. Then they are varied, and exhaustive
**              search begins again. A program that looks at memory in flight is a race that the
**              world does not see. So some runs are probes: they draw everything, turns too.
**              See Note [Probes].
** merge        exhaustive: behind a known state (sim/past.h), no continuation is tried
**              again.
** symmetry     a state that is known with ranks exchanged counts as known. The caller knows that
**              they are interchangeable; outcomes are then equal up to a renaming of ranks.
**
** Lifetime   init → next/done … → fini. The chooser is valid until done.
** Threads    one thread per explorer; explorers with different seeds share nothing.
*/
#pragma once
#include "sim/choose_cover.h"
#include "sim/choose_pct.h"
#include "sim/digest_set.h"
#include "sim/past.h"

typedef enum cd_strategy {
    CD_STRATEGY_RANDOM,
    CD_STRATEGY_PCT,
    CD_STRATEGY_EXHAUSTIVE,
    CD_STRATEGY_COVER,
    CD_STRATEGY_COUNT
} cd_strategy;

typedef struct cd_explore_options {
    cd_strategy strategy;
    uint64_t seed;
    uint32_t depth;    /* pct: 1 … CD_PCT_DEPTH_MAX; cover: 2 … CD_COVER_STRENGTH_MAX */
    uint64_t runs_max; /* 0: no limit */
    /* exhaustive: only the first so many choices of a run are varied; 0: all */
    uint64_t choices_max;
    bool reduce, merge, symmetry; /* symmetry needs merge */
    bool without_rebuild;         /* see cd_past_options */
    bool without_coverage;        /* options are not counted */
    uint32_t world_size;          /* for merge */
    const cddp_allocator *allocator;
} cd_explore_options;

typedef struct cd_answer {
    uint32_t value, options;
} cd_answer;

typedef struct cd_explorer {
    cd_explore_options options;
    uint64_t runs;             /* done, and the number of the next */
    uint64_t choices_longest;  /* of any run */
    uint64_t choices_expected; /* pct: what choices_longest was at the last power of two of runs */
    uint64_t contenders_max;
    bool exhausted; /* exhaustive, cover: there is nothing left to try */
    bool bounded;   /* exhaustive: some run had more choices than were varied */
    bool is_tried;  /* exhaustive: every combination in one order of turns; probes may be left */
    bool races;     /* some run had an event that depends on the order of turns */
    bool turns;     /* turns are varied; random: decided at powers of two of runs */
    /* runs differ in how many alternatives they had: not all schedules were equally likely */
    bool uneven;
    uint64_t merged;       /* runs that reached a known state */
    uint64_t probes;       /* runs that drew their turns although turns are not varied */
    uint64_t alternatives; /* of a run: the product of its option counts, modulo a prime */
    cd_digest_set outcomes, states;
    cd_digest_set probed; /* exhaustive: outcomes of probes, which the search has to meet as well */
    cd_digest_set offered, taken; /* options of choice points: who chooses what, among what */
    cd_past past;
    cd_cover cover;
    /* of the run in progress */
    cd_chooser chooser, inner;
    cd_random_chooser random;
    cd_pct_chooser pct;
    cd_cover_chooser covering;
    cd_answer *answers; /* (answer_count) exhaustive: given so far in this run, and those to give */
    size_t answer_count, answer_capacity, planned;
    uint64_t choices, product;
    size_t digits;  /* choices of this run that are varied */
    bool is_merged; /* what follows was tried before */
    bool is_probe;
    bool had_races;
    bool failed; /* memory ran out inside a chooser */
} cd_explorer;

cddp_status cd_explorer_init(cd_explorer *explorer, const cd_explore_options *options,
                             cddp_error *err) CDDP_MUST_CHECK;
void cd_explorer_fini(cd_explorer *explorer);
/* NULL: the budget is used up, or everything was tried. */
const cd_chooser *cd_explorer_next(cd_explorer *explorer);
/* False: this choice is answered alike in every run of the stretch at hand, and leaves nothing
** behind in the explorer that the first run of it did not leave. Up to the first that is true, all
** these runs are one. */
bool cd_explorer_varies(const cd_explorer *explorer, const cddp_choice *choice);
/* Explorers of one kind agree on what they vary. */
uint64_t cd_explorer_get_kind(const cd_explorer *explorer);
/* Where the events of the run must go, at level digest; NULL: nowhere. */
const cddp_trace_sink *cd_explorer_get_sink(const cd_explorer *explorer);
/* outcome: a digest of the run's results. */
cddp_status cd_explorer_done(cd_explorer *explorer, uint64_t outcome,
                             cddp_error *err) CDDP_MUST_CHECK;
/* Random, pct, cover: runs are numbered. Run i is a function of the seed and of all runs before the
** greatest power of two that is at most i. So several copies of this explorer may share the runs of
** one such stretch. Their counts are absorbed in the order of runs. */
void cd_explorer_begin_part(cd_explorer *copy, uint64_t first_run);
cddp_status cd_explorer_absorb(cd_explorer *explorer, const cd_explorer *part, uint64_t part_runs,
                               cddp_error *err) CDDP_MUST_CHECK;
/* After its counts were read back from somewhere: makes what follows from them. */
cddp_status cd_explorer_resume(cd_explorer *explorer, cddp_error *err) CDDP_MUST_CHECK;

/* pct: the least probability of meeting a bug of the configured depth in one run, as 1 / *inverse;
** and the greatest probability that all runs so far missed it. */
double cd_explorer_miss_chance(const cd_explorer *explorer, double *inverse);
/* exhaustive: the part of the tree behind us, 0 … 1, if all subtrees were of one size. */
double cd_explorer_progress(const cd_explorer *explorer);
/* exhaustive: so many schedules are left at least: the alternatives on the way to the current
** one. */
uint64_t cd_explorer_left(const cd_explorer *explorer);

const char *cd_strategy_name(cd_strategy strategy);
