/* SPDX-License-Identifier: Apache-2.0 */
/* How far the roundings of a mean may lie on one side, of the first elements of a bucket.
**
** Note [The law of roundings without a preference]
** The worst case of Note [The law of a cast] hides a mean that is wrong by a part in a thousand.
** Each of the k ≤ W + 2 roundings of an element prefers neither side. Let S_r be the root of
** Σ (Σ |g_r,i|)², where the inner sum is over elements with one significand, since those round
** alike. For independent roundings Hoeffding's inequality, and for the sum over ranks Minkowski's,
** have with s the signs of the result m
**
**     |Σ_r Σ_i s·g_r/W - Σ_i |m_i|| ≤ t·√(W + 2)·u·Σ_r S_r/W + 2·n·η
**
** but with a probability of 2·exp(-t²/2), which t = 9 makes less than 2⁻⁵⁷. 2⁻²² of all sizes
** covers a reciprocal that is rounded once in f32. Signs depend on roundings where gradients
** cancel: where Σ|m| is less than 1/16 of Σ|g|, nothing is stated. A sum of more than 24 addends
** stagnates, and then its roundings prefer a side.
**
** Lifetime   zeroed → add the slices of a bucket in order → bound → begin the next one → fini.
** Errors     without memory no bound is stated.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/device.h"

#define CD_ROUNDINGS_MAX 4096 /* elements of a bucket */

typedef struct cd_rounding {
    double significand, size; /* of the gradient */
    size_t index;
} cd_rounding;

typedef struct cd_roundings {
    cd_rounding *drawn; /* (CD_ROUNDINGS_MAX) of nonzero gradients; NULL before the first bucket */
    size_t count;
    int64_t seen;                 /* elements of the bucket, at most as many */
    double given, got, magnitude; /* see cd_pair in projection.h */
} cd_roundings;

void cd_roundings_begin(cd_roundings *roundings);
/* local NULL: zeros entered. Both are contiguous, in host memory, and of one floating dtype. */
void cd_roundings_add(cd_roundings *roundings, const cddp_tensor *local, const cddp_tensor *result);
/* This rank's part, for W ranks and a dtype with this unit roundoff and smallest subnormal;
** infinite: nothing can be said. */
double cd_roundings_bound(cd_roundings *roundings, uint32_t ranks, double unit, double tiny);
void cd_roundings_fini(cd_roundings *roundings);
