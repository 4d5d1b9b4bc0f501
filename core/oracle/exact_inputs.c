/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing and drawing exact inputs; the witness from floating-point flags. */
#include "core/oracle/exact_inputs.h"

#include "core/oracle/numbers.h"

#include <fenv.h>
#include <math.h>

cd_exact_range cd_exact_range_of(cddp_dtype dtype, uint64_t addends, uint32_t factors)
{
    /* addends · magnitude^factors < 2^p. */
    double room = ldexp(1, cd_dtype_precision(dtype)) / (double)(addends > 0 ? addends : 1);
    cd_exact_range range = {0, -2};
    for (int64_t magnitude = 1; magnitude <= 64; magnitude++) {
        double product = 1;
        for (uint32_t f = 0; f < factors; f++) product *= (double)magnitude;
        if (product >= room) break;
        range.magnitude = magnitude;
    }
    return range;
}

void cd_exact_fill(cd_prng *prng, cd_exact_range range, double *values, size_t count)
{
    int64_t before = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t drawn =
            range.magnitude > 0 ? cd_prng_between(prng, -range.magnitude, range.magnitude) : 0;
        if (range.magnitude > 0 && drawn == before)
            drawn = drawn < range.magnitude ? drawn + 1 : -range.magnitude;
        values[i] = ldexp((double)drawn, range.exponent);
        before = drawn;
    }
}

#ifdef FE_INEXACT
/* volatile: divided by the processor, not by the compiler */
static bool raises(double x, double y)
{
    volatile double a = x, b = y, quotient;
    volatile float low_a = (float)x, low_b = (float)y, low;
    bool raised = feclearexcept(FE_INEXACT) == 0;
    quotient = a / b;
    raised = raised && fetestexcept(FE_INEXACT) != 0;
    raised = feclearexcept(FE_INEXACT) == 0 && raised;
    low = low_a / low_b;
    (void)quotient, (void)low;
    return fetestexcept(FE_INEXACT) != 0 && raised;
}

static bool keeps_quiet(double x, double y)
{
    volatile double a = x, b = y, quotient;
    const bool is_clear = feclearexcept(FE_INEXACT) == 0;
    quotient = a / b;
    (void)quotient;
    return is_clear && fetestexcept(FE_INEXACT) == 0;
}

bool cd_exact_flags_work(void) { return raises(1, 3) && keeps_quiet(1, 4); }

bool cd_exact_flags_begin(void) { return feclearexcept(FE_INEXACT) == 0; }

bool cd_exact_flags_end(bool *rounded)
{
    *rounded = fetestexcept(FE_INEXACT) != 0;
    return true;
}
#else
bool cd_exact_flags_work(void) { return false; }

bool cd_exact_flags_begin(void) { return false; }

bool cd_exact_flags_end(bool *rounded)
{
    (void)rounded;
    return false;
}
#endif
