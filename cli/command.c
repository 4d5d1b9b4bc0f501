/* SPDX-License-Identifier: Apache-2.0 */
/* How a command ends: with its text on standard output, or with one sentence on standard error. */
#define _POSIX_C_SOURCE 200809L
#include "cli/command.h"

#include "core/base/error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int cd_cli_fail(const cd_cli *cli, const cddp_error *err)
{
    cd_text text;
    char message[CDDP_ERROR_MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", err->message);
    cd_text_clean(message); /* it may quote a file */
    cd_text_init(&text, cli->color_err);
    cd_text_style(&text, CD_STYLE_RED, "cddp-verify:");
    cd_text_printf(&text, " %s\n", message);
    fputs(cd_text_get(&text), stderr);
    cd_text_fini(&text);
    return err->status == CDDP_E_UNSUPPORTED || err->status == CDDP_E_BACKEND ||
                   err->status == CDDP_E_NOMEM
               ? CD_EXIT_ENVIRONMENT
               : CD_EXIT_USAGE;
}

int cd_cli_fail_output(const cd_cli *cli, int number)
{
    cddp_error err = CDDP_ERROR_INIT;
    /* no status: this command was right, what it was started with is not */
    (void)cd_fail(&err, CDDP_E_IO, "cannot write to standard output: %s", strerror(number));
    (void)cd_cli_fail(cli, &err);
    return CD_EXIT_ENVIRONMENT;
}

void cd_cli_text_begin(const cd_cli *cli, cd_text *text)
{
    cd_text_init(text, cli->color_out);
    text->columns = cli->columns_out;
}

/* False: it was short, or no pager took it. */
static bool write_to_pager(const cd_cli *cli, const cd_text *text)
{
    size_t lines = 0;
    for (size_t i = 0; i < text->length; i++) lines += text->bytes[i] == '\n';
    if (cli->pager == NULL || lines < cli->rows_out) return false;
    FILE *pager = popen(cli->pager, "w");
    if (pager == NULL) return false;
    (void)fwrite(cd_text_get(text), 1, text->length, pager); /* whoever quits it has read enough */
    return pclose(pager) == 0;
}

int cd_cli_write(const cd_cli *cli, const cd_text *text, int exit_code)
{
    cddp_error err = CDDP_ERROR_INIT;
    if (text->failed) return cd_fail_memory(&err, "the report"), cd_cli_fail(cli, &err);
    if (write_to_pager(cli, text)) return exit_code;
    bool written =
        fwrite(cd_text_get(text), 1, text->length, stdout) == text->length && fflush(stdout) == 0;
    if (written || errno == EPIPE) return exit_code;
    return cd_cli_fail_output(cli, errno);
}
