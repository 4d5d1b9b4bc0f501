/* SPDX-License-Identifier: Apache-2.0 */
/* Few reductions are under way at a time, so they are a list. */
#include "core/run/reductions.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/tensor/numbers.h"

#include <string.h>

/* More numbers than that are not kept: their sums are held to their bounds. */
#define NUMBERS_MAX ((size_t)1 << 22)

typedef struct entry entry;
struct entry {
    entry *next;
    uint64_t group, sequence;
    uint32_t members, posted, left;
    cddp_red_op op;
    cddp_dtype dtype;
    bool scatters, gathers;
    bool is_odd; /* is_odd: members disagree, or there are too many numbers */
    size_t numel, room;
    double *operands; /* (room) */
    bool *has;        /* (members) */
};

struct cd_reductions {
    const cddp_allocator *allocator;
    entry *first;
    cd_numbers numbers;
    bool has_board;
    cd_operand_board board;
    double *operands; /* (room) read from the board */
    size_t room;
};

cddp_status cd_reductions_create(const cddp_allocator *allocator, const cd_operand_board *board,
                                 cd_reductions **reductions, cddp_error *err)
{
    cd_reductions *r = cd_allocate_zero(allocator, sizeof *r);
    if (r == NULL) return cd_fail_memory(err, "reductions under way");
    r->allocator = r->numbers.allocator = allocator;
    r->has_board = board != NULL;
    if (board != NULL) r->board = *board;
    *reductions = r;
    return CDDP_OK;
}

static void release_entry(const cd_reductions *r, entry *e)
{
    cd_release(r->allocator, e->operands, e->room * sizeof *e->operands);
    cd_release(r->allocator, e->has, e->members * sizeof *e->has);
    cd_release(r->allocator, e, sizeof *e);
}

void cd_reductions_destroy(cd_reductions *reductions)
{
    cd_reductions *r = reductions;
    if (r == NULL) return;
    for (entry *e = r->first; e != NULL;) {
        entry *next = e->next;
        release_entry(r, e);
        e = next;
    }
    cd_numbers_fini(&r->numbers);
    cd_release(r->allocator, r->operands, r->room * sizeof *r->operands);
    cd_release(r->allocator, r, sizeof *r);
}

static entry **find(cd_reductions *r, const cd_tracer_reduction *of)
{
    entry **link = &r->first;
    while (*link != NULL && ((*link)->group != of->group || (*link)->sequence != of->sequence))
        link = &(*link)->next;
    return link;
}

static void drop(cd_reductions *r, entry **link)
{
    entry *e = *link;
    *link = e->next;
    release_entry(r, e);
}

static cddp_status add_entry(cd_reductions *r, const cd_tracer_reduction *posted, entry **added,
                             cddp_error *err)
{
    const size_t numel = (size_t)cddp_tensor_numel(posted->numbers);
    const bool is_large = numel > NUMBERS_MAX / posted->members;
    entry *e = cd_allocate_zero(r->allocator, sizeof *e);
    if (e == NULL) return cd_fail_memory(err, "a reduction under way");
    *e = (entry){.next = r->first,
                 .group = posted->group,
                 .sequence = posted->sequence,
                 .members = posted->members,
                 .op = posted->op,
                 .dtype = posted->numbers->dtype,
                 .scatters = posted->scatters,
                 .gathers = posted->gathers,
                 .is_odd = is_large,
                 .numel = numel,
                 .room = is_large ? 1 : numel * posted->members + 1};
    e->operands = cd_allocate_array(r->allocator, e->room, sizeof *e->operands);
    e->has = cd_allocate_array(r->allocator, e->members, sizeof *e->has);
    if (e->operands == NULL || e->has == NULL) {
        release_entry(r, e);
        return cd_fail_memory(err, "the operands of a reduction of %u ranks", posted->members);
    }
    r->first = e;
    *added = e;
    return CDDP_OK;
}

static bool agrees(const entry *e, const cd_tracer_reduction *posted)
{
    return e->members == posted->members && e->op == posted->op &&
           e->scatters == posted->scatters && e->gathers == posted->gathers &&
           e->dtype == posted->numbers->dtype &&
           e->numel == (size_t)cddp_tensor_numel(posted->numbers);
}

cddp_status cd_reductions_post(cd_reductions *reductions, const cd_tracer_reduction *posted,
                               cddp_error *err)
{
    cd_reductions *r = reductions;
    if (r->has_board) {
        CD_TRY(cd_numbers_read(&r->numbers, posted->numbers, err));
        cd_operand_board_post(&r->board, posted, r->numbers.values, r->numbers.count);
        return CDDP_OK;
    }
    entry **link = find(r, posted), *e = *link;
    /* another group of the same name and members, whose numbers begin anew */
    if (e != NULL && posted->member < e->members && e->has[posted->member]) {
        drop(r, link);
        e = NULL;
    }
    if (e == NULL) CD_TRY(add_entry(r, posted, &e, err));
    e->is_odd = e->is_odd || !agrees(e, posted);
    if (posted->member < e->members) e->has[posted->member] = true;
    e->posted++;
    if (e->is_odd) return CDDP_OK;
    CD_TRY(cd_numbers_read(&r->numbers, posted->numbers, err));
    if (e->numel > 0)
        memcpy(e->operands + posted->member * e->numel, r->numbers.values,
               e->numel * sizeof *e->operands);
    return CDDP_OK;
}

static cddp_status find_on_board(cd_reductions *r, const cd_tracer_reduction *ended,
                                 cd_reduction_operands *found, cddp_error *err)
{
    const size_t share = ended->scatters ? ended->members : 1;
    const size_t numel = (size_t)cddp_tensor_numel(ended->numbers) * share;
    const uint32_t stride = cd_operand_board_get_stride(&r->board, numel, ended->members);
    const size_t count = (numel + stride - 1) / stride;
    if (!cd_vec_grow(r->allocator, (void **)&r->operands, &r->room, count * ended->members + 1,
                     sizeof *r->operands))
        return cd_fail_memory(err, "the operands of a reduction of %u ranks", ended->members);
    if (cd_operand_board_read(&r->board, ended, r->operands, numel))
        *found = (cd_reduction_operands){r->operands, count, stride, ended->numbers->dtype};
    return CDDP_OK;
}

cddp_status cd_reductions_find(cd_reductions *reductions, const cd_tracer_reduction *ended,
                               cd_reduction_operands *found, cddp_error *err)
{
    const entry *e = reductions->first;
    *found = (cd_reduction_operands){NULL, 0, 1, CDDP_F32};
    if (reductions->has_board) return CD_PASS(find_on_board(reductions, ended, found, err));
    while (e != NULL && (e->group != ended->group || e->sequence != ended->sequence)) e = e->next;
    if (e == NULL || e->is_odd || e->posted != e->members || e->members != ended->members)
        return CDDP_OK;
    *found = (cd_reduction_operands){e->operands, e->numel, 1, e->dtype};
    return CDDP_OK;
}

void cd_reductions_leave(cd_reductions *reductions, const cd_tracer_reduction *ended)
{
    if (reductions->has_board) return;
    entry **link = find(reductions, ended), *e = *link;
    if (e == NULL) return;
    e->left++;
    if (e->left == e->members) drop(reductions, link);
}
