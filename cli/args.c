/* SPDX-License-Identifier: Apache-2.0 */
/* The command line. Long options take "--name value" or "--name=value", short ones "-n value" or
** "-nvalue", flags may
*** be bundled ("-kv"), "--" ends the options, and options may stand before or after operands. */
#define _POSIX_C_SOURCE 200809L
#include "cli/args.h"

#include "core/base/output.h"
#include "core/base/suggest.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/real.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TIME_NS_MAX 9e18

const cd_command_info cd_commands[CD_COMMAND_COUNT] = {
#define CD_COMMAND(id, name, operands, summary, more) {name, operands, summary, more},
#include "cli/commands.def"
#undef CD_COMMAND
};

const cd_option_info cd_options[CD_OPTION_COUNT] = {
#define CD_OPTION(id, name, letter, argument, commands, help) \
    {name, letter, argument, commands, help},
#include "cli/options.def"
#undef CD_OPTION
};

typedef struct reader {
    cd_args *args;
    char **argv;
    int count, at;
} reader;

static void add(cd_args *args, int option, const char *value)
{
    args->given[args->given_count++] = (cd_given){(cd_option_id)option, value};
}

/* The value of an option: the rest of the same word, or the next one. */
static cddp_status take_value(reader *r, int option, const char *attached, cddp_error *err)
{
    const cd_option_info *info = &cd_options[option];
    if (attached == NULL && r->at >= r->count)
        return cd_fail(err, CDDP_E_ARG, "--%s needs a value: --%s %s", info->name, info->name,
                       info->argument);
    add(r->args, option, attached != NULL ? attached : r->argv[r->at++]);
    return CDDP_OK;
}

/* What `new` makes may be said as an option as well: new --hang. */
static bool is_template(const reader *r, const char *name)
{
    static const char *const templates[] = {"scenario",      "hang",    "job",          "hook",
                                            "stateful-hook", "backend", "wrong-backend"};
    if (r->args->operand_count == 0 || strcmp(r->args->operands[0], "new") != 0) return false;
    for (size_t i = 0; i < sizeof templates / sizeof templates[0]; i++)
        if (strcmp(templates[i], name) == 0) return true;
    return false;
}

static cddp_status unknown_option(const char *word, const char *name, cddp_error *err)
{
    cd_suggestion s;
    cd_suggest_begin(&s, name);
    for (int i = 0; i < CD_OPTION_COUNT; i++) cd_suggest_offer(&s, cd_options[i].name);
    if (s.best == NULL) return cd_fail(err, CDDP_E_ARG, "unknown option '%.100s'", word);
    return cd_fail(err, CDDP_E_ARG, "unknown option '%.100s'; did you mean '--%s'?", word, s.best);
}

static cddp_status read_long(reader *r, const char *word, cddp_error *err)
{
    char name[64];
    size_t length = strcspn(word + 2, "=");
    const char *attached = word[2 + length] == '=' ? word + 2 + length + 1 : NULL;
    if (length >= sizeof name) return cd_fail(err, CDDP_E_ARG, "unknown option '%.100s'", word);
    memcpy(name, word + 2, length);
    name[length] = '\0';
    if (attached == NULL && is_template(r, name)) {
        r->args->operands[r->args->operand_count++] = word + 2;
        return CDDP_OK;
    }
    for (int i = 0; i < CD_OPTION_COUNT; i++) {
        if (strcmp(cd_options[i].name, name) != 0) continue;
        if (cd_options[i].argument != NULL) return CD_PASS(take_value(r, i, attached, err));
        if (attached != NULL) return cd_fail(err, CDDP_E_ARG, "--%s takes no value", name);
        add(r->args, i, "");
        return CDDP_OK;
    }
    return CD_PASS(unknown_option(word, name, err));
}

static cddp_status read_short(reader *r, const char *word, cddp_error *err)
{
    for (const char *at = word + 1; *at != '\0'; at++) {
        int option = 0;
        while (option < CD_OPTION_COUNT && cd_options[option].letter != *at) option++;
        if (option == CD_OPTION_COUNT)
            return cd_fail(err, CDDP_E_ARG, "unknown option '-%c' in '%.100s'", *at, word);
        if (cd_options[option].argument != NULL)
            return CD_PASS(take_value(r, option, at[1] != '\0' ? at + 1 : NULL, err));
        add(r->args, option, "");
    }
    return CDDP_OK;
}

static cddp_status read_words(reader *r, cddp_error *err)
{
    bool options_over = false;
    while (r->at < r->count) {
        const char *word = r->argv[r->at++];
        if (options_over || word[0] != '-' || word[1] == '\0')
            r->args->operands[r->args->operand_count++] = word;
        else if (strcmp(word, "--") == 0)
            options_over = true;
        else if (word[1] == '-')
            CD_TRY(read_long(r, word, err));
        else
            CD_TRY(read_short(r, word, err));
    }
    return CDDP_OK;
}

/* Something that exists, or what a person would write only for a file. */
static bool looks_like_path(const char *word)
{
    struct stat info;
    size_t length = strlen(word);
    if (stat(word, &info) == 0) return true;
    return strpbrk(word, "/.*?[") != NULL ||
           (length > 5 && strcmp(word + length - 5, ".toml") == 0);
}

/* Finds the command and takes its word off the operands. */
static cddp_status find_command(cd_args *args, cddp_error *err)
{
    cd_suggestion s;
    args->command = args->operand_count == 0 ? CD_COMMAND_help : CD_COMMAND_run;
    if (cd_args_has(args, CD_OPTION_version)) args->command = CD_COMMAND_version;
    if (args->operand_count == 0) return CDDP_OK;
    cd_suggest_begin(&s, args->operands[0]);
    for (int i = 0; i < CD_COMMAND_COUNT; i++) {
        cd_suggest_offer(&s, cd_commands[i].name);
        if (strcmp(cd_commands[i].name, args->operands[0]) != 0) continue;
        args->command = (cd_command_id)i;
        memmove(args->operands, args->operands + 1, --args->operand_count * sizeof *args->operands);
        return CDDP_OK;
    }
    if (looks_like_path(args->operands[0])) return CDDP_OK;
    if (s.best != NULL)
        return cd_fail(err, CDDP_E_ARG, "unknown command '%.100s'; did you mean '%s'?",
                       args->operands[0], s.best);
    return cd_fail(err, CDDP_E_ARG,
                   "'%.100s' is neither a command nor a scenario file; \"cddp-verify help\" lists "
                   "the commands",
                   args->operands[0]);
}

static cddp_status check_options(const cd_args *args, cddp_error *err)
{
    for (size_t i = 0; i < args->given_count; i++) {
        const cd_option_info *info = &cd_options[args->given[i].option];
        const bool is_known = (info->commands & (1u << args->command)) != 0;
        if (!is_known)
            return cd_fail(err, CDDP_E_ARG,
                           "--%s means nothing to '%s'; \"cddp-verify help %s\" lists its options",
                           info->name, cd_commands[args->command].name,
                           cd_commands[args->command].name);
    }
    return CDDP_OK;
}

/* Words that the command would not look at are a mistake, and so are results that would take the
** place of what it reads. */
static cddp_status check_operands(const cd_args *args, cddp_error *err)
{
    static const cd_option_id written[] = {CD_OPTION_output, CD_OPTION_certificate, CD_OPTION_csv,
                                           CD_OPTION_svg};
    const cd_command_info *command = &cd_commands[args->command];
    if (cd_args_has(args, CD_OPTION_help) || cd_args_has(args, CD_OPTION_version)) return CDDP_OK;
    if (args->operand_count > 0 && command->operands[0] == '\0')
        return cd_fail(err, CDDP_E_ARG, "'%s' takes nothing behind it, not '%.100s'", command->name,
                       args->operands[0]);
    if (args->operand_count > 1 && args->command == CD_COMMAND_help)
        return cd_fail(err, CDDP_E_ARG, "'help' explains one command, not '%.100s' too",
                       args->operands[1]);
    if (args->operand_count > 1 && args->command == CD_COMMAND_list &&
        strcmp(args->operands[0], "scenarios") != 0 && strcmp(args->operands[0], "keys") != 0)
        return cd_fail(err, CDDP_E_ARG, "'list %.60s' takes nothing behind it, not '%.100s'",
                       args->operands[0], args->operands[1]);
    for (size_t i = 0; i < sizeof written / sizeof written[0]; i++) {
        const char *path = cd_args_text(args, written[i], NULL);
        for (size_t k = 0; path != NULL && k < args->operand_count; k++)
            CD_TRY(cd_output_check_input(path, args->operands[k], err));
    }
    return CDDP_OK;
}

static cddp_status parse(cd_args *args, int count, char **argv, cddp_error *err)
{
    reader r = {args, argv, count, 0};
    CD_TRY(read_words(&r, err));
    CD_TRY(find_command(args, err));
    CD_TRY(check_options(args, err));
    CD_TRY(check_operands(args, err));
    return CDDP_OK;
}

cddp_status cd_args_parse(cd_args *args, int count, char **argv, cddp_error *err)
{
    /* A word of bundled flags gives more options than words, but no more than it has letters. */
    size_t capacity = 1;
    for (int i = 0; i < count; i++) capacity += strlen(argv[i]) + 1;
    *args = (cd_args){.capacity = capacity};
    args->given = cd_allocate_array(NULL, capacity, sizeof *args->given);
    args->operands = cd_allocate_array(NULL, capacity, sizeof *args->operands);
    cddp_status status = args->given == NULL || args->operands == NULL
                             ? cd_fail_memory(err, "the command line")
                             : parse(args, count, argv, err);
    if (status != CDDP_OK) cd_args_fini(args);
    return status;
}

void cd_args_fini(cd_args *args)
{
    cd_release(NULL, args->given, args->capacity * sizeof *args->given);
    cd_release(NULL, args->operands, args->capacity * sizeof *args->operands);
    *args = (cd_args){.given = NULL};
}

bool cd_args_has(const cd_args *args, cd_option_id option)
{
    return cd_args_value(args, option, 0) != NULL;
}

const char *cd_args_value(const cd_args *args, cd_option_id option, size_t index)
{
    for (size_t i = 0; i < args->given_count; i++)
        if (args->given[i].option == option && index-- == 0) return args->given[i].value;
    return NULL;
}

const char *cd_args_text(const cd_args *args, cd_option_id option, const char *otherwise)
{
    const char *value = otherwise, *next;
    for (size_t i = 0; (next = cd_args_value(args, option, i)) != NULL; i++) value = next;
    return value;
}

cddp_status cd_args_number(const cd_args *args, cd_option_id option, uint64_t *value,
                           cddp_error *err)
{
    const char *text = cd_args_text(args, option, NULL);
    char *end = NULL;
    if (text == NULL) return CDDP_OK;
    const bool is_hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X'),
               is_negative = text[0] == '-';
    const char *digits = text + (is_hex ? 2 : is_negative ? 1 : 0), *wrong = NULL;
    errno = 0;
    unsigned long long number = strtoull(digits, &end, is_hex ? 16 : 10);
    if (end == digits || *end != '\0' || strpbrk(digits, "-+ ") != NULL)
        wrong = "is not a whole number";
    else if (is_negative)
        wrong = "is negative";
    else if (errno != 0)
        wrong = "is too large";
    if (wrong != NULL)
        return cd_fail(err, CDDP_E_ARG, "--%s: '%.60s' %s", cd_options[option].name, text, wrong);
    *value = number;
    return CDDP_OK;
}

cddp_status cd_args_run_number(const cd_args *args, uint64_t *number, cddp_error *err)
{
    CD_TRY(cd_args_number(args, CD_OPTION_run_number, number, err));
    if (cd_args_has(args, CD_OPTION_run_number) && *number == 0)
        return cd_fail(err, CDDP_E_ARG, "--run 0: the runs of a store are counted from 1");
    return CDDP_OK;
}

cddp_status cd_args_choice(const cd_args *args, cd_option_id option, const char *const *words,
                           int *choice, cddp_error *err)
{
    char list[160] = "";
    const char *text = cd_args_text(args, option, NULL);
    for (int i = 0; words[i] != NULL; i++) {
        if (text == NULL || strcmp(words[i], text) == 0) {
            *choice = i;
            return CDDP_OK;
        }
        if (i > 0)
            strncat(list, words[i + 1] == NULL ? " or " : ", ", sizeof list - strlen(list) - 1);
        strncat(list, words[i], sizeof list - strlen(list) - 1);
    }
    return cd_fail(err, CDDP_E_ARG, "--%s: '%.60s' is not one of %s", cd_options[option].name, text,
                   list);
}

cddp_status cd_args_budget(const cd_args *args, cd_option_id option, const char *things,
                           uint64_t *count, uint64_t *time_ns, cddp_error *err)
{
    const char *text = cd_args_text(args, option, NULL);
    if (text == NULL) return CDDP_OK;
    char *end = NULL;
    uint64_t n = strtoull(text, &end, 10);
    bool ok =
        text[0] >= '0' && text[0] <= '9' && n > 0 && n < 1000000000000u / (*end == '\0' ? 1 : 1000);
    if (ok && *end == '\0')
        *count = n;
    else if (ok && strcmp(end, "s") == 0)
        *time_ns = n * 1000000000u;
    else if (ok && strcmp(end, "m") == 0)
        *time_ns = n * 60000000000u;
    else
        return cd_fail(err, CDDP_E_ARG,
                       "--%s %s is neither a number of %s nor a time such as 30s or 5m",
                       cd_options[option].name, text, things);
    return CDDP_OK;
}

cddp_status cd_args_time(const cd_args *args, cd_option_id option, uint64_t *time_ns,
                         cddp_error *err)
{
    static const struct {
        const char *unit;
        double ns;
    } units[] = {{"", 1e9}, {"ms", 1e6}, {"s", 1e9}, {"m", 6e10}};
    const char *text = cd_args_text(args, option, NULL);
    if (text == NULL) return CDDP_OK;
    char *end = NULL;
    const double value = cd_real_parse(text, &end);
    const bool is_number = end != text && text[0] >= '0' && text[0] <= '9' && value > 0;
    for (size_t i = 0; is_number && i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(end, units[i].unit) != 0 || value * units[i].ns < 1) continue;
        if (value * units[i].ns >= TIME_NS_MAX)
            return cd_fail(err, CDDP_E_ARG, "--%s: that is too long", cd_options[option].name);
        *time_ns = (uint64_t)(value * units[i].ns);
        return CDDP_OK;
    }
    return cd_fail(err, CDDP_E_ARG,
                   "--%s %s is no time above zero: give seconds, or such as 500ms, 0.5s or 5m",
                   cd_options[option].name, text);
}
