/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks that are processes of one machine post to reductions, in memory that they share. Each
** rank writes its own operands, and reads those of the other members when a reduction has ended for
** it. A reduction ends only when every member has posted, so nobody waits here.
**
** Each rank has a ring of entries and a ring of numbers. Of an operand that is longer than the ring
** every n-th element is kept. One that its rank has overwritten since is not found.
**
** Lifetime   a view of memory that is zeroed at first and somebody else's; it owns nothing.
** Threads    of each rank one thread writes. Others read at any time.
** Errors     none.
*/
#pragma once
#include "core/trace/tracer.h"

typedef struct cd_operand_board {
    unsigned char *memory;
    size_t rank_bytes;
    uint32_t rank, ranks;
} cd_operand_board;

/* False: the memory is too small for so many ranks. */
bool cd_operand_board_init(cd_operand_board *board, void *memory, size_t bytes, uint32_t rank,
                           uint32_t ranks);

/* Of operands of so many numbers every n-th is kept; 1: all of them. The same on every rank. */
uint32_t cd_operand_board_get_stride(const cd_operand_board *board, size_t count, uint32_t members);

/* This rank posts these numbers, which are exact in f32. */
void cd_operand_board_post(const cd_operand_board *board, const cd_tracer_reduction *posted,
                           const double *numbers, size_t count);

/* The operands of all members of a reduction that has ended, member by member, each of what is
** kept of `count` numbers. ended->numbers is this member's result, and gives the dtype. False: an
** operand is missing, or another operation was posted. */
bool cd_operand_board_read(const cd_operand_board *board, const cd_tracer_reduction *ended,
                           double *operands, size_t count);
