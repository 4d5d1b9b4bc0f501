/* SPDX-License-Identifier: Apache-2.0 */
/* The `cpu` device: views over host memory, arithmetic by the kernels.
**
** An operation runs in one pass where both views are parallel in memory. Otherwise it walks both in
** logical order and passes stretches, gathered into small buffers where a stride is not 1. The
** result is the same: element-wise kernels have no order, and sums (norm, digest) always walk in
** logical order. Not here: what an operation computes (kernels.c, linalg.c, dtype.c). */
#include "core/tensor/cpu.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/everywhere.h"
#include "core/base/hash.h"
#include "core/base/hash_chain.h"
#include "core/tensor/digest.h"
#include "core/tensor/kernels.h"
#include "core/tensor/linalg.h"
#include "core/tensor/view.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { ALIGNMENT = 64, CHUNK = 256, ELEMENT_BYTES_MAX = 8 };

/* ---- storage ---- */

cddp_device cd_device_with_allocator(const cddp_device *device, const cddp_allocator *allocator)
{
    cddp_device copy = *device;
    copy.self = (void *)(uintptr_t)allocator;
    return copy;
}

const cddp_allocator *cd_device_allocator(const cddp_device *device) { return device->self; }

/* The byte before the storage is its distance from the start of its block. */
void *cd_cpu_storage_create(const cddp_allocator *allocator, size_t bytes)
{
    if (bytes > SIZE_MAX - ALIGNMENT) return NULL;
    unsigned char *block = cd_allocate(allocator, bytes + ALIGNMENT);
    if (block == NULL) return NULL;
    size_t shift = ALIGNMENT - (uintptr_t)block % ALIGNMENT;
    unsigned char *storage = block + shift;
    storage[-1] = (unsigned char)shift;
    memset(storage, 0xff, bytes);
    return storage;
}

void cd_cpu_storage_destroy(const cddp_allocator *allocator, void *storage, size_t bytes)
{
    if (storage == NULL) return;
    unsigned char *first = storage;
    cd_release(allocator, first - first[-1], bytes + ALIGNMENT);
}

static cddp_status cpu_allocate(const cddp_device *device, cddp_dtype dtype, int64_t numel,
                                void **storage, cddp_error *err)
{
    if (numel < 0 || (unsigned)dtype >= CDDP_DTYPE_COUNT)
        return cd_fail(err, CDDP_E_ARG, "allocate: %" PRId64 " elements of dtype %d", numel,
                       (int)dtype);
    size_t bytes = cddp_dtype_bytes(dtype);
    void *made = (uint64_t)numel > SIZE_MAX / bytes
                     ? NULL
                     : cd_cpu_storage_create(cd_device_allocator(device), (size_t)numel * bytes);
    if (made == NULL)
        return cd_fail_memory(err, "%" PRId64 " elements of %s", numel, cddp_dtype_name(dtype));
    *storage = made;
    return CDDP_OK;
}

static void cpu_release(const cddp_device *device, cddp_dtype dtype, int64_t numel, void *storage)
{
    cd_cpu_storage_destroy(cd_device_allocator(device), storage,
                           (size_t)numel * cddp_dtype_bytes(dtype));
}

/* ---- walking ---- */

static unsigned char *address(const cddp_tensor *t, int64_t position)
{
    return (unsigned char *)t->storage + position * (int64_t)cd_dtype_bytes(t->dtype);
}

static void gather(unsigned char *packed, const unsigned char *element, const cd_stretch *s,
                   size_t bytes)
{
    for (int64_t i = 0; i < s->length; i++)
        memcpy(packed + (size_t)i * bytes, element + i * s->stride * (int64_t)bytes, bytes);
}

static void scatter(unsigned char *element, const unsigned char *packed, const cd_stretch *s,
                    size_t bytes)
{
    for (int64_t i = 0; i < s->length; i++)
        memcpy(element + i * s->stride * (int64_t)bytes, packed + (size_t)i * bytes, bytes);
}

/* An element-wise operation, as a kernel over arrays; conversions are one too. */
typedef struct elementwise {
    cd_kernel_fn kernel; /* NULL: convert */
    const cd_kernel_scalar *scalar;
    const cddp_tensor *dst, *src;
} elementwise;

static void apply(const elementwise *e, void *dst, const void *src, size_t count)
{
    if (e->kernel != NULL)
        e->kernel(dst, src, count, e->scalar);
    else
        cd_convert(e->dst->dtype, dst, e->src->dtype, src, count);
}

/* One pair of stretches of equal length. */
static void apply_stretch(const elementwise *e, const cd_stretch *d, const cd_stretch *s)
{
    unsigned char packed_dst[CHUNK * ELEMENT_BYTES_MAX], packed_src[CHUNK * ELEMENT_BYTES_MAX];
    size_t dst_bytes = cd_dtype_bytes(e->dst->dtype), src_bytes = cd_dtype_bytes(e->src->dtype);
    unsigned char *dst = address(e->dst, d->position), *src = address(e->src, s->position);
    bool in_place =
        e->dst->storage == e->src->storage && d->position == s->position && d->stride == s->stride;
    if (s->stride != 1) gather(packed_src, src, s, src_bytes);
    if (d->stride != 1) gather(packed_dst, dst, d, dst_bytes);
    const void *from = s->stride != 1 ? packed_src : src;
    void *to = d->stride != 1 ? packed_dst : dst;
    apply(e, to, in_place ? to : from, (size_t)d->length);
    if (d->stride != 1) scatter(dst, packed_dst, d, dst_bytes);
}

static void run(const elementwise *e)
{
    if (cd_view_is_parallel(e->dst, e->src)) {
        apply(e, address(e->dst, e->dst->offset), address(e->src, e->src->offset),
              (size_t)cddp_tensor_numel(e->dst));
        return;
    }
    cd_walk dst, src;
    cd_walk_begin(&dst, e->dst);
    cd_walk_begin(&src, e->src);
    for (int64_t ahead; (ahead = cd_walk_ahead(&dst)) > 0;) {
        int64_t other = cd_walk_ahead(&src), length = ahead < other ? ahead : other;
        if (length > CHUNK) length = CHUNK;
        cd_stretch d = cd_walk_take(&dst, length), s = cd_walk_take(&src, length);
        apply_stretch(e, &d, &s);
    }
}

/* ---- moving ---- */

/* The host buffer as a contiguous tensor, so that read and write are copies. */
static cddp_tensor host_view(const cddp_tensor *like, const void *host)
{
    return cddp_tensor_of(like->device, (void *)(uintptr_t)host, 0, like->dtype, like->sizes,
                          like->dim_count);
}

static cddp_status cpu_read(const cddp_tensor *src, void *host, size_t host_bytes, cddp_error *err)
{
    CD_TRY(cd_view_check_host(src, host, host_bytes, "read", err));
    if (host_bytes == 0) return CDDP_OK;
    cddp_tensor to = host_view(src, host);
    run(&(elementwise){.dst = &to, .src = src});
    return CDDP_OK;
}

static cddp_status cpu_write(const cddp_tensor *dst, const void *host, size_t host_bytes,
                             cddp_error *err)
{
    CD_TRY(cd_view_check_host(dst, host, host_bytes, "write", err));
    if (host_bytes == 0) return CDDP_OK;
    cddp_tensor from = host_view(dst, host);
    run(&(elementwise){.dst = dst, .src = &from});
    return CDDP_OK;
}

static cddp_status cpu_copy(const cddp_tensor *dst, const cddp_tensor *src, cddp_stream *stream,
                            cddp_error *err)
{
    (void)stream;
    CD_TRY(cd_view_check_pair(dst, src, "copy", err));
    run(&(elementwise){.dst = dst, .src = src});
    return CDDP_OK;
}

static cddp_status cpu_fill(const cddp_tensor *dst, double value, cddp_stream *stream,
                            cddp_error *err)
{
    (void)stream;
    CD_TRY(cd_view_check(dst, "fill", "destination", err));
    unsigned char chunk[CHUNK * ELEMENT_BYTES_MAX];
    const size_t bytes = cd_dtype_bytes(dst->dtype);
    const int64_t numel = cddp_tensor_numel(dst);
    cd_element_set(dst->dtype, chunk, value);
    for (int64_t i = 1; i < CHUNK && i < numel; i++)
        memcpy(chunk + (size_t)i * bytes, chunk, bytes);
    cddp_tensor flat = *dst;
    if (cddp_tensor_is_dense(dst)) { /* order does not matter: fill memory, not logical order */
        flat = cddp_tensor_of(dst->device, dst->storage, dst->offset, dst->dtype, &numel, 1);
    }
    cd_walk walk;
    cd_walk_begin(&walk, &flat);
    for (int64_t ahead; (ahead = cd_walk_ahead(&walk)) > 0;) {
        cd_stretch s = cd_walk_take(&walk, ahead < CHUNK ? ahead : CHUNK);
        if (s.stride == 1)
            memcpy(address(dst, s.position), chunk, (size_t)s.length * bytes);
        else
            scatter(address(dst, s.position), chunk, &s, bytes);
    }
    return CDDP_OK;
}

/* ---- arithmetic ---- */

static cddp_status run_kernel(const elementwise *e, const char *operation, cddp_error *err)
{
    CD_TRY(cd_view_check_same(e->dst, e->src, operation, err));
    if (e->kernel == NULL)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "%s is not defined for %s", operation,
                       cddp_dtype_name(e->dst->dtype));
    run(e);
    return CDDP_OK;
}

static cddp_status check_count(int64_t n, const char *operation, cddp_error *err)
{
    if (n < 1)
        return cd_fail(err, CDDP_E_ARG, "%s: the divisor n is %" PRId64 ", it must be at least 1",
                       operation, n);
    return CDDP_OK;
}

/* Integers accept only integral factors: a product with a fraction has no defined rounding. */
static cddp_status check_factor(cddp_dtype dtype, double factor, const char *operation,
                                cddp_error *err)
{
    if (cd_dtype_is_integer(dtype) && (double)cd_f64_to_i64(factor) != factor)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "%s: %s elements times %.17g", operation,
                       cddp_dtype_name(dtype), factor);
    return CDDP_OK;
}

static cddp_status cpu_reduce(cddp_red_op op, const cddp_tensor *dst, const cddp_tensor *src,
                              cddp_stream *stream, cddp_error *err)
{
    (void)stream;
    CD_TRY(cd_view_check_same(dst, src, "reduce", err));
    cd_kernel_fn kernel = cd_kernel_reduce(op, dst->dtype);
    if (kernel == NULL)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "reduce: %s is not defined between two elements of %s", cddp_red_op_name(op),
                       cddp_dtype_name(dst->dtype));
    return CD_PASS(
        run_kernel(&(elementwise){.kernel = kernel, .dst = dst, .src = src}, "reduce", err));
}

static cddp_status cpu_divide(const cddp_tensor *dst, const cddp_tensor *src, int64_t n,
                              cddp_stream *stream, cddp_error *err)
{
    (void)stream;
    CD_TRY(check_count(n, "divide", err));
    CD_TRY(cd_view_check(dst, "divide", "destination", err));
    cd_kernel_scalar scalar = {.count = n};
    return CD_PASS(
        run_kernel(&(elementwise){cd_kernel_divide(dst->dtype), &scalar, dst, src}, "divide", err));
}

static cddp_status cpu_scale(const cddp_tensor *dst, const cddp_tensor *src, double factor,
                             cddp_stream *stream, cddp_error *err)
{
    (void)stream;
    CD_TRY(cd_view_check(dst, "scale", "destination", err));
    CD_TRY(check_factor(dst->dtype, factor, "scale", err));
    cd_kernel_scalar scalar = {.value = factor};
    return CD_PASS(
        run_kernel(&(elementwise){cd_kernel_scale(dst->dtype), &scalar, dst, src}, "scale", err));
}

static cddp_status cpu_multiply_reciprocal(const cddp_tensor *dst, const cddp_tensor *src,
                                           int64_t n, cddp_stream *stream, cddp_error *err)
{
    CD_TRY(check_count(n, "multiply_reciprocal", err));
    return CD_PASS(cpu_scale(dst, src, 1.0 / (double)n, stream, err));
}

static cddp_status cpu_axpy(const cddp_tensor *dst, double alpha, const cddp_tensor *x,
                            cddp_stream *stream, cddp_error *err)
{
    (void)stream;
    CD_TRY(cd_view_check(dst, "axpy", "destination", err));
    CD_TRY(check_factor(dst->dtype, alpha, "axpy", err));
    cd_kernel_scalar scalar = {.value = alpha};
    return CD_PASS(
        run_kernel(&(elementwise){cd_kernel_axpy(dst->dtype), &scalar, dst, x}, "axpy", err));
}

/* Checks every pair before it writes the first one. */
static cddp_status cpu_copy_many(const cddp_device *device, const cddp_copy_pair *pairs,
                                 size_t pair_count, cddp_copy_scale scale, int64_t n,
                                 cddp_stream *stream, cddp_error *err)
{
    (void)device;
    if (scale != CDDP_COPY_PLAIN) CD_TRY(check_count(n, "copy_many", err));
    for (size_t i = 0; i < pair_count; i++) {
        const cddp_copy_pair *p = &pairs[i];
        if (scale == CDDP_COPY_PLAIN)
            CD_TRY(cd_view_check_pair(&p->dst, &p->src, "copy_many", err));
        else
            CD_TRY(cd_view_check_same(&p->dst, &p->src, "copy_many", err));
        if (scale == CDDP_COPY_MULTIPLY)
            CD_TRY(check_factor(p->dst.dtype, 1.0 / (double)n, "copy_many", err));
    }
    for (size_t i = 0; i < pair_count; i++) {
        const cddp_copy_pair *p = &pairs[i];
        if (scale == CDDP_COPY_PLAIN)
            CD_TRY(cpu_copy(&p->dst, &p->src, stream, err));
        else if (scale == CDDP_COPY_MULTIPLY)
            CD_TRY(cpu_multiply_reciprocal(&p->dst, &p->src, n, stream, err));
        else
            CD_TRY(cpu_divide(&p->dst, &p->src, n, stream, err));
    }
    return CDDP_OK;
}

static cddp_status cpu_matmul(const cddp_tensor *dst, const cddp_matmul *operands,
                              cddp_stream *stream, cddp_error *err)
{
    (void)stream;
    cd_matmul_args args = {.dtype = dst->dtype, .accumulate = operands->accumulate};
    CD_TRY(cd_view_check_matmul(dst, operands, &args.shape, err));
    args.dst = address(dst, dst->offset);
    args.a = address(operands->a, operands->a->offset);
    args.b = address(operands->b, operands->b->offset);
    return CD_PASS(cd_matmul(&args, cd_isa_best(), cd_device_allocator(dst->device), err));
}

/* ---- whole-tensor results, in logical order ---- */

/* Passes a view's elements in logical order to `take`, as contiguous arrays; take returns false to
** stop. */
typedef bool (*take_fn)(void *context, const void *elements, size_t count);

static void scan(const cddp_tensor *src, take_fn take, void *context)
{
    unsigned char packed[CHUNK * ELEMENT_BYTES_MAX];
    size_t bytes = cd_dtype_bytes(src->dtype);
    int64_t numel = 0;
    if (cd_view_is_contiguous(src, &numel)) {
        if (numel > 0) take(context, address(src, src->offset), (size_t)numel);
        return;
    }
    cd_walk walk;
    cd_walk_begin(&walk, src);
    for (int64_t ahead; (ahead = cd_walk_ahead(&walk)) > 0;) {
        bool unit = walk.strides[walk.dim_count - 1] == 1;
        cd_stretch s = cd_walk_take(&walk, unit || ahead < CHUNK ? ahead : CHUNK);
        if (s.stride != 1) gather(packed, address(src, s.position), &s, bytes);
        if (!take(context, s.stride != 1 ? packed : address(src, s.position), (size_t)s.length))
            return;
    }
}

typedef struct norm_scan {
    cddp_dtype dtype;
    cd_squares squares;
} norm_scan;

static bool norm_take(void *context, const void *elements, size_t count)
{
    norm_scan *scanning = context;
    cd_kernel_squares(&scanning->squares, scanning->dtype, elements, count);
    return true;
}

static cddp_status cpu_norm(const cddp_tensor *src, double *norm, cddp_error *err)
{
    CD_TRY(cd_view_check(src, "norm", "source", err));
    norm_scan scanning = {.dtype = src->dtype};
    scan(src, norm_take, &scanning);
    *norm = sqrt(cd_kernel_squares_total(&scanning.squares));
    return CDDP_OK;
}

typedef struct find_scan {
    cddp_dtype dtype;
    int64_t passed, found;
} find_scan;

static bool find_take(void *context, const void *elements, size_t count)
{
    find_scan *scanning = context;
    size_t at = cd_kernel_find_nonfinite(scanning->dtype, elements, count);
    if (at < count) scanning->found = scanning->passed + (int64_t)at;
    scanning->passed += (int64_t)count;
    return at == count;
}

static cddp_status cpu_find_nonfinite(const cddp_tensor *src, int64_t *index, cddp_error *err)
{
    CD_TRY(cd_view_check(src, "find_nonfinite", "source", err));
    find_scan scanning = {.dtype = src->dtype, .found = -1};
    scan(src, find_take, &scanning);
    *index = scanning.found;
    return CDDP_OK;
}

typedef struct digest_scan {
    unsigned char block[CD_DIGEST_BLOCK_BYTES];
    size_t used, element_bytes;
    uint64_t digest;
} digest_scan;

static void digest_fold(digest_scan *d, const void *bytes, size_t byte_count)
{
    d->digest = cd_hash64(bytes, byte_count, d->digest);
}

/* Whole blocks are hashed in place; only a block that crosses two stretches is copied. */
static bool digest_take(void *context, const void *elements, size_t count)
{
    digest_scan *d = context;
    const unsigned char *bytes = elements;
    size_t left = count * d->element_bytes;
    while (left > 0) {
        if (d->used == 0 && left >= CD_DIGEST_BLOCK_BYTES) {
            digest_fold(d, bytes, CD_DIGEST_BLOCK_BYTES);
            bytes += CD_DIGEST_BLOCK_BYTES;
            left -= CD_DIGEST_BLOCK_BYTES;
            continue;
        }
        size_t n = CD_DIGEST_BLOCK_BYTES - d->used < left ? CD_DIGEST_BLOCK_BYTES - d->used : left;
        memcpy(d->block + d->used, bytes, n);
        d->used += n;
        bytes += n;
        left -= n;
        if (d->used == CD_DIGEST_BLOCK_BYTES) {
            digest_fold(d, d->block, CD_DIGEST_BLOCK_BYTES);
            d->used = 0;
        }
    }
    return true;
}

/* Apart from cpu_digest, so that a tensor in one stretch, as most are, needs no block there. */
static uint64_t digest_stretches(const cddp_tensor *src, int64_t numel)
{
    digest_scan scanning;
    scanning.element_bytes = cd_dtype_bytes(src->dtype);
    scanning.digest = (uint64_t)numel;
    scanning.used = 0;
    scan(src, digest_take, &scanning);
    if (scanning.used > 0) digest_fold(&scanning, scanning.block, scanning.used);
    return scanning.digest;
}

CD_APART static cddp_status digest_any(const cddp_tensor *src, uint64_t *digest, cddp_error *err)
{
    CD_TRY(cd_view_check(src, "digest", "source", err));
    int64_t numel = 0;
    if (!cd_view_is_contiguous(src, &numel)) {
        *digest = digest_stretches(src, numel);
        return CDDP_OK;
    }
    const size_t element_bytes = cd_dtype_bytes(src->dtype);
    *digest =
        cd_hash_chain((const unsigned char *)src->storage + src->offset * (int64_t)element_bytes,
                      (size_t)numel * element_bytes, (uint64_t)numel);
    return CDDP_OK;
}

/* A row of a few elements, as biases are and small models, is one block. Others apart, so that it
** costs none of their registers. */
static cddp_status cpu_digest(const cddp_tensor *src, uint64_t *digest, cddp_error *err)
{
    const int64_t most = CD_DIGEST_BLOCK_BYTES / ELEMENT_BYTES_MAX;
    if (!cd_view_is_row(src) || src->sizes[0] < 1 || src->sizes[0] > most)
        return CD_PASS(digest_any(src, digest, err));
    const size_t bytes = cd_dtype_bytes(src->dtype), byte_count = (size_t)src->sizes[0] * bytes;
    const unsigned char *row = (const unsigned char *)src->storage + src->offset * (int64_t)bytes;
    const uint64_t seed = (uint64_t)src->sizes[0];
    *digest = byte_count >= 4 && byte_count <= 8 ? cd_hash64_short(row, byte_count, seed)
                                                 : cd_hash64(row, byte_count, seed);
    return CDDP_OK;
}

const cddp_device *cddp_device_cpu(void)
{
    static const cddp_device cpu = {.size = sizeof cpu,
                                    .abi = CDDP_DEVICE_ABI,
                                    .name = "cpu",
                                    .flags = CDDP_DEVICE_VALUES | CDDP_DEVICE_HOST,
                                    .dtypes = CDDP_DTYPE_BIT(CDDP_DTYPE_COUNT) - 1,
                                    .allocate = cpu_allocate,
                                    .release = cpu_release,
                                    .read = cpu_read,
                                    .write = cpu_write,
                                    .copy = cpu_copy,
                                    .copy_many = cpu_copy_many,
                                    .fill = cpu_fill,
                                    .reduce = cpu_reduce,
                                    .divide = cpu_divide,
                                    .multiply_reciprocal = cpu_multiply_reciprocal,
                                    .scale = cpu_scale,
                                    .axpy = cpu_axpy,
                                    .matmul = cpu_matmul,
                                    .norm = cpu_norm,
                                    .find_nonfinite = cpu_find_nonfinite,
                                    .digest = cpu_digest};
    return &cpu;
}
