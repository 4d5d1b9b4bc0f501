/* SPDX-License-Identifier: Apache-2.0 */
/* Slots (state per parameter) and jobs (work memory per bucket) of the low-rank engine.
**
** Memory grows at the first use of a parameter or a bucket, and when the rank schedule asks for
** more. A steady iteration allocates nothing.
*/
#include "cddp/device.h"
#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/hooks/hook.h"
#include "core/hooks/low_rank_parts.h"

#include <string.h>

/* Memory of at least numel elements like `like`, as a flat view of exactly numel. */
static cddp_status flat_reserve(const cddp_tensor *like, int64_t numel, cddp_tensor *flat,
                                int64_t *capacity, cddp_error *err)
{
    cd_flat f = {*flat, *capacity};
    cddp_status status = cd_flat_reserve(&f, like->device, like->dtype, numel, err);
    *flat = f.tensor;
    *capacity = f.capacity;
    return status;
}

static void flat_release(cddp_tensor *flat, int64_t *capacity)
{
    cd_flat f = {*flat, *capacity};
    cd_flat_release(&f);
    *capacity = 0;
}

static int64_t error_capacity(const cd_low_rank_slot *slot)
{
    if (slot->error.device == NULL) return 0;
    int64_t numel = cddp_tensor_numel(&slot->error);
    return numel > 0 ? numel : 1;
}

/* The lists are kept for the next bucket. */
static void job_release(cd_low_rank_job *job)
{
    flat_release(&job->p, &job->p_capacity);
    flat_release(&job->q, &job->q_capacity);
    flat_release(&job->uncompressed, &job->rest_capacity);
    flat_release(&job->square, &job->square_capacity);
    *job = (cd_low_rank_job){.matrices = job->matrices,
                             .matrix_capacity = job->matrix_capacity,
                             .rest = job->rest,
                             .rest_places = job->rest_places};
}

cd_low_rank *cd_low_rank_make(const cddp_allocator *allocator, const char *name)
{
    cd_arena arena;
    cd_arena_init(&arena, allocator, CD_HOOK_BLOCK_BYTES);
    cd_low_rank *s = cd_arena_push(&arena, sizeof *s);
    if (s == NULL) return NULL;
    s->name = name;
    s->arena = arena;
    cd_arena_init(&s->slot_memory, allocator, CD_HOOK_BLOCK_BYTES);
    return s;
}

void cd_low_rank_destroy(void *self)
{
    cd_low_rank *s = self;
    if (s == NULL) return;
    for (size_t i = 0; i < s->slot_count; i++) {
        int64_t capacity = error_capacity(&s->slots[i]);
        flat_release(&s->slots[i].error, &capacity);
        flat_release(&s->slots[i].q, &s->slots[i].q_capacity);
        flat_release(&s->slots[i].first, &s->slots[i].first_capacity);
    }
    for (size_t i = 0; i < s->job_count; i++) job_release(&s->jobs[i]);
    cd_host_memory_release(s->arena.allocator, &s->basis);
    cd_host_memory_release(s->arena.allocator, &s->staging);
    cd_arena_fini(&s->slot_memory);
    cd_arena_fini(&s->arena);
}

cddp_status cd_low_rank_slots_reserve(cd_low_rank *s, size_t count, cddp_error *err)
{
    if (count <= s->slot_count) return CDDP_OK;
    if (!cd_arena_grow(&s->slot_memory, (void **)&s->slots, &s->slot_capacity, count,
                       sizeof *s->slots))
        return cd_fail_memory(err, "%zu parameters of %s", count, s->name);
    s->slot_count = count;
    return CDDP_OK;
}

/* A loaded state stays in host memory until the gradient shows its device. */
static cddp_status slot_move(cd_low_rank_slot *slot, const cddp_tensor *gradient, cddp_error *err)
{
    cddp_tensor moved = {0};
    int64_t numel = cddp_tensor_numel(gradient), capacity = 0, loaded = error_capacity(slot);
    CD_TRY(flat_reserve(gradient, numel, &moved, &capacity, err));
    cddp_status status =
        gradient->device->write(&moved, slot->error.storage,
                                (size_t)numel * cddp_dtype_bytes(moved.dtype), err);
    flat_release(status == CDDP_OK ? &slot->error : &moved,
                 status == CDDP_OK ? &loaded : &capacity);
    if (status == CDDP_OK) slot->error = moved;
    return status;
}

cddp_status cd_low_rank_slot_find(cd_low_rank *s, uint32_t parameter, const cddp_tensor *gradient,
                                  cd_low_rank_slot **found, cddp_error *err)
{
    CD_TRY(cd_low_rank_slots_reserve(s, (size_t)parameter + 1, err));
    cd_low_rank_slot *slot = &s->slots[parameter];
    int64_t numel = cddp_tensor_numel(gradient), capacity = 0;
    if (slot->error.device == NULL) {
        CD_TRY(flat_reserve(gradient, numel, &slot->error, &capacity, err));
        CD_TRY(gradient->device->fill(&slot->error, 0.0, NULL, err));
    } else if (slot->loaded && cd_host_is_away(gradient->device) &&
               slot->error.dtype == gradient->dtype && cddp_tensor_numel(&slot->error) == numel) {
        CD_TRY(slot_move(slot, gradient, err));
    } else if (cddp_tensor_numel(&slot->error) != numel || slot->error.dtype != gradient->dtype) {
        return cd_fail(err, CDDP_E_MISMATCH,
                       "%s: the %s state of parameter %u is for %lld elements of %s, its gradient "
                       "has %lld of %s",
                       s->name, slot->loaded ? "loaded" : "kept", parameter,
                       (long long)cddp_tensor_numel(&slot->error),
                       cddp_dtype_name(slot->error.dtype), (long long)numel,
                       cddp_dtype_name(gradient->dtype));
    }
    slot->loaded = false;
    *found = slot;
    return CDDP_OK;
}

cddp_status cd_low_rank_slot_keep_q(cd_low_rank_slot *slot, const cddp_tensor *q, int64_t rank,
                                    cddp_error *err)
{
    int64_t numel = cddp_tensor_numel(q);
    slot->q_numel = 0;
    CD_TRY(flat_reserve(q, numel, &slot->q, &slot->q_capacity, err));
    CD_TRY(q->device->copy(&slot->q, q, NULL, err));
    slot->q_numel = numel;
    slot->q_rank = rank;
    return CDDP_OK;
}

cddp_status cd_low_rank_slot_keep_first(cd_low_rank_slot *slot, const cddp_tensor *q,
                                        cddp_error *err)
{
    int64_t numel = cddp_tensor_numel(q);
    slot->first_numel = 0;
    CD_TRY(flat_reserve(q, numel, &slot->first, &slot->first_capacity, err));
    CD_TRY(q->device->copy(&slot->first, q, NULL, err));
    slot->first_numel = numel;
    return CDDP_OK;
}

cddp_status cd_low_rank_job_find(cd_low_rank *s, const cddp_grad_bucket *bucket,
                                 cd_low_rank_job **found, cddp_error *err)
{
    size_t key = bucket->parameter_ids[0];
    if (key >= s->job_count) {
        if (!cd_arena_grow(&s->arena, (void **)&s->jobs, &s->job_capacity, key + 1,
                           sizeof *s->jobs))
            return cd_fail_memory(err, "%zu buckets of %s", key + 1, s->name);
        s->job_count = key + 1;
    }
    cd_low_rank_job *job = &s->jobs[key];
    size_t count = bucket->parameter_count > 0 ? bucket->parameter_count : 1;
    if (!cd_arena_grow(&s->arena, (void **)&job->matrices, &job->matrix_capacity, count,
                       sizeof *job->matrices) ||
        !cd_arena_grow(&s->arena, (void **)&job->rest, &job->rest_places, count, sizeof *job->rest))
        return cd_fail_memory(err, "%zu matrices of %s", count, s->name);
    *found = job;
    return CDDP_OK;
}

cddp_status cd_low_rank_job_reserve(cd_low_rank *s, cd_low_rank_job *job,
                                    const cddp_grad_bucket *bucket, cddp_error *err)
{
    const cddp_tensor *like = &bucket->buffer;
    CD_TRY(flat_reserve(like, job->p_numel, &job->p, &job->p_capacity, err));
    CD_TRY(flat_reserve(like, job->q_numel, &job->q, &job->q_capacity, err));
    if (s->batched) {
        int64_t side = job->matrices[0].rows;
        CD_TRY(flat_reserve(like, side * side, &job->square, &job->square_capacity, err));
    } else {
        CD_TRY(flat_reserve(like, job->rest_numel, &job->uncompressed, &job->rest_capacity, err));
    }
    for (uint32_t i = 0; i < job->matrix_count; i++)
        CD_TRY(cd_low_rank_slots_reserve(s, (size_t)job->matrices[i].parameter + 1, err));
    return CDDP_OK;
}

/* After a rebuild, work memory is made anew, and state per parameter stays. The batched form drops
** its Q, whose bucket no longer exists. */
cddp_status cd_low_rank_rebuilt(void *self, uint32_t bucket_count, cddp_error *err)
{
    cd_low_rank *s = self;
    (void)bucket_count;
    (void)err;
    for (size_t i = 0; i < s->job_count; i++) job_release(&s->jobs[i]);
    for (size_t i = 0; i < s->slot_count && s->batched; i++) {
        s->slots[i].q_numel = 0;
        cd_low_rank_factor_forget(&s->slots[i]);
    }
    return CDDP_OK;
}

cddp_status cd_low_rank_set_factor(void *self, uint32_t parameter, const double *q, int64_t numel,
                                   cddp_error *err)
{
    cd_low_rank *s = self;
    CD_TRY(cd_low_rank_slots_reserve(s, (size_t)parameter + 1, err));
    cd_low_rank_slot *slot = &s->slots[parameter];
    int64_t rank = (int64_t)s->settings.rank;
    if (numel <= 0 || numel % rank != 0)
        return cd_fail(err, CDDP_E_ARG, "%s: %lld numbers are no factor of rank %lld", s->name,
                       (long long)numel, (long long)rank);
    int64_t bytes = numel;
    void *storage = NULL;
    const cddp_device *d = cddp_device_cpu();
    flat_release(&slot->q, &slot->q_capacity);
    cd_low_rank_factor_forget(slot);
    CD_TRY(d->allocate(d, CDDP_F64, numel, &storage, err));
    slot->q_capacity = numel;
    slot->q = cddp_tensor_of(d, storage, 0, CDDP_F64, &bytes, 1);
    CD_TRY(d->write(&slot->q, q, (size_t)numel * sizeof *q, err));
    slot->q_numel = numel;
    slot->q_rank = rank;
    return CDDP_OK;
}
