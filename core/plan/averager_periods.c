/* SPDX-License-Identifier: Apache-2.0 */
/* Reading when a model averager averages: averager.levels and averager.periods.
**
** Not here: what contradicts what (plan_check_update.c), averaging (averaging.c).
*/
#include "core/plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t cd_plan_read_levels(const char *text, cd_plan_level levels[CD_PLAN_LEVELS_MAX])
{
    uint32_t count = 0;
    for (const char *at = text; count < CD_PLAN_LEVELS_MAX; at++) {
        char *end = NULL;
        const cd_plan_level *last = count > 0 ? &levels[count - 1] : NULL;
        const unsigned long long period = strtoull(at, &end, 10);
        if (end == at || *at == '-' || period == 0 ||
            (last != NULL && (period <= last->period || last->ranks == 0)))
            return 0;
        unsigned long ranks = 0;
        if (*end == ':') {
            at = end + 1;
            ranks = strtoul(at, &end, 10);
            if (end == at || *at == '-' || ranks == 0 || ranks > 4096 ||
                (last != NULL && (ranks < last->ranks || ranks % last->ranks != 0)))
                return 0;
        }
        levels[count++] = (cd_plan_level){period, (uint32_t)ranks};
        if (*end == '\0') return count;
        if (*end != '/') return 0;
        at = end;
    }
    return 0;
}

bool cd_plan_read_period(const char *text, char pattern[CD_PLAN_PATTERN_BYTES], uint64_t *period)
{
    const char *equals = strrchr(text, '=');
    char *end = NULL;
    if (equals == NULL || equals == text || (size_t)(equals - text) >= CD_PLAN_PATTERN_BYTES ||
        equals[1] < '0' || equals[1] > '9')
        return false;
    *period = strtoull(equals + 1, &end, 10);
    snprintf(pattern, CD_PLAN_PATTERN_BYTES, "%.*s", (int)(equals - text), text);
    return *end == '\0' && *period > 0 && *period <= 1000000000;
}
