/* SPDX-License-Identifier: Apache-2.0 */
/* Group and work: the one choke point through which every collective goes, and is observed.
**
** The reducer, the hooks and user programs call these functions, never a backend. The group numbers
** every operation, checks its operands, refuses what the backend cannot do by name, and writes
** trace events.
**
** Lifetime   a group is created on every member and destroyed after its last work. A work is
**            returned owned by post and given back by cddp_work_wait (success or failure) or
**            cddp_work_release.
** Threads    one thread per group: the rank's.
** Errors     messages name the group, the operation and its sequence number. A group, tensor or
**            work that is NULL is CDDP_E_ARG; of no group every number is 0, every text empty.
*/
#pragma once
#include "cddp/backend.h"
#include "cddp/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cddp_group cddp_group;
typedef struct cddp_work cddp_work;

typedef struct cddp_group_options {
    uint32_t size;               /* sizeof(cddp_group_options) known to the writer */
    const cddp_backend *backend; /* borrowed until the group is destroyed */
    cddp_rank *rank;             /* borrowed until the group is destroyed */
    cddp_group_spec spec;
    cddp_tracer *tracer; /* may be NULL; borrowed until the group is destroyed */
    /* works in flight at most; 0: 1024. Memory for them grows with the most so far */
    uint32_t works_max;
    uint64_t sequence_start; /* number of the first operation, equal on all members */
} cddp_group_options;

CDDP_API cddp_status cddp_group_create(const cddp_group_options *options, cddp_group **group,
                                       cddp_error *err) CDDP_MUST_CHECK;
/* Accepts NULL. Operations in flight are lost: a wait for one of them fails, and says so. The
** memory of the group stays until each of their handles was waited for or released. */
CDDP_API void cddp_group_destroy(cddp_group *group);

/* Some members of another group, in the given order; every one of them calls this, and nobody
** else. */
typedef struct cddp_group_subset {
    uint32_t size;    /* sizeof(cddp_group_subset) known to the writer */
    const char *name; /* unique among live groups of the world; copied */
    uint32_t member_count;
    const uint32_t *members; /* (member_count) ranks within the parent; borrowed during the call */
} cddp_group_subset;
CDDP_API cddp_status cddp_group_create_subset(const cddp_group *parent,
                                              const cddp_group_subset *subset, cddp_group **group,
                                              cddp_error *err) CDDP_MUST_CHECK;

CDDP_API uint32_t cddp_group_rank(const cddp_group *group);
CDDP_API uint32_t cddp_group_size(const cddp_group *group);
CDDP_API const char *cddp_group_name(const cddp_group *group);
/* for people, never to decide behaviour */
CDDP_API const char *cddp_group_backend_name(const cddp_group *group);
/* as in trace events; equal on all members */
CDDP_API uint32_t cddp_group_id(const cddp_group *group);
CDDP_API const cddp_capabilities *cddp_group_capabilities(const cddp_group *group);
CDDP_API uint64_t cddp_group_sequence(const cddp_group *group); /* number of the next operation */
/* of what this rank gave to them: its inputs */
CDDP_API uint64_t cddp_group_bytes(const cddp_group *group);
CDDP_API cddp_rank *cddp_group_world_rank(const cddp_group *group);

/* Posts any operation. collective->sequence is assigned here. Tensors must stay alive until
** completion. */
CDDP_API cddp_status cddp_group_post(cddp_group *group, cddp_collective *collective,
                                     cddp_work **work, cddp_error *err) CDDP_MUST_CHECK;

/* The common ones, spelled out. In place: input and output are the same view. */
CDDP_API cddp_status cddp_group_allreduce(cddp_group *group, const cddp_tensor *inout,
                                          cddp_red_op op, cddp_work **work,
                                          cddp_error *err) CDDP_MUST_CHECK;
CDDP_API cddp_status cddp_group_broadcast(cddp_group *group, const cddp_tensor *inout,
                                          uint32_t root, cddp_work **work,
                                          cddp_error *err) CDDP_MUST_CHECK;
CDDP_API cddp_status cddp_group_allgather(cddp_group *group, const cddp_tensor *input,
                                          const cddp_tensor *output, cddp_work **work,
                                          cddp_error *err) CDDP_MUST_CHECK;
/* blocks */
CDDP_API cddp_status cddp_group_barrier(cddp_group *group, cddp_error *err) CDDP_MUST_CHECK;

/* A barrier that names who did not come: for finding lost ranks, not for every step. Member 0 fails
** with the lowest missing rank first and exactly those that are missing after it; the members that
** came fail with the lowest. After a failure the group is fit for abort and destroy only.
** Needs a backend with send and recv, and works_max of at least the members.
** timeout_ns: how long member 0 waits; not 0. blocks */
CDDP_API cddp_status cddp_barrier_monitored(cddp_group *group, uint64_t timeout_ns,
                                            cddp_error *err) CDDP_MUST_CHECK;

/* Completes a work and gives it back, whatever the outcome. timeout_ns 0: the group's own. */
CDDP_API cddp_status cddp_work_wait(cddp_work *work, uint64_t timeout_ns,
                                    cddp_error *err) CDDP_MUST_CHECK;
/* Has it ended? Does not give it back. */
CDDP_API cddp_status cddp_work_test(cddp_work *work, bool *done, cddp_error *err) CDDP_MUST_CHECK;
/* gives back a work nobody will wait for; accepts NULL */
CDDP_API void cddp_work_release(cddp_work *work);

CDDP_API cddp_status cddp_group_abort(cddp_group *group, const char *reason, cddp_error *err);

#ifdef __cplusplus
}
#endif
