/* SPDX-License-Identifier: Apache-2.0 */
/* Which samples a rank sees when: the DistributedSampler of a plan, as a pure function of the
** place.
**
** An epoch's samples are put in an order (shuffled by seed and epoch, or as they are), the order is
** padded or cut to a multiple of the world size, and rank r takes positions r, r + W, r + 2W, …
**
** Lifetime   create → get → destroy; borrows the plan.
*/
#pragma once
#include "cddp/alloc.h"
#include "core/plan/micro.h"

typedef struct cd_sampler cd_sampler;

cddp_status cd_sampler_create(const cddp_plan *plan, uint32_t rank, const cddp_allocator *allocator,
                              cd_sampler **sampler, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_sampler_get(cd_sampler *sampler, const cd_micro *micro, cd_micro_batch *batch,
                           cddp_error *err) CDDP_MUST_CHECK;
void cd_sampler_destroy(cd_sampler *sampler); /* accepts NULL */

/* Those of all ranks, each made when it is first asked for. */
typedef struct cd_samplers {
    const cddp_plan *plan;
    const cddp_allocator *allocator;
    cd_sampler **items; /* (world size), or NULL */
} cd_samplers;

void cd_samplers_init(cd_samplers *samplers, const cddp_plan *plan,
                      const cddp_allocator *allocator);
/* Borrowed until fini. */
cddp_status cd_samplers_find(cd_samplers *samplers, uint32_t rank, cd_sampler **sampler,
                             cddp_error *err) CDDP_MUST_CHECK;
void cd_samplers_fini(cd_samplers *samplers); /* accepts a zeroed one */
