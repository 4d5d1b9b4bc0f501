/* SPDX-License-Identifier: Apache-2.0 */
/* The schema of a store file.
**
** A file is recognised by three checks: its first hundred bytes (SQLite, our application id), its
** version, and the text of every table. That text must equal db/schema.sql exactly. The third check
** makes a hostile file harmless: a "table" that is a view, is virtual or has a generated column has
** another text. Views are not checked: cddp never reads a file's views, and users may add their
** own.
**
** Not here: the kinds of events (kinds.c), rows (writer.c, reader.c). */
#include "db/schema.h"

#include "cddp/store.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "db/kinds.h"
#include "db/seal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The SQL from version i to i + 1; version 0 is an empty database, which cd_schema_create fills. A
** file of an older version is read as it is, and upgraded inside the first transaction that appends
** to it. */
static const char *const migrations[CDDP_STORE_VERSION] = {cd_schema_tables, cd_schema_seal};

#define VERSION_SEALED 2 /* since then rows have seals */

static uint32_t big_endian(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 |
           (uint32_t)bytes[3];
}

cddp_status cd_schema_probe(const char *path, cd_file_kind *kind, cddp_error *err)
{
    /* SQLite's documented file format gives the header: text at 0, application id at 68. */
    static const char magic[16] = "SQLite format 3";
    unsigned char header[100];
    if (path[0] == '\0') return cd_fail(err, CDDP_E_ARG, "a store needs a file name");
    FILE *file = NULL;
    if (cd_os_is_absent(path)) {
        *kind = CD_FILE_ABSENT;
        return CDDP_OK;
    }
    CD_TRY(cd_os_open_regular(path, &file, err));
    size_t bytes = fread(header, 1, sizeof header, file);
    int problem = ferror(file) ? errno : 0;
    fclose(file);
    if (problem != 0)
        return cd_fail(err, CDDP_E_IO, "cannot read '%s': %s", path, strerror(problem));
    if (bytes == 0) {
        *kind = CD_FILE_EMPTY;
        return CDDP_OK;
    }
    if (bytes < sizeof header || memcmp(header, magic, sizeof magic) != 0)
        return cd_fail(err, CDDP_E_CORRUPT, "'%s' is not a cddp store: it is not an SQLite file",
                       path);
    uint32_t id = big_endian(header + 68);
    if (id != CDDP_STORE_APPLICATION_ID)
        return cd_fail(err, CDDP_E_CORRUPT,
                       "'%s' is an SQLite file of another application (id 0x%08" PRIx32
                       ", a store has 0x%08x)",
                       path, id, (unsigned)CDDP_STORE_APPLICATION_ID);
    *kind = CD_FILE_STORE;
    return CDDP_OK;
}

cddp_status cd_schema_is_blank(cd_sql *sql, bool *blank, cddp_error *err)
{
    int64_t objects = 0;
    CD_TRY(cd_sql_number(sql, "SELECT EXISTS (SELECT 1 FROM sqlite_schema)", &objects, err));
    *blank = objects == 0;
    return CDDP_OK;
}

/* Runs body between BEGIN IMMEDIATE and COMMIT; rolls back when it fails. */
static cddp_status transact(cd_sql *sql,
                            cddp_status (*body)(cd_sql *sql, void *argument, cddp_error *err),
                            void *argument, cddp_error *err)
{
    CD_TRY(cd_sql_exec(sql, "BEGIN IMMEDIATE", err));
    cddp_status status = body(sql, argument, err);
    if (status == CDDP_OK) status = cd_sql_exec(sql, "COMMIT", err);
    if (status != CDDP_OK && !sqlite3_get_autocommit(sql->db))
        sqlite3_exec(sql->db, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

static cddp_status set_version(cd_sql *sql, cddp_error *err)
{
    char text[128];
    snprintf(text, sizeof text, "PRAGMA application_id = %d; PRAGMA user_version = %d",
             CDDP_STORE_APPLICATION_ID, CDDP_STORE_VERSION);
    return CD_PASS(cd_sql_exec(sql, text, err));
}

static cddp_status fill_blank(cd_sql *sql, void *argument, cddp_error *err)
{
    (void)argument;
    bool blank = false;
    CD_TRY(cd_schema_is_blank(sql, &blank, err));
    if (!blank) return CDDP_OK; /* another program created it meanwhile */
    for (size_t i = 0; i < CDDP_STORE_VERSION; i++) CD_TRY(cd_sql_exec(sql, migrations[i], err));
    CD_TRY(cd_kinds_fill(sql, err));
    CD_TRY(cd_seal_add_kinds(sql, err));
    CD_TRY(cd_sql_exec(sql, cd_schema_views, err));
    return CD_PASS(set_version(sql, err));
}

cddp_status cd_schema_create(cd_sql *sql, cddp_error *err)
{
    /* The journal is in rollback mode, so that the application id is in the file itself from the
    ** beginning. */
    CD_TRY(transact(sql, fill_blank, NULL, err));
    return CDDP_OK;
}

typedef struct migration {
    int64_t from;
} migration;

static cddp_status migrate(cd_sql *sql, void *argument, cddp_error *err)
{
    const migration *m = argument;
    for (int64_t version = m->from; version < CDDP_STORE_VERSION; version++)
        CD_TRY(cd_sql_exec(sql, migrations[version], err));
    if (m->from < VERSION_SEALED) CD_TRY(cd_seal_adopt_runs(sql, err));
    CD_TRY(cd_seal_add_kinds(sql, err));
    return CD_PASS(set_version(sql, err));
}

/* The version in the header is one number, so a changed byte makes another version. The seals state
** it too. Asks a table only when its text is that of ours. */
static cddp_status check_stated_version(cd_sql *sql, int64_t version, cddp_error *err)
{
    sqlite3_stmt *select = NULL;
    int64_t stated = 0;
    bool row = false;
    CD_TRY(cd_sql_prepare(sql,
                          "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = 'seal'",
                          &select, err));
    cddp_status status = cd_sql_step(sql, select, &row, err);
    const bool is_ours =
        status == CDDP_OK && row && strstr(cd_schema_seal, cd_sql_text(select, 0)) != NULL;
    sqlite3_finalize(select);
    if (status == CDDP_OK && is_ours) status = cd_seal_find_version(sql, &stated, err);
    if (status != CDDP_OK || stated == 0 || stated == version) return status;
    return cd_fail(err, CDDP_E_CORRUPT,
                   "'%s' is damaged: its header says version %" PRId64
                   ", its table 'seal' version %" PRId64,
                   sql->path, version, stated);
}

static cddp_status check_version(cd_sql *sql, int64_t *version, cddp_error *err)
{
    CD_TRY(cd_sql_number(sql, "PRAGMA user_version", version, err));
    CD_TRY(check_stated_version(sql, *version, err));
    if (*version > CDDP_STORE_VERSION || *version < 1)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "'%s' has store version %" PRId64 "; this program reads versions 1 to %d",
                       sql->path, *version, CDDP_STORE_VERSION);
    return CDDP_OK;
}

static cddp_status refuse_triggers(cd_sql *sql, cddp_error *err)
{
    sqlite3_stmt *statement = NULL;
    bool row = false;
    CD_TRY(cd_sql_prepare(sql, "SELECT name FROM sqlite_schema WHERE type = 'trigger' LIMIT 1",
                          &statement, err));
    cddp_status status = cd_sql_step(sql, statement, &row, err);
    if (status == CDDP_OK && row)
        status = cd_fail(err, CDDP_E_CORRUPT,
                         "'%s' contains a trigger ('%.60s'), which a store never has", sql->path,
                         cd_sql_text(statement, 0));
    sqlite3_finalize(statement);
    return status;
}

/* Compares every table of this version with the one in the file. */
static cddp_status compare_tables(cd_sql *wanted, cd_sql *sql, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    sqlite3_stmt *ours = NULL, *theirs = NULL;
    bool row = true;
    CD_TRY_OUT(
        cd_sql_prepare(wanted,
                       "SELECT name, sql FROM sqlite_schema WHERE type = 'table' ORDER BY name",
                       &ours, err));
    CD_TRY_OUT(cd_sql_prepare(sql,
                              "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?",
                              &theirs, err));
    for (;;) {
        CD_TRY_OUT(cd_sql_step(wanted, ours, &row, err));
        if (!row) break;
        cd_sql_bind_text(theirs, 1, cd_sql_text(ours, 0));
        CD_TRY_OUT(cd_sql_step(sql, theirs, &row, err));
        if (!row) {
            status = cd_fail(err, CDDP_E_CORRUPT, "'%s' is not a cddp store: it has no table '%s'",
                             sql->path, cd_sql_text(ours, 0));
            goto out;
        }
        if (strcmp(cd_sql_text(theirs, 0), cd_sql_text(ours, 1)) != 0) {
            status =
                cd_fail(err, CDDP_E_CORRUPT,
                        "'%s' is not a cddp store: its table '%s' differs from that of version %d",
                        sql->path, cd_sql_text(ours, 0), CDDP_STORE_VERSION);
            goto out;
        }
        sqlite3_reset(theirs);
    }
out:
    sqlite3_finalize(ours);
    sqlite3_finalize(theirs);
    return status;
}

static cddp_status check_tables(cd_sql *sql, int64_t version, cddp_error *err)
{
    cd_sql wanted = {.path = sql->path};
    cddp_status status = CDDP_OK;
    if (sqlite3_open(":memory:", &wanted.db) != SQLITE_OK) {
        status = cd_sql_fail(&wanted, SQLITE_NOMEM, err);
        goto out;
    }
    for (int64_t i = 0; i < version; i++) CD_TRY_OUT(cd_sql_exec(&wanted, migrations[i], err));
    CD_TRY_OUT(compare_tables(&wanted, sql, err));
out:
    cd_sql_close(&wanted);
    return status;
}

static cddp_status bring_up_to_date(cd_sql *sql, int64_t version, cddp_error *err)
{
    if (version < CDDP_STORE_VERSION) CD_TRY(transact(sql, migrate, &(migration){version}, err));
    CD_TRY(transact(sql, cd_kinds_extend, NULL, err));
    sql->is_sealed = true;
    return CDDP_OK;
}

/* A file that is refused is not changed: every check comes first. */
cddp_status cd_schema_adopt(cd_sql *sql, bool writable, cd_kind_map *map, cddp_error *err)
{
    int64_t version = 0;
    CD_TRY(check_version(sql, &version, err));
    CD_TRY(check_tables(sql, version, err));
    CD_TRY(refuse_triggers(sql, err));
    sql->is_sealed = version >= VERSION_SEALED;
    CD_TRY(cd_seal_check_kinds(sql, err));
    CD_TRY(cd_kinds_read(sql, map, err));
    if (!writable) return CDDP_OK;
    CD_TRY(bring_up_to_date(sql, version, err));
    CD_TRY(cd_kinds_read(sql, map, err));
    return CDDP_OK;
}
