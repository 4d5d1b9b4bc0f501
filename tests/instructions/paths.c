/* SPDX-License-Identifier: Apache-2.0 */
/* Hot paths of the library on fixed inputs, for count.py.
**
**   instruction_paths NAME      runs one path, between two calls of path_run
**   instruction_paths --about   what counts depend on besides the sources: compiler, C library
**
** Everything before path_run (memory, models, the first steps) is not counted.
*/
#include "cddp/ddp.h"
#include "cddp/process.h"
#include "cddp/self.h"
#include "core/base/hash.h"
#include "core/base/prng.h"
#include "core/hooks/bins.h"
#include "core/model/model.h"
#include "core/oracle/compare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__GLIBC__)
#include <gnu/libc-version.h>
#endif

#define NUMEL ((int64_t)16384)
#define SIDE ((int64_t)64)
#define WIDE ((int64_t)2048)

typedef struct fixture {
    cddp_solo_world *world;
    cddp_tracer *tracer;
    cddp_group *group;
    cd_model *model;
    cddp_parameter *parameters;
    cddp_ddp *ddp;
    float *x, *y;       /* (NUMEL) */
    double *wide;       /* (WIDE) */
    uint16_t *half;     /* (NUMEL) */
    uint64_t something; /* so that no result is left out */
    cd_bins bins;
    cd_wide_sum sum;
} fixture;

static void need(cddp_status status, const cddp_error *err)
{
    if (status == CDDP_OK) return;
    fprintf(stderr, "instruction_paths: %s\n", err->message);
    exit(2);
}

static void *memory(size_t count, size_t size)
{
    void *block = calloc(count, size);
    if (block == NULL) exit(2);
    return block;
}

static cddp_tensor vector(void *storage, cddp_dtype dtype)
{
    const int64_t numel = NUMEL;
    return cddp_tensor_of(cddp_device_cpu(), storage, 0, dtype, &numel, 1);
}

/* ---- the reducer: one rank, 12 layers ---- */

static void drop(void *self, const cddp_event *event) { *(uint64_t *)self += event->kind; }

static void open_reducer(fixture *f, bool is_traced)
{
    cddp_error err = CDDP_ERROR_INIT;
    static cddp_trace_sink sink = {.size = sizeof sink, .abi = CDDP_TRACE_ABI, .event = drop};
    const cddp_solo_options solo = {.size = sizeof solo, .world_size = 1};
    need(cddp_solo_world_open(&solo, &f->world, &err), &err);
    cddp_rank *rank = cddp_solo_world_rank(f->world);
    sink.self = &f->something;
    if (is_traced) need(cddp_tracer_create(rank, &sink, CDDP_TRACE_DIGEST, &f->tracer, &err), &err);
    cd_prng prng = cd_prng_seed(1);
    const cd_model_options model = {.name = "mlp",
                                    .options = "widths=32:32:32:32:32:32:32:32:32:32:32:32:32",
                                    .dtype = CDDP_F32,
                                    .device = cddp_device_cpu(),
                                    .prng = &prng};
    need(cd_model_create(&model, &f->model, &err), &err);
    const cd_module *module = f->model->module;
    f->parameters = memory(module->parameter_count, sizeof *f->parameters);
    for (size_t i = 0; i < module->parameter_count; i++) {
        cd_parameter *p = &module->parameters[i];
        f->parameters[i] = (cddp_parameter){.name = p->name,
                                            .tensor = p->tensor,
                                            .grad = &p->grad,
                                            .requires_grad = true};
    }
    const uint32_t members[] = {0};
    cddp_group_options group = {.size = sizeof group,
                                .backend = cddp_backend_self(),
                                .rank = rank,
                                .tracer = f->tracer};
    group.spec = (cddp_group_spec){.size = sizeof group.spec,
                                   .name = "world",
                                   .group_size = 1,
                                   .members = members};
    need(cddp_group_create(&group, &f->group, &err), &err);
    cddp_ddp_options options = cddp_ddp_options_default();
    options.parameters = f->parameters;
    options.parameter_count = module->parameter_count;
    options.group = f->group;
    options.tracer = f->tracer;
    need(cddp_ddp_create(&options, &f->ddp, &err), &err);
}

static void step(fixture *f)
{
    cddp_error err = CDDP_ERROR_INIT;
    const size_t count = f->model->module->parameter_count;
    for (size_t i = 0; i < count; i++) cddp_grad_drop(f->parameters[i].grad);
    need(cddp_ddp_forward_begin(f->ddp, true, &err), &err);
    need(cddp_ddp_forward_end(f->ddp, NULL, &err), &err);
    for (size_t i = count; i-- > 0;) {
        need(cddp_grad_define(f->parameters[i].grad, &f->parameters[i].tensor, &err), &err);
        need(cddp_ddp_mark_parameter_ready(f->ddp, i, &err), &err);
    }
    need(cddp_ddp_backward_end(f->ddp, &err), &err);
}

static void begin_step(fixture *f)
{
    open_reducer(f, false);
    for (int i = 0; i < 3; i++) step(f); /* the buckets are rebuilt */
}

static void begin_traced_step(fixture *f)
{
    open_reducer(f, true);
    for (int i = 0; i < 3; i++) step(f);
}

/* ---- numbers ---- */

static void begin_numbers(fixture *f) { (void)f; }

static void hash_bytes(fixture *f) { f->something += cd_hash64(f->x, NUMEL * sizeof *f->x, 1); }

static void add(fixture *f)
{
    cddp_error err = CDDP_ERROR_INIT;
    const cddp_tensor x = vector(f->x, CDDP_F32), y = vector(f->y, CDDP_F32);
    need(x.device->reduce(CDDP_RED_SUM, &y, &x, NULL, &err), &err);
}

static void cast(fixture *f)
{
    cddp_error err = CDDP_ERROR_INIT;
    const cddp_tensor x = vector(f->x, CDDP_F32), half = vector(f->half, CDDP_BF16);
    need(x.device->copy(&half, &x, NULL, &err), &err);
    need(x.device->copy(&x, &half, NULL, &err), &err);
}

static void multiply(fixture *f)
{
    cddp_error err = CDDP_ERROR_INIT;
    const int64_t sizes[] = {SIDE, SIDE};
    const cddp_tensor a = cddp_tensor_of(cddp_device_cpu(), f->x, 0, CDDP_F32, sizes, 2),
                      b = cddp_tensor_of(cddp_device_cpu(), f->x, SIDE * SIDE, CDDP_F32, sizes, 2),
                      c = cddp_tensor_of(cddp_device_cpu(), f->y, 0, CDDP_F32, sizes, 2);
    const cddp_matmul operands = {.a = &a, .b = &b};
    need(c.device->matmul(&c, &operands, NULL, &err), &err);
}

static void begin_sum(fixture *f)
{
    cddp_error err = CDDP_ERROR_INIT;
    need(cd_wide_sum_init(&f->sum, NULL, CDDP_F32, (size_t)WIDE, &err), &err);
}

static void compare_sum(fixture *f)
{
    const cd_sum_rule rule = {.dtype = CDDP_F32, .divisor = 4, .roundings = 5, .addends = 4};
    for (int i = 0; i < 4; i++) cd_wide_sum_push(&f->sum, f->wide);
    f->something += cd_compare_sum(&f->sum, f->wide, &rule).bad;
}

static void begin_bins(fixture *f)
{
    cddp_error err = CDDP_ERROR_INIT;
    need(cd_bins_init(&f->bins, NULL, CDDP_F32, NUMEL, &err), &err);
}

static void add_exactly(fixture *f)
{
    cddp_error err = CDDP_ERROR_INIT;
    for (int i = 0; i < 4; i++) need(cd_bins_add(&f->bins, f->x, &err), &err);
}

typedef struct path {
    const char *name;
    void (*begin)(fixture *);
    void (*run)(fixture *);
} path;

static const path paths[] = {{"step", begin_step, step},
                             {"traced_step", begin_traced_step, step},
                             {"hash", begin_numbers, hash_bytes},
                             {"add", begin_numbers, add},
                             {"cast", begin_numbers, cast},
                             {"multiply", begin_numbers, multiply},
                             {"compare_sum", begin_sum, compare_sum},
                             {"add_exactly", begin_bins, add_exactly}};

/* What callgrind counts, by this name. */
void path_run(const path *p, fixture *f);
__attribute__((noinline)) void path_run(const path *p, fixture *f)
{
    p->run(f);
    f->something++; /* no tail call */
}

static void about(void)
{
#if defined(__GLIBC__)
    printf("compiler %s, C library %s\n", __VERSION__, gnu_get_libc_version());
#else
    printf("compiler %s, another C library\n", __VERSION__);
#endif
}

int main(int argc, char **argv)
{
    fixture f = {.x = memory((size_t)NUMEL, sizeof(float)),
                 .y = memory((size_t)NUMEL, sizeof(float)),
                 .half = memory((size_t)NUMEL, sizeof(uint16_t)),
                 .wide = memory((size_t)WIDE, sizeof(double))};
    cd_prng prng = cd_prng_seed(7);
    for (int64_t i = 0; i < NUMEL; i++)
        f.x[i] = (float)(int64_t)(cd_prng_below(&prng, 2001)) / 64.0f - 15.0f;
    for (int64_t i = 0; i < WIDE; i++) f.wide[i] = (double)f.x[i];
    if (argc == 2 && strcmp(argv[1], "--about") == 0) {
        about();
        return 0;
    }
    for (size_t i = 0; argc == 2 && i < sizeof paths / sizeof paths[0]; i++) {
        if (strcmp(paths[i].name, argv[1]) != 0) continue;
        paths[i].begin(&f);
        path_run(&paths[i], &f);
        return f.something == 0;
    }
    fprintf(stderr, "usage: instruction_paths NAME | --about\n");
    return 2;
}
