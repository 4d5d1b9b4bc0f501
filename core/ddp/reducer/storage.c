/* SPDX-License-Identifier: Apache-2.0 */
/* Does each gradient in the caller's storage have its own memory? An average that is written into
** one gradient would otherwise overwrite another, or a parameter.
**
** Every reduced backward asks. Where all of them lie as they did when they were last compared, the
** answer is the same: that is one pass over their addresses. Else they are sorted by address.
**
** A gradient whose elements have gaps between them is left out: those of another may lie in the
** gaps.
*/
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/ddp/reducer/reducer.h"

#include "cddp/device.h"

/* Bytes of one storage. On the host all storages are one: pointers may lead into the middle. */
typedef struct span {
    uintptr_t storage;
    uint64_t begin, end;
} span;

static span span_of(const cddp_tensor *t)
{
    const uint64_t element = cddp_dtype_bytes(t->dtype), at = (uint64_t)t->offset * element;
    const bool is_on_host = (t->device->flags & CDDP_DEVICE_HOST) != 0;
    const uint64_t begin = is_on_host ? (uintptr_t)t->storage + at : at;
    return (span){is_on_host ? 0 : (uintptr_t)t->storage, begin,
                  begin + (uint64_t)cddp_tensor_numel(t) * element};
}

static bool is_before(const span *a, const span *b)
{
    return a->storage != b->storage ? a->storage < b->storage : a->begin < b->begin;
}

static bool overlap(const span *a, const span *b)
{
    return a->storage == b->storage && a->begin < b->end && b->begin < a->end;
}

/* Storage that the caller brought, not what cddp_grad_define makes or lends. */
static bool is_callers(const cddp_grad *grad)
{
    return grad->kind == CDDP_GRAD_DENSE && grad->value.device != NULL &&
           grad->value.storage != grad->backing.storage && cddp_tensor_numel(&grad->value) > 0 &&
           cddp_tensor_is_dense(&grad->value);
}

static const cddp_grad *grad_of(const cd_reducer *r, size_t variable)
{
    return cd_wrapped_variable(r->module, variable)->grad;
}

static span span_of_grad(const cd_reducer *r, size_t variable)
{
    return span_of(&grad_of(r, variable)->value);
}

static uint64_t digest_places(const cd_reducer *r)
{
    uint64_t digest = 1;
    for (size_t v = 0; v < r->variable_count; v++) {
        const cddp_grad *grad = grad_of(r, v);
        if (!is_callers(grad)) continue;
        const span s = span_of(&grad->value);
        digest = cd_hash_mix(cd_hash_mix(cd_hash_mix(digest, v), s.storage), s.begin);
        digest = cd_hash_mix(digest, s.end);
    }
    return digest | 1; /* 0: never compared */
}

/* ---- sorting: the table of the last time is nearly in order, but need not be ---- */

static void sift_down(const cd_reducer *r, size_t from, size_t count)
{
    uint32_t *order = r->by_address;
    for (size_t child; (child = 2 * from + 1) < count; from = child) {
        span larger = span_of_grad(r, order[child]);
        if (child + 1 < count) {
            const span other = span_of_grad(r, order[child + 1]);
            if (is_before(&larger, &other)) {
                larger = other;
                child++;
            }
        }
        const span parent = span_of_grad(r, order[from]);
        if (!is_before(&parent, &larger)) return;
        const uint32_t moved = order[from];
        order[from] = order[child];
        order[child] = moved;
    }
}

/* Returns how many there are. */
static size_t sort_by_address(const cd_reducer *r)
{
    size_t count = 0;
    for (size_t v = 0; v < r->variable_count; v++)
        if (is_callers(grad_of(r, v))) r->by_address[count++] = (uint32_t)v;
    for (size_t i = count / 2; i-- > 0;) sift_down(r, i, count);
    for (size_t last = count; last-- > 1;) {
        const uint32_t greatest = r->by_address[0];
        r->by_address[0] = r->by_address[last];
        r->by_address[last] = greatest;
        sift_down(r, 0, last);
    }
    return count;
}

/* ---- comparing ---- */

static cddp_status fail_shared(const cd_reducer *r, size_t a, size_t b, cddp_error *err)
{
    return cd_fail(err, CDDP_E_STATE,
                   "the gradients of '%s' and '%s' share memory, so that one average would "
                   "overwrite the other: give each its own storage",
                   cd_wrapped_variable(r->module, a < b ? a : b)->name,
                   cd_wrapped_variable(r->module, a < b ? b : a)->name);
}

static cddp_status fail_in_parameter(const cd_reducer *r, size_t gradient, size_t parameter,
                                     cddp_error *err)
{
    const char *name = cd_wrapped_variable(r->module, gradient)->name;
    if (gradient == parameter)
        return cd_fail(err, CDDP_E_STATE,
                       "the gradient of '%s' lies in the parameter's own storage, which its "
                       "average would overwrite",
                       name);
    return cd_fail(err, CDDP_E_STATE,
                   "the gradient of '%s' lies in the storage of the parameter '%s', which its "
                   "average would overwrite",
                   name, cd_wrapped_variable(r->module, parameter)->name);
}

/* Of gradients that are apart from each other: the one that overlaps the span is the last that
** begins before its end. */
static const uint32_t *find_overlapping(const cd_reducer *r, size_t count, const span *wanted)
{
    size_t low = 0, high = count;
    const span end = {wanted->storage, wanted->end, wanted->end};
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const span s = span_of_grad(r, r->by_address[middle]);
        if (is_before(&s, &end))
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0) return NULL;
    const span last = span_of_grad(r, r->by_address[low - 1]);
    return overlap(&last, wanted) ? &r->by_address[low - 1] : NULL;
}

static cddp_status compare_places(const cd_reducer *r, cddp_error *err)
{
    const size_t count = sort_by_address(r);
    for (size_t i = 1; i < count; i++) {
        const span before = span_of_grad(r, r->by_address[i - 1]),
                   after = span_of_grad(r, r->by_address[i]);
        if (overlap(&before, &after))
            return CD_PASS(fail_shared(r, r->by_address[i - 1], r->by_address[i], err));
    }
    for (size_t v = 0; count > 0 && v < r->variable_count; v++) {
        const cddp_tensor t = cd_packed_tensor_get(&cd_wrapped_variable(r->module, v)->tensor);
        const span s = span_of(&t);
        const bool is_whole = cddp_tensor_is_dense(&t) && cddp_tensor_numel(&t) > 0;
        const uint32_t *gradient = is_whole ? find_overlapping(r, count, &s) : NULL;
        if (gradient != NULL) return CD_PASS(fail_in_parameter(r, *gradient, v, err));
    }
    return CDDP_OK;
}

cddp_status cd_reducer_check_storage(cd_reducer *r, cddp_error *err)
{
    const uint64_t places = digest_places(r);
    if (places == r->places) return CDDP_OK;
    CD_TRY(compare_places(r, err));
    r->places = places;
    return CDDP_OK;
}
