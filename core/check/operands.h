/* SPDX-License-Identifier: Apache-2.0 */
/* What became of the input of an operation: as it was posted, as the backend began to read it, and
** as it was when the operation ended.
**
** Judged from   collective_post and collective_done, each rank by itself.
** Limits        the 64 latest operations per group and rank. An input that the result replaces is
**               not read at the end; without a start nobody knows when it changed.
*/
#pragma once
#include "core/check/table.h"
#include "cddp/backend.h"
#include "cddp/trace.h"

typedef enum cd_operand_fate {
    CD_OPERAND_UNKNOWN,
    CD_OPERAND_KEPT,
    CD_OPERAND_BEFORE_START, /* it was another when the backend began to read it */
    CD_OPERAND_WHILE_RUNNING /* it was another when the operation ended */
} cd_operand_fate;

typedef struct cd_posted {
    int64_t digest, bucket; /* bucket: -1: none */
    uint64_t event;         /* sequence of its event */
    int64_t sequence;       /* + 1; 0: none */
} cd_posted;

typedef struct cd_operands {
    cd_table recent; /* (group, rank) → the latest posts */
} cd_operands;

void cd_operands_init(cd_operands *operands, const cddp_allocator *allocator);
void cd_operands_fini(cd_operands *operands);
void cd_operands_post(cd_operands *operands, const cddp_event *post);
/* *posted: of the operation that ended; its sequence is 0 when it is not known. */
cd_operand_fate cd_operands_end(const cd_operands *operands, const cddp_event *done,
                                cd_posted *posted);
