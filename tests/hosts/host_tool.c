/* SPDX-License-Identifier: Apache-2.0 */
/* The program that hosts.sh runs on its hosts.
**
**     host_tool rank GLOO.so RANK/WORLD HOST:PORT SHARD.db ITERATIONS NUMEL TIMEOUT_MS
**         one rank that joins a job over tcp: all-reduces whose results it checks, events into its
**         own store. Rank 0 serves the rendezvous, bound to HOST:PORT. Exit 0: all right; 1: said
**         why
**         on standard error
**     host_tool merge OUT.db SHARD.db …
**         one store out of the shards; prints how many all-reduces of each rank ended well
**     host_tool relay NS_A NAME_A NS_B NAME_B DELAY_MS LOSS_PERCENT SEED
**         two network devices in two namespaces, joined by this process: every frame is handed over
**         DELAY_MS later, some are not. Prints "ready" once both exist, and how many frames it lost
**         when it is terminated
**
** A relay stands in for what a kernel may lack (netem), and needs no more rights than the
** namespaces themselves.
*/
#define _GNU_SOURCE
#include "cddp/cddp.h"
#include "cddp/rendezvous.h"
#include "cddp/store.h"
#include "core/base/os.h"
#include "core/base/prng.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define RANKS_MAX 64
#define MILLISECOND UINT64_C(1000000)

/* ---- rank ---- */

typedef struct job {
    uint32_t rank, world;
    char host[64];
    unsigned port;
    const char *shard;
    unsigned long iterations;
    int64_t numel;
    uint64_t timeout_ns;
    cddp_backend backend;
} job;

static cddp_status iterate(const job *j, cddp_group *group, cddp_tracer *tracer, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    float *data = calloc((size_t)j->numel, sizeof *data);
    if (data == NULL) return cddp_error_set(err, CDDP_E_NOMEM, "no memory");
    const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_F32, &j->numel, 1);
    const uint64_t before = cd_os_now_ns();
    unsigned long k = 0;
    for (; k < j->iterations && status == CDDP_OK; k++) {
        cddp_work *work = NULL;
        /* exact: far below 2^24 */
        const float right = (float)(j->world * (j->world - 1) / 2 + j->world * (k % 100));
        for (int64_t i = 0; i < j->numel; i++) data[i] = (float)(j->rank + k % 100);
        status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, err);
        if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
        if (status == CDDP_OK && k == 0)
            printf("rank %" PRIu32 ": under way\n", j->rank), fflush(stdout);
        /* data that is not in the file dies with the host */
        if (status == CDDP_OK) status = cddp_tracer_flush(tracer, err);
        for (int64_t i = 0; i < j->numel && status == CDDP_OK; i++)
            if (data[i] != right)
                status = cddp_error_set(err, CDDP_E_CORRUPT,
                                        "all-reduce %lu: element %" PRId64 " is %g, not %g", k, i,
                                        (double)data[i], (double)right);
    }
    printf("rank %" PRIu32 ": %lu all-reduces in %" PRIu64 " ms\n", j->rank,
           status == CDDP_OK ? k : k - 1, (cd_os_now_ns() - before) / MILLISECOND);
    fflush(stdout);
    free(data);
    return status;
}

static cddp_status with_group(job *j, cddp_rank *rank, const cddp_trace_sink *sink, cddp_error *err)
{
    uint32_t members[RANKS_MAX];
    cddp_group *group = NULL;
    cddp_tracer *tracer = NULL;
    for (uint32_t i = 0; i < j->world; i++) members[i] = i;
    cddp_status status = cddp_tracer_create(rank, sink, CDDP_TRACE_ORDER, &tracer, err);
    const cddp_group_options o = {.size = sizeof o,
                                  .backend = &j->backend,
                                  .rank = rank,
                                  .tracer = tracer,
                                  .spec = {.size = sizeof o.spec,
                                           .name = "world",
                                           .group_rank = j->rank,
                                           .group_size = j->world,
                                           .members = members,
                                           .timeout_ns = j->timeout_ns,
                                           .options = "guard=1,algorithm=ring"}};
    if (status == CDDP_OK) status = cddp_group_create(&o, &group, err);
    if (status == CDDP_OK) status = iterate(j, group, tracer, err);
    cddp_group_destroy(group);
    if (tracer != NULL) (void)cddp_tracer_flush(tracer, NULL);
    cddp_tracer_destroy(tracer);
    return status;
}

static cddp_status with_store(job *j, cddp_error *err)
{
    cddp_solo_world *world = NULL;
    cddp_store *store = NULL;
    int64_t run = 0;
    const cddp_solo_options solo = {.size = sizeof solo, .rank = j->rank, .world_size = j->world};
    /* One rank writes here: its flush is a commit. */
    const cddp_run_provenance from = {.size = sizeof from,
                                      .title = "hosts",
                                      .backend = "gloo",
                                      .world_size = 1};
    const cddp_run_outcome to = {.size = sizeof to, .verdict = "verified"};
    cddp_status status = cddp_solo_world_open(&solo, &world, err);
    if (status == CDDP_OK) status = cddp_store_open(j->shard, CDDP_STORE_APPEND, NULL, &store, err);
    if (status == CDDP_OK) status = cddp_store_run_begin(store, &from, &run, err);
    if (status == CDDP_OK)
        status = with_group(j, cddp_solo_world_rank(world), cddp_store_sink(store), err);
    if (status == CDDP_OK) status = cddp_store_run_end(store, &to, err);
    cddp_store_close(store); /* after a failure: the events so far are kept, marked incomplete */
    cddp_solo_world_close(world);
    return status;
}

static cddp_status with_rendezvous(job *j, cddp_error *err)
{
    char url[96];
    cddp_rendezvous_server *server = NULL;
    cddp_rendezvous *meeting = NULL;
    const cddp_rendezvous_server_options serve = {.size = sizeof serve,
                                                  .host = j->host,
                                                  .port = (uint16_t)j->port};
    const cddp_rendezvous_options meet = {.size = sizeof meet,
                                          .url = url,
                                          .timeout_ns = 20000 * MILLISECOND};
    cddp_status status = CDDP_OK;
    snprintf(url, sizeof url, "tcp://%s:%u", j->host, j->port);
    if (j->rank == 0) status = cddp_rendezvous_server_open(&serve, &server, err);
    if (status == CDDP_OK) status = cddp_rendezvous_open(&meet, &meeting, err);
    j->backend.self = meeting;
    if (status == CDDP_OK) status = with_store(j, err);
    cddp_rendezvous_close(meeting);
    cddp_rendezvous_server_close(server);
    return status;
}

static int run_rank(char **a)
{
    cddp_error err = CDDP_ERROR_INIT;
    job j = {.shard = a[3],
             .iterations = strtoul(a[4], NULL, 10),
             .numel = strtoll(a[5], NULL, 10),
             .timeout_ns = strtoull(a[6], NULL, 10) * MILLISECOND};
    void *library = dlopen(a[0], RTLD_NOW | RTLD_LOCAL);
    const cddp_plugin *plugin = library != NULL ? dlsym(library, CDDP_PLUGIN_SYMBOL) : NULL;
    if (plugin == NULL || sscanf(a[1], "%" SCNu32 "/%" SCNu32, &j.rank, &j.world) != 2 ||
        j.world > RANKS_MAX || sscanf(a[2], "%63[^:]:%u", j.host, &j.port) != 2) {
        fprintf(stderr, "host_tool: cannot read its arguments, or load %s\n", a[0]);
        return 2;
    }
    j.backend = *plugin->backends[0];
    if (with_rendezvous(&j, &err) == CDDP_OK) return 0;
    fprintf(stderr, "rank %" PRIu32 ": %s\n", j.rank, err.message);
    return 1;
}

/* ---- merge ---- */

static void count_done(void *self, const cddp_event *event)
{
    unsigned long *done = self;
    if (event->kind == CDDP_EV_collective_done && event->as.collective_done.status == CDDP_OK &&
        event->rank < RANKS_MAX)
        done[event->rank]++;
}

static int run_merge(const char *path, char **shards, int count)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_store *store = NULL;
    int64_t run = 0;
    unsigned long done[RANKS_MAX] = {0};
    const cddp_trace_sink sink = {.size = sizeof sink,
                                  .abi = CDDP_TRACE_ABI,
                                  .self = done,
                                  .event = count_done};
    const cddp_run_provenance from = {.size = sizeof from,
                                      .title = "hosts, merged",
                                      .backend = "gloo",
                                      .world_size = (uint32_t)count};
    const cddp_run_outcome to = {.size = sizeof to, .verdict = "merged"};
    cddp_status status = cddp_store_open(path, CDDP_STORE_APPEND, NULL, &store, &err);
    if (status == CDDP_OK) status = cddp_store_run_begin(store, &from, &run, &err);
    if (status == CDDP_OK)
        status = cddp_store_merge_shards(store, (const char *const *)shards, (size_t)count, &err);
    if (status == CDDP_OK) status = cddp_store_run_end(store, &to, &err);
    if (status == CDDP_OK)
        status = cddp_store_each_event(store, run, CDDP_STORE_MERGED, &sink, &err);
    cddp_store_close(store);
    for (int r = 0; r < count && status == CDDP_OK; r++)
        printf("merged rank %d: %lu\n", r, done[r]);
    if (status != CDDP_OK) fprintf(stderr, "merge: %s\n", err.message);
    return status != CDDP_OK;
}

/* ---- relay ---- */

#define FRAME_BYTES 2048
#define FRAMES 8192

typedef struct frame {
    uint64_t due_ns;
    int to;
    ssize_t bytes;
    unsigned char data[FRAME_BYTES];
} frame;

static volatile sig_atomic_t ended;

static void end(int signal_number)
{
    (void)signal_number;
    ended = 1;
}

static int open_tap(const char *space, const char *name)
{
    char path[128];
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    snprintf(path, sizeof path, "/run/netns/%s", space);
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    int where = open(path, O_RDONLY | O_CLOEXEC);
    if (where < 0 || setns(where, CLONE_NEWNET) != 0) return -1;
    close(where);
    int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    return tap >= 0 && ioctl(tap, TUNSETIFF, &request) == 0 ? tap : -1;
}

static int run_relay(char **a)
{
    const int taps[2] = {open_tap(a[0], a[1]), open_tap(a[2], a[3])};
    const uint64_t delay_ns = strtoull(a[4], NULL, 10) * MILLISECOND,
                   loss = strtoull(a[5], NULL, 10);
    cd_prng prng = cd_prng_seed(strtoull(a[6], NULL, 10));
    frame *ring = calloc(FRAMES, sizeof *ring);
    uint64_t first = 0, last = 0, lost = 0;
    if (taps[0] < 0 || taps[1] < 0 || ring == NULL) {
        fprintf(stderr, "relay: %s\n", strerror(errno));
        return 77;
    }
    signal(SIGTERM, end);
    printf("ready\n");
    fflush(stdout);
    while (!ended) {
        struct pollfd polls[2] = {{.fd = taps[0], .events = POLLIN},
                                  {.fd = taps[1], .events = POLLIN}};
        const uint64_t now = cd_os_now_ns();
        int wait_ms = first == last ? 100
                      : ring[first % FRAMES].due_ns <= now
                          ? 0
                          : (int)((ring[first % FRAMES].due_ns - now) / MILLISECOND + 1);
        (void)poll(polls, 2, wait_ms);
        for (int side = 0; side < 2; side++) {
            while (last - first < FRAMES) { /* a full ring loses nothing: the kernel's queue does */
                frame *f = &ring[last % FRAMES];
                f->bytes = read(taps[side], f->data, sizeof f->data);
                if (f->bytes <= 0) break;
                f->to = taps[1 - side];
                f->due_ns = cd_os_now_ns() + delay_ns;
                if (cd_prng_chance(&prng, loss, 100))
                    lost++;
                else
                    last++;
            }
        }
        for (; first != last && ring[first % FRAMES].due_ns <= cd_os_now_ns(); first++)
            if (write(ring[first % FRAMES].to, ring[first % FRAMES].data,
                      (size_t)ring[first % FRAMES].bytes) < 0)
                lost++;
    }
    printf("relay: %" PRIu64 " frames handed over, %" PRIu64 " lost\n", first, lost);
    free(ring);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 9 && strcmp(argv[1], "rank") == 0) return run_rank(argv + 2);
    if (argc >= 4 && strcmp(argv[1], "merge") == 0) return run_merge(argv[2], argv + 3, argc - 3);
    if (argc == 9 && strcmp(argv[1], "relay") == 0) return run_relay(argv + 2);
    fprintf(stderr, "usage: see the head of host_tool.c\n");
    return 2;
}
