/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory of a tape: tensors for one iteration, out of blocks that are kept.
**
** New tensors are zero. Blocks are zeroed when they are made, and their used part before the first
** tensor of the next iteration, one operation per block. A steady iteration allocates nothing.
**
** Lifetime   init → (tensor … → rewind)* → fini. Tensors are borrowed until the next rewind.
** Threads    one thread.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/device.h"

typedef struct cd_tape_block {
    void *storage; /* of u8 */
    int64_t bytes, used;
} cd_tape_block;

typedef struct cd_tape {
    const cddp_device *device;
    const cddp_allocator *allocator;
    cd_tape_block *blocks; /* (block_count) in the order in which they fill */
    size_t block_count, block_capacity;
    size_t current; /* blocks before it are full */
    bool is_stale;  /* blocks hold the last iteration's values */
} cd_tape;

void cd_tape_init(cd_tape *tape, const cddp_device *device, const cddp_allocator *allocator);
cddp_status cd_tape_tensor(cd_tape *tape, cddp_dtype dtype, const int64_t *sizes,
                           uint32_t dim_count, cddp_tensor *tensor,
                           cddp_error *err) CDDP_MUST_CHECK;
void cd_tape_rewind(cd_tape *tape);
void cd_tape_fini(cd_tape *tape);
