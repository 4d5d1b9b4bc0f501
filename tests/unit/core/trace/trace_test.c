/* SPDX-License-Identifier: Apache-2.0 */
/* Events as data, the tracer, and the sinks that need only memory. */
#include "cddp/backend.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/trace/event.h"
#include "core/trace/models.h"
#include "core/trace/sink.h"
#include "core/trace/tracer.h"
#include "tests/support/test.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A world whose clock advances by one at every look. */
static uint64_t ticking(cddp_rank *rank) { return ++*(uint64_t *)rank->world; }
static const cddp_world_ops clock_ops = {.size = sizeof clock_ops,
                                         .abi = CDDP_WORLD_ABI,
                                         .name = "clock",
                                         .now_ns = ticking};

TEST(events, every_row_has_a_name_a_doc_and_fields_that_fill_its_struct)
{
    for (uint32_t kind = 0; kind < CDDP_EV_COUNT; kind++) {
        const cddp_event_info *info = cddp_event_describe(kind);
        cd_test_row("%s", info->name);
        assert_true(strlen(info->name) > 0 && strlen(info->doc) > 0);
        assert_in_range(info->field_count, 1, CDDP_EVENT_FIELDS);
        assert_int_equal(info->field_count, cd_event_field_counts[kind]);
        for (uint32_t i = 0; i < info->field_count; i++) {
            assert_true(strlen(info->fields[i].name) > 0 && strlen(info->fields[i].doc) > 0);
            for (uint32_t k = 0; k < i; k++)
                assert_string_not_equal(info->fields[i].name, info->fields[k].name);
        }
        assert_int_equal(cd_event_find(info->name), kind);
    }
    assert_null(cddp_event_describe(CDDP_EV_COUNT));
    assert_int_equal(cd_event_find("no such event"), -1);
}

TEST(events, named_members_and_numbered_fields_are_the_same_memory)
{
    cddp_event e = {0};
    e.as.bucket_launch = (cddp_event_bucket_launch){.bucket = 4, .slices = 9};
    const cddp_event_info *info = cddp_event_describe(CDDP_EV_bucket_launch);
    assert_int_equal(e.as.field[0], 4);
    assert_string_equal(info->fields[0].name, "bucket");
    assert_int_equal(e.as.field[info->field_count - 1], 9);
    assert_string_equal(info->fields[info->field_count - 1].name, "slices");
}

TEST(events, printing_reads_each_field_by_its_type)
{
    cddp_event e = {.kind = CDDP_EV_collective_post, .rank = 1, .step = 2, .text = "who"};
    e.as.collective_post = (cddp_event_collective_post){.group = 5,
                                                        .sequence = 3,
                                                        .op = CDDP_OP_ALLREDUCE,
                                                        .reduce_op = CDDP_RED_SUM,
                                                        .root = -1,
                                                        .dtype = CDDP_F32,
                                                        .numel = 12,
                                                        .digest = -1,
                                                        .bucket = 0,
                                                        .in_flight = 1};
    char text[512];
    size_t length = cd_event_print(&e, text, sizeof text);
    assert_string_equal(
        text, "rank 1 step 2 collective_post group=5 sequence=3 op=allreduce reduce_op=sum root=-1 "
              "dtype=f32 "
              "numel=12 digest=ffffffffffffffff bucket=0 address=0 in_flight=1 text=\"who\"");
    assert_int_equal(length, strlen(text));
    e = (cddp_event){.kind = CDDP_EV_optimizer_step, .rank = UINT32_MAX};
    e.as.optimizer_step.lr = cd_f64_bits(0.125);
    cd_event_print(&e, text, sizeof text);
    assert_non_null(strstr(text, "world step 0 optimizer_step"));
    assert_non_null(strstr(text, " lr=0.125 "));
    e.kind = CDDP_EV_COUNT;
    cd_event_print(&e, text, sizeof text);
    assert_non_null(strstr(text, "unknown event"));
}

TEST(events, printing_into_any_size_is_terminated_and_wants_the_same_length)
{
    cddp_event e = {.kind = CDDP_EV_collective_done, .text = "some words"};
    char whole[512], part[512];
    size_t wanted = cd_event_print(&e, whole, sizeof whole);
    for (size_t bytes = 1; bytes < wanted + 2; bytes++) {
        memset(part, '#', sizeof part);
        assert_int_equal(cd_event_print(&e, part, bytes), wanted);
        assert_int_equal(part[bytes], '#');
        assert_int_equal(strlen(part), bytes - 1 < wanted ? bytes - 1 : wanted);
        assert_memory_equal(part, whole, strlen(part));
    }
}

TEST(events, the_digest_sees_every_field_and_only_timeless_ones_skip_time)
{
    cddp_event e = {.kind = CDDP_EV_collective_done,
                    .rank = 1,
                    .step = 2,
                    .micro_step = 1,
                    .time_ns = 77,
                    .text = "t"};
    const cddp_event_info *info = cddp_event_describe(e.kind);
    uint64_t base = cd_event_digest(0, &e, false), timeless = cd_event_digest(0, &e, true);
    for (uint32_t i = 0; i < info->field_count; i++) {
        cddp_event changed = e;
        changed.as.field[i] ^= 1;
        cd_test_row("field %s", info->fields[i].name);
        assert_true(cd_event_digest(0, &changed, false) != base);
        assert_int_equal(cd_event_digest(0, &changed, true) != timeless,
                         info->fields[i].type != CDDP_FIELD_ns);
    }
    cddp_event later = e;
    later.time_ns++;
    assert_true(cd_event_digest(0, &later, false) != base);
    assert_true(cd_event_digest(0, &later, true) == timeless);
    cddp_event other = e;
    other.rank = 2;
    assert_true(cd_event_digest(0, &other, true) != timeless);
    other = e;
    other.text = "u";
    assert_true(cd_event_digest(0, &other, true) != timeless);
    uint64_t both[2] = {11, 12};
    cd_event_digest_both(&both[0], &both[1], &e);
    assert_true(both[0] == cd_event_digest(11, &e, false) &&
                both[1] == cd_event_digest(12, &e, true));
}

TEST(tracer, stamps_time_rank_sequence_and_step_and_zeroes_what_a_row_does_not_use)
{
    cddp_error err = CDDP_ERROR_INIT;
    uint64_t clock = 0;
    cddp_rank rank = {.ops = &clock_ops, .world = &clock, .rank = 3, .world_size = 4};
    cd_memory_sink memory;
    cd_memory_sink_init(&memory, NULL);
    cddp_tracer *tracer = NULL;
    assert_ok(cddp_tracer_create(&rank, &memory.sink, CDDP_TRACE_DIGEST, &tracer, &err), &err);
    CD_EMIT(tracer, rank_begin, NULL, .world_size = 4);
    cddp_tracer_set_step(tracer, 7, 2);
    CD_EMIT(tracer, mark, "rebuilt", .value = 9);
    assert_int_equal(memory.count, 2);
    cddp_event first = cd_memory_sink_get(&memory, 0), second = cd_memory_sink_get(&memory, 1);
    assert_int_equal(first.kind, CDDP_EV_rank_begin);
    assert_int_equal(first.time_ns, 1);
    assert_int_equal(first.sequence, 0);
    assert_int_equal(first.rank, 3);
    assert_null(first.text);
    for (int i = 1; i < CDDP_EVENT_FIELDS; i++) assert_int_equal(first.as.field[i], 0);
    assert_int_equal(second.sequence, 1);
    assert_int_equal(second.step, 7);
    assert_int_equal(second.micro_step, 2);
    assert_int_equal(second.level, CDDP_TRACE_DIGEST);
    assert_string_equal(second.text, "rebuilt");
    assert_ok(cddp_tracer_flush(tracer, &err), &err);
    cddp_tracer_destroy(tracer);
    cd_memory_sink_fini(&memory);
}

TEST(tracer, without_a_rank_it_speaks_for_the_world)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_memory_sink memory;
    cd_memory_sink_init(&memory, NULL);
    cddp_tracer *tracer = NULL;
    assert_ok(cddp_tracer_create(NULL, &memory.sink, CDDP_TRACE_ORDER, &tracer, &err), &err);
    tracer->time_ns = 55;
    CD_EMIT(tracer, run_end, NULL, .complete = 1);
    cddp_event e = cd_memory_sink_get(&memory, 0);
    assert_int_equal(e.rank, UINT32_MAX);
    assert_int_equal(e.time_ns, 55);
    assert_false(cd_tracer_wants_digest(tracer));
    assert_false(cd_tracer_wants_digest(NULL));
    cddp_tracer_destroy(tracer);
    cddp_tracer_destroy(NULL);
    cd_memory_sink_fini(&memory);
}

static int evaluations;
static int64_t count_evaluation(void) { return ++evaluations; }

TEST(tracer, a_missing_tracer_costs_nothing_not_even_its_arguments)
{
    cddp_tracer *none = NULL;
    evaluations = 0;
    CD_EMIT(none, mark, "never", .value = count_evaluation());
    assert_int_equal(evaluations, 0);
    cddp_tracer_set_step(none, 1, 1);
    assert_int_equal(cddp_tracer_flush(none, NULL), CDDP_OK);
}

/* A hook that was built when a law had fewer fields, or none of the size: whatever it says is not
** believed. */
TEST(tracer, a_law_without_its_size_is_reported_as_one_that_does_not_hold)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_memory_sink memory;
    cd_memory_sink_init(&memory, NULL);
    cddp_tracer *tracer = NULL;
    assert_ok(cddp_tracer_create(NULL, &memory.sink, CDDP_TRACE_ORDER, &tracer, &err), &err);
    const uint32_t wrong[] = {0, 1, sizeof(cddp_law) - 1, CDDP_LAW_BYTES_MAX + 1, UINT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cd_test_row("a law of %u bytes", wrong[i]);
        cddp_tracer_law(tracer, &(cddp_law){.size = wrong[i],
                                            .name = "fine",
                                            .bucket = 3,
                                            .left = 1,
                                            .right = 1,
                                            .bound = 1});
        cddp_event e = cd_memory_sink_get(&memory, i);
        assert_int_equal(e.kind, CDDP_EV_hook_law);
        assert_non_null(strstr(e.text, "its size"));
        assert_true(cd_f64_of(e.as.hook_law.left) == wrong[i] &&
                    cd_f64_of(e.as.hook_law.right) == sizeof(cddp_law));
        assert_true(cd_f64_of(e.as.hook_law.bound) == 0);
        assert_int_equal(e.as.hook_law.bucket, -1);
    }
    const uint32_t good[] = {sizeof(cddp_law), sizeof(cddp_law) + 8};
    cd_memory_sink_clear(&memory);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        cddp_tracer_law(tracer, &(cddp_law){.size = good[i],
                                            .name = "fine",
                                            .bucket = 3,
                                            .left = 1,
                                            .right = 2,
                                            .bound = 4,
                                            .over_ranks = true});
        cddp_event e = cd_memory_sink_get(&memory, i);
        assert_string_equal(e.text, "fine");
        assert_true(cd_f64_of(e.as.hook_law.right) == 2 && e.as.hook_law.bucket == 3 &&
                    e.as.hook_law.over_ranks == 1);
    }
    cddp_tracer_destroy(tracer);
    cd_memory_sink_fini(&memory);
}

/* See Note [Events of several wrappers] */
TEST(tracer, a_wrapper_has_the_least_free_number_and_a_mark_says_where_another_ones_events_begin)
{
    cd_memory_sink memory;
    cddp_tracer *t = NULL;
    cddp_error err = CDDP_ERROR_INIT;
    cd_memory_sink_init(&memory, NULL);
    assert_ok(cddp_tracer_create(NULL, &memory.sink, CDDP_TRACE_ORDER, &t, &err), &err);
    assert_int_equal(cd_tracer_take_wrapper(NULL), 0);
    cd_tracer_select(NULL, 1);
    assert_int_equal(cd_tracer_take_wrapper(t), 0);
    cd_tracer_select(t, 0);
    assert_int_equal(memory.count, 0);
    assert_int_equal(cd_tracer_take_wrapper(t), 1);
    cd_tracer_select(t, 1);
    cd_tracer_select(t, 1);
    assert_int_equal(memory.count, 1);
    const cddp_event e = cd_memory_sink_get(&memory, 0);
    assert_int_equal(e.kind, CDDP_EV_mark);
    assert_string_equal(e.text, "wrapped module");
    assert_int_equal(e.as.mark.value, 1);
    cd_tracer_leave_wrapper(t, 0);
    assert_int_equal(cd_tracer_take_wrapper(t), 0);
    for (int64_t i = 2; i < CD_TRACER_WRAPPERS_MAX; i++)
        assert_int_equal(cd_tracer_take_wrapper(t), i);
    assert_int_equal(cd_tracer_take_wrapper(t), CD_TRACER_WRAPPERS_MAX - 1);
    cddp_tracer_destroy(t);
    cd_memory_sink_fini(&memory);
}

static void count_events(void *self, const cddp_event *event)
{
    uint32_t *counts = self; /* (4) by rank */
    if (event->kind == CDDP_EV_wrap) counts[event->rank]++;
}

/* Ranks 0 and 1 wrap a module in group 5, ranks 2 and 3 another one in group 6, all of them a
** second one together. */
TEST(models, modules_of_different_groups_are_separate)
{
    static const uint32_t wanted[3][4] = {{1, 1, 0, 0}, {0, 0, 1, 1}, {1, 1, 1, 1}};
    cddp_event events[12];
    size_t count = 0;
    (void)state;
    for (uint32_t rank = 0; rank < 4; rank++) {
        events[count] = (cddp_event){.rank = rank, .kind = CDDP_EV_wrap};
        events[count++].as.wrap.group = rank < 2 ? 5 : 6;
        events[count] = (cddp_event){.rank = rank, .kind = CDDP_EV_mark, .text = "wrapped module"};
        events[count++].as.mark.value = 1;
        events[count++] = (cddp_event){.rank = rank, .kind = CDDP_EV_wrap};
    }
    cddp_error err = CDDP_ERROR_INIT;
    cd_models models;
    uint32_t counts[4];
    const cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, counts, count_events, NULL};
    assert_ok(cd_models_init(&models, 4, NULL, &err), &err);
    cd_models_begin(&models, 0, NULL);
    for (size_t i = 0; i < count; i++) cd_models_push(&models, &events[i]);
    for (int64_t shown = 0; shown < 3; shown++) {
        memset(counts, 0, sizeof counts);
        cd_models_begin(&models, shown, &sink);
        for (size_t i = 0; i < count; i++) cd_models_push(&models, &events[i]);
        assert_int_equal(models.count, 3);
        assert_memory_equal(counts, wanted[shown], sizeof counts);
    }
    cd_models_fini(&models);
}

TEST(tracer, a_sink_without_a_function_is_refused)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_tracer *tracer = NULL;
    cddp_trace_sink empty = {.size = sizeof empty, .abi = CDDP_TRACE_ABI};
    assert_fails(cddp_tracer_create(NULL, &empty, CDDP_TRACE_ORDER, &tracer, &err), CDDP_E_ARG,
                 &err, "sink");
    assert_fails(cddp_tracer_create(NULL, NULL, CDDP_TRACE_ORDER, &tracer, &err), CDDP_E_ARG, &err,
                 "sink");
    assert_null(tracer);
}

static void emit_some(const cddp_trace_sink *sink, uint64_t start, int64_t changed)
{
    cddp_error err = CDDP_ERROR_INIT;
    uint64_t clock = start;
    cddp_rank rank = {.ops = &clock_ops, .world = &clock, .world_size = 1};
    cddp_tracer *tracer = NULL;
    assert_ok(cddp_tracer_create(&rank, sink, CDDP_TRACE_DIGEST, &tracer, &err), &err);
    for (int64_t i = 0; i < 10; i++)
        CD_EMIT(tracer, used_local, NULL, .param = i, .used = i == changed);
    cddp_tracer_destroy(tracer);
}

TEST(digest_sink, equal_traces_agree_whatever_their_clocks_and_one_changed_field_is_seen)
{
    cd_digest_sink a, b, c, d;
    cd_digest_sink_init(&a, true);
    cd_digest_sink_init(&b, true);
    cd_digest_sink_init(&c, true);
    cd_digest_sink_init(&d, false);
    emit_some(&a.sink, 0, -1);
    emit_some(&b.sink, 1000, -1);
    emit_some(&c.sink, 0, 6);
    emit_some(&d.sink, 1000, -1);
    assert_int_equal(a.count, 10);
    assert_true(a.digest == b.digest);
    assert_true(a.digest != c.digest);
    assert_true(d.digest != b.digest);
}

TEST(memory_sink, an_event_that_was_dropped_fails_the_flush)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_memory_sink memory;
    cd_memory_sink_init(&memory, NULL);
    emit_some(&memory.sink, 0, 3);
    assert_int_equal(memory.count, 10);
    assert_ok(memory.sink.flush(memory.sink.self, &err), &err);
    memory.failed = true;
    assert_fails(memory.sink.flush(memory.sink.self, &err), CDDP_E_NOMEM, &err, "after 10 events");
    cd_memory_sink_fini(&memory);
}

TEST(memory_sink, texts_survive_growth_and_clearing_keeps_the_memory)
{
    cd_watch_allocator watch;
    cd_watch_allocator_init(&watch, NULL);
    cd_memory_sink memory;
    cd_memory_sink_init(&memory, &watch.table);
    for (int round = 0; round < 2; round++) {
        watch.frozen = round == 1;
        for (int i = 0; i < 500; i++) {
            char text[32];
            snprintf(text, sizeof text, "parameter %d", i);
            cddp_event e = {.kind = CDDP_EV_param, .text = i % 3 == 0 ? NULL : text};
            memory.sink.event(memory.sink.self, &e);
        }
        for (size_t i = 0; i < 500; i++) {
            char text[32];
            snprintf(text, sizeof text, "parameter %zu", i);
            cddp_event e = cd_memory_sink_get(&memory, i);
            if (i % 3 == 0)
                assert_null(e.text);
            else
                assert_string_equal(e.text, text);
        }
        cd_memory_sink_clear(&memory);
        assert_int_equal(memory.count, 0);
    }
    assert_int_equal(watch.growth_count, 0);
    cd_memory_sink_fini(&memory);
    assert_int_equal(watch.live_count, 0);
}

TEST(memory_sink, losing_an_event_is_remembered_and_reported)
{
    cddp_error err = CDDP_ERROR_INIT;
    for (uint64_t n = 1; n <= 3; n++) {
        cd_watch_allocator watch;
        cd_watch_allocator_init(&watch, NULL);
        watch.fail_at = n;
        cd_memory_sink memory;
        cd_memory_sink_init(&memory, &watch.table);
        cddp_event e = {.kind = CDDP_EV_param, .text = "weight"};
        memory.sink.event(memory.sink.self, &e);
        memory.sink.event(memory.sink.self, &e);
        assert_int_equal(memory.count, 0);
        assert_fails(memory.sink.flush(memory.sink.self, &err), CDDP_E_NOMEM, &err,
                     "no memory for the trace");
        cd_memory_sink_fini(&memory);
        assert_int_equal(watch.live_count, 0);
    }
}

TEST_MAIN()
