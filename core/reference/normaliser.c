/* SPDX-License-Identifier: Apache-2.0 */
#include "core/reference/normaliser.h"

#include "core/base/error.h"
#include "core/reference/planned.h"
#include "core/reference/sample_numbers.h"

#include <string.h>

typedef struct rule {
    enum { NOTHING, THIS_FORWARD, AVERAGE_FORWARD } of;
    bool tokens; /* else samples */
} rule;

/* Words of a loss and of an objective are those of [train]; a table overrides both. */
static rule rule_of(const cd_normaliser *n, const cddp_plan_train *train,
                    const cddp_plan_output *output)
{
    int64_t loss = train->loss, objective = train->objective;
    if (output != NULL && output->loss > 0) loss = output->loss;
    if (output != NULL && output->objective == CDDP_OUTPUT_OBJECTIVE_AS_WRITTEN)
        objective = CDDP_OBJECTIVE_AS_WRITTEN;
    else if (output != NULL && output->objective > 0)
        objective = output->objective;
    if (n->computes_objective && objective == CDDP_OBJECTIVE_MEAN)
        return (rule){AVERAGE_FORWARD, false};
    if (n->computes_objective && objective == CDDP_OBJECTIVE_TOKEN_MEAN)
        return (rule){AVERAGE_FORWARD, true};
    switch (loss) {
    case CDDP_LOSS_MEAN:
        return (rule){THIS_FORWARD, false};
    case CDDP_LOSS_TOKEN_MEAN:
        return (rule){THIS_FORWARD, true};
    case CDDP_LOSS_GLOBAL_MEAN:
        return (rule){AVERAGE_FORWARD, false};
    case CDDP_LOSS_GLOBAL_TOKEN_MEAN:
        return (rule){AVERAGE_FORWARD, true};
    default: /* given weights, or a plain sum */
        return (rule){NOTHING, false};
    }
}

void cd_normaliser_init(cd_normaliser *normaliser, const cd_replica *replica, cd_samples *samples)
{
    *normaliser = (cd_normaliser){.replica = replica, .samples = samples};
}

/* Tokens of samples first … end - 1 of a micro-step. */
static cddp_status count_tokens(cd_normaliser *n, const cddp_plan_settings *settings,
                                const cd_micro *micro, const uint32_t range[2], int64_t *count,
                                cddp_error *err)
{
    *count = 0;
    for (uint32_t i = range[0]; i < range[1]; i++) {
        cd_sample sample;
        CD_TRY(cd_samples_find(n->samples, settings, micro->place, i, &sample, err));
        *count += (int64_t)cd_sample_tokens_count(n->replica->model, n->replica->plan->world.seed,
                                                  sample.id);
    }
    return CDDP_OK;
}

static cddp_status count_rank(cd_normaliser *n, cd_micro_place place, cddp_error *err)
{
    const cddp_plan *plan = n->replica->plan;
    cddp_plan_settings settings;
    CD_TRY(cddp_plan_rank_settings(plan, place.rank, &settings, err));
    for (; place.micro_step < settings.train.micro_steps; place.micro_step++) {
        cd_micro micro;
        int64_t tokens;
        cd_planned_micro(plan, &settings, place, &micro);
        n->forwards += micro.forwards;
        if (!cd_planned_contributes(&micro)) continue;
        const uint32_t range[2] = {0, cd_samples_count(&micro)};
        CD_TRY(count_tokens(n, &settings, &micro, range, &tokens, err));
        n->sample_count += range[1];
        n->token_count += tokens;
    }
    return CDDP_OK;
}

static cddp_status count_step(cd_normaliser *n, uint32_t step, cddp_error *err)
{
    if (n->step == (uint64_t)step + 1) return CDDP_OK;
    n->forwards = n->sample_count = n->token_count = 0;
    for (uint32_t rank = 0; rank < n->replica->plan->world.size; rank++)
        CD_TRY(count_rank(n, (cd_micro_place){rank, step, 0}, err));
    n->step = (uint64_t)step + 1;
    return CDDP_OK;
}

static cddp_status divide(cd_normaliser *n, const cddp_plan_settings *settings,
                          const cd_forward_place *place, rule by, double *divisor, cddp_error *err)
{
    const cd_micro *micro = place->micro;
    const uint32_t forward = place->forward;
    *divisor = 0;
    if (by.of == THIS_FORWARD) {
        const uint32_t range[2] = {forward * micro->samples, (forward + 1) * micro->samples};
        int64_t count = micro->samples;
        if (by.tokens) CD_TRY(count_tokens(n, settings, micro, range, &count, err));
        *divisor = (double)count;
    } else if (by.of == AVERAGE_FORWARD) {
        CD_TRY(count_step(n, micro->place.step, err));
        *divisor = (double)(by.tokens ? n->token_count : n->sample_count) / (double)n->forwards;
    }
    return CDDP_OK;
}

cddp_status cd_normaliser_find(cd_normaliser *n, const cddp_plan_settings *settings,
                               const cd_forward_place *place, double *divisor, cddp_error *err)
{
    return CD_PASS(divide(n, settings, place, rule_of(n, &settings->train, NULL), divisor, err));
}

cddp_status cd_normaliser_find_output(cd_normaliser *n, const cddp_plan_settings *settings,
                                      const cd_forward_place *place, size_t table, double *divisor,
                                      cddp_error *err)
{
    const cddp_plan_output *output = &n->replica->plan->outputs[table];
    return CD_PASS(divide(n, settings, place, rule_of(n, &settings->train, output), divisor, err));
}

/* Of an output with several tables, which is refused, the last one would count. */
cddp_status cd_normaliser_fill(cd_normaliser *n, const cddp_plan_settings *settings,
                               const cd_forward_place *place, cd_pass *pass, cddp_error *err)
{
    const cddp_plan *plan = n->replica->plan;
    const cd_model *model = n->replica->model;
    CD_TRY(cd_normaliser_find(n, settings, place, &pass->divisor, err));
    pass->has_terms = false;
    for (uint32_t i = 0; i < model->output_count; i++) {
        cd_loss_term *term = &pass->terms[i];
        *term = (cd_loss_term){.divisor = pass->divisor, .weight = 1};
        for (size_t k = 0; k < plan->output_count; k++) {
            pass->has_terms = true;
            if (strcmp(plan->outputs[k].name, model->targets[i].name) != 0) continue;
            CD_TRY(cd_normaliser_find_output(n, settings, place, k, &term->divisor, err));
            term->weight = plan->outputs[k].weight;
        }
    }
    return CDDP_OK;
}
