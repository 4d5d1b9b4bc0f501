/* SPDX-License-Identifier: Apache-2.0 */
/* One call to start: which rank this is, the backend, the meeting of the ranks, the world's group.
**
**     cddp_context *context = NULL;
**     if (cddp_init(&context, &err) != CDDP_OK) …
**     cddp_group *group = cddp_context_group(context);     … train over it …
**     cddp_fini(context);
**
** cddp_init reads the variables of whoever started the process: torchrun (RANK, WORLD_SIZE,
** MASTER_ADDR, MASTER_PORT, and CDDP_STORE_SECRET), srun, or mpirun. A process that nobody started
** is a world of one; where some of these variables say otherwise and the rest is missing, it is an
** error. cddp_run_ranks starts ranks on this machine by itself. A program that wants to decide more
** does the same with cddp/rendezvous.h, cddp/process.h and cddp/comm.h.
**
** The backend is that of CDDP_BACKEND, or of the options; else mpi under mpirun, self in a world of
** one, gloo everywhere else. Its module is sought in CDDP_BACKEND_DIR, in the folder cddp beside
** libcddp.so, in ../lib/cddp beside the program, and where cddp was installed.
**
** Lifetime   init → groups and wrappers of the program → fini, after these were destroyed.
** Threads    the rank's thread; before it starts others, since cddp_run_ranks forks.
** Errors     name the variable, the module or the rank that is missing.
*/
#pragma once
#include "cddp/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cddp_context cddp_context;

typedef struct cddp_init_options {
    uint32_t size; /* sizeof(cddp_init_options) known to the writer */
    /* "gloo", a module's path, or a composition ("check:gloo"; not with cddp_run_ranks). NULL: as
    ** above */
    const char *backend;
    uint64_t timeout_ns; /* to meet, and of every operation; 0: the backend's */
    bool prints_plain;   /* cddp_run_ranks: what ranks print comes without their rank in front */
} cddp_init_options;

CDDP_API cddp_status cddp_init(cddp_context **context, cddp_error *err) CDDP_MUST_CHECK;
CDDP_API cddp_status cddp_init_with(const cddp_init_options *options, cddp_context **context,
                                    cddp_error *err) CDDP_MUST_CHECK;
CDDP_API void cddp_fini(cddp_context *context); /* accepts NULL */

/* All ranks. Returns borrowed until fini. */
CDDP_API cddp_group *cddp_context_group(const cddp_context *context);
CDDP_API cddp_rank *cddp_context_rank(const cddp_context *context);

typedef cddp_status (*cddp_ranks_fn)(cddp_context *context, void *argument, cddp_error *err);

/* Runs program in `count` processes of this machine, each with a context, and waits for them. What
** they print comes with their rank in front. A recording of a rank ends with its program. The first
** rank that failed is the error. options may be NULL. */
CDDP_API cddp_status cddp_run_ranks(uint32_t count, const cddp_init_options *options,
                                    cddp_ranks_fn program, void *argument,
                                    cddp_error *err) CDDP_MUST_CHECK;

#ifdef __cplusplus
}
#endif
