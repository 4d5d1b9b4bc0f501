/* SPDX-License-Identifier: Apache-2.0 */
#include "record/pass.h"

#include "cddp/device.h"
#include "core/base/hash.h"

enum { PROBE_ELEMENTS = 64, WHOLE_AT_FIRST = 2, WHOLE_OF = 8 };

/* A part of the parameter that was drawn in that update, the same on all ranks. */
static int64_t probe(cd_recording *r, size_t parameter, uint64_t update)
{
    const cddp_tensor *t = &cd_recording_here(r)->parameters[parameter].storage;
    const int64_t numel = cddp_tensor_numel(t), count = PROBE_ELEMENTS;
    if (numel <= count || !cddp_tensor_is_contiguous(t)) return cd_tracer_digest(&r->tracer, t);
    const uint64_t drawn = cd_hash_mix(cd_hash_mix(0, parameter), update);
    const int64_t at = t->offset + (int64_t)(drawn % (uint64_t)(numel - count + 1));
    const cddp_tensor part = cddp_tensor_of(t->device, t->storage, at, t->dtype, &count, 1);
    return cd_tracer_digest(&r->tracer, &part);
}

void cd_pass_keep(cd_recording *r, size_t parameter, int64_t digest)
{
    const cd_recorded_wrapper *w = cd_recording_here(r);
    cd_recorded_parameter *p = &w->parameters[parameter];
    p->seen = digest;
    p->probed_in = w->updates;
    p->probe = digest != 0 ? probe(r, parameter, w->updates) : 0;
}

void cd_pass_expect(cd_recording *r, size_t parameter, int64_t digest)
{
    cd_recorded_parameter *p = cd_recording_find(r, parameter);
    if (p == NULL) return;
    p->seen = digest;
    p->probe = 0;
}

/* One of each eight, which one is drawn: what a program does in every second step is not missed. */
static bool is_whole(uint64_t update, uint64_t seed)
{
    const uint64_t drawn = cd_hash_mix(seed, update / WHOLE_OF) % WHOLE_OF;
    return update < WHOLE_AT_FIRST || update % WHOLE_OF == drawn;
}

/* Not the number that draws the place of a part. */
static uint64_t seed_of(size_t parameter) { return cd_hash_mix(1, parameter); }

/* What no gradient changes is known from its first pass on. */
static void look_at(cd_recording *r, size_t parameter, bool takes_whole)
{
    cd_recorded_parameter *p = &cd_recording_here(r)->parameters[parameter];
    const bool is_frozen = p->variable < 0;
    if (p->storage.device == NULL || (p->seen == 0 && !is_frozen)) return;
    takes_whole &= !is_frozen;
    if (!takes_whole && p->probe != 0 && probe(r, parameter, p->probed_in) == p->probe) return;
    const int64_t digest = cd_tracer_digest(&r->tracer, &p->storage), seen = p->seen;
    if (digest == seen && p->probe != 0) return;
    cd_pass_keep(r, parameter, digest);
    /* the program has said so itself */
    if (seen == 0 || digest == seen || digest == p->exchanged) return;
    CD_EMIT(&r->tracer, value, NULL, .what = CDDP_WHAT_PARAMETER, .moment = CDDP_MOMENT_FORWARD,
            .id = (int64_t)parameter, .presence = CDDP_PRESENCE_VALUE, .digest = digest,
            .param = is_frozen ? -1 : p->variable, .nonfinite = -1);
}

static bool is_on_device(const cd_recorded_parameter *p)
{
    return p->storage.device != NULL && (p->storage.device->flags & CDDP_DEVICE_HOST) == 0;
}

/* Of an update of which each parameter may be taken in whole, or none. */
static void look(cd_recording *r, bool may_take_whole, bool waits_for_device)
{
    const cd_recorded_wrapper *w = cd_recording_here(r);
    if (r->tracer.wrapper < 0 || !cd_tracer_wants_digest(&r->tracer)) return;
    for (size_t i = 0; i < w->parameter_count; i++) {
        const bool is_elsewhere = is_on_device(&w->parameters[i]);
        if (is_elsewhere && !waits_for_device) continue;
        look_at(r, i, may_take_whole && is_whole(w->updates, is_elsewhere ? 0 : seed_of(i)));
    }
}

void cd_pass_look_at_forward(cd_recording *r, bool is_known)
{
    look(r, !is_known, !is_known);
    cd_pass_end_backward(r);
}

void cd_pass_look(cd_recording *r) { look(r, true, is_whole(cd_recording_here(r)->updates, 0)); }

void cd_pass_announce(cd_recording *r)
{
    cd_pass_end_backward(r);
    cd_pass_look(r);
}

void cd_pass_begin_backward(cd_recording *r)
{
    cd_recorded_wrapper *w = cd_recording_here(r);
    if (w->is_in_backward) return;
    w->is_in_backward = true;
    cd_pass_look(r);
}

void cd_pass_end_backward(cd_recording *r) { cd_recording_here(r)->is_in_backward = false; }
