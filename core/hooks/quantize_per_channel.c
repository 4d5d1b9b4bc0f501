/* SPDX-License-Identifier: Apache-2.0 */
/* The quantize_per_channel hook: 8-bit codes with one scale per block of bucket_size elements
** (quantize.c, QNT-03). */
#include "core/hooks/hook.h"
#include "core/base/error.h"
#include "core/hooks/quantize.h"

static cddp_status create(const cddp_hook_context *context, void **self, cddp_error *err)
{
    return CD_PASS(cd_quantize_create(context, true, self, err));
}

const cddp_hook cd_hook_quantize_per_channel = {
    .size = sizeof(cddp_hook),
    .abi = CDDP_HOOK_ABI,
    .name = "quantize_per_channel",
    .flags = CDDP_HOOK_LOSSY,
    .create = create,
    .destroy = cd_quantize_destroy,
    .run = cd_quantize_run,
    .promise = cd_quantize_promise,
};
