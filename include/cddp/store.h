/* SPDX-License-Identifier: Apache-2.0 */
/* The trace store: runs, their events and findings in one SQLite file that the plain sqlite3 shell
** can read.
**
** A file holds any number of runs; opening an existing file for writing appends to it and never
** rewrites an older run. Events of an iteration become durable together, when the last rank has
** flushed it; a program that is killed leaves a file that opens, with every finished iteration in
** it and the run marked incomplete. The layout, the views and example queries are in
** docs/formats/trace.md.
**
** Lifetime   open → (run_begin → sink, add_… → run_end)* → close. At most one run is being written
**            at a time.
** Ownership  every text given is copied; every text handed to a callback is borrowed until it
**            returns.
** Threads    a store is used by one thread at a time. Several processes may append to one file.
** Errors     a file that is not a store, is damaged, comes from a newer version, cannot be written
**            or whose disk is full gives one sentence naming the file. The sink remembers its first
**            failure and reports it in flush and in run_end; what was committed before stays.
*/
#pragma once
#include "cddp/check.h"
#include "cddp/run.h"
#include "cddp/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CDDP_STORE_APPLICATION_ID 0x63646470 /* "cddp" */
#define CDDP_STORE_VERSION 2

typedef struct cddp_store cddp_store;

typedef enum cddp_store_mode {
    CDDP_STORE_READ,  /* the file must exist; nothing in it is changed */
    CDDP_STORE_APPEND /* created when absent; new runs are added behind those it has */
} cddp_store_mode;

/* allocator may be NULL: the process heap. */
CDDP_API cddp_status cddp_store_open(const char *path, cddp_store_mode mode,
                                     const cddp_allocator *allocator, cddp_store **store,
                                     cddp_error *err) CDDP_MUST_CHECK;
/* Accepts NULL. A run that was not ended stays, marked incomplete. */
CDDP_API void cddp_store_close(cddp_store *store);
/* Returns borrowed until close. */
CDDP_API const char *cddp_store_path(const cddp_store *store);

/* Where a run comes from: enough to run it again, and to know what may differ when it does not
** repeat. NULL texts are stored as "". */
typedef struct cddp_run_provenance {
    uint32_t size;
    const char *title;       /* of the scenario */
    const char *scenario;    /* its whole text */
    const char *source;      /* the path it was read from */
    const char *options;     /* what the command line added: "ddp.bucket_cap_mb=1 …" */
    const char *schedule;    /* schedule string, "" for fifo */
    const char *backend;     /* "sim" */
    const char *version;     /* of cddp */
    const char *machine;     /* "Linux x86_64" */
    const char *compiler;    /* "gcc 12.2.0" */
    const char *recorded_at; /* UTC, "2026-01-31T12:00:00Z", or "" */
    uint64_t seed;
    uint64_t plan; /* digest of the plan */
    uint32_t world_size;
    uint32_t steps;
    uint32_t level; /* cddp_trace_level */
} cddp_run_provenance;

/* How a run ended, as the columns of its row: no cddp_verdict, since runs that nobody judged end
** too (one that was merged, or recorded by a program), and readers get it before any event. */
typedef struct cddp_run_outcome {
    uint32_t size;
    uint32_t exit_code;  /* a cddp_outcome */
    const char *verdict; /* "verified", "findings", … */
    const char *reason;  /* why, when it is not verified; may be "" */
    /* the schedule taken, when known only now; NULL keeps that of run_begin */
    const char *schedule;
    uint64_t digest; /* of the trace, timeless; 0 when not computed */
    uint64_t virtual_time_ns;
} cddp_run_outcome;

/* ---- writing ---- */

/* Starts a run; *run is its number in the file, from 1. */
CDDP_API cddp_status cddp_store_run_begin(cddp_store *store, const cddp_run_provenance *provenance,
                                          int64_t *run, cddp_error *err) CDDP_MUST_CHECK;
/* Where the open run's tracers write. Returns borrowed until run_end. */
CDDP_API const cddp_trace_sink *cddp_store_sink(cddp_store *store);
/* Commits what the sink has taken so far, in the middle of an iteration. Readers see it, and the
** run goes on. */
CDDP_API cddp_status cddp_store_commit(cddp_store *store, cddp_error *err) CDDP_MUST_CHECK;
CDDP_API cddp_status cddp_store_add_finding(cddp_store *store, const cddp_finding *finding,
                                            cddp_error *err) CDDP_MUST_CHECK;
/* An invariant that the run really exercised, and how. */
CDDP_API cddp_status cddp_store_add_exercised(cddp_store *store, const char *check, const char *how,
                                              cddp_error *err) CDDP_MUST_CHECK;
/* A number that belongs to the run: "bytes_on_wire", "rebuilds", … */
CDDP_API cddp_status cddp_store_add_metric(cddp_store *store, const char *name, double value,
                                           cddp_error *err) CDDP_MUST_CHECK;
/* Findings, exercises and counts of a verdict; marks are metrics, "mark: rebuild". Its outcome and
** digest are for run_end. */
CDDP_API cddp_status cddp_store_add_verdict(cddp_store *store, const cddp_verdict *verdict,
                                            cddp_error *err) CDDP_MUST_CHECK;
/* Ends the run. The file is one tidy file again, without companions, once the store is closed. */
CDDP_API cddp_status cddp_store_run_end(cddp_store *store, const cddp_run_outcome *outcome,
                                        cddp_error *err) CDDP_MUST_CHECK;
/* Adds the events of the last run of each shard to the open run, in (time, rank, sequence) order.
** Each rank of a real backend writes its own shard. */
CDDP_API cddp_status cddp_store_merge_shards(cddp_store *store, const char *const *paths,
                                             size_t path_count, cddp_error *err) CDDP_MUST_CHECK;
/* Appends a copy of a run of another store; *copied is its number here. */
CDDP_API cddp_status cddp_store_copy_run(cddp_store *store, cddp_store *from, int64_t run,
                                         int64_t *copied, cddp_error *err) CDDP_MUST_CHECK;

/* ---- reading ---- */

typedef struct cddp_stored_run {
    uint32_t size;
    int64_t run;
    bool complete; /* run_end was reached */
    uint64_t event_count;
    uint64_t finding_count;
    cddp_run_provenance provenance;
    cddp_run_outcome outcome; /* verdict "" while incomplete */
} cddp_stored_run;

typedef cddp_status (*cddp_store_run_fn)(void *context, const cddp_stored_run *run,
                                         cddp_error *err);
typedef cddp_status (*cddp_store_finding_fn)(void *context, const cddp_finding *finding,
                                             cddp_error *err);
typedef cddp_status (*cddp_store_pair_fn)(void *context, const char *name, const char *text,
                                          cddp_error *err);
typedef cddp_status (*cddp_store_metric_fn)(void *context, const char *name, double value,
                                            cddp_error *err);

typedef enum cddp_store_order {
    CDDP_STORE_RECORDED, /* as the sink received them */
    CDDP_STORE_MERGED    /* by (time, rank, sequence) */
} cddp_store_order;

/* *run of the newest run; CDDP_E_ARG when the store has none. */
CDDP_API cddp_status cddp_store_last_run(cddp_store *store, int64_t *run,
                                         cddp_error *err) CDDP_MUST_CHECK;
/* Calls fn for one run, or for all in order when run is 0; stops at the first failure. */
CDDP_API cddp_status cddp_store_each_run(cddp_store *store, int64_t run, cddp_store_run_fn fn,
                                         void *context, cddp_error *err) CDDP_MUST_CHECK;
/* Feeds every event of a run to sink (its flush is not called). */
CDDP_API cddp_status cddp_store_each_event(cddp_store *store, int64_t run, cddp_store_order order,
                                           const cddp_trace_sink *sink,
                                           cddp_error *err) CDDP_MUST_CHECK;
CDDP_API cddp_status cddp_store_each_finding(cddp_store *store, int64_t run,
                                             cddp_store_finding_fn fn, void *context,
                                             cddp_error *err) CDDP_MUST_CHECK;
CDDP_API cddp_status cddp_store_each_exercised(cddp_store *store, int64_t run,
                                               cddp_store_pair_fn fn, void *context,
                                               cddp_error *err) CDDP_MUST_CHECK;
/* By name. "algorithm: gloo_ring" with value 1 is the order in which the backend summed, where that
** is known. */
CDDP_API cddp_status cddp_store_each_metric(cddp_store *store, int64_t run, cddp_store_metric_fn fn,
                                            void *context, cddp_error *err) CDDP_MUST_CHECK;

#ifdef __cplusplus
}
#endif
