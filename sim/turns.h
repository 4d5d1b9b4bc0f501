/* SPDX-License-Identifier: Apache-2.0 */
/* Whose turn it is in a walk through the programs of a collective: every part's at first, then
** theirs to whom something was sent. They take turns in ascending order, again and again, as if all
** were asked in every round; but asking costs nothing where nothing can have changed.
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
/* Something was sent to a part. Whose turn it is needs no other: it goes on by itself, with what it
** sends to itself too. */
void cd_turns_add(cd_turns *turns, uint32_t part);
bool cd_turns_next(cd_turns *turns, uint32_t *part); /* false: nobody's */
