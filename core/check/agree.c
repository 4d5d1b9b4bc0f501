/* SPDX-License-Identifier: Apache-2.0 */
/* Counting votes per key. The first statement is kept in the entry itself, differing ones in a
** list, so a run in which all agree costs one entry per key whatever the number of ranks. */
#include "core/check/agree.h"

#include "core/check/facts.h"

#include <stdlib.h>
#include <string.h>

void cd_agree_init(cd_agree *agree, const cddp_allocator *allocator)
{
    *agree = (cd_agree){0};
    cd_table_init(&agree->entries, allocator, sizeof(cd_agree_entry));
    cd_arena_init(&agree->memory, allocator, CD_RANK_SET_BLOCK);
}

void cd_agree_fini(cd_agree *agree)
{
    cd_table_fini(&agree->entries);
    cd_arena_fini(&agree->memory);
}

static bool is_whole(const cd_agree *agree, const cd_key *key, const cd_agree_entry *entry)
{
    const cddp_facts *facts = agree->window.facts;
    cddp_fact_group group;
    switch (agree->window.whole) {
    case CD_WHOLE_GROUP:
        return facts->group(facts->self, key->part[0], &group) &&
               (int64_t)entry->voters >= group.members;
    case CD_WHOLE_MOST:
        return entry->voters >= agree->most_voters;
    default:
        return true;
    }
}

static bool keeps(void *self, const cd_key *key, const void *value)
{
    const cd_agree *agree = self;
    const cd_agree_entry *entry = value;
    const bool is_split = entry->first.next != 0 && !agree->window.may_differ;
    return is_split || !is_whole(agree, key, entry) ||
           (agree->window.keeps != NULL && agree->window.keeps(agree->window.self, key, entry));
}

void cd_agree_set_window(cd_agree *agree, const cd_agree_window *window)
{
    agree->window = *window;
    cd_table_set_window(&agree->entries,
                        &(cd_table_window){.horizon = cd_facts_get_horizon(window->facts),
                                           .keeps = keeps,
                                           .self = agree});
}

static void vote(cd_agree *agree, cd_variant *v, const cddp_event *event)
{
    /* The lowest rank is the witness, whatever the order in which ranks speak. */
    if (v->count++ == 0 || event->rank < v->rank) {
        v->rank = event->rank;
        v->sequence = event->sequence;
    }
    cd_rank_set_add(&v->ranks, &agree->memory, event->rank);
}

static void note_place(cd_agree_entry *entry, const cddp_event *event)
{
    bool is_first = entry->voters == 1;
    if (is_first || event->step < entry->step ||
        (event->step == entry->step && event->micro_step < entry->micro_step)) {
        entry->step = event->step;
        entry->micro_step = event->micro_step;
    }
    if (is_first || event->rank < entry->reporter) {
        entry->reporter = event->rank;
        entry->sequence = event->sequence;
    }
}

bool cd_agree_push(cd_agree *agree, const cd_statement *statement, const cddp_event *event)
{
    int64_t data[CD_STATEMENT_WORDS] = {0};
    memcpy(data, statement->data, statement->words * sizeof *data);
    cd_agree_entry *entry = cd_table_add(&agree->entries, statement->key);
    if (entry == NULL) return true;
    entry->voters++;
    if (entry->voters > agree->most_voters) agree->most_voters = entry->voters;
    if (entry->voters == 2) agree->shared_count++;
    if (entry->voters == 1) memcpy(entry->first.data, data, sizeof data);
    note_place(entry, event);
    cd_variant *v = &entry->first;
    while (memcmp(v->data, data, sizeof data) != 0) {
        if (v->next == 0) {
            if (v == &entry->first) agree->split_count++;
            if (!agree->window.may_differ) cd_horizon_freeze(agree->entries.window.horizon);
            size_t from = v == &entry->first ? SIZE_MAX : (size_t)(v - agree->overflow);
            if (!cd_arena_grow(&agree->memory, (void **)&agree->overflow, &agree->overflow_capacity,
                               agree->overflow_count + 1, sizeof *agree->overflow))
                return false;
            v = from == SIZE_MAX ? &entry->first : &agree->overflow[from];
            v->next = (uint32_t)++agree->overflow_count;
            v = &agree->overflow[agree->overflow_count - 1];
            memset(v, 0, sizeof *v);
            memcpy(v->data, data, sizeof data);
            break;
        }
        v = &agree->overflow[v->next - 1];
    }
    vote(agree, v, event);
    return v == &entry->first;
}

static void take_back(cd_variant *v, uint32_t rank)
{
    v->count--;
    cd_rank_set_remove(&v->ranks, rank);
    if (v->rank != rank || v->count == 0) return;
    v->rank = cd_rank_set_next(&v->ranks, 0);
    v->sequence = CD_NO_SEQUENCE;
}

/* What nobody says any more. */
static void drop_empty(cd_agree *agree, cd_agree_entry *entry)
{
    while (entry->first.count == 0 && entry->first.next != 0)
        entry->first = agree->overflow[entry->first.next - 1];
    for (cd_variant *v = &entry->first; v->next != 0;) {
        cd_variant *next = &agree->overflow[v->next - 1];
        if (next->count == 0)
            v->next = next->next;
        else
            v = next;
    }
}

void cd_agree_restate(cd_agree *agree, const cd_statement *statement, const cddp_event *event)
{
    cd_agree_entry *entry = cd_table_find(&agree->entries, statement->key);
    cd_variant *said = entry != NULL ? &entry->first : NULL;
    while (said != NULL && !cd_rank_set_has(&said->ranks, event->rank))
        said = said->next != 0 ? &agree->overflow[said->next - 1] : NULL;
    if (said == NULL) {
        (void)cd_agree_push(agree, statement, event);
        return;
    }
    if (memcmp(said->data, statement->data, statement->words * sizeof *statement->data) == 0)
        return;
    take_back(said, event->rank);
    entry->voters--;
    (void)cd_agree_push(agree, statement, event);
    entry = cd_table_find(&agree->entries, statement->key);
    if (entry != NULL) drop_empty(agree, entry);
}

const cd_variant *cd_agree_variant(const cd_agree *agree, const cd_variant *variant)
{
    return variant->next != 0 ? &agree->overflow[variant->next - 1] : NULL;
}

void cd_agree_set_authority(cd_agree *agree, const cd_key *key, uint32_t rank)
{
    cd_agree_entry *entry = cd_table_add(&agree->entries, key);
    if (entry != NULL) entry->authority = rank + 1;
}

void cd_agree_set_right(cd_agree *agree, const cd_key *key, const cd_agree_judge *judge)
{
    cd_agree_entry *entry = cd_table_find(&agree->entries, key);
    uint32_t right_count = 0, wrong_count = 0, right = 0;
    if (entry == NULL || entry->authority != 0) return;
    for (const cd_variant *v = &entry->first; v != NULL; v = cd_agree_variant(agree, v)) {
        bool is_right = false, is_wrong = false;
        for (uint32_t r = cd_rank_set_next(&v->ranks, 0); r != CD_NO_RANK;
             r = cd_rank_set_next(&v->ranks, r + 1)) {
            const cddp_judgement found = judge->judge(judge->self, r, v);
            if (found == CDDP_JUDGED_RIGHT && !is_right) right = r;
            is_right = is_right || found == CDDP_JUDGED_RIGHT;
            is_wrong = is_wrong || found == CDDP_JUDGED_WRONG;
        }
        if (is_right && is_wrong) return; /* that does not decide it */
        right_count += is_right;
        wrong_count += is_wrong;
    }
    if (right_count == 1 && wrong_count > 0) entry->authority = right + 1;
}

typedef struct oracle {
    const cddp_facts *facts;
    cddp_fact_judged place;
} oracle;

static cddp_judgement ask_oracle(void *self, uint32_t rank, const cd_variant *said)
{
    const oracle *o = self;
    (void)said;
    return o->facts->judged(o->facts->self, &(cddp_fact_judged){rank, o->place.step, o->place.link,
                                                                o->place.param});
}

void cd_agree_set_judged(cd_agree *agree, const cd_key *key, const cddp_facts *facts,
                         const cddp_fact_judged *place)
{
    oracle o = {facts, *place};
    cd_agree_set_right(agree, key, &(cd_agree_judge){&o, ask_oracle});
}

/* The side taken for right: the authority's, else the majority's, else the first one that spoke. */
static const cd_variant *choose_right(const cd_agree *agree, const cd_agree_entry *entry,
                                      bool *has_culprit)
{
    for (const cd_variant *v = &entry->first; v != NULL; v = cd_agree_variant(agree, v)) {
        bool is_right = entry->authority != 0 ? cd_rank_set_has(&v->ranks, entry->authority - 1)
                                              : v->count * 2 > entry->voters;
        if (is_right) {
            *has_culprit = true;
            return v;
        }
    }
    *has_culprit = false;
    const cd_variant *lowest = &entry->first;
    for (const cd_variant *v = lowest; v != NULL; v = cd_agree_variant(agree, v))
        if (v->rank < lowest->rank) lowest = v;
    return lowest;
}

static void describe_split(cd_agree *agree, size_t position, cd_split *split)
{
    const cd_agree_entry *entry = cd_table_value(&agree->entries, position);
    const cd_variant *right = choose_right(agree, entry, &split->has_culprit), *odd = NULL;
    *split = (cd_split){.key = cd_table_key(&agree->entries, position),
                        .right = *right,
                        .voters = entry->voters,
                        .step = entry->step,
                        .micro_step = entry->micro_step,
                        .has_culprit = split->has_culprit,
                        .has_reference = entry->authority != 0};
    for (const cd_variant *v = &entry->first; v != NULL; v = cd_agree_variant(agree, v)) {
        if (v == right) continue;
        cd_rank_set_unite(&split->odd_ranks, &agree->memory, &v->ranks);
        if (odd == NULL || v->count > odd->count || (v->count == odd->count && v->rank < odd->rank))
            odd = v;
    }
    split->odd = *odd;
}

/* One entry on the way through qsort, which passes no context. */
typedef struct sorted_split {
    uint64_t sequence;
    uint32_t step, micro_step, reporter;
    size_t position;
} sorted_split;

static int compare_splits(const void *a, const void *b)
{
    const sorted_split *x = a, *y = b;
    if (x->step != y->step) return x->step < y->step ? -1 : 1;
    if (x->micro_step != y->micro_step) return x->micro_step < y->micro_step ? -1 : 1;
    if (x->reporter != y->reporter) return x->reporter < y->reporter ? -1 : 1;
    if (x->sequence != y->sequence) return x->sequence < y->sequence ? -1 : 1;
    return x->position < y->position ? -1 : 1; /* one event spoke under both, in this order */
}

static void sort_splits(cd_agree *agree)
{
    const size_t count = (size_t)agree->split_count;
    agree->splits_sorted = 0;
    if (!cd_arena_grow(&agree->memory, (void **)&agree->splits, &agree->splits_capacity, count,
                       sizeof *agree->splits))
        return;
    const cd_arena_mark mark = cd_arena_get_mark(&agree->memory);
    sorted_split *sorted = cd_arena_array(&agree->memory, count, sizeof *sorted);
    if (sorted == NULL) return;
    for (size_t i = 0; i < agree->entries.count; i++) {
        const cd_agree_entry *e = cd_table_value(&agree->entries, i);
        if (e->first.next == 0 || e->voters == 0) continue;
        sorted[agree->splits_sorted++] =
            (sorted_split){e->sequence, e->step, e->micro_step, e->reporter, i};
    }
    qsort(sorted, agree->splits_sorted, sizeof *sorted, compare_splits);
    for (size_t i = 0; i < agree->splits_sorted; i++) agree->splits[i] = sorted[i].position;
    cd_arena_rewind(&agree->memory, mark);
}

bool cd_agree_next(cd_agree *agree, size_t *cursor, cd_split *split)
{
    if (agree->split_count == 0) return false;
    if (*cursor == 0) sort_splits(agree);
    if (*cursor >= agree->splits_sorted) return false;
    describe_split(agree, agree->splits[(*cursor)++], split);
    return true;
}

bool cd_agree_next_step(cd_agree *agree, size_t *cursor, cd_split *split, uint64_t *count)
{
    if (!cd_agree_next(agree, cursor, split)) return false;
    *count = 1;
    cd_split further;
    for (size_t ahead = *cursor; cd_agree_next(agree, &ahead, &further);
         *cursor = ahead, (*count)++)
        if (further.step != split->step || further.micro_step != split->micro_step) break;
    return true;
}
