/* SPDX-License-Identifier: Apache-2.0 */
/* Products through cuBLAS. The first product opens it: it is large, and only PowerSGD multiplies.
**
** cuBLAS stores matrices by columns. A product whose result has unit stride down its columns is
** requested directly; one with unit stride along its rows is requested transposed (Cᵀ = Bᵀ Aᵀ).
** Each operand must have unit stride in one direction. All other products, and all products without
** cuBLAS, use our kernel.
*/
#define _POSIX_C_SOURCE 200809L
#include "backends/nccl/cuda.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

#include <cublas_v2.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

typedef struct cublas {
    void *library;
    cublasHandle_t handle;
    cublasStatus_t (*destroy)(cublasHandle_t);
    cublasStatus_t (*set_stream)(cublasHandle_t, cudaStream_t);
    cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                           const void *, const void *, cudaDataType, int, const void *,
                           cudaDataType, int, const void *, void *, cudaDataType, int,
                           cublasComputeType_t, cublasGemmAlgo_t);
} cublas;

/* Copies the bytes of a data pointer into a function pointer: ISO C has no cast for that. */
static bool find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

static void close_library(cublas *b)
{
    if (b == NULL) return;
    if (b->handle != NULL) (void)b->destroy(b->handle);
    if (b->library != NULL) dlclose(b->library);
    cd_release(NULL, b, sizeof *b);
}

static cublas *open_library(void)
{
    cublasStatus_t (*create)(cublasHandle_t *);
    char name[40];
    cublas *b = cd_allocate_zero(NULL, sizeof *b);
    if (b == NULL) return NULL;
    snprintf(name, sizeof name, "libcublas.so.%d", CUBLAS_VER_MAJOR);
    b->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    bool works = b->library != NULL && find(b->library, "cublasDestroy_v2", &b->destroy) &&
                 find(b->library, "cublasSetStream_v2", &b->set_stream) &&
                 find(b->library, "cublasGemmEx", &b->gemm) &&
                 find(b->library, "cublasCreate_v2", &create) &&
                 create(&b->handle) == CUBLAS_STATUS_SUCCESS;
    if (works) return b;
    close_library(b);
    return NULL;
}

void cd_cublas_close(cd_cuda *cuda)
{
    close_library(cuda->cublas);
    cuda->cublas = NULL;
    cuda->cublas_tried = false;
}

/* The description of a matrix for cuBLAS. */
typedef struct matrix {
    const void *data;
    int64_t rows, columns, row_stride, column_stride;
} matrix;

static matrix transposed(matrix m)
{
    return (matrix){m.data, m.columns, m.rows, m.column_stride, m.row_stride};
}

static int64_t at_least_one(int64_t n) { return n > 1 ? n : 1; }

/* Stored by columns (N), or by rows and thus transposed (T). A single row or column may have any
** stride. */
static bool describe(const matrix *m, cublasOperation_t *operation, int *leading)
{
    bool by_columns = (m->row_stride == 1 || m->rows == 1) &&
                      (m->column_stride >= at_least_one(m->rows) || m->columns == 1);
    bool by_rows = (m->column_stride == 1 || m->columns == 1) &&
                   (m->row_stride >= at_least_one(m->columns) || m->rows == 1);
    if (!by_columns && !by_rows) return false;
    int64_t ld = by_columns ? (m->columns == 1 ? at_least_one(m->rows) : m->column_stride)
                            : (m->rows == 1 ? at_least_one(m->columns) : m->row_stride);
    *operation = by_columns ? CUBLAS_OP_N : CUBLAS_OP_T;
    *leading = (int)ld;
    return ld <= INT_MAX;
}

static cudaDataType type_of(uint32_t dtype)
{
    switch (dtype) {
    case CDDP_F64:
        return CUDA_R_64F;
    case CDDP_F16:
        return CUDA_R_16F;
    case CDDP_BF16:
        return CUDA_R_16BF;
    default:
        return CUDA_R_32F;
    }
}

cddp_status cd_cublas_product(cd_cuda *cuda, const cd_cuda_product *p, cudaStream_t stream,
                              bool *done, cddp_error *err)
{
    *done = false;
    bool is_16 = p->dtype == CDDP_F16 || p->dtype == CDDP_BF16;
    /* A 16-bit sum is rounded before it is accumulated; cuBLAS would not round it. */
    if (p->m < 1 || p->n < 1 || p->k < 1 || p->m > INT_MAX || p->n > INT_MAX || p->k > INT_MAX ||
        (is_16 && p->accumulate))
        return CDDP_OK;
    matrix a = {p->a, p->m, p->k, p->a_row, p->a_k}, b = {p->b, p->k, p->n, p->b_k, p->b_col};
    matrix c = {p->dst, p->m, p->n, p->dst_row, p->dst_col};
    cublasOperation_t how_a, how_b, how_c;
    int lda, ldb, ldc;
    if (!describe(&c, &how_c, &ldc)) return CDDP_OK;
    if (how_c == CUBLAS_OP_T) {
        matrix left = transposed(b);
        b = transposed(a);
        a = left;
        c = transposed(c);
    }
    if (!describe(&a, &how_a, &lda) || !describe(&b, &how_b, &ldb)) return CDDP_OK;
    if (!cuda->cublas_tried) {
        cuda->cublas_tried = true;
        cuda->cublas = open_library();
    }
    cublas *library = cuda->cublas;
    if (library == NULL) return CDDP_OK;
    const float one_f32 = 1, beta_f32 = p->accumulate ? 1 : 0;
    const double one_f64 = 1, beta_f64 = p->accumulate ? 1 : 0;
    bool is_f64 = p->dtype == CDDP_F64;
    cudaDataType type = type_of(p->dtype);
    cublasStatus_t code = library->set_stream(library->handle, stream);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = library->gemm(library->handle, how_a, how_b, (int)c.rows, (int)c.columns, (int)p->k,
                             is_f64 ? (const void *)&one_f64 : &one_f32, a.data, type, lda, b.data,
                             type, ldb, is_f64 ? (const void *)&beta_f64 : &beta_f32, p->dst, type,
                             ldc, is_f64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                             CUBLAS_GEMM_DEFAULT);
    if (code != CUBLAS_STATUS_SUCCESS)
        return cd_fail(err, CDDP_E_BACKEND, "cublas: a product of %lld × %lld × %lld failed (%d)",
                       (long long)p->m, (long long)p->k, (long long)p->n, (int)code);
    *done = true;
    return CDDP_OK;
}
