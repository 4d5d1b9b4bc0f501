/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors as doubles. */
#pragma once
#include "cddp/alloc.h"
#include "cddp/device.h"

/* Growing room for reading tensors. Zero-initialised is empty. */
typedef struct cd_numbers {
    const cddp_allocator *allocator;
    double *values; /* (count) of the last tensor read */
    size_t count, value_capacity;
    /* a complex number is two values, real and imaginary part; else its real part alone */
    bool has_lanes;
    unsigned char *bytes;
    size_t byte_capacity;
} cd_numbers;
void cd_numbers_fini(cd_numbers *numbers);
/* A complex tensor as one of twice as many f32; any other as it is. */
cddp_tensor cd_tensor_lanes(const cddp_tensor *tensor);

/* Reads a tensor in logical order; every element is exact as a double except large i64. */
cddp_status cd_numbers_read(cd_numbers *numbers, const cddp_tensor *tensor, cddp_error *err);
/* A gradient as a dense tensor of numel elements: absent is zeros, the rows of a sparse one are
** added up. */
cddp_status cd_numbers_read_gradient(cd_numbers *numbers, const cddp_grad *gradient, size_t numel,
                                     cddp_error *err);

/* The digest of a gradient's content, of a sparse one with its rows; 0 when it is absent. */
cddp_status cd_gradient_digest(const cddp_grad *gradient, uint64_t *digest, cddp_error *err);

/* Writes doubles into a tensor, rounded to its dtype; `numbers` lends its room. */
cddp_status cd_numbers_write(cd_numbers *numbers, const cddp_tensor *tensor, const double *values,
                             cddp_error *err);
