/* SPDX-License-Identifier: Apache-2.0 */
/* A caching pool: it reuses released blocks without asking their source.
**
** Sizes are rounded up to a class, eight classes per doubling, so at most an eighth (and 511 bytes)
** is lost and a block fits every later request of its class. The pool knows sizes only from its
** callers: the release of a block names the requested size.
**
** Lifetime   init → take/give → fini; a block that is still in use at fini is a mistake of the
**            caller and stays allocated.
** Threads    starts none; the owner locks.
** Errors     take: CDDP_E_NOMEM when the source is exhausted, even after it got all cached blocks
**            back.
*/
#pragma once
#include "cddp/status.h"

#define CD_POOL_CLASSES 280u

/* The source of blocks. take returns false when it is exhausted. */
typedef struct cd_pool_source {
    void *context;
    bool (*take)(void *context, size_t bytes, void **block);
    void (*give)(void *context, void *block);
} cd_pool_source;

typedef struct cd_pool_shelf {
    void **blocks; /* (count) most recent last */
    size_t count, capacity;
} cd_pool_shelf;

typedef struct cd_pool {
    cd_pool_source source;
    cd_pool_shelf shelves[CD_POOL_CLASSES];
    uint64_t taken_bytes;  /* taken from the source, in use or cached */
    uint64_t source_calls; /* requests to the source; none in a steady iteration */
} cd_pool;

void cd_pool_init(cd_pool *pool, const cd_pool_source *source);
void cd_pool_fini(cd_pool *pool);
cddp_status cd_pool_take(cd_pool *pool, size_t bytes, void **block,
                         cddp_error *err) CDDP_MUST_CHECK;
void cd_pool_give(cd_pool *pool, size_t bytes, void *block); /* accepts NULL */
/* returns all cached blocks to the source */
void cd_pool_trim(cd_pool *pool);

/* The class of a size, and the size of its blocks. */
uint32_t cd_pool_class(size_t bytes);
size_t cd_pool_class_bytes(uint32_t class_index);
