/* SPDX-License-Identifier: Apache-2.0 */
/* The Gloo backend: groups, works, and the queue thread that runs collectives in order of
** posting.
**
** Gloo itself is synchronous. A group has one queue thread (the collective lane). post starts a
** point-to-point message, and more lanes wait for it: one for what is sent, one for what each peer
** sends here. So ranks that all send before they receive do not block each other, and a message
** ends when it came, whoever else is late.
**
** Invariants:
**   B1  SIGPIPE is blocked in every thread that may write to a socket;
**   B2  a work is in exactly one lane's queue until it is done, and release waits for that;
**   B3  the collective lane opens and uses the context (started messages use it too); it is closed
**       after all lanes ended;
**   B4  every operation ends by its deadline: each wait inside it has the time that is left;
**   B5  an operation that ended, well or not, no longer touches its tensors: one that fails with
**       messages in flight closes the group's connections first. The group then refuses all work;
**       its peers notice at once.
**
** Options of a group ("key=value,…"):
**   guard=0|1               fingerprints before each collective (default 1)
**   algorithm=native|ring   the library's ring and tree, or ours, which can be aborted (default
**                           native)
**   loop=usual|batch        batch: the event loop's thread runs as SCHED_BATCH. Faster where
**                           processors are idle, slower beside busy programs (default usual)
**
** Limits: a native operation in the middle of a message ends at its time-out when the group is
** aborted or its peer dies: Gloo does not report that to it.
*/
#define _POSIX_C_SOURCE 200809L
#include "backends/gloo/gloo_group.h"

#include "cddp/plugin.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/os.h"
#include "core/base/pairs.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_TIMEOUT_NS UINT64_C(1800000000000) /* 30 minutes, C10-05 */

void *cd_gloo_scratch(cd_gloo_group *group, size_t bytes)
{
    if (bytes == 0) bytes = 1; /* an empty buffer is still a buffer */
    if (bytes > group->scratch_bytes) {
        cd_release(group->allocator, group->scratch, group->scratch_bytes);
        group->scratch = cd_allocate(group->allocator, bytes);
        group->scratch_bytes = group->scratch != NULL ? bytes : 0;
    }
    return group->scratch;
}

/* ---- lanes ---- */

static bool is_message(cddp_op op) { return op == CDDP_OP_SEND || op == CDDP_OP_RECV; }

static uint32_t lane_of(const cddp_collective *c)
{
    return c->op == CDDP_OP_SEND   ? (uint32_t)CD_GLOO_LANE_SEND
           : c->op == CDDP_OP_RECV ? (uint32_t)CD_GLOO_LANE_RECV + c->root
                                   : (uint32_t)CD_GLOO_LANE_COLLECTIVE;
}

static cddp_status message_late(const cd_gloo_group *g, const cd_gloo_work *w, cddp_error *err)
{
    const bool sends = w->call.op == CDDP_OP_SEND;
    const cddp_tensor *t = sends ? &w->call.input : &w->call.output;
    return cd_fail(err, CDDP_E_TIMEOUT,
                   "lost rank %u: it did not %s %zu bytes with tag %" PRIu64 " %s rank %u within "
                   "%.3g s",
                   g->members[w->call.root], sends ? "receive" : "send",
                   (size_t)cddp_tensor_numel(t) * cddp_dtype_bytes(t->dtype), w->call.tag,
                   sends ? "from" : "to", g->members[g->rank], (double)w->timeout_ns / 1e9);
}

static cddp_status message_finish(cd_gloo_group *g, cd_gloo_work *w, cddp_error *err)
{
    char text[CD_GLOO_TEXT_BYTES];
    bool sends = w->call.op == CDDP_OP_SEND;
    int64_t left = cd_gloo_milliseconds_left(w);
    cd_gloo_code code = sends ? cd_gloo_wait_send(w->message, left, text)
                              : cd_gloo_wait_recv(w->message, left, text);
    w->lost_its_peer = code == CD_GLOO_IO;
    if (w->lost_its_peer)
        cd_gloo_buffer_forget(w->message);
    else
        cd_gloo_buffer_destroy(w->message);
    w->message = NULL;
    if (code == CD_GLOO_TIMEOUT) return CD_PASS(message_late(g, w, err));
    if (code != CD_GLOO_OK) return CD_PASS(cd_gloo_fail(g, code, w->call.root, text, err));
    return CDDP_OK;
}

static cddp_status work_do(cd_gloo_group *g, cd_gloo_work *w, cddp_error *err)
{
    if (w->message != NULL) return CD_PASS(message_finish(g, w, err));
    if (is_message(w->call.op)) return CDDP_OK; /* no data moves */
    if (cd_gloo_is_aborted(g)) return CD_PASS(cd_gloo_fail(g, CD_GLOO_CLOSED, -1, "", err));
    return CD_PASS(cd_gloo_collective_run(g, w, err));
}

/* What fails in the middle ends the group (B5), and its peers learn why from the guard. Before data
** moves nothing is lost: ranks that disagree may go on. A message whose connection ended leaves the
** others as they are: a monitored barrier still hears them. */
static cddp_status work_run(cd_os_job *job, cddp_error *err)
{
    cd_gloo_work *w = (cd_gloo_work *)(void *)job;
    cd_gloo_group *g = w->group;
    cddp_status status = work_do(g, w, err);
    const bool is_over =
        status == CDDP_E_TIMEOUT || status == CDDP_E_BACKEND || status == CDDP_E_ABORTED;
    if (w->lost_its_peer) {
        pthread_mutex_lock(&g->lanes.lock);
        g->lost = g->members[w->call.root];
        pthread_mutex_unlock(&g->lanes.lock);
    }
    if (!is_over || w->lost_its_peer || g->mesh == NULL) return status;
    cd_mesh_leave(g->mesh,
                  is_message(w->call.op) ? g->members[w->call.root] : cd_mesh_find_lost(g->mesh));
    cd_gloo_disconnect(g->gloo, err->message);
    return status;
}

static bool store_set(void *store, const char *key, const void *bytes, size_t byte_count)
{
    cd_gloo_group *g = store;
    char full[CDDP_RENDEZVOUS_KEY_BYTES_MAX];
    snprintf(full, sizeof full, "%s%s", g->prefix, key);
    return g->rendezvous->set(g->rendezvous->self, full, bytes, byte_count, &g->store_error) ==
           CDDP_OK;
}

static bool store_get(void *store, const char *key, int64_t timeout_ms, void *bytes,
                      size_t *byte_count)
{
    cd_gloo_group *g = store;
    char full[CDDP_RENDEZVOUS_KEY_BYTES_MAX];
    snprintf(full, sizeof full, "%s%s", g->prefix, key);
    return g->rendezvous->get(g->rendezvous->self, full, (uint64_t)timeout_ms * 1000000, bytes,
                              byte_count, &g->store_error) == CDDP_OK;
}

/* Each opening of a name uses its own keys, so that a second group of that name finds nothing
** stale. */
static cddp_status prefix_choose(cd_gloo_group *g, cddp_error *err)
{
    char key[CDDP_RENDEZVOUS_KEY_BYTES_MAX];
    int64_t opening = 0;
    snprintf(key, sizeof key, "gloo/%s/%u/opens", g->name, g->rank);
    CD_TRY(g->rendezvous->add(g->rendezvous->self, key, 1, &opening, err));
    snprintf(g->prefix, sizeof g->prefix, "gloo/%s/%" PRId64 "/", g->name, opening);
    return CDDP_OK;
}

static cddp_status mesh_open(cd_gloo_group *g, uint64_t wait_ns, cddp_error *err)
{
    const cd_mesh_options options = {.rank = g->rank,
                                     .size = g->size,
                                     .members = g->members,
                                     .rendezvous = g->rendezvous,
                                     .prefix = g->prefix,
                                     .timeout_ns = wait_ns};
    cddp_error why = CDDP_ERROR_INIT;
    const cddp_status status = cd_mesh_open(&options, &g->mesh, &why);
    if (status == CDDP_E_TIMEOUT)
        return cd_fail(err, status,
                       "group '%s': not all of %u ranks came within %" PRIu64 " ms: %s", g->name,
                       g->size, wait_ns / 1000000, why.message);
    if (status != CDDP_OK)
        return cd_fail(err, status, "group '%s' cannot connect its guard: %s", g->name,
                       why.message);
    return CDDP_OK;
}

static cddp_status context_open(cd_gloo_group *g, cddp_error *err)
{
    CD_TRY(prefix_choose(g, err));
    uint64_t wait_ns =
        g->rendezvous->timeout_ns < g->timeout_ns ? g->rendezvous->timeout_ns : g->timeout_ns;
    if (g->guard && g->size > 1) CD_TRY(mesh_open(g, wait_ns, err));
    cd_gloo_open open = {.rank = (int)g->rank,
                         .size = (int)g->size,
                         .host = g->rendezvous->bind_host,
                         .timeout_ms = (int64_t)(wait_ns / 1000000 + 1),
                         .batch = g->batch,
                         .store = g,
                         .store_set = store_set,
                         .store_get = store_get};
    char text[CD_GLOO_TEXT_BYTES];
    cd_gloo_code code = cd_gloo_context_open(&open, &g->gloo, text);
    const bool stores = g->store_error.status != CDDP_OK &&
                        g->store_error.status != CDDP_E_TIMEOUT; /* Gloo says only "refused" */
    if (code != CD_GLOO_OK && stores)
        return cd_fail(err, g->store_error.status, "group '%s' cannot connect its ranks: %s",
                       g->name, g->store_error.message);
    if (code == CD_GLOO_SHORTAGE)
        return cd_fail(err, CDDP_E_NOMEM, "group '%s' cannot connect its ranks (gloo: %s)", g->name,
                       text);
    if (code == CD_GLOO_TIMEOUT)
        return cd_fail(err, CDDP_E_TIMEOUT,
                       "group '%s': not all of %u ranks came within %" PRIu64 " ms (gloo: %s)",
                       g->name, g->size, wait_ns / 1000000, text);
    if (code != CD_GLOO_OK)
        return cd_fail(err, CDDP_E_BACKEND, "group '%s' cannot connect its ranks (gloo: %s)",
                       g->name, text);
    return CDDP_OK;
}

static cddp_status open_run(cd_os_job *job, cddp_error *err)
{
    return CD_PASS(context_open(((cd_gloo_work *)(void *)job)->group, err));
}

/* ---- groups ---- */

static cddp_status take_option(void *self, const char *key, const char *value, cddp_error *err)
{
    cd_gloo_group *g = self;
    if (strcmp(key, "guard") == 0 && (strcmp(value, "0") == 0 || strcmp(value, "1") == 0))
        g->guard = value[0] == '1';
    else if (strcmp(key, "algorithm") == 0 && strcmp(value, "native") == 0)
        g->own_ring = false;
    else if (strcmp(key, "algorithm") == 0 && strcmp(value, "ring") == 0)
        g->own_ring = true;
    else if (strcmp(key, "loop") == 0 && strcmp(value, "usual") == 0)
        g->batch = false;
    else if (strcmp(key, "loop") == 0 && strcmp(value, "batch") == 0)
        g->batch = true;
    else
        return cd_fail(err, CDDP_E_CONFIG,
                       "group '%s': gloo knows guard=0|1, algorithm=native|ring and "
                       "loop=usual|batch, not %s=%s",
                       g->name, key, value);
    return CDDP_OK;
}

static cddp_status parse_options(cd_gloo_group *g, const char *options, cddp_error *err)
{
    char owner[sizeof g->name + 16];
    snprintf(owner, sizeof owner, "group '%s'", g->name);
    return CD_PASS(cd_pairs_read(owner, options, take_option, g, err));
}

static void gloo_close(void *group)
{
    cd_gloo_group *g = group;
    if (g == NULL) return;
    cd_os_lanes_fini(&g->lanes);
    if (g->mesh != NULL && g->lost != CD_MESH_NOBODY) cd_mesh_leave(g->mesh, g->lost);
    cd_os_sigpipe guard;
    cd_os_sigpipe_begin(&guard);
    cd_gloo_context_close(g->gloo);
    cd_os_sigpipe_end(&guard);
    cd_mesh_close(g->mesh);
    cd_release(g->allocator, g->scratch, g->scratch_bytes);
    cd_call_room_fini(&g->room);
    cd_arena_fini(&g->arena);
}

static cddp_status gloo_open(const cddp_backend *backend, cddp_rank *rank,
                             const cddp_group_spec *spec, void **group, cddp_error *err)
{
    if (backend->self == NULL)
        return cd_fail(err, CDDP_E_CONFIG,
                       "backend gloo needs a rendezvous (tcp://host:port or file:///directory)");
    cddp_status status = CDDP_OK;
    /* The heap, not the rank's allocator: lanes allocate while this thread makes and frees
    ** works. */
    (void)rank;
    cd_arena arena;
    cd_arena_init(&arena, NULL, 4096);
    cd_gloo_group *g = cd_arena_push(&arena, sizeof *g);
    if (g == NULL) return cd_fail_memory(err, "group '%s'", spec->name);
    g->arena = arena;
    g->rendezvous = backend->self;
    g->rank = spec->group_rank;
    g->size = spec->group_size;
    g->timeout_ns = spec->timeout_ns != 0 ? spec->timeout_ns : DEFAULT_TIMEOUT_NS;
    g->waiting_peer = -1;
    g->lost = CD_MESH_NOBODY;
    g->guard = true;
    snprintf(g->name, sizeof g->name, "%s", spec->name);
    cd_os_lanes_init(&g->lanes);
    g->members = cd_arena_array(&g->arena, g->size, sizeof *g->members);
    g->receives = cd_arena_array(&g->arena, g->size, sizeof *g->receives);
    if (g->members == NULL || g->receives == NULL) {
        status = cd_fail_memory(err, "group '%s' of %u", spec->name, g->size);
        goto out;
    }
    cd_os_lanes_add(&g->lanes, g->receives, g->size);
    memcpy(g->members, spec->members, g->size * sizeof *g->members);
    if (strlen(spec->name) > 100) {
        status = cd_fail(err, CDDP_E_LIMIT, "group name '%s' is longer than 100 bytes", spec->name);
        goto out;
    }
    CD_TRY_OUT(parse_options(g, spec->options, err));
    /* The lane that uses the context also opens it, so that Gloo's own thread inherits its signal
    ** mask (B1). */
    cd_gloo_work opening = {.job = {.run = open_run}, .group = g};
    CD_TRY_OUT(cd_os_lane_push(&g->lanes, CD_GLOO_LANE_COLLECTIVE, &opening.job, err));
    cd_os_job_wait(&g->lanes, &opening.job, 0);
    CD_TRY_OUT(cd_os_job_outcome(&opening.job, err));
    *group = g;
    return CDDP_OK;
out:
    gloo_close(g);
    return status;
}

/* ---- works ---- */

static void work_free(cd_gloo_work *w)
{
    cd_gloo_buffer_destroy(w->message);
    cd_arena_fini(&w->arena);
}

/* The caller's count tables live only until post returns. */
static cddp_status counts_copy(cd_gloo_group *g, cd_gloo_work *w, cddp_error *err)
{
    const cddp_collective *c = &w->call;
    if (c->counts == NULL && c->send_counts == NULL) return CDDP_OK;
    w->counts = cd_arena_array(&w->arena, 2 * (size_t)g->size, sizeof *w->counts);
    if (w->counts == NULL) return cd_fail_memory(err, "the counts of %u ranks", g->size);
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

static cddp_status message_start(cd_gloo_group *g, cd_gloo_work *w, cddp_error *err)
{
    const cddp_tensor *t = w->call.op == CDDP_OP_SEND ? &w->call.input : &w->call.output;
    size_t element = cddp_dtype_bytes(t->dtype), bytes = (size_t)cddp_tensor_numel(t) * element;
    if (w->call.root == g->rank)
        return cd_fail(err, CDDP_E_ARG, "%s names its own rank %u", cddp_op_name(w->call.op),
                       g->members[g->rank]);
    if (bytes == 0) return CDDP_OK;
    char text[CD_GLOO_TEXT_BYTES];
    /* The size is part of the name. A message of another size meets no partner: Gloo would end the
    ** receiver's process. */
    uint64_t slot = UINT64_C(3) << 62 | cd_hash_mix(w->call.tag, bytes) >> 2;
    cd_gloo_code code =
        cd_gloo_buffer_create(g->gloo, (char *)t->storage + (size_t)t->offset * element, bytes,
                              &w->message, text);
    if (code == CD_GLOO_OK)
        code = w->call.op == CDDP_OP_SEND
                   ? cd_gloo_send(w->message, (int)w->call.root, slot, 0, bytes, text)
                   : cd_gloo_recv(w->message, (int)w->call.root, slot, 0, bytes, text);
    if (code != CD_GLOO_OK) return CD_PASS(cd_gloo_fail(g, code, w->call.root, text, err));
    return CDDP_OK;
}

/* To how many others the thread that posts sends a fingerprint, in a few microseconds each. Beyond
** that the group's lane sends it, when the operation's turn comes. */
#define ANNOUNCED_TO_MAX 15

static void guard_begin(cd_gloo_group *g, cd_gloo_work *w)
{
    if (g->mesh == NULL || is_message(w->call.op)) return;
    w->fingerprint = cd_call_fingerprint_of(&w->call, g->rank, g->size);
    w->is_announced = g->size - 1 <= ANNOUNCED_TO_MAX &&
                      cd_mesh_announce(g->mesh, &w->fingerprint, w->deadline_ns);
}

static cddp_status gloo_post(void *group, const cddp_collective *collective, void **work,
                             cddp_error *err)
{
    cd_gloo_group *g = group;
    cddp_status status = CDDP_OK;
    cd_arena arena;
    cd_arena_init(&arena, g->allocator, 0);
    cd_gloo_work *w = cd_arena_push(&arena, sizeof *w);
    if (w == NULL)
        return cd_fail_memory(err, "%s of group '%s'", cddp_op_name(collective->op), g->name);
    w->arena = arena;
    w->job.run = work_run;
    w->group = g;
    w->call = *collective;
    w->timeout_ns = collective->timeout_ns != 0 ? collective->timeout_ns : g->timeout_ns;
    w->deadline_ns = cd_os_now_ns() + w->timeout_ns;
    CD_TRY_OUT(counts_copy(g, w, err));
    if (is_message(collective->op)) {
        cd_os_sigpipe guard;
        cd_os_sigpipe_begin(&guard);
        status = message_start(g, w, err);
        cd_os_sigpipe_end(&guard);
        if (status != CDDP_OK) goto out;
    }
    guard_begin(g, w);
    /* the lane's thread runs since the group was opened: what was announced is not refused */
    CD_TRY_OUT(cd_os_lane_push(&g->lanes, lane_of(collective), &w->job, err));
    *work = w;
    return CDDP_OK;
out:
    work_free(w);
    return status;
}

static cddp_status gloo_test(void *group, void *work, bool *done, cddp_error *err)
{
    cd_gloo_group *g = group;
    cd_gloo_work *w = work;
    bool ended = cd_os_job_is_done(&g->lanes, &w->job);
    if (ended) CD_TRY(cd_os_job_outcome(&w->job, err));
    *done = ended;
    return CDDP_OK;
}

/* A wait without a time-out ends at the operation's deadline (B4). */
static cddp_status gloo_wait(void *group, void *work, uint64_t timeout_ns, cddp_error *err)
{
    cd_gloo_group *g = group;
    cd_gloo_work *w = work;
    if (!cd_os_job_wait(&g->lanes, &w->job, timeout_ns))
        return cd_fail(err, CDDP_E_TIMEOUT, "gloo: not done within %" PRIu64 " ms",
                       timeout_ns / 1000000);
    CD_TRY(cd_os_job_outcome(&w->job, err));
    return CDDP_OK;
}

static void gloo_release(void *group, void *work)
{
    cd_gloo_group *g = group;
    cd_gloo_work *w = work;
    cd_os_job_wait(&g->lanes, &w->job, 0); /* B2: its lane still uses this work */
    work_free(w);
}

static cddp_status gloo_abort(void *group, const char *reason, cddp_error *err)
{
    cd_gloo_group *g = group;
    (void)err;
    pthread_mutex_lock(&g->lanes.lock);
    if (!g->aborted)
        snprintf(g->abort_reason, sizeof g->abort_reason, "%s",
                 reason != NULL ? reason : "no reason given");
    g->aborted = true;
    pthread_mutex_unlock(&g->lanes.lock);
    if (g->mesh != NULL) cd_mesh_leave(g->mesh, CD_MESH_NOBODY);
    cd_gloo_disconnect(g->gloo, g->abort_reason);
    return CDDP_OK;
}

static void gloo_describe(void *group, void *work, char *text, size_t text_bytes)
{
    cd_gloo_group *g = group;
    (void)work;
    pthread_mutex_lock(&g->lanes.lock);
    int32_t peer = g->waiting_peer;
    pthread_mutex_unlock(&g->lanes.lock);
    if (peer < 0 && g->mesh != NULL) peer = cd_mesh_waits_for(g->mesh);
    if (peer >= 0) snprintf(text, text_bytes, "waiting for rank %u", g->members[peer]);
}

static int64_t gloo_digest_read(void *group, void *work)
{
    const cd_gloo_work *w = work;
    (void)group;
    return w->watch.read;
}

static int64_t gloo_digest_written(void *group, void *work)
{
    const cd_gloo_work *w = work;
    (void)group;
    return w->watch.written;
}

#define ALL_OPS ((1u << CDDP_OP_COUNT) - 1)
#define ALL_DTYPES ((1u << CDDP_DTYPE_COUNT) - 1)
#define ALL_REDUCTIONS ((1u << CDDP_RED_COUNT) - 1)

static const cddp_backend gloo = {
    .size = sizeof gloo,
    .abi = CDDP_BACKEND_ABI,
    .name = "gloo",
    .capabilities = {.size = sizeof(cddp_capabilities),
                     .ops = ALL_OPS,
                     .dtypes = ALL_DTYPES,
                     .reduce_ops = ALL_REDUCTIONS,
                     .devices = CDDP_DEVICE_HOST,
                     .in_place = true,
                     .async = true,
                     .order = CDDP_ORDER_KNOWN,
                     .algorithm = "gloo_ring",
                     .world_size_max = 1024,
                     .guards = true},
    .open = gloo_open,
    .close = gloo_close,
    .post = gloo_post,
    .test = gloo_test,
    .wait = gloo_wait,
    .release = gloo_release,
    .abort = gloo_abort,
    .describe = gloo_describe,
    .digest_read = gloo_digest_read,
    .digest_written = gloo_digest_written,
};

static const cddp_backend *const backends[] = {&gloo, NULL};

CDDP_PLUGIN_EXPORT const cddp_plugin cddp_plugin_v1;
const cddp_plugin cddp_plugin_v1 = {.size = sizeof cddp_plugin_v1,
                                    .abi = CDDP_PLUGIN_ABI,
                                    .name = "gloo",
                                    .version = "libgloo 0.5",
                                    .backends = backends};
