/* SPDX-License-Identifier: Apache-2.0 */
/* Many tensors in few collectives: each of them flattens tensors of one dtype and device into flat
** buckets of a given size, and gives each bucket to one operation. At most two buckets are under
** way at a time, and the tensors are as before once a call has returned.
**
** Lifetime   everything is borrowed for the call. Flat copies are made and given back in it; a
**            bucket of one contiguous tensor needs none.
** Threads    the rank's. All of them block.
** Errors     a tensor that cannot travel is named by its position. Every rank passes as many
**            tensors, of the same sizes and dtypes, in the same order, and the same bytes_max: they
**            decide which tensors travel together. After a failure a tensor has its old content or
**            its new one.
*/
#pragma once
#include "cddp/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CDDP_COALESCED_DEFAULT_BYTES UINT64_C(262144000) /* 250 MiB, INI-12 */

/* Every tensor becomes that of root (INI-12). bytes_max: of a bucket; 0: the default. */
CDDP_API cddp_status cddp_group_broadcast_coalesced(cddp_group *group, const cddp_tensor *tensors,
                                                    size_t count, uint32_t root, uint64_t bytes_max,
                                                    cddp_error *err) CDDP_MUST_CHECK;

/* Every tensor becomes its reduction over the members, element by element. */
CDDP_API cddp_status cddp_group_allreduce_coalesced(cddp_group *group, const cddp_tensor *tensors,
                                                    size_t count, cddp_red_op op,
                                                    uint64_t bytes_max,
                                                    cddp_error *err) CDDP_MUST_CHECK;

/* Tensor i becomes that of member roots[i]: one broadcast for each that has elements, in this
** order, at most CDDP_BROADCASTS_MAX of them under way together. The tensors are dense, and lie
** alike on all ranks. roots: (count) */
#define CDDP_BROADCASTS_MAX 64
CDDP_API cddp_status cddp_group_broadcast_each(cddp_group *group, const cddp_tensor *tensors,
                                               const uint32_t *roots, size_t count,
                                               cddp_error *err) CDDP_MUST_CHECK;

#ifdef __cplusplus
}
#endif
