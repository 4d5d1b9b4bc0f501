/* SPDX-License-Identifier: Apache-2.0 */
/* Memory running out, at every single allocation of every constructor: nothing is left behind, the
** status is CDDP_E_NOMEM and a message says what there was no memory for. A new constructor is a
** new row. */
#include "cddp/cddp.h"
#include "cddp/composition.h"
#include "cddp/averager.h"
#include "cddp/fsdp.h"
#include "cddp/zero.h"
#include "core/hooks/hook.h"

#include "core/base/error.h"
#include "backends/sim/sim_backend.h"
#include "core/reference/reference.h"
#include "verify/worlds/compose.h"
#include "core/run/run.h"
#include "core/tensor/cpu.h"
#include "core/trace/sink.h"
#include "tests/support/test.h"

#include <string.h>

static const uint32_t members[] = {0};

static void ignore_event(void *self, const cddp_event *event)
{
    (void)self;
    (void)event;
}
static const cddp_trace_sink silent = {.size = sizeof silent,
                                       .abi = CDDP_TRACE_ABI,
                                       .event = ignore_event};

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

static cddp_status makes_member_world(const cddp_allocator *a, void *argument, cddp_error *err)
{
    (void)argument;
    cddp_member_world *world = NULL;
    cddp_member_options options = {.size = sizeof options,
                                   .world_size = 5,
                                   .address = "127.0.0.1:1/00",
                                   .allocator = a};
    CD_TRY(cddp_member_world_open(&options, &world, err));
    cddp_member_world_close(world);
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
    cddp_status status =
        cddp_tracer_create(cddp_solo_world_rank(world), &silent, CDDP_TRACE_ORDER, &tracer, err);
    cddp_tracer_destroy(tracer);
    cddp_solo_world_close(world);
    return status;
}

/* With a body that is given the group. */
static cddp_status with_group(const cddp_allocator *a,
                              cddp_status (*body)(cddp_group *group, cddp_error *err),
                              cddp_error *err)
{
    cddp_solo_world *world = NULL;
    cddp_group *group = NULL;
    CD_TRY(solo(a, &world, err));
    cddp_group_options options = {.size = sizeof options,
                                  .backend = cddp_backend_self(),
                                  .rank = cddp_solo_world_rank(world),
                                  .spec = {.name = "default", .group_size = 1, .members = members},
                                  .works_max = 64};
    cddp_status status = cddp_group_create(&options, &group, err);
    if (status == CDDP_OK) status = body(group, err);
    cddp_group_destroy(group);
    cddp_solo_world_close(world);
    return status;
}

static cddp_status empty_body(cddp_group *group, cddp_error *err)
{
    (void)group;
    (void)err;
    return CDDP_OK;
}

static cddp_status makes_group(const cddp_allocator *a, void *argument, cddp_error *err)
{
    (void)argument;
    return with_group(a, empty_body, err);
}

static cddp_status subset_body(cddp_group *group, cddp_error *err)
{
    cddp_group *part = NULL;
    const cddp_group_subset subset = {.size = sizeof subset,
                                      .name = "part",
                                      .member_count = 1,
                                      .members = members};
    cddp_status status = cddp_group_create_subset(group, &subset, &part, err);
    cddp_group_destroy(part);
    return status;
}

static cddp_status makes_subset(const cddp_allocator *a, void *argument, cddp_error *err)
{
    (void)argument;
    return with_group(a, subset_body, err);
}

static cddp_status averager_body(cddp_group *group, cddp_error *err)
{
    const cddp_averager_level level = {.period = 1, .group_size = 1};
    cddp_averager *averager = NULL;
    float value = 1;
    int64_t one = 1;
    cddp_tensor parameter = cddp_tensor_of(cddp_device_cpu(), &value, 0, CDDP_F32, &one, 1);
    cddp_grad grad = {.kind = CDDP_GRAD_DENSE}, *gradients[1] = {&grad};
    cddp_status status =
        cddp_averager_create(&(cddp_averager_options){.size = sizeof(cddp_averager_options),
                                                      .group = group,
                                                      .levels = &level,
                                                      .level_count = 1,
                                                      .hierarchical = true},
                             &averager, err);
    if (status == CDDP_OK) status = cddp_averager_step(averager, &parameter, gradients, 1, err);
    cddp_averager_destroy(averager);
    return status;
}

static cddp_status makes_averager(const cddp_allocator *a, void *argument, cddp_error *err)
{
    (void)argument;
    return with_group(a, averager_body, err);
}

static cddp_status steps_nothing(void *context, size_t variable, cddp_grad *grad, cddp_error *err)
{
    (void)context, (void)variable, (void)grad, (void)err;
    return CDDP_OK;
}

static cddp_status zero_body(cddp_group *group, cddp_error *err)
{
    float value = 1;
    int64_t one = 1;
    cddp_zero *zero = NULL;
    cddp_grad grad = {.kind = CDDP_GRAD_UNDEFINED};
    const cddp_parameter parameter = {.name = "p",
                                      .tensor = cddp_tensor_of(cddp_device_cpu(), &value, 0,
                                                               CDDP_F32, &one, 1),
                                      .grad = &grad};
    cddp_zero_options options = cddp_zero_options_default();
    options.group = group;
    options.parameters = &parameter;
    options.parameter_count = 1;
    options.step = steps_nothing;
    cddp_status status = cddp_zero_create(&options, &zero, err);
    if (status == CDDP_OK) status = cddp_zero_step(zero, err);
    cddp_zero_destroy(zero);
    return status;
}

static cddp_status makes_zero(const cddp_allocator *a, void *argument, cddp_error *err)
{
    (void)argument;
    return with_group(a, zero_body, err);
}

static cddp_status no_entry(void *context, const cddp_fsdp_entry *entry, cddp_error *err)
{
    (void)context, (void)entry, (void)err;
    return CDDP_OK;
}

/* Two units, one iteration, and its state. */
static cddp_status fsdp_iteration(cddp_fsdp *fsdp, cddp_grad *grad, cddp_error *err)
{
    const cddp_fsdp_sink sink = {.size = sizeof sink, .entry = no_entry};
    CD_TRY(cddp_fsdp_pre_forward(fsdp, 1, true, err));
    CD_TRY(cddp_fsdp_post_forward(fsdp, 1, true, err));
    CD_TRY(cddp_fsdp_pre_backward(fsdp, 1, err));
    CD_TRY(cddp_grad_define(grad, cddp_fsdp_parameter(fsdp, 1), err));
    CD_TRY(grad->value.device->fill(&grad->value, 1, NULL, err));
    CD_TRY(cddp_fsdp_post_backward(fsdp, 1, err));
    CD_TRY(cddp_fsdp_backward_end(fsdp, err));
    CD_TRY(cddp_fsdp_clip_grad_norm(fsdp, 1, 2, NULL, err));
    return CD_PASS(cddp_fsdp_full_state(fsdp, &sink, err));
}

static cddp_status fsdp_body(cddp_group *group, cddp_error *err)
{
    float values[2] = {1, 2};
    int64_t one = 1;
    cddp_fsdp *fsdp = NULL;
    cddp_grad grads[2] = {{.kind = CDDP_GRAD_UNDEFINED}};
    const cddp_device *cpu = cddp_device_cpu();
    const cddp_parameter parameters[2] = {
        {.name = "p",
         .tensor = cddp_tensor_of(cpu, &values[0], 0, CDDP_F32, &one, 1),
         .grad = &grads[0],
         .requires_grad = true},
        {.name = "a.p",
         .tensor = cddp_tensor_of(cpu, &values[1], 0, CDDP_F32, &one, 1),
         .grad = &grads[1],
         .requires_grad = true}};
    cddp_fsdp_options options = cddp_fsdp_options_default();
    options.parameters = parameters;
    options.parameter_count = 2;
    options.group = group;
    options.wrap.kind = CDDP_FSDP_WRAP_ALWAYS;
    cddp_status status = cddp_fsdp_create(&options, &fsdp, err);
    if (status == CDDP_OK) status = fsdp_iteration(fsdp, &grads[1], err);
    cddp_fsdp_destroy(fsdp);
    for (size_t i = 0; i < 2; i++) cddp_grad_fini(&grads[i]);
    return status;
}

static cddp_status makes_fsdp(const cddp_allocator *a, void *argument, cddp_error *err)
{
    (void)argument;
    return with_group(a, fsdp_body, err);
}

/* One micro-step that overflows a double, and its reduction. */
static cddp_status run_reproducible(void *self, cddp_group *group, cddp_error *err)
{
    float large[2] = {0x1p100f, 1}, small[2] = {1, 0x1p-100f};
    const uint32_t id = 0;
    const int64_t two = 2, zero = 0;
    cddp_tensor a = cddp_tensor_of(cddp_device_cpu(), large, 0, CDDP_F32, &two, 1), b = a;
    b.storage = small;
    cddp_grad_bucket bucket = {.size = sizeof bucket,
                               .bucket_count = 1,
                               .is_last = true,
                               .buffer = a,
                               .parameter_count = 1,
                               .parameter_ids = &id,
                               .offsets = &zero,
                               .lengths = &two,
                               .gradients = &a,
                               .parameters = &a};
    cddp_future future = {.size = sizeof future};
    cd_hook_reproducible.begin_backward(self);
    CD_TRY(cd_hook_reproducible.accumulate(self, 0, &a, err));
    CD_TRY(cd_hook_reproducible.accumulate(self, 0, &b, err));
    cddp_status status = cd_hook_reproducible.run(self, &bucket, group, &future, err);
    for (bool complete = false; status == CDDP_OK && !complete;)
        status = cd_future_advance(&future, self, &bucket, &complete, err);
    cd_future_abandon(&future);
    return status;
}

static cddp_status reproducible_body(cddp_group *group, cddp_error *err)
{
    void *self = NULL;
    const cddp_hook_context context = {.size = sizeof context,
                                       .group = group,
                                       .allocator = cddp_group_world_rank(group)->allocator,
                                       .accumulates = true,
                                       .averages_contributions = true};
    CD_TRY(cd_hook_reproducible.create(&context, &self, err));
    cddp_status status = run_reproducible(self, group, err);
    cd_hook_reproducible.destroy(self);
    return status;
}

static cddp_status makes_reproducible(const cddp_allocator *a, void *argument, cddp_error *err)
{
    (void)argument;
    return with_group(a, reproducible_body, err);
}

static cddp_status makes_registry(const cddp_allocator *a, void *argument, cddp_error *err)
{
    (void)argument;
    cddp_registry *registry = NULL;
    CD_TRY(cddp_registry_create(a, &registry, err));
    cddp_status status = cddp_registry_add_backend(registry, cddp_backend_self(), err);
    cddp_registry_destroy(registry);
    return status;
}

/* A wrapper around two parameters and a buffer, with one of every structure that construction
** makes. */
static cddp_status wraps(cddp_group *group, cddp_error *err)
{
    float values[10] = {0};
    const int64_t six = 6, three = 3, one = 1;
    cddp_grad grads[2] = {{.kind = CDDP_GRAD_UNDEFINED}, {.kind = CDDP_GRAD_UNDEFINED}};
    const cddp_device *cpu = cddp_device_cpu();
    const cddp_parameter parameters[] = {
        {.name = "weight",
         .tensor = cddp_tensor_of(cpu, values, 0, CDDP_F32, &six, 1),
         .grad = &grads[0],
         .requires_grad = true},
        {.name = "bias",
         .tensor = cddp_tensor_of(cpu, values, 6, CDDP_F32, &three, 1),
         .grad = &grads[1],
         .requires_grad = true},
    };
    const cddp_buffer buffers[] = {
        {.name = "mean", .tensor = cddp_tensor_of(cpu, values, 9, CDDP_F32, &one, 1)}};
    cddp_ddp_options options = cddp_ddp_options_default();
    options.parameters = parameters;
    options.parameter_count = 2;
    options.buffers = buffers;
    options.buffer_count = 1;
    options.group = group;
    options.find_unused_parameters = true;
    options.gradient_as_bucket_view = true;
    cddp_ddp *ddp = NULL;
    CD_TRY(cddp_ddp_create(&options, &ddp, err));
    cddp_ddp_destroy(ddp);
    return CDDP_OK;
}

static cddp_status makes_ddp(const cddp_allocator *a, void *argument, cddp_error *err)
{
    (void)argument;
    cddp_solo_world *world = NULL;
    cddp_group *group = NULL;
    CD_TRY(solo(a, &world, err));
    cddp_group_options options = {.size = sizeof options,
                                  .backend = cddp_backend_self(),
                                  .rank = cddp_solo_world_rank(world),
                                  .spec = {.name = "default", .group_size = 1, .members = members},
                                  .works_max = 8};
    cddp_status status = cddp_group_create(&options, &group, err);
    if (status == CDDP_OK) status = wraps(group, err);
    cddp_group_destroy(group);
    cddp_solo_world_close(world);
    return status;
}

static cddp_status find_self(void *context, const char *name, const cddp_backend **backend,
                             cddp_error *err)
{
    (void)context;
    (void)name;
    (void)err;
    *backend = cddp_backend_self();
    return CDDP_OK;
}

/* One of each kind, a group over them, and an operation, which makes its record. */
static cddp_status uses_composition(cddp_group *group, cddp_error *err)
{
    float x[2] = {0};
    const int64_t two = 2;
    const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), x, 0, CDDP_F32, &two, 1);
    cddp_work *work = NULL;
    CD_TRY(cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, err));
    CD_TRY(cddp_work_wait(work, 0, err));
    return CDDP_OK;
}

static cddp_status makes_composition(const cddp_allocator *a, const char *spec, cddp_error *err)
{
    cddp_solo_world *world = NULL;
    cddp_composition *composition = NULL;
    cddp_group *group = NULL;
    const cddp_composition_options options = {.size = sizeof options,
                                              .spec = spec,
                                              .find = find_self,
                                              .allocator = a};
    CD_TRY(solo(a, &world, err));
    cddp_status status = cddp_composition_open(&options, &composition, err);
    cddp_group_options o = {.size = sizeof o,
                            .rank = cddp_solo_world_rank(world),
                            .spec = {.name = "w", .group_size = 1, .members = members},
                            .works_max = 8};
    if (status == CDDP_OK) {
        o.backend = cddp_composition_backend(composition);
        status = cddp_group_create(&o, &group, err);
    }
    if (status == CDDP_OK) status = uses_composition(group, err);
    cddp_group_destroy(group);
    cddp_composition_close(composition);
    cddp_solo_world_close(world);
    return status;
}

static cddp_status makes_composition_before(const cddp_allocator *a, void *argument,
                                            cddp_error *err)
{
    (void)argument;
    CD_TRY(makes_composition(a, "cpu:check:rr:2:hier:fault:seed=1:self", err));
    return CDDP_OK;
}

static cddp_status makes_composition_after(const cddp_allocator *a, void *argument, cddp_error *err)
{
    (void)argument;
    CD_TRY(makes_composition(a, "check:after:self", err));
    return CDDP_OK;
}

static cddp_status records_events(const cddp_allocator *a, void *argument, cddp_error *err)
{
    (void)argument;
    cd_memory_sink memory;
    cd_memory_sink_init(&memory, a);
    for (int i = 0; i < 40; i++) {
        cddp_event e = {.kind = CDDP_EV_mark,
                        .text = "a text that makes the third array grow as well"};
        memory.sink.event(memory.sink.self, &e);
    }
    cddp_status status = memory.sink.flush(memory.sink.self, err);
    cd_memory_sink_fini(&memory);
    return status;
}

/* More operations in flight than the first chunk of works has. */
static cddp_status posts_many(cddp_group *group, cddp_error *err)
{
    enum { MANY = 20 };
    float x = 0;
    const int64_t one = 1;
    const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), &x, 0, CDDP_F32, &one, 1);
    cddp_work *works[MANY] = {NULL};
    cddp_status status = CDDP_OK;
    for (int i = 0; i < MANY && status == CDDP_OK; i++)
        status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &works[i], err);
    for (int i = 0; i < MANY && works[i] != NULL; i++) cddp_work_release(works[i]);
    return status;
}

static cddp_status makes_works(const cddp_allocator *a, void *argument, cddp_error *err)
{
    (void)argument;
    return with_group(a, posts_many, err);
}

static cddp_status makes_run(const cddp_allocator *a, void *argument, cddp_error *err)
{
    (void)argument;
    cddp_registry *registry = NULL;
    cddp_plan *plan = NULL;
    cd_run *run = NULL;
    CD_TRY(cddp_registry_create(a, &registry, err));
    cddp_status status = cddp_plan_create(NULL, &plan, err);
    cddp_run_options options = cddp_run_options_default();
    options.plan = plan;
    options.registry = registry;
    options.allocator = a;
    if (status == CDDP_OK)
        status =
            cd_run_begin(&options, &(cd_run_manner){.holds_storage = true, .without_digests = true},
                         &run, err);
    cd_run_destroy(run);
    cddp_plan_destroy(plan);
    cddp_registry_destroy(registry);
    return status;
}

/* "key", "value", … NULL */
static cddp_plan *plan_of(const char *const *sets)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    assert_ok(cddp_plan_set(plan, "title", "out of memory", &err), &err);
    for (; sets[0] != NULL; sets += 2) assert_ok(cddp_plan_set(plan, sets[0], sets[1], &err), &err);
    assert_ok(cddp_plan_check(plan, &err), &err);
    return plan;
}

/* A whole run on this one process, the verdict included. */
static cddp_status run_alone(const cddp_run_options *options, cddp_error *err)
{
    cd_run *run = NULL;
    cddp_verdict *verdict = NULL;
    CD_TRY(cd_run_begin(options, &(cd_run_manner){.holds_storage = true}, &run, err));
    cddp_status status = cd_run_launch(run, err);
    const cddp_rank_result *result = cd_run_get_results(run);
    if (status == CDDP_OK && result->status != CDDP_OK) {
        status = result->status;
        *err = result->error;
    }
    if (status == CDDP_OK) status = cd_run_end(run, &verdict, err);
    cddp_verdict_destroy(verdict);
    cd_run_destroy(run);
    return status;
}

static cddp_status runs(const cddp_allocator *a, void *plan, cddp_error *err)
{
    cddp_solo_world *world = NULL;
    cddp_registry *registry = NULL;
    CD_TRY(solo(a, &world, err));
    cddp_status status = cddp_registry_create(a, &registry, err);
    cddp_run_options options = cddp_run_options_default();
    options.plan = plan;
    options.world_ops = cddp_solo_world_ops();
    options.world = world;
    options.backend = cddp_backend_self();
    options.registry = registry;
    options.allocator = a;
    if (status == CDDP_OK) status = run_alone(&options, err);
    cddp_registry_destroy(registry);
    cddp_solo_world_close(world);
    return status;
}

TEST(out_of_memory, no_run_leaves_anything_behind)
{
    static const struct {
        const char *name;
        const char *sets[20];
        uint64_t allocations_min;
    } plans[] = {
        {"a loss scaler, Adam, a checkpoint, groups",
         {"model.name", "mlp", "amp.enable", "true", "optimizer.0.kind", "adam",
          "train.checkpoint_step", "1", "train.resume", "true", "group.0.name", "all",
          "train.micro_steps", "2"},
         200},
        {"mixed precision and join",
         {"mixed_precision.param_dtype", "bf16", "join.enable", "true"},
         200},
        {"sharded optimizers, clipped by a norm over the ranks",
         {"optimizer.0.parameters", "*.weight", "optimizer.0.shard", "flat", "optimizer.0.kind",
          "adam", "optimizer.1.parameters", "*.bias", "optimizer.1.shard", "parameters",
          "clip.max_norm", "1", "clip.group", "world"},
         200},
        {"two wrappers, one with its own group",
         {"wrapper.0.name", "a", "wrapper.1.name", "b", "wrapper.1.own_group", "true",
          "wrapper.1.train.micro_steps", "2", "schedule.turns", "micro_step"},
         300},
        {"a sharded model whose units cast what enters and leaves them",
         {"fsdp.enable", "true", "fsdp.auto_wrap_policy", "always", "fsdp.cast_forward_inputs",
          "true", "fsdp.output_dtype", "bf16", "fsdp.keep_low_precision_grads", "true",
          "mixed_precision.param_dtype", "f16", "train.steps", "1"},
         200},
        {"local SGD, and a claim that nothing meets",
         {"averager.kind", "periodic", "averager.levels", "1", "train.steps", "1",
          "expect.exercised", "I-ORDER"},
         150},
    };
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        const char *sets[24] = {"world.size", "1", "train.steps", "2"};
        memcpy(sets + 4, plans[i].sets, sizeof plans[i].sets);
        cddp_plan *plan = plan_of(sets);
        uint64_t allocations = cd_test_oom_loop(runs, plan);
        cd_test_row("%s: %llu allocations", plans[i].name, (unsigned long long)allocations);
        assert_true(allocations >= plans[i].allocations_min);
        cddp_plan_destroy(plan);
    }
}

/* Two ranks on one process, which exchange the statistics of their batches. */
static cddp_status makes_reference(const cddp_allocator *a, void *plan, cddp_error *err)
{
    const double loss_scale = 1;
    const cddp_device device = cd_device_with_allocator(cddp_device_cpu(), a);
    const cd_reference_options options = {.plan = plan,
                                          .device = &device,
                                          .allocator = a,
                                          .loss_scale = &loss_scale};
    const cd_oracle_part part = {.rank = 1, .sample = CD_ORACLE_ALL};
    cd_reference *reference = NULL;
    CD_TRY(cd_reference_create(&options, &reference, err));
    cddp_status status = reference->engine.run(reference->engine.self, &part, err);
    /* two layers, in the forward and in the backward */
    if (status == CDDP_OK) assert_int_equal(reference->own.statistics.said[0].statistics.count, 4);
    cd_reference_destroy(reference);
    return status;
}

TEST(out_of_memory, no_reference_leaves_anything_behind)
{
    static const char *const sets[] = {"model.options", "widths=3:5:4:2,norm=sync", NULL};
    cddp_plan *plan = plan_of(sets);
    assert_true(cd_test_oom_loop(makes_reference, plan) > 100);
    cddp_plan_destroy(plan);
}

/* Ranks have their memory from their world, which ends here a little later each time. */
static bool run_fits(const cddp_plan *plan, const cddp_registry *registry, size_t bytes)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_sim *sim = NULL;
    cddp_verdict *verdict = NULL;
    cd_sim_config config = CD_SIM_CONFIG_INIT;
    config.world_size = 2;
    config.heap_bytes = bytes;
    assert_ok(cd_sim_create(&config, &sim, &err), &err);
    const cddp_backend backend = cd_sim_backend(sim);
    cddp_run_options options = cddp_run_options_default();
    options.plan = plan;
    options.world_ops = cd_sim_ops();
    options.world = sim;
    options.backend = &backend;
    options.registry = registry;
    cddp_status status = cddp_run(&options, &verdict, &err);
    bool has_ended = status == CDDP_E_NOMEM, is_fine = status == CDDP_OK;
    for (size_t r = 0; status == CDDP_OK && r < verdict->rank_count; r++) {
        has_ended |= verdict->ranks[r].result.status == CDDP_E_NOMEM;
        is_fine &= verdict->ranks[r].result.status == CDDP_OK;
    }
    assert_true(has_ended != is_fine);
    cddp_verdict_destroy(verdict);
    cd_sim_destroy(sim);
    return is_fine;
}

TEST(out_of_memory, a_run_on_streams_ends_in_order_wherever_its_worlds_memory_does)
{
    static const char *const sets[] = {"streams.producers", "2", "train.steps", "1", NULL};
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = plan_of(sets);
    cddp_registry *registry = NULL;
    assert_ok(cddp_registry_create(NULL, &registry, &err), &err);
    uint32_t failed = 0, fine = 0;
    for (size_t bytes = 4096; fine < 3; bytes += 4096) {
        cd_test_row("%zu bytes", bytes);
        if (run_fits(plan, registry, bytes))
            fine++;
        else
            failed++;
    }
    assert_true(failed > 20);
    cddp_registry_destroy(registry);
    cddp_plan_destroy(plan);
}

/* A simulated world with faults, and a store that one of its ranks serves. */
static cddp_status makes_meeting(const cddp_allocator *a, void *argument, cddp_error *err)
{
    static const char *const settings[][2] = {
        {"rendezvous.enable", "true"}, {"agent.attempts", "2"},         {"fault.0.kind", "kill"},
        {"fault.0.rank", "0"},         {"fault.0.when", "inside_join"}, {"fault.0.joiner", "1"}};
    (void)argument;
    cddp_plan *plan = NULL;
    cd_compose *compose = NULL;
    CD_TRY(cddp_plan_create(NULL, &plan, err));
    cddp_status status = CDDP_OK;
    for (size_t i = 0; status == CDDP_OK && i < sizeof settings / sizeof settings[0]; i++)
        status = cddp_plan_set(plan, settings[i][0], settings[i][1], err);
    const cd_compose_options options = {.plan = plan, .level = CDDP_TRACE_ORDER, .allocator = a};
    if (status == CDDP_OK) status = cd_compose_open(&options, &compose, err);
    cd_compose_close(compose);
    cddp_plan_destroy(plan);
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
        {"cddp_member_world_open", makes_member_world, 1},
        {"cddp_process_world_open", makes_process_world, 2},
        {"cddp_tracer_create", makes_tracer, 2},
        {"cddp_group_create", makes_group, 4},
        {"cddp_group_create_subset", makes_subset, 6},
        {"works by the chunk", makes_works, 6},
        {"cddp_averager_create", makes_averager, 4},
        {"cddp_zero_create", makes_zero, 4},
        {"cddp_fsdp_create", makes_fsdp, 8},
        {"the reproducible hook", makes_reproducible, 9},
        {"cddp_registry_create", makes_registry, 2},
        {"cddp_ddp_create", makes_ddp, 10},
        {"cddp_composition_open", makes_composition_before, 20},
        {"check:after", makes_composition_after, 8},
        {"cd_memory_sink", records_events, 6},
        {"cd_run_begin", makes_run, 40},
        {"cd_compose_open with a store", makes_meeting, 4},
    };
    for (size_t i = 0; i < sizeof constructors / sizeof constructors[0]; i++) {
        uint64_t allocations = cd_test_oom_loop(constructors[i].body, NULL);
        cd_test_row("%s: %llu allocations", constructors[i].name, (unsigned long long)allocations);
        assert_true(allocations >= constructors[i].allocations_min);
    }
}

TEST_MAIN()
