/* SPDX-License-Identifier: Apache-2.0 */
/* A recording of operations alone, as dumps of a flight recorder are: what ranks posted from the
** last operation of each group on which all agreed. What came before says nothing about a hang. */
#include "core/base/format.h"
#include "verify/lift/lift.h"

#include "cddp/backend.h"
#include "core/base/error.h"

#include <inttypes.h>

#define AFTER_MAX 16 /* operations of a group that are lifted from its first difference on */

bool cd_lift_is_bare(const cd_lift *l)
{
    return l->parameter_count == 0 && l->wrapper_count == 0 && l->pass_count == 0 &&
           l->post_count > 0;
}

static bool is_message(const cd_lift_collective *c)
{
    return c->op == CDDP_OP_SEND || c->op == CDDP_OP_RECV;
}

static bool is_alike(const cd_lift_collective *a, const cd_lift_collective *b)
{
    return a->op == b->op && a->numel == b->numel && a->dtype == b->dtype && a->root == b->root &&
           a->reduction == b->reduction;
}

/* The number of the first operation on which the ranks of a group differ, or which not all of those
** that posted there have come to. */
static int64_t find_difference(cd_lift *l, const cd_lift_group *g)
{
    typedef struct seen {
        size_t first; /* + 1 */
        uint32_t ranks;
        bool differs;
    } seen;
    int64_t numbers = 0, at = 0;
    for (size_t i = 0; i < l->post_count; i++)
        if (l->posts[i].what.group == g->id && l->posts[i].number >= numbers)
            numbers = l->posts[i].number + 1;
    seen *all = cd_arena_array(&l->arena, (size_t)numbers + 1, sizeof *all);
    if (all == NULL) return 0;
    for (size_t i = 0; i < l->post_count; i++) {
        const cd_lift_post *p = &l->posts[i];
        if (p->what.group != g->id || p->number < 0) continue;
        seen *s = &all[p->number];
        if (s->first == 0) s->first = i + 1;
        s->differs |= !is_alike(&p->what, &l->posts[s->first - 1].what);
        s->ranks++;
    }
    while (at < numbers && !all[at].differs && all[at].ranks == all[0].ranks) at++;
    return at;
}

/* In a scenario, of what is cut into shares, the elements of one of them. */
static void keep(cd_lift *l, const cd_lift_group *g, const cd_lift_post *p)
{
    if (!cd_arena_grow(&l->arena, (void **)&l->collectives, &l->collective_capacity,
                       l->collective_count + 1, sizeof *l->collectives))
        return;
    cd_lift_collective *c = &l->collectives[l->collective_count++];
    *c = p->what;
    const bool is_cut = c->op == CDDP_OP_REDUCE_SCATTER || c->op == CDDP_OP_ALLTOALL;
    if (is_cut && g->members > 0) c->numel /= g->members;
    l->ranks[c->rank].collectives++;
}

static void keep_group(cd_lift *l, const cd_lift_group *g)
{
    const int64_t difference = find_difference(l, g), begin = difference > 0 ? difference - 1 : 0;
    size_t messages = 0, later = 0;
    for (size_t i = 0; i < l->post_count; i++) {
        const cd_lift_post *p = &l->posts[i];
        if (p->what.group != g->id || p->number < begin) continue;
        const bool is_known = p->what.op >= 0 && p->what.op < CDDP_OP_COUNT;
        if (!is_known || (is_message(&p->what) && g->members != 2))
            messages++;
        else if (p->number >= difference + AFTER_MAX)
            later++;
        else
            keep(l, g, p);
    }
    if (messages > 0)
        cd_lift_note(l, cd_arena_printf(&l->arena, "%zu messages between ranks of group '%s'",
                                        messages, g->name));
    if (later > 0)
        cd_lift_note(l, cd_arena_printf(&l->arena,
                                        "%zu operations of group '%s', more than %d after the "
                                        "first one on which its ranks differ",
                                        later, g->name, AFTER_MAX));
}

cddp_status cd_lift_keep_bare(cd_lift *l, cddp_error *err)
{
    l->reducer = -1;
    for (size_t i = 0; i < l->group_count; i++) {
        const cd_lift_group *g = &l->groups[i];
        if (g->is_disputed)
            return cd_fail(err, CDDP_E_UNSUPPORTED,
                           "nothing to lift: ranks name different members of group '%.60s', and no "
                           "scenario has such a group",
                           g->name);
        if (l->reducer < 0 && g->members == (int64_t)l->rank_count) l->reducer = g->id;
    }
    /* A wrapper is made first, with two operations. */
    for (uint32_t i = 0; i < l->rank_count; i++) l->ranks[i].collectives = 2;
    l->collective_count = 0;
    for (size_t i = 0; i < l->group_count; i++) keep_group(l, &l->groups[i]);
    return CD_PASS(cd_arena_check(&l->arena, err, "the operations of a recording"));
}
