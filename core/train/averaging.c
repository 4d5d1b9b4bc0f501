/* SPDX-License-Identifier: Apache-2.0 */
/* The model averager of a scenario: it averages (core/hooks/averager.c), and reports who must
** agree.
**
** Gradients agree in the blocks over which the hook reduces; parameters where gradients and state
** agreed, and after an average in its block; optimizer state, which is not averaged (AVG-02), where
** gradients always did. An agreement event reports it before the step, to I-PARAMEQ, I-GRADEQ and
** I-HOOK.
**
** Not here: what an average keeps, which the judge states (core/reference/custody_average.c).
**
** Limits: one reduction per step; blocks are of consecutive ranks of the world.
*/
#include "core/train/trainer.h"

#include "core/base/error.h"
#include "core/base/pattern.h"
#include "core/train/points.h"
#include "cddp/averager.h"
#include "core/hooks/host.h"
#include "core/plan/plan.h"

struct cd_averaging {
    cddp_averager *averager;
    uint32_t *averaged; /* (parameter_count) over how many ranks in the last step; 0: not */
    cd_plan_level levels[CD_PLAN_LEVELS_MAX];
    uint32_t level_count, world_size;
    cddp_grad **grads; /* (parameter_count) of the module */
    uint64_t *periods; /* (parameter_count) per parameter, 0: none; NULL: no parameter has one */
    uint32_t *agreed;  /* (parameter_count) with periods: who agrees on each since the last step */
    size_t parameter_count;
    uint32_t parameters, state; /* who agrees since the last step: block sizes */
    uint32_t gradients;         /* of the step at hand: the block over which the hook averages */
    uint32_t due;               /* of the step at hand: block size, 0: no average */
};

static uint32_t least_of(uint32_t a, uint32_t b) { return a < b ? a : b; }

static cddp_status read_periods(cd_trainer *t, struct cd_averaging *a, cddp_error *err)
{
    const cddp_text_list *periods = &t->program.settings.averager.periods;
    const cd_module *module = cd_trainer_module(t);
    if (periods->count == 0) return CDDP_OK;
    a->periods = cd_arena_array(&t->memory, a->parameter_count, sizeof *a->periods);
    a->agreed = cd_arena_array(&t->memory, a->parameter_count, sizeof *a->agreed);
    CD_TRY(cd_arena_check(&t->memory, err, "the periods of an averager"));
    for (size_t i = 0; i < a->parameter_count; i++) {
        a->periods[i] = 0;
        a->agreed[i] = a->world_size;
        for (size_t k = 0; k < periods->count; k++) {
            char pattern[CD_PLAN_PATTERN_BYTES];
            uint64_t period = 0;
            if (!cd_plan_read_period(periods->items[k], pattern, &period)) {
                return cd_fail(err, CDDP_E_CONFIG, "averager.periods: '%s' is not pattern=period",
                               periods->items[k]);
            }
            a->periods[i] =
                cd_pattern_matches(pattern, module->parameters[i].name) ? period : a->periods[i];
        }
    }
    return CDDP_OK;
}

static cddp_status make_averager(cd_trainer *t, struct cd_averaging *a, cddp_error *err)
{
    const cddp_plan_averager *plan = &t->program.settings.averager;
    cddp_averager_level levels[CD_PLAN_LEVELS_MAX];
    a->level_count = cd_plan_read_levels(plan->levels, a->levels);
    for (uint32_t i = 0; i < a->level_count; i++) {
        a->levels[i].ranks = a->levels[i].ranks != 0 ? a->levels[i].ranks : a->world_size;
        levels[i] = (cddp_averager_level){a->levels[i].period, a->levels[i].ranks};
    }
    const cddp_averager_options options = {.size = sizeof options,
                                           .group = t->groups.world,
                                           .levels = levels,
                                           .level_count = a->level_count,
                                           .warmup_steps = plan->warmup_steps,
                                           .hierarchical = plan->kind == CDDP_AVERAGER_HIERARCHICAL,
                                           .periods = a->periods,
                                           .parameter_count = a->parameter_count,
                                           .averaged = a->averaged};
    CD_TRY(cddp_averager_create(&options, &a->averager, err));
    return CDDP_OK;
}

/* STA-04: there a hook does not learn which bucket is the last, and counts one reduction less.
** When ranks start to part is the plan's to say, and it knows no buckets. */
static cddp_status check_start(const cd_trainer *t, cddp_error *err)
{
    const cddp_hook *hook = t->reduction.hook;
    const bool is_uncounted =
        t->program.settings.ddp.static_graph && t->ddp != NULL && cddp_ddp_bucket_count(t->ddp) > 1;
    if (!is_uncounted || hook == NULL || hook->agreement == NULL) return CDDP_OK;
    return cd_fail(err, CDDP_E_CONFIG,
                   "comm hook %s beside an averager starts one reduction late where a static graph "
                   "has %u buckets (STA-04): drop ddp.static_graph, or let one bucket hold all "
                   "gradients",
                   hook->name, cddp_ddp_bucket_count(t->ddp));
}

cddp_status cd_trainer_open_averager(cd_trainer *t, cddp_error *err)
{
    cd_module *module = cd_trainer_module(t);
    if (t->program.settings.averager.kind == CDDP_AVERAGER_NONE) return CDDP_OK;
    CD_TRY(check_start(t, err));
    CD_POINT_COUNT("averager.warmup", t, t->program.settings.averager.warmup_steps);
    struct cd_averaging *a = cd_arena_push(&t->memory, sizeof *a);
    CD_TRY(cd_arena_check(&t->memory, err, "the averager of a scenario"));
    t->averaging = a;
    a->world_size = a->parameters = a->state = cddp_group_size(t->groups.world);
    a->parameter_count = module->parameter_count;
    a->grads = cd_arena_array(&t->memory, a->parameter_count + 1, sizeof *a->grads);
    a->averaged = cd_arena_array(&t->memory, a->parameter_count + 1, sizeof *a->averaged);
    CD_TRY(cd_arena_check(&t->memory, err, "the gradients of an averager"));
    for (size_t i = 0; i < a->parameter_count; i++) a->grads[i] = &module->parameters[i].grad;
    CD_TRY(read_periods(t, a, err));
    CD_TRY(make_averager(t, a, err));
    return CDDP_OK;
}

void cd_trainer_close_averager(cd_trainer *t)
{
    if (t->averaging != NULL) {
        cddp_averager_destroy(t->averaging->averager);
        t->averaging = NULL;
    }
}

/* ---- who must agree ---- */

/* AVG-01 counts from the end of the warm-up, AVG-03 from the beginning. */
static uint32_t due_at(const cd_trainer *t, uint64_t step)
{
    const struct cd_averaging *a = t->averaging;
    const cddp_plan_averager *plan = &t->program.settings.averager;
    const uint64_t counted =
        plan->kind == CDDP_AVERAGER_PERIODIC ? step - plan->warmup_steps : step;
    uint32_t due = 0;
    for (uint32_t i = 0; step >= plan->warmup_steps && i < a->level_count; i++)
        due = counted % a->levels[i].period == 0 ? a->levels[i].ranks : due;
    return due;
}

/* The same for one parameter. */
static uint32_t due_of(const cd_trainer *t, size_t parameter)
{
    const struct cd_averaging *a = t->averaging;
    const uint64_t own = a->periods != NULL ? a->periods[parameter] : 0,
                   warmup = t->program.settings.averager.warmup_steps;
    if (own == 0) return a->due;
    return t->now.step >= warmup && (t->now.step - warmup) % own == 0 ? a->world_size : 0;
}

/* The blocks over which the hook will reduce. */
static uint32_t reduced_over(const cd_trainer *t)
{
    uint32_t ranks = 0;
    if (t->reduction.hook != NULL && (t->reduction.hook->flags & CDDP_HOOK_NO_COMM) != 0) return 1;
    if (t->reduction.hook != NULL && t->reduction.hook->agreement != NULL) {
        cd_tracer_call(t->tracer, t->reduction.hook->name, "agreement");
        ranks = t->reduction.hook->agreement(cddp_ddp_comm_hook_state(t->ddp));
        cd_tracer_call(t->tracer, NULL, NULL);
    }
    return ranks != 0 ? ranks : t->averaging->world_size;
}

void cd_trainer_emit_agreement(cd_trainer *t)
{
    struct cd_averaging *a = t->averaging;
    if (a == NULL) return;
    a->gradients = reduced_over(t);
    a->state = least_of(a->state, a->gradients);
    a->due = due_at(t, t->now.step);
    const uint32_t stepped = least_of(a->parameters, a->state);
    a->parameters = a->due > stepped ? a->due : stepped;
    CD_POINT_COUNT("averager.agreement", t, a->parameters);
    CD_EMIT(t->tracer, agreement, NULL, .gradients = a->gradients, .parameters = a->parameters,
            .state = a->state);
    for (size_t i = 0; a->periods != NULL && i < a->parameter_count; i++) {
        const uint32_t before = least_of(a->agreed[i], a->state), due = due_of(t, i);
        a->agreed[i] = due > before ? due : before;
        if (a->agreed[i] != a->parameters) {
            CD_EMIT(t->tracer, agreement, NULL, .gradients = a->gradients,
                    .parameters = a->agreed[i], .state = a->state, .ordinal = (int64_t)i + 1);
        }
    }
}

uint32_t cd_trainer_get_block(const cd_trainer *t)
{
    const struct cd_averaging *a = t->averaging;
    if (a == NULL || t->reduction.hook == NULL || t->reduction.inner_hook != NULL ||
        (t->reduction.hook->agreement == NULL &&
         (t->reduction.hook->flags & CDDP_HOOK_NO_COMM) == 0))
        return 0;
    return a->gradients;
}

/* ---- the average ---- */

cddp_status cd_trainer_average(cd_trainer *t, cddp_error *err)
{
    struct cd_averaging *a = t->averaging;
    if (a == NULL) return CDDP_OK;
    cd_trainer_refresh_views(t);
    CD_TRY(cddp_averager_step(a->averager, t->view.parameters, a->grads, a->parameter_count, err));
    for (size_t i = 0; i < a->parameter_count; i++) {
        if (a->averaged[i] == 0) continue;
        CD_EMIT(t->tracer, average, NULL, .ordinal = (int64_t)i, .ranks = a->averaged[i]);
    }
    CD_POINT_PARAMETERS("average.parameter", t);
    return CD_PASS(cd_trainer_show(t, CDDP_MOMENT_AFTER_AVERAGE, err));
}

/* ---- checkpoint ---- */

cddp_status cd_trainer_save_averager(const cd_trainer *t, const cddp_state_writer *writer,
                                     cddp_error *err)
{
    const struct cd_averaging *a = t->averaging;
    if (a == NULL) return CDDP_OK;
    const uint64_t words[3] = {cddp_averager_get_step(a->averager), a->parameters, a->state};
    cd_state_out out = {.writer = writer, .who = "the averager"};
    CD_TRY(cd_state_put(&out, words, sizeof words, err));
    if (a->agreed != NULL)
        CD_TRY(cd_state_put(&out, a->agreed, a->parameter_count * sizeof *a->agreed, err));
    return CD_PASS(cd_state_put_seal(&out, err));
}

cddp_status cd_trainer_load_averager(cd_trainer *t, const cddp_state_reader *reader,
                                     cddp_error *err)
{
    uint64_t words[3];
    if (t->averaging == NULL) return CDDP_OK;
    cd_state_in in = {.reader = reader, .who = "the averager"};
    CD_TRY(cd_state_get(&in, words, sizeof words, err));
    cddp_averager_set_step(t->averaging->averager, words[0]);
    t->averaging->parameters = (uint32_t)words[1];
    t->averaging->state = (uint32_t)words[2];
    if (t->averaging->agreed != NULL)
        CD_TRY(cd_state_get(&in, t->averaging->agreed,
                            t->averaging->parameter_count * sizeof *t->averaging->agreed, err));
    return CD_PASS(cd_state_check_seal(&in, err));
}
