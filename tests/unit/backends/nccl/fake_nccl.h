/* SPDX-License-Identifier: Apache-2.0 */
/* The part of NCCL that backends/nccl uses, for up to four forked ranks over shared memory.
**
** An operation runs when its stream reaches it. It copies its data to shared memory, waits for all
** members, and computes its result (sums in rank order, by the cpu device). A send ends when its
** receiver got to it, so messages that cross must be fused, as on a GPU. Members that disagree
** never meet: that is a hang until somebody aborts. Every call answers "in progress" first, as
** communicators that do not block may.
**
** fake_nccl_share is called once, before ranks are forked.
*/
#pragma once
#include <stdbool.h>
#include <stdint.h>

void fake_nccl_share(void);
void fake_nccl_break(void); /* the communicators of this process report an asynchronous error */
