/* SPDX-License-Identifier: Apache-2.0 */
/* The reference: what one process computes for a part of the plan, and its optimizers' update.
**
** It repeats what the plan makes the rank do to its own gradients (poison, a backward that is left
** early), because that is part of the declared program. It repeats nothing that happens between
** ranks.
*/
#include "core/reference/reference.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/reference/optimizer_bytes.h"
#include "core/reference/own_pass.h"
#include "core/reference/planned.h"
#include "core/reference/rates.h"
#include "core/trace/tracer.h"

#include <string.h>

#define FORWARDS_MAX CD_REPLICA_FORWARDS_MAX
#define MEMORY_BLOCK_BYTES ((size_t)1 << 12)

/* ---- a micro-step without anybody watching ---- */

static cddp_status run_backwards(cd_replica *r, const cd_micro *micro,
                                 const cd_replica_losses *losses, cddp_error *err)
{
    for (uint32_t round = 0; round < micro->backwards; round++) {
        const bool retain = round + 1 < micro->backwards;
        for (uint32_t i = 0; i < losses->count; i += losses->together) {
            const bool is_last = i + losses->together >= losses->count;
            CD_TRY(cd_own_backward(r, micro, &losses->items[i], losses->together,
                                   retain || !is_last, err));
        }
    }
    return CDDP_OK;
}

/* All forwards and backwards of a micro-step. */
typedef struct whole_micro {
    cd_replica *replica;
    cd_normaliser *normaliser;
    const cddp_plan_settings *settings; /* of the rank */
    const cd_micro *micro;
    const cd_micro_batch *samples;
    cd_crossed *crossed; /* NULL: nothing is cast between units */
    uint32_t sample;     /* one position in the batch, or CD_ORACLE_ALL */
    double loss_scale;
    const cddp_tensor
        *entered; /* buffers at the entry of the last forward; NULL: as it finds them */
} whole_micro;

static cddp_status enter_again(const whole_micro *w, cddp_error *err)
{
    cd_module *module = w->replica->model->module;
    for (size_t i = 0; i < module->buffer_count; i++)
        CD_TRY(module->device->copy(&module->buffers[i].tensor, &w->entered[i], NULL, err));
    return CDDP_OK;
}

/* FMP-07: of a sharded model. A layer leaves numbers of the module's dtype, which become the
** nearest ones of buffer_dtype. */
static cddp_status round_buffers(const whole_micro *w, cddp_error *err)
{
    const cd_module *module = w->replica->model->module;
    const cddp_dtype low = cd_planned_dtype(w->settings->mixed_precision.buffer_dtype);
    const bool has_numbers = (module->device->flags & CDDP_DEVICE_VALUES) != 0;
    if (!w->settings->fsdp.enable || low == CDDP_DTYPE_COUNT || !has_numbers) return CDDP_OK;
    for (size_t i = 0; i < module->buffer_count; i++) {
        const cddp_tensor *t = &module->buffers[i].tensor;
        cddp_tensor narrow;
        if (!cddp_dtype_is_float(t->dtype) || cddp_tensor_numel(t) == 0) continue;
        CD_TRY(cd_graph_tensor(w->replica->graph, low, t->sizes, t->dim_count, &narrow, err));
        CD_TRY(module->device->copy(&narrow, t, NULL, err));
        CD_TRY(module->device->copy(t, &narrow, NULL, err));
    }
    return CDDP_OK;
}

static cddp_status run_micro(const whole_micro *w, cddp_error *err)
{
    const cd_micro *micro = w->micro;
    cd_replica_losses losses = {.count = 0};
    cd_graph_begin(w->replica->graph);
    for (uint32_t f = 0; f < micro->forwards; f++) {
        const bool all = w->sample == CD_ORACLE_ALL;
        if (!all && w->sample / micro->samples != f) continue;
        cd_pass pass = {.micro = micro,
                        .samples = w->samples,
                        .first = all ? f * micro->samples : w->sample,
                        .count = all ? micro->samples : 1,
                        .loss_scale = w->loss_scale};
        if (w->entered != NULL && f + 1 == micro->forwards) CD_TRY(enter_again(w, err));
        const cd_forward_place place = {micro, f};
        CD_TRY(cd_normaliser_fill(w->normaliser, w->settings, &place, &pass, err));
        if (w->crossed != NULL) {
            pass.input_dtype = cd_crossed_get_input(w->crossed);
            cd_crossed_begin(w->crossed, w->replica->graph);
        }
        CD_TRY(round_buffers(w, err));
        CD_TRY(cd_own_forward(w->replica, w->settings, &pass, err));
        if (w->crossed != NULL)
            CD_TRY(cd_crossed_end(w->crossed, w->replica->graph, &pass.outputs, err));
        CD_TRY(round_buffers(w, err));
        CD_TRY(cd_own_loss(w->replica, &pass, err));
        cd_replica_add_losses(&pass, &losses);
    }
    CD_TRY(run_backwards(w->replica, micro, &losses, err));
    return CD_PASS(round_buffers(w, err)); /* a layer may have run again */
}

/* ---- the engine's table ---- */

static cddp_status reference_load(void *self, const cddp_tensor *parameters,
                                  const cddp_tensor *buffers, cddp_error *err)
{
    cd_reference *r = self;
    cd_module *module = r->replica->model->module;
    CD_TRY(cd_low_precision_end(&r->low, err));
    CD_TRY(cd_low_precision_end(&r->full, err));
    r->has_digest = false;
    r->loaded = buffers;
    r->ran = r->replica;
    for (size_t i = 0; i < module->parameter_count; i++) {
        CD_TRY(module->device->copy(&module->parameters[i].tensor, &parameters[i], NULL, err));
        cddp_grad_drop(&module->parameters[i].grad);
    }
    for (size_t i = 0; buffers != NULL && i < module->buffer_count; i++)
        CD_TRY(module->device->copy(&module->buffers[i].tensor, &buffers[i], NULL, err));
    return CDDP_OK;
}

static cddp_status reference_set_gradient(void *self, size_t parameter, const cddp_grad *gradient,
                                          cddp_error *err)
{
    cd_reference *r = self;
    cd_parameter *mine = &r->replica->model->module->parameters[parameter];
    cddp_grad_drop(&mine->grad);
    if (gradient->kind == CDDP_GRAD_DENSE) {
        CD_TRY(cddp_grad_define(&mine->grad, &mine->tensor, err));
        CD_TRY(mine->tensor.device->copy(&mine->grad.value, &gradient->value, NULL, err));
    } else if (gradient->kind == CDDP_GRAD_SPARSE) {
        /* a view for the update at hand; dropped before it can dangle */
        mine->grad.kind = CDDP_GRAD_SPARSE;
        mine->grad.value = gradient->value;
        mine->grad.rows = gradient->rows;
    }
    return CDDP_OK;
}

static void reference_drop_gradients(void *self)
{
    cd_reference *r = self;
    cd_module *module = r->replica->model->module;
    for (size_t i = 0; i < module->parameter_count; i++)
        cddp_grad_drop(&module->parameters[i].grad);
}

static const cddp_plan_settings *settings_of(const cd_reference *r, uint32_t rank)
{
    return &r->settings[r->settings_of[rank]];
}

/* The micro-step of a part, when its rank runs it. */
static bool find_micro(cd_reference *r, const cd_oracle_part *part, cd_micro *micro)
{
    const cddp_plan_settings *settings = settings_of(r, part->rank);
    const cd_micro_place place = {part->rank, part->step, part->micro_step};
    if (part->micro_step >= settings->train.micro_steps ||
        !cd_planned_has_step(r->plan, settings, part->rank, part->step))
        return false;
    cd_planned_micro(r->plan, settings, place, micro);
    return cd_planned_contributes(micro);
}

static uint32_t reference_sample_count(void *self, const cd_oracle_part *part)
{
    cd_micro micro;
    return find_micro(self, part, &micro) ? micro.samples * micro.forwards : 0;
}

static cddp_status find_samples(cd_reference *r, const cd_micro *micro, cd_micro_batch *samples,
                                cddp_error *err)
{
    CD_TRY(cd_samples_fill(&r->share->samples, settings_of(r, micro->place.rank), micro, samples,
                           err));
    return CDDP_OK;
}

/* ---- synchronised batch norm: what the ranks of a micro-step exchange, see statistics.h ---- */

static cddp_status reference_allgather(void *context, const cddp_tensor *mine,
                                       const cddp_tensor *all, cddp_error *err)
{
    const cd_reference *r = context;
    CD_TRY(cd_statistics_allgather(r->listening, mine, all, err));
    return CDDP_OK;
}

static cddp_status reference_allreduce(void *context, const cddp_tensor *sums, cddp_error *err)
{
    const cd_reference *r = context;
    CD_TRY(cd_statistics_allreduce(r->listening, sums, err));
    return CDDP_OK;
}

static cddp_status reference_combined(void *context, uint32_t buffer, const double *mean,
                                      const double *spread, int64_t channels, cddp_error *err)
{
    const cd_reference *r = context;
    (void)mean, (void)spread, (void)channels, (void)err;
    cd_statistics_combined(r->listening, buffer);
    return CDDP_OK;
}

static const cddp_tensor *reference_forward_parameter(void *context, uint32_t parameter)
{
    const cd_reference *r = context;
    if (r->running != NULL) r->uses[parameter] += r->running->backwards;
    return cd_low_precision_get(r->full.is_low ? &r->full : &r->low, parameter);
}

static cddp_status reference_use(void *context, uint32_t parameter, bool in_backward,
                                 cddp_error *err)
{
    cd_reference *r = context;
    (void)err;
    if (!in_backward || r->replica->graph->recomputes)
        cd_crossed_use(&r->crossed, r->replica->graph, parameter);
    return CDDP_OK;
}

static cddp_status reference_cross(void *context, cd_value *value, cd_value **read, cddp_error *err)
{
    cd_reference *r = context;
    return CD_PASS(cd_crossed_read(&r->crossed, r->replica->graph, value, read, err));
}

/* On exact devices: the same symbol that the rank itself gives to this gradient. */
static cddp_status reference_fresh(void *context, uint32_t parameter, const cddp_tensor *dst,
                                   cddp_error *err)
{
    const cd_reference *r = context;
    CD_TRY(cd_own_write_atoms(r->running, parameter, dst, err));
    return CDDP_OK;
}

/* Statistics do not depend on gradients, so only the replica itself receives these calls. */
static cd_graph_callbacks callbacks_of(cd_reference *r)
{
    return (cd_graph_callbacks){.context = r,
                                .fresh = reference_fresh,
                                .forward_parameter = reference_forward_parameter,
                                .rank_count = (uint32_t)r->plan->world.size,
                                .combined = reference_combined,
                                .allgather = reference_allgather,
                                .allreduce = reference_allreduce};
}

/* Where layers compute: forms and sizes have no statistics. */
static bool exchanges_statistics(const cd_reference *r)
{
    return r->replica->model->exchanges_statistics && r->plan->world.size > 1 &&
           cd_graph_computes(r->replica->graph);
}

static cddp_status scout_allgather(void *context, const cddp_tensor *mine, const cddp_tensor *all,
                                   cddp_error *err)
{
    const cd_scout *s = context;
    return CD_PASS(reference_allgather(s->owner, mine, all, err));
}

static cddp_status scout_allreduce(void *context, const cddp_tensor *sums, cddp_error *err)
{
    const cd_scout *s = context;
    return CD_PASS(reference_allreduce(s->owner, sums, err));
}

/* Whose statistics these are, before the rank itself exchanges them. */
static cddp_status scout_combined(void *context, uint32_t buffer, const double *mean,
                                  const double *spread, int64_t channels, cddp_error *err)
{
    const cd_scout *s = context;
    return CD_PASS(reference_combined(s->owner, buffer, mean, spread, channels, err));
}

static const cddp_tensor *scout_forward_parameter(void *context, uint32_t parameter)
{
    const cd_scout *s = context;
    return reference_forward_parameter(s->owner, parameter);
}

static cddp_status scout_use(void *context, uint32_t parameter, bool in_backward, cddp_error *err)
{
    cd_scout *s = context;
    (void)err;
    if (!in_backward || s->replica->graph->recomputes)
        cd_crossed_use(&s->crossed, s->replica->graph, parameter);
    return CDDP_OK;
}

static cddp_status scout_cross(void *context, cd_value *value, cd_value **read, cddp_error *err)
{
    cd_scout *s = context;
    return CD_PASS(cd_crossed_read(&s->crossed, s->replica->graph, value, read, err));
}

/* Numbers of the other precision have other statistics, and other ranks to exchange them with. */
static cd_graph_callbacks exchanging(cd_reference *r, bool is_wide)
{
    cd_graph_callbacks callbacks = callbacks_of(r);
    if (is_wide) callbacks.forward_parameter = NULL;
    return callbacks;
}

/* Made by the first reference that has to find statistics: the others of a thread share it. */
static cddp_status make_scout(cd_reference *r, bool is_wide, cddp_error *err)
{
    cd_scout *s = &r->scouts[is_wide];
    const cd_replica_options options = {.plan = r->plan,
                                        .rank = r->replica->rank,
                                        .device = r->replica->model->module->device,
                                        .allocator = r->allocator,
                                        .only_names = is_wide,
                                        .in_f64 = is_wide};
    if (s->replica != NULL) return CDDP_OK;
    CD_TRY(cd_replica_create(&options, &s->replica, err));
    s->owner = r;
    cd_normaliser_init(&s->normaliser, s->replica, &r->share->samples);
    cd_graph_callbacks callbacks = {.context = s,
                                    .rank_count = (uint32_t)r->plan->world.size,
                                    .combined = scout_combined,
                                    .allgather = scout_allgather,
                                    .allreduce = scout_allreduce};
    if (!is_wide) callbacks.forward_parameter = scout_forward_parameter;
    if (!is_wide && r->crossed.units != NULL)
        CD_TRY(cd_crossed_init(&s->crossed, r->plan, &r->replica->settings,
                               s->replica->model->module, &r->memory, err));
    if (s->crossed.is_needed) {
        callbacks.use = scout_use;
        callbacks.cross = scout_cross;
    }
    cd_graph_set_callbacks(s->replica->graph, &callbacks);
    return CDDP_OK;
}

static bool is_in_f64(const cd_oracle_part *part) { return part->precision == CD_ORACLE_IN_F64; }

/* Values of this pass are cast where they enter and leave units. */
static bool casts_between_units(const cd_reference *r, const cd_oracle_part *part)
{
    return r->crossed.units != NULL && !part->is_plain && !is_in_f64(part);
}

static cddp_status scout_run(cd_reference *r, const cd_oracle_part *part, cddp_error *err)
{
    cd_micro micro;
    cd_micro_batch samples;
    cd_scout *s = &r->scouts[is_in_f64(part)];
    const bool casts = s->crossed.units != NULL && casts_between_units(r, part);
    if (!find_micro(r, part, &micro)) return CDDP_OK;
    CD_TRY(find_samples(r, &micro, &samples, err));
    s->normaliser.computes_objective = part->objective;
    cd_own_begin_step(s->replica, part->rank, part->step);
    cd_statistics_begin(r->listening, part->rank);
    s->crossed.is_active = casts;
    CD_TRY(run_micro(&(whole_micro){.replica = s->replica,
                                    .normaliser = &s->normaliser,
                                    .settings = settings_of(r, part->rank),
                                    .micro = &micro,
                                    .samples = &samples,
                                    .crossed = casts ? &s->crossed : NULL,
                                    .sample = CD_ORACLE_ALL,
                                    .loss_scale = *r->loss_scale},
                     err));
    CD_TRY(cd_module_zero_grad(s->replica->model->module, CD_ZERO_GRAD_TO_NONE, err));
    return CDDP_OK;
}

static cddp_status scout_all(cd_reference *r, const cd_oracle_part *part, cddp_error *err)
{
    CD_TRY(make_scout(r, is_in_f64(part), err));
    const cd_module *from = r->replica->model->module,
                    *to = r->scouts[is_in_f64(part)].replica->model->module;
    cd_statistics *s = r->listening;
    size_t rounds = 0;
    for (size_t i = 0; i < from->parameter_count; i++)
        CD_TRY(to->device->copy(&to->parameters[i].tensor, &from->parameters[i].tensor, NULL, err));
    cd_statistics_forget(s);
    do {
        s->has_changed = false;
        for (uint32_t rank = 0; rank < r->plan->world.size; rank++) {
            cd_oracle_part all = *part;
            all.rank = rank;
            CD_TRY(scout_run(r, &all, err));
        }
        /* Ranks that exchange more often than others pair a forward with a backward, and nothing
        ** settles. No program means that: what was found last is compared all the same, and the
        ** order of collectives shows the cause (I-ORDER). */
    } while (s->has_changed && ++rounds <= s->count + 2);
    return CDDP_OK;
}

static cddp_status find_key(cd_reference *r, const cd_oracle_part *part, cddp_error *err)
{
    const cd_module *module = r->replica->model->module;
    if (!r->has_digest) {
        r->key.digest = 0;
        for (size_t i = 0; i < module->parameter_count; i++) {
            uint64_t digest = 0;
            CD_TRY(module->device->digest(&module->parameters[i].tensor, &digest, err));
            r->key.digest = cd_hash_mix(r->key.digest, digest);
        }
        r->has_digest = true;
    }
    r->key.loss_scale = (uint64_t)cd_f64_bits(*r->loss_scale);
    r->key.step = part->step;
    r->key.micro_step = part->micro_step;
    r->key.objective = part->objective;
    r->key.is_wide = is_in_f64(part);
    r->key.is_plain = !casts_between_units(r, part);
    return CDDP_OK;
}

static cddp_status find_statistics(cd_reference *r, const cd_oracle_part *part, cddp_error *err)
{
    cd_said *said;
    if (!exchanges_statistics(r)) return CDDP_OK;
    CD_TRY(find_key(r, part, err));
    CD_TRY(cd_statistics_share_find(&r->share->statistics, &r->key, &said, err));
    r->listening = &said->statistics;
    if (!said->is_settled) {
        CD_TRY(scout_all(r, part, err));
        said->is_settled = true;
    }
    cd_statistics_begin(r->listening, part->rank);
    return CDDP_OK;
}

/* From what the forward uses, which low precision has rounded. */
static cddp_status load_wide(cd_reference *r, cddp_error *err)
{
    const cd_wide_values values = {.parameter = reference_forward_parameter,
                                   .context = r,
                                   .buffers = r->loaded};
    CD_TRY(cd_wide_find(&r->wide, r->replica, err));
    const cd_graph_callbacks callbacks = exchanging(r, true);
    if (exchanges_statistics(r)) cd_graph_set_callbacks(r->wide.replica->graph, &callbacks);
    CD_TRY(cd_wide_load(&r->wide, &values, err));
    r->ran = r->wide.replica;
    return CDDP_OK;
}

static const cddp_tensor *wide_parameter(void *context, uint32_t parameter)
{
    const cd_reference *r = context;
    return &r->wide.replica->model->module->parameters[parameter].tensor;
}

static cddp_status reference_run(void *self, const cd_oracle_part *part, cddp_error *err)
{
    cd_reference *r = self;
    cd_micro micro;
    cd_micro_batch samples;
    if (!find_micro(r, part, &micro)) return CDDP_OK;
    /* A backward that ended cast its gradients up, and a half type does not have all numbers of
    ** another. */
    CD_TRY(cd_low_precision_end(&r->low, err));
    CD_TRY(cd_low_precision_begin(part->precision == CD_ORACLE_IN_F32 ? &r->full : &r->low, err));
    CD_TRY(find_statistics(r, part, err));
    CD_TRY(find_samples(r, &micro, &samples, err));
    /* once per backward, whatever its samples */
    const uint32_t together = micro.samples * (micro.backward_each ? 1 : micro.forwards);
    if (part->sample != CD_ORACLE_ALL && part->sample % together != 0)
        micro.poison = CDDP_POISON_NOTHING;
    memset(r->uses, 0, r->replica->model->module->parameter_count * sizeof *r->uses);
    r->running = &micro;
    r->normaliser.computes_objective = part->objective;
    r->ran = r->replica;
    if (part->precision == CD_ORACLE_IN_F64) CD_TRY(load_wide(r, err));
    cd_own_begin_step(r->ran, part->rank, part->step);
    const bool casts = casts_between_units(r, part);
    r->crossed.is_active = casts;
    const cddp_status status =
        run_micro(&(whole_micro){.replica = r->ran,
                                 .normaliser = &r->normaliser,
                                 .settings = settings_of(r, part->rank),
                                 .micro = &micro,
                                 .samples = &samples,
                                 .crossed = casts ? &r->crossed : NULL,
                                 .sample = part->sample,
                                 .entered = part->reenters ? r->loaded : NULL,
                                 .loss_scale = *r->loss_scale},
                  err);
    const bool left_early = status == CDDP_E_ABORTED && micro.abort_after > 0;
    r->running = NULL;
    return left_early ? CDDP_OK : status;
}

static cddp_status reference_ready(void *context, uint32_t parameter, cddp_grad *grad,
                                   cddp_error *err)
{
    cd_reference *r = context;
    CD_TRY(cd_own_make_ready(r->replica, r->running, parameter, grad, err));
    if (r->replica->ready_count == r->running->abort_after) {
        return cd_fail(err, CDDP_E_ABORTED, "the plan leaves this backward after %u gradients",
                       r->replica->ready_count);
    }
    return CDDP_OK;
}

static const cddp_tensor *reference_parameters(void *self)
{
    return ((cd_reference *)self)->parameters;
}

static const cddp_tensor *reference_buffers(void *self) { return ((cd_reference *)self)->buffers; }

static const cddp_grad *reference_gradients(void *self)
{
    cd_reference *r = self;
    const cd_module *module = r->ran->model->module;
    for (size_t i = 0; i < module->parameter_count; i++)
        r->gradients[i] = module->parameters[i].grad;
    return r->gradients;
}

static const uint32_t *reference_uses(void *self) { return ((cd_reference *)self)->uses; }

static void find_rates(cd_reference *r, uint32_t step)
{
    const size_t count = r->replica->optimizer_count;
    if (r->rate_step > step || r->rate_step == 0) {
        r->rate_step = 0;
        for (size_t i = 0; i < count; i++)
            r->rates[i] = cd_rates_first(r->plan, r->replica->rank, i);
    }
    for (; r->rate_step < step; r->rate_step++) {
        for (size_t i = 0; i < count; i++)
            r->rates[i] = cd_rates_next(r->rates[i], r->replica->settings.train.lr_decay);
    }
}

static cddp_status reference_update(void *self, const cd_oracle_update *before,
                                    cd_oracle_slots *state, cddp_error *err)
{
    cd_reference *r = self;
    cd_replica *replica = r->replica;
    CD_TRY(reference_load(r, before->parameters, NULL, err));
    for (size_t i = 0; i < replica->model->module->parameter_count; i++)
        CD_TRY(reference_set_gradient(r, i, &before->gradients[i], err));
    const cd_blob *entering = before->restarts ? r->restart : r->state;
    if (entering != NULL) {
        cd_blob blob = *entering; /* its own cursor; the bytes are the owner's */
        CD_TRY(cd_optimizer_bytes_pop(replica, &blob, err));
    }
    find_rates(r, before->step);
    for (size_t i = 0; i < replica->optimizer_count; i++) {
        if (r->due[i]) {
            cd_optimizer_set_lr(replica->optimizers[i].optimizer, r->rates[i]);
            CD_TRY(cd_optimizer_step(replica->optimizers[i].optimizer, err));
        }
    }
    if (r->is_free_running) {
        CD_TRY(cd_replica_regrid(replica, err)); /* it goes on from here by itself */
    }
    r->has_digest = false;
    reference_drop_gradients(r);
    cd_replica_get_slots(replica, r->slots, r->slot_parameters);
    *state = (cd_oracle_slots){r->slots, r->slot_parameters, r->slot_count};
    return CDDP_OK;
}

static cddp_status reference_statistics(void *self, const cd_oracle_part *part, size_t exchange,
                                        size_t width, cd_oracle_exchange *found, cddp_error *err)
{
    cd_reference *r = self;
    CD_TRY(cd_low_precision_begin(&r->low, err));
    CD_TRY(find_statistics(r, part, err));
    const cd_statistics *s = r->listening;
    if (exchange >= s->count || s->exchanges[exchange].width != width) {
        return cd_fail(err, CDDP_E_STATE,
                       "exchange %zu of the batch norm statistics of a micro-step is none of the "
                       "reference's %zu",
                       exchange, s->count);
    }
    *found = (cd_oracle_exchange){s->exchanges[exchange].said, s->exchanges[exchange].buffer};
    return CDDP_OK;
}

/* ---- a micro-step as data ---- */

/* Divisors that are averages over a step: of each forward, without a table and of each
** [[output]]. */
static cddp_status find_divisors(cd_reference *r, const cd_example_batch *batch, double *divisors,
                                 cddp_error *err)
{
    const cddp_plan_settings *settings = settings_of(r, batch->micro->place.rank);
    r->normaliser.computes_objective = false;
    const size_t tables = r->plan->output_count;
    for (uint32_t f = 0; f < batch->micro->forwards; f++) {
        const cd_forward_place place = {batch->micro, f};
        double *own = &divisors[f * (tables + 1)];
        CD_TRY(cd_normaliser_find(&r->normaliser, settings, &place, own, err));
        for (size_t k = 0; k < tables; k++) {
            CD_TRY(
                cd_normaliser_find_output(&r->normaliser, settings, &place, k, &own[k + 1], err));
        }
    }
    return CDDP_OK;
}

/* The micro-batches of several ranks side by side: the next fill takes the arrays of this one. */
static cddp_status keep_samples(cd_reference *r, cd_micro_batch *batch, cddp_error *err)
{
    const size_t count = batch->count;
    int64_t *ids = cd_arena_array(&r->memory, count + 1, sizeof *ids);
    uint32_t *epochs = cd_arena_array(&r->memory, count + 1, sizeof *epochs);
    double *weights = cd_arena_array(&r->memory, count + 1, sizeof *weights);
    CD_TRY(cd_arena_check(&r->memory, err, "the samples of an example"));
    memcpy(ids, batch->ids, count * sizeof *ids);
    memcpy(epochs, batch->epochs, count * sizeof *epochs);
    memcpy(weights, batch->weights, count * sizeof *weights);
    batch->ids = ids;
    batch->epochs = epochs;
    batch->weights = weights;
    return CDDP_OK;
}

typedef struct example_room {
    cd_example_batch *batches; /* (world) */
    cd_micro *micros;
    cd_micro_batch *samples;
    double *divisors; /* (world, FORWARDS_MAX, tables + 1) */
} example_room;

static cddp_status add_batch(cd_reference *r, const example_room *room, size_t index,
                             cddp_error *err)
{
    double *divisors = room->divisors + index * FORWARDS_MAX * (r->plan->output_count + 1);
    CD_TRY(find_samples(r, &room->micros[index], &room->samples[index], err));
    CD_TRY(keep_samples(r, &room->samples[index], err));
    room->batches[index] = (cd_example_batch){.micro = &room->micros[index],
                                              .samples = &room->samples[index],
                                              .divisors = divisors};
    CD_TRY(find_divisors(r, &room->batches[index], divisors, err));
    return CDDP_OK;
}

/* The rank's own micro-batch; with common statistics also those of all other ranks that run it. */
static cddp_status reference_example(void *self, const cd_oracle_part *part,
                                     cd_second_program *program, const char **why, cddp_error *err)
{
    cd_reference *r = self;
    const uint32_t world = exchanges_statistics(r) ? (uint32_t)r->plan->world.size : 1;
    const cd_arena_mark mark = cd_arena_get_mark(&r->memory);
    const example_room room = {cd_arena_array(&r->memory, world, sizeof(cd_example_batch)),
                               cd_arena_array(&r->memory, world, sizeof(cd_micro)),
                               cd_arena_array(&r->memory, world, sizeof(cd_micro_batch)),
                               cd_arena_array(&r->memory,
                                              (size_t)world * FORWARDS_MAX *
                                                  (r->plan->output_count + 1),
                                              sizeof(double))};
    size_t count = 0;
    CD_TRY(cd_arena_check(&r->memory, err, "an example of rank %u", part->rank));
    for (uint32_t rank = 0; rank < world; rank++) {
        cd_oracle_part one = *part;
        if (world > 1) one.rank = rank;
        if (!find_micro(r, &one, &room.micros[count])) continue;
        CD_TRY(add_batch(r, &room, count, err));
        room.batches[count++].is_own = one.rank == part->rank;
    }
    const bool is_wide = part->precision == CD_ORACLE_IN_F64;
    const cd_example_request request = {.replica = is_wide ? r->wide.replica : r->replica,
                                        .ranks = room.batches,
                                        .rank_count = count,
                                        .forward_parameter =
                                            is_wide ? wide_parameter : reference_forward_parameter,
                                        .context = r,
                                        .loss_scale = *r->loss_scale};
    CD_TRY(cd_example_fill(&r->example, &request, program, why, err));
    cd_arena_rewind(&r->memory, mark);
    return CDDP_OK;
}

/* ---- life ---- */

void cd_reference_share_init(cd_reference_share *share, const cddp_plan *plan,
                             const cddp_allocator *allocator)
{
    cd_statistics_share_init(&share->statistics, (uint32_t)plan->world.size, allocator);
    cd_samples_init(&share->samples, plan, allocator);
}

void cd_reference_share_fini(cd_reference_share *share)
{
    cd_statistics_share_fini(&share->statistics);
    cd_samples_fini(&share->samples);
}

/* Equal bytes are equal settings; where padding differs a rank has a copy more, and nothing
** else. */
static cddp_status add_settings(cd_reference *r, uint32_t rank, cddp_error *err)
{
    cddp_plan_settings settings;
    memset(&settings, 0, sizeof settings);
    CD_TRY(cddp_plan_rank_settings(r->plan, rank, &settings, err));
    for (size_t i = r->setting_count; i > 0; i--) {
        if (memcmp(&r->settings[i - 1], &settings, sizeof settings) == 0) {
            r->settings_of[rank] = (uint32_t)(i - 1);
            return CDDP_OK;
        }
    }
    if (!cd_vec_grow(r->allocator, (void **)&r->settings, &r->setting_capacity,
                     r->setting_count + 1, sizeof settings))
        return cd_fail_memory(err, "the settings of rank %u in a reference", rank);
    memcpy(&r->settings[r->setting_count], &settings, sizeof settings);
    r->settings_of[rank] = (uint32_t)r->setting_count++;
    return CDDP_OK;
}

static cddp_status reference_allocate(cd_reference *r, cddp_error *err)
{
    const cd_module *module = r->replica->model->module;
    const size_t world = (size_t)r->plan->world.size;
    r->slot_count = cd_replica_slot_count(r->replica);
    r->settings_of = cd_arena_array(&r->memory, world, sizeof *r->settings_of);
    r->parameters = cd_arena_array(&r->memory, module->parameter_count + 1, sizeof *r->parameters);
    r->gradients = cd_arena_array(&r->memory, module->parameter_count + 1, sizeof *r->gradients);
    r->buffers = cd_arena_array(&r->memory, module->buffer_count + 1, sizeof *r->buffers);
    r->uses = cd_arena_array(&r->memory, module->parameter_count + 1, sizeof *r->uses);
    r->rates = cd_arena_array(&r->memory, r->replica->optimizer_count, sizeof *r->rates);
    r->slots = cd_arena_array(&r->memory, r->slot_count + 1, sizeof *r->slots);
    r->slot_parameters = cd_arena_array(&r->memory, r->slot_count + 1, sizeof *r->slot_parameters);
    CD_TRY(cd_arena_check(&r->memory, err, "the reference of rank %u", r->replica->rank));
    for (uint32_t rank = 0; rank < world; rank++) CD_TRY(add_settings(r, rank, err));
    for (size_t i = 0; i < module->parameter_count; i++)
        r->parameters[i] = module->parameters[i].tensor;
    for (size_t i = 0; i < module->buffer_count; i++) r->buffers[i] = module->buffers[i].tensor;
    return CDDP_OK;
}

/* The part of the key that stays. */
static void set_key(cd_reference *r)
{
    const uint32_t own = r->settings_of[r->replica->rank];
    r->key = (cd_statistics_key){.device = r->replica->model->module->device};
    while (r->settings_of[r->key.settings_rank] != own) r->key.settings_rank++;
}

static cddp_status find_low(cd_reference *r, cddp_error *err)
{
    cd_module *module = r->replica->model->module;
    const cddp_plan_settings *settings = &r->replica->settings;
    const cd_arena_mark mark = cd_arena_get_mark(&r->memory);
    cd_planned_precision *precisions =
        cd_arena_array(&r->memory, module->parameter_count + 1, sizeof *precisions);
    CD_TRY(cd_arena_check(&r->memory, err, "the dtypes of a reference"));
    CD_TRY(cd_planned_find_precision(r->plan, settings, module, &r->memory, precisions, err));
    const cd_low_options low = {settings, precisions, module, r->allocator};
    CD_TRY(cd_low_precision_init(&r->low, &low, err));
    cd_arena_rewind(&r->memory, mark);
    if (settings->fsdp.enable)
        CD_TRY(cd_crossed_init(&r->crossed, r->plan, settings, module, &r->memory, err));
    return CD_PASS(cd_full_precision_init(&r->full, &r->low, err));
}

cddp_status cd_reference_create(const cd_reference_options *options, cd_reference **reference,
                                cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_arena memory;
    cd_arena_init(&memory, options->allocator, MEMORY_BLOCK_BYTES);
    cd_reference *r = cd_arena_push(&memory, sizeof *r);
    CD_TRY(cd_arena_check(&memory, err, "a reference"));
    r->memory = memory;
    r->plan = options->plan;
    r->allocator = options->allocator;
    r->state = options->state;
    r->restart = options->restart;
    r->is_free_running = options->is_free_running;
    r->loss_scale = options->loss_scale;
    cd_reference_share_init(&r->own, options->plan, options->allocator);
    r->share = options->share != NULL ? options->share : &r->own;
    r->engine = (cd_oracle_engine){.self = r,
                                   .load = reference_load,
                                   .set_gradient = reference_set_gradient,
                                   .drop_gradients = reference_drop_gradients,
                                   .run = reference_run,
                                   .sample_count = reference_sample_count,
                                   .parameters = reference_parameters,
                                   .gradients = reference_gradients,
                                   .buffers = reference_buffers,
                                   .update = reference_update,
                                   .example = reference_example,
                                   .uses = reference_uses};
    cd_example_init(&r->example, options->allocator);
    const cd_replica_options replica = {.plan = options->plan,
                                        .rank = options->rank,
                                        .device = options->device,
                                        .allocator = options->allocator};
    CD_TRY_OUT(cd_replica_create(&replica, &r->replica, err));
    cd_normaliser_init(&r->normaliser, r->replica, &r->share->samples);
    CD_TRY_OUT(reference_allocate(r, err));
    CD_TRY_OUT(find_low(r, err));
    /* what other ranks exchange with it would be of the other precision */
    r->engine.has_full = r->full.parameters != NULL && !exchanges_statistics(r);
    r->engine.has_wide = cd_wide_is_needed(r->replica);
    r->engine.casts_values =
        r->crossed.units != NULL && (r->crossed.is_needed || cd_crossed_get_input(&r->crossed));
    r->ran = r->replica;
    cd_graph_callbacks callbacks = callbacks_of(r);
    callbacks.ready = reference_ready;
    if (r->crossed.is_needed && cd_graph_computes(r->replica->graph)) {
        callbacks.use = reference_use;
        callbacks.cross = reference_cross;
    }
    cd_graph_set_callbacks(r->replica->graph, &callbacks);
    if (exchanges_statistics(r)) {
        set_key(r);
        r->engine.statistics = reference_statistics;
    }
    *reference = r;
    r = NULL;
out:
    cd_reference_destroy(r);
    return status;
}

void cd_reference_destroy(cd_reference *r)
{
    if (r == NULL) return;
    cd_release(r->allocator, r->settings, r->setting_capacity * sizeof *r->settings);
    cd_example_fini(&r->example);
    cd_reference_share_fini(&r->own);
    cd_low_precision_fini(&r->low);
    cd_low_precision_fini(&r->full);
    cd_wide_fini(&r->wide);
    for (size_t i = 0; i < 2; i++) cd_replica_destroy(r->scouts[i].replica);
    cd_replica_destroy(r->replica);
    cd_arena_fini(&r->memory);
}
