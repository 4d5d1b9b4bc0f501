/* SPDX-License-Identifier: Apache-2.0 */
/* Which samples a rank consumes when, read from the plan by the reference's own code.
**
** The order of an epoch is repeated until it fills every rank equally (data.padding = "wrap"), or
** cut (drop). It is then assigned one by one: rank r has positions r, r + W, r + 2W, … Where there
** is no dataset, every sample of the run is new. With world.batch a step has as many samples as
** that, one per micro-step.
**
** Separate from the trainer's sampler on purpose: the reference must not use the code that it
** judges. The two draw from the same stream, because the plan says which.
**
** Lifetime   init → (find | fill)* → fini. Borrows the plan.
** Threads    one thread.
** Errors     memory.
*/
#pragma once
#include "cddp/alloc.h"
#include "core/plan/micro.h"

typedef struct cd_sample {
    int64_t id;
    uint64_t epoch;
    double weight; /* in the declared loss */
} cd_sample;

/* Where a rank stands in its own samples. */
typedef struct cd_sample_walk {
    uint64_t consumed;         /* before the place below */
    uint32_t step, micro_step; /* the next place */
} cd_sample_walk;

typedef struct cd_samples {
    const cddp_plan *plan;
    const cddp_allocator *allocator;
    cd_sample_walk *walks; /* (world size), or NULL */
    uint32_t *order;       /* (order_capacity) of one epoch, when shuffled */
    size_t order_capacity;
    uint64_t order_size, order_epoch; /* size 0: no order yet */
    /* of the micro-batch last filled */
    int64_t *ids;
    uint32_t *epochs;
    double *weights;
    size_t id_capacity, epoch_capacity, weight_capacity;
} cd_samples;

void cd_samples_init(cd_samples *samples, const cddp_plan *plan, const cddp_allocator *allocator);
void cd_samples_fini(cd_samples *samples); /* accepts a zeroed one */

/* The i-th sample of a micro-step of any rank. settings: of that rank. */
cddp_status cd_samples_find(cd_samples *samples, const cddp_plan_settings *settings,
                            cd_micro_place place, uint32_t i, cd_sample *sample,
                            cddp_error *err) CDDP_MUST_CHECK;
/* All of them; the arrays are borrowed until the next fill. */
cddp_status cd_samples_fill(cd_samples *samples, const cddp_plan_settings *settings,
                            const cd_micro *micro, cd_micro_batch *batch,
                            cddp_error *err) CDDP_MUST_CHECK;
/* How many samples a micro-step consumes, over all its forwards. */
uint32_t cd_samples_count(const cd_micro *micro);
