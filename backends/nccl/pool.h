/* SPDX-License-Identifier: Apache-2.0 */
/* A caching pool: blocks that were given back are handed out again without asking their source.
**
** Sizes are rounded up to a class, eight classes per doubling, so at most an eighth (and 511 bytes)
** is lost and a block fits every later request of its class. The pool knows sizes only from its
** callers: whoever gives a block back names the size that was asked for.
**
** Lifetime   init → take/give → fini; blocks still out at fini are the caller's mistake and stay
**            allocated.
** Threads    none of its own; the owner locks.
** Errors     take: CDDP_E_NOMEM when the source has nothing left after everything cached went back
**            to it.
*/
#pragma once
#include "cddp/status.h"

#define CD_POOL_CLASSES 280u

/* Where blocks come from. take returns false when there is nothing. */
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
    uint64_t taken_bytes;  /* held from the source, in use or cached */
    uint64_t source_calls; /* how often the source was asked: a steady iteration asks never */
} cd_pool;

void cd_pool_init(cd_pool *pool, const cd_pool_source *source);
void cd_pool_fini(cd_pool *pool);
cddp_status cd_pool_take(cd_pool *pool, size_t bytes, void **block,
                         cddp_error *err) CDDP_MUST_CHECK;
void cd_pool_give(cd_pool *pool, size_t bytes, void *block); /* accepts NULL */
/* gives everything cached back to the source */
void cd_pool_trim(cd_pool *pool);

/* The class of a size, and how large its blocks are. */
uint32_t cd_pool_class(size_t bytes);
size_t cd_pool_class_bytes(uint32_t class_index);
