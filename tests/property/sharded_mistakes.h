/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes of a sharded runtime, one at a time. core/fsdp/fsdp.c is compiled a second time for the
** program that has them, and calls these functions in place of a unit's own.
**
** Lifetime   begin → run → sharded_mistake_fired. begin(SHARDED_NO_MISTAKE): none is made.
** Threads    one thread: the simulator's.
*/
#pragma once
#include "cddp/trace.h"

typedef enum sharded_mistake {
    SHARDED_NO_MISTAKE,
    SHARDED_FULL_COPY_NUDGED,  /* what was gathered has another element, on one rank */
    SHARDED_UNIT_KEPT,         /* a unit is not freed after its forward or backward */
    SHARDED_PREFETCH_LEFT_OUT, /* a unit is gathered when it is needed, not before */
    SHARDED_GRADIENT_NUDGED,   /* … before it is reduced, on one rank */
    SHARDED_GRADIENT_DROPPED,  /* … and not reduced */
    SHARDED_GRADIENT_ROUNDED,  /* … to bfloat16, on one rank */
    SHARDED_RESULT_HALVED,     /* the gradient of a shard, behind its reduction, on one rank */
    SHARDED_SHARD_NUDGED,      /* after it was gathered, on one rank */
    SHARDED_MISTAKES
} sharded_mistake;

const char *sharded_mistake_name(sharded_mistake mistake);
void sharded_mistake_begin(sharded_mistake mistake);
/* Shows which unit's pass runs on a rank. */
void sharded_mistake_event(const cddp_event *event);
bool sharded_mistake_fired(void);
