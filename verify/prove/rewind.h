/* SPDX-License-Identifier: Apache-2.0 */
/* A rank in one block of memory, put back piece by piece.
**
** While gradients become ready a rank changes some hundreds of its many thousands of pieces of 16
** bytes, always the same ones: most of them with any gradient, some (its slot) with one gradient
** only. They are learnt from some orders; a step is taken back by copying those that its gradient
** changes. When a state is left, all known pieces are compared with what they were when it was
** entered; all others with what they were at the beginning, now and then and at the end. A piece
** that changed against what is known tears the search, which then begins anew, knowing it.
**
** What devices keep lies on the heap and is not put back: between begin and the last restore_first
** nothing may be given back to them, and what is taken from them is lost.
**
** Lifetime   create → begin → (learn, restore_first)* → fix → (save, restore)* → restore_first →
**            destroy.
*/
#pragma once
#include "verify/prove/walk.h"

typedef struct cd_rewind {
    unsigned char *block;
    bool is_torn; /* a piece changed against what was known */
    struct cd_rewind_memory *memory;
} cd_rewind;

cddp_status cd_rewind_create(cd_rewind **rewind, cddp_error *err) CDDP_MUST_CHECK;
/* accepts NULL; the walk inside is the caller's to unmake */
void cd_rewind_destroy(cd_rewind *rewind);
cd_rank_walk *cd_rewind_walk(cd_rewind *rewind);
const cddp_allocator *cd_rewind_allocator(cd_rewind *rewind);

/* The state now is the first of a window. */
cddp_status cd_rewind_begin(cd_rewind *rewind, cddp_error *err) CDDP_MUST_CHECK;
/* what did this firing change, since begin or learn? */
void cd_rewind_learn(cd_rewind *rewind, uint32_t firing);
void cd_rewind_restore_first(cd_rewind *rewind);
/* learning is over */
cddp_status cd_rewind_fix(cd_rewind *rewind, cddp_error *err) CDDP_MUST_CHECK;

void cd_rewind_save(cd_rewind *rewind, uint32_t depth); /* the known pieces */
void cd_rewind_restore(cd_rewind *rewind, uint32_t depth, uint32_t firing);
/* Are the known pieces what they were at depth? If not: is_torn, and they belong to every gradient
** from now on. */
void cd_rewind_compare(cd_rewind *rewind, uint32_t depth);
/* Compares the other pieces, now and then, or now: sets is_torn and learns. */
void cd_rewind_check(cd_rewind *rewind, bool now);
