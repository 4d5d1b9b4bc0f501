/* SPDX-License-Identifier: Apache-2.0 */
/* Storage of full parameters and gradients, which comes and goes with every unit.
**
** A buffer that is given back stays idle, for the next unit that wants as much or less. So a steady
** iteration allocates nothing, and what is allocated is never more than the most that was in use at
** once, plus what idle buffers are too large. A slice of a unit does not take the place of a whole
** one. Before a new buffer is made, idle ones that were too small are released.
**
** Streams    everything runs on the default stream, so a buffer that is given back and taken again
**            is used in the order of that stream.
** Ownership  init → take/give → fini. A buffer is a value; `tensor.device` NULL: none.
*/
#pragma once
#include "cddp/device.h"

#define CD_FSDP_IDLE_MAX 16

typedef struct cd_fsdp_buffer {
    cddp_tensor tensor; /* one-dimensional, as many elements as were asked for */
    int64_t capacity;   /* elements of its storage */
    bool is_full;       /* counted as full parameters */
    uint32_t unit;      /* of a full one */
} cd_fsdp_buffer;

typedef struct cd_fsdp_memory {
    cd_fsdp_buffer idle[CD_FSDP_IDLE_MAX];
    size_t idle_count;
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
} cd_fsdp_wish;

cddp_status cd_fsdp_memory_take(cd_fsdp_memory *memory, const cd_fsdp_wish *wish,
                                cd_fsdp_buffer *buffer, cddp_error *err);
/* Accepts an empty buffer, and leaves one. */
void cd_fsdp_memory_give(cd_fsdp_memory *memory, cd_fsdp_buffer *buffer);
void cd_fsdp_memory_fini(cd_fsdp_memory *memory); /* accepts a zeroed one */
