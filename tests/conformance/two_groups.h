/* SPDX-License-Identifier: Apache-2.0 */
/* Two groups of the same ranks with an operation in each, which ranks wait for in opposite order.
** No backend may make one wait for the other, whatever its operations are made of.
*/
#pragma once
#include "cddp/comm.h"

#define TWO_GROUPS_ROUNDS 3

static inline cddp_status two_groups_open(const cddp_backend *backend, cddp_rank *rank,
                                          const char *name, cddp_group **group, cddp_error *err)
{
    static const uint32_t members[] = {0, 1, 2, 3, 4, 5, 6, 7};
    const cddp_group_options o = {.size = sizeof o,
                                  .backend = backend,
                                  .rank = rank,
                                  .spec = {.size = sizeof o.spec,
                                           .name = name,
                                           .group_rank = rank->rank,
                                           .group_size = rank->world_size,
                                           .members = members,
                                           .timeout_ns = UINT64_C(20000000000)}};
    return cddp_group_create(&o, group, err);
}

/* Asks for it, and does nothing else. */
static inline cddp_status two_groups_poll(cddp_rank *rank, cddp_work *work, cddp_error *err)
{
    for (bool done = false; !done; rank->ops->yield(rank)) {
        const cddp_status status = cddp_work_test(work, &done, err);
        if (status != CDDP_OK) return status;
    }
    return CDDP_OK;
}

static inline cddp_status two_groups_round(cddp_group *const groups[2], cddp_rank *rank, int round,
                                           cddp_error *err)
{
    float data[2][5];
    cddp_work *works[2] = {NULL, NULL};
    cddp_status status = CDDP_OK;
    const int64_t n = 5;
    const float expected = (float)(rank->world_size * (rank->world_size + 1) / 2);
    for (int k = 0; k < 2 && status == CDDP_OK; k++) {
        for (int i = 0; i < 5; i++) data[k][i] = (float)(rank->rank + 1);
        const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data[k], 0, CDDP_F32, &n, 1);
        status = cddp_group_allreduce(groups[k], &t, CDDP_RED_SUM, &works[k], err);
    }
    for (int k = 0; k < 2 && status == CDDP_OK; k++) {
        cddp_work *work = works[(uint32_t)k ^ (rank->rank & 1)];
        if (round == TWO_GROUPS_ROUNDS - 1 && k == 0) status = two_groups_poll(rank, work, err);
        if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    }
    for (int k = 0; k < 2 && status == CDDP_OK; k++)
        for (int i = 0; i < 5 && status == CDDP_OK; i++)
            if (data[k][i] != expected)
                status = cddp_error_set(err, CDDP_E_CORRUPT, "a sum of group %d is %g, not %g", k,
                                        (double)data[k][i], (double)expected);
    return status;
}

static inline cddp_status two_groups_run(const cddp_backend *backend, cddp_rank *rank,
                                         cddp_error *err)
{
    cddp_group *groups[2] = {NULL, NULL};
    cddp_status status = two_groups_open(backend, rank, "rows", &groups[0], err);
    if (status == CDDP_OK) status = two_groups_open(backend, rank, "columns", &groups[1], err);
    for (int i = 0; i < TWO_GROUPS_ROUNDS && status == CDDP_OK; i++)
        status = two_groups_round(groups, rank, i, err);
    cddp_group_destroy(groups[1]);
    cddp_group_destroy(groups[0]);
    return status;
}
