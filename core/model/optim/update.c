/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise updates over several tensors at once. On the host chunks are loaded in logical
** order, updated by the rule's function, and stored; elsewhere the device does it. Not here: what
** is computed (adam.c, adagrad.c). */
#include "core/model/optim/rule.h"

#include "core/base/error.h"
#include "core/model/module.h"
#include "core/tensor/dtype.h"
#include "core/tensor/view.h"

/* c64 as f32 with a last dimension of two. */
static cddp_tensor as_real(const cddp_tensor *t)
{
    cddp_tensor real = *t;
    if (t->dtype != CDDP_C64) return real;
    real.dtype = CDDP_F32;
    real.offset *= 2;
    for (uint32_t i = 0; i < t->dim_count; i++) real.strides[i] *= 2;
    real.sizes[t->dim_count] = 2;
    real.strides[t->dim_count] = 1;
    real.dim_count++;
    return real;
}

/* One tensor on its way through the update. */
typedef struct stream {
    cddp_tensor view;
    cd_walk load, store;
    union {
        double f64[CD_UPDATE_CHUNK];
        float f32[CD_UPDATE_CHUNK];
    } chunk;
} stream;

/* Moves n elements between the tensor and the chunk; one at a time where a stride parts them. */
static void move(stream *s, cd_walk *walk, size_t n, bool store)
{
    const cddp_dtype dtype = s->view.dtype, wide = dtype == CDDP_F64 ? CDDP_F64 : CDDP_F32;
    const size_t bytes = cddp_dtype_bytes(dtype), wide_bytes = cddp_dtype_bytes(wide);
    unsigned char *chunk = (unsigned char *)&s->chunk;
    while (n > 0) {
        int64_t ahead = cd_walk_ahead(walk);
        cd_stretch part = cd_walk_take(walk, (size_t)ahead < n ? ahead : (int64_t)n);
        int64_t pieces = part.stride == 1 ? 1 : part.length;
        size_t count = (size_t)(part.length / pieces);
        for (int64_t i = 0; i < pieces; i++, chunk += count * wide_bytes) {
            unsigned char *at = (unsigned char *)s->view.storage +
                                (part.position + i * part.stride) * (int64_t)bytes;
            if (store)
                cd_convert(dtype, at, wide, chunk, count);
            else
                cd_convert(wide, chunk, dtype, at, count);
        }
        n -= (size_t)part.length;
    }
}

bool cd_update_is_there(const cddp_device *device, cddp_update_rule rule)
{
    if ((device->flags & CDDP_DEVICE_HOST) != 0) return false;
    const cddp_layers *layers = cd_device_layers(device);
    return layers != NULL && (layers->rules & CDDP_UPDATE_BIT(rule)) != 0;
}

static cddp_status run_there(const cd_update *update, cddp_error *err)
{
    const cddp_device *device = update->tensors[0]->device;
    cddp_update_call call = *update->there;
    call.size = sizeof call;
    for (size_t i = 0; i < CD_UPDATE_TENSORS_MAX && update->tensors[i] != NULL; i++) {
        if (i > 0)
            CD_TRY(cd_view_check_same(update->tensors[0], update->tensors[i], "update", err));
        call.tensors[i] = update->tensors[i];
    }
    return CD_PASS(cd_device_layers(device)->update(device, &call, err));
}

cddp_status cd_update_run(const cd_update *update, cddp_error *err)
{
    if (update->there != NULL &&
        cd_update_is_there(update->tensors[0]->device, update->there->rule))
        return CD_PASS(run_there(update, err));
    stream streams[CD_UPDATE_TENSORS_MAX];
    void *x[CD_UPDATE_TENSORS_MAX] = {0};
    size_t count = 0;
    for (; count < CD_UPDATE_TENSORS_MAX && update->tensors[count] != NULL; count++) {
        stream *s = &streams[count];
        if (count > 0)
            CD_TRY(cd_view_check_same(update->tensors[0], update->tensors[count], "update", err));
        s->view = as_real(update->tensors[count]);
        cd_walk_begin(&s->load, &s->view);
        cd_walk_begin(&s->store, &s->view);
        x[count] = &s->chunk;
    }
    size_t left = (size_t)cddp_tensor_numel(&streams[0].view);
    while (left > 0) {
        size_t n = left < CD_UPDATE_CHUNK ? left : CD_UPDATE_CHUNK;
        for (size_t i = 0; i < count; i++) move(&streams[i], &streams[i].load, n, false);
        update->functions[streams[0].view.dtype](x, n, update->context);
        for (size_t i = 0; i < count; i++)
            if ((update->written >> i & 1u) != 0) move(&streams[i], &streams[i].store, n, true);
        left -= n;
    }
    return CDDP_OK;
}
