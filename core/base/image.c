/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks are sorted by what is done with them, not by where they lie: each kind is one loop, and a
** processor guesses all of its branches but the last. */
#include "core/base/image.h"

#include "core/base/alloc.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>
#endif

#define BLOCK_BYTES ((size_t)128)
#define LEARNING_TIMES 16u /* after them, what has changed is what changes every time */

typedef struct arrangement {
    size_t total_bytes;  /* of its memory */
    uint32_t *blocks;    /* (block_count) of the memory: copied, then compared, then zeros */
    size_t copied_count; /* without a look */
    size_t kept_count;   /* those, and those that are compared */
    unsigned char *data; /* (kept_count blocks, then what is behind the last block) */
} arrangement;

struct cd_image {
    const cddp_allocator *allocator;
    size_t total_bytes; /* of this struct with its array */
    size_t bytes, block_count;
    uint32_t times;
    arrangement now;
    bool was_changed[]; /* (block_count) */
};

/* ---- taking ---- */

static bool is_zero(const unsigned char *block)
{
    uint64_t words[BLOCK_BYTES / sizeof(uint64_t)], any = 0;
    memcpy(words, block, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) any |= words[i];
    return any == 0;
}

enum { COPIED, COMPARED, ZEROS, KINDS };

static int kind_of(const cd_image *image, const unsigned char *memory, size_t block)
{
    if (image->was_changed[block]) return COPIED;
    return is_zero(memory + block * BLOCK_BYTES) ? ZEROS : COMPARED;
}

static bool arrange(const cd_image *image, const unsigned char *memory, arrangement *made)
{
    size_t counts[KINDS] = {0};
    for (size_t b = 0; b < image->block_count; b++) counts[kind_of(image, memory, b)]++;
    const size_t kept = counts[COPIED] + counts[COMPARED];
    const size_t behind = image->bytes - image->block_count * BLOCK_BYTES;
    const size_t total =
        kept * BLOCK_BYTES + behind + (image->block_count + 1) * sizeof *made->blocks;
    uint32_t *blocks = cd_allocate(image->allocator, total);
    if (blocks == NULL) return false;
    unsigned char *const data = (unsigned char *)(blocks + image->block_count + 1);
    size_t next[KINDS] = {0, counts[COPIED], kept};
    for (size_t b = 0; b < image->block_count; b++) {
        const int kind = kind_of(image, memory, b);
        const size_t at = next[kind]++;
        blocks[at] = (uint32_t)b;
        if (kind != ZEROS) memcpy(data + at * BLOCK_BYTES, memory + b * BLOCK_BYTES, BLOCK_BYTES);
    }
    memcpy(data + kept * BLOCK_BYTES, memory + image->block_count * BLOCK_BYTES, behind);
    *made = (arrangement){total, blocks, counts[COPIED], kept, data};
    return true;
}

cd_image *cd_image_take(const cddp_allocator *allocator, const void *memory, size_t bytes)
{
    const size_t block_count = bytes / BLOCK_BYTES, total = sizeof(cd_image) + block_count;
    if (block_count > UINT32_MAX) return NULL;
    cd_image *image = cd_allocate_zero(allocator, total);
    if (image == NULL) return NULL;
    image->allocator = allocator;
    image->total_bytes = total;
    image->bytes = bytes;
    image->block_count = block_count;
    if (arrange(image, memory, &image->now)) return image;
    cd_image_destroy(image);
    return NULL;
}

/* ---- putting back ---- */

static void put_back_by_bytes(cd_image *image, unsigned char *memory)
{
    static const unsigned char zeros[BLOCK_BYTES];
    const arrangement *a = &image->now;
    for (size_t i = 0; i < image->block_count; i++) {
        unsigned char *to = memory + a->blocks[i] * BLOCK_BYTES;
        const unsigned char *from = i < a->kept_count ? a->data + i * BLOCK_BYTES : zeros;
        if (memcmp(to, from, BLOCK_BYTES) == 0) continue;
        memcpy(to, from, BLOCK_BYTES);
        image->was_changed[a->blocks[i]] = true;
    }
}

#if defined(__GNUC__) && defined(__x86_64__)
#define WITH_AVX2 __attribute__((target("avx2")))

WITH_AVX2 static void copy_block(unsigned char *to, const unsigned char *from)
{
    for (size_t i = 0; i < BLOCK_BYTES; i += sizeof(__m256i))
        _mm256_storeu_si256((__m256i *)(void *)(to + i),
                            _mm256_loadu_si256((const __m256i *)(const void *)(from + i)));
}

WITH_AVX2 static bool differs(const unsigned char *a, const unsigned char *b)
{
    __m256i any = _mm256_setzero_si256();
    for (size_t i = 0; i < BLOCK_BYTES; i += sizeof any)
        any = _mm256_or_si256(
            any, _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(const void *)(a + i)),
                                  _mm256_loadu_si256((const __m256i *)(const void *)(b + i))));
    return _mm256_testz_si256(any, any) == 0;
}

WITH_AVX2 static bool has_ones(const unsigned char *block)
{
    __m256i any = _mm256_setzero_si256();
    for (size_t i = 0; i < BLOCK_BYTES; i += sizeof any)
        any = _mm256_or_si256(any, _mm256_loadu_si256((const __m256i *)(const void *)(block + i)));
    return _mm256_testz_si256(any, any) == 0;
}

WITH_AVX2 static void put_back_by_vectors(cd_image *image, unsigned char *memory)
{
    const arrangement *a = &image->now;
    const unsigned char *from = a->data;
    size_t i = 0;
    for (; i < a->copied_count; i++, from += BLOCK_BYTES)
        copy_block(memory + a->blocks[i] * BLOCK_BYTES, from);
    for (; i < a->kept_count; i++, from += BLOCK_BYTES) {
        unsigned char *to = memory + a->blocks[i] * BLOCK_BYTES;
        if (!differs(to, from)) continue;
        copy_block(to, from);
        image->was_changed[a->blocks[i]] = true;
    }
    for (; i < image->block_count; i++) {
        unsigned char *to = memory + a->blocks[i] * BLOCK_BYTES;
        if (!has_ones(to)) continue;
        memset(to, 0, BLOCK_BYTES);
        image->was_changed[a->blocks[i]] = true;
    }
}

static void put_back_blocks(cd_image *image, unsigned char *memory)
{
    if (__builtin_cpu_supports("avx2"))
        put_back_by_vectors(image, memory);
    else
        put_back_by_bytes(image, memory);
}
#else
static void put_back_blocks(cd_image *image, unsigned char *memory)
{
    put_back_by_bytes(image, memory);
}
#endif

/* The memory is as it was taken. Without memory for another arrangement this one stays. */
static void rearrange(cd_image *image, const unsigned char *memory)
{
    arrangement made;
    if (!arrange(image, memory, &made)) return;
    cd_release(image->allocator, image->now.blocks, image->now.total_bytes);
    image->now = made;
}

void cd_image_put_back(cd_image *image, void *memory)
{
    unsigned char *const end = (unsigned char *)memory + image->block_count * BLOCK_BYTES;
    put_back_blocks(image, memory);
    memcpy(end, image->now.data + image->now.kept_count * BLOCK_BYTES,
           image->bytes - image->block_count * BLOCK_BYTES);
    if (image->times < LEARNING_TIMES && ++image->times == LEARNING_TIMES) rearrange(image, memory);
}

void cd_image_destroy(cd_image *image)
{
    if (image == NULL) return;
    cd_release(image->allocator, image->now.blocks, image->now.total_bytes);
    cd_release(image->allocator, image, image->total_bytes);
}
