/* SPDX-License-Identifier: Apache-2.0 */
/* The judge: shows a trace to every check and keeps what they find.
**
** Lifetime   create → feed events (live through the sink, or a recorded trace at once) → end → read
**            → destroy. Findings and exercises are borrowed until destroy.
** Threads    one thread.
** Errors     cd_judge_end reports memory that ran out while judging; a judge that lost events never
**            says that nothing was wrong.
** Order      checks rely on each rank's own order and on the ids that events carry, never on how
**            the events of different ranks interleave. So a live run, its merged trace and a trace
**            of real processes, each with its own clock, are judged alike, and findings are sorted
**            before they are read.
*/
#pragma once
#include "cddp/check.h"
#include "core/trace/sink.h"

/* The compiled-in checks in causal order: a cause stands before what it leads to. */
size_t cd_checks_count(void);
const cddp_check *cd_check_get(size_t index);      /* NULL past the end */
const cddp_check *cd_check_find(const char *name); /* "I-ORDER"; NULL when there is none */

typedef struct cd_judge cd_judge;

typedef struct cd_judge_options {
    const cddp_check *const *checks; /* borrowed until destroy; NULL: every compiled-in one */
    size_t check_count;
    const cddp_allocator *allocator;
    uint32_t findings_per_check; /* kept in full; further ones are counted. 0: 16 */
} cd_judge_options;

typedef struct cd_judge_exercise {
    const char *check; /* borrowed: the check's own name */
    uint64_t count;    /* how often; 0: the run never put this invariant to the test */
    uint64_t findings; /* reported, kept or not */
    char how[160];     /* the first reason given */
} cd_judge_exercise;

cddp_status cd_judge_create(const cd_judge_options *options, cd_judge **judge,
                            cddp_error *err) CDDP_MUST_CHECK;
void cd_judge_destroy(cd_judge *judge); /* accepts NULL */

/* Where events go while the run is on. Borrowed until destroy. */
const cddp_trace_sink *cd_judge_get_sink(cd_judge *judge);
/* A recorded trace, in (time, rank, sequence) order. */
cddp_status cd_judge_push_trace(cd_judge *judge, const cd_memory_sink *trace,
                                cddp_error *err) CDDP_MUST_CHECK;

/* Lets every check draw its conclusions and sorts the findings: by step, then causal order, then
** micro-step, rank and parameter; so the first finding is the culprit and the rest are what it led
** to. */
cddp_status cd_judge_end(cd_judge *judge, cddp_error *err) CDDP_MUST_CHECK;

size_t cd_judge_finding_count(const cd_judge *judge);
const cddp_finding *cd_judge_get_finding(const cd_judge *judge, size_t index);
/* Of two findings of one step the one with the smaller place is the cause; also where another judge
** with the same checks has the other one. */
uint64_t cd_judge_get_place(const cd_judge *judge, size_t index);
/* One per check, in the order of the checks, exercised or not. */
size_t cd_judge_exercise_count(const cd_judge *judge);
const cd_judge_exercise *cd_judge_get_exercise(const cd_judge *judge, size_t index);

/* After end: who waits for whom, in the order of their ranks. Borrowed until destroy. */
size_t cd_judge_wait_count(const cd_judge *judge);
const cddp_wait *cd_judge_get_wait(const cd_judge *judge, size_t index);

/* Visits the events of per-rank traces in (time, rank, sequence) order. */
typedef struct cd_merge_input {
    const cd_memory_sink *traces; /* (trace_count) */
    size_t trace_count;
    const cddp_allocator *allocator;
} cd_merge_input;
cddp_status cd_trace_merge(const cd_merge_input *input, const cddp_trace_sink *sink,
                           cddp_error *err) CDDP_MUST_CHECK;
