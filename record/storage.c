/* SPDX-License-Identifier: Apache-2.0 */
#include "record/storage.h"

#include "cddp/device.h"
#include "core/base/os.h"
#include "record/pass.h"

#include <stdlib.h>
#include <string.h>

static bool is_watched(const cd_recorded_parameter *p)
{
    return p->variable >= 0 && p->storage.device != NULL;
}

static bool is_in_host_memory(const cddp_tensor *t)
{
    return (t->device->flags & CDDP_DEVICE_HOST) != 0 &&
           (t->device->flags & CDDP_DEVICE_VALUES) != 0;
}

/* ---- parameters ---- */

void cd_storage_keep(cd_recording *r, size_t parameter, const cddp_tensor *tensor,
                     const cddp_grad *grad)
{
    cd_recorded_parameter *p = cd_recording_find(r, parameter);
    if (p == NULL) return;
    p->storage = *tensor;
    p->slot = grad;
    p->is_shown = false;
    p->seen = p->probe = 0;
}

void cd_storage_show(cd_recording *r, size_t parameter, int64_t digest)
{
    cd_recorded_parameter *p = cd_recording_find(r, parameter);
    if (p == NULL) return;
    p->digest = digest;
    p->is_shown = digest != 0;
    p->shown_in = cd_recording_here(r)->updates;
    cd_pass_expect(r, parameter, digest);
}

void cd_storage_exchange(cd_recording *r, size_t parameter, int64_t digest)
{
    cd_recorded_parameter *p = cd_recording_find(r, parameter);
    if (p != NULL) p->exchanged = digest;
}

bool cd_storage_is_shown_again(cd_recording *r, size_t parameter)
{
    cd_recorded_parameter *p = cd_recording_find(r, parameter);
    const uint64_t updates = cd_recording_here(r)->updates;
    if (p == NULL || updates == 0) return false;
    const bool is_again = p->stepped_in == updates;
    p->stepped_in = updates;
    return is_again;
}

/* What the step makes of it nobody knows before the program shows it, before this call or behind
** it. */
void cd_storage_touch(cd_recording *r, size_t parameter)
{
    cd_recorded_parameter *p = cd_recording_find(r, parameter);
    if (p == NULL) return;
    p->is_shown &= p->shown_in == cd_recording_here(r)->updates;
    if (!p->is_shown) cd_pass_expect(r, parameter, 0);
}

void cd_storage_accept(cd_recording *r)
{
    cd_recorded_wrapper *w = cd_recording_here(r);
    for (size_t i = 0; i < w->parameter_count; i++)
        if (is_watched(&w->parameters[i]))
            cd_storage_show(r, i, cd_tracer_digest(&r->tracer, &w->parameters[i].storage));
}

/* A program may have released what it lent, against its word; then there is nothing to look at. */
static bool is_there(const cd_recorded_parameter *p)
{
    const size_t element = cddp_dtype_bytes(p->storage.dtype);
    const char *first = (const char *)p->storage.storage + (size_t)p->storage.offset * element;
    return !is_in_host_memory(&p->storage) || !cddp_tensor_is_contiguous(&p->storage) ||
           cd_os_is_mapped(first, (size_t)cddp_tensor_numel(&p->storage) * element);
}

/* Of those that the program has shown since their last step. Those under way are left alone. */
static void look(cd_recording *r, const char *changed, bool is_last)
{
    cd_recorded_wrapper *w = cd_recording_here(r);
    size_t reduced = 0, held = 0;
    if (r->tracer.wrapper < 0 || !cd_tracer_wants_digest(&r->tracer)) return;
    for (size_t i = 0; i < w->parameter_count; i++) {
        cd_recorded_parameter *p = &w->parameters[i];
        reduced += p->variable >= 0;
        p->is_held = is_watched(p) && cddp_tensor_numel(&p->storage) == 0;
        held += p->is_held;
        if (!is_watched(p) || !p->is_shown || (is_last && !is_there(p))) continue;
        const int64_t digest = cd_tracer_digest(&r->tracer, &p->storage);
        cd_pass_keep(r, i, digest);
        if (digest == p->exchanged) continue; /* the step will look */
        p->is_held = digest == p->digest;
        held += p->is_held;
        if (!p->is_held) CD_EMIT(&r->tracer, mark, changed, .value = p->variable);
        p->digest = digest;
    }
    if (held == reduced && held > 0)
        CD_EMIT(&r->tracer, mark, CD_TRACER_HELD, .value = (int64_t)held);
    for (size_t i = 0; held < reduced && i < w->parameter_count; i++)
        if (w->parameters[i].is_held)
            CD_EMIT(&r->tracer, mark, CD_TRACER_ONE_HELD, .value = w->parameters[i].variable);
}

/* Where the training starts, as far as the program did not show it. */
static void show_start(cd_recording *r)
{
    cd_recorded_wrapper *w = cd_recording_here(r);
    w->has_begun = true;
    if (r->tracer.wrapper < 0 || !cd_tracer_wants_digest(&r->tracer)) return;
    for (size_t i = 0; i < w->parameter_count; i++) {
        cd_recorded_parameter *p = &w->parameters[i];
        if (!is_watched(p) || p->is_shown) continue;
        const int64_t digest = cd_tracer_digest(&r->tracer, &p->storage);
        cd_pass_keep(r, i, digest);
        if (digest == p->start || digest == p->exchanged) continue;
        p->start = digest;
        CD_EMIT(&r->tracer, value, NULL, .what = CDDP_WHAT_PARAMETER,
                .moment = CDDP_MOMENT_AFTER_INIT, .id = (int64_t)i, .presence = CDDP_PRESENCE_VALUE,
                .digest = digest, .param = p->variable, .nonfinite = -1);
    }
}

void cd_storage_look_at_begin(cd_recording *r)
{
    cd_recorded_wrapper *w = cd_recording_here(r);
    const bool has_stepped = w->looked_at != w->updates, begins = !w->has_begun && w->updates == 0;
    if (begins) show_start(r);
    w->looked_at = w->updates;
    if (has_stepped) look(r, CD_TRACER_CHANGED, false);
    cd_pass_look_at_forward(r, has_stepped || begins);
}

void cd_storage_look_at_step(cd_recording *r)
{
    cd_recorded_wrapper *w = cd_recording_here(r);
    for (size_t i = 0; i < w->parameter_count; i++) w->parameters[i].exchanged = 0;
    if (w->has_begun && w->updates == 0) show_start(r);
    look(r, CD_TRACER_CHANGED, false);
    w->updates++;
}

static void show_still(cd_recording *r, size_t parameter, int64_t digest, int64_t moment)
{
    CD_EMIT(&r->tracer, value, NULL, .what = CDDP_WHAT_PARAMETER, .moment = moment,
            .id = (int64_t)parameter, .presence = CDDP_PRESENCE_VALUE, .digest = digest,
            .param = -1, .nonfinite = -1);
}

/* What no gradient changes is shown once, behind the last step. A change alike on all ranks is
** their affair. Under join the last step of a rank may be another one: ranks then meet at the
** end. */
static void show_frozen(cd_recording *r)
{
    const cd_recorded_wrapper *w = cd_recording_here(r);
    if (r->tracer.wrapper < 0 || !cd_tracer_wants_digest(&r->tracer)) return;
    for (size_t i = 0; i < w->parameter_count; i++) {
        const cd_recorded_parameter *p = &w->parameters[i];
        if (!p->is_frozen || p->storage.device == NULL || !is_there(p)) continue;
        const int64_t digest = cd_tracer_digest(&r->tracer, &p->storage);
        show_still(r, i, digest, CDDP_MOMENT_AFTER_STEP);
        if (w->has_join) show_still(r, i, digest, CDDP_MOMENT_END);
    }
}

void cd_storage_leave(cd_recording *r)
{
    cd_recorded_wrapper *w = cd_recording_here(r);
    if (w->updates > 0) look(r, CD_TRACER_CHANGED_LAST, true);
    show_frozen(r);
    for (size_t i = 0; i < w->parameter_count; i++) {
        w->parameters[i].storage = w->parameters[i].gradient = (cddp_tensor){.device = NULL};
        w->parameters[i].slot = NULL;
        w->parameters[i].seen = 0;
    }
}

/* ---- gradients ---- */

/* Without a question between them words are or-ed by vectors. */
enum { ZEROS_AT_ONCE = 32 };

/* Zeros of either sign. */
static bool has_only_zeros(const cddp_tensor *t)
{
    static const uint64_t magnitude[] = {[2] = UINT64_C(0x7fff7fff7fff7fff),
                                         [4] = UINT64_C(0x7fffffff7fffffff),
                                         [8] = UINT64_C(0x7fffffffffffffff)};
    const size_t element = cddp_dtype_bytes(t->dtype),
                 bytes = (size_t)cddp_tensor_numel(t) * element;
    const bool is_real = t->dtype == CDDP_F16 || t->dtype == CDDP_BF16 || t->dtype == CDDP_F32 ||
                         t->dtype == CDDP_F64;
    const uint64_t mask = is_real ? magnitude[element] : UINT64_MAX;
    const char *at = (const char *)t->storage + (size_t)t->offset * element, *end = at + bytes;
    uint64_t word, words[ZEROS_AT_ONCE];
    for (; end - at >= (ptrdiff_t)sizeof words; at += sizeof words) {
        uint64_t any = 0;
        memcpy(words, at, sizeof words);
        for (int i = 0; i < ZEROS_AT_ONCE; i++) any |= words[i];
        if ((any & mask) != 0) return false;
    }
    for (; end - at >= (ptrdiff_t)sizeof word; at += sizeof word) {
        memcpy(&word, at, sizeof word);
        if ((word & mask) != 0) return false;
    }
    word = 0;
    memcpy(&word, at, (size_t)(end - at));
    return (word & mask) == 0;
}

/* In a device's memory, or with strides: by its digest. */
static bool has_digest_of_zeros(cd_recording *r, const cddp_tensor *t)
{
    const int64_t digest = cd_tracer_digest(&r->tracer, t), numel = cddp_tensor_numel(t);
    void *zeros = calloc((size_t)numel + 1, cddp_dtype_bytes(t->dtype));
    if (zeros == NULL) return false;
    const cddp_tensor like = cddp_tensor_of(cddp_device_cpu(), zeros, 0, t->dtype, &numel, 1);
    const bool is = digest != 0 && digest == cd_tracer_digest(&r->tracer, &like);
    free(zeros);
    return is;
}

static bool is_cleared(cd_recording *r, const cd_recorded_parameter *p)
{
    const cddp_tensor *t = p->slot != NULL ? &p->slot->value : &p->gradient;
    if (p->slot != NULL && p->slot->kind == CDDP_GRAD_UNDEFINED) return true;
    /* defined since its last reduction: it was dropped in between */
    if (p->slot != NULL && p->slot->is_fresh && !cd_recording_here(r)->has_added) return true;
    if ((p->slot != NULL && p->slot->kind != CDDP_GRAD_DENSE) || t->device == NULL) return false;
    return is_in_host_memory(t) && cddp_tensor_is_contiguous(t) ? has_only_zeros(t)
                                                                : has_digest_of_zeros(r, t);
}

static bool awaits_clear(const cd_recording *r, const cd_recorded_wrapper *w)
{
    return w->awaits_clear && r->tracer.wrapper >= 0 && cd_tracer_wants_digest(&r->tracer);
}

void cd_storage_look_at_gradients(cd_recording *r)
{
    cd_recorded_wrapper *w = cd_recording_here(r);
    int64_t count = 0;
    bool are_cleared = true;
    if (!awaits_clear(r, w)) return;
    for (size_t i = 0; i < w->parameter_count; i++) {
        cd_recorded_parameter *p = &w->parameters[i];
        if (p->variable < 0) continue;
        const bool is = is_cleared(r, p);
        p->was_cleared |= is;
        are_cleared &= is;
        count++;
    }
    if (!are_cleared) return;
    w->awaits_clear = false;
    if (count > 0) CD_EMIT(&r->tracer, mark, CD_TRACER_CLEARED, .value = count);
}

void cd_storage_expect_clear(cd_recording *r)
{
    cd_recorded_wrapper *w = cd_recording_here(r);
    w->awaits_clear = true;
    for (size_t i = 0; i < w->parameter_count; i++) {
        w->parameters[i].local = 0;
        w->parameters[i].was_cleared = false;
    }
    cd_storage_look_at_gradients(r);
}

/* Where it lies; NULL: nobody knows, or there is none. */
static const cddp_tensor *find_gradient(const cd_recorded_parameter *p)
{
    if (p->slot != NULL) return p->slot->kind == CDDP_GRAD_DENSE ? &p->slot->value : NULL;
    return p->gradient.device != NULL ? &p->gradient : NULL;
}

/* Which ones no look since zero_grad found cleared. The backward has begun, so that the first ones
** have content again. Of those that lie nobody knows where, nothing is said. */
static void show_uncleared(cd_recording *r)
{
    const cd_recorded_wrapper *w = cd_recording_here(r);
    if (!awaits_clear(r, w)) return;
    for (size_t i = 0; i < w->parameter_count; i++) {
        const cd_recorded_parameter *p = &w->parameters[i];
        if (p->variable >= 0 && !p->was_cleared && find_gradient(p) != NULL)
            CD_EMIT(&r->tracer, mark, CD_TRACER_NOT_CLEARED, .value = p->variable);
    }
}

void cd_storage_begin_backward(cd_recording *r)
{
    cd_recorded_wrapper *w = cd_recording_here(r);
    cd_storage_look_at_gradients(r);
    show_uncleared(r);
    cd_pass_begin_backward(r);
    w->awaits_clear = false;
    w->has_added = true;
}

void cd_storage_end_backward(cd_recording *r)
{
    cd_recorded_wrapper *w = cd_recording_here(r);
    w->has_added = false;
    for (size_t i = 0; i < w->parameter_count; i++) w->parameters[i].local = 0;
}

/* ---- gradients that are there ---- */

void cd_storage_show_gradient(cd_recording *r, size_t parameter, const cddp_tensor *gradient,
                              int64_t digest)
{
    cd_recorded_parameter *p = cd_recording_find(r, parameter);
    if (p == NULL) return;
    p->local = digest;
    p->local_dtype = gradient != NULL ? gradient->dtype : CDDP_DTYPE_COUNT;
}

static bool adds_up_here(const cd_recording *r, const cd_recorded_wrapper *w)
{
    return !w->adds_in_hook && r->tracer.wrapper >= 0 && cd_tracer_wants_digest(&r->tracer);
}

void cd_storage_forget_accumulated(cd_recording *r)
{
    cd_recorded_wrapper *w = cd_recording_here(r);
    for (size_t i = 0; i < w->parameter_count; i++) w->parameters[i].local = 0;
}

void cd_storage_keep_accumulated(cd_recording *r)
{
    cd_recorded_wrapper *w = cd_recording_here(r);
    if (!adds_up_here(r, w)) return;
    w->has_added = true;
    for (size_t i = 0; i < w->parameter_count; i++) {
        cd_recorded_parameter *p = &w->parameters[i];
        const cddp_tensor *there = p->local == 0 ? find_gradient(p) : NULL;
        if (there == NULL) continue;
        p->local = cd_tracer_digest(&r->tracer, there);
        p->local_dtype = there->dtype;
    }
}

/* A wrapper with mixed precision has cast it meanwhile. */
static bool is_as_left(cd_recording *r, const cd_recorded_parameter *p)
{
    if (p->slot != NULL && p->slot->kind == CDDP_GRAD_UNDEFINED) return false;
    const cddp_tensor *there = find_gradient(p);
    return there == NULL || there->dtype != p->local_dtype ||
           cd_tracer_digest(&r->tracer, there) == p->local;
}

void cd_storage_look_at_accumulated(cd_recording *r)
{
    cd_recorded_wrapper *w = cd_recording_here(r);
    if (!w->has_added || !adds_up_here(r, w)) return;
    for (size_t i = 0; i < w->parameter_count; i++) {
        cd_recorded_parameter *p = &w->parameters[i];
        if (p->local != 0 && !is_as_left(r, p))
            CD_EMIT(&r->tracer, mark, CD_TRACER_GRADIENT_CHANGED, .value = p->variable);
        p->local = 0; /* once */
    }
}

/* Mixed precision casts in between. */
void cd_storage_look_at_given(cd_recording *r, int64_t variable, const cddp_tensor *slice)
{
    const cd_recorded_wrapper *w = cd_recording_here(r);
    const cd_recorded_parameter *p = NULL;
    if (!adds_up_here(r, w)) return;
    const size_t from =
        variable > 0 ? (size_t)variable : 0; /* no position lies before its number */
    for (size_t i = from; p == NULL && i < w->parameter_count; i++)
        if (w->parameters[i].variable == variable) p = &w->parameters[i];
    if (p != NULL && p->local != 0 && p->local_dtype == slice->dtype &&
        cd_tracer_digest(&r->tracer, slice) != p->local)
        CD_EMIT(&r->tracer, mark, CD_TRACER_GIVEN_CHANGED, .value = variable);
}

static bool is_same_place(const cddp_tensor *a, const cddp_tensor *b)
{
    return a->storage == b->storage && a->offset == b->offset;
}

/* A program that took its gradients along and cleared their place has zeros there. */
void cd_storage_look_at_taken(cd_recording *r, size_t parameter, const cddp_tensor *gradient,
                              int64_t digest)
{
    const cd_recorded_parameter *p = cd_recording_find(r, parameter);
    const cddp_tensor *there = p != NULL ? find_gradient(p) : NULL;
    if (there == NULL || digest == 0 || r->tracer.wrapper < 0 || is_same_place(there, gradient) ||
        there->dtype != gradient->dtype ||
        cddp_tensor_numel(there) != cddp_tensor_numel(gradient) ||
        cd_tracer_digest(&r->tracer, there) == digest)
        return;
    const bool is_plain = is_in_host_memory(there) && cddp_tensor_is_contiguous(there);
    if (!(is_plain ? has_only_zeros(there) : has_digest_of_zeros(r, there)))
        CD_EMIT(&r->tracer, mark, CD_TRACER_ELSEWHERE, .value = p->variable);
}
