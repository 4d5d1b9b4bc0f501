/* SPDX-License-Identifier: Apache-2.0 */
/* Note [Every order] A reduction adds its addends along some binary tree. Each addition is rounded
** to the dtype, or kept in the wider one in which processors add. Additions and roundings are
** monotone. So with lo(S) the least value that a tree over the addends S can have
**
**     lo(S) = min over A ∪ B = S of round(lo(A) + lo(B))
**
** and the least of the roundings is the rounding of the least sum. The same is true of the largest
** value. A table over all subsets finds both, with (3^n − 2^(n+1) + 1) / 2 additions. */
#include "core/oracle/any_order.h"

#include "core/base/error.h"
#include "core/oracle/compare.h"
#include "core/oracle/numbers.h"

#include <math.h>

/* Additions and numbers of one tensor. */
#define WORK_MAX ((size_t)1 << 19)

/* In which a processor adds numbers of the dtype. */
static double round_wide(cddp_dtype dtype, double value)
{
    return dtype == CDDP_F16 || dtype == CDDP_BF16 ? (double)(float)value : value;
}

static size_t additions_of(uint32_t addends)
{
    size_t all = 1;
    for (uint32_t i = 0; i < addends; i++) all *= 3;
    return all / 2 + 1;
}

cddp_status cd_any_order_init(cd_any_order *a, const cddp_allocator *allocator, size_t numel,
                              uint32_t capacity, cddp_error *err)
{
    *a = (cd_any_order){.numel = numel, .stride = 1, .capacity = capacity, .is_given_up = true};
    cd_arena_init(&a->arena, allocator, 1u << 16);
    if (capacity == 0 || capacity > CD_ANY_ORDER_ADDENDS_MAX || numel == 0) {
        a->capacity = 0;
        return CDDP_OK;
    }
    const size_t most = WORK_MAX / additions_of(capacity);
    a->stride = (numel - 1) / most + 1;
    a->count = (numel - 1) / a->stride + 1;
    a->low = cd_arena_array(&a->arena, capacity * a->count, sizeof *a->low);
    a->high = cd_arena_array(&a->arena, capacity * a->count, sizeof *a->high);
    a->ranges = cd_arena_array(&a->arena, a->count, sizeof *a->ranges);
    const cddp_status status =
        cd_arena_check(&a->arena, err, "%u addends of %zu elements", capacity, a->count);
    if (status == CDDP_OK)
        cd_any_order_clear(a);
    else
        cd_any_order_fini(a);
    return status;
}

void cd_any_order_fini(cd_any_order *a)
{
    cd_arena_fini(&a->arena);
    *a = (cd_any_order){.is_given_up = true};
}

void cd_any_order_clear(cd_any_order *a)
{
    a->addends = 0;
    a->is_found = false;
    a->is_given_up = a->capacity == 0;
}

void cd_any_order_push(cd_any_order *a, const double *low, const double *high)
{
    if (a->addends == a->capacity) a->is_given_up = true;
    if (a->is_given_up) return;
    double *lows = a->low + a->addends * a->count, *highs = a->high + a->addends * a->count;
    for (size_t k = 0; k < a->count; k++) {
        const double x = low[k * a->stride], y = high[k * a->stride];
        lows[k] = fmin(x, y);
        highs[k] = fmax(x, y);
    }
    a->addends++;
}

void cd_any_order_give_up(cd_any_order *a) { a->is_given_up = true; }

/* Of any tree over the addends of element k, before its last rounding. */
static cd_any_order_range add_all(const cd_any_order *a, cddp_dtype dtype, size_t k)
{
    cd_any_order_range of[1u << CD_ANY_ORDER_ADDENDS_MAX];
    const uint32_t all = (1u << a->addends) - 1;
    for (uint32_t set = 1; set <= all; set++) {
        const uint32_t first = set & (0u - set), rest = set ^ first;
        if (rest == 0) {
            uint32_t i = 0;
            while (1u << i != set) i++;
            of[set] = (cd_any_order_range){a->low[i * a->count + k], a->high[i * a->count + k]};
            continue;
        }
        cd_any_order_range sum = {INFINITY, -INFINITY};
        /* the part that lacks the first addend: every subset of the rest but the empty one */
        for (uint32_t part = rest; part != 0; part = (part - 1) & rest) {
            const double low = of[part].low + of[set ^ part].low;
            const double high = of[part].high + of[set ^ part].high;
            if (low < sum.low) sum.low = low;
            if (high > sum.high) sum.high = high;
        }
        if (set != all) {
            const cd_any_order_range wide = {round_wide(dtype, sum.low),
                                             round_wide(dtype, sum.high)};
            sum.low = fmin(wide.low,
                           fmin(cd_dtype_round(dtype, sum.low), cd_dtype_round(dtype, wide.low)));
            sum.high = fmax(wide.high, fmax(cd_dtype_round(dtype, sum.high),
                                            cd_dtype_round(dtype, wide.high)));
        }
        of[set] = sum;
    }
    return of[all];
}

/* The last rounding of the sum, the division and the cast, where there are any. */
static double finish(const cd_any_order_rule *rule, double sum, bool in_two_steps)
{
    double x = in_two_steps ? round_wide(rule->dtype, sum) : sum;
    x = cd_dtype_round(rule->dtype, x);
    if (rule->divisor > 1) x = cd_dtype_round(rule->dtype, x / (double)rule->divisor);
    if (rule->times > 1) x = cd_dtype_round(rule->dtype, x * (double)rule->times);
    return cd_dtype_has_all(rule->result, rule->dtype) ? x : cd_dtype_round(rule->result, x);
}

/* A backend may add exactly and round once. Compensated, so that f64 loses nothing that matters. */
static double add_once(const double *x, size_t stride, uint32_t count)
{
    double sum = 0, lost = 0;
    for (uint32_t i = 0; i < count; i++) {
        const double next = sum + x[i * stride], added = next - sum;
        lost += (sum - (next - added)) + (x[i * stride] - added);
        sum = next;
    }
    return isfinite(sum) ? sum + lost : sum;
}

static double finish_least(const cd_any_order_rule *rule, double sum)
{
    return fmin(finish(rule, sum, false), finish(rule, sum, true));
}

static double finish_most(const cd_any_order_rule *rule, double sum)
{
    return fmax(finish(rule, sum, false), finish(rule, sum, true));
}

bool cd_any_order_find(cd_any_order *a, const cd_any_order_rule *rule)
{
    if (a->is_given_up || a->addends == 0) return false;
    for (size_t k = 0; !a->is_found && k < a->count; k++) {
        const cd_any_order_range sum = add_all(a, rule->dtype, k);
        const double least = add_once(a->low + k, a->count, a->addends);
        const double most = add_once(a->high + k, a->count, a->addends);
        a->ranges[k].low = fmin(finish_least(rule, sum.low), finish_least(rule, least));
        a->ranges[k].high = fmax(finish_most(rule, sum.high), finish_most(rule, most));
        /* what leaves the range is judged elsewhere */
        if (isnan(sum.low) || isnan(sum.high) || !isfinite(least) || !isfinite(most))
            a->ranges[k] = (cd_any_order_range){-INFINITY, INFINITY};
    }
    a->is_found = true;
    return true;
}

bool cd_any_order_has(const cd_any_order *a, const cd_any_order_rule *rule, size_t k, double actual)
{
    const cd_any_order_range *range = &a->ranges[k];
    if (range->low == -INFINITY || range->high == INFINITY || isnan(actual)) return true;
    if (!(range->low <= actual && actual <= range->high)) return false;
    return !cd_dtype_has_all(rule->result, rule->dtype) ||
           cd_dtype_round(rule->dtype, actual) == actual;
}
