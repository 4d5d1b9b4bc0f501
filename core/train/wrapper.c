/* SPDX-License-Identifier: Apache-2.0 */
/* Wrapping the model as the plan asks: options, hook, and the dtypes that both declare. */
#include "core/train/trainer.h"

#include "core/base/error.h"
#include "core/plan/chosen_hook.h"
#include "core/train/points.h"

/* Names that patterns stand for, appended. */
static void expand_parameters(const cd_trainer *t, const cddp_text_list *patterns,
                              const char **names, size_t *count)
{
    const cd_module *module = cd_trainer_module(t);
    for (size_t i = 0; i < module->parameter_count; i++) {
        if (cd_patterns_match(patterns, module->parameters[i].name))
            names[(*count)++] = module->parameters[i].name;
    }
}

static void expand_buffers(const cd_trainer *t, const cddp_text_list *patterns, const char **names,
                           size_t *count)
{
    const cd_module *module = cd_trainer_module(t);
    for (size_t i = 0; i < module->buffer_count; i++) {
        if (cd_patterns_match(patterns, module->buffers[i].name))
            names[(*count)++] = module->buffers[i].name;
    }
}

static cddp_ddp_options wrapper_options(const cd_trainer *t)
{
    const cddp_plan_ddp *d = &t->program.settings.ddp;
    cddp_ddp_options options = cddp_ddp_options_default();
    options.group = t->groups.world;
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
    options.mixed_param_dtype = cd_mixed_dtype(t->program.settings.mixed_precision.param_dtype);
    options.mixed_reduce_dtype = cd_mixed_dtype(t->program.settings.mixed_precision.reduce_dtype);
    options.mixed_buffer_dtype = cd_mixed_dtype(t->program.settings.mixed_precision.buffer_dtype);
    options.accumulate_in_hook = d->accumulate_in_hook;
    options.average_contributions = d->average_contributions;
    options.strict = d->strict;
    options.join_broadcast_optimizer_state = t->program.settings.join.broadcast_optimizer_state;
    return options;
}

/* What the wrapper is given, for the call. */
typedef struct wrapped {
    cddp_parameter *parameters;
    cddp_buffer *buffers;
    const char **ignored, **delayed;
} wrapped;

static void fill_in(cd_trainer *t, wrapped *given, cddp_ddp_options *options)
{
    const cd_module *module = cd_trainer_module(t);
    for (size_t i = 0; i < module->parameter_count; i++) {
        cd_parameter *p = &module->parameters[i];
        given->parameters[i] =
            (cddp_parameter){.name = p->name,
                             .tensor = cd_streams_queued(&t->streams, &p->tensor),
                             .grad = &p->grad,
                             .requires_grad = p->requires_grad,
                             .expect_sparse = p->expect_sparse};
        CD_POINT_FLAG("wrap.requires_grad", t, given->parameters[i].requires_grad);
    }
    for (size_t i = 0; i < module->buffer_count; i++) {
        given->buffers[i] =
            (cddp_buffer){module->buffers[i].name,
                          cd_streams_queued(&t->streams, &module->buffers[i].tensor)};
    }
    expand_parameters(t, &t->program.settings.model.ignore, given->ignored, &options->ignore_count);
    expand_buffers(t, &t->program.settings.model.ignore, given->ignored, &options->ignore_count);
    expand_parameters(t, &t->program.settings.ddp.delay_all_reduce_named_params, given->delayed,
                      &options->delay_all_reduce_count);
    options->parameters = given->parameters;
    options->parameter_count = module->parameter_count;
    options->buffers = given->buffers;
    options->buffer_count = module->buffer_count;
    options->parameters_and_buffers_to_ignore = given->ignored;
    options->delay_all_reduce_named_params = given->delayed;
}

static cddp_status wrap(cd_trainer *t, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    const size_t name_count = module->parameter_count + module->buffer_count + 1;
    const cd_arena_mark mark = cd_arena_get_mark(&t->memory);
    cddp_ddp_options options = wrapper_options(t);
    wrapped given = {.parameters = cd_arena_array(&t->memory, module->parameter_count + 1,
                                                  sizeof *given.parameters),
                     .buffers = cd_arena_array(&t->memory, module->buffer_count + 1,
                                               sizeof *given.buffers),
                     .ignored = cd_arena_array(&t->memory, name_count, sizeof(char *)),
                     .delayed = cd_arena_array(&t->memory, name_count, sizeof(char *))};
    CD_TRY(cd_arena_check(&t->memory, err, "the wrapper of model '%s'",
                          t->program.settings.model.name));
    fill_in(t, &given, &options);
    CD_TRY(cddp_ddp_create(&options, &t->ddp, err));
    CD_TRY(cd_streams_settle(&t->streams, err));
    for (size_t i = 0; i < module->parameter_count; i++) {
        t->parameters[i].variable =
            (int32_t)cddp_ddp_variable_index(t->ddp, module->parameters[i].name);
    }
    cd_arena_rewind(&t->memory, mark);
    return CDDP_OK;
}

/* The declared dtypes: of gradients, where the model has only one, and of reductions under mixed
** precision. */
void cd_trainer_report_gradients(cd_trainer *t)
{
    const cd_module *module = cd_trainer_module(t);
    const cddp_dtype low = cd_mixed_dtype(t->program.settings.mixed_precision.param_dtype);
    if (t->program.settings.fsdp.unit_precision.count > 0) return; /* each unit its own */
    for (size_t i = 0; i < module->parameter_count; i++) {
        if (module->parameters[i].tensor.dtype != (cddp_dtype)t->program.settings.model.dtype)
            return;
    }
    if (low != CDDP_DTYPE_COUNT) {
        CD_EMIT(t->tracer, policy, "mixed_precision.param_dtype", .site = CDDP_SITE_GRADIENT,
                .dtype = low);
    } else {
        CD_EMIT(t->tracer, policy, "model.dtype", .site = CDDP_SITE_GRADIENT,
                .dtype = t->program.settings.model.dtype);
    }
}

/* MIX-04: buckets travel in reduce_dtype, or else as they are, which is param_dtype. */
static void declare_mixed_precision(cd_trainer *t)
{
    const cddp_dtype low = cd_mixed_dtype(t->program.settings.mixed_precision.param_dtype);
    const cddp_dtype wire = cd_mixed_dtype(t->program.settings.mixed_precision.reduce_dtype);
    if (low == CDDP_DTYPE_COUNT && wire == CDDP_DTYPE_COUNT) return;
    t->reduction.divides_after = true;
    t->reduction.wire = wire != CDDP_DTYPE_COUNT ? wire : low;
    CD_EMIT(t->tracer, policy, "mixed_precision.reduce_dtype", .site = CDDP_SITE_WIRE,
            .dtype = t->reduction.wire);
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
        t->reduction.inner_hook != NULL && t->reduction.inner_hook->wire_dtype != 0
            ? t->reduction.inner_hook
            : t->reduction.hook;
    for (uint32_t dtype = 0; dtype < CDDP_DTYPE_COUNT; dtype++) {
        if (last->wire_dtype == CDDP_DTYPE_BIT(dtype)) {
            t->reduction.wire = (cddp_dtype)dtype;
            CD_EMIT(t->tracer, policy, last->name, .site = CDDP_SITE_WIRE, .dtype = dtype);
        }
    }
}

static cddp_status register_hook(cd_trainer *t, cddp_error *err)
{
    cd_chosen_hook chosen, *planned = &chosen;
    cd_choose_hook(&t->program.settings, &chosen);
    CD_POINT_OTHER_HOOK("wrap.other_hook", t, planned);
    t->reduction.hook = t->reduction.inner_hook = NULL;
    t->reduction.wire = CDDP_DTYPE_COUNT;
    t->reduction.divides_after =
        cd_trainer_steps_in_backward(t) && cd_trainer_overlap(t) == CDDP_OVERLAP_APPLY_IN_BACKWARD;
    declare_mixed_precision(t);
    if (planned->name == NULL || CD_POINT_SKIPS("wrap.hook", t)) {
        t->reduction.hook = cd_trainer_overlap(t) == CDDP_OVERLAP_HOOK_THEN_OPTIMIZER
                                ? cddp_registry_find_hook(t->options.registry, "allreduce")
                                : NULL;
        return CDDP_OK; /* the optimizer registers it with itself behind */
    }
    CD_TRY(find_hook(t, planned->name, &t->reduction.hook, err));
    if (planned->inner != NULL) CD_TRY(find_hook(t, planned->inner, &t->reduction.inner_hook, err));
    if (t->program.settings.model.device == CDDP_MODEL_DEVICE_SYMBOL &&
        (t->reduction.hook->flags & CDDP_HOOK_LINEAR) == 0) {
        return cd_fail(err, CDDP_E_CONFIG,
                       "hook '%s' is not linear: device symbol cannot express what it does",
                       planned->name);
    }
    CD_TRY(cddp_ddp_register_comm_hook(t->ddp, t->reduction.hook, t->reduction.inner_hook,
                                       planned->options, err));
    report_wire_policy(t);
    return CDDP_OK;
}

static uint32_t choose_continuation(void *self, const uint64_t *options, uint32_t count)
{
    const cd_trainer *t = self;
    const cddp_choice choice = {.size = sizeof choice,
                                .kind = CDDP_CHOICE_USER,
                                .rank = t->rank->rank,
                                .option_count = count,
                                .options = options,
                                .name = "continuation"};
    return t->rank->ops->choose(t->rank, &choice);
}

static void choose_continuations(cd_trainer *t)
{
    if (t->program.settings.hook.continuations != CDDP_CONTINUATIONS_ON_COMPLETION) return;
    t->reduction.continuations = (cd_continuation_chooser){t, choose_continuation};
    cd_ddp_set_continuations(t->ddp, &t->reduction.continuations);
}

/* Its owner would step such a parameter with its local gradient, and broadcast what comes of
** it. */
static cddp_status check_sharded(const cd_trainer *t, cddp_error *err)
{
    for (size_t i = 0; i < t->replica->optimizer_count; i++) {
        const cd_replica_optimizer *o = &t->replica->optimizers[i];
        for (size_t k = 0; t->optimizers[i].shard != NULL && k < o->count; k++) {
            const char *name = cd_trainer_module(t)->parameters[o->ordinals[k]].name;
            const bool is_delayed =
                cd_patterns_match(&t->program.settings.ddp.delay_all_reduce_named_params, name);
            if (t->parameters[o->ordinals[k]].variable == CD_NO_VARIABLE && !is_delayed) {
                return cd_fail(err, CDDP_E_CONFIG,
                               "optimizer '%s' is sharded, but the wrapper does not reduce '%s': "
                               "every rank would have another gradient for it",
                               o->name, name);
            }
        }
    }
    return CDDP_OK;
}

cddp_status cd_trainer_wrap(cd_trainer *t, cddp_error *err)
{
    CD_TRY(wrap(t, err));
    CD_TRY(register_hook(t, err));
    choose_continuations(t);
    CD_TRY(check_sharded(t, err));
    CD_TRY(cd_trainer_attach_optimizers(t, err));
    cd_trainer_watch_buckets(t);
    return CDDP_OK;
}
