/* SPDX-License-Identifier: Apache-2.0 */
/* A list in order of first occurrence, searched from behind the last hit. */
#include "core/ddp/parts/tensor_forms.h"

#include "cddp/device.h"

#include <string.h>

/* Dimensions behind dim_count are zero, so that forms can be compared as wholes. */
static cddp_tensor like_of(const cddp_tensor *t)
{
    cddp_tensor like;
    memset(&like, 0, sizeof like);
    if (t->device == NULL) return like;
    like.device = t->device;
    like.dtype = t->dtype;
    like.dim_count = t->dim_count;
    for (uint32_t i = 0; i < t->dim_count && i < CDDP_DIMS_MAX; i++) {
        like.sizes[i] = t->sizes[i];
        like.strides[i] = t->strides[i];
    }
    return like;
}

bool cd_device_is_same(const cddp_device *one, const cddp_device *other)
{
    return one == other || (one->flags == other->flags && strcmp(one->name, other->name) == 0);
}

static const cd_tensor_form *find(const cd_tensor_forms *forms, const cddp_tensor *like)
{
    const cd_tensor_form *start =
        forms->recent != NULL && forms->recent->next != NULL ? forms->recent->next : forms->first;
    const cd_tensor_form *f = start;
    if (f == NULL) return NULL;
    do {
        if (memcmp(&f->like, like, sizeof *like) == 0) return f;
        f = f->next != NULL ? f->next : forms->first;
    } while (f != start);
    return NULL;
}

static const cd_tensor_form *add(cd_tensor_forms *forms, cd_arena *arena, const cddp_tensor *like)
{
    cd_tensor_form *f = cd_arena_array(arena, 1, sizeof *f);
    if (f == NULL) return NULL;
    *f = (cd_tensor_form){.like = *like, .gradient = *like};
    if (like->device != NULL) {
        f->numel = cddp_tensor_numel(like);
        if (!cddp_tensor_is_dense(like))
            f->gradient =
                cddp_tensor_of(like->device, NULL, 0, like->dtype, like->sizes, like->dim_count);
    }
    if (forms->last != NULL)
        forms->last->next = f;
    else
        forms->first = f;
    forms->last = f;
    return f;
}

const cd_tensor_form *cd_tensor_forms_intern(cd_tensor_forms *forms, cd_arena *arena,
                                             const cddp_tensor *tensor)
{
    const cddp_tensor like = like_of(tensor);
    const cd_tensor_form *found = find(forms, &like);
    if (found == NULL) found = add(forms, arena, &like);
    if (found != NULL) forms->recent = found;
    return found;
}
