/* SPDX-License-Identifier: Apache-2.0 */
/* The less common modes: sparse, complex, delayed, mixed precision, optimizer in backward, group
** update, logging; and the same reducer on the devices symbol and shape. */
#include "core/base/error.h"
#include "core/hooks/hook.h"
#include "tests/unit/core/ddp/fixture.h"

/* ---- sparse ---- */

static void sparse_grad(lane *l, size_t i, const int64_t *rows, int64_t count, const float *values)
{
    static int64_t row_storage[LAB_RANKS][4];
    static float value_storage[LAB_RANKS][8];
    int64_t sizes[2] = {count, 2};
    memcpy(row_storage[l->r], rows, (size_t)count * sizeof *rows);
    memcpy(value_storage[l->r], values, (size_t)count * 2 * sizeof *values);
    l->grads[i].kind = CDDP_GRAD_SPARSE;
    l->grads[i].value = cddp_tensor_of(l->device, value_storage[l->r], 0, CDDP_F32, sizes, 2);
    l->grads[i].rows = (cddp_rows){l->device, row_storage[l->r], 0, count};
    lane_hook(l, i);
}

static void embedding(lane *l)
{
    cddp_parameter *p = lane_add(l, "emb.weight", CDDP_F32, 20);
    p->expect_sparse = true;
    p->tensor.dim_count = 2;
    p->tensor.sizes[0] = 10, p->tensor.sizes[1] = 2;
    p->tensor.strides[0] = 2, p->tensor.strides[1] = 1;
    lane_add(l, "fc", CDDP_F32, 3);
}

static void check_union(lane *l, const int64_t *rows, int64_t count, const float *first_columns)
{
    CHECK(l->grads[0].kind == CDDP_GRAD_SPARSE && l->grads[0].value.sizes[0] == count &&
          l->grads[0].rows.count == count);
    const int64_t *got = l->grads[0].rows.storage;
    const float *values = l->grads[0].value.storage;
    for (int64_t i = 0; i < count; i++)
        CHECK(got[i] == rows[i] && values[2 * i] == first_columns[i]);
}

LAB(sparse, result_has_the_union_of_rows, 2) /* SPA-02, TI-H-14 */
{
    static const int64_t wanted[3] = {0, 1, 4};
    static const float sums[3] = {0.5f, 1.0f, 1.5f}, twos[4] = {2, 2, 2, 2}, ones[4] = {1, 1, 1, 1};
    embedding(l);
    lane_wrap(l);
    CHECK_LAYOUT("1, 0"); /* a sparse parameter is alone */
    for (int step = 0; step < 3; step++) {
        int64_t rows[2] = {l->r, 4};
        lane_forward(l);
        sparse_grad(l, 0, rows, 2, l->r == 0 ? ones : twos);
        lane_zero_grad(l, false);
        cddp_grad_drop(&l->grads[1]);
        lane_grad(l, 1, 1.0 + l->r);
        lane_end(l);
        check_union(l, wanted, 3, sums);
        CHECK(lane_value(l, 1) == 1.5);
    }
}

LAB(sparse, the_allreduce_hook_takes_sparse_buckets, 2) /* HOOK-12, HK-01 */
{
    static const int64_t wanted[3] = {0, 1, 4};
    static const float sums[3] = {0.5f, 1.0f, 1.5f}, twos[4] = {2, 2, 2, 2}, ones[4] = {1, 1, 1, 1};
    embedding(l);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find("allreduce"), NULL, NULL, &l->err));
    for (int step = 0; step < 3; step++) {
        int64_t rows[2] = {l->r, 4};
        lane_forward(l);
        sparse_grad(l, 0, rows, 2, l->r == 0 ? ones : twos);
        cddp_grad_drop(&l->grads[1]);
        lane_grad(l, 1, 1.0 + l->r);
        lane_end(l);
        check_union(l, wanted, 3, sums);
        CHECK(lane_value(l, 1) == 1.5);
    }
}

/* A hook that gives sparse buckets one row, or nothing. */
static const int64_t given_row = 3;
static float given_values[2] = {7.0f, 8.0f};
static const cddp_grad *given;

static cddp_status give_one_row(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                cddp_future *future, cddp_error *err)
{
    (void)self, (void)group, (void)err;
    future->result = bucket->buffer;
    future->sparse_result = bucket->sparse != NULL ? given : NULL;
    return CDDP_OK;
}

LAB(sparse, the_result_of_a_hook_is_the_gradient, 1) /* HOOK-12 */
{
    static const cddp_hook hook = {.size = sizeof hook,
                                   .abi = CDDP_HOOK_ABI,
                                   .name = "one_row",
                                   .run = give_one_row};
    static const float ones[4] = {1, 1, 1, 1};
    const int64_t rows[2] = {1, 2}, sizes[2] = {1, 2};
    cddp_grad result = {.kind = CDDP_GRAD_SPARSE,
                        .value = cddp_tensor_of(l->device, given_values, 0, CDDP_F32, sizes, 2),
                        .rows = {l->device, (int64_t *)(uintptr_t)&given_row, 0, 1}};
    embedding(l);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, &hook, NULL, NULL, &l->err));
    for (int kind = 0; kind < 3; kind++) {
        given = kind == 1 ? NULL : &result;
        result.rows.count = kind == 2 ? 2 : 1;
        lane_forward(l);
        sparse_grad(l, 0, rows, 2, ones);
        cddp_grad_drop(&l->grads[1]);
        lane_grad(l, 1, 1.0);
        if (kind == 0) {
            lane_end(l);
            check_union(l, &given_row, 1, given_values);
        } else {
            CHECK_FAILS(cddp_ddp_backward_end(l->ddp, &l->err), CDDP_E_STATE,
                        kind == 1 ? "the sparse gradient of 'emb.weight' would stay local"
                                  : "is no sparse gradient of 'emb.weight'");
        }
    }
}

LAB(sparse, metadata_replaces_the_gathering, 2) /* SPA-04 */
{
    static const int64_t all[3] = {0, 1, 4}, wrong[2] = {4, 1};
    static const float sums[3] = {0.5f, 1.0f, 1.5f}, twos[4] = {2, 2, 2, 2}, ones[4] = {1, 1, 1, 1};
    embedding(l);
    lane_wrap(l);
    CHECK_FAILS(cddp_ddp_set_sparse_metadata(l->ddp, 0, wrong, 2, &l->err), CDDP_E_ARG,
                "out of order");
    CHECK_FAILS(cddp_ddp_set_sparse_metadata(l->ddp, 1, all, 3, &l->err), CDDP_E_ARG,
                "does not expect a sparse gradient");
    CHECK_OK(cddp_ddp_set_sparse_metadata(l->ddp, 0, all, 3, &l->err));
    lane_mark(l);
    lane_forward(l);
    int64_t rows[2] = {l->r, 4};
    sparse_grad(l, 0, rows, 2, l->r == 0 ? ones : twos);
    lane_grad(l, 1, 1.0);
    lane_end(l);
    check_union(l, all, 3, sums);
    CHECK(lane_posts(l, CDDP_OP_ALLREDUCE) == 2 && lane_posts(l, CDDP_OP_ALLGATHER) == 0);
    /* It was for one backward: the next one gathers its own rows. */
    static const int64_t others[3] = {0, 1, 3};
    lane_zero_grad(l, true);
    lane_mark(l);
    lane_forward(l);
    rows[1] = 3;
    sparse_grad(l, 0, rows, 2, l->r == 0 ? ones : twos);
    lane_grad(l, 1, 1.0);
    lane_end(l);
    check_union(l, others, 3, sums);
    CHECK(lane_posts(l, CDDP_OP_ALLGATHER) > 0);
}

LAB(complex, gradients_travel_as_real_numbers_of_twice_the_length, 2) /* SPA-05 */
{
    lane_add(l, "c", CDDP_C64, 3);
    lane_add(l, "f", CDDP_F32, 3);
    lane_wrap(l);
    lane_forward(l);
    CHECK_OK(cddp_grad_define(&l->grads[0], &l->parameters[0].tensor, &l->err));
    float *g = l->grads[0].value.storage;
    for (int i = 0; i < 6; i++) g[i] = (float)i * (1.0f + (float)l->r);
    lane_grad(l, 1, 1.0);
    lane_hook(l, 0);
    lane_end(l);
    g = l->grads[0].value.storage;
    for (int i = 0; i < 6; i++) CHECK(g[i] == (float)i * 1.5f);
    cddp_bucket_info info = {.size = sizeof info};
    CHECK_OK(cddp_ddp_bucket(l->ddp, 1, &info, &l->err));
    CHECK(cddp_ddp_bucket_count(l->ddp) == 2 && info.dtype == CDDP_F32 && info.numel == 6);
}

/* ---- delayed all-reduce ---- */

LAB(delayed, trigger_sums_what_was_accumulated, 2) /* DEL-01…06 */
{
    static const char *const names[2] = {"late.weight", "late.bias"};
    for (size_t i = 0; i < 3; i++)
        lane_add(l, i == 0 ? "late.weight" : i == 1 ? "late.bias" : "early", CDDP_F32, 2);
    CHECK_OK(l->device->fill(&l->parameters[0].tensor, 1.0 + l->r, NULL, &l->err));
    l->options.delay_all_reduce_named_params = names;
    l->options.delay_all_reduce_count = 2;
    l->options.param_to_hook_all_reduce = "late.weight";
    lane_wrap(l);
    CHECK(cddp_ddp_variable_count(l->ddp) == 1 && lane_first(l, &l->parameters[0].tensor) == 1.0);
    for (int step = 0; step < 2; step++) {
        lane_zero_grad(l, true);
        lane_forward(l);
        CHECK(lane_value(l, 0) == 0.0);
        lane_grad(l, 2, 1.0 + l->r);
        lane_grad(l, 1, 3.0 + l->r);
        lane_grad(l, 0, 5.0 + l->r);
        lane_end(l);
        CHECK(lane_value(l, 0) == 5.5 && lane_value(l, 1) == 3.5 && lane_value(l, 2) == 1.5);
    }
}

LAB(delayed, everything_delayed_needs_no_reducer, 2) /* DEL-06 */
{
    static const char *const names[1] = {"p"};
    lane_add(l, "p", CDDP_F32, 2);
    l->options.delay_all_reduce_named_params = names;
    l->options.delay_all_reduce_count = 1;
    l->options.param_to_hook_all_reduce = "p";
    lane_wrap(l);
    lane_iterate(l, 1.0 + l->r);
    CHECK(lane_value(l, 0) == 1.5 && cddp_ddp_bucket_count(l->ddp) == 0);
}

/* ---- mixed precision ---- */

/* MIX-01…06, TI-K-06: forward and gradients in the low dtype, parameters and averages in full
** afterwards, whether gradients are dropped between iterations or filled with zeros; who is ignored
** stays as it is. */
static void mixed_body(lane *l)
{
    static const char *const ignored[2] = {"ignored", "ignored.empty"};
    const bool drops = l->lab->data != NULL;
    l->options.parameters_and_buffers_to_ignore = ignored;
    l->options.ignore_count = 2;
    l->options.mixed_param_dtype = CDDP_F16;
    l->options.mixed_reduce_dtype = CDDP_F32;
    lane_add(l, "p", CDDP_F32, 4);
    lane_add(l, "q", CDDP_F32, 4);
    lane_add(l, "ignored", CDDP_F32, 4);
    for (size_t i = 0; i < 3; i++)
        CHECK_OK(l->device->fill(&l->parameters[i].tensor, 1.0 + 0x1p-20, NULL, &l->err));
    /* no elements, which the program lends their place */
    lane_add(l, "ignored.empty", CDDP_F32, 0);
    l->grads[3].backing = (cddp_backing){.device = l->device, .dtype = CDDP_F32};
    l->grads[3].backing_is_borrowed = true;
    lane_wrap(l);
    cddp_bucket_info info = {.size = sizeof info};
    CHECK_OK(cddp_ddp_bucket(l->ddp, 0, &info, &l->err));
    CHECK(info.dtype == CDDP_F16);
    for (int step = 0; step < 3; step++) {
        lane_mark(l);
        lane_forward(l);
        const cddp_tensor *low = cddp_ddp_forward_copy(l->ddp, 0);
        CHECK(low->dtype == CDDP_F16 && lane_first(l, low) == 1.0);
        CHECK(cddp_ddp_forward_copy(l->ddp, 2) == NULL &&
              lane_first(l, &l->parameters[2].tensor) == 1.0 + 0x1p-20);
        lane_accumulate(l, 2, 1.0 + 2.0 * l->r);
        for (size_t i = 0; i < 2; i++) { /* an engine accumulates in the dtype that forward used */
            bool fresh = !lane_has(l, i);
            CHECK_OK(cddp_grad_define(&l->grads[i], low, &l->err));
            CHECK(l->grads[i].value.dtype == CDDP_F16);
            CHECK(fresh == (drops || step == 0) && (fresh || lane_value(l, i) == 0.0));
            /* onto nothing, or onto zeros */
            CHECK_OK(l->device->fill(&l->grads[i].value, 1.0 + 2.0 * l->r, NULL, &l->err));
            lane_hook(l, i);
        }
        lane_end(l);
        CHECK(cddp_ddp_forward_copy(l->ddp, 0) == NULL &&
              lane_first(l, &l->parameters[0].tensor) == 1.0 + 0x1p-20);
        CHECK(l->grads[0].value.dtype == CDDP_F32 && lane_value(l, 0) == 2.0 &&
              lane_value(l, 1) == 2.0);
        CHECK(l->grads[2].value.dtype == CDDP_F32 && lane_value(l, 2) == 1.0 + 2.0 * l->r);
        CHECK(l->grads[3].backing.device == l->device && l->grads[3].backing_is_borrowed);
        size_t f32 = 0;
        for (size_t e = l->since; e < l->sink.count; e++)
            f32 += l->sink.events[e].kind == CDDP_EV_collective_post &&
                   l->sink.events[e].as.collective_post.op == CDDP_OP_ALLREDUCE &&
                   l->sink.events[e].as.collective_post.dtype == CDDP_F32;
        CHECK(f32 == 1);
        lane_zero_grad(l, drops);
    }
    CHECK_FAILS(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find("allreduce"), NULL, NULL, &l->err),
                CDDP_E_STATE, "mixed_precision is registered");
}
TEST(mixed_precision, computes_low_and_keeps_full) { lab_of(2, mixed_body, mixed_body); }
TEST(mixed_precision, computes_low_and_keeps_full_with_zeroed_gradients)
{
    lab_of(2, mixed_body, NULL);
}

LAB(mixed_precision, refuses_buffers_of_another_dtype, 1)
{
    l->options.mixed_buffer_dtype = CDDP_F16;
    lane_add(l, "p", CDDP_F32, 4);
    lane_add_buffer(l, "mean", CDDP_F32, 1, 0.0);
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_CONFIG, "buffer 'mean' is f32, mixed_buffer_dtype is f16");
}

/* ---- optimizer in backward ---- */

static cddp_status subtract(void *context, size_t variable, cddp_grad *grad, cddp_error *err)
{
    lane *l = context;
    return l->device->axpy(&l->parameters[variable].tensor, -0.5, &grad->value, NULL, err);
}

static void in_backward_body(lane *l) /* OIB-01, OIB-04, TI-D-07 */
{
    static const bool managed[2] = {true, false};
    cddp_optimizer_in_backward optimizer = {.size = sizeof optimizer,
                                            .step = subtract,
                                            .context = l,
                                            .managed = managed};
    l->options.gradient_as_bucket_view = l->lab->data != NULL;
    lane_add(l, "p", CDDP_F32, 2);
    lane_add(l, "q", CDDP_F32, 2);
    lane_wrap(l);
    const cddp_optimizer_in_backward none = {.size = sizeof none};
    CHECK_FAILS(cddp_ddp_set_optimizer_in_backward(l->ddp, &none, &l->err), CDDP_E_ARG,
                "needs a function");
    CHECK_OK(cddp_ddp_set_optimizer_in_backward(l->ddp, &optimizer, &l->err));
    CHECK_FAILS(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find("noop"), NULL, NULL, &l->err),
                CDDP_E_STATE, "optimizer_in_backward is registered");
    for (int i = 1; i <= 3; i++) {
        lane_iterate(l, 1.0 + 2.0 * l->r);
        CHECK(lane_first(l, &l->parameters[0].tensor) == -1.0 * i && !lane_has(l, 0));
        CHECK(lane_first(l, &l->parameters[1].tensor) == 0.0 && lane_value(l, 1) == 2.0);
        lane_zero_grad(l, true);
    }
}
TEST(optimizer_in_backward, steps_managed_parameters_and_leaves_the_others)
{
    lab_of(2, in_backward_body, NULL);
}
TEST(optimizer_in_backward, steps_managed_parameters_with_views)
{
    lab_of(2, in_backward_body, in_backward_body);
}

/* ---- groups ---- */

LAB(group, can_be_replaced_after_an_error_in_backward, 2) /* UPG-01, UPG-02 */
{
    static const uint32_t own[2][1] = {{0}, {1}};
    l->options.find_unused_parameters = true;
    lane_add(l, "a", CDDP_F32, 2);
    lane_add(l, "b", CDDP_F32, 2);
    lane_wrap(l);
    lane_forward(l);
    lane_grad(l, 0, 1.0); /* and then the program failed */
    cddp_group_options o = {.size = sizeof o, .backend = &l->lab->backend, .rank = l->rank};
    o.spec = (cddp_group_spec){.size = sizeof o.spec,
                               .name = l->r == 0 ? "solo 0" : "solo 1",
                               .group_size = 1,
                               .members = own[l->r]};
    cddp_group *solo = NULL;
    CHECK_OK(cddp_group_create(&o, &solo, &l->err));
    CHECK_OK(cddp_ddp_update_process_group(l->ddp, solo, &l->err));
    lane_zero_grad(l, true);
    lane_iterate(l, 1.0 + l->r);
    CHECK(lane_value(l, 0) == 1.0 + l->r);
    CHECK_OK(cddp_ddp_update_process_group(l->ddp, NULL, &l->err));
    CHECK_FAILS(cddp_ddp_forward_begin(l->ddp, true, &l->err), CDDP_E_STATE, "not a member");
    CHECK_OK(cddp_ddp_update_process_group(l->ddp, l->group, &l->err));
    lane_zero_grad(l, true);
    lane_iterate(l, 1.0 + l->r);
    CHECK(lane_value(l, 0) == 1.5);
    lane_unwrap(l);
    cddp_group_destroy(solo);
}

/* UPG-03, TI-A-18: a backward fails half-way, and a second wrapper takes the parameters over. The
** engine goes on telling both: the first, left as it was, refuses what becomes ready again; with
** its hooks removed it stays out of the way. */
static void taken_over_body(lane *l)
{
    const bool removes = l->lab->data != NULL;
    lane_add(l, "a", CDDP_F32, 2);
    lane_add(l, "b", CDDP_F32, 2);
    lane_wrap(l);
    lane_forward(l);
    lane_grad(l, 1, 1.0); /* and then the backward failed */
    cddp_ddp *first = l->ddp;
    if (removes) cddp_ddp_remove_autograd_hooks(first);
    lane_zero_grad(l, true);
    lane_wrap(l);
    lane_forward(l);
    for (size_t i = 2; i-- > 0;) {
        lane_accumulate(l, i, 1.0 + l->r);
        if (removes)
            CHECK_OK(cddp_ddp_mark_parameter_ready(first, i, &l->err));
        else
            CHECK_FAILS(cddp_ddp_mark_parameter_ready(first, i, &l->err), CDDP_E_STATE,
                        "'b' became ready twice"); /* also for 'a': the first error is kept */
        if (removes) lane_hook(l, i);
    }
    if (removes) {
        lane_end(l);
        CHECK(lane_value(l, 0) == 1.5 && lane_value(l, 1) == 1.5);
    }
    cddp_ddp_destroy(first);
}
TEST(group, removed_hooks_let_another_wrapper_own_the_parameters)
{
    lab_of(2, taken_over_body, taken_over_body);
}
TEST(group, hooks_that_stay_refuse_what_another_wrapper_reduces)
{
    lab_of(2, taken_over_body, NULL);
}

LAB(group, removed_hooks_reduce_nothing, 2) /* UPG-03 */
{
    lane_add(l, "a", CDDP_F32, 2);
    lane_wrap(l);
    cddp_ddp_remove_autograd_hooks(l->ddp);
    lane_iterate(l, 1.0 + l->r);
    CHECK(lane_value(l, 0) == 1.0 + l->r);
}

/* ---- logging ---- */

LAB(logging, shows_construction_and_run_time_fields, 2) /* LOG-01, LOG-02, TI-A-15 */
{
    cddp_ddp_logging log = {.size = sizeof log};
    lane_add(l, "a", CDDP_F32, 5);
    lane_add(l, "b", CDDP_F64, 3);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_get_logging(l->ddp, &log, &l->err));
    CHECK(log.world_size == 2 && log.rank == l->r && log.parameter_tensor_count == 2 &&
          log.total_parameter_bytes == 44);
    CHECK(log.bucket_cap_bytes == 26214400 && log.first_bucket_bytes == 1048576 &&
          log.sample_rate == 100);
    CHECK(strcmp(log.dtypes, "f32, f64") == 0 && strcmp(log.bucket_sizes, "24, 20") == 0 &&
          strcmp(log.backend_name, "sim") == 0);
    for (int i = 0; i < 3; i++) lane_iterate(l, 1.0);
    CHECK_OK(cddp_ddp_get_logging(l->ddp, &log, &l->err));
    CHECK(log.iteration == 3 && log.has_rebuilt_buckets &&
          strcmp(log.rebuilt_per_bucket_param_indices, "1, 0") == 0);
    CHECK(!log.has_error && log.growth_count == 1); /* the rebuild */
}

/* ---- devices ---- */

static void symbol_body(lane *l)
{
    l->options.gradient_as_bucket_view = l->lab->data != NULL;
    lane_add(l, "a", CDDP_F32, 5);
    lane_add(l, "b", CDDP_F32, 3);
    lane_wrap(l);
    CHECK_FAILS(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find("fp16_compress"), NULL, NULL,
                                            &l->err),
                CDDP_E_UNSUPPORTED, "not linear");
    for (int step = 0; step < 3; step++) {
        lane_zero_grad(l, true);
        lane_iterate(l, 1.0 + l->r);
        float got[5];
        CHECK_OK(l->device->read(&l->grads[0].value, got, sizeof got, &l->err));
        for (int i = 0; i < 5; i++) CHECK(got[i] == 2.0f); /* (1+2+3)/3, exactly */
    }
}
static void on_symbol(void *data)
{
    lab b = {.world_size = 3, .body = symbol_body, .device = cddp_device_symbol(), .data = data};
    lab_run(&b);
}
TEST(device, symbol_averages_exactly) { on_symbol(NULL); }
TEST(device, symbol_averages_exactly_in_views) { on_symbol(on_symbol); }

static void shape_body(lane *l)
{
    l->options.find_unused_parameters = true;
    lane_add(l, "a", CDDP_F32, INT64_C(1) << 34);
    lane_add(l, "b", CDDP_F32, 3);
    lane_wrap(l);
    lane_reach(l, 2);
    lane_forward(l);
    lane_grad(l, 1, 1.0);
    lane_end(l);
    CHECK(lane_has(l, 1) && !lane_has(l, 0));
}
TEST(device, shape_runs_models_that_fit_nowhere)
{
    lab b = {.world_size = 4, .body = shape_body, .device = cddp_device_shape()};
    lab_run(&b);
}

/* ---- no elements ---- */

static cddp_status allocate_something(const cddp_device *device, cddp_dtype dtype, int64_t numel,
                                      void **storage, cddp_error *err)
{
    (void)device;
    assert_true(numel > 0);
    CD_TRY(cddp_device_cpu()->allocate(cddp_device_cpu(), dtype, numel, storage, err));
    return CDDP_OK;
}
static void release_something(const cddp_device *device, cddp_dtype dtype, int64_t numel,
                              void *storage)
{
    (void)device;
    assert_true(numel > 0);
    cddp_device_cpu()->release(cddp_device_cpu(), dtype, numel, storage);
}

/* A parameter and a buffer of no elements need no storage, and no device is asked for none. */
static void nothing_body(lane *l)
{
    static const char *const late[] = {"none"};
    const char *kind = l->lab->data;
    cddp_device picky = *cddp_device_cpu();
    picky.allocate = allocate_something;
    picky.release = release_something;
    l->device = &picky;
    l->options.gradient_as_bucket_view = strcmp(kind, "views") == 0;
    l->options.static_graph = strcmp(kind, "static") == 0;
    l->options.batched_grad_copy = strcmp(kind, "batched") == 0;
    if (strcmp(kind, "mixed") == 0) l->options.mixed_param_dtype = CDDP_F16;
    if (strcmp(kind, "delayed") == 0) {
        l->options.delay_all_reduce_named_params = late;
        l->options.delay_all_reduce_count = 1;
        l->options.param_to_hook_all_reduce = "none";
    }
    lane_add(l, "a", CDDP_F32, 5);
    lane_add(l, "none", CDDP_F32, 0);
    lane_add(l, "c", CDDP_F32, 3);
    lane_add_buffer(l, "mean", CDDP_F32, 0, 0.0);
    void *own[2] = {l->parameters[1].tensor.storage, l->buffers[0].tensor.storage};
    l->parameters[1].tensor.storage = l->buffers[0].tensor.storage = NULL;
    lane_wrap(l);
    if (strcmp(kind, "topk") == 0)
        CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find("topk"), NULL, "k=8", &l->err));
    for (int step = 0; step < 3; step++) {
        lane_zero_grad(l, true);
        lane_iterate(l, 1.0 + l->r);
        CHECK(lane_value(l, 0) == 1.5 && lane_value(l, 2) == 1.5);
    }
    lane_unwrap(l);
    lane_zero_grad(l, true);
    l->parameters[1].tensor.storage = own[0];
    l->buffers[0].tensor.storage = own[1];
    l->device = cddp_device_cpu();
}

TEST(nothing, needs_no_storage)
{
    static const char *const kinds[] = {"plain",   "views", "static", "batched",
                                        "delayed", "mixed", "topk"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        char kind[16];
        cd_test_row("%s", kinds[i]);
        (void)snprintf(kind, sizeof kind, "%s", kinds[i]);
        lab_of(2, nothing_body, kind);
    }
}

TEST_MAIN()
