/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: which backends work here, shown by training one step on each, and why the others do
** not. */
#include "backends/table/builtin.h"
#include "cli/session.h"
#include "core/base/error.h"
#include "core/oracle/exact_inputs.h"

#include <stdio.h>
#include <string.h>

/* Runs are counted, for the ranks that they start: those on backends of this build from 0, on those
** of plugins, and on compositions, from here. */
#define PLUGINS_FROM 1000u
#define COMPOSITIONS_FROM 2000u

/* A tiny world on the backend; self is a world of one by definition. */
static cddp_status make_plan(const char *backend, cddp_plan **plan, cddp_error *err)
{
    cddp_plan *p = NULL;
    CD_TRY(cddp_plan_create(NULL, &p, err));
    cddp_status status = cddp_plan_set(p, "world.backend", backend, err);
    if (status == CDDP_OK)
        status = cddp_plan_set(p, "world.size", strcmp(backend, "self") == 0 ? "1" : "2", err);
    if (status == CDDP_OK) status = cddp_plan_set(p, "title", "one step", err);
    if (status == CDDP_OK) status = cddp_plan_set(p, "train.steps", "1", err);
    if (status == CDDP_OK) status = cddp_plan_check(p, err);
    if (status == CDDP_OK)
        *plan = p;
    else
        cddp_plan_destroy(p);
    return status;
}

/* The first rank that did not return cleanly; false: all did. */
static bool report_rank(const cddp_verdict *v, char *words, size_t bytes)
{
    for (size_t i = 0; i < v->rank_count; i++) {
        if (cd_result_is_clean(&v->ranks[i])) continue;
        snprintf(words, bytes, "rank %zu %s: %s", i, cd_result_end_name(v->ranks[i].result.end),
                 v->ranks[i].result.error.message);
        return true;
    }
    return false;
}

/* In words: "" when training works. */
static void try_backend(cd_cli *cli, const char *backend, uint64_t run, char *words, size_t bytes)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    cd_result result;
    cd_session session = {.cli = cli, .level = CDDP_TRACE_DIGEST, .overrides = "", .run = run};
    words[0] = '\0';
    /* we are a rank of another one */
    if (cli->origin.hub != NULL && cli->origin.run != run) return;
    cd_result_init(&result);
    cddp_status status = make_plan(backend, &plan, &err);
    if (status == CDDP_OK) status = cd_session_run_plan(&session, plan, &result, &err);
    if (status != CDDP_OK)
        snprintf(words, bytes, "%s", err.message);
    else if (!report_rank(&result.verdict, words, bytes) &&
             (result.verdict.outcome == CDDP_OUTCOME_FINDINGS || !result.judged))
        snprintf(words, bytes, "%s", result.verdict.summary);
    cddp_plan_destroy(plan);
    cd_result_fini(&result);
}

static void put(cd_text *text, const char *name, bool works, const char *words)
{
    cd_text_style(text, works ? CD_STYLE_GREEN : CD_STYLE_YELLOW, "%-6s", works ? "works" : "no");
    cd_text_printf(text, " %-11s ", name);
    cd_text_wrap(text, words, 19, 110);
}

/* One of each kind, over the simulator, which is always there. */
static void put_compositions(cd_cli *cli, cd_text *text)
{
    static const char *const examples[] = {"cpu:sim",   "rr:2:sim",        "hier:per=1:sim",
                                           "check:sim", "check:after:sim", "fault:delay=1us:sim"};
    char words[1024];
    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++) {
        try_backend(cli, examples[i], COMPOSITIONS_FROM + i, words, sizeof words);
        cd_text_style(text, words[0] == '\0' ? CD_STYLE_GREEN : CD_STYLE_YELLOW, "%-6s",
                      words[0] == '\0' ? "works" : "no");
        cd_text_printf(text, " %-20s ", examples[i]);
        cd_text_wrap(text, words[0] == '\0' ? "a composition, here over the simulator" : words, 28,
                     110);
    }
}

int cd_command_doctor(cd_cli *cli)
{
    char words[1024];
    const cddp_backend *backend;
    cd_text text;
    cd_cli_text_begin(cli, &text);
    for (const cd_backend_row *row = cd_backend_rows; row->name != NULL; row++) {
        if (row->absent[0] != '\0')
            snprintf(words, sizeof words, "not in this build: %s", row->absent);
        else
            try_backend(cli, row->name, (uint64_t)(row - cd_backend_rows), words, sizeof words);
        put(&text, row->name, words[0] == '\0', words[0] == '\0' ? row->summary : words);
    }
    for (size_t i = 0; (backend = cddp_registry_backend(cli->registry, i)) != NULL; i++) {
        if (cd_backend_row_find(backend->name) != NULL) continue;
        try_backend(cli, backend->name, PLUGINS_FROM + i, words, sizeof words);
        put(&text, backend->name, words[0] == '\0', words[0] == '\0' ? "from a plugin" : words);
    }
    put_compositions(cli, &text);
    const bool has_flags = cd_exact_flags_work();
    put(&text, "rounding", has_flags,
        has_flags ? "the processor's flag shows whether a sum rounded"
                  : "the processor's flag does not show here whether a sum rounded (valgrind?): "
                    "sums over samples are compared within a bound, not bit for bit");
    int exit_code = cd_cli_write(cli, &text, CD_EXIT_VERIFIED);
    cd_text_fini(&text);
    return exit_code;
}
