/* SPDX-License-Identifier: Apache-2.0 */
/* The judge's own arithmetic on whole tensors, through memory of the host. */
#include "core/reference/custody_values.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/tensor/dtype.h"

#include <math.h>

/* ---- copies ---- */

static int64_t room_of(const cddp_tensor *t)
{
    const int64_t numel = cddp_tensor_numel(t);
    return numel > 0 ? numel : 1;
}

void cd_kept_fini(cd_kept *kept)
{
    const cddp_tensor *t = &kept->tensor;
    if (t->device != NULL) t->device->release(t->device, t->dtype, room_of(t), t->storage);
    *kept = (cd_kept){.tensor = {.device = NULL}};
}

cddp_status cd_kept_make(cd_kept *kept, const cddp_tensor *like, cddp_error *err)
{
    void *storage = NULL;
    const cddp_tensor *t = &kept->tensor;
    const bool fits = t->device == like->device && t->dtype == like->dtype &&
                      cddp_tensor_numel(t) == cddp_tensor_numel(like);
    if (!fits) {
        cd_kept_fini(kept);
        CD_TRY(like->device->allocate(like->device, like->dtype, room_of(like), &storage, err));
    } else {
        storage = t->storage;
    }
    kept->tensor =
        cddp_tensor_of(like->device, storage, 0, like->dtype, like->sizes, like->dim_count);
    return CDDP_OK;
}

cddp_status cd_kept_copy(cd_kept *kept, const cddp_tensor *from, cddp_error *err)
{
    CD_TRY(cd_kept_make(kept, from, err));
    CD_TRY(from->device->copy(&kept->tensor, from, NULL, err));
    return CDDP_OK;
}

/* ---- elements ---- */

void cd_custody_room_fini(cd_custody_room *room)
{
    cd_release(room->allocator, room->bytes, room->byte_capacity);
    room->bytes = NULL;
    room->byte_capacity = 0;
}

/* A tensor's numbers: complex ones part by part. */
typedef struct numbers {
    cddp_dtype dtype;
    size_t count, width, bytes;
} numbers;

static cddp_status open_numbers(cd_custody_room *room, const cddp_tensor *t, numbers *n,
                                cddp_error *err)
{
    const size_t numel = (size_t)cddp_tensor_numel(t);
    const bool is_complex = t->dtype == CDDP_C64;
    n->dtype = is_complex ? CDDP_F32 : t->dtype;
    n->count = is_complex ? 2 * numel : numel;
    n->width = cddp_dtype_bytes(n->dtype);
    n->bytes = n->count * n->width;
    if (!cd_vec_grow(room->allocator, (void **)&room->bytes, &room->byte_capacity, n->bytes + 1, 1))
        return cd_fail_memory(err, "%zu numbers of the judge", n->count);
    return CDDP_OK;
}

/* One operation per element. */
typedef double (*change_fn)(const numbers *n, double element, double argument);

static cddp_status change(cd_custody_room *room, const cddp_tensor *t, change_fn f, double argument,
                          cddp_error *err)
{
    numbers n;
    CD_TRY(open_numbers(room, t, &n, err));
    if (n.count == 0) return CDDP_OK;
    CD_TRY(t->device->read(t, room->bytes, n.bytes, err));
    for (size_t i = 0; i < n.count; i++) {
        unsigned char *at = room->bytes + i * n.width;
        cd_element_set(n.dtype, at, f(&n, cd_element_get(n.dtype, at), argument));
    }
    CD_TRY(t->device->write(t, room->bytes, n.bytes, err));
    return CDDP_OK;
}

/* Half types are computed in f32 and rounded again; a product of two f32 is exact in f64. */
static double product(const numbers *n, double element, double argument)
{
    return n->dtype == CDDP_F64 ? element * argument
                                : (double)(float)(element * (double)(float)argument);
}

static double sum(const numbers *n, double element, double argument)
{
    return n->dtype == CDDP_F32 ? (double)((float)element + (float)argument) : element + argument;
}

/* The grid k/8, -8 ≤ k ≤ 8: to the nearest multiple of 1/8, ties up, and around modulo 17. */
static double on_the_grid(const numbers *n, double element, double argument)
{
    (void)n, (void)argument;
    if (!(fabs(element) < 1e15)) return element;
    const int64_t k = (int64_t)floor(8 * element + 0.5);
    const int64_t wrapped = ((k + 8) % 17 + 17) % 17 - 8;
    return (double)wrapped / 8;
}

cddp_status cd_custody_regrid(cd_custody_room *room, const cddp_tensor *tensor, cddp_error *err)
{
    return CD_PASS(change(room, tensor, on_the_grid, 0, err));
}

cddp_status cd_custody_multiply(cd_custody_room *room, const cddp_tensor *tensor, double factor,
                                cddp_error *err)
{
    return CD_PASS(change(room, tensor, product, factor, err));
}

cddp_status cd_custody_add(cd_custody_room *room, const cddp_tensor *tensor, double number,
                           cddp_error *err)
{
    return CD_PASS(change(room, tensor, sum, number, err));
}

/* ---- initial values ---- */

/* Integers of the generator, scaled: uniform ones are multiples of bound · 2^-24, those of the grid
** multiples of 1/8. */
static double draw(const cd_walk *w, cd_prng *prng)
{
    if (w->init.kind == CD_INIT_UNIFORM && !w->is_dyadic) {
        const int64_t k = cd_prng_between(prng, -16777216, 16777215);
        return (double)k * 0x1p-24 * w->init.bound;
    }
    return (double)cd_prng_between(prng, -8, 8) * 0.125;
}

cddp_status cd_walk_fill(const cd_walk *walk, cd_custody_room *room, const cddp_tensor *to,
                         cddp_error *err)
{
    numbers n;
    const bool is_constant = walk->init.kind == CD_INIT_ZERO || walk->init.kind == CD_INIT_ONE;
    if ((to->device->flags & CDDP_DEVICE_VALUES) == 0 || is_constant) {
        const bool is_one =
            (to->device->flags & CDDP_DEVICE_VALUES) != 0 && walk->init.kind == CD_INIT_ONE;
        CD_TRY(to->device->fill(to, is_one, NULL, err));
        return CDDP_OK;
    }
    CD_TRY(open_numbers(room, to, &n, err));
    if (n.count == 0) return CDDP_OK;
    cd_prng prng = cd_prng_split(walk->prng, walk->name);
    for (size_t i = 0; i < n.count; i++)
        cd_element_set(n.dtype, room->bytes + i * n.width, draw(walk, &prng));
    CD_TRY(to->device->write(to, room->bytes, n.bytes, err));
    return CDDP_OK;
}
