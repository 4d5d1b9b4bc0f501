/* SPDX-License-Identifier: Apache-2.0 */
/* The horizon: the first step that a rank of the run may still speak of. What lies well before it
** is forgotten by the tables of the checks, so that a long run takes no more memory than a short
** one.
**
** A table forgets entries that were not added to for CD_HORIZON_STEPS steps of the slowest rank,
** unless its check keeps them: disagreements, and what is still open. See cd_table_set_window.
**
** Frozen      at the first sign that something is wrong nothing is forgotten any more: a finding
**             may rest on any event of the steps around it.
** Unknown     before every rank of the largest group has spoken nothing is forgotten. A rank that
**             has ended holds the horizon where it was. One that ran out of inputs and shadows the
**             others (join) takes no steps, and holds nothing.
**
** Lifetime    init → learn, get, freeze → fini.
*/
#pragma once
#include "core/check/table.h"
#include "cddp/trace.h"

/* Longer than a check looks back: layouts are rebuilt, averages are taken and messages are waited
** for within it. */
#define CD_HORIZON_STEPS 64u

struct cd_horizon {
    cd_ranks steps;        /* rank → its progress */
    uint32_t world, known; /* ranks of the largest group; ranks that have spoken */
    uint32_t now;          /* the step of the event at hand */
    uint32_t least;        /* the step of the slowest rank, while not is_stale */
    bool is_stale, is_frozen;
};

void cd_horizon_init(cd_horizon *horizon, const cddp_allocator *allocator);
void cd_horizon_fini(cd_horizon *horizon);
void cd_horizon_learn(cd_horizon *horizon, const cddp_event *event);
/* Nothing is forgotten from now on. Accepts NULL. */
void cd_horizon_freeze(cd_horizon *horizon);
/* What was last added to before this step can go; 0: nothing. */
uint32_t cd_horizon_get(cd_horizon *horizon);
