/* SPDX-License-Identifier: Apache-2.0 */
/* The state of one rank's DDP as a number. Two states at one place of a program with equal keys
** issue the same collectives from there on, given the same results and the same gradients in the
** same order.
**
** So an exploration can visit sets of ready gradients instead of orders of them.
*/
#pragma once
#include "cddp/ddp.h"

uint64_t cd_ddp_state_key(const cddp_ddp *ddp);
/* A digest of what this rank would propose for the rebuild if it were asked; 0: nothing now. */
uint64_t cd_ddp_state_proposal(const cddp_ddp *ddp);
