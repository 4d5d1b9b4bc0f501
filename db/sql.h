/* SPDX-License-Identifier: Apache-2.0 */
/* SQLite in cddp's terms: defensive connections, statements, and failures as one sentence.
**
** Lifetime   a cd_sql is opened and closed by its store; statements are finalized before it.
** Threads    one at a time; connections are opened without SQLite's own mutex.
** Errors     every failure names the file and says what a person can do about it.
*/
#pragma once
#include "cddp/status.h"

#include <sqlite3.h>

#define CD_SQL_WAIT_MS 10000 /* for another program that holds the file */

typedef struct cd_sql {
    sqlite3 *db;
    const char *path;     /* borrows: the store's */
    uint64_t work_left;   /* steps a query may still take; guards against files built to loop */
    uint64_t work_budget; /* what each statement gets */
    bool only_reads;      /* whatever is written is beside the file */
} cd_sql;

/* writable: opens or creates for appending; otherwise nothing is changed. */
cddp_status cd_sql_open(cd_sql *sql, const char *path, bool writable,
                        cddp_error *err) CDDP_MUST_CHECK;
void cd_sql_close(cd_sql *sql); /* accepts a zeroed one */

/* Gives each statement that follows an amount of work in proportion to the size of the file;
** before, it is fixed. */
cddp_status cd_sql_limit_work(cd_sql *sql, cddp_error *err) CDDP_MUST_CHECK;

cddp_status cd_sql_exec(cd_sql *sql, const char *text, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_sql_prepare(cd_sql *sql, const char *text, sqlite3_stmt **statement,
                           cddp_error *err) CDDP_MUST_CHECK;
/* One row, or the end: then *row is false and the statement is reset. */
cddp_status cd_sql_step(cd_sql *sql, sqlite3_stmt *statement, bool *row,
                        cddp_error *err) CDDP_MUST_CHECK;
/* Runs a statement that returns no row, and resets it. */
cddp_status cd_sql_run(cd_sql *sql, sqlite3_stmt *statement, cddp_error *err) CDDP_MUST_CHECK;
/* The first column of the first row; *value keeps what it had when there is none. */
cddp_status cd_sql_number(cd_sql *sql, const char *text, int64_t *value,
                          cddp_error *err) CDDP_MUST_CHECK;

/* The sentence for a result code. */
cddp_status cd_sql_fail(const cd_sql *sql, int result, cddp_error *err) CDDP_MUST_CHECK;

/* NULL binds "" ; borrows until reset */
void cd_sql_bind_text(sqlite3_stmt *statement, int index, const char *text);
const char *cd_sql_text(sqlite3_stmt *statement, int column); /* never NULL */
