/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/lift_wrappers.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/plan/draft_join.h"
#include "core/trace/models.h"
#include "scenarios/reader/reader.h"
#include "verify/lift/lift.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ORDERS_MAX 64u /* [[when]] tables for steps with another order of turns */

/* The wrappers of one rank's step, in the order of their first backwards: these reduce. */
typedef struct turn_order {
    uint32_t rank, step;
    uint32_t count;
    uint8_t modules[CDDP_PLAN_WRAPPERS_MAX];
} turn_order;

typedef struct joint {
    const cd_source *source;
    size_t count;
    cd_lift *lifts;       /* (count) by module */
    cd_draft *drafts;     /* (count) by module */
    cd_draft_part *parts; /* (count) in the order of the tables */
    char (*names)[24];    /* (count) by module */
    size_t *base;         /* (count) modules in the order of the tables */
    turn_order *orders;   /* (order_count) */
    size_t order_count, order_capacity;
    size_t *last;          /* (world size) + 1: the order of the rank's step at hand */
    uint32_t *last_module; /* (world size) of the last backward */
    int64_t *current;      /* (world size) */
    bool is_by_micro_step, is_exhausted, overlaps;
    uint64_t *open; /* (world size) wrappers with a forward whose backward has not ended */
    cd_text *notes;
} joint;

/* ---- who goes when ---- */

static void take_backward(joint *j, const cddp_event *e)
{
    const uint32_t module = (uint32_t)j->current[e->rank];
    turn_order *o = j->last[e->rank] > 0 ? &j->orders[j->last[e->rank] - 1] : NULL;
    if (o == NULL || o->step != e->step) {
        j->is_exhausted |= !cd_vec_grow(NULL, (void **)&j->orders, &j->order_capacity,
                                        j->order_count + 1, sizeof *j->orders);
        if (j->is_exhausted) return;
        o = &j->orders[j->order_count++];
        *o = (turn_order){.rank = e->rank, .step = e->step};
        j->last[e->rank] = j->order_count;
    }
    for (uint32_t i = 0; i < o->count; i++) {
        if (o->modules[i] != module) continue;
        j->is_by_micro_step |= j->last_module[e->rank] != module;
        j->last_module[e->rank] = module;
        return;
    }
    j->last_module[e->rank] = module;
    if (o->count < CDDP_PLAN_WRAPPERS_MAX) o->modules[o->count++] = (uint8_t)module;
}

static void follow_turns(void *self, const cddp_event *e)
{
    joint *j = self;
    if (e->rank >= j->source->world_size) return;
    if (cd_models_is_mark(e)) j->current[e->rank] = e->as.mark.value;
    const int64_t module = j->current[e->rank];
    if (module < 0 || (size_t)module >= j->count) return;
    uint64_t *open = &j->open[e->rank];
    switch (e->kind) {
    case CDDP_EV_forward_begin:
        if (!e->as.forward_begin.grad_mode) break;
        j->overlaps |= (*open & ~(UINT64_C(1) << module)) != 0;
        *open |= UINT64_C(1) << module;
        break;
    case CDDP_EV_backward_begin:
        take_backward(j, e);
        break;
    case CDDP_EV_backward_end:
        *open &= ~(UINT64_C(1) << module);
        break;
    default:
        break;
    }
}

/* Those that did not go come after, as in the tables. */
static void complete(const joint *j, const turn_order *o, size_t *order)
{
    size_t count = 0;
    for (uint32_t i = 0; i < o->count; i++) order[count++] = o->modules[i];
    for (size_t k = 0; k < j->count; k++) {
        bool has = false;
        for (size_t i = 0; i < count; i++) has |= order[i] == j->base[k];
        if (!has) order[count++] = j->base[k];
    }
}

static bool is_same_order(const joint *j, const turn_order *a, const turn_order *b)
{
    size_t left[CDDP_PLAN_WRAPPERS_MAX], right[CDDP_PLAN_WRAPPERS_MAX];
    complete(j, a, left);
    complete(j, b, right);
    return memcmp(left, right, j->count * sizeof *left) == 0;
}

/* The tables stand in the order of rank 0's first step that has every wrapper, or its first. */
static void choose_base(joint *j)
{
    const turn_order *first = NULL;
    for (size_t i = 0; i < j->count; i++) j->base[i] = i;
    for (size_t i = 0; i < j->order_count; i++) {
        const turn_order *o = &j->orders[i];
        if (o->rank == 0 && (first == NULL || (first->count < j->count && o->count > first->count)))
            first = o;
    }
    size_t order[CDDP_PLAN_WRAPPERS_MAX];
    if (first == NULL) return;
    complete(j, first, order);
    memcpy(j->base, order, j->count * sizeof *order);
}

/* Do all ranks have this order in that step? */
static bool is_of_all(const joint *j, const turn_order *order)
{
    uint32_t ranks = 0;
    for (size_t i = 0; i < j->order_count; i++)
        ranks += j->orders[i].step == order->step && is_same_order(j, &j->orders[i], order);
    return ranks == j->source->world_size;
}

static cddp_status push_when(cd_draft *draft, size_t element, const char *field, const char **items,
                             size_t count, cddp_error *err)
{
    const cd_draft_setting setting = {.row = cd_key_find("when", field),
                                      .element = (int64_t)element,
                                      .items = items,
                                      .item_count = count};
    return CD_PASS(cd_draft_push(draft, &setting, err));
}

static cddp_status add_order(joint *j, cd_draft *draft, const turn_order *o, cddp_error *err)
{
    const size_t element = draft->element_count[CD_SCOPE_when]++;
    const char **names = cd_arena_array(&draft->arena, j->count, sizeof *names);
    const char **step = cd_arena_array(&draft->arena, 1, sizeof *step);
    const char **rank = cd_arena_array(&draft->arena, 1, sizeof *rank);
    size_t order[CDDP_PLAN_WRAPPERS_MAX];
    CD_TRY(cd_arena_check(&draft->arena, err, "an order of turns"));
    complete(j, o, order);
    for (size_t i = 0; i < j->count; i++) names[i] = j->names[order[i]];
    step[0] = cd_arena_printf(&draft->arena, "%" PRIu32, o->step);
    rank[0] = cd_arena_printf(&draft->arena, "%" PRIu32, o->rank);
    CD_TRY(cd_arena_check(&draft->arena, err, "an order of turns"));
    CD_TRY(push_when(draft, element, "wrappers", names, j->count, err));
    CD_TRY(push_when(draft, element, "steps", step, 1, err));
    return is_of_all(j, o) ? CDDP_OK : CD_PASS(push_when(draft, element, "ranks", rank, 1, err));
}

static cddp_status add_orders(joint *j, cd_draft *draft, cddp_error *err)
{
    size_t order[CDDP_PLAN_WRAPPERS_MAX], added = 0;
    for (size_t i = 0; i < j->order_count; i++) {
        const turn_order *o = &j->orders[i];
        complete(j, o, order);
        if (memcmp(order, j->base, j->count * sizeof *order) == 0) continue;
        if (o->rank != 0 && is_of_all(j, o)) continue; /* said with rank 0's */
        if (added++ == ORDERS_MAX) {
            cd_text_printf(j->notes,
                           "more than %u steps in which the wrappers go in another order\n",
                           ORDERS_MAX);
            break;
        }
        CD_TRY(add_order(j, draft, o, err));
    }
    if (j->is_by_micro_step) CD_TRY(cd_draft_set(draft, "schedule.turns", "micro_step", err));
    if (j->overlaps)
        cd_text_push(j->notes,
                     "a wrapper's forward before another one's backward: here each micro-step "
                     "is one turn\n");
    return CDDP_OK;
}

/* ---- one wrapper ---- */

static void take_event(void *self, const cddp_event *event) { cd_lift_push(self, event); }
static void push_model(void *self, const cddp_event *event) { cd_models_push(self, event); }

static cddp_status read_draft(cd_draft *draft, const cd_text *text, cddp_error *err)
{
    const cd_reader_options options = {.allocator = NULL};
    cddp_plan *plan = NULL;
    CD_TRY(cd_reader_read_text(&options, "what was lifted", cd_text_get(text), &plan, err));
    const cddp_status status = cd_draft_take(draft, plan, err);
    cddp_plan_destroy(plan);
    return CD_PASS(status);
}

static cddp_status lift_one(joint *j, size_t module, cddp_error *err)
{
    cd_lift *lift = &j->lifts[module];
    const cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, lift, take_event, NULL};
    cd_models models;
    const cddp_trace_sink one = {sizeof one, CDDP_TRACE_ABI, &models, push_model, NULL};
    cd_text text;
    CD_TRY(cd_lift_init(lift, j->source->world_size, j->source->program, NULL, err));
    lift->is_joint = true;
    lift->module = (int64_t)module;
    CD_TRY(cd_models_init(&models, j->source->world_size, NULL, err));
    cd_models_begin(&models, (int64_t)module, &sink);
    cddp_status status = cd_source_replay(j->source, &one, err);
    cd_models_fini(&models);
    if (status != CDDP_OK) return CD_PASS(status);
    cd_text_init(&text, false);
    status = cd_lift_write(lift, &text, err);
    if (status == CDDP_OK) status = read_draft(&j->drafts[module], &text, err);
    cd_text_fini(&text);
    snprintf(j->names[module], sizeof j->names[module], "wrapper_%zu", module);
    for (size_t i = 0; i < lift->note_count; i++)
        cd_text_printf(j->notes, "%s: %s\n", j->names[module], lift->notes[i]);
    return CD_PASS(status);
}

/* ---- all of them ---- */

static void write_head(const cd_text *notes, cd_text *toml)
{
    cd_text_push(toml,
                 "# What the recorded program did: each of its wrappers with a model of as many "
                 "parameters. What could not be expressed:\n");
    if (cd_text_get(notes)[0] == '\0') cd_text_push(toml, "#   nothing\n");
    for (const char *at = cd_text_get(notes); *at != '\0';) {
        const int length = (int)strcspn(at, "\n");
        cd_text_printf(toml, "#   %.*s\n", length, at);
        at += length + (at[length] == '\n');
    }
    cd_text_push(toml, "\n");
}

static void push_text(void *context, const char *text) { cd_text_push(context, text); }

static cddp_status write_joined(joint *j, cd_text *toml, cddp_error *err)
{
    cd_draft joined;
    cddp_plan *plan = NULL;
    cd_draft_init(&joined);
    cddp_status status = cd_draft_join(&joined, j->parts, j->count, err);
    if (status == CDDP_OK) status = add_orders(j, &joined, err);
    if (status == CDDP_OK) status = cd_draft_make(&joined, &plan, err);
    if (status == CDDP_OK) status = cddp_plan_check(plan, err);
    if (status == CDDP_E_CONFIG) status = CDDP_E_UNSUPPORTED; /* it is no mistake of a person */
    if (status == CDDP_OK) {
        write_head(j->notes, toml);
        cd_draft_print(&joined, push_text, toml);
        if (toml->failed) status = cd_fail_memory(err, "a scenario");
    }
    cddp_plan_destroy(plan);
    cd_draft_fini(&joined);
    return status;
}

static cddp_status lift_all(joint *j, cd_text *toml, cddp_error *err)
{
    const cddp_trace_sink turns = {sizeof turns, CDDP_TRACE_ABI, j, follow_turns, NULL};
    CD_TRY(cd_source_replay(j->source, &turns, err));
    if (j->is_exhausted) return cd_fail_memory(err, "the turns of %zu wrappers", j->count);
    choose_base(j);
    for (size_t i = 0; i < j->count; i++) CD_TRY(lift_one(j, i, err));
    for (size_t i = 0; i < j->count; i++) {
        const size_t module = j->base[i];
        j->parts[i] = (cd_draft_part){.draft = &j->drafts[module],
                                      .name = j->names[module],
                                      .own_group = j->lifts[module].reducer != j->lifts[0].reducer};
    }
    return CD_PASS(write_joined(j, toml, err));
}

static void count_events(void *self, const cddp_event *event) { cd_models_push(self, event); }

cddp_status cd_lift_count_wrappers(const cd_source *source, size_t *count, cddp_error *err)
{
    cd_models models;
    const cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, &models, count_events, NULL};
    CD_TRY(cd_models_init(&models, source->world_size, NULL, err));
    cd_models_begin(&models, 0, NULL);
    const cddp_status status = cd_source_replay(source, &sink, err);
    *count = (size_t)models.count;
    cd_models_fini(&models);
    return CD_PASS(status);
}

cddp_status cd_lift_wrappers(const cd_source *source, size_t count, cd_text *toml, cd_text *notes,
                             cddp_error *err)
{
    cd_arena arena;
    if (count > CDDP_PLAN_WRAPPERS_MAX)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "a scenario has at most %d wrappers",
                       CDDP_PLAN_WRAPPERS_MAX);
    cd_arena_init(&arena, NULL, 0);
    joint j = {.source = source, .count = count, .notes = notes};
    j.lifts = cd_arena_array(&arena, count, sizeof *j.lifts);
    j.drafts = cd_arena_array(&arena, count, sizeof *j.drafts);
    j.parts = cd_arena_array(&arena, count, sizeof *j.parts);
    j.names = cd_arena_array(&arena, count, sizeof *j.names);
    j.base = cd_arena_array(&arena, count, sizeof *j.base);
    j.last = cd_arena_array(&arena, source->world_size, sizeof *j.last);
    j.last_module = cd_arena_array(&arena, source->world_size, sizeof *j.last_module);
    j.current = cd_arena_array(&arena, source->world_size, sizeof *j.current);
    j.open = cd_arena_array(&arena, source->world_size, sizeof *j.open);
    cddp_status status = cd_arena_check(&arena, err, "%zu wrappers", count);
    for (size_t i = 0; status == CDDP_OK && i < count; i++) cd_draft_init(&j.drafts[i]);
    const bool is_whole = status == CDDP_OK;
    if (is_whole) status = lift_all(&j, toml, err);
    for (size_t i = 0; is_whole && i < count; i++) {
        cd_lift_fini(&j.lifts[i]);
        cd_draft_fini(&j.drafts[i]);
    }
    cd_release(NULL, j.orders, j.order_capacity * sizeof *j.orders);
    cd_arena_fini(&arena);
    return CD_PASS(status);
}
