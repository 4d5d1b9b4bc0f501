/* SPDX-License-Identifier: Apache-2.0 */
/* Where the average of a parameter's gradient went wrong: in what a rank packed, in the reduction,
** or in what was written back.
**
** Each rank is judged by itself, from digests. A failed comparison of link 3 says that its gradient
** was wrong before it was packed. `contribution` says what the rank had to pack and what was
** judged. mark_ready says what it packed, bucket_launch what it launched, bucket_done what arrived,
** grad_final what its bucket delivered and what was written back. A joined rank launches zeros into
** the same operation of the group; their digest follows from their number.
**
** Lifetime   part of the facts: init → push → find → fini.
** Errors     without memory a stage is unknown.
*/
#pragma once
#include "core/check/rank_set.h"
#include "core/check/table.h"
#include "cddp/check.h"

typedef struct cd_stages {
    cd_table packs;     /* (rank, param) → what it packed last, and before that */
    cd_table slots;     /* (rank, bucket, slot) → digest and step of what was packed there */
    cd_table finals;    /* (rank, param) → what was written back last */
    cd_table launches;  /* (rank, bucket) → its dtype, and when it was not what was packed */
    cd_table results;   /* (rank, bucket) → the slices of what it delivered last */
    cd_table joined;    /* (group, sequence) → ranks that launched there after they had joined */
    cd_table shadows;   /* (group, sequence, rank) → what such a rank launched */
    cd_table locals;    /* (step, param) → ranks whose own gradient was wrong */
    cd_ranks judged;    /* rank → links of which it was judged, a bit each */
    cd_table wrongs;    /* (rank, link, step, param) → 1 */
    cd_table exchanges; /* step → starts: where statistics were found wrong */
    cd_table averages;  /* (step, micro-step, param) → average */
    cd_arena memory;    /* of sets and lists of ranks */
} cd_stages;

void cd_stages_init(cd_stages *stages, const cddp_allocator *allocator);
/* What joined ranks launched is forgotten behind it. */
void cd_stages_set_window(cd_stages *stages, cd_horizon *horizon);
void cd_stages_fini(cd_stages *stages);
void cd_stages_push(cd_stages *stages, const cddp_event *event); /* ignores other kinds */
cddp_judgement cd_stages_judged(const cd_stages *stages, const cddp_fact_judged *of);
/* Are these numbers of a joined rank zeros? True where nothing is known of them. */
bool cd_stages_is_zeros(const cddp_event_bucket_launch *what);
bool cd_stages_find(cd_stages *stages, const cddp_fact_average *average, cddp_fact_stage *found);
