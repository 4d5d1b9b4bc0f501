/* SPDX-License-Identifier: Apache-2.0 */
/* Sinks that need nothing but memory: a growing record of everything, a running digest.
**
** Ownership  each is a value in caller's storage; `.sink` is what tracers are given.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/trace.h"

/* Keeps every event with a copy of its text. A failed allocation drops events; flush
** reports it. */
typedef struct cd_memory_sink {
    cddp_trace_sink sink;
    const cddp_allocator *allocator;
    cddp_event *events; /* (count) */
    size_t count, capacity;
    /* text of event i lies at texts + (offset stored in text_offsets[i] - 1); 0: none */
    char *texts;
    size_t texts_used, texts_capacity;
    size_t *text_offsets;
    size_t offsets_capacity;
    bool failed;
} cd_memory_sink;
void cd_memory_sink_init(cd_memory_sink *memory, const cddp_allocator *allocator);
void cd_memory_sink_fini(cd_memory_sink *memory);
void cd_memory_sink_clear(cd_memory_sink *memory); /* forgets events, keeps memory */
/* The i-th event with its text attached; borrowed until the next event arrives. */
cddp_event cd_memory_sink_get(const cd_memory_sink *memory, size_t index);

typedef struct cd_digest_sink {
    cddp_trace_sink sink;
    uint64_t digest;
    uint64_t count;
    bool timeless;
} cd_digest_sink;
void cd_digest_sink_init(cd_digest_sink *digest, bool timeless);
