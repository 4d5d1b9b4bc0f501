/* SPDX-License-Identifier: Apache-2.0 */
/* completion: scripts for shells, made from the same tables as --help. */
#include "cli/command.h"
#include "core/base/error.h"

#include <string.h>

static bool belongs(int option, int command)
{
    return (cd_options[option].commands & (1u << command)) != 0;
}

static void put_command_names(cd_text *text)
{
    for (int i = 0; i < CD_COMMAND_COUNT; i++)
        cd_text_printf(text, "%s%s", i > 0 ? " " : "", cd_commands[i].name);
}

static void put_bash(cd_text *text)
{
    cd_text_push(text, "# cddp-verify completion for bash:  source <(cddp-verify completion bash)\n"
                       "_cddp_verify() {\n"
                       "    local current=${COMP_WORDS[COMP_CWORD]} command=run word\n"
                       "    for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
                       "        case $word in\n            ");
    for (int i = 0; i < CD_COMMAND_COUNT; i++)
        cd_text_printf(text, "%s%s", i > 0 ? "|" : "", cd_commands[i].name);
    cd_text_push(text, ") command=$word; break ;;\n        esac\n    done\n    if [[ $current == "
                       "-* ]]; then\n        "
                       "case $command in\n");
    for (int i = 0; i < CD_COMMAND_COUNT; i++) {
        cd_text_printf(text, "            %s) COMPREPLY=($(compgen -W \"", cd_commands[i].name);
        for (int k = 0; k < CD_OPTION_COUNT; k++)
            if (belongs(k, i)) cd_text_printf(text, "--%s ", cd_options[k].name);
        cd_text_push(text, "\" -- \"$current\")) ;;\n");
    }
    cd_text_push(
        text,
        "        esac\n        return\n    fi\n    COMPREPLY=($(compgen -f -- \"$current\"))\n"
        "    if ((COMP_CWORD == 1)); then\n        COMPREPLY+=($(compgen -W \"");
    put_command_names(text);
    cd_text_push(
        text,
        "\" -- \"$current\"))\n    fi\n}\ncomplete -o filenames -F _cddp_verify cddp-verify\n");
}

/* One word of a single-quoted shell text, with the characters that _arguments and fish take as
** their own made plain. */
static void push_quoted(cd_text *text, const char *words)
{
    for (const char *at = words; *at != '\0'; at++) {
        if (*at == '\'')
            cd_text_push(text, "'\\''");
        else if (*at == '[' || *at == ']' || *at == ':')
            cd_text_push(text, " ");
        else
            cd_text_push_bytes(text, at, 1);
    }
}

static void put_zsh(cd_text *text)
{
    cd_text_push(
        text,
        "#compdef cddp-verify\n# cddp-verify completion for zsh:  cddp-verify completion zsh > "
        "\"${fpath[1]}/_cddp-verify\"\n"
        "_cddp_verify() {\n    local -a commands options\n    commands=(\n");
    for (int i = 0; i < CD_COMMAND_COUNT; i++) {
        cd_text_printf(text, "        '%s:", cd_commands[i].name);
        push_quoted(text, cd_commands[i].summary);
        cd_text_push(text, "'\n");
    }
    cd_text_push(text, "    )\n    case ${words[2]} in\n");
    for (int i = 0; i < CD_COMMAND_COUNT; i++) {
        cd_text_printf(text, "        %s) options=(\n", cd_commands[i].name);
        for (int k = 0; k < CD_OPTION_COUNT; k++) {
            if (!belongs(k, i)) continue;
            cd_text_printf(text, "            '--%s%s[", cd_options[k].name,
                           cd_options[k].argument != NULL ? "=" : "");
            push_quoted(text, cd_options[k].help);
            cd_text_push(text, "]");
            if (cd_options[k].argument != NULL)
                cd_text_printf(text, ":%s:%s", cd_options[k].argument,
                               strstr(cd_options[k].argument, "FILE") ? "_files" : "");
            cd_text_push(text, "'\n");
        }
        cd_text_push(text, "        ) ;;\n");
    }
    cd_text_push(
        text,
        "    esac\n    if ((CURRENT == 2)); then\n        _describe command commands\n    fi\n"
        "    _arguments \"${options[@]}\" '*:file:_files'\n}\n_cddp_verify \"$@\"\n");
}

static void put_fish(cd_text *text)
{
    cd_text_push(text,
                 "# cddp-verify completion for fish:  cddp-verify completion fish | source\n");
    for (int i = 0; i < CD_COMMAND_COUNT; i++) {
        cd_text_printf(text, "complete -c cddp-verify -n __fish_use_subcommand -a %s -d '",
                       cd_commands[i].name);
        push_quoted(text, cd_commands[i].summary);
        cd_text_push(text, "'\n");
    }
    for (int k = 0; k < CD_OPTION_COUNT; k++) {
        cd_text_printf(text, "complete -c cddp-verify -l %s", cd_options[k].name);
        if (cd_options[k].letter != 0) cd_text_printf(text, " -s %c", cd_options[k].letter);
        if (cd_options[k].argument != NULL) cd_text_push(text, " -r");
        if (cd_options[k].commands != CD_IN_ALL) {
            cd_text_push(text, " -n '__fish_seen_subcommand_from");
            for (int i = 0; i < CD_COMMAND_COUNT; i++)
                if (belongs(k, i)) cd_text_printf(text, " %s", cd_commands[i].name);
            cd_text_push(text, belongs(k, CD_COMMAND_run) ? "; or __fish_use_subcommand'" : "'");
        }
        cd_text_push(text, " -d '");
        push_quoted(text, cd_options[k].help);
        cd_text_push(text, "'\n");
    }
}

int cd_command_completion(cd_cli *cli)
{
    static const struct {
        const char *name;
        void (*put)(cd_text *text);
    } shells[] = {{"bash", put_bash}, {"zsh", put_zsh}, {"fish", put_fish}};
    cddp_error err = CDDP_ERROR_INIT;
    cd_text text;
    const char *shell = cli->args->operand_count == 1 ? cli->args->operands[0] : "";
    cd_text_init(&text, false);
    for (size_t i = 0; i < 3; i++)
        if (strcmp(shells[i].name, shell) == 0) shells[i].put(&text);
    int exit_code;
    if (text.length > 0)
        exit_code = cd_cli_write(cli, &text, CD_EXIT_VERIFIED);
    else
        exit_code =
            (cd_fail(&err, CDDP_E_ARG, "completion for which shell? one of bash, zsh, fish"),
             cd_cli_fail(cli, &err));
    cd_text_fini(&text);
    return exit_code;
}
