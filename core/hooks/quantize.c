/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients as 8-bit codes.
**
**   run     f32 copy of the bucket, padded with zeros to whole rows; scale and zero point of every
**           row; codes → all-gather of (scale, zero point) as f32, all-gather of codes as u8
**   decode  result = (Σ over ranks 0, 1, 2, … of scale_r · (code_r - zero_r)) ÷ W, in f32, on every
**           rank alike
**
** There is no all-reduce, and no error feedback: |result - mean| ≤ (1/W)·Σ_r scale_r / 2 plus
** rounding (QNT-04). Each rank states its own share of that in the trace, and that the result is
** the mean of what was sent. Per channel, a bucket that divides gets one more row, all padding
** (QNT-03).
*/
#include "core/hooks/quantize.h"

#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/hooks/hook.h"
#include "core/hooks/host.h"
#include "core/hooks/option.h"
#include "core/hooks/points.h"

#include <math.h>

typedef struct settings {
    uint64_t bucket_size;
} settings;

static const cd_option channel_options[] = {
    {"bucket_size", CD_OPTION_COUNT, offsetof(settings, bucket_size), 1, 1e9, NULL},
};

/* Work memory of one bucket between its stages, where the bucket lives. */
typedef struct job {
    cd_flat values;           /* (rows · length) f32, then the sum */
    cd_flat rows, all_rows;   /* (rows), (W · rows) cd_quantizer, as f32 */
    cd_flat codes, all_codes; /* (rows · length), (W · rows · length) */
    int64_t row_count, length;
    cd_host_sums sent; /* of the decoded codes */
} job;

typedef struct quantize {
    const char *name;
    cd_arena arena; /* this struct and its jobs */
    cddp_tracer *tracer;
    uint32_t world_size;
    bool per_channel;
    settings settings;
    job *jobs; /* (job_count) by the variable index of a bucket's first parameter (STA-04) */
    size_t job_count, job_capacity;
} quantize;

/* ---- one row ---- */

cd_quantizer cd_quantizer_observe(const float *values, int64_t count)
{
    cd_quantizer_range range = {0.0f, 0.0f};
    for (int64_t i = 0; i < count; i++) range = cd_quantizer_see(range, values[i]);
    return cd_quantizer_of(range);
}

/* ---- life ---- */

cddp_status cd_quantize_create(const cddp_hook_context *context, bool per_channel, void **self,
                               cddp_error *err)
{
    const char *name = per_channel ? "quantize_per_channel" : "quantize_per_tensor";
    settings s = {.bucket_size = 512};
    CD_TRY(cd_hook_refuse_inner(context, name, err));
    if (per_channel)
        CD_TRY(cd_options_read("comm hook quantize_per_channel", channel_options, 1,
                               context->options, &s, err));
    else
        CD_TRY(cd_hook_refuse_options(context, name, err));
    if (per_channel) CD_POINT_OPTIONS(context, channel_options, 1, &s);
    if (per_channel) cd_options_report(channel_options, 1, &s, context->tracer);
    cd_arena arena;
    cd_arena_init(&arena, context->allocator, CD_HOOK_BLOCK_BYTES);
    quantize *q = cd_arena_push(&arena, sizeof *q);
    if (q == NULL) return cd_fail_memory(err, "comm hook %s", name);
    *q = (quantize){.name = name,
                    .arena = arena,
                    .tracer = context->tracer,
                    .per_channel = per_channel,
                    .settings = s,
                    .world_size = cddp_group_size(context->group)};
    *self = q;
    return CDDP_OK;
}

void cd_quantize_destroy(void *self)
{
    quantize *q = self;
    if (q == NULL) return;
    for (size_t i = 0; i < q->job_count; i++) {
        job *j = &q->jobs[i];
        cd_flat *flats[] = {&j->values, &j->rows, &j->all_rows, &j->codes, &j->all_codes};
        for (size_t f = 0; f < 5; f++) cd_flat_release(flats[f]);
    }
    cd_arena_fini(&q->arena);
}

/* ---- stages ---- */

static cddp_status find_job(quantize *q, const cddp_grad_bucket *bucket, job **found,
                            cddp_error *err)
{
    size_t key = bucket->parameter_count > 0 ? bucket->parameter_ids[0] : 0;
    if (key >= q->job_count) {
        if (!cd_arena_grow(&q->arena, (void **)&q->jobs, &q->job_capacity, key + 1,
                           sizeof *q->jobs))
            return cd_fail_memory(err, "%zu buckets of comm hook %s", key + 1, q->name);
        for (; q->job_count <= key; q->job_count++) q->jobs[q->job_count] = (job){.row_count = 0};
    }
    *found = &q->jobs[key];
    return CDDP_OK;
}

static void find_rows(const quantize *q, const cddp_grad_bucket *bucket, int64_t *row_count,
                      int64_t *length)
{
    int64_t numel = cddp_tensor_numel(&bucket->buffer), size = (int64_t)q->settings.bucket_size;
    *length = q->per_channel ? size : numel;
    *row_count = q->per_channel ? numel / size + 1 : 1;
}

/* A scale and a zero point in f32 per row, a byte per element. */
uint64_t cd_quantize_promise(const void *self, const cddp_grad_bucket *bucket)
{
    int64_t row_count, length;
    find_rows(self, bucket, &row_count, &length);
    return (uint64_t)row_count * (2 * sizeof(float) + (uint64_t)length);
}

static cddp_status reserve(const quantize *q, job *j, const cddp_grad_bucket *bucket,
                           cddp_error *err)
{
    const cddp_device *d = bucket->buffer.device;
    int64_t w = q->world_size;
    find_rows(q, bucket, &j->row_count, &j->length);
    int64_t rows = 2 * j->row_count, codes = j->row_count * j->length;
    CD_TRY(cd_flat_reserve(&j->values, d, CDDP_F32, codes, err));
    CD_TRY(cd_flat_reserve(&j->rows, d, CDDP_F32, rows, err));
    CD_TRY(cd_flat_reserve(&j->all_rows, d, CDDP_F32, w * rows, err));
    CD_TRY(cd_flat_reserve(&j->codes, d, CDDP_U8, codes, err));
    CD_TRY(cd_flat_reserve(&j->all_codes, d, CDDP_U8, w * codes, err));
    return CDDP_OK;
}

/* Codes of every row; *excess is the largest |x - decoded x| - scale/2, which must not be above
** rounding. */
static void encode_rows(job *j, int64_t numel, double *excess, double *slack)
{
    const float *values = j->values.tensor.storage;
    cd_quantizer *rows = j->rows.tensor.storage;
    uint8_t *codes = j->codes.tensor.storage;
    *excess = *slack = 0.0;
    j->sent = (cd_host_sums){.count = 0};
    for (int64_t r = 0; r < j->row_count; r++) {
        const float *row = values + r * j->length;
        rows[r] = cd_quantizer_observe(row, j->length);
        for (int64_t i = 0; i < j->length; i++) {
            uint8_t code = codes[r * j->length + i] = cd_quantizer_encode(rows[r], row[i]);
            double decoded = (double)cd_quantizer_decode(rows[r], code);
            double error = fabs((double)row[i] - decoded), half = (double)rows[r].scale / 2.0;
            if (r * j->length + i < numel) cd_host_add(&j->sent, r * j->length + i, decoded);
            if (error - half > *excess) *excess = error - half;
            if (half * 0x1p-13 > *slack) *slack = half * 0x1p-13;
        }
    }
}

/* The scale, its reciprocal and the product with up to 255 steps are rounded. 255 · 2 · 4 · 2^-24
** of half a step is below 2^-13 of it. */
static void state_law(const quantize *q, const cddp_grad_bucket *bucket, double excess,
                      double slack)
{
    cddp_law law = {sizeof(cddp_law),
                    "|x - decoded x| ≤ scale/2: the largest excess",
                    (int64_t)bucket->index,
                    excess,
                    0.0,
                    slack,
                    false};
    if (q->tracer != NULL && isfinite(slack)) cddp_tracer_law(q->tracer, &law);
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

/* rows of length codes, `parts` times. */
static cddp_tensor shaped(const cddp_tensor *flat, int64_t parts, int64_t rows, int64_t length)
{
    int64_t sizes[3] = {parts, rows, length};
    bool is_one = parts < 0;
    return cddp_tensor_of(flat->device, flat->storage, 0, flat->dtype, is_one ? sizes + 1 : sizes,
                          is_one ? 2 : 3);
}

static cddp_status encode(const quantize *q, job *j, const cddp_grad_bucket *bucket,
                          cddp_error *err)
{
    const cddp_device *d = bucket->buffer.device;
    double excess, slack;
    if (cd_host_is_away(d)) {
        cddp_tensor codes = shaped(&j->codes.tensor, -1, j->row_count, j->length),
                    rows = shaped(&j->rows.tensor, -1, j->row_count, 2);
        cddp_tensor values = shaped(&j->values.tensor, -1, j->row_count, j->length);
        return CD_PASS(d->quantize(&codes, &rows, &values, NULL, err));
    }
    encode_rows(j, cddp_tensor_numel(&bucket->buffer), &excess, &slack);
    state_law(q, bucket, excess, slack);
    return CDDP_OK;
}

static cddp_status add_up(const quantize *q, const job *j, const cddp_tensor *sum, cddp_error *err)
{
    int64_t w = q->world_size, codes = j->row_count * j->length, numel = cddp_tensor_numel(sum);
    if (cd_host_is_away(sum->device)) {
        cddp_tensor all = shaped(&j->all_codes.tensor, w, j->row_count, j->length),
                    rows = shaped(&j->all_rows.tensor, w, j->row_count, 2);
        return CD_PASS(sum->device->dequantize_sum(sum, &all, &rows, NULL, err));
    }
    const cd_quantizer *rows = j->all_rows.tensor.storage;
    const uint8_t *all = j->all_codes.tensor.storage;
    float *to = sum->storage;
    for (int64_t i = 0; i < numel; i++) {
        int64_t row = i / j->length;
        to[i] = 0.0f;
        for (int64_t r = 0; r < w; r++) /* ranks in order */
            to[i] += cd_quantizer_decode(rows[r * j->row_count + row], all[r * codes + i]);
    }
    return CDDP_OK;
}

static cddp_status decode(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                          cddp_error *err)
{
    quantize *q = self;
    job *j = NULL;
    CD_TRY(find_job(q, bucket, &j, err));
    cddp_tensor sum = cddp_tensor_slice(&j->values.tensor, 0, cddp_tensor_numel(&bucket->buffer));
    CD_TRY(add_up(q, j, &sum, err));
    CD_TRY(sum.device->divide(&sum, &sum, q->world_size, NULL, err));
    CD_TRY(bucket->buffer.device->copy(&bucket->buffer, &sum, NULL, err));
    if (q->tracer != NULL && !cd_host_is_away(sum.device)) {
        cd_host_sums has = {.count = 0};
        cd_host_add_all(&has, 0, &bucket->buffer);
        const cd_mean_law law = {(int64_t)bucket->index, q->world_size, CDDP_F32,
                                 bucket->buffer.dtype,   &j->sent,      &has};
        cd_mean_law_state(&law, q->tracer);
    }
    future->result = bucket->buffer;
    return CDDP_OK;
}

cddp_status cd_quantize_run(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                            cddp_future *future, cddp_error *err)
{
    quantize *q = self;
    job *j = NULL;
    const cddp_device *d = bucket->buffer.device;
    bool can = CD_DEVICE_HAS(d, quantize) && CD_DEVICE_HAS(d, dequantize_sum);
    CD_TRY(cd_host_refuse(bucket, q->name, can ? NULL : "quantize", err));
    CD_TRY(find_job(q, bucket, &j, err));
    CD_TRY(reserve(q, j, bucket, err));
    cddp_tensor head = cddp_tensor_slice(&j->values.tensor, 0, cddp_tensor_numel(&bucket->buffer));
    CD_TRY(d->fill(&j->values.tensor, 0.0, NULL, err));
    CD_TRY(d->copy(&head, &bucket->buffer, NULL, err));
    CD_TRY(encode(q, j, bucket, err));
    CD_TRY(gather(future, bucket, &j->rows.tensor, &j->all_rows.tensor, group, err));
    CD_TRY(gather(future, bucket, &j->codes.tensor, &j->all_codes.tensor, group, err));
    future->next = decode;
    return CDDP_OK;
}
