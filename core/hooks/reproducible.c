/* SPDX-License-Identifier: Apache-2.0 */
/* The reproducible hook: the exact mean, rounded once. Not in PyTorch.
**
**   run      the span of absolute bins that this rank needs          → all-reduce MAX of three i32
**            (average_contributions: how many there were           → all-reduce SUM of one i64)
**   encode   the bucket as rows of digits, one row per bin            → all-reduce SUM of i32
**   decode   the sum of the digits ÷ N, rounded once, into the bucket
**
** Every step is exact but the last, and integer sums are associative, so the bits are those of the
** exact mean of what went in: the same for every number of ranks, algorithm, bucket layout and
** schedule. See Note [Absolute bins].
**
** With the reducer's option accumulate_in_hook, gradients of micro-steps arrive one by one and are
** added here exactly. In `.grad` each addition would round. With average_contributions N counts
** them over all ranks, so that W ranks with k samples each get the bits of one process with W·k
** samples.
**
** Where numbers are in memory of a device's own they pass through the host, which waits for them:
** how many bins travel depends on the numbers of all ranks, so somebody has to see the span before
** the second collective can be posted.
**
** Invariants:
**   X1  between two buckets' runs a parameter's bins are empty, or hold what was accumulated since
**       its last run;
**   X2  the count belongs to the window: it restarts with the first backward after a run, and a
**       rank that has none before buckets come round again (it shadows the others in join) brought
**       nothing.
*/
#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/hooks/bins.h"
#include "core/hooks/hook.h"
#include "core/hooks/host.h"

#include <string.h>

#define NO_BIN 100000 /* beyond every bin of every format */

/* The message that precedes the digits. */
typedef struct message {
    int32_t span[3]; /* -first, last, special: the largest of each counts */
    int64_t count;
} message;

/* Work memory of one bucket between its stages. */
typedef struct job {
    message *message; /* at a fixed place while works run */
    cd_bins_span span;
    cd_host_memory rows;
    cd_host_memory copy; /* of the bucket, where the host cannot look at it */
} job;

typedef struct reproducible {
    cd_arena arena; /* this struct, its jobs, their messages and the list of bins */
    uint32_t world_size;
    bool accumulates, counts; /* the reducer's accumulate_in_hook and average_contributions */
    int64_t backwards;        /* of this window */
    bool has_run;
    uint32_t last_index; /* of the bucket that ran last */
    /* (job_count) by the variable index of a bucket's first parameter (STA-04) */
    job *jobs;
    size_t job_count, job_capacity;
    cd_bins *bins; /* (bin_count) by variable, where the reducer accumulates here */
    size_t bin_count, bin_capacity;
    cd_host_memory copy; /* of a gradient, where the host cannot look at it */
} reproducible;

static void destroy(void *self)
{
    reproducible *p = self;
    if (p == NULL) return;
    for (size_t i = 0; i < p->job_count; i++) {
        cd_host_memory_release(p->arena.allocator, &p->jobs[i].rows);
        cd_host_memory_release(p->arena.allocator, &p->jobs[i].copy);
    }
    for (size_t i = 0; i < p->bin_count; i++) cd_bins_fini(&p->bins[i]);
    cd_host_memory_release(p->arena.allocator, &p->copy);
    cd_arena_fini(&p->arena);
}

static cddp_status check_context(const cddp_hook_context *context, cddp_error *err)
{
    const cddp_capabilities *k = cddp_group_capabilities(context->group);
    CD_TRY(cd_hook_refuse_options(context, "reproducible", err));
    if (context->inner != NULL)
        return cd_fail(err, CDDP_E_CONFIG,
                       "comm hook reproducible does not wrap another hook; got %s",
                       context->inner->name);
    if ((k->dtypes & CDDP_DTYPE_BIT(CDDP_I32)) == 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "comm hook reproducible sums i32, which the backend of group '%s' cannot",
                       cddp_group_name(context->group));
    if (cddp_group_size(context->group) > CD_BINS_RANKS_MAX)
        return cd_fail(
            err, CDDP_E_LIMIT,
            "comm hook reproducible: %u ranks; the sums of more than %d digits may leave i32",
            cddp_group_size(context->group), CD_BINS_RANKS_MAX);
    return CDDP_OK;
}

static cddp_status create(const cddp_hook_context *context, void **self, cddp_error *err)
{
    CD_TRY(check_context(context, err));
    cd_arena arena;
    cd_arena_init(&arena, context->allocator, CD_HOOK_BLOCK_BYTES);
    reproducible *p = cd_arena_push(&arena, sizeof *p);
    if (p == NULL) return cd_fail_memory(err, "comm hook reproducible");
    p->arena = arena;
    p->world_size = cddp_group_size(context->group);
    p->accumulates = context->accumulates;
    p->counts = context->averages_contributions;
    *self = p;
    return CDDP_OK;
}

/* ---- what micro-steps bring (X1, X2) ---- */

static void begin_backward(void *self)
{
    reproducible *p = self;
    if (p->has_run) p->backwards = 0;
    p->has_run = false;
    p->backwards++;
}

static cddp_status find_bins(reproducible *p, uint32_t variable, const cddp_tensor *like,
                             cd_bins **found, cddp_error *err)
{
    int64_t numel = cddp_tensor_numel(like);
    if (variable >= p->bin_count) {
        if (!cd_arena_grow(&p->arena, (void **)&p->bins, &p->bin_capacity, (size_t)variable + 1,
                           sizeof *p->bins))
            return cd_fail_memory(err, "%u parameters of comm hook reproducible", variable + 1);
        for (; p->bin_count <= variable; p->bin_count++)
            p->bins[p->bin_count] = (cd_bins){.dtype = CDDP_DTYPE_COUNT};
    }
    cd_bins *b = &p->bins[variable];
    if (b->high == NULL || b->numel != numel || b->dtype != like->dtype) {
        cd_bins_fini(b);
        CD_TRY(cd_bins_init(b, p->arena.allocator, like->dtype, numel, err));
    }
    *found = b;
    return CDDP_OK;
}

static size_t bytes_of(const cddp_tensor *flat)
{
    return (size_t)cddp_tensor_numel(flat) * cddp_dtype_bytes(flat->dtype);
}

/* The numbers as the host sees them: in the storage, or in the copy made by `look`. */
static void *elements(const cddp_tensor *flat, const cd_host_memory *copy)
{
    if (cd_host_is_away(flat->device)) return copy->block;
    return (char *)flat->storage + (size_t)flat->offset * cddp_dtype_bytes(flat->dtype);
}

static cddp_status look(const reproducible *p, const cddp_tensor *flat, cd_host_memory *copy,
                        cddp_error *err)
{
    if (!cd_host_is_away(flat->device)) return CDDP_OK;
    CD_TRY(cd_host_memory_reserve(p->arena.allocator, copy, bytes_of(flat), err));
    return CD_PASS(flat->device->read(flat, copy->block, bytes_of(flat), err));
}

static cddp_status accumulate(void *self, uint32_t variable, const cddp_tensor *gradient,
                              cddp_error *err)
{
    reproducible *p = self;
    cd_bins *b = NULL;
    const cddp_grad_bucket alone = {.buffer = *gradient, .index = variable};
    CD_TRY(cd_host_refuse(&alone, "reproducible", NULL, err));
    CD_TRY(find_bins(p, variable, gradient, &b, err));
    CD_TRY(look(p, gradient, &p->copy, err));
    return CD_PASS(cd_bins_add(b, elements(gradient, &p->copy), err));
}

/* ---- stages ---- */

static cddp_status find_job(reproducible *p, const cddp_grad_bucket *bucket, job **found,
                            cddp_error *err)
{
    size_t key = bucket->parameter_count > 0 ? bucket->parameter_ids[0] : 0;
    if (key >= p->job_count) {
        if (!cd_arena_grow(&p->arena, (void **)&p->jobs, &p->job_capacity, key + 1,
                           sizeof *p->jobs))
            return cd_fail_memory(err, "%zu buckets of comm hook reproducible", key + 1);
        for (; p->job_count <= key; p->job_count++) p->jobs[p->job_count] = (job){.message = NULL};
    }
    job *j = &p->jobs[key];
    if (j->message == NULL) j->message = cd_arena_push(&p->arena, sizeof *j->message);
    if (j->message == NULL)
        return cd_fail_memory(err, "bucket %u of comm hook reproducible", bucket->index);
    *found = j;
    return CDDP_OK;
}

/* A parameter without a gradient in this window has no bins or empty ones: zeros. */
static const cd_bins *bins_of(const reproducible *p, uint32_t variable)
{
    bool has =
        variable < p->bin_count && p->bins[variable].high != NULL && p->bins[variable].count > 0;
    return has ? &p->bins[variable] : NULL;
}

static void widen(cd_bins_span *all, const cd_bins_span *one)
{
    all->special |= one->special;
    if (one->first > one->last) return;
    if (one->first < all->first) all->first = one->first;
    if (one->last > all->last) all->last = one->last;
}

static cd_bins_span local_span(const reproducible *p, const job *j, const cddp_grad_bucket *bucket)
{
    cd_bins_span all = {.first = NO_BIN, .last = -NO_BIN};
    if (!p->accumulates) {
        cd_bins_span one =
            cd_bins_span_of(bucket->buffer.dtype, elements(&bucket->buffer, &j->copy),
                            cddp_tensor_numel(&bucket->buffer));
        widen(&all, &one);
        return all;
    }
    for (uint32_t i = 0; i < bucket->parameter_count; i++) {
        const cd_bins *b = bins_of(p, bucket->parameter_ids[i]);
        if (b == NULL) continue;
        cd_bins_span one = cd_bins_get_span(b);
        widen(&all, &one);
    }
    return all;
}

static cddp_status post(const cddp_grad_bucket *bucket, const cddp_tensor *t, cddp_red_op op,
                        cddp_group *group, cddp_future *future, cddp_error *err)
{
    cddp_collective c = {.size = sizeof c,
                         .op = CDDP_OP_ALLREDUCE,
                         .reduce_op = op,
                         .input = *t,
                         .output = *t,
                         .label = (uint64_t)bucket->index + 1};
    CD_TRY(cddp_group_post(group, &c, &future->works[future->work_count], err));
    future->work_count++;
    return CDDP_OK;
}

static cddp_tensor flat_of(void *storage, cddp_dtype dtype, int64_t numel)
{
    return cddp_tensor_of(cddp_device_cpu(), storage, 0, dtype, &numel, 1);
}

static void encode_parameters(reproducible *p, const cddp_grad_bucket *bucket,
                              const cd_bins_span *span, int32_t *rows, int64_t numel)
{
    int64_t row_count = cd_bins_rows(span);
    memset(rows, 0, (size_t)(row_count * numel) * sizeof *rows);
    for (uint32_t i = 0; i < bucket->parameter_count; i++) {
        const cd_bins *b = bins_of(p, bucket->parameter_ids[i]);
        if (b == NULL) continue;
        cd_bins_encode(b, span, rows + bucket->offsets[i], numel);
        cd_bins_clear(&p->bins[bucket->parameter_ids[i]]);
    }
}

static cddp_status decode(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                          cddp_error *err)
{
    reproducible *p = self;
    job *j = NULL;
    const cddp_tensor *flat = &bucket->buffer;
    CD_TRY(find_job(p, bucket, &j, err));
    int64_t divisor = p->counts ? j->message->count : (int64_t)p->world_size;
    if (divisor > UINT32_MAX)
        return cd_fail(
            err, CDDP_E_LIMIT,
            "comm hook reproducible: %lld contributions; at most 4294967295 can be averaged",
            (long long)divisor);
    if (divisor < 1) divisor = 1; /* no rank has a contribution: zeros */
    cd_bins_decode(flat->dtype, j->rows.block, cddp_tensor_numel(flat), &j->span, (uint32_t)divisor,
                   elements(flat, &j->copy), cddp_tensor_numel(flat));
    if (cd_host_is_away(flat->device))
        CD_TRY(flat->device->write(flat, j->copy.block, bytes_of(flat), err));
    future->result = *flat;
    return CDDP_OK;
}

static cddp_status encode(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                          cddp_error *err)
{
    reproducible *p = self;
    job *j = NULL;
    CD_TRY(find_job(p, bucket, &j, err));
    const int32_t *agreed = j->message->span;
    int64_t numel = cddp_tensor_numel(&bucket->buffer);
    j->span = (cd_bins_span){.first = -agreed[0], .last = agreed[1], .special = agreed[2] != 0};
    int64_t row_count = cd_bins_rows(&j->span);
    if (row_count * numel == 0) return CD_PASS(decode(self, bucket, future, err));
    CD_TRY(cd_host_memory_reserve(p->arena.allocator, &j->rows,
                                  (size_t)(row_count * numel) * sizeof(int32_t), err));
    if (p->accumulates)
        encode_parameters(p, bucket, &j->span, j->rows.block, numel);
    else
        cd_bins_encode_values(bucket->buffer.dtype, elements(&bucket->buffer, &j->copy), numel,
                              &j->span, j->rows.block, numel);
    cddp_tensor rows = cd_host_memory_tensor(&j->rows, CDDP_I32, row_count * numel);
    CD_TRY(post(bucket, &rows, CDDP_RED_SUM, (cddp_group *)(uintptr_t)future->scratch[0], future,
                err));
    future->next = decode;
    return CDDP_OK;
}

static cddp_status run(void *self, cddp_grad_bucket *bucket, cddp_group *group, cddp_future *future,
                       cddp_error *err)
{
    reproducible *p = self;
    job *j = NULL;
    CD_TRY(cd_host_refuse(bucket, "reproducible", NULL, err));
    CD_TRY(find_job(p, bucket, &j, err));
    CD_TRY(look(p, &bucket->buffer, &j->copy, err));
    if (p->has_run && bucket->index <= p->last_index) p->backwards = 0; /* X2 */
    cd_bins_span span = local_span(p, j, bucket);
    *j->message = (message){{-span.first, span.last, span.special}, p->backwards};
    p->has_run = true;
    p->last_index = bucket->index;
    cddp_tensor ends = flat_of(j->message->span, CDDP_I32, 3),
                count = flat_of(&j->message->count, CDDP_I64, 1);
    CD_TRY(post(bucket, &ends, CDDP_RED_MAX, group, future, err));
    if (p->counts) CD_TRY(post(bucket, &count, CDDP_RED_SUM, group, future, err));
    future->scratch[0] = (uintptr_t)group;
    future->next = encode;
    return CDDP_OK;
}

/* The number of bins that are sent depends on the numbers; it is at most all bins of the dtype. */
static uint64_t promise(const void *self, const cddp_grad_bucket *bucket)
{
    const reproducible *p = self;
    uint64_t rows = (uint64_t)cd_bins_rows_most(bucket->buffer.dtype),
             numel = (uint64_t)cddp_tensor_numel(&bucket->buffer);
    return sizeof((message *)0)->span + (p->counts ? sizeof(int64_t) : 0) +
           rows * numel * sizeof(int32_t);
}

const cddp_hook cd_hook_reproducible = {
    .size = sizeof(cddp_hook),
    .abi = CDDP_HOOK_ABI,
    .name = "reproducible",
    .flags = CDDP_HOOK_ROUNDED_ONCE,
    .create = create,
    .destroy = destroy,
    .run = run,
    .promise = promise,
    .begin_backward = begin_backward,
    .accumulate = accumulate,
};
