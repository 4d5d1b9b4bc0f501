/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of streams that collectives need. */
#pragma once
#include "sim/cluster.h"

/* The device that a stream device wraps, or NULL when it is none. */
const cddp_device *cd_stream_device_inner(const cddp_device *device);
/* Queues the start of a part on the stream of what was posted. Where that wait is lost the part
** starts at once. */
bool cd_stream_push_start(cd_part *part, const cddp_collective *what);
/* Queues the wait for its end on the same stream. */
bool cd_stream_push_join(cd_part *part);
/* Records that the waiter of the part (its stream or the host) is ordered behind its end. */
void cd_stream_order_end(const cd_part *part, bool is_host);
/* Records that no one will wait for it any more. */
void cd_stream_forget_end(const cd_part *part);
/* A part that a stream waits for has ended. */
void cd_stream_part_ended(cddp_stream *stream);
