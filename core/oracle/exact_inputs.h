/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs on which arithmetic does not round: seeded small integers over a power of two, and dyadic
** weights.
**
** Why it works. A dtype with p significand bits holds every multiple of 2^e up to 2^(p+e). When all
** addends are multiples of 2^e and the sum of their magnitudes stays below 2^(p+e), every partial
** sum in every order is such a multiple and in range: no addition rounds, so every order of
** summation gives the same result.
**
** Threads    no state.
*/
#pragma once
#include "core/base/prng.h"
#include "cddp/tensor.h"

typedef struct cd_exact_range {
    int64_t magnitude; /* values are integers in -magnitude … magnitude */
    int32_t exponent;  /* value = integer · 2^exponent */
} cd_exact_range;

/* The largest magnitude of values such that sums of `addends` products of `factors` values stay
** exact in the dtype. magnitude is 0 when even ±1 is too large. */
cd_exact_range cd_exact_range_of(cddp_dtype dtype, uint64_t addends, uint32_t factors);

/* Seeded, never all zero when magnitude > 0; consecutive elements differ, so that a shift shows. */
void cd_exact_fill(cd_prng *prng, cd_exact_range range, double *values, size_t count);
/* Self-test: a division that rounds raises the processor's flag, and one that does not round leaves
** it. False in an environment that does not keep the flag, as valgrind: there nobody may conclude
** from a flag that is not raised. */
bool cd_exact_flags_work(void);
/* The witness from the processor's flags: clear before, ask after, on the same thread. True when an
** operation in between rounded. False when the platform has no flags. */
bool cd_exact_flags_begin(void);
bool cd_exact_flags_end(bool *rounded);
