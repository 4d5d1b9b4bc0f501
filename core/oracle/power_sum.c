/* SPDX-License-Identifier: Apache-2.0 */
#include "core/oracle/power_sum.h"

#include "core/tensor/math.h"

#include <math.h>
#include <stdint.h>

double cd_power_term(double p, double x)
{
    const double magnitude = fabs(x);
    if (isinf(p) || p == 1) return magnitude;
    if (p == 2) return x * x;
    if (p == floor(p)) return cd_powi(magnitude, (uint64_t)p);
    return magnitude > 0 ? cd_exp(p * cd_log(magnitude)) : magnitude;
}

void cd_power_add(double p, double *sum, double term)
{
    if (!isinf(p))
        *sum += term;
    else if (isnan(term) || term > *sum)
        *sum = term;
}

double cd_power_root(double p, double sum)
{
    if (isinf(p) || p == 1) return sum;
    if (p == 2) return sqrt(sum);
    return sum > 0 ? cd_exp(cd_log(sum) / p) : sum;
}

double cd_power_roundings(double p, double largest)
{
    return isinf(p) || p == 1 || p == 2 ? 0 : 4 * (p + 1) * (largest + 64);
}

double cd_power_underflow(double p, double elements)
{
    if (isinf(p) || elements <= 0) return 0;
    return cd_exp(cd_log(elements) / p) * cd_exp(-744.4400719213812 / p);
}
