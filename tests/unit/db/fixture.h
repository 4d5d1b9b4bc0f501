/* SPDX-License-Identifier: Apache-2.0 */
/* Stores of a test: its own folder, and small invented runs. */
#pragma once
#include "cddp/store.h"
#include "tests/support/test.h"

#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct fixture {
    char folder[64];
    char path[96]; /* folder/run.db; not there yet */
} fixture;

static inline void fixture_open(fixture *f)
{
    snprintf(f->folder, sizeof f->folder, "store_test.XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    snprintf(f->path, sizeof f->path, "%s/run.db", f->folder);
}

static inline void fixture_close(fixture *f)
{
    static const char *const suffixes[] = {"run.db",   "run.db-wal", "run.db-shm", "run.db-journal",
                                           "other.db", "0.db",       "1.db",       "2.db"};
    char path[160];
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", f->folder, suffixes[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(f->folder), 0); /* nothing else was left behind */
}

static inline cddp_run_provenance fixture_provenance(uint32_t world_size)
{
    return (cddp_run_provenance){.size = sizeof(cddp_run_provenance),
                                 .title = "a test",
                                 .scenario = "title = \"a test\"\n",
                                 .source = "a.toml",
                                 .options = "",
                                 .schedule = "",
                                 .backend = "sim",
                                 .version = "0.1.0",
                                 .machine = "Linux x86_64",
                                 .compiler = "cc 1",
                                 .recorded_at = "",
                                 .seed = 0xfedcba9876543210u,
                                 .plan = 7,
                                 .world_size = world_size,
                                 .steps = 3,
                                 .level = CDDP_TRACE_DIGEST};
}

/* An event of any kind with fields made from its place; every third one has a text. */
static inline cddp_event fixture_event(uint32_t rank, uint32_t step, uint64_t sequence)
{
    static const char *const texts[] = {"", "conv1.weight", "it's \"quoted\"", "größer"};
    cddp_event event = {.time_ns = sequence * 10 + rank,
                        .sequence = sequence,
                        .rank = rank,
                        .step = step,
                        .micro_step = (uint32_t)(sequence % 2),
                        .kind = (uint16_t)(sequence % CDDP_EV_COUNT),
                        .level = CDDP_TRACE_DIGEST};
    const cddp_event_info *info = cddp_event_describe(event.kind);
    for (uint32_t i = 0; i < info->field_count; i++) {
        uint64_t bits = (sequence + 1) * UINT64_C(0x9e3779b97f4a7c15) * (i + 1);
        if (info->fields[i].type == CDDP_FIELD_f64) {
            double number = (double)(int64_t)sequence / 3 - i;
            memcpy(&bits, &number, sizeof bits);
        }
        event.as.field[i] = (int64_t)bits;
    }
    if (sequence % 3 == 0) event.text = texts[sequence / 3 % 4];
    return event;
}

/* A run of so many steps on every rank, each step of `count` events per rank, flushed by each
** rank. */
static inline void fixture_steps(cddp_store *store, uint32_t world_size, uint32_t steps,
                                 uint32_t count)
{
    cddp_error err = CDDP_ERROR_INIT;
    const cddp_trace_sink *sink = cddp_store_sink(store);
    for (uint32_t step = 0; step < steps; step++)
        for (uint32_t rank = 0; rank < world_size; rank++) {
            for (uint32_t i = 0; i < count; i++) {
                cddp_event event = fixture_event(rank, step, step * count + i);
                sink->event(sink->self, &event);
            }
            assert_ok(sink->flush(sink->self, &err), &err);
        }
}

static inline cddp_run_outcome fixture_outcome(void)
{
    return (cddp_run_outcome){.size = sizeof(cddp_run_outcome),
                              .exit_code = 0,
                              .verdict = "verified",
                              .reason = "",
                              .digest = 99,
                              .virtual_time_ns = 1234};
}

/* ---- a file as bytes, and as a database ---- */

static inline void write_bytes(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

/* Returns owned bytes. */
static inline unsigned char *read_bytes(const char *path, size_t *count)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    *count = (size_t)info.st_size;
    unsigned char *bytes = malloc(*count + 1);
    FILE *file = fopen(path, "rb");
    assert_non_null(bytes);
    assert_non_null(file);
    assert_int_equal(fread(bytes, 1, *count, file), *count);
    fclose(file);
    return bytes;
}

static inline void run_sql(const char *path, const char *text)
{
    sqlite3 *db = NULL;
    char *message = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_exec(db, text, NULL, NULL, &message);
    if (message != NULL) print_error("%s: %s\n", text, message);
    assert_null(message);
    sqlite3_close(db);
}

/* Makes a file of version 1, which has no seals: what is in it is refused for what it is. */
#define WITHOUT_SEALS "DROP TABLE seal; PRAGMA user_version = 1; "
