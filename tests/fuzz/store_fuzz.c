/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a trace store: one sentence, or a store whose events can be read to their end and
** judged.
**
** Bytes changed at random are mostly a file that SQLite itself refuses. So most inputs are changed
** as somebody who edits a store would: rows of a store that opens, through SQL. */
#define _POSIX_C_SOURCE 200809L
#include "cddp/store.h"
#include "core/check/check.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t byte_count, size_t byte_max, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t byte_count, size_t byte_max);

/* ---- reading ---- */

typedef struct reading {
    cddp_store *store;
    cd_judge *judge; /* of the run being read */
    uint64_t sum;
} reading;

static void take_event(void *self, const cddp_event *event)
{
    reading *r = self;
    const cddp_event_info *info = cddp_event_describe(event->kind);
    if (info == NULL) abort();
    for (uint32_t i = 0; i < info->field_count; i++) r->sum += (uint64_t)event->as.field[i];
    if (event->text != NULL) r->sum += strlen(event->text);
    if (r->judge != NULL)
        cd_judge_get_sink(r->judge)->event(cd_judge_get_sink(r->judge)->self, event);
}

static cddp_status take_finding(void *context, const cddp_finding *finding, cddp_error *err)
{
    (void)err;
    *(uint64_t *)context += strlen(finding->title) + strlen(finding->check);
    return CDDP_OK;
}

static cddp_status take_pair(void *context, const char *name, const char *text, cddp_error *err)
{
    (void)err;
    *(uint64_t *)context += strlen(name) + strlen(text);
    return CDDP_OK;
}

static void judge_run(reading *r, int64_t run, cddp_error *err)
{
    cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, r, take_event, NULL};
    if (cd_judge_create(&(cd_judge_options){0}, &r->judge, err) != CDDP_OK) abort();
    cddp_status status = cddp_store_each_event(r->store, run, CDDP_STORE_RECORDED, &sink, err);
    if (status == CDDP_OK) status = cd_judge_end(r->judge, err);
    for (size_t i = 0; status == CDDP_OK && i < cd_judge_finding_count(r->judge); i++)
        (void)take_finding(&r->sum, cd_judge_get_finding(r->judge, i), err);
    cd_judge_destroy(r->judge);
    r->judge = NULL;
}

static cddp_status take_run(void *context, const cddp_stored_run *run, cddp_error *err)
{
    reading *r = context;
    cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, r, take_event, NULL};
    r->sum += strlen(run->provenance.scenario) + strlen(run->provenance.schedule) +
              strlen(run->outcome.verdict);
    judge_run(r, run->run, err);
    (void)cddp_store_each_event(r->store, run->run, CDDP_STORE_MERGED, &sink, err);
    (void)cddp_store_each_finding(r->store, run->run, take_finding, &r->sum, err);
    (void)cddp_store_each_exercised(r->store, run->run, take_pair, &r->sum, err);
    return CDDP_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    static const char *folder;
    if (folder == NULL) folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    char path[64];
    snprintf(path, sizeof path, "%s/cddp-fuzz-%ld.db", folder, (long)getpid());
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) return 0;
    ssize_t written = write(fd, bytes, byte_count);
    close(fd);
    reading r = {0};
    cddp_error err = CDDP_ERROR_INIT;
    if (written == (ssize_t)byte_count) {
        cddp_status status = cddp_store_open(path, CDDP_STORE_READ, NULL, &r.store, &err);
        if (status == CDDP_OK)
            (void)cddp_store_each_run(r.store, 0, take_run, &r, &err);
        else if (err.message[0] == '\0')
            abort();
        cddp_store_close(r.store);
    }
    unlink(path);
    return 0;
}

/* ---- changing ---- */

static const struct {
    const char *name, *key;
    unsigned weight;
} tables[] = {
    /* clang-format off */
    {"event", "id", 24},        {"run", "id", 3},        {"text", "id", 2},       {"finding", "run, position", 2},
    {"finding_rank", "run, position, rank", 1}, {"finding_event", "run, position, ordinal", 1}, {"exercised", "run, position", 1},
    {"parameter", "run, param, ordinal", 1},        {"kind", "id", 1},
    {"field", "kind, position", 1},                 {"enumeration", "type, value", 1},
    /* clang-format on */
};

/* splitmix64: the mutation of an input depends on libFuzzer's seed alone. */
static uint64_t draw(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t draw_below(uint64_t *state, uint64_t bound)
{
    return bound == 0 ? 0 : draw(state) % bound;
}

static int64_t count_rows(sqlite3 *db, const char *table)
{
    char text[96];
    sqlite3_stmt *statement = NULL;
    int64_t count = 0;
    snprintf(text, sizeof text, "SELECT count(*) FROM %s", table);
    if (sqlite3_prepare_v2(db, text, -1, &statement, NULL) == SQLITE_OK &&
        sqlite3_step(statement) == SQLITE_ROW)
        count = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    return count;
}

/* A column of the table, by a random ordinal. */
static bool pick_column(sqlite3 *db, const char *table, uint64_t *state, char column[32])
{
    char text[96];
    sqlite3_stmt *statement = NULL;
    bool found = false;
    snprintf(text, sizeof text, "SELECT * FROM %s LIMIT 0", table);
    if (sqlite3_prepare_v2(db, text, -1, &statement, NULL) == SQLITE_OK &&
        sqlite3_column_count(statement) > 0) {
        int ordinal = (int)draw_below(state, (uint64_t)sqlite3_column_count(statement));
        snprintf(column, 32, "%s", sqlite3_column_name(statement, ordinal));
        found = true;
    }
    sqlite3_finalize(statement);
    return found;
}

static void bind_value(sqlite3_stmt *statement, uint64_t *state)
{
    static const int64_t edges[] = {0,
                                    1,
                                    2,
                                    3,
                                    7,
                                    63,
                                    64,
                                    65,
                                    255,
                                    1024,
                                    65535,
                                    65536,
                                    INT32_MAX,
                                    UINT32_MAX,
                                    INT32_MIN,
                                    INT64_MAX,
                                    INT64_MIN,
                                    -1,
                                    -2,
                                    INT64_C(1) << 31,
                                    INT64_C(1) << 32,
                                    INT64_C(1) << 40};
    char letters[48];
    switch (draw_below(state, 8)) {
    case 0:
        sqlite3_bind_null(statement, 1);
        break;
    case 1:
        sqlite3_bind_double(statement, 1, (double)(int64_t)draw(state) / 1024);
        break;
    case 2: {
        size_t count = (size_t)draw_below(state, sizeof letters);
        for (size_t i = 0; i < count; i++) letters[i] = (char)(1 + draw_below(state, 255));
        sqlite3_bind_text(statement, 1, letters, (int)count, SQLITE_TRANSIENT);
        break;
    }
    case 3:
        sqlite3_bind_int64(statement, 1, (int64_t)draw(state));
        break;
    case 4:
        sqlite3_bind_int64(statement, 1, (int64_t)draw_below(state, 12));
        break;
    default:
        sqlite3_bind_int64(statement, 1, edges[draw_below(state, sizeof edges / sizeof edges[0])]);
        break;
    }
}

/* One cell takes a drawn value or that of another row, or one row goes. */
static void change_row(sqlite3 *db, uint64_t *state)
{
    unsigned total = 0, at = 0;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) total += tables[i].weight;
    unsigned ticket = (unsigned)draw_below(state, total);
    while (ticket >= tables[at].weight) ticket -= tables[at++].weight;
    const char *table = tables[at].name, *key = tables[at].key;
    uint64_t rows = (uint64_t)count_rows(db, table);
    char column[32], text[320];
    if (rows == 0 || !pick_column(db, table, state, column)) return;
    unsigned how = (unsigned)draw_below(state, 16);
    if (how == 0)
        snprintf(text, sizeof text,
                 "DELETE FROM %s WHERE (%s) = (SELECT %s FROM %s LIMIT 1 OFFSET ?2)", table, key,
                 key, table);
    else if (how < 7)
        snprintf(text, sizeof text,
                 "UPDATE OR IGNORE %s SET %s = (SELECT %s FROM %s LIMIT 1 OFFSET ?1) "
                 "WHERE (%s) = (SELECT %s FROM %s LIMIT 1 OFFSET ?2)",
                 table, column, column, table, key, key, table);
    else
        snprintf(
            text, sizeof text,
            "UPDATE OR IGNORE %s SET %s = ?1 WHERE (%s) = (SELECT %s FROM %s LIMIT 1 OFFSET ?2)",
            table, column, key, key, table);
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(db, text, -1, &statement, NULL) == SQLITE_OK) {
        if (how >= 7)
            bind_value(statement, state);
        else if (how > 0)
            sqlite3_bind_int64(statement, 1, (int64_t)draw_below(state, rows));
        sqlite3_bind_int64(statement, 2, (int64_t)draw_below(state, rows));
        (void)sqlite3_step(statement); /* a value that a STRICT table refuses does not change */
    }
    sqlite3_finalize(statement);
}

/* Returns the new size; 0: the bytes are no database, or became too many. */
static size_t change_rows(uint8_t *bytes, size_t byte_count, size_t byte_max, uint64_t *state)
{
    sqlite3 *db = NULL;
    sqlite3_int64 changed = 0;
    unsigned char *copy = sqlite3_malloc64(byte_count), *image = NULL;
    if (copy == NULL || byte_count == 0 || sqlite3_open(":memory:", &db) != SQLITE_OK) goto out;
    memcpy(copy, bytes, byte_count);
    int result =
        sqlite3_deserialize(db, "main", copy, (sqlite3_int64)byte_count, (sqlite3_int64)byte_count,
                            SQLITE_DESERIALIZE_FREEONCLOSE | SQLITE_DESERIALIZE_RESIZEABLE);
    copy = NULL; /* SQLite's, failed or not */
    if (result != SQLITE_OK || count_rows(db, "run") == 0) goto out;
    for (uint64_t n = 1 + draw_below(state, 4); n > 0; n--) change_row(db, state);
    image = sqlite3_serialize(db, "main", &changed, 0);
    if (image == NULL || changed <= 0 || (size_t)changed > byte_max)
        changed = 0;
    else
        memcpy(bytes, image, (size_t)changed);
out:
    sqlite3_free(copy);
    sqlite3_free(image);
    sqlite3_close(db);
    return (size_t)changed;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t byte_count, size_t byte_max, unsigned seed)
{
    uint64_t state = seed;
    size_t changed =
        draw_below(&state, 8) == 0 ? 0 : change_rows(bytes, byte_count, byte_max, &state);
    return changed != 0 ? changed : LLVMFuzzerMutate(bytes, byte_count, byte_max);
}
