/* SPDX-License-Identifier: Apache-2.0 */
/* DDP over a list of parameters. */
#include "bench/replica.h"

#include "bench/ranks.h"

#include <stdio.h>
#include <string.h>

cddp_status bench_replica_init(bench_replica *l, const bench_list *p, cddp_group *group, bool views,
                               cddp_error *err)
{
    const cddp_device *cpu = cddp_device_cpu();
    for (size_t i = 0; i < p->count; i++) {
        void *storage = NULL;
        BENCH_TRY(cpu->allocate(cpu, CDDP_F32, p->numel[i], &storage, err));
        snprintf(l->names[i], sizeof l->names[i], "p%zu", i);
        l->parameters[i] =
            (cddp_parameter){.name = l->names[i],
                             .tensor = cddp_tensor_of(cpu, storage, 0, CDDP_F32, &p->numel[i], 1),
                             .grad = &l->grads[i],
                             .requires_grad = true};
        BENCH_TRY(cpu->fill(&l->parameters[i].tensor, 1.0, NULL, err));
    }
    cddp_ddp_options o = cddp_ddp_options_default();
    o.parameters = l->parameters;
    o.parameter_count = p->count;
    o.group = group;
    o.gradient_as_bucket_view = views;
    return cddp_ddp_create(&o, &l->ddp, err);
}

void bench_replica_fini(bench_replica *l, const bench_list *p)
{
    const cddp_device *cpu = cddp_device_cpu();
    cddp_ddp_destroy(l->ddp);
    for (size_t i = 0; i < p->count; i++) {
        cddp_grad_fini(&l->grads[i]);
        cpu->release(cpu, CDDP_F32, p->numel[i], l->parameters[i].tensor.storage);
    }
}

cddp_status bench_slab_init(bench_slab *s, const cddp_ddp *ddp, cddp_error *err)
{
    const cddp_device *cpu = cddp_device_cpu();
    int64_t total = 0;
    s->count = cddp_ddp_bucket_count(ddp);
    for (uint32_t b = 0; b < s->count; b++) {
        cddp_bucket_info info = {.size = sizeof info};
        BENCH_TRY(cddp_ddp_bucket(ddp, b, &info, err));
        s->sizes[b] = info.numel;
        total += info.numel;
    }
    cddp_tensor *tensors[2] = {&s->all, &s->other};
    for (int i = 0; i < 2; i++) {
        void *storage = NULL;
        BENCH_TRY(cpu->allocate(cpu, CDDP_F32, total, &storage, err));
        *tensors[i] = cddp_tensor_of(cpu, storage, 0, CDDP_F32, &total, 1);
        BENCH_TRY(cpu->fill(tensors[i], 0.0, NULL, err));
    }
    return CDDP_OK;
}

void bench_slab_fini(bench_slab *s)
{
    const cddp_device *cpu = cddp_device_cpu();
    cpu->release(cpu, CDDP_F32, cddp_tensor_numel(&s->all), s->all.storage);
    cpu->release(cpu, CDDP_F32, cddp_tensor_numel(&s->other), s->other.storage);
}

cddp_status bench_slab_post(const bench_slab *s, cddp_group *group, uint32_t b, int64_t at,
                            cddp_work **work, cddp_error *err)
{
    cddp_tensor piece = cddp_tensor_slice(&s->all, at, s->sizes[b]);
    return cddp_group_allreduce(group, &piece, CDDP_RED_SUM, work, err);
}
