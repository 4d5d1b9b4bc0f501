/* SPDX-License-Identifier: Apache-2.0 */
/* For hooks that look at numbers: single elements and sums of host tensors, work memory of buckets,
** saved states.
**
** Ownership  a cd_host_memory owns its block until cd_host_memory_release.
*/
#pragma once
#include "cddp/device.h"
#include "cddp/hook.h"
#include "core/tensor/saved.h"

#include <stddef.h>

/* May the host look at the numbers themselves, at once? */
bool cd_host_can_look(const cddp_device *device);
/* Numbers in memory of the device's own: it must do for itself what the host cannot look at. */
bool cd_host_is_away(const cddp_device *device);
/* An optional slot of the device table. */
#define CD_DEVICE_HAS(device, slot)                                            \
    ((device)->size >= offsetof(cddp_device, slot) + sizeof((device)->slot) && \
     (device)->slot != NULL)

/* Refuses sparse buckets, what is not real floating point, and devices where neither the host can
** look at numbers nor the device does `what` itself (NULL: it does). */
cddp_status cd_host_refuse(const cddp_grad_bucket *bucket, const char *name, const char *what,
                           cddp_error *err);

/* Element i of a contiguous tensor in host memory. */
double cd_host_get(const cddp_tensor *t, int64_t i);
void cd_host_set(const cddp_tensor *t, int64_t i, double value);

/* 1 or -1, fixed and arbitrary: in a sum with such signs errors are not likely to cancel. */
double cd_host_sign(int64_t i);

/* Σ ±x, with the signs of places in a bucket, and Σ |x|, in f64: what is missing and what is in the
** wrong place show alike. */
typedef struct cd_host_sums {
    double sum, magnitude;
    int64_t count;
} cd_host_sums;
void cd_host_add(cd_host_sums *sums, int64_t place, double x);
void cd_host_add_all(cd_host_sums *sums, int64_t first_place, const cddp_tensor *flat);

/* Half a unit in the last place of 1, and half the smallest subnormal, of a floating dtype. */
double cd_host_unit(cddp_dtype dtype);
double cd_host_least(cddp_dtype dtype);

/* The law of hooks that add up shares: the sum of all ranks' shares, divided by the number of
** ranks, is every rank's result. Shares are added in `sum`; the result is a `result`. Every rank
** states it, joined ranks too. */
typedef struct cd_mean_law {
    int64_t bucket;
    uint32_t world_size;
    cddp_dtype sum, result;
    const cd_host_sums *sent, *has;
} cd_mean_law;
void cd_mean_law_state(const cd_mean_law *law, cddp_tracer *tracer);

/* A block that grows and is kept. */
typedef struct cd_host_memory {
    void *block;
    size_t bytes;
} cd_host_memory;
cddp_status cd_host_memory_reserve(const cddp_allocator *allocator, cd_host_memory *memory,
                                   size_t bytes, cddp_error *err);
void cd_host_memory_release(const cddp_allocator *allocator, cd_host_memory *memory);
/* numel elements of it, from its beginning, as a flat tensor on the cpu device. */
cddp_tensor cd_host_memory_tensor(const cd_host_memory *memory, cddp_dtype dtype, int64_t numel);

/* Elements on a device that grow and are kept; tensor is a view of as many as were asked for. */
typedef struct cd_flat {
    cddp_tensor tensor;
    int64_t capacity; /* 0: none */
} cd_flat;
cddp_status cd_flat_reserve(cd_flat *flat, const cddp_device *device, cddp_dtype dtype,
                            int64_t numel, cddp_error *err);
void cd_flat_release(cd_flat *flat);

/* The model that a state is of, as a saved one begins. A zeroed one is of no known model, and fits
** every one. */
typedef struct cd_state_model {
    uint64_t digest, parameter_count;
} cd_state_model;
cd_state_model cd_state_model_of(const cddp_hook_context *context);
/* `who` is "comm hook NAME". */
cddp_status cd_state_model_check(const cd_state_model *own, const cd_state_model *saved,
                                 const char *who, cddp_error *err);

/* A piece of elements, into host memory. Memory is taken as the bytes arrive, so a damaged numel
** takes no more than a few times what the state has. */
typedef struct cd_state_flat {
    const cddp_allocator *allocator; /* of the bytes on their way */
    cddp_dtype dtype;
    int64_t numel;
} cd_state_flat;
cddp_status cd_state_get_flat(cd_state_in *in, const cd_state_flat *wanted, cd_flat *flat,
                              cddp_error *err);
