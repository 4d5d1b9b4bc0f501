/* SPDX-License-Identifier: Apache-2.0 */
/* Periodic and hierarchical averaging of parameters.
**
** Not here: local gradients (post_local_sgd.c), the optimizer.
*/
#include "cddp/averager.h"

#include "cddp/device.h"
#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/base/inject.h"
#include "core/base/sized.h"
#include "core/comm/averages.h"
#include "core/hooks/block_group.h"
#include "core/hooks/hook.h"

#include <inttypes.h>
#include <string.h>

typedef struct level {
    uint64_t period;
    cddp_group *group; /* borrowed when it is the whole group */
    bool is_own;
} level;

struct cddp_averager {
    cd_arena arena; /* this struct and its periods */
    level levels[CDDP_AVERAGER_LEVELS_MAX];
    uint32_t level_count;
    uint64_t warmup_steps, step;
    bool hierarchical;
    uint64_t *periods;  /* (parameter_count) 0: the level's; NULL: none has its own */
    uint32_t *averaged; /* (parameter_count) the caller's, may be NULL */
    size_t parameter_count;
};

cddp_averager_options cddp_averager_options_default(void)
{
    return (cddp_averager_options){.size = sizeof(cddp_averager_options)};
}

static cddp_status check_present(const cddp_averager_options *o, cddp_error *err)
{
    const char *missing = o->group == NULL ? "group" : o->levels == NULL ? "levels" : NULL;
    return missing == NULL ? CDDP_OK
                           : cd_fail(err, CDDP_E_ARG,
                                     "an averager needs a group and levels; %s is NULL", missing);
}

static cddp_status check_options(const cddp_averager_options *o, cddp_error *err)
{
    CD_TRY(check_present(o, err));
    if (o->level_count == 0 || o->level_count > CDDP_AVERAGER_LEVELS_MAX ||
        (!o->hierarchical && o->level_count != 1))
        return cd_fail(err, CDDP_E_CONFIG,
                       "an averager of %u levels: a periodic one has 1, a hierarchical one 1 to %d",
                       o->level_count, CDDP_AVERAGER_LEVELS_MAX);
    for (uint32_t i = 0; i < o->level_count; i++) {
        const cddp_averager_level *l = &o->levels[i];
        if (l->period == 0)
            return cd_fail(err, CDDP_E_CONFIG,
                           "averager: the period of level %u is 0 and must be positive", i);
        if (i > 0 && l->period <= l[-1].period)
            return cd_fail(err, CDDP_E_CONFIG,
                           "averager: periods must grow, but %" PRIu64 " follows %" PRIu64,
                           l->period, l[-1].period);
        if (i > 0 && l->group_size < l[-1].group_size)
            return cd_fail(err, CDDP_E_CONFIG,
                           "averager: group sizes must not shrink, but %u follows %u",
                           l->group_size, l[-1].group_size);
    }
    uint32_t last = o->levels[o->level_count - 1].group_size;
    if (o->periods != NULL && o->hierarchical)
        return cd_fail(err, CDDP_E_CONFIG,
                       "averager: only a periodic averager takes periods per parameter");
    if (last != cddp_group_size(o->group))
        return cd_fail(err, CDDP_E_CONFIG,
                       "averager: the last group size is %u and must be that of group '%s', %u",
                       last, cddp_group_name(o->group), cddp_group_size(o->group));
    return CDDP_OK;
}

/* Blocks of equal size are one group: two of one name could not live beside each other. */
static cddp_status make_level(cddp_averager *a, const cddp_averager_options *options, uint32_t i,
                              cddp_error *err)
{
    level *l = &a->levels[a->level_count++];
    const uint32_t ranks = options->levels[i].group_size;
    l->period = options->levels[i].period;
    CD_INJECT_COUNT_FROM("averager.period", cddp_group_world_rank(options->group)->rank, 0, 1,
                         l->period);
    if (ranks == cddp_group_size(options->group)) {
        l->group = options->group;
    } else if (i > 0 && ranks == options->levels[i - 1].group_size) {
        l->group = l[-1].group;
    } else {
        CD_TRY(cd_block_group_create(options->group, "average", ranks, &l->group, err));
        l->is_own = true;
    }
    return CDDP_OK;
}

cddp_status cddp_averager_create(const cddp_averager_options *given, cddp_averager **averager,
                                 cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cddp_averager_options own = cddp_averager_options_default(), *options = &own;
    if (averager == NULL) return cd_fail(err, CDDP_E_ARG, "cddp_averager_create: averager is NULL");
    CD_TRY(CD_SIZED_CHECK(given, cddp_averager_options, level_count, err));
    cd_sized_copy(&own, sizeof own, given);
    CD_TRY(check_options(options, err));
    const cddp_allocator *allocator = cddp_group_world_rank(options->group)->allocator;
    cd_arena arena;
    cd_arena_init(&arena, allocator, CD_HOOK_BLOCK_BYTES);
    cddp_averager *a = cd_arena_push(&arena, sizeof *a);
    if (a == NULL) return cd_fail_memory(err, "an averager");
    a->arena = arena;
    a->warmup_steps = options->warmup_steps;
    a->hierarchical = options->hierarchical;
    a->averaged = options->averaged;
    if (options->periods != NULL) {
        a->parameter_count = options->parameter_count;
        a->periods = cd_arena_array(&a->arena, a->parameter_count, sizeof *a->periods);
        CD_TRY_OUT(cd_arena_check(&a->arena, err, "the periods of %zu parameters",
                                  options->parameter_count));
        memcpy(a->periods, options->periods, a->parameter_count * sizeof *a->periods);
    }
    for (uint32_t i = 0; i < options->level_count; i++) CD_TRY_OUT(make_level(a, options, i, err));
    cd_averages_begin(options->group);
    *averager = a;
    return CDDP_OK;
out:
    cddp_averager_destroy(a);
    return status;
}

void cddp_averager_destroy(cddp_averager *averager)
{
    if (averager == NULL) return;
    for (uint32_t i = 0; i < averager->level_count; i++)
        if (averager->levels[i].is_own) cddp_group_destroy(averager->levels[i].group);
    cd_arena_fini(&averager->arena);
}

static const level *find_due(const cddp_averager *a)
{
    const level *due = NULL;
    if (a->step < a->warmup_steps) return NULL;
    uint64_t step = a->hierarchical ? a->step : a->step - a->warmup_steps; /* AVG-01, AVG-03 */
    for (uint32_t i = 0; i < a->level_count; i++)
        if (step % a->levels[i].period == 0)
            due = &a->levels[i]; /* the largest period is the last one */
    return due;
}

uint32_t cddp_averager_get_due(const cddp_averager *averager)
{
    const level *due = averager != NULL ? find_due(averager) : NULL;
    return due != NULL ? cddp_group_size(due->group) : 0;
}

/* Two half types that differ meet in f32. */
static cddp_dtype promote(cddp_dtype a, cddp_dtype b)
{
    if (a == b) return a;
    return a == CDDP_F64 || b == CDDP_F64 ? CDDP_F64 : CDDP_F32;
}

typedef struct share {
    const cddp_tensor *parameters;
    cddp_grad *const *gradients;
    size_t count;
    const cddp_averager *averager;
    bool is_due;    /* those without their own period */
    uint32_t ranks; /* over how many */
} share;

static bool is_over(const cddp_averager *a, uint64_t period)
{
    return a->step >= a->warmup_steps && (a->step - a->warmup_steps) % period == 0;
}

static bool takes_part(const share *s, size_t i)
{
    const uint64_t own = s->averager->periods != NULL ? s->averager->periods[i] : 0;
    if (own != 0 ? !is_over(s->averager, own) : !s->is_due) return false;
    return s->gradients[i] != NULL && s->gradients[i]->kind != CDDP_GRAD_UNDEFINED;
}

static cddp_status copy_all(const share *s, const cddp_tensor *flat, bool back, cddp_error *err)
{
    int64_t at = 0;
    for (size_t i = 0; i < s->count; i++) {
        if (!takes_part(s, i)) continue;
        const cddp_tensor *p = &s->parameters[i];
        cddp_tensor slice = cddp_tensor_slice(flat, at, cddp_tensor_numel(p));
        CD_TRY(p->device->copy(back ? p : &slice, back ? &slice : p, NULL, err));
        if (back && s->averager->averaged != NULL) s->averager->averaged[i] = s->ranks;
        at += cddp_tensor_numel(p);
    }
    return CDDP_OK;
}

static cddp_status average(const share *s, cddp_group *group, cddp_error *err)
{
    const cddp_device *device = NULL;
    cddp_dtype dtype = CDDP_DTYPE_COUNT;
    int64_t numel = 0;
    for (size_t i = 0; i < s->count; i++) {
        if (!takes_part(s, i)) continue;
        const cddp_tensor *p = &s->parameters[i];
        if (!cddp_dtype_is_float(p->dtype))
            return cd_fail(err, CDDP_E_UNSUPPORTED,
                           "averager: parameter %zu is %s; only real floating point is averaged", i,
                           cddp_dtype_name(p->dtype));
        dtype = device == NULL ? p->dtype : promote(dtype, p->dtype);
        device = p->device;
        numel += cddp_tensor_numel(p);
    }
    if (numel == 0) return CDDP_OK;
    void *storage = NULL;
    cddp_work *work = NULL;
    cddp_status status = CDDP_OK;
    CD_TRY(device->allocate(device, dtype, numel, &storage, err));
    cddp_tensor flat = cddp_tensor_of(device, storage, 0, dtype, &numel, 1);
    CD_TRY_OUT(copy_all(s, &flat, false, err));
    CD_TRY_OUT(device->divide(&flat, &flat, cddp_group_size(group), NULL, err));
    CD_TRY_OUT(cddp_group_allreduce(group, &flat, CDDP_RED_SUM, &work, err));
    CD_TRY_OUT(cddp_work_wait(work, 0, err));
    CD_TRY_OUT(copy_all(s, &flat, true, err));
out:
    device->release(device, dtype, numel, storage);
    return status;
}

cddp_status cddp_averager_step(cddp_averager *averager, const cddp_tensor *parameters,
                               cddp_grad *const *gradients, size_t count, cddp_error *err)
{
    if (averager == NULL || (count > 0 && (parameters == NULL || gradients == NULL)))
        return cd_fail(err, CDDP_E_ARG, "cddp_averager_step: %s NULL",
                       averager == NULL ? "the averager is" : "parameters or gradients are");
    const level *due = find_due(averager);
    const level *last = &averager->levels[averager->level_count - 1];
    if (averager->periods != NULL && averager->parameter_count != count)
        return cd_fail(err, CDDP_E_ARG, "averager: %zu parameters, but %zu periods", count,
                       averager->parameter_count);
    cddp_group *group = due != NULL ? due->group : last->group;
    const share s = {parameters, gradients, count, averager, due != NULL, cddp_group_size(group)};
    for (size_t i = 0; averager->averaged != NULL && i < count; i++) averager->averaged[i] = 0;
    if (due != NULL || averager->periods != NULL) CD_TRY(average(&s, group, err));
    cd_averages_step(last->group);
    for (size_t i = 0; i < count; i++)
        if (takes_part(&s, i)) cd_averages_note(group, &parameters[i]);
    averager->step++;
    return CDDP_OK;
}

uint64_t cddp_averager_get_step(const cddp_averager *averager)
{
    return averager != NULL ? averager->step : 0;
}

void cddp_averager_set_step(cddp_averager *averager, uint64_t step)
{
    if (averager != NULL) averager->step = step;
}
