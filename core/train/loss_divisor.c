/* SPDX-License-Identifier: Apache-2.0 */
/* The divisor of a loss: counts of one forward, or of all ranks and micro-steps of the step.
**
** Note [What a sample weighs] DDP averages gradients over ranks and adds them up over micro-steps.
** A loss that each forward divides by its own number of tokens therefore weighs a token of a short
** micro-batch more than one of a long one (ZOO-48, ZOO-50). The declared objective divides by the
** number of an average forward, which is the same number everywhere; where all forwards have
** equally many, both are one. A real program learns it by an all-reduce of counts; here it is a
** function of the plan.
*/
#include "core/train/loss_divisor.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

typedef enum normalisation {
    BY_NOTHING,
    BY_SAMPLES,
    BY_TOKENS,
    BY_AVERAGE_SAMPLES,
    BY_AVERAGE_TOKENS
} normalisation;

/* output: NULL: of those without a table. */
static normalisation normalisation_of(const cd_loss_divisor *d, const cddp_plan_output *output)
{
    static const normalisation losses[] = {BY_NOTHING, BY_SAMPLES,         BY_NOTHING,
                                           BY_TOKENS,  BY_AVERAGE_SAMPLES, BY_AVERAGE_TOKENS};
    const cddp_plan_train *train = &d->replica->settings.train;
    if (output != NULL && output->loss != CDDP_OUTPUT_LOSS_COMMON) return losses[output->loss];
    return losses[train->loss];
}

/* Samples, tokens and forwards of one rank in one step, added. */
static cddp_status count_rank(cd_loss_divisor *d, uint32_t rank, uint32_t step, int64_t totals[3],
                              cddp_error *err)
{
    const cd_replica *r = d->replica;
    cddp_plan_settings settings;
    CD_TRY(cddp_plan_rank_settings(r->plan, rank, &settings, err));
    cd_sampler *sampler;
    CD_TRY(cd_samplers_find(&d->samplers, rank, &sampler, err));
    for (uint32_t m = 0; m < settings.train.micro_steps; m++) {
        cd_micro micro;
        cd_micro_batch batch;
        cd_micro_resolve(r->plan, &settings, (cd_micro_place){rank, step, m}, &micro);
        totals[2] += micro.forwards;
        if (cd_micro_contributes(&micro)) {
            CD_TRY(cd_sampler_get(sampler, &micro, &batch, err));
            totals[0] += batch.count;
            totals[1] += cd_replica_token_count(r, batch.ids, batch.count);
        }
    }
    return CDDP_OK;
}

static cddp_status count_step(cd_loss_divisor *d, uint32_t step, cddp_error *err)
{
    const size_t world = (size_t)d->replica->plan->world.size;
    int64_t totals[3] = {0, 0, 0};
    if (d->step == step + 1) return CDDP_OK;
    for (uint32_t rank = 0; rank < world; rank++) CD_TRY(count_rank(d, rank, step, totals, err));
    d->samples_per_forward = (double)totals[0] / (double)totals[2];
    d->tokens_per_forward = (double)totals[1] / (double)totals[2];
    d->step = step + 1;
    return CDDP_OK;
}

void cd_loss_divisor_init(cd_loss_divisor *d, const cd_replica *replica)
{
    *d = (cd_loss_divisor){.replica = replica};
    cd_samplers_init(&d->samplers, replica->plan, replica->allocator);
}

void cd_loss_divisor_fini(cd_loss_divisor *d)
{
    if (d->replica != NULL) {
        cd_samplers_fini(&d->samplers);
        d->replica = NULL;
    }
}

static cddp_status find(cd_loss_divisor *d, const cd_pass *pass, normalisation by, double *found,
                        cddp_error *err)
{
    const cd_micro *micro = pass->micro;
    const cd_micro_batch *samples = pass->samples;
    const uint32_t first = pass->first;
    if (by == BY_AVERAGE_SAMPLES || by == BY_AVERAGE_TOKENS)
        CD_TRY(count_step(d, micro->place.step, err));
    switch (by) {
    case BY_NOTHING:
        *found = 0.0;
        break;
    case BY_SAMPLES:
        *found = (double)micro->samples;
        break;
    case BY_TOKENS: {
        const uint32_t begin = first / micro->samples * micro->samples; /* of the forward */
        *found = (double)cd_replica_token_count(d->replica, samples->ids + begin, micro->samples);
        break;
    }
    case BY_AVERAGE_SAMPLES:
        *found = d->samples_per_forward;
        break;
    case BY_AVERAGE_TOKENS:
        *found = d->tokens_per_forward;
        break;
    }
    return CDDP_OK;
}

cddp_status cd_loss_divisor_find(cd_loss_divisor *d, cd_pass *pass, cddp_error *err)
{
    const cddp_plan *plan = d->replica->plan;
    const cd_model *model = d->replica->model;
    CD_TRY(find(d, pass, normalisation_of(d, NULL), &pass->divisor, err));
    pass->has_terms = plan->output_count > 0;
    for (uint32_t i = 0; pass->has_terms && i < model->output_count; i++)
        pass->terms[i] = (cd_loss_term){pass->divisor, 1.0};
    for (size_t k = 0; k < plan->output_count; k++) {
        const cddp_plan_output *output = &plan->outputs[k];
        uint32_t i = 0;
        CD_TRY(cd_replica_find_output(d->replica, output->name, &i, err));
        CD_TRY(find(d, pass, normalisation_of(d, output), &pass->terms[i].divisor, err));
        pass->terms[i].weight = output->weight;
    }
    return CDDP_OK;
}
