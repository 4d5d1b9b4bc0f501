/* SPDX-License-Identifier: Apache-2.0 */
#include "core/check/circle.h"

#include <string.h>

void cd_circles_init(cd_circles *c, const cddp_allocator *allocator)
{
    *c = (cd_circles){.parameters = 0};
    cd_ranks_init(&c->ranks, allocator, sizeof(cd_circle));
    cd_table_init(&c->repeated, allocator, sizeof(cd_repeats));
}

void cd_circles_fini(cd_circles *c)
{
    cd_ranks_fini(&c->ranks);
    cd_table_fini(&c->repeated);
}

/* Nothing is done more often than once per stage for each tensor of the model, which bounds
** buckets, the parts of a sharded optimizer, buffers and averages; for each peer (messages); or for
** each control message (used map, join, flags, the program's own collectives). */
#define STAGES_MAX 64u /* of a comm hook, or of the retries of an operation */
#define CONTROLS_MAX 32u
uint64_t cd_circle_bound(int64_t parameters, int64_t buffers, uint64_t ranks)
{
    return STAGES_MAX * ((uint64_t)parameters + (uint64_t)buffers + ranks + CONTROLS_MAX);
}

uint64_t cd_circles_allowed(const cd_circles *c)
{
    return cd_circle_bound(c->parameters, c->buffers, c->ranks.count);
}

/* A pass of the model begins, or of one unit of a sharded one. */
static void begin_span(cd_circle *r)
{
    r->span++;
    r->posts = r->not_counted = 0;
    r->is_over = false;
}

static void begin_place(cd_circle *r, const cddp_event *e)
{
    if (r->step == e->step && r->micro_step == e->micro_step) return;
    begin_span(r);
    r->step = e->step;
    r->micro_step = e->micro_step;
    r->place++;
    r->passes = 0;
    r->has_passed_often = false;
}

static void keep_first(cd_circle *r, const cddp_event *e)
{
    if (r->is_over || r->has_passed_often) return;
    r->too_many = *e;
    r->too_many.text = NULL;
}

/* Joined ranks may be some iterations ahead of the forwards that they mirror. */
#define AHEAD_MAX 8u

static bool has_shadowed_nobody(const cd_circles *c, const cd_circle *r)
{
    return r->shadowed > c->begun - r->begun_before + AHEAD_MAX;
}

static void begin_own(cd_circles *c, const cddp_event *e, cd_circle *r)
{
    if (e->kind == CDDP_EV_forward_begin) {
        c->begun++;
        if (++r->begun > c->begun_most) c->begun_most = r->begun;
    }
    r->shadowed = 0;
    r->begun_before = c->begun;
    begin_span(r);
    if (++r->passes <= cd_circles_allowed(c)) return;
    keep_first(r, e);
    r->has_passed_often = true;
}

static void begin_pass(cd_circles *c, const cddp_event *e, cd_circle *r, bool joined)
{
    begin_place(r, e);
    r->events = 0;
    if (!joined) {
        begin_own(c, e, r);
        return;
    }
    r->shadowed++;
    if (!has_shadowed_nobody(c, r)) {
        begin_span(r);
    } else if (++r->not_counted > CD_CIRCLE_SHADOWS_MAX) {
        keep_first(r, e);
        r->is_over = true;
    }
}

static void count_repeats(cd_circles *c, const cddp_event *e, const cd_circle *r)
{
    const cddp_event_collective_post *p = &e->as.collective_post;
    /* fields may be -1 */
    const uint64_t what = (uint64_t)p->op | (uint64_t)p->reduce_op << 8 | (uint64_t)p->dtype << 16 |
                          (uint64_t)p->root << 24;
    cd_repeats *x =
        cd_table_add(&c->repeated, CD_KEY(e->rank, (int64_t)((uint64_t)p->group ^ what << 8),
                                          p->numel, p->bucket));
    if (x == NULL) return;
    if (x->count_in_place == 0)
        *x = (cd_repeats){.data = {p->op, p->reduce_op, p->root, p->dtype, p->numel},
                          .bucket = p->bucket,
                          .group = p->group};
    if (x->span != r->span) x->count = 0;
    if (x->place != r->place) x->count_in_place = 0;
    x->span = r->span;
    x->place = r->place;
    x->count++;
    x->count_in_place++;
}

static void take_post(cd_circles *c, const cddp_event *e, cd_circle *r)
{
    begin_place(r, e);
    if (r->posts++ == 0) r->begin_ns = e->time_ns;
    r->post_ns = e->time_ns;
    r->events = 0;
    if (!c->without_operations) count_repeats(c, e, r);
    if (r->is_over || r->posts <= cd_circles_allowed(c)) return;
    keep_first(r, e);
    r->is_over = true;
}

const cd_circle *cd_circles_push(cd_circles *c, const cddp_event *e)
{
    cd_circle *r = cd_ranks_add(&c->ranks, e->rank);
    if (r == NULL) return NULL;
    r->events++;
    switch (e->kind) {
    case CDDP_EV_collective_post:
        take_post(c, e, r);
        break;
    case CDDP_EV_mark:
        if (e->text != NULL && strcmp(e->text, "sharded_pass") == 0) begin_pass(c, e, r, false);
        break;
    case CDDP_EV_forward_begin:
        begin_pass(c, e, r, e->as.forward_begin.joined != 0);
        break;
    case CDDP_EV_backward_begin:
        begin_pass(c, e, r, false);
        break;
    case CDDP_EV_param:
        if (e->as.param.ordinal >= c->parameters) c->parameters = e->as.param.ordinal + 1;
        break;
    case CDDP_EV_buffer:
        if (e->as.buffer.buffer >= c->buffers) c->buffers = e->as.buffer.buffer + 1;
        break;
    default:
        break;
    }
    return r;
}

/* Where ranks come one after the other, as in shards, a joined one may come before those that it
** shadows: what they began is known at the end. */
const cd_circle *cd_circles_find(const cd_circles *c, uint32_t rank)
{
    const cd_circle *r = cd_ranks_find(&c->ranks, rank);
    const bool has_posted = r != NULL && r->is_over;
    return has_posted && (r->not_counted == 0 || r->shadowed > c->begun_most + AHEAD_MAX) ? r
                                                                                          : NULL;
}

const cd_circle *cd_circles_find_now(const cd_circles *c, uint32_t rank)
{
    const cd_circle *r = cd_ranks_find(&c->ranks, rank);
    return r != NULL && (r->is_over || r->has_passed_often) ? r : NULL;
}

const cd_repeats *cd_circles_most(const cd_circles *c, uint32_t rank, bool in_micro_step)
{
    const cd_circle *r = cd_ranks_find(&c->ranks, rank);
    const cd_repeats *most = NULL;
    uint64_t count = 0;
    for (size_t i = 0; r != NULL && i < c->repeated.count; i++) {
        const cd_repeats *x = cd_table_value(&c->repeated, i);
        const uint64_t here = in_micro_step ? (x->place == r->place ? x->count_in_place : 0)
                                            : (x->span == r->span ? x->count : 0);
        if (cd_table_key(&c->repeated, i)->part[0] != (int64_t)rank || here <= count) continue;
        most = x;
        count = here;
    }
    return most;
}
