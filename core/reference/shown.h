/* SPDX-License-Identifier: Apache-2.0 */
/* What the judge is shown, held against itself: every copy against the copy of the same bytes in
** the same moment, every number against the plan, and every moment against the rank's own values.
**
** A copy that differs from what the rank has would be judged in its place. So each look enters the
** trace as `shown` events, before the values of the rank itself, and I-SHOWN compares the two.
** What the judge sees twice, or can say beforehand, it compares here: `misshown`.
**
** Lifetime   init → open → (look, tensors, number)* → fini; the memory of the options ends it.
** Threads    the rank's.
** Errors     a difference is no error.
*/
#pragma once
#include "core/base/arena.h"
#include "core/plan/replica/replica.h"
#include "core/reference/custody_values.h"
#include "core/reference/observed.h"

struct cddp_tracer;

/* A digest as a number that a trace keeps whole. */
#define CD_SHOWN_DIGEST_BITS ((UINT64_C(1) << 52) - 1)

/* Digests of copies of one kind. */
typedef struct cd_shown_digests {
    uint64_t *items; /* (count) */
    size_t count;
    bool is_known; /* of the last look; or, of a reduction, not compared yet */
} cd_shown_digests;

typedef struct cd_shown {
    const cddp_plan *plan;
    const cddp_plan_settings *settings; /* of the rank */
    const cd_replica *replica;          /* the reference's */
    uint32_t rank;
    struct cddp_tracer *tracer;
    cd_shown_digests parameters, gradients, buffers;    /* of the last look */
    cd_shown_digests latest_parameters, latest_buffers; /* of the last look that showed them */
    cd_shown_digests reduced_gradients, reduced_buffers;
    /* not those of the last look: an evaluation received them, and the next forward begins with
    ** them */
    cd_shown_digests evaluated_buffers;
    cd_shown_digests left_buffers; /* those of the last look */
    bool *is_ignored;              /* (buffer_count) no broadcast brings it */
    cd_kept flat;                  /* what a broadcast would send */
    cd_shown_digests prepared;     /* gradients as the last look before an update showed them */
    /* The place of the rank, as the plan has it. */
    uint32_t begun;  /* steps, with those that the rank had no inputs for */
    uint32_t epochs; /* that ended with a join */
    uint32_t micro_step, forwards_left;
    size_t exchanges; /* of statistics in this micro-step */
    bool has_micro;   /* a forward of this step began */
    bool has_ended;   /* what follows that micro-step's backward was seen */
    bool was_reduced, was_updated, was_evaluated;
    uint64_t arrived; /* digest of the gradients of the backwards since the last reduction */
    int64_t arrived_count;
} cd_shown;

typedef struct cd_shown_options {
    const cddp_plan *plan;
    const cddp_plan_settings *settings;
    const cd_replica *replica;
    uint32_t rank;
    struct cddp_tracer *tracer; /* may be NULL: then nothing is compared */
    cd_arena *memory;
} cd_shown_options;
cddp_status cd_shown_init(cd_shown *shown, const cd_shown_options *options,
                          cddp_error *err) CDDP_MUST_CHECK;
void cd_shown_fini(cd_shown *shown); /* accepts a zeroed one */

/* The place at which the rank is, found by the plan from the order of moments. */
typedef struct cd_shown_place {
    uint32_t step, micro_step;
    bool accumulates;
} cd_shown_place;
/* A look: finds where the rank is, compares what was said of that, and emits what was shown. */
cddp_status cd_shown_look(cd_shown *shown, const cd_observed_look *observed, cd_shown_place *place,
                          cddp_error *err) CDDP_MUST_CHECK;
uint32_t cd_shown_get_step(const cd_shown *shown);
/* The micro-step that closes the reduction which has just ended. */
uint32_t cd_shown_get_closing(const cd_shown *shown);

/* field: of observed.def. */
void cd_shown_number(const cd_shown *shown, const char *field, int64_t expected, int64_t actual);
/* The same bytes as in the last look, if that showed them. */
cddp_status cd_shown_parameters(cd_shown *shown, const char *field,
                                const cd_observed_tensors *copies, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_shown_gradients(cd_shown *shown, const char *field,
                               const cd_observed_gradients *copies,
                               cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_shown_buffers(cd_shown *shown, const char *field, const cd_observed_tensors *copies,
                             cddp_error *err) CDDP_MUST_CHECK;
/* An evaluation before the micro-step that comes next; *place is the plan's. False: it has none
** there. */
cddp_status cd_shown_evaluated(cd_shown *shown, const cd_observed_evaluated *observed,
                               cd_shown_place *place, bool *is_planned,
                               cddp_error *err) CDDP_MUST_CHECK;
/* A gradient that a backward accumulated; variable: of the wrapper, or -1. */
cddp_status cd_shown_accumulated(cd_shown *shown, int32_t variable, const cddp_grad *gradient,
                                 cddp_error *err) CDDP_MUST_CHECK;
/* A reduction: the next look has the same bytes. */
cddp_status cd_shown_reduced(cd_shown *shown, const cd_observed_reduced *observed,
                             cddp_error *err) CDDP_MUST_CHECK;
/* The gradients that were consumed: those before the update. */
cddp_status cd_shown_consumed(cd_shown *shown, const cd_observed_gradients *copies,
                              cddp_error *err) CDDP_MUST_CHECK;
/* State of optimizers at a moment whose values follow. */
cddp_status cd_shown_optimized(cd_shown *shown, int64_t moment, const cd_observed_optimized *copies,
                               cddp_error *err) CDDP_MUST_CHECK;
/* A bucket that leaves for the hook, or returns. */
typedef struct cd_shown_bucket_pass {
    uint32_t bucket, generation;
    bool is_last, is_shadow, left;
    const cd_observed_places *places;
} cd_shown_bucket_pass;
void cd_shown_bucket_passes(const cd_shown *shown, const cd_shown_bucket_pass *pass);
/* Buckets, whose owners follow from their parameters. variables: (parameter_count) */
void cd_shown_assigned(const cd_shown *shown, const cd_observed_buckets *buckets,
                       const int32_t *variables, size_t parameter_count);
