/* SPDX-License-Identifier: Apache-2.0 */
/* Twenty-five broken communication hooks, each of which breaks one law of the report card
** (cddp-verify hook-conformance).
**
** Written against the public ports alone, as a user would, and for f32 buckets on the host alone:
** every other bucket is refused. Where one needs lossiness to hide in, it sends half of what it has
** and owes the other half, which is then sent in later backwards.
**
**     card_half_sum     sums in f16 and divides afterwards            range
**     card_divisor      divides by the square of the world size       divisor
**     card_no_op        declares f16 on the wire and sends f32        bytes
**     card_seed         draws the same elements to send every time    arrives
**     card_by_index     keeps what it owes by bucket index            rebuild
**     card_forgets      does not save what it owes                    resume
**     card_last         counts backwards on the first bucket          phase
**     card_wrong_place  writes its result where the storage begins    untouched
**     card_late         clears a bucket after its completion          untouched
**     card_lies         promises a quarter of the bytes and sends them all       bytes
**     card_by_rank      lets each rank decide whether to reduce       runs
**     card_skips_zeros  sends no bucket that holds nothing but zeros  join, and unused
**     card_all_buckets  takes every second call for the end of a backward          unused
**     card_begins_anew  forgets at each backward what it has accumulated           no_sync
**     card_stale        gives the last bucket of odd backwards what it gave before  arrives
**     card_by_shape     adds what the twin of a parameter owes, too   arrives
**     card_grows        owes one element half as much again           kept
**     card_own_law      states a law that does not hold               stated
**     card_hides        sends zeros for what is not finite            visible
**     card_takes_any    takes the state of another model              foreign
**     card_pieces       divides whole pieces of 1024 elements, and forgets the rest           large
**     card_index        looks up what it owes by an index of 16 bits  large
**     card_claims_topk  names the law of topk and sends half of everything           judged
**     card_stands       reports a random stream that never advances   draws
**     card_apart        reports a shared stream of which each rank draws its own     draws
*/
#include "tests/plants/card_hooks.h"

#include "cddp/device.h"
#include "cddp/trace.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 8
#define NUMEL_MAX 72

typedef struct card_state {
    float owed[SLOTS][NUMEL_MAX]; /* by parameter, or by bucket index */
    uint16_t half[SLOTS][NUMEL_MAX];
    uint64_t counter;
    float *wide;      /* the error feedback of a parameter that is too large for the others */
    cddp_tensor last; /* the bucket before */
    bool has_last, accumulates;
    uint64_t model;
    cddp_tracer *tracer;
} card_state;

static cddp_status card_create(const cddp_hook_context *context, void **self, cddp_error *err)
{
    card_state *s = calloc(1, sizeof *s);
    if (s == NULL) return cddp_error_set(err, CDDP_E_NOMEM, "no memory for a planted hook");
    s->accumulates = context->accumulates;
    s->tracer = context->tracer;
    s->model = context->model_digest;
    *self = s;
    return CDDP_OK;
}

static void card_destroy(void *self)
{
    card_state *s = self;
    if (s != NULL) free(s->wide);
    free(s);
}

static cddp_status take(const cddp_grad_bucket *bucket, float **flat, int64_t *numel,
                        cddp_error *err)
{
    const cddp_tensor *b = &bucket->buffer;
    *numel = cddp_tensor_numel(b);
    if (b->dtype != CDDP_F32 || bucket->sparse != NULL ||
        (b->device->flags & CDDP_DEVICE_HOST) == 0 || *numel > NUMEL_MAX) {
        return cddp_error_set(err, CDDP_E_UNSUPPORTED,
                              "planted hooks take small f32 buckets on the host");
    }
    *flat = (float *)b->storage + b->offset;
    return CDDP_OK;
}

static cddp_status post_sum(const cddp_grad_bucket *bucket, const cddp_tensor *tensor,
                            cddp_group *group, cddp_future *future, cddp_error *err)
{
    cddp_collective c = {.size = sizeof c,
                         .op = CDDP_OP_ALLREDUCE,
                         .reduce_op = CDDP_RED_SUM,
                         .input = *tensor,
                         .output = *tensor,
                         .label = (uint64_t)bucket->index + 1};
    const cddp_status status = cddp_group_post(group, &c, &future->works[future->work_count], err);
    if (status == CDDP_OK) future->work_count++;
    return status;
}

/* Every hook here ends with this: ÷ n, then the sum. */
static cddp_status divide_and_sum(cddp_grad_bucket *bucket, int64_t n, cddp_group *group,
                                  cddp_future *future, cddp_error *err)
{
    const cddp_tensor *b = &bucket->buffer;
    const cddp_status status = b->device->divide(b, b, n, NULL, err);
    future->result = *b;
    return status == CDDP_OK ? post_sum(bucket, b, group, future, err) : status;
}

/* Half of what there is goes, half is owed. */
static void halve(float *flat, float *owed, int64_t numel)
{
    for (int64_t i = 0; i < numel; i++) {
        const float all = flat[i] + owed[i];
        flat[i] = all / 2;
        owed[i] = all - flat[i];
    }
}

static void halve_parameters(card_state *s, const cddp_grad_bucket *bucket, float *flat)
{
    for (uint32_t k = 0; k < bucket->parameter_count; k++) {
        halve(flat + bucket->offsets[k], s->owed[bucket->parameter_ids[k] % SLOTS],
              bucket->lengths[k]);
    }
}

/* ---- the mistakes ---- */

static cddp_status half_back(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                             cddp_error *err)
{
    card_state *s = self;
    const cddp_tensor *b = &bucket->buffer;
    const cddp_tensor half =
        cddp_tensor_of(b->device, s->half[bucket->index], 0, CDDP_F16, b->sizes, 1);
    cddp_status status = b->device->divide(&half, &half, (int64_t)future->scratch[0], NULL, err);
    if (status == CDDP_OK) status = b->device->copy(b, &half, NULL, err);
    future->result = *b;
    return status;
}

static cddp_status run_half_sum(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                cddp_future *future, cddp_error *err)
{
    card_state *s = self;
    float *flat = NULL;
    int64_t numel = 0;
    cddp_status status = take(bucket, &flat, &numel, err);
    if (status != CDDP_OK) return status;
    const cddp_tensor half = cddp_tensor_of(bucket->buffer.device, s->half[bucket->index], 0,
                                            CDDP_F16, bucket->buffer.sizes, 1);
    status = half.device->copy(&half, &bucket->buffer, NULL, err);
    future->scratch[0] = cddp_group_size(group);
    future->next = half_back;
    return status == CDDP_OK ? post_sum(bucket, &half, group, future, err) : status;
}

static cddp_status run_divisor(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                               cddp_future *future, cddp_error *err)
{
    (void)self;
    const int64_t n = cddp_group_size(group);
    return divide_and_sum(bucket, n * n, group, future, err);
}

static cddp_status run_no_op(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                             cddp_future *future, cddp_error *err)
{
    (void)self;
    return divide_and_sum(bucket, cddp_group_size(group), group, future, err);
}

/* A generator that begins with the same seed in every call: the same elements are always left
** out. */
static cddp_status run_seed(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                            cddp_future *future, cddp_error *err)
{
    (void)self;
    float *flat = NULL;
    int64_t numel = 0;
    const cddp_status status = take(bucket, &flat, &numel, err);
    if (status != CDDP_OK) return status;
    uint32_t draw = 12345;
    for (int64_t i = 0; i < numel; i++) {
        draw = draw * 1664525u + 1013904223u;
        flat[i] = (draw >> 31) != 0 ? flat[i] : 0.0f;
    }
    return divide_and_sum(bucket, cddp_group_size(group), group, future, err);
}

static cddp_status run_by_index(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                cddp_future *future, cddp_error *err)
{
    card_state *s = self;
    float *flat = NULL;
    int64_t numel = 0;
    const cddp_status status = take(bucket, &flat, &numel, err);
    if (status != CDDP_OK) return status;
    halve(flat, s->owed[bucket->index % SLOTS], numel);
    return divide_and_sum(bucket, cddp_group_size(group), group, future, err);
}

/* Right, but for what becomes of its state. */
static cddp_status run_halves(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                              cddp_future *future, cddp_error *err)
{
    float *flat = NULL;
    int64_t numel = 0;
    const cddp_status status = take(bucket, &flat, &numel, err);
    if (status != CDDP_OK) return status;
    halve_parameters(self, bucket, flat);
    return divide_and_sum(bucket, cddp_group_size(group), group, future, err);
}

/* The same, and random numbers that are reported: shared, and new in every backward. */
static cddp_status run_draws(card_state *s, uint64_t state, cddp_grad_bucket *bucket,
                             cddp_group *group, cddp_future *future, cddp_error *err)
{
    const cddp_draw draw = {.size = sizeof draw,
                            .label = "card",
                            .stream = bucket->index,
                            .is_shared = true,
                            .state = state};
    cddp_tracer_draw(s->tracer, &draw);
    return run_halves(s, bucket, group, future, err);
}

static cddp_status run_stands(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                              cddp_future *future, cddp_error *err)
{
    return run_draws(self, 29, bucket, group, future, err);
}

static cddp_status run_apart(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                             cddp_future *future, cddp_error *err)
{
    card_state *s = self;
    s->counter += bucket->index == 0;
    return run_draws(s, 100 * s->counter + cddp_group_rank(group), bucket, group, future, err);
}

/* Exact in two backwards, then half; but who counts on the first bucket is one ahead at the
** second. */
static cddp_status run_last(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                            cddp_future *future, cddp_error *err)
{
    card_state *s = self;
    float *flat = NULL;
    int64_t numel = 0;
    const cddp_status status = take(bucket, &flat, &numel, err);
    if (status != CDDP_OK) return status;
    if (s->counter >= 2) halve_parameters(s, bucket, flat);
    s->counter += bucket->index == 0;
    return divide_and_sum(bucket, cddp_group_size(group), group, future, err);
}

static cddp_status run_wrong_place(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                   cddp_future *future, cddp_error *err)
{
    (void)self;
    float *flat = NULL;
    int64_t numel = 0;
    const cddp_status status = take(bucket, &flat, &numel, err);
    if (status != CDDP_OK) return status;
    cddp_tensor begin = bucket->buffer;
    begin.offset = 0; /* forgets where the bucket begins in its storage */
    memmove(begin.storage, flat, (size_t)numel * sizeof *flat);
    cddp_grad_bucket moved = *bucket;
    moved.buffer = begin;
    return divide_and_sum(&moved, cddp_group_size(group), group, future, err);
}

static cddp_status run_late(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                            cddp_future *future, cddp_error *err)
{
    card_state *s = self;
    if (s->has_last) {
        const cddp_status status = s->last.device->fill(&s->last, 0.0, NULL, err);
        if (status != CDDP_OK) return status;
    }
    s->has_last = bucket->is_last;
    s->last = bucket->buffer;
    return divide_and_sum(bucket, cddp_group_size(group), group, future, err);
}

/* "My gradient is small: nobody will miss it." The others wait. */
static cddp_status run_by_rank(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                               cddp_future *future, cddp_error *err)
{
    (void)self;
    float *flat = NULL;
    int64_t numel = 0;
    const cddp_status status = take(bucket, &flat, &numel, err);
    if (status != CDDP_OK) return status;
    future->result = bucket->buffer;
    const bool is_small = numel > 0 && flat[0] * flat[0] < 0.5f;
    return is_small ? CDDP_OK : divide_and_sum(bucket, cddp_group_size(group), group, future, err);
}

/* Zeros add nothing. True on all ranks at once, or else the others wait: a rank that has joined has
** nothing but zeros. */
static cddp_status run_skips_zeros(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                   cddp_future *future, cddp_error *err)
{
    (void)self;
    float *flat = NULL;
    int64_t numel = 0;
    bool is_zero = true;
    const cddp_status status = take(bucket, &flat, &numel, err);
    if (status != CDDP_OK) return status;
    for (int64_t i = 0; i < numel; i++) is_zero = is_zero && flat[i] == 0.0f;
    future->result = bucket->buffer;
    return is_zero ? CDDP_OK : divide_and_sum(bucket, cddp_group_size(group), group, future, err);
}

/* Two backwards exact, then half; but a backward is not always two calls. */
static cddp_status run_all_buckets(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                   cddp_future *future, cddp_error *err)
{
    card_state *s = self;
    float *flat = NULL;
    int64_t numel = 0;
    const cddp_status status = take(bucket, &flat, &numel, err);
    if (status != CDDP_OK) return status;
    if (s->counter++ / bucket->bucket_count % 3 == 2) halve_parameters(s, bucket, flat);
    return divide_and_sum(bucket, cddp_group_size(group), group, future, err);
}

static void begin_anew(void *self)
{
    card_state *s = self;
    memset(s->owed, 0, sizeof s->owed);
}

static cddp_status accumulate(void *self, uint32_t variable, const cddp_tensor *gradient,
                              cddp_error *err)
{
    card_state *s = self;
    const int64_t numel = cddp_tensor_numel(gradient);
    if (gradient->dtype != CDDP_F32 || numel > NUMEL_MAX)
        return cddp_error_set(err, CDDP_E_UNSUPPORTED, "planted hooks take small f32 gradients");
    for (int64_t i = 0; i < numel; i++)
        s->owed[variable % SLOTS][i] += ((const float *)gradient->storage)[gradient->offset + i];
    return CDDP_OK;
}

static cddp_status run_begins_anew(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                   cddp_future *future, cddp_error *err)
{
    card_state *s = self;
    float *flat = NULL;
    int64_t numel = 0;
    const cddp_status status = take(bucket, &flat, &numel, err);
    for (uint32_t k = 0; status == CDDP_OK && s->accumulates && k < bucket->parameter_count; k++) {
        memcpy(flat + bucket->offsets[k], s->owed[bucket->parameter_ids[k] % SLOTS],
               (size_t)bucket->lengths[k] * sizeof *flat);
    }
    return status == CDDP_OK ? divide_and_sum(bucket, cddp_group_size(group), group, future, err)
                             : status;
}

/* Good in all backwards but the odd ones, whose last bucket is that of the backward before. */
static cddp_status stale_back(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                              cddp_error *err)
{
    card_state *s = self;
    float *flat = NULL, fresh[NUMEL_MAX];
    int64_t numel = 0;
    const cddp_status status = take(bucket, &flat, &numel, err);
    if (status != CDDP_OK) return status;
    memcpy(fresh, flat, (size_t)numel * sizeof *flat);
    if (bucket->is_last && future->scratch[0] % 2 == 1)
        memcpy(flat, s->owed[SLOTS - 1], (size_t)numel * sizeof *flat);
    if (bucket->is_last) memcpy(s->owed[SLOTS - 1], fresh, (size_t)numel * sizeof *flat);
    future->result = bucket->buffer;
    return CDDP_OK;
}

static cddp_status run_stale(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                             cddp_future *future, cddp_error *err)
{
    card_state *s = self;
    float *flat = NULL;
    int64_t numel = 0;
    const cddp_status status = take(bucket, &flat, &numel, err);
    if (status != CDDP_OK) return status;
    future->scratch[0] = s->counter;
    future->next = stale_back;
    s->counter += bucket->is_last;
    return divide_and_sum(bucket, cddp_group_size(group), group, future, err);
}

/* Error feedback is looked up by the number of elements: two parameters of one size share it. */
static cddp_status run_by_shape(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                cddp_future *future, cddp_error *err)
{
    card_state *s = self;
    float *flat = NULL;
    int64_t numel = 0;
    const cddp_status status = take(bucket, &flat, &numel, err);
    if (status != CDDP_OK) return status;
    for (uint32_t k = 0; k < bucket->parameter_count; k++) {
        for (uint32_t other = 0; other < bucket->parameter_count; other++) {
            const float *owed = s->owed[bucket->parameter_ids[other] % SLOTS];
            for (int64_t i = 0; other != k && bucket->lengths[other] == bucket->lengths[k] &&
                                i < bucket->lengths[k];
                 i++)
                flat[bucket->offsets[k] + i] += owed[i];
        }
    }
    halve_parameters(s, bucket, flat);
    return divide_and_sum(bucket, cddp_group_size(group), group, future, err);
}

static cddp_status run_grows(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                             cddp_future *future, cddp_error *err)
{
    card_state *s = self;
    float *flat = NULL;
    int64_t numel = 0;
    const cddp_status status = take(bucket, &flat, &numel, err);
    if (status != CDDP_OK) return status;
    halve_parameters(s, bucket, flat);
    for (uint32_t k = 0; k < bucket->parameter_count; k++)
        s->owed[bucket->parameter_ids[k] % SLOTS][0] *= bucket->lengths[k] > 1 ? 1.5f : 1.0f;
    return divide_and_sum(bucket, cddp_group_size(group), group, future, err);
}

/* Says that it keeps everything, and sends a thousandth less. */
static cddp_status run_own_law(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                               cddp_future *future, cddp_error *err)
{
    const card_state *s = self;
    float *flat = NULL;
    int64_t numel = 0;
    const cddp_status status = take(bucket, &flat, &numel, err);
    if (status != CDDP_OK) return status;
    double before = 0.0, after = 0.0;
    for (int64_t i = 0; i < numel; i++) {
        before += (double)flat[i];
        flat[i] *= 0.999f;
        after += (double)flat[i];
    }
    const cddp_law law = {.size = sizeof law,
                          .name = "gradient = sent",
                          .bucket = bucket->index,
                          .left = after,
                          .right = before,
                          .bound = 1e-6};
    if (s->tracer != NULL) cddp_tracer_law(s->tracer, &law);
    return divide_and_sum(bucket, cddp_group_size(group), group, future, err);
}

/* "Rather no update than a broken one." A loss scaler would never see it. */
static cddp_status run_hides(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                             cddp_future *future, cddp_error *err)
{
    (void)self;
    float *flat = NULL;
    int64_t numel = 0;
    const cddp_status status = take(bucket, &flat, &numel, err);
    if (status != CDDP_OK) return status;
    for (int64_t i = 0; i < numel; i++) flat[i] = flat[i] - flat[i] == 0.0f ? flat[i] : 0.0f;
    return divide_and_sum(bucket, cddp_group_size(group), group, future, err);
}

/* ---- large buckets ---- */

static cddp_status take_any_size(const cddp_grad_bucket *bucket, float **flat, cddp_error *err)
{
    const cddp_tensor *b = &bucket->buffer;
    if (b->dtype != CDDP_F32 || bucket->sparse != NULL ||
        (b->device->flags & CDDP_DEVICE_HOST) == 0) {
        return cddp_error_set(err, CDDP_E_UNSUPPORTED,
                              "planted hooks take f32 buckets on the host");
    }
    *flat = (float *)b->storage + b->offset;
    return CDDP_OK;
}

#define PIECE 1024

/* A bucket that is shorter than a piece goes another way, so that only what is left over behind the
** last piece is forgotten. */
static cddp_status run_pieces(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                              cddp_future *future, cddp_error *err)
{
    const int64_t numel = cddp_tensor_numel(&bucket->buffer), n = cddp_group_size(group);
    float *flat = NULL;
    const cddp_status status = take_any_size(bucket, &flat, err);
    (void)self;
    if (status != CDDP_OK) return status;
    if (numel < PIECE) return divide_and_sum(bucket, n, group, future, err);
    for (int64_t piece = 0; piece < numel / PIECE; piece++) {
        for (int64_t i = 0; i < PIECE; i++) flat[piece * PIECE + i] /= (float)n;
    }
    future->result = bucket->buffer;
    return post_sum(bucket, &bucket->buffer, group, future, err);
}

/* Odd elements travel in even backwards, even ones in odd ones, and what does not travel is
** owed. */
static cddp_status run_index(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                             cddp_future *future, cddp_error *err)
{
    card_state *s = self;
    float *all_of_it = NULL;
    const cddp_status status = take_any_size(bucket, &all_of_it, err);
    if (status != CDDP_OK) return status;
    if (s->wide == NULL) s->wide = calloc(UINT16_MAX + 1, sizeof *s->wide);
    if (s->wide == NULL) return cddp_error_set(err, CDDP_E_NOMEM, "no memory for a planted hook");
    for (uint32_t k = 0; k < bucket->parameter_count; k++) {
        float *flat = all_of_it + bucket->offsets[k];
        float *owed =
            bucket->lengths[k] <= NUMEL_MAX ? s->owed[bucket->parameter_ids[k] % SLOTS] : s->wide;
        for (int64_t i = 0; i < bucket->lengths[k]; i++) {
            const float all = flat[i] + owed[(uint16_t)i];
            const bool goes = (uint64_t)i % 2 != s->counter % 2;
            flat[i] = goes ? all : 0.0f;
            owed[(uint16_t)i] = goes ? 0.0f : all;
        }
    }
    s->counter += bucket->is_last;
    return divide_and_sum(bucket, cddp_group_size(group), group, future, err);
}

/* ---- states ---- */

static cddp_status card_save(void *self, const cddp_state_writer *writer, cddp_error *err)
{
    card_state *s = self;
    const bool ok = writer->write(writer->context, &s->model, sizeof s->model) &&
                    writer->write(writer->context, s->owed, sizeof s->owed) &&
                    writer->write(writer->context, &s->counter, sizeof s->counter);
    return ok ? CDDP_OK : cddp_error_set(err, CDDP_E_IO, "the planted state cannot be written");
}

static cddp_status load_any(card_state *s, const cddp_state_reader *reader, uint64_t *model,
                            cddp_error *err)
{
    const bool ok = reader->read(reader->context, model, sizeof *model) &&
                    reader->read(reader->context, s->owed, sizeof s->owed) &&
                    reader->read(reader->context, &s->counter, sizeof s->counter);
    return ok ? CDDP_OK : cddp_error_set(err, CDDP_E_CORRUPT, "the planted state ends early");
}

static cddp_status card_load(void *self, const cddp_state_reader *reader, cddp_error *err)
{
    card_state *s = self;
    uint64_t model = 0;
    const cddp_status status = load_any(s, reader, &model, err);
    return status != CDDP_OK || model == s->model
               ? status
               : cddp_error_set(err, CDDP_E_MISMATCH, "the planted state is of another model");
}

static cddp_status card_load_any(void *self, const cddp_state_reader *reader, cddp_error *err)
{
    uint64_t model = 0;
    return load_any(self, reader, &model, err);
}

static uint64_t a_quarter(const void *self, const cddp_grad_bucket *bucket)
{
    (void)self;
    return (uint64_t)cddp_tensor_numel(&bucket->buffer);
}

#define CARD(hook_name, runs, hook_flags, ...)                             \
    static const cddp_hook card_##hook_name = {.size = sizeof(cddp_hook),  \
                                               .abi = CDDP_HOOK_ABI,       \
                                               .name = "card_" #hook_name, \
                                               .flags = hook_flags,        \
                                               .create = card_create,      \
                                               .destroy = card_destroy,    \
                                               .run = runs,                \
                                               __VA_ARGS__}
#define KEEPS .save = card_save, .load = card_load

CARD(half_sum, run_half_sum, CDDP_HOOK_LOSSY, .wire_dtype = CDDP_DTYPE_BIT(CDDP_F16));
CARD(divisor, run_divisor, CDDP_HOOK_LOSSY, .wire_dtype = 0);
CARD(no_op, run_no_op, CDDP_HOOK_LOSSY, .wire_dtype = CDDP_DTYPE_BIT(CDDP_F16));
CARD(seed, run_seed, CDDP_HOOK_LOSSY, .wire_dtype = 0);
CARD(by_index, run_by_index, CDDP_HOOK_LOSSY | CDDP_HOOK_STATEFUL, KEEPS);
CARD(forgets, run_halves, CDDP_HOOK_LOSSY, .wire_dtype = 0);
CARD(last, run_last, CDDP_HOOK_LOSSY | CDDP_HOOK_STATEFUL, KEEPS);
CARD(wrong_place, run_wrong_place, CDDP_HOOK_LOSSY, .wire_dtype = 0);
CARD(late, run_late, CDDP_HOOK_LOSSY, .wire_dtype = 0);
CARD(lies, run_no_op, CDDP_HOOK_LOSSY, .promise = a_quarter);
CARD(by_rank, run_by_rank, CDDP_HOOK_LOSSY, .wire_dtype = 0);
CARD(skips_zeros, run_skips_zeros, CDDP_HOOK_LOSSY, .wire_dtype = 0);
CARD(all_buckets, run_all_buckets, CDDP_HOOK_LOSSY | CDDP_HOOK_STATEFUL, KEEPS);
CARD(begins_anew, run_begins_anew, CDDP_HOOK_LOSSY, .begin_backward = begin_anew,
     .accumulate = accumulate);
CARD(stale, run_stale, CDDP_HOOK_LOSSY | CDDP_HOOK_STATEFUL, KEEPS);
CARD(by_shape, run_by_shape, CDDP_HOOK_LOSSY | CDDP_HOOK_STATEFUL, KEEPS);
CARD(grows, run_grows, CDDP_HOOK_LOSSY | CDDP_HOOK_STATEFUL, KEEPS);
CARD(own_law, run_own_law, CDDP_HOOK_LOSSY, .wire_dtype = 0);
CARD(hides, run_hides, CDDP_HOOK_LOSSY, .wire_dtype = 0);
CARD(pieces, run_pieces, CDDP_HOOK_LOSSY, .wire_dtype = 0);
CARD(index, run_index, CDDP_HOOK_LOSSY | CDDP_HOOK_STATEFUL, KEEPS);
CARD(claims_topk, run_halves, CDDP_HOOK_LOSSY | CDDP_HOOK_STATEFUL | CDDP_HOOK_LAW_TOPK, KEEPS);
CARD(stands, run_stands, CDDP_HOOK_LOSSY | CDDP_HOOK_STATEFUL, KEEPS);
CARD(apart, run_apart, CDDP_HOOK_LOSSY | CDDP_HOOK_STATEFUL, KEEPS);
CARD(takes_any, run_halves, CDDP_HOOK_LOSSY | CDDP_HOOK_STATEFUL, .save = card_save,
     .load = card_load_any);

const cddp_hook *const card_hooks[] = {&card_half_sum,    &card_divisor,
                                       &card_no_op,       &card_seed,
                                       &card_by_index,    &card_forgets,
                                       &card_last,        &card_wrong_place,
                                       &card_late,        &card_by_rank,
                                       &card_lies,        &card_skips_zeros,
                                       &card_all_buckets, &card_begins_anew,
                                       &card_stale,       &card_by_shape,
                                       &card_grows,       &card_own_law,
                                       &card_takes_any,   &card_hides,
                                       &card_pieces,      &card_index,
                                       &card_claims_topk, &card_stands,
                                       &card_apart,       NULL};

CDDP_PLUGIN_EXPORT extern const cddp_plugin cddp_plugin_v1;
const cddp_plugin cddp_plugin_v1 = {.size = sizeof(cddp_plugin),
                                    .abi = CDDP_PLUGIN_ABI,
                                    .name = "card_plants",
                                    .version = "1",
                                    .hooks = card_hooks};
