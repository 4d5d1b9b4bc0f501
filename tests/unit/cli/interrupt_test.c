/* SPDX-License-Identifier: Apache-2.0 */
/* Ctrl-C before anything can be kept: the program ends at once, in words. */
#define _POSIX_C_SOURCE 200809L
#include "cli/command.h"
#include "cli/interrupt.h"
#include "tests/support/test.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void be_interrupted(int words, bool is_ignored)
{
    signal(SIGINT, is_ignored ? SIG_IGN : SIG_DFL);
    dup2(words, STDERR_FILENO);
    cd_interrupt_at_once();
    raise(SIGINT);
    _exit(0);
}

static int end_of(bool is_ignored, char *words, size_t bytes)
{
    int pipes[2], status = 0;
    assert_int_equal(pipe(pipes), 0);
    const pid_t child = fork();
    if (child == 0) be_interrupted(pipes[1], is_ignored);
    assert_true(child > 0);
    close(pipes[1]);
    const ssize_t said = read(pipes[0], words, bytes - 1);
    words[said > 0 ? said : 0] = '\0';
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

TEST(interrupt, at_once_says_that_there_is_no_verdict)
{
    char words[128];
    assert_int_equal(end_of(false, words, sizeof words), CD_EXIT_INCONCLUSIVE);
    assert_string_equal(words, "cddp-verify: interrupted; there is no verdict\n");
}

/* In the background of a script. */
TEST(interrupt, that_is_ignored_stays_so)
{
    char words[128];
    assert_int_equal(end_of(true, words, sizeof words), 0);
    assert_string_equal(words, "");
}

TEST_MAIN()
