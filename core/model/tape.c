/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory of a tape. */
#include "core/model/tape.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

#define BLOCK_BYTES ((int64_t)1 << 20)
#define ALIGNMENT 64 /* cddp/layers.h */

void cd_tape_init(cd_tape *tape, const cddp_device *device, const cddp_allocator *allocator)
{
    *tape = (cd_tape){.device = device, .allocator = allocator};
}

static cddp_status zero(const cd_tape *tape, const cd_tape_block *block, int64_t bytes,
                        cddp_error *err)
{
    /* blocks are made of whole alignments */
    int64_t words = bytes / (int64_t)cddp_dtype_bytes(CDDP_I64);
    cddp_tensor all = cddp_tensor_of(tape->device, block->storage, 0, CDDP_I64, &words, 1);
    return CD_PASS(tape->device->fill(&all, 0, NULL, err));
}

static cddp_status refresh(cd_tape *tape, cddp_error *err)
{
    for (size_t i = 0; i < tape->block_count; i++) {
        if (tape->blocks[i].used > 0)
            CD_TRY(zero(tape, &tape->blocks[i], tape->blocks[i].used, err));
        tape->blocks[i].used = 0;
    }
    tape->is_stale = false;
    return CDDP_OK;
}

static cddp_status add_block(cd_tape *tape, int64_t bytes, cddp_error *err)
{
    const cddp_device *device = tape->device;
    cd_tape_block block = {.bytes = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES};
    if (!cd_vec_grow(tape->allocator, (void **)&tape->blocks, &tape->block_capacity,
                     tape->block_count + 1, sizeof *tape->blocks))
        return cd_fail_memory(err, "block %zu of the tape", tape->block_count);
    CD_TRY(device->allocate(device, CDDP_U8, block.bytes, &block.storage, err));
    cddp_status status = zero(tape, &block, block.bytes, err);
    if (status == CDDP_OK)
        tape->blocks[tape->block_count++] = block;
    else
        device->release(device, CDDP_U8, block.bytes, block.storage);
    return status;
}

cddp_status cd_tape_tensor(cd_tape *tape, cddp_dtype dtype, const int64_t *sizes,
                           uint32_t dim_count, cddp_tensor *tensor, cddp_error *err)
{
    cddp_tensor t = cddp_tensor_of(tape->device, NULL, 0, dtype, sizes, dim_count);
    const int64_t element = (int64_t)cddp_dtype_bytes(dtype),
                  wanted = cddp_tensor_numel(&t) * element;
    const int64_t bytes = (wanted + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (tape->is_stale) CD_TRY(refresh(tape, err));
    while (tape->current < tape->block_count &&
           tape->blocks[tape->current].bytes - tape->blocks[tape->current].used < bytes)
        tape->current++;
    if (tape->current == tape->block_count) CD_TRY(add_block(tape, bytes, err));
    cd_tape_block *block = &tape->blocks[tape->current];
    t.storage = block->storage;
    t.offset = block->used / element;
    block->used += bytes;
    *tensor = t;
    return CDDP_OK;
}

void cd_tape_rewind(cd_tape *tape)
{
    tape->is_stale = true;
    tape->current = 0;
}

void cd_tape_fini(cd_tape *tape)
{
    for (size_t i = 0; i < tape->block_count; i++)
        tape->device->release(tape->device, CDDP_U8, tape->blocks[i].bytes,
                              tape->blocks[i].storage);
    cd_release(tape->allocator, tape->blocks, tape->block_capacity * sizeof *tape->blocks);
    *tape = (cd_tape){0};
}
