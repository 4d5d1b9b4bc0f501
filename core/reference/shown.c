/* SPDX-License-Identifier: Apache-2.0 */
/* Note [Where the rank is] The moments of a step come in an order that the plan fixes: the step
** begins, each micro-step that is not skipped runs its forwards, and each ends with a reduction or
** without one. So the judge counts steps and micro-steps itself, and the run's own count is only
** compared.
*/
#include "core/reference/shown.h"

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/reference/entered.h"
#include "core/reference/evaluation.h"
#include "core/reference/planned.h"
#include "core/tensor/numbers.h"
#include "core/trace/tracer.h"

/* ---- life ---- */

static void add_digests(cd_arena *memory, cd_shown_digests *d, size_t count)
{
    *d = (cd_shown_digests){.items = cd_arena_array(memory, count + 1, sizeof *d->items),
                            .count = count};
}

cddp_status cd_shown_init(cd_shown *shown, const cd_shown_options *options, cddp_error *err)
{
    const cd_module *module = options->replica->model->module;
    *shown = (cd_shown){.plan = options->plan,
                        .settings = options->settings,
                        .replica = options->replica,
                        .rank = options->rank,
                        .tracer = options->tracer};
    add_digests(options->memory, &shown->parameters, module->parameter_count);
    add_digests(options->memory, &shown->latest_parameters, module->parameter_count);
    add_digests(options->memory, &shown->gradients, module->parameter_count);
    add_digests(options->memory, &shown->reduced_gradients, module->parameter_count);
    add_digests(options->memory, &shown->prepared, module->parameter_count);
    add_digests(options->memory, &shown->buffers, module->buffer_count);
    add_digests(options->memory, &shown->latest_buffers, module->buffer_count);
    add_digests(options->memory, &shown->reduced_buffers, module->buffer_count);
    add_digests(options->memory, &shown->evaluated_buffers, module->buffer_count);
    add_digests(options->memory, &shown->left_buffers, module->buffer_count);
    shown->is_ignored =
        cd_arena_array(options->memory, module->buffer_count + 1, sizeof *shown->is_ignored);
    for (size_t i = 0; shown->is_ignored != NULL && i < module->buffer_count; i++)
        shown->is_ignored[i] =
            cd_planned_lists(&options->settings->model.ignore, module->buffers[i].name);
    return CD_PASS(cd_arena_check(options->memory, err, "what rank %u shows", options->rank));
}

void cd_shown_fini(cd_shown *s) { cd_kept_fini(&s->flat); }

/* ---- where the rank is ---- */

static uint32_t last_micro(const cd_shown *s)
{
    return (uint32_t)s->settings->train.micro_steps - 1;
}

static cd_micro resolve(const cd_shown *s, uint32_t micro_step)
{
    cd_micro micro;
    cd_planned_micro(s->plan, s->settings,
                     (cd_micro_place){s->rank, cd_shown_get_step(s), micro_step}, &micro);
    return micro;
}

uint32_t cd_shown_get_step(const cd_shown *shown)
{
    return shown->begun > 0 ? shown->begun - 1 : 0;
}

/* The next micro-step that is not skipped; beyond the last one: none is left. */
static uint32_t find_next(const cd_shown *s, cd_micro *micro)
{
    uint32_t next = s->has_micro ? s->micro_step + 1 : 0;
    for (; next <= last_micro(s); next++) {
        *micro = resolve(s, next);
        if (micro->skip != CDDP_SKIP_ALL) break;
    }
    return next;
}

/* Elsewhere nothing is evaluated that could be shown. */
static bool has_values(const cd_shown *s)
{
    return (s->replica->model->module->device->flags & CDDP_DEVICE_VALUES) != 0;
}

static void begin_micro(cd_shown *s)
{
    cd_micro micro = {.forwards = 1};
    const uint32_t next = find_next(s, &micro);
    s->micro_step = next <= last_micro(s) ? next : last_micro(s);
    if (cd_evaluation_is_planned(&micro) && has_values(s))
        cd_shown_number(s, "evaluated", 1, s->was_evaluated);
    s->was_evaluated = false;
    s->forwards_left = micro.forwards;
    s->exchanges = 0;
    s->has_micro = true;
    s->has_ended = false;
}

/* A micro-step before the last has run its backward, and what follows was not seen yet. */
static bool has_open_end(const cd_shown *s)
{
    return s->has_micro && !s->has_ended && s->micro_step < last_micro(s);
}

static bool closes_window(const cd_shown *s)
{
    const cd_micro micro = resolve(s, s->micro_step);
    return micro.sync && cd_planned_contributes(&micro);
}

uint32_t cd_shown_get_closing(const cd_shown *shown)
{
    const cd_shown *s = shown;
    return has_open_end(s) && closes_window(s) ? s->micro_step : last_micro(s);
}

static bool steps_in_backward(const cd_shown *s)
{
    for (size_t i = 0; i < s->replica->optimizer_count; i++) {
        if (s->replica->optimizers[i].in_backward) return true;
    }
    return false;
}

static void leave_backward(cd_shown *s, cd_shown_place *place)
{
    const bool is_open = has_open_end(s), closes = is_open && closes_window(s);
    place->accumulates = is_open && !closes && s->buffers.count > 0;
    if (closes || place->accumulates) place->micro_step = s->micro_step;
    s->has_ended = true;
}

static uint32_t micro_of_update(const cd_shown *s, int64_t moment)
{
    if (moment == CDDP_MOMENT_BEFORE_STEP && steps_in_backward(s)) return 0;
    return s->has_micro && resolve(s, s->micro_step).early_step ? s->micro_step : last_micro(s);
}

/* The next step that the plan has for the rank; without one the next number. Steps for which it
** had no inputs are behind it. */
static uint32_t find_next_step(const cd_shown *s)
{
    uint32_t next = s->begun;
    if (s->settings->join.epochs == 1) return next;
    while (next < s->settings->train.steps &&
           !cd_planned_has_step(s->plan, s->settings, s->rank, next))
        next++;
    return next < s->settings->train.steps ? next : s->begun;
}

/* See Note [Where the rank is] */
static cd_shown_place find_place(cd_shown *s, int64_t moment)
{
    if (moment == CDDP_MOMENT_JOIN_END) {
        s->begun = cd_planned_get_epoch_end(s->settings, s->epochs++);
        s->has_micro = false;
    }
    if (moment == CDDP_MOMENT_BEGIN) {
        s->begun = find_next_step(s) + 1;
        s->has_micro = false;
        s->has_ended = true;
    }
    if (moment == CDDP_MOMENT_FORWARD && (!s->has_micro || s->forwards_left == 0)) begin_micro(s);
    if (moment == CDDP_MOMENT_FORWARD) s->forwards_left--;
    cd_shown_place place = {.step = cd_shown_get_step(s), .micro_step = last_micro(s)};
    switch (moment) {
    case CDDP_MOMENT_BEGIN:
    case CDDP_MOMENT_JOIN_END:
    case CDDP_MOMENT_END:
        place.micro_step = 0;
        break;
    case CDDP_MOMENT_FORWARD:
    case CDDP_MOMENT_AFTER_FORWARD:
        place.micro_step = s->micro_step;
        break;
    case CDDP_MOMENT_AFTER_BACKWARD:
        leave_backward(s, &place);
        break;
    case CDDP_MOMENT_BEFORE_STEP:
    case CDDP_MOMENT_AFTER_UPDATE:
        place.micro_step = micro_of_update(s, moment);
        break;
    default:
        break;
    }
    return place;
}

/* ---- numbers ---- */

void cd_shown_number(const cd_shown *shown, const char *field, int64_t expected, int64_t actual)
{
    if (expected == actual) return;
    CD_EMIT(shown->tracer, misshown, field, .id = -1, .expected = expected, .actual = actual);
}

/* ---- copies ---- */

static cddp_status digest_tensors(const cd_shown *s, const cd_observed_tensors *copies,
                                  cd_shown_digests *digests, cddp_error *err)
{
    digests->is_known = false;
    if (copies->count != digests->count || !cd_tracer_wants_digest(s->tracer)) return CDDP_OK;
    for (size_t i = 0; i < copies->count; i++) {
        const cddp_tensor *t = &copies->items[i];
        CD_TRY(t->device->digest(t, &digests->items[i], err));
    }
    digests->is_known = true;
    return CDDP_OK;
}

static cddp_status digest_gradients(const cd_shown *s, const cd_observed_gradients *copies,
                                    cd_shown_digests *digests, cddp_error *err)
{
    digests->is_known = false;
    if (copies->count != digests->count || !cd_tracer_wants_digest(s->tracer)) return CDDP_OK;
    for (size_t i = 0; i < copies->count; i++)
        CD_TRY(cd_gradient_digest(&copies->items[i], &digests->items[i], err));
    digests->is_known = true;
    return CDDP_OK;
}

static void emit_look(const cd_shown *s, int64_t what, int64_t moment,
                      const cd_shown_digests *digests)
{
    uint64_t digest = 0;
    if (!digests->is_known || digests->count == 0) return;
    for (size_t i = 0; i < digests->count; i++) digest = cd_hash_mix(digest, digests->items[i]);
    CD_EMIT(s->tracer, shown, NULL, .what = what, .moment = moment,
            .count = (int64_t)digests->count, .digest = (int64_t)digest);
}

/* One tensor is enough: it says where the copy is wrong. */
static void compare(const cd_shown *s, const char *field, int64_t what,
                    const cd_shown_digests *digests, const cd_shown_digests *other)
{
    if (!digests->is_known || !other->is_known) return;
    for (size_t i = 0; i < digests->count; i++) {
        if (digests->items[i] == other->items[i]) continue;
        CD_EMIT(s->tracer, misshown, field, .id = (int64_t)i,
                .expected = (int64_t)(other->items[i] & CD_SHOWN_DIGEST_BITS),
                .actual = (int64_t)(digests->items[i] & CD_SHOWN_DIGEST_BITS), .what = what);
        return;
    }
}

static bool is_equal(const cd_shown_digests *a, const cd_shown_digests *b)
{
    bool is_equal = a->is_known && b->is_known;
    for (size_t i = 0; is_equal && i < a->count; i++) is_equal = a->items[i] == b->items[i];
    return is_equal;
}

cddp_status cd_shown_parameters(cd_shown *shown, const char *field,
                                const cd_observed_tensors *copies, cddp_error *err)
{
    cd_shown *s = shown;
    cd_shown_digests *room =
        &s->reduced_gradients; /* free between a reduction's end and the next */
    if (!s->parameters.is_known) return CDDP_OK;
    CD_TRY(digest_tensors(s, copies, room, err));
    compare(s, field, CDDP_WHAT_PARAMETER, room, &s->parameters);
    room->is_known = false;
    return CDDP_OK;
}

cddp_status cd_shown_gradients(cd_shown *shown, const char *field,
                               const cd_observed_gradients *copies, cddp_error *err)
{
    cd_shown *s = shown;
    cd_shown_digests *room = &s->reduced_gradients;
    if (!s->gradients.is_known) return CDDP_OK;
    CD_TRY(digest_gradients(s, copies, room, err));
    compare(s, field, CDDP_WHAT_GRADIENT, room, &s->gradients);
    room->is_known = false;
    return CDDP_OK;
}

cddp_status cd_shown_buffers(cd_shown *shown, const char *field, const cd_observed_tensors *copies,
                             cddp_error *err)
{
    cd_shown *s = shown;
    cd_shown_digests *room = &s->reduced_buffers;
    if (!s->buffers.is_known) return CDDP_OK;
    CD_TRY(digest_tensors(s, copies, room, err));
    compare(s, field, CDDP_WHAT_BUFFER, room, &s->buffers);
    room->is_known = false;
    return CDDP_OK;
}

cddp_status cd_shown_evaluated(cd_shown *shown, const cd_observed_evaluated *observed,
                               cd_shown_place *place, bool *is_planned, cddp_error *err)
{
    cd_shown *s = shown;
    cd_micro micro = {.skip = CDDP_SKIP_ALL};
    const uint32_t next = find_next(s, &micro);
    s->was_evaluated = true;
    *place = (cd_shown_place){.step = cd_shown_get_step(s), .micro_step = next};
    *is_planned = cd_evaluation_is_planned(&micro);
    cd_shown_number(s, "evaluated.step", place->step, observed->step);
    cd_shown_number(s, "evaluated.micro_step", *is_planned ? (int64_t)next : -1,
                    observed->micro_step);
    CD_TRY(digest_tensors(s, &observed->parameters, &s->reduced_gradients, err));
    compare(s, "evaluated.parameters", CDDP_WHAT_PARAMETER, &s->reduced_gradients,
            &s->latest_parameters);
    s->reduced_gradients.is_known = false; /* its room is free here */
    CD_TRY(digest_tensors(s, &observed->buffers, &s->evaluated_buffers, err));
    if (is_equal(&s->evaluated_buffers, &s->latest_buffers) || micro.touch_buffers)
        s->evaluated_buffers.is_known = false;
    return CDDP_OK;
}

cddp_status cd_shown_accumulated(cd_shown *shown, int32_t variable, const cddp_grad *gradient,
                                 cddp_error *err)
{
    uint64_t digest = 0;
    const cddp_tensor *t = &gradient->value;
    if (variable < 0 || !cd_tracer_wants_digest(shown->tracer)) return CDDP_OK;
    if (gradient->kind != CDDP_GRAD_UNDEFINED) CD_TRY(t->device->digest(t, &digest, err));
    shown->arrived += cd_hash_mix(cd_hash_mix(0, (uint64_t)variable), digest); /* in any order */
    shown->arrived_count++;
    return CDDP_OK;
}

/* The moment after the forward stands for the backward that follows it. */
static void emit_accumulated(cd_shown *s)
{
    if (cd_tracer_wants_digest(s->tracer)) {
        CD_EMIT(s->tracer, shown, NULL, .what = CDDP_WHAT_GRADIENT,
                .moment = CDDP_MOMENT_AFTER_FORWARD, .count = s->arrived_count,
                .digest = (int64_t)s->arrived);
    }
    s->arrived = 0;
    s->arrived_count = 0;
}

cddp_status cd_shown_reduced(cd_shown *shown, const cd_observed_reduced *observed, cddp_error *err)
{
    shown->was_reduced = true;
    emit_accumulated(shown);
    CD_TRY(digest_gradients(shown, &observed->gradients, &shown->reduced_gradients, err));
    CD_TRY(digest_tensors(shown, &observed->buffers, &shown->reduced_buffers, err));
    return CDDP_OK;
}

/* What a look after a backward says of the reduction before it. */
static void close_reduction(cd_shown *s)
{
    compare(s, "reduced.gradients", CDDP_WHAT_GRADIENT, &s->reduced_gradients, &s->gradients);
    compare(s, "reduced.buffers", CDDP_WHAT_BUFFER, &s->reduced_buffers, &s->buffers);
    s->reduced_gradients.is_known = s->reduced_buffers.is_known = false;
    cd_shown_number(s, "reduced", 1, s->was_reduced);
    s->was_reduced = false;
}

static void keep(const cd_shown_digests *look, cd_shown_digests *kept)
{
    if (!look->is_known) return;
    for (size_t i = 0; i < kept->count; i++) kept->items[i] = look->items[i];
    kept->is_known = true;
}

/* Of the rank whose buffers are broadcast; at the end of a join that may be another one. */
static cddp_status emit_entered(cd_shown *s, const cd_observed_look *observed, cddp_error *err)
{
    const cd_entered entered = {.buffers = observed->buffers.items,
                                .was = s->left_buffers.items,
                                .is = s->buffers.items,
                                .is_ignored = s->is_ignored,
                                .count = s->buffers.count};
    if (s->rank != 0 || s->settings->join.enable || !s->buffers.is_known ||
        !s->left_buffers.is_known || is_equal(&s->buffers, &s->left_buffers))
        return CDDP_OK;
    return CD_PASS(cd_entered_emit(&entered, &s->flat, s->tracer, err));
}

static void leave_buffers(cd_shown *s)
{
    s->left_buffers.is_known = s->buffers.is_known;
    for (size_t i = 0; s->rank == 0 && i < s->buffers.count; i++)
        s->left_buffers.items[i] = s->buffers.items[i];
}

cddp_status cd_shown_look(cd_shown *shown, const cd_observed_look *observed, cd_shown_place *place,
                          cddp_error *err)
{
    cd_shown *s = shown;
    *place = find_place(s, observed->moment);
    cd_shown_number(s, "look.step", place->step, observed->step);
    cd_shown_number(s, "look.micro_step", place->micro_step, observed->micro_step);
    cd_shown_number(s, "look.accumulates", place->accumulates, observed->accumulates);
    CD_TRY(digest_tensors(s, &observed->parameters, &s->parameters, err));
    keep(&s->parameters, &s->latest_parameters);
    CD_TRY(digest_gradients(s, &observed->gradients, &s->gradients, err));
    leave_buffers(s);
    CD_TRY(digest_tensors(s, &observed->buffers, &s->buffers, err));
    keep(&s->buffers, &s->latest_buffers);
    if (observed->moment == CDDP_MOMENT_FORWARD) CD_TRY(emit_entered(s, observed, err));
    emit_look(s, CDDP_WHAT_PARAMETER, observed->moment, &s->parameters);
    emit_look(s, CDDP_WHAT_GRADIENT, observed->moment, &s->gradients);
    emit_look(s, CDDP_WHAT_BUFFER, observed->moment, &s->buffers);
    if (observed->moment == CDDP_MOMENT_AFTER_BACKWARD && !place->accumulates) close_reduction(s);
    if (observed->moment == CDDP_MOMENT_FORWARD) {
        compare(s, "evaluated.buffers", CDDP_WHAT_BUFFER, &s->evaluated_buffers, &s->buffers);
        s->evaluated_buffers.is_known = false;
    }
    if (observed->moment == CDDP_MOMENT_BEFORE_STEP) {
        s->prepared.is_known = s->gradients.is_known;
        for (size_t i = 0; i < s->prepared.count; i++) s->prepared.items[i] = s->gradients.items[i];
    }
    return CDDP_OK;
}

/* ---- optimizers ---- */

cddp_status cd_shown_consumed(cd_shown *shown, const cd_observed_gradients *copies, cddp_error *err)
{
    cd_shown *s = shown;
    cd_shown_digests *room = &s->reduced_gradients;
    if (!s->prepared.is_known) return CDDP_OK;
    CD_TRY(digest_gradients(s, copies, room, err));
    compare(s, "updated.gradients", CDDP_WHAT_GRADIENT, room, &s->prepared);
    room->is_known = s->prepared.is_known = false;
    return CDDP_OK;
}

static cddp_status digest_optimized(const cd_oracle_optimized *o, uint64_t *digest, cddp_error *err)
{
    uint64_t d = cd_hash_mix(o->is_present, o->steps);
    for (size_t i = 0; i < CD_FORMULA_SLOTS_MAX; i++) {
        const cddp_tensor *t = &o->slots[i];
        uint64_t slot = 0;
        if (t->device == NULL) continue;
        CD_TRY(t->device->digest(t, &slot, err));
        d = cd_hash_mix(d, slot);
    }
    *digest = d;
    return CDDP_OK;
}

/* A copy has fewer slots than AMSGrad. */
static bool has_all_slots(const cd_shown *s)
{
    for (size_t i = 0; i < s->replica->optimizer_count; i++) {
        cd_optimizer_state state;
        if (s->replica->optimizers[i].count == 0) continue;
        cd_optimizer_get_state(s->replica->optimizers[i].optimizer, 0, &state);
        if (state.slot_count > CD_FORMULA_SLOTS_MAX) return false;
    }
    return true;
}

cddp_status cd_shown_optimized(cd_shown *shown, int64_t moment, const cd_observed_optimized *copies,
                               cddp_error *err)
{
    uint64_t all = 0;
    int64_t count = 0;
    if (!cd_tracer_wants_digest(shown->tracer) || !has_all_slots(shown)) return CDDP_OK;
    for (size_t i = 0; i < copies->count; i++) {
        uint64_t digest = 0;
        if (!copies->items[i].is_held) continue; /* another rank shows it */
        count++;
        CD_TRY(digest_optimized(&copies->items[i], &digest, err));
        all = cd_hash_mix(all, digest);
    }
    if (count == 0) return CDDP_OK;
    CD_EMIT(shown->tracer, shown, NULL, .what = CDDP_WHAT_OPTIMIZER, .moment = moment,
            .count = count, .digest = (int64_t)all);
    return CDDP_OK;
}

/* ---- buckets ---- */

void cd_shown_bucket_passes(const cd_shown *shown, const cd_shown_bucket_pass *pass)
{
    uint64_t content = 0;
    for (size_t i = 0; i < pass->places->count; i++) {
        content = cd_hash_mix(content, pass->places->variables[i]);
        content = cd_hash_mix(content, (uint64_t)pass->places->offsets[i]);
        content = cd_hash_mix(content, (uint64_t)pass->places->lengths[i]);
    }
    CD_EMIT(shown->tracer, bucket_shown, NULL, .bucket = pass->bucket,
            .generation = pass->generation, .content = (int64_t)content, .is_last = pass->is_last,
            .shadow = pass->is_shadow, .left = pass->left);
}

/* Which parameters lie in which bucket, and nothing of where: generation -1 says so. */
void cd_shown_assigned(const cd_shown *shown, const cd_observed_buckets *buckets,
                       const int32_t *variables, size_t parameter_count)
{
    for (size_t b = 0; b < buckets->count; b++) {
        const cd_observed_bucket *bucket = &buckets->items[b];
        uint64_t content = 0;
        for (size_t i = 0; i < bucket->count; i++) {
            const bool is_known = bucket->parameters[i] < parameter_count;
            const int32_t variable = is_known ? variables[bucket->parameters[i]] : -1;
            content = cd_hash_mix(content, (uint64_t)variable);
        }
        CD_EMIT(shown->tracer, bucket_shown, NULL, .bucket = (int64_t)b, .generation = -1,
                .content = (int64_t)content);
    }
}
