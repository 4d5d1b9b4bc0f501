/* SPDX-License-Identifier: Apache-2.0 */
/* The comm hook port. A hook replaces the reducer's all-reduce of a bucket.
**
** It works exactly as in PyTorch (HOOK-01…13). A hook is called once per bucket per synchronised
** backward, in bucket order, with the flat buffer. It returns a future of the reduced bucket. The
** reducer then neither divides nor checks (HOOK-08).
**
** A future here is a chain of stages. A stage posts at most a few works and names the continuation
** that runs when they ended. The reducer advances the futures of all buckets at finalisation, in
** rounds: every bucket's first stage is awaited in bucket order and continued, then every second
** stage, and so on. So the order in which continuations post collectives is the same on every rank,
** whatever the timing.
**
** Lifetime   a bucket is borrowed until the future completed. State is created per rank and lives
**            as long as the reducer it is registered with.
** Threads    the rank's thread.
** Errors     a failure inside a hook surfaces from backward (HOOK-04).
*/
#pragma once
#include "cddp/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CDDP_HOOK_ABI 2u /* 2: a law that a hook states begins with its size (cddp_law) */
#define CDDP_PROMISE_NOTHING UINT64_MAX

enum {
    CDDP_HOOK_EXACT = 1u << 0,    /* equals plain pre-divided all-reduce bit for bit */
    CDDP_HOOK_LOSSY = 1u << 1,    /* obeys its own law instead */
    CDDP_HOOK_STATEFUL = 1u << 2, /* has state that a checkpoint must keep */
    CDDP_HOOK_LINEAR = 1u << 3,   /* may run on exact devices (symbol) */
    /* gives the exact mean, rounded once to nearest, ties to even: judged to half a unit in the
    ** last place, and to the bit where the mean lies half way */
    CDDP_HOOK_ROUNDED_ONCE = 1u << 5,
    /* casts to wire_dtype, divides there, sums, casts back: every step is predicted */
    CDDP_HOOK_CASTS_FIRST = 1u << 6,
    CDDP_HOOK_NO_COMM = 1u << 4, /* communicates nothing: replicas are expected to differ */
    /* A hook of a plugin that keeps the law of one of this build (docs/hooks.md) and reads that
    ** one's options: what comes out of each bucket is then judged as of that one. How it travels is
    ** the hook's own, and the random factors of its low rank too. */
    CDDP_HOOK_LAW_TOPK = 1u << 8,
    CDDP_HOOK_LAW_POWERSGD = 1u << 9,
    CDDP_HOOK_LAW_QUANTIZE_PER_TENSOR = 1u << 10,
    CDDP_HOOK_LAW_QUANTIZE_PER_CHANNEL = 1u << 11,
    CDDP_HOOK_LAWS = 15u << 8, /* all of these */
    /* Sparse buckets do not come to the hook: the reducer divides their rows by W and sums them, as
    ** it does without one. */
    CDDP_HOOK_SPARSE_PLAIN = 1u << 12
};

typedef struct cddp_grad_bucket {
    uint32_t size;
    uint32_t index;
    uint32_t bucket_count;
    bool is_last; /* index == bucket_count - 1, but see STA-04 for the first static-graph pass */
    uint32_t generation; /* 0 before the rebuild, 1 after (REB-10) */
    /* the flat bucket, 1-D; a real tensor of twice the length for c64 (SPA-05) */
    cddp_tensor buffer;
    uint32_t parameter_count;
    const uint32_t *parameter_ids; /* (parameter_count) variable indices */
    const int64_t *offsets;        /* (parameter_count) elements into buffer */
    const int64_t *lengths;        /* (parameter_count) elements */
    const cddp_tensor
        *gradients; /* (parameter_count) contiguous slices with the parameter's sizes: the
                                    ** strides of the parameter are ignored (HOOK-06) */
    const cddp_tensor *parameters; /* (parameter_count) the parameters themselves */
    /* a sparse bucket: its one gradient, of which the future names the sparse_result; else NULL
    ** (HOOK-12) */
    const cddp_grad *sparse;
} cddp_grad_bucket;

struct cddp_future;
/* does: the next stage. The works named in the future have ended. Either names new works and a next
** stage, or leaves future->next NULL and fills future->result. More than
** CDDP_FUTURE_IDLE_STAGES_MAX stages in a row that name a next one and no works are an error. */
typedef cddp_status (*cddp_stage_fn)(void *self, cddp_grad_bucket *bucket,
                                     struct cddp_future *future, cddp_error *err);

#define CDDP_FUTURE_WORKS_MAX 4
#define CDDP_FUTURE_IDLE_STAGES_MAX 1000
typedef struct cddp_future {
    uint32_t size;
    uint32_t work_count;
    cddp_work *works[CDDP_FUTURE_WORKS_MAX]; /* awaited, in this order, before next runs */
    cddp_stage_fn next;   /* NULL: the future is complete when the works have ended */
    cddp_tensor result;   /* the reduced bucket: as many elements as buffer, any dtype (HOOK-07) */
    uint64_t scratch[4];  /* the hook's own, between stages of this bucket */
    uint32_t idle_stages; /* counted by who runs the stages; not the hook's */
    /* A sparse bucket: the reduced rows and values, in place of `result`. The gradient borrows them
    ** until the parameter's next reduction (HOOK-12). */
    const cddp_grad *sparse_result;
} cddp_future;

typedef struct cddp_hook_context {
    uint32_t size;
    cddp_group *group; /* the group of the reducer (a documented deviation from HOOK-13) */
    const cddp_allocator *allocator;
    cddp_tracer *tracer;           /* may be NULL */
    const char *options;           /* "key=value,…" or NULL */
    const struct cddp_hook *inner; /* wrappers: the wrapped hook; else NULL */
    /* informational: W; hooks ignore the effective world size (JON-13) */
    uint64_t divide_factor;
    /* the reducer's accumulate_in_hook: gradients come through accumulate, buffers do not count */
    bool accumulates;
    /* with it: the divisor is the number of backwards of all ranks, not W */
    bool averages_contributions;
    /* of the sizes and dtypes of all variables in order; 0: not known. For saved states: */
    uint64_t model_digest;
    uint64_t parameter_count; /* that of another model is to be refused */
} cddp_hook_context;

/* Where state goes and comes from. Both return false when the medium failed. */
typedef struct cddp_state_writer {
    void *context;
    bool (*write)(void *context, const void *bytes, size_t byte_count);
} cddp_state_writer;
typedef struct cddp_state_reader {
    void *context;
    bool (*read)(void *context, void *bytes, size_t byte_count);
} cddp_state_reader;

typedef struct cddp_hook {
    uint32_t size; /* sizeof(cddp_hook) known to the writer */
    uint32_t abi;  /* CDDP_HOOK_ABI */
    const char *name;
    uint32_t flags; /* CDDP_HOOK_… */

    /* (optional: default no state) does: makes the state of one rank; refuses unknown options by
    ** name. */
    cddp_status (*create)(const cddp_hook_context *context, void **self, cddp_error *err);
    void (*destroy)(void *self); /* (optional with create) accepts NULL */
    /* (required) called when: the bucket is complete and it is its turn. blocks: no. */
    cddp_status (*run)(void *self, cddp_grad_bucket *bucket, cddp_group *group, cddp_future *future,
                       cddp_error *err);
    /* (optional) called when: buckets were rebuilt and indices now name other parameters
    ** (REB-10). */
    cddp_status (*rebuilt)(void *self, uint32_t bucket_count, cddp_error *err);
    /* (required for STATEFUL hooks) does: everything that a resumed run needs, and nothing of the
    ** group. A state that has just been loaded saves the bytes that it was loaded from. */
    cddp_status (*save)(void *self, const cddp_state_writer *writer, cddp_error *err);
    cddp_status (*load)(void *self, const cddp_state_reader *reader, cddp_error *err);
    /* CDDP_DTYPE_BIT of the one dtype that all its reductions have, whatever the bucket's; 0: the
    ** bucket's own. */
    uint32_t wire_dtype;
    /* (optional: default CDDP_PROMISE_NOTHING) called when: run is about to be. does: the most
    ** bytes that this bucket will give to collectives, until its future completes. Of the bucket
    ** only shapes and dtype count. hook-conformance holds the hook to it. */
    uint64_t (*promise)(const void *self, const cddp_grad_bucket *bucket);
    /* (optional, both or neither) for the reducer's accumulate_in_hook. called when: a backward
    ** begins, inside no_sync or not; and when a gradient has come into being: contiguous, as its
    ** slice of a bucket. The hook adds it up; the reducer then forgets it, except in the
    ** synchronising backward. run takes what was added since the last run. */
    void (*begin_backward)(void *self);
    cddp_status (*accumulate)(void *self, uint32_t variable, const cddp_tensor *gradient,
                              cddp_error *err);
    /* (optional: default all) called when: a backward may begin. does: how many consecutive ranks
    ** of the group the next synchronised backward will give the same result: the mean over them,
    ** divided before the sum; 0: all. For local SGD, whose ranks drift apart on purpose. */
    uint32_t (*agreement)(const void *self);
} cddp_hook;

#ifdef __cplusplus
}
#endif
