/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients and buckets on a device with streams, as a plan's [streams] asks: what a GPU does to a
** training program.
**
** The host keeps parameters, computes forward, backward and update; gradients are produced on
** streams in turn and queued like everything that the wrapper does with them. So the program has to
** wait where a program on a GPU has to: the default stream for the producer before a gradient is
** used, the host before it looks.
**
** Lifetime   open → (attach → … → detach)* → close. A zeroed one, or one of a plan without streams,
**            does nothing.
** Threads    the rank's.
** Errors     a world without streams is refused by name (CDDP_E_UNSUPPORTED).
*/
#pragma once
#include "cddp/plan.h"
#include "cddp/trace.h"
#include "cddp/world.h"
#include "core/model/module.h"

#define CD_PRODUCERS_MAX 8u

typedef struct cd_streams {
    cddp_rank *rank;
    const cddp_device *home;   /* where the host's memory is: of the process, or of the run */
    const cddp_device *device; /* over it; NULL: no streams */
    uint32_t producer_count;
    cddp_stream *producers[CD_PRODUCERS_MAX];
    cddp_mark *marks[CD_PRODUCERS_MAX]; /* of the last gradient that each was given */
} cd_streams;

/* home: borrowed; all ranks share it, since messages on their way outlive the rank that sent
** them. */
cddp_status cd_streams_open(cd_streams *streams, const cddp_plan_streams *planned,
                            const cddp_device *home, cddp_rank *rank, struct cddp_tracer *tracer,
                            cddp_error *err) CDDP_MUST_CHECK;
/* Forgets what is queued; storage may still be given back. */
void cd_streams_close(cd_streams *streams);

/* Gives every gradient of the module its backing storage on the device. */
cddp_status cd_streams_attach(const cd_streams *streams, cd_module *module,
                              cddp_error *err) CDDP_MUST_CHECK;

/* The same memory as the wrapper is to see it, and as the host does, who must have waited for
** it. */
cddp_tensor cd_streams_queued(const cd_streams *streams, const cddp_tensor *tensor);
cddp_tensor cd_streams_plain(const cd_streams *streams, const cddp_tensor *tensor);
/* Into the caller's: a gradient is some hundred bytes, and looked at often. */
void cd_streams_plain_grad(const cd_streams *streams, const cddp_grad *grad, cddp_grad *plain);
/* Between the two the module's gradients are the host's, for clipping and optimizers. Waits for the
** default stream. */
cddp_status cd_streams_lend(const cd_streams *streams, cd_module *module,
                            cddp_error *err) CDDP_MUST_CHECK;
void cd_streams_take_back(const cd_streams *streams, cd_module *module);

/* Whose stream produces a gradient; NULL without streams. */
cddp_stream *cd_streams_producer(const cd_streams *streams, uint32_t parameter);
/* Before a backward: every producer waits for what the default stream was given. */
cddp_status cd_streams_begin_backward(const cd_streams *streams, cddp_error *err) CDDP_MUST_CHECK;
/* The default stream waits until the gradient that was queued last for this parameter is there. */
cddp_status cd_streams_await(const cd_streams *streams, uint32_t parameter,
                             cddp_error *err) CDDP_MUST_CHECK;
/* The host waits for the default stream; for the producers, as it must before the tape is used
** again. */
cddp_status cd_streams_settle(const cd_streams *streams, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_streams_settle_producers(const cd_streams *streams, cddp_error *err) CDDP_MUST_CHECK;
/* Waits for the default stream only to look; the trace does not take it for an order of the
** program. */
cddp_status cd_streams_look(const cd_streams *streams, cddp_error *err) CDDP_MUST_CHECK;
