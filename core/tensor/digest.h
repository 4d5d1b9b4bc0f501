/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of a tensor and of its parts, in one pass through memory.
**
**     cd_digest_pass_begin(&pass, &bucket);
**     for each slice, in ascending order:
**         slices = cd_hash_mix(slices, cd_digest_pass_part(&pass, &slice, NULL));
**     whole = cd_digest_pass_end(&pass);
**
** Every digest is the one that the device gives (cddp_device.digest), 0 where it cannot. On `cpu` a
** piece of a part is hashed for the part and, while it is in the cache, for the whole. See
** Note [Hashed by rounds]. On other devices each is taken by itself. Nothing writes to the tensor
** between begin and end.
*/
#pragma once
#include "cddp/device.h"
#include "core/base/hash_chain.h"

/* So that a digest can be taken without gathering everything. */
enum { CD_DIGEST_BLOCK_BYTES = CD_HASH_CHAIN_BLOCK_BYTES };

typedef struct cd_digest_pass {
    const cddp_tensor *whole;   /* borrowed until end */
    const unsigned char *first; /* NULL: not in one pass */
    int64_t numel;
    cd_hash_chain_state chain;
} cd_digest_pass;

void cd_digest_pass_begin(cd_digest_pass *pass, const cddp_tensor *whole);
/* *nonfinite: the part's first element that is NaN or infinite; -1: none, or the device has no
** numbers. NULL: nobody asks. */
uint64_t cd_digest_pass_part(cd_digest_pass *pass, const cddp_tensor *part, int64_t *nonfinite);
uint64_t cd_digest_pass_end(cd_digest_pass *pass);

/* What was written, hashed while it is in the cache. */
typedef struct cd_digest_written {
    uint64_t digest;
    int64_t nonfinite; /* as above */
} cd_digest_written;

/* pair->src is the next part; for a pair that may be copied so (cd_digest_may_copy). It is copied
** by the device, and what is there then is hashed. A part that has the same bytes behind the copy
** has the same digest: it is compared, not hashed. */
cddp_status cd_digest_pass_copy(cd_digest_pass *pass, const cddp_copy_pair *pair, uint64_t *part,
                                cd_digest_written *written, cddp_error *err) CDDP_MUST_CHECK;

/* The digest, and the index of the first element that is NaN or infinite (-1: none, or the device
** has no numbers), each as the device gives it. */
uint64_t cd_digest_and_find_nonfinite(const cddp_tensor *tensor, int64_t *index);

/* What norm and find_nonfinite would say of a few floats in host memory: whether the norm is 0, and
** the index of the first NaN or infinity (-1: none). false: it is no such tensor. The small tensors
** of an exploration are looked at some ten thousand times a second. */
bool cd_glance(const cddp_tensor *tensor, bool *is_zero, int64_t *nonfinite);

/* Both lie in host memory one element behind the other, and `cpu` hashes dst. */
bool cd_digest_may_copy(const cddp_tensor *dst, const cddp_tensor *src);
/* Likewise, and they are large enough for it to pay. */
bool cd_digest_may_follow(const cddp_tensor *dst, const cddp_tensor *src);
/* For such a pair: dst = src by the device's copy, and what dst is then; or dst = src × fl(1/n) by
** its multiply_reciprocal, and the digest of dst. Block by block, with the bits of one call. */
cddp_status cd_digest_copy(const cddp_copy_pair *pair, cd_digest_written *written,
                           cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_digest_multiply_reciprocal(const cddp_copy_pair *pair, int64_t n, uint64_t *digest,
                                          cddp_error *err) CDDP_MUST_CHECK;
