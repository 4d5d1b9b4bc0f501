/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots: the used parts of a world's block, copied out and back to the same addresses.
**
**   cd_sim | memory up to its high-water mark | pending options | deviations so far |
**   the part of every stack above its stack pointer
**
** Pointers stay valid because nothing moves. Memory of a device or a program outside the block is
** not rolled back.
*/
#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/image.h"
#include "sim/cluster.h"

#include <string.h>

struct cd_snapshot {
    const cddp_allocator *allocator;
    const cd_sim *sim;
    cd_image *memory;
    size_t memory_bytes, bytes; /* of the world's memory, and of data */
    uint64_t staging_serial;
    unsigned char data[]; /* (bytes) */
};

typedef struct piece {
    void *memory;
    size_t bytes;
} piece;

/* The index-th piece of the world besides its memory; false behind the last. */
static bool get_piece(cd_sim *sim, uint32_t index, piece *out)
{
    if (index == 0) {
        *out = (piece){sim, sizeof *sim};
    } else if (index == 1) {
        bool ours = sim->pending.options == sim->host->options;
        *out = (piece){sim->host->options,
                       ours ? sim->pending.option_count * sizeof *sim->host->options : 0};
    } else if (index == 2) {
        *out = (piece){sim->schedule.items, sim->schedule.count * sizeof *sim->schedule.items};
    } else if (index - 3 < sim->world_size) {
        const cd_fiber *f = &sim->ranks[index - 3].fiber;
        unsigned char *top = f->ended ? f->stack + f->stack_bytes : cd_fiber_get_top(f);
        *out = (piece){top, (size_t)(f->stack + f->stack_bytes - top)};
    } else {
        return false;
    }
    return true;
}

cddp_status cd_sim_snapshot(cd_sim *sim, cd_snapshot **snapshot, cddp_error *err)
{
    const cddp_allocator *a = sim->host->arena.allocator;
    if (cd_fiber_has_shadow())
        return cd_fail(
            err, CDDP_E_UNSUPPORTED,
            "a sanitizer build cannot copy the shadow of its stacks: replay the prefix instead");
    if (sim->pending_source == CD_PENDING_NONE)
        return cd_fail(err, CDDP_E_STATE, "a snapshot is taken at a pending choice");
    if (sim->cluster->used_staging != NULL)
        return cd_fail(
            err, CDDP_E_UNSUPPORTED,
            "a chunk whose data lives outside the world is under way: replay the prefix instead");
    size_t bytes = 0;
    piece p;
    for (uint32_t i = 0; get_piece(sim, i, &p); i++) bytes += p.bytes;
    cd_snapshot *s = cd_allocate(a, sizeof *s + bytes);
    cd_image *memory = s != NULL ? cd_image_take(a, sim->memory.base, sim->memory.used) : NULL;
    if (memory == NULL) {
        cd_release(a, s, sizeof *s + bytes);
        return cd_fail_memory(err, "a snapshot of %zu bytes", bytes + sim->memory.used);
    }
    s->allocator = a;
    s->sim = sim;
    s->memory = memory;
    s->memory_bytes = sim->memory.used;
    s->bytes = bytes;
    s->staging_serial = sim->cluster->staging_serial;
    size_t at = 0;
    for (uint32_t i = 0; get_piece(sim, i, &p); at += p.bytes, i++)
        memcpy(s->data + at, p.memory, p.bytes);
    *snapshot = s;
    return CDDP_OK;
}

/* Storage that devices made after the snapshot was taken is not known to the world that it
** describes. */
static void release_newer(cd_staging *list, uint64_t serial)
{
    for (cd_staging *s = list; s != NULL; s = s->next)
        if (s->serial >= serial) s->device->release(s->device, s->dtype, s->numel, s->storage);
}

void cd_sim_restore(cd_sim *sim, const cd_snapshot *snapshot)
{
    CD_ASSERT(snapshot->sim == sim && sim->current == NULL);
    release_newer(sim->cluster->free_staging, snapshot->staging_serial);
    release_newer(sim->cluster->used_staging, snapshot->staging_serial);
    size_t at = 0;
    piece p;
    /* The first piece and the memory restore the addresses of the following ones. */
    for (uint32_t i = 0; get_piece(sim, i, &p); at += p.bytes, i++) {
        memcpy(p.memory, snapshot->data + at, p.bytes);
        if (i == 0) cd_image_put_back(snapshot->memory, sim->memory.base);
    }
    CD_ASSERT(at == snapshot->bytes);
}

size_t cd_snapshot_bytes(const cd_snapshot *snapshot)
{
    return snapshot->memory_bytes + snapshot->bytes;
}

void cd_snapshot_destroy(cd_snapshot *snapshot)
{
    if (snapshot == NULL) return;
    cd_image_destroy(snapshot->memory);
    cd_release(snapshot->allocator, snapshot, sizeof *snapshot + snapshot->bytes);
}
