/* SPDX-License-Identifier: Apache-2.0 */
/* One scenario from file to result: read, change, check, run on its world, record, judge.
**
** Lifetime   everything in a session is borrowed until the last run.
** Errors     whatever goes wrong with one scenario is its result; only what would go wrong with
**            every further one (the store cannot be written) is an error.
*/
#pragma once
#include "cddp/store.h"
#include "cli/command.h"
#include "cli/log_sink.h"
#include "verify/report/result.h"

#include <stdio.h>

typedef struct cd_session {
    cd_cli *cli;
    cddp_store *store;      /* NULL: not recorded */
    const cd_log_sink *log; /* NULL: not logged */
    cddp_trace_level level;
    const char *overrides; /* lines, see overrides.h */
    /* replays this choice string; NULL: the plan's chooser decides */
    const char *schedule;
    const struct cd_chooser *chooser; /* decides instead of the plan's; NULL: none */
    /* which of the command's runs this is; the ranks that it starts receive it */
    uint64_t run;
    uint64_t repetition;            /* of that run, for expect.same_with; 0: the run itself */
    const cddp_trace_sink *watcher; /* sees every event of the run too; NULL: none */
    bool oracle_apart;              /* see cddp_run_options */
    /* a scenario that lacks a plugin is skipped; false: it is a mistake */
    bool may_skip;
} cd_session;

cddp_status cd_session_run(const cd_session *session, const char *path, cd_result *result,
                           cddp_error *err) CDDP_MUST_CHECK;
/* The same with a plan that exists already; it is borrowed. */
cddp_status cd_session_run_plan(const cd_session *session, const cddp_plan *plan, cd_result *result,
                                cddp_error *err) CDDP_MUST_CHECK;
/* Reads a scenario and applies the overrides; a mistake becomes the result, and *plan stays NULL.
** text NULL: read the file at path. */
void cd_session_read_plan(const cd_session *session, const char *path, const char *text,
                          cddp_plan **plan, cd_result *result);
/* The same for a command that needs the plan: mistakes are written to `reported`
** (NULL: nowhere) and are an error. */
cddp_status cd_session_load_plan(const cd_session *session, const char *path, FILE *reported,
                                 cddp_plan **plan, cddp_error *err) CDDP_MUST_CHECK;
