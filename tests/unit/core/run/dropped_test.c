/* SPDX-License-Identifier: Apache-2.0 */
/* A run whose memory is dropped says what any other run says, and gives back less. */
#include "cddp/cddp.h"
#include "core/run/run.h"
#include "core/trace/event.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

typedef struct seen {
    uint64_t digest, events;
    uint64_t live; /* pieces of memory behind the ranks' end */
} seen;

static void look(void *self, const cddp_event *event)
{
    seen *s = self;
    s->digest = cd_event_digest(s->digest, event, true);
    s->events++;
}

/* ---- memory that counts its pieces, and is dropped at once ---- */

typedef struct piece {
    struct piece *next, *last;
    _Alignas(64) unsigned char bytes[];
} piece;

typedef struct pool {
    piece all; /* a ring */
    uint64_t live;
} pool;

static piece *piece_of(void *block)
{
    return (piece *)(void *)((unsigned char *)block - offsetof(piece, bytes));
}

static void *pool_allocate(void *context, size_t bytes)
{
    pool *p = context;
    piece *made = aligned_alloc(64, (sizeof *made + bytes + 63) / 64 * 64);
    assert_non_null(made);
    made->next = p->all.next;
    made->last = &p->all;
    made->next->last = p->all.next = made;
    p->live++;
    return made->bytes;
}

static void pool_release(void *context, void *block, size_t bytes)
{
    (void)bytes;
    pool *p = context;
    if (block == NULL) return;
    piece *gone = piece_of(block);
    gone->last->next = gone->next;
    gone->next->last = gone->last;
    p->live--;
    free(gone);
}

static void *pool_resize(void *context, void *block, size_t bytes_old, size_t bytes_new)
{
    void *moved = pool_allocate(context, bytes_new);
    if (block == NULL) return moved;
    memcpy(moved, block, bytes_old < bytes_new ? bytes_old : bytes_new);
    pool_release(context, block, bytes_old);
    return moved;
}

static void drop(pool *p)
{
    while (p->all.next != &p->all) pool_release(p, p->all.next->bytes, 0);
}

/* ---- a run ---- */

static cddp_plan *make_plan(const char *device)
{
    static const char *const sets[][2] = {{"title", "dropped"},
                                          {"world.size", "1"},
                                          {"train.steps", "2"},
                                          {"model.name", "mlp"}};
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++)
        assert_ok(cddp_plan_set(plan, sets[i][0], sets[i][1], &err), &err);
    assert_ok(cddp_plan_set(plan, "model.device", device, &err), &err);
    assert_ok(cddp_plan_check(plan, &err), &err);
    return plan;
}

static seen run(const char *device, bool is_dropped)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = make_plan(device);
    cddp_registry *registry = NULL;
    cddp_solo_world *world = NULL;
    cd_run *made = NULL;
    seen s = {0};
    pool p = {.live = 0};
    p.all.next = p.all.last = &p.all;
    const cddp_allocator table = {sizeof table, &p, pool_allocate, pool_resize, pool_release};
    const cddp_trace_sink sink = {.size = sizeof sink,
                                  .abi = CDDP_TRACE_ABI,
                                  .self = &s,
                                  .event = look};
    const cddp_trace_sink *sinks[1] = {&sink};
    const cddp_solo_options solo = {.size = sizeof solo, .world_size = 1, .allocator = &table};
    assert_ok(cddp_registry_create(NULL, &registry, &err), &err);
    assert_ok(cddp_solo_world_open(&solo, &world, &err), &err);
    cddp_run_options options = cddp_run_options_default();
    options.plan = plan;
    options.registry = registry;
    options.allocator = &table;
    options.world_ops = cddp_solo_world_ops();
    options.world = world;
    options.backend = cddp_backend_self();
    options.sinks = sinks;
    options.sink_count = 1;
    const cd_run_manner manner = {.holds_storage = true, .is_dropped = is_dropped};
    assert_ok(cd_run_begin(&options, &manner, &made, &err), &err);
    const uint64_t before = p.live;
    assert_ok(cd_run_launch(made, &err), &err);
    assert_int_equal(cd_run_get_results(made)->status, CDDP_OK);
    s.live = p.live - before;
    cd_run_destroy(made);
    cddp_solo_world_close(world);
    drop(&p);
    cddp_registry_destroy(registry);
    cddp_plan_destroy(plan);
    return s;
}

TEST(dropped, run_says_what_any_run_says_and_keeps_the_memory_of_its_model)
{
    (void)state;
    static const char *const devices[] = {"cpu", "shape"};
    for (size_t i = 0; i < 2; i++) {
        cd_test_row("%s", devices[i]);
        const seen whole = run(devices[i], false), dropped = run(devices[i], true);
        assert_true(whole.events > 20);
        assert_int_equal(dropped.events, whole.events);
        assert_true(dropped.digest == whole.digest);
        assert_true(dropped.live > whole.live);
    }
}

TEST_MAIN()
