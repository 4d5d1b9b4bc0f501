/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/arena.h"

#include "core/base/alloc.h"
#include "core/base/prng.h"
#include "tests/support/test.h"

#include <string.h>

TEST(arena, blocks_are_zeroed_aligned_and_do_not_overlap)
{
    cd_arena arena;
    cd_arena_init(&arena, NULL, 4096);
    cd_prng prng = cd_prng_seed(cd_test_seed());
    struct {
        unsigned char *at;
        size_t bytes;
    } blocks[200];
    for (size_t i = 0; i < 200; i++) {
        blocks[i].bytes = (size_t)cd_prng_between(&prng, 0, 3000);
        blocks[i].at = cd_arena_push(&arena, blocks[i].bytes);
        assert_non_null(blocks[i].at);
        assert_int_equal((uintptr_t)blocks[i].at % 64, 0);
        for (size_t k = 0; k < blocks[i].bytes; k++) assert_int_equal(blocks[i].at[k], 0);
        memset(blocks[i].at, (int)(i % 251) + 1, blocks[i].bytes);
    }
    for (size_t i = 0; i < 200; i++)
        for (size_t k = 0; k < blocks[i].bytes; k++) assert_int_equal(blocks[i].at[k], i % 251 + 1);
    cd_arena_fini(&arena);
}

TEST(arena, rewinding_to_a_mark_reuses_memory_without_allocating)
{
    cd_watch_allocator watch;
    cd_watch_allocator_init(&watch, NULL);
    cd_arena arena;
    cd_arena_init(&arena, &watch.table, 1024);
    assert_non_null(cd_arena_push(&arena, 100));
    cd_arena_mark mark = cd_arena_get_mark(&arena);
    void *first = NULL;
    for (int iteration = 0; iteration < 10; iteration++) {
        if (iteration == 1) watch.frozen = true;
        void *at = cd_arena_push(&arena, 700);
        for (int i = 0; i < 20; i++) assert_non_null(cd_arena_push(&arena, 333));
        if (iteration == 0) first = at;
        assert_ptr_equal(at, first);
        cd_arena_rewind(&arena, mark);
    }
    assert_int_equal(watch.growth_count, 0);
    cd_arena_fini(&arena);
    assert_int_equal(watch.live_count, 0);
}

TEST(arena, rewinding_an_empty_mark_starts_from_the_first_block_again)
{
    cd_arena arena;
    cd_arena_init(&arena, NULL, 1024);
    cd_arena_mark empty = cd_arena_get_mark(&arena);
    void *first = cd_arena_push(&arena, 64);
    cd_arena_rewind(&arena, empty);
    assert_ptr_equal(cd_arena_push(&arena, 64), first);
    cd_arena_fini(&arena);
}

TEST(arena, a_request_larger_than_a_kept_block_gets_a_new_one_and_keeps_the_chain)
{
    cd_watch_allocator watch;
    cd_watch_allocator_init(&watch, NULL);
    cd_arena arena;
    cd_arena_init(&arena, &watch.table, 256);
    cd_arena_mark empty = cd_arena_get_mark(&arena);
    assert_non_null(cd_arena_push(&arena, 256));
    assert_non_null(cd_arena_push(&arena, 256));
    cd_arena_rewind(&arena, empty);
    unsigned char *large = cd_arena_push(&arena, 100000);
    assert_non_null(large);
    large[99999] = 1;
    assert_non_null(cd_arena_push(&arena, 256));
    cd_arena_fini(&arena);
    assert_int_equal(watch.live_count, 0);
}

TEST(arena, formatted_text_has_its_exact_length)
{
    cd_arena arena;
    cd_arena_init(&arena, NULL, 64);
    char *text = cd_arena_printf(&arena, "%s.%d.%s", "decoder", 12,
                                 "self_attention.out_projection.weight and much more text");
    assert_string_equal(text, "decoder.12.self_attention.out_projection.weight and much more text");
    cd_arena_fini(&arena);
}

TEST(arena, impossible_sizes_and_a_full_heap_give_null)
{
    cd_watch_allocator watch;
    cd_watch_allocator_init(&watch, NULL);
    watch.fail_at = 1;
    cd_arena arena;
    cd_arena_init(&arena, &watch.table, 64);
    assert_null(cd_arena_push(&arena, SIZE_MAX));
    assert_null(cd_arena_push(&arena, 10));
    assert_non_null(cd_arena_push(&arena, 10)); /* the failure did not break the arena */
    cd_arena_fini(&arena);
    cd_arena_fini(&arena); /* accepts a finished one */
}

TEST(arena, a_creator_asks_once_whether_anything_was_missing)
{
    cd_watch_allocator watch;
    cd_watch_allocator_init(&watch, NULL);
    watch.fail_at = 2;
    cd_arena arena;
    cddp_error err = {0};
    cd_arena_init(&arena, &watch.table, 64);
    const cd_arena_mark empty = cd_arena_get_mark(&arena);
    assert_non_null(cd_arena_array(&arena, 4, 16));
    assert_int_equal(cd_arena_check(&arena, &err, "nothing"), CDDP_OK);
    assert_null(cd_arena_strdup(&arena, "refused"));
    assert_non_null(cd_arena_array(&arena, 4, 16));
    assert_int_equal(cd_arena_check(&arena, &err, "%d things", 3), CDDP_E_NOMEM);
    assert_string_equal(err.message, "no memory for 3 things");
    cd_arena_rewind(&arena, empty);
    assert_int_equal(cd_arena_check(&arena, &err, "nothing"), CDDP_OK);
    assert_null(cd_arena_array(&arena, SIZE_MAX / 2, 16));
    assert_true(arena.exhausted);
    cd_arena_fini(&arena);
    assert_int_equal(watch.live_count, 0);
}

TEST(arena, an_object_may_live_in_its_own_arena)
{
    typedef struct list {
        cd_arena arena;
        uint64_t *items;
    } list;
    cd_watch_allocator watch;
    cd_watch_allocator_init(&watch, NULL);
    cd_arena arena;
    cd_arena_init(&arena, &watch.table, 256);
    list *l = cd_arena_push(&arena, sizeof *l);
    l->items = cd_arena_array(&arena, 100, sizeof *l->items);
    l->arena = arena;
    l->items[99] = 1;
    cd_arena_fini(&l->arena);
    assert_int_equal(watch.live_count, 0);
}

TEST(arena, text_is_packed_and_arrays_stay_aligned)
{
    cd_arena arena;
    cd_arena_init(&arena, NULL, 4096);
    const char *first = cd_arena_strdup(&arena, "ab");
    assert_ptr_equal(cd_arena_strdup(&arena, "cd"), first + 3);
    for (size_t i = 1; i < 20; i++) {
        assert_non_null(cd_arena_printf(&arena, "%zu", i));
        double *numbers = cd_arena_array(&arena, i, sizeof *numbers);
        assert_int_equal((uintptr_t)numbers % 16, 0);
        for (size_t k = 0; k < i; k++) assert_true(numbers[k] == 0.0);
    }
    cd_arena_fini(&arena);
}

TEST(arena, what_is_reserved_is_one_block_and_cannot_fail)
{
    cd_watch_allocator watch;
    cd_watch_allocator_init(&watch, NULL);
    cd_arena arena;
    cd_arena_init(&arena, &watch.table, 0);
    const size_t bytes = CD_ARENA_BYTES(100) + CD_ARENA_BYTES(0) + CD_ARENA_BYTES(64);
    assert_int_equal(bytes, 128 + 64 + 64);
    assert_true(cd_arena_reserve(&arena, bytes));
    watch.fail_at = 2; /* the next one */
    assert_non_null(cd_arena_push(&arena, 100));
    assert_non_null(cd_arena_push(&arena, 0));
    assert_non_null(cd_arena_push(&arena, 64));
    assert_null(cd_arena_push(&arena, 1)); /* more than was reserved */
    assert_false(cd_arena_reserve(&arena, SIZE_MAX));
    cd_arena_fini(&arena);
}

TEST_MAIN()
