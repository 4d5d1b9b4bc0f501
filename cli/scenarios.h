/* SPDX-License-Identifier: Apache-2.0 */
/* Which scenario files the operands of a command mean: files, directories and globs.
**
** Files come in the order of the operands; those of a directory or glob by name, so that the order
** does not depend on the file system.
*/
#pragma once
#include "cddp/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct cd_file_list {
    char **paths; /* (count) owned */
    bool *found;  /* (count) in a folder or by a glob, not named by itself */
    size_t count, capacity, found_capacity;
} cd_file_list;

/* Appends what an operand stands for. A directory without scenarios and a glob without matches are
** errors. */
cddp_status cd_file_list_add(cd_file_list *list, const char *operand,
                             cddp_error *err) CDDP_MUST_CHECK;
void cd_file_list_fini(cd_file_list *list); /* accepts a zeroed one */
