/* SPDX-License-Identifier: Apache-2.0 */
/* What the recorder looks at inside of the reducer: gradients as a comm hook gets them, as it
** delivers them, and as they are written back.
**
** Note [The law of a cast]
** A hook that casts rounds each of W gradients twice (cast, division) and their sum W - 1 times, in
** unit roundoff u and with the smallest subnormal η. With s the signs of the result m, which all
** ranks share, Σ_r Σ_i s·g_r/W = Σ_i |m_i| within γ_{W+2}(u)·Σ_r Σ_i |g_r|/W + 2·n·W·η. The sums
** themselves are in f64: n·2⁻⁵⁰ of each covers them. An infinity obeys no law, and is I-RANGE's.
*/
#include "record/projection.h"
#include "record/recording.h"
#include "record/storage.h"

#include <math.h>

void cd_recording_project(cd_recording *r, int64_t variable, const cddp_tensor *gradient,
                          bool is_reduced)
{
    cd_projection p;
    if (!cd_tracer_wants_digest(&r->tracer) || !cd_projection_take(gradient, &p)) return;
    CD_EMIT(&r->tracer, projection, NULL, .param = variable, .reduced = is_reduced,
            .sum = cd_f64_bits(p.sum), .magnitude = cd_f64_bits(p.magnitude),
            .numel = cddp_tensor_numel(gradient), .dtype = gradient->dtype);
}

static void see_entered(struct cddp_tracer *tracer, int64_t variable, const cddp_tensor *slice)
{
    (void)tracer;
    cd_recording *r = cd_recording_get();
    if (r == NULL) return;
    cd_storage_look_at_given(r, variable, slice);
    cd_recording_project(r, variable, slice, false);
}

static void see_written(struct cddp_tracer *tracer, int64_t variable, const cddp_tensor *gradient)
{
    (void)tracer;
    cd_recording *r = cd_recording_get();
    if (r != NULL) cd_recording_project(r, variable, gradient, true);
}

static void state(cd_recording *r, const cd_tracer_share *share, const char *words, double given,
                  double got, double bound)
{
    const bool is_finite = isfinite(given) && isfinite(got);
    CD_EMIT(&r->tracer, hook_law, words, .bucket = share->bucket,
            .left = cd_f64_bits(is_finite ? given / share->ranks : 0),
            .right = cd_f64_bits(is_finite ? got / share->ranks : 0),
            .bound = cd_f64_bits(is_finite ? bound : (double)INFINITY), .over_ranks = true);
}

static void state_laws(cd_recording *r, const cd_tracer_share *share)
{
    cd_recorded_hook *h = &cd_recording_here(r)->hook;
    const double w = share->ranks, n = (double)h->numel;
    const bool is_half = h->cast == CDDP_F16;
    const double unit = is_half ? 0x1p-11 : 0x1p-8, tiny = is_half ? 0x1p-24 : 0x1p-133;
    const double terms = (w + 2) * unit;
    const double bound =
        (terms / (1 - terms) * h->magnitude + n * 0x1p-50 * (h->magnitude + h->got)) / w +
        2 * n * tiny;
    state(r, share, "the result is the mean of what the ranks gave", h->given, h->got,
          isfinite(h->magnitude) ? bound : (double)INFINITY);
    state(r, share, "roundings of the mean prefer neither side", h->roundings.given,
          h->roundings.got, cd_roundings_bound(&h->roundings, share->ranks, unit, tiny));
}

/* A joined rank states nothing, so that laws over all ranks are not stated under join. */
static void see_returned(struct cddp_tracer *tracer, const cd_tracer_share *share)
{
    (void)tracer;
    cd_recording *r = cd_recording_get();
    cd_pair pair;
    if (r == NULL || !cd_tracer_wants_digest(&r->tracer)) return;
    cd_recorded_hook *h = &cd_recording_here(r)->hook;
    if (h->cast < 0 || cd_recording_here(r)->has_join) return;
    if (share->variable < 0) {
        if (h->is_whole && h->numel > 0) state_laws(r, share);
        h->given = h->got = h->magnitude = 0;
        h->numel = 0;
        h->is_whole = true;
        cd_roundings_begin(&h->roundings);
    } else if (share->is_zero && cd_projection_pair(share->slice, share->slice, &pair)) {
        h->got += pair.got;
        h->numel += pair.numel;
        cd_roundings_add(&h->roundings, NULL, share->slice);
    } else if (share->local != NULL && cd_projection_pair(share->local, share->slice, &pair)) {
        h->given += pair.given;
        h->got += pair.got;
        h->magnitude += pair.magnitude;
        h->numel += pair.numel;
        cd_roundings_add(&h->roundings, share->local, share->slice);
    } else {
        h->is_whole = false;
    }
}

static void see_kept(struct cddp_tracer *tracer, size_t parameter, const cddp_tensor *tensor,
                     const cddp_grad *grad)
{
    (void)tracer;
    cd_recording *r = cd_recording_get();
    if (r != NULL) cd_storage_keep(r, parameter, tensor, grad);
}

static void see_left(struct cddp_tracer *tracer)
{
    (void)tracer;
    cd_recording *r = cd_recording_get();
    if (r == NULL) return;
    r->reduces &= ~cd_recording_bit(r);
    cd_storage_leave(r);
}

/* ---- local SGD ---- */

/* Between averages ranks agree in blocks that share their gradients, or not at all. */
void cd_recording_say_agreement(cd_recording *r)
{
    const cd_recorded_wrapper *w = cd_recording_here(r);
    const int64_t block = w->block != 0 ? w->block : r->averages ? 1 : 0;
    if (!r->averages && !w->has_block) return;
    CD_EMIT(&r->tracer, agreement, NULL, .gradients = w->block, .parameters = block,
            .state = block);
}

static void see_agreed(struct cddp_tracer *tracer, uint32_t ranks)
{
    (void)tracer;
    cd_recording *r = cd_recording_get();
    if (r == NULL) return;
    cd_recorded_wrapper *w = cd_recording_here(r);
    w->block = ranks;
    w->has_block |= ranks != 0;
    cd_recording_say_agreement(r);
}

static bool is_same(const cddp_tensor *a, const cddp_tensor *b)
{
    return a->device == b->device && a->storage == b->storage && a->offset == b->offset;
}

/* An average is of parameters, and wrappers number them: where it lies tells which one it is. */
static void say_averaged(cd_recording *r, const cddp_tensor *parameter, uint32_t ranks)
{
    for (int64_t n = 0; n < CD_TRACER_WRAPPERS_MAX; n++) {
        const cd_recorded_wrapper *w = &r->wrappers[n];
        const int64_t block = w->block != 0 ? w->block : 1;
        for (size_t i = 0; i < w->parameter_count; i++) {
            if (!is_same(&w->parameters[i].storage, parameter)) continue;
            cd_tracer_select(&r->tracer, n);
            CD_EMIT(&r->tracer, agreement, NULL, .gradients = w->block, .parameters = ranks,
                    .state = block, .ordinal = (int64_t)i + 1);
            return;
        }
    }
}

static void see_averaged(struct cddp_tracer *tracer, const cddp_tensor *parameter, uint32_t ranks)
{
    (void)tracer;
    cd_recording *r = cd_recording_get();
    if (r == NULL) return;
    if (!r->averages) CD_EMIT(&r->tracer, mark, CD_TRACER_AVERAGES, .value = 0);
    r->averages = true;
    if (parameter != NULL)
        say_averaged(r, parameter, ranks);
    else
        cd_recording_say_agreement(r);
}

/* ---- reductions of the program ---- */

/* Bitmaps and votes are whole numbers, an averager says what it does, and what a backward posts
** that synchronises is its wrapper's. */
static void see_posted(struct cddp_tracer *tracer, const cddp_tensor *tensor)
{
    cd_recording *r = cd_recording_get();
    if (r == NULL || r->averages || r->is_sharded || r->reduces > 0) return;
    if (cddp_dtype_is_float(tensor->dtype) || tensor->dtype == CDDP_C64)
        CD_EMIT(tracer, mark, CD_TRACER_OWN_REDUCTION, .value = cddp_tensor_numel(tensor));
}

const cd_tracer_watch cd_recording_watch = {see_entered, see_returned, see_written,  see_kept,
                                            see_left,    see_agreed,   see_averaged, see_posted};
