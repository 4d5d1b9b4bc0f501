/* SPDX-License-Identifier: Apache-2.0 */
/* kill -9 while a run is written: the store opens, marked incomplete, with every finished iteration
** in it.
**
** A child writes steps for ever and reports each finished iteration through a pipe. It is killed
** at a random moment: 8 times in the fast suite, 100 times in the slow one. */
#define _POSIX_C_SOURCE 200809L
#include "tests/unit/db/fixture.h"

#include "core/base/os.h"
#include "core/base/prng.h"
#include "core/trace/sink.h"

#include <signal.h>
#include <sqlite3.h>
#include <sys/wait.h>

#ifndef KILL_MOMENTS
#error "the number of kills is given by CMakeLists.txt"
#endif
#define WORLD 3
#define EVENTS_PER_STEP 40

/* Never returns. */
static void write_for_ever(const char *path, int reported)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    int64_t run = 0;
    cddp_run_provenance provenance = fixture_provenance(WORLD);
    if (cddp_store_open(path, CDDP_STORE_APPEND, NULL, &store, &err) != CDDP_OK) _exit(3);
    if (cddp_store_run_begin(store, &provenance, &run, &err) != CDDP_OK) _exit(4);
    const cddp_trace_sink *sink = cddp_store_sink(store);
    for (uint32_t step = 0;; step++) {
        for (uint32_t rank = 0; rank < WORLD; rank++) {
            for (uint32_t i = 0; i < EVENTS_PER_STEP; i++) {
                cddp_event event = fixture_event(rank, step, step * EVENTS_PER_STEP + i);
                sink->event(sink->self, &event);
            }
            if (sink->flush(sink->self, &err) != CDDP_OK) _exit(5);
        }
        if (write(reported, &step, sizeof step) != sizeof step) _exit(6);
    }
}

/* The last iteration that the child said had ended, or -1. */
static int64_t last_reported(int fd)
{
    int64_t last = -1;
    uint32_t step;
    while (read(fd, &step, sizeof step) == sizeof step) last = step;
    return last;
}

static cddp_status expect_incomplete(void *context, const cddp_stored_run *run, cddp_error *err)
{
    (void)err;
    assert_false(run->complete);
    assert_string_equal(run->outcome.verdict, "");
    *(uint64_t *)context = run->event_count;
    return CDDP_OK;
}

/* after_ns: since it was started; NOT_BEFORE_AN_ITERATION: as soon as the first iteration has
** ended. */
#define NOT_BEFORE_AN_ITERATION UINT64_MAX
static void kill_once(const char *path, uint64_t after_ns, int64_t run)
{
    uint32_t first = 0;
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        write_for_ever(path, ends[1]);
    }
    close(ends[1]);
    if (after_ns == NOT_BEFORE_AN_ITERATION)
        assert_int_equal(read(ends[0], &first, sizeof first), sizeof first);
    else
        cd_os_sleep_ns(after_ns);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    int64_t reported = last_reported(ends[0]);
    if (after_ns == NOT_BEFORE_AN_ITERATION && reported < 0) reported = first;
    close(ends[0]);

    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    uint64_t count = 0;
    if (reported <
        0) { /* killed before the first iteration had ended: the file may not be there yet */
        if (cddp_store_open(path, CDDP_STORE_READ, NULL, &store, &err) == CDDP_OK)
            cddp_store_close(store);
        else
            assert_true(strstr(err.message, "there is no store") != NULL ||
                        strstr(err.message, "is empty") != NULL);
        return;
    }
    assert_ok(cddp_store_open(path, CDDP_STORE_READ, NULL, &store, &err), &err);
    assert_ok(cddp_store_each_run(store, run, expect_incomplete, &count, &err), &err);
    assert_true(count >= (uint64_t)(reported + 1) * WORLD * EVENTS_PER_STEP);
    cd_memory_sink memory;
    cd_memory_sink_init(&memory, NULL);
    assert_ok(cddp_store_each_event(store, run, CDDP_STORE_RECORDED, &memory.sink, &err), &err);
    assert_int_equal(memory.count, count);
    for (size_t i = 0; i < memory.count; i++) {
        cddp_event wanted =
            fixture_event(memory.events[i].rank, memory.events[i].step, memory.events[i].sequence);
        assert_memory_equal(memory.events[i].as.field, wanted.as.field, sizeof wanted.as.field);
    }
    cd_memory_sink_fini(&memory);
    cddp_store_close(store);
}

TEST(kill, a_killed_run_leaves_a_store_with_all_finished_iterations)
{
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (int moment = 0; moment < KILL_MOMENTS; moment++) {
        fixture f;
        uint64_t after_ns = 5000000 + cd_prng_below(&prng, 150000000);
        cd_test_row("moment %d, after %" PRIu64 " us", moment, after_ns / 1000);
        fixture_open(&f);
        kill_once(f.path, after_ns, 1);
        fixture_close(&f);
    }
}

TEST(kill, a_store_with_a_killed_run_takes_further_runs)
{
    fixture f;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    int64_t run = 0;
    cddp_run_provenance provenance = fixture_provenance(1);
    cddp_run_outcome outcome = fixture_outcome();
    fixture_open(&f);
    kill_once(f.path, NOT_BEFORE_AN_ITERATION, 1);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_APPEND, NULL, &store, &err), &err);
    assert_ok(cddp_store_run_begin(store, &provenance, &run, &err), &err);
    assert_int_equal(run, 2);
    fixture_steps(store, 1, 1, 10);
    assert_ok(cddp_store_run_end(store, &outcome, &err), &err);
    cddp_store_close(store);
    uint64_t count = 0;
    assert_ok(cddp_store_open(f.path, CDDP_STORE_READ, NULL, &store, &err), &err);
    assert_ok(cddp_store_each_run(store, 1, expect_incomplete, &count, &err), &err);
    assert_true(count > 0);
    cddp_store_close(store);
    assert_int_equal(unlink(f.path), 0);
    assert_int_equal(rmdir(f.folder), 0); /* the second run left it tidy */
}

/* Killed while it changes the file itself: half of the new pages are in it, the old ones in a
** journal beside it. */
static void leave_half_written(const char *path)
{
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        sqlite3 *db = NULL;
        if (sqlite3_open(path, &db) != SQLITE_OK) _exit(3);
        sqlite3_exec(db, "PRAGMA cache_size = 2; BEGIN IMMEDIATE; UPDATE event SET seq = seq + 1",
                     NULL, NULL, NULL);
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

TEST(kill, a_reader_takes_back_a_half_written_transaction)
{
    fixture f;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    cd_memory_sink memory;
    int64_t run = 0;
    char journal[1200];
    cddp_run_provenance provenance = fixture_provenance(1);
    cddp_run_outcome outcome = fixture_outcome();
    fixture_open(&f);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_APPEND, NULL, &store, &err), &err);
    assert_ok(cddp_store_run_begin(store, &provenance, &run, &err), &err);
    fixture_steps(store, 1, 4, 500);
    assert_ok(cddp_store_run_end(store, &outcome, &err), &err);
    cddp_store_close(store);
    leave_half_written(f.path);
    snprintf(journal, sizeof journal, "%s-journal", f.path);
    assert_int_equal(access(journal, F_OK), 0); /* else this shows nothing */
    cd_memory_sink_init(&memory, NULL);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_READ, NULL, &store, &err), &err);
    assert_ok(cddp_store_each_event(store, run, CDDP_STORE_RECORDED, &memory.sink, &err), &err);
    cddp_store_close(store);
    assert_int_equal(memory.count, 2000);
    for (size_t i = 0; i < memory.count; i++) assert_int_equal(memory.events[i].sequence, i);
    cd_memory_sink_fini(&memory);
    assert_int_equal(access(journal, F_OK), -1);
    fixture_close(&f);
}

TEST_MAIN()
