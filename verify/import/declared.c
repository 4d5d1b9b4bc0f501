/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/declared.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

#include <inttypes.h>
#include <string.h>

/* A parameter index beyond this is damage, no parameter. */
#define VARIABLES_MAX (INT64_C(1) << 24)

static void note(cd_declared *d, cd_declared_gap gap, const cddp_event *at, int64_t variable)
{
    cd_declared_place *place = &d->gaps[gap];
    if (place->count++ == 0)
        *place = (cd_declared_place){.count = 1,
                                     .rank = at->rank,
                                     .step = at->step,
                                     .variable = variable};
}

static cd_declared_variable *find(cd_declared *d, cd_declared_rank *rank, int64_t variable)
{
    if (variable < 0 || variable >= VARIABLES_MAX) return NULL;
    const size_t needed = (size_t)variable + 1;
    if (!cd_vec_grow(d->allocator, (void **)&rank->variables, &rank->variable_capacity, needed,
                     sizeof *rank->variables)) {
        d->is_out_of_memory = true;
        return NULL;
    }
    for (; rank->variable_count < needed; rank->variable_count++)
        rank->variables[rank->variable_count] = (cd_declared_variable){.is_declared = false};
    return &rank->variables[variable];
}

/* A step that is over said what it did, or never will. */
static void end_step(cd_declared *d, cd_declared_rank *rank, uint32_t number)
{
    if (rank->is_stepping && rank->touches == 0)
        note(d, CD_DECLARED_TOUCH, &(cddp_event){.rank = number, .step = rank->step}, -1);
    rank->is_stepping = false;
}

static void take_step(cd_declared *d, cd_declared_rank *rank, const cddp_event *e)
{
    end_step(d, rank, e->rank);
    if (e->as.optimizer_step.skipped) return;
    rank->is_stepping = true;
    rank->touches = 0;
    rank->step = e->step;
    rank->steps++;
}

/* What an optimizer consumes was local once, and was reduced since. */
static void take_touch(cd_declared *d, cd_declared_rank *rank, const cddp_event *e)
{
    const cddp_event_optimizer_touch *t = &e->as.optimizer_touch;
    cd_declared_variable *v = find(d, rank, t->param);
    rank->touches++;
    if (v == NULL || !t->touched) return;
    if (!v->has_local) note(d, CD_DECLARED_LOCAL, e, t->param);
    if (!v->has_reduced) note(d, CD_DECLARED_REDUCED, e, t->param);
    if (t->gradient == 0) note(d, CD_DECLARED_CONTENT, e, t->param);
    v->has_local = v->has_reduced = v->has_value = false;
    v->touches++;
}

static void take_parameter(cd_declared *d, cd_declared_rank *rank, const cddp_event *e)
{
    const cddp_event_param *p = &e->as.param;
    cd_declared_variable *v = p->requires_grad && !p->ignored ? find(d, rank, p->param) : NULL;
    if (v == NULL) return;
    if (v->is_declared && v->name != p->name) note(d, CD_DECLARED_MODELS, e, p->param);
    v->is_declared = true;
    v->name = p->name;
}

static void take_value(cd_declared *d, cd_declared_rank *rank, const cddp_event *e)
{
    const cddp_event_value *v = &e->as.value;
    if (v->what != CDDP_WHAT_PARAMETER ||
        (v->moment != CDDP_MOMENT_AFTER_STEP && v->moment != CDDP_MOMENT_END))
        return;
    cd_declared_variable *variable = find(d, rank, v->param);
    if (variable != NULL) variable->has_value = v->digest != 0;
}

static void mark(cd_declared *d, cd_declared_rank *rank, int64_t variable, bool is_reduced)
{
    cd_declared_variable *v = find(d, rank, variable);
    if (v == NULL) return;
    if (is_reduced)
        v->has_reduced = true;
    else
        v->has_local = true;
}

void cd_declared_push(cd_declared *d, const cddp_event *e)
{
    if (e->rank >= d->rank_count) return;
    cd_declared_rank *rank = &d->ranks[e->rank];
    rank->events++;
    cd_means_push(&d->means, e);
    switch (e->kind) {
    case CDDP_EV_param:
        take_parameter(d, rank, e);
        break;
    case CDDP_EV_group:
        if (e->as.group.members < d->rank_count) rank->part_group = e->as.group.group + 1;
        break;
    case CDDP_EV_wrap:
        rank->has_wrapper = true;
        if (e->as.wrap.group + 1 == rank->part_group && e->rank < d->split) d->split = e->rank;
        break;
    case CDDP_EV_grad_local:
        mark(d, rank, e->as.grad_local.param, false);
        if (e->as.grad_local.digest == 0 && e->as.grad_local.presence != CDDP_PRESENCE_ABSENT)
            note(d, CD_DECLARED_CONTENT, e, e->as.grad_local.param);
        break;
    case CDDP_EV_grad_final:
        mark(d, rank, e->as.grad_final.param, true);
        break;
    case CDDP_EV_samples:
        rank->samples++;
        break;
    case CDDP_EV_optimizer_step:
        take_step(d, rank, e);
        break;
    case CDDP_EV_optimizer_touch:
        take_touch(d, rank, e);
        break;
    case CDDP_EV_value:
        take_value(d, rank, e);
        break;
    case CDDP_EV_rank_end:
        end_step(d, rank, e->rank);
        rank->has_ended = true;
        break;
    default:
        break;
    }
}

/* ---- at the end ---- */

static void end_rank(cd_declared *d, uint32_t number)
{
    cd_declared_rank *rank = &d->ranks[number];
    const cddp_event at = {.rank = number};
    end_step(d, rank, number);
    if (rank->events == 0) {
        note(d, CD_DECLARED_BEGIN, &at, -1);
        return;
    }
    if (!rank->has_ended) note(d, CD_DECLARED_END, &at, -1);
    bool has_parameters = false;
    for (size_t i = 0; i < rank->variable_count; i++) {
        const cd_declared_variable *v = &rank->variables[i];
        has_parameters |= v->is_declared;
        if (v->touches > 0 && !v->has_value) note(d, CD_DECLARED_VALUE, &at, (int64_t)i);
        if (v->is_declared && v->touches == 0 && rank->steps > 0)
            note(d, CD_DECLARED_TOUCH, &at, (int64_t)i);
    }
    if (!rank->has_wrapper || !has_parameters) note(d, CD_DECLARED_PARAMETERS, &at, -1);
    if (rank->steps == 0) note(d, CD_DECLARED_STEP, &at, -1);
}

/* What is missing, and the call that shows it. */
static const struct {
    const char *what, *how;
} gap_words[CD_DECLARED_COUNT] = {
    [CD_DECLARED_BEGIN] = {"the recording of a rank",
                           "check run.db.* with the shards of all ranks"},
    [CD_DECLARED_END] = {"the end of the program", "cddp_record_close"},
    [CD_DECLARED_PARAMETERS] = {"the parameters", "cddp_ddp_create, or cddp_record_parameter"},
    [CD_DECLARED_MODELS] = {"which of two models a parameter belongs to",
                            "record one wrapper: give the other one a tracer of yours"},
    [CD_DECLARED_STEP] = {"an optimizer's step", "cddp_record_optimizer_step"},
    [CD_DECLARED_TOUCH] = {"what a step did to a parameter", "cddp_record_optimizer_touch"},
    [CD_DECLARED_LOCAL] = {"a gradient before its reduction", "cddp_record_gradient"},
    [CD_DECLARED_REDUCED] = {"a gradient after its reduction", "cddp_ddp, or cddp_record_reduced"},
    [CD_DECLARED_MEAN] = {"that a reduction made the mean of what the ranks recorded",
                          "cddp_record_gradient after the last change before the reduction, and "
                          "cddp_record_reduced before any after it"},
    [CD_DECLARED_VALUE] = {"a parameter after its last update", "cddp_record_value"},
    [CD_DECLARED_CONTENT] = {"the content of tensors", "level digest"},
};

static bool was_exercised(const cddp_verdict *verdict, const char *check)
{
    bool was = false;
    for (size_t i = 0; i < verdict->exercise_count; i++)
        was |= strcmp(verdict->exercises[i].check, check) == 0;
    return was;
}

/* What several ranks must have put to the test before their training is called verified. */
static const char *const needed[] = {"I-ORDER", "I-LIVE", "I-ONCE", "I-GRADEQ", "I-PARAMEQ"};

static const char *add_place(const char *words, cd_declared_gap gap, const cd_declared_place *p,
                             cd_arena *arena)
{
    const char *variable =
        p->variable >= 0 ? cd_arena_printf(arena, ", parameter %" PRId64, p->variable) : "";
    if (words == NULL || variable == NULL) return NULL;
    return cd_arena_printf(arena,
                           "%snot shown: %s (%s), first on rank %" PRIu32 ", step %" PRIu32
                           "%s; %" PRIu64 " in all\n",
                           words, gap_words[gap].what, gap_words[gap].how, p->rank, p->step,
                           variable, p->count);
}

/* A comm hook and uneven inputs make something else by right. */
static bool means_count(const cd_means *m) { return !m->has_hook && !m->has_join; }

static void note_means(cd_declared *d)
{
    const cd_means *m = &d->means;
    const cddp_event at = {.rank = 0, .step = m->other_step};
    d->is_out_of_memory |= m->is_out_of_memory;
    if (!means_count(m)) return;
    if (m->others > 0) {
        note(d, CD_DECLARED_MEAN, &at, m->other_variable);
        d->gaps[CD_DECLARED_MEAN].count = m->others;
    } else if (m->sums > 0 && m->means > 0) {
        note(d, CD_DECLARED_MEAN, &at, -1);
    }
}

const char *cd_declared_print_gaps(cd_declared *d, const cddp_verdict *verdict, cd_arena *arena)
{
    const char *words = "";
    note_means(d);
    for (uint32_t i = 0; i < d->rank_count; i++) end_rank(d, i);
    for (int gap = 0; gap < CD_DECLARED_COUNT; gap++)
        if (d->gaps[gap].count > 0)
            words = add_place(words, (cd_declared_gap)gap, &d->gaps[gap], arena);
    for (size_t i = 0; d->rank_count > 1 && words != NULL && i < sizeof needed / sizeof *needed;
         i++)
        if (!was_exercised(verdict, needed[i]))
            words = cd_arena_printf(arena, "%s%s had nothing to judge\n", words, needed[i]);
    return d->is_out_of_memory ? NULL : words;
}

bool cd_declared_has_models(const cd_declared *d) { return d->gaps[CD_DECLARED_MODELS].count > 0; }

uint64_t cd_declared_steps(const cd_declared *d)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < d->rank_count; i++)
        most = d->ranks[i].steps > most ? d->ranks[i].steps : most;
    return most;
}

static bool shows_means(const cd_means *m)
{
    return means_count(m) && m->unshown == 0 && m->means + m->sums > 0;
}

const char *cd_declared_print_proven(const cd_declared *d, cd_arena *arena)
{
    const cd_means *m = &d->means;
    const char *made = !shows_means(m) ? ""
                       : m->sums > 0   ? "reductions made the sum of the recorded gradients, "
                                       : "reductions made the mean of the recorded gradients, ";
    return cd_arena_printf(arena, "%sequal gradients and parameters on all ranks, order, liveness",
                           made);
}

const char *cd_declared_print_unjudged(const cd_declared *d, cd_arena *arena)
{
    bool has_samples = true;
    for (uint32_t i = 0; i < d->rank_count; i++) has_samples &= d->ranks[i].samples > 0;
    return cd_arena_printf(arena, "%sthe optimizer's arithmetic was not computed anew%s%s",
                           shows_means(&d->means) ? "" : "the mean of the gradients and ",
                           d->split < d->rank_count
                               ? "; groups of fewer ranks were judged each by itself"
                               : "",
                           has_samples ? "" : "; samples were not shown (cddp_record_samples)");
}

/* ---- life ---- */

cddp_status cd_declared_init(cd_declared *d, uint32_t rank_count, const cddp_allocator *allocator,
                             cddp_error *err)
{
    *d = (cd_declared){.allocator = allocator, .rank_count = rank_count, .split = rank_count};
    d->ranks = cd_allocate_array(allocator, rank_count, sizeof *d->ranks);
    if (d->ranks == NULL) return cd_fail_memory(err, "%u ranks", rank_count);
    const cddp_status status = cd_means_init(&d->means, rank_count, allocator, err);
    if (status != CDDP_OK) cd_declared_fini(d);
    return CD_PASS(status);
}

void cd_declared_fini(cd_declared *d)
{
    for (uint32_t i = 0; d->ranks != NULL && i < d->rank_count; i++)
        cd_release(d->allocator, d->ranks[i].variables,
                   d->ranks[i].variable_capacity * sizeof *d->ranks[i].variables);
    cd_means_fini(&d->means);
    cd_release(d->allocator, d->ranks, d->rank_count * sizeof *d->ranks);
    d->ranks = NULL;
}
