/* SPDX-License-Identifier: Apache-2.0 */
/* Running a list of tests. */
#include "tests/gpu/cmocka/cmocka.h"

#include <fnmatch.h>
#include <stdio.h>

static jmp_buf end_of_test;
static const char *filter;

void cmocka_set_test_filter(const char *pattern) { filter = pattern; }

void print_error(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
}

void print_message(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
}

void _fail(const char *file, int line)
{
    print_error("%s:%d: failed\n", file, line);
    longjmp(end_of_test, 1);
}

void _skip(const char *file, int line)
{
    (void)file;
    (void)line;
    longjmp(end_of_test, 2);
}

int _cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t count,
                            CMFixtureFunction setup, CMFixtureFunction teardown)
{
    static const char *const words[] = {"      OK", " FAILED ", " SKIPPED"};
    volatile int failed = 0, ran = 0;
    (void)group;
    (void)setup;
    (void)teardown;
    for (volatile size_t i = 0; i < count; i++) {
        if (filter != NULL && fnmatch(filter, tests[i].name, 0) != 0) continue;
        void *state = tests[i].initial_state;
        printf("[ RUN      ] %s\n", tests[i].name);
        fflush(stdout);
        int how = setjmp(end_of_test);
        if (how == 0) tests[i].test_func(&state);
        printf("[ %s ] %s\n", words[how], tests[i].name);
        failed += how == 1;
        ran++;
    }
    printf("%d of %d tests passed\n", ran - failed, ran);
    fflush(stdout);
    return failed;
}
