/* SPDX-License-Identifier: Apache-2.0 */
/* Reading tensors as doubles, and writing them. */
#include "core/tensor/numbers.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/tensor/dtype.h"

#include <string.h>

void cd_numbers_fini(cd_numbers *numbers)
{
    cd_release(numbers->allocator, numbers->values,
               numbers->value_capacity * sizeof *numbers->values);
    cd_release(numbers->allocator, numbers->bytes, numbers->byte_capacity);
    *numbers = (cd_numbers){.allocator = numbers->allocator, .has_lanes = numbers->has_lanes};
}

static cddp_status make_room(cd_numbers *numbers, size_t count, size_t bytes, cddp_error *err)
{
    if (!cd_vec_grow(numbers->allocator, (void **)&numbers->values, &numbers->value_capacity, count,
                     sizeof *numbers->values) ||
        !cd_vec_grow(numbers->allocator, (void **)&numbers->bytes, &numbers->byte_capacity, bytes,
                     1))
        return cd_fail_memory(err, "%zu elements to read", count);
    return CDDP_OK;
}

cddp_tensor cd_tensor_lanes(const cddp_tensor *tensor)
{
    cddp_tensor lanes = *tensor;
    if (tensor->device == NULL || tensor->dtype != CDDP_C64) return lanes;
    lanes.dtype = CDDP_F32;
    lanes.offset *= 2;
    for (uint32_t i = 0; i < tensor->dim_count; i++) lanes.strides[i] *= 2;
    lanes.sizes[tensor->dim_count] = 2;
    lanes.strides[tensor->dim_count] = 1;
    lanes.dim_count++;
    return lanes;
}

/* Values that the tensor is read as, and their dtype. */
static size_t count_values(const cd_numbers *numbers, const cddp_tensor *tensor, cddp_dtype *dtype)
{
    const bool is_split = numbers->has_lanes && tensor->dtype == CDDP_C64;
    *dtype = is_split ? CDDP_F32 : tensor->dtype;
    return (size_t)cddp_tensor_numel(tensor) * (is_split ? 2 : 1);
}

cddp_status cd_numbers_read(cd_numbers *numbers, const cddp_tensor *tensor, cddp_error *err)
{
    cddp_dtype dtype;
    const size_t count = count_values(numbers, tensor, &dtype), width = cddp_dtype_bytes(dtype);
    CD_TRY(make_room(numbers, count, count * width, err));
    numbers->count = count;
    if (count == 0) return CDDP_OK;
    CD_TRY(tensor->device->read(tensor, numbers->bytes, count * width, err));
    cd_convert(CDDP_F64, numbers->values, dtype, numbers->bytes, count);
    return CDDP_OK;
}

/* Adds the rows in storage order; a coalesced gradient has each row once. */
static cddp_status scatter_rows(cd_numbers *numbers, const cddp_grad *gradient, size_t numel,
                                cddp_error *err)
{
    const cddp_tensor list = cddp_rows_tensor(&gradient->rows);
    size_t rows = (size_t)gradient->rows.count;
    size_t width = rows > 0 ? (size_t)cddp_tensor_numel(&gradient->value) / rows : 0;
    CD_TRY(cd_numbers_read(numbers, &gradient->value, err));
    size_t stored = numbers->count;
    CD_TRY(make_room(numbers, stored + numel, rows * sizeof(int64_t), err));
    double *dense = numbers->values + stored;
    for (size_t i = 0; i < numel; i++) dense[i] = 0;
    if (rows > 0) CD_TRY(list.device->read(&list, numbers->bytes, rows * sizeof(int64_t), err));
    for (size_t r = 0; r < rows; r++) {
        int64_t row;
        memcpy(&row, numbers->bytes + r * sizeof row, sizeof row);
        if (row < 0 || ((size_t)row + 1) * width > numel)
            return cd_fail(err, CDDP_E_CORRUPT,
                           "sparse gradient names row %lld of a tensor of %zu elements",
                           (long long)row, numel);
        for (size_t c = 0; c < width; c++)
            dense[(size_t)row * width + c] += numbers->values[r * width + c];
    }
    memmove(numbers->values, dense, numel * sizeof *dense);
    numbers->count = numel;
    return CDDP_OK;
}

cddp_status cd_numbers_read_gradient(cd_numbers *numbers, const cddp_grad *gradient, size_t numel,
                                     cddp_error *err)
{
    if (gradient->kind == CDDP_GRAD_DENSE)
        return CD_PASS(cd_numbers_read(numbers, &gradient->value, err));
    if (gradient->kind == CDDP_GRAD_SPARSE)
        return CD_PASS(scatter_rows(numbers, gradient, numel, err));
    CD_TRY(make_room(numbers, numel, 1, err));
    for (size_t i = 0; i < numel; i++) numbers->values[i] = 0;
    numbers->count = numel;
    return CDDP_OK;
}

cddp_status cd_gradient_digest(const cddp_grad *gradient, uint64_t *digest, cddp_error *err)
{
    const cddp_tensor *value = &gradient->value;
    uint64_t rows = 0;
    *digest = 0;
    if (gradient->kind == CDDP_GRAD_UNDEFINED) return CDDP_OK;
    CD_TRY(value->device->digest(value, digest, err));
    if (gradient->kind != CDDP_GRAD_SPARSE || gradient->rows.device == NULL) return CDDP_OK;
    const cddp_tensor list = cddp_rows_tensor(&gradient->rows);
    CD_TRY(list.device->digest(&list, &rows, err));
    *digest = cd_hash_mix(*digest, rows);
    return CDDP_OK;
}

cddp_status cd_numbers_write(cd_numbers *numbers, const cddp_tensor *tensor, const double *values,
                             cddp_error *err)
{
    cddp_dtype dtype;
    const size_t count = count_values(numbers, tensor, &dtype), width = cddp_dtype_bytes(dtype);
    CD_TRY(make_room(numbers, count, count * width, err));
    for (size_t i = 0; i < count; i++) cd_element_set(dtype, numbers->bytes + i * width, values[i]);
    if (count > 0) CD_TRY(tensor->device->write(tensor, numbers->bytes, count * width, err));
    return CDDP_OK;
}
