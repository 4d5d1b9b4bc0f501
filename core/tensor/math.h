/* SPDX-License-Identifier: Apache-2.0 */
/* Transcendental functions with the same bits on every machine; the bits of libm depend on the
** processor (with and without FMA). Only + - × ÷ and integer operations occur, and nothing is
** contracted.
**
** Accuracy   within 2 ulp over the whole range, f64 and f32, subnormal results included
**            (tests/unit/core/tensor/ math_test.c measures it; most stay below 1). The f32 forms
**            round the f64 result once.
** Special    NaN gives NaN; infinities, zeros and overflow as in C's Annex F. No errno.
*/
#pragma once
#include <stdint.h>

double cd_exp(double x);
double cd_expm1(double x);
double cd_log(double x);
double cd_log1p(double x);
double cd_tanh(double x);
double cd_sigmoid(double x); /* 1 / (1 + exp(-x)) */
double cd_erf(double x);
double cd_sinpi(double x); /* sin(π x): its range reduction is exact for every x */
double cd_cospi(double x);
double cd_powi(double x, uint64_t n); /* xⁿ, n < 2^40 */

float cd_exp_f32(float x);
float cd_expm1_f32(float x);
float cd_log_f32(float x);
float cd_log1p_f32(float x);
float cd_tanh_f32(float x);
float cd_sigmoid_f32(float x);
float cd_erf_f32(float x);
float cd_sinpi_f32(float x);
float cd_cospi_f32(float x);
