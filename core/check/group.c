/* SPDX-License-Identifier: Apache-2.0 */
/* I-GROUP: a reduction has the declared members and divisor; a store key has one owner and one
** generation.
**
** Judged from   group (by name), mark new_group, wrap, mark_ready's divide factor, join_notify,
**               store_key. A change of the wrapper's group (regroup), and the group of each
**               collective that a rank posts, against the decisions of the plan (group_obey.h).
** Exercised     a group was opened by at least two ranks.
** Blame         the odd ranks of a group's membership; the rank with the wrong divisor; the second
**               writer of a key; the rank that read what another generation had left.
** Limits        a factor other than the group's size is accepted under join when it is a number of
**               active ranks; a hook's own division is I-SCALE's business.
*/
#include "core/check/group_obey.h"

#include "core/base/hash.h"
#include "core/base/text.h"
#include "core/trace/codes.h"
#include "core/trace/tracer.h"

#include <string.h>

typedef struct rank_facts {
    int64_t group;            /* of the wrapper */
    int64_t active;           /* latest answer of the join protocol */
    int64_t last_step, calls; /* calls: of new_group */
    uint64_t call_sequence;   /* of the last one */
    uint32_t call_step;
    bool is_calling; /* it posted nothing since */
    bool has_hung;
    bool is_wrapped, has_joined;
} rank_facts;

/* One use of a store key. */
typedef struct key_use {
    int64_t generation, value;
    uint64_t sequence, time_ns;
    uint32_t rank, step;
    bool is_known;
} key_use;

typedef struct key_facts {
    char name[CD_WRITER_NAME_BYTES];
    key_use owner, other; /* the first to write it, and the first other rank that did */
} key_facts;

typedef struct state {
    cd_writer writer;
    cd_agree groups; /* name → id, members, members_digest */
    cd_agree calls;  /* k → members of the k-th group that a rank takes part in making */
    cd_table names;  /* name → text, for the report */
    cd_table slots;  /* (group, group_rank) → world rank + 1 */
    cd_ranks ranks;  /* of rank_facts */
    cd_table keys;   /* store key → key_facts */
    cd_table writings; /* (store key, value) → key_use; (store key, value, generation) → key_use */
    cd_table readings; /* (store key, value, generation, rank) → key_use, the first */
    cd_obey obey;
    cd_group_obey posts;
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-GROUP", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_agree_init(&s->groups, context->allocator);
    cd_agree_init(&s->calls, context->allocator);
    cd_table_init(&s->names, context->allocator, CD_WRITER_NAME_BYTES);
    cd_table_init(&s->slots, context->allocator, sizeof(int64_t));
    cd_ranks_init(&s->ranks, context->allocator, sizeof(rank_facts));
    cd_table_init(&s->keys, context->allocator, sizeof(key_facts));
    cd_table_init(&s->writings, context->allocator, sizeof(key_use));
    cd_obey_init(&s->obey, context->allocator);
    cd_table_init(&s->readings, context->allocator, sizeof(key_use));
    cd_group_obey_init(&s->posts, &s->obey, context);
    return CDDP_OK;
}

static void take_group(state *s, const cddp_event *e)
{
    const cddp_event_group *g = &e->as.group;
    int64_t name = (int64_t)cd_hash_text(e->text);
    char *text = cd_table_add(&s->names, CD_KEY(name));
    if (text != NULL && e->text != NULL) cd_say(text, CD_WRITER_NAME_BYTES, "%s", e->text);
    cd_agree_push(&s->groups,
                  &(cd_statement){.key = CD_KEY(name),
                                  CD_SAYS(g->group, g->members, g->members_digest)},
                  e);
    int64_t *slot = cd_table_add(&s->slots, CD_KEY(g->group, g->group_rank));
    if (slot == NULL) return;
    if (*slot != 0 && *slot != (int64_t)e->rank + 1) {
        cddp_finding f = cd_finding_at(&s->writer, e);
        f.peer = (int32_t)(*slot - 1);
        CD_SAY(f.title, "ranks %lld and %u both are member %lld of group '%s'",
               (long long)(*slot - 1), e->rank, (long long)g->group_rank,
               e->text != NULL ? e->text : "");
        CD_SAY(f.expected, "one world rank per position of the group");
        CD_SAY(f.actual, "rank %u took a position that rank %lld holds", e->rank,
               (long long)(*slot - 1));
        cd_writer_report(&s->writer, &f);
    }
    *slot = (int64_t)e->rank + 1;
}

/* Every rank calls, members or not: the k-th call of all of them makes one group. */
static void take_call(state *s, const cddp_event *e, rank_facts *r)
{
    if (e->text == NULL || strcmp(e->text, CD_TRACER_NEW_GROUP) != 0) return;
    cd_agree_push(&s->calls, &(cd_statement){.key = CD_KEY(r->calls++), CD_SAYS(e->as.mark.value)},
                  e);
    r->call_sequence = e->sequence;
    r->call_step = e->step;
    r->is_calling = true;
}

/* A rank never comes back from a call that others do not make. */
static void report_lone_call(state *s)
{
    const rank_facts *caller = NULL;
    cd_rank_set callers = {0}, others = {0};
    uint32_t rank = 0;
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const rank_facts *r = cd_ranks_find(&s->ranks, i);
        if (!r->is_calling || !r->has_hung || (caller != NULL && r->calls <= caller->calls))
            continue;
        caller = r;
        rank = i;
    }
    for (uint32_t i = 0; caller != NULL && i < s->ranks.count; i++) {
        const rank_facts *r = cd_ranks_find(&s->ranks, i);
        cd_rank_set_add(r->calls < caller->calls ? &others : &callers, &s->writer.memory, i);
    }
    if (cd_rank_set_count(&others) == 0) return;
    const cddp_event at = {.rank = rank,
                           .step = caller->call_step,
                           .sequence = caller->call_sequence};
    char who[96], missing[96];
    cddp_finding f = cd_finding_at(&s->writer, &at);
    const bool is_lone = cd_rank_set_count(&callers) <= cd_rank_set_count(&others);
    f.is_cause = true;
    f.rank = is_lone ? (int32_t)rank : -1;
    cd_finding_set_ranks(&s->writer, &f, is_lone ? &callers : &others);
    cd_rank_set_print(&callers, CD_NO_RANK, who, sizeof who);
    cd_rank_set_print(&others, CD_NO_RANK, missing, sizeof missing);
    CD_SAY(f.title, "%s make%s a group in call %lld of new_group, which %s %s not make", who,
           cd_rank_set_count(&callers) == 1 ? "s" : "", (long long)caller->calls, missing,
           cd_rank_set_count(&others) == 1 ? "does" : "do");
    CD_SAY(f.expected, "the same calls of new_group on all ranks");
    CD_SAY(f.actual, "rank %u never came back from its call %lld; %s made fewer", rank,
           (long long)caller->calls, missing);
    CD_SAY(f.advice,
           "every rank calls new_group for every group, in the same order, also for those "
           "that it is no member of");
    cd_writer_report(&s->writer, &f);
}

static void report_calls(state *s, const cd_split *split)
{
    cddp_finding f = cd_finding_of(&s->writer, split);
    const long long k = (long long)split->key->part[0] + 1;
    char who[160];
    cd_split_print(split, who, sizeof who);
    CD_SAY(f.title, "%s make different groups in call %lld of new_group", who, k);
    CD_SAY(f.expected, "rank %u: %lld members", split->right.rank,
           (long long)(split->right.data[0] & 0xffff));
    CD_SAY(f.actual, "rank %u: another list, with %lld", split->odd.rank,
           (long long)(split->odd.data[0] & 0xffff));
    CD_SAY(f.advice,
           "every rank calls new_group for every group, in the same order, also for those "
           "that it is no member of");
    cd_writer_report(&s->writer, &f);
}

static void take_ready(state *s, const cddp_event *e)
{
    const cddp_event_mark_ready *m = &e->as.mark_ready;
    const rank_facts *r = cd_ranks_find(&s->ranks, e->rank);
    cddp_fact_group g;
    const bool is_known =
        r != NULL && r->is_wrapped && cd_writer_find_group(&s->writer, r->group, &g);
    bool divides = m->path == CDDP_PATH_RECIPROCAL || m->path == CDDP_PATH_DIVIDE ||
                   m->path == CDDP_PATH_SPARSE || m->path == CDDP_PATH_DEFERRED;
    if (!is_known || !divides || m->factor == 0 || m->factor == g.members) return;
    if (r->has_joined && m->factor == r->active) return;
    if (!cd_writer_is_first(&s->writer, CD_KEY(1), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    f.bucket = (int32_t)m->bucket;
    cd_finding_set_parameter(&s->writer, &f, m->param);
    CD_SAY(f.title, CDDP_FINDING_WHO ": %s is divided by %lld in a group of %lld", f.parameter,
           (long long)m->factor, (long long)g.members);
    CD_SAY(f.expected, "%lld, the size of group '%s'%s", (long long)g.members, g.name,
           r->has_joined ? ", or the ranks still active" : "");
    CD_SAY(f.actual, "%lld", (long long)m->factor);
    CD_SAY(f.advice,
           "the divide factor is the group's size, or the active ranks under join (GRD-01)");
    cd_writer_hold(&s->writer, CD_KEY(1), &f);
}

/* ---- another process group of the wrapper ---- */

static void miss_group(state *s, const cddp_event *e, const cd_decided *d, const char *seen)
{
    cd_miss m = {.decision = CDDP_DECISION_GROUP, .which = d == NULL, .is_cause = true};
    CD_SAY(m.what, "%s",
           d == NULL ? "the wrapper's process group becomes another one"
                     : "the wrapper's process group is not the plan's");
    if (d == NULL)
        CD_SAY(m.planned, "the group that it had, in step %u", e->step);
    else if (d->is.value == 0)
        CD_SAY(m.planned, "rank %u leaves in step %lld", e->rank, (long long)d->is.at_step);
    else
        CD_SAY(m.planned, "group '%.40s' from step %lld on", d->text != NULL ? d->text : "",
               (long long)d->is.at_step);
    CD_SAY(m.seen, "%s", seen);
    cd_obey_miss(&s->obey, e, &m);
}

static void take_regroup(state *s, const cddp_event *e, rank_facts *r)
{
    cddp_fact_group g = {.name = ""};
    char seen[64];
    cd_decided *d =
        cd_obey_find(&s->obey, &(cd_decision_place){e->rank, CDDP_DECISION_GROUP, -1, e->step, -1});
    const bool is_member = e->as.regroup.group >= 0,
               is_known = is_member && cd_writer_find_group(&s->writer, e->as.regroup.group, &g);
    r->group = e->as.regroup.group;
    CD_SAY(seen, "%s%.40s%s", is_member ? "group '" : "this rank leaves", is_member ? g.name : "",
           is_member ? "'" : "");
    if (!cd_obey_judges(&s->obey, e->rank)) return;
    s->obey.obeyed++;
    if (d != NULL) d->seen++;
    const bool fits = d != NULL && is_member == (d->is.value > 0) &&
                      (!is_known || d->text == NULL || strcmp(g.name, d->text) == 0);
    if (!fits) miss_group(s, e, d, seen);
}

/* Decisions that no event followed, though the rank went on. */
static void judge_rest(state *s)
{
    for (size_t i = 0; i < s->obey.decided.count; i++) {
        uint32_t rank;
        const cd_decided *d = cd_obey_get(&s->obey, i, &rank);
        const rank_facts *r = cd_ranks_find(&s->ranks, rank);
        if (d->is.decision != CDDP_DECISION_GROUP || d->is.id != CD_GROUP_TAKEN || d->seen > 0 ||
            r == NULL || r->last_step < d->is.at_step)
            continue;
        const cddp_event at = {.rank = rank,
                               .step = (uint32_t)d->is.at_step,
                               .sequence = d->sequence};
        miss_group(s, &at, d, "the group that it had");
    }
}

static bool is_before(const key_use *a, const key_use *b)
{
    if (!b->is_known || a->time_ns != b->time_ns) return !b->is_known || a->time_ns < b->time_ns;
    return a->rank < b->rank;
}

/* Ranks report in any order; the times of their events say which was first. */
static void take_writing(key_facts *facts, const key_use *use)
{
    if (facts->owner.is_known && use->rank == facts->owner.rank) return;
    if (is_before(use, &facts->owner)) {
        if (facts->owner.is_known && is_before(&facts->owner, &facts->other))
            facts->other = facts->owner;
        facts->owner = *use;
    } else if (is_before(use, &facts->other)) {
        facts->other = *use;
    }
}

static void keep_use(cd_table *table, const cd_key *key, const key_use *use)
{
    key_use *kept = cd_table_add(table, key);
    if (kept != NULL && is_before(use, kept)) *kept = *use;
}

static void take_key(state *s, const cddp_event *e)
{
    const cddp_event_store_key *k = &e->as.store_key;
    const int64_t key = (int64_t)cd_hash_text(e->text);
    const key_use use = {k->generation, k->value, e->sequence, e->time_ns, e->rank, e->step, true};
    key_facts *facts = cd_table_add(&s->keys, CD_KEY(key));
    if (facts == NULL) return;
    CD_SAY(facts->name, "%s", e->text != NULL ? e->text : "");
    if (!k->written) {
        keep_use(&s->readings, CD_KEY(key, k->value, k->generation, e->rank), &use);
        return;
    }
    take_writing(facts, &use);
    keep_use(&s->writings, CD_KEY(key, k->value), &use);
    keep_use(&s->writings, CD_KEY(key, k->value, k->generation, 1), &use);
}

/* A finding about a key at its second use, beside the first. */
static void hold_key(state *s, const cd_key *hold, const char *name, const key_use *first,
                     const key_use *second)
{
    const cddp_event at = {.rank = second->rank,
                           .step = second->step,
                           .sequence = second->sequence};
    const bool is_owned = hold->part[0] == 3;
    if (!cd_writer_is_first(&s->writer, hold, &at)) return;
    cddp_finding f = cd_finding_at(&s->writer, &at);
    f.peer = (int32_t)first->rank;
    cd_finding_add_event(&f, first->rank, first->sequence);
    CD_SAY(f.title, "store key '%s' has %s", name,
           is_owned ? "two owners" : "the wrong generation");
    CD_SAY(f.expected, "rank %u wrote generation %lld", first->rank, (long long)first->generation);
    CD_SAY(f.actual, "rank %u %s generation %lld", second->rank, is_owned ? "wrote" : "read in",
           (long long)second->generation);
    CD_SAY(f.advice, "prefix rendezvous keys with the group's name and a generation");
    cd_writer_hold(&s->writer, hold, &f);
}

/* The owner of each value that was read must be of the reader's generation. */
static void judge_keys(state *s)
{
    for (size_t i = 0; i < s->readings.count; i++) {
        const cd_key *k = cd_table_key(&s->readings, i);
        const key_facts *facts = cd_table_find(&s->keys, CD_KEY(k->part[0]));
        const key_use *any = cd_table_find(&s->writings, CD_KEY(k->part[0], k->part[1]));
        const key_use *right =
            cd_table_find(&s->writings, CD_KEY(k->part[0], k->part[1], k->part[2], 1));
        if (facts != NULL && any != NULL && right == NULL)
            hold_key(s, CD_KEY(2), facts->name, any, cd_table_value(&s->readings, i));
    }
    for (size_t i = 0; i < s->keys.count; i++) {
        const key_facts *facts = cd_table_value(&s->keys, i);
        const key_use *a = &facts->owner, *b = &facts->other;
        if (b->is_known && (a->value != b->value || a->generation != b->generation))
            hold_key(s, CD_KEY(3, cd_table_key(&s->keys, i)->part[0]), facts->name, a, b);
    }
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (e->kind == CDDP_EV_group || e->kind == CDDP_EV_collective_post || e->kind == CDDP_EV_mark ||
        e->kind == CDDP_EV_unit || e->kind == CDDP_EV_group_close)
        cd_group_obey_learn(&s->posts, e);
    if (r != NULL && e->kind == CDDP_EV_collective_post) r->is_calling = false;
    if (r != NULL && e->kind == CDDP_EV_rank_end)
        r->has_hung = e->as.rank_end.end == CDDP_RANK_HUNG;
    if (e->kind == CDDP_EV_group) {
        take_group(s, e);
    } else if (e->kind == CDDP_EV_mark_ready) {
        take_ready(s, e);
        if (r != NULL) r->last_step = e->step;
    } else if (e->kind == CDDP_EV_store_key) {
        take_key(s, e);
    } else if (r == NULL) {
        return;
    } else if (e->kind == CDDP_EV_mark) {
        take_call(s, e, r);
    } else if (e->kind == CDDP_EV_regroup) {
        take_regroup(s, e, r);
    } else if (e->kind == CDDP_EV_decision) {
        static const int64_t groups[2] = {CDDP_DECISION_GROUP, CDDP_DECISION_GROUP},
                             steps[2] = {CDDP_DECISION_STEPS, CDDP_DECISION_STEPS};
        if (e->as.decision.id != CD_GROUP_OF_BUCKETS) (void)cd_obey_learn(&s->obey, e, groups);
        cd_group_obey_decide(&s->posts, e);
        (void)cd_obey_learn(&s->obey, e, steps);
    } else if (e->kind == CDDP_EV_wrap) {
        r->group = e->as.wrap.group;
        r->is_wrapped = true;
    } else if (e->kind == CDDP_EV_join_notify) {
        r->has_joined = true;
        if (e->as.join_notify.active_ranks >= 0) r->active = e->as.join_notify.active_ranks;
    }
}

static void report_members(state *s, const cd_split *split)
{
    cddp_finding f = cd_finding_of(&s->writer, split);
    char who[160];
    cd_split_print(split, who, sizeof who);
    const char *name = cd_table_find(&s->names, split->key);
    CD_SAY(f.title, "%s disagree on the members of group '%s'", who, name != NULL ? name : "");
    CD_SAY(f.expected, "rank %u: %lld member%s, list %016llx", split->right.rank,
           (long long)split->right.data[1], cd_plural((uint64_t)split->right.data[1]),
           (unsigned long long)split->right.data[2]);
    CD_SAY(f.actual, "rank %u: %lld member%s, list %016llx", split->odd.rank,
           (long long)split->odd.data[1], cd_plural((uint64_t)split->odd.data[1]),
           (unsigned long long)split->odd.data[2]);
    CD_SAY(f.advice, "two groups with different members need different names");
    cd_writer_report(&s->writer, &f);
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->groups.shared_count > 0)
        cd_writer_exercise(&s->writer, "%llu groups opened by several ranks",
                           (unsigned long long)s->groups.shared_count);
    cd_split split;
    for (size_t cursor = 0; cd_agree_next(&s->groups, &cursor, &split);) report_members(s, &split);
    size_t first = 0; /* what follows the first one is shifted */
    if (cd_agree_next(&s->calls, &first, &split))
        report_calls(s, &split);
    else
        report_lone_call(s);
    judge_keys(s);
    judge_rest(s);
    cd_group_obey_end(&s->posts);
    cd_obey_report(&s->obey, &s->writer);
    cd_group_obey_fini(&s->posts);
    cd_obey_fini(&s->obey);
    cd_agree_fini(&s->groups);
    cd_agree_fini(&s->calls);
    cd_table_fini(&s->writings);
    cd_table_fini(&s->readings);
    cd_table_fini(&s->names);
    cd_table_fini(&s->slots);
    cd_ranks_fini(&s->ranks);
    cd_table_fini(&s->keys);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_group,           CDDP_EV_wrap,        CDDP_EV_mark_ready,
                                 CDDP_EV_join_notify,     CDDP_EV_store_key,   CDDP_EV_regroup,
                                 CDDP_EV_decision,        CDDP_EV_mark,        CDDP_EV_unit,
                                 CDDP_EV_collective_post, CDDP_EV_group_close, CDDP_EV_rank_end};

CD_CHECK_TABLE(group, "I-GROUP", "every reduction has its declared members and divisor",
               "Members and divisor of each reduction are the declared ones; store keys have one "
               "owner set and one generation.");
