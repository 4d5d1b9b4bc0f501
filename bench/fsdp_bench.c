/* SPDX-License-Identifier: Apache-2.0 */
/* The sharded runtime for many simulated ranks: GPT-2 (1.5 billion parameters), each block a unit;
** two iterations without content, on the device `shape`.
**
**     fsdp_bench [RANKS…]              without: 8, 64, 512 and 1,024 ranks
**     fsdp_bench --limits RANKS SECONDS GIB     fails when it takes more CPU time or memory
**
** One line per strategy: what one rank sends and keeps, beside the law, the time of an iteration in
** the simulated network, and what the simulation itself cost. It fails when the counts of the
** second iteration are not the law's:
**
**     FULL_SHARD      2N - 1 gathers, N reductions, ((2P - R)/W + P) elements given, R + 2m full
**     SHARD_GRAD_OP   N gathers, N reductions, (P/W + P) elements given, P full
**     NO_SHARD        N all-reductions of P elements
**
** N: units; P: their elements with padding; R: those of the root, m: of a block; W: ranks. A ring
** sends (W-1) times what it gathers, and (W-1)/W of what it reduces.
*/
#define _POSIX_C_SOURCE 200809L
#include "backends/sim/sim_backend.h"
#include "cddp/fsdp.h"
#include "core/base/error.h"
#include "core/base/prng.h"
#include "core/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define BLOCKS_MAX 128
#define PARAMETERS_MAX 1024

typedef struct job {
    const cd_model *model;
    cddp_backend backend;
    uint32_t *all;
    cddp_fsdp_strategy strategy;
    char names[BLOCKS_MAX][40]; /* "transformer.h.12" */
    const char *blocks[BLOCKS_MAX];
    size_t block_count;
    uint32_t unit_of[PARAMETERS_MAX]; /* the same on every rank */
    bool has_units;
    /* of rank 0 */
    double elements, root, block, given; /* P, R, m; elements given in the second iteration */
    uint32_t units;
    cddp_fsdp_counts before, after;
    uint64_t begin_ns, end_ns;
} job;

static void die(const cddp_error *err)
{
    fprintf(stderr, "fsdp_bench: %s\n", err->message);
    exit(EXIT_FAILURE);
}

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static cddp_status define_gradients(cddp_fsdp *f, const job *j, cddp_grad *grads, uint32_t unit,
                                    cddp_error *err)
{
    for (size_t i = 0; i < j->model->module->parameter_count; i++)
        if (j->unit_of[i] == unit)
            CD_TRY(cddp_grad_define(&grads[i], cddp_fsdp_parameter(f, i), err));
    return CDDP_OK;
}

/* The same on every rank. */
static cddp_status find_units(const cddp_fsdp *f, job *j, cddp_error *err)
{
    for (size_t i = 0; i < j->model->module->parameter_count; i++) {
        cddp_fsdp_piece piece = {.size = sizeof piece};
        CD_TRY(cddp_fsdp_get_piece(f, i, &piece, err));
        j->unit_of[i] = (uint32_t)piece.unit;
    }
    j->has_units = true;
    return CDDP_OK;
}

static cddp_status backward_unit(cddp_rank *rank, cddp_fsdp *f, const job *j, cddp_grad *grads,
                                 uint32_t unit, cddp_error *err)
{
    CD_TRY(cddp_fsdp_pre_backward(f, unit, err));
    CD_TRY(rank->ops->compute(rank, 1600000, "backward", err));
    CD_TRY(define_gradients(f, j, grads, unit, err));
    return CD_PASS(cddp_fsdp_post_backward(f, unit, err));
}

static cddp_status iterate(cddp_rank *rank, cddp_fsdp *f, const job *j, cddp_grad *grads,
                           cddp_error *err)
{
    const uint32_t units = cddp_fsdp_unit_count(f);
    CD_TRY(cddp_fsdp_pre_forward(f, 0, true, err));
    for (uint32_t k = 1; k < units; k++) {
        CD_TRY(cddp_fsdp_pre_forward(f, k, true, err));
        CD_TRY(rank->ops->compute(rank, 800000, "forward", err));
        CD_TRY(cddp_fsdp_post_forward(f, k, true, err));
    }
    CD_TRY(cddp_fsdp_post_forward(f, 0, true, err));
    for (uint32_t k = units; k-- > 0;) CD_TRY(backward_unit(rank, f, j, grads, k, err));
    CD_TRY(cddp_fsdp_backward_end(f, err));
    return CD_PASS(cddp_fsdp_zero_grad(f, true, err));
}

static cddp_status measure_rank(cddp_rank *rank, job *j, cddp_group *group, cddp_fsdp *f,
                                cddp_grad *grads, cddp_error *err)
{
    cddp_fsdp_counts counts = {.size = sizeof counts};
    CD_TRY(iterate(rank, f, j, grads, err));
    CD_TRY(cddp_fsdp_get_counts(f, &counts, err));
    const uint64_t bytes = cddp_group_bytes(group);
    if (rank->rank == 0) {
        j->before = counts;
        j->begin_ns = rank->ops->now_ns(rank);
    }
    CD_TRY(iterate(rank, f, j, grads, err));
    if (rank->rank != 0) return CDDP_OK;
    j->end_ns = rank->ops->now_ns(rank);
    j->given = (double)(cddp_group_bytes(group) - bytes) / 4;
    j->after.size = sizeof j->after;
    j->units = cddp_fsdp_unit_count(f);
    for (uint32_t k = 0; k < j->units; k++) {
        cddp_fsdp_unit_info u = {.size = sizeof u};
        CD_TRY(cddp_fsdp_unit(f, k, &u, err));
        j->elements += (double)u.share * u.shard_count;
        *(k == 0 ? &j->root : &j->block) = (double)u.share * u.shard_count;
    }
    return CD_PASS(cddp_fsdp_get_counts(f, &j->after, err));
}

static cddp_status program(cddp_rank *rank, void *argument, cddp_error *err)
{
    job *j = argument;
    const cd_module *module = j->model->module;
    const size_t count = module->parameter_count;
    cddp_status status = CDDP_OK;
    cddp_group *group = NULL;
    cddp_fsdp *f = NULL;
    cddp_grad *grads = calloc(count, sizeof *grads);
    cddp_parameter *parameters = calloc(count, sizeof *parameters);
    cddp_group_options o = {.size = sizeof o, .backend = &j->backend, .rank = rank};
    cddp_fsdp_options options = cddp_fsdp_options_default();
    if (grads == NULL || parameters == NULL) {
        status = cd_fail_memory(err, "rank %u", rank->rank);
        goto out;
    }
    for (size_t i = 0; i < count; i++)
        parameters[i] = (cddp_parameter){.name = module->parameters[i].name,
                                         .tensor = module->parameters[i].tensor,
                                         .grad = &grads[i],
                                         .requires_grad = true};
    o.spec = (cddp_group_spec){.size = sizeof o.spec,
                               .name = "world",
                               .group_rank = rank->rank,
                               .group_size = rank->world_size,
                               .members = j->all};
    CD_TRY_OUT(cddp_group_create(&o, &group, err));
    options.parameters = parameters;
    options.parameter_count = count;
    options.group = group;
    options.strategy = j->strategy;
    options.wrap.kind = CDDP_FSDP_WRAP_NAMES;
    options.wrap.words = j->blocks;
    options.wrap.word_count = j->block_count;
    CD_TRY_OUT(cddp_fsdp_create(&options, &f, err));
    if (!j->has_units) CD_TRY_OUT(find_units(f, j, err));
    CD_TRY_OUT(measure_rank(rank, j, group, f, grads, err));
out:
    cddp_fsdp_destroy(f);
    for (size_t i = 0; grads != NULL && i < count; i++) cddp_grad_fini(&grads[i]);
    cddp_group_destroy(group);
    free(parameters);
    free(grads);
    return status;
}

/* Blocks are the modules "transformer.h.0", … */
static void name_blocks(job *j)
{
    const cd_module *module = j->model->module;
    for (size_t i = 0; i < module->parameter_count; i++) {
        int block = -1;
        if (sscanf(module->parameters[i].name, "transformer.h.%d.", &block) != 1 ||
            block >= BLOCKS_MAX)
            continue;
        if ((size_t)block >= j->block_count) j->block_count = (size_t)block + 1;
    }
    for (size_t b = 0; b < j->block_count; b++) {
        snprintf(j->names[b], sizeof j->names[b], "transformer.h.%zu", b);
        j->blocks[b] = j->names[b];
    }
}

static bool same(const char *what, double wanted, double found)
{
    if (wanted == found) return true;
    fprintf(stderr, "fsdp_bench: %s: %.0f by the law, %.0f in the second iteration\n", what, wanted,
            found);
    return false;
}

/* Bytes, with BACKWARD_PRE; a block is gathered beside its neighbour and the root. */
static double full_by_law(const job *j)
{
    return j->strategy == CDDP_FSDP_FULL_SHARD      ? 4 * (j->root + 2 * j->block)
           : j->strategy == CDDP_FSDP_SHARD_GRAD_OP ? 4 * j->elements
                                                    : 0;
}

/* Bytes that a rank of a ring sends in an iteration. */
static double sent_by_law(const job *j, double w)
{
    const double gathered =
        j->strategy == CDDP_FSDP_FULL_SHARD ? 2 * j->elements - j->root : j->elements;
    return 4 * (w - 1) / w * (gathered + j->elements);
}

static bool obeys_the_law(const job *j, uint32_t ranks)
{
    const bool keeps = j->strategy == CDDP_FSDP_SHARD_GRAD_OP;
    const double n = j->units, w = ranks, p = j->elements, r = j->root;
    const double gathers = (double)(j->after.gathers - j->before.gathers),
                 reductions = (double)(j->after.reductions - j->before.reductions);
    if (j->strategy == CDDP_FSDP_NO_SHARD)
        return same("gathers", 0, gathers) && same("elements given", p, j->given);
    const bool counts =
        same("gathers", keeps ? n : 2 * n - 1, gathers) && same("reductions", n, reductions) &&
        same("bytes of full parameters", full_by_law(j), (double)j->after.full_bytes_peak);
    return counts && same("elements given", (keeps ? p : 2 * p - r) / w + p, j->given);
}

static bool measure(cddp_fsdp_strategy strategy, uint32_t ranks, double *seconds, double *gib)
{
    static const char *const names[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"};
    cddp_error err = CDDP_ERROR_INIT;
    cd_sim *sim = NULL;
    cd_model *model = NULL;
    const cd_prng prng = cd_prng_seed(1);
    const cd_model_options mo = {.name = "gpt2",
                                 .options = "parameters=1.5B",
                                 .dtype = CDDP_F32,
                                 .device = cddp_device_shape(),
                                 .prng = &prng};
    if (cd_model_create(&mo, &model, &err) != CDDP_OK) die(&err);
    if (model->module->parameter_count > PARAMETERS_MAX) exit(EXIT_FAILURE);
    job j = {.model = model, .strategy = strategy, .all = calloc(ranks, sizeof *j.all)};
    cddp_rank_result *results = calloc(ranks, sizeof *results);
    if (j.all == NULL || results == NULL) exit(EXIT_FAILURE);
    for (uint32_t i = 0; i < ranks; i++) j.all[i] = i;
    name_blocks(&j);
    cd_sim_config config = CD_SIM_CONFIG_INIT;
    config.world_size = ranks;
    config.stack_bytes = 65536;
    config.heap_bytes = ((size_t)256 << 20) + ((size_t)4 << 20) * ranks;
    config.algorithm = CD_ALGORITHM_ring;
    config.transport = CD_SIM_MODEL;
    config.network.ranks_per_node = 8;
    config.network.intra = *cd_link_get(CD_LINK_nvlink_a100);
    config.network.inter = *cd_link_get(CD_LINK_infiniband_hdr);
    const double start = cpu_s();
    if (cd_sim_create(&config, &sim, &err) != CDDP_OK) die(&err);
    j.backend = cd_sim_backend(sim);
    if (cd_sim_ops()->launch(sim, program, &j, results, &err) != CDDP_OK) die(&err);
    for (uint32_t i = 0; i < ranks; i++)
        if (results[i].status != CDDP_OK) die(&results[i].error);
    *seconds = cpu_s() - start;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    *gib = (double)usage.ru_maxrss / (1 << 20);
    const double w = ranks, p = j.elements, reduced = (w - 1) / w * p;
    const double gathered = (w - 1) * (j.given - p);
    const bool whole = strategy == CDDP_FSDP_NO_SHARD;
    printf("%-13s %6u ranks %3u units  sends %7.3f GiB (law %7.3f)  keeps %7.3f GiB with Adam, "
           "full at most %6.3f (law %6.3f)  iteration %8.3f ms  |  simulation %7.3f s %6.3f GiB\n",
           names[strategy], ranks, j.units, (whole ? 2 * reduced : gathered + reduced) * 0x1p-28,
           sent_by_law(&j, w) * 0x1p-30, (whole ? p : p / w) * 16 * 0x1p-30,
           (double)j.after.full_bytes_peak * 0x1p-30, full_by_law(&j) * 0x1p-30,
           (double)(j.end_ns - j.begin_ns) / 1e6, *seconds, *gib);
    const bool obeys = obeys_the_law(&j, ranks);
    cd_sim_destroy(sim);
    cd_model_destroy(model);
    free(results);
    free(j.all);
    return obeys;
}

int main(int argc, char **argv)
{
    static const uint32_t usual[] = {8, 64, 512, 1024};
    double seconds = 0, gib = 0;
    bool obeys = true;
    if (argc == 5 && strcmp(argv[1], "--limits") == 0) {
        obeys = measure(CDDP_FSDP_FULL_SHARD, (uint32_t)atoi(argv[2]), &seconds, &gib);
        const bool fits = seconds <= strtod(argv[3], NULL) && gib <= strtod(argv[4], NULL);
        printf("%.3f s, limit %s; %.3f GiB, limit %s: %s\n", seconds, argv[3], gib, argv[4],
               fits ? "kept" : "MISSED");
        return !(obeys && fits);
    }
    for (int i = 0; i < (argc > 1 ? argc - 1 : 4); i++) {
        const uint32_t ranks = argc > 1 ? (uint32_t)atoi(argv[i + 1]) : usual[i];
        if (ranks < 2) return fprintf(stderr, "usage: fsdp_bench [RANKS…], at least 2 each\n"), 2;
        for (cddp_fsdp_strategy s = CDDP_FSDP_FULL_SHARD; s <= CDDP_FSDP_NO_SHARD; s++)
            obeys = measure(s, ranks, &seconds, &gib) && obeys;
    }
    return !obeys;
}
