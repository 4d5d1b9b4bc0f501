/* SPDX-License-Identifier: Apache-2.0 */
/* Bad input: refused in one sentence that names both sides. */
#include "tests/unit/core/fsdp/fixture.h"

static void differ(lane *l)
{
    const int what = *(const int *)l->lab->data;
    static const char *const only_a[] = {"a"}, *const only_b[] = {"b"};
    toy t;
    const char *words = NULL;
    toy_init(&t, l);
    const bool odd = l->r == 1;
    const int64_t shape[] = {3, 5};
    switch (what) {
    case 0:
        if (odd) t.options.strategy = CDDP_FSDP_SHARD_GRAD_OP;
        words = "rank 1 has unit '(root)' SHARD_GRAD_OP of 2 parameters param_dtype f32 "
                "reduce_dtype f32, rank 0 has unit '(root)' FULL_SHARD";
        break;
    case 1:
        if (odd)
            l->parameters[2].tensor =
                cddp_tensor_of(l->device, l->parameters[2].tensor.storage, 0, CDDP_F32, shape, 2);
        words = "rank 1 has parameter 'a.weight' f32 [3,5] requires_grad, rank 0 has parameter "
                "'a.weight' f32 [5,3]";
        break;
    case 2:
        t.options.wrap.word_count = odd ? 1 : 2;
        t.options.wrap.words = odd ? only_a : toy_units;
        words = "rank 1 has 2 units, rank 0 has 3 units";
        break;
    case 3:
        if (odd) l->parameters[5].name = "b.offset";
        words = "rank 1 has parameter 'b.offset' f32 [4] requires_grad, rank 0 has parameter "
                "'b.bias'";
        break;
    case 4:
        t.options.backward_prefetch = odd ? CDDP_FSDP_PREFETCH_NONE : CDDP_FSDP_BACKWARD_PRE;
        words = "rank 1 has backward_prefetch=0, rank 0 has backward_prefetch=1";
        break;
    case 5:
        t.options.wrap.word_count = 1;
        t.options.wrap.words = odd ? only_b : only_a;
        words = "rank 1 has unit 'b', rank 0 has unit 'a'";
        break;
    case 6:
        t.options.limit_all_gathers = !odd;
        words = "rank 1 has limit_all_gathers=0, rank 0 has limit_all_gathers=1";
        break;
    case 7:
        t.options.cpu_offload.offload_params = odd;
        words = "rank 1 has offload_params=1, rank 0 has offload_params=0";
        break;
    default:
        CHECK(false);
    }
    lane_mark(l);
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_MISMATCH, words);
    CHECK(lane_posts(l, CDDP_OP_ALLGATHER) == 1); /* digests; nothing of the model was sent */
    for (size_t e = 0; e < 15; e++)
        CHECK(((float *)l->parameters[2].tensor.storage)[e] == toy_initial(2, (int64_t)e));
    if (l->r == 1 && what == 3) l->parameters[5].name = "b.bias";
    toy_fini(&t);
}
TEST(create, refuses_what_ranks_say_differently)
{
    for (int what = 0; what < 8; what++) {
        cd_test_row("difference %d", what);
        lab_of(3, differ, &what);
    }
}

/* Three ranks and one are no groups of shards: of four ranks, three have one copy, and the fourth
** another. */
static void wraps_in_groups_that_do_not_divide(lane *l)
{
    static const uint32_t most[] = {0, 1, 2}, last[] = {3}, firsts[] = {0, 3}, second[] = {1},
                          third[] = {2};
    const bool alone = l->r == 3;
    const cddp_group_subset subsets[] = {{sizeof(cddp_group_subset), alone ? "the last" : "most",
                                          alone ? 1 : 3, alone ? last : most},
                                         {sizeof(cddp_group_subset),
                                          l->r % 3 == 0 ? "firsts"
                                          : l->r == 1   ? "second"
                                                        : "third",
                                          l->r % 3 == 0 ? 2 : 1,
                                          l->r % 3 == 0 ? firsts
                                          : l->r == 1   ? second
                                                        : third}};
    cddp_group *groups[2] = {NULL, NULL};
    toy t;
    toy_init(&t, l);
    for (int i = 0; i < 2; i++)
        CHECK_OK(cddp_group_create_subset(l->group, &subsets[i], &groups[i], &l->err));
    t.options.group = groups[0];
    t.options.replicate_group = groups[1];
    t.options.strategy = CDDP_FSDP_HYBRID_SHARD;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_MISMATCH,
                alone
                    ? "replicas shard different models: rank 0 has a shard group of 3 ranks and 2 "
                      "replicas of it, rank 1 has a shard group of 1 rank"
                    : "rank 0 has a shard group of 3 ranks and 2 replicas of it, rank 1 has a "
                      "shard group of 3 ranks and 1 replica of it");
    toy_fini(&t);
    cddp_group_destroy(groups[1]);
    cddp_group_destroy(groups[0]);
}
TEST(create, refuses_groups_that_do_not_divide)
{
    lab_of(4, wraps_in_groups_that_do_not_divide, NULL);
}

/* Ranks 0 and 1 have one copy and differ; ranks 2 and 3 have another, and learn it from them. */
static void wraps_beside_a_group_that_differs(lane *l)
{
    static const char *const only_a[] = {"a"};
    const uint32_t own[] = {l->r / 2 * 2, l->r / 2 * 2 + 1}, same[] = {l->r % 2, l->r % 2 + 2};
    const cddp_group_subset subsets[] = {{sizeof(cddp_group_subset), l->r < 2 ? "copy 0" : "copy 1",
                                          2, own},
                                         {sizeof(cddp_group_subset),
                                          l->r % 2 == 0 ? "shard 0" : "shard 1", 2, same}};
    cddp_group *groups[2] = {NULL, NULL};
    toy t;
    toy_init(&t, l);
    for (int i = 0; i < 2; i++)
        CHECK_OK(cddp_group_create_subset(l->group, &subsets[i], &groups[i], &l->err));
    t.options.group = groups[0];
    t.options.replicate_group = groups[1];
    t.options.strategy = CDDP_FSDP_HYBRID_SHARD;
    if (l->r == 1) {
        t.options.wrap.words = only_a;
        t.options.wrap.word_count = 1;
    }
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_MISMATCH,
                l->r < 2    ? "rank 0 has 3 units, rank 1 has 2 units"
                : l->r == 2 ? "rank 0 has a shard group whose ranks differ, rank 1 has shard 0 of 2"
                            : "rank 0 has 2 units, rank 1 has 3 units");
    toy_fini(&t);
    cddp_group_destroy(groups[1]);
    cddp_group_destroy(groups[0]);
}
TEST(create, of_every_copy_ends_where_one_differs)
{
    lab_of(4, wraps_beside_a_group_that_differs, NULL);
}

static void is_refused_alone(lane *l)
{
    static const char *const none[] = {"c.bias"};
    const cddp_fsdp_unit_options lost = {"c", CDDP_FSDP_FULL_SHARD,
                                         cddp_fsdp_mixed_precision_default()};
    toy t;
    toy_init(&t, l);
    const cddp_fsdp_options good = t.options;
    l->parameters[3].requires_grad = false;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_CONFIG,
                "'a.weight' requires a gradient and 'a.bias' does not");
    l->parameters[3].requires_grad = true;
    t.options.strategy = CDDP_FSDP_HYBRID_SHARD;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_CONFIG, "is HYBRID_SHARD, and replicate_group is not");
    t.options = good;
    t.options.replicate_group = l->group;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_CONFIG, "is FULL_SHARD, and replicate_group is given");
    t.options = good;
    t.options.ignored_parameters = none;
    t.options.ignored_count = 1;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_CONFIG, "'c.bias' is to be ignored, but no parameter");
    t.options = good;
    t.options.unit_options = &lost;
    t.options.unit_options_count = 1;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_CONFIG, "names 'c', which is no unit");
    const cddp_fsdp_unit_options twice[] = {{"a", CDDP_FSDP_FULL_SHARD,
                                             cddp_fsdp_mixed_precision_default()},
                                            {"a", CDDP_FSDP_SHARD_GRAD_OP,
                                             cddp_fsdp_mixed_precision_default()}};
    t.options.unit_options = twice;
    t.options.unit_options_count = 2;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_CONFIG, "unit_options names 'a' twice");
    t.options = good;
    t.options.mixed_precision.param_dtype = CDDP_I32;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_CONFIG, "param_dtype of unit '' is i32");
    t.options = good;
    l->parameters[4].grad = NULL;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_ARG, "'b.weight' requires a gradient but has no");
    l->parameters[4].grad = l->parameters[3].grad;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_CONFIG,
                "'a.bias' and 'b.weight' share their gradient slot but not their storage");
    l->parameters[4].grad = &l->grads[4];
    l->parameters[4].name = "a.bias";
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_ARG, "two parameters are named 'a.bias': 3 and 4");
    l->parameters[4].name = "b.weight";
    t.options.use_orig_params = true;
    t.options.layout = CDDP_FSDP_ROWS;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_CONFIG, "CDDP_FSDP_ROWS has none");
    toy_fini(&t);
}
TEST(create, refuses_what_cannot_be_cut) { lab_of(2, is_refused_alone, NULL); }

static void each_option_is_refused(lane *l)
{
    cddp_fsdp_options o[12];
    const struct {
        cddp_status status;
        const char *words;
    } rows[12] = {{CDDP_E_ARG, "prefetch_numel -1"},
                  {CDDP_E_ARG, "live_numel_max -1"},
                  {CDDP_E_ARG, "persistence_threshold -1"},
                  {CDDP_E_CONFIG, "persistence_threshold with replicate_group"},
                  {CDDP_E_ARG, "strategy 99"},
                  {CDDP_E_ARG, "layout 99"},
                  {CDDP_E_ARG, "backward_prefetch 99"},
                  {CDDP_E_ARG, "order_check 99"},
                  {CDDP_E_CONFIG, "buffer_dtype is i64"},
                  {CDDP_E_ARG, "cddp_fsdp_create: group is NULL"},
                  {CDDP_E_ARG, "cddp_fsdp_create: parameters is NULL"},
                  {CDDP_E_ARG, "cddp_fsdp_create: buffers is NULL"}};
    toy t;
    toy_init(&t, l);
    for (size_t i = 0; i < 12; i++) o[i] = t.options;
    o[0].prefetch_numel = -1;
    o[1].live_numel_max = -1;
    o[2].persistence_threshold = -1;
    o[3].persistence_threshold = 1;
    o[3].replicate_group = l->group;
    o[4].strategy = (cddp_fsdp_strategy)99;
    o[5].layout = (cddp_fsdp_layout)99;
    o[6].backward_prefetch = (cddp_fsdp_prefetch)99;
    o[7].order_check = (cddp_fsdp_order_check)99;
    o[8].buffer_dtype = CDDP_I64;
    o[9].group = NULL;
    o[10].parameters = NULL;
    o[11].buffer_count = 1;
    for (size_t i = 0; i < 12; i++) {
        t.options = o[i];
        CHECK_FAILS(toy_try_wrap(&t), rows[i].status, rows[i].words);
    }
    toy_fini(&t);
}
TEST(create, refuses_each_option_that_cannot_be) { lab_of(1, each_option_is_refused, NULL); }

/* A parameter of four elements from element `first` of another one's storage. */
static cddp_tensor within(const cddp_tensor *t, int64_t first)
{
    const int64_t four = 4;
    return cddp_tensor_of(t->device, t->storage, t->offset + first, t->dtype, &four, 1);
}

static void overlaps(lane *l)
{
    static const char *const b_bias[] = {"b.bias"};
    const int64_t square[] = {2, 2};
    toy t;
    toy_init(&t, l);
    cddp_parameter *weight = &l->parameters[4], *bias = &l->parameters[5];
    const cddp_parameter own = *bias, third = l->parameters[3];
    t.options.wrap = cddp_fsdp_wrap_policy_default();
    bias->tensor = within(&weight->tensor, 16);
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_CONFIG, "'b.weight' and 'b.bias' overlap in memory");
    /* the same memory by another address */
    bias->tensor.storage = (float *)weight->tensor.storage + 15;
    bias->tensor.offset = 0;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_CONFIG, "'b.weight' and 'b.bias' overlap in memory");
    t.options.ignored_parameters = b_bias;
    t.options.ignored_count = 1;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_CONFIG, "'b.weight' and 'b.bias' overlap in memory");
    *bias = own;
    l->parameters[3] = own; /* "a.bias" is "b.bias", as which it is ignored */
    l->parameters[3].name = "a.bias";
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_CONFIG, "'b.bias' is ignored and 'a.bias' is not");
    t.options.ignored_count = 0;
    l->parameters[3].tensor = cddp_tensor_of(l->device, own.tensor.storage, 0, CDDP_F32, square, 2);
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_CONFIG,
                "'a.bias' is [2,2] and 'b.bias' is [4], of one storage");
    l->parameters[3].tensor = own.tensor;
    l->parameters[3].requires_grad = false;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_CONFIG, "'b.bias' requires a gradient and 'a.bias' does");
    l->parameters[3].requires_grad = true;
    cddp_buffer buffers[4] = {{.name = "mean", .tensor = within(&weight->tensor, 2)},
                              {.name = "mean", .tensor = lane_tensor(l, CDDP_F32, square, 2, 0)}};
    buffers[2] = (cddp_buffer){.name = "count", .tensor = buffers[1].tensor};
    buffers[3] = buffers[2];
    t.options.buffers = buffers;
    t.options.buffer_count = 2;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_CONFIG, "buffer 'mean' overlaps parameter 'b.weight'");
    const cddp_tensor view = buffers[0].tensor;
    buffers[0].tensor = buffers[1].tensor;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_ARG, "two buffers are named 'mean': 0 and 1");
    buffers[1].name = "weight";
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_ARG, "parameter 0 and buffer 1 are both named 'weight'");
    buffers[1].name = "variance";
    t.options.buffer_count = 4;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_ARG, "two buffers are named 'count': 2 and 3");
    t.options.buffer_count = 2;
    CHECK_OK(toy_try_wrap(&t)); /* one parameter by two names, and buffers beside it */
    CHECK(view.storage == weight->tensor.storage);
    toy_fini(&t);
    l->parameters[3] = third;
    lane_release(l, &buffers[1].tensor);
}
static void is_no_tensor(lane *l)
{
    toy t;
    toy_init(&t, l);
    cddp_tensor *p = &l->parameters[2].tensor;
    const cddp_tensor good = *p;
    cddp_buffer buffer = {.name = "mean", .tensor = good};
    p->dim_count = 99;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_ARG, "parameter 'a.weight' has 99 dimensions; at most ");
    *p = good;
    p->sizes[1] = -3;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_ARG, "'a.weight' has size -3 in dimension 1");
    *p = good;
    p->offset = -2;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_ARG, "'a.weight' begins 2 elements before its storage");
    *p = good;
    p->dtype = (cddp_dtype)77;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_UNSUPPORTED, "'a.weight' has dtype ");
    *p = good;
    t.options.buffers = &buffer;
    t.options.buffer_count = 1;
    buffer.tensor.dim_count = 99;
    CHECK_FAILS(toy_try_wrap(&t), CDDP_E_ARG, "buffer 'mean' has 99 dimensions");
    toy_fini(&t);
}
TEST(create, refuses_what_is_no_tensor) { lab_of(1, is_no_tensor, NULL); }

TEST(create, refuses_parameters_that_overlap) { lab_of(2, overlaps, NULL); } /* FPM-10, FSD-20 */

static void out_of_order(lane *l)
{
    toy t;
    toy_init(&t, l);
    toy_wrap(&t);
    CHECK_FAILS(cddp_fsdp_post_forward(t.fsdp, TOY_A, true, &l->err), CDDP_E_STATE,
                "the forward of 'a' ends, and has not begun");
    CHECK_FAILS(cddp_fsdp_pre_backward(t.fsdp, TOY_A, &l->err), CDDP_E_STATE,
                "no forward since the last backward");
    CHECK_FAILS(cddp_fsdp_post_backward(t.fsdp, TOY_A, &l->err), CDDP_E_STATE,
                "the backward of 'a' ends, and has not begun");
    CHECK_FAILS(cddp_fsdp_backward_end(t.fsdp, &l->err), CDDP_E_STATE, "no backward has begun");
    CHECK_FAILS(cddp_fsdp_pre_forward(t.fsdp, 3, true, &l->err), CDDP_E_ARG, "unit 3 of 3");
    CHECK_OK(cddp_fsdp_pre_forward(t.fsdp, TOY_ROOT, true, &l->err));
    CHECK_FAILS(cddp_fsdp_pre_forward(t.fsdp, TOY_ROOT, true, &l->err), CDDP_E_STATE,
                "the forward of '(root)' begins, and the one before has not ended");
    CHECK_FAILS(cddp_fsdp_no_sync_begin(t.fsdp, &l->err), CDDP_E_STATE, "between iterations");
    CHECK(cddp_fsdp_parameter(t.fsdp, 2) == NULL && cddp_fsdp_parameter(t.fsdp, 0) != NULL);
    toy_forward_unit(&t, TOY_A);
    toy_forward_unit(&t, TOY_B);
    CHECK_OK(cddp_fsdp_post_forward(t.fsdp, TOY_ROOT, true, &l->err));
    CHECK_OK(cddp_fsdp_pre_backward(t.fsdp, TOY_B, &l->err));
    CHECK_FAILS(cddp_fsdp_backward_end(t.fsdp, &l->err), CDDP_E_STATE,
                "the iteration ends inside the backward of 'b'");
    toy_gradients_of(&t, TOY_B, 0);
    CHECK_OK(cddp_fsdp_post_backward(t.fsdp, TOY_B, &l->err));
    CHECK_FAILS(cddp_fsdp_pre_backward(t.fsdp, TOY_B, &l->err), CDDP_E_STATE,
                "the backward of 'b' begins twice");
    /* refused calls changed nothing: the iteration ends as any other */
    CHECK_OK(cddp_fsdp_pre_backward(t.fsdp, TOY_A, &l->err));
    toy_gradients_of(&t, TOY_A, 0);
    CHECK_OK(cddp_fsdp_post_backward(t.fsdp, TOY_A, &l->err));
    CHECK_OK(cddp_fsdp_pre_backward(t.fsdp, TOY_ROOT, &l->err));
    toy_gradients_of(&t, TOY_ROOT, 0);
    CHECK_OK(cddp_fsdp_post_backward(t.fsdp, TOY_ROOT, &l->err));
    CHECK_FAILS(cddp_fsdp_pre_forward(t.fsdp, TOY_ROOT, true, &l->err), CDDP_E_STATE,
                "the forward of '(root)' begins, and its backward of this iteration is over: call "
                "cddp_fsdp_backward_end");
    CHECK_OK(cddp_fsdp_backward_end(t.fsdp, &l->err));
    const int step = 0;
    toy_step(&t);
    toy_step_alone(&t, l->w, &step, 1);
    toy_check_padding(&t);
    toy_fini(&t);
}
TEST(iteration, refuses_a_unit_out_of_order) { lab_of(2, out_of_order, NULL); } /* FSH-19 */

/* A program's own tensor in a slot. */
static void put_gradient(lane *l, cddp_grad *slot, const cddp_tensor *value)
{
    (void)l;
    cddp_grad_drop(slot);
    slot->kind = CDDP_GRAD_DENSE;
    slot->value = *value;
}

typedef struct mishap {
    const char *name, *words;
    int64_t sizes[2];
    uint32_t dims;
    bool is_early, is_of_shard, is_fine;
} mishap;

/* All ranks do the same; who is first aborts the others with its sentence. */
static void gradient_is_wrong(lane *l)
{
    const mishap *m = l->lab->data;
    toy t;
    cddp_parameter flat;
    toy_init(&t, l);
    toy_wrap(&t);
    cddp_tensor own = lane_tensor(l, CDDP_F32, m->sizes, m->dims, 1.0);
    toy_forward(&t);
    if (m->is_early) put_gradient(l, &l->grads[4], &own);
    cddp_status status = cddp_fsdp_pre_backward(t.fsdp, TOY_B, &l->err);
    if (status == CDDP_OK && !m->is_early && !m->is_of_shard) put_gradient(l, &l->grads[4], &own);
    if (status == CDDP_OK) status = cddp_fsdp_post_backward(t.fsdp, TOY_B, &l->err);
    if (status == CDDP_OK) status = cddp_fsdp_backward_end(t.fsdp, &l->err);
    if (m->is_of_shard && status == CDDP_OK) {
        CHECK_OK(cddp_fsdp_flat(t.fsdp, TOY_B, &flat, &l->err));
        put_gradient(l, flat.grad, &own);
        CHECK_FAILS(cddp_fsdp_check_step(t.fsdp, &l->err), CDDP_E_ARG, m->words);
        status = cddp_fsdp_clip_grad_norm(t.fsdp, 1, 2, NULL, &l->err);
        flat.grad->kind = CDDP_GRAD_UNDEFINED;
    }
    CHECK(m->is_fine ? status == CDDP_OK && l->grads[4].kind == CDDP_GRAD_UNDEFINED
                     : status != CDDP_OK && strstr(l->err.message, m->words) != NULL);
    l->grads[4].kind = CDDP_GRAD_UNDEFINED;
    toy_fini(&t);
    lane_release(l, &own);
}
TEST(gradient, that_does_not_fit_is_named)
{
    static const mishap mishaps[] = {
        {.name = "its own tensor", .sizes = {4, 5}, .dims = 2, .is_fine = true},
        {.name = "a flat one", .sizes = {20}, .dims = 1, .is_fine = true},
        {"another shape",
         "the gradient of 'b.weight' is f32 [5,4]; unit 'b' takes dense f32 [4,5]",
         {5, 4},
         2,
         false,
         false,
         false},
        {"too few",
         "the gradient of 'b.weight' is f32 [5]; unit 'b' takes dense f32 [4,5]",
         {5},
         1,
         false,
         false,
         false},
        {"too early",
         "'b.weight' has a gradient before the backward of its unit 'b' begins",
         {4, 5},
         2,
         true,
         false,
         false},
        {"another shard",
         "the gradient of the shard of 'b' was replaced by f32 with 7 elements",
         {7},
         1,
         false,
         true,
         false},
    };
    for (size_t i = 0; i < sizeof mishaps / sizeof mishaps[0]; i++) {
        mishap m = mishaps[i];
        cd_test_row("%s", m.name);
        lab_of(2, gradient_is_wrong, &m);
    }
}

/* The other rank goes on: it ends, and knows why. */
static void clips_alone(lane *l)
{
    toy t;
    toy_init(&t, l);
    toy_wrap(&t);
    toy_iterate(&t, 0);
    if (l->r == 0) {
        CHECK_FAILS(cddp_fsdp_clip_grad_norm(t.fsdp, 1, 2, NULL, &l->err), CDDP_E_MISMATCH,
                    "rank 0 received 20 bytes from rank 1 where it expected 8");
    } else {
        cddp_status status = cddp_fsdp_pre_forward(t.fsdp, TOY_ROOT, true, &l->err);
        if (status == CDDP_OK) status = cddp_fsdp_pre_forward(t.fsdp, TOY_A, true, &l->err);
        CHECK(status == CDDP_E_ABORTED);
        CHECK(strstr(l->err.message, "rank 0 aborted the group") != NULL);
    }
    toy_fini(&t);
}
TEST(clip, of_one_rank_alone_ends_all) { lab_of(2, clips_alone, NULL); }

/* The first time by another limit, then by another norm. */
static void clips_in_another_way(lane *l)
{
    toy t;
    const bool odd = l->r == 1;
    const int what = *(const int *)l->lab->data;
    toy_init(&t, l);
    if (what == 2) t.options.order_check = CDDP_FSDP_ORDER_EVERY_ITERATION;
    toy_wrap(&t);
    toy_iterate(&t, 0);
    if (what == 2) CHECK_OK(cddp_fsdp_clip_grad_norm(t.fsdp, 1, 2, NULL, &l->err));
    const cddp_status status = cddp_fsdp_clip_grad_norm(t.fsdp, odd && what != 1 ? 0.5 : 1,
                                                        odd && what == 1 ? 3 : 2, NULL, &l->err);
    CHECK(status == CDDP_E_MISMATCH || status == CDDP_E_ABORTED);
    CHECK(strstr(l->err.message, " of group 'world' has another one than max_norm ") != NULL);
    toy_fini(&t);
}
TEST(clip, in_two_ways_is_refused)
{
    for (int what = 0; what < 3; what++) {
        cd_test_row("way %d", what);
        lab_of(2, clips_in_another_way, &what);
    }
}

/* Rank 1 runs b before a: equal on ranks 0 and 2. */
static void diverge(lane *l)
{
    const int iteration = *(const int *)l->lab->data;
    toy t;
    toy_init(&t, l);
    toy_wrap(&t);
    for (int step = 0; step < iteration; step++) toy_iterate(&t, step);
    CHECK_OK(cddp_fsdp_pre_forward(t.fsdp, TOY_ROOT, true, &l->err));
    cddp_status status = cddp_fsdp_pre_forward(t.fsdp, l->r == 1 ? TOY_B : TOY_A, true, &l->err);
    if (iteration == 0) {
        CHECK(status == CDDP_E_MISMATCH);
        CHECK(strstr(l->err.message, "rank 0 gathers 'a', rank 1 gathers 'b'") != NULL);
    } else if (l->r == 1) {
        CHECK(status == CDDP_E_MISMATCH);
        CHECK(strstr(l->err.message,
                     "forward 2 of this iteration is 'b', and that of the first one "
                     "was 'a'") != NULL);
    } else {
        CHECK(status != CDDP_OK); /* rank 1 aborted the group */
    }
    /* F4: the first failure is final */
    const cddp_status again = cddp_fsdp_pre_forward(t.fsdp, TOY_B, true, &l->err);
    CHECK(again == status);
    toy_fini(&t);
}
TEST(order, of_one_rank_that_departs_ends_all) /* FSH-13, FSH-14 */
{
    for (int iteration = 0; iteration < 3; iteration++) {
        cd_test_row("iteration %d", iteration);
        lab_of(3, diverge, &iteration);
    }
}

/* Two models of the same units and sizes in one group: rank 1 begins with the other one. */
static void begins_with_the_other(lane *l)
{
    const bool departs = *(const bool *)l->lab->data;
    cddp_fsdp *pair[2] = {NULL, NULL};
    toy t;
    toy_init(&t, l);
    for (int i = 0; i < 2; i++) CHECK_OK(cddp_fsdp_create(&t.options, &pair[i], &l->err));
    cddp_status status = CDDP_OK;
    for (int i = 0; i < 2 && status == CDDP_OK; i++) {
        cddp_fsdp *f = pair[departs && l->r == 1 ? 1 - i : i];
        status = cddp_fsdp_pre_forward(f, TOY_ROOT, true, &l->err);
        if (status == CDDP_OK) CHECK_OK(cddp_fsdp_post_forward(f, TOY_ROOT, true, &l->err));
    }
    CHECK((status == CDDP_OK) == !departs);
    if (departs)
        CHECK(strstr(l->err.message,
                     "rank 0 gathers '(root)', rank 1 gathers a unit of another one") != NULL);
    t.fsdp = pair[0];
    toy_fini(&t);
    cddp_fsdp_destroy(pair[1]);
}
TEST(order, of_two_models_in_one_group_is_compared) /* FSH-13 */
{
    for (int departs = 0; departs < 2; departs++) {
        const bool value = departs != 0;
        lab_of(3, begins_with_the_other, (void *)&value);
    }
}

/* A gradient that one rank alone has none of, in a whole unit: FPM-08. */
static void leaves_out(lane *l)
{
    toy t;
    toy_init(&t, l);
    toy_wrap(&t);
    toy_iterate(&t, 0);
    toy_forward(&t);
    cddp_status status = cddp_fsdp_pre_backward(t.fsdp, TOY_B, &l->err);
    if (l->r != 1 && status == CDDP_OK) toy_gradients_of(&t, TOY_B, 1);
    if (status == CDDP_OK) status = cddp_fsdp_post_backward(t.fsdp, TOY_B, &l->err);
    if (l->r == 1) {
        CHECK(status == CDDP_E_MISMATCH);
        CHECK(strstr(l->err.message, "backward 1 of this iteration is 'b' without a gradient, and "
                                     "that of the first one was 'b'") != NULL);
    } else { /* ends at the latest where it waits for the reduction */
        if (status == CDDP_OK) status = cddp_fsdp_pre_backward(t.fsdp, TOY_A, &l->err);
        if (status == CDDP_OK) toy_gradients_of(&t, TOY_A, 1);
        if (status == CDDP_OK) status = cddp_fsdp_post_backward(t.fsdp, TOY_A, &l->err);
        if (status == CDDP_OK) status = cddp_fsdp_backward_end(t.fsdp, &l->err);
        CHECK(status == CDDP_E_ABORTED);
    }
    toy_fini(&t);
}
TEST(order, of_reductions_is_checked_too) { lab_of(3, leaves_out, NULL); } /* FPM-08 */

/* Rank 1 is gone between a gather and its free: its peers end, in a collective that misses it. */
static void dies(lane *l)
{
    toy t;
    toy_init(&t, l);
    toy_wrap(&t);
    toy_iterate(&t, 0);
    CHECK_OK(cddp_fsdp_pre_forward(t.fsdp, TOY_ROOT, true, &l->err));
    if (l->r != 1) {
        const cddp_status status = cddp_fsdp_pre_forward(t.fsdp, TOY_A, true, &l->err);
        CHECK(status != CDDP_OK && strstr(l->err.message, "rank 1") != NULL);
        CHECK(cddp_fsdp_pre_forward(t.fsdp, TOY_B, true, &l->err) == status); /* F4 */
    }
    toy_fini(&t);
}
TEST(death, of_a_rank_ends_its_peers_by_name)
{
    lab b = {.world_size = 3, .body = dies, .may_fail = true};
    lab_run(&b);
    assert_int_equal(b.results[1].end, CDDP_RANK_RETURNED);
    for (uint32_t r = 0; r < 3; r += 2)
        assert_non_null(strstr(b.results[r].error.message, "for rank 1, which has ended"));
}

/* A forward with gradients and no backward, a step, and the forward after it. */
static void uses_old_parameters(lane *l)
{
    toy t;
    toy_init(&t, l);
    t.options.order_check = CDDP_FSDP_ORDER_NONE;
    toy_wrap(&t);
    toy_iterate(&t, 0);
    toy_forward(&t); /* an evaluation that forgot no_grad */
    for (uint32_t k = 0; k < TOY_UNITS; k++) {
        cddp_parameter flat;
        CHECK_OK(cddp_fsdp_flat(t.fsdp, k, &flat, &l->err));
        for (int64_t e = 0; e < cddp_tensor_numel(&flat.tensor); e++)
            ((float *)flat.tensor.storage)[e] -= 1;
    }
    CHECK_FAILS(cddp_fsdp_pre_forward(t.fsdp, TOY_ROOT, true, &l->err), CDDP_E_STATE,
                "the shard of '(root)' was changed while its full copy stayed");
    toy_fini(&t);
}
TEST(freshness, of_full_parameters_is_checked)
{
    lab_of(2, uses_old_parameters, NULL);
} /* FSH-15 */

static void steps_inside_a_window(lane *l)
{
    toy t;
    toy_init(&t, l);
    t.options.strategy = CDDP_FSDP_SHARD_GRAD_OP;
    toy_wrap(&t);
    toy_iterate(&t, 0);
    CHECK_OK(cddp_fsdp_no_sync_begin(t.fsdp, &l->err));
    toy_iterate(&t, 1);
    cddp_parameter flat;
    CHECK_OK(cddp_fsdp_flat(t.fsdp, TOY_ROOT, &flat, &l->err));
    ((float *)flat.tensor.storage)[0] += 1;
    CHECK_FAILS(cddp_fsdp_pre_forward(t.fsdp, TOY_ROOT, true, &l->err), CDDP_E_STATE,
                "no step inside a no_sync window");
    toy_fini(&t);
}
TEST(freshness, of_a_window_is_checked) { lab_of(2, steps_inside_a_window, NULL); } /* FSY-03 */

/* Whoever computes on several devices may name a stream of another one. */
static void lets_a_stream_wait(lane *l)
{
    toy t;
    toy_init(&t, l);
    toy_wrap(&t);
    CHECK_OK(cddp_fsdp_pre_forward(t.fsdp, TOY_ROOT, true, &l->err));
    CHECK_OK(cddp_fsdp_wait_unit(t.fsdp, TOY_ROOT, (cddp_stream *)(void *)&t, &l->err));
    toy_fini(&t);
}
TEST(wait, on_a_device_that_works_at_once_is_over) { lab_of(2, lets_a_stream_wait, NULL); }

static void leaves_a_window(lane *l)
{
    toy t;
    toy_init(&t, l);
    toy_wrap(&t);
    CHECK_OK(cddp_fsdp_check_step(t.fsdp, &l->err));
    CHECK_OK(cddp_fsdp_no_sync_begin(t.fsdp, &l->err));
    toy_iterate(&t, 0);
    CHECK_FAILS(cddp_fsdp_check_step(t.fsdp, &l->err), CDDP_E_STATE,
                "'(root)' has gradients of a no_sync window that were not reduced");
    CHECK_OK(cddp_fsdp_no_sync_end(t.fsdp, &l->err));
    toy_fini(&t);
}
TEST(step, behind_a_window_is_refused_by_the_first_unit) { lab_of(2, leaves_a_window, NULL); }

static void add_to_shard(toy *t, uint32_t unit, int64_t element)
{
    lane *l = t->l;
    cddp_parameter flat;
    CHECK_OK(cddp_fsdp_flat(t->fsdp, unit, &flat, &l->err));
    ((float *)flat.tensor.storage)[element] += 1;
}

/* Where the shard of 'a' is changed: between forward and backward, or behind them. */
static void changes_a_shard(lane *l)
{
    const cddp_fsdp_strategy strategy = *(const cddp_fsdp_strategy *)l->lab->data;
    toy t;
    toy_init(&t, l);
    t.options.strategy = strategy;
    toy_wrap(&t);
    toy_iterate(&t, 0);
    const int step = 0;
    toy_step(&t);
    toy_step_alone(&t, l->w, &step, 1);
    toy_forward(&t); /* the step before it is none between */
    add_to_shard(&t, TOY_A, 1);
    cddp_status status = cddp_fsdp_pre_backward(t.fsdp, TOY_B, &l->err);
    if (status == CDDP_OK) toy_gradients_of(&t, TOY_B, 1);
    if (status == CDDP_OK) status = cddp_fsdp_post_backward(t.fsdp, TOY_B, &l->err);
    if (status == CDDP_OK) status = cddp_fsdp_pre_backward(t.fsdp, TOY_A, &l->err);
    /* who sees it first aborts the others with its sentence */
    CHECK(status == CDDP_E_STATE || status == CDDP_E_ABORTED);
    CHECK(
        strstr(l->err.message, "the shard of 'a' was changed between a forward and its backward"));
    toy_fini(&t);
}
TEST(freshness, of_forward_and_backward_is_one)
{
    static const cddp_fsdp_strategy strategies[] = {CDDP_FSDP_FULL_SHARD, CDDP_FSDP_SHARD_GRAD_OP,
                                                    CDDP_FSDP_NO_SHARD};
    for (size_t i = 0; i < sizeof strategies / sizeof strategies[0]; i++) {
        cd_test_row("strategy %d", (int)strategies[i]);
        lab_of(2, changes_a_shard, (void *)&strategies[i]);
    }
} /* FSH-15 */

/* Of a large shard another sixteenth is looked at in each iteration. */
static void changes_one_element(lane *l)
{
    enum { NUMEL = 40000 };
    cddp_fsdp *f = NULL;
    cddp_fsdp_options o = cddp_fsdp_options_default();
    lane_add(l, "weight", CDDP_F32, NUMEL);
    o.parameters = l->parameters;
    o.parameter_count = 1;
    o.group = l->group;
    CHECK_OK(cddp_fsdp_create(&o, &f, &l->err));
    toy t = {.l = l, .fsdp = f};
    cddp_status status = CDDP_OK;
    for (int i = 0; i < 17 && status == CDDP_OK; i++) {
        CHECK_OK(cddp_fsdp_pre_forward(f, 0, true, &l->err));
        CHECK_OK(cddp_fsdp_post_forward(f, 0, true, &l->err));
        if (i > 0) add_to_shard(&t, 0, 19000);
        status = cddp_fsdp_pre_backward(f, 0, &l->err);
        if (status == CDDP_OK) status = cddp_fsdp_post_backward(f, 0, &l->err);
        if (status == CDDP_OK) status = cddp_fsdp_backward_end(f, &l->err);
        CHECK(i > 0 || status == CDDP_OK);
    }
    CHECK(status == CDDP_E_STATE || status == CDDP_E_ABORTED);
    CHECK(strstr(l->err.message, "the shard of '(root)' was changed"));
    cddp_fsdp_destroy(f);
    cddp_grad_fini(&l->grads[0]);
}
TEST(freshness, of_a_large_shard_is_seen_within_sixteen_iterations)
{
    lab_of(2, changes_one_element, NULL);
}

static cddp_status read_ones(void *context, const char *name, int64_t first, const cddp_tensor *to,
                             cddp_error *err)
{
    (void)context, (void)name, (void)first;
    return to->device->fill(to, 1.0, NULL, err);
}

/* What SHARD_GRAD_OP keeps in a window is gathered again, whole or one unit of it (F-15). */
static void loads_inside_a_window(lane *l)
{
    toy t;
    cddp_fsdp_stored stored[TOY_PARAMETERS];
    float twos[10];
    toy_init(&t, l);
    t.options.strategy = CDDP_FSDP_SHARD_GRAD_OP;
    toy_wrap(&t);
    toy_iterate(&t, 0);
    CHECK_OK(cddp_fsdp_no_sync_begin(t.fsdp, &l->err));
    toy_iterate(&t, 1);
    for (size_t i = 0; i < TOY_PARAMETERS; i++) {
        stored[i] = (cddp_fsdp_stored){.name = toy_shapes[i].name,
                                       .dim_count = toy_shapes[i].dims,
                                       .dtype = CDDP_F32};
        memcpy(stored[i].sizes, toy_shapes[i].sizes, sizeof toy_shapes[i].sizes);
        for (int64_t e = 0; e < toy_numel(i); e++) t.values[i][e] = 1;
    }
    const cddp_fsdp_source source = {.size = sizeof source,
                                     .stored = stored,
                                     .stored_count = TOY_PARAMETERS,
                                     .read = read_ones};
    CHECK_OK(cddp_fsdp_load(t.fsdp, &source, &l->err));
    toy_iterate(&t, 2); /* compares what it computes with */
    cddp_fsdp_local local = {.size = sizeof local};
    const int64_t share = 10;
    for (int64_t e = 0; e < share; e++) twos[e] = 2;
    for (int64_t e = 0; e < 2 * share; e++) t.values[e >= 15 ? 3 : 2][e % 15] = 2;
    const cddp_tensor elements = cddp_tensor_of(l->device, twos, 0, CDDP_F32, &share, 1);
    CHECK_OK(cddp_fsdp_get_local(t.fsdp, TOY_A, &local, &l->err));
    CHECK_OK(cddp_fsdp_load_local(t.fsdp, TOY_A, &local, &elements, &l->err));
    toy_iterate(&t, 3);
    toy_fini(&t);
}
TEST(freshness, of_a_state_that_is_loaded) { lab_of(2, loads_inside_a_window, NULL); } /* FSH-15 */

TEST_MAIN()
