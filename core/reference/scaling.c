/* SPDX-License-Identifier: Apache-2.0 */
#include "core/reference/scaling.h"

#include <math.h>

/* As clip_grad_norm_ of PyTorch has it. */
#define CLIP_EPSILON 1e-6

void cd_scaling_init(cd_scaling *scaling, const cddp_plan_amp *amp)
{
    *scaling = (cd_scaling){.amp = amp,
                            .scale = amp->enable ? (float)amp->init_scale : 1.0f,
                            .until_growth = amp->growth_interval};
}

double cd_scaling_get(const cd_scaling *scaling) { return (double)scaling->scale; }

double cd_scaling_get_inverse(const cd_scaling *scaling)
{
    return scaling->amp->enable ? (double)(float)(1.0 / (double)scaling->scale) : 1.0;
}

void cd_scaling_end_step(cd_scaling *s, bool found_nonfinite)
{
    if (!s->amp->enable) return;
    if (found_nonfinite) {
        s->scale = (float)(s->amp->backoff_factor * (double)s->scale);
        s->until_growth = s->amp->growth_interval;
        return;
    }
    if (--s->until_growth > 0) return;
    const float grown = (float)(s->amp->growth_factor * (double)s->scale);
    s->until_growth = s->amp->growth_interval;
    if (isfinite((double)grown)) s->scale = grown;
}

double cd_scaling_clip(double max_norm, double norm)
{
    if (isnan(norm)) return norm;
    const double room = norm + CLIP_EPSILON;
    return room > max_norm ? max_norm / room : 1.0;
}
