/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/windows.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/trace/tracer.h"

#include <string.h>

static void note(cd_windows_place *place, uint32_t rank, uint32_t step)
{
    const bool is_first =
        place->count++ == 0 || step < place->step || (step == place->step && rank < place->rank);
    if (is_first) *place = (cd_windows_place){.count = place->count, .rank = rank, .step = step};
}

static void end_window(cd_windows *w, cd_windows_rank *rank)
{
    rank->has_unreduced = rank->has_forward = false;
    rank->is_untaken = true;
    if (!cd_vec_grow(w->allocator, (void **)&rank->lengths, &rank->capacity, rank->count + 1,
                     sizeof *rank->lengths)) {
        w->is_out_of_memory = true;
        return;
    }
    rank->lengths[rank->count++] =
        (cd_windows_length){.backwards = rank->backwards, .step = rank->step};
    rank->backwards = 0;
}

/* Nobody said what became of them. */
static void note_dropped(cd_windows *w, cd_windows_rank *rank, uint32_t number)
{
    if (rank->has_dropped) note(&w->dropped, number, rank->step);
    rank->has_dropped = false;
}

static void drop(cd_windows *w, cd_windows_rank *rank, uint32_t number)
{
    note_dropped(w, rank, number);
    rank->has_dropped = rank->has_unreduced;
    rank->untaken += rank->is_untaken;
    rank->has_unreduced = rank->has_forward = rank->is_untaken = false;
    rank->backwards = 0;
}

/* The program says where a backward begins: what it showed once more was changed before that. */
static void forget_shown(cd_windows_rank *rank) { rank->shown = rank->again = 0; }

static void end_shown(cd_windows *w, cd_windows_rank *rank, uint32_t number)
{
    if (rank->shown > 0 && rank->again >= rank->shown) note(&w->unannounced, number, rank->step);
    forget_shown(rank);
}

/* A program without a wrapper says no backwards: they are counted by what they add to. */
static void take_own(cd_windows_rank *rank, const cddp_event *e)
{
    const cddp_event_grad_local *g = &e->as.grad_local;
    if (!rank->is_recorded || rank->has_forwards || g->presence == CDDP_PRESENCE_ABSENT ||
        g->contributions <= 0)
        return;
    if (rank->step != e->step || rank->micro_step != e->micro_step) forget_shown(rank);
    if (rank->shown == 0) rank->before = g->contributions - 1;
    rank->shown += g->contributions == rank->before + 1;
    rank->again += g->contributions > rank->before + 1;
    rank->micro_step = e->micro_step;
    if ((uint64_t)g->contributions > rank->own_backwards)
        rank->own_backwards = (uint32_t)g->contributions;
    rank->step = e->step;
}

void cd_windows_push(cd_windows *w, const cddp_event *e)
{
    cd_windows_rank *rank = &w->ranks[e->rank];
    switch (e->kind) {
    case CDDP_EV_wrap:
        rank->has_wrapper = true;
        rank->group = e->as.wrap.group;
        break;
    case CDDP_EV_join_notify:
        rank->has_join = true;
        break;
    case CDDP_EV_mark:
        rank->is_recorded |= e->text != NULL && strcmp(e->text, CD_TRACER_RECORDED) == 0;
        break;
    case CDDP_EV_forward_begin:
        rank->has_forward |= e->as.forward_begin.grad_mode != 0;
        rank->has_forwards |= rank->has_forward;
        break;
    case CDDP_EV_backward_begin:
        rank->backwards++;
        rank->step = e->step;
        break;
    case CDDP_EV_value:
        /* the rank has moved its own parameters along them */
        rank->has_dropped &= e->as.value.moment != CDDP_MOMENT_ADAPTED;
        break;
    case CDDP_EV_grad_local:
        note_dropped(w, rank, e->rank);
        take_own(rank, e);
        /* a probe of the program's own, through the module inside, may be dropped */
        rank->has_unreduced |= rank->backwards > 0 && (rank->has_forward || !rank->has_forwards) &&
                               e->as.grad_local.presence != CDDP_PRESENCE_ABSENT;
        break;
    case CDDP_EV_samples:
        forget_shown(rank);
        break;
    case CDDP_EV_grad_final:
        end_shown(w, rank, e->rank);
        if (rank->own_backwards == 0) break;
        rank->backwards = rank->own_backwards;
        rank->own_backwards = 0;
        end_window(w, rank);
        rank->is_untaken = false;
        break;
    case CDDP_EV_backward_end:
        if (e->as.backward_end.finalized) end_window(w, rank);
        break;
    case CDDP_EV_optimizer_step:
        end_shown(w, rank, e->rank);
        if (rank->is_untaken && rank->taken == e->step + 1 &&
            rank->optimizer == e->as.optimizer_step.optimizer)
            note(&w->unnumbered, e->rank, e->step);
        rank->optimizer = e->as.optimizer_step.optimizer;
        rank->taken = e->step + 1;
        rank->is_untaken = rank->has_unreduced = false; /* unreduced ones are I-ONCE's */
        break;
    case CDDP_EV_zero_grad:
        end_shown(w, rank, e->rank);
        drop(w, rank, e->rank);
        break;
    default:
        break;
    }
}

/* Against the first rank of its group. One that joins early has fewer windows, and others later. */
static void compare(cd_windows *w, uint32_t number)
{
    const cd_windows_rank *mine = &w->ranks[number], *other = NULL;
    for (uint32_t i = 0; other == NULL && i < number; i++)
        if (w->ranks[i].has_wrapper && w->ranks[i].group == mine->group) other = &w->ranks[i];
    if (other == NULL || !mine->has_wrapper || mine->has_join || other->has_join) return;
    for (size_t i = 0; i < mine->count && i < other->count; i++)
        if (mine->lengths[i].backwards != other->lengths[i].backwards)
            note(&w->uneven, number, mine->lengths[i].step);
}

void cd_windows_end(cd_windows *w)
{
    for (uint32_t i = 0; i < w->rank_count; i++) {
        note_dropped(w, &w->ranks[i], i);
        end_shown(w, &w->ranks[i], i);
        compare(w, i);
        if (w->ranks[i].untaken > w->untaken) w->untaken = w->ranks[i].untaken;
    }
}

cddp_status cd_windows_init(cd_windows *w, uint32_t rank_count, const cddp_allocator *allocator,
                            cddp_error *err)
{
    *w = (cd_windows){.allocator = allocator, .rank_count = rank_count};
    w->ranks = cd_allocate_array(allocator, rank_count, sizeof *w->ranks);
    return w->ranks != NULL ? CDDP_OK : cd_fail_memory(err, "%u ranks", rank_count);
}

void cd_windows_fini(cd_windows *w)
{
    for (uint32_t i = 0; w->ranks != NULL && i < w->rank_count; i++)
        cd_release(w->allocator, w->ranks[i].lengths,
                   w->ranks[i].capacity * sizeof *w->ranks[i].lengths);
    cd_release(w->allocator, w->ranks, w->rank_count * sizeof *w->ranks);
    w->ranks = NULL;
}
