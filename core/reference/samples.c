/* SPDX-License-Identifier: Apache-2.0 */
/* The position of a sample is found by walking the plan, one micro-step after the other: a rank is
** mostly asked for the place where it stands. */
#include "core/reference/samples.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/prng.h"
#include "core/reference/planned.h"

#include <math.h>

/* The stream from which the weights of train.loss = "dyadic" are drawn: 1, 1/2 or 1/4. */
#define WEIGHT_STREAM UINT64_C(0x77656967)

uint32_t cd_samples_count(const cd_micro *micro)
{
    return micro->skip != CDDP_SKIP_ALL ? micro->forwards * micro->samples : 0;
}

void cd_samples_init(cd_samples *samples, const cddp_plan *plan, const cddp_allocator *allocator)
{
    *samples = (cd_samples){.plan = plan, .allocator = allocator};
}

void cd_samples_fini(cd_samples *s)
{
    if (s->plan == NULL) return;
    cd_release(s->allocator, s->walks,
               s->walks != NULL ? (size_t)s->plan->world.size * sizeof *s->walks : 0);
    cd_release(s->allocator, s->order, s->order_capacity * sizeof *s->order);
    cd_release(s->allocator, s->ids, s->id_capacity * sizeof *s->ids);
    cd_release(s->allocator, s->epochs, s->epoch_capacity * sizeof *s->epochs);
    cd_release(s->allocator, s->weights, s->weight_capacity * sizeof *s->weights);
    *s = (cd_samples){.plan = NULL};
}

/* ---- what a rank consumed before ---- */

static bool is_behind(const cd_sample_walk *walk, cd_micro_place place)
{
    return walk->step != place.step ? walk->step > place.step : walk->micro_step > place.micro_step;
}

static cddp_status count_before(cd_samples *s, const cddp_plan_settings *settings,
                                cd_micro_place place, uint64_t *count, cddp_error *err)
{
    const size_t world = (size_t)s->plan->world.size;
    if (s->walks == NULL) s->walks = cd_allocate_array(s->allocator, world, sizeof *s->walks);
    if (s->walks == NULL) return cd_fail_memory(err, "the samples of %zu ranks", world);
    cd_sample_walk *walk = &s->walks[place.rank];
    if (is_behind(walk, place)) *walk = (cd_sample_walk){0};
    while (walk->step < place.step ||
           (walk->step == place.step && walk->micro_step < place.micro_step)) {
        cd_micro micro;
        cd_planned_micro(s->plan, settings,
                         (cd_micro_place){place.rank, walk->step, walk->micro_step}, &micro);
        walk->consumed += cd_samples_count(&micro);
        walk->micro_step++;
        if (walk->micro_step >= settings->train.micro_steps) {
            walk->micro_step = 0;
            walk->step++;
        }
    }
    *count = walk->consumed;
    return CDDP_OK;
}

/* ---- an epoch ---- */

/* Every permutation alike: the last place first, each drawn from those that are left. */
static cddp_status draw_order(cd_samples *s, uint64_t epoch, uint64_t size, cddp_error *err)
{
    if (s->order_size == size && s->order_epoch == epoch) return CDDP_OK;
    const cd_prng root = cd_prng_seed(s->plan->world.seed);
    cd_prng stream = cd_prng_split_index(&root, "shuffle", epoch);
    if (!cd_vec_grow(s->allocator, (void **)&s->order, &s->order_capacity, (size_t)size,
                     sizeof *s->order))
        return cd_fail_memory(err, "the order of %zu samples", (size_t)size);
    s->order_size = size;
    s->order_epoch = epoch;
    for (uint32_t i = 0; i < size; i++) s->order[i] = i;
    for (uint64_t left = size; left >= 2; left--) {
        const uint64_t drawn = cd_prng_below(&stream, left);
        const uint32_t last = s->order[left - 1];
        s->order[left - 1] = s->order[drawn];
        s->order[drawn] = last;
    }
    return CDDP_OK;
}

static cddp_status find_in_dataset(cd_samples *s, const cddp_plan_data *data, cd_micro_place place,
                                   uint64_t position, cd_sample *sample, cddp_error *err)
{
    const uint64_t world = s->plan->world.size, size = data->dataset_size;
    const uint64_t missing = size % world == 0 ? 0 : world - size % world;
    const uint64_t assigned =
        data->padding == CDDP_DATA_PADDING_WRAP ? size + missing : size - size % world;
    if (assigned == 0)
        return cd_fail(err, CDDP_E_CONFIG, "%u samples of an epoch are fewer than %u ranks",
                       (unsigned)size, (unsigned)world);
    const uint64_t of_rank = assigned / world;
    const uint64_t place_in_order = (position % of_rank * world + place.rank) % size;
    sample->epoch = position / of_rank;
    sample->id = (int64_t)place_in_order;
    if (data->shuffle) {
        CD_TRY(draw_order(s, sample->epoch, size, err));
        sample->id = s->order[place_in_order];
    }
    return CDDP_OK;
}

cddp_status cd_samples_find(cd_samples *s, const cddp_plan_settings *settings, cd_micro_place place,
                            uint32_t i, cd_sample *sample, cddp_error *err)
{
    const uint64_t world = s->plan->world.size, batch = s->plan->world.batch;
    uint64_t before = 0;
    CD_TRY(count_before(s, settings, place, &before, err));
    *sample = (cd_sample){.weight = 1.0};
    if (settings->data.dataset_size > 0)
        CD_TRY(find_in_dataset(s, &settings->data, place, before + i, sample, err));
    else if (batch > 0)
        sample->id = (int64_t)(place.step * batch + place.micro_step * world + place.rank);
    else
        sample->id = (int64_t)(place.rank + (before + i) * world);
    if (settings->train.loss == CDDP_LOSS_DYADIC) {
        const uint64_t drawn = cd_hash_mix(WEIGHT_STREAM, (uint64_t)sample->id);
        sample->weight = ldexp(1.0, -(int)(drawn % 3));
    }
    return CDDP_OK;
}

static bool make_room(cd_samples *s, size_t count)
{
    return cd_vec_grow(s->allocator, (void **)&s->ids, &s->id_capacity, count, sizeof *s->ids) &&
           cd_vec_grow(s->allocator, (void **)&s->epochs, &s->epoch_capacity, count,
                       sizeof *s->epochs) &&
           cd_vec_grow(s->allocator, (void **)&s->weights, &s->weight_capacity, count,
                       sizeof *s->weights);
}

cddp_status cd_samples_fill(cd_samples *s, const cddp_plan_settings *settings,
                            const cd_micro *micro, cd_micro_batch *batch, cddp_error *err)
{
    const uint32_t count = cd_samples_count(micro);
    if (!make_room(s, (size_t)count + 1))
        return cd_fail_memory(err, "the samples of rank %u", micro->place.rank);
    for (uint32_t i = 0; i < count; i++) {
        cd_sample sample;
        CD_TRY(cd_samples_find(s, settings, micro->place, i, &sample, err));
        s->ids[i] = sample.id;
        s->epochs[i] = (uint32_t)sample.epoch;
        s->weights[i] = sample.weight;
    }
    *batch = (cd_micro_batch){.count = count,
                              .epoch = count > 0 ? s->epochs[0] : 0,
                              .ids = s->ids,
                              .epochs = s->epochs,
                              .weights = s->weights};
    return CDDP_OK;
}
