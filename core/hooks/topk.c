/* SPDX-License-Identifier: Apache-2.0 */
/* The topk hook: the k largest elements of every bucket are sent, the rest is owed (error
** feedback).
**
**   run      corrected = gradient + owed; the k elements of largest magnitude are chosen; the rest
**            is owed → all-gather of indices (i32), all-gather of values (the bucket's dtype)
**   scatter  values ÷ W; result = 0; result[index] += value, ranks 0, 1, 2, … in order
**
** The choice is a pure function of the values: larger magnitude first, NaN above everything, equal
** magnitudes by the smaller index. k is the same on every rank, so shares are equal. The order of
** addition is fixed as written above, so all ranks compute the same bits. The division comes before
** the sum, as in the all-reduce hooks (GRD-17): W gradients of half the range of f16 have a mean,
** but no sum.
**
** Laws, stated in the trace: per rank gradient + old debt = sent + new debt, element by element;
** what is sent is sent exactly, so that only the addition of the debt rounds. Summed over the ranks
** this is the telescoping of the mean. Nothing that stays is larger than what is sent. Over all
** ranks: the result is the mean of what was sent (cd_mean_law).
**
** Invariants:
**   T1  the chosen indices are strictly increasing, so that nothing is sent twice;
**   T2  an element is sent or owed, never both.
**
** Not in PyTorch. Limitation: buckets of up to 2^31 - 1 elements.
*/
#include "core/base/arena.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/hooks/hook.h"
#include "core/hooks/option.h"
#include "core/hooks/points.h"
#include "core/hooks/residual.h"

#include <math.h>

typedef struct settings {
    uint64_t k;
    double ratio;
    bool error_feedback;
} settings;

static const cd_option option_table[] = {
    {"k", CD_OPTION_COUNT, offsetof(settings, k), 1, 2147483647.0, NULL},
    {"ratio", CD_OPTION_REAL, offsetof(settings, ratio), 0, 1, NULL},
    {"error_feedback", CD_OPTION_FLAG, offsetof(settings, error_feedback), 0, 0, NULL},
};

/* Work memory of one bucket between its two stages, where the bucket lives. */
typedef struct job {
    cd_flat indices, values, all_indices, all_values; /* (k), (k), (W·k), (W·k) */
    int64_t k;
    cd_host_sums sent;
} job;

typedef struct topk {
    cd_arena arena; /* this struct and its jobs */
    cddp_tracer *tracer;
    uint32_t world_size;
    settings settings;
    cd_residual residual;
    cd_host_memory heap; /* (k) indices */
    /* (job_count) by the variable index of a bucket's first parameter (STA-04) */
    job *jobs;
    size_t job_count, job_capacity;
} topk;

static void destroy(void *self)
{
    topk *t = self;
    if (t == NULL) return;
    for (size_t i = 0; i < t->job_count; i++) {
        cd_flat *flats[] = {&t->jobs[i].indices, &t->jobs[i].values, &t->jobs[i].all_indices,
                            &t->jobs[i].all_values};
        for (size_t f = 0; f < 4; f++) cd_flat_release(flats[f]);
    }
    cd_host_memory_release(t->arena.allocator, &t->heap);
    cd_residual_fini(&t->residual);
    cd_arena_fini(&t->arena);
}

static cddp_status check_settings(const topk *t, const cddp_hook_context *context, cddp_error *err)
{
    if (context->inner != NULL)
        return cd_fail(err, CDDP_E_CONFIG, "comm hook topk does not wrap another hook; got %s",
                       context->inner->name);
    if (t->settings.k != 0 && t->settings.ratio >= 0)
        return cd_fail(err, CDDP_E_CONFIG,
                       "comm hook topk: k and ratio both set how much is sent; give one of them");
    if (t->settings.ratio == 0)
        return cd_fail(err, CDDP_E_CONFIG,
                       "comm hook topk: ratio=0 sends nothing; it must be above 0");
    return CDDP_OK;
}

static cddp_status create(const cddp_hook_context *context, void **self, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_arena arena;
    cd_arena_init(&arena, context->allocator, CD_HOOK_BLOCK_BYTES);
    topk *t = cd_arena_push(&arena, sizeof *t);
    if (t == NULL) return cd_fail_memory(err, "comm hook topk");
    t->arena = arena;
    t->tracer = context->tracer;
    t->world_size = cddp_group_size(context->group);
    t->settings = (settings){.k = 0, .ratio = -1, .error_feedback = true};
    cd_state_model model = cd_state_model_of(context);
    cd_residual_init(&t->residual, context->allocator, &model, "topk");
    CD_TRY_OUT(cd_hook_refuse_inner(context, "topk", err));
    CD_TRY_OUT(cd_options_read("comm hook topk", option_table,
                               sizeof option_table / sizeof option_table[0], context->options,
                               &t->settings, err));
    CD_POINT_OPTIONS(context, option_table, sizeof option_table / sizeof option_table[0],
                     &t->settings);
    CD_TRY_OUT(check_settings(t, context, err));
    if (t->settings.k == 0 && t->settings.ratio < 0) t->settings.ratio = 0.01;
    cd_options_report(option_table, sizeof option_table / sizeof option_table[0], &t->settings,
                      context->tracer);
    *self = t;
    return CDDP_OK;
out:
    destroy(t);
    return status;
}

/* ---- choosing ---- */

/* Does a come before b? Magnitude, then the smaller index; NaN is larger than everything. */
static bool is_larger(const cddp_tensor *flat, int64_t a, int64_t b)
{
    double x = fabs(cd_host_get(flat, a)), y = fabs(cd_host_get(flat, b));
    if (isnan(x) != isnan(y)) return isnan(x);
    if (!isnan(x) && x != y) return x > y;
    return a < b;
}

/* heap[0] is the least of the chosen. */
static void sift(const cddp_tensor *flat, int32_t *heap, int64_t count, int64_t at)
{
    for (;;) {
        int64_t least = at;
        for (int64_t child = 2 * at + 1; child <= 2 * at + 2 && child < count; child++)
            if (is_larger(flat, heap[least], heap[child])) least = child;
        if (least == at) return;
        int32_t moved = heap[at];
        heap[at] = heap[least];
        heap[least] = moved;
        at = least;
    }
}

/* The k-th largest is found with a heap, then everything not below it is taken in index order
** (T1). */
static void choose(const cddp_tensor *flat, int32_t *heap, int64_t k, int32_t *chosen)
{
    int64_t numel = cddp_tensor_numel(flat), taken = 0;
    for (int64_t i = 0; i < k; i++) heap[i] = (int32_t)i;
    for (int64_t i = k / 2; i-- > 0;) sift(flat, heap, k, i);
    for (int64_t i = k; i < numel && k > 0; i++) {
        if (!is_larger(flat, i, heap[0])) continue;
        heap[0] = (int32_t)i;
        sift(flat, heap, k, 0);
    }
    for (int64_t i = 0; i < numel && taken < k; i++)
        if (i == heap[0] || is_larger(flat, i, heap[0])) chosen[taken++] = (int32_t)i;
    CD_ASSERT(taken == k);
}

static int64_t count_of(const topk *t, int64_t numel)
{
    double asked =
        t->settings.k != 0 ? (double)t->settings.k : floor(t->settings.ratio * (double)numel);
    int64_t k = asked < (double)numel ? (int64_t)asked : numel;
    return k < 1 && numel > 0 ? 1 : k;
}

/* ---- stages ---- */

static cddp_status find_job(topk *t, const cddp_grad_bucket *bucket, job **found, cddp_error *err)
{
    size_t key = bucket->parameter_count > 0 ? bucket->parameter_ids[0] : 0;
    if (key >= t->job_count) {
        if (!cd_arena_grow(&t->arena, (void **)&t->jobs, &t->job_capacity, key + 1,
                           sizeof *t->jobs))
            return cd_fail_memory(err, "%zu buckets of comm hook topk", key + 1);
        for (; t->job_count <= key; t->job_count++) t->jobs[t->job_count] = (job){.k = 0};
    }
    *found = &t->jobs[key];
    return CDDP_OK;
}

static cddp_status reserve(topk *t, job *j, const cddp_grad_bucket *bucket, cddp_error *err)
{
    const cddp_device *d = bucket->buffer.device;
    cddp_dtype dtype = bucket->buffer.dtype;
    int64_t numel = cddp_tensor_numel(&bucket->buffer);
    if (numel > INT32_MAX)
        return cd_fail(err, CDDP_E_LIMIT,
                       "comm hook topk: bucket %u has %lld elements, at most %d can be indexed",
                       bucket->index, (long long)numel, INT32_MAX);
    j->k = count_of(t, numel);
    int64_t all = j->k * (int64_t)t->world_size;
    if (!cd_host_is_away(d))
        CD_TRY(cd_host_memory_reserve(t->arena.allocator, &t->heap, (size_t)j->k * sizeof(int32_t),
                                      err));
    CD_TRY(cd_flat_reserve(&j->indices, d, CDDP_I32, j->k, err));
    CD_TRY(cd_flat_reserve(&j->values, d, dtype, j->k, err));
    CD_TRY(cd_flat_reserve(&j->all_indices, d, CDDP_I32, all, err));
    CD_TRY(cd_flat_reserve(&j->all_values, d, dtype, all, err));
    return CDDP_OK;
}

/* Moves the chosen elements out of the bucket; the remaining ones are owed (T2). */
static void take_chosen(job *j, const cddp_tensor *flat)
{
    const int32_t *indices = j->indices.tensor.storage;
    j->sent = (cd_host_sums){.count = 0};
    for (int64_t i = 0; i < j->k; i++) {
        cd_host_add(&j->sent, indices[i], cd_host_get(flat, indices[i]));
        cd_host_set(&j->values.tensor, i, cd_host_get(flat, indices[i]));
        cd_host_set(flat, indices[i], 0.0);
    }
}

static cddp_status take(const topk *t, job *j, const cddp_tensor *flat, cddp_error *err)
{
    if (cd_host_is_away(flat->device))
        return CD_PASS(
            flat->device->take_largest(flat, &j->indices.tensor, &j->values.tensor, NULL, err));
    choose(flat, t->heap.block, j->k, j->indices.tensor.storage);
    take_chosen(j, flat);
    return CDDP_OK;
}

static void state_law(const topk *t, const job *j, const cddp_grad_bucket *bucket,
                      const cd_host_sums *in)
{
    if (!t->settings.error_feedback || !isfinite(in->sum)) return;
    cd_host_sums after = j->sent;
    cd_residual_sum(&t->residual, bucket, &after);
    double sums = 0x1p-52 * (double)(in->count + after.count) * (in->magnitude + after.magnitude);
    cddp_law law = {sizeof(cddp_law),
                    "gradient + old debt = sent + new debt, signed sums over the bucket",
                    (int64_t)bucket->index,
                    after.sum,
                    in->sum,
                    cd_host_unit(bucket->buffer.dtype) * in->magnitude +
                        (double)in->count * cd_host_least(bucket->buffer.dtype) + sums,
                    false};
    cddp_tracer_law(t->tracer, &law);
}

/* Called before the remaining elements become a debt. */
static void state_choice(const topk *t, const job *j, const cddp_grad_bucket *bucket)
{
    double kept = 0.0, sent = INFINITY;
    int64_t numel = cddp_tensor_numel(&bucket->buffer);
    for (int64_t i = 0; i < numel; i++) kept = fmax(kept, fabs(cd_host_get(&bucket->buffer, i)));
    for (int64_t i = 0; i < j->k; i++) sent = fmin(sent, fabs(cd_host_get(&j->values.tensor, i)));
    cddp_law law = {sizeof(cddp_law),
                    "the largest elements are sent: by how much one that stays is larger",
                    (int64_t)bucket->index,
                    kept > sent ? kept - sent : 0.0,
                    0.0,
                    0.0,
                    false};
    if (isfinite(j->sent.magnitude)) cddp_tracer_law(t->tracer, &law);
}

static cddp_status gather(cddp_future *future, const cddp_grad_bucket *bucket,
                          const cddp_tensor *from, const cddp_tensor *to, cddp_group *group,
                          cddp_error *err)
{
    cddp_collective c = {.size = sizeof c,
                         .op = CDDP_OP_ALLGATHER,
                         .input = *from,
                         .output = *to,
                         .label = (uint64_t)bucket->index + 1};
    CD_TRY(cddp_group_post(group, &c, &future->works[future->work_count], err));
    future->work_count++;
    return CDDP_OK;
}

/* The elements that one rank sent, in index order. */
static cddp_status add_share(const job *j, const cddp_grad_bucket *bucket, uint32_t rank,
                             cddp_error *err)
{
    const cddp_tensor *flat = &bucket->buffer;
    int64_t numel = cddp_tensor_numel(flat), first = (int64_t)rank * j->k;
    cddp_tensor at = cddp_tensor_slice(&j->all_indices.tensor, first, j->k),
                values = cddp_tensor_slice(&j->all_values.tensor, first, j->k);
    if (cd_host_is_away(flat->device))
        return CD_PASS(flat->device->add_at(flat, &at, &values, NULL, err));
    const int32_t *indices = (const int32_t *)at.storage + first;
    for (int64_t i = 0; i < j->k; i++) {
        if (indices[i] < 0 || indices[i] >= numel)
            return cd_fail(err, CDDP_E_CORRUPT,
                           "comm hook topk: rank %u sent index %d for bucket %u of %lld elements",
                           rank, indices[i], bucket->index, (long long)numel);
        cd_host_set(flat, indices[i], cd_host_get(flat, indices[i]) + cd_host_get(&values, i));
    }
    return CDDP_OK;
}

static cddp_status scatter(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                           cddp_error *err)
{
    topk *t = self;
    job *j = NULL;
    CD_TRY(find_job(t, bucket, &j, err));
    const cddp_tensor *flat = &bucket->buffer;
    CD_TRY(flat->device->divide(&j->all_values.tensor, &j->all_values.tensor, t->world_size, NULL,
                                err));
    CD_TRY(flat->device->fill(flat, 0.0, NULL, err));
    for (uint32_t r = 0; r < t->world_size; r++) CD_TRY(add_share(j, bucket, r, err));
    if (t->tracer != NULL && cd_host_can_look(flat->device)) {
        cd_host_sums has = {.count = 0};
        cd_host_add_all(&has, 0, flat);
        const cd_mean_law law = {
            (int64_t)bucket->index, t->world_size, flat->dtype, flat->dtype, &j->sent, &has};
        cd_mean_law_state(&law, t->tracer);
    }
    future->result = *flat;
    return CDDP_OK;
}

static cddp_status run(void *self, cddp_grad_bucket *bucket, cddp_group *group, cddp_future *future,
                       cddp_error *err)
{
    topk *t = self;
    job *j = NULL;
    cd_host_sums in = {.count = 0};
    const cddp_device *d = bucket->buffer.device;
    bool can = CD_DEVICE_HAS(d, take_largest) && CD_DEVICE_HAS(d, add_at),
         states = t->tracer != NULL && cd_host_can_look(d);
    CD_TRY(cd_host_refuse(bucket, "topk", can ? NULL : "take the largest elements", err));
    CD_TRY(find_job(t, bucket, &j, err));
    CD_TRY(reserve(t, j, bucket, err));
    if (states) {
        cd_host_add_all(&in, 0, &bucket->buffer);
        cd_residual_sum(&t->residual, bucket, &in);
    }
    if (t->settings.error_feedback) CD_TRY(cd_residual_add(&t->residual, bucket, err));
    CD_TRY(take(t, j, &bucket->buffer, err));
    if (states) state_choice(t, j, bucket);
    if (t->settings.error_feedback) CD_TRY(cd_residual_keep(&t->residual, bucket, err));
    if (states) state_law(t, j, bucket, &in);
    CD_TRY(gather(future, bucket, &j->indices.tensor, &j->all_indices.tensor, group, err));
    CD_TRY(gather(future, bucket, &j->values.tensor, &j->all_values.tensor, group, err));
    future->next = scatter;
    return CDDP_OK;
}

/* Indices and values of the chosen. */
static uint64_t promise(const void *self, const cddp_grad_bucket *bucket)
{
    const topk *t = self;
    return (uint64_t)count_of(t, cddp_tensor_numel(&bucket->buffer)) *
           (sizeof(int32_t) + cddp_dtype_bytes(bucket->buffer.dtype));
}

static cddp_status save(void *self, const cddp_state_writer *writer, cddp_error *err)
{
    const topk *t = self;
    return CD_PASS(cd_residual_save(&t->residual, writer, err));
}

static cddp_status load(void *self, const cddp_state_reader *reader, cddp_error *err)
{
    topk *t = self;
    return CD_PASS(cd_residual_load(&t->residual, reader, err));
}

const cddp_hook cd_hook_topk = {
    .size = sizeof(cddp_hook),
    .abi = CDDP_HOOK_ABI,
    .name = "topk",
    .flags = CDDP_HOOK_LOSSY | CDDP_HOOK_STATEFUL,
    .create = create,
    .destroy = destroy,
    .run = run,
    .promise = promise,
    .save = save,
    .load = load,
};
