/* SPDX-License-Identifier: Apache-2.0 */
/* cddp-verify: where everything meets. The only reader of argv and of the environment.
**
** main reads the command line, decides about colours, collects the parts (compiled in, and from
** plugins that the command line names), and calls one command. Commands return exit codes; nothing
** below main exits.
**
** Not here: the commands (cmd_*.c). */
#define _POSIX_C_SOURCE 200809L
#include "cli/command.h"
#include "cli/leave.h"
#include "cli/plugins.h"
#include "core/base/error.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int (*const commands[CD_COMMAND_COUNT])(cd_cli *cli) = {
#define CD_COMMAND(id, name, operands, summary, more) cd_command_##id,
#include "cli/commands.def"
#undef CD_COMMAND
};

static cddp_status decide_color(cd_cli *cli, cddp_error *err)
{
    static const char *const words[] = {"auto", "always", "never", NULL};
    int when = 0;
    CD_TRY(cd_args_choice(cli->args, CD_OPTION_color, words, &when, err));
    const char *no_color = getenv("NO_COLOR"), *terminal = getenv("TERM");
    bool wanted = (no_color == NULL || no_color[0] == '\0') &&
                  (terminal == NULL || strcmp(terminal, "dumb") != 0);
    cli->color_out = when == 1 || (when == 0 && wanted && isatty(STDOUT_FILENO));
    cli->color_err = when == 1 || (when == 0 && wanted && isatty(STDERR_FILENO));
    cli->progress = isatty(STDERR_FILENO);
    return CDDP_OK;
}

static cddp_status prepare(cd_cli *cli, cddp_error *err)
{
    CD_TRY(decide_color(cli, err));
    CD_TRY(cddp_registry_create(NULL, &cli->registry, err));
    CD_TRY(cd_plugins_open(cli, &cli->plugins, err));
    return CDDP_OK;
}

/* CDDP_HUB and CDDP_HUB_RUN are set by ourselves, for the ranks that a launcher starts for us. */
static cd_origin find_origin(char **argv)
{
    const char *hub = getenv("CDDP_HUB"), *run = getenv("CDDP_HUB_RUN");
    uint64_t number = run != NULL ? strtoull(run, NULL, 10) : 0;
    return (cd_origin){argv, hub, number % CD_ORIGIN_RUNS, number / CD_ORIGIN_RUNS, NULL};
}

int main(int argc, char **argv)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_args args = {.given = NULL};
    cd_cli cli = {.args = &args,
                  .program = argc > 0 ? argv[0] : "cddp-verify",
                  .origin = find_origin(argv)};
    /* A full disk and a closed pipe are failures of a write, which says so, not reasons to die
    ** without a word. */
    signal(SIGPIPE, SIG_IGN);
    unsetenv("CDDP_RECORD"); /* for programs of users: this one traces by itself */
    signal(SIGXFSZ, SIG_IGN);
    int exit_code = CD_EXIT_USAGE;
    cddp_status status = cd_args_parse(&args, argc - 1, argv + 1, &err);
    if (status == CDDP_OK && cd_args_has(&args, CD_OPTION_plugin)) cd_leave_begin();
    if (status != CDDP_OK || prepare(&cli, &err) != CDDP_OK)
        exit_code = cd_cli_fail(&cli, &err);
    else if (cd_args_has(&args, CD_OPTION_help))
        exit_code = cd_command_help(&cli);
    else if (cd_args_has(&args, CD_OPTION_version))
        exit_code = cd_command_version(&cli);
    else
        exit_code = commands[args.command](&cli);
    cddp_registry_destroy(cli.registry);
    cd_plugins_close(cli.plugins);
    cd_args_fini(&args);
    cd_leave_end();
    return exit_code;
}
