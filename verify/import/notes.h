/* SPDX-License-Identifier: Apache-2.0 */
/* How a rank's process ended, as whoever started it saw: a rank that is killed cannot say so.
**
** The note of the shard run.db.3 is the file run.db.3.exit, of lines "name number": signal or code,
** stopped 1 (its supervisor ended it, since others had failed or time was up), interrupted 1.
**
** Threads    one thread.
** Errors     a file that is not there, or is no note, is no note.
*/
#pragma once
#include "cddp/trace.h"

typedef struct cd_note {
    int64_t signal, code; /* signal 0: it exited */
    bool is_stopped, is_interrupted;
} cd_note;

/* Is this file a note? A wildcard over shards finds their notes too. */
bool cd_note_is(const char *path);
bool cd_note_read(const char *shard_path, cd_note *note);
/* As the rank's last event; rank and sequence are the caller's. */
void cd_note_fill(const cd_note *note, cddp_event *event);
