/* SPDX-License-Identifier: Apache-2.0 */
/* What watch says of a job, from its events: who waits, who is at fault, when nothing moves. */
#include "tests/support/test.h"
#include "cddp/backend.h"
#include "core/base/rank_list.h"
#include "verify/hang/graph.h"
#include "verify/watch/watch.h"

#include <string.h>

#define SECOND UINT64_C(1000000000)

typedef struct job {
    cd_watch watch;
    uint64_t now_ns;
    uint32_t step;
} job;

static void begin(job *j, uint32_t ranks)
{
    *j = (job){.now_ns = 1000 * SECOND};
    assert_int_equal(cd_watch_init(&j->watch, ranks, NULL), CDDP_OK);
}

static void emit(job *j, uint32_t rank, uint16_t kind, const int64_t fields[5], const char *text)
{
    cddp_event e = {
        .rank = rank, .kind = kind, .step = j->step, .time_ns = j->now_ns, .text = text};
    for (int i = 0; fields != NULL && i < 5; i++) e.as.field[i] = fields[i];
    assert_int_equal(cd_watch_push(&j->watch, &e, NULL), CDDP_OK);
}

static void open_group(job *j, uint32_t rank, int64_t id)
{
    const int64_t members = j->watch.rank_count;
    emit(j, rank, CDDP_EV_group, (int64_t[]){id, members, rank, 0, 0}, id == 0 ? "world" : "rows");
}

static void post(job *j, uint32_t rank, int64_t group, int64_t sequence)
{
    cddp_event e = {.rank = rank,
                    .kind = CDDP_EV_collective_post,
                    .step = j->step,
                    .time_ns = j->now_ns,
                    .as.collective_post = {.group = group,
                                           .sequence = sequence,
                                           .op = CDDP_OP_ALLREDUCE,
                                           .bucket = sequence % 3}};
    assert_int_equal(cd_watch_push(&j->watch, &e, NULL), CDDP_OK);
}

static void await(job *j, uint32_t rank, int64_t group, int64_t sequence)
{
    emit(j, rank, CDDP_EV_collective_wait, (int64_t[]){group, sequence, 0, 0, 0}, NULL);
}

static void done(job *j, uint32_t rank, int64_t group, int64_t sequence)
{
    emit(j, rank, CDDP_EV_collective_done, (int64_t[]){group, sequence, 0, 0, 0}, NULL);
}

/* Folded lines and columns become single blanks. */
static void squeeze(char *text)
{
    char *to = text;
    for (const char *at = text; *at != '\0'; at++) {
        const bool is_blank = *at == ' ' || *at == '\n';
        if (is_blank && to > text && to[-1] == ' ') continue;
        *to++ = is_blank ? ' ' : *at;
    }
    *to = '\0';
}

static void expect_page(job *j, bool is_stalled, const char *words, bool is_said)
{
    const cd_watch_page page = {.source = "run.db", .program = "", .stall_ns = 30 * SECOND};
    cd_text text;
    cd_text_init(&text, false);
    assert_int_equal(cd_watch_settle(&j->watch, j->now_ns, NULL), CDDP_OK);
    assert_int_equal(cd_watch_is_stalled(&j->watch, &page), is_stalled);
    cd_watch_print(&j->watch, &page, &text);
    squeeze(text.bytes);
    if ((strstr(cd_text_get(&text), words) != NULL) != is_said)
        fail_msg("\"%s\" in:\n%s", words, cd_text_get(&text));
    cd_text_fini(&text);
}

static void expect(job *j, bool is_stalled, const char *words)
{
    expect_page(j, is_stalled, words, true);
}

TEST(watch, names_the_rank_that_did_not_come)
{
    job j;
    (void)state;
    begin(&j, 3);
    for (uint32_t r = 0; r < 3; r++) open_group(&j, r, 0);
    j.step = 4;
    for (uint32_t r = 0; r < 2; r++) {
        post(&j, r, 0, 0);
        await(&j, r, 0, 0);
    }
    expect_page(&j, false, "no progress", false);
    expect(&j, false, "ranks 0 and 1 now step 4");
    expect(&j, false, "waits for rank 2");
    j.now_ns += 29 * SECOND;
    expect_page(&j, false, "no progress", false);
    j.now_ns += SECOND;
    expect(&j, true,
           "no progress for 30 s: no rank has emitted an event, and 2 operations are open");
    expect(&j, true, "hang: ranks 0 and 1 wait in allreduce #0 (bucket 0, step 4) for rank 2");
    expect(&j, true, "why rank 2: its last event is group in step 0, 30 s ago");
    post(&j, 2, 0, 0);
    for (uint32_t r = 0; r < 3; r++) done(&j, r, 0, 0);
    expect_page(&j, false, "waits", false);
    /* Nobody waits, and nothing is open: a long computation is no hang. */
    j.now_ns += 3600 * SECOND;
    expect_page(&j, false, "no progress", false);
    cd_watch_fini(&j.watch);
}

TEST(watch, names_a_cycle_of_two_groups)
{
    job j;
    (void)state;
    begin(&j, 2);
    for (uint32_t r = 0; r < 2; r++)
        for (int64_t group = 0; group < 2; group++) open_group(&j, r, group);
    for (uint32_t r = 0; r < 2; r++) {
        post(&j, r, r, 0);
        await(&j, r, r, 0);
    }
    j.now_ns += 60 * SECOND;
    expect(&j, true, "rank 0 waits in allreduce #0 (bucket 0, step 0) for rank 1, which waits in");
    expect(&j, true, "of group 'rows'");
    cd_watch_fini(&j.watch);
}

/* The other one never came to the exchange, and so recorded no group of it. */
TEST(watch, names_who_never_asks_for_a_message)
{
    static const uint32_t members[] = {1, 0};
    job j;
    begin(&j, 2);
    for (uint32_t r = 0; r < 2; r++) open_group(&j, r, 0);
    const int64_t digest = (int64_t)cd_rank_members_digest(members, 2);
    emit(&j, 1, CDDP_EV_group, (int64_t[]){5, 2, 0, digest, 0}, "messages");
    post(&j, 1, 5, 0);
    await(&j, 1, 5, 0);
    post(&j, 0, 0, 0);
    await(&j, 0, 0, 0);
    expect(&j, false, "of 'messages' (bucket 0) waits for rank 0");
    cd_watch_fini(&j.watch);
}

TEST(watch, says_that_a_process_is_gone)
{
    job j;
    (void)state;
    begin(&j, 2);
    for (uint32_t r = 0; r < 2; r++) open_group(&j, r, 0);
    for (uint32_t r = 0; r < 2; r++) post(&j, r, 0, 0);
    await(&j, 0, 0, 0);
    j.now_ns += 60 * SECOND;
    expect(&j, true, "which all members have posted; who stopped there is not known");
    j.watch.ranks[1].is_gone = true;
    j.watch.ranks[1].process = 4711;
    expect(&j, true, "rank 1: its process 4711 is gone, and it said no end");
    expect(&j, true, "for rank 1, which died");
    expect_page(&j, true, "nothing writes it any more", false);
    assert_false(cd_watch_is_dead(&j.watch));
    j.watch.ranks[0].is_gone = true;
    assert_true(cd_watch_is_dead(&j.watch));
    expect(&j, false, "nothing writes it any more: the last event was 1 min ago");
    cd_watch_fini(&j.watch);
}

/* Its shard lies elsewhere, or its recorder stopped: it may have posted what others wait for. */
TEST(watch, a_rank_of_which_nothing_is_known_is_not_the_culprit)
{
    (void)state;
    for (int is_cut = 0; is_cut < 2; is_cut++) {
        job j;
        begin(&j, 3);
        for (uint32_t r = 0; r < 2u + (uint32_t)is_cut; r++) open_group(&j, r, 0);
        if (is_cut) emit(&j, 2, CDDP_EV_mark, NULL, "recorder failed: no space");
        for (uint32_t r = 0; r < 2; r++) post(&j, r, 0, 0);
        for (uint32_t r = 0; r < 2; r++) await(&j, r, 0, 0);
        j.now_ns += 60 * SECOND;
        cd_test_row("recorder failed: %d", is_cut);
        expect(&j, true, "not every member is recorded: who did not come is not known");
        expect_page(&j, true, "all members have posted", false);
        expect_page(&j, true,
                    is_cut ? "its recording stopped, what it does is not known"
                           : "has shown nothing yet",
                    true);
        expect_page(&j, true, "why", false);
        assert_false(cd_hang_is_culprit(&j.watch.verdict, 2));
        cd_watch_fini(&j.watch);
    }
}

/* It waits as the others do, but is what they wait for. */
TEST(watch, a_process_that_is_stopped_is_the_culprit)
{
    job j;
    (void)state;
    begin(&j, 3);
    for (uint32_t r = 0; r < 3; r++) open_group(&j, r, 0);
    for (uint32_t r = 0; r < 3; r++) post(&j, r, 0, 0);
    for (uint32_t r = 0; r < 3; r++) await(&j, r, 0, 0);
    j.now_ns += 60 * SECOND;
    expect_page(&j, true, "SIGSTOP", false);
    j.watch.ranks[1].is_stopped = true;
    expect(&j, true,
           "hang: ranks 0 and 2 wait in allreduce #0 (bucket 0, step 0) for rank 1, which "
           "is stopped (SIGSTOP)");
    expect(&j, true, "rank 1 1 min step 0 allreduce #0 (bucket 0) is stopped (SIGSTOP)");
    expect(&j, true, "why rank 1: its process is stopped (SIGSTOP)");
    cd_watch_fini(&j.watch);
}

/* A store whose judge was killed: its ranks have no end, and nothing will come. */
TEST(watch, a_store_that_nobody_writes_is_no_job_that_runs)
{
    job j;
    (void)state;
    begin(&j, 2);
    for (uint32_t r = 0; r < 2; r++) open_group(&j, r, 0);
    post(&j, 0, 0, 0);
    await(&j, 0, 0, 0);
    j.now_ns += 7 * SECOND;
    j.watch.is_abandoned = true;
    expect(&j, false, "2 ranks, 0 running");
    expect(&j, false, "nothing writes it any more: the last event was 7 s ago, and it says no end");
    expect(&j, false, "rank 0 7 s step 0 allreduce #0 (bucket 0) waited for rank 1");
    expect(&j, false, "last: rank 0 waits in allreduce #0 (bucket 0, step 0) for rank 1");
    expect_page(&j, false, "runs", false);
    cd_watch_fini(&j.watch);
}

TEST(watch, an_end_is_no_wait)
{
    job j;
    (void)state;
    begin(&j, 2);
    open_group(&j, 0, 0);
    open_group(&j, 1, 0);
    emit(&j, 0, CDDP_EV_rank_end, (int64_t[]){CDDP_OK, CDDP_RANK_RETURNED, 0, 0, 0}, NULL);
    emit(&j, 1, CDDP_EV_rank_end, (int64_t[]){CDDP_E_STATE, CDDP_RANK_RETURNED, 0, 0, 0}, "no");
    expect(&j, false, "ended normally");
    expect(&j, false, "ended with an error");
    assert_int_equal(j.watch.running, 0);
    cd_watch_fini(&j.watch);
}

/* One shard of four is here, or the others are still to begin. */
TEST(watch, a_rank_that_has_shown_nothing_does_not_run)
{
    job j;
    (void)state;
    begin(&j, 4);
    expect(&j, false, "4 ranks, 0 running, 4 silent, 0 events");
    assert_false(cd_watch_is_over(&j.watch)); /* nobody has begun */
    j.watch.ranks[1].process = 4711;          /* its shard is there */
    expect(&j, false, "4 ranks, 1 running, 3 silent, 0 events");
    open_group(&j, 0, 0);
    expect(&j, false, "4 ranks, 2 running, 2 silent, 1 events");
    assert_false(cd_watch_is_over(&j.watch));
    j.watch.ranks[1].is_gone = true;
    expect(&j, false, "its process 4711 is gone");
    emit(&j, 0, CDDP_EV_rank_end, (int64_t[]){CDDP_OK, CDDP_RANK_RETURNED, 0, 0, 0}, NULL);
    j.watch.ranks[1] = j.watch.ranks[2];
    expect(&j, false, "4 ranks, 0 running, 3 silent");
    assert_true(cd_watch_is_over(&j.watch));
    j.watch.is_growing = true; /* a store: the others are still to come */
    assert_false(cd_watch_is_over(&j.watch));
    j.watch.is_whole = true;
    assert_true(cd_watch_is_over(&j.watch));
    cd_watch_fini(&j.watch);
}

/* Ctrl-C leaves a run without a verdict, in which each rank has an end. */
TEST(watch, a_run_whose_ranks_were_interrupted_has_ended)
{
    job j;
    (void)state;
    begin(&j, 2);
    for (uint32_t r = 0; r < 2; r++) open_group(&j, r, 0);
    j.watch.is_abandoned = true;
    for (uint32_t r = 0; r < 2; r++) {
        assert_true(cd_watch_is_dead(&j.watch)); /* somebody still has none */
        emit(&j, r, CDDP_EV_rank_end, (int64_t[]){CDDP_E_ABORTED, CDDP_RANK_INTERRUPTED, 0, 0, 0},
             NULL);
    }
    assert_false(cd_watch_is_dead(&j.watch));
    expect(&j, false, "was interrupted");
    expect_page(&j, false, "nothing writes it any more", false);
    cd_watch_fini(&j.watch);
}

/* A store of a run that hung: who waited for whom when it was over. */
TEST(watch, ranks_that_hung_are_shown_as_waiting_when_all_is_over)
{
    job j;
    (void)state;
    begin(&j, 3);
    for (uint32_t r = 0; r < 3; r++) open_group(&j, r, 0);
    for (uint32_t r = 0; r < 3; r++) post(&j, r, 0, 0);
    for (uint32_t r = 0; r < 3; r += 2) await(&j, r, 0, 0);
    emit(&j, 1, CDDP_EV_rank_end, (int64_t[]){CDDP_E_ABORTED, CDDP_RANK_KILLED, 9, 0, 0},
         "rank 1 was killed by somebody");
    for (uint32_t r = 0; r < 3; r += 2)
        emit(&j, r, CDDP_EV_rank_end, (int64_t[]){CDDP_E_ABORTED, CDDP_RANK_HUNG, 0, 0, 0}, "hung");
    expect(&j, false, "ranks 0 and 2 now step 0 allreduce #0 (bucket 0) waited for rank 1");
    expect(&j, false, "rank 1 now step 0 allreduce #0 (bucket 0) was killed (signal 9)");
    expect(&j, false, "hang: ranks 0 and 2 wait in allreduce #0 (bucket 0, step 0) for rank 1");
    expect(&j, false, "why rank 1 was killed by somebody");
    assert_int_equal(j.watch.running, 0);
    j.now_ns += 3600 * SECOND;
    expect_page(&j, false, "no progress", false);
    cd_watch_fini(&j.watch);
}

TEST(watch, is_not_disturbed_by_what_cannot_be)
{
    job j;
    (void)state;
    begin(&j, 2);
    emit(&j, 7, CDDP_EV_group, (int64_t[]){0, 3, 0, 0, 0}, "world");
    post(&j, 0, 99, INT64_MAX);
    await(&j, 0, 98, -5);
    done(&j, 1, 5, 5);
    emit(&j, 1, CDDP_EV_rank_end, (int64_t[]){99, -4, 0, 0, 0}, "\033[2J");
    j.now_ns += 60 * SECOND;
    expect(&j, true, "rank 0");
    expect_page(&j, true, "\033", false);
    cd_watch_fini(&j.watch);
}

TEST(watch, json_has_the_same)
{
    job j;
    const cd_watch_page page = {.source = "run.db", .program = "train", .stall_ns = SECOND};
    cd_text text;
    (void)state;
    begin(&j, 2);
    for (uint32_t r = 0; r < 2; r++) open_group(&j, r, 0);
    post(&j, 0, 0, 0);
    await(&j, 0, 0, 0);
    j.now_ns += 2 * SECOND;
    cd_text_init(&text, false);
    assert_int_equal(cd_watch_settle(&j.watch, j.now_ns, NULL), CDDP_OK);
    cd_watch_print_json(&j.watch, &page, &text);
    const char *json = cd_text_get(&text);
    assert_non_null(strstr(json, "\"stalled\": true"));
    assert_non_null(strstr(json, "\"dead\": false"));
    assert_non_null(strstr(json, "\"silent_seconds\": 2"));
    assert_non_null(strstr(json, "\"headline\": \"hang: rank 0 waits in allreduce #0"));
    assert_non_null(strstr(json, "\"culprits\": [\n      1\n    ]"));
    cd_text_fini(&text);
    cd_watch_fini(&j.watch);
}

/* Nothing is kept per step. */
TEST(watch, memory_does_not_grow_with_steps)
{
    job j;
    (void)state;
    begin(&j, 2);
    for (uint32_t r = 0; r < 2; r++) open_group(&j, r, 0);
    for (int64_t k = 0; k < 100000; k++)
        for (uint32_t r = 0; r < 2; r++) {
            post(&j, r, 0, k);
            await(&j, r, 0, k);
            done(&j, r, 0, k);
        }
    assert_int_equal(j.watch.group_count, 1);
    assert_int_equal(j.watch.event_count, 600002);
    expect(&j, false, "allreduce #99999 (bucket 0), done");
    cd_watch_fini(&j.watch);
}

TEST_MAIN()
