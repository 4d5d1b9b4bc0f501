/* SPDX-License-Identifier: Apache-2.0 */
/* A file that is not a store, or is a bad one, gets one clear sentence and is not changed. */
#define _POSIX_C_SOURCE 200809L
#include "tests/unit/db/fixture.h"

#include "core/base/hash.h"
#include "core/base/prng.h"
#include "core/trace/sink.h"
#include "db/seal.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

static uint64_t file_hash(const char *path)
{
    size_t count = 0;
    unsigned char *bytes = read_bytes(path, &count);
    uint64_t hash = cd_hash64(bytes, count, 0);
    free(bytes);
    return hash;
}

static void make_store(const char *path)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    int64_t run = 0;
    cddp_run_provenance provenance = fixture_provenance(2);
    cddp_run_outcome outcome = fixture_outcome();
    assert_ok(cddp_store_open(path, CDDP_STORE_APPEND, NULL, &store, &err), &err);
    assert_ok(cddp_store_run_begin(store, &provenance, &run, &err), &err);
    fixture_steps(store, 2, 2, 80);
    assert_ok(cddp_store_run_end(store, &outcome, &err), &err);
    cddp_store_close(store);
}

/* Both ways of opening refuse with these words, and the file is the same afterwards. */
static void assert_refused(const char *path, cddp_status status, const char *words)
{
    uint64_t before = file_hash(path);
    for (int mode = CDDP_STORE_READ; mode <= CDDP_STORE_APPEND; mode++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_store *store = NULL;
        assert_fails(cddp_store_open(path, (cddp_store_mode)mode, NULL, &store, &err), status, &err,
                     words);
        assert_non_null(strstr(err.message, path)); /* it names the file … */
        assert_null(strchr(err.message, '\n'));     /* … in one sentence */
        assert_null(store);
    }
    assert_int_equal(file_hash(path), before);
}

TEST(refusal, a_text_file_is_not_a_store)
{
    fixture f;
    fixture_open(&f);
    write_bytes(f.path, "title = \"a scenario, not a store\"\n", 34);
    assert_refused(f.path, CDDP_E_CORRUPT, "not an SQLite file");
    fixture_close(&f);
}

TEST(refusal, the_database_of_another_application_is_named_as_such)
{
    fixture f;
    fixture_open(&f);
    run_sql(f.path, "PRAGMA application_id = 77; CREATE TABLE run (id INTEGER PRIMARY KEY)");
    assert_refused(f.path, CDDP_E_CORRUPT, "of another application (id 0x0000004d");
    fixture_close(&f);
}

TEST(refusal, a_newer_version_is_not_guessed_at)
{
    fixture f;
    fixture_open(&f);
    make_store(f.path);
    run_sql(f.path, "PRAGMA user_version = 8");
    assert_refused(f.path, CDDP_E_CORRUPT,
                   "is damaged: its header says version 8, its table 'seal' version 2");
    run_sql(f.path, "UPDATE seal SET last = 8 WHERE name = 'version'");
    assert_refused(f.path, CDDP_E_UNSUPPORTED,
                   "store version 8; this program reads versions 1 to 2");
    fixture_close(&f);
}

TEST(refusal, hostile_schemas)
{
    static const struct {
        const char *name, *sql, *words;
        cddp_status status;
    } cases[] = {
        {"trigger", "CREATE TRIGGER boom AFTER INSERT ON run BEGIN DELETE FROM event; END",
         "contains a trigger ('boom')", CDDP_E_CORRUPT},
        {"missing table", "DROP TABLE metric", "has no table 'metric'", CDDP_E_CORRUPT},
        {"a view in place of a table",
         "DROP TABLE metric; CREATE VIEW metric AS SELECT 1 AS run, 2 AS name, 3 AS value",
         "has no table 'metric'", CDDP_E_CORRUPT},
        {"a computed column",
         "DROP TABLE metric; CREATE TABLE metric (run INTEGER, name TEXT, value REAL AS "
         "(zeroblob(100000000)))",
         "its table 'metric' differs", CDDP_E_CORRUPT},
        {"a virtual table", "DROP TABLE text; CREATE VIRTUAL TABLE text USING fts5(value)",
         "its table 'text' differs", CDDP_E_CORRUPT},
        {"kinds beyond the map", WITHOUT_SEALS "INSERT INTO kind VALUES (100000, 'evil', '')",
         "numbers an event kind 100000", CDDP_E_CORRUPT},
        {"fields of another version",
         WITHOUT_SEALS "UPDATE field SET name = 'other' WHERE kind = 0 AND position = 0",
         "written by another version of cddp: its event 'run_begin'", CDDP_E_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fixture f;
        cd_test_row("%s", cases[i].name);
        fixture_open(&f);
        make_store(f.path);
        run_sql(f.path, cases[i].sql);
        assert_refused(f.path, cases[i].status, cases[i].words);
        fixture_close(&f);
    }
}

static void ignore_event(void *self, const cddp_event *event)
{
    (void)event;
    ++*(uint64_t *)self;
}

static cddp_status ignore_run(void *context, const cddp_stored_run *stored, cddp_error *err)
{
    (void)stored, (void)err;
    ++*(uint64_t *)context;
    return CDDP_OK;
}

/* Opens and reads everything; whatever happens must be success or one of our sentences, never a
** crash. */
static cddp_status read_everything(const char *path, cddp_error *err)
{
    cddp_store *store = NULL;
    uint64_t count = 0;
    int64_t run = 0;
    cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, &count, ignore_event, NULL};
    cddp_status status = cddp_store_open(path, CDDP_STORE_READ, NULL, &store, err);
    if (status == CDDP_OK) status = cddp_store_each_run(store, 0, ignore_run, &count, err);
    if (status == CDDP_OK) status = cddp_store_last_run(store, &run, err);
    if (status == CDDP_OK)
        status = cddp_store_each_event(store, run, CDDP_STORE_RECORDED, &sink, err);
    if (status == CDDP_OK)
        status = cddp_store_each_event(store, run, CDDP_STORE_MERGED, &sink, err);
    cddp_store_close(store);
    return status;
}

TEST(refusal, rows_that_cannot_be_are_named)
{
    static const struct {
        const char *name, *sql, *words;
    } cases[] = {
        /* clang-format off */
        {"unknown kind", "UPDATE event SET kind = 900", "is of kind 900, which this version does not know"},
        {"negative kind", "UPDATE event SET kind = -5", "is of kind -5"},
        {"huge rank", "UPDATE event SET rank = 99999999999", "has rank 99999999999"},
        {"negative step", "UPDATE event SET step = -1", "step -1"},
        {"world of four billion", "UPDATE run SET world_size = 4000000000", "has a world of 4000000000 ranks"},
        {"world beyond 32 bits", "UPDATE run SET world_size = 8589934592", "has a world of 8589934592 ranks"},
        {"negative steps", "UPDATE run SET steps = -1", "-1 steps"},
        {"level beyond any", "UPDATE run SET level = 65536", "level 65536"},
        /* clang-format on */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fixture f;
        cddp_error err = CDDP_ERROR_INIT;
        cd_test_row("%s", cases[i].name);
        fixture_open(&f);
        make_store(f.path);
        run_sql(f.path, WITHOUT_SEALS);
        run_sql(f.path, cases[i].sql);
        assert_true(read_everything(f.path, &err) != CDDP_OK);
        assert_non_null(strstr(err.message, cases[i].words));
        fixture_close(&f);
    }
}

TEST(refusal, every_truncation_gets_a_sentence)
{
    fixture f;
    size_t count = 0;
    fixture_open(&f);
    make_store(f.path);
    unsigned char *bytes = read_bytes(f.path, &count);
    for (size_t keep = 1; keep < count; keep += keep < 200 ? 33 : count / 23) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_test_row("%zu of %zu bytes", keep, count);
        write_bytes(f.path, bytes, keep);
        assert_true(read_everything(f.path, &err) != CDDP_OK);
        assert_true(err.message[0] != '\0');
        assert_null(strchr(err.message, '\n'));
    }
    free(bytes);
    fixture_close(&f);
}

TEST(refusal, flipped_bytes_never_crash_the_reader)
{
    fixture f;
    size_t count = 0;
    fixture_open(&f);
    make_store(f.path);
    unsigned char *bytes = read_bytes(f.path, &count);
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (int turn = 0; turn < 150; turn++) {
        cddp_error err = CDDP_ERROR_INIT;
        unsigned char *copy = malloc(count);
        assert_non_null(copy);
        memcpy(copy, bytes, count);
        for (int i = 0; i < 8; i++)
            copy[cd_prng_below(&prng, count)] ^= (unsigned char)(1 + cd_prng_below(&prng, 255));
        cd_test_row("turn %d", turn);
        write_bytes(f.path, copy, count);
        free(copy);
        if (read_everything(f.path, &err) != CDDP_OK) assert_true(err.message[0] != '\0');
    }
    free(bytes);
    fixture_close(&f);
}

static void put_number(unsigned char *at, uint64_t value, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--, value >>= 8) at[i] = (unsigned char)value;
}

/* Makes a page of the table b-tree whose every child is the same page: an interior page of SQLite's
** file format. */
static void make_fan(unsigned char *page, size_t page_bytes, uint32_t child)
{
    enum { CELLS = 200, CELL_BYTES = 4 + 7 };
    memset(page, 0, page_bytes);
    page[0] = 5;
    put_number(page + 3, CELLS, 2);
    put_number(page + 5, page_bytes - CELLS * CELL_BYTES, 2);
    put_number(page + 8, child, 4);
    for (int i = 0; i < CELLS; i++) {
        size_t at = page_bytes - (size_t)(i + 1) * CELL_BYTES;
        put_number(page + 12 + 2 * (size_t)i, at, 2);
        put_number(page + at, child, 4);
        /* a key beyond every event of run 1 */
        for (size_t k = 0; k < 6; k++) page[at + 4 + k] = 0xff;
        page[at + 10] = 0x7f;
    }
}

static int64_t query_number(const char *path, const char *query)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *statement = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, query, -1, &statement, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    int64_t number = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return number;
}

/* Twelve pages, each with 200 times the next one as its child, end in one leaf: 200^12 rows in a
** file of 100 KiB. SQLite itself would count them all. */
TEST(refusal, a_file_that_unfolds_for_ever_is_given_up)
{
    enum { LEVELS = 12 };
    fixture f;
    size_t count = 0;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    uint64_t seen = 0;
    cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, &seen, ignore_event, NULL};
    fixture_open(&f);
    make_store(f.path);
    size_t page_bytes = (size_t)query_number(f.path, "PRAGMA page_size");
    uint32_t root =
        (uint32_t)query_number(f.path, "SELECT rootpage FROM sqlite_schema WHERE name = 'event'");
    unsigned char *bytes = read_bytes(f.path, &count);
    uint32_t leaf, fans[LEVELS], pages = (uint32_t)(count / page_bytes);
    assert_int_equal(bytes[(root - 1) * page_bytes], 5); /* the table has more than one page */
    leaf = ((uint32_t)bytes[(root - 1) * page_bytes + 8] << 24) |
           ((uint32_t)bytes[(root - 1) * page_bytes + 9] << 16) |
           ((uint32_t)bytes[(root - 1) * page_bytes + 10] << 8) |
           bytes[(root - 1) * page_bytes + 11];
    unsigned char *longer = realloc(bytes, (pages + LEVELS) * page_bytes);
    assert_non_null(longer);
    bytes = longer;
    for (uint32_t i = 0; i < LEVELS; i++) fans[i] = pages + 1 + i;
    for (uint32_t i = 0; i < LEVELS; i++)
        make_fan(bytes + (fans[i] - 1) * page_bytes, page_bytes,
                 i + 1 < LEVELS ? fans[i + 1] : leaf);
    make_fan(bytes + (root - 1) * page_bytes, page_bytes, fans[0]);
    put_number(bytes + 28, pages + LEVELS, 4);
    write_bytes(f.path, bytes, (pages + LEVELS) * page_bytes);
    free(bytes);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_READ, NULL, &store, &err), &err);
    assert_fails(cddp_store_each_event(store, 1, CDDP_STORE_RECORDED, &sink, &err), CDDP_E_CORRUPT,
                 &err, "do not hold what was written");
    cddp_store_close(store);
    run_sql(f.path, WITHOUT_SEALS);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_READ, NULL, &store, &err), &err);
    assert_fails(cddp_store_each_event(store, 1, CDDP_STORE_RECORDED, &sink, &err), CDDP_E_CORRUPT,
                 &err, "is damaged: event");
    assert_fails(cddp_store_each_event(store, 1, CDDP_STORE_MERGED, &sink, &err), CDDP_E_CORRUPT,
                 &err, "more work than its size allows");
    cddp_store_close(store);
    fixture_close(&f);
}

TEST(refusal, what_cannot_be_opened_says_why)
{
    fixture f;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    char path[160];
    fixture_open(&f);
    assert_fails(cddp_store_open(f.path, CDDP_STORE_READ, NULL, &store, &err), CDDP_E_IO, &err,
                 "there is no store");
    assert_fails(cddp_store_open(f.folder, CDDP_STORE_READ, NULL, &store, &err), CDDP_E_IO, &err,
                 "Is a directory");
    assert_fails(cddp_store_open("", CDDP_STORE_APPEND, NULL, &store, &err), CDDP_E_ARG, &err,
                 "needs a file name");
    snprintf(path, sizeof path, "%s/no/such/folder.db", f.folder);
    assert_fails(cddp_store_open(path, CDDP_STORE_APPEND, NULL, &store, &err), CDDP_E_IO, &err,
                 "No such file or directory");
    fixture_close(&f);
}

TEST(refusal, a_store_of_no_runs_says_so)
{
    fixture f;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    int64_t run = 0;
    fixture_open(&f);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_APPEND, NULL, &store, &err), &err);
    cddp_store_close(store);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_READ, NULL, &store, &err), &err);
    assert_fails(cddp_store_last_run(store, &run, &err), CDDP_E_ARG, &err, "has no runs");
    assert_fails(cddp_store_run_begin(store, &(cddp_run_provenance){.world_size = 1}, &run, &err),
                 CDDP_E_STATE, &err, "opened for reading");
    cddp_store_close(store);
    fixture_close(&f);
}

/* As a program would that knows fewer kinds. */
static void seal_kinds(const char *path)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_sql sql = {.path = path};
    assert_ok(cd_sql_open(&sql, path, true, &err), &err);
    assert_ok(cd_seal_add_kinds(&sql, &err), &err);
    cd_sql_close(&sql);
}

static void unseal(const char *path) { run_sql(path, WITHOUT_SEALS); }

static void append_to_fewer_kinds(void (*prepare)(const char *path))
{
    fixture f;
    cddp_error err = CDDP_ERROR_INIT;
    cd_memory_sink memory;
    cddp_store *store = NULL;
    fixture_open(&f);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_APPEND, NULL, &store, &err), &err);
    cddp_store_close(store);
    /* As an older version would have written it: no kind 3, and kind 5 with a field less. */
    run_sql(f.path, "DELETE FROM kind WHERE id = 3; DELETE FROM field WHERE kind = 3; "
                    "DELETE FROM field WHERE kind = 5 AND position = (SELECT max(position) FROM "
                    "field WHERE kind = 5)");
    prepare(f.path);
    make_store(f.path);
    cd_memory_sink_init(&memory, NULL);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_READ, NULL, &store, &err), &err);
    assert_ok(cddp_store_each_event(store, 1, CDDP_STORE_RECORDED, &memory.sink, &err), &err);
    cddp_store_close(store);
    for (size_t i = 0; i < memory.count; i++) {
        cddp_event wanted =
            fixture_event(memory.events[i].rank, memory.events[i].step, memory.events[i].sequence);
        assert_int_equal(memory.events[i].kind, wanted.kind);
        assert_memory_equal(memory.events[i].as.field, wanted.as.field, sizeof wanted.as.field);
    }
    cd_memory_sink_fini(&memory);
    fixture_close(&f);
}

TEST(refusal, kinds_that_a_file_lacks_are_added_when_a_run_is_appended)
{
    append_to_fewer_kinds(seal_kinds);
    append_to_fewer_kinds(unseal);
}

/* ---- a disk that is full ---- */

/* In a child: files may not grow beyond 600 KiB, so that writes fail as on a full disk. */
static int fill_disk(const char *path)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    int64_t run = 0;
    struct rlimit limit = {600 * 1024, 600 * 1024};
    cddp_run_provenance provenance = fixture_provenance(1);
    cddp_run_outcome outcome = fixture_outcome();
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 10;
    if (cddp_store_open(path, CDDP_STORE_APPEND, NULL, &store, &err) != CDDP_OK) return 11;
    if (cddp_store_run_begin(store, &provenance, &run, &err) != CDDP_OK) return 12;
    const cddp_trace_sink *sink = cddp_store_sink(store);
    cddp_status status = CDDP_OK;
    for (uint32_t step = 0; step < 400 && status == CDDP_OK; step++) {
        for (uint32_t i = 0; i < 100; i++) {
            cddp_event event = fixture_event(0, step, step * 100 + i);
            sink->event(sink->self, &event);
        }
        status = sink->flush(sink->self, &err);
    }
    if (status != CDDP_E_NOMEM || strstr(err.message, "earlier commits are kept") == NULL)
        return 13;
    if (cddp_store_run_end(store, &outcome, &err) == CDDP_OK) return 14; /* and it stays failed */
    cddp_store_close(store);
    return 0;
}

/* In a child: a program that is stopped in the middle of a run. */
static int stop_in_a_run(const char *path)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    int64_t run = 0;
    cddp_run_provenance provenance = fixture_provenance(1);
    cddp_event event = fixture_event(0, 0, 0);
    if (cddp_store_open(path, CDDP_STORE_APPEND, NULL, &store, &err) != CDDP_OK) return 11;
    if (cddp_store_run_begin(store, &provenance, &run, &err) != CDDP_OK) return 12;
    const cddp_trace_sink *sink = cddp_store_sink(store);
    sink->event(sink->self, &event);
    return sink->flush(sink->self, &err) == CDDP_OK ? 0 : 13;
}

/* In a child: no file may grow at all. */
static int read_without_room(const char *path)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    struct rlimit limit = {0, 0};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 10;
    if (cddp_store_open(path, CDDP_STORE_READ, NULL, &store, &err) != CDDP_E_NOMEM) return 11;
    return strstr(err.message, "cannot read '") != NULL &&
                   strstr(err.message, "needs room beside it: File too large") != NULL
               ? 0
               : 12;
}

static void assert_child(int (*work)(const char *path), const char *path)
{
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) _exit(work(path));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

TEST(refusal, a_reader_is_not_said_to_write)
{
    fixture f;
    char beside[1200];
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    fixture_open(&f);
    assert_child(stop_in_a_run, f.path);
    snprintf(beside, sizeof beside, "%s-shm", f.path);
    assert_int_equal(unlink(beside), 0); /* files that a reader creates again */
    assert_child(read_without_room, f.path);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_READ, NULL, &store, &err), &err);
    cddp_store_close(store);
    fixture_close(&f);
}

static cddp_status expect_incomplete(void *context, const cddp_stored_run *run, cddp_error *err)
{
    (void)err;
    assert_false(run->complete);
    *(uint64_t *)context = run->event_count;
    return CDDP_OK;
}

TEST(refusal, a_full_disk_is_reported_and_what_was_committed_stays)
{
    fixture f;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    uint64_t count = 0;
    fixture_open(&f);
    assert_child(fill_disk, f.path);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_READ, NULL, &store, &err), &err);
    assert_ok(cddp_store_each_run(store, 1, expect_incomplete, &count, &err), &err);
    assert_true(count > 100);
    assert_int_equal(count % 100, 0); /* whole iterations */
    cddp_store_close(store);
    fixture_close(&f);
}

TEST_MAIN()
