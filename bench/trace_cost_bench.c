/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of tracing for a training step: the reducer over the parameters of ResNet-50, one rank,
** events into a store.
**
**   trace_cost_bench [ROUNDS [views]]    default 15; views: gradients are views of buckets
**
** Three ways in turns, the least of the rounds (what other programs do on the machine only adds):
** no tracer, level order, level digest. One step drops the gradients, fills new ones, marks all of
** them ready and finalises. A model's arithmetic is missing, so tracing has its largest possible
** share. The aims: order costs under 5% of a step; digest costs, on top of order, at most 1.2
** times one read of the bytes that it hashes. A counting device gives their exact number. Rates are
** CPU time.
**
** Six readings of the gradients are reported, each at a moment behind which somebody may write.
** They are the contribution, the bucket and its slices at the launch and at the end of the wait,
** and each gradient. The post and the report take what the launch and the wait read, and a slice
** that is written back at once what the report read (core/ddp/reducer/reading.h). Large
** contributions are hashed while they are copied, and results are copied while they are hashed.
** There a gradient is compared with its slice, and has its digest where they are equal.
**
** The floor: the reading at the launch comes from memory, since a bucket is larger than the cache.
** It takes about a quarter of a step here, as much as any program that reads these bytes once. The
** others are beside copies, in turns of 1 KiB, and cost nearly nothing there. See
** Note [Hashed by rounds].
** Tried, and no faster: the digest of the bucket taken beside those of the contributions, not at
** the launch; no comparison of a gradient with its slice; pieces of 2 and 4 KiB. To ask for all
** memory by instructions takes two thirds more, on Zen 4, than the reading that it is to hasten.
** Tried without tracing, and a seventh faster: to read a bucket from its end, a megabyte at a time.
*/
#define _POSIX_C_SOURCE 200809L
#include "cddp/ddp.h"
#include "cddp/process.h"
#include "cddp/self.h"
#include "cddp/store.h"
#include "core/base/prng.h"
#include "core/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS_MAX 200
/* The last one is not timed: its device counts. */
enum { WAY_NONE, WAY_ORDER, WAY_DIGEST, WAY_COUNT, WAY_COUNTED = WAY_COUNT, WAY_ALL };

static void stop(const char *words)
{
    fprintf(stderr, "trace_cost_bench: %s\n", words);
    exit(2);
}

static void need(cddp_status status, const cddp_error *err)
{
    if (status != CDDP_OK) stop(err->message);
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The cpu device, which also counts the bytes that it hashes. Devices have no state, so the bench
** has the count; there is one bench in this process. */
static uint64_t hashed_bytes;

static cddp_status counting_digest(const cddp_tensor *tensor, uint64_t *digest, cddp_error *err)
{
    hashed_bytes += (uint64_t)cddp_tensor_numel(tensor) * cddp_dtype_bytes(tensor->dtype);
    return cddp_device_cpu()->digest(tensor, digest, err);
}

typedef struct lane {
    cd_model *model;
    cddp_parameter *parameters;
    size_t count;
    cddp_group *group;
    cddp_tracer *tracer;
    cddp_ddp *ddp;
    cddp_store *store;
    uint32_t step;
} lane;

static void open_tracer(lane *l, cddp_rank *rank, int way, const char *path)
{
    cddp_error err = CDDP_ERROR_INIT;
    int64_t run = 0;
    cddp_run_provenance provenance = {.size = sizeof provenance, .title = "bench", .world_size = 1};
    if (way == WAY_NONE) return;
    need(cddp_store_open(path, CDDP_STORE_APPEND, NULL, &l->store, &err), &err);
    need(cddp_store_run_begin(l->store, &provenance, &run, &err), &err);
    cddp_trace_level level = way == WAY_ORDER ? CDDP_TRACE_ORDER : CDDP_TRACE_DIGEST;
    need(cddp_tracer_create(rank, cddp_store_sink(l->store), level, &l->tracer, &err), &err);
}

static void open_ddp(lane *l, cddp_rank *rank, const cddp_device *device, bool has_views)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_prng prng = cd_prng_seed(1);
    cd_model_options model = {.name = "resnet",
                              .options = "depth=50",
                              .dtype = CDDP_F32,
                              .device = device,
                              .prng = &prng};
    need(cd_model_create(&model, &l->model, &err), &err);
    cd_module *module = l->model->module;
    l->count = module->parameter_count;
    l->parameters = calloc(l->count, sizeof *l->parameters);
    if (l->parameters == NULL) stop("no memory");
    for (size_t i = 0; i < l->count; i++) {
        cd_parameter *p = &module->parameters[i];
        l->parameters[i] = (cddp_parameter){.name = p->name,
                                            .tensor = p->tensor,
                                            .grad = &p->grad,
                                            .requires_grad = p->requires_grad};
    }
    const uint32_t members[] = {0};
    cddp_group_options group = {.size = sizeof group,
                                .backend = cddp_backend_self(),
                                .rank = rank,
                                .tracer = l->tracer};
    group.spec = (cddp_group_spec){.size = sizeof group.spec,
                                   .name = "world",
                                   .group_size = 1,
                                   .members = members};
    need(cddp_group_create(&group, &l->group, &err), &err);
    cddp_ddp_options options = cddp_ddp_options_default();
    options.parameters = l->parameters;
    options.parameter_count = l->count;
    options.group = l->group;
    options.tracer = l->tracer;
    options.gradient_as_bucket_view = has_views;
    need(cddp_ddp_create(&options, &l->ddp, &err), &err);
}

static void take_step(lane *l)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_tracer_set_step(l->tracer, l->step++, 0);
    for (size_t i = 0; i < l->count; i++) cddp_grad_drop(l->parameters[i].grad);
    need(cddp_ddp_forward_begin(l->ddp, true, &err), &err);
    need(cddp_ddp_forward_end(l->ddp, NULL, &err), &err);
    for (size_t i = l->count; i-- > 0;) {
        cddp_grad *grad = l->parameters[i].grad;
        need(cddp_grad_define(grad, &l->parameters[i].tensor, &err), &err);
        need(grad->value.device->fill(&grad->value, 0.5, NULL, &err), &err);
        need(cddp_ddp_mark_parameter_ready(l->ddp, i, &err), &err);
    }
    need(cddp_ddp_backward_end(l->ddp, &err), &err);
    need(cddp_tracer_flush(l->tracer, &err), &err);
}

static void close_lane(lane *l)
{
    cddp_ddp_destroy(l->ddp);
    cddp_group_destroy(l->group);
    cddp_tracer_destroy(l->tracer);
    cddp_store_close(l->store);
    cd_model_destroy(l->model);
    free(l->parameters);
}

/* Seconds per byte of reading memory once, as a sum of words. */
static double read_cost(const uint64_t *words, size_t count)
{
    double fastest = 1e9;
    uint64_t sum = 0;
    for (int round = 0; round < 5; round++) {
        double began = cpu_seconds();
        for (size_t i = 0; i < count; i += 4)
            sum += words[i] ^ words[i + 1] ^ words[i + 2] ^ words[i + 3];
        double took = cpu_seconds() - began;
        fastest = took < fastest ? took : fastest;
    }
    if (sum == 1) puts("");
    return fastest / (double)(count * sizeof *words);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"no tracer", "level order", "level digest"};
    static double times[WAY_COUNT][ROUNDS_MAX];
    int rounds = argc > 1 ? atoi(argv[1]) : 15;
    const bool has_views = argc > 2 && strcmp(argv[2], "views") == 0;
    if (rounds < 1 || rounds > ROUNDS_MAX) stop("between 1 and 200 rounds");
    cddp_error err = CDDP_ERROR_INIT;
    cddp_device device = *cddp_device_cpu();
    device.digest = counting_digest;
    cddp_solo_world *world = NULL;
    cddp_solo_options solo = {.size = sizeof solo, .world_size = 1};
    need(cddp_solo_world_open(&solo, &world, &err), &err);
    lane lanes[WAY_ALL];
    char path[WAY_ALL][64];
    memset(lanes, 0, sizeof lanes);
    for (int way = 0; way < WAY_ALL; way++) {
        const cddp_device *on = way == WAY_COUNTED ? &device : cddp_device_cpu();
        snprintf(path[way], sizeof path[way], "trace_cost.%ld.%d.db", (long)getpid(), way);
        open_tracer(&lanes[way], cddp_solo_world_rank(world), way, path[way]);
        open_ddp(&lanes[way], cddp_solo_world_rank(world), on, has_views);
        take_step(&lanes[way]); /* rebuilds buckets */
        take_step(&lanes[way]);
    }
    hashed_bytes = 0;
    take_step(&lanes[WAY_COUNTED]);
    const uint64_t hashed = hashed_bytes;
    for (int round = 0; round < rounds; round++)
        for (int way = 0; way < WAY_COUNT; way++) {
            double began = cpu_seconds();
            take_step(&lanes[way]);
            times[way][round] = cpu_seconds() - began;
        }
    double least[WAY_COUNT];
    for (int way = 0; way < WAY_COUNT; way++) {
        least[way] = times[way][0];
        for (int i = 1; i < rounds; i++)
            least[way] = times[way][i] < least[way] ? times[way][i] : least[way];
        printf("%-14s %8.2f ms per step  (x %.3f)\n", names[way], least[way] * 1e3,
               least[way] / least[WAY_NONE]);
    }
    const size_t words = (size_t)12 << 20; /* 96 MiB, as much as the gradients */
    uint64_t *memory = malloc(words * sizeof *memory);
    if (memory == NULL) stop("no memory");
    for (size_t i = 0; i < words; i++) memory[i] = i;
    double one_read = read_cost(memory, words) * (double)hashed;
    free(memory);
    double order = least[WAY_ORDER] / least[WAY_NONE] - 1,
           digest = (least[WAY_DIGEST] - least[WAY_ORDER]) / one_read;
    printf("order costs %.1f%% of a step; digest hashes %.0f MB per step at %.2f times one read of "
           "them (%.2f ms)\n",
           order * 100, (double)hashed / 1e6, digest, one_read * 1e3);
    for (int way = 0; way < WAY_ALL; way++) {
        close_lane(&lanes[way]);
        unlink(path[way]);
    }
    cddp_solo_world_close(world);
    return order < 0.05 && digest <= 1.2 ? 0 : 1;
}
