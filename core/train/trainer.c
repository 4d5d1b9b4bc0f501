/* SPDX-License-Identifier: Apache-2.0 */
/* Building a trainer: group, replica, wrapper, hook, watcher, in the order in which a training
** script does it.
**
** Not here: what happens in an iteration (micro_step.c, step.c).
*/
#include "core/train/trainer.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/train/points.h"

#include <string.h>

#define MEMORY_BLOCK_BYTES ((size_t)1 << 12)

cd_module *cd_trainer_module(const cd_trainer *t) { return t->replica->model->module; }

static void refresh_gradients(cd_trainer *t, const cd_module *module)
{
    for (size_t i = 0; i < module->parameter_count; i++) {
        /* See Note [A step before the step] */
        const bool is_kept = t->parameters[i].averaged.kind != CDDP_GRAD_UNDEFINED;
        if (t->sharding != NULL)
            t->view.gradients[i] = *cd_sharding_gradient(t, i);
        else if (is_kept)
            t->view.gradients[i] = t->parameters[i].averaged;
        else
            cd_streams_plain_grad(&t->streams, &module->parameters[i].grad, &t->view.gradients[i]);
    }
}

cd_watched_values cd_trainer_refresh_parameters(cd_trainer *t)
{
    const cd_module *module = cd_trainer_module(t);
    for (size_t i = 0; i < module->parameter_count; i++)
        t->view.parameters[i] = module->parameters[i].tensor;
    for (size_t i = 0; i < module->buffer_count; i++)
        t->view.buffers[i] = module->buffers[i].tensor;
    return (cd_watched_values){t->view.parameters, NULL, t->view.buffers};
}

cd_watched_values cd_trainer_refresh_views(cd_trainer *t)
{
    cd_watched_values values = cd_trainer_refresh_parameters(t);
    refresh_gradients(t, cd_trainer_module(t));
    values.gradients = t->view.gradients;
    return values;
}

/* ---- arrays that follow the sizes of the model ---- */

static cddp_status allocate_arrays(cd_trainer *t, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    const size_t parameters = module->parameter_count + 1, buffers = module->buffer_count + 1;
    const size_t slots = cd_replica_slot_count(t->replica);
    cd_arena *memory = &t->memory;
    t->parameters = cd_arena_array(memory, parameters, sizeof *t->parameters);
    t->search.reachable = cd_arena_array(memory, parameters, sizeof(bool));
    t->search.variables = cd_arena_array(memory, parameters, sizeof(bool));
    t->trained.grads = cd_arena_array(memory, parameters, sizeof(cddp_grad *));
    t->view.parameters = cd_arena_array(memory, parameters, sizeof *t->view.parameters);
    t->view.gradients = cd_arena_array(memory, parameters, sizeof *t->view.gradients);
    t->view.buffers = cd_arena_array(memory, buffers, sizeof *t->view.buffers);
    t->view.buffer_looks = cd_arena_array(memory, buffers, sizeof *t->view.buffer_looks);
    t->join.slot_count = slots;
    t->join.slots = cd_arena_array(memory, 2 * (slots + 1), sizeof *t->join.slots);
    CD_TRY(cd_arena_check(memory, err, "the tables of rank %u", t->rank->rank));
    t->trained.count = 0;
    for (size_t i = 0; i < module->parameter_count; i++) {
        if (module->parameters[i].requires_grad ||
            cd_plan_unfreezes(t->program.plan, module->parameters[i].name))
            t->trained.grads[t->trained.count++] = &module->parameters[i].grad;
    }
    return CDDP_OK;
}

/* ---- model and wrapper, again after a resume ---- */

uint64_t cd_trainer_backward_weight(const cd_trainer *t, size_t parameter)
{
    const cd_parameter *p = &cd_trainer_module(t)->parameters[parameter];
    return t->program.settings.train.backward_split == CDDP_BACKWARD_SPLIT_WORK
               ? p->backward_cost
               : (uint64_t)cddp_tensor_numel(&p->tensor);
}

static void sum_backward_weights(cd_trainer *t)
{
    const cd_module *module = cd_trainer_module(t);
    t->backward_weights = 0;
    for (size_t i = 0; i < module->parameter_count; i++) {
        t->backward_weights +=
            module->parameters[i].requires_grad ? cd_trainer_backward_weight(t, i) : 0;
    }
}

static bool is_local_sgd(const cddp_plan_hook *hook)
{
    const char *name = hook->inner != NULL && hook->inner[0] != '\0' ? hook->inner : hook->name;
    return name != NULL && strcmp(name, "post_local_sgd") == 0;
}

/* JON-18. */
static cddp_status check_statistics(const cd_trainer *t, cddp_error *err)
{
    const bool exchanges = t->replica->model->exchanges_statistics;
    if (exchanges && t->program.plan->world.size > 1 && t->program.settings.join.enable) {
        return cd_fail(
            err, CDDP_E_CONFIG,
            "model '%s' has synchronised batch norm: a rank that joined runs no forward that could "
            "answer its exchanges; use norm=batch, or drop join.enable",
            t->program.settings.model.name);
    }
    if (exchanges && t->program.settings.averager.kind != CDDP_AVERAGER_NONE &&
        is_local_sgd(&t->program.settings.hook)) {
        return cd_fail(
            err, CDDP_E_CONFIG,
            "model '%s' has synchronised batch norm, whose statistics are over the ranks, and "
            "under "
            "local SGD these have different parameters: no single process has such statistics; use "
            "norm=batch",
            t->program.settings.model.name);
    }
    for (size_t i = 0; exchanges && i < t->program.plan->when_count; i++) {
        if (t->program.plan->whens[i].group == NULL) continue;
        return cd_fail(
            err, CDDP_E_CONFIG,
            "model '%s' has synchronised batch norm, which exchanges statistics over the "
            "first group: use norm=batch, or drop when.group",
            t->program.settings.model.name);
    }
    for (size_t i = 0; !exchanges && i < t->program.plan->when_count; i++) {
        const cddp_plan_when *when = &t->program.plan->whens[i];
        if (when->statistics != CDDP_PLAN_UNSET && cddp_selector_has(&when->ranks, t->rank->rank)) {
            return cd_fail(err, CDDP_E_CONFIG,
                           "when.statistics has no effect: model '%s' has no synchronised batch "
                           "norm (norm=sync)",
                           t->program.settings.model.name);
        }
    }
    return CDDP_OK;
}

/* Where this rank's tensors live, the reference's too: with numbers on the device that the backend
** brings, all arithmetic is that device's, and the oracle's too, which reads numbers where it
** compares them. */
static const cddp_device *device_of(const cd_trainer *t)
{
    const cddp_backend *b = t->options.backend;
    const bool has_slot = b->size >= offsetof(cddp_backend, device) + sizeof b->device;
    const bool is_brought = has_slot && b->device != NULL &&
                            t->program.settings.model.device == CDDP_MODEL_DEVICE_CPU &&
                            t->program.settings.model.memory == CDDP_MODEL_MEMORY_BACKEND;
    return is_brought ? b->device : cd_replica_device(&t->program.settings, t->options.devices);
}

cddp_status cd_trainer_build(cd_trainer *t, cddp_error *err)
{
    const cddp_device *device = device_of(t);
    if (t->program.settings.train.pass_us_per_mb > 0) {
        device = cd_timed_device_init(&t->timed_device, device, t->rank,
                                      t->program.settings.train.pass_us_per_mb);
    }
    CD_TRY(cd_trainer_make_replica(t, device, err));
    CD_TRY(check_statistics(t, err));
    CD_TRY(cd_streams_attach(&t->streams, cd_trainer_module(t), err));
    CD_TRY(allocate_arrays(t, err));
    sum_backward_weights(t);
    cd_trainer_refresh_views(t);
    cd_trainer_set_callbacks(t);
    CD_POINT_PARAMETERS("build.parameter", t);
    CD_POINT_BUFFERS("build.buffer", t);
    CD_TRY(cd_trainer_emit_parameters(t, CDDP_MOMENT_BEFORE_INIT, err));
    CD_TRY(cd_trainer_emit_buffers(t, CDDP_MOMENT_BEFORE_INIT, err));
    cd_trainer_watch_reductions(t);
    CD_TRY(t->program.settings.fsdp.enable ? cd_trainer_shard(t, err) : cd_trainer_wrap(t, err));
    CD_TRY(cd_trainer_open_clipping(t, err));
    CD_TRY(cd_trainer_open_averager(t, err));
    cd_trainer_report_gradients(t);
    CD_POINT_PARAMETERS("init.parameter", t);
    CD_POINT_BUFFERS("init.buffer", t);
    CD_TRY(cd_trainer_emit_parameters(t, CDDP_MOMENT_AFTER_INIT, err));
    CD_TRY(cd_trainer_emit_buffers(t, CDDP_MOMENT_AFTER_INIT, err));
    return CDDP_OK;
}

static void unwrap(cd_trainer *t)
{
    cd_trainer_close_averager(t);
    cd_trainer_close_clipping(t);
    cd_trainer_unshard(t);
    cddp_ddp_destroy(t->ddp);
    t->ddp = NULL;
}

void cd_trainer_drop(cd_trainer *t)
{
    unwrap(t);
    for (size_t i = 0; t->parameters != NULL && i < cd_trainer_module(t)->parameter_count; i++)
        cddp_grad_fini(&t->parameters[i].averaged);
    t->parameters = NULL;
    cd_trainer_drop_replica(t);
    cd_arena_fini(&t->memory);
}

/* ---- life ---- */

static cddp_status open_group(cd_trainer *t, cddp_error *err)
{
    const uint32_t world = (uint32_t)t->program.plan->world.size;
    t->groups.world = t->options.world;
    if (t->groups.world != NULL) return CDDP_OK;
    const cd_arena_mark mark = cd_arena_get_mark(&t->run_memory);
    uint32_t *members = cd_arena_array(&t->run_memory, world, sizeof *members);
    CD_TRY(cd_arena_check(&t->run_memory, err, "the members of the world"));
    for (uint32_t i = 0; i < world; i++) members[i] = i;
    const cddp_group_options options = {
        .size = sizeof options,
        .backend = t->options.backend,
        .rank = t->rank,
        .tracer = t->tracer,
        .sequence_start = t->program.plan->world.sequence_start,
        .spec = {.size = sizeof options.spec,
                 .name = t->options.group_name != NULL ? t->options.group_name : "world",
                 .group_rank = t->rank->rank,
                 .group_size = world,
                 .members = members,
                 .timeout_ns = t->program.plan->world.timeout_ms * 1000000u,
                 .in_flight_max = (uint32_t)t->program.plan->world.in_flight_max,
                 .options = t->program.plan->world.backend_options}};
    CD_TRY(cddp_group_create(&options, &t->groups.world, err));
    cd_arena_rewind(&t->run_memory, mark);
    return CDDP_OK;
}

/* Device shape has nothing to look at. */
static cddp_status open_watcher(cd_trainer *t, cddp_error *err)
{
    const size_t count = cd_trainer_module(t)->parameter_count;
    if (t->options.watcher == NULL || t->program.settings.model.device == CDDP_MODEL_DEVICE_SHAPE)
        return CDDP_OK;
    const cd_arena_mark mark = cd_arena_get_mark(&t->memory);
    int32_t *variables = cd_arena_array(&t->memory, count + 1, sizeof *variables);
    CD_TRY(cd_arena_check(&t->memory, err, "the variables of rank %u", t->rank->rank));
    for (size_t i = 0; i < count; i++) variables[i] = t->parameters[i].variable;
    const cd_watched_model model = {.device = device_of(t),
                                    .replica = t->replica,
                                    .variables = variables};
    t->view.watcher = t->options.watcher;
    CD_TRY(t->view.watcher->ops->open(t->view.watcher->self, &model, err));
    cd_arena_rewind(&t->memory, mark);
    return CDDP_OK;
}

cddp_status cd_trainer_create(const cd_trainer_options *options, cd_trainer **trainer,
                              cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const cddp_allocator *allocator = options->rank->allocator;
    cd_trainer *t = cd_allocate_zero(allocator, sizeof *t);
    if (t == NULL) return cd_fail_memory(err, "rank %u", options->rank->rank);
    t->options = *options;
    t->program.plan = options->plan;
    t->rank = options->rank;
    t->allocator = allocator;
    t->tracer = options->tracer;
    t->scaling.scale = 1.0;
    t->groups.numbers.allocator = t->saved.all.allocator = t->saved.part.allocator = allocator;
    cd_arena_init(&t->memory, allocator, MEMORY_BLOCK_BYTES);
    cd_arena_init(&t->run_memory, allocator, MEMORY_BLOCK_BYTES);
    CD_TRY_OUT(cddp_plan_rank_settings(t->program.plan, t->rank->rank, &t->program.settings, err));
    cd_trainer_emit_settings(t);
    CD_POINT_COUNT("settings.steps", t, t->program.settings.train.steps);
    CD_POINT_COUNT("settings.micro_steps", t, t->program.settings.train.micro_steps);
    CD_TRY_OUT(open_group(t, err));
    t->groups.wrapped = t->groups.world;
    CD_TRY_OUT(cd_trainer_open_groups(t, err));
    CD_TRY_OUT(
        cd_sampler_create(t->program.plan, t->rank->rank, allocator, &t->program.sampler, err));
    CD_TRY_OUT(cd_streams_open(&t->streams, &t->program.settings.streams,
                               cd_replica_device(&t->program.settings, t->options.devices), t->rank,
                               t->tracer, err));
    CD_TRY_OUT(cd_trainer_build(t, err));
    cd_trainer_emit_seeds(t);
    if (t->program.settings.amp.enable) {
        CD_POINT_NUMBER("settings.init_scale", t, t->program.settings.amp.init_scale);
        CD_POINT_NUMBER("settings.growth_factor", t, t->program.settings.amp.growth_factor);
        CD_POINT_COUNT("settings.growth_interval", t, t->program.settings.amp.growth_interval);
        const cddp_plan_amp *amp = &t->program.settings.amp;
        const cd_loss_scaler_options scaler = {amp->init_scale, amp->growth_factor,
                                               amp->backoff_factor, amp->growth_interval};
        CD_TRY_OUT(cd_loss_scaler_init(&t->scaling.scaler, &scaler, err));
    }
    CD_TRY_OUT(open_watcher(t, err));
    *trainer = t;
    t = NULL;
out:
    cd_trainer_destroy(t);
    return status;
}

/* The storage of a device that somebody else brought is not dropped with the run. */
static bool is_dropped(const cd_trainer *t)
{
    const cddp_device *device = device_of(t);
    bool is_own = false;
    for (size_t i = 0; t->options.devices != NULL && i < CD_REPLICA_DEVICES; i++)
        is_own |= device == &t->options.devices[i];
    return t->options.is_dropped && is_own && t->streams.device == NULL;
}

static void release_memory(cd_trainer *t)
{
    cd_trainer_drop(t);
    cd_sampler_destroy(t->program.sampler);
    cd_blob_fini(&t->saved.all);
    cd_blob_fini(&t->saved.part);
    cd_arena_fini(&t->run_memory);
    cd_release(t->allocator, t, sizeof *t);
}

void cd_trainer_destroy(cd_trainer *t)
{
    if (t == NULL) return;
    const bool keeps_memory = is_dropped(t);
    cd_streams_close(&t->streams);
    if (t->view.watcher != NULL) t->view.watcher->ops->close(t->view.watcher->self);
    unwrap(t);
    cd_trainer_close_groups(t);
    if (t->options.world == NULL) cddp_group_destroy(t->groups.world);
    if (!keeps_memory) release_memory(t);
}

/* ---- the loop ---- */

/* The process group that the plan has for the wrapper from this step on (UPG-01). */
static cddp_status take_group(cd_trainer *t, uint32_t step, cddp_error *err)
{
    const cddp_plan *plan = t->program.plan;
    const char *name = cd_plan_group_at(plan, t->rank->rank, step);
    cddp_group *group =
        cd_plan_is_member(plan, name, t->rank->rank) ? cd_trainer_find_group(t, name) : NULL;
    if (group == t->groups.wrapped) return CDDP_OK;
    t->groups.wrapped = group;
    if (CD_POINT_SKIPS("begin.group", t)) return CDDP_OK;
    CD_TRY(cddp_ddp_update_process_group(t->ddp, group, err));
    return CDDP_OK;
}

cddp_status cd_trainer_begin_step(cd_trainer *t, uint32_t step, cddp_error *err)
{
    t->now.step = step;
    CD_TRY(take_group(t, step, err));
    t->now.has_entered = false;
    if (t->program.settings.amp.enable) cd_trainer_rescale(t);
    cd_replica_begin_step(t->replica, t->rank->rank, step);
    for (size_t i = 0; i < cd_trainer_module(t)->parameter_count; i++)
        cddp_grad_drop(&t->parameters[i].averaged);
    CD_TRY(cd_streams_settle(&t->streams, err));
    CD_POINT_PARAMETERS("begin.parameter", t);
    CD_POINT_BUFFERS("begin.buffer", t);
    CD_POINT_SLOTS("begin.slot", t);
    CD_TRY(cd_trainer_show(t, CDDP_MOMENT_BEGIN, err));
    cd_trainer_emit_agreement(t);
    if (cd_trainer_steps_in_backward(t)) CD_TRY(cd_trainer_show(t, CDDP_MOMENT_BEFORE_STEP, err));
    return CDDP_OK;
}

cddp_status cd_trainer_end_step(cd_trainer *t, const cd_micro *last, cddp_error *err)
{
    CD_TRY(cd_trainer_step(t, last, err));
    if (t->tracer != NULL) CD_TRY(cddp_tracer_flush(t->tracer, err));
    CD_TRY(cd_trainer_checkpoint(t, t->now.step + 1, err));
    t->now.micro = NULL; /* the caller's, until here */
    return CDDP_OK;
}

uint32_t cd_trainer_steps(const cd_trainer *t) { return (uint32_t)t->program.settings.train.steps; }

uint32_t cd_trainer_epochs(const cd_trainer *t)
{
    return (uint32_t)t->program.settings.join.epochs;
}

uint32_t cd_trainer_micro_steps(const cd_trainer *t)
{
    return (uint32_t)t->program.settings.train.micro_steps;
}

cddp_status cd_trainer_run_turn(cd_trainer *t, uint32_t micro_step, cd_micro *micro,
                                cddp_error *err)
{
    cd_micro_resolve(t->program.plan, &t->program.settings,
                     (cd_micro_place){t->rank->rank, t->now.step, micro_step}, micro);
    t->now.micro_step = micro_step;
    if (t->tracer != NULL) cddp_tracer_set_step(t->tracer, t->now.step, micro_step);
    return CD_PASS(cd_trainer_run_micro(t, micro, err));
}

cddp_status cd_trainer_leave_step(cd_trainer *t, const cd_micro *last, cddp_error *err)
{
    return CD_PASS(cd_trainer_end_step(t, last, err));
}

/* Leaves the loop before this step because the program decided so, not because inputs ran out. */
static bool rank_stops(const cd_trainer *t, uint32_t step)
{
    cd_micro micro;
    cd_micro_resolve(t->program.plan, &t->program.settings,
                     (cd_micro_place){t->rank->rank, step, 0}, &micro);
    return micro.stop;
}

bool cd_trainer_has_step(const cd_trainer *t, uint32_t step)
{
    return step < t->program.settings.train.steps &&
           cd_rank_has_step(t->program.plan, &t->program.settings, t->rank->rank, step);
}

cddp_status cd_trainer_enter_step(cd_trainer *t, uint32_t step, bool *has_step, cddp_error *err)
{
    *has_step = cd_trainer_has_step(t, step);
    t->now.micro_step = 0;
    if (t->tracer != NULL) cddp_tracer_set_step(t->tracer, step, 0);
    CD_EMIT(t->tracer, stop, NULL, .stop = rank_stops(t, step));
    CD_TRY(*has_step ? cd_trainer_begin_step(t, step, err) : take_group(t, step, err));
    return CDDP_OK;
}

/* end: excluded. */
static cddp_status train_steps(cd_trainer *t, uint32_t first, uint32_t end, cddp_error *err)
{
    for (uint32_t step = first; step < end; step++) {
        cd_micro micro = {0};
        bool has_step;
        CD_TRY(cd_trainer_enter_step(t, step, &has_step, err));
        if (!has_step) return CDDP_OK;
        for (uint32_t m = 0; m < cd_trainer_micro_steps(t); m++)
            CD_TRY(cd_trainer_run_turn(t, m, &micro, err));
        CD_TRY(cd_trainer_leave_step(t, &micro, err));
    }
    return CDDP_OK;
}

/* Where it is, and what is noted of buckets, are this trainer's until another one is selected. */
void cd_trainer_select(cd_trainer *t)
{
    cd_tracer_select(t->tracer, t->options.wrapper);
    cddp_tracer_set_step(t->tracer, t->now.step, t->now.micro_step);
    t->tracer->operands = t->reduction.operands.self != NULL ? &t->reduction.operands : NULL;
}

/* Collects the state that is sent with the final parameters. Every slot is made now, so that ranks
** which never stepped can receive it. */
static cddp_status collect_state(cd_trainer *t, cddp_join_options *options, cddp_error *err)
{
    for (size_t i = 0; i < t->replica->optimizer_count; i++) {
        for (size_t k = 0; k < t->replica->optimizers[i].count; k++)
            CD_TRY(cd_optimizer_state_define(t->replica->optimizers[i].optimizer, k, err));
    }
    cd_replica_get_slots(t->replica, t->join.slots, NULL);
    size_t count = 0;
    for (size_t i = 0; i < t->join.slot_count; i++) {
        if (t->join.slots[i].device != NULL) t->join.slots[count++] = t->join.slots[i];
    }
    options->optimizer_state = t->join.slots;
    options->optimizer_state_count = count;
    return CDDP_OK;
}

cddp_status cd_trainer_begin(cd_trainer *t, const cd_trainer *first, cddp_error *err)
{
    const cddp_plan_join *join = &t->program.settings.join;
    t->join.is_follower = first != NULL;
    if (join->enable) {
        cddp_join_options options = cddp_join_options_default();
        options.divide_by_initial_world_size = join->divide_by_initial_world_size;
        options.throw_on_early_termination = join->throw_on_early_termination;
        options.first = first != NULL ? first->ddp : NULL;
        if (join->broadcast_optimizer_state) CD_TRY(collect_state(t, &options, err));
        CD_TRY(cddp_ddp_join_begin(t->ddp, &options, err));
    }
    return CDDP_OK;
}

static cddp_status end_join(cd_trainer *t, cddp_error *err)
{
    if (t->program.settings.join.enable) {
        if (!t->join.is_follower) CD_TRY(cddp_ddp_join_end(t->ddp, err));
        CD_TRY(cd_streams_settle(&t->streams, err));
    }
    return CDDP_OK;
}

/* All ranks have met again, and go on with what the last joiner handed on. end: of the epoch. */
cddp_status cd_trainer_end_epoch(cd_trainer *t, uint32_t end, cddp_error *err)
{
    CD_TRY(end_join(t, err));
    t->now.step = end - 1;
    if (t->tracer != NULL) cddp_tracer_set_step(t->tracer, t->now.step, 0);
    CD_POINT_PARAMETERS("join_end.parameter", t);
    CD_POINT_BUFFERS("join_end.buffer", t);
    CD_POINT_SLOTS("join_end.slot", t);
    CD_TRY(cd_trainer_show(t, CDDP_MOMENT_JOIN_END, err));
    if (t->tracer != NULL) CD_TRY(cddp_tracer_flush(t->tracer, err));
    return CDDP_OK;
}

cddp_status cd_trainer_finish(cd_trainer *t, cddp_error *err)
{
    const cddp_plan_join *join = &t->program.settings.join;
    CD_TRY(end_join(t, err));
    CD_TRY(cd_trainer_end_watching(t, err));
    CD_POINT_PARAMETERS("end.parameter", t);
    CD_POINT_BUFFERS("end.buffer", t);
    CD_POINT_SLOTS("end.slot", t);
    t->now.has_entered = false;
    CD_TRY(cd_trainer_emit_entry(t, err)); /* the last step left them as for another one */
    CD_TRY(cd_trainer_show(t, CDDP_MOMENT_END, err));
    /* A rank that ran out of inputs ends with parameters that it did not train to (JON-12). */
    const bool trained_to_the_end =
        t->now.step + 1 == t->program.settings.train.steps || !join->enable;
    if (t->view.watcher != NULL && trained_to_the_end) {
        const cd_watched_values values = cd_trainer_refresh_views(t);
        CD_TRY(t->view.watcher->ops->finish(t->view.watcher->self, &values, err));
    }
    return CDDP_OK;
}

cddp_status cd_trainer_train(cd_trainer *t, cddp_error *err)
{
    const uint32_t length = cd_epoch_length(&t->program.settings);
    const uint32_t epochs = cd_trainer_epochs(t);
    for (uint32_t epoch = 0; epoch < epochs; epoch++) {
        const uint32_t end = (epoch + 1) * length;
        CD_TRY(cd_trainer_begin(t, NULL, err));
        CD_TRY(train_steps(t, epoch * length, end, err));
        if (epoch + 1 < epochs) CD_TRY(cd_trainer_end_epoch(t, end, err));
    }
    CD_TRY(cd_trainer_finish(t, err));
    return CDDP_OK;
}
