/* SPDX-License-Identifier: Apache-2.0 */
/* Judgements that are not made twice: what the referee of a rank said of what it observed, for runs
** of one plan that observe the same.
**
** Note [Recalled judgements] The referee of a rank says what it says by the plan, the rank, and the
** structs of observed.def that it was given, in their order. So every judgement has a key: the
** digest of what it is given now, and the digest of all that it was given before, contents of
** tensors included. Behind an equal key the referee says the same. It is then not asked: the events
** that it emitted are emitted again, and every check sees them.
**
** Gradients of different parameters that arrive in one backward are folded as a set. The referee
** keeps them by parameter, and judges them when the reduction has ended. Those of one parameter are
** folded in their order.
**
** A run judges, repeats or looks. Only one that judges has referees. One that repeats says so at
** the first key that is not known, and whoever explores runs the same schedule again, judging. What
** is kept comes from runs without any finding alone: a judgement that led to one is made anew every
** time. A run that looks takes the digests and says nothing: whoever explores knows the digest of
** the whole run, or judges it.
**
** Lifetime   create → (begin → a run → has_missed, keep)* → destroy. It lies outside the memory of
**            runs, which may be put back.
** Threads    of one thread, as the ranks of its runs.
*/
#pragma once
#include "core/base/arena.h"
#include "core/reference/referee.h"
#include "core/trace/tracer.h"

typedef struct cd_recall cd_recall;

cddp_status cd_recall_create(cd_recall **recall, cddp_error *err) CDDP_MUST_CHECK;
void cd_recall_destroy(cd_recall *recall); /* accepts NULL */

typedef enum cd_recall_manner {
    CD_RECALL_JUDGES,  /* referees are asked, and what they say is noted */
    CD_RECALL_REPEATS, /* what was noted is said again */
    CD_RECALL_LOOKS    /* nothing is said */
} cd_recall_manner;

/* A run begins, or goes on from a moment that was kept. */
void cd_recall_begin(cd_recall *recall, cd_recall_manner manner);
bool cd_recall_looks(const cd_recall *recall); /* the run that began says nothing */
/* Something was observed that no run before it judged. */
bool cd_recall_has_missed(const cd_recall *recall);
/* Of all that the ranks observed in the run that has ended. */
uint64_t cd_recall_get_digest(const cd_recall *recall);
/* The events that are emitted now follow from what was observed: they are a referee's. */
bool cd_recall_is_speaking(const cd_recall *recall);
/* The run that judged ended without a finding: what was said in it is kept. */
void cd_recall_keep(cd_recall *recall);
/* Not all that was said in the run that was kept last had been kept before: one that repeats would
** have missed it. */
bool cd_recall_has_news(const cd_recall *recall);

/* ---- for the intake of a rank ---- */

typedef struct cd_recall_read {
    const cddp_tensor *tensor; /* borrowed until the next look */
    uint64_t digest;
} cd_recall_read;

/* Digests that a run which looks took of the tensors of its latest look, for the trace: it shows
** the same tensors at once, before anything can write to them. Where the run is judged the trace
** takes its own: there the judge has copies. */
typedef struct cd_recall_reads {
    cd_tracer_reader reader;
    cd_recall_read *items; /* (capacity) */
    size_t capacity, count, next;
} cd_recall_reads;

/* It may not move after this. items: of the memory */
cddp_status cd_recall_reads_init(cd_recall_reads *reads, cd_arena *memory, size_t capacity,
                                 cddp_error *err) CDDP_MUST_CHECK;

/* In memory of the run. */
typedef struct cd_recall_rank {
    cd_recall *recall;   /* NULL: every judgement is made */
    cd_referee *referee; /* NULL: the run does not judge */
    struct cddp_tracer *tracer;
    uint32_t rank;
    uint64_t before, arrived; /* all that was observed; what arrived since */
    uint64_t *arrivals;       /* (parameter_count) of this backward, in their order */
    size_t parameter_count;
    size_t parameter; /* that is arriving */
    cd_recall_reads reads;
} cd_recall_rank;

bool cd_recall_judges(const cd_recall *recall); /* NULL: true */
/* The rank observed all that it will. */
void cd_recall_end(cd_recall_rank *rank);

/* A function per row of observed.def. */
#define CD_OBSERVED(name, doc, fields)                                                       \
    cddp_status cd_recalled_##name(cd_recall_rank *rank, const cd_observed_##name *observed, \
                                   cddp_error *err) CDDP_MUST_CHECK;
#include "core/reference/observed.def"
