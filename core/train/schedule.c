/* SPDX-License-Identifier: Apache-2.0 */
/* Steps and rates of optimizers. */
#include "core/train/schedule.h"

#include "core/base/inject.h"

bool cd_schedule_is_due(const cd_replica *replica, size_t optimizer, uint32_t step)
{
    /* ZRO-11: buckets are assigned when they were rebuilt, which a static graph does a backward
    ** later. */
    const uint32_t first = !cd_replica_assigns_buckets(replica, optimizer) ? 0
                           : replica->settings.ddp.static_graph            ? 3
                                                                           : 2;
    bool is_due = step >= first && cddp_selector_has(&replica->optimizers[optimizer].steps, step);
    CD_INJECT_FLAG("schedule.due", CD_INJECT_EVERYONE, CD_INJECT_EVERYONE, is_due);
    return is_due;
}

double cd_schedule_lr(const cd_replica *replica, size_t optimizer, uint32_t step)
{
    double lr = replica->optimizers[optimizer].lr;
    for (uint32_t i = 0; i < step; i++) lr *= replica->settings.train.lr_decay;
    CD_INJECT_NUMBER("schedule.lr", CD_INJECT_EVERYONE, CD_INJECT_EVERYONE, lr);
    return lr;
}
