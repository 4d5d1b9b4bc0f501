/* SPDX-License-Identifier: Apache-2.0 */
#include "core/check/own_average.h"

#include "core/trace/tracer.h"

#include <string.h>

typedef struct param {
    int64_t numel;
    bool is_local;      /* a backward added to its gradient, and nobody has reduced it */
    bool is_apart;      /* the last step took such a gradient */
    uint32_t step;      /* of that */
    int64_t times;      /* that its content was shown behind it */
    int64_t last;       /* its content as it was shown last */
    int64_t local;      /* its gradient, as a backward left it last */
    uint32_t turn;      /* + 1: the step in which an optimizer took it, or passed over it */
    int64_t turn_times; /* that its content was shown behind that */
    bool is_passed_over;
} param;

/* In place of the n-th time: who stepped, and who passed over it. */
enum { STEPPED = 0, PASSED = -1 };

/* What ranks say of one thing. */
typedef struct statement {
    int64_t ranks, digest; /* of the first */
    bool differs;
    /* no average: a rank has what it had before, or it has reduced too little */
    bool is_poor;
} statement;

#define RECENT_MAX 256

typedef struct rank_facts {
    int64_t stepped; /* elements of gradients that were not reduced, since the last backward */
    int64_t reduced; /* that the program all-reduced since */
    int64_t all;     /* elements of all parameters, of frozen ones too */
    /* the last of these reductions: those before may be of another module */
    int64_t recent[RECENT_MAX];
    uint32_t recent_count; /* how many there were */
    bool averages;
    bool posts; /* collectives, of whatever kind */
} rank_facts;

/* All ranks have spoken of what is to be forgotten. */
static void settle(void *self)
{
    cd_own_average *own = self;
    for (size_t i = 0; i < own->shown.count; i++) {
        const cd_key *key = cd_table_key(&own->shown, i);
        const statement *is = cd_table_value(&own->shown, i);
        const statement *took = cd_table_find(&own->shown, CD_KEY(key->part[0], key->part[1], 0));
        if (key->part[2] == 0 || took == NULL || !took->differs || took->ranks != is->ranks ||
            is->differs || is->is_poor)
            continue;
        (void)cd_table_add(&own->agreed, CD_KEY(key->part[0]));
    }
}

static void settle_turns(void *self)
{
    cd_own_average *own = self;
    for (size_t i = 0; i < own->turns.count; i++) {
        const cd_key *key = cd_table_key(&own->turns, i);
        const statement *is = cd_table_value(&own->turns, i);
        const int64_t of = key->part[0], step = key->part[1];
        const statement *stepped = cd_table_find(&own->turns, CD_KEY(of, step, STEPPED)),
                        *passed = cd_table_find(&own->turns, CD_KEY(of, step, PASSED));
        if (key->part[2] <= 0 || stepped == NULL || passed == NULL || stepped->is_poor ||
            is->differs || is->is_poor || is->ranks != stepped->ranks + passed->ranks)
            continue;
        (void)cd_table_add(&own->served, CD_KEY(of));
    }
}

void cd_own_average_init(cd_own_average *own, const cd_writer *writer)
{
    const cddp_allocator *allocator = writer->context.allocator;
    own->is_recorded = false;
    cd_table_init(&own->params, allocator, sizeof(param));
    cd_table_init(&own->sizes, allocator, sizeof(int64_t));
    cd_table_init(&own->shown, allocator, sizeof(statement));
    cd_table_init(&own->turns, allocator, sizeof(statement));
    cd_table_init(&own->agreed, allocator, sizeof(int64_t));
    cd_table_init(&own->served, allocator, sizeof(int64_t));
    cd_ranks_init(&own->ranks, allocator, sizeof(rank_facts));
    cd_table_set_window(&own->shown, &(cd_table_window){.horizon = cd_writer_get_horizon(writer),
                                                        .before = settle,
                                                        .self = own});
    cd_table_set_window(&own->turns, &(cd_table_window){.horizon = cd_writer_get_horizon(writer),
                                                        .before = settle_turns,
                                                        .self = own});
}

void cd_own_average_end(cd_own_average *own)
{
    settle(own);
    settle_turns(own);
}

void cd_own_average_fini(cd_own_average *own)
{
    cd_table_fini(&own->params);
    cd_table_fini(&own->sizes);
    cd_table_fini(&own->shown);
    cd_table_fini(&own->turns);
    cd_table_fini(&own->agreed);
    cd_table_fini(&own->served);
    cd_ranks_fini(&own->ranks);
}

static void take_param(cd_own_average *own, rank_facts *r, const cddp_event *e)
{
    const cddp_event_param *what = &e->as.param;
    int64_t *known = cd_table_add(&own->sizes, CD_KEY(e->rank, what->ordinal));
    param *p = cd_table_add(&own->params, CD_KEY(e->rank, what->param));
    if (known == NULL || p == NULL) return;
    r->all = (int64_t)((uint64_t)r->all + (uint64_t)what->numel - (uint64_t)*known);
    *known = what->numel;
    if (what->param >= 0) p->numel = what->numel;
}

static void take_local(cd_own_average *own, rank_facts *r, const cddp_event *e)
{
    const cddp_event_grad_local *g = &e->as.grad_local;
    param *p = cd_table_add(&own->params, CD_KEY(e->rank, g->param));
    r->stepped = r->reduced = 0;
    r->recent_count = 0;
    if (p == NULL || g->presence == CDDP_PRESENCE_ABSENT) return;
    p->is_local = true;
    p->local = g->digest;
}

static void state_content(cd_table *table, const cd_key *key, int64_t digest, bool is_poor)
{
    statement *x = cd_table_add(table, key);
    if (x == NULL) return;
    if (x->ranks++ == 0) x->digest = digest;
    x->differs |= x->digest != digest;
    x->is_poor |= is_poor;
}

static void take_turn(cd_own_average *own, param *p, const cddp_event *e)
{
    const cddp_event_optimizer_touch *t = &e->as.optimizer_touch;
    if (p->turn == e->step + 1) return;
    p->turn = e->step + 1;
    p->turn_times = 0;
    p->is_passed_over = !t->touched;
    state_content(&own->turns, CD_KEY(t->param, e->step, t->touched ? STEPPED : PASSED), 0,
                  t->touched && p->is_local && t->gradient == p->local);
}

static void take_touch(cd_own_average *own, rank_facts *r, const cddp_event *e)
{
    const cddp_event_optimizer_touch *t = &e->as.optimizer_touch;
    param *p = cd_table_find(&own->params, CD_KEY(e->rank, t->param));
    if (p != NULL) take_turn(own, p, e);
    if (p == NULL || !t->touched) return;
    if (p->is_local) r->stepped += p->numel;
    if (p->is_local && !(p->is_apart && p->step == e->step)) {
        state_content(&own->shown, CD_KEY(t->param, e->step, 0), t->gradient, false);
        p->step = e->step;
        p->times = 0;
    }
    p->is_apart = p->is_local;
    r->reduced = 0;
    r->recent_count = 0;
    p->is_local = false;
}

/* Behind the step, before it is averaged and behind that. */
static void take_value(cd_own_average *own, const rank_facts *r, const cddp_event *e)
{
    const cddp_event_value *v = &e->as.value;
    param *p = v->what == CDDP_WHAT_PARAMETER && v->digest != 0
                   ? cd_table_find(&own->params, CD_KEY(e->rank, v->param))
                   : NULL;
    if (p == NULL) return;
    const bool is_poor = v->digest == p->last || (r->posts && r->reduced < p->numel);
    const bool is_as_before = p->is_passed_over && v->digest == p->last;
    p->last = v->digest;
    if (p->turn == e->step + 1)
        state_content(&own->turns, CD_KEY(v->param, e->step, ++p->turn_times), v->digest,
                      is_as_before);
    if (p->is_apart && p->step == e->step)
        state_content(&own->shown, CD_KEY(v->param, e->step, ++p->times), v->digest, is_poor);
}

static bool is_all(const rank_facts *r, int64_t numel)
{
    return numel == r->stepped || numel == r->all;
}

static void take_reduction(rank_facts *r, int64_t numel)
{
    int64_t sum = 0;
    if (numel < 0) return;
    r->reduced = numel < INT64_MAX - r->reduced ? r->reduced + numel : INT64_MAX;
    r->recent[r->recent_count++ % RECENT_MAX] = numel;
    r->averages |= r->stepped > 0 && is_all(r, r->reduced);
    for (uint32_t i = 1; i <= r->recent_count && i <= RECENT_MAX && sum < r->reduced; i++) {
        const int64_t one = r->recent[(r->recent_count - i) % RECENT_MAX];
        if (one > INT64_MAX - sum) return;
        sum += one;
        r->averages |= r->stepped > 0 && is_all(r, sum);
    }
}

void cd_own_average_push(cd_own_average *own, const cddp_event *e)
{
    if (e->kind == CDDP_EV_mark && e->text != NULL &&
        (strncmp(e->text, "torch ", 6) == 0 || strcmp(e->text, CD_TRACER_RECORDED) == 0))
        own->is_recorded = true;
    if (!own->is_recorded) return;
    rank_facts *r = cd_ranks_add(&own->ranks, e->rank);
    param *p;
    if (r == NULL) return;
    switch (e->kind) {
    case CDDP_EV_param:
        take_param(own, r, e);
        break;
    case CDDP_EV_projection:
        /* of a program that names no parameters */
        p = cd_table_add(&own->params, CD_KEY(e->rank, e->as.projection.param));
        if (p != NULL && p->numel == 0) p->numel = e->as.projection.numel;
        break;
    case CDDP_EV_grad_local:
        take_local(own, r, e);
        break;
    case CDDP_EV_grad_final:
        p = cd_table_find(&own->params, CD_KEY(e->rank, e->as.grad_final.param));
        if (p != NULL) p->is_local = false;
        break;
    case CDDP_EV_optimizer_touch:
        take_touch(own, r, e);
        break;
    case CDDP_EV_value:
        take_value(own, r, e);
        break;
    case CDDP_EV_collective_post:
        r->posts = true;
        break;
    case CDDP_EV_mark:
        if (e->text != NULL && strcmp(e->text, CD_TRACER_OWN_REDUCTION) == 0)
            take_reduction(r, e->as.mark.value);
        break;
    default:
        break;
    }
}

bool cd_own_average_serves(const cd_own_average *own, int64_t param_index)
{
    return cd_table_find(&own->served, CD_KEY(param_index)) != NULL;
}

bool cd_own_average_has(const cd_own_average *own, const cd_rank_set *ranks, int64_t param_index)
{
    if (cd_table_find(&own->agreed, CD_KEY(param_index)) != NULL) return true;
    for (uint32_t rank = cd_rank_set_next(ranks, 0); rank != CD_NO_RANK;
         rank = cd_rank_set_next(ranks, rank + 1)) {
        const rank_facts *r = cd_ranks_find(&own->ranks, rank);
        if (r == NULL || !r->averages) return false;
    }
    return true;
}
