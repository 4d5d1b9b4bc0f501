/* SPDX-License-Identifier: Apache-2.0 */
/* Join contexts of a recorded program.
**
** Note [Steps of join contexts]
** A scenario cuts train.steps into join.epochs of equal length, and a rank that runs out of inputs
** begins the next epoch with its first step. A program may count its steps on, so that a rank with
** fewer inputs falls behind. Steps of passes and operations get the scenario's numbers: the length
** of the longest context times the number of the context, plus the position within it.
*/
#include "verify/lift/lift.h"

#include "cddp/backend.h"

/* ---- what the wrapper posts as it leaves ---- */

static bool is_number(const cd_lift_collective *c, cddp_red_op reduction)
{
    return c != NULL && c->op == CDDP_OP_ALLREDUCE && c->reduction == reduction && c->numel == 1;
}

/* The last operation of a rank that is not taken back; NULL: none. */
static cd_lift_collective *find_last(cd_lift *l, uint32_t rank)
{
    for (size_t i = l->collective_count; i-- > 0;)
        if (l->collectives[i].rank == rank) return &l->collectives[i];
    return NULL;
}

/* The order of the others stays. */
static void take_back(cd_lift *l, cd_lift_collective *c)
{
    const cd_lift_collective *end = &l->collectives[--l->collective_count];
    for (; c < end; c++) *c = c[1];
}

/* The number that tells the others was posted before this event. PyTorch's recorder has it behind
** another one, which asks whether the others synchronise, and broadcasts of buffers in between. */
static void take_back_numbers(cd_lift *l, uint32_t rank)
{
    const int wanted = l->is_of_torch ? 2 : 1;
    for (int taken = 0; taken < wanted;) {
        cd_lift_collective *last = find_last(l, rank);
        const bool is_wanted = is_number(last, CDDP_RED_SUM),
                   is_between = taken > 0 && last != NULL && last->op == CDDP_OP_BROADCAST;
        if (!is_wanted && !is_between) return;
        take_back(l, last);
        taken += is_wanted;
    }
}

void cd_lift_take_notify(cd_lift *l, const cddp_event *e)
{
    cd_lift_rank *r = &l->ranks[e->rank];
    l->has_join = r->in_join = true;
    if (e->as.join_notify.active) {
        if (r->pass > 0) l->passes[r->pass - 1].is_joined = true;
        return;
    }
    if (!r->in_exit) take_back_numbers(l, e->rank);
    r->in_exit = true;
}

/* PyTorch's recorder has no event before a rank that never shadowed asks who did. */
static void take_back_question(cd_lift *l, uint32_t rank)
{
    const cd_lift_collective *asked = NULL;
    for (size_t i = l->collective_count; i-- > 0 && asked == NULL;) {
        const cd_lift_collective *c = &l->collectives[i];
        if (c->rank == rank && is_number(c, CDDP_RED_MAX)) asked = c;
    }
    if (asked == NULL) return;
    const size_t at = (size_t)(asked - l->collectives);
    for (size_t i = l->collective_count; i-- > at;)
        if (l->collectives[i].rank == rank) take_back(l, &l->collectives[i]);
    cd_lift_collective *before = find_last(l, rank);
    if (is_number(before, CDDP_RED_SUM)) take_back(l, before);
}

/* ---- contexts ---- */

static void close_context(cd_lift *l, uint32_t rank)
{
    cd_lift_rank *r = &l->ranks[rank];
    if (!cd_arena_grow(&l->arena, (void **)&l->contexts, &l->context_capacity, l->context_count + 1,
                       sizeof *l->contexts))
        return;
    l->contexts[l->context_count++] =
        (cd_lift_context){.rank = rank,
                          .first = r->has_begun ? r->first : r->steps,
                          .steps = r->has_begun ? r->steps - r->first : 0,
                          .is_whole = !r->in_join};
    r->has_begun = false;
}

void cd_lift_take_join_end(cd_lift *l, uint32_t rank)
{
    cd_lift_rank *r = &l->ranks[rank];
    if (!r->in_exit) take_back_question(l, rank);
    l->has_join = r->has_left = true;
    r->in_join = r->in_exit = r->in_forward = r->in_backward = false;
    close_context(l, rank);
}

const cd_lift_context *cd_lift_find_context(const cd_lift *l, uint32_t rank, uint32_t number)
{
    for (size_t i = 0; i < l->context_count; i++)
        if (l->contexts[i].rank == rank && number-- == 0) return &l->contexts[i];
    return NULL;
}

uint32_t cd_lift_context_count(const cd_lift *l, uint32_t rank)
{
    uint32_t count = 0;
    while (cd_lift_find_context(l, rank, count) != NULL) count++;
    return count;
}

/* See Note [Steps of join contexts]. */
static uint32_t renumber(const cd_lift *l, uint32_t rank, uint32_t step)
{
    uint32_t number = 0;
    const cd_lift_context *c = cd_lift_find_context(l, rank, 0), *next = NULL;
    for (; (next = cd_lift_find_context(l, rank, number + 1)) != NULL && next->first <= step;
         c = next)
        number++;
    if (c == NULL || step < c->first) return step;
    return number * l->context_length + (step - c->first);
}

/* It waited in its way out. */
static void drop_unanswered(cd_lift *l, uint32_t rank)
{
    const cd_lift_rank *r = &l->ranks[rank];
    cd_lift_collective *last = find_last(l, rank);
    if (r->in_join && !r->in_exit && r->outstanding > 0 && is_number(last, CDDP_RED_SUM))
        take_back(l, last);
}

void cd_lift_end_joins(cd_lift *l)
{
    if (!l->has_join) return;
    for (uint32_t rank = 0; rank < l->rank_count; rank++) {
        drop_unanswered(l, rank);
        if (l->ranks[rank].has_begun) close_context(l, rank);
    }
    l->context_length = 1;
    for (size_t i = 0; i < l->context_count; i++)
        if (l->contexts[i].steps > l->context_length) l->context_length = l->contexts[i].steps;
    for (size_t i = 0; i < l->pass_count; i++)
        l->passes[i].step = renumber(l, l->passes[i].rank, l->passes[i].step);
    for (size_t i = 0; i < l->collective_count; i++)
        l->collectives[i].step = renumber(l, l->collectives[i].rank, l->collectives[i].step);
    for (size_t i = 0; i < l->skip_count; i++)
        l->skips[i].step = renumber(l, l->skips[i].rank, l->skips[i].step);
    for (uint32_t rank = 0; rank < l->rank_count; rank++)
        l->ranks[rank].step = renumber(l, rank, l->ranks[rank].step);
}

uint32_t cd_lift_inputs(const cd_lift *l, uint32_t rank)
{
    uint32_t inputs = 0;
    const cd_lift_context *c;
    for (uint32_t i = 0; (c = cd_lift_find_context(l, rank, i)) != NULL; i++)
        if (c->steps > inputs) inputs = c->steps;
    return inputs;
}
