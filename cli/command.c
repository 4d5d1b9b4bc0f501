/* SPDX-License-Identifier: Apache-2.0 */
/* How a command ends: with its text on standard output, or with one sentence on standard error. */
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

int cd_cli_write(const cd_cli *cli, const cd_text *text, int exit_code)
{
    cddp_error err = CDDP_ERROR_INIT;
    if (text->failed) return cd_fail_memory(&err, "the report"), cd_cli_fail(cli, &err);
    bool written =
        fwrite(cd_text_get(text), 1, text->length, stdout) == text->length && fflush(stdout) == 0;
    if (written || errno == EPIPE) return exit_code;
    return cd_fail(&err, CDDP_E_IO, "cannot write to standard output: %s", strerror(errno)),
           cd_cli_fail(cli, &err);
}
