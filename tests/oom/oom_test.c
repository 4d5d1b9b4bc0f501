/* SPDX-License-Identifier: Apache-2.0 */
/* Memory running out, at every single allocation of every constructor: nothing is left behind, the status is
** CDDP_E_NOMEM and a message says what there was no memory for. A new constructor is a new row. */
#include "cddp/cddp.h"

#include "core/base/error.h"
#include "core/trace/sink.h"
#include "tests/support/test.h"

static const uint32_t members[] = {0};

static void ignore_event(void *self, const cddp_event *event)
{
    (void)self;
    (void)event;
}
static const cddp_trace_sink silent = {.size = sizeof silent, .abi = CDDP_TRACE_ABI, .event = ignore_event};

static cddp_status solo(const cddp_allocator *a, cddp_solo_world **world, cddp_error *err)
{
    cddp_solo_options options = {.size = sizeof options, .world_size = 1, .allocator = a};
    CD_TRY(cddp_solo_world_open(&options, world, err));
    return CDDP_OK;
}

static cddp_status makes_solo_world(const cddp_allocator *a, void *argument, cddp_error *err)
{
    (void)argument;
    cddp_solo_world *world = NULL;
    CD_TRY(solo(a, &world, err));
    cddp_solo_world_close(world);
    return CDDP_OK;
}

static cddp_status makes_process_world(const cddp_allocator *a, void *argument, cddp_error *err)
{
    (void)argument;
    cddp_process_world *world = NULL;
    cddp_process_options options = {.size = sizeof options, .world_size = 5, .allocator = a};
    CD_TRY(cddp_process_world_open(&options, &world, err));
    cddp_process_world_close(world);
    return CDDP_OK;
}

static cddp_status makes_tracer(const cddp_allocator *a, void *argument, cddp_error *err)
{
    (void)argument;
    cddp_solo_world *world = NULL;
    cddp_tracer *tracer = NULL;
    CD_TRY(solo(a, &world, err));
    cddp_status status = cddp_tracer_create(cddp_solo_world_rank(world), &silent, CDDP_TRACE_ORDER, &tracer, err);
    cddp_tracer_destroy(tracer);
    cddp_solo_world_close(world);
    return status;
}

static cddp_status makes_group(const cddp_allocator *a, void *argument, cddp_error *err)
{
    (void)argument;
    cddp_solo_world *world = NULL;
    cddp_group *group = NULL;
    CD_TRY(solo(a, &world, err));
    cddp_group_options options = {.size = sizeof options, .backend = cddp_backend_self(), .rank = cddp_solo_world_rank(world),
                                  .spec = {.name = "default", .group_size = 1, .members = members}, .works_max = 8};
    cddp_status status = cddp_group_create(&options, &group, err);
    cddp_group_destroy(group);
    cddp_solo_world_close(world);
    return status;
}

static cddp_status records_events(const cddp_allocator *a, void *argument, cddp_error *err)
{
    (void)argument;
    cd_memory_sink memory;
    cd_memory_sink_init(&memory, a);
    for (int i = 0; i < 40; i++) {
        cddp_event e = {.kind = CDDP_EV_mark, .text = "a text that makes the third array grow as well"};
        memory.sink.event(memory.sink.self, &e);
    }
    cddp_status status = memory.sink.flush(memory.sink.self, err);
    cd_memory_sink_fini(&memory);
    return status;
}

TEST(out_of_memory, no_constructor_leaves_anything_behind)
{
    static const struct {
        const char *name;
        cddp_status (*body)(const cddp_allocator *allocator, void *argument, cddp_error *err);
        uint64_t allocations_min; /* fewer would mean that the row tests nothing */
    } constructors[] = {
        {"cddp_solo_world_open", makes_solo_world, 1},
        {"cddp_process_world_open", makes_process_world, 2},
        {"cddp_tracer_create", makes_tracer, 2},
        {"cddp_group_create", makes_group, 5},
        {"cd_memory_sink", records_events, 6},
    };
    for (size_t i = 0; i < sizeof constructors / sizeof constructors[0]; i++) {
        uint64_t allocations = cd_test_oom_loop(constructors[i].body, NULL);
        cd_test_row("%s", constructors[i].name);
        assert_true(allocations >= constructors[i].allocations_min);
    }
}

TEST_MAIN(ROW(out_of_memory, no_constructor_leaves_anything_behind))
