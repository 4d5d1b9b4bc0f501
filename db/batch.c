/* SPDX-License-Identifier: Apache-2.0 */
/* The events between two commits.
**
** Invariants:
**   B1  events[i] has the id first_id + i, and first_id belongs to run.
**   B2  text_numbers[i] is 0 or below next_number.
**   B3  texts from written_offset on are those numbered written_number … next_number - 1, in order.
**
** Texts repeat (names of parameters, hooks and marks), so each is stored once. After too many
** different texts a commit forgets them: a repeated text then gets a second row, which is
** harmless.
**
** Not here: transactions (writer.c). */
#include "db/batch.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/trace/event.h"
#include "db/seal.h"

#include <string.h>

#define TEXTS_BYTES_MAX ((size_t)8 << 20)

void cd_batch_init(cd_batch *batch, const cddp_allocator *allocator, const int16_t *stored_kinds)
{
    *batch = (cd_batch){.allocator = allocator, .stored_kinds = stored_kinds};
    for (uint32_t kind = 0; kind < CDDP_EV_COUNT; kind++) {
        const cddp_event_info *info = cddp_event_describe(kind);
        for (uint32_t i = 0; i < info->field_count; i++)
            if (info->fields[i].type == CDDP_FIELD_f64)
                batch->real_fields[kind] |= (uint16_t)(1u << i);
    }
}

void cd_batch_fini(cd_batch *batch)
{
    const cddp_allocator *a = batch->allocator;
    cd_release(a, batch->events, batch->capacity * sizeof *batch->events);
    cd_release(a, batch->text_numbers, batch->text_capacity * sizeof *batch->text_numbers);
    cd_release(a, batch->texts, batch->texts_capacity);
    cd_release(a, batch->slots, batch->slot_count * sizeof *batch->slots);
    cd_batch_init(batch, a, batch->stored_kinds);
}

static void forget_texts(cd_batch *batch)
{
    if (batch->slot_count != 0) memset(batch->slots, 0, batch->slot_count * sizeof *batch->slots);
    batch->slots_used = 0;
    batch->texts_used = 0;
    batch->written_offset = 0;
}

void cd_batch_begin(cd_batch *batch, int64_t run)
{
    forget_texts(batch);
    batch->count = 0;
    batch->next_number = batch->written_number = 1;
    batch->run = run;
    batch->first_id = (run << 40) + 1;
}

void cd_batch_clear(cd_batch *batch)
{
    batch->first_id += (int64_t)batch->count;
    batch->count = 0;
    batch->written_number = batch->next_number;
    batch->written_offset = batch->texts_used;
    if (batch->texts_used > TEXTS_BYTES_MAX) forget_texts(batch);
}

static void place(cd_interned *slots, size_t slot_count, cd_interned entry)
{
    size_t i = entry.hash & (slot_count - 1);
    while (slots[i].offset != 0) i = (i + 1) & (slot_count - 1);
    slots[i] = entry;
}

static bool grow_slots(cd_batch *batch)
{
    if (batch->slots_used * 2 < batch->slot_count) return true;
    size_t slot_count = batch->slot_count == 0 ? 256 : batch->slot_count * 2;
    cd_interned *slots = cd_allocate_array(batch->allocator, slot_count, sizeof *slots);
    if (slots == NULL) return false;
    for (size_t i = 0; i < batch->slot_count; i++)
        if (batch->slots[i].offset != 0) place(slots, slot_count, batch->slots[i]);
    cd_release(batch->allocator, batch->slots, batch->slot_count * sizeof *batch->slots);
    batch->slots = slots;
    batch->slot_count = slot_count;
    return true;
}

/* The number of a text; 0 when memory is exhausted. */
static uint32_t intern(cd_batch *batch, const char *text)
{
    size_t bytes = strlen(text) + 1;
    uint64_t hash = cd_hash64(text, bytes - 1, 0);
    if (!grow_slots(batch)) return 0;
    for (size_t i = hash & (batch->slot_count - 1); batch->slots[i].offset != 0;
         i = (i + 1) & (batch->slot_count - 1))
        if (batch->slots[i].hash == hash &&
            strcmp(batch->texts + batch->slots[i].offset - 1, text) == 0)
            return batch->slots[i].number;
    if (!cd_vec_grow(batch->allocator, (void **)&batch->texts, &batch->texts_capacity,
                     batch->texts_used + bytes, 1))
        return 0;
    memcpy(batch->texts + batch->texts_used, text, bytes);
    place(batch->slots, batch->slot_count,
          (cd_interned){hash, batch->texts_used + 1, batch->next_number});
    batch->texts_used += bytes;
    batch->slots_used++;
    return batch->next_number++;
}

bool cd_batch_add(cd_batch *batch, const cddp_event *event)
{
    const cddp_allocator *a = batch->allocator;
    uint32_t number = 0;
    if (!cd_vec_grow(a, (void **)&batch->events, &batch->capacity, batch->count + 1,
                     sizeof *batch->events))
        return false;
    if (!cd_vec_grow(a, (void **)&batch->text_numbers, &batch->text_capacity, batch->count + 1,
                     sizeof *batch->text_numbers))
        return false;
    if (event->text != NULL && (number = intern(batch, event->text)) == 0) return false;
    cddp_event *stored = &batch->events[batch->count];
    *stored = *event;
    stored->text = NULL;
    batch->text_numbers[batch->count++] = number;
    return true;
}

/* ---- the seal ---- */

/* A real number, or the bits of a NaN, which SQLite does not have. */
static bool is_real(const cd_batch *batch, const cddp_event *event, uint32_t position,
                    double *number)
{
    memcpy(number, &event->as.field[position], sizeof *number);
    return ((batch->real_fields[event->kind] >> position) & 1) != 0 && *number == *number;
}

static void seal_fields(const cd_batch *batch, const cddp_event *event, cd_seal_row *row)
{
    const uint32_t used = cd_event_field_counts[event->kind];
    double number;
    for (uint32_t i = 0; i < CDDP_EVENT_FIELDS; i++)
        if (i >= used)
            cd_seal_add_null(row);
        else if (is_real(batch, event, i, &number))
            cd_seal_add_real(row, number);
        else
            cd_seal_add_number(row, event->as.field[i]);
}

static void seal_number_or_null(cd_seal_row *row, bool is_number, int64_t number)
{
    if (is_number)
        cd_seal_add_number(row, number);
    else
        cd_seal_add_null(row);
}

/* The columns are those of batch_column. */
uint64_t cd_batch_seal(const cd_batch *batch)
{
    uint64_t digest = 0;
    cd_seal_row row = {.count = 0};
    for (size_t i = 0; i < batch->count; i++) {
        const cddp_event *event = &batch->events[i];
        cd_seal_add_number(&row, batch->first_id + (int64_t)i);
        cd_seal_add_number(&row, (int64_t)event->time_ns);
        seal_number_or_null(&row, event->rank != UINT32_MAX, event->rank);
        cd_seal_add_number(&row, (int64_t)event->sequence);
        cd_seal_add_number(&row, batch->stored_kinds[event->kind]);
        cd_seal_add_number(&row, event->step);
        cd_seal_add_number(&row, event->micro_step);
        seal_number_or_null(&row, batch->text_numbers[i] != 0,
                            (batch->run << 32) + batch->text_numbers[i]);
        seal_fields(batch, event, &row);
        digest = cd_seal_end_row(&row, digest);
    }
    return digest;
}

/* ---- the virtual table ---- */

enum {
    COLUMN_ID,
    COLUMN_T,
    COLUMN_RANK,
    COLUMN_SEQ,
    COLUMN_KIND,
    COLUMN_STEP,
    COLUMN_MICRO,
    COLUMN_TEXT,
    COLUMN_FIELDS
};

typedef struct batch_table {
    sqlite3_vtab base; /* SQLite's part; first */
    const cd_batch *batch;
} batch_table;

typedef struct batch_cursor {
    sqlite3_vtab_cursor base; /* SQLite's part; first */
    size_t at;
} batch_cursor;

static int batch_connect(sqlite3 *db, void *context, int argument_count,
                         const char *const *arguments, sqlite3_vtab **table, char **message)
{
    (void)argument_count, (void)arguments, (void)message;
    int result =
        sqlite3_declare_vtab(db, "CREATE TABLE x(id, t, rank, seq, kind, step, micro, text, "
                                 "f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10)");
    if (result != SQLITE_OK) return result;
    sqlite3_vtab_config(db, SQLITE_VTAB_DIRECTONLY);
    batch_table *t = sqlite3_malloc(sizeof *t);
    if (t == NULL) return SQLITE_NOMEM;
    *t = (batch_table){.batch = context};
    *table = &t->base;
    return SQLITE_OK;
}

static int batch_disconnect(sqlite3_vtab *table)
{
    sqlite3_free(table);
    return SQLITE_OK;
}

static int batch_best_index(sqlite3_vtab *table, sqlite3_index_info *info)
{
    (void)table;
    info->estimatedCost = 1000;
    info->estimatedRows = 1000;
    return SQLITE_OK;
}

static int batch_open(sqlite3_vtab *table, sqlite3_vtab_cursor **cursor)
{
    (void)table;
    batch_cursor *c = sqlite3_malloc(sizeof *c);
    if (c == NULL) return SQLITE_NOMEM;
    *c = (batch_cursor){.at = 0};
    *cursor = &c->base;
    return SQLITE_OK;
}

static int batch_close(sqlite3_vtab_cursor *cursor)
{
    sqlite3_free(cursor);
    return SQLITE_OK;
}

static int batch_filter(sqlite3_vtab_cursor *cursor, int index, const char *name, int count,
                        sqlite3_value **values)
{
    (void)index, (void)name, (void)count, (void)values;
    ((batch_cursor *)cursor)->at = 0;
    return SQLITE_OK;
}

static int batch_next(sqlite3_vtab_cursor *cursor)
{
    ((batch_cursor *)cursor)->at++;
    return SQLITE_OK;
}

static int batch_eof(sqlite3_vtab_cursor *cursor)
{
    return ((batch_cursor *)cursor)->at >= ((batch_table *)cursor->pVtab)->batch->count;
}

static void field_result(sqlite3_context *context, const cd_batch *batch, const cddp_event *event,
                         uint32_t position)
{
    if (position >= cd_event_field_counts[event->kind]) return; /* NULL */
    double number;
    if (is_real(batch, event, position, &number))
        sqlite3_result_double(context, number);
    else
        sqlite3_result_int64(context, event->as.field[position]);
}

static int batch_column(sqlite3_vtab_cursor *cursor, sqlite3_context *context, int column)
{
    const cd_batch *batch = ((batch_table *)cursor->pVtab)->batch;
    size_t at = ((batch_cursor *)cursor)->at;
    const cddp_event *event = &batch->events[at];
    switch (column) {
    case COLUMN_ID:
        sqlite3_result_int64(context, batch->first_id + (int64_t)at);
        break;
    case COLUMN_T:
        sqlite3_result_int64(context, (int64_t)event->time_ns);
        break;
    case COLUMN_RANK:
        if (event->rank != UINT32_MAX) sqlite3_result_int64(context, event->rank);
        break;
    case COLUMN_SEQ:
        sqlite3_result_int64(context, (int64_t)event->sequence);
        break;
    case COLUMN_KIND:
        sqlite3_result_int64(context, batch->stored_kinds[event->kind]);
        break;
    case COLUMN_STEP:
        sqlite3_result_int64(context, event->step);
        break;
    case COLUMN_MICRO:
        sqlite3_result_int64(context, event->micro_step);
        break;
    case COLUMN_TEXT:
        if (batch->text_numbers[at] != 0)
            sqlite3_result_int64(context, (batch->run << 32) + batch->text_numbers[at]);
        break;
    default:
        field_result(context, batch, event, (uint32_t)(column - COLUMN_FIELDS));
        break;
    }
    return SQLITE_OK;
}

static int batch_rowid(sqlite3_vtab_cursor *cursor, sqlite3_int64 *rowid)
{
    *rowid = (sqlite3_int64)((batch_cursor *)cursor)->at;
    return SQLITE_OK;
}

static const sqlite3_module batch_module = {
    .iVersion = 1,
    /* no xCreate: the table exists without one and cannot be made in a file */
    .xConnect = batch_connect,
    .xBestIndex = batch_best_index,
    .xDisconnect = batch_disconnect,
    .xOpen = batch_open,
    .xClose = batch_close,
    .xFilter = batch_filter,
    .xNext = batch_next,
    .xEof = batch_eof,
    .xColumn = batch_column,
    .xRowid = batch_rowid,
};

cddp_status cd_batch_attach(cd_batch *batch, cd_sql *sql, cddp_error *err)
{
    int result = sqlite3_create_module(sql->db, "cd_batch", &batch_module, batch);
    return CD_PASS(result == SQLITE_OK ? CDDP_OK : cd_sql_fail(sql, result, err));
}
