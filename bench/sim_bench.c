/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator's speed: fiber switches, collectives at once, rings as graphs, rings as messages,
** growth.
**
** Usage: sim_bench [ranks]
**        sim_bench ring [ranks]     one ring of 100 MiB as a graph, then as messages; CPU
**                                   milliseconds last on the line, for smpi_compare.sh
**        sim_bench scale [ranks]    one iteration's buckets of ResNet-50 and GPT-2-1.5B, from 64
**                                   ranks upwards
** One line per measurement: what, how many, CPU time, rate.
** CPU time, because one thread does it all, and the machine may have other things to do. */
#define _POSIX_C_SOURCE 200809L
#include "backends/sim/sim_backend.h"
#include "cddp/comm.h"
#include "cddp/device.h"
#include "sim/fiber.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct job {
    cddp_backend backend;
    uint32_t *all;
    uint32_t rounds;
    int64_t numel;
    float *data; /* (ranks, numel) or NULL: device shape */
} job;

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static cddp_status die_of(const cddp_error *err)
{
    fprintf(stderr, "sim_bench: %s\n", err->message);
    exit(1);
}

static void open_group(job *j, cddp_rank *rank, cddp_group **group)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_group_options o = {.size = sizeof o, .backend = &j->backend, .rank = rank, .works_max = 8};
    o.spec = (cddp_group_spec){.size = sizeof o.spec,
                               .name = "world",
                               .group_rank = rank->rank,
                               .group_size = rank->world_size,
                               .members = j->all};
    if (cddp_group_create(&o, group, &err) != CDDP_OK) (void)die_of(&err);
}

static cddp_status reduce(cddp_rank *rank, void *argument, cddp_error *err)
{
    job *j = argument;
    cddp_group *g = NULL;
    cddp_status status = CDDP_OK;
    open_group(j, rank, &g);
    cddp_tensor t = cddp_tensor_of(cddp_device_shape(), NULL, 0, CDDP_F32, &j->numel, 1);
    if (j->data != NULL)
        t = cddp_tensor_of(cddp_device_cpu(), j->data + rank->rank * j->numel, 0, CDDP_F32,
                           &j->numel, 1);
    for (uint32_t k = 0; status == CDDP_OK && k < j->rounds; k++) {
        cddp_work *work = NULL;
        status = cddp_group_allreduce(g, &t, CDDP_RED_SUM, &work, err);
        if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    }
    cddp_group_destroy(g);
    return status;
}

static void hop(void *argument)
{
    for (;;) cd_fiber_leave(argument);
}

static void bench_switch(void)
{
    enum { COUNT = 5000000, STACK = 65536 };
    cd_fiber fiber;
    unsigned char *stack = cd_fiber_map(STACK);
    cd_fiber_init(&fiber, stack, STACK, hop, &fiber);
    uint64_t start = cpu_ns();
    for (int i = 0; i < COUNT; i++) cd_fiber_enter(&fiber);
    double ns = (double)(cpu_ns() - start);
    printf("%-44s %10d switches  %8.3f ms  %8.1f ns each\n", cd_fiber_mechanism(), 2 * COUNT,
           ns / 1e6, ns / (2.0 * COUNT));
    cd_fiber_fini(&fiber);
    cd_fiber_unmap(stack, STACK);
}

static cd_sim_stats run(const char *what, cd_sim_config config, job j, const char *unit,
                        double per_rank_round)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_sim *sim = NULL;
    cd_sim_stats stats;
    uint32_t n = config.world_size;
    cddp_rank_result *results = calloc(n, sizeof *results);
    j.all = calloc(n, sizeof *j.all);
    for (uint32_t i = 0; i < n; i++) j.all[i] = i;
    if (cd_sim_create(&config, &sim, &err) != CDDP_OK) (void)die_of(&err);
    j.backend = cd_sim_backend(sim);
    uint64_t start = cpu_ns();
    if (cd_sim_ops()->launch(sim, reduce, &j, results, &err) != CDDP_OK) (void)die_of(&err);
    double ns = (double)(cpu_ns() - start);
    for (uint32_t i = 0; i < n; i++)
        if (results[i].status != CDDP_OK) (void)die_of(&results[i].error);
    cd_sim_get_stats(sim, &stats);
    double count = per_rank_round > 0 ? per_rank_round * n * j.rounds : (double)stats.events;
    printf("%-44s %10.0f %-9s %8.3f ms  %8.2f M/s  %6.1f ns each  virtual %.6f s  heap %.1f MiB\n",
           what, count, unit, ns / 1e6, count / ns * 1e3, ns / count, (double)stats.time_ns / 1e9,
           (double)stats.heap_used_peak / (1 << 20));
    cd_sim_destroy(sim);
    free(results);
    free(j.all);
    return stats;
}

/* Cost against ranks × buckets: one ring all-reduce of 25 MiB for each bucket of the model, timed
** as a graph. */
static void bench_scale(uint32_t ranks_max)
{
    static const struct {
        const char *name;
        uint32_t buckets; /* of 25 MiB, behind a first one of 1 MiB */
    } models[] = {{"ResNet-50", 5}, {"GPT-2-1.5B", 239}};
    for (int m = 0; m < 2; m++)
        for (int timed = 0; timed < 2; timed++)
            for (uint32_t ranks = 64; ranks <= ranks_max; ranks *= 4) {
                char what[64];
                cd_sim_config config = CD_SIM_CONFIG_INIT;
                /* a ring of N ranks has 2(N-1)N messages: quadratic by nature */
                if (timed && ranks > 1024) continue;
                snprintf(what, sizeof what, "%s, %u ranks, %s", models[m].name, ranks,
                         timed ? "rings timed" : "direct");
                config.world_size = ranks;
                config.stack_bytes = 32768;
                config.algorithm = CD_ALGORITHM_ring;
                config.transport = timed ? CD_SIM_MODEL : CD_SIM_DIRECT;
                config.network.inter = *cd_link_get(CD_LINK_infiniband_edr);
                config.time_limit_ns = UINT64_MAX / 4;
                run(what, config, (job){.rounds = models[m].buckets, .numel = 6553600}, "ops", 1);
            }
}

static void bench_ring(uint32_t ranks)
{
    for (int transport = CD_SIM_MODEL; transport <= CD_SIM_MESSAGES; transport++) {
        cd_sim_config config = CD_SIM_CONFIG_INIT;
        config.world_size = ranks;
        config.stack_bytes = 65536;
        config.algorithm = CD_ALGORITHM_ring;
        config.transport = (cd_sim_transport)transport;
        config.network.inter = (cd_link){.latency_ns = 10000, .bytes_per_second = 12500000000};
        uint64_t start = cpu_ns();
        run(transport == CD_SIM_MODEL ? "model" : "messages", config,
            (job){.rounds = 1, .numel = 26214400}, "messages", 2.0 * (ranks - 1));
        /* creation included, as SMPI's start is */
        printf("%.4f\n", (double)(cpu_ns() - start) / 1e6);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "ring") == 0) {
        bench_ring(argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 256);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "scale") == 0) {
        bench_scale(argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 16384);
        return 0;
    }
    uint32_t ranks = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1024;
    cd_sim_config config = CD_SIM_CONFIG_INIT;
    config.world_size = ranks;
    config.stack_bytes = 65536;
    config.algorithm = CD_ALGORITHM_ring;
    config.network.inter = (cd_link){.latency_ns = 16000, .bytes_per_second = 12500000000};
    config.time_limit_ns = UINT64_MAX / 4;
    bench_switch();
    run("direct, all-reduce per rank", config, (job){.rounds = 1000, .numel = 1024}, "ops", 1);
    config.transport = CD_SIM_MODEL;
    run("model, ring of 4 KiB, 32 times", config, (job){.rounds = 32, .numel = 1024}, "messages",
        2.0 * (ranks - 1));
    run("model, ring of 100 MiB", config, (job){.rounds = 1, .numel = 26214400}, "messages",
        2.0 * (ranks - 1));
    config.algorithm = CD_ALGORITHM_gloo_ring;
    run("model, Gloo's ring of 4 KiB, 32 times", config, (job){.rounds = 32, .numel = 1024},
        "messages", 2.0 * (ranks - 1));
    config.algorithm = CD_ALGORITHM_ring;
    config.transport = CD_SIM_MESSAGES;
    run("messages, ring of 4 KiB, twice", config, (job){.rounds = 2, .numel = 1024}, "events", 0);
    config.network.ranks_per_node = 8;
    config.network.nics_per_node = 1;
    config.network.intra = *cd_link_get(CD_LINK_nvlink_a100);
    run("messages, shared network ports, twice", config, (job){.rounds = 2, .numel = 1024},
        "events", 0);
    config = (cd_sim_config)CD_SIM_CONFIG_INIT;
    config.world_size = 64;
    config.heap_bytes = (size_t)1 << 30;
    job with_data = {.rounds = 1, .numel = 1000000};
    with_data.data = calloc(64 * 1000000, sizeof *with_data.data);
    if (with_data.data == NULL) return 1;
    run("64 ranks, a million floats, direct", config, with_data, "ops", 1);
    config.transport = CD_SIM_MESSAGES;
    config.network.inter = *cd_link_get(CD_LINK_infiniband_edr);
    run("64 ranks, a million floats, messages", config, with_data, "ops", 1);
    free(with_data.data);
    return 0;
}
