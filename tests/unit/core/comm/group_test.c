/* SPDX-License-Identifier: Apache-2.0 */
/* The choke point over two backends: `self`, where everything ends at once, and a scripted one that
** fails, delays and counts as the test says. */
#include "cddp/comm.h"

#include "cddp/process.h"
#include "cddp/self.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/comm/group.h"
#include "core/comm/hold.h"
#include "core/trace/sink.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

/* ---- the scripted backend ---- */

typedef struct script {
    cddp_status open_status, post_status, test_status, wait_status;
    bool done;
    const char *who; /* what describe says */
    uint32_t posts, releases, closes, aborts;
    uint64_t last_timeout_ns;
    cddp_collective last;
    char options[32]; /* of the group that was opened last */
    uint32_t in_flight_max;
} script;

static cddp_status failing(cddp_status status, const char *what, cddp_error *err)
{
    return status == CDDP_OK ? CDDP_OK : cd_fail(err, status, "scripted %s failure", what);
}
static cddp_status script_open(const cddp_backend *backend, cddp_rank *rank,
                               const cddp_group_spec *spec, void **group, cddp_error *err)
{
    (void)rank;
    script *s = backend->self;
    snprintf(s->options, sizeof s->options, "%s", spec->options != NULL ? spec->options : "");
    s->in_flight_max = spec->in_flight_max;
    CD_TRY(failing(s->open_status, "open", err));
    *group = s;
    return CDDP_OK;
}
static void script_close(void *group) { ((script *)group)->closes++; }
static cddp_status script_post(void *group, const cddp_collective *collective, void **work,
                               cddp_error *err)
{
    script *s = group;
    s->last = *collective;
    CD_TRY(failing(s->post_status, "post", err));
    s->posts++;
    *work = s;
    return CDDP_OK;
}
static cddp_status script_test(void *group, void *work, bool *done, cddp_error *err)
{
    (void)work;
    script *s = group;
    *done = s->done;
    return failing(s->test_status, "test", err);
}
static cddp_status script_wait(void *group, void *work, uint64_t timeout_ns, cddp_error *err)
{
    (void)work;
    script *s = group;
    s->last_timeout_ns = timeout_ns;
    return failing(s->wait_status, "wait", err);
}
static void script_release(void *group, void *work)
{
    (void)work;
    ((script *)group)->releases++;
}
static cddp_status script_abort(void *group, const char *reason, cddp_error *err)
{
    (void)reason;
    (void)err;
    ((script *)group)->aborts++;
    return CDDP_OK;
}
static void script_describe(void *group, void *work, char *text, size_t text_bytes)
{
    (void)work;
    const script *s = group;
    snprintf(text, text_bytes, "%s", s->who != NULL ? s->who : "");
}

static cddp_backend scripted(script *s)
{
    return (cddp_backend){
        .size = sizeof(cddp_backend),
        .abi = CDDP_BACKEND_ABI,
        .name = "scripted",
        .self = s,
        .capabilities = {.size = sizeof(cddp_capabilities),
                         .ops = 0xffffu & ~(1u << CDDP_OP_SCATTER),
                         .dtypes = CDDP_DTYPE_BIT(CDDP_F32),
                         .reduce_ops = 1u << CDDP_RED_SUM,
                         .devices = CDDP_DEVICE_HOST,
                         .in_place = true,
                         .world_size_max = 8},
        .open = script_open,
        .close = script_close,
        .post = script_post,
        .test = script_test,
        .wait = script_wait,
        .release = script_release,
        .abort = script_abort,
        .describe = script_describe,
    };
}

/* ---- a rank with a group and a recorded trace ---- */

typedef struct fixture {
    cddp_solo_world *world;
    cddp_tracer *tracer;
    cd_memory_sink memory;
    cddp_group *group;
    script script;
    cddp_backend backend;
    cddp_error err;
} fixture;

static const uint32_t members3[] = {0, 1, 2};

static cddp_group_options options_of(fixture *f, const cddp_backend *backend, uint32_t group_size)
{
    return (cddp_group_options){.size = sizeof(cddp_group_options),
                                .backend = backend,
                                .rank = cddp_solo_world_rank(f->world),
                                .spec = {.size = sizeof(cddp_group_spec),
                                         .name = "default",
                                         .group_rank = 0,
                                         .group_size = group_size,
                                         .members = members3,
                                         .timeout_ns = 5000},
                                .tracer = f->tracer,
                                .works_max = 4};
}

static void set_up(fixture *f, bool use_self)
{
    memset(f, 0, sizeof *f);
    uint32_t world_size = use_self ? 1 : 3;
    cddp_solo_options solo = {.size = sizeof solo, .rank = 0, .world_size = world_size};
    assert_ok(cddp_solo_world_open(&solo, &f->world, &f->err), &f->err);
    cd_memory_sink_init(&f->memory, NULL);
    assert_ok(cddp_tracer_create(cddp_solo_world_rank(f->world), &f->memory.sink, CDDP_TRACE_DIGEST,
                                 &f->tracer, &f->err),
              &f->err);
    f->backend = scripted(&f->script);
    cddp_group_options options =
        options_of(f, use_self ? cddp_backend_self() : &f->backend, world_size);
    assert_ok(cddp_group_create(&options, &f->group, &f->err), &f->err);
}

static void tear_down(fixture *f)
{
    if (f->group != NULL) cd_group_audit(f->group);
    cddp_group_destroy(f->group);
    cddp_tracer_destroy(f->tracer);
    cd_memory_sink_fini(&f->memory);
    cddp_solo_world_close(f->world);
}

static cddp_tensor floats(float *values, int64_t numel)
{
    return cddp_tensor_of(cddp_device_cpu(), values, 0, CDDP_F32, &numel, 1);
}

static uint32_t count_events(const fixture *f, uint32_t kind)
{
    uint32_t n = 0;
    for (size_t i = 0; i < f->memory.count; i++) n += f->memory.events[i].kind == kind;
    return n;
}

static cddp_event last_event(const fixture *f, uint32_t kind)
{
    for (size_t i = f->memory.count; i-- > 0;)
        if (f->memory.events[i].kind == kind) return cd_memory_sink_get(&f->memory, i);
    fail_msg("no such event");
    return (cddp_event){0};
}

static void complete(fixture *f, cddp_collective *c)
{
    cddp_work *work = NULL;
    assert_ok(cddp_group_post(f->group, c, &work, &f->err), &f->err);
    assert_ok(cddp_work_wait(work, 0, &f->err), &f->err);
}

/* ---- the self backend ---- */

TEST(self, every_collective_of_one_rank_is_a_copy)
{
    fixture f;
    set_up(&f, true);
    static const cddp_op copying[] = {CDDP_OP_ALLREDUCE, CDDP_OP_ALLGATHER, CDDP_OP_REDUCE_SCATTER,
                                      CDDP_OP_REDUCE,    CDDP_OP_GATHER,    CDDP_OP_SCATTER,
                                      CDDP_OP_ALLTOALL};
    for (size_t i = 0; i < sizeof copying / sizeof copying[0]; i++) {
        cd_test_row("%s", cddp_op_name(copying[i]));
        float in[3] = {1, 2, 3}, out[3] = {0};
        cddp_collective c = {.op = copying[i],
                             .reduce_op = CDDP_RED_AVG,
                             .input = floats(in, 3),
                             .output = floats(out, 3)};
        complete(&f, &c);
        assert_memory_equal(in, out, sizeof in);
    }
    float values[3] = {4, 5, 6};
    cddp_tensor t = floats(values, 3);
    cddp_work *work = NULL;
    assert_ok(cddp_group_allreduce(f.group, &t, CDDP_RED_SUM, &work, &f.err), &f.err);
    assert_ok(cddp_work_wait(work, 0, &f.err), &f.err);
    assert_ok(cddp_group_broadcast(f.group, &t, 0, &work, &f.err), &f.err);
    assert_ok(cddp_work_wait(work, 0, &f.err), &f.err);
    assert_ok(cddp_group_allgather(f.group, &t, &t, &work, &f.err), &f.err);
    assert_ok(cddp_work_wait(work, 0, &f.err), &f.err);
    assert_ok(cddp_group_barrier(f.group, &f.err), &f.err);
    assert_true(values[0] == 4 && values[1] == 5 && values[2] == 6);
    tear_down(&f);
}

TEST(self, a_sum_with_a_factor_multiplies)
{
    fixture f;
    set_up(&f, true);
    float values[2] = {3, -8};
    cddp_collective c = {.op = CDDP_OP_ALLREDUCE,
                         .reduce_op = CDDP_RED_PREMUL_SUM,
                         .premultiplier = 0.25,
                         .input = floats(values, 2),
                         .output = floats(values, 2)};
    complete(&f, &c);
    assert_true(values[0] == 0.75f && values[1] == -2.0f);
    tear_down(&f);
}

TEST(self, it_takes_one_rank_no_options_no_peers_and_nothing_after_an_abort)
{
    fixture f;
    set_up(&f, true);
    float value = 1;
    cddp_tensor t = floats(&value, 1);
    cddp_work *work = NULL;
    cddp_collective send = {.op = CDDP_OP_SEND, .input = t};
    assert_fails(cddp_group_post(f.group, &send, &work, &f.err), CDDP_E_UNSUPPORTED, &f.err,
                 "backend self does not implement send");
    cddp_group *second = NULL;
    cddp_group_options options = options_of(&f, cddp_backend_self(), 1);
    options.spec.options = "ring=2";
    assert_fails(cddp_group_create(&options, &second, &f.err), CDDP_E_CONFIG, &f.err, "ring=2");
    assert_ok(cddp_group_abort(f.group, "test", &f.err), &f.err);
    assert_fails(cddp_group_allreduce(f.group, &t, CDDP_RED_SUM, &work, &f.err), CDDP_E_ABORTED,
                 &f.err, "was aborted");
    assert_null(work);
    tear_down(&f);
    set_up(&f, false);
    options = options_of(&f, cddp_backend_self(), 3);
    assert_fails(cddp_group_create(&options, &second, &f.err), CDDP_E_LIMIT, &f.err,
                 "3 members; backend self takes at most 1");
    assert_null(second);
    tear_down(&f);
}

/* ---- G1: numbering ---- */

TEST(group, operations_are_numbered_from_zero_also_when_the_backend_fails_one)
{
    fixture f;
    set_up(&f, false);
    float value = 1;
    cddp_tensor t = floats(&value, 1);
    for (uint64_t i = 0; i < 5; i++) {
        cddp_work *work = NULL;
        f.script.post_status = i == 2 ? CDDP_E_BACKEND : CDDP_OK;
        cddp_status status = cddp_group_allreduce(f.group, &t, CDDP_RED_SUM, &work, &f.err);
        assert_int_equal(f.script.last.sequence, i);
        assert_int_equal(cddp_group_sequence(f.group), i + 1);
        assert_int_equal(last_event(&f, CDDP_EV_collective_post).as.collective_post.sequence, i);
        if (i == 2)
            assert_fails(status, CDDP_E_BACKEND, &f.err, "scripted post failure");
        else
            assert_ok(cddp_work_wait(work, 0, &f.err), &f.err);
        assert_int_equal(last_event(&f, CDDP_EV_collective_done).as.collective_done.sequence, i);
        cd_group_audit(f.group);
    }
    tear_down(&f);
}

TEST(group, a_refused_operation_spends_no_number_and_leaves_no_event)
{
    fixture f;
    set_up(&f, false);
    cddp_work *work = NULL;
    cddp_collective c = {.op = CDDP_OP_ALLREDUCE};
    assert_fails(cddp_group_post(f.group, &c, &work, &f.err), CDDP_E_ARG, &f.err,
                 "needs an input tensor");
    assert_int_equal(cddp_group_sequence(f.group), 0);
    assert_int_equal(count_events(&f, CDDP_EV_collective_post), 0);
    assert_int_equal(f.script.posts, 0);
    tear_down(&f);
}

/* ---- G2, G3: works ---- */

TEST(group, works_are_bounded_reused_and_all_given_back)
{
    fixture f;
    set_up(&f, false);
    float value = 1;
    cddp_tensor t = floats(&value, 1);
    cddp_work *works[4] = {0}, *none = NULL;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++) {
            assert_ok(cddp_group_allreduce(f.group, &t, CDDP_RED_SUM, &works[i], &f.err), &f.err);
            assert_int_equal(last_event(&f, CDDP_EV_collective_post).as.collective_post.in_flight,
                             i + 1);
        }
        assert_fails(cddp_group_allreduce(f.group, &t, CDDP_RED_SUM, &none, &f.err), CDDP_E_LIMIT,
                     &f.err, "group 'default' already has 4 operations in flight");
        assert_null(none);
        for (int i = 0; i < 3; i++) assert_ok(cddp_work_wait(works[i], 0, &f.err), &f.err);
        cddp_work_release(works[3]);
        cd_group_audit(f.group);
    }
    cddp_work_release(NULL);
    assert_int_equal(f.script.releases, 12);
    tear_down(&f);
    assert_int_equal(f.script.closes, 1);
}

TEST(group, destroying_it_releases_what_is_outstanding_and_says_how_many)
{
    fixture f;
    set_up(&f, false);
    float value = 1;
    cddp_tensor t = floats(&value, 1);
    cddp_work *sum = NULL, *copy = NULL;
    assert_ok(cddp_group_allreduce(f.group, &t, CDDP_RED_SUM, &sum, &f.err), &f.err);
    assert_ok(cddp_group_broadcast(f.group, &t, 2, &copy, &f.err), &f.err);
    cddp_group_destroy(f.group);
    f.group = NULL;
    cddp_work_release(copy);
    cddp_work_release(sum);
    assert_int_equal(f.script.releases, 2);
    assert_int_equal(f.script.closes, 1);
    assert_int_equal(last_event(&f, CDDP_EV_group_close).as.group_close.outstanding, 2);
    assert_int_equal(count_events(&f, CDDP_EV_collective_done), 0);
    cddp_group_destroy(NULL);
    tear_down(&f);
}

TEST(group, a_frozen_heap_shows_that_posting_and_waiting_allocate_nothing)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_watch_allocator watch;
    cd_watch_allocator_init(&watch, NULL);
    cddp_solo_world *world = NULL;
    cddp_solo_options solo = {.size = sizeof solo, .world_size = 1, .allocator = &watch.table};
    assert_ok(cddp_solo_world_open(&solo, &world, &err), &err);
    cddp_group_options options = {.size = sizeof options,
                                  .backend = cddp_backend_self(),
                                  .rank = cddp_solo_world_rank(world),
                                  .spec = {.name = "g", .group_size = 1, .members = members3}};
    cddp_group *group = NULL;
    assert_ok(cddp_group_create(&options, &group, &err), &err);
    watch.frozen = true;
    float values[8] = {0};
    cddp_tensor t = floats(values, 8);
    for (int i = 0; i < 100; i++) {
        cddp_work *work = NULL;
        assert_ok(cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, &err), &err);
        assert_ok(cddp_work_wait(work, 0, &err), &err);
    }
    assert_int_equal(watch.growth_count, 0);
    cddp_group_destroy(group);
    cddp_solo_world_close(world);
    assert_int_equal(watch.live_count, 0);
}

/* ---- G4: what is not declared never arrives ---- */

TEST(group, what_the_backend_does_not_declare_is_refused_by_name)
{
    fixture f;
    set_up(&f, false);
    float a[6] = {0}, b[6] = {0};
    double d[6] = {0};
    int64_t six = 6, sizes[2] = {2, 3};
    cddp_tensor f6 = floats(a, 6), g6 = floats(b, 6), f3 = floats(b, 3), f2 = floats(b, 2);
    cddp_tensor d6 = cddp_tensor_of(cddp_device_cpu(), d, 0, CDDP_F64, &six, 1);
    cddp_tensor shape = cddp_tensor_of(cddp_device_shape(), NULL, 0, CDDP_F32, &six, 1);
    cddp_tensor transposed = cddp_tensor_of(cddp_device_cpu(), a, 0, CDDP_F32, sizes, 2),
                none = {0};
    transposed.strides[0] = 1;
    transposed.strides[1] = 2;
    cddp_tensor no_dtype = f6, many = f6;
    no_dtype.dtype = (cddp_dtype)77;
    many.dim_count = 99;
    const struct {
        const char *words;
        cddp_status status;
        cddp_collective c;
    } cases[] = {
        {"no such operation: 99", CDDP_E_ARG, {.op = (cddp_op)99}},
        {"backend scripted does not implement scatter",
         CDDP_E_UNSUPPORTED,
         {.op = CDDP_OP_SCATTER, .input = f6, .output = f2}},
        {"no such reduction: 40",
         CDDP_E_ARG,
         {.op = CDDP_OP_ALLREDUCE, .reduce_op = (cddp_red_op)40, .input = f6, .output = g6}},
        {"does not implement allreduce with max",
         CDDP_E_UNSUPPORTED,
         {.op = CDDP_OP_ALLREDUCE, .reduce_op = CDDP_RED_MAX, .input = f6, .output = g6}},
        {"does not allreduce dtype f64",
         CDDP_E_UNSUPPORTED,
         {.op = CDDP_OP_ALLREDUCE, .input = d6, .output = d6}},
        {"does not take tensors on device shape (input of allreduce)",
         CDDP_E_UNSUPPORTED,
         /* clang-format off */
         {.op = CDDP_OP_ALLREDUCE, .input = shape, .output = g6}},
        {"broadcast names rank 3 of 3", CDDP_E_ARG, {.op = CDDP_OP_BROADCAST, .root = 3, .output = f6}},
        {"the input of allreduce is no tensor: 1 dimensions, dtype 77", CDDP_E_ARG, {.op = CDDP_OP_ALLREDUCE, .input = no_dtype, .output = g6}},
        {"the output of broadcast is no tensor: 99 dimensions", CDDP_E_ARG, {.op = CDDP_OP_BROADCAST, .output = many}},
        {"needs an output tensor", CDDP_E_ARG, {.op = CDDP_OP_BROADCAST, .root = 0, .output = none}},
        {"the input of allreduce is not contiguous", CDDP_E_ARG, {.op = CDDP_OP_ALLREDUCE, .input = transposed, .output = g6}},
        {"cannot turn 6 elements into 3", CDDP_E_ARG, {.op = CDDP_OP_ALLREDUCE, .input = f6, .output = f3}},
        {"allgather over 3 ranks cannot turn 3 elements into 6", CDDP_E_ARG, {.op = CDDP_OP_ALLGATHER, .input = f3, .output = f6}},
        /* clang-format on */
        {"reduce_scatter over 3 ranks cannot turn 6 elements into 3",
         CDDP_E_ARG,
         {.op = CDDP_OP_REDUCE_SCATTER, .input = f6, .output = f3}},
        {"alltoall over 3 ranks cannot turn 2 elements into 2",
         CDDP_E_ARG,
         {.op = CDDP_OP_ALLTOALL, .input = f2, .output = f2}},
        {"allgather from f32 to f64",
         CDDP_E_ARG,
         {.op = CDDP_OP_ALLGATHER, .input = f2, .output = d6}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%s", cases[i].words);
        cddp_work *work = NULL;
        cddp_collective c = cases[i].c;
        assert_fails(cddp_group_post(f.group, &c, &work, &f.err), cases[i].status, &f.err,
                     cases[i].words);
        assert_null(work);
    }
    assert_int_equal(f.script.posts, 0);
    tear_down(&f);
}

/* A subset of a group without its guard has none either. */
TEST(group, a_subset_is_opened_with_the_options_of_its_parent)
{
    fixture f;
    set_up(&f, false);
    cddp_group *parent = NULL, *part = NULL;
    cddp_group_options options = options_of(&f, &f.backend, 3);
    options.spec.name = "parent";
    options.spec.options = "guard=0";
    options.spec.in_flight_max = 5;
    assert_ok(cddp_group_create(&options, &parent, &f.err), &f.err);
    f.script.options[0] = '\0';
    const cddp_group_subset subset = {.size = sizeof subset,
                                      .name = "part",
                                      .member_count = 2,
                                      .members = members3};
    assert_ok(cddp_group_create_subset(parent, &subset, &part, &f.err), &f.err);
    assert_string_equal(f.script.options, "guard=0");
    assert_int_equal(f.script.in_flight_max, 5);
    assert_int_equal(part->timeout_ns, 5000);
    cddp_group_destroy(part);
    cddp_group_destroy(parent);
    tear_down(&f);
}

/* Its members are ranks of the parent, which are other ranks of the world. */
TEST(group, a_subset_of_a_subset_counts_in_ranks_of_its_parent)
{
    fixture f;
    set_up(&f, false);
    static const uint32_t ends[] = {0, 2}, both[] = {0, 1};
    cddp_group *parent = NULL, *part = NULL;
    const cddp_group_subset of_world = {.size = sizeof of_world,
                                        .name = "ends",
                                        .member_count = 2,
                                        .members = ends};
    const cddp_group_subset of_parent = {.size = sizeof of_parent,
                                         .name = "both",
                                         .member_count = 2,
                                         .members = both};
    assert_ok(cddp_group_create_subset(f.group, &of_world, &parent, &f.err), &f.err);
    assert_ok(cddp_group_create_subset(parent, &of_parent, &part, &f.err), &f.err);
    assert_int_equal(cd_group_member(part, 0), 0);
    assert_int_equal(cd_group_member(part, 1), 2);
    cddp_group_destroy(part);
    cddp_group_destroy(parent);
    tear_down(&f);
}

/* The order is the caller's: it decides who is rank 0 of the group, and whose share is whose. */
TEST(group, a_subset_keeps_the_order_of_its_members)
{
    fixture f;
    set_up(&f, false);
    static const uint32_t backwards[] = {2, 0, 1};
    cddp_group *part = NULL;
    const cddp_group_subset subset = {.size = sizeof subset,
                                      .name = "backwards",
                                      .member_count = 3,
                                      .members = backwards};
    assert_ok(cddp_group_create_subset(f.group, &subset, &part, &f.err), &f.err);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(cd_group_member(part, i), backwards[i]);
    assert_int_equal(cddp_group_rank(part), 1);
    cddp_group_destroy(part);
    tear_down(&f);
}

/* The commonest way to a NULL work: the status of the post was ignored. */
TEST(group, what_is_null_is_an_error_and_not_a_crash)
{
    fixture f;
    set_up(&f, false);
    float values[3] = {0};
    const cddp_tensor t = floats(values, 3);
    cddp_work *work = NULL;
    cddp_group *group = NULL;
    cddp_collective c = {.op = CDDP_OP_BARRIER};
    const cddp_group_subset subset = {.size = sizeof subset, .name = "part"};
    bool done = false;
    const cddp_status answers[] = {
        cddp_work_wait(NULL, 0, &f.err),
        cddp_work_wait(NULL, 0, NULL),
        cddp_work_test(NULL, &done, &f.err),
        cddp_group_post(NULL, &c, &work, &f.err),
        cddp_group_post(f.group, NULL, &work, &f.err),
        cddp_group_post(f.group, &c, NULL, &f.err),
        cddp_group_allreduce(NULL, &t, CDDP_RED_SUM, &work, &f.err),
        cddp_group_allreduce(f.group, NULL, CDDP_RED_SUM, &work, &f.err),
        cddp_group_broadcast(f.group, NULL, 0, &work, &f.err),
        cddp_group_allgather(f.group, NULL, &t, &work, &f.err),
        cddp_group_allgather(f.group, &t, NULL, &work, &f.err),
        cddp_group_barrier(NULL, &f.err),
        cddp_group_abort(NULL, "why", &f.err),
        cddp_group_create(NULL, &group, &f.err),
        cddp_group_create_subset(NULL, &subset, &group, &f.err),
        cddp_group_create_subset(f.group, NULL, &group, &f.err),
        cddp_group_create_subset(f.group, &subset, NULL, &f.err),
    };
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        cd_test_row("%zu", i);
        assert_int_equal(answers[i], CDDP_E_ARG);
    }
    assert_fails(cddp_work_wait(NULL, 0, &f.err), CDDP_E_ARG, &f.err, "the work is NULL");
    assert_ok(cddp_group_allreduce(f.group, &t, CDDP_RED_SUM, &work, &f.err), &f.err);
    assert_int_equal(cddp_work_test(work, NULL, &f.err), CDDP_E_ARG);
    assert_ok(cddp_work_wait(work, 0, &f.err), &f.err);
    assert_int_equal(cddp_group_rank(NULL) + cddp_group_size(NULL) + cddp_group_id(NULL) +
                         cddp_group_sequence(NULL) + cddp_group_bytes(NULL),
                     0);
    assert_string_equal(cddp_group_name(NULL), "");
    assert_string_equal(cddp_group_backend_name(NULL), "");
    assert_null(cddp_group_capabilities(NULL));
    assert_null(cddp_group_world_rank(NULL));
    tear_down(&f);
}

TEST(group, a_subset_has_a_name_and_members)
{
    fixture f;
    set_up(&f, false);
    static const uint32_t first[] = {0};
    static const cddp_group_subset wrong[] = {
        {.size = sizeof *wrong, .members = first, .member_count = 1},
        {.size = sizeof *wrong, .name = "part", .member_count = 1},
        {.size = sizeof *wrong, .name = "part", .members = first}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cddp_group *group = NULL;
        cd_test_row("%zu", i);
        assert_fails(cddp_group_create_subset(f.group, &wrong[i], &group, &f.err), CDDP_E_ARG,
                     &f.err, "needs a name and members");
    }
    tear_down(&f);
}

TEST(group, explicit_counts_must_fit_the_tensors)
{
    fixture f;
    set_up(&f, false);
    float a[6] = {0}, b[6] = {0};
    static const int64_t counts[] = {1, 2, 3}, negative[] = {-1, 4, 3}, other[] = {2, 1, 3};
    cddp_tensor one = floats(a, 1), two = floats(a, 2), six = floats(b, 6), in6 = floats(a, 6);
    const struct {
        const char *words; /* NULL: it fits */
        cddp_collective c;
    } cases[] = {
        /* clang-format off */
        {NULL, {.op = CDDP_OP_ALLGATHER, .input = one, .output = six, .counts = counts}},
        {NULL, {.op = CDDP_OP_REDUCE_SCATTER, .input = six, .output = one, .counts = counts}},
        {NULL, {.op = CDDP_OP_ALLTOALL, .input = in6, .output = six, .counts = counts, .send_counts = counts}},
        {"ask for 1 elements in and 6 out, not 2 and 6", {.op = CDDP_OP_ALLGATHER, .input = two, .output = six, .counts = counts}},
        {"ask for 6 elements in and 1 out, not 6 and 2", {.op = CDDP_OP_REDUCE_SCATTER, .input = six, .output = two, .counts = counts}},
        {"negative count for rank 0", {.op = CDDP_OP_ALLGATHER, .input = one, .output = six, .counts = negative}},
        {"allreduce does not go with these counts", {.op = CDDP_OP_ALLREDUCE, .input = in6, .output = six, .counts = counts}},
        {"gives itself 2 elements and expects 1 of them", {.op = CDDP_OP_ALLTOALL, .input = in6, .output = six, .counts = counts, .send_counts = other}},
        {"alltoall does not go with these counts", {.op = CDDP_OP_ALLTOALL, .input = in6, .output = six, .counts = counts}},
        /* clang-format on */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%zu: %s", i, cases[i].words != NULL ? cases[i].words : "fits");
        cddp_work *work = NULL;
        cddp_collective c = cases[i].c;
        cddp_status status = cddp_group_post(f.group, &c, &work, &f.err);
        if (cases[i].words != NULL) {
            assert_fails(status, CDDP_E_ARG, &f.err, cases[i].words);
            continue;
        }
        assert_ok(status, &f.err);
        assert_int_equal(last_event(&f, CDDP_EV_collective_post).as.collective_post.numel, -1);
        /* both ends of the share that the last member has a part in */
        const cddp_event_collective_share share =
            last_event(&f, CDDP_EV_collective_share).as.collective_share;
        assert_int_equal(share.peer, 2);
        assert_int_equal(share.given, c.op == CDDP_OP_ALLGATHER ? 1 : 3);
        assert_int_equal(share.taken, c.op == CDDP_OP_REDUCE_SCATTER ? 1 : 3);
        assert_ok(cddp_work_wait(work, 0, &f.err), &f.err);
    }
    tear_down(&f);
}

TEST(group, working_in_place_needs_the_backends_word)
{
    fixture f;
    set_up(&f, false);
    float value = 1;
    cddp_tensor t = floats(&value, 1);
    cddp_work *work = NULL;
    f.group->table.capabilities.in_place = false;
    assert_fails(cddp_group_allreduce(f.group, &t, CDDP_RED_SUM, &work, &f.err), CDDP_E_UNSUPPORTED,
                 &f.err, "backend scripted does not allreduce in place");
    tear_down(&f);
}

/* ---- G5: ends ---- */

TEST(work, a_handle_that_was_given_back_is_an_error_and_not_an_assertion)
{
    fixture f;
    set_up(&f, false);
    float value = 1;
    cddp_tensor t = floats(&value, 1);
    cddp_work *work = NULL;
    bool done = false;
    assert_ok(cddp_group_allreduce(f.group, &t, CDDP_RED_SUM, &work, &f.err), &f.err);
    assert_ok(cddp_work_wait(work, 0, &f.err), &f.err);
    assert_fails(cddp_work_wait(work, 0, &f.err), CDDP_E_ARG, &f.err,
                 "used after it was waited for or released");
    assert_fails(cddp_work_test(work, &done, &f.err), CDDP_E_ARG, &f.err,
                 "used after it was waited for or released");
    cddp_work_release(work);
    cd_group_audit(f.group);
    assert_int_equal(f.script.releases, 1);
    tear_down(&f);
}

TEST(work, a_handle_of_a_closed_group_is_an_error_and_not_an_assertion)
{
    fixture f;
    set_up(&f, false);
    float value = 1;
    cddp_tensor t = floats(&value, 1);
    cddp_work *work = NULL, *other = NULL;
    bool done = false;
    assert_ok(cddp_group_allreduce(f.group, &t, CDDP_RED_SUM, &work, &f.err), &f.err);
    cd_group_hold(f.group); /* as a wrapper does */
    cddp_group_destroy(f.group);
    assert_fails(cddp_work_test(work, &done, &f.err), CDDP_E_STATE, &f.err,
                 "allreduce #0: its group 'default' was destroyed, and the operation with it");
    assert_fails(cddp_work_wait(work, 0, &f.err), CDDP_E_STATE, &f.err,
                 "allreduce #0: its group 'default' was destroyed, and the operation with it");
    assert_fails(cddp_group_allreduce(f.group, &t, CDDP_RED_SUM, &other, &f.err), CDDP_E_STATE,
                 &f.err, "group 'default' was destroyed");
    assert_fails(cddp_group_abort(f.group, "", &f.err), CDDP_E_STATE, &f.err, "was destroyed");
    cddp_work_release(work);
    assert_int_equal(f.script.releases, 1); /* when the group was closed */
    cd_group_let_go(f.group);
    f.group = NULL;
    tear_down(&f);
}

/* Nobody holds the group: its handles keep it until each has ended. */
TEST(work, a_handle_outlives_its_group)
{
    fixture f;
    set_up(&f, false);
    float value = 1;
    cddp_tensor t = floats(&value, 1);
    cddp_work *first = NULL, *second = NULL;
    bool done = false;
    assert_ok(cddp_group_allreduce(f.group, &t, CDDP_RED_SUM, &first, &f.err), &f.err);
    assert_ok(cddp_group_allreduce(f.group, &t, CDDP_RED_SUM, &second, &f.err), &f.err);
    cddp_group_destroy(f.group);
    f.group = NULL;
    assert_fails(cddp_work_test(first, &done, &f.err), CDDP_E_STATE, &f.err, "was destroyed");
    assert_fails(cddp_work_wait(first, 0, &f.err), CDDP_E_STATE, &f.err,
                 "allreduce #0: its group 'default' was destroyed, and the operation with it");
    assert_fails(cddp_work_wait(first, 0, &f.err), CDDP_E_ARG, &f.err, "used after");
    assert_fails(cddp_work_wait(second, 0, &f.err), CDDP_E_STATE, &f.err,
                 "allreduce #1: its group");
    assert_int_equal(f.script.releases, 2); /* when the group was closed */
    tear_down(&f);
}

TEST(work, testing_until_done_ends_it_once)
{
    fixture f;
    set_up(&f, false);
    float value = 1;
    cddp_tensor t = floats(&value, 1);
    cddp_work *work = NULL;
    bool done = true;
    assert_ok(cddp_group_allreduce(f.group, &t, CDDP_RED_SUM, &work, &f.err), &f.err);
    assert_ok(cddp_work_test(work, &done, &f.err), &f.err);
    assert_false(done);
    f.script.done = true;
    for (int i = 0; i < 3; i++) {
        assert_ok(cddp_work_test(work, &done, &f.err), &f.err);
        assert_true(done);
    }
    assert_int_equal(count_events(&f, CDDP_EV_collective_done), 1);
    assert_ok(cddp_work_wait(work, 0, &f.err), &f.err);
    assert_int_equal(count_events(&f, CDDP_EV_collective_done), 1);
    /* nothing was left to wait for */
    assert_int_equal(count_events(&f, CDDP_EV_collective_wait), 0);
    tear_down(&f);
}

TEST(work, a_time_out_names_operation_group_rank_and_who_is_missing)
{
    fixture f;
    set_up(&f, false);
    float value = 1;
    cddp_tensor t = floats(&value, 1);
    cddp_work *work = NULL;
    f.script.wait_status = CDDP_E_TIMEOUT;
    f.script.who = "rank 2 has not arrived";
    assert_ok(cddp_group_allreduce(f.group, &t, CDDP_RED_SUM, &work, &f.err), &f.err);
    assert_int_equal(f.script.last.timeout_ns, 5000); /* the group's default */
    assert_fails(
        cddp_work_wait(work, 123, &f.err), CDDP_E_TIMEOUT, &f.err,
        "allreduce #0 of group 'default' on rank 0: scripted wait failure; rank 2 has not arrived");
    assert_int_equal(f.script.last_timeout_ns, 123);
    assert_int_equal(f.script.releases, 1);
    cddp_event waits = last_event(&f, CDDP_EV_waiting_for);
    assert_string_equal(waits.text, "rank 2 has not arrived");
    assert_int_equal(waits.as.waiting_for.group, cddp_group_id(f.group));
    assert_int_equal(waits.as.waiting_for.sequence, 0);
    assert_int_equal(waits.as.waiting_for.op, CDDP_OP_ALLREDUCE);
    assert_int_equal(waits.as.waiting_for.peer, -1);
    assert_int_equal(waits.as.waiting_for.who, 0);
    assert_int_equal(last_event(&f, CDDP_EV_collective_done).as.collective_done.status,
                     CDDP_E_TIMEOUT);
    tear_down(&f);
}

TEST(work, a_failure_of_which_the_backend_knows_no_more_waits_for_nobody)
{
    fixture f;
    set_up(&f, false);
    float value = 1;
    cddp_tensor t = floats(&value, 1);
    cddp_work *work = NULL;
    f.script.wait_status = CDDP_E_BACKEND;
    assert_ok(cddp_group_allreduce(f.group, &t, CDDP_RED_SUM, &work, &f.err), &f.err);
    assert_fails(cddp_work_wait(work, 0, &f.err), CDDP_E_BACKEND, &f.err, "scripted wait failure");
    assert_null(strstr(f.err.message, "failure;"));
    assert_int_equal(count_events(&f, CDDP_EV_waiting_for), 0);
    /* and nobody need want to know */
    assert_ok(cddp_group_allreduce(f.group, &t, CDDP_RED_SUM, &work, &f.err), &f.err);
    assert_int_equal(cddp_work_wait(work, 0, NULL), CDDP_E_BACKEND);
    tear_down(&f);
}

TEST(work, a_failure_seen_by_test_is_repeated_by_wait_with_a_message)
{
    fixture f;
    set_up(&f, false);
    float value = 1;
    cddp_tensor t = floats(&value, 1);
    cddp_work *work = NULL;
    bool done = false;
    f.script.test_status = CDDP_E_BACKEND;
    assert_ok(cddp_group_allreduce(f.group, &t, CDDP_RED_SUM, &work, &f.err), &f.err);
    assert_fails(cddp_work_test(work, &done, &f.err), CDDP_E_BACKEND, &f.err,
                 "on rank 0: scripted test failure");
    assert_false(done);
    cd_error_reset(&f.err);
    assert_fails(cddp_work_wait(work, 0, &f.err), CDDP_E_BACKEND, &f.err,
                 "allreduce #0 of group 'default' on rank 0 failed before");
    assert_int_equal(count_events(&f, CDDP_EV_collective_done), 1);
    tear_down(&f);
}

/* ---- creation ---- */

TEST(group, creation_refuses_what_cannot_be_a_group)
{
    fixture f;
    set_up(&f, false);
    static const uint32_t twice[] = {0, 2, 2}, beyond[] = {0, 1, 3}, others[] = {1, 0, 2};
    cddp_backend no_post = f.backend, other_abi = f.backend, short_table = f.backend,
                 unsized = f.backend, nameless = f.backend;
    no_post.post = NULL;
    other_abi.abi = 7;
    short_table.size = 32;
    unsized.capabilities.world_size_max = 0;
    nameless.name = NULL;
    cddp_group_options good = options_of(&f, &f.backend, 3);
    const struct {
        const char *words;
        cddp_status status;
        const cddp_backend *backend;
        const char *name;
        const uint32_t *members;
        uint32_t group_rank, group_size;
    } cases[] = {
        /* clang-format off */
        {"a group needs a backend and a rank", CDDP_E_ARG, NULL, "g", members3, 0, 3},
        {"a group needs a name", CDDP_E_ARG, &f.backend, "", members3, 0, 3},
        {"group 'g' has no members", CDDP_E_ARG, &f.backend, "g", members3, 0, 0},
        {"group_rank 3 is not below group_size 3", CDDP_E_ARG, &f.backend, "g", members3, 3, 3},
        {"group 'g' lists rank 2 twice", CDDP_E_ARG, &f.backend, "g", twice, 0, 3},
        {"group 'g' lists rank 3 of a world of 3", CDDP_E_ARG, &f.backend, "g", beyond, 0, 3},
        {"member 0 is world rank 1, but this is rank 0", CDDP_E_ARG, &f.backend, "g", others, 0, 3},
        {"group 'g' has 9 members; backend scripted takes at most 8", CDDP_E_LIMIT, &f.backend, "g", members3, 0, 9},
        {"backend scripted lacks the required slot post", CDDP_E_ARG, &no_post, "g", members3, 0, 3},
        {"backend scripted speaks ABI 7; this library speaks 1", CDDP_E_ARG, &other_abi, "g", members3, 0, 3},
        {"has a table of 32 bytes", CDDP_E_ARG, &short_table, "g", members3, 0, 3},
        {"declares no world size", CDDP_E_ARG, &unsized, "g", members3, 0, 3},
        {"a backend without a name", CDDP_E_ARG, &nameless, "g", members3, 0, 3},
        /* clang-format on */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%s", cases[i].words);
        cddp_group_options o = good;
        cddp_group *group = NULL;
        o.backend = cases[i].backend;
        o.spec.name = cases[i].name;
        o.spec.members = cases[i].members;
        o.spec.group_rank = cases[i].group_rank;
        o.spec.group_size = cases[i].group_size;
        assert_fails(cddp_group_create(&o, &group, &f.err), cases[i].status, &f.err,
                     cases[i].words);
        assert_null(group);
    }
    f.script.open_status = CDDP_E_BACKEND;
    cddp_group *group = NULL;
    assert_fails(cddp_group_create(&good, &group, &f.err), CDDP_E_BACKEND, &f.err,
                 "scripted open failure");
    assert_null(group);
    assert_int_equal(f.script.closes, 0);
    tear_down(&f);
}

TEST(group, a_table_without_the_optional_slots_works_and_says_what_it_cannot)
{
    fixture f;
    set_up(&f, false);
    cddp_backend small = f.backend;
    small.size = offsetof(cddp_backend, abort); /* a table of somebody who never knew them */
    small.abort = NULL;
    small.describe = NULL;
    cddp_group_options options = options_of(&f, &small, 3);
    cddp_group *group = NULL;
    assert_ok(cddp_group_create(&options, &group, &f.err), &f.err);
    float value = 1;
    cddp_tensor t = floats(&value, 1);
    cddp_work *work = NULL;
    f.script.wait_status = CDDP_E_TIMEOUT;
    assert_ok(cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, &f.err), &f.err);
    assert_fails(cddp_work_wait(work, 0, &f.err), CDDP_E_TIMEOUT, &f.err, "scripted wait failure");
    assert_fails(cddp_group_abort(group, "why", &f.err), CDDP_E_UNSUPPORTED, &f.err,
                 "cannot abort");
    cddp_group_destroy(group);
    tear_down(&f);
}

TEST(group, what_it_knows_of_itself_is_what_was_said_and_ids_agree_between_members)
{
    fixture f, other;
    set_up(&f, false);
    set_up(&other, false);
    assert_int_equal(cddp_group_rank(f.group), 0);
    assert_int_equal(cddp_group_size(f.group), 3);
    assert_string_equal(cddp_group_name(f.group), "default");
    assert_ptr_equal(cddp_group_world_rank(f.group), cddp_solo_world_rank(f.world));
    assert_int_equal(cddp_group_capabilities(f.group)->world_size_max, 8);
    assert_int_equal(cddp_group_id(f.group), cddp_group_id(other.group));
    cddp_event e = last_event(&f, CDDP_EV_group);
    assert_string_equal(e.text, "default");
    assert_int_equal(e.as.group.members, 3);
    cddp_group_options options = options_of(&f, &f.backend, 3);
    options.spec.name = "second";
    cddp_group *second = NULL;
    assert_ok(cddp_group_create(&options, &second, &f.err), &f.err);
    assert_int_not_equal(cddp_group_id(second), cddp_group_id(f.group));
    cddp_group_destroy(second);
    tear_down(&f);
    tear_down(&other);
}

/* A rank that gives nothing says so: 0 is no digest. */
TEST(group, an_event_of_a_rank_that_only_receives_has_no_digest_of_what_it_gave)
{
    fixture f;
    set_up(&f, false);
    float out[2] = {0};
    cddp_collective c = {.op = CDDP_OP_BROADCAST, .root = 1, .output = floats(out, 2)};
    complete(&f, &c);
    cddp_event done = last_event(&f, CDDP_EV_collective_done);
    assert_true(done.as.collective_done.digest != 0);
    assert_int_equal(done.as.collective_done.input, 0);
    assert_int_equal(done.as.collective_done.start, 0);
    f.script.wait_status = CDDP_E_BACKEND; /* and one that failed has no result */
    cddp_work *work = NULL;
    assert_ok(cddp_group_post(f.group, &c, &work, &f.err), &f.err);
    assert_int_equal(cddp_work_wait(work, 0, &f.err), CDDP_E_BACKEND);
    done = last_event(&f, CDDP_EV_collective_done);
    assert_int_equal(done.as.collective_done.status, CDDP_E_BACKEND);
    assert_int_equal(done.as.collective_done.digest, 0);
    tear_down(&f);
}

TEST(group, events_carry_digests_of_what_went_in_and_came_out)
{
    fixture f;
    set_up(&f, true);
    float in[2] = {1, 2}, out[2] = {0};
    cddp_collective c = {.op = CDDP_OP_ALLREDUCE,
                         .input = floats(in, 2),
                         .output = floats(out, 2),
                         .label = 3};
    complete(&f, &c);
    cddp_event post = last_event(&f, CDDP_EV_collective_post),
               done = last_event(&f, CDDP_EV_collective_done);
    assert_int_equal(post.as.collective_post.bucket, 2);
    assert_int_equal(post.as.collective_post.numel, 2);
    assert_int_equal(post.as.collective_post.root, -1);
    assert_true(post.as.collective_post.digest != 0);
    /* one rank: a copy */
    assert_true(done.as.collective_done.digest == post.as.collective_post.digest);
    assert_true(done.as.collective_done.input == post.as.collective_post.digest);
    /* This backend keeps no digest of what it read, and 0 says so. */
    assert_int_equal(done.as.collective_done.start, 0);
    assert_int_equal(done.as.collective_done.status, CDDP_OK);
    in[0] = 5;
    complete(&f, &c);
    assert_true(last_event(&f, CDDP_EV_collective_post).as.collective_post.digest !=
                post.as.collective_post.digest);
    tear_down(&f);
}

TEST_MAIN()
