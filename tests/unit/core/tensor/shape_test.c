/* SPDX-License-Identifier: Apache-2.0 */
/* The shape device: floating tensors of any size cost nothing, integers keep their values, mistakes
** still show. */
#include "core/base/alloc.h"
#include "core/tensor/cpu.h"
#include "tests/unit/core/tensor/fixture.h"

static const cddp_device *shape(void) { return cddp_device_shape(); }

TEST(shape, a_tensor_of_a_trillion_elements_is_a_token)
{
    cd_watch_allocator watch;
    cddp_error err = CDDP_ERROR_INIT;
    cd_watch_allocator_init(&watch, NULL);
    cddp_device mine = cd_device_with_allocator(shape(), &watch.table);
    const int64_t numel = INT64_C(1000000000000);
    void *a, *b;
    assert_ok(mine.allocate(&mine, CDDP_F32, numel, &a, &err), &err);
    assert_ok(mine.allocate(&mine, CDDP_F32, numel, &b, &err), &err);
    assert_true(watch.live_bytes < 512);
    watch.frozen = watch.abort_on_growth = true;
    cddp_tensor x = cddp_tensor_of(&mine, a, 0, CDDP_F32, &numel, 1),
                y = cddp_tensor_of(&mine, b, 0, CDDP_F32, &numel, 1);
    double norm;
    int64_t index;
    uint64_t digest;
    assert_ok(mine.fill(&x, 1, NULL, &err), &err);
    assert_ok(mine.copy(&y, &x, NULL, &err), &err);
    assert_ok(mine.reduce(CDDP_RED_SUM, &x, &y, NULL, &err), &err);
    assert_ok(mine.divide(&x, &x, 3, NULL, &err), &err);
    assert_ok(mine.multiply_reciprocal(&x, &x, 3, NULL, &err), &err);
    assert_ok(mine.scale(&x, &x, 0.5, NULL, &err), &err);
    assert_ok(mine.axpy(&x, -1, &y, NULL, &err), &err);
    assert_ok(mine.copy_many(&mine, &(cddp_copy_pair){x, y}, 1, CDDP_COPY_DIVIDE, 3, NULL, &err),
              &err);
    assert_ok(mine.norm(&x, &norm, &err), &err);
    assert_ok(mine.find_nonfinite(&x, &index, &err), &err);
    assert_ok(mine.digest(&x, &digest, &err), &err);
    assert_int_equal(index, -1);
    mine.release(&mine, CDDP_F32, numel, a);
    mine.release(&mine, CDDP_F32, numel, b);
    assert_int_equal(watch.live_count, 0);
}

TEST(shape, integers_keep_their_values)
{
    fixture f = FIXTURE_INIT;
    cddp_tensor a = fixture_make(&f, shape(), CDDP_I32, SIZES(4)),
                b = fixture_make(&f, shape(), CDDP_I64, SIZES(4));
    int32_t got[4];
    int64_t wide[4];
    fixture_write(&f, &a, (int32_t[]){1, 0, 1, 0});
    assert_ok(shape()->reduce(CDDP_RED_SUM, &a, &a, NULL, &f.err), &f.err);
    fixture_read(&f, &a, got);
    assert_true(got[0] == 2 && got[1] == 0 && got[2] == 2);
    assert_ok(shape()->copy(&b, &a, NULL, &f.err), &f.err);
    assert_ok(shape()->divide(&b, &b, 2, NULL, &f.err), &f.err);
    fixture_read(&f, &b, wide);
    assert_true(wide[0] == 1 && wide[3] == 0);
    assert_ok(shape()->fill(&b, 7, NULL, &f.err), &f.err);
    fixture_read(&f, &b, wide);
    assert_true(wide[2] == 7);
    fixture_fini(&f);
}

TEST(shape, mistakes_are_refused_as_on_cpu_and_views_beyond_their_storage_too)
{
    fixture f = FIXTURE_INIT;
    cddp_error *e = &f.err;
    cddp_tensor a = fixture_make(&f, shape(), CDDP_F32, SIZES(2, 3)),
                b = fixture_make(&f, shape(), CDDP_F32, SIZES(3, 2));
    cddp_tensor h = fixture_make(&f, shape(), CDDP_F16, SIZES(2, 3)),
                i = fixture_make(&f, shape(), CDDP_I32, SIZES(2, 3));
    assert_fails(shape()->copy(&a, &b, NULL, e), CDDP_E_ARG, e, "(2, 3)");
    assert_fails(shape()->axpy(&a, 1, &h, NULL, e), CDDP_E_ARG, e, "f16");
    assert_fails(shape()->divide(&a, &a, 0, NULL, e), CDDP_E_ARG, e, "n is 0");
    assert_fails(shape()->reduce(CDDP_RED_BOR, &a, &a, NULL, e), CDDP_E_UNSUPPORTED, e, "bor");
    assert_fails(shape()->copy(&i, &a, NULL, e), CDDP_E_UNSUPPORTED, e, "no values");
    assert_fails(shape()->matmul(&a, &(cddp_matmul){.a = &a, .b = &a}, NULL, e), CDDP_E_ARG, e,
                 "does not give");
    cddp_tensor beyond = a;
    beyond.offset = 1;
    assert_fails(shape()->fill(&beyond, 0, NULL, e), CDDP_E_ARG, e,
                 "elements 1…6 of a storage of 6");
    beyond.offset = 0;
    beyond.strides[0] = -3;
    assert_fails(shape()->fill(&beyond, 0, NULL, e), CDDP_E_ARG, e,
                 "elements -3…2 of a storage of 6");
    fixture_fini(&f);
}

static cddp_status allocate_one(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    cddp_device mine = cd_device_with_allocator(argument, allocator);
    void *storage;
    cddp_status status = mine.allocate(&mine, CDDP_I64, 10, &storage, err);
    if (status == CDDP_OK) mine.release(&mine, CDDP_I64, 10, storage);
    return status;
}

TEST(shape, running_out_of_memory_leaves_nothing_behind)
{
    assert_int_equal(cd_test_oom_loop(allocate_one, (void *)(uintptr_t)shape()), 1);
}

TEST_MAIN()
