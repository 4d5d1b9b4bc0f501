/* SPDX-License-Identifier: Apache-2.0 */
/* import: dumps of a flight recorder, as a run of a store. */
#include "cddp/cddp.h"
#include "cddp/store.h"
#include "cli/command.h"
#include "cli/folder.h"
#include "cli/provenance.h"
#include "core/base/error.h"
#include "verify/import/flight.h"

#include <inttypes.h>
#include <string.h>

/* What a log says of a mismatch stands for dumps of the ranks that it names. */
static bool is_log(const cd_flights_facts *facts) { return strcmp(facts->version, "log") == 0; }

static cddp_status keep(cddp_store *store, cd_flights *flights, const char *source, int64_t *run,
                        cddp_error *err)
{
    cd_provenance here;
    cd_provenance_init(&here);
    const cd_flights_facts facts = cd_flights_get(flights);
    const cddp_run_provenance provenance = {.size = sizeof provenance,
                                            .title = is_log(&facts) ? "a log of a PyTorch job"
                                                                    : "dumps of a flight recorder",
                                            .source = source,
                                            .backend = "recorded",
                                            .version = cddp_version(),
                                            .machine = here.machine,
                                            .compiler = here.compiler,
                                            .recorded_at = here.now,
                                            .world_size = facts.world_size};
    const cddp_run_outcome outcome = {.size = sizeof outcome,
                                      .exit_code = CD_EXIT_INCONCLUSIVE,
                                      .verdict = "inconclusive",
                                      .reason = "imported, and not judged yet"};
    CD_TRY(cddp_store_run_begin(store, &provenance, run, err));
    CD_TRY(cd_flights_replay(flights, cddp_store_sink(store), err));
    return CD_PASS(cddp_store_run_end(store, &outcome, err));
}

static void print(cd_text *out, const cd_flights_facts *facts, const char *path, int64_t run)
{
    if (is_log(facts))
        cd_text_printf(out, "a log of %u ranks that differ: run %" PRId64 " of %s\n",
                       facts->dump_count, run, path);
    else
        cd_text_printf(out,
                       "%u dumps of %u ranks, version %s, %zu operations: run %" PRId64 " of %s\n",
                       facts->dump_count, facts->world_size, facts->version, facts->entry_count,
                       run, path);
    if (facts->missing < facts->world_size && !is_log(facts))
        cd_text_printf(out, "no dump from rank %u; it may be the one that failed\n",
                       facts->missing);
    cd_text_printf(out, "judge it with: cddp-verify check %s --run %" PRId64 "\n", path, run);
}

static cddp_status import(cd_cli *cli, cd_text *out, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_folder files = {.count = 0};
    cd_flights *flights = NULL;
    cddp_store *store = NULL;
    int64_t run = 0;
    const char *path = cd_args_text(cli->args, CD_OPTION_output, NULL);
    if (cli->args->operand_count == 0)
        return cd_fail(err, CDDP_E_ARG, "import which dumps? name their folder");
    if (path == NULL)
        return cd_fail(err, CDDP_E_ARG, "import where to? -o names a store: -o run.db");
    CD_TRY_OUT(cd_folder_read(&files, (const char *const *)cli->args->operands,
                              cli->args->operand_count, cd_flights_is_dump, err));
    CD_TRY_OUT(cd_flights_open((const char *const *)files.paths, files.count, &flights, err));
    CD_TRY_OUT(cddp_store_open(path, CDDP_STORE_APPEND, NULL, &store, err));
    CD_TRY_OUT(keep(store, flights, cli->args->operands[0], &run, err));
    const cd_flights_facts facts = cd_flights_get(flights);
    print(out, &facts, path, run);
out:
    cddp_store_close(store);
    cd_flights_close(flights);
    cd_folder_fini(&files);
    return status;
}

int cd_command_import(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_text out;
    cd_text_init(&out, false);
    const int exit_code =
        import(cli, &out, &err) == CDDP_OK ? cd_cli_write(cli, &out, 0) : cd_cli_fail(cli, &err);
    cd_text_fini(&out);
    return exit_code;
}
