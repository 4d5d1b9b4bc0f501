/* SPDX-License-Identifier: Apache-2.0 */
/* The NCCL backend: groups, works, the watchdog's thread, and the module's one symbol.
**
** Invariants:
**   N1  a work is on exactly one list, in flight or free. A released work stays in flight until the
**       GPU is done with it: its events and its stand-ins for host memory are still in use;
**   N2  works are issued in order of posting, messages together (nccl_group.h);
**   N3  the group fails once: every later call reports the first reason. The communicator is
**       aborted at once, so that no wait outlives its deadline. What an aborted operation wrote is
**       not valid: until the group is closed the host cannot read the GPU (cd_cuda_lose);
**   N4  post, test and (for device tensors without guard) wait never wait for the GPU. close does.
**
** Options of a group ("key=value,…"):
**   guard=0|1    fingerprints before each collective and host-side waits (default 0)
**   split=NAME   the communicator is split from that of group NAME, all of whose members open their
**                groups at the same point (default: made afresh)
**
** Limits: messages between two ranks pair up in order of posting; tags are not compared. A rank is
** a process: NCCL reads its settings once, and two ranks of one process would share a GPU's default
** stream.
*/
#define _POSIX_C_SOURCE 200809L
#include "backends/nccl/nccl_group.h"

#include "backends/guard/call_fingerprint.h"
#include "cddp/plugin.h"
#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/pairs.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define DEFAULT_TIMEOUT_NS UINT64_C(600000000000) /* 10 minutes, C10-05 */
#define LOOK_NS 20000000L
#define POLL_NS UINT64_C(20000)

/* The open groups of this process, for split. */
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static cd_nccl_group *open_groups;

/* ---- failure ---- */

static cddp_status report_failure(const cd_nccl_group *g, cddp_error *err)
{
    return cd_fail(err, g->watch.status, "%s", g->watch.reason);
}

/* ---- works ---- */

/* cudaErrorNotReady while the GPU works on it. A work that was never issued ends with its
** group. */
static cudaError_t progress(const cd_nccl_group *g, const cd_nccl_work *w)
{
    if (!w->issued) return g->watch.failed ? cudaSuccess : cudaErrorNotReady;
    cudaError_t code = cudaEventQuery(w->done);
    if (code != cudaSuccess) (void)cudaGetLastError();
    return code;
}

static bool is_done(const cd_nccl_group *g, const cd_nccl_work *w)
{
    return progress(g, w) != cudaErrorNotReady;
}

void cd_nccl_abort(cd_nccl_group *g)
{
    char reason[420];
    if (g->comm == NULL || g->comm_aborted) return;
    for (const cd_nccl_work *w = g->in_flight; w != NULL && !g->loses; w = w->next)
        g->loses = w->issued && !is_done(g, w);
    if (g->loses) {
        snprintf(reason, sizeof reason,
                 "rank %u, group '%s' was aborted in the middle of an operation, so what it wrote "
                 "is not valid%s%.200s",
                 g->members[g->rank], g->name, g->watch.failed ? ": " : "",
                 g->watch.failed ? g->watch.reason : "");
        cd_cuda_lose(g->cuda, reason);
    }
    (void)ncclCommAbort(g->comm);
    g->comm_aborted = true;
}

/* A failed call fails the group (N3). */
static cddp_status fail_group(cd_nccl_group *g, cddp_status status, const cddp_error *err)
{
    if (!g->watch.failed) {
        g->watch.failed = true;
        g->watch.status = status;
        snprintf(g->watch.reason, sizeof g->watch.reason, "%.380s",
                 err != NULL ? err->message : "an earlier operation failed");
    }
    cd_nccl_abort(g);
    return status;
}

static void operand_give(cd_nccl_group *g, cd_nccl_operand *o)
{
    if (o->device != NULL) {
        cd_cuda_give(g->cuda, o->bytes, o->device);
        cd_cuda_give_pinned(g->cuda, o->bytes, o->pinned);
    }
    *o = (cd_nccl_operand){0};
}

static void work_destroy(cd_nccl_group *g, cd_nccl_work *w)
{
    if (w == NULL) return;
    operand_give(g, &w->in);
    operand_give(g, &w->out);
    if (w->ready != NULL) (void)cudaEventDestroy(w->ready);
    if (w->done != NULL) (void)cudaEventDestroy(w->done);
    cd_release(g->allocator, w->counts, 2 * g->size * sizeof *w->counts);
    cd_release(g->allocator, w, sizeof *w);
}

/* Works that are released and done become free again. */
static void reap(cd_nccl_group *g)
{
    cd_nccl_work *last = NULL;
    for (cd_nccl_work **link = &g->in_flight, *w; (w = *link) != NULL;) {
        if (!w->released || !is_done(g, w)) {
            last = w;
            link = &w->next;
            continue;
        }
        *link = w->next;
        operand_give(g, &w->in);
        operand_give(g, &w->out);
        w->next = g->free_works;
        g->free_works = w;
    }
    g->in_flight_last = last;
}

static cddp_status work_create(cd_nccl_group *g, cd_nccl_work **work, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_nccl_work *w = cd_allocate_zero(g->allocator, sizeof *w);
    if (w == NULL) return cd_fail_memory(err, "an operation of group '%s'", g->name);
    w->counts = cd_allocate_array(g->allocator, 2 * g->size, sizeof *w->counts);
    if (w->counts == NULL) {
        status = cd_fail_memory(err, "the counts of %u ranks", g->size);
        goto out;
    }
    CD_TRY_OUT(cd_cuda_check(cudaEventCreateWithFlags(&w->ready, cudaEventDisableTiming),
                             "cudaEventCreateWithFlags", err));
    CD_TRY_OUT(cd_cuda_check(cudaEventCreateWithFlags(&w->done, cudaEventDisableTiming),
                             "cudaEventCreateWithFlags", err));
    *work = w;
    return CDDP_OK;
out:
    work_destroy(g, w);
    return status;
}

static cddp_status counts_copy(const cd_nccl_group *g, cd_nccl_work *w, cddp_error *err)
{
    const cddp_collective *c = &w->call;
    for (uint32_t r = 0; r < g->size; r++) {
        w->counts[r] = c->counts != NULL ? c->counts[r] : 0;
        w->counts[g->size + r] = c->send_counts != NULL ? c->send_counts[r] : 0;
        if (w->counts[r] < 0 || w->counts[g->size + r] < 0)
            return cd_fail(err, CDDP_E_ARG, "%s: the count of rank %u is negative",
                           cddp_op_name(c->op), r);
    }
    if (c->counts != NULL) w->call.counts = w->counts;
    if (c->send_counts != NULL) w->call.send_counts = w->counts + g->size;
    return CDDP_OK;
}

/* Device memory is used directly. Host memory gets a stand-in, filled from the tensor when it is
** an input. */
static cddp_status operand_take(cd_nccl_group *g, const cddp_tensor *t, bool is_read,
                                cd_nccl_operand *o, cddp_error *err)
{
    if (t->device == NULL) return CDDP_OK;
    o->data = (char *)t->storage + (size_t)t->offset * cddp_dtype_bytes(t->dtype);
    o->bytes = (size_t)cddp_tensor_numel(t) * cddp_dtype_bytes(t->dtype);
    if (t->device->self == g->cuda && (t->device->flags & CDDP_DEVICE_ASYNC) != 0) return CDDP_OK;
    if ((t->device->flags & CDDP_DEVICE_HOST) == 0 || (t->device->flags & CDDP_DEVICE_VALUES) == 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "nccl: tensors on device %s cannot be sent",
                       t->device->name);
    CD_TRY(cd_cuda_take(g->cuda, o->bytes, &o->device, err));
    cddp_status status = cd_cuda_take_pinned(g->cuda, o->bytes, &o->pinned, err);
    if (status != CDDP_OK) {
        cd_cuda_give(g->cuda, o->bytes, o->device);
        o->device = NULL;
        return status;
    }
    if (is_read && o->bytes > 0) memcpy(o->pinned, o->data, o->bytes);
    o->data = o->device;
    return CDDP_OK;
}

static bool same_memory(const cddp_tensor *a, const cddp_tensor *b)
{
    return a->device != NULL && b->device != NULL && a->storage == b->storage &&
           a->offset == b->offset;
}

/* An operation in place has one operand, the output, which then also has the input's bytes. */
static cddp_status operands_take(cd_nccl_group *g, cd_nccl_work *w, cddp_error *err)
{
    const cddp_collective *c = &w->call;
    bool in_place = (c->op == CDDP_OP_ALLREDUCE || c->op == CDDP_OP_REDUCE) &&
                    same_memory(&c->input, &c->output);
    if (c->op != CDDP_OP_BROADCAST && !in_place)
        CD_TRY(operand_take(g, &c->input, true, &w->in, err));
    CD_TRY(operand_take(g, &c->output, in_place || c->op == CDDP_OP_BROADCAST, &w->out, err));
    if (in_place) {
        w->in = w->out;
        w->in.device = w->in.pinned = NULL; /* the output releases it */
    }
    w->on_host =
        w->in.device != NULL || w->out.device != NULL || c->op == CDDP_OP_BARRIER || g->guard;
    return CDDP_OK;
}

/* Copies the GPU's result into the caller's memory. */
static void deliver(cd_nccl_group *g, cd_nccl_work *w)
{
    const cddp_tensor *t = &w->call.output;
    bool is_mine = w->call.op != CDDP_OP_REDUCE || g->rank == w->call.root;
    if (w->out.device == NULL || w->out.bytes == 0 || !is_mine) return;
    memcpy((char *)t->storage + (size_t)t->offset * cddp_dtype_bytes(t->dtype), w->out.pinned,
           w->out.bytes);
}

/* ---- post ---- */

static bool is_message(cddp_op op) { return op == CDDP_OP_SEND || op == CDDP_OP_RECV; }

static void append(cd_nccl_group *g, cd_nccl_work *w)
{
    w->next = NULL;
    if (g->in_flight_last != NULL)
        g->in_flight_last->next = w;
    else
        g->in_flight = w;
    g->in_flight_last = w;
}

static cddp_status work_begin(cd_nccl_group *g, const cddp_collective *c, cd_nccl_work *w,
                              cddp_error *err)
{
    w->call = *c;
    w->issued = w->is_ordered = w->released = false;
    w->posted_ns = cd_os_now_ns();
    w->deadline_ns = w->posted_ns + (c->timeout_ns != 0 ? c->timeout_ns : g->timeout_ns);
    if (is_message(c->op) && c->root == g->rank)
        return cd_fail(err, CDDP_E_ARG, "%s names its own rank %u", cddp_op_name(c->op),
                       g->members[g->rank]);
    CD_TRY(counts_copy(g, w, err));
    CD_TRY(operands_take(g, w, err));
    return CDDP_OK;
}

static cddp_status post_locked(cd_nccl_group *g, const cddp_collective *c, cd_nccl_work *w,
                               cddp_error *err)
{
    cddp_status status = CDDP_OK;
    if (g->watch.failed) return CD_PASS(report_failure(g, err));
    CD_TRY(cd_cuda_record(g->cuda, w->ready, cd_cuda_stream(g->cuda, c->stream), err));
    if (is_message(c->op)) {
        append(g, w);
        return CDDP_OK;
    }
    CD_TRY_OUT(cd_nccl_issue_messages(g, err));
    if (g->guard && g->size > 1) CD_TRY_OUT(cd_nccl_guard(g, w, err));
    CD_TRY_OUT(cd_nccl_issue(g, w, err));
    append(g, w);
    return CDDP_OK;
out:
    /* Without err only later calls lose the reason. */
    return CD_PASS(fail_group(g, status, err));
}

static cddp_status nccl_post(void *group, const cddp_collective *collective, void **work,
                             cddp_error *err)
{
    cd_nccl_group *g = group;
    cddp_status status = CDDP_OK;
    pthread_mutex_lock(&g->lock);
    reap(g);
    cd_nccl_work *w = g->free_works;
    if (w != NULL)
        g->free_works = w->next;
    else
        status = work_create(g, &w, err);
    if (status == CDDP_OK) {
        w->next = NULL;
        status = work_begin(g, collective, w, err);
        if (status == CDDP_OK) status = post_locked(g, collective, w, err);
        if (status == CDDP_OK) {
            *work = w;
        } else if (g->stream != NULL && g->comm_aborted) {
            /* Parts of it may be on the stream; they end with the communicator. */
            w->issued = cudaEventRecord(w->done, g->stream) == cudaSuccess;
            w->released = true;
            append(g, w);
        } else {
            operand_give(g, &w->in);
            operand_give(g, &w->out);
            w->next = g->free_works;
            g->free_works = w;
        }
    }
    pthread_mutex_unlock(&g->lock);
    return status;
}

/* ---- the end of a work ---- */

/* Under the lock. *done when the GPU is done. A failed group fails every work that has not
** ended. */
static cddp_status look_at(cd_nccl_group *g, cd_nccl_work *w, bool *done, cddp_error *err)
{
    if (!w->issued && !g->watch.failed) {
        cddp_status status = cd_nccl_issue_messages(g, err);
        if (status != CDDP_OK) return CD_PASS(fail_group(g, status, err));
    }
    if (g->watch.failed) return CD_PASS(report_failure(g, err));
    cudaError_t code = progress(g, w);
    if (code != cudaSuccess && code != cudaErrorNotReady) {
        cddp_status status = cd_cuda_check(code, cddp_op_name(w->call.op), err);
        return CD_PASS(fail_group(g, status, err));
    }
    *done = code == cudaSuccess;
    if (*done) deliver(g, w);
    return CDDP_OK;
}

static cddp_status nccl_test(void *group, void *work, bool *done, cddp_error *err)
{
    cd_nccl_group *g = group;
    bool ended = false;
    pthread_mutex_lock(&g->lock);
    cddp_status status = look_at(g, work, &ended, err);
    if (status == CDDP_OK && ended) {
        cd_observe_passed(&g->cuda->observer, ((cd_nccl_work *)work)->done);
        ((cd_nccl_work *)work)->is_ordered = true;
    }
    pthread_mutex_unlock(&g->lock);
    if (status == CDDP_OK) *done = ended;
    return status;
}

static cddp_status wait_on_host(cd_nccl_group *g, cd_nccl_work *w, uint64_t timeout_ns,
                                cddp_error *err)
{
    uint64_t limit_ns = timeout_ns != 0 ? cd_os_now_ns() + timeout_ns : UINT64_MAX;
    g->cuda->host_waits++;
    for (;;) {
        bool done = false;
        CD_TRY(nccl_test(g, w, &done, err));
        if (done) return CDDP_OK;
        if (cd_os_now_ns() >= limit_ns)
            return cd_fail(err, CDDP_E_TIMEOUT, "nccl: not done within %" PRIu64 " ms",
                           timeout_ns / 1000000);
        cd_os_sleep_ns(POLL_NS);
    }
}

static cddp_status wait_on_stream(cd_nccl_group *g, cd_nccl_work *w, cddp_error *err)
{
    bool done = false;
    pthread_mutex_lock(&g->lock);
    cddp_status status = look_at(g, w, &done, err);
    if (status == CDDP_OK)
        status = cd_cuda_wait(g->cuda, cd_cuda_stream(g->cuda, w->call.stream), w->done, err);
    if (status == CDDP_OK) w->is_ordered = true;
    pthread_mutex_unlock(&g->lock);
    return status;
}

static cddp_status nccl_wait(void *group, void *work, uint64_t timeout_ns, cddp_error *err)
{
    cd_nccl_group *g = group;
    cd_nccl_work *w = work;
    CD_TRY(w->on_host ? wait_on_host(g, w, timeout_ns, err) : wait_on_stream(g, w, err));
    return CDDP_OK;
}

static void nccl_release(void *group, void *work)
{
    cd_nccl_group *g = group;
    cd_nccl_work *w = work;
    pthread_mutex_lock(&g->lock);
    /* Abandoned: the tensors are the caller's again, and its stream comes behind the operation. */
    if (w->issued && !w->is_ordered && !g->watch.failed) {
        const cudaStream_t stream = cd_cuda_stream(g->cuda, w->call.stream);
        const cddp_status ordered = cd_cuda_wait(g->cuda, stream, w->done, NULL);
        (void)ordered; /* what is wrong with the GPU the next call says */
    }
    w->released = true;
    reap(g);
    pthread_mutex_unlock(&g->lock);
}

static cddp_status nccl_abort(void *group, const char *reason, cddp_error *err)
{
    cd_nccl_group *g = group;
    (void)err;
    pthread_mutex_lock(&g->lock);
    if (cd_watch_abort(&g->watch, reason)) cd_nccl_abort(g);
    pthread_mutex_unlock(&g->lock);
    return CDDP_OK;
}

static void nccl_describe(void *group, void *work, char *text, size_t text_bytes)
{
    const cd_nccl_group *g = group;
    const cd_nccl_work *w = work;
    snprintf(text, text_bytes, "%s %s on the stream of group '%s'", cddp_op_name(w->call.op),
             w->issued ? "is" : "is not yet", g->name);
}

/* ---- the watchdog ---- */

/* Under the lock. */
static void look(cd_nccl_group *g)
{
    cd_watch_look l = {.now_ns = cd_os_now_ns()};
    ncclResult_t state = ncclSuccess;
    if (g->watch.failed) return;
    if (ncclCommGetAsyncError(g->comm, &state) == ncclSuccess && state != ncclSuccess &&
        state != ncclInProgress)
        l.async_error = ncclGetErrorString(state);
    for (cd_nccl_work *w = g->in_flight; w != NULL && !l.has_oldest; w = w->next) {
        if (!w->issued || is_done(g, w)) continue; /* a postponed message has not begun */
        l.has_oldest = true;
        l.op = w->call.op;
        l.sequence = w->call.sequence;
        l.posted_ns = w->posted_ns;
        l.deadline_ns = w->deadline_ns;
    }
    if (cd_watch_step(&g->watch, &l)) cd_nccl_abort(g);
}

static void *watchdog_main(void *argument)
{
    cd_nccl_group *g = argument;
    (void)cudaSetDevice(g->cuda->ordinal);
    pthread_mutex_lock(&g->lock);
    while (!g->closing) {
        struct timespec until;
        look(g);
        reap(g);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK_NS;
        if (until.tv_nsec >= 1000000000L) {
            until.tv_nsec -= 1000000000L;
            until.tv_sec++;
        }
        pthread_cond_timedwait(&g->wake, &g->lock, &until);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* ---- groups ---- */

static cddp_status take_option(void *self, const char *key, const char *value, cddp_error *err)
{
    cd_nccl_group *g = self;
    if (strcmp(key, "guard") == 0 && (strcmp(value, "0") == 0 || strcmp(value, "1") == 0))
        g->guard = value[0] == '1';
    else if (strcmp(key, "split") == 0 && value[0] != '\0')
        snprintf(g->split_of, sizeof g->split_of, "%s", value);
    else
        return cd_fail(err, CDDP_E_CONFIG,
                       "group '%s': nccl knows guard=0|1 and split=GROUP, not %s=%s", g->name, key,
                       value);
    return CDDP_OK;
}

static cddp_status parse_options(cd_nccl_group *g, const char *options, cddp_error *err)
{
    char owner[sizeof g->name + 16];
    snprintf(owner, sizeof owner, "group '%s'", g->name);
    return CD_PASS(cd_pairs_read(owner, options, take_option, g, err));
}

static void list_add(cd_nccl_group *g)
{
    pthread_mutex_lock(&open_lock);
    g->next_open = open_groups;
    open_groups = g;
    pthread_mutex_unlock(&open_lock);
}

static void list_remove(const cd_nccl_group *g)
{
    pthread_mutex_lock(&open_lock);
    for (cd_nccl_group **link = &open_groups; *link != NULL; link = &(*link)->next_open) {
        if (*link != g) continue;
        *link = g->next_open;
        break;
    }
    pthread_mutex_unlock(&open_lock);
}

static cddp_status parent_find(const cd_nccl_group *g, const cd_nccl_group **parent,
                               cddp_error *err)
{
    *parent = NULL;
    if (g->split_of[0] == '\0') return CDDP_OK;
    pthread_mutex_lock(&open_lock);
    for (cd_nccl_group *p = open_groups; p != NULL && *parent == NULL; p = p->next_open)
        if (p->members[p->rank] == g->members[g->rank] && strcmp(p->name, g->split_of) == 0)
            *parent = p;
    pthread_mutex_unlock(&open_lock);
    if (*parent == NULL)
        return cd_fail(err, CDDP_E_CONFIG, "group '%s': there is no open group '%s' to split from",
                       g->name, g->split_of);
    return CDDP_OK;
}

static cddp_status buffers_take(cd_nccl_group *g, cddp_error *err)
{
    const size_t bytes = (g->size + 1) * sizeof(cd_call_fingerprint);
    CD_TRY(cd_cuda_take(g->cuda, bytes, &g->guard_device, err));
    CD_TRY(cd_cuda_take_pinned(g->cuda, bytes, &g->guard_host, err));
    CD_TRY(cd_cuda_take(g->cuda, sizeof(int32_t), &g->flag, err));
    /* Pooled memory belongs to the default stream, which may still use it. */
    CD_TRY(cd_cuda_check(cudaStreamSynchronize(g->cuda->stream), "opening a group", err));
    CD_TRY(cd_cuda_check(cudaMemsetAsync(g->flag, 0, sizeof(int32_t), g->stream), "cudaMemsetAsync",
                         err));
    return CDDP_OK;
}

static cddp_status watchdog_start(cd_nccl_group *g, cddp_error *err)
{
    int code = pthread_create(&g->watchdog, NULL, watchdog_main, g);
    if (code != 0)
        return cd_fail(err, CDDP_E_IO, "group '%s': the watchdog does not start: %s", g->name,
                       strerror(code));
    g->watchdog_runs = true;
    return CDDP_OK;
}

/* Lets operations in flight end. The watchdog aborts those that outlive their deadline. An
** operation that does not end even then keeps its memory on the GPU. */
static void drain(cd_nccl_group *g)
{
    uint64_t limit_ns = cd_os_now_ns() + g->timeout_ns + UINT64_C(5000000000);
    if (!g->watchdog_runs) return;
    pthread_mutex_lock(&g->lock);
    for (cd_nccl_work *w = g->in_flight; w != NULL; w = w->next) w->released = true;
    if (!g->watch.failed && cd_nccl_issue_messages(g, NULL) != CDDP_OK)
        (void)fail_group(g, CDDP_E_BACKEND, NULL);
    for (reap(g); g->in_flight != NULL && cd_os_now_ns() < limit_ns; reap(g)) {
        pthread_mutex_unlock(&g->lock);
        cd_os_sleep_ns(POLL_NS);
        pthread_mutex_lock(&g->lock);
    }
    pthread_mutex_unlock(&g->lock);
}

static void comm_close(cd_nccl_group *g)
{
    if (g->comm == NULL || g->comm_aborted) return;
    uint64_t deadline_ns = cd_os_now_ns() + g->timeout_ns;
    if (cd_nccl_settle(g, ncclCommFinalize(g->comm), "ncclCommFinalize", deadline_ns, NULL) ==
        CDDP_OK)
        (void)ncclCommDestroy(g->comm);
    else
        cd_nccl_abort(g);
}

static void nccl_observe(void *group, cddp_tracer *tracer)
{
    cd_nccl_group *g = group;
    if (!g->observes) g->observes = cd_observer_add(&g->cuda->observer, tracer, g->cuda->stream);
}

static void nccl_close(void *group)
{
    cd_nccl_group *g = group;
    if (g == NULL) return;
    list_remove(g);
    drain(g);
    if (g->observes) cd_observer_remove(&g->cuda->observer);
    if (g->watchdog_runs) {
        pthread_mutex_lock(&g->lock);
        g->closing = true;
        pthread_cond_signal(&g->wake);
        pthread_mutex_unlock(&g->lock);
        pthread_join(g->watchdog, NULL);
        g->watchdog_runs = false;
    }
    comm_close(g);
    if (g->stream != NULL) (void)cudaStreamSynchronize(g->stream);
    for (cd_nccl_work *w; (w = g->free_works) != NULL;) {
        g->free_works = w->next;
        work_destroy(g, w);
    }
    const size_t bytes = (g->size + 1) * sizeof(cd_call_fingerprint);
    if (g->cuda->is_open) {
        cd_cuda_give(g->cuda, bytes, g->guard_device);
        cd_cuda_give_pinned(g->cuda, bytes, g->guard_host);
        cd_cuda_give(g->cuda, sizeof(int32_t), g->flag);
    }
    if (g->stream != NULL) (void)cudaStreamDestroy(g->stream);
    if (g->loses) cd_cuda_forget_loss(g->cuda);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->wake);
    cd_release(g->allocator, g->members, g->size * sizeof *g->members);
    cd_release(g->allocator, g, sizeof *g);
}

static cddp_status group_create(const cddp_backend *backend, const cddp_rank *rank,
                                const cddp_group_spec *spec, cd_nccl_group **group, cddp_error *err)
{
    cd_nccl_group *g = cd_allocate_zero(rank->allocator, sizeof *g);
    if (g == NULL) return cd_fail_memory(err, "group '%s'", spec->name);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->wake, NULL);
    g->allocator = rank->allocator;
    g->cuda = &cd_cuda_here;
    g->rendezvous = backend->self;
    g->rank = spec->group_rank;
    g->size = spec->group_size;
    g->timeout_ns = spec->timeout_ns != 0 ? spec->timeout_ns : DEFAULT_TIMEOUT_NS;
    snprintf(g->name, sizeof g->name, "%s", spec->name);
    g->members = cd_allocate_array(g->allocator, g->size, sizeof *g->members);
    if (g->members == NULL) {
        nccl_close(g);
        return cd_fail_memory(err, "group '%s' of %u", spec->name, spec->group_size);
    }
    memcpy(g->members, spec->members, g->size * sizeof *g->members);
    g->watch.rank = g->members[g->rank];
    g->watch.group = g->name;
    *group = g;
    return CDDP_OK;
}

static cddp_status nccl_open(const cddp_backend *backend, cddp_rank *rank,
                             const cddp_group_spec *spec, void **group, cddp_error *err)
{
    cd_nccl_group *g = NULL;
    const cd_nccl_group *parent = NULL;
    cddp_status status = CDDP_OK;
    if (backend->self == NULL)
        return cd_fail(err, CDDP_E_CONFIG,
                       "backend nccl needs a rendezvous (tcp://host:port or file:///directory)");
    if (strlen(spec->name) > 100)
        return cd_fail(err, CDDP_E_LIMIT, "group name '%s' is longer than 100 bytes", spec->name);
    CD_TRY(group_create(backend, rank, spec, &g, err));
    CD_TRY_OUT(parse_options(g, spec->options, err));
    CD_TRY_OUT(parent_find(g, &parent, err));
    CD_TRY_OUT(cd_nccl_world_open(g, rank, err));
    CD_TRY_OUT(cd_cuda_check(cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking),
                             "cudaStreamCreateWithFlags", err));
    CD_TRY_OUT(cd_nccl_comm_open(g, parent, err));
    CD_TRY_OUT(buffers_take(g, err));
    CD_TRY_OUT(watchdog_start(g, err));
    list_add(g);
    *group = g;
    return CDDP_OK;
out:
    nccl_close(g);
    return status;
}

static cddp_status nccl_probe(const cddp_backend *backend, cddp_error *err)
{
    (void)backend;
    return CD_PASS(cd_cuda_probe(err));
}

/* ---- the module ---- */

#define ALL_OPS ((1u << CDDP_OP_COUNT) - 1)

static const cddp_backend nccl = {
    .size = sizeof nccl,
    .abi = CDDP_BACKEND_ABI,
    .name = "nccl",
    /* Rings, trees and switches compute each element in one place and send it to all: equal bits
    ** on all ranks, in NCCL's own association. The promise makes I-GRADEQ and related checks verify
    ** it (C10-09). */
    .capabilities = {.size = sizeof(cddp_capabilities),
                     .ops = ALL_OPS,
                     .dtypes = CD_NCCL_DTYPES,
                     .reduce_ops = CD_NCCL_RED_OPS,
                     .devices = CDDP_DEVICE_HOST | CDDP_DEVICE_ASYNC,
                     .in_place = true,
                     .async = true,
                     .order = CDDP_ORDER_SAME,
                     .algorithm = "nccl",
                     .world_size_max = 65536,
                     .guards = true},
    .open = nccl_open,
    .close = nccl_close,
    .post = nccl_post,
    .test = nccl_test,
    .wait = nccl_wait,
    .release = nccl_release,
    .abort = nccl_abort,
    .describe = nccl_describe,
    .probe = nccl_probe,
    .device = &cd_cuda_device,
    .observe = nccl_observe,
};

static const cddp_backend *const backends[] = {&nccl, NULL};

CDDP_PLUGIN_EXPORT const cddp_plugin cddp_plugin_v1;
const cddp_plugin cddp_plugin_v1 = {.size = sizeof cddp_plugin_v1,
                                    .abi = CDDP_PLUGIN_ABI,
                                    .name = "nccl",
                                    .version = "NCCL 2",
                                    .backends = backends};
