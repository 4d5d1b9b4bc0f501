/* SPDX-License-Identifier: Apache-2.0 */
/* Planted communication hooks: each is a mistake that people make, written against the public ports
** alone.
**
** They come as a plugin (cddp-verify --plugin …/cddp-plants.so) and are linked into the catalogue
** test; the product contains none of them.
**
**     plant_sum          sums and forgets to divide
**     plant_twice        divides before the sum, and again after it
**     plant_local        rank 1 takes part in the sum and then returns its own bucket
**     plant_first_only   divides only the first gradient of a bucket
**     plant_constant     returns the number 7 everywhere
**     plant_half_sum     declares what fp16_compress does, but sums in f16 and divides afterwards
**     plant_no_op        declares f16 on the wire and sends f32
**     plant_last         waits with reducing for the last bucket, and takes the first for it
**     plant_withholds    promises the exact mean; rank 1 sends zeros in place of its part
**     plant_means        is right: divides, and then sums
**     plant_early        reads a bucket while it is being reduced
**     plant_shares       is right, and exchanges numbers beside: rank 1 gives rank 0 one too many
**
** and those of feedback_hooks.c.
*/
#include "cddp/plugin.h"
#include "tests/plants/feedback_hooks.h"

#include <stdlib.h>

#define BUCKETS_MAX 256

/* Scratch of one rank: copies that live until the reducer is destroyed. */
typedef struct plant {
    struct {
        const cddp_device *device;
        cddp_dtype dtype;
        int64_t numel;
        void *storage;
    } scratch[BUCKETS_MAX];
    float given[8], taken[8]; /* of an exchange of shares */
} plant;

static cddp_status plant_create(const cddp_hook_context *context, void **self, cddp_error *err)
{
    (void)context;
    plant *p = calloc(1, sizeof *p);
    if (p == NULL) return cddp_error_set(err, CDDP_E_NOMEM, "no memory for a planted hook");
    *self = p;
    return CDDP_OK;
}

static void plant_destroy(void *self)
{
    plant *p = self;
    for (size_t i = 0; p != NULL && i < BUCKETS_MAX; i++) {
        if (p->scratch[i].storage != NULL) {
            p->scratch[i].device->release(p->scratch[i].device, p->scratch[i].dtype,
                                          p->scratch[i].numel, p->scratch[i].storage);
        }
    }
    free(p);
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

static cddp_status run_sum(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                           cddp_future *future, cddp_error *err)
{
    (void)self;
    future->result = bucket->buffer;
    return post_sum(bucket, &bucket->buffer, group, future, err);
}

static cddp_status divide_again(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                                cddp_error *err)
{
    (void)self;
    future->next = NULL;
    future->work_count = 0;
    future->result = bucket->buffer;
    return bucket->buffer.device->divide(&bucket->buffer, &bucket->buffer,
                                         (int64_t)future->scratch[0], NULL, err);
}

static cddp_status run_twice(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                             cddp_future *future, cddp_error *err)
{
    (void)self;
    const cddp_tensor *buffer = &bucket->buffer;
    const cddp_status status =
        buffer->device->divide(buffer, buffer, cddp_group_size(group), NULL, err);
    if (status != CDDP_OK) return status;
    future->scratch[0] = cddp_group_size(group);
    future->next = divide_again;
    return post_sum(bucket, buffer, group, future, err);
}

/* A copy of the bucket that takes part in the sum in its place. */
static cddp_status copy_bucket(plant *p, const cddp_grad_bucket *bucket, cddp_dtype dtype,
                               cddp_tensor *copy, cddp_error *err)
{
    const cddp_tensor *buffer = &bucket->buffer;
    const uint32_t i = bucket->index + (bucket->generation > 0 ? BUCKETS_MAX / 2 : 0);
    if (bucket->index >= BUCKETS_MAX / 2) {
        return cddp_error_set(err, CDDP_E_LIMIT, "planted hook: bucket %u is one too many",
                              bucket->index);
    }
    if (p->scratch[i].storage == NULL) {
        const cddp_status status = buffer->device->allocate(buffer->device, dtype, buffer->sizes[0],
                                                            &p->scratch[i].storage, err);
        if (status != CDDP_OK) return status;
        p->scratch[i].device = buffer->device;
        p->scratch[i].dtype = dtype;
        p->scratch[i].numel = buffer->sizes[0];
    }
    *copy = cddp_tensor_of(buffer->device, p->scratch[i].storage, 0, dtype, buffer->sizes, 1);
    return buffer->device->copy(copy, buffer, NULL, err);
}

static cddp_status run_local(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                             cddp_future *future, cddp_error *err)
{
    cddp_tensor sent = bucket->buffer;
    cddp_status status = bucket->buffer.device->divide(&bucket->buffer, &bucket->buffer,
                                                       cddp_group_size(group), NULL, err);
    if (status == CDDP_OK && cddp_group_rank(group) == 1)
        status = copy_bucket(self, bucket, sent.dtype, &sent, err);
    future->result = bucket->buffer;
    return status == CDDP_OK ? post_sum(bucket, &sent, group, future, err) : status;
}

static cddp_status run_first_only(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                  cddp_future *future, cddp_error *err)
{
    (void)self;
    const cddp_tensor first =
        cddp_tensor_slice(&bucket->buffer, bucket->offsets[0], bucket->lengths[0]);
    const cddp_status status =
        first.device->divide(&first, &first, cddp_group_size(group), NULL, err);
    future->result = bucket->buffer;
    return status == CDDP_OK ? post_sum(bucket, &bucket->buffer, group, future, err) : status;
}

static cddp_status make_constant(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                                 cddp_error *err)
{
    (void)self;
    future->next = NULL;
    future->work_count = 0;
    future->result = bucket->buffer;
    return bucket->buffer.device->fill(&bucket->buffer, 7.0, NULL, err);
}

static cddp_status run_constant(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                cddp_future *future, cddp_error *err)
{
    (void)self;
    future->next = make_constant;
    return post_sum(bucket, &bucket->buffer, group, future, err);
}

/* scratch[1]: the half copy's storage. */
static cddp_status divide_halves(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                                 cddp_error *err)
{
    (void)self;
    const cddp_tensor *buffer = &bucket->buffer;
    const cddp_tensor half = cddp_tensor_of(buffer->device, (void *)(uintptr_t)future->scratch[1],
                                            0, CDDP_F16, buffer->sizes, 1);
    future->next = NULL;
    future->work_count = 0;
    future->result = *buffer;
    const cddp_status status =
        half.device->divide(&half, &half, (int64_t)future->scratch[0], NULL, err);
    return status == CDDP_OK ? buffer->device->copy(buffer, &half, NULL, err) : status;
}

static cddp_status run_half_sum(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                cddp_future *future, cddp_error *err)
{
    cddp_tensor half;
    const cddp_status status = copy_bucket(self, bucket, CDDP_F16, &half, err);
    if (status != CDDP_OK) return status;
    future->scratch[0] = cddp_group_size(group);
    future->scratch[1] = (uint64_t)(uintptr_t)half.storage;
    future->next = divide_halves;
    return post_sum(bucket, &half, group, future, err);
}

static cddp_status run_no_op(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                             cddp_future *future, cddp_error *err)
{
    (void)self;
    const cddp_tensor *buffer = &bucket->buffer;
    const cddp_status status =
        buffer->device->divide(buffer, buffer, cddp_group_size(group), NULL, err);
    future->result = *buffer;
    return status == CDDP_OK ? post_sum(bucket, buffer, group, future, err) : status;
}

static cddp_status run_withholds(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                 cddp_future *future, cddp_error *err)
{
    const cddp_tensor *buffer = &bucket->buffer;
    if (cddp_group_rank(group) == 1) {
        const cddp_status status = buffer->device->fill(buffer, 0.0, NULL, err);
        if (status != CDDP_OK) return status;
    }
    return run_no_op(self, bucket, group, future, err);
}

static cddp_status run_last(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                            cddp_future *future, cddp_error *err)
{
    future->result = bucket->buffer;
    return bucket->index == 0 ? run_no_op(self, bucket, group, future, err) : CDDP_OK;
}

static cddp_status add_debt(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                            cddp_error *err)
{
    const cddp_tensor *buffer = &bucket->buffer;
    const cddp_tensor debt = cddp_tensor_of(buffer->device, (void *)(uintptr_t)future->scratch[0],
                                            0, buffer->dtype, buffer->sizes, buffer->dim_count);
    (void)self;
    future->next = NULL;
    future->result = *buffer;
    return buffer->device->axpy(buffer, 1, &debt, NULL, err);
}

/* Rank 0 takes what it sent from the buffer that is being reduced. When it posts last, the sum is
** there already. */
static cddp_status run_early(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                             cddp_future *future, cddp_error *err)
{
    const cddp_tensor *buffer = &bucket->buffer;
    cddp_tensor sent, debt;
    cddp_grad_bucket again = *bucket;
    cddp_status status = buffer->device->divide(buffer, buffer, cddp_group_size(group), NULL, err);
    if (status == CDDP_OK) status = copy_bucket(self, bucket, buffer->dtype, &sent, err);
    if (status == CDDP_OK) status = post_sum(bucket, buffer, group, future, err);
    if (status != CDDP_OK) return status;
    future->result = *buffer;
    if (cddp_group_rank(group) != 0) return CDDP_OK;
    again.index += BUCKETS_MAX / 4;
    status = copy_bucket(self, &again, buffer->dtype, &debt, err);
    if (status == CDDP_OK) status = buffer->device->axpy(&debt, -1, &sent, NULL, err);
    future->scratch[0] = (uint64_t)(uintptr_t)debt.storage;
    future->next = add_debt;
    return status;
}

static cddp_status run_shares(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                              cddp_future *future, cddp_error *err)
{
    static const int64_t given[2][2] = {{1, 2}, {2, 1}}, taken[2][2] = {{1, 1}, {2, 1}};
    plant *p = self;
    const cddp_tensor *buffer = &bucket->buffer;
    const uint32_t me = cddp_group_rank(group) % 2;
    const int64_t in = given[me][0] + given[me][1], out = taken[me][0] + taken[me][1];
    cddp_collective exchange = {.size = sizeof exchange,
                                .op = CDDP_OP_ALLTOALL,
                                .input =
                                    cddp_tensor_of(buffer->device, p->given, 0, CDDP_F32, &in, 1),
                                .output =
                                    cddp_tensor_of(buffer->device, p->taken, 0, CDDP_F32, &out, 1),
                                .counts = taken[me],
                                .send_counts = given[me]};
    cddp_status status = buffer->device->divide(buffer, buffer, cddp_group_size(group), NULL, err);
    if (status == CDDP_OK) status = post_sum(bucket, buffer, group, future, err);
    future->result = *buffer;
    if (status != CDDP_OK || cddp_group_size(group) != 2 || !bucket->is_last) return status;
    status = cddp_group_post(group, &exchange, &future->works[future->work_count], err);
    future->work_count += status == CDDP_OK;
    return status;
}

#define PLANT(plant_name, runs, ...)                                \
    static const cddp_hook plant_name = {.size = sizeof(cddp_hook), \
                                         .abi = CDDP_HOOK_ABI,      \
                                         .name = #plant_name,       \
                                         .create = plant_create,    \
                                         .destroy = plant_destroy,  \
                                         .run = runs,               \
                                         __VA_ARGS__}
PLANT(plant_sum, run_sum, .flags = 0);
PLANT(plant_twice, run_twice, .flags = 0);
PLANT(plant_local, run_local, .flags = 0);
PLANT(plant_first_only, run_first_only, .flags = 0);
PLANT(plant_constant, run_constant, .flags = 0);
PLANT(plant_half_sum, run_half_sum, .flags = CDDP_HOOK_LOSSY | CDDP_HOOK_CASTS_FIRST,
      .wire_dtype = CDDP_DTYPE_BIT(CDDP_F16));
PLANT(plant_no_op, run_no_op, .flags = CDDP_HOOK_LOSSY, .wire_dtype = CDDP_DTYPE_BIT(CDDP_F16));
PLANT(plant_withholds, run_withholds, .flags = CDDP_HOOK_EXACT);
PLANT(plant_means, run_no_op, .flags = CDDP_HOOK_EXACT);
PLANT(plant_last, run_last, .flags = 0);
PLANT(plant_early, run_early, .flags = 0);
PLANT(plant_shares, run_shares, .flags = CDDP_HOOK_EXACT);

static const cddp_hook *const hooks[] = {&plant_sum,
                                         &plant_twice,
                                         &plant_local,
                                         &plant_first_only,
                                         &plant_constant,
                                         &plant_half_sum,
                                         &plant_no_op,
                                         &plant_last,
                                         &plant_feedback,
                                         &plant_by_index,
                                         &plant_forgets,
                                         &plant_seed,
                                         &plant_early,
                                         &plant_stream,
                                         &plant_claims,
                                         &plant_shares,
                                         &plant_withholds,
                                         &plant_means,
                                         NULL};

CDDP_PLUGIN_EXPORT extern const cddp_plugin cddp_plugin_v1;
const cddp_plugin cddp_plugin_v1 = {.size = sizeof(cddp_plugin),
                                    .abi = CDDP_PLUGIN_ABI,
                                    .name = "plants",
                                    .version = "1",
                                    .hooks = hooks};
