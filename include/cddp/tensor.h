/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor is a borrowed view: device, storage, dtype, sizes and strides. It owns nothing.
**
** Lifetime   a view is a plain value; the storage behind it outlives every use of the view.
** Threads    views may be copied freely; writing through overlapping views is the caller's to
**            order.
** Errors     constructors of views cannot fail; device operations report through cddp_status.
*/
#pragma once
#include "cddp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cddp_device cddp_device;

typedef enum cddp_dtype {
    CDDP_F64,
    CDDP_F32,
    CDDP_F16,  /* IEEE 754 binary16, stored in uint16_t */
    CDDP_BF16, /* upper half of a binary32, stored in uint16_t */
    CDDP_C64,  /* two f32: real, imaginary */
    CDDP_I64,
    CDDP_I32,
    CDDP_U8,
    CDDP_DTYPE_COUNT
} cddp_dtype;

#define CDDP_DTYPE_BIT(dtype) (1u << (unsigned)(dtype))

typedef enum cddp_red_op {
    CDDP_RED_SUM,
    CDDP_RED_AVG,
    CDDP_RED_MIN,
    CDDP_RED_MAX,
    CDDP_RED_PRODUCT,
    CDDP_RED_PREMUL_SUM, /* every contribution is multiplied by a factor given with the call */
    CDDP_RED_BAND,
    CDDP_RED_BOR,
    CDDP_RED_BXOR,
    CDDP_RED_COUNT
} cddp_red_op;

#define CDDP_DIMS_MAX 6

typedef struct cddp_tensor {
    const cddp_device *device; /* NULL: the undefined tensor */
    /* what the device's allocate returned; a data pointer on cpu and cuda */
    void *storage;
    int64_t offset; /* first element of the view, in elements of dtype */
    cddp_dtype dtype;
    uint32_t dim_count;
    int64_t sizes[CDDP_DIMS_MAX];   /* (dim_count) elements */
    int64_t strides[CDDP_DIMS_MAX]; /* (dim_count) elements */
} cddp_tensor;

/* The states of a parameter's `.grad`. Undefined is not zero: an optimizer skips an undefined
** gradient. */
typedef enum cddp_grad_kind {
    CDDP_GRAD_UNDEFINED,
    CDDP_GRAD_DENSE,
    CDDP_GRAD_SPARSE
} cddp_grad_kind;

/* Storage with the layout of its parameter. */
typedef struct cddp_backing {
    const cddp_device *device; /* NULL: none */
    void *storage;
    int64_t offset, numel;
    cddp_dtype dtype; /* of the gradient that lives here */
} cddp_backing;

/* Which rows of a parameter a sparse gradient has: i64, on `device`, one after the other. */
typedef struct cddp_rows {
    const cddp_device *device;
    void *storage;
    int64_t offset, count;
} cddp_rows;

/* The `.grad` slot of one parameter, shared by the engine that accumulates into it, the reducer
** that averages it and the optimizer that consumes it. Zero-initialise it; make gradients with
** cddp_grad_define.
**   value  DENSE: a view with the parameter's sizes, of `backing` or of a bucket
**          (gradient_as_bucket_view). SPARSE: (row_count, rest of the parameter's sizes), one row
**          per entry of `rows`.
**   backing  storage for a dense value, made at its first use and kept. So dropping a gradient and
**          making it again allocates nothing. Without device until then. Under
**          gradient_as_bucket_view it is a slice of the reducer's bucket (backing_is_borrowed), so
**          that a new gradient is made where it is reduced.
**   rows   SPARSE only: strictly increasing once coalesced. */
typedef struct cddp_grad {
    cddp_grad_kind kind;
    bool requires_grad; /* made under create_graph: its own history continues (GRD-09) */
    /* made from undefined since the reducer last saw it: PyTorch would keep it in separate storage
    ** and scale it by the rounded reciprocal (GRD-03, GRD-06) */
    bool is_fresh;
    bool backing_is_borrowed; /* another object owns backing: cddp_grad_fini does not release it */
    cddp_tensor value;
    cddp_backing backing;
    cddp_rows rows;
} cddp_grad;

/* Makes an undefined gradient dense: value becomes backing (allocated from like's device with
** like's layout on first need), contents uninitialised. A gradient that is already dense is left as
** it is. */
CDDP_API cddp_status cddp_grad_define(cddp_grad *grad, const cddp_tensor *like,
                                      cddp_error *err) CDDP_MUST_CHECK;
/* zero_grad(set_to_none=True): the gradient is undefined again; backing stays for reuse. Accepts
** NULL. */
CDDP_API void cddp_grad_drop(cddp_grad *grad);
/* Drops the gradient and releases backing, unless it is borrowed. Accepts NULL. */
CDDP_API void cddp_grad_fini(cddp_grad *grad);
/* Backing storage in a tensor; the tensor has the parameter's layout. */
CDDP_API cddp_backing cddp_backing_of(const cddp_tensor *t);
CDDP_API cddp_rows cddp_rows_of(const cddp_tensor *t); /* of a contiguous 1-D i64 tensor */
CDDP_API cddp_tensor cddp_rows_tensor(const cddp_rows *rows);

CDDP_API const char *cddp_dtype_name(cddp_dtype dtype); /* "f32"; "?" when out of range */
CDDP_API size_t cddp_dtype_bytes(cddp_dtype dtype);     /* bytes of one element */
CDDP_API bool cddp_dtype_is_float(cddp_dtype dtype);    /* f64 f32 f16 bf16; c64 is not */
CDDP_API const char *cddp_red_op_name(cddp_red_op op);  /* "sum" */

/* Number of elements; 1 for a tensor without dimensions, 0 when any size is 0. */
CDDP_API int64_t cddp_tensor_numel(const cddp_tensor *t);
CDDP_API bool cddp_tensor_is_contiguous(const cddp_tensor *t);
/* True when the elements fill their memory range exactly once, in any dimension order (BKT-19). */
CDDP_API bool cddp_tensor_is_dense(const cddp_tensor *t);
/* A contiguous view of dim_count sizes starting at element `offset` of storage. Of more than
** CDDP_DIMS_MAX: a tensor without storage, which every call that takes one refuses. */
CDDP_API cddp_tensor cddp_tensor_of(const cddp_device *device, void *storage, int64_t offset,
                                    cddp_dtype dtype, const int64_t *sizes, uint32_t dim_count);
/* A contiguous one-dimensional view of numel elements starting `start` elements into a contiguous
** t. */
CDDP_API cddp_tensor cddp_tensor_slice(const cddp_tensor *t, int64_t start, int64_t numel);

#ifdef __cplusplus
}
#endif
