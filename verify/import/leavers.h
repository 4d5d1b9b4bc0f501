/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that left before the others had come to their end, and those that were ended for it.
**
** A launcher that sees a rank leave ends the job. The recordings of the others stop without an end,
** as if they had died. The rank that left is to blame, and not those that the launcher killed.
** Ranks of one training do the same work, counted in gradients, operations and steps:
**   L1  a rank that ended well with less work than one without an end left early: by exit, or,
**       where most ranks have no end, by closing its recording;
**   L2  so did one that left by exit with as much work, where most ranks have no end;
**   L3  a rank that exited with a code other than 0 left.
** A rank whose recording stops where it had begun the step before the one in which another left was
** ended for it: between two reductions a rank may lag behind.
** Nothing is said where ranks join (they end early by right), and of a rank whose parent saw how it
** died.
**
** Lifetime   fill in all ranks → settle → read.
*/
#pragma once
#include "cddp/trace.h"

typedef struct cd_leaver {
    uint64_t work;       /* gradients, operations and steps that it has shown */
    uint64_t begins[2];  /* how much of that when its latest step began, and the one before */
    uint32_t step;       /* its latest */
    bool has_ended;      /* well, as it seemed */
    bool has_exited;     /* by exit, and never said that it was done */
    bool has_failed;     /* by exit, with another code than 0 */
    bool is_open;        /* its recording has no end, and its process none that anybody saw */
    bool joins;          /* it may run out of inputs */
    bool has_left_early; /* filled by settle, */
    bool was_ended;      /* as this */
} cd_leaver;

void cd_leaver_push(cd_leaver *leaver, const cddp_event *event);
void cd_leavers_settle(cd_leaver *leavers, size_t count);
