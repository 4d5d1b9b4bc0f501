/* SPDX-License-Identifier: Apache-2.0 */
/* The records behind cddp/comm.h, for the files of this folder only, and the audit. */
#pragma once
#include "cddp/comm.h"
#include "core/base/arena.h"

struct cddp_work {
    cddp_group *group;
    void *backend_work;
    cddp_collective collective;
    int64_t *counts; /* (2 · group_size) its shares, from the group's arena; NULL until some have */
    uint64_t posted_ns;
    cddp_work *next_free;
    bool busy;
    bool ended;
    cddp_status outcome; /* once ended */
};

#define CD_WORKS_IN_CHUNK 8

/* Works never move, because callers keep pointers to them. */
typedef struct cd_work_chunk cd_work_chunk;
struct cd_work_chunk {
    cd_work_chunk *next; /* an older chunk, which is full */
    uint32_t made;       /* how many of its works were ever used */
    cddp_work works[CD_WORKS_IN_CHUNK];
};

struct cddp_group {
    /* the caller's table: open receives it, and self and name are read from it */
    const cddp_backend *backend;
    /* the same with every slot filled (adopt.c); calls go through it */
    cddp_backend table;
    void *backend_group;
    cddp_rank *rank;
    cddp_tracer *tracer;
    cd_arena arena; /* the group itself, its name, members and chunks */
    char *name;
    char *options; /* of its backend, which a subset takes on; NULL */
    /* most groups have evenly spaced world ranks: two numbers describe them */
    uint32_t first_member, member_step;
    uint32_t *members; /* (group_size) where they are not evenly spaced, else NULL */
    uint32_t group_rank, group_size, id;
    uint32_t works_max, in_flight, in_flight_max;
    uint64_t sequence;
    uint64_t bytes; /* of inputs posted so far */
    uint64_t timeout_ns;
    uint32_t works_made;   /* in all chunks: the most that were ever in flight at once */
    cd_work_chunk *chunks; /* newest first */
    cddp_work *free_works;
    /* wrappers: while there are any, or works in flight, a destroyed group is still an error in
    ** words */
    uint32_t holders;
    bool aborted, is_destroyed;
};

static inline uint32_t cd_group_member(const cddp_group *group, uint32_t index)
{
    return group->members != NULL ? group->members[index]
                                  : group->first_member + index * group->member_step;
}

void cd_group_audit(const cddp_group *group);
/* Of a destroyed group: gives back its memory when nobody holds it and no handle is out. */
void cd_group_free_unused(cddp_group *group);
/* Shows who looks what a reduction is given, or what it gave, where its order is known. */
void cd_group_show_reduction(const cddp_group *group, const cddp_collective *collective,
                             bool is_result, const cddp_tensor *numbers);
/* Emits collective_done for a work that ended with `outcome`. */
void cd_work_emit_done(const cddp_work *work);
