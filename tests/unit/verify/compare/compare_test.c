/* SPDX-License-Identifier: Apache-2.0 */
/* Two runs side by side: the clean twin, and planted differences, each named where it begins. */
#include "core/base/alloc.h"
#include "core/base/hash.h"
#include "core/trace/setting.h"
#include "core/trace/tracer.h"
#include "tests/support/test.h"
#include "verify/compare/compare.h"

#include <math.h>
#include <string.h>

enum { STEPS = 4, TENSORS = 2 };
static const char *const names[TENSORS] = {"w", "b"};

/* What a run does differently. */
typedef enum plant {
    PLANT_NONE,
    PLANT_SAMPLES,   /* another sample in step 2 */
    PLANT_COUNT,     /* one sample less in step 2 */
    PLANT_NAME,      /* b is called c */
    PLANT_SHAPE,     /* w is larger */
    PLANT_SUM,       /* the reduction of b in step 1 is a sum */
    PLANT_REDUCTION, /* of w in step 2 is 1e-5 off */
    PLANT_LOCAL,     /* the gradient of b in step 0 is 1e-3 off on all ranks */
    PLANT_RATE,      /* step 3 */
    PLANT_GRADIENT,  /* other bits in step 1 */
    PLANT_OPTIMIZER, /* other parameters after step 1, from equal gradients */
    PLANT_SPLIT,     /* rank 1 has other bits of w after step 0 */
    PLANT_SILENT,    /* no local gradients */
    PLANT_ABSENT,    /* no gradient of b in step 1 */
    PLANT_MICRO,     /* none: three micro-steps in each step, and all of them reduce */
    PLANT_MICRO_ONE, /* the same, and the result is shown before the optimizer alone */
    PLANT_ROUND,     /* the same, and rank 1 has another w after the last reduction of step 1 */
    PLANT_STOPPED,   /* the same, and rank 1 reduces once less in step 1 */
    PLANT_LOADED,    /* none: parameters are shown before and after loading, too */
    PLANT_RELOADED,  /* the same, and rank 1 loads another w */
    PLANT_PILE,      /* from step 2 on gradients pile up */
    PLANT_FORWARDS,  /* a forward has all samples of the rank, not one of them */
    PLANT_UNSHOWN,   /* reductions happen, and nobody shows them */
    PLANT_AWAY,      /* the last rank showed nothing at all */
    PLANT_CUT        /* rank 1 was killed in step 2 */
} plant;

typedef struct run {
    uint32_t ranks;
    plant plant;
    bool is_exact;  /* with the comm hook reproducible */
    bool has_drift; /* bits differ from the single process's after the first step */
} run;

static void push(cd_traced *t, uint32_t rank, uint32_t step, cddp_event e)
{
    e.rank = rank;
    e.step = step;
    cd_traced_push(t, &e);
}

#define PUSH(t, rank, step, name_, words, ...) \
    push(t, rank, step,                        \
         (cddp_event){.kind = CDDP_EV_##name_, .text = words, .as.name_ = {__VA_ARGS__}})

static void begin(const run *r, cd_traced *t, uint32_t rank)
{
    if (r->is_exact) {
        PUSH(t, rank, 0, hook_in_force, "reproducible", .level = 0);
        PUSH(t, rank, 0, option, NULL, .key = cd_setting_id(CDDP_KEY_ddp_accumulate_in_hook),
             .items = 1, .value = 1);
    }
    for (int64_t v = 0; v < TENSORS; v++) {
        const char *name = v == 1 && r->plant == PLANT_NAME ? "c" : names[v];
        PUSH(t, rank, 0, param, name, .param = v, .ordinal = v,
             .numel = v == 0 && r->plant == PLANT_SHAPE ? 12 : 10, .dtype = CDDP_F32,
             .requires_grad = 1, .name = (int64_t)cd_hash_text(name));
        const bool is_loaded = r->plant == PLANT_LOADED || r->plant == PLANT_RELOADED;
        if (is_loaded)
            PUSH(t, rank, 0, value, NULL, .what = CDDP_WHAT_PARAMETER,
                 .moment = CDDP_MOMENT_AFTER_INIT, .id = v, .param = v, .digest = 60 + v + rank);
        PUSH(t, rank, 0, value, NULL, .what = CDDP_WHAT_PARAMETER,
             .moment = is_loaded ? CDDP_MOMENT_RESUME : CDDP_MOMENT_AFTER_INIT, .id = v, .param = v,
             .digest = 77 + v + (r->plant == PLANT_RELOADED && v == 0 ? rank : 0));
    }
}

static bool has_micro_steps(const run *r)
{
    return r->plant >= PLANT_MICRO && r->plant <= PLANT_STOPPED;
}

/* Micro-steps before the last one: other gradients, reduced as well. */
static void accumulate(const run *r, cd_traced *t, uint32_t rank, uint32_t step, int64_t v)
{
    const bool is_short = r->plant == PLANT_STOPPED && v == 0 && step == 1 && rank == 1;
    for (int64_t k = is_short ? 1 : 0; k < 2 && has_micro_steps(r); k++) {
        const double local = 0.5 * (double)(k + 1) + rank;
        PUSH(t, rank, step, projection, NULL, .param = v, .sum = cd_f64_bits(local),
             .magnitude = cd_f64_bits(3), .numel = 10, .dtype = CDDP_F32);
        PUSH(t, rank, step, grad_final, NULL, .param = v, .digest = 3000 + 10 * k + v);
        if (r->plant != PLANT_MICRO_ONE)
            PUSH(t, rank, step, projection, NULL, .param = v, .reduced = 1,
                 .sum = cd_f64_bits(local), .magnitude = cd_f64_bits(3), .numel = 10,
                 .dtype = CDDP_F32);
    }
}

static void tensor_step(const run *r, cd_traced *t, uint32_t rank, uint32_t step, int64_t v)
{
    const int64_t drift = r->has_drift ? 1000 : 0;
    double local = v == 1 && step == 0 && r->plant == PLANT_LOCAL ? 2.002 : 2;
    double reduced = local * (1 + (r->has_drift ? 1e-8 * (step + 1) : 0));
    int64_t gradient = 100 + 10 * step + v + drift, after = 500 + 10 * step + v + drift;
    if (r->plant == PLANT_SUM && v == 1 && step == 1) reduced *= r->ranks;
    if (r->plant == PLANT_REDUCTION && v == 0 && step == 2) reduced *= 1 + 1e-5;
    if (r->plant == PLANT_GRADIENT && v == 0 && step >= 1) gradient++;
    if (r->plant == PLANT_OPTIMIZER && v == 1 && step >= 1) after++;
    if (r->plant == PLANT_SPLIT && v == 0 && step == 0 && rank == 1) after++;
    if (r->plant == PLANT_ROUND && v == 0 && step == 1 && rank == 1) gradient++;
    if (r->plant == PLANT_PILE && step >= 2) reduced = local *= step;
    if (r->plant == PLANT_ABSENT && v == 1 && step == 1) return;
    accumulate(r, t, rank, step, v);
    if (r->plant != PLANT_SILENT)
        PUSH(t, rank, step, projection, NULL, .param = v, .sum = cd_f64_bits(local),
             .magnitude = cd_f64_bits(3), .numel = 10, .dtype = CDDP_F32);
    if (r->plant != PLANT_UNSHOWN) {
        PUSH(t, rank, step, grad_final, NULL, .param = v, .digest = gradient);
        PUSH(t, rank, step, projection, NULL, .param = v, .reduced = 1, .sum = cd_f64_bits(reduced),
             .magnitude = cd_f64_bits(3), .numel = 10, .dtype = CDDP_F32);
    }
    PUSH(t, rank, step, value, NULL, .what = CDDP_WHAT_PARAMETER, .moment = CDDP_MOMENT_AFTER_STEP,
         .id = v, .param = v, .digest = after);
}

/* Eight samples in a step, shared out. */
static void rank_step(const run *r, cd_traced *t, uint32_t rank, uint32_t step)
{
    uint64_t ids = 0, all = 0, count = 8 / r->ranks;
    const bool is_other = rank == 0 && step == 2;
    if (is_other && r->plant == PLANT_COUNT) count--;
    for (uint64_t k = 0; k < count; k++) {
        ids = cd_hash_mix(0, 8 * step + k * r->ranks + rank +
                                 (is_other && k == 0 && r->plant == PLANT_SAMPLES ? 1 : 0));
        all += ids;
        if (r->plant != PLANT_FORWARDS)
            PUSH(t, rank, step, samples, NULL, .count = 1, .ids = (int64_t)ids);
    }
    if (r->plant == PLANT_FORWARDS)
        PUSH(t, rank, step, samples, NULL, .count = (int64_t)count, .ids = (int64_t)all);
    const bool is_cut = r->plant == PLANT_CUT && rank == 1 && step >= 2;
    if (is_cut) return;
    for (int64_t v = TENSORS; v-- > 0;) tensor_step(r, t, rank, step, v);
    PUSH(t, rank, step, optimizer_step, "sgd",
         .lr = cd_f64_bits(r->plant == PLANT_RATE && step == 3 ? 0.2 : 0.1));
}

static void play(const run *r, cd_traced *t)
{
    assert_int_equal(cd_traced_init(t, r->ranks, NULL, NULL), CDDP_OK);
    const uint32_t ranks = r->plant == PLANT_AWAY ? r->ranks - 1 : r->ranks;
    for (uint32_t rank = 0; rank < ranks; rank++) begin(r, t, rank);
    for (uint32_t step = 0; step < STEPS; step++)
        for (uint32_t rank = 0; rank < ranks; rank++)
            if (r->plant != PLANT_CUT || step < 3) rank_step(r, t, rank, step);
    if (ranks < r->ranks) PUSH(t, ranks, STEPS, rank_end, NULL, .end = CDDP_RANK_KILLED);
    PUSH(t, UINT32_MAX, 0, run_end, NULL, .complete = r->plant != PLANT_CUT && ranks == r->ranks);
}

static int compare(const run *one, const run *many, double rtol, cd_comparison *c)
{
    cd_traced a, b;
    const cd_comparison_options options = {"one", "many", rtol};
    play(one, &a);
    play(many, &b);
    assert_int_equal(cd_compare(&a, &b, &options, c, NULL), CDDP_OK);
    cd_traced_fini(&a);
    cd_traced_fini(&b);
    return cd_comparison_exit_code(c, &options);
}

TEST(compare, what_was_planted_is_named_where_it_begins)
{
    static const struct {
        const char *name;
        run one, many;
        double rtol;
        int code;
        cd_comparison_what what; /* of the first difference */
        uint32_t step;
        const char *tensor;
        const char *words; /* of the first mismatch, gap or hint; NULL: none is looked at */
    } cases[] = {
        {"exact twin",
         {1, PLANT_NONE, true, false},
         {4, PLANT_NONE, true, false},
         -1,
         0,
         0,
         0,
         "",
         NULL},
        {"twin with drift", {1, 0, false, false}, {4, 0, false, true}, 1e-5, 0, 0, 0, "", NULL},
        {"drift without a bound", {1, 0, false, false}, {4, 0, false, true}, -1, 4, 0, 0, "", NULL},
        {"drift where bits are owed",
         {1, 0, true, false},
         {4, 0, true, true},
         1e-5,
         1,
         CD_COMPARISON_GRADIENT,
         0,
         "w",
         NULL},
        {"forwards of other samples owe no bits",
         {1, PLANT_FORWARDS, true, false},
         {4, 0, true, true},
         1e-5,
         4,
         0,
         0,
         "",
         "step 0: forwards have other samples in both runs, so no equal bits are owed: let each "
         "forward have the same samples in both"},
        {"forwards of other samples, and equal bits",
         {1, PLANT_FORWARDS, true, false},
         {4, 0, true, false},
         -1,
         0,
         0,
         0,
         "",
         NULL},
        {"reductions that nobody shows",
         {1, 0, false, false},
         {4, PLANT_UNSHOWN, false, true},
         1e-5,
         4,
         0,
         0,
         "",
         "step 0: w was not recorded after its reduction in many (cddp_record_reduced)"},
        {"a plain hook owes no bits",
         {1, 0, true, false},
         {4, 0, false, true},
         1e-5,
         0,
         0,
         0,
         "",
         NULL},
        {"other samples",
         {1, 0, false, false},
         {4, PLANT_SAMPLES, false, true},
         1e-5,
         4,
         0,
         0,
         "",
         "step 2: 8 samples in both, but not the same ones"},
        {"fewer samples",
         {1, 0, false, false},
         {4, PLANT_COUNT, false, true},
         1e-5,
         4,
         0,
         0,
         "",
         "step 2: 8 samples in one, 7 in many"},
        {"a name",
         {1, 0, false, false},
         {4, PLANT_NAME, false, true},
         1e-5,
         4,
         0,
         0,
         "",
         "parameter b is in one alone"},
        {"a shape",
         {1, 0, false, false},
         {4, PLANT_SHAPE, false, true},
         1e-5,
         4,
         0,
         0,
         "",
         "parameter w has 10 f32 in one, and 12 f32 in many"},
        {"a sum",
         {1, 0, false, false},
         {4, PLANT_SUM, false, true},
         1e-5,
         1,
         CD_COMPARISON_REDUCTION,
         1,
         "b",
         "it is the sum: divide by the number of ranks"},
        {"a reduction",
         {1, 0, false, false},
         {4, PLANT_REDUCTION, false, true},
         1e-5,
         1,
         CD_COMPARISON_REDUCTION,
         2,
         "w",
         ""},
        {"a local gradient",
         {1, 0, false, false},
         {4, PLANT_LOCAL, false, true},
         1e-5,
         1,
         CD_COMPARISON_LOCAL,
         0,
         "b",
         "factor 1.001"},
        {"a local gradient within the bound",
         {1, 0, false, false},
         {4, PLANT_LOCAL, false, true},
         1e-2,
         0,
         0,
         0,
         "",
         NULL},
        {"a rate",
         {1, 0, false, false},
         {4, PLANT_RATE, false, true},
         1e-5,
         1,
         CD_COMPARISON_RATE,
         3,
         "",
         ""},
        {"a gradient's bits",
         {1, 0, true, false},
         {2, PLANT_GRADIENT, true, false},
         -1,
         1,
         CD_COMPARISON_GRADIENT,
         1,
         "w",
         NULL},
        {"an optimizer, where bits are owed",
         {1, 0, true, false},
         {2, PLANT_OPTIMIZER, true, false},
         -1,
         1,
         CD_COMPARISON_PARAMETER,
         1,
         "b",
         NULL},
        {"an optimizer, after equal bits",
         {1, 0, false, false},
         {2, PLANT_OPTIMIZER, false, false},
         1e-5,
         1,
         CD_COMPARISON_PARAMETER,
         1,
         "b",
         NULL},
        {"ranks that differ",
         {1, 0, false, false},
         {2, PLANT_SPLIT, false, true},
         1e-5,
         1,
         CD_COMPARISON_SPLIT,
         0,
         "w",
         "judge that run first: cddp-verify check"},
        {"an absent gradient",
         {1, 0, false, false},
         {2, PLANT_ABSENT, false, true},
         1e-5,
         1,
         CD_COMPARISON_PRESENCE,
         1,
         "b",
         NULL},
        {"no local gradients",
         {1, 0, false, false},
         {2, PLANT_SILENT, false, true},
         1e-5,
         4,
         0,
         0,
         "",
         "step 0: w was not recorded before and after its reduction by all ranks"},
        {"every micro-step reduces",
         {1, 0, false, false},
         {2, PLANT_MICRO, false, true},
         1e-5,
         0,
         0,
         0,
         "",
         NULL},
        {"every micro-step reduces, and the last result is shown",
         {1, 0, false, false},
         {2, PLANT_MICRO_ONE, false, true},
         1e-5,
         0,
         0,
         0,
         "",
         NULL},
        {"every micro-step reduces, and ranks end with other gradients",
         {1, 0, false, false},
         {2, PLANT_ROUND, false, true},
         1e-5,
         1,
         CD_COMPARISON_SPLIT,
         1,
         "w",
         "judge that run first: cddp-verify check"},
        {"a rank reduces once less",
         {1, 0, false, false},
         {2, PLANT_STOPPED, false, true},
         1e-5,
         4,
         0,
         0,
         "",
         "step 1: the last reduction of w is not of all ranks"},
        {"parameters before and after loading",
         {1, 0, false, false},
         {2, PLANT_LOADED, false, true},
         1e-5,
         0,
         0,
         0,
         "",
         NULL},
        {"a rank loads something else",
         {1, 0, false, false},
         {2, PLANT_RELOADED, false, true},
         1e-5,
         4,
         0,
         0,
         "",
         NULL},
        {"gradients pile up",
         {1, 0, false, false},
         {4, PLANT_PILE, false, true},
         1e-5,
         4,
         0,
         0,
         "",
         NULL},
        {"a shard that was not given",
         {1, 0, false, false},
         {4, PLANT_AWAY, false, true},
         1e-5,
         4,
         0,
         0,
         "",
         "the shard of rank 3 of 4 was not given with many"},
        {"a run that was cut in a step",
         {1, 0, false, false},
         {2, PLANT_CUT, false, true},
         1e-5,
         4,
         0,
         0,
         "",
         "many did not come to its end: steps from 2 on are not compared"},
        {"a first run of two ranks",
         {2, 0, false, false},
         {2, 0, false, false},
         1e-5,
         4,
         0,
         0,
         "",
         "one is a run of 2 ranks; the first one is to be a single process"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_comparison c;
        const int code = compare(&cases[i].one, &cases[i].many, cases[i].rtol, &c);
        if (code != cases[i].code)
            fail_msg("%s: ended with %d, wanted %d", cases[i].name, code, cases[i].code);
        assert_int_equal(c.difference_count > 0, cases[i].what != CD_COMPARISON_NOTHING);
        const cd_comparison_difference none = {.tensor = "", .hint = ""};
        const cd_comparison_difference *d = c.difference_count > 0 ? &c.differences[0] : &none;
        if (d->what != cases[i].what || d->step != cases[i].step ||
            strcmp(d->tensor, cases[i].tensor) != 0)
            fail_msg("%s: %d at step %u of '%s'", cases[i].name, (int)d->what, d->step, d->tensor);
        const char *words = c.mismatch_count > 0     ? c.mismatches[0]
                            : c.difference_count > 0 ? d->hint
                            : c.gap_count > 0        ? c.gaps[0]
                                                     : "";
        if (cases[i].words != NULL && strcmp(words, cases[i].words) != 0)
            fail_msg("%s: \"%s\"", cases[i].name, words);
        cd_comparison_fini(&c);
    }
}

/* What began with other bits has a distance and no verdict, however large it is. */
TEST(compare, later_steps_have_distances)
{
    cd_comparison c;
    (void)state;
    assert_int_equal(compare(&(run){1, 0, false, false}, &(run){4, 0, false, true}, 1e-5, &c), 0);
    assert_int_equal(c.step_count, STEPS);
    for (size_t i = 0; i < STEPS; i++) {
        assert_int_equal(c.steps[i].began_equal, i == 0);
        assert_true(fabs(c.steps[i].distance - 2e-8 * (double)(i + 1) / 3) < 1e-12);
    }
    assert_int_equal(c.locals, TENSORS); /* of step 0 alone */
    assert_int_equal(c.held, STEPS * TENSORS);
    cd_comparison_fini(&c);
}

/* A step whose distance is more than 1000 times as large is named, and nothing is called alike. */
TEST(compare, the_first_jump_is_named)
{
    cd_comparison c;
    (void)state;
    assert_int_equal(compare(&(run){1, 0, false, false}, &(run){4, 0, false, true}, 1e-5, &c), 0);
    assert_null(c.jump);
    cd_comparison_fini(&c);
    for (int i = 0; i < 2; i++) {
        const double rtol = i == 0 ? 1e-5 : -1;
        const int code =
            compare(&(run){1, 0, false, false}, &(run){4, PLANT_PILE, false, true}, rtol, &c);
        assert_int_equal(code, 4);
        assert_non_null(c.jump);
        assert_int_equal(c.jump->number, 2);
        cd_comparison_fini(&c);
    }
}

TEST(compare, without_memory_nothing_is_compared_and_nothing_is_left)
{
    cd_watch_allocator watch;
    cd_traced t;
    cddp_error err = CDDP_ERROR_INIT;
    bool is_whole = false;
    (void)state;
    for (uint64_t at = 1; !is_whole; at++) {
        cd_watch_allocator_init(&watch, NULL);
        watch.fail_at = at;
        const cddp_status status = cd_traced_init(&t, 2, &watch.table, &err);
        if (status == CDDP_OK) {
            begin(&(run){2, 0, false, false}, &t, 0);
            for (uint32_t step = 0; step < STEPS; step++)
                rank_step(&(run){2, 0, false, false}, &t, 0, step);
            is_whole = !t.is_out_of_memory;
            assert_true(is_whole || watch.allocation_count >= at);
            cd_traced_fini(&t);
        }
        assert_int_equal(watch.live_count, 0);
    }
}

TEST_MAIN()
