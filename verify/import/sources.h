/* SPDX-License-Identifier: Apache-2.0 */
/* The lines of the program from which events came, for the findings that rest on these events.
**
** Lifetime   init → push every event → print… → fini. Texts lie in the arena that is given.
** Errors     without memory lines are missing.
*/
#pragma once
#include "cddp/check.h"
#include "core/base/arena.h"

typedef struct cd_source_line {
    uint64_t sequence; /* from here on */
    const char *text;
} cd_source_line;

typedef struct cd_sources_rank {
    cd_source_line *lines; /* (count), ascending */
    size_t count, capacity;
} cd_sources_rank;

typedef struct cd_sources {
    const cddp_allocator *allocator;
    cd_arena *arena;
    cd_sources_rank *ranks; /* (rank_count) */
    uint32_t rank_count;
} cd_sources;

cddp_status cd_sources_init(cd_sources *sources, uint32_t rank_count, cd_arena *arena,
                            const cddp_allocator *allocator, cddp_error *err) CDDP_MUST_CHECK;
void cd_sources_fini(cd_sources *sources);
void cd_sources_push(cd_sources *sources, const cddp_event *event); /* ignores other kinds */
/* Adds to the finding's advice which lines its events came from. */
void cd_sources_add(const cd_sources *sources, cddp_finding *finding);
