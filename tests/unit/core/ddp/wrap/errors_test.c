/* SPDX-License-Identifier: Apache-2.0 */
/* Every error of the catalogue (ERR-01…17): the occasion is PyTorch's, the text names parameters
** and says what to try. */
#include "core/ddp/wrap/ddp.h"
#include "core/hooks/hook.h"
#include "tests/unit/core/ddp/fixture.h"

#include <math.h>

static void two(lane *l)
{
    lane_add(l, "fc1.weight", CDDP_F32, 2);
    lane_add(l, "fc2.weight", CDDP_F32, 2);
}

/* RED-11, RED-12, TI-B-01, TI-A-19: the explicit check finds nothing before and behind a whole
** backward; the faulty backward ends normally with local gradients; the next forward fails, also
** inside no_sync, and so does the explicit check. */
LAB(error, unfinished_reduction_names_the_missing_parameters, 2) /* ERR-01 */
{
    two(l);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_check_reducer_finalized(l->ddp, &l->err));
    lane_iterate(l, 1.0);
    CHECK_OK(cddp_ddp_check_reducer_finalized(l->ddp, &l->err));
    lane_zero_grad(l, true);
    lane_forward(l);
    lane_grad(l, 0, 1.0 + l->r);
    lane_end(l);
    CHECK(lane_value(l, 0) == 1.0 + l->r);
    CHECK_FAILS(cddp_ddp_check_reducer_finalized(l->ddp, &l->err), CDDP_E_STATE,
                "1 of 2 parameters received no gradient ('fc2.weight')");
    CHECK_FAILS(cddp_ddp_forward_begin(l->ddp, true, &l->err), CDDP_E_STATE,
                "set find_unused_parameters");
    cddp_ddp_no_sync_begin(l->ddp);
    CHECK_FAILS(cddp_ddp_forward_begin(l->ddp, true, &l->err), CDDP_E_STATE, "'fc2.weight'");
    cddp_ddp_no_sync_end(l->ddp);
    cddp_ddp_logging log = {.size = sizeof log};
    CHECK_OK(cddp_ddp_get_logging(l->ddp, &log, &l->err));
    CHECK(log.has_error && strstr(log.error, "'fc2.weight'") != NULL); /* LOG-03 */
}

/* TI-B-18: one layer of three is not used. Without the search, which is the default, the second
** forward refuses; asked for, there is nothing to refuse. */
static void one_of_three_body(lane *l)
{
    static const char *const names[3] = {"fc1.weight", "fc2.weight", "fc3.weight"};
    const bool *asked = l->lab->data; /* for the search, and for views */
    CHECK(!l->options.find_unused_parameters);
    l->options.find_unused_parameters = asked[0];
    l->options.gradient_as_bucket_view = asked[1];
    for (int i = 0; i < 3; i++) lane_add(l, names[i], CDDP_F32, 2);
    lane_wrap(l);
    lane_reach(l, 3);
    for (int step = 0; step < 2; step++) {
        if (step == 1 && !asked[0]) {
            CHECK_FAILS(cddp_ddp_forward_begin(l->ddp, true, &l->err), CDDP_E_STATE,
                        "1 of 3 parameters received no gradient ('fc3.weight')");
            return;
        }
        lane_zero_grad(l, true);
        lane_forward(l);
        lane_grad(l, 1, 1.0 + l->r);
        lane_grad(l, 0, 1.0 + l->r);
        lane_end(l);
    }
    CHECK_OK(cddp_ddp_forward_begin(l->ddp, true, &l->err));
    CHECK(lane_value(l, 0) == 1.5 && lane_value(l, 1) == 1.5 && !lane_has(l, 2));
}
TEST(error, an_unused_layer_is_one_unless_the_search_is_asked_for)
{
    for (int k = 0; k < 4; k++) {
        bool asked[2] = {k % 2 == 1, k / 2 == 1};
        cd_test_row("search %d, views %d", asked[0], asked[1]);
        lab_of(2, one_of_three_body, asked);
    }
}

/* TI-B-09: upstream's nested module. A parameter without a gradient is named in full, also far
** down. One with a gradient is not named, nor one that is ignored. */
static void nested_body(lane *l)
{
    static const struct {
        const char *name;
        bool is_used;
    } module[9] = {{"sub_module.embedding_net.embedding.weight", false},
                   {"sub_module.embedding_net.lin.weight", false},
                   {"sub_module.lin.a.weight", true},
                   {"sub_module.lin.b.weight", false},
                   {"sub_module.bn.fc1.weight", true},
                   {"sub_module.bn.bn.weight", true},
                   {"sub_module.bn.bn.bias", true},
                   {"sub_module.bn.fc2.weight", true},
                   {"sub_module.lin_layer.weight", true}};
    static const char *const ignored[1] = {"sub_module.embedding_net.embedding.weight"};
    const bool ignores = l->lab->data != NULL;
    for (int i = 0; i < 9; i++) lane_add(l, module[i].name, CDDP_F32, 2);
    if (ignores) l->options.parameters_and_buffers_to_ignore = ignored, l->options.ignore_count = 1;
    lane_wrap(l);
    lane_forward(l);
    for (size_t i = 9; i-- > 0;)
        if (module[i].is_used) lane_grad(l, i, 1.0);
    lane_end(l);
    CHECK_FAILS(cddp_ddp_forward_begin(l->ddp, true, &l->err), CDDP_E_STATE,
                ignores ? "2 of 8 parameters received no gradient"
                        : "3 of 9 parameters received no gradient");
    for (int i = 0; i < 9; i++) {
        char quoted[64];
        snprintf(quoted, sizeof quoted, "'%s'", module[i].name);
        CHECK((strstr(l->err.message, quoted) != NULL) ==
              (!module[i].is_used && !(ignores && i == 0)));
    }
}
TEST(error, nested_parameters_without_a_gradient_are_named_in_full)
{
    lab_of(2, nested_body, NULL);
}
/* Where there is no room for all names, the others are counted. */
LAB(error, parameters_without_a_gradient_are_counted_where_they_are_too_many_to_name, 2)
{
    static char names[LAB_RANKS][LANE_PARAMETERS][24];
    for (size_t i = 0; i < LANE_PARAMETERS; i++) {
        snprintf(names[l->r][i], sizeof names[0][0], "layer.%02zu.long.weight", i);
        lane_add(l, names[l->r][i], CDDP_F32, 2);
    }
    lane_wrap(l);
    lane_forward(l);
    lane_grad(l, 0, 1.0);
    lane_end(l);
    CHECK_FAILS(cddp_ddp_forward_begin(l->ddp, true, &l->err), CDDP_E_STATE,
                "15 of 16 parameters received no gradient ('layer.01.long.weight', ");
    CHECK(strstr(l->err.message, "'layer.07.long.weight' and 8 more") != NULL);
}

TEST(error, nested_parameters_that_are_ignored_are_not_named)
{
    lab_of(2, nested_body, nested_body);
}

LAB(error, unfinished_reduction_with_a_graph_search_blames_the_loss, 2) /* ERR-02 */
{
    two(l);
    l->options.find_unused_parameters = true;
    lane_wrap(l);
    lane_forward(l); /* both reachable */
    lane_grad(l, 0, 1.0);
    lane_end(l);
    CHECK_FAILS(cddp_ddp_forward_begin(l->ddp, true, &l->err), CDDP_E_STATE,
                "not all outputs were used in the loss");
}

LAB(error, a_static_graph_that_loses_a_gradient_is_reported,
    2) /* ERR-02, ERR-05, STA-07, TI-B-05 */
{
    two(l);
    l->options.static_graph = true;
    lane_wrap(l);
    lane_iterate(l, 1.0);
    lane_forward(l);
    lane_grad(l, 0, 1.0);
    lane_end(l);
    CHECK_FAILS(cddp_ddp_forward_begin(l->ddp, true, &l->err), CDDP_E_STATE,
                "this graph is not static");
}

LAB(error, a_static_graph_that_gains_a_gradient_is_reported, 2) /* ERR-05 */
{
    two(l);
    l->options.static_graph = true;
    lane_wrap(l);
    lane_forward(l);
    lane_grad(l, 0, 1.0);
    lane_end(l);
    lane_forward(l);
    lane_accumulate(l, 1, 1.0);
    CHECK_FAILS(lane_try_hook(l, 1), CDDP_E_STATE, "the graph changed: 'fc2.weight'");
}

LAB(error, ready_twice_names_the_parameter, 2) /* ERR-03 */
{
    two(l);
    lane_wrap(l);
    lane_forward(l);
    lane_grad(l, 1, 1.0);
    lane_accumulate(l, 1, 1.0);
    CHECK_FAILS(lane_try_hook(l, 1), CDDP_E_STATE, "'fc2.weight' became ready twice");
    CHECK(strstr(l->err.message, "taken for unused") == NULL);
}

LAB(error, ready_after_being_declared_unused_gives_the_third_reason, 2) /* ERR-03, UNU-09 */
{
    two(l);
    l->options.find_unused_parameters = true;
    lane_wrap(l);
    lane_reach(l, 1);
    lane_forward(l);
    lane_grad(l, 0, 1.0);
    lane_accumulate(l, 1, 1.0);
    CHECK_FAILS(lane_try_hook(l, 1), CDDP_E_STATE, "taken for unused");
    CHECK_FAILS(cddp_ddp_backward_end(l->ddp, &l->err), CDDP_E_STATE, "taken for unused");
}

LAB(error, nothing_to_train_is_refused, 1) /* ERR-06, TI-A-03 */
{
    lane_add(l, "p", CDDP_F32, 2)->requires_grad = false;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_CONFIG, "no parameter requires a gradient");
}

LAB(error, a_gradient_of_another_dtype_is_refused, 1) /* ERR-08 */
{
    int64_t two_elements = 2;
    two(l);
    lane_wrap(l);
    lane_forward(l);
    cddp_tensor other = lane_tensor(l, CDDP_F64, &two_elements, 1, 1.0);
    l->grads[0].kind = CDDP_GRAD_DENSE;
    l->grads[0].value = other;
    CHECK_FAILS(lane_try_hook(l, 0), CDDP_E_STATE,
                "the gradient of 'fc1.weight' is f64, but its bucket holds f32");
    lane_release(l, &other);
    cddp_grad_drop(&l->grads[0]);
}

LAB(error, a_gradient_replaced_before_the_end_of_backward_is_refused, 1) /* ERR-09 */
{
    int64_t two_elements = 2;
    two(l);
    l->options.gradient_as_bucket_view = true;
    lane_wrap(l);
    cddp_tensor other = lane_tensor(l, CDDP_F32, &two_elements, 1, 5.0);
    lane_forward(l);
    lane_grad(l, 1, 1.0);
    lane_grad(l, 0, 1.0);
    cddp_tensor own = l->grads[0].value;
    l->grads[0].value = other;
    CHECK_FAILS(cddp_ddp_backward_end(l->ddp, &l->err), CDDP_E_STATE,
                "'fc1.weight' is no longer the bucket slice");
    l->grads[0].value = own;
    /* Replaced between iterations it is taken into the slice again (INT-04). */
    lane_zero_grad(l, false);
    l->grads[0].value = other;
    lane_forward(l);
    lane_grad(l, 1, 1.0);
    lane_grad(l, 0, 1.5);
    lane_end(l);
    CHECK(lane_value(l, 0) == 6.5);
    lane_release(l, &other);
}

static cddp_status return_too_little(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                     cddp_future *future, cddp_error *err)
{
    (void)self, (void)group, (void)err;
    future->result = cddp_tensor_slice(&bucket->buffer, 0, 1);
    return CDDP_OK;
}
static cddp_status return_nothing(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                  cddp_future *future, cddp_error *err)
{
    (void)self, (void)group, (void)err, (void)bucket, (void)future;
    return CDDP_OK;
}
static cddp_status fail_inside(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                               cddp_future *future, cddp_error *err)
{
    (void)self, (void)group, (void)bucket, (void)future;
    return cddp_error_set(err, CDDP_E_IO, "the hook's own words");
}

LAB(error, hooks_are_checked_at_registration, 1) /* ERR-11, HOOK-02, HOOK-03, TI-D-10, TI-D-12 */
{
    cddp_hook broken = {.size = sizeof broken, .abi = CDDP_HOOK_ABI, .name = "broken"};
    two(l);
    lane_wrap(l);
    CHECK_FAILS(cddp_ddp_register_comm_hook(l->ddp, NULL, NULL, NULL, &l->err), CDDP_E_ARG,
                "is NULL");
    CHECK_FAILS(cddp_ddp_register_comm_hook(l->ddp, &broken, NULL, NULL, &l->err), CDDP_E_ARG,
                "broken has no run function");
    broken.run = return_nothing;
    broken.flags = CDDP_HOOK_STATEFUL;
    CHECK_FAILS(cddp_ddp_register_comm_hook(l->ddp, &broken, NULL, NULL, &l->err), CDDP_E_ARG,
                "no save function");
    broken.flags = 0;
    broken.abi = 99;
    CHECK_FAILS(cddp_ddp_register_comm_hook(l->ddp, &broken, NULL, NULL, &l->err), CDDP_E_ARG,
                "abi 99");
    CHECK_FAILS(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find("allreduce"), NULL, "rank=2",
                                            &l->err),
                CDDP_E_CONFIG, "takes no options; got \"rank=2\"");
    CHECK_FAILS(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find("fp16_compress_wrapper"), NULL,
                                            NULL, &l->err),
                CDDP_E_CONFIG, "wraps another hook");
    CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find("allreduce"), NULL, NULL, &l->err));
    CHECK_FAILS(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find("noop"), NULL, NULL, &l->err),
                CDDP_E_STATE, "allreduce is registered already");
}

static void bad_result_body(lane *l) /* HOOK-04, HOOK-07, TI-D-11 */
{
    static const struct {
        cddp_status (*run)(void *, cddp_grad_bucket *, cddp_group *, cddp_future *, cddp_error *);
        cddp_status status;
        const char *words;
    } rows[3] = {{return_too_little, CDDP_E_STATE, "returned 1 elements for bucket 0, which has 4"},
                 {return_nothing, CDDP_E_STATE, "without a result"},
                 {fail_inside, CDDP_E_IO, "the hook's own words"}};
    for (int i = 0; i < 3; i++) {
        cddp_hook bad = {.size = sizeof bad,
                         .abi = CDDP_HOOK_ABI,
                         .name = "bad",
                         .run = rows[i].run};
        lane_wrap(l);
        CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, &bad, NULL, NULL, &l->err));
        lane_forward(l);
        lane_grad(l, 1, 1.0);
        lane_accumulate(l, 0, 1.0);
        cddp_status status = lane_try_hook(l, 0);
        if (status == CDDP_OK) status = cddp_ddp_backward_end(l->ddp, &l->err);
        CHECK(status == rows[i].status && strstr(l->err.message, rows[i].words) != NULL);
        lane_unwrap(l);
    }
}
LAB(error, hook_results_are_checked, 1)
{
    two(l);
    bad_result_body(l);
    lane_wrap(l);
}

LAB(error, sparse_expectations_are_checked, 1) /* ERR-12, SPA-01, SPA-03 */
{
    lane_add(l, "emb.weight", CDDP_F32, 4)->expect_sparse = true;
    lane_wrap(l);
    lane_forward(l);
    CHECK_FAILS(lane_try_hook(l, 0), CDDP_E_STATE,
                "'emb.weight' expects a sparse gradient but received none");
    lane_unwrap(l);
    lane_wrap(l);
    lane_forward(l);
    lane_accumulate(l, 0, 1.0);
    CHECK_FAILS(lane_try_hook(l, 0), CDDP_E_STATE, "received a dense one");
}

LAB(error, parameters_that_nothing_can_train_are_refused, 1) /* INI-03 */
{
    int64_t sizes[2] = {3, 2};
    two(l);
    cddp_parameter *first = &l->parameters[0], *second = &l->parameters[1];
    const cddp_parameter good[2] = {*first, *second};
    second->grad = first->grad;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_ARG,
                "'fc1.weight' and 'fc2.weight' are different tensors with one gradient slot");
    second->tensor = first->tensor; /* a shared parameter */
    CHECK_OK(lane_try_wrap(l));
    CHECK(cddp_ddp_variable_count(l->ddp) == 1);
    lane_unwrap(l);
    second->tensor.offset = 1; /* a view of its end is another one */
    second->tensor.sizes[0] = 1;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_ARG, "with one gradient slot: give each its own");
    *second = good[1];
    second->tensor.dtype = CDDP_I32;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_ARG,
                "'fc2.weight' is i32 and requires a gradient: only floating and complex");
    second->requires_grad = false; /* a table may be there; nobody trains it */
    CHECK_OK(lane_try_wrap(l));
    lane_unwrap(l);
    *second = good[1];
    second->tensor = cddp_tensor_of(l->device, good[1].tensor.storage, 0, CDDP_F32, sizes, 2);
    second->tensor.strides[0] = 0;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_ARG, "'fc2.weight' has stride 0 in dimension 0");
    second->tensor.sizes[0] = 1; /* one element shares nothing */
    CHECK_OK(lane_try_wrap(l));
    lane_unwrap(l);
    *second = good[1];
    second->tensor = cddp_tensor_of(l->device, good[1].tensor.storage, 0, CDDP_F32, sizes, 2);
    second->tensor.sizes[0] = INT64_MAX / 2;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_ARG, "'fc2.weight' has more elements than memory");
    second->tensor.sizes[0] = second->tensor.sizes[1] = INT64_C(1) << 40; /* each alone fits */
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_ARG, "'fc2.weight' has more elements than memory");
    *second = good[1];
    l->options.strict = true; /* PyTorch takes two parameters of one memory */
    second->tensor = good[0].tensor;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_CONFIG, "'fc1.weight' and 'fc2.weight' overlap in memory");
    second->tensor.offset++; /* in part */
    second->tensor.sizes[0]--;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_CONFIG, "'fc1.weight' and 'fc2.weight' overlap in memory");
    l->options.strict = false;
    second->tensor = good[0].tensor;
    CHECK_OK(lane_try_wrap(l));
    lane_unwrap(l);
    *second = good[1];
    lane_add_buffer(l, "mean", CDDP_F32, 1, 0.0)->sizes[0] = 4;
    l->buffers[0].tensor.strides[0] = 0;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_ARG, "'mean' has stride 0 in dimension 0");
    l->buffers[0].tensor.sizes[0] = 1;
}

static void cap_nan(cddp_ddp_options *o) { o->bucket_cap_mb = NAN; }
static void cap_above(cddp_ddp_options *o) { o->bucket_cap_mb = 1048577; }
static void cap_of_list(cddp_ddp_options *o)
{
    static const double caps[2] = {1, 0};
    o->bucket_cap_mb_list = caps;
    o->bucket_cap_mb_list_count = 2;
}
static void reduce_integers(cddp_ddp_options *o) { o->mixed_reduce_dtype = CDDP_I64; }
static void buffers_of_integers(cddp_ddp_options *o) { o->mixed_buffer_dtype = CDDP_U8; }
static void no_such_dtype(cddp_ddp_options *o)
{
    o->mixed_buffer_dtype = (cddp_dtype)(CDDP_DTYPE_COUNT + 1);
}
static void low_reductions_of_views(cddp_ddp_options *o)
{
    o->mixed_reduce_dtype = CDDP_F16;
    o->gradient_as_bucket_view = true;
}
static void average_of_nobody(cddp_ddp_options *o) { o->average_contributions = true; }
static void accumulate_statically(cddp_ddp_options *o)
{
    o->accumulate_in_hook = o->static_graph = true;
}
static void accumulate_low(cddp_ddp_options *o)
{
    o->accumulate_in_hook = true;
    o->mixed_param_dtype = CDDP_F16;
}
static void accumulate_reduced_low(cddp_ddp_options *o)
{
    o->accumulate_in_hook = true;
    o->mixed_reduce_dtype = CDDP_F16;
}

LAB(error, every_clause_of_an_option_is_checked, 1)
{
    static const struct {
        void (*set)(cddp_ddp_options *o);
        cddp_status status;
        const char *words;
    } rows[] = {
        {cap_nan, CDDP_E_CONFIG, "MiB; it must be above 0 and at most 1048576"},
        {cap_above, CDDP_E_CONFIG, "bucket_cap_mb is 1.04858e+06 MiB; it must be above 0"},
        {cap_of_list, CDDP_E_CONFIG, "an entry of bucket_cap_mb_list is 0 MiB"},
        {reduce_integers, CDDP_E_CONFIG, "mixed_reduce_dtype is i64"},
        {buffers_of_integers, CDDP_E_CONFIG, "mixed_buffer_dtype is u8"},
        {no_such_dtype, CDDP_E_ARG, "which is no dtype"},
        {low_reductions_of_views, CDDP_E_CONFIG, "gradient_as_bucket_view cannot be combined"},
        {average_of_nobody, CDDP_E_CONFIG, "average_contributions needs accumulate_in_hook"},
        {accumulate_statically, CDDP_E_CONFIG, "cannot be combined with static_graph"},
        {accumulate_low, CDDP_E_CONFIG, "cannot be combined with mixed precision"},
        {accumulate_reduced_low, CDDP_E_CONFIG, "cannot be combined with mixed precision"},
    };
    const cddp_ddp_options good = l->options;
    two(l);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        l->options = good;
        rows[i].set(&l->options);
        CHECK_FAILS(lane_try_wrap(l), rows[i].status, rows[i].words);
    }
    l->options = good;
    l->options.bucket_cap_mb = 1048576; /* the largest */
    lane_wrap(l);
}

LAB(error, options_are_checked, 1) /* ERR-15, INI-03 */
{
    static const char *const names[1] = {"fc1.weight"}, *const wrong[1] = {"fc9.weight"};
    const cddp_ddp_options good = l->options;
    two(l);
    l->options.sample_rate = 0;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_CONFIG, "sample_rate is 0");
    l->options = good;
    l->options.delay_all_reduce_named_params = names;
    l->options.delay_all_reduce_count = 1;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_CONFIG, "param_to_hook_all_reduce is missing");
    l->options = good;
    l->options.parameters_and_buffers_to_ignore = wrong;
    l->options.ignore_count = 1;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_CONFIG, "'fc9.weight', which is neither");
    l->options = good;
    l->options.bucket_cap_mb = -1;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_CONFIG, "bucket_cap_mb is -1");
    l->options = good;
    l->options.mixed_param_dtype = CDDP_I32;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_CONFIG, "mixed_param_dtype is i32");
    l->options = good;
    l->options.mixed_param_dtype = CDDP_F16;
    l->options.gradient_as_bucket_view = true;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_CONFIG, "cannot be combined with mixed precision");
    l->options = good;
    l->options.group = NULL;
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_CONFIG, "needs a process group");
    l->options = good;
    l->parameters[1].name = "fc1.weight";
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_ARG, "two parameters are called 'fc1.weight'");
    l->parameters[1].name = "fc2.weight";
    l->parameters[1].tensor.device = NULL; /* TI-B-22: a lazy parameter */
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_CONFIG, "'fc2.weight' is not initialised");
    l->parameters[1].tensor.device = l->device;
    lane_wrap(l);
    CHECK_FAILS(cddp_ddp_mark_variable_ready(l->ddp, 7, &l->err), CDDP_E_ARG, "variable 7 of 2");
    CHECK_FAILS(cddp_ddp_forward_end(l->ddp, NULL, &l->err), CDDP_E_STATE, "without forward_begin");
}

LAB(error, texts_survive_without_an_error_object, 1)
{
    cddp_ddp_logging log = {.size = sizeof log};
    two(l);
    lane_wrap(l);
    CHECK(cddp_ddp_mark_variable_ready(l->ddp, 7, NULL) == CDDP_E_ARG);
    CHECK_OK(cddp_ddp_get_logging(l->ddp, &log, &l->err));
    CHECK(log.has_error && strcmp(log.error, "variable 7 of 2") == 0);
}

LAB(error, a_dropped_gradient_inside_a_window_is_reported, 1) /* GRD-07 */
{
    two(l);
    l->options.find_unused_parameters = true;
    lane_wrap(l);
    cddp_ddp_no_sync_begin(l->ddp);
    lane_forward(l);
    lane_grad(l, 1, 1.0);
    lane_end(l);
    cddp_ddp_no_sync_end(l->ddp);
    lane_zero_grad(l, true);
    lane_reach(l, 1);
    lane_forward(l);
    lane_accumulate(l, 0, 1.0);
    CHECK_FAILS(lane_try_hook(l, 0), CDDP_E_STATE,
                "'fc2.weight' was used since the last synchronisation");
}

LAB(error, a_bucket_of_mixed_dtypes_is_refused, 1) /* ERR-13, BKT-17 */
{
    cd_bucket_layout layout = {0};
    cd_bucket_set set = {0};
    lane_add(l, "single", CDDP_F32, 2);
    lane_add(l, "double", CDDP_F64, 2);
    lane_wrap(l);
    CHECK_OK(cd_bucket_layout_init(&layout, 2, NULL, &l->err));
    layout.indices[1] = 1;
    layout.starts[1] = 2;
    layout.bucket_count = 1;
    layout.variable_count = 2;
    cd_bucket_set_spec spec = {.module = &l->ddp->module,
                               .layout = &layout,
                               .dtype = CDDP_DTYPE_COUNT};
    CHECK_FAILS(cd_bucket_set_init(&set, &spec, NULL, &l->err), CDDP_E_ARG,
                "bucket 0 mixes dtypes: 'single' is f32, 'double' is f64");
    cd_bucket_layout_fini(&layout);
}

TEST_MAIN()
