/* SPDX-License-Identifier: Apache-2.0 */
/* SQLite in cddp's terms: defensive connections, statements, and one message per failure.
**
** Lifetime   its store opens and closes a cd_sql; statements are finalized before.
** Threads    one at a time; connections are opened without SQLite's own mutex.
** Errors     every message names the file and says what the user can do.
*/
#pragma once
#include "cddp/status.h"

#include <sqlite3.h>

#define CD_SQL_WAIT_MS 10000 /* for another program that has the file open */

typedef struct cd_sql {
    sqlite3 *db;
    const char *path; /* borrows: the store's */
    /* steps that a query may still take; protects against files built to loop */
    uint64_t work_left;
    uint64_t work_budget; /* the budget of each statement */
    bool only_reads;      /* only files beside the store are written */
    bool is_sealed;       /* the file has seals (seal.h) */
    /* the run whose events were compared with their seals last, 0: none; and its last event then */
    int64_t checked_run, checked_last;
} cd_sql;

/* writable: opens or creates the file for appending; otherwise the file is not changed. */
cddp_status cd_sql_open(cd_sql *sql, const char *path, bool writable,
                        cddp_error *err) CDDP_MUST_CHECK;
void cd_sql_close(cd_sql *sql); /* accepts a zeroed one */

/* From now on the budget of a statement is in proportion to the size of the file; before, it is
** fixed. */
cddp_status cd_sql_limit_work(cd_sql *sql, cddp_error *err) CDDP_MUST_CHECK;

cddp_status cd_sql_exec(cd_sql *sql, const char *text, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_sql_prepare(cd_sql *sql, const char *text, sqlite3_stmt **statement,
                           cddp_error *err) CDDP_MUST_CHECK;
/* Fetches one row. At the end *row is false and the statement is reset. */
cddp_status cd_sql_step(cd_sql *sql, sqlite3_stmt *statement, bool *row,
                        cddp_error *err) CDDP_MUST_CHECK;
/* Runs a statement that returns no rows, and resets it. */
cddp_status cd_sql_run(cd_sql *sql, sqlite3_stmt *statement, cddp_error *err) CDDP_MUST_CHECK;
/* Reads the first column of the first row; *value is unchanged when there is no row. */
cddp_status cd_sql_number(cd_sql *sql, const char *text, int64_t *value,
                          cddp_error *err) CDDP_MUST_CHECK;

/* The message for a result code. */
cddp_status cd_sql_fail(const cd_sql *sql, int result, cddp_error *err) CDDP_MUST_CHECK;

/* NULL binds "" ; borrows until reset */
void cd_sql_bind_text(sqlite3_stmt *statement, int index, const char *text);
const char *cd_sql_text(sqlite3_stmt *statement, int column); /* never NULL */
