/* SPDX-License-Identifier: Apache-2.0 */
/* What cmocka lacks: tests named as claims that register themselves, table rows named on failure,
** seeds, skips with a reason.
**
**     TEST(heap, equal_times_pop_in_order_of_insertion) { … }
**     TEST_MAIN()
**
** Tests run in the order in which the file and its headers define them. A test that is compiled out
** is absent. Arguments of the executable: --list, --only PATTERN (as cmocka filters), --seed N.
*/
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cddp/alloc.h"
#include "cddp/status.h"

#define TEST(subject, claim)                                                    \
    static void test_##subject##_##claim(void **state);                         \
    __attribute__((constructor)) static void register_##subject##_##claim(void) \
    {                                                                           \
        static cd_test test = {.name = #subject ": " #claim,                    \
                               .run = test_##subject##_##claim,                 \
                               .file = __BASE_FILE__,                           \
                               .place = __COUNTER__};                           \
        cd_test_add(&test);                                                     \
    }                                                                           \
    static void test_##subject##_##claim(__attribute__((unused)) void **state)
#define TEST_MAIN() \
    int main(int argc, char **argv) { return cd_test_main(argc, argv, __FILE__); }

/* A test and its place in the order of the executable. Constructors of one file run in any order,
** so the place decides. */
typedef struct cd_test {
    const char *name;
    CMUnitTestFunction run;
    const char *file;
    int place;
    struct cd_test *next;
} cd_test;
void cd_test_add(cd_test *test); /* borrows for good; called before main */

int cd_test_main(int argc, char **argv, const char *file);

/* The seed of this run: --seed, or CDDP_TEST_SEED, or fixed. Printed when a test fails. */
uint64_t cd_test_seed(void);
/* Ends the whole executable as skipped (77), saying why. */
void cd_test_skip_all(const char *reason);
/* Whether a row of a long table is run: every one in a plain build; under sanitizers, where each
** costs ten times as much, one of three, drawn by CDDP_SEED. */
bool cd_test_draws(size_t row);
/* Names the row of a table-driven test; printed with the next failure. */
void cd_test_row(const char *format, ...) CDDP_PRINTF(1, 2);

/* Asserts success and prints the whole error otherwise. */
#define assert_ok(call, err) cd_test_assert_ok((call), (err), #call, __FILE__, __LINE__)
/* Asserts a failure of this status whose message contains `words`. */
#define assert_fails(call, wanted, err, words) \
    cd_test_assert_fails((call), (wanted), (err), (words), #call, __FILE__, __LINE__)
void cd_test_assert_ok(cddp_status status, const cddp_error *err, const char *call,
                       const char *file, int line);
void cd_test_assert_fails(cddp_status status, cddp_status wanted, const cddp_error *err,
                          const char *words, const char *call, const char *file, int line);

/* The allocation-failure loop: calls body with an allocator that fails its 1st, 2nd, 3rd …
** allocation until body succeeds. After each failure nothing may be live and the status must be
** CDDP_E_NOMEM. body creates, and on success destroys. Returns how many allocations a success
** makes. */
uint64_t cd_test_oom_loop(cddp_status (*body)(const cddp_allocator *allocator, void *argument,
                                              cddp_error *err),
                          void *argument);
