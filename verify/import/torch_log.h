/* SPDX-License-Identifier: Apache-2.0 */
/* What a log of a PyTorch job says of a mismatch: with TORCH_DISTRIBUTED_DEBUG=DETAIL each rank
** compares its collective with those of the others, and prints both.
**
** A rank knows best what it runs itself. What another rank prints of it (PyTorch 1.13 prints wrong
** words there for a barrier) counts where its own log is not there. Other lines are passed over;
** those of a time-out of Gloo name an address, and neither a rank nor an operation.
**
** Lifetime   the arena's. bytes are borrowed until the arena goes.
** Errors     without memory nothing is said of further ranks, and the arena knows.
*/
#pragma once
#include "verify/import/value.h"

#include <stdint.h>

typedef struct cd_torch_log_rank {
    uint32_t rank;
    bool is_own;     /* it said so itself */
    cd_value *entry; /* as an entry of a flight recorder's dump */
} cd_torch_log_rank;

typedef struct cd_torch_log {
    cd_arena *arena;
    cd_torch_log_rank *ranks; /* (count) in the order in which they were met */
    size_t count, capacity;
} cd_torch_log;

bool cd_torch_log_is_one(const char *text);
void cd_torch_log_read(cd_torch_log *log, const char *text);
/* A dump of that rank with one entry, which has not ended. NULL: no memory. */
const cd_value *cd_torch_log_make_dump(const cd_torch_log *log, size_t index);
