/* SPDX-License-Identifier: Apache-2.0 */
/* A device on which copying and dividing take virtual time: a pass over gradients costs what the
** plan says (train.pass_us_per_mb), on the rank that makes it. Everything else is the inner
** device's.
**
** Lifetime   borrows the inner device and the rank; outlives every tensor allocated from it.
** Threads    of its rank.
** Errors     those of the inner device, and of the world when it has ended.
*/
#pragma once
#include "cddp/device.h"
#include "cddp/world.h"

typedef struct cd_timed_device {
    cddp_device table; /* first: a tensor's device leads here */
    const cddp_device *inner;
    cddp_rank *rank;
    double ns_per_byte;
} cd_timed_device;

/* Returns borrowed until the storage of `timed` ends. */
const cddp_device *cd_timed_device_init(cd_timed_device *timed, const cddp_device *inner,
                                        cddp_rank *rank, double us_per_mb);
