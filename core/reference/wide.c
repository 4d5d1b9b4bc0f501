/* SPDX-License-Identifier: Apache-2.0 */
#include "core/reference/wide.h"

#include "core/base/error.h"

/* What ranks exchange in low precision is not what they exchange in f64, and complex numbers have
** one width. */
bool cd_wide_is_needed(const cd_replica *replica)
{
    const cd_module *module = replica->model->module;
    const uint32_t flags = module->device->flags;
    if ((flags & CDDP_DEVICE_VALUES) == 0 || replica->model->compute_dtype == CDDP_F64 ||
        (replica->model->exchanges_statistics && replica->plan->world.size > 1 &&
         replica->settings.mixed_precision.param_dtype != CDDP_PARAM_DTYPE_NONE))
        return false;
    for (size_t i = 0; i < module->parameter_count; i++)
        if (!cddp_dtype_is_float(module->parameters[i].tensor.dtype)) return false;
    return true;
}

cddp_status cd_wide_find(cd_wide *wide, const cd_replica *replica, cddp_error *err)
{
    const cd_replica_options options = {.plan = replica->plan,
                                        .rank = replica->rank,
                                        .device = replica->model->module->device,
                                        .allocator = replica->allocator,
                                        .only_names = true,
                                        .in_f64 = true};
    if (wide->replica != NULL) return CDDP_OK;
    return CD_PASS(cd_replica_create(&options, &wide->replica, err));
}

cddp_status cd_wide_load(cd_wide *wide, const cd_wide_values *values, cddp_error *err)
{
    const cd_module *module = wide->replica->model->module;
    for (size_t i = 0; i < module->parameter_count; i++) {
        const cddp_tensor *from = values->parameter(values->context, (uint32_t)i);
        CD_TRY(module->device->copy(&module->parameters[i].tensor, from, NULL, err));
        cddp_grad_drop(&module->parameters[i].grad);
    }
    for (size_t i = 0; values->buffers != NULL && i < module->buffer_count; i++)
        CD_TRY(module->device->copy(&module->buffers[i].tensor, &values->buffers[i], NULL, err));
    return CDDP_OK;
}

void cd_wide_fini(cd_wide *wide)
{
    cd_replica_destroy(wide->replica);
    wide->replica = NULL;
}
