/* SPDX-License-Identifier: Apache-2.0 */
/* Copies runs between stores: merges the shards of one run, and copies whole runs from another
** file.
**
** Each rank of a real backend writes its own file, so that a dying rank damages no other file.
** Merging is a k-way merge over cursors in (time, rank, sequence) order. It keeps one event per
** shard in memory, and the result does not depend on the order of the paths. */
#include "db/store.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

typedef struct shard {
    cddp_store *store;
    cd_cursor cursor;
    cddp_event event; /* the next event, valid while pending */
    bool pending;
} shard;

static cddp_status open_shard(shard *s, const char *path, const cddp_allocator *allocator,
                              cddp_error *err)
{
    int64_t run = 0;
    CD_TRY(cddp_store_open(path, CDDP_STORE_READ, allocator, &s->store, err));
    CD_TRY(cddp_store_last_run(s->store, &run, err));
    CD_TRY(cd_cursor_open(&s->cursor, s->store, run, CDDP_STORE_MERGED, err));
    CD_TRY(cd_cursor_next(&s->cursor, &s->event, &s->pending, err));
    return CDDP_OK;
}

static bool comes_before(const cddp_event *a, const cddp_event *b)
{
    if (a->time_ns != b->time_ns) return a->time_ns < b->time_ns;
    if (a->rank != b->rank) return a->rank < b->rank;
    return a->sequence < b->sequence;
}

/* Finds the least by looking at all shards, which are few (one per rank of a real job). NULL: all
** are done. */
static shard *find_least(shard *shards, size_t count)
{
    shard *least = NULL;
    for (size_t i = 0; i < count; i++)
        if (shards[i].pending && (least == NULL || comes_before(&shards[i].event, &least->event)))
            least = &shards[i];
    return least;
}

cddp_status cddp_store_merge_shards(cddp_store *store, const char *const *paths, size_t path_count,
                                    cddp_error *err)
{
    cddp_status status = CDDP_OK;
    CD_TRY(cd_writer_require(store, err));
    shard *shards = cd_allocate_array(store->allocator, path_count, sizeof *shards);
    if (shards == NULL) return cd_fail_memory(err, "merging %zu shards", path_count);
    for (size_t i = 0; i < path_count; i++)
        CD_TRY_OUT(open_shard(&shards[i], paths[i], store->allocator, err));
    for (shard *s = find_least(shards, path_count); s != NULL; s = find_least(shards, path_count)) {
        cd_writer_add(store, &s->event);
        CD_TRY_OUT(cd_cursor_next(&s->cursor, &s->event, &s->pending, err));
    }
    CD_TRY_OUT(cd_writer_commit(store, err));
out:
    for (size_t i = 0; i < path_count; i++) {
        cd_cursor_close(&shards[i].cursor);
        cddp_store_close(shards[i].store);
    }
    cd_release(store->allocator, shards, path_count * sizeof *shards);
    return status;
}

/* ---- whole runs ---- */

static cddp_status add_finding(void *context, const cddp_finding *finding, cddp_error *err)
{
    return CD_PASS(cddp_store_add_finding(context, finding, err));
}

static cddp_status add_exercised(void *context, const char *check, const char *how, cddp_error *err)
{
    return CD_PASS(cddp_store_add_exercised(context, check, how, err));
}

static cddp_status add_metric(void *context, const char *name, double value, cddp_error *err)
{
    return CD_PASS(cddp_store_add_metric(context, name, value, err));
}

typedef struct copy {
    cddp_store *to, *from;
    int64_t number; /* in `to` */
} copy;

static cddp_status copy_run(void *context, const cddp_stored_run *stored, cddp_error *err)
{
    copy *c = context;
    CD_TRY(cddp_store_run_begin(c->to, &stored->provenance, &c->number, err));
    CD_TRY(cddp_store_each_event(c->from, stored->run, CDDP_STORE_RECORDED, cddp_store_sink(c->to),
                                 err));
    CD_TRY(cddp_store_each_finding(c->from, stored->run, add_finding, c->to, err));
    CD_TRY(cddp_store_each_exercised(c->from, stored->run, add_exercised, c->to, err));
    CD_TRY(cddp_store_each_metric(c->from, stored->run, add_metric, c->to, err));
    if (stored->complete) return CD_PASS(cddp_store_run_end(c->to, &stored->outcome, err));
    CD_TRY(cd_writer_commit(c->to, err));
    cd_writer_abandon(c->to);
    return CDDP_OK;
}

cddp_status cddp_store_copy_run(cddp_store *store, cddp_store *from, int64_t run, int64_t *copied,
                                cddp_error *err)
{
    copy c = {.to = store, .from = from};
    cddp_status status = cddp_store_each_run(from, run, copy_run, &c, err);
    /* A failed copy stays in the file, marked incomplete, like any interrupted run. */
    if (status != CDDP_OK && store->writer.run != 0) cd_writer_abandon(store);
    if (status == CDDP_OK) *copied = c.number;
    return status;
}
