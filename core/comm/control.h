/* SPDX-License-Identifier: Apache-2.0 */
/* A small vector that the runtime itself sends: the used map, layouts, votes, digests.
**
** Where the backend takes host memory the vector is the host array itself; elsewhere it lives on
** the parameters' device and is uploaded and downloaded around the collective.
**
** Ownership  init → use → fini. The tensor is borrowed by posted works until they completed.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/comm.h"

typedef struct cd_control {
    const cddp_allocator *allocator;
    void *host; /* (numel) elements of tensor.dtype */
    size_t bytes;
    int64_t numel;
    cddp_tensor tensor; /* what collectives are given */
    bool is_remote;     /* the tensor is not the host array */
} cd_control;

typedef struct cd_control_spec {
    const cddp_allocator *allocator;
    const cddp_group *group;
    const cddp_device *device; /* of the parameters */
    cddp_dtype dtype;
    int64_t numel;
} cd_control_spec;

cddp_status cd_control_init(cd_control *control, const cd_control_spec *spec, cddp_error *err);
void cd_control_fini(cd_control *control); /* accepts a zeroed control */
cddp_status cd_control_upload(const cd_control *control, cddp_error *err);
cddp_status cd_control_download(const cd_control *control, cddp_error *err);

/* The blocking collectives of construction, rebuild and join: upload, post, wait, download. */
cddp_status cd_control_allreduce(cddp_group *group, cd_control *control, cddp_red_op op,
                                 cddp_error *err);
cddp_status cd_control_broadcast(cddp_group *group, cd_control *control, uint32_t root,
                                 cddp_error *err);
/* all: group_size × one->numel elements. */
cddp_status cd_control_allgather(cddp_group *group, cd_control *one, cd_control *all,
                                 cddp_error *err);
