/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated world: ranks as fibers on one thread, virtual time, one chooser for every
** nondeterministic choice.
**
**     cd_sim_config config = CD_SIM_CONFIG_INIT;
**     config.world_size = 4;
**     CD_TRY(cd_sim_create(&config, &sim, err));
**     cd_sim_ops()->launch(sim, program, argument, results, err);     or drive it step by step, see
**                                                                     below
**     cd_sim_destroy(sim);
**
** Everything that can change during a run lies in one contiguous block, stacks and the ranks'
** memory included, so a snapshot is a copy. Nothing is allocated after cd_sim_create, apart from
** staging tensors that devices make when the first messages of a size travel; those are kept.
**
** Lifetime   the targets of pointers in the configuration are borrowed until cd_sim_destroy.
** Threads    a world belongs to one thread at a time; worlds share nothing, so any number run side
**            by side.
** Errors     a hang, a fault, a time-out are outcomes of ranks (cddp_rank_result), not failures of
**            launch.
*/
#pragma once
#include "cddp/trace.h"
#include "cddp/world.h"
#include "sim/algorithm.h"
#include "sim/chooser.h"
#include "sim/fault.h"
#include "sim/network.h"
#include "sim/schedule.h"

typedef struct cd_sim cd_sim;

/* How collectives take place. */
typedef enum cd_sim_transport {
    CD_SIM_DIRECT, /* at once, when the last member has posted: order only, no time */
    /* as direct, with completion times from the algorithm's graph: no contention between
    ** operations */
    CD_SIM_MODEL,
    /* chunk by chunk over shared ports: what disagreeing, late or broken members really do */
    CD_SIM_MESSAGES
} cd_sim_transport;

typedef enum cd_sim_completion {
    CD_SIM_COMPLETE_AT_ONCE, /* an operation that can complete does */
    /* when it completes is a choice (CDDP_CHOICE_COMPLETE), in order within a group */
    CD_SIM_COMPLETE_CHOICE
} cd_sim_completion;

typedef struct cd_sim_config {
    uint32_t world_size;
    uint64_t seed;
    const cd_chooser *chooser; /* NULL: fifo */
    cd_algorithm algorithm;    /* of all-reduce, reduce and reduce_scatter */
    /* of an operation on each member before its first message; not with direct */
    uint64_t launch_ns;
    /* trees cut data into pieces of so many bytes that follow each other; 0: whole */
    uint64_t piece_bytes;
    cd_sim_transport transport;
    cd_sim_completion completion;
    cd_network_config network;
    /* each computation may take this much longer (CDDP_CHOICE_DELAY); 0: none does */
    uint32_t delay_permille;
    /* of its time that computing takes while an operation of the rank is transferred, since both
    ** want the same cores; 0 or 1000: they do not */
    uint32_t compute_permille;
    /* operations that progress at once on a rank, over all groups; 0: any number */
    uint32_t slots_per_rank;
    const cd_fault *faults; /* (fault_count) */
    size_t fault_count;
    /* choice, fault, compute, waiting_for, message events; NULL: none */
    const cddp_trace_sink *sink;
    cddp_trace_level trace_level;
    uint64_t time_limit_ns; /* the world ends there; 0: one hour of virtual time */
    /* of an operation that names none; 0: none, so that a hang is a hang */
    uint64_t timeout_ns;
    /* after a rank died its peers learn it and their operations fail; 0: it goes silent */
    uint64_t death_notice_ns;
    size_t stack_bytes; /* per rank; 0: 256 KiB */
    /* memory of all ranks together, used when touched; 0: 64 MiB + 1 MiB per rank */
    size_t heap_bytes;
    /* where address space is short, heap_bytes is halved, but not below this; 0: it is not */
    size_t heap_bytes_least;
    /* choices other than fifo that the choice string can hold; 0: 65536 */
    uint32_t deviations_max;
    const cddp_allocator *allocator; /* for the handle outside the block; NULL: the process heap */
    struct cd_sim_ground *ground;    /* where its block comes from; NULL: its own */
    /* Called when the world has ended and killed or hung ranks are unwound, so that they free their
    ** memory. Their actions are no part of the run: mute their tracers here. (optional) */
    void (*ended)(void *context);
    void *ended_context;
    /* Becomes true when somebody who hears the ranks knows that they go on without end. The world
    ** ends then as one that hangs. Virtual time is no such limit where operations take none.
    ** NULL: nobody says so. */
    const bool *is_endless;
    /* Ranks call code from outside: a plugin's hook. A rank that crashes or leaves in such a call
    ** is dead. One that keeps the thread for longer than these limits of real time hangs where it
    ** is. Neither is unwound. Of such worlds a process runs one at a time. 0: none of it. */
    uint64_t stuck_ns;      /* … inside code from outside */
    uint64_t stuck_most_ns; /* … wherever it is */
} cd_sim_config;
#define CD_SIM_CONFIG_INIT                  \
    {                                       \
        .algorithm = CD_ALGORITHM_gloo_ring \
    }

cddp_status cd_sim_create(const cd_sim_config *config, cd_sim **sim,
                          cddp_error *err) CDDP_MUST_CHECK;
void cd_sim_destroy(cd_sim *sim); /* accepts NULL */

/* The world port. `world` of every function is the cd_sim; launch may be called again after it
** returned. */
const cddp_world_ops *cd_sim_ops(void);
uint32_t cd_sim_world_size(const cd_sim *sim);
cd_algorithm cd_sim_get_algorithm(const cd_sim *sim);

/* Driving a run by hand, as explorers do. begin makes the ranks; advance runs until the chooser
** would be asked, and returns the pending choice, or NULL when the world has ended; decide answers
** it; end fills the results. The configured chooser is not called. */
cddp_status cd_sim_begin(cd_sim *sim, cddp_rank_fn program, void *argument,
                         cddp_error *err) CDDP_MUST_CHECK;
const cddp_choice *cd_sim_advance(cd_sim *sim);
void cd_sim_decide(cd_sim *sim, uint32_t index);
cddp_status cd_sim_end(cd_sim *sim, cddp_rank_result *results, cddp_error *err) CDDP_MUST_CHECK;

/* A copy of the world at a pending choice (between advance and decide). Memory that devices or
** programs took from elsewhere is not in it. Sanitizer builds refuse: their shadow of the stacks
** cannot be copied. */
typedef struct cd_snapshot cd_snapshot;
cddp_status cd_sim_snapshot(cd_sim *sim, cd_snapshot **snapshot, cddp_error *err) CDDP_MUST_CHECK;
void cd_sim_restore(cd_sim *sim, const cd_snapshot *snapshot);
/* Goes on to the end as launch does, asking the configured chooser. */
cddp_status cd_sim_resume(cd_sim *sim, cddp_rank_result *results, cddp_error *err) CDDP_MUST_CHECK;
/* At a pending choice of a rank among gradients that are ready: every other ready rank runs up to
** its own first one, in the order in which it would have its turn, so that a snapshot has that
** behind it. Answers have the same numbers as without. False: it is another choice, or a rank
** waited or posted on its way, which would change those. The world is then to be restored. */
bool cd_sim_gather(cd_sim *sim) CDDP_MUST_CHECK;
size_t cd_snapshot_bytes(const cd_snapshot *snapshot);
void cd_snapshot_destroy(cd_snapshot *snapshot); /* accepts NULL */

/* An object that ranks of one run share, such as a store. The first rank makes it in the world's
** memory (a rank's allocator). It is dropped when the next run begins. NULL: not made yet. */
void cd_sim_set_service(cd_sim *sim, void *service);
void *cd_sim_get_service(const cd_sim *sim);
/* On the rank's stack, by whoever lets ranks meet before they open a group: faults around a join
** strike here. BEFORE_JOIN begins one. */
void cd_sim_pass_join(cddp_rank *rank, cddp_plan_fault_when when);

/* The events so far, while running and after. */
typedef struct cd_sim_stats {
    uint64_t time_ns;
    uint64_t switches;                  /* entries into fibers */
    uint64_t events;                    /* popped from the event queue */
    uint64_t choices;                   /* choice points with more than one option */
    uint64_t collectives;               /* completed, counted once per member */
    uint64_t messages, bytes;           /* delivered */
    uint64_t messages_sent, bytes_sent; /* put on a link */
    /* dropped with a dead rank, an abort or a closed group */
    uint64_t messages_lost, bytes_lost;
    /* Counts events whose effect depends on the order of turns: a poll, a time-out, a failing
    ** group, an abandoned operation, a fault, an operation of a stream. Without any, ranks meet
    ** only where they wait for each other, and every order of turns gives the same result
    ** (sim/explore.h). */
    uint64_t races;
    uint64_t choice_digest; /* over the semantic ids of all choices */
    size_t heap_used_peak;
    size_t stack_used_peak; /* largest over ranks, at switches */
    bool hung;
} cd_sim_stats;
void cd_sim_get_stats(const cd_sim *sim, cd_sim_stats *stats);
/* The run's choice string so far; returns borrowed until the next choice. */
const cd_schedule *cd_sim_schedule(const cd_sim *sim);
/* Per rank: computing, waiting for communication with nothing to compute (exposed), both in ns of
** virtual time. */
typedef struct cd_sim_rank_times {
    uint64_t compute_ns, exposed_ns, ended_ns;
} cd_sim_rank_times;
cd_sim_rank_times cd_sim_get_rank_times(const cd_sim *sim, uint32_t rank);
/* The wait-for graph as text, one line per waiting rank; always terminated; returns the length it
** needs. */
size_t cd_sim_print_waits(const cd_sim *sim, char *text, size_t text_bytes);
void cd_sim_audit(const cd_sim *sim);
