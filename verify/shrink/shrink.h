/* SPDX-License-Identifier: Apache-2.0 */
/* Shrinking: from a run that fails to the smallest scenario and schedule that fail for the same
** reason.
**
**     cd_shrink_begin → cd_shrink_run → read draft, decisions, … → cd_shrink_fini
**
** Note [Shrinking] The search is greedy. Rounds of two lists alternate until neither finds
** anything: deviations from fifo (all, halves, quarters, …, single ones), then parts of the
** scenario (verify/shrink/edit.h), larger ones first. Sizes become smaller last, since small
** parameters need more of them to fill a bucket. Then the rounds begin again.
**
** A smaller scenario has other choice points. So the schedule is kept by meaning, not by position:
** "in its first backward rank 1 makes p0 ready before p1". Fifo decides what no longer exists. When
** that run does not fail, the old answers by position are tried, then fifo. When nothing was found
** so, a few random schedules are tried; the deviations that they bring must be removed again.
**
** The first candidate of a list that fails for the same reason is taken. See Note [The same reason]
** At the end all lists were tried on the result and nothing failed: it is 1-minimal.
**
** With several jobs a batch of candidates is tried at once, in forked processes. The first success
** in the order of the list counts, so the result is that of one job.
**
** Errors     a run that does not fail, or that cannot be repeated, is refused.
*/
#pragma once
#include "verify/shrink/edit.h"
#include "verify/shrink/probe.h"
#include "sim/digest_set.h"

typedef struct cd_shrink_options {
    const cddp_registry *registry;
    const cddp_plan *plan;
    /* the choices of the failing run; NULL: the plan's own chooser decides */
    const char *schedule;
    /* of the recorded run, which this one must equal; 0: there is no record */
    uint64_t trace_digest;
    /* Of a run that failed in another world: its backend, and the invariant of its first finding
    ** ("": ranks failed without one; NULL: that is not known). NULL: the run is the simulator's. */
    const char *elsewhere, *found_elsewhere;
    uint64_t trials_max;       /* 0: no limit */
    uint64_t deadline_ns;      /* of cd_os_now_ns; 0: none */
    uint64_t seed;             /* of the random schedules */
    uint32_t random_tries;     /* per candidate */
    uint32_t jobs;             /* at least 1 */
    bool (*interrupted)(void); /* true: the best so far is the result; NULL: never */
    void (*progress)(void *context, uint64_t trials, uint64_t removed); /* may be NULL */
    void *context;
} cd_shrink_options;

typedef enum cd_shrink_end {
    CD_SHRINK_MINIMAL,
    CD_SHRINK_OUT_OF_BUDGET,
    CD_SHRINK_INTERRUPTED
} cd_shrink_end;

typedef struct cd_shrink {
    cd_shrink_options options;
    cd_draft draft;          /* the best so far */
    cd_probe best;           /* its run */
    cd_decision_list wishes; /* its deviations */
    cd_shrink_end end;
    bool at_random;                           /* candidates are tried under random schedules too */
    uint64_t trials, removed;                 /* runs; candidates taken */
    size_t single_count;                      /* single removals that were tried on the result */
    size_t first_decisions, first_deviations; /* of the run that was given */
    cd_digest_set tried;                      /* candidates that did not fail the same */
} cd_shrink;

cddp_status cd_shrink_begin(cd_shrink *shrink, const cd_shrink_options *options,
                            cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_shrink_run(cd_shrink *shrink, cddp_error *err) CDDP_MUST_CHECK;
void cd_shrink_fini(cd_shrink *shrink); /* accepts a zeroed one */

/* One run of a draft; a draft that is refused is a probe that did not fail. */
cddp_status cd_shrink_try(const cd_shrink *shrink, const cd_draft *draft,
                          const cd_probe_policy *policy, cd_memory_sink *record, cd_probe *trial,
                          cddp_error *err) CDDP_MUST_CHECK;
/* Did it fail as the run that was given did? */
bool cd_shrink_is_same(const cd_shrink *shrink, const cd_probe *trial);
