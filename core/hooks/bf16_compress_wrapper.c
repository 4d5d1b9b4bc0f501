/* SPDX-License-Identifier: Apache-2.0 */
/* The bf16_compress_wrapper: another hook sees the bucket in bf16, and its bf16 result goes to the
** reducer as it is (cast.c, HK-05). State is the inner hook's.
*/
#include "core/hooks/cast.h"
#include "core/base/error.h"
#include "core/hooks/hook.h"

static cddp_status create(const cddp_hook_context *context, void **self, cddp_error *err)
{
    const cd_cast_spec spec = {.name = "bf16_compress_wrapper", .dtype = CDDP_BF16, .wraps = true};
    return CD_PASS(cd_cast_create(context, &spec, self, err));
}

const cddp_hook cd_hook_bf16_compress_wrapper = {
    .size = sizeof(cddp_hook),
    .abi = CDDP_HOOK_ABI,
    .name = "bf16_compress_wrapper",
    .flags = CDDP_HOOK_LOSSY | CDDP_HOOK_STATEFUL,
    .wire_dtype = CDDP_DTYPE_BIT(CDDP_BF16),
    .create = create,
    .destroy = cd_cast_destroy,
    .run = cd_cast_run_wrapped,
    .promise = cd_cast_promise_wrapped,
    .rebuilt = cd_cast_rebuilt,
    .save = cd_cast_save,
    .load = cd_cast_load,
    .agreement = cd_cast_agreement,
};
