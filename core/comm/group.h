/* SPDX-License-Identifier: Apache-2.0 */
/* The records behind cddp/comm.h, shared by the files of this folder only, and the audit. */
#pragma once
#include "cddp/comm.h"

struct cddp_work {
    cddp_group *group;
    void *backend_work;
    cddp_collective collective;
    uint64_t posted_ns;
    cddp_work *next_free;
    bool busy;
    bool ended;
    cddp_status outcome; /* once ended */
};

struct cddp_group {
    const cddp_backend *backend; /* as given: open receives it, its self and name are read from it */
    cddp_backend table;          /* the same with every slot filled (adopt.c); calls go through it */
    void *backend_group;
    cddp_rank *rank;
    cddp_tracer *tracer;
    const cddp_allocator *allocator;
    char *name;
    uint32_t *members; /* (group_size) world ranks */
    uint32_t group_rank, group_size, id;
    uint32_t works_max, in_flight;
    uint32_t works_made; /* so many have been used so far; the memory of the others has not been touched */
    uint64_t sequence;
    uint64_t bytes; /* of inputs posted so far */
    uint64_t timeout_ns;
    cddp_work *works; /* (works_max) */
    cddp_work *free_works;
    bool aborted;
};

void cd_group_audit(const cddp_group *group);
/* Emits collective_done for a work that ended with `outcome`. */
void cd_work_emit_done(const cddp_work *work);
