/* SPDX-License-Identifier: Apache-2.0 */
/* cddp-verify: where everything meets. The only reader of argv and of the environment.
**
** main reads the command line, decides about colours, collects the parts (compiled in, and from
** plugins that the command line names), and calls one command. Commands return exit codes; nothing
** below main exits.
**
** Not here: the commands (cmd_*.c). */
#define _DEFAULT_SOURCE /* realpath, the size of a terminal */
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/leave.h"
#include "cli/plugins.h"
#include "cli/sources.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/output.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static int (*const commands[CD_COMMAND_COUNT])(cd_cli *cli) = {
#define CD_COMMAND(id, name, operands, summary, more) cd_command_##id,
#include "cli/commands.def"
#undef CD_COMMAND
};

/* Reading what was recorded keeps nothing before its end. */
static bool only_reads(int command)
{
    static const bool reads[CD_COMMAND_COUNT] = {
        [CD_COMMAND_check] = true,  [CD_COMMAND_import] = true, [CD_COMMAND_report] = true,
        [CD_COMMAND_export] = true, [CD_COMMAND_diff] = true,   [CD_COMMAND_compare] = true,
        [CD_COMMAND_lift] = true};
    return reads[command];
}

static cddp_status decide_color(cd_cli *cli, cddp_error *err)
{
    static const char *const words[] = {"auto", "always", "never", NULL};
    int when = 0;
    CD_TRY(cd_args_choice(cli->args, CD_OPTION_color, words, &when, err));
    const char *no_color = getenv("NO_COLOR"), *terminal = getenv("TERM");
    const bool is_dumb = terminal != NULL && strcmp(terminal, "dumb") == 0;
    const bool wanted = (no_color == NULL || no_color[0] == '\0') && !is_dumb;
    cli->color_out = when == 1 || (when == 0 && wanted && isatty(STDOUT_FILENO));
    cli->color_err = when == 1 || (when == 0 && wanted && isatty(STDERR_FILENO));
    cli->progress = isatty(STDERR_FILENO) && !is_dumb;
    return CDDP_OK;
}

/* COLUMNS, where somebody has exported it, else what the terminal says. */
static void read_size(int fd, size_t *columns, size_t *rows)
{
    struct winsize size = {.ws_col = 0};
    const char *given = getenv("COLUMNS");
    if (isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0) {
        *columns = size.ws_col;
        *rows = size.ws_row;
    }
    const unsigned long number = given != NULL ? strtoul(given, NULL, 10) : 0;
    if (number > 0 && number < 10000) *columns = number;
}

/* Long texts of these commands go through PAGER, or less, where both ends are a terminal. */
static void choose_pager(cd_cli *cli)
{
    const uint32_t long_ones = CD_IN(help) | CD_IN(explain) | CD_IN(list) | CD_IN(doctor);
    const char *terminal = getenv("TERM"), *pager = getenv("PAGER");
    const bool is_dumb = terminal == NULL || strcmp(terminal, "dumb") == 0;
    const bool is_long =
        (long_ones >> cli->args->command & 1u) != 0 || cd_args_has(cli->args, CD_OPTION_help);
    if (!is_long || is_dumb || !isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) return;
    setenv("LESS", "FRX", 0); /* ends by itself where all fits, and shows colours */
    cli->pager = pager == NULL ? "less 2>/dev/null" : pager[0] != '\0' ? pager : NULL;
}

static void look_at_terminal(cd_cli *cli)
{
    size_t rows_err = 0;
    read_size(STDOUT_FILENO, &cli->columns_out, &cli->rows_out);
    read_size(STDERR_FILENO, &cli->columns_err, &rows_err);
    choose_pager(cli);
}

/* What runs scenarios again has nothing to run in the shards of a program. */
static cddp_status refuse_shards(const cd_args *args, cddp_error *err)
{
    const uint32_t runs =
        CD_IN(run) | CD_IN(explore) | CD_IN(prove) | CD_IN(replay) | CD_IN(shrink);
    for (size_t i = 0; (runs >> args->command & 1u) != 0 && i < args->operand_count; i++)
        if (cd_source_is_shards(args->operands[i]))
            return cd_fail(
                err, CDDP_E_ARG,
                "'%.100s' is a recording, and %s needs a scenario: \"cddp-verify lift %.100s "
                "-o job.toml\" writes one; check judges the recording",
                args->operands[i], cd_commands[args->command].name, args->operands[i]);
    return CDDP_OK;
}

/* "run.db:2" is a run of the store run.db. */
static cddp_status check_store(const char *path, const char *operand, cddp_error *err)
{
    char store[4096];
    const char *colon = strrchr(operand, ':');
    if (colon == NULL || (size_t)(colon - operand) >= sizeof store) return CDDP_OK;
    memcpy(store, operand, (size_t)(colon - operand));
    store[colon - operand] = '\0';
    return CD_PASS(cd_output_check_input(path, store, err));
}

/* What is read by another name than an operand's: the shards of a run or of a folder, a store of
** which one run is named, and plugins. */
static cddp_status check_outputs(const cd_args *args, cddp_error *err)
{
    const char *path = cd_args_text(args, CD_OPTION_output, NULL), *plugin = NULL;
    if (path == NULL) return CDDP_OK;
    for (size_t i = 0; i < args->operand_count; i++) {
        CD_TRY(cd_sources_check_output(path, args->operands[i], err));
        if (args->command == CD_COMMAND_diff) CD_TRY(check_store(path, args->operands[i], err));
    }
    for (size_t i = 0; (plugin = cd_args_value(args, CD_OPTION_plugin, i)) != NULL; i++)
        CD_TRY(cd_output_check_input(path, plugin, err));
    return CDDP_OK;
}

static cddp_status prepare(cd_cli *cli, cddp_error *err)
{
    CD_TRY(refuse_shards(cli->args, err));
    CD_TRY(check_outputs(cli->args, err));
    CD_TRY(decide_color(cli, err));
    look_at_terminal(cli);
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

/* Launchers change their folder, and transports want an absolute path. */
static void make_temporary_folder_absolute(void)
{
    const char *given = getenv("TMPDIR");
    if (given == NULL || given[0] == '\0' || given[0] == '/') return;
    char *absolute = realpath(given, NULL);
    if (absolute != NULL) setenv("TMPDIR", absolute, 1);
    free(absolute);
}

int main(int argc, char **argv)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_args args = {.given = NULL};
    cd_cli cli = {.args = &args,
                  .program = argc > 0 ? argv[0] : "cddp-verify",
                  .origin = find_origin(argv)};
    if (cd_os_hold_standard_streams(NULL) != CDDP_OK) return CD_EXIT_ENVIRONMENT;
    /* A full disk and a closed pipe are failures of a write, which says so, not reasons to die
    ** without a word. */
    signal(SIGPIPE, SIG_IGN);
    make_temporary_folder_absolute();
    unsetenv("CDDP_RECORD"); /* for programs of users: this one traces by itself */
    signal(SIGXFSZ, SIG_IGN);
    int exit_code = CD_EXIT_USAGE;
    cddp_status status = cd_args_parse(&args, argc - 1, argv + 1, &err);
    if (status == CDDP_OK && cd_args_has(&args, CD_OPTION_plugin)) cd_leave_begin();
    if (only_reads((int)args.command)) cd_interrupt_at_once();
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
    cd_sim_ground_fini(&cli.ground);
    cd_args_fini(&args);
    cd_leave_end();
    return exit_code;
}
