/* SPDX-License-Identifier: Apache-2.0 */
/* The `shape` device: floating tensors have sizes but no elements. So the real reducer runs with
** billions of parameters in a laptop's memory. Every operation checks its operands as `cpu` does,
** costs O(1) and changes nothing.
**
** Integer tensors are the exception: they control the reducer (used maps, counters, layouts, row
** indices), so they keep their values and `cpu` serves them.
**
** Storage begins with a token that knows its size. So a view that reaches beyond it is refused; on
** `cpu` only a sanitizer would find it. */
#include "core/tensor/cpu.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/tensor/view.h"

#include <inttypes.h>
#include <string.h>

/* Lies at the start of the block; `storage` points behind it. */
typedef struct shape_token {
    int64_t numel;
    int64_t bytes; /* of the whole block */
} shape_token;

enum { TOKEN_BYTES = 64 }; /* keeps integers aligned as on cpu */

static cddp_status shape_allocate(const cddp_device *device, cddp_dtype dtype, int64_t numel,
                                  void **storage, cddp_error *err)
{
    if (numel < 0 || (unsigned)dtype >= CDDP_DTYPE_COUNT)
        return cd_fail(err, CDDP_E_ARG, "allocate: %" PRId64 " elements of dtype %d", numel,
                       (int)dtype);
    size_t element = cd_dtype_is_integer(dtype) ? cddp_dtype_bytes(dtype) : 0;
    bool fits = element == 0 || (uint64_t)numel <= (SIZE_MAX - TOKEN_BYTES) / element;
    size_t bytes = fits ? TOKEN_BYTES + element * (size_t)numel : 0;
    unsigned char *block = fits ? cd_cpu_storage_create(cd_device_allocator(device), bytes) : NULL;
    if (block == NULL)
        return cd_fail_memory(err, "%" PRId64 " elements of %s", numel, cddp_dtype_name(dtype));
    memcpy(block, &(shape_token){numel, (int64_t)bytes}, sizeof(shape_token));
    *storage = block + TOKEN_BYTES;
    return CDDP_OK;
}

static void shape_release(const cddp_device *device, cddp_dtype dtype, int64_t numel, void *storage)
{
    (void)dtype;
    (void)numel;
    if (storage == NULL) return;
    unsigned char *block = (unsigned char *)storage - TOKEN_BYTES;
    shape_token token;
    memcpy(&token, block, sizeof token);
    cd_cpu_storage_destroy(cd_device_allocator(device), block, (size_t)token.bytes);
}

static cddp_status check_inside(const cddp_tensor *t, const char *operation, cddp_error *err)
{
    shape_token token;
    memcpy(&token, (const unsigned char *)t->storage - TOKEN_BYTES, sizeof token);
    return CD_PASS(cd_view_check_inside(t, token.numel, operation, err));
}

static cddp_status check_one(const cddp_tensor *t, const char *operation, cddp_error *err)
{
    CD_TRY(cd_view_check(t, operation, "tensor", err));
    return CD_PASS(check_inside(t, operation, err));
}

static cddp_status check_two(const cddp_tensor *dst, const cddp_tensor *src, const char *operation,
                             cddp_error *err)
{
    CD_TRY(cd_view_check_same(dst, src, operation, err));
    CD_TRY(check_inside(dst, operation, err));
    return CD_PASS(check_inside(src, operation, err));
}

/* The same tensor for `cpu`; for integers only. */
static cddp_tensor as_cpu(const cddp_tensor *t)
{
    cddp_tensor real = *t;
    real.device = cddp_device_cpu();
    return real;
}

static bool is_real(const cddp_tensor *t) { return cd_dtype_is_integer(t->dtype); }

static cddp_status shape_read(const cddp_tensor *src, void *host, size_t host_bytes,
                              cddp_error *err)
{
    CD_TRY(check_one(src, "read", err));
    CD_TRY(cd_view_check_host(src, host, host_bytes, "read", err));
    cddp_tensor real = as_cpu(src);
    if (is_real(src)) return CD_PASS(real.device->read(&real, host, host_bytes, err));
    if (host_bytes > 0) memset(host, 0, host_bytes);
    return CDDP_OK;
}

static cddp_status shape_write(const cddp_tensor *dst, const void *host, size_t host_bytes,
                               cddp_error *err)
{
    CD_TRY(check_one(dst, "write", err));
    CD_TRY(cd_view_check_host(dst, host, host_bytes, "write", err));
    cddp_tensor real = as_cpu(dst);
    return is_real(dst) ? real.device->write(&real, host, host_bytes, err) : CDDP_OK;
}

static cddp_status shape_copy(const cddp_tensor *dst, const cddp_tensor *src, cddp_stream *stream,
                              cddp_error *err)
{
    CD_TRY(cd_view_check_pair(dst, src, "copy", err));
    CD_TRY(check_inside(dst, "copy", err));
    CD_TRY(check_inside(src, "copy", err));
    if (!is_real(dst)) return CDDP_OK;
    if (!is_real(src))
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "copy: %s elements have no values on device shape, so %s cannot be "
                       "made of them",
                       cddp_dtype_name(src->dtype), cddp_dtype_name(dst->dtype));
    cddp_tensor to = as_cpu(dst), from = as_cpu(src);
    return CD_PASS(to.device->copy(&to, &from, stream, err));
}

static cddp_status check_count(int64_t n, const char *operation, cddp_error *err)
{
    if (n < 1)
        return cd_fail(err, CDDP_E_ARG, "%s: the divisor n is %" PRId64 ", it must be at least 1",
                       operation, n);
    return CDDP_OK;
}

static cddp_status shape_fill(const cddp_tensor *dst, double value, cddp_stream *stream,
                              cddp_error *err)
{
    CD_TRY(check_one(dst, "fill", err));
    cddp_tensor real = as_cpu(dst);
    return is_real(dst) ? real.device->fill(&real, value, stream, err) : CDDP_OK;
}

static cddp_status shape_reduce(cddp_red_op op, const cddp_tensor *dst, const cddp_tensor *src,
                                cddp_stream *stream, cddp_error *err)
{
    CD_TRY(check_two(dst, src, "reduce", err));
    cddp_tensor to = as_cpu(dst), from = as_cpu(src);
    if (is_real(dst)) return CD_PASS(to.device->reduce(op, &to, &from, stream, err));
    bool defined = op == CDDP_RED_SUM || op == CDDP_RED_PRODUCT ||
                   ((op == CDDP_RED_MIN || op == CDDP_RED_MAX) && dst->dtype != CDDP_C64);
    if (!defined)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "reduce: %s is not defined between two elements of %s", cddp_red_op_name(op),
                       cddp_dtype_name(dst->dtype));
    return CDDP_OK;
}

static cddp_status shape_divide(const cddp_tensor *dst, const cddp_tensor *src, int64_t n,
                                cddp_stream *stream, cddp_error *err)
{
    CD_TRY(check_two(dst, src, "divide", err));
    cddp_tensor to = as_cpu(dst), from = as_cpu(src);
    return CD_PASS(is_real(dst) ? to.device->divide(&to, &from, n, stream, err)
                                : check_count(n, "divide", err));
}

static cddp_status shape_multiply_reciprocal(const cddp_tensor *dst, const cddp_tensor *src,
                                             int64_t n, cddp_stream *stream, cddp_error *err)
{
    CD_TRY(check_two(dst, src, "multiply_reciprocal", err));
    cddp_tensor to = as_cpu(dst), from = as_cpu(src);
    if (is_real(dst)) return CD_PASS(to.device->multiply_reciprocal(&to, &from, n, stream, err));
    return CD_PASS(check_count(n, "multiply_reciprocal", err));
}

static cddp_status shape_scale(const cddp_tensor *dst, const cddp_tensor *src, double factor,
                               cddp_stream *stream, cddp_error *err)
{
    CD_TRY(check_two(dst, src, "scale", err));
    cddp_tensor to = as_cpu(dst), from = as_cpu(src);
    return is_real(dst) ? to.device->scale(&to, &from, factor, stream, err) : CDDP_OK;
}

static cddp_status shape_axpy(const cddp_tensor *dst, double alpha, const cddp_tensor *x,
                              cddp_stream *stream, cddp_error *err)
{
    CD_TRY(check_two(dst, x, "axpy", err));
    cddp_tensor to = as_cpu(dst), from = as_cpu(x);
    return is_real(dst) ? to.device->axpy(&to, alpha, &from, stream, err) : CDDP_OK;
}

static cddp_status shape_matmul(const cddp_tensor *dst, const cddp_matmul *operands,
                                cddp_stream *stream, cddp_error *err)
{
    (void)stream;
    cd_matmul_shape shape;
    CD_TRY(cd_view_check_matmul(dst, operands, &shape, err));
    CD_TRY(check_inside(dst, "matmul", err));
    CD_TRY(check_inside(operands->a, "matmul", err));
    return CD_PASS(check_inside(operands->b, "matmul", err));
}

static cddp_status shape_norm(const cddp_tensor *src, double *norm, cddp_error *err)
{
    CD_TRY(check_one(src, "norm", err));
    cddp_tensor real = as_cpu(src);
    if (is_real(src)) return CD_PASS(real.device->norm(&real, norm, err));
    *norm = 0;
    return CDDP_OK;
}

static cddp_status shape_find_nonfinite(const cddp_tensor *src, int64_t *index, cddp_error *err)
{
    CD_TRY(check_one(src, "find_nonfinite", err));
    *index = -1;
    return CDDP_OK;
}

/* The digest of a floating tensor is that of its dtype and size, so that only tensors that could be
** equal are equal. */
#if defined(__GNUC__)
#define CD_NOINLINE __attribute__((noinline))
#else
#define CD_NOINLINE
#endif

/* Elements one behind the other, without values, that lie inside: what nearly all value events ask
** for. Everything else is looked at dimension by dimension. */
static bool is_row(const cddp_tensor *t)
{
    shape_token token;
    if (!cd_view_is_sound(t) || t->dim_count != 1 || t->strides[0] != 1 ||
        (t->dtype != CDDP_F32 && is_real(t)))
        return false;
    memcpy(&token, (const unsigned char *)t->storage - TOKEN_BYTES, sizeof token);
    return t->offset + t->sizes[0] <= token.numel;
}

static uint64_t digest_of_form(cddp_dtype dtype, int64_t numel)
{
    return cd_hash_mix(cd_hash_mix(0, (uint64_t)dtype), (uint64_t)numel);
}

/* Apart, so that the rows pay for none of it. */
static CD_NOINLINE cddp_status digest_of_any(const cddp_tensor *src, uint64_t *digest,
                                             cddp_error *err)
{
    CD_TRY(check_one(src, "digest", err));
    if (is_real(src)) {
        const cddp_tensor real = as_cpu(src);
        return CD_PASS(real.device->digest(&real, digest, err));
    }
    *digest = digest_of_form(src->dtype, cddp_tensor_numel(src));
    return CDDP_OK;
}

static cddp_status shape_digest(const cddp_tensor *src, uint64_t *digest, cddp_error *err)
{
    if (!is_row(src)) return CD_PASS(digest_of_any(src, digest, err));
    /* the compiler knows the first half of the most common one */
    *digest = src->dtype == CDDP_F32 ? digest_of_form(CDDP_F32, src->sizes[0])
                                     : digest_of_form(src->dtype, src->sizes[0]);
    return CDDP_OK;
}

const cddp_device *cddp_device_shape(void)
{
    static const cddp_device shape = {.size = sizeof shape,
                                      .abi = CDDP_DEVICE_ABI,
                                      .name = "shape",
                                      .flags = 0,
                                      .dtypes = CDDP_DTYPE_BIT(CDDP_DTYPE_COUNT) - 1,
                                      .allocate = shape_allocate,
                                      .release = shape_release,
                                      .read = shape_read,
                                      .write = shape_write,
                                      .copy = shape_copy,
                                      .copy_many = cd_view_copy_each,
                                      .fill = shape_fill,
                                      .reduce = shape_reduce,
                                      .divide = shape_divide,
                                      .multiply_reciprocal = shape_multiply_reciprocal,
                                      .scale = shape_scale,
                                      .axpy = shape_axpy,
                                      .matmul = shape_matmul,
                                      .norm = shape_norm,
                                      .find_nonfinite = shape_find_nonfinite,
                                      .digest = shape_digest};
    return &shape;
}
