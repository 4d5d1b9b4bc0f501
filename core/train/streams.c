/* SPDX-License-Identifier: Apache-2.0 */
/* Further work of a training program on a device with streams: backing storage of gradients, and
** waits. See streams.h. */
#include "core/train/streams.h"

#include "cddp/device.h"
#include "core/base/error.h"

cddp_status cd_streams_open(cd_streams *streams, const cddp_plan_streams *planned,
                            const cddp_device *home, cddp_rank *rank, struct cddp_tracer *tracer,
                            cddp_error *err)
{
    const cddp_world_ops *ops = rank->ops;
    const bool has_streams =
        ops->size >= offsetof(cddp_world_ops, streams_close) + sizeof ops->streams_close &&
        ops->streams_open != NULL;
    if (planned->producers == 0) return CDDP_OK;
    if (!has_streams) {
        return cd_fail(
            err, CDDP_E_UNSUPPORTED,
            "streams.producers = %llu: only the simulator has streams, and this world is '%s'",
            (unsigned long long)planned->producers, ops->name);
    }
    streams->rank = rank;
    streams->home = home;
    const cddp_streams_options options = {.size = sizeof options,
                                          .inner = home,
                                          .tracer = tracer,
                                          .operation_ns = planned->operation_us * 1000u};
    CD_TRY(ops->streams_open(rank, &options, &streams->device, err));
    for (uint32_t i = 0; i < planned->producers && i < CD_PRODUCERS_MAX; i++) {
        CD_TRY(streams->device->stream_create(streams->device, &streams->producers[i], err));
        CD_TRY(streams->device->mark_create(streams->device, &streams->marks[i], err));
        streams->producer_count++;
    }
    return CDDP_OK;
}

void cd_streams_close(cd_streams *streams)
{
    if (streams->device != NULL) streams->rank->ops->streams_close(streams->rank, streams->device);
}

cddp_status cd_streams_attach(const cd_streams *streams, cd_module *module, cddp_error *err)
{
    for (size_t i = 0; streams->device != NULL && i < module->parameter_count; i++) {
        cd_parameter *p = &module->parameters[i];
        const cddp_tensor like = cd_streams_queued(streams, &p->tensor);
        CD_TRY(cddp_grad_define(&p->grad, &like, err));
        cddp_grad_drop(&p->grad);
    }
    return CDDP_OK;
}

cddp_tensor cd_streams_queued(const cd_streams *streams, const cddp_tensor *tensor)
{
    cddp_tensor t = *tensor;
    if (streams->device != NULL && t.device != NULL) t.device = streams->device;
    return t;
}

cddp_tensor cd_streams_plain(const cd_streams *streams, const cddp_tensor *tensor)
{
    cddp_tensor t = *tensor;
    if (streams->device != NULL && t.device == streams->device) t.device = streams->home;
    return t;
}

void cd_streams_plain_grad(const cd_streams *streams, const cddp_grad *grad, cddp_grad *plain)
{
    *plain = *grad;
    if (streams->device == NULL) return;
    plain->value = cd_streams_plain(streams, &grad->value);
    if (plain->backing.device == streams->device) plain->backing.device = streams->home;
}

cddp_status cd_streams_lend(const cd_streams *streams, cd_module *module, cddp_error *err)
{
    CD_TRY(cd_streams_settle(streams, err));
    for (size_t i = 0; streams->device != NULL && i < module->parameter_count; i++) {
        cddp_grad *grad = &module->parameters[i].grad;
        grad->value = cd_streams_plain(streams, &grad->value);
    }
    return CDDP_OK;
}

void cd_streams_take_back(const cd_streams *streams, cd_module *module)
{
    for (size_t i = 0; streams->device != NULL && i < module->parameter_count; i++) {
        cddp_grad *grad = &module->parameters[i].grad;
        if (grad->kind == CDDP_GRAD_DENSE) grad->value.device = streams->device;
    }
}

cddp_stream *cd_streams_producer(const cd_streams *streams, uint32_t parameter)
{
    return streams->device != NULL ? streams->producers[parameter % streams->producer_count] : NULL;
}

cddp_status cd_streams_begin_backward(const cd_streams *streams, cddp_error *err)
{
    const cddp_device *device = streams->device;
    for (uint32_t i = 0; device != NULL && i < streams->producer_count; i++) {
        CD_TRY(device->mark_record(device, streams->marks[i], NULL, err));
        CD_TRY(device->mark_wait(device, streams->marks[i], streams->producers[i], err));
    }
    return CDDP_OK;
}

cddp_status cd_streams_await(const cd_streams *streams, uint32_t parameter, cddp_error *err)
{
    if (streams->device != NULL) {
        const cddp_device *device = streams->device;
        cddp_mark *mark = streams->marks[parameter % streams->producer_count];
        CD_TRY(device->mark_record(device, mark, cd_streams_producer(streams, parameter), err));
        CD_TRY(device->mark_wait(device, mark, NULL, err));
    }
    return CDDP_OK;
}

cddp_status cd_streams_settle(const cd_streams *streams, cddp_error *err)
{
    if (streams->device != NULL)
        CD_TRY(streams->device->stream_synchronize(streams->device, NULL, err));
    return CDDP_OK;
}

cddp_status cd_streams_look(const cd_streams *streams, cddp_error *err)
{
    const int64_t none = 0;
    float storage = 0;
    uint64_t digest;
    if (streams->device != NULL) {
        const cddp_tensor nothing =
            cddp_tensor_of(streams->device, &storage, 0, CDDP_F32, &none, 1);
        CD_TRY(streams->device->digest(&nothing, &digest, err));
    }
    return CDDP_OK;
}

cddp_status cd_streams_settle_producers(const cd_streams *streams, cddp_error *err)
{
    for (uint32_t i = 0; streams->device != NULL && i < streams->producer_count; i++)
        CD_TRY(streams->device->stream_synchronize(streams->device, streams->producers[i], err));
    return CDDP_OK;
}
