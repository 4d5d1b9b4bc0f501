/* SPDX-License-Identifier: Apache-2.0 */
/* What data parallelism costs beyond the work itself: real processes over Gloo (or the simulator's direct mode for
** the reducer alone), ResNet-50's list of parameters, a thousand tiny tensors, a small MLP.
**
** Everything is measured in the same processes, in rounds: local work (every gradient written once), bare collectives
** of exactly the bucket sizes, copies of the same bytes in and out, one in-place scaling pass, and DDP with copies and
** with gradient views. Quote the ratios; absolute times are this machine's.
**
** Two clocks: the wall, and the processor time of the thread that trains. The second is what the reducer itself costs;
** it hardly depends on what else the machine does, while the first, on a busy one, measures the neighbours.
**
**     reducer_bench [--module PATH/cddp-gloo.so] [--rounds N] [--list resnet50|tiny|mlp]
**     reducer_bench --print resnet50                    the list itself, for bench/pytorch_reducer.py
*/
#define _POSIX_C_SOURCE 200809L
#include "cddp/ddp.h"
#include "cddp/plugin.h"
#include "cddp/process.h"
#include "cddp/rendezvous.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/model/model.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RANKS 2
#define PARAMETERS_MAX 1024
#define ROUNDS_MAX 200

typedef enum phase { LOCAL, BARE, COPIES, SCALING, DDP_COPIES, DDP_VIEWS, MARKING, PHASE_COUNT } phase;
static const char *const phase_names[PHASE_COUNT] = {"local work", "bare collectives", "copies in and out", "scaling pass",
                                                     "ddp, copies", "ddp, views", "mark ready only"};

typedef struct list {
    const char *name;
    size_t count;
    int64_t numel[PARAMETERS_MAX];
} list;

typedef struct bench {
    const cddp_backend *module;
    char url[96];
    const list *parameters;
    int rounds;
} bench;

typedef struct lane {
    cddp_parameter parameters[PARAMETERS_MAX];
    cddp_grad grads[PARAMETERS_MAX];
    char names[PARAMETERS_MAX][24];
    cddp_ddp *ddp;
    double marking_us; /* processor time of marking everything ready, launches included */
} lane;

#define TRY(call)                                                                                  \
    do {                                                                                           \
        cddp_status try_status = (call);                                                           \
        if (try_status != CDDP_OK) return try_status;                                              \
    } while (0)

static cddp_status lane_init(lane *l, const list *p, cddp_group *group, bool views, cddp_error *err)
{
    const cddp_device *cpu = cddp_device_cpu();
    for (size_t i = 0; i < p->count; i++) {
        void *storage = NULL;
        TRY(cpu->allocate(cpu, CDDP_F32, p->numel[i], &storage, err));
        snprintf(l->names[i], sizeof l->names[i], "p%zu", i);
        l->parameters[i] = (cddp_parameter){.name = l->names[i], .tensor = cddp_tensor_of(cpu, storage, 0, CDDP_F32, &p->numel[i], 1),
                                            .grad = &l->grads[i], .requires_grad = true};
        TRY(cpu->fill(&l->parameters[i].tensor, 1.0, NULL, err));
    }
    cddp_ddp_options o = cddp_ddp_options_default();
    o.parameters = l->parameters;
    o.parameter_count = p->count;
    o.group = group;
    o.gradient_as_bucket_view = views;
    return cddp_ddp_create(&o, &l->ddp, err);
}

static void lane_fini(lane *l, const list *p)
{
    const cddp_device *cpu = cddp_device_cpu();
    cddp_ddp_destroy(l->ddp);
    for (size_t i = 0; i < p->count; i++) {
        cddp_grad_fini(&l->grads[i]);
        cpu->release(cpu, CDDP_F32, p->numel[i], l->parameters[i].tensor.storage);
    }
}

/* Backward: every gradient is made and written once. */
typedef enum clock_kind { WALL, PROCESSOR, CLOCK_COUNT } clock_kind;

static double clock_read_us(clock_kind kind)
{
    struct timespec t = {0};
    if (kind == WALL) return (double)cd_os_now_ns() / 1e3;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static cddp_status write_gradient(lane *l, size_t i, cddp_error *err)
{
    cddp_grad_drop(&l->grads[i]);
    TRY(cddp_grad_define(&l->grads[i], &l->parameters[i].tensor, err));
    cddp_tensor *g = &l->grads[i].value;
    memset((float *)g->storage + g->offset, 0, (size_t)cddp_tensor_numel(g) * sizeof(float));
    return CDDP_OK;
}

static cddp_status iterate(lane *l, const list *p, bool writes, cddp_error *err)
{
    TRY(cddp_ddp_forward_begin(l->ddp, true, err));
    TRY(cddp_ddp_forward_end(l->ddp, NULL, err));
    const double start = writes ? 0 : clock_read_us(PROCESSOR);
    for (size_t i = p->count; i-- > 0;) { /* as backward comes: the last layer first */
        if (writes) TRY(write_gradient(l, i, err));
        TRY(cddp_ddp_mark_variable_ready(l->ddp, i, err));
    }
    if (!writes) l->marking_us = clock_read_us(PROCESSOR) - start;
    return cddp_ddp_backward_end(l->ddp, err);
}

/* The buckets' bytes as one slab, reduced in pieces of the bucket sizes, all in flight. */
typedef struct slab {
    cddp_tensor all, other;
    int64_t sizes[PARAMETERS_MAX];
    uint32_t count;
} slab;

static cddp_status slab_init(slab *s, const lane *l, cddp_error *err)
{
    const cddp_device *cpu = cddp_device_cpu();
    int64_t total = 0;
    s->count = cddp_ddp_bucket_count(l->ddp);
    for (uint32_t b = 0; b < s->count; b++) {
        cddp_bucket_info info = {.size = sizeof info};
        TRY(cddp_ddp_bucket(l->ddp, b, &info, err));
        s->sizes[b] = info.numel;
        total += info.numel;
    }
    cddp_tensor *tensors[2] = {&s->all, &s->other};
    for (int i = 0; i < 2; i++) {
        void *storage = NULL;
        TRY(cpu->allocate(cpu, CDDP_F32, total, &storage, err));
        *tensors[i] = cddp_tensor_of(cpu, storage, 0, CDDP_F32, &total, 1);
        TRY(cpu->fill(tensors[i], 0.0, NULL, err));
    }
    return CDDP_OK;
}

static cddp_status bare(const slab *s, cddp_group *group, cddp_error *err)
{
    cddp_work *works[PARAMETERS_MAX];
    int64_t at = 0;
    for (uint32_t b = 0; b < s->count; b++) {
        cddp_tensor piece = cddp_tensor_slice(&s->all, at, s->sizes[b]);
        TRY(cddp_group_allreduce(group, &piece, CDDP_RED_SUM, &works[b], err));
        at += s->sizes[b];
    }
    for (uint32_t b = 0; b < s->count; b++) TRY(cddp_work_wait(works[b], 0, err));
    return CDDP_OK;
}

static cddp_status run_phase(phase which, lane lanes[2], const slab *s, const list *p, cddp_group *group, cddp_error *err)
{
    float *a = s->all.storage, *b = s->other.storage;
    size_t bytes = (size_t)cddp_tensor_numel(&s->all) * sizeof(float);
    switch (which) {
    case LOCAL:
        for (size_t i = p->count; i-- > 0;) TRY(write_gradient(&lanes[0], i, err));
        return CDDP_OK;
    case BARE: return bare(s, group, err);
    case COPIES:
        memcpy(a, b, bytes);
        memcpy(b, a, bytes);
        return CDDP_OK;
    case SCALING: return s->all.device->multiply_reciprocal(&s->all, &s->all, RANKS, NULL, err);
    case DDP_COPIES: return iterate(&lanes[0], p, true, err);
    case DDP_VIEWS: return iterate(&lanes[1], p, true, err);
    case MARKING: return iterate(&lanes[1], p, false, err);
    case PHASE_COUNT: break;
    }
    return CDDP_OK;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

static void tell_clock(const bench *b, const char *name, const double m[PHASE_COUNT])
{
    double over_copies = m[DDP_COPIES] - m[LOCAL] - m[BARE], over_views = m[DDP_VIEWS] - m[LOCAL] - m[BARE];
    printf("  %s, ddp beyond local and collectives: copies %.1f us (%.2f of the copies), views %.1f us (%.2f of a scaling pass)\n",
           name, over_copies, over_copies / m[COPIES], over_views, over_views / m[SCALING]);
    printf("  %s, per tensor beyond both: copies %.3f us, views %.3f us\n", name, over_copies / (double)b->parameters->count,
           over_views / (double)b->parameters->count);
}

static void tell(const bench *b, const slab *s, double times[CLOCK_COUNT][PHASE_COUNT][ROUNDS_MAX], double *marking)
{
    double m[CLOCK_COUNT][PHASE_COUNT];
    for (int k = 0; k < CLOCK_COUNT; k++)
        for (int i = 0; i < PHASE_COUNT; i++) m[k][i] = median(times[k][i], b->rounds);
    printf("%s: %zu tensors, %.2f MB, %u buckets, %d ranks on %s, %d rounds\n", b->parameters->name, b->parameters->count,
           (double)cddp_tensor_numel(&s->all) * 4e-6, s->count, RANKS, b->module->name, b->rounds);
    for (int i = 0; i < PHASE_COUNT; i++)
        printf("  %-18s %10.1f us wall %10.1f us processor\n", phase_names[i], m[WALL][i], m[PROCESSOR][i]);
    tell_clock(b, "wall", m[WALL]);
    tell_clock(b, "processor", m[PROCESSOR]);
    printf("  processor, marking one gradient ready, its bucket's launch included: %.3f us\n",
           median(marking, b->rounds) / (double)b->parameters->count);
    fflush(stdout);
}

static cddp_status measure(const bench *b, cddp_group *group, cddp_error *err)
{
    static lane lanes[2];
    static slab s;
    static double marking[ROUNDS_MAX];
    static double times[CLOCK_COUNT][PHASE_COUNT][ROUNDS_MAX];
    const list *p = b->parameters;
    for (int i = 0; i < 2; i++) TRY(lane_init(&lanes[i], p, group, i == 1, err));
    for (int warm = 0; warm < 3; warm++) /* past the rebuild */
        for (int i = 0; i < 2; i++) TRY(iterate(&lanes[i], p, true, err));
    TRY(slab_init(&s, &lanes[0], err));
    for (int round = 0; round < b->rounds; round++) {
        for (int k = 0; k < PHASE_COUNT; k++) {
            phase which = (phase)((k + round) % PHASE_COUNT); /* rotated, so that no phase profits from its place */
            TRY(cddp_group_barrier(group, err));
            const double wall = clock_read_us(WALL), processor = clock_read_us(PROCESSOR);
            TRY(run_phase(which, lanes, &s, p, group, err));
            times[WALL][which][round] = clock_read_us(WALL) - wall;
            times[PROCESSOR][which][round] = clock_read_us(PROCESSOR) - processor;
            if (which == MARKING) marking[round] = lanes[1].marking_us;
        }
    }
    if (cddp_group_rank(group) == 0) tell(b, &s, times, marking);
    for (int i = 0; i < 2; i++) lane_fini(&lanes[i], p);
    s.all.device->release(s.all.device, CDDP_F32, cddp_tensor_numel(&s.all), s.all.storage);
    s.all.device->release(s.all.device, CDDP_F32, cddp_tensor_numel(&s.other), s.other.storage);
    return CDDP_OK;
}

static cddp_status rank_main(cddp_rank *rank, void *argument, cddp_error *err)
{
    const bench *b = argument;
    static const uint32_t members[RANKS] = {0, 1};
    cddp_rendezvous *rendezvous = NULL;
    cddp_group *group = NULL;
    cddp_rendezvous_options ro = {.size = sizeof ro, .url = b->url};
    TRY(cddp_rendezvous_open(&ro, &rendezvous, err));
    cddp_backend bound = *b->module;
    bound.self = rendezvous;
    cddp_group_options o = {.size = sizeof o, .backend = &bound, .rank = rank,
                            .spec = {.size = sizeof o.spec, .name = "bench", .group_rank = rank->rank, .group_size = RANKS, .members = members}};
    TRY(cddp_group_create(&o, &group, err));
    cddp_status status = measure(b, group, err);
    cddp_group_destroy(group);
    cddp_rendezvous_close(rendezvous);
    return status;
}

static int run_list(bench *b)
{
    cddp_process_options options = {.size = sizeof options, .world_size = RANKS};
    cddp_process_world *world = NULL;
    cddp_rank_result results[RANKS];
    cddp_error err = CDDP_ERROR_INIT;
    char directory[] = "/tmp/cddp-bench-XXXXXX", command[64];
    if (mkdtemp(directory) == NULL || cddp_process_world_open(&options, &world, &err) != CDDP_OK) return 1;
    snprintf(b->url, sizeof b->url, "file://%s", directory);
    for (int i = 0; i < RANKS; i++) results[i] = (cddp_rank_result){.size = sizeof results[i]};
    int failed = cddp_process_world_ops()->launch(world, rank_main, b, results, &err) != CDDP_OK;
    for (int i = 0; i < RANKS; i++) {
        failed |= results[i].status != CDDP_OK || results[i].end != CDDP_RANK_RETURNED;
        if (results[i].status != CDDP_OK) fprintf(stderr, "rank %d: %s\n", i, results[i].error.message);
    }
    cddp_process_world_close(world);
    snprintf(command, sizeof command, "rm -rf %s", directory);
    return failed || system(command) != 0;
}

/* The real list, from the model's own table; its arithmetic is not used. */
static int read_resnet50(list *p)
{
    cd_model_options o = {.name = "resnet", .options = "depth=50", .device = cddp_device_shape(), .dtype = CDDP_F32};
    cd_model *model = NULL;
    cddp_error err = CDDP_ERROR_INIT;
    cd_prng prng = cd_prng_seed(1);
    o.prng = &prng;
    if (cd_model_create(&o, &model, &err) != CDDP_OK) return fprintf(stderr, "%s\n", err.message), 1;
    for (size_t i = 0; i < model->module->parameter_count && p->count < PARAMETERS_MAX; i++)
        p->numel[p->count++] = cddp_tensor_numel(&model->module->parameters[i].tensor);
    cd_model_destroy(model);
    return 0;
}

int main(int argc, char **argv)
{
    static list lists[3] = {{.name = "resnet50"}, {.name = "tiny", .count = 1000}, {.name = "mlp", .count = 4}};
    static const int64_t mlp[4] = {1000, 100, 1000, 10};
    const char *path = CDDP_GLOO_MODULE, *only = NULL, *print = NULL;
    bench b = {.rounds = 21};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--module") == 0) path = argv[i + 1];
        else if (strcmp(argv[i], "--rounds") == 0) b.rounds = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--list") == 0) only = argv[i + 1];
        else if (strcmp(argv[i], "--print") == 0) print = argv[i + 1];
        else return fprintf(stderr, "usage: reducer_bench [--module FILE.so] [--rounds N] [--list NAME] [--print NAME]\n"), 2;
    }
    if (b.rounds < 1 || b.rounds > ROUNDS_MAX) return fprintf(stderr, "--rounds is 1 to %d\n", ROUNDS_MAX), 2;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const cddp_plugin *plugin = library != NULL ? dlsym(library, CDDP_PLUGIN_SYMBOL) : NULL;
    if (plugin == NULL) return fprintf(stderr, "%s\n", dlerror()), 3;
    b.module = plugin->backends[0];
    for (size_t i = 0; i < 1000; i++) lists[1].numel[i] = 64;
    memcpy(lists[2].numel, mlp, sizeof mlp);
    if (read_resnet50(&lists[0]) != 0) return 1;
    int failed = 0;
    for (int i = 0; i < 3 && print != NULL; i++)
        for (size_t k = 0; strcmp(print, lists[i].name) == 0 && k < lists[i].count; k++) printf("%" PRId64 "\n", lists[i].numel[k]);
    for (int i = 0; i < 3 && print == NULL; i++) {
        if (only != NULL && strcmp(only, lists[i].name) != 0) continue;
        b.parameters = &lists[i];
        failed |= run_list(&b);
    }
    return failed;
}
