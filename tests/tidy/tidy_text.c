/* SPDX-License-Identifier: Apache-2.0 */
/* Rules on text: notes, rule tags, licence lines, leftovers, pairs of tables, links; and the report
** of sizes. */
#include "tests/tidy/tidy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS_MAX 100 /* as .clang-format has it */

/* The rules' own files talk about what they forbid. */
static bool is_about_rules(const char *path)
{
    return tidy_is_under(path, "tests/tidy") || strcmp(path, "CONTRIBUTING.md") == 0;
}

/* ---- notes ---- */

/* A definition stands first on its line, behind comment marks at most; everything else cites. */
static bool is_definition(const tidy_file *f, const char *at)
{
    const char *line = at;
    while (line > f->text && line[-1] != '\n') line--;
    return line + strspn(line, " \t/*#") == at;
}

static bool note_is_defined(const tidy_tree *tree, const char *note, size_t length)
{
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        for (const char *at = f->text; (at = strstr(at, "Note [")) != NULL; at++)
            if (strncmp(at, note, length) == 0 && is_definition(f, at)) return true;
    }
    return false;
}

void tidy_check_notes(const tidy_tree *tree, tidy_report *report)
{
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        if (is_about_rules(f->path)) continue;
        for (const char *at = f->text; (at = strstr(at, "Note [")) != NULL; at++) {
            size_t length = strcspn(at, "]\n");
            if (at[length] == ']' && is_definition(f, at)) continue;
            if (at[length] != ']' || !note_is_defined(tree, at, length + 1))
                tidy_report_add(report, f, at, "cites %.*s, which nobody wrote",
                                (int)(length + (at[length] == ']')), at);
        }
    }
}

/* ---- tags ---- */

static bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Length of a rule tag such as RED-05, C10-03, ZOO-146 or TI-A-01 at `at`, or 0. */
static size_t tag_length(const char *at)
{
    size_t n = 0, digits = 0;
    while (n < 5 && (is_upper(at[n]) || (n > 0 && is_digit(at[n])))) n++;
    if (n < 2 || at[n] != '-') return 0;
    if (is_upper(at[n + 1]) && at[n + 2] == '-') n += 2;
    while (digits < 4 && is_digit(at[n + 1 + digits])) digits++;
    return (digits == 2 || digits == 3) && !tidy_is_word(at[n + 1 + digits]) ? n + 1 + digits : 0;
}

/* Length of an invariant's name such as I-ORDER at `at`, or 0. */
static size_t invariant_length(const char *at)
{
    size_t n = 2;
    if (at[0] != 'I' || at[1] != '-') return 0;
    while (is_upper(at[n])) n++;
    return n >= 4 && !tidy_is_word(at[n]) ? n : 0;
}

static bool has_mention(const char *text, const char *name, size_t length)
{
    char wanted[32];
    snprintf(wanted, sizeof wanted, "%.*s", (int)length, name);
    for (const char *at = text; (at = strstr(at, wanted)) != NULL; at++)
        if ((at == text || !(tidy_is_word(at[-1]) || at[-1] == '-')) && !tidy_is_word(at[length]))
            return true;
    return false;
}

/* The documents that define tags: rules of DDP, and what the catalogue is measured against. */
static const char *const tag_documents[] = {"docs/semantics.md", "docs/zoo.md", "docs/fsdp.md"};

static bool tag_is_defined(const tidy_tree *tree, const char *tag, size_t length)
{
    for (size_t i = 0; i < sizeof tag_documents / sizeof tag_documents[0]; i++) {
        const tidy_file *document = tidy_tree_find(tree, tag_documents[i]);
        if (document != NULL && has_mention(document->text, tag, length)) return true;
    }
    return false;
}

static void check_tags_of(const tidy_tree *tree, const tidy_file *f, tidy_report *report)
{
    const tidy_file *invariants = tidy_tree_find(tree, "docs/invariants.md");
    bool has_rules = tidy_tree_find(tree, tag_documents[0]) != NULL;
    static const char *const not_rules[] = {
        "UTF-16", "UTF-32", "SHA-25", "ISO-88", "I-NAME",
        "AVX-51", "I-ODER", "I-ORDR", "UNU-99"}; /* the last three are planted mistakes */
    for (const char *at = f->text; *at != '\0'; at++) {
        if (at > f->text && (tidy_is_word(at[-1]) || at[-1] == '-')) continue;
        size_t tag = tag_length(at), invariant = invariant_length(at);
        bool exempt = false;
        for (size_t i = 0; i < sizeof not_rules / sizeof not_rules[0]; i++)
            exempt |= strncmp(at, not_rules[i], strlen(not_rules[i])) == 0;
        if (exempt) continue;
        if (tag != 0 && has_rules && !tag_is_defined(tree, at, tag))
            tidy_report_add(report, f, at,
                            "cites the rule %.*s, which docs/semantics.md does not have", (int)tag,
                            at);
        if (invariant != 0 && invariants != NULL && !has_mention(invariants->text, at, invariant))
            tidy_report_add(report, f, at, "names %.*s, which docs/invariants.md does not have",
                            (int)invariant, at);
    }
}

void tidy_check_tags(const tidy_tree *tree, tidy_report *report)
{
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        bool defines =
            strcmp(f->path, tag_documents[0]) == 0 || strcmp(f->path, tag_documents[1]) == 0;
        if (!is_about_rules(f->path) && !defines) check_tags_of(tree, f, report);
    }
}

/* ---- what upstream tests, and what was observed of it ---- */

#define CITED_MAX 1024
typedef struct cited {
    const char *tags[CITED_MAX]; /* (count) where a tag begins; each once */
    size_t count;
} cited;

static bool has_cited(const cited *c, const char *tag, size_t length)
{
    for (size_t i = 0; i < c->count; i++)
        if (tag_length(c->tags[i]) == length && strncmp(c->tags[i], tag, length) == 0) return true;
    return false;
}

static void collect_cited(const tidy_file *f, const char *family, cited *c)
{
    for (const char *at = f->text; (at = strstr(at, family)) != NULL; at++) {
        size_t tag = at == f->text || !(tidy_is_word(at[-1]) || at[-1] == '-') ? tag_length(at) : 0;
        if (tag != 0 && c->count < CITED_MAX && !has_cited(c, at, tag)) c->tags[c->count++] = at;
    }
}

/* Rows "| TI-A-01 | … |" and "| VER-01 | … |" say what a test or a scenario shows. A row whose
** first cell is a text or a list is about something left out. */
void tidy_check_shown(const tidy_tree *tree, tidy_report *report)
{
    cited c = {.count = 0};
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        bool shows = tidy_is_under(f->path, "tests") || tidy_is_under(f->path, "scenarios");
        if (!shows || is_about_rules(f->path) || tidy_is_under(f->path, "tests/fuzz")) continue;
        collect_cited(f, "TI-", &c);
        collect_cited(f, "VER-", &c);
    }
    for (size_t d = 0; d < 2; d++) {
        const tidy_file *document = tidy_tree_find(tree, tag_documents[d]);
        for (const char *at = document != NULL ? document->text : ""; *at != '\0';
             at += tidy_line_length(at) + (at[tidy_line_length(at)] == '\n')) {
            if (strncmp(at, "| TI-", 5) != 0 && strncmp(at, "| VER-", 6) != 0) continue;
            size_t tag = tag_length(at + 2);
            if (tag != 0 && strncmp(at + 2 + tag, " |", 2) == 0 && !has_cited(&c, at + 2, tag))
                tidy_report_add(report, document, at,
                                "has a row for %.*s, which no test and no scenario cites", (int)tag,
                                at + 2);
        }
    }
}

/* ---- licence, leftovers ---- */

void tidy_check_spdx(const tidy_tree *tree, tidy_report *report)
{
    static const char *const suffixes[] = {".def", ".py", ".sh", ".sql", ".cmake"};
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        bool wanted = tidy_is_c(f->path);
        for (size_t s = 0; s < sizeof suffixes / sizeof suffixes[0]; s++)
            wanted |= tidy_has_suffix(f->path, suffixes[s]);
        if (!wanted) continue;
        /* In the first line, or behind the line that names the interpreter. */
        const char *head = f->text;
        if (strncmp(head, "#!", 2) == 0) head += tidy_line_length(head) + 1;
        const char *found = strstr(head, "SPDX-License-Identifier: Apache-2.0");
        if (found == NULL || found > head + tidy_line_length(head))
            tidy_report_add(report, f, f->text, "does not begin with its SPDX line");
    }
}

void tidy_check_leftovers(const tidy_tree *tree, tidy_report *report)
{
    static const char *const words[] = {"TODO", "FIXME", "XXX", "#if 0", "HACK"};
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        if (is_about_rules(f->path)) continue;
        for (size_t w = 0; w < sizeof words / sizeof words[0]; w++)
            for (const char *at = f->text; (at = strstr(at, words[w])) != NULL; at++)
                if ((at == f->text || !tidy_is_word(at[-1])) && !tidy_is_word(at[strlen(words[w])]))
                    tidy_report_add(report, f, at,
                                    "%s: deferred work goes to the issue list or a decision record",
                                    words[w]);
    }
}

/* ---- every check has a mutant ---- */

void tidy_check_pairs(const tidy_tree *tree, tidy_report *report)
{
    const tidy_file *checks = tidy_tree_find(tree, "core/check/checks.def");
    const tidy_file *mutants = tidy_tree_find(tree, "tests/mutants/trace_mutants.def");
    if (checks == NULL) return;
    for (const char *at = checks->text; (at = strstr(at, "\nCD_CHECK(")) != NULL; at++) {
        const char *name = at + strlen("\nCD_CHECK(");
        char row[128];
        snprintf(row, sizeof row, "\nTRACE_MUTANT(%.*s,", (int)strcspn(name, ","), name);
        if (mutants == NULL || strstr(mutants->text, row) == NULL)
            tidy_report_add(
                report, checks, at + 1,
                "%.*s has no row in tests/mutants/trace_mutants.def: nobody has seen it fire",
                (int)strcspn(name, ","), name);
    }
}

/* ---- coverage marks ---- */

static bool is_reported_in(const tidy_file *f, const char *mark, size_t length)
{
    static const char *const reporters[] = {"emit_mark(t, \"", "tracer_mark(s->tracer, \"",
                                            "tracer, mark, \"", "count_mark(tap, \""};
    for (size_t i = 0; i < sizeof reporters / sizeof reporters[0]; i++)
        for (const char *at = f->text; (at = strstr(at, reporters[i])) != NULL; at++) {
            const char *name = at + strlen(reporters[i]);
            if (strncmp(name, mark, length) == 0 && name[length] == '"') return true;
        }
    return false;
}

static void check_reported_marks(const tidy_file *f, const tidy_file *marks, tidy_report *report)
{
    static const char *const reporters[] = {"_mark(", ", mark, "};
    for (size_t i = 0; i < sizeof reporters / sizeof reporters[0]; i++)
        for (const char *at = f->text; (at = strstr(at, reporters[i])) != NULL; at++) {
            /* a mark that a variable names was reported where the variable was set */
            const char *name = at + strcspn(at, "\"\n;?");
            char row[96];
            if (name[0] != '"' || f->code[at - f->text] == ' ') continue;
            name++;
            snprintf(row, sizeof row, "\nCD_MARK(%.*s,", (int)strcspn(name, "\""), name);
            if (strstr(marks->text, row) == NULL)
                tidy_report_add(report, f, name,
                                "emits the mark %.*s, which core/plan/marks.def does not have",
                                (int)strcspn(name, "\""), name);
        }
}

void tidy_check_marks(const tidy_tree *tree, tidy_report *report)
{
    const tidy_file *marks = tidy_tree_find(tree, "core/plan/marks.def");
    if (marks == NULL) return;
    for (size_t i = 0; i < tree->count; i++)
        if (tidy_is_c(tree->files[i].path) && tidy_is_under(tree->files[i].path, "core"))
            check_reported_marks(&tree->files[i], marks, report);
    for (const char *at = marks->text; (at = strstr(at, "\nCD_MARK(")) != NULL; at++) {
        const char *name = at + strlen("\nCD_MARK(");
        bool reported = false;
        for (size_t i = 0; !reported && i < tree->count; i++)
            reported = tidy_is_c(tree->files[i].path) &&
                       is_reported_in(&tree->files[i], name, strcspn(name, ","));
        if (!reported)
            tidy_report_add(report, marks, at + 1, "the mark %.*s is emitted nowhere",
                            (int)strcspn(name, ","), name);
    }
}

/* ---- links ---- */

/* Joins the folder of `from` and a relative link, taking "../" back; fragments are cut. */
static void join(const char *from, const char *link, size_t length, char path[1024])
{
    const char *slash = strrchr(from, '/');
    size_t used =
        (size_t)snprintf(path, 1024, "%.*s", slash != NULL ? (int)(slash - from) : 0, from);
    for (const char *at = link; at < link + length;) {
        size_t part = strcspn(at, "/#");
        if (part > (size_t)(link + length - at)) part = (size_t)(link + length - at);
        if (part == 2 && strncmp(at, "..", 2) == 0) {
            while (used > 0 && path[used - 1] != '/') used--;
            if (used > 0) used--;
            path[used] = '\0';
        } else if (part > 0 && !(part == 1 && at[0] == '.')) {
            used += (size_t)snprintf(path + used, 1024 - used, "%s%.*s", used > 0 ? "/" : "",
                                     (int)part, at);
        }
        if (at[part] == '#') return;
        at += part + 1;
    }
}

static bool exists(const tidy_tree *tree, const char *path)
{
    if (path[0] == '\0' || strcmp(path, "LICENSE") == 0) return true;
    for (size_t i = 0; i < tree->count; i++)
        if (tidy_is_under(tree->files[i].path, path))
            return true; /* the file, or a folder with files */
    return false;
}

void tidy_check_links(const tidy_tree *tree, tidy_report *report)
{
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        if (!tidy_has_suffix(f->path, ".md")) continue;
        for (const char *at = f->text; (at = strstr(at, "](")) != NULL;) {
            at += 2;
            size_t length = strcspn(at, ")\n ");
            if (strncmp(at, "http", 4) == 0 || at[0] == '#' || length > 500) continue;
            char path[1024];
            join(f->path, at, length, path);
            if (!exists(tree, path))
                tidy_report_add(report, f, at, "links to %.*s, which is not there", (int)length,
                                at);
        }
    }
}

/* A block that is not closed swallows what follows it. */
void tidy_check_fences(const tidy_tree *tree, tidy_report *report)
{
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        const char *opened = NULL;
        if (!tidy_has_suffix(f->path, ".md")) continue;
        for (const char *at = f->text; *at != '\0';
             at += tidy_line_length(at) + (at[tidy_line_length(at)] == '\n')) {
            const char *word = at + strspn(at, " ");
            if (strncmp(word, "```", 3) != 0) continue;
            if (opened == NULL)
                opened = word;
            else if (tidy_line_length(word) == 3)
                opened = NULL;
            else
                break; /* another one begins */
        }
        if (opened != NULL)
            tidy_report_add(report, f, opened, "opens a block (```) that is not closed");
    }
}

/* ---- width ---- */

static size_t columns(const char *line)
{
    size_t count = 0;
    for (size_t i = 0; i < tidy_line_length(line); i++)
        count += ((unsigned char)line[i] & 0xc0) != 0x80; /* a character of UTF-8, not a byte */
    return count;
}

/* clang-format does not break comments and strings; a table between its markers keeps its rows. */
void tidy_check_width(const tidy_tree *tree, tidy_report *report)
{
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        bool is_exempt = false;
        if (!tidy_is_c(f->path)) continue;
        for (const char *at = f->text; *at != '\0';
             at += tidy_line_length(at) + (at[tidy_line_length(at)] == '\n')) {
            const char *mark = strstr(at, "/* clang-format o"), *end = at + tidy_line_length(at);
            if (mark != NULL && mark < end)
                is_exempt = strncmp(mark, "/* clang-format off", 19) == 0;
            if (!is_exempt && columns(at) > COLUMNS_MAX)
                tidy_report_add(report, f, at, "a line of %zu columns, of which there are %d",
                                columns(at), COLUMNS_MAX);
        }
    }
}

/* ---- sizes ---- */

static void print_long_functions(const tidy_file *f)
{
    size_t line = 0, start = 0;
    for (const char *at = f->code; *at != '\0';
         at += tidy_line_length(at) + (at[tidy_line_length(at)] == '\n')) {
        line++;
        if (at[0] == '{') start = line;
        if (at[0] == '}' && start != 0) {
            if (line - start > 70)
                printf("  %s:%zu: a function of %zu lines\n", f->path, start, line - start);
            start = 0;
        }
    }
}

void tidy_print_outliers(const tidy_tree *tree)
{
    printf("outliers (an observation, not a failure):\n");
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        if (!tidy_is_c(f->path)) continue;
        size_t lines = 0;
        for (const char *at = f->text; *at != '\0';
             at += tidy_line_length(at) + (at[tidy_line_length(at)] == '\n'))
            lines++;
        if (lines > (tidy_is_under(f->path, "tests") ? 900 : 500))
            printf("  %s: %zu lines\n", f->path, lines);
        print_long_functions(f);
    }
}
