/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks for benches: a process world for what can be forked, a solo world for what a launcher
** started. */
#define _GNU_SOURCE
#include "bench/ranks.h"

#include "cddp/plugin.h"
#include "cddp/process.h"
#include "cddp/rendezvous.h"
#include "core/base/os_folder.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS_MAX 64

typedef struct job {
    bench_call *call;
    const cddp_backend *backend;
    char directory[64];
} job;

/* Before the transport makes threads or sockets: both stay where they were made. */
static cddp_status host_enter(const char *hosts, uint32_t rank, cddp_error *err)
{
    char path[96];
    snprintf(path, sizeof path, "/run/netns/%s%u", hosts, rank);
    const int fd = open(path, O_RDONLY | O_CLOEXEC),
              failed = fd < 0 || setns(fd, CLONE_NEWNET) != 0, code = errno;
    if (fd >= 0) close(fd);
    return failed ? cddp_error_set(err, CDDP_E_IO, "cannot enter the network namespace %s: %s",
                                   path, strerror(code))
                  : CDDP_OK;
}

static cddp_status rank_run(cddp_rank *rank, void *argument, cddp_error *err)
{
    const job *j = argument;
    uint32_t members[RANKS_MAX];
    cddp_rendezvous *rendezvous = NULL;
    cddp_group *group = NULL;
    char url[96], address[32];
    snprintf(url, sizeof url, "file://%s", j->directory);
    cddp_rendezvous_options meeting = {.size = sizeof meeting, .url = url};
    cddp_rendezvous here = {.size = sizeof here};
    if (j->call->hosts != NULL) BENCH_TRY(host_enter(j->call->hosts, rank->rank, err));
    if (j->directory[0] != '\0') {
        BENCH_TRY(cddp_rendezvous_open(&meeting, &rendezvous, err));
        here = *rendezvous;
        snprintf(address, sizeof address, "10.77.0.%u", rank->rank + 1);
        if (j->call->hosts != NULL) here.bind_host = address;
    }
    cddp_backend bound = *j->backend;
    bound.self = rendezvous != NULL ? &here : NULL;
    for (uint32_t i = 0; i < rank->world_size; i++) members[i] = i;
    cddp_group_options o = {.size = sizeof o,
                            .backend = &bound,
                            .rank = rank,
                            .spec = {.size = sizeof o.spec,
                                     .name = "bench",
                                     .group_rank = rank->rank,
                                     .group_size = rank->world_size,
                                     .members = members,
                                     .options = j->call->options}};
    cddp_status status = cddp_group_create(&o, &group, err);
    o.spec.name = "bench/second";
    o.spec.options = j->call->second_options;
    j->call->second = NULL;
    if (status == CDDP_OK && o.spec.options != NULL)
        status = cddp_group_create(&o, &j->call->second, err);
    if (status == CDDP_OK) status = j->call->body(group, j->directory, j->call->argument, err);
    cddp_group_destroy(j->call->second);
    cddp_group_destroy(group);
    cddp_rendezvous_close(rendezvous);
    return status;
}

static int run_forked(job *j)
{
    cddp_process_options options = {.size = sizeof options, .world_size = j->call->size};
    cddp_process_world *world = NULL;
    cddp_rank_result results[RANKS_MAX];
    cddp_error err = CDDP_ERROR_INIT;
    cd_os_folder folder = {.path = ""};
    if (cd_os_folder_open(&folder, "/tmp", "cddp-bench", &err) != CDDP_OK ||
        cddp_process_world_open(&options, &world, &err) != CDDP_OK)
        return fprintf(stderr, "%s\n", err.message), 1;
    snprintf(j->directory, sizeof j->directory, "%.60s", folder.path);
    for (uint32_t i = 0; i < j->call->size; i++)
        results[i] = (cddp_rank_result){.size = sizeof results[i]};
    int failed = cddp_process_world_ops()->launch(world, rank_run, j, results, &err) != CDDP_OK;
    for (uint32_t i = 0; i < j->call->size; i++) {
        failed |= results[i].status != CDDP_OK || results[i].end != CDDP_RANK_RETURNED;
        if (results[i].status != CDDP_OK)
            fprintf(stderr, "rank %u: %s\n", i, results[i].error.message);
    }
    cddp_process_world_close(world);
    cd_os_folder_close(&folder);
    return failed;
}

static const char *read_variable(const char *variable) { return getenv(variable); }

static int run_launched(job *j)
{
    cddp_solo_options options = {.size = sizeof options};
    cddp_solo_world *world = NULL;
    cddp_error err = CDDP_ERROR_INIT;
    bool one_host = false;
    if (j->call->hosts != NULL)
        return fprintf(stderr, "%s starts ranks on its own hosts: leave --hosts out\n",
                       j->backend->launcher->name),
               2;
    if (!j->backend->launcher->identity(read_variable, &options.rank, &options.world_size,
                                        &one_host) ||
        options.world_size > RANKS_MAX)
        return fprintf(stderr,
                       "ranks of %s are started by %s: put it in front, for 2 to %d ranks\n",
                       j->backend->name, j->backend->launcher->name, RANKS_MAX),
               2;
    if (cddp_solo_world_open(&options, &world, &err) != CDDP_OK) return 1;
    cddp_status status = CDDP_OK;
    for (j->call->start = 0; status == CDDP_OK && j->call->start < j->call->starts;
         j->call->start++)
        status = rank_run(cddp_solo_world_rank(world), j, &err);
    if (status != CDDP_OK) fprintf(stderr, "rank %u: %s\n", options.rank, err.message);
    cddp_solo_world_close(world);
    if (status == CDDP_OK) j->backend->launcher->leave();
    return status != CDDP_OK;
}

int bench_run(bench_call *call)
{
    if (call->starts == 0) call->starts = 1;
    void *library = dlopen(call->module, RTLD_NOW | RTLD_LOCAL);
    const cddp_plugin *plugin = library != NULL ? dlsym(library, CDDP_PLUGIN_SYMBOL) : NULL;
    if (plugin == NULL) return fprintf(stderr, "%s\n", dlerror()), 3;
    job j = {.call = call, .backend = plugin->backends[0]};
    if (j.backend->launcher != NULL) return run_launched(&j);
    int failed = 0;
    for (call->start = 0; failed == 0 && call->start < call->starts; call->start++)
        failed = run_forked(&j);
    return failed;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double bench_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}
