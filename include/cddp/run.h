/* SPDX-License-Identifier: Apache-2.0 */
/* Running a plan on a world and judging what happened.
**
** cddp_run launches one rank program per rank, lets every rank's events flow to the sinks, merges
** them in (time, rank, sequence) order, shows them to every check of the registry and compares the
** findings with what the plan expects.
**
** Lifetime   the world, backend, registry and sinks are borrowed for the call. A verdict owns its
**            texts.
** Threads    one thread.
** Errors     a failure to run (no memory, a world that cannot start) is an error. A rank that ended
**            with an error, a hang and a broken invariant are part of the verdict, not errors.
*/
#pragma once
#include "cddp/backend.h"
#include "cddp/check.h"
#include "cddp/plan.h"
#include "cddp/registry.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers are the exit codes of cddp-verify. */
typedef enum cddp_outcome {
    CDDP_OUTCOME_VERIFIED = 0,
    CDDP_OUTCOME_FINDINGS = 1,
    /* the plan could not be run as written: it contradicts itself, or every rank refuses its
    ** settings */
    CDDP_OUTCOME_ERROR = 2,
    CDDP_OUTCOME_ENVIRONMENT = 3, /* a backend or device is absent */
    CDDP_OUTCOME_INCONCLUSIVE = 4
} cddp_outcome;

typedef struct cddp_exercise {
    const char *check; /* "I-USED" */
    const char *how;   /* the first reason given */
    uint64_t count;
} cddp_exercise;

typedef struct cddp_mark_count {
    const char *name;
    uint64_t count;
} cddp_mark_count;

typedef struct cddp_verdict_rank {
    uint32_t size;
    cddp_rank_result result;
    uint64_t events;
    uint32_t step; /* in which it was last seen */
} cddp_verdict_rank;

typedef struct cddp_verdict_memory cddp_verdict_memory;

typedef struct cddp_verdict {
    uint32_t size;
    cddp_outcome outcome; /* what happened, measured against what the plan expects */
    bool as_expected;     /* the plan expected findings or an error, and exactly these came */
    const char *summary;  /* one sentence */
    /* why it is not verified: what was missing or unexpected; "" when verified */
    const char *reason;
    /* when verified: what was shown ("values, updates, order, liveness"); else "" */
    const char *proven;
    const char *unjudged;         /* what the judge gave up, and why; "" when nothing */
    const cddp_finding *findings; /* in order of (step, time); the first is the one to look at */
    size_t finding_count;
    const cddp_exercise *exercises; /* in registry order; only those with count > 0 */
    size_t exercise_count;
    const cddp_mark_count *marks;
    size_t mark_count;
    const cddp_verdict_rank *ranks;
    size_t rank_count;
    uint64_t event_count;
    uint64_t trace_digest;    /* of the merged trace */
    uint64_t timeless_digest; /* the same without times */
    uint64_t plan_digest;
    uint64_t time_ns; /* of the last event, in the world's time */
    cddp_verdict_memory *memory;
    const cddp_wait *waits; /* who waited for whom at the end, one per rank, in their order */
    size_t wait_count;
} cddp_verdict;

/* The entry for events of the world itself (choices, faults, waits). The world is opened with
** `.sink`, before the run exists. During the run, events go to the run's judge and sinks. A world
** that unwinds ranks after its end sets `muted` first, because their actions are no part of the
** run. */
typedef struct cddp_relay_sink {
    cddp_trace_sink sink;
    const cddp_trace_sink *target; /* NULL: events are dropped */
    bool muted;
    /* Set by the run: ranks go on without end. The world ends them as ranks that hang. */
    bool is_endless;
} cddp_relay_sink;
CDDP_API void cddp_relay_sink_init(cddp_relay_sink *relay);

/* The parts that a rank of a real transport makes inside its own process. */
typedef struct cddp_rank_binding {
    uint32_t size;
    const cddp_backend *backend; /* NULL: that of the run */
    const cddp_trace_sink *sink; /* NULL: those of the run; else this one alone (a shard) */
    void *self;                  /* of whoever bound it */
    /* Memory that all ranks of this run share, zeroed when it begins: the judge of each rank sees
    ** there what the others gave to a sum. NULL: sums of real ranks are held to their bounds. */
    void *shared;
    size_t shared_bytes;
} cddp_rank_binding;

typedef struct cddp_run_options {
    uint32_t size;
    const cddp_plan *plan;
    const cddp_world_ops *world_ops;
    void *world;
    const cddp_backend *backend;
    cddp_relay_sink *relay; /* that the world was opened with; may be NULL */
    /* may be NULL */
    cddp_status (*bind)(void *context, cddp_rank *rank, cddp_rank_binding *binding,
                        cddp_error *err);
    /* with bind */
    void (*unbind)(void *context, cddp_rank *rank, cddp_rank_binding *binding);
    void *bind_context;
    const cddp_registry *registry;       /* hooks and checks */
    cddp_trace_level level;              /* CDDP_TRACE_DIGEST for judging */
    const cddp_trace_sink *const *sinks; /* besides the judge: the store, a recorder */
    size_t sink_count;
    bool judge;  /* false: run only; the verdict has no findings */
    bool oracle; /* compare with single-process training */
    const cddp_allocator *allocator;
    /* Every rank recomputes the reference for itself, as ranks in processes do; false: ranks of one
    ** thread share what they recompute. The verdict is the same; bounds derived on the way may be
    ** wider or narrower. */
    bool oracle_apart;
} cddp_run_options;

CDDP_API cddp_run_options cddp_run_options_default(void);
CDDP_API cddp_status cddp_run(const cddp_run_options *options, cddp_verdict **verdict,
                              cddp_error *err) CDDP_MUST_CHECK;

/* Judges a trace that was recorded earlier: replay is called once and emits every event in merged
** order. */
typedef cddp_status (*cddp_replay_fn)(void *source, const cddp_trace_sink *sink, cddp_error *err);
CDDP_API cddp_status cddp_judge(const cddp_plan *plan, const cddp_registry *registry,
                                cddp_replay_fn replay, void *source, cddp_verdict **verdict,
                                cddp_error *err) CDDP_MUST_CHECK;

CDDP_API void cddp_verdict_destroy(cddp_verdict *verdict); /* accepts NULL */

#ifdef __cplusplus
}
#endif
