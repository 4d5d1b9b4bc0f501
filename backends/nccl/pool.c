/* SPDX-License-Identifier: Apache-2.0 */
/* Size classes and shelves of the caching pool.
**
** A grain is 512 bytes. Classes 0 … 15 are 1 … 16 grains; above, each doubling (8·2^d, 16·2^d] has
** eight classes, in steps of 2^d grains.
*/
#include "backends/nccl/pool.h"

#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/error.h"

#include <string.h>

#define GRAIN ((size_t)512)
#define STEPS 8u

uint32_t cd_pool_class(size_t bytes)
{
    size_t grains = bytes == 0 ? 1 : (bytes - 1) / GRAIN + 1;
    uint32_t doublings = 0;
    while ((grains - 1) >> doublings >= 2 * STEPS) doublings++;
    /* grains is in (8·2^d, 16·2^d], or at most 16 where d is 0; steps of 2^d. */
    uint32_t step = (uint32_t)((grains - 1) >> doublings);
    return doublings * STEPS + step;
}

size_t cd_pool_class_bytes(uint32_t class_index)
{
    if (class_index < 2 * STEPS) return (class_index + 1) * GRAIN;
    uint32_t doublings = class_index / STEPS - 1;
    return ((size_t)(class_index - doublings * STEPS) + 1) * GRAIN << doublings;
}

void cd_pool_init(cd_pool *pool, const cd_pool_source *source)
{
    memset(pool, 0, sizeof *pool);
    pool->source = *source;
}

void cd_pool_trim(cd_pool *pool)
{
    for (uint32_t c = 0; c < CD_POOL_CLASSES; c++) {
        cd_pool_shelf *shelf = &pool->shelves[c];
        while (shelf->count > 0) {
            pool->source.give(pool->source.context, shelf->blocks[--shelf->count]);
            pool->taken_bytes -= cd_pool_class_bytes(c);
        }
    }
}

void cd_pool_fini(cd_pool *pool)
{
    cd_pool_trim(pool);
    for (uint32_t c = 0; c < CD_POOL_CLASSES; c++)
        cd_release(NULL, pool->shelves[c].blocks, pool->shelves[c].capacity * sizeof(void *));
    memset(pool->shelves, 0, sizeof pool->shelves);
}

cddp_status cd_pool_take(cd_pool *pool, size_t bytes, void **block, cddp_error *err)
{
    uint32_t class_index = bytes > (SIZE_MAX >> 8) ? CD_POOL_CLASSES : cd_pool_class(bytes);
    if (class_index >= CD_POOL_CLASSES)
        return cd_fail(err, CDDP_E_NOMEM, "%zu bytes are more than any device has", bytes);
    cd_pool_shelf *shelf = &pool->shelves[class_index];
    if (shelf->count > 0) {
        *block = shelf->blocks[--shelf->count];
        return CDDP_OK;
    }
    size_t rounded = cd_pool_class_bytes(class_index);
    void *made = NULL;
    pool->source_calls++;
    if (!pool->source.take(pool->source.context, rounded, &made)) {
        cd_pool_trim(pool);
        if (!pool->source.take(pool->source.context, rounded, &made))
            return cd_fail_memory(err, "%zu bytes beside the %llu in use", rounded,
                                  (unsigned long long)pool->taken_bytes);
    }
    pool->taken_bytes += rounded;
    *block = made;
    return CDDP_OK;
}

void cd_pool_give(cd_pool *pool, size_t bytes, void *block)
{
    if (block == NULL) return;
    uint32_t class_index = cd_pool_class(bytes);
    CD_ASSERT(class_index < CD_POOL_CLASSES);
    cd_pool_shelf *shelf = &pool->shelves[class_index];
    if (cd_vec_grow(NULL, (void **)&shelf->blocks, &shelf->capacity, shelf->count + 1,
                    sizeof(void *))) {
        shelf->blocks[shelf->count++] = block;
        return;
    }
    /* The shelf is full: the block goes back to the source. */
    pool->source.give(pool->source.context, block);
    pool->taken_bytes -= cd_pool_class_bytes(class_index);
}
