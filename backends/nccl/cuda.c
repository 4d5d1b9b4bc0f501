/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU of this process: opening it, memory, the staging ring, errors. */
#include "backends/nccl/cuda.h"

#include "core/base/error.h"

#include <string.h>

cd_cuda cd_cuda_here = {.lock = PTHREAD_MUTEX_INITIALIZER};

cddp_status cd_cuda_check(cudaError_t code, const char *what, cddp_error *err)
{
    if (code == cudaSuccess) return CDDP_OK;
    /* Takes the error out of CUDA's memory of it, where it can be: the next call shall tell of its own. */
    (void)cudaGetLastError();
    return cd_fail(err, code == cudaErrorMemoryAllocation ? CDDP_E_NOMEM : CDDP_E_BACKEND, "cuda: %s: %s", what,
                   cudaGetErrorString(code));
}

/* ---- memory ---- */

static bool device_take(void *context, size_t bytes, void **block)
{
    (void)context;
    if (cudaMalloc(block, bytes) == cudaSuccess) return true;
    (void)cudaGetLastError();
    return false;
}

/* cudaFree waits until the GPU is idle, so nothing that was enqueued loses its memory. */
static void device_give(void *context, void *block)
{
    (void)context;
    (void)cudaFree(block);
}

static bool pinned_take(void *context, size_t bytes, void **block)
{
    (void)context;
    if (cudaHostAlloc(block, bytes, cudaHostAllocDefault) == cudaSuccess) return true;
    (void)cudaGetLastError();
    return false;
}

static void pinned_give(void *context, void *block)
{
    (void)context;
    (void)cudaFreeHost(block);
}

/* One of the two pools, under the lock; host tells them apart. */
static cddp_status take(cd_cuda *cuda, cd_pool *pool, size_t bytes, void **block, cddp_error *err)
{
    pthread_mutex_lock(&cuda->lock);
    cddp_status status = cd_pool_take(pool, bytes, block, err);
    pthread_mutex_unlock(&cuda->lock);
    return status;
}

static void give(cd_cuda *cuda, cd_pool *pool, size_t bytes, void *block)
{
    pthread_mutex_lock(&cuda->lock);
    cd_pool_give(pool, bytes, block);
    pthread_mutex_unlock(&cuda->lock);
}

cddp_status cd_cuda_take(cd_cuda *cuda, size_t bytes, void **block, cddp_error *err)
{
    return take(cuda, &cuda->memory, bytes, block, err);
}

void cd_cuda_give(cd_cuda *cuda, size_t bytes, void *block) { give(cuda, &cuda->memory, bytes, block); }

cddp_status cd_cuda_take_pinned(cd_cuda *cuda, size_t bytes, void **block, cddp_error *err)
{
    return take(cuda, &cuda->pinned, bytes, block, err);
}

void cd_cuda_give_pinned(cd_cuda *cuda, size_t bytes, void *block) { give(cuda, &cuda->pinned, bytes, block); }

/* ---- life ---- */

static cddp_status open_locked(cd_cuda *cuda, int ordinal, cddp_error *err)
{
    CD_TRY(cd_cuda_check(cudaSetDevice(ordinal), "cudaSetDevice", err));
    CD_TRY(cd_cuda_check(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags",
                         err));
    cd_pool_init(&cuda->memory, &(cd_pool_source){NULL, device_take, device_give});
    cd_pool_init(&cuda->pinned, &(cd_pool_source){NULL, pinned_take, pinned_give});
    cuda->ordinal = ordinal;
    cuda->is_open = true;
    return CDDP_OK;
}

cddp_status cd_cuda_open(cd_cuda *cuda, int ordinal, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    pthread_mutex_lock(&cuda->lock);
    if (!cuda->is_open) status = open_locked(cuda, ordinal, err);
    pthread_mutex_unlock(&cuda->lock);
    return status;
}

void cd_cuda_close(cd_cuda *cuda)
{
    pthread_mutex_lock(&cuda->lock);
    if (cuda->is_open) {
        (void)cudaStreamSynchronize(cuda->stream);
        for (uint32_t i = 0; i < CD_RING_SLOTS; i++) {
            cd_ring_slot *slot = &cuda->ring[i];
            if (slot->host != NULL) (void)cudaFreeHost(slot->host);
            if (slot->device != NULL) (void)cudaFree(slot->device);
            if (slot->passed != NULL) (void)cudaEventDestroy(slot->passed);
        }
        memset(cuda->ring, 0, sizeof cuda->ring);
        cd_cublas_close(cuda);
        cd_pool_fini(&cuda->memory);
        cd_pool_fini(&cuda->pinned);
        (void)cudaStreamDestroy(cuda->stream);
        cuda->stream = NULL;
        cuda->is_open = false;
    }
    pthread_mutex_unlock(&cuda->lock);
}

/* ---- streams ---- */

cudaStream_t cd_cuda_stream(cd_cuda *cuda, cddp_stream *stream)
{
    return stream != NULL ? stream->stream : cuda->stream;
}

cddp_status cd_cuda_synchronize(cd_cuda *cuda, cudaStream_t stream, const char *what, cddp_error *err)
{
    cuda->host_waits++;
    CD_TRY(cd_cuda_check(cudaStreamSynchronize(stream), what, err));
    cd_observe_idle(&cuda->observer, stream);
    return CDDP_OK;
}

cddp_status cd_cuda_record(cd_cuda *cuda, cudaEvent_t event, cudaStream_t stream, cddp_error *err)
{
    CD_TRY(cd_cuda_check(cudaEventRecord(event, stream), "cudaEventRecord", err));
    cd_observe_record(&cuda->observer, stream, event);
    return CDDP_OK;
}

cddp_status cd_cuda_wait(cd_cuda *cuda, cudaStream_t stream, cudaEvent_t event, cddp_error *err)
{
    CD_TRY(cd_cuda_check(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent", err));
    cd_observe_wait(&cuda->observer, stream, event);
    return CDDP_OK;
}

/* ---- the staging ring ---- */

static cddp_status slot_grow(cd_ring_slot *slot, size_t bytes, cddp_error *err)
{
    size_t capacity = cd_pool_class_bytes(cd_pool_class(bytes));
    if (slot->host != NULL) (void)cudaFreeHost(slot->host);
    if (slot->device != NULL) (void)cudaFree(slot->device);
    slot->host = slot->device = NULL;
    slot->capacity = 0;
    CD_TRY(cd_cuda_check(cudaHostAlloc(&slot->host, capacity, cudaHostAllocDefault), "cudaHostAlloc", err));
    CD_TRY(cd_cuda_check(cudaMalloc(&slot->device, capacity), "cudaMalloc", err));
    slot->capacity = capacity;
    return CDDP_OK;
}

cddp_status cd_ring_begin(cd_cuda *cuda, size_t bytes, cd_ring_slot **slot, cddp_error *err)
{
    cd_ring_slot *s = &cuda->ring[cuda->ring_next];
    if (s->passed == NULL)
        CD_TRY(cd_cuda_check(cudaEventCreateWithFlags(&s->passed, cudaEventDisableTiming), "cudaEventCreateWithFlags",
                             err));
    if (s->in_use) {
        cudaError_t code = cudaEventQuery(s->passed);
        if (code == cudaErrorNotReady) {
            (void)cudaGetLastError();
            cuda->host_waits++;
            code = cudaEventSynchronize(s->passed);
        }
        CD_TRY(cd_cuda_check(code, "waiting for a staging buffer", err));
        s->in_use = false;
    }
    if (s->capacity < bytes) CD_TRY(slot_grow(s, bytes, err));
    cuda->ring_next = (cuda->ring_next + 1) % CD_RING_SLOTS;
    *slot = s;
    return CDDP_OK;
}

cddp_status cd_ring_end(cd_ring_slot *slot, cudaStream_t stream, cddp_error *err)
{
    CD_TRY(cd_cuda_check(cudaEventRecord(slot->passed, stream), "cudaEventRecord", err));
    slot->in_use = true;
    return CDDP_OK;
}
