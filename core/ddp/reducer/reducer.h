/* SPDX-License-Identifier: Apache-2.0 */
/* The reducer: takes gradients as they become ready, sums buckets over the ranks in index order,
** writes averages back.
**
** Lifetime   init → (prepare_for_backward → autograd_hook … → backward_end) … → fini, on every rank
**            alike.
** Ownership  borrows group, tracer, module table, config, logger; owns buckets, used map, hook
**            state.
** Threads    the rank's thread.
** Errors     messages name parameters. The first error of a backward is kept until backward_end or
**            reset; both give the works back and leave the reducer idle (UPG-02).
*/
#pragma once
#include "core/base/arena.h"
#include "core/base/bitset.h"
#include "core/ddp/parts/bucket.h"
#include "core/ddp/parts/logger.h"
#include "core/ddp/modes/mixed_precision.h"
#include "core/ddp/parts/module.h"
#include "core/ddp/parts/observer.h"
#include "core/ddp/parts/options.h"
#include "core/ddp/modes/sparse.h"
#include "core/ddp/reducer/reading.h"
#include "core/ddp/reducer/unused_map.h"
#include "core/ddp/modes/join.h"

/* See the diagram in reducer.c. */
typedef enum cd_reducer_phase {
    /* hooks are not expected: before the first forward, in no_sync, after finalisation */
    CD_REDUCER_IDLE,
    CD_REDUCER_ARMED,      /* prepare_for_backward ran; no variable is ready yet */
    CD_REDUCER_REDUCING,   /* at least one variable is ready: must finalise */
    CD_REDUCER_FINALIZING, /* inside finalize_backward */
    CD_REDUCER_FAILED      /* a backward or a rebuild failed; `failure` says how */
} cd_reducer_phase;

struct cd_reducer;
typedef struct cd_zero cd_zero; /* core/ddp/optimizers/zero_step.h */

/* A user of reduced buckets: averages are written back, optimizers step.
** Every slot is optional. */
typedef struct cd_bucket_consumer {
    /* called when: the bucket was launched, and the next one has not been. */
    cddp_status (*launched)(struct cd_reducer *reducer, cd_bucket *bucket, cddp_error *err);
    /* called when: the result is there and checked; result is the bucket's own memory with
    ** gradient_as_bucket_view. Who is globally unused is known (cd_reducer_is_unused). */
    cddp_status (*complete)(struct cd_reducer *reducer, cd_bucket *bucket,
                            const cddp_tensor *result, cddp_error *err);
    /* called when: every bucket of the backward is complete. */
    cddp_status (*end)(struct cd_reducer *reducer, cddp_error *err);
    /* called when: a backward is left half-way. Gives works back. */
    void (*abandon)(struct cd_reducer *reducer);
    void (*fini)(struct cd_reducer *reducer);
} cd_bucket_consumer;
#define CD_CONSUMERS_MAX 2 /* the write-back, and one optimizer */

typedef struct cd_consumers {
    const cd_bucket_consumer *items[CD_CONSUMERS_MAX]; /* (count) */
    uint32_t count;
} cd_consumers;

/* How long a field keeps its value; see reducer_state.def. */
enum { CD_LIFE_ITERATION, CD_LIFE_BACKWARD, CD_LIFE_GROUP, CD_LIFE_ALWAYS };

/* Its fields are the rows of reducer_state.def, and nothing else: what is added here would escape
** reset, audit and key. */
typedef struct cd_reducer {
#define CD_FIXED(type, name) type name;
#define CD_FLAG(kind, life, name) bool name;
#define CD_NUMBER(kind, life, type, name) type name;
#define CD_TABLE(kind, life, type, name, room, used) type *name;
#define CD_PART(kind, type, name) type name;
#include "core/ddp/reducer/reducer_state.def"
#undef CD_FIXED
#undef CD_FLAG
#undef CD_NUMBER
#undef CD_TABLE
#undef CD_PART
} cd_reducer;

/* How a gradient came into its bucket. */
typedef struct cd_contribution {
    int64_t path;   /* as in the mark_ready event */
    int64_t digest; /* of the slice, where it was hashed on the way */
    bool is_hashed;
} cd_contribution;

typedef struct cd_reducer_spec {
    cddp_group *group;
    cddp_tracer *tracer;
    const cd_wrapped *module;
    const cd_ddp_config *config;
    cd_logger *logger;
    cd_mixed *mixed;
    cd_join *join;
    const cddp_allocator *allocator;
} cd_reducer_spec;

cddp_status cd_reducer_init(cd_reducer *reducer, const cd_reducer_spec *spec, cddp_error *err);
void cd_reducer_fini(cd_reducer *reducer); /* accepts a zeroed reducer */
/* A new used map, whose memory a group's backend can reach. The old one is the caller's to end. */
cddp_status cd_reducer_init_used_map(cd_reducer *reducer, const cddp_group *group, cddp_error *err);

/* RED-02. reachable: (variable_count), read only in dynamic find_unused_parameters mode. Refused
** while a backward is half done (RED-11). */
cddp_status cd_reducer_prepare_for_backward(cd_reducer *reducer, const bool *reachable,
                                            cddp_error *err);
/* RED-04: the post-accumulate hook of a variable fired. */
cddp_status cd_reducer_autograd_hook(cd_reducer *reducer, size_t variable, cddp_error *err);
/* The end of the outermost backward (RED-09); *finalized says whether averages were written
** back. In FAILED it answers with the kept error and leaves that phase. */
cddp_status cd_reducer_backward_end(cd_reducer *reducer, bool *finalized, cddp_error *err);
/* RED-11: fails when the previous backward left buckets unreduced; in FAILED with the kept
** error. */
cddp_status cd_reducer_check_finalized(cd_reducer *reducer, cddp_error *err);
/* The same where another forward begins: nobody will finish what misses gradients, so the error is
** kept, and backward_end leaves it. A backward that only was not ended can still be. */
cddp_status cd_reducer_leave_unfinished(cd_reducer *reducer, cddp_error *err);
/* UPG-01: as if no forward had happened; forgets the rebuild and what a static graph recorded. */
void cd_reducer_reset(cd_reducer *reducer);
/* After a reset: the group from now on, or NULL. Hooks of the caller keep the group that they were
** registered with; those that DDP brings itself follow (UPG-01). */
cddp_status cd_reducer_take_group(cd_reducer *reducer, cddp_group *group, cddp_error *err);
/* Keeps the first error and enters FAILED; returns its status, with the kept error in *err. */
cddp_status cd_reducer_fail(cd_reducer *reducer, cddp_status status, cddp_error *err);

static inline uint64_t cd_reducer_now(const cd_reducer *r)
{
    cddp_rank *rank = cddp_group_world_rank(r->group);
    return rank->ops->now_ns(rank);
}
/* The comm hook of a bucket; NULL: the reducer sums it. */
static inline const cddp_hook *cd_reducer_hook_of(const cd_reducer *r, const cd_bucket *bucket)
{
    const bool is_plain =
        r->hook != NULL && bucket->is_sparse && (r->hook->flags & CDDP_HOOK_SPARSE_PLAIN) != 0;
    return is_plain ? NULL : r->hook;
}
/* Dynamic unused search: find_unused_parameters without static graph. */
static inline bool cd_reducer_is_dynamic(const cd_reducer *r)
{
    return r->config->find_unused_parameters && !r->static_graph;
}
/* Gradients are copied into buckets or out of them, many at once. */
static inline bool cd_reducer_copies(const cd_reducer *r)
{
    return !r->config->gradient_as_bucket_view || r->config->batched_grad_copy;
}
static inline bool cd_reducer_is_first_static(const cd_reducer *r)
{
    return r->static_graph && !r->static_graph_recorded;
}
static inline bool cd_reducer_should_rebuild(const cd_reducer *r)
{
    return (r->static_graph || !r->config->find_unused_parameters) && !r->has_rebuilt; /* REB-01 */
}

/* ---- for the other files of this module ---- */

/* RED-05, outside of hooks: static_graph.c marks everything at once. */
cddp_status cd_reducer_mark_variable_ready(cd_reducer *reducer, size_t variable, bool is_unused,
                                           cddp_error *err);
/* Contributes the gradient and emits mark_ready. */
cddp_status cd_reducer_fill_slice(cd_reducer *reducer, size_t variable, bool is_unused,
                                  cddp_error *err);
/* Copies, scales or zero-fills the gradient into its bucket (GRD-03…08). */
cddp_status cd_reducer_contribute(cd_reducer *reducer, size_t variable,
                                  cd_contribution *contribution, cddp_error *err);
/* Refuses gradients in storage of the caller that two of them share, or one with a parameter. */
cddp_status cd_reducer_check_storage(cd_reducer *reducer, cddp_error *err);
/* Inside no_sync. With accumulate_in_hook the hook takes the gradient, the slot forgets it. */
cddp_status cd_reducer_hand_over(cd_reducer *reducer, size_t variable, cddp_error *err);
/* Copies that batched_grad_copy put off until the bucket is complete (GRD-08). */
cddp_status cd_reducer_contribute_deferred(cd_reducer *reducer, cd_bucket *bucket, cddp_error *err);
cddp_status cd_reducer_compute_divide_factor(cd_reducer *reducer, cddp_error *err);
/* Launches the bucket, then lets the consumers look on. */
cddp_status cd_reducer_send_bucket(cd_reducer *reducer, cd_bucket *bucket, cddp_error *err);
/* RED-07: the hook, or a plain SUM of what was divided beforehand (GRD-02). set: the reducer's own,
** or a joined rank's shadow of it, which contributes nothing. index: under which a hook sees the
** bucket (STA-04). */
cddp_status cd_reducer_start_bucket(cd_reducer *reducer, cd_bucket_set *set, cd_bucket *bucket,
                                    uint32_t index, cddp_error *err);
/* Shows a bucket to the observer, if there is one: what leaves, or the result that returned. */
cddp_status cd_reducer_show(const cd_reducer *reducer, const cd_bucket_set *set,
                            const cd_bucket *bucket, bool is_result, cddp_error *err);
/* A hook may name at most CDDP_FUTURE_WORKS_MAX works, and not go on for ever without any. */
cddp_status cd_reducer_check_future(const cd_reducer *reducer, cd_bucket *bucket, cddp_error *err);
/* Runs stages of hooks in the order that the chooser of continuations says: between launches until
** it says that the backward goes on, at its end until none is left. */
cddp_status cd_reducer_continue(cd_reducer *reducer, bool is_end, cddp_error *err);
cddp_status cd_reducer_finalize_backward(cd_reducer *reducer, cddp_error *err);
/* Runs all stages that a launched bucket's future still has; it is written back when its turn
** comes. */
cddp_status cd_reducer_complete_future(cd_reducer *reducer, cd_bucket *bucket, cddp_error *err);
/* FIN-02: who of the bucket is globally unused; asked once per bucket and backward. */
cddp_status cd_reducer_ask_unused(cd_reducer *reducer, cd_bucket *bucket, cddp_error *err);
/* The answer, once the variable's bucket has been asked for. */
static inline bool cd_reducer_is_unused(const cd_reducer *r, size_t variable)
{
    return cd_bitset_has(r->globally_unused, variable);
}
/* is_first: before those that are there. */
void cd_reducer_add_consumer(cd_reducer *reducer, const cd_bucket_consumer *consumer,
                             bool is_first);
/* The grad_final event of a variable. */
void cd_reducer_emit_final(const cd_reducer *reducer, size_t variable, bool is_unused);
void cd_reducer_reset_iteration(cd_reducer *reducer); /* nothing ready, nothing launched (RED-02) */
/* The comm hook of the reducer from now on; its buckets are shown to it. */
cddp_status cd_reducer_take_hook(cd_reducer *reducer, const cddp_hook *hook, void *self,
                                 cddp_error *err);
/* For traces: the content of a variable's slice; 0 for a sparse one. */
int64_t cd_reducer_slice_digest(const cd_reducer *reducer, size_t variable);
/* Leaves a half-done or failed backward: works are given back, nothing is pending, and the next
** forward starts a whole iteration. */
void cd_reducer_abandon(cd_reducer *reducer);
/* The layout that every rank makes of the verified parameter list alone (BKT-10). */
cddp_status cd_reducer_plan_first_layout(const cd_reducer *reducer, cd_bucket_layout *layout,
                                         cddp_error *err);
void cd_reducer_emit_layout(const cd_reducer *reducer);

/* Averages into gradients (FIN-03, FIN-04); finalize.c. */
extern const cd_bucket_consumer cd_write_back;

/* R1 … R9 of reducer.c. */
void cd_reducer_audit(const cd_reducer *reducer);
