/* SPDX-License-Identifier: Apache-2.0 */
/* Error chains have no holes: a function that ends in `return f(…, err);` wraps the call in
** CD_PASS. Headers are exempt: what is inline there only forwards. */
#include "tests/tidy/tidy.h"

#include <string.h>

static bool is_checked(const char *path)
{
    static const char *const folders[] = {"core", "sim",    "backends", "scenarios",
                                          "db",   "verify", "cli",      "record"};
    if (!tidy_has_suffix(path, ".c") || strcmp(path, "core/base/error.c") == 0) return false;
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        if (tidy_is_under(path, folders[i])) return true;
    return false;
}

static bool is_name_at(const char *start, const char *at, const char *name)
{
    return strncmp(at, name, strlen(name)) == 0 && (at == start || !tidy_is_word(at[-1])) &&
           !tidy_is_word(at[strlen(name)]);
}

/* Of a function whose head lies between start and brace: does it return a status? */
static bool returns_status(const char *start, const char *brace)
{
    const char *last = brace;
    while (last > start && (last[-1] == ' ' || last[-1] == '\n')) last--;
    if (last == start || last[-1] != ')') return false;
    for (const char *at = start; at < last && *at != '('; at++)
        if (is_name_at(start, at, "cddp_status")) return true;
    return false;
}

/* cd_fail, its relatives and macros make an error where they stand, with this function's frame. */
static bool makes_error(const char *from, const char *to)
{
    for (const char *at = from; at < to; at++) {
        if (at != from && tidy_is_word(at[-1])) continue;
        if (strncmp(at, "cd_fail", strlen("cd_fail")) == 0) return true;
        size_t capitals = strspn(at, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
        if (capitals > 1 && at[capitals] == '(') return true;
    }
    return false;
}

/* The last argument of the last call is err itself. */
static bool ends_in_err(const char *from, const char *to)
{
    while (to > from && (to[-1] == ' ' || to[-1] == '\n')) to--;
    if (to - from < 5 || strncmp(to - 4, "err)", 4) != 0) return false;
    const char *before = to - 4;
    while (before > from && (before[-1] == ' ' || before[-1] == '\n')) before--;
    return before > from && (before[-1] == '(' || before[-1] == ',');
}

static void check_body(const tidy_file *f, const char *from, const char *to, tidy_report *report)
{
    for (const char *at = from; at < to; at++) {
        if (!is_name_at(from, at, "return")) continue;
        const char *value = at + strlen("return"), *end = value + strcspn(value, ";");
        if (ends_in_err(value, end) && !makes_error(value, end))
            tidy_report_add(report, f, at,
                            "a failure of this call leaves no frame: return CD_PASS(…);");
        at = end;
    }
}

void tidy_check_frames(const tidy_tree *tree, tidy_report *report)
{
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        if (!is_checked(f->path)) continue;
        int depth = 0;
        bool is_status = false;
        const char *start = f->code, *body = f->code;
        for (const char *at = f->code; *at != '\0'; at++) {
            if (*at == '#' && (at == f->code || at[-1] == '\n')) {
                while (at[1] != '\0' && !(at[1] == '\n' && *at != '\\')) at++;
                if (depth == 0) start = at + 1;
            } else if (*at == '{' && depth++ == 0) {
                is_status = returns_status(start, at);
                body = at;
            } else if (*at == '}' && --depth == 0) {
                if (is_status) check_body(f, body, at, report);
                start = at + 1;
            } else if (*at == ';' && depth == 0) {
                start = at + 1;
            }
        }
    }
}
