/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers: life, stepping, state. Each update rule has its own file. */
#include "core/model/optim/rule.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"

#include <inttypes.h>
#include <string.h>

static const struct {
    const char *name;
    const cd_optimizer_rule *rule;
} kinds[CD_OPTIMIZER_KIND_COUNT] = {
#define CD_OPTIMIZER(name, summary) {#name, &cd_rule_##name},
#include "core/model/optim/optimizers.def"
#undef CD_OPTIMIZER
};

const char *cd_optimizer_name(cd_optimizer_kind kind)
{
    return (unsigned)kind < CD_OPTIMIZER_KIND_COUNT ? kinds[kind].name : "?";
}

cd_optimizer_options cd_optimizer_options_default(cd_optimizer_kind kind)
{
    cd_optimizer_options options = kinds[kind].rule->defaults;
    options.kind = kind;
    return options;
}

/* ---- refusals ---- */

cddp_status cd_optimizer_check_range(const char *what, double value, double low, double high,
                                     cddp_error *err)
{
    if (value >= low && value <= high) return CDDP_OK;
    return cd_fail(err, CDDP_E_CONFIG, "optimizer: %s is %g, it must lie in %g…%g", what, value,
                   low, high);
}

cddp_status cd_optimizer_refuse(const cd_optimizer *optimizer, const cd_optimizer_entry *entry,
                                const char *why, cddp_error *err)
{
    return cd_fail(err, CDDP_E_UNSUPPORTED, "%s: parameter %s: %s",
                   cd_optimizer_name(optimizer->options.kind), entry->parameter.name, why);
}

/* ---- slots and scratch ---- */

static int64_t storage_numel(const cddp_tensor *t)
{
    int64_t numel = cddp_tensor_numel(t);
    return numel > 0 ? numel : 1;
}

/* A tensor like another, with its strides where these have no gaps. */
static cddp_status make_like(const cddp_tensor *like, double value, cddp_tensor *made,
                             cddp_error *err)
{
    void *storage;
    CD_TRY(like->device->allocate(like->device, like->dtype, storage_numel(like), &storage, err));
    cddp_tensor t =
        cddp_tensor_of(like->device, storage, 0, like->dtype, like->sizes, like->dim_count);
    if (cddp_tensor_is_dense(like)) memcpy(t.strides, like->strides, sizeof t.strides);
    cddp_status status = like->device->fill(&t, value, NULL, err);
    if (status != CDDP_OK)
        like->device->release(like->device, like->dtype, storage_numel(like), storage);
    else
        *made = t;
    return status;
}

static void release(cddp_tensor *t)
{
    if (t->device != NULL) t->device->release(t->device, t->dtype, storage_numel(t), t->storage);
    t->device = NULL;
}

cddp_status cd_optimizer_make_slots(cd_optimizer *optimizer, cd_optimizer_entry *entry,
                                    cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cddp_tensor made[CD_OPTIMIZER_SLOTS_MAX] = {{0}};
    uint32_t count = optimizer->rule->slot_count(&optimizer->options);
    if (entry->is_present) return CDDP_OK;
    double initial =
        optimizer->rule->has_state_from_start ? optimizer->options.initial_accumulator_value : 0;
    for (uint32_t i = 0; i < count; i++)
        CD_TRY_OUT(make_like(&entry->parameter.tensor, initial, &made[i], err));
    memcpy(entry->slots, made, sizeof made);
    memset(made, 0, sizeof made);
    entry->is_present = true;
out:
    for (uint32_t i = 0; i < count; i++) release(&made[i]);
    return status;
}

cddp_status cd_optimizer_take_scratch(cd_optimizer *optimizer, const cddp_tensor *like,
                                      cddp_tensor *scratch, cddp_error *err)
{
    cddp_tensor *own = &optimizer->scratch;
    bool fits = own->device == like->device && own->dtype == like->dtype &&
                own->sizes[0] >= storage_numel(like);
    if (!fits) {
        int64_t numel = storage_numel(like);
        void *storage;
        release(own);
        CD_TRY(like->device->allocate(like->device, like->dtype, numel, &storage, err));
        *own = cddp_tensor_of(like->device, storage, 0, like->dtype, &numel, 1);
    }
    *scratch =
        cddp_tensor_of(like->device, own->storage, 0, like->dtype, like->sizes, like->dim_count);
    return CDDP_OK;
}

/* ---- life ---- */

static cddp_status check_entry(const cd_optimizer *optimizer, const cd_optimizer_entry *entry,
                               cddp_error *err)
{
    const cddp_tensor *t = &entry->parameter.tensor;
    if (entry->parameter.grad == NULL || t->device == NULL)
        return CD_PASS(
            cd_optimizer_refuse(optimizer, entry, "it has no tensor or no gradient slot", err));
    if (!cddp_dtype_is_float(t->dtype) && t->dtype != CDDP_C64)
        return CD_PASS(cd_optimizer_refuse(optimizer, entry,
                                           "only floating and complex parameters can be optimized",
                                           err));
    if (!optimizer->rule->needs_host) return CDDP_OK;
    if ((t->device->flags & CDDP_DEVICE_EXACT) != 0)
        return CD_PASS(
            cd_optimizer_refuse(optimizer, entry,
                                "the update is not linear, so an exact device cannot hold it; "
                                "use sgd or device cpu",
                                err));
    if ((t->device->flags & CDDP_DEVICE_VALUES) != 0 &&
        (t->device->flags & CDDP_DEVICE_HOST) == 0 &&
        !cd_update_is_there(t->device, optimizer->rule->rule))
        return CD_PASS(cd_optimizer_refuse(optimizer, entry,
                                           "this optimizer computes on host storage only", err));
    if (t->dtype == CDDP_C64 && t->dim_count == CDDP_DIMS_MAX)
        return CD_PASS(cd_optimizer_refuse(optimizer, entry,
                                           "complex with the greatest number of dimensions", err));
    return CDDP_OK;
}

#define OPTIMIZER_BLOCK_BYTES ((size_t)512)

cddp_status cd_optimizer_create(const cd_optimizer_options *options,
                                const cd_optimizer_parameter *parameters, size_t parameter_count,
                                const cddp_allocator *allocator, cd_optimizer **optimizer,
                                cddp_error *err)
{
    cddp_status status = CDDP_OK;
    if ((unsigned)options->kind >= CD_OPTIMIZER_KIND_COUNT)
        return cd_fail(err, CDDP_E_ARG, "optimizer: kind %d", (int)options->kind);
    cd_arena arena;
    cd_arena_init(&arena, allocator, OPTIMIZER_BLOCK_BYTES);
    cd_optimizer *o = cd_arena_push(&arena, sizeof *o);
    if (o == NULL) return cd_fail_memory(err, "an optimizer");
    o->arena = arena;
    o->allocator = allocator;
    o->rule = kinds[options->kind].rule;
    o->options = *options;
    CD_TRY_OUT(cd_optimizer_check_range("lr", options->lr, 0, 1e300, err));
    CD_TRY_OUT(cd_optimizer_check_range("weight_decay", options->weight_decay, 0, 1e300, err));
    CD_TRY_OUT(o->rule->check(options, err));
    o->entries = cd_arena_array(&o->arena, parameter_count, sizeof *o->entries);
    CD_TRY_OUT(cd_arena_check(&o->arena, err, "%zu parameters of an optimizer", parameter_count));
    o->entry_count = parameter_count;
    for (size_t i = 0; i < parameter_count; i++) {
        o->entries[i].parameter = parameters[i];
        CD_TRY_OUT(check_entry(o, &o->entries[i], err));
        if (!options->defers_state) CD_TRY_OUT(cd_optimizer_state_begin(o, i, err));
    }
    *optimizer = o;
    o = NULL;
out:
    cd_optimizer_destroy(o);
    return status;
}

void cd_optimizer_replace(cd_optimizer *optimizer, size_t parameter, const cddp_tensor *tensor,
                          cddp_grad *grad)
{
    cd_optimizer_parameter *p = &optimizer->entries[parameter].parameter;
    p->tensor = *tensor;
    p->grad = grad;
}

void cd_optimizer_destroy(cd_optimizer *optimizer)
{
    if (optimizer == NULL) return;
    for (size_t i = 0; i < optimizer->entry_count; i++)
        for (uint32_t s = 0; s < CD_OPTIMIZER_SLOTS_MAX; s++)
            release(&optimizer->entries[i].slots[s]);
    release(&optimizer->scratch);
    cd_arena_fini(&optimizer->arena);
}

/* ---- stepping ---- */

cddp_status cd_optimizer_step_parameter(cd_optimizer *optimizer, size_t parameter, cddp_error *err)
{
    if (parameter >= optimizer->entry_count)
        return cd_fail(err, CDDP_E_ARG, "optimizer: parameter %zu of %zu", parameter,
                       optimizer->entry_count);
    cd_optimizer_entry *entry = &optimizer->entries[parameter];
    /* not a zero gradient */
    if (entry->parameter.grad->kind == CDDP_GRAD_UNDEFINED) return CDDP_OK;
    return CD_PASS(optimizer->rule->step(optimizer, entry, err));
}

cddp_status cd_optimizer_step(cd_optimizer *optimizer, cddp_error *err)
{
    for (size_t i = 0; i < optimizer->entry_count; i++)
        CD_TRY(cd_optimizer_step_parameter(optimizer, i, err));
    return CDDP_OK;
}

void cd_optimizer_set_lr(cd_optimizer *optimizer, double lr) { optimizer->options.lr = lr; }
const cd_optimizer_options *cd_optimizer_get_options(const cd_optimizer *o) { return &o->options; }

double cd_optimizer_get_lr(const cd_optimizer *optimizer) { return optimizer->options.lr; }
size_t cd_optimizer_parameter_count(const cd_optimizer *optimizer)
{
    return optimizer->entry_count;
}

/* ---- state ---- */

void cd_optimizer_get_state(const cd_optimizer *optimizer, size_t parameter,
                            cd_optimizer_state *state)
{
    const cd_optimizer_entry *entry = &optimizer->entries[parameter];
    state->is_present = entry->is_present;
    state->step = entry->step;
    state->slot_count = optimizer->rule->slot_count(&optimizer->options);
    memcpy(state->slot_names, optimizer->rule->slot_names, sizeof state->slot_names);
    for (uint32_t s = 0; s < CD_OPTIMIZER_SLOTS_MAX; s++) {
        if (s < state->slot_count)
            state->slots[s] = entry->slots[s];
        else
            state->slots[s].device = NULL; /* undefined; the rest of it is not looked at */
    }
}

bool cd_optimizer_has_state(const cd_optimizer *optimizer, size_t parameter)
{
    return optimizer->entries[parameter].is_present;
}

static cddp_status fold_slots(const cd_optimizer_entry *entry, uint64_t *digest, cddp_error *err)
{
    for (uint32_t s = 0; s < CD_OPTIMIZER_SLOTS_MAX; s++) {
        uint64_t slot = 0;
        if (entry->slots[s].device == NULL) continue;
        CD_TRY(entry->slots[s].device->digest(&entry->slots[s], &slot, err));
        *digest = cd_hash_mix(*digest, slot);
    }
    return CDDP_OK;
}

cddp_status cd_optimizer_state_digest(const cd_optimizer *optimizer, size_t parameter,
                                      uint64_t *digest, cddp_error *err)
{
    const cd_optimizer_entry *entry = &optimizer->entries[parameter];
    bool has_slots = false;
    for (uint32_t s = 0; s < CD_OPTIMIZER_SLOTS_MAX; s++)
        has_slots |= entry->slots[s].device != NULL;
    *digest = cd_hash_mix(entry->is_present, entry->step);
    return has_slots ? CD_PASS(fold_slots(entry, digest, err)) : CDDP_OK;
}

cddp_status cd_optimizer_state_begin(cd_optimizer *optimizer, size_t parameter, cddp_error *err)
{
    return optimizer->rule->has_state_from_start
               ? cd_optimizer_make_slots(optimizer, &optimizer->entries[parameter], err)
               : CDDP_OK;
}

cddp_status cd_optimizer_state_define(cd_optimizer *optimizer, size_t parameter, cddp_error *err)
{
    return CD_PASS(cd_optimizer_make_slots(optimizer, &optimizer->entries[parameter], err));
}
