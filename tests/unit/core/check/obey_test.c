/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks that do what the plan decides, and each way not to: the check names exactly the ranks
** that disobey, and the plan outvotes any majority. */
#include "core/check/check.h"
#include "core/trace/codes.h"
#include "core/trace/sink.h"
#include "core/trace/tracer.h"
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

#define RANKS 3
#define STEPS 2
enum { WORLD = 1, PART, OTHER }; /* groups; from step 1 on the wrapper has the second one */
enum { ALL = -1, ALL_BUT_RANK_1 = -2 };

/* Changes an event on its way into the trace; false leaves it out. */
typedef bool (*edit_fn)(cddp_event *event);

typedef struct writer {
    const cddp_trace_sink *sink;
    edit_fn edit;
    int32_t only; /* the rank whose events are changed, or one of the two above */
    uint64_t sequence;
    uint32_t rank, step, micro;
} writer;

static void put(writer *w, cddp_event *e)
{
    e->rank = w->rank;
    e->step = w->step;
    e->micro_step = w->micro;
    e->time_ns = w->sequence * 10;
    e->sequence = w->sequence++;
    e->level = CDDP_TRACE_DIGEST;
    const bool is_meant = w->only == ALL || w->only == (int32_t)w->rank ||
                          (w->only == ALL_BUT_RANK_1 && w->rank != 1);
    const bool is_struck = w->edit != NULL && is_meant;
    if (!is_struck || w->edit(e)) w->sink->event(w->sink->self, e);
}

#define PUT(w, event_name, words, ...)                                    \
    do {                                                                  \
        cddp_event put_event;                                             \
        memset(&put_event, 0, sizeof put_event);                          \
        put_event.kind = CDDP_EV_##event_name;                            \
        put_event.text = (words);                                         \
        put_event.as.event_name = (cddp_event_##event_name){__VA_ARGS__}; \
        put((w), &put_event);                                             \
    } while (0)

/* id, step, micro-step */
#define DECIDE(w, which, words, id_, step_, micro_, ...)                        \
    PUT((w), decision, (words), .decision = CDDP_DECISION_##which, .id = (id_), \
        .at_step = (step_), .at_micro = (micro_), __VA_ARGS__)

/* ---- the trace ---- */

static void put_construction(writer *w)
{
    PUT(w, param, "fc.weight", .param = 0, .ordinal = 0, .requires_grad = 1);
    static const char *const groups[] = {"world", "part", "other"};
    for (int64_t i = 0; i < 3; i++)
        PUT(w, group, groups[i], .group = WORLD + i, .members = RANKS, .group_rank = w->rank,
            .members_digest = 77);
    PUT(w, collective_post, NULL, .group = WORLD, .bucket = -1); /* before there are decisions */
    PUT(w, wrap, NULL, .params = 1, .group = WORLD);
    PUT(w, hook_in_force, "powersgd", .level = 0);
    PUT(w, hook_option, "start_powerSGD_iter", .value = cd_f64_bits(2));
    PUT(w, hook_option, "warm_start", .value = cd_f64_bits(1));
    PUT(w, seed, "model", .stream = 0, .policy = CDDP_POLICY_SHARED, .state = 0x123456789abcdef0);
}

static void put_decisions(writer *w)
{
    DECIDE(w, STEPS, NULL, -1, -1, -1, .value = STEPS);
    DECIDE(w, ORDER, NULL, -1, -1, -1, .value = 1);
    DECIDE(w, ZERO_GRAD, NULL, -1, -1, -1, .value = CDDP_PRESENCE_ABSENT);
    DECIDE(w, DIVISOR, NULL, -1, -1, -1, .real = cd_f64_bits(0));
    DECIDE(w, PARAMETER, "fc.weight", 0, -1, -1, .value = 1, .detail = 1);
    DECIDE(w, HOOK, "powersgd", 0, -1, -1, .value = 0);
    DECIDE(w, HOOK_OPTION, "start_powerSGD_iter", 0, -1, -1, .real = cd_f64_bits(2));
    DECIDE(w, SEED, "model", 0, -1, -1, .digest = 0x123456789abcdef0);
    DECIDE(w, GROUP, "world", CD_GROUP_OF_WRAPPER, -1, -1, .value = RANKS, .detail = w->rank,
           .digest = 77);
    DECIDE(w, GROUP, "part", CD_GROUP_NAMED, -1, -1, .value = RANKS, .detail = w->rank,
           .digest = 77);
    DECIDE(w, GROUP, "part", CD_GROUP_TAKEN, 1, -1, .value = RANKS);
    DECIDE(w, GROUP, "part", CD_GROUP_OF_COLLECTIVE + 2, -1, -1, .value = 1);
    for (int64_t step = 0; step < STEPS; step++) {
        DECIDE(w, UPDATE, NULL, 0, step, -1, .value = 1,
               .real = cd_f64_bits(0.125 / (double)(step + 1)));
        DECIDE(w, AVERAGE, "fc.weight", 0, step, -1, .value = step == 1 ? RANKS : 0);
        DECIDE(w, AGREEMENT, NULL, -1, step, -1, .value = RANKS, .detail = RANKS,
               .real = cd_f64_bits(RANKS));
        DECIDE(w, GROUP, step == 1 ? "part" : "world", CD_GROUP_OF_BUCKETS, step, 1, .value = 1);
        for (int64_t micro = 0; micro < 2; micro++) {
            DECIDE(w, SAMPLE, NULL, 0, step, micro, .value = (step * 2 + micro) * RANKS + w->rank,
                   .real = cd_f64_bits(0.5));
            DECIDE(w, WINDOW, NULL, -1, step, micro, .value = micro, .real = cd_f64_bits(1));
            DECIDE(w, OUTPUT, "head", CD_OUTPUT_DIVISOR_ID(0, 1), step, micro,
                   .real = cd_f64_bits(4));
            DECIDE(w, OUTPUT, "head", CD_OUTPUT_WEIGHT_ID(0, 1), step, micro,
                   .real = cd_f64_bits(0.5));
        }
    }
}

static void put_micro(writer *w)
{
    PUT(w, forward_begin, NULL, .sync = w->micro, .grad_mode = 1);
    PUT(w, sample, NULL, .sample = (w->step * 2 + w->micro) * RANKS + w->rank,
        .weight = cd_f64_bits(0.5));
    PUT(w, samples, NULL, .count = 1, .tokens = 1, .weight = cd_f64_bits(0.5));
    PUT(w, loss, NULL, .forward = 0, .divisor = cd_f64_bits(0), .scale = cd_f64_bits(8));
    PUT(w, loss, "head", .forward = 0, .divisor = cd_f64_bits(4), .scale = cd_f64_bits(8),
        .output = 1, .weight = cd_f64_bits(0.5));
    if (w->micro == 0) PUT(w, backward_entry, NULL, .absent = 1);
    PUT(w, mark_ready, NULL, .param = 0);
    if (w->micro == 1)
        PUT(w, collective_post, NULL, .group = w->step == 1 ? PART : WORLD, .sequence = w->step);
    PUT(w, mark, CD_TRACER_OWN_COLLECTIVE, .value = 2);
    PUT(w, collective_post, NULL, .group = PART, .sequence = 2 + w->micro, .bucket = -1);
    PUT(w, backward_end, NULL, .finalized = w->micro);
}

static void put_step(writer *w)
{
    DECIDE(w, SCALE, NULL, -1, w->step, -1, .real = cd_f64_bits(8));
    w->micro = 0;
    if (w->step == 1) PUT(w, regroup, NULL, .group = PART);
    PUT(w, agreement, NULL, .gradients = RANKS, .parameters = RANKS, .state = RANKS);
    for (w->micro = 0; w->micro < 2; w->micro++) put_micro(w);
    w->micro = 1;
    DECIDE(w, OVERFLOW, NULL, 0, w->step, -1, .value = 0);
    DECIDE(w, CLIP, NULL, -1, w->step, -1, .real = cd_f64_bits(0.5), .bound = cd_f64_bits(1e-9));
    PUT(w, optimizer_step, "sgd", .lr = cd_f64_bits(0.125 / (double)(w->step + 1)),
        .loss_scale = cd_f64_bits(8), .clip = cd_f64_bits(0.5 + 1e-10), .norm = cd_f64_bits(2),
        .unscaled_before_clip = 1);
    if (w->step == 1) PUT(w, average, NULL, .ordinal = 0, .ranks = RANKS);
    PUT(w, zero_grad, NULL, .optimizer = -1, .to_none = 1);
}

static void put_rank(writer *w)
{
    put_construction(w);
    put_decisions(w);
    for (w->step = 0; w->step < STEPS; w->step++) put_step(w);
    w->step = STEPS - 1;
    PUT(w, rank_end, NULL, .status = CDDP_OK);
}

static cd_judge *judge(edit_fn edit, int32_t only)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_judge *j = NULL;
    assert_ok(cd_judge_create(&(cd_judge_options){0}, &j, &err), &err);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        writer w = {.sink = cd_judge_get_sink(j), .edit = edit, .only = only, .rank = rank};
        put_rank(&w);
    }
    assert_ok(cd_judge_end(j, &err), &err);
    return j;
}

/* ---- what may be done otherwise ---- */

static bool lr(cddp_event *e)
{
    if (e->kind == CDDP_EV_optimizer_step) e->as.optimizer_step.lr = cd_f64_bits(1.25);
    return true;
}
static bool scale(cddp_event *e)
{
    if (e->kind == CDDP_EV_optimizer_step) e->as.optimizer_step.loss_scale = cd_f64_bits(16);
    return true;
}
static bool loss_scale(cddp_event *e)
{
    if (e->kind == CDDP_EV_loss) e->as.loss.scale = cd_f64_bits(16);
    return true;
}
static bool clip(cddp_event *e)
{
    if (e->kind == CDDP_EV_optimizer_step) e->as.optimizer_step.clip = cd_f64_bits(0.25);
    return true;
}
static bool order(cddp_event *e)
{
    if (e->kind == CDDP_EV_optimizer_step) e->as.optimizer_step.unscaled_before_clip = 0;
    return true;
}
static bool skips(cddp_event *e)
{
    if (e->kind == CDDP_EV_optimizer_step && e->step == 1) e->as.optimizer_step.skipped = 1;
    return true;
}
static bool fewer(cddp_event *e) { return e->kind != CDDP_EV_optimizer_step || e->step == 0; }
static bool more(cddp_event *e)
{
    if (e->kind == CDDP_EV_optimizer_step && e->step == 1) e->step = 2;
    return true;
}
static bool not_zeroed(cddp_event *e)
{
    if (e->kind == CDDP_EV_backward_entry && e->step == 1)
        e->as.backward_entry = (cddp_event_backward_entry){.kept = 1};
    return true;
}
/* Gradients are kept, but for that of fc.weight when an optimizer in backward has stepped it. */
static bool drops_in_backward(cddp_event *e)
{
    if (e->kind == CDDP_EV_decision && e->as.decision.decision == CDDP_DECISION_ZERO_GRAD) {
        e->as.decision.value = CDDP_PRESENCE_VALUE;
        e->as.decision.detail = 1;
    }
    return true;
}
static bool keeps_in_backward(cddp_event *e) { return drops_in_backward(e) && not_zeroed(e); }
static bool not_kept(cddp_event *e)
{
    if (e->kind == CDDP_EV_decision && e->as.decision.decision == CDDP_DECISION_ZERO_GRAD)
        e->as.decision.value = CDDP_PRESENCE_VALUE;
    return true;
}
/* They are there, and zero in every element. */
static bool zeros_instead(cddp_event *e)
{
    if (e->kind == CDDP_EV_backward_entry && e->step == 1)
        e->as.backward_entry = (cddp_event_backward_entry){.zero = 1};
    return not_kept(e);
}
static bool keeps_zeros(cddp_event *e) { return e->kind != CDDP_EV_zero_grad && zeros_instead(e); }
/* Step 0 reduces nothing: what is kept of it is local, and nobody has consumed it. */
static bool keeps_local(cddp_event *e)
{
    if (e->kind == CDDP_EV_backward_end && e->step == 0) e->as.backward_end.finalized = 0;
    return keeps_in_backward(e);
}
static bool closes_early(cddp_event *e)
{
    if (e->kind == CDDP_EV_backward_end) e->as.backward_end.finalized = 1;
    return true;
}
static bool never_closes(cddp_event *e)
{
    if (e->kind == CDDP_EV_backward_end) e->as.backward_end.finalized = 0;
    if (e->kind == CDDP_EV_forward_begin) e->as.forward_begin.sync = 0;
    return true;
}
static bool no_backward(cddp_event *e)
{
    return e->kind != CDDP_EV_backward_end || e->micro_step != 0;
}
static bool other_sample(cddp_event *e)
{
    if (e->kind == CDDP_EV_sample) e->as.sample.sample += 1000;
    return true;
}
static bool other_weight(cddp_event *e)
{
    if (e->kind == CDDP_EV_sample) e->as.sample.weight = cd_f64_bits(1);
    return true;
}
static bool other_epoch(cddp_event *e)
{
    if (e->kind == CDDP_EV_sample && e->step == 1) e->as.sample.epoch = 1;
    return true;
}
static bool no_sample(cddp_event *e) { return e->kind != CDDP_EV_sample || e->step == 0; }
static bool divisor(cddp_event *e)
{
    if (e->kind == CDDP_EV_loss && e->as.loss.output == 0) e->as.loss.divisor = cd_f64_bits(3);
    return true;
}
static bool divisor_of_output(cddp_event *e)
{
    if (e->kind == CDDP_EV_loss && e->as.loss.output == 1) e->as.loss.divisor = cd_f64_bits(3);
    return true;
}
static bool weight_of_output(cddp_event *e)
{
    if (e->kind == CDDP_EV_loss && e->as.loss.output == 1) e->as.loss.weight = cd_f64_bits(1);
    return true;
}
static bool other_group(cddp_event *e)
{
    if (e->kind == CDDP_EV_regroup) e->as.regroup.group = OTHER;
    return true;
}
static bool leaves(cddp_event *e)
{
    if (e->kind == CDDP_EV_regroup) e->as.regroup.group = -1;
    return true;
}
static bool regroups_early(cddp_event *e)
{
    if (e->kind == CDDP_EV_regroup) e->step = 0;
    return true;
}
static bool reduces_in_the_old_group(cddp_event *e)
{
    const bool is_bucket = e->kind == CDDP_EV_collective_post && e->as.collective_post.bucket >= 0;
    if (is_bucket) e->as.collective_post.group = WORLD;
    return true;
}
static bool posts_elsewhere(cddp_event *e)
{
    const bool is_early = e->kind == CDDP_EV_collective_post && e->as.collective_post.bucket < 0;
    if (is_early) e->as.collective_post.group = OTHER;
    return true;
}
/* The wrapper's group is a group of the plan, too. */
static bool another_collective_group(cddp_event *e)
{
    const bool is_own = e->kind == CDDP_EV_collective_post && e->as.collective_post.bucket < 0 &&
                        e->as.collective_post.group == PART;
    if (is_own) e->as.collective_post.group = WORLD;
    return true;
}
static bool other_members(cddp_event *e)
{
    if (e->kind == CDDP_EV_group) e->as.group.members_digest++;
    return true;
}
static bool opens_twice(cddp_event *e)
{
    if (e->kind != CDDP_EV_group) return true;
    e->as.group.group = WORLD;
    e->text = "world";
    return true;
}
static bool never_regroups(cddp_event *e) { return e->kind != CDDP_EV_regroup; }
static bool freezes(cddp_event *e)
{
    if (e->kind == CDDP_EV_param) {
        e->as.param.requires_grad = 0;
        e->as.param.param = -1;
    }
    return true;
}
static bool other_hook(cddp_event *e)
{
    if (e->kind == CDDP_EV_hook_in_force) e->text = "allreduce";
    return true;
}
static bool no_hook(cddp_event *e) { return e->kind != CDDP_EV_hook_in_force; }
static bool option(cddp_event *e)
{
    if (e->kind == CDDP_EV_hook_option && strcmp(e->text, "start_powerSGD_iter") == 0)
        e->as.hook_option.value = cd_f64_bits(3);
    return true;
}
static bool averages_early(cddp_event *e)
{
    if (e->kind == CDDP_EV_average) e->step = 0;
    return true;
}
static bool averages_in_blocks(cddp_event *e)
{
    if (e->kind == CDDP_EV_average) e->as.average.ranks = 1;
    return true;
}
static bool never_averages(cddp_event *e) { return e->kind != CDDP_EV_average; }
static bool agreement(cddp_event *e)
{
    if (e->kind == CDDP_EV_agreement) e->as.agreement.gradients = 1;
    return true;
}
static bool seed(cddp_event *e)
{
    if (e->kind == CDDP_EV_seed) e->as.seed.state = 7;
    return true;
}

static const struct {
    const char *name, *check, *words;
    edit_fn edit;
} cases[] = {
    {"another learning rate", "I-STEP", "the learning rate of 'sgd'", lr},
    {"unscaled by another scale", "I-STEP", "unscaled by another loss scale", scale},
    {"losses scaled otherwise", "I-STEP", "a loss is multiplied with another scale", loss_scale},
    {"clipped otherwise", "I-STEP", "the clip factor", clip},
    {"clipped before unscaling", "I-STEP", "clipped while they are still scaled", order},
    {"a step skipped", "I-STEP", "skips a step without a reason", skips},
    {"a step fewer", "I-STEP", "does not step as often", fewer},
    {"a step more", "I-STEP", "steps more often", more},
    {"gradients kept", "I-STEP", "not as train.zero_grad leaves them", not_zeroed},
    {"kept by an optimizer in backward", "I-STEP", "not as train.zero_grad leaves them",
     keeps_in_backward},
    {"gradients not kept", "I-STEP", "not as train.zero_grad leaves them", not_kept},
    {"gradients zeroed, not kept", "I-STEP", "zero_grad is called, where gradients are to be kept",
     zeros_instead},
    {"a window closed early", "I-STEP", "a reduction closes early", closes_early},
    {"a window never closed", "I-STEP", "does not close where the plan decides", never_closes},
    {"a backward left out", "I-STEP", "does not run the backwards", no_backward},
    {"other samples", "I-DATA", "other samples than the plan's", other_sample},
    {"other weights", "I-DATA", "other weights than the plan's", other_weight},
    {"another epoch", "I-DATA", "samples of another epoch", other_epoch},
    {"samples left out", "I-DATA", "samples of the plan are not consumed", no_sample},
    {"another divisor", "I-DATA", "the loss is divided by another number", divisor},
    {"another divisor of an output", "I-DATA",
     "the loss of output 'head' is divided by another number", divisor_of_output},
    {"another weight of an output", "I-DATA",
     "the loss of output 'head' is multiplied by another number", weight_of_output},
    {"another group", "I-GROUP", "the wrapper's process group is not the plan's", other_group},
    {"no group any more", "I-GROUP", "the wrapper's process group is not the plan's", leaves},
    {"another group too early", "I-GROUP", "the wrapper's process group becomes another one",
     regroups_early},
    {"the old group", "I-GROUP", "the wrapper's process group is not the plan's", never_regroups},
    {"buckets in the old group", "I-GROUP", "buckets are reduced in group 'world'",
     reduces_in_the_old_group},
    {"a collective elsewhere", "I-GROUP", "a collective is posted in group 'other'",
     posts_elsewhere},
    {"a collective in another group of the plan", "I-GROUP",
     "[[collective]] 2 (from 0) is posted in group 'world'", another_collective_group},
    {"other members", "I-GROUP", "in group 'world', which is not the plan's", other_members},
    {"a group twice", "I-GROUP", "group 'world' is opened again", opens_twice},
    {"a parameter frozen", "I-META", "parameter fc.weight is frozen", freezes},
    {"another hook", "I-META", "the comm hook in force is not the plan's", other_hook},
    {"no hook", "I-META", "the comm hook in force is not the plan's", no_hook},
    {"another option", "I-META", "option start_powerSGD_iter", option},
    {"an average too early", "I-META", "fc.weight is averaged otherwise", averages_early},
    {"an average in blocks", "I-META", "fc.weight is averaged otherwise", averages_in_blocks},
    {"no average", "I-META", "does not take place", never_averages},
    {"other blocks agree", "I-META", "blocks of ranks that are to agree", agreement},
    {"another seed", "I-SEED", "'model' is not that of world.seed", seed},
};

static const cddp_finding *find(const cd_judge *j, const char *words)
{
    for (size_t i = 0; i < cd_judge_finding_count(j); i++) {
        const cddp_finding *f = cd_judge_get_finding(j, i);
        if (strstr(f->title, words) != NULL) return f;
    }
    return NULL;
}

/* The trace is no whole run: other checks may find fault with it, the plan's decisions must not. */
TEST(obey, a_run_that_does_what_the_plan_decides_is_silent)
{
    cd_judge *j = judge(NULL, ALL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%s", cases[i].name);
        assert_null(find(j, cases[i].words));
    }
    cd_judge_destroy(j);
}

TEST(obey, where_gradients_are_kept_a_consumed_one_is_gone_and_a_local_one_stays)
{
    const edit_fn edits[] = {drops_in_backward, keeps_local, keeps_zeros};
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        cd_judge *j = judge(edits[i], ALL);
        cd_test_row("edit %zu", i);
        assert_null(find(j, "not as train.zero_grad leaves them"));
        cd_judge_destroy(j);
    }
}

TEST(obey, exactly_the_rank_that_disobeys_is_named)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_judge *j = judge(cases[i].edit, 1);
        const cddp_finding *f = find(j, cases[i].words);
        cd_test_row("%s", cases[i].name);
        assert_non_null(f);
        assert_string_equal(f->check, cases[i].check);
        assert_int_equal(f->rank, 1);
        assert_int_equal(f->rank_count, 1);
        assert_true(strncmp(f->title, "rank 1: ", 8) == 0);
        assert_true(f->expected[0] != '\0' && f->actual[0] != '\0');
        cd_judge_destroy(j);
    }
}

/* Two against one: the plan decides, not the majority. */
TEST(obey, one_rank_that_obeys_against_two_is_no_suspect)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_judge *j = judge(cases[i].edit, ALL_BUT_RANK_1);
        const cddp_finding *f = find(j, cases[i].words);
        cd_test_row("%s", cases[i].name);
        assert_non_null(f);
        assert_string_equal(f->check, cases[i].check);
        assert_int_equal(f->rank, 0);
        assert_int_equal(f->rank_count, RANKS - 1);
        cd_test_row("%s: %s", cases[i].name, f->title);
        assert_non_null(strstr(f->title, "ranks 0 and 2: "));
        for (size_t k = 0; k < cd_judge_finding_count(j); k++) {
            const cddp_finding *other = cd_judge_get_finding(j, k);
            if (strstr(other->title, cases[i].words) != NULL) assert_int_not_equal(other->rank, 1);
        }
        cd_judge_destroy(j);
    }
}

TEST(obey, where_all_disobey_no_majority_is_right)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_judge *j = judge(cases[i].edit, ALL);
        const cddp_finding *f = find(j, cases[i].words);
        cd_test_row("%s", cases[i].name);
        assert_non_null(f);
        assert_int_equal(f->rank, -1);
        assert_int_equal(f->rank_count, RANKS);
        assert_true(strncmp(f->title, "all ranks: ", 11) == 0);
        cd_judge_destroy(j);
    }
}

/* A stored trace of a run that nobody judged has no decisions: nothing is claimed of it. */
static bool no_decisions(cddp_event *e) { return e->kind != CDDP_EV_decision && lr(e); }

TEST(obey, without_decisions_nothing_is_judged)
{
    cd_judge *j = judge(no_decisions, ALL);
    assert_null(find(j, "the learning rate of 'sgd'"));
    cd_judge_destroy(j);
}

TEST_MAIN()
