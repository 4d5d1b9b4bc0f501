/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous of NCCL ranks: assigns GPUs to ranks and makes a group's communicator.
**
** Every rank sends the rendezvous its host, its first visible GPU and the number of visible GPUs.
** Ranks that see the same GPUs take them in turn, lowest rank first. Ranks with different visible
** GPUs (CUDA_VISIBLE_DEVICES) keep theirs. NCCL refuses two ranks on one GPU of one host. So on a
** machine with fewer GPUs than ranks, each rank pretends to be a separate host (NCCL_HOSTID), and
** hosts use sockets. A user's settings win. This works for processes only, and is slow.
**
** Communicators are made without blocking, so that a missing rank causes a time-out and not a
** hang. All their connections are made with them (NCCL_RUNTIME_CONNECT=0). NCCL would otherwise
** connect inside the first collective of each algorithm, where the host waits for every peer.
** Messages between two ranks still connect with the first one.
*/
#define _POSIX_C_SOURCE 200809L
#include "backends/nccl/nccl_group.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOST_BYTES 128
#define POLL_NS UINT64_C(50000)

/* "host/first_gpu gpu_count" → length of the name, and the count. */
static size_t host_parse(const char *text, uint32_t *gpu_count)
{
    const char *space = strrchr(text, ' ');
    *gpu_count = space != NULL ? (uint32_t)strtoul(space + 1, NULL, 10) : 0;
    return space != NULL ? (size_t)(space - text) : strlen(text);
}

cddp_status cd_nccl_place_of(const char *const *hosts, uint32_t world_size, uint32_t rank,
                             cd_nccl_place *place, cddp_error *err)
{
    cd_nccl_place p = {.one_host = true};
    for (uint32_t r = 0; r < world_size; r++) {
        uint32_t gpus, others = 0, beside = 0;
        size_t length = host_parse(hosts[r], &gpus);
        if (gpus == 0)
            return cd_fail(err, CDDP_E_BACKEND, "rank %u sees no GPU on host '%.*s'", r,
                           (int)length, hosts[r]);
        for (uint32_t q = 0; q < world_size; q++) {
            if (host_parse(hosts[q], &others) != length || strncmp(hosts[q], hosts[r], length) != 0)
                continue;
            beside++;
            if (r == rank && q < rank) p.local_rank++;
        }
        p.shared = p.shared || beside > gpus;
        size_t host = strcspn(hosts[r], "/ ");
        p.one_host =
            p.one_host && strncmp(hosts[r], hosts[0], host) == 0 && strcspn(hosts[0], "/ ") == host;
        if (r == rank) {
            p.local_count = beside;
            p.gpu_count = gpus;
        }
    }
    *place = p;
    return CDDP_OK;
}

static cddp_status hosts_exchange(cd_nccl_group *g, const cddp_rank *rank, char *texts,
                                  const char **hosts, cddp_error *err)
{
    const cddp_rendezvous *r = g->rendezvous;
    char key[64];
    int gpus = 0;
    char *mine = texts + (size_t)rank->rank * HOST_BYTES, name[HOST_BYTES - 48] = "", bus[24] = "";
    CD_TRY(cd_cuda_check(cudaGetDeviceCount(&gpus), "counting GPUs", err));
    if (gpus > 0)
        CD_TRY(
            cd_cuda_check(cudaDeviceGetPCIBusId(bus, sizeof bus, 0), "cudaDeviceGetPCIBusId", err));
    (void)gethostname(name, sizeof name - 1);
    snprintf(mine, HOST_BYTES, "%s/%s %d", name, bus, gpus);
    snprintf(key, sizeof key, "nccl/host/%u", rank->rank);
    CD_TRY(r->set(r->self, key, mine, strlen(mine) + 1, err));
    for (uint32_t i = 0; i < rank->world_size; i++) {
        size_t bytes = HOST_BYTES;
        hosts[i] = texts + (size_t)i * HOST_BYTES;
        if (i == rank->rank) continue;
        snprintf(key, sizeof key, "nccl/host/%u", i);
        CD_TRY(r->get(r->self, key, r->timeout_ns, texts + (size_t)i * HOST_BYTES, &bytes, err));
        texts[(size_t)(i + 1) * HOST_BYTES - 1] = '\0';
    }
    return CDDP_OK;
}

typedef struct setting {
    const char *name, *value;
} setting;

/* NCCL reads these once per process, with its first communicator. What the user has set stays. */
static cddp_status settings_default(const setting *settings, size_t count, cddp_error *err)
{
    for (size_t i = 0; i < count; i++)
        if (setenv(settings[i].name, settings[i].value, 0) != 0)
            return cd_fail_memory(err, "%s", settings[i].name);
    return CDDP_OK;
}

static cddp_status share_gpu(const cddp_rank *rank, bool one_host, cddp_error *err)
{
    char host[64];
    snprintf(host, sizeof host, "cddp-%u", rank->rank);
    const setting settings[] = {{"NCCL_HOSTID", host},      {"NCCL_NET", "Socket"},
                                {"NCCL_IB_DISABLE", "1"},   {"NCCL_P2P_DISABLE", "1"},
                                {"NCCL_SHM_DISABLE", "1"},  {"NCCL_NVLS_ENABLE", "0"},
                                {"NCCL_MNNVL_ENABLE", "0"}, {"NCCL_MAX_CTAS", "1"}};
    CD_TRY(settings_default(settings, sizeof settings / sizeof settings[0], err));
    if (!one_host) return CDDP_OK; /* other hosts are not on the loopback interface */
    const setting loopback = {"NCCL_SOCKET_IFNAME", "lo"};
    return CD_PASS(settings_default(&loopback, 1, err));
}

cddp_status cd_nccl_world_open(cd_nccl_group *g, const cddp_rank *rank, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_nccl_place place;
    if (g->cuda->is_open) return CDDP_OK; /* chosen by an earlier group */
    uint32_t w = rank->world_size;
    char *texts = cd_allocate_array(g->allocator, w, HOST_BYTES);
    const char **hosts = cd_allocate_array(g->allocator, w, sizeof *hosts);
    if (texts == NULL || hosts == NULL) {
        status = cd_fail_memory(err, "the hosts of %u ranks", w);
        goto out;
    }
    const setting connect = {"NCCL_RUNTIME_CONNECT", "0"};
    CD_TRY_OUT(settings_default(&connect, 1, err));
    CD_TRY_OUT(hosts_exchange(g, rank, texts, hosts, err));
    CD_TRY_OUT(cd_nccl_place_of(hosts, w, rank->rank, &place, err));
    if (place.shared) CD_TRY_OUT(share_gpu(rank, place.one_host, err));
    CD_TRY_OUT(cd_cuda_open(g->cuda, (int)(place.local_rank % place.gpu_count), err));
out:
    cd_release(g->allocator, texts, (size_t)w * HOST_BYTES);
    cd_release(g->allocator, hosts, w * sizeof *hosts);
    return status;
}

/* ---- communicators ---- */

/* Polls a communicator until its call is complete. ncclInProgress: time ran out first, or the group
** of `lock` was aborted meanwhile. The lock is given up between two looks. */
static ncclResult_t poll_comm(ncclComm_t comm, ncclResult_t code, uint64_t deadline_ns,
                              cd_nccl_group *locked)
{
    while (code == ncclInProgress && (locked == NULL || !locked->comm_aborted)) {
        ncclResult_t now = ncclSuccess, asked = ncclCommGetAsyncError(comm, &now);
        code = asked != ncclSuccess ? asked : now;
        if (code != ncclInProgress || cd_os_now_ns() >= deadline_ns) return code;
        if (locked != NULL) pthread_mutex_unlock(&locked->lock);
        cd_os_sleep_ns(POLL_NS);
        if (locked != NULL) pthread_mutex_lock(&locked->lock);
    }
    return code;
}

cddp_status cd_nccl_settle(cd_nccl_group *g, ncclResult_t code, const char *what,
                           uint64_t deadline_ns, cddp_error *err)
{
    code = poll_comm(g->comm, code, deadline_ns, g->watchdog_runs ? g : NULL);
    if (g->comm_aborted) return cd_fail(err, g->watch.status, "%s", g->watch.reason);
    if (code == ncclInProgress) {
        cd_nccl_abort(g);
        return cd_fail(err, CDDP_E_TIMEOUT,
                       "rank %u, group '%s': %s did not begin in time; a peer did not take part",
                       g->members[g->rank], g->name, what);
    }
    if (code != ncclSuccess) return CD_PASS(cd_nccl_fail(g, code, what, err));
    return CDDP_OK;
}

cddp_status cd_nccl_settle_work(cd_nccl_group *g, ncclResult_t code, const cd_nccl_work *w,
                                cddp_error *err)
{
    char what[64];
    if (code == ncclSuccess) return CDDP_OK;
    snprintf(what, sizeof what, "%s #%" PRIu64, cddp_op_name(w->call.op), w->call.sequence);
    return CD_PASS(cd_nccl_settle(g, code, what, w->deadline_ns, err));
}

/* Each opening of a name uses its own keys, so that a second group of that name finds nothing
** stale. */
static cddp_status id_exchange(cd_nccl_group *g, ncclUniqueId *id, cddp_error *err)
{
    const cddp_rendezvous *r = g->rendezvous;
    char key[CDDP_RENDEZVOUS_KEY_BYTES_MAX];
    int64_t opening = 0;
    size_t bytes = sizeof *id;
    snprintf(key, sizeof key, "nccl/%s/%u/opens", g->name, g->rank);
    CD_TRY(r->add(r->self, key, 1, &opening, err));
    snprintf(g->prefix, sizeof g->prefix, "nccl/%s/%" PRId64, g->name, opening);
    snprintf(key, sizeof key, "%s/id", g->prefix);
    if (g->rank == 0) {
        ncclResult_t code = ncclGetUniqueId(id);
        if (code != ncclSuccess) return CD_PASS(cd_nccl_fail(g, code, "ncclGetUniqueId", err));
        CD_TRY(r->set(r->self, key, id, sizeof *id, err));
        return CDDP_OK;
    }
    CD_TRY(r->get(r->self, key, r->timeout_ns, id, &bytes, err));
    if (bytes != sizeof *id)
        return cd_fail(err, CDDP_E_CORRUPT, "group '%s': the id of the communicator has %zu bytes",
                       g->name, bytes);
    return CDDP_OK;
}

cddp_status cd_nccl_comm_open(cd_nccl_group *g, const cd_nccl_group *parent, cddp_error *err)
{
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t code;
    uint64_t wait_ns =
        g->rendezvous->timeout_ns > g->timeout_ns ? g->rendezvous->timeout_ns : g->timeout_ns;
    uint64_t deadline_ns = cd_os_now_ns() + wait_ns;
    memset(&id, 0, sizeof id);
    config.blocking = 0;
    config.commName = g->name;
    if (parent != NULL) {
        /* Disjoint groups of one parent have different lowest members, so the lowest member is the
        ** colour. */
        code = ncclCommSplit(parent->comm, (int)g->members[0], (int)g->rank, &g->comm, &config);
        /* A split is work of the parent: before it is complete, the child may not even exist. NCCL
        ** says success where it only began. */
        if (code == ncclSuccess) code = ncclInProgress;
        code = poll_comm(parent->comm, code, deadline_ns, NULL);
        if (code == ncclInProgress || (code == ncclSuccess && g->comm == NULL))
            return cd_fail(err, CDDP_E_TIMEOUT,
                           "group '%s': not every member of '%s' came to split it in time", g->name,
                           parent->name);
        if (code == ncclSuccess) code = ncclInProgress;
    } else {
        CD_TRY(id_exchange(g, &id, err));
        code = ncclCommInitRankConfig(&g->comm, (int)g->size, id, (int)g->rank, &config);
    }
    if (code != ncclSuccess && code != ncclInProgress)
        return CD_PASS(cd_nccl_fail(g, code, "making a communicator", err));
    cddp_status status = cd_nccl_settle(g, code, "making a communicator", deadline_ns, err);
    if (status == CDDP_E_TIMEOUT)
        return cd_fail(err, CDDP_E_TIMEOUT,
                       "group '%s': not all of %u ranks came within %" PRIu64 " ms", g->name,
                       g->size, wait_ns / 1000000);
    return status;
}
