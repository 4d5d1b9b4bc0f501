/* SPDX-License-Identifier: Apache-2.0 */
/* What PowerSGD promises about one bucket, as numbers that the trace keeps: nothing is lost.
**
** Error feedback (PSG-11) means, element by element,
**
**     gradient + old error  =  output + new error
**
** and therefore also for the sums over a bucket. The hook computes both sides apart from each other, from what it was
** given and from what it left behind. Each element is rounded twice on the way, when the error is added and when the
** output is taken off; everything else is exact, because the result of a subtraction is what is stored. So the sums may
** differ by u·Σ|corrected| + u·Σ|new error| and twice the smallest step per element.
**
** Not here: who judges it (core/check/hook.c).
*/
#include "core/hooks/low_rank_parts.h"

#include "core/base/error.h"
#include "core/hooks/host.h"

#include <math.h>

static void add_errors(const cd_low_rank *s, const cddp_grad_bucket *bucket, cd_host_sums *sums)
{
    for (uint32_t k = 0; k < bucket->parameter_count; k++) {
        uint32_t parameter = bucket->parameter_ids[k];
        if (parameter >= s->slot_count || s->slots[parameter].error.device == NULL) continue;
        cd_host_add(sums, &s->slots[parameter].error);
    }
}

static bool states_law(const cd_low_rank *s)
{
    return s->tracer != NULL && s->settings.error_feedback;
}

void cd_low_rank_law_begin(const cd_low_rank *s, cd_low_rank_job *job, const cddp_grad_bucket *bucket)
{
    cd_host_sums in = {0.0, 0.0, 0};
    if (!states_law(s)) return;
    cd_host_add(&in, &bucket->buffer);
    add_errors(s, bucket, &in);
    job->law_right = in.sum;
    job->law_magnitude = in.magnitude;
}

void cd_low_rank_law_end(const cd_low_rank *s, const cd_low_rank_job *job, const cddp_grad_bucket *bucket)
{
    cd_host_sums owed = {0.0, 0.0, 0}, out = {0.0, 0.0, 0};
    if (!states_law(s) || !isfinite(job->law_right)) return; /* an overflow is I-RANGE's */
    add_errors(s, bucket, &owed);
    cd_host_add(&out, &bucket->buffer);
    double unit = cd_host_unit(bucket->buffer.dtype), least = cd_host_least(bucket->buffer.dtype);
    double sums = 0x1p-52 * (double)(out.count + owed.count) * (job->law_magnitude + out.magnitude + owed.magnitude);
    cddp_law law = {"gradient + old error = output + new error, summed over the bucket", (int64_t)bucket->index, out.sum + owed.sum,
                    job->law_right, unit * (job->law_magnitude + owed.magnitude) + 2.0 * (double)out.count * least + sums};
    cddp_tracer_law(s->tracer, &law);
}
