/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing a report's format and writing it where it belongs. */
#include "cli/report_target.h"

#include "core/base/output.h"
#include "core/base/error.h"

cddp_status cd_report_target_read(const cd_args *args, cd_report_target *target, cddp_error *err)
{
    static const char *const words[] = {"text", "json", "junit", "sarif", NULL};
    int format = 0;
    CD_TRY(cd_args_choice(args, CD_OPTION_format, words, &format, err));
    *target = (cd_report_target){(cd_format)format, cd_args_text(args, CD_OPTION_output, NULL)};
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

int cd_report_send(const cd_cli *cli, const cd_report_target *target, const cd_report *report)
{
    static void (*const formats[])(cd_text * text,
                                   const cd_report *report) = {cd_report_text, cd_report_json,
                                                               cd_report_junit, cd_report_sarif};
    cd_text text;
    cd_text_init(&text, target->format == CD_FORMAT_TEXT && target->path == NULL && cli->color_out);
    formats[target->format](&text, report);
    int exit_code;
    if (text.failed || target->path == NULL)
        exit_code = cd_cli_write(cli, &text, report->exit_code);
    else
        exit_code = write_file(cli, &text, target->path, report->exit_code);
    cd_text_fini(&text);
    return exit_code;
}
