/* SPDX-License-Identifier: Apache-2.0 */
/* Shards of several ranks, hosts and restarts as one trace; and what such a trace owes. */
#define _POSIX_C_SOURCE 200809L
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/trace/sink.h"
#include "core/trace/setting.h"
#include "core/trace/tracer.h"
#include "tests/support/test.h"
#include "verify/import/clocks.h"
#include "verify/import/declared.h"
#include "verify/import/means.h"
#include "verify/import/shards.h"
#include "record/seal.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char directory[256];

static void path_of(char path[300], uint32_t rank, uint32_t generation)
{
    const char *temporary = getenv("TMPDIR");
    if (directory[0] == '\0') {
        snprintf(directory, sizeof directory, "%.200s/cddp-shards-XXXXXX",
                 temporary != NULL ? temporary : "/tmp");
        assert_non_null(mkdtemp(directory));
    }
    snprintf(path, 300, "%s/run.db.%u.%u", directory, rank, generation);
}

typedef struct writer {
    cddp_shard *shard;
    char path[300];
} writer;

static writer begin(uint32_t rank, uint32_t world_size, uint32_t generation, uint64_t job)
{
    cddp_error err = CDDP_ERROR_INIT;
    writer w;
    path_of(w.path, rank, generation);
    const cddp_shard_options options = {.size = sizeof options,
                                        .path = w.path,
                                        .rank = rank,
                                        .world_size = world_size,
                                        .generation = generation,
                                        .level = CDDP_TRACE_DIGEST,
                                        .job = job};
    assert_int_equal(cddp_shard_open(&options, &w.shard, &err), CDDP_OK);
    return w;
}

static void mark(const writer *w, uint64_t time_ns, int64_t value)
{
    cddp_event event = {.kind = CDDP_EV_mark, .time_ns = time_ns, .text = "m"};
    event.as.mark.value = value;
    cddp_shard_emit(w->shard, &event);
}

static void end(const writer *w) { assert_int_equal(cddp_shard_close(w->shard, NULL), CDDP_OK); }

static cddp_status open_two(const writer *a, const writer *b, cd_shards **shards, cddp_error *err)
{
    const char *const paths[] = {a->path, b->path};
    return cd_shards_open(paths, 2, shards, err);
}

static void forget(const writer *a, const writer *b)
{
    unlink(a->path);
    unlink(b->path);
    rmdir(directory);
    directory[0] = '\0';
}

TEST(shards, ranks_are_merged_by_time_and_each_keeps_its_order)
{
    cddp_error err = CDDP_ERROR_INIT;
    const uint64_t t = cddp_shard_now_ns() + 1000000000;
    const writer a = begin(1, 2, 0, 0), b = begin(0, 2, 0, 0);
    mark(&a, t + 10, 10);
    mark(&a, t + 30, 30);
    mark(&b, t + 20, 20);
    mark(&b, t + 30, 29); /* rank 0 first where times are equal */
    end(&a);
    end(&b);
    cd_shards *shards = NULL;
    assert_int_equal(open_two(&a, &b, &shards, &err), CDDP_OK);
    assert_int_equal(cd_shards_run_count(shards), 1);
    for (int round = 0; round < 2; round++) {
        static const int64_t expected[] = {10, 20, 29, 30};
        cd_memory_sink events;
        cd_memory_sink_init(&events, NULL);
        assert_int_equal(cd_shards_replay(shards, 0, &events.sink, &err), CDDP_OK);
        assert_int_equal(events.count, 6);
        assert_int_equal(events.events[0].kind, CDDP_EV_run_begin);
        for (size_t i = 0; i < 4; i++)
            assert_int_equal(events.events[1 + i].as.mark.value, expected[i]);
        assert_int_equal(events.events[5].kind, CDDP_EV_run_end);
        assert_false(events.events[5].as.run_end.complete); /* nobody said that it ended */
        cd_memory_sink_fini(&events);
    }
    cd_shards_close(shards);
    forget(&a, &b);
}

/* Rank 0 ended, and rank 1 did not: its process, which is this one, still runs; or it is of another
** machine, and nobody here knows. */
TEST(shards, a_rank_whose_process_still_runs_was_not_killed)
{
    static const struct {
        bool is_elsewhere;
        int64_t end;
        const char *words;
    } rows[] = {{false, CDDP_RANK_INTERRUPTED, "it still runs"},
                {true, CDDP_RANK_KILLED, "or it still runs on its machine"}};
    for (size_t i = 0; i < 2; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        const uint64_t t = cddp_shard_now_ns();
        const writer a = begin(0, 2, 0, 0), b = begin(1, 2, 0, 0);
        cddp_shard_emit(a.shard, &(cddp_event){.kind = CDDP_EV_rank_end, .time_ns = t + 20});
        mark(&b, t + 10, 1);
        if (rows[i].is_elsewhere) {
            FILE *file = fopen(b.path, "r+");
            assert_non_null(file);
            cddp_shard_header header;
            assert_int_equal(fread(&header, sizeof header, 1, file), 1);
            snprintf(header.boot, 8, "another");
            header.seal = cd_seal_begin(&header);
            rewind(file);
            fwrite(&header, sizeof header, 1, file);
            fclose(file);
        }
        cd_shards *shards = NULL;
        cd_memory_sink events;
        cd_memory_sink_init(&events, NULL);
        assert_int_equal(open_two(&a, &b, &shards, &err), CDDP_OK);
        assert_int_equal(cd_shards_replay(shards, 0, &events.sink, &err), CDDP_OK);
        const cddp_event last = cd_memory_sink_get(&events, events.count - 2);
        assert_int_equal(last.kind, CDDP_EV_rank_end);
        assert_int_equal(last.rank, 1);
        assert_int_equal(last.as.rank_end.end, rows[i].end);
        assert_non_null(strstr(last.text, rows[i].words));
        cd_memory_sink_fini(&events);
        cd_shards_close(shards);
        end(&a);
        end(&b);
        forget(&a, &b);
    }
}

TEST(shards, a_restart_is_a_run_by_itself)
{
    cddp_error err = CDDP_ERROR_INIT;
    const writer a = begin(0, 1, 0, 5), b = begin(0, 1, 1, 5);
    end(&a);
    end(&b);
    cd_shards *shards = NULL;
    cd_shards_run run;
    assert_int_equal(open_two(&b, &a, &shards, &err), CDDP_OK);
    assert_int_equal(cd_shards_run_count(shards), 2);
    cd_shards_get(shards, 1, &run);
    assert_int_equal(run.generation, 1);
    assert_int_equal(run.missing, 1);
    cd_shards_close(shards);
    forget(&a, &b);
}

TEST(shards, files_that_do_not_belong_together_are_named)
{
    static const struct {
        const char *words;
        uint32_t ranks[2], worlds[2];
        uint64_t jobs[2];
    } rows[] = {{"of a job of 2 ranks", {0, 1}, {2, 3}, {0, 0}},
                {"of different jobs", {0, 1}, {2, 2}, {4, 5}}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_shards *shards = NULL;
        const writer a = begin(rows[i].ranks[0], rows[i].worlds[0], 0, rows[i].jobs[0]);
        const writer b = begin(rows[i].ranks[1], rows[i].worlds[1], 0, rows[i].jobs[1]);
        end(&a);
        end(&b);
        assert_int_equal(open_two(&a, &b, &shards, &err), CDDP_E_MISMATCH);
        assert_non_null(strstr(err.message, rows[i].words));
        if (i == 0) assert_int_equal(open_two(&a, &a, &shards, &err), CDDP_E_MISMATCH);
        if (i == 0) assert_non_null(strstr(err.message, "both of rank 0"));
        forget(&a, &b);
    }
}

/* The clean twin is a_restart_is_a_run_by_itself. */
TEST(shards, a_restart_that_began_before_its_job_is_of_another_one)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_shards *shards = NULL;
    const writer b = begin(0, 1, 1, 5), a = begin(0, 1, 0, 5);
    end(&a);
    end(&b);
    assert_int_equal(open_two(&a, &b, &shards, &err), CDDP_E_MISMATCH);
    assert_non_null(strstr(err.message, "is of restart 1 and began before "));
    forget(&a, &b);
}

TEST(shards, a_rank_without_a_shard_is_known)
{
    cddp_error err = CDDP_ERROR_INIT;
    const writer a = begin(0, 3, 0, 0), b = begin(2, 3, 0, 0);
    end(&a);
    end(&b);
    cd_shards *shards = NULL;
    cd_shards_run run;
    assert_int_equal(open_two(&a, &b, &shards, &err), CDDP_OK);
    cd_shards_get(shards, 0, &run);
    assert_int_equal(run.missing, 1);
    assert_int_equal(run.rank_count, 2);
    cd_shards_close(shards);
    forget(&a, &b);
}

/* ---- clocks ---- */

static void meet(cd_clocks *clocks, uint32_t domain, int64_t sequence, uint64_t posted,
                 uint64_t done)
{
    bool is_enough = false;
    cddp_event event = {.kind = CDDP_EV_collective_post, .time_ns = posted};
    event.as.collective_post.sequence = sequence;
    assert_int_equal(cd_clocks_push(clocks, domain, &event, &is_enough, NULL), CDDP_OK);
    event = (cddp_event){.kind = CDDP_EV_collective_done, .time_ns = done};
    event.as.collective_done.sequence = sequence;
    assert_int_equal(cd_clocks_push(clocks, domain, &event, &is_enough, NULL), CDDP_OK);
}

TEST(clocks, of_two_hosts_meet_in_their_collectives)
{
    /* The second host's wall clock is ten seconds ahead; its machine started at another time. */
    const uint64_t second = UINT64_C(1000000000), ahead = 10 * second;
    cddp_shard_header a = {.host = "a", .monotonic_ns = 5 * second, .realtime_ns = 1000 * second};
    cddp_shard_header b = {.host = "b",
                           .monotonic_ns = 77 * second,
                           .realtime_ns = 1000 * second + ahead};
    cd_clocks clocks;
    uint32_t here, there;
    cd_clocks_init(&clocks, NULL);
    assert_int_equal(cd_clocks_add(&clocks, &a, &here, NULL), CDDP_OK);
    assert_int_equal(cd_clocks_add(&clocks, &b, &there, NULL), CDDP_OK);
    assert_int_not_equal(here, there);
    for (int64_t k = 0; k < 10; k++) {
        const uint64_t now = (uint64_t)(k + 1) * second;
        meet(&clocks, here, k, 5 * second + now, 5 * second + now + 1000);
        meet(&clocks, there, k, 77 * second + now, 77 * second + now + 1000);
    }
    cd_clocks_settle(&clocks);
    const int64_t apart = (int64_t)(cd_clocks_time(&clocks, there, 78 * second) -
                                    cd_clocks_time(&clocks, here, 6 * second));
    assert_in_range(apart + 1000, 0, 2000);
    assert_int_equal(cd_clocks_time(&clocks, here, 5 * second), 0);
    cd_clocks_fini(&clocks);
}

/* ---- what is owed ---- */

enum {
    WHOLE,
    NO_LOCAL,
    NO_REDUCED,
    NO_TOUCH,
    NO_STEP,
    NO_VALUE,
    NO_END,
    NO_DIGEST,
    NO_PARAMETER,
    NOT_HELD,
    CHANGED,
    CHANGED_LAST,
    NOT_CLEARED
};

static void show(cd_declared *d, uint32_t rank, cddp_event event)
{
    event.rank = rank;
    cd_declared_push(d, &event);
}

static void show_mark(cd_declared *d, uint32_t rank, const char *words)
{
    show(d, rank, (cddp_event){.kind = CDDP_EV_mark, .text = words});
}

/* What a recorder sees behind that step, and the next backward. */
static void show_storage(cd_declared *d, uint32_t rank, int without)
{
    cddp_event e = {.kind = CDDP_EV_grad_local, .step = 1};
    e.as.grad_local.digest = 1;
    e.as.grad_local.presence = CDDP_PRESENCE_VALUE;
    if (without != NOT_HELD) show_mark(d, rank, CD_TRACER_HELD);
    if (without == CHANGED) show_mark(d, rank, CD_TRACER_CHANGED);
    if (without == CHANGED_LAST) show_mark(d, rank, CD_TRACER_CHANGED_LAST);
    show(d, rank, (cddp_event){.kind = CDDP_EV_zero_grad, .step = 1});
    if (without != NOT_CLEARED) show_mark(d, rank, CD_TRACER_CLEARED);
    show(d, rank, e);
}

/* One step of one parameter. */
static void show_rank(cd_declared *d, uint32_t rank, int without)
{
    cddp_event e = {.kind = CDDP_EV_param};
    e.as.param = (cddp_event_param){.numel = 1, .requires_grad = true};
    if (without != NO_PARAMETER) show(d, rank, e);
    show(d, rank, (cddp_event){.kind = CDDP_EV_wrap});
    e = (cddp_event){.kind = CDDP_EV_grad_local};
    e.as.grad_local.digest = 1;
    e.as.grad_local.presence = CDDP_PRESENCE_VALUE;
    if (without != NO_LOCAL) show(d, rank, e);
    if (without != NO_REDUCED) show(d, rank, (cddp_event){.kind = CDDP_EV_grad_final});
    if (without != NO_STEP) show(d, rank, (cddp_event){.kind = CDDP_EV_optimizer_step});
    e = (cddp_event){.kind = CDDP_EV_optimizer_touch};
    e.as.optimizer_touch =
        (cddp_event_optimizer_touch){.touched = true, .gradient = without != NO_DIGEST};
    if (without != NO_TOUCH) show(d, rank, e);
    e = (cddp_event){.kind = CDDP_EV_value};
    e.as.value = (cddp_event_value){.moment = CDDP_MOMENT_AFTER_STEP, .digest = 3};
    if (without != NO_VALUE) show(d, rank, e);
    show_storage(d, rank, without);
    if (without != NO_END) show(d, rank, (cddp_event){.kind = CDDP_EV_rank_end});
}

TEST(declared, what_one_rank_does_not_show_is_named_with_the_call_that_shows_it)
{
    static const struct {
        int without;
        const char *words;
    } rows[] = {{WHOLE, ""},
                {NO_LOCAL, "cddp_record_gradient"},
                {NO_REDUCED, "cddp_record_reduced"},
                {NO_TOUCH, "cddp_record_optimizer_touch"},
                {NO_STEP, "cddp_record_optimizer_step"},
                {NO_VALUE, "cddp_record_value"},
                {NO_END, "cddp_record_close"},
                {NO_DIGEST, "level digest"},
                {NO_PARAMETER, "cddp_record_parameter"},
                {NOT_HELD, "to the next step or the end"},
                {CHANGED, "outside of the steps"},
                {CHANGED_LAST, "behind the last step"},
                {NOT_CLEARED, "cddp_record_zero_grad"}};
    const cddp_exercise exercises[] = {{"I-ORDER", "", 1},
                                       {"I-LIVE", "", 1},
                                       {"I-ONCE", "", 1},
                                       {"I-GRADEQ", "", 1},
                                       {"I-PARAMEQ", "", 1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_declared declared;
        cd_arena arena;
        cd_test_row("%s", rows[i].words);
        cd_arena_init(&arena, NULL, 0);
        assert_int_equal(cd_declared_init(&declared, 2, NULL, NULL), CDDP_OK);
        show_rank(&declared, 0, WHOLE);
        show_rank(&declared, 1, rows[i].without);
        const cddp_verdict verdict = {.exercises = exercises, .exercise_count = 5};
        const char *gaps = cd_declared_print_gaps(&declared, &verdict, &arena);
        assert_non_null(strstr(gaps, rows[i].words));
        assert_int_equal(rows[i].without == WHOLE, gaps[0] == '\0');
        if (rows[i].without != WHOLE) assert_non_null(strstr(gaps, "rank 1"));
        cd_declared_fini(&declared);
        cd_arena_fini(&arena);
    }
}

static void show_gradient(cd_declared *d, int64_t variable, uint32_t step)
{
    cddp_event e = {.kind = CDDP_EV_grad_local, .step = step};
    e.as.grad_local =
        (cddp_event_grad_local){.param = variable, .digest = 1, .presence = CDDP_PRESENCE_VALUE};
    show(d, 0, e);
}

/* A backward shows the last parameter first. The one that was left is to blame. */
TEST(declared, the_gradient_that_was_not_cleared_is_the_one_that_is_named)
{
    enum { VARIABLES = 3 };
    for (int64_t left = -1; left < VARIABLES; left++) {
        cd_declared d;
        assert_int_equal(cd_declared_init(&d, 1, NULL, NULL), CDDP_OK);
        for (int64_t v = 0; v < VARIABLES; v++) {
            cddp_event e = {.kind = CDDP_EV_param};
            e.as.param = (cddp_event_param){.param = v, .numel = 1, .requires_grad = true};
            show(&d, 0, e);
        }
        for (int64_t v = VARIABLES; v-- > 0;) show_gradient(&d, v, 0);
        show(&d, 0, (cddp_event){.kind = CDDP_EV_zero_grad, .step = 1});
        if (left >= 0) {
            cddp_event e = {.kind = CDDP_EV_mark, .text = CD_TRACER_NOT_CLEARED, .step = 1};
            e.as.mark.value = left;
            show(&d, 0, e);
        }
        for (int64_t v = VARIABLES; v-- > 0;) show_gradient(&d, v, 1);
        cd_test_row("left %d", (int)left);
        assert_int_equal(d.gaps[CD_DECLARED_CLEARED].count, VARIABLES);
        assert_int_equal(d.gaps[CD_DECLARED_CLEARED].variable, left >= 0 ? left : VARIABLES - 1);
        cd_declared_fini(&d);
    }
}

/* A parameter's part of a reduction on two ranks: local 1 and 3, then the mean times `factor`. */
static void reduce(cd_means *m, uint32_t step, bool is_result_shown, double factor)
{
    for (uint32_t rank = 0; rank < 2; rank++) {
        cddp_event e = {.kind = CDDP_EV_projection, .rank = rank, .step = step};
        e.as.projection = (cddp_event_projection){.sum = cd_f64_bits(1 + 2 * rank),
                                                  .magnitude = cd_f64_bits(4),
                                                  .numel = 10,
                                                  .dtype = CDDP_F32};
        cd_means_push(m, &e);
        cd_means_push(m, &(cddp_event){.kind = CDDP_EV_grad_final, .rank = rank, .step = step});
        e.as.projection.reduced = true;
        e.as.projection.sum = cd_f64_bits(2 * factor);
        if (is_result_shown) cd_means_push(m, &e);
    }
}

/* Two ranks of one group, a hook in force on both when `promise` is not negative. */
static void begin_ranks(cd_means *m, int64_t promise, int64_t cast)
{
    assert_int_equal(cd_means_init(m, 2, NULL, NULL), CDDP_OK);
    for (uint32_t rank = 0; rank < 2; rank++) {
        cddp_event e = {.kind = CDDP_EV_group, .rank = rank};
        e.as.group.members = 2;
        cd_means_push(m, &e);
        cd_means_push(m, &(cddp_event){.kind = CDDP_EV_wrap, .rank = rank});
        e = (cddp_event){.kind = CDDP_EV_hook_in_force, .rank = rank, .text = "a"};
        e.as.hook_in_force.promise = promise;
        e.as.hook_in_force.cast = cast;
        if (promise >= 0) cd_means_push(m, &e);
    }
}

/* What a hook promises decides how far a result may be from the mean, and which explanations make
** another one wrong. */
TEST(means, a_hook_is_held_to_what_it_promises)
{
    static const struct {
        const char *name;
        int64_t promise, cast;
        double factor;
        uint64_t means, casts, others;
        cd_means_cause cause;
        int64_t number;
    } rows[] = {
        {"a mean", CDDP_PROMISE_UNKNOWN, 0, 1, 1, 0, 0, CD_MEANS_UNEXPLAINED, 0},
        {"a sum", CDDP_PROMISE_UNKNOWN, 0, 2, 0, 0, 1, CD_MEANS_DIVISOR, 1},
        {"a sum that was declared", CDDP_PROMISE_SUM, 0, 2, 1, 0, 0, CD_MEANS_UNEXPLAINED, 0},
        {"a mean in place of a sum", CDDP_PROMISE_SUM, 0, 1, 0, 0, 1, CD_MEANS_DIVISOR, 2},
        {"divided by three", CDDP_PROMISE_MEAN, 0, 2.0 / 3, 0, 0, 1, CD_MEANS_DIVISOR, 3},
        {"rank 0 alone is missing", CDDP_PROMISE_OWN, 0, 0.75, 0, 0, 1, CD_MEANS_MISSING, 0},
        {"rank 1 is there twice", CDDP_PROMISE_OWN, 0, 1.75, 0, 0, 1, CD_MEANS_TWICE, 1},
        {"no explanation", CDDP_PROMISE_OWN, 0, 1.1, 0, 0, 1, CD_MEANS_UNEXPLAINED, 0},
        {"f16 rounds", CDDP_PROMISE_MEAN, CDDP_F16 + 1, 1.0005, 0, 1, 0, CD_MEANS_UNEXPLAINED, 0},
        {"f32 does not", CDDP_PROMISE_MEAN, 0, 1.0005, 0, 0, 1, CD_MEANS_UNEXPLAINED, 0},
        {"f16 does not double", CDDP_PROMISE_MEAN, CDDP_F16 + 1, 2, 0, 0, 1, CD_MEANS_DIVISOR, 1},
        {"a law that nobody stated", CDDP_PROMISE_STATED, 0, 1.1, 0, 0, 1, CD_MEANS_UNEXPLAINED, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_means m;
        cd_test_row("%s", rows[i].name);
        begin_ranks(&m, rows[i].promise, rows[i].cast);
        reduce(&m, 0, true, rows[i].factor);
        cd_means_end(&m);
        assert_int_equal(m.means, rows[i].means);
        assert_int_equal(m.casts, rows[i].casts);
        assert_int_equal(m.others, rows[i].others);
        assert_int_equal(m.unshown, 0);
        assert_int_equal(m.explanation_count > 0, rows[i].cause != CD_MEANS_UNEXPLAINED);
        if (rows[i].cause != CD_MEANS_UNEXPLAINED) {
            assert_int_equal(m.explanations[0].cause, rows[i].cause);
            assert_int_equal(m.explanations[0].number, rows[i].number);
        }
        cd_means_fini(&m);
    }
}

/* Where rounding hides the divisor, a low precision shows nothing. */
TEST(means, a_wide_bound_has_no_power)
{
    for (int64_t dtype = CDDP_F32; dtype <= CDDP_BF16; dtype++) {
        cd_means m;
        cddp_event e = {.kind = CDDP_EV_projection};
        begin_ranks(&m, CDDP_PROMISE_MEAN, dtype + 1);
        for (uint32_t rank = 0; rank < 2; rank++) {
            e.rank = rank;
            e.as.projection = (cddp_event_projection){.sum = cd_f64_bits(1),
                                                      .magnitude = cd_f64_bits(100),
                                                      .numel = 10,
                                                      .dtype = CDDP_F32};
            cd_means_push(&m, &e);
            cd_means_push(&m, &(cddp_event){.kind = CDDP_EV_grad_final, .rank = rank});
            e.as.projection.reduced = true;
            cd_means_push(&m, &e);
        }
        cd_means_end(&m);
        assert_int_equal(m.others, 0);
        assert_int_equal(m.blind, dtype != CDDP_F32);
        cd_means_fini(&m);
    }
}

/* Rank 1 has joined: its bucket is one of zeros. */
TEST(means, under_join_the_divisor_is_that_of_the_option)
{
    static const struct {
        bool by_active, has_hook;
        double factor; /* times what rank 0 gave */
        uint64_t means;
    } rows[] = {{false, false, 0.5, 1}, {true, false, 1, 1},  {true, false, 0.5, 0},
                {false, false, 1, 0},   {true, true, 0.5, 1}, {true, true, 1, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_means m;
        begin_ranks(&m, rows[i].has_hook ? CDDP_PROMISE_MEAN : -1, 0);
        for (uint32_t rank = 0; rank < 2; rank++) {
            cddp_event e = {.kind = CDDP_EV_option, .rank = rank};
            e.as.option.key = cd_setting_id(CDDP_KEY_join_divide_by_initial_world_size);
            e.as.option.value = !rows[i].by_active;
            cd_means_push(&m, &e);
            e = (cddp_event){.kind = CDDP_EV_bucket_layout, .rank = rank};
            e.as.bucket_layout.dtype = CDDP_F32;
            cd_means_push(&m, &e);
        }
        cddp_event e = {.kind = CDDP_EV_projection};
        e.as.projection = (cddp_event_projection){.sum = cd_f64_bits(3),
                                                  .magnitude = cd_f64_bits(4),
                                                  .numel = 10,
                                                  .dtype = CDDP_F32};
        cd_means_push(&m, &e);
        cd_means_push(&m, &(cddp_event){.kind = CDDP_EV_grad_final});
        e.as.projection.reduced = true;
        e.as.projection.sum = cd_f64_bits(3 * rows[i].factor);
        cd_means_push(&m, &e);
        e = (cddp_event){.kind = CDDP_EV_bucket_launch, .rank = 1};
        e.as.bucket_launch.shadow = true;
        cd_means_push(&m, &e);
        cd_means_end(&m);
        assert_int_equal(m.means, rows[i].means);
        assert_int_equal(m.others, 1 - rows[i].means);
        assert_int_equal(m.unshown, 0);
        cd_means_fini(&m);
    }
}

/* What one rank never showed is counted at the end. */
TEST(means, a_reduction_that_a_rank_did_not_show_is_not_shown)
{
    cd_means m;
    begin_ranks(&m, -1, 0);
    reduce(&m, 0, true, 1);
    cd_means_push(&m, &(cddp_event){.kind = CDDP_EV_grad_final});
    cd_means_push(&m, &(cddp_event){.kind = CDDP_EV_grad_final});
    cd_means_end(&m);
    assert_int_equal(m.means, 1);
    assert_int_equal(m.unshown, 1);
    cd_means_fini(&m);
}

/* Each micro-step reduces, and only the optimizer shows what became of it: the last is judged. */
TEST(means, results_that_were_not_shown_leave_the_next_reduction_alone)
{
    static const double factors[] = {1, 1.01};
    for (size_t i = 0; i < 2; i++) {
        cd_means m;
        assert_int_equal(cd_means_init(&m, 2, NULL, NULL), CDDP_OK);
        for (uint32_t rank = 0; rank < 2; rank++) {
            cddp_event e = {.kind = CDDP_EV_group, .rank = rank};
            e.as.group.members = 2;
            cd_means_push(&m, &e);
            cd_means_push(&m, &(cddp_event){.kind = CDDP_EV_wrap, .rank = rank});
        }
        for (int k = 0; k < 3; k++) reduce(&m, 0, false, 1);
        reduce(&m, 0, true, factors[i]);
        assert_int_equal(m.unshown, 3);
        assert_int_equal(m.means, i == 0);
        assert_int_equal(m.others, i == 1);
        cd_means_fini(&m);
    }
}

TEST(declared, without_memory_fails_and_leaves_nothing)
{
    cd_watch_allocator watch;
    cd_declared declared;
    cddp_error err = CDDP_ERROR_INIT;
    cd_watch_allocator_init(&watch, NULL);
    for (uint64_t at = 1; at <= 4; at++) { /* its ranks, and those of its three judges */
        watch.allocation_count = 0;
        watch.fail_at = at;
        assert_int_equal(cd_declared_init(&declared, 3, &watch.table, &err), CDDP_E_NOMEM);
        assert_int_equal(watch.live_count, 0);
    }
}

TEST(declared, a_rank_that_is_not_there_and_a_check_that_judged_nothing_are_gaps)
{
    cd_declared declared;
    cd_arena arena;
    cd_arena_init(&arena, NULL, 0);
    assert_int_equal(cd_declared_init(&declared, 2, NULL, NULL), CDDP_OK);
    show_rank(&declared, 0, WHOLE);
    const cddp_verdict verdict = {.exercise_count = 0};
    const char *gaps = cd_declared_print_gaps(&declared, &verdict, &arena);
    assert_non_null(strstr(gaps, "the recording of a rank"));
    assert_non_null(strstr(gaps, "I-GRADEQ had nothing to judge"));
    /* what follows from it is no news */
    assert_null(strstr(gaps, "both sides of a reduction"));
    cd_declared_fini(&declared);
    cd_arena_fini(&arena);
}

TEST_MAIN()
