/* SPDX-License-Identifier: Apache-2.0 */
/* Learning rate schedules in closed form. */
#include "core/model/optim/lr_schedule.h"

#include "core/base/error.h"
#include "core/tensor/math.h"

#include <inttypes.h>

const char *cd_lr_kind_name(cd_lr_kind kind)
{
    static const char *const names[CD_LR_KIND_COUNT] = {"constant", "step", "cosine", "linear"};
    return (unsigned)kind < CD_LR_KIND_COUNT ? names[kind] : "?";
}

cddp_status cd_lr_schedule_check(const cd_lr_schedule *schedule, cddp_error *err)
{
    if ((unsigned)schedule->kind >= CD_LR_KIND_COUNT)
        return cd_fail(err, CDDP_E_ARG, "learning rate: schedule %d", (int)schedule->kind);
    if (!(schedule->base >= 0))
        return cd_fail(err, CDDP_E_CONFIG, "learning rate: the base is %g", schedule->base);
    if (schedule->kind != CD_LR_CONSTANT &&
        (schedule->period == 0 || schedule->period >= UINT64_C(1) << 40))
        return cd_fail(err, CDDP_E_CONFIG, "learning rate: a %s schedule with a period of %" PRIu64,
                       cd_lr_kind_name(schedule->kind), schedule->period);
    return CDDP_OK;
}

double cd_lr_at(const cd_lr_schedule *schedule, uint64_t t)
{
    const double period = (double)schedule->period, base = schedule->base;
    const uint64_t clamped = t < schedule->period ? t : schedule->period;
    switch (schedule->kind) {
    case CD_LR_STEP:
        return base * cd_powi(schedule->gamma, t / schedule->period);
    case CD_LR_COSINE: /* periodic: up again after the floor, as PyTorch's */
        return schedule->floor + (base - schedule->floor) * (1 + cd_cospi((double)t / period)) / 2;
    case CD_LR_LINEAR:
        return base * (schedule->start + (1 - schedule->start) * (double)clamped / period);
    default:
        return base;
    }
}
