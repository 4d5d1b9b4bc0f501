/* SPDX-License-Identifier: Apache-2.0 */
/* The judge's laws over a trial: what core/oracle/hook_law finds from what entered a bucket, what
** came back, and the options, held against every rank.
**
** The hook takes no part. A hook of this build is judged by its name; one of a plugin by the law
** that its flags name (CDDP_HOOK_EXACT, ROUNDED_ONCE, CASTS_FIRST, NO_COMM, LAW_…). Any other is
** not judged. Draws of random numbers are judged as I-SEED does.
**
** Lifetime   create → (open, (launch → deliver → end_step) …, per rank) … → destroy. Borrows the
**            trial and the result, into which it writes.
** Threads    all ranks of a trial run on one thread.
** Errors     memory. A broken law is text of the result.
*/
#pragma once
#include "cddp/trace.h"
#include "verify/conformance/hook_trial.h"

typedef struct cd_judged cd_judged;

/* next: where the events go that this does not judge. */
cddp_status cd_judged_create(const cd_trial *trial, cd_trial_result *result,
                             const cddp_trace_sink *next, cd_judged **judged, cddp_error *err);
void cd_judged_destroy(cd_judged *judged); /* accepts NULL */
/* For the tracers of all ranks, and of their groups. */
const cddp_trace_sink *cd_judged_sink(cd_judged *judged);

/* A rank's part begins. forms: (count) tensors with shape and dtype of the parameters. */
typedef struct cd_judged_rank {
    const cddp_rank *rank;
    cddp_tracer *tracer;
    const cddp_tensor *forms; /* (form_count) */
    size_t form_count;
} cd_judged_rank;
cddp_status cd_judged_open(cd_judged *judged, const cd_judged_rank *rank, cddp_error *err);
/* A bucket as it is before the hook sees it, and what the hook made of it. */
cddp_status cd_judged_launch(cd_judged *judged, uint32_t rank, const cddp_grad_bucket *bucket,
                             cddp_error *err);
cddp_status cd_judged_deliver(cd_judged *judged, uint32_t rank, const cddp_grad_bucket *bucket,
                              const cddp_tensor *result, cddp_error *err);
/* All buckets of a step were delivered; bytes: that the rank gave to collectives in it. */
void cd_judged_end_step(cd_judged *judged, uint32_t rank, uint32_t step, uint64_t bytes);
/* While a rank's state is replaced it draws again what it drew before: that is not judged. */
void cd_judged_replaces(cd_judged *judged, uint32_t rank, bool is_replacing);
