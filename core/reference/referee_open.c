/* SPDX-License-Identifier: Apache-2.0 */
/* What is expected of a rank before it begins, from the plan: references, oracle, laws, decisions.
*/
#include "core/reference/referee_state.h"

#include "cddp/hook.h"
#include "core/base/error.h"
#include "core/plan/plan.h"
#include "core/plan/zero.h"
#include "core/reference/decided_groups.h"
#include "core/reference/declared.h"
#include "core/reference/owed.h"
#include "core/reference/planned.h"
#include "core/reference/units.h"
#include "core/trace/tracer.h"

#include <stdio.h>
#include <string.h>

/* Statistics of a batch live in buffers. A gradient that is cast rounds once per batch and not once
** per sample, and the processor's flag does not show it; nor does it show what another device
** computes. See Note [Addends of the reference] */
static bool model_is_sample_wise(const cd_referee *o, const cd_module *module)
{
    const cddp_dtype dtype = (cddp_dtype)o->settings.model.dtype;
    return module->buffer_count == 0 && dtype != CDDP_F16 && dtype != CDDP_BF16 &&
           o->settings.mixed_precision.param_dtype == CDDP_PARAM_DTYPE_NONE && !o->casts_units &&
           cd_device_is_direct(module->device);
}

static cd_oracle_path path_of(const cd_referee *o, size_t parameter)
{
    if (o->variables[parameter] >= 0) return CD_ORACLE_PATH_BUCKET;
    return cd_planned_lists(&o->settings.ddp.delay_all_reduce_named_params,
                            o->reference->replica->model->module->parameters[parameter].name)
               ? CD_ORACLE_PATH_DELAYED
               : CD_ORACLE_PATH_LOCAL;
}

/* ZRO-01 as the plan declares it, whatever this rank does: of one optimizer's parameters. */
static cddp_status declare_parts(cd_referee *o, size_t optimizer, cd_oracle_parameter *parameters,
                                 cddp_error *err)
{
    const cd_replica_optimizer *own = &o->reference->replica->optimizers[optimizer];
    const int64_t kind = cd_zero_get_shard(o->options.plan, optimizer);
    const cd_arena_mark mark = cd_arena_get_mark(&o->memory);
    int64_t *numels = cd_arena_array(&o->memory, own->count, sizeof *numels);
    cd_part *parts = cd_arena_array(&o->memory, own->count, sizeof *parts);
    CD_TRY(cd_arena_check(&o->memory, err, "the parts of optimizer '%s'", own->name));
    const cd_partition partition = {numels, own->count, (uint32_t)o->options.plan->world.size,
                                    o->allocator};
    for (size_t k = 0; k < own->count; k++) {
        const cd_oracle_parameter *p = &parameters[own->ordinals[k]];
        numels[k] = p->numel / cd_referee_lanes_of(p->dtype);
    }
    if (kind == CDDP_SHARD_FLAT) {
        cd_partition_flat(&partition, parts);
    } else {
        CD_TRY(cd_partition_whole(&partition,
                                  o->options.plan->settings.shard.order == CDDP_SHARD_ORDER_SIZE,
                                  parts, err));
    }
    for (size_t k = 0; k < own->count; k++) {
        cd_oracle_parameter *p = &parameters[own->ordinals[k]];
        const int64_t lanes = cd_referee_lanes_of(p->dtype);
        p->part = (cd_part){parts[k].start * lanes, parts[k].share * lanes, 0};
    }
    cd_arena_rewind(&o->memory, mark);
    return CDDP_OK;
}

/* FPM-02, FS2-01 as the plan declares them, whatever this rank does. */
static cddp_status declare_units(cd_referee *o, cd_oracle_parameter *parameters, cddp_error *err)
{
    const cd_module *module = o->reference->replica->model->module;
    uint32_t *units = cd_arena_array(&o->memory, module->parameter_count + 1, sizeof *units);
    CD_TRY(cd_arena_check(&o->memory, err, "the units of rank %u", o->options.rank));
    CD_TRY(cd_planned_find_units(o->options.plan, &o->settings, module, &o->memory,
                                 &(cd_planned_units){.parts = o->parts, .units = units}, err));
    cd_planned_precision *precisions =
        cd_arena_array(&o->memory, module->parameter_count + 1, sizeof *precisions);
    CD_TRY(cd_arena_check(&o->memory, err, "the dtypes of rank %u", o->options.rank));
    CD_TRY(cd_planned_find_precision(o->options.plan, &o->settings, module, &o->memory, precisions,
                                     err));
    for (size_t i = 0; i < module->parameter_count; i++) {
        parameters[i].part = o->parts[i];
        parameters[i].unit = units[i];
        parameters[i].casts =
            (cd_oracle_casts){true, precisions[i].reduce, precisions[i].param, precisions[i].kept};
        o->casts_units |= precisions[i].param != CDDP_DTYPE_COUNT;
    }
    return CDDP_OK;
}

/* No rank has the whole state of a sharded optimizer. */
static bool is_sharded(const cddp_plan *plan)
{
    bool is_sharded = cd_zero_shards_model(plan) || cd_zero_get_shard(plan, 0) != CDDP_SHARD_NONE;
    for (size_t i = 0; i < plan->optimizer_count; i++) {
        is_sharded |= cd_zero_get_shard(plan, i) != CDDP_SHARD_NONE ||
                      plan->optimizers[i].overlap >= CDDP_PLAN_OVERLAP_HOOK_WITH_ZERO_STEP;
    }
    return is_sharded;
}

static cddp_status make_references(cd_referee *o, cddp_error *err)
{
    const cd_reference_options restarted = {.plan = o->options.plan,
                                            .rank = o->options.rank,
                                            .device = o->options.device,
                                            .allocator = o->allocator,
                                            .state = is_sharded(o->options.plan)
                                                         ? NULL
                                                         : &o->optimizer_state,
                                            .loss_scale = &o->loss_scale,
                                            .share = o->options.reference_share};
    cd_reference_options running = restarted;
    running.state = NULL;
    running.is_free_running = true;
    running.restart = restarted.state;
    CD_TRY(cd_reference_create(&restarted, &o->reference, err));
    CD_TRY(cd_reference_create(&running, &o->free_reference, err));
    return CDDP_OK;
}

/* The free reference has this rank's initial values. With distinct ones the root's are
** broadcast. */
static cd_free_gap free_gap_of(const cd_referee *o)
{
    if (o->settings.averager.kind != CDDP_AVERAGER_NONE) return CD_FREE_AVERAGED;
    return o->settings.model.init == CDDP_MODEL_INIT_DISTINCT ? CD_FREE_DISTINCT : CD_FREE_NO_GAP;
}

/* 0: nothing is clipped; below 0: not the norm of all reduced gradients. */
static double planned_norm(const cd_referee *o)
{
    const bool is_another =
        o->settings.clip.group != NULL || o->settings.clip.place == CDDP_CLIP_BEFORE_REDUCTION;
    if (!(o->settings.clip.max_norm > 0)) return 0;
    return is_another ? -1 : o->settings.clip.max_norm;
}

static cddp_status make_oracle(cd_referee *o, cddp_error *err)
{
    const cddp_plan *plan = o->options.plan;
    const cd_module *module = o->reference->replica->model->module;
    o->parts = cd_arena_array(&o->memory, module->parameter_count + 1, sizeof *o->parts);
    const cd_arena_mark mark = cd_arena_get_mark(&o->memory);
    cd_oracle_parameter *parameters =
        cd_arena_array(&o->memory, module->parameter_count + 1, sizeof *parameters);
    CD_TRY(cd_arena_check(&o->memory, err, "the oracle of rank %u", o->options.rank));
    for (size_t i = 0; i < module->parameter_count; i++) {
        const cd_parameter *p = &module->parameters[i];
        parameters[i] = (cd_oracle_parameter){p->name,
                                              cddp_tensor_numel(&p->tensor) *
                                                  cd_referee_lanes_of(p->tensor.dtype),
                                              p->tensor.dtype,
                                              o->variables[i],
                                              path_of(o, i),
                                              {0, 0, 0},
                                              0,
                                              {.is_given = false}};
    }
    for (size_t i = 0; i < cd_plan_optimizer_count(plan); i++) {
        if (cd_zero_get_shard(plan, i) != CDDP_SHARD_NONE)
            CD_TRY(declare_parts(o, i, parameters, err));
    }
    if (o->settings.fsdp.enable) CD_TRY(declare_units(o, parameters, err));
    for (size_t i = 0; i < module->parameter_count; i++) o->parts[i] = parameters[i].part;
    const cd_oracle_options options = {
        .parameters = parameters,
        .parameter_count = module->parameter_count,
        .buffer_count = module->buffer_count,
        .rank = o->options.rank,
        .world_size = (uint32_t)plan->world.size,
        .engine = &o->reference->engine,
        .free_engine = &o->free_reference->engine,
        .free_gap = free_gap_of(o),
        .share = o->options.share,
        .tracer = o->options.tracer,
        .allocator = o->allocator,
        .sample_wise = model_is_sample_wise(o, module),
        .has_no_state = is_sharded(plan),
        .routes_by_values = o->reference->replica->model->routes_by_values,
        .separate = o->settings.ddp.accumulate_in_hook || cd_planned_adds_up_apart(&o->settings),
        .adds_reductions = o->settings.fsdp.enable,
        .exact_inputs = o->settings.model.exact,
        .step_count = (uint32_t)o->settings.train.steps,
        .seed = plan->world.seed,
        .on_grid = o->settings.model.exact,
        .rounds_buffers = o->settings.fsdp.enable &&
                          o->settings.mixed_precision.buffer_dtype != CDDP_BUFFER_DTYPE_NONE,
        .buffer_dtype = cd_planned_dtype(o->settings.mixed_precision.buffer_dtype),
        .clip_max_norm = planned_norm(o),
        .clip_norm_type = o->settings.clip.norm_type,
        .clips_scaled = o->settings.clip.place == CDDP_CLIP_BEFORE_UNSCALE};
    CD_TRY(cd_oracle_create(&options, &o->oracle, err));
    cd_arena_rewind(&o->memory, mark);
    return CDDP_OK;
}

static cddp_status make_unit_law(cd_referee *o, cddp_error *err)
{
    const cd_unit_law_options options = {.plan = o->options.plan,
                                         .rank = o->options.rank,
                                         .samples = &o->reference->share->samples,
                                         .allocator = o->allocator};
    if (!o->settings.fsdp.enable) return CDDP_OK;
    CD_TRY(cd_unit_law_create(&options, &o->units, err));
    const cd_unit_sums_options sums = {.law = o->units,
                                       .allocator = o->allocator,
                                       .module = o->reference->replica->model->module,
                                       .variables = o->variables,
                                       .mesh = cd_planned_get_mesh(o->options.plan, &o->settings),
                                       .rank = o->options.rank,
                                       .by_rows = o->settings.fsdp.layout == CDDP_SHARDING_CUT_ROWS,
                                       .tracer = o->options.tracer};
    return CD_PASS(cd_unit_sums_init(&o->sums, &sums, err));
}

static cddp_status make_decisions(cd_referee *o, cddp_error *err)
{
    const cd_decisions_options options = {.plan = o->options.plan,
                                          .group = cd_decided_group_of(o->options.whole,
                                                                       o->options.wrapper),
                                          .rank = o->options.rank,
                                          .replica = o->reference->replica,
                                          .samples = &o->reference->share->samples,
                                          .parts = o->parts,
                                          .units = o->units,
                                          .memory = &o->memory};
    o->due = cd_arena_array(&o->memory, o->reference->replica->optimizer_count, sizeof *o->due);
    CD_TRY(cd_arena_check(&o->memory, err, "the decisions of rank %u", o->options.rank));
    CD_TRY(cd_decisions_init(&o->decisions, &options, err));
    CD_TRY(cd_decisions_emit(&o->decisions, o->options.tracer, err));
    return CDDP_OK;
}

/* MIX-04: without another hook and without an optimizer in its place, buckets are cast, summed and
** divided. */
static bool has_mixed_hook(cd_referee *o, cddp_dtype *wire)
{
    const cd_replica *replica = o->reference->replica;
    cd_declared_way way;
    cd_declare_way(&o->decisions, (cd_micro_place){o->options.rank, 0, 0}, &way);
    *wire = way.wire;
    for (size_t i = 0; i < replica->optimizer_count; i++)
        if (replica->optimizers[i].in_backward) return false;
    return !way.has_hook && way.wire != CDDP_DTYPE_COUNT && !o->settings.fsdp.enable &&
           (o->settings.mixed_precision.param_dtype != CDDP_PARAM_DTYPE_NONE ||
            o->settings.mixed_precision.reduce_dtype != CDDP_REDUCE_DTYPE_NONE);
}

/* The judge of the plan's comm hook; parameters are known to it by the wrapper's numbers. */
static cddp_status make_hook_law(cd_referee *o, cddp_error *err)
{
    const cd_module *module = o->reference->replica->model->module;
    const cd_decided_hook *hook = &o->decisions.hook;
    cddp_dtype wire;
    const bool is_mixed = has_mixed_hook(o, &wire);
    if ((hook->name[0] == '\0' && !is_mixed) || o->settings.ddp.accumulate_in_hook) return CDDP_OK;
    const cd_arena_mark mark = cd_arena_get_mark(&o->memory);
    cddp_tensor *forms = cd_arena_array(&o->memory, module->parameter_count + 1, sizeof *forms);
    CD_TRY(cd_arena_check(&o->memory, err, "the parameters of rank %u", o->options.rank));
    const char *name = is_mixed ? "mixed_precision" : hook->name;
    cd_hook_law_options options = {.words = {name, hook->inner, hook->options},
                                   .is_mixed_precision = is_mixed,
                                   .mixed_wire = wire,
                                   .rank = o->options.rank,
                                   .world_size = (uint32_t)o->options.plan->world.size,
                                   .seed = o->options.plan->world.seed,
                                   .on_streams = cd_plan_has_streams(o->options.plan),
                                   .is_static = o->settings.ddp.static_graph,
                                   .forms = forms,
                                   .tracer = o->options.tracer,
                                   .allocator = o->allocator};
    for (size_t i = 0; i < module->parameter_count; i++) {
        const int32_t variable = o->variables[i];
        if (variable < 0 || (size_t)variable >= module->parameter_count) continue;
        forms[variable] = module->parameters[i].tensor;
        if ((size_t)variable >= options.variable_count)
            options.variable_count = (size_t)variable + 1;
    }
    CD_TRY(cd_hook_law_create(&options, &o->hook_law, err));
    cd_arena_rewind(&o->memory, mark);
    return CDDP_OK;
}

/* The wrapper numbers the parameters that it reduces, in the model's order. */
static cddp_status number_variables(cd_referee *o, const cd_observed_open *model, cddp_error *err)
{
    const cd_replica *replica = o->reference->replica;
    const cddp_text_list *lists[] = {&o->settings.model.freeze, &o->settings.model.ignore,
                                     &o->settings.ddp.delay_all_reduce_named_params};
    const size_t count = replica->model->module->parameter_count;
    int32_t next = 0;
    if (model->variables.count != count) {
        return cd_fail(err, CDDP_E_STATE, "rank %u trains %zu parameters, the plan's model has %zu",
                       o->options.rank, model->variables.count, count);
    }
    o->variables = cd_arena_array(&o->memory, count + 1, sizeof *o->variables);
    CD_TRY(cd_arena_check(&o->memory, err, "the variables of rank %u", o->options.rank));
    for (size_t i = 0; i < count; i++) {
        bool is_reduced = replica->parameters[i].requires_grad;
        for (size_t k = 0; k < sizeof lists / sizeof lists[0]; k++)
            is_reduced &= !cd_planned_lists(lists[k], replica->model->module->parameters[i].name);
        o->variables[i] = is_reduced ? next++ : -1;
        cd_shown_number(&o->shown, "open.variables", o->variables[i], model->variables.items[i]);
    }
    return CDDP_OK;
}

/* A mean over all ranks is compared with a sum, and every hook that the plan knows by its law. */
static void emit_owed(const cd_referee *o)
{
    const cd_replica *replica = o->reference->replica;
    const cd_module *module = replica->model->module;
    const cd_decided_hook *hook = &o->decisions.hook;
    const bool has_numbers = (module->device->flags & CDDP_DEVICE_VALUES) != 0;
    size_t without_elements = 0;
    bool has_state = replica->optimizer_count > 0, has_one_dtype = true;
    for (size_t i = 0; i < module->parameter_count; i++) {
        without_elements += cddp_tensor_numel(&module->parameters[i].tensor) == 0;
        has_one_dtype &= module->parameters[i].tensor.dtype == (cddp_dtype)o->settings.model.dtype;
    }
    has_one_dtype &= o->settings.fsdp.unit_precision.count == 0;
    for (size_t i = 0; i < replica->optimizer_count; i++) {
        cd_optimizer_state state = {.slot_count = 0};
        if (replica->optimizers[i].count > 0)
            cd_optimizer_get_state(replica->optimizers[i].optimizer, 0, &state);
        has_state &= state.slot_count > 0;
    }
    const cd_owing_rank owing = {.plan = o->options.plan,
                                 .settings = &o->settings,
                                 .rank = o->options.rank,
                                 .parameter_count = module->parameter_count,
                                 .buffer_count = module->buffer_count,
                                 .updated_count = module->parameter_count - without_elements,
                                 .has_numbers = has_numbers,
                                 .has_digests = cd_tracer_wants_digest(o->options.tracer),
                                 .sums = cd_decided_hook_is_exact(hook),
                                 .has_law = o->hook_law != NULL && has_numbers &&
                                            cd_decided_hook_is_known(hook) &&
                                            cd_tracer_wants_digest(o->options.tracer),
                                 .exchanges = replica->model->exchanges_statistics &&
                                              o->options.plan->world.size > 1 && has_numbers,
                                 .has_state = has_state,
                                 .has_one_dtype = has_one_dtype,
                                 .leaves_parts_out = replica->model->leaves_parts_out,
                                 .is_sharded = cd_replica_is_sharded(replica)};
    cd_owed_emit(&owing, o->options.tracer);
}

/* The judge computes with the run's device, which has to be of the kind that the plan asks for. */
static void hold_device(const cd_referee *o, uint32_t flags)
{
    const uint32_t kinds = CDDP_DEVICE_VALUES | CDDP_DEVICE_EXACT, own = o->options.device->flags;
    const uint32_t planned = o->settings.model.device == CDDP_MODEL_DEVICE_SYMBOL
                                 ? CDDP_DEVICE_EXACT
                                 : CDDP_DEVICE_VALUES;
    cd_shown_number(&o->shown, "open.device_flags", own, flags);
    cd_shown_number(&o->shown, "open.device_flags", planned, own & kinds);
}

cddp_status cd_referee_open(cd_referee *o, const cd_observed_open *observed, cddp_error *err)
{
    CD_TRY(make_references(o, err));
    const cd_shown_options shown = {.plan = o->options.plan,
                                    .settings = &o->settings,
                                    .replica = o->reference->replica,
                                    .rank = o->options.rank,
                                    .tracer = o->options.tracer,
                                    .memory = &o->memory};
    CD_TRY(cd_shown_init(&o->shown, &shown, err));
    hold_device(o, observed->device_flags);
    CD_TRY(number_variables(o, observed, err));
    CD_TRY(make_oracle(o, err));
    CD_TRY(make_unit_law(o, err));
    CD_TRY(make_decisions(o, err));
    o->formulas =
        cd_arena_array(&o->memory, o->reference->replica->optimizer_count + 1, sizeof *o->formulas);
    CD_TRY(cd_arena_check(&o->memory, err, "the formulas of the optimizers"));
    CD_TRY(make_hook_law(o, err));
    emit_owed(o);
    const cd_custody_options custody = {.plan = o->options.plan,
                                        .settings = &o->settings,
                                        .rank = o->options.rank,
                                        .reference = o->reference,
                                        .oracle = o->oracle,
                                        .variables = o->variables,
                                        .tracer = o->options.tracer,
                                        .allocator = o->allocator};
    CD_TRY(cd_custody_create(&custody, &o->custody, err));
    return CD_PASS(cd_custody_start(o->custody, err));
}
