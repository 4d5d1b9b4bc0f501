/* SPDX-License-Identifier: Apache-2.0 */
/* A call every so often on one thread, in the middle of whatever it does: how code from outside
** that never returns is noticed.
**
** Lifetime   begin → end, one at a time in a process; forked children have none.
** Threads    the call is made by the thread that called begin.
** Errors     CDDP_E_LIMIT where the system gives no timer.
*/
#pragma once
#include "cddp/status.h"

/* Interrupts what runs, as a handler of a signal does: it may leave the stack for good, and
** allocates nothing. */
typedef void (*cd_os_tick_fn)(void *argument);

cddp_status cd_os_ticker_begin(uint64_t period_ns, cd_os_tick_fn tick, void *argument,
                               cddp_error *err) CDDP_MUST_CHECK;
void cd_os_ticker_end(void); /* accepts that there is none */
