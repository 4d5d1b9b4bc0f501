/* SPDX-License-Identifier: Apache-2.0 */
/* A scenario as data: what is trained, on which ranks, under which circumstances, and what is
** expected.
**
** A plan is made with every default filled in, changed key by key (by the TOML reader, by --set, by
** a test), then checked as a whole and run. Every key has a path ("ddp.bucket_cap_mb"); the key
** table behind cddp_plan_key is what the reader, the overrides, the documentation and `cddp-verify
** list keys` are made of.
**
** Lifetime   a plan owns its strings and arrays; everything in it is borrowed until destroy.
** Threads    a plan is read-only while a run uses it.
** Errors     setting a key names the key, the value and what would have been accepted.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/keys.h"
#include "cddp/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CDDP_PLAN_SCHEMA 1

/* Which ranks, steps or micro-steps something applies to. No terms: all of them.
** As text: "0", "0-3", "1%2" (n mod 2 == 1), and lists of these separated by commas. */
#define CDDP_SELECTOR_TERMS_MAX 8
typedef struct cddp_selector {
    uint32_t term_count;
    struct {
        uint32_t first, last;        /* inclusive */
        uint32_t modulus, remainder; /* modulus 0: every number of the range */
    } terms[CDDP_SELECTOR_TERMS_MAX];
} cddp_selector;

CDDP_API bool cddp_selector_has(const cddp_selector *selector, uint32_t number);

typedef struct cddp_text_list {
    const char *const *items;
    size_t count;
} cddp_text_list;

typedef struct cddp_f64_list {
    const double *items;
    size_t count;
} cddp_f64_list;

typedef struct cddp_u32_list {
    const uint32_t *items;
    size_t count;
} cddp_u32_list;

/* ---- what every rank has, and what [[rank]] tables may change for some of them ---- */

typedef struct cddp_plan_model {
    const char *name;
    const char *options; /* "key=value,…" as the model documents them */
    int64_t dtype;       /* cddp_dtype */
    int64_t device;      /* cddp_plan_model_device */
    /* cddp_plan_model_memory: of numbers, the device that the backend brings, if any, or the
    ** host's */
    int64_t memory;
    int64_t layout;        /* cddp_plan_model_layout: of parameters of four dimensions */
    int64_t init;          /* cddp_plan_model_init: distinct: its own values on every rank */
    bool exact;            /* values on a dyadic grid, so that sums do not round */
    cddp_text_list freeze; /* patterns of parameters that do not require grad */
    cddp_text_list ignore; /* parameters_and_buffers_to_ignore */
} cddp_plan_model;

typedef struct cddp_plan_ddp {
    bool broadcast_buffers, init_sync, find_unused_parameters, gradient_as_bucket_view,
        static_graph;
    bool skip_all_reduce_unused_params, batched_grad_copy, set_last_bucket_cap;
    /* "NAME" or "NAME:options", in place of the whole of hook; "no": none; NULL: hook decides */
    const char *comm_hook;
    bool accumulate_in_hook, average_contributions, strict;
    double bucket_cap_mb;
    cddp_f64_list bucket_cap_mb_list;
    uint64_t first_bucket_bytes;
    cddp_text_list delay_all_reduce_named_params; /* patterns (DEL-01) */
    const char *param_to_hook_all_reduce;         /* the trigger, or NULL */
} cddp_plan_ddp;

/* The dtypes of DDP's own mixed precision (MIX-01). */
typedef struct cddp_plan_mixed_precision {
    int64_t param_dtype;  /* cddp_plan_mixed_precision_param_dtype, none: full precision */
    int64_t reduce_dtype; /* cddp_plan_mixed_precision_reduce_dtype */
    int64_t buffer_dtype; /* cddp_plan_mixed_precision_buffer_dtype */
} cddp_plan_mixed_precision;

typedef struct cddp_plan_hook {
    const char *name;    /* NULL: none, the reducer divides and all-reduces */
    const char *options; /* "key=value,…" or NULL */
    const char *inner;   /* wrappers: the wrapped hook; else NULL */
    /* cddp_plan_hook_comm_hook (ACC-01), in place of name */
    int64_t comm_hook;
    int64_t comm_wrapper;          /* cddp_plan_hook_comm_wrapper */
    const char *comm_state_option; /* of the PowerSGD hooks, or NULL */
    int64_t continuations;         /* cddp_plan_hook_continuations */
} cddp_plan_hook;

typedef struct cddp_plan_averager {
    int64_t kind;           /* cddp_plan_averager_kind */
    const char *levels;     /* "4", or "2:2/4:4/8"; or NULL */
    cddp_text_list periods; /* "pattern=period" of parameters with their own period */
    uint64_t warmup_steps;
} cddp_plan_averager;

typedef struct cddp_plan_train {
    uint64_t steps;       /* optimizer steps */
    uint64_t micro_steps; /* forwards and backwards per step; all but the last run under no_sync */
    int64_t zero_grad;    /* cddp_plan_train_zero_grad */
    int64_t loss;         /* cddp_plan_train_loss: what weighs a sample */
    int64_t objective;    /* cddp_plan_train_objective: what the training is meant to compute */
    double lr_decay;      /* factor on every optimizer's learning rate per step */
    /* virtual cost of one forward, and of each gradient or of all */
    uint64_t forward_us, backward_us;
    /* cddp_plan_train_backward_split */
    int64_t backward_split;
    bool offloaded;           /* forward and backward are waited for, not computed */
    double pass_us_per_mb;    /* virtual cost of copying or dividing 10^6 bytes of gradients */
    uint64_t checkpoint_step; /* save after so many steps; 0: never */
    bool resume;              /* after the checkpoint: throw everything away, rebuild and load it */
} cddp_plan_train;

/* Gradients and buckets on a device whose operations are queued (the simulator's). */
typedef struct cddp_plan_streams {
    /* streams on which gradients are produced, in turn; 0: none, every operation is over at once */
    uint64_t producers;
    uint64_t operation_us; /* virtual time of a queued operation */
} cddp_plan_streams;

typedef struct cddp_plan_data {
    uint64_t samples;      /* per rank and micro-step */
    uint64_t dataset_size; /* of an epoch; 0: the run is one epoch */
    int64_t padding;       /* cddp_plan_data_padding */
    bool shuffle;          /* a new order every epoch */
    uint64_t inputs;       /* steps for which this rank has inputs; 0: all (join) */
} cddp_plan_data;

typedef struct cddp_plan_amp {
    bool enable;
    double init_scale, growth_factor, backoff_factor;
    uint64_t growth_interval;
} cddp_plan_amp;

typedef struct cddp_plan_clip {
    double max_norm;  /* 0: no clipping */
    double norm_type; /* p of the norm; infinity: the largest magnitude */
    int64_t place;    /* cddp_plan_clip_place */
    /* NULL: by the norm of what the rank has; else of what it updates, over these ranks */
    const char *group;
} cddp_plan_clip;

typedef struct cddp_plan_join {
    bool enable, divide_by_initial_world_size, throw_on_early_termination,
        broadcast_optimizer_state;
    uint64_t epochs; /* join contexts that train.steps are cut into */
} cddp_plan_join;

/* How a rank tries to meet the others at the store. */
typedef struct cddp_plan_agent {
    uint64_t late_ms;    /* before its first meeting */
    uint64_t timeout_ms; /* of an attempt */
    uint64_t attempts, backoff_ms;
} cddp_plan_agent;

/* How a rank finds its part of a sharded optimizer. */
typedef struct cddp_plan_shard {
    int64_t order;   /* cddp_plan_shard_order */
    int64_t padding; /* cddp_plan_shard_padding */
} cddp_plan_shard;

/* A fully sharded model in place of a wrapped one. */
typedef struct cddp_plan_fsdp {
    bool enable;
    int64_t sharding_strategy; /* cddp_plan_fsdp_sharding_strategy */
    int64_t layout;            /* cddp_plan_fsdp_layout */
    int64_t auto_wrap_policy;  /* cddp_plan_fsdp_auto_wrap_policy */
    uint64_t min_num_params;
    uint64_t shard_group_size; /* of a hybrid strategy; else 0 */
    cddp_text_list wrap_modules;
    int64_t backward_prefetch; /* cddp_plan_fsdp_backward_prefetch */
    bool forward_prefetch, sync_module_states, use_orig_params;
    int64_t order_check; /* cddp_plan_fsdp_order_check */
    cddp_text_list unit_precision;
    bool cast_forward_inputs, cast_root_forward_inputs;
    int64_t output_dtype; /* cddp_plan_fsdp_output_dtype */
    bool keep_low_precision_grads;
    int64_t state_dict_type; /* cddp_plan_fsdp_state_dict_type */
    bool rank0_only;
    int64_t resume_strategy; /* cddp_plan_fsdp_resume_strategy: that of sharding_strategy, + 1 */
    uint64_t resume_shard_group_size;
    int64_t resume_layout; /* cddp_plan_fsdp_resume_layout: that of layout, + 1 */
    bool limit_all_gathers, cpu_offload;
    int64_t device_id; /* cddp_plan_fsdp_device_id */
} cddp_plan_fsdp;

/* Stages of ZeRO in DeepSpeed's words. */
typedef struct cddp_plan_zero {
    uint64_t stage; /* 0: none */
    uint64_t reduce_bucket_size, mics_shard_size;
    uint64_t stage3_prefetch_bucket_size, stage3_max_live_parameters,
        stage3_param_persistence_threshold;
    bool overlap_comm, contiguous_gradients;
} cddp_plan_zero;

typedef struct cddp_plan_settings {
    cddp_plan_model model;
    cddp_plan_ddp ddp;
    cddp_plan_mixed_precision mixed_precision;
    cddp_plan_hook hook;
    cddp_plan_averager averager;
    cddp_plan_train train;
    cddp_plan_streams streams;
    cddp_plan_data data;
    cddp_plan_amp amp;
    cddp_plan_clip clip;
    cddp_plan_join join;
    cddp_plan_agent agent;
    cddp_plan_shard shard;
    cddp_plan_fsdp fsdp;
} cddp_plan_settings;

/* One line of a [[rank]] table: on these ranks, this key has this value. */
typedef struct cddp_plan_override {
    cddp_selector ranks;
    const char *key;    /* "ddp.find_unused_parameters", "optimizer.lr" */
    int64_t element;    /* which [[optimizer]] has it; -1: all, or a key of no such table */
    uint64_t wrapper;   /* which [[wrapper]] has it, from 1; 0: every one */
    const char *value;  /* as text */
    const void *parsed; /* in the representation of the key's field */
} cddp_plan_override;

/* ---- tables that may appear several times ---- */

/* One of several DDP wrappers in each rank, with its own model. Settings that differ from those of
** the scenario are overrides. */
#define CDDP_PLAN_WRAPPERS_MAX 32
typedef struct cddp_plan_wrapper {
    const char *name;
    bool own_group; /* its own process group over the ranks of the world */
} cddp_plan_wrapper;

typedef struct cddp_plan_optimizer {
    const char *name;
    const char *wrapper;       /* whose; NULL: of every wrapper */
    int64_t kind;              /* cddp_plan_optimizer_kind */
    cddp_text_list parameters; /* patterns; empty: all */
    cddp_selector steps;       /* when it steps */
    double lr, momentum, dampening, weight_decay, beta1, beta2, eps;
    bool nesterov;
    bool in_backward; /* steps on each bucket as soon as it is averaged (OIB-01) */
    /* cddp_plan_optimizer_overlap */
    int64_t overlap;
    bool shard_buckets; /* a bucket may be cut between ranks (ZRO-12) */
    /* cddp_plan_optimizer_shard: none, whole parameters (ZRO-01), slices of one vector */
    int64_t shard;
} cddp_plan_optimizer;

typedef struct cddp_plan_group {
    const char *name;
    cddp_u32_list members;
} cddp_plan_group;

/* A collective that the training program issues by itself, between those of the reducer. */
typedef struct cddp_plan_collective {
    const char *wrapper; /* in whose iteration */
    cddp_selector ranks, steps;
    const char *group; /* NULL: the group of the reducer */
    int64_t op;        /* cddp_plan_collective_op */
    int64_t reduction; /* cddp_plan_collective_reduction */
    bool in_place;     /* allreduce, reduce: the result is written over the input */
    int64_t place;     /* cddp_plan_collective_place */
    uint64_t numel;
    int64_t dtype; /* cddp_dtype */
    uint64_t root; /* also the other rank of a message */
} cddp_plan_collective;

/* An output whose loss is not that of the others. */
typedef struct cddp_plan_output {
    const char *name;
    const char *wrapper; /* whose model has it; NULL: every one */
    int64_t loss;        /* cddp_plan_output_loss */
    int64_t objective;   /* cddp_plan_output_objective */
    double weight;
} cddp_plan_output;

/* A [[when]] table: at these places the iteration differs. Fields keep CDDP_PLAN_UNSET where not
** given; of several tables that apply, the last one decides each field. */
#define CDDP_PLAN_UNSET INT64_MIN
typedef struct cddp_plan_when {
    const char *wrapper; /* in whose iteration; NULL: in every one */
    /* names: the turns of a step in this order; none: as [[wrapper]] tables stand */
    cddp_text_list wrappers;
    cddp_selector ranks, steps, micro_steps;
    int64_t sync;          /* the sync flag as forward sees it */
    int64_t sync_backward; /* the flag as it is around backward (FWD-03); follows sync */
    int64_t forwards;      /* 1; forwards before the backward */
    int64_t backwards;     /* 1; 0 forward only, 2 again over the retained graph */
    /* with forwards > 1: a backward per forward instead of one through the sum */
    int64_t backward_each;
    int64_t loss_each; /* a backward per output instead of one through the sum of their losses */
    int64_t grad_mode; /* 1; 0: under no_grad */
    int64_t bypass;    /* 1: forward of the inner module, the wrapper is not armed */
    int64_t evaluate;  /* cddp_plan_when_evaluate: before the forward */
    int64_t samples;
    int64_t branch;         /* which way control flow goes */
    cddp_text_list outputs; /* names of the outputs that enter the loss; none: all */
    cddp_text_list uses;    /* "unit=2": how often a unit of the model runs */
    /* cddp_plan_when_ready */
    int64_t ready;
    cddp_text_list ready_order; /* parameter names, first ready first */
    /* cddp_plan_when_skip: what of the micro-step */
    int64_t skip;
    int64_t stop;      /* 1: this rank leaves the loop before this step */
    const char *group; /* the wrapper's process group from here on; NULL: as before */
    int64_t poison;    /* cddp_plan_when_poison: what a local gradient becomes */
    const char *poison_parameter;
    int64_t abort_after;      /* leave the backward after so many gradients */
    int64_t early_step;       /* 1: the optimizer steps before backward ended */
    int64_t touch_buffers;    /* 1: this rank adds its rank number to every buffer before forward */
    int64_t touch_parameters; /* 1: this rank adds 1 to every parameter after the step */
    /* patterns of parameters whose requires_grad changes here, for good */
    cddp_text_list freeze, unfreeze;
    /* patterns: a new parameter takes the place of the wrapped one, for good */
    cddp_text_list replace_parameters;
    /* 1: every buffer is replaced by an equal one before the forward (BUF-01) */
    int64_t replace_buffers;
    int64_t create_graph; /* 1: backward with create_graph (GRD-09) */
    /* 0: the default stream does not wait for the one that produced a gradient */
    int64_t await_producers;
    /* cddp_plan_when_statistics, of synchronised batch norm */
    int64_t statistics;
    /* 1; contexts entered for a forward inside no_sync, all but the outer one left again before it
    ** (NSY-01) */
    int64_t no_sync_depth;
    int64_t compute_us; /* extra time before the forward */
} cddp_plan_when;

typedef struct cddp_plan_fault {
    const char *kind;   /* as `cddp-verify list faults` names them */
    int64_t when;       /* cddp_plan_fault_when: a time, or around a collective or a try to join */
    int64_t rank, peer; /* CDDP_PLAN_UNSET: none */
    int64_t joiner;     /* CDDP_PLAN_UNSET: the rank itself */
    cddp_selector side; /* partition: the ranks on one side */
    uint64_t at;        /* nanoseconds of virtual time, or a collective, or a join */
    uint64_t duration_ns, amount;
    bool optional;
} cddp_plan_fault;

/* ---- the circumstances ---- */

typedef struct cddp_plan_world {
    uint64_t size;
    uint64_t seed;
    const char *backend;
    const char *backend_options;
    /* samples of a step over all ranks, assigned one by one; 0: as train and data define */
    uint64_t batch;
    uint64_t timeout_ms;     /* of every operation; 0: the backend's */
    uint64_t in_flight_max;  /* slots per rank; 0: unbounded */
    uint64_t sequence_start; /* number of every group's first operation */
} cddp_plan_world;

/* The simulator's cluster; transports of the real world bring their own. */
typedef struct cddp_plan_network {
    int64_t transport;                        /* cddp_plan_network_transport */
    int64_t completion;                       /* cddp_plan_network_completion */
    const char *algorithm;                    /* of all-reduce */
    const char *link;                         /* between ranks, or between nodes */
    double gb_per_s, latency_us, overhead_us; /* of link; 0: the preset's */
    const char *intra_link;                   /* inside a node */
    const char *bus;                          /* between a GPU and its host and network card */
    double host_gb_per_s, connection_gb_per_s, launch_us;
    double intra_latency_us; /* of intra_link; 0: the preset's */
    uint64_t ranks_per_node, nics_per_node, piece_kib, compute_permille, jitter_ns;
} cddp_plan_network;

/* The store through which simulated ranks meet whenever a group is made. */
typedef struct cddp_plan_rendezvous {
    bool enable, generations;
    uint64_t host; /* the rank that serves it */
} cddp_plan_rendezvous;

typedef struct cddp_plan_schedule {
    const char *chooser; /* "fifo" "random" "replay" */
    /* cddp_plan_schedule_ready */
    int64_t ready;
    /* cddp_plan_schedule_turns: of several wrappers */
    int64_t turns;
    uint64_t delay_permille; /* computing may take this much longer, by choice */
    const char *string;      /* replay: the choices, else NULL */
} cddp_plan_schedule;

/* ---- what is expected ---- */

typedef struct cddp_plan_finding {
    const char *check;
    int64_t rank, step, bucket; /* CDDP_PLAN_UNSET: any */
    const char *wrapper;        /* NULL: any */
    const char *parameter;      /* NULL: any */
    const char *words;          /* must appear in the title or a side; NULL: any */
} cddp_plan_finding;

typedef struct cddp_plan_expect {
    int64_t verdict;          /* cddp_plan_expect_verdict */
    cddp_text_list error;     /* each must appear in the error of some rank */
    cddp_text_list also;      /* checks that may report besides the findings named */
    cddp_text_list exercised; /* checks that must have had something to judge */
    cddp_text_list marks;     /* coverage marks that must be reached */
    cddp_text_list same_with; /* settings with which the run must end with the same parameters */
    const cddp_plan_finding *findings;
    size_t finding_count;
} cddp_plan_expect;

typedef struct cddp_plan_memory cddp_plan_memory;

typedef struct cddp_plan {
    uint32_t size;      /* sizeof(cddp_plan) known to the writer */
    const char *source; /* the file it came from, or NULL */
    const char *text;   /* the whole file as read, for provenance, or NULL */
    int64_t schema;
    const char *title;
    const char *about;
    cddp_text_list tags; /* the statements it exercises: "UNU-04", "TI-B-03", "ZOO-19" */
    cddp_plan_world world;
    cddp_plan_network network;
    cddp_plan_schedule schedule;
    cddp_plan_rendezvous rendezvous;
    cddp_plan_settings settings;
    const cddp_plan_override *overrides;
    size_t override_count;
    const cddp_plan_optimizer *optimizers;
    size_t optimizer_count;
    const cddp_plan_output *outputs;
    size_t output_count;
    const cddp_plan_group *groups;
    size_t group_count;
    const cddp_plan_collective *collectives;
    size_t collective_count;
    const cddp_plan_when *whens;
    size_t when_count;
    const cddp_plan_fault *faults;
    size_t fault_count;
    cddp_plan_expect expect;
    cddp_plan_memory *memory;
    const cddp_plan_wrapper *wrappers;
    size_t wrapper_count;
    cddp_plan_zero zero;
} cddp_plan;

/* Every default in force: model mlp, two ranks, the simulator, plain SGD, expected to be
** verified. */
CDDP_API cddp_status cddp_plan_create(const cddp_allocator *allocator, cddp_plan **plan,
                                      cddp_error *err) CDDP_MUST_CHECK;
CDDP_API void cddp_plan_destroy(cddp_plan *plan); /* accepts NULL */

/* Sets one key from text, as `--set ddp.bucket_cap_mb=1` does. Elements of tables that repeat are
** named by position and made when it is the next one: "optimizer.0.lr", "when.2.sync".
** "ddp.static_graph@0-3" changes the key for these ranks only. Lists are separated by commas. */
CDDP_API cddp_status cddp_plan_set(cddp_plan *plan, const char *key, const char *value,
                                   cddp_error *err) CDDP_MUST_CHECK;

/* Refuses contradictions, naming both keys. */
CDDP_API cddp_status cddp_plan_check(const cddp_plan *plan, cddp_error *err) CDDP_MUST_CHECK;

/* The settings of one rank: the common ones with the overrides for it applied. Strings are the
** plan's. */
CDDP_API cddp_status cddp_plan_rank_settings(const cddp_plan *plan, uint32_t rank,
                                             cddp_plan_settings *settings,
                                             cddp_error *err) CDDP_MUST_CHECK;

/* Equal for equal plans on every machine; titles, tags and expectations do not count. */
CDDP_API uint64_t cddp_plan_digest(const cddp_plan *plan);

/* What one [[wrapper]] of a plan trains, as a plan with that wrapper alone: its settings, and of
** the tables that repeat what is said of it or of all. Its seed is the plan's plus its index, so
** that no two wrappers have equal values. A plan without [[wrapper]] has one, like itself. It
** borrows from the plan, cannot be changed, and is freed by cddp_plan_destroy. */
CDDP_API size_t cddp_plan_wrapper_count(const cddp_plan *plan);
CDDP_API cddp_status cddp_plan_of_wrapper(const cddp_plan *plan, size_t index,
                                          const cddp_allocator *allocator, cddp_plan **of_wrapper,
                                          cddp_error *err) CDDP_MUST_CHECK;

/* ---- the key table ---- */

typedef struct cddp_key_info {
    uint32_t size;
    char path[64]; /* "ddp.bucket_cap_mb"; "when[].sync" in a table that repeats */
    cddp_key_type type;
    const char *choices; /* "none|zero|keep", or NULL */
    const char *initial; /* the default as text; "" when there is none */
    double low, high;    /* of numbers */
    bool per_rank;       /* may stand in a [[rank]] table */
    const char *doc;
} cddp_key_info;

/* The i-th key in the order of the documentation; false past the end. */
CDDP_API bool cddp_plan_key(size_t index, cddp_key_info *info);

#ifdef __cplusplus
}
#endif
