/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator table: where every opaque object of cddp gets its memory.
**
** Lifetime   the table is borrowed until the last object created with it is destroyed.
** Threads    an allocator is called only by the thread that uses the object it was given to.
** Errors     allocate and resize return NULL when memory is exhausted; nothing else fails.
*/
#pragma once
#include "cddp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cddp_allocator {
    uint32_t size; /* sizeof(cddp_allocator) known to the writer */
    void *context;
    /* does: returns bytes of storage aligned to at least 16, uninitialised. bytes > 0. */
    void *(*allocate)(void *context, size_t bytes);
    /* does: grows or shrinks; on failure returns NULL and the old block stays valid. */
    void *(*resize)(void *context, void *block, size_t bytes_old, size_t bytes_new);
    /* does: gives a block back; NULL is allowed. bytes is what was asked for. */
    void (*release)(void *context, void *block, size_t bytes);
} cddp_allocator;

/* The process heap. Returns borrowed static table. */
CDDP_API const cddp_allocator *cddp_allocator_default(void);

#ifdef __cplusplus
}
#endif
