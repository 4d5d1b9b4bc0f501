/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU of this process: open, memory, the staging ring, errors. */
#include "backends/nccl/cuda.h"

#include "core/base/error.h"

#include <stdio.h>
#include <string.h>

cd_cuda cd_cuda_here = {.lock = PTHREAD_MUTEX_INITIALIZER};

cddp_status cd_cuda_check(cudaError_t code, const char *what, cddp_error *err)
{
    if (code == cudaSuccess) return CDDP_OK;
    /* Clears CUDA's last error where possible, so that the next call reports only its own
    ** error. */
    (void)cudaGetLastError();
    return cd_fail(err, code == cudaErrorMemoryAllocation ? CDDP_E_NOMEM : CDDP_E_BACKEND,
                   "cuda: %s: %s", what, cudaGetErrorString(code));
}

/* ---- memory ---- */

static bool device_take(void *context, size_t bytes, void **block)
{
    (void)context;
    if (cudaMalloc(block, bytes) == cudaSuccess) return true;
    (void)cudaGetLastError();
    return false;
}

/* cudaFree waits until the GPU is idle, so no enqueued operation loses its memory. */
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

/* One of the two pools, under the lock; host selects it. */
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
    return CD_PASS(take(cuda, &cuda->memory, bytes, block, err));
}

void cd_cuda_give(cd_cuda *cuda, size_t bytes, void *block)
{
    give(cuda, &cuda->memory, bytes, block);
}

cddp_status cd_cuda_take_pinned(cd_cuda *cuda, size_t bytes, void **block, cddp_error *err)
{
    return CD_PASS(take(cuda, &cuda->pinned, bytes, block, err));
}

void cd_cuda_give_pinned(cd_cuda *cuda, size_t bytes, void *block)
{
    give(cuda, &cuda->pinned, bytes, block);
}

/* ---- life ---- */

static void ring_free(cd_cuda *cuda)
{
    if (cuda->ring_host != NULL) (void)cudaFreeHost(cuda->ring_host);
    if (cuda->ring_device != NULL) (void)cudaFree(cuda->ring_device);
    cuda->ring_host = cuda->ring_device = NULL;
    cuda->ring_capacity = 0;
}

static cddp_status open_locked(cd_cuda *cuda, int ordinal, cddp_error *err)
{
    CD_TRY(cd_cuda_check(cudaSetDevice(ordinal), "cudaSetDevice", err));
    CD_TRY(cd_cuda_check(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking),
                         "cudaStreamCreateWithFlags", err));
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
        for (uint32_t i = 0; i < CD_RING_SLOTS; i++)
            if (cuda->ring[i].passed != NULL) (void)cudaEventDestroy(cuda->ring[i].passed);
        ring_free(cuda);
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

void cd_cuda_lose(cd_cuda *cuda, const char *reason)
{
    pthread_mutex_lock(&cuda->lock);
    if (cuda->lost_count++ == 0) snprintf(cuda->lost, sizeof cuda->lost, "%s", reason);
    pthread_mutex_unlock(&cuda->lock);
}

void cd_cuda_forget_loss(cd_cuda *cuda)
{
    pthread_mutex_lock(&cuda->lock);
    cuda->lost_count--;
    pthread_mutex_unlock(&cuda->lock);
}

static cddp_status check_loss(cd_cuda *cuda, const char *what, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    pthread_mutex_lock(&cuda->lock);
    if (cuda->lost_count > 0)
        status = cd_fail(err, CDDP_E_ABORTED, "cuda: %s: %s", what, cuda->lost);
    pthread_mutex_unlock(&cuda->lock);
    return status;
}

cddp_status cd_cuda_synchronize(cd_cuda *cuda, cudaStream_t stream, const char *what,
                                cddp_error *err)
{
    cuda->host_waits++;
    CD_TRY(cd_cuda_check(cudaStreamSynchronize(stream), what, err));
    CD_TRY(check_loss(cuda, what, err));
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

/* Blocks while the GPU still reads the slot, and counts it. */
static cddp_status slot_wait(cd_cuda *cuda, cd_ring_slot *slot, cddp_error *err)
{
    if (!slot->in_use) return CDDP_OK;
    cudaError_t code = cudaEventQuery(slot->passed);
    if (code == cudaErrorNotReady) {
        (void)cudaGetLastError();
        cuda->host_waits++;
        code = cudaEventSynchronize(slot->passed);
    }
    CD_TRY(cd_cuda_check(code, "waiting for a staging buffer", err));
    slot->in_use = false;
    return CDDP_OK;
}

static cddp_status ring_grow(cd_cuda *cuda, size_t bytes, cddp_error *err)
{
    const size_t capacity = cd_pool_class_bytes(cd_pool_class(bytes));
    for (uint32_t i = 0; i < CD_RING_SLOTS; i++) CD_TRY(slot_wait(cuda, &cuda->ring[i], err));
    ring_free(cuda);
    CD_TRY(cd_cuda_check(cudaHostAlloc(&cuda->ring_host, CD_RING_SLOTS * capacity,
                                       cudaHostAllocDefault),
                         "cudaHostAlloc", err));
    CD_TRY(
        cd_cuda_check(cudaMalloc(&cuda->ring_device, CD_RING_SLOTS * capacity), "cudaMalloc", err));
    for (uint32_t i = 0; i < CD_RING_SLOTS; i++) {
        cudaEvent_t *passed = &cuda->ring[i].passed;
        if (*passed == NULL)
            CD_TRY(cd_cuda_check(cudaEventCreateWithFlags(passed, cudaEventDisableTiming),
                                 "cudaEventCreateWithFlags", err));
        cuda->ring[i].host = (char *)cuda->ring_host + i * capacity;
        cuda->ring[i].device = (char *)cuda->ring_device + i * capacity;
    }
    cuda->ring_capacity = capacity;
    return CDDP_OK;
}

cddp_status cd_ring_begin(cd_cuda *cuda, size_t bytes, cd_ring_slot **slot, cddp_error *err)
{
    cd_ring_slot *s = &cuda->ring[cuda->ring_next];
    CD_TRY(slot_wait(cuda, s, err));
    if (cuda->ring_capacity < bytes) CD_TRY(ring_grow(cuda, bytes, err));
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
