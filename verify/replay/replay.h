/* SPDX-License-Identifier: Apache-2.0 */
/* A recorded run and its re-execution, held against each other event by event.
**
** A run of real processes is held against one of the simulator rank by rank: which rank came first,
** and when, was the machine's doing, and so are the events that only a world reports of itself
** (choices, computing, memory). Everything that a rank did and saw has to be equal, bit for bit, up
** to where it fails in both. A failure looks different in every world; whether two runs fail alike
** is said by their verdicts (cd_hang_is_same).
** A rank that a signal ended is killed by a planted fault, where the record shows it last;
** what it did between there and its death is not compared.
**
** Lifetime   init → load → compare as a watcher of the new run → inspect → fini.
** Errors     a run that cannot be re-executed here says why: another backend, an incomplete record,
**            a scenario that no longer means the same.
*/
#pragma once
#include "cddp/plan.h"
#include "cddp/store.h"
#include "core/trace/sink.h"

typedef struct cd_replay {
    cddp_trace_sink sink; /* the watcher; its flush fails once the runs have parted */
    cd_memory_sink recorded;
    size_t met;      /* recorded events that came again */
    size_t total;    /* that have to */
    size_t last;     /* of recorded: the one met last */
    size_t expected; /* of recorded: the one that should have come; recorded.count: none */
    bool across;     /* the recorded run is of another world */
    /* (rank + 1; 0: the world) of recorded, to be met by the next event of that rank */
    size_t *cursors;
    bool *is_over; /* likewise: the rank failed in both, and is compared no further */
    size_t cursor_count;
    bool record_fails;   /* some rank fails in it */
    bool is_endless;     /* its world ended ranks that went round in circles */
    bool has_failed;     /* some rank did: whether both runs fail alike is yet to be seen */
    int64_t struck;      /* the rank that a signal ended, or -1; see cd_replay_plant */
    bool was_refused;    /* the recorded transport refused an operation that others did not post */
    bool order_known;    /* of summation; see cd_replay_set_across */
    bool has_other_bits; /* it fails, and its order of summation is not known: bits do not count */
    bool parted;
    bool was_interrupted; /* when it parted: what comes after Ctrl-C is no part of the run */
    bool has_extra;       /* the new run had an event where the record ended */
    cddp_event extra;     /* the event that came instead, without its text */
    char extra_text[256];
    bool (*interrupted)(void); /* set after init; NULL: never */
    uint64_t until;            /* stop after so many events; 0: never */
    int32_t until_kind;        /* stop after the first event of this kind; -1: never */
    bool stopped;
} cd_replay;

void cd_replay_init(cd_replay *replay);
void cd_replay_fini(cd_replay *replay);
cddp_status cd_replay_load(cd_replay *replay, cddp_store *store, int64_t run,
                           cddp_error *err) CDDP_MUST_CHECK;
/* After load: the record is of real processes, the run that comes is the simulator's. */
cddp_status cd_replay_set_across(cd_replay *replay, bool order_known,
                                 cddp_error *err) CDDP_MUST_CHECK;
/* Then: the rank that a signal ended is killed there, too, by a fault of `plan`: in the operation
** in which, or before which, its record ends. */
cddp_status cd_replay_plant(cd_replay *replay, cddp_plan *plan, cddp_error *err) CDDP_MUST_CHECK;
/* After the run: whether the whole record came again; if it ended too early, expected says
** where. */
bool cd_replay_end(cd_replay *replay);
