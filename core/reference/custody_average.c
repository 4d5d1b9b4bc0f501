/* SPDX-License-Identifier: Apache-2.0 */
/* What an average keeps, as laws over all ranks.
**
** Note [What an average keeps] The mean of a block, given to each of its ranks, has the block's
** sum. So has every weighted sum of elements whose weights are the same on the ranks of a block.
** Four such sums are stated. Their weights are drawn from the plan's seed, and others for each
** step, element and block: two elements that were exchanged, a block that got another's mean, and
** a factor change them. Two sums have an odd weight for every element. Signs cancel in them, while
** what rounding may do adds up, so that in a narrow dtype a factor could hide. The third has the
** weight 1 for one drawn element of each parameter, the fourth for one of the first parameter
** alone: nothing cancels within a rank there, and a factor shows as soon as it exceeds what W
** additions may round.
** A division and the additions of W terms round, and so does the way back into the parameter's
** dtype: per rank |w|·((γ(W) + 2u)·|x| + 2·least) for each element, u and least of the dtype, and
** 2^-52·|w·x| for each addition here.
*/
#include "core/reference/custody_average.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/pattern.h"
#include "core/oracle/numbers.h"
#include "core/trace/tracer.h"

#include <math.h>
#include <string.h>

bool cd_custody_averager_read(cd_custody_averager *averager, const cddp_plan *plan,
                              const cddp_plan_settings *settings, uint32_t rank)
{
    cd_custody_averager *a = averager;
    *a = (cd_custody_averager){.plan = &settings->averager,
                               .seed = plan->world.seed,
                               .rank = rank,
                               .world_size = (uint32_t)plan->world.size};
    if (settings->averager.kind == CDDP_AVERAGER_NONE) return false;
    a->level_count = cd_plan_read_levels(settings->averager.levels, a->levels);
    return true;
}

/* 0: it has none. */
static uint64_t own_period(const cd_custody_averager *a, const char *parameter)
{
    uint64_t found = 0;
    for (size_t i = 0; i < a->plan->periods.count; i++) {
        char pattern[CD_PLAN_PATTERN_BYTES];
        uint64_t period = 0;
        if (cd_plan_read_period(a->plan->periods.items[i], pattern, &period) &&
            cd_pattern_matches(pattern, parameter))
            found = period;
    }
    return found;
}

/* AVG-01 counts steps from the end of the warm-up, AVG-03 from the beginning. */
uint32_t cd_custody_averager_due(const cd_custody_averager *averager, uint32_t step,
                                 const char *parameter)
{
    const cd_custody_averager *a = averager;
    const uint64_t warmup = a->plan->warmup_steps;
    const uint64_t own = own_period(a, parameter);
    uint32_t due = 0;
    if (step < warmup) return 0;
    if (own != 0) return (step - warmup) % own == 0 ? a->world_size : 0;
    const uint64_t counted = a->plan->kind == CDDP_AVERAGER_PERIODIC ? step - warmup : step;
    for (uint32_t i = 0; i < a->level_count; i++) {
        const uint32_t ranks = a->levels[i].ranks != 0 ? a->levels[i].ranks : a->world_size;
        if (counted % a->levels[i].period == 0) due = ranks;
    }
    return due;
}

static bool is_half(cddp_dtype dtype) { return dtype == CDDP_F16 || dtype == CDDP_BF16; }

/* What a functional makes of the elements of a tensor. */
typedef struct weighing {
    uint64_t seed;
    bool is_drawn; /* one element alone, of weight 1 */
    size_t drawn;  /* SIZE_MAX: none */
} weighing;

/* The two that have one element of a tensor are the last ones. */
static weighing weigh(uint32_t k, uint64_t seed, bool is_first, size_t count)
{
    weighing w = {.seed = seed, .is_drawn = k >= CD_FUNCTIONALS - 2, .drawn = SIZE_MAX};
    if (w.is_drawn && count > 0 && (k < CD_FUNCTIONALS - 1 || is_first))
        w.drawn = (size_t)(cd_hash_mix(seed, count) % count);
    return w;
}

/* ±1, ±3, ±5 or ±7; 1 or 0. */
static double weight(const weighing *w, size_t element)
{
    if (w->is_drawn) return element == w->drawn ? 1 : 0;
    const uint64_t drawn = cd_hash_mix(w->seed, element);
    const double odd = 1.0 + 2.0 * (double)(drawn >> 8 & 3);
    return (drawn >> 16 & 1) != 0 ? odd : -odd;
}

/* See Note [What an average keeps] */
cddp_status cd_functionals_add(cd_functionals *functionals, const cd_custody_averager *averager,
                               const cd_averaged *averaged, cd_numbers *numbers, cddp_error *err)
{
    const cddp_dtype dtype = averaged->tensor->dtype;
    cd_functional_sums *f = &functionals->of[is_half(dtype)];
    const double unit = cd_dtype_roundoff(dtype), least = cd_dtype_underflow(dtype),
                 rounding = cd_gamma(dtype, averager->world_size) + 2 * unit;
    weighing weighings[CD_FUNCTIONALS];
    CD_TRY(cd_numbers_read(numbers, averaged->tensor, err));
    for (uint32_t k = 0; k < CD_FUNCTIONALS; k++) {
        const uint64_t step = cd_hash_mix(cd_hash_mix(averager->seed, k), averaged->step);
        const uint64_t block = cd_hash_mix(step, averager->rank / averaged->block);
        weighings[k] =
            weigh(k, cd_hash_mix(block, averaged->ordinal), f->tensors == 0, numbers->count);
    }
    f->tensors++;
    for (size_t i = 0; i < numbers->count; i++) {
        const double x = numbers->values[i];
        f->added++;
        for (uint32_t k = 0; k < CD_FUNCTIONALS; k++) {
            const double w = weight(&weighings[k], i);
            if (w == 0) continue;
            f->sums[k] += w * x;
            f->bounds[k] +=
                fabs(w) * ((rounding + 0x1p-52 * (double)f->added) * fabs(x) + 2 * least);
        }
    }
    return CDDP_OK;
}

static void state_sums(const cd_functional_sums *before, const cd_functional_sums *after,
                       const char *const names[CD_FUNCTIONALS], struct cddp_tracer *tracer)
{
    for (uint32_t k = 0; before->tensors > 0 && k < CD_FUNCTIONALS; k++) {
        /* an overflow is I-RANGE's */
        const bool can_say = isfinite(before->sums[k]) && isfinite(after->sums[k]);
        const cddp_law law = {sizeof law,
                              names[k],
                              -1,
                              can_say ? before->sums[k] : 0,
                              can_say ? after->sums[k] : 0,
                              can_say ? before->bounds[k] + after->bounds[k] : INFINITY,
                              true};
        cddp_tracer_law(tracer, &law);
    }
}

void cd_functionals_state(const cd_functionals *before, const cd_functionals *after,
                          struct cddp_tracer *tracer)
{
    static const char *const names[CD_FUNCTIONAL_WIDTHS][CD_FUNCTIONALS] = {
        {"an average keeps the sum of the parameters over the ranks: with weights",
         "an average keeps the sum of the parameters over the ranks: with other weights",
         "an average keeps the sum of the parameters over the ranks: one element of each",
         "an average keeps the sum of the parameters over the ranks: one element"},
        {"an average keeps the sum of the parameters in half types over the ranks: with weights",
         "an average keeps the sum of the parameters in half types over the ranks: with other "
         "weights",
         "an average keeps the sum of the parameters in half types over the ranks: one element of "
         "each",
         "an average keeps the sum of the parameters in half types over the ranks: one element"}};
    for (uint32_t width = 0; width < CD_FUNCTIONAL_WIDTHS; width++)
        state_sums(&before->of[width], &after->of[width], names[width], tracer);
}

/* ---- bit for bit ---- */

void cd_awaited_average_fini(cd_awaited_average *awaited)
{
    cd_release(awaited->allocator, awaited->before, awaited->room * sizeof *awaited->before);
    *awaited = (cd_awaited_average){.allocator = awaited->allocator};
}

void cd_awaited_average_begin(cd_awaited_average *awaited)
{
    awaited->count = 0;
    awaited->is_open = true;
    awaited->is_mixed = false;
}

static cddp_dtype meet(cddp_dtype a, cddp_dtype b)
{
    if (a == b) return a;
    return a == CDDP_F64 || b == CDDP_F64 ? CDDP_F64 : CDDP_F32;
}

cddp_status cd_awaited_average_add(cd_awaited_average *awaited, const cd_averaged *averaged,
                                   const cd_numbers *numbers, cddp_error *err)
{
    cd_awaited_average *a = awaited;
    const cddp_dtype dtype = averaged->tensor->dtype;
    a->dtype = a->count == 0 ? dtype : meet(a->dtype, dtype);
    if (a->count == 0) a->ranks = averaged->block;
    a->is_mixed = a->is_mixed || averaged->block != a->ranks;
    if (a->is_mixed) return CDDP_OK;
    if (!cd_vec_grow(a->allocator, (void **)&a->before, &a->room, a->count + numbers->count,
                     sizeof *a->before))
        return cd_fail_memory(err, "the shares of an average");
    memcpy(a->before + a->count, numbers->values, numbers->count * sizeof *a->before);
    a->count += numbers->count;
    return CDDP_OK;
}

bool cd_awaited_average_takes(cd_awaited_average *awaited, const cd_observed_summed *summed)
{
    cd_awaited_average *a = awaited;
    const cd_observed_summed *s = summed;
    const bool fits = a->is_open && !a->is_mixed && a->count > 0 && !s->scatters && !s->averages &&
                      s->member < s->members && s->result.count == a->count &&
                      s->operands.count == a->count * s->members;
    a->is_open = a->is_open && !fits;
    return fits;
}

static void state_difference(const char *name, double found, double expected,
                             struct cddp_tracer *tracer)
{
    cddp_tracer_law(tracer, &(cddp_law){sizeof(cddp_law), name, -1, found, expected, 0, false});
}

bool cd_awaited_average_state(const cd_awaited_average *awaited, const cd_observed_summed *summed,
                              struct cddp_tracer *tracer)
{
    const cd_awaited_average *a = awaited;
    const double *given = summed->operands.items + summed->member * a->count;
    double differing = 0;
    if (summed->dtype != a->dtype || summed->members != a->ranks) {
        state_difference("an average is over the ranks of its block", summed->members, a->ranks,
                         tracer);
        state_difference("an average is in the widest dtype of its parameters: its roundoff",
                         cd_dtype_roundoff(summed->dtype), cd_dtype_roundoff(a->dtype), tracer);
        return false;
    }
    for (size_t i = 0; i < a->count; i++) {
        const double expected = cd_dtype_round(a->dtype, a->before[i] / (double)a->ranks);
        differing += !(given[i] == expected || (isnan(given[i]) && isnan(expected)));
    }
    state_difference("to an average a rank gives its parameters, divided by the ranks: "
                     "elements that differ",
                     differing, 0, tracer);
    return true;
}
