/* SPDX-License-Identifier: Apache-2.0 */
/* The constants of CDDP_LAYER_ADD_INNER: C, C++ and GPU code. */
#pragma once
#include "core/base/hash.h"

/* Element i of the constants that key names: an integer in -3 … 3 without 0. For complex numbers i
** counts real and imaginary parts. */
CD_EVERYWHERE double cd_inner_constant(uint64_t key, int64_t i)
{
    const int drawn = (int)(cd_hash_mix(key, (uint64_t)i) % 6);
    return drawn < 3 ? drawn - 3 : drawn - 2;
}
