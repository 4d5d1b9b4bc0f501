/* SPDX-License-Identifier: Apache-2.0 */
/* Checks views, and walks through their elements in logical order with any strides.
**
** Every device implements its operations over these walks, so that all of them agree on what
** "logical order" and "as many elements" mean.
** Errors     the checks name the operation and the operand that was wrong.
*/
#pragma once
#include "cddp/device.h"

/* cddp_dtype_bytes of a dtype that is one, without a call. */
static inline size_t cd_dtype_bytes(cddp_dtype dtype)
{
    static const unsigned char bytes[CDDP_DTYPE_COUNT] = {
        [CDDP_F64] = 8, [CDDP_F32] = 4, [CDDP_F16] = 2, [CDDP_BF16] = 2,
        [CDDP_C64] = 8, [CDDP_I64] = 8, [CDDP_I32] = 4, [CDDP_U8] = 1,
    };
    return bytes[dtype];
}

static inline bool cd_view_is_sound(const cddp_tensor *t)
{
    if (t == NULL || t->device == NULL || t->storage == NULL || t->offset < 0) return false;
    if ((unsigned)t->dtype >= CDDP_DTYPE_COUNT || t->dim_count > CDDP_DIMS_MAX) return false;
    bool is_sound = (t->device->dtypes & CDDP_DTYPE_BIT(t->dtype)) != 0;
    for (uint32_t i = 0; i < t->dim_count; i++) is_sound &= t->sizes[i] >= 0;
    return is_sound;
}

/* A sound view of one dimension without gaps, as buckets and biases are: what cd_view_is_sound and
** cd_view_is_contiguous say of it, without their loops. false: another one. */
static inline bool cd_view_is_row(const cddp_tensor *t)
{
    if (t == NULL || t->dim_count != 1 || (unsigned)t->dtype >= CDDP_DTYPE_COUNT) return false;
    if (t->device == NULL || t->storage == NULL || (t->offset | t->sizes[0]) < 0) return false;
    return (t->sizes[0] <= 1 || t->strides[0] == 1) &&
           (t->device->dtypes & CDDP_DTYPE_BIT(t->dtype)) != 0;
}

/* Says what is wrong with it. */
cddp_status cd_view_refuse(const cddp_tensor *t, const char *operation, const char *operand,
                           cddp_error *err);

/* Defined, dimensions and sizes in range, dtype known and held by the device. `operation` names the
** caller. Every operation of every device asks, so it costs no call where nothing is wrong. */
static inline cddp_status cd_view_check(const cddp_tensor *t, const char *operation,
                                        const char *operand, cddp_error *err)
{
    return cd_view_is_sound(t) ? CDDP_OK : cd_view_refuse(t, operation, operand, err);
}

/* Contiguous, or without an element; and how many it has. */
static inline bool cd_view_is_contiguous(const cddp_tensor *t, int64_t *numel)
{
    bool is_contiguous = true;
    int64_t expected = 1;
    for (uint32_t i = t->dim_count; i-- > 0;) {
        is_contiguous &= t->sizes[i] == 1 || t->strides[i] == expected;
        expected *= t->sizes[i];
    }
    *numel = expected;
    return is_contiguous || expected == 0;
}
/* Both checked, on the same kind of device, and with the same sizes; or as many elements where one
** of the two is one-dimensional (a flat bucket slice). */
cddp_status cd_view_check_pair(const cddp_tensor *dst, const cddp_tensor *src,
                               const char *operation, cddp_error *err);
/* The pair above, and equal dtypes. */
cddp_status cd_view_check_same(const cddp_tensor *dst, const cddp_tensor *src,
                               const char *operation, cddp_error *err);
/* Operands of a product agree: (m, k) × (k, n) = (m, n), one floating dtype. */
typedef struct cd_matmul_shape {
    int64_t m, n, k;
    int64_t a_row, a_k; /* element strides of a by row and by summed index */
    int64_t b_k, b_col; /* element strides of b */
    int64_t dst_row, dst_col;
} cd_matmul_shape;
cddp_status cd_view_check_matmul(const cddp_tensor *dst, const cddp_matmul *operands,
                                 cd_matmul_shape *shape, cddp_error *err);
/* host_bytes is exactly the size of the view's elements. */
cddp_status cd_view_check_host(const cddp_tensor *t, const void *host, size_t host_bytes,
                               const char *operation, cddp_error *err);
/* Every element lies within a storage of so many elements; for devices that know (cpu leaves it to
** sanitizers). */
cddp_status cd_view_check_inside(const cddp_tensor *t, int64_t storage_numel, const char *operation,
                                 cddp_error *err);
bool cd_dtype_is_integer(cddp_dtype dtype);
/* "5,3", for messages; of more than CDDP_DIMS_MAX only the first. Returns text. */
const char *cd_sizes_print(const int64_t *sizes, uint32_t count, char *text, size_t text_bytes);

/* copy_many as copies of one pair after the other, by the device's own operations: for devices that
** gain nothing from more. */
cddp_status cd_view_copy_each(const cddp_device *device, const cddp_copy_pair *pairs,
                              size_t pair_count, cddp_copy_scale scale, int64_t n,
                              cddp_stream *stream, cddp_error *err);

/* A stretch of elements whose positions in storage form an arithmetic sequence. */
typedef struct cd_stretch {
    int64_t position; /* of the first element, in elements from the start of storage */
    int64_t stride;   /* 1 whenever length is 1 */
    int64_t length;
} cd_stretch;

/* Walks a view in logical order. Dimensions that continue each other are merged first, so a
** contiguous view is one stretch. */
typedef struct cd_walk {
    uint32_t dim_count;
    int64_t sizes[CDDP_DIMS_MAX];
    int64_t strides[CDDP_DIMS_MAX];
    int64_t index[CDDP_DIMS_MAX];
    int64_t position;
    int64_t left; /* elements not yet passed on */
} cd_walk;

void cd_walk_begin(cd_walk *walk, const cddp_tensor *t);
/* Elements that the current stretch still has; 0 at the end. */
int64_t cd_walk_ahead(const cd_walk *walk);
/* Passes on the next `length` ≤ cd_walk_ahead elements. */
cd_stretch cd_walk_take(cd_walk *walk, int64_t length);

/* True when both views have no gaps and put each logical element at the same distance from their
** first one. Then an element-wise operation may run through memory in one pass. */
bool cd_view_is_parallel(const cddp_tensor *a, const cddp_tensor *b);
