/* SPDX-License-Identifier: Apache-2.0 */
/* The sharded optimizer without a wrapper.
**
**     step own parameters → broadcast, owner by owner, in the order of assignment
**
** Every rank computes the same owners from the sizes, so nothing is agreed on. With `coalesced` the
** parameters of an owner are flattened into one vector and sent once.
**
** Not here: steps behind a comm hook (zero_step.c).
*/
#include "cddp/zero.h"

#include "cddp/coalesced.h"
#include "cddp/device.h"
#include "core/base/alloc.h"
#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/base/inject.h"
#include "core/base/sized.h"
#include "core/tensor/slices.h"

#include <stdlib.h>
#include <string.h>

#define MEMORY_BLOCK_BYTES ((size_t)1 << 10)

struct cddp_zero {
    cd_arena arena; /* of the object itself and its arrays */
    cddp_group *group;
    const cddp_allocator *allocator;
    cddp_optimizer_fn step;
    void *context;
    bool is_coalesced;
    size_t count;
    cddp_grad **grads; /* (count) */
    uint32_t *owners;  /* (count) */
    /* (count) owner by owner, and of one owner in the order of assignment */
    uint32_t *order;
    cddp_tensor *sent; /* (count) the parameters in that order */
    uint32_t *roots;   /* (count) their owners */
};

/* ---- who steps what ---- */

cddp_status cddp_zero_assign(const int64_t *numels, size_t count, uint32_t world, bool by_size,
                             const cddp_allocator *allocator, uint32_t *owners, uint32_t *order,
                             cddp_error *err)
{
    cd_arena scratch;
    if (count > 0 && (numels == NULL || owners == NULL))
        return cd_fail(err, CDDP_E_ARG, "cddp_zero_assign: %s NULL",
                       numels == NULL ? "numels is" : "owners is");
    if (world == 0 || count > UINT32_MAX)
        return cd_fail(err, CDDP_E_ARG, "%zu parameters for %u ranks cannot be assigned", count,
                       world);
    cd_arena_init(&scratch, allocator, MEMORY_BLOCK_BYTES);
    int64_t *loads = cd_arena_array(&scratch, world, sizeof *loads);
    uint32_t *own = cd_arena_array(&scratch, count + 1, sizeof *own);
    const cddp_status status = cd_arena_check(&scratch, err, "the loads of %u ranks", world);
    if (status == CDDP_OK) {
        for (size_t i = 0; i < count; i++) own[i] = (uint32_t)i;
        if (by_size) cd_owners_order_by_size(numels, count, own);
        cd_owners_assign(numels, own, count, loads, world, owners);
        if (order != NULL && count > 0) memcpy(order, own, count * sizeof *own);
    }
    cd_arena_fini(&scratch);
    return status;
}

/* ---- life ---- */

cddp_zero_options cddp_zero_options_default(void)
{
    return (cddp_zero_options){.size = sizeof(cddp_zero_options), .by_size = true};
}

/* ZRO-08. */
static cddp_status check_parameter(const cddp_parameter *p, const cddp_parameter *first,
                                   cddp_error *err)
{
    const char *name = p->name != NULL ? p->name : "(no name)";
    if (p->tensor.device == NULL || p->grad == NULL ||
        (p->tensor.storage == NULL && cddp_tensor_numel(&p->tensor) > 0))
        return cd_fail(err, CDDP_E_ARG, "a sharded optimizer: parameter '%s' has no %s", name,
                       p->tensor.device == NULL ? "tensor"
                       : p->grad == NULL        ? "gradient slot"
                                                : "storage");
    if (p->tensor.dtype != first->tensor.dtype)
        return cd_fail(err, CDDP_E_CONFIG,
                       "a sharded optimizer has parameters of one dtype (ZRO-08): '%s' is %s, '%s' "
                       "is %s",
                       first->name != NULL ? first->name : "(no name)",
                       cddp_dtype_name(first->tensor.dtype), name,
                       cddp_dtype_name(p->tensor.dtype));
    if (p->expect_sparse || !cddp_tensor_is_dense(&p->tensor))
        return cd_fail(err, CDDP_E_CONFIG, "a sharded optimizer: %s '%s' is %s (ZRO-08)",
                       p->expect_sparse ? "the gradient of" : "parameter", name,
                       p->expect_sparse ? "sparse" : "not dense");
    return CDDP_OK;
}

static cddp_status check_options(const cddp_zero_options *o, cddp_error *err)
{
    const char *missing = o->group == NULL        ? "group"
                          : o->step == NULL       ? "step"
                          : o->parameters == NULL ? "parameters"
                                                  : NULL;
    if (missing != NULL)
        return cd_fail(err, CDDP_E_ARG,
                       "a sharded optimizer needs a group, parameters and a step; %s is NULL",
                       missing);
    if (o->parameter_count == 0)
        return cd_fail(err, CDDP_E_ARG, "a sharded optimizer without parameters (ZRO-08)");
    for (size_t i = 0; i < o->parameter_count; i++)
        CD_TRY(check_parameter(&o->parameters[i], &o->parameters[0], err));
    return CDDP_OK;
}

/* ZRO-02: rank by rank, each in the order in which its parameters were assigned. */
static void order_by_owner(cddp_zero *z, const uint32_t *assigned, const cddp_parameter *parameters)
{
    const uint32_t world = cddp_group_size(z->group);
    size_t at = 0;
    for (uint32_t owner = 0; owner < world; owner++) {
        for (size_t i = 0; i < z->count; i++) {
            if (z->owners[assigned[i]] != owner) continue;
            z->order[at] = assigned[i];
            z->sent[at] = parameters[assigned[i]].tensor;
            z->roots[at++] = owner;
        }
    }
}

static cddp_status fill(cddp_zero *z, const cddp_zero_options *o, cddp_error *err)
{
    const size_t count = o->parameter_count;
    z->grads = cd_arena_array(&z->arena, count, sizeof *z->grads);
    z->owners = cd_arena_array(&z->arena, count, sizeof *z->owners);
    z->order = cd_arena_array(&z->arena, count, sizeof *z->order);
    z->sent = cd_arena_array(&z->arena, count, sizeof *z->sent);
    z->roots = cd_arena_array(&z->arena, count, sizeof *z->roots);
    int64_t *numels = cd_arena_array(&z->arena, count, sizeof *numels);
    uint32_t *assigned = cd_arena_array(&z->arena, count, sizeof *assigned);
    CD_TRY(cd_arena_check(&z->arena, err, "a sharded optimizer of %zu parameters", count));
    for (size_t i = 0; i < count; i++) {
        z->grads[i] = o->parameters[i].grad;
        numels[i] = cddp_tensor_numel(&o->parameters[i].tensor);
    }
    CD_TRY(cddp_zero_assign(numels, count, cddp_group_size(z->group), o->by_size, z->allocator,
                            z->owners, assigned, err));
    order_by_owner(z, assigned, o->parameters);
    return CDDP_OK;
}

cddp_status cddp_zero_create(const cddp_zero_options *options, cddp_zero **zero, cddp_error *err)
{
    cddp_zero_options own = cddp_zero_options_default();
    if (zero == NULL) return cd_fail(err, CDDP_E_ARG, "cddp_zero_create: zero is NULL");
    CD_TRY(CD_SIZED_CHECK(options, cddp_zero_options, context, err));
    cd_sized_copy(&own, sizeof own, options);
    CD_TRY(check_options(&own, err));
    const cddp_allocator *allocator =
        own.allocator != NULL ? own.allocator : cddp_group_world_rank(own.group)->allocator;
    cd_arena arena;
    cd_arena_init(&arena, allocator, MEMORY_BLOCK_BYTES);
    cddp_zero *z = cd_arena_push(&arena, sizeof *z);
    if (z == NULL) return cd_fail_memory(err, "a sharded optimizer");
    z->arena = arena;
    z->allocator = allocator;
    z->group = own.group;
    z->step = own.step;
    z->context = own.context;
    z->is_coalesced = own.coalesced;
    z->count = own.parameter_count;
    const cddp_status status = fill(z, &own, err);
    if (status != CDDP_OK) {
        cddp_zero_destroy(z);
        return CD_PASS(status);
    }
    *zero = z;
    return CDDP_OK;
}

void cddp_zero_destroy(cddp_zero *zero)
{
    if (zero == NULL) return;
    cd_arena_fini(&zero->arena);
}

int64_t cddp_zero_get_owner(const cddp_zero *zero, size_t parameter)
{
    return zero != NULL && parameter < zero->count ? (int64_t)zero->owners[parameter] : -1;
}

/* ---- a step ---- */

static cddp_status step_own(cddp_zero *z, cddp_error *err)
{
    const uint32_t me = cddp_group_rank(z->group);
    for (size_t i = 0; i < z->count; i++) {
        cddp_grad *grad = z->grads[z->order[i]];
        if (z->roots[i] != me || grad->kind == CDDP_GRAD_UNDEFINED) continue;
        if (grad->kind == CDDP_GRAD_SPARSE)
            return cd_fail(err, CDDP_E_UNSUPPORTED,
                           "a sharded optimizer: the gradient of parameter %u is sparse (ZRO-08)",
                           z->order[i]);
        CD_TRY(z->step(z->context, z->order[i], grad, err));
    }
    return CDDP_OK;
}

/* One vector per owner: the bucket never fills, so that each list is one broadcast. */
static cddp_status send_coalesced(cddp_zero *z, cddp_error *err)
{
    for (size_t first = 0, end; first < z->count; first = end) {
        for (end = first + 1; end < z->count && z->roots[end] == z->roots[first];) end++;
        CD_TRY(cddp_group_broadcast_coalesced(z->group, &z->sent[first], end - first,
                                              z->roots[first], UINT64_MAX, err));
    }
    return CDDP_OK;
}

cddp_status cddp_zero_step(cddp_zero *zero, cddp_error *err)
{
    if (zero == NULL) return cd_fail(err, CDDP_E_ARG, "cddp_zero_step: zero is NULL");
    CD_TRY(step_own(zero, err));
    if (zero->is_coalesced) return CD_PASS(send_coalesced(zero, err));
    return CD_PASS(
        cddp_group_broadcast_each(zero->group, zero->sent, zero->roots, zero->count, err));
}

/* ---- state ---- */

/* Whoever neither gives nor wants it takes part with memory that is forgotten. */
static cddp_status send_state(const cddp_zero *z, const cddp_tensor *slot, uint32_t owner,
                              uint32_t to, cddp_error *err)
{
    const uint32_t me = cddp_group_rank(z->group);
    const int64_t numel = cddp_tensor_numel(slot);
    const bool is_mine = me == owner || me == to;
    cddp_tensor travelling = *slot;
    void *storage = NULL;
    if (numel == 0 || owner == to) return CDDP_OK;
    if (!is_mine) {
        CD_TRY(slot->device->allocate(slot->device, slot->dtype, numel, &storage, err));
        travelling = cddp_tensor_of(slot->device, storage, 0, slot->dtype, &numel, 1);
    }
    const cddp_status status = cddp_group_broadcast_each(z->group, &travelling, &owner, 1, err);
    if (!is_mine) slot->device->release(slot->device, slot->dtype, numel, storage);
    return CD_PASS(status);
}

cddp_status cddp_zero_consolidate(cddp_zero *zero, const cddp_tensor *state, size_t slots,
                                  uint32_t to, cddp_error *err)
{
    if (zero == NULL || (state == NULL && slots > 0))
        return cd_fail(err, CDDP_E_ARG, "cddp_zero_consolidate: %s is NULL",
                       zero == NULL ? "zero" : "state");
    if (to >= cddp_group_size(zero->group))
        return cd_fail(err, CDDP_E_ARG, "rank %u of group '%s', which has %u members", to,
                       cddp_group_name(zero->group), cddp_group_size(zero->group));
    for (size_t i = 0; i < zero->count; i++) {
        const uint32_t p = zero->order[i];
        for (size_t s = 0; s < slots; s++) {
            const cddp_tensor *slot = &state[p * slots + s];
            if (slot->device == NULL)
                return cd_fail(err, CDDP_E_ARG,
                               "cddp_zero_consolidate: slot %zu of parameter %u is no tensor", s,
                               p);
            CD_TRY(send_state(zero, slot, zero->roots[i], to, err));
        }
    }
    return CDDP_OK;
}
