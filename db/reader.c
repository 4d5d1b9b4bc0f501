/* SPDX-License-Identifier: Apache-2.0 */
/* Reads runs and events back.
**
** No value of a file is trusted: rows must be those of their seals, kinds are looked up in the map,
** ids must ascend, ranks and steps must be in range.
**
** Not here: findings (results.c). */
#include "db/store.h"

#include "core/base/error.h"
#include "core/trace/event.h"
#include "db/seal.h"

#include <inttypes.h>
#include <string.h>

cddp_status cddp_store_last_run(cddp_store *store, int64_t *run, cddp_error *err)
{
    int64_t last = 0;
    CD_TRY(cd_sql_number(&store->sql, "SELECT max(id) FROM run", &last, err));
    if (last == 0) return cd_fail(err, CDDP_E_ARG, "'%s' has no runs", store->path);
    *run = last;
    return CDDP_OK;
}

static const char run_columns[] =
    "SELECT id, complete, exit_code, verdict, reason, title, source, scenario, options, schedule, "
    "backend, version, "
    "machine, "
    "compiler, recorded_at, seed, plan, world_size, steps, level, digest, virtual_time, "
    "(SELECT count(*) FROM event e WHERE e.id > run.id << 40 AND e.id < (run.id + 1) << 40), "
    "(SELECT count(*) FROM finding f WHERE f.run = run.id) "
    "FROM run WHERE ?1 = 0 OR id = ?1 ORDER BY id";

/* Texts are borrowed until the statement's next step. */
static cddp_stored_run run_of(sqlite3_stmt *row)
{
    cddp_stored_run r = {.size = sizeof r,
                         .run = sqlite3_column_int64(row, 0),
                         .complete = sqlite3_column_int(row, 1) == 1};
    cddp_run_provenance *p = &r.provenance;
    r.outcome = (cddp_run_outcome){.size = sizeof r.outcome,
                                   .exit_code = (uint32_t)sqlite3_column_int64(row, 2),
                                   .verdict = cd_sql_text(row, 3),
                                   .reason = cd_sql_text(row, 4),
                                   .schedule = cd_sql_text(row, 9),
                                   .digest = (uint64_t)sqlite3_column_int64(row, 20),
                                   .virtual_time_ns = (uint64_t)sqlite3_column_int64(row, 21)};
    const char **texts[] = {&p->title,   &p->source,  &p->scenario, &p->options,  &p->schedule,
                            &p->backend, &p->version, &p->machine,  &p->compiler, &p->recorded_at};
    p->size = sizeof *p;
    for (int i = 0; i < 10; i++) *texts[i] = cd_sql_text(row, 5 + i);
    p->seed = (uint64_t)sqlite3_column_int64(row, 15);
    p->plan = (uint64_t)sqlite3_column_int64(row, 16);
    p->world_size = (uint32_t)sqlite3_column_int64(row, 17);
    p->steps = (uint32_t)sqlite3_column_int64(row, 18);
    p->level = (uint32_t)sqlite3_column_int64(row, 19);
    r.event_count = (uint64_t)sqlite3_column_int64(row, 22);
    r.finding_count = (uint64_t)sqlite3_column_int64(row, 23);
    return r;
}

/* Readers allocate tables of world_size entries, so a number from a damaged file must not reach
** them. */
static cddp_status check_run_row(const cddp_store *store, sqlite3_stmt *row, cddp_error *err)
{
    const int64_t world = sqlite3_column_int64(row, 17), steps = sqlite3_column_int64(row, 18),
                  level = sqlite3_column_int64(row, 19);
    if (world < 0 || world > CD_STORE_WORLD_MAX || steps < 0 || steps > UINT32_MAX || level < 0 ||
        level > UINT16_MAX)
        return cd_fail(err, CDDP_E_CORRUPT,
                       "'%s' is damaged: run %" PRId64 " has a world of %" PRId64 " ranks, %" PRId64
                       " steps and level %" PRId64,
                       store->path, (int64_t)sqlite3_column_int64(row, 0), world, steps, level);
    return CDDP_OK;
}

cddp_status cddp_store_each_run(cddp_store *store, int64_t run, cddp_store_run_fn fn, void *context,
                                cddp_error *err)
{
    cddp_status status = CDDP_OK;
    sqlite3_stmt *select = NULL;
    bool found = false;
    CD_TRY(cd_sql_prepare(&store->sql, run_columns, &select, err));
    sqlite3_bind_int64(select, 1, run);
    for (bool row = true;; found = true) {
        CD_TRY_OUT(cd_sql_step(&store->sql, select, &row, err));
        if (!row) break;
        CD_TRY_OUT(cd_seal_check_run(&store->sql, sqlite3_column_int64(select, 0), err));
        CD_TRY_OUT(check_run_row(store, select, err));
        cddp_stored_run stored = run_of(select);
        CD_TRY_OUT(fn(context, &stored, err));
    }
    if (!found && run != 0)
        status = cd_fail(err, CDDP_E_ARG, "'%s' has no run %" PRId64, store->path, run);
out:
    sqlite3_finalize(select);
    return status;
}

/* ---- events ---- */

#define EVENT_COLUMNS                                                                              \
    "SELECT id, t, coalesce(rank, 4294967295), seq, kind, step, micro, (SELECT value FROM text x " \
    "WHERE x.id = event.text), "                                                                   \
    "f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, text "                                           \
    "FROM event WHERE id > ?1 << 40 AND id <= (?1 << 40) + ?2 "

enum { COLUMN_TEXT_VALUE = 7, COLUMN_FIELDS = 8, COLUMN_TEXT = COLUMN_FIELDS + CDDP_EVENT_FIELDS };

cddp_status cd_cursor_open(cd_cursor *cursor, cddp_store *store, int64_t run,
                           cddp_store_order order, cddp_error *err)
{
    sqlite3_stmt *select = NULL;
    int64_t level = -1, last = 0;
    CD_TRY(cd_sql_prepare(&store->sql, "SELECT level FROM run WHERE id = ?", &select, err));
    sqlite3_bind_int64(select, 1, run);
    bool row = false;
    cddp_status status = cd_sql_step(&store->sql, select, &row, err);
    if (row) level = sqlite3_column_int64(select, 0);
    sqlite3_finalize(select);
    if (status != CDDP_OK) return status;
    if (level < 0 || run <= 0)
        return cd_fail(err, CDDP_E_ARG, "'%s' has no run %" PRId64, store->path, run);
    CD_TRY(cd_seal_check_events(&store->sql, run, &last, err));
    CD_TRY(cd_sql_prepare(&store->sql,
                          order == CDDP_STORE_MERGED ? EVENT_COLUMNS "ORDER BY 2, 3, 4"
                                                     : EVENT_COLUMNS "ORDER BY 1",
                          &select, err));
    sqlite3_bind_int64(select, 1, run);
    sqlite3_bind_int64(select, 2, last);
    *cursor = (cd_cursor){
        .store = store, .statement = select, .run = run, .level = (uint16_t)level, .order = order};
    return CDDP_OK;
}

void cd_cursor_close(cd_cursor *cursor)
{
    sqlite3_finalize(cursor->statement);
    *cursor = (cd_cursor){.store = NULL};
}

static cddp_status check_row(cd_cursor *cursor, int64_t id, cddp_error *err)
{
    sqlite3_stmt *row = cursor->statement;
    const char *path = cursor->store->path;
    int64_t rank = sqlite3_column_int64(row, 2), kind = sqlite3_column_int64(row, 4),
            step = sqlite3_column_int64(row, 5), micro = sqlite3_column_int64(row, 6);
    if (cursor->order == CDDP_STORE_RECORDED && id <= cursor->last_id)
        return cd_fail(err, CDDP_E_CORRUPT,
                       "'%s' is damaged: event %" PRId64 " follows event %" PRId64, path, id,
                       cursor->last_id);
    if (kind < 0 || kind >= CD_KINDS_STORED_MAX || cursor->store->kinds.ours[kind] < 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "'%s': event %" PRId64 " is of kind %" PRId64
                       ", which this version does not know",
                       path, id, kind);
    if (rank < 0 || rank > UINT32_MAX || step < 0 || step > UINT32_MAX || micro < 0 ||
        micro > UINT32_MAX)
        return cd_fail(err, CDDP_E_CORRUPT,
                       "'%s' is damaged: event %" PRId64 " has rank %" PRId64 ", step %" PRId64
                       ", micro-step %" PRId64,
                       path, id, rank, step, micro);
    /* An index page of a table can be damaged too: then a search misses what a scan finds. */
    if (sqlite3_column_type(row, COLUMN_TEXT) != SQLITE_NULL &&
        sqlite3_column_type(row, COLUMN_TEXT_VALUE) == SQLITE_NULL)
        return cd_fail(err, CDDP_E_CORRUPT,
                       "'%s' is damaged: event %" PRId64 " has text %" PRId64
                       ", which table 'text' lacks",
                       path, id, (int64_t)sqlite3_column_int64(row, COLUMN_TEXT));
    return CDDP_OK;
}

static int64_t field_of(sqlite3_stmt *row, int column)
{
    if (sqlite3_column_type(row, column) != SQLITE_FLOAT) return sqlite3_column_int64(row, column);
    double number = sqlite3_column_double(row, column);
    int64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

cddp_status cd_cursor_next(cd_cursor *cursor, cddp_event *event, bool *found, cddp_error *err)
{
    sqlite3_stmt *row = cursor->statement;
    bool more = false;
    CD_TRY(cd_sql_step(&cursor->store->sql, row, &more, err));
    if (!more) {
        *found = false;
        return CDDP_OK;
    }
    int64_t id = sqlite3_column_int64(row, 0);
    CD_TRY(check_row(cursor, id, err));
    cursor->last_id = id;
    memset(event, 0, sizeof *event);
    event->time_ns = (uint64_t)sqlite3_column_int64(row, 1);
    event->rank = (uint32_t)sqlite3_column_int64(row, 2);
    event->sequence = (uint64_t)sqlite3_column_int64(row, 3);
    event->kind = (uint16_t)cursor->store->kinds.ours[sqlite3_column_int64(row, 4)];
    event->step = (uint32_t)sqlite3_column_int64(row, 5);
    event->micro_step = (uint32_t)sqlite3_column_int64(row, 6);
    event->level = cursor->level;
    event->text = (const char *)sqlite3_column_text(row, COLUMN_TEXT_VALUE);
    for (uint32_t i = 0; i < cd_event_field_counts[event->kind]; i++)
        event->as.field[i] = field_of(row, COLUMN_FIELDS + (int)i);
    *found = true;
    return CDDP_OK;
}

cddp_status cddp_store_each_event(cddp_store *store, int64_t run, cddp_store_order order,
                                  const cddp_trace_sink *sink, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_cursor cursor = {.store = NULL};
    CD_TRY(cd_cursor_open(&cursor, store, run, order, err));
    for (bool found = true;;) {
        cddp_event event;
        CD_TRY_OUT(cd_cursor_next(&cursor, &event, &found, err));
        if (!found) break;
        sink->event(sink->self, &event);
    }
out:
    cd_cursor_close(&cursor);
    return status;
}
