/* SPDX-License-Identifier: Apache-2.0 */
/* The operands of each operation, and their check (cddp/backend.h has the table). */
#pragma once
#include "cddp/comm.h"

enum { CD_OPERAND_INPUT = 1u, CD_OPERAND_OUTPUT = 2u };

/* The operands that this rank needs. */
unsigned cd_operands_of(const cddp_group *group, const cddp_collective *c);
static inline bool cd_op_is_rooted(cddp_op op)
{
    return op == CDDP_OP_BROADCAST || op == CDDP_OP_REDUCE || op == CDDP_OP_GATHER ||
           op == CDDP_OP_SCATTER || op == CDDP_OP_SEND || op == CDDP_OP_RECV;
}
static inline bool cd_op_is_reduction(cddp_op op)
{
    return op == CDDP_OP_ALLREDUCE || op == CDDP_OP_REDUCE || op == CDDP_OP_REDUCE_SCATTER;
}
/* Refuses undeclared operations, by name, and operands that do not fit together. */
cddp_status cd_operands_check(const cddp_group *group, const cddp_collective *c,
                              cddp_error *err) CDDP_MUST_CHECK;
