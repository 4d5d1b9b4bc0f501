/* SPDX-License-Identifier: Apache-2.0 */
/* In which process groups a rank posts, compared with the groups that the plan gives it: by name,
** ordered members and its position. Buckets besides: in the group that the wrapper has in that
** step, or in the one in which the plan's hook reduces there.
**
** Several wrappers   a post is of the wrapper that the rank's last mark names; those of others are
**                    passed over.
** Limits             a group that the trace does not show being opened is not judged. A group that
**                    a plugin's hook opens needs the name of the wrapper's, "/" and more.
**
** Lifetime           init → learn → report → fini.
*/
#pragma once
#include "core/check/obey.h"

typedef struct cd_group_obey {
    cd_obey *obey;    /* borrowed: where decisions on groups are, and misses go */
    cd_obey places;   /* decisions on the group of buckets, step by step */
    cd_table opened;  /* (rank, group) → what was opened */
    cd_table allowed; /* (rank, name, members, position) → 1 */
    cd_table early;   /* (rank, wrapper, group, kind) → the first event before decisions */
    cd_ranks ranks;
} cd_group_obey;

void cd_group_obey_init(cd_group_obey *g, cd_obey *obey, const cddp_check_context *context);
void cd_group_obey_fini(cd_group_obey *g);
/* A decision on a group that obey has learnt. */
void cd_group_obey_decide(cd_group_obey *g, const cddp_event *event);
void cd_group_obey_learn(cd_group_obey *g, const cddp_event *event);
/* Before the report of obey. */
void cd_group_obey_end(cd_group_obey *g);
