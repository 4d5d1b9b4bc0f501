/* SPDX-License-Identifier: Apache-2.0 */
/* The sampler. A rank's position in its stream is the number of samples that it consumed before;
** these counts are summed once, so that any micro-step can be asked for in any order.
*/
#include "core/train/sampler.h"

#include "core/base/alloc.h"
#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/prng.h"

#include <string.h>

#define MEMORY_BLOCK_BYTES ((size_t)1 << 10)

struct cd_sampler {
    const cddp_plan *plan;
    cd_arena memory; /* of the sampler itself and its arrays */
    cddp_plan_settings settings;
    uint32_t rank;
    uint64_t *cursors; /* (place_count) samples consumed before each micro-step */
    size_t place_count;
    uint32_t *order; /* (dataset_size) permutation of order_epoch, when shuffled */
    uint64_t order_epoch;
    size_t capacity; /* samples of the largest micro-batch */
    int64_t *ids;
    uint32_t *epochs;
    double *weights;
};

static uint32_t micro_sample_count(const cd_micro *micro)
{
    return micro->skip == CDDP_SKIP_ALL ? 0 : micro->samples * micro->forwards;
}

static cddp_status sampler_fill(cd_sampler *s, cddp_error *err)
{
    uint64_t consumed = 0;
    for (size_t i = 0; i < s->place_count; i++) {
        const cd_micro_place place = {s->rank, (uint32_t)(i / s->settings.train.micro_steps),
                                      (uint32_t)(i % s->settings.train.micro_steps)};
        cd_micro micro;
        cd_micro_resolve(s->plan, &s->settings, place, &micro);
        const uint32_t count = micro_sample_count(&micro);
        s->cursors[i] = consumed;
        s->capacity = count > s->capacity ? count : s->capacity;
        consumed += count;
    }
    s->ids = cd_arena_array(&s->memory, s->capacity + 1, sizeof *s->ids);
    s->epochs = cd_arena_array(&s->memory, s->capacity + 1, sizeof *s->epochs);
    s->weights = cd_arena_array(&s->memory, s->capacity + 1, sizeof *s->weights);
    if (s->settings.data.shuffle && s->settings.data.dataset_size > 0)
        s->order = cd_arena_array(&s->memory, s->settings.data.dataset_size, sizeof *s->order);
    CD_TRY(cd_arena_check(&s->memory, err, "the samples of rank %u", s->rank));
    s->order_epoch = UINT64_MAX;
    return CDDP_OK;
}

cddp_status cd_sampler_create(const cddp_plan *plan, uint32_t rank, const cddp_allocator *allocator,
                              cd_sampler **sampler, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_arena memory;
    cd_arena_init(&memory, allocator, MEMORY_BLOCK_BYTES);
    cd_sampler *s = cd_arena_push(&memory, sizeof *s);
    CD_TRY(cd_arena_check(&memory, err, "a sampler"));
    s->memory = memory;
    s->plan = plan;
    s->rank = rank;
    CD_TRY_OUT(cddp_plan_rank_settings(plan, rank, &s->settings, err));
    s->place_count = (size_t)(s->settings.train.steps * s->settings.train.micro_steps);
    s->cursors = cd_arena_array(&s->memory, s->place_count, sizeof *s->cursors);
    CD_TRY_OUT(cd_arena_check(&s->memory, err, "%zu micro-steps", s->place_count));
    CD_TRY_OUT(sampler_fill(s, err));
    *sampler = s;
    s = NULL;
out:
    cd_sampler_destroy(s);
    return status;
}

/* The sample at a position of an epoch's order. */
static int64_t sample_at(cd_sampler *s, uint64_t epoch, uint64_t position)
{
    const uint64_t size = s->settings.data.dataset_size;
    position %= size; /* padding repeats samples from the start */
    if (s->order == NULL) return (int64_t)position;
    if (s->order_epoch != epoch) {
        const cd_prng root = cd_prng_seed(s->plan->world.seed);
        cd_prng prng = cd_prng_split_index(&root, "shuffle", epoch);
        for (uint64_t i = 0; i < size; i++) s->order[i] = (uint32_t)i;
        cd_prng_shuffle(&prng, s->order, (size_t)size);
        s->order_epoch = epoch;
    }
    return s->order[position];
}

/* 1, 1/2 or 1/4 by the sample alone, so that a sample weighs the same wherever it is used. */
static double dyadic_weight(int64_t id)
{
    return 1.0 / (double)(1u << (cd_hash_mix(0x77656967u, (uint64_t)id) % 3));
}

cddp_status cd_sampler_get(cd_sampler *s, const cd_micro *micro, cd_micro_batch *batch,
                           cddp_error *err)
{
    const size_t place =
        (size_t)micro->place.step * s->settings.train.micro_steps + micro->place.micro_step;
    const uint32_t count = micro_sample_count(micro);
    if (place >= s->place_count || count > s->capacity) {
        return cd_fail(err, CDDP_E_ARG, "step %u micro-step %u is not part of the plan",
                       micro->place.step, micro->place.micro_step);
    }
    const uint64_t world = s->plan->world.size, size = s->settings.data.dataset_size;
    const uint64_t quota = s->settings.data.padding == CDDP_DATA_PADDING_WRAP
                               ? (size + world - 1) / world
                               : size / world;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t cursor = s->cursors[place] + i;
        s->epochs[i] = size > 0 ? (uint32_t)(cursor / quota) : 0;
        s->ids[i] = size > 0 ? sample_at(s, cursor / quota, cursor % quota * world + s->rank)
                    : s->plan->world.batch > 0
                        ? (int64_t)(micro->place.step * s->plan->world.batch +
                                    micro->place.micro_step * world + s->rank)
                        : (int64_t)(cursor * world + s->rank);
        s->weights[i] = s->settings.train.loss == CDDP_LOSS_DYADIC ? dyadic_weight(s->ids[i]) : 1.0;
    }
    *batch = (cd_micro_batch){.count = count,
                              .epoch = count > 0 ? s->epochs[0] : 0,
                              .ids = s->ids,
                              .epochs = s->epochs,
                              .weights = s->weights};
    return CDDP_OK;
}

void cd_sampler_destroy(cd_sampler *s)
{
    if (s != NULL) cd_arena_fini(&s->memory);
}

void cd_samplers_init(cd_samplers *samplers, const cddp_plan *plan, const cddp_allocator *allocator)
{
    *samplers = (cd_samplers){.plan = plan, .allocator = allocator};
}

cddp_status cd_samplers_find(cd_samplers *samplers, uint32_t rank, cd_sampler **sampler,
                             cddp_error *err)
{
    const size_t world = (size_t)samplers->plan->world.size;
    if (samplers->items == NULL)
        samplers->items = cd_allocate_array(samplers->allocator, world, sizeof *samplers->items);
    if (samplers->items == NULL) return cd_fail_memory(err, "the samples of %zu ranks", world);
    if (samplers->items[rank] == NULL) {
        CD_TRY(cd_sampler_create(samplers->plan, rank, samplers->allocator, &samplers->items[rank],
                                 err));
    }
    *sampler = samplers->items[rank];
    return CDDP_OK;
}

void cd_samplers_fini(cd_samplers *samplers)
{
    if (samplers->items != NULL) {
        const size_t world = (size_t)samplers->plan->world.size;
        for (size_t i = 0; i < world; i++) cd_sampler_destroy(samplers->items[i]);
        cd_release(samplers->allocator, samplers->items, world * sizeof *samplers->items);
    }
    *samplers = (cd_samplers){.items = NULL};
}
