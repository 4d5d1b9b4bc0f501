/* SPDX-License-Identifier: Apache-2.0 */
#include "core/check/facts.h"

#include "core/base/hash.h"
#include "core/check/rank_set.h"
#include "core/trace/setting.h"

#include <string.h>

typedef struct name {
    const char *text;
    uint32_t reporter; /* the least rank that reported it */
} name;

typedef struct group {
    cddp_fact_group facts;
    uint32_t reporter;
} group;

/* The number of consecutive ranks that must agree (0: all), and how often the rank reported it. */
typedef struct agreement {
    int64_t sizes[CDDP_AGREED_COUNT], count;
} agreement;

typedef struct exception {
    int64_t size, during;
} exception;

/* One copy of a text, however many ranks report it. */
static const char *keep_text(cd_facts *f, const char *text)
{
    const char **kept = cd_table_add(&f->texts, CD_KEY((int64_t)cd_hash_text(text)));
    if (kept == NULL) return NULL;
    if (*kept != NULL && strcmp(*kept, text) == 0) return *kept;
    const char *copy = cd_arena_strdup(&f->memory, text);
    if (*kept == NULL) *kept = copy;
    return copy;
}

/* ---- learning ---- */

static void learn_name(cd_facts *f, const cd_key *key, const cddp_event *e)
{
    name *known = e->text != NULL ? cd_table_add(&f->names, key) : NULL;
    if (known == NULL) return;
    const bool is_named = known->text != NULL && known->text[0] != '\0';
    if (is_named && known->reporter <= e->rank) return;
    known->reporter = e->rank;
    known->text = keep_text(f, e->text);
}

static void learn_group(cd_facts *f, const cddp_event *e)
{
    const cddp_event_group *g = &e->as.group;
    group *known = cd_table_add(&f->groups, CD_KEY(g->group));
    if (known == NULL || (known->facts.name != NULL && known->reporter <= e->rank)) return;
    known->reporter = e->rank;
    known->facts = (cddp_fact_group){.name = keep_text(f, e->text != NULL ? e->text : ""),
                                     .members = g->members,
                                     .order = g->order};
}

static void learn_setting(cd_facts *f, const cddp_event *e)
{
    const cddp_event_option *o = &e->as.option;
    cddp_fact_setting *s = cd_table_add(&f->settings, CD_KEY(e->rank, o->key, o->item));
    if (s == NULL) return;
    const int32_t key = e->text != NULL ? cd_setting_find(o->key) : -1;
    *s = (cddp_fact_setting){.value = o->value,
                             .real = cd_f64_of(o->real),
                             .text = e->text != NULL ? keep_text(f, e->text) : NULL,
                             .items = o->items};
    /* A word says more than its position, which another version may have given to another word. */
    if (key >= 0 && cd_setting_type((cddp_key)key) == CDDP_KEY_CHOICE)
        s->value = cd_setting_find_word((cddp_key)key, e->text);
}

static void learn_layout(cd_facts *f, const cddp_event *e)
{
    const cddp_event_bucket_layout *l = &e->as.bucket_layout;
    int64_t *newest = cd_ranks_add(&f->newest, e->rank);
    cddp_fact_place *place = cd_table_add(&f->places, CD_KEY(e->rank, l->param));
    int64_t *member = cd_table_add(&f->members, CD_KEY(e->rank, l->bucket, l->slot));
    /* Not the highest: a wrapper that is made again starts from generation 0. */
    if (newest != NULL) *newest = l->generation + 1;
    if (place != NULL)
        *place =
            (cddp_fact_place){l->bucket, l->slot, l->offset, l->numel, l->generation, l->dtype};
    if (member != NULL) {
        member[0] = l->param;
        member[1] = l->generation;
    }
}

static void learn_agreement(cd_facts *f, const cddp_event *e)
{
    const cddp_event_agreement *a = &e->as.agreement;
    agreement *known = cd_ranks_add(&f->agreements, e->rank);
    if (known == NULL) return;
    if (a->ordinal > 0) {
        exception *own = cd_table_add(&f->exceptions, CD_KEY(e->rank, a->ordinal - 1));
        if (own != NULL) *own = (exception){a->parameters, known->count};
        return;
    }
    *known = (agreement){{[CDDP_AGREED_GRADIENTS] = a->gradients,
                          [CDDP_AGREED_PARAMETERS] = a->parameters,
                          [CDDP_AGREED_STATE] = a->state},
                         known->count + 1};
}

void cd_facts_learn(cd_facts *f, const cddp_event *e)
{
    cd_horizon_learn(&f->horizon, e);
    switch (e->kind) {
    case CDDP_EV_param:
        if (e->as.param.param >= 0)
            learn_name(f, CD_KEY(CDDP_NAMED_VARIABLE, e->as.param.param), e);
        learn_name(f, CD_KEY(CDDP_NAMED_ORDINAL, e->as.param.ordinal), e);
        break;
    case CDDP_EV_buffer:
        learn_name(f, CD_KEY(CDDP_NAMED_BUFFER, e->as.buffer.buffer), e);
        break;
    case CDDP_EV_group:
        learn_group(f, e);
        break;
    case CDDP_EV_option:
        learn_setting(f, e);
        break;
    case CDDP_EV_bucket_layout:
        learn_layout(f, e);
        break;
    case CDDP_EV_agreement:
        learn_agreement(f, e);
        break;
    default:
        cd_stages_push(&f->stages, e);
        break;
    }
}

/* ---- the port ---- */

static const char *find_name(void *self, cddp_named what, int64_t id)
{
    const cd_facts *f = self;
    const name *known = cd_table_find(&f->names, CD_KEY(what, id));
    return known != NULL && known->text != NULL && known->text[0] != '\0' ? known->text : NULL;
}

static bool find_group(void *self, int64_t id, cddp_fact_group *found)
{
    const cd_facts *f = self;
    const group *known = cd_table_find(&f->groups, CD_KEY(id));
    if (known == NULL || known->facts.name == NULL) return false;
    *found = known->facts;
    return true;
}

static bool find_place(void *self, uint32_t rank, int64_t param, cddp_fact_place *found)
{
    const cd_facts *f = self;
    const cddp_fact_place *known = cd_table_find(&f->places, CD_KEY(rank, param));
    if (known != NULL) *found = *known;
    return known != NULL;
}

static int64_t find_generation(void *self, uint32_t rank)
{
    const cd_facts *f = self;
    const int64_t *newest = cd_ranks_find(&f->newest, rank);
    return newest != NULL ? *newest - 1 : -1;
}

static int64_t find_member(void *self, uint32_t rank, const cddp_fact_slot *slot)
{
    const cd_facts *f = self;
    const int64_t *member = cd_table_find(&f->members, CD_KEY(rank, slot->bucket, slot->slot));
    return member != NULL && member[1] == find_generation(self, rank) ? member[0] : -1;
}

static bool find_setting(void *self, uint32_t rank, const char *path, int64_t item,
                         cddp_fact_setting *found)
{
    const cd_facts *f = self;
    const cddp_fact_setting *known =
        cd_table_find(&f->settings, CD_KEY(rank, (int64_t)cd_hash_text(path), item));
    if (known != NULL) *found = *known;
    return known != NULL;
}

static int64_t find_block(void *self, uint32_t rank, cddp_agreed what, int64_t ordinal)
{
    const cd_facts *f = self;
    const agreement *known = cd_ranks_find(&f->agreements, rank);
    if (known == NULL) return 0;
    const exception *own = what == CDDP_AGREED_PARAMETERS && ordinal >= 0
                               ? cd_table_find(&f->exceptions, CD_KEY(rank, ordinal))
                               : NULL;
    const int64_t size =
        own != NULL && own->during == known->count ? own->size : known->sizes[what];
    return size > 0 ? (int64_t)rank / size : 0;
}

static bool find_stage(void *self, const cddp_fact_average *average, cddp_fact_stage *found)
{
    cd_facts *f = self;
    return cd_stages_find(&f->stages, average, found);
}

static cddp_judgement find_judgement(void *self, const cddp_fact_judged *of)
{
    const cd_facts *f = self;
    return cd_stages_judged(&f->stages, of);
}

cd_horizon *cd_facts_get_horizon(const cddp_facts *port)
{
    if (port == NULL || port->name != find_name) return NULL;
    return &((cd_facts *)port->self)->horizon;
}

void cd_facts_init(cd_facts *f, const cddp_allocator *allocator)
{
    f->port = (cddp_facts){.size = sizeof f->port,
                           .self = f,
                           .name = find_name,
                           .group = find_group,
                           .place = find_place,
                           .generation = find_generation,
                           .member = find_member,
                           .setting = find_setting,
                           .block = find_block,
                           .stage = find_stage,
                           .judged = find_judgement};
    cd_stages_init(&f->stages, allocator);
    cd_horizon_init(&f->horizon, allocator);
    cd_stages_set_window(&f->stages, &f->horizon);
    cd_arena_init(&f->memory, allocator, 16384);
    cd_table_init(&f->texts, allocator, sizeof(const char *));
    cd_table_init(&f->names, allocator, sizeof(name));
    cd_table_init(&f->groups, allocator, sizeof(group));
    cd_table_init(&f->settings, allocator, sizeof(cddp_fact_setting));
    cd_table_init(&f->places, allocator, sizeof(cddp_fact_place));
    cd_table_init(&f->members, allocator, 2 * sizeof(int64_t));
    cd_ranks_init(&f->newest, allocator, sizeof(int64_t));
    cd_ranks_init(&f->agreements, allocator, sizeof(agreement));
    cd_table_init(&f->exceptions, allocator, sizeof(exception));
}

void cd_facts_fini(cd_facts *f)
{
    cd_table_fini(&f->texts);
    cd_table_fini(&f->names);
    cd_table_fini(&f->groups);
    cd_table_fini(&f->settings);
    cd_table_fini(&f->places);
    cd_table_fini(&f->members);
    cd_ranks_fini(&f->newest);
    cd_ranks_fini(&f->agreements);
    cd_table_fini(&f->exceptions);
    cd_stages_fini(&f->stages);
    cd_horizon_fini(&f->horizon);
    cd_arena_fini(&f->memory);
}
