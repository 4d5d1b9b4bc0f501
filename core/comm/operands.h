/* SPDX-License-Identifier: Apache-2.0 */
/* The operands of each operation, and their check (cddp/backend.h has the table). */
#pragma once
#include "cddp/comm.h"
#include "core/base/operation.h"

enum { CD_OPERAND_INPUT = 1u, CD_OPERAND_OUTPUT = 2u };

/* The operands that this rank needs. */
unsigned cd_operands_of(const cddp_group *group, const cddp_collective *c);
/* Is the operation in place? Of a gather or a scatter of shares one operand is this rank's share
** within the other. */
bool cd_operands_are_in_place(const cddp_group *group, const cddp_collective *c);
/* May the work, which is in flight, write to this tensor's memory? NULL: no. */
bool cd_work_writes(const cddp_work *work, const cddp_tensor *tensor);
/* Refuses undeclared operations, by name, and operands that do not fit together. */
cddp_status cd_operands_check(const cddp_group *group, const cddp_collective *c,
                              cddp_error *err) CDDP_MUST_CHECK;
