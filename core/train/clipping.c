/* SPDX-License-Identifier: Apache-2.0 */
/* Clipping after the reduction, and the norm that it uses.
**
** Note [Whose norm] After a reduction every rank holds all gradients, so their norm is the total
** (no clip.group). A rank that steps a part of them, as with a sharded optimizer, may add the
** squares of that part to those of the others. Over all ranks that is the same total. Over fewer
** ranks, or over none, it is too small. A gradient whose optimizer is not sharded is part of
** what every rank steps: added up over a group it counts once for each rank (ZOO-127). The program
** does what the plan says. The watcher sees whether its norm is that of all gradients, each once
** (link 13 of the oracle, I-STEP). Of a sharded model no rank holds all gradients: units add the
** squares of shards themselves (FCL-01).
*/
#include "core/train/trainer.h"

#include "core/base/error.h"
#include "core/train/points.h"
#include "core/train/sharding.h"
#include "core/model/optim/clip.h"

#include <math.h>
#include <string.h>

struct cd_clipping {
    cddp_group *group; /* over which squares are added; NULL: over none */
    bool takes_own;    /* of what this rank steps; else of all that it holds */
    uint32_t *ranks;   /* (rank_count of world) whose parts enter */
    uint32_t rank_count;
    /* (own_count of grad_count) of what is stepped, in the order of the slots */
    const cddp_grad **own;
    size_t own_count;
    cddp_tensor sum; /* (1), owned */
};

/* The gradient of one slot as this rank's optimizers see it; NULL: other ranks step all of it. */
static const cddp_grad *own_of(const cd_trainer *t, const cddp_grad *slot)
{
    for (size_t i = 0; i < t->replica->optimizer_count; i++) {
        const cd_replica_optimizer *o = &t->replica->optimizers[i];
        for (size_t k = 0; o->pieces != NULL && k < o->count; k++) {
            size_t count;
            const int64_t piece = o->pieces[k];
            if (o->grads[k] == slot) {
                return piece >= 0 ? cd_shard_get_pieces(t->optimizers[i].shard, &count)[piece].grad
                                  : NULL;
            }
        }
    }
    return slot;
}

static void find_ranks(const cd_trainer *t, struct cd_clipping *c)
{
    const char *name = t->program.settings.clip.group;
    c->ranks[0] = t->rank->rank;
    c->rank_count = 1;
    if (c->group == NULL) return;
    c->rank_count = cddp_group_size(c->group);
    for (uint32_t i = 0; i < c->rank_count; i++) c->ranks[i] = i;
    for (size_t i = 0; i < t->program.plan->group_count; i++) {
        const cddp_u32_list *members = &t->program.plan->groups[i].members;
        if (t->program.plan->groups[i].name != NULL &&
            strcmp(t->program.plan->groups[i].name, name) == 0 && members->count > 0)
            memcpy(c->ranks, members->items, members->count * sizeof *c->ranks);
    }
}

static cddp_status fill_in(cd_trainer *t, struct cd_clipping *c, cddp_error *err)
{
    const cddp_device *device = cd_trainer_module(t)->device;
    const char *group = t->program.settings.clip.group;
    const int64_t one = 1;
    void *storage;
    c->ranks = cd_arena_array(&t->memory, (size_t)t->program.plan->world.size, sizeof *c->ranks);
    c->own = cd_arena_array(&t->memory, t->trained.count + 1, sizeof(const cddp_grad *));
    CD_TRY(cd_arena_check(&t->memory, err, "clipping"));
    c->takes_own = group != NULL;
    if (group != NULL && strcmp(group, "own") != 0)
        c->group = cd_trainer_find_group(t, strcmp(group, "world") == 0 ? NULL : group);
    find_ranks(t, c);
    for (size_t i = 0; i < t->trained.count; i++) {
        const cddp_grad *own = own_of(t, t->trained.grads[i]);
        if (own != NULL) c->own[c->own_count++] = own;
    }
    CD_TRY(device->allocate(device, CDDP_F64, one, &storage, err));
    c->sum = cddp_tensor_of(device, storage, 0, CDDP_F64, &one, 1);
    return CDDP_OK;
}

cddp_status cd_trainer_open_clipping(cd_trainer *t, cddp_error *err)
{
    if (!(t->program.settings.clip.max_norm > 0) ||
        t->program.settings.clip.place == CDDP_CLIP_BEFORE_REDUCTION)
        return CDDP_OK;
    t->clipping = cd_arena_push(&t->memory, sizeof *t->clipping);
    CD_TRY(cd_arena_check(&t->memory, err, "clipping"));
    CD_TRY(fill_in(t, t->clipping, err));
    return CDDP_OK;
}

void cd_trainer_close_clipping(cd_trainer *t)
{
    const cddp_tensor *sum = t->clipping != NULL ? &t->clipping->sum : NULL;
    if (sum != NULL && sum->device != NULL)
        sum->device->release(sum->device, CDDP_F64, 1, sum->storage);
    t->clipping = NULL;
}

static cddp_status add_over_group(const struct cd_clipping *c, double p, double *squares,
                                  cddp_error *err)
{
    cddp_work *work = NULL;
    const cddp_device *device = c->sum.device;
    CD_TRY(device->write(&c->sum, squares, sizeof *squares, err));
    CD_TRY(cddp_group_allreduce(c->group, &c->sum, cd_p_norm_reduction(p), &work, err));
    CD_TRY(cddp_work_wait(work, 0, err));
    CD_TRY(device->read(&c->sum, squares, sizeof *squares, err));
    return CDDP_OK;
}

/* Σ|x|^p of this rank's gradients; of p = 2 as the device has the norm of each. */
static cddp_status add_own(const cd_trainer *t, cd_p_norm *norm, cddp_error *err)
{
    const struct cd_clipping *c = t->clipping;
    const cddp_grad *const *grads =
        c->takes_own ? c->own : (const cddp_grad *const *)t->trained.grads;
    const size_t count = c->takes_own ? c->own_count : t->trained.count;
    if (norm->p == 2) return CD_PASS(cd_clip_add_squares(grads, count, &norm->sum, err));
    return CD_PASS(cd_clip_add_norm(grads, count, norm, err));
}

/* See Note [Whose norm] */
static cddp_status find_norm(cd_trainer *t, double *norm, cddp_error *err)
{
    const struct cd_clipping *c = t->clipping;
    cd_p_norm own = {.p = t->program.settings.clip.norm_type};
    if (t->sharding != NULL) {
        CD_TRY(cd_sharding_clip(t, norm, err));
        CD_POINT_NUMBER("clip.norm", t, *norm);
        return CDDP_OK;
    }
    for (size_t i = 0; c->takes_own && i < t->replica->optimizer_count; i++) {
        if (t->optimizers[i].shard != NULL)
            CD_TRY(cd_shard_take_gradients(t->optimizers[i].shard, err));
    }
    CD_TRY(add_own(t, &own, err));
    if (c->group != NULL) CD_TRY(add_over_group(c, own.p, &own.sum, err));
    *norm = cd_p_norm_get(&own);
    CD_POINT_NUMBER("clip.norm", t, *norm);
    return CDDP_OK;
}

cddp_status cd_trainer_clip(cd_trainer *t, cd_trainer_decision *decision, cddp_error *err)
{
    const struct cd_clipping *c = t->clipping;
    CD_TRY(find_norm(t, &decision->norm, err));
    if (t->view.watcher != NULL) {
        const cd_watched_norm norm = {cd_trainer_refresh_views(t), decision->norm, c->ranks,
                                      c->rank_count};
        CD_TRY(t->view.watcher->ops->clips(t->view.watcher->self, &norm, err));
    }
    CD_POINT_NUMBER("clip.max_norm", t, t->program.settings.clip.max_norm);
    double factor = cd_clip_factor(t->program.settings.clip.max_norm, decision->norm);
    CD_POINT_NUMBER("clip.factor", t, factor);
    if (t->sharding != NULL)
        CD_TRY(cd_sharding_collect(t, err)); /* the shards were scaled with the norm at hand */
    else
        CD_TRY(cd_clip_scale(t->trained.grads, t->trained.count, factor, err));
    decision->clip = factor; /* NaN too: it was multiplied into the gradients */
    decision->is_clipped_first = !decision->is_unscaled;
    return CDDP_OK;
}
