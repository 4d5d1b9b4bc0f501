/* SPDX-License-Identifier: Apache-2.0 */
/* What only the program knows, as events. Each function is silent without a recording. */
#include "cddp/device.h"
#include "core/base/hash.h"
#include "core/tensor/digest.h"
#include "core/trace/setting.h"
#include "record/pass.h"
#include "record/recording.h"
#include "record/storage.h"

#include <math.h>

/* Recording never stops the program: a position that is none (what a search that found nothing
** returned) and a tensor without memory are taken for not said. The report then misses them. */
static bool is_position(size_t parameter) { return parameter < CD_RECORDED_PARAMETERS_MAX; }

static const cddp_tensor *usable(const cddp_tensor *tensor)
{
    const bool is = tensor != NULL && tensor->device != NULL &&
                    tensor->dim_count <= CDDP_DIMS_MAX &&
                    (tensor->storage != NULL || cddp_tensor_numel(tensor) == 0);
    return is ? tensor : NULL;
}

static int64_t presence_of(const cddp_tensor *tensor)
{
    return tensor != NULL ? CDDP_PRESENCE_VALUE : CDDP_PRESENCE_ABSENT;
}

static int64_t digest_of(const cd_recording *r, const cddp_tensor *tensor)
{
    return tensor != NULL ? cd_tracer_digest(&r->tracer, tensor) : 0;
}

/* Its digest; and whether an element is no number, which I-RANGE wants of every gradient. */
static int64_t look_at(const cd_recording *r, const cddp_tensor *gradient, bool *has_nonfinite)
{
    int64_t index = -1, digest = 0;
    if (gradient != NULL && cd_tracer_wants_digest(&r->tracer))
        digest = (int64_t)cd_digest_and_find_nonfinite(gradient, &index);
    *has_nonfinite = index >= 0;
    return digest;
}

static int64_t variable_of(cd_recording *r, size_t parameter)
{
    const cd_recorded_parameter *p = cd_recording_find(r, parameter);
    return p != NULL ? p->variable : (int64_t)parameter;
}

/* ---- a step ---- */

void cddp_record_step_begin(uint64_t step)
{
    cd_recording *r = cd_recording_get();
    if (r == NULL) return;
    r->says_steps = true;
    cddp_tracer_set_step(&r->tracer, (uint32_t)step, 0);
    if (!cd_recording_here(r)->has_reducer) cd_storage_look_at_begin(r);
    cd_storage_look_at_gradients(r);
}

/* Without a wrapper nobody else says that a forward begins. */
static void announce_forward(cd_recording *r)
{
    cd_storage_look_at_gradients(r);
    if (cd_recording_here(r)->has_reducer) return;
    cd_storage_look_at_accumulated(r);
    cd_pass_announce(r);
}

void cddp_record_micro_step(uint64_t micro_step)
{
    cd_recording *r = cd_recording_get();
    if (r == NULL) return;
    cddp_tracer_set_step(&r->tracer, r->tracer.step, (uint32_t)micro_step);
    announce_forward(r);
}

void cddp_record_samples(uint64_t epoch, const int64_t *ids, size_t count)
{
    cd_recording *r = cd_recording_get();
    if (r == NULL) return;
    uint64_t all = 0;
    if (ids == NULL) count = 0;
    for (size_t i = 0; i < count; i++) {
        all += cd_hash_mix(0, (uint64_t)ids[i]); /* a sum: order does not matter */
        CD_EMIT(&r->tracer, sample, NULL, .sample = ids[i], .weight = cd_f64_bits(1),
                .epoch = (int64_t)epoch);
    }
    CD_EMIT(&r->tracer, samples, NULL, .epoch = (int64_t)epoch, .count = (int64_t)count,
            .ids = (int64_t)all, .weight = cd_f64_bits((double)count));
    announce_forward(r);
}

/* A program that says no steps and has no cddp_ddp: a step ends with its optimizer. */
static void follow_optimizer(cd_recording *r)
{
    cd_recorded_wrapper *w = cd_recording_here(r);
    if (!r->says_steps && !w->has_reducer && w->has_stepped)
        cddp_tracer_set_step(&r->tracer, r->tracer.step + 1, 0);
    w->has_stepped = false;
}

void cddp_record_gradient(size_t parameter, const cddp_tensor *gradient)
{
    cd_recording *r = is_position(parameter) ? cd_recording_get_wrapped() : NULL;
    gradient = usable(gradient);
    if (r != NULL) follow_optimizer(r);
    cd_recorded_parameter *p = r != NULL ? cd_recording_find(r, parameter) : NULL;
    if (p == NULL) return;
    bool has_nonfinite;
    const int64_t presence = presence_of(gradient), digest = look_at(r, gradient, &has_nonfinite);
    cd_storage_begin_backward(r);
    cd_storage_show_gradient(r, parameter, gradient, digest);
    if (presence != CDDP_PRESENCE_ABSENT) p->contributions++;
    CD_EMIT(&r->tracer, grad_local, NULL, .param = p->variable, .presence = presence,
            .digest = digest, .contributions = p->contributions,
            .dtype = gradient != NULL ? (int64_t)gradient->dtype : CDDP_F32,
            .nonfinite = has_nonfinite);
    cd_recording_project(r, p->variable, gradient, false);
}

void cddp_record_reduced(size_t parameter, const cddp_tensor *gradient)
{
    cd_recording *r = is_position(parameter) ? cd_recording_get_wrapped() : NULL;
    gradient = usable(gradient);
    if (r == NULL) return;
    const int64_t variable = variable_of(r, parameter);
    const cd_recorded_wrapper *w = cd_recording_here(r);
    /* cddp_ddp has said so itself, but for what it left inside no_sync */
    if (w->has_reducer && !w->has_added) return;
    if (!w->has_reducer) cd_storage_forget_accumulated(r);
    bool has_nonfinite;
    const int64_t digest = look_at(r, gradient, &has_nonfinite);
    CD_EMIT(&r->tracer, grad_final, NULL, .param = variable, .presence = presence_of(gradient),
            .digest = digest, .bucket = -1, .address = -1,
            .dtype = gradient != NULL ? (int64_t)gradient->dtype : CDDP_F32,
            .nonfinite = has_nonfinite);
    cd_recording_project(r, variable, gradient, true);
}

void cddp_record_zero_grad(bool to_none)
{
    cd_recording *r = cd_recording_get_wrapped();
    if (r == NULL) return;
    cd_recorded_wrapper *w = cd_recording_here(r);
    for (size_t i = 0; i < w->parameter_count; i++) w->parameters[i].contributions = 0;
    CD_EMIT(&r->tracer, zero_grad, NULL, .optimizer = -1, .to_none = to_none);
    cd_storage_expect_clear(r);
    cd_pass_end_backward(r);
}

cddp_record_update cddp_record_update_default(void)
{
    return (cddp_record_update){.size = sizeof(cddp_record_update),
                                .name = "optimizer",
                                .loss_scale = 1,
                                .clip = 1,
                                .norm = NAN};
}

/* Between the reduction and the optimizer a clip and a scaler change gradients by right; the checks
** know it by the settings. */
static void note_rescaling(cd_recording *r, const cddp_record_update *u)
{
    const bool clips = u->clip != 1, scales = u->loss_scale != 1;
    cd_recorded_wrapper *w = cd_recording_here(r);
    w->is_rescaled = clips || scales;
    if (clips && !w->has_clipped)
        cd_setting_emit(&r->tracer,
                        &(cd_setting){.key = CDDP_KEY_clip_max_norm,
                                      .items = 1,
                                      .real = isfinite(u->norm) ? u->clip * u->norm : u->clip});
    if (scales && !w->has_scaled)
        cd_setting_emit(&r->tracer,
                        &(cd_setting){.key = CDDP_KEY_amp_enable, .items = 1, .value = 1});
    w->has_clipped |= clips;
    w->has_scaled |= scales;
}

void cddp_record_optimizer_step(const cddp_record_update *update)
{
    cd_recording *r = cd_recording_get_wrapped();
    const cddp_record_update *u = update;
    if (r == NULL || u == NULL || u->size < sizeof *u) return;
    cd_recording_settle_rank(r);
    if (r->state != CD_RECORDING_ON) return; /* the shard could not be opened */
    cd_storage_look_at_step(r);
    if (!cd_recording_here(r)->has_reducer) cd_storage_forget_accumulated(r);
    cd_pass_end_backward(r);
    note_rescaling(r, u);
    cd_recording_say_agreement(r);
    cd_recording_here(r)->has_stepped = true;
    CD_EMIT(&r->tracer, optimizer_step, u->name, .optimizer = u->optimizer,
            .skipped = u->is_skipped, .lr = cd_f64_bits(u->lr),
            .loss_scale = cd_f64_bits(u->loss_scale), .clip = cd_f64_bits(u->clip),
            .norm = cd_f64_bits(u->norm), .unscaled_before_clip = true);
}

void cddp_record_optimizer_touch(int64_t optimizer, size_t parameter, const cddp_tensor *gradient)
{
    cd_recording *r = is_position(parameter) ? cd_recording_get_wrapped() : NULL;
    gradient = usable(gradient);
    if (r == NULL) return;
    const cd_recorded_wrapper *w = cd_recording_here(r);
    const bool touched = presence_of(gradient) != CDDP_PRESENCE_ABSENT;
    const int64_t digest = digest_of(r, gradient), variable = variable_of(r, parameter);
    if (w->is_rescaled && touched)
        CD_EMIT(&r->tracer, value, NULL, .what = CDDP_WHAT_GRADIENT,
                .moment = CDDP_MOMENT_BEFORE_STEP, .id = (int64_t)parameter,
                .presence = CDDP_PRESENCE_VALUE, .digest = digest, .param = variable,
                .nonfinite = -1);
    /* Alone, a gradient is the mean. */
    if (r->rank.world_size == 1 && !w->has_reducer && touched)
        CD_EMIT(&r->tracer, grad_final, NULL, .param = variable, .presence = CDDP_PRESENCE_VALUE,
                .digest = digest, .bucket = -1, .address = -1, .dtype = gradient->dtype);
    CD_EMIT(&r->tracer, optimizer_touch, NULL, .optimizer = optimizer, .param = variable,
            .touched = touched, .gradient = digest);
    if (touched && !w->is_rescaled) cd_storage_look_at_taken(r, parameter, gradient, digest);
    if (touched) cd_storage_touch(r, parameter);
    /* Alone, what was taken would pass for what was reduced. */
    const bool is_alone = r->rank.world_size == 1 && !w->has_reducer;
    const cd_recorded_parameter *p = cd_recording_find(r, parameter);
    const bool is_rewritten = p != NULL && p->reduced != 0 && p->reduced != digest;
    if (w->is_rescaled || is_rewritten ? !is_alone : !w->has_reducer)
        cd_recording_project(r, variable, gradient, true);
}

/* ---- values ---- */

/* As a wrapper has it (core/ddp/wrap/ddp.c): runs with and without one are compared. */
static uint64_t shape_of(const cddp_tensor *t)
{
    uint64_t digest = t->dim_count;
    for (uint32_t i = 0; i < t->dim_count; i++) {
        digest = cd_hash_mix(digest, (uint64_t)t->sizes[i]);
        digest = cd_hash_mix(digest, (uint64_t)t->strides[i]);
    }
    return digest;
}

void cddp_record_parameter(size_t parameter, const char *name, const cddp_tensor *tensor)
{
    cd_recording *r = cd_recording_get_wrapped();
    if (r == NULL || name == NULL || !is_position(parameter) || tensor == NULL ||
        tensor->dim_count > CDDP_DIMS_MAX)
        return;
    CD_EMIT(&r->tracer, param, name, .param = (int64_t)parameter, .ordinal = (int64_t)parameter,
            .numel = cddp_tensor_numel(tensor), .dtype = tensor->dtype, .requires_grad = true,
            .shape = (int64_t)shape_of(tensor), .name = (int64_t)cd_hash_text(name));
}

/* A wrapper over the world, as far as the checks are concerned: its ranks must agree. */
void cddp_record_parameters_end(void)
{
    cd_recording *r = cd_recording_get_wrapped();
    if (r == NULL || cd_recording_here(r)->has_wrapper) return;
    if (r->group < 0) {
        uint64_t members = r->rank.world_size;
        for (uint32_t i = 0; i < r->rank.world_size; i++) members = cd_hash_mix(members, i);
        CD_EMIT(&r->tracer, group, "world", .group = 0, .members = r->rank.world_size,
                .group_rank = r->rank.rank, .members_digest = (int64_t)members,
                .order = CDDP_ORDER_SAME);
        r->groups--; /* nobody destroys it */
    }
    CD_EMIT(&r->tracer, wrap, NULL, .params = (int64_t)cd_recording_here(r)->parameter_count,
            .group = r->group);
}

void cddp_record_value(cddp_event_enum_what what, cddp_event_enum_moment moment, size_t id,
                       const cddp_tensor *tensor)
{
    cd_recording *r = is_position(id) ? cd_recording_get_wrapped() : NULL;
    tensor = usable(tensor);
    if (r == NULL) return;
    const bool is_parameter = what == CDDP_WHAT_PARAMETER || what == CDDP_WHAT_GRADIENT;
    const int64_t digest = digest_of(r, tensor);
    if (what == CDDP_WHAT_PARAMETER && moment == CDDP_MOMENT_AFTER_STEP &&
        cd_storage_is_shown_again(r, id))
        moment = CDDP_MOMENT_AFTER_AVERAGE;
    CD_EMIT(&r->tracer, value, NULL, .what = what, .moment = moment, .id = (int64_t)id,
            .presence = presence_of(tensor), .digest = digest,
            .param = is_parameter ? variable_of(r, id) : -1, .nonfinite = -1);
    if (what == CDDP_WHAT_PARAMETER &&
        (moment == CDDP_MOMENT_FORWARD || moment == CDDP_MOMENT_ADAPTED))
        cd_storage_exchange(r, id, digest);
    else if (what == CDDP_WHAT_PARAMETER)
        cd_storage_show(r, id, digest);
}

void cddp_record_storage(size_t parameter, const cddp_tensor *tensor, const cddp_tensor *gradient)
{
    cd_recording *r = is_position(parameter) ? cd_recording_get_wrapped() : NULL;
    tensor = usable(tensor);
    gradient = usable(gradient);
    if (r == NULL || tensor == NULL || cd_recording_here(r)->has_reducer) return;
    cd_storage_keep(r, parameter, tensor, NULL);
    cd_recorded_parameter *p = cd_recording_find(r, parameter);
    if (p != NULL && gradient != NULL) p->gradient = *gradient;
}

void cddp_record_storage_end(void)
{
    cd_recording *r = cd_recording_get_wrapped();
    if (r != NULL && !cd_recording_here(r)->has_reducer) cd_storage_leave(r);
}
