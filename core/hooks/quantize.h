/* SPDX-License-Identifier: Apache-2.0 */
/* The engine of both quantisation hooks: affine 8-bit rows, all-gathered (QNT-01…04).
**
** A row is the whole bucket, or a block of bucket_size elements. Each row has its own scale and zero point.
** Deviation from PyTorch: runs wherever numbers are in host memory, where PyTorch asks for CUDA (QNT-01).
*/
#pragma once
#include "cddp/hook.h"

cddp_status cd_quantize_create(const cddp_hook_context *context, bool per_channel, void **self, cddp_error *err);
void cd_quantize_destroy(void *self); /* accepts NULL */
cddp_status cd_quantize_run(void *self, cddp_grad_bucket *bucket, cddp_group *group, cddp_future *future, cddp_error *err);

typedef struct cd_quantizer {
    float scale, zero_point;
} cd_quantizer;
/* The min-max observer of `count` values, its range forced to include 0. A range that is not finite gives scale NaN:
** the row then decodes to NaN on every rank, where an overflow belongs. */
cd_quantizer cd_quantizer_observe(const float *values, int64_t count);
uint8_t cd_quantizer_encode(cd_quantizer q, float value);
float cd_quantizer_decode(cd_quantizer q, uint8_t code);
