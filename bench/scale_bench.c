/* SPDX-License-Identifier: Apache-2.0 */
/* The real reducer for many simulated ranks: two iterations, the second with rebuilt buckets; every
** bucket a ring all-reduce timed as a graph.
**
**     scale_bench [MODEL [RANKS…]]     MODEL: resnet50 or gpt2 (1.5 billion parameters); without: a
**                                      curve of both
**     scale_bench --limits MODEL FEW MANY TIMES GIB     fails when a rank's bucket costs more than
**                                                       TIMES as much among MANY ranks as among
**                                                       FEW, or all of them more memory; exit code
**                                                       77: the machine has not so much memory to
**                                                       give
**
** One line per number of ranks: buckets, CPU time in all, of the last iteration, and per rank and
** bucket, memory of the process at its peak. CPU time, because one thread does it all, and the
** machine may have other things to do.
*/
#define _POSIX_C_SOURCE 200809L
#include "backends/sim/sim_backend.h"
#include "cddp/ddp.h"
#include "core/base/error.h"
#include "core/base/prng.h"
#include "core/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct job {
    const cd_model *model;
    cddp_backend backend;
    uint32_t *all;
    /* (ranks × parameters) what ranks wrap; given back when the last one has */
    cddp_parameter *lists;
    uint32_t wrapping; /* ranks that have not wrapped yet */
    uint32_t buckets;
    uint64_t ended_ns;
    double last_s; /* CPU time when the first rank began its last iteration */
} job;

static const struct {
    const char *name, *type, *options;
} models[] = {{"resnet50", "resnet", "depth=50"}, {"gpt2", "gpt2", "parameters=1.5B"}};

static void die(const cddp_error *err)
{
    fprintf(stderr, "scale_bench: %s\n", err->message);
    exit(EXIT_FAILURE);
}

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A layer computes its gradients together: "h.3.mlp.c_fc.weight" and "h.3.mlp.c_fc.bias". */
static bool same_layer(const char *a, const char *b)
{
    const char *dot = strrchr(a, '.');
    size_t prefix = dot != NULL ? (size_t)(dot - a) + 1 : 0;
    return prefix > 0 && strncmp(a, b, prefix) == 0 && strchr(b + prefix, '.') == NULL;
}

static cddp_status iterate(cddp_rank *rank, job *j, cddp_ddp *ddp, cddp_error *err)
{
    const cd_parameter *parameters = j->model->module->parameters;
    const size_t count = j->model->module->parameter_count;
    CD_TRY(cddp_ddp_forward_begin(ddp, true, err));
    CD_TRY(rank->ops->compute(rank, 30000000, "forward", err));
    CD_TRY(cddp_ddp_forward_end(ddp, NULL, err));
    for (size_t i = count; i-- > 0;) { /* the last layer first */
        if (i + 1 == count || !same_layer(parameters[i + 1].name, parameters[i].name))
            CD_TRY(rank->ops->compute(rank, 800000, "backward", err));
        CD_TRY(cddp_ddp_mark_variable_ready(ddp, i, err));
    }
    CD_TRY(cddp_ddp_backward_end(ddp, err));
    j->buckets = cddp_ddp_bucket_count(ddp);
    j->ended_ns = rank->ops->now_ns(rank);
    return CDDP_OK;
}

/* All ranks share the parameters, since these have no content; each rank has its own
** gradients. */
static cddp_status program(cddp_rank *rank, void *argument, cddp_error *err)
{
    job *j = argument;
    const cd_module *module = j->model->module;
    const size_t count = module->parameter_count;
    cddp_status status = CDDP_OK;
    cddp_group *group = NULL;
    cddp_ddp *ddp = NULL;
    cddp_grad *grads = calloc(count, sizeof *grads);
    cddp_parameter *parameters = j->lists + rank->rank * count;
    if (grads == NULL) {
        status = cd_fail_memory(err, "rank %u", rank->rank);
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        const cd_parameter *p = &module->parameters[i];
        parameters[i] = (cddp_parameter){.name = p->name,
                                         .tensor = p->tensor,
                                         .grad = &grads[i],
                                         .requires_grad = true};
    }
    cddp_group_options o = {.size = sizeof o, .backend = &j->backend, .rank = rank};
    o.spec = (cddp_group_spec){.size = sizeof o.spec,
                               .name = "world",
                               .group_rank = rank->rank,
                               .group_size = rank->world_size,
                               .members = j->all};
    CD_TRY_OUT(cddp_group_create(&o, &group, err));
    cddp_ddp_options options = cddp_ddp_options_default();
    options.parameters = parameters;
    options.parameter_count = count;
    options.group = group;
    options.gradient_as_bucket_view = true;
    options.strict = false; /* nobody accumulates anything: the bookkeeping is measured */
    CD_TRY_OUT(cddp_ddp_create(&options, &ddp, err));
    if (--j->wrapping == 0) { /* names are copied, tensors and slots are borrowed */
        free(j->lists);
        j->lists = NULL;
    }
    CD_TRY_OUT(iterate(rank, j, ddp, err));
    if (j->last_s == 0) j->last_s = cpu_s();
    CD_TRY_OUT(iterate(rank, j, ddp, err)); /* with rebuilt buckets */
out:
    cddp_ddp_destroy(ddp);
    for (size_t i = 0; grads != NULL && i < count; i++) cddp_grad_fini(&grads[i]);
    cddp_group_destroy(group);
    free(grads);
    return status;
}

typedef struct cost {
    double us, gib; /* per rank and bucket; of the process at its peak */
} cost;

static cost measure(size_t m, uint32_t ranks)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_sim *sim = NULL;
    cd_model *model = NULL;
    const cd_prng prng = cd_prng_seed(1);
    const cd_model_options mo = {.name = models[m].type,
                                 .options = models[m].options,
                                 .dtype = CDDP_F32,
                                 .device = cddp_device_shape(),
                                 .prng = &prng};
    if (cd_model_create(&mo, &model, &err) != CDDP_OK) die(&err);
    job j = {.model = model, .all = calloc(ranks, sizeof *j.all), .wrapping = ranks};
    j.lists = calloc(ranks * model->module->parameter_count, sizeof *j.lists);
    cddp_rank_result *results = calloc(ranks, sizeof *results);
    if (j.all == NULL || j.lists == NULL || results == NULL) exit(EXIT_FAILURE);
    for (uint32_t i = 0; i < ranks; i++) j.all[i] = i;
    cd_sim_config config = CD_SIM_CONFIG_INIT;
    config.world_size = ranks;
    config.stack_bytes = 32768;
    /* reserved; touched pages cost */
    config.heap_bytes = ((size_t)256 << 20) + ((size_t)4 << 20) * ranks;
    config.algorithm = CD_ALGORITHM_ring;
    config.transport = CD_SIM_MODEL;
    config.network.ranks_per_node = 8;
    config.network.intra = *cd_link_get(CD_LINK_nvlink_a100);
    config.network.inter = *cd_link_get(CD_LINK_infiniband_hdr);
    double start = cpu_s();
    if (cd_sim_create(&config, &sim, &err) != CDDP_OK) die(&err);
    j.backend = cd_sim_backend(sim);
    if (cd_sim_ops()->launch(sim, program, &j, results, &err) != CDDP_OK) die(&err);
    for (uint32_t i = 0; i < ranks; i++)
        if (results[i].status != CDDP_OK) die(&results[i].error);
    double end = cpu_s(), seconds = end - start;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    const cost c = {.us = seconds * 1e6 / ((double)ranks * j.buckets),
                    .gib = (double)usage.ru_maxrss / (1 << 20)};
    printf("%-9s %6u ranks %4u buckets  %8.3f s, the last iteration %7.3f  %7.3f us per rank and "
           "bucket  %7.3f GiB  "
           "virtual %.3f s\n",
           models[m].name, ranks, j.buckets, seconds, end - j.last_s, c.us, c.gib,
           (double)j.ended_ns / 1e9);
    cd_sim_destroy(sim);
    cd_model_destroy(model);
    free(results);
    free(j.lists);
    free(j.all);
    return c;
}

/* In a separate process, so that its peak memory is its own. */
static cost measure_alone(size_t m, uint32_t ranks)
{
    cost c = {0};
    int ends[2];
    fflush(stdout);
    if (pipe(ends) != 0) perror("scale_bench: pipe"), exit(EXIT_FAILURE);
    pid_t child = fork();
    if (child == 0) {
        c = measure(m, ranks);
        fflush(stdout);
        _exit(write(ends[1], &c, sizeof c) == (ssize_t)sizeof c ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    close(ends[1]);
    bool reported = child > 0 && read(ends[0], &c, sizeof c) == (ssize_t)sizeof c;
    close(ends[0]);
    int state = 1;
    /* the child has said why */
    if (!reported || waitpid(child, &state, 0) != child || state != 0) exit(EXIT_FAILURE);
    return c;
}

/* Processors differ and are shared, so the test only requires that cost grows no faster than ranks
** and buckets. A miss is measured again, at most twice. Then the dearest run with few ranks counts
** and the cheapest with many, because a neighbour's burst is not growth. Memory is measured
** once. */
static int keep(size_t m, uint32_t few, uint32_t many, double times, double gib)
{
    cost small = {0}, large = {.us = 1e300};
    bool linear = false, fits = true;
    for (int i = 0; i < 3 && fits && !linear; i++) {
        const cost a = measure_alone(m, few), b = measure_alone(m, many);
        if (a.us > small.us) small.us = a.us;
        if (b.us < large.us) large.us = b.us;
        if (b.gib > large.gib) large.gib = b.gib;
        linear = large.us <= times * small.us;
        fits = large.gib <= gib;
    }
    printf("%.2f times as much per rank and bucket among %u ranks as among %u, limit %.2f: %s; "
           "%.3f GiB, limit %.3f: %s\n",
           large.us / small.us, many, few, times, linear ? "kept" : "MISSED", large.gib, gib,
           fits ? "kept" : "MISSED");
    return !(linear && fits);
}

/* The memory available without swapping; a large number when the system does not report it. */
static double free_gib(void)
{
    char line[128];
    double kib = 1e12;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, "MemAvailable:", 13) == 0) kib = strtod(line + 13, NULL);
    if (f != NULL) fclose(f);
    return kib / (1 << 20);
}

int main(int argc, char **argv)
{
    const bool limits = argc > 1 && strcmp(argv[1], "--limits") == 0;
    bool known = argc < 2;
    if (limits && argc != 7)
        return fprintf(stderr, "usage: scale_bench --limits MODEL FEW MANY TIMES GIB\n"), 2;
    if (limits && free_gib() < strtod(argv[6], NULL))
        return printf("skipped: %.1f GiB of memory can be had, %s may be needed\n", free_gib(),
                      argv[6]),
               77;
    const char *wanted = limits ? argv[2] : argv[1];
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        if (argc > 1 && strcmp(wanted, models[m].name) != 0) continue;
        known = true;
        if (limits)
            return keep(m, (uint32_t)strtoul(argv[3], NULL, 10),
                        (uint32_t)strtoul(argv[4], NULL, 10), strtod(argv[5], NULL),
                        strtod(argv[6], NULL));
        for (int i = 2; i < argc; i++) measure_alone(m, (uint32_t)strtoul(argv[i], NULL, 10));
        for (uint32_t ranks = 64; argc <= 2 && ranks <= 16384; ranks *= 4) measure_alone(m, ranks);
    }
    return known ? 0
                 : (fprintf(stderr, "scale_bench: no model '%s': resnet50 or gpt2\n", wanted), 2);
}
