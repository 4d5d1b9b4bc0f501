/* SPDX-License-Identifier: Apache-2.0 */
/* The store from a caller's side: events come back, their order, and refusals. */
#define _POSIX_C_SOURCE 200809L
#include "tests/unit/db/fixture.h"

#include "core/trace/event.h"
#include "core/trace/sink.h"

#include <math.h>
#include <sqlite3.h>

static void write_run(const char *path, uint32_t world_size, uint32_t steps, uint32_t count)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    int64_t run = 0;
    cddp_run_provenance provenance = fixture_provenance(world_size);
    cddp_run_outcome outcome = fixture_outcome();
    assert_ok(cddp_store_open(path, CDDP_STORE_APPEND, NULL, &store, &err), &err);
    assert_ok(cddp_store_run_begin(store, &provenance, &run, &err), &err);
    fixture_steps(store, world_size, steps, count);
    assert_ok(cddp_store_run_end(store, &outcome, &err), &err);
    cddp_store_close(store);
}

static void read_events(const char *path, int64_t run, cddp_store_order order,
                        cd_memory_sink *memory)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    cd_memory_sink_init(memory, NULL);
    assert_ok(cddp_store_open(path, CDDP_STORE_READ, NULL, &store, &err), &err);
    assert_ok(cddp_store_each_event(store, run, order, &memory->sink, &err), &err);
    cddp_store_close(store);
}

static void assert_same_event(const cddp_event *a, const cddp_event *b)
{
    char left[2048], right[2048];
    cd_event_print(a, left, sizeof left);
    cd_event_print(b, right, sizeof right);
    assert_string_equal(left, right);
    assert_int_equal(a->time_ns, b->time_ns);
    assert_int_equal(a->sequence, b->sequence);
    assert_int_equal(a->micro_step, b->micro_step);
    assert_memory_equal(a->as.field, b->as.field, sizeof a->as.field);
    assert_int_equal(a->text == NULL, b->text == NULL);
}

TEST(store, every_kind_of_event_comes_back_bit_for_bit_in_recorded_order)
{
    fixture f;
    cd_memory_sink memory;
    fixture_open(&f);
    write_run(f.path, 2, 3, 100);
    read_events(f.path, 1, CDDP_STORE_RECORDED, &memory);
    assert_int_equal(memory.count, 600);
    size_t at = 0;
    for (uint32_t step = 0; step < 3; step++)
        for (uint32_t rank = 0; rank < 2; rank++)
            for (uint32_t i = 0; i < 100; i++, at++) {
                cddp_event wanted = fixture_event(rank, step, step * 100 + i),
                           got = cd_memory_sink_get(&memory, at);
                assert_same_event(&wanted, &got);
            }
    cd_memory_sink_fini(&memory);
    fixture_close(&f);
}

TEST(store, merged_order_is_by_time_then_rank_then_sequence)
{
    fixture f;
    cd_memory_sink memory;
    fixture_open(&f);
    write_run(f.path, 3, 2, 50);
    read_events(f.path, 1, CDDP_STORE_MERGED, &memory);
    assert_int_equal(memory.count, 300);
    for (size_t i = 1; i < memory.count; i++) {
        const cddp_event *a = &memory.events[i - 1], *b = &memory.events[i];
        assert_true(a->time_ns < b->time_ns ||
                    (a->time_ns == b->time_ns &&
                     (a->rank < b->rank || (a->rank == b->rank && a->sequence < b->sequence))));
    }
    cd_memory_sink_fini(&memory);
    fixture_close(&f);
}

TEST(store, numbers_that_sqlite_treats_specially_survive)
{
    static const struct {
        const char *name;
        double value;
    } cases[] = {{"minus zero", -0.0},
                 {"infinity", INFINITY},
                 {"whole", 3.0},
                 {"smallest", 0x1p-1074},
                 {"nan", NAN}};
    fixture f;
    cd_memory_sink memory;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    int64_t run = 0;
    cddp_run_provenance provenance = fixture_provenance(1);
    cddp_run_outcome outcome = fixture_outcome();
    fixture_open(&f);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_APPEND, NULL, &store, &err), &err);
    assert_ok(cddp_store_run_begin(store, &provenance, &run, &err), &err);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cddp_event event = {.kind = CDDP_EV_hook_law,
                            .rank = UINT32_MAX,
                            .sequence = UINT32_MAX + UINT64_C(5)};
        event.as.hook_law.bucket = INT64_MIN;
        memcpy(&event.as.hook_law.left, &cases[i].value, sizeof cases[i].value);
        const cddp_trace_sink *sink = cddp_store_sink(store);
        sink->event(sink->self, &event);
    }
    assert_ok(cddp_store_run_end(store, &outcome, &err), &err);
    cddp_store_close(store);
    read_events(f.path, 1, CDDP_STORE_MERGED, &memory);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%s", cases[i].name);
        assert_memory_equal(&memory.events[i].as.hook_law.left, &cases[i].value,
                            sizeof cases[i].value);
        assert_int_equal(memory.events[i].as.hook_law.bucket, INT64_MIN);
        assert_int_equal(memory.events[i].rank, UINT32_MAX);
    }
    cd_memory_sink_fini(&memory);
    fixture_close(&f);
}

static cddp_status check_run(void *context, const cddp_stored_run *run, cddp_error *err)
{
    (void)err;
    cddp_run_provenance wanted = fixture_provenance(2);
    assert_int_equal(run->run, ++*(int64_t *)context);
    assert_true(run->complete);
    assert_string_equal(run->provenance.title, wanted.title);
    assert_string_equal(run->provenance.scenario, wanted.scenario);
    assert_string_equal(run->provenance.source, wanted.source);
    assert_string_equal(run->provenance.backend, wanted.backend);
    assert_string_equal(run->provenance.compiler, wanted.compiler);
    assert_string_equal(run->provenance.machine, wanted.machine);
    assert_int_equal(run->provenance.seed, wanted.seed);
    assert_int_equal(run->provenance.plan, wanted.plan);
    assert_int_equal(run->provenance.world_size, 2);
    assert_string_equal(run->outcome.verdict, "verified");
    assert_int_equal(run->outcome.digest, 99);
    assert_int_equal(run->outcome.virtual_time_ns, 1234);
    return CDDP_OK;
}

TEST(store, an_existing_file_is_appended_to_and_older_runs_keep_their_events)
{
    fixture f;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    int64_t count = 0, last = 0;
    cd_memory_sink first, again;
    fixture_open(&f);
    write_run(f.path, 2, 1, 30);
    read_events(f.path, 1, CDDP_STORE_RECORDED, &first);
    write_run(f.path, 2, 2, 40);
    read_events(f.path, 1, CDDP_STORE_RECORDED, &again);
    assert_int_equal(first.count, again.count);
    for (size_t i = 0; i < first.count; i++) {
        cddp_event a = cd_memory_sink_get(&first, i), b = cd_memory_sink_get(&again, i);
        assert_same_event(&a, &b);
    }
    assert_ok(cddp_store_open(f.path, CDDP_STORE_READ, NULL, &store, &err), &err);
    assert_ok(cddp_store_each_run(store, 0, check_run, &count, &err), &err);
    assert_int_equal(count, 2);
    assert_ok(cddp_store_last_run(store, &last, &err), &err);
    assert_int_equal(last, 2);
    cddp_store_close(store);
    cd_memory_sink_fini(&first);
    cd_memory_sink_fini(&again);
    fixture_close(&f);
}

/* ranks of any size, ascending */
static const uint32_t finding_ranks[] = {1, 70, 4000};

static cddp_status keep_finding(void *context, const cddp_finding *finding, cddp_error *err)
{
    assert_int_equal(finding->rank_count, 3);
    assert_memory_equal(finding->ranks, finding_ranks, sizeof finding_ranks);
    (void)err;
    cddp_finding *kept = context;
    *kept = *finding;
    assert_string_equal(finding->check, "I-ORDER");
    kept->check = NULL;
    ((cddp_finding *)context)->ranks = NULL;
    return CDDP_OK;
}

static cddp_status check_exercised(void *context, const char *check, const char *how,
                                   cddp_error *err)
{
    (void)err;
    ++*(int *)context;
    assert_string_equal(check, "I-USED");
    assert_string_equal(how, "3 parameters were unused on rank 1");
    return CDDP_OK;
}

static cddp_status take_metric(void *context, const char *name, double value, cddp_error *err)
{
    (void)err;
    ++*(int *)context;
    assert_string_equal(name, "rebuilds");
    assert_true(value == 1);
    return CDDP_OK;
}

static cddp_status check_name(void *context, const cddp_finding *finding, cddp_error *err)
{
    (void)err;
    assert_string_equal(finding->name, context);
    assert_string_equal(finding->parameter + sizeof finding->parameter - 5, "n...");
    return CDDP_OK;
}

TEST(store, a_long_name_of_a_parameter_comes_back_whole)
{
    fixture f;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    int64_t run = 0;
    char name[151];
    memset(name, 'n', 150);
    name[150] = '\0';
    cddp_run_provenance provenance = fixture_provenance(2);
    cddp_run_outcome outcome = fixture_outcome();
    cddp_finding in = {.size = sizeof in, .check = "I-REF", .param = 4, .name = name};
    fixture_open(&f);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_APPEND, NULL, &store, &err), &err);
    assert_ok(cddp_store_run_begin(store, &provenance, &run, &err), &err);
    assert_ok(cddp_store_add_finding(store, &in, &err), &err);
    assert_ok(cddp_store_run_end(store, &outcome, &err), &err);
    cddp_store_close(store);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_READ, NULL, &store, &err), &err);
    assert_ok(cddp_store_each_finding(store, 1, check_name, name, &err), &err);
    cddp_store_close(store);
    fixture_close(&f);
}

TEST(store, findings_exercised_invariants_and_metrics_come_back)
{
    fixture f;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    int64_t run = 0;
    int exercised = 0, metrics = 0;
    cddp_run_provenance provenance = fixture_provenance(2);
    cddp_run_outcome outcome = fixture_outcome();
    cddp_finding in = {.size = sizeof in,
                       .check = "I-ORDER",
                       .step = 3,
                       .micro_step = 1,
                       .ranks = finding_ranks,
                       .rank_count = 3,
                       .rank = 1,
                       .peer = -1,
                       .bucket = 2,
                       .param = -1,
                       .title = "ranks disagree",
                       .expected = "a",
                       .actual = "b",
                       .advice = "look",
                       .event_count = 2,
                       .events = {{1, 17}, {UINT32_MAX, 4}}};
    cddp_finding out;
    memset(&out, 0, sizeof out);
    fixture_open(&f);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_APPEND, NULL, &store, &err), &err);
    assert_fails(cddp_store_add_finding(store, &in, &err), CDDP_E_STATE, &err, "no run was begun");
    assert_ok(cddp_store_run_begin(store, &provenance, &run, &err), &err);
    assert_ok(cddp_store_add_finding(store, &in, &err), &err);
    assert_ok(cddp_store_add_exercised(store, "I-USED", "3 parameters were unused on rank 1", &err),
              &err);
    assert_ok(cddp_store_add_metric(store, "rebuilds", 1, &err), &err);
    assert_ok(cddp_store_run_end(store, &outcome, &err), &err);
    cddp_store_close(store);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_READ, NULL, &store, &err), &err);
    assert_ok(cddp_store_each_finding(store, 1, keep_finding, &out, &err), &err);
    assert_ok(cddp_store_each_exercised(store, 1, check_exercised, &exercised, &err), &err);
    assert_ok(cddp_store_each_metric(store, 1, take_metric, &metrics, &err), &err);
    cddp_store_close(store);
    in.check = NULL;
    in.ranks = NULL;
    assert_memory_equal(&in.step, &out.step, sizeof in - offsetof(cddp_finding, step));
    assert_int_equal(exercised, 1);
    assert_int_equal(metrics, 1);
    fixture_close(&f);
}

TEST(store, one_tidy_file_remains)
{
    fixture f;
    fixture_open(&f);
    write_run(f.path, 2, 2, 100);
    assert_int_equal(unlink(f.path), 0);
    assert_int_equal(rmdir(f.folder), 0); /* no -wal, -shm or -journal beside it */
}

TEST(store, a_finished_iteration_can_be_read_while_the_run_goes_on)
{
    fixture f;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    cd_memory_sink memory;
    int64_t run = 0;
    cddp_run_provenance provenance = fixture_provenance(2);
    fixture_open(&f);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_APPEND, NULL, &store, &err), &err);
    assert_ok(cddp_store_run_begin(store, &provenance, &run, &err), &err);
    fixture_steps(store, 2, 2, 10);
    cddp_event stray = fixture_event(0, 2, 20);
    const cddp_trace_sink *sink = cddp_store_sink(store);
    sink->event(sink->self, &stray);
    assert_ok(sink->flush(sink->self, &err), &err); /* rank 1 has not ended this step */
    read_events(f.path, 1, CDDP_STORE_RECORDED, &memory);
    assert_int_equal(memory.count, 40);
    cd_memory_sink_fini(&memory);
    cddp_store_close(store); /* without run_end: the events so far are kept */
    read_events(f.path, 1, CDDP_STORE_RECORDED, &memory);
    assert_int_equal(memory.count, 41);
    cd_memory_sink_fini(&memory);
    fixture_close(&f);
}

TEST(store, everything_can_be_read_once_the_last_group_was_closed)
{
    fixture f;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    cd_memory_sink memory;
    int64_t run = 0;
    cddp_run_provenance provenance = fixture_provenance(2);
    fixture_open(&f);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_APPEND, NULL, &store, &err), &err);
    assert_ok(cddp_store_run_begin(store, &provenance, &run, &err), &err);
    const cddp_trace_sink *sink = cddp_store_sink(store);
    for (uint32_t i = 0; i < 4; i++) {
        cddp_event e = {.kind = i < 2 ? CDDP_EV_group : CDDP_EV_group_close, .rank = i % 2};
        e.sequence = i;
        sink->event(sink->self, &e);
        read_events(f.path, 1, CDDP_STORE_RECORDED, &memory);
        assert_int_equal(memory.count, i < 3 ? 0 : 4);
        cd_memory_sink_fini(&memory);
    }
    cddp_store_close(store);
    fixture_close(&f);
}

TEST(store, shards_merge_into_one_order_whatever_the_order_of_the_paths)
{
    fixture f;
    cddp_error err = CDDP_ERROR_INIT;
    char shards[3][96];
    cd_memory_sink merged[2];
    fixture_open(&f);
    for (uint32_t rank = 0; rank < 3; rank++) {
        cddp_store *store = NULL;
        int64_t run = 0;
        cddp_run_provenance provenance = fixture_provenance(3);
        cddp_run_outcome outcome = fixture_outcome();
        snprintf(shards[rank], sizeof shards[rank], "%s/%" PRIu32 ".db", f.folder, rank);
        assert_ok(cddp_store_open(shards[rank], CDDP_STORE_APPEND, NULL, &store, &err), &err);
        assert_ok(cddp_store_run_begin(store, &provenance, &run, &err), &err);
        for (uint32_t i = 0; i < 60; i++) {
            cddp_event event = fixture_event(rank, i / 20, i);
            cddp_store_sink(store)->event(cddp_store_sink(store)->self, &event);
        }
        assert_ok(cddp_store_run_end(store, &outcome, &err), &err);
        cddp_store_close(store);
    }
    for (int turn = 0; turn < 2; turn++) {
        const char *const forward[] = {shards[0], shards[1], shards[2]}, *const backward[] = {
                                                                             shards[2], shards[1],
                                                                             shards[0]};
        cddp_store *store = NULL;
        int64_t run = 0;
        cddp_run_provenance provenance = fixture_provenance(3);
        cddp_run_outcome outcome = fixture_outcome();
        assert_ok(cddp_store_open(f.path, CDDP_STORE_APPEND, NULL, &store, &err), &err);
        assert_ok(cddp_store_run_begin(store, &provenance, &run, &err), &err);
        assert_ok(cddp_store_merge_shards(store, turn == 0 ? forward : backward, 3, &err), &err);
        assert_ok(cddp_store_run_end(store, &outcome, &err), &err);
        cddp_store_close(store);
        read_events(f.path, run, CDDP_STORE_RECORDED, &merged[turn]);
        assert_int_equal(merged[turn].count, 180);
    }
    for (size_t i = 0; i < 180; i++) {
        cddp_event a = cd_memory_sink_get(&merged[0], i), b = cd_memory_sink_get(&merged[1], i);
        assert_same_event(&a, &b);
        if (i > 0) assert_true(merged[0].events[i - 1].time_ns <= a.time_ns);
    }
    cd_memory_sink_fini(&merged[0]);
    cd_memory_sink_fini(&merged[1]);
    fixture_close(&f);
}

TEST(store, a_run_is_copied_whole)
{
    fixture f;
    char other[96];
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *from = NULL, *to = NULL;
    cd_memory_sink a, b;
    int64_t count = 1, copied = 0;
    fixture_open(&f);
    snprintf(other, sizeof other, "%s/other.db", f.folder);
    write_run(other, 2, 2, 60);
    write_run(f.path, 2, 1, 5);
    assert_ok(cddp_store_open(other, CDDP_STORE_READ, NULL, &from, &err), &err);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_APPEND, NULL, &to, &err), &err);
    assert_ok(cddp_store_copy_run(to, from, 1, &copied, &err), &err);
    assert_int_equal(copied, 2);
    assert_ok(cddp_store_each_run(to, 2, check_run, &count, &err), &err);
    assert_fails(cddp_store_copy_run(to, from, 9, &copied, &err), CDDP_E_ARG, &err, "has no run 9");
    cddp_store_close(to);
    cddp_store_close(from);
    read_events(other, 1, CDDP_STORE_RECORDED, &a);
    read_events(f.path, 2, CDDP_STORE_RECORDED, &b);
    assert_int_equal(a.count, b.count);
    for (size_t i = 0; i < a.count; i++) {
        cddp_event left = cd_memory_sink_get(&a, i), right = cd_memory_sink_get(&b, i);
        assert_same_event(&left, &right);
    }
    cd_memory_sink_fini(&a);
    cd_memory_sink_fini(&b);
    fixture_close(&f);
}

TEST(store, more_different_texts_than_are_remembered_are_all_kept)
{
    fixture f;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    cd_memory_sink memory;
    int64_t run = 0;
    cddp_run_provenance provenance = fixture_provenance(1);
    cddp_run_outcome outcome = fixture_outcome();
    char text[1024];
    fixture_open(&f);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_APPEND, NULL, &store, &err), &err);
    assert_ok(cddp_store_run_begin(store, &provenance, &run, &err), &err);
    const cddp_trace_sink *sink = cddp_store_sink(store);
    for (int i = 0; i < 20000; i++) { /* 18 MB of texts, and more events than one batch has */
        snprintf(text, sizeof text, "%d %0900d", i / 2, 0);
        cddp_event event = {.kind = CDDP_EV_mark,
                            .text = text,
                            .sequence = (uint64_t)i,
                            .time_ns = (uint64_t)i};
        sink->event(sink->self, &event);
    }
    assert_ok(cddp_store_run_end(store, &outcome, &err), &err);
    cddp_store_close(store);
    read_events(f.path, 1, CDDP_STORE_RECORDED, &memory);
    assert_int_equal(memory.count, 20000);
    for (int i = 0; i < 20000; i++) {
        snprintf(text, sizeof text, "%d %0900d", i / 2, 0);
        assert_string_equal(cd_memory_sink_get(&memory, (size_t)i).text, text);
    }
    cd_memory_sink_fini(&memory);
    fixture_close(&f);
}

typedef struct oom_argument {
    const char *path;
} oom_argument;

static cddp_status write_with(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    const oom_argument *o = argument;
    cddp_store *store = NULL;
    int64_t run = 0;
    cddp_run_provenance provenance = fixture_provenance(2);
    cddp_run_outcome outcome = fixture_outcome();
    cddp_status status = cddp_store_open(o->path, CDDP_STORE_APPEND, allocator, &store, err);
    if (status != CDDP_OK) return status;
    status = cddp_store_run_begin(store, &provenance, &run, err);
    if (status == CDDP_OK) {
        const cddp_trace_sink *sink = cddp_store_sink(store);
        for (uint32_t i = 0; i < 300; i++) {
            cddp_event event = fixture_event(0, 0, i);
            sink->event(sink->self, &event);
        }
        status = cddp_store_run_end(store, &outcome, err);
    }
    cddp_store_close(store);
    return status;
}

TEST(store, a_failed_allocation_is_reported_and_leaves_nothing_behind)
{
    fixture f;
    fixture_open(&f);
    assert_true(cd_test_oom_loop(write_with, &(oom_argument){f.path}) > 5);
    fixture_close(&f);
}

/* ---- a whole verdict ---- */

typedef struct verdict_seen {
    int findings, exercised, metrics;
} verdict_seen;

static cddp_status see_finding(void *context, const cddp_finding *finding, cddp_error *err)
{
    verdict_seen *seen = context;
    static const char *const checks[] = {"I-REF", "I-ORDER"};
    (void)err;
    assert_string_equal(finding->check, checks[seen->findings++]);
    return CDDP_OK;
}

static cddp_status see_exercised(void *context, const char *check, const char *how, cddp_error *err)
{
    verdict_seen *seen = context;
    (void)err;
    seen->exercised++;
    assert_string_equal(check, "I-REF");
    assert_string_equal(how, "6 gradients");
    return CDDP_OK;
}

static cddp_status see_mark(void *context, const char *name, double value, cddp_error *err)
{
    verdict_seen *seen = context;
    (void)err;
    seen->metrics++;
    assert_string_equal(name, "mark: rebuild");
    assert_true(value == 2);
    return CDDP_OK;
}

TEST(store, a_verdict_is_written_at_once_and_its_rows_come_back)
{
    fixture f;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    int64_t run = 0;
    verdict_seen seen = {0};
    cddp_run_provenance provenance = fixture_provenance(2);
    cddp_run_outcome outcome = fixture_outcome();
    const cddp_finding findings[2] = {{.size = sizeof *findings, .check = "I-REF", .rank = 1},
                                      {.size = sizeof *findings, .check = "I-ORDER", .rank = -1}};
    const cddp_exercise exercise = {"I-REF", "6 gradients", 6};
    const cddp_mark_count mark = {"rebuild", 2};
    const cddp_verdict verdict = {.size = sizeof verdict,
                                  .outcome = CDDP_OUTCOME_FINDINGS,
                                  .findings = findings,
                                  .finding_count = 2,
                                  .exercises = &exercise,
                                  .exercise_count = 1,
                                  .marks = &mark,
                                  .mark_count = 1};
    fixture_open(&f);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_APPEND, NULL, &store, &err), &err);
    assert_fails(cddp_store_add_verdict(store, &verdict, &err), CDDP_E_STATE, &err,
                 "no run was begun");
    assert_ok(cddp_store_run_begin(store, &provenance, &run, &err), &err);
    assert_ok(cddp_store_add_verdict(store, &verdict, &err), &err);
    assert_ok(cddp_store_run_end(store, &outcome, &err), &err);
    cddp_store_close(store);
    assert_ok(cddp_store_open(f.path, CDDP_STORE_READ, NULL, &store, &err), &err);
    assert_ok(cddp_store_each_finding(store, run, see_finding, &seen, &err), &err);
    assert_ok(cddp_store_each_exercised(store, run, see_exercised, &seen, &err), &err);
    assert_ok(cddp_store_each_metric(store, run, see_mark, &seen, &err), &err);
    assert_int_equal(seen.findings, 2);
    assert_int_equal(seen.exercised, 1);
    assert_int_equal(seen.metrics, 1);
    cddp_store_close(store);
    fixture_close(&f);
}

TEST_MAIN()
