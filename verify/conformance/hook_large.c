/* SPDX-License-Identifier: Apache-2.0 */
/* One bucket with one parameter through a hook, step by step, on the simulator. What the numbers
** must be is hook_battery.c's. */
#include "verify/conformance/hook_large.h"

#include "verify/conformance/hook_judged.h"
#include "verify/worlds/simulated.h"
#include "verify/conformance/hook_trial_parts.h"
#include "core/base/error.h"
#include "core/hooks/hook.h"
#include "core/hooks/host.h"
#include "core/tensor/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 8 /* elements before and after a bucket */
#define UNTOUCHED 0xa5

typedef struct run {
    const cd_trial *trial;
    const cd_large *large;
    cd_trial_result *result;
    cddp_backend backend;
    cd_statements statements;
    cd_judged *judged;
    unsigned char *rooms; /* (ranks) each a bucket and its guards */
    unsigned char *model; /* (numel) zeros, of all ranks */
    size_t room_bytes;
} run;

/* One of a few: the ends, the middle, and both sides of the largest power of two. */
static bool is_chosen(int64_t numel, int64_t element)
{
    int64_t power = 1;
    while (power * 2 < numel) power *= 2;
    return element == 0 || element == numel / 3 || element == power - 1 || element == power ||
           element + 1 == numel;
}

double cd_large_gradient(const cd_large *large, uint32_t rank, int64_t element)
{
    uint64_t mixed = ((uint64_t)element + 1) * UINT64_C(0x9e3779b97f4a7c15);
    mixed ^= mixed >> 29;
    if (large->is_sparse && !is_chosen(large->numel, element)) return 0.0;
    const double magnitude = (1.0 + (double)(mixed >> 20 & 3) / 4.0) * (1.0 + rank % 2);
    return (mixed >> 40 & 1) != 0 ? magnitude : -magnitude;
}

double cd_large_mean(const cd_trial *trial, const cd_large *large, int64_t element)
{
    double sum = 0.0;
    for (uint32_t k = 0; k < trial->ranks; k++) sum += cd_large_gradient(large, k, element);
    return sum / trial->ranks;
}

static double *place(const cd_trial *trial, const cd_large *large, uint32_t rank, uint32_t step)
{
    return large->out + ((size_t)rank * trial->steps + step) * (size_t)large->numel;
}

double cd_large_out(const cd_trial *trial, const cd_large *large, uint32_t rank, uint32_t step,
                    int64_t element)
{
    return place(trial, large, rank, step)[element];
}

/* ---- one step ---- */

static void note(const run *r, char *text, size_t bytes, uint32_t rank, uint32_t step,
                 const char *what)
{
    if (text[0] == '\0')
        snprintf(text, bytes, "rank %u of %u, step %u: %s", rank, r->trial->ranks, step, what);
}

static void fill(const run *r, uint32_t rank, uint32_t step, const cddp_tensor *buffer)
{
    unsigned char *room = buffer->storage;
    const size_t guard = GUARD * cddp_dtype_bytes(r->trial->dtype);
    memset(room, UNTOUCHED, guard);
    memset(room + r->room_bytes - guard, UNTOUCHED, guard);
    if (step == 0)
        for (int64_t e = 0; e < r->large->numel; e++)
            cd_host_set(buffer, e, cd_large_gradient(r->large, rank, e));
    else
        memset(room + guard, 0, r->room_bytes - 2 * guard);
}

static void look_for_damage(const run *r, uint32_t rank, uint32_t step, const unsigned char *room)
{
    const size_t guard = GUARD * cddp_dtype_bytes(r->trial->dtype);
    char *damage = r->result->damage;
    for (size_t i = 0; i < guard; i++) {
        if (room[i] != UNTOUCHED)
            note(r, damage, sizeof r->result->damage, rank, step, "wrote before its bucket");
        if (room[r->room_bytes - 1 - i] != UNTOUCHED)
            note(r, damage, sizeof r->result->damage, rank, step, "wrote behind its bucket");
    }
}

/* False: it is no result. */
static bool take_result(const run *r, uint32_t rank, uint32_t step, const cddp_tensor *result)
{
    char text[120];
    double *out = place(r->trial, r->large, rank, step);
    if (result->device == NULL) {
        note(r, r->result->shape, sizeof r->result->shape, rank, step,
             "completes without a result");
        return false;
    }
    const int64_t numel = cddp_tensor_numel(result);
    if (numel != r->large->numel || !cddp_dtype_is_float(result->dtype)) {
        snprintf(text, sizeof text, "the result has %lld elements of %s", (long long)numel,
                 cddp_dtype_name(result->dtype));
        note(r, r->result->shape, sizeof r->result->shape, rank, step, text);
        return false;
    }
    for (int64_t e = 0; e < numel; e++) out[e] = cd_host_get(result, e);
    return true;
}

static void count_promise(const run *r, const void *self, const cddp_grad_bucket *bucket)
{
    const cddp_hook *hook = r->trial->hook;
    uint64_t promised = hook->promise != NULL ? hook->promise(self, bucket) : CDDP_PROMISE_NOTHING,
             *all = &r->result->promised;
    *all = promised == CDDP_PROMISE_NOTHING || *all == CDDP_PROMISE_NOTHING ? CDDP_PROMISE_NOTHING
                                                                            : *all + promised;
}

static cddp_status one_step(const run *r, cddp_group *group, void *self, uint32_t step,
                            cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const uint32_t rank = (uint32_t)cddp_group_rank(group);
    const cd_trial *t = r->trial;
    const uint32_t id = 0;
    const int64_t numel = r->large->numel, offset = 0;
    const cddp_tensor buffer =
        cddp_tensor_of(cddp_device_cpu(), r->rooms + (size_t)rank * r->room_bytes, GUARD, t->dtype,
                       &numel, 1);
    const cddp_tensor model = cddp_tensor_of(cddp_device_cpu(), r->model, 0, t->dtype, &numel, 1);
    cddp_grad_bucket bucket = {.size = sizeof bucket,
                               .bucket_count = 1,
                               .is_last = true,
                               .buffer = buffer,
                               .parameter_count = 1,
                               .parameter_ids = &id,
                               .offsets = &offset,
                               .lengths = &numel,
                               .gradients = &buffer,
                               .parameters = &model};
    cddp_future future = {.size = sizeof future};
    bool is_complete = false;
    const uint64_t bytes = cddp_group_bytes(group);
    fill(r, rank, step, &buffer);
    if (rank == 0) count_promise(r, self, &bucket);
    if (rank == 0 && t->hook->agreement != NULL)
        r->result->agreement[step] = t->hook->agreement(self);
    CD_TRY_OUT(cd_judged_launch(r->judged, rank, &bucket, err));
    cd_trial_enter(t, "run", rank, step);
    CD_TRY_OUT(t->hook->run(self, &bucket, group, &future, err));
    cd_trial_enter(t, "a stage", rank, step);
    while (!is_complete) CD_TRY_OUT(cd_future_advance(&future, self, &bucket, &is_complete, err));
    if (take_result(r, rank, step, &future.result))
        CD_TRY_OUT(cd_judged_deliver(r->judged, rank, &bucket, &future.result, err));
    cd_judged_end_step(r->judged, rank, step, cddp_group_bytes(group) - bytes);
    look_for_damage(r, rank, step, buffer.storage);
out:
    if (status != CDDP_OK) cd_future_abandon(&future);
    return status;
}

static cddp_status rank_program(cddp_rank *rank, void *argument, cddp_error *err)
{
    run *r = argument;
    const cd_trial *t = r->trial;
    static const uint32_t members[CD_TRIAL_RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7};
    cddp_group_options options = {.size = sizeof options,
                                  .backend = &r->backend,
                                  .rank = rank,
                                  .works_max = 64,
                                  .spec = {.size = sizeof options.spec,
                                           .name = "trial",
                                           .group_rank = rank->rank,
                                           .group_size = rank->world_size,
                                           .members = members}};
    cddp_group *group = NULL;
    cddp_tracer *tracer = NULL;
    void *self = NULL;
    cddp_status status = CDDP_OK;
    CD_TRY_OUT(
        cddp_tracer_create(rank, cd_judged_sink(r->judged), CDDP_TRACE_DIGEST, &tracer, err));
    options.tracer = tracer;
    CD_TRY_OUT(cddp_group_create(&options, &group, err));
    const cddp_tensor form =
        cddp_tensor_of(cddp_device_cpu(), NULL, 0, t->dtype, &r->large->numel, 1);
    CD_TRY_OUT(cd_judged_open(r->judged, &(cd_judged_rank){rank, tracer, &form, 1}, err));
    const cddp_hook_context context = {.size = sizeof context,
                                       .group = group,
                                       .allocator = rank->allocator,
                                       .tracer = tracer,
                                       .options = t->options,
                                       .inner = t->inner,
                                       .divide_factor = t->ranks,
                                       .parameter_count = 1};
    cd_trial_enter(t, "create", rank->rank, 0);
    if (t->hook->create != NULL) CD_TRY_OUT(t->hook->create(&context, &self, err));
    r->result->created = true;
    for (uint32_t step = 0; step < t->steps; step++) {
        cddp_tracer_set_step(tracer, step, 0);
        CD_TRY_OUT(one_step(r, group, self, step, err));
    }
    if (rank->rank == 0) r->result->bytes = cddp_group_bytes(group);
out:
    if (self != NULL && t->hook->destroy != NULL) t->hook->destroy(self);
    cddp_group_destroy(group);
    cddp_tracer_destroy(tracer);
    return status;
}

cddp_status cd_large_run(const cd_trial *trial, const cd_large *large, cd_trial_result *result,
                         cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_simulated world = {.sim = NULL};
    cddp_rank_result ends[CD_TRIAL_RANKS_MAX];
    memset(result, 0, sizeof *result);
    memset(ends, 0, sizeof ends);
    run *r = calloc(1, sizeof *r);
    if (r == NULL) return cd_fail_memory(err, "a trial");
    r->trial = trial;
    r->large = large;
    r->result = result;
    r->room_bytes = ((size_t)large->numel + 2 * GUARD) * cddp_dtype_bytes(trial->dtype);
    cd_statements_init(&r->statements, trial, result);
    CD_TRY_OUT(cd_judged_create(trial, result, &r->statements.sink, &r->judged, err));
    r->rooms = malloc(trial->ranks * r->room_bytes);
    r->model = calloc(1, r->room_bytes);
    if (r->rooms == NULL || r->model == NULL) {
        status = cd_fail_memory(err, "a bucket of %lld elements", (long long)large->numel);
        goto out;
    }
    cd_sim_config config = CD_SIM_CONFIG_INIT;
    config.world_size = trial->ranks;
    config.completion = CD_SIM_COMPLETE_AT_ONCE;
    CD_TRY_OUT(cd_simulated_begin(&world, &config, err));
    r->backend = world.backend;
    CD_TRY_OUT(cd_sim_ops()->launch(world.sim, rank_program, r, ends, err));
    CD_TRY_OUT(cd_trial_take_ends(trial, ends, result, err));
out:
    cd_simulated_end(&world);
    cd_judged_destroy(r->judged);
    free(r->rooms);
    free(r->model);
    free(r);
    return status;
}
