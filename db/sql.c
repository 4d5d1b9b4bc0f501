/* SPDX-License-Identifier: Apache-2.0 */
/* SQLite in cddp's terms.
**
** A store may come from an untrusted source. So every connection has triggers, views, extensions
** and the file's schema functions switched off, and small limits. Reading may do work in proportion
** to the size of the file: pages that refer to each other in a cycle end in an error, not in an
** endless query.
**
** Not here: the tables (schema.c), writing (writer.c) and reading (reader.c). */
#include "db/sql.h"

#include "core/base/error.h"
#include "core/base/os.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Instructions of SQLite's virtual machine between two checks of the budget, and per byte of file.
** A stored event has at least 16 bytes, and reading it takes about 100 instructions. */
#define WORK_SLICE 4096
#define WORK_PER_BYTE 64
#define WORK_FLOOR 50000000

static const struct {
    int id, value;
} limits[] = {
    {SQLITE_LIMIT_LENGTH, 64 * 1024 * 1024},
    {SQLITE_LIMIT_SQL_LENGTH, 256 * 1024},
    {SQLITE_LIMIT_COLUMN, 64},
    {SQLITE_LIMIT_EXPR_DEPTH, 64},
    {SQLITE_LIMIT_COMPOUND_SELECT, 16},
    {SQLITE_LIMIT_VDBE_OP, 50000},
    {SQLITE_LIMIT_FUNCTION_ARG, 32},
    {SQLITE_LIMIT_ATTACHED, 0},
    {SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 128},
    {SQLITE_LIMIT_VARIABLE_NUMBER, 64},
    {SQLITE_LIMIT_TRIGGER_DEPTH, 1},
    {SQLITE_LIMIT_WORKER_THREADS, 0},
};

static const struct {
    int id, value;
} switches[] = {
    {SQLITE_DBCONFIG_DEFENSIVE, 1},
    {SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0},
    {SQLITE_DBCONFIG_ENABLE_TRIGGER, 0},
    {SQLITE_DBCONFIG_ENABLE_VIEW, 0},
    {SQLITE_DBCONFIG_DQS_DML, 0},
    {SQLITE_DBCONFIG_DQS_DDL, 0},
    {SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0},
};

static cddp_status shortage_of(int result, int system_error)
{
    return (result & 0xff) == SQLITE_FULL ? CDDP_E_NOMEM : cd_error_of_errno(system_error);
}

/* SQLite does not keep the number of every failure. Under a limit on the size of files a failure to
** write is most likely that. */
static bool find_size_limit(char *text, size_t text_bytes)
{
    const uint64_t limit = cd_os_file_bytes_max();
    if (limit == UINT64_MAX) return false;
    snprintf(text, text_bytes, "a file of this process may have at most %llu KiB (ulimit -f)",
             (unsigned long long)limit / 1024);
    return true;
}

cddp_status cd_sql_fail(const cd_sql *sql, int result, cddp_error *err)
{
    const char *path = sql->path;
    char limit[96];
    int system_error = sql->db != NULL ? sqlite3_system_errno(sql->db) : 0;
    const bool is_read = result == SQLITE_IOERR_READ || result == SQLITE_IOERR_SHORT_READ;
    /* A reader also writes, beside the file, when the writer was stopped or is still writing. */
    if (sql->only_reads && !is_read &&
        ((result & 0xff) == SQLITE_FULL || (result & 0xff) == SQLITE_IOERR))
        return cd_fail(err, shortage_of(result, system_error),
                       "cannot read '%s': a writer has it open or was stopped, and reading then "
                       "needs room beside it: %s",
                       path, system_error != 0 ? strerror(system_error) : sqlite3_errstr(result));
    switch (result & 0xff) {
    case SQLITE_FULL:
        return cd_fail(err, CDDP_E_NOMEM,
                       "cannot write '%s': the disk is full; earlier commits are kept", path);
    case SQLITE_IOERR:
        if (!is_read && (system_error == 0 || system_error == EFBIG) &&
            find_size_limit(limit, sizeof limit))
            return cd_fail(err, CDDP_E_NOMEM, "cannot write '%s': %s; earlier commits are kept",
                           path, limit);
        return cd_fail(err, cd_error_of_errno(system_error),
                       "cannot %s '%s': %s; earlier commits are kept", is_read ? "read" : "write",
                       path, system_error != 0 ? strerror(system_error) : sqlite3_errstr(result));
    case SQLITE_NOTADB:
        return cd_fail(err, CDDP_E_CORRUPT, "'%s' is not a cddp store: it is not an SQLite file",
                       path);
    case SQLITE_CORRUPT:
        return cd_fail(err, CDDP_E_CORRUPT, "'%s' is damaged (%s)", path,
                       sql->db != NULL ? sqlite3_errmsg(sql->db) : sqlite3_errstr(result));
    case SQLITE_READONLY:
        return cd_fail(err, CDDP_E_IO, "cannot write '%s': the file or its folder is read-only",
                       path);
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
        return cd_fail(err, cd_error_of_errno(system_error), "cannot open '%s': %s", path,
                       system_error != 0 ? strerror(system_error)
                                         : "it, or a file beside it, cannot be opened");
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return cd_fail(err, CDDP_E_IO, "'%s' is in use: another program is writing to it", path);
    case SQLITE_NOMEM:
        return cd_fail_memory(err, "the store '%s'", path);
    case SQLITE_TOOBIG:
        return cd_fail(err, CDDP_E_LIMIT, "'%s' holds a value larger than 64 MiB", path);
    case SQLITE_INTERRUPT:
        return cd_fail(err, CDDP_E_CORRUPT,
                       "'%s' is damaged: reading it takes more work than its size allows", path);
    default:
        return cd_fail(err, CDDP_E_CORRUPT, "'%s' cannot be used as a store: %s", path,
                       sql->db != NULL ? sqlite3_errmsg(sql->db) : sqlite3_errstr(result));
    }
}

static int spend_work(void *context)
{
    cd_sql *sql = context;
    if (sql->work_left <= WORK_SLICE) return 1;
    sql->work_left -= WORK_SLICE;
    return 0;
}

static cddp_status configure(cd_sql *sql, bool writable, cddp_error *err)
{
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        int result = sqlite3_db_config(sql->db, switches[i].id, switches[i].value, (int *)NULL);
        if (result != SQLITE_OK) return CD_PASS(cd_sql_fail(sql, result, err));
    }
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        sqlite3_limit(sql->db, limits[i].id, limits[i].value);
    sqlite3_busy_timeout(sql->db, CD_SQL_WAIT_MS);
    sqlite3_extended_result_codes(sql->db, 1);
    sqlite3_progress_handler(sql->db, WORK_SLICE, spend_work, sql);
    CD_TRY(cd_sql_exec(sql, "PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0", err));
    if (!writable) CD_TRY(cd_sql_exec(sql, "PRAGMA query_only = ON", err));
    return CDDP_OK;
}

static cddp_status open_as(cd_sql *sql, const char *path, bool writable, cddp_error *err)
{
    *sql = (cd_sql){.path = path, .work_left = WORK_FLOOR, .work_budget = WORK_FLOOR};
    cddp_status status = CDDP_OK;
    /* A leading "./" keeps names such as ":memory:" from meaning anything but a file. */
    char *name = sqlite3_mprintf("%s%s", path[0] == '/' ? "" : "./", path);
    if (name == NULL) return CD_PASS(cd_sql_fail(sql, SQLITE_NOMEM, err));
    int flags = SQLITE_OPEN_NOMUTEX |
                (writable ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY);
    int result = sqlite3_open_v2(name, &sql->db, flags, NULL);
    sqlite3_free(name);
    if (result != SQLITE_OK) status = cd_sql_fail(sql, result, err);
    if (status == CDDP_OK) status = configure(sql, writable, err);
    if (status != CDDP_OK) cd_sql_close(sql);
    return status;
}

/* Whether a transaction was left half written beside the file: only who may write can take it
** back. */
static bool is_half_written(cd_sql *sql)
{
    (void)sqlite3_exec(sql->db, "SELECT 1 FROM sqlite_schema LIMIT 1", NULL, NULL, NULL);
    int result = sqlite3_extended_errcode(sql->db);
    return result == SQLITE_READONLY_ROLLBACK || result == SQLITE_READONLY_RECOVERY;
}

cddp_status cd_sql_open(cd_sql *sql, const char *path, bool writable, cddp_error *err)
{
    int64_t tables = 0;
    CD_TRY(open_as(sql, path, writable, err));
    sql->only_reads = !writable;
    if (writable || !is_half_written(sql)) return CDDP_OK;
    cd_sql_close(sql);
    CD_TRY(open_as(sql, path, true, err));
    sql->only_reads = true;
    cddp_status status = cd_sql_number(sql, "SELECT count(*) FROM sqlite_schema", &tables, err);
    if (status != CDDP_OK && (sqlite3_errcode(sql->db) & 0xff) == SQLITE_READONLY)
        status = cd_fail(err, CDDP_E_IO,
                         "'%s' was left half written by a program that was stopped; to put it "
                         "right, the file and its "
                         "folder must be writable",
                         path);
    cd_sql_close(sql);
    if (status == CDDP_OK) status = open_as(sql, path, false, err);
    sql->only_reads = true;
    return status;
}

void cd_sql_close(cd_sql *sql)
{
    if (sql->db != NULL) sqlite3_close(sql->db);
    sql->db = NULL;
}

cddp_status cd_sql_limit_work(cd_sql *sql, cddp_error *err)
{
    int64_t pages = 0, page_bytes = 0;
    CD_TRY(cd_sql_number(sql, "PRAGMA page_count", &pages, err));
    CD_TRY(cd_sql_number(sql, "PRAGMA page_size", &page_bytes, err));
    sql->work_budget = WORK_FLOOR + WORK_PER_BYTE * (uint64_t)pages * (uint64_t)page_bytes;
    sql->work_left = sql->work_budget;
    return CDDP_OK;
}

cddp_status cd_sql_exec(cd_sql *sql, const char *text, cddp_error *err)
{
    sql->work_left = sql->work_budget;
    int result = sqlite3_exec(sql->db, text, NULL, NULL, NULL);
    return CD_PASS(result == SQLITE_OK ? CDDP_OK : cd_sql_fail(sql, result, err));
}

cddp_status cd_sql_prepare(cd_sql *sql, const char *text, sqlite3_stmt **statement, cddp_error *err)
{
    sqlite3_stmt *prepared = NULL;
    sql->work_left = sql->work_budget;
    int result = sqlite3_prepare_v3(sql->db, text, -1, SQLITE_PREPARE_PERSISTENT, &prepared, NULL);
    if (result != SQLITE_OK) return CD_PASS(cd_sql_fail(sql, result, err));
    *statement = prepared;
    return CDDP_OK;
}

cddp_status cd_sql_step(cd_sql *sql, sqlite3_stmt *statement, bool *row, cddp_error *err)
{
    int result = sqlite3_step(statement);
    if (result == SQLITE_ROW) {
        *row = true;
        return CDDP_OK;
    }
    cddp_status status = result == SQLITE_DONE ? CDDP_OK : cd_sql_fail(sql, result, err);
    sqlite3_reset(statement);
    sql->work_left = sql->work_budget;
    if (status == CDDP_OK) *row = false;
    return status;
}

cddp_status cd_sql_run(cd_sql *sql, sqlite3_stmt *statement, cddp_error *err)
{
    bool row = true;
    while (row) CD_TRY(cd_sql_step(sql, statement, &row, err));
    return CDDP_OK;
}

cddp_status cd_sql_number(cd_sql *sql, const char *text, int64_t *value, cddp_error *err)
{
    sqlite3_stmt *statement = NULL;
    bool row = false;
    CD_TRY(cd_sql_prepare(sql, text, &statement, err));
    cddp_status status = cd_sql_step(sql, statement, &row, err);
    if (status == CDDP_OK && row && sqlite3_column_type(statement, 0) != SQLITE_NULL)
        *value = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    return status;
}

void cd_sql_bind_text(sqlite3_stmt *statement, int index, const char *text)
{
    sqlite3_bind_text(statement, index, text != NULL ? text : "", -1, SQLITE_STATIC);
}

const char *cd_sql_text(sqlite3_stmt *statement, int column)
{
    const unsigned char *text = sqlite3_column_text(statement, column);
    return text != NULL ? (const char *)text : "";
}
