/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by all compositions: a group made of inner groups, and works of one or more steps.
**
** A step is one operation of an inner group. A work with a single step, issued by post, runs as
** the inner backend runs it. A work of several steps advances when this rank posts, tests or waits
** in any of its groups of the composition. There is no thread here, so that a composition also
** works in the simulator. It declares async only when all its works have one step.
**
** Invariants:
**   P1  in each inner group every rank issues its operations in the same order: works leave the
**       queue of unfinished steps in the order in which they were posted;
**   P2  a work is queued until its last step has been issued; then it may end in any order;
**   P3  a queued work that fails or is abandoned breaks the group, since its later steps would be
**       missing (P1);
**   P4  collectives of an inner group are numbered without gaps; messages between two ranks do not
**       count, because the others cannot know of them;
**   P5  records of works are reused: a steady state allocates nothing;
**   P6  while a rank waits in one group, its works in other groups go on: another rank may wait for
**       those first. A group that is at work itself, around an inner group, is left alone;
**   P7  a group that breaks aborts its inner groups: no rank waits in one of them for a step that
**       is missing (P3). Not where every rank finds the same failure.
*/
#pragma once
#include "backends/compose/node.h"
#include "core/base/arena.h"

typedef struct cd_step_group cd_step_group;
typedef struct cd_step_work cd_step_work;

/* The open groups of one rank. */
typedef struct cd_step_rank cd_step_rank;
struct cd_step_rank {
    cd_step_rank *next;
    const cddp_rank *rank;
    const cddp_allocator *allocator;
    cd_step_group *first;
    size_t queued; /* works with steps to come, over all groups */
};

typedef struct cd_inner {
    const cddp_backend *table; /* NULL: this rank is not a member */
    void *group;
    uint64_t sequence;
} cd_inner;

typedef struct cd_step_ops {
    size_t group_bytes; /* begins with a cd_step_group */
    /* Issues the first step, or sets lost. */
    cddp_status (*begin)(cd_step_group *group, cd_step_work *work, cddp_error *err);
    /* (optional) called when a step ended well and was not the last: issues the next one. */
    cddp_status (*next)(cd_step_group *group, cd_step_work *work, cddp_error *err);
    /* (optional) called when the last step ended well. */
    cddp_status (*finish)(cd_step_group *group, cd_step_work *work, cddp_error *err);
    /* (optional) called when a step failed; may replace *err by a better message. */
    void (*failed)(cd_step_group *group, cd_step_work *work, cddp_error *err);
    /* (optional) called when a work is released before it ended. */
    void (*given_up)(cd_step_group *group, cd_step_work *work);
    /* (optional) called before the inner groups are closed. */
    void (*closing)(cd_step_group *group);
    /* (optional) frees the composition's own part; accepts a group that is half opened */
    void (*fini)(cd_step_group *group);
} cd_step_ops;

struct cd_step_work {
    cd_step_work *next, *next_made;
    cddp_collective call;
    int64_t *counts; /* (2 · group_size) copies of call.counts and call.send_counts */
    void *extra;     /* (extra_bytes) of the composition */
    uint32_t stage;  /* steps issued so far */
    uint32_t inner_index;
    void *inner; /* the step in flight; NULL: none */
    bool queued, last, ended, lost;
    bool is_one_of_many;  /* the work has more steps than one */
    bool is_known_to_all; /* every rank finds the failure of the work by itself */
    bool arrived;         /* the step in flight was waited for, and ended well */
    uint64_t deadline_ns; /* UINT64_MAX: none */
    uint64_t due_ns;      /* reported done no earlier than this */
    uint64_t number;      /* number of this rank's operation in the group */
    cddp_status outcome;
    char words[CDDP_ERROR_MESSAGE_BYTES / 2];
    char who[160]; /* after a failure: the rank that the step in flight waited for */
};

struct cd_step_group {
    const cd_node *node;
    const cd_step_ops *ops;
    cddp_rank *rank;
    cd_arena arena; /* of the group itself and of everything that lives as long as it */
    const cddp_allocator *allocator;
    char *name;
    uint32_t *members; /* (size) world ranks */
    uint32_t me, size;
    uint64_t timeout_ns;
    size_t extra_bytes;
    cd_inner inner[CD_NODE_GROUPS_MAX];
    uint32_t inner_count;
    cd_step_work *first, *last; /* P1 */
    cd_step_work *free, *made;
    uint64_t posted;
    cd_step_rank *mine;
    cd_step_group *next_of_rank;
    bool is_at_work;    /* P6 */
    cddp_status broken; /* CDDP_OK: not */
    char broken_words[160];
};

/* ---- for the open functions of kinds ---- */

/* How an inner group is opened. */
typedef struct cd_inner_spec {
    const cd_node *node;     /* gives the backend */
    const char *suffix;      /* appended to the group's name; may be "" */
    const uint32_t *members; /* (member_count) ranks within the group; NULL: all of them */
    uint32_t member_count;
    uint32_t me; /* within members */
} cd_inner_spec;

cddp_status cd_step_group_create(const cddp_backend *backend, cddp_rank *rank,
                                 const cddp_group_spec *spec, const cd_step_ops *ops,
                                 cd_step_group **group, cddp_error *err);
/* Opens inner group number inner_count. Every member calls it in the same order. */
cddp_status cd_step_group_open_inner(cd_step_group *group, const cddp_group_spec *spec,
                                     const cd_inner_spec *inner, cddp_error *err);
/* Counts an inner group without this rank, so that indices agree on all ranks. */
void cd_step_group_skip_inner(cd_step_group *group);
void cd_step_group_destroy(void *group); /* the close function of every composition; accepts NULL */
/* The slots of a composition's table but open. */
void cd_step_fill_table(cddp_backend *table);

/* ---- for steps ---- */

/* Issues one operation as the work's next step. */
cddp_status cd_step_issue(cd_step_group *group, cd_step_work *work, uint32_t inner,
                          const cddp_collective *call, bool last, cddp_error *err);
/* Posts one operation of an inner group outside any work; blocks: no. */
cddp_status cd_inner_post(cd_step_group *group, uint32_t inner, const cddp_collective *call,
                          void **work, cddp_error *err);
bool cd_step_is_message(cddp_op op);
bool cd_step_is_reduction(cddp_op op);
uint64_t cd_step_now(const cd_step_group *group);
/* A one-dimensional view of host bytes. */
cddp_tensor cd_step_bytes(void *bytes, size_t byte_count);
/* Whether this rank has an input, and an output. */
bool cd_step_has_input(const cd_step_group *group, const cddp_collective *call);
bool cd_step_has_output(const cd_step_group *group, const cddp_collective *call);
