/* SPDX-License-Identifier: Apache-2.0 */
/* The constants of floating-point formats that bounds are made of. */
#pragma once
#include "core/tensor/numbers.h"

/* 2^exponent; 0 and infinity beyond the range of a double. As ldexp(1, exponent), for which every
** element of every comparison would wait. */
double cd_two_to(int exponent);
/* significand bits, the hidden one included: 24 for f32 */
int cd_dtype_precision(cddp_dtype dtype);
double cd_dtype_roundoff(cddp_dtype dtype);          /* u = 2^-p */
double cd_dtype_underflow(cddp_dtype dtype);         /* η, half the smallest subnormal */
double cd_dtype_ulp(cddp_dtype dtype, double value); /* distance to the next value away from zero */
/* γ_n = n·u / (1 − n·u), rounded up; infinite when n·u ≥ 1. */
double cd_gamma(cddp_dtype dtype, uint64_t n);
/* What a rank makes of its numbers before they are summed: divided (GRD-04), or times fl(1/n)
** (GRD-03). The device's own division is what is judged, so it is not asked. A half type goes
** through f32, as documented. Of c64 each of its two numbers. */
void cd_dtype_divide(cddp_dtype dtype, double *values, size_t count, int64_t n);
void cd_dtype_multiply_reciprocal(cddp_dtype dtype, double *values, size_t count, int64_t n);
/* The nearest number of the dtype, ties to even; of c64: of one of its two numbers. */
double cd_dtype_round(cddp_dtype dtype, double value);
