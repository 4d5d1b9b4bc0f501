/* SPDX-License-Identifier: Apache-2.0 */
/* What an operation was given and what it delivered, by digest, where somebody wants to know who
** else writes to its memory (cddp_collective.is_watched).
**
** Note [A watched operation works elsewhere]
** A watched operation is in place: its result replaces what it was given. No digest of that memory
** can tell a write of the program from the operation's own. So it works in a copy. Until the result
** is brought back, only the program can change the memory that it was given, and digests at both
** ends show that. The operation never reads what was written meanwhile. It costs two copies and one
** digest, and memory for the largest copy. Where that memory is missing, the operation works in
** place, and a write while it computes is not seen.
**
** Lifetime   of a work; the room of a group. Threads: the lane writes, and whoever waited for the
**            lane reads.
*/
#pragma once
#include "cddp/backend.h"
#include "cddp/device.h"

typedef struct cd_call_watch {
    /* 0: not known. written: what lay in the program's memory at the end, where it was not what the
    ** operation was given. It differs from the result then, and says that the program wrote. */
    int64_t read, written;
} cd_call_watch;

typedef struct cd_call_room {
    void *memory; /* (bytes) */
    size_t bytes;
    cddp_tensor input, output; /* of the program, while an operation works here */
    bool is_used;
} cd_call_room;

/* Takes the first digest, and lets a watched call work in the room. */
void cd_call_watch_begin(cd_call_watch *watch, cd_call_room *room, cddp_collective *call);
/* Brings the result back, where ok, and takes the second digest. In any case the call has the
** program's tensors again. */
void cd_call_watch_end(cd_call_watch *watch, cd_call_room *room, cddp_collective *call, bool ok);
void cd_call_room_fini(cd_call_room *room); /* accepts a zeroed one */
