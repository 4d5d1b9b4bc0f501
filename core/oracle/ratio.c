/* SPDX-License-Identifier: Apache-2.0 */
/* Note [A common ratio] With actual_i = r·expected_i + ε_i and h_i half a unit in the last place
** of the magnitude Σ|x| of element i, the least squares with weights w_i = e_i / h_i² estimate
** r − 1 by Σ w_i (a_i − e_i) / Σ w_i e_i. Each of the k roundings of an element is at most h_i,
** and has no preferred sign. For independent ones Hoeffding's inequality has
**
**     P(|Σ w ε| > t·√(k Σ (w h)²)) ≤ 2·exp(−t²/2)
**
** Elements with the same significand round alike: within such a group the w·h are added before they
** are squared. t = 9 is less than 2^-57. A reciprocal 1/d that is rounded once is a ratio for all
** elements, and is known: it is allowed besides. A sum of many addends in a narrow dtype stagnates,
** and then its roundings prefer a sign: such sums add no evidence. */
#include "core/oracle/ratio.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/oracle/numbers.h"
#include "core/tensor/dtype.h"

#include <math.h>
#include <stdlib.h>

#define DEVIATIONS 9
#define DISTINCT_MIN 8
#define ELEMENTS_MAX 4096
#define ROUNDINGS_MAX 24

typedef struct element {
    double significand, push; /* push: w·h */
    size_t index;
} element;

static int by_significand(const void *a, const void *b)
{
    const element *x = a, *y = b;
    if (x->significand != y->significand) return x->significand < y->significand ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

/* Of the reciprocal of the divisor in this dtype, times the divisor. */
static double common_ratio(const cd_sum_rule *rule)
{
    unsigned char rounded[sizeof(double)];
    if (rule->divisor <= 1 || rule->division_is_exact) return 0;
    cd_element_set(rule->dtype, rounded, 1 / (double)rule->divisor);
    return fabs(cd_element_get(rule->dtype, rounded) * (double)rule->divisor - 1) + 0x1p-50;
}

/* The squares of what each group of like roundings may push. */
static double add_groups(element *elements, size_t count, size_t *distinct)
{
    double variance = 0, push = 0;
    qsort(elements, count, sizeof *elements, by_significand);
    for (size_t i = 0; i < count; i++) {
        push += elements[i].push;
        if (i + 1 < count && elements[i + 1].significand == elements[i].significand) continue;
        variance += push * push;
        push = 0;
        ++*distinct;
    }
    return variance;
}

cddp_status cd_common_ratio_add(cd_ratio_evidence *evidence, const cd_wide_sum *sum,
                                const double *actual, const cd_sum_rule *rule,
                                const cddp_allocator *allocator, cddp_error *err)
{
    const size_t stride = sum->numel / ELEMENTS_MAX + 1, room = sum->numel / stride + 1;
    /* where a dtype on the way has no further bits, roundings are not in proportion */
    const double least = 0x1p12 * fmax(rule->underflow, cd_dtype_underflow(rule->dtype));
    cd_ratio_evidence e = *evidence;
    size_t count = 0;
    if (rule->roundings == 0 || rule->roundings > ROUNDINGS_MAX) return CDDP_OK;
    element *elements = cd_allocate_array(allocator, room, sizeof *elements);
    if (elements == NULL)
        return cd_fail_memory(err, "the common ratio of %zu elements", sum->numel);
    for (size_t i = 0; i < sum->numel; i += stride) {
        const double size = sum->magnitude[i] / (double)rule->divisor;
        const double expected = cd_wide_sum_get(sum, i) / (double)rule->divisor;
        const double h = cd_dtype_ulp(rule->dtype, size) / 2;
        int exponent;
        if (!(size > least) || !isfinite(size) || !isfinite(actual[i]) || expected == 0) continue;
        const double w = expected / (h * h);
        e.agreement += w * expected;
        e.excess += w * (actual[i] - expected);
        elements[count] = (element){frexp(fabs(expected), &exponent), fabs(w) * h, i};
        count++;
    }
    e.variance += (double)rule->roundings * add_groups(elements, count, &e.distinct);
    e.common = fmax(e.common, common_ratio(rule));
    cd_release(allocator, elements, room * sizeof *elements);
    *evidence = e;
    return CDDP_OK;
}

void cd_common_ratio_merge(cd_ratio_evidence *evidence, const cd_ratio_evidence *more)
{
    evidence->agreement += more->agreement;
    evidence->excess += more->excess;
    evidence->variance += more->variance;
    evidence->distinct += more->distinct;
    evidence->common = fmax(evidence->common, more->common);
}

bool cd_common_ratio_is_significant(const cd_ratio_evidence *evidence, double *ratio)
{
    const cd_ratio_evidence *e = evidence;
    if (e->distinct < DISTINCT_MIN || !(e->agreement > 0)) return false;
    const double away = e->excess / e->agreement;
    const double allowed = e->common + DEVIATIONS * sqrt(e->variance) / e->agreement;
    *ratio = 1 + away;
    return fabs(away) > allowed;
}
