/* SPDX-License-Identifier: Apache-2.0 */
/* Rules on C tokens: banned calls, reserved names, variables that outlive their run, jumps in
** macros. */
#include "tests/tidy/tidy.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *where, *why;
} bans[] = {
#define BAN(name, where, why) {name, where, why},
#define ALLOW(name, path, why)
#include "tests/tidy/bans.def"
#undef ALLOW
#undef BAN
};
static const struct {
    const char *name, *path;
} allowed[] = {
#define BAN(name, where, why)
#define ALLOW(name, path, why) {name, path},
#include "tests/tidy/bans.def"
#undef ALLOW
#undef BAN
};

static bool is_banned_at(const char *where, const char *path)
{
    char folder[64];
    snprintf(folder, sizeof folder, "%.*s", (int)strcspn(path, "/"), path);
    return tidy_list_has(where, folder);
}

static bool is_allowed_at(const char *name, const char *path)
{
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++)
        if (strcmp(allowed[i].name, name) == 0 &&
            strncmp(path, allowed[i].path, strlen(allowed[i].path)) == 0)
            return true;
    return false;
}

/* Next call of a plain function `name(`: not a member, not part of a longer word. NULL when there
** is none. */
static const char *next_call(const char *code, const char *at, const char *name)
{
    size_t length = strlen(name);
    for (; (at = strstr(at, name)) != NULL; at += length) {
        bool starts = at == code ||
                      !(tidy_is_word(at[-1]) || at[-1] == '.' || (at[-1] == '>' && at[-2] == '-'));
        const char *after = at + length;
        after += strspn(after, " ");
        /* `int exp(` declares, `x = exp(` calls; a declaration is as unwelcome as a call. */
        if (starts && !tidy_is_word(at[length]) && *after == '(') return at;
    }
    return NULL;
}

/* The end of a conversion that begins at '%', when it makes a number with a decimal point. */
static bool prints_real(const char *at)
{
    at++;
    at += strspn(at, "-+ #0123456789*.lL");
    return *at != '\0' && strchr("aAeEfFgG", *at) != NULL && !tidy_is_word(at[1]);
}

/* A host program may have set a locale with a decimal comma. The call is found where constants are
** blanks, and read where they are not. */
static void check_reals(const tidy_file *f, tidy_report *report)
{
    for (const char *at = f->code; (at = next_call(f->code, at, "snprintf")) != NULL; at++) {
        size_t depth = 0, end = 0;
        do {
            depth += at[end] == '(';
            depth -= at[end] == ')';
        } while (at[++end] != '\0' && (depth > 0 || at[end - 1] != ')'));
        const char *text = f->text + (at - f->code);
        for (size_t i = 0; i < end; i++) {
            if (text[i] == '%' && text[i + 1] == '%') {
                i++;
            } else if (text[i] == '%' && at[i] == ' ' && prints_real(text + i)) {
                tidy_report_add(report, f, at,
                                "snprintf of a real number: the locale's decimal point; use "
                                "core/base/format.h");
                break;
            }
        }
    }
}

void tidy_check_bans(const tidy_tree *tree, tidy_report *report)
{
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        if (!tidy_is_c(f->path)) continue;
        if (is_banned_at("core sim backends record scenarios db verify cli", f->path))
            check_reals(f, report);
        for (size_t b = 0; b < sizeof bans / sizeof bans[0]; b++) {
            if (!is_banned_at(bans[b].where, f->path) || is_allowed_at(bans[b].name, f->path))
                continue;
            for (const char *at = f->code; (at = next_call(f->code, at, bans[b].name)) != NULL;
                 at++)
                tidy_report_add(report, f, at, "%s: %s", bans[b].name, bans[b].why);
        }
    }
}

/* Behaviour is decided by data: a part's name is never compared with a constant. (Constants are
** blanks here.) */
static void check_strcmp(const tidy_file *f, tidy_report *report)
{
    for (const char *at = f->code; (at = next_call(f->code, at, "strcmp")) != NULL; at++) {
        char call[256];
        snprintf(call, sizeof call, "%.*s", (int)strcspn(at, ")\n"), at);
        const char *comma = strchr(call, ',');
        bool has_constant =
            comma != NULL && (comma[1 + strspn(comma + 1, " ")] == '\0' || comma[-1] == ' ');
        bool of_part = strstr(call, "backend->name") != NULL ||
                       strstr(call, "hook->name") != NULL || strstr(call, "device->name") != NULL ||
                       strstr(call, "backend.name") != NULL;
        if (has_constant && of_part)
            tidy_report_add(report, f, at,
                            "decides by a name; make it a capability, which is data");
    }
}

void tidy_check_names(const tidy_tree *tree, tidy_report *report)
{
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        if (!tidy_is_c(f->path)) continue;
        if (!tidy_is_under(f->path, "tests") && !tidy_is_under(f->path, "bench"))
            check_strcmp(f, report);
        for (const char *at = f->code; (at = strstr(at, "_t;")) != NULL; at++) {
            const char *line = at;
            while (line > f->code && line[-1] != '\n') line--;
            bool declares = strncmp(line, "typedef", 7) == 0 || line[0] == '}';
            if (declares)
                tidy_report_add(report, f, at, "a type name ending in _t is reserved by POSIX");
        }
        for (const char *at = f->code; (at = strstr(at, "#define _")) != NULL; at++) {
            bool feature = strncmp(at + 8, "_POSIX_C_SOURCE", 15) == 0 ||
                           strncmp(at + 8, "_DEFAULT_SOURCE", 15) == 0 ||
                           strncmp(at + 8, "_GNU_SOURCE", 11) == 0 ||
                           strncmp(at + 8, "_XOPEN_SOURCE", 13) == 0;
            if (!feature)
                tidy_report_add(report, f, at, "a name beginning with an underscore is reserved");
        }
    }
}

/* ---- variables of static storage ---- */

static bool has_word(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = text; (at = strstr(at, word)) != NULL; at += n)
        if ((at == text || !tidy_is_word(at[-1])) && !tidy_is_word(at[n])) return true;
    return false;
}

/* `declaration` ends before its initializer. Constant means that the object itself cannot
** change. */
static bool is_constant(const char *declaration)
{
    const char *star = strrchr(declaration, '*');
    return has_word(star != NULL ? star : declaration, "const") ||
           has_word(declaration, "_Thread_local const");
}

static bool declares_variable(const char *statement)
{
    static const char *const others[] = {"typedef",        "return", "goto",      "extern",
                                         "_Static_assert", "using",  "namespace", "template"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (has_word(statement, others[i])) return false;
    const char *parenthesis = strchr(statement, '('), *atomic = strstr(statement, "_Atomic(");
    if (atomic != NULL && parenthesis == atomic + 7) parenthesis = strchr(parenthesis + 1, '(');
    return parenthesis == NULL && strchr(statement, ' ') != NULL;
}

/* The end of a brace or parenthesis that opens at `at`. */
static const char *skip_nested(const char *at)
{
    int inner = 0;
    for (; *at != '\0'; at++) {
        inner += (*at == '{' || *at == '(') - (*at == '}' || *at == ')');
        if (inner == 0) break;
    }
    return at;
}

/* Judges the text between two ends of statements. depth 0 is file scope; deeper only `static` ones
** count. */
static void judge_statement(const tidy_file *f, const char *start, const char *end, int depth,
                            bool has_initializer, tidy_report *report)
{
    char statement[600];
    start += strspn(start, " \n\t");
    if (end <= start) return;
    /* The body of a type tells nothing about the variable behind it. */
    size_t used = 0;
    for (const char *at = start; at < end && used < sizeof statement - 1; at++) {
        if (*at == '{')
            at = skip_nested(at);
        else
            statement[used++] = *at;
    }
    statement[used] = '\0';
    for (char *alone = statement; (alone = strstr(alone, ")\n")) != NULL; alone++)
        if (strncmp(alone + 2, "static", 6) == 0)
            memmove(statement, alone + 2, strlen(alone + 2) + 1);
    bool is_static = has_word(statement, "static");
    if (depth > 0 && !is_static) return;
    bool only_type = !has_initializer &&
                     (has_word(statement, "struct") || has_word(statement, "enum") ||
                      has_word(statement, "union")) &&
                     !is_static;
    if (only_type || !declares_variable(statement) || is_constant(statement)) return;
    /* What stands before an initializer ends in a space. */
    for (size_t length = strlen(statement); length > 0 && statement[length - 1] == ' '; length--)
        statement[length - 1] = '\0';
    const char *name = statement + strlen(statement);
    while (name > statement && !tidy_is_word(name[-1])) name--;
    while (name > statement && tidy_is_word(name[-1])) name--;
    if (is_allowed_at(name, f->path)) return;
    tidy_report_add(report, f, start, "a variable that outlives its run: %s", statement);
}

/* A directive with its continuations; *at becomes the last character of it. */
static const char *skip_directive(const char *at)
{
    while (*at != '\0' && !(*at == '\n' && at[-1] != '\\')) at++;
    return at;
}

/* The body of a struct, union or enum: what stands behind it still belongs to the same
** statement. */
static bool opens_type(const char *start, const char *brace)
{
    char head[600];
    if (brace - start > 599) start = brace - 599;
    snprintf(head, sizeof head, "%.*s", (int)(brace - start), start);
    /* Macros that stand alone on their lines, without a semicolon, may come before. */
    const char *last = strrchr(head, ')');
    const char *tail = last != NULL ? last + 1 : head;
    return has_word(tail, "struct") || has_word(tail, "union") || has_word(tail, "enum");
}

static void check_globals_of(const tidy_file *f, tidy_report *report)
{
    int depth = 0;
    const char *start = f->code;
    for (const char *at = f->code; *at != '\0'; at++) {
        bool assigns = *at == '=' && at[1] != '=' && strchr("=!<>+-*/|&^%", at[-1]) == NULL;
        if (*at == '#' && (at == f->code || at[-1] == '\n')) {
            at = skip_directive(at);
            start = at;
        } else if (assigns && depth == 0) {
            judge_statement(f, start, at, depth, true, report);
            while (*at != '\0' && *at != ';')
                at = *at == '{' || *at == '(' ? skip_nested(at) + 1 : at + 1;
            start = *at != '\0' ? at + 1 : at;
        } else if (*at == ';' || assigns) {
            judge_statement(f, start, at, depth, assigns, report);
            start = at + 1;
        } else if (*at == '{' && opens_type(start, at)) {
            at = skip_nested(at);
        } else if (*at == '{' || *at == '}') {
            depth += *at == '{' ? 1 : -1;
            start = at + 1;
        }
        if (*at == '\0') return;
    }
}

void tidy_check_globals(const tidy_tree *tree, tidy_report *report)
{
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        bool ours = tidy_is_c(f->path) && !tidy_is_under(f->path, "tests") &&
                    !tidy_is_under(f->path, "bench") && !tidy_is_under(f->path, "examples");
        if (ours) check_globals_of(f, report);
    }
}

void tidy_check_macros(const tidy_tree *tree, tidy_report *report)
{
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        bool allowed_here =
            strcmp(f->path, "core/base/error.h") == 0 || is_allowed_at("#define", f->path);
        bool outside = tidy_is_under(f->path, "tests") || tidy_is_under(f->path, "bench") ||
                       tidy_is_under(f->path, "examples");
        if (!tidy_is_c(f->path) || outside || allowed_here) continue;
        for (const char *at = f->code; (at = strstr(at, "#define ")) != NULL;) {
            const char *end = at;
            while (*end != '\0' && !(*end == '\n' && end[-1] != '\\')) end++;
            char body[4096];
            snprintf(body, sizeof body, "%.*s", (int)(end - at < 4000 ? end - at : 4000), at);
            /* A row of a switch, or a whole function, returns from what it defines, visibly. */
            bool defines = strstr(body, "static ") != NULL || has_word(body, "case");
            bool jumps = has_word(body, "goto") || (has_word(body, "return") && !defines);
            if (jumps)
                tidy_report_add(report, f, at,
                                "a macro that hides a jump; only core/base/error.h may");
            at = end;
        }
    }
}
