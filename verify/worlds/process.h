/* SPDX-License-Identifier: Apache-2.0 */
/* A world of real processes for a plan. Ranks are forked here and meet through a private
** rendezvous, or the launcher of their transport starts them, or it has started this process
** already. Their events come to one process, where they are judged as those of the simulator are.
**
** Lifetime   open → fill → cddp_run → close. Borrows plan, module and relay.
** Errors     a rank that dies or hangs is an outcome of the run; what it sent before is part of the
**            trace.
*/
#pragma once
#include "cddp/run.h"

typedef struct cd_compose_process cd_compose_process;

typedef struct cd_compose_process_options {
    const cddp_plan *plan;
    const cddp_registry *registry; /* where modules brought their backends; may be NULL */
    const char *backend;           /* a name, or a composition of names */
    /* hier: the node of this process; NULL: the host's name */
    const char *node;
    cddp_relay_sink *relay;
    const struct cd_origin *origin; /* needed by a backend with a launcher, and to join a job */
    uint64_t run;                   /* which of the command's runs this is */
    bool (*interrupted)(void);      /* true: end it; may be NULL */
    void (*idle)(void *context);    /* several times a second; may be NULL */
    void *idle_context;
    uint64_t stuck_ns; /* for a call of its hook, which is from outside; 0: no limit */
} cd_compose_process_options;

/* Whether this program forks the ranks of this backend: the transport has no launcher. */
cddp_status cd_compose_process_is_forked(const cddp_registry *registry, const char *backend,
                                         bool *is_forked, cddp_error *err) CDDP_MUST_CHECK;
/* Borrows everything in options until close. */
cddp_status cd_compose_process_open(const cd_compose_process_options *options,
                                    cd_compose_process **process, cddp_error *err) CDDP_MUST_CHECK;
/* The backend as it is before a rank binds it: what it can do. Returns borrowed until close. */
const cddp_backend *cd_compose_process_backend(const cd_compose_process *process);
/* Whether this process is a rank of the run and somebody else judges it: its launch does not
** return. */
bool cd_compose_process_is_member(const cd_compose_process *process);
bool cd_compose_process_was_interrupted(const cd_compose_process *process);
void cd_compose_process_fill(cd_compose_process *process, cddp_run_options *options);
void cd_compose_process_close(cd_compose_process *process); /* accepts NULL */
