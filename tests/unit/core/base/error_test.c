/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/error.h"

#include "core/base/assert.h"
#include "core/base/os.h"
#include "tests/support/test.h"

#include <signal.h>
#include <string.h>

static cddp_status innermost(cddp_error *err)
{
    return cd_fail(err, CDDP_E_CONFIG, "bucket %d: expected %d gradients, got %d", 3, 4, 5);
}

static cddp_status middle(cddp_error *err)
{
    CD_TRY(innermost(err));
    return CDDP_OK;
}

static cddp_status outermost(cddp_error *err, int *cleaned)
{
    cddp_status status = CDDP_OK;
    CD_TRY_OUT(middle(err));
out:
    (*cleaned)++;
    return status;
}

TEST(error, travels_up_with_a_frame_per_function_and_the_first_message)
{
    cddp_error err = CDDP_ERROR_INIT;
    int cleaned = 0;
    assert_int_equal(outermost(&err, &cleaned), CDDP_E_CONFIG);
    assert_int_equal(cleaned, 1);
    assert_int_equal(err.status, CDDP_E_CONFIG);
    assert_string_equal(err.message, "bucket 3: expected 4 gradients, got 5");
    assert_int_equal(err.frame_count, 3);
    static const char *const functions[] = {"innermost", "middle", "outermost"};
    for (int i = 0; i < 3; i++) assert_string_equal(err.frames[i].function, functions[i]);
}

TEST(error, nobody_needs_to_listen)
{
    int cleaned = 0;
    assert_int_equal(outermost(NULL, &cleaned), CDDP_E_CONFIG);
    cd_error_reset(NULL);
    cd_error_frame(NULL, "f", "g", 1);
}

TEST(error, a_chain_deeper_than_the_frames_keeps_the_innermost)
{
    cddp_error err = CDDP_ERROR_INIT;
    assert_int_equal(innermost(&err), CDDP_E_CONFIG);
    for (int i = 0; i < 20; i++) cd_error_frame(&err, "file.c", "caller", i);
    assert_int_equal(err.frame_count, CDDP_ERROR_FRAMES_MAX);
    assert_string_equal(err.frames[0].function, "innermost");
}

static cddp_status passes_on(int value, cddp_error *err)
{
    return CD_PASS(value != 0 ? innermost(err) : CDDP_OK);
}

TEST(error, a_tail_call_that_fails_leaves_its_frame)
{
    cddp_error err = CDDP_ERROR_INIT;
    assert_int_equal(passes_on(0, &err), CDDP_OK);
    assert_int_equal(err.frame_count, 0);
    assert_int_equal(passes_on(1, &err), CDDP_E_CONFIG);
    assert_int_equal(err.frame_count, 2);
    assert_string_equal(err.frames[1].function, "passes_on");
    assert_int_equal(passes_on(1, NULL), CDDP_E_CONFIG);
}

TEST(error, a_message_may_quote_the_error_it_replaces)
{
    cddp_error err = CDDP_ERROR_INIT;
    assert_int_equal(innermost(&err), CDDP_E_CONFIG);
    assert_int_equal(cddp_error_set(&err, CDDP_E_IO, "while reading: %s", err.message), CDDP_E_IO);
    assert_string_equal(err.message, "while reading: bucket 3: expected 4 gradients, got 5");
    assert_int_equal(err.frame_count, 0);
}

TEST(error, a_long_message_is_cut_and_terminated)
{
    cddp_error err = CDDP_ERROR_INIT;
    char long_name[2 * CDDP_ERROR_MESSAGE_BYTES];
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    assert_int_equal(cddp_error_set(&err, CDDP_E_ARG, "%s", long_name), CDDP_E_ARG);
    assert_int_equal(strlen(err.message), CDDP_ERROR_MESSAGE_BYTES - 1);
}

TEST(error, printing_never_writes_beyond_the_buffer)
{
    cddp_error err = CDDP_ERROR_INIT;
    int cleaned = 0;
    assert_int_equal(outermost(&err, &cleaned), CDDP_E_CONFIG);
    for (size_t bytes = 0; bytes < 300; bytes++) {
        char text[301];
        memset(text, '#', sizeof text);
        cd_error_print(&err, text, bytes);
        assert_int_equal(text[bytes], '#');
        if (bytes > 0) assert_non_null(memchr(text, '\0', bytes));
    }
    char whole[1024];
    cd_error_print(&err, whole, sizeof whole);
    /* A compiler's cache may write the path as it sees it from the build folder. */
    assert_non_null(strstr(whole, "bucket 3: expected 4 gradients, got 5\n  at innermost ("));
    assert_non_null(strstr(whole, "tests/unit/core/base/error_test.c:"));
}

TEST(error, every_status_has_its_own_words)
{
    for (int i = 0; i < CDDP_STATUS_COUNT; i++) {
        assert_true(strlen(cddp_status_text((cddp_status)i)) > 1);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(cddp_status_text((cddp_status)i),
                                    cddp_status_text((cddp_status)k));
    }
    assert_string_equal(cddp_status_text((cddp_status)9999), "unknown status");
}

static int breaks_an_assertion(void *argument, int write_fd)
{
    (void)argument;
    (void)write_fd;
    signal(SIGABRT, SIG_DFL); /* the harness catches it otherwise */
    int two = 2;
    CD_ASSERT(two + two == 4);
    CD_ASSERT(two + two == 5);
    return 0;
}

TEST(assertion, a_broken_one_prints_itself_and_aborts)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_os_child child = CD_OS_CHILD_NONE;
    assert_ok(cd_os_child_open(&child, breaks_an_assertion, NULL, &err), &err);
    char text[1024];
    size_t used = 0;
    while (child.fds[CD_OS_PIPE_STDERR] >= 0) {
        size_t n;
        assert_ok(cd_os_children_wait(&child, 1, 1000000000, &err), &err);
        assert_ok(cd_os_child_read(&child, CD_OS_PIPE_STDERR, text + used, sizeof text - 1 - used,
                                   &n, &err),
                  &err);
        used += n;
        /* Its other pipes end too; they are read so that waiting goes on for this one. */
        char ignored[16];
        assert_ok(cd_os_child_read(&child, CD_OS_PIPE_STDOUT, ignored, sizeof ignored, &n, &err),
                  &err);
        assert_ok(cd_os_child_read(&child, CD_OS_PIPE_RESULT, ignored, sizeof ignored, &n, &err),
                  &err);
    }
    text[used] = '\0';
    int exit_code = 0, signal_number = 0;
    while (!cd_os_child_poll(&child, &exit_code, &signal_number)) cd_os_sleep_ns(1000000);
    assert_int_equal(signal_number, SIGABRT);
    assert_non_null(strstr(text, "assertion `two + two == 5` failed in breaks_an_assertion"));
    assert_non_null(strstr(text, "tests/unit/core/base/error_test.c"));
    cd_os_child_close(&child);
}

TEST_MAIN()
