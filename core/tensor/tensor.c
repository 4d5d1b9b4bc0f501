/* SPDX-License-Identifier: Apache-2.0 */
/* Views: counting elements, contiguity, slices. A view owns nothing. */
#include "cddp/tensor.h"

#include "core/base/assert.h"

int64_t cddp_tensor_numel(const cddp_tensor *t)
{
    int64_t numel = 1;
    for (uint32_t i = 0; i < t->dim_count; i++) numel *= t->sizes[i];
    return numel;
}

bool cddp_tensor_is_contiguous(const cddp_tensor *t)
{
    int64_t expected = 1;
    for (uint32_t i = t->dim_count; i-- > 0;) {
        if (t->sizes[i] == 0) return true;
        if (t->sizes[i] != 1 && t->strides[i] != expected) return false;
        expected *= t->sizes[i];
    }
    return true;
}

bool cddp_tensor_is_dense(const cddp_tensor *t)
{
    /* Dimensions are taken from the innermost stride outwards; each must continue where the last
    ** one ended. */
    bool taken[CDDP_DIMS_MAX] = {false};
    int64_t expected = 1;
    if (cddp_tensor_numel(t) == 0) return true;
    for (uint32_t round = 0; round < t->dim_count; round++) {
        uint32_t found = CDDP_DIMS_MAX;
        for (uint32_t i = 0; i < t->dim_count; i++)
            if (!taken[i] && (t->sizes[i] == 1 || t->strides[i] == expected)) found = i;
        if (found == CDDP_DIMS_MAX) return false;
        taken[found] = true;
        expected *= t->sizes[found];
    }
    return true;
}

cddp_tensor cddp_tensor_of(const cddp_device *device, void *storage, int64_t offset,
                           cddp_dtype dtype, const int64_t *sizes, uint32_t dim_count)
{
    if (dim_count > CDDP_DIMS_MAX) return (cddp_tensor){.device = device, .dtype = dtype};
    /* Most are rows. Made at once, since a copy waits for parts that were written one by one. */
    if (dim_count == 1)
        return (cddp_tensor){.device = device,
                             .storage = storage,
                             .offset = offset,
                             .dtype = dtype,
                             .dim_count = 1,
                             .sizes = {sizes[0]},
                             .strides = {1}};
    cddp_tensor t = {.device = device,
                     .storage = storage,
                     .offset = offset,
                     .dtype = dtype,
                     .dim_count = dim_count};
    int64_t stride = 1;
    for (uint32_t i = dim_count; i-- > 0;) {
        t.sizes[i] = sizes[i];
        t.strides[i] = stride;
        stride *= sizes[i];
    }
    return t;
}

cddp_tensor cddp_tensor_slice(const cddp_tensor *t, int64_t start, int64_t numel)
{
    CD_ASSERT(cddp_tensor_is_contiguous(t));
    CD_ASSERT(start >= 0 && numel >= 0 && start + numel <= cddp_tensor_numel(t));
    return cddp_tensor_of(t->device, t->storage, t->offset + start, t->dtype, &numel, 1);
}
