/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers as the plan lists them, over the parameters of a replica's model. */
#include "core/plan/replica/optimizers.h"

#include "core/base/error.h"
#include "core/plan/plan.h"
#include "core/plan/replica/replica.h"
#include "core/plan/zero.h"

static cd_optimizer_options optimizer_options(const cddp_plan_optimizer *planned)
{
    cd_optimizer_options options = cd_optimizer_options_default((cd_optimizer_kind)planned->kind);
    options.lr = planned->lr;
    options.weight_decay = planned->weight_decay;
    options.momentum = planned->momentum;
    options.dampening = planned->dampening;
    options.nesterov = planned->nesterov;
    options.beta1 = planned->beta1;
    options.beta2 = planned->beta2;
    options.eps = planned->eps;
    return options;
}

static cddp_status collect_parameters(cd_replica *r, const cddp_plan_optimizer *planned,
                                      cd_replica_optimizer *made, cddp_error *err)
{
    cd_module *module = r->model->module;
    made->ordinals =
        cd_arena_array(&r->memory, module->parameter_count + 1, sizeof *made->ordinals);
    made->grads = cd_arena_array(&r->memory, module->parameter_count + 1, sizeof *made->grads);
    CD_TRY(cd_arena_check(&r->memory, err, "the parameters of an optimizer"));
    for (size_t i = 0; i < module->parameter_count; i++) {
        cd_parameter *parameter = &module->parameters[i];
        if ((parameter->requires_grad || cd_plan_unfreezes(r->plan, parameter->name)) &&
            (planned->parameters.count == 0 ||
             cd_patterns_match(&planned->parameters, parameter->name))) {
            made->ordinals[made->count] = (uint32_t)i;
            made->grads[made->count++] = &parameter->grad;
        }
    }
    return made->count > 0
               ? CDDP_OK
               : cd_fail(err, CDDP_E_CONFIG,
                         "optimizer '%s' owns no parameter of model '%s' that requires grad",
                         made->name, r->settings.model.name);
}

static cddp_status make_optimizer(cd_replica *r, size_t index, const cddp_plan_optimizer *planned,
                                  const cd_optimizer_cutter *cutter, cddp_error *err)
{
    cd_replica_optimizer *made = &r->optimizers[index];
    cd_optimizer_options options = optimizer_options(planned);
    made->name = planned->name != NULL ? planned->name : cd_optimizer_name(options.kind);
    made->steps = planned->steps;
    made->lr = planned->lr;
    made->in_backward = planned->in_backward || planned->overlap != CDDP_PLAN_OVERLAP_NONE;
    made->overlap = (cddp_optimizer_overlap)planned->overlap;
    const bool steps_pieces = r->settings.fsdp.enable && cutter != NULL; /* of its shards */
    options.defers_state =
        (made->overlap >= CDDP_OVERLAP_HOOK_WITH_ZERO_STEP && cutter != NULL) || steps_pieces;
    CD_TRY(collect_parameters(r, planned, made, err));
    const bool is_cut = cd_zero_get_shard(r->plan, index) != CDDP_SHARD_NONE && cutter != NULL;
    made->pieces = is_cut ? cd_arena_array(&r->memory, made->count, sizeof *made->pieces) : NULL;
    const cd_arena_mark mark = cd_arena_get_mark(&r->memory);
    cd_optimizer_parameter *parameters =
        cd_arena_array(&r->memory, made->count, sizeof *parameters);
    CD_TRY(cd_arena_check(&r->memory, err, "optimizer '%s'", made->name));
    for (size_t i = 0; i < made->count; i++) {
        cd_parameter *parameter = &r->model->module->parameters[made->ordinals[i]];
        parameters[i] =
            (cd_optimizer_parameter){parameter->name, parameter->tensor, &parameter->grad};
    }
    cd_optimizer_pieces held = {parameters, made->count};
    if (is_cut) CD_TRY(cutter->cut(cutter->context, index, made, parameters, &held, err));
    CD_TRY(
        cd_optimizer_create(&options, held.items, held.count, r->allocator, &made->optimizer, err));
    cd_arena_rewind(&r->memory, mark);
    return CDDP_OK;
}

/* A parameter of a sharded optimizer has no second optimizer. The oracle assigns a parameter to its
** owners once, and could not know which state belongs to which of two optimizers. */
static cddp_status check_owners(const cd_replica *r, size_t sharded, size_t other, cddp_error *err)
{
    const cd_replica_optimizer *a = &r->optimizers[sharded], *b = &r->optimizers[other];
    for (size_t i = 0, k = 0; sharded != other && i < a->count && k < b->count;) {
        if (a->ordinals[i] == b->ordinals[k]) {
            return cd_fail(err, CDDP_E_CONFIG,
                           "optimizer '%s' is sharded, and optimizer '%s' steps its parameter '%s' "
                           "as well: give a sharded optimizer parameters that no other steps",
                           a->name, b->name, r->model->module->parameters[a->ordinals[i]].name);
        }
        if (a->ordinals[i] < b->ordinals[k])
            i++;
        else
            k++;
    }
    return CDDP_OK;
}

cddp_status cd_replica_make_optimizers(cd_replica *r, const cd_optimizer_cutter *cutter,
                                       cddp_error *err)
{
    r->optimizer_count = cd_plan_optimizer_count(r->plan);
    r->optimizers = cd_arena_array(&r->memory, r->optimizer_count, sizeof *r->optimizers);
    CD_TRY(cd_arena_check(&r->memory, err, "%zu optimizers", r->optimizer_count));
    for (size_t i = 0; i < r->optimizer_count; i++) {
        const cddp_plan_optimizer planned = cd_plan_optimizer_of(r->plan, r->rank, i);
        CD_TRY(make_optimizer(r, i, &planned, cutter, err));
    }
    for (size_t i = 0; i < r->optimizer_count; i++) {
        const bool is_sharded = cd_zero_get_shard(r->plan, i) != CDDP_SHARD_NONE;
        for (size_t other = 0; is_sharded && other < r->optimizer_count; other++)
            CD_TRY(check_owners(r, i, other, err));
    }
    return CDDP_OK;
}

bool cd_replica_assigns_buckets(const cd_replica *replica, size_t optimizer)
{
    return replica->optimizers[optimizer].overlap >= CDDP_OVERLAP_HOOK_WITH_ZERO_STEP;
}

bool cd_replica_is_sharded(const cd_replica *replica)
{
    if (replica->settings.fsdp.enable) return true;
    for (size_t i = 0; i < replica->optimizer_count; i++) {
        if (cd_zero_get_shard(replica->plan, i) != CDDP_SHARD_NONE ||
            cd_replica_assigns_buckets(replica, i))
            return true;
    }
    return false;
}

int64_t cd_replica_find_piece(const cd_replica_optimizer *optimizer, size_t k)
{
    return optimizer->pieces != NULL ? optimizer->pieces[k] : (int64_t)k;
}

void cd_replica_drop_optimizers(cd_replica *r)
{
    for (size_t i = 0; r->optimizers != NULL && i < r->optimizer_count; i++)
        cd_optimizer_destroy(r->optimizers[i].optimizer);
    r->optimizers = NULL;
}

/* ---- optimizer slots ---- */

size_t cd_replica_slot_count(const cd_replica *replica)
{
    size_t count = 0;
    for (size_t i = 0; i < replica->optimizer_count; i++)
        count += replica->optimizers[i].count * CD_OPTIMIZER_SLOTS_MAX;
    return count;
}

void cd_replica_get_slots(const cd_replica *replica, cddp_tensor *tensors, int32_t *parameters)
{
    size_t at = 0;
    for (size_t i = 0; i < replica->optimizer_count; i++) {
        const cd_replica_optimizer *o = &replica->optimizers[i];
        for (size_t k = 0; k < o->count; k++) {
            cd_optimizer_state state = {.is_present = false};
            const int64_t piece = cd_replica_find_piece(o, k);
            if (piece >= 0) cd_optimizer_get_state(o->optimizer, (size_t)piece, &state);
            for (uint32_t s = 0; s < CD_OPTIMIZER_SLOTS_MAX; s++, at++) {
                tensors[at] =
                    state.is_present && s < state.slot_count ? state.slots[s] : (cddp_tensor){0};
                if (parameters != NULL) parameters[at] = (int32_t)o->ordinals[k];
            }
        }
    }
}

cddp_status cd_replica_save_optimizers(const cd_replica *replica, cd_blob *blob, cddp_error *err)
{
    const cddp_state_writer writer = cd_blob_writer(blob);
    for (size_t i = 0; i < replica->optimizer_count; i++) {
        CD_TRY(cd_blob_end(blob, cd_optimizer_save(replica->optimizers[i].optimizer, &writer, err),
                           err));
    }
    return CDDP_OK;
}

cddp_status cd_replica_load_optimizers(cd_replica *replica, const cddp_state_reader *reader,
                                       cddp_error *err)
{
    for (size_t i = 0; i < replica->optimizer_count; i++)
        CD_TRY(cd_optimizer_load(replica->optimizers[i].optimizer, reader, err));
    return CDDP_OK;
}
