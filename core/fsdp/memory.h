/* SPDX-License-Identifier: Apache-2.0 */
/* Storage of full parameters and gradients, which comes and goes with every unit.
**
** A buffer that is given back stays idle, for the next unit that wants as much or less. So a steady
** iteration allocates nothing, and what is allocated is never more than the most that was in use at
** once, plus what idle buffers are too large. A slice of a unit does not take the place of a whole
** one. Before a new buffer is made, idle ones that were too small are released.
**
** Streams    a buffer that is given back was used in the order of the default stream, so what is
**            queued there may use it again. The stream of gathers runs beside that one. It gets a
**            buffer (wish.is_ahead) that was given back before it or the host last waited for the
**            default stream, or a new one (ahead.h).
** Ownership  init → take/give → fini. A buffer is a value; `tensor.device` NULL: none.
*/
#pragma once
#include "cddp/device.h"
#include "core/base/arena.h"

#define CD_FSDP_IDLE_MAX 16 /* and those that are not settled */

typedef struct cd_fsdp_buffer {
    cddp_tensor tensor; /* one-dimensional, as many elements as were asked for */
    int64_t capacity;   /* elements of its storage */
    bool is_full;       /* counted as full parameters */
    uint32_t unit;      /* of a full one */
    uint64_t given;     /* it was the given-th one that was given back */
} cd_fsdp_buffer;

typedef struct cd_fsdp_memory {
    cd_arena arena;       /* of the list */
    cd_fsdp_buffer *idle; /* (idle_capacity) there is room for all that are taken */
    size_t idle_count, idle_capacity, taken_count;
    bool has_ahead;   /* there is a stream of gathers; else all are settled */
    uint64_t gives;   /* so far */
    uint64_t settled; /* of them: whatever is queued for gathers comes behind their last use */
    struct cddp_tracer *tracer;           /* borrowed */
    uint64_t full_bytes, full_bytes_peak; /* of buffers taken as full parameters */
} cd_fsdp_memory;

typedef struct cd_fsdp_wish {
    const cddp_device *device;
    cddp_dtype dtype;
    int64_t numel;
    bool is_full;
    uint32_t unit; /* of a full one */
    bool is_slice; /* of a rank: nothing of twice its size and more serves */
    bool is_ahead; /* for the stream of gathers */
} cd_fsdp_wish;

void cd_fsdp_memory_init(cd_fsdp_memory *memory, const cddp_allocator *allocator,
                         struct cddp_tracer *tracer);

cddp_status cd_fsdp_memory_take(cd_fsdp_memory *memory, const cd_fsdp_wish *wish,
                                cd_fsdp_buffer *buffer, cddp_error *err);
/* Accepts an empty buffer, and leaves one. */
void cd_fsdp_memory_give(cd_fsdp_memory *memory, cd_fsdp_buffer *buffer);
void cd_fsdp_memory_trim(cd_fsdp_memory *memory); /* idle buffers go back to their device */
void cd_fsdp_memory_fini(cd_fsdp_memory *memory); /* accepts a zeroed one */
