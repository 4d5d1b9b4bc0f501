/* SPDX-License-Identifier: Apache-2.0 */
/* Memory is put back byte for byte, whatever was zero in it and whatever was written since. */
#include "core/base/image.h"

#include "core/base/alloc.h"
#include "core/base/prng.h"
#include "tests/support/test.h"

#include <string.h>

#define BYTES_MAX 5000

/* Stretches of zeros and of other bytes, of drawn lengths. */
static void fill(cd_prng *prng, unsigned char *memory, size_t bytes)
{
    memset(memory, 0, bytes);
    for (size_t at = 0; at < bytes;) {
        const size_t zeros = (size_t)cd_prng_below(prng, 900);
        const size_t count = (size_t)cd_prng_below(prng, 300);
        at += zeros;
        for (size_t i = 0; i < count && at < bytes; i++, at++)
            memory[at] = (unsigned char)cd_prng_below(prng, 256);
    }
}

TEST(image, drawn_memory_is_put_back_after_drawn_writes)
{
    static _Alignas(8) unsigned char memory[BYTES_MAX], before[BYTES_MAX];
    cd_prng prng = cd_prng_seed(1);
    for (uint64_t round = 0; round < 400; round++) {
        const size_t bytes = round < 40 ? (size_t)round : (size_t)cd_prng_below(&prng, BYTES_MAX);
        fill(&prng, memory, bytes);
        memcpy(before, memory, bytes);
        cd_image *image = cd_image_take(NULL, memory, bytes);
        assert_non_null(image);
        for (int again = 0; again < 3; again++) {
            for (uint64_t i = 0; i < 20 && bytes > 0; i++)
                memory[cd_prng_below(&prng, bytes)] = (unsigned char)cd_prng_below(&prng, 256);
            cd_image_put_back(image, memory);
            cd_test_row("%zu bytes", bytes);
            assert_memory_equal(memory, before, bytes);
        }
        cd_image_destroy(image);
    }
}

TEST(image, one_byte_among_zeros_is_put_back_wherever_it_is)
{
    static _Alignas(8) unsigned char memory[1200];
    static const unsigned char zeros[sizeof memory];
    cd_image *image = cd_image_take(NULL, memory, sizeof memory);
    assert_non_null(image);
    for (size_t at = 0; at < sizeof memory; at++) {
        memory[at] = 1;
        cd_image_put_back(image, memory);
        assert_memory_equal(memory, zeros, sizeof memory);
    }
    cd_image_destroy(image);
}

/* Zeros are looked at by lines of 64 bytes, counted from the memory's own beginning. */
TEST(image, memory_may_begin_in_the_middle_of_a_line)
{
    static _Alignas(64) unsigned char lines[2048];
    unsigned char *const memory = lines + 24;
    const size_t bytes = sizeof lines - 64, guard = sizeof lines - 24 - bytes;
    memset(lines, 7, sizeof lines);
    memset(memory + 40, 0, bytes - 80);
    cd_image *image = cd_image_take(NULL, memory, bytes);
    assert_non_null(image);
    memset(memory, 9, bytes);
    cd_image_put_back(image, memory);
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(memory[i], i < 40 || i >= bytes - 40 ? 7 : 0);
    for (size_t i = 0; i < guard; i++) assert_int_equal(memory[bytes + i], 7);
    for (size_t i = 0; i < 24; i++) assert_int_equal(lines[i], 7);
    cd_image_destroy(image);
}

/* What changes every time is learnt. A block outside of it, zeros or not, is put back whenever it
** is written: the first time, late, and behind the last whole block. */
TEST(image, what_never_changed_before_is_put_back_too)
{
    static _Alignas(64) unsigned char memory[64 * 256 + 100], before[sizeof memory];
    cd_prng prng = cd_prng_seed(3);
    fill(&prng, memory, sizeof memory);
    memset(memory + 40 * 256, 0, 10 * 256);
    memcpy(before, memory, sizeof memory);
    cd_image *image = cd_image_take(NULL, memory, sizeof memory);
    assert_non_null(image);
    for (size_t time = 0; time < 200; time++) {
        for (size_t block = 0; block < 64; block += 7) memory[block * 256 + time % 256] ^= 0x5a;
        const size_t at = time * 1009 % sizeof memory;
        if (time >= 50) memory[at] ^= (unsigned char)(1 + time % 255);
        cd_image_put_back(image, memory);
        cd_test_row("time %zu, byte %zu", time, at);
        assert_memory_equal(memory, before, sizeof memory);
    }
    /* each byte of memory that was never written, alone */
    for (size_t at = 0; at < sizeof memory; at++) {
        memory[at] ^= 0x80;
        cd_image_put_back(image, memory);
        assert_int_equal(memory[at], before[at]);
    }
    assert_memory_equal(memory, before, sizeof memory);
    cd_image_destroy(image);
}

/* Learning needs memory for another arrangement. Without it the first one stays. */
TEST(image, memory_that_runs_out_while_learning_changes_nothing)
{
    static _Alignas(64) unsigned char memory[16 * 256], before[sizeof memory];
    cd_watch_allocator watch;
    cd_watch_allocator_init(&watch, NULL);
    memset(memory, 3, sizeof memory / 2);
    memcpy(before, memory, sizeof memory);
    cd_image *image = cd_image_take(&watch.table, memory, sizeof memory);
    assert_non_null(image);
    watch.fail_at = watch.allocation_count + 1;
    for (size_t time = 0; time < 40; time++) {
        memory[time * 97 % sizeof memory] ^= 1;
        cd_image_put_back(image, memory);
        assert_memory_equal(memory, before, sizeof memory);
    }
    cd_image_destroy(image);
    assert_int_equal(watch.live_count, 0);
    assert_int_equal(watch.live_bytes, 0);
}

TEST(image, memory_that_runs_out_gives_no_image)
{
    static _Alignas(8) unsigned char memory[64];
    cd_watch_allocator watch;
    cd_watch_allocator_init(&watch, NULL);
    watch.fail_at = 1;
    assert_null(cd_image_take(&watch.table, memory, sizeof memory));
    watch.fail_at = watch.allocation_count + 2;
    assert_null(cd_image_take(&watch.table, memory, sizeof memory));
    cd_image *image = cd_image_take(&watch.table, memory, sizeof memory);
    assert_non_null(image);
    cd_image_destroy(image);
    cd_image_destroy(NULL);
    assert_int_equal(watch.live_count, 0);
    assert_int_equal(watch.live_bytes, 0);
}

TEST_MAIN()
