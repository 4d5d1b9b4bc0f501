/* SPDX-License-Identifier: Apache-2.0 */
#include "core/check/group_obey.h"

#include "core/base/hash.h"
#include "core/check/facts.h"
#include "core/trace/codes.h"
#include "core/trace/models.h"
#include "core/trace/tracer.h"

#include <string.h>

#define NAME_BYTES 64

typedef struct opened_group {
    char name[NAME_BYTES];
    int64_t name_digest, members, position, members_digest;
    bool is_open;
} opened_group;

typedef struct rank_groups {
    int64_t wrapper;         /* that the last mark named */
    int64_t own;             /* the wrapper + 1 whose decisions these are; 0: none yet */
    int64_t allowed;         /* group + 1 that was found to be allowed last */
    int64_t walked;          /* steps whose changes of the wrapper's group are in .taken */
    int64_t taken_step;      /* + 1, in which it was taken; 0: the first one */
    int64_t collective;      /* the plan's, + 1, that the rank posts next; 0: none */
    char plugin[NAME_BYTES]; /* how the names of a plugin's groups begin; "": it has none */
} rank_groups;

void cd_group_obey_init(cd_group_obey *g, cd_obey *obey, const cddp_check_context *context)
{
    const cd_obey_window window = {.horizon = cd_facts_get_horizon(context->facts)};
    g->obey = obey;
    cd_obey_init(&g->places, context->allocator);
    cd_obey_set_window(&g->places, &window);
    cd_table_init(&g->opened, context->allocator, sizeof(opened_group));
    cd_table_init(&g->allowed, context->allocator, sizeof(int64_t));
    cd_table_init(&g->early, context->allocator, sizeof(cddp_event));
    cd_ranks_init(&g->ranks, context->allocator, sizeof(rank_groups));
}

void cd_group_obey_fini(cd_group_obey *g)
{
    cd_obey_fini(&g->places);
    cd_table_fini(&g->opened);
    cd_table_fini(&g->allowed);
    cd_table_fini(&g->early);
    cd_ranks_fini(&g->ranks);
}

/* ---- decisions ---- */

void cd_group_obey_decide(cd_group_obey *g, const cddp_event *e)
{
    static const int64_t groups[2] = {CDDP_DECISION_GROUP, CDDP_DECISION_GROUP};
    const cddp_event_decision *d = &e->as.decision;
    rank_groups *r = cd_ranks_add(&g->ranks, e->rank);
    if (r == NULL || d->decision != CDDP_DECISION_GROUP) return;
    r->own = r->wrapper + 1;
    if (d->id == CD_GROUP_OF_BUCKETS) {
        (void)cd_obey_learn(&g->places, e, groups);
    } else if (d->id == CD_GROUP_OF_PLUGIN) {
        CD_SAY(r->plugin, "%s", e->text != NULL ? e->text : "");
    } else if (d->id >= 0) {
        const int64_t name = (int64_t)cd_hash_text(e->text);
        int64_t *known = cd_table_add(&g->allowed, CD_KEY(e->rank, name, d->digest, d->detail));
        if (known != NULL) *known = 1;
    }
}

static const cd_decided *find_group(const cd_group_obey *g, uint32_t rank, int64_t id, int64_t step)
{
    return cd_obey_find(g->obey, &(cd_decision_place){rank, CDDP_DECISION_GROUP, id, step, -1});
}

/* The group that the wrapper has in a step. */
static const cd_decided *find_taken(const cd_group_obey *g, rank_groups *r, const cddp_event *e)
{
    for (; r->walked <= (int64_t)e->step; r->walked++)
        if (find_group(g, e->rank, CD_GROUP_TAKEN, r->walked) != NULL)
            r->taken_step = r->walked + 1;
    return r->taken_step > 0 ? find_group(g, e->rank, CD_GROUP_TAKEN, r->taken_step - 1)
                             : find_group(g, e->rank, CD_GROUP_OF_WRAPPER, -1);
}

/* ---- what is posted ---- */

static void say_group(char *text, size_t text_bytes, const cd_decided *d)
{
    if (d == NULL || d->text == NULL)
        cd_say(text, text_bytes, "a group of the plan");
    else if (d->is.value <= 0)
        cd_say(text, text_bytes, "nowhere: the rank has left");
    else if (d->is.id == CD_GROUP_OF_BUCKETS)
        cd_say(text, text_bytes, "group '%.60s'", d->text);
    else
        cd_say(text, text_bytes, "group '%.60s' of %lld ranks", d->text, (long long)d->is.value);
}

static void miss(cd_group_obey *g, const cddp_event *e, const opened_group *seen,
                 const cd_decided *planned)
{
    cd_miss m = {.decision = CDDP_DECISION_GROUP, .which = 2, .is_cause = true};
    const bool is_bucket = e->kind == CDDP_EV_collective_post && e->as.collective_post.bucket >= 0;
    CD_SAY(m.what, "%s in group '%.40s', which is not the plan's",
           e->kind == CDDP_EV_unit ? "shards lie"
           : is_bucket             ? "buckets are reduced"
                                   : "a collective is posted",
           seen->name);
    say_group(m.planned, sizeof m.planned, planned);
    CD_SAY(m.seen, "group '%.60s', member %lld of %lld", seen->name, (long long)seen->position,
           (long long)seen->members);
    m.which = e->kind == CDDP_EV_unit ? 4 : is_bucket ? 2 : 3;
    cd_obey_miss(g->obey, e, &m);
}

static void miss_twice(cd_group_obey *g, const rank_groups *r, const cddp_event *e, int64_t group)
{
    const opened_group *o = cd_table_find(&g->opened, CD_KEY(e->rank, group));
    cd_miss m = {.decision = CDDP_DECISION_GROUP, .which = 5, .is_cause = true};
    if (r == NULL || r->own == 0 || o == NULL) return;
    CD_SAY(m.what, "group '%.40s' is opened again while it is open", o->name);
    CD_SAY(m.planned, "one group of that name and these %lld members", (long long)o->members);
    CD_SAY(m.seen, "two, and both number their operations from the start");
    cd_obey_miss(g->obey, e, &m);
}

static bool is_plugins(const rank_groups *r, const opened_group *o)
{
    return r->plugin[0] != '\0' && strncmp(o->name, r->plugin, strlen(r->plugin)) == 0;
}

static bool is_called(const cd_decided *d, const opened_group *o)
{
    return d != NULL && d->text != NULL && d->is.value > 0 &&
           (int64_t)cd_hash_text(d->text) == o->name_digest;
}

static void judge_bucket(cd_group_obey *g, rank_groups *r, const cddp_event *e,
                         const opened_group *o)
{
    const cd_decided *taken = find_taken(g, r, e),
                     *hooks = find_group(g, e->rank, CD_GROUP_OF_HOOK, -1),
                     *first = find_group(g, e->rank, CD_GROUP_OF_WRAPPER, -1),
                     *place =
                         cd_obey_find(&g->places, &(cd_decision_place){e->rank, CDDP_DECISION_GROUP,
                                                                       CD_GROUP_OF_BUCKETS, e->step,
                                                                       e->micro_step});
    if (place != NULL ? is_called(place, o)
                      : is_called(taken, o) || is_called(hooks, o) || is_called(first, o))
        return;
    miss(g, e, o, place != NULL ? place : taken);
}

static void judge_unit(cd_group_obey *g, const cddp_event *e, const opened_group *o)
{
    const cd_decided *shards = find_group(g, e->rank, CD_GROUP_OF_SHARDS, -1),
                     *resumed = find_group(g, e->rank, CD_GROUP_OF_SHARDS_RESUMED, -1);
    if (!is_called(shards, o) && !is_called(resumed, o)) miss(g, e, o, shards);
}

static void judge(cd_group_obey *g, rank_groups *r, const cddp_event *e, int64_t group)
{
    const opened_group *o = cd_table_find(&g->opened, CD_KEY(e->rank, group));
    if (o == NULL || is_plugins(r, o)) return;
    const bool is_allowed =
        cd_table_find(&g->allowed,
                      CD_KEY(e->rank, o->name_digest, o->members_digest, o->position)) != NULL;
    if (!is_allowed)
        miss(g, e, o, find_taken(g, r, e));
    else if (e->kind == CDDP_EV_unit)
        judge_unit(g, e, o);
    else if (e->as.collective_post.bucket >= 0)
        judge_bucket(g, r, e, o);
    else
        r->allowed = group + 1;
}

static void keep_first(cd_group_obey *g, const cddp_event *e, int64_t wrapper, int64_t group)
{
    cddp_event *first = cd_table_add(&g->early, CD_KEY(e->rank, wrapper, group, e->kind));
    if (first == NULL || first->kind != 0) return;
    *first = *e;
    first->text = NULL;
}

static void take(cd_group_obey *g, rank_groups *r, const cddp_event *e, int64_t group)
{
    if (r->own == 0)
        keep_first(g, e, r->wrapper, group);
    else if (r->own == r->wrapper + 1)
        judge(g, r, e, group);
}

/* Groups of one name would have one sequence of operations. */
static void open_group(cd_group_obey *g, const rank_groups *r, const cddp_event *e)
{
    opened_group *o = cd_table_add(&g->opened, CD_KEY(e->rank, e->as.group.group));
    if (o == NULL) return;
    if (o->is_open) keep_first(g, e, r->wrapper, e->as.group.group);
    o->is_open = true;
    CD_SAY(o->name, "%s", e->text != NULL ? e->text : "");
    o->name_digest = (int64_t)cd_hash_text(e->text);
    o->members = e->as.group.members;
    o->position = e->as.group.group_rank;
    o->members_digest = e->as.group.members_digest;
}

/* One group among several that are allowed: that of this [[collective]]. */
static void judge_collective(cd_group_obey *g, const cddp_event *e, int64_t collective)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    const opened_group *o = cd_table_find(&g->opened, CD_KEY(e->rank, c->group));
    const cd_decided *planned = find_group(g, e->rank, CD_GROUP_OF_COLLECTIVE + collective, -1);
    if (o == NULL || planned == NULL || is_called(planned, o)) return;
    cd_miss m = {.decision = CDDP_DECISION_GROUP, .which = 6, .is_cause = true};
    CD_SAY(m.what, "[[collective]] %lld (from 0) is posted in group '%.40s'", (long long)collective,
           o->name);
    CD_SAY(m.planned, "group '%.60s'", planned->text);
    CD_SAY(m.seen, "group '%.60s', member %lld of %lld", o->name, (long long)o->position,
           (long long)o->members);
    cd_obey_miss(g->obey, e, &m);
}

static void take_post(cd_group_obey *g, rank_groups *r, const cddp_event *e)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    if (c->bucket >= 0 || r->allowed != c->group + 1) take(g, r, e, c->group);
    if (c->bucket >= 0 || r->collective == 0) return;
    if (r->own == r->wrapper + 1) judge_collective(g, e, r->collective - 1);
    r->collective = 0;
}

static void take_mark(rank_groups *r, const cddp_event *e)
{
    if (cd_models_is_mark(e)) r->wrapper = e->as.mark.value;
    if (e->text != NULL && strcmp(e->text, CD_TRACER_OWN_COLLECTIVE) == 0)
        r->collective = e->as.mark.value + 1;
}

void cd_group_obey_learn(cd_group_obey *g, const cddp_event *e)
{
    rank_groups *r = cd_ranks_add(&g->ranks, e->rank);
    if (r == NULL) return;
    if (e->kind == CDDP_EV_group) {
        open_group(g, r, e);
    } else if (e->kind == CDDP_EV_group_close) {
        opened_group *o = cd_table_find(&g->opened, CD_KEY(e->rank, e->as.group_close.group));
        if (o != NULL) o->is_open = false;
    } else if (e->kind == CDDP_EV_mark) {
        take_mark(r, e);
    } else if (e->kind == CDDP_EV_unit) {
        if (e->as.unit.group >= 0) take(g, r, e, e->as.unit.group);
    } else {
        take_post(g, r, e);
    }
}

void cd_group_obey_end(cd_group_obey *g)
{
    for (size_t i = 0; i < g->early.count; i++) {
        const cd_key *key = cd_table_key(&g->early, i);
        rank_groups *r = cd_ranks_find(&g->ranks, (uint32_t)key->part[0]);
        if (key->part[3] == CDDP_EV_group)
            miss_twice(g, r, cd_table_value(&g->early, i), key->part[2]);
        else if (r != NULL && r->own == key->part[1] + 1)
            judge(g, r, cd_table_value(&g->early, i), key->part[2]);
    }
}
