/* SPDX-License-Identifier: Apache-2.0 */
/* FullyShardedDataParallel for C programs: each rank keeps a slice of every parameter, gathers the
** parameters of a unit before it computes with them, and reduces gradients to slices.
**
** The vocabulary, the defaults and the behaviour are PyTorch's (docs/fsdp.md has the rules by tag,
** and the deviations). A unit is what one wrapper manages. A program calls, per iteration:
**
**     for each unit, as its forward starts and ends (the root's encloses the others):
**         cddp_fsdp_pre_forward → (forward, with cddp_fsdp_parameter) → cddp_fsdp_post_forward
**     for each unit, when the first gradient reaches its outputs, and when its own are complete:
**         cddp_fsdp_pre_backward → (accumulate into the gradient slots) → cddp_fsdp_post_backward
**     cddp_fsdp_backward_end → (the optimizer, over cddp_fsdp_flat or cddp_fsdp_piece)
**
** Lifetime   create → use → destroy on every rank. Contents of parameters are copied at create: the
**            program may release their storage. Gradient slots, buffers and groups are borrowed
**            until destroy, and so is the tracer.
** Threads    the rank's thread.
** Errors     what ranks declare differently is refused at create, in one sentence with both sides,
**            before anything is exchanged. A unit that is used out of order is refused by name. A
**            call of one iteration that failed is final: every later one fails with its error, and
**            the groups are aborted, so that the other ranks end too.
*/
#pragma once
#include "cddp/ddp.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cddp_fsdp cddp_fsdp;

/* What of a unit is full when, and how its gradient is reduced (FSD-11). */
typedef enum cddp_fsdp_strategy {
    CDDP_FSDP_FULL_SHARD,    /* freed after forward, but the root, and after backward */
    CDDP_FSDP_SHARD_GRAD_OP, /* kept from forward to backward */
    CDDP_FSDP_NO_SHARD,      /* always full; gradients are all-reduced, as by DDP */
    /* the same two within `group`, and the slices of gradients are all-reduced over
    ** `replicate_group` (HSD-02) */
    CDDP_FSDP_HYBRID_SHARD,
    CDDP_FSDP_HYBRID_SHARD_ZERO2,
    CDDP_FSDP_STRATEGY_COUNT
} cddp_fsdp_strategy;

/* How the parameters of a unit are cut. */
typedef enum cddp_fsdp_layout {
    CDDP_FSDP_FLAT, /* one flat parameter, cut into slices (FSDP1, FPM-02) */
    CDDP_FSDP_ROWS, /* each parameter along its first dimension (FSDP2, FS2-01) */
    CDDP_FSDP_LAYOUT_COUNT
} cddp_fsdp_layout;

/* FSH-09 */
typedef enum cddp_fsdp_prefetch {
    CDDP_FSDP_PREFETCH_NONE,
    CDDP_FSDP_BACKWARD_PRE,  /* the unit before it, before the gradients of this one */
    CDDP_FSDP_BACKWARD_POST, /* the same, after this one was freed, before its reduction */
    CDDP_FSDP_PREFETCH_COUNT
} cddp_fsdp_prefetch;

/* Whether ranks gather and reduce the same units in the same order (FSH-13). A rank that departs
** from a checked order is refused before it posts anything. */
typedef enum cddp_fsdp_order_check {
    /* Compared across ranks in the first iteration; later ones must repeat it. */
    CDDP_FSDP_ORDER_FIRST_ITERATION,
    CDDP_FSDP_ORDER_EVERY_ITERATION, /* compared always: orders may change, on all ranks alike */
    CDDP_FSDP_ORDER_NONE,
    CDDP_FSDP_ORDER_CHECK_COUNT
} cddp_fsdp_order_check;

/* ---- units ---- */

/* One module of the program's model, in the order of named_modules(): the root first, each parent
** before its children. */
typedef struct cddp_fsdp_module {
    const char *name; /* "encoder.layer.0"; the root's is "" */
    const char *type; /* "T5Block"; NULL: none */
    int64_t parent;   /* position in the list; -1: the root */
    /* its own, by position in options.parameters, in registration order */
    const uint32_t *parameters;
    size_t parameter_count;
} cddp_fsdp_module;

typedef enum cddp_fsdp_wrap_kind {
    CDDP_FSDP_WRAP_NONE, /* the root is the only unit */
    CDDP_FSDP_WRAP_ALWAYS,
    CDDP_FSDP_WRAP_SIZE,  /* size_based_auto_wrap_policy (FSD-21) */
    CDDP_FSDP_WRAP_TYPES, /* transformer_auto_wrap_policy: modules of these types (FSD-22) */
    CDDP_FSDP_WRAP_NAMES, /* modules of these names */
    CDDP_FSDP_WRAP_COUNT
} cddp_fsdp_wrap_kind;

/* Which modules become units. The root always is one. */
typedef struct cddp_fsdp_wrap_policy {
    uint32_t size; /* sizeof(cddp_fsdp_wrap_policy) known to the writer */
    cddp_fsdp_wrap_kind kind;
    int64_t min_num_params;   /* of WRAP_SIZE: at least so many elements; 100,000,000 */
    const char *const *words; /* (word_count) types or names */
    size_t word_count;
} cddp_fsdp_wrap_policy;

/* WRAP_NONE, and PyTorch's default of min_num_params. */
CDDP_API cddp_fsdp_wrap_policy cddp_fsdp_wrap_policy_default(void);

/* The decision alone, without any communication. numels: (parameter_count) elements.
** is_unit: (module_count). Memory comes from allocator; NULL: the process heap. */
CDDP_API cddp_status cddp_fsdp_wrap(const cddp_fsdp_module *modules, size_t module_count,
                                    const int64_t *numels, size_t parameter_count,
                                    const cddp_fsdp_wrap_policy *policy,
                                    const cddp_allocator *allocator, bool *is_unit,
                                    cddp_error *err) CDDP_MUST_CHECK;

/* Dtypes of one unit; CDDP_DTYPE_COUNT: not cast (FMP-01). */
typedef struct cddp_fsdp_mixed_precision {
    cddp_dtype param_dtype;        /* of forward, backward and gathers */
    cddp_dtype reduce_dtype;       /* of reductions; not set: param_dtype */
    cddp_dtype output_dtype;       /* of what its forward returns (FMP-06) */
    bool keep_low_precision_grads; /* false: the shard's gradient has the original dtype (FMP-08) */
    /* What the program casts to param_dtype: inputs of every forward, false; those of the root's,
    ** true (FMP-05). */
    bool cast_forward_inputs, cast_root_forward_inputs;
} cddp_fsdp_mixed_precision;

/* Nothing is cast; PyTorch's defaults. */
CDDP_API cddp_fsdp_mixed_precision cddp_fsdp_mixed_precision_default(void);

/* What one unit does differently (FSD-12). */
typedef struct cddp_fsdp_unit_options {
    const char *module; /* its name */
    cddp_fsdp_strategy strategy;
    cddp_fsdp_mixed_precision mixed_precision;
} cddp_fsdp_unit_options;

/* CPUOffload */
typedef struct cddp_fsdp_cpu_offload {
    /* Shards and their gradients, and so an optimizer's state, lie on the host. A shard is copied
    ** to the device before it is gathered, its gradient to the host after it was reduced
    ** (FS2-15). */
    bool offload_params;
} cddp_fsdp_cpu_offload;

typedef struct cddp_fsdp_options {
    uint32_t size; /* sizeof(cddp_fsdp_options) known to the writer */
    /* contiguous; of one storage or one gradient slot: one shared parameter */
    const cddp_parameter *parameters;
    size_t parameter_count;
    const cddp_buffer *buffers;
    size_t buffer_count;
    const char *const *ignored_parameters; /* names: neither cut nor reduced (FSD-15) */
    size_t ignored_count;
    /* NULL: made from the dots in the names of the parameters, without types */
    const cddp_fsdp_module *modules;
    size_t module_count;
    cddp_fsdp_wrap_policy wrap;
    const cddp_fsdp_unit_options *unit_options;
    size_t unit_options_count;

    cddp_group *group;               /* shards lie in this one */
    cddp_group *replicate_group;     /* with a hybrid strategy; else NULL */
    cddp_tracer *tracer;             /* may be NULL */
    const cddp_allocator *allocator; /* NULL: the rank's */

    cddp_fsdp_strategy strategy;
    cddp_fsdp_layout layout;
    cddp_fsdp_prefetch backward_prefetch; /* CDDP_FSDP_BACKWARD_PRE */
    bool forward_prefetch;                /* false (FSH-11) */
    cddp_fsdp_order_check order_check;
    bool sync_module_states; /* false: contents of ranks are not compared (FSD-16, FSD-17) */
    bool use_orig_params;    /* false: with FLAT, parameters are aligned to 16 bytes (FPM-04) */
    cddp_fsdp_mixed_precision mixed_precision;
    cddp_dtype buffer_dtype; /* of floating buffers from the first forward on (FMP-07) */
    /* by what sums are divided (FS2-11); 0: by the ranks that they are over */
    uint32_t gradient_divide_factor;

    /* On a device with streams the host waits, before a gather, until at most one freed unit is
    ** still computed with (FSH-12): true. Elsewhere nothing is computed later. */
    bool limit_all_gathers;
    cddp_fsdp_cpu_offload cpu_offload;
    /* Parameters and buffers that lie on the host move to this device, unit by unit, before they
    ** are cut (FSD-18). NULL: units are where their parameters are. Borrowed until destroy. */
    const cddp_device *device_id;
    /* Prefetch gathers further units ahead until those ahead have so many elements, padding
    ** included; 0: one unit (ZER-08) */
    int64_t prefetch_numel;
    /* … and none with which more elements were full; 0: no limit (ZER-07) */
    int64_t live_numel_max;
    /* units of fewer elements stay whole on every rank, as with NO_SHARD (ZER-06) */
    int64_t persistence_threshold;
} cddp_fsdp_options;

/* PyTorch's defaults. Fill in parameters, buffers and group afterwards. */
CDDP_API cddp_fsdp_options cddp_fsdp_options_default(void);

/* Stages 2 and 3 of ZeRO in DeepSpeed's words. Stage 1 is cddp/zero.h. */
typedef struct cddp_fsdp_zero {
    uint32_t size;  /* sizeof(cddp_fsdp_zero) known to the writer */
    uint32_t stage; /* 2: SHARD_GRAD_OP, 3: FULL_SHARD */
    /* of stage 3, in elements: 0 gathers nothing ahead */
    int64_t stage3_prefetch_bucket_size;
    int64_t stage3_max_live_parameters;         /* 0: no limit */
    int64_t stage3_param_persistence_threshold; /* 0: every unit is cut */
    uint32_t mics_shard_size; /* of stage 3: ranks of a shard group; 0: all. Others are replicas,
                              ** in options.replicate_group */
} cddp_fsdp_zero;

/* DeepSpeed's defaults of stage 3, but a threshold of 0. */
CDDP_API cddp_fsdp_zero cddp_fsdp_zero_default(void);
/* Sets strategy, prefetch, live_numel_max and persistence_threshold of options. What a stage does
** not know is refused. */
CDDP_API cddp_status cddp_fsdp_options_set_zero(cddp_fsdp_options *options,
                                                const cddp_fsdp_zero *zero,
                                                cddp_error *err) CDDP_MUST_CHECK;

/* Wraps, compares what ranks declare, cuts. Collective over the groups. */
CDDP_API cddp_status cddp_fsdp_create(const cddp_fsdp_options *options, cddp_fsdp **fsdp,
                                      cddp_error *err) CDDP_MUST_CHECK;
CDDP_API void cddp_fsdp_destroy(cddp_fsdp *fsdp); /* accepts NULL */

/* Units, in the order of their modules: the root is unit 0. */
CDDP_API uint32_t cddp_fsdp_unit_count(const cddp_fsdp *fsdp);
/* The unit of a module, or that of the nearest wrapped module above it; -1: no such module. */
CDDP_API int64_t cddp_fsdp_unit_of(const cddp_fsdp *fsdp, const char *module);

typedef struct cddp_fsdp_unit_info {
    uint32_t size;
    const char *name;            /* of its module; borrowed until destroy */
    cddp_fsdp_strategy strategy; /* in force: NO_SHARD where there is one shard (FSD-13) */
    int64_t numel;               /* of its parameters, alignment included, without padding */
    int64_t share;               /* of one rank, with padding */
    uint32_t shard_count;
    uint32_t parameter_count; /* shared ones once */
    cddp_dtype dtype, param_dtype, reduce_dtype;
    bool requires_grad, is_full;
    /* to what the program casts floating inputs and outputs of its forward; CDDP_DTYPE_COUNT: they
    ** stay as they are */
    cddp_dtype input_dtype, output_dtype;
    /* on which it is computed with, and on which its shard lies; NULL: it has no parameters */
    const cddp_device *device, *shard_device;
} cddp_fsdp_unit_info;
CDDP_API cddp_status cddp_fsdp_unit(const cddp_fsdp *fsdp, uint32_t unit, cddp_fsdp_unit_info *info,
                                    cddp_error *err) CDDP_MUST_CHECK;

/* ---- one iteration ---- */

/* Gathers the unit and waits for it. grad_mode false: no backward follows, and nothing stays full
** afterwards. A unit may run alone, without the root around it. */
CDDP_API cddp_status cddp_fsdp_pre_forward(cddp_fsdp *fsdp, uint32_t unit, bool grad_mode,
                                           cddp_error *err) CDDP_MUST_CHECK;
/* needs_backward: an output requires a gradient, so that pre_backward may follow (FSH-20). */
CDDP_API cddp_status cddp_fsdp_post_forward(cddp_fsdp *fsdp, uint32_t unit, bool needs_backward,
                                            cddp_error *err) CDDP_MUST_CHECK;
/* Before the first gradient of any output of the unit is used. Gathers it where it was freed. */
CDDP_API cddp_status cddp_fsdp_pre_backward(cddp_fsdp *fsdp, uint32_t unit,
                                            cddp_error *err) CDDP_MUST_CHECK;
/* All gradients of the unit were accumulated: frees it and reduces them. Parameters whose slot is
** undefined contribute zeros. When all are undefined nothing is reduced (FPM-07, FPM-08). */
CDDP_API cddp_status cddp_fsdp_post_backward(cddp_fsdp *fsdp, uint32_t unit,
                                             cddp_error *err) CDDP_MUST_CHECK;
/* The end of the outermost backward: waits for all reductions, frees what is still full, and makes
** the gradients of the shards (FSH-06). */
CDDP_API cddp_status cddp_fsdp_backward_end(cddp_fsdp *fsdp, cddp_error *err) CDDP_MUST_CHECK;

/* What forward and backward compute with: the full parameter, in its unit's param_dtype. NULL while
** the unit is not full. Ignored parameters are themselves. ordinal: position in options.parameters.
** Borrowed until the unit is freed. */
CDDP_API const cddp_tensor *cddp_fsdp_parameter(const cddp_fsdp *fsdp, size_t ordinal);
/* Another stream than the default one comes behind what made the unit full: for work beside the
** default stream, such as a copy. Before the unit is freed, the host or the default stream has to
** wait for that work. NULL, and devices without streams: nothing to do. */
CDDP_API cddp_status cddp_fsdp_wait_unit(cddp_fsdp *fsdp, uint32_t unit, cddp_stream *stream,
                                         cddp_error *err) CDDP_MUST_CHECK;
/* What forward computes with in place of a buffer: itself, or its copy in buffer_dtype. */
CDDP_API const cddp_tensor *cddp_fsdp_buffer(const cddp_fsdp *fsdp, size_t buffer);

/* Gradients of the backwards in between stay on this rank, in full, and are added up (FSY). Between
** iterations only. */
CDDP_API cddp_status cddp_fsdp_no_sync_begin(cddp_fsdp *fsdp, cddp_error *err) CDDP_MUST_CHECK;
CDDP_API cddp_status cddp_fsdp_no_sync_end(cddp_fsdp *fsdp, cddp_error *err) CDDP_MUST_CHECK;

/* ---- the optimizer ---- */

/* The shard of a unit as the optimizer sees it, with its padding (FPM-09). grad: the slot of its
** gradient. Borrowed until destroy. tensor.device is NULL when the unit has no parameters. Of an
** offloaded shard it is the wrapper's own: give back what is allocated on it before destroy. */
CDDP_API cddp_status cddp_fsdp_flat(const cddp_fsdp *fsdp, uint32_t unit, cddp_parameter *flat,
                                    cddp_error *err) CDDP_MUST_CHECK;

/* This rank's elements of one parameter: `count` from element `first` of it, in logical order. */
typedef struct cddp_fsdp_piece {
    uint32_t size; /* sizeof(cddp_fsdp_piece) known to the writer */
    int64_t unit;  /* -1: ignored */
    int64_t first, count;
    int64_t offset;     /* of the first one within the shard */
    cddp_tensor tensor; /* (count) */
    cddp_grad gradient; /* a view of the shard's gradient as it is now; undefined: none */
} cddp_fsdp_piece;
CDDP_API cddp_status cddp_fsdp_get_piece(const cddp_fsdp *fsdp, size_t ordinal,
                                         cddp_fsdp_piece *piece, cddp_error *err) CDDP_MUST_CHECK;

/* The p-norm of all gradients, and scales them by max_norm/(norm + 1e-6) if that is below 1
** (FCL). norm_type: p ≥ 1, or infinity. Shards are added over their group, once each. total_norm
** may be NULL. Ranks that clip in other ways are refused, as order_check says. Collective;
** blocks. */
CDDP_API cddp_status cddp_fsdp_clip_grad_norm(cddp_fsdp *fsdp, double max_norm, double norm_type,
                                              double *total_norm, cddp_error *err) CDDP_MUST_CHECK;
/* Of shards, and what no_sync has added up. */
CDDP_API cddp_status cddp_fsdp_zero_grad(cddp_fsdp *fsdp, bool set_to_none,
                                         cddp_error *err) CDDP_MUST_CHECK;
/* Refuses a step that would leave out gradients of a no_sync window (FSY-07). */
CDDP_API cddp_status cddp_fsdp_check_step(const cddp_fsdp *fsdp, cddp_error *err) CDDP_MUST_CHECK;

/* ---- state ---- */

/* One tensor of a state. */
typedef struct cddp_fsdp_entry {
    const char *name;   /* of the parameter or buffer; a shared one comes under each of its names */
    size_t ordinal;     /* position in options.parameters, or .buffers */
    size_t slot;        /* of an optimizer's state; else 0 */
    bool is_buffer;     /* this rank's own: buffers are never cut (FSD-20) */
    cddp_tensor tensor; /* in the original dtype; borrowed for the call */
    /* of the first dimension: SHARDED state has a part of the rows */
    int64_t first_row, row_count;
    uint32_t dim_count; /* of the whole */
    int64_t sizes[CDDP_DIMS_MAX];
} cddp_fsdp_entry;
typedef cddp_status (*cddp_fsdp_entry_fn)(void *context, const cddp_fsdp_entry *entry,
                                          cddp_error *err);

typedef struct cddp_fsdp_sink {
    uint32_t size; /* sizeof(cddp_fsdp_sink) known to the writer */
    /* copies what it wants to keep. Once it has failed it is not called again: what is left is
    ** gathered for the other ranks, then the failure is returned */
    cddp_fsdp_entry_fn entry;
    void *context;
    /* FULL: on shard rank 0 of replica 0 alone. All ranks take part in every gather (FST-02) */
    bool rank0_only;
} cddp_fsdp_sink;

/* Full tensors under their names, unit by unit: at most one unit is full at a time (FST-01).
** Between iterations. Collective. */
CDDP_API cddp_status cddp_fsdp_full_state(cddp_fsdp *fsdp, const cddp_fsdp_sink *sink,
                                          cddp_error *err) CDDP_MUST_CHECK;
/* The rows of each parameter that belong to this rank: ⌈d0/W⌉ of them, however it is cut in memory
** (FST-05). Collective. */
CDDP_API cddp_status cddp_fsdp_sharded_state(cddp_fsdp *fsdp, const cddp_fsdp_sink *sink,
                                             cddp_error *err) CDDP_MUST_CHECK;
/* The same for an optimizer's state that has a vector like the shard: slots: (unit_count,
** slot_count) tensors of `share` elements, row by row; undefined: this unit has none, on all ranks
** (FST-07, FST-10). sharded: SHARDED in place of FULL. */
typedef struct cddp_fsdp_slots {
    uint32_t size;
    const cddp_tensor *tensors;
    size_t slot_count;
    bool sharded;
} cddp_fsdp_slots;
CDDP_API cddp_status cddp_fsdp_optimizer_state(cddp_fsdp *fsdp, const cddp_fsdp_slots *slots,
                                               const cddp_fsdp_sink *sink,
                                               cddp_error *err) CDDP_MUST_CHECK;

/* What a stored state has under a name. */
typedef struct cddp_fsdp_stored {
    const char *name;
    uint32_t dim_count;
    int64_t sizes[CDDP_DIMS_MAX];
    cddp_dtype dtype; /* in which it was stored; nothing is converted */
} cddp_fsdp_stored;
/* does: writes elements of the named parameter, from `first` on, in logical order, into
** `to`. */
typedef cddp_status (*cddp_fsdp_read_fn)(void *context, const char *name, int64_t first,
                                         const cddp_tensor *to, cddp_error *err);
typedef struct cddp_fsdp_source {
    uint32_t size;
    const cddp_fsdp_stored *stored; /* (stored_count) all of its names */
    size_t stored_count;
    cddp_fsdp_read_fn read;
    void *context;
} cddp_fsdp_source;
/* Makes the shards those of a stored state, whatever world, strategy and layout wrote it (FST-09):
** each rank reads its own elements. Names, shapes or dtypes that are missing, too many or different
** are refused before anything is changed, on all ranks. Buffers and ignored parameters that the
** state names are read whole, into the program's tensors and into cddp_fsdp_buffer; others stay as
** they are. Collective. */
CDDP_API cddp_status cddp_fsdp_load(cddp_fsdp *fsdp, const cddp_fsdp_source *source,
                                    cddp_error *err) CDDP_MUST_CHECK;

/* A shard as it lies in memory (FST-04): written as it is, read back only where it fits. */
typedef struct cddp_fsdp_local {
    uint32_t size;
    uint32_t rank, world; /* of the group of its shards */
    int64_t numel, share;
    uint64_t layout;  /* digest of names, shapes, dtype and cut */
    cddp_dtype dtype; /* of its elements; COUNT where who wrote it does not know this field */
} cddp_fsdp_local;
CDDP_API cddp_status cddp_fsdp_get_local(const cddp_fsdp *fsdp, uint32_t unit,
                                         cddp_fsdp_local *local, cddp_error *err) CDDP_MUST_CHECK;
/* Refuses a shard of another rank, another world or another model, with both sides. Elements:
** `share`, or NULL tensor: only the check. */
CDDP_API cddp_status cddp_fsdp_load_local(cddp_fsdp *fsdp, uint32_t unit,
                                          const cddp_fsdp_local *stored,
                                          const cddp_tensor *elements,
                                          cddp_error *err) CDDP_MUST_CHECK;

/* ---- inspection ---- */

typedef struct cddp_fsdp_counts {
    uint32_t size;
    uint64_t gathers, reductions, replica_reductions; /* posted so far, of units */
    uint64_t order_checks;                            /* exchanges that compared an order */
    /* full parameters that are allocated: now, and the most so far */
    uint64_t full_bytes, full_bytes_peak;
    uint64_t limit_waits; /* how often the host waited for limit_all_gathers */
} cddp_fsdp_counts;
CDDP_API cddp_status cddp_fsdp_get_counts(const cddp_fsdp *fsdp, cddp_fsdp_counts *counts,
                                          cddp_error *err) CDDP_MUST_CHECK;

#ifdef __cplusplus
}
#endif
