/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/alloc.h"

#include "tests/support/test.h"

#include <string.h>

TEST(alloc, zero_bytes_still_give_a_separate_block)
{
    void *a = cd_allocate(NULL, 0), *b = cd_allocate(NULL, 0);
    assert_non_null(a);
    assert_non_null(b);
    assert_ptr_not_equal(a, b);
    cd_release(NULL, a, 0);
    cd_release(NULL, b, 0);
    cd_release(NULL, NULL, 7);
}

TEST(alloc, arrays_are_zeroed_and_refuse_to_overflow)
{
    uint32_t *items = cd_allocate_array(NULL, 100, sizeof *items);
    assert_non_null(items);
    for (int i = 0; i < 100; i++) assert_int_equal(items[i], 0);
    cd_release(NULL, items, 100 * sizeof *items);
    assert_null(cd_allocate_array(NULL, SIZE_MAX / 2, 3));
}

TEST(alloc, strings_are_copied_with_their_end)
{
    cd_watch_allocator watch;
    cd_watch_allocator_init(&watch, NULL);
    char *copy = cd_strdup(&watch.table, "layer1.weight");
    assert_string_equal(copy, "layer1.weight");
    assert_int_equal(watch.live_bytes, strlen("layer1.weight") + 1);
    cd_strfree(&watch.table, copy);
    cd_strfree(&watch.table, NULL);
    assert_int_equal(watch.live_bytes, 0);
}

TEST(alloc, growing_doubles_and_keeps_what_was_there)
{
    uint32_t *items = NULL;
    size_t capacity = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        assert_true(cd_vec_grow(NULL, (void **)&items, &capacity, i + 1, sizeof *items));
        items[i] = i;
    }
    assert_int_equal(capacity, 1024);
    for (uint32_t i = 0; i < 1000; i++) assert_int_equal(items[i], i);
    cd_release(NULL, items, capacity * sizeof *items);
}

TEST(alloc, growing_beyond_memory_fails_and_changes_nothing)
{
    cd_watch_allocator watch;
    cd_watch_allocator_init(&watch, NULL);
    uint32_t *items = NULL;
    size_t capacity = 0;
    assert_true(cd_vec_grow(&watch.table, (void **)&items, &capacity, 4, sizeof *items));
    items[3] = 42;
    watch.fail_at = watch.allocation_count + 1;
    assert_false(cd_vec_grow(&watch.table, (void **)&items, &capacity, 100, sizeof *items));
    assert_false(
        cd_vec_grow(&watch.table, (void **)&items, &capacity, SIZE_MAX / 2, sizeof *items));
    assert_int_equal(capacity, 8);
    assert_int_equal(items[3], 42);
    cd_release(&watch.table, items, capacity * sizeof *items);
    assert_int_equal(watch.live_count, 0);
}

TEST(watch_allocator, it_counts_what_is_live_and_the_peak)
{
    cd_watch_allocator watch;
    cd_watch_allocator_init(&watch, NULL);
    void *a = cd_allocate(&watch.table, 100), *b = cd_allocate(&watch.table, 50);
    assert_int_equal(watch.live_count, 2);
    assert_int_equal(watch.live_bytes, 150);
    cd_release(&watch.table, a, 100);
    assert_int_equal(watch.live_bytes, 50);
    assert_int_equal(watch.peak_bytes, 150);
    cd_release(&watch.table, b, 50);
    assert_int_equal(watch.live_count, 0);
}

TEST(watch_allocator, frozen_it_counts_growth)
{
    cd_watch_allocator watch;
    cd_watch_allocator_init(&watch, NULL);
    void *before = cd_allocate(&watch.table, 8);
    watch.frozen = true;
    assert_int_equal(watch.growth_count, 0);
    void *after = cd_allocate(&watch.table, 8);
    assert_int_equal(watch.growth_count, 1);
    cd_release(&watch.table, before, 8);
    cd_release(&watch.table, after, 8);
}

TEST(watch_allocator, only_the_chosen_allocation_fails)
{
    cd_watch_allocator watch;
    cd_watch_allocator_init(&watch, NULL);
    watch.fail_at = 2;
    void *first = cd_allocate(&watch.table, 1), *second = cd_allocate(&watch.table, 1),
         *third = cd_allocate(&watch.table, 1);
    assert_non_null(first);
    assert_null(second);
    assert_non_null(third);
    cd_release(&watch.table, first, 1);
    cd_release(&watch.table, third, 1);
    assert_int_equal(watch.live_bytes, 0);
}

TEST_MAIN()
