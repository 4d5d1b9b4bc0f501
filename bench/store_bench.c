/* SPDX-License-Identifier: Apache-2.0 */
/* How fast events reach the file, against what SQLite can do at all on this machine.
**
**   store_bench [EVENTS [FOLDER]]      defaults: 1000000 events, the current folder
**
** Three ways in the same run, in turns, median of five. The first is a plain prepared INSERT of
** the same number of rows with eight columns in one transaction (the known ceiling). The second is
** the same with the twenty columns of an event. The third is the store itself, closing included.
** Rates are per second of this process's CPU time, which is what "on one core" means on a shared
** machine; the wall-clock rate is printed beside it. */
#define _POSIX_C_SOURCE 200809L
#include "cddp/store.h"
#include "core/base/error.h"
#include "core/trace/event.h"

#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 5
#define EVENTS_PER_STEP 2000

typedef struct timing {
    double cpu, wall;
} timing;

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void stop(const char *words)
{
    fprintf(stderr, "store_bench: %s\n", words);
    exit(2);
}

/* The mix of a traced step: mostly ready, launch, post and done events, few of them with a text. */
static cddp_event make_event(uint64_t n)
{
    static const uint16_t kinds[] = {CDDP_EV_grad_local,    CDDP_EV_mark_ready,
                                     CDDP_EV_mark_ready,    CDDP_EV_grad_final,
                                     CDDP_EV_used_local,    CDDP_EV_collective_post,
                                     CDDP_EV_bucket_launch, CDDP_EV_collective_done,
                                     CDDP_EV_value,         CDDP_EV_hook_call};
    cddp_event event = {.time_ns = n * 731,
                        .sequence = n / 4,
                        .rank = (uint32_t)(n % 4),
                        .step = (uint32_t)(n / EVENTS_PER_STEP),
                        .kind = kinds[n / 4 % 10],
                        .level = CDDP_TRACE_DIGEST};
    const cddp_event_info *info = cddp_event_describe(event.kind);
    for (uint32_t i = 0; i < info->field_count; i++)
        event.as.field[i] = info->fields[i].type == CDDP_FIELD_digest
                                ? (int64_t)(n * UINT64_C(0x9e3779b97f4a7c15))
                                : (int64_t)(n % 1000 * i);
    if (event.kind == CDDP_EV_hook_call) event.text = "allreduce";
    return event;
}

static void run_sql(sqlite3 *db, const char *text)
{
    if (sqlite3_exec(db, text, NULL, NULL, NULL) != SQLITE_OK) stop(sqlite3_errmsg(db));
}

/* `columns` integers per row through one prepared statement, one transaction per step. */
static timing plain_inserts(const char *path, uint64_t count, int columns)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *insert = NULL;
    char create[1024] = "CREATE TABLE t (", statement[256] = "INSERT INTO t VALUES (";
    for (int i = 0; i < columns; i++) {
        snprintf(create + strlen(create), sizeof create - strlen(create), "%sc%d INTEGER",
                 i > 0 ? ", " : "", i);
        snprintf(statement + strlen(statement), sizeof statement - strlen(statement), "%s?",
                 i > 0 ? ", " : "");
    }
    snprintf(create + strlen(create), sizeof create - strlen(create), ") STRICT");
    snprintf(statement + strlen(statement), sizeof statement - strlen(statement), ")");
    unlink(path);
    double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID), wall = seconds(CLOCK_MONOTONIC);
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                        NULL) != SQLITE_OK)
        stop(path);
    run_sql(db, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA cache_size = "
                "-65536; PRAGMA "
                "wal_autocheckpoint = 4000");
    run_sql(db, create);
    if (sqlite3_prepare_v3(db, statement, -1, SQLITE_PREPARE_PERSISTENT, &insert, NULL) !=
        SQLITE_OK)
        stop(sqlite3_errmsg(db));
    run_sql(db, "BEGIN");
    for (uint64_t n = 0; n < count; n++) {
        cddp_event event = make_event(n);
        sqlite3_bind_int64(insert, 1, (int64_t)event.time_ns);
        sqlite3_bind_int64(insert, 2, (int64_t)event.sequence);
        sqlite3_bind_int64(insert, 3, event.rank);
        sqlite3_bind_int64(insert, 4, event.kind);
        for (int i = 5; i <= columns; i++) {
            uint32_t field = (uint32_t)i - 5;
            if (field < cd_event_field_counts[event.kind])
                sqlite3_bind_int64(insert, i, event.as.field[field]);
            else
                sqlite3_bind_null(insert, i);
        }
        if (sqlite3_step(insert) != SQLITE_DONE) stop(sqlite3_errmsg(db));
        sqlite3_reset(insert);
        if ((n + 1) % EVENTS_PER_STEP == 0) run_sql(db, "COMMIT; BEGIN");
    }
    run_sql(db, "COMMIT");
    sqlite3_finalize(insert);
    run_sql(db, "PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode = DELETE");
    sqlite3_close(db);
    return (timing){seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu, seconds(CLOCK_MONOTONIC) - wall};
}

static timing through_store(const char *path, uint64_t count)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    int64_t run = 0;
    cddp_run_provenance provenance = {.size = sizeof provenance,
                                      .title = "bench",
                                      .world_size = 4,
                                      .level = CDDP_TRACE_DIGEST};
    cddp_run_outcome outcome = {.size = sizeof outcome, .verdict = "verified"};
    unlink(path);
    double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID), wall = seconds(CLOCK_MONOTONIC);
    if (cddp_store_open(path, CDDP_STORE_APPEND, NULL, &store, &err) != CDDP_OK) stop(err.message);
    if (cddp_store_run_begin(store, &provenance, &run, &err) != CDDP_OK) stop(err.message);
    const cddp_trace_sink *sink = cddp_store_sink(store);
    for (uint64_t n = 0; n < count; n++) {
        cddp_event event = make_event(n);
        sink->event(sink->self, &event);
        if ((n + 1) % EVENTS_PER_STEP > EVENTS_PER_STEP - 4 || (n + 1) % EVENTS_PER_STEP == 0)
            if (sink->flush(sink->self, &err) != CDDP_OK) stop(err.message);
    }
    if (cddp_store_run_end(store, &outcome, &err) != CDDP_OK) stop(err.message);
    cddp_store_close(store);
    return (timing){seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu, seconds(CLOCK_MONOTONIC) - wall};
}

static double median(double *values)
{
    for (int i = 1; i < ROUNDS; i++)
        for (int k = i; k > 0 && values[k - 1] > values[k]; k--) {
            double swap = values[k];
            values[k] = values[k - 1];
            values[k - 1] = swap;
        }
    return values[ROUNDS / 2];
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"plain INSERT, 8 columns", "plain INSERT, 20 columns",
                                        "cddp store"};
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
    char path[4096];
    double cpu[3][ROUNDS], wall[3][ROUNDS];
    snprintf(path, sizeof path, "%s/store_bench.%ld.db", argc > 2 ? argv[2] : ".", (long)getpid());
    if (count == 0) stop("there is nothing to measure with 0 events");
    for (int round = 0; round < ROUNDS; round++)
        for (int way = 0; way < 3; way++) {
            timing t = way == 0   ? plain_inserts(path, count, 8)
                       : way == 1 ? plain_inserts(path, count, 20)
                                  : through_store(path, count);
            cpu[way][round] = (double)count / t.cpu / 1e6;
            wall[way][round] = (double)count / t.wall / 1e6;
        }
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) stop("the store is gone");
    double bytes = (double)ftell(file) / (double)count;
    fclose(file);
    unlink(path);
    printf("%-26s %12s %12s   (million rows per second, median of %d, SQLite %s)\n", "", "CPU",
           "wall", ROUNDS, sqlite3_libversion());
    double rates[3];
    for (int way = 0; way < 3; way++) {
        rates[way] = median(cpu[way]);
        printf("%-26s %12.2f %12.2f\n", names[way], rates[way], median(wall[way]));
    }
    printf("store / 8-column ceiling   %12.2f\nbytes per event            %12.1f\n",
           rates[2] / rates[0], bytes);
    return rates[2] >= 1.0 ? 0 : 1;
}
