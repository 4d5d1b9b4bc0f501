/* SPDX-License-Identifier: Apache-2.0 */
/* The backend port: collectives and point-to-point messages over some transport.
**
** A backend is a table of functions. open makes one group; a post function starts an operation and
** returns a work handle at once; test, wait and abort act on the handle; release gives it back.
** Operations of one group take effect in the order in which they are posted (C10-03).
**
** Lifetime   the table outlives every group; a group outlives its works; tensors named in a post
**            stay alive and untouched until the work completed (C10-04).
** Threads    a group is used by one thread (the rank's); a backend may use its own threads inside.
** Errors     every function fills *err. A failed or aborted work leaves its outputs undefined.
*/
#pragma once
#include "cddp/device.h"
#include "cddp/trace.h"
#include "cddp/world.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CDDP_BACKEND_ABI 1u

typedef enum cddp_op {
    CDDP_OP_ALLREDUCE,
    CDDP_OP_BROADCAST,
    CDDP_OP_ALLGATHER,
    CDDP_OP_REDUCE_SCATTER,
    CDDP_OP_REDUCE,
    CDDP_OP_GATHER,
    CDDP_OP_SCATTER,
    CDDP_OP_ALLTOALL,
    CDDP_OP_SEND,
    CDDP_OP_RECV,
    CDDP_OP_BARRIER,
    CDDP_OP_COUNT
} cddp_op;

/* One operation. Its fields depend on op:
**   allreduce       input (n) → output (n); may be the same memory when the backend declares
**                   in_place
**   broadcast       output (n), in place, from root
**   allgather       input (counts[rank] or n) → output (sum of counts, or W·n), in rank order; with
**                   in_place the input may be this rank's share of the output
**   reduce_scatter  input (sum of counts, or W·n) → output (counts[rank] or n); with in_place the
**                   output may be this rank's share of the input, whose other shares stay
**   reduce          input (n) → output (n) on root only; other ranks' outputs are untouched
**   gather          input (n) → output (W·n) on root only
**   scatter         input (W·n) on root → output (n)
**   alltoall        input (sum of send_counts) → output (sum of counts), split per peer
**   send, recv      input, or output; root is the peer; tag pairs them
**   barrier         no tensors
** Tensors are contiguous. counts, send_counts: (world_size) elements per rank, or NULL for equal
** shares; cddp_group_post copies them, and a backend may read them until the work is released. */
typedef struct cddp_collective {
    uint32_t size; /* sizeof(cddp_collective) known to the writer */
    cddp_op op;
    cddp_red_op reduce_op;
    uint32_t root;     /* rank within the group */
    uint64_t sequence; /* position in the group's order of issue, assigned by cddp_group */
    uint64_t tag;
    double premultiplier; /* PREMUL_SUM */
    cddp_tensor input;
    cddp_tensor output;
    const int64_t *counts;
    const int64_t *send_counts;
    cddp_stream *stream; /* devices with streams: input is ready and output is wanted on this one */
    uint64_t timeout_ns; /* 0: the group's */
    /* the caller's own mark for traces (bucket index + 1, or 0); never interpreted */
    uint64_t label;
    /* set by cddp_group: the program can write to the tensors while the operation runs, and a
    ** recorder wants to know. A backend with digest_read and digest_written takes both digests. */
    bool is_watched;
} cddp_collective;

/* The promises of a result. They are data, so that no caller compares backend names. */
typedef cddp_event_enum_order cddp_order; /* CDDP_ORDER_UNSPECIFIED, … */

typedef struct cddp_capabilities {
    uint32_t size;
    uint32_t ops;        /* bit per cddp_op */
    uint32_t dtypes;     /* CDDP_DTYPE_BIT per dtype that reductions accept */
    uint32_t reduce_ops; /* bit per cddp_red_op */
    /* CDDP_DEVICE_HOST when host storage works; CDDP_DEVICE_ASYNC when device storage does; 0
    ** together with any_device: goes through the device table alone */
    uint32_t devices;
    bool any_device;
    bool in_place;
    bool async; /* post returns before completion and progress needs no further calls */
    cddp_order order;
    /* "gloo_ring", "flat", … of the order of additions, a promise that the judge verifies. With
    ** CDDP_ORDER_SAME several with a bar between two: each all-reduce has one of them; NULL: none.
    ** A name that is not known promises nothing. */
    const char *algorithm;
    uint32_t world_size_max;
    bool guards; /* understands the group option guard=1: fingerprints before each collective */
} cddp_capabilities;

typedef struct cddp_group_spec {
    uint32_t size;
    const char *name;    /* unique among live groups of the world */
    uint32_t group_rank; /* this process within the group */
    uint32_t group_size;
    const uint32_t *members; /* (group_size) world ranks in group order; borrowed during open */
    uint64_t timeout_ns;     /* default of every operation; 0: the backend's (C10-05) */
    uint32_t in_flight_max;  /* bounded slots per rank; 0: unbounded */
    const char *options;     /* backend-specific "key=value,…", or NULL */
} cddp_group_spec;

/* Starts ranks where the transport must start them itself (mpirun): processes that cddp forks are
** no ranks of it. */
typedef const char *(*cddp_environment_fn)(const char *variable);

typedef struct cddp_launcher {
    uint32_t size;    /* sizeof(cddp_launcher) known to the writer */
    const char *name; /* for reports: "mpirun of Open MPI" */
    /* environment gives the value of a variable, or NULL: the program reads it, nobody else. */

    /* (required) does: writes the command that starts world_size copies of a program on this
    ** machine, one argument per line. The program and its arguments are appended. Lines NAME=VALUE
    ** in front are for its environment. blocks: no. */
    cddp_status (*command)(uint32_t world_size, cddp_environment_fn environment, char *words,
                           size_t words_bytes, cddp_error *err);
    /* (required) does: writes this process's rank; false when this launcher did not start it.
    ** blocks: no. *one_host: all ranks are on this machine. */
    bool (*identity)(cddp_environment_fn environment, uint32_t *rank, uint32_t *world_size,
                     bool *one_host);
    /* (required) does: ends the transport in this process. called when: all groups are closed, on
    ** every rank. blocks: until all ranks are there. */
    void (*leave)(void);
    /* It ends all ranks as soon as one has died, before the first one can be found. A rank that
    ** cddp starts then runs in a child of the process that the launcher watches. */
    bool ends_all;
} cddp_launcher;

typedef struct cddp_backend {
    uint32_t size; /* sizeof(cddp_backend) known to the writer */
    uint32_t abi;  /* CDDP_BACKEND_ABI */
    const char *name;
    cddp_capabilities capabilities;
    void *self; /* the backend's own state: the simulated cluster, a rendezvous, … */

    /* (required) does: joins a group; every member calls it. blocks: until all are there or the
    ** time-out. ownership: *group is closed by close. */
    cddp_status (*open)(const struct cddp_backend *backend, cddp_rank *rank,
                        const cddp_group_spec *spec, void **group, cddp_error *err);
    void (*close)(void *group); /* (required) accepts NULL; outstanding works are aborted */

    /* (required) does: starts one operation. blocks: no. ownership: *work goes back through
    ** release. An op that capabilities.ops does not name never arrives here. */
    cddp_status (*post)(void *group, const cddp_collective *collective, void **work,
                        cddp_error *err);
    /* (required) does: has it ended? *done is written; a failed operation returns its failure.
    ** blocks: no. */
    cddp_status (*test)(void *group, void *work, bool *done, cddp_error *err);
    /* (required) does: waits at most timeout_ns (0: the operation's own). For stream devices it
    ** orders the collective's stream instead of blocking the host. */
    cddp_status (*wait)(void *group, void *work, uint64_t timeout_ns, cddp_error *err);
    /* (required) does: releases a work. called when: it ended, its wait failed or timed out, the
    ** group was aborted, or the caller abandoned it; in the last cases the backend keeps what its
    ** transport still needs. The tensors belong to the caller again, also after a failed operation:
    ** nothing reads or writes them later. */
    void (*release)(void *group, void *work);
    /* (optional: default refuses) does: fails every outstanding operation of the group, here and,
    ** where the transport can, on the peers. The group accepts only close afterwards. */
    cddp_status (*abort)(void *group, const char *reason, cddp_error *err);
    /* (optional: default makes no text) does: who is this work waiting for, for a hang report. */
    void (*describe)(void *group, void *work, char *text, size_t text_bytes);
    /* (optional: default finds nothing missing) does: checks this machine, and fails with a message
    ** that names what the backend lacks. called when: before ranks are started, in the process that
    ** will fork them; it leaves that process fit to fork. */
    cddp_status (*probe)(const struct cddp_backend *backend, cddp_error *err);
    /* Where tensors of this backend are best kept: the device that the backend brings. (optional:
    ** NULL, cpu) */
    const cddp_device *device;
    /* (optional: default NULL, cddp forks the ranks) */
    const cddp_launcher *launcher;
    /* (optional: default reports nothing) does: from now on reports to the tracer which device
    ** memory each stream touches, and which stream waits for which: memory, touch and order events
    ** (I-HB). called when: right behind open, in a group that has a tracer. blocks: no. ownership:
    ** the tracer is borrowed until close. */
    void (*observe)(void *group, cddp_tracer *tracer);
    /* (optional: default open, without events) does: the same as open, and reports to the tracer
    ** how the members meet: store_key, store_wait and store_done events. called when: in place of
    ** open. tracer: NULL, or borrowed until it returns. */
    cddp_status (*open_traced)(const struct cddp_backend *backend, cddp_rank *rank,
                               const cddp_group_spec *spec, cddp_tracer *tracer, void **group,
                               cddp_error *err);
    /* (optional: default 0) does: the digest, by its device, of what this member gave, as it was
    ** when the backend began to read it; 0: not known. So a program that writes into it before is
    ** not taken for a backend that reduces wrongly. called when: the work ended well, in a group
    ** that is observed. blocks: no. */
    int64_t (*digest_read)(void *group, void *work);
    /* (optional: default 0) does: likewise of what this member received, as it was when the
    ** operation ended; 0: not known. So a program that writes into it before it waits is not taken
    ** for a backend that delivers something else. A backend that knows of a write while it computed
    ** gives another digest than that of the result. called when: the work ended well, and its
    ** collective is_watched. blocks: no. */
    int64_t (*digest_written)(void *group, void *work);
} cddp_backend;

CDDP_API const char *cddp_op_name(cddp_op op); /* "allreduce" */

#ifdef __cplusplus
}
#endif
