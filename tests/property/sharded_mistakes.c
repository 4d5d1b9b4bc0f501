/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/property/sharded_mistakes.h"

#include "core/fsdp/unit.h"

#include <string.h>

#define RANKS_MAX 8
#define STRUCK_RANK 1

/* What fsdp.c calls. See CMakeLists.txt */
cddp_status sharded_gather(cd_fsdp_unit *u, cddp_error *err);
cddp_status sharded_await(cd_fsdp_unit *u, cddp_error *err);
cddp_status sharded_free(cd_fsdp_unit *u, cddp_error *err);
cddp_status sharded_reduce(cd_fsdp_unit *u, cddp_error *err);
cddp_status sharded_advance(cd_fsdp_unit *u, cddp_error *err);

static struct {
    sharded_mistake mistake;
    bool fired;
    int64_t passing[RANKS_MAX]; /* the unit of the newest pass */
} now;

static const char *const names[SHARDED_MISTAKES] = {
    [SHARDED_NO_MISTAKE] = "none",
    [SHARDED_FULL_COPY_NUDGED] = "full copy nudged",
    [SHARDED_UNIT_KEPT] = "unit kept",
    [SHARDED_PREFETCH_LEFT_OUT] = "prefetch left out",
    [SHARDED_GRADIENT_NUDGED] = "gradient nudged",
    [SHARDED_GRADIENT_DROPPED] = "gradient dropped",
    [SHARDED_GRADIENT_ROUNDED] = "gradient rounded",
    [SHARDED_RESULT_HALVED] = "result halved",
    [SHARDED_SHARD_NUDGED] = "shard nudged",
};

const char *sharded_mistake_name(sharded_mistake mistake) { return names[mistake]; }

void sharded_mistake_begin(sharded_mistake mistake)
{
    memset(&now, 0, sizeof now);
    now.mistake = mistake;
}

void sharded_mistake_event(const cddp_event *event)
{
    if (event->kind == CDDP_EV_unit_pass && event->rank < RANKS_MAX)
        now.passing[event->rank] = event->as.unit_pass.unit;
}

bool sharded_mistake_fired(void) { return now.fired; }

/* In the world: a replica's shard group has as many ranks as the unit is cut into. */
static uint32_t rank_of(const cd_fsdp_unit *u)
{
    const uint32_t replica = u->replicas != NULL ? cddp_group_rank(u->replicas) : 0;
    return replica * u->layout.world + u->shard_rank;
}

static bool is_struck(const cd_fsdp_unit *u, sharded_mistake mistake)
{
    return now.mistake == mistake && u->layout.member_count > 0 && rank_of(u) == STRUCK_RANK;
}

/* Its first element that is not zero becomes another one of its dtype. */
static cddp_status change(const cddp_tensor *t, double factor, cddp_error *err)
{
    const int64_t numel = cddp_tensor_numel(t);
    for (int64_t i = 0; i < numel; i++) {
        const cddp_tensor one = cddp_tensor_slice(t, i, 1);
        uint64_t before = 0, after = 0;
        cddp_status status = t->device->digest(&one, &before, err);
        if (status == CDDP_OK) status = t->device->scale(&one, &one, factor, NULL, err);
        if (status == CDDP_OK) status = t->device->digest(&one, &after, err);
        if (status != CDDP_OK) return status;
        if (before == after) continue;
        now.fired = true;
        return CDDP_OK;
    }
    return CDDP_OK;
}

cddp_status sharded_gather(cd_fsdp_unit *u, cddp_error *err)
{
    const bool is_ahead =
        u->layout.member_count > 0 && now.passing[rank_of(u) % RANKS_MAX] != (int64_t)u->index;
    if (now.mistake == SHARDED_PREFETCH_LEFT_OUT && is_ahead) {
        now.fired = true;
        return CDDP_OK;
    }
    return cd_fsdp_unit_gather(u, err);
}

cddp_status sharded_await(cd_fsdp_unit *u, cddp_error *err)
{
    const bool gathers = u->state == CD_FSDP_GATHERING;
    cddp_status status = cd_fsdp_unit_await(u, err);
    if (status != CDDP_OK || !gathers) return status;
    if (is_struck(u, SHARDED_FULL_COPY_NUDGED) && u->layout.members[0].full.device != NULL &&
        cd_fsdp_unit_is_sharded(u))
        return change(&u->layout.members[0].full, 1.5, err);
    if (is_struck(u, SHARDED_SHARD_NUDGED)) return change(&u->shard, 1.5, err);
    return status;
}

cddp_status sharded_free(cd_fsdp_unit *u, cddp_error *err)
{
    if (is_struck(u, SHARDED_UNIT_KEPT) && u->state == CD_FSDP_FULL && cd_fsdp_unit_is_sharded(u)) {
        now.fired = true;
        return CDDP_OK;
    }
    return cd_fsdp_unit_free(u, err);
}

static cddp_status round_gradient(const cddp_tensor *t, cddp_error *err)
{
    const cddp_device *device = t->device;
    const int64_t numel = cddp_tensor_numel(t);
    cddp_tensor low = *t;
    uint64_t before = 0, after = 0;
    cddp_status status = device->digest(t, &before, err);
    if (status == CDDP_OK)
        status = device->allocate(device, CDDP_BF16, numel + 1, &low.storage, err);
    if (status != CDDP_OK) return status;
    low.dtype = CDDP_BF16;
    low.offset = 0;
    status = device->copy(&low, t, NULL, err);
    if (status == CDDP_OK) status = device->copy(t, &low, NULL, err);
    if (status == CDDP_OK) status = device->digest(t, &after, err);
    device->release(device, CDDP_BF16, numel + 1, low.storage);
    now.fired = now.fired || before != after;
    return status;
}

cddp_status sharded_reduce(cd_fsdp_unit *u, cddp_error *err)
{
    const cddp_grad *grad = u->layout.member_count > 0 ? u->layout.members[0].grad : NULL;
    const bool has_values = grad != NULL && grad->kind == CDDP_GRAD_DENSE;
    cddp_status status = CDDP_OK;
    if (now.mistake == SHARDED_GRADIENT_DROPPED && u->index > 0) {
        now.fired = true;
        cd_fsdp_unit_drop_gradients(u);
        return CDDP_OK;
    }
    if (has_values && is_struck(u, SHARDED_GRADIENT_NUDGED))
        status = change(&grad->value, 1.5, err);
    if (has_values && is_struck(u, SHARDED_GRADIENT_ROUNDED))
        status = round_gradient(&grad->value, err);
    return status == CDDP_OK ? cd_fsdp_unit_reduce(u, err) : status;
}

cddp_status sharded_advance(cd_fsdp_unit *u, cddp_error *err)
{
    const bool was_reducing = u->reducing != CD_FSDP_REDUCED;
    const cddp_status status = cd_fsdp_unit_advance(u, err);
    if (status != CDDP_OK || !was_reducing || u->reducing != CD_FSDP_REDUCED ||
        u->grad.kind == CDDP_GRAD_UNDEFINED || !is_struck(u, SHARDED_RESULT_HALVED))
        return status;
    return change(&u->grad.value, 0.5, err);
}
