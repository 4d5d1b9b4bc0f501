/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors as doubles, and the constants of floating-point formats for bounds. */
#pragma once
#include "cddp/alloc.h"
#include "cddp/device.h"

/* Growing room for reading tensors. Zero-initialised is empty. */
typedef struct cd_numbers {
    const cddp_allocator *allocator;
    double *values; /* (count) of the last tensor read */
    size_t count, value_capacity;
    unsigned char *bytes;
    size_t byte_capacity;
} cd_numbers;
void cd_numbers_fini(cd_numbers *numbers);

/* Reads a tensor in logical order; every element is exact as a double except large i64. */
cddp_status cd_numbers_read(cd_numbers *numbers, const cddp_tensor *tensor, cddp_error *err);
/* A gradient as a dense tensor of numel elements: absent is zeros, the rows of a sparse one are
** added up. */
cddp_status cd_numbers_read_gradient(cd_numbers *numbers, const cddp_grad *gradient, size_t numel,
                                     cddp_error *err);

/* Writes doubles into a tensor, rounded to its dtype; `numbers` is the scratch memory. */
cddp_status cd_numbers_write(cd_numbers *numbers, const cddp_tensor *tensor, const double *values,
                             cddp_error *err);

/* significand bits, the hidden one included: 24 for f32 */
int cd_dtype_precision(cddp_dtype dtype);
double cd_dtype_roundoff(cddp_dtype dtype);          /* u = 2^-p */
double cd_dtype_underflow(cddp_dtype dtype);         /* η, half the smallest subnormal */
double cd_dtype_ulp(cddp_dtype dtype, double value); /* distance to the next value away from zero */
/* γ_n = n·u / (1 − n·u), rounded up; infinite when n·u ≥ 1. */
double cd_gamma(cddp_dtype dtype, uint64_t n);
