/* SPDX-License-Identifier: Apache-2.0 */
/* Reports of searches, proofs, batteries and comparisons. */
#define _POSIX_C_SOURCE 200809L
#include "cli/report_card.h"

#include "cli/interrupt.h"
#include "core/base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void cd_report_card_begin(const cd_cli *cli, const cd_report_target *target, cd_text *text)
{
    const bool is_shown = target->format == CD_FORMAT_TEXT && target->path == NULL;
    if (is_shown)
        cd_cli_text_begin(cli, text);
    else
        cd_text_init(text, false);
}

/* ---- the run that shows it, once more ---- */

typedef struct evidence {
    cd_result result;
    cddp_store *store;
    char folder[256], path[320]; /* of the store; "": none */
} evidence;

/* Only a page draws the run, and draws it from a store. */
static cddp_status open_store(evidence *e, const cd_report_target *target, cddp_error *err)
{
    const char *temporary = getenv("TMPDIR");
    if (target->format != CD_FORMAT_HTML) return CDDP_OK;
    snprintf(e->folder, sizeof e->folder, "%.200s/cddp-card-XXXXXX",
             temporary != NULL && temporary[0] != '\0' ? temporary : "/tmp");
    if (mkdtemp(e->folder) == NULL) {
        e->folder[0] = '\0';
        return CDDP_OK; /* the page then says that nothing was recorded */
    }
    snprintf(e->path, sizeof e->path, "%s/run.db", e->folder);
    return CD_PASS(cddp_store_open(e->path, CDDP_STORE_APPEND, NULL, &e->store, err));
}

static cddp_status run_again(evidence *e, cd_cli *cli, const cd_report_target *target,
                             const cd_card_run *run, cddp_error *err)
{
    cddp_plan *plan = NULL;
    CD_TRY(open_store(e, target, err));
    const cd_session session = {.cli = cli,
                                .store = e->store,
                                .level = CDDP_TRACE_DIGEST,
                                .overrides = run->overrides,
                                .schedule = run->schedule};
    CD_TRY(cd_session_load_plan(&session, run->path, stderr, &plan, err));
    if (run->expects_nothing) plan->expect = (cddp_plan_expect){.verdict = CDDP_EXPECT_VERIFIED};
    e->result.source = cd_result_copy(&e->result, run->path);
    /* Ctrl-C ended the search, not this; another one does */
    cd_interrupt_end();
    cd_interrupt_begin();
    const cddp_status status = cd_session_run_plan(&session, plan, &e->result, err);
    cddp_plan_destroy(plan);
    return status;
}

static void end_evidence(evidence *e)
{
    cd_result_fini(&e->result);
    cddp_store_close(e->store);
    if (e->path[0] != '\0') unlink(e->path);
    if (e->folder[0] != '\0') rmdir(e->folder);
}

static int send_card(cd_cli *cli, const cd_report_target *target, const cd_card *card,
                     const cd_card_run *run)
{
    evidence e = {.store = NULL};
    cddp_error err = CDDP_ERROR_INIT;
    cd_report_target to = *target;
    cd_report report = {.results = &e.result,
                        .registry = cli->registry,
                        .exit_code = card->exit_code,
                        .interrupted = cd_interrupt_requested(),
                        .card = card};
    cd_result_init(&e.result);
    if (run != NULL && run_again(&e, cli, target, run, &err) == CDDP_OK) report.count = 1;
    cddp_store_close(e.store);
    e.store = NULL;
    to.store = e.path[0] != '\0' ? e.path : NULL;
    /* The search has spoken: a report without its run is still the report. */
    if (err.status != CDDP_OK) (void)cd_cli_fail(cli, &err);
    const int exit_code = cd_report_send(cli, &to, &report);
    end_evidence(&e);
    return exit_code;
}

int cd_report_card_send(cd_cli *cli, const cd_report_target *target, cd_card *card, cd_text *text,
                        const char *verdict, int exit_code, const cd_card_run *run)
{
    if (target->format == CD_FORMAT_TEXT) {
        exit_code = cd_report_write(cli, target, text, exit_code);
    } else {
        cd_card_end(card, verdict, exit_code, cd_text_get(text));
        if (card->failed || text->failed) {
            cddp_error err = CDDP_ERROR_INIT;
            (void)cd_fail_memory(&err, "the report of %s", card->command);
            exit_code = cd_cli_fail(cli, &err);
        } else {
            exit_code = send_card(cli, target, card, run);
        }
    }
    cd_card_fini(card);
    cd_text_fini(text);
    return exit_code;
}
