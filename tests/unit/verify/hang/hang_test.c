/* SPDX-License-Identifier: Apache-2.0 */
/* Hangs as graphs: who is at the root, what the headline says, and which two are alike. */
#include "tests/support/test.h"
#include "verify/hang/graph.h"
#include "verify/hang/headline.h"

#include <stdio.h>
#include <string.h>

#define WAIT(rank_, sequence_, ...)                                                                \
    {                                                                                              \
        .size = sizeof(cddp_wait), .rank = rank_, .step = 3, .status = CDDP_E_TIMEOUT, .group = 5, \
        .sequence = sequence_, .op = CDDP_OP_ALLREDUCE, .bucket = 0, .name = "world",              \
        .peers = (const uint32_t[]){__VA_ARGS__},                                                  \
        .peer_count = sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)                   \
    }

static void expect_headline(const cddp_verdict *v, const char *wanted)
{
    cd_text text;
    cd_text_init(&text, false);
    cd_hang_print(v, &text);
    assert_string_equal(cd_text_get(&text), wanted);
    cd_text_fini(&text);
}

TEST(hang, the_root_is_the_culprit)
{
    const cddp_wait waits[] = {WAIT(0, 7, 2), WAIT(1, 7, 2), WAIT(3, 7, 2)};
    cddp_verdict_rank ranks[4] = {{.size = sizeof ranks[0]}};
    cddp_verdict v = {.waits = waits, .wait_count = 3, .ranks = ranks, .rank_count = 4};
    (void)state;
    ranks[2].step = 4;
    ranks[2].result.status = CDDP_E_STATE;
    for (uint32_t r = 0; r < 5; r++) assert_int_equal(cd_hang_is_culprit(&v, r), r == 2);
    expect_headline(&v,
                    "hang: ranks 0, 1 and 3 wait in allreduce #7 (bucket 0, step 3) for rank 2, "
                    "which ended with an error in step 4");
    ranks[2].result = (cddp_rank_result){.end = CDDP_RANK_KILLED, .detail = 9};
    expect_headline(&v,
                    "hang: ranks 0, 1 and 3 wait in allreduce #7 (bucket 0, step 3) for rank 2, "
                    "which was killed (signal 9) in step 4");
}

/* The other one failed because of it. */
TEST(hang, of_several_roots_one_that_died_is_described)
{
    const cddp_wait waits[] = {WAIT(0, 7, 1, 2)};
    cddp_verdict_rank ranks[3] = {{.size = sizeof ranks[0]}};
    const cddp_verdict v = {.waits = waits, .wait_count = 1, .ranks = ranks, .rank_count = 3};
    (void)state;
    ranks[1].result.status = CDDP_E_BACKEND;
    ranks[2].result = (cddp_rank_result){.end = CDDP_RANK_KILLED, .detail = 11};
    expect_headline(&v,
                    "hang: rank 0 waits in allreduce #7 (bucket 0, step 3) for ranks 1 and 2, of "
                    "which rank 2 was killed (signal 11) in step 0");
}

/* The run ends soon after a death; on a busy machine another rank is then still on its way. */
TEST(hang, who_was_ended_for_a_death_is_not_lost)
{
    const cddp_wait waits[] = {WAIT(1, 7, 0, 2)};
    cddp_verdict_rank ranks[3] = {{.size = sizeof ranks[0]}};
    const cddp_verdict v = {.waits = waits, .wait_count = 1, .ranks = ranks, .rank_count = 3};
    cddp_error *error = &ranks[2].result.error;
    (void)state;
    ranks[0].result = (cddp_rank_result){.end = CDDP_RANK_KILLED, .detail = 9};
    ranks[2].result = (cddp_rank_result){.end = CDDP_RANK_HUNG, .status = CDDP_E_TIMEOUT};
    snprintf(error->message, sizeof error->message, "rank 2 was still running 5.000 s after ...");
    for (uint32_t r = 0; r < 3; r++) assert_int_equal(cd_hang_is_culprit(&v, r), r == 0);
    expect_headline(&v, "hang: rank 1 waits in allreduce #7 (bucket 0, step 3) for rank 0, which "
                        "was killed (signal 9) in step 0");
    snprintf(error->message, sizeof error->message, "rank 2 did not come back from ...");
    for (uint32_t r = 0; r < 3; r++) assert_int_equal(cd_hang_is_culprit(&v, r), r != 1);
    expect_headline(&v, "hang: rank 1 waits in allreduce #7 (bucket 0, step 3) for ranks 0 and 2, "
                        "of which rank 0 was killed (signal 9) in step 0");
}

/* Its own error is what came of the others' time-outs. */
TEST(hang, a_rank_that_came_late_is_said_to_be_late)
{
    cddp_wait waits[] = {WAIT(0, 7, 2), WAIT(1, 7, 2)};
    cddp_verdict_rank ranks[3] = {{.size = sizeof ranks[0]}};
    const cddp_verdict v = {.waits = waits, .wait_count = 2, .ranks = ranks, .rank_count = 3};
    (void)state;
    ranks[2].result.status = CDDP_E_TIMEOUT;
    for (size_t i = 0; i < 2; i++) waits[i].is_inside = true;
    waits[0].late_ns = waits[1].late_ns = 400000000;
    assert_true(cd_hang_is_culprit(&v, 2));
    expect_headline(&v, "hang: ranks 0 and 1 wait in allreduce #7 (bucket 0, step 3) for rank 2, "
                        "which came 400 ms after the time-out");
}

/* Nobody waits, and the summary names who failed first. */
TEST(hang, the_rank_of_the_summary_is_the_culprit)
{
    static const char *const summaries[] = {"rank 1 did not finish: it was killed",
                                            "as expected: rank 1 did not finish: it was killed"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const cddp_verdict v = {.summary = summaries[i]};
        for (uint32_t r = 0; r < 3; r++) assert_int_equal(cd_hang_is_culprit(&v, r), r == 1);
    }
}

TEST(hang, a_chain_leads_to_its_root)
{
    const cddp_wait waits[] = {WAIT(0, 7, 1), WAIT(1, 4, 2)};
    const cddp_verdict v = {.waits = waits, .wait_count = 2};
    (void)state;
    assert_true(cd_hang_is_culprit(&v, 2) && !cd_hang_is_culprit(&v, 1));
    expect_headline(&v, "hang: rank 1 waits in allreduce #4 (bucket 0, step 3) for rank 2");
}

TEST(hang, a_cycle_has_no_root)
{
    cddp_wait waits[] = {WAIT(0, 7, 1), WAIT(1, 4, 2), WAIT(2, 3, 1)};
    const cddp_verdict v = {.waits = waits, .wait_count = 3};
    (void)state;
    waits[1].name = "rows";
    waits[2].bucket = -1;
    for (uint32_t r = 0; r < 3; r++) assert_int_equal(cd_hang_is_culprit(&v, r), r > 0);
    expect_headline(&v, "hang: rank 1 waits in allreduce #4 of group 'rows' (bucket 0, step 3) for "
                        "rank 2, which waits in allreduce #3 (step 3) for rank 1");
}

TEST(hang, nobody_known_is_said)
{
    cddp_wait waits[] = {WAIT(0, 7, 1), WAIT(1, 7, 0)};
    const cddp_verdict v = {.waits = waits, .wait_count = 2};
    (void)state;
    waits[0].peer_count = waits[1].peer_count = 0;
    expect_headline(&v, "hang: ranks 0 and 1 wait in allreduce #7 (bucket 0, step 3), and not "
                        "every member is recorded: who did not come is not known");
    waits[0].is_inside = waits[1].is_inside = true;
    expect_headline(&v, "hang: ranks 0 and 1 wait in allreduce #7 (bucket 0, step 3), which all "
                        "members have posted; who stopped there is not known");
    expect_headline(&(cddp_verdict){.size = sizeof v}, "");
}

/* Ranks 2 and 3 wait for those that wait in another group. */
TEST(hang, who_waits_for_a_wait_without_a_cause_is_not_the_headline)
{
    cddp_wait waits[] = {WAIT(0, 4, 1), WAIT(1, 4, 0), WAIT(2, 7, 0), WAIT(3, 7, 0)};
    const cddp_verdict v = {.waits = waits, .wait_count = 4};
    (void)state;
    waits[0].peer_count = waits[1].peer_count = 0;
    waits[0].group = waits[1].group = 9;
    waits[0].is_inside = waits[1].is_inside = true;
    expect_headline(&v, "hang: ranks 0 and 1 wait in allreduce #4 (bucket 0, step 3), which all "
                        "members have posted; who stopped there is not known");
}

TEST(hang, a_cycle_in_one_operation_names_it_once)
{
    const cddp_wait waits[] = {WAIT(0, 7, 1), WAIT(1, 7, 2), WAIT(2, 7, 3), WAIT(3, 7, 1)};
    const cddp_wait pair[] = {WAIT(0, 7, 1), WAIT(1, 7, 0)};
    const cddp_verdict v = {.waits = waits, .wait_count = 4};
    (void)state;
    for (uint32_t r = 0; r < 4; r++) assert_int_equal(cd_hang_is_culprit(&v, r), r > 0);
    expect_headline(&v, "hang: ranks 1-3 wait in allreduce #7 (bucket 0, step 3) for one another");
    expect_headline(&(cddp_verdict){.waits = pair, .wait_count = 2},
                    "hang: ranks 0 and 1 wait in allreduce #7 (bucket 0, step 3) for each other");
}

/* All have posted under the number, and I-LIVE found who posted something else. */
TEST(hang, who_posted_another_operation_is_the_culprit)
{
    cddp_wait waits[] = {WAIT(0, 7, 1), WAIT(1, 7, 0), WAIT(2, 7, 0)};
    const uint32_t two[] = {2};
    cddp_finding found[] = {
        {.check = "I-ORDER", .rank = 1, .peer = 0},
        {.check = "I-LIVE", .rank = 2, .peer = 0, .ranks = two, .rank_count = 1, .title = "why"}};
    const cddp_verdict v = {.waits = waits, .wait_count = 3, .findings = found, .finding_count = 2};
    (void)state;
    for (size_t i = 0; i < 3; i++) waits[i].peer_count = 0;
    waits[2].op = CDDP_OP_BROADCAST;
    for (uint32_t r = 0; r < 4; r++) assert_int_equal(cd_hang_is_culprit(&v, r), r == 2);
    expect_headline(&v, "hang: ranks 0 and 1 wait in allreduce #7 (bucket 0, step 3): why");
    /* Of a rank that just does not come back no cause is known. */
    snprintf(found[1].expected, sizeof found[1].expected, "it returns");
    assert_null(cd_hang_why(&v));
    assert_false(cd_hang_is_culprit(&v, 2));
}

/* Rank 0 refused what rank 1 sent: the finding knows which of the two is odd. */
TEST(hang, a_rank_that_refuses_what_an_odd_one_sends_is_no_culprit)
{
    const cddp_wait waits[] = {WAIT(1, 7, 0), WAIT(2, 7, 0)};
    const uint32_t odd[] = {2}, other[] = {0};
    cddp_verdict_rank ranks[3] = {{.size = sizeof ranks[0]}};
    cddp_finding found = {.check = "I-CONTENT", .ranks = odd, .rank_count = 1};
    const cddp_verdict v = {.waits = waits,
                            .wait_count = 2,
                            .ranks = ranks,
                            .rank_count = 3,
                            .findings = &found,
                            .finding_count = 1};
    (void)state;
    ranks[0].result.status = CDDP_E_BACKEND;
    for (uint32_t r = 0; r < 3; r++) assert_int_equal(cd_hang_is_culprit(&v, r), r == 2);
    expect_headline(&v, "hang: ranks 1 and 2 wait in allreduce #7 (bucket 0, step 3), which rank 0 "
                        "left with an error; rank 2 differs from the others (I-CONTENT)");
    /* Its own error, a rank that was killed, and a finding of the root itself are causes. */
    ranks[0].result.status = CDDP_E_STATE;
    assert_null(cd_hang_odd(&v));
    ranks[0].result.status = CDDP_E_BACKEND;
    ranks[0].result.end = CDDP_RANK_KILLED;
    assert_null(cd_hang_odd(&v));
    ranks[0].result.end = CDDP_RANK_RETURNED;
    found.ranks = other;
    assert_null(cd_hang_odd(&v));
}

/* One transport refuses what the other waits for. */
TEST(hang, a_refusal_is_alike_with_the_same_rule_ranks_and_operation)
{
    const uint32_t two[] = {2}, one[] = {1};
    const cddp_finding found = {.check = "I-ORDER",
                                .ranks = two,
                                .rank_count = 1,
                                .title = "rank 2 disagrees on collective #7 of group 'world'"};
    cddp_finding again[2] = {found, found};
    const cddp_wait waits[] = {WAIT(0, 7, 2)};
    const cddp_verdict a = {.findings = &found, .finding_count = 1};
    cddp_verdict b = {.waits = waits, .wait_count = 1, .findings = again, .finding_count = 2};
    (void)state;
    assert_true(cd_hang_is_same_refusal(&a, &b));
    /* another culprit */
    again[0].ranks = one;
    assert_false(cd_hang_is_same_refusal(&a, &b));
    again[0] = found;
    /* another operation */
    *strchr(again[0].title, '7') = '8';
    assert_false(cd_hang_is_same_refusal(&a, &b));
    *strchr(again[0].title, '8') = '7';
    *strchr(again[0].title, 'w') = 'W';
    assert_false(cd_hang_is_same_refusal(&a, &b));
    again[0] = found;
    /* another rule */
    again[0].check = "I-SCALE";
    assert_false(cd_hang_is_same_refusal(&a, &b));
    b.finding_count = 0;
    assert_false(cd_hang_is_same_refusal(&a, &b));
}

TEST(hang, a_lost_peer_is_no_hang)
{
    cddp_wait waits[] = {WAIT(0, 7, 1)};
    const cddp_verdict_rank ranks[2] = {{.size = sizeof ranks[0]}, {.step = 2}};
    const cddp_verdict v = {.waits = waits, .wait_count = 1, .ranks = ranks, .rank_count = 2};
    (void)state;
    waits[0].status = CDDP_E_BACKEND;
    expect_headline(&v, "stopped: rank 0 lost rank 1, which ended normally in step 2, while in "
                        "allreduce #7 (bucket 0, step 3)");
}

/* Texts, times and how a wait ended do not count; everything that leads to the cause does. */
TEST(hang, alike_is_the_same_graph_and_finding)
{
    const cddp_wait right[] = {WAIT(0, 7, 2), WAIT(1, 7, 2)};
    cddp_wait other[] = {WAIT(0, 7, 2), WAIT(1, 7, 2)};
    const uint32_t two[] = {2}, three[] = {3};
    const cddp_finding found = {.check = "I-ONCE", .ranks = two, .rank_count = 1, .title = "a"};
    cddp_finding again = found;
    const cddp_verdict a = {.waits = right,
                            .wait_count = 2,
                            .findings = &found,
                            .finding_count = 1};
    cddp_verdict b = {.waits = other, .wait_count = 2, .findings = &again, .finding_count = 1};
    (void)state;
    other[0].status = CDDP_E_BACKEND;
    other[1].step = 9;
    again.title[0] = 'b';
    assert_true(cd_hang_is_same(&a, &b));
    again.ranks = three;
    assert_false(cd_hang_is_same(&a, &b));
    again = found;
    again.check = "I-LIVE";
    assert_false(cd_hang_is_same(&a, &b));
    again = found;
    other[0].peers = three;
    assert_false(cd_hang_is_same(&a, &b));
    other[0].peers = two;
    other[0].sequence = 6;
    assert_false(cd_hang_is_same(&a, &b));
    other[0].sequence = 7;
    other[0].group = 6;
    assert_false(cd_hang_is_same(&a, &b));
    other[0].group = 5;
    other[0].op = CDDP_OP_BARRIER;
    assert_false(cd_hang_is_same(&a, &b));
    other[0].op = CDDP_OP_ALLREDUCE;
    b.wait_count = 1;
    assert_false(cd_hang_is_same(&a, &b));
}

/* Of ranks that were killed in two ways: whether they died before or after they posted it does not
** count, who waits for whom does. */
TEST(hang, the_same_root_is_the_same_graph_with_that_culprit)
{
    const cddp_wait waits[] = {WAIT(0, 7, 2), WAIT(1, 7, 2)};
    cddp_wait others[] = {WAIT(0, 7, 2), WAIT(1, 7, 2)};
    const cddp_wait of_another[] = {WAIT(0, 7, 1), WAIT(2, 7, 1)};
    const cddp_verdict a = {.waits = waits, .wait_count = 2}, none = {.wait_count = 0};
    cddp_verdict b = {.waits = others, .wait_count = 2};
    (void)state;
    others[0].is_inside = true;
    assert_true(cd_hang_has_same_root(&a, &b, 2) && cd_hang_has_same_root(&none, &none, 2));
    assert_false(cd_hang_has_same_root(&a, &b, 1) || cd_hang_has_same_root(&a, &none, 2));
    others[1].sequence = 6;
    assert_false(cd_hang_has_same_root(&a, &b, 2));
    b.waits = of_another;
    assert_false(cd_hang_has_same_root(&a, &b, 2) || cd_hang_has_same_root(&a, &b, 1));
}

TEST(hang, the_shape_knows_no_numbers)
{
    const cddp_wait four[] = {WAIT(0, 7, 2), WAIT(1, 7, 2), WAIT(3, 7, 2)};
    cddp_wait two[] = {WAIT(1, 2, 0)};
    cddp_verdict_rank many[4] = {{.size = sizeof many[0]}}, few[2] = {{.size = sizeof few[0]}};
    const cddp_verdict a = {.waits = four, .wait_count = 3, .ranks = many, .rank_count = 4};
    const cddp_verdict b = {.waits = two, .wait_count = 1, .ranks = few, .rank_count = 2};
    const cddp_verdict none = {.ranks = few, .rank_count = 2};
    (void)state;
    many[2].result.status = few[0].result.status = CDDP_E_STATE;
    assert_true(cd_hang_shape(&a) != 0 && cd_hang_shape(&none) == 0);
    assert_true(cd_hang_shape(&a) == cd_hang_shape(&b));
    few[0].result.status = CDDP_OK;
    assert_true(cd_hang_shape(&a) != cd_hang_shape(&b));
    few[0].result.status = CDDP_E_STATE;
    two[0].op = CDDP_OP_BROADCAST;
    assert_true(cd_hang_shape(&a) != cd_hang_shape(&b));
}

/* Nobody waits: the finding of the death, or of what the transport refused, is the headline. */
TEST(hang, a_death_that_nobody_waited_for_is_said)
{
    cddp_finding f = {.check = "I-FAIL", .ranks = (const uint32_t[]){2}, .rank_count = 1};
    cddp_verdict_rank ranks[3] = {{.size = sizeof ranks[0]}};
    cddp_verdict v = {.ranks = ranks, .rank_count = 3, .findings = &f, .finding_count = 1};
    (void)state;
    ranks[0].result.status = ranks[1].result.status = CDDP_E_BACKEND;
    expect_headline(&v, ""); /* rank 2 returned */
    assert_false(cd_hang_is_culprit(&v, 2));
    ranks[2].result = (cddp_rank_result){.end = CDDP_RANK_KILLED, .detail = 9};
    for (uint32_t r = 0; r < 3; r++) assert_int_equal(cd_hang_is_culprit(&v, r), r == 2);
    expect_headline(&v,
                    "stopped: rank 2 was killed (signal 9) in step 0, before another rank missed "
                    "it in an operation");
    f.check = "I-REF";
    expect_headline(&v, "");
    f.check = "I-FAIL";
    ranks[1].result = ranks[2].result;
    expect_headline(&v,
                    "stopped: ranks 1 and 2 died, of which rank 1 was killed (signal 9) in step 0, "
                    "before another rank missed it in an operation");
    ranks[0].result = ranks[2].result;
    expect_headline(&v, ""); /* nobody is left to miss them */
}

TEST(hang, a_rank_whose_operation_was_refused_is_said)
{
    const cddp_wait waits[] = {WAIT(0, 7, 0)};
    cddp_wait inside = waits[0];
    cddp_finding f = {.check = "I-CONTENT",
                      .expected = "",
                      .ranks = (const uint32_t[]){1},
                      .rank_count = 1};
    cddp_verdict_rank ranks[3] = {{.size = sizeof ranks[0]}};
    cddp_verdict v = {.ranks = ranks, .rank_count = 3, .findings = &f, .finding_count = 1};
    (void)state;
    expect_headline(&v, ""); /* all went on */
    for (size_t r = 0; r < 3; r++) ranks[r].result.status = CDDP_E_MISMATCH;
    expect_headline(&v, "stopped: rank 1 differs from the others (I-CONTENT), and their operations "
                        "were refused");
    for (uint32_t r = 0; r < 3; r++) assert_int_equal(cd_hang_is_culprit(&v, r), r == 1);
    /* the simulator lets it pass, and others wait in what all have posted */
    inside.peer_count = 0;
    inside.is_inside = true;
    v.waits = &inside;
    v.wait_count = 1;
    expect_headline(&v, "hang: rank 0 waits in allreduce #7 (bucket 0, step 3), which all members "
                        "have posted; rank 1 differs from the others (I-CONTENT)");
    for (uint32_t r = 0; r < 3; r++) assert_int_equal(cd_hang_is_culprit(&v, r), r == 1);
    f.rank_count = 3; /* no majority */
    f.ranks = (const uint32_t[]){0, 1, 2};
    expect_headline(&v, "hang: rank 0 waits in allreduce #7 (bucket 0, step 3), which all members "
                        "have posted; who stopped there is not known");
}

TEST_MAIN()
