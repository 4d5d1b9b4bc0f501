/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning that all schedules share. See prefix.h. */
#include "verify/explore/prefix.h"

#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/image.h"
#include "sim/fiber.h"
#include "sim/memory.h"

#include <stdlib.h>

#define BLOCK_BYTES ((size_t)1 << 35)      /* reserved; touched pages cost */
#define IMAGE_BYTES_MAX ((size_t)64 << 20) /* what is copied for every schedule */

struct cd_explore_prefix {
    unsigned char *block; /* (BLOCK_BYTES) */
    cd_memory memory;     /* of the block */
    cddp_allocator table;
    cd_run *run;         /* in the block */
    cd_witness *witness; /* in the block; NULL: without a recall */
    const cddp_trace_sink *sinks[1];
    uint32_t world_size;
    cd_snapshot *world; /* NULL: nothing is kept */
    cd_memory memory_then;
    cd_image *image; /* (memory_then.used) of the block */
};

cddp_status cd_explore_prefix_create(cd_explore_prefix **prefix, cddp_error *err)
{
    if (cd_fiber_has_shadow()) return CDDP_OK;
    unsigned char *block = cd_fiber_map(BLOCK_BYTES);
    if (block == NULL) return CDDP_OK; /* so little address space */
    cd_explore_prefix *p = calloc(1, sizeof *p);
    if (p == NULL) {
        cd_fiber_unmap(block, BLOCK_BYTES);
        return cd_fail_memory(err, "the beginning of a run");
    }
    p->block = block;
    cd_memory_init(&p->memory, p->block, BLOCK_BYTES);
    p->table = cd_memory_table(&p->memory);
    *prefix = p;
    return CDDP_OK;
}

/* Behind the moment everything is forgotten at once: what is given back needs no place in a
** list. */
static void release_nothing(void *context, void *block, size_t bytes)
{
    (void)context;
    (void)block;
    (void)bytes;
}

static void drop_image(cd_explore_prefix *p)
{
    cd_snapshot_destroy(p->world);
    cd_image_destroy(p->image);
    p->world = NULL;
    p->image = NULL;
}

void cd_explore_prefix_clear(cd_explore_prefix *p)
{
    drop_image(p);
    p->run = NULL;
    p->witness = NULL;
    cd_memory_fini(&p->memory);
    cd_memory_init(&p->memory, p->block, BLOCK_BYTES);
    p->table = cd_memory_table(&p->memory);
}

void cd_explore_prefix_destroy(cd_explore_prefix *p)
{
    if (p == NULL) return;
    cd_explore_prefix_clear(p);
    cd_fiber_unmap(p->block, BLOCK_BYTES);
    free(p);
}

cddp_status cd_explore_prefix_start(cd_explore_prefix *p, const cddp_run_options *options,
                                    struct cd_recall *recall, cddp_error *err)
{
    CD_ASSERT(p->run == NULL && options->sink_count == 0);
    cddp_run_options here = *options;
    here.allocator = &p->table;
    p->world_size = (uint32_t)options->plan->world.size;
    if (recall != NULL) {
        CD_TRY(cd_witness_create(here.allocator, recall, p->world_size, &p->witness, err));
        p->sinks[0] = &p->witness->sink;
        here.sinks = p->sinks;
        here.sink_count = 1;
    }
    /* schedules differ in them */
    const bool is_unheard = recall != NULL && cd_recall_looks(recall);
    const cd_run_manner manner = {.holds_storage = true,
                                  .without_digests = true,
                                  .is_dropped = true,
                                  .is_unheard = is_unheard,
                                  .values = is_unheard ? &p->witness->values : NULL,
                                  .recall = recall};
    CD_TRY(cd_run_begin(&here, &manner, &p->run, err));
    return CD_PASS(cd_run_launch(p->run, err));
}

static bool take_image(cd_explore_prefix *p, cd_sim *sim)
{
    cddp_error err = CDDP_ERROR_INIT;
    if (cd_sim_snapshot(sim, &p->world, &err) != CDDP_OK) return false;
    if (p->memory.used + cd_snapshot_bytes(p->world) <= IMAGE_BYTES_MAX)
        p->image = cd_image_take(NULL, p->block, p->memory.used);
    if (p->image == NULL) {
        drop_image(p);
        return false;
    }
    p->memory_then = p->memory;
    return true;
}

static void put_back(cd_explore_prefix *p, cd_sim *sim)
{
    /* first: it gives back what devices made since, which lies in the block */
    cd_sim_restore(sim, p->world);
    p->memory = p->memory_then;
    cd_image_put_back(p->image, p->block);
}

void cd_explore_prefix_keep(cd_explore_prefix *p, cd_sim *sim)
{
    CD_ASSERT(p->run != NULL && p->world == NULL);
    if (!take_image(p, sim)) return;
    if (cd_sim_gather(sim)) {
        drop_image(p);
        if (!take_image(p, sim)) return;
    } else {
        put_back(p, sim);
    }
    p->table.release = release_nothing;
}

bool cd_explore_prefix_is_kept(const cd_explore_prefix *p) { return p->world != NULL; }
bool cd_explore_prefix_is_used(const cd_explore_prefix *p) { return p->run != NULL; }

cddp_status cd_explore_prefix_resume(cd_explore_prefix *p, cd_sim *sim, cddp_error *err)
{
    put_back(p, sim);
    cd_run_resume(p->run);
    return CD_PASS(cd_sim_resume(sim, cd_run_get_results(p->run), err));
}

const cd_witness *cd_explore_prefix_get_witness(const cd_explore_prefix *p) { return p->witness; }

bool cd_explore_prefix_has_returned(const cd_explore_prefix *p)
{
    const cddp_rank_result *results = cd_run_get_results(p->run);
    bool has_returned = true;
    for (uint32_t i = 0; i < p->world_size; i++)
        has_returned =
            has_returned && results[i].end == CDDP_RANK_RETURNED && results[i].status == CDDP_OK;
    return has_returned;
}

cddp_status cd_explore_prefix_end(cd_explore_prefix *p, cddp_verdict **verdict, cddp_error *err)
{
    if (p->witness != NULL) cd_witness_close(p->witness);
    return CD_PASS(cd_run_end(p->run, verdict, err));
}
