/* SPDX-License-Identifier: Apache-2.0 */
/* What a recording of PyTorch shows besides the training itself: each story with its mistake, which
** is a gap or a finding, and the clean twin, of which nothing is said or a line of what was not
** judged. */
#include "verify/import/declared.h"

#include "tests/support/test.h"

#include <string.h>

enum { RANKS = 2, STEPS = 2 };

static const cddp_exercise exercises[] = {{"I-ORDER", "", 1},
                                          {"I-LIVE", "", 1},
                                          {"I-ONCE", "", 1},
                                          {"I-GRADEQ", "", 1},
                                          {"I-PARAMEQ", "", 1}};

static void show(cd_declared *d, uint32_t rank, uint32_t step, cddp_event event)
{
    event.rank = rank;
    event.step = step;
    cd_declared_push(d, &event);
}

static void show_mark(cd_declared *d, uint32_t rank, const char *words, int64_t value)
{
    cddp_event e = {.kind = CDDP_EV_mark, .text = words};
    e.as.mark.value = value;
    show(d, rank, STEPS - 1, e);
}

static void show_value(cd_declared *d, uint32_t rank, uint32_t step, cddp_event_value value)
{
    cddp_event e = {.kind = CDDP_EV_value};
    e.as.value = value;
    show(d, rank, step, e);
}

/* One parameter, number 0, and a frozen one with ordinal 1. */
static void show_training(cd_declared *d, uint32_t rank)
{
    cddp_event e = {.kind = CDDP_EV_param, .text = "weight"};
    e.as.param = (cddp_event_param){.numel = 1, .requires_grad = true, .name = 9};
    show(d, rank, 0, (cddp_event){.kind = CDDP_EV_mark, .text = "torch 2.0"});
    show(d, rank, 0, e);
    show(d, rank, 0, (cddp_event){.kind = CDDP_EV_wrap});
    for (int64_t k = 0; k < 2; k++)
        show_value(d, rank, 0,
                   (cddp_event_value){
                       .moment = CDDP_MOMENT_AFTER_INIT, .id = k, .param = -k, .digest = 3 + k});
    for (uint32_t step = 0; step < STEPS; step++) {
        e = (cddp_event){.kind = CDDP_EV_grad_local};
        e.as.grad_local.digest = 1;
        e.as.grad_local.presence = CDDP_PRESENCE_VALUE;
        show(d, rank, step, (cddp_event){.kind = CDDP_EV_zero_grad});
        show(d, rank, step, e);
        show(d, rank, step, (cddp_event){.kind = CDDP_EV_grad_final});
        show(d, rank, step, (cddp_event){.kind = CDDP_EV_optimizer_step});
        e = (cddp_event){.kind = CDDP_EV_optimizer_touch};
        e.as.optimizer_touch = (cddp_event_optimizer_touch){.touched = true, .gradient = 1};
        show(d, rank, step, e);
        show_value(d, rank, step,
                   (cddp_event_value){.moment = CDDP_MOMENT_AFTER_STEP, .digest = 10 + step});
    }
}

static void end_rank(cd_declared *d, uint32_t rank)
{
    show(d, rank, STEPS - 1, (cddp_event){.kind = CDDP_EV_rank_end});
}

static void leave_with(cd_declared *d, uint32_t rank, int64_t ordinal, int64_t digest)
{
    show_value(d, rank, STEPS - 1,
               (cddp_event_value){
                   .moment = CDDP_MOMENT_EXIT, .id = ordinal, .param = -ordinal, .digest = digest});
}

/* ---- stories: behind the training of a rank ---- */

typedef void (*story_fn)(cd_declared *d, uint32_t rank, bool is_wrong);

static void writes_at_the_end(cd_declared *d, uint32_t rank, bool is_wrong)
{
    leave_with(d, rank, 0, is_wrong && rank == 0 ? 11 : 77);
}

static void writes_a_frozen_one_at_the_end(cd_declared *d, uint32_t rank, bool is_wrong)
{
    leave_with(d, rank, 1, is_wrong && rank == 0 ? 4 : 77);
}

static void moves_a_frozen_one(cd_declared *d, uint32_t rank, bool is_wrong)
{
    (void)is_wrong;
    show_value(
        d, rank, STEPS - 1,
        (cddp_event_value){.moment = CDDP_MOMENT_AFTER_STEP, .id = 1, .param = -1, .digest = 5});
}

static void evaluates(cd_declared *d, uint32_t rank, bool is_wrong)
{
    if (rank == 0 || !is_wrong) show_mark(d, rank, "buffers outside training", 1);
}

/* A rank that is done early evaluates less often; of none at all it is asked. */
static void evaluates_under_join(cd_declared *d, uint32_t rank, bool is_wrong)
{
    const int64_t count = rank == 0 ? 3 : is_wrong ? 0 : 1;
    show(d, rank, 0, (cddp_event){.kind = CDDP_EV_join_notify});
    if (count > 0) show_mark(d, rank, "buffers outside training", count);
}

static void freezes(cd_declared *d, uint32_t rank, bool is_wrong)
{
    if (rank == 1 || !is_wrong) show_mark(d, rank, "frozen parameters", 2);
}

static void steps_on_what_nobody_reduces(cd_declared *d, uint32_t rank, bool is_wrong)
{
    if (is_wrong) show_mark(d, rank, "outside_parameters", 3);
}

static void has_tensor_hooks(cd_declared *d, uint32_t rank, bool is_wrong)
{
    (void)is_wrong;
    show_mark(d, rank, "tensor hooks", 6);
}

static void show_backward(cd_declared *d, uint32_t rank, bool is_reduced)
{
    cddp_event e = {.kind = CDDP_EV_grad_local};
    e.as.grad_local.presence = CDDP_PRESENCE_VALUE;
    e.as.grad_local.digest = 1;
    show(d, rank, STEPS - 1, (cddp_event){.kind = CDDP_EV_backward_begin});
    show(d, rank, STEPS - 1, e);
    e = (cddp_event){.kind = CDDP_EV_backward_end};
    e.as.backward_end.finalized = is_reduced;
    show(d, rank, STEPS - 1, e);
}

static void show_step(cd_declared *d, uint32_t rank)
{
    show(d, rank, STEPS - 1, (cddp_event){.kind = CDDP_EV_optimizer_step});
    show(d, rank, STEPS - 1, (cddp_event){.kind = CDDP_EV_optimizer_touch});
    show_value(d, rank, STEPS - 1,
               (cddp_event_value){.moment = CDDP_MOMENT_AFTER_STEP, .digest = 10 + STEPS});
}

/* A window of two, on a rank of one. */
static void adds_up(cd_declared *d, uint32_t rank, bool is_wrong)
{
    if (rank == 0 || !is_wrong) show_backward(d, rank, false);
    show_backward(d, rank, true);
    show_step(d, rank);
}

static void clears_inside(cd_declared *d, uint32_t rank, bool is_wrong)
{
    show_backward(d, rank, false);
    if (is_wrong) show(d, rank, STEPS - 1, (cddp_event){.kind = CDDP_EV_zero_grad});
    show_backward(d, rank, true);
    show_step(d, rank);
}

/* Said, where it is not: of a step that is skipped, and of the backwards of a generator. */
static void takes_no_step(cd_declared *d, uint32_t rank, bool is_wrong)
{
    (void)is_wrong;
    show_backward(d, rank, true);
    show(d, rank, STEPS - 1, (cddp_event){.kind = CDDP_EV_zero_grad});
}

static void take_rows(cd_declared *d, uint32_t rank, int64_t first, int64_t step, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (i % 4 == 0) show_mark(d, rank, CD_OWN_BATCH, 4);
        show_mark(d, rank, CD_OWN_SAMPLE, first + step * i);
    }
}

/* The same data in another order; or each rank has its own. */
static void shuffles(cd_declared *d, uint32_t rank, bool is_wrong)
{
    if (is_wrong)
        take_rows(d, rank, rank == 0 ? 1 : 12, rank == 0 ? 1 : -1, 12);
    else
        take_rows(d, rank, 1 + 100 * rank, 1, 12);
}

/* One row in thirty is the same by chance, or because the data has it twice. */
static void has_few_in_common(cd_declared *d, uint32_t rank, bool is_wrong)
{
    (void)is_wrong;
    take_rows(d, rank, rank == 0 ? 1 : 119, 1, 120);
}

static void run(story_fn story, bool is_wrong, cd_declared *d)
{
    assert_int_equal(cd_declared_init(d, RANKS, NULL, NULL), CDDP_OK);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        show_training(d, rank);
        story(d, rank, is_wrong);
        end_rank(d, rank);
    }
}

TEST(declared, what_ranks_do_not_do_alike_is_a_gap_and_alike_it_is_none)
{
    static const struct {
        const char *name;
        story_fn story;
        const char *wrong, *unjudged;
    } rows[] = {
        {"a parameter at the end", writes_at_the_end, "after the last step, and not alike",
         "nor why 2 parameters changed after the last step, alike"},
        {"a frozen one at the end", writes_a_frozen_one_at_the_end,
         "after the last step, and not alike",
         "nor why 1 parameter without gradients changed, alike"},
        {"a frozen one in a step", moves_a_frozen_one, NULL,
         "nor why 1 parameter without gradients changed, alike"},
        {"an evaluation", evaluates, "why buffers changed outside of training steps", NULL},
        {"under join", evaluates_under_join, "why buffers changed outside of training steps", NULL},
        {"freezing", freezes, "why parameters are frozen on some ranks alone", NULL},
        {"an own head", steps_on_what_nobody_reduces, "and no wrapper reduces", NULL},
        {"tensor hooks", has_tensor_hooks, NULL, "the gradients of 6 parameters"},
        {"a window", adds_up, "other numbers of backwards before one reduction", NULL},
        {"zero_grad in it", clears_inside, "dropped before any reduction", NULL},
        {"no step", takes_no_step, NULL,
         "nor why the reduced gradients of 1 backward were dropped"},
        {"a shuffle", shuffles, "without a DistributedSampler", NULL},
        {"few in common", has_few_in_common, NULL, NULL},
    };
    const cddp_verdict verdict = {.exercises = exercises, .exercise_count = 5};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int is_wrong = 0; is_wrong < 2; is_wrong++) {
            cd_declared declared;
            cd_arena arena;
            cddp_finding finding;
            if (is_wrong && rows[i].wrong == NULL) continue;
            cd_test_row("%s, %s", rows[i].name, is_wrong ? "wrong" : "right");
            cd_arena_init(&arena, NULL, 0);
            run(rows[i].story, is_wrong, &declared);
            assert_false(cd_declared_accuses(&declared, &finding));
            const char *gaps = cd_declared_print_gaps(&declared, &verdict, &arena);
            if (is_wrong)
                assert_non_null(strstr(gaps, rows[i].wrong));
            else
                assert_string_equal(gaps, "");
            const char *unjudged = cd_declared_print_unjudged(&declared, &arena);
            assert_int_equal(strstr(unjudged, "; nor") != NULL,
                             !is_wrong && rows[i].unjudged != NULL);
            if (!is_wrong && rows[i].unjudged != NULL)
                assert_non_null(strstr(unjudged, rows[i].unjudged));
            cd_declared_fini(&declared);
            cd_arena_fini(&arena);
        }
}

/* I-LIVE judges from two waits on; of none and of one nothing more is to be known. */
TEST(declared, a_single_wait_is_as_good_as_none)
{
    const cddp_verdict verdict = {.exercises = exercises + 2, .exercise_count = 3};
    for (int waits = 0; waits < 3; waits++) {
        cd_declared declared;
        cd_arena arena;
        cd_test_row("%d waits", waits);
        cd_arena_init(&arena, NULL, 0);
        assert_int_equal(cd_declared_init(&declared, RANKS, NULL, NULL), CDDP_OK);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            show_training(&declared, rank);
            for (int i = 0; i < waits && rank == 1; i++)
                show(&declared, rank, 0, (cddp_event){.kind = CDDP_EV_collective_wait});
            end_rank(&declared, rank);
        }
        const char *gaps = cd_declared_print_gaps(&declared, &verdict, &arena);
        assert_int_equal(strstr(gaps, "I-LIVE had nothing to judge") != NULL, waits == 2);
        cd_declared_fini(&declared);
        cd_arena_fini(&arena);
    }
}

/* ---- the same samples ---- */

static void takes_the_same(cd_declared *d, uint32_t rank, bool is_wrong)
{
    take_rows(d, rank, is_wrong ? 1 : 1 + 100 * rank, 1, 12);
}

/* Somebody tries a program on one sample, again and again. */
static void takes_one_again(cd_declared *d, uint32_t rank, bool is_wrong)
{
    take_rows(d, rank, 1, is_wrong ? 1 : 0, 12);
}

static void takes_one_batch(cd_declared *d, uint32_t rank, bool is_wrong)
{
    take_rows(d, rank, 1, 1, is_wrong ? 8 : 3);
}

TEST(declared, ranks_that_take_the_same_samples_in_the_same_order_are_accused)
{
    static const struct {
        const char *name;
        story_fn story;
    } rows[] = {{"the same", takes_the_same},
                {"one sample", takes_one_again},
                {"one batch", takes_one_batch}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int is_wrong = 0; is_wrong < 2; is_wrong++) {
            cd_declared declared;
            cddp_finding finding;
            cd_test_row("%s, %s", rows[i].name, is_wrong ? "wrong" : "right");
            run(rows[i].story, is_wrong, &declared);
            assert_int_equal(cd_declared_accuses(&declared, &finding), is_wrong);
            if (is_wrong) assert_string_equal(finding.check, "I-DATA");
            if (is_wrong) assert_non_null(strstr(finding.title, "all ranks train on the same"));
            cd_declared_fini(&declared);
        }
}

/* Ensembles train on the same data, each in its group. */
TEST(declared, ranks_of_other_groups_may_take_the_same_samples)
{
    const cddp_verdict verdict = {.exercises = exercises, .exercise_count = 5};
    cd_declared declared;
    cd_arena arena;
    cddp_finding finding;
    cd_arena_init(&arena, NULL, 0);
    assert_int_equal(cd_declared_init(&declared, RANKS, NULL, NULL), CDDP_OK);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        cddp_event e = {.kind = CDDP_EV_wrap};
        e.as.wrap.group = rank;
        show_training(&declared, rank);
        show(&declared, rank, 0, e);
        take_rows(&declared, rank, 1, 1, 12);
        end_rank(&declared, rank);
    }
    assert_false(cd_declared_accuses(&declared, &finding));
    assert_null(strstr(cd_declared_print_gaps(&declared, &verdict, &arena), "DistributedSampler"));
    cd_declared_fini(&declared);
    cd_arena_fini(&arena);
}

TEST_MAIN()
