/* SPDX-License-Identifier: Apache-2.0 */
/* MPI datatypes and reduction operators for cddp's.
**
** An MPI operator gets no context, so there is one function per (dtype, op) that needs our
** operator. Each uses the cpu device table, so that the bits equal the simulator's.
*/
#include "backends/mpi/mpi_group.h"

#include "cddp/device.h"
#include "core/base/error.h"

static void reduce_host(cddp_dtype dtype, cddp_red_op op, void *in, void *inout, int count)
{
    int64_t n = count;
    const cddp_device *cpu = cddp_device_cpu();
    cddp_tensor dst = cddp_tensor_of(cpu, inout, 0, dtype, &n, 1),
                src = cddp_tensor_of(cpu, in, 0, dtype, &n, 1);
    if (cpu->reduce(op, &dst, &src, NULL, NULL) != CDDP_OK) MPI_Abort(MPI_COMM_WORLD, 1);
}

#define OPERATOR(dtype, op)                                                                  \
    static void reduce_##dtype##_##op(void *in, void *inout, int *count, MPI_Datatype *type) \
    {                                                                                        \
        (void)type;                                                                          \
        reduce_host(CDDP_##dtype, CDDP_RED_##op, in, inout, *count);                         \
    }
#define FLOAT_OPERATORS(dtype) OPERATOR(dtype, MIN) OPERATOR(dtype, MAX)
#define HALF_OPERATORS(dtype) FLOAT_OPERATORS(dtype) OPERATOR(dtype, SUM) OPERATOR(dtype, PRODUCT)
FLOAT_OPERATORS(F64)
FLOAT_OPERATORS(F32)
HALF_OPERATORS(F16)
HALF_OPERATORS(BF16)

static const struct {
    cddp_dtype dtype;
    cddp_red_op op;
    MPI_User_function *function;
} operators[] = {
#define ROW(dtype, op) {CDDP_##dtype, CDDP_RED_##op, reduce_##dtype##_##op},
    ROW(F64, MIN) ROW(F64, MAX) ROW(F32, MIN) ROW(F32, MAX) ROW(F16, MIN) ROW(F16, MAX)
        ROW(F16, SUM) ROW(F16, PRODUCT) ROW(BF16, MIN) ROW(BF16, MAX) ROW(BF16, SUM)
            ROW(BF16, PRODUCT)
#undef ROW
};
#define OPERATOR_COUNT (sizeof operators / sizeof operators[0])

static bool is_half(cddp_dtype dtype) { return dtype == CDDP_F16 || dtype == CDDP_BF16; }

cddp_status cd_mpi_types_init(cd_mpi_group *g, cddp_error *err)
{
    const MPI_Datatype plain[CDDP_DTYPE_COUNT] = {
        [CDDP_F64] = MPI_DOUBLE,          [CDDP_F32] = MPI_FLOAT,
        [CDDP_F16] = MPI_DATATYPE_NULL,   [CDDP_BF16] = MPI_DATATYPE_NULL,
        [CDDP_C64] = MPI_C_FLOAT_COMPLEX, [CDDP_I64] = MPI_INT64_T,
        [CDDP_I32] = MPI_INT32_T,         [CDDP_U8] = MPI_UINT8_T};
    for (int t = 0; t < CDDP_DTYPE_COUNT; t++) {
        g->types[t] = plain[t];
        for (int o = 0; o < CDDP_RED_COUNT; o++) g->ops[t][o] = MPI_OP_NULL;
        if (!is_half((cddp_dtype)t)) continue;
        CD_TRY(cd_mpi_check(MPI_Type_contiguous(2, MPI_BYTE, &g->types[t]), "MPI_Type_contiguous",
                            err));
        CD_TRY(cd_mpi_check(MPI_Type_commit(&g->types[t]), "MPI_Type_commit", err));
    }
    for (size_t i = 0; i < OPERATOR_COUNT; i++)
        CD_TRY(cd_mpi_check(MPI_Op_create(operators[i].function, 1,
                                          &g->ops[operators[i].dtype][operators[i].op]),
                            "MPI_Op_create", err));
    return CDDP_OK;
}

void cd_mpi_types_fini(cd_mpi_group *g)
{
    for (int t = 0; t < CDDP_DTYPE_COUNT; t++) {
        for (int o = 0; o < CDDP_RED_COUNT; o++)
            if (g->ops[t][o] != MPI_OP_NULL) MPI_Op_free(&g->ops[t][o]);
        if (is_half((cddp_dtype)t)) MPI_Type_free(&g->types[t]);
    }
}

MPI_Op cd_mpi_op(const cd_mpi_group *g, cddp_dtype dtype, cddp_red_op op)
{
    if (op == CDDP_RED_AVG || op == CDDP_RED_PREMUL_SUM) op = CDDP_RED_SUM;
    if (g->ops[dtype][op] != MPI_OP_NULL) return g->ops[dtype][op];
    switch (op) {
    case CDDP_RED_MIN:
        return MPI_MIN;
    case CDDP_RED_MAX:
        return MPI_MAX;
    case CDDP_RED_PRODUCT:
        return MPI_PROD;
    case CDDP_RED_BAND:
        return MPI_BAND;
    case CDDP_RED_BOR:
        return MPI_BOR;
    case CDDP_RED_BXOR:
        return MPI_BXOR;
    case CDDP_RED_SUM:
    case CDDP_RED_AVG:
    case CDDP_RED_PREMUL_SUM:
    case CDDP_RED_COUNT:
        break;
    }
    return MPI_SUM;
}
