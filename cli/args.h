/* SPDX-License-Identifier: Apache-2.0 */
/* The command line, read through one table: commands.def and options.def.
**
** Lifetime   the arguments borrow argv.
** Errors     one sentence, with the nearest known name where there is one.
*/
#pragma once
#include "cddp/status.h"

typedef enum cd_command_id {
#define CD_COMMAND(id, name, operands, summary, more) CD_COMMAND_##id,
#include "cli/commands.def"
#undef CD_COMMAND
    CD_COMMAND_COUNT
} cd_command_id;

#define CD_IN(command) (1u << CD_COMMAND_##command)
#define CD_IN_ALL ((1u << CD_COMMAND_COUNT) - 1)

typedef enum cd_option_id {
#define CD_OPTION(id, name, letter, argument, commands, help) CD_OPTION_##id,
#include "cli/options.def"
#undef CD_OPTION
    CD_OPTION_COUNT
} cd_option_id;

typedef struct cd_command_info {
    const char *name, *operands, *summary, *more;
} cd_command_info;

typedef struct cd_option_info {
    const char *name;
    char letter;          /* 0: none */
    const char *argument; /* NULL: a flag */
    uint32_t commands;
    const char *help;
} cd_option_info;

extern const cd_command_info cd_commands[CD_COMMAND_COUNT];
extern const cd_option_info cd_options[CD_OPTION_COUNT];

typedef struct cd_given {
    cd_option_id option;
    const char *value; /* "" for flags */
} cd_given;

typedef struct cd_args {
    cd_command_id command;
    cd_given *given; /* (given_count) in the order of the command line */
    size_t given_count;
    const char **operands; /* (operand_count) */
    size_t operand_count;
    size_t capacity; /* of both arrays */
} cd_args;

/* argv without the program's name. A first operand that names no command but looks like a path
** means "run". */
cddp_status cd_args_parse(cd_args *args, int count, char **argv, cddp_error *err) CDDP_MUST_CHECK;
void cd_args_fini(cd_args *args); /* accepts a zeroed one */

bool cd_args_has(const cd_args *args, cd_option_id option);
/* the last one given */
const char *cd_args_text(const cd_args *args, cd_option_id option, const char *otherwise);
/* The i-th value given for a repeated option; NULL past the end. */
const char *cd_args_value(const cd_args *args, cd_option_id option, size_t index);
/* Keeps *value when the option was not given. Decimal or 0x. */
cddp_status cd_args_number(const cd_args *args, cd_option_id option, uint64_t *value,
                           cddp_error *err) CDDP_MUST_CHECK;
/* --run: counted from 1; keeps *number when it was not given. */
cddp_status cd_args_run_number(const cd_args *args, uint64_t *number,
                               cddp_error *err) CDDP_MUST_CHECK;
/* The index of the option's value among words, which ends with NULL; 0 when it was not given. */
cddp_status cd_args_choice(const cd_args *args, cd_option_id option, const char *const *words,
                           int *choice, cddp_error *err) CDDP_MUST_CHECK;
/* "100000", "30s" or "5m": so many things, or so long. Keeps both when the option was not given. */
cddp_status cd_args_budget(const cd_args *args, cd_option_id option, const char *things,
                           uint64_t *count, uint64_t *time_ns, cddp_error *err) CDDP_MUST_CHECK;
/* "500ms", "0.5s", "5m", or a number of seconds. Keeps *time_ns when the option was not given. */
cddp_status cd_args_time(const cd_args *args, cd_option_id option, uint64_t *time_ns,
                         cddp_error *err) CDDP_MUST_CHECK;
