/* SPDX-License-Identifier: Apache-2.0 */
/* Lookup in the generated table of backends. */
#include "backends/builtin.h"

#include <string.h>

const cd_backend_row *cd_backend_row_find(const char *name)
{
    for (const cd_backend_row *row = cd_backend_rows; row->name != NULL; row++)
        if (strcmp(row->name, name) == 0) return row;
    return NULL;
}
