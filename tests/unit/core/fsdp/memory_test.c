/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers of units: used again by what fits, and no larger than that. */
#include "core/fsdp/memory.h"

#include "cddp/device.h"
#include "tests/support/test.h"

static void *take(cd_fsdp_memory *m, int64_t numel, bool is_slice, cd_fsdp_buffer *buffer)
{
    cddp_error err = CDDP_ERROR_INIT;
    const cd_fsdp_wish wish = {.device = cddp_device_cpu(),
                               .dtype = CDDP_F32,
                               .numel = numel,
                               .is_slice = is_slice};
    assert_ok(cd_fsdp_memory_take(m, &wish, buffer, &err), &err);
    return buffer->tensor.storage;
}

/* A rank's part of a gradient is wanted right behind the free of a unit: with two ranks the unit's
** buffer is twice as large. */
TEST(memory, of_a_whole_unit_is_not_used_for_a_slice)
{
    cd_fsdp_memory m;
    cd_fsdp_memory_init(&m, NULL, NULL);
    cd_fsdp_buffer whole, slice, again;
    const void *of_whole = take(&m, 64, false, &whole);
    cd_fsdp_memory_give(&m, &whole);
    const void *of_slice = take(&m, 32, true, &slice);
    assert_ptr_not_equal(of_slice, of_whole);
    assert_int_equal(slice.capacity, 32);
    assert_ptr_equal(take(&m, 64, false, &again), of_whole); /* it stayed idle */
    cd_fsdp_memory_give(&m, &slice);
    assert_ptr_equal(take(&m, 17, true, &slice), of_slice); /* more than half of it */
    cd_fsdp_memory_give(&m, &slice);
    cd_fsdp_memory_give(&m, &again);
    cd_fsdp_memory_fini(&m);
}

TEST(memory, of_a_unit_is_used_by_smaller_ones_and_the_smallest_that_fits_is_taken)
{
    cd_fsdp_memory m;
    cd_fsdp_memory_init(&m, NULL, NULL);
    cd_fsdp_buffer large, small, taken;
    const void *of_large = take(&m, 100, false, &large), *of_small = take(&m, 40, false, &small);
    cd_fsdp_memory_give(&m, &large);
    cd_fsdp_memory_give(&m, &small);
    assert_ptr_equal(take(&m, 30, false, &small), of_small);
    assert_ptr_equal(take(&m, 30, false, &taken), of_large);
    cd_fsdp_memory_give(&m, &small);
    /* Nothing fits: the small one goes back to the device. */
    (void)take(&m, 101, false, &large);
    assert_int_equal(m.idle_count, 0);
    cd_fsdp_memory_give(&m, &large);
    cd_fsdp_memory_give(&m, &taken);
    cd_fsdp_memory_fini(&m);
}

/* The stream of gathers runs beside the one that used a buffer last. */
TEST(memory, goes_to_gathers_when_its_last_use_is_over)
{
    cd_fsdp_memory m;
    cddp_error err = CDDP_ERROR_INIT;
    cd_fsdp_memory_init(&m, NULL, NULL);
    m.has_ahead = true;
    cd_fsdp_buffer first, second, third;
    cd_fsdp_wish ahead = {.device = cddp_device_cpu(),
                          .dtype = CDDP_F32,
                          .numel = 8,
                          .is_ahead = true};
    const void *of_first = take(&m, 8, false, &first);
    cd_fsdp_memory_give(&m, &first);
    assert_ok(cd_fsdp_memory_take(&m, &ahead, &second, &err), &err);
    assert_ptr_not_equal(second.tensor.storage, of_first);
    assert_ptr_equal(take(&m, 8, false, &first), of_first); /* in the order of its stream */
    cd_fsdp_memory_give(&m, &first);
    m.settled = m.gives;
    assert_ok(cd_fsdp_memory_take(&m, &ahead, &third, &err), &err);
    assert_ptr_equal(third.tensor.storage, of_first);
    cd_fsdp_memory_give(&m, &second);
    cd_fsdp_memory_give(&m, &third);
    /* More than are kept otherwise: none goes to the device, which would hand it out again. */
    cd_fsdp_buffer many[CD_FSDP_IDLE_MAX + 4];
    for (size_t i = 0; i < CD_FSDP_IDLE_MAX + 4; i++) (void)take(&m, 8, false, &many[i]);
    for (size_t i = 0; i < CD_FSDP_IDLE_MAX + 4; i++) cd_fsdp_memory_give(&m, &many[i]);
    assert_true(m.idle_count >= CD_FSDP_IDLE_MAX + 4);
    cd_fsdp_memory_fini(&m);
}

TEST(memory, of_no_elements_has_room_for_one)
{
    cd_fsdp_memory m;
    cd_fsdp_memory_init(&m, NULL, NULL);
    cd_fsdp_buffer none, one;
    const void *of_none = take(&m, 0, false, &none);
    assert_non_null(of_none);
    assert_int_equal(none.capacity, 1);
    assert_int_equal(cddp_tensor_numel(&none.tensor), 0);
    cd_fsdp_memory_give(&m, &none);
    assert_ptr_equal(take(&m, 1, false, &one), of_none);
    cd_fsdp_memory_give(&m, &one);
    cd_fsdp_memory_fini(&m);
}

TEST_MAIN()
