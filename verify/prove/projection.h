/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank would receive in a larger world.
**
** Note [Numbers of ranks] A rank knows of the others by results alone. The runtime asks for five
** kinds of results for itself:
**
**   count     a sum of one 0 or 1 from every rank (votes, notifications, used maps)
**   rank      the largest of one rank number or -1 from every rank (who is the authority)
**   same      the smallest of digests and of their complements (what was wrapped)
**   shares    all-gathered, one per rank (what was wrapped where a backend has no minimum, rows of
**             a sparse gradient)
**   same      broadcasts (layouts)
**
** Let every further rank do what one of the recorded ranks does: its model. Suppose that all
** results so far were of the recorded kind. Then each rank gives what it gave, and a further rank
** gives what its model gave. So the next result is of the recorded kind, too:
**
**   * a sum that was 0 stays 0, and a sum that counted all ranks counts all again;
**   * a sum in between stays in between: a model's 1 was counted before, its 0 was missing before;
**   * a rank number stays a rank number, and -1 stays -1;
**   * the smallest value stays what it was, since no other values are given;
**   * shares are the recorded ones, followed by those of models.
**
** By induction, all results in any larger world are of the recorded kinds, if what a rank sends
** depends on no more than the kind. That is tried: ranks run alone in worlds of several sizes. They
** receive every representative number of the kind and must issue the recorded collectives. Turns
** choose the numbers: small ones, half, nearly all, drawn ones, the same everywhere or each its
** own. tests/tidy (reads.def) lists the code that reads such a number, and refuses any other.
*/
#pragma once
#include "verify/prove/calls.h"

/* the first ones give the same number everywhere, the others draw each */
#define CD_PROJECTION_TURNS 12

typedef struct cd_projection {
    uint32_t rank; /* recorded: whose results */
    /* (ranks of the larger world) recorded: what each rank gives is what this one gave */
    const uint32_t *models;
    uint32_t turn;
    bool *has_choice; /* set when some number could have been another one of its kind */
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
/* False where one is a number and the other cannot be its form in a world of another size. */
bool cd_received_is_alike(const cd_received *a, const cd_received *b);

/* Writes what this world's rank receives into the collective's output. E_UNSUPPORTED: no such
** result exists. */
cddp_status cd_project_received(const cd_projection *projection, const cd_received *received,
                                const cddp_collective *collective, uint32_t group_size,
                                cddp_error *err) CDDP_MUST_CHECK;
