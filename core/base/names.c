/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the public enums; every table is indexed by its enum. */
#include "cddp/backend.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[CDDP_DTYPE_COUNT] = {
    [CDDP_F64] = {"f64", 8},   [CDDP_F32] = {"f32", 4}, [CDDP_F16] = {"f16", 2},
    [CDDP_BF16] = {"bf16", 2}, [CDDP_C64] = {"c64", 8}, [CDDP_I64] = {"i64", 8},
    [CDDP_I32] = {"i32", 4},   [CDDP_U8] = {"u8", 1},
};

const char *cddp_dtype_name(cddp_dtype dtype)
{
    return (unsigned)dtype < CDDP_DTYPE_COUNT ? dtypes[dtype].name : "?";
}

size_t cddp_dtype_bytes(cddp_dtype dtype)
{
    return (unsigned)dtype < CDDP_DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}

bool cddp_dtype_is_float(cddp_dtype dtype)
{
    return dtype == CDDP_F64 || dtype == CDDP_F32 || dtype == CDDP_F16 || dtype == CDDP_BF16;
}

const char *cddp_red_op_name(cddp_red_op op)
{
    static const char *const names[CDDP_RED_COUNT] = {"sum",        "avg",  "min", "max", "product",
                                                      "premul_sum", "band", "bor", "bxor"};
    return (unsigned)op < CDDP_RED_COUNT ? names[op] : "?";
}

const char *cddp_op_name(cddp_op op)
{
    static const char *const names[CDDP_OP_COUNT] = {"allreduce",      "broadcast", "allgather",
                                                     "reduce_scatter", "reduce",    "gather",
                                                     "scatter",        "alltoall",  "send",
                                                     "recv",           "barrier"};
    return (unsigned)op < CDDP_OP_COUNT ? names[op] : "?";
}
