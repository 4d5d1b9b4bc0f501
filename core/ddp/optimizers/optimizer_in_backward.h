/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer in backward: the averaged bucket goes to the optimizer instead of into gradients
** (OIB-01…05). */
#pragma once
#include "core/ddp/reducer/reducer.h"

/* Takes the comm-hook slot; copies the list of managed variables. */
cddp_status cd_optimizer_in_backward_set(cd_reducer *reducer,
                                         const cddp_optimizer_in_backward *optimizer,
                                         cddp_error *err);
/* SUM, then division by the static world size (OIB-02). */
extern const cddp_hook cd_optimizer_in_backward_hook;
