/* SPDX-License-Identifier: Apache-2.0 */
/* Do all ranks of a group say the same? Before anything is exchanged that they could mix up.
**
** Ownership  borrows for the call. Errors  CDDP_E_MISMATCH, the same on every rank.
*/
#pragma once
#include "cddp/comm.h"

typedef struct cd_fsdp_statement {
    const cddp_allocator *allocator;
    const cddp_device *device; /* of the parameters, for backends that take no host memory */
    const char *subject;       /* "ranks wrap different models" */
    const char *text;          /* lines */
    size_t bytes;
} cd_fsdp_statement;

/* Compares digests of the texts, in one exchange. Where they differ the texts of rank 0 and of the
** first rank that differs are sent, and the first line in which they differ is reported. */
cddp_status cd_fsdp_agree(cddp_group *group, const cd_fsdp_statement *mine, cddp_error *err);
