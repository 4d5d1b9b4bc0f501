/* SPDX-License-Identifier: Apache-2.0 */
/* What the program communicates by itself. See writing.h. */
#include "verify/lift/writing.h"

#include "cddp/backend.h"
#include "cddp/tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool is_same_collective(const cd_lift_collective *a, const cd_lift_collective *b)
{
    return a->group == b->group && a->op == b->op && a->reduction == b->reduction &&
           a->root == b->root && a->dtype == b->dtype && a->numel == b->numel;
}

/* The i-th that a rank posted at a place of a step. */
static const cd_lift_collective *find_posted(const cd_lift *l, uint32_t rank, uint32_t step,
                                             cd_lift_place at, size_t i)
{
    for (size_t k = 0; k < l->collective_count; k++) {
        const cd_lift_collective *c = &l->collectives[k];
        if (c->rank == rank && c->step == step && c->place == at && i-- == 0) return c;
    }
    return NULL;
}

bool cd_writing_posts_alike(const cd_lift *l, uint32_t a, uint32_t step, uint32_t b, uint32_t other,
                            cd_lift_place at)
{
    for (size_t i = 0;; i++) {
        const cd_lift_collective *x = find_posted(l, a, step, at, i),
                                 *y = find_posted(l, b, other, at, i);
        if (x == NULL || y == NULL) return x == y;
        if (!is_same_collective(x, y)) return false;
    }
}

/* A run opens its world by itself, beside whatever group of that name the program had. */
static const char *group_name(const cd_lift_group *g)
{
    return strcmp(g->name, "world") == 0 ? "world of the program" : g->name;
}

static bool has_all_members(const cd_lift_group *g)
{
    bool has = true;
    for (int64_t k = 0; k < g->members; k++) has &= g->ranks[k] != UINT32_MAX;
    return has;
}

/* It was left out. */
static bool lacks_group(const cd_lift *l, const cd_lift_collective *c)
{
    for (size_t i = 0; i < l->group_count && c->group != l->reducer; i++)
        if (l->groups[i].id == c->group) return !has_all_members(&l->groups[i]);
    return false;
}

static void put_collective(cd_writing *w, const cd_lift_collective *c, const bool *ranks,
                           const bool *steps)
{
    static const char *const places[] = {"before_forward", "before_backward", "after_backward",
                                         "after_step"};
    const cd_lift *l = w->l;
    cd_text_push(w->out, "\n[[collective]]\n");
    cd_writing_put_selection(w, "ranks", ranks, l->rank_count);
    cd_writing_put_selection(w, "steps", steps, w->steps);
    for (size_t i = 0; i < l->group_count && c->group != l->reducer; i++)
        if (l->groups[i].id == c->group) {
            cd_text_push(w->out, "group = ");
            cd_writing_put_quoted(w->out, group_name(&l->groups[i]));
            cd_text_push(w->out, "\n");
        }
    cd_text_printf(w->out, "op = \"%s\"\nplace = \"%s\"\n", cddp_op_name((cddp_op)c->op),
                   places[c->place]);
    if (c->op == CDDP_OP_BARRIER) return;
    if (c->reduction >= 0 && c->reduction < CDDP_RED_COUNT)
        cd_text_printf(w->out, "reduction = \"%s\"\n", cddp_red_op_name((cddp_red_op)c->reduction));
    if (c->root >= 0) cd_text_printf(w->out, "root = %" PRId64 "\n", c->root);
    cd_text_printf(w->out, "numel = %" PRId64 "\ndtype = \"%s\"\n", c->numel >= 0 ? c->numel : 1,
                   cddp_dtype_name((cddp_dtype)c->dtype));
}

/* Ranks and steps that post the same at a place share their tables. */
static void write_collectives_at(cd_writing *w, cd_lift_place at, bool *done, bool *ranks,
                                 bool *steps)
{
    const cd_lift *l = w->l;
    const size_t count = (size_t)l->rank_count * w->steps;
    memset(done, 0, count * sizeof *done);
    for (size_t k = 0; k < count; k++) {
        const uint32_t step = (uint32_t)(k / l->rank_count), rank = (uint32_t)(k % l->rank_count);
        if (done[k] || find_posted(l, rank, step, at, 0) == NULL) continue;
        memset(ranks, 0, l->rank_count * sizeof *ranks);
        memset(steps, 0, w->steps * sizeof *steps);
        for (uint32_t r = rank; r < l->rank_count; r++)
            ranks[r] = !done[(size_t)step * l->rank_count + r] &&
                       cd_writing_posts_alike(l, rank, step, r, step, at);
        for (uint32_t s = step; s < w->steps; s++) {
            bool alike = true;
            for (uint32_t r = 0; r < l->rank_count; r++)
                if (ranks[r] && (done[(size_t)s * l->rank_count + r] ||
                                 !cd_writing_posts_alike(l, rank, step, r, s, at)))
                    alike = false;
            steps[s] = alike;
            for (uint32_t r = 0; alike && r < l->rank_count; r++)
                if (ranks[r]) done[(size_t)s * l->rank_count + r] = true;
        }
        for (size_t i = 0; find_posted(l, rank, step, at, i) != NULL; i++)
            if (!lacks_group(l, find_posted(l, rank, step, at, i)))
                put_collective(w, find_posted(l, rank, step, at, i), ranks, steps);
    }
}

static bool is_message(const cd_lift_collective *c)
{
    return c->op == CDDP_OP_SEND || c->op == CDDP_OP_RECV;
}

/* Messages in a row, of a run that ended well: a program that posts all of them before it waits may
** do so in any order. Here each waits, so that all ranks take groups in one order. */
static void order_messages(cd_lift *l)
{
    size_t *last = cd_arena_array(&l->arena, l->rank_count, sizeof *last);
    for (bool has_moved = last != NULL; has_moved;) {
        has_moved = false;
        memset(last, 0, l->rank_count * sizeof *last);
        for (size_t i = 0; i < l->collective_count; i++) {
            cd_lift_collective *c = &l->collectives[i], *before;
            const size_t k = last[c->rank];
            last[c->rank] = i + 1;
            before = k > 0 ? &l->collectives[k - 1] : NULL;
            if (before == NULL || !is_message(c) || !is_message(before) ||
                before->step != c->step || before->place != c->place || before->group <= c->group)
                continue;
            const cd_lift_collective other = *c;
            *c = *before;
            *before = other;
            has_moved = true;
        }
    }
}

void cd_writing_groups(cd_writing *w)
{
    cd_lift *l = w->l;
    for (size_t i = 0; i < l->group_count; i++) {
        const cd_lift_group *g = &l->groups[i];
        if (g->id == l->reducer) continue;
        if (!has_all_members(g)) {
            CD_WRITING_NOTE(
                w, "group '%s' is left out, with its operations: not all of its ranks recorded it",
                g->name);
            continue;
        }
        cd_text_push(w->out, "\n[[group]]\nname = ");
        cd_writing_put_quoted(w->out, group_name(g));
        cd_text_push(w->out, "\nmembers = [");
        for (int64_t k = 0; k < g->members; k++)
            cd_text_printf(w->out, "%s%" PRIu32, k > 0 ? ", " : "", g->ranks[k]);
        cd_text_push(w->out, "]\n");
    }
}

void cd_writing_collectives(cd_writing *w)
{
    cd_lift *l = w->l;
    bool *done = cd_arena_array(&l->arena, (size_t)l->rank_count * w->steps, sizeof *done);
    bool *ranks = cd_arena_array(&l->arena, l->rank_count, sizeof *ranks);
    bool *steps = cd_arena_array(&l->arena, w->steps, sizeof *steps);
    if (done == NULL || ranks == NULL || steps == NULL) return;
    if (l->is_complete) order_messages(l);
    for (int at = CD_LIFT_BEFORE_FORWARD; at <= CD_LIFT_AFTER_STEP; at++)
        write_collectives_at(w, (cd_lift_place)at, done, ranks, steps);
    if (l->reduces_itself)
        CD_WRITING_NOTE(
            w, "what the program itself reduces behind backwards inside no_sync: its operations "
               "are here, and no gradient or parameter becomes their result");
    if (l->has_outside)
        CD_WRITING_NOTE(w, "operations between join contexts, or behind them, are left out");
    for (size_t i = 0; i < l->collective_count; i++)
        if (l->collectives[i].step >= w->steps) {
            CD_WRITING_NOTE(w, "operations after the last forward's step are left out");
            break;
        }
}
