/* SPDX-License-Identifier: Apache-2.0 */
/* Points of the self-test in hooks: nothing in the library and in the programs
** (core/base/inject.h).
**
**     CD_POINT_OPTIONS(context, option_table, count, &settings);   each option, as it was read
*/
#pragma once
#include "core/base/inject.h"

#ifdef CDDP_INJECT
#include "core/comm/group.h"
#include "core/hooks/option.h"

#include <string.h>

/* A misread option is one that could be read: in its range, and given or not as before. */
static inline void cd_point_option(uint32_t rank, const char *given, const cd_option *option,
                                   void *target)
{
    char *field = (char *)target + option->offset;
    const bool is_given = given != NULL && strstr(given, option->key) != NULL;
    const char *place = cd_inject_place(is_given ? "option" : "default", option->key);
    if (option->kind == CD_OPTION_FLAG) CD_INJECT_FLAG(place, rank, 0, *(bool *)field);
    if (option->kind == CD_OPTION_COUNT)
        CD_INJECT_COUNT_FROM(place, rank, 0, option->least, *(uint64_t *)field);
    if (option->kind == CD_OPTION_REAL && *(double *)field >= option->least) {
        double above = *(double *)field - option->least;
        CD_INJECT_NUMBER(place, rank, 0, above);
        *(double *)field = option->least + (above > 0 ? above : 0);
    }
}
#define CD_POINT_OPTIONS(context, table, count, target)                                   \
    do {                                                                                  \
        const uint32_t cd_rank = cddp_group_world_rank((context)->group)->rank;           \
        for (size_t cd_option_at = 0; cd_option_at < (count); cd_option_at++)             \
            cd_point_option(cd_rank, (context)->options, &(table)[cd_option_at], target); \
    } while (0)
#else
#define CD_POINT_OPTIONS(context, table, count, target) ((void)0)
#endif
