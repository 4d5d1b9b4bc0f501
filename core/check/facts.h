/* SPDX-License-Identifier: Apache-2.0 */
/* What the trace has said of the run itself: names, groups, layouts, settings and agreements. The
** judge learns it once, before an event reaches a check; checks read it through cddp_facts.
**
** Where ranks differ over a name, the least rank's is used, whichever event came first: events of
** real processes come in any order.
**
** Lifetime   init → learn → fini. Texts that are handed out live until fini.
** Errors     a fact without memory is unknown; the judge learns of it from its allocator.
*/
#pragma once
#include "core/check/horizon.h"
#include "core/check/stages.h"
#include "core/check/table.h"
#include "cddp/check.h"
#include "core/base/arena.h"

typedef struct cd_facts {
    cddp_facts port;   /* what checks are given; its self is this */
    cd_arena memory;   /* of texts */
    cd_table texts;    /* hash → the text */
    cd_table names;    /* (cddp_named, id) → name */
    cd_table groups;   /* id → group */
    cd_table settings; /* (rank, key, item) → cddp_fact_setting */
    cd_table places;   /* (rank, param) → cddp_fact_place in the newest layout */
    cd_table members;  /* (rank, bucket, slot) → param, in the newest layout that had the slot */
    cd_ranks newest;   /* rank → newest generation + 1 */
    cd_ranks agreements; /* of agreement; empty without a model averager */
    cd_stages stages;
    cd_horizon horizon;
    cd_table exceptions; /* (rank, ordinal) → size, and during which agreement of its rank */
} cd_facts;

void cd_facts_init(cd_facts *facts, const cddp_allocator *allocator);
void cd_facts_fini(cd_facts *facts);
/* Of the facts that a check was given; NULL where they are not the judge's. */
cd_horizon *cd_facts_get_horizon(const cddp_facts *port);
void cd_facts_learn(cd_facts *facts, const cddp_event *event); /* ignores other kinds */
