/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks of a job that was killed hung, and which were merely ended with it. */
#include "tests/support/test.h"
#include "core/base/rank_list.h"
#include "cddp/backend.h"
#include "verify/import/ends.h"

#include <string.h>

#define SECOND UINT64_C(1000000000)
#define RANKS 3u
#define STALL_S 30u

typedef struct job {
    cd_ends ends;
    uint64_t now_ns;
} job;

static void emit(job *j, uint32_t rank, uint16_t kind, const int64_t fields[3])
{
    cddp_event e = {.rank = rank, .kind = kind, .time_ns = j->now_ns};
    for (int i = 0; fields != NULL && i < 3; i++) e.as.field[i] = fields[i];
    assert_int_equal(cd_ends_push(&j->ends, &e, NULL), CDDP_OK);
}

static void begin_with(job *j, uint32_t recorded)
{
    *j = (job){.now_ns = 1000 * SECOND};
    assert_int_equal(cd_ends_init(&j->ends, RANKS, STALL_S * SECOND, NULL), CDDP_OK);
    for (int64_t group = 0; group < 2; group++)
        for (uint32_t i = 0; i < recorded; i++)
            emit(j, i, CDDP_EV_group, (int64_t[]){group, RANKS, i});
}

static void begin(job *j) { begin_with(j, RANKS); }

static void compute(job *j, uint32_t rank) { emit(j, rank, CDDP_EV_forward_begin, NULL); }
static void later(job *j, uint64_t seconds) { j->now_ns += seconds * SECOND; }

static void post(job *j, uint32_t rank, int64_t group, int64_t sequence, cddp_op op)
{
    cddp_event e = {
        .rank = rank,
        .kind = CDDP_EV_collective_post,
        .time_ns = j->now_ns,
        .as.collective_post = {.group = group, .sequence = sequence, .op = op, .bucket = -1}};
    assert_int_equal(cd_ends_push(&j->ends, &e, NULL), CDDP_OK);
}

static void await(job *j, uint32_t rank, int64_t group, int64_t sequence)
{
    post(j, rank, group, sequence, CDDP_OP_ALLREDUCE);
    emit(j, rank, CDDP_EV_collective_wait, (int64_t[]){group, sequence, 0});
}

static void leave(job *j, uint32_t rank)
{
    emit(j, rank, CDDP_EV_rank_end, NULL);
    j->ends.ranks[rank].left = CD_LEFT_BY_END;
}

/* The processes lived until now. */
static void live_on(job *j, uint32_t rank)
{
    if (j->ends.ranks[rank].left != CD_LEFT_OPEN) return;
    j->ends.ranks[rank].has_pulse = true;
    j->ends.ranks[rank].until_ns = j->now_ns;
}

static void end(job *j, const char *hung)
{
    char found[RANKS + 1] = "";
    assert_int_equal(cd_ends_settle(&j->ends, NULL), CDDP_OK);
    for (uint32_t i = 0; i < RANKS; i++)
        found[i] = j->ends.ranks[i].is_early ? 'e' : j->ends.ranks[i].is_hung ? 'h' : '-';
    assert_string_equal(found, hung);
    cd_ends_fini(&j->ends);
}

static void end_all(job *j, const char *hung)
{
    for (uint32_t i = 0; i < RANKS; i++) live_on(j, i);
    end(j, hung);
}

TEST(ends, a_rank_that_shows_nothing_for_the_stall_hangs_those_that_wait_for_it)
{
    static const struct {
        uint64_t silent_s;
        const char *hung;
    } cases[] = {{STALL_S, "hhh"}, {STALL_S - 1, "---"}};
    for (size_t i = 0; i < 2; i++) {
        job j;
        begin(&j);
        compute(&j, 2);
        await(&j, 0, 0, 0);
        await(&j, 1, 0, 0);
        later(&j, cases[i].silent_s);
        end_all(&j, cases[i].hung);
    }
}

/* Rank 1 sends to rank 0, which waits for it elsewhere and never asks: only rank 1 has recorded who
** exchange messages. One that is sent may be under way. */
TEST(ends, a_message_that_nobody_asks_for_hangs_who_sends_it_for_the_stall)
{
    static const struct {
        uint64_t silent_s;
        const char *hung;
    } cases[] = {{STALL_S, "hhh"}, {STALL_S - 1, "---"}};
    static const uint32_t members[] = {1, 0};
    for (size_t i = 0; i < 2; i++) {
        job j;
        begin(&j);
        cddp_event e = {.rank = 1, .kind = CDDP_EV_group, .time_ns = j.now_ns};
        e.as.group =
            (cddp_event_group){.group = 5,
                               .members = 2,
                               .members_digest = (int64_t)cd_rank_members_digest(members, 2)};
        assert_int_equal(cd_ends_push(&j.ends, &e, NULL), CDDP_OK);
        post(&j, 1, 5, 0, CDDP_OP_SEND);
        emit(&j, 1, CDDP_EV_collective_wait, (int64_t[]){5, 0, 0});
        await(&j, 0, 0, 0);
        await(&j, 2, 0, 0);
        later(&j, cases[i].silent_s);
        end_all(&j, cases[i].hung);
    }
}

TEST(ends, a_rank_that_computes_may_be_about_to_come_however_long_the_others_wait)
{
    job j;
    begin(&j);
    await(&j, 0, 0, 0);
    await(&j, 1, 0, 0);
    for (int i = 0; i < 10; i++) {
        later(&j, STALL_S - 1);
        compute(&j, 2);
    }
    end_all(&j, "---");
}

TEST(ends, nobody_hangs_in_a_job_where_nobody_waits_however_long_it_shows_nothing)
{
    job j;
    begin(&j);
    for (uint32_t i = 0; i < RANKS; i++) compute(&j, i);
    later(&j, 100 * STALL_S);
    end_all(&j, "---");
}

TEST(ends, a_wait_for_a_rank_that_has_returned_hangs_at_once)
{
    job j;
    begin(&j);
    leave(&j, 2);
    await(&j, 0, 0, 0);
    compute(&j, 1);
    end_all(&j, "h--");
}

TEST(ends, an_operation_under_way_that_all_have_posted_is_no_hang)
{
    job j;
    begin(&j);
    post(&j, 2, 0, 0, CDDP_OP_ALLREDUCE);
    leave(&j, 2);
    await(&j, 0, 0, 0);
    await(&j, 1, 0, 0);
    end_all(&j, "---");
}

/* Of rank 2 there is no recording, or one that its recorder could not go on with. */
TEST(ends, a_member_that_may_have_come_unrecorded_hangs_nobody)
{
    for (int is_cut = 0; is_cut < 2; is_cut++) {
        job j;
        begin_with(&j, is_cut ? RANKS : RANKS - 1);
        for (uint32_t i = 0; i < RANKS - 1; i++) await(&j, i, 0, 0);
        if (is_cut) j.ends.ranks[2].left = CD_LEFT_BY_CUT;
        later(&j, 2 * STALL_S);
        for (uint32_t i = 0; i < RANKS - 1; i++) live_on(&j, i);
        end(&j, "---");
    }
}

TEST(ends, an_operation_that_all_have_posted_and_that_never_ends_is_one)
{
    job j;
    begin(&j);
    for (uint32_t i = 0; i < RANKS; i++) await(&j, i, 0, 0);
    later(&j, STALL_S);
    end_all(&j, "hhh");
}

TEST(ends, ranks_that_wait_for_one_another_hang_at_once_and_so_does_who_waits_for_them)
{
    job j;
    begin(&j);
    await(&j, 0, 0, 0);
    await(&j, 1, 1, 0);
    compute(&j, 2);
    post(&j, 2, 0, 0, CDDP_OP_ALLREDUCE);
    await(&j, 2, 1, 0);
    end_all(&j, "hhh");
    begin(&j); /* rank 1 waits for rank 2 alone, and rank 0 for rank 1 */
    await(&j, 0, 0, 0);
    post(&j, 0, 1, 0, CDDP_OP_ALLREDUCE);
    post(&j, 2, 0, 0, CDDP_OP_ALLREDUCE);
    await(&j, 1, 1, 0);
    end_all(&j, "---");
}

TEST(ends, a_process_that_was_gone_long_before_those_that_wait_died_by_itself)
{
    for (int early = 0; early < 2; early++) {
        job j;
        begin(&j);
        compute(&j, 2);
        live_on(&j, 2);
        await(&j, 0, 0, 0);
        await(&j, 1, 0, 0);
        later(&j, STALL_S - (early ? 0 : 1));
        live_on(&j, 0);
        live_on(&j, 1);
        end(&j, early ? "hhe" : "---");
    }
}

TEST(ends, a_process_that_others_outlived_without_waiting_was_ended_with_the_job)
{
    job j;
    begin(&j);
    live_on(&j, 2);
    live_on(&j, 1);
    later(&j, 10 * STALL_S);
    live_on(&j, 0); /* it saved a checkpoint when the signal came */
    end(&j, "---");
}

TEST(ends, who_waits_for_a_rank_that_died_by_itself_hangs)
{
    job j;
    begin(&j);
    j.ends.ranks[2].left = CD_LEFT_BY_DEATH;
    await(&j, 0, 0, 0);
    end_all(&j, "h--");
}

TEST(ends, without_a_pulse_time_says_nothing)
{
    job j;
    begin(&j);
    await(&j, 0, 0, 0);
    later(&j, 10 * STALL_S);
    compute(&j, 1);
    end(&j, "---");
}

TEST(ends, messages_of_a_larger_group_do_not_say_who_is_missing)
{
    job j;
    begin(&j);
    leave(&j, 2);
    post(&j, 0, 0, 0, CDDP_OP_SEND);
    emit(&j, 0, CDDP_EV_collective_wait, (int64_t[]){0, 0, 0});
    compute(&j, 1);
    end_all(&j, "---");
}

TEST(ends, what_a_rank_did_is_said_in_words)
{
    job j;
    char words[300];
    begin(&j);
    compute(&j, 2);
    await(&j, 0, 0, 7);
    await(&j, 1, 0, 7);
    later(&j, 12);
    for (uint32_t i = 0; i < RANKS; i++) live_on(&j, i);
    assert_int_equal(cd_ends_settle(&j.ends, NULL), CDDP_OK);
    cd_ends_print(&j.ends, 0, words, sizeof words);
    assert_non_null(strstr(words, "while it waited in allreduce #7"));
    assert_non_null(strstr(words, "for 12 s; missing: rank 2"));
    cd_ends_print(&j.ends, 2, words, sizeof words);
    assert_string_equal(words,
                        "the job was ended while it computed, and had shown no event for 12 s");
    cd_ends_fini(&j.ends);
}

TEST_MAIN()
