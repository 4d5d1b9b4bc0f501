/* SPDX-License-Identifier: Apache-2.0 */
/* What each operation takes and gives, and whether a collective obeys it (cddp/backend.h has the
** table). */
#pragma once
#include "cddp/comm.h"
#include "core/base/operation.h"

enum { CD_OPERAND_INPUT = 1u, CD_OPERAND_OUTPUT = 2u };

/* Which operands this rank contributes. */
unsigned cd_operands_of(const cddp_group *group, const cddp_collective *c);
/* Refuses what the backend does not declare, by name, and operands that do not fit together. */
cddp_status cd_operands_check(const cddp_group *group, const cddp_collective *c,
                              cddp_error *err) CDDP_MUST_CHECK;
