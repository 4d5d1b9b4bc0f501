/* SPDX-License-Identifier: Apache-2.0 */
/* run: scenarios in, a report out. */
#include "verify/worlds/compose.h"
#include "verify/worlds/join.h"
#include "cli/interrupt.h"
#include "cli/jobs.h"
#include "core/base/output.h"
#include "cli/overrides.h"
#include "cli/plugins.h"
#include "cli/report_target.h"
#include "cli/scenarios.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define WORKERS_MAX 256
#define JOIN_NS UINT64_C(60000000000)

typedef struct run_command {
    cd_cli *cli;
    cd_file_list files;
    cd_text overrides;
    cd_log_sink log;
    cddp_store *store;
    cd_report_target target;
    uint64_t workers;
    int level;
    cd_result *results; /* (files.count) */
    size_t done;
    cd_join join;
    char hub[CDDP_PROCESS_ADDRESS_BYTES];
    bool has_left; /* a rank above 0 of a job: rank 0 reports */
    int left_with; /* its exit code */
} run_command;

static const char *read_variable(const char *variable) { return getenv(variable); }

/* Where this process is one of many, rank 0 goes on as who judges and reports; the others run ranks
** until it is done. */
static cddp_status join_job(run_command *c, cddp_error *err)
{
    const cd_args *args = c->cli->args;
    const char *url = cd_args_text(args, CD_OPTION_rendezvous, NULL),
               *backend = cd_args_text(args, CD_OPTION_backend, NULL);
    cd_join_waiting waiting = {.patience_ns = 0, .interrupted = cd_interrupt_requested};
    cd_join_order order;
    uint64_t seconds = JOIN_NS / 1000000000u;
    bool is_forked = false, found = false;
    if (c->cli->origin.hub != NULL) return CDDP_OK;
    CD_TRY(cd_args_budget(args, CD_OPTION_join_timeout, "seconds", &seconds, &waiting.patience_ns,
                          err));
    if (waiting.patience_ns == 0) waiting.patience_ns = seconds * 1000000000u;
    /* A backend that is not available is reported with the scenario that names it. */
    if (backend != NULL && cd_plugins_need_backend(c->cli, backend, NULL) == CDDP_OK &&
        cd_compose_is_forked(c->cli->registry, backend, &is_forked, NULL) != CDDP_OK)
        is_forked = false;
    if (is_forked || url != NULL) CD_TRY(cd_join_read(read_variable, url, &c->join, &found, err));
    if (!found) return CDDP_OK;
    c->cli->origin.join = &c->join;
    cd_interrupt_begin();
    CD_TRY(cd_join_begin(&c->join, &waiting, err));
    if (c->join.rank == 0) return CDDP_OK;
    CD_TRY(cd_join_follow(&c->join, &waiting, &order, err));
    if (!order.is_rank) {
        c->has_left = true;
        c->left_with = order.exit_code;
        return CDDP_OK;
    }
    snprintf(c->hub, sizeof c->hub, "%s", order.hub);
    c->cli->origin.hub = c->hub;
    c->cli->origin.run = order.run % CD_ORIGIN_RUNS;
    c->cli->origin.repetition = order.run / CD_ORIGIN_RUNS;
    return CDDP_OK;
}

static cddp_status read_arguments(run_command *c, cddp_error *err)
{
    static const char *const levels[] = {"digest", "order", "payload", NULL};
    static const cddp_trace_level level_values[] = {CDDP_TRACE_DIGEST, CDDP_TRACE_ORDER,
                                                    CDDP_TRACE_PAYLOAD};
    const cd_args *args = c->cli->args;
    if (args->operand_count == 0)
        return cd_fail(err, CDDP_E_ARG, "run what? name a scenario file or a folder of them");
    CD_TRY(cd_overrides_read(args, &c->overrides, err));
    CD_TRY(cd_report_target_read(args, &c->target, err));
    CD_TRY(cd_args_choice(args, CD_OPTION_level, levels, &c->level, err));
    c->level = (int)level_values[c->level];
    c->workers = 1;
    CD_TRY(cd_args_number(args, CD_OPTION_jobs, &c->workers, err));
    if (c->workers == 0) c->workers = cd_os_core_count();
    if (c->workers > WORKERS_MAX)
        return cd_fail(err, CDDP_E_ARG, "--jobs: at most %d workers, got %" PRIu64, WORKERS_MAX,
                       c->workers);
    if (c->workers > 1 && c->cli->origin.join != NULL)
        return cd_fail(
            err, CDDP_E_ARG,
            "--jobs: the processes of a job that somebody else started run one scenario at a time");
    if (cd_args_has(args, CD_OPTION_log))
        CD_TRY(cd_log_sink_init(&c->log, cd_args_text(args, CD_OPTION_log, ""), err));
    for (size_t i = 0; i < args->operand_count; i++)
        CD_TRY(cd_file_list_add(&c->files, args->operands[i], err));
    for (size_t i = 0; i < c->files.count; i++)
        c->files.found[i] = c->files.found[i] && !cd_args_has(args, CD_OPTION_strict);
    return CDDP_OK;
}

/* We are a rank of one of the runs that the command makes; whoever started us judges it and keeps
** the rest. */
static cddp_status be_a_rank(run_command *c, cd_session *session, cd_jobs *jobs, cddp_error *err)
{
    uint64_t run = c->cli->origin.run;
    if (run >= c->files.count)
        return cd_fail(err, CDDP_E_STATE, "there is no run %" PRIu64 " among %zu", run,
                       c->files.count);
    session->run = run;
    session->log = NULL;
    jobs->paths += run;
    jobs->may_skip += run;
    jobs->count = jobs->worker_count = 1;
    jobs->progress = false;
    return CDDP_OK;
}

static cddp_status run_all(run_command *c, cddp_error *err)
{
    const cd_args *args = c->cli->args;
    const char *store = cd_args_text(args, CD_OPTION_trace, NULL);
    CD_TRY(join_job(c, err));
    if (c->has_left) return CDDP_OK;
    CD_TRY(read_arguments(c, err));
    if (c->cli->origin.hub == NULL) CD_TRY(cd_report_target_check(&c->target, err));
    for (size_t i = 0; c->target.path != NULL && i < c->files.count; i++)
        CD_TRY(cd_output_check_input(c->target.path, c->files.paths[i], err));
    if (store != NULL && c->cli->origin.hub == NULL)
        CD_TRY(cddp_store_open(store, CDDP_STORE_APPEND, NULL, &c->store, err));
    c->results = cd_allocate_array(NULL, c->files.count, sizeof *c->results);
    if (c->results == NULL)
        return cd_fail_memory(err, "the results of %zu scenarios", c->files.count);
    for (size_t i = 0; i < c->files.count; i++) cd_result_init(&c->results[i]);
    cd_session session = {.cli = c->cli,
                          .store = c->store,
                          .level = (cddp_trace_level)c->level,
                          .overrides = cd_text_get(&c->overrides),
                          .log = cd_args_has(args, CD_OPTION_log) ? &c->log : NULL};
    cd_jobs jobs = {.session = &session,
                    .paths = c->files.paths,
                    .may_skip = c->files.found,
                    .count = c->files.count,
                    .worker_count =
                        (uint32_t)(c->workers < c->files.count ? c->workers : c->files.count),
                    .keep_going = cd_args_has(args, CD_OPTION_keep_going),
                    .progress = c->cli->progress};
    if (c->cli->origin.hub != NULL) CD_TRY(be_a_rank(c, &session, &jobs, err));
    cd_interrupt_begin();
    if (c->cli->origin.hub != NULL) cd_interrupt_as_rank();
    CD_TRY(cd_jobs_run(&jobs, c->results, &c->done, err));
    return CDDP_OK;
}

static int report(run_command *c)
{
    const cd_args *args = c->cli->args;
    cd_report r = {.results = c->results,
                   .count = c->done,
                   .registry = c->cli->registry,
                   .quiet = cd_args_has(args, CD_OPTION_quiet),
                   .verbose = cd_args_has(args, CD_OPTION_verbose),
                   .timings = cd_args_has(args, CD_OPTION_timings),
                   .interrupted = cd_interrupt_requested(),
                   .not_run = c->files.count - c->done};
    r.exit_code = cd_results_exit_code(c->results, c->done);
    if (r.exit_code == CD_EXIT_VERIFIED && (r.interrupted || r.not_run > 0))
        r.exit_code = CD_EXIT_INCONCLUSIVE;
    return cd_report_send(c->cli, &c->target, &r);
}

/* A failure that ends everything, such as a full disk, is the end of the scenario under way. A
** report without it would be one of success. */
static void note_failure(run_command *c, int exit_code, const cddp_error *err)
{
    if (c->results == NULL || c->cli->origin.hub != NULL || c->done >= c->files.count) return;
    cd_result *result = &c->results[c->done];
    cd_result_fini(result);
    cd_result_init(result);
    result->source = cd_result_copy(result, c->files.paths[c->done]);
    cd_result_set_failure(result, exit_code, err->message, "");
    c->done++;
}

int cd_command_run(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    run_command c = {.cli = cli};
    cd_text_init(&c.overrides, false);
    int exit_code = CD_EXIT_VERIFIED;
    bool failed = run_all(&c, &err) != CDDP_OK;
    if (failed) exit_code = cd_cli_fail(cli, &err);
    if (failed && err.status == CDDP_E_ABORTED)
        exit_code = CD_EXIT_INCONCLUSIVE;
    else if (failed)
        note_failure(&c, exit_code, &err);
    /* Results from before a failure are still worth reporting. */
    int reported = !c.has_left && (!failed || c.done > 0) ? report(&c) : c.left_with;
    if (!failed) exit_code = reported;
    /* the report is out before anybody leaves: a launcher may end all with the first */
    fflush(NULL);
    if (cli->origin.join != NULL) cd_join_end(&c.join, exit_code);
    for (size_t i = 0; c.results != NULL && i < c.files.count; i++) cd_result_fini(&c.results[i]);
    cd_release(NULL, c.results, c.files.count * sizeof *c.results);
    cddp_store_close(c.store);
    cd_file_list_fini(&c.files);
    cd_text_fini(&c.overrides);
    return exit_code;
}
