/* SPDX-License-Identifier: Apache-2.0 */
/* The judge takes from a run what core/reference/observed.def declares, and nothing else: the
** fields are values, and no other function of the judge is called with them. */
#include "tests/tidy/tidy.h"

#include <string.h>

static const char *const moments[] = {
#define CD_OBSERVED(name, doc, fields) #name,
#include "core/reference/observed.def"
};
#define MOMENT_COUNT (sizeof moments / sizeof moments[0])

/* What may be called from outside besides a row's own function: life, and what ranks of a thread
** share. */
static const char *const others[] = {"cd_oracle_share_create",  "cd_oracle_share_destroy",
                                     "cd_reference_share_init", "cd_reference_share_fini",
                                     "cd_referee_create",       "cd_referee_destroy"};

static bool is_entry(const char *name, size_t length)
{
    static const char prefix[] = "cd_referee_";
    const size_t skip = sizeof prefix - 1;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strlen(others[i]) == length && memcmp(others[i], name, length) == 0) return true;
    if (length <= skip || memcmp(name, prefix, skip) != 0) return false;
    for (size_t i = 0; i < MOMENT_COUNT; i++)
        if (strlen(moments[i]) == length - skip &&
            memcmp(moments[i], name + skip, length - skip) == 0)
            return true;
    return false;
}

static void check_calls(const tidy_file *f, const char *prefix, tidy_report *report)
{
    const size_t skip = strlen(prefix);
    for (const char *at = f->code; (at = strstr(at, prefix)) != NULL; at += skip) {
        size_t length = skip;
        while (tidy_is_word(at[length])) length++;
        const bool is_call = at[length] == '(' && (at == f->code || !tidy_is_word(at[-1]));
        if (is_call && !is_entry(at, length)) {
            tidy_report_add(report, f, at,
                            "%.*s: the judge is fed through the rows of "
                            "core/reference/observed.def alone",
                            (int)length, at);
        }
    }
}

/* A field's type is the first argument of its row. */
static void check_fields(const tidy_file *f, tidy_report *report)
{
    static const char row[] = "CD_OBSERVED_FIELD(";
    for (const char *at = f->code; (at = strstr(at, row)) != NULL;) {
        at += sizeof row - 1;
        const size_t length = strcspn(at, ",");
        const bool points =
            memchr(at, '*', length) != NULL || (length >= 4 && memcmp(at, "void", 4) == 0);
        if (points)
            tidy_report_add(report, f, at, "%.*s: a field is a value, or a copy of the judge's",
                            (int)length, at);
    }
}

static bool judges(const char *path)
{
    static const char *const folders[] = {"core/reference", "core/oracle", "tests", "bench"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        if (tidy_is_under(path, folders[i])) return true;
    return false;
}

void tidy_check_observed(const tidy_tree *tree, tidy_report *report)
{
    static const char *const prefixes[] = {"cd_oracle_", "cd_reference_", "cd_referee_"};
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        if (strcmp(f->path, "core/reference/observed.def") == 0) check_fields(f, report);
        if (!tidy_is_c(f->path) || judges(f->path)) continue;
        for (size_t p = 0; p < sizeof prefixes / sizeof prefixes[0]; p++)
            check_calls(f, prefixes[p], report);
    }
}
