/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks did, compared with what the plan decides: decision events, which the judge emits, and
** whatever a check sees of their effect.
**
** Blame       exactly the ranks that disobey, "all ranks" where all do. Ranks are never compared
**             with each other here: a majority does not outvote the plan.
** Unjudged    a rank without decisions, as in a trace that no judge watched.
**
** Lifetime    init → learn, find, miss → report → fini.
*/
#pragma once
#include "core/check/horizon.h"
#include "core/check/writer.h"

/* A decision, as a check remembers it. */
typedef struct cd_decided {
    cddp_event_decision is;
    const char *text; /* NULL: none */
    uint64_t sequence;
    int64_t seen, counted; /* how often effects of it were seen; the check's own */
    bool is_known;
} cd_decided;

/* Where a decision applies. */
typedef struct cd_decision_place {
    uint32_t rank;
    int64_t decision, id, step, micro_step; /* id, step, micro_step: -1 where it has none */
} cd_decision_place;

/* What a rank did otherwise, in words. */
typedef struct cd_miss {
    int64_t decision, which; /* misses of one kind are one finding */
    char what[96];           /* "the learning rate of 'sgd' is not the plan's" */
    char planned[128], seen[128];
    bool is_consequence, is_cause;
} cd_miss;

/* Which decisions are forgotten behind the horizon: those on a step of which nothing is left to
** say. Those on all steps stay. */
typedef struct cd_obey_window {
    cd_horizon *horizon; /* of cd_facts_get_horizon */
    /* Whether a rank that ends well now would have disobeyed it; NULL: it cannot by leaving out. */
    bool (*is_missed)(void *self, uint32_t rank, const cd_decided *decided);
    void *self;
} cd_obey_window;

typedef struct cd_obey {
    cd_table decided; /* (rank and decision, step and micro-step, id) → cd_decided */
    cd_table misses;  /* (decision, which) → a finding in the making */
    cd_ranks ranks;   /* rank → decisions it has */
    cd_table texts;   /* hash → text */
    cd_arena memory;  /* of texts and sets of ranks */
    cd_obey_window window;
    uint64_t obeyed, judged_ranks;
} cd_obey;

void cd_obey_init(cd_obey *obey, const cddp_allocator *allocator);
void cd_obey_fini(cd_obey *obey);
/* Before the first learn; obey stays where it is. */
void cd_obey_set_window(cd_obey *obey, const cd_obey_window *window);

/* Remembers the decisions from first to last of their enum; NULL for all others. The value stays
** where it is until the next learn. */
cd_decided *cd_obey_learn(cd_obey *obey, const cddp_event *event, const int64_t range[2]);
/* NULL: there is no such decision. */
cd_decided *cd_obey_find(const cd_obey *obey, const cd_decision_place *place);
/* The index-th in the order in which they were learnt, and the rank's; NULL past the end. */
cd_decided *cd_obey_get(const cd_obey *obey, size_t index, uint32_t *rank);
/* Did the judge decide anything for this rank? */
bool cd_obey_judges(const cd_obey *obey, uint32_t rank);

/* A rank did otherwise, at the place of the event. */
void cd_obey_miss(cd_obey *obey, const cddp_event *at, const cd_miss *miss);
bool cd_obey_has_missed(const cd_obey *obey, int64_t decision);
/* One finding for each kind, and what was compared. */
void cd_obey_report(cd_obey *obey, cd_writer *writer);

/* Equal, or within the bound; NaN equals NaN. */
bool cd_decided_fits(const cd_decided *decided, double seen);
