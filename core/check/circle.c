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
uint64_t cd_circles_allowed(const cd_circles *c)
{
    return STAGES_MAX *
           ((uint64_t)c->parameters + (uint64_t)c->buffers + c->ranks.count + CONTROLS_MAX);
}

/* A pass of the model begins, or of one unit of a sharded one. */
static void begin_span(cd_circle *r)
{
    r->span++;
    r->posts = 0;
    r->is_over = false;
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
    if (x->span != r->span)
        *x = (cd_repeats){
            {p->op, p->reduce_op, p->root, p->dtype, p->numel}, p->bucket, p->group, r->span, 0};
    x->count++;
}

static void take_post(cd_circles *c, const cddp_event *e, cd_circle *r)
{
    if (r->step != e->step || r->micro_step != e->micro_step) {
        begin_span(r);
        r->step = e->step;
        r->micro_step = e->micro_step;
    }
    if (r->posts++ == 0) r->begin_ns = e->time_ns;
    r->post_ns = e->time_ns;
    count_repeats(c, e, r);
    if (r->is_over || r->posts <= cd_circles_allowed(c)) return;
    r->is_over = true;
    r->too_many = *e;
    r->too_many.text = NULL;
}

void cd_circles_push(cd_circles *c, const cddp_event *e)
{
    cd_circle *r = cd_ranks_add(&c->ranks, e->rank);
    if (r == NULL) return;
    switch (e->kind) {
    case CDDP_EV_collective_post:
        take_post(c, e, r);
        break;
    case CDDP_EV_mark:
        if (e->text != NULL && strcmp(e->text, "sharded_pass") == 0) begin_span(r);
        break;
    case CDDP_EV_forward_begin:
    case CDDP_EV_backward_begin:
        begin_span(r);
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
}

const cd_circle *cd_circles_find(const cd_circles *c, uint32_t rank)
{
    const cd_circle *r = cd_ranks_find(&c->ranks, rank);
    return r != NULL && r->is_over ? r : NULL;
}

const cd_repeats *cd_circles_most(const cd_circles *c, uint32_t rank)
{
    const cd_circle *r = cd_ranks_find(&c->ranks, rank);
    const cd_repeats *most = NULL;
    for (size_t i = 0; r != NULL && i < c->repeated.count; i++) {
        const cd_repeats *x = cd_table_value(&c->repeated, i);
        const bool is_now =
            cd_table_key(&c->repeated, i)->part[0] == (int64_t)rank && x->span == r->span;
        if (is_now && (most == NULL || x->count > most->count)) most = x;
    }
    return most;
}
