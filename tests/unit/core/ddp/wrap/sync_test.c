/* SPDX-License-Identifier: Apache-2.0 */
/* Construction: what is verified across ranks, what is broadcast, and buffers afterwards (INI, IGN,
** BUF). */
#include "core/base/prng.h"
#include "core/ddp/parts/sync.h"
#include "tests/unit/core/ddp/fixture.h"

/* ---- verification: every rank fails, both sides named (ERR-07, INI-08…10) ---- */

typedef struct difference {
    const char *name;
    void (*make)(lane *l);
    const char *words[2]; /* both must be in every rank's message */
} difference;

static void base(lane *l)
{
    lane_add(l, "fc.weight", CDDP_F32, 6);
    lane_add(l, "fc.bias", CDDP_F32, 3);
}
static bool odd(const lane *l) { return l->r == 2; }

static void differ_count(lane *l)
{
    base(l);
    if (odd(l)) lane_add(l, "extra", CDDP_F32, 1);
}
static void differ_shape(lane *l)
{
    lane_add(l, "fc.weight", CDDP_F32, odd(l) ? 7 : 6);
    lane_add(l, "fc.bias", CDDP_F32, 3);
}
static void differ_name(lane *l)
{
    lane_add(l, "fc.weight", CDDP_F32, 6);
    lane_add(l, odd(l) ? "fc.offset" : "fc.bias", CDDP_F32, 3);
}
static void differ_dtype(lane *l)
{
    lane_add(l, "fc.weight", CDDP_F32, 6);
    lane_add(l, "fc.bias", odd(l) ? CDDP_F64 : CDDP_F32, 3);
}
static void differ_requires_grad(lane *l)
{
    base(l);
    l->parameters[1].requires_grad = !odd(l);
}
static void differ_strides(lane *l)
{
    base(l);
    cddp_tensor *t = &l->parameters[0].tensor;
    t->dim_count = 2;
    t->sizes[0] = 2, t->sizes[1] = 3;
    t->strides[0] = odd(l) ? 1 : 3, t->strides[1] = odd(l) ? 2 : 1;
}
static void differ_ignore(lane *l)
{
    static const char *const ignored[1] = {"fc.bias"};
    base(l);
    l->options.parameters_and_buffers_to_ignore = ignored;
    l->options.ignore_count = odd(l);
}
static void differ_options(lane *l)
{
    base(l);
    l->options.bucket_cap_mb = odd(l) ? 2.0 : 1.0;
}
static void differ_mode(lane *l)
{
    base(l);
    l->options.find_unused_parameters = odd(l);
}
static void differ_buffer(lane *l)
{
    base(l);
    lane_add_buffer(l, "running_mean", CDDP_F32, odd(l) ? 4 : 3, 0.0);
}

static void differ_buffer_name(lane *l)
{
    base(l);
    lane_add_buffer(l, odd(l) ? "running_var" : "running_mean", CDDP_F32, 3, 0.0);
}
static void differ_buffer_dtype(lane *l)
{
    base(l);
    lane_add_buffer(l, "running_mean", odd(l) ? CDDP_F64 : CDDP_F32, 3, 0.0);
}
static void differ_buffer_count(lane *l)
{
    base(l);
    if (odd(l)) lane_add_buffer(l, "running_mean", CDDP_F32, 3, 0.0);
}
static void differ_buffer_ignore(lane *l)
{
    static const char *const ignored[1] = {"running_mean"};
    differ_buffer_dtype(l);
    l->buffers[0].tensor.dtype = CDDP_F32;
    l->options.parameters_and_buffers_to_ignore = ignored;
    l->options.ignore_count = odd(l);
}
static void differ_sparse(lane *l)
{
    lane_add(l, "fc.bias", CDDP_F32, 3);
    lane_add(l, "table", CDDP_F32, 4);
    cddp_tensor *t = &l->parameters[1].tensor;
    t->dim_count = 2;
    t->sizes[0] = t->sizes[1] = 2;
    t->strides[0] = 2, t->strides[1] = 1;
    l->parameters[1].expect_sparse = odd(l);
}
static void differ_delay(lane *l)
{
    static const char *const listed[1] = {"fc.bias"};
    base(l);
    if (odd(l)) {
        l->options.delay_all_reduce_named_params = listed;
        l->options.delay_all_reduce_count = 1;
        l->options.param_to_hook_all_reduce = "fc.weight";
    } else {
        l->options.parameters_and_buffers_to_ignore = listed;
        l->options.ignore_count = 1;
    }
}
static void differ_order(lane *l)
{
    lane_add(l, odd(l) ? "a" : "b", CDDP_F32, 3);
    lane_add(l, odd(l) ? "b" : "a", CDDP_F32, 3);
}

static void verify_body(lane *l)
{
    const difference *d = l->lab->data;
    d->make(l);
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_MISMATCH, d->words[0]);
    CHECK(strstr(l->err.message, d->words[1]) != NULL &&
          strstr(l->err.message, "ranks 0 and 1") != NULL &&
          strstr(l->err.message, "rank 2") != NULL);
}

TEST(verify, every_rank_fails_and_shows_both_sides)
{
    static const difference rows[] = {
        /* clang-format off */
        {"count", differ_count, {"rank 2 reduces 3 parameters, ranks 0 and 1 2", "'extra'"}}, /* TI-A-23 */
        {"shape", differ_shape, {"'fc.weight' f32 [6]", "'fc.weight' f32 [7]"}},       /* TI-A-22 */
        {"name", differ_name, {"'fc.bias'", "'fc.offset'"}},
        {"dtype", differ_dtype, {"'fc.bias' f32", "'fc.bias' f64"}}, /* PyTorch turns this into garbage (INI-09) */
        {"requires_grad", differ_requires_grad, {"requires_grad", "frozen"}},
        {"strides", differ_strides, {"strides [3,1]", "strides [1,2]"}}, /* TI-H-09 */
        {"ignore list", differ_ignore, {"'fc.bias' f32", "'fc.bias' ignored"}},
        {"capacity", differ_options, {"bucket_cap_bytes=2097152, ranks 0 and 1 have first_bucket_bytes=1048576", "rank 2 has"}},
        {"mode", differ_mode, {"rank 2 has find_unused_parameters=1, ranks 0 and 1", "have find_unused_parameters=0"}},
        {"buffer", differ_buffer, {"'running_mean' f32 [3]", "'running_mean' f32 [4]"}},
        {"buffer's name", differ_buffer_name, {"'running_mean'", "'running_var'"}},
        {"buffer's dtype", differ_buffer_dtype, {"'running_mean' f32", "'running_mean' f64"}},
        {"buffers' count", differ_buffer_count, {"ranks 0 and 1 have nothing", "'running_mean'"}},
        {"ignored buffer", differ_buffer_ignore, {"'running_mean' f32", "'running_mean' ignored"}},
        {"sparse", differ_sparse, {"requires_grad", "requires_grad sparse"}},
        {"delayed", differ_delay, {"'fc.bias' ignored", "'fc.bias' delayed"}},
        {"order", differ_order, {"ranks 0 and 1 have parameter 'b'", "rank 2 has parameter 'a'"}},
        /* clang-format on */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_test_row("%s", rows[i].name);
        for (int without = 0; without < 2; without++) {
            difference d = rows[i];
            lab b = {.world_size = 3,
                     .body = verify_body,
                     .data = &d,
                     .has_no_minimum = without != 0};
            lab_run(&b);
        }
    }
}

/* ---- what the message shows of long lines and of many ranks ---- */

enum { LONG_NAME = 600 };

/* Names that part in their last character: no line of them fits in a message. */
static void differ_at_the_end_of_a_name(lane *l)
{
    static char names[3][LONG_NAME + 1];
    memset(names[l->r], 'n', LONG_NAME);
    names[l->r][LONG_NAME - 1] = odd(l) ? 'b' : 'a';
    lane_add(l, names[l->r], CDDP_F32, 3);
}
static void differ_after_a_long_name(lane *l)
{
    static char name[LONG_NAME + 1];
    memset(name, 'n', LONG_NAME);
    lane_add(l, name, odd(l) ? CDDP_F64 : CDDP_F32, 3);
}
static void differ_in_words(lane *l)
{
    static char names[3][LONG_NAME + 1];
    for (int i = 0; i < 40; i++)
        snprintf(names[l->r] + 10 * i, 11, "%s ", i == 20 && odd(l) ? "elsewhere" : "somewhere");
    lane_add(l, names[l->r], CDDP_F32, 3);
}
/* More caps than a short text has room for. */
static void differ_in_a_late_cap(lane *l)
{
    static double caps[3][24];
    base(l);
    for (size_t i = 0; i < 24; i++) caps[l->r][i] = i == 0 ? 4 : 1;
    if (odd(l)) caps[l->r][12] = 2;
    l->options.bucket_cap_mb_list = caps[l->r];
    l->options.bucket_cap_mb_list_count = 24;
}

TEST(verify, shows_the_first_difference_of_long_lines_in_whole_words)
{
    static const difference rows[] = {
        {"end of a name", differ_at_the_end_of_a_name, {"nna' f32 [3]", "nnb' f32 [3]"}},
        {"after a name", differ_after_a_long_name, {"nn' f32 [3]", "nn' f64 [3]"}},
        {"in words",
         differ_in_words,
         {"ranks 0 and 1 have …somewhere somewhere", " elsewhere somewhere "}},
        {"late cap", differ_in_a_late_cap, {"cap[12]=1048576", "cap[12]=2097152"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_test_row("%s", rows[i].name);
        for (int without = 0; without < 2; without++) {
            difference d = rows[i];
            lab b = {.world_size = 3,
                     .body = verify_body,
                     .data = &d,
                     .has_no_minimum = without != 0};
            lab_run(&b);
        }
    }
}

static void many_differ_body(lane *l)
{
    const bool is_mixed = *(const int *)l->lab->data != 0;
    const int64_t numel = l->r < 2 ? 6 : is_mixed && l->r == 5 ? 8 : 7;
    lane_add(l, "p", CDDP_F32, numel);
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_MISMATCH,
                is_mixed ? "rank 0 has parameter 'p' f32 [6]" : "ranks 2-5 have parameter 'p'");
    if (is_mixed)
        CHECK(strstr(l->err.message, "rank 2 has parameter 'p' f32 [7]") != NULL &&
              strstr(l->err.message, "; ranks 2-5 differ from rank 0") != NULL);
}

TEST(verify, names_all_ranks_that_differ)
{
    for (int is_mixed = 0; is_mixed < 2; is_mixed++) {
        lab b = {.world_size = 6, .body = many_differ_body, .data = &is_mixed};
        lab_run(&b);
    }
}

static void wrap_body(lane *l)
{
    base(l);
    lane_wrap(l);
    bool gathers = l->lab->has_no_minimum;
    CHECK(lane_posts(l, CDDP_OP_ALLGATHER) == gathers &&
          lane_posts(l, CDDP_OP_ALLREDUCE) == !gathers);
}

TEST(verify, gathers_from_every_rank_only_where_the_backend_has_no_minimum)
{
    for (int without = 0; without < 2; without++) {
        lab b = {.world_size = 3, .body = wrap_body, .has_no_minimum = without != 0};
        lab_run(&b);
    }
}

LAB(verify, is_left_out_without_init_sync, 2) /* INI-14 */
{
    l->options.init_sync = false;
    lane_add(l, "p", CDDP_F32, 2);
    CHECK_OK(l->device->fill(&l->parameters[0].tensor, 1.0 + l->r, NULL, &l->err));
    lane_wrap(l);
    CHECK(lane_posts(l, CDDP_OP_ALLGATHER) == 0 && lane_posts(l, CDDP_OP_BROADCAST) == 0);
    CHECK(lane_first(l, &l->parameters[0].tensor) == 1.0 + l->r);
}

/* ---- initial broadcast ---- */

LAB(broadcast, makes_parameters_and_buffers_equal_to_rank_zeros, 3) /* INI-11, TI-A-12 */
{
    lane_add(l, "p", CDDP_F32, 2);
    lane_add(l, "frozen", CDDP_F32, 3)->requires_grad = false;
    lane_add(l, "d", CDDP_F64, 3);
    cddp_tensor *buffer = lane_add_buffer(l, "count", CDDP_I64, 1, 5.0 + l->r);
    for (size_t i = 0; i < 3; i++)
        CHECK_OK(l->device->fill(&l->parameters[i].tensor, 1.0 + l->r, NULL, &l->err));
    lane_wrap(l);
    CHECK(lane_posts(l, CDDP_OP_BROADCAST) == 3); /* f32, f64, i64 */
    for (size_t i = 0; i < 3; i++) CHECK(lane_first(l, &l->parameters[i].tensor) == 1.0);
    CHECK(lane_first(l, buffer) == 5.0);
    CHECK(cddp_ddp_variable_count(l->ddp) == 2 && cddp_ddp_variable_index(l->ddp, "frozen") == -1 &&
          cddp_ddp_variable_index(l->ddp, "d") == 1);
}

/* ---- layouts in memory ---- */

enum { CONV_NUMEL = 48 };

/* Channels last: a dense layout that is not the contiguous one. */
static void lay_channels_last(cddp_tensor *t)
{
    t->dim_count = 4;
    memcpy(t->sizes, (int64_t[4]){4, 3, 2, 2}, 4 * sizeof(int64_t));
    memcpy(t->strides, (int64_t[4]){12, 1, 6, 3}, 4 * sizeof(int64_t));
}

static bool is_channels_last(const cddp_tensor *t)
{
    cddp_tensor wanted = *t;
    lay_channels_last(&wanted);
    return t->dim_count == 4 && memcmp(t->sizes, wanted.sizes, 4 * sizeof(int64_t)) == 0 &&
           memcmp(t->strides, wanted.strides, 4 * sizeof(int64_t)) == 0;
}

/* TI-H-10: a module whose tensors are channels-last can be wrapped: rank 0's values arrive element
** by element, the layout stays, also that of gradients. */
static void channels_last_body(lane *l)
{
    float values[CONV_NUMEL];
    l->options.gradient_as_bucket_view = l->lab->data != NULL;
    cddp_tensor *weight = &lane_add(l, "conv.weight", CDDP_F32, CONV_NUMEL)->tensor;
    lane_add(l, "conv.bias", CDDP_F32, 4);
    cddp_tensor *buffer = lane_add_buffer(l, "mask", CDDP_F32, CONV_NUMEL, 0.0);
    lay_channels_last(weight);
    lay_channels_last(buffer);
    for (int k = 0; k < CONV_NUMEL; k++) values[k] = (float)(l->r * 1000) + (float)k;
    CHECK_OK(l->device->write(weight, values, sizeof values, &l->err)); /* in logical order */
    CHECK_OK(l->device->write(buffer, values, sizeof values, &l->err));
    lane_wrap(l);
    for (int which = 0; which < 2; which++) {
        const cddp_tensor *t = which == 0 ? weight : buffer;
        CHECK(is_channels_last(t));
        CHECK_OK(l->device->read(t, values, sizeof values, &l->err));
        for (int k = 0; k < CONV_NUMEL; k++) CHECK(values[k] == (float)k);
        CHECK(((float *)t->storage)[1] == 4.0f); /* the second channel of the first place */
    }
    for (int step = 0; step < 3; step++) { /* the third in rebuilt buckets */
        lane_zero_grad(l, true);
        lane_forward(l);
        lane_grad(l, 1, 1.0);
        CHECK_OK(cddp_grad_define(&l->grads[0], weight, &l->err));
        for (int k = 0; k < CONV_NUMEL; k++) values[k] = (float)(k * 2) + (float)l->r;
        CHECK_OK(l->device->write(&l->grads[0].value, values, sizeof values, &l->err));
        lane_hook(l, 0);
        lane_end(l);
        CHECK(is_channels_last(&l->grads[0].value));
        CHECK_OK(l->device->read(&l->grads[0].value, values, sizeof values, &l->err));
        for (int k = 0; k < CONV_NUMEL; k++) CHECK(values[k] == (float)(k * 2) + 0.5f);
    }
}
TEST(broadcast, keeps_channels_last_tensors_as_they_lie) { lab_of(2, channels_last_body, NULL); }
TEST(broadcast, keeps_channels_last_tensors_as_they_lie_with_views)
{
    lab_of(2, channels_last_body, channels_last_body);
}

/* TI-H-09: the bytes of the others would be taken in another order */
LAB(verify, reports_channels_last_on_one_rank_only, 2)
{
    lane_add(l, "conv.weight", CDDP_F32, CONV_NUMEL);
    cddp_tensor *weight = &l->parameters[0].tensor;
    lay_channels_last(weight);
    if (l->r == 1) memcpy(weight->strides, (int64_t[4]){12, 4, 2, 1}, 4 * sizeof(int64_t));
    CHECK_FAILS(lane_try_wrap(l), CDDP_E_MISMATCH, "[12,4,2,1]");
    CHECK(strstr(l->err.message, "[12,1,6,3]") != NULL);
}

LAB(broadcast, leaves_buffers_alone_when_they_are_not_synchronised, 2) /* INI-11, MAIN */
{
    l->options.broadcast_buffers = false;
    lane_add(l, "p", CDDP_F32, 2);
    cddp_tensor *buffer = lane_add_buffer(l, "b", CDDP_F32, 1, 5.0 + l->r);
    lane_wrap(l);
    lane_iterate(l, 1.0);
    CHECK(lane_first(l, buffer) == 5.0 + l->r);
}

/* IGN-02, IGN-04, INI-05, UNU-12, TI-B-13: by itself, with the search and with a static graph. */
static void ignored_body(lane *l)
{
    const char *mode = l->lab->data;
    l->options.find_unused_parameters = strcmp(mode, "search") == 0;
    l->options.static_graph = strcmp(mode, "static") == 0;
    static const char *const ignored[3] = {"p", "b", "tied.second"};
    lane_add(l, "p", CDDP_F32, 2);
    lane_add(l, "tied.first", CDDP_F32, 2);
    lane_add(l, "tied.second", CDDP_F32, 2)->grad = &l->grads[1];
    cddp_tensor *buffer = lane_add_buffer(l, "b", CDDP_F32, 1, 5.0 + l->r);
    for (size_t i = 0; i < 2; i++)
        CHECK_OK(l->device->fill(&l->parameters[i].tensor, 1.0 + l->r, NULL, &l->err));
    l->options.parameters_and_buffers_to_ignore = ignored;
    l->options.ignore_count = 3;
    lane_wrap(l);
    CHECK(cddp_ddp_variable_count(l->ddp) == 1 &&
          cddp_ddp_variable_index(l->ddp, "tied.first") == 0);
    CHECK(lane_first(l, &l->parameters[0].tensor) == 1.0 + l->r &&
          lane_first(l, &l->parameters[1].tensor) == 1.0);
    for (int step = 0; step < 3; step++) {
        lane_zero_grad(l, true);
        lane_forward(l);
        lane_grad(l, 0, 1.0 + l->r);
        lane_grad(l, 1, 1.0 + l->r);
        lane_end(l);
        CHECK(lane_value(l, 0) == 1.0 + l->r && lane_value(l, 1) == 1.5 &&
              lane_first(l, buffer) == 5.0 + l->r);
    }
}
TEST(broadcast, leaves_ignored_ones_alone_and_reduces_shared_ones_once)
{
    static char modes[3][8] = {"plain", "search", "static"};
    for (int i = 0; i < 3; i++) {
        cd_test_row("%s", modes[i]);
        lab_of(2, ignored_body, modes[i]);
    }
}

static cddp_tensor get_tensor(const void *tensors, size_t i)
{
    return ((const cddp_tensor *)tensors)[i];
}

LAB(broadcast, keeps_at_most_two_in_flight, 2) /* INI-12, TI-H-21 */
{
    cddp_tensor tensors[9];
    int64_t deepest = 0;
    lane_add(l, "p", CDDP_F32, 2);
    for (int64_t i = 0; i < 9; i++) {
        int64_t numel = i % 3 * 5;
        tensors[i] = lane_tensor(l, i % 2 == 0 ? CDDP_F32 : CDDP_F64, &numel, 1,
                                 (double)(l->r * 100) + (double)i);
    }
    cd_broadcast_spec spec = {.tensors = {tensors, get_tensor},
                              .tensor_count = 9,
                              .limit_bytes = 24};
    lane_mark(l);
    CHECK_OK(cd_broadcast_coalesced(&spec, l->group, 1, &l->err));
    for (size_t e = l->since; e < l->sink.count; e++)
        if (l->sink.events[e].kind == CDDP_EV_collective_post &&
            l->sink.events[e].as.collective_post.in_flight > deepest)
            deepest = l->sink.events[e].as.collective_post.in_flight;
    CHECK(deepest == 2);
    for (int i = 0; i < 9; i++) {
        if (cddp_tensor_numel(&tensors[i]) > 0) CHECK(lane_first(l, &tensors[i]) == 100.0 + i);
        lane_release(l, &tensors[i]);
    }
    lane_wrap(l);
}

/* ---- buffers ---- */

LAB(buffers, are_broadcast_and_not_averaged, 2) /* BUF-04, TI-E-01 */
{
    lane_add(l, "p", CDDP_F32, 2);
    cddp_tensor *buffer = lane_add_buffer(l, "running_mean", CDDP_F32, 2, 1.0);
    lane_wrap(l);
    for (int i = 0; i < 3; i++) {
        if (l->r == 1) CHECK_OK(l->device->fill(buffer, 100.0, NULL, &l->err));
        lane_iterate(l, 1.0);
        CHECK(lane_first(l, buffer) == 1.0);
    }
}

LAB(buffers, follow_the_flag_of_the_forward_before, 2) /* BUF-05, VER-12 */
{
    /* s: synchronising, n: inside no_sync, g: without grad mode; then whether buffers were
    ** synchronised. */
    static const char forwards[] = "ssnnssggss", synced[] = "yyyn"
                                                            "nyyn"
                                                            "ny";
    lane_add(l, "p", CDDP_F32, 2);
    lane_add_buffer(l, "b", CDDP_F32, 1, 0.0);
    lane_wrap(l);
    for (size_t i = 0; forwards[i] != '\0'; i++) {
        lane_mark(l);
        if (forwards[i] == 'n') cddp_ddp_no_sync_begin(l->ddp);
        CHECK_OK(cddp_ddp_forward_begin(l->ddp, forwards[i] != 'g', &l->err));
        CHECK_OK(cddp_ddp_forward_end(l->ddp, NULL, &l->err));
        if (forwards[i] == 'n') cddp_ddp_no_sync_end(l->ddp);
        CHECK((lane_count(l, CDDP_EV_buffer_sync, -1) == 1) == (synced[i] == 'y'));
    }
}

/* TI-M-06: any string of forwards. The rule is BUF-05's, written again in three lines. */
LAB(buffers, follow_the_flag_along_any_string_of_forwards, 2)
{
    cd_prng prng = cd_prng_seed(cd_test_seed());
    lane_add(l, "p", CDDP_F32, 2);
    lane_add_buffer(l, "b", CDDP_F32, 1, 0.0);
    for (int round = 0; round < 10; round++) {
        bool flag = true; /* as after construction */
        uint32_t depth = 0;
        lane_wrap(l);
        for (int i = 0; i < 30; i++) {
            /* 0, 1: synchronising, 2: inside no_sync, 3: without grad mode */
            const uint64_t kind = cd_prng_below(&prng, 4);
            lane_mark(l);
            for (; depth < (kind == 2 ? 1 : 0); depth++) cddp_ddp_no_sync_begin(l->ddp);
            for (; depth > (kind == 2 ? 1 : 0); depth--) cddp_ddp_no_sync_end(l->ddp);
            CHECK_OK(cddp_ddp_forward_begin(l->ddp, kind != 3, &l->err));
            CHECK_OK(cddp_ddp_forward_end(l->ddp, NULL, &l->err));
            CHECK((lane_count(l, CDDP_EV_buffer_sync, -1) == 1) == flag);
            flag = kind < 2;
        }
        lane_unwrap(l);
    }
}

static cddp_status double_them(void *context, cddp_group *group, const cddp_buffer *buffers,
                               size_t buffer_count, cddp_error *err)
{
    (void)group;
    ++*(int *)context;
    for (size_t i = 0; i < buffer_count; i++) {
        cddp_status status =
            buffers[i].tensor.device->scale(&buffers[i].tensor, &buffers[i].tensor, 2.0, NULL, err);
        if (status != CDDP_OK) return status;
    }
    return CDDP_OK;
}

static cddp_status broadcast_by_hand(void *context, cddp_group *group, const cddp_buffer *buffers,
                                     size_t buffer_count, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    ++*(int *)context;
    for (size_t i = 0; status == CDDP_OK && i < buffer_count; i++) {
        cddp_work *work = NULL;
        status = cddp_group_broadcast(group, &buffers[i].tensor, 0, &work, err);
        if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    }
    return status;
}

/* TI-E-03: the same forwards, each of which changes the buffers by what the rank is, with the
** wrapper's own broadcast and with one written by hand as a hook before forward. */
LAB(buffers, broadcast_by_hand_are_as_the_wrapper_broadcasts_them, 3)
{
    double own[4][2];
    int calls = 0;
    lane_add(l, "p", CDDP_F32, 2);
    cddp_tensor *mean = lane_add_buffer(l, "mean", CDDP_F32, 2, 0.0),
                *count = lane_add_buffer(l, "count", CDDP_F64, 1, 0.0);
    for (int by_hand = 0; by_hand < 2; by_hand++) {
        CHECK_OK(l->device->fill(mean, 1.0, NULL, &l->err));
        CHECK_OK(l->device->fill(count, 2.0, NULL, &l->err));
        lane_wrap(l);
        if (by_hand)
            CHECK_OK(
                cddp_ddp_register_buffer_hook(l->ddp, broadcast_by_hand, &calls, false, &l->err));
        for (int step = 0; step < 4; step++) {
            lane_forward(l);
            /* by this forward */
            const double seen[2] = {lane_first(l, mean), lane_first(l, count)};
            CHECK(seen[0] == 1.0 + 2.0 * step && seen[1] == 2.0 + 4.0 * step);
            if (by_hand)
                CHECK(seen[0] == own[step][0] && seen[1] == own[step][1]);
            else
                own[step][0] = seen[0], own[step][1] = seen[1];
            /* rank 0 adds 2, the others more */
            CHECK_OK(l->device->fill(mean, seen[0] + 2.0 + l->r, NULL, &l->err));
            CHECK_OK(l->device->fill(count, seen[1] + 4.0 + l->r, NULL, &l->err));
            lane_grad(l, 0, 1.0);
            lane_end(l);
            lane_zero_grad(l, true);
        }
        lane_unwrap(l);
    }
    CHECK(calls == 4);
}

LAB(buffers, can_be_synchronised_by_a_hook_after_forward, 2) /* BUF-07 */
{
    int calls = 0;
    lane_add(l, "p", CDDP_F32, 2);
    cddp_tensor *buffer = lane_add_buffer(l, "b", CDDP_F32, 1, 1.0);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_register_buffer_hook(l->ddp, double_them, &calls, true, &l->err));
    CHECK_FAILS(cddp_ddp_register_buffer_hook(l->ddp, double_them, &calls, true, &l->err),
                CDDP_E_STATE, "registered already");
    lane_mark(l);
    CHECK_OK(cddp_ddp_forward_begin(l->ddp, true, &l->err));
    CHECK(calls == 0);
    CHECK_OK(cddp_ddp_forward_end(l->ddp, NULL, &l->err));
    CHECK(calls == 1 && lane_first(l, buffer) == 2.0 && lane_posts(l, CDDP_OP_BROADCAST) == 0);
    cddp_join_options join = cddp_join_options_default();
    CHECK_FAILS(cddp_ddp_join_begin(l->ddp, &join, &l->err), CDDP_E_UNSUPPORTED,
                "custom buffer hook");
}

/* The average of a buffer over the ranks, under way until the end of the backward. */
typedef struct averaging {
    lane *l;
    cddp_tensor buffer, sum; /* sum: what travels */
    uint32_t calls, done;
    bool fails;
} averaging;

static cddp_status take_average(void *context, cddp_error *err)
{
    averaging *a = context;
    a->done++;
    if (a->fails) return cddp_error_set(err, CDDP_E_IO, "the average was lost");
    const cddp_device *device = a->buffer.device;
    cddp_status status = device->divide(&a->sum, &a->sum, a->l->w, NULL, err);
    if (status == CDDP_OK) status = device->copy(&a->buffer, &a->sum, NULL, err);
    return status;
}

static cddp_status begin_average(void *context, cddp_group *group, const cddp_buffer *buffers,
                                 size_t buffer_count, cddp_buffer_future *future, cddp_error *err)
{
    averaging *a = context;
    a->calls++;
    if (buffer_count != 1 || future->work_count != 0 || future->done != NULL)
        return cddp_error_set(err, CDDP_E_STATE, "the hook is called with something else");
    a->buffer = buffers[0].tensor;
    cddp_status status = a->sum.device->copy(&a->sum, &a->buffer, NULL, err);
    if (status == CDDP_OK)
        status = cddp_group_allreduce(group, &a->sum, CDDP_RED_SUM, &future->works[0], err);
    future->work_count = status == CDDP_OK;
    future->done = take_average;
    return status;
}

static void async_body(lane *l)
{
    const bool is_after_forward = *(const bool *)l->lab->data;
    const int64_t one = 1;
    lane_add(l, "p", CDDP_F32, 2);
    cddp_tensor *buffer = lane_add_buffer(l, "b", CDDP_F32, 1, 0.0);
    averaging a = {.l = l, .sum = lane_tensor(l, CDDP_F32, &one, 1, 0.0)};
    lane_wrap(l);
    CHECK_OK(
        cddp_ddp_register_async_buffer_hook(l->ddp, begin_average, &a, is_after_forward, &l->err));
    CHECK_FAILS(cddp_ddp_register_async_buffer_hook(l->ddp, begin_average, &a, false, &l->err),
                CDDP_E_STATE, "registered already");
    for (uint32_t step = 0; step < 3; step++) {
        CHECK_OK(l->device->fill(buffer, 4.0 * step + 2.0 * l->r, NULL, &l->err));
        lane_forward(l);
        CHECK(a.calls == step + 1 && a.done == step); /* under way */
        CHECK(lane_first(l, buffer) == 4.0 * step + 2.0 * l->r);
        lane_grad(l, 0, 1.0);
        lane_end(l);
        CHECK(a.done == step + 1 && lane_first(l, buffer) == 4.0 * step + (l->w - 1.0));
        lane_zero_grad(l, true);
    }
    /* Two forwards before a backward: both are awaited, in order. */
    lane_forward(l);
    lane_forward(l);
    CHECK(a.calls == 5 && a.done == 3);
    lane_grad(l, 0, 1.0);
    lane_end(l);
    CHECK(a.done == 5);
    lane_zero_grad(l, true);
    a.fails = true; /* it fails where it is awaited; the next iteration is whole */
    lane_forward(l);
    lane_grad(l, 0, 1.0);
    CHECK_FAILS(cddp_ddp_backward_end(l->ddp, &l->err), CDDP_E_IO, "the average was lost");
    a.fails = false;
    lane_zero_grad(l, true);
    lane_forward(l);
    lane_grad(l, 0, 1.0);
    lane_end(l);
    CHECK(a.done == 7);
    lane_forward(l); /* what is under way at the end is given back */
    lane_unwrap(l);
    lane_release(l, &a.sum);
}

TEST(buffers, of_a_hook_with_a_future_are_awaited_at_the_end_of_backward) /* BUF-07 */
{
    for (int i = 0; i < 2; i++) {
        bool is_after_forward = i == 1;
        cd_test_row("after the forward: %d", i);
        lab_of(3, async_body, &is_after_forward);
    }
}

/* What a hook sums beside the buckets, in another group. */
typedef struct late_sum {
    cddp_group *group;
    cddp_tensor sum;
    bool is_late; /* its own part comes long after the backward */
} late_sum;

static cddp_status begin_late_sum(void *context, cddp_group *group, const cddp_buffer *buffers,
                                  size_t buffer_count, cddp_buffer_future *future, cddp_error *err)
{
    late_sum *s = context;
    (void)group, (void)buffers, (void)buffer_count;
    if (s->is_late) return CDDP_OK;
    const cddp_status status =
        cddp_group_allreduce(s->group, &s->sum, CDDP_RED_SUM, &future->works[0], err);
    future->work_count = status == CDDP_OK;
    return status;
}

LAB(buffers, of_a_hook_are_awaited_for_as_long_as_the_group_allows, 2) /* BUF-07 */
{
    static const uint32_t members[2] = {0, 1};
    const int64_t two = 2;
    const cddp_group_subset subset = {.size = sizeof subset,
                                      .name = "beside",
                                      .member_count = 2,
                                      .members = members};
    late_sum s = {.sum = lane_tensor(l, CDDP_F32, &two, 1, 1.0), .is_late = l->r == 1};
    lane_add(l, "p", CDDP_F32, 2);
    lane_add_buffer(l, "b", CDDP_F32, 1, 0.0);
    CHECK_OK(cddp_group_create_subset(l->group, &subset, &s.group, &l->err));
    lane_wrap(l);
    CHECK_OK(cddp_ddp_register_async_buffer_hook(l->ddp, begin_late_sum, &s, false, &l->err));
    lane_iterate(l, 1.0);
    if (s.is_late) {
        cddp_work *work = NULL;
        CHECK_OK(l->rank->ops->sleep_ns(l->rank, 1000000, &l->err));
        CHECK_OK(cddp_group_allreduce(s.group, &s.sum, CDDP_RED_SUM, &work, &l->err));
        CHECK_OK(cddp_work_wait(work, 0, &l->err));
    }
    CHECK(lane_first(l, &s.sum) == 2.0);
    lane_unwrap(l);
    cddp_group_destroy(s.group);
    lane_release(l, &s.sum);
}

LAB(buffers, may_be_replaced_by_the_module, 2) /* BUF-01 */
{
    int64_t one = 1;
    lane_add(l, "p", CDDP_F32, 2);
    lane_add_buffer(l, "b", CDDP_F32, 1, 0.0);
    lane_wrap(l);
    cddp_tensor other = lane_tensor(l, CDDP_F32, &one, 1, 7.0 + l->r);
    CHECK_OK(cddp_ddp_set_buffer(l->ddp, "b", &other, &l->err));
    lane_iterate(l, 1.0);
    CHECK(lane_first(l, &other) == 7.0);
    CHECK_FAILS(cddp_ddp_set_buffer(l->ddp, "c", &other, &l->err), CDDP_E_ARG, "no buffer 'c'");
    /* What differs in one respect alone is refused, and the buffer stays. */
    const int64_t two = 2;
    cddp_tensor wrong = other;
    wrong.device = cddp_device_symbol();
    CHECK_FAILS(cddp_ddp_set_buffer(l->ddp, "b", &wrong, &l->err), CDDP_E_ARG,
                "buffer 'b' is on cpu; its replacement is on symbol");
    wrong = lane_tensor(l, CDDP_F64, &one, 1, 0);
    CHECK_FAILS(cddp_ddp_set_buffer(l->ddp, "b", &wrong, &l->err), CDDP_E_ARG,
                "is f32 with 1 elements; its replacement is f64 with 1");
    lane_release(l, &wrong);
    wrong = lane_tensor(l, CDDP_F32, &two, 1, 0);
    CHECK_FAILS(cddp_ddp_set_buffer(l->ddp, "b", &wrong, &l->err), CDDP_E_ARG,
                "is f32 with 1 elements; its replacement is f32 with 2");
    lane_release(l, &wrong);
    wrong.device = NULL;
    CHECK_FAILS(cddp_ddp_set_buffer(l->ddp, "b", &wrong, &l->err), CDDP_E_ARG,
                "the replacement is no tensor");
    lane_iterate(l, 1.0);
    CHECK(lane_first(l, &other) == 7.0);
    lane_unwrap(l);
    lane_release(l, &other);
}

TEST_MAIN()
