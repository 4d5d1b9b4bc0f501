/* SPDX-License-Identifier: Apache-2.0 */
/* What the training program itself writes into the trace; the wrapper, the groups and the oracle
** write their own.
**
** Every function is silent without a tracer, and computes no digest below the level that asks for
** it.
*/
#include "core/train/trainer.h"

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/plan/keys.h"
#include "core/tensor/digest.h"
#include "core/trace/setting.h"
#include "core/train/points.h"

#include <string.h>

void cd_trainer_emit_mark(cd_trainer *t, const char *name, int64_t value)
{
    CD_EMIT(t->tracer, mark, name, .value = value);
}

/* ---- settings ---- */

static void emit_list(cd_trainer *t, const cd_key_row *row, const void *field, cd_setting s)
{
    cddp_text_list list; /* all lists have this layout */
    memcpy(&list, field, sizeof list);
    s.items = (int64_t)list.count;
    if (list.count == 0) cd_setting_emit(t->tracer, &s);
    for (size_t i = 0; i < list.count; i++) {
        s.item = (int64_t)i;
        if (row->type == CDDP_KEY_TEXTS)
            s.text = list.items[i];
        else if (row->type == CDDP_KEY_NUMBERS)
            s.real = ((const double *)(const void *)list.items)[i];
        else
            s.value = ((const uint32_t *)(const void *)list.items)[i];
        cd_setting_emit(t->tracer, &s);
    }
}

static void emit_setting(cd_trainer *t, const cd_key_row *row, const void *field, cddp_key key)
{
    cd_setting s = {.key = key, .items = 1};
    char word[64];
    switch (row->type) {
    case CDDP_KEY_FLAG:
        s.value = *(const bool *)field;
        break;
    case CDDP_KEY_NUMBER:
        memcpy(&s.real, field, sizeof s.real);
        break;
    case CDDP_KEY_TEXT:
        memcpy(&s.text, field, sizeof s.text);
        break;
    case CDDP_KEY_CHOICE:
        memcpy(&s.value, field, sizeof s.value);
        cd_key_print_word(row, s.value, word, sizeof word);
        s.text = word;
        break;
    case CDDP_KEY_INTEGER:
    case CDDP_KEY_UNSIGNED:
        memcpy(&s.value, field, sizeof s.value);
        break;
    default:
        emit_list(t, row, field, s);
        return;
    }
    cd_setting_emit(t->tracer, &s);
}

void cd_trainer_emit_settings(cd_trainer *t)
{
    for (size_t i = 0; t->tracer != NULL && i < cd_key_count(); i++) {
        const cd_key_row *row = cd_key_row_get(i);
        if (row->scope == CD_SCOPE_RANK)
            emit_setting(t, row, (const char *)&t->program.settings + row->offset, (cddp_key)i);
    }
}

/* The streams that the model was drawn from and that samples are drawn from. */
void cd_trainer_emit_seeds(cd_trainer *t)
{
    const bool distinct = t->program.settings.model.init == CDDP_MODEL_INIT_DISTINCT;
    cd_prng model = t->replica->model_prng;
    const cd_prng *data = &t->replica->data_prng;
    CD_POINT_COUNT("shown.seed", t, model.state[0]);
    CD_EMIT(t->tracer, seed, "model", .stream = 0, .policy = distinct,
            .state = (int64_t)cd_hash64(model.state, sizeof model.state, 0));
    CD_EMIT(t->tracer, seed, "data", .stream = 1, .policy = CDDP_POLICY_SHARED,
            .state = (int64_t)cd_hash64(data->state, sizeof data->state, 0));
}

/* ---- data ---- */

void cd_trainer_emit_samples(cd_trainer *t, const cd_pass *pass)
{
    const cd_micro_batch *samples = pass->samples;
    const uint32_t end = pass->first + pass->count;
    for (uint32_t i = pass->first; t->tracer != NULL && i < end; i++) {
        CD_EMIT(t->tracer, sample, NULL, .sample = samples->ids[i],
                .weight = cd_f64_bits(samples->weights[i]), .epoch = samples->epochs[i]);
    }
}

void cd_trainer_emit_consumed(cd_trainer *t, const cd_pass *pass)
{
    uint64_t ids = 0;
    double weight = 0;
    const cd_micro_batch *samples = pass->samples;
    const uint32_t end = pass->first + pass->count;
    if (t->tracer == NULL) return;
    for (uint32_t i = pass->first; i < end; i++) {
        ids += cd_hash_mix(0, (uint64_t)samples->ids[i]); /* a sum: order does not matter */
        weight += samples->weights[i];
    }
    CD_EMIT(t->tracer, samples, NULL, .epoch = pass->count > 0 ? samples->epochs[pass->first] : 0,
            .count = pass->count,
            .tokens = cd_replica_token_count(t->replica, samples->ids + pass->first, pass->count),
            .ids = (int64_t)ids, .weight = cd_f64_bits(weight));
}

cddp_status cd_trainer_read_loss(cd_trainer *t, const cd_pass *pass, double *loss, cddp_error *err)
{
    const bool has_numbers = (cd_trainer_module(t)->device->flags & CDDP_DEVICE_VALUES) != 0;
    for (uint32_t i = 0; has_numbers && i < pass->loss_count; i++) {
        CD_TRY(cd_numbers_read(&t->groups.numbers, &pass->losses[i]->tensor, err));
        *loss += t->groups.numbers.values[0];
    }
    return CDDP_OK;
}

cddp_status cd_trainer_emit_loss(cd_trainer *t, const cd_pass *pass, cddp_error *err)
{
    double value = 0;
    const int64_t forward = pass->count > 0 ? (int64_t)(pass->first / pass->count) : 0;
    const cddp_plan *plan = t->program.plan;
    CD_EMIT(t->tracer, loss, NULL, .forward = forward, .divisor = cd_f64_bits(pass->divisor),
            .scale = cd_f64_bits(pass->loss_scale));
    for (size_t k = 0; pass->has_terms && k < plan->output_count; k++) {
        const int64_t i = cd_model_find_output(t->replica->model, plan->outputs[k].name);
        if (i < 0) continue;
        CD_EMIT(t->tracer, loss, plan->outputs[k].name, .forward = forward,
                .divisor = cd_f64_bits(pass->terms[i].divisor),
                .scale = cd_f64_bits(pass->loss_scale), .output = (int64_t)k + 1,
                .weight = cd_f64_bits(pass->terms[i].weight));
    }
    if (t->tracer == NULL || t->tracer->level < CDDP_TRACE_PAYLOAD) return CDDP_OK;
    CD_TRY(cd_trainer_read_loss(t, pass, &value, err));
    CD_EMIT(t->tracer, loss_value, NULL, .forward = forward,
            .value = cd_f64_bits(value / pass->loss_scale));
    return CDDP_OK;
}

/* ---- values ---- */

/* Zero, or a value. Both parts of a complex number are looked at. */
static cddp_status presence_of(const cddp_tensor *tensor, int64_t *presence, cddp_error *err)
{
    const bool is_complex = tensor->dtype == CDDP_C64;
    *presence = CDDP_PRESENCE_VALUE;
    if ((tensor->device->flags & CDDP_DEVICE_VALUES) != 0 &&
        (is_complex || cddp_dtype_is_float(tensor->dtype))) {
        double norm;
        const int64_t lanes = 2 * cddp_tensor_numel(tensor);
        const cddp_tensor parts = cddp_tensor_of(tensor->device, tensor->storage,
                                                 2 * tensor->offset, CDDP_F32, &lanes, 1);
        CD_TRY(tensor->device->norm(is_complex ? &parts : tensor, &norm, err));
        *presence = norm == 0.0 ? CDDP_PRESENCE_ZERO : CDDP_PRESENCE_VALUE;
    }
    return CDDP_OK;
}

static int64_t find_nonfinite(const cddp_tensor *tensor)
{
    int64_t index = -1;
    if ((tensor->device->flags & CDDP_DEVICE_VALUES) == 0 || !cddp_dtype_is_float(tensor->dtype) ||
        tensor->device->find_nonfinite(tensor, &index, NULL) != CDDP_OK)
        return -1;
    return index;
}

/* A tensor that is reported again and again. What its digest already describes is not looked at a
** second time. */
static cddp_status look_at(const cddp_tensor *tensor, int64_t digest, cd_trainer_look *look,
                           cddp_error *err)
{
    bool is_zero = false;
    if (look->is_known && look->digest == digest && digest != 0) return CDDP_OK;
    look->is_known = false;
    if (cd_glance(tensor, &is_zero, &look->nonfinite)) {
        look->presence = is_zero ? CDDP_PRESENCE_ZERO : CDDP_PRESENCE_VALUE;
    } else {
        CD_TRY(presence_of(tensor, &look->presence, err));
        look->nonfinite = find_nonfinite(tensor);
    }
    look->digest = digest;
    look->is_known = true;
    return CDDP_OK;
}

static int64_t variable_of(const cd_trainer *t, size_t parameter)
{
    return t->ddp != NULL || t->sharding != NULL ? t->parameters[parameter].variable
                                                 : CD_NO_VARIABLE;
}

cddp_status cd_trainer_emit_parameters(cd_trainer *t, cddp_event_enum_moment moment,
                                       cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    cddp_event event;
    if (!cd_tracer_wants_digest(t->tracer)) return CDDP_OK;
    cd_tracer_begin_values(t->tracer, CDDP_WHAT_PARAMETER, moment, &event);
    cddp_event_value *value = &event.as.value;
    for (size_t i = 0; i < module->parameter_count; i++) {
        const cddp_tensor *tensor = &module->parameters[i].tensor;
        cd_trainer_look *look = &t->parameters[i].value_look;
        value->id = (int64_t)i;
        value->digest = cd_tracer_digest(t->tracer, tensor);
        CD_TRY(look_at(tensor, value->digest, look, err));
        value->presence = look->presence;
        value->nonfinite = look->nonfinite;
        value->param = variable_of(t, i);
        event.text = module->parameters[i].name;
        cd_tracer_emit_value(t->tracer, &event);
    }
    return CDDP_OK;
}

/* A dense one is perhaps known to who has just read it. */
static cddp_status digest_gradient(const cd_trainer *t, const cddp_grad *grad, uint64_t *digest,
                                   cddp_error *err)
{
    const cd_tracer_reader *reader = t->tracer->reader;
    int64_t known = 0;
    if (reader != NULL && grad->kind == CDDP_GRAD_DENSE &&
        reader->read(reader->self, &grad->value, &known)) {
        *digest = (uint64_t)known;
        return CDDP_OK;
    }
    return CD_PASS(cd_gradient_digest(grad, digest, err));
}

/* Views are copies, for a watcher and for what lies on a device with streams. */
static bool needs_views(const cd_trainer *t)
{
    return t->view.watcher != NULL || t->streams.device != NULL;
}

static const cddp_grad *find_gradient(const cd_trainer *t, size_t parameter)
{
    const cddp_grad *averaged = &t->parameters[parameter].averaged;
    if (needs_views(t)) return &t->view.gradients[parameter];
    if (t->sharding != NULL) return cd_sharding_gradient(t, parameter);
    return averaged->kind != CDDP_GRAD_UNDEFINED
               ? averaged
               : &cd_trainer_module(t)->parameters[parameter].grad;
}

/* As the watcher sees them: what an optimizer in backward consumed is among them. */
static cddp_status emit_gradients(cd_trainer *t, cddp_event_enum_moment moment, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    cddp_event event;
    if (!cd_tracer_wants_digest(t->tracer)) return CDDP_OK;
    cd_tracer_begin_values(t->tracer, CDDP_WHAT_GRADIENT, moment, &event);
    cddp_event_value *value = &event.as.value;
    for (size_t i = 0; i < module->parameter_count; i++) {
        const cddp_grad *grad = find_gradient(t, i);
        cd_trainer_look *look = &t->parameters[i].gradient_look;
        const bool is_there = grad->kind != CDDP_GRAD_UNDEFINED;
        uint64_t digest = 0;
        CD_TRY(digest_gradient(t, grad, &digest, err));
        if (is_there) CD_TRY(look_at(&grad->value, (int64_t)digest, look, err));
        value->id = (int64_t)i;
        value->presence = !is_there                              ? CDDP_PRESENCE_ABSENT
                          : look->presence == CDDP_PRESENCE_ZERO ? CDDP_PRESENCE_ZERO
                          : grad->kind == CDDP_GRAD_SPARSE       ? CDDP_PRESENCE_SPARSE
                                                                 : look->presence;
        value->digest = (int64_t)digest;
        value->nonfinite = is_there ? look->nonfinite : -1;
        value->param = variable_of(t, i);
        event.text = module->parameters[i].name;
        cd_tracer_emit_value(t->tracer, &event);
    }
    return CDDP_OK;
}

cddp_status cd_trainer_emit_buffers(cd_trainer *t, cddp_event_enum_moment moment, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    if (module->buffer_count == 0) return CDDP_OK;
    cddp_event event;
    if (!cd_tracer_wants_digest(t->tracer)) return CDDP_OK;
    cd_tracer_begin_values(t->tracer, CDDP_WHAT_BUFFER, moment, &event);
    cddp_event_value *value = &event.as.value;
    for (size_t i = 0; i < module->buffer_count; i++) {
        const cddp_tensor *tensor = &module->buffers[i].tensor;
        cd_trainer_look *look = &t->view.buffer_looks[i];
        value->id = (int64_t)i;
        value->digest = cd_tracer_digest(t->tracer, tensor);
        CD_TRY(look_at(tensor, value->digest, look, err));
        value->presence = look->presence;
        value->param = CD_NO_VARIABLE;
        value->nonfinite = look->nonfinite;
        event.text = module->buffers[i].name;
        cd_tracer_emit_value(t->tracer, &event);
    }
    return CDDP_OK;
}

cddp_status cd_trainer_emit_optimizers(cd_trainer *t, cddp_event_enum_moment moment,
                                       cddp_error *err)
{
    int64_t id = 0;
    cddp_event event;
    if (!cd_tracer_wants_digest(t->tracer)) return CDDP_OK;
    cd_tracer_begin_values(t->tracer, CDDP_WHAT_OPTIMIZER, moment, &event);
    cddp_event_value *value = &event.as.value;
    for (size_t i = 0; i < t->replica->optimizer_count; i++) {
        const cd_replica_optimizer *o = &t->replica->optimizers[i];
        const bool is_part =
            o->pieces != NULL || t->sharding != NULL || cd_replica_assigns_buckets(t->replica, i);
        event.text = o->name;
        for (size_t k = 0; k < o->count; k++, id++) {
            uint64_t digest = 0;
            const int64_t held = cd_replica_find_piece(o, k);
            if (held < 0) {
                continue; /* another rank reports it */
            }
            CD_TRY(cd_optimizer_state_digest(o->optimizer, (size_t)held, &digest, err));
            value->id = id;
            value->presence = cd_optimizer_has_state(o->optimizer, (size_t)held)
                                  ? CDDP_PRESENCE_VALUE
                                  : CDDP_PRESENCE_ABSENT;
            value->digest = (int64_t)digest;
            /* Pieces differ from rank to rank by right: they are no parameter's. */
            value->param = is_part ? CD_NO_VARIABLE : t->parameters[o->ordinals[k]].variable;
            cd_tracer_emit_value(t->tracer, &event);
        }
    }
    return CDDP_OK;
}

cddp_status cd_trainer_emit_entry(cd_trainer *t, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    int64_t absent = 0, counts[4] = {0}; /* by presence */
    if (t->now.has_entered || !cd_tracer_wants_digest(t->tracer)) return CDDP_OK;
    t->now.has_entered = true;
    CD_TRY(cd_streams_look(&t->streams, err));
    const bool has_numbers = (module->device->flags & CDDP_DEVICE_VALUES) != 0;
    for (size_t i = 0; i < module->parameter_count; i++) {
        const cddp_grad *grad = &module->parameters[i].grad;
        int64_t presence = CDDP_PRESENCE_SPARSE;
        absent += grad->kind == CDDP_GRAD_UNDEFINED;
        if (grad->kind == CDDP_GRAD_UNDEFINED) continue;
        const cddp_tensor value = cd_streams_plain(&t->streams, &grad->value);
        if (has_numbers) CD_TRY(presence_of(&value, &presence, err));
        counts[presence]++;
    }
    CD_EMIT(t->tracer, backward_entry, NULL, .absent = absent, .zero = counts[CDDP_PRESENCE_ZERO],
            .kept = counts[CDDP_PRESENCE_VALUE], .unseen = counts[CDDP_PRESENCE_SPARSE]);
    return CDDP_OK;
}

cddp_status cd_trainer_emit_gradient(cd_trainer *t, uint32_t parameter, const cddp_grad *grad,
                                     cddp_error *err)
{
    (void)err;
    if (t->tracer == NULL || t->parameters[parameter].variable == CD_NO_VARIABLE) return CDDP_OK;
    static const int64_t presences[] = {[CDDP_GRAD_UNDEFINED] = CDDP_PRESENCE_ABSENT,
                                        [CDDP_GRAD_DENSE] = CDDP_PRESENCE_VALUE,
                                        [CDDP_GRAD_SPARSE] = CDDP_PRESENCE_SPARSE};
    const bool is_there = grad->kind != CDDP_GRAD_UNDEFINED;
    const bool digests = is_there && cd_tracer_wants_digest(t->tracer);
    CD_EMIT(t->tracer, grad_local, NULL, .param = t->parameters[parameter].variable,
            .presence = presences[grad->kind],
            .digest = digests ? cd_tracer_digest(t->tracer, &grad->value) : 0,
            .contributions = (int64_t)t->parameters[parameter].contributions,
            .dtype = is_there ? (int64_t)grad->value.dtype : CDDP_F32,
            .nonfinite = digests && find_nonfinite(&grad->value) >= 0);
    return CDDP_OK;
}

/* ---- moments ---- */

/* What is shown at a moment. */
enum {
    SHOWS_PARAMETERS = CD_WATCHED_PARAMETERS,
    SHOWS_GRADIENTS = CD_WATCHED_GRADIENTS,
    SHOWS_BUFFERS = CD_WATCHED_BUFFERS,
    SHOWS_OPTIMIZERS = CD_WATCHED_OPTIMIZERS,
    SHOWS_STATES = 16 /* of hook, scaler and averager */
};

/* While an optimizer steps in backward, parameters are neither those of the begin nor the new ones
** until it has ended. Its gradients are consumed as they come. */
static unsigned shown_at(const cd_trainer *t, cddp_event_enum_moment moment)
{
    const bool is_in_backward = cd_trainer_steps_in_backward(t);
    switch (moment) {
    case CDDP_MOMENT_BEGIN:
        return SHOWS_PARAMETERS | SHOWS_GRADIENTS | SHOWS_BUFFERS | SHOWS_OPTIMIZERS | SHOWS_STATES;
    case CDDP_MOMENT_FORWARD:
        return SHOWS_BUFFERS | (t->now.has_moved ? SHOWS_GRADIENTS : 0u);
    case CDDP_MOMENT_AFTER_FORWARD:
        return SHOWS_BUFFERS;
    case CDDP_MOMENT_AFTER_BACKWARD:
        if (t->now.accumulates) return SHOWS_BUFFERS;
        return (is_in_backward ? 0u : SHOWS_PARAMETERS) | SHOWS_GRADIENTS | SHOWS_BUFFERS;
    case CDDP_MOMENT_BEFORE_STEP:
        return SHOWS_PARAMETERS | SHOWS_OPTIMIZERS | (is_in_backward ? 0u : SHOWS_GRADIENTS);
    case CDDP_MOMENT_AFTER_UPDATE:
        return SHOWS_PARAMETERS | SHOWS_OPTIMIZERS;
    case CDDP_MOMENT_AFTER_AVERAGE:
        return SHOWS_PARAMETERS;
    case CDDP_MOMENT_AFTER_STEP:
        return SHOWS_PARAMETERS | SHOWS_OPTIMIZERS | SHOWS_STATES;
    case CDDP_MOMENT_END:
        return SHOWS_PARAMETERS | SHOWS_BUFFERS | SHOWS_OPTIMIZERS | SHOWS_STATES;
    default:
        return SHOWS_PARAMETERS | SHOWS_BUFFERS | SHOWS_OPTIMIZERS | SHOWS_STATES;
    }
}

static cddp_status emit_values(cd_trainer *t, cddp_event_enum_moment moment, unsigned shown,
                               cddp_error *err)
{
    if (shown & SHOWS_PARAMETERS) CD_TRY(cd_trainer_emit_parameters(t, moment, err));
    if (shown & SHOWS_GRADIENTS) CD_TRY(emit_gradients(t, moment, err));
    if (shown & SHOWS_BUFFERS) CD_TRY(cd_trainer_emit_buffers(t, moment, err));
    if (shown & SHOWS_OPTIMIZERS) CD_TRY(cd_trainer_emit_optimizers(t, moment, err));
    if (shown & SHOWS_STATES) CD_TRY(cd_trainer_emit_states(t, moment, err));
    return CDDP_OK;
}

/* Behind the update nobody looks at gradients any more. */
static cd_watched_values refresh_views(cd_trainer *t, cddp_event_enum_moment moment)
{
    const bool is_behind = moment == CDDP_MOMENT_AFTER_UPDATE ||
                           moment == CDDP_MOMENT_AFTER_AVERAGE ||
                           moment == CDDP_MOMENT_AFTER_STEP || moment == CDDP_MOMENT_END;
    return is_behind ? cd_trainer_refresh_parameters(t) : cd_trainer_refresh_views(t);
}

cddp_status cd_trainer_show(cd_trainer *t, cddp_event_enum_moment moment, cddp_error *err)
{
    const unsigned shown = shown_at(t, moment);
    const bool is_watched = t->view.watcher != NULL;
    if (!is_watched && !cd_tracer_wants_digest(t->tracer)) return CDDP_OK;
    if (t->sharding != NULL && (shown & (SHOWS_PARAMETERS | SHOWS_GRADIENTS)) != 0)
        CD_TRY(cd_sharding_collect(t, err));
    const cd_watched_moment at = {.moment = moment,
                                  .step = t->now.step,
                                  .micro = t->now.micro,
                                  .accumulates = t->now.accumulates,
                                  .begins_window = t->now.begins_window,
                                  .shown = shown,
                                  .replica = t->replica,
                                  .values = needs_views(t) ? refresh_views(t, moment)
                                                           : (cd_watched_values){0}};
    if (is_watched) CD_TRY(t->view.watcher->ops->look(t->view.watcher->self, &at, err));
    if (!cd_tracer_wants_digest(t->tracer)) return CDDP_OK;
    t->tracer->reader = is_watched ? t->view.watcher->reader : NULL;
    const cddp_status status = emit_values(t, moment, shown, err);
    t->tracer->reader = NULL;
    return status;
}
