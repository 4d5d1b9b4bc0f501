/* SPDX-License-Identifier: Apache-2.0 */
/* One brace style: the body of an if, else, for or while that is one simple statement on one line
** has no braces, unless a branch beside it needs them; then every branch has them. Simple means
** that it declares nothing, controls nothing, and has no comment. Not here: the body of a do, which
** keeps its braces, macros, and what lies between "clang-format off" and "clang-format on". */
#include "tests/tidy/tidy.h"

#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

/* One file as the rule reads it. */
typedef struct reader {
    const tidy_file *file;
    char *code; /* (owned) file->code, with directives blanked too */
} reader;

static void blank_directives(char *code)
{
    for (char *at = code; *at != '\0'; at++) {
        const char *before = at;
        while (before > code && before[-1] == ' ') before--;
        if (*at != '#' || (before > code && before[-1] != '\n')) continue;
        for (; *at != '\0' && !(*at == '\n' && at[-1] != '\\'); at++)
            if (*at != '\n') *at = ' ';
        if (*at == '\0') return;
    }
}

static const char *skip_space(const char *at) { return at + strspn(at, " \t\n"); }

static bool starts_word(const char *start, const char *at, const char *word)
{
    return strncmp(at, word, strlen(word)) == 0 && !tidy_is_word(at[strlen(word)]) &&
           (at == start || !tidy_is_word(at[-1]));
}

static bool starts_one_of(const char *at, const char *const *words)
{
    for (; *words != NULL; words++)
        if (starts_word(at, at, *words)) return true;
    return false;
}

/* Behind the bracket that closes the one at `at`; the end of the text when none does. */
static const char *skip_bracket(const char *at)
{
    int depth = 0;
    for (; *at != '\0'; at++) {
        if (strchr("([{", *at) != NULL) depth++;
        if (strchr(")]}", *at) != NULL && --depth == 0) return at + 1;
    }
    return at;
}

/* The body of the if, for or while at `at`; NULL when it has no condition. */
static const char *find_body(const char *at)
{
    while (tidy_is_word(*at)) at++;
    at = skip_space(at);
    if (starts_word(at, at, "constexpr")) at = skip_space(at + strlen("constexpr"));
    return *at == '(' ? skip_space(skip_bracket(at)) : NULL;
}

/* Behind an expression statement: its semicolon, or before the brace that closes its block. */
static const char *skip_simple(const char *at)
{
    while (*at != '\0' && *at != ';' && *at != '}')
        at = strchr("([{", *at) != NULL ? skip_bracket(at) : at + 1;
    return *at == ';' ? at + 1 : at;
}

/* Behind the statement at `at`. */
static const char *skip_statement(const char *at)
{
    static const char *const heads[] = {"if", "for", "while", "switch", NULL};
    const bool is_if = starts_word(at, at, "if");
    if (*at == '{') return skip_bracket(at);
    if (starts_word(at, at, "do")) return skip_simple(skip_statement(skip_space(at + 2)));
    const char *body = starts_one_of(at, heads) ? find_body(at) : NULL;
    if (body == NULL) return skip_simple(at);
    const char *end = skip_statement(body), *next = skip_space(end);
    if (is_if && starts_word(next, next, "else"))
        return skip_statement(skip_space(next + strlen("else")));
    return end;
}

/* Two names in a row, or a name, stars and a name: a declaration. A name and a colon: a label. */
static bool declares(const char *at)
{
    static const char *const expresses[] = {"return", "goto",   "sizeof", "throw",
                                            "new",    "delete", NULL};
    static const char *const keywords[] = {"static",         "const",   "struct", "union",
                                           "enum",           "typedef", "extern", "register",
                                           "volatile",       "int",     "char",   "bool",
                                           "signed",         "long",    "short",  "float",
                                           "double",         "void",    "auto",   "using",
                                           "unsigned",       "try",     "catch",  "static_assert",
                                           "_Static_assert", NULL};
    if (starts_one_of(at, keywords)) return true;
    if (!tidy_is_word(*at) || starts_one_of(at, expresses)) return false;
    while (tidy_is_word(*at)) at++;
    const char *next = at + strspn(at, " *");
    const bool is_label = *skip_space(at) == ':' && skip_space(at)[1] != ':';
    return is_label || (next > at && tidy_is_word(*next));
}

/* The statement in [from, to), which ends in its semicolon, is simple and takes one line. */
static bool is_short(const char *from, const char *to)
{
    static const char *const controls[] = {"if",   "for",     "while", "do", "switch",
                                           "case", "default", "else",  NULL};
    if (to - from < 2 || to[-1] != ';' || memchr(from, '\n', (size_t)(to - from)) != NULL)
        return false;
    if (*from == '{' || starts_one_of(from, controls) || declares(from)) return false;
    return skip_simple(from) == to;
}

/* A comment or directive stands in [from, to). The text is read again, since strings are blanks of
** `code` as comments are. */
static bool is_disturbed(const reader *r, const char *from, const char *to)
{
    const char *text = r->file->text + (from - r->code);
    bool is_quoted = false;
    for (const char *at = text; at < text + (to - from); at++) {
        if (is_quoted && *at == '\\')
            at++;
        else if (*at == '"')
            is_quoted = !is_quoted;
        else if (!is_quoted && *at == '\'')
            at += at[1] == '\\' ? 3 : 2;
        else if (!is_quoted && (strncmp(at, "/*", 2) == 0 || strncmp(at, "//", 2) == 0))
            return true;
        else if (*at == '#' && !is_quoted)
            return true;
    }
    return false;
}

/* The body at `at` can do without braces. A comment after its head or behind its closing brace
** would move to another line, so such a body keeps them. */
static bool is_short_body(const reader *r, const char *head, const char *at)
{
    const char *end = skip_statement(at);
    if (*at != '{') return is_short(at, end);
    const char *last = end - 1, *first = skip_space(at + 1);
    while (last > first && strchr(" \t\n", last[-1]) != NULL) last--;
    return is_short(first, last) && !is_disturbed(r, head, end + strcspn(end, "\n"));
}

/* clang-format is off at `at`. Its marks begin their lines; others stand in strings. */
static bool is_table(const reader *r, const char *at)
{
    const char mark[] = "/* clang-format o", *line = r->file->text, *end = line + (at - r->code);
    bool is_off = false;
    for (; line < end; line += tidy_line_length(line) + 1) {
        const char *first = line + strspn(line, " ");
        if (strncmp(first, mark, strlen(mark)) == 0) is_off = first[strlen(mark)] == 'f';
    }
    return is_off;
}

/* The chain of if and else at `at`, or the loop. */
static void check_chain(const reader *r, const char *at, tidy_report *report)
{
    size_t braced = 0, count = 0, short_bodies = 0;
    const bool is_if = starts_word(at, at, "if");
    const char *head = at, *end = at;
    for (bool more = true; more; count++) {
        const bool has_condition = count == 0 || starts_word(head, head, "if");
        const char *body = has_condition ? find_body(head) : head;
        /* `while (…);` ends a do */
        if (body == NULL || (!is_if && *body == ';')) return;
        const char *before = body;
        while (before > at && strchr(" \t\n", before[-1]) != NULL) before--;
        braced += *body == '{';
        short_bodies += is_short_body(r, before, body);
        end = skip_statement(body);
        const char *next = skip_space(end);
        more = is_if && has_condition && starts_word(next, next, "else");
        head = more ? skip_space(next + strlen("else")) : head;
    }
    if (braced == 0 || is_table(r, at)) return;
    const char *place = r->file->code + (at - r->code);
    if (short_bodies == count)
        tidy_report_add(report, r->file, place, "a body of one line has braces; remove them");
    else if (braced < count)
        tidy_report_add(report, r->file, place,
                        "a branch has no braces beside one that has; add them");
}

static void check_file(const reader *r, tidy_report *report)
{
    static const char *const heads[] = {"if", "for", "while", NULL};
    bool follows_else = false;
    for (const char *at = r->code; *at != '\0';) {
        if (!tidy_is_word(*at)) {
            if (strchr(" \t\n", *at) == NULL) follows_else = false;
            at++;
            continue;
        }
        if (starts_one_of(at, heads) && !follows_else) check_chain(r, at, report);
        follows_else = starts_word(at, at, "else");
        while (tidy_is_word(*at)) at++;
    }
}

void tidy_check_braces(const tidy_tree *tree, tidy_report *report)
{
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        if (!tidy_is_c(f->path)) continue;
        const size_t bytes = strlen(f->code) + 1;
        reader r = {.file = f, .code = malloc(bytes)};
        assert_non_null(r.code);
        memcpy(r.code, f->code, bytes);
        blank_directives(r.code);
        check_file(&r, report);
        free(r.code);
    }
}
