/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's types and operations for cddp's dtypes and reductions.
**
** Not here: complex numbers (their variables are reduced as real ones, SPA-05) and bitwise
** operations, which NCCL lacks. AVG is a sum that we divide. NCCL's average multiplies every
** contribution by the rounded 1/n, which is another number unless n is a power of two (GRD-03,
** GRD-04).
*/
#include "backends/nccl/nccl_group.h"

#include "core/base/error.h"
#include "core/tensor/dtype.h"

bool cd_nccl_type(cddp_dtype dtype, ncclDataType_t *type)
{
    switch (dtype) {
    case CDDP_F64:
        *type = ncclFloat64;
        return true;
    case CDDP_F32:
        *type = ncclFloat32;
        return true;
    case CDDP_F16:
        *type = ncclFloat16;
        return true;
    case CDDP_BF16:
        *type = ncclBfloat16;
        return true;
    case CDDP_I64:
        *type = ncclInt64;
        return true;
    case CDDP_I32:
        *type = ncclInt32;
        return true;
    case CDDP_U8:
        *type = ncclUint8;
        return true;
    case CDDP_C64:
    case CDDP_DTYPE_COUNT:
        break;
    }
    return false;
}

bool cd_nccl_red_op(cddp_red_op op, ncclRedOp_t *nccl)
{
    switch (op) {
    case CDDP_RED_SUM:
    case CDDP_RED_AVG:
    case CDDP_RED_PREMUL_SUM:
        *nccl = ncclSum;
        return true;
    case CDDP_RED_MIN:
        *nccl = ncclMin;
        return true;
    case CDDP_RED_MAX:
        *nccl = ncclMax;
        return true;
    case CDDP_RED_PRODUCT:
        *nccl = ncclProd;
        return true;
    case CDDP_RED_BAND:
    case CDDP_RED_BOR:
    case CDDP_RED_BXOR:
    case CDDP_RED_COUNT:
        break;
    }
    return false;
}

cd_nccl_factor cd_nccl_factor_of(cddp_dtype dtype, double value)
{
    cd_nccl_factor factor = {0};
    cd_element_set(dtype, &factor, value);
    return factor;
}

cddp_status cd_nccl_fail(const cd_nccl_group *group, ncclResult_t code, const char *what,
                         cddp_error *err)
{
    const char *more = ncclGetLastError(group->comm);
    return cd_fail(err, CDDP_E_BACKEND, "nccl: %s: %s%s%.200s", what, ncclGetErrorString(code),
                   more != NULL && more[0] != '\0' ? ": " : "", more != NULL ? more : "");
}
