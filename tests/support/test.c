/* SPDX-License-Identifier: Apache-2.0 */
/* The test harness over cmocka. */
#define _POSIX_C_SOURCE 200809L
#include "tests/support/test.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed = 20260101;
static char row[160];
static cd_test *first; /* in the order in which they run */

uint64_t cd_test_seed(void) { return seed; }

void cd_test_skip_all(const char *reason)
{
    printf("skipped: %s\n", reason);
    fflush(stdout);
    exit(77);
}

void cd_test_row(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(row, sizeof row, format, args);
    va_end(args);
}

static void print_context(void)
{
    fprintf(stderr, "cddp: seed %" PRIu64 "%s%s\n", seed, row[0] ? ", row " : "", row);
}

/* By file, then by place in it. */
static bool is_before(const cd_test *a, const cd_test *b)
{
    int order = strcmp(a->file, b->file);
    return order != 0 ? order < 0 : a->place < b->place;
}

void cd_test_add(cd_test *test)
{
    cd_test **at = &first;
    while (*at != NULL && is_before(*at, test)) at = &(*at)->next;
    test->next = *at;
    *at = test;
}

static int run_all(const char *file)
{
    size_t count = 0;
    for (const cd_test *t = first; t != NULL; t = t->next) count++;
    if (count == 0) cd_test_skip_all("every test of this executable is compiled out");
    struct CMUnitTest *tests = calloc(count, sizeof *tests);
    if (tests == NULL) return 1;
    size_t used = 0;
    for (const cd_test *t = first; t != NULL; t = t->next)
        tests[used++] = (struct CMUnitTest){.name = t->name, .test_func = t->run};
    int failed = _cmocka_run_group_tests(file, tests, count, NULL, NULL);
    free(tests);
    if (failed != 0) print_context();
    return failed != 0;
}

int cd_test_main(int argc, char **argv, const char *file)
{
    const char *from_environment = getenv("CDDP_TEST_SEED");
    if (from_environment != NULL) seed = strtoull(from_environment, NULL, 0);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--list") == 0) {
            for (const cd_test *t = first; t != NULL; t = t->next) printf("%s\n", t->name);
            return 0;
        }
        if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            cmocka_set_test_filter(argv[++i]);
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            seed = strtoull(argv[++i], NULL, 0);
        } else {
            fprintf(stderr, "usage: %s [--list] [--only PATTERN] [--seed N]\n", argv[0]);
            return 2;
        }
    }
    return run_all(file);
}

bool cd_test_draws(size_t at)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    const char *drawn = getenv("CDDP_SEED");
    return (at + (drawn != NULL ? strtoull(drawn, NULL, 10) : 0)) % 3 == 0;
#else
    (void)at;
    return true;
#endif
}

void cd_test_assert_ok(cddp_status status, const cddp_error *err, const char *call,
                       const char *file, int line)
{
    if (status == CDDP_OK) return;
    char text[2048] = "";
    if (err != NULL) cd_error_print(err, text, sizeof text);
    print_context();
    print_error("%s returned \"%s\": %s\n", call, cddp_status_text(status), text);
    _fail(file, line);
}

void cd_test_assert_fails(cddp_status status, cddp_status wanted, const cddp_error *err,
                          const char *words, const char *call, const char *file, int line)
{
    if (status == wanted && (words == NULL || err == NULL || strstr(err->message, words) != NULL))
        return;
    print_context();
    print_error("%s returned \"%s\" (\"%s\"), wanted \"%s\" (\"…%s…\")\n", call,
                cddp_status_text(status), err != NULL ? err->message : "", cddp_status_text(wanted),
                words != NULL ? words : "");
    _fail(file, line);
}

uint64_t cd_test_oom_loop(cddp_status (*body)(const cddp_allocator *allocator, void *argument,
                                              cddp_error *err),
                          void *argument)
{
    for (uint64_t n = 1;; n++) {
        cd_watch_allocator watch;
        cd_watch_allocator_init(&watch, NULL);
        watch.fail_at = n;
        cddp_error err = CDDP_ERROR_INIT;
        cddp_status status = body(&watch.table, argument, &err);
        cd_test_row("allocation %" PRIu64 " fails", n);
        if (watch.live_count != 0)
            print_error("%" PRIu64 " blocks left behind\n", watch.live_count);
        assert_int_equal(watch.live_count, 0);
        if (status == CDDP_OK) {
            assert_true(watch.allocation_count < n);
            return watch.allocation_count;
        }
        assert_fails(status, CDDP_E_NOMEM, &err, NULL);
        assert_int_equal(err.status, CDDP_E_NOMEM);
        assert_true(err.message[0] != '\0');
    }
}
