/* SPDX-License-Identifier: Apache-2.0 */
/* Lazy streams over host memory. */
#define _DEFAULT_SOURCE
#include "tests/unit/backends/nccl/fake_cuda.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__)
#define FAR_IS_WATCHED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FAR_IS_WATCHED
#endif
#endif
#ifdef FAR_IS_WATCHED
#include <sanitizer/asan_interface.h>
#define FAR_POISON(at, bytes) ASAN_POISON_MEMORY_REGION(at, bytes)
#define FAR_UNPOISON(at, bytes) ASAN_UNPOISON_MEMORY_REGION(at, bytes)
#else
#define FAR_POISON(at, bytes) ((void)(at))
#define FAR_UNPOISON(at, bytes) ((void)(at))
#endif

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
    uint64_t recorded, reached, tick;
};

fake_cuda_counts fake_cuda;
int fake_cuda_devices = 1;
uint64_t fake_cuda_fail_malloc_at;
bool fake_cuda_fails_on;
bool fake_cuda_is_far;
bool fake_cuda_is_asleep;

/* A watchdog asks for events while its rank enqueues. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st *streams;
static uint64_t ticks; /* events that were reached: the clock */

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

static void push_run(cudaStream_t stream, void (*run)(void *argument), const void *argument,
                     size_t bytes)
{
    pthread_mutex_lock(&lock);
    push(stream, bytes, argument)->run = run;
    pthread_mutex_unlock(&lock);
}

void fake_cuda_push(cudaStream_t stream, void (*run)(void *argument), const void *argument,
                    size_t bytes)
{
    fake_cuda.launches++;
    push_run(stream, run, argument, bytes);
}

void fake_cuda_push_waiting(cudaStream_t stream, bool (*run)(void *argument), const void *argument,
                            size_t bytes)
{
    pthread_mutex_lock(&lock);
    push(stream, bytes, argument)->try_run = run;
    pthread_mutex_unlock(&lock);
}

static bool reach(struct CUevent_st *event, uint64_t version);

/* ---- memory of the device ---- */

/* One range of addresses, which only running operations may touch. Blocks are cut from it in
** order; a freed block is reused for a request that fits. Under AddressSanitizer memory outside of
** blocks is poisoned. */
#define FAR_BYTES ((size_t)1 << 32)
#define FAR_GRAIN ((size_t)512)    /* cudaMalloc aligns to 256; the rest is the red zone */
#define FAR_PAGE ((size_t)1 << 21) /* large ones: opening and closing walks over each */

typedef struct far_block {
    size_t at, room, bytes; /* bytes 0: free */
} far_block;

static char *far;
static size_t far_end; /* of all blocks */
static far_block *far_blocks;
static size_t far_count, far_capacity;
static bool far_is_open;

static void far_access(bool is_open)
{
    if (far_is_open == is_open || far_end == 0) return;
    if (mprotect(far, (far_end + FAR_PAGE - 1) / FAR_PAGE * FAR_PAGE,
                 is_open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
        abort();
    far_is_open = is_open;
}

static far_block *far_take(size_t bytes)
{
    const size_t room = (bytes + FAR_GRAIN) / FAR_GRAIN * FAR_GRAIN;
    for (size_t i = 0; i < far_count; i++)
        if (far_blocks[i].bytes == 0 && far_blocks[i].room >= room) return &far_blocks[i];
    if (far == NULL) {
        far = mmap(NULL, FAR_BYTES + FAR_PAGE, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (far == MAP_FAILED) abort();
        far += FAR_PAGE - (uintptr_t)far % FAR_PAGE;
        (void)madvise(far, FAR_BYTES, MADV_HUGEPAGE); /* where there are none it is only slower */
    }
    if (far_count == far_capacity) {
        far_capacity = far_capacity == 0 ? 64 : 2 * far_capacity;
        far_blocks = realloc(far_blocks, far_capacity * sizeof *far_blocks);
        if (far_blocks == NULL) abort();
    }
    if (room > FAR_BYTES - far_end) return NULL;
    far_access(false); /* so that what is added is as the rest is */
    far_blocks[far_count] = (far_block){.at = far_end, .room = room};
    far_end += room;
    return &far_blocks[far_count++];
}

static far_block *far_find(const void *pointer)
{
    for (size_t i = 0; i < far_count; i++)
        if (far + far_blocks[i].at == pointer) return &far_blocks[i];
    return NULL;
}

/* ---- running ---- */

static void pass(struct CUevent_st *event, uint64_t version)
{
    event->reached = version;
    event->tick = ++ticks;
}

/* Runs the first operation; false when it cannot go on. */
static bool step(cudaStream_t s)
{
    op *o = s->first;
    bool done = true;
    far_access(true);
    s->is_running = true;
    if (o->event != NULL && !o->is_record)
        done = reach(o->event, o->version);
    else if (o->try_run != NULL)
        done = o->try_run(o->argument);
    else if (o->run != NULL)
        o->run(o->argument);
    else
        pass(o->event, o->version);
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

/* The device's operations are over: no access to its memory from here on. */
static void leave(void)
{
    far_access(false);
    pthread_mutex_unlock(&lock);
}

static void nap(void) { nanosleep(&(struct timespec){0, 20000}, NULL); }

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    fake_cuda.synchronizations++;
    for (bool idle = false; !idle;) {
        pthread_mutex_lock(&lock);
        while (stream->first != NULL && step(stream)) continue;
        idle = stream->first == NULL;
        leave();
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

static bool is_reached(cudaEvent_t event, bool is_asleep)
{
    pthread_mutex_lock(&lock);
    const bool reached =
        is_asleep ? event->reached == event->recorded : reach(event, event->recorded);
    leave();
    return reached;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return is_reached(event, fake_cuda_is_asleep) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    fake_cuda.synchronizations++;
    while (!is_reached(event, false)) nap();
    return cudaSuccess;
}

/* A millisecond per event that was reached: an order, no time. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    pthread_mutex_lock(&lock);
    const bool reached = start->recorded > 0 && end->recorded > 0 &&
                         start->reached == start->recorded && end->reached == end->recorded;
    *ms = (float)end->tick - (float)start->tick;
    pthread_mutex_unlock(&lock);
    return reached ? cudaSuccess : cudaErrorNotReady;
}

/* ---- memory ---- */

/* Memory that is not far. */
typedef struct block {
    size_t bytes;
    max_align_t data[];
} block;

/* Operations that can run do so first: freeing waits for the GPU. */
static void drain(void)
{
    pthread_mutex_lock(&lock);
    for (bool any = true; any;) {
        any = false;
        for (struct CUstream_st *s = streams; s != NULL; s = s->next)
            while (s->first != NULL && step(s)) any = true;
    }
    leave();
}

static void release(void *pointer)
{
    if (pointer == NULL) return;
    drain();
    pthread_mutex_lock(&lock);
    far_block *b = far_find(pointer);
    if (b != NULL) {
        far_access(true);
        memset(pointer, 0xa5, b->bytes);
        FAR_POISON(pointer, b->room);
        b->bytes = 0;
    } else {
        block *near = (block *)((char *)pointer - offsetof(block, data));
        memset(near->data, 0xa5, near->bytes);
        free(near);
    }
    leave();
    fake_cuda.live_allocations--;
}

static cudaError_t take(void **pointer, size_t bytes, bool is_far)
{
    fake_cuda.allocations++;
    if (fails()) return cudaErrorMemoryAllocation;
    if (is_far) {
        pthread_mutex_lock(&lock);
        far_block *b = far_take(bytes);
        if (b != NULL) {
            b->bytes = bytes > 0 ? bytes : 1;
            far_access(true);
            FAR_UNPOISON(far + b->at, bytes);
            memset(far + b->at, 0x5a, bytes);
            FAR_POISON(far + b->at + bytes, b->room - bytes);
            *pointer = far + b->at;
        }
        leave();
        if (b == NULL) return cudaErrorMemoryAllocation;
    } else {
        block *b = malloc(sizeof *b + bytes);
        if (b == NULL) return cudaErrorMemoryAllocation;
        b->bytes = bytes;
        memset(b->data, 0x5a, bytes);
        *pointer = b->data;
    }
    fake_cuda.live_allocations++;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
    return take(pointer, bytes, fake_cuda_is_far);
}

cudaError_t cudaFree(void *pointer)
{
    release(pointer);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
    (void)flags;
    return take(pointer, bytes, false);
}

cudaError_t cudaFreeHost(void *pointer)
{
    release(pointer);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *total = *free_bytes = FAR_BYTES;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < far_count; i++)
        if (far_blocks[i].bytes > 0) *free_bytes -= far_blocks[i].bytes;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

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

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
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

cudaError_t cudaSetDevice(int device)
{
    return device < fake_cuda_devices ? cudaSuccess : cudaErrorInvalidDevice;
}

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
