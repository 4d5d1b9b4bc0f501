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

TEST(image, memory_that_runs_out_gives_no_image)
{
    static _Alignas(8) unsigned char memory[64];
    cd_watch_allocator watch;
    cd_watch_allocator_init(&watch, NULL);
    watch.fail_at = 1;
    assert_null(cd_image_take(&watch.table, memory, sizeof memory));
    cd_image *image = cd_image_take(&watch.table, memory, sizeof memory);
    assert_non_null(image);
    cd_image_destroy(image);
    cd_image_destroy(NULL);
    assert_int_equal(watch.live_count, 0);
    assert_int_equal(watch.live_bytes, 0);
}

TEST_MAIN()
