/* SPDX-License-Identifier: Apache-2.0 */
/* Several wrappers in one rank. Each has a trainer and a watcher by its own plan, as if it were
** alone; what they share is the rank, its tracer, and the process group where the plan gives them
** one. Here is only who goes on when.
**
** Invariant: a trainer is selected before it does anything, so that the tracer knows whose events
** follow.
*/
#include "core/run/turns.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/inject.h"
#include "core/plan/plan.h"
#include "core/run/intake.h"

typedef struct turn_taker {
    cd_intake *intake; /* NULL: nobody judges */
    cd_trainer *trainer;
    cd_micro micro; /* the last one, until the step ends */
    bool has_step, has_left;
} turn_taker;

typedef struct turns {
    const cd_rank_argument *argument;
    const cd_trainer_options *options;
    const cddp_plan *plan; /* the whole one */
    const cddp_allocator *allocator;
    turn_taker *takers; /* (count) */
    size_t *order;      /* (count) in this step */
    size_t count;
} turns;

/* ---- life ---- */

/* The group of the first wrapper without its own; NULL: it is made now. */
static cddp_group *shared_group(const turns *s, size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (!s->plan->wrappers[i].own_group) return s->takers[i].trainer->groups.world;
    return NULL;
}

static cddp_status open_one(turns *s, size_t index, cddp_error *err)
{
    const cd_run_wrapper *wrapper = &s->argument->wrappers->items[index];
    const cddp_plan_wrapper *planned = &s->plan->wrappers[index];
    cd_trainer_options options = *s->options;
    options.plan = wrapper->plan;
    options.wrapper = (int64_t)index;
    if (index > 0) options.named = s->takers[0].trainer->groups.named;
    bool has_own_group = planned->own_group;
    CD_INJECT_FLAG("wrap.own_group", options.rank->rank, 0, has_own_group);
    if (has_own_group)
        options.group_name = planned->name;
    else
        options.world = shared_group(s, index);
    cd_tracer_select(options.tracer, options.wrapper);
    if (s->argument->options->oracle) {
        const cd_intake_options watched = cd_rank_watch(s->argument, index, &options);
        CD_TRY(cd_intake_create(&watched, &s->takers[index].intake, err));
        options.watcher = cd_intake_get_watcher(s->takers[index].intake);
        cd_rank_report_unobserved(&options);
    }
    return CD_PASS(cd_trainer_create(&options, &s->takers[index].trainer, err));
}

/* Groups that are shared are the first trainer's, which goes last. The place where the rank ended
** stays. */
static void close_all(turns *s)
{
    struct cddp_tracer *tracer = s->options->tracer;
    const uint32_t step = tracer->step, micro_step = tracer->micro_step;
    for (size_t i = s->count; s->takers != NULL && i-- > 0;) {
        if (s->takers[i].trainer != NULL) cd_trainer_select(s->takers[i].trainer);
        cd_trainer_destroy(s->takers[i].trainer);
    }
    for (size_t i = s->count; s->takers != NULL && i-- > 0;) {
        cd_tracer_select(tracer, (int64_t)i);
        cd_intake_destroy(s->takers[i].intake);
    }
    cddp_tracer_set_step(tracer, step, micro_step);
    cd_release(s->allocator, s->takers, s->count * sizeof *s->takers);
    cd_release(s->allocator, s->order, s->count * sizeof *s->order);
}

/* ---- the loop ---- */

static cddp_status enter_step(turn_taker *taker, uint32_t step, cddp_error *err)
{
    taker->has_step = false;
    taker->has_left |= step >= cd_trainer_steps(taker->trainer);
    if (taker->has_left) return CDDP_OK;
    cd_trainer_select(taker->trainer);
    CD_TRY(cd_trainer_enter_step(taker->trainer, step, &taker->has_step, err));
    taker->has_left = !taker->has_step;
    return CDDP_OK;
}

static cddp_status run_micro(turn_taker *taker, uint32_t micro_step, cddp_error *err)
{
    cd_trainer_select(taker->trainer);
    return CD_PASS(cd_trainer_run_turn(taker->trainer, micro_step, &taker->micro, err));
}

static cddp_status leave_step(turn_taker *taker, cddp_error *err)
{
    cd_trainer_select(taker->trainer);
    return CD_PASS(cd_trainer_leave_step(taker->trainer, &taker->micro, err));
}

static cddp_status take_whole_steps(turns *s, uint32_t step, cddp_error *err)
{
    for (size_t i = 0; i < s->count; i++) {
        turn_taker *taker = &s->takers[s->order[i]];
        CD_TRY(enter_step(taker, step, err));
        if (!taker->has_step) continue;
        for (uint32_t m = 0; m < cd_trainer_micro_steps(taker->trainer); m++)
            CD_TRY(run_micro(taker, m, err));
        CD_TRY(leave_step(taker, err));
    }
    return CDDP_OK;
}

/* One that has fewer micro-steps waits for the others before its optimizers step. */
static cddp_status take_micro_steps(turns *s, uint32_t step, cddp_error *err)
{
    bool is_running = true;
    for (size_t i = 0; i < s->count; i++) CD_TRY(enter_step(&s->takers[s->order[i]], step, err));
    for (uint32_t m = 0; is_running; m++) {
        is_running = false;
        for (size_t i = 0; i < s->count; i++) {
            turn_taker *taker = &s->takers[s->order[i]];
            if (!taker->has_step || m >= cd_trainer_micro_steps(taker->trainer)) continue;
            is_running = true;
            CD_TRY(run_micro(taker, m, err));
        }
    }
    for (size_t i = 0; i < s->count; i++)
        if (s->takers[s->order[i]].has_step) CD_TRY(leave_step(&s->takers[s->order[i]], err));
    return CDDP_OK;
}

/* All join the context of the first one, which notifies the other ranks. end: excluded. */
static cddp_status train_epoch(turns *s, uint32_t first, uint32_t end, cddp_error *err)
{
    const uint32_t rank = s->options->rank->rank;
    const bool is_by_micro_step = s->plan->schedule.turns == CDDP_TURNS_MICRO_STEP;
    bool goes_on = true;
    for (size_t i = 0; i < s->count; i++) {
        s->takers[i].has_left = false;
        cd_trainer_select(s->takers[i].trainer);
        CD_TRY(cd_trainer_begin(s->takers[i].trainer, i > 0 ? s->takers[0].trainer : NULL, err));
    }
    for (uint32_t step = first; goes_on && step < end; step++) {
        cd_plan_order_wrappers(s->plan, rank, step, s->order);
        CD_TRY(is_by_micro_step ? take_micro_steps(s, step, err) : take_whole_steps(s, step, err));
        goes_on = false;
        for (size_t i = 0; i < s->count; i++) goes_on |= !s->takers[i].has_left;
    }
    return CDDP_OK;
}

static cddp_status train_all(turns *s, cddp_error *err)
{
    for (size_t i = 0; i < s->count; i++) CD_TRY(open_one(s, i, err));
    const cd_trainer *first = s->takers[0].trainer;
    const uint32_t epochs = cd_trainer_epochs(first), length = cd_trainer_steps(first) / epochs;
    for (uint32_t epoch = 0; epoch + 1 < epochs; epoch++) {
        CD_TRY(train_epoch(s, epoch * length, (epoch + 1) * length, err));
        for (size_t i = 0; i < s->count; i++) {
            cd_trainer_select(s->takers[i].trainer);
            CD_TRY(cd_trainer_end_epoch(s->takers[i].trainer, (epoch + 1) * length, err));
        }
    }
    CD_TRY(train_epoch(s, (epochs - 1) * length, UINT32_MAX, err));
    for (size_t i = 0; i < s->count; i++) {
        cd_trainer_select(s->takers[i].trainer);
        CD_TRY(cd_trainer_finish(s->takers[i].trainer, err));
    }
    return CDDP_OK;
}

cddp_status cd_turns_train(const cd_rank_argument *argument, const cd_trainer_options *options,
                           cddp_error *err)
{
    turns s = {.argument = argument,
               .options = options,
               .plan = argument->options->plan,
               .allocator = options->rank->allocator,
               .count = argument->wrappers->count};
    s.takers = cd_allocate_array(s.allocator, s.count, sizeof *s.takers);
    s.order = cd_allocate_array(s.allocator, s.count, sizeof *s.order);
    const cddp_status status = s.takers != NULL && s.order != NULL
                                   ? train_all(&s, err)
                                   : cd_fail_memory(err, "%zu wrappers", s.count);
    close_all(&s);
    return CD_PASS(status);
}
