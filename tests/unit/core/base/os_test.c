/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700
#define _DEFAULT_SOURCE /* flock */
#include "core/base/os.h"
#include "core/base/os_folder.h"

#include "core/base/error.h"
#include "tests/support/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

TEST(os, the_clock_goes_forward_and_sleeping_takes_as_long_as_asked)
{
    uint64_t before = cd_os_now_ns();
    cd_os_sleep_ns(5 * MS);
    assert_true(cd_os_now_ns() - before >= 5 * MS);
    assert_true(cd_os_core_count() >= 1);
    assert_int_equal(cd_os_process_id(), getpid());
    assert_string_equal(cd_os_signal_text(SIGKILL), "SIGKILL");
    assert_non_null(cd_os_signal_text(12345));
}

static int writes_and_leaves(void *argument, int write_fd)
{
    unsigned char *shared = argument;
    shared[0] = 77;
    if (write(write_fd, "result", 6) != 6) return 1;
    fputs("out", stdout);
    fputs("err", stderr);
    return 42;
}

/* Reads all pipes of a child to their ends. */
static void read_all(cd_os_child *child, char texts[CD_OS_PIPE_COUNT][64])
{
    cddp_error err = CDDP_ERROR_INIT;
    size_t used[CD_OS_PIPE_COUNT] = {0};
    bool open = true;
    while (open) {
        assert_ok(cd_os_children_wait(child, 1, 1000 * MS, &err), &err);
        open = false;
        for (cd_os_pipe p = 0; p < CD_OS_PIPE_COUNT; p++) {
            size_t n;
            assert_ok(cd_os_child_read(child, p, texts[p] + used[p], 63 - used[p], &n, &err), &err);
            used[p] += n;
            texts[p][used[p]] = '\0';
            open |= child->fds[p] >= 0;
        }
    }
}

TEST(os_shared_file, is_one_memory_for_all_who_open_it)
{
    cddp_error err = CDDP_ERROR_INIT;
    char path[] = "/tmp/cddp-shared-XXXXXX";
    void *one = NULL, *other = NULL;
    const int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    close(fd);
    assert_ok(cd_os_shared_file_open(path, 5000, &one, &err), &err);
    assert_ok(cd_os_shared_file_open(path, 5000, &other, &err), &err);
    assert_int_equal(((unsigned char *)one)[4999], 0);
    ((unsigned char *)one)[4999] = 7;
    assert_int_equal(((unsigned char *)other)[4999], 7);
    cd_os_shared_close(one, 5000);
    cd_os_shared_close(other, 5000);
    unlink(path);
    one = NULL;
    assert_int_equal(cd_os_shared_file_open("/nowhere/at/all", 5000, &one, &err), CDDP_E_IO);
    assert_null(one);
}

TEST(os_child, its_pipes_its_exit_code_and_shared_memory_reach_us)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_os_child child = CD_OS_CHILD_NONE;
    void *shared = NULL;
    assert_ok(cd_os_shared_open(100, &shared, &err), &err);
    assert_int_equal(((unsigned char *)shared)[99], 0);
    assert_ok(cd_os_child_open(&child, writes_and_leaves, shared, &err), &err);
    char texts[CD_OS_PIPE_COUNT][64];
    read_all(&child, texts);
    int exit_code = -1, signal_number = -1;
    while (!cd_os_child_poll(&child, &exit_code, &signal_number)) cd_os_sleep_ns(MS);
    assert_int_equal(exit_code, 42);
    assert_int_equal(signal_number, 0);
    assert_string_equal(texts[CD_OS_PIPE_RESULT], "result");
    assert_string_equal(texts[CD_OS_PIPE_STDOUT], "out");
    assert_string_equal(texts[CD_OS_PIPE_STDERR], "err");
    assert_int_equal(((unsigned char *)shared)[0], 77);
    assert_true(cd_os_child_poll(&child, &exit_code, &signal_number)); /* again: it stays ended */
    cd_os_child_close(&child);
    cd_os_child_close(&child);
    cd_os_shared_close(shared, 100);
    cd_os_shared_close(NULL, 0);
}

static int waits_for_ever(void *argument, int write_fd)
{
    (void)argument;
    (void)write_fd;
    while (cd_os_now_ns() != 0) cd_os_sleep_ns(1000 * MS);
    return 0;
}

TEST(os_child, waiting_ends_at_the_time_out_and_a_kill_is_seen_as_one)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_os_child child = CD_OS_CHILD_NONE;
    assert_ok(cd_os_child_open(&child, waits_for_ever, NULL, &err), &err);
    uint64_t before = cd_os_now_ns();
    assert_ok(cd_os_children_wait(&child, 1, 20 * MS, &err), &err);
    assert_true(cd_os_now_ns() - before >= 19 * MS);
    int exit_code = -1, signal_number = -1;
    assert_false(cd_os_child_poll(&child, &exit_code, &signal_number));
    cd_os_child_kill(&child);
    while (!cd_os_child_poll(&child, &exit_code, &signal_number)) cd_os_sleep_ns(MS);
    assert_int_equal(signal_number, SIGKILL);
    cd_os_child_close(&child);
}

TEST(os_child, closing_kills_what_still_runs)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_os_child child = CD_OS_CHILD_NONE;
    assert_ok(cd_os_child_open(&child, waits_for_ever, NULL, &err), &err);
    pid_t process = (pid_t)child.process;
    cd_os_child_close(&child);
    assert_int_equal(kill(process, 0), -1);
}

typedef struct refuge {
    bool dies;  /* who is sheltered; else it ends well */
    int wanted; /* how often the shelter hears that it is */
} refuge;

static bool is_wanted(void *context) { return ((refuge *)context)->wanted-- > 0; }

static int sheltered(void *argument, int write_fd)
{
    cddp_error err = CDDP_ERROR_INIT;
    refuge *r = argument;
    (void)write_fd;
    if (cd_os_shelter(is_wanted, r, &err) != CDDP_OK) return 3;
    if (r->dies) raise(SIGKILL);
    return 0;
}

TEST(os_child, a_shelter_ends_with_what_it_shelters_unless_that_ended_in_disorder)
{
    cddp_error err = CDDP_ERROR_INIT;
    int exit_code = -1, signal_number = -1;
    refuge r = {.wanted = 1000};
    cd_os_child child = CD_OS_CHILD_NONE;
    assert_ok(cd_os_child_open(&child, sheltered, &r, &err), &err);
    while (!cd_os_child_poll(&child, &exit_code, &signal_number)) cd_os_sleep_ns(MS);
    assert_int_equal(exit_code, 0);
    cd_os_child_close(&child);
    r.dies = true;
    assert_ok(cd_os_child_open(&child, sheltered, &r, &err), &err);
    for (int i = 0; i < 30; i++) {
        assert_false(cd_os_child_poll(&child, &exit_code, &signal_number));
        cd_os_sleep_ns(10 * MS);
    }
    cd_os_child_close(&child);
}

TEST(os_child, a_shelter_that_nobody_wants_any_more_ends)
{
    cddp_error err = CDDP_ERROR_INIT;
    int exit_code = -1, signal_number = -1;
    refuge r = {.dies = true, .wanted = 2};
    cd_os_child child = CD_OS_CHILD_NONE;
    const uint64_t before = cd_os_now_ns();
    assert_ok(cd_os_child_open(&child, sheltered, &r, &err), &err);
    while (!cd_os_child_poll(&child, &exit_code, &signal_number)) cd_os_sleep_ns(MS);
    assert_int_equal(exit_code, 1);
    assert_true(cd_os_now_ns() - before >= 199 * MS); /* it was wanted twice */
    cd_os_child_close(&child);
}

TEST(os, a_process_is_stopped_from_its_signal_to_go_on)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_os_child child = CD_OS_CHILD_NONE;
    assert_false(cd_os_process_is_stopped(0));
    assert_false(cd_os_process_is_running(0));
    assert_true(cd_os_process_is_running(cd_os_process_id()));
    assert_ok(cd_os_child_open(&child, waits_for_ever, NULL, &err), &err);
    assert_false(cd_os_process_is_stopped(child.process));
#if defined(__linux__)
    assert_int_equal(kill((pid_t)child.process, SIGSTOP), 0);
    while (!cd_os_process_is_stopped(child.process)) cd_os_sleep_ns(MS);
    assert_int_equal(kill((pid_t)child.process, SIGCONT), 0);
    while (cd_os_process_is_stopped(child.process)) cd_os_sleep_ns(MS);
#endif
    cd_os_child_close(&child);
    assert_false(cd_os_process_is_stopped(child.process));
}

TEST(os, writing_to_a_closed_descriptor_is_an_error_with_the_systems_words)
{
    cddp_error err = CDDP_ERROR_INIT;
    assert_fails(cd_os_write_all(-1, "x", 1, &err), CDDP_E_IO, &err, "Bad file descriptor");
}

/* ---- folders of runs ---- */

static void make_leftover(const char *where, const char *name)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", where, name);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/%s/.owner", where, name);
    fclose(fopen(path, "w"));
    snprintf(path, sizeof path, "%s/%s/inner", where, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

static bool is_there(const char *where, const char *name)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", where, name);
    return access(path, F_OK) == 0;
}

TEST(os_folder, the_next_run_removes_what_a_killed_one_left)
{
    char where[] = "/tmp/cddp-folders-XXXXXX", command[64];
    cddp_error err = CDDP_ERROR_INIT;
    cd_os_folder first = {.path = ""}, second = {.path = ""};
    assert_non_null(mkdtemp(where));
    make_leftover(where, "cddp-x-killed");
    make_leftover(where, "cddp-xy-other");
    assert_ok(cd_os_folder_open(&first, where, "cddp-x", &err), &err);
    assert_false(is_there(where, "cddp-x-killed"));
    assert_true(is_there(where, "cddp-xy-other"));
    /* a live one stays, also for a second run of the same process */
    assert_ok(cd_os_folder_open(&second, where, "cddp-x", &err), &err);
    assert_int_equal(access(first.path, F_OK), 0);
    cd_os_folder_close(&second);
    assert_int_equal(access(second.path, F_OK), -1);
    assert_int_equal(access(first.path, F_OK), 0);
    /* a child that lives on keeps it */
    int stop[2];
    assert_int_equal(pipe(stop), 0);
    const pid_t child = fork();
    if (child == 0) {
        char byte;
        close(stop[1]);
        _exit(read(stop[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(first.lock); /* as if this process had been killed */
    assert_ok(cd_os_folder_open(&second, where, "cddp-x", &err), &err);
    assert_int_equal(access(first.path, F_OK), 0);
    cd_os_folder_close(&second);
    close(stop[1]);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_ok(cd_os_folder_open(&second, where, "cddp-x", &err), &err);
    assert_int_equal(access(first.path, F_OK), -1);
    cd_os_folder_close(&second);
    /* killed before its folder had an owner: removed, unless somebody makes one just now */
    snprintf(command, sizeof command, "%s/cddp-x-unowned", where);
    assert_int_equal(mkdir(command, 0700), 0);
    const int maker = open(where, O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(maker, LOCK_SH), 0);
    assert_ok(cd_os_folder_open(&second, where, "cddp-x", &err), &err);
    cd_os_folder_close(&second);
    assert_true(is_there(where, "cddp-x-unowned"));
    close(maker);
    assert_ok(cd_os_folder_open(&second, where, "cddp-x", &err), &err);
    cd_os_folder_close(&second);
    assert_false(is_there(where, "cddp-x-unowned"));
    snprintf(command, sizeof command, "rm -rf %s", where);
    assert_int_equal(system(command), 0);
}

TEST(os_folder, a_relative_place_becomes_absolute_and_a_missing_one_is_named)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_os_folder folder = {.path = ""};
    assert_ok(cd_os_folder_open(&folder, ".", "cddp-relative", &err), &err);
    assert_int_equal(folder.path[0], '/');
    cd_os_folder_close(&folder);
    assert_fails(cd_os_folder_open(&folder, "/no/such/place", "cddp-x", &err), CDDP_E_IO, &err,
                 "/no/such/place");
}

TEST_MAIN()
