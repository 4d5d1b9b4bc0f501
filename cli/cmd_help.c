/* SPDX-License-Identifier: Apache-2.0 */
/* help and version: the tables of the command line, for people. */
#include "cddp/cddp.h"
#include "cli/command.h"
#include "cli/scenarios.h"
#include "cli/provenance.h"
#include "core/base/suggest.h"
#include "core/base/error.h"

#include <stdio.h>
#include <string.h>

#define HELP_WIDTH 100

static void print_option(cd_text *text, const cd_option_info *option)
{
    char name[64], letter[8] = "    ";
    if (option->letter != 0) snprintf(letter, sizeof letter, "-%c, ", option->letter);
    snprintf(name, sizeof name, "%s--%s%s%s", letter, option->name,
             option->argument != NULL ? " " : "", option->argument != NULL ? option->argument : "");
    cd_text_printf(text, "  %-26s  ", name);
    cd_text_wrap(text, option->help, 30, HELP_WIDTH);
}

static void print_options(cd_text *text, uint32_t command_bits, bool common)
{
    for (int i = 0; i < CD_OPTION_COUNT; i++)
        if ((cd_options[i].commands & command_bits) != 0 &&
            (cd_options[i].commands == CD_IN_ALL) == common)
            print_option(text, &cd_options[i]);
}

static void print_overview(cd_text *text)
{
    cd_text_style(text, CD_STYLE_BOLD, "cddp-verify");
    cd_text_printf(text, " %s: is this data-parallel training the training of one process?\n\n",
                   cddp_version());
    cd_text_push(text,
                 "usage: cddp-verify SCENARIO|DIR...        run scenarios and judge what happened\n"
                 "       cddp-verify COMMAND [ARGUMENT...]\n\ncommands:\n");
    size_t width = 0;
    for (int i = 0; i < CD_COMMAND_COUNT; i++)
        width = strlen(cd_commands[i].name) > width ? strlen(cd_commands[i].name) : width;
    for (int i = 0; i < CD_COMMAND_COUNT; i++)
        cd_text_printf(text, "  %-*s  %s\n", (int)width, cd_commands[i].name,
                       cd_commands[i].summary);
    cd_text_push(text, "\noptions of every command:\n");
    print_options(text, CD_IN_ALL, true);
    cd_text_push(text,
                 "\nexit codes:\n"
                 "  0  verified            3  something asked for is absent, such as a backend\n"
                 "  1  findings            4  inconclusive, or interrupted\n"
                 "  2  usage, scenario or store error\n\n"
                 "\"cddp-verify help COMMAND\" explains a command; \"cddp-verify man\" prints the "
                 "manual.\n");
}

void cd_help_print_command(cd_text *text, cd_command_id id)
{
    const cd_command_info *command = &cd_commands[id];
    cd_text_printf(text, "usage: cddp-verify %s [OPTION...]%s%s\n\n", command->name,
                   command->operands[0] != '\0' ? " " : "", command->operands);
    cd_text_wrap(text, command->summary, 0, HELP_WIDTH);
    if (command->more[0] != '\0') {
        cd_text_push(text, "\n");
        cd_text_wrap(text, command->more, 0, HELP_WIDTH);
    }
    cd_text_push(text, "\noptions:\n");
    print_options(text, 1u << id, false);
    print_options(text, 1u << id, true);
}

/* A scenario says so in its first lines; other programs have TOML files too. */
static bool is_scenario(const char *path)
{
    char bytes[2048];
    FILE *file = fopen(path, "rb");
    if (file == NULL) return false;
    bytes[fread(bytes, 1, sizeof bytes - 1, file)] = '\0';
    fclose(file);
    const char *at = strstr(bytes, "schema");
    return at != NULL && (at == bytes || at[-1] == '\n');
}

/* What lies here, and how to run it: whoever types the name alone wants to begin. */
static void print_folder(cd_text *text)
{
    static const char *const places[] = {"*.toml", "scenarios"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        cd_file_list list = {.count = 0};
        cddp_error none = CDDP_ERROR_INIT;
        size_t count = 0;
        if (cd_file_list_add(&list, places[i], &none) == CDDP_OK)
            for (size_t k = 0; k < list.count; k++) count += is_scenario(list.paths[k]);
        if (count > 0)
            cd_text_printf(text,
                           "\n%zu scenario%s here. This runs and judges %s, and says which %s not "
                           "verified:\n  cddp-verify run %s%s%s --keep-going\n",
                           count, count == 1 ? " lies" : "s lie", count == 1 ? "it" : "them",
                           count == 1 ? "is" : "are", i == 0 ? "'" : "", places[i],
                           i == 0 ? "'" : "");
        cd_file_list_fini(&list);
    }
}

/* `help COMMAND`, `COMMAND --help` and plain `--help` meet here. */
int cd_command_help(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_text text;
    cd_suggestion s;
    const char *name = cli->args->command != CD_COMMAND_help ? cd_commands[cli->args->command].name
                       : cli->args->operand_count > 0        ? cli->args->operands[0]
                                                             : NULL;
    cd_cli_text_begin(cli, &text);
    int exit_code = CD_EXIT_VERIFIED;
    int id = 0;
    while (name != NULL && id < CD_COMMAND_COUNT && strcmp(cd_commands[id].name, name) != 0) id++;
    if (name == NULL) {
        print_overview(&text);
        print_folder(&text);
    } else if (id < CD_COMMAND_COUNT) {
        cd_help_print_command(&text, (cd_command_id)id);
    } else {
        cd_suggest_begin(&s, name);
        for (int i = 0; i < CD_COMMAND_COUNT; i++) cd_suggest_offer(&s, cd_commands[i].name);
        (void)(s.best != NULL
                   ? cd_fail(&err, CDDP_E_ARG, "there is no command '%.60s'; did you mean '%s'?",
                             name, s.best)
                   : cd_fail(&err, CDDP_E_ARG, "there is no command '%.60s'", name));
        exit_code = cd_cli_fail(cli, &err);
    }
    exit_code = cd_cli_write(cli, &text, exit_code);
    cd_text_fini(&text);
    return exit_code;
}

int cd_command_version(cd_cli *cli)
{
    cd_text text;
    cd_text_init(&text, false);
    cd_text_printf(&text, "cddp-verify %s\n", cddp_version());
    if (cd_args_has(cli->args, CD_OPTION_verbose)) {
        cd_provenance p;
        cd_provenance_init(&p);
        cd_text_printf(&text, "compiler %s\nmachine  %s\n", p.compiler, p.machine);
    }
    int exit_code = cd_cli_write(cli, &text, CD_EXIT_VERIFIED);
    cd_text_fini(&text);
    return exit_code;
}
