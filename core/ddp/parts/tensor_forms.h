/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors in little memory: models have thousands of parameters but few forms, and a form is kept
** once.
**
** Ownership  forms live in the arena that they are interned into; a packed tensor borrows its form
**            and, like any tensor, its storage.
*/
#pragma once
#include "cddp/tensor.h"
#include "core/base/arena.h"

/* The common part of tensors of equal device, dtype, sizes and strides. */
typedef struct cd_tensor_form {
    struct cd_tensor_form *next;
    cddp_tensor like; /* no storage, offset 0; an undefined tensor's has no device */
    /* the layout a gradient gets: like's own when it is dense, else contiguous (BKT-19) */
    cddp_tensor gradient;
    int64_t numel;
} cd_tensor_form;

typedef struct cd_tensor_forms {
    cd_tensor_form *first, *last;
    /* found last: layers repeat, so the next tensor's form is most often its successor */
    const cd_tensor_form *recent;
} cd_tensor_forms;

/* arena: the same for all forms of a set. NULL: no memory. */
const cd_tensor_form *cd_tensor_forms_intern(cd_tensor_forms *forms, cd_arena *arena,
                                             const cddp_tensor *tensor);

/* One device, or two tables of one kind: programs may keep a table for each use. */
bool cd_device_is_same(const cddp_device *one, const cddp_device *other);

typedef struct cd_packed_tensor {
    const cd_tensor_form *form;
    void *storage;
    int64_t offset;
} cd_packed_tensor;

static inline cddp_tensor cd_packed_tensor_get(const cd_packed_tensor *packed)
{
    cddp_tensor t = packed->form->like;
    t.storage = packed->storage;
    t.offset = packed->offset;
    return t;
}
