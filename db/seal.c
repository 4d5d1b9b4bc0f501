/* SPDX-License-Identifier: Apache-2.0 */
/* Seals of rows.
**
** A digest begins as 0 and takes in row after row, in the order of the primary key. A row is one
** block of words: first the types of its columns, two bits each, then a word per column. A number
** is its word, a real number has its bits, a text its digest, NULL is 0.
**
** A seal is made from the values, not from the pages of the file: an index, a VACUUM or another
** version of SQLite changes none. It tells chance from what was written. Whoever forges a file can
** forge its seals.
**
** Not here: when seals are written (writer.c, schema.c). */
#include "db/seal.h"

#include "cddp/store.h"
#include "core/base/error.h"
#include "core/base/hash.h"

#include <inttypes.h>
#include <string.h>

enum { TYPE_NULL, TYPE_NUMBER, TYPE_REAL, TYPE_TEXT };

static void add_word(cd_seal_row *row, uint64_t type, uint64_t word)
{
    row->words[0] |= type << (2 * row->count);
    row->words[++row->count] = word;
}

void cd_seal_add_null(cd_seal_row *row) { add_word(row, TYPE_NULL, 0); }

void cd_seal_add_number(cd_seal_row *row, int64_t value)
{
    add_word(row, TYPE_NUMBER, (uint64_t)value);
}

void cd_seal_add_real(cd_seal_row *row, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_word(row, TYPE_REAL, bits);
}

void cd_seal_add_text(cd_seal_row *row, const char *text, size_t byte_count)
{
    add_word(row, TYPE_TEXT, cd_hash64(text, byte_count, 0));
}

uint64_t cd_seal_end_row(cd_seal_row *row, uint64_t digest)
{
    digest = cd_hash64(row->words, (1 + row->count) * sizeof row->words[0], digest);
    row->words[0] = 0;
    row->count = 0;
    return digest;
}

/* The digest after the row at which a statement stands. */
static uint64_t digest_row(sqlite3_stmt *statement, uint64_t digest)
{
    cd_seal_row row = {.count = 0};
    const int count = sqlite3_column_count(statement);
    for (int i = 0; i < count && i < CD_SEAL_COLUMNS_MAX; i++)
        switch (sqlite3_column_type(statement, i)) {
        case SQLITE_INTEGER:
            cd_seal_add_number(&row, sqlite3_column_int64(statement, i));
            break;
        case SQLITE_FLOAT:
            cd_seal_add_real(&row, sqlite3_column_double(statement, i));
            break;
        case SQLITE_NULL:
            cd_seal_add_null(&row);
            break;
        default: { /* the text first: it may change how many bytes there are */
            const char *text = cd_sql_text(statement, i);
            cd_seal_add_text(&row, text, (size_t)sqlite3_column_bytes(statement, i));
        } break;
        }
    return cd_seal_end_row(&row, digest);
}

/* Goes on with *digest over the rows of a query, whose parameter ?1 is the run. */
static cddp_status digest_rows(cd_sql *sql, const char *query, int64_t run, int64_t *count,
                               uint64_t *digest, cddp_error *err)
{
    sqlite3_stmt *select = NULL;
    cddp_status status = CDDP_OK;
    CD_TRY(cd_sql_prepare(sql, query, &select, err));
    sqlite3_bind_int64(select, 1, run);
    for (bool row = true;;) {
        CD_TRY_OUT(cd_sql_step(sql, select, &row, err));
        if (!row) break;
        *digest = digest_row(select, *digest);
        ++*count;
    }
out:
    sqlite3_finalize(select);
    return status;
}

/* ---- what is sealed as one ---- */

typedef struct sealed_table {
    const char *name, *query;
} sealed_table;

/* Rows of a run that are sealed when it ends. */
static const struct {
    cd_sealed part;
    sealed_table table;
} ended[] = {
    {CD_SEALED_FINDINGS, {"finding", "SELECT * FROM finding WHERE run = ?1 ORDER BY position"}},
    {CD_SEALED_FINDINGS,
     {"finding_rank", "SELECT * FROM finding_rank WHERE run = ?1 ORDER BY position, rank"}},
    {CD_SEALED_FINDINGS,
     {"finding_event", "SELECT * FROM finding_event WHERE run = ?1 ORDER BY position, ordinal"}},
    {CD_SEALED_EXERCISED,
     {"exercised", "SELECT * FROM exercised WHERE run = ?1 ORDER BY position"}},
    {CD_SEALED_METRICS, {"metric", "SELECT * FROM metric WHERE run = ?1 ORDER BY name"}},
    {CD_SEALED_PARAMETERS,
     {"parameter", "SELECT * FROM parameter WHERE run = ?1 ORDER BY param, ordinal"}},
};

/* Tables of all runs, sealed as run 0. */
static const sealed_table shared[] = {
    {"kind", "SELECT * FROM kind WHERE ?1 = 0 ORDER BY id"},
    {"field", "SELECT * FROM field WHERE ?1 = 0 ORDER BY kind, position"},
    {"enumeration", "SELECT * FROM enumeration WHERE ?1 = 0 ORDER BY type, value"},
};

/* Rows that are sealed per commit. */
static const sealed_table committed[] = {
    {"text", "SELECT * FROM text WHERE id > ?1 << 32 AND id < (?1 + 1) << 32 ORDER BY id"},
    {"event", "SELECT * FROM event WHERE id > ?1 << 40 AND id < (?1 + 1) << 40 ORDER BY id"},
};

#define COUNT_OF(table) (sizeof(table) / sizeof(table)[0])

/* ---- writing ---- */

cddp_status cd_seal_add(cd_sql *sql, int64_t run, const char *name, int64_t first, int64_t last,
                        uint64_t digest, cddp_error *err)
{
    sqlite3_stmt *insert = NULL;
    CD_TRY(cd_sql_prepare(sql, "INSERT OR REPLACE INTO seal VALUES (?, ?, ?, ?, ?)", &insert, err));
    sqlite3_bind_int64(insert, 1, run);
    cd_sql_bind_text(insert, 2, name);
    sqlite3_bind_int64(insert, 3, first);
    sqlite3_bind_int64(insert, 4, last);
    sqlite3_bind_int64(insert, 5, (int64_t)digest);
    cddp_status status = cd_sql_run(sql, insert, err);
    sqlite3_finalize(insert);
    return status;
}

static cddp_status add_table(cd_sql *sql, int64_t run, const sealed_table *table, cddp_error *err)
{
    int64_t count = 0;
    uint64_t digest = 0;
    CD_TRY(digest_rows(sql, table->query, run, &count, &digest, err));
    return CD_PASS(cd_seal_add(sql, run, table->name, 1, count, digest, err));
}

cddp_status cd_seal_add_kinds(cd_sql *sql, cddp_error *err)
{
    for (size_t i = 0; i < COUNT_OF(shared); i++) CD_TRY(add_table(sql, 0, &shared[i], err));
    return CD_PASS(cd_seal_add(sql, 0, "version", 1, CDDP_STORE_VERSION, 0, err));
}

/* Of a run that has ended, its other seals follow. */
static cddp_status digest_run(cd_sql *sql, int64_t run, uint64_t *digest, cddp_error *err)
{
    int64_t count = 0;
    *digest = 0;
    CD_TRY(digest_rows(sql, "SELECT * FROM run WHERE id = ?1", run, &count, digest, err));
    CD_TRY(digest_rows(sql,
                       "SELECT * FROM seal WHERE run = ?1 AND name <> 'run' AND EXISTS (SELECT 1 "
                       "FROM run WHERE id = ?1 AND complete = 1) ORDER BY name, first",
                       run, &count, digest, err));
    return CDDP_OK;
}

cddp_status cd_seal_begin_run(cd_sql *sql, int64_t run, cddp_error *err)
{
    uint64_t digest = 0;
    CD_TRY(digest_run(sql, run, &digest, err));
    return CD_PASS(cd_seal_add(sql, run, "run", 1, 1, digest, err));
}

cddp_status cd_seal_end_run(cd_sql *sql, int64_t run, cddp_error *err)
{
    for (size_t i = 0; i < COUNT_OF(ended); i++) CD_TRY(add_table(sql, run, &ended[i].table, err));
    return CD_PASS(cd_seal_begin_run(sql, run, err));
}

static cddp_status adopt_run(cd_sql *sql, int64_t run, cddp_error *err)
{
    for (size_t i = 0; i < COUNT_OF(committed); i++) {
        int64_t count = 0;
        uint64_t digest = 0;
        CD_TRY(digest_rows(sql, committed[i].query, run, &count, &digest, err));
        if (count > 0) CD_TRY(cd_seal_add(sql, run, committed[i].name, 1, count, digest, err));
    }
    return CD_PASS(cd_seal_end_run(sql, run, err));
}

cddp_status cd_seal_adopt_runs(cd_sql *sql, cddp_error *err)
{
    sqlite3_stmt *select = NULL;
    cddp_status status = CDDP_OK;
    CD_TRY(cd_sql_prepare(sql, "SELECT id FROM run ORDER BY id", &select, err));
    for (bool row = true;;) {
        CD_TRY_OUT(cd_sql_step(sql, select, &row, err));
        if (!row) break;
        CD_TRY_OUT(adopt_run(sql, sqlite3_column_int64(select, 0), err));
    }
out:
    sqlite3_finalize(select);
    return status;
}

/* ---- checking ---- */

/* Several statements see the file at one moment, also while a program appends to it. */
static cddp_status at_one_moment(cd_sql *sql,
                                 cddp_status (*check)(cd_sql *sql, void *of, cddp_error *err),
                                 void *of, cddp_error *err)
{
    if (!sqlite3_get_autocommit(sql->db)) return CD_PASS(check(sql, of, err));
    CD_TRY(cd_sql_exec(sql, "BEGIN", err));
    cddp_status status = check(sql, of, err);
    sqlite3_exec(sql->db, "COMMIT", NULL, NULL, NULL);
    return status;
}

static cddp_status fail_table(const cd_sql *sql, int64_t run, const char *name, cddp_error *err)
{
    if (run == 0)
        return cd_fail(err, CDDP_E_CORRUPT,
                       "'%s' is damaged: table '%s' does not hold what was written", sql->path,
                       name);
    return cd_fail(err, CDDP_E_CORRUPT,
                   "'%s' is damaged: run %" PRId64
                   " in table '%s' does not hold what was written; nothing in it was judged",
                   sql->path, run, name);
}

static cddp_status fail_range(const cd_sql *sql, int64_t run, const char *name, int64_t first,
                              int64_t last, cddp_error *err)
{
    return cd_fail(err, CDDP_E_CORRUPT,
                   "'%s' is damaged: rows %" PRId64 " to %" PRId64 " of run %" PRId64
                   " in table '%s' do not hold what was written; nothing in it was judged",
                   sql->path, first, last, run, name);
}

typedef struct seal {
    int64_t first, last;
    uint64_t digest;
} seal;

static cddp_status find_seal(cd_sql *sql, int64_t run, const char *name, seal *found, bool *exists,
                             cddp_error *err)
{
    sqlite3_stmt *select = NULL;
    CD_TRY(cd_sql_prepare(sql, "SELECT first, last, digest FROM seal WHERE run = ? AND name = ?",
                          &select, err));
    sqlite3_bind_int64(select, 1, run);
    cd_sql_bind_text(select, 2, name);
    cddp_status status = cd_sql_step(sql, select, exists, err);
    if (status == CDDP_OK && *exists)
        *found = (seal){sqlite3_column_int64(select, 0), sqlite3_column_int64(select, 1),
                        (uint64_t)sqlite3_column_int64(select, 2)};
    sqlite3_finalize(select);
    return status;
}

static cddp_status check_table(cd_sql *sql, int64_t run, const sealed_table *table,
                               bool may_be_missing, cddp_error *err)
{
    seal wanted = {0};
    bool exists = false;
    int64_t count = 0;
    uint64_t digest = 0;
    CD_TRY(find_seal(sql, run, table->name, &wanted, &exists, err));
    if (!exists && may_be_missing) return CDDP_OK;
    CD_TRY(digest_rows(sql, table->query, run, &count, &digest, err));
    if (exists && wanted.first == 1 && wanted.last == count && wanted.digest == digest)
        return CDDP_OK;
    return CD_PASS(fail_table(sql, run, table->name, err));
}

cddp_status cd_seal_find_version(cd_sql *sql, int64_t *version, cddp_error *err)
{
    seal found = {0};
    bool exists = false;
    CD_TRY(find_seal(sql, 0, "version", &found, &exists, err));
    *version = exists ? found.last : 0;
    return CDDP_OK;
}

static cddp_status check_kinds(cd_sql *sql, void *of, cddp_error *err)
{
    (void)of;
    for (size_t i = 0; i < COUNT_OF(shared); i++)
        CD_TRY(check_table(sql, 0, &shared[i], false, err));
    return CDDP_OK;
}

cddp_status cd_seal_check_kinds(cd_sql *sql, cddp_error *err)
{
    return CD_PASS(sql->is_sealed ? at_one_moment(sql, check_kinds, NULL, err) : CDDP_OK);
}

static cddp_status check_run(cd_sql *sql, void *of, cddp_error *err)
{
    const int64_t run = *(const int64_t *)of;
    seal wanted = {0};
    bool exists = false;
    uint64_t digest = 0;
    CD_TRY(digest_run(sql, run, &digest, err));
    CD_TRY(find_seal(sql, run, "run", &wanted, &exists, err));
    if (exists && wanted.digest == digest) return CDDP_OK;
    return CD_PASS(fail_table(sql, run, "run", err));
}

cddp_status cd_seal_check_run(cd_sql *sql, int64_t run, cddp_error *err)
{
    return CD_PASS(sql->is_sealed ? at_one_moment(sql, check_run, &run, err) : CDDP_OK);
}

typedef struct part_of_run {
    int64_t run;
    cd_sealed part;
} part_of_run;

/* A run that did not end has no such seals; of one that did, check_run has missed none. */
static cddp_status check_part(cd_sql *sql, void *of, cddp_error *err)
{
    part_of_run *p = of;
    CD_TRY(check_run(sql, &p->run, err));
    for (size_t i = 0; i < COUNT_OF(ended); i++)
        if (ended[i].part == p->part) CD_TRY(check_table(sql, p->run, &ended[i].table, true, err));
    return CDDP_OK;
}

cddp_status cd_seal_check_part(cd_sql *sql, int64_t run, cd_sealed part, cddp_error *err)
{
    part_of_run p = {run, part};
    return CD_PASS(sql->is_sealed ? at_one_moment(sql, check_part, &p, err) : CDDP_OK);
}

/* Goes on over so many rows of a query, fewer at its end. */
static cddp_status digest_next(cd_sql *sql, sqlite3_stmt *rows, int64_t wanted, uint64_t *digest,
                               cddp_error *err)
{
    bool row = true;
    *digest = 0;
    for (int64_t i = 0; i < wanted; i++) {
        CD_TRY(cd_sql_step(sql, rows, &row, err));
        if (!row) break;
        *digest = digest_row(rows, *digest);
    }
    return CDDP_OK;
}

typedef struct events_of_run {
    int64_t run;
    int64_t last; /* the last row that is sealed */
    const char *name;
    sqlite3_stmt *seals, *rows;
} events_of_run;

/* Seals follow each other without a gap, and no row follows the last. */
static cddp_status compare_rows(cd_sql *sql, events_of_run *e, cddp_error *err)
{
    bool row = true;
    for (e->last = 0;;) {
        uint64_t digest = 0;
        CD_TRY(cd_sql_step(sql, e->seals, &row, err));
        if (!row) break;
        const seal wanted = {sqlite3_column_int64(e->seals, 0), sqlite3_column_int64(e->seals, 1),
                             (uint64_t)sqlite3_column_int64(e->seals, 2)};
        if (wanted.first != e->last + 1 || wanted.last < wanted.first)
            return CD_PASS(fail_table(sql, e->run, "seal", err));
        CD_TRY(digest_next(sql, e->rows, wanted.last - e->last, &digest, err));
        if (digest != wanted.digest)
            return CD_PASS(fail_range(sql, e->run, e->name, wanted.first, wanted.last, err));
        e->last = wanted.last;
    }
    CD_TRY(cd_sql_step(sql, e->rows, &row, err));
    return CD_PASS(row ? fail_range(sql, e->run, e->name, e->last + 1, e->last + 1, err) : CDDP_OK);
}

static cddp_status check_committed(cd_sql *sql, const sealed_table *table, events_of_run *e,
                                   cddp_error *err)
{
    cddp_status status = CDDP_OK;
    e->name = table->name;
    e->seals = e->rows = NULL;
    CD_TRY_OUT(cd_sql_prepare(sql,
                              "SELECT first, last, digest FROM seal WHERE run = ? AND name = ? "
                              "ORDER BY first",
                              &e->seals, err));
    CD_TRY_OUT(cd_sql_prepare(sql, table->query, &e->rows, err));
    sqlite3_bind_int64(e->seals, 1, e->run);
    cd_sql_bind_text(e->seals, 2, table->name);
    sqlite3_bind_int64(e->rows, 1, e->run);
    CD_TRY_OUT(compare_rows(sql, e, err));
out:
    sqlite3_finalize(e->seals);
    sqlite3_finalize(e->rows);
    return status;
}

/* The events last: e->last is theirs. */
static cddp_status check_events(cd_sql *sql, void *of, cddp_error *err)
{
    events_of_run *e = of;
    CD_TRY(check_run(sql, &e->run, err));
    for (size_t i = 0; i < COUNT_OF(committed); i++)
        CD_TRY(check_committed(sql, &committed[i], e, err));
    return CDDP_OK;
}

static cddp_status find_complete(cd_sql *sql, int64_t run, bool *is_complete, cddp_error *err)
{
    sqlite3_stmt *select = NULL;
    CD_TRY(cd_sql_prepare(sql, "SELECT 1 FROM run WHERE id = ? AND complete = 1", &select, err));
    sqlite3_bind_int64(select, 1, run);
    cddp_status status = cd_sql_step(sql, select, is_complete, err);
    sqlite3_finalize(select);
    return status;
}

/* Events of a run that has ended do not change any more, so they are compared once. */
cddp_status cd_seal_check_events(cd_sql *sql, int64_t run, int64_t *last, cddp_error *err)
{
    events_of_run e = {.run = run, .last = (INT64_C(1) << 40) - 1};
    if (sql->is_sealed && sql->checked_run == run)
        e.last = sql->checked_last;
    else if (sql->is_sealed)
        CD_TRY(at_one_moment(sql, check_events, &e, err));
    bool is_complete = false;
    if (sql->is_sealed) CD_TRY(find_complete(sql, run, &is_complete, err));
    sql->checked_run = is_complete ? run : 0;
    sql->checked_last = e.last;
    *last = e.last;
    return CDDP_OK;
}
