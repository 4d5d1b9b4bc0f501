/* SPDX-License-Identifier: Apache-2.0 */
#include "core/check/own_average.h"

#include "core/trace/tracer.h"

#include <string.h>

typedef struct param {
    int64_t numel;
    bool is_local; /* a backward added to its gradient, and nobody has reduced it */
} param;

#define RECENT_MAX 256

typedef struct rank_facts {
    int64_t stepped; /* elements of gradients that were not reduced, since the last backward */
    int64_t reduced; /* that the program all-reduced since */
    int64_t all;     /* elements of all parameters, of frozen ones too */
    /* the last of these reductions: those before may be of another module */
    int64_t recent[RECENT_MAX];
    uint32_t recent_count; /* how many there were */
    bool averages;
} rank_facts;

void cd_own_average_init(cd_own_average *own, const cddp_allocator *allocator)
{
    own->is_recorded = false;
    cd_table_init(&own->params, allocator, sizeof(param));
    cd_table_init(&own->sizes, allocator, sizeof(int64_t));
    cd_ranks_init(&own->ranks, allocator, sizeof(rank_facts));
}

void cd_own_average_fini(cd_own_average *own)
{
    cd_table_fini(&own->params);
    cd_table_fini(&own->sizes);
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
    if (p != NULL && g->presence != CDDP_PRESENCE_ABSENT) p->is_local = true;
}

static void take_touch(cd_own_average *own, rank_facts *r, const cddp_event *e)
{
    const cddp_event_optimizer_touch *t = &e->as.optimizer_touch;
    param *p = cd_table_find(&own->params, CD_KEY(e->rank, t->param));
    if (p == NULL || !t->touched) return;
    if (p->is_local) r->stepped += p->numel;
    r->reduced = 0;
    r->recent_count = 0;
    p->is_local = false;
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
    case CDDP_EV_mark:
        if (e->text != NULL && strcmp(e->text, CD_TRACER_OWN_REDUCTION) == 0)
            take_reduction(r, e->as.mark.value);
        break;
    default:
        break;
    }
}

bool cd_own_average_has(const cd_own_average *own, uint32_t rank)
{
    const rank_facts *r = cd_ranks_find(&own->ranks, rank);
    return r != NULL && r->averages;
}
