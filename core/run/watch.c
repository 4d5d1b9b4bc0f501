/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle and the reference of a rank, fed by its trainer.
**
** The run's values go to the oracle unchanged. The expected values come from the plan (declared.c)
** and from the reference. Parameters and the optimizers' state are copied before an
** update, since the update is judged from there.
*/
#include "core/run/watch.h"

#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/base/operation.h"
#include "core/oracle/emit.h"
#include "core/plan/plan.h"
#include "core/reference/collective.h"

#include <stdio.h>

#define MEMORY_BLOCK_BYTES ((size_t)1 << 12)

struct cd_watch {
    cd_arena memory; /* of the watch itself and its arrays */
    cd_watch_options options;
    cd_watcher watcher;
    const cddp_allocator *allocator; /* the rank's */
    cddp_plan_settings settings;     /* of the rank */
    double loss_scale;               /* of the step; the references borrow it */
    cd_reference *reference, *free_reference;
    cd_decisions decisions;
    cd_part *parts; /* (parameter_count) as the plan assigns them */
    bool *due;      /* (optimizer_count) of the update at hand */
    cd_oracle *oracle;
    cd_blob optimizer_state; /* before the update, for the reference */
    cddp_tensor *before;     /* (parameter_count) parameters before it, owned */
    size_t parameter_count;
    cddp_tensor *slots;       /* (slot_count) of the optimizers, after it */
    int32_t *slot_parameters; /* (slot_count) */
    size_t slot_count;
    cd_numbers numbers; /* of a collective's result */
};

/* ---- opening ---- */

/* Statistics of a batch live in buffers. A gradient that is cast rounds once per batch and not once
** per sample, and the processor's flag does not show it; nor does it show what another device
** computes. See Note [Addends of the reference] */
static bool model_is_sample_wise(const cd_watch *w, const cd_module *module)
{
    const cddp_dtype dtype = (cddp_dtype)w->settings.model.dtype;
    return module->buffer_count == 0 && dtype != CDDP_F16 && dtype != CDDP_BF16 &&
           w->settings.mixed_precision.param_dtype == CDDP_PARAM_DTYPE_NONE &&
           cd_device_is_direct(module->device);
}

static cd_oracle_path path_of(const cd_watch *w, const cd_watched_model *model, size_t parameter)
{
    if (model->variables[parameter] >= 0) return CD_ORACLE_PATH_BUCKET;
    return cd_patterns_match(&w->settings.ddp.delay_all_reduce_named_params,
                             model->replica->model->module->parameters[parameter].name)
               ? CD_ORACLE_PATH_DELAYED
               : CD_ORACLE_PATH_LOCAL;
}

/* ZRO-01 as the plan declares it, whatever this rank does: of one optimizer's parameters. */
static cddp_status declare_parts(cd_watch *w, size_t optimizer, cd_oracle_parameter *parameters,
                                 cddp_error *err)
{
    const cd_replica_optimizer *o = &w->reference->replica->optimizers[optimizer];
    const int64_t kind = w->options.plan->optimizers[optimizer].shard;
    const cd_arena_mark mark = cd_arena_get_mark(&w->memory);
    int64_t *numels = cd_arena_array(&w->memory, o->count, sizeof *numels);
    cd_part *parts = cd_arena_array(&w->memory, o->count, sizeof *parts);
    CD_TRY(cd_arena_check(&w->memory, err, "the parts of optimizer '%s'", o->name));
    const cd_partition partition = {numels, o->count, (uint32_t)w->options.plan->world.size,
                                    w->allocator};
    for (size_t k = 0; k < o->count; k++) numels[k] = parameters[o->ordinals[k]].numel;
    if (kind == CD_SHARD_FLAT) {
        cd_partition_flat(&partition, parts);
    } else {
        CD_TRY(cd_partition_whole(&partition,
                                  w->options.plan->settings.shard.order == CD_SHARD_BY_SIZE, parts,
                                  err));
    }
    for (size_t k = 0; k < o->count; k++) parameters[o->ordinals[k]].part = parts[k];
    cd_arena_rewind(&w->memory, mark);
    return CDDP_OK;
}

static cddp_status make_references(cd_watch *w, const cd_watched_model *model, cddp_error *err)
{
    const cd_reference_options restarted = {.plan = w->options.plan,
                                            .rank = w->options.rank->rank,
                                            .device = model->device,
                                            .allocator = w->allocator,
                                            .state = cd_replica_is_sharded(model->replica)
                                                         ? NULL
                                                         : &w->optimizer_state,
                                            .loss_scale = &w->loss_scale,
                                            .share = w->options.reference_share};
    cd_reference_options running = restarted;
    running.state = NULL;
    running.is_free_running = true;
    CD_TRY(cd_reference_create(&restarted, &w->reference, err));
    CD_TRY(cd_reference_create(&running, &w->free_reference, err));
    return CDDP_OK;
}

static cddp_status make_oracle(cd_watch *w, const cd_watched_model *model, cddp_error *err)
{
    const cddp_plan *plan = w->options.plan;
    const cd_module *module = model->replica->model->module;
    w->parts = cd_arena_array(&w->memory, module->parameter_count + 1, sizeof *w->parts);
    const cd_arena_mark mark = cd_arena_get_mark(&w->memory);
    cd_oracle_parameter *parameters =
        cd_arena_array(&w->memory, module->parameter_count + 1, sizeof *parameters);
    CD_TRY(cd_arena_check(&w->memory, err, "the oracle of rank %u", w->options.rank->rank));
    /* Names of the reference: it lives as long as the oracle, while the trained module may be
    ** rebuilt. */
    const cd_module *reference = w->reference->replica->model->module;
    for (size_t i = 0; i < module->parameter_count; i++) {
        const cd_parameter *p = &reference->parameters[i];
        parameters[i] = (cd_oracle_parameter){p->name,
                                              cddp_tensor_numel(&p->tensor),
                                              p->tensor.dtype,
                                              model->variables[i],
                                              path_of(w, model, i),
                                              {0, 0}};
    }
    for (size_t i = 0; i < plan->optimizer_count; i++) {
        if (plan->optimizers[i].shard != CD_SHARD_NONE)
            CD_TRY(declare_parts(w, i, parameters, err));
    }
    for (size_t i = 0; i < module->parameter_count; i++) w->parts[i] = parameters[i].part;
    const cd_oracle_options options = {.parameters = parameters,
                                       .parameter_count = module->parameter_count,
                                       .buffer_count = module->buffer_count,
                                       .rank = w->options.rank->rank,
                                       .world_size = (uint32_t)plan->world.size,
                                       .engine = &w->reference->engine,
                                       .free_engine = &w->free_reference->engine,
                                       .share = w->options.share,
                                       .tracer = w->options.tracer,
                                       .allocator = w->allocator,
                                       .sample_wise = model_is_sample_wise(w, module),
                                       .separate = w->settings.ddp.accumulate_in_hook,
                                       .exact_inputs = w->settings.model.exact};
    CD_TRY(cd_oracle_create(&options, &w->oracle, err));
    cd_arena_rewind(&w->memory, mark);
    return CDDP_OK;
}

/* Room for what is copied before an update. */
static cddp_status make_room(cd_watch *w, const cd_watched_model *model, cddp_error *err)
{
    const cd_module *module = model->replica->model->module;
    w->parameter_count = module->parameter_count;
    w->slot_count = cd_replica_slot_count(model->replica);
    w->before = cd_arena_array(&w->memory, w->parameter_count + 1, sizeof *w->before);
    w->slots = cd_arena_array(&w->memory, w->slot_count + 1, sizeof *w->slots);
    w->slot_parameters = cd_arena_array(&w->memory, w->slot_count + 1, sizeof *w->slot_parameters);
    CD_TRY(cd_arena_check(&w->memory, err, "the watcher of rank %u", w->options.rank->rank));
    for (size_t i = 0; i < w->parameter_count; i++) {
        const cddp_tensor *like = &module->parameters[i].tensor;
        void *storage;
        CD_TRY(like->device->allocate(like->device, like->dtype, cddp_tensor_numel(like) + 1,
                                      &storage, err));
        w->before[i] =
            cddp_tensor_of(like->device, storage, 0, like->dtype, like->sizes, like->dim_count);
    }
    return CDDP_OK;
}

static cddp_status make_decisions(cd_watch *w, cddp_error *err)
{
    const cd_decisions_options options = {.plan = w->options.plan,
                                          .rank = w->options.rank->rank,
                                          .replica = w->reference->replica,
                                          .samples = &w->reference->share->samples,
                                          .parts = w->parts,
                                          .memory = &w->memory};
    w->due = cd_arena_array(&w->memory, w->reference->replica->optimizer_count, sizeof *w->due);
    CD_TRY(cd_arena_check(&w->memory, err, "the decisions of rank %u", w->options.rank->rank));
    CD_TRY(cd_decisions_init(&w->decisions, &options, err));
    CD_TRY(cd_decisions_emit(&w->decisions, w->options.tracer, err));
    return CDDP_OK;
}

static cddp_status watch_open(void *self, const cd_watched_model *model, cddp_error *err)
{
    cd_watch *w = self;
    CD_TRY(make_references(w, model, err));
    CD_TRY(make_oracle(w, model, err));
    CD_TRY(make_room(w, model, err));
    CD_TRY(make_decisions(w, err));
    return CDDP_OK;
}

/* ---- moments ---- */

static cddp_status watch_begin(void *self, uint32_t step, const cd_watched_values *values,
                               cddp_error *err)
{
    cd_watch *w = self;
    w->loss_scale = cd_decisions_begin_step(&w->decisions, step, w->options.tracer);
    CD_TRY(cd_oracle_begin_step(w->oracle, step, values->parameters, values->gradients, err));
    return CDDP_OK;
}

static cddp_status watch_before_update(void *self, const cd_replica *replica, cddp_error *err)
{
    cd_watch *w = self;
    const cd_module *module = replica->model->module;
    for (size_t i = 0; i < module->parameter_count; i++)
        CD_TRY(module->device->copy(&w->before[i], &module->parameters[i].tensor, NULL, err));
    cd_blob_clear(&w->optimizer_state);
    CD_TRY(cd_replica_save_optimizers(replica, &w->optimizer_state, err));
    return CDDP_OK;
}

static cddp_status watch_enter_forward(void *self, uint32_t micro_step,
                                       const cd_watched_values *values, cddp_error *err)
{
    const cd_watch *w = self;
    CD_TRY(cd_oracle_enter_forward(w->oracle, micro_step, values->buffers, err));
    return CDDP_OK;
}

static cddp_status watch_normalised(void *self, const cd_watched_statistics *used, cddp_error *err)
{
    const cd_watch *w = self;
    const cd_oracle_moments moments = {.step = used->step,
                                       .micro_step = used->micro_step,
                                       .exchange = used->exchange,
                                       .buffer = used->buffer,
                                       .mean = used->mean,
                                       .spread = used->spread,
                                       .channels = used->channels};
    CD_TRY(cd_oracle_judge_statistics(w->oracle, &moments, err));
    return CDDP_OK;
}

static cddp_status watch_accumulated(void *self, size_t parameter, const cddp_grad *gradient,
                                     cddp_error *err)
{
    const cd_watch *w = self;
    CD_TRY(cd_oracle_push_local(w->oracle, parameter, gradient, err));
    return CDDP_OK;
}

static bool is_last_of_step(const cd_watch *w, const cd_micro *micro)
{
    return micro->place.micro_step + 1u == w->settings.train.micro_steps;
}

static cddp_status watch_reduced(void *self, const cd_watched_reduction *watched, cddp_error *err)
{
    cd_watch *w = self;
    cd_oracle_reduction reduction;
    cd_declaration declaration = {.plan = w->options.plan,
                                  .settings = &w->settings,
                                  .decisions = &w->decisions,
                                  .rank = w->options.rank->rank,
                                  .loss_scale = w->loss_scale};
    CD_TRY(cd_declare_reduction(&declaration, watched, &reduction, err));
    CD_TRY(cd_oracle_judge_gradients(w->oracle, &reduction, watched->values.buffers, err));
    if (is_last_of_step(w, watched->micro)) {
        CD_TRY(cd_decisions_judge(&w->decisions, watched->micro->place.step,
                                  watched->values.gradients, &w->numbers, w->options.tracer, err));
    }
    return CDDP_OK;
}

static cddp_status watch_clips(void *self, const cd_watched_norm *watched, cddp_error *err)
{
    const cd_watch *w = self;
    const cd_oracle_norm norm = {watched->values.gradients, watched->norm, watched->ranks,
                                 watched->rank_count};
    CD_TRY(cd_oracle_judge_norm(w->oracle, &norm, err));
    return CDDP_OK;
}

/* The assignment of parameters to ranks follows from the rebuilt buckets and from the rule by which
** buckets are assigned. The wrapper knows the buckets, and I-CONTENT judges them. The oracle has
** its own form of the rule. */
static cddp_status watch_assigned(void *self, const cd_watched_bucket *watched, size_t count,
                                  cddp_error *err)
{
    cd_watch *w = self;
    const cd_module *module = w->reference->replica->model->module;
    const size_t parameters = module->parameter_count + 1;
    const cd_arena_mark mark = cd_arena_get_mark(&w->memory);
    cd_partition_bucket *buckets = cd_arena_array(&w->memory, count + 1, sizeof *buckets);
    cd_part *parts = cd_arena_array(&w->memory, parameters, sizeof *parts);
    int64_t *numels = cd_arena_array(&w->memory, parameters, sizeof *numels);
    CD_TRY(cd_arena_check(&w->memory, err, "the owners of %zu buckets", count));
    for (size_t b = 0; b < count; b++)
        buckets[b] = (cd_partition_bucket){watched[b].parameters, watched[b].count};
    for (size_t i = 0; i < module->parameter_count; i++)
        numels[i] = cddp_tensor_numel(&module->parameters[i].tensor);
    const cd_partition partition = {numels, module->parameter_count,
                                    (uint32_t)w->options.plan->world.size, w->allocator};
    CD_TRY(cd_partition_buckets(&partition, buckets, count,
                                w->options.plan->optimizers[0].shard_buckets, parts, err));
    cd_oracle_declare_parts(w->oracle, parts);
    cd_arena_rewind(&w->memory, mark);
    return CDDP_OK;
}

static cddp_status watch_updated(void *self, const cd_watched_update *watched, cddp_error *err)
{
    cd_watch *w = self;
    cd_replica_get_slots(watched->replica, w->slots, w->slot_parameters);
    const cd_oracle_update before = {.step = watched->step,
                                     .parameters = w->before,
                                     .gradients = watched->values.gradients};
    const cd_oracle_update after = {.step = watched->step,
                                    .parameters = watched->values.parameters,
                                    .gradients = watched->values.gradients,
                                    .state = {w->slots, w->slot_parameters, w->slot_count}};
    for (size_t i = 0; i < watched->replica->optimizer_count; i++)
        w->due[i] = cd_decisions_has_step(&w->decisions, watched->step, i);
    w->reference->due = w->free_reference->due = w->due;
    CD_TRY(cd_oracle_judge_update(w->oracle, &before, &after, err));
    return CDDP_OK;
}

static cddp_status watch_exchanged(void *self, const cd_watched_collective *watched,
                                   cddp_error *err)
{
    cd_watch *w = self;
    char name[96];
    cd_comparison found;
    const cddp_op op = cd_plan_op(watched->planned);
    const bool reduces = cd_op_is_reduction(op);
    const cd_expected_collective expected = {watched->planned, watched->members, watched->size,
                                             watched->me};
    CD_TRY(cd_collective_compare(&expected, &w->numbers, watched->output, &found, err));
    snprintf(name, sizeof name, "%s%s%s of group '%.40s'", cddp_op_name(op), reduces ? " " : "",
             reduces ? cddp_red_op_name(cd_plan_reduction(watched->planned)) : "", watched->group);
    cd_comparison_emit(&(cd_comparison_place){w->options.tracer, CD_LINK_COLLECTIVE, -1, name},
                       &found);
    return CDDP_OK;
}

static cddp_status watch_finish(void *self, const cd_watched_values *values, cddp_error *err)
{
    const cd_watch *w = self;
    CD_TRY(cd_oracle_finish(w->oracle, values->parameters, err));
    return CDDP_OK;
}

static void watch_close(void *self)
{
    cd_watch *w = self;
    cd_oracle_destroy(w->oracle);
    cd_reference_destroy(w->reference);
    cd_reference_destroy(w->free_reference);
    for (size_t i = 0; w->before != NULL && i < w->parameter_count; i++) {
        const cddp_tensor *before = &w->before[i];
        if (before->device != NULL) {
            before->device->release(before->device, before->dtype, cddp_tensor_numel(before) + 1,
                                    before->storage);
        }
    }
    cd_blob_fini(&w->optimizer_state);
    cd_numbers_fini(&w->numbers);
    w->oracle = NULL;
    w->reference = w->free_reference = NULL;
    w->before = w->slots = NULL;
    w->slot_parameters = NULL;
}

static const cd_watcher_ops watch_ops = {.open = watch_open,
                                         .begin = watch_begin,
                                         .before_update = watch_before_update,
                                         .enter_forward = watch_enter_forward,
                                         .normalised = watch_normalised,
                                         .accumulated = watch_accumulated,
                                         .reduced = watch_reduced,
                                         .clips = watch_clips,
                                         .assigned = watch_assigned,
                                         .updated = watch_updated,
                                         .exchanged = watch_exchanged,
                                         .finish = watch_finish,
                                         .close = watch_close};

/* ---- life ---- */

cddp_status cd_watch_create(const cd_watch_options *options, cd_watch **watch, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const cddp_allocator *allocator = options->rank->allocator;
    cd_arena memory;
    cd_arena_init(&memory, allocator, MEMORY_BLOCK_BYTES);
    cd_watch *w = cd_arena_push(&memory, sizeof *w);
    CD_TRY(cd_arena_check(&memory, err, "the watcher of rank %u", options->rank->rank));
    w->memory = memory;
    w->options = *options;
    w->allocator = w->optimizer_state.allocator = w->numbers.allocator = allocator;
    w->watcher = (cd_watcher){&watch_ops, w};
    w->loss_scale = 1.0;
    CD_TRY_OUT(cddp_plan_rank_settings(options->plan, options->rank->rank, &w->settings, err));
    *watch = w;
    w = NULL;
out:
    cd_watch_destroy(w);
    return status;
}

void cd_watch_destroy(cd_watch *w)
{
    if (w == NULL) return;
    watch_close(w);
    cd_arena_fini(&w->memory);
}

const cd_watcher *cd_watch_get_watcher(const cd_watch *watch) { return &watch->watcher; }
