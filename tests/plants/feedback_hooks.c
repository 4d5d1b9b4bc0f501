/* SPDX-License-Identifier: Apache-2.0 */
/* Planted hooks that send only a part and state their own law, as real lossy hooks do. The
** verifier cannot know what they should have sent, but it checks their law.
**
**     plant_feedback     half of what there is goes, half is owed, by parameter: nothing is wrong
**                        with it
**     plant_by_index     the same, but what it owes is kept by the place in the bucket: a rebuild
**                        gives it to others
**     plant_forgets      the same as plant_feedback, but what it saved is not taken up again
**     plant_seed         leaves elements out at random, and begins with the same seed in every call
**     plant_stream       the same as plant_feedback, and reports a random stream that stands still
**     plant_claims       the same as plant_feedback, and names the law of topk
**
** Small f32 buckets on the host alone; every other one is refused.
*/
#include "tests/plants/feedback_hooks.h"

#include "cddp/comm.h"
#include "cddp/device.h"

#include <stdlib.h>

#define SLOTS 16
#define NUMEL_MAX 512
#define PATIENCE 3

typedef struct feedback {
    cddp_tracer *tracer;
    float owed[SLOTS][NUMEL_MAX];        /* by parameter, or by bucket */
    double account[SLOTS][NUMEL_MAX];    /* by parameter: given less sent */
    uint32_t left_out[SLOTS][NUMEL_MAX]; /* by parameter: how often in a row */
} feedback;

static cddp_status feedback_create(const cddp_hook_context *context, void **self, cddp_error *err)
{
    feedback *f = calloc(1, sizeof *f);
    if (f == NULL) return cddp_error_set(err, CDDP_E_NOMEM, "no memory for a planted hook");
    f->tracer = context->tracer;
    *self = f;
    return CDDP_OK;
}

static void feedback_destroy(void *self) { free(self); }

static cddp_status take_small(const cddp_grad_bucket *bucket, float **flat, cddp_error *err)
{
    const cddp_tensor *b = &bucket->buffer;
    const bool is_small = bucket->index < SLOTS && cddp_tensor_numel(b) <= NUMEL_MAX;
    if (b->dtype != CDDP_F32 || bucket->sparse != NULL ||
        (b->device->flags & CDDP_DEVICE_HOST) == 0 || !is_small) {
        return cddp_error_set(err, CDDP_E_UNSUPPORTED,
                              "this planted hook takes small f32 buckets on the host");
    }
    *flat = (float *)b->storage + b->offset;
    return CDDP_OK;
}

static cddp_status average(const cddp_grad_bucket *bucket, cddp_group *group, cddp_future *future,
                           cddp_error *err)
{
    const cddp_tensor *b = &bucket->buffer;
    cddp_collective c = {.size = sizeof c,
                         .op = CDDP_OP_ALLREDUCE,
                         .reduce_op = CDDP_RED_SUM,
                         .input = *b,
                         .output = *b,
                         .label = (uint64_t)bucket->index + 1};
    cddp_status status = b->device->divide(b, b, cddp_group_size(group), NULL, err);
    future->result = *b;
    if (status == CDDP_OK) status = cddp_group_post(group, &c, &future->works[0], err);
    future->work_count = status == CDDP_OK;
    return status;
}

/* The error feedback is the part that was given and not sent, element by element. In f32 each is
** off by a rounding per call. */
static cddp_status run_half(feedback *f, bool by_index, cddp_grad_bucket *bucket, cddp_group *group,
                            cddp_future *future, cddp_error *err)
{
    float *flat = NULL;
    double off = 0, all = 0;
    const cddp_status status = take_small(bucket, &flat, err);
    if (status != CDDP_OK) return status;
    for (uint32_t k = 0; k < bucket->parameter_count; k++) {
        const uint32_t id = bucket->parameter_ids[k] % SLOTS;
        for (int64_t i = 0; i < bucket->lengths[k]; i++) {
            float *given = &flat[bucket->offsets[k] + i];
            float *owed =
                by_index ? &f->owed[bucket->index][bucket->offsets[k] + i] : &f->owed[id][i];
            const float both = *given + *owed, sent = both / 2;
            f->account[id][i] += (double)*given - sent;
            *owed = both - sent;
            *given = sent;
            off +=
                f->account[id][i] > *owed ? f->account[id][i] - *owed : *owed - f->account[id][i];
            all += both < 0 ? -both : both;
        }
    }
    const cddp_law law = {sizeof(cddp_law),
                          "what was given and not sent is what is owed",
                          bucket->index,
                          off,
                          0,
                          0x1p-20 * all,
                          false};
    cddp_tracer_law(f->tracer, &law);
    return average(bucket, group, future, err);
}

static cddp_status run_feedback(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                cddp_future *future, cddp_error *err)
{
    return run_half(self, false, bucket, group, future, err);
}

static cddp_status run_by_index(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                cddp_future *future, cddp_error *err)
{
    return run_half(self, true, bucket, group, future, err);
}

static cddp_status run_seed(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                            cddp_future *future, cddp_error *err)
{
    feedback *f = self;
    float *flat = NULL;
    uint32_t draw = 12345, longest = 0;
    const cddp_status status = take_small(bucket, &flat, err);
    if (status != CDDP_OK) return status;
    for (uint32_t k = 0; k < bucket->parameter_count; k++) {
        for (int64_t i = 0; i < bucket->lengths[k]; i++) {
            uint32_t *left_out = &f->left_out[bucket->parameter_ids[k] % SLOTS][i];
            draw = draw * 1664525u + 1013904223u;
            *left_out = draw >> 31 != 0 ? 0 : *left_out + 1;
            flat[bucket->offsets[k] + i] = draw >> 31 != 0 ? flat[bucket->offsets[k] + i] : 0;
            longest = *left_out > longest ? *left_out : longest;
        }
    }
    const cddp_law law = {sizeof(cddp_law),
                          "no element is left out four times in a row",
                          bucket->index,
                          longest,
                          0,
                          PATIENCE,
                          false};
    cddp_tracer_law(f->tracer, &law);
    return average(bucket, group, future, err);
}

static cddp_status run_stream(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                              cddp_future *future, cddp_error *err)
{
    feedback *f = self;
    const cddp_draw draw = {sizeof(cddp_draw), "planted rows", bucket->index, true, 12345};
    cddp_tracer_draw(f->tracer, &draw);
    return run_half(f, false, bucket, group, future, err);
}

/* ---- states ---- */

static cddp_status feedback_save(void *self, const cddp_state_writer *writer, cddp_error *err)
{
    const feedback *f = self;
    const bool ok = writer->write(writer->context, f->owed, sizeof f->owed) &&
                    writer->write(writer->context, f->account, sizeof f->account);
    return ok ? CDDP_OK : cddp_error_set(err, CDDP_E_IO, "the planted state cannot be written");
}

static cddp_status read_into(feedback *f, const cddp_state_reader *reader, cddp_error *err)
{
    const bool ok = reader->read(reader->context, f->owed, sizeof f->owed) &&
                    reader->read(reader->context, f->account, sizeof f->account);
    return ok ? CDDP_OK : cddp_error_set(err, CDDP_E_CORRUPT, "the planted state ends early");
}

static cddp_status feedback_load(void *self, const cddp_state_reader *reader, cddp_error *err)
{
    return read_into(self, reader, err);
}

/* Reads what belongs to it, and goes on with nothing. */
static cddp_status forget_all(void *self, const cddp_state_reader *reader, cddp_error *err)
{
    (void)self;
    feedback *read = calloc(1, sizeof *read);
    const cddp_status status =
        read != NULL ? read_into(read, reader, err)
                     : cddp_error_set(err, CDDP_E_NOMEM, "no memory to load a planted state");
    free(read);
    return status;
}

#define FEEDBACK(plant_name, runs, loads, law)                                           \
    const cddp_hook plant_name = {.size = sizeof(cddp_hook),                             \
                                  .abi = CDDP_HOOK_ABI,                                  \
                                  .name = #plant_name,                                   \
                                  .flags = CDDP_HOOK_LOSSY | CDDP_HOOK_STATEFUL | (law), \
                                  .create = feedback_create,                             \
                                  .destroy = feedback_destroy,                           \
                                  .run = runs,                                           \
                                  .save = feedback_save,                                 \
                                  .load = loads}
FEEDBACK(plant_feedback, run_feedback, feedback_load, 0);
FEEDBACK(plant_by_index, run_by_index, feedback_load, 0);
FEEDBACK(plant_forgets, run_feedback, forget_all, 0);
FEEDBACK(plant_seed, run_seed, feedback_load, 0);
FEEDBACK(plant_stream, run_stream, feedback_load, 0);
FEEDBACK(plant_claims, run_feedback, feedback_load, CDDP_HOOK_LAW_TOPK);
