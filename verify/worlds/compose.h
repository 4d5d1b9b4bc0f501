/* SPDX-License-Identifier: Apache-2.0 */
/* From a plan to a place to run it: the world and the backend that the plan names.
**
** Lifetime   open → fill cddp_run_options from it → cddp_run → read the schedule → close. Borrows
**            the plan.
** Errors     CDDP_E_CONFIG for names that do not exist (link, algorithm, fault, chooser),
**            CDDP_E_UNSUPPORTED for a backend that is not here.
*/
#pragma once
#include "cddp/run.h"

/* Name of a stored run's metric: in which order its backend summed. */
#define CD_METRIC_ALGORITHM "algorithm: "

typedef struct cd_compose cd_compose;

typedef struct cd_compose_options {
    const cddp_plan *plan;
    const cddp_registry *registry; /* backends that plugins brought; may be NULL */
    /* instead of the plan's; NULL: the plan's. A composition too */
    const char *backend;
    /* hier: the node of this process; NULL: the host's name */
    const char *node;
    const struct cd_chooser *chooser; /* decides instead of the plan's; may be NULL */
    /* for ranks that a launcher starts; NULL: such backends are refused */
    const struct cd_origin *origin;
    /* which of the command's runs this is, as origin counts them */
    uint64_t run;
    /* true: end real processes; the simulator is ended by its sinks. May be NULL */
    bool (*interrupted)(void);
    /* called several times a second while real processes run; may be NULL */
    void (*idle)(void *context);
    void *idle_context;
    /* simulator: how long of real time a call of a plugin may take; 0: as long as an operation of
    ** the plan, or 20 s */
    uint64_t stuck_ns;
    /* replays this choice string instead of the plan's chooser; may be NULL */
    const char *schedule;
    cddp_trace_level level;
    const cddp_allocator *allocator;
    struct cd_sim_ground *ground; /* of simulated worlds, see sim/world.h; NULL: each its own */
} cd_compose_options;

/* Whether ranks on this backend are processes that the program starts, and so may also join a job
** (verify/worlds/join.h). */
cddp_status cd_compose_is_forked(const cddp_registry *registry, const char *backend,
                                 bool *is_forked, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_compose_open(const cd_compose_options *options, cd_compose **compose,
                            cddp_error *err) CDDP_MUST_CHECK;
/* Fills plan, world, backend, relay, level and allocator; the caller adds registry, sinks and what
** to judge. */
void cd_compose_fill(cd_compose *compose, cddp_run_options *options);
/* For the next run in the same world; borrowed. Only for a world that was opened with a chooser. */
void cd_compose_set_chooser(cd_compose *compose, const struct cd_chooser *chooser);
/* The simulated world, where nothing stands between it and the ranks; else NULL. Borrowed until
** close. */
struct cd_sim *cd_compose_get_sim(cd_compose *compose);
/* The choices of the run so far, as a replay takes them; "" where the world makes none. */
size_t cd_compose_print_schedule(const cd_compose *compose, char *text, size_t text_bytes);
/* In which order its backend sums: "gloo_ring"; "" where that is not known. */
const char *cd_compose_algorithm(const cd_compose *compose);
/* Whether ranks are processes, which end when `interrupted` says so; and whether they did. */
bool cd_compose_has_processes(const cd_compose *compose);
bool cd_compose_was_interrupted(const cd_compose *compose);
/* Whether this process is a rank of the run and somebody else judges it: its launch does not
** return. */
bool cd_compose_is_member(const cd_compose *compose);
void cd_compose_close(cd_compose *compose); /* accepts NULL */
/* Do ranks with these settings call a hook that a plugin brought? */
bool cd_compose_is_foreign(const cddp_plan_settings *settings, const cddp_registry *registry);
/* Real time for a call of a hook from outside: the time-out of an operation, as on real
** processes. */
uint64_t cd_compose_stuck_ns(const cddp_plan *plan);
