/* SPDX-License-Identifier: Apache-2.0 */
/* What the runtime knows of other ranks is read in the places that reads.def lists, and nowhere
** else. */
#include "tests/tidy/tidy.h"

#include <string.h>

static const struct {
    const char *path, *what;
    size_t times;
} reads[] = {
#define READ(path, what, times, why) {path, what, times},
#include "tests/tidy/reads.def"
#undef READ
};
#define READ_COUNT (sizeof reads / sizeof reads[0])

/* A member `host`, or a call of a function. */
static size_t count_reads(const char *code, const char *what, const char **last)
{
    const bool is_call = strncmp(what, "cddp_", 5) == 0;
    const size_t length = strlen(what);
    size_t count = 0;
    for (const char *at = code; (at = strstr(at, what)) != NULL; at += length) {
        if (at == code || tidy_is_word(at[length])) continue;
        const bool is_member = at[-1] == '.' || (at[-1] == '>' && at > code + 1 && at[-2] == '-');
        if (is_call ? tidy_is_word(at[-1]) || at[length] != '(' : !is_member) continue;
        *last = at;
        count++;
    }
    return count;
}

static size_t listed(const char *path, const char *what)
{
    for (size_t i = 0; i < READ_COUNT; i++)
        if (strcmp(reads[i].path, path) == 0 && strcmp(reads[i].what, what) == 0)
            return reads[i].times;
    return 0;
}

void tidy_check_reads(const tidy_tree *tree, tidy_report *report)
{
    static const char *const runtime[] = {"core/ddp", "core/hooks", "core/plan", "core/train",
                                          "core/run"};
    static const char *const whats[] = {"host", "cddp_group_size", "cddp_group_rank"};
    for (size_t i = 0; i < tree->count; i++) {
        const tidy_file *f = &tree->files[i];
        bool is_runtime = false;
        for (size_t w = 0; w < sizeof runtime / sizeof runtime[0]; w++)
            is_runtime |= tidy_is_under(f->path, runtime[w]);
        if (!tidy_is_c(f->path) || !is_runtime) continue;
        for (size_t w = 0; w < sizeof whats / sizeof whats[0]; w++) {
            const char *last = f->code;
            const size_t found = count_reads(f->code, whats[w], &last),
                         wanted = listed(f->path, whats[w]);
            if (found != wanted)
                tidy_report_add(report, f, last,
                                "reads %s %zu times, of which tests/tidy/reads.def explains %zu",
                                whats[w], found, wanted);
        }
    }
}
