/* SPDX-License-Identifier: Apache-2.0 */
/* Where ranks that somebody else started report to: a listening socket of the judge, three
** connections per rank.
**
** A rank connects once for its records, once for its stdout and once for its stderr, and says on
** each, in a fixed hello, which rank it is and the hub's secret. From then on a connection is what
** a pipe is for a forked rank. The connection of records is two-way: one byte from the hub tells
** the rank how to end.
**
** Lifetime   the judge opens a hub, takes hellos while ranks arrive, closes it; connections that
**            were handed out belong to who took them.
** Threads    one thread.
** Errors     a connection that does not say the secret in time is dropped, and counted; it is
**            nobody's error.
*/
#pragma once
#include "core/base/os.h"

#define CD_PROCESS_HUB_ADDRESS_BYTES 160

typedef struct cd_process_hub cd_process_hub;

/* The rank that connects, and for which of its three streams. */
typedef struct cd_process_hello {
    uint32_t rank, world_size;
    uint32_t pipe;   /* cd_os_pipe */
    int32_t process; /* id on its host */
} cd_process_hello;

/* The hub's last message to a rank, when the run has ended. */
typedef enum cd_process_release {
    CD_PROCESS_LEAVE = 'L', /* everybody is well: end the transport as it wants to be ended */
    CD_PROCESS_QUIT = 'Q'   /* the transport may not be able to end any more: exit at once */
} cd_process_release;

/* Listens on exactly this host, at a port that the system chooses. */
cddp_status cd_process_hub_open(const char *host, cd_process_hub **hub,
                                cddp_error *err) CDDP_MUST_CHECK;
void cd_process_hub_close(cd_process_hub *hub); /* accepts NULL */
/* "host:port/secret", all that a rank needs. Returns borrowed until close. */
const char *cd_process_hub_address(const cd_process_hub *hub);
int cd_process_hub_fd(const cd_process_hub *hub); /* readable when somebody connects */
uint32_t cd_process_hub_dropped_count(const cd_process_hub *hub);
/* The next rank's connection whose hello is complete, if there is one; *fd, which does not block,
** is the caller's. */
cddp_status cd_process_hub_take(cd_process_hub *hub, cd_process_hello *hello, int *fd, bool *found,
                                cddp_error *err) CDDP_MUST_CHECK;

/* Is there still somebody who listens at this address? blocks: for three seconds where its host
** says nothing. */
bool cd_process_hub_answers(const char *address);

/* The rank's side: fds[CD_OS_PIPE_COUNT] are blocking connections. A hub is there before its ranks
** are: one that is not has gone. */
cddp_status cd_process_hub_join(const char *address, const cd_process_hello *who,
                                uint64_t timeout_ns, int *fds, cddp_error *err) CDDP_MUST_CHECK;
