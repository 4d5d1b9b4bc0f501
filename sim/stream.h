/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: a device whose operations happen later, in order per stream and in any order between
** streams.
**
** It wraps a device that works at once (cpu, symbol, shape) for one rank. An operation is queued on
** its stream and takes effect when it completes: after op_ns, or when the chooser decides
** (CD_SIM_COMPLETE_CHOICE). NULL is the default stream, an ordinary one. Storage comes from the
** inner device, and what is given back is the next that is handed out for its dtype and size,
** whatever is still queued on it, as by a caching allocator that does not know about other streams.
**
** read, write, norm, find_nonfinite and digest wait for the default stream, and for that one only.
** A collective posted with a stream starts when the stream has reached it and runs on a stream of
** its group; waiting for it holds the stream that it was posted on, and not the host.
**
** Events     every operation reports the memory that it touches and its stream, every wait the
**            order that it makes, when they are queued. norm, find_nonfinite and digest report
**            nothing: they only read.
** Lifetime   from create to destroy, by the rank that it was made for. Destroy drops queued
**            operations and releases free storage; the table accepts the rest until the world ends.
** Errors     the next stream_synchronize reports an operation that fails when it takes effect.
*/
#pragma once
#include "cddp/device.h"
#include "cddp/trace.h"

typedef struct cd_stream_device_config {
    const cddp_device *inner; /* borrowed */
    uint64_t op_ns;           /* how long an operation takes */
    /* the rank's: memory, touch and order events (I-HB); may be NULL; borrowed */
    cddp_tracer *tracer;
} cd_stream_device_config;

cddp_status cd_stream_device_create(cddp_rank *rank, const cd_stream_device_config *config,
                                    const cddp_device **device, cddp_error *err) CDDP_MUST_CHECK;
/* Accepts NULL. */
void cd_stream_device_destroy(const cddp_device *device);
