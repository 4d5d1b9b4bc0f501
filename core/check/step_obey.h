/* SPDX-License-Identifier: Apache-2.0 */
/* What a step does, compared with what the plan decides of it: whether an optimizer steps, its
** learning rate, loss scale, clip factor and order, how gradients stand at the start, and where a
** reduction closes or a backward is left.
**
** Judged from   decision, optimizer_step, loss, backward_entry, grad_local, forward_begin,
**               backward_end, param, zero_grad, checkpoint, mark (a backward was left), rank_end.
** Limits        a rank that did not return normally is not asked for what it left out.
*/
#pragma once
#include "core/check/obey.h"

typedef struct cd_step_obey {
    cd_obey obey;
    cd_ranks ranks; /* of what this file knows of a rank */
    cd_table taken; /* (rank, optimizer) → updates in steps that were forgotten */
} cd_step_obey;

void cd_step_obey_init(cd_step_obey *steps, const cddp_allocator *allocator);
/* Decisions on steps before the horizon are judged and forgotten. */
void cd_step_obey_set_window(cd_step_obey *obey, cd_horizon *horizon);
void cd_step_obey_fini(cd_step_obey *steps);
void cd_step_obey_learn(cd_step_obey *steps, const cddp_event *event); /* ignores other kinds */
/* Whether the plan says which clip factor this step of this rank has. */
bool cd_step_obey_decides_clip(cd_step_obey *steps, const cddp_event *step);
/* Also what was left out. */
void cd_step_obey_report(cd_step_obey *steps, cd_writer *writer);
