/* SPDX-License-Identifier: Apache-2.0 */
/* One micro-step of a rank on a replica, done by the judge's own code: which samples with which
** weights, which branch, units and outputs, in which order gradients become ready.
**
** The model and its engine are the run's too: core/oracle/second judges them.
**
** Lifetime   begin_step → (forward → loss)… → backward → … ; a replica of the judge's alone.
** Threads    one thread.
*/
#pragma once
#include "core/plan/replica/replica.h"

/* Which parameters require gradients in a step of a rank. */
void cd_own_begin_step(cd_replica *replica, uint32_t rank, uint32_t step);
/* settings: those of the rank. */
cddp_status cd_own_forward(cd_replica *replica, const cddp_plan_settings *settings, cd_pass *pass,
                           cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_own_loss(cd_replica *replica, cd_pass *pass, cddp_error *err) CDDP_MUST_CHECK;
/* losses: (count) their sum is run backward. */
cddp_status cd_own_backward(cd_replica *replica, const cd_micro *micro, cd_value *const *losses,
                            uint32_t count, bool retain_graph, cddp_error *err) CDDP_MUST_CHECK;
/* A gradient is there: what the plan's poison makes of it. */
cddp_status cd_own_make_ready(cd_replica *replica, const cd_micro *micro, uint32_t parameter,
                              cddp_grad *grad, cddp_error *err) CDDP_MUST_CHECK;
/* On exact devices: the symbols of a gradient. */
cddp_status cd_own_write_atoms(const cd_micro *micro, uint32_t parameter, const cddp_tensor *dst,
                               cddp_error *err) CDDP_MUST_CHECK;

/* uses: (unit_count) how often each unit of the model runs. */
cddp_status cd_own_find_uses(const cd_model *model, const cd_micro *micro, uint8_t *uses,
                             cddp_error *err) CDDP_MUST_CHECK;
/* Bit i: output i enters the loss. */
cddp_status cd_own_find_outputs(const cd_model *model, const cd_micro *micro, uint32_t *mask,
                                cddp_error *err) CDDP_MUST_CHECK;
