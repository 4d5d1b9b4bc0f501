/* SPDX-License-Identifier: Apache-2.0 */
/* A rank says how far it writes before it writes, and counts an entry when it is whole. So a reader
** that copies first and looks at both counts afterwards knows whether its copy is whole. */
#include "core/run/operand_board.h"

#include <stdatomic.h>
#include <string.h>

#define ENTRIES 256u
/* Numbers of all members together that are kept whole; of longer operands so many of each. */
#define WHOLE_MAX ((size_t)1 << 22)
#define KEPT_MAX ((uint64_t)4096)

typedef struct entry {
    uint64_t group, sequence, first; /* first: its first number, counted from the rank's first */
    uint64_t kept, count;            /* numbers here; of the operand */
    uint32_t member, members;
    cddp_red_op op;
    cddp_dtype dtype;
    bool scatters;
} entry;

typedef struct area {
    _Atomic uint64_t begun;   /* numbers that are written, or are being written */
    _Atomic uint64_t entered; /* entries that are whole */
    entry entries[ENTRIES];
} area;

static area *area_of(const cd_operand_board *b, uint32_t rank)
{
    return (area *)(void *)(b->memory + rank * b->rank_bytes);
}

static float *numbers_of(const cd_operand_board *b, uint32_t rank)
{
    return (float *)(void *)(b->memory + rank * b->rank_bytes + sizeof(area));
}

static uint64_t room_of(const cd_operand_board *b)
{
    return (b->rank_bytes - sizeof(area)) / sizeof(float);
}

bool cd_operand_board_init(cd_operand_board *board, void *memory, size_t bytes, uint32_t rank,
                           uint32_t ranks)
{
    const size_t share = bytes / ranks / _Alignof(max_align_t) * _Alignof(max_align_t);
    *board = (cd_operand_board){memory, share, rank, ranks};
    return memory != NULL && share > 2 * sizeof(area);
}

uint32_t cd_operand_board_get_stride(const cd_operand_board *board, size_t count, uint32_t members)
{
    const uint64_t room = room_of(board), kept = room / 2 < KEPT_MAX ? room / 2 : KEPT_MAX;
    const bool is_whole = count <= room && count <= WHOLE_MAX / (members > 0 ? members : 1);
    const uint64_t stride = is_whole ? 1 : (count + kept - 1) / kept;
    return stride < UINT32_MAX ? (uint32_t)stride : UINT32_MAX;
}

void cd_operand_board_post(const cd_operand_board *board, const cd_tracer_reduction *posted,
                           const double *numbers, size_t count)
{
    area *own = area_of(board, board->rank);
    float *to = numbers_of(board, board->rank);
    const uint64_t room = room_of(board), first = atomic_load(&own->begun),
                   entered = atomic_load(&own->entered);
    const uint32_t stride = cd_operand_board_get_stride(board, count, posted->members);
    const uint64_t kept = (count + stride - 1) / stride;
    atomic_store(&own->begun, first + kept);
    atomic_thread_fence(memory_order_seq_cst);
    for (uint64_t i = 0; i < kept; i++) to[(first + i) % room] = (float)numbers[i * stride];
    own->entries[entered % ENTRIES] = (entry){.group = posted->group,
                                              .sequence = posted->sequence,
                                              .first = first,
                                              .kept = kept,
                                              .count = count,
                                              .member = posted->member,
                                              .members = posted->members,
                                              .op = posted->op,
                                              .dtype = posted->numbers->dtype,
                                              .scatters = posted->scatters};
    atomic_store(&own->entered, entered + 1);
}

/* The newest of this number; the one that would be written next may be half written. */
static bool find(area *a, const cd_tracer_reduction *r, entry *found)
{
    const uint64_t entered = atomic_load(&a->entered);
    for (uint64_t back = 1; back < ENTRIES && back <= entered; back++) {
        const entry e = a->entries[(entered - back) % ENTRIES];
        if (e.group != r->group || e.sequence != r->sequence) continue;
        *found = e;
        atomic_thread_fence(memory_order_seq_cst);
        return atomic_load(&a->entered) - (entered - back) < ENTRIES;
    }
    return false;
}

static bool copy(const cd_operand_board *b, uint32_t rank, const entry *e, double *to)
{
    area *a = area_of(b, rank);
    const float *from = numbers_of(b, rank);
    const uint64_t room = room_of(b);
    for (uint64_t i = 0; i < e->kept; i++) to[i] = (double)from[(e->first + i) % room];
    atomic_thread_fence(memory_order_seq_cst);
    return atomic_load(&a->begun) - e->first <= room;
}

bool cd_operand_board_read(const cd_operand_board *board, const cd_tracer_reduction *ended,
                           double *operands, size_t count)
{
    uint32_t members = 0;
    for (uint32_t rank = 0; rank < board->ranks; rank++) {
        entry e;
        if (!find(area_of(board, rank), ended, &e)) continue;
        if (e.members != ended->members || e.member >= e.members || e.op != ended->op ||
            e.scatters != ended->scatters || e.dtype != ended->numbers->dtype || e.count != count ||
            !copy(board, rank, &e, operands + e.member * e.kept))
            return false;
        members++;
    }
    return members == ended->members;
}
