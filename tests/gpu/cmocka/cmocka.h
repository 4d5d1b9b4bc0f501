/* SPDX-License-Identifier: Apache-2.0 */
/* The part of cmocka that tests/support uses, for GPU machines without cmocka: a list of tests,
** each ended by its first failed assertion. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef void (*CMUnitTestFunction)(void **state);
typedef int (*CMFixtureFunction)(void **state);
struct CMUnitTest {
    const char *name;
    CMUnitTestFunction test_func;
    CMFixtureFunction setup_func, teardown_func;
    void *initial_state;
};

int _cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t count,
                            CMFixtureFunction setup, CMFixtureFunction teardown);
void cmocka_set_test_filter(const char *pattern);
void _fail(const char *file, int line) __attribute__((noreturn));
void _skip(const char *file, int line) __attribute__((noreturn));
void print_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void print_message(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define skip() _skip(__FILE__, __LINE__)
#define fail_msg(...)              \
    do {                           \
        print_error(__VA_ARGS__);  \
        print_error("\n");         \
        _fail(__FILE__, __LINE__); \
    } while (0)
#define assert_true(condition)                        \
    do {                                              \
        if (!(condition)) fail_msg("%s", #condition); \
    } while (0)
#define assert_false(condition) assert_true(!(condition))
#define assert_int_equal(a, b)                                                              \
    do {                                                                                    \
        unsigned long long left = (unsigned long long)(a), right = (unsigned long long)(b); \
        if (left != right) fail_msg("%s is 0x%llx, %s is 0x%llx", #a, left, #b, right);     \
    } while (0)
#define assert_int_not_equal(a, b) assert_true((unsigned long long)(a) != (unsigned long long)(b))
#define assert_null(p) assert_true((p) == NULL)
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_ptr_equal(a, b) assert_true((a) == (b))
#define assert_ptr_not_equal(a, b) assert_true((a) != (b))
