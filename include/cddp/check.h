/* SPDX-License-Identifier: Apache-2.0 */
/* The check port: an invariant, judged from events alone.
**
** A check sees the merged trace of all ranks in (time, rank, sequence) order, live or reloaded from
** a store, and reports findings. It never looks into the reducer, a backend or the simulator.
**
** Lifetime   the state made by begin lives until end. Findings are copied by report.
** Threads    one thread.
** Errors     a check that cannot judge says so by not exercising its invariant; it does not guess.
*/
#pragma once
#include "cddp/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CDDP_CHECK_ABI 1u
#define CDDP_FINDING_EVENTS_MAX 8

typedef struct cddp_finding {
    uint32_t size;
    const char *check; /* "I-ORDER" */
    uint32_t step;
    uint32_t micro_step;
    /* (rank_count) every rank that it concerns, in ascending order; NULL in a report: `rank` alone.
    ** Borrowed until report returns; in a verdict or a store, from whoever shows the finding. */
    const uint32_t *ranks;
    size_t rank_count;
    int32_t rank;       /* the first rank to blame, -1 when no single one is */
    int32_t peer;       /* the rank it disagrees with, -1 */
    int32_t bucket;     /* -1 */
    int32_t param;      /* -1 */
    char parameter[96]; /* its name, "" when none */
    char title[160];    /* one line: what is wrong, with the culprit */
    char expected[160]; /* one side, in words */
    char actual[160];   /* the other side */
    char advice[256];   /* what to look at or try; may be empty */
    /* follows from the gradients of its step: told after what is said about them, before
    ** replicas */
    bool is_consequence;
    uint32_t event_count;
    struct {
        uint32_t rank;
        uint64_t sequence;
    } events[CDDP_FINDING_EVENTS_MAX]; /* the events it rests on */
} cddp_finding;

typedef struct cddp_check_context {
    uint32_t size;
    const cddp_allocator *allocator;
    void *reporter;
    /* does: copies a finding into the verdict. */
    void (*report)(void *reporter, const cddp_finding *finding);
    /* does: notes that the invariant was really exercised, with a reason a person understands. */
    void (*exercised)(void *reporter, const char *check, const char *how);
} cddp_check_context;

typedef struct cddp_check {
    uint32_t size;     /* sizeof(cddp_check) known to the writer */
    uint32_t abi;      /* CDDP_CHECK_ABI */
    const char *name;  /* "I-ORDER" */
    const char *title; /* one line */
    const char *rule;  /* the statement, as `explain` prints it */
    /* (required) */
    cddp_status (*begin)(const cddp_check_context *context, void **self, cddp_error *err);
    /* (required) */
    void (*event)(void *self, const cddp_event *event);
    /* (required) reports what only the end shows, then frees; accepts NULL */
    void (*end)(void *self);
    /* (optional: default all) the event kinds it wants to see; the judge shows it no others. */
    const uint16_t *kinds; /* (kind_count) */
    size_t kind_count;
} cddp_check;

#ifdef __cplusplus
}
#endif
