/* SPDX-License-Identifier: Apache-2.0 */
/* Runs: reads them through a view, and replaces those that a view covers.
**
** A write turns the pieces into patches (position in storage, form), and sorts them where strides
** go back. It builds the next list of runs beside the old one: uncovered runs move, cut runs are
** copied. The lists are exchanged only when nothing can fail any more. Cost: O(runs of the storage
** + patches). */
#include "core/tensor/symbol_storage.h"

#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- life ---- */

static void runs_release(const cddp_allocator *allocator, cd_symbol_run *runs, size_t count,
                         size_t capacity, bool keep_kept)
{
    for (size_t i = 0; i < count; i++)
        if (!keep_kept || !runs[i].is_kept) cd_terms_fini(allocator, &runs[i].piece.terms);
    cd_release(allocator, runs, capacity * sizeof *runs);
}

cddp_status cd_symbol_storage_create(const cddp_allocator *allocator, int64_t numel,
                                     cd_symbol_storage **storage, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const cd_term garbage = {.atom.kind = CD_ATOM_GARBAGE, .advance = 1, .coefficient = {1, 1}};
    const cd_form_slice slice = {&garbage, 1, 0, 1};
    cd_symbol_storage *s = cd_allocate_zero(allocator, sizeof *s);
    if (s == NULL) return cd_fail_memory(err, "a symbol storage");
    s->allocator = allocator;
    s->numel = numel;
    if (numel > 0) {
        s->runs = cd_allocate_array(allocator, 1, sizeof *s->runs);
        if (s->runs == NULL) CD_TRY_OUT(cd_fail_memory(err, "a run of a symbol storage"));
        s->run_capacity = 1;
        s->runs[0].piece.length = numel;
        CD_TRY_OUT(cd_terms_copy(allocator, &slice, numel == 1, &s->runs[0].piece.terms, err));
        s->run_count = 1;
    }
    *storage = s;
    s = NULL;
out:
    cd_symbol_storage_destroy(s);
    return status;
}

void cd_symbol_storage_destroy(cd_symbol_storage *storage)
{
    if (storage == NULL) return;
    runs_release(storage->allocator, storage->runs, storage->run_count, storage->run_capacity,
                 false);
    cd_release(storage->allocator, storage, sizeof *storage);
}

const cddp_allocator *cd_symbol_allocator_of(const cddp_tensor *t)
{
    return ((const cd_symbol_storage *)t->storage)->allocator;
}

void cd_symbol_storage_audit(const cd_symbol_storage *storage)
{
    int64_t at = 0;
    for (size_t r = 0; r < storage->run_count; r++) {
        const cd_symbol_run *run = &storage->runs[r];
        CD_ASSERT(run->offset == at && run->piece.length > 0); /* S1 */
        at += run->piece.length;
        for (size_t i = 0; i < run->piece.terms.count; i++) { /* S2 */
            const cd_term *t = &run->piece.terms.items[i];
            CD_ASSERT(t->coefficient.numerator != 0 && t->coefficient.denominator > 0);
            CD_ASSERT(run->piece.length > 1 || t->advance == 0);
            if (i == 0) continue;
            int order = cd_atom_compare(&t[-1].atom, &t->atom);
            CD_ASSERT(order < 0 ||
                      (order == 0 && t[-1].element < t->element && t[-1].advance == t->advance));
        }
    }
    CD_ASSERT(at == storage->numel); /* S1 */
}

/* ---- reading ---- */

static const cd_symbol_run *find_run(const cd_symbol_storage *storage, int64_t position)
{
    size_t low = 0, high = storage->run_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (storage->runs[middle].offset <= position)
            low = middle;
        else
            high = middle;
    }
    return &storage->runs[low];
}

void cd_piece_reader_begin(cd_piece_reader *reader, const cddp_tensor *view)
{
    *reader = (cd_piece_reader){.storage = view->storage};
    cd_walk_begin(&reader->walk, view);
}

/* Elements of the stretch that lie in this run. */
static int64_t covered(const cd_symbol_run *run, const cd_stretch *s)
{
    int64_t length = s->length;
    if (s->stride > 0) length = (run->offset + run->piece.length - 1 - s->position) / s->stride + 1;
    if (s->stride < 0) length = (s->position - run->offset) / -s->stride + 1;
    return length < s->length ? length : s->length;
}

int64_t cd_piece_reader_get(cd_piece_reader *reader, cd_form_slice *slice)
{
    cd_stretch *s = &reader->stretch;
    if (s->length == 0) {
        int64_t ahead = cd_walk_ahead(&reader->walk);
        if (ahead == 0) return 0;
        *s = cd_walk_take(&reader->walk, ahead);
    }
    const cd_symbol_run *run = find_run(reader->storage, s->position);
    *slice = (cd_form_slice){run->piece.terms.items, run->piece.terms.count,
                             s->position - run->offset, s->stride};
    return covered(run, s);
}

void cd_piece_reader_skip(cd_piece_reader *reader, int64_t length)
{
    reader->stretch.position += length * reader->stretch.stride;
    reader->stretch.length -= length;
}

/* ---- lists of pieces ---- */

static cddp_status append(cd_piece_list *list, cd_piece *piece, cddp_error *err)
{
    void *items = list->items;
    if (!cd_vec_grow(list->allocator, &items, &list->capacity, list->count + 1,
                     sizeof *list->items)) {
        cd_terms_fini(list->allocator, &piece->terms);
        return cd_fail_memory(err, "%zu symbol pieces", list->count + 1);
    }
    list->items = items;
    list->items[list->count++] = *piece;
    return CDDP_OK;
}

static void drop_first(cd_piece *piece)
{
    piece->length--;
    for (size_t i = 0; i < piece->terms.count; i++) {
        cd_term *t = &piece->terms.items[i];
        t->element += t->advance;
        if (piece->length == 1) t->advance = 0;
    }
}

cddp_status cd_piece_list_push(cd_piece_list *list, cd_piece *piece, cddp_error *err)
{
    cd_piece *last = list->count > 0 ? &list->items[list->count - 1] : NULL;
    if (last != NULL && cd_piece_continues(last, piece)) {
        cd_piece_extend(last, piece);
        cd_terms_fini(list->allocator, &piece->terms);
        return CDDP_OK;
    }
    /* Greedy by element: the last piece may still take the first element of a longer one. */
    const cd_piece first = {.length = 1, .terms = piece->terms};
    if (last != NULL && piece->length > 1 && cd_piece_continues(last, &first)) {
        cd_piece_extend(last, &first);
        drop_first(piece);
    }
    return CD_PASS(append(list, piece, err));
}

void cd_piece_list_fini(cd_piece_list *list)
{
    for (size_t i = 0; i < list->count; i++) cd_terms_fini(list->allocator, &list->items[i].terms);
    cd_release(list->allocator, list->items, list->capacity * sizeof *list->items);
    *list = (cd_piece_list){.allocator = list->allocator};
}

/* ---- writing ---- */

typedef struct patch_list {
    const cddp_allocator *allocator;
    cd_symbol_run *items; /* sorted by offset, not touching necessarily */
    size_t count, capacity;
} patch_list;

static void patch_list_fini(patch_list *patches)
{
    runs_release(patches->allocator, patches->items, patches->count, patches->capacity, false);
}

static cddp_status patch_push(patch_list *patches, int64_t position, int64_t length,
                              const cd_form_slice *slice, cddp_error *err)
{
    void *items = patches->items;
    if (!cd_vec_grow(patches->allocator, &items, &patches->capacity, patches->count + 1,
                     sizeof *patches->items))
        return cd_fail_memory(err, "%zu symbol runs", patches->count + 1);
    patches->items = items;
    cd_symbol_run *run = &patches->items[patches->count];
    *run = (cd_symbol_run){.offset = position, .piece.length = length};
    CD_TRY(cd_terms_copy(patches->allocator, slice, length == 1, &run->piece.terms, err));
    patches->count++;
    return CDDP_OK;
}

/* One stretch of the destination, all of one piece: one patch, or one for each element where a
** stride parts them. */
static cddp_status patch_stretch(patch_list *patches, const cd_stretch *s, cd_form_slice slice,
                                 cddp_error *err)
{
    if (s->stride == 1) return CD_PASS(patch_push(patches, s->position, s->length, &slice, err));
    for (int64_t i = 0; i < s->length; i++, slice.first++)
        CD_TRY(patch_push(patches, s->position + i * s->stride, 1, &slice, err));
    return CDDP_OK;
}

static cddp_status make_patches(const cddp_tensor *dst, const cd_piece_list *pieces,
                                patch_list *patches, cddp_error *err)
{
    cd_walk walk;
    size_t at = 0;
    int64_t used = 0; /* elements of the piece `at` that are placed */
    cd_walk_begin(&walk, dst);
    for (int64_t ahead; (ahead = cd_walk_ahead(&walk)) > 0;) {
        CD_ASSERT(at < pieces->count);
        const cd_piece *piece = &pieces->items[at];
        int64_t left = piece->length - used, length = ahead < left ? ahead : left;
        cd_stretch s = cd_walk_take(&walk, length);
        CD_TRY(patch_stretch(patches, &s,
                             (cd_form_slice){piece->terms.items, piece->terms.count, used, 1},
                             err));
        used += length;
        if (used == piece->length) {
            at++;
            used = 0;
        }
    }
    return CDDP_OK;
}

/* Positions are distinct (checked after sorting), so the order is total. */
static int by_offset(const void *a, const void *b)
{
    int64_t x = ((const cd_symbol_run *)a)->offset, y = ((const cd_symbol_run *)b)->offset;
    return x < y ? -1 : x > y;
}

static cddp_status sort_patches(patch_list *patches, cddp_error *err)
{
    bool is_sorted = true;
    for (size_t i = 1; i < patches->count; i++)
        if (patches->items[i - 1].offset > patches->items[i].offset) is_sorted = false;
    if (!is_sorted) qsort(patches->items, patches->count, sizeof *patches->items, by_offset);
    for (size_t i = 1; i < patches->count; i++)
        if (patches->items[i - 1].offset + patches->items[i - 1].piece.length >
            patches->items[i].offset)
            return cd_fail(err, CDDP_E_ARG,
                           "symbol: the destination overlaps itself at element %" PRId64,
                           patches->items[i].offset);
    return CDDP_OK;
}

/* The next list of runs while it is built. */
typedef struct run_builder {
    const cddp_allocator *allocator;
    cd_symbol_run *runs;
    size_t count, capacity;
} run_builder;

/* Adds a run whose terms belong to `owner`, an old run (kept from now on) or a patch (emptied). */
static void build(run_builder *builder, cd_symbol_run run, cd_symbol_run *owner, bool is_old)
{
    cd_symbol_run *last = builder->count > 0 ? &builder->runs[builder->count - 1] : NULL;
    if (last != NULL && cd_piece_continues(&last->piece, &run.piece)) {
        cd_piece_extend(&last->piece, &run.piece);
        return; /* the owner still has the terms, and releases them */
    }
    if (is_old)
        owner->is_kept = true;
    else
        owner->piece.terms = (cd_terms){0};
    run.is_kept = is_old; /* until the exchange: do not release twice */
    CD_ASSERT(builder->count < builder->capacity);
    builder->runs[builder->count++] = run;
}

/* The part of the old run between two positions: the run itself when whole, else a copy of the
** part. */
static cddp_status build_old(run_builder *builder, cd_symbol_run *old, int64_t begin, int64_t end,
                             cddp_error *err)
{
    if (begin >= end) return CDDP_OK;
    cd_symbol_run part = {.offset = begin, .piece.length = end - begin};
    if (part.piece.length == old->piece.length) {
        part.piece.terms = old->piece.terms;
        build(builder, part, old, true);
        return CDDP_OK;
    }
    cd_form_slice slice = {old->piece.terms.items, old->piece.terms.count, begin - old->offset, 1};
    CD_TRY(
        cd_terms_copy(builder->allocator, &slice, part.piece.length == 1, &part.piece.terms, err));
    cd_symbol_run made = part;
    build(builder, part, &made, false);
    /* when it was merged into its neighbour */
    cd_terms_fini(builder->allocator, &made.piece.terms);
    return CDDP_OK;
}

/* Old runs and patches side by side, in order of position; patches win. */
static cddp_status build_runs(cd_symbol_storage *storage, patch_list *patches, run_builder *builder,
                              cddp_error *err)
{
    size_t p = 0;
    int64_t done = 0; /* everything before it is built */
    for (size_t r = 0; r < storage->run_count; r++) {
        cd_symbol_run *old = &storage->runs[r];
        int64_t end = old->offset + old->piece.length;
        for (; p < patches->count && patches->items[p].offset < end; p++) {
            cd_symbol_run *patch = &patches->items[p];
            int64_t begin = done > old->offset ? done : old->offset;
            done = patch->offset + patch->piece.length;
            CD_TRY(build_old(builder, old, begin, patch->offset, err));
            build(builder, *patch, patch, false);
        }
        CD_TRY(build_old(builder, old, done > old->offset ? done : old->offset, end, err));
        if (done < end) done = end;
    }
    return CDDP_OK;
}

/* A merged run may have a new advance. The kept runs are old objects, so an abandoned write resets
** the advance of a single element. */
static void give_up(cd_symbol_storage *storage, run_builder *builder)
{
    for (size_t r = 0; r < storage->run_count; r++) {
        cd_symbol_run *run = &storage->runs[r];
        run->is_kept = false;
        for (size_t i = 0; run->piece.length == 1 && i < run->piece.terms.count; i++)
            run->piece.terms.items[i].advance = 0;
    }
    runs_release(builder->allocator, builder->runs, builder->count, builder->capacity, true);
}

cddp_status cd_symbol_storage_write(const cddp_tensor *dst, const cd_piece_list *pieces,
                                    cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_symbol_storage *storage = dst->storage;
    patch_list patches = {.allocator = storage->allocator};
    run_builder builder = {.allocator = storage->allocator};
    CD_TRY_OUT(make_patches(dst, pieces, &patches, err));
    if (patches.count == 0) goto out;
    CD_TRY_OUT(sort_patches(&patches, err));
    builder.capacity = storage->run_count + 2 * patches.count;
    builder.runs = cd_allocate_array(builder.allocator, builder.capacity, sizeof *builder.runs);
    if (builder.runs == NULL) CD_TRY_OUT(cd_fail_memory(err, "%zu symbol runs", builder.capacity));
    status = build_runs(storage, &patches, &builder, err);
    if (status != CDDP_OK) {
        give_up(storage, &builder);
        goto out;
    }
    runs_release(storage->allocator, storage->runs, storage->run_count, storage->run_capacity,
                 true);
    for (size_t r = 0; r < builder.count; r++) builder.runs[r].is_kept = false;
    storage->runs = builder.runs;
    storage->run_count = builder.count;
    storage->run_capacity = builder.capacity;
out:
    patch_list_fini(&patches);
    return status;
}
