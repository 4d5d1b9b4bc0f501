/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/image.h"

#include "core/base/alloc.h"

#include <stdint.h>
#include <string.h>

#define LOOK_BYTES ((size_t)512)      /* looked at, and cleared, at once */
#define ZEROS_BYTES_MIN ((size_t)256) /* fewer are copied with what is beside them */

/* Bytes that are copied, and zeros behind them. */
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

static size_t count_zeros(const unsigned char *memory, size_t bytes)
{
    size_t count = 0;
    for (uint64_t word; count + sizeof word <= bytes; count += sizeof word) {
        memcpy(&word, memory + count, sizeof word);
        if (word != 0) break;
    }
    return count;
}

/* The next stretch of the memory. */
static stretch find_stretch(const unsigned char *memory, size_t bytes)
{
    size_t copied = 0, zeros = 0;
    while (copied < bytes) {
        zeros = count_zeros(memory + copied, bytes - copied);
        if (zeros >= ZEROS_BYTES_MIN) return (stretch){copied, zeros};
        copied += zeros + sizeof(uint64_t);
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

static void clear(unsigned char *memory, size_t bytes)
{
    static const unsigned char zeros[LOOK_BYTES];
    for (size_t n; bytes > 0; memory += n, bytes -= n) {
        n = bytes < LOOK_BYTES ? bytes : LOOK_BYTES;
        if (memcmp(memory, zeros, n) != 0) memset(memory, 0, n);
    }
}

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
