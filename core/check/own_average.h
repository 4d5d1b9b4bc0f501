/* SPDX-License-Identifier: Apache-2.0 */
/* Local SGD by hand: an optimizer steps on gradients that nobody reduced, and the program then
** all-reduces just as many elements in a row as it has stepped on, or as all parameters have,
** before the next backward. That is how an average of parameters looks in a trace. What it makes is
** not known, so it proves nothing; but ranks that do it may differ in between by right. Only a
** recorder says that an all-reduce is the program's own: nothing is kept, and nothing excused, in a
** run of a scenario.
**
** A program may average by other means than a group of ours, or several modules at once. Its values
** show it, parameter by parameter: ranks stepped on different gradients that nobody reduced, and
** behind that step all of them show the same content, which none of them had before: then it would
** be a broadcast. Of a program that posts collectives, as many elements as the parameter has must
** have been all-reduced in between.
**
** A parameter server, or an optimizer whose ranks share the parameters out, steps on some ranks and
** hands the result on: ranks that passed over their gradient show the content that those have which
** stepped, and did not have it before. Where one that stepped took its own gradient, unreduced, the
** others' are lost, and nothing is excused.
**
** Lifetime   init → push, in the order of a rank's events → end → has → fini.
** Threads    one thread.
*/
#pragma once
#include "cddp/trace.h"
#include "core/check/writer.h"

typedef struct cd_own_average {
    cd_table params; /* (rank, param) → what is known of it */
    cd_table sizes;  /* (rank, ordinal) → elements */
    cd_table
        shown; /* (param, step, n) → what ranks took (n = 0), and show the n-th time behind it */
    cd_table turns;  /* (param, step, n) → which ranks stepped, which did not; and the same */
    cd_table agreed; /* param → 1: its values show an average */
    cd_table served; /* param → 1: they show that some ranks step for others */
    cd_ranks ranks;
    bool is_recorded; /* a recorder has spoken */
} cd_own_average;

/* In a check of that writer. */
void cd_own_average_init(cd_own_average *own, const cd_writer *writer);
void cd_own_average_push(cd_own_average *own, const cddp_event *event);
/* After the last event. */
void cd_own_average_end(cd_own_average *own);
/* All these ranks have done so at least once, or all ranks with this parameter. */
bool cd_own_average_has(const cd_own_average *own, const cd_rank_set *ranks, int64_t param);
/* Ranks that pass over it get what others made of it. */
bool cd_own_average_serves(const cd_own_average *own, int64_t param);
void cd_own_average_fini(cd_own_average *own);
