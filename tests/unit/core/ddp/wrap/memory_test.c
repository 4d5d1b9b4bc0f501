/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: a steady iteration allocates nothing, buckets exist once, failures leave nothing
** behind. */
#include "core/base/alloc.h"
#include "core/hooks/hook.h"
#include "core/tensor/cpu.h"
#include "tests/unit/core/ddp/fixture.h"

typedef struct mode {
    const char *name;
    bool views, unused, is_static, batched, join, delayed;
    bool texts; /* the backend has no minimum, so that ranks compare texts */
    const char *hook;
    cddp_dtype mixed;
    cddp_optimizer_overlap overlap; /* 0: no optimizer in backward */
    bool cut;
} mode;

static cddp_status step_nothing(void *context, size_t variable, cddp_grad *grad, cddp_error *err)
{
    (void)context, (void)variable, (void)grad, (void)err;
    return CDDP_OK;
}

static cddp_status attach(cddp_ddp *ddp, const mode *m, cddp_error *err)
{
    const cddp_optimizer_in_backward optimizer = {.size = sizeof optimizer,
                                                  .step = step_nothing,
                                                  .overlap = m->overlap,
                                                  .shard_buckets = m->cut};
    return m->overlap != CDDP_OVERLAP_APPLY_IN_BACKWARD
               ? cddp_ddp_set_optimizer_in_backward(ddp, &optimizer, err)
               : CDDP_OK;
}

static cd_watch_allocator watches[LAB_RANKS];
static cddp_device devices[LAB_RANKS];

static void steady_body(lane *l)
{
    const mode *m = l->lab->data;
    cd_watch_allocator *watch = &watches[l->r];
    cd_watch_allocator_init(watch, NULL);
    devices[l->r] = cd_device_with_allocator(cddp_device_cpu(), &watch->table);
    l->device = &devices[l->r];
    l->options.allocator = &watch->table;
    l->options.tracer = NULL;
    l->options.gradient_as_bucket_view = m->views;
    l->options.find_unused_parameters = m->unused;
    l->options.static_graph = m->is_static;
    l->options.batched_grad_copy = m->batched;
    if (m->mixed != CDDP_F64) l->options.mixed_param_dtype = m->mixed;
    l->options.bucket_cap_mb = 0.0001;
    for (int i = 0; i < 8; i++) {
        static const char *const names[8] = {"a", "b", "c", "d", "e", "f", "g", "h"};
        lane_add(l, names[i], i == 5 ? CDDP_F64 : CDDP_F32, 5 + i);
    }
    lane_add_buffer(l, "mean", CDDP_F32, 3, 0.0);
    lane_add_buffer(l, "var", CDDP_F32, 3, 0.0);
    lane_wrap(l);
    if (m->hook != NULL)
        CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find(m->hook), NULL, NULL, &l->err));
    CHECK_OK(attach(l->ddp, m, &l->err));
    if (m->join) CHECK_OK(cddp_ddp_join_begin(l->ddp, NULL, &l->err));
    const int64_t three = 3;
    cddp_tensor other = lane_tensor(l, CDDP_F32, &three, 1, 0.0);
    for (int step = 0; step < 9; step++) {
        if (step == 3) CHECK_OK(cddp_ddp_set_buffer(l->ddp, "var", &other, &l->err));
        if (step == 5) watch->frozen = true, watch->abort_on_growth = true;
        lane_zero_grad(l, step % 2 == 0);
        const bool accumulates = step == 6 && m->overlap != CDDP_OVERLAP_HOOK_THEN_OPTIMIZER;
        if (accumulates) cddp_ddp_no_sync_begin(l->ddp);
        CHECK_OK(cddp_ddp_forward_begin(l->ddp, true, &l->err));
        CHECK_OK(cddp_ddp_forward_end(l->ddp, l->reachable, &l->err));
        for (size_t i = 8; i-- > 0;) {
            CHECK_OK(cddp_grad_define(&l->grads[i], forward_tensor(l->ddp, &l->parameters[i], i),
                                      &l->err));
            CHECK_OK(l->device->fill(&l->grads[i].value, 1.0, NULL, &l->err));
            lane_hook(l, i);
        }
        lane_end(l);
        if (accumulates) cddp_ddp_no_sync_end(l->ddp);
    }
    CHECK(watch->growth_count == 0);
    watch->frozen = false;
    if (m->join) CHECK_OK(cddp_ddp_join_end(l->ddp, &l->err));
    lane_unwrap(l);
    lane_release(l, &other);
}

/* Also behind a buffer that was replaced: the broadcast is planned once more, and not again. */
TEST(memory, a_steady_iteration_allocates_nothing)
{
    static const mode modes[] = {
        /* clang-format off */
        {"plain", .mixed = CDDP_F64},
        {"views", .views = true, .mixed = CDDP_F64},
        {"unused", .unused = true, .mixed = CDDP_F64},
        {"static", .is_static = true, .mixed = CDDP_F64},
        {"static views", .is_static = true, .views = true, .mixed = CDDP_F64},
        {"batched", .batched = true, .mixed = CDDP_F64},
        {"allreduce hook", .hook = "allreduce", .mixed = CDDP_F64},
        {"fp16 hook", .hook = "fp16_compress", .mixed = CDDP_F64},
        {"fp16 hook, views", .hook = "fp16_compress", .views = true, .mixed = CDDP_F64},
        {"mixed precision", .mixed = CDDP_F16},
        {"join", .join = true, .mixed = CDDP_F64},
        {"fused optimizer", .overlap = CDDP_OVERLAP_HOOK_THEN_OPTIMIZER, .mixed = CDDP_F64},
        {"zero step", .overlap = CDDP_OVERLAP_HOOK_WITH_ZERO_STEP, .cut = true, .mixed = CDDP_F64},
        {"zero step, interleaved", .overlap = CDDP_OVERLAP_HOOK_WITH_ZERO_STEP_INTERLEAVED, .views = true, .mixed = CDDP_F64},
        /* clang-format on */
    };
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        cd_test_row("%s", modes[i].name);
        mode m = modes[i];
        lab_of(2, steady_body, &m);
    }
}

/* With views the buckets are the only memory of gradients: from wrapping on, the device gives out
** nothing more. */
static void views_body(lane *l)
{
    cd_watch_allocator *watch = &watches[l->r];
    cd_watch_allocator_init(watch, NULL);
    devices[l->r] = cd_device_with_allocator(cddp_device_cpu(), &watch->table);
    l->device = &devices[l->r];
    l->options.gradient_as_bucket_view = true;
    lane_add(l, "big", CDDP_F32, 100000);
    lane_add(l, "small", CDDP_F32, 100);
    uint64_t before = watch->live_bytes;
    lane_wrap(l);
    uint64_t buckets = watch->live_bytes - before;
    CHECK(buckets >= 400400 && buckets < 401500);
    for (int step = 0; step < 4; step++) {
        lane_zero_grad(l, true);
        lane_iterate(l, 1.0);
    }
    CHECK(watch->live_bytes - before < 401500);
    CHECK(watch->live_bytes - before == buckets);
}
TEST(memory, views_need_the_buckets_and_nothing_else) { lab_of(2, views_body, NULL); }

/* ---- failing allocations: one rank, no transport with its own memory ---- */

static cddp_status make_one(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    lane *l = argument;
    cddp_device device = cd_device_with_allocator(cddp_device_cpu(), allocator);
    for (size_t i = 0; i < l->count; i++) l->parameters[i].tensor.device = &device;
    for (size_t i = 0; i < l->buffer_count; i++) l->buffers[i].tensor.device = &device;
    cddp_ddp_options o = l->options;
    o.allocator = allocator;
    o.tracer = NULL;
    o.parameters = l->parameters;
    o.parameter_count = l->count;
    o.buffers = l->buffers;
    o.buffer_count = l->buffer_count;
    cddp_ddp *ddp = NULL;
    cddp_status status = cddp_ddp_create(&o, &ddp, err);
    if (status == CDDP_OK && o.mixed_param_dtype == CDDP_DTYPE_COUNT)
        status = cddp_ddp_register_comm_hook(ddp, cd_hook_find("fp16_compress_wrapper"),
                                             cd_hook_find("allreduce"), NULL, err);
    const mode *m = l->lab->data;
    if (status == CDDP_OK && m->overlap != CDDP_OVERLAP_APPLY_IN_BACKWARD)
        status = attach(ddp, m, err);
    else if (status == CDDP_OK)
        status = cddp_ddp_join_begin(ddp, NULL, err);
    /* the rebuild is a constructor, too */
    for (int step = 0; status == CDDP_OK && step < 2; step++) {
        bool reachable[LANE_PARAMETERS] = {true, true, true};
        if (status == CDDP_OK) status = cddp_ddp_forward_begin(ddp, true, err);
        if (status == CDDP_OK) status = cddp_ddp_forward_end(ddp, reachable, err);
        for (size_t i = 0; status == CDDP_OK && i < l->count; i++) {
            status = cddp_grad_define(&l->grads[i], forward_tensor(ddp, &l->parameters[i], i), err);
            if (status == CDDP_OK) status = device.fill(&l->grads[i].value, 1.0, NULL, err);
            if (status == CDDP_OK) status = cddp_ddp_mark_parameter_ready(ddp, i, err);
        }
        if (status == CDDP_OK) status = cddp_ddp_backward_end(ddp, err);
    }
    cddp_ddp_destroy(ddp);
    for (size_t i = 0; i < l->count; i++) cddp_grad_fini(&l->grads[i]);
    for (size_t i = 0; i < l->count; i++) l->parameters[i].tensor.device = l->device;
    for (size_t i = 0; i < l->buffer_count; i++) l->buffers[i].tensor.device = l->device;
    return status;
}

static void oom_body(lane *l)
{
    const mode *m = l->lab->data;
    lane_add(l, "a", CDDP_F32, 5);
    lane_add(l, "b", CDDP_F64, 3);
    lane_add(l, "c", CDDP_F32, 2);
    lane_add_buffer(l, "mean", CDDP_F32, 3, 0.0);
    lane_add_buffer(l, "var", CDDP_F32, 3, 0.0);
    l->options.gradient_as_bucket_view = m->views;
    l->options.find_unused_parameters = m->unused;
    l->options.static_graph = m->is_static;
    if (m->mixed != CDDP_F64) l->options.mixed_param_dtype = m->mixed;
    if (m->delayed) {
        static const char *const names[] = {"c"};
        l->options.delay_all_reduce_named_params = names;
        l->options.delay_all_reduce_count = 1;
        l->options.param_to_hook_all_reduce = "c";
    }
    CHECK(cd_test_oom_loop(make_one, l) > 30);
    lane_wrap(l);
}

TEST(memory, every_failing_allocation_is_reported_and_leaves_nothing_behind)
{
    static const mode modes[] = {{"plain", .mixed = CDDP_F64},
                                 /* clang-format off */
                                 {"views", .views = true, .mixed = CDDP_F64},
                                 {"unused", .unused = true, .mixed = CDDP_F64},
                                 {"static", .is_static = true, .mixed = CDDP_F64},
                                 {"delayed", .delayed = true, .mixed = CDDP_F64},
                                 {"mixed", .mixed = CDDP_F16},
                                 {"zero step", .overlap = CDDP_OVERLAP_HOOK_WITH_ZERO_STEP, .cut = true, .mixed = CDDP_F64},
                                 /* clang-format on */
                                 {"texts", .texts = true, .mixed = CDDP_F64}};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        cd_test_row("%s", modes[i].name);
        mode m = modes[i];
        lab b = {.world_size = 1, .body = oom_body, .data = &m, .has_no_minimum = m.texts};
        lab_run(&b);
    }
}

TEST_MAIN()
