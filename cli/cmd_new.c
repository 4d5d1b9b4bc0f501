/* SPDX-License-Identifier: Apache-2.0 */
/* new: a commented scenario or plugin to begin with, from templates that the program carries. */
#define _POSIX_C_SOURCE 200809L
#include "cli/command.h"
#include "core/base/error.h"
#include "core/base/output.h"
#include "core/base/suggest.h"

#include <string.h>
#include <unistd.h>

/* made by CMake from cli/templates and examples */
extern const char cd_template_scenario[], cd_template_hang[], cd_template_job[], cd_template_hook[],
    cd_template_stateful_hook[], cd_template_backend[], cd_template_wrong_backend[];

typedef struct template_row {
    const char *name, *file, *text, *next;
} template_row;

static const template_row templates[] = {
    {"scenario", "scenario.toml", cd_template_scenario, "cddp-verify run"},
    {"hang", "hang.toml", cd_template_hang, "cddp-verify run"},
    {"job", "job.toml", cd_template_job, "cddp-verify run"},
    {"hook", "hook.c", cd_template_hook, "read its first lines, in"},
    {"stateful-hook", "hook.c", cd_template_stateful_hook, "read its first lines, in"},
    {"backend", "backend.c", cd_template_backend, "read its first lines, in"},
    {"wrong-backend", "backend.c", cd_template_wrong_backend, "read its first lines, in"},
};

static cddp_status choose(const cd_args *args, const template_row **chosen, cddp_error *err)
{
    const char *wanted = args->operand_count > 0 ? args->operands[0] : templates[0].name;
    cd_suggestion s;
    if (args->operand_count > 1)
        return cd_fail(err, CDDP_E_ARG, "'new' writes one file, not '%.60s' too",
                       args->operands[1]);
    cd_suggest_begin(&s, wanted);
    for (size_t i = 0; i < sizeof templates / sizeof templates[0]; i++) {
        *chosen = &templates[i];
        if (strcmp(templates[i].name, wanted) == 0) return CDDP_OK;
        cd_suggest_offer(&s, templates[i].name);
    }
    return cd_fail(err, CDDP_E_ARG,
                   "there is no template '%.60s'%s%s%s. There are scenario, hang, job, hook, "
                   "stateful-hook, backend and wrong-backend",
                   wanted, s.best != NULL ? "; did you mean '" : "", s.best != NULL ? s.best : "",
                   s.best != NULL ? "'?" : "");
}

/* A file that exists is replaced only when --output names it. */
static cddp_status write_template(const cd_args *args, const template_row *t, const char **path,
                                  cddp_error *err)
{
    cd_text text;
    *path = cd_args_text(args, CD_OPTION_output, t->file);
    if (!cd_args_has(args, CD_OPTION_output) && access(*path, F_OK) == 0)
        return cd_fail(err, CDDP_E_ARG, "'%s' exists; --output FILE says where to write", *path);
    CD_TRY(cd_output_check(*path, err));
    cd_text_init(&text, false);
    cd_text_push(&text, t->text);
    const cddp_status status = cd_output_write(*path, &text, err);
    cd_text_fini(&text);
    return status;
}

int cd_command_new(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    const template_row *chosen = NULL;
    const char *path = NULL;
    cd_text text;
    if (choose(cli->args, &chosen, &err) != CDDP_OK ||
        write_template(cli->args, chosen, &path, &err) != CDDP_OK)
        return cd_cli_fail(cli, &err);
    cd_text_init(&text, cli->color_out);
    cd_text_style(&text, CD_STYLE_GREEN, "written");
    cd_text_printf(&text, ": %s; next: %s %s\n", path, chosen->next, path);
    const int exit_code = cd_cli_write(cli, &text, CD_EXIT_VERIFIED);
    cd_text_fini(&text);
    return exit_code;
}
