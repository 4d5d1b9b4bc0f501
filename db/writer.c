/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a run.
**
** States of the writer: closed ──run_begin──▶ open ──run_end──▶ closed. After a failure it stays
** open but writes nothing more; the next flush and run_end report the failure.
**
** Invariants:
**   W1  While a run is open, its row exists with complete = 0; only run_end sets it to 1, in the
**       transaction that also writes the verdict and the last seals.
**   W2  An iteration is in the file once every rank has flushed it. The writer commits when the
**       last rank flushes (done_everywhere grows), when the batch is full, and at run_end.
**   W3  Rows of older runs are never changed.
**   W4  A commit of events and texts has the seals of them (seal.h).
**   W5  Everything is in the file once the last open group was closed: what closes the transport
**       then may end the process.
**
** The rank that flushes is the rank of the last event: a tracer flushes right after an event of
** its rank.
**
** Not here: the batch (batch.c). */
#include "db/store.h"

#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "db/seal.h"

#include <string.h>

/* Most events of a batch; 16384 are about 2 MiB. */
#define BATCH_EVENTS_MAX 16384u

cddp_status cd_writer_require(const cddp_store *store, cddp_error *err)
{
    if (store->writer.run == 0)
        return cd_fail(err, CDDP_E_STATE, "'%s': no run was begun", store->path);
    return CDDP_OK;
}

/* ---- one transaction ---- */

static cddp_status insert_texts(cddp_store *store, cddp_error *err)
{
    const cd_batch *batch = &store->batch;
    const char *text = batch->texts + batch->written_offset;
    uint64_t digest = 0;
    if (batch->written_number == batch->next_number) return CDDP_OK;
    for (uint32_t number = batch->written_number; number < batch->next_number; number++) {
        const int64_t id = (batch->run << 32) + number;
        const size_t byte_count = strlen(text);
        cd_seal_row row = {.count = 0};
        sqlite3_bind_int64(store->writer.insert_text, 1, id);
        cd_sql_bind_text(store->writer.insert_text, 2, text);
        CD_TRY(cd_sql_run(&store->sql, store->writer.insert_text, err));
        cd_seal_add_number(&row, id);
        cd_seal_add_text(&row, text, byte_count);
        digest = cd_seal_end_row(&row, digest);
        text += byte_count + 1;
    }
    return CD_PASS(cd_seal_add(&store->sql, batch->run, "text", batch->written_number,
                               (int64_t)batch->next_number - 1, digest, err));
}

static const char *text_of(const cd_batch *batch, uint32_t number)
{
    for (size_t i = 0; i < batch->slot_count; i++)
        if (batch->slots[i].offset != 0 && batch->slots[i].number == number)
            return batch->texts + batch->slots[i].offset - 1;
    return "";
}

static cddp_status insert_parameters(cddp_store *store, cddp_error *err)
{
    const cd_batch *batch = &store->batch;
    sqlite3_stmt *insert = store->writer.insert_parameter;
    for (size_t i = 0; i < batch->count; i++) {
        const cddp_event *event = &batch->events[i];
        if (event->kind != CDDP_EV_param) continue;
        sqlite3_bind_int64(insert, 1, batch->run);
        sqlite3_bind_int64(insert, 2, event->as.param.param);
        sqlite3_bind_int64(insert, 3, event->as.param.ordinal);
        cd_sql_bind_text(insert, 4, text_of(batch, batch->text_numbers[i]));
        sqlite3_bind_int64(insert, 5, event->as.param.numel);
        sqlite3_bind_int64(insert, 6, event->as.param.dtype);
        CD_TRY(cd_sql_run(&store->sql, insert, err));
    }
    return CDDP_OK;
}

static cddp_status insert_events(cddp_store *store, cddp_error *err)
{
    const cd_batch *batch = &store->batch;
    const int64_t first = batch->first_id - (batch->run << 40);
    CD_TRY(cd_sql_run(&store->sql, store->writer.insert_events, err));
    return CD_PASS(cd_seal_add(&store->sql, batch->run, "event", first,
                               first + (int64_t)batch->count - 1, cd_batch_seal(batch), err));
}

static cddp_status insert_batch(cddp_store *store, cddp_error *err)
{
    CD_TRY(cd_sql_exec(&store->sql, "BEGIN IMMEDIATE", err));
    CD_TRY(insert_texts(store, err));
    CD_TRY(insert_parameters(store, err));
    CD_TRY(insert_events(store, err));
    CD_TRY(cd_sql_exec(&store->sql, "COMMIT", err));
    return CDDP_OK;
}

static void rollback(cddp_store *store)
{
    if (!sqlite3_get_autocommit(store->sql.db))
        sqlite3_exec(store->sql.db, "ROLLBACK", NULL, NULL, NULL);
}

cddp_status cd_writer_commit(cddp_store *store, cddp_error *err)
{
    cd_writer *w = &store->writer;
    if (!w->failed && store->batch.count != 0) {
        cd_error_reset(&w->failure);
        w->failed = insert_batch(store, &w->failure) != CDDP_OK;
        if (w->failed)
            rollback(store);
        else
            cd_batch_clear(&store->batch);
    }
    if (!w->failed) return CDDP_OK;
    if (err != NULL) *err = w->failure;
    return w->failure.status;
}

/* ---- the sink ---- */

void cd_writer_add(cddp_store *store, const cddp_event *event)
{
    cd_writer *w = &store->writer;
    CD_ASSERT(event->kind < CDDP_EV_COUNT);
    w->last_rank = event->rank;
    if (w->failed) return;
    if (store->batch.count >= BATCH_EVENTS_MAX && cd_writer_commit(store, NULL) != CDDP_OK) return;
    if (!cd_batch_add(&store->batch, event)) {
        w->failed = cd_fail_memory(&w->failure, "the events of '%s'", store->path) != CDDP_OK;
        return;
    }
    /* W5. A failure is kept, as ever. */
    w->open_groups += event->kind == CDDP_EV_group;
    if (event->kind == CDDP_EV_group_close && --w->open_groups == 0 &&
        cd_writer_commit(store, NULL) != CDDP_OK)
        return;
}

static void sink_event(void *self, const cddp_event *event) { cd_writer_add(self, event); }

/* Counts the flush of a rank. True when an iteration has now ended on all ranks. */
static bool note_flush(cd_writer *w)
{
    if (w->last_rank >= w->world_size) return true; /* the world itself */
    if (w->steps_done[w->last_rank]++ != w->done_everywhere) return false;
    if (--w->behind_count != 0) return false;
    w->done_everywhere++;
    for (uint32_t rank = 0; rank < w->world_size; rank++)
        w->behind_count += w->steps_done[rank] == w->done_everywhere;
    return true;
}

static cddp_status sink_flush(void *self, cddp_error *err)
{
    cddp_store *store = self;
    if (!note_flush(&store->writer) && !store->writer.failed) return CDDP_OK;
    CD_TRY(cd_writer_commit(store, err));
    return CDDP_OK;
}

cddp_status cddp_store_commit(cddp_store *store, cddp_error *err)
{
    CD_TRY(cd_writer_require(store, err));
    return CD_PASS(cd_writer_commit(store, err));
}

const cddp_trace_sink *cddp_store_sink(cddp_store *store)
{
    CD_ASSERT(store->writer.run != 0);
    return &store->writer.sink;
}

/* ---- a run ---- */

static cddp_status insert_run_row(cddp_store *store, const cddp_run_provenance *p, int64_t *run,
                                  cddp_error *err)
{
    sqlite3_stmt *insert = NULL;
    CD_TRY(cd_sql_prepare(
        &store->sql,
        "INSERT INTO run (title, source, scenario, options, schedule, backend, version, machine, "
        "compiler, recorded_at, seed, plan, world_size, steps, level) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        &insert, err));
    const char *const texts[] = {p->title,   p->source,  p->scenario, p->options,  p->schedule,
                                 p->backend, p->version, p->machine,  p->compiler, p->recorded_at};
    int column = 1;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        cd_sql_bind_text(insert, column++, texts[i]);
    sqlite3_bind_int64(insert, column++, (int64_t)p->seed);
    sqlite3_bind_int64(insert, column++, (int64_t)p->plan);
    sqlite3_bind_int64(insert, column++, p->world_size);
    sqlite3_bind_int64(insert, column++, p->steps);
    sqlite3_bind_int64(insert, column, p->level);
    cddp_status status = cd_sql_run(&store->sql, insert, err);
    if (status == CDDP_OK) *run = sqlite3_last_insert_rowid(store->sql.db);
    sqlite3_finalize(insert);
    return status;
}

static cddp_status insert_run(cddp_store *store, const cddp_run_provenance *p, int64_t *run,
                              cddp_error *err)
{
    cddp_status status = CDDP_OK;
    CD_TRY(cd_sql_exec(&store->sql, "BEGIN IMMEDIATE", err));
    CD_TRY_OUT(insert_run_row(store, p, run, err));
    CD_TRY_OUT(cd_seal_begin_run(&store->sql, *run, err));
    CD_TRY_OUT(cd_sql_exec(&store->sql, "COMMIT", err));
out:
    if (status != CDDP_OK) rollback(store);
    return status;
}

static cddp_status prepare_inserts(cddp_store *store, cddp_error *err)
{
    cd_writer *w = &store->writer;
    CD_TRY(cd_sql_prepare(&store->sql, CD_BATCH_INSERT, &w->insert_events, err));
    CD_TRY(cd_sql_prepare(&store->sql, "INSERT INTO text VALUES (?, ?)", &w->insert_text, err));
    CD_TRY(cd_sql_prepare(&store->sql, "INSERT OR IGNORE INTO parameter VALUES (?, ?, ?, ?, ?, ?)",
                          &w->insert_parameter, err));
    return CDDP_OK;
}

static void close_writer(cddp_store *store)
{
    cd_writer *w = &store->writer;
    sqlite3_finalize(w->insert_events);
    sqlite3_finalize(w->insert_text);
    sqlite3_finalize(w->insert_parameter);
    cd_release(store->allocator, w->steps_done, w->world_size * sizeof *w->steps_done);
    *w = (cd_writer){.run = 0};
}

/* Another program may be creating the store. SQLite does not always wait for this statement, and
** when it does, it waits anew at every attempt. So SQLite's wait is off, and attempts are repeated
** for CD_SQL_WAIT_MS. If the file is still busy, the next statement reports it. */
static void wait_for_wal(cddp_store *store)
{
    sqlite3 *db = store->sql.db;
    sqlite3_busy_timeout(db, 0);
    for (int ms = 0; ms < CD_SQL_WAIT_MS &&
                     sqlite3_exec(db, "PRAGMA journal_mode = WAL", NULL, NULL, NULL) == SQLITE_BUSY;
         ms += 10)
        sqlite3_sleep(10);
    sqlite3_busy_timeout(db, CD_SQL_WAIT_MS);
}

cddp_status cddp_store_run_begin(cddp_store *store, const cddp_run_provenance *provenance,
                                 int64_t *run, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_writer *w = &store->writer;
    int64_t number = 0;
    if (store->mode != CDDP_STORE_APPEND)
        return cd_fail(err, CDDP_E_STATE, "'%s' was opened for reading", store->path);
    if (w->run != 0)
        return cd_fail(err, CDDP_E_STATE, "'%s': run %lld has not ended", store->path,
                       (long long)w->run);
    *w = (cd_writer){.sink = {sizeof(cddp_trace_sink), CDDP_TRACE_ABI, store, sink_event,
                              sink_flush},
                     .world_size = provenance->world_size,
                     .behind_count = provenance->world_size,
                     .last_rank = UINT32_MAX};
    w->steps_done = cd_allocate_array(store->allocator, w->world_size, sizeof *w->steps_done);
    if (w->steps_done == NULL) {
        status = cd_fail_memory(err, "writing to '%s'", store->path);
        goto out;
    }
    wait_for_wal(store);
    CD_TRY_OUT(cd_sql_exec(&store->sql,
                           "PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 4000", err));
    CD_TRY_OUT(prepare_inserts(store, err));
    CD_TRY_OUT(insert_run(store, provenance, &number, err));
    cd_batch_begin(&store->batch, number);
    w->run = number;
    *run = number;
out:
    if (status != CDDP_OK) close_writer(store);
    return status;
}

static cddp_status update_run_row(cddp_store *store, const cddp_run_outcome *o, cddp_error *err)
{
    sqlite3_stmt *update = NULL;
    CD_TRY(cd_sql_prepare(
        &store->sql,
        "UPDATE run SET complete = 1, exit_code = ?, verdict = ?, reason = ?, digest = ?, "
        "virtual_time = ?, schedule = coalesce(?, schedule) WHERE id = ?",
        &update, err));
    sqlite3_bind_int64(update, 1, o->exit_code);
    cd_sql_bind_text(update, 2, o->verdict);
    cd_sql_bind_text(update, 3, o->reason);
    sqlite3_bind_int64(update, 4, (int64_t)o->digest);
    sqlite3_bind_int64(update, 5, (int64_t)o->virtual_time_ns);
    if (o->schedule != NULL) cd_sql_bind_text(update, 6, o->schedule);
    sqlite3_bind_int64(update, 7, store->writer.run);
    cddp_status status = cd_sql_run(&store->sql, update, err);
    sqlite3_finalize(update);
    return status;
}

static cddp_status update_run(cddp_store *store, const cddp_run_outcome *outcome, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    CD_TRY(cd_sql_exec(&store->sql, "BEGIN IMMEDIATE", err));
    CD_TRY_OUT(update_run_row(store, outcome, err));
    CD_TRY_OUT(cd_seal_end_run(&store->sql, store->writer.run, err));
    CD_TRY_OUT(cd_sql_exec(&store->sql, "COMMIT", err));
out:
    if (status != CDDP_OK) rollback(store);
    return status;
}

cddp_status cddp_store_run_end(cddp_store *store, const cddp_run_outcome *outcome, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    CD_TRY(cd_writer_require(store, err));
    CD_TRY_OUT(cd_writer_commit(store, err));
    CD_TRY_OUT(update_run(store, outcome, err));
out:
    close_writer(store);
    return status;
}

void cd_writer_abandon(cddp_store *store)
{
    /* Nobody is left to receive a failure; earlier commits stay. */
    if (cd_writer_commit(store, NULL) != CDDP_OK) store->batch.count = 0;
    close_writer(store);
}
