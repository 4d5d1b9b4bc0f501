/* SPDX-License-Identifier: Apache-2.0 */
/* One line per message, formatted on the stack. */
#include "core/base/log.h"
#include "core/base/format.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void cd_log_write(const cd_log *log, cd_log_level level, cd_log_place place, const char *format,
                  ...)
{
    if (log == NULL || log->write == NULL || level > log->level) return;
    char line[1024], rank[24] = "-", step[24] = "-";
    if (place.rank >= 0) snprintf(rank, sizeof rank, "%" PRId64, place.rank);
    if (place.step >= 0) snprintf(step, sizeof step, "%" PRId64, place.step);
    int n = snprintf(line, sizeof line, "%12" PRIu64 ".%03" PRIu64 " %4s %5s %-8s %-5s ",
                     place.time_ns / 1000, place.time_ns % 1000, rank, step,
                     log->component != NULL ? log->component : "-", level_names[level]);
    size_t used = n < 0 ? 0 : (size_t)n;
    va_list args;
    va_start(args, format);
    n = cd_vformat(line + used, sizeof line - used - 1, format, args);
    va_end(args);
    if (n > 0) used += (size_t)n < sizeof line - used - 1 ? (size_t)n : sizeof line - used - 2;
    line[used++] = '\n';
    log->write(log->context, line, used);
}

static bool level_find(const char *name, size_t length, cd_log_level *level)
{
    for (size_t i = 0; i < sizeof level_names / sizeof level_names[0]; i++) {
        if (strlen(level_names[i]) != length || memcmp(level_names[i], name, length) != 0) continue;
        *level = (cd_log_level)i;
        return true;
    }
    return false;
}

bool cd_log_parse(const char *spec, const char *component, cd_log_level *level)
{
    while (*spec != '\0') {
        size_t length = strcspn(spec, ",");
        const char *colon = memchr(spec, ':', length);
        size_t name_length = colon != NULL ? (size_t)(colon - spec) : 0;
        const char *word = colon != NULL ? colon + 1 : spec;
        cd_log_level parsed;
        if (!level_find(word, length - (size_t)(word - spec), &parsed)) return false;
        bool ours = colon == NULL ||
                    (strlen(component) == name_length && memcmp(spec, component, name_length) == 0);
        if (ours) *level = parsed;
        spec += length;
        if (*spec == ',') spec++;
    }
    return true;
}
