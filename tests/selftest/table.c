/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the self-test, as text and as the page docs/selftest.md. */
#include "tests/selftest/table.h"

#include "core/base/error.h"

#include <stdlib.h>

cddp_status st_table_open(st_table *table, cddp_error *err)
{
    *table = (st_table){.points = calloc(st_point_count, sizeof *table->points),
                        .worlds = calloc(st_world_count, sizeof *table->worlds)};
    if (table->points == NULL || table->worlds == NULL) {
        st_table_close(table);
        return cd_fail_memory(err, "the table of the self-test");
    }
    return CDDP_OK;
}

void st_table_close(st_table *table)
{
    free(table->points);
    free(table->worlds);
    *table = (st_table){.points = NULL};
}

void st_table_add(st_table *table, const st_case *c, const st_outcome *outcome, bool is_argued)
{
    const st_end end = outcome->end;
    const bool is_miss = end == ST_END_MISSED || end == ST_END_CRASHED;
    table->kinds[outcome->kind].ends[end]++;
    table->argued[outcome->kind] += is_miss && is_argued;
    table->all.ends[end]++;
    table->operators[c->op].ends[end]++;
    table->points[c->point].ends[end]++;
    table->worlds[c->world].ends[end]++;
}

size_t st_count_struck(const st_count *count)
{
    size_t struck = 0;
    for (size_t i = ST_END_SILENT + 1; i < ST_ENDS; i++) struck += count->ends[i];
    return struck;
}

size_t st_count_missed(const st_count *count)
{
    return count->ends[ST_END_MISSED] + count->ends[ST_END_CRASHED];
}

size_t st_count_caught(const st_count *count)
{
    return count->ends[ST_END_CAUGHT] + count->ends[ST_END_BLAMED];
}

static void print_row(cd_text *text, const char *name, const char *doc, const st_count *count)
{
    if (st_count_struck(count) == 0) return;
    cd_text_printf(text, "| %s | %s | %zu | %zu | %zu |\n", name, doc, st_count_struck(count),
                   st_count_caught(count), count->ends[ST_END_BLAMED]);
}

static void print_head(cd_text *text, const char *what)
{
    cd_text_printf(text,
                   "\n| %s | what | struck | caught | blamed right |\n|---|---|---|---|---|\n",
                   what);
}

void st_table_first(const st_table *table, cd_text *text)
{
    const st_count *trainings = &table->kinds[ST_TRAINING];
    const size_t missed = st_count_missed(trainings), argued = table->argued[ST_TRAINING];
    cd_text_printf(text,
                   "Of %zu wrong trainings the verifier calls %zu verified, %zu of them with an "
                   "argument.\n",
                   st_count_struck(trainings), missed, argued);
}

/* In hundredths of a percent, rounded down: only all of them are 100. */
static double share(size_t part, size_t whole)
{
    return whole > 0 ? (double)(10000 * part / whole) / 100.0 : 100.0;
}

static void print_classes(const st_table *table, cd_text *text)
{
    cd_text_push(text,
                 "\n| what is wrong | struck | caught | missed, argued | missed | blamed right |\n"
                 "|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < ST_CLASSES; i++) {
        const st_count *n = &table->kinds[i];
        cd_text_printf(text, "| %s | %zu | %zu (%.2f%%) | %zu | %zu | %zu (%.2f%%) |\n",
                       st_class_names[i], st_count_struck(n), st_count_caught(n),
                       share(st_count_caught(n), st_count_struck(n)), table->argued[i],
                       st_count_missed(n) - table->argued[i], n->ends[ST_END_BLAMED],
                       share(n->ends[ST_END_BLAMED], st_count_struck(n)));
    }
}

void st_table_print(const st_table *table, cd_text *text)
{
    print_classes(table, text);
    print_head(text, "operator");
    for (size_t i = 0; i < ST_OPERATORS; i++)
        print_row(text, st_operators[i].name, st_operators[i].doc, &table->operators[i]);
    print_row(text, "all", "", &table->all);
    print_head(text, "world");
    for (size_t i = 0; i < st_world_count; i++)
        print_row(text, st_worlds[i].name, st_worlds[i].scenario, &table->worlds[i]);
    print_head(text, "place");
    for (size_t i = 0; i < st_point_count; i++)
        print_row(text, st_points[i].place, st_points[i].doc, &table->points[i]);
}

void st_table_page(const st_table *table, const st_measured *measured, const st_lists *lists,
                   cd_text *text)
{
    cd_text_push(text, "# The self-test of the verifier\n\n");
    st_table_first(table, text);
    cd_text_push(
        text,
        "\n"
        "    build/release/tests/selftest/selftest --sample 300     300 cases, drawn by a seed\n"
        "    build/release/tests/selftest/selftest --only step.lr   the cases of one place\n"
        "    build/release/tests/selftest/selftest --journal FILE --minutes 10 --table PAGE\n"
        "                                                           all of them, in parts\n\n"
        "The self-test makes the run wrong on purpose, and looks whether the verifier notices. A "
        "case is a world, a\nplace, an operator, one rank or all of them, and one step or all of "
        "them. Only the run is struck: nothing in\n`core/check`, `core/oracle` and "
        "`core/reference`.\n\n"
        "* **struck**: one of three things is wrong. This is computed from a clean run of the "
        "same world.\n"
        "  * A **wrong training**: a rank ended with other values, or did not end.\n"
        "  * A **disobeyed decision**: the values are the same, but a decision of the plan was "
        "disobeyed on the way.\n"
        "  * A **wrong copy**: the training was right. The judge was shown something else, or "
        "less.\n"
        "* **caught**: the run was not verified.\n"
        "* **blamed right**: the first finding names the struck ranks and no other, the step, and "
        "the tensor, its bucket\n  or the decision. It accuses no backend, and a hook only where "
        "a hook was struck.\n\n"
        "A place is a line such as `CD_POINT_NUMBER(\"step.lr\", t, lr)` in the file that is "
        "struck. "
        "To add one, write the\nline, and add a row with the file to "
        "`tests/selftest/points.def`. In the shipped library and program the line is\nnothing: the "
        "file is compiled a second time for the self-test. The build fails where a field of\n"
        "`core/reference/observed.def`, a moment or a decision has no place.\n\n"
        "A journal keeps what was measured. The next call with the same file goes on from there, "
        "in "
        "an order that the\nseed draws: what is there is a sample.\n\n");
    cd_text_printf(text, "This page is generated: %zu of %zu cases, with seed %llu.\n",
                   measured->cases, measured->of, (unsigned long long)measured->seed);
    st_table_print(table, text);
    cd_text_printf(text, "\n## Misses without an argument\n\n%s", lists->open);
    cd_text_printf(text, "\n## Misses with an argument\n\n%s", lists->argued);
    if (lists->slack[0] != '\0') cd_text_printf(text, "\n%s", lists->slack);
}
