/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/forwards.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/trace/tracer.h"

#include <string.h>

/* The first place: by step, and then by rank. */
static void note(cd_forwards_place *place, uint32_t rank, uint32_t step, int64_t variable)
{
    const bool is_first =
        place->count++ == 0 || step < place->step || (step == place->step && rank < place->rank);
    if (is_first) *place = (cd_forwards_place){place->count, rank, step, variable};
}

static cd_forwards_pass *find_pass(cd_forwards *f, cd_forwards_rank *rank, const cddp_event *e)
{
    cd_forwards_pass *last = rank->pass_count > 0 ? &rank->passes[rank->pass_count - 1] : NULL;
    if (last != NULL && last->step == e->step && last->micro_step == e->micro_step) return last;
    if (!cd_vec_grow(f->allocator, (void **)&rank->passes, &rank->pass_capacity,
                     rank->pass_count + 1, sizeof *rank->passes)) {
        f->is_out_of_memory = true;
        return NULL;
    }
    last = &rank->passes[rank->pass_count++];
    *last = (cd_forwards_pass){.step = e->step, .micro_step = e->micro_step};
    return last;
}

static void take_value(cd_forwards *f, cd_forwards_rank *rank, const cddp_event *e)
{
    const cddp_event_value *v = &e->as.value;
    if (v->what != CDDP_WHAT_PARAMETER) return;
    f->adapted += v->moment == CDDP_MOMENT_ADAPTED && e->rank == 0;
    if (v->moment != CDDP_MOMENT_FORWARD && v->moment != CDDP_MOMENT_ADAPTED) return;
    rank->dropped_in = 0; /* it is shown */
    if (v->moment == CDDP_MOMENT_ADAPTED) return;
    cd_forwards_pass *pass = find_pass(f, rank, e);
    if (pass == NULL) return;
    if (pass->values++ == 0) pass->variable = v->param;
    pass->content += cd_hash_mix(cd_hash_mix(0, (uint64_t)v->id), (uint64_t)v->digest);
}

static void take_local(cd_forwards *f, cd_forwards_rank *rank, const cddp_event *e)
{
    if (e->as.grad_local.presence == CDDP_PRESENCE_ABSENT) return;
    cd_forwards_pass *pass = find_pass(f, rank, e);
    if (pass != NULL) pass->has_gradients = true;
    if (rank->dropped_in == e->step + 1 && !rank->has_forwards && f->rank_count > 1)
        note(&f->unshown, e->rank, e->step, e->as.grad_local.param);
    rank->dropped_in = 0; /* once */
}

void cd_forwards_push(cd_forwards *f, const cddp_event *e)
{
    cd_forwards_rank *rank = &f->ranks[e->rank];
    switch (e->kind) {
    case CDDP_EV_wrap:
        rank->has_wrap = true;
        rank->group = e->as.wrap.group;
        break;
    case CDDP_EV_mark:
        rank->averages |= e->text != NULL && strcmp(e->text, CD_TRACER_AVERAGES) == 0;
        break;
    case CDDP_EV_agreement:
        rank->averages |= e->as.agreement.parameters != 0;
        break;
    case CDDP_EV_forward_begin:
        rank->has_forwards = true;
        break;
    case CDDP_EV_value:
        take_value(f, rank, e);
        break;
    case CDDP_EV_grad_local:
        take_local(f, rank, e);
        break;
    case CDDP_EV_grad_final:
        rank->reduced_in = e->step + 1;
        break;
    case CDDP_EV_zero_grad:
        rank->dropped_in = rank->reduced_in;
        rank->reduced_in = 0;
        break;
    case CDDP_EV_optimizer_step:
    case CDDP_EV_optimizer_touch:
        rank->reduced_in = rank->dropped_in = 0;
        break;
    default:
        break;
    }
}

/* ---- ranks against each other ---- */

static bool is_before(const cd_forwards_pass *a, const cd_forwards_pass *b)
{
    return a->step != b->step ? a->step < b->step : a->micro_step < b->micro_step;
}

/* Its pass of that step and micro-step, from *at on; NULL: it has none, or no gradients of it. */
static const cd_forwards_pass *advance(const cd_forwards_rank *rank, size_t *at,
                                       const cd_forwards_pass *to)
{
    while (*at < rank->pass_count && is_before(&rank->passes[*at], to)) (*at)++;
    if (*at == rank->pass_count || is_before(to, &rank->passes[*at])) return NULL;
    return rank->passes[*at].has_gradients ? &rank->passes[*at] : NULL;
}

static bool is_peer(const cd_forwards_rank *a, const cd_forwards_rank *b)
{
    return a->has_wrap && b->has_wrap && a->group == b->group && !a->averages && !b->averages;
}

/* One pass, as each rank of a group has it. */
typedef struct tally {
    uint32_t ranks, exchanged; /* that have it; and that exchanged something for it */
    uint32_t different;        /* from the first of them */
    uint32_t odd;              /* the first that differs */
    uint64_t content;          /* of those that differ, while they agree */
    bool are_apart;            /* they do not */
    int64_t variable;          /* that is exchanged */
} tally;

static void add(tally *t, const cd_forwards_pass *mine, const cd_forwards_pass *other,
                uint32_t rank)
{
    t->ranks++;
    t->exchanged += other->values > 0;
    if (other->content == mine->content) return;
    t->are_apart |= t->different > 0 && other->content != t->content;
    t->content = other->content;
    if (t->different == 0) t->odd = rank;
    if (t->variable < 0 || mine->values == 0) t->variable = other->variable;
    t->different++;
}

/* Of the pass that the first rank of a group has. */
static void judge(const cd_forwards *f, uint32_t first, const cd_forwards_pass *mine, size_t *at,
                  cd_forwards_split *split)
{
    tally t = {.odd = first, .variable = mine->values > 0 ? mine->variable : -1};
    for (uint32_t r = first; r < f->rank_count; r++) {
        if (!is_peer(&f->ranks[first], &f->ranks[r])) continue;
        const cd_forwards_pass *other = r == first ? mine : advance(&f->ranks[r], &at[r], mine);
        if (other != NULL) add(&t, mine, other, r);
    }
    if (t.different == 0) return;
    const bool is_first_odd = t.ranks > 2 && t.different == t.ranks - 1 && !t.are_apart;
    const bool is_one = t.ranks > 2 && (t.different == 1 || is_first_odd);
    const uint32_t who = is_first_odd ? first : t.odd;
    note(&split->any, who, mine->step, t.variable);
    if (is_one && t.exchanged == t.ranks) note(&split->one, who, mine->step, t.variable);
}

/* Is it the first of its group? */
static bool leads(const cd_forwards *f, uint32_t number)
{
    for (uint32_t r = 0; r < number; r++)
        if (is_peer(&f->ranks[r], &f->ranks[number])) return false;
    return is_peer(&f->ranks[number], &f->ranks[number]);
}

cd_forwards_split cd_forwards_compare(const cd_forwards *f)
{
    size_t *at = cd_allocate_array(f->allocator, f->rank_count, sizeof *at);
    cd_forwards_split split = {.is_out_of_memory = at == NULL};
    for (uint32_t r = 0; at != NULL && r < f->rank_count; r++) {
        if (!leads(f, r)) continue;
        memset(at, 0, f->rank_count * sizeof *at);
        for (size_t i = 0; i < f->ranks[r].pass_count; i++)
            if (f->ranks[r].passes[i].has_gradients)
                judge(f, r, &f->ranks[r].passes[i], at, &split);
    }
    cd_release(f->allocator, at, f->rank_count * sizeof *at);
    return split;
}

/* ---- life ---- */

cddp_status cd_forwards_init(cd_forwards *f, uint32_t rank_count, const cddp_allocator *allocator,
                             cddp_error *err)
{
    *f = (cd_forwards){.allocator = allocator, .rank_count = rank_count};
    f->ranks = cd_allocate_array(allocator, rank_count, sizeof *f->ranks);
    return f->ranks != NULL ? CDDP_OK : cd_fail_memory(err, "%u ranks", rank_count);
}

void cd_forwards_fini(cd_forwards *f)
{
    for (uint32_t i = 0; f->ranks != NULL && i < f->rank_count; i++)
        cd_release(f->allocator, f->ranks[i].passes,
                   f->ranks[i].pass_capacity * sizeof *f->ranks[i].passes);
    cd_release(f->allocator, f->ranks, f->rank_count * sizeof *f->ranks);
    f->ranks = NULL;
}
