/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes up to 1 KiB are rounded to multiples of 64, larger ones to a quarter of their power of
** two. */
#include "sim/memory.h"

#include "core/base/assert.h"

#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define CD_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CD_ASAN 1
#endif
#endif
#if defined(CD_ASAN)
#include <sanitizer/asan_interface.h>
static void hide(void *memory, size_t bytes) { __asan_poison_memory_region(memory, bytes); }
static void show(void *memory, size_t bytes) { __asan_unpoison_memory_region(memory, bytes); }
#else
static void hide(void *memory, size_t bytes) { (void)memory, (void)bytes; }
static void show(void *memory, size_t bytes) { (void)memory, (void)bytes; }
#endif

#define SMALL_STEP ((size_t)64)
#define SMALL_MAX ((size_t)1024)
#define SMALL_CLASSES (SMALL_MAX / SMALL_STEP)

/* The class of a size, and how many bytes a piece of that class has. */
static size_t class_of(size_t bytes, size_t *class_bytes)
{
    if (bytes <= SMALL_MAX) {
        size_t index = bytes == 0 ? 0 : (bytes - 1) / SMALL_STEP;
        *class_bytes = (index + 1) * SMALL_STEP;
        return index;
    }
    size_t power = SMALL_MAX, index = SMALL_CLASSES;
    while (bytes > 2 * power) {
        power *= 2;
        index += 4;
    }
    size_t quarter = power / 4;
    size_t step = (bytes - power + quarter - 1) / quarter; /* 1 … 4 */
    *class_bytes = power + step * quarter;
    return index + step - 1;
}

void cd_memory_init(cd_memory *memory, void *base, size_t bytes)
{
    CD_ASSERT((uintptr_t)base % SMALL_STEP == 0);
    *memory = (cd_memory){.base = base, .bytes = bytes};
}

void cd_memory_fini(cd_memory *memory)
{
    show(memory->base, memory->used);
    *memory = (cd_memory){0};
}

void *cd_memory_allocate(cd_memory *memory, size_t bytes)
{
    if (bytes > memory->bytes) return NULL;
    size_t class_bytes = 0;
    size_t index = class_of(bytes, &class_bytes);
    void *block = memory->free[index];
    if (block != NULL) {
        show(block, class_bytes);
        memcpy(&memory->free[index], block, sizeof(void *));
    } else {
        if (class_bytes > memory->bytes - memory->used) return NULL;
        block = memory->base + memory->used;
        memory->used += class_bytes;
    }
    memory->live_bytes += class_bytes;
    if (memory->live_bytes > memory->peak_bytes) memory->peak_bytes = memory->live_bytes;
    return block;
}

void cd_memory_release(cd_memory *memory, void *block, size_t bytes)
{
    if (block == NULL) return;
    size_t class_bytes = 0;
    size_t index = class_of(bytes, &class_bytes);
    CD_ASSERT((unsigned char *)block >= memory->base && memory->live_bytes >= class_bytes);
    memcpy(block, &memory->free[index], sizeof(void *));
    memory->free[index] = block;
    memory->live_bytes -= class_bytes;
    hide(block, class_bytes);
}

static void *table_allocate(void *context, size_t bytes)
{
    return cd_memory_allocate(context, bytes);
}

static void *table_resize(void *context, void *block, size_t bytes_old, size_t bytes_new)
{
    size_t class_old = 0, class_new = 0;
    if (class_of(bytes_old, &class_old) == class_of(bytes_new, &class_new)) return block;
    void *moved = cd_memory_allocate(context, bytes_new);
    if (moved == NULL) return NULL;
    memcpy(moved, block, bytes_old < bytes_new ? bytes_old : bytes_new);
    cd_memory_release(context, block, bytes_old);
    return moved;
}

static void table_release(void *context, void *block, size_t bytes)
{
    cd_memory_release(context, block, bytes);
}

cddp_allocator cd_memory_table(cd_memory *memory)
{
    return (cddp_allocator){sizeof(cddp_allocator), memory, table_allocate, table_resize,
                            table_release};
}
