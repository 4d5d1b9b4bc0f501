/* SPDX-License-Identifier: Apache-2.0 */
/* In which process groups a rank posts, as the plan says: names and ordered members, by the
** judge's own code.
**
** Each group is a decision "process group" with an id that says what it is for. I-GROUP compares
** them with the groups in which collectives are posted.
**
** Threads    the rank's.
** Errors     none.
*/
#pragma once
#include "core/reference/decisions.h"

/* The group of a wrapper among several, before any [[when]] changes it. */
const char *cd_decided_group_of(const cddp_plan *whole, size_t wrapper);

/* Emits all groups of the rank. */
void cd_decided_groups_emit(const cd_decisions *decisions, struct cddp_tracer *tracer);
/* Emits in which group the hook reduces the buckets of this place, where it has groups itself. */
void cd_decided_groups_emit_place(cd_decisions *decisions, const cd_micro *micro,
                                  struct cddp_tracer *tracer);
