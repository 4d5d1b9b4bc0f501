/* SPDX-License-Identifier: Apache-2.0 */
/* A world of real processes for a plan: ranks are forked here, meet through a private rendezvous, and send their
** events to this process, where they are judged as those of the simulator are.
**
** Lifetime   open → fill → cddp_run → close. Borrows plan, module and relay.
** Errors     a rank that dies or hangs is an outcome of the run; what it sent before is part of the trace.
*/
#pragma once
#include "cddp/run.h"

typedef struct cd_compose_process cd_compose_process;

/* module: the backend's table as its module brought it, without a rendezvous. */
cddp_status cd_compose_process_open(const cddp_plan *plan, const cddp_backend *module, cddp_relay_sink *relay,
                                    cd_compose_process **process, cddp_error *err) CDDP_MUST_CHECK;
void cd_compose_process_fill(cd_compose_process *process, cddp_run_options *options);
void cd_compose_process_close(cd_compose_process *process); /* accepts NULL */
