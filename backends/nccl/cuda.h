/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA in this process: one GPU, its default stream, its memory; and the cuda device over them.
**
** A process uses one GPU, chosen once, and touches CUDA only when something is asked of it: a
** program may load this module and fork. The state is the process's because CUDA's is.
**
** Order      the default stream (NULL in the device port) is a stream of our own, unordered with
**            CUDA's legacy one. Storage belongs to it: another stream that used a tensor must have
**            been waited for by the default stream before the tensor is released, as waiting for a
**            collective does; then memory is handed out again at once.
** Threads    the pools and the staging ring are locked; everything else as CUDA allows.
** Errors     CUDA tells of a failed kernel at a later call; messages say at which.
*/
#pragma once
#include <cuda_runtime_api.h>
#include <pthread.h>

#include "backends/nccl/kernels.h"
#include "backends/nccl/observe.h"
#include "backends/nccl/pool.h"
#include "cddp/device.h"

/* how many small transfers the host may be ahead of the GPU before it waits */
#define CD_RING_SLOTS 32u

/* Small data on its way to the GPU: a pinned host buffer and its device twin, reused when their
** work has passed. */
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
    cd_pool pinned;      /* host memory that the GPU reads and writes */
    cd_ring_slot ring[CD_RING_SLOTS];
    void *ring_host, *ring_device; /* memory of all slots, grown together so that it is done soon */
    size_t ring_capacity;          /* of each slot */
    uint32_t ring_next;
    void *cublas; /* opened by the first product that wants it */
    bool cublas_tried;
    uint64_t host_waits;  /* how often the host waited for the GPU: never in a steady iteration */
    cd_observer observer; /* what the trace hears of it */
} cd_cuda;

struct cddp_stream {
    cudaStream_t stream;
};
struct cddp_mark {
    cudaEvent_t event;
};

extern cd_cuda cd_cuda_here; /* the process's; perhaps not yet open */
/* Opens the GPU with this ordinal, or does nothing when one is open already. */
cddp_status cd_cuda_open(cd_cuda *cuda, int ordinal, cddp_error *err) CDDP_MUST_CHECK;
void cd_cuda_close(cd_cuda *cuda); /* for tests: everything back; accepts one that is not open */

/* "cuda: what: invalid argument". */
cddp_status cd_cuda_check(cudaError_t code, const char *what, cddp_error *err) CDDP_MUST_CHECK;
cudaStream_t cd_cuda_stream(cd_cuda *cuda, cddp_stream *stream); /* NULL: the default stream */
/* Marks a point of a stream; the host waits for neither. */
cddp_status cd_cuda_record(cd_cuda *cuda, cudaEvent_t event, cudaStream_t stream,
                           cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_cuda_wait(cd_cuda *cuda, cudaStream_t stream, cudaEvent_t event,
                         cddp_error *err) CDDP_MUST_CHECK;
/* Blocks the host until the stream is idle, and counts it. */
cddp_status cd_cuda_synchronize(cd_cuda *cuda, cudaStream_t stream, const char *what,
                                cddp_error *err) CDDP_MUST_CHECK;

cddp_status cd_cuda_take(cd_cuda *cuda, size_t bytes, void **block,
                         cddp_error *err) CDDP_MUST_CHECK;
void cd_cuda_give(cd_cuda *cuda, size_t bytes, void *block);
cddp_status cd_cuda_take_pinned(cd_cuda *cuda, size_t bytes, void **block,
                                cddp_error *err) CDDP_MUST_CHECK;
void cd_cuda_give_pinned(cd_cuda *cuda, size_t bytes, void *block);

/* The next slot of the staging ring with at least `bytes`, free to be written by the host. The
** caller holds the lock from before begin until after end. */
cddp_status cd_ring_begin(cd_cuda *cuda, size_t bytes, cd_ring_slot **slot,
                          cddp_error *err) CDDP_MUST_CHECK;
/* What was enqueued on the stream until now is the last to use the slot. */
cddp_status cd_ring_end(cd_ring_slot *slot, cudaStream_t stream, cddp_error *err) CDDP_MUST_CHECK;

/* cuBLAS for products that suit it. *done false: it is not here or does not take these strides;
** nothing was enqueued.
*/
cddp_status cd_cublas_product(cd_cuda *cuda, const cd_cuda_product *product, cudaStream_t stream,
                              bool *done, cddp_error *err) CDDP_MUST_CHECK;
void cd_cublas_close(cd_cuda *cuda);

extern const cddp_device cd_cuda_device; /* its self is cd_cuda_here */

/* What is missing here for a backend that needs a GPU: CDDP_OK, or CDDP_E_BACKEND with the reason.
** Asks in a child process, so that this one may still fork. */
cddp_status cd_cuda_probe(cddp_error *err) CDDP_MUST_CHECK;
