/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/image.h"

#include "core/base/alloc.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>
#endif

#define LINE_BYTES ((size_t)64)       /* of the cache: zeros are whole lines */
#define LOOK_BYTES ((size_t)512)      /* looked at, and cleared, at once */
#define ZEROS_BYTES_MIN ((size_t)256) /* fewer are copied with what is beside them */

/* Bytes that are copied, and zeros behind them: whole lines, so that no part of one is left. */
typedef struct stretch {
    size_t copied, zeros;
} stretch;

struct cd_image {
    const cddp_allocator *allocator;
    size_t total_bytes; /* of this block */
    size_t stretch_count;
    unsigned char *data; /* behind the stretches */
    stretch stretches[]; /* (stretch_count) */
};

static bool is_zero(const unsigned char *line)
{
    uint64_t words[LINE_BYTES / sizeof(uint64_t)], any = 0;
    memcpy(words, line, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) any |= words[i];
    return any == 0;
}

static size_t count_zeros(const unsigned char *memory, size_t bytes)
{
    size_t count = 0;
    while (bytes - count >= LINE_BYTES && is_zero(memory + count)) count += LINE_BYTES;
    return count;
}

/* The next stretch of the memory. What is left behind the last line is copied. */
static stretch find_stretch(const unsigned char *memory, size_t bytes)
{
    size_t copied = 0;
    while (copied < bytes) {
        const size_t zeros = count_zeros(memory + copied, bytes - copied);
        if (zeros >= ZEROS_BYTES_MIN) return (stretch){copied, zeros};
        copied += zeros + LINE_BYTES;
    }
    return (stretch){bytes, 0};
}

cd_image *cd_image_take(const cddp_allocator *allocator, const void *memory, size_t bytes)
{
    const unsigned char *from = memory;
    size_t count = 0, copied = 0, at = 0;
    for (stretch s; at < bytes; at += s.copied + s.zeros, count++) {
        s = find_stretch(from + at, bytes - at);
        copied += s.copied;
    }
    const size_t total = sizeof(cd_image) + count * sizeof(stretch) + copied;
    cd_image *image = cd_allocate(allocator, total);
    if (image == NULL) return NULL;
    image->allocator = allocator;
    image->total_bytes = total;
    image->stretch_count = count;
    image->data = (unsigned char *)&image->stretches[count];
    unsigned char *data = image->data;
    for (size_t i = 0; i < count; i++) {
        const stretch s = find_stretch(from, bytes);
        memcpy(data, from, s.copied);
        image->stretches[i] = s;
        data += s.copied;
        from += s.copied + s.zeros;
        bytes -= s.copied + s.zeros;
    }
    return image;
}

static void clear_by_comparing(unsigned char *memory, size_t bytes)
{
    static const unsigned char zeros[LOOK_BYTES];
    for (size_t n; bytes > 0; memory += n, bytes -= n) {
        n = bytes < LOOK_BYTES ? bytes : LOOK_BYTES;
        if (memcmp(memory, zeros, n) != 0) memset(memory, 0, n);
    }
}

#if defined(__GNUC__) && defined(__x86_64__)
__attribute__((target("avx2"))) static bool is_clear(const unsigned char *lines)
{
    const __m256i_u *at = (const __m256i_u *)(const void *)lines;
    __m256i even = at[0], odd = at[1];
    for (size_t i = 2; i < LOOK_BYTES / sizeof *at; i += 2) {
        even = _mm256_or_si256(even, at[i]);
        odd = _mm256_or_si256(odd, at[i + 1]);
    }
    even = _mm256_or_si256(even, odd);
    return _mm256_testz_si256(even, even) != 0;
}

/* There is no second operand to read, and what is left has less than eight lines. */
__attribute__((target("avx2"))) static void clear_by_lines(unsigned char *memory, size_t bytes)
{
    for (; bytes >= LOOK_BYTES; memory += LOOK_BYTES, bytes -= LOOK_BYTES)
        if (!is_clear(memory)) memset(memory, 0, LOOK_BYTES);
    for (; bytes > 0; memory += LINE_BYTES, bytes -= LINE_BYTES) {
        __m256i_u *at = (__m256i_u *)(void *)memory;
        const __m256i both = _mm256_or_si256(at[0], at[1]);
        if (_mm256_testz_si256(both, both) == 0) at[0] = at[1] = _mm256_setzero_si256();
    }
}

static void clear(unsigned char *memory, size_t bytes)
{
    if (__builtin_cpu_supports("avx2"))
        clear_by_lines(memory, bytes);
    else
        clear_by_comparing(memory, bytes);
}
#else
static void clear(unsigned char *memory, size_t bytes) { clear_by_comparing(memory, bytes); }
#endif

void cd_image_put_back(const cd_image *image, void *memory)
{
    const unsigned char *data = image->data;
    unsigned char *to = memory;
    for (size_t i = 0; i < image->stretch_count; i++) {
        const stretch s = image->stretches[i];
        memcpy(to, data, s.copied);
        clear(to + s.copied, s.zeros);
        data += s.copied;
        to += s.copied + s.zeros;
    }
}

void cd_image_destroy(cd_image *image)
{
    if (image != NULL) cd_release(image->allocator, image, image->total_bytes);
}
