/* SPDX-License-Identifier: Apache-2.0 */
/* The fingerprint of an operation that a rank is about to issue, and the comparison of all ranks'
** fingerprints.
**
** The length of a fingerprint depends only on the group, since ranks that disagree must still be
** able to exchange it. Up to 32 ranks it has all split sizes of an all-to-all. Beyond that it has
** two sums of hashes, one over sent and one over expected counts; they are equal when every pair
** agrees.
**
** Not compared: the factor of PREMUL_SUM, which may differ, and the input of an operation, which
** must differ.
*/
#pragma once
#include "cddp/backend.h"

typedef struct cd_fingerprint {
    uint64_t number; /* k-th collective of this rank in the group */
    uint64_t label;  /* bucket index + 1 */
    int64_t numel;   /* of a share; -1 when shares differ by rank */
    uint64_t counts; /* digest of the shares of allgather and reduce_scatter */
    uint64_t sent, expected;
    uint32_t op, reduce_op, root, dtype;
    int64_t splits[]; /* (2 · W) to and from every rank; none beyond 32 ranks */
} cd_fingerprint;

size_t cd_fingerprint_bytes(uint32_t size);
void cd_fingerprint_take(const cddp_collective *call, uint32_t me, uint32_t size,
                         cd_fingerprint *f);
/* Compares the fingerprints of (size) ranks; members are their world ranks. False on disagreement:
** *text then names every rank that differs from the most frequent call. All ranks get the same
** text. */
bool cd_fingerprints_agree(const void *all, uint32_t size, const uint32_t *members, char *text,
                           size_t text_bytes);
/* The same for digests of the results, which must be equal. 0 means "not known". */
bool cd_contents_agree(const uint64_t *digests, uint32_t size, const uint32_t *members, char *text,
                       size_t text_bytes);
