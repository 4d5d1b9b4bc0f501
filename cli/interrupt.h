/* SPDX-License-Identifier: Apache-2.0 */
/* Ctrl-C: the first ends the work cleanly with what is known, the second at once.
**
** A request that nobody looks at within 10 s ends the program with the exit code of an inconclusive
** run: a hook that never returns cannot be unwound.
**
** Threads    the signal handler touches two flags.
*/
#pragma once
#include "cddp/trace.h"

/* From now on SIGINT, SIGTERM and, unless it is ignored, SIGHUP raise the flag. So does SIGUSR1, by
** which a pool of processes asks its workers to end. */
void cd_interrupt_begin(void);
/* Until then SIGINT ends the program at once, in words: nothing of it is worth keeping. */
void cd_interrupt_at_once(void);
bool cd_interrupt_requested(void);
/* raises the flag when so much time has passed, rounded up to seconds; is_late: that was it */
void cd_interrupt_after(uint64_t limit_ns);
bool cd_interrupt_is_late(void);
/* A rank, or a worker, ends at SIGTERM at once: whoever started it reports that. */
void cd_interrupt_as_rank(void);
/* what was asked for is done: the flag is lowered, and begin may follow */
void cd_interrupt_end(void);

/* A sink whose flush fails once the flag is up, so that a running scenario ends at the end of a
** step. */
const cddp_trace_sink *cd_interrupt_sink(void);
