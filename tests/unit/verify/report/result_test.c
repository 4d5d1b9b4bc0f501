/* SPDX-License-Identifier: Apache-2.0 */
/* Results: through a pipe unchanged, and summed up in one exit code. */
#include "tests/unit/verify/report/invented.h"

#include <stdlib.h>

/* A result as a worker sends it; returns owned bytes. */
static unsigned char *send(const cd_result *result, size_t *count)
{
    cd_text text;
    cd_text_init(&text, false);
    cd_result_write(result, &text);
    assert_false(text.failed);
    unsigned char *bytes = malloc(text.length);
    assert_non_null(bytes);
    memcpy(bytes, text.bytes, text.length);
    *count = text.length;
    cd_text_fini(&text);
    return bytes;
}

static void assert_same_report(const cd_result *a, const cd_result *b)
{
    cd_text left, right;
    cd_text_init(&left, false);
    cd_text_init(&right, false);
    cd_report_json(&left, &(cd_report){.results = a, .count = 1, .timings = true});
    cd_report_json(&right, &(cd_report){.results = b, .count = 1, .timings = true});
    assert_string_equal(cd_text_get(&left), cd_text_get(&right));
    cd_text_fini(&left);
    cd_text_fini(&right);
}

TEST(result, a_pipe_carries_every_kind_whole)
{
    cd_result results[INVENTED_COUNT];
    invent(results);
    for (int i = 0; i < INVENTED_COUNT; i++) {
        size_t count = 0;
        cd_result copy;
        cddp_error err = CDDP_ERROR_INIT;
        cd_test_row("%s", results[i].source);
        unsigned char *bytes = send(&results[i], &count);
        cd_result_init(&copy);
        assert_ok(cd_result_read(&copy, bytes, count, &err), &err);
        assert_same_report(&results[i], &copy);
        /* Another process reads it: no text may lie where the writer had it. */
        for (size_t k = 0; k < copy.verdict.finding_count; k++) {
            const cddp_finding *theirs = &results[i].verdict.findings[k];
            const cddp_finding *mine = &copy.verdict.findings[k];
            assert_ptr_not_equal(mine->check, theirs->check);
            if (theirs->name != NULL) assert_ptr_not_equal(mine->name, theirs->name);
            if (theirs->wrapper != NULL) assert_ptr_not_equal(mine->wrapper, theirs->wrapper);
        }
        cd_result_fini(&copy);
        free(bytes);
    }
    disinvent(results);
}

TEST(result, whatever_is_cut_off_is_noticed)
{
    cd_result results[INVENTED_COUNT];
    size_t count = 0;
    invent(results);
    unsigned char *bytes = send(&results[2], &count);
    for (size_t keep = 0; keep < count; keep++) {
        cd_result copy;
        cddp_error err = CDDP_ERROR_INIT;
        cd_test_row("%zu of %zu bytes", keep, count);
        cd_result_init(&copy);
        assert_fails(cd_result_read(&copy, bytes, keep, &err), CDDP_E_CORRUPT, &err,
                     "a worker's result ends");
        cd_result_fini(&copy);
    }
    free(bytes);
    disinvent(results);
}

TEST(result, the_exit_code_is_the_weightiest)
{
    static const struct {
        int codes[3], wanted;
    } cases[] = {{{0, 0, 0}, 0}, {{0, 4, 0}, 4}, {{4, 3, 0}, 3},
                 {{3, 2, 4}, 2}, {{2, 1, 3}, 1}, {{1, 0, 0}, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_result results[3];
        memset(results, 0, sizeof results);
        cd_test_row("%zu", i);
        for (int k = 0; k < 3; k++) results[k].verdict.outcome = (cddp_outcome)cases[i].codes[k];
        assert_int_equal(cd_results_exit_code(results, 3), cases[i].wanted);
    }
}

TEST_MAIN()
