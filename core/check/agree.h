/* SPDX-License-Identifier: Apache-2.0 */
/* Agreement: under one key every rank says something, and all must say the same.
**
** Blame. When more than half of the ranks that spoke say the same, the others are the odd ones and
** are blamed. Otherwise nobody knows who is right: both sides are named and no single rank is
** blamed. What the oracle says outvotes the majority (cd_agree_set_judged). Rank 0 has no authority
** by being rank 0; where one rank is the authority (the root of a broadcast) the check says so by
** cd_agree_set_authority.
**
** Lifetime   init → push → walk → fini.
** Cost       one hash lookup per statement; memory per key, not per rank, as long as all agree;
**            with a window, of the keys of the last steps alone.
*/
#pragma once
#include "core/check/rank_set.h"
#include "core/check/table.h"
#include "cddp/check.h"

#define CD_STATEMENT_WORDS 6
#define CD_NO_SEQUENCE UINT64_MAX

/* What some ranks said, with the first of them as witness. */
typedef struct cd_variant {
    int64_t data[CD_STATEMENT_WORDS];
    cd_rank_set ranks; /* who said it */
    uint64_t sequence; /* of the witness's event; CD_NO_SEQUENCE: nobody kept it */
    uint32_t rank;     /* the witness: the lowest that said it */
    uint32_t count;    /* how many said it */
    uint32_t next;     /* position + 1 in the overflow list; 0: none */
} cd_variant;

/* Place and reporter do not depend on which rank spoke first: real processes speak in whatever
** order they run. */
typedef struct cd_agree_entry {
    cd_variant first;
    uint64_t sequence;         /* of the reporter's event */
    uint32_t reporter;         /* the least rank that spoke */
    uint32_t step, micro_step; /* the earliest place at which one spoke */
    uint32_t authority;        /* rank + 1; 0: none */
    uint32_t voters;
} cd_agree_entry;

/* What may be forgotten of it, once it lies before the horizon: keys under which all said the same,
** and nobody is left to speak. */
typedef enum cd_agree_whole {
    CD_WHOLE_BY_STEP, /* the key has the step in which ranks speak */
    CD_WHOLE_GROUP,   /* the key begins with a group, all of whose members speak */
    CD_WHOLE_MOST     /* as many ranks as spoke under any key */
} cd_agree_whole;

typedef struct cd_agree_window {
    const cddp_facts *facts; /* those of the check's context */
    cd_agree_whole whole;
    /* What the check itself keeps; NULL: nothing. */
    bool (*keeps)(void *self, const cd_key *key, const cd_agree_entry *entry);
    void *self;
    /* a disagreement is no sign that something is wrong: only keeps says whether it is kept */
    bool may_differ;
} cd_agree_window;

typedef struct cd_agree {
    cd_table entries;     /* of cd_agree_entry */
    cd_arena memory;      /* of sets of ranks and the lists below */
    cd_variant *overflow; /* (overflow_count) */
    size_t overflow_count, overflow_capacity;
    /* (splits_sorted) positions of the entries on which they differ, for the walk */
    size_t *splits;
    size_t splits_sorted, splits_capacity;
    cd_agree_window window;
    uint32_t most_voters;  /* under one key */
    uint64_t shared_count; /* keys on which at least two ranks spoke */
    uint64_t split_count;  /* keys on which they differ */
} cd_agree;

void cd_agree_init(cd_agree *agree, const cddp_allocator *allocator);
void cd_agree_fini(cd_agree *agree);
/* Before the first push; agree stays where it is. Without it nothing is forgotten. */
void cd_agree_set_window(cd_agree *agree, const cd_agree_window *window);

/* A rank's statement under a key: `words` integers. */
typedef struct cd_statement {
    const cd_key *key;
    const int64_t *data; /* (words) */
    size_t words;        /* ≤ CD_STATEMENT_WORDS */
} cd_statement;
#define CD_SAYS(...) \
    .data = (int64_t[]){__VA_ARGS__}, .words = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)

/* False when the statement differs from the first one made under the key. */
bool cd_agree_push(cd_agree *agree, const cd_statement *statement, const cddp_event *event);
/* The same, where a rank may speak again under a key: its last statement is the one that counts. */
void cd_agree_restate(cd_agree *agree, const cd_statement *statement, const cddp_event *event);
/* The next of what was said under a key, behind entry->first; NULL: that was all. */
const cd_variant *cd_agree_variant(const cd_agree *agree, const cd_variant *variant);
void cd_agree_set_authority(cd_agree *agree, const cd_key *key, uint32_t rank);

/* Makes a rank the authority of a key on which they differ, where what it said was found right, and
** what others said wrong: so a majority never outvotes who knows. */
typedef struct cd_agree_judge {
    void *self;
    cddp_judgement (*judge)(void *self, uint32_t rank, const cd_variant *said);
} cd_agree_judge;
void cd_agree_set_right(cd_agree *agree, const cd_key *key, const cd_agree_judge *judge);
/* The same by the oracle. place: of the tensor that the key is about; its rank is not read. */
void cd_agree_set_judged(cd_agree *agree, const cd_key *key, const cddp_facts *facts,
                         const cddp_fact_judged *place);

/* A disagreement: `right` is the majority or the authority when has_culprit, else just one of the
** sides. */
typedef struct cd_split {
    const cd_key *key;
    cd_variant right, odd;
    cd_rank_set odd_ranks; /* every rank that did not say what `right` says */
    uint32_t voters;
    uint32_t step, micro_step;
    bool has_culprit;
    bool has_reference; /* an authority, or what the oracle found right, and not a majority */
} cd_split;

/* Walks the disagreements in order of place, then as the least rank came to them. *cursor starts at
** 0; nothing is pushed during a walk. */
bool cd_agree_next(cd_agree *agree, size_t *cursor, cd_split *split);

/* The same, one result per step and micro-step: the first disagreement of it, and in *count how
** many there are. */
bool cd_agree_next_step(cd_agree *agree, size_t *cursor, cd_split *split, uint64_t *count);
