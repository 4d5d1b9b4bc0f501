/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and reads the results of a run: findings, exercised invariants and metrics.
**
** In memory -1 and UINT32_MAX mean "none"; in the file that is NULL. */
#include "db/store.h"

#include "core/base/arena.h"
#include "core/base/error.h"
#include "db/seal.h"

#include <stdio.h>
#include <string.h>

static void bind_or_null(sqlite3_stmt *statement, int index, int64_t value)
{
    if (value >= 0) sqlite3_bind_int64(statement, index, value);
}

static cddp_status insert_finding(cddp_store *store, const cddp_finding *f, cddp_error *err)
{
    sqlite3_stmt *insert = NULL;
    CD_TRY(cd_sql_prepare(&store->sql,
                          "INSERT INTO finding VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                          &insert, err));
    sqlite3_bind_int64(insert, 1, store->writer.run);
    sqlite3_bind_int64(insert, 2, store->writer.finding_count);
    cd_sql_bind_text(insert, 3, f->check);
    sqlite3_bind_int64(insert, 4, f->step);
    sqlite3_bind_int64(insert, 5, f->micro_step);
    bind_or_null(insert, 6, f->rank);
    bind_or_null(insert, 7, f->peer);
    bind_or_null(insert, 8, f->bucket);
    bind_or_null(insert, 9, f->param);
    const char *const texts[] = {f->name != NULL ? f->name : f->parameter, f->title, f->expected,
                                 f->actual, f->advice};
    for (int i = 0; i < 5; i++) cd_sql_bind_text(insert, 10 + i, texts[i]);
    cddp_status status = cd_sql_run(&store->sql, insert, err);
    sqlite3_finalize(insert);
    return status;
}

static cddp_status insert_finding_ranks(cddp_store *store, const cddp_finding *f, cddp_error *err)
{
    sqlite3_stmt *insert = NULL;
    cddp_status status = CDDP_OK;
    CD_TRY(cd_sql_prepare(&store->sql, "INSERT OR IGNORE INTO finding_rank VALUES (?, ?, ?)",
                          &insert, err));
    for (size_t i = 0; i < f->rank_count && status == CDDP_OK; i++) {
        sqlite3_bind_int64(insert, 1, store->writer.run);
        sqlite3_bind_int64(insert, 2, store->writer.finding_count);
        sqlite3_bind_int64(insert, 3, f->ranks[i]);
        status = cd_sql_run(&store->sql, insert, err);
    }
    sqlite3_finalize(insert);
    return status;
}

static cddp_status insert_finding_events(cddp_store *store, const cddp_finding *f, cddp_error *err)
{
    sqlite3_stmt *insert = NULL;
    cddp_status status = CDDP_OK;
    CD_TRY(cd_sql_prepare(&store->sql, "INSERT INTO finding_event VALUES (?, ?, ?, ?, ?)", &insert,
                          err));
    for (uint32_t i = 0; i < f->event_count && i < CDDP_FINDING_EVENTS_MAX && status == CDDP_OK;
         i++) {
        sqlite3_bind_int64(insert, 1, store->writer.run);
        sqlite3_bind_int64(insert, 2, store->writer.finding_count);
        sqlite3_bind_int64(insert, 3, i);
        if (f->events[i].rank == UINT32_MAX)
            sqlite3_bind_null(insert, 4);
        else
            sqlite3_bind_int64(insert, 4, f->events[i].rank);
        sqlite3_bind_int64(insert, 5, (int64_t)f->events[i].sequence);
        status = cd_sql_run(&store->sql, insert, err);
    }
    sqlite3_finalize(insert);
    return status;
}

cddp_status cddp_store_add_finding(cddp_store *store, const cddp_finding *finding, cddp_error *err)
{
    CD_TRY(cd_writer_require(store, err));
    CD_TRY(insert_finding(store, finding, err));
    CD_TRY(insert_finding_ranks(store, finding, err));
    CD_TRY(insert_finding_events(store, finding, err));
    store->writer.finding_count++;
    return CDDP_OK;
}

cddp_status cddp_store_add_exercised(cddp_store *store, const char *check, const char *how,
                                     cddp_error *err)
{
    sqlite3_stmt *insert = NULL;
    CD_TRY(cd_writer_require(store, err));
    CD_TRY(cd_sql_prepare(&store->sql, "INSERT INTO exercised VALUES (?, ?, ?, ?)", &insert, err));
    sqlite3_bind_int64(insert, 1, store->writer.run);
    sqlite3_bind_int64(insert, 2, store->writer.exercised_count);
    cd_sql_bind_text(insert, 3, check);
    cd_sql_bind_text(insert, 4, how);
    cddp_status status = cd_sql_run(&store->sql, insert, err);
    sqlite3_finalize(insert);
    if (status == CDDP_OK) store->writer.exercised_count++;
    return status;
}

cddp_status cddp_store_add_metric(cddp_store *store, const char *name, double value,
                                  cddp_error *err)
{
    sqlite3_stmt *insert = NULL;
    CD_TRY(cd_writer_require(store, err));
    CD_TRY(cd_sql_prepare(&store->sql, "INSERT OR REPLACE INTO metric VALUES (?, ?, ?)", &insert,
                          err));
    sqlite3_bind_int64(insert, 1, store->writer.run);
    cd_sql_bind_text(insert, 2, name);
    sqlite3_bind_double(insert, 3, value);
    cddp_status status = cd_sql_run(&store->sql, insert, err);
    sqlite3_finalize(insert);
    return status;
}

cddp_status cddp_store_add_verdict(cddp_store *store, const cddp_verdict *v, cddp_error *err)
{
    for (size_t i = 0; i < v->finding_count; i++)
        CD_TRY(cddp_store_add_finding(store, &v->findings[i], err));
    for (size_t i = 0; i < v->exercise_count; i++)
        CD_TRY(cddp_store_add_exercised(store, v->exercises[i].check, v->exercises[i].how, err));
    for (size_t i = 0; i < v->mark_count; i++) {
        char name[128];
        snprintf(name, sizeof name, "mark: %s", v->marks[i].name);
        CD_TRY(cddp_store_add_metric(store, name, (double)v->marks[i].count, err));
    }
    return CDDP_OK;
}

/* ---- out ---- */

static int32_t number_or_none(sqlite3_stmt *statement, int column)
{
    return sqlite3_column_type(statement, column) == SQLITE_NULL
               ? -1
               : sqlite3_column_int(statement, column);
}

static void copy_text(char *to, size_t bytes, sqlite3_stmt *statement, int column)
{
    snprintf(to, bytes, "%s", cd_sql_text(statement, column));
}

/* The names of the check and of the parameter are borrowed from the statement. */
static cddp_finding finding_of(sqlite3_stmt *row)
{
    cddp_finding f = {.size = sizeof f, .check = cd_sql_text(row, 1)};
    f.step = (uint32_t)sqlite3_column_int64(row, 2);
    f.micro_step = (uint32_t)sqlite3_column_int64(row, 3);
    f.rank = number_or_none(row, 4);
    f.peer = number_or_none(row, 5);
    f.bucket = number_or_none(row, 6);
    f.param = number_or_none(row, 7);
    copy_text(f.parameter, sizeof f.parameter, row, 8);
    if (strlen(cd_sql_text(row, 8)) >= sizeof f.parameter) {
        f.name = cd_sql_text(row, 8);
        memcpy(f.parameter + sizeof f.parameter - 4, "...", 4);
    }
    copy_text(f.title, sizeof f.title, row, 9);
    copy_text(f.expected, sizeof f.expected, row, 10);
    copy_text(f.actual, sizeof f.actual, row, 11);
    copy_text(f.advice, sizeof f.advice, row, 12);
    return f;
}

/* Ascending, as the primary key has them; they are borrowed from the arena. */
static cddp_status read_finding_ranks(cddp_store *store, sqlite3_stmt *select, int64_t run,
                                      int64_t position, cd_arena *arena, cddp_finding *f,
                                      cddp_error *err)
{
    sqlite3_bind_int64(select, 1, run);
    sqlite3_bind_int64(select, 2, position);
    uint32_t *ranks = NULL;
    size_t capacity = 0;
    for (bool row = true;;) {
        CD_TRY(cd_sql_step(&store->sql, select, &row, err));
        if (!row) break;
        if (f->rank_count == capacity) {
            capacity = capacity > 0 ? capacity * 2 : 16;
            uint32_t *more = cd_arena_push(arena, capacity * sizeof *more);
            if (more == NULL) return cd_fail_memory(err, "the ranks of a finding");
            if (f->rank_count > 0) memcpy(more, ranks, f->rank_count * sizeof *more);
            ranks = more;
        }
        ranks[f->rank_count++] = (uint32_t)sqlite3_column_int64(select, 0);
    }
    f->ranks = ranks;
    return CDDP_OK;
}

static cddp_status read_finding_events(cddp_store *store, sqlite3_stmt *select, int64_t run,
                                       int64_t position, cddp_finding *f, cddp_error *err)
{
    sqlite3_bind_int64(select, 1, run);
    sqlite3_bind_int64(select, 2, position);
    for (bool row = true;;) {
        CD_TRY(cd_sql_step(&store->sql, select, &row, err));
        if (!row) return CDDP_OK;
        if (f->event_count == CDDP_FINDING_EVENTS_MAX) continue;
        f->events[f->event_count].rank = sqlite3_column_type(select, 0) == SQLITE_NULL
                                             ? UINT32_MAX
                                             : (uint32_t)sqlite3_column_int64(select, 0);
        f->events[f->event_count++].sequence = (uint64_t)sqlite3_column_int64(select, 1);
    }
}

cddp_status cddp_store_each_finding(cddp_store *store, int64_t run, cddp_store_finding_fn fn,
                                    void *context, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    sqlite3_stmt *select = NULL, *events = NULL, *ranks = NULL;
    cd_arena arena;
    CD_TRY(cd_seal_check_part(&store->sql, run, CD_SEALED_FINDINGS, err));
    cd_arena_init(&arena, store->allocator, 4096);
    const cd_arena_mark mark = cd_arena_get_mark(&arena);
    CD_TRY_OUT(cd_sql_prepare(
        &store->sql,
        "SELECT position, invariant, step, micro, rank, peer, bucket, param, parameter, "
        "title, expected, actual, advice FROM finding WHERE run = ? ORDER BY position",
        &select, err));
    CD_TRY_OUT(cd_sql_prepare(
        &store->sql,
        "SELECT rank, seq FROM finding_event WHERE run = ? AND position = ? ORDER BY ordinal",
        &events, err));
    CD_TRY_OUT(
        cd_sql_prepare(&store->sql,
                       "SELECT rank FROM finding_rank WHERE run = ? AND position = ? ORDER BY rank",
                       &ranks, err));
    sqlite3_bind_int64(select, 1, run);
    for (bool row = true;;) {
        CD_TRY_OUT(cd_sql_step(&store->sql, select, &row, err));
        if (!row) break;
        cd_arena_rewind(&arena, mark);
        cddp_finding finding = finding_of(select);
        CD_TRY_OUT(read_finding_ranks(store, ranks, run, sqlite3_column_int64(select, 0), &arena,
                                      &finding, err));
        CD_TRY_OUT(read_finding_events(store, events, run, sqlite3_column_int64(select, 0),
                                       &finding, err));
        CD_TRY_OUT(fn(context, &finding, err));
    }
out:
    sqlite3_finalize(select);
    sqlite3_finalize(events);
    sqlite3_finalize(ranks);
    cd_arena_fini(&arena);
    return status;
}

cddp_status cddp_store_each_exercised(cddp_store *store, int64_t run, cddp_store_pair_fn fn,
                                      void *context, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    sqlite3_stmt *select = NULL;
    CD_TRY(cd_seal_check_part(&store->sql, run, CD_SEALED_EXERCISED, err));
    CD_TRY(cd_sql_prepare(&store->sql,
                          "SELECT invariant, how FROM exercised WHERE run = ? ORDER BY position",
                          &select, err));
    sqlite3_bind_int64(select, 1, run);
    for (bool row = true;;) {
        CD_TRY_OUT(cd_sql_step(&store->sql, select, &row, err));
        if (!row) break;
        CD_TRY_OUT(fn(context, cd_sql_text(select, 0), cd_sql_text(select, 1), err));
    }
out:
    sqlite3_finalize(select);
    return status;
}

cddp_status cddp_store_each_metric(cddp_store *store, int64_t run, cddp_store_metric_fn fn,
                                   void *context, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    sqlite3_stmt *select = NULL;
    CD_TRY(cd_seal_check_part(&store->sql, run, CD_SEALED_METRICS, err));
    CD_TRY(cd_sql_prepare(&store->sql, "SELECT name, value FROM metric WHERE run = ? ORDER BY name",
                          &select, err));
    sqlite3_bind_int64(select, 1, run);
    for (bool row = true;;) {
        CD_TRY_OUT(cd_sql_step(&store->sql, select, &row, err));
        if (!row) break;
        CD_TRY_OUT(fn(context, cd_sql_text(select, 0), sqlite3_column_double(select, 1), err));
    }
out:
    sqlite3_finalize(select);
    return status;
}
