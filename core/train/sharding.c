/* SPDX-License-Identifier: Apache-2.0 */
/* A fully sharded model in place of a wrapped one: its units follow the graph.
**
** Note [Forward of a unit] Models here have no modules that run, only parameters with dotted names.
** The forward of a unit lasts from the first use of one of its parameters to the first use of
** another unit's, and ends with the model's at the latest; the root's encloses all. In backward a
** unit begins before the first node that reads one of its parameters, and ends when all of its
** gradients have arrived, or with the backward.
**
** Note [What is shown of shards] No rank has whole parameters between iterations. Where values are
** shown, parameters and gradients are gathered into the module's tensors. Nothing of the training
** reads them there: forward asks the wrapper, optimizers step pieces of the shards.
**
** Note [Sharded on streams] Units then live on the device with streams, as gradients do there, and
** the host computes with a copy: of a unit that was gathered, made on a stream beside the default
** one, for which the host waits. It waits for the default stream before a shard is stepped and
** before anything is shown. Producers of gradients wait for it when a unit's backward begins, so
** they may write where another unit was. Layers of a device that computes read a unit from
** its gather until it is freed, and the host is ahead of them. So the default stream reads it when
** its pass begins and before it is freed, and nobody waits: a gather that it does not wait for is
** found, and memory that another gather takes too early. What it read is reported, which waits only
** where a trace has content: layers too compute with the parameters of the step.
**
** Not here: units (core/fsdp).
*/
#include "core/train/sharding.h"

#include "cddp/fsdp.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/plan/micro.h"
#include "core/plan/unit_precision.h"
#include "core/train/crossing.h"
#include "core/train/trainer.h"

#include <stdio.h>
#include <string.h>

#define NO_UNIT UINT32_MAX

typedef struct unit {
    uint32_t trained; /* parameters that require a gradient */
    uint32_t arrived; /* of them, in the running backward */
    bool is_open;     /* its backward has begun */
    bool has_ended;
    bool may_go_back; /* a forward of it had outputs that require a gradient */
} unit;

struct cd_sharding {
    cddp_fsdp *fsdp;
    cddp_group *shards, *replicas; /* of a hybrid strategy; else NULL */
    unit *units;                   /* (unit_count) */
    uint32_t unit_count;
    uint32_t *unit_of; /* (parameter_count) */
    uint32_t *forward; /* (forward_count of unit_count) in the order of their last forwards */
    uint32_t forward_count;
    uint32_t current; /* in forward besides the root; NO_UNIT: none */
    uint64_t used_at; /* operations that the graph had run when a parameter of it was last read */
    bool in_forward, grad_mode, needs_gradients;
    cd_crossing crossing;
    bool is_synced; /* the backward at hand reduces */
    uint64_t iteration;
    cddp_grad *pieces;   /* (parameter_count) views of the shards' gradients, for optimizers */
    cddp_grad *wide;     /* (parameter_count) of pieces that are kept in another dtype; owned */
    cddp_grad *whole;    /* (parameter_count) gathered, to be shown; owned */
    cddp_tensor *flat;   /* (unit_count) the shards' gradients, for a gather */
    cddp_stream *copies; /* on which they are made; NULL: no streams */
    /* (parameter_count) with streams: the host's copies, and where the default stream puts what it
    ** reads */
    cddp_tensor *full, *read;
    bool *is_read; /* (parameter_count) on the default stream, as a pass ended */
    cd_sharding_entries came;
};

/* ---- construction ---- */

/* HSD-01: consecutive ranks share a copy, and equal places of the copies a shard. */
static cddp_status open_mesh(cd_trainer *t, struct cd_sharding *s, cddp_error *err)
{
    const uint32_t group = (uint32_t)t->program.settings.fsdp.shard_group_size,
                   world = (uint32_t)t->program.plan->world.size, rank = t->rank->rank;
    const bool is_hybrid = t->program.settings.fsdp.sharding_strategy == CDDP_SHARDING_HYBRID ||
                           t->program.settings.fsdp.sharding_strategy == CDDP_SHARDING_HYBRID_ZERO2;
    char name[32];
    if (!is_hybrid) return CDDP_OK;
    const cd_arena_mark mark = cd_arena_get_mark(&t->memory);
    uint32_t *members = cd_arena_array(&t->memory, world, sizeof *members);
    CD_TRY(cd_arena_check(&t->memory, err, "the groups of %u ranks", world));
    cddp_plan_group planned = {.name = name, .members = {members, group}};
    for (uint32_t i = 0; i < group; i++) members[i] = rank / group * group + i;
    snprintf(name, sizeof name, "shards %u", rank / group);
    CD_TRY(cd_trainer_open_group(t, &planned, &s->shards, err));
    planned.members.count = world / group;
    for (uint32_t i = 0; i < world / group; i++) members[i] = i * group + rank % group;
    snprintf(name, sizeof name, "replicas %u", rank % group);
    CD_TRY(cd_trainer_open_group(t, &planned, &s->replicas, err));
    cd_arena_rewind(&t->memory, mark);
    return CDDP_OK;
}

static cddp_fsdp_strategy strategy_of(int64_t planned)
{
    switch (planned) {
    case CDDP_SHARDING_GRAD_OP:
        return CDDP_FSDP_SHARD_GRAD_OP;
    case CDDP_SHARDING_NO:
        return CDDP_FSDP_NO_SHARD;
    case CDDP_SHARDING_HYBRID:
        return CDDP_FSDP_HYBRID_SHARD;
    case CDDP_SHARDING_HYBRID_ZERO2:
        return CDDP_FSDP_HYBRID_SHARD_ZERO2;
    default:
        return CDDP_FSDP_FULL_SHARD;
    }
}

static cddp_fsdp_options options_of(const cd_trainer *t)
{
    const cddp_plan_fsdp *p = &t->program.settings.fsdp;
    cddp_fsdp_options o = cddp_fsdp_options_default();
    o.group = t->sharding->shards != NULL ? t->sharding->shards : t->groups.world;
    o.replicate_group = t->sharding->replicas;
    o.tracer = t->tracer;
    o.allocator = t->allocator;
    o.strategy = strategy_of(p->sharding_strategy);
    o.layout = (cddp_fsdp_layout)p->layout;
    o.backward_prefetch = (cddp_fsdp_prefetch)p->backward_prefetch;
    o.forward_prefetch = p->forward_prefetch;
    o.order_check = (cddp_fsdp_order_check)p->order_check;
    o.limit_all_gathers = p->limit_all_gathers;
    o.cpu_offload.offload_params = p->cpu_offload;
    if (p->device_id != CDDP_SHARDING_DEVICE_NONE)
        o.device_id = t->streams.device != NULL ? t->streams.device : cd_trainer_module(t)->device;
    o.sync_module_states = p->sync_module_states;
    o.use_orig_params = p->use_orig_params;
    if (t->program.plan->zero.stage == 3) {
        const cddp_plan_zero *z = &t->program.plan->zero;
        o.prefetch_numel = (int64_t)z->stage3_prefetch_bucket_size;
        o.live_numel_max = (int64_t)z->stage3_max_live_parameters;
        o.persistence_threshold = (int64_t)z->stage3_param_persistence_threshold;
    }
    static const cddp_fsdp_wrap_kind kinds[] = {[CDDP_SHARDING_WRAPS_NONE] = CDDP_FSDP_WRAP_NONE,
                                                [CDDP_SHARDING_WRAPS_ALWAYS] =
                                                    CDDP_FSDP_WRAP_ALWAYS,
                                                [CDDP_SHARDING_WRAPS_SIZE] = CDDP_FSDP_WRAP_SIZE,
                                                [CDDP_SHARDING_WRAPS_MODULES] =
                                                    CDDP_FSDP_WRAP_NAMES};
    o.wrap.kind = kinds[p->auto_wrap_policy];
    o.wrap.min_num_params = (int64_t)p->min_num_params;
    o.wrap.words = p->wrap_modules.items;
    o.wrap.word_count = p->wrap_modules.count;
    o.mixed_precision = (cddp_fsdp_mixed_precision){
        .param_dtype = cd_mixed_dtype(t->program.settings.mixed_precision.param_dtype),
        .reduce_dtype = cd_mixed_dtype(t->program.settings.mixed_precision.reduce_dtype),
        .output_dtype = cd_mixed_dtype(p->output_dtype),
        .keep_low_precision_grads = p->keep_low_precision_grads,
        .cast_forward_inputs = p->cast_forward_inputs,
        .cast_root_forward_inputs = p->cast_root_forward_inputs};
    return o;
}

/* FSD-12: units of other dtypes. The root's name is empty. */
static cddp_status find_unit_options(cd_trainer *t, cddp_fsdp_options *o, cddp_error *err)
{
    const cddp_text_list *listed = &t->program.settings.fsdp.unit_precision;
    cddp_fsdp_unit_options *units = cd_arena_array(&t->memory, listed->count + 1, sizeof *units);
    CD_TRY(cd_arena_check(&t->memory, err, "the dtypes of %zu units", listed->count));
    for (size_t i = 0; i < listed->count; i++) {
        cd_unit_precision own;
        if (!cd_unit_precision_read(listed->items[i], &own)) continue; /* the plan refused it */
        char *name = cd_arena_push(&t->memory, own.length + 1);
        CD_TRY(cd_arena_check(&t->memory, err, "the name of unit %zu", i));
        memcpy(name, own.module, own.length);
        units[o->unit_options_count++] = (cddp_fsdp_unit_options){
            .module = name,
            .strategy = o->strategy,
            .mixed_precision = {.param_dtype = own.param,
                                .reduce_dtype = own.reduce,
                                .output_dtype = own.output,
                                .keep_low_precision_grads = own.keep_low_precision_grads,
                                .cast_forward_inputs = own.cast_forward_inputs,
                                .cast_root_forward_inputs = own.cast_root_forward_inputs}};
    }
    o->unit_options = units;
    return CDDP_OK;
}

/* Numbers parameters that are reduced, in the model's order, as a wrapper does. */
static void number_variables(cd_trainer *t)
{
    const cd_module *module = cd_trainer_module(t);
    int32_t next = 0;
    for (size_t i = 0; i < module->parameter_count; i++) {
        const cd_parameter *p = &module->parameters[i];
        t->parameters[i].variable = p->requires_grad ? next++ : CD_NO_VARIABLE;
        uint64_t shape = 0;
        for (uint32_t d = 0; d < p->tensor.dim_count; d++)
            shape = cd_hash_mix(shape, (uint64_t)p->tensor.sizes[d]);
        CD_EMIT(t->tracer, param, p->name, .param = t->parameters[i].variable,
                .ordinal = (int64_t)i, .numel = cddp_tensor_numel(&p->tensor),
                .dtype = p->tensor.dtype, .requires_grad = p->requires_grad,
                .sparse = p->expect_sparse, .shape = (int64_t)shape,
                .name = (int64_t)cd_hash_text(p->name));
    }
    CD_EMIT(t->tracer, wrap, NULL, .params = next, .buffers = 0,
            .group = cddp_group_id(t->groups.world),
            .init_sync = t->program.settings.fsdp.sync_module_states);
}

static cddp_status find_units(cd_trainer *t, struct cd_sharding *s, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    for (size_t i = 0; i < module->parameter_count; i++) {
        cddp_fsdp_piece piece = {.size = sizeof piece};
        CD_TRY(cddp_fsdp_get_piece(s->fsdp, i, &piece, err));
        s->unit_of[i] = (uint32_t)piece.unit; /* none is ignored */
        s->units[piece.unit].trained += module->parameters[i].requires_grad;
    }
    return CDDP_OK;
}

/* What the host steps. Tables of devices that the wrapper made for offloaded shards end with it,
** and the optimizer's state does not. */
static cddp_tensor plain_piece(const cd_trainer *t, const cddp_tensor *piece)
{
    cddp_tensor plain = cd_streams_plain(&t->streams, piece);
    const bool is_offloaded = t->streams.device != NULL && t->program.settings.fsdp.cpu_offload;
    if (is_offloaded && plain.device != NULL) plain.device = t->streams.home;
    return plain;
}

/* FPM-09: a parameter without elements on this rank is an empty tensor. */
static cddp_status hand_out_pieces(cd_trainer *t, struct cd_sharding *s, cddp_error *err)
{
    for (size_t i = 0; i < t->replica->optimizer_count; i++) {
        cd_replica_optimizer *o = &t->replica->optimizers[i];
        o->pieces = cd_arena_array(&t->memory, o->count + 1, sizeof *o->pieces);
        CD_TRY(cd_arena_check(&t->memory, err, "the pieces of optimizer '%s'", o->name));
        for (size_t k = 0; k < o->count; k++) {
            const uint32_t ordinal = o->ordinals[k];
            cddp_fsdp_piece piece = {.size = sizeof piece};
            CD_TRY(cddp_fsdp_get_piece(s->fsdp, ordinal, &piece, err));
            o->pieces[k] = piece.count > 0 ? (int64_t)k : -1;
            o->grads[k] = &s->pieces[ordinal];
            const cddp_tensor stepped = plain_piece(t, &piece.tensor);
            cd_optimizer_replace(o->optimizer, k, &stepped, o->grads[k]);
            CD_TRY(cd_optimizer_state_begin(o->optimizer, k, err));
        }
    }
    return CDDP_OK;
}

static cddp_status create(cd_trainer *t, struct cd_sharding *s, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    const size_t count = module->parameter_count;
    CD_TRY(open_mesh(t, s, err));
    const cd_arena_mark mark = cd_arena_get_mark(&t->memory);
    cddp_fsdp_options options = options_of(t);
    cddp_parameter *given = cd_arena_array(&t->memory, count + 1, sizeof *given);
    CD_TRY(
        cd_arena_check(&t->memory, err, "the units of model '%s'", t->program.settings.model.name));
    for (size_t i = 0; i < count; i++) {
        cd_parameter *p = &module->parameters[i];
        given[i] = (cddp_parameter){.name = p->name,
                                    .tensor = options.device_id != NULL
                                                  ? p->tensor
                                                  : cd_streams_queued(&t->streams, &p->tensor),
                                    .grad = &p->grad,
                                    .requires_grad = p->requires_grad,
                                    .expect_sparse = p->expect_sparse};
    }
    CD_TRY(find_unit_options(t, &options, err));
    options.parameters = given;
    options.parameter_count = count;
    cddp_buffer *buffers = cd_arena_array(&t->memory, module->buffer_count + 1, sizeof *buffers);
    CD_TRY(cd_arena_check(&t->memory, err, "%zu buffers", module->buffer_count));
    for (size_t i = 0; i < module->buffer_count; i++)
        buffers[i] =
            (cddp_buffer){.name = module->buffers[i].name, .tensor = module->buffers[i].tensor};
    options.buffers = buffers;
    options.buffer_count = module->buffer_count;
    options.buffer_dtype = cd_mixed_dtype(t->program.settings.mixed_precision.buffer_dtype);
    CD_TRY(cddp_fsdp_create(&options, &s->fsdp, err));
    cd_arena_rewind(&t->memory, mark);
    return CDDP_OK;
}

cddp_status cd_trainer_shard(cd_trainer *t, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    const size_t count = module->parameter_count + 1;
    struct cd_sharding *s = cd_arena_push(&t->memory, sizeof *s);
    CD_TRY(cd_arena_check(&t->memory, err, "a sharded model"));
    t->sharding = s;
    const cddp_fsdp_mixed_precision mixed = options_of(t).mixed_precision;
    if (module->buffer_count > 0 && t->program.settings.fsdp.rank0_only)
        return cd_fail(err, CDDP_E_CONFIG,
                       "fsdp.rank0_only: model '%s' has buffers, which are each rank's own "
                       "(FSD-20). The state of rank 0 alone has that rank's, and the others' would "
                       "be lost: drop fsdp.rank0_only",
                       t->program.settings.model.name);
    if (module->buffer_count == 0 &&
        t->program.settings.mixed_precision.buffer_dtype != CDDP_BUFFER_DTYPE_NONE)
        return cd_fail(err, CDDP_E_CONFIG,
                       "mixed_precision.buffer_dtype has no effect: model '%s' has no buffers",
                       t->program.settings.model.name);
    t->reduction.wire =
        mixed.reduce_dtype != CDDP_DTYPE_COUNT ? mixed.reduce_dtype : mixed.param_dtype;
    t->reduction.divides_after = true; /* FSD-06: what stands in front is a power of two */
    number_variables(t);
    s->unit_of = cd_arena_array(&t->memory, count, sizeof *s->unit_of);
    s->pieces = cd_arena_array(&t->memory, count, sizeof *s->pieces);
    s->wide = cd_arena_array(&t->memory, count, sizeof *s->wide);
    s->whole = cd_arena_array(&t->memory, count, sizeof *s->whole);
    s->full = cd_arena_array(&t->memory, count, sizeof *s->full);
    s->read = cd_arena_array(&t->memory, count, sizeof *s->read);
    s->is_read = cd_arena_array(&t->memory, count, sizeof *s->is_read);
    CD_TRY(cd_arena_check(&t->memory, err, "the units of %zu parameters", count));
    CD_TRY(create(t, s, err));
    if (t->streams.device != NULL)
        CD_TRY(t->streams.device->stream_create(t->streams.device, &s->copies, err));
    s->unit_count = cddp_fsdp_unit_count(s->fsdp);
    s->units = cd_arena_array(&t->memory, s->unit_count, sizeof *s->units);
    s->forward = cd_arena_array(&t->memory, s->unit_count, sizeof *s->forward);
    s->flat = cd_arena_array(&t->memory, s->unit_count, sizeof *s->flat);
    CD_TRY(cd_arena_check(&t->memory, err, "%u units", s->unit_count));
    s->current = NO_UNIT;
    CD_TRY(cd_crossing_init(&s->crossing, s->fsdp, &t->memory, err));
    CD_TRY(find_units(t, s, err));
    CD_TRY(hand_out_pieces(t, s, err));
    return CD_PASS(cd_sharding_collect(t, err));
}

void cd_trainer_unshard(cd_trainer *t)
{
    struct cd_sharding *s = t->sharding;
    if (s == NULL) return;
    for (size_t i = 0; s->whole != NULL && i < cd_trainer_module(t)->parameter_count; i++) {
        cddp_grad_fini(&s->whole[i]);
        cddp_grad_fini(&s->wide[i]);
    }
    if (s->copies != NULL) t->streams.device->stream_destroy(t->streams.device, s->copies);
    cddp_fsdp_destroy(s->fsdp);
    cddp_group_destroy(s->replicas);
    cddp_group_destroy(s->shards);
    t->sharding = NULL;
}

cddp_fsdp *cd_sharding_get(const cd_trainer *t) { return t->sharding->fsdp; }

uint32_t cd_sharding_unit_of(const cd_trainer *t, size_t parameter)
{
    return t->sharding->unit_of[parameter];
}

uint32_t cd_sharding_get_shards(const cd_trainer *t)
{
    const struct cd_sharding *s = t->sharding;
    return cddp_group_size(s->shards != NULL ? s->shards : t->groups.world);
}

/* ---- forward ---- */

/* FMP-07: buffers have the numbers of buffer_dtype from the first forward on. Layers compute in the
** module's dtype, so what they left is rounded through the unit's copies. */
static cddp_status round_buffers(cd_trainer *t, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    for (size_t i = 0; i < module->buffer_count; i++) {
        const cddp_tensor *own = &module->buffers[i].tensor,
                          *low = cddp_fsdp_buffer(t->sharding->fsdp, i);
        if (low == NULL || low->dtype == own->dtype || cddp_tensor_numel(own) == 0) continue;
        CD_TRY(low->device->copy(low, own, NULL, err));
        CD_TRY(low->device->copy(own, low, NULL, err));
    }
    return CDDP_OK;
}

static cddp_status make_copy(cd_trainer *t, size_t i, const cddp_tensor *full, cddp_tensor *copy,
                             cddp_error *err)
{
    if (copy->device != NULL) return CDDP_OK;
    *copy = cd_trainer_module(t)->parameters[i].tensor;
    copy->dtype = full->dtype;
    copy->offset = 0;
    copy->storage = cd_arena_array(&t->memory, (size_t)cddp_tensor_numel(full) + 1,
                                   cddp_dtype_bytes(full->dtype));
    return CD_PASS(cd_arena_check(&t->memory, err, "the host's copy of a unit"));
}

/* See Note [Sharded on streams] */
static cddp_status read_as_layers(cd_trainer *t, uint32_t k, cddp_error *err)
{
    struct cd_sharding *s = t->sharding;
    if (t->streams.device == NULL) return CDDP_OK;
    for (size_t i = 0; i < cd_trainer_module(t)->parameter_count; i++) {
        const cddp_tensor *full = cddp_fsdp_parameter(s->fsdp, i);
        if (s->unit_of[i] != k || full == NULL) continue;
        CD_TRY(make_copy(t, i, full, &s->read[i], err));
        const cddp_tensor to = cd_streams_queued(&t->streams, &s->read[i]);
        CD_TRY(to.device->copy(&to, full, NULL, err));
        s->is_read[i] = true;
    }
    return CDDP_OK;
}

/* Before the unit is freed: with what its layers computed. */
static cddp_status leave_layers(cd_trainer *t, uint32_t k, cddp_event_enum_unit_pass pass,
                                cddp_error *err)
{
    struct cd_sharding *s = t->sharding;
    const size_t count = cd_trainer_module(t)->parameter_count;
    memset(s->is_read, 0, count * sizeof *s->is_read);
    CD_TRY(read_as_layers(t, k, err));
    for (size_t i = 0; cd_tracer_wants_digest(t->tracer) && i < count; i++) {
        uint64_t digest = 0;
        if (!s->is_read[i]) continue;
        const cddp_tensor read = cd_streams_queued(&t->streams, &s->read[i]);
        CD_TRY(read.device->digest(&read, &digest, err));
        CD_EMIT(t->tracer, unit_read, NULL, .ordinal = (int64_t)i, .unit = k, .pass = pass,
                .dtype = read.dtype, .digest = (int64_t)digest);
    }
    return CDDP_OK;
}

/* See Note [Sharded on streams] */
static cddp_status bring_to_host(cd_trainer *t, uint32_t k, cddp_error *err)
{
    struct cd_sharding *s = t->sharding;
    const cddp_device *device = t->streams.device;
    if (device == NULL) return CDDP_OK;
    CD_TRY(read_as_layers(t, k, err));
    CD_TRY(cddp_fsdp_wait_unit(s->fsdp, k, s->copies, err));
    for (size_t i = 0; i < cd_trainer_module(t)->parameter_count; i++) {
        const cddp_tensor *full = cddp_fsdp_parameter(s->fsdp, i);
        if (s->unit_of[i] != k || full == NULL) continue;
        CD_TRY(make_copy(t, i, full, &s->full[i], err));
        const cddp_tensor to = cd_streams_queued(&t->streams, &s->full[i]);
        CD_TRY(device->copy(&to, full, s->copies, err));
    }
    return CD_PASS(device->stream_synchronize(device, s->copies, err));
}

/* See Note [Forward of a unit] */
static cddp_status leave_unit(cd_trainer *t, cddp_error *err)
{
    struct cd_sharding *s = t->sharding;
    const uint32_t left = s->current;
    if (left == NO_UNIT) return CDDP_OK;
    s->current = NO_UNIT;
    s->needs_gradients = s->needs_gradients || s->units[left].trained > 0;
    const bool needs = s->grad_mode && s->needs_gradients;
    s->units[left].may_go_back |= needs;
    uint32_t at = 0;
    while (at < s->forward_count && s->forward[at] != left) at++;
    if (at == s->forward_count) s->forward[s->forward_count++] = left;
    CD_TRY(leave_layers(t, left, CDDP_UNIT_POST_FORWARD, err));
    return CD_PASS(cddp_fsdp_post_forward(s->fsdp, left, needs, err));
}

cddp_status cd_sharding_begin_forward(cd_trainer *t, bool grad_mode, cddp_error *err)
{
    struct cd_sharding *s = t->sharding;
    const bool sync = grad_mode && t->now.micro->sync;
    s->grad_mode = grad_mode;
    s->needs_gradients = false;
    s->iteration += sync;
    CD_EMIT(t->tracer, forward_begin, NULL, .iteration = (int64_t)s->iteration, .sync = sync,
            .grad_mode = grad_mode);
    s->in_forward = true;
    cd_crossing_begin(&s->crossing, t->replica->graph);
    CD_TRY(cddp_fsdp_pre_forward(s->fsdp, 0, grad_mode, err));
    CD_TRY(round_buffers(t, err));
    return CD_PASS(bring_to_host(t, 0, err));
}

const cddp_dtype *cd_sharding_input_dtype(const cd_trainer *t)
{
    return t->sharding != NULL ? cd_crossing_get_input(&t->sharding->crossing) : NULL;
}

cddp_status cd_sharding_cross(cd_trainer *t, cd_value *value, cd_value **read, cddp_error *err)
{
    return CD_PASS(cd_crossing_read(&t->sharding->crossing, t->replica->graph, value, read, err));
}

cddp_status cd_sharding_end_forward(cd_trainer *t, cd_outputs *outputs, cddp_error *err)
{
    struct cd_sharding *s = t->sharding;
    CD_TRY(cd_crossing_give_back(&s->crossing, t->replica->graph, outputs, err));
    CD_TRY(leave_unit(t, err));
    s->needs_gradients = s->needs_gradients || s->units[0].trained > 0;
    const bool needs = s->grad_mode && s->needs_gradients;
    s->units[0].may_go_back |= needs;
    s->in_forward = false;
    CD_TRY(round_buffers(t, err));
    CD_TRY(leave_layers(t, 0, CDDP_UNIT_POST_FORWARD, err));
    CD_TRY(cddp_fsdp_post_forward(s->fsdp, 0, needs, err));
    CD_EMIT(t->tracer, forward_end, NULL, .unused = -1,
            .prepared = s->grad_mode && t->now.micro->sync);
    return CDDP_OK;
}

/* See Note [Sharded on streams] */
static cddp_status begin_unit(cd_trainer *t, uint32_t k, cddp_error *err)
{
    CD_TRY(cddp_fsdp_pre_backward(t->sharding->fsdp, k, err));
    CD_TRY(cd_streams_begin_backward(&t->streams, err));
    return CD_PASS(bring_to_host(t, k, err));
}

cddp_status cd_sharding_use(cd_trainer *t, uint32_t parameter, bool in_backward, cddp_error *err)
{
    struct cd_sharding *s = t->sharding;
    const uint32_t k = s->unit_of[parameter];
    if (in_backward) {
        if (t->replica->graph->recomputes)
            cd_crossing_enter_again(&s->crossing, t->replica->graph, k);
        if (s->units[k].is_open || s->units[k].has_ended) return CDDP_OK;
        s->units[k].is_open = true;
        return CD_PASS(begin_unit(t, k, err));
    }
    const uint64_t run = t->replica->graph->op_count;
    if (k == s->current) s->used_at = run;
    if (k == 0 || k == s->current || !s->in_forward) return CDDP_OK;
    if (s->current != NO_UNIT && s->used_at == run)
        return cd_fail(err, CDDP_E_CONFIG,
                       "fsdp: one operation reads '%s' and a parameter of another unit, which "
                       "would be freed before it: wrap a module above both",
                       cd_trainer_module(t)->parameters[parameter].name);
    CD_TRY(leave_unit(t, err));
    s->used_at = run;
    s->current = k;
    cd_crossing_enter(&s->crossing, t->replica->graph, k);
    CD_TRY(cddp_fsdp_pre_forward(s->fsdp, k, s->grad_mode, err));
    return CD_PASS(bring_to_host(t, k, err));
}

const cddp_tensor *cd_sharding_parameter(const cd_trainer *t, uint32_t parameter)
{
    const cddp_tensor *full = cddp_fsdp_parameter(t->sharding->fsdp, parameter);
    return full != NULL && t->streams.device != NULL ? &t->sharding->full[parameter] : full;
}

cddp_status cd_sharding_enter_no_sync(cd_trainer *t, cddp_error *err)
{
    CD_EMIT(t->tracer, no_sync, NULL, .entered = 1, .depth = 1);
    return CD_PASS(cddp_fsdp_no_sync_begin(t->sharding->fsdp, err));
}

cddp_status cd_sharding_leave_no_sync(cd_trainer *t, cddp_error *err)
{
    CD_TRY(cddp_fsdp_no_sync_end(t->sharding->fsdp, err));
    CD_EMIT(t->tracer, no_sync, NULL, .entered = 0, .depth = 0);
    return CDDP_OK;
}

/* ---- backward ---- */

cddp_status cd_sharding_begin_backward(cd_trainer *t, cddp_error *err)
{
    struct cd_sharding *s = t->sharding;
    s->is_synced = t->now.micro->sync_backward;
    CD_EMIT(t->tracer, backward_begin, NULL, .sync = s->is_synced);
    for (uint32_t k = 0; k < s->unit_count; k++) {
        s->units[k].arrived = 0;
        s->units[k].is_open = s->units[k].has_ended = false;
    }
    s->units[0].is_open = s->units[0].may_go_back;
    return s->units[0].may_go_back ? CD_PASS(begin_unit(t, 0, err)) : CDDP_OK;
}

static cddp_status end_unit(cd_trainer *t, uint32_t k, cddp_error *err)
{
    struct cd_sharding *s = t->sharding;
    CD_TRY(leave_layers(t, k, CDDP_UNIT_POST_BACKWARD, err));
    s->units[k].is_open = false;
    s->units[k].has_ended = true;
    return CD_PASS(cddp_fsdp_post_backward(s->fsdp, k, err));
}

cddp_status cd_sharding_ready(cd_trainer *t, uint32_t parameter, cddp_error *err)
{
    struct cd_sharding *s = t->sharding;
    const uint32_t k = s->unit_of[parameter];
    if (!s->units[k].is_open) return CDDP_OK;
    if (++s->units[k].arrived < s->units[k].trained || k == 0) return CDDP_OK; /* FSH-04 */
    return CD_PASS(end_unit(t, k, err));
}

/* FMP-08: the optimizer computes with the same numbers in the dtype of its parameter. */
static cddp_status widen_piece(cd_trainer *t, size_t i, cddp_grad *piece, cddp_error *err)
{
    cddp_grad *wide = &t->sharding->wide[i];
    cddp_tensor like = piece->value;
    if (piece->kind != CDDP_GRAD_DENSE ||
        like.dtype == cd_trainer_module(t)->parameters[i].tensor.dtype)
        return CDDP_OK;
    like.dtype = cd_trainer_module(t)->parameters[i].tensor.dtype;
    cddp_grad_drop(wide);
    CD_TRY(cddp_grad_define(wide, &like, err));
    CD_TRY(cd_streams_look(&t->streams, err));
    CD_TRY(like.device->copy(&wide->value, &piece->value, NULL, err));
    *piece = (cddp_grad){.kind = CDDP_GRAD_DENSE, .value = wide->value};
    return CDDP_OK;
}

static cddp_status refresh_pieces(cd_trainer *t, cddp_error *err)
{
    struct cd_sharding *s = t->sharding;
    for (size_t i = 0; i < cd_trainer_module(t)->parameter_count; i++) {
        cddp_fsdp_piece piece = {.size = sizeof piece};
        CD_TRY(cddp_fsdp_get_piece(s->fsdp, i, &piece, err));
        s->pieces[i] = (cddp_grad){.kind = CDDP_GRAD_UNDEFINED};
        if (piece.count == 0) continue;
        cd_streams_plain_grad(&t->streams, &piece.gradient, &s->pieces[i]);
        s->pieces[i].value = plain_piece(t, &s->pieces[i].value);
        CD_TRY(widen_piece(t, i, &s->pieces[i], err));
    }
    return CDDP_OK;
}

/* digests: the gradients were gathered. */
static cddp_status emit_finals(const cd_trainer *t, bool digests, cddp_error *err)
{
    const struct cd_sharding *s = t->sharding;
    for (size_t i = 0; t->tracer != NULL && i < cd_trainer_module(t)->parameter_count; i++) {
        const cddp_grad *whole = &s->whole[i];
        cddp_parameter flat = {.name = NULL};
        int64_t bad = -1;
        if (t->parameters[i].variable == CD_NO_VARIABLE) continue;
        CD_TRY(cddp_fsdp_flat(s->fsdp, s->unit_of[i], &flat, err));
        const bool is_there = flat.grad->kind == CDDP_GRAD_DENSE, digested = is_there && digests;
        if (digested && whole->value.device->find_nonfinite(&whole->value, &bad, NULL) != CDDP_OK)
            bad = -1;
        CD_EMIT(t->tracer, grad_final, NULL, .param = t->parameters[i].variable,
                .presence = is_there ? CDDP_PRESENCE_VALUE : CDDP_PRESENCE_ABSENT,
                .digest = digested ? cd_tracer_digest(t->tracer, &whole->value) : 0, .bucket = -1,
                .address = -1, .dtype = is_there ? (int64_t)flat.grad->value.dtype : -1,
                .nonfinite = bad >= 0);
    }
    return CDDP_OK;
}

cddp_status cd_sharding_end_backward(cd_trainer *t, cddp_error *err)
{
    struct cd_sharding *s = t->sharding;
    for (uint32_t i = s->forward_count; i-- > 0;)
        if (s->units[s->forward[i]].is_open) CD_TRY(end_unit(t, s->forward[i], err));
    if (s->units[0].is_open) CD_TRY(end_unit(t, 0, err));
    s->forward_count = 0;
    for (uint32_t k = 0; k < s->unit_count; k++) s->units[k].may_go_back = false;
    CD_TRY(cddp_fsdp_backward_end(s->fsdp, err));
    CD_TRY(round_buffers(t, err)); /* a layer may have run again */
    CD_TRY(refresh_pieces(t, err));
    const bool digests = cd_tracer_wants_digest(t->tracer);
    if (s->is_synced && digests) CD_TRY(cd_sharding_collect(t, err));
    if (s->is_synced) CD_TRY(emit_finals(t, digests, err));
    CD_EMIT(t->tracer, backward_end, NULL, .finalized = s->is_synced);
    return CDDP_OK;
}

/* ---- the step ---- */

cddp_status cd_sharding_regrid(cd_trainer *t, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    if (!t->program.settings.model.exact || !cd_graph_computes(t->replica->graph)) return CDDP_OK;
    for (size_t i = 0; i < module->parameter_count; i++) {
        cddp_fsdp_piece piece = {.size = sizeof piece};
        CD_TRY(cddp_fsdp_get_piece(t->sharding->fsdp, i, &piece, err));
        const cddp_tensor stepped = plain_piece(t, &piece.tensor);
        if (module->parameters[i].requires_grad && piece.count > 0)
            CD_TRY(cd_regrid_tensor(t->allocator, &stepped, err));
    }
    return CDDP_OK;
}

cddp_status cd_sharding_clip(cd_trainer *t, double *norm, cddp_error *err)
{
    const cddp_plan_clip *clip = &t->program.settings.clip;
    return CD_PASS(
        cddp_fsdp_clip_grad_norm(t->sharding->fsdp, clip->max_norm, clip->norm_type, norm, err));
}

cddp_status cd_sharding_zero_grad(cd_trainer *t, bool to_none, cddp_error *err)
{
    CD_TRY(cddp_fsdp_zero_grad(t->sharding->fsdp, to_none, err));
    return CD_PASS(refresh_pieces(t, err));
}

/* ---- what is shown ---- */

static cddp_status show_parameter(void *context, const cddp_fsdp_entry *e, cddp_error *err)
{
    const cd_trainer *t = context;
    CD_TRY(cd_sharding_entries_take(&t->sharding->came, t, e, err));
    if (e->is_buffer) return CDDP_OK; /* the module's are this rank's own */
    const cddp_tensor *to = &cd_trainer_module(t)->parameters[e->ordinal].tensor;
    const cddp_tensor from = cd_streams_plain(&t->streams, &e->tensor);
    if (cddp_tensor_numel(to) == 0) return CDDP_OK;
    CD_TRY(cd_streams_look(&t->streams, err));
    return CD_PASS(to->device->copy(to, &from, NULL, err));
}

static cddp_status show_gradient(void *context, const cddp_fsdp_entry *e, cddp_error *err)
{
    cd_trainer *t = context;
    CD_TRY(cd_sharding_entries_take(&t->sharding->came, t, e, err));
    const cd_parameter *p = &cd_trainer_module(t)->parameters[e->ordinal];
    cddp_grad *to = &t->sharding->whole[e->ordinal];
    if (!p->requires_grad) return CDDP_OK;
    CD_TRY(cddp_grad_define(to, &p->tensor, err));
    const cddp_tensor from = cd_streams_plain(&t->streams, &e->tensor);
    if (cddp_tensor_numel(&to->value) == 0) return CDDP_OK;
    CD_TRY(cd_streams_look(&t->streams, err));
    return CD_PASS(to->value.device->copy(&to->value, &from, NULL, err));
}

static cddp_status gather_gradients(cd_trainer *t, cddp_error *err)
{
    struct cd_sharding *s = t->sharding;
    for (uint32_t k = 0; k < s->unit_count; k++) {
        cddp_parameter flat = {.name = NULL};
        CD_TRY(cddp_fsdp_flat(s->fsdp, k, &flat, err));
        s->flat[k] = flat.grad->kind == CDDP_GRAD_DENSE ? flat.grad->value : (cddp_tensor){0};
    }
    for (size_t i = 0; i < cd_trainer_module(t)->parameter_count; i++) cddp_grad_drop(&s->whole[i]);
    const cddp_fsdp_slots slots = {.size = sizeof slots, .tensors = s->flat, .slot_count = 1};
    const cddp_fsdp_sink sink = {.size = sizeof sink, .entry = show_gradient, .context = t};
    CD_TRY(cd_sharding_entries_begin(&s->came, t, s->flat, err));
    CD_TRY(cddp_fsdp_optimizer_state(s->fsdp, &slots, &sink, err));
    return CD_PASS(cd_sharding_entries_end(&s->came, t, err));
}

/* See Note [What is shown of shards] */
cddp_status cd_sharding_collect(cd_trainer *t, cddp_error *err)
{
    const cddp_fsdp_sink sink = {.size = sizeof sink, .entry = show_parameter, .context = t};
    cd_sharding_entries *came = &t->sharding->came;
    came->memory = &t->memory;
    CD_TRY(cd_sharding_entries_begin(came, t, NULL, err));
    CD_TRY(cddp_fsdp_full_state(t->sharding->fsdp, &sink, err));
    CD_TRY(cd_sharding_entries_end(came, t, err));
    return CD_PASS(gather_gradients(t, err));
}

const cddp_grad *cd_sharding_gradient(const cd_trainer *t, size_t parameter)
{
    return &t->sharding->whole[parameter];
}
