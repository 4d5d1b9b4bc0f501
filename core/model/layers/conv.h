/* SPDX-License-Identifier: Apache-2.0 */
/* Two-dimensional convolution (cross-correlation, as PyTorch), average pooling and nearest
** upsampling over (sample_count, channels, height, width).
*/
#pragma once
#include "core/model/graph.h"

typedef struct cd_conv2d {
    int64_t stride;  /* both directions; >= 1 */
    int64_t padding; /* zeros on every side */
} cd_conv2d;

/* weight (out, in, kh, kw), bias (out) or NULL. */
cddp_status cd_conv2d_layer(cd_graph *graph, cd_value *const operands[3], const cd_conv2d *conv,
                            cd_value **y, cddp_error *err) CDDP_MUST_CHECK;
/* Means of size × size windows that do not overlap; size divides height and width. */
cddp_status cd_average_pool2d(cd_graph *graph, cd_value *x, int64_t size, cd_value **y,
                              cddp_error *err) CDDP_MUST_CHECK;
/* Every element becomes a size × size block. */
cddp_status cd_upsample2d(cd_graph *graph, cd_value *x, int64_t size, cd_value **y,
                          cddp_error *err) CDDP_MUST_CHECK;
