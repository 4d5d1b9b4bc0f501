/* SPDX-License-Identifier: Apache-2.0 */
/* What the backends over process groups of PyTorch share: all but their names and capabilities.
**
** Lifetime   as of any backend.
** Errors     CDDP_E_BACKEND with what PyTorch said.
*/
#pragma once
#include "cddp/plugin.h"

cddp_status cd_torch_open(const cddp_backend *backend, cddp_rank *rank, const cddp_group_spec *spec,
                          void **handle, cddp_error *err);
void cd_torch_close(void *self);
cddp_status cd_torch_post(void *self, const cddp_collective *c, void **handle, cddp_error *err);
cddp_status cd_torch_wait(void *self, void *handle, uint64_t timeout_ns, cddp_error *err);
cddp_status cd_torch_test(void *self, void *handle, bool *done, cddp_error *err);
void cd_torch_release(void *self, void *handle);
cddp_status cd_torch_abort(void *self, const char *reason, cddp_error *err);
cddp_status cd_torch_probe(const cddp_backend *backend, cddp_error *err);

#define CD_BIT(x) (UINT32_C(1) << (x))
#define CD_TORCH_NUMBERS                                                              \
    (CDDP_DTYPE_BIT(CDDP_F64) | CDDP_DTYPE_BIT(CDDP_F32) | CDDP_DTYPE_BIT(CDDP_F16) | \
     CDDP_DTYPE_BIT(CDDP_I64) | CDDP_DTYPE_BIT(CDDP_I32) | CDDP_DTYPE_BIT(CDDP_U8))
#define CD_TORCH_OPS                                                                     \
    (CD_BIT(CDDP_OP_ALLREDUCE) | CD_BIT(CDDP_OP_BROADCAST) | CD_BIT(CDDP_OP_ALLGATHER) | \
     CD_BIT(CDDP_OP_REDUCE) | CD_BIT(CDDP_OP_BARRIER))
#define CD_TORCH_REDUCTIONS                                                    \
    (CD_BIT(CDDP_RED_SUM) | CD_BIT(CDDP_RED_MIN) | CD_BIT(CDDP_RED_MAX) |      \
     CD_BIT(CDDP_RED_PRODUCT) | CD_BIT(CDDP_RED_BAND) | CD_BIT(CDDP_RED_BOR) | \
     CD_BIT(CDDP_RED_BXOR))

/* The module of one of them: its name is torch- and PyTorch's name. */
#define CD_TORCH_MODULE(named, more_ops, more_dtypes)                  \
    static const cddp_backend table = {                                \
        .size = sizeof table,                                          \
        .abi = CDDP_BACKEND_ABI,                                       \
        .name = (named),                                               \
        .capabilities = {.size = sizeof(cddp_capabilities),            \
                         .ops = CD_TORCH_OPS | (more_ops),             \
                         .dtypes = CD_TORCH_NUMBERS | (more_dtypes),   \
                         .reduce_ops = CD_TORCH_REDUCTIONS,            \
                         .devices = CDDP_DEVICE_HOST,                  \
                         .in_place = true,                             \
                         .async = true,                                \
                         .order = CDDP_ORDER_SAME,                     \
                         .world_size_max = 64},                        \
        .open = cd_torch_open,                                         \
        .close = cd_torch_close,                                       \
        .post = cd_torch_post,                                         \
        .test = cd_torch_test,                                         \
        .wait = cd_torch_wait,                                         \
        .release = cd_torch_release,                                   \
        .abort = cd_torch_abort,                                       \
        .probe = cd_torch_probe,                                       \
    };                                                                 \
    static const cddp_backend *const backends[] = {&table, NULL};      \
    CDDP_PLUGIN_EXPORT const cddp_plugin cddp_plugin_v1;               \
    const cddp_plugin cddp_plugin_v1 = {.size = sizeof cddp_plugin_v1, \
                                        .abi = CDDP_PLUGIN_ABI,        \
                                        .name = (named),               \
                                        .version = "1",                \
                                        .backends = backends}
