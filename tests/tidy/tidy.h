/* SPDX-License-Identifier: Apache-2.0 */
/* The tree as text, and the rules that read it. Each rule reports lines "path:line: what is wrong".
**
** Lifetime   a tree is loaded, or filled by hand in tests, then freed whole.
** Threads    one.
*/
#pragma once
#include <stdbool.h>
#include <stddef.h>

typedef struct tidy_file {
    char *path; /* relative to the root, with '/' */
    char *text;
    /* the same length; comments, strings and character constants are blanks. C and C++ only */
    char *code;
} tidy_file;

typedef struct tidy_tree {
    tidy_file *files; /* (count) in the order of their paths */
    size_t count, capacity;
} tidy_tree;

typedef struct tidy_report {
    size_t count;
    char *text; /* one line per report, NUL-terminated; NULL while count is 0 */
    size_t used, capacity;
} tidy_report;

void tidy_tree_load(tidy_tree *tree, const char *root); /* asserts that the root can be read */
void tidy_tree_add(tidy_tree *tree, const char *path, const char *text);
void tidy_tree_free(tidy_tree *tree);
/* NULL when there is none */
const tidy_file *tidy_tree_find(const tidy_tree *tree, const char *path);
void tidy_report_add(tidy_report *report, const tidy_file *file, const char *at, const char *format,
                     ...) __attribute__((format(printf, 4, 5)));
void tidy_report_free(tidy_report *report);

/* ---- helpers on text ---- */
bool tidy_has_suffix(const char *path, const char *suffix);
bool tidy_is_c(const char *path); /* .c .h .cc .cu */
/* "core/base/os.h" is under "core" and "core/base" */
bool tidy_is_under(const char *path, const char *folder);
/* "core sim" names folder "core"; "*" names every one. */
bool tidy_list_has(const char *list, const char *folder);
bool tidy_is_word(char c); /* of an identifier */
size_t tidy_line_length(const char *at);

/* ---- the rules ---- */
typedef void (*tidy_rule_fn)(const tidy_tree *tree, tidy_report *report);
/* include lines, and USES of cddp_module */
void tidy_check_layers(const tidy_tree *tree, tidy_report *report);
void tidy_check_system(const tidy_tree *tree, tidy_report *report); /* system headers by place */
void tidy_check_bans(const tidy_tree *tree, tidy_report *report);   /* calls of bans.def */
/* reserved names; decisions by name */
void tidy_check_names(const tidy_tree *tree, tidy_report *report);
/* mutable variables of static storage */
void tidy_check_globals(const tidy_tree *tree, tidy_report *report);
void tidy_check_macros(const tidy_tree *tree, tidy_report *report); /* jumps hidden in #define */
/* tail calls without CD_PASS */
void tidy_check_frames(const tidy_tree *tree, tidy_report *report);
/* bodies of one line in braces, chains of both kinds */
void tidy_check_braces(const tidy_tree *tree, tidy_report *report);
void tidy_check_notes(const tidy_tree *tree, tidy_report *report); /* dangling Note citations */
/* rule tags and invariant names */
void tidy_check_tags(const tidy_tree *tree, tidy_report *report);
/* upstream's tests and observations are cited */
void tidy_check_shown(const tidy_tree *tree, tidy_report *report);
void tidy_check_spdx(const tidy_tree *tree, tidy_report *report); /* the licence line */
/* deferred work, code commented out by #if 0 */
void tidy_check_leftovers(const tidy_tree *tree, tidy_report *report);
/* core/plan/marks.def has those that are emitted, and no others */
void tidy_check_marks(const tidy_tree *tree, tidy_report *report);
/* every check has a mutant */
void tidy_check_pairs(const tidy_tree *tree, tidy_report *report);
/* each one's memory runs out somewhere */
void tidy_check_constructors(const tidy_tree *tree, tidy_report *report);
void tidy_check_width(const tidy_tree *tree, tidy_report *report); /* lines over 100 columns */
/* blocks of Markdown files that nobody closes */
void tidy_check_fences(const tidy_tree *tree, tidy_report *report);
/* relative links of Markdown files */
void tidy_check_links(const tidy_tree *tree, tidy_report *report);
/* files that comments and pages name */
void tidy_check_references(const tidy_tree *tree, tidy_report *report);
/* what the runtime learns of other ranks */
void tidy_check_reads(const tidy_tree *tree, tidy_report *report);
/* what reaches the judge, against core/reference/observed.def */
void tidy_check_observed(const tidy_tree *tree, tidy_report *report);
/* words of words.def, long sentences; in what is clean already */
void tidy_check_prose(const tidy_tree *tree, tidy_report *report);
/* The same of the whole tree: not a rule as long as prose is being mended. */
void tidy_check_all_prose(const tidy_tree *tree, tidy_report *report);
/* Not a rule: prints files and functions far above the house's sizes. */
void tidy_print_outliers(const tidy_tree *tree);
