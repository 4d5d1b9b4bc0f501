/* SPDX-License-Identifier: Apache-2.0 */
/* man: the manual pages, made from the same tables as --help. The build writes them to share/man:
** one of the program, and one of each command. */
#include "cddp/cddp.h"
#include "core/base/error.h"
#include "cli/command.h"

#include <string.h>

/* Text in roff: a hyphen that is meant as one, no line that begins with a dot or quote. */
static void push_roff(cd_text *text, const char *words)
{
    bool line_start = true;
    for (const char *at = words; *at != '\0'; at++) {
        if (line_start && (*at == '.' || *at == '\'')) cd_text_push(text, "\\&");
        line_start = *at == '\n';
        if (*at == '-')
            cd_text_push(text, "\\-");
        else if (*at == '\\')
            cd_text_push(text, "\\e");
        else
            cd_text_push_bytes(text, at, 1);
    }
}

static void put_option(cd_text *text, const cd_option_info *option)
{
    cd_text_push(text, ".TP\n.B ");
    if (option->letter != 0) cd_text_printf(text, "\\-%c, ", option->letter);
    cd_text_push(text, "\\-\\-");
    push_roff(text, option->name);
    if (option->argument != NULL) cd_text_push(text, " ");
    if (option->argument != NULL) push_roff(text, option->argument);
    cd_text_push(text, "\n");
    push_roff(text, option->help);
    const size_t length = strlen(option->help);
    cd_text_push(text, length > 0 && option->help[length - 1] == '.' ? "\n" : ".\n");
}

static void put_commands(cd_text *text)
{
    cd_text_push(text, ".SH COMMANDS\n");
    for (int i = 0; i < CD_COMMAND_COUNT; i++) {
        cd_text_printf(text, ".TP\n.B %s ", cd_commands[i].name);
        push_roff(text, cd_commands[i].operands);
        cd_text_push(text, "\n");
        push_roff(text, cd_commands[i].summary);
        cd_text_push(text, ".\n");
        push_roff(text, cd_commands[i].more);
        if (cd_commands[i].more[0] != '\0') cd_text_push(text, "\n");
    }
}

/* Each option once, with the commands that take it. */
static void put_options(cd_text *text)
{
    cd_text_push(text, ".SH OPTIONS\n");
    for (int i = 0; i < CD_OPTION_COUNT; i++) {
        put_option(text, &cd_options[i]);
        if (cd_options[i].commands == CD_IN_ALL) continue;
        cd_text_push(text, "Of");
        bool first = true;
        for (int k = 0; k < CD_COMMAND_COUNT; k++) {
            if ((cd_options[i].commands & (1u << k)) == 0) continue;
            cd_text_printf(text, "%s %s", first ? "" : ",", cd_commands[k].name);
            first = false;
        }
        cd_text_push(text, ".\n");
    }
}

static void put_exit_status(cd_text *text)
{
    cd_text_push(text, ".SH EXIT STATUS\n.TP\n.B 0\nverified\n.TP\n.B 1\nfindings\n.TP\n.B "
                       "2\nusage, scenario or store error\n"
                       ".TP\n.B 3\nsomething that was asked for is absent, such as a "
                       "backend\n.TP\n.B 4\ninconclusive, or "
                       "interrupted\n");
}

/* cddp-verify-run(1) */
static void put_command(cd_text *text, int id)
{
    const cd_command_info *command = &cd_commands[id];
    cd_text_push(text, ".TH CDDP\\-VERIFY\\-");
    for (const char *at = command->name; *at != '\0'; at++)
        cd_text_printf(text, "%s%c", *at == '-' ? "\\" : "",
                       *at >= 'a' && *at <= 'z' ? *at - 'a' + 'A' : *at);
    cd_text_printf(text, " 1 \"\" \"cddp %s\" \"User Commands\"\n.SH NAME\ncddp\\-verify\\-",
                   cddp_version());
    push_roff(text, command->name);
    cd_text_push(text, " \\- ");
    push_roff(text, command->summary);
    cd_text_push(text, "\n.SH SYNOPSIS\n.B cddp\\-verify ");
    push_roff(text, command->name);
    cd_text_push(text, "\n.RI [ OPTION... ]\n");
    if (command->operands[0] != '\0') {
        cd_text_push(text, ".I ");
        push_roff(text, command->operands);
        cd_text_push(text, "\n");
    }
    if (command->more[0] != '\0') {
        cd_text_push(text, ".SH DESCRIPTION\n");
        push_roff(text, command->more);
        cd_text_push(text, "\n");
    }
    cd_text_push(text, ".SH OPTIONS\n");
    for (int i = 0; i < CD_OPTION_COUNT; i++)
        if ((cd_options[i].commands & (1u << id)) != 0) put_option(text, &cd_options[i]);
    put_exit_status(text);
    cd_text_push(text, ".SH SEE ALSO\n.BR cddp\\-verify (1)\n");
}

static int print_command(cd_cli *cli, const char *name)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_text text;
    int id = 0;
    while (id < CD_COMMAND_COUNT && strcmp(cd_commands[id].name, name) != 0) id++;
    if (id == CD_COMMAND_COUNT) {
        (void)cd_fail(&err, CDDP_E_ARG, "there is no command '%.60s'", name);
        return cd_cli_fail(cli, &err);
    }
    cd_text_init(&text, false);
    put_command(&text, id);
    const int exit_code = cd_cli_write(cli, &text, CD_EXIT_VERIFIED);
    cd_text_fini(&text);
    return exit_code;
}

int cd_command_man(cd_cli *cli)
{
    cd_text text;
    if (cli->args->operand_count > 0) return print_command(cli, cli->args->operands[0]);
    cd_text_init(&text, false);
    cd_text_printf(&text, ".TH CDDP\\-VERIFY 1 \"\" \"cddp %s\" \"User Commands\"\n",
                   cddp_version());
    cd_text_push(&text, ".SH NAME\ncddp\\-verify \\- run data\\-parallel training scenarios and "
                        "judge them\n.SH SYNOPSIS\n"
                        ".B cddp\\-verify\n.I SCENARIO|DIR...\n.br\n.B cddp\\-verify\n.I "
                        "COMMAND\n.RI [ ARGUMENT... ]\n.SH "
                        "DESCRIPTION\n");
    push_roff(&text,
              "Runs a real DistributedDataParallel runtime on a scenario written in TOML, "
              "on a deterministic simulator or on a real transport. Compares the result with "
              "single-process training and checks invariants over every event. Names the "
              "culprit: rank, bucket, parameter, step, both sides shown.\n");
    put_commands(&text);
    put_options(&text);
    put_exit_status(&text);
    cd_text_push(
        &text,
        ".SH ENVIRONMENT\n.TP\n.B NO_COLOR\nWhen set and not empty, no colours are "
        "used unless \\-\\-color=always.\n"
        ".TP\n.B COLUMNS, PAGER\nThe width of texts, and what shows long ones; an empty PAGER: "
        "nothing does.\n"
        ".TP\n.B RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT\nSet by torchrun and "
        "the like: run joins their job; under srun its own "
        "variables say the same.\n"
        ".TP\n.B CDDP_STORE_SECRET\nWhat the ranks of such a job must know.\n"
        ".TP\n.B CDDP_HUB_HOST\nWhere ranks on other hosts reach rank 0, under "
        "mpirun and for file://.\n"
        ".TP\n.B CDDP_NODE\nhier: the node of this process; by default the name of the host.\n"
        ".SH FILES\nTrace stores are SQLite files and can be read with "
        "sqlite3(1).\n.SH SEE ALSO\n");
    for (int i = 0; i < CD_COMMAND_COUNT; i++) {
        cd_text_push(&text, ".BR cddp\\-verify\\-");
        push_roff(&text, cd_commands[i].name);
        cd_text_push(&text, " (1),\n");
    }
    cd_text_push(&text, ".BR sqlite3 (1)\n");
    int exit_code = cd_cli_write(cli, &text, CD_EXIT_VERIFIED);
    cd_text_fini(&text);
    return exit_code;
}
