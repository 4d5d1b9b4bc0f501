/* SPDX-License-Identifier: Apache-2.0 */
#include "core/check/call.h"

#include <stdio.h>
#include <string.h>

static const char of_hook[] = " of hook ";

/* Behind the last "in" or "from" before it. */
static const char *find_function(const char *text, const char *end)
{
    static const char *const words[] = {" in ", " from "};
    const char *found = NULL;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        for (const char *at = text; (at = strstr(at, words[i])) != NULL && at < end;) {
            at += strlen(words[i]);
            if (found == NULL || at > found) found = at;
        }
    return found;
}

void cd_call_take(const char *text, char *call, size_t call_bytes)
{
    static const char run[] = "run of ";
    const char *of = text != NULL ? strstr(text, of_hook) : NULL,
               *function = of != NULL ? find_function(text, of) : NULL;
    call[0] = '\0';
    if (function == NULL) return;
    const char *hook = of + sizeof of_hook - 1, *end = hook + strcspn(hook, " :;");
    if (strncmp(function, run, sizeof run - 1) == 0) function += sizeof run - 1;
    snprintf(call, call_bytes, "%.*s", (int)(end - function), function);
}
