/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank says about an operation it is about to issue, and the comparison of what all said.
**
** A fingerprint has a fixed length for a group, whatever the operation, since ranks that disagree
** must still be able to exchange it. Split sizes of an all-to-all are carried in full up to 32
** ranks; beyond that as two sums of hashes, one over what is sent and one over what is expected,
** which are equal when every pair agrees.
**
** Not compared: the factor of PREMUL_SUM, which may differ, and content before an operation, which
** must.
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
/* Compares what (size) ranks said; members are their world ranks. On disagreement *text names every
** rank that differs from the most frequent opinion, equal on all ranks; false then. */
bool cd_fingerprints_agree(const void *all, uint32_t size, const uint32_t *members, char *text,
                           size_t text_bytes);
/* The same for digests of what every rank must hold afterwards. 0 stands for "not known". */
bool cd_contents_agree(const uint64_t *digests, uint32_t size, const uint32_t *members, char *text,
                       size_t text_bytes);
