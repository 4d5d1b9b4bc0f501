/* SPDX-License-Identifier: Apache-2.0 */
/* DistributedDataParallel for C programs: wrap parameters, mark gradients ready, train on W ranks.
**
** The vocabulary, the defaults and the behaviour are PyTorch's (see docs/semantics.md for the rules
** by tag and for the few deliberate deviations). A training program calls, per iteration:
**
**     cddp_ddp_forward_begin → (the model's forward) → cddp_ddp_forward_end
**     → (the model's backward, calling cddp_ddp_mark_variable_ready for each parameter whose
**        gradient was accumulated) → cddp_ddp_backward_end → (the optimizer)
**
** Lifetime   create → use → destroy on every rank. Parameters, buffers, gradient slots, the group
**            and the tracer are borrowed until destroy.
** Threads    the rank's thread.
** Errors     messages name parameters, not indices, show both sides where ranks disagree, and say
**            what to try.
*/
#pragma once
#include "cddp/comm.h"
#include "cddp/hook.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cddp_ddp cddp_ddp;

/* One named parameter, in the order of named_parameters(). */
typedef struct cddp_parameter {
    const char *name;   /* borrowed; "layer1.weight" */
    cddp_tensor tensor; /* the parameter itself */
    /* its .grad slot; may be NULL when requires_grad is false. Two names with one slot are one
    ** shared parameter. */
    cddp_grad *grad;
    bool requires_grad;
    bool expect_sparse; /* INI-06 */
} cddp_parameter;

typedef struct cddp_buffer {
    const char *name;
    cddp_tensor tensor;
} cddp_buffer;

#define CDDP_DEFAULT_FIRST_BUCKET_BYTES 1048576u /* BKT-12 */

typedef struct cddp_ddp_options {
    uint32_t size;                    /* sizeof(cddp_ddp_options) known to the writer */
    const cddp_parameter *parameters; /* borrowed until create returns; names are copied */
    size_t parameter_count;
    const cddp_buffer *buffers;
    size_t buffer_count;
    const char *const *parameters_and_buffers_to_ignore; /* names, IGN-01 */
    size_t ignore_count;
    cddp_group *group;               /* process_group */
    cddp_tracer *tracer;             /* may be NULL */
    const cddp_allocator *allocator; /* NULL: the rank's */

    bool broadcast_buffers; /* true */
    bool init_sync;         /* true */
    double bucket_cap_mb;   /* 0: not given, 25 MiB with the small first bucket (BKT-12) */
    const double *bucket_cap_mb_list;
    size_t bucket_cap_mb_list_count;
    uint64_t first_bucket_bytes; /* CDDP_DEFAULT_FIRST_BUCKET_BYTES */
    bool set_last_bucket_cap;    /* DDP_SET_LAST_BUCKET_CAP, BKT-16 */
    bool find_unused_parameters;
    bool gradient_as_bucket_view;
    bool static_graph;
    bool skip_all_reduce_unused_params;
    bool batched_grad_copy;

    /* Delayed all-reduce (DEL): both or neither. */
    const char *const *delay_all_reduce_named_params;
    size_t delay_all_reduce_count;
    const char *param_to_hook_all_reduce;

    /* Mixed precision (MIX): CDDP_DTYPE_COUNT means "not set". */
    cddp_dtype mixed_param_dtype, mixed_reduce_dtype, mixed_buffer_dtype;

    uint32_t sample_rate;                /* LOG-03; 100 */
    bool join_broadcast_optimizer_state; /* our option against INT-01; false */
    /* ours: the comm hook adds up the gradients of micro-steps, `.grad` does not; false */
    bool accumulate_in_hook;
    /* ours, with it: divide by the backwards of all ranks in the window, not by W; false */
    bool average_contributions;
    /* ours: what PyTorch does silently is an error, at once: a gradient that becomes ready without
    ** a forward (FWD-09) or before it was accumulated, a backward that ends with gradients missing
    ** (RED-11), gradients outside of the buckets whose views they are to be; true */
    bool strict;
} cddp_ddp_options;

/* PyTorch's defaults (INI-01), and strict. Fill in parameters, buffers and group afterwards. */
CDDP_API cddp_ddp_options cddp_ddp_options_default(void);

/* Verifies and synchronises (INI-08…14), plans buckets, allocates them. Collective over the
** group. */
CDDP_API cddp_status cddp_ddp_create(const cddp_ddp_options *options, cddp_ddp **ddp,
                                     cddp_error *err) CDDP_MUST_CHECK;
CDDP_API void cddp_ddp_destroy(cddp_ddp *ddp); /* accepts NULL */

/* Position of a named parameter among the reduced ones (its variable index), or -1. */
CDDP_API int64_t cddp_ddp_variable_index(const cddp_ddp *ddp, const char *name);
CDDP_API size_t cddp_ddp_variable_count(const cddp_ddp *ddp);

/* ---- one iteration ---- */

/* Steps (1)…(6) of FWD-01. grad_mode false: under no_grad (FWD-07). */
CDDP_API cddp_status cddp_ddp_forward_begin(cddp_ddp *ddp, bool grad_mode,
                                            cddp_error *err) CDDP_MUST_CHECK;

/* FWD-02. reachable: (variable_count) flags from the graph search over the outputs (RED-03), read
** only when cddp_ddp_wants_graph_search; may be NULL otherwise. */
CDDP_API bool cddp_ddp_wants_graph_search(const cddp_ddp *ddp);
CDDP_API cddp_status cddp_ddp_forward_end(cddp_ddp *ddp, const bool *reachable,
                                          cddp_error *err) CDDP_MUST_CHECK;

/* The post-accumulate hook of variable i (RED-04). Its gradient is in its slot, or undefined, and
** stays as it is until backward_end: a device with streams copies a bucket's gradients together. */
CDDP_API cddp_status cddp_ddp_mark_variable_ready(cddp_ddp *ddp, size_t variable,
                                                  cddp_error *err) CDDP_MUST_CHECK;
/* The same by position in options.parameters, for programs whose backward visits every parameter:
** reduced ones go to mark_variable_ready, the trigger of the delayed all-reduce fires it (DEL-03),
** others do nothing. */
CDDP_API cddp_status cddp_ddp_mark_parameter_ready(cddp_ddp *ddp, size_t ordinal,
                                                   cddp_error *err) CDDP_MUST_CHECK;

/* The tensor that forward and backward compute with: a parameter's low-precision copy, from
** forward_begin to the end of backward under mixed precision (MIX-02), borrowed until destroy; or
** NULL: the parameter itself. ordinal: position in options.parameters. Gradients accumulate in the
** dtype of what is computed with. */
CDDP_API const cddp_tensor *cddp_ddp_forward_copy(const cddp_ddp *ddp, size_t ordinal);

/* The end of the outermost backward: finalisation (FIN-01). While gradients are missing it fails
** with their names; without `strict` it does nothing, and the next forward_begin names them
** (RED-11). After a failure, also of forward_begin, it answers with the first error once more, and
** the next iteration is whole. */
CDDP_API cddp_status cddp_ddp_backward_end(cddp_ddp *ddp, cddp_error *err) CDDP_MUST_CHECK;

/* ---- contexts ---- */

CDDP_API void cddp_ddp_no_sync_begin(cddp_ddp *ddp); /* nests (NSY-01) */
CDDP_API void cddp_ddp_no_sync_end(cddp_ddp *ddp);

typedef struct cddp_join_options {
    uint32_t size;
    bool enable;                       /* true */
    bool divide_by_initial_world_size; /* true (JON-11) */
    bool throw_on_early_termination;   /* false */
    /* with join_broadcast_optimizer_state: what to broadcast at the end */
    const cddp_tensor *optimizer_state;
    size_t optimizer_state_count;
    /* NULL: this wrapper joins alone, or is the first one of several. Else the first one of those
    ** that this wrapper joins together with, as in PyTorch's Join([first, this]): its join has
    ** begun. All are of one group, and in each iteration the first one's forward comes first. */
    cddp_ddp *first;
} cddp_join_options;

CDDP_API cddp_join_options cddp_join_options_default(void);
CDDP_API cddp_status cddp_ddp_join_begin(cddp_ddp *ddp, const cddp_join_options *options,
                                         cddp_error *err) CDDP_MUST_CHECK;
/* This rank has no more inputs: shadows the others until none is active, then the final
** broadcast. Of several that joined together it is called for the first one, and ends all. */
CDDP_API cddp_status cddp_ddp_join_end(cddp_ddp *ddp, cddp_error *err) CDDP_MUST_CHECK;

/* ---- configuration ---- */

/* One hook per ddp (HOOK-03). The table is borrowed; inner is for wrappers, else NULL. */
CDDP_API cddp_status cddp_ddp_register_comm_hook(cddp_ddp *ddp, const cddp_hook *hook,
                                                 const cddp_hook *inner, const char *options,
                                                 cddp_error *err) CDDP_MUST_CHECK;
CDDP_API void *cddp_ddp_comm_hook_state(cddp_ddp *ddp); /* what create returned; NULL without */
/* STA-02 */
CDDP_API cddp_status cddp_ddp_set_static_graph(cddp_ddp *ddp, cddp_error *err) CDDP_MUST_CHECK;
/* Sparse metadata (SPA-04): the union of row indices that variable i will carry this iteration. */
CDDP_API cddp_status cddp_ddp_set_sparse_metadata(cddp_ddp *ddp, size_t variable,
                                                  const int64_t *rows, size_t row_count,
                                                  cddp_error *err) CDDP_MUST_CHECK;

typedef cddp_status (*cddp_buffer_hook_fn)(void *context, cddp_group *group,
                                           const cddp_buffer *buffers, size_t buffer_count,
                                           cddp_error *err);
/* Replaces the buffer broadcast (BUF-07). */
CDDP_API cddp_status cddp_ddp_register_buffer_hook(cddp_ddp *ddp, cddp_buffer_hook_fn hook,
                                                   void *context, bool after_forward,
                                                   cddp_error *err) CDDP_MUST_CHECK;
/* What a buffer hook leaves under way. At the end of the next backward that reduces, after the
** gradients, the works are awaited in this order, and then `done` is called; of several forwards in
** the order in which they ran. */
typedef struct cddp_buffer_future {
    uint32_t size;
    uint32_t work_count;
    cddp_work *works[CDDP_FUTURE_WORKS_MAX]; /* the wrapper's from here on */
    /* NULL: nothing is left to do. context: the hook's */
    cddp_status (*done)(void *context, cddp_error *err);
} cddp_buffer_future;
typedef cddp_status (*cddp_async_buffer_hook_fn)(void *context, cddp_group *group,
                                                 const cddp_buffer *buffers, size_t buffer_count,
                                                 cddp_buffer_future *future, cddp_error *err);
/* A buffer hook that returns a future (BUF-07). *future is empty when it is called. */
CDDP_API cddp_status cddp_ddp_register_async_buffer_hook(cddp_ddp *ddp,
                                                         cddp_async_buffer_hook_fn hook,
                                                         void *context, bool after_forward,
                                                         cddp_error *err) CDDP_MUST_CHECK;
/* Re-points buffer i at another tensor (BUF-01): a module may replace its buffers. */
CDDP_API cddp_status cddp_ddp_set_buffer(cddp_ddp *ddp, const char *name, const cddp_tensor *tensor,
                                         cddp_error *err) CDDP_MUST_CHECK;

/* Optimizer in backward (OIB, ZRO-12): step is called once per variable of a reduced bucket, in
** bucket order, with the averaged gradient in the parameter's own strides. A variable that no rank
** used is left out. Attach before the first forward, once. */
typedef cddp_status (*cddp_optimizer_fn)(void *context, size_t variable, cddp_grad *grad,
                                         cddp_error *err);
typedef enum cddp_optimizer_overlap {
    /* _apply_optimizer_in_backward: takes the comm-hook slot, and a managed gradient is gone
    ** afterwards (OIB-01). */
    CDDP_OVERLAP_APPLY_IN_BACKWARD,
    /* _register_fused_optim: takes the slot with the allreduce hook; gradients stay; not with
    ** no_sync (OIB-03). */
    CDDP_OVERLAP_HOOK_THEN_OPTIMIZER,
    /* A sharded optimizer: one rank steps what is in a bucket and broadcasts it (ZRO-12), behind
    ** the comm hook that is registered, or the plain all-reduce. step is called on that rank only.
    ** Nothing is updated in the first two backwards, three with static_graph (ZRO-11). */
    CDDP_OVERLAP_HOOK_WITH_ZERO_STEP, /* after the last bucket was launched */
    /* each bucket after the next one was launched: backward waits for it */
    CDDP_OVERLAP_HOOK_WITH_ZERO_STEP_INTERLEAVED
} cddp_optimizer_overlap;
typedef struct cddp_optimizer_in_backward {
    uint32_t size; /* sizeof(cddp_optimizer_in_backward) known to the writer */
    cddp_optimizer_fn step;
    void *context;
    /* (variable_count) which variables it steps; NULL: all, as a sharded one must. Copied. The
    ** others receive their averaged gradient as usual */
    const bool *managed;
    cddp_optimizer_overlap overlap;
    bool shard_buckets; /* with a sharded one: a bucket may be cut between several ranks */
} cddp_optimizer_in_backward;
CDDP_API cddp_status cddp_ddp_set_optimizer_in_backward(cddp_ddp *ddp,
                                                        const cddp_optimizer_in_backward *optimizer,
                                                        cddp_error *err) CDDP_MUST_CHECK;

/* Forgets the rebuild and every half-done reduction, then joins the new group; group NULL: this
** rank is not a member (UPG-01). Comm hooks keep the group that they were registered with. */
CDDP_API cddp_status cddp_ddp_update_process_group(cddp_ddp *ddp, cddp_group *group,
                                                   cddp_error *err) CDDP_MUST_CHECK;
CDDP_API void cddp_ddp_remove_autograd_hooks(cddp_ddp *ddp); /* UPG-03 */
/* UPG-04 */
CDDP_API cddp_status cddp_ddp_check_reducer_finalized(cddp_ddp *ddp,
                                                      cddp_error *err) CDDP_MUST_CHECK;

/* ---- inspection ---- */

/* Of a sharded optimizer in backward: the group rank that steps a variable; -1 as long as none is
** assigned. */
CDDP_API int64_t cddp_ddp_optimizer_owner(const cddp_ddp *ddp, size_t variable);

typedef struct cddp_bucket_info {
    uint32_t size;
    uint32_t generation;
    cddp_dtype dtype;
    int64_t numel;
    uint64_t limit_bytes; /* BKT-01 */
    uint32_t variable_count;
    /* (variable_count) in bucket order; borrowed until the next rebuild */
    const uint32_t *variables;
    const int64_t *offsets; /* (variable_count) elements */
} cddp_bucket_info;

CDDP_API uint32_t cddp_ddp_bucket_count(const cddp_ddp *ddp);
CDDP_API cddp_status cddp_ddp_bucket(const cddp_ddp *ddp, uint32_t bucket, cddp_bucket_info *info,
                                     cddp_error *err) CDDP_MUST_CHECK;
/* (variable_count) entries of the used map as of the last finalisation (UNU-01). False when there
** is none. */
CDDP_API bool cddp_ddp_local_used_map(const cddp_ddp *ddp, int32_t *map);

typedef struct cddp_ddp_logging { /* LOG-01, LOG-02 */
    uint32_t size;
    uint32_t world_size, rank;
    uint64_t parameter_tensor_count, total_parameter_bytes, bucket_cap_bytes, first_bucket_bytes;
    uint64_t iteration, unused_parameter_bytes, sample_rate;
    bool broadcast_buffers, find_unused_parameters, gradient_as_bucket_view, static_graph;
    bool has_rebuilt_buckets, can_set_static_graph, join_uneven_inputs, has_error;
    const char *backend_name, *comm_hook, *error; /* borrowed until the next call on ddp */
    const char *dtypes, *bucket_sizes, *rebuilt_bucket_sizes;
    const char *rebuilt_per_bucket_param_indices, *prev_iteration_grad_ready_order_indices;
    uint64_t avg_forward_compute_ns, avg_backward_compute_ns, avg_backward_comm_ns;
    uint64_t avg_backward_compute_comm_overlap_ns;
    uint64_t growth_count; /* allocations after construction; 0 in steady state */
} cddp_ddp_logging;
/* logging->size is what its reader knows. */
CDDP_API cddp_status cddp_ddp_get_logging(cddp_ddp *ddp, cddp_ddp_logging *logging,
                                          cddp_error *err) CDDP_MUST_CHECK;

#ifdef __cplusplus
}
#endif
