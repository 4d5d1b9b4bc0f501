/* SPDX-License-Identifier: Apache-2.0 */
/* Lazy streams over host memory. */
#define _POSIX_C_SOURCE 200809L
#include "tests/unit/backends/nccl/fake_cuda.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct op {
    struct op *next;
    bool (*try_run)(void *argument);
    void (*run)(void *argument);
    struct CUevent_st *event; /* of a record or a wait */
    uint64_t version;
    bool is_record;
    size_t bytes;
    max_align_t argument[];
} op;

struct CUstream_st {
    struct CUstream_st *next; /* of all streams */
    op *first, *last;
    bool is_running; /* waits go round in circles only by a mistake of ours */
};

struct CUevent_st {
    struct CUstream_st *stream; /* of the latest record */
    uint64_t recorded, reached;
};

fake_cuda_counts fake_cuda;
int fake_cuda_devices = 1;
uint64_t fake_cuda_fail_malloc_at;
bool fake_cuda_fails_on;

/* A watchdog asks for events while its rank enqueues. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st *streams;

/* ---- queues ---- */

static op *push(cudaStream_t stream, size_t bytes, const void *argument)
{
    op *o = calloc(1, sizeof *o + bytes);
    if (o == NULL) abort();
    o->bytes = bytes;
    if (bytes > 0) memcpy(o->argument, argument, bytes);
    if (stream->last != NULL)
        stream->last->next = o;
    else
        stream->first = o;
    stream->last = o;
    return o;
}

static void push_run(cudaStream_t stream, void (*run)(void *argument), const void *argument, size_t bytes)
{
    pthread_mutex_lock(&lock);
    push(stream, bytes, argument)->run = run;
    pthread_mutex_unlock(&lock);
}

void fake_cuda_push(cudaStream_t stream, void (*run)(void *argument), const void *argument, size_t bytes)
{
    fake_cuda.launches++;
    push_run(stream, run, argument, bytes);
}

void fake_cuda_push_waiting(cudaStream_t stream, bool (*run)(void *argument), const void *argument, size_t bytes)
{
    pthread_mutex_lock(&lock);
    push(stream, bytes, argument)->try_run = run;
    pthread_mutex_unlock(&lock);
}

static bool reach(struct CUevent_st *event, uint64_t version);

/* Runs the first operation; false when it cannot go on. */
static bool step(cudaStream_t s)
{
    op *o = s->first;
    bool done = true;
    s->is_running = true;
    if (o->event != NULL && !o->is_record)
        done = reach(o->event, o->version);
    else if (o->try_run != NULL)
        done = o->try_run(o->argument);
    else if (o->run != NULL)
        o->run(o->argument);
    else
        o->event->reached = o->version;
    s->is_running = false;
    if (!done) return false;
    s->first = o->next;
    if (s->first == NULL) s->last = NULL;
    free(o);
    return true;
}

static bool reach(struct CUevent_st *event, uint64_t version)
{
    while (event->reached < version) {
        cudaStream_t s = event->stream;
        if (s == NULL || s->is_running || s->first == NULL || !step(s)) return false;
    }
    return true;
}

static void nap(void) { nanosleep(&(struct timespec){0, 20000}, NULL); }

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    fake_cuda.synchronizations++;
    for (bool idle = false; !idle;) {
        pthread_mutex_lock(&lock);
        while (stream->first != NULL && step(stream)) continue;
        idle = stream->first == NULL;
        pthread_mutex_unlock(&lock);
        if (!idle) nap();
    }
    return cudaSuccess;
}

/* ---- streams and events ---- */

static bool fails(void)
{
    if (fake_cuda_fail_malloc_at == 0 || --fake_cuda_fail_malloc_at > 0) return false;
    fake_cuda_fail_malloc_at = fake_cuda_fails_on ? 1 : 0;
    return true;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    (void)flags;
    if (fails()) return cudaErrorMemoryAllocation;
    cudaStream_t made = calloc(1, sizeof *made);
    if (made == NULL) return cudaErrorMemoryAllocation;
    pthread_mutex_lock(&lock);
    made->next = streams;
    streams = made;
    pthread_mutex_unlock(&lock);
    fake_cuda.live_streams++;
    *stream = made;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    pthread_mutex_lock(&lock);
    struct CUstream_st **at = &streams;
    while (*at != stream) at = &(*at)->next;
    *at = stream->next;
    pthread_mutex_unlock(&lock);
    for (op *o; (o = stream->first) != NULL;) {
        stream->first = o->next;
        free(o);
    }
    free(stream);
    fake_cuda.live_streams--;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    (void)flags;
    if (fails()) return cudaErrorMemoryAllocation;
    *event = calloc(1, sizeof **event);
    fake_cuda.live_events++;
    return *event != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    fake_cuda.live_events--;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    pthread_mutex_lock(&lock);
    op *o = push(stream, 0, NULL);
    o->event = event;
    o->is_record = true;
    o->version = ++event->recorded;
    event->stream = stream;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    if (event->recorded > 0) {
        op *o = push(stream, 0, NULL);
        o->event = event;
        o->version = event->recorded;
    }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    pthread_mutex_lock(&lock);
    bool reached = reach(event, event->recorded);
    pthread_mutex_unlock(&lock);
    return reached ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    fake_cuda.synchronizations++;
    while (cudaEventQuery(event) != cudaSuccess) nap();
    return cudaSuccess;
}

/* ---- memory ---- */

typedef struct block {
    size_t bytes;
    max_align_t data[];
} block;

static cudaError_t take(void **pointer, size_t bytes)
{
    fake_cuda.allocations++;
    if (fails()) return cudaErrorMemoryAllocation;
    block *b = malloc(sizeof *b + bytes);
    if (b == NULL) return cudaErrorMemoryAllocation;
    b->bytes = bytes;
    memset(b->data, 0x5a, bytes);
    fake_cuda.live_allocations++;
    *pointer = b->data;
    return cudaSuccess;
}

/* What can run runs first: freeing waits for the GPU. */
static void drain(void)
{
    pthread_mutex_lock(&lock);
    for (bool any = true; any;) {
        any = false;
        for (struct CUstream_st *s = streams; s != NULL; s = s->next)
            while (s->first != NULL && step(s)) any = true;
    }
    pthread_mutex_unlock(&lock);
}

static cudaError_t give(void *pointer)
{
    if (pointer == NULL) return cudaSuccess;
    drain();
    block *b = (block *)((char *)pointer - offsetof(block, data));
    memset(b->data, 0xa5, b->bytes);
    free(b);
    fake_cuda.live_allocations--;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) { return take(pointer, bytes); }

cudaError_t cudaFree(void *pointer) { return give(pointer); }

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
    (void)flags;
    return take(pointer, bytes);
}

cudaError_t cudaFreeHost(void *pointer) { return give(pointer); }

typedef struct move {
    void *to;
    const void *from;
    size_t bytes;
    int value;
} move;

static void run_move(void *argument)
{
    const move *m = argument;
    if (m->from != NULL)
        memmove(m->to, m->from, m->bytes);
    else
        memset(m->to, m->value, m->bytes);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind;
    move m = {to, from, bytes, 0};
    push_run(stream, run_move, &m, sizeof m);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    move m = {to, NULL, bytes, value};
    push_run(stream, run_move, &m, sizeof m);
    return cudaSuccess;
}

/* ---- the rest ---- */

cudaError_t cudaGetLastError(void) { return cudaSuccess; }

const char *cudaGetErrorString(cudaError_t code)
{
    return code == cudaErrorMemoryAllocation ? "out of memory" : "an error of the fake";
}

cudaError_t cudaSetDevice(int device) { return device < fake_cuda_devices ? cudaSuccess : cudaErrorInvalidDevice; }

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = fake_cuda_devices;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    snprintf(text, (size_t)bytes, "0000:%02x:00.0", (unsigned)device);
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    (void)attribute;
    (void)device;
    *value = 9;
    return cudaSuccess;
}
