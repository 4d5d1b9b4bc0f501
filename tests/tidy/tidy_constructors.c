/* SPDX-License-Identifier: Apache-2.0 */
/* Every constructor that can fail has a row in constructors.def, and every row a constructor and a
** test. */
#include "tests/tidy/tidy.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *test, *through; /* test NULL: a reason stands there */
} rows[] = {
#define STARVED(constructor, test, through) {#constructor, test, #through},
#define FED(constructor, why) {#constructor, NULL, why},
#include "tests/tidy/constructors.def"
#undef FED
#undef STARVED
};
#define ROW_COUNT (sizeof rows / sizeof rows[0])

static bool has_verb(const char *name, size_t length)
{
    static const char *const verbs[] = {"_create", "_open", "_init"};
    for (size_t v = 0; v < sizeof verbs / sizeof verbs[0]; v++) {
        size_t n = strlen(verbs[v]);
        for (const char *at = name; at + n <= name + length; at++)
            if (strncmp(at, verbs[v], n) == 0 && (at + n == name + length || at[n] == '_'))
                return true;
    }
    return false;
}

/* Finds the next declaration `cddp_status cd…_create(` and the like; *length is of the name. */
static const char *next_constructor(const char *code, const char *at, size_t *length)
{
    static const char type[] = "cddp_status ";
    while ((at = strstr(at, type)) != NULL) {
        bool starts = at == code || !tidy_is_word(at[-1]);
        at += sizeof type - 1;
        *length = 0;
        while (tidy_is_word(at[*length])) ++*length;
        bool ours = strncmp(at, "cd_", 3) == 0 || strncmp(at, "cddp_", 5) == 0;
        if (starts && ours && at[*length] == '(' && has_verb(at, *length)) return at;
    }
    return NULL;
}

static void check_row(const tidy_tree *tree, const tidy_file *header, const char *at, size_t row,
                      tidy_report *report)
{
    if (rows[row].test == NULL) return;
    const tidy_file *test = tidy_tree_find(tree, rows[row].test);
    if (test == NULL)
        tidy_report_add(report, header, at, "%s: its test %s is not there", rows[row].name,
                        rows[row].test);
    else if (strstr(test->code, "cd_test_oom_loop(") == NULL &&
             strstr(test->code, "fail_at") == NULL && strstr(test->code, "heap_bytes") == NULL)
        tidy_report_add(report, header, at, "%s: no allocation fails in %s", rows[row].name,
                        rows[row].test);
    else if (strstr(test->code, rows[row].through) == NULL)
        tidy_report_add(report, header, at, "%s: %s does not name %s", rows[row].name,
                        rows[row].test, rows[row].through);
}

void tidy_check_constructors(const tidy_tree *tree, tidy_report *report)
{
    bool seen[ROW_COUNT] = {false};
    size_t length;
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        bool ours = tidy_has_suffix(f->path, ".h") && !tidy_is_under(f->path, "tests") &&
                    !tidy_is_under(f->path, "bench") && !tidy_is_under(f->path, "examples");
        if (!ours) continue;
        for (const char *at = f->code; (at = next_constructor(f->code, at, &length)) != NULL;) {
            size_t row = 0;
            while (row < ROW_COUNT &&
                   (strlen(rows[row].name) != length || memcmp(rows[row].name, at, length) != 0))
                row++;
            if (row == ROW_COUNT) {
                tidy_report_add(report, f, at,
                                "%.*s has no row in tests/tidy/constructors.def: where does its "
                                "memory run out?",
                                (int)length, at);
            } else if (!seen[row]) {
                seen[row] = true;
                check_row(tree, f, at, row, report);
            }
        }
    }
    const tidy_file *table = tidy_tree_find(tree, "tests/tidy/constructors.def");
    for (size_t row = 0; table != NULL && row < ROW_COUNT; row++)
        if (!seen[row])
            tidy_report_add(report, table, table->text, "%s is no constructor any more",
                            rows[row].name);
}
