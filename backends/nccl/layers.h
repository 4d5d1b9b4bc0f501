/* SPDX-License-Identifier: Apache-2.0 */
/* The layers and update rules of cddp/layers.h on the cuda device.
**
** layers.cu has the kernels: one thread computes one element of a result, and sums for it alone, in
** the order of the cpu's kernels (core/model/layers) and with its functions
** (core/tensor/math_code.h). So the bits are the cpu's, but for the payload of a NaN, and no result
** depends on the launch. layers.c checks operands and takes scratch; it hands large products to
** cuBLAS, whose order is its own.
*/
#pragma once
#include "cddp/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A product with at least this many multiplications goes to cuBLAS where that is here: bounded, not
** bit for bit. */
#define CD_CUDA_LARGE_PRODUCT ((int64_t)1 << 20)

#define CD_CUDA_EXPERTS_MAX 64 /* a kernel holds a pointer for each */

/* Bytes of device memory that the call needs while its kernels run. */
size_t cd_cuda_layer_scratch(const cddp_layer_call *call);
/* Enqueue; return a cudaError_t as an int. Products of LINEAR are the caller's: only what goes
** around them is here. */
int cd_cuda_launch_layer(const cddp_layer_call *call, void *scratch, void *stream);
int cd_cuda_launch_update(const cddp_update_call *call, void *stream);

extern const cddp_layers cd_cuda_layers;

#ifdef __cplusplus
}
#endif
