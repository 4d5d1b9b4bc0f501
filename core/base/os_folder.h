/* SPDX-License-Identifier: Apache-2.0 */
/* A folder for the time of a run. When the run was killed, the next one removes it.
**
** The owner locks a file in its folder. The lock goes with the last process that has it, also after
** SIGKILL, and other containers that share the file system see it. So an unlocked folder is a
** leftover, and one without the file while nobody makes a folder.
**
** Lifetime   open → close; forked children keep the lock, and do not close
** Errors     CDDP_E_IO, or CDDP_E_NOMEM where files or space ran out
*/
#pragma once
#include "cddp/status.h"

typedef struct cd_os_folder {
    char path[512]; /* absolute; "": not open */
    int lock;
} cd_os_folder;

/* where: an existing folder, relative or absolute. prefix: "cddp-rendezvous"; names begin with it
** and a minus. Also removes leftovers of that prefix. */
cddp_status cd_os_folder_open(cd_os_folder *folder, const char *where, const char *prefix,
                              cddp_error *err) CDDP_MUST_CHECK;
void cd_os_folder_close(cd_os_folder *folder); /* removes it; accepts a zeroed one */
