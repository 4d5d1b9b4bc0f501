/* SPDX-License-Identifier: Apache-2.0 */
/* A set of 64-bit digests: which outcomes, states, options were seen. Two things with equal digests
** count as one.
**
** Lifetime   a zeroed one is empty; fini gives its memory back.
** Errors     add answers CD_DIGEST_NO_MEMORY and changes nothing.
*/
#pragma once
#include "cddp/alloc.h"

typedef struct cd_digest_set {
    const cddp_allocator *allocator;
    uint64_t *items; /* (capacity) open addressing, 0: free */
    size_t count, capacity;
} cd_digest_set;

typedef enum cd_digest_added {
    CD_DIGEST_KNOWN,
    CD_DIGEST_NEW,
    CD_DIGEST_NO_MEMORY
} cd_digest_added;

cd_digest_added cd_digest_set_add(cd_digest_set *set, uint64_t digest);
bool cd_digest_set_has(const cd_digest_set *set, uint64_t digest);
void cd_digest_set_fini(cd_digest_set *set); /* leaves an empty one */
