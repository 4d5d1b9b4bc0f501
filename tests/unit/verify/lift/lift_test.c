/* SPDX-License-Identifier: Apache-2.0 */
/* What a recorded run did, as lines of a scenario. tests/record/lift.sh runs lifted scenarios. */
#include "cddp/backend.h"
#include "core/base/alloc.h"
#include "core/base/hash.h"
#include "core/base/rank_list.h"
#include "core/trace/setting.h"
#include "core/trace/tracer.h"
#include "tests/support/test.h"
#include "verify/lift/lift.h"

#include <string.h>

enum { RANKS = 3, STEPS = 3 };

/* What the program does, besides training a and b. */
typedef struct program {
    bool leaves_b, crosses, is_cut, is_unnamed, has_no_forward, is_torch;
    int64_t numel;
} program;

static void push(cd_lift *l, uint32_t rank, uint32_t step, cddp_event e)
{
    e.rank = rank;
    e.step = step;
    cd_lift_push(l, &e);
}

#define PUSH(rank, step, name_, words, ...) \
    push(l, rank, step,                     \
         (cddp_event){.kind = CDDP_EV_##name_, .text = words, .as.name_ = {__VA_ARGS__}})

static void begin(cd_lift *l, const program *p, uint32_t rank)
{
    PUSH(rank, 0, group, "world", .group = 7, .members = RANKS, .group_rank = rank);
    PUSH(rank, 0, param, p->is_unnamed ? "a;b" : "a", .param = 0, .ordinal = 0, .numel = p->numel,
         .dtype = CDDP_F32, .requires_grad = 1,
         .shape = (int64_t)cd_hash_mix(cd_hash_mix(3, 2), (uint64_t)(p->numel / 2)));
    PUSH(rank, 0, param, "b", .param = 1, .ordinal = 1, .numel = 5, .dtype = CDDP_F64,
         .requires_grad = 1);
    PUSH(rank, 0, collective_post, NULL, .group = 7, .op = CDDP_OP_BROADCAST, .bucket = -1);
    PUSH(rank, 0, wrap, NULL, .params = 2, .group = 7);
    if (p->is_torch) {
        PUSH(rank, 0, bucket_layout, NULL, .generation = 0, .bucket = 0, .param = 0);
        PUSH(rank, 0, bucket_layout, NULL, .generation = 1, .bucket = 0, .param = 1);
        PUSH(rank, 0, bucket_layout, NULL, .generation = 1, .bucket = 1, .param = 0);
        PUSH(rank, 0, hook_in_force, "powerSGD_hook", .level = 0);
        PUSH(rank, 0, hook_option, "start_powerSGD_iter", .value = cd_f64_bits(2));
        return;
    }
    PUSH(rank, 0, option, NULL, .key = cd_setting_id(CDDP_KEY_ddp_bucket_cap_mb), .items = 1,
         .real = cd_f64_bits(rank == 1 ? 2 : 1));
}

static void backward(cd_lift *l, const program *p, uint32_t rank, uint32_t step)
{
    const bool is_other = rank == 2 && step == 1;
    PUSH(rank, step, backward_begin, NULL, .sync = 1);
    for (int64_t i = 0; i < 2; i++) {
        const int64_t v = is_other && !p->leaves_b ? i : 1 - i;
        if (is_other && p->leaves_b && v == 1) continue;
        PUSH(rank, step, mark_ready, NULL, .param = v);
    }
    PUSH(rank, step, collective_post, NULL, .group = 7, .op = CDDP_OP_ALLREDUCE, .bucket = 0,
         .numel = 15);
    if (p->is_torch) PUSH(rank, step, cause, NULL, .group = 7);
    PUSH(rank, step, backward_end, NULL, .finalized = 1);
}

static void post(cd_lift *l, uint32_t rank, uint32_t step, int64_t numel)
{
    PUSH(rank, step, collective_post, NULL, .group = 7, .op = CDDP_OP_ALLREDUCE,
         .reduce_op = CDDP_RED_SUM, .root = -1, .dtype = CDDP_F32, .numel = numel, .bucket = -1);
}

static void play(cd_lift *l, const program *p)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) begin(l, p, rank);
    for (uint32_t step = 0; step < STEPS && !p->has_no_forward; step++)
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            PUSH(rank, step, zero_grad, NULL, .to_none = 1);
            PUSH(rank, step, samples, NULL, .count = 2);
            PUSH(rank, step, forward_begin, NULL, .sync = 1, .grad_mode = 1);
            PUSH(rank, step, collective_post, NULL, .group = 7, .op = CDDP_OP_BROADCAST,
                 .bucket = -1);
            PUSH(rank, step, forward_end, NULL, .prepared = 1);
            backward(l, p, rank, step);
            PUSH(rank, step, optimizer_step, "sgd", .lr = cd_f64_bits(0.5));
            if (p->crosses) post(l, rank, step, rank == 1 ? 4 : 3);
            if (p->crosses) post(l, rank, step, rank == 1 ? 3 : 4);
        }
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        const bool died = p->is_cut && rank == 1;
        PUSH(rank, STEPS - 1, rank_end, NULL, .status = died ? CDDP_E_ABORTED : CDDP_OK,
             .end = died ? CDDP_RANK_KILLED : CDDP_RANK_RETURNED);
    }
    PUSH(UINT32_MAX, 0, run_end, NULL, .complete = !p->is_cut);
}

TEST(lift, what_a_program_did_is_in_the_scenario)
{
    static const struct {
        program program;
        const char *lines[4];
    } rows[] = {
        {{.numel = 10},
         {"options = \"list=a:2x5:f32;b:5:f64\"", "ready_order = [\"b\", \"a\"]",
          "[[when]]\nranks = \"2\"\nsteps = \"1\"\nready = \"listed\"\nready_order = [\"a\", "
          "\"b\"]",
          "[[rank]]\nranks = 1\nddp.bucket_cap_mb = 2.0"}},
        {{.numel = 10}, {"world.size = 3", "train.steps = 3", "data.samples = 2", "#   nothing"}},
        {{.numel = 10, .leaves_b = true}, {"ranks = \"2\"\nsteps = \"1\"\nuses = [\"b=0\"]"}},
        {{.numel = 10, .crosses = true},
         {"[[collective]]\nranks = \"0,2\"\nop = \"allreduce\"\nplace = \"after_step\"\nreduction "
          "= "
          "\"sum\"\nnumel = 3\ndtype = \"f32\"\n\n[[collective]]\nranks = \"0,2\"",
          "[[collective]]\nranks = \"1\"\nop = \"allreduce\"\nplace = \"after_step\"\nreduction = "
          "\"sum\"\nnumel = 4"}},
        {{.numel = 10, .is_cut = true},
         {"[[fault]]\nkind = \"kill\"\nrank = 1\nwhen = \"before\"\nat = 7",
          "#   the recording has no good end"}},
        {{.numel = 10, .is_torch = true, .is_cut = true},
         {"ddp.bucket_cap_mb_list = [3.814697265625e-05, 3.814697265625e-05]",
          "name = \"powersgd\"\noptions = \"start_powerSGD_iter=2\"\ncontinuations = "
          "\"on_completion\"",
          "left to explore"}},
        {{.numel = 2000000},
         {"a:181819:f32", "ddp.bucket_cap_mb = 0.09090909090909", "divided by 11"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_lift l;
        cd_text toml;
        cd_text_init(&toml, false);
        assert_int_equal(cd_lift_init(&l, RANKS, "./train", NULL, NULL), CDDP_OK);
        play(&l, &rows[i].program);
        assert_int_equal(cd_lift_write(&l, &toml, NULL), CDDP_OK);
        for (size_t k = 0; k < 4 && rows[i].lines[k] != NULL; k++)
            if (strstr(cd_text_get(&toml), rows[i].lines[k]) == NULL)
                fail_msg("\"%s\" is not in\n%s", rows[i].lines[k], cd_text_get(&toml));
        assert_int_equal(strstr(cd_text_get(&toml), "[[collective]]") != NULL,
                         rows[i].program.crosses);
        cd_text_fini(&toml);
        cd_lift_fini(&l);
    }
}

/* One step of a join context. */
static void join_step(cd_lift *l, uint32_t rank, uint32_t step)
{
    const program p = {.numel = 10};
    PUSH(rank, step, forward_begin, NULL, .sync = 1, .grad_mode = 1);
    post(l, rank, step, 1);
    PUSH(rank, step, join_notify, NULL, .active = 1, .active_ranks = -1);
    PUSH(rank, step, forward_end, NULL, .prepared = 1);
    backward(l, &p, rank, step);
}

static void say_join(cd_lift *l, uint32_t rank)
{
    PUSH(rank, 0, option, NULL, .key = cd_setting_id(CDDP_KEY_join_enable), .items = 1, .value = 1);
}

/* What the wrapper posts as the rank leaves; says: there is an event before it asks. */
static void leave(cd_lift *l, uint32_t rank, uint32_t step, bool says)
{
    post(l, rank, step, 1);
    if (says) PUSH(rank, step, join_notify, NULL, .active = 0);
    PUSH(rank, step, collective_post, NULL, .group = 7, .op = CDDP_OP_ALLREDUCE,
         .reduce_op = CDDP_RED_MAX, .numel = 1, .bucket = -1);
    PUSH(rank, step, collective_post, NULL, .group = 7, .op = CDDP_OP_BROADCAST, .bucket = -1);
    PUSH(rank, step, join_end, NULL, .last_joiner = 1);
}

/* See Note [Steps of join contexts]. Rank 1 has inputs for two steps, then for one, and counts its
** steps on; the others have three and three. */
TEST(lift, join_contexts_are_epochs_of_equal_length)
{
    static const char *const lines[] = {
        "train.steps = 6", "join.epochs = 2",
        "[[rank]]\nranks = 1\nddp.bucket_cap_mb = 2.0\ndata.inputs = 2",
        "ranks = \"1\"\nsteps = \"4\"\nstop = true"};
    const program p = {.numel = 10};
    (void)state;
    for (int says = 0; says < 2; says++) {
        cd_lift l;
        cd_text toml;
        cd_text_init(&toml, false);
        assert_int_equal(cd_lift_init(&l, RANKS, "./train", NULL, NULL), CDDP_OK);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            begin(&l, &p, rank);
            say_join(&l, rank);
        }
        for (uint32_t rank = 0; rank < RANKS; rank++)
            for (uint32_t epoch = 0, step = 0; epoch < 2; epoch++) {
                const uint32_t end = step + (rank != 1 ? 3 : 2 - epoch);
                for (; step < end; step++) join_step(&l, rank, step);
                leave(&l, rank, step - 1, says || rank == 1);
            }
        assert_int_equal(cd_lift_write(&l, &toml, NULL), CDDP_OK);
        for (size_t k = 0; k < sizeof lines / sizeof lines[0]; k++)
            if (strstr(cd_text_get(&toml), lines[k]) == NULL)
                fail_msg("\"%s\" is not in\n%s", lines[k], cd_text_get(&toml));
        assert_null(strstr(cd_text_get(&toml), "[[collective]]"));
        const char *said = strstr(cd_text_get(&toml), "join.enable = ");
        assert_non_null(said);
        assert_null(strstr(said + 1, "join.enable = ")); /* a file says each key once */
        cd_text_fini(&toml);
        cd_lift_fini(&l);
    }
}

static void send_message(cd_lift *l, int64_t members, uint64_t digest)
{
    PUSH(1, 0, group, "from 1 to 0", .group = 9, .members = members, .group_rank = 0,
         .members_digest = (int64_t)digest);
    join_step(l, 1, 0);
    PUSH(1, 0, collective_post, NULL, .group = 9, .op = CDDP_OP_SEND, .root = 1, .numel = 8,
         .bucket = -1);
}

/* Rank 1 sends to rank 0, which never asks and has no such group. Of a group of three nobody knows
** the others: what is posted there is left out with it. */
TEST(lift, a_message_that_nobody_asks_for_has_its_group)
{
    static const uint32_t pair[] = {1, 0};
    const program p = {.numel = 10};
    for (int knows = 0; knows < 2; knows++) {
        cd_lift l;
        cd_text toml;
        cd_text_init(&toml, false);
        assert_int_equal(cd_lift_init(&l, RANKS, "./train", NULL, NULL), CDDP_OK);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            begin(&l, &p, rank);
            if (rank != 1)
                join_step(&l, rank, 0);
            else
                send_message(&l, knows ? 2 : 3, cd_rank_members_digest(pair, 2));
        }
        assert_int_equal(cd_lift_write(&l, &toml, NULL), CDDP_OK);
        assert_int_equal(strstr(cd_text_get(&toml), "members = [1, 0]") != NULL, knows != 0);
        assert_int_equal(strstr(cd_text_get(&toml), "group = \"from 1 to 0\"") != NULL, knows != 0);
        cd_text_fini(&toml);
        cd_lift_fini(&l);
    }
}

TEST(lift, what_no_scenario_is_like_is_refused_in_words)
{
    static const struct {
        program program;
        const char *words;
    } rows[] = {
        {{.numel = 10, .has_no_forward = true}, "no forward through cddp_ddp"},
        {{.numel = 10, .is_unnamed = true}, "cannot name a parameter 'a;b'"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_lift l;
        cd_text toml;
        cddp_error err = CDDP_ERROR_INIT;
        cd_text_init(&toml, false);
        assert_int_equal(cd_lift_init(&l, RANKS, "", NULL, NULL), CDDP_OK);
        play(&l, &rows[i].program);
        assert_int_equal(cd_lift_write(&l, &toml, &err), CDDP_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, rows[i].words));
        cd_text_fini(&toml);
        cd_lift_fini(&l);
    }
}

TEST(lift, without_memory_nothing_is_written_and_nothing_is_left)
{
    (void)state;
    bool is_whole = false;
    for (uint64_t at = 1; !is_whole; at++) {
        cd_watch_allocator watch;
        cd_lift l;
        cd_text toml;
        cddp_error err = CDDP_ERROR_INIT;
        cd_watch_allocator_init(&watch, NULL);
        watch.fail_at = at;
        cd_text_init(&toml, false);
        cddp_status status = cd_lift_init(&l, RANKS, "", &watch.table, &err);
        if (status == CDDP_OK) {
            play(&l, &(program){.numel = 10, .crosses = true, .leaves_b = true});
            status = cd_lift_write(&l, &toml, &err);
            cd_lift_fini(&l);
        }
        is_whole = status == CDDP_OK;
        assert_true(is_whole || status == CDDP_E_NOMEM || status == CDDP_E_UNSUPPORTED);
        assert_int_equal(watch.live_count, 0);
        cd_text_fini(&toml);
    }
}

TEST_MAIN()
