/* SPDX-License-Identifier: Apache-2.0 */
/* report and check: what a store contains, and what the checks of today say about it. */
#include "cli/imported.h"
#include "cli/recorded.h"
#include "cli/report_target.h"
#include "verify/report/stored.h"
#include "core/base/alloc.h"
#include "core/base/error.h"

typedef struct store_command {
    cd_session session;
    cd_report_target target;
    cddp_status (*take)(cd_result *result, const cd_session *session, const cddp_stored_run *run,
                        cddp_error *err);
    cd_result *results;
    size_t count, capacity;
} store_command;

static cddp_status take_as_found(cd_result *result, const cd_session *session,
                                 const cddp_stored_run *run, cddp_error *err)
{
    CD_TRY(cd_stored_take(result, session->store, run, err));
    const bool is_clean = run->complete && !result->verdict.as_expected &&
                          result->verdict.outcome == CDDP_OUTCOME_VERIFIED;
    return is_clean ? CDDP_OK : CD_PASS(cd_recorded_take_ends(result, session->store, run, err));
}

static cddp_status take_run(void *context, const cddp_stored_run *run, cddp_error *err)
{
    store_command *c = context;
    if (!cd_vec_grow(NULL, (void **)&c->results, &c->capacity, c->count + 1, sizeof *c->results))
        return cd_fail_memory(err, "the results of %zu runs", c->count + 1);
    cd_result_init(&c->results[c->count]);
    return CD_PASS(c->take(&c->results[c->count++], &c->session, run, err));
}

/* all: every run when --run is not given, else the last one. */
static cddp_status take_runs(store_command *c, bool all, cddp_error *err)
{
    const cd_args *args = c->session.cli->args;
    uint64_t number = 0;
    int64_t last = 0;
    if (args->operand_count != 1)
        return cd_fail(err, CDDP_E_ARG, "%s which store? name one file",
                       cd_commands[args->command].name);
    CD_TRY(cd_report_target_read(args, &c->target, err));
    CD_TRY(cd_report_target_check(&c->target, err));
    c->target.store = args->operands[0];
    CD_TRY(cd_args_run_number(args, &number, err));
    CD_TRY(cddp_store_open(args->operands[0], CDDP_STORE_READ, NULL, &c->session.store, err));
    CD_TRY(cddp_store_last_run(c->session.store, &last, err));
    if (number > INT64_MAX)
        return cd_fail(err, CDDP_E_ARG, "'%s' has no such run; its last one is %lld",
                       args->operands[0], (long long)last);
    /* A figure and a trace for Perfetto are of one run. */
    all = all && c->target.format < CD_FORMAT_PERFETTO;
    int64_t wanted = number != 0 ? (int64_t)number : all ? 0 : last;
    CD_TRY(cddp_store_each_run(c->session.store, wanted, take_run, c, err));
    return CDDP_OK;
}

static int work(store_command *c, bool all)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_cli *cli = c->session.cli;
    int exit_code;
    if (take_runs(c, all, &err) != CDDP_OK) {
        exit_code = cd_cli_fail(cli, &err);
    } else {
        cd_report report = {.results = c->results,
                            .count = c->count,
                            .registry = cli->registry,
                            .exit_code = cd_results_exit_code(c->results, c->count),
                            .quiet = cd_args_has(cli->args, CD_OPTION_quiet),
                            .verbose = cd_args_has(cli->args, CD_OPTION_verbose)};
        exit_code = cd_report_send(cli, &c->target, &report);
    }
    for (size_t i = 0; i < c->count; i++) cd_result_fini(&c->results[i]);
    cd_release(NULL, c->results, c->capacity * sizeof *c->results);
    cddp_store_close(c->session.store);
    return exit_code;
}

int cd_command_report(cd_cli *cli)
{
    /* Shards have no verdict yet. */
    if (cd_imported_is(cli->args)) return cd_imported_check(cli);
    return work(&(store_command){.session = {.cli = cli, .overrides = ""}, .take = take_as_found},
                true);
}

int cd_command_check(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    if (cd_imported_is(cli->args)) return cd_imported_check(cli);
    if (cd_args_has(cli->args, CD_OPTION_stall)) {
        (void)cd_fail(&err, CDDP_E_ARG,
                      "--stall goes with shards: of a store it was decided when they were stored");
        return cd_cli_fail(cli, &err);
    }
    return work(&(store_command){.session = {.cli = cli, .overrides = ""},
                                 .take = cd_recorded_judge},
                false);
}
