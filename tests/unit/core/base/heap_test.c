/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/heap.h"

#include "core/base/prng.h"
#include "tests/support/test.h"

TEST(heap, equal_times_pop_in_order_of_insertion)
{
    cd_heap_entry storage[64];
    cd_heap heap;
    cd_heap_init(&heap, storage, 64);
    for (uint64_t i = 0; i < 64; i++)
        assert_true(cd_heap_push(&heap, (cd_heap_entry){.time = 5, .sequence = i}));
    for (uint64_t i = 0; i < 64; i++) {
        cd_heap_entry e;
        assert_true(cd_heap_pop(&heap, &e));
        assert_int_equal(e.sequence, i);
    }
}

/* No entry before the first one, whatever the shape of the tree. */
static void assert_first_is_least(const cd_heap *heap)
{
    const cd_heap_entry *first = cd_heap_find_first(heap);
    for (size_t i = 0; i < heap->count; i++) {
        const cd_heap_entry *e = &heap->entries[i];
        assert_true(first->time < e->time ||
                    (first->time == e->time && first->sequence <= e->sequence));
    }
}

TEST(heap, any_mix_of_pushes_and_pops_yields_the_total_order)
{
    cd_prng prng = cd_prng_seed(cd_test_seed());
    cd_heap_entry storage[1000];
    cd_heap heap;
    cd_heap_init(&heap, storage, 1000);
    cd_heap_entry last = {0};
    uint64_t sequence = 0;
    for (int i = 0; i < 3000; i++) {
        cd_heap_entry e;
        if (cd_prng_chance(&prng, 3, 5)) {
            /* Nothing is scheduled in the past, as in a simulation; few different times, so that
            ** many are equal. */
            e = (cd_heap_entry){.time = last.time + cd_prng_below(&prng, 4),
                                .sequence = ++sequence};
            assert_true(cd_heap_push(&heap, e));
        } else if (cd_heap_pop(&heap, &e)) {
            assert_true(e.time > last.time || (e.time == last.time && e.sequence > last.sequence));
            last = e;
        }
        if (i % 10 == 0) assert_first_is_least(&heap);
    }
    assert_true(heap.count > 100);
}

TEST(heap, full_and_empty_are_said_not_suffered)
{
    cd_heap_entry storage[2], e = {.time = 99};
    cd_heap heap;
    cd_heap_init(&heap, storage, 2);
    assert_null(cd_heap_find_first(&heap));
    assert_false(cd_heap_pop(&heap, &e));
    assert_int_equal(e.time, 99);
    int item = 0;
    assert_true(cd_heap_push(&heap, (cd_heap_entry){2, 0, &item}));
    assert_true(cd_heap_push(&heap, (cd_heap_entry){1, 1, NULL}));
    assert_false(cd_heap_push(&heap, (cd_heap_entry){0, 2, NULL}));
    assert_true(cd_heap_pop(&heap, &e));
    assert_int_equal(e.time, 1);
    assert_true(cd_heap_pop(&heap, &e));
    assert_ptr_equal(e.item, &item);
}

TEST_MAIN()
