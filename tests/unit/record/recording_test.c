/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank a process records that says something before its first group, and what becomes of a
** tracer whose recording has ended. */
#define _POSIX_C_SOURCE 200809L
#include "tests/support/test.h"
#include "cddp/shard.h"
#include "record/recording.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char name[300];

static uint64_t now_ns(cddp_rank *rank)
{
    (void)rank;
    return 1;
}

static const cddp_world_ops ops = {.size = sizeof ops, .abi = CDDP_WORLD_ABI, .now_ns = now_ns};

static void begin(void)
{
    const char *folder = getenv("TMPDIR");
    static const char *const launchers[] = {"RANK",         "WORLD_SIZE",           "SLURM_PROCID",
                                            "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) unsetenv(launchers[i]);
    snprintf(name, sizeof name, "%s/cddp-recording-%d", folder != NULL ? folder : "/tmp",
             (int)getpid());
    assert_int_equal(cddp_record_open(name, NULL, NULL), CDDP_OK);
}

/* How many events the shard of a rank has, and of how many ranks it is; removes it. */
static size_t take_shard(uint32_t rank, uint32_t *world_size)
{
    char path[340];
    cddp_shard_reader *reader = NULL;
    cddp_event event;
    bool found = true;
    size_t count = 0;
    snprintf(path, sizeof path, "%s.%u", name, (unsigned)rank);
    *world_size = 0;
    if (cddp_shard_reader_open(path, &reader, NULL) != CDDP_OK) return 0;
    *world_size = cddp_shard_reader_header(reader)->world_size;
    while (cddp_shard_reader_next(reader, &event, &found, NULL) == CDDP_OK && found) count++;
    cddp_shard_reader_close(reader);
    remove(path);
    return count;
}

static void step(void)
{
    const cddp_record_update update = cddp_record_update_default();
    cddp_record_optimizer_step(&update);
}

TEST(recording, a_program_without_groups_is_one_process_and_nothing_that_it_said_is_lost)
{
    uint32_t world_size = 0;
    (void)state;
    begin();
    cddp_record_step_begin(7);
    cddp_record_zero_grad(true);
    step();
    assert_int_equal(cddp_record_close(CDDP_OK, NULL, NULL), CDDP_OK);
    assert_int_equal(take_shard(0, &world_size), 5); /* begin, mark, zero_grad, step, end */
    assert_int_equal(world_size, 1);
    begin();
    cddp_record_zero_grad(true); /* it never steps: its end tells */
    assert_int_equal(cddp_record_close(CDDP_E_IO, "no data", NULL), CDDP_OK);
    assert_int_equal(take_shard(0, &world_size), 4);
}

/* Whether the shard has a mark of these words; removes it. */
static bool take_mark(const char *words)
{
    char path[340];
    cddp_shard_reader *reader = NULL;
    cddp_event event;
    bool found = true, has = false;
    snprintf(path, sizeof path, "%s.0", name);
    assert_int_equal(cddp_shard_reader_open(path, &reader, NULL), CDDP_OK);
    while (cddp_shard_reader_next(reader, &event, &found, NULL) == CDDP_OK && found)
        has |= event.kind == CDDP_EV_mark && event.text != NULL && strcmp(event.text, words) == 0;
    cddp_shard_reader_close(reader);
    remove(path);
    return has;
}

/* Zeros of either sign; one number anywhere is none. */
TEST(recording, gradients_that_were_cleared_are_seen_to_be)
{
    enum { NUMEL = 333 };
    static float weights[NUMEL], gradients[NUMEL];
    const int64_t numel = NUMEL;
    const cddp_tensor weight = cddp_tensor_of(cddp_device_cpu(), weights, 0, CDDP_F32, &numel, 1);
    const cddp_tensor gradient =
        cddp_tensor_of(cddp_device_cpu(), gradients, 0, CDDP_F32, &numel, 1);
    (void)state;
    for (int place = -1; place < NUMEL; place++) {
        for (int i = 0; i < NUMEL; i++) gradients[i] = i % 3 == 0 ? -0.0f : 0.0f;
        if (place >= 0) gradients[place] = 1e-45f;
        begin();
        cddp_record_storage(0, &weight, &gradient);
        cddp_record_zero_grad(false);
        step();
        cddp_record_storage_end();
        assert_int_equal(cddp_record_close(CDDP_OK, NULL, NULL), CDDP_OK);
        cd_test_row("a number at %d", place);
        assert_int_equal(take_mark(CD_TRACER_CLEARED), place < 0);
    }
}

/* The variables with a mark of these words, as bits; removes the shard. */
static uint32_t take_marked(const char *words)
{
    char path[340];
    cddp_shard_reader *reader = NULL;
    cddp_event event;
    bool found = true;
    uint32_t marked = 0;
    snprintf(path, sizeof path, "%s.0", name);
    assert_int_equal(cddp_shard_reader_open(path, &reader, NULL), CDDP_OK);
    while (cddp_shard_reader_next(reader, &event, &found, NULL) == CDDP_OK && found)
        if (event.kind == CDDP_EV_mark && event.text != NULL && strcmp(event.text, words) == 0)
            marked |= UINT32_C(1) << event.as.mark.value;
    cddp_shard_reader_close(reader);
    remove(path);
    return marked;
}

/* The backward has content where it begins, whether that was cleared or not. */
TEST(recording, each_gradient_that_a_backward_finds_uncleared_is_named)
{
    enum { PARAMETERS = 4, NUMEL = 10 };
    static float weights[PARAMETERS][NUMEL], gradients[PARAMETERS][NUMEL];
    const int64_t numel = NUMEL;
    (void)state;
    for (uint32_t left = 0; left < 1 << PARAMETERS; left++) {
        cddp_tensor gradient[PARAMETERS];
        begin();
        for (int i = 0; i < PARAMETERS; i++) {
            const cddp_tensor weight =
                cddp_tensor_of(cddp_device_cpu(), weights[i], 0, CDDP_F32, &numel, 1);
            gradient[i] = cddp_tensor_of(cddp_device_cpu(), gradients[i], 0, CDDP_F32, &numel, 1);
            gradients[i][NUMEL / 2] = (left >> i & 1) != 0 ? 1.0f : 0.0f;
            cddp_record_storage((size_t)i, &weight, &gradient[i]);
        }
        cddp_record_zero_grad(false);
        gradients[PARAMETERS - 1][0] = 3;
        cddp_record_gradient(PARAMETERS - 1, &gradient[PARAMETERS - 1]);
        gradients[0][0] = 3;
        cddp_record_gradient(0, &gradient[0]);
        step();
        cddp_record_storage_end();
        assert_int_equal(cddp_record_close(CDDP_OK, NULL, NULL), CDDP_OK);
        gradients[PARAMETERS - 1][0] = gradients[0][0] = 0;
        cd_test_row("left %x", (unsigned)left);
        assert_int_equal(take_marked(CD_TRACER_NOT_CLEARED), left);
    }
}

/* In how many steps a parameter was shown as what a forward ran on; removes the shard. */
static uint32_t count_steps_with_forwards(void)
{
    char path[340];
    cddp_shard_reader *reader = NULL;
    cddp_event event;
    bool found = true;
    uint32_t steps = 0, last = UINT32_MAX;
    snprintf(path, sizeof path, "%s.0", name);
    assert_int_equal(cddp_shard_reader_open(path, &reader, NULL), CDDP_OK);
    while (cddp_shard_reader_next(reader, &event, &found, NULL) == CDDP_OK && found) {
        if (event.kind != CDDP_EV_value || event.as.value.moment != CDDP_MOMENT_FORWARD) continue;
        steps += event.step != last;
        last = event.step;
    }
    cddp_shard_reader_close(reader);
    remove(path);
    return steps;
}

/* Too few elements for the parts that every look reads. */
TEST(recording, one_element_of_each_parameter_that_backwards_run_on_is_seen_in_every_step)
{
    enum { PARAMETERS = 64, NUMEL = 5000, STEPS = 20 };
    static float weights[PARAMETERS][NUMEL], gradients[PARAMETERS][NUMEL];
    const int64_t numel = NUMEL;
    (void)state;
    for (int changes = 0; changes < 2; changes++) {
        begin();
        for (size_t p = 0; p < PARAMETERS; p++) {
            const cddp_tensor weight =
                cddp_tensor_of(cddp_device_cpu(), weights[p], 0, CDDP_F32, &numel, 1);
            cddp_record_storage(p, &weight, NULL);
        }
        for (uint32_t s = 0; s < STEPS; s++) {
            cddp_record_step_begin(s);
            cddp_record_micro_step(0);
            for (size_t p = 0; p < PARAMETERS; p++) weights[p][p + s] += (float)changes;
            for (size_t p = 0; p < PARAMETERS; p++) {
                const cddp_tensor gradient =
                    cddp_tensor_of(cddp_device_cpu(), gradients[p], 0, CDDP_F32, &numel, 1);
                cddp_record_gradient(p, &gradient);
            }
            for (size_t p = 0; p < PARAMETERS; p++) weights[p][p + s] -= (float)changes;
            step();
        }
        cddp_record_storage_end();
        assert_int_equal(cddp_record_close(CDDP_OK, NULL, NULL), CDDP_OK);
        assert_int_equal(count_steps_with_forwards(), changes * STEPS);
    }
}

TEST(recording, a_group_tells_the_rank_and_what_was_said_before_is_not_its_own)
{
    cddp_rank rank = {&ops, NULL, 2, 4, NULL};
    uint32_t world_size = 0;
    (void)state;
    begin();
    cddp_record_zero_grad(true);
    assert_non_null(cd_record_attach(&rank, NULL));
    step();
    assert_int_equal(cddp_record_close(CDDP_OK, NULL, NULL), CDDP_OK);
    assert_int_equal(take_shard(2, &world_size), 4); /* begin, mark, step, end */
    assert_int_equal(world_size, 4);
    assert_int_equal(take_shard(0, &world_size), 0);
}

TEST(recording, what_a_tracer_says_behind_the_end_of_its_recording_is_nobodys)
{
    cddp_rank rank = {&ops, NULL, 0, 2, NULL};
    uint32_t world_size = 0;
    (void)state;
    begin();
    struct cddp_tracer *tracer = cd_record_attach(&rank, NULL);
    assert_non_null(tracer);
    CD_EMIT(tracer, group, "world", .group = 3, .members = 2);
    /* the group is still there: it takes the recording with it */
    assert_int_equal(cddp_record_close(CDDP_OK, NULL, NULL), CDDP_OK);
    assert_true(cd_recording_is_closing());
    CD_EMIT(tracer, group_close, NULL, .group = 3);
    assert_false(cd_recording_is_closing());
    CD_EMIT(tracer, group, "another", .group = 4, .members = 2);
    cd_tracer_select(tracer, cd_tracer_take_wrapper(tracer) + 1);
    assert_int_equal(take_shard(0, &world_size), 5); /* begin, mark, group, close, end */
}

/* What it recorded as one process has no end, so that nothing is verified. From here on this
** process has made a group that nobody watches. */
TEST(recording, a_group_of_several_behind_the_first_step_is_refused_in_words)
{
    cddp_rank rank = {&ops, NULL, 1, 4, NULL};
    cddp_error err = CDDP_ERROR_INIT;
    uint32_t world_size = 0;
    (void)state;
    begin();
    step();
    assert_null(cd_record_attach(&rank, NULL));
    assert_int_equal(cddp_record_close(CDDP_OK, NULL, &err), CDDP_E_STATE);
    assert_non_null(strstr(err.message, "before the first group, of 4 ranks"));
    assert_int_equal(take_shard(0, &world_size), 3); /* begin, mark, step */
}

/* What goes through a group that nobody watches is missing in the recording. Of a world of one
** there is nothing to miss, and a child process has no group yet. */
TEST(recording, open_behind_a_group_of_several_is_an_error_in_words)
{
    cddp_rank alone = {&ops, NULL, 0, 1, NULL}, one_of_two = {&ops, NULL, 1, 2, NULL};
    cddp_error err = CDDP_ERROR_INIT;
    uint32_t world_size = 0;
    int code = -1;
    (void)state;
    const pid_t child = fork();
    if (child == 0) {
        (void)cd_record_attach(&alone, NULL);
        begin();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_int_equal(code, 0);
    assert_null(cd_record_attach(&one_of_two, NULL));
    assert_int_equal(cddp_record_open(name, NULL, &err), CDDP_E_STATE);
    assert_non_null(strstr(err.message, "comes too late"));
    const pid_t other = fork();
    if (other == 0) {
        begin();
        const bool is_recorded = cd_record_attach(&one_of_two, NULL) != NULL;
        (void)take_shard(1, &world_size);
        _exit(is_recorded ? 0 : 1);
    }
    assert_int_equal(waitpid(other, &code, 0), other);
    assert_int_equal(code, 0);
}

TEST_MAIN()
