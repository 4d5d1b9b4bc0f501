/* SPDX-License-Identifier: Apache-2.0 */
/* Rules on prose: the words of words.def, and the length of sentences in pages and messages.
**
** A file becomes a text of the same length in which only prose is left: comments, strings, pages.
** What stood between is blank; a line end separates what does not belong together (paragraphs,
** cells, list items). Phrases and sentences may therefore run over lines and over strings side by
** side.
*/
#include "tests/tidy/tidy.h"

#include "tests/support/test.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SENTENCE_WORDS_MAX 30

static const struct {
    const char *words, *where, *instead;
} banned[] = {
#define WORD(words, where, instead) {words, where, instead},
#define ALLOW_WORD(words, path, why)
#define PROSE_CLEAN(path)
#include "tests/tidy/words.def"
#undef WORD
#undef ALLOW_WORD
};
#define BANNED_COUNT (sizeof banned / sizeof banned[0])
static const struct {
    const char *words, *path;
} allowed[] = {
#define WORD(words, where, instead)
#define ALLOW_WORD(words, path, why) {words, path},
#include "tests/tidy/words.def"
#undef WORD
#undef ALLOW_WORD
#undef PROSE_CLEAN
    {NULL, NULL}};
static const char *const clean[] = {
#define WORD(words, where, instead)
#define ALLOW_WORD(words, path, why)
#define PROSE_CLEAN(path) path,
#include "tests/tidy/words.def"
#undef WORD
#undef ALLOW_WORD
#undef PROSE_CLEAN
    NULL};

/* Of which kind a byte of a file is. */
enum { NOTHING = ' ', COMMENT = 'c', MESSAGE = 'm', PAGE = 'p', SAMPLE = 's' };

typedef struct prose {
    char *text; /* as long as the file */
    char *kind; /* the same length */
} prose;

static bool has_prefix(const char *path, const char *prefix)
{
    return strncmp(path, prefix, strlen(prefix)) == 0;
}

/* ---- what is prose ---- */

/* The leader of a comment's line, "**" or "*" or "//", becomes blank; an empty line separates. */
static void start_comment_line(prose *p, const char *text, size_t at)
{
    size_t k = at + strspn(text + at, " \t");
    while (text[k] == '*' || (text[k] == '/' && text[k + 1] == '/') ||
           (text[k] == '/' && text[k - 1] == '/'))
        p->text[k++] = ' ';
    if (text[k + strspn(text + k, " \t")] == '\n') p->text[at > 0 ? at - 1 : 0] = '\n';
}

static size_t read_comment(const tidy_file *f, prose *p, size_t at)
{
    const bool is_block = f->text[at + 1] == '*';
    const char *close = is_block ? strstr(f->text + at + 2, "*/") : NULL;
    size_t end = at + tidy_line_length(f->text + at);
    if (is_block) end = close != NULL ? (size_t)(close - f->text) : strlen(f->text);
    for (size_t k = at + 2; k < end; k++) {
        p->kind[k] = COMMENT;
        p->text[k] = f->text[k] == '\n' ? ' ' : f->text[k];
    }
    for (size_t k = at + 2; k < end; k++)
        if (f->text[k] == '\n') start_comment_line(p, f->text, k + 1);
    /* Line comments below each other are one; what stands before a comment does not belong to
    ** it. */
    if (is_block) {
        p->text[at] = '\n';
        if (end + 1 < strlen(f->text)) p->text[end + 1] = '\n';
    } else {
        size_t before = at;
        while (before > 0 && f->text[before - 1] == ' ') before--;
        const bool stands_alone = before == 0 || f->text[before - 1] == '\n';
        if (!stands_alone) p->text[at] = '\n';
    }
    return is_block && f->text[end] != '\0' ? end + 2 : end;
}

static size_t read_string(const tidy_file *f, prose *p, size_t at)
{
    size_t k = at + 1;
    for (; f->text[k] != '\0' && f->text[k] != '"' && f->text[k] != '\n'; k++) {
        p->kind[k] = MESSAGE;
        if (f->text[k] != '\\') {
            p->text[k] = f->text[k];
            continue;
        }
        if (f->text[k + 1] == '\0') break;
        k++;
        p->kind[k] = MESSAGE;
        p->text[k] = f->text[k] == 'n' || f->text[k] == 't' ? '\n' : f->text[k];
    }
    return f->text[k] == '"' ? k + 1 : k;
}

static void read_code(const tidy_file *f, prose *p)
{
    bool between = false; /* strings: nothing but blanks and macros such as PRIu64 since the last */
    for (size_t at = 0; f->text[at] != '\0';) {
        const char c = f->text[at];
        if (c == '/' && (f->text[at + 1] == '*' || f->text[at + 1] == '/')) {
            at = read_comment(f, p, at);
            between = false;
        } else if (c == '"') {
            if (!between) p->text[at] = '\n';
            at = read_string(f, p, at);
            between = true;
        } else if (c == '\'' && (at == 0 || !tidy_is_word(f->text[at - 1]))) {
            at++;
            while (f->text[at] != '\0' && f->text[at] != '\'' && f->text[at] != '\n')
                at += f->text[at] == '\\' && f->text[at + 1] != '\0' ? 2 : 1;
            if (f->text[at] != '\0') at++;
        } else {
            if (!isspace((unsigned char)c) && !isupper((unsigned char)c) &&
                !isdigit((unsigned char)c) && !(c == 'u' && at > 0 && f->text[at - 1] == 'I')) {
                if (between) p->text[at] = '\n';
                between = false;
            }
            at++;
        }
    }
}

/* Headings, list items, cells and empty lines stand alone; what a page shows in a block is a
** sample. */
static void read_page(const tidy_file *f, prose *p)
{
    bool in_block = false, in_code = false;
    for (size_t at = 0; f->text[at] != '\0';) {
        const char *line = f->text + at, *first = line + strspn(line, " >");
        const size_t length = tidy_line_length(line);
        const bool is_fence = strncmp(first, "```", 3) == 0;
        if (is_fence) in_block = !in_block;
        const bool is_sample = in_block || is_fence || strncmp(line, "    ", 4) == 0;
        const bool breaks = is_sample || *first == '\n' || *first == '\0' ||
                            strchr("#|-*+", *first) != NULL ||
                            (isdigit((unsigned char)*first) && strspn(first, "0123456789") < 3 &&
                             first[strspn(first, "0123456789")] == '.');
        if (breaks) in_code = false;
        if (breaks && at > 0) p->text[at - 1] = '\n';
        for (size_t k = 0; k < length; k++) {
            char c = line[k];
            p->kind[at + k] = is_sample ? SAMPLE : PAGE;
            if (!is_sample) {
                if (c == '`') in_code = !in_code;
                if (c == '|' && !in_code) c = '\n';
                if (in_code && c == ' ') c = '_'; /* one word, whatever it shows */
                if (c == ']' && line[k + 1] == '(') {
                    const size_t skipped = strcspn(line + k, ") \n");
                    p->text[at + k] = ' ';
                    k += skipped < length - k ? skipped : length - k - 1;
                    continue;
                }
                if (strchr("[*", c) != NULL && c != '\0') c = ' ';
            }
            p->text[at + k] = c;
        }
        if (line[length] == '\n') p->kind[at + length] = PAGE;
        at += length + (line[length] == '\n');
    }
}

/* Scripts, scenarios, SQL: everything counts as comment, except that lines stand alone. */
static void read_script(const tidy_file *f, prose *p)
{
    for (size_t at = 0; f->text[at] != '\0'; at++) {
        p->kind[at] = COMMENT;
        p->text[at] = f->text[at];
        if (f->text[at] == '\n' && f->text[at + 1] == '#') p->text[at] = ' ';
        if (f->text[at] == '#' && (at == 0 || f->text[at - 1] == '\n')) p->text[at] = ' ';
    }
}

static prose read_prose(const tidy_file *f)
{
    const size_t length = strlen(f->text);
    prose p = {malloc(length + 2), malloc(length + 2)};
    assert_true(p.text != NULL && p.kind != NULL);
    memset(p.text, ' ', length + 1);
    memset(p.kind, NOTHING, length + 1);
    p.text[length + 1] = p.kind[length + 1] = '\0';
    if (tidy_is_c(f->path) || tidy_has_suffix(f->path, ".def"))
        read_code(f, &p);
    else if (tidy_has_suffix(f->path, ".md"))
        read_page(f, &p);
    else if (!tidy_has_suffix(f->path, ".svg"))
        read_script(f, &p);
    p.text[length] = '\0';
    return p;
}

/* ---- words ---- */

static bool is_letter(char c) { return isalnum((unsigned char)c) || (unsigned char)c >= 0x80; }

/* Do the words stand at `at`? Blanks may be any number, or underscores; a star stands for any
** ending. */
static bool has_words_at(const char *at, const char *words)
{
    for (; *words != '\0'; words++) {
        if (*words == '*') return true;
        if (*words == ' ') {
            if (*at != ' ' && *at != '_') return false;
            at += strspn(at, " _");
        } else if (tolower((unsigned char)*at) == *words) {
            at++;
        } else {
            return false;
        }
    }
    return !is_letter(words[-1]) || !is_letter(*at);
}

static bool is_banned_in(const char *where, const char *path)
{
    char prefix[256];
    if (strcmp(where, "*") == 0) return true;
    for (const char *at = where; *at != '\0'; at += strcspn(at, " "), at += strspn(at, " ")) {
        snprintf(prefix, sizeof prefix, "%.*s", (int)strcspn(at, " "), at);
        if (has_prefix(path, prefix)) return true;
    }
    return false;
}

static bool is_allowed(const char *words, const char *path)
{
    for (size_t i = 0; allowed[i].words != NULL; i++)
        if (strcmp(allowed[i].words, words) == 0 && has_prefix(path, allowed[i].path)) return true;
    return false;
}

static void check_words(const tidy_file *f, const prose *p, size_t w, tidy_report *report)
{
    const char *const words = banned[w].words;
    for (const char *at = p->text; *at != '\0'; at++) {
        if (tolower((unsigned char)*at) != words[0] || p->kind[at - p->text] == NOTHING) continue;
        if (at > p->text && is_letter(at[-1])) continue;
        if (has_words_at(at, words))
            tidy_report_add(report, f, f->text + (at - p->text), "\"%s\": write \"%s\"", words,
                            banned[w].instead);
    }
    /* Identifiers and names of files: the words between their underscores. */
    if (strpbrk(words, ".,;:*") != NULL) return;
    for (const char *at = f->code; tidy_is_c(f->path) && *at != '\0'; at++)
        if (*at == words[0] && (at == f->code || !is_letter(at[-1])) && has_words_at(at, words))
            tidy_report_add(report, f, at, "an identifier with \"%s\": use \"%s\"", words,
                            banned[w].instead);
    for (const char *at = f->path; *at != '\0'; at++)
        if (*at == words[0] && (at == f->path || !is_letter(at[-1])) && has_words_at(at, words))
            tidy_report_add(report, f, f->text, "a name of a file with \"%s\": use \"%s\"", words,
                            banned[w].instead);
}

/* ---- sentences ---- */

/* SQL and the like are no sentences. */
static bool is_statement(const char *from, const char *to)
{
    static const char *const marks[] = {"SELECT ", "INSERT ", "CREATE ", "UPDATE ", "DELETE "};
    for (const char *at = from; at < to; at++)
        for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
            if (strncmp(at, marks[i], strlen(marks[i])) == 0) return true;
    return false;
}

static void end_sentence(const tidy_file *f, const prose *p, const char *from, const char *to,
                         size_t count, tidy_report *report)
{
    if (count <= SENTENCE_WORDS_MAX || is_statement(from, to)) return;
    size_t shown = 0; /* whole characters: a line of UTF-8 is not cut inside one */
    while (shown < 48 && from + shown < to) shown++;
    while (shown > 0 && ((unsigned char)from[shown] & 0xc0) == 0x80) shown--;
    tidy_report_add(report, f, f->text + (from - p->text), "a sentence of %zu words: %.*s…", count,
                    (int)shown, from);
}

static void check_sentences(const tidy_file *f, const prose *p, char kind, tidy_report *report)
{
    const char *from = NULL;
    size_t count = 0;
    for (const char *at = p->text; *at != '\0';) {
        if (*at == '\n') {
            if (from != NULL) end_sentence(f, p, from, at, count, report);
            from = NULL;
            count = 0;
            at++;
            continue;
        }
        if (*at == ' ' || p->kind[at - p->text] != kind) {
            at++;
            continue;
        }
        const size_t length = strcspn(at, " \n");
        bool is_word = false;
        for (size_t k = 0; k < length; k++) is_word |= is_letter(at[k]) != 0;
        if (from == NULL) from = at;
        count += is_word;
        size_t last = length;
        while (last > 0 && strchr(")\"'`]", at[last - 1]) != NULL) last--;
        at += length;
        const char *const word = at - length;
        const bool is_item_end =
            length == 2 && memcmp(word, "\xc2\xb7", 2) == 0; /* a list on one line */
        if (is_item_end || (last > 0 && strchr(".!?", word[last - 1]) != NULL)) {
            end_sentence(f, p, from, at, count, report);
            from = NULL;
            count = 0;
        }
    }
    if (from != NULL) end_sentence(f, p, from, p->text + strlen(p->text), count, report);
}

/* ---- the rule and the report ---- */

static bool has_messages(const char *path)
{
    static const char *const folders[] = {"core",   "sim", "backends", "scenarios", "db",
                                          "verify", "cli", "include",  "record"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        if (tidy_is_under(path, folders[i]))
            return tidy_is_c(path) || tidy_has_suffix(path, ".def");
    return false;
}

/* A corpus is nobody's prose; the table and its plants name what they forbid. */
static bool is_prose_of_ours(const char *path)
{
    static const char *const others[] = {"tests/fuzz/corpus", "tests/tidy/words.def",
                                         "tests/tidy/tidy_test.c"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (tidy_is_under(path, others[i])) return false;
    return true;
}

static void check_file(const tidy_file *f, tidy_report *report)
{
    prose p = read_prose(f);
    for (size_t w = 0; w < BANNED_COUNT; w++)
        if (is_banned_in(banned[w].where, f->path) && !is_allowed(banned[w].words, f->path))
            check_words(f, &p, w, report);
    if (tidy_has_suffix(f->path, ".md")) check_sentences(f, &p, PAGE, report);
    if (has_messages(f->path)) check_sentences(f, &p, MESSAGE, report);
    free(p.text);
    free(p.kind);
}

static bool is_clean(const char *path)
{
    for (size_t k = 0; clean[k] != NULL; k++)
        if (has_prefix(path, clean[k])) return true;
    return false;
}

static void check(const tidy_tree *tree, bool everything, tidy_report *report)
{
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        if (is_prose_of_ours(f->path) && (everything || is_clean(f->path))) check_file(f, report);
    }
}

void tidy_check_prose(const tidy_tree *tree, tidy_report *report) { check(tree, false, report); }

void tidy_check_all_prose(const tidy_tree *tree, tidy_report *report) { check(tree, true, report); }
