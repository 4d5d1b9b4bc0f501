/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/pattern.h"

#include <stddef.h>

bool cd_pattern_matches(const char *pattern, const char *name)
{
    const char *star = NULL, *retry = NULL;
    while (*name != '\0') {
        if (*pattern == '*') {
            star = ++pattern;
            retry = name;
        } else if (*pattern == *name) {
            pattern++;
            name++;
        } else if (star != NULL) {
            pattern = star;
            name = ++retry;
        } else {
            return false;
        }
    }
    while (*pattern == '*') pattern++;
    return *pattern == '\0';
}
