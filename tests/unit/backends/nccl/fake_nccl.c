/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives among forked ranks through shared memory. */
#define _DEFAULT_SOURCE
#include "tests/unit/backends/nccl/fake_nccl.h"

#include "cddp/device.h"
#include "tests/unit/backends/nccl/fake_cuda.h"

#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RANKS 4
#define WORLDS 40
#define SLOTS 16
#define MAIL 16
/* the battery goes to 16,385 elements of 8 bytes for each of four ranks */
#define BYTES (768 * 1024)
#define PARTS 16

typedef struct part {
    enum { ALLREDUCE, BROADCAST, REDUCE, ALLGATHER, REDUCESCATTER, SEND, RECV } kind;
    const char *in;
    char *out;
    size_t count;
    ncclDataType_t type;
    int op; /* ncclRedOp_t, or PREMUL + index */
    int peer;
    uint64_t index; /* of the collective in its world, or of the message between its two ranks */
} part;

/* One collective: the data of each rank. taken counts the ranks that have their result; the last
** one frees it. */
typedef struct slot {
    uint64_t index;          /* the collective that it serves */
    uint32_t arrived, taken; /* bit sets of ranks */
    part what[RANKS];
    double factor[RANKS];
    char data[RANKS][BYTES];
} slot;

typedef struct mail {
    uint64_t index;
    bool sent, awaited;
    size_t bytes;
    char data[BYTES / 4];
} mail;

typedef struct world {
    bool is_used;
    ncclUniqueId id;
    int size;
    uint32_t joined;
    slot slots[SLOTS];
    mail mails[RANKS][RANKS][MAIL]; /* from, to */
} world;

typedef struct shared {
    pthread_mutex_t lock;
    uint64_t ids;
    world worlds[WORLDS];
} shared;

struct ncclComm {
    world *world;
    int rank;
    atomic_bool aborted, progress_reported;
    uint64_t collectives, sent[RANKS], received[RANKS], splits;
    ncclComm_t child, *child_at; /* a split under way; under the lock */
};

static shared *memory;
static atomic_bool broken; /* read by the watchdog's thread */
static double factors[64]; /* of premultiplied sums; index = op - ncclNumOps */
static int factor_count;
static int group_depth;
static ncclComm_t group_comm;
static cudaStream_t group_stream;

void fake_nccl_share(void)
{
    pthread_mutexattr_t attributes;
    memory = mmap(NULL, sizeof *memory, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) abort();
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&memory->lock, &attributes);
}

void fake_nccl_break(void) { broken = true; }

static size_t bytes_of(ncclDataType_t type)
{
    switch (type) {
    case ncclFloat64:
    case ncclInt64:
        return 8;
    case ncclFloat32:
    case ncclInt32:
        return 4;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    default:
        return 1;
    }
}

static cddp_dtype dtype_of(ncclDataType_t type)
{
    switch (type) {
    case ncclFloat64:
        return CDDP_F64;
    case ncclFloat32:
        return CDDP_F32;
    case ncclFloat16:
        return CDDP_F16;
    case ncclBfloat16:
        return CDDP_BF16;
    case ncclInt64:
        return CDDP_I64;
    case ncclInt32:
        return CDDP_I32;
    default:
        return CDDP_U8;
    }
}

/* ---- reductions ---- */

static cddp_red_op red_op_of(int op)
{
    return op == ncclProd  ? CDDP_RED_PRODUCT
           : op == ncclMax ? CDDP_RED_MAX
           : op == ncclMin ? CDDP_RED_MIN
                           : CDDP_RED_SUM;
}

/* Elements [at, at + count) of every rank's deposit, reduced in rank order into `out`. */
static void reduce(slot *s, int size, size_t at, size_t count, char *out)
{
    const part *mine = &s->what[0];
    const cddp_device *cpu = cddp_device_cpu();
    int64_t n = (int64_t)count;
    cddp_dtype dtype = dtype_of(mine->type);
    char other[BYTES];
    if (count == 0) return;
    for (int r = 0; r < size; r++) {
        char *to = r == 0 ? out : other;
        memcpy(to, s->data[r] + at * bytes_of(mine->type), count * bytes_of(mine->type));
        cddp_tensor t = cddp_tensor_of(cpu, to, 0, dtype, &n, 1),
                    sum = cddp_tensor_of(cpu, out, 0, dtype, &n, 1);
        if (mine->op >= ncclNumOps && cpu->scale(&t, &t, s->factor[r], NULL, NULL) != CDDP_OK)
            abort();
        if (r > 0 && cpu->reduce(red_op_of(mine->op), &sum, &t, NULL, NULL) != CDDP_OK) abort();
    }
}

/* ---- one collective ---- */

static size_t input_bytes(const part *p, const struct ncclComm *c)
{
    size_t bytes = p->count * bytes_of(p->type);
    if (p->kind == BROADCAST && c->rank != p->peer) return 0;
    return p->kind == REDUCESCATTER ? bytes * (size_t)c->world->size : bytes;
}

static bool agree(const slot *s, int size)
{
    for (int r = 1; r < size; r++)
        if (s->what[r].kind != s->what[0].kind || s->what[r].count != s->what[0].count ||
            s->what[r].type != s->what[0].type || s->what[r].peer != s->what[0].peer ||
            (s->what[r].op >= ncclNumOps ? ncclNumOps : s->what[r].op) !=
                (s->what[0].op >= ncclNumOps ? ncclNumOps : s->what[0].op))
            return false;
    return true;
}

static void deposit(ncclComm_t c, const part *p)
{
    slot *s = &c->world->slots[p->index % SLOTS];
    uint32_t bit = 1u << c->rank;
    if (s->index != p->index || (s->arrived & bit) != 0) return;
    if (input_bytes(p, c) > BYTES) abort();
    s->what[c->rank] = *p;
    s->factor[c->rank] = p->op >= ncclNumOps ? factors[p->op - ncclNumOps] : 1;
    if (input_bytes(p, c) > 0) memcpy(s->data[c->rank], p->in, input_bytes(p, c));
    s->arrived |= bit;
}

static bool is_ready(ncclComm_t c, const part *p)
{
    const slot *s = &c->world->slots[p->index % SLOTS];
    return s->index == p->index && s->arrived == (1u << c->world->size) - 1 &&
           agree(s, c->world->size);
}

static void collect(ncclComm_t c, const part *p)
{
    slot *s = &c->world->slots[p->index % SLOTS];
    const size_t bytes = p->count * bytes_of(p->type);
    const int size = c->world->size;
    if (p->kind == ALLREDUCE || (p->kind == REDUCE && c->rank == p->peer))
        reduce(s, size, 0, p->count, p->out);
    if (p->kind == REDUCESCATTER) reduce(s, size, (size_t)c->rank * p->count, p->count, p->out);
    if (p->kind == BROADCAST) memmove(p->out, s->data[p->peer], bytes);
    for (int r = 0; r < size && p->kind == ALLGATHER; r++)
        memmove(p->out + (size_t)r * bytes, s->data[r], bytes);
    s->taken |= 1u << c->rank;
    if (s->taken != (1u << size) - 1) return;
    s->arrived = s->taken = 0;
    s->index += SLOTS;
}

/* ---- messages ---- */

static mail *mail_of(ncclComm_t c, const part *p)
{
    int from = p->kind == SEND ? c->rank : p->peer, to = p->kind == SEND ? p->peer : c->rank;
    return &c->world->mails[from][to][p->index % MAIL];
}

static void message_begin(ncclComm_t c, const part *p)
{
    mail *m = mail_of(c, p);
    if (m->index != p->index) return;
    if (p->kind == RECV) m->awaited = true;
    if (p->kind != SEND || m->sent) return;
    m->bytes = p->count * bytes_of(p->type);
    if (m->bytes > sizeof m->data) abort();
    memcpy(m->data, p->in, m->bytes);
    m->sent = true;
}

static bool message_is_ready(ncclComm_t c, const part *p)
{
    const mail *m = mail_of(c, p);
    if (p->kind == SEND)
        return m->index > p->index || (m->index == p->index && m->sent && m->awaited);
    return m->index == p->index && m->sent && m->bytes == p->count * bytes_of(p->type);
}

static void message_end(ncclComm_t c, const part *p)
{
    mail *m = mail_of(c, p);
    if (p->kind == SEND) return;
    memcpy(p->out, m->data, m->bytes);
    m->sent = m->awaited = false;
    m->index += MAIL;
}

/* ---- on the stream ---- */

typedef struct batch {
    ncclComm_t comm;
    size_t count;
    part parts[PARTS];
} batch;
static batch grouped;

static bool run_batch(void *argument)
{
    batch *b = argument;
    bool ready = true;
    if (b->comm->aborted) return true;
    pthread_mutex_lock(&memory->lock);
    for (size_t i = 0; i < b->count; i++)
        (b->parts[i].kind >= SEND ? message_begin : deposit)(b->comm, &b->parts[i]);
    for (size_t i = 0; i < b->count; i++)
        ready = ready &&
                (b->parts[i].kind >= SEND ? message_is_ready : is_ready)(b->comm, &b->parts[i]);
    for (size_t i = 0; i < b->count && ready; i++)
        (b->parts[i].kind >= SEND ? message_end : collect)(b->comm, &b->parts[i]);
    pthread_mutex_unlock(&memory->lock);
    return ready;
}

static ncclResult_t enqueue(ncclComm_t c, cudaStream_t stream, part p)
{
    p.index = p.kind == SEND   ? c->sent[p.peer]++
              : p.kind == RECV ? c->received[p.peer]++
                               : c->collectives++;
    c->progress_reported = false;
    if (group_depth > 0) {
        if (grouped.count == PARTS) abort();
        group_comm = c;
        group_stream = stream;
        grouped.parts[grouped.count++] = p;
        return ncclSuccess;
    }
    batch b = {.comm = c, .count = 1};
    b.parts[0] = p;
    fake_cuda_push_waiting(stream, run_batch, &b, sizeof b);
    return ncclInProgress;
}

/* nccl.h declares these without prototypes. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclGroupStart(void)
{
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (--group_depth > 0 || grouped.count == 0) return ncclSuccess;
    grouped.comm = group_comm;
    fake_cuda_push_waiting(group_stream, run_batch, &grouped, sizeof grouped);
    grouped.count = 0;
    return ncclInProgress;
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t c, cudaStream_t s)
{
    return enqueue(
        c, s,
        (part){.kind = ALLREDUCE, .in = in, .out = out, .count = n, .type = type, .op = (int)op});
}

ncclResult_t ncclReduce(const void *in, void *out, size_t n, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t c, cudaStream_t s)
{
    return enqueue(c, s,
                   (part){.kind = REDUCE,
                          .in = in,
                          .out = out,
                          .count = n,
                          .type = type,
                          .op = (int)op,
                          .peer = root});
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t c, cudaStream_t s)
{
    return enqueue(c, s,
                   (part){.kind = REDUCESCATTER,
                          .in = in,
                          .out = out,
                          .count = n,
                          .type = type,
                          .op = (int)op});
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t n, ncclDataType_t type, int root,
                           ncclComm_t c, cudaStream_t s)
{
    return enqueue(
        c, s,
        (part){.kind = BROADCAST, .in = in, .out = out, .count = n, .type = type, .peer = root});
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t type, ncclComm_t c,
                           cudaStream_t s)
{
    return enqueue(c, s, (part){.kind = ALLGATHER, .in = in, .out = out, .count = n, .type = type});
}

ncclResult_t ncclSend(const void *in, size_t n, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t s)
{
    return enqueue(c, s, (part){.kind = SEND, .in = in, .count = n, .type = type, .peer = peer});
}

ncclResult_t ncclRecv(void *out, size_t n, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t s)
{
    return enqueue(c, s, (part){.kind = RECV, .out = out, .count = n, .type = type, .peer = peer});
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t where, ncclComm_t c)
{
    (void)c;
    if (where != ncclScalarHostImmediate) return ncclInvalidArgument;
    int64_t one = 1;
    double value = 0;
    const cddp_device *cpu = cddp_device_cpu();
    cddp_tensor from = cddp_tensor_of(cpu, scalar, 0, dtype_of(type), &one, 1),
                to = cddp_tensor_of(cpu, &value, 0, CDDP_F64, &one, 1);
    if (cpu->copy(&to, &from, NULL, NULL) != CDDP_OK) abort();
    int index = factor_count++ % 64;
    factors[index] = value;
    *op = (ncclRedOp_t)(ncclNumOps + index);
    return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t c)
{
    (void)op;
    (void)c;
    return ncclSuccess;
}

/* ---- communicators ---- */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id, 0, sizeof *id);
    pthread_mutex_lock(&memory->lock);
    snprintf(id->internal, sizeof id->internal, "world %llu", (unsigned long long)++memory->ids);
    pthread_mutex_unlock(&memory->lock);
    return ncclSuccess;
}

/* Finds or makes the world with this id. */
static world *world_join(const ncclUniqueId *id, int size, int rank)
{
    world *found = NULL;
    pthread_mutex_lock(&memory->lock);
    for (int i = 0; i < WORLDS && found == NULL; i++)
        if (memory->worlds[i].is_used && memcmp(&memory->worlds[i].id, id, sizeof *id) == 0)
            found = &memory->worlds[i];
    for (int i = 0; i < WORLDS && found == NULL; i++) {
        if (memory->worlds[i].is_used) continue;
        found = &memory->worlds[i];
        found->is_used = true;
        found->id = *id;
        found->size = size;
        for (uint64_t k = 0; k < SLOTS; k++) found->slots[k].index = k;
        for (uint64_t k = 0; k < RANKS * RANKS * MAIL; k++)
            found->mails[k / MAIL / RANKS][k / MAIL % RANKS][k % MAIL].index = k % MAIL;
    }
    if (found == NULL || size > RANKS) abort();
    found->joined |= 1u << rank;
    pthread_mutex_unlock(&memory->lock);
    return found;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    if (config->magic != 0xcafebeef || config->blocking != 0) return ncclInvalidArgument;
    *comm = calloc(1, sizeof **comm);
    (*comm)->rank = rank;
    (*comm)->world = world_join(&id, size, rank);
    return ncclInProgress;
}

/* Every member of the parent takes part, so the colour's size is known only by its members' keys:
** tests split whole. As NCCL 2.28 it says success at once, and the child is there when the parent's
** call is complete. */
ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *comm,
                           ncclConfig_t *config)
{
    ncclUniqueId id;
    ncclComm_t child = NULL;
    memset(&id, 0, sizeof id);
    snprintf(id.internal, sizeof id.internal, "%.60s split %llu of %d", parent->world->id.internal,
             (unsigned long long)parent->splits++, color);
    ncclResult_t code = ncclCommInitRankConfig(&child, parent->world->size, id, key, config);
    if (code != ncclInProgress) return code;
    *comm = NULL;
    pthread_mutex_lock(&memory->lock);
    parent->child = child;
    parent->child_at = comm;
    pthread_mutex_unlock(&memory->lock);
    return ncclSuccess;
}

static bool is_complete(const world *w) { return w->joined == (1u << w->size) - 1; }

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state)
{
    pthread_mutex_lock(&memory->lock);
    bool complete = is_complete(c->world);
    if (c->child_at != NULL && is_complete(c->child->world)) {
        *c->child_at = c->child;
        c->child_at = NULL;
    }
    complete = complete && c->child_at == NULL;
    pthread_mutex_unlock(&memory->lock);
    *state = broken                             ? ncclRemoteError
             : complete && c->progress_reported ? ncclSuccess
                                                : ncclInProgress;
    c->progress_reported = true;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    c->progress_reported = false;
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    free(c);
    return ncclSuccess;
}

/* Operations on streams still point to it. */
ncclResult_t ncclCommAbort(ncclComm_t c)
{
    c->aborted = true;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t code)
{
    return code == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "an error of the fake";
}

const char *ncclGetLastError(ncclComm_t c)
{
    (void)c;
    return "";
}
