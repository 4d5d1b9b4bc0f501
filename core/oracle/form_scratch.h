/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of forms in which the judge computes, on the device that the forms are of. */
#pragma once
#include "core/base/error.h"

/* Of the dtype and sizes of `like`; its content is not defined. */
static inline cddp_status cd_form_scratch_make(const cddp_tensor *like, cddp_tensor *tensor,
                                               cddp_error *err)
{
    void *storage = NULL;
    CD_TRY(like->device->allocate(like->device, like->dtype, cddp_tensor_numel(like) + 1, &storage,
                                  err));
    *tensor = cddp_tensor_of(like->device, storage, 0, like->dtype, like->sizes, like->dim_count);
    return CDDP_OK;
}

/* Accepts one that was not made. */
static inline void cd_form_scratch_release(const cddp_tensor *t)
{
    if (t->device != NULL)
        t->device->release(t->device, t->dtype, cddp_tensor_numel(t) + 1, t->storage);
}
