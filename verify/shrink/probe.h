/* SPDX-License-Identifier: Apache-2.0 */
/* One run of a smaller scenario: whether it fails for the same reason, and what was decided in it.
**
** Note [The same reason] Two runs fail for the same reason when all of these agree:
**
**   * the invariant of the first finding;
**   * its sentence, without numbers, names and what stands in parentheses;
**   * whether it names a bucket, and whether it names a parameter;
**   * whether every rank ended;
**   * where ranks wait: in which kinds of operations, for peers that ended in which ways
**     (cd_hang_shape), and the sentence of the error with which the cause of a hang ended;
**   * of a hang, the ranks that wait, those at its root, and those that the first finding blames.
**     Where ranks were removed, the others are renamed and the rest is as it was (cd_cast_is_same).
**     Of two ranks that disagree no majority knows better, so both may be blamed for one.
**
** A run without findings whose ranks failed has the sentence of the first rank that did. So a
** smaller scenario may blame another bucket or parameter, since their numbers change. It may not
** replace one mistake by another, nor turn round who waits for whom.
**
** Lifetime   a probe owns what it learnt until fini.
** Errors     a scenario that cannot be run is a probe that did not fail; memory that runs out is an
**            error.
*/
#pragma once
#include "cddp/check.h"
#include "cddp/registry.h"
#include "cddp/run.h"
#include "core/base/prng.h"
#include "core/trace/sink.h"
#include "sim/chooser.h"
#include "sim/schedule.h"

#define CD_CAST_RANKS 1024

/* Who plays a part in a hang, a bit per rank; ranks beyond CD_CAST_RANKS count as one. */
typedef struct cd_cast {
    uint64_t ranks; /* of the world; 0: it is no hang */
    uint64_t blamed[CD_CAST_RANKS / 64], waits[CD_CAST_RANKS / 64], roots[CD_CAST_RANKS / 64];
} cd_cast;

/* `after` is a run without `count` ranks of `before`, from `first` on. */
bool cd_cast_is_same(const cd_cast *before, uint64_t first, uint64_t count, const cd_cast *after);

typedef struct cd_reason {
    char check[32];     /* "" when ranks failed without a finding */
    char sentence[256]; /* without numbers and names */
    char why[256];      /* likewise of the error of the first rank at the root of a hang */
    uint64_t hang;      /* its shape; 0: nobody waits */
    bool has_bucket, has_parameter, finished;
    cd_cast cast;
} cd_reason;

/* Without the cast. */
bool cd_reason_is_same(const cd_reason *a, const cd_reason *b);
/* False when the run did not fail. */
bool cd_reason_take(cd_reason *reason, const cddp_verdict *verdict);

/* The decision at one choice point. */
typedef struct cd_decision {
    uint64_t number; /* of the choice point, from 0 */
    /* of a gradient: in which backward of the rank; else among the choices of this kind and rank */
    uint64_t nth;
    /* semantic: of the option taken, and of the one that fifo would have taken */
    uint64_t id, fifo_id;
    uint32_t kind, rank, value, options;
} cd_decision;

typedef struct cd_decision_list {
    cd_decision *items; /* (count) */
    size_t count, capacity;
} cd_decision_list;

/* A gradient that became ready on a rank. */
typedef struct cd_ready {
    uint32_t rank;
    uint64_t id; /* position of the parameter in the module */
} cd_ready;

/* How a probe decides. */
typedef struct cd_probe_policy {
    const char *schedule; /* exactly this choice string; else */
    /* (wish_count) these, each at the same choice of the same rank, where its option exists … */
    const cd_decision *wishes;
    size_t wish_count;
    const cd_ready *orders; /* (order_count) gradients become ready in this order, rank by rank … */
    size_t order_count;
    const cd_decision *prefix; /* … or these answers (prefix_count) at the first choice points … */
    size_t prefix_count;
    bool random; /* … and then at random from `seed`, instead of fifo */
    uint64_t seed;
} cd_probe_policy;

typedef struct cd_probe_options {
    const cddp_registry *registry;
    const cddp_plan *plan;
    cd_probe_policy policy;
    cd_memory_sink *record;    /* takes every event; NULL: none */
    bool (*interrupted)(void); /* true: the run ends at the end of a step; NULL: never */
    uint64_t stuck_ns; /* how long a call of a plugin may take; 0: see verify/worlds/compose.h */
} cd_probe_options;

typedef struct cd_probe {
    bool failed; /* and then: */
    cd_reason reason;
    /* the first; .check is NULL when there is none. Its check's name is borrowed from the
    ** registry */
    cddp_finding finding;
    char failure[512]; /* the finding's title, or the error of the first rank that failed */
    char hang[400];    /* who waits for whom, in a sentence; "" */
    char refusal[256]; /* why it could not be run; "" */
    bool refused;
    bool interrupted;
    cd_decision_list decisions; /* every choice of the run, fifo or not */
    size_t deviation_count;
    uint64_t trace_digest, event_count;
} cd_probe;

void cd_probe_fini(cd_probe *trial); /* accepts a zeroed one */
cddp_status cd_probe_run(const cd_probe_options *options, cd_probe *trial,
                         cddp_error *err) CDDP_MUST_CHECK;
/* The choice string of the decisions; false when it does not fit. */
bool cd_decisions_print(const cd_decision *decisions, size_t count, char *text, size_t text_bytes);
