/* SPDX-License-Identifier: Apache-2.0 */
/* The chain of custody, as the live judge sees it: where the plan changes a value between two
** moments, the digest that must come out, as `expected` events. I-CHAIN holds the rank's `value`
** events against them.
**
** Its arithmetic is its own: it calls nothing that a run calls.
**
** Lifetime   create → start → (look, reduced, clips, updated)* → destroy. Borrows what the options
**            name.
** Threads    the rank's.
** Errors     a value that differs is no error.
*/
#pragma once
#include "core/reference/observed.h"
#include "core/reference/reference.h"

typedef struct cd_custody cd_custody;

typedef struct cd_custody_options {
    const cddp_plan *plan;
    const cddp_plan_settings *settings; /* of the rank */
    uint32_t rank;
    const cd_reference *reference; /* what is declared of the model, and the optimizers' results */
    const cd_oracle *oracle;       /* which part of a sharded optimizer is whose */
    const int32_t *variables;      /* (parameter_count) of the wrapper; copied */
    struct cddp_tracer *tracer;    /* may be NULL: then nothing is derived */
    const cddp_allocator *allocator;
} cd_custody_options;
cddp_status cd_custody_create(const cd_custody_options *options, cd_custody **custody,
                              cddp_error *err) CDDP_MUST_CHECK;
void cd_custody_destroy(cd_custody *custody); /* accepts NULL */

/* What the model and its optimizers start from: before the first step. */
cddp_status cd_custody_start(cd_custody *custody, cddp_error *err) CDDP_MUST_CHECK;

/* What the rank shows at a moment; NULL: what it does not show there. */
typedef struct cd_custody_moment {
    int64_t moment; /* cddp_event_enum_moment */
    uint32_t step, micro_step;
    bool accumulates;              /* after a backward that reduced nothing */
    const cddp_tensor *parameters; /* (parameter_count) */
    const cddp_grad *gradients;    /* (parameter_count) */
    const cddp_tensor *buffers;    /* (buffer_count) */
} cd_custody_moment;
cddp_status cd_custody_look(cd_custody *custody, const cd_custody_moment *now,
                            cddp_error *err) CDDP_MUST_CHECK;

/* The oracle has judged these gradients, and these parameters after an update. */
cddp_status cd_custody_reduced(cd_custody *custody, const cddp_grad *gradients,
                               cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_custody_updated(cd_custody *custody, const cddp_tensor *parameters,
                               cddp_error *err) CDDP_MUST_CHECK;

/* A sharded model was loaded: what this rank has of the optimizers' state now. */
cddp_status cd_custody_resumed(cd_custody *custody, cddp_error *err) CDDP_MUST_CHECK;
/* A gradient came: an average leaves out what has none. */
void cd_custody_accumulated(cd_custody *custody, size_t parameter, cddp_grad_kind kind);
/* A reduction between an update and an average may be that of the averager. */
cddp_status cd_custody_summed(cd_custody *custody, const cd_observed_summed *summed,
                              cddp_error *err) CDDP_MUST_CHECK;

/* Gradients as the judge is shown them before they are clipped. Where the rank goes on as the plan
** says, they are what was judged, unscaled if the plan unscales first; else `misshown`. */
cddp_status cd_custody_clips(cd_custody *custody, const cd_observed_gradients *shown,
                             cddp_error *err) CDDP_MUST_CHECK;
/* The norm by which the rank has to clip, and the one that it says it has. */
void cd_custody_note_norm(cd_custody *custody, double norm, double seen);
