/* SPDX-License-Identifier: Apache-2.0 */
/* Events of other ranks may come after the mark: what is not known yet is tried again with each
** post. */
#include "core/check/sight.h"

#include "cddp/backend.h"
#include "core/base/hash.h"
#include "core/trace/codes.h"
#include "core/trace/tracer.h"

#include <string.h>

#define RECENT_MAX 64

typedef struct posted {
    int64_t sequence; /* + 1; 0: none */
    int64_t op, reduce_op, dtype, numel, digest;
} posted;

typedef struct recent {
    int64_t place, members;
    posted posts[RECENT_MAX];
} recent;

typedef struct done {
    int64_t group, sequence, digest;
    bool is_known;
} done;

void cd_sights_init(cd_sights *sights, const cddp_allocator *allocator)
{
    cd_table_init(&sights->recent, allocator, sizeof(recent));
    cd_table_init(&sights->places, allocator, sizeof(int64_t));
    cd_ranks_init(&sights->dones, allocator, sizeof(done));
    cd_table_init(&sights->looks, allocator, sizeof(cd_look));
    sights->settled = 0;
    sights->takes_forms = false;
}

void cd_sights_fini(cd_sights *sights)
{
    cd_table_fini(&sights->recent);
    cd_table_fini(&sights->places);
    cd_ranks_fini(&sights->dones);
    cd_table_fini(&sights->looks);
}

static const posted *find_post(const cd_sights *s, int64_t group, int64_t rank, int64_t sequence)
{
    const recent *r = cd_table_find(&s->recent, CD_KEY(group, rank));
    const posted *p = r != NULL ? &r->posts[(uint64_t)sequence % RECENT_MAX] : NULL;
    return p != NULL && p->sequence == sequence + 1 ? p : NULL;
}

/* As cd_summed_digest has it. */
static void try_look(cd_sights *s, const cd_key *key, cd_look *look)
{
    const int64_t group = key->part[0], sequence = key->part[1], rank = key->part[2];
    const recent *own = cd_table_find(&s->recent, CD_KEY(group, rank));
    const posted *p = find_post(s, group, rank, sequence);
    if (look->is_known || look->is_lost) return;
    look->is_lost = (look->result == 0 && !look->is_form) || (p == NULL && !look->is_output);
    if (look->is_lost) return;
    if (look->is_output) {
        look->op = p != NULL ? p->op : CDDP_OP_RECV; /* messages have no posts here */
        look->seen = (uint64_t)look->result & CD_SUM_SIGHT_BITS;
        look->is_known = true;
        return;
    }
    const cd_sum_sight sight = {.averages = p->reduce_op == CDDP_RED_AVG,
                                .scatters = p->op == CDDP_OP_REDUCE_SCATTER,
                                .gathers = p->op == CDDP_OP_ALLGATHER,
                                .member = own->place,
                                .members = own->members,
                                .dtype = p->dtype,
                                .numel = p->numel};
    uint64_t digest = cd_sum_sight_begin(&sight);
    look->op = p->op;
    look->seen = digest & CD_SUM_SIGHT_BITS;
    look->is_known = look->is_form;
    if (look->is_form) return;
    for (int64_t m = 0; m < own->members; m++) {
        const int64_t *other = cd_table_find(&s->places, CD_KEY(group, m));
        const posted *q = other != NULL ? find_post(s, group, *other - 1, sequence) : NULL;
        if (q == NULL || q->digest == 0) return;
        digest = cd_hash_mix(digest, (uint64_t)q->digest);
    }
    look->seen = cd_hash_mix(digest, (uint64_t)look->result) & CD_SUM_SIGHT_BITS;
    look->is_known = true;
}

/* Looks stand in the order in which they came, so that few of them are still open. */
static void try_looks(cd_sights *s)
{
    bool is_first = true;
    for (size_t i = s->settled; i < s->looks.count; i++) {
        cd_look *look = cd_table_value(&s->looks, i);
        try_look(s, cd_table_key(&s->looks, i), look);
        is_first = is_first && (look->is_known || look->is_lost);
        if (is_first) s->settled = i + 1;
    }
}

static void take_group(cd_sights *s, const cddp_event *e)
{
    const cddp_event_group *g = &e->as.group;
    recent *r = cd_table_add(&s->recent, CD_KEY(g->group, e->rank));
    int64_t *rank = cd_table_add(&s->places, CD_KEY(g->group, g->group_rank));
    if (rank != NULL) *rank = (int64_t)e->rank + 1;
    if (r == NULL) return;
    r->place = g->group_rank;
    r->members = g->members;
}

static void take_post(cd_sights *s, const cddp_event *e)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    recent *r = cd_table_find(&s->recent, CD_KEY(c->group, e->rank));
    if (r == NULL || c->op == CDDP_OP_SEND || c->op == CDDP_OP_RECV) return;
    r->posts[(uint64_t)c->sequence % RECENT_MAX] =
        (posted){c->sequence + 1, c->op, c->reduce_op, c->dtype, c->numel, c->digest};
    try_looks(s);
}

static bool is_wrong(const cd_look *look)
{
    return look->is_known && look->seen != (uint64_t)look->event.as.mark.value;
}

static void take_mark(cd_sights *s, const cddp_event *e)
{
    const done *d = cd_ranks_find(&s->dones, e->rank);
    if (e->text == NULL || d == NULL || !d->is_known) return;
    const bool is_output = strcmp(e->text, CD_TRACER_SHOWN_OUTPUT) == 0,
               is_form = s->takes_forms && strcmp(e->text, CD_TRACER_SHOWN_FORM) == 0;
    if (!is_output && !is_form && strcmp(e->text, CD_TRACER_SHOWN_SUM) != 0) return;
    const cd_key *key = CD_KEY(d->group, d->sequence, e->rank);
    cd_look taken = {.event = *e, .result = d->digest, .is_output = is_output, .is_form = is_form};
    taken.event.text = NULL;
    try_look(s, key, &taken);
    if (is_form && !is_wrong(&taken)) return; /* nothing else is needed of it */
    cd_look *look = cd_table_add(&s->looks, key);
    if (look != NULL) *look = taken;
}

void cd_sights_push(cd_sights *sights, const cddp_event *event)
{
    const cddp_event_collective_done *d = &event->as.collective_done;
    done *last;
    switch (event->kind) {
    case CDDP_EV_group:
        take_group(sights, event);
        break;
    case CDDP_EV_collective_post:
        take_post(sights, event);
        break;
    case CDDP_EV_collective_done:
        last = d->status == CDDP_OK ? cd_ranks_add(&sights->dones, event->rank) : NULL;
        if (last != NULL) *last = (done){d->group, d->sequence, d->digest, true};
        break;
    case CDDP_EV_mark:
        take_mark(sights, event);
        break;
    default:
        break;
    }
}

const cd_look *cd_sights_find_wrong(const cd_sights *sights, const cd_key *operation)
{
    const cd_look *look = cd_table_find(&sights->looks, operation);
    return look != NULL && is_wrong(look) ? look : NULL;
}

const cd_look *cd_sights_get_wrong(const cd_sights *sights, size_t position, const cd_key **key)
{
    for (size_t i = 0; i < sights->looks.count; i++) {
        const cd_look *look = cd_table_value(&sights->looks, i);
        if (!is_wrong(look) || position-- > 0) continue;
        *key = cd_table_key(&sights->looks, i);
        return look;
    }
    return NULL;
}
