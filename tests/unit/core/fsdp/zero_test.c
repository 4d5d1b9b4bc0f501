/* SPDX-License-Identifier: Apache-2.0 */
/* Stages of ZeRO in DeepSpeed's words: what they set, and what the runtime does then. */
#include "tests/unit/core/fsdp/fixture.h"

/* Elements of the root, of a and of b, which two ranks cut without padding: 10, 20, 24. */
typedef struct stage {
    const char *name;
    cddp_fsdp_zero zero;
    const char *wanted;
    uint64_t peak; /* elements that are full at most */
} stage;

static uint64_t peak_of(lane *l, const toy *t)
{
    cddp_fsdp_counts counts = {.size = sizeof counts};
    CHECK_OK(cddp_fsdp_get_counts(t->fsdp, &counts, &l->err));
    return counts.full_bytes_peak / sizeof(float);
}

static void iterates_twice(lane *l)
{
    const stage *s = l->lab->data;
    toy t;
    toy_init(&t, l);
    CHECK_OK(cddp_fsdp_options_set_zero(&t.options, &s->zero, &l->err));
    toy_wrap(&t);
    for (int step = 0; step < 3; step++) {
        if (step > 0) lane_mark(l);
        toy_iterate(&t, step);
        if (step > 0) CHECK_SEQUENCE(&t, s->wanted);
        toy_step(&t);
        toy_step_alone(&t, l->w, &step, 1);
    }
    CHECK(peak_of(l, &t) == s->peak);
    toy_fini(&t);
}

TEST(zero, a_stage_does_what_its_words_say) /* ZER-06, ZER-07, ZER-08 */
{
#define ZERO(...)                                   \
    {                                               \
        .size = sizeof(cddp_fsdp_zero), __VA_ARGS__ \
    }
    static const stage stages[] = {
        {"stage 2",
         ZERO(.stage = 2, .stage3_prefetch_bucket_size = 50000000,
              .stage3_max_live_parameters = 1000000000),
         "AG R, AG a, AG b, RS b, RS a, RS R", 54},
        {"stage 3, nothing ahead", ZERO(.stage = 3),
         "AG R, AG a, AG b, AG b, RS b, AG a, RS a, RS R", 34},
        {"stage 3, all ahead", ZERO(.stage = 3, .stage3_prefetch_bucket_size = 1000),
         "AG R, AG a, AG b, AG b, AG a, RS b, RS a, RS R", 54},
        {"stage 3, all ahead that have room",
         ZERO(.stage = 3, .stage3_prefetch_bucket_size = 1000, .stage3_max_live_parameters = 44),
         "AG R, AG a, AG b, AG b, RS b, AG a, RS a, RS R", 34},
        {"stage 3, a small root stays", ZERO(.stage = 3, .stage3_param_persistence_threshold = 11),
         /* the toy names a sum of ten elements after a share of a */
         "AG a, AG b, AG b, RS b, AG a, RS a, AR a", 24},
        {"stage 3, a unit of just that size is cut",
         ZERO(.stage = 3, .stage3_param_persistence_threshold = 10),
         "AG R, AG a, AG b, AG b, RS b, AG a, RS a, RS R", 34},
    };
    for (size_t i = 0; i < sizeof stages / sizeof stages[0]; i++) {
        stage s = stages[i];
        cd_test_row("%s", s.name);
        lab_of(2, iterates_twice, &s);
    }
}

TEST(zero, defaults_are_those_of_deepspeed)
{
    const cddp_fsdp_zero zero = cddp_fsdp_zero_default();
    cddp_fsdp_options options = cddp_fsdp_options_default();
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(cddp_fsdp_options_set_zero(&options, &zero, &err), &err);
    assert_int_equal(options.strategy, CDDP_FSDP_FULL_SHARD);
    assert_int_equal(options.backward_prefetch, CDDP_FSDP_BACKWARD_PRE);
    assert_true(options.forward_prefetch);
    assert_int_equal(options.prefetch_numel, 50000000);
    assert_int_equal(options.live_numel_max, 1000000000);
    assert_int_equal(options.persistence_threshold, 0);
}

TEST(zero, refuses_words_of_another_stage)
{
    static const struct {
        cddp_fsdp_zero zero;
        const char *words;
    } cases[] = {
        {ZERO(.stage = 1), "cddp/zero.h"},
        {ZERO(.stage = 4), "stage 4"},
        {ZERO(.stage = 3, .stage3_max_live_parameters = -1), "below 0"},
        {ZERO(.stage = 3, .mics_shard_size = 2), "replicate_group is not"},
        {ZERO(.stage = 2), "stage3_prefetch_bucket_size is of stage 3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cddp_fsdp_options options = cddp_fsdp_options_default();
        cddp_error err = CDDP_ERROR_INIT;
        cd_test_row("%s", cases[i].words);
        const cddp_status status = cddp_fsdp_options_set_zero(&options, &cases[i].zero, &err);
        assert_true(status != CDDP_OK);
        assert_non_null(strstr(err.message, cases[i].words));
    }
}

TEST_MAIN()
