/* SPDX-License-Identifier: Apache-2.0 */
/* I-GROUP: a reduction has the declared members and divisor; a store key has one owner and one generation.
**
** Judged from   group (by name), wrap, mark_ready's divide factor, join_notify, store_key.
** Exercised     a group was opened by at least two ranks.
** Blame         the odd ranks of a group's membership; the rank with the wrong divisor; the second writer of a key.
** Limits        a factor other than the group's size is accepted under join when it is a number of active ranks; a
**               hook's own division is I-SCALE's business.
*/
#include "core/check/scribe.h"

#include "core/base/hash.h"

typedef struct rank_facts {
    int64_t group;  /* of the wrapper */
    int64_t active; /* latest answer of the join protocol */
    bool is_wrapped, has_joined;
} rank_facts;

typedef struct key_facts {
    int64_t generation, value;
    uint64_t sequence;
    uint32_t rank;
    bool is_written;
} key_facts;

typedef struct state {
    cd_scribe scribe;
    cd_agree groups; /* name → id, members, members_digest */
    cd_table names;  /* name → text, for the report */
    cd_table seats;  /* (group, group_rank) → world rank + 1 */
    cd_ranks ranks;  /* of rank_facts */
    cd_table keys;   /* store key → key_facts */
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status = cd_check_begin(context, &(cd_check_spec){"I-GROUP", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_agree_init(&s->groups, context->allocator);
    cd_table_init(&s->names, context->allocator, CD_SCRIBE_NAME_BYTES);
    cd_table_init(&s->seats, context->allocator, sizeof(int64_t));
    cd_ranks_init(&s->ranks, context->allocator, sizeof(rank_facts));
    cd_table_init(&s->keys, context->allocator, sizeof(key_facts));
    return CDDP_OK;
}

static void take_group(state *s, const cddp_event *e)
{
    const cddp_event_group *g = &e->as.group;
    int64_t name = (int64_t)cd_hash_text(e->text);
    char *text = cd_table_add(&s->names, CD_KEY(name));
    if (text != NULL && e->text != NULL) cd_say(text, CD_SCRIBE_NAME_BYTES, "%s", e->text);
    cd_agree_push(&s->groups, &(cd_statement){.key = CD_KEY(name), CD_SAYS(g->group, g->members, g->members_digest)},
                  e);
    int64_t *seat = cd_table_add(&s->seats, CD_KEY(g->group, g->group_rank));
    if (seat == NULL) return;
    if (*seat != 0 && *seat != (int64_t)e->rank + 1) {
        cddp_finding f = cd_finding_at(&s->scribe, e);
        f.peer = (int32_t)(*seat - 1);
        CD_SAY(f.title, "ranks %lld and %u both are member %lld of group '%s'", (long long)(*seat - 1), e->rank,
               (long long)g->group_rank, e->text != NULL ? e->text : "");
        CD_SAY(f.expected, "one world rank per position of the group");
        CD_SAY(f.actual, "rank %u took a position that rank %lld holds", e->rank, (long long)(*seat - 1));
        cd_scribe_report(&s->scribe, &f);
    }
    *seat = (int64_t)e->rank + 1;
}

static void take_ready(state *s, const cddp_event *e)
{
    const cddp_event_mark_ready *m = &e->as.mark_ready;
    const rank_facts *r = cd_ranks_find(&s->ranks, e->rank);
    const cd_group_facts *g = r != NULL && r->is_wrapped ? cd_scribe_find_group(&s->scribe, r->group) : NULL;
    bool divides = m->path == 0 || m->path == 1 || m->path == 3 || m->path == 5;
    if (g == NULL || !divides || m->factor == 0 || m->factor == g->members) return;
    if (r->has_joined && m->factor == r->active) return;
    if (!cd_scribe_is_first(&s->scribe, CD_KEY(1), e)) return;
    cddp_finding f = cd_finding_at(&s->scribe, e);
    f.bucket = (int32_t)m->bucket;
    cd_finding_set_parameter(&s->scribe, &f, m->param);
    CD_SAY(f.title, "rank %u divides %s by %lld in a group of %lld", e->rank, f.parameter, (long long)m->factor,
           (long long)g->members);
    CD_SAY(f.expected, "%lld, the size of group '%s'%s", (long long)g->members, g->name,
           r->has_joined ? ", or the ranks still active" : "");
    CD_SAY(f.actual, "%lld", (long long)m->factor);
    CD_SAY(f.advice, "the divide factor is the group's size, or the active ranks under join (GRD-01)");
    cd_scribe_hold(&s->scribe, CD_KEY(1), &f);
}

static void take_key(state *s, const cddp_event *e)
{
    const cddp_event_store_key *k = &e->as.store_key;
    key_facts *facts = cd_table_add(&s->keys, CD_KEY((int64_t)cd_hash_text(e->text)));
    if (facts == NULL) return;
    bool other_owner = k->written && facts->is_written && facts->rank != e->rank &&
                       (facts->value != k->value || facts->generation != k->generation);
    bool other_generation = !k->written && facts->is_written && facts->generation != k->generation;
    const cd_key *key = CD_KEY(2, (int64_t)cd_hash_text(e->text));
    if ((other_owner || other_generation) && cd_scribe_is_first(&s->scribe, key, e)) {
        cddp_finding f = cd_finding_at(&s->scribe, e);
        f.peer = (int32_t)facts->rank;
        cd_finding_add_event(&f, facts->rank, facts->sequence);
        CD_SAY(f.title, "store key '%s' has %s", e->text != NULL ? e->text : "",
               other_owner ? "two owners" : "the wrong generation");
        CD_SAY(f.expected, "rank %u wrote generation %lld", facts->rank, (long long)facts->generation);
        CD_SAY(f.actual, "rank %u %s generation %lld", e->rank, k->written ? "wrote" : "read in",
               (long long)k->generation);
        CD_SAY(f.advice, "prefix rendezvous keys with the group's name and a generation");
        cd_scribe_hold(&s->scribe, key, &f);
    }
    if (k->written) *facts = (key_facts){k->generation, k->value, e->sequence, e->rank, true};
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    cd_scribe_learn(&s->scribe, e);
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (e->kind == CDDP_EV_group)
        take_group(s, e);
    else if (e->kind == CDDP_EV_mark_ready)
        take_ready(s, e);
    else if (e->kind == CDDP_EV_store_key)
        take_key(s, e);
    else if (r == NULL)
        return;
    else if (e->kind == CDDP_EV_wrap) {
        r->group = e->as.wrap.group;
        r->is_wrapped = true;
    } else if (e->kind == CDDP_EV_join_notify) {
        r->has_joined = true;
        if (e->as.join_notify.active_ranks >= 0) r->active = e->as.join_notify.active_ranks;
    }
}

static void report_members(state *s, const cd_split *split)
{
    cddp_finding f = cd_finding_of(&s->scribe, split);
    char who[160];
    cd_split_print(split, who, sizeof who);
    const char *name = cd_table_find(&s->names, split->key);
    CD_SAY(f.title, "%s disagree on who is in group '%s'", who, name != NULL ? name : "");
    CD_SAY(f.expected, "rank %u: %lld members, list %016llx", split->right.rank, (long long)split->right.data[1],
           (unsigned long long)split->right.data[2]);
    CD_SAY(f.actual, "rank %u: %lld members, list %016llx", split->odd.rank, (long long)split->odd.data[1],
           (unsigned long long)split->odd.data[2]);
    CD_SAY(f.advice, "two groups with different members need different names");
    cd_scribe_report(&s->scribe, &f);
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->groups.shared_count > 0)
        cd_scribe_exercise(&s->scribe, "%llu groups opened by several ranks",
                           (unsigned long long)s->groups.shared_count);
    cd_split split;
    for (size_t cursor = 0; cd_agree_next(&s->groups, &cursor, &split);) report_members(s, &split);
    cd_agree_fini(&s->groups);
    cd_table_fini(&s->names);
    cd_table_fini(&s->seats);
    cd_ranks_fini(&s->ranks);
    cd_table_fini(&s->keys);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_group,       CDDP_EV_wrap,      CDDP_EV_mark_ready,
                                 CDDP_EV_join_notify, CDDP_EV_store_key, CDDP_EV_param};

CD_CHECK_TABLE(
    group, "I-GROUP", "every reduction has its declared members and divisor",
    "Members and divisor of each reduction are the declared ones; store keys have one owner set and one generation.");
