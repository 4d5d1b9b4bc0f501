/* SPDX-License-Identifier: Apache-2.0 */
/* One iteration of data parallelism on the GPU with one rank: what the host spends on it, and how
** long it takes.
**
** Shapes of the parameters come from stdin, one per line ("64 3 7 7"); gradients are copied from
** numbers that lie on the device, as a backward would write them. Rounds of the local work alone
** and of DDP alternate; medians are printed. The clock of the host is that of the process, read
** before the device is waited for.
**
**     step_bench HOOK OPTIONS ROUNDS < SHAPES      HOOK "-": none; 77 where there is no GPU
**     prints: local_host_us local_us ddp_host_us ddp_us
**
** tests/gpu/pytorch_gpu.py runs PyTorch's DDP beside it. Built over the fakes too, where its times
** mean nothing.
*/
#define _POSIX_C_SOURCE 200809L
#include "cddp/comm.h"
#include "cddp/ddp.h"
#include "cddp/plugin.h"
#include "cddp/process.h"
#include "cddp/rendezvous.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/prng.h"
#include "core/hooks/hook.h"
#include "tests/gpu/median.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef CDDP_NCCL_MODULE
#include <dlfcn.h>
#else
#include "tests/unit/backends/nccl/fake_nccl.h"
extern const cddp_plugin cddp_plugin_v1;
#endif

#define PARAMETERS_MAX 512
#define ROUNDS_MAX 400
#define WARM 5 /* past the rebuild, and past the beginning of compression */

typedef struct bench {
    const cddp_backend *module;
    const char *hook, *options;
    int rounds;
    size_t count;
    char names[PARAMETERS_MAX][24];
    cddp_parameter parameters[PARAMETERS_MAX];
    cddp_grad grads[PARAMETERS_MAX], alone[PARAMETERS_MAX];
    cddp_tensor written[PARAMETERS_MAX]; /* the gradients that a backward writes */
    uint32_t dims[PARAMETERS_MAX];
    int64_t sizes[PARAMETERS_MAX][CDDP_DIMS_MAX];
    cddp_ddp *ddp;
    double times[4][ROUNDS_MAX];
} bench;

static bool read_shapes(bench *b)
{
    char line[256];
    while (b->count < PARAMETERS_MAX && fgets(line, sizeof line, stdin) != NULL) {
        char *at = line, *end = line;
        for (int64_t n; b->dims[b->count] < CDDP_DIMS_MAX && (n = strtoll(at, &end, 10), end != at);
             at = end) {
            if (n < 1) return false;
            b->sizes[b->count][b->dims[b->count]++] = n;
        }
        if (b->dims[b->count] > 0) b->count++;
    }
    return b->count > 0;
}

static double clock_us(clockid_t kind)
{
    struct timespec t = {0};
    clock_gettime(kind, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static cddp_status tensor_make(const cddp_device *d, const bench *b, size_t i, cddp_tensor *t,
                               cddp_error *err)
{
    void *storage = NULL;
    int64_t numel = 1;
    for (uint32_t k = 0; k < b->dims[i]; k++) numel *= b->sizes[i][k];
    CD_TRY(d->allocate(d, CDDP_F32, numel, &storage, err));
    *t = cddp_tensor_of(d, storage, 0, CDDP_F32, b->sizes[i], b->dims[i]);
    return CDDP_OK;
}

static cddp_status numbers_write(const cddp_tensor *t, cd_prng *prng, cddp_error *err)
{
    size_t numel = (size_t)cddp_tensor_numel(t);
    float *numbers = malloc(numel * sizeof *numbers);
    if (numbers == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory for %zu numbers", numel);
    for (size_t i = 0; i < numel; i++)
        numbers[i] = (float)(cd_prng_next(prng) >> 40) * 0x1p-24f - 0.5f;
    cddp_status status = t->device->write(t, numbers, numel * sizeof *numbers, err);
    free(numbers);
    return status;
}

static cddp_status replica_make(bench *b, const cddp_device *d, cddp_group *group, cddp_error *err)
{
    cd_prng prng = cd_prng_seed(7);
    for (size_t i = 0; i < b->count; i++) {
        cddp_parameter *p = &b->parameters[i];
        snprintf(b->names[i], sizeof b->names[i], "p%zu", i);
        *p = (cddp_parameter){.name = b->names[i], .grad = &b->grads[i], .requires_grad = true};
        CD_TRY(tensor_make(d, b, i, &p->tensor, err));
        CD_TRY(tensor_make(d, b, i, &b->written[i], err));
        CD_TRY(d->fill(&p->tensor, 1, NULL, err));
        CD_TRY(numbers_write(&b->written[i], &prng, err));
    }
    cddp_ddp_options o = cddp_ddp_options_default();
    o.parameters = b->parameters;
    o.parameter_count = b->count;
    o.group = group;
    CD_TRY(cddp_ddp_create(&o, &b->ddp, err));
    if (strcmp(b->hook, "-") == 0) return CDDP_OK;
    const cddp_hook *hook = cd_hook_find(b->hook);
    if (hook == NULL) return cd_fail(err, CDDP_E_CONFIG, "there is no hook '%s'", b->hook);
    return cddp_ddp_register_comm_hook(b->ddp, hook, NULL,
                                       b->options[0] != '\0' ? b->options : NULL, err);
}

static void replica_drop(bench *b)
{
    cddp_ddp_destroy(b->ddp);
    for (size_t i = 0; i < b->count; i++) {
        const cddp_tensor *tensors[] = {&b->parameters[i].tensor, &b->written[i]};
        cddp_grad_fini(&b->grads[i]);
        cddp_grad_fini(&b->alone[i]);
        for (int k = 0; k < 2; k++)
            if (tensors[k]->device != NULL)
                tensors[k]->device->release(tensors[k]->device, CDDP_F32,
                                            cddp_tensor_numel(tensors[k]), tensors[k]->storage);
    }
}

static cddp_status write_gradient(const bench *b, cddp_grad *grad, size_t i, cddp_error *err)
{
    CD_TRY(cddp_grad_define(grad, &b->parameters[i].tensor, err));
    return grad->value.device->copy(&grad->value, &b->written[i], NULL, err);
}

static cddp_status local_work(bench *b, cddp_error *err)
{
    for (size_t i = 0; i < b->count; i++) cddp_grad_drop(&b->alone[i]);
    for (size_t i = b->count; i-- > 0;) CD_TRY(write_gradient(b, &b->alone[i], i, err));
    return CDDP_OK;
}

static cddp_status iteration(bench *b, cddp_error *err)
{
    for (size_t i = 0; i < b->count; i++) cddp_grad_drop(&b->grads[i]);
    CD_TRY(cddp_ddp_forward_begin(b->ddp, true, err));
    CD_TRY(cddp_ddp_forward_end(b->ddp, NULL, err));
    for (size_t i = b->count; i-- > 0;) {
        CD_TRY(write_gradient(b, &b->grads[i], i, err));
        CD_TRY(cddp_ddp_mark_variable_ready(b->ddp, i, err));
    }
    return cddp_ddp_backward_end(b->ddp, err);
}

static cddp_status measure(bench *b, const cddp_device *d, cddp_error *err)
{
    for (int round = -WARM; round < b->rounds; round++) {
        for (int which = 0; which < 2; which++) {
            CD_TRY(d->stream_synchronize(d, NULL, err));
            const double wall = clock_us(CLOCK_MONOTONIC),
                         host = clock_us(CLOCK_PROCESS_CPUTIME_ID);
            CD_TRY(which == 0 ? local_work(b, err) : iteration(b, err));
            const double host_end = clock_us(CLOCK_PROCESS_CPUTIME_ID);
            CD_TRY(d->stream_synchronize(d, NULL, err));
            if (round < 0) continue;
            b->times[2 * which][round] = host_end - host;
            b->times[2 * which + 1][round] = clock_us(CLOCK_MONOTONIC) - wall;
        }
    }
    return CDDP_OK;
}

static cddp_status rank_main(cddp_rank *rank, void *argument, cddp_error *err)
{
    bench *b = argument;
    static const uint32_t members[] = {0};
    char directory[] = "/tmp/cddp-step-XXXXXX", url[64], command[80];
    cddp_rendezvous *rendezvous = NULL;
    cddp_group *group = NULL;
    cddp_status status = CDDP_OK;
    if (mkdtemp(directory) == NULL) return cd_fail(err, CDDP_E_IO, "no temporary folder");
    snprintf(url, sizeof url, "file://%s", directory);
    snprintf(command, sizeof command, "rm -rf %s", directory);
    const cddp_rendezvous_options options = {.size = sizeof options,
                                             .url = url,
                                             .timeout_ns = UINT64_C(20000000000)};
    CD_TRY_OUT(cddp_rendezvous_open(&options, &rendezvous, err));
    cddp_backend bound = *b->module;
    bound.self = rendezvous;
    const cddp_group_options o = {
        .size = sizeof o,
        .backend = &bound,
        .rank = rank,
        .spec = {.size = sizeof o.spec, .name = "step", .group_size = 1, .members = members}};
    CD_TRY_OUT(cddp_group_create(&o, &group, err));
    CD_TRY_OUT(replica_make(b, bound.device, group, err));
    CD_TRY_OUT(measure(b, bound.device, err));
out:
    replica_drop(b);
    cddp_group_destroy(group);
    cddp_rendezvous_close(rendezvous);
    if (system(command) != 0) fprintf(stderr, "step_bench: %s is left behind\n", directory);
    return status;
}

static const cddp_backend *module_load(void)
{
#ifdef CDDP_NCCL_MODULE
    void *library = dlopen(CDDP_NCCL_MODULE, RTLD_NOW | RTLD_LOCAL);
    const cddp_plugin *plugin = library != NULL ? dlsym(library, CDDP_PLUGIN_SYMBOL) : NULL;
    if (plugin == NULL) return printf("skipped: %s\n", dlerror()), NULL;
    cddp_error why = CDDP_ERROR_INIT;
    if (plugin->backends[0]->probe(plugin->backends[0], &why) != CDDP_OK)
        return printf("skipped: %s\n", why.message), NULL;
    return plugin->backends[0];
#else
    fake_nccl_share();
    return cddp_plugin_v1.backends[0];
#endif
}

int main(int argc, char **argv)
{
    static bench b;
    cddp_error err = CDDP_ERROR_INIT;
    b.rounds = argc == 4 ? atoi(argv[3]) : 0;
    if (argc != 4 || b.rounds < 1 || b.rounds > ROUNDS_MAX)
        return fprintf(stderr, "usage: step_bench HOOK|- OPTIONS [1 to %d rounds] < SHAPES\n",
                       ROUNDS_MAX),
               2;
    b.hook = argv[1];
    b.options = argv[2];
    if (!read_shapes(&b))
        return fprintf(stderr, "step_bench: stdin has no shapes like '64 3 7 7'\n"), 2;
    b.module = module_load();
    if (b.module == NULL) return 77;
    const cddp_solo_options options = {.size = sizeof options, .world_size = 1};
    cddp_rank_result result = {.size = sizeof result};
    cddp_solo_world *world = NULL;
    cddp_status status = cddp_solo_world_open(&options, &world, &err);
    if (status == CDDP_OK)
        status = cddp_solo_world_ops()->launch(world, rank_main, &b, &result, &err);
    cddp_solo_world_close(world);
    if (status == CDDP_OK && result.status != CDDP_OK) {
        status = result.status;
        err = result.error;
    }
    if (status != CDDP_OK) return fprintf(stderr, "step_bench: %s\n", err.message), 1;
    for (int i = 0; i < 4; i++)
        printf("%.2f%c", gpu_median(b.times[i], b.rounds), i < 3 ? ' ' : '\n');
    return 0;
}
