/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between the host and a device: offloaded shards, and units that move to their device.
**
** Where a device queues such copies (CDDP_DEVICE_QUEUES_HOST) the host goes on at once, and its
** memory has to stay as it is until the stream has reached the copy. Elsewhere it waits.
*/
#pragma once
#include "cddp/device.h"

/* Its storage is the host's, and its operations are over when they return. */
bool cd_fsdp_is_host(const cddp_device *device);
/* Parameters and buffers of the first may come to be of the second: it is the same, or the first is
** the host and the second works behind it. */
bool cd_fsdp_may_move(const cddp_device *from, const cddp_device *to);
/* Both are contiguous; of two devices, one is the host's. */
cddp_status cd_fsdp_move(const cddp_tensor *dst, const cddp_tensor *src, cddp_stream *stream,
                         cddp_error *err);
