/* SPDX-License-Identifier: Apache-2.0 */
/* The engine of both quantisation hooks: affine 8-bit rows, all-gathered (QNT-01…04).
**
** A row is the whole bucket, or a block of bucket_size elements. Each row has its own scale and
** zero point. Deviation from PyTorch: runs where numbers are in host memory, too, where PyTorch
** asks for CUDA (QNT-01).
*/
#pragma once
#include "cddp/hook.h"
#include "core/tensor/quantizer.h"

cddp_status cd_quantize_create(const cddp_hook_context *context, bool per_channel, void **self,
                               cddp_error *err);
void cd_quantize_destroy(void *self); /* accepts NULL */
uint64_t cd_quantize_promise(const void *self, const cddp_grad_bucket *bucket);
cddp_status cd_quantize_run(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                            cddp_future *future, cddp_error *err);

/* The min-max observer of `count` values. */
cd_quantizer cd_quantizer_observe(const float *values, int64_t count);
