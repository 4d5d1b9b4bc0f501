/* SPDX-License-Identifier: Apache-2.0 */
/* The witness of a finding is the earliest in (step, micro-step, rank, sequence), whatever the
** order in which events come. */
#include "core/check/obey.h"

#include "core/base/hash.h"
#include "core/trace/tracer.h"

#include <math.h>
#include <string.h>

typedef struct deviation {
    cddp_event at;
    cd_miss miss;
    cd_rank_set who;
    uint64_t count;
} deviation;

void cd_obey_init(cd_obey *obey, const cddp_allocator *allocator)
{
    *obey = (cd_obey){.obeyed = 0};
    cd_table_init(&obey->decided, allocator, sizeof(cd_decided));
    cd_table_init(&obey->misses, allocator, sizeof(deviation));
    cd_ranks_init(&obey->ranks, allocator, sizeof(uint64_t));
    cd_table_init(&obey->texts, allocator, sizeof(const char *));
    cd_arena_init(&obey->memory, allocator, CD_RANK_SET_BLOCK);
}

void cd_obey_fini(cd_obey *obey)
{
    cd_table_fini(&obey->decided);
    cd_table_fini(&obey->misses);
    cd_ranks_fini(&obey->ranks);
    cd_table_fini(&obey->texts);
    cd_arena_fini(&obey->memory);
}

/* A miss freezes the horizon: what the finding rests on is kept, too. */
static bool keeps(void *self, const cd_key *key, const void *value)
{
    const cd_obey *obey = self;
    const cd_decided *d = value;
    /* some are made long before their step */
    if (d->is.at_step < (int64_t)0 ||
        d->is.at_step >= (int64_t)cd_horizon_get(obey->window.horizon))
        return true;
    if (obey->window.is_missed == NULL ||
        !obey->window.is_missed(obey->window.self, (uint32_t)(key->part[0] >> 16), d))
        return false;
    cd_horizon_freeze(obey->window.horizon);
    return true;
}

void cd_obey_set_window(cd_obey *obey, const cd_obey_window *window)
{
    obey->window = *window;
    cd_table_set_window(&obey->decided, &(cd_table_window){window->horizon, keeps, NULL, obey});
}

/* One copy of a name, in however many steps it is decided on. */
static const char *keep_text(cd_obey *obey, const char *text)
{
    const char **kept = cd_table_add(&obey->texts, CD_KEY((int64_t)cd_hash_text(text)));
    if (kept == NULL) return NULL;
    if (*kept != NULL && strcmp(*kept, text) == 0) return *kept;
    const char *copy = cd_arena_strdup(&obey->memory, text);
    if (*kept == NULL) *kept = copy;
    return copy;
}

static cd_key key_of(const cd_decision_place *place)
{
    /* Unsigned: a trace may hold any numbers. */
    const uint64_t what = ((uint64_t)place->rank << 16) + (uint64_t)place->decision;
    const uint64_t when = (((uint64_t)place->step + 1) << 24) + (uint64_t)place->micro_step + 1;
    return (cd_key){{(int64_t)what, (int64_t)when, place->id}};
}

cd_decided *cd_obey_learn(cd_obey *obey, const cddp_event *e, const int64_t range[2])
{
    const cddp_event_decision *d = &e->as.decision;
    if (d->decision < range[0] || d->decision > range[1] || e->rank >= CD_RANKS_MAX) return NULL;
    const cd_key key =
        key_of(&(cd_decision_place){e->rank, d->decision, d->id, d->at_step, d->at_micro});
    uint64_t *count = cd_ranks_add(&obey->ranks, e->rank);
    cd_decided *known = cd_table_add(&obey->decided, &key);
    if (known == NULL || count == NULL) return NULL;
    obey->judged_ranks += (*count)++ == 0;
    known->is = *d;
    known->sequence = e->sequence;
    known->is_known = true;
    known->text = e->text != NULL ? keep_text(obey, e->text) : NULL;
    return known;
}

cd_decided *cd_obey_find(const cd_obey *obey, const cd_decision_place *place)
{
    const cd_key key = key_of(place);
    return cd_table_find(&obey->decided, &key);
}

cd_decided *cd_obey_get(const cd_obey *obey, size_t index, uint32_t *rank)
{
    if (index >= obey->decided.count) return NULL;
    *rank = (uint32_t)(cd_table_key(&obey->decided, index)->part[0] >> 16);
    return cd_table_value(&obey->decided, index);
}

bool cd_obey_judges(const cd_obey *obey, uint32_t rank)
{
    const uint64_t *count = cd_ranks_find(&obey->ranks, rank);
    return count != NULL && *count > 0;
}

static int compare_place(const cddp_event *a, const cddp_event *b)
{
    if (a->step != b->step) return a->step < b->step ? -1 : 1;
    if (a->micro_step != b->micro_step) return a->micro_step < b->micro_step ? -1 : 1;
    return 0;
}

void cd_obey_miss(cd_obey *obey, const cddp_event *at, const cd_miss *miss)
{
    deviation *d = cd_table_add(&obey->misses, CD_KEY(miss->decision, miss->which));
    cd_horizon_freeze(obey->window.horizon);
    if (d == NULL) return;
    const bool is_first = d->count++ == 0;
    const int order = is_first ? -1 : compare_place(at, &d->at);
    /* who disobeys in that step, be it a micro-step later */
    if (is_first || at->step < d->at.step) d->who = (cd_rank_set){0};
    if (is_first || at->step <= d->at.step) cd_rank_set_add(&d->who, &obey->memory, at->rank);
    if (order > 0) return;
    if (order == 0 &&
        (at->rank > d->at.rank || (at->rank == d->at.rank && at->sequence > d->at.sequence)))
        return;
    d->at = *at;
    d->at.text = NULL;
    d->miss = *miss;
}

bool cd_obey_has_missed(const cd_obey *obey, int64_t decision)
{
    for (size_t i = 0; i < obey->misses.count; i++) {
        if (cd_table_key(&obey->misses, i)->part[0] == decision) return true;
    }
    return false;
}

static void report_one(const cd_obey *obey, cd_writer *writer, const deviation *d)
{
    char who[96];
    cddp_finding f = cd_finding_at(writer, &d->at);
    const bool everybody =
        cd_rank_set_count(&d->who) == obey->judged_ranks && obey->judged_ranks > 1;
    cd_finding_set_ranks(writer, &f, &d->who);
    cd_rank_set_print(&d->who, d->at.rank, who, sizeof who);
    if (everybody) f.rank = -1;
    CD_SAY(f.title, "%s: %s", everybody ? "all ranks" : who, d->miss.what);
    CD_SAY(f.expected, "%s", d->miss.planned);
    CD_SAY(f.actual, "rank %u: %s", d->at.rank, d->miss.seen);
    f.is_consequence = d->miss.is_consequence;
    f.is_cause = d->miss.is_cause;
    char more[48] = "";
    if (d->count > 1) CD_SAY(more, "%llu more of this kind; ", (unsigned long long)d->count - 1);
    /* whether a gradient overflows, and how long they all are, no plan knows */
    const bool is_measured = d->miss.decision == CDDP_DECISION_OVERFLOW ||
                             d->miss.decision == CDDP_DECISION_CLIP ||
                             d->miss.decision == CDDP_DECISION_SCALE;
    CD_SAY(f.advice, "%swhat is expected follows from the plan%s", more,
           is_measured ? " and from the gradients that were judged" : " alone");
    cd_writer_report(writer, &f);
}

/* The order of insertion may differ between processes; that of (decision, which) does not. */
static const deviation *find_next(const cd_obey *obey, const cd_key *after, cd_key *key)
{
    const deviation *found = NULL;
    for (size_t i = 0; i < obey->misses.count; i++) {
        const cd_key *k = cd_table_key(&obey->misses, i);
        const bool is_later = after == NULL || k->part[0] > after->part[0] ||
                              (k->part[0] == after->part[0] && k->part[1] > after->part[1]);
        const bool is_sooner = found == NULL || k->part[0] < key->part[0] ||
                               (k->part[0] == key->part[0] && k->part[1] < key->part[1]);
        if (!is_later || !is_sooner) continue;
        found = cd_table_value(&obey->misses, i);
        *key = *k;
    }
    return found;
}

void cd_obey_report(cd_obey *obey, cd_writer *writer)
{
    cd_key last, next = {{0}};
    const deviation *d = find_next(obey, NULL, &next);
    if (obey->obeyed > 0) {
        cd_writer_exercise(writer, "%llu decisions compared with the plan's",
                           (unsigned long long)obey->obeyed);
    }
    for (; d != NULL; d = find_next(obey, &last, &next)) {
        last = next;
        report_one(obey, writer, d);
    }
}

bool cd_decided_fits(const cd_decided *decided, double seen)
{
    const double planned = cd_f64_of(decided->is.real), bound = cd_f64_of(decided->is.bound);
    if (isnan(planned)) return isnan(seen);
    return planned == seen || fabs(planned - seen) <= bound;
}
