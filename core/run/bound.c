/* SPDX-License-Identifier: Apache-2.0 */
#include "core/run/bound.h"

#include "core/plan/plan.h"

/* Beyond what the check takes for a livelock, so that it finds every rank of the loop past that. */
#define PATIENCE 2u
/* Events of a rank between two collectives or passes, for each collective that it may post there. A
** hook says of each parameter what it did with it. */
#define EVENTS_PER_POST 256u
/* Steps beyond the last one of the plan; a wrong number of them is I-STEP's. */
#define STEPS_BEYOND 64u

static uint64_t most_steps(const cddp_plan *plan)
{
    uint64_t most = plan->settings.train.steps;
    for (uint32_t i = 0; i < plan->world.size; i++) {
        cddp_plan_settings settings;
        if (cddp_plan_rank_settings(plan, i, &settings, NULL) == CDDP_OK &&
            settings.train.steps > most)
            most = settings.train.steps;
    }
    return most;
}

static bool is_behind_the_end(cd_bound *b, uint32_t step)
{
    if (step <= PATIENCE * b->plan->settings.train.steps + STEPS_BEYOND) return false;
    if (b->steps_most == 0) b->steps_most = PATIENCE * most_steps(b->plan) + STEPS_BEYOND;
    return step > b->steps_most;
}

/* Within what every plan is allowed: most events need no bound to be computed. */
static bool is_near(const cd_bound *b, const cd_circle *r, uint32_t step)
{
    return r->posts <= b->least && r->passes <= b->least && r->events <= b->least &&
           r->not_counted <= CD_CIRCLE_SHADOWS_MAX && step <= b->plan->settings.train.steps;
}

static bool goes_too_far(cd_bound *b, const cd_circle *r, const cddp_event *e)
{
    /* the plan itself may ask for any number of collectives */
    const uint64_t allowed =
        PATIENCE * (cd_circles_allowed(&b->circles) + b->plan->collective_count);
    return r->posts > allowed || r->passes > allowed ||
           r->not_counted > (uint64_t)PATIENCE * CD_CIRCLE_SHADOWS_MAX ||
           r->events > EVENTS_PER_POST * allowed || is_behind_the_end(b, e->step);
}

static void bound_event(void *self, const cddp_event *e)
{
    cd_bound *b = self;
    if (!b->is_over && !b->relay->muted && e->rank < b->plan->world.size) {
        const cd_circle *r = cd_circles_push(&b->circles, e);
        if (r != NULL && !is_near(b, r, e->step) && goes_too_far(b, r, e)) {
            b->is_over = b->relay->is_endless = true;
            b->rank = e->rank;
        }
    }
    b->next->event(b->next->self, e);
}

static cddp_status bound_flush(void *self, cddp_error *err)
{
    const cd_bound *b = self;
    return b->next->flush != NULL ? CD_PASS(b->next->flush(b->next->self, err)) : CDDP_OK;
}

void cd_bound_init(cd_bound *b, const cddp_run_options *options, const cddp_trace_sink *next)
{
    *b = (cd_bound){.sink = {.size = sizeof b->sink,
                             .abi = CDDP_TRACE_ABI,
                             .self = b,
                             .event = bound_event,
                             .flush = bound_flush},
                    .next = next,
                    .relay = options->relay,
                    .plan = options->plan,
                    .least = PATIENCE * cd_circle_bound(0, 0, 0)};
    cd_circles_init(&b->circles, options->allocator);
    b->circles.without_operations = true;
}

void cd_bound_fini(cd_bound *b) { cd_circles_fini(&b->circles); }
