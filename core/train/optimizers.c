/* SPDX-License-Identifier: Apache-2.0 */
/* What this rank keeps of its optimizers besides the replica's: the pieces that it steps, and what
** they did in the step at hand. */
#include "core/train/trainer.h"

#include "core/base/error.h"
#include "core/plan/zero.h"

static size_t optimizer_count(const cd_trainer *t)
{
    return t->program.plan->optimizer_count > 0 ? t->program.plan->optimizer_count : 1;
}

/* A cd_optimizer_cutter's. */
static cddp_status cut(void *context, size_t index, cd_replica_optimizer *optimizer,
                       const cd_optimizer_parameter *whole, cd_optimizer_pieces *pieces,
                       cddp_error *err)
{
    cd_trainer *t = context;
    cd_shard **shard = &t->optimizers[index].shard;
    const cd_shard_options options = {
        .optimizer = optimizer->name,
        .kind = (cddp_plan_optimizer_shard)cd_zero_get_shard(t->program.plan, index),
        .order = (cddp_plan_shard_order)t->program.settings.shard.order,
        .padding = (cddp_plan_shard_padding)t->program.settings.shard.padding,
        .rank = t->rank->rank,
        .world = (uint32_t)t->program.plan->world.size,
        .parameters = whole,
        .parameter_count = optimizer->count,
        .allocator = t->allocator};
    CD_TRY(cd_shard_create(&options, shard, err));
    for (size_t k = 0; k < optimizer->count; k++) optimizer->pieces[k] = cd_shard_find(*shard, k);
    pieces->items = cd_shard_get_pieces(*shard, &pieces->count);
    return CDDP_OK;
}

cddp_status cd_trainer_make_replica(cd_trainer *t, const cddp_device *device, cddp_error *err)
{
    const cd_optimizer_cutter cutter = {.context = t, .cut = cut};
    const cd_replica_options options = {.plan = t->program.plan,
                                        .rank = t->rank->rank,
                                        .device = device,
                                        .allocator = t->allocator,
                                        .cutter = &cutter};
    t->optimizers = cd_arena_array(&t->memory, optimizer_count(t), sizeof *t->optimizers);
    CD_TRY(cd_arena_check(&t->memory, err, "%zu optimizers", optimizer_count(t)));
    CD_TRY(cd_replica_create(&options, &t->replica, err));
    cd_loss_divisor_init(&t->divisor, t->replica);
    for (size_t i = 0; i < t->replica->optimizer_count; i++) {
        cd_trainer_optimizer *o = &t->optimizers[i];
        o->scaled.number = (uint32_t)i;
        o->has_touched = cd_arena_array(&t->memory, t->replica->optimizers[i].count, sizeof(bool));
    }
    CD_TRY(cd_arena_check(&t->memory, err, "the parameters of an optimizer"));
    return CDDP_OK;
}

void cd_trainer_drop_replica(cd_trainer *t)
{
    cd_loss_divisor_fini(&t->divisor);
    cd_replica_destroy(t->replica);
    t->replica = NULL;
    for (size_t i = 0; t->optimizers != NULL && i < optimizer_count(t); i++)
        cd_shard_destroy(t->optimizers[i].shard);
    t->optimizers = NULL;
}
