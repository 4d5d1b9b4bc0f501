/* SPDX-License-Identifier: Apache-2.0 */
/* The shared state of one world's parts: the scheduler (world.c), the collectives (collective.c),
** the transport (transport.c), streams and faults. Users of a world include sim/world.h instead.
**
** Memory   a cd_sim lies at the start of its block; everything it points to lies in the block,
**          except cd_sim_host.
*/
#pragma once
#include "core/base/arena.h"
#include "core/trace/tracer.h"
#include "sim/fiber.h"
#include "sim/memory.h"
#include "sim/queue.h"
#include "sim/world.h"

/* Something that happens at a time; embedded as the first member of whatever happens. */
typedef struct cd_sim_event cd_sim_event;
struct cd_sim_event {
    void (*fire)(cd_sim *sim, cd_sim_event *event);
};

/* An operation whose completion may be chosen. Linked in the order in which they became
** completable. */
typedef struct cd_completion cd_completion;
struct cd_completion {
    cd_completion *next;
    const void *group; /* completions of one group keep their order */
    uint64_t semantic;
    void (*complete)(cd_sim *sim, cd_completion *completion);
};

typedef enum cd_rank_state {
    CD_RANK_READY,    /* in the ready queue */
    CD_RANK_RUNNING,  /* on its stack now */
    CD_RANK_WAITING,  /* for a wake-up or its deadline */
    CD_RANK_CHOOSING, /* its choice is pending */
    CD_RANK_ENDED,    /* its program returned */
    CD_RANK_DEAD      /* killed or crashed: never scheduled again */
} cd_rank_state;

typedef enum cd_wake { CD_WAKE_DONE, CD_WAKE_TIMEOUT, CD_WAKE_ABORT } cd_wake;

struct cd_part;
typedef struct cd_sim_rank cd_sim_rank;

typedef struct cd_rank_timer {
    cd_sim_event event;
    uint64_t queued_ns; /* earliest entry of this rank in the event queue; UINT64_MAX: none */
} cd_rank_timer;

struct cd_sim_rank {
    cddp_rank port; /* first: a cddp_rank of this world is one of these */
    cddp_allocator allocator;
    cd_fiber fiber;
    cd_rank_state state;
    cd_wake wake;         /* why it became ready again */
    uint64_t deadline_ns; /* while waiting; UINT64_MAX: none */
    cd_rank_timer timer;
    const char *waiting;                /* the reason of a wait; static text */
    const struct cd_part *waiting_part; /* the operation it waits for, or NULL */
    const void *waiting_group;          /* cd_comm that it waits to see complete, or NULL */
    uint64_t waiting_since_ns;
    uint64_t hang_until_ns; /* a fault: not scheduled before */
    bool is_held;           /* it was woken while it hangs … */
    cd_wake held_wake;      /* … for this reason */
    uint32_t slow_permille; /* of normal compute time … */
    uint64_t slow_until_ns; /* … until then */
    uint32_t chosen;        /* answer to its own choice */
    bool has_asked;         /* it is ready, and its next turn is a choice … */
    cddp_choice asked;      /* … this one: cd_sim_gather */
    bool started, killed, overflowed, hung, has_op_faults;
    bool is_stuck;               /* it never came back from where it was */
    bool is_broken;              /* it crashed or left in code from outside: */
    int broken_by, left_with;    /* … the signal, or 0 and the exit code */
    const char *hook, *function; /* what it calls now, or NULL */
    uint32_t idle_yields;        /* looks at what had not ended, since something did or it waited */
    uint64_t unwind_calls;       /* world calls after the world ended */
    uint64_t collective_count;   /* posted, over all groups: what faults count */
    uint64_t join_count;         /* begun: cd_sim_pass_join */
    uint32_t slots_used;
    uint32_t transfers;                       /* operations whose data are moving */
    bool is_sharing;                          /* it computes, and how fast depends on transfers */
    struct cd_part *queue_first, *queue_last; /* posted, waiting for a slot */
    /* parts that take part now; kept for hang reports when slots are bounded */
    struct cd_part *active;
    const char *last_what; /* its last event, for hang reports */
    const char *last_group;
    uint64_t last_ordinal, last_ns;
    cd_sim_rank_times times;
    cddp_status status;
    cddp_error error;
};

typedef enum cd_pending_source {
    CD_PENDING_NONE,
    CD_PENDING_RUN,
    CD_PENDING_COMPLETE,
    CD_PENDING_RANK,
    CD_PENDING_FAULT
} cd_pending_source;

/* Outside the block: not part of a snapshot. */
typedef struct cd_sim_host {
    cd_sim_config config;
    cd_arena arena; /* the host itself and its arrays */
    cd_network network;
    unsigned char *block;
    size_t block_bytes;
    size_t region_offset, region_bytes; /* of the memory, within the block */
    size_t stacks_offset, stack_bytes, stack_stride;
    uint64_t *options; /* (options_max) semantic ids of the choice being made */
    uint32_t options_max;
    uint32_t *slow;   /* (world_size) or NULL */
    cd_fault *faults; /* (fault_count) */
} cd_sim_host;

struct cd_sim {
    cd_sim_host *host;
    cd_memory memory;
    uint64_t now_ns;
    cd_queue events;
    cd_sim_rank *ranks; /* (world_size) */
    uint32_t world_size;
    uint32_t *ready; /* (world_size) ring of rank numbers */
    uint32_t ready_first, ready_count;
    cd_completion *completable, *completable_last;
    uint32_t completable_count;
    cd_sim_rank *current; /* on its stack now, or NULL: the driver's */
    cddp_rank_fn program;
    void *argument;
    uint32_t ended_count; /* ranks that are ENDED or DEAD */
    bool is_launched;     /* by launch: without a chooser, fifo decides at once */
    bool over, unwinding, out_of_time, out_of_memory;
    cd_pending_source pending_source;
    cddp_choice pending;
    cd_sim_event *pending_fault;
    cd_schedule schedule;
    struct cddp_tracer tracer;
    struct cd_cluster *cluster; /* groups and operations: collective.c */
    struct cd_wire *wires;      /* those with a server: wire.c */
    void *service;              /* cd_sim_set_service */
    cd_sim_stats stats;
    /* of the rank that runs: see cd_sim_look */
    uint64_t stuck_since_ns, stuck_progress, stuck_switches;
    uint64_t progress; /* how often ranks asked for the time, which each event does */
    uint32_t stuck_count;
};

static inline cd_sim_rank *cd_sim_rank_of(cddp_rank *rank) { return (cd_sim_rank *)(void *)rank; }

/* Queues an event at now + delay; equal times fire in the order of these calls. */
void cd_sim_schedule_event(cd_sim *sim, cd_sim_event *event, uint64_t time_ns);
/* On a rank's stack: waits for cd_sim_wake or the deadline (UINT64_MAX: none). `what` is static
** text. */
cd_wake cd_sim_wait(cd_sim *sim, const char *what, const struct cd_part *part,
                    uint64_t deadline_ns);
/* Makes a waiting rank ready; nothing when it is not waiting. */
void cd_sim_wake(cd_sim *sim, cd_sim_rank *rank, cd_wake wake);
/* On a rank's stack: lets the other ready ranks run first. part: what it asks about; may be NULL.
** One that asks for ever sees time pass, and hangs where nothing is left to happen. */
void cd_sim_yield(cd_sim *sim, const struct cd_part *part);
/* Makes a rank ready to run the program from its beginning. */
void cd_sim_start_rank(cd_sim *sim, cd_sim_rank *rank, unsigned char *stack, size_t stack_bytes);
/* A choice on a rank's stack. In a world that has ended: 0. */
uint32_t cd_sim_choose(cd_sim *sim, const cddp_choice *choice);
void cd_sim_add_completion(cd_sim *sim, cd_completion *completion);
/* Stops the run with CDDP_E_NOMEM: the block is exhausted where no rank can receive the error. */
void cd_sim_exhausted(cd_sim *sim);
/* True when this call must fail because the world has ended; counts calls, and abandons a rank that
** never stops. */
bool cd_sim_is_over_for(cd_sim *sim, cd_sim_rank *rank);
void cd_sim_note(cd_sim_rank *rank, const char *what, const char *group, uint64_t ordinal);
/* Ranks that never returned are run once more with every call failing, so that they give back what
** they own. */
void cd_sim_unwind(cd_sim *sim);
/* Ends a rank for good; when it is the caller's own, does not return. */
void cd_sim_kill(cd_sim *sim, cd_sim_rank *rank);
/* Called now and then while a rank runs, in the middle of what it does: leaves it when it is over a
** limit of real time. */
void cd_sim_look(void *sim);
/* The rank that runs has crashed, or leaves with an exit code. Returns where it was not in a
** hook. */
void cd_sim_break(void *sim, int signal_number, int exit_code);

/* Reports which rank waits for which (report.c): fills the error of a hung rank, emits waiting_for
** events. */
void cd_sim_report_hang(cd_sim *sim);
/* Fills the error of a rank that is killed now, with what it did last. */
void cd_sim_report_death(cd_sim_rank *rank);
/* Emits through the world's tracer, stamped with the world's time. */
#define CD_SIM_EMIT(sim, event_name, event_text, ...)                     \
    do {                                                                  \
        if ((sim)->tracer.sink != NULL && !(sim)->unwinding) {            \
            (sim)->tracer.time_ns = (sim)->now_ns;                        \
            CD_EMIT(&(sim)->tracer, event_name, event_text, __VA_ARGS__); \
        }                                                                 \
    } while (0)

/* Faults (strike.c). */
cddp_status cd_sim_begin_faults(cd_sim *sim, cddp_error *err);
void cd_sim_strike(cd_sim *sim, const cd_fault *fault);
/* All ranks have ended: says which of the links' faults met no message. */
void cd_sim_end_faults(cd_sim *sim);
void cd_sim_fault_at_time(cd_sim *sim, cd_sim_event *event);
/* Around the ordinal-th collective of this member's rank; part may be NULL before it exists. */
struct cddp_collective;
struct cd_member;
void cd_sim_fault_at_op(const struct cd_member *member, cddp_plan_fault_when when,
                        struct cd_part *part, const struct cddp_collective *what);

/* The program of a rank has returned: a server on it closes its connections (wire.c). */
void cd_wires_rank_ended(cd_sim *sim, const cd_sim_rank *rank);

/* Collectives (collective.c). */
cddp_status cd_cluster_init(cd_sim *sim, cddp_error *err);
void cd_cluster_fini(cd_sim *sim);
void cd_cluster_rank_died(cd_sim *sim, cd_sim_rank *rank);
/* "it waits for ranks 1 and 2"; "" of a part that has ended. */
void cd_part_print(const struct cd_part *part, char *text, size_t text_bytes);
