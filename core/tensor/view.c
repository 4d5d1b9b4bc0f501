/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of operands and walks over views, shared by every device. */
#include "core/tensor/view.h"

#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/everywhere.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool cd_dtype_is_integer(cddp_dtype dtype)
{
    return dtype == CDDP_I64 || dtype == CDDP_I32 || dtype == CDDP_U8;
}

const char *cd_sizes_print(const int64_t *sizes, uint32_t count, char *text, size_t text_bytes)
{
    size_t used = 0;
    if (text_bytes > 0) text[0] = '\0';
    for (uint32_t d = 0; d < count && d < CDDP_DIMS_MAX && used < text_bytes; d++)
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%" PRId64, d > 0 ? "," : "",
                                 sizes[d]);
    return text;
}

/* "f32 (2, 3)", for messages. */
static const char *describe(const cddp_tensor *t, char *text, size_t text_bytes)
{
    size_t used = (size_t)snprintf(text, text_bytes, "%s (", cddp_dtype_name(t->dtype));
    for (uint32_t i = 0; i < t->dim_count && used < text_bytes; i++)
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%" PRId64, i > 0 ? ", " : "",
                                 t->sizes[i]);
    if (used < text_bytes) snprintf(text + used, text_bytes - used, ")");
    return text;
}

cddp_status cd_view_refuse(const cddp_tensor *t, const char *operation, const char *operand,
                           cddp_error *err)
{
    if (t == NULL || t->device == NULL)
        return cd_fail(err, CDDP_E_ARG, "%s: the %s is an undefined tensor", operation, operand);
    const cddp_device *device = t->device;
    if ((unsigned)t->dtype >= CDDP_DTYPE_COUNT || (device->dtypes & CDDP_DTYPE_BIT(t->dtype)) == 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "%s: device %s cannot hold the %s's dtype %s (number %d)", operation,
                       device->name, operand, cddp_dtype_name(t->dtype), (int)t->dtype);
    if (t->dim_count > CDDP_DIMS_MAX)
        return cd_fail(err, CDDP_E_ARG, "%s: the %s has %u dimensions, at most %d are possible",
                       operation, operand, t->dim_count, CDDP_DIMS_MAX);
    for (uint32_t i = 0; i < t->dim_count; i++)
        if (t->sizes[i] < 0)
            return cd_fail(err, CDDP_E_ARG, "%s: size %u of the %s is %" PRId64, operation, i,
                           operand, t->sizes[i]);
    return cd_fail(err, CDDP_E_ARG, "%s: the %s has %s", operation, operand,
                   t->storage == NULL ? "no storage" : "a negative offset");
}

static bool sizes_equal(const cddp_tensor *a, const cddp_tensor *b)
{
    if (a->dim_count != b->dim_count) return false;
    for (uint32_t i = 0; i < a->dim_count; i++)
        if (a->sizes[i] != b->sizes[i]) return false;
    return true;
}

/* Most pairs are: slices of buckets. */
static bool are_rows(const cddp_tensor *a, const cddp_tensor *b)
{
    return cd_view_is_row(a) && cd_view_is_row(b) && a->sizes[0] == b->sizes[0] &&
           a->device->copy == b->device->copy;
}

CD_APART static cddp_status check_any_pair(const cddp_tensor *dst, const cddp_tensor *src,
                                           const char *operation, cddp_error *err)
{
    char a[96], b[96];
    CD_TRY(cd_view_check(dst, operation, "destination", err));
    CD_TRY(cd_view_check(src, operation, "source", err));
    /* A copied table (another allocator) is the same kind of device, because its functions are
    ** equal. */
    if (dst->device->copy != src->device->copy)
        return cd_fail(err, CDDP_E_ARG,
                       "%s: the destination is on device %s and the source on %s; go through read "
                       "and write",
                       operation, dst->device->name, src->device->name);
    bool flat = dst->dim_count == 1 || src->dim_count == 1;
    if (!sizes_equal(dst, src) && !(flat && cddp_tensor_numel(dst) == cddp_tensor_numel(src)))
        return cd_fail(err, CDDP_E_ARG, "%s: the destination is %s and the source %s", operation,
                       describe(dst, a, sizeof a), describe(src, b, sizeof b));
    return CDDP_OK;
}

cddp_status cd_view_check_pair(const cddp_tensor *dst, const cddp_tensor *src,
                               const char *operation, cddp_error *err)
{
    return are_rows(dst, src) ? CDDP_OK : CD_PASS(check_any_pair(dst, src, operation, err));
}

cddp_status cd_view_check_same(const cddp_tensor *dst, const cddp_tensor *src,
                               const char *operation, cddp_error *err)
{
    CD_TRY(cd_view_check_pair(dst, src, operation, err));
    if (dst->dtype != src->dtype)
        return cd_fail(err, CDDP_E_ARG,
                       "%s: the destination is %s and the source %s; cast with copy first",
                       operation, cddp_dtype_name(dst->dtype), cddp_dtype_name(src->dtype));
    return CDDP_OK;
}

cddp_status cd_view_check_matmul(const cddp_tensor *dst, const cddp_matmul *operands,
                                 cd_matmul_shape *shape, cddp_error *err)
{
    char text[3][96];
    const cddp_tensor *a = operands->a, *b = operands->b;
    CD_TRY(cd_view_check(dst, "matmul", "destination", err));
    CD_TRY(cd_view_check(a, "matmul", "left operand", err));
    CD_TRY(cd_view_check(b, "matmul", "right operand", err));
    if (a->device->copy != dst->device->copy || b->device->copy != dst->device->copy)
        return cd_fail(err, CDDP_E_ARG,
                       "matmul: operands are on devices %s and %s, the destination on %s",
                       a->device->name, b->device->name, dst->device->name);
    if (dst->dim_count != 2 || a->dim_count != 2 || b->dim_count != 2)
        return cd_fail(err, CDDP_E_ARG, "matmul: %s × %s = %s are not all two-dimensional",
                       describe(a, text[0], 96), describe(b, text[1], 96),
                       describe(dst, text[2], 96));
    uint32_t ar = operands->a_transposed ? 1 : 0, br = operands->b_transposed ? 1 : 0;
    cd_matmul_shape s = {.m = a->sizes[ar],
                         .k = a->sizes[1 - ar],
                         .n = b->sizes[1 - br],
                         .a_row = a->strides[ar],
                         .a_k = a->strides[1 - ar],
                         .b_k = b->strides[br],
                         .b_col = b->strides[1 - br],
                         .dst_row = dst->strides[0],
                         .dst_col = dst->strides[1]};
    bool fits = b->sizes[br] == s.k && dst->sizes[0] == s.m && dst->sizes[1] == s.n;
    if (!fits || a->dtype != dst->dtype || b->dtype != dst->dtype)
        return cd_fail(err, CDDP_E_ARG, "matmul: %s%s × %s%s does not give %s",
                       describe(a, text[0], 96), operands->a_transposed ? " transposed" : "",
                       describe(b, text[1], 96), operands->b_transposed ? " transposed" : "",
                       describe(dst, text[2], 96));
    if (!cddp_dtype_is_float(dst->dtype))
        return cd_fail(err, CDDP_E_UNSUPPORTED, "matmul: no product of %s matrices",
                       cddp_dtype_name(dst->dtype));
    *shape = s;
    return CDDP_OK;
}

cddp_status cd_view_check_host(const cddp_tensor *t, const void *host, size_t host_bytes,
                               const char *operation, cddp_error *err)
{
    CD_TRY(cd_view_check(t, operation, "tensor", err));
    size_t bytes = (size_t)cddp_tensor_numel(t) * cddp_dtype_bytes(t->dtype);
    if (bytes != host_bytes)
        return cd_fail(err, CDDP_E_ARG, "%s: the tensor holds %zu bytes and the host buffer %zu",
                       operation, bytes, host_bytes);
    if (host == NULL && bytes > 0)
        return cd_fail(err, CDDP_E_ARG, "%s: the host buffer is NULL", operation);
    return CDDP_OK;
}

cddp_status cd_view_copy_each(const cddp_device *device, const cddp_copy_pair *pairs,
                              size_t pair_count, cddp_copy_scale scale, int64_t n,
                              cddp_stream *stream, cddp_error *err)
{
    for (size_t i = 0; i < pair_count; i++) {
        const cddp_tensor *dst = &pairs[i].dst, *src = &pairs[i].src;
        if (scale == CDDP_COPY_PLAIN)
            CD_TRY(device->copy(dst, src, stream, err));
        else if (scale == CDDP_COPY_MULTIPLY)
            CD_TRY(device->multiply_reciprocal(dst, src, n, stream, err));
        else
            CD_TRY(device->divide(dst, src, n, stream, err));
    }
    return CDDP_OK;
}

cddp_status cd_view_check_inside(const cddp_tensor *t, int64_t storage_numel, const char *operation,
                                 cddp_error *err)
{
    int64_t first = t->offset, last = t->offset;
    for (uint32_t i = 0; i < t->dim_count; i++) {
        if (t->sizes[i] == 0) return CDDP_OK;
        int64_t extent = (t->sizes[i] - 1) * t->strides[i];
        if (extent > 0)
            last += extent;
        else
            first += extent;
    }
    if (first < 0 || last >= storage_numel)
        return cd_fail(err, CDDP_E_ARG,
                       "%s: a view covers elements %" PRId64 "…%" PRId64
                       " of a storage of %" PRId64,
                       operation, first, last, storage_numel);
    return CDDP_OK;
}

void cd_walk_begin(cd_walk *walk, const cddp_tensor *t)
{
    memset(walk, 0, sizeof *walk);
    walk->position = t->offset;
    walk->left = cddp_tensor_numel(t);
    /* Dimensions from the outermost inwards; one that continues its outer neighbour is merged into
    ** it. */
    for (uint32_t i = 0; i < t->dim_count; i++) {
        if (t->sizes[i] == 1) continue;
        uint32_t n = walk->dim_count;
        if (n > 0 && walk->strides[n - 1] == t->strides[i] * t->sizes[i]) {
            walk->sizes[n - 1] *= t->sizes[i];
            walk->strides[n - 1] = t->strides[i];
        } else {
            walk->sizes[n] = t->sizes[i];
            walk->strides[n] = t->strides[i];
            walk->dim_count++;
        }
    }
    if (walk->dim_count == 0) {
        walk->sizes[0] = walk->strides[0] = 1;
        walk->dim_count = 1;
    }
}

int64_t cd_walk_ahead(const cd_walk *walk)
{
    uint32_t inner = walk->dim_count - 1;
    return walk->left == 0 ? 0 : walk->sizes[inner] - walk->index[inner];
}

cd_stretch cd_walk_take(cd_walk *walk, int64_t length)
{
    uint32_t d = walk->dim_count - 1;
    CD_ASSERT(length > 0 && length <= cd_walk_ahead(walk));
    cd_stretch s = {walk->position, length == 1 ? 1 : walk->strides[d], length};
    walk->left -= length;
    walk->index[d] += length;
    walk->position += length * walk->strides[d];
    while (d > 0 && walk->index[d] == walk->sizes[d]) {
        walk->position -= walk->sizes[d] * walk->strides[d];
        walk->index[d] = 0;
        d--;
        walk->index[d]++;
        walk->position += walk->strides[d];
    }
    return s;
}

bool cd_view_is_parallel(const cddp_tensor *a, const cddp_tensor *b)
{
    if (cd_view_is_row(a) && cd_view_is_row(b)) return true;
    if (cddp_tensor_is_contiguous(a) && cddp_tensor_is_contiguous(b)) return true;
    if (!sizes_equal(a, b) || !cddp_tensor_is_dense(a)) return false;
    for (uint32_t i = 0; i < a->dim_count; i++)
        if (a->sizes[i] != 1 && a->strides[i] != b->strides[i]) return false;
    return true;
}
