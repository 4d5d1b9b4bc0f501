/* SPDX-License-Identifier: Apache-2.0 */
/* hook_with_zero_step and its interleaved form.
**
**     hook_with_zero_step                        interleaved
**     all-reduce 0, 1, … while backward runs     all-reduce 0
**     then, bucket by bucket:                    all-reduce 1, await 0, step 0, broadcast 0
**         await, step, broadcast                 all-reduce 2, await 1, step 1, broadcast 1 …
**     await the broadcasts                       the last bucket at the end; await the broadcasts
**
** A bucket is its rank's alone: bucket b is rank b mod W's. With shard_buckets it is cut before a
** parameter with which a piece would reach a W-th of all elements; the smallest bucket is assigned
** first, each piece to the rank that has least so far, never two pieces of a bucket to one rank.
**
** Note [No update at first] Who steps what follows from the layout, which is final only when
** buckets were rebuilt. PyTorch learns it from the first backward over rebuilt buckets, so that two
** backwards update nothing, or three with static_graph, whose rebuild comes a backward later
** (ZRO-11). The same is done here: a training that is ported keeps its parameters. Where buckets
** are never rebuilt (find_unused_parameters) PyTorch never updates anything, and says nothing; here
** it is refused.
**
** Deviations: PyTorch steps a globally unused parameter with zeros, here it is left alone, as by
** any other optimizer. It wants NCCL, because over Gloo it may hang: there a broadcast is posted
** when the all-reduce before it has ended, on every rank at another time. Here the order of posts
** is the same on all ranks, so any backend will do.
**
** Limitations: not with join, whose shadows take no steps (ZRO-09); not with another group later
** on, which would part the steps from their state.
*/
#include "core/ddp/optimizers/zero_step.h"

#include "cddp/device.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/inject.h"
#include "core/ddp/reducer/reducer.h"
#include "core/hooks/hook.h"
#include "core/tensor/slices.h"

#include <string.h>

static const char *const name = "hook_with_zero_step";

static cddp_status check_fits(const cd_reducer *r, const cddp_optimizer_in_backward *optimizer,
                              cddp_error *err)
{
    if (r->config->find_unused_parameters && !r->static_graph)
        return cd_fail(err, CDDP_E_CONFIG,
                       "%s assigns rebuilt buckets to ranks. With find_unused_parameters buckets "
                       "are never rebuilt: it "
                       "would never update anything",
                       name);
    if (r->config->mixed_precision)
        return cd_fail(err, CDDP_E_CONFIG,
                       "%s beside mixed precision: both need the place behind the reduction", name);
    for (size_t v = 0; v < r->variable_count; v++) {
        if (cd_wrapped_variable(r->module, v)->expect_sparse)
            return cd_fail(err, CDDP_E_CONFIG, "%s: the gradient of '%s' is sparse (ZRO-08)", name,
                           cd_wrapped_variable(r->module, v)->name);
        if (optimizer->managed != NULL && !optimizer->managed[v]) /* ZRO-10 */
            return cd_fail(err, CDDP_E_CONFIG,
                           "%s steps whole buckets: one optimizer owns every parameter, '%s' too",
                           name, cd_wrapped_variable(r->module, v)->name);
    }
    return CDDP_OK;
}

static void give_works_back(cd_zero *z)
{
    for (size_t i = 0; i < z->assignment_count; i++) {
        cddp_work_release(z->assignments[i].work);
        z->assignments[i].work = NULL;
    }
    for (size_t b = 0; b < z->bucket_count && z->has_stepped != NULL; b++)
        z->has_stepped[b] = false;
}

static int64_t storage_of(int64_t numel) { return numel > 0 ? numel : 1; }

static void forget_assignments(cd_zero *z)
{
    give_works_back(z);
    for (size_t b = 0; z->flats != NULL && b < z->bucket_count; b++)
        if (z->flats[b].device != NULL)
            z->flats[b].device->release(z->flats[b].device, z->flats[b].dtype,
                                        storage_of(cddp_tensor_numel(&z->flats[b])),
                                        z->flats[b].storage);
    cd_arena_fini(&z->arena);
    *z = (cd_zero){.is_interleaved = z->is_interleaved, .shards_buckets = z->shards_buckets};
}

/* ---- who steps what ---- */

/* Elements of the variables themselves, as PyTorch counts them. */
static int64_t numel_of(const cd_reducer *r, const cd_bucket *bucket, uint32_t i)
{
    return r->buckets.lengths[bucket->first_slot + i] / (int64_t)bucket->flat_per_element;
}

static int64_t numel_of_bucket(const cd_reducer *r, const cd_bucket *bucket)
{
    int64_t numel = 0;
    for (uint32_t i = 0; i < bucket->variable_count; i++) numel += numel_of(r, bucket, i);
    return numel;
}

typedef struct assignment {
    uint32_t world;
    int64_t total;    /* elements of all buckets */
    int64_t *loads;   /* (world) */
    uint32_t *owners; /* (variable_count) by slot */
    bool *has_piece;  /* (world) of the bucket at hand */
    uint32_t *order;  /* (bucket_count) smallest first */
} assignment;

static void give(const cd_bucket *bucket, assignment *d, uint32_t first, uint32_t end,
                 int64_t numel)
{
    const uint32_t rank = cd_owners_least(d->loads, d->has_piece, d->world);
    d->has_piece[rank] = true;
    d->loads[rank] += numel;
    for (uint32_t i = first; i < end; i++) d->owners[bucket->first_slot + i] = rank;
}

/* Two neighbouring pieces reach a W-th together, so there may be up to 2W - 1 of them. PyTorch's
** assertion fails when every rank has one already; here what is left stays in one piece. */
static void assign_bucket(const cd_reducer *r, const cd_bucket *bucket, assignment *d)
{
    uint32_t first = 0, pieces = 1;
    int64_t numel = 0;
    memset(d->has_piece, 0, d->world * sizeof *d->has_piece);
    for (uint32_t i = 0; i < bucket->variable_count; i++) {
        int64_t own = numel_of(r, bucket, i);
        if ((numel + own) * d->world >= d->total && i > first && pieces < d->world) {
            give(bucket, d, first, i, numel);
            first = i;
            numel = 0;
            pieces++;
        }
        numel += own;
    }
    give(bucket, d, first, bucket->variable_count, numel);
}

/* Stable: of equally large buckets the first comes first. */
static void sort_by_size(const cd_reducer *r, assignment *d)
{
    for (uint32_t b = 0; b < r->buckets.bucket_count; b++) {
        int64_t numel = numel_of_bucket(r, &r->buckets.buckets[b]);
        uint32_t at = b;
        while (at > 0 && numel_of_bucket(r, &r->buckets.buckets[d->order[at - 1]]) > numel) {
            d->order[at] = d->order[at - 1];
            at--;
        }
        d->order[at] = b;
        d->total += numel;
    }
}

static void assign_all(const cd_reducer *r, assignment *d)
{
    const cd_bucket_set *set = &r->buckets;
    if (!r->zero->shards_buckets) {
        for (size_t b = 0; b < set->bucket_count; b++)
            for (uint32_t i = 0; i < set->buckets[b].variable_count; i++)
                d->owners[set->buckets[b].first_slot + i] = (uint32_t)(b % d->world);
        return;
    }
    sort_by_size(r, d);
    for (size_t i = 0; i < set->bucket_count; i++) assign_bucket(r, &set->buckets[d->order[i]], d);
}

static cddp_status make_flat(const cd_bucket *bucket, cddp_tensor *flat, cddp_error *err)
{
    void *storage;
    const cddp_device *device = bucket->flat.device;
    int64_t numel = cddp_tensor_numel(&bucket->flat);
    CD_TRY(device->allocate(device, bucket->flat.dtype, storage_of(numel), &storage, err));
    *flat = cddp_tensor_of(device, storage, 0, bucket->flat.dtype, &numel, 1);
    return CD_PASS(device->fill(flat, 0.0, NULL, err)); /* gaps between variables travel too */
}

static void add_assignment(cd_reducer *r, const cd_bucket *bucket, uint32_t first, uint32_t end,
                           uint32_t rank)
{
    cd_zero *z = r->zero;
    const cd_bucket_set *set = &r->buckets;
    uint32_t last = bucket->first_slot + end - 1;
    int64_t from = set->offsets[bucket->first_slot + first],
            to = set->offsets[last] + set->lengths[last];
    z->assignments[z->assignment_count++] =
        (cd_zero_assignment){.first = first,
                             .count = end - first,
                             .rank = rank,
                             .flat = cddp_tensor_slice(&z->flats[bucket->index], from, to - from)};
}

/* Adjacent variables of one owner are one assignment; a bucket's are sent in the order of their
** ranks. */
static void collect(cd_reducer *r, const cd_bucket *bucket, const uint32_t *owners)
{
    cd_zero *z = r->zero;
    size_t start = z->starts[bucket->index] = z->assignment_count;
    const uint32_t *own = owners + bucket->first_slot;
    for (uint32_t first = 0, end; first < bucket->variable_count; first = end) {
        for (end = first + 1; end < bucket->variable_count && own[end] == own[first];) end++;
        add_assignment(r, bucket, first, end, own[first]);
    }
    for (size_t i = start + 1; i < z->assignment_count; i++) {
        cd_zero_assignment moved = z->assignments[i];
        size_t at = i;
        while (at > start && z->assignments[at - 1].rank > moved.rank) {
            z->assignments[at] = z->assignments[at - 1];
            at--;
        }
        z->assignments[at] = moved;
    }
}

static cddp_status allocate(cd_reducer *r, cddp_error *err)
{
    cd_zero *z = r->zero;
    const size_t n = r->variable_count, b = r->buckets.bucket_count;
    const size_t bytes =
        CD_ARENA_BYTES(n * sizeof *z->assignments) + CD_ARENA_BYTES((b + 1) * sizeof *z->starts) +
        CD_ARENA_BYTES(b * sizeof *z->flats) + CD_ARENA_BYTES(b * sizeof *z->has_stepped);
    cd_arena_init(&z->arena, r->allocator, 0);
    if (!cd_arena_reserve(&z->arena, bytes))
        return cd_fail_memory(err, "the owners of %zu buckets", b);
    z->assignments = cd_arena_push(&z->arena, n * sizeof *z->assignments);
    z->starts = cd_arena_push(&z->arena, (b + 1) * sizeof *z->starts);
    z->flats = cd_arena_push(&z->arena, b * sizeof *z->flats);
    z->has_stepped = cd_arena_push(&z->arena, b * sizeof *z->has_stepped);
    z->bucket_count = b;
    for (size_t i = 0; i < b; i++) CD_TRY(make_flat(&r->buckets.buckets[i], &z->flats[i], err));
    return CDDP_OK;
}

static cddp_status assign(cd_reducer *r, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_arena scratch;
    const size_t n = r->variable_count, buckets = r->buckets.bucket_count;
    assignment d = {.world = cddp_group_size(r->group)};
    const size_t bytes =
        CD_ARENA_BYTES(d.world * sizeof *d.loads) + CD_ARENA_BYTES(d.world * sizeof *d.has_piece) +
        CD_ARENA_BYTES(n * sizeof *d.owners) + CD_ARENA_BYTES(buckets * sizeof *d.order);
    cd_arena_init(&scratch, r->allocator, 0);
    if (!cd_arena_reserve(&scratch, bytes))
        return cd_fail_memory(err, "the owners of %zu buckets among %u ranks", buckets, d.world);
    d.loads = cd_arena_push(&scratch, d.world * sizeof *d.loads);
    d.has_piece = cd_arena_push(&scratch, d.world * sizeof *d.has_piece);
    d.owners = cd_arena_push(&scratch, n * sizeof *d.owners);
    d.order = cd_arena_push(&scratch, buckets * sizeof *d.order);
    CD_TRY_OUT(allocate(r, err));
    assign_all(r, &d);
    if (n > 1)
        CD_INJECT_EXCHANGE("zero.owners", cddp_group_world_rank(r->group)->rank, 0, d.owners[0],
                           d.owners[n - 1]);
    for (size_t b = 0; b < buckets; b++) collect(r, &r->buckets.buckets[b], d.owners);
    r->zero->starts[buckets] = r->zero->assignment_count;
    r->zero->is_assigned = true;
out:
    /* The next backward can make them again. */
    if (status != CDDP_OK) forget_assignments(r->zero);
    cd_arena_fini(&scratch);
    return status;
}

int64_t cd_zero_owner(const cd_reducer *r, size_t variable)
{
    const cd_zero *z = r->zero;
    if (!z->is_assigned) return -1;
    const cd_bucket *bucket = &r->buckets.buckets[r->buckets.bucket_of[variable]];
    uint32_t place = r->buckets.slot_of[variable] - bucket->first_slot;
    for (size_t i = z->starts[bucket->index]; i < z->starts[bucket->index + 1]; i++)
        if (place - z->assignments[i].first < z->assignments[i].count)
            return z->assignments[i].rank;
    return -1;
}

/* ---- a backward ---- */

/* The gradient borrows the slice for the step: in the interleaved form its average has not been
** written back yet. */
static cddp_status step_variable(cd_reducer *r, size_t variable, const cddp_tensor *result,
                                 cddp_error *err)
{
    cddp_grad *grad = cd_wrapped_variable(r->module, variable)->grad;
    cddp_grad kept = *grad;
    grad->kind = CDDP_GRAD_DENSE;
    grad->value = cd_bucket_set_view_of(&r->buckets, variable, result);
    cddp_status status = r->optimizer.step(r->optimizer.context, variable, grad, err);
    grad->kind = kept.kind;
    grad->value = kept.value;
    return status;
}

/* Parameters into the vector that travels, or out of it. */
static cddp_status move(const cd_reducer *r, const cd_bucket *bucket, const cd_zero_assignment *a,
                        bool out, cddp_error *err)
{
    for (uint32_t i = a->first; i < a->first + a->count; i++) {
        uint32_t v = r->buckets.layout.indices[bucket->first_slot + i];
        const cddp_tensor parameter =
            cd_packed_tensor_get(&cd_wrapped_variable(r->module, v)->tensor);
        const cddp_tensor travelling =
            cd_bucket_set_view_of(&r->buckets, v, &r->zero->flats[bucket->index]);
        CD_TRY(parameter.device->copy(out ? &parameter : &travelling,
                                      out ? &travelling : &parameter, NULL, err));
    }
    return CDDP_OK;
}

/* A wrapper's result has the dtype of its wire (HK-05): its bucket takes it, as for views. */
static cddp_status step_own(cd_reducer *r, const cd_bucket *bucket, const cd_zero_assignment *a,
                            cddp_error *err)
{
    const cddp_tensor *result = &bucket->future.result, *flat = &bucket->flat;
    if (result->dtype != flat->dtype) {
        CD_TRY(flat->device->copy(flat, result, NULL, err));
        result = flat;
    }
    for (uint32_t i = a->first; i < a->first + a->count; i++) {
        uint32_t v = r->buckets.layout.indices[bucket->first_slot + i];
        if (!cd_reducer_is_unused(r, v)) CD_TRY(step_variable(r, v, result, err));
    }
    return CD_PASS(move(r, bucket, a, false, err));
}

/* Once per backward; a second call does nothing. */
static cddp_status step_bucket(cd_reducer *r, const cd_bucket *bucket, cddp_error *err)
{
    cd_zero *z = r->zero;
    if (!z->is_assigned || z->has_stepped[bucket->index]) return CDDP_OK;
    z->has_stepped[bucket->index] = true;
    for (size_t i = z->starts[bucket->index]; i < z->starts[bucket->index + 1]; i++) {
        cd_zero_assignment *a = &z->assignments[i];
        if (a->rank == cddp_group_rank(r->group)) CD_TRY(step_own(r, bucket, a, err));
        if (cddp_tensor_numel(&a->flat) > 0)
            CD_TRY(cddp_group_broadcast(r->group, &a->flat, a->rank, &a->work, err));
    }
    return CDDP_OK;
}

/* Interleaved: before the reducer goes on after launching a bucket, the one before it is awaited,
** stepped and sent. */
static cddp_status step_previous(cd_reducer *r, cd_bucket *launched, cddp_error *err)
{
    if (!r->zero->is_interleaved || !r->zero->is_assigned || launched->index == 0) return CDDP_OK;
    cd_bucket *previous = &r->buckets.buckets[launched->index - 1];
    if (previous->is_skipped) return CDDP_OK;
    CD_TRY(cd_reducer_complete_future(r, previous, err));
    return CD_PASS(step_bucket(r, previous, err));
}

/* Nothing travelled for a bucket that was left out (UNU-14). */
static cddp_status take_bucket(cd_reducer *r, const cd_bucket *bucket, cddp_error *err)
{
    cd_zero *z = r->zero;
    if (!z->has_stepped[bucket->index]) return CDDP_OK;
    z->has_stepped[bucket->index] = false;
    for (size_t i = z->starts[bucket->index]; i < z->starts[bucket->index + 1]; i++) {
        cd_zero_assignment *a = &z->assignments[i];
        cddp_work *work = a->work;
        a->work = NULL;
        if (work != NULL) CD_TRY(cddp_work_wait(work, 0, err));
        if (a->rank != cddp_group_rank(r->group)) CD_TRY(move(r, bucket, a, true, err));
    }
    return CDDP_OK;
}

static cddp_status complete(cd_reducer *r, cd_bucket *bucket, const cddp_tensor *result,
                            cddp_error *err)
{
    (void)result;
    return CD_PASS(step_bucket(r, bucket, err));
}

/* Takes what the others stepped; or, the first time that buckets are rebuilt, assigns them. See
** Note [No update at first] */
static cddp_status end_backward(cd_reducer *r, cddp_error *err)
{
    if (!r->has_rebuilt) return CDDP_OK;
    if (!r->zero->is_assigned) return CD_PASS(assign(r, err));
    for (size_t b = 0; b < r->buckets.bucket_count; b++)
        CD_TRY(take_bucket(r, &r->buckets.buckets[b], err));
    return CDDP_OK;
}

static void abandon(cd_reducer *r) { give_works_back(r->zero); }
static void fini(cd_reducer *r) { forget_assignments(r->zero); }

static const cd_bucket_consumer steps_shards = {.launched = step_previous,
                                                .complete = complete,
                                                .end = end_backward,
                                                .abandon = abandon,
                                                .fini = fini};

cddp_status cd_zero_attach(cd_reducer *r, const cddp_optimizer_in_backward *optimizer,
                           cddp_error *err)
{
    CD_TRY(check_fits(r, optimizer, err));
    r->zero = cd_arena_push(&r->arena, sizeof *r->zero);
    if (r->zero == NULL) return cd_fail_memory(err, "%s", name);
    *r->zero = (cd_zero){.shards_buckets = optimizer->shard_buckets,
                         .is_interleaved =
                             optimizer->overlap == CDDP_OVERLAP_HOOK_WITH_ZERO_STEP_INTERLEAVED};
    cd_reducer_add_consumer(r, &steps_shards, false);
    return CDDP_OK;
}
