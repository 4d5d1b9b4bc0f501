/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and differences over what went into a trial and what came out. */
#include "verify/conformance/hook_measure.h"
#include "core/base/format.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool cd_measure_same_bits(double x, double y) { return memcmp(&x, &y, sizeof x) == 0; }

bool cd_measure_equal(const cd_trial *trial, const cd_trial_result *a, const cd_trial_result *b,
                      char *at, size_t at_bytes)
{
    for (uint32_t s = 0; s < trial->steps; s++)
        for (uint32_t r = 0; r < trial->ranks; r++)
            for (int64_t e = 0; e < a->numel; e++) {
                if (cd_measure_same_bits(a->out[r][s][e], b->out[r][s][e])) continue;
                cd_real_format(at, at_bytes,
                               "%s, %u ranks: rank %u, step %u, element %lld is %.9g, not %.9g",
                               cddp_dtype_name(trial->dtype), trial->ranks, r, s, (long long)e,
                               a->out[r][s][e], b->out[r][s][e]);
                return false;
            }
    return true;
}

double cd_measure_mean(const cd_trial *trial, const cd_trial_result *result, uint32_t step,
                       int64_t element)
{
    double sum = 0.0;
    for (uint32_t k = 0; k < trial->ranks; k++) sum += result->in[k][step][element];
    return sum / trial->ranks;
}

double cd_measure_out(const cd_trial *trial, const cd_trial_result *result, int64_t element)
{
    double sum = 0.0;
    for (uint32_t s = 0; s < trial->steps; s++) sum += result->out[0][s][element];
    return sum;
}

double cd_measure_in(const cd_trial *trial, const cd_trial_result *result, int64_t element)
{
    double sum = 0.0;
    for (uint32_t s = 0; s < trial->steps; s++) sum += cd_measure_mean(trial, result, s, element);
    return sum;
}

double cd_measure_drift(const cd_trial *trial, const cd_trial_result *result)
{
    double off = 0.0, largest = 0.0;
    for (int64_t e = 0; e < result->numel; e++) {
        double difference =
            fabs(cd_measure_out(trial, result, e) - cd_measure_in(trial, result, e));
        off = difference > off || isnan(difference) ? difference : off;
        largest = fmax(largest, fabs(cd_measure_in(trial, result, e)));
    }
    return off / largest;
}

double cd_measure_share(const cd_trial *trial, const cd_trial_result *result, int64_t bucket,
                        uint32_t step)
{
    double energy = 0.0, kept = 0.0;
    for (uint32_t p = 0; p < CD_TRIAL_PARAMETERS; p++) {
        int64_t numel, from = cd_trial_offset(trial, p, &numel);
        if (bucket >= 0 && cd_trial_bucket_of(trial, p, step) != bucket) continue;
        for (int64_t e = from; e < from + numel; e++) {
            double in = cd_measure_in(trial, result, e);
            energy += in * in;
            kept += in * cd_measure_out(trial, result, e);
        }
    }
    return kept / energy;
}

double cd_measure_largest_from(const cd_trial *trial, const cd_trial_result *result, uint32_t step)
{
    double largest = 0.0;
    for (uint32_t s = step; s < trial->steps; s++)
        for (int64_t e = 0; e < result->numel; e++)
            largest = fmax(largest, fabs(result->out[0][s][e]));
    return largest;
}
