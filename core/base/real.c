/* SPDX-License-Identifier: Apache-2.0 */
/* The C library reads and writes numbers with the locale's decimal point. It is put in on the way
** there, and taken out on the way back: so rounding stays the C library's. */
#include "core/base/real.h"
#include "core/base/format.h"

#include <locale.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST 1100 /* the digits of every double, and more than anybody writes */

static const char *locale_point(void)
{
    const struct lconv *conventions = localeconv();
    return conventions != NULL && conventions->decimal_point[0] != '\0' ? conventions->decimal_point
                                                                        : ".";
}

double cd_real_parse(const char *text, char **end)
{
    char *ignored, **stop = end != NULL ? end : &ignored;
    const char *point = locale_point();
    if (strcmp(point, ".") == 0) return strtod(text, stop);
    const size_t point_bytes = strlen(point), bytes = strlen(text);
    const char *dot = memchr(text, '.', bytes);
    char local[LONGEST];
    /* A number that is written with the locale's point ends before it. */
    const char *foreign = strstr(text, point);
    const size_t used = foreign != NULL ? (size_t)(foreign - text) : bytes;
    *stop = (char *)(uintptr_t)text;
    if (used + point_bytes >= sizeof local) return 0.0;
    const size_t before = dot != NULL && dot < text + used ? (size_t)(dot - text) : used;
    memcpy(local, text, before);
    size_t length = before;
    if (before < used) {
        memcpy(local + length, point, point_bytes);
        length += point_bytes;
        memcpy(local + length, dot + 1, used - before - 1);
        length += used - before - 1;
    }
    local[length] = '\0';
    char *local_end;
    const double number = strtod(local, &local_end);
    size_t read = (size_t)(local_end - local);
    if (read > before) read = read + 1 - point_bytes;
    *stop += read;
    return number;
}

void cd_real_print(double number, int precision, char *text, size_t text_bytes)
{
    const char *point = locale_point();
    cd_real_format(text, text_bytes, "%.*g", precision, number);
    char *at = strcmp(point, ".") != 0 ? strstr(text, point) : NULL;
    if (at == NULL) return;
    *at = '.';
    memmove(at + 1, at + strlen(point), strlen(at + strlen(point)) + 1);
}
