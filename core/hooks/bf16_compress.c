/* SPDX-License-Identifier: Apache-2.0 */
/* The bf16_compress hook: half the bytes on the wire; cast, divide, sum, cast back (cast.c, HK-02,
** HK-03). */
#include "core/hooks/cast.h"
#include "core/base/error.h"
#include "core/hooks/hook.h"

static cddp_status create(const cddp_hook_context *context, void **self, cddp_error *err)
{
    const cd_cast_spec spec = {.name = "bf16_compress", .dtype = CDDP_BF16};
    return CD_PASS(cd_cast_create(context, &spec, self, err));
}

const cddp_hook cd_hook_bf16_compress = {
    .size = sizeof(cddp_hook),
    .abi = CDDP_HOOK_ABI,
    .name = "bf16_compress",
    .flags = CDDP_HOOK_LOSSY | CDDP_HOOK_CASTS_FIRST,
    .wire_dtype = CDDP_DTYPE_BIT(CDDP_BF16),
    .create = create,
    .destroy = cd_cast_destroy,
    .run = cd_cast_run,
    .promise = cd_cast_promise,
    .rebuilt = cd_cast_rebuilt,
};
