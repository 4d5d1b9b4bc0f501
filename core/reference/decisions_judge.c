/* SPDX-License-Identifier: Apache-2.0 */
/* Decisions that follow from judged gradients: overflow, loss scale, clip factor.
**
** Note [How far a clip factor may be off] The run takes the norm of gradients that were unscaled in
** their own dtype; here the norm is of the scaled ones, times the inverse. Each element may be off
** by a unit in the last place of its dtype, or by half of its least number. The sums are of
** doubles, in another order: two roundings per element. The factor is off by as much, relative to
** itself.
*/
#include "core/reference/decisions.h"

#include "core/base/error.h"
#include "core/oracle/power_sum.h"
#include "core/reference/planned.h"
#include "core/reference/rates.h"
#include "core/tensor/math.h"
#include "core/trace/tracer.h"

#include <math.h>
#include <string.h>

/* The plan lets an optimizer step inside a micro-step, on gradients that are not reduced yet. */
static bool steps_early(const cd_decisions *d, uint32_t step)
{
    for (uint32_t m = 0; m < d->settings.train.micro_steps; m++) {
        cd_micro micro;
        cd_planned_micro(d->plan, &d->settings, (cd_micro_place){d->rank, step, m}, &micro);
        if (micro.early_step) return true;
    }
    return false;
}

double cd_decisions_begin_step(cd_decisions *d, uint32_t step, struct cddp_tracer *tracer)
{
    const double scale = cd_scaling_get(&d->scaling);
    if (d->begun == (uint64_t)step + 1) return scale;
    d->begun = (uint64_t)step + 1;
    d->knows_norm = false;
    for (size_t i = 0; i < d->replica->optimizer_count; i++) d->overflows[i] = false;
    if (d->knows_scale) {
        CD_EMIT(tracer, decision, NULL, .decision = CDDP_DECISION_SCALE, .id = -1, .at_step = step,
                .at_micro = -1, .real = cd_f64_bits(scale));
    }
    if (d->settings.amp.enable && steps_early(d, step)) d->knows_scale = false;
    return scale;
}

/* ---- a gradient ---- */

typedef struct measure {
    double sum, norm, bound; /* sum: of p-th powers; bound: of the norm, absolute */
    double largest;          /* |ln x| */
    int64_t elements;
    bool is_nan;
} measure;

/* Unit in the last place of 1, and the least positive number. */
static void get_precision(cddp_dtype dtype, double *unit, double *least)
{
    switch (dtype) {
    case CDDP_F16:
        *unit = 0x1p-11;
        *least = 0x1p-24;
        break;
    case CDDP_BF16:
        *unit = 0x1p-8;
        *least = 0x1p-133;
        break;
    case CDDP_F32:
        *unit = 0x1p-24;
        *least = 0x1p-149;
        break;
    default:
        *unit = 0x1p-53;
        *least = 0x1p-1074;
        break;
    }
}

/* A rank outside the group has nobody to add to. */
static bool is_outside(const cd_decisions *d, const cddp_plan_group *group)
{
    bool is_member = group == NULL || group->members.count == 0;
    for (size_t i = 0; !is_member && i < group->members.count; i++)
        is_member = group->members.items[i] == d->rank;
    return !is_member;
}

/* How often element e of a parameter enters the norm: once where the rank takes all it has; else
** once for each rank of the group that steps it. */
static uint32_t weigh(const cd_decisions *d, size_t parameter, int64_t element,
                      const cddp_plan_group *group)
{
    const char *name = d->settings.clip.group;
    const cd_part *part = d->parts != NULL ? &d->parts[parameter] : NULL;
    if (name == NULL) return 1;
    const bool is_own = strcmp(name, "own") == 0 || is_outside(d, group);
    const uint32_t world = (uint32_t)d->plan->world.size;
    const uint32_t count = is_own ? 1
                           : group != NULL && group->members.count > 0
                               ? (uint32_t)group->members.count
                               : world;
    uint32_t weight = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t rank = is_own                                      ? d->rank
                              : group != NULL && group->members.count > 0 ? group->members.items[i]
                                                                          : i;
        weight += part == NULL || part->share == 0 ||
                  (part->start + element) / part->share == (int64_t)rank;
    }
    return weight;
}

static const cddp_plan_group *find_group(const cd_decisions *d)
{
    const char *name = d->settings.clip.group;
    for (size_t i = 0; name != NULL && i < d->plan->group_count; i++) {
        if (d->plan->groups[i].name != NULL && strcmp(d->plan->groups[i].name, name) == 0)
            return &d->plan->groups[i];
    }
    return NULL;
}

static void add_powers(const cd_decisions *d, size_t parameter, const cd_numbers *numbers,
                       measure *m)
{
    const double p = d->settings.clip.norm_type;
    const cddp_plan_group *group = find_group(d);
    for (size_t k = 0; k < numbers->count; k++) { /* in the order of the elements */
        const double x = numbers->values[k];
        const uint32_t weight =
            d->settings.clip.group != NULL ? weigh(d, parameter, (int64_t)k, group) : 1;
        const double term = cd_power_term(p, x);
        if (weight > 0) cd_power_add(p, &m->sum, isinf(p) ? term : weight * term);
        m->is_nan |= isnan(x);
        if (x != 0 && isfinite(x)) m->largest = fmax(m->largest, fabs(cd_log(fabs(x))));
    }
}

/* ---- overflow ---- */

/* Gradients were judged, so no backward was left: an optimizer that is due steps. */
static bool is_taken(const cd_decisions *d, uint32_t step, size_t optimizer)
{
    return cd_decisions_get_update(d, step, optimizer) != CD_UPDATE_SKIP &&
           cd_rates_is_due(d->plan, &d->settings, &(cd_rates_place){d->rank, step, optimizer});
}

static bool is_nonfinite(const cd_numbers *numbers)
{
    for (size_t k = 0; k < numbers->count; k++) {
        if (!isfinite(numbers->values[k])) return true;
    }
    return false;
}

static cddp_status find_overflows(cd_decisions *d, uint32_t step, const cddp_grad *gradients,
                                  cd_numbers *numbers, cddp_error *err)
{
    for (size_t i = 0; i < d->replica->optimizer_count; i++) {
        const cd_replica_optimizer *o = &d->replica->optimizers[i];
        d->overflows[i] = false;
        if (!d->settings.amp.enable || !is_taken(d, step, i)) continue;
        for (size_t k = 0; k < o->count && !d->overflows[i]; k++) {
            const cddp_grad *g = &gradients[o->ordinals[k]];
            if (g->kind == CDDP_GRAD_UNDEFINED) continue;
            CD_TRY(cd_numbers_read(numbers, &g->value, err));
            d->overflows[i] = is_nonfinite(numbers);
        }
    }
    return CDDP_OK;
}

static void emit_overflows(const cd_decisions *d, uint32_t step, struct cddp_tracer *tracer)
{
    for (size_t i = 0; d->settings.amp.enable && i < d->replica->optimizer_count; i++) {
        if (!is_taken(d, step, i)) continue;
        CD_EMIT(tracer, decision, NULL, .decision = CDDP_DECISION_OVERFLOW, .id = (int64_t)i,
                .at_step = step, .at_micro = -1, .value = d->overflows[i]);
    }
}

/* ---- clipping ---- */

/* What a rank steps may be found with a mistake that the plan asks for. An optimizer that steps its
** own buckets is no case: it steps before gradients could be clipped, which is refused. */
static bool knows_whose_norm(const cd_decisions *d)
{
    return d->settings.clip.group == NULL ||
           d->settings.shard.padding == CDDP_SHARD_PADDING_COUNTED;
}

static cddp_status measure_all(const cd_decisions *d, const cddp_grad *gradients,
                               cd_numbers *numbers, measure *m, cddp_error *err)
{
    const size_t count = d->replica->model->module->parameter_count;
    const double p = d->settings.clip.norm_type;
    double relative = 0, absolute = 0;
    *m = (measure){0};
    for (size_t i = 0; i < count; i++) {
        double unit, least;
        if (gradients[i].kind == CDDP_GRAD_UNDEFINED) continue;
        CD_TRY(cd_numbers_read(numbers, &gradients[i].value, err));
        add_powers(d, i, numbers, m);
        get_precision(gradients[i].value.dtype, &unit, &least);
        m->elements += (int64_t)numbers->count;
        relative = unit > relative ? unit : relative;
        absolute = least > absolute ? least : absolute;
    }
    const double scale = d->settings.clip.place == CDDP_CLIP_BEFORE_UNSCALE
                             ? 1.0
                             : cd_scaling_get_inverse(&d->scaling);
    const double roundings =
        (scale != 1.0 ? 2 * relative : 0) +
        0x1p-51 * ((double)(m->elements + 8) + cd_power_roundings(p, m->largest));
    m->norm = cd_power_root(p, m->sum) * scale;
    m->bound =
        roundings * m->norm +
        (p == 2 ? 0 : 2 * scale * cd_power_underflow(p, (double)m->elements)) +
        (scale != 1.0 ? absolute * (isinf(p) ? 1 : cd_power_root(p, (double)m->elements)) : 0);
    return CDDP_OK;
}

bool cd_decisions_get_norm(const cd_decisions *decisions, double said, double *norm)
{
    const cd_decisions *d = decisions;
    /* what is not finite is I-RANGE's, and an overflow skips the step */
    const bool is_same = !isfinite(d->norm) || fabs(said - d->norm) <= d->norm_bound;
    *norm = is_same ? said : d->norm;
    return d->knows_norm;
}

static cddp_status emit_clip(cd_decisions *d, uint32_t step, const cddp_grad *gradients,
                             cd_numbers *numbers, struct cddp_tracer *tracer, cddp_error *err)
{
    measure m;
    const double max_norm = d->settings.clip.max_norm;
    CD_TRY(measure_all(d, gradients, numbers, &m, err));
    const double norm = m.is_nan ? (double)NAN : m.norm;
    d->norm = norm;
    d->norm_bound = m.bound + 0x1p-52 * norm;
    d->knows_norm = true;
    const double factor = cd_scaling_clip(max_norm, norm);
    const double bound = isfinite(norm) && norm > 0 ? factor * (m.bound / norm) + 0x1p-52 : 0;
    CD_EMIT(tracer, decision, NULL, .decision = CDDP_DECISION_CLIP, .id = -1, .at_step = step,
            .at_micro = -1, .real = cd_f64_bits(factor), .bound = cd_f64_bits(bound));
    return CDDP_OK;
}

cddp_status cd_decisions_judge(cd_decisions *d, uint32_t step, const cddp_grad *gradients,
                               cd_numbers *numbers, struct cddp_tracer *tracer, cddp_error *err)
{
    bool is_any_due = false, has_overflow = false;
    const cddp_device *device = d->replica->model->module->device;
    const bool has_numbers = (device->flags & CDDP_DEVICE_VALUES) != 0;
    if (has_numbers) {
        CD_TRY(find_overflows(d, step, gradients, numbers, err));
        emit_overflows(d, step, tracer);
    }
    for (size_t i = 0; i < d->replica->optimizer_count; i++) {
        is_any_due |= is_taken(d, step, i);
        has_overflow |= d->overflows[i];
    }
    const bool clips = has_numbers && is_any_due && tracer != NULL &&
                       d->settings.clip.max_norm > 0 &&
                       d->settings.clip.place != CDDP_CLIP_BEFORE_REDUCTION;
    d->knows_norm = false;
    if (clips && knows_whose_norm(d))
        CD_TRY(emit_clip(d, step, gradients, numbers, tracer, err));
    else if (clips)
        cd_decisions_give_up(tracer, 1, "a clip factor: shard.padding asks for a wrong part");
    if (is_any_due) cd_scaling_end_step(&d->scaling, has_overflow);
    return CDDP_OK;
}
