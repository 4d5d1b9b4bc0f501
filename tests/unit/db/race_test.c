/* SPDX-License-Identifier: Apache-2.0 */
/* Two programs create the same store at the same moment. The moment is deterministic: all file
** access goes through the test's own SQLite file system (VFS). It lets the other program act
** exactly when this one asks for a lock, or after a given number of sleeps; no thread really
** sleeps.
*/
#define _POSIX_C_SOURCE 200809L
#include "tests/unit/db/fixture.h"

#include <sqlite3.h>
#include <sys/wait.h>

typedef struct stage {
    sqlite3_vfs vfs; /* the platform's, with two functions of ours */
    sqlite3_vfs *platform;
    sqlite3_io_methods methods;
    const sqlite3_io_methods *platform_methods;
    void (*act)(void *context); /* the other program, once */
    void *context;
    uint32_t act_at_lock, act_at_sleep; /* 0: never */
    uint32_t locks, sleeps;
    uint64_t slept_us;
} stage;
static stage the_stage;

static void act(stage *s)
{
    void (*other)(void *) = s->act;
    s->act = NULL;
    if (other != NULL) other(s->context);
}

static int slept(sqlite3_vfs *vfs, int microseconds)
{
    (void)vfs;
    the_stage.slept_us += (uint64_t)microseconds;
    if (++the_stage.sleeps == the_stage.act_at_sleep) act(&the_stage);
    return microseconds;
}

/* A request for a shared lock comes without any lock: every transaction begins with it. */
static int lock(sqlite3_file *file, int level)
{
    if (level == SQLITE_LOCK_SHARED && ++the_stage.locks == the_stage.act_at_lock) act(&the_stage);
    return the_stage.platform_methods->xLock(file, level);
}

static int open_file(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags,
                     int *out_flags)
{
    int result = the_stage.platform->xOpen(the_stage.platform, name, file, flags, out_flags);
    (void)vfs;
    if (result == SQLITE_OK && (flags & SQLITE_OPEN_MAIN_DB) != 0) {
        the_stage.platform_methods = file->pMethods;
        the_stage.methods = *file->pMethods;
        the_stage.methods.xLock = lock;
        file->pMethods = &the_stage.methods;
    }
    return result;
}

static void stage_open(void)
{
    if (the_stage.platform == NULL) {
        the_stage.platform = sqlite3_vfs_find(NULL);
        the_stage.vfs = *the_stage.platform;
        the_stage.vfs.zName = "stage";
        the_stage.vfs.pNext = NULL;
        the_stage.vfs.xOpen = open_file;
        the_stage.vfs.xSleep = slept;
        assert_int_equal(sqlite3_vfs_register(&the_stage.vfs, 1), SQLITE_OK);
    }
    the_stage.act = NULL;
    the_stage.act_at_lock = the_stage.act_at_sleep = the_stage.locks = the_stage.sleeps = 0;
    the_stage.slept_us = 0;
}

static cddp_status begin(cddp_store **store, const char *path, cddp_error *err)
{
    cddp_run_provenance provenance = fixture_provenance(1);
    int64_t run = 0;
    cddp_status status = cddp_store_open(path, CDDP_STORE_APPEND, NULL, store, err);
    return status == CDDP_OK ? cddp_store_run_begin(*store, &provenance, &run, err) : status;
}

static cddp_status write_run(const char *path, cddp_error *err)
{
    cddp_store *store = NULL;
    cddp_run_outcome outcome = fixture_outcome();
    cddp_status status = begin(&store, path, err);
    if (status == CDDP_OK) fixture_steps(store, 1, 2, 10);
    if (status == CDDP_OK) status = cddp_store_run_end(store, &outcome, err);
    cddp_store_close(store);
    return status;
}

static cddp_status count_run(void *context, const cddp_stored_run *run, cddp_error *err)
{
    (void)err;
    *(int *)context += run->complete ? 1 : 100;
    return CDDP_OK;
}

static int complete_runs(const char *path)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    int count = 0;
    assert_ok(cddp_store_open(path, CDDP_STORE_READ, NULL, &store, &err), &err);
    assert_ok(cddp_store_each_run(store, 0, count_run, &count, &err), &err);
    cddp_store_close(store);
    return count;
}

/* The whole of it by another process, between two steps of ours. */
static void write_run_elsewhere(void *context)
{
    int ended = -1;
    pid_t child = fork();
    if (child == 0) {
        cddp_error err = CDDP_ERROR_INIT;
        _exit(write_run(context, &err) == CDDP_OK ? 0 : 1);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
}

TEST(store_race, whenever_another_program_makes_the_store_first_both_runs_are_in_it)
{
    (void)state;
    uint32_t moments = 0;
    for (bool is_reached = true; is_reached; moments += is_reached) {
        fixture f;
        cddp_error err = CDDP_ERROR_INIT;
        fixture_open(&f);
        stage_open();
        the_stage.act = write_run_elsewhere;
        the_stage.context = f.path;
        the_stage.act_at_lock = moments + 1;
        cd_test_row("the other program comes before lock %u", (unsigned)moments + 1);
        assert_ok(write_run(f.path, &err), &err);
        is_reached = the_stage.act == NULL;
        the_stage.act = NULL;
        assert_int_equal(complete_runs(f.path), is_reached ? 2 : 1);
        fixture_close(&f);
    }
    /* looking whether it is empty, making it, taking it over, writing … */
    assert_in_range(moments, 3, 100);
}

static void execute(sqlite3 *db, const char *sql)
{
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
}
static void commit(void *context) { execute(context, "COMMIT"); }

/* The other program has the file to itself when ours has opened it and turns to write-ahead
** logging, which SQLite does not wait for. */
static cddp_status race_for_the_switch(fixture *f, uint32_t sleeps, cddp_store **store,
                                       sqlite3 **other, cddp_error *err)
{
    cddp_run_provenance provenance = fixture_provenance(1);
    int64_t run = 0;
    fixture_open(f);
    stage_open();
    assert_ok(cddp_store_open(f->path, CDDP_STORE_APPEND, NULL, store, err), err);
    assert_int_equal(sqlite3_open(f->path, other), SQLITE_OK);
    execute(*other, "BEGIN EXCLUSIVE");
    the_stage.act = commit;
    the_stage.context = *other;
    the_stage.act_at_sleep = sleeps;
    return cddp_store_run_begin(*store, &provenance, &run, err);
}

TEST(store_race, the_switch_to_write_ahead_logging_waits_for_the_other_program)
{
    (void)state;
    for (uint32_t sleeps = 1; sleeps <= 5; sleeps += 2) {
        fixture f;
        cddp_store *store = NULL;
        sqlite3 *other = NULL;
        cddp_error err = CDDP_ERROR_INIT;
        cddp_run_outcome outcome = fixture_outcome();
        cd_test_row("held for %u sleeps", (unsigned)sleeps);
        assert_ok(race_for_the_switch(&f, sleeps, &store, &other, &err), &err);
        assert_int_equal(the_stage.sleeps, sleeps); /* and not once more */
        assert_int_equal(sqlite3_close(other), SQLITE_OK);
        fixture_steps(store, 1, 2, 10);
        assert_ok(cddp_store_run_end(store, &outcome, &err), &err);
        cddp_store_close(store);
        assert_int_equal(complete_runs(f.path), 1);
        fixture_close(&f);
    }
}

TEST(store_race, a_file_that_is_never_given_free_is_reported_of_in_one_sentence)
{
    (void)state;
    fixture f;
    cddp_store *store = NULL;
    sqlite3 *other = NULL;
    cddp_error err = CDDP_ERROR_INIT;
    assert_fails(race_for_the_switch(&f, 0, &store, &other, &err), CDDP_E_IO, &err,
                 "is in use: another program is writing to it");
    assert_in_range(the_stage.slept_us, 10000000, 21000000); /* ours, and once more SQLite's own */
    execute(other, "COMMIT");
    assert_int_equal(sqlite3_close(other), SQLITE_OK);
    cddp_store_close(store);
    fixture_close(&f);
}

TEST_MAIN()
