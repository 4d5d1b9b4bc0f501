/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of a command, and the commands.
**
** Lifetime   everything is borrowed for the call.
** Errors     a command returns the exit code; an error it cannot word better goes through
**            cd_cli_fail.
*/
#pragma once
#include "cddp/registry.h"
#include "cli/args.h"
#include "core/base/text.h"
#include "sim/ground.h"
#include "verify/worlds/origin.h"

/* The exit codes; the first five are also cddp_outcome. */
typedef enum cd_exit {
    CD_EXIT_VERIFIED = 0,
    CD_EXIT_FINDINGS = 1,
    CD_EXIT_USAGE = 2,       /* bad arguments, scenario, store or plugin */
    CD_EXIT_ENVIRONMENT = 3, /* something that was asked for is not there */
    CD_EXIT_INCONCLUSIVE = 4 /* also: interrupted */
} cd_exit;

typedef struct cd_plugins cd_plugins;

typedef struct cd_cli {
    const cd_args *args;
    const char *program; /* as it was called, for finding modules */
    cddp_registry *registry;
    cd_plugins *plugins;
    cd_origin origin;
    cd_sim_ground ground;      /* of every simulated world that a session runs */
    bool color_out, color_err; /* whether to style what goes there */
    bool progress;             /* standard error is a terminal that can wipe a line */
    /* of the terminals; 0: there is none, or it does not say */
    size_t columns_out, columns_err, rows_out;
    const char *pager; /* for long texts of help, explain and list; NULL: none */
} cd_cli;

/* Prints "cddp-verify: message" and returns the exit code that belongs to the status. */
int cd_cli_fail(const cd_cli *cli, const cddp_error *err);
/* The same when standard output takes no text, for this reason (errno): the environment's fault. */
int cd_cli_fail_output(const cd_cli *cli, int number);
/* A text for standard output: with its colours and its width. */
void cd_cli_text_begin(const cd_cli *cli, cd_text *text);
/* As "help COMMAND" has it. */
void cd_help_print_command(cd_text *text, cd_command_id id);
/* Writes a text to standard output; a closed pipe ends quietly, any other failure is reported. */
int cd_cli_write(const cd_cli *cli, const cd_text *text, int exit_code);

#define CD_COMMAND(id, name, operands, summary, more) int cd_command_##id(cd_cli *cli);
#include "cli/commands.def"
#undef CD_COMMAND
