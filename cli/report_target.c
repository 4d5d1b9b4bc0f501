/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing a report's format and writing it where it belongs. */
#include "cli/report_target.h"

#include "cli/drawn.h"
#include "cli/page.h"
#include "core/base/output.h"
#include "core/base/error.h"
#include "verify/html/html.h"
#include "verify/hang/headline.h"
#include "verify/timeline/figure.h"
#include "verify/timeline/perfetto.h"

#include <string.h>

cddp_status cd_report_target_read(const cd_args *args, cd_report_target *target, cddp_error *err)
{
    static const char *const words[] = {"text", "json",     "junit", "sarif",
                                        "html", "perfetto", "svg",   NULL};
    int format = 0;
    CD_TRY(cd_args_choice(args, CD_OPTION_format, words, &format, err));
    if (format >= CD_FORMAT_PERFETTO && args->command != CD_COMMAND_report)
        return cd_fail(err, CDDP_E_ARG,
                       "--format %s draws one stored run: record it with --trace run.db, then "
                       "cddp-verify report run.db --format %s",
                       words[format], words[format]);
    *target = (cd_report_target){.format = (cd_format)format,
                                 .path = cd_args_text(args, CD_OPTION_output, NULL),
                                 .store = cd_args_text(args, CD_OPTION_trace, NULL)};
    /* --output of shrink names the scenario that it writes. */
    if (args->command == CD_COMMAND_shrink) target->path = NULL;
    if (target->store == NULL && args->command == CD_COMMAND_report && args->operand_count == 1)
        target->store = args->operands[0];
    return CDDP_OK;
}

cddp_status cd_report_target_check(const cd_report_target *target, cddp_error *err)
{
    return target->path != NULL ? cd_output_check(target->path, err) : CDDP_OK;
}

/* A report that cannot be kept is at least shown. */
static int write_file(const cd_cli *cli, const cd_text *text, const char *path, int exit_code)
{
    cddp_error err = CDDP_ERROR_INIT;
    if (cd_output_write(path, text, &err) == CDDP_OK) return exit_code;
    (void)cd_cli_write(cli, text, exit_code);
    return cd_cli_fail(cli, &err);
}

/* The end of a run is where its failure shows. */
#define FIGURE_SLICES 18 /* of a rank */

static void print_figure(cd_text *text, const cd_timeline *timeline, const cd_result *result)
{
    const cddp_verdict *v = &result->verdict;
    cd_text headline;
    cd_text_init(&headline, false);
    cd_hang_print(v, &headline);
    if (headline.length == 0 && v->finding_count > 0)
        cd_text_printf(&headline, "%s: %s", v->findings[0].check, v->findings[0].title);
    cd_figure_print(text, &(cd_figure){.timeline = timeline,
                                       .title = result->title,
                                       .headline = cd_text_get(&headline),
                                       .slices = FIGURE_SLICES * (size_t)timeline->rank_count});
    text->failed |= headline.failed;
    cd_text_fini(&headline);
}

/* Pages and traces for Perfetto show runs, not results alone. Of a job that was restarted a trace
** and a figure show the last run. */
static cddp_status print_drawn(const cd_report_target *target, const cd_report *report,
                               cd_text *text, cddp_error *err)
{
    cd_drawn drawn;
    cd_drawn_init(&drawn);
    const size_t slices_max = target->format == CD_FORMAT_HTML ? CD_SLICES_MAX : SIZE_MAX;
    const cddp_status status =
        target->events != NULL
            ? cd_drawn_take(&drawn, target->events, report, slices_max, err)
            : cd_drawn_take_stored(&drawn, target->store, report, slices_max, err);
    if (status == CDDP_OK && target->format == CD_FORMAT_HTML) {
        cd_html_print(text, &(cd_html){.report = report,
                                       .timelines = drawn.shown,
                                       .why = cd_text_get(&drawn.why)});
    } else if (status == CDDP_OK && report->count > 0 && drawn.shown[report->count - 1] != NULL) {
        const cd_timeline *last = drawn.shown[report->count - 1];
        const cd_result *r = &report->results[report->count - 1];
        if (target->format == CD_FORMAT_PERFETTO)
            cd_perfetto_print(text, last, r->title, strcmp(r->backend, "sim") == 0);
        else
            print_figure(text, last, r);
    }
    cd_drawn_fini(&drawn);
    return status;
}

int cd_report_write(const cd_cli *cli, const cd_report_target *target, const cd_text *text,
                    int exit_code)
{
    if (text->failed || target->path == NULL) return cd_cli_write(cli, text, exit_code);
    return write_file(cli, text, target->path, exit_code);
}

int cd_report_send(const cd_cli *cli, const cd_report_target *target, const cd_report *given)
{
    static void (*const formats[])(cd_text * text,
                                   const cd_report *report) = {cd_report_text, cd_report_json,
                                                               cd_report_junit, cd_report_sarif};
    cd_text text;
    cddp_error err = CDDP_ERROR_INIT;
    int exit_code;
    cd_report whole = *given;
    const cd_report *const report = &whole;
    whole.explain = cd_page_print;
    whole.docs = CDDP_DOCS_URL;
    const bool is_shown = target->format == CD_FORMAT_TEXT && target->path == NULL;
    if (is_shown)
        cd_cli_text_begin(cli, &text);
    else
        cd_text_init(&text, false);
    if (target->format < CD_FORMAT_HTML)
        formats[target->format](&text, report);
    else
        (void)print_drawn(target, report, &text, &err);
    if (err.status != CDDP_OK)
        exit_code = cd_cli_fail(cli, &err);
    else
        exit_code = cd_report_write(cli, target, &text, report->exit_code);
    cd_text_fini(&text);
    return exit_code;
}
