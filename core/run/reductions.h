/* SPDX-License-Identifier: Apache-2.0 */
/* The operands of reductions under way: what every member posted, as numbers.
**
** Of ranks of one thread each one is seen when it is posted; when a member's reduction ends, all of
** them are here. Ranks that are processes of one machine write them to a board (operand_board.h).
**
** Lifetime   one per run: create → (post … → end …)* → destroy.
** Threads    that of the ranks.
** Errors     memory. Members that disagree are no error: then there are no operands.
*/
#pragma once
#include "cddp/alloc.h"
#include "core/run/operand_board.h"
#include "core/trace/tracer.h"

typedef struct cd_reductions cd_reductions;

/* board: of this rank alone, copied; NULL: for ranks of one thread. */
cddp_status cd_reductions_create(const cddp_allocator *allocator, const cd_operand_board *board,
                                 cd_reductions **reductions, cddp_error *err) CDDP_MUST_CHECK;
void cd_reductions_destroy(cd_reductions *reductions); /* accepts NULL */

/* A member posts. */
cddp_status cd_reductions_post(cd_reductions *reductions, const cd_tracer_reduction *posted,
                               cddp_error *err) CDDP_MUST_CHECK;

typedef struct cd_reduction_operands {
    const double *operands; /* (members · count) */
    size_t count;
    uint32_t stride; /* every stride-th element of what each member posted; 1: all of them */
    cddp_dtype dtype;
} cd_reduction_operands;
/* What all members of a reduction posted, borrowed until this member leaves it. Not found: some did
** not, or something else; found->operands is NULL. */
cddp_status cd_reductions_find(cd_reductions *reductions, const cd_tracer_reduction *ended,
                               cd_reduction_operands *found, cddp_error *err) CDDP_MUST_CHECK;
/* The reduction ended for a member. */
void cd_reductions_leave(cd_reductions *reductions, const cd_tracer_reduction *ended);
