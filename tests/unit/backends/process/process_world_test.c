/* SPDX-License-Identifier: Apache-2.0 */
/* The process world against ranks that return, fail, die, hang, leave and chatter. */
#define _POSIX_C_SOURCE 200809L
#include "cddp/process.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/trace/tracer.h"
#include "tests/support/test.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RANKS 3
#define MS UINT64_C(1000000)

/* What the callbacks of a world gathered. */
typedef struct gathered {
    char lines[RANKS][2][256]; /* by rank and by stream; lines joined with '|' */
    size_t longest;
    size_t line_count;
    uint32_t messages[RANKS][8];
    size_t message_count[RANKS];
    size_t message_bytes;
} gathered;

static void take_line(void *context, uint32_t rank, bool error, const char *line, size_t length)
{
    gathered *g = context;
    char *at = g->lines[rank][error];
    size_t used = strlen(at);
    snprintf(at + used, sizeof g->lines[0][0] - used, "%.*s|", (int)length, line);
    if (length > g->longest) g->longest = length;
    g->line_count++;
}

static void take_message(void *context, uint32_t rank, const void *bytes, size_t byte_count)
{
    gathered *g = context;
    g->message_bytes += byte_count;
    if (byte_count != sizeof(uint32_t) || g->message_count[rank] == 8) return;
    memcpy(&g->messages[rank][g->message_count[rank]++], bytes, byte_count);
}

static void run(cddp_rank_fn program, void *argument, cddp_process_options options, gathered *g,
                cddp_rank_result results[RANKS])
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_process_world *world = NULL;
    memset(g, 0, sizeof *g);
    options.size = sizeof options;
    options.world_size = RANKS;
    options.output = take_line;
    options.message = take_message;
    options.context = g;
    assert_ok(cddp_process_world_open(&options, &world, &err), &err);
    assert_ok(cddp_process_world_ops()->launch(world, program, argument, results, &err), &err);
    cddp_process_world_close(world);
}

static cddp_status returns(cddp_rank *rank, void *argument, cddp_error *err)
{
    (void)argument;
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t value = rank->rank * 10 + i;
        CD_TRY(cddp_process_send(rank, &value, sizeof value, err));
    }
    if (rank->world_size != RANKS)
        return cd_fail(err, CDDP_E_STATE, "world of %u", rank->world_size);
    return CDDP_OK;
}

TEST(process_world, every_rank_returns_and_its_messages_arrive_in_order)
{
    gathered g;
    cddp_rank_result results[RANKS];
    run(returns, NULL, (cddp_process_options){0}, &g, results);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(results[r].end, CDDP_RANK_RETURNED);
        assert_ok(results[r].status, &results[r].error);
        assert_int_equal(g.message_count[r], 3);
        for (uint32_t i = 0; i < 3; i++) assert_int_equal(g.messages[r][i], r * 10 + i);
    }
}

static cddp_status deep_failure(cddp_error *err)
{
    return cd_fail(err, CDDP_E_MISMATCH, "bucket %d: expected %d gradients, got %d", 3, 4, 5);
}

static cddp_status rank_one_fails(cddp_rank *rank, void *argument, cddp_error *err)
{
    (void)argument;
    if (rank->rank == 1) CD_TRY(deep_failure(err));
    return CDDP_OK;
}

TEST(process_world, a_failing_rank_brings_its_error_with_message_and_frames)
{
    gathered g;
    cddp_rank_result results[RANKS];
    cddp_error err = CDDP_ERROR_INIT;
    cddp_process_world *world = NULL;
    cddp_process_options options = {.size = sizeof options,
                                    .world_size = RANKS,
                                    .output = take_line,
                                    .context = &g};
    memset(&g, 0, sizeof g);
    assert_ok(cddp_process_world_open(&options, &world, &err), &err);
    assert_ok(cddp_process_world_ops()->launch(world, rank_one_fails, NULL, results, &err), &err);
    assert_int_equal(results[1].end, CDDP_RANK_RETURNED);
    assert_int_equal(results[1].status, CDDP_E_MISMATCH);
    assert_string_equal(results[1].error.message, "bucket 3: expected 4 gradients, got 5");
    assert_int_equal(results[1].error.frame_count, 2);
    assert_string_equal(results[1].error.frames[0].function, "deep_failure");
    assert_string_equal(results[1].error.frames[1].function, "rank_one_fails");
    assert_int_equal(results[0].status, CDDP_OK);
    cddp_process_world_close(world);
}

static cddp_status rank_two_is_killed(cddp_rank *rank, void *argument, cddp_error *err)
{
    (void)argument;
    (void)err;
    cddp_process_note(rank, "waiting for allreduce #12 of group 'default'");
    if (rank->rank == 2) raise(SIGKILL);
    return CDDP_OK;
}

TEST(process_world, a_killed_rank_is_named_with_its_signal_and_last_note)
{
    gathered g;
    cddp_rank_result results[RANKS];
    run(rank_two_is_killed, NULL, (cddp_process_options){0}, &g, results);
    assert_int_equal(results[2].end, CDDP_RANK_KILLED);
    assert_int_equal(results[2].detail, SIGKILL);
    assert_int_equal(results[2].status, CDDP_E_ABORTED);
    assert_string_equal(results[2].error.message,
                        "rank 2 was killed by signal 9 (SIGKILL); its last note: waiting for "
                        "allreduce #12 of group 'default'");
    assert_int_equal(results[0].end, CDDP_RANK_RETURNED);
}

static cddp_status rank_zero_leaves(cddp_rank *rank, void *argument, cddp_error *err)
{
    (void)argument;
    (void)err;
    if (rank->rank == 0) _exit(7);
    return CDDP_OK;
}

TEST(process_world, a_rank_that_exits_without_a_result_has_crashed)
{
    gathered g;
    cddp_rank_result results[RANKS];
    run(rank_zero_leaves, NULL, (cddp_process_options){0}, &g, results);
    assert_int_equal(results[0].end, CDDP_RANK_CRASHED);
    assert_int_equal(results[0].detail, 7);
    assert_int_equal(results[0].status, CDDP_E_ABORTED);
    assert_string_equal(results[0].error.message, "rank 0 exited with code 7 and left no result");
}

static cddp_status rank_one_hangs(cddp_rank *rank, void *argument, cddp_error *err)
{
    (void)argument;
    if (rank->rank == 1) {
        cddp_process_note(rank, "in backward");
        for (;;) CD_TRY(rank->ops->sleep_ns(rank, 1000 * MS, err));
    }
    return CDDP_OK;
}

TEST(process_world, a_hung_rank_is_killed_at_the_deadline_and_named)
{
    gathered g;
    cddp_rank_result results[RANKS];
    uint64_t start = cd_os_now_ns();
    run(rank_one_hangs, NULL, (cddp_process_options){.deadline_ns = 200 * MS}, &g, results);
    uint64_t took = cd_os_now_ns() - start;
    assert_true(took >= 200 * MS);
    assert_true(took < 20000 * MS);
    assert_int_equal(results[0].end, CDDP_RANK_RETURNED);
    assert_int_equal(results[1].end, CDDP_RANK_HUNG);
    assert_int_equal(results[1].status, CDDP_E_TIMEOUT);
    assert_string_equal(
        results[1].error.message,
        "rank 1 was still running at the deadline of 0.200 s; its last note: in backward");
}

#if defined(__linux__)
/* Rank 1 stops; it is waked after *argument ms by a separate process, if that is not 0. */
static cddp_status rank_one_stops(cddp_rank *rank, void *argument, cddp_error *err)
{
    const uint64_t *wake_ms = argument;
    (void)err;
    if (rank->rank != 1) return CDDP_OK;
    cddp_process_note(rank, "connecting group 'world'");
    const pid_t self = getpid();
    if (*wake_ms != 0 && fork() == 0) {
        cd_os_sleep_ns(*wake_ms * MS);
        kill(self, SIGCONT);
        _exit(0);
    }
    raise(SIGSTOP);
    return CDDP_OK;
}

TEST(process_world, a_rank_that_stays_stopped_is_killed_and_named_with_what_it_did)
{
    gathered g;
    cddp_rank_result results[RANKS];
    uint64_t wake_ms = 0;
    run(rank_one_stops, &wake_ms,
        (cddp_process_options){.patience_ns = 200 * MS, .deadline_ns = 20000 * MS}, &g, results);
    assert_int_equal(results[0].end, CDDP_RANK_RETURNED);
    assert_int_equal(results[1].end, CDDP_RANK_KILLED);
    assert_int_equal(results[1].status, CDDP_E_ABORTED);
    assert_string_equal(results[1].error.message,
                        "rank 1 was stopped and did not go on for 0.200 s, so it was killed; "
                        "its last note: connecting group 'world'");
}

TEST(process_world, a_rank_that_goes_on_in_time_is_left_alone)
{
    gathered g;
    cddp_rank_result results[RANKS];
    uint64_t wake_ms = 200;
    run(rank_one_stops, &wake_ms,
        (cddp_process_options){.patience_ns = 20000 * MS, .deadline_ns = 20000 * MS}, &g, results);
    for (uint32_t r = 0; r < RANKS; r++) assert_int_equal(results[r].end, CDDP_RANK_RETURNED);
}
#endif

static bool interrupted_when_reported(void *context)
{
    const gathered *g = context;
    return g->message_count[0] > 0;
}

static cddp_status rank_zero_reports_and_returns(cddp_rank *rank, void *argument, cddp_error *err)
{
    (void)argument;
    uint32_t value = 1;
    if (rank->rank == 0) CD_TRY(cddp_process_send(rank, &value, sizeof value, err));
    while (rank->rank != 0) CD_TRY(rank->ops->sleep_ns(rank, 1000 * MS, err));
    return CDDP_OK;
}

TEST(process_world, who_still_runs_when_the_run_is_interrupted_is_neither_hung_nor_killed)
{
    gathered g;
    cddp_rank_result results[RANKS];
    run(rank_zero_reports_and_returns, NULL,
        (cddp_process_options){.interrupted = interrupted_when_reported}, &g, results);
    for (uint32_t r = 1; r < RANKS; r++) {
        char words[80];
        snprintf(words, sizeof words, "rank %u was still running when the run was interrupted", r);
        assert_int_equal(results[r].end, CDDP_RANK_INTERRUPTED);
        assert_int_equal(results[r].status, CDDP_E_ABORTED);
        assert_string_equal(results[r].error.message, words);
    }
}

static cddp_status one_fails_others_hang(cddp_rank *rank, void *argument, cddp_error *err)
{
    (void)argument;
    if (rank->rank == 2) return cd_fail(err, CDDP_E_CONFIG, "rank 2 gives up");
    for (;;) CD_TRY(rank->ops->sleep_ns(rank, 1000 * MS, err));
}

TEST(process_world, one_failure_ends_the_others_after_the_grace_period)
{
    gathered g;
    cddp_rank_result results[RANKS];
    run(one_fails_others_hang, NULL, (cddp_process_options){.grace_ns = 100 * MS}, &g, results);
    assert_int_equal(results[2].status, CDDP_E_CONFIG);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(results[r].end, CDDP_RANK_HUNG);
        assert_non_null(
            strstr(results[r].error.message, "was still running 0.100 s after rank 2 failed"));
    }
}

static cddp_status chatters(cddp_rank *rank, void *argument, cddp_error *err)
{
    (void)argument;
    (void)err;
    printf("hello from %u\nsecond ", rank->rank);
    fprintf(stderr, "trouble on %u\n", rank->rank);
    printf("line, unfinished");
    return CDDP_OK;
}

TEST(process_world, output_arrives_by_line_rank_and_stream_even_without_a_last_newline)
{
    gathered g;
    cddp_rank_result results[RANKS];
    run(chatters, NULL, (cddp_process_options){0}, &g, results);
    for (uint32_t r = 0; r < RANKS; r++) {
        char wanted[64];
        snprintf(wanted, sizeof wanted, "hello from %u|second line, unfinished|", r);
        assert_string_equal(g.lines[r][0], wanted);
        snprintf(wanted, sizeof wanted, "trouble on %u|", r);
        assert_string_equal(g.lines[r][1], wanted);
    }
}

#define LONG_BYTES 300000

static cddp_status sends_much(cddp_rank *rank, void *argument, cddp_error *err)
{
    (void)argument;
    /* static: a fiber's or a thread's stack need not hold it */
    static char bytes[LONG_BYTES];
    memset(bytes, 'x', sizeof bytes);
    if (rank->rank == 0) CD_TRY(cddp_process_send(rank, bytes, sizeof bytes, err));
    if (rank->rank == 1) fwrite(bytes, 1, 5000, stdout);
    return CDDP_OK;
}

TEST(process_world, records_and_lines_longer_than_a_pipe_come_through)
{
    gathered g;
    cddp_rank_result results[RANKS];
    run(sends_much, NULL, (cddp_process_options){0}, &g, results);
    assert_int_equal(g.message_bytes, LONG_BYTES);
    assert_int_equal(g.line_count, 3); /* 5000 bytes in pieces of 2048 */
    assert_int_equal(g.longest, 2048);
    for (uint32_t r = 0; r < RANKS; r++) assert_ok(results[r].status, &results[r].error);
}

static cddp_status counts_time(cddp_rank *rank, void *argument, cddp_error *err)
{
    (void)argument;
    uint64_t before = rank->ops->now_ns(rank);
    CD_TRY(rank->ops->compute(rank, 20 * MS, "layer", err));
    uint64_t computed = rank->ops->now_ns(rank) - before;
    CD_TRY(rank->ops->sleep_ns(rank, 20 * MS, err));
    uint64_t slept = rank->ops->now_ns(rank) - before - computed;
    rank->ops->yield(rank);
    cddp_choice choice = {.size = sizeof choice,
                          .kind = CDDP_CHOICE_USER,
                          .rank = rank->rank,
                          .option_count = 5,
                          .name = "x"};
    if (rank->ops->choose(rank, &choice) != 0)
        return cd_fail(err, CDDP_E_STATE, "fifo is option 0");
    uint32_t flags = (computed >= 20 * MS) | (uint32_t)(slept >= 20 * MS) << 1;
    CD_TRY(cddp_process_send(rank, &flags, sizeof flags, err));
    return CDDP_OK;
}

TEST(process_world, computing_takes_time_only_when_simulated_and_sleeping_always_does)
{
    gathered g;
    cddp_rank_result results[RANKS];
    run(counts_time, NULL, (cddp_process_options){.simulate_compute = true}, &g, results);
    assert_ok(results[0].status, &results[0].error);
    assert_int_equal(g.messages[0][0], 3);
    run(counts_time, NULL, (cddp_process_options){0}, &g, results);
    assert_int_equal(g.messages[0][0], 2);
}

TEST(process_world, a_world_can_be_launched_again)
{
    gathered g = {0};
    cddp_error err = CDDP_ERROR_INIT;
    cddp_process_world *world = NULL;
    cddp_rank_result results[RANKS];
    cddp_process_options options = {.size = sizeof options,
                                    .world_size = RANKS,
                                    .output = take_line,
                                    .message = take_message,
                                    .context = &g};
    assert_ok(cddp_process_world_open(&options, &world, &err), &err);
    assert_ok(cddp_process_world_ops()->launch(world, rank_two_is_killed, NULL, results, &err),
              &err);
    assert_int_equal(results[2].end, CDDP_RANK_KILLED);
    assert_ok(cddp_process_world_ops()->launch(world, returns, NULL, results, &err), &err);
    assert_int_equal(results[2].end, CDDP_RANK_RETURNED);
    assert_int_equal(g.message_count[2], 3);
    cddp_process_world_close(world);
}

#define EMITTED 150

static cddp_status emits_and_dies(cddp_rank *rank, void *argument, cddp_error *err)
{
    (void)argument;
    cddp_tracer *tracer = NULL;
    CD_TRY(
        cddp_tracer_create(rank, cddp_process_last_events(rank), CDDP_TRACE_ORDER, &tracer, err));
    for (int64_t i = 0; i < (rank->rank == 0 ? 3 : EMITTED); i++) {
        cddp_tracer_set_step(tracer, (uint32_t)i, 0);
        CD_EMIT(tracer, mark, i % 2 == 0 ? "even" : NULL, .value = i);
    }
    if (rank->rank == 1) raise(SIGKILL);
    cddp_tracer_destroy(tracer);
    return CDDP_OK;
}

typedef struct seen_events {
    size_t count;
    int64_t first, last;
    bool in_order;
} seen_events;

static void see_event(void *self, const cddp_event *event)
{
    seen_events *s = self;
    int64_t value = event->as.mark.value;
    assert_int_equal(event->kind, CDDP_EV_mark);
    assert_int_equal(event->step, value);
    if (value % 2 == 0)
        assert_string_equal(event->text, "even");
    else
        assert_null(event->text);
    if (s->count == 0)
        s->first = value;
    else
        s->in_order &= value == s->last + 1;
    s->last = value;
    s->count++;
}

TEST(process_world, the_last_events_of_a_killed_rank_outlive_it)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_process_world *world = NULL;
    cddp_rank_result results[RANKS];
    cddp_process_options options = {.size = sizeof options, .world_size = RANKS};
    assert_ok(cddp_process_world_open(&options, &world, &err), &err);
    assert_ok(cddp_process_world_ops()->launch(world, emits_and_dies, NULL, results, &err), &err);
    assert_int_equal(results[1].end, CDDP_RANK_KILLED);
    static const size_t counts[RANKS] = {3, 64, 64};
    for (uint32_t r = 0; r < RANKS; r++) {
        seen_events seen = {.in_order = true};
        const cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, &seen, see_event, NULL};
        cddp_process_world_each_last_event(world, r, &sink);
        assert_int_equal(seen.count, counts[r]);
        assert_true(seen.in_order);
        assert_int_equal(seen.last, r == 0 ? 2 : EMITTED - 1);
    }
    cddp_process_world_close(world);
}

TEST(process_world, no_ranks_are_refused)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_process_world *world = NULL;
    cddp_process_options options = {.size = sizeof options};
    assert_fails(cddp_process_world_open(&options, &world, &err), CDDP_E_ARG, &err,
                 "at least one rank");
    assert_null(world);
    cddp_process_world_close(NULL);
}

static cddp_status open_and_launch(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    (void)argument;
    cddp_rank_result results[2];
    cddp_process_world *world = NULL;
    cddp_process_options options = {.size = sizeof options,
                                    .world_size = 2,
                                    .allocator = allocator};
    CD_TRY(cddp_process_world_open(&options, &world, err));
    cddp_status status =
        cddp_process_world_ops()->launch(world, rank_one_fails, NULL, results, err);
    cddp_process_world_close(world);
    return status;
}

TEST(process_world, running_out_of_memory_leaves_no_memory_and_no_child_behind)
{
    assert_true(cd_test_oom_loop(open_and_launch, NULL) >= 4);
}

/* ---- a rank that reports by itself ---- */

static void note_leave(void *context)
{
    (void)context;
    puts("left in order");
}

static cddp_status run_member(cddp_rank_fn program, gathered *g, cddp_rank_result *result,
                              cddp_error *err)
{
    const cddp_member_options member = {.size = sizeof member,
                                        .rank = 0,
                                        .world_size = 1,
                                        .leave = note_leave};
    const cddp_process_options options = {.size = sizeof options,
                                          .world_size = 1,
                                          .output = take_line,
                                          .message = take_message,
                                          .context = g,
                                          .grace_ns = 100 * MS,
                                          .deadline_ns = 5000 * MS,
                                          .hub_host = "127.0.0.1",
                                          .member = &member};
    cddp_process_world *world = NULL;
    memset(g, 0, sizeof *g);
    CD_TRY(cddp_process_world_open(&options, &world, err));
    cddp_status status = cddp_process_world_ops()->launch(world, program, NULL, result, err);
    cddp_process_world_close(world);
    return status;
}

static cddp_status speaks(cddp_rank *rank, void *argument, cddp_error *err)
{
    uint32_t value = 17;
    (void)argument;
    puts("hello");
    assert_null(cddp_process_last_events(rank));
    CD_TRY(cddp_process_send(rank, &value, sizeof value, err));
    return CDDP_OK;
}

static cddp_status speaks_and_dies(cddp_rank *rank, void *argument, cddp_error *err)
{
    CD_TRY(speaks(rank, argument, err));
    cddp_process_note(rank, "about to die");
    fflush(stdout);
    raise(SIGKILL);
    return CDDP_OK;
}

TEST(member_world, a_member_is_reported_of_as_a_forked_rank_is_and_leaves_in_order)
{
    gathered g;
    cddp_rank_result result;
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(run_member(speaks, &g, &result, &err), &err);
    assert_int_equal(result.end, CDDP_RANK_RETURNED);
    assert_int_equal(result.status, CDDP_OK);
    assert_int_equal(g.message_count[0], 1);
    assert_int_equal(g.messages[0][0], 17);
    assert_string_equal(g.lines[0][0], "hello|left in order|");
}

TEST(member_world, one_that_dies_is_said_to_have_died_with_its_last_note)
{
    gathered g;
    cddp_rank_result result;
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(run_member(speaks_and_dies, &g, &result, &err), &err);
    assert_int_equal(result.end, CDDP_RANK_KILLED);
    assert_int_equal(result.status, CDDP_E_ABORTED);
    assert_string_equal(
        result.error.message,
        "rank 0 died: its connection ended without a result; its last note: about to die");
    assert_int_equal(g.message_count[0], 1);
    assert_string_equal(g.lines[0][0], "hello|");
}

TEST(member_world, a_command_that_starts_nobody_is_reported_with_its_words)
{
    static const char *const command[] = {"/bin/sh", "-c", "echo no such cluster; exit 9", NULL};
    cddp_error err = CDDP_ERROR_INIT;
    cddp_rank_result results[RANKS];
    cddp_process_world *world = NULL;
    const cddp_process_options options = {.size = sizeof options,
                                          .world_size = RANKS,
                                          .command = command};
    assert_ok(cddp_process_world_open(&options, &world, &err), &err);
    assert_ok(cddp_process_world_ops()->launch(world, speaks, NULL, results, &err), &err);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(results[r].end, CDDP_RANK_CRASHED);
        assert_int_equal(results[r].detail, 9);
        /* nothing of the job ran: it says nothing about the program */
        assert_int_equal(results[r].status, CDDP_E_NOMEM);
        assert_non_null(strstr(results[r].error.message,
                               "never reported; its launcher ended with code 9: no such cluster"));
    }
    cddp_process_world_close(world);
}

TEST(member_world, a_rank_without_a_way_to_its_launcher_is_refused)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_member_world *world = NULL;
    const cddp_member_options lost = {.size = sizeof lost, .world_size = 1},
                              beyond = {.size = sizeof beyond, .rank = 2, .world_size = 2};
    assert_int_equal(cddp_member_world_open(&lost, &world, &err), CDDP_E_ARG);
    assert_int_equal(cddp_member_world_open(&beyond, &world, &err), CDDP_E_ARG);
}

TEST(solo_world, launch_runs_the_program_here_as_the_rank_that_was_named)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_solo_world *world = NULL;
    cddp_rank_result results[RANKS] = {{0}};
    cddp_solo_options options = {.size = sizeof options, .rank = 1, .world_size = RANKS};
    assert_ok(cddp_solo_world_open(&options, &world, &err), &err);
    assert_ok(cddp_solo_world_ops()->launch(world, rank_one_fails, NULL, results, &err), &err);
    assert_int_equal(results[1].status, CDDP_E_MISMATCH);
    assert_int_equal(results[0].size, 0); /* other ranks' results are not ours to fill */
    assert_int_equal(cddp_solo_world_rank(world)->rank, 1);
    uint32_t value = 0;
    assert_fails(cddp_process_send(cddp_solo_world_rank(world), &value, sizeof value, &err),
                 CDDP_E_STATE, &err, "rank 1 does not live in a process world");
    cddp_process_note(cddp_solo_world_rank(world), "ignored here");
    assert_null(cddp_process_last_events(cddp_solo_world_rank(world)));
    cddp_solo_world_close(world);
}

TEST(solo_world, its_clock_runs_and_its_choices_are_fifo)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_solo_world *world = NULL;
    cddp_solo_options options = {.size = sizeof options,
                                 .rank = 0,
                                 .world_size = 1,
                                 .simulate_compute = true};
    assert_ok(cddp_solo_world_open(&options, &world, &err), &err);
    cddp_rank *rank = cddp_solo_world_rank(world);
    uint64_t before = rank->ops->now_ns(rank);
    assert_ok(rank->ops->compute(rank, 2 * MS, "layer", &err), &err);
    assert_ok(rank->ops->sleep_ns(rank, 2 * MS, &err), &err);
    rank->ops->yield(rank);
    assert_true(rank->ops->now_ns(rank) - before >= 4 * MS);
    cddp_choice choice = {.size = sizeof choice,
                          .kind = CDDP_CHOICE_READY,
                          .option_count = 9,
                          .name = "ready"};
    assert_int_equal(rank->ops->choose(rank, &choice), 0);
    cddp_solo_world_close(world);
}

TEST(solo_world, a_rank_outside_the_world_is_refused)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_solo_world *world = NULL;
    cddp_solo_options options = {.size = sizeof options, .rank = 4, .world_size = 4};
    assert_fails(cddp_solo_world_open(&options, &world, &err), CDDP_E_ARG, &err,
                 "rank 4 does not exist in a world of 4");
    cddp_solo_world_close(NULL);
}

TEST_MAIN()
