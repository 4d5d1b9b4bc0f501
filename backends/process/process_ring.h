/* SPDX-License-Identifier: Apache-2.0 */
/* The last events of a rank, in memory that the launcher shares: what a killed rank was doing is
** still there when everything it had not yet committed to a store is gone.
**
** Lifetime   a ring lies in memory of somebody else, zeroed at first; it owns nothing.
** Threads    one process writes, another reads when the writer is dead. An event that the writer
**            did not finish is recognised and left out.
*/
#pragma once
#include "cddp/trace.h"

#define CD_PROCESS_RING_EVENTS 64u
#define CD_PROCESS_RING_TEXT_BYTES 96u

typedef struct cd_process_ring cd_process_ring;

size_t cd_process_ring_bytes(void);
void cd_process_ring_push(cd_process_ring *ring, const cddp_event *event);
/* Hands the events to a sink, oldest first; long texts come cut. */
void cd_process_ring_each(const cd_process_ring *ring, const cddp_trace_sink *sink);
