/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a world: one region, cut from the front, with a free list per size.
**
** A released piece is the next one allocated for its size. So code that reads released memory sees
** other data, as with a caching GPU allocator. AddressSanitizer knows the free pieces.
**
** Lifetime   init → allocate/release. Everything, this record included, may lie in the region and
**            be copied with it.
** Errors     NULL when the region is exhausted.
*/
#pragma once
#include "cddp/alloc.h"

#define CD_MEMORY_CLASSES 192

typedef struct cd_memory {
    unsigned char *base;
    size_t bytes;
    size_t used;       /* cut from the front */
    size_t live_bytes; /* handed out, in class sizes */
    size_t peak_bytes;
    void *free[CD_MEMORY_CLASSES]; /* last in, first out */
} cd_memory;

void cd_memory_init(cd_memory *memory, void *base, size_t bytes);
void cd_memory_fini(cd_memory *memory); /* the region may be used for something else afterwards */
void *cd_memory_allocate(cd_memory *memory, size_t bytes); /* aligned to 64; uninitialised */
void cd_memory_release(cd_memory *memory, void *block, size_t bytes); /* accepts NULL */
/* The memory as an allocator table. */
cddp_allocator cd_memory_table(cd_memory *memory);
