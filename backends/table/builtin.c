/* SPDX-License-Identifier: Apache-2.0 */
/* Lookups in the generated table of backends. */
#include "backends/table/builtin.h"

#include <string.h>

const cd_backend_row *cd_backend_row_find(const char *name)
{
    for (const cd_backend_row *row = cd_backend_rows; row->name != NULL; row++)
        if (strcmp(row->name, name) == 0) return row;
    return NULL;
}

const cd_backend_row *cd_backend_row_of_alias(const char *alias,
                                              bool (*is_set)(const char *variable))
{
    const cd_backend_row *first = NULL, *built = NULL;
    for (const cd_backend_row *row = cd_backend_rows; row->name != NULL; row++) {
        if (row->alias[0] == '\0' || strcmp(row->alias, alias) != 0) continue;
        if (first == NULL) first = row;
        if (row->absent[0] != '\0') continue;
        if (row->job[0] != '\0' && is_set(row->job)) return row;
        if (built == NULL) built = row;
    }
    return built != NULL ? built : first;
}
