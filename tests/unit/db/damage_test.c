/* SPDX-License-Identifier: Apache-2.0 */
/* A store that a disk, a copy or an editor has changed is refused, or says what it said before: no
** reader gets other events, findings or verdicts than were written. */
#define _POSIX_C_SOURCE 200809L
#include "tests/unit/db/fixture.h"

#include "core/base/hash.h"

#include <fcntl.h>

/* One finding with all columns, so that each can be changed. */
static void add_results(cddp_store *store)
{
    cddp_error err = CDDP_ERROR_INIT;
    static const uint32_t ranks[] = {0, 1};
    cddp_finding finding = {.size = sizeof finding,
                            .check = "I-PARAMEQ",
                            .step = 1,
                            .rank = 1,
                            .peer = 0,
                            .bucket = 2,
                            .param = 3,
                            .ranks = ranks,
                            .rank_count = 2,
                            .event_count = 1,
                            .parameter = "conv1.weight",
                            .title = "a title",
                            .expected = "1",
                            .actual = "2",
                            .advice = "change it"};
    finding.events[0].sequence = 4;
    assert_ok(cddp_store_add_finding(store, &finding, &err), &err);
    assert_ok(cddp_store_add_exercised(store, "I-PARAMEQ", "by a test", &err), &err);
    assert_ok(cddp_store_add_metric(store, "mark: a", 0.5, &err), &err);
}

/* A run that ended, and one that was stopped. */
static void make_runs(const char *path)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    int64_t run = 0;
    cddp_run_provenance provenance = fixture_provenance(2);
    cddp_run_outcome outcome = fixture_outcome();
    assert_ok(cddp_store_open(path, CDDP_STORE_APPEND, NULL, &store, &err), &err);
    assert_ok(cddp_store_run_begin(store, &provenance, &run, &err), &err);
    fixture_steps(store, 2, 2, 40);
    add_results(store);
    assert_ok(cddp_store_run_end(store, &outcome, &err), &err);
    assert_ok(cddp_store_run_begin(store, &provenance, &run, &err), &err);
    fixture_steps(store, 2, 1, 20);
    cddp_store_close(store);
}

/* ---- everything that a reader gets, as a digest ---- */

typedef struct reading {
    cddp_store *store;
    uint64_t digest;
} reading;

static void take_bytes(reading *r, const void *bytes, size_t count)
{
    r->digest = cd_hash64(bytes, count, r->digest);
}

static void take_text(reading *r, const char *text)
{
    take_bytes(r, text != NULL ? text : "-", text != NULL ? strlen(text) : 1);
}

static void take_event(void *context, const cddp_event *event)
{
    cddp_event copy = *event;
    copy.text = NULL;
    take_bytes(context, &copy, sizeof copy);
    take_text(context, event->text);
}

static cddp_status take_finding(void *context, const cddp_finding *f, cddp_error *err)
{
    const char *const texts[] = {f->check,    f->parameter, f->title,
                                 f->expected, f->actual,    f->advice};
    const int64_t numbers[] = {f->step, f->micro_step, f->rank, f->peer, f->bucket, f->param};
    (void)err;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) take_text(context, texts[i]);
    take_bytes(context, numbers, sizeof numbers);
    take_bytes(context, f->ranks, f->rank_count * sizeof f->ranks[0]);
    take_bytes(context, f->events, f->event_count * sizeof f->events[0]);
    return CDDP_OK;
}

static cddp_status take_pair(void *context, const char *check, const char *how, cddp_error *err)
{
    (void)err;
    take_text(context, check);
    take_text(context, how);
    return CDDP_OK;
}

static cddp_status take_metric(void *context, const char *name, double value, cddp_error *err)
{
    (void)err;
    take_text(context, name);
    take_bytes(context, &value, sizeof value);
    return CDDP_OK;
}

static void take_row(reading *r, const cddp_stored_run *s)
{
    const cddp_run_provenance *p = &s->provenance;
    const char *const texts[] = {p->title,       p->source,          p->scenario,
                                 p->options,     p->schedule,        p->backend,
                                 p->version,     p->machine,         p->compiler,
                                 p->recorded_at, s->outcome.verdict, s->outcome.reason};
    const uint64_t numbers[] = {(uint64_t)s->run,
                                s->complete,
                                s->outcome.exit_code,
                                s->outcome.digest,
                                s->outcome.virtual_time_ns,
                                p->seed,
                                p->plan,
                                p->world_size,
                                p->steps,
                                p->level};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) take_text(r, texts[i]);
    take_bytes(r, numbers, sizeof numbers);
}

static cddp_status take_run(void *context, const cddp_stored_run *stored, cddp_error *err)
{
    reading *r = context;
    cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, r, take_event, NULL};
    const int64_t run = stored->run;
    take_row(r, stored);
    cddp_status status = cddp_store_each_event(r->store, run, CDDP_STORE_RECORDED, &sink, err);
    if (status == CDDP_OK)
        status = cddp_store_each_event(r->store, run, CDDP_STORE_MERGED, &sink, err);
    if (status == CDDP_OK) status = cddp_store_each_finding(r->store, run, take_finding, r, err);
    if (status == CDDP_OK) status = cddp_store_each_exercised(r->store, run, take_pair, r, err);
    if (status == CDDP_OK) status = cddp_store_each_metric(r->store, run, take_metric, r, err);
    return status;
}

/* Whether the file was readable; *digest of what was in it. */
static bool read_all(const char *path, uint64_t *digest, cddp_error *err)
{
    reading r = {.digest = 0};
    cddp_status status = cddp_store_open(path, CDDP_STORE_READ, NULL, &r.store, err);
    if (status == CDDP_OK) status = cddp_store_each_run(r.store, 0, take_run, &r, err);
    cddp_store_close(r.store);
    *digest = r.digest;
    return status == CDDP_OK;
}

static uint64_t read_whole(const char *path)
{
    cddp_error err = CDDP_ERROR_INIT;
    uint64_t digest = 0;
    if (!read_all(path, &digest, &err)) fail_msg("%s", err.message);
    return digest;
}

/* ---- the tests ---- */

TEST(damage, a_changed_byte_changes_nothing_or_is_refused)
{
    enum { STRIDE = 1021 };
    fixture f;
    size_t count = 0, refused = 0;
    fixture_open(&f);
    make_runs(f.path);
    const uint64_t whole = read_whole(f.path);
    unsigned char *bytes = read_bytes(f.path, &count);
    const int file = open(f.path, O_WRONLY);
    for (size_t at = cd_test_seed() % STRIDE; at < count; at += STRIDE) {
        static const unsigned char changes[] = {0x01, 0x80, 0xff};
        const unsigned char changed = bytes[at] ^ changes[at % 3];
        cddp_error err = CDDP_ERROR_INIT;
        uint64_t digest = 0;
        cd_test_row("byte %zu of %zu", at, count);
        assert_int_equal(pwrite(file, &changed, 1, (off_t)at), 1);
        if (!read_all(f.path, &digest, &err)) {
            refused++;
            assert_true(err.message[0] != '\0');
            assert_null(strstr(err.message, "version of cddp"));
        } else if (digest != whole) {
            fail_msg("other rows were read");
        }
        assert_int_equal(pwrite(file, &bytes[at], 1, (off_t)at), 1);
    }
    assert_true(refused > count / STRIDE / 4); /* most of the file is rows */
    close(file);
    free(bytes);
    assert_int_equal(read_whole(f.path), whole);
    fixture_close(&f);
}

static const char *const tables[] = {"run",       "kind",    "field",        "event",
                                     "text",      "finding", "finding_rank", "finding_event",
                                     "exercised", "metric",  "parameter"};

/* What nobody reads through the store: columns for whoever asks SQLite alone. */
static bool is_read(const char *table) { return strcmp(table, "parameter") != 0; }

static int list_columns(const char *path, const char *table, char names[][32], int most)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    int count = 0;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT name FROM pragma_table_info(?)", -1, &s, NULL),
                     SQLITE_OK);
    sqlite3_bind_text(s, 1, table, -1, SQLITE_STATIC);
    for (; sqlite3_step(s) == SQLITE_ROW && count < most; count++)
        snprintf(names[count], 32, "%s", (const char *)sqlite3_column_text(s, 0));
    sqlite3_finalize(s);
    sqlite3_close(db);
    return count;
}

/* Changes one value of the table, however its column takes it. */
static void change_column(const char *path, const char *table, const char *column)
{
    char *text = sqlite3_mprintf(
        "UPDATE OR REPLACE %s SET %s = CASE typeof(%s) WHEN 'text' THEN %s || 'x' WHEN 'null' THEN "
        "1 ELSE %s + 1 END WHERE %s IS (SELECT max(%s) FROM %s)",
        table, column, column, column, column, column, column, table);
    assert_non_null(text);
    run_sql(path, text);
    sqlite3_free(text);
}

static void assert_damaged(const char *path, const char *words)
{
    cddp_error err = CDDP_ERROR_INIT;
    uint64_t digest = 0;
    assert_false(read_all(path, &digest, &err));
    if (strstr(err.message, "is damaged") == NULL || strstr(err.message, words) == NULL)
        fail_msg("wanted \"damaged … %s\", got: %s", words, err.message);
    assert_null(strchr(err.message, '\n'));
}

TEST(damage, a_changed_value_of_any_column_is_refused_and_its_table_named)
{
    fixture f;
    size_t count = 0;
    fixture_open(&f);
    make_runs(f.path);
    unsigned char *bytes = read_bytes(f.path, &count);
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        char names[24][32], words[64];
        const int columns = list_columns(f.path, tables[i], names, 24);
        assert_true(columns > 1);
        for (int k = 0; is_read(tables[i]) && k < columns; k++) {
            cd_test_row("%s.%s", tables[i], names[k]);
            write_bytes(f.path, bytes, count);
            change_column(f.path, tables[i], names[k]);
            snprintf(words, sizeof words, "table '%s'", tables[i]);
            assert_damaged(f.path, words);
        }
    }
    free(bytes);
    fixture_close(&f);
}

TEST(damage, a_row_that_was_lost_or_added_is_refused)
{
    static const struct {
        const char *sql, *words;
    } cases[] = {
        /* clang-format off */
        {"DELETE FROM event WHERE id = (SELECT max(id) FROM event)", "in table 'event'"},
        {"DELETE FROM event WHERE id < 2 << 40", "in table 'event'"},
        {"DELETE FROM text", "in table 'text'"},
        {"INSERT INTO text SELECT id + 100, value FROM text LIMIT 1", "in table 'text'"},
        {"INSERT INTO event SELECT id + 1000, t, rank, seq, kind, step, micro, text, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10 "
         "FROM event WHERE id < 2 << 40 ORDER BY id LIMIT 1", "in table 'event'"},
        {"DELETE FROM finding", "run 1 in table 'finding'"},
        {"DELETE FROM finding_rank WHERE rank = 1", "run 1 in table 'finding_rank'"},
        {"DELETE FROM exercised", "run 1 in table 'exercised'"},
        {"DELETE FROM metric", "run 1 in table 'metric'"},
        {"DELETE FROM seal WHERE run = 1 AND name = 'finding'", "run 1 in table 'run'"},
        {"DELETE FROM seal WHERE run = 2 AND name = 'event'", "of run 2 in table 'event'"},
        {"DELETE FROM seal WHERE run = 2 AND name = 'event' AND first = 1; DELETE FROM seal WHERE run = 2 AND name = 'run'", "run 2 in table 'run'"},
        {"UPDATE seal SET digest = digest + 1 WHERE run = 1 AND name = 'event' AND first = 1", "run 1 in table 'run'"},
        {"UPDATE run SET complete = 0 WHERE id = 1", "run 1 in table 'run'"},
        {"DELETE FROM enumeration WHERE value = 2", "table 'enumeration'"},
        /* clang-format on */
    };
    fixture f;
    size_t count = 0;
    fixture_open(&f);
    make_runs(f.path);
    unsigned char *bytes = read_bytes(f.path, &count);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%s", cases[i].sql);
        write_bytes(f.path, bytes, count);
        run_sql(f.path, cases[i].sql);
        assert_damaged(f.path, cases[i].words);
    }
    free(bytes);
    fixture_close(&f);
}

/* What belongs to the user of a file: it changes no row. */
TEST(damage, an_index_a_view_and_a_vacuum_are_none)
{
    fixture f;
    fixture_open(&f);
    make_runs(f.path);
    const uint64_t whole = read_whole(f.path);
    run_sql(f.path,
            "CREATE INDEX mine ON event (kind, step, rank); CREATE VIEW v AS SELECT 1; VACUUM");
    assert_int_equal(read_whole(f.path), whole);
    fixture_close(&f);
}

TEST(damage, a_file_of_version_1_is_read_and_gets_seals_when_a_run_is_appended)
{
    fixture f;
    fixture_open(&f);
    make_runs(f.path);
    const uint64_t whole = read_whole(f.path);
    run_sql(f.path, WITHOUT_SEALS);
    assert_int_equal(read_whole(f.path), whole);
    make_runs(f.path);
    run_sql(f.path, "DELETE FROM event WHERE id = (1 << 40) + 7");
    assert_damaged(f.path, "of run 1 in table 'event'");
    fixture_close(&f);
}

/* A reader beside the writer gets what was committed, and every commit has its seals. */
TEST(damage, a_run_that_is_being_written_is_read_up_to_its_last_commit)
{
    fixture f;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    int64_t run = 0;
    uint64_t before = 0;
    cddp_run_provenance provenance = fixture_provenance(1);
    fixture_open(&f);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_APPEND, NULL, &store, &err), &err);
    assert_ok(cddp_store_run_begin(store, &provenance, &run, &err), &err);
    for (int step = 0; step < 5; step++) {
        const uint64_t now = read_whole(f.path);
        assert_true(now != before);
        before = now;
        fixture_steps(store, 1, 1, 10);
    }
    cddp_store_close(store);
    fixture_close(&f);
}

TEST_MAIN()
