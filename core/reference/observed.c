/* SPDX-License-Identifier: Apache-2.0 */
/* The only functions of the judge that read memory of the run. What they read is copied: nothing
** that the run does later changes what is judged. */
#include "core/reference/observed.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

/* ---- the table ---- */

static const cd_observed_row table[] = {
#define CD_OBSERVED_FIELD(type, name, judge, how) {NULL, #name, #type, how, CD_JUDGED_BY_##judge},
#define CD_OBSERVED(name, doc, fields) {#name, NULL, NULL, doc, CD_JUDGED_BY_NOBODY}, fields
#include "core/reference/observed.def"
#undef CD_OBSERVED_FIELD
};

size_t cd_observed_count(void) { return sizeof table / sizeof table[0]; }

const cd_observed_row *cd_observed_get(size_t index) { return &table[index]; }

/* ---- tensors ---- */

static int64_t at_least_one(int64_t numel) { return numel > 0 ? numel : 1; }

static void release_tensor(cddp_tensor *t)
{
    if (t->device == NULL) return;
    t->device->release(t->device, t->dtype, at_least_one(cddp_tensor_numel(t)), t->storage);
    t->device = NULL;
}

static bool fits(const cddp_tensor *mine, const cddp_tensor *theirs)
{
    bool same = mine->device == theirs->device && mine->dtype == theirs->dtype &&
                mine->dim_count == theirs->dim_count;
    for (uint32_t d = 0; same && d < mine->dim_count; d++)
        same = mine->sizes[d] == theirs->sizes[d];
    return same;
}

static cddp_status copy_tensor(cddp_tensor *mine, const cddp_tensor *theirs, cddp_error *err)
{
    if (!fits(mine, theirs)) release_tensor(mine);
    if (theirs->device == NULL) return CDDP_OK;
    if (mine->device == NULL) {
        void *storage = NULL;
        CD_TRY(theirs->device->allocate(theirs->device, theirs->dtype,
                                        at_least_one(cddp_tensor_numel(theirs)), &storage, err));
        *mine = cddp_tensor_of(theirs->device, storage, 0, theirs->dtype, theirs->sizes,
                               theirs->dim_count);
    }
    CD_TRY(theirs->device->copy(mine, theirs, NULL, err));
    return CDDP_OK;
}

cddp_status cd_tensor_copies_take(cd_tensor_copies *copies, const cddp_tensor *theirs, size_t count,
                                  cddp_error *err)
{
    cd_tensor_copies *c = copies;
    if (c->count != count) {
        const cddp_allocator *allocator = c->allocator;
        cd_tensor_copies_fini(c);
        c->allocator = allocator;
        c->items = cd_allocate_array(allocator, count, sizeof *c->items);
        if (c->items == NULL) return cd_fail_memory(err, "copies of %zu tensors", count);
        c->count = count;
    }
    for (size_t i = 0; i < count; i++) CD_TRY(copy_tensor(&c->items[i], &theirs[i], err));
    return CDDP_OK;
}

void cd_tensor_copies_fini(cd_tensor_copies *copies)
{
    if (copies->items == NULL) return; /* nothing was copied */
    for (size_t i = 0; i < copies->count; i++) release_tensor(&copies->items[i]);
    cd_release(copies->allocator, copies->items, copies->count * sizeof *copies->items);
    *copies = (cd_tensor_copies){0};
}

/* ---- gradients ---- */

static cddp_status make_room(cd_gradient_copies *c, cddp_error *err)
{
    if (c->items == NULL) c->items = cd_allocate_array(c->allocator, c->count, sizeof *c->items);
    if (c->rows == NULL) c->rows = cd_allocate_array(c->allocator, c->count, sizeof *c->rows);
    if (c->items == NULL || c->rows == NULL)
        return cd_fail_memory(err, "copies of %zu gradients", c->count);
    return CDDP_OK;
}

static cddp_status copy_sparse(cd_gradient_copies *c, size_t index, const cddp_grad *theirs,
                               cddp_error *err)
{
    cddp_grad *mine = &c->items[index];
    const cddp_tensor rows = cddp_rows_tensor(&theirs->rows);
    CD_TRY(cddp_grad_define(mine, &theirs->value, err));
    CD_TRY(theirs->value.device->copy(&mine->value, &theirs->value, NULL, err));
    CD_TRY(copy_tensor(&c->rows[index], &rows, err));
    mine->kind = CDDP_GRAD_SPARSE;
    mine->rows = cddp_rows_of(&c->rows[index]);
    return CDDP_OK;
}

cddp_status cd_gradient_copies_take(cd_gradient_copies *copies, size_t index,
                                    const cddp_grad *theirs, cddp_error *err)
{
    CD_TRY(make_room(copies, err));
    cddp_grad *mine = &copies->items[index];
    /* Sparse gradients have other rows each time, so storage is reused between dense ones only. */
    const bool reuses = mine->kind != CDDP_GRAD_SPARSE && theirs->kind == CDDP_GRAD_DENSE &&
                        mine->backing.dtype == theirs->value.dtype &&
                        mine->backing.numel == at_least_one(cddp_tensor_numel(&theirs->value));
    if (reuses || (theirs->kind == CDDP_GRAD_UNDEFINED && mine->kind != CDDP_GRAD_SPARSE))
        cddp_grad_drop(mine);
    else
        cddp_grad_fini(mine);
    if (theirs->kind == CDDP_GRAD_SPARSE) CD_TRY(copy_sparse(copies, index, theirs, err));
    if (theirs->kind == CDDP_GRAD_DENSE) {
        CD_TRY(cddp_grad_define(mine, &theirs->value, err));
        CD_TRY(theirs->value.device->copy(&mine->value, &theirs->value, NULL, err));
    }
    return CDDP_OK;
}

void cd_gradient_copies_fini(cd_gradient_copies *copies)
{
    if (copies->items == NULL && copies->rows == NULL) return;
    for (size_t i = 0; copies->items != NULL && i < copies->count; i++)
        cddp_grad_fini(&copies->items[i]);
    for (size_t i = 0; copies->rows != NULL && i < copies->count; i++)
        release_tensor(&copies->rows[i]);
    cd_release(copies->allocator, copies->items, copies->count * sizeof *copies->items);
    cd_release(copies->allocator, copies->rows, copies->count * sizeof *copies->rows);
    *copies = (cd_gradient_copies){0};
}
