/* SPDX-License-Identifier: Apache-2.0 */
/* The public coalesced collectives: what a caller may get wrong, and the wrapper's own buckets. */
#include "cddp/coalesced.h"

#include "core/base/error.h"
#include "core/ddp/parts/module.h"
#include "core/ddp/parts/sync.h"

#include <stdio.h>

static cddp_tensor get_listed(const void *listed, size_t i)
{
    return ((const cddp_tensor *)listed)[i];
}

static cddp_status check_list(const cddp_group *group, const cddp_tensor *tensors, size_t count,
                              cddp_error *err)
{
    if (group == NULL) return cd_fail(err, CDDP_E_ARG, "the group is NULL");
    if (count > 0 && tensors == NULL)
        return cd_fail(err, CDDP_E_ARG, "the tensors are NULL but their count is %zu", count);
    for (size_t i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "tensor %zu", i);
        if (tensors[i].device == NULL)
            return cd_fail(err, CDDP_E_ARG, "%s of %zu is no tensor", name, count);
        CD_TRY(cd_wrapped_check_tensor(&tensors[i], name, err));
        if (tensors[i].storage == NULL && cddp_tensor_numel(&tensors[i]) > 0)
            return cd_fail(err, CDDP_E_ARG, "%s of %zu has no storage", name, count);
    }
    return CDDP_OK;
}

static cddp_status check_root(const cddp_group *group, uint32_t root, cddp_error *err)
{
    return root < cddp_group_size(group)
               ? CDDP_OK
               : cd_fail(err, CDDP_E_ARG, "root %u of group '%s', which has %u members", root,
                         cddp_group_name(group), cddp_group_size(group));
}

static cd_broadcast_spec spec_of(const cddp_group *group, const cddp_tensor *tensors, size_t count,
                                 uint64_t bytes_max)
{
    return (cd_broadcast_spec){.allocator = cddp_group_world_rank(group)->allocator,
                               .tensors = {tensors, get_listed},
                               .tensor_count = count,
                               .limit_bytes =
                                   bytes_max > 0 ? bytes_max : CDDP_COALESCED_DEFAULT_BYTES};
}

cddp_status cddp_group_broadcast_coalesced(cddp_group *group, const cddp_tensor *tensors,
                                           size_t count, uint32_t root, uint64_t bytes_max,
                                           cddp_error *err)
{
    CD_TRY(check_list(group, tensors, count, err));
    CD_TRY(check_root(group, root, err));
    const cd_broadcast_spec spec = spec_of(group, tensors, count, bytes_max);
    return CD_PASS(cd_broadcast_coalesced(&spec, group, root, err));
}

cddp_status cddp_group_allreduce_coalesced(cddp_group *group, const cddp_tensor *tensors,
                                           size_t count, cddp_red_op op, uint64_t bytes_max,
                                           cddp_error *err)
{
    CD_TRY(check_list(group, tensors, count, err));
    cd_broadcast_spec spec = spec_of(group, tensors, count, bytes_max);
    spec.reduces = true;
    spec.reduce_op = op;
    return CD_PASS(cd_broadcast_coalesced(&spec, group, 0, err));
}

/* Dense ones as they lie in memory: their strides are equal on all ranks. */
static cddp_tensor as_it_lies(const cddp_tensor *t)
{
    const int64_t numel = cddp_tensor_numel(t);
    return cddp_tensor_is_dense(t)
               ? cddp_tensor_of(t->device, t->storage, t->offset, t->dtype, &numel, 1)
               : *t;
}

/* Posts as many as fit, and makes room by awaiting the first of them. */
static cddp_status broadcast_each(cddp_group *group, const cddp_tensor *tensors,
                                  const uint32_t *roots, size_t count, cddp_error *err)
{
    cddp_work *works[CDDP_BROADCASTS_MAX];
    const size_t room = CDDP_BROADCASTS_MAX;
    cddp_status status = CDDP_OK;
    size_t posted = 0, ended = 0;
    for (size_t i = 0; i < count && status == CDDP_OK; i++) {
        if (cddp_tensor_numel(&tensors[i]) == 0) continue;
        if (posted - ended == room) status = cddp_work_wait(works[ended++ % room], 0, err);
        const cddp_tensor lying = as_it_lies(&tensors[i]);
        if (status == CDDP_OK)
            status = cddp_group_broadcast(group, &lying, roots[i], &works[posted % room], err);
        posted += status == CDDP_OK;
    }
    for (; ended < posted; ended++) {
        if (status == CDDP_OK)
            status = cddp_work_wait(works[ended % room], 0, err);
        else
            cddp_work_release(works[ended % room]);
    }
    return status;
}

cddp_status cddp_group_broadcast_each(cddp_group *group, const cddp_tensor *tensors,
                                      const uint32_t *roots, size_t count, cddp_error *err)
{
    CD_TRY(check_list(group, tensors, count, err));
    if (count > 0 && roots == NULL) return cd_fail(err, CDDP_E_ARG, "the roots are NULL");
    for (size_t i = 0; i < count; i++) CD_TRY(check_root(group, roots[i], err));
    return CD_PASS(broadcast_each(group, tensors, roots, count, err));
}
