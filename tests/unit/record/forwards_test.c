/* SPDX-License-Identifier: Apache-2.0 */
/* Forwards on other parameters than the steps left: what ranks exchange alike is fine. Each row is
** one pass of all ranks. */
#include "verify/import/forwards.h"

#include "core/trace/tracer.h"
#include "tests/support/test.h"

enum { RANKS = 4, NOTHING = 0 };

/* What is exchanged by each rank: a digest; NOTHING: its forward runs on what the step left. */
typedef struct pass {
    const char *name;
    int64_t digests[RANKS];
    int64_t moment;
    uint64_t any, one; /* passes that are found */
    uint32_t who;
} pass;

static const pass passes[] = {
    {"plain", {NOTHING}, CDDP_MOMENT_FORWARD, 0, 0, 0},
    {"alike", {5, 5, 5, 5}, CDDP_MOMENT_FORWARD, 0, 0, 0},
    {"each its own", {5, 6, 7, 8}, CDDP_MOMENT_FORWARD, 1, 0, 1},
    {"each its own, as it says", {5, 6, 7, 8}, CDDP_MOMENT_ADAPTED, 0, 0, 0},
    {"one differs", {5, 5, 6, 5}, CDDP_MOMENT_FORWARD, 1, 1, 2},
    {"the first differs", {6, 5, 5, 5}, CDDP_MOMENT_FORWARD, 1, 1, 0},
    {"two and two", {5, 5, 6, 6}, CDDP_MOMENT_FORWARD, 1, 0, 2},
    {"one alone", {NOTHING, NOTHING, 6, NOTHING}, CDDP_MOMENT_FORWARD, 1, 0, 2},
    {"all but one", {5, 5, NOTHING, 5}, CDDP_MOMENT_FORWARD, 1, 0, 2},
};

static void show(cd_forwards *f, uint32_t rank, uint32_t step, cddp_event event)
{
    event.rank = rank;
    event.step = step;
    cd_forwards_push(f, &event);
}

static void show_gradient(cd_forwards *f, uint32_t rank, uint32_t step)
{
    cddp_event e = {.kind = CDDP_EV_grad_local};
    e.as.grad_local.presence = CDDP_PRESENCE_VALUE;
    show(f, rank, step, e);
}

static void exchange(cd_forwards *f, uint32_t rank, const pass *p)
{
    cddp_event e = {.kind = CDDP_EV_value};
    e.as.value = (cddp_event_value){.what = CDDP_WHAT_PARAMETER,
                                    .moment = p->moment,
                                    .param = 3,
                                    .digest = p->digests[rank]};
    if (p->digests[rank] != NOTHING) show(f, rank, 1, e);
}

static void begin(cd_forwards *f)
{
    assert_int_equal(cd_forwards_init(f, RANKS, NULL, NULL), CDDP_OK);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        show(f, rank, 0, (cddp_event){.kind = CDDP_EV_wrap});
}

TEST(forwards, of_ranks_that_exchange_parameters_otherwise_are_found)
{
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        cd_forwards f;
        cd_test_row("%s", passes[i].name);
        begin(&f);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            show_gradient(&f, rank, 0);
            exchange(&f, rank, &passes[i]);
            show_gradient(&f, rank, 1);
        }
        const cd_forwards_split split = cd_forwards_compare(&f);
        assert_int_equal(split.any.count, passes[i].any);
        assert_int_equal(split.one.count, passes[i].one);
        if (passes[i].any > 0) {
            assert_int_equal(split.any.rank, passes[i].who);
            assert_int_equal(split.any.step, 1);
            assert_int_equal(split.any.variable, 3);
        }
        cd_forwards_fini(&f);
    }
}

/* Nobody averages what they make: groups, ranks that average parameters, and a rank that joined. */
TEST(forwards, are_compared_where_their_gradients_are_averaged)
{
    const pass *differs = &passes[4];
    for (int how = 0; how < 3; how++) {
        cd_forwards f;
        cd_test_row("%d", how);
        begin(&f);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            cddp_event e = {.kind = CDDP_EV_wrap};
            e.as.wrap.group = rank == 2;
            if (how == 0) show(&f, rank, 0, e);
            e = (cddp_event){.kind = CDDP_EV_mark, .text = CD_TRACER_AVERAGES};
            if (how == 1) show(&f, rank, 0, e);
            exchange(&f, rank, differs);
            if (how != 2 || rank != 2) show_gradient(&f, rank, 1);
        }
        assert_int_equal(cd_forwards_compare(&f).any.count, 0);
        cd_forwards_fini(&f);
    }
}

/* Of a program without a wrapper: SAM, whose first gradients are dropped. */
TEST(forwards, behind_a_dropped_gradient_are_to_be_shown)
{
    for (int how = 0; how < 3; how++) { /* unshown, shown, in the next step */
        cd_forwards f;
        cd_test_row("%d", how);
        begin(&f);
        show_gradient(&f, 0, 1);
        show(&f, 0, 1, (cddp_event){.kind = CDDP_EV_grad_final});
        show(&f, 0, how == 2 ? 2 : 1, (cddp_event){.kind = CDDP_EV_zero_grad});
        if (how == 1) exchange(&f, 0, &passes[1]);
        show_gradient(&f, 0, how == 2 ? 2 : 1);
        assert_int_equal(f.unshown.count, how == 0);
        cd_forwards_fini(&f);
    }
}

TEST_MAIN()
