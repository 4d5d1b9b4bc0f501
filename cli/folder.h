/* SPDX-License-Identifier: Apache-2.0 */
/* Files named on a command line, and those of the folders that are named there.
**
** Lifetime   read → fini.
** Errors     a folder that cannot be read, or has none of these files; no memory.
*/
#pragma once
#include "cddp/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct cd_folder {
    char **paths; /* (count) */
    size_t count, capacity;
} cd_folder;

/* Is this file one of those that are looked for? */
typedef bool (*cd_folder_fn)(const char *path);

bool cd_folder_is(const char *path);
/* A file that is named is taken as it is; of a folder those for which `is_wanted`, by name. */
cddp_status cd_folder_read(cd_folder *folder, const char *const *operands, size_t count,
                           cd_folder_fn is_wanted, cddp_error *err) CDDP_MUST_CHECK;
void cd_folder_fini(cd_folder *folder); /* accepts a zeroed one */
