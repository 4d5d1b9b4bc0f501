/* SPDX-License-Identifier: Apache-2.0 */
/* Address space for worlds that come one after the other: pages that one has touched are there for
** the next, without a fault each.
**
** Lifetime   {0} is none yet → take → give → take … → fini. Owned by whoever runs the worlds.
** Threads    one world at a time has the block; others that ask meanwhile get their own.
** Errors     NULL when address space is exhausted.
*/
#pragma once
#include <stddef.h>

typedef struct cd_sim_ground {
    unsigned char *block; /* NULL: none yet, or a world has it */
    size_t bytes;
} cd_sim_ground;

/* At least *bytes, which becomes how many there are. Page-aligned; what is in it is unknown. ground
** NULL: always a new block. */
unsigned char *cd_sim_ground_take(cd_sim_ground *ground, size_t *bytes);
/* touched_bytes: how much of it has pages. */
void cd_sim_ground_give(cd_sim_ground *ground, unsigned char *block, size_t bytes,
                        size_t touched_bytes);
void cd_sim_ground_fini(cd_sim_ground *ground);
