/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA in this process: one GPU, its default stream, its memory, and the cuda device on top.
**
** A process uses one GPU, chosen once, and calls CUDA only when needed: a program may load this
** module and fork. The state belongs to the process because CUDA's does.
**
** Order      the default stream (NULL in the device port) is our own stream, unordered with CUDA's
**            legacy one. Storage belongs to it. Before a tensor is released, the default stream
**            must have waited for every other stream that used it; the wait for a collective does
**            that. Freed memory is reused at once.
** Threads    the pools and the staging ring are locked; CUDA's rules apply to the rest.
** Errors     CUDA reports a failed kernel at a later call; messages name that call.
*/
#pragma once
#include <cuda_runtime_api.h>
#include <pthread.h>

#include "backends/nccl/kernels.h"
#include "backends/nccl/observe.h"
#include "backends/nccl/pool.h"
#include "cddp/device.h"

/* small transfers that the host may be ahead of the GPU before it waits */
#define CD_RING_SLOTS 32u

/* A slot for small data on its way to the GPU: a pinned host buffer and its device twin. It is
** reused when the GPU is done with it. */
typedef struct cd_ring_slot {
    void *host, *device;
    cudaEvent_t passed;
    bool in_use;
} cd_ring_slot;

typedef struct cd_cuda {
    pthread_mutex_t lock; /* guards pools and ring */
    bool is_open;
    int ordinal;
    cudaStream_t stream; /* the default stream */
    cd_pool memory;      /* of the GPU */
    cd_pool pinned;      /* host memory that the GPU can read and write */
    cd_ring_slot ring[CD_RING_SLOTS];
    /* memory of all slots; they grow together, so that growth ends early */
    void *ring_host, *ring_device;
    size_t ring_capacity; /* of each slot */
    uint32_t ring_next;
    void *cublas; /* opened by the first product that needs it */
    bool cublas_tried;
    uint64_t host_waits;  /* times that the host waited for the GPU; none in a steady iteration */
    cd_observer observer; /* trace events about this GPU */
    /* groups that were aborted while they wrote to this GPU and are not closed yet, and what the
    ** first one says; under the lock */
    uint32_t lost_count;
    char lost[420];
} cd_cuda;

struct cddp_stream {
    cudaStream_t stream;
};
struct cddp_mark {
    cudaEvent_t event;
};

extern cd_cuda cd_cuda_here; /* the process's GPU; it may not be open yet */
/* Opens the GPU with this ordinal. Does nothing when a GPU is already open. */
cddp_status cd_cuda_open(cd_cuda *cuda, int ordinal, cddp_error *err) CDDP_MUST_CHECK;
/* for tests: releases everything; accepts one that is not open */
void cd_cuda_close(cd_cuda *cuda);

/* "cuda: what: invalid argument". */
cddp_status cd_cuda_check(cudaError_t code, const char *what, cddp_error *err) CDDP_MUST_CHECK;
cudaStream_t cd_cuda_stream(cd_cuda *cuda, cddp_stream *stream); /* NULL: the default stream */
/* Record a point of a stream, and make a stream wait for one; the host does not wait. */
cddp_status cd_cuda_record(cd_cuda *cuda, cudaEvent_t event, cudaStream_t stream,
                           cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_cuda_wait(cd_cuda *cuda, cudaStream_t stream, cudaEvent_t event,
                         cddp_error *err) CDDP_MUST_CHECK;
/* An aborted collective ends as if it were done, and leaves anything in its output. While its group
** is open, whatever the host would learn from this GPU is an error: call before the abort. */
void cd_cuda_lose(cd_cuda *cuda, const char *reason);
void cd_cuda_forget_loss(cd_cuda *cuda); /* at the end of such a group */
/* Blocks the host until the stream is idle, and counts it. Fails after a loss. */
cddp_status cd_cuda_synchronize(cd_cuda *cuda, cudaStream_t stream, const char *what,
                                cddp_error *err) CDDP_MUST_CHECK;

cddp_status cd_cuda_take(cd_cuda *cuda, size_t bytes, void **block,
                         cddp_error *err) CDDP_MUST_CHECK;
void cd_cuda_give(cd_cuda *cuda, size_t bytes, void *block);
cddp_status cd_cuda_take_pinned(cd_cuda *cuda, size_t bytes, void **block,
                                cddp_error *err) CDDP_MUST_CHECK;
void cd_cuda_give_pinned(cd_cuda *cuda, size_t bytes, void *block);

/* Returns the next slot of the staging ring with at least `bytes`, which the host may write. The
** caller holds the lock from before begin until after end. */
cddp_status cd_ring_begin(cd_cuda *cuda, size_t bytes, cd_ring_slot **slot,
                          cddp_error *err) CDDP_MUST_CHECK;
/* Operations enqueued on the stream so far are the last to use the slot. */
cddp_status cd_ring_end(cd_ring_slot *slot, cudaStream_t stream, cddp_error *err) CDDP_MUST_CHECK;

/* Runs a product through cuBLAS. *done false: cuBLAS is missing or does not support these strides,
** and nothing was enqueued.
*/
cddp_status cd_cublas_product(cd_cuda *cuda, const cd_cuda_product *product, cudaStream_t stream,
                              bool *done, cddp_error *err) CDDP_MUST_CHECK;
void cd_cublas_close(cd_cuda *cuda);

extern const cddp_device cd_cuda_device; /* its self is cd_cuda_here */

/* Checks that this machine has a usable GPU: CDDP_OK, or CDDP_E_BACKEND with the reason. The check
** runs in a child process, so that this one may still fork. */
cddp_status cd_cuda_probe(cddp_error *err) CDDP_MUST_CHECK;
