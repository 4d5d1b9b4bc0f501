/* SPDX-License-Identifier: Apache-2.0 */
/* What the future of one rank's DDP depends on, as a number: two states of one program, at one
** place of it, with equal keys issue the same collectives from there on, given the same results and
** the same gradients in the same order.
**
** That is what lets an exploration visit sets of ready gradients instead of orders of them.
*/
#pragma once
#include "cddp/ddp.h"

uint64_t cd_ddp_state_key(const cddp_ddp *ddp);
/* What this rank would propose for the rebuild, should it be the one that is asked; 0: nothing,
** now. */
uint64_t cd_ddp_state_proposal(const cddp_ddp *ddp);
