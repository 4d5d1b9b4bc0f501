/* SPDX-License-Identifier: Apache-2.0 */
/* One NCCL group inside this process, and the declarations that its files share.
**
** Streams    a group has its own stream, on which its operations run in order of posting:
**
**     caller's stream   … writes the input ── ready ─┐                  ┌── done ── reads output …
**     group's stream                                 └─ the operation ──┘
**
**            post records ready, and done comes after the operation. The group's stream waits for
**            ready; at wait the caller's stream waits for done. The host waits for neither.
** Host data  tensors in host memory travel through pinned memory and the GPU; their wait blocks.
** Messages   send and recv are postponed until a wait, a test or a collective needs them, and are
**            then issued together. So ranks that all send before they receive do not block each
**            other.
** Locks      `lock` guards the communicator, the lists and the watch. The watchdog takes it too. No
**            thread waits for the GPU or for a peer while holding it.
*/
#pragma once
#include <nccl.h>

#include "backends/nccl/cuda.h"
#include "backends/nccl/watch.h"
#include "cddp/backend.h"
#include "cddp/rendezvous.h"

typedef struct cd_nccl_group cd_nccl_group;

/* An operand: device memory, either the caller's or a stand-in for host memory. */
typedef struct cd_nccl_operand {
    char *data;
    size_t bytes;
    void *device; /* the stand-in, (bytes), or NULL */
    void *pinned; /* its host side, (bytes) */
} cd_nccl_operand;

typedef struct cd_nccl_work {
    struct cd_nccl_work *next; /* in its list: free or in flight (oldest first) */
    cddp_collective call;      /* counts and send_counts point into `counts` */
    int64_t *counts;           /* (2 × group size), kept with the work */
    cd_nccl_operand in, out;
    cudaEvent_t ready, done;
    uint64_t posted_ns, deadline_ns;
    bool issued;     /* done was recorded */
    bool on_host;    /* its wait blocks the host */
    bool is_ordered; /* the caller's stream waits for done, or the caller saw that it is */
    bool released;   /* the caller released it; the GPU may still use it */
} cd_nccl_work;

struct cd_nccl_group {
    const cddp_allocator *allocator; /* rendezvous of the rank that opened it */
    cd_cuda *cuda;
    ncclComm_t comm;
    cudaStream_t stream;
    const cddp_rendezvous *rendezvous;
    char name[128];
    char prefix[200]; /* of rendezvous keys */
    uint32_t rank, size;
    uint32_t *members; /* (size) world ranks */
    uint64_t timeout_ns;
    bool guard;
    char split_of[128];              /* the group to split from; "": none */
    cd_nccl_group *next_open;        /* next in the process's list, for split */
    void *guard_device, *guard_host; /* (size + 1) fingerprints */
    void *flag;                      /* 4 bytes of device memory for barriers */
    pthread_mutex_t lock;
    pthread_cond_t wake; /* ends the watchdog, at close */
    pthread_t watchdog;
    bool watchdog_runs, closing;
    bool comm_aborted;
    bool loses;    /* it was aborted with an operation in flight */
    bool observes; /* it registered the tracer that gets the device's events */
    cd_watch watch;
    cd_nccl_work *in_flight, *in_flight_last, *free_works;
};

/* ---- nccl_types.c ---- */
/* False when NCCL has no such type or operation. */
bool cd_nccl_type(cddp_dtype dtype, ncclDataType_t *type);
bool cd_nccl_red_op(cddp_red_op op, ncclRedOp_t *nccl); /* AVG and PREMUL_SUM use a sum */
/* The same as bit sets, for the capabilities. */
#define CD_NCCL_DTYPES                                                                 \
    (CDDP_DTYPE_BIT(CDDP_F64) | CDDP_DTYPE_BIT(CDDP_F32) | CDDP_DTYPE_BIT(CDDP_F16) |  \
     CDDP_DTYPE_BIT(CDDP_BF16) | CDDP_DTYPE_BIT(CDDP_I64) | CDDP_DTYPE_BIT(CDDP_I32) | \
     CDDP_DTYPE_BIT(CDDP_U8))
#define CD_NCCL_RED_OPS                                                                  \
    (1u << CDDP_RED_SUM | 1u << CDDP_RED_AVG | 1u << CDDP_RED_MIN | 1u << CDDP_RED_MAX | \
     1u << CDDP_RED_PRODUCT | 1u << CDDP_RED_PREMUL_SUM)
cddp_status cd_nccl_fail(const cd_nccl_group *group, ncclResult_t code, const char *what,
                         cddp_error *err) CDDP_MUST_CHECK;
/* A factor in NCCL's form: one element of the dtype. */
typedef union cd_nccl_factor {
    double f64;
    float f32;
    uint16_t bits16;
    int64_t i64;
    int32_t i32;
    uint8_t u8;
} cd_nccl_factor;
cd_nccl_factor cd_nccl_factor_of(cddp_dtype dtype, double value);

/* ---- nccl_backend.c ---- */
/* Aborts the communicator, once. Under the lock. */
void cd_nccl_abort(cd_nccl_group *group);

/* ---- nccl_world.c ---- */
/* Chooses this rank's GPU from the host names of all ranks, then opens the group's
** communicator. */
cddp_status cd_nccl_world_open(cd_nccl_group *group, const cddp_rank *rank,
                               cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_nccl_comm_open(cd_nccl_group *group, const cd_nccl_group *parent,
                              cddp_error *err) CDDP_MUST_CHECK;
/* Waits until a non-blocking call of NCCL is complete; at the deadline it aborts the
** communicator. While the watchdog runs the caller holds the lock, which is given up between two
** looks: an abort, or the watchdog, ends this wait too. */
cddp_status cd_nccl_settle(cd_nccl_group *group, ncclResult_t code, const char *what,
                           uint64_t deadline_ns, cddp_error *err) CDDP_MUST_CHECK;
/* The same for the call of an operation, with its name, number and deadline. */
cddp_status cd_nccl_settle_work(cd_nccl_group *group, ncclResult_t code, const cd_nccl_work *work,
                                cddp_error *err) CDDP_MUST_CHECK;

typedef struct cd_nccl_place {
    uint32_t local_rank, local_count; /* index among the ranks of this host */
    uint32_t gpu_count;
    bool one_host; /* the whole world is on one host */
    bool shared;   /* some host has more ranks than GPUs */
} cd_nccl_place;
/* hosts: (world_size) "host/first_gpu gpu_count" of each rank. Pure. */
cddp_status cd_nccl_place_of(const char *const *hosts, uint32_t world_size, uint32_t rank,
                             cd_nccl_place *place, cddp_error *err) CDDP_MUST_CHECK;

/* ---- nccl_operation.c: under the group's lock ---- */
cddp_status cd_nccl_issue(cd_nccl_group *group, cd_nccl_work *work,
                          cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_nccl_issue_messages(cd_nccl_group *group, cddp_error *err) CDDP_MUST_CHECK;

/* ---- guard.c: blocks the host ---- */
cddp_status cd_nccl_guard(cd_nccl_group *group, const cd_nccl_work *work,
                          cddp_error *err) CDDP_MUST_CHECK;
