/* SPDX-License-Identifier: Apache-2.0 */
/* One line about a hook: compiled-in ones have it in core/hooks/hooks.def. */
#pragma once
#include "core/hooks/hook.h"

#include <string.h>

static inline const char *cd_hook_summary(const char *name)
{
    const cd_hook_row *row;
    for (size_t i = 0; (row = cd_hook_get_row(i)) != NULL; i++)
        if (strcmp(row->hook->name, name) == 0) return row->summary;
    return "from a plugin";
}
