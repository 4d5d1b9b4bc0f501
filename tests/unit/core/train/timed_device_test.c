/* SPDX-License-Identifier: Apache-2.0 */
/* A device whose passes take time: what is charged, to whom, and that it stays the same kind of
** device. */
#include "core/train/timed_device.h"

#include "tests/support/test.h"

#include <string.h>

typedef struct clock_rank {
    cddp_rank rank; /* first */
    uint64_t passed_ns;
    bool ended;
} clock_rank;

static cddp_status compute(cddp_rank *rank, uint64_t duration_ns, const char *label,
                           cddp_error *err)
{
    clock_rank *c = (clock_rank *)(void *)rank;
    (void)label;
    (void)err;
    if (c->ended) return CDDP_E_ABORTED;
    c->passed_ns += duration_ns;
    return CDDP_OK;
}

static const cddp_world_ops ops = {.size = sizeof ops,
                                   .abi = CDDP_WORLD_ABI,
                                   .name = "clock",
                                   .compute = compute};

static cddp_tensor make(const cddp_device *device, cddp_dtype dtype, int64_t numel)
{
    cddp_error err = CDDP_ERROR_INIT;
    void *storage = NULL;
    assert_ok(device->allocate(device, dtype, numel, &storage, &err), &err);
    return cddp_tensor_of(device, storage, 0, dtype, &numel, 1);
}

static void drop(const cddp_tensor *t)
{
    t->device->release(t->device, t->dtype, cddp_tensor_numel(t), t->storage);
}

TEST(timed_device, copying_and_dividing_floats_takes_time_by_the_byte)
{
    clock_rank c = {.rank = {.ops = &ops}};
    cd_timed_device timed;
    cddp_error err = CDDP_ERROR_INIT;
    /* 0.25 ns per byte */
    const cddp_device *d = cd_timed_device_init(&timed, cddp_device_cpu(), &c.rank, 250);
    cddp_tensor a = make(d, CDDP_F32, 1000), b = make(d, CDDP_F32, 1000), i = make(d, CDDP_I64, 10),
                j = make(d, CDDP_I64, 10);
    assert_ok(d->fill(&a, 3, NULL, &err), &err);
    assert_ok(d->fill(&i, 3, NULL, &err), &err);
    assert_int_equal(c.passed_ns, 0);
    assert_ok(d->copy(&b, &a, NULL, &err), &err);
    assert_int_equal(c.passed_ns, 1000);
    assert_ok(d->divide(&b, &b, 2, NULL, &err), &err);
    assert_ok(d->multiply_reciprocal(&b, &b, 2, NULL, &err), &err);
    assert_int_equal(c.passed_ns, 3000);
    const cddp_copy_pair pairs[2] = {{b, a}, {b, a}};
    assert_ok(d->copy_many(d, pairs, 2, CDDP_COPY_DIVIDE, 2, NULL, &err), &err);
    assert_int_equal(c.passed_ns, 5000);
    float first = 0;
    memcpy(&first, b.storage, sizeof first);
    assert_true(first == 1.5f); /* and it was done */
    assert_ok(d->copy(&j, &i, NULL, &err), &err);
    assert_int_equal(c.passed_ns, 5000);
    drop(&a);
    drop(&b);
    drop(&i);
    drop(&j);
}

TEST(timed_device, a_world_that_has_ended_stops_the_pass)
{
    clock_rank c = {.rank = {.ops = &ops}, .ended = true};
    cd_timed_device timed;
    cddp_error err = CDDP_ERROR_INIT;
    const cddp_device *d = cd_timed_device_init(&timed, cddp_device_shape(), &c.rank, 1);
    cddp_tensor a = make(d, CDDP_F32, 1000), b = make(d, CDDP_F32, 1000);
    assert_int_equal(d->copy(&b, &a, NULL, &err), CDDP_E_ABORTED);
    drop(&a);
    drop(&b);
}

TEST_MAIN()
