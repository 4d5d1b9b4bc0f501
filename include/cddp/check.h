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

/* In a title it stands for the ranks of the finding: "rank 1", "ranks 0 and 2", "all ranks". The
** same title at the same place, from several ranks, becomes one finding about all of them. */
#define CDDP_FINDING_WHO "{who}"

typedef struct cddp_finding {
    uint32_t size;
    const char *check; /* "I-ORDER" */
    uint32_t step;
    uint32_t micro_step;
    /* (rank_count) every rank that it concerns, in ascending order; NULL in a report: `rank` alone.
    ** Borrowed until report returns; in a verdict or a store, from whoever shows the finding. */
    const uint32_t *ranks;
    int32_t rank;       /* the first rank to blame, -1 when no single one is */
    int32_t peer;       /* the rank it disagrees with, -1 */
    int32_t bucket;     /* -1 */
    int32_t param;      /* -1 */
    char parameter[96]; /* its name, "" when none; a long one is cut, and ends in dots */
    char title[160];    /* one line: what is wrong, with the culprit */
    char expected[160]; /* one side, in words */
    char actual[160];   /* the other side */
    char advice[256];   /* what to look at or try; may be empty */
    /* follows from the gradients of its step: reported after what is said about them, before
    ** replicas */
    bool is_consequence;
    uint32_t event_count;
    struct {
        uint32_t rank;
        uint64_t sequence;
    } events[CDDP_FINDING_EVENTS_MAX]; /* the events it rests on */
    size_t rank_count;
    /* the whole name where `parameter` has no room for it, else NULL; borrowed as ranks are */
    const char *name;
    /* of what the rank itself did or left out, before any collective: reported before what its
    ** peers find in their order */
    bool is_cause;
    /* of several in a rank, the name of the wrapper that it is about; else NULL. As ranks are */
    const char *wrapper;
} cddp_finding;

/* At the end of a run: a rank that waits, or that gave up waiting, and for whom. */
typedef struct cddp_wait {
    uint32_t size;
    uint32_t rank, step;
    /* CDDP_OK: it waited until the run ended; else how its wait ended */
    cddp_status status;
    int64_t group, sequence, op; /* -1: outside a collective */
    int64_t bucket;              /* that the operation carries, or -1 */
    const char *name;            /* of the group; "" outside a collective. Borrowed as peers are */
    /* (peer_count) who did not come, in ascending order; none: that is not known. Borrowed until
    ** the call returns; in a verdict, the verdict's */
    const uint32_t *peers;
    size_t peer_count;
    bool is_inside; /* all came, and peers are who stopped there */
    /* of one peer, which came after this rank had given up: so long after that; else 0 */
    uint64_t late_ns;
} cddp_wait;

/* ---- facts: what the trace has said of the run itself, up to the event that a check is shown
** ---- */

typedef enum cddp_named {
    CDDP_NAMED_VARIABLE, /* a parameter, by its variable index */
    CDDP_NAMED_ORDINAL,  /* a parameter, by its position among all */
    CDDP_NAMED_BUFFER
} cddp_named;

/* Which of what ranks hold must be alike. */
typedef enum cddp_agreed {
    CDDP_AGREED_GRADIENTS,
    CDDP_AGREED_PARAMETERS,
    CDDP_AGREED_STATE, /* of the optimizers */
    CDDP_AGREED_COUNT
} cddp_agreed;

typedef struct cddp_fact_group {
    const char *name;
    int64_t members;
    int64_t order; /* cddp_order of its backend */
} cddp_fact_group;

typedef struct cddp_fact_slot {
    int64_t bucket, slot;
} cddp_fact_slot;

/* Where a parameter lies in the newest layout of a rank. */
typedef struct cddp_fact_place {
    int64_t bucket, slot, offset, numel, generation, dtype;
} cddp_fact_place;

/* The value of a setting; which member counts follows from its key (cddp/keys.def). */
typedef struct cddp_fact_setting {
    /* of a flag, a choice (-1: a word that this version does not know) or a whole number */
    int64_t value;
    double real;      /* of a number */
    const char *text; /* of a text or an item of a list of texts, whole; NULL when it is empty */
    int64_t items;    /* of a list: how many; else 1 */
} cddp_fact_setting;

/* At which stage the average of a parameter's gradient went wrong. */
typedef enum cddp_stage {
    CDDP_STAGE_UNKNOWN,  /* some rank did not show all stages */
    CDDP_STAGE_LOCAL,    /* a rank's own gradient was wrong before it was packed */
    CDDP_STAGE_PACKED,   /* a rank packed something else than its gradient, divided as declared */
    CDDP_STAGE_LAUNCHED, /* a rank's bucket changed between packing and launch */
    CDDP_STAGE_STARTED,  /* ranks started the step from different values */
    CDDP_STAGE_REDUCED,  /* what entered is right on all these ranks, and the result is not */
    CDDP_STAGE_WRITTEN,  /* a rank's gradient is not the slice of what its bucket delivered */
    CDDP_STAGE_CHANGED,  /* a rank's gradient changed after it was written back */
    CDDP_STAGE_JOINED,   /* a joined rank contributed something else than zeros */
    CDDP_STAGE_SETTLED   /* a rank's result changed between its arrival and its write-back */
} cddp_stage;

/* What the oracle said of a tensor of a rank. */
typedef enum cddp_judgement {
    CDDP_JUDGED_UNKNOWN,
    CDDP_JUDGED_RIGHT,
    CDDP_JUDGED_WRONG
} cddp_judgement;

typedef struct cddp_fact_judged {
    uint32_t rank, step;
    int64_t link, param;
} cddp_fact_judged;

typedef struct cddp_fact_average {
    uint32_t step, micro_step;
    int64_t param;
} cddp_fact_average;

typedef struct cddp_fact_stage {
    cddp_stage stage;
    const uint32_t *ranks; /* (rank_count) where it went wrong; borrowed until end */
    size_t rank_count;
    int64_t bucket;    /* in which the parameter lay then; -1: unknown */
    bool is_stale;     /* packed: what the rank had packed the time before */
    bool has_majority; /* started: ranks are those that most others differ from */
    bool is_exchanged; /* started: and ranks exchange statistics of what they compute */
} cddp_fact_stage;

/* Texts are borrowed until end. What nobody reported is unknown: NULL, false, or as said. */
typedef struct cddp_facts {
    uint32_t size; /* sizeof(cddp_facts) known to the judge */
    void *self;
    const char *(*name)(void *self, cddp_named what, int64_t id);
    bool (*group)(void *self, int64_t group, cddp_fact_group *found);
    bool (*place)(void *self, uint32_t rank, int64_t param, cddp_fact_place *found);
    /* does: the newest layout of a rank; -1 before the first. */
    int64_t (*generation)(void *self, uint32_t rank);
    /* does: the parameter in a slot of that layout; -1 past the last. */
    int64_t (*member)(void *self, uint32_t rank, const cddp_fact_slot *slot);
    /* does: a setting by its path ("ddp.static_graph"), of a list the item with this number; item 0
    ** of an empty list is found, with items 0. */
    bool (*setting)(void *self, uint32_t rank, const char *path, int64_t item,
                    cddp_fact_setting *found);
    /* does: the number of the block of ranks to which a rank belongs now; only within a block must
    ** they agree. 0 without a model averager. ordinal: of a parameter, or -1. */
    int64_t (*block)(void *self, uint32_t rank, cddp_agreed what, int64_t ordinal);
    /* does: where a wrong average came from; false when the trace says nothing of it. */
    bool (*stage)(void *self, const cddp_fact_average *average, cddp_fact_stage *found);
    /* does: what the oracle said; right only where it judges this link of the rank at all. */
    cddp_judgement (*judged)(void *self, const cddp_fact_judged *of);
} cddp_facts;

typedef struct cddp_check_context {
    uint32_t size;
    const cddp_allocator *allocator;
    void *reporter;
    /* does: copies a finding into the verdict. */
    void (*report)(void *reporter, const cddp_finding *finding);
    /* does: notes that the invariant was really exercised, with a reason a person understands. */
    void (*exercised)(void *reporter, const char *check, const char *how);
    const cddp_facts *facts; /* borrowed until end; learnt whatever kinds the check names */
    /* does: copies a wait into the verdict, at the end of the run. */
    void (*wait)(void *reporter, const cddp_wait *wait);
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
