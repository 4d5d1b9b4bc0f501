/* SPDX-License-Identifier: Apache-2.0 */
#include "core/run/judges.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/plan/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- the judge with the checks of a registry ---- */

static cddp_status make_judge(const cddp_registry *registry, const cddp_allocator *allocator,
                              cd_judge **judge, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    size_t count = 0;
    while (cddp_registry_check(registry, count) != NULL) count++;
    const cddp_check **checks = cd_allocate_array(allocator, count + 1, sizeof *checks);
    if (checks == NULL) return cd_fail_memory(err, "%zu checks", count);
    for (size_t i = 0; i < count; i++) checks[i] = cddp_registry_check(registry, i);
    /* The judge keeps the array's pointers, not the array: the tables are the registry's. */
    const cd_judge_options options = {.checks = checks,
                                      .check_count = count,
                                      .allocator = allocator};
    CD_TRY_OUT(cd_judge_create(&options, judge, err));
out:
    cd_release(allocator, checks, (count + 1) * sizeof *checks);
    return status;
}

/* ---- events ---- */

static void push_one(void *self, const cddp_event *event)
{
    cd_judges_one *one = self;
    const cddp_trace_sink *judge = cd_judge_get_sink(one->judge);
    cd_coverage_push(&one->coverage, event);
    judge->event(judge->self, event);
}

static void note_turn(cd_judges *j, const cddp_event *event)
{
    const int64_t wrapper = event->as.mark.value;
    if (wrapper < 0 || (size_t)wrapper >= j->count) return;
    j->is_exhausted |= !cd_vec_grow(j->allocator, (void **)&j->turns, &j->turn_capacity,
                                    j->turn_count + 1, sizeof *j->turns);
    if (j->is_exhausted) return;
    j->turns[j->turn_count++] =
        (struct cd_judges_turn){event->sequence, event->rank, (uint32_t)wrapper};
}

static size_t position_of(const cd_judges *j, size_t wrapper)
{
    size_t position = 0;
    while (position < j->count && j->order[position] != wrapper) position++;
    return position;
}

/* Does the forward come before the one that was last, as the plan has the turns? */
static bool is_early(const cd_judges *j, const struct cd_judges_place *last,
                     const struct cd_judges_place *now)
{
    if (!last->is_known || last->step != now->step) return false;
    if (j->plan->schedule.turns == CDDP_TURNS_MICRO_STEP && last->micro_step != now->micro_step)
        return now->micro_step < last->micro_step;
    return now->position < last->position;
}

/* The turns of wrappers are the plan's. Their values do not depend on them, so nothing else says
** so. */
static void follow_turns(cd_judges *j, const cddp_event *e)
{
    const int64_t wrapper = j->items[0].models.current[e->rank];
    if (wrapper < 0 || (size_t)wrapper >= j->count) return;
    struct cd_judges_place *last = &j->places[e->rank];
    cd_plan_order_wrappers(j->plan, e->rank, e->step, j->order);
    const struct cd_judges_place now = {e->step, e->micro_step, position_of(j, (size_t)wrapper),
                                        true};
    if (j->misturn.check == NULL && is_early(j, last, &now)) {
        cddp_finding *f = &j->misturn;
        *f = (cddp_finding){.size = sizeof *f,
                            .check = "I-STEP",
                            .step = e->step,
                            .micro_step = e->micro_step,
                            .rank = (int32_t)e->rank,
                            .peer = -1,
                            .bucket = -1,
                            .param = -1,
                            .event_count = 1};
        f->events[0].rank = e->rank;
        f->events[0].sequence = e->sequence;
        const char *early = j->items[wrapper].wrapper,
                   *late = j->items[j->order[last->position]].wrapper;
        snprintf(f->title, sizeof f->title,
                 "rank %" PRIu32 ": the turns of the wrappers are not the plan's", e->rank);
        snprintf(f->expected, sizeof f->expected, "wrapper '%.40s' goes before '%.40s'", early,
                 late);
        snprintf(f->actual, sizeof f->actual, "a forward of '%.40s' after one of '%.40s'", early,
                 late);
    }
    *last = now;
}

static void push_all(void *self, const cddp_event *event)
{
    cd_judges *j = self;
    if (cd_models_is_mark(event)) note_turn(j, event);
    for (size_t i = 0; i < j->count; i++) cd_models_push(&j->items[i].models, event);
    /* a rank without inputs shadows the others' turns, in the step in which it stays */
    if (event->kind == CDDP_EV_forward_begin && !event->as.forward_begin.joined &&
        event->rank < j->plan->world.size)
        follow_turns(j, event);
}

const cddp_trace_sink *cd_judges_get_sink(cd_judges *judges)
{
    cd_judges *j = judges;
    if (j->count == 0) return NULL;
    if (j->count == 1) return cd_judge_get_sink(j->items[0].judge);
    for (size_t i = 0; i < j->count; i++) {
        cd_judges_one *one = &j->items[i];
        one->sink = (cddp_trace_sink){sizeof one->sink, CDDP_TRACE_ABI, one, push_one, NULL};
        cd_models_begin(&one->models, (int64_t)i, &one->sink);
    }
    j->sink = (cddp_trace_sink){sizeof j->sink, CDDP_TRACE_ABI, j, push_all, NULL};
    return &j->sink;
}

/* ---- life ---- */

cddp_status cd_judges_open(cd_judges *judges, const cddp_plan *plan, const cddp_registry *registry,
                           const cddp_allocator *allocator, cddp_error *err)
{
    cd_judges *j = judges;
    *j = (cd_judges){.allocator = allocator, .count = cddp_plan_wrapper_count(plan), .plan = plan};
    j->items = cd_allocate_array(allocator, j->count, sizeof *j->items);
    j->places = cd_allocate_array(allocator, (size_t)plan->world.size, sizeof *j->places);
    j->order = cd_allocate_array(allocator, j->count, sizeof *j->order);
    if (j->items == NULL || j->places == NULL || j->order == NULL)
        return cd_fail_memory(err, "%zu judges", j->count);
    for (size_t i = 0; i < j->count; i++) {
        cd_judges_one *one = &j->items[i];
        if (plan->wrapper_count > 0) one->wrapper = plan->wrappers[i].name;
        CD_TRY(make_judge(registry, allocator, &one->judge, err));
        CD_TRY(cd_models_init(&one->models, (uint32_t)plan->world.size, allocator, err));
        one->models.has_own_data = true;
    }
    return CDDP_OK;
}

void cd_judges_close(cd_judges *j)
{
    for (size_t i = 0; j->items != NULL && i < j->count; i++) {
        cd_judge_destroy(j->items[i].judge);
        cd_models_fini(&j->items[i].models);
    }
    cd_release(j->allocator, j->items, j->count * sizeof *j->items);
    cd_release(j->allocator, j->turns, j->turn_capacity * sizeof *j->turns);
    if (j->plan != NULL)
        cd_release(j->allocator, j->places, (size_t)j->plan->world.size * sizeof *j->places);
    cd_release(j->allocator, j->order, j->count * sizeof *j->order);
    j->turns = NULL;
    j->places = NULL;
    j->order = NULL;
    j->items = NULL;
    j->count = 0;
}

cddp_status cd_judges_end(cd_judges *j, cddp_error *err)
{
    if (j->is_exhausted) return cd_fail_memory(err, "the turns of %zu wrappers", j->count);
    for (size_t i = 0; i < j->count; i++) CD_TRY(cd_judge_end(j->items[i].judge, err));
    return CDDP_OK;
}

/* ---- findings ---- */

/* The judge whose next finding comes first; the number of judges: none has any. next: (count) */
static size_t find_first(const cd_judges *j, const size_t *next)
{
    size_t first = j->count;
    uint64_t first_place = 0;
    uint32_t first_step = 0;
    for (size_t i = 0; i < j->count; i++) {
        const cd_judge *judge = j->items[i].judge;
        if (next[i] == cd_judge_finding_count(judge)) continue;
        const cddp_finding *f = cd_judge_get_finding(judge, next[i]);
        const uint64_t place = cd_judge_get_place(judge, next[i]);
        if (first < j->count &&
            (f->step > first_step || (f->step == first_step && place >= first_place)))
            continue;
        first = i;
        first_step = f->step;
        first_place = place;
    }
    return first;
}

/* Of one check, and resting on the same events. */
static bool is_same(const cddp_finding *a, const cddp_finding *b)
{
    bool is = strcmp(a->check, b->check) == 0 && a->step == b->step && a->rank == b->rank &&
              a->event_count == b->event_count;
    for (uint32_t i = 0; is && i < a->event_count; i++)
        is = a->events[i].rank == b->events[i].rank &&
             a->events[i].sequence == b->events[i].sequence;
    return is && (a->event_count > 0 || strcmp(a->title, b->title) == 0);
}

/* Of the ranks and their groups, whichever wrapper they are about. */
static bool is_of_groups(const cddp_finding *f)
{
    static const char *const checks[] = {"I-GROUP", "I-ORDER", "I-FAIL", "I-LIVE"};
    bool is = false;
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        is |= strcmp(f->check, checks[i]) == 0;
    return is;
}

static void name_wrapper(cddp_finding *f)
{
    char title[sizeof f->title];
    memcpy(title, f->title, sizeof title);
    const int used = snprintf(f->title, sizeof f->title, "wrapper '%.40s': ", f->wrapper);
    snprintf(f->title + used, sizeof f->title - (size_t)used, "%.*s",
             (int)(sizeof f->title - (size_t)used - 1), title);
}

/* The first wrapper goes first, until a mark says otherwise. */
static uint32_t wrapper_at(const cd_judges *j, uint32_t rank, uint64_t sequence)
{
    uint32_t wrapper = 0;
    for (size_t i = 0; i < j->turn_count; i++)
        if (j->turns[i].rank == rank && j->turns[i].sequence <= sequence)
            wrapper = j->turns[i].wrapper;
    return wrapper;
}

/* Ranks that disagree on an operation may each be right within another wrapper. */
static void tell_turns(const cd_judges *j, cddp_finding *f)
{
    if (f->event_count < 2 || strcmp(f->check, "I-ORDER") != 0) return;
    const uint32_t a = wrapper_at(j, f->events[0].rank, f->events[0].sequence);
    const uint32_t b = wrapper_at(j, f->events[1].rank, f->events[1].sequence);
    if (a == b) return;
    snprintf(f->advice, sizeof f->advice,
             "rank %" PRIu32 " is in wrapper '%.40s', rank %" PRIu32 " in '%.40s': wrappers that "
             "share a group take their turns in one order on all ranks",
             f->events[0].rank, j->items[a].wrapper, f->events[1].rank, j->items[b].wrapper);
}

/* Before what its step led to. */
static void put_misturn(const cd_judges *j, cddp_finding *findings, size_t *count)
{
    size_t at = 0;
    while (at < *count && findings[at].step < j->misturn.step) at++;
    memmove(&findings[at + 1], &findings[at], (*count - at) * sizeof *findings);
    findings[at] = j->misturn;
    ++*count;
}

cddp_finding *cd_judges_take_findings(const cd_judges *judges, cd_arena *arena, size_t *count)
{
    const cd_judges *j = judges;
    size_t total = 0, taken = 0;
    for (size_t i = 0; i < j->count; i++) total += cd_judge_finding_count(j->items[i].judge);
    cddp_finding *findings = cd_arena_push(arena, (total + 2) * sizeof *findings);
    size_t *next = cd_arena_array(arena, j->count + 1, sizeof *next);
    if (findings == NULL || next == NULL) return NULL;
    for (size_t i = find_first(j, next); i < j->count; i = find_first(j, next)) {
        cddp_finding f = *cd_judge_get_finding(j->items[i].judge, next[i]++);
        if (!is_of_groups(&f)) f.wrapper = j->items[i].wrapper;
        if (j->count > 1 && f.wrapper != NULL) name_wrapper(&f);
        if (j->count > 1) tell_turns(j, &f);
        bool is_taken = false;
        for (size_t k = 0; k < taken && j->count > 1; k++)
            is_taken |= is_same(&findings[k], &f) && is_of_groups(&f);
        if (!is_taken) findings[taken++] = f;
    }
    if (j->misturn.check != NULL) put_misturn(j, findings, &taken);
    *count = taken;
    return findings;
}
