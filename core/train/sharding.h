/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer's model as units of core/fsdp, where the plan says fsdp.enable.
**
** Lifetime   shard → (begin_forward → use… → end_forward → begin_backward → ready… →
**            end_backward)* → unshard. `collect` between iterations only: it is a collective.
*/
#pragma once
#include "cddp/ddp.h"

typedef struct cd_trainer cd_trainer;

cddp_status cd_trainer_shard(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
void cd_trainer_unshard(cd_trainer *t);

cddp_status cd_sharding_begin_forward(cd_trainer *t, bool grad_mode,
                                      cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_sharding_end_forward(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
/* Before a parameter is read: its unit is gathered. */
cddp_status cd_sharding_use(cd_trainer *t, uint32_t parameter, bool in_backward,
                            cddp_error *err) CDDP_MUST_CHECK;
/* What the graph reads; NULL: the parameter's unit is not full. */
const cddp_tensor *cd_sharding_parameter(const cd_trainer *t, uint32_t parameter);
/* Around a whole micro-step. */
cddp_status cd_sharding_enter_no_sync(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_sharding_leave_no_sync(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_sharding_begin_backward(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_sharding_ready(cd_trainer *t, uint32_t parameter, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_sharding_end_backward(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;

cddp_status cd_sharding_regrid(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_sharding_zero_grad(cd_trainer *t, bool to_none, cddp_error *err) CDDP_MUST_CHECK;

/* The norm of all gradients, by which those of the shards are scaled. What was gathered to be shown
** stays as it was. */
cddp_status cd_sharding_clip(cd_trainer *t, double max_norm, double *norm,
                             cddp_error *err) CDDP_MUST_CHECK;

/* Gathers parameters and gradients to be shown. */
cddp_status cd_sharding_collect(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
/* As last gathered. */
const cddp_grad *cd_sharding_gradient(const cd_trainer *t, size_t parameter);
