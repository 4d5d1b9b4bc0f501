/* SPDX-License-Identifier: Apache-2.0 */
/* The layers and update rules of cddp/layers.h on the cuda device.
**
** layers.cu has the kernels: one thread computes one element of a result with all of its sums. It
** uses the order of the cpu's kernels (core/model/layers) and their functions
** (core/tensor/math_code.h). So the bits equal the cpu's, except for the payload of a NaN, and no
** result depends on the launch. layers.c checks operands and takes scratch. Large products go to
** cuBLAS, which has its own order.
*/
#pragma once
#include "cddp/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A product with at least this many multiplications goes to cuBLAS when that is present: bounded,
** not bit for bit. */
#define CD_CUDA_LARGE_PRODUCT ((int64_t)1 << 20)

#define CD_CUDA_EXPERTS_MAX 64 /* a kernel has a pointer for each */

/* The bytes of device memory that the call needs while its kernels run. */
size_t cd_cuda_layer_scratch(const cddp_layer_call *call);
/* Enqueue; return a cudaError_t as an int. The caller computes the products of LINEAR; only the
** rest of it is here. */
int cd_cuda_launch_layer(const cddp_layer_call *call, void *scratch, void *stream);
int cd_cuda_launch_update(const cddp_update_call *call, void *stream);

extern const cddp_layers cd_cuda_layers;

#ifdef __cplusplus
}
#endif
