/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of processes: results in order, whatever workers do. */
#define _POSIX_C_SOURCE 200809L
#include "core/base/crew.h"

#include "core/base/error.h"
#include "core/base/os.h"
#include "tests/support/test.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define TASKS 12
#define MS UINT64_C(1000000)
#define LARGE_BYTES (1u << 20) /* sixteen times what a pipe takes */

typedef struct job {
    cd_crew_options options;
    char taken[TASKS][48]; /* what `take` saw of each task */
    size_t taken_count;
    size_t last; /* the task that is the last; SIZE_MAX: none */
    char printed[256];
    size_t progress_count;
} job;

static cddp_status take(void *context, const cd_crew_end *end, bool *is_last, cddp_error *err)
{
    job *j = context;
    (void)err;
    assert_int_equal(end->task, j->taken_count);
    if (!end->is_whole && end->is_late)
        snprintf(j->taken[end->task], 48, "late");
    else if (!end->is_whole)
        snprintf(j->taken[end->task], 48, "died %d %d", end->exit_code, end->signal_number);
    else if (end->status != CDDP_OK)
        snprintf(j->taken[end->task], 48, "error %.40s", end->message);
    else if (end->byte_count > 40)
        snprintf(j->taken[end->task], 48, "%zu bytes", end->byte_count);
    else
        snprintf(j->taken[end->task], 48, "%s", end->bytes);
    j->taken_count++;
    *is_last = end->task == j->last;
    return CDDP_OK;
}

static void keep_output(void *context, const char *bytes, size_t byte_count)
{
    job *j = context;
    size_t used = strlen(j->printed);
    snprintf(j->printed + used, sizeof j->printed - used, "%.*s", (int)byte_count, bytes);
}

static void count_progress(void *context, size_t taken)
{
    (void)taken;
    ((job *)context)->progress_count++;
}

static cddp_status say_number(void *context, size_t task, cd_text *result, cddp_error *err)
{
    (void)context, (void)err;
    /* Later tasks end first. */
    cd_os_sleep_ns((TASKS - task) * 2 * MS);
    cd_text_printf(result, "task %zu", task);
    return CDDP_OK;
}

static void job_init(job *j, uint32_t workers)
{
    *j = (job){.last = SIZE_MAX};
    j->options = (cd_crew_options){.task_count = TASKS,
                                   .worker_count = workers,
                                   .context = j,
                                   .work = say_number,
                                   .take = take};
}

static void assert_no_child_is_left(void) { assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); }

TEST(crew, results_come_in_the_order_of_the_tasks_whatever_the_number_of_workers)
{
    static const uint32_t workers[] = {1, 2, 5, TASKS, 40};
    for (size_t i = 0; i < sizeof workers / sizeof workers[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_crew_count count;
        job j;
        cd_test_row("%u workers", workers[i]);
        job_init(&j, workers[i]);
        j.options.progress = count_progress;
        assert_ok(cd_crew_run(&j.options, &count, &err), &err);
        assert_int_equal(count.begun, TASKS);
        assert_int_equal(count.taken, TASKS);
        assert_int_equal(j.taken_count, TASKS);
        assert_true(j.progress_count > 0);
        for (size_t t = 0; t < TASKS; t++) {
            char wanted[16];
            snprintf(wanted, sizeof wanted, "task %zu", t);
            assert_string_equal(j.taken[t], wanted);
        }
        assert_no_child_is_left();
    }
}

TEST(crew, no_task_is_no_work)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_crew_count count = {1, 1};
    job j;
    job_init(&j, 3);
    j.options.task_count = 0;
    assert_ok(cd_crew_run(&j.options, &count, &err), &err);
    assert_int_equal(count.begun + count.taken, 0);
}

/* ---- workers that do not come back ---- */

static cddp_status die_somehow(void *context, size_t task, cd_text *result, cddp_error *err)
{
    switch (task) {
    case 1:
        raise(SIGKILL);
        break;
    case 2:
        _exit(7);
    case 3:
        return cd_fail(err, CDDP_E_LIMIT, "too much of task %zu", task);
    default:
        break;
    }
    return say_number(context, task, result, err);
}

TEST(crew, a_worker_that_dies_is_the_result_of_its_task_alone)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_crew_count count;
    job j;
    job_init(&j, 3);
    j.options.task_count = 4;
    j.options.work = die_somehow;
    assert_ok(cd_crew_run(&j.options, &count, &err), &err);
    assert_string_equal(j.taken[0], "task 0");
    assert_string_equal(j.taken[1], "died 0 9");
    assert_string_equal(j.taken[2], "died 7 0");
    assert_string_equal(j.taken[3], "error too much of task 3");
    assert_no_child_is_left();
}

static cddp_status die_first_of_many(void *context, size_t task, cd_text *result, cddp_error *err)
{
    (void)context, (void)result, (void)err;
    if (task == 2) _exit(7);
    while (true) cd_os_sleep_ns(1000 * MS); /* until the crew stops it */
    return CDDP_OK;
}

TEST(crew, where_every_worker_is_needed_the_first_death_ends_the_others_at_once)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_crew_count count;
    job j;
    job_init(&j, 4);
    j.options.work = die_first_of_many;
    j.options.needed = "tried";
    assert_int_equal(cd_crew_run(&j.options, &count, &err), CDDP_E_STATE);
    assert_string_equal(err.message, "a process that tried ended early (code 7, signal 0)");
    assert_int_equal(j.taken_count, 0);
    assert_no_child_is_left();
}

static cddp_status die_from_outside(void *context, size_t task, cd_text *result, cddp_error *err)
{
    (void)result, (void)err;
    if (task == 2) raise(*(const int *)context);
    while (true) cd_os_sleep_ns(1000 * MS); /* until the crew stops it */
    return CDDP_OK;
}

/* Who was killed, by somebody or for want of memory, says nothing about what it tried. */
TEST(crew, a_death_from_outside_is_a_shortage_and_no_defect)
{
    static const int signals[] = {SIGKILL, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_crew_count count;
        job j;
        int number = signals[i];
        job_init(&j, 4);
        j.options.work = die_from_outside;
        j.options.context = &number;
        j.options.needed = "tried";
        assert_int_equal(cd_crew_run(&j.options, &count, &err), CDDP_E_NOMEM);
        assert_non_null(strstr(err.message, "a process that tried was ended from outside"));
        assert_no_child_is_left();
    }
}

TEST(crew, only_a_signal_that_nobody_here_sent_comes_from_outside)
{
    cddp_error err = CDDP_ERROR_INIT;
    const cd_crew_end crash = {.signal_number = SIGSEGV}, left = {.exit_code = 9},
                      late = {.signal_number = SIGKILL, .is_late = true},
                      done = {.signal_number = SIGKILL, .is_whole = true};
    assert_ok(cd_crew_check_outside(&crash, "it", &err), &err);
    assert_ok(cd_crew_check_outside(&left, "it", &err), &err);
    assert_ok(cd_crew_check_outside(&late, "it", &err), &err);
    assert_ok(cd_crew_check_outside(&done, "it", &err), &err);
}

TEST(crew, where_every_worker_is_needed_its_error_is_the_error_of_the_whole)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_crew_count count;
    job j;
    job_init(&j, 4);
    j.options.work = die_somehow;
    j.options.needed = "tried";
    j.options.task_count = 4;
    const cddp_status status = cd_crew_run(&j.options, &count, &err);
    assert_true(status == CDDP_E_NOMEM || status == CDDP_E_STATE || status == CDDP_E_LIMIT);
    assert_no_child_is_left();
}

static cddp_status send_much(void *context, size_t task, cd_text *result, cddp_error *err)
{
    (void)context, (void)task, (void)err;
    for (size_t i = 0; i < LARGE_BYTES / 64; i++)
        cd_text_push(result, "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
    return CDDP_OK;
}

TEST(crew, a_result_larger_than_a_pipe_arrives_whole)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_crew_count count;
    job j;
    job_init(&j, 3);
    j.options.work = send_much;
    assert_ok(cd_crew_run(&j.options, &count, &err), &err);
    for (size_t t = 0; t < TASKS; t++) assert_string_equal(j.taken[t], "1048576 bytes");
}

static cddp_status print_too_much(void *context, size_t task, cd_text *result, cddp_error *err)
{
    for (size_t i = 0; i < LARGE_BYTES / 8; i++) fputs("printed ", stdout);
    return say_number(context, task, result, err);
}

TEST(crew, what_a_worker_prints_fills_no_pipe_and_is_passed_on_or_dropped)
{
    for (int passes = 0; passes < 2; passes++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_crew_count count;
        job j;
        job_init(&j, 3);
        j.options.work = print_too_much;
        j.options.task_count = 3;
        j.options.output = passes ? keep_output : NULL;
        assert_ok(cd_crew_run(&j.options, &count, &err), &err);
        assert_int_equal(j.taken_count, 3);
        assert_int_equal(strncmp(j.printed, "printed ", 8) == 0, passes);
    }
}

static cddp_status die_while_sending(void *context, size_t task, cd_text *result, cddp_error *err)
{
    const struct itimerval soon = {.it_value = {.tv_usec = 2000}};
    if (task != 1) return say_number(context, task, result, err);
    /* Sending takes longer than the two milliseconds until SIGALRM. */
    for (size_t i = 0; i < 64; i++) CD_TRY(send_much(context, task, result, err));
    setitimer(ITIMER_REAL, &soon, NULL);
    return CDDP_OK;
}

TEST(crew, a_record_of_which_a_part_arrived_is_none)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_crew_count count;
    job j;
    job_init(&j, 1);
    j.options.task_count = 2;
    j.options.work = die_while_sending;
    assert_ok(cd_crew_run(&j.options, &count, &err), &err);
    assert_string_equal(j.taken[0], "task 0");
    assert_string_equal(j.taken[1], "died 0 14");
}

/* ---- ends ---- */

TEST(crew, tasks_behind_the_last_one_do_not_count_and_their_workers_are_stopped)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_crew_count count;
    job j;
    job_init(&j, 2);
    j.last = 3;
    assert_ok(cd_crew_run(&j.options, &count, &err), &err);
    assert_int_equal(count.taken, 4);
    assert_int_equal(j.taken_count, 4);
    assert_true(count.begun >= 4 && count.begun < TASKS);
    assert_no_child_is_left();
}

static bool say_yes_after_a_while(void)
{
    static uint64_t began; /* of this process: a test is one */
    if (began == 0) began = cd_os_now_ns();
    return cd_os_now_ns() - began > 150 * MS;
}

static cddp_status hang(void *context, size_t task, cd_text *result, cddp_error *err)
{
    (void)context, (void)result, (void)err;
    if (task > 0)
        for (;;) cd_os_sleep_ns(1000 * MS);
    return CDDP_OK;
}

TEST(crew, a_worker_that_hangs_is_stopped_when_the_crew_is_interrupted)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_crew_count count;
    job j;
    job_init(&j, 3);
    j.options.work = hang;
    j.options.interrupted = say_yes_after_a_while;
    const uint64_t began = cd_os_now_ns();
    assert_ok(cd_crew_run(&j.options, &count, &err), &err);
    assert_true(cd_os_now_ns() - began < 20000 * MS);
    assert_int_equal(count.taken, 1);
    assert_no_child_is_left();
}

static bool say_yes_to_all_but_the_first_three(void)
{
    static uint32_t asked;
    return asked++ >= 4;
}

static cddp_status hang_in_the_second(void *context, size_t task, cd_text *result, cddp_error *err)
{
    (void)context, (void)err;
    while (task == 1) cd_os_sleep_ns(MS);
    cd_text_push(result, "well");
    return CDDP_OK;
}

TEST(crew, a_worker_that_takes_too_long_is_stopped_and_the_others_are_not)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_crew_count count;
    job j;
    job_init(&j, 2);
    j.options.task_count = 3;
    j.options.work = hang_in_the_second;
    j.options.limit_ns = 300 * MS;
    assert_ok(cd_crew_run(&j.options, &count, &err), &err);
    assert_int_equal(count.taken, 3);
    assert_string_equal(j.taken[0], "well");
    assert_string_equal(j.taken[1], "late");
    assert_string_equal(j.taken[2], "well");
}

TEST(crew, workers_of_an_interrupted_crew_that_drains_end_by_themselves)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_crew_count count;
    job j;
    job_init(&j, 3);
    j.options.interrupted = say_yes_to_all_but_the_first_three;
    j.options.drains = true;
    assert_ok(cd_crew_run(&j.options, &count, &err), &err);
    assert_true(count.begun > 0 && count.begun <= 4);
    assert_int_equal(count.taken, count.begun);
    assert_no_child_is_left();
}

static volatile sig_atomic_t is_asked;
static void note_question(int signal_number)
{
    (void)signal_number;
    is_asked = 1;
}

static size_t begun_before;
static bool say_yes_once_two_have_begun(void) { return begun_before > 0; }
static void note_begun(void *context, size_t taken)
{
    (void)context, (void)taken;
    begun_before++;
}

static cddp_status work_until_asked(void *context, size_t task, cd_text *result, cddp_error *err)
{
    (void)context, (void)task, (void)err;
    while (!is_asked) cd_os_sleep_ns(MS);
    cd_text_push(result, "asked");
    return CDDP_OK;
}

TEST(crew, workers_of_an_interrupted_crew_that_drains_are_asked_to_end)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_crew_count count;
    job j;
    job_init(&j, 2);
    signal(SIGUSR1, note_question);
    j.options.work = work_until_asked;
    j.options.progress = note_begun;
    j.options.interrupted = say_yes_once_two_have_begun;
    j.options.drains = true;
    assert_ok(cd_crew_run(&j.options, &count, &err), &err);
    assert_int_equal(count.begun, 2);
    assert_int_equal(count.taken, 2);
    for (size_t t = 0; t < 2; t++) assert_string_equal(j.taken[t], "asked");
    assert_no_child_is_left();
}

/* ---- what cannot be begun ---- */

TEST(crew, a_worker_that_cannot_be_started_ends_those_that_were)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_crew_count count;
    struct rlimit before, low;
    job j;
    job_init(&j, 8);
    j.options.work = die_first_of_many;
    j.options.task_count = 8;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = 16; /* pipes for three or four */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    const cddp_status status = cd_crew_run(&j.options, &count, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(status, CDDP_E_NOMEM);
    assert_non_null(strstr(err.message, "cannot make a pipe"));
    assert_true(count.begun > 0 && count.begun < 8);
    assert_int_equal(j.taken_count, 0);
    assert_no_child_is_left();
}

static cddp_status refuse(void *context, const cd_crew_end *end, bool *is_last, cddp_error *err)
{
    (void)context, (void)is_last;
    return cd_fail(err, CDDP_E_CORRUPT, "task %zu is not wanted", end->task);
}

TEST(crew, an_error_of_whoever_takes_results_ends_all)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_crew_count count;
    job j;
    job_init(&j, 3);
    j.options.take = refuse;
    assert_int_equal(cd_crew_run(&j.options, &count, &err), CDDP_E_CORRUPT);
    assert_string_equal(err.message, "task 0 is not wanted");
    assert_int_equal(count.taken, 0);
    assert_no_child_is_left();
}

TEST_MAIN()
