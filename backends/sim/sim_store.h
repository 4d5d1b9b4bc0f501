/* SPDX-License-Identifier: Apache-2.0 */
/* Meeting through a store: the rendezvous of the real backends in a simulated world.
**
** The store (backends/rendezvous/kv.c) and its client (client.c) run unchanged over sim/wire.h,
** served by one of the ranks. Whenever a group is opened, its members meet there first; then the
** simulator opens it.
**
** A meeting goes in rounds. In the store's generation 0 lies one key per group, NAME/state: "open
** R" or "full R". A member reads R, sets NAME/<position> in generation R and waits for the keys of
** all others there. Whoever has seen them all makes "open R" into "full R"; whoever runs out of
** time makes it into "open R+1", and its attempt has failed. The one compare-and-set decides for
** all. An agent makes several attempts, with a pause between them; a rank that comes late learns
** from the state in which round the others are.
**
** Without generations every key lies in generation 0 and there is no state: whoever sees all keys
** believes that all are there, also when an attempt that failed left them behind (ZOO-143). That is
** a mistake worth showing.
**
** Lifetime   the store is a plain value in the caller's storage and borrows its options; what
**            changes in a run lies in the world's block, so that snapshots cover it, and goes with
**            the run.
** Threads    the world's.
** Errors     an attempt that failed says which key was missing, who sets it, and how the store's
**            host was seen.
*/
#pragma once
#include "cddp/backend.h"
#include "sim/world.h"

/* How a rank tries to meet the others. */
typedef struct cd_sim_store_agent {
    uint64_t late_ns; /* before its first meeting */
    /* to see all others, and then once more to settle with them that all are there or that it gives
    ** up */
    uint64_t timeout_ns;
    uint64_t backoff_ns; /* between two attempts */
    uint32_t attempts;   /* at least 1 */
} cd_sim_store_agent;

typedef struct cd_sim_store {
    cd_sim *sim;
    cddp_backend inner;               /* the simulator's */
    const cd_sim_store_agent *agents; /* (world size) */
    /* whose process serves the store, from its first meeting until its program ends */
    uint32_t host;
    bool generations;
} cd_sim_store;

/* The simulator's backend with groups that meet through the store, which outlives it. */
cddp_backend cd_sim_store_backend(cd_sim_store *store);
