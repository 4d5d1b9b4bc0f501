/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers, work memory and saved bytes for hooks that cannot do with whole-tensor operations
** alone. */
#include "core/hooks/host.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/hooks/hook.h"
#include "core/tensor/dtype.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

bool cd_host_can_look(const cddp_device *device)
{
    const uint32_t needed = CDDP_DEVICE_VALUES | CDDP_DEVICE_HOST;
    return (device->flags & (needed | CDDP_DEVICE_ASYNC)) == needed;
}

bool cd_host_is_away(const cddp_device *device)
{
    return (device->flags & (CDDP_DEVICE_VALUES | CDDP_DEVICE_HOST)) == CDDP_DEVICE_VALUES;
}

cddp_status cd_host_refuse(const cddp_grad_bucket *bucket, const char *name, const char *what,
                           cddp_error *err)
{
    CD_TRY(cd_hook_refuse_sparse(bucket, name, err));
    const cddp_device *d = bucket->buffer.device;
    if (!cd_host_can_look(d) && !(cd_host_is_away(d) && what == NULL))
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "comm hook %s needs numbers in host memory%s%s; bucket %u is on device %s",
                       name, what != NULL ? ", or a device that can " : "",
                       what != NULL ? what : "", bucket->index, d->name);
    cddp_dtype dtype =
        bucket->parameter_count > 0 ? bucket->gradients[0].dtype : bucket->buffer.dtype;
    if (!cddp_dtype_is_float(dtype))
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "comm hook %s takes real gradients only; bucket %u holds %s", name,
                       bucket->index, cddp_dtype_name(dtype));
    return CDDP_OK;
}

double cd_host_get(const cddp_tensor *t, int64_t i)
{
    return cd_element_get(t->dtype, (const char *)t->storage +
                                        (size_t)(t->offset + i) * cddp_dtype_bytes(t->dtype));
}

void cd_host_set(const cddp_tensor *t, int64_t i, double value)
{
    cd_element_set(t->dtype,
                   (char *)t->storage + (size_t)(t->offset + i) * cddp_dtype_bytes(t->dtype),
                   value);
}

void cd_host_add(cd_host_sums *sums, int64_t place, double x)
{
    sums->sum += cd_host_sign(place) * x;
    sums->magnitude += fabs(x);
    sums->count++;
}

void cd_host_add_all(cd_host_sums *sums, int64_t first_place, const cddp_tensor *flat)
{
    int64_t numel = cddp_tensor_numel(flat);
    for (int64_t i = 0; i < numel; i++) cd_host_add(sums, first_place + i, cd_host_get(flat, i));
}

double cd_host_sign(int64_t i)
{
    return (cd_hash_mix(29, (uint64_t)i) >> 32 & 1) != 0 ? 1.0 : -1.0;
}

double cd_host_unit(cddp_dtype dtype)
{
    return dtype == CDDP_F64   ? 0x1p-53
           : dtype == CDDP_F32 ? 0x1p-24
           : dtype == CDDP_F16 ? 0x1p-11
                               : 0x1p-8;
}

double cd_host_least(cddp_dtype dtype)
{
    return dtype == CDDP_F64   ? 0x1p-1074
           : dtype == CDDP_F32 ? 0x1p-150
           : dtype == CDDP_F16 ? 0x1p-25
                               : 0x1p-134;
}

/* Per element: W - 1 additions and a division, before or after them, round W times; u of the sum's
** dtype each, or its smallest step W times.
** Then the result is rounded to its own dtype. Over the ranks that is γ(W)·Σ|sent| and u·(1 +
** γ(W))·Σ|sent| at most, of which each rank states its own part; and the sums here round in f64. */
void cd_mean_law_state(const cd_mean_law *law, cddp_tracer *tracer)
{
    const cd_host_sums *sent = law->sent, *has = law->has;
    double w = (double)law->world_size, units = w * cd_host_unit(law->sum),
           gamma = units < 1 ? units / (1 - units) : INFINITY;
    double part = (1 + gamma) * (1 + cd_host_unit(law->result)) - 1, count = (double)has->count;
    double bound = part * sent->magnitude +
                   count * (w * cd_host_least(law->sum) + cd_host_least(law->result)) +
                   0x1p-52 * ((double)sent->count * sent->magnitude + count * has->magnitude);
    bool can_say = isfinite(bound) && isfinite(has->sum); /* an overflow is I-RANGE's */
    cddp_law stated = {
        sizeof(cddp_law),
        "what all ranks sent, divided by their number, is what all of them have: signed sums",
        law->bucket,
        can_say ? has->sum : 0,
        can_say ? sent->sum : 0,
        can_say ? bound : INFINITY,
        true};
    cddp_tracer_law(tracer, &stated);
}

cddp_status cd_host_memory_reserve(const cddp_allocator *allocator, cd_host_memory *memory,
                                   size_t bytes, cddp_error *err)
{
    if (bytes == 0) bytes = 1;
    if (bytes <= memory->bytes) return CDDP_OK;
    void *block = cd_allocate(allocator, bytes);
    if (block == NULL) return cd_fail_memory(err, "%zu bytes of a comm hook", bytes);
    cd_host_memory_release(allocator, memory);
    *memory = (cd_host_memory){block, bytes};
    return CDDP_OK;
}

void cd_host_memory_release(const cddp_allocator *allocator, cd_host_memory *memory)
{
    cd_release(allocator, memory->block, memory->bytes);
    *memory = (cd_host_memory){NULL, 0};
}

cddp_tensor cd_host_memory_tensor(const cd_host_memory *memory, cddp_dtype dtype, int64_t numel)
{
    return cddp_tensor_of(cddp_device_cpu(), memory->block, 0, dtype, &numel, 1);
}

cddp_status cd_flat_reserve(cd_flat *f, const cddp_device *d, cddp_dtype dtype, int64_t numel,
                            cddp_error *err)
{
    if (f->capacity > 0 &&
        (f->tensor.device != d || f->tensor.dtype != dtype || f->capacity < numel))
        cd_flat_release(f);
    if (f->capacity == 0) {
        int64_t wanted = numel > 0 ? numel : 1;
        void *storage = NULL;
        CD_TRY(d->allocate(d, dtype, wanted, &storage, err));
        f->tensor.storage = storage;
        f->capacity = wanted;
    }
    f->tensor = cddp_tensor_of(d, f->tensor.storage, 0, dtype, &numel, 1);
    return CDDP_OK;
}

void cd_flat_release(cd_flat *f)
{
    if (f->capacity > 0)
        f->tensor.device->release(f->tensor.device, f->tensor.dtype, f->capacity,
                                  f->tensor.storage);
    f->capacity = 0;
}

cd_state_model cd_state_model_of(const cddp_hook_context *context)
{
    return (cd_state_model){.digest = context->model_digest,
                            .parameter_count = context->parameter_count};
}

cddp_status cd_state_model_check(const cd_state_model *own, const cd_state_model *saved,
                                 const char *who, cddp_error *err)
{
    if (own->digest == 0 || saved->digest == 0 || own->digest == saved->digest) return CDDP_OK;
    if (own->parameter_count == saved->parameter_count)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "%s: the state was saved for another model: its %" PRIu64
                       " parameters have other sizes or dtypes",
                       who, saved->parameter_count);
    return cd_fail(err, CDDP_E_MISMATCH,
                   "%s: the state was saved for a model of %" PRIu64
                   " parameters; this one has %" PRIu64,
                   who, saved->parameter_count, own->parameter_count);
}

#define ARRIVING_BYTES 4096 /* that are taken before any has arrived */

/* In growing parts: half of what there is room for has arrived. */
static cddp_status get_arriving(cd_state_in *in, const cddp_allocator *allocator,
                                cd_host_memory *memory, size_t count, cddp_error *err)
{
    for (size_t have = 0; have < count;) {
        size_t part = have > ARRIVING_BYTES ? have : ARRIVING_BYTES;
        if (part > count - have) part = count - have;
        cd_host_memory larger = {NULL, 0};
        CD_TRY(cd_host_memory_reserve(allocator, &larger, have + part, err));
        if (have > 0) memcpy(larger.block, memory->block, have);
        cd_host_memory_release(allocator, memory);
        *memory = larger;
        if (!in->reader->read(in->reader->context, (unsigned char *)memory->block + have, part))
            return CD_PASS(cd_state_fail_early(in, err));
        have += part;
    }
    in->seal = cd_seal_add(in->seal, memory->block, count);
    return CDDP_OK;
}

cddp_status cd_state_get_flat(cd_state_in *in, const cd_state_flat *wanted, cd_flat *flat,
                              cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_host_memory memory = {NULL, 0};
    const size_t bytes = (size_t)wanted->numel * cddp_dtype_bytes(wanted->dtype);
    CD_TRY_OUT(get_arriving(in, wanted->allocator, &memory, bytes, err));
    CD_TRY_OUT(cd_flat_reserve(flat, cddp_device_cpu(), wanted->dtype, wanted->numel, err));
    if (bytes > 0) memcpy(flat->tensor.storage, memory.block, bytes);
out:
    cd_host_memory_release(wanted->allocator, &memory);
    return status;
}
