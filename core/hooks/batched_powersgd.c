/* SPDX-License-Identifier: Apache-2.0 */
/* The batched_powersgd hook: the whole bucket as one square matrix at low rank (low_rank.c,
** PSG-14). */
#include "core/hooks/hook.h"
#include "core/base/error.h"
#include "core/hooks/low_rank.h"

static cddp_status create(const cddp_hook_context *context, void **self, cddp_error *err)
{
    return CD_PASS(cd_low_rank_create(context, true, self, err));
}

const cddp_hook cd_hook_batched_powersgd = {
    .size = sizeof(cddp_hook),
    .abi = CDDP_HOOK_ABI,
    .name = "batched_powersgd",
    .flags = CDDP_HOOK_LOSSY | CDDP_HOOK_STATEFUL,
    .create = create,
    .destroy = cd_low_rank_destroy,
    .run = cd_low_rank_run,
    .promise = cd_low_rank_promise,
    .rebuilt = cd_low_rank_rebuilt,
    .save = cd_low_rank_save,
    .load = cd_low_rank_load,
};
