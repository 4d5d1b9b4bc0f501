/* SPDX-License-Identifier: Apache-2.0 */
/* One run, as a report shows it, wherever it comes from: a verdict just reached, a worker
** process, or a store.
**
** Ownership  a result owns everything in it; it lies in its arena.
** Errors     a result is always complete; when memory runs out while it is made, the maker says so.
*/
#pragma once
#include "cddp/run.h"
#include "cddp/store.h"
#include "core/base/arena.h"
#include "core/base/text.h"

/* A schedule longer than this is no line that anybody pastes; the plan and its seed lead to it as
** well. */
#define CD_SCHEDULE_PASTEABLE 400

/* The events that a finding rests on, as text. */
typedef struct cd_result_context {
    const char **lines; /* (count) */
    size_t count;
} cd_result_context;

typedef struct cd_result {
    cd_arena arena;
    /* The verdict, or a substitute for it where nothing was judged: the same type on its way
    ** to the store, from a worker and into every report. Its arrays and texts lie in the arena, and
    ** its texts are clean. */
    cddp_verdict verdict;
    cd_result_context *contexts; /* (verdict.finding_count); NULL: none yet */
    /* "verified", "findings", "error", "environment", "inconclusive", "skipped", "not run" */
    const char *name;
    const char *source;  /* the scenario file, or the store */
    const char *title;   /* "" when the scenario could not be read */
    const char *details; /* several lines: the mistakes of a scenario file; "" */
    const char *backend, *schedule, *reproduce;
    const char *unjudged; /* what nothing here could judge, and why; "" */
    const char *shrink;   /* the line that makes the failure small; "" where nothing can */
    /* the file that the result is about, and in it the key and the line (place.h); "" and 0: none
    */
    const char *place, *place_key;
    uint32_t place_line;
    bool judged; /* there is a verdict of checks behind this */
    /* it lacks something that the caller did not ask for by name; says nothing of the whole */
    bool skipped;
    uint32_t world_size, steps;
    /* repetitions under other settings that ended with the same parameters */
    uint32_t variant_count;
    uint64_t seed;
    uint64_t wall_ns;   /* 0: not known */
    int64_t stored_run; /* in which run of the store; 0: not stored */
} cd_result;

void cd_result_init(cd_result *result);
void cd_result_fini(cd_result *result); /* accepts a zeroed one */

/* Texts are copied clean (cd_text_clean); NULL copies "". */
const char *cd_result_copy(cd_result *result, const char *text);
/* The option in which ranks differ; where they do, the advice of the first finding begins with it:
** "ddp.bucket_cap_mb is 1 on rank 1, 25 on rank 0"; or "". And the advice without it. */
#define CD_DIFFERS_BYTES sizeof((cddp_finding *)0)->advice
void cd_result_print_differs(const cd_result *result, char *text, size_t text_bytes);
const char *cd_result_get_advice(const cd_result *result, size_t index);
/* The whole name of its parameter, or "". */
const char *cd_finding_parameter(const cddp_finding *finding);
/* A copy with clean texts; the names of its check and parameter lie in the arena. */
cddp_finding cd_result_copy_finding(cd_result *result, const cddp_finding *finding);
const char *cd_result_verdict_name(int exit_code);
/* What a store keeps: the verdict's name, and of a run as expected with what it ended, as in "as
** expected: deadlock". */
#define CD_RESULT_AS_EXPECTED "as expected: "
const char *cd_result_recorded_name(const cd_result *result);
/* Copies what a verdict says; context lines come later. */
cddp_status cd_result_take_verdict(cd_result *result, const cddp_verdict *verdict,
                                   cddp_error *err) CDDP_MUST_CHECK;
/* Only who waits for whom; take_verdict does it too. */
cddp_status cd_result_take_waits(cd_result *result, const cddp_verdict *verdict,
                                 cddp_error *err) CDDP_MUST_CHECK;
/* A result without a run: "error" or "environment", with what was wrong. */
void cd_result_set_failure(cd_result *result, int exit_code, const char *summary,
                           const char *details);
void cd_result_set_skipped(cd_result *result, const char *why);
/* Adds the text of an event to every finding that rests on it. */
void cd_result_add_context(cd_result *result, const cddp_event *event);
/* Of the i-th finding. */
cd_result_context cd_result_get_context(const cd_result *result, size_t index);
bool cd_result_wants_context(const cd_result *result);
/* A rank that returned without an error says nothing that a report shows. */
bool cd_result_is_clean(const cddp_verdict_rank *rank);
/* Whether somebody outside ended a rank of real processes: no run of the scenario ends so again.
** text: "rank 1 was killed (signal 9) from outside". */
bool cd_result_was_struck(const cd_result *result, char *text, size_t text_bytes);
/* The command that ends in the same way; "" where none does. */
const char *cd_result_get_reproduction(const cd_result *result);
/* "killed", "hung", … */
const char *cd_result_end_name(cddp_rank_end end);

/* Through a pipe, between processes of the same program. */
void cd_result_write(const cd_result *result, cd_text *bytes);
cddp_status cd_result_read(cd_result *result, const void *bytes, size_t byte_count,
                           cddp_error *err) CDDP_MUST_CHECK;

/* The exit code of all results together: findings weigh most, then errors, absences, inconclusive
** ones. Those skipped do not count, unless there is nothing else. */
int cd_results_exit_code(const cd_result *results, size_t count);
