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

void st_table_add(st_table *table, const st_case *c, st_end end)
{
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

void st_table_print(const st_table *table, cd_text *text)
{
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

void st_table_page(const st_table *table, const st_measured *measured, const char *known,
                   cd_text *text)
{
    cd_text_printf(
        text,
        "# The self-test of the verifier\n\n"
        "    build/release/tests/selftest/selftest --sample 300     300 cases, drawn by a seed\n"
        "    build/release/tests/selftest/selftest --table FILE     all of them; writes this page\n"
        "    build/release/tests/selftest/selftest --only step.lr   the cases of one place\n\n"
        "The self-test makes the run wrong on purpose, and looks whether the verifier notices. A "
        "case is a world, a\nplace, an operator, one rank or all of them, and one step or all of "
        "them. Only the run is struck: nothing in\n`core/check`, `core/oracle` and "
        "`core/reference`.\n\n"
        "* **struck**: the training ended with other values, or a decision of the plan was "
        "disobeyed. This is computed\n  from a clean run of the same world.\n"
        "* **caught**: the run was not verified.\n"
        "* **blamed right**: the first finding names the struck ranks and no other, the step, and "
        "the tensor, its bucket\n  or the decision. It accuses no backend, and a hook only where "
        "a hook was struck.\n\n"
        "A place is a line such as `CD_POINT_NUMBER(\"step.lr\", t, lr)` in the file that is "
        "struck. "
        "To add one, write the\nline, and add a row with the file to "
        "`tests/selftest/points.def`. In the shipped library and program the line is\nnothing: the "
        "file is compiled a second time for the self-test.\n\n"
        "This page is generated: %zu cases%s, with seed %llu.\n",
        measured->cases, measured->is_sample ? ", a sample" : "",
        (unsigned long long)measured->seed);
    st_table_print(table, text);
    cd_text_printf(text, "\n## Known misses\n\n%s", known);
}
