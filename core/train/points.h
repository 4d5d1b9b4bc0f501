/* SPDX-License-Identifier: Apache-2.0 */
/* Points of the self-test in a trainer: nothing in the library and in the programs
** (core/base/inject.h). */
#pragma once
#include "core/base/inject.h"

/* What each item of an array has; a model may have none of them. */
#define CD_POINT_EACH(array, count, member) ((count) > 0 ? &(array)->member : NULL)
#define CD_POINT_PARAMETERS(place, t)                                                      \
    CD_INJECT_TENSORS(place, (t)->rank->rank, (t)->now.step,                               \
                      CD_POINT_EACH((t)->replica->model->module->parameters,               \
                                    (t)->replica->model->module->parameter_count, tensor), \
                      sizeof(cd_parameter), (t)->replica->model->module->parameter_count)
#define CD_POINT_GRADIENTS(place, t)                                                       \
    CD_INJECT_GRADIENTS(place, (t)->rank->rank, (t)->now.step,                             \
                        CD_POINT_EACH((t)->replica->model->module->parameters,             \
                                      (t)->replica->model->module->parameter_count, grad), \
                        sizeof(cd_parameter), (t)->replica->model->module->parameter_count)
#define CD_POINT_BUFFERS(place, t)                                                      \
    CD_INJECT_TENSORS(place, (t)->rank->rank, (t)->now.step,                            \
                      CD_POINT_EACH((t)->replica->model->module->buffers,               \
                                    (t)->replica->model->module->buffer_count, tensor), \
                      sizeof(cd_buffer), (t)->replica->model->module->buffer_count)
#define CD_POINT_NUMBER(place, t, number) \
    CD_INJECT_NUMBER(place, (t)->rank->rank, (t)->now.step, number)
#define CD_POINT_COUNT(place, t, number) \
    CD_INJECT_COUNT(place, (t)->rank->rank, (t)->now.step, number)
#define CD_POINT_FLAG(place, t, flag) CD_INJECT_FLAG(place, (t)->rank->rank, (t)->now.step, flag)
#define CD_POINT_TURNS(place, t) CD_INJECT_TURNS(place, (t)->rank->rank, (t)->now.step)
#define CD_POINT_SKIPS(place, t) CD_INJECT_SKIPS(place, (t)->rank->rank, (t)->now.step)

#ifdef CDDP_INJECT
/* A chosen hook becomes the one that its name is mistaken for. */
#include "core/plan/chosen_hook.h"
#include <string.h>
static inline void cd_point_other_hook(cd_chosen_hook *hook)
{
    static const struct {
        const char *name, *other;
        bool takes_options; /* the same */
    } mistaken[] = {{"allreduce", "fp16_compress", false},
                    {"fp16_compress", "bf16_compress", false},
                    {"bf16_compress", "fp16_compress", false},
                    {"powersgd", "batched_powersgd", true},
                    {"topk", "allreduce", false},
                    {"quantize_per_tensor", "allreduce", false},
                    {"post_local_sgd", "allreduce", false}};
    for (size_t i = 0; i < sizeof mistaken / sizeof mistaken[0]; i++) {
        if (strcmp(hook->name, mistaken[i].name) != 0) continue;
        hook->name = mistaken[i].other;
        if (!mistaken[i].takes_options) hook->options = NULL;
        return;
    }
}
#define CD_POINT_OTHER_HOOK(place, t, hook)                                                 \
    do {                                                                                    \
        if ((hook)->name != NULL && CD_INJECT_TURNS(place, (t)->rank->rank, (t)->now.step)) \
            cd_point_other_hook(hook);                                                      \
    } while (0)
/* The slots of the optimizers; their list lies behind that of a join. */
#define CD_POINT_SLOTS(place, t)                                                         \
    do {                                                                                 \
        cddp_tensor *listed = (t)->join.slots + (t)->join.slot_count + 1;                \
        cd_replica_get_slots((t)->replica, listed, NULL);                                \
        CD_INJECT_TENSORS(place, (t)->rank->rank, (t)->now.step, listed, sizeof *listed, \
                          (t)->join.slot_count);                                         \
    } while (0)
/* What an optimizer computes with: its settings, and how often each parameter was stepped. */
#include "core/model/optim/rule.h"
#define CD_POINT_OPTIMIZER(t, o)                                                    \
    do {                                                                            \
        if ((o)->options.kind == CD_OPTIMIZER_sgd)                                  \
            CD_POINT_NUMBER("optimizer.momentum", t, (o)->options.momentum);        \
        CD_POINT_NUMBER("optimizer.weight_decay", t, (o)->options.weight_decay);    \
        if ((o)->options.kind != CD_OPTIMIZER_adam || (o)->entry_count == 0) break; \
        CD_POINT_NUMBER("optimizer.beta1", t, (o)->options.beta1);                  \
        CD_POINT_NUMBER("optimizer.beta2", t, (o)->options.beta2);                  \
        CD_POINT_NUMBER("optimizer.eps", t, (o)->options.eps);                      \
        CD_POINT_COUNT("optimizer.step_count", t, (o)->entries[0].step);            \
    } while (0)

/* The first sample of a micro-batch. */
#define CD_POINT_SAMPLES(place, t, samples)                                     \
    do {                                                                        \
        if ((samples)->count > 0) {                                             \
            CD_POINT_COUNT(place ".id", t, *(int64_t *)(samples)->ids);         \
            CD_POINT_NUMBER(place ".weight", t, *(double *)(samples)->weights); \
            CD_POINT_COUNT(place ".epoch", t, *(uint32_t *)(samples)->epochs);  \
        }                                                                       \
    } while (0)
#else
#define CD_POINT_OTHER_HOOK(place, t, hook) ((void)0)
#define CD_POINT_SAMPLES(place, t, samples) ((void)0)
#define CD_POINT_OPTIMIZER(t, o) ((void)0)
#define CD_POINT_SLOTS(place, t) ((void)0)
#endif
