/* SPDX-License-Identifier: Apache-2.0 */
/* How the parameters of one unit are cut into shards.
**
**   FLAT   parameters one after the other, each aligned where asked, form a vector of `numel`
**          elements. Shard r is slice r of it. Gathered shards are the vector itself, with padding
**          at its end:      | a a a a b | b b b c 0 |          W = 2, share 5
**   ROWS   each parameter is cut into ⌈d0/W⌉ rows. Shard r has the r-th rows of every parameter,
**          one after the other, each with its padding. Gathered shards are no vector: the rows of
**          each parameter are brought together behind the gather.
**                           | a a b . c | a a b . 0 |          the same, block by block
**
** A member is a parameter of the unit; a shared one is one member.
**
** Ownership  arrays lie in the caller's arena.
*/
#pragma once
#include "cddp/fsdp.h"
#include "core/base/arena.h"
#include "core/tensor/slices.h"

typedef struct cd_fsdp_member {
    const char *name; /* its first one */
    size_t ordinal;
    int64_t numel, rows, row_numel; /* of a parameter without dimensions: one row */
    int64_t offset;                 /* FLAT: in the vector; ROWS: in each shard */
    int64_t full_offset;            /* of its first element where it is whole */
    int64_t share_rows;             /* ROWS: ⌈rows/W⌉ */
    bool requires_grad;
    cddp_tensor like; /* sizes and original dtype; no storage of ours */
    cddp_grad *grad;
    cddp_tensor full; /* what forward computes with while the unit is full; else no device */
} cd_fsdp_member;

typedef struct cd_fsdp_layout {
    cddp_fsdp_layout kind;
    uint32_t world;
    int64_t numel;      /* alignment included, without padding */
    int64_t share;      /* of one rank */
    int64_t full_numel; /* of the members where they are whole; FLAT: world · share */
    size_t member_count;
    cd_fsdp_member *members;
} cd_fsdp_layout;

/* Computes offsets from the members' sizes. alignment: elements, FLAT only; 1: none. */
void cd_fsdp_layout_place(cd_fsdp_layout *layout, int64_t alignment);

/* Member i's elements in shard `rank`: counted from its first one, and where the first of them lies
** in the shard. */
cd_range cd_fsdp_layout_part(const cd_fsdp_layout *layout, size_t i, uint32_t rank,
                             int64_t *offset);

/* Between gathered shards (world · share) and whole members (full_numel). FLAT: both are the same,
** so there is nothing to do. */
cddp_status cd_fsdp_layout_unpack(const cd_fsdp_layout *layout, const cddp_tensor *shards,
                                  const cddp_tensor *whole, cddp_error *err);
cddp_status cd_fsdp_layout_pack(const cd_fsdp_layout *layout, const cddp_tensor *shards,
                                const cddp_tensor *whole, cddp_error *err);
/* Fills what belongs to no member: alignment and padding. */
cddp_status cd_fsdp_layout_fill_gaps(const cd_fsdp_layout *layout, const cddp_tensor *shards,
                                     cddp_error *err);
/* The elements of one shard that belong to no member, run by run. */
typedef struct cd_fsdp_gap {
    size_t index;          /* of the run; begin with 0 */
    int64_t offset, numel; /* in the shard */
} cd_fsdp_gap;
/* The next run that is not empty; false: there is none. */
bool cd_fsdp_layout_next_gap(const cd_fsdp_layout *layout, uint32_t rank, cd_fsdp_gap *gap);
/* A view of member i in a tensor of whole members. */
cddp_tensor cd_fsdp_layout_view(const cd_fsdp_layout *layout, size_t i, const cddp_tensor *whole);
/* Names, shapes and cut, without the contents. */
uint64_t cd_fsdp_layout_digest(const cd_fsdp_layout *layout);
