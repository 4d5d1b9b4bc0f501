/* SPDX-License-Identifier: Apache-2.0 */
/* What hooks see, what becomes of what they return, and the golden values of the compiled-in ones
** (HOOK, HK). */
#include "core/base/error.h"
#include "core/hooks/hook.h"
#include "tests/support/tape.h"
#include "tests/unit/core/ddp/fixture.h"

#include <math.h>

static void use(lane *l, const char *name, const char *inner)
{
    CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find(name),
                                         inner != NULL ? cd_hook_find(inner) : NULL, NULL,
                                         &l->err));
}

/* HK-03, VER-03, TI-M-03: W=3. one: only rank 0 is not zero; all: all ranks are equal. */
static const struct {
    double input, one, all;
} half_table[] = {
    /* clang-format off */
    {65504, 21840, INFINITY}, {65519, 21840, INFINITY}, {65520, INFINITY, INFINITY}, {70000, INFINITY, INFINITY},
    {1e-7, 5.960464477539063e-08, -1}, {6e-8, 0, 0}, {5.97e-8, 0, 0}, {1.0009765625, 0.333740234375, -1},
    {3e-5, 1.00135803e-5, -1}, {2049, 682.5, -1}, {0.1, 0.0333251953, 0.0999755859}, {1.0 / 3, 0.111083984, 0.333251953},
    {1.0, -1, 1.0},
    /* clang-format on */
};

/* The table is printed with nine digits, which name one f16 each: that one, bit for bit. */
static bool is_half(double got, double wanted)
{
    if (wanted == 0 || isinf(wanted)) return got == wanted;
    double unit = fmax(ldexp(1.0, ilogb(wanted) - 10), 0x1p-24);
    return got == rint(wanted / unit) * unit;
}

static void half_body(lane *l)
{
    const char *const *names = l->lab->data;
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    use(l, names[0], names[1]);
    for (size_t i = 0; i < sizeof half_table / sizeof half_table[0]; i++) {
        lane_zero_grad(l, true);
        lane_iterate(l, l->r == 0 ? half_table[i].input : 0.0);
        if (half_table[i].one >= 0) CHECK(is_half(lane_value(l, 0), half_table[i].one));
        lane_zero_grad(l, true);
        lane_iterate(l, half_table[i].input);
        if (half_table[i].all >= 0) CHECK(is_half(lane_value(l, 0), half_table[i].all));
    }
}
TEST(fp16_compress, gives_the_golden_table)
{
    const char *names[2] = {"fp16_compress", NULL};
    lab_of(3, half_body, names);
}
TEST(fp16_compress, wrapped_around_allreduce_is_the_same) /* HK-05 */
{
    const char *names[2] = {"fp16_compress_wrapper", "allreduce"};
    lab_of(3, half_body, names);
}

LAB(bf16_compress, casts_then_divides_then_sums, 3)
{
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    use(l, "bf16_compress", NULL);
    lane_iterate(l, 1.0 + l->r);
    /* bf16: 1/3 = 0.333984375, 2/3 = 0.66796875, 1: their sum, rounded to 8 bits of significand, is
    ** 2. */
    CHECK(lane_value(l, 0) == 2.0);
}

LAB(allreduce, truly_divides, 3) /* HK-01: differs from no hook in the last bit */
{
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    use(l, "allreduce", NULL);
    lane_iterate(l, l->r == 0 ? 5.0 : 0.0);
    float f = lane_f32(l, 0);
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    CHECK(bits == 0x3fd55555);
}

LAB(noop, leaves_gradients_local, 2) /* HK-07 */
{
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    use(l, "noop", NULL);
    lane_mark(l);
    lane_iterate(l, 1.0 + l->r);
    CHECK(lane_value(l, 0) == 1.0 + l->r && lane_posts(l, CDDP_OP_ALLREDUCE) == 0);
}

/* ---- what a hook sees ---- */

typedef struct seen {
    uint32_t calls, index[16], first_parameter[16];
    bool is_last[16];
    cddp_dtype dtype[16];
    double first_gradient[16];
    int64_t strides[CDDP_DIMS_MAX];
} seen;

static seen what[LAB_RANKS];

static cddp_status watch(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                         cddp_future *future, cddp_error *err)
{
    (void)self;
    seen *s = &what[cddp_group_rank(group)];
    s->index[s->calls] = bucket->index;
    s->is_last[s->calls] = bucket->is_last;
    s->dtype[s->calls] = bucket->buffer.dtype;
    s->first_parameter[s->calls] = bucket->parameter_ids[0];
    memcpy(s->strides, bucket->gradients[0].strides, sizeof s->strides);
    s->calls++;
    cddp_status status =
        cddp_group_allreduce(group, &bucket->buffer, CDDP_RED_SUM, &future->works[0], err);
    future->work_count = status == CDDP_OK;
    future->result = bucket->buffer;
    return status;
}
static const cddp_hook watcher = {.size = sizeof(cddp_hook),
                                  .abi = CDDP_HOOK_ABI,
                                  .name = "watcher",
                                  .run = watch};

LAB(hook, is_called_in_bucket_order_and_nothing_is_divided, 3) /* HOOK-04, HOOK-08 */
{
    what[l->r] = (seen){0};
    l->options.bucket_cap_mb = 0.00001;
    l->options.find_unused_parameters = true;
    for (int i = 0; i < 3; i++) lane_add(l, i == 0 ? "a" : i == 1 ? "b" : "c", CDDP_F32, 3);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, &watcher, NULL, NULL, &l->err));
    lane_iterate(l, 1.0);
    /* a hook that sums gives W times too much */
    CHECK(lane_value(l, 0) == 3.0 && what[l->r].calls == 3);
    for (uint32_t i = 0; i < 3; i++)
        CHECK(what[l->r].index[i] == i && what[l->r].is_last[i] == (i == 2));
    cddp_ddp_no_sync_begin(l->ddp);
    lane_iterate(l, 1.0);
    cddp_ddp_no_sync_end(l->ddp);
    CHECK(what[l->r].calls == 3);
    cddp_ddp_logging log = {.size = sizeof log};
    CHECK_OK(cddp_ddp_get_logging(l->ddp, &log, &l->err));
    CHECK(strcmp(log.comm_hook, "watcher") == 0); /* HOOK-10 */
}

LAB(hook, is_named_in_the_log, 2) /* TI-D-01: none, a user's, one of ours, one around another */
{
    static const struct {
        const cddp_hook *hook;
        const char *inner, *name;
    } rows[4] = {{NULL, NULL, ""},
                 {&watcher, NULL, "watcher"},
                 {&cd_hook_allreduce, NULL, "allreduce"},
                 {&cd_hook_fp16_compress_wrapper, "allreduce", "fp16_compress_wrapper"}};
    lane_add(l, "p", CDDP_F32, 2);
    for (int i = 0; i < 4; i++) {
        cddp_ddp_logging log = {.size = sizeof log};
        lane_wrap(l);
        if (rows[i].hook != NULL)
            CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, rows[i].hook,
                                                 rows[i].inner != NULL ? cd_hook_find(rows[i].inner)
                                                                       : NULL,
                                                 NULL, &l->err));
        CHECK_OK(cddp_ddp_get_logging(l->ddp, &log, &l->err));
        CHECK(strcmp(log.comm_hook, rows[i].name) == 0);
        lane_unwrap(l);
    }
}

LAB(hook, sees_index_zero_in_the_first_pass_of_a_static_graph, 2) /* STA-04, VER-20, TI-M-05 */
{
    static const struct {
        uint32_t index;
        bool is_last;
        cddp_dtype dtype;
    } wanted[6] = {{0, false, CDDP_F64}, {0, false, CDDP_F32}, {0, false, CDDP_F64},
                   {1, true, CDDP_F32},  {0, false, CDDP_F32}, {1, true, CDDP_F64}};
    what[l->r] = (seen){0};
    l->options.static_graph = true;
    lane_add(l, "single", CDDP_F32, 3);
    lane_add(l, "double", CDDP_F64, 3);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, &watcher, NULL, NULL, &l->err));
    for (int step = 0; step < 3; step++) { /* f32 arrives first */
        lane_zero_grad(l, true);
        lane_forward(l);
        lane_grad(l, 0, 1.0);
        lane_grad(l, 1, 1.0);
        lane_end(l);
    }
    CHECK(what[l->r].calls == 6);
    for (int i = 0; i < 6; i++)
        CHECK(what[l->r].index[i] == wanted[i].index &&
              what[l->r].is_last[i] == wanted[i].is_last && what[l->r].dtype[i] == wanted[i].dtype);
}

static float order_seen[16];
static cddp_status read_slice(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                              cddp_future *future, cddp_error *err)
{
    (void)self, (void)group;
    what[0].calls++;
    memcpy(what[0].strides, bucket->gradients[0].strides, sizeof what[0].strides);
    future->result = bucket->buffer;
    return bucket->gradients[0].device->read(&bucket->gradients[0], order_seen, sizeof order_seen,
                                             err);
}

LAB(hook, sees_channels_last_gradients_permuted, 1) /* HOOK-06, VER-19 */
{
    static const cddp_hook reader = {.size = sizeof(cddp_hook),
                                     .abi = CDDP_HOOK_ABI,
                                     .name = "reader",
                                     .run = read_slice};
    static const float wanted[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    static const int64_t strides[4] = {8, 1, 4, 2};
    float logical[16];
    what[0] = (seen){0};
    cddp_tensor *t = &lane_add(l, "conv.weight", CDDP_F32, 16)->tensor;
    t->dim_count = 4;
    for (int i = 0; i < 4; i++) t->sizes[i] = 2, t->strides[i] = strides[i];
    lane_wrap(l);
    CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, &reader, NULL, NULL, &l->err));
    lane_forward(l);
    CHECK_OK(cddp_grad_define(&l->grads[0], t, &l->err));
    for (int i = 0; i < 16; i++) logical[i] = (float)i;
    CHECK_OK(l->device->write(&l->grads[0].value, logical, sizeof logical, &l->err));
    lane_hook(l, 0);
    lane_end(l);
    CHECK(memcmp(order_seen, wanted, sizeof wanted) == 0 && what[0].strides[0] == 8 &&
          what[0].strides[1] == 4 && what[0].strides[3] == 1);
    CHECK(l->grads[0].value.strides[1] == 1);
    CHECK_OK(l->device->read(&l->grads[0].value, logical, sizeof logical, &l->err));
    for (int i = 0; i < 16; i++) CHECK(logical[i] == (float)i);
}

/* ---- what becomes of the result ---- */

static cddp_status answer_seven(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                cddp_future *future, cddp_error *err)
{
    (void)self, (void)group;
    future->result = bucket->buffer;
    return bucket->buffer.device->fill(&bucket->buffer, 7.0, NULL, err);
}
LAB(hook, result_is_used_verbatim, 3) /* HOOK-08, TI-D-08 */
{
    static const cddp_hook seven = {.size = sizeof(cddp_hook),
                                    .abi = CDDP_HOOK_ABI,
                                    .name = "seven",
                                    .run = answer_seven};
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, &seven, NULL, NULL, &l->err));
    lane_iterate(l, 1.0);
    CHECK(lane_value(l, 0) == 7.0);
}

/* A result in memory of the hook's own reaches gradients that are views, which stay where they
** are. */
static float elsewhere[LAB_RANKS][2];
static cddp_status answer_elsewhere(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                    cddp_future *future, cddp_error *err)
{
    (void)self, (void)err;
    float *own = elsewhere[cddp_group_rank(group)];
    const int64_t numel = cddp_tensor_numel(&bucket->buffer);
    own[0] = own[1] = 5.0f;
    future->result = cddp_tensor_of(bucket->buffer.device, own, 0, CDDP_F32, &numel, 1);
    return CDDP_OK;
}
LAB(hook, result_in_other_memory_reaches_views, 2)
{
    static const cddp_hook other = {.size = sizeof(cddp_hook),
                                    .abi = CDDP_HOOK_ABI,
                                    .name = "other",
                                    .run = answer_elsewhere};
    l->options.gradient_as_bucket_view = true;
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, &other, NULL, NULL, &l->err));
    lane_iterate(l, 1.0);
    CHECK(lane_value(l, 0) == 5.0 &&
          l->grads[0].value.storage != elsewhere[cddp_group_rank(l->group)]);
}

/* TI-D-19: stages. Sum, then × 10, then a second sum over ranks, then ÷ 2: for gradients 1, W=2:
** 1·2·10·2/2 = 20. */
static cddp_status last_stage(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                              cddp_error *err)
{
    (void)self;
    future->result = bucket->buffer;
    return bucket->buffer.device->divide(&bucket->buffer, &bucket->buffer, 2, NULL, err);
}
static cddp_group *stage_group[LAB_RANKS];
static cddp_status middle_stage(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                                cddp_error *err)
{
    (void)self;
    cddp_group *group = stage_group[future->scratch[0]];
    cddp_status status =
        bucket->buffer.device->scale(&bucket->buffer, &bucket->buffer, 10.0, NULL, err);
    if (status != CDDP_OK) return status;
    future->next = last_stage;
    return cd_future_add_allreduce(future, bucket, &bucket->buffer, group, err);
}
static cddp_status first_stage(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                               cddp_future *future, cddp_error *err)
{
    (void)self;
    future->scratch[0] = cddp_group_rank(group);
    stage_group[cddp_group_rank(group)] = group;
    future->next = middle_stage;
    return cd_future_add_allreduce(future, bucket, &bucket->buffer, group, err);
}
LAB(hook, stages_of_all_buckets_advance_in_rounds, 2)
{
    static const cddp_hook staged = {.size = sizeof(cddp_hook),
                                     .abi = CDDP_HOOK_ABI,
                                     .name = "staged",
                                     .run = first_stage};
    int64_t labels[4];
    size_t posts = 0;
    l->options.bucket_cap_mb = 0.00001;
    l->options.find_unused_parameters = true;
    lane_add(l, "a", CDDP_F32, 3);
    lane_add(l, "b", CDDP_F32, 3);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, &staged, NULL, NULL, &l->err));
    lane_mark(l);
    lane_iterate(l, 1.0);
    CHECK(lane_value(l, 0) == 20.0 && lane_value(l, 1) == 20.0);
    for (size_t e = l->since; e < l->sink.count; e++) {
        const cddp_event *event = &l->sink.events[e];
        if (event->kind == CDDP_EV_collective_post && event->as.collective_post.dtype == CDDP_F32 &&
            posts < 4)
            labels[posts++] = event->as.collective_post.bucket;
    }
    CHECK(posts == 4 && labels[0] == 0 && labels[1] == 1 && labels[2] == 0 && labels[3] == 1);
}

/* What a state is of is known when it is loaded, whatever the hook has to remember, and whether it
** has begun to. The fourth model has the elements of the first in other shapes; the last is the
** first again. */
LAB(hook, state_of_another_model_is_refused_with_the_reason, 2)
{
    static const struct {
        const char *name, *inner, *options;
    } hooks[] = {{"topk", NULL, "k=2"},
                 {"post_local_sgd", NULL, "post_local_gradient_allreduce=false"},
                 {"powersgd", NULL, NULL},
                 {"batched_powersgd", NULL, NULL},
                 {"fp16_compress_wrapper", "topk", "k=2"},
                 {"bf16_compress_wrapper", "powersgd", NULL}};
    static const struct {
        int count;
        int64_t sizes[2];
        cddp_dtype dtype;
        const char *words;
    } others[] = {{2, {12, 1}, CDDP_F32, NULL},
                  {3, {12, 1}, CDDP_F32, "saved for a model of 2 parameters; this one has 3"},
                  {1, {12, 1}, CDDP_F32, "saved for a model of 2 parameters; this one has 1"},
                  {2, {3, 4}, CDDP_F32, "other sizes or dtypes"},
                  {2, {11, 1}, CDDP_F32, "other sizes or dtypes"},
                  {2, {12, 1}, CDDP_F64, "other sizes or dtypes"},
                  {2, {12, 1}, CDDP_F32, NULL}};
    const size_t models = sizeof others / sizeof others[0];
    for (size_t h = 0; h < sizeof hooks / sizeof hooks[0]; h++) {
        const cddp_hook *hook = cd_hook_find(hooks[h].name),
                        *inner = hooks[h].inner != NULL ? cd_hook_find(hooks[h].inner) : NULL;
        for (int steps = 0; steps < 2; steps++) {
            tape t = {.used = 0};
            cddp_state_writer writer = {&t, tape_write};
            cddp_state_reader reader = {&t, tape_read};
            for (size_t m = 0; m < models; m++) {
                for (int i = 0; i < others[m].count; i++) {
                    const int64_t *sizes = others[m].sizes;
                    cddp_parameter *p = lane_add(l,
                                                 i == 0   ? "a"
                                                 : i == 1 ? "b"
                                                          : "c",
                                                 others[m].dtype, sizes[0] * sizes[1]);
                    if (sizes[1] > 1)
                        p->tensor = cddp_tensor_of(p->tensor.device, p->tensor.storage, 0,
                                                   others[m].dtype, sizes, 2);
                }
                lane_wrap(l);
                CHECK_OK(
                    cddp_ddp_register_comm_hook(l->ddp, hook, inner, hooks[h].options, &l->err));
                void *self = cddp_ddp_comm_hook_state(l->ddp);
                t.read = 0;
                if (m == 0 && steps > 0) lane_iterate(l, 1.0);
                if (m == 0)
                    CHECK_OK(hook->save(self, &writer, &l->err));
                else if (others[m].words == NULL)
                    CHECK_OK(hook->load(self, &reader, &l->err));
                else
                    CHECK_FAILS(hook->load(self, &reader, &l->err), CDDP_E_MISMATCH,
                                others[m].words);
                cd_error_reset(&l->err);
                lane_unwrap(l);
                lane_drop(l);
            }
        }
    }
}

/* What a hook says of its options where none is given, or only the one that has no default. */
LAB(hook, options_have_the_defaults_of_the_documentation, 1)
{
    static const struct {
        const char *hook, *given;
        struct {
            const char *name;
            double value;
        } options[13];
    } rows[] = {
        /* clang-format off */
        {"powersgd", NULL,
         {{"matrix_approximation_rank", 1}, {"start_powerSGD_iter", 1000}, {"min_compression_rate", 2},
          {"use_error_feedback", 1}, {"error_feedback", 1}, {"warm_start", 1}, {"orthogonalization_epsilon", 0},
          {"random_seed", 0}, {"compression_stats_logging_frequency", 10000}, {"batch_tensors_with_same_shape", 0},
          {"feedback_every_n_iters", 1}, {"bytes_per_weight", 4}}},
        {"topk", NULL, {{"k", 0}, {"ratio", 0.01}, {"error_feedback", 1}}},
        {"topk", "k=3", {{"k", 3}, {"ratio", -1}, {"error_feedback", 1}}},
        {"post_local_sgd", "subgroup_size=1",
         {{"start_localSGD_iter", 100}, {"subgroup_size", 1}, {"post_local_gradient_allreduce", 1}}},
        {"quantize_per_channel", NULL, {{"bucket_size", 512}}},
        /* clang-format on */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t wanted = 0, said = 0;
        lane_add(l, "p", CDDP_F32, 4);
        lane_wrap(l);
        lane_mark(l);
        CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find(rows[i].hook), NULL,
                                             rows[i].given, &l->err));
        for (; rows[i].options[wanted].name != NULL; wanted++) continue;
        for (size_t e = l->since; e < l->sink.count; e++) {
            const cddp_event event = cd_memory_sink_get(&l->sink, e);
            if (event.kind != CDDP_EV_hook_option) continue;
            CHECK(said < wanted && strcmp(event.text, rows[i].options[said].name) == 0);
            CHECK(event.as.hook_option.value == cd_f64_bits(rows[i].options[said].value));
            said++;
        }
        CHECK(said == wanted);
        lane_unwrap(l);
        lane_drop(l);
    }
}

TEST(hook, every_row_of_the_table_is_found_by_its_name_and_is_acceptable)
{
    size_t count = 0;
    for (const cd_hook_row *row; (row = cd_hook_get_row(count)) != NULL; count++) {
        cddp_error err = CDDP_ERROR_INIT;
        assert_ok(cd_hook_check(row->hook, &err), &err);
        assert_ptr_equal(cd_hook_find(row->hook->name), row->hook);
        assert_true(row->summary[0] != '\0');
    }
    assert_true(count >= 6);
    assert_null(cd_hook_find("no such hook"));
}

TEST(hook, one_that_works_on_flat_buckets_refuses_a_sparse_one_by_name)
{
    cddp_error err = CDDP_ERROR_INIT;
    const cddp_grad rows = {.kind = CDDP_GRAD_SPARSE};
    const cddp_grad_bucket flat = {.size = sizeof flat, .index = 3},
                           sparse = {.size = sizeof sparse, .index = 3, .sparse = &rows};
    assert_ok(cd_hook_refuse_sparse(&flat, "topk", &err), &err);
    assert_int_equal(cd_hook_refuse_sparse(&sparse, "topk", &err), CDDP_E_UNSUPPORTED);
    assert_string_equal(err.message,
                        "comm hook topk works on flat buckets; bucket 3 holds a sparse gradient");
}

TEST_MAIN()
