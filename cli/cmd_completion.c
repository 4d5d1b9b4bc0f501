/* SPDX-License-Identifier: Apache-2.0 */
/* completion: scripts for shells, made from the same tables as --help. */
#include "cli/command.h"
#include "core/base/error.h"

#include <stdio.h>
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

/* What comes behind a command or an option. Scripts ask the program itself, so that they know what
** this version has. A kind is a word of `list`, or one of the scripts' own: "key=", "format",
** "command", "scenario", "file". */
typedef struct operand {
    const char *of; /* a command, or an option with its dashes */
    const char *kinds;
} operand;

static const operand operands[] = {{"run", "scenario"},
                                   {"explore", "scenario"},
                                   {"prove", "scenario"},
                                   {"sweep", "scenario"},
                                   {"shrink", "scenario"},
                                   {"replay", "scenario"},
                                   {"hook-conformance", "hooks"},
                                   {"backend-conformance", "backends"},
                                   {"explain", "checks events keys models hooks backends"},
                                   {"list", "list"},
                                   {"help", "command"},
                                   {"man", "command"},
                                   {"new", "new"},
                                   {"completion", "shell"},
                                   {"--set", "key="},
                                   {"-s", "key="},
                                   {"--vary", "key="},
                                   {"--backend", "backends"},
                                   {"--inner", "hooks"},
                                   {"--event", "events"},
                                   {"--format", "format"},
                                   {"-f", "format"},
                                   {"--color", "color"},
                                   {"--strategy", "strategy"},
                                   {"--level", "level"},
                                   {"--layouts", "layouts"},
                                   {"--by", "by"}};

/* Words that no registry has. */
static const operand plain_words[] = {
    {"list", "hooks backends checks scenarios keys events models optimizers faults marks choosers "
             "algorithms links schema"},
    {"new", "scenario hang job hook stateful-hook backend wrong-backend"},
    {"shell", "bash zsh fish"},
    {"format", "text json junit sarif html perfetto svg csv jsonl"},
    {"color", "auto always never"},
    {"strategy", "random pct exhaustive cover"},
    {"level", "order digest payload"},
    {"layouts", "all alike forms"},
    {"by", "step exposed bytes memory"}};

/* Keys whose values a registry has. */
static const operand values[] = {{"model.name", "models"},
                                 {"hook.name", "hooks"},
                                 {"hook.inner", "hooks"},
                                 {"ddp.comm_hook", "hooks"},
                                 {"world.backend", "backends"},
                                 {"optimizer.0.name", "optimizers"},
                                 {"network.algorithm", "algorithms"},
                                 {"network.link", "links"},
                                 {"schedule.chooser", "choosers"}};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static void put_case(cd_text *text, const operand *rows, size_t count, bool is_quoted)
{
    for (size_t i = 0; i < count; i++)
        cd_text_printf(text, is_quoted ? "        %s) echo '%s' ;;\n" : "        %s) echo %s ;;\n",
                       rows[i].of, rows[i].kinds);
}

/* Functions that bash and zsh share: what may stand behind a word, and the words of a kind. */
static void put_functions(cd_text *text)
{
    cd_text_push(text, "_cddp_verify_kinds() {\n    case $1 in\n");
    put_case(text, operands, COUNT(operands), true);
    cd_text_push(text, "        *) echo file ;;\n    esac\n}\n"
                       "_cddp_verify_value() {\n    case $1 in\n");
    put_case(text, values, COUNT(values), false);
    cd_text_push(text,
                 "    esac\n}\n_cddp_verify_words() {\n    case $1 in\n        command) echo '");
    put_command_names(text);
    cd_text_push(text, "' ;;\n");
    put_case(text, plain_words, COUNT(plain_words), true);
    cd_text_push(
        text,
        "        scenario) cddp-verify list scenarios 2>/dev/null | awk '/^[^ ]/ {print $1}' ;;\n"
        "        key=) cddp-verify list keys 2>/dev/null | awk '/^[^ ]/ {print $1 \"=\"}' ;;\n"
        "        file | '') ;;\n"
        "        *) cddp-verify list \"$1\" 2>/dev/null | awk '/^[^ ]/ {print $1}' ;;\n"
        "    esac\n}\n");
}

static void put_bash(cd_text *text)
{
    cd_text_push(text,
                 "# cddp-verify completion for bash:  source <(cddp-verify completion bash)\n");
    put_functions(text);
    cd_text_push(text,
                 "_cddp_verify() {\n"
                 "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} "
                 "command=run word kind list=\n"
                 "    for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
                 "        case $word in\n            ");
    for (int i = 0; i < CD_COMMAND_COUNT; i++)
        cd_text_printf(text, "%s%s", i > 0 ? "|" : "", cd_commands[i].name);
    cd_text_push(text, ") command=$word; break ;;\n        esac\n    done\n"
                       "    if [[ $current == -* ]]; then\n        case $command in\n");
    for (int i = 0; i < CD_COMMAND_COUNT; i++) {
        cd_text_printf(text, "            %s) COMPREPLY=($(compgen -W \"", cd_commands[i].name);
        for (int k = 0; k < CD_OPTION_COUNT; k++)
            if (belongs(k, i)) cd_text_printf(text, "--%s ", cd_options[k].name);
        cd_text_push(text, "\" -- \"$current\")) ;;\n");
    }
    cd_text_push(
        text,
        "        esac\n        return\n    fi\n"
        "    # bash takes KEY=VALUE apart\n"
        "    if [[ $current == = ]]; then\n        current= word=$previous\n"
        "    elif [[ $previous == = ]]; then\n        word=${COMP_WORDS[COMP_CWORD-2]}\n"
        "    else\n        word=\n    fi\n"
        "    if [[ $word == --* ]]; then\n        previous=$word\n"
        "    elif [[ -n $word ]]; then\n"
        "        list=$(_cddp_verify_words \"$(_cddp_verify_value \"$word\")\")\n"
        "        COMPREPLY=($(compgen -W \"$list\" -- \"$current\"))\n        return\n    fi\n"
        "    [[ $previous == -* ]] || previous=$command\n"
        "    for kind in $(_cddp_verify_kinds \"$previous\"); do\n"
        "        list+=\" $(_cddp_verify_words \"$kind\")\"\n"
        "        [[ $kind == key= ]] && compopt -o nospace 2>/dev/null\n    done\n"
        "    COMPREPLY=($(compgen -W \"$list\" -- \"$current\"))\n"
        "    case $kind in file | scenario) COMPREPLY+=($(compgen -f -- \"$current\")) ;; esac\n"
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
        "\"${fpath[1]}/_cddp-verify\"\n");
    put_functions(text);
    cd_text_push(
        text, "_cddp_verify_behind() {\n    local kind key=${PREFIX%%=*}\n    local -a list\n"
              "    if [[ $PREFIX == *=* && $1 == (--set|--vary) ]]; then\n        compset -P '*='\n"
              "        list=(${(f)\"$(_cddp_verify_words $(_cddp_verify_value $key))\"})\n"
              "        compadd -a list\n        return\n    fi\n"
              "    for kind in ${=\"$(_cddp_verify_kinds $1)\"}; do\n"
              "        list=(${=\"$(_cddp_verify_words $kind)\"})\n"
              "        case $kind in\n            key=) compadd -S '' -a list ;;\n"
              "            *) compadd -a list ;;\n        esac\n"
              "        [[ $kind == (file|scenario) ]] && _files\n    done\n}\n"
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
                cd_text_printf(text, ":%s: _cddp_verify_behind --%s", cd_options[k].argument,
                               cd_options[k].name);
            cd_text_push(text, "'\n");
        }
        cd_text_push(text, "        ) ;;\n");
    }
    cd_text_push(
        text,
        "    esac\n    if ((CURRENT == 2)); then\n        _describe command commands\n    fi\n"
        "    _arguments \"${options[@]}\" \"*:operand: _cddp_verify_behind "
        "${words[2]}\"\n}\n_cddp_verify "
        "\"$@\"\n");
}

/* The words behind a row, as a command of fish. */
static void put_fish_words(cd_text *text, const char *kinds)
{
    cd_text_push(text, "'(");
    for (const char *at = kinds; *at != '\0'; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        cd_text_printf(text, "__cddp_verify_words %.*s; ", (int)length, at);
        at += length;
    }
    cd_text_push(text, ")'");
}

static void put_fish_functions(cd_text *text)
{
    cd_text_push(text, "function __cddp_verify_words\n    switch $argv[1]\n        case command\n"
                       "            string split ' ' -- '");
    put_command_names(text);
    cd_text_push(text, "'\n");
    for (size_t i = 0; i < COUNT(plain_words); i++)
        cd_text_printf(text, "        case %s\n            string split ' ' -- '%s'\n",
                       plain_words[i].of, plain_words[i].kinds);
    cd_text_push(
        text,
        "        case scenario\n            cddp-verify list scenarios 2>/dev/null | string match "
        "-r "
        "'^\\S+'\n            __fish_complete_suffix .toml\n"
        "        case 'key='\n            cddp-verify list keys 2>/dev/null | string match -r "
        "'^\\S+' | string replace -r '$' '='\n");
    for (size_t i = 0; i < COUNT(values); i++)
        cd_text_printf(text, "            __cddp_verify_words %s | string replace -r '^' '%s='\n",
                       values[i].kinds, values[i].of);
    cd_text_push(
        text,
        "        case '*'\n            cddp-verify list $argv[1] 2>/dev/null | string match -r "
        "'^\\S+'\n    end\nend\n");
}

static const char *kinds_of(const char *name, const char *dashes)
{
    char whole[64];
    snprintf(whole, sizeof whole, "%s%s", dashes, name);
    for (size_t i = 0; i < COUNT(operands); i++)
        if (strcmp(operands[i].of, whole) == 0) return operands[i].kinds;
    return NULL;
}

static void put_fish(cd_text *text)
{
    cd_text_push(text,
                 "# cddp-verify completion for fish:  cddp-verify completion fish | source\n");
    put_fish_functions(text);
    for (int i = 0; i < CD_COMMAND_COUNT; i++) {
        const char *kinds = kinds_of(cd_commands[i].name, "");
        if (kinds == NULL) continue;
        cd_text_printf(text, "complete -c cddp-verify -n '__fish_seen_subcommand_from %s' -a ",
                       cd_commands[i].name);
        put_fish_words(text, kinds);
        cd_text_push(text, "\n");
    }
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
        const char *kinds = kinds_of(cd_options[k].name, "--");
        if (kinds != NULL) cd_text_push(text, " -a ");
        if (kinds != NULL) put_fish_words(text, kinds);
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
