/* SPDX-License-Identifier: Apache-2.0 */
/* Control vectors: host memory where the backend takes it; device memory where it does not, and
** where the parameters are on a device with streams that it reaches, so that their exchange is
** ordered by streams as everything else is. */
#include "core/comm/control.h"

#include "cddp/device.h"
#include "core/base/alloc.h"
#include "core/base/error.h"

#include <string.h>

cddp_status cd_control_init(cd_control *control, const cd_control_spec *spec, cddp_error *err)
{
    const cddp_capabilities *k = cddp_group_capabilities(spec->group);
    cd_control c = {.allocator = spec->allocator, .numel = spec->numel};
    c.bytes = (size_t)spec->numel * cddp_dtype_bytes(spec->dtype);
    c.host = cd_allocate_zero(spec->allocator, c.bytes);
    if (c.host == NULL)
        return cd_fail_memory(err, "a control vector of %lld %s", (long long)spec->numel,
                              cddp_dtype_name(spec->dtype));
    const cddp_device *device = cddp_device_cpu();
    void *storage = c.host;
    bool device_is_reached =
        spec->device != NULL && (spec->device->flags & k->devices & CDDP_DEVICE_ASYNC) != 0;
    if (!k->any_device && ((k->devices & CDDP_DEVICE_HOST) == 0 || device_is_reached)) {
        device = spec->device;
        cddp_status status =
            device->allocate(device, spec->dtype, spec->numel > 0 ? spec->numel : 1, &storage, err);
        if (status != CDDP_OK) {
            cd_control_fini(&c);
            return CD_PASS(status);
        }
    }
    c.is_remote = storage != c.host;
    c.tensor = cddp_tensor_of(device, storage, 0, spec->dtype, &spec->numel, 1);
    *control = c;
    return CDDP_OK;
}

void cd_control_fini(cd_control *control)
{
    if (control->is_remote)
        control->tensor.device->release(control->tensor.device, control->tensor.dtype,
                                        control->numel > 0 ? control->numel : 1,
                                        control->tensor.storage);
    cd_release(control->allocator, control->host, control->bytes);
    memset(control, 0, sizeof *control);
}

cddp_status cd_control_upload(const cd_control *control, cddp_error *err)
{
    if (control->is_remote)
        CD_TRY(control->tensor.device->write(&control->tensor, control->host, control->bytes, err));
    return CDDP_OK;
}

cddp_status cd_control_download(const cd_control *control, cddp_error *err)
{
    if (control->is_remote)
        CD_TRY(control->tensor.device->read(&control->tensor, control->host, control->bytes, err));
    return CDDP_OK;
}

cddp_status cd_control_allreduce(cddp_group *group, cd_control *control, cddp_red_op op,
                                 cddp_error *err)
{
    cddp_work *work = NULL;
    CD_TRY(cd_control_upload(control, err));
    CD_TRY(cddp_group_allreduce(group, &control->tensor, op, &work, err));
    CD_TRY(cddp_work_wait(work, 0, err));
    CD_TRY(cd_control_download(control, err));
    return CDDP_OK;
}

cddp_status cd_control_broadcast(cddp_group *group, cd_control *control, uint32_t root,
                                 cddp_error *err)
{
    cddp_work *work = NULL;
    CD_TRY(cd_control_upload(control, err));
    CD_TRY(cddp_group_broadcast(group, &control->tensor, root, &work, err));
    CD_TRY(cddp_work_wait(work, 0, err));
    CD_TRY(cd_control_download(control, err));
    return CDDP_OK;
}

cddp_status cd_control_allgather(cddp_group *group, cd_control *one, cd_control *all,
                                 cddp_error *err)
{
    cddp_work *work = NULL;
    CD_TRY(cd_control_upload(one, err));
    CD_TRY(cddp_group_allgather(group, &one->tensor, &all->tensor, &work, err));
    CD_TRY(cddp_work_wait(work, 0, err));
    CD_TRY(cd_control_download(all, err));
    return CDDP_OK;
}
