/* SPDX-License-Identifier: Apache-2.0 */
#include "core/run/verdict.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    const char *sets[6];     /* key, value, … of the plan */
    const char *findings[2]; /* checks that reported, in order */
    const char *error;       /* how rank 1 failed, or NULL */
    cddp_outcome outcome;
    bool as_expected;
} cases[] = {
    /* clang-format off */
    {"nothing special", {NULL}, {NULL}, NULL, CDDP_OUTCOME_VERIFIED, false},
    {"a finding", {NULL}, {"I-USED"}, NULL, CDDP_OUTCOME_FINDINGS, false},
    {"a failed rank", {NULL}, {NULL}, "out of luck", CDDP_OUTCOME_FINDINGS, false},
    {"a claim that was not exercised", {"expect.exercised", "I-BUFEQ"}, {NULL}, NULL, CDDP_OUTCOME_INCONCLUSIVE, false},
    {"a mark that was not reached", {"expect.marks", "overflow"}, {NULL}, NULL, CDDP_OUTCOME_INCONCLUSIVE, false},
    /* clang-format on */
    {"the expected finding",
     {"expect.verdict", "findings", "expect.finding.0.check", "I-USED"},
     {"I-USED"},
     NULL,
     CDDP_OUTCOME_VERIFIED,
     true},
    {"another finding",
     {"expect.verdict", "findings", "expect.finding.0.check", "I-USED"},
     {"I-REF"},
     NULL,
     CDDP_OUTCOME_FINDINGS,
     false},
    {"the expected finding, but not first",
     {"expect.verdict", "findings", "expect.finding.0.check", "I-USED", "expect.also", "I-REF"},
     {"I-REF", "I-USED"},
     NULL,
     CDDP_OUTCOME_FINDINGS,
     false},
    {"one finding too many",
     {"expect.verdict", "findings", "expect.finding.0.check", "I-USED"},
     {"I-USED", "I-REF"},
     NULL,
     CDDP_OUTCOME_FINDINGS,
     false},
    {"a consequence that is allowed",
     {"expect.verdict", "findings", "expect.finding.0.check", "I-USED", "expect.also", "I-REF"},
     {"I-USED", "I-REF"},
     NULL,
     CDDP_OUTCOME_VERIFIED,
     true},
    {"the expected error",
     {"expect.verdict", "error", "expect.error", "of luck"},
     {NULL},
     "out of luck",
     CDDP_OUTCOME_VERIFIED,
     true},
    {"another error",
     {"expect.verdict", "error", "expect.error", "of memory"},
     {NULL},
     "out of luck",
     CDDP_OUTCOME_FINDINGS,
     false},
    {"no error where one was expected",
     {"expect.verdict", "error", "expect.error", "of luck"},
     {NULL},
     NULL,
     CDDP_OUTCOME_FINDINGS,
     false},
};

static void measure_case(size_t i)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    cd_arena arena;
    cddp_finding findings[2] = {{.size = sizeof(cddp_finding), .rank = 1},
                                {.size = sizeof(cddp_finding), .rank = 1}};
    const cddp_exercise exercise = {"I-ORDER", "two ranks posted", 1};
    cddp_verdict_rank ranks[2] = {{.size = sizeof ranks[0]}, {.size = sizeof ranks[1]}};
    cddp_verdict verdict = {.size = sizeof verdict,
                            .findings = findings,
                            .exercises = &exercise,
                            .exercise_count = 1,
                            .ranks = ranks,
                            .rank_count = 2};
    cd_test_row("%s", cases[i].name);
    cd_arena_init(&arena, NULL, 4096);
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    for (size_t k = 0; k < 6 && cases[i].sets[k] != NULL; k += 2)
        assert_ok(cddp_plan_set(plan, cases[i].sets[k], cases[i].sets[k + 1], &err), &err);
    while (verdict.finding_count < 2 && cases[i].findings[verdict.finding_count] != NULL) {
        findings[verdict.finding_count].check = cases[i].findings[verdict.finding_count];
        verdict.finding_count++;
    }
    if (cases[i].error != NULL) {
        ranks[1].result.status = CDDP_E_STATE;
        snprintf(ranks[1].result.error.message, sizeof ranks[1].result.error.message, "%s",
                 cases[i].error);
    }
    assert_ok(cd_verdict_measure(&(cd_verdict_input){.plan = plan}, &arena, &verdict, &err), &err);
    assert_int_equal(verdict.outcome, cases[i].outcome);
    assert_int_equal(verdict.as_expected, cases[i].as_expected);
    assert_int_equal(verdict.reason[0] == '\0', cases[i].outcome == CDDP_OUTCOME_VERIFIED);
    cddp_plan_destroy(plan);
    cd_arena_fini(&arena);
}

TEST(expect, a_run_is_measured_against_exactly_what_its_plan_expects)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) measure_case(i);
}

/* A report shows the first finding, and of later ones the check alone. */
TEST(expect, a_later_finding_that_was_not_expected_is_reported_with_its_title)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    cd_arena arena;
    cddp_finding findings[2] = {{.size = sizeof(cddp_finding), .check = "I-USED"},
                                {.size = sizeof(cddp_finding), .check = "I-REF"}};
    const cddp_exercise exercise = {"I-ORDER", "two ranks posted", 1};
    cddp_verdict verdict = {.size = sizeof verdict,
                            .findings = findings,
                            .finding_count = 2,
                            .exercises = &exercise,
                            .exercise_count = 1};
    snprintf(findings[1].title, sizeof findings[1].title, "rank 1: w is wrong");
    cd_arena_init(&arena, NULL, 4096);
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    assert_ok(cddp_plan_set(plan, "expect.verdict", "findings", &err), &err);
    assert_ok(cddp_plan_set(plan, "expect.finding.0.check", "I-USED", &err), &err);
    assert_ok(cd_verdict_measure(&(cd_verdict_input){.plan = plan}, &arena, &verdict, &err), &err);
    assert_string_equal(verdict.reason, "I-REF was not expected to report: rank 1: w is wrong");
    cddp_plan_destroy(plan);
    cd_arena_fini(&arena);
}

TEST(expect, a_run_in_which_no_check_had_anything_to_judge_is_inconclusive)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    cd_arena arena;
    cddp_verdict verdict = {.size = sizeof verdict};
    cd_arena_init(&arena, NULL, 4096);
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    assert_ok(cd_verdict_measure(&(cd_verdict_input){.plan = plan}, &arena, &verdict, &err), &err);
    assert_int_equal(verdict.outcome, CDDP_OUTCOME_INCONCLUSIVE);
    cddp_plan_destroy(plan);
    cd_arena_fini(&arena);
}

TEST(expect, settings_that_every_rank_refuses_are_an_error_and_not_a_finding)
{
    static const struct {
        const char *name;
        cddp_status status[2];
        cddp_outcome outcome;
    } rows[] = {{"both", {CDDP_E_CONFIG, CDDP_E_CONFIG}, CDDP_OUTCOME_ERROR},
                {"one, and the other is fine", {CDDP_E_CONFIG, CDDP_OK}, CDDP_OUTCOME_FINDINGS},
                {"one, and the other fails otherwise",
                 {CDDP_E_STATE, CDDP_E_CONFIG},
                 CDDP_OUTCOME_FINDINGS},
                {"none", {CDDP_E_STATE, CDDP_E_STATE}, CDDP_OUTCOME_FINDINGS}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_plan *plan = NULL;
        cd_arena arena;
        cddp_verdict_rank ranks[2] = {{.size = sizeof ranks[0]}, {.size = sizeof ranks[1]}};
        cddp_verdict verdict = {.size = sizeof verdict, .ranks = ranks, .rank_count = 2};
        cd_test_row("%s", rows[i].name);
        cd_arena_init(&arena, NULL, 4096);
        assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
        for (size_t r = 0; r < 2; r++) {
            ranks[r].result.status = rows[i].status[r];
            snprintf(ranks[r].result.error.message, sizeof ranks[r].result.error.message,
                     "k=abc is no number");
        }
        assert_ok(cd_verdict_measure(&(cd_verdict_input){.plan = plan}, &arena, &verdict, &err),
                  &err);
        assert_int_equal(verdict.outcome, rows[i].outcome);
        assert_non_null(strstr(verdict.summary, "k=abc is no number"));
        cddp_plan_destroy(plan);
        cd_arena_fini(&arena);
    }
}

TEST(expect, the_rank_that_no_other_rank_explains_is_named)
{
    static const struct {
        const char *name;
        cddp_rank_result ranks[3];
        const char *summary;
    } rows[] = {{"an abort follows its cause",
                 {{.status = CDDP_E_ABORTED, .error.message = "rank 2 aborted the group: why"},
                  {.status = CDDP_OK},
                  {.status = CDDP_E_STATE, .error.message = "why"}},
                 "rank 2 did not finish: why"},
                {"the fewest say it",
                 {{.status = CDDP_E_ABORTED, .error.message = "1 of 3 ranks ran out"},
                  {.status = CDDP_E_ABORTED, .error.message = "rank 1 ran out"},
                  {.status = CDDP_E_ABORTED, .error.message = "1 of 3 ranks ran out"}},
                 "rank 1 did not finish: rank 1 ran out"},
                {"a death comes before what waits",
                 {{.status = CDDP_E_TIMEOUT, .error.message = "it waits for rank 1"},
                  {.status = CDDP_E_ABORTED, .end = CDDP_RANK_KILLED},
                  {.status = CDDP_E_TIMEOUT, .end = CDDP_RANK_HUNG}},
                 "rank 1 did not finish: it was killed"},
                {"all say the same, each of itself",
                 {{.status = CDDP_E_STATE, .error.message = "on rank 0, none"},
                  {.status = CDDP_E_STATE, .error.message = "on rank 1, none"},
                  {.status = CDDP_E_STATE, .error.message = "on rank 2, none"}},
                 "the ranks did not finish: on rank 0, none"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_plan *plan = NULL;
        cd_arena arena;
        cddp_verdict_rank ranks[3] = {{.size = sizeof ranks[0]}};
        cddp_verdict verdict = {.size = sizeof verdict, .ranks = ranks, .rank_count = 3};
        cd_test_row("%s", rows[i].name);
        cd_arena_init(&arena, NULL, 4096);
        assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
        for (size_t r = 0; r < 3; r++) ranks[r].result = rows[i].ranks[r];
        assert_ok(cd_verdict_measure(&(cd_verdict_input){.plan = plan}, &arena, &verdict, &err),
                  &err);
        assert_string_equal(verdict.summary, rows[i].summary);
        cddp_plan_destroy(plan);
        cd_arena_fini(&arena);
    }
}

TEST(expect, a_contradiction_is_an_error_unless_the_plan_expects_it)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    cd_arena arena;
    cddp_verdict verdict = {.size = sizeof verdict};
    cd_arena_init(&arena, NULL, 4096);
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    assert_ok(cd_verdict_measure(&(cd_verdict_input){.plan = plan, .refusal = "a contradicts b"},
                                 &arena, &verdict, &err),
              &err);
    assert_int_equal(verdict.outcome, CDDP_OUTCOME_ERROR);
    assert_ok(cddp_plan_set(plan, "expect.verdict", "error", &err), &err);
    assert_ok(cddp_plan_set(plan, "expect.error", "contradicts", &err), &err);
    /* these are words for an error of the run: a plan that was never run has none */
    assert_ok(cd_verdict_measure(&(cd_verdict_input){.plan = plan, .refusal = "a contradicts b"},
                                 &arena, &verdict, &err),
              &err);
    assert_int_equal(verdict.outcome, CDDP_OUTCOME_ERROR);
    assert_false(verdict.as_expected);
    assert_ok(cddp_plan_set(plan, "expect.error", "train.resume", &err), &err);
    assert_ok(cd_verdict_measure(&(cd_verdict_input){.plan = plan,
                                                     .refusal = "train.resume contradicts b"},
                                 &arena, &verdict, &err),
              &err);
    assert_int_equal(verdict.outcome, CDDP_OUTCOME_VERIFIED);
    assert_true(verdict.as_expected);
    cddp_plan_destroy(plan);
    cd_arena_fini(&arena);
}

TEST(expect, what_the_verifier_says_of_itself_is_not_the_expected_error)
{
    static const struct {
        const char *name;
        cddp_rank_end end;
        cddp_status status;
        const char *file;
        cddp_outcome outcome;
    } rows[] = {
        {"the run's", CDDP_RANK_RETURNED, CDDP_E_STATE, "core/train/trainer.c",
         CDDP_OUTCOME_VERIFIED},
        {"no memory", CDDP_RANK_RETURNED, CDDP_E_NOMEM, "core/train/trainer.c",
         CDDP_OUTCOME_FINDINGS},
        {"the judge's", CDDP_RANK_RETURNED, CDDP_E_STATE, "core/reference/reference.c",
         CDDP_OUTCOME_FINDINGS},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_plan *plan = NULL;
        cd_arena arena;
        cddp_verdict_rank rank = {.size = sizeof rank};
        const cddp_exercise exercise = {"I-ORDER", "two ranks posted", 1};
        cddp_verdict verdict = {.size = sizeof verdict,
                                .exercises = &exercise,
                                .exercise_count = 1,
                                .ranks = &rank,
                                .rank_count = 1};
        cd_test_row("%s", rows[i].name);
        rank.result.end = rows[i].end;
        rank.result.status = rows[i].status;
        rank.result.error.frame_count = 1;
        rank.result.error.frames[0].file = rows[i].file;
        snprintf(rank.result.error.message, sizeof rank.result.error.message, "out of luck");
        cd_arena_init(&arena, NULL, 4096);
        assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
        assert_ok(cddp_plan_set(plan, "expect.verdict", "error", &err), &err);
        assert_ok(cddp_plan_set(plan, "expect.error", "out of luck", &err), &err);
        assert_ok(cd_verdict_measure(&(cd_verdict_input){.plan = plan}, &arena, &verdict, &err),
                  &err);
        assert_int_equal(verdict.outcome, rows[i].outcome);
        cddp_plan_destroy(plan);
        cd_arena_fini(&arena);
    }
}

TEST(expect, words_that_anything_could_satisfy_are_refused)
{
    static const char *const words[] = {"4", "ab", "words of the message", "no memory",
                                        "the world"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_plan *plan = NULL;
        cd_test_row("%s", words[i]);
        assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
        assert_ok(cddp_plan_set(plan, "title", "x", &err), &err);
        assert_ok(cddp_plan_set(plan, "expect.verdict", "error", &err), &err);
        assert_ok(cddp_plan_set(plan, "expect.error", words[i], &err), &err);
        assert_int_equal(cddp_plan_check(plan, &err), CDDP_E_CONFIG);
        assert_non_null(strstr(err.message, "expect.error"));
        cddp_plan_destroy(plan);
    }
}

TEST_MAIN()
