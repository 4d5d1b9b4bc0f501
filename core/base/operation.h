/* SPDX-License-Identifier: Apache-2.0 */
/* Properties that follow from a collective operation alone. */
#pragma once
#include "cddp/backend.h"

static inline bool cd_op_is_rooted(cddp_op op)
{
    return op == CDDP_OP_BROADCAST || op == CDDP_OP_REDUCE || op == CDDP_OP_GATHER ||
           op == CDDP_OP_SCATTER || op == CDDP_OP_SEND || op == CDDP_OP_RECV;
}

static inline bool cd_op_is_reduction(cddp_op op)
{
    return op == CDDP_OP_ALLREDUCE || op == CDDP_OP_REDUCE || op == CDDP_OP_REDUCE_SCATTER;
}

/* How a planned_collective names the layer whose statistics it exchanges, in place of a unit. */
#define CD_STATISTICS_OF "statistics of "
