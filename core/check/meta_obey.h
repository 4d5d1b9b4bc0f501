/* SPDX-License-Identifier: Apache-2.0 */
/* What the wrapper was given and what averages, compared with what the plan decides: which
** parameters the reducer takes and which require gradients, the comm hook and the numbers among its
** options, and over which ranks parameters are averaged when.
**
** Judged from   decision, param, hook_in_force, hook_call, hook_option, average, agreement,
**               optimizer_touch, grad_local, grad_final.
** Limits        decisions come when the model stands, after what the wrapper reports: what came
**               first is remembered. A parameter without a gradient takes no part in an average, so
**               one that is missing is reported where an optimizer stepped on the parameter, or
**               where no parameter of the rank had one. An event of a step does not name parameters
**               that the reducer leaves out: of these one that is missing is reported where one
**               optimizer stepped on all of them. An option that the plan does not name is
**               not judged.
*/
#pragma once
#include "core/check/obey.h"

typedef struct cd_meta_obey {
    cd_obey obey;
    cd_table seen;     /* (rank, decision, id or name) → the event */
    cd_table averages; /* (rank, step, planned ranks): some parameter was averaged */
    cd_table ordinals; /* (rank, variable) → ordinal + 1 */
    cd_table touched;  /* (rank, step, ordinal): stepped on, and its average is due */
    cd_table absent;   /* (rank, step, ordinal): it has no gradient, and its average is due */
    cd_table given;    /* (rank, step, ordinal): a gradient of it came, and its average is due */
    cd_table hidden;   /* (rank, ordinal): trained, and left out of the reducer */
    cd_ranks steps;    /* rank → what an optimizer did with those */
    cd_ranks ranks;    /* rank → it returned normally */
} cd_meta_obey;

void cd_meta_obey_init(cd_meta_obey *meta, const cddp_allocator *allocator);
/* Decisions on steps before the horizon are judged and forgotten. */
void cd_meta_obey_set_window(cd_meta_obey *meta, cd_horizon *horizon);
void cd_meta_obey_fini(cd_meta_obey *meta);
void cd_meta_obey_learn(cd_meta_obey *meta, const cddp_event *event); /* ignores other kinds */
void cd_meta_obey_report(cd_meta_obey *meta, cd_writer *writer);
