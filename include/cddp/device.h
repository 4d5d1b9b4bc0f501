/* SPDX-License-Identifier: Apache-2.0 */
/* The device port: the only way in which the reducer, the hooks and the collectives touch tensor
** memory.
**
** The same reducer runs on `cpu` (a test), `cuda` (the same test on NCCL), `symbol` (a proof: an
** element is an exact linear form) and `shape` (a simulation at scale: an element is nothing).
** Every view carries its device, so code never asks which one it is; it may ask for a capability
** flag.
**
** Lifetime   a device outlives every tensor allocated from it.
** Threads    each device states its rule; cpu, symbol and shape share no mutable state beyond each
**            storage.
** Streams    NULL is the device's default stream. Devices without CDDP_DEVICE_ASYNC run every
**            operation to completion before returning and ignore the stream.
** Errors     operations return a status and name the operand that was wrong; nothing is written
**            then.
**
** Operands   of one operation are on the same kind of device and have the same sizes; or one of the
**            two is one-dimensional (a flat slice of a bucket) and has as many elements.
** Rounding   scalars (a reciprocal, a factor, alpha) are rounded to the tensor's dtype first, and
**            every single operation rounds to it. Integers wrap.
*/
#pragma once
#include "cddp/layers.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CDDP_DEVICE_ABI 1u

enum {
    /* elements are numbers: read, norm and find_nonfinite mean something */
    CDDP_DEVICE_VALUES = 1u << 0,
    CDDP_DEVICE_EXACT = 1u << 1, /* arithmetic never rounds (symbol); lossy casts are refused */
    CDDP_DEVICE_ASYNC = 1u << 2, /* operations are ordered by streams and events */
    CDDP_DEVICE_HOST = 1u << 3,  /* storage is a host pointer that the CPU may dereference */
    /* with ASYNC: one operand of copy may be of cddp_device_cpu(), contiguous. It is read or
    ** written when the stream reaches the copy */
    CDDP_DEVICE_QUEUES_HOST = 1u << 4
};

typedef struct cddp_stream cddp_stream; /* opaque, made by a device */
typedef struct cddp_mark cddp_mark;     /* opaque point on a stream (an "event" in CUDA) */

/* How cddp_device.copy_many treats each pair, see GRD-03 and GRD-04. */
typedef enum cddp_copy_scale {
    CDDP_COPY_PLAIN,    /* dst = src */
    CDDP_COPY_MULTIPLY, /* dst = src × fl(1/n): reciprocal in f64, rounded to the dtype */
    CDDP_COPY_DIVIDE    /* dst = src ÷ n, correctly rounded */
} cddp_copy_scale;

typedef struct cddp_copy_pair {
    cddp_tensor dst;
    cddp_tensor src;
} cddp_copy_pair;

typedef struct cddp_matmul {
    const cddp_tensor *a; /* (m, k), or (k, m) when a_transposed */
    const cddp_tensor *b; /* (k, n), or (n, k) when b_transposed */
    bool a_transposed, b_transposed;
    bool accumulate; /* dst += instead of dst = */
} cddp_matmul;

struct cddp_device {
    uint32_t size; /* sizeof(cddp_device) known to the writer */
    uint32_t abi;  /* CDDP_DEVICE_ABI */
    const char *name;
    uint32_t flags;  /* CDDP_DEVICE_… */
    uint32_t dtypes; /* CDDP_DTYPE_BIT(…) of every dtype it can hold */
    /* in-tree devices: the cddp_allocator of their storage; NULL: the process heap */
    void *self;

    /* does: makes storage for numel elements; what it holds is stale on purpose: NaN and -1 on cpu,
    ** garbage forms on symbol. ownership: the caller gives it back with release, naming the same
    ** dtype and numel. */
    cddp_status (*allocate)(const cddp_device *device, cddp_dtype dtype, int64_t numel,
                            void **storage, cddp_error *err);
    void (*release)(const cddp_device *device, cddp_dtype dtype, int64_t numel, void *storage);

    /* does: host bytes (contiguous, logical order) from and to a view. Blocks. */
    cddp_status (*read)(const cddp_tensor *src, void *host, size_t host_bytes, cddp_error *err);
    cddp_status (*write)(const cddp_tensor *dst, const void *host, size_t host_bytes,
                         cddp_error *err);

    /* does: dst = src in logical order, dtypes converted to nearest even; floats to integers
    ** truncate. */
    cddp_status (*copy)(const cddp_tensor *dst, const cddp_tensor *src, cddp_stream *stream,
                        cddp_error *err);
    /* does: every pair, scaled by n as asked; dtypes of a pair are equal unless scale is PLAIN. */
    cddp_status (*copy_many)(const cddp_device *device, const cddp_copy_pair *pairs,
                             size_t pair_count, cddp_copy_scale scale, int64_t n,
                             cddp_stream *stream, cddp_error *err);
    cddp_status (*fill)(const cddp_tensor *dst, double value, cddp_stream *stream, cddp_error *err);
    /* does: dst = dst op src, element by element; SUM MIN MAX PRODUCT, on integers BAND BOR BXOR.
    ** AVG and PREMUL_SUM are not operations of two operands: a backend sums, then divides or
    ** scales. */
    cddp_status (*reduce)(cddp_red_op op, const cddp_tensor *dst, const cddp_tensor *src,
                          cddp_stream *stream, cddp_error *err);
    /* does: dst = src ÷ n, true division in dst's dtype (GRD-04); integers truncate. May be in
    ** place. */
    cddp_status (*divide)(const cddp_tensor *dst, const cddp_tensor *src, int64_t n,
                          cddp_stream *stream, cddp_error *err);
    /* does: dst = src × fl(1/n) (GRD-03). May be in place. */
    cddp_status (*multiply_reciprocal)(const cddp_tensor *dst, const cddp_tensor *src, int64_t n,
                                       cddp_stream *stream, cddp_error *err);
    /* does: dst = src × factor. Integers take integral factors only. May be in place. */
    cddp_status (*scale)(const cddp_tensor *dst, const cddp_tensor *src, double factor,
                         cddp_stream *stream, cddp_error *err);
    /* does: dst += alpha × x, product rounded, then sum rounded. */
    cddp_status (*axpy)(const cddp_tensor *dst, double alpha, const cddp_tensor *x,
                        cddp_stream *stream, cddp_error *err);
    /* does: a 2-D product whose k-sum runs in the device's stated order. */
    cddp_status (*matmul)(const cddp_tensor *dst, const cddp_matmul *operands, cddp_stream *stream,
                          cddp_error *err);

    /* does: Euclidean norm, accumulated in f64 in the device's stated order. Blocks. */
    cddp_status (*norm)(const cddp_tensor *src, double *norm, cddp_error *err);
    /* does: logical index of the first NaN or infinity, or -1. Blocks. */
    cddp_status (*find_nonfinite)(const cddp_tensor *src, int64_t *index, cddp_error *err);
    /* does: a 64-bit digest of content in logical order, equal for equal bits on every machine.
    ** Blocks. */
    cddp_status (*digest)(const cddp_tensor *src, uint64_t *digest, cddp_error *err);

    /* Streams and marks. (optional: devices without CDDP_DEVICE_ASYNC leave all seven NULL; callers
    ** go through cddp_device_stream_* below, which treat NULL as "already in order".) */
    cddp_status (*stream_create)(const cddp_device *device, cddp_stream **stream, cddp_error *err);
    void (*stream_destroy)(const cddp_device *device, cddp_stream *stream);
    cddp_status (*stream_synchronize)(const cddp_device *device, cddp_stream *stream,
                                      cddp_error *err);
    cddp_status (*mark_create)(const cddp_device *device, cddp_mark **mark, cddp_error *err);
    void (*mark_destroy)(const cddp_device *device, cddp_mark *mark);
    cddp_status (*mark_record)(const cddp_device *device, cddp_mark *mark, cddp_stream *stream,
                               cddp_error *err);
    cddp_status (*mark_wait)(const cddp_device *device, cddp_mark *mark, cddp_stream *stream,
                             cddp_error *err); /* the stream waits, the host does not */

    /* Operations of comm hooks on single numbers. (optional, each: NULL where the host can work in
    ** the storage itself) */

    /* does: makes the columns of a floating matrix orthonormal in place, by modified Gram-Schmidt
    ** in f64. A column's projections on the columns before it are subtracted, twice. Then it is
    ** divided by its norm + epsilon. A column that depends on those before it becomes zero. Sums
    ** run in the order of core/tensor/linalg.h; rounded once, at the end. */
    cddp_status (*orthonormalize)(const cddp_tensor *matrix, double epsilon, cddp_stream *stream,
                                  cddp_error *err);

    /* The layers that the device computes by itself. (optional: NULL: models are computed on the
    ** host, over copies where its storage is not the host's) */
    const cddp_layers *layers;

    /* does: values (rows, length) f32 as 8-bit codes (rows, length), with scale and zero point
    ** (rows, 2) f32 of each row, by the rules of core/tensor/quantizer.h. All contiguous. */
    cddp_status (*quantize)(const cddp_tensor *codes, const cddp_tensor *rows,
                            const cddp_tensor *values, cddp_stream *stream, cddp_error *err);
    /* does: dst[i] = Σ over parts 0, 1, 2, … of the value of the part's code i, in f32; codes
    ** (parts, rows, length), rows (parts, rows, 2), dst f32 of at most rows · length elements. All
    ** contiguous. */
    cddp_status (*dequantize_sum)(const cddp_tensor *dst, const cddp_tensor *codes,
                                  const cddp_tensor *rows, cddp_stream *stream, cddp_error *err);
    /* does: moves the elements of largest magnitude out of a flat tensor, which has zeros there
    ** afterwards; indices (k) i32 grow strictly, values (k) are the elements. A NaN is larger than
    ** everything, of equal ones the first is taken. */
    cddp_status (*take_largest)(const cddp_tensor *flat, const cddp_tensor *indices,
                                const cddp_tensor *values, cddp_stream *stream, cddp_error *err);
    /* does: flat[indices[i]] += values[i]; no index twice. An index outside flat makes flat[0] NaN,
    ** because the call cannot return an error for it. */
    cddp_status (*add_at)(const cddp_tensor *flat, const cddp_tensor *indices,
                          const cddp_tensor *values, cddp_stream *stream, cddp_error *err);

    /* does: the digest that src has when the stream has done what it was given so far. Blocks.
    ** (optional: NULL: digest) */
    cddp_status (*digest_on)(const cddp_tensor *src, cddp_stream *stream, uint64_t *digest,
                             cddp_error *err);
};

/* The three devices that need nothing from outside. Returns borrowed static tables. */
CDDP_API const cddp_device *cddp_device_cpu(void);
CDDP_API const cddp_device *cddp_device_symbol(void);
CDDP_API const cddp_device *cddp_device_shape(void);

#ifdef __cplusplus
}
#endif
