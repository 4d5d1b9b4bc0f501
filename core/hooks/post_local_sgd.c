/* SPDX-License-Identifier: Apache-2.0 */
/* The post_local_sgd hook: all ranks at first, then only the ranks of one block, or nobody
** (LSG-01…03).
**
** Until start_localSGD_iter a bucket is divided by the world size and summed over the world. From
** then on, with post_local_gradient_allreduce, it is divided by the block's size and summed over
** the block; without, it stays as it is. Replicas of different blocks then drift apart on purpose,
** so the models must be averaged (averager.h).
**
** The counter grows on the last bucket of a backward and stops at the start (LSG-02). It is the
** whole state.
**
** Deviations from PyTorch: a block is subgroup_size consecutive ranks; PyTorch takes the ranks of
** one machine, which a simulation does not have. Its group is made together with the hook, not in
** the middle of a backward.
*/
#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/hooks/block_group.h"
#include "core/hooks/hook.h"
#include "core/hooks/host.h"
#include "core/hooks/option.h"
#include "core/hooks/points.h"

#define MAGIC UINT64_C(0x33444753636f4c70) /* "pLocSGD3" */
#define WHO "comm hook post_local_sgd"

typedef struct settings {
    uint64_t start, subgroup_size;
    bool gradient_allreduce;
} settings;

static const cd_option option_table[] = {
    {"start_localSGD_iter", CD_OPTION_COUNT, offsetof(settings, start), 0, 1e15, NULL},
    {"subgroup_size", CD_OPTION_COUNT, offsetof(settings, subgroup_size), 0, 4096, NULL},
    {"post_local_gradient_allreduce", CD_OPTION_FLAG, offsetof(settings, gradient_allreduce), 0, 0,
     NULL},
};

typedef struct local {
    cd_arena arena; /* this struct */
    settings settings;
    cddp_group *subgroup; /* NULL: the whole group, or nobody */
    cd_state_model model;
    uint64_t iteration;
} local;

typedef struct saved {
    uint64_t magic;
    cd_state_model model;
    uint64_t iteration;
} saved;

static void destroy(void *self)
{
    local *l = self;
    if (l == NULL) return;
    cddp_group_destroy(l->subgroup);
    cd_arena_fini(&l->arena);
}

static cddp_status create(const cddp_hook_context *context, void **self, cddp_error *err)
{
    settings s = {.start = 100, .gradient_allreduce = true};
    CD_TRY(cd_hook_refuse_inner(context, "post_local_sgd", err));
    CD_TRY(cd_options_read("comm hook post_local_sgd", option_table,
                           sizeof option_table / sizeof option_table[0], context->options, &s,
                           err));
    CD_POINT_OPTIONS(context, option_table, sizeof option_table / sizeof option_table[0], &s);
    if (s.gradient_allreduce && s.subgroup_size == 0)
        return cd_fail(err, CDDP_E_CONFIG,
                       "comm hook post_local_sgd: subgroup_size is missing: how many ranks reduce "
                       "together after the "
                       "start? (post_local_gradient_allreduce=false: none)");
    if (!s.gradient_allreduce && s.subgroup_size != 0)
        return cd_fail(err, CDDP_E_CONFIG,
                       "comm hook post_local_sgd: subgroup_size has no effect with "
                       "post_local_gradient_allreduce=false");
    cd_arena arena;
    cd_arena_init(&arena, context->allocator, CD_HOOK_BLOCK_BYTES);
    local *l = cd_arena_push(&arena, sizeof *l);
    if (l == NULL) return cd_fail_memory(err, "comm hook post_local_sgd");
    *l = (local){.arena = arena, .settings = s, .model = cd_state_model_of(context)};
    cddp_status status = CDDP_OK;
    if (s.subgroup_size != 0 && s.subgroup_size != cddp_group_size(context->group))
        CD_TRY_OUT(cd_block_group_create(context->group, "post_local_sgd",
                                         (uint32_t)s.subgroup_size, &l->subgroup, err));
    cd_options_report(option_table, sizeof option_table / sizeof option_table[0], &l->settings,
                      context->tracer);
    *self = l;
    return CDDP_OK;
out:
    destroy(l);
    return status;
}

static cddp_status run(void *self, cddp_grad_bucket *bucket, cddp_group *group, cddp_future *future,
                       cddp_error *err)
{
    local *l = self;
    bool is_global = l->iteration < l->settings.start;
    CD_TRY(cd_hook_refuse_sparse(bucket, "post_local_sgd", err));
    if (is_global && bucket->is_last) l->iteration++;
    future->result = bucket->buffer;
    if (!is_global && !l->settings.gradient_allreduce) return CDDP_OK;
    cddp_group *over = is_global || l->subgroup == NULL ? group : l->subgroup;
    CD_TRY(bucket->buffer.device->divide(&bucket->buffer, &bucket->buffer, cddp_group_size(over),
                                         NULL, err));
    CD_TRY(cd_future_add_allreduce(future, bucket, &bucket->buffer, over, err));
    return CDDP_OK;
}

static uint32_t agreement(const void *self)
{
    const local *l = self;
    if (l->iteration < l->settings.start) return 0;
    return l->settings.gradient_allreduce ? (uint32_t)l->settings.subgroup_size : 1;
}

static uint64_t promise(const void *self, const cddp_grad_bucket *bucket)
{
    const local *l = self;
    bool reduces = l->iteration < l->settings.start || l->settings.gradient_allreduce;
    return reduces ? (uint64_t)cddp_tensor_numel(&bucket->buffer) *
                         cddp_dtype_bytes(bucket->buffer.dtype)
                   : 0;
}

static cddp_status save(void *self, const cddp_state_writer *writer, cddp_error *err)
{
    const local *l = self;
    const saved s = {.magic = MAGIC, .model = l->model, .iteration = l->iteration};
    cd_state_out out = {.writer = writer, .who = WHO};
    CD_TRY(cd_state_put(&out, &s, sizeof s, err));
    return CD_PASS(cd_state_put_seal(&out, err));
}

static cddp_status load(void *self, const cddp_state_reader *reader, cddp_error *err)
{
    local *l = self;
    saved s;
    cd_state_in in = {.reader = reader, .who = WHO};
    CD_TRY(cd_state_get(&in, &s, sizeof s, err));
    if (s.magic != MAGIC) return cd_fail(err, CDDP_E_CORRUPT, WHO ": this is no saved state of it");
    CD_TRY(cd_state_model_check(&l->model, &s.model, WHO, err));
    CD_TRY(cd_state_check_seal(&in, err));
    l->iteration = s.iteration;
    return CDDP_OK;
}

const cddp_hook cd_hook_post_local_sgd = {
    .size = sizeof(cddp_hook),
    .abi = CDDP_HOOK_ABI,
    .name = "post_local_sgd",
    .flags = CDDP_HOOK_LOSSY | CDDP_HOOK_STATEFUL,
    .create = create,
    .destroy = destroy,
    .run = run,
    .promise = promise,
    .save = save,
    .load = load,
    .agreement = agreement,
};
