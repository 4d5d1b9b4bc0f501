/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files that look for contradictions in a plan (plan_check.c).
**
** Lifetime   a walk over one plan, which it borrows.
** Errors     none: what is found is reported, and counted.
*/
#pragma once
#include "core/plan/keys.h"
#include "core/plan/plan.h"

typedef struct cd_contradictions {
    const cddp_plan *plan;
    cd_contradiction_fn report;
    void *context;
    size_t count;
    const char *table; /* the repeating table that is being looked at, "when"; NULL: none */
    size_t index;
} cd_contradictions;

/* Tells of one, under the key that a person would change. */
void cd_plan_contradict(cd_contradictions *c, const char *key, const char *format, ...)
    CDDP_PRINTF(3, 4);
/* From here on, keys of this table are those of its element. */
void cd_plan_enter_table(cd_contradictions *c, const char *table, size_t index);
/* Tells of a selector that selects none of the numbers below the limit. */
void cd_plan_check_selector(cd_contradictions *c, const char *key, const cddp_selector *selector,
                            uint64_t limit, const char *limit_key);
/* may be NULL */
const cddp_plan_group *cd_plan_find_group(const cddp_plan *plan, const char *name);

/* plan_check.c: settings among themselves. */
void cd_plan_check_settings(cd_contradictions *c);

/* plan_check_ranks.c: what settings of single ranks contradict, where it was not said of all. */
typedef struct cd_heard {
    cd_contradiction_fn report;
    void *context;
    uint64_t said[64]; /* hashes; more are said again */
    size_t count;
    bool is_of_a_rank; /* what comes now: of the settings of this one */
    uint32_t rank;
    size_t again; /* contradictions that were said before */
} cd_heard;
void cd_heard_take(void *heard, const char *key, const char *message);
/* How many are new. */
size_t cd_plan_check_ranks(const cddp_plan *plan, cd_heard *heard);

/* plan_check_update.c: optimizers, their parts, clipping, averaging. */
void cd_plan_check_update(cd_contradictions *c);
/* plan_check_wrappers.c: what several wrappers cannot have together. */
void cd_plan_check_wrappers(cd_contradictions *c);
/* plan_check_zero.c: DeepSpeed's words; of a plan as it was written. */
void cd_plan_check_zero(cd_contradictions *c);
/* plan_check_fsdp.c: a fully sharded model. */
void cd_plan_check_fsdp(cd_contradictions *c);
/* plan_check_world.c: the network, how ranks meet, what happens to them, their groups and
** collectives. */
void cd_plan_check_world(cd_contradictions *c);
