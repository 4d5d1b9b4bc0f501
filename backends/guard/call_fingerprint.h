/* SPDX-License-Identifier: Apache-2.0 */
/* The fingerprint of a call: the arguments that all members of a group must agree on before a
** collective.
**
** A guarded group exchanges fingerprints before each collective. When calls disagree a
** communication library hangs, mixes data or ends the process.
*/
#pragma once
#include "cddp/backend.h"

#define CD_CALL_FINGERPRINT_MAGIC UINT32_C(0x70644463)

/* No padding: members compare bytes. */
typedef struct cd_call_fingerprint {
    uint32_t magic, op, reduce_op, root, dtype, reserved;
    uint64_t sequence;
    /* of the tensor that every member has, whatever its role; -1 where shares differ */
    int64_t numel;
    uint64_t counts; /* digest; 0 for equal shares */
    /* of an all-to-all with counts, which differ by right: sums of digests of what goes to each
    ** member and of what is expected of each. Over all members both sums are equal. */
    uint64_t given, taken;
    uint64_t left_ns; /* to the operation's deadline, when this was sent; differs by right */
} cd_call_fingerprint;

cd_call_fingerprint cd_call_fingerprint_of(const cddp_collective *call, uint32_t group_rank,
                                           uint32_t group_size);
/* Says that an operation ran out of time, and of whom nothing was heard. Where one is silent alone
** in an operation that no member ends without it, it is lost. library: what its library says. */
cddp_status cd_call_fail_silent(cddp_op op, const char *names, uint32_t count, const char *library,
                                cddp_error *err);
/* all: (group_size) in group order; members: (group_size) world ranks, for the message. Fails with
** CDDP_E_MISMATCH naming both sides of the first difference. */
cddp_status cd_call_fingerprint_agree(const cd_call_fingerprint *all, const uint32_t *members,
                                      uint32_t group_rank, uint32_t group_size,
                                      cddp_error *err) CDDP_MUST_CHECK;
