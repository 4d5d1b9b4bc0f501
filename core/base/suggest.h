/* SPDX-License-Identifier: Apache-2.0 */
/* "Did you mean …": the nearest of several names. */
#pragma once
#include <stddef.h>

typedef struct cd_suggestion {
    const char *wanted;
    const char *best; /* NULL: nothing is near enough */
    size_t distance;
} cd_suggestion;

void cd_suggest_begin(cd_suggestion *suggestion, const char *wanted);
void cd_suggest_offer(cd_suggestion *suggestion, const char *name); /* borrows name */
