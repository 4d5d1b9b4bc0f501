/* SPDX-License-Identifier: Apache-2.0 */
/* Every query of docs/formats/trace.md runs on a store of the flagship scenario, and those that
** must say something do.
*/
#define _POSIX_C_SOURCE 200809L
#include "tests/golden/cli/program.h"

#include <sqlite3.h>

/* Queries whose answer may be empty say so in the sentence before them. */
static int run_queries(sqlite3 *db, char *document)
{
    int count = 0;
    for (char *at = document; (at = strstr(at, "```sql\n")) != NULL;) {
        char *query = at + strlen("```sql\n"), *end = strstr(query, "```");
        bool may_be_empty = false;
        assert_non_null(end);
        /* The sentence ends two newlines before the fence. */
        for (char *back = at - 3; back > document && !(back[0] == '\n' && back[1] == '\n'); back--)
            may_be_empty = may_be_empty || strncmp(back, "(no row", 7) == 0;
        *end = '\0';
        cd_test_row("%.60s", query);
        sqlite3_stmt *statement = NULL;
        if (sqlite3_prepare_v2(db, query, -1, &statement, NULL) != SQLITE_OK)
            print_error("%s\n%s\n", sqlite3_errmsg(db), query);
        assert_non_null(statement);
        bool returns_rows = sqlite3_column_count(statement) > 0;
        int rows = 0;
        int result;
        while ((result = sqlite3_step(statement)) == SQLITE_ROW) rows++;
        if (result != SQLITE_DONE) print_error("%s\n", sqlite3_errmsg(db));
        assert_int_equal(result, SQLITE_DONE);
        if (returns_rows && !may_be_empty && strstr(query, "FROM findings") == NULL)
            assert_true(rows > 0);
        sqlite3_finalize(statement);
        count++;
        at = end + 1;
    }
    return count;
}

TEST(trace_doc, its_queries_run_on_a_real_store)
{
    cd_program p;
    char path[1200];
    sqlite3 *db = NULL;
    program_open(&p);
    program_run(&p, "scenarios/gan_unused_params.toml --trace \"$T/run.db\"");
    snprintf(path, sizeof path, "%s/run.db", p.place);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    char *document = program_slurp(SOURCE_ROOT "/docs/formats/trace.md");
    assert_int_equal(run_queries(db, document), 13);
    free(document);
    sqlite3_close(db);
    program_close(&p);
}

TEST(trace_doc, every_view_can_be_read)
{
    cd_program p;
    char path[1200];
    sqlite3 *db = NULL;
    sqlite3_stmt *names = NULL;
    int count = 0;
    program_open(&p);
    program_run(&p, "scenarios/gan_unused_params.toml --trace \"$T/run.db\"");
    snprintf(path, sizeof path, "%s/run.db", p.place);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT name FROM sqlite_schema WHERE type = 'view'",
                                        -1, &names, NULL),
                     SQLITE_OK);
    while (sqlite3_step(names) == SQLITE_ROW) {
        char query[200];
        char *message = NULL;
        snprintf(query, sizeof query, "SELECT * FROM \"%s\" WHERE run = 1",
                 (const char *)sqlite3_column_text(names, 0));
        cd_test_row("%s", query);
        sqlite3_exec(db, query, NULL, NULL, &message);
        if (message != NULL) print_error("%s\n", message);
        assert_null(message);
        count++;
    }
    assert_true(count > 50);
    sqlite3_finalize(names);
    sqlite3_close(db);
    program_close(&p);
}

TEST_MAIN()
