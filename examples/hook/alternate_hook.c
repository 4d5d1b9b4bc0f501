/* SPDX-License-Identifier: Apache-2.0 */
/* A communication hook from outside the tree, complete and right: copy it to begin your own.
**
** Even elements of a parameter are sent in even backwards, odd ones in odd backwards: half the
** bytes. The rest is kept and added to the next gradient (error feedback).
**
**     cmake -B build -DCMAKE_PREFIX_PATH=/where/cddp/is/installed && cmake --build build
**     cddp-verify hook-conformance alternate --plugin build/alternate_hook.so
**     cddp-verify scenarios/hooks/topk.toml --plugin build/alternate_hook.so \
**         --set ddp.comm_hook=alternate
**
** Each of its rules is a law of the report card. It divides before it sums (range). It keeps error
** feedback by parameter and not by bucket (rebuild). It counts backwards on the last bucket
** (phase). It saves all of its state (resume). It sends from its own memory and writes only to its
** bucket (untouched). It states how much it sends (bytes).
*/
#include <cddp/device.h>
#include <cddp/plugin.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct slot {
    float *owed; /* (numel) of one parameter; NULL until its first bucket */
    int64_t numel;
} slot;

typedef struct packet {
    float *values; /* (capacity) what travels of one bucket */
    int64_t capacity, numel;
} packet;

typedef struct alternate {
    cddp_tracer *tracer;
    uint64_t model[2]; /* digest and count of the variables: a state of others is refused */
    uint64_t backward; /* how many there were */
    slot *slots;       /* (slot_count) by parameter */
    packet *packets;   /* (slot_count) by the first parameter of a bucket */
    uint32_t slot_count;
} alternate;

static cddp_status alternate_create(const cddp_hook_context *context, void **self, cddp_error *err)
{
    if (context->options != NULL && context->options[0] != '\0')
        return cddp_error_set(err, CDDP_E_CONFIG, "hook alternate takes no options; got \"%s\"",
                              context->options);
    alternate *a = calloc(1, sizeof *a);
    if (a == NULL) return cddp_error_set(err, CDDP_E_NOMEM, "hook alternate: no memory");
    a->tracer = context->tracer;
    a->model[0] = context->model_digest;
    a->model[1] = context->parameter_count;
    *self = a;
    return CDDP_OK;
}

static void alternate_destroy(void *self)
{
    alternate *a = self;
    for (uint32_t i = 0; a != NULL && i < a->slot_count; i++) {
        free(a->slots[i].owed);
        free(a->packets[i].values);
    }
    if (a != NULL) {
        free(a->slots);
        free(a->packets);
    }
    free(a);
}

/* ---- memory ---- */

static cddp_status grow(alternate *a, uint32_t count, cddp_error *err)
{
    if (count <= a->slot_count) return CDDP_OK;
    slot *slots = calloc(count, sizeof *slots);
    packet *packets = calloc(count, sizeof *packets);
    if (slots == NULL || packets == NULL) {
        free(slots);
        free(packets);
        return cddp_error_set(err, CDDP_E_NOMEM, "hook alternate: no memory for %u parameters",
                              count);
    }
    if (a->slot_count > 0) {
        memcpy(slots, a->slots, a->slot_count * sizeof *slots);
        memcpy(packets, a->packets, a->slot_count * sizeof *packets);
    }
    free(a->slots);
    free(a->packets);
    a->slots = slots;
    a->packets = packets;
    a->slot_count = count;
    return CDDP_OK;
}

static cddp_status slot_make(slot *s, int64_t numel, cddp_error *err)
{
    if (s->owed == NULL) {
        s->owed = calloc(numel > 0 ? (size_t)numel : 1, sizeof *s->owed);
        s->numel = numel;
        if (s->owed == NULL)
            return cddp_error_set(err, CDDP_E_NOMEM, "hook alternate: no memory for what is owed");
    }
    if (s->numel != numel)
        return cddp_error_set(
            err, CDDP_E_MISMATCH,
            "hook alternate: its state is for %lld elements, the gradient has %lld",
            (long long)s->numel, (long long)numel);
    return CDDP_OK;
}

static cddp_status reserve(alternate *a, const cddp_grad_bucket *bucket, packet **found,
                           cddp_error *err)
{
    int64_t numel = cddp_tensor_numel(&bucket->buffer);
    for (uint32_t k = 0; k < bucket->parameter_count; k++) {
        cddp_status status = grow(a, bucket->parameter_ids[k] + 1, err);
        if (status == CDDP_OK)
            status = slot_make(&a->slots[bucket->parameter_ids[k]], bucket->lengths[k], err);
        if (status != CDDP_OK) return status;
    }
    packet *p = &a->packets[bucket->parameter_ids[0]];
    if (p->capacity < numel || p->values == NULL) {
        float *values = calloc(numel > 0 ? (size_t)numel : 1, sizeof *values);
        if (values == NULL)
            return cddp_error_set(err, CDDP_E_NOMEM, "hook alternate: no memory for a bucket");
        free(p->values);
        *p = (packet){values, numel, 0};
    }
    *found = p;
    return CDDP_OK;
}

/* ---- one bucket ---- */

static float *flat_of(const cddp_grad_bucket *bucket)
{
    return (float *)bucket->buffer.storage + bucket->buffer.offset;
}

/* The law: gradient + old debt = sent + new debt. Only the addition of the debt rounds. */
static void state_law(const alternate *a, const cddp_grad_bucket *bucket, const double in[2],
                      double out)
{
    double numel = (double)cddp_tensor_numel(&bucket->buffer);
    cddp_law law = {.size = sizeof law,
                    .name = "gradient + old debt = sent + new debt",
                    .bucket = (int64_t)bucket->index,
                    .left = out,
                    .right = in[0],
                    .bound = (0x1p-24 + numel * 0x1p-51) * in[1] + numel * 0x1p-150};
    if (a->tracer != NULL && isfinite(in[0])) cddp_tracer_law(a->tracer, &law);
}

/* Fills the packet with what travels now; the rest is owed. */
static void pack(alternate *a, const cddp_grad_bucket *bucket, packet *p)
{
    /* Σ x and Σ |x| of what goes in, Σ x of what becomes of it */
    double in[2] = {0.0, 0.0}, out = 0.0;
    p->numel = 0;
    for (uint32_t k = 0; k < bucket->parameter_count; k++) {
        const float *gradient = flat_of(bucket) + bucket->offsets[k];
        float *owed = a->slots[bucket->parameter_ids[k]].owed;
        for (int64_t i = 0; i < bucket->lengths[k]; i++) {
            in[0] += (double)gradient[i] + (double)owed[i];
            in[1] += fabs((double)gradient[i]) + fabs((double)owed[i]);
            owed[i] += gradient[i];
            out += (double)owed[i];
            if ((uint64_t)i % 2 != a->backward % 2) continue;
            p->values[p->numel++] = owed[i];
            owed[i] = 0.0f;
        }
    }
    state_law(a, bucket, in, out);
}

/* The sum is there: into the bucket, and zeros where nothing travelled. */
static cddp_status unpack(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                          cddp_error *err)
{
    const alternate *a = self;
    const packet *p = &a->packets[bucket->parameter_ids[0]];
    uint64_t parity = future->scratch[0];
    int64_t taken = 0;
    (void)err;
    for (uint32_t k = 0; k < bucket->parameter_count; k++)
        for (int64_t i = 0; i < bucket->lengths[k]; i++)
            flat_of(bucket)[bucket->offsets[k] + i] =
                (uint64_t)i % 2 == parity ? p->values[taken++] : 0.0f;
    future->result = bucket->buffer;
    return CDDP_OK;
}

static cddp_status alternate_run(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                 cddp_future *future, cddp_error *err)
{
    alternate *a = self;
    packet *p = NULL;
    const cddp_device *device = bucket->buffer.device;
    if (bucket->sparse != NULL || bucket->buffer.dtype != CDDP_F32 ||
        (device->flags & CDDP_DEVICE_HOST) == 0 || bucket->gradients[0].dtype != CDDP_F32)
        return cddp_error_set(
            err, CDDP_E_UNSUPPORTED,
            "hook alternate takes flat f32 buckets in host memory; bucket %u is another",
            bucket->index);
    cddp_status status = reserve(a, bucket, &p, err);
    if (status != CDDP_OK) return status;
    pack(a, bucket, p);
    future->scratch[0] = a->backward % 2; /* the counter may have moved on when the sum is there */
    if (bucket->is_last) a->backward++;
    cddp_tensor values = cddp_tensor_of(device, p->values, 0, CDDP_F32, &p->numel, 1);
    status = device->divide(&values, &values, cddp_group_size(group), NULL, err);
    if (status != CDDP_OK) return status;
    cddp_collective sum = {.size = sizeof sum,
                           .op = CDDP_OP_ALLREDUCE,
                           .reduce_op = CDDP_RED_SUM,
                           .input = values,
                           .output = values,
                           .label = (uint64_t)bucket->index + 1};
    future->next = unpack;
    status = cddp_group_post(group, &sum, &future->works[0], err);
    if (status == CDDP_OK) future->work_count = 1;
    return status;
}

/* Every second element, the first one included. */
static uint64_t alternate_promise(const void *self, const cddp_grad_bucket *bucket)
{
    uint64_t sent = 0;
    (void)self;
    for (uint32_t k = 0; k < bucket->parameter_count; k++)
        sent += ((uint64_t)bucket->lengths[k] + 1) / 2;
    return sent * sizeof(float);
}

/* ---- state ---- */

static cddp_status alternate_save(void *self, const cddp_state_writer *w, cddp_error *err)
{
    const alternate *a = self;
    bool ok = w->write(w->context, a->model, sizeof a->model) &&
              w->write(w->context, &a->backward, sizeof a->backward) &&
              w->write(w->context, &a->slot_count, sizeof a->slot_count);
    for (uint32_t i = 0; ok && i < a->slot_count; i++) {
        int64_t numel = a->slots[i].owed != NULL ? a->slots[i].numel : -1;
        ok = w->write(w->context, &numel, sizeof numel) &&
             (numel <= 0 || w->write(w->context, a->slots[i].owed, (size_t)numel * sizeof(float)));
    }
    return ok ? CDDP_OK
              : cddp_error_set(err, CDDP_E_IO, "hook alternate: its state cannot be written");
}

static cddp_status alternate_load(void *self, const cddp_state_reader *r, cddp_error *err)
{
    alternate *a = self;
    uint32_t count = 0;
    uint64_t model[2] = {0, 0};
    bool ok = r->read(r->context, model, sizeof model);
    if (ok && model[0] != a->model[0])
        return cddp_error_set(err, CDDP_E_MISMATCH,
                              "hook alternate: the state was saved for another model, of %llu "
                              "parameters; this one has %llu",
                              (unsigned long long)model[1], (unsigned long long)a->model[1]);
    ok = ok && r->read(r->context, &a->backward, sizeof a->backward) &&
         r->read(r->context, &count, sizeof count) && count < 1u << 24;
    cddp_status status = ok ? grow(a, count, err) : CDDP_OK;
    for (uint32_t i = 0; ok && status == CDDP_OK && i < count; i++) {
        int64_t numel = -1;
        ok = r->read(r->context, &numel, sizeof numel) && numel < INT64_C(1) << 40;
        if (!ok || numel < 0) continue;
        status = slot_make(&a->slots[i], numel, err);
        ok = status != CDDP_OK || numel == 0 ||
             r->read(r->context, a->slots[i].owed, (size_t)numel * sizeof(float));
    }
    return ok ? status
              : cddp_error_set(err, CDDP_E_CORRUPT,
                               "hook alternate: the saved state ends early or is damaged");
}

static const cddp_hook hook = {
    .size = sizeof hook,
    .abi = CDDP_HOOK_ABI,
    .name = "alternate",
    .flags = CDDP_HOOK_LOSSY | CDDP_HOOK_STATEFUL,
    .create = alternate_create,
    .destroy = alternate_destroy,
    .run = alternate_run,
    .promise = alternate_promise,
    .save = alternate_save,
    .load = alternate_load,
};

static const cddp_hook *const hooks[] = {&hook, NULL};

CDDP_PLUGIN_EXPORT extern const cddp_plugin cddp_plugin_v1;
const cddp_plugin cddp_plugin_v1 = {.size = sizeof cddp_plugin_v1,
                                    .abi = CDDP_PLUGIN_ABI,
                                    .name = "alternate",
                                    .version = "1",
                                    .hooks = hooks};
