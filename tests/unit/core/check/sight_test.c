/* SPDX-License-Identifier: Apache-2.0 */
/* Three ranks add up. What the judge says that it was shown is held against what they posted and
** received, whichever rank's events come first. */
#include "core/check/sight.h"

#include "cddp/backend.h"
#include "core/base/hash.h"
#include "core/trace/codes.h"
#include "core/trace/tracer.h"
#include "tests/support/test.h"

#define RANKS 3
enum { GROUP = 7, SEQUENCE = 5, RESULT = 999 };

static cddp_event group_of(uint32_t rank)
{
    return (cddp_event){.kind = CDDP_EV_group,
                        .rank = rank,
                        .as.group = {.group = GROUP, .members = RANKS, .group_rank = rank}};
}

static cddp_event post_of(uint32_t rank)
{
    return (cddp_event){.kind = CDDP_EV_collective_post,
                        .rank = rank,
                        .as.collective_post = {.group = GROUP,
                                               .sequence = SEQUENCE,
                                               .op = CDDP_OP_ALLREDUCE,
                                               .reduce_op = CDDP_RED_SUM,
                                               .dtype = CDDP_BF16,
                                               .numel = 4,
                                               .digest = 100 + rank}};
}

static cddp_event done_of(uint32_t rank)
{
    return (
        cddp_event){.kind = CDDP_EV_collective_done,
                    .rank = rank,
                    .as.collective_done = {.group = GROUP, .sequence = SEQUENCE, .digest = RESULT}};
}

/* What rank 1 was shown, with one thing changed. */
typedef struct shown {
    const char *name;
    cd_sum_sight sight;
    int64_t operand, result;
    bool is_wrong;
} shown;

#define RIGHT .member = 1, .members = RANKS, .dtype = CDDP_BF16, .numel = 4
static const shown rows[] = {
    {"all of it", {RIGHT}, 100, RESULT, false},
    {"an average", {RIGHT, .averages = true}, 100, RESULT, true},
    {"parts of it", {RIGHT, .scatters = true}, 100, RESULT, true},
    {"what was gathered", {RIGHT, .gathers = true}, 100, RESULT, true},
    {"another member", {.members = RANKS, .dtype = CDDP_BF16, .numel = 4}, 100, RESULT, true},
    {"another dtype",
     {.member = 1, .members = RANKS, .dtype = CDDP_F16, .numel = 4},
     100,
     RESULT,
     true},
    {"another operand", {RIGHT}, 99, RESULT, true},
    {"another result", {RIGHT}, 100, RESULT + 1, true},
};

static cddp_event mark_of(const shown *x)
{
    uint64_t digest = cd_sum_sight_begin(&x->sight);
    for (int64_t m = 0; m < RANKS; m++)
        digest = cd_hash_mix(digest, (uint64_t)(m == 0 ? x->operand : 100 + m));
    return (cddp_event){.kind = CDDP_EV_mark,
                        .rank = 1,
                        .text = CD_TRACER_SHOWN_SUM,
                        .as.mark.value = (int64_t)(cd_hash_mix(digest, (uint64_t)x->result) &
                                                   CD_SUM_SIGHT_BITS)};
}

static void push(cd_sights *s, cddp_event e) { cd_sights_push(s, &e); }

TEST(sight, names_what_the_judge_was_shown_wrongly_and_nothing_else)
{
    (void)state;
    for (size_t i = 0; i < 2 * sizeof rows / sizeof rows[0]; i++) {
        const shown *x = &rows[i / 2];
        const bool is_late = i % 2 != 0; /* rank 2 speaks last */
        const cd_key *key = NULL;
        cd_sights s;
        cd_test_row("%s%s", x->name, is_late ? ", before rank 2 spoke" : "");
        cd_sights_init(&s, NULL);
        for (uint32_t rank = 0; rank < (is_late ? RANKS - 1u : RANKS); rank++) {
            push(&s, group_of(rank));
            push(&s, post_of(rank));
        }
        push(&s, done_of(1));
        push(&s, mark_of(x));
        if (is_late) {
            assert_null(cd_sights_get_wrong(&s, 0, &key));
            push(&s, group_of(2));
            push(&s, post_of(2));
        }
        assert_int_equal(cd_sights_get_wrong(&s, 0, &key) != NULL, x->is_wrong);
        assert_int_equal(cd_sights_find_wrong(&s, &(cd_key){{GROUP, SEQUENCE, 1, 0}}) != NULL,
                         x->is_wrong);
        assert_null(cd_sights_find_wrong(&s, &(cd_key){{GROUP, SEQUENCE, 2, 0}}));
        cd_sights_fini(&s);
    }
}

/* What an all-gather is, whoever has posted yet. */
TEST(sight, names_a_form_that_the_judge_was_shown_wrongly)
{
    (void)state;
    for (size_t i = 0; i < 6; i++) { /* of the rows, those without numbers */
        const cd_key *key = NULL;
        cd_sights s;
        cd_test_row("%s", rows[i].name);
        cd_sights_init(&s, NULL);
        s.takes_forms = true;
        push(&s, group_of(1));
        push(&s, post_of(1));
        push(&s, done_of(1));
        push(&s, (cddp_event){.kind = CDDP_EV_mark,
                              .rank = 1,
                              .text = CD_TRACER_SHOWN_FORM,
                              .as.mark.value = (int64_t)(cd_sum_sight_begin(&rows[i].sight) &
                                                         CD_SUM_SIGHT_BITS)});
        assert_int_equal(cd_sights_get_wrong(&s, 0, &key) != NULL, rows[i].is_wrong);
        cd_sights_fini(&s);
    }
}

/* The result of a collective of the program, and nothing else of it. */
TEST(sight, names_an_output_that_the_judge_was_shown_wrongly)
{
    (void)state;
    for (int is_wrong = 0; is_wrong < 2; is_wrong++) {
        const cd_key *key = NULL;
        cd_sights s;
        cd_test_row("%s", is_wrong ? "another output" : "the output");
        cd_sights_init(&s, NULL);
        push(&s, group_of(1));
        push(&s, post_of(1));
        push(&s, done_of(1));
        push(&s, (cddp_event){.kind = CDDP_EV_mark,
                              .rank = 1,
                              .text = CD_TRACER_SHOWN_OUTPUT,
                              .as.mark.value = RESULT + is_wrong});
        const cd_look *look = cd_sights_get_wrong(&s, 0, &key);
        assert_int_equal(look != NULL, is_wrong);
        if (look != NULL) assert_true(look->is_output && look->op == CDDP_OP_ALLREDUCE);
        cd_sights_fini(&s);
    }
}

TEST_MAIN()
