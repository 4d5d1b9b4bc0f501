/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank would have been told in a larger world.
**
** Note [Numbers of ranks] A rank knows of the others by results alone. Of those that the runtime
** asks for itself, five kinds exist:
**
**   a sum of one 0 or 1 from every rank (votes, notifications, used maps): how many ranks the
**   largest of one rank number or -1 from every rank (who is the authority): which rank the
**   smallest of digests and of their complements (what was wrapped): as in any world all-gathered
**   shares (what was wrapped where a backend has no minimum, rows of a sparse gradient): one per
**   rank broadcasts (layouts): as in any world
**
** Let every further rank do what one of the recorded ranks does, its model. If all ranks were told
** "of the same kind" so far, each gives what it gave, a further one what its model gave; so a sum
** that was 0 stays 0, one that counted all ranks counts all again, and one in between stays in
** between (a model's 1 was counted already, its 0 was missing already); a rank number stays one,
** and -1 stays -1; the smallest of what was said stays what it was, since nothing else is said;
** shares are the recorded ones, then those of models. Hence, collective by collective, results of
** the same kind in a world of any larger size, provided that what a rank says depends on no more
** than the kind. That is tried: ranks alone, in worlds of several sizes, are told every
** representative number of the kind (turns: small ones, half, nearly all, drawn ones, the same
** everywhere or each its own) and must say the recorded word. What reads such a number is listed,
** and anything new is refused, by tests/tidy (reads.def).
*/
#pragma once
#include "verify/prove/calls.h"

/* the first ones tell the same number everywhere, the others draw each */
#define CD_PROJECTION_TURNS 12

typedef struct cd_projection {
    uint32_t rank; /* recorded: whose results */
    /* (ranks of the larger world) recorded: what each rank gives is what this one gave */
    const uint32_t *models;
    uint32_t turn;
    bool *has_choice; /* set when some number told could have been another one of its kind */
} cd_projection;

typedef enum cd_received_kind {
    CD_RECEIVED_CONTENT, /* gradients, parameters: nothing that steers */
    CD_RECEIVED_COUNT,   /* how many ranks */
    CD_RECEIVED_RANK,    /* which rank */
    CD_RECEIVED_SHARES,  /* one per rank */
    CD_RECEIVED_SAME,    /* the same in every world */
    CD_RECEIVED_UNKNOWN  /* a number of the runtime's own, and none of these */
} cd_received_kind;
/* of the runtime: neither gradient nor parameter */
bool cd_is_own_number(const cddp_tensor *tensor);
cd_received_kind cd_received_find_kind(const cd_received *received);
/* Not where one is a number of which the other is no possible form in a world of another size. */
bool cd_received_is_alike(const cd_received *a, const cd_received *b);

/* Writes what this world's rank is told into the collective's output. E_UNSUPPORTED: no such result
** exists. */
cddp_status cd_project_received(const cd_projection *projection, const cd_received *received,
                                const cddp_collective *collective, uint32_t group_size,
                                cddp_error *err) CDDP_MUST_CHECK;
