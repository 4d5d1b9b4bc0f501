/* SPDX-License-Identifier: Apache-2.0 */
/* The same micro-step in f64, where a layer's mistake has no room within roundings.
**
** Lifetime   zeroed → find → load → (run by the caller) → fini. Made when first asked for.
** Threads    the reference's.
*/
#pragma once
#include "core/plan/replica/replica.h"

typedef struct cd_wide {
    cd_replica *replica; /* NULL: not made yet */
} cd_wide;

/* Can the model compute in f64, and does it not do so by itself? */
bool cd_wide_is_needed(const cd_replica *replica);
/* Makes it, where it is not yet there. */
cddp_status cd_wide_find(cd_wide *wide, const cd_replica *replica, cddp_error *err) CDDP_MUST_CHECK;
/* Takes parameters as the forward uses them, and buffers; drops gradients. buffers: or NULL */
typedef struct cd_wide_values {
    const cddp_tensor *(*parameter)(void *context, uint32_t parameter);
    void *context;
    const cddp_tensor *buffers;
} cd_wide_values;
cddp_status cd_wide_load(cd_wide *wide, const cd_wide_values *values,
                         cddp_error *err) CDDP_MUST_CHECK;
void cd_wide_fini(cd_wide *wide); /* accepts a zeroed one */
