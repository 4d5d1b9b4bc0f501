/* SPDX-License-Identifier: Apache-2.0 */
/* What collectives need to know of streams. */
#pragma once
#include "sim/cluster.h"

/* The device that a stream device wraps, or NULL when it is none. */
const cddp_device *cd_stream_device_inner(const cddp_device *device);
/* Queues the start of a part, or the wait for its end, on a stream (NULL: the device's default). */
bool cd_stream_push_start(const cddp_device *device, cddp_stream *stream, cd_part *part);
bool cd_stream_push_join(const cddp_device *device, cddp_stream *stream, cd_part *part);
/* A part that a stream waits for has ended. */
void cd_stream_part_ended(cddp_stream *stream);
