/* SPDX-License-Identifier: Apache-2.0 */
/* The turns in a walk through the programs of a collective. First every part has a turn, then each
** part to which something was sent. Turns go in ascending order, round by round, as if all parts
** were polled. A part without a change costs nothing.
**
** Ownership  a set owns its memory from init to fini.
** Errors     init returns false when memory is exhausted.
*/
#pragma once
#include "sim/memory.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct cd_turns {
    cd_memory *memory;
    uint64_t *due; /* a bit per part */
    uint32_t count, at;
    uint32_t part; /* whose turn it is */
} cd_turns;

bool cd_turns_init(cd_turns *turns, cd_memory *memory, uint32_t count);
void cd_turns_fini(cd_turns *turns);
/* Something was sent to a part. The part whose turn it is needs no call: it continues by itself,
** also with data for itself. */
void cd_turns_add(cd_turns *turns, uint32_t part);
bool cd_turns_next(cd_turns *turns, uint32_t *part); /* false: nobody's */
