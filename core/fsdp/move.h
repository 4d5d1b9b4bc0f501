/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between the host and a device: offloaded shards, and units that move to their device.
**
** Where a device queues such copies (CDDP_DEVICE_QUEUES_HOST) the host goes on at once, and its
** memory has to stay as it is until the stream has reached the copy. Elsewhere it waits.
*/
#pragma once
#include "cddp/device.h"

/* Where the host keeps what it takes from a device: itself, if its operations are over when they
** return. */
const cddp_device *cd_fsdp_host_of(const cddp_device *device);
/* Both are contiguous; of two devices, one is the host's. */
cddp_status cd_fsdp_move(const cddp_tensor *dst, const cddp_tensor *src, cddp_stream *stream,
                         cddp_error *err);
