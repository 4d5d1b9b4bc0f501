/* SPDX-License-Identifier: Apache-2.0 */
/* Building a trainer: group, replica, wrapper, hook, oracle, in the order in which a training
** script does it.
**
** Not here: what happens in an iteration (micro_step.c, step.c).
*/
#include "core/train/trainer.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/plan/chosen_hook.h"

#include <string.h>

cd_module *cd_trainer_module(const cd_trainer *t) { return t->replica->model->module; }

void cd_trainer_refresh_views(cd_trainer *t)
{
    const cd_module *module = cd_trainer_module(t);
    for (size_t i = 0; i < module->parameter_count; i++) {
        t->views[i] = module->parameters[i].tensor;
        /* See Note [A step before the step] */
        const bool is_kept = t->averaged[i].kind != CDDP_GRAD_UNDEFINED;
        t->grad_views[i] = is_kept
                               ? t->averaged[i]
                               : cd_streams_plain_grad(&t->streams, &module->parameters[i].grad);
    }
    for (size_t i = 0; i < module->buffer_count; i++) {
        t->buffer_views[i] = module->buffers[i].tensor;
    }
}

cddp_status cd_trainer_show(cd_trainer *t, cddp_error *err)
{
    CD_TRY(cd_streams_look(&t->streams, err));
    cd_trainer_refresh_views(t);
    return CDDP_OK;
}

/* ---- the wrapper ---- */

/* Names that patterns stand for, appended. */
static void expand_parameters(const cd_trainer *t, const cddp_text_list *patterns,
                              const char **names, size_t *count)
{
    const cd_module *module = cd_trainer_module(t);
    for (size_t i = 0; i < module->parameter_count; i++) {
        if (cd_patterns_match(patterns, module->parameters[i].name)) {
            names[(*count)++] = module->parameters[i].name;
        }
    }
}

static void expand_buffers(const cd_trainer *t, const cddp_text_list *patterns, const char **names,
                           size_t *count)
{
    const cd_module *module = cd_trainer_module(t);
    for (size_t i = 0; i < module->buffer_count; i++) {
        if (cd_patterns_match(patterns, module->buffers[i].name)) {
            names[(*count)++] = module->buffers[i].name;
        }
    }
}

static cddp_ddp_options wrapper_options(const cd_trainer *t)
{
    const cddp_plan_ddp *d = &t->settings.ddp;
    cddp_ddp_options options = cddp_ddp_options_default();
    options.group = t->group;
    options.tracer = t->tracer;
    options.allocator = t->allocator;
    options.broadcast_buffers = d->broadcast_buffers;
    options.init_sync = d->init_sync;
    options.bucket_cap_mb = d->bucket_cap_mb;
    options.bucket_cap_mb_list = d->bucket_cap_mb_list.items;
    options.bucket_cap_mb_list_count = d->bucket_cap_mb_list.count;
    options.first_bucket_bytes = d->first_bucket_bytes;
    options.set_last_bucket_cap = d->set_last_bucket_cap;
    options.find_unused_parameters = d->find_unused_parameters;
    options.gradient_as_bucket_view = d->gradient_as_bucket_view;
    options.static_graph = d->static_graph;
    options.skip_all_reduce_unused_params = d->skip_all_reduce_unused_params;
    options.batched_grad_copy = d->batched_grad_copy;
    options.param_to_hook_all_reduce = d->param_to_hook_all_reduce;
    options.mixed_param_dtype = cd_mixed_dtype(t->settings.mixed_precision.param_dtype);
    options.mixed_reduce_dtype = cd_mixed_dtype(t->settings.mixed_precision.reduce_dtype);
    options.mixed_buffer_dtype = cd_mixed_dtype(t->settings.mixed_precision.buffer_dtype);
    options.accumulate_in_hook = d->accumulate_in_hook;
    options.average_contributions = d->average_contributions;
    options.join_broadcast_optimizer_state = t->settings.join.broadcast_optimizer_state;
    return options;
}

static cddp_status wrap(cd_trainer *t, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const cd_module *module = cd_trainer_module(t);
    const size_t name_count = module->parameter_count + module->buffer_count + 1;
    cddp_parameter *parameters =
        cd_allocate_array(t->allocator, module->parameter_count + 1, sizeof *parameters);
    cddp_buffer *buffers =
        cd_allocate_array(t->allocator, module->buffer_count + 1, sizeof *buffers);
    const char **ignored = cd_allocate_array(t->allocator, name_count, sizeof *ignored);
    const char **delayed = cd_allocate_array(t->allocator, name_count, sizeof *delayed);
    cddp_ddp_options options = wrapper_options(t);
    if (parameters == NULL || buffers == NULL || ignored == NULL || delayed == NULL) {
        status = cd_fail(err, CDDP_E_NOMEM, "no memory to wrap model '%s'", t->settings.model.name);
        goto out;
    }
    for (size_t i = 0; i < module->parameter_count; i++) {
        cd_parameter *p = &module->parameters[i];
        parameters[i] = (cddp_parameter){.name = p->name,
                                         .tensor = cd_streams_queued(&t->streams, &p->tensor),
                                         .grad = &p->grad,
                                         .requires_grad = p->requires_grad,
                                         .expect_sparse = p->expect_sparse};
    }
    for (size_t i = 0; i < module->buffer_count; i++) {
        buffers[i] = (cddp_buffer){module->buffers[i].name,
                                   cd_streams_queued(&t->streams, &module->buffers[i].tensor)};
    }
    expand_parameters(t, &t->settings.model.ignore, ignored, &options.ignore_count);
    expand_buffers(t, &t->settings.model.ignore, ignored, &options.ignore_count);
    expand_parameters(t, &t->settings.ddp.delay_all_reduce_named_params, delayed,
                      &options.delay_all_reduce_count);
    options.parameters = parameters;
    options.parameter_count = module->parameter_count;
    options.buffers = buffers;
    options.buffer_count = module->buffer_count;
    options.parameters_and_buffers_to_ignore = ignored;
    options.delay_all_reduce_named_params = delayed;
    CD_TRY_OUT(cddp_ddp_create(&options, &t->ddp, err));
    CD_TRY_OUT(cd_streams_settle(&t->streams, err));
    for (size_t i = 0; i < module->parameter_count; i++) {
        t->variables[i] = (int32_t)cddp_ddp_variable_index(t->ddp, module->parameters[i].name);
    }
out:
    cd_release(t->allocator, parameters, (module->parameter_count + 1) * sizeof *parameters);
    cd_release(t->allocator, buffers, (module->buffer_count + 1) * sizeof *buffers);
    cd_release(t->allocator, ignored, name_count * sizeof *ignored);
    cd_release(t->allocator, delayed, name_count * sizeof *delayed);
    return status;
}

/* The declared dtypes: of gradients, where the model has only one, and of reductions under mixed
** precision. */
static void report_gradient_policy(cd_trainer *t)
{
    const cd_module *module = cd_trainer_module(t);
    const cddp_dtype low = cd_mixed_dtype(t->settings.mixed_precision.param_dtype);
    for (size_t i = 0; i < module->parameter_count; i++) {
        if (module->parameters[i].tensor.dtype != (cddp_dtype)t->settings.model.dtype) {
            return;
        }
    }
    if (low != CDDP_DTYPE_COUNT) {
        CD_EMIT(t->tracer, policy, "mixed_precision.param_dtype", .site = CDDP_SITE_GRADIENT,
                .dtype = low);
    } else {
        CD_EMIT(t->tracer, policy, "model.dtype", .site = CDDP_SITE_GRADIENT,
                .dtype = t->settings.model.dtype);
    }
}

/* MIX-04: buckets travel in reduce_dtype, or else as they are, which is param_dtype. */
static void declare_mixed_precision(cd_trainer *t)
{
    const cddp_dtype low = cd_mixed_dtype(t->settings.mixed_precision.param_dtype);
    const cddp_dtype wire = cd_mixed_dtype(t->settings.mixed_precision.reduce_dtype);
    if (low == CDDP_DTYPE_COUNT && wire == CDDP_DTYPE_COUNT) {
        return;
    }
    t->divides_after = true;
    t->wire = wire != CDDP_DTYPE_COUNT ? wire : low;
    CD_EMIT(t->tracer, policy, "mixed_precision.reduce_dtype", .site = CDDP_SITE_WIRE,
            .dtype = t->wire);
}

static cddp_status find_hook(const cd_trainer *t, const char *name, const cddp_hook **hook,
                             cddp_error *err)
{
    *hook = cddp_registry_find_hook(t->options.registry, name);
    return *hook != NULL ? CDDP_OK
                         : cd_fail(err, CDDP_E_CONFIG, "there is no communication hook '%s'", name);
}

/* The dtype that reductions declare: a wrapped hook that casts has the last word. */
static void report_wire_policy(cd_trainer *t)
{
    const cddp_hook *last =
        t->inner_hook != NULL && t->inner_hook->wire_dtype != 0 ? t->inner_hook : t->hook;
    for (uint32_t dtype = 0; dtype < CDDP_DTYPE_COUNT; dtype++) {
        if (last->wire_dtype == CDDP_DTYPE_BIT(dtype)) {
            t->wire = (cddp_dtype)dtype;
            CD_EMIT(t->tracer, policy, last->name, .site = CDDP_SITE_WIRE, .dtype = dtype);
        }
    }
}

static cddp_status register_hook(cd_trainer *t, cddp_error *err)
{
    cd_chosen_hook chosen, *planned = &chosen;
    cd_choose_hook(&t->settings, &chosen);
    t->hook = t->inner_hook = NULL;
    t->wire = CDDP_DTYPE_COUNT;
    t->exact_reductions = cd_chosen_hook_exact_reductions(planned);
    t->divides_after =
        cd_trainer_steps_in_backward(t) && cd_trainer_overlap(t) == CDDP_OVERLAP_APPLY_IN_BACKWARD;
    declare_mixed_precision(t);
    if (planned->name == NULL) {
        t->hook = cd_trainer_overlap(t) == CDDP_OVERLAP_HOOK_THEN_OPTIMIZER
                      ? cddp_registry_find_hook(t->options.registry, "allreduce")
                      : NULL;
        return CDDP_OK; /* the optimizer registers it with itself behind */
    }
    CD_TRY(find_hook(t, planned->name, &t->hook, err));
    if (planned->inner != NULL) {
        CD_TRY(find_hook(t, planned->inner, &t->inner_hook, err));
    }
    if (t->settings.model.device == CDDP_MODEL_DEVICE_SYMBOL &&
        (t->hook->flags & CDDP_HOOK_LINEAR) == 0) {
        return cd_fail(err, CDDP_E_CONFIG,
                       "hook '%s' is not linear: device symbol cannot express what it does",
                       planned->name);
    }
    CD_TRY(cddp_ddp_register_comm_hook(t->ddp, t->hook, t->inner_hook, planned->options, err));
    report_wire_policy(t);
    return CDDP_OK;
}

/* ---- arrays that follow the sizes of the model ---- */

static cddp_status allocate_arrays(cd_trainer *t, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    const size_t parameters = module->parameter_count + 1, buffers = module->buffer_count + 1;
    t->slot_count = cd_replica_slot_count(t->replica);
    t->variables = cd_allocate_array(t->allocator, parameters, sizeof *t->variables);
    t->reachable = cd_allocate_array(t->allocator, parameters, sizeof *t->reachable);
    t->replaced = cd_allocate_array(t->allocator, parameters, sizeof *t->replaced);
    t->averaged = cd_allocate_array(t->allocator, parameters, sizeof *t->averaged);
    t->reachable_variables =
        cd_allocate_array(t->allocator, parameters, sizeof *t->reachable_variables);
    t->contributions = cd_allocate_array(t->allocator, parameters, sizeof *t->contributions);
    t->views = cd_allocate_array(t->allocator, parameters, sizeof *t->views);
    t->before = cd_allocate_array(t->allocator, parameters, sizeof *t->before);
    t->grads = cd_allocate_array(t->allocator, parameters, sizeof *t->grads);
    t->grad_views = cd_allocate_array(t->allocator, parameters, sizeof *t->grad_views);
    t->buffer_views = cd_allocate_array(t->allocator, buffers, sizeof *t->buffer_views);
    t->slots = cd_allocate_array(t->allocator, t->slot_count + 1, sizeof *t->slots);
    t->join_state = cd_allocate_array(t->allocator, t->slot_count + 1, sizeof *t->join_state);
    t->slot_parameters =
        cd_allocate_array(t->allocator, t->slot_count + 1, sizeof *t->slot_parameters);
    if (t->variables == NULL || t->reachable == NULL || t->replaced == NULL ||
        t->averaged == NULL || t->reachable_variables == NULL || t->contributions == NULL ||
        t->views == NULL || t->before == NULL || t->grads == NULL || t->grad_views == NULL ||
        t->buffer_views == NULL || t->slots == NULL || t->join_state == NULL ||
        t->slot_parameters == NULL) {
        return cd_fail(err, CDDP_E_NOMEM, "no memory for the tables of rank %u", t->rank->rank);
    }
    t->grad_count = 0;
    for (size_t i = 0; i < module->parameter_count; i++) {
        if (module->parameters[i].requires_grad ||
            cd_plan_unfreezes(t->plan, module->parameters[i].name)) {
            t->grads[t->grad_count++] = &cd_trainer_module(t)->parameters[i].grad;
        }
    }
    for (size_t i = 0; t->options.oracle && i < module->parameter_count; i++) {
        const cddp_tensor *like = &module->parameters[i].tensor;
        void *storage;
        CD_TRY(like->device->allocate(like->device, like->dtype, cddp_tensor_numel(like) + 1,
                                      &storage, err));
        t->before[i] =
            cddp_tensor_of(like->device, storage, 0, like->dtype, like->sizes, like->dim_count);
    }
    return CDDP_OK;
}

static void release_arrays(cd_trainer *t)
{
    const size_t parameters = cd_trainer_module(t)->parameter_count + 1,
                 buffers = cd_trainer_module(t)->buffer_count + 1;
    for (size_t i = 0; t->before != NULL && i + 1 < parameters; i++) {
        if (t->before[i].device != NULL) {
            t->before[i].device->release(t->before[i].device, t->before[i].dtype,
                                         cddp_tensor_numel(&t->before[i]) + 1,
                                         t->before[i].storage);
        }
    }
    for (size_t i = 0; t->averaged != NULL && i < parameters; i++) {
        cddp_grad_fini(&t->averaged[i]);
    }
    cd_release(t->allocator, t->averaged, parameters * sizeof *t->averaged);
    cd_release(t->allocator, t->replaced, parameters * sizeof *t->replaced);
    cd_release(t->allocator, t->variables, parameters * sizeof *t->variables);
    cd_release(t->allocator, t->reachable, parameters * sizeof *t->reachable);
    cd_release(t->allocator, t->reachable_variables, parameters * sizeof *t->reachable_variables);
    cd_release(t->allocator, t->contributions, parameters * sizeof *t->contributions);
    cd_release(t->allocator, t->views, parameters * sizeof *t->views);
    cd_release(t->allocator, t->before, parameters * sizeof *t->before);
    cd_release(t->allocator, t->grads, parameters * sizeof *t->grads);
    cd_release(t->allocator, t->grad_views, parameters * sizeof *t->grad_views);
    cd_release(t->allocator, t->buffer_views, buffers * sizeof *t->buffer_views);
    cd_release(t->allocator, t->join_state, (t->slot_count + 1) * sizeof *t->join_state);
    cd_release(t->allocator, t->slots, (t->slot_count + 1) * sizeof *t->slots);
    cd_release(t->allocator, t->slot_parameters, (t->slot_count + 1) * sizeof *t->slot_parameters);
    t->variables = NULL;
    t->reachable = t->reachable_variables = t->replaced = NULL;
    t->averaged = NULL;
    t->contributions = NULL;
    t->views = t->before = t->buffer_views = t->slots = t->join_state = NULL;
    t->grad_views = NULL;
    t->grads = NULL;
    t->slot_parameters = NULL;
}

/* Its owner would step such a parameter with a gradient of his own, and broadcast what comes of
** it. */
static cddp_status check_sharded(const cd_trainer *t, cddp_error *err)
{
    for (size_t i = 0; i < t->replica->optimizer_count; i++) {
        const cd_replica_optimizer *o = &t->replica->optimizers[i];
        for (size_t k = 0; o->shard != NULL && k < o->count; k++) {
            const char *name = cd_trainer_module(t)->parameters[o->ordinals[k]].name;
            const bool is_delayed =
                cd_patterns_match(&t->settings.ddp.delay_all_reduce_named_params, name);
            if (t->variables[o->ordinals[k]] == CD_NO_VARIABLE && !is_delayed) {
                return cd_fail(err, CDDP_E_CONFIG,
                               "optimizer '%s' is sharded, but the wrapper does not reduce '%s': "
                               "every rank would have a gradient of its own for it",
                               o->name, name);
            }
        }
    }
    return CDDP_OK;
}

/* ---- model and wrapper, again after a resume ---- */

uint64_t cd_trainer_backward_weight(const cd_trainer *t, size_t parameter)
{
    const cd_parameter *p = &cd_trainer_module(t)->parameters[parameter];
    return t->settings.train.backward_split == CDDP_BACKWARD_SPLIT_WORK
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

/* JON-18. */
static cddp_status check_statistics(const cd_trainer *t, cddp_error *err)
{
    const bool exchanges = t->replica->model->exchanges_statistics;
    if (exchanges && t->plan->world.size > 1 && t->settings.join.enable) {
        return cd_fail(
            err, CDDP_E_CONFIG,
            "model '%s' has synchronised batch norm: a rank that joined runs no forward that could "
            "answer its exchanges; use norm=batch, or drop join.enable",
            t->settings.model.name);
    }
    for (size_t i = 0; !exchanges && i < t->plan->when_count; i++) {
        const cddp_plan_when *when = &t->plan->whens[i];
        if (when->statistics != CDDP_PLAN_UNSET && cddp_selector_has(&when->ranks, t->rank->rank)) {
            return cd_fail(err, CDDP_E_CONFIG,
                           "when.statistics has no effect: model '%s' has no synchronised batch "
                           "norm (norm=sync)",
                           t->settings.model.name);
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
                            t->settings.model.device == CDDP_MODEL_DEVICE_CPU &&
                            t->settings.model.memory == CDDP_MODEL_MEMORY_BACKEND;
    return is_brought ? b->device : cd_replica_device(&t->settings, t->options.devices);
}

cddp_status cd_trainer_build(cd_trainer *t, cddp_error *err)
{
    cd_replica_options replica = {.plan = t->plan,
                                  .rank = t->rank->rank,
                                  .device = device_of(t),
                                  .allocator = t->allocator};
    if (t->settings.train.pass_us_per_mb > 0) {
        replica.device = cd_timed_device_init(&t->timed_device, replica.device, t->rank,
                                              t->settings.train.pass_us_per_mb);
    }
    CD_TRY(cd_replica_create(&replica, &t->replica, err));
    CD_TRY(check_statistics(t, err));
    CD_TRY(cd_streams_attach(&t->streams, cd_trainer_module(t), err));
    CD_TRY(allocate_arrays(t, err));
    sum_backward_weights(t);
    cd_trainer_refresh_views(t);
    cd_trainer_set_callbacks(t);
    CD_TRY(cd_trainer_emit_parameters(t, CD_MOMENT_BEFORE_INIT, err));
    CD_TRY(cd_trainer_emit_buffers(t, CD_MOMENT_BEFORE_INIT, err));
    CD_TRY(wrap(t, err));
    CD_TRY(register_hook(t, err));
    CD_TRY(check_sharded(t, err));
    CD_TRY(cd_trainer_attach_optimizers(t, err));
    CD_TRY(cd_trainer_open_clipping(t, err));
    CD_TRY(cd_trainer_open_averager(t, err));
    report_gradient_policy(t);
    CD_TRY(cd_trainer_emit_parameters(t, CD_MOMENT_AFTER_INIT, err));
    CD_TRY(cd_trainer_emit_buffers(t, CD_MOMENT_AFTER_INIT, err));
    return CDDP_OK;
}

void cd_trainer_drop(cd_trainer *t)
{
    cd_trainer_close_averager(t);
    if (t->replica != NULL) {
        cd_trainer_close_clipping(t);
    }
    cddp_ddp_destroy(t->ddp);
    t->ddp = NULL;
    if (t->replica != NULL) {
        release_arrays(t);
    }
    cd_replica_destroy(t->replica);
    t->replica = NULL;
}

/* ---- the oracle ---- */

/* Statistics of a batch live in buffers. A gradient that is cast rounds once per batch and not once
** per sample, without the processor's flag telling; nor does it tell of what another device
** computes. See Note [Addends of the reference] */
static bool model_is_sample_wise(const cd_trainer *t, const cd_module *module)
{
    const cddp_dtype dtype = (cddp_dtype)t->settings.model.dtype;
    return module->buffer_count == 0 && dtype != CDDP_F16 && dtype != CDDP_BF16 &&
           t->settings.mixed_precision.param_dtype == CDDP_PARAM_DTYPE_NONE &&
           cd_device_is_direct(module->device);
}

static cd_oracle_path path_of(const cd_trainer *t, size_t parameter)
{
    if (t->variables[parameter] != CD_NO_VARIABLE) {
        return CD_ORACLE_PATH_BUCKET;
    }
    return cd_patterns_match(&t->settings.ddp.delay_all_reduce_named_params,
                             cd_trainer_module(t)->parameters[parameter].name)
               ? CD_ORACLE_PATH_DELAYED
               : CD_ORACLE_PATH_LOCAL;
}

/* ZRO-01 as the plan declares it, whatever this rank was told: of one optimizer's parameters. */
static cddp_status declare_parts(const cd_trainer *t, size_t optimizer,
                                 cd_oracle_parameter *parameters, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const cd_replica_optimizer *o = &t->reference->replica->optimizers[optimizer];
    const int64_t kind = t->plan->optimizers[optimizer].shard;
    int64_t *numels = cd_allocate_array(t->allocator, o->count, sizeof *numels);
    cd_part *parts = cd_allocate_array(t->allocator, o->count, sizeof *parts);
    const cd_partition partition = {numels, o->count, (uint32_t)t->plan->world.size, t->allocator};
    if (numels == NULL || parts == NULL) {
        status = cd_fail(err, CDDP_E_NOMEM, "no memory for the parts of optimizer '%s'", o->name);
        goto out;
    }
    for (size_t k = 0; k < o->count; k++) {
        numels[k] = parameters[o->ordinals[k]].numel;
    }
    if (kind == CD_SHARD_FLAT) {
        cd_partition_flat(&partition, parts);
    } else {
        CD_TRY_OUT(cd_partition_whole(&partition, t->plan->settings.shard.order == CD_SHARD_BY_SIZE,
                                      parts, err));
    }
    for (size_t k = 0; k < o->count; k++) {
        parameters[o->ordinals[k]].part = parts[k];
    }
out:
    cd_release(t->allocator, numels, o->count * sizeof *numels);
    cd_release(t->allocator, parts, o->count * sizeof *parts);
    return status;
}

static cddp_status make_oracle(cd_trainer *t, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const cd_module *module = cd_trainer_module(t);
    const cd_reference_options restarted = {.plan = t->plan,
                                            .rank = t->rank->rank,
                                            .device = device_of(t),
                                            .allocator = t->allocator,
                                            .state = cd_replica_is_sharded(t->replica)
                                                         ? NULL
                                                         : &t->optimizer_state,
                                            .loss_scale = &t->loss_scale,
                                            .share = t->options.reference_share};
    cd_reference_options running = restarted;
    running.state = NULL;
    running.is_free_running = true;
    CD_TRY(cd_reference_create(&restarted, &t->reference, err));
    CD_TRY(cd_reference_create(&running, &t->free_reference, err));
    cd_oracle_parameter *parameters =
        cd_allocate_array(t->allocator, module->parameter_count + 1, sizeof *parameters);
    if (parameters == NULL) {
        return cd_fail(err, CDDP_E_NOMEM, "no memory for the oracle of rank %u", t->rank->rank);
    }
    /* Names of the reference: it lives as long as the oracle, while the trained module may be
    ** rebuilt. */
    const cd_module *reference = t->reference->replica->model->module;
    for (size_t i = 0; i < module->parameter_count; i++) {
        const cd_parameter *p = &reference->parameters[i];
        parameters[i] = (cd_oracle_parameter){p->name,         cddp_tensor_numel(&p->tensor),
                                              p->tensor.dtype, t->variables[i],
                                              path_of(t, i),   {0, 0}};
    }
    for (size_t i = 0; i < t->plan->optimizer_count; i++) {
        if (t->plan->optimizers[i].shard != CD_SHARD_NONE) {
            CD_TRY_OUT(declare_parts(t, i, parameters, err));
        }
    }
    const cd_oracle_options options = {.parameters = parameters,
                                       .parameter_count = module->parameter_count,
                                       .buffer_count = module->buffer_count,
                                       .rank = t->rank->rank,
                                       .world_size = (uint32_t)t->plan->world.size,
                                       .engine = &t->reference->engine,
                                       .free_engine = &t->free_reference->engine,
                                       .share = t->options.share,
                                       .tracer = t->tracer,
                                       .allocator = t->allocator,
                                       .sample_wise = model_is_sample_wise(t, module),
                                       .separate = t->settings.ddp.accumulate_in_hook,
                                       .exact_inputs = t->settings.model.exact};
    CD_TRY_OUT(cd_oracle_create(&options, &t->oracle, err));
out:
    cd_release(t->allocator, parameters, (module->parameter_count + 1) * sizeof *parameters);
    return status;
}

/* ---- life ---- */

static cddp_status open_group(cd_trainer *t, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const uint32_t world = (uint32_t)t->plan->world.size;
    uint32_t *members = cd_allocate_array(t->allocator, world, sizeof *members);
    if (members == NULL) {
        return cd_fail(err, CDDP_E_NOMEM, "no memory for the members of the world");
    }
    for (uint32_t i = 0; i < world; i++) {
        members[i] = i;
    }
    const cddp_group_options options = {.size = sizeof options,
                                        .backend = t->options.backend,
                                        .rank = t->rank,
                                        .tracer = t->tracer,
                                        .sequence_start = t->plan->world.sequence_start,
                                        .spec = {.size = sizeof options.spec,
                                                 .name = "world",
                                                 .group_rank = t->rank->rank,
                                                 .group_size = world,
                                                 .members = members,
                                                 .timeout_ns = t->plan->world.timeout_ms * 1000000u,
                                                 .in_flight_max =
                                                     (uint32_t)t->plan->world.in_flight_max,
                                                 .options = t->plan->world.backend_options}};
    CD_TRY_OUT(cddp_group_create(&options, &t->group, err));
out:
    cd_release(t->allocator, members, world * sizeof *members);
    return status;
}

cddp_status cd_trainer_create(const cd_trainer_options *options, cd_trainer **trainer,
                              cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const cddp_allocator *allocator = options->rank->allocator;
    cd_trainer *t = cd_allocate_zero(allocator, sizeof *t);
    if (t == NULL) {
        return cd_fail(err, CDDP_E_NOMEM, "no memory for rank %u", options->rank->rank);
    }
    t->options = *options;
    t->plan = options->plan;
    t->rank = options->rank;
    t->allocator = allocator;
    t->tracer = options->tracer;
    t->loss_scale = 1.0;
    t->own_numbers.allocator = t->optimizer_state.allocator = t->checkpoint.allocator =
        t->part.allocator = allocator;
    CD_TRY_OUT(cddp_plan_rank_settings(t->plan, t->rank->rank, &t->settings, err));
    cd_trainer_emit_settings(t);
    cd_trainer_emit_seeds(t);
    CD_TRY_OUT(open_group(t, err));
    CD_TRY_OUT(cd_trainer_open_groups(t, err));
    CD_TRY_OUT(cd_sampler_create(t->plan, t->rank->rank, allocator, &t->sampler, err));
    CD_TRY_OUT(cd_streams_open(&t->streams, &t->settings.streams, t->rank, t->tracer, err));
    CD_TRY_OUT(cd_trainer_build(t, err));
    if (t->settings.amp.enable) {
        const cddp_plan_amp *amp = &t->settings.amp;
        const cd_loss_scaler_options scaler = {amp->init_scale, amp->growth_factor,
                                               amp->backoff_factor, amp->growth_interval};
        CD_TRY_OUT(cd_loss_scaler_init(&t->scaler, &scaler, err));
        t->loss_scale = cd_loss_scaler_get_scale(&t->scaler);
    }
    if (options->oracle && t->settings.model.device != CDDP_MODEL_DEVICE_SHAPE) {
        CD_TRY_OUT(make_oracle(t, err));
    }
    *trainer = t;
    t = NULL;
out:
    cd_trainer_destroy(t);
    return status;
}

void cd_trainer_destroy(cd_trainer *t)
{
    if (t == NULL) {
        return;
    }
    cd_streams_close(&t->streams);
    cd_oracle_destroy(t->oracle);
    cd_reference_destroy(t->reference);
    cd_reference_destroy(t->free_reference);
    cd_trainer_drop(t);
    cd_sampler_destroy(t->sampler);
    cd_blob_fini(&t->optimizer_state);
    cd_blob_fini(&t->checkpoint);
    cd_blob_fini(&t->part);
    cd_trainer_close_groups(t);
    cddp_group_destroy(t->group);
    cd_release(t->allocator, t, sizeof *t);
}

/* ---- the loop ---- */

cddp_status cd_trainer_begin_step(cd_trainer *t, uint32_t step, cddp_error *err)
{
    t->step = step;
    t->window_first = 0;
    cd_replica_begin_step(t->replica, t->rank->rank, step, t->replaced);
    for (size_t i = 0; i < cd_trainer_module(t)->parameter_count; i++) {
        cddp_grad_drop(&t->averaged[i]);
    }
    CD_TRY(cd_streams_settle(&t->streams, err));
    cd_trainer_refresh_views(t);
    cd_trainer_emit_agreement(t);
    if (cd_trainer_steps_in_backward(t)) {
        CD_TRY(cd_trainer_keep_before(t, err));
    }
    if (t->oracle != NULL) {
        CD_TRY(cd_oracle_begin_step(t->oracle, step, t->views, t->grad_views, err));
    }
    return CDDP_OK;
}

cddp_status cd_trainer_end_step(cd_trainer *t, const cd_micro *last, cddp_error *err)
{
    CD_TRY(cd_trainer_step(t, last, err));
    if (t->tracer != NULL) {
        CD_TRY(cddp_tracer_flush(t->tracer, err));
    }
    CD_TRY(cd_trainer_checkpoint(t, t->step + 1, err));
    return CDDP_OK;
}

static cddp_status train_step(cd_trainer *t, uint32_t step, cddp_error *err)
{
    cd_micro micro = {0};
    CD_TRY(cd_trainer_begin_step(t, step, err));
    for (uint32_t m = 0; m < t->settings.train.micro_steps; m++) {
        cd_micro_resolve(t->plan, &t->settings, (cd_micro_place){t->rank->rank, step, m}, &micro);
        if (t->tracer != NULL) {
            cddp_tracer_set_step(t->tracer, step, m);
        }
        CD_TRY(cd_trainer_run_micro(t, &micro, err));
    }
    CD_TRY(cd_trainer_end_step(t, &micro, err));
    return CDDP_OK;
}

/* Leaves the loop before this step because the program decided so, not because inputs ran out. */
static bool rank_stops(const cd_trainer *t, uint32_t step)
{
    cd_micro micro;
    cd_micro_resolve(t->plan, &t->settings, (cd_micro_place){t->rank->rank, step, 0}, &micro);
    return micro.stop;
}

bool cd_trainer_has_step(const cd_trainer *t, uint32_t step)
{
    return step < t->settings.train.steps &&
           cd_rank_has_step(t->plan, &t->settings, t->rank->rank, step);
}

static cddp_status train_steps(cd_trainer *t, cddp_error *err)
{
    for (uint32_t step = 0; step < t->settings.train.steps; step++) {
        const bool has_step = cd_trainer_has_step(t, step);
        if (t->tracer != NULL) {
            cddp_tracer_set_step(t->tracer, step, 0);
        }
        CD_EMIT(t->tracer, stop, NULL, .stop = rank_stops(t, step));
        if (!has_step) {
            break;
        }
        CD_TRY(train_step(t, step, err));
    }
    return CDDP_OK;
}

/* What travels with the final parameters: every slot, made now so that ranks which never stepped
** can receive it. */
static cddp_status collect_state(cd_trainer *t, cddp_join_options *options, cddp_error *err)
{
    for (size_t i = 0; i < t->replica->optimizer_count; i++) {
        for (size_t k = 0; k < t->replica->optimizers[i].count; k++) {
            CD_TRY(cd_optimizer_state_define(t->replica->optimizers[i].optimizer, k, err));
        }
    }
    cd_replica_get_slots(t->replica, t->slots, t->slot_parameters);
    size_t count = 0;
    for (size_t i = 0; i < t->slot_count; i++) {
        if (t->slots[i].device != NULL) {
            t->join_state[count++] = t->slots[i];
        }
    }
    options->optimizer_state = t->join_state;
    options->optimizer_state_count = count;
    return CDDP_OK;
}

cddp_status cd_trainer_begin(cd_trainer *t, cddp_error *err)
{
    const cddp_plan_join *join = &t->settings.join;
    if (join->enable) {
        cddp_join_options options = cddp_join_options_default();
        options.divide_by_initial_world_size = join->divide_by_initial_world_size;
        options.throw_on_early_termination = join->throw_on_early_termination;
        if (join->broadcast_optimizer_state) {
            CD_TRY(collect_state(t, &options, err));
        }
        CD_TRY(cddp_ddp_join_begin(t->ddp, &options, err));
    }
    return CDDP_OK;
}

cddp_status cd_trainer_finish(cd_trainer *t, cddp_error *err)
{
    const cddp_plan_join *join = &t->settings.join;
    if (join->enable) {
        CD_TRY(cddp_ddp_join_end(t->ddp, err));
        CD_TRY(cd_streams_settle(&t->streams, err));
    }
    CD_TRY(cd_trainer_emit_parameters(t, CD_MOMENT_END, err));
    CD_TRY(cd_trainer_emit_buffers(t, CD_MOMENT_END, err));
    CD_TRY(cd_trainer_emit_optimizers(t, CD_MOMENT_END, err));
    /* A rank that ran out of inputs ends with parameters that it did not train to (JON-12). */
    const bool trained_to_the_end = t->step + 1 == t->settings.train.steps || !join->enable;
    if (t->oracle != NULL && trained_to_the_end) {
        cd_trainer_refresh_views(t);
        CD_TRY(cd_oracle_finish(t->oracle, t->views, err));
    }
    return CDDP_OK;
}

cddp_status cd_trainer_train(cd_trainer *t, cddp_error *err)
{
    CD_TRY(cd_trainer_begin(t, err));
    CD_TRY(train_steps(t, err));
    CD_TRY(cd_trainer_finish(t, err));
    return CDDP_OK;
}
