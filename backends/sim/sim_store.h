/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous of the real backends, in a simulated world: ranks meet through a store.
**
** The store (backends/rendezvous/kv.c) and its client (client.c) run unchanged over sim/wire.h;
** one rank serves the store. Members of a group first meet there, then the simulator opens the
** group.
**
** A meeting has rounds. Generation 0 of the store has one key per group, NAME/state: "open R" or
** "full R". A member reads R, sets NAME/<position> in generation R and waits there for the keys of
** all others. A member that has seen all changes "open R" into "full R". A member that runs out of
** time changes it into "open R+1", and its attempt has failed. This one compare-and-set decides for
** all. An agent makes several attempts, with a pause between them. A late rank reads the others'
** round from the state.
**
** Without generations every key is in generation 0 and there is no state. A member that sees all
** keys assumes that all ranks are there, even when a failed attempt left the keys behind (ZOO-143).
** Scenarios show that mistake.
**
** Lifetime   the store is a plain value in the caller's storage and borrows its options. State
**            that changes in a run is in the world's block, so that snapshots cover it, and ends
**            with the run.
** Threads    the world's.
** Errors     the error of a failed attempt names the missing key, its owner and the state of the
**            store's host.
*/
#pragma once
#include "cddp/backend.h"
#include "sim/world.h"

/* How a rank meets the others. */
typedef struct cd_sim_store_agent {
    uint64_t late_ns; /* before its first meeting */
    /* to see all others, and then once more to settle the round */
    uint64_t timeout_ns;
    uint64_t backoff_ns; /* between two attempts */
    uint32_t attempts;   /* at least 1 */
} cd_sim_store_agent;

typedef struct cd_sim_store {
    cd_sim *sim;
    cddp_backend inner;               /* the simulator's */
    const cd_sim_store_agent *agents; /* (world size) */
    /* the rank whose process serves the store, from its first meeting until its program ends */
    uint32_t host;
    bool generations;
} cd_sim_store;

/* The simulator's backend whose groups meet through the store, which must outlive it. */
cddp_backend cd_sim_store_backend(cd_sim_store *store);
