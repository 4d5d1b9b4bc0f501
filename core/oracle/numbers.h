/* SPDX-License-Identifier: Apache-2.0 */
/* The constants of floating-point formats that bounds are made of. */
#pragma once
#include "core/tensor/numbers.h"

/* significand bits, the hidden one included: 24 for f32 */
int cd_dtype_precision(cddp_dtype dtype);
double cd_dtype_roundoff(cddp_dtype dtype);          /* u = 2^-p */
double cd_dtype_underflow(cddp_dtype dtype);         /* η, half the smallest subnormal */
double cd_dtype_ulp(cddp_dtype dtype, double value); /* distance to the next value away from zero */
/* γ_n = n·u / (1 − n·u), rounded up; infinite when n·u ≥ 1. */
double cd_gamma(cddp_dtype dtype, uint64_t n);
/* The nearest number of the dtype, ties to even; of c64: of one of its two numbers. */
double cd_dtype_round(cddp_dtype dtype, double value);
