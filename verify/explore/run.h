/* SPDX-License-Identifier: Apache-2.0 */
/* One scenario under one schedule of an exploration, and what may be left out of exploring it.
**
** Lifetime   borrows plan and registry; the worlds are made by the first runs, reused by the
**            others, and given back by fini.
*/
#pragma once
#include "core/base/text.h"
#include "cddp/run.h"
#include "sim/explore.h"
#include "verify/explore/answers.h"
#include "verify/explore/witness.h"

/* A world that is kept between runs, with the beginning that its runs share. */
typedef struct cd_explore_world {
    struct cd_compose *compose;       /* NULL: there was no run */
    struct cd_explore_prefix *prefix; /* NULL: runs share nothing */
    uint64_t kind;                    /* what its explorer varies: cd_explorer_get_kind */
    /* nothing was varied, or its beginning could not be kept: every run begins at its beginning */
    bool shares_nothing;
    bool is_blind; /* it repeats, and its beginning has what nobody judged */
} cd_explore_world;

/* Runs that vary turns part at another moment than those that do not; and a run that judges begins
** with a referee, one that repeats without, one that looks without checks as well. */
#define CD_EXPLORE_WORLDS 6

typedef struct cd_explore_subject {
    cddp_plan *plan;
    const cddp_registry *registry;
    /* sees every event too, so that every run begins at its beginning; NULL: none */
    const cddp_trace_sink *watcher;
    bool anonymous;  /* outcomes do not distinguish ranks 1 … n-1 */
    bool order_only; /* runs at level order: no digests, so that their price can be measured */
    /* runs share nothing: part of them lies where nobody can put it back (a plugin) */
    bool from_scratch;
    cd_explore_world worlds[CD_EXPLORE_WORLDS];
    struct cd_recall *recall; /* what was judged in earlier runs; NULL: nothing yet */
    bool recalls_nothing;     /* it is not possible */
    struct {
        bool is_over;              /* it was not worth while; runs that judge show when it is */
        uint32_t recalled, missed; /* since it began */
        uint32_t foreseen;         /* of runs that judge: the more could have been recalled */
    } trial;                       /* of recalling */
    cd_known known;                /* runs without a finding; see Note [Known runs] in witness.h */
    uint64_t clean_outcome;        /* of each of them */
    uint32_t alike;                /* runs that were heard and known, one after the other */
    bool never_looks;              /* a run that nobody hears cannot share its beginning */
    cd_answers answers;            /* of the run that recalls */
    uint64_t recalled, missed;     /* runs that needed no judge, and runs that did after all */
} cd_explore_subject;

/* The outcome of a run. */
typedef struct cd_explored {
    uint64_t outcome; /* verdict and findings, not the order of events */
    bool is_verified; /* or all that it lacks are faults that did not strike in this schedule */
    uint64_t missing_faults; /* a bit each; see cd_verdict_get_missing_faults */
    char culprit[640];       /* when it is not verified */
    char schedule[65536];    /* its choices; "" when they do not fit */
} cd_explored;

/* Makes gradients a choice unless the scenario fixes their order. exhaustive: also takes the time
** out of computing, so that ranks take their turns one after the other. What was changed is
** appended to the overrides. */
cddp_status cd_explore_prepare(cddp_plan *plan, bool exhaustive, cd_text *overrides,
                               cddp_error *err) CDDP_MUST_CHECK;
/* No bucket is rebuilt in the order of a backward that is explored. */
bool cd_explore_is_without_rebuild(const cddp_plan *plan);
/* The plan by itself, with its own schedule, before anything is varied. *has_findings: it fails. */
cddp_status cd_explore_run_plain(const cd_explore_subject *subject, cd_explored *explored,
                                 bool *has_findings, cddp_error *err) CDDP_MUST_CHECK;
void cd_explore_fini(cd_explore_subject *subject);
cddp_status cd_explore_run(cd_explore_subject *subject, cd_explorer *explorer,
                           const cd_chooser *chooser, cd_explored *explored,
                           cddp_error *err) CDDP_MUST_CHECK;
