/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors for tests of core/tensor: made in one call, released together. */
#pragma once
#include "cddp/device.h"
#include "tests/support/test.h"

#include <string.h>

typedef struct fixture {
    struct {
        cddp_tensor tensor;
        int64_t numel;
    } items[64];
    size_t count;
    cddp_error err;
} fixture;

#define FIXTURE_INIT           \
    {                          \
        .err = CDDP_ERROR_INIT \
    }
#define SIZES(...)                  \
    (const int64_t[]){__VA_ARGS__}, \
        (uint32_t)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static inline cddp_tensor fixture_make(fixture *f, const cddp_device *device, cddp_dtype dtype,
                                       const int64_t *sizes, uint32_t dim_count)
{
    void *storage = NULL;
    cddp_tensor t = cddp_tensor_of(device, NULL, 0, dtype, sizes, dim_count);
    int64_t numel = cddp_tensor_numel(&t);
    assert_ok(device->allocate(device, dtype, numel, &storage, &f->err), &f->err);
    t.storage = storage;
    assert_true(f->count < sizeof f->items / sizeof f->items[0]);
    f->items[f->count].tensor = t;
    f->items[f->count++].numel = numel;
    return t;
}

static inline void fixture_fini(fixture *f)
{
    while (f->count > 0) {
        f->count--;
        const cddp_tensor *t = &f->items[f->count].tensor;
        t->device->release(t->device, t->dtype, f->items[f->count].numel, t->storage);
    }
}

/* A (sizes) view of t's storage whose last dimension moves slowest of all (as channels-last does to
** (n, c, w)). */
static inline cddp_tensor fixture_permuted(const cddp_tensor *t)
{
    cddp_tensor p = *t;
    int64_t stride = 1;
    for (uint32_t i = 0; i < t->dim_count; i++) {
        p.strides[i] = stride;
        stride *= t->sizes[i];
    }
    return p;
}

static inline void fixture_write(fixture *f, const cddp_tensor *t, const void *values)
{
    size_t bytes = (size_t)cddp_tensor_numel(t) * cddp_dtype_bytes(t->dtype);
    assert_ok(t->device->write(t, values, bytes, &f->err), &f->err);
}

static inline void fixture_read(fixture *f, const cddp_tensor *t, void *values)
{
    size_t bytes = (size_t)cddp_tensor_numel(t) * cddp_dtype_bytes(t->dtype);
    assert_ok(t->device->read(t, values, bytes, &f->err), &f->err);
}
