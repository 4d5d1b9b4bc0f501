/* SPDX-License-Identifier: Apache-2.0 */
/* Options that ranks of one job were given differently, and that they should have alike: what a
** failure of the job mostly comes from.
**
** Judged from   option events, through the facts. What differs by right (samples, costs, retries of
**               a rendezvous) is left out.
*/
#pragma once
#include "core/check/facts.h"
#include "core/check/rank_set.h"

typedef struct cd_deviation {
    uint32_t count;    /* of options that differ */
    cd_rank_set odd;   /* of the first: the ranks that differ from most others */
    bool has_majority; /* false: as many on either side, and odd is one of them */
    char words[200];   /* "ddp.init_sync is false on rank 1, true on ranks 0 and 2" */
} cd_deviation;

/* False: all ranks have the same. Only at the end of a trace that has a finding: it looks at every
** option of every rank. */
bool cd_deviation_find(const cd_facts *facts, cd_arena *memory, cd_deviation *found);
