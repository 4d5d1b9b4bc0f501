/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin may end the program behind our back, and with 0, which is read as a verdict. Only main
** leaves with one.
**
** Threads    begin and end are main's; leaving may be anybody's.
** Limits     in the process that began, by exit, quick_exit and, on Linux, _exit and _Exit; a
**            plugin that asks the kernel itself, or becomes another program, is out of reach. A
**            process of ours that ends early is missed by the one that waits for it.
*/
#pragma once

/* from now on whoever leaves has no verdict: the program says so, and the code is that of a
** mistake */
void cd_leave_begin(void);
/* this process is a rank of a launcher's: it leaves by _exit itself, and its judge misses one that
** leaves too early */
void cd_leave_as_rank(void);
/* At once, from a handler of a signal too: words were said, and the code is that of a mistake. */
void cd_leave_without_verdict(void);
void cd_leave_end(void); /* main has one */
