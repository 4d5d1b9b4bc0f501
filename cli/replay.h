/* SPDX-License-Identifier: Apache-2.0 */
/* A recorded run and its re-execution, held against each other event by event.
**
** Lifetime   init → load → compare as a watcher of the new run → inspect → fini.
** Errors     a run that cannot be re-executed here says why: another backend, an incomplete record, a scenario that
**            no longer means the same.
*/
#pragma once
#include "cddp/store.h"
#include "core/trace/sink.h"

typedef struct cd_replay {
    cddp_trace_sink sink; /* the watcher; its flush fails once the runs have parted */
    cd_memory_sink recorded;
    size_t next;          /* of recorded, to be met by the next event */
    bool parted;
    bool has_extra;       /* the new run had an event where the record ended */
    cddp_event extra;     /* the event that came instead, without its text */
    char extra_text[256];
    uint64_t until;       /* stop after so many events; 0: never */
    bool stopped;
} cd_replay;

void cd_replay_init(cd_replay *replay);
void cd_replay_fini(cd_replay *replay);
cddp_status cd_replay_load(cd_replay *replay, cddp_store *store, int64_t run, cddp_error *err) CDDP_MUST_CHECK;
