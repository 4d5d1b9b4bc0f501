/* SPDX-License-Identifier: Apache-2.0 */
/* Upstream's tests of comm hooks: a hook beside plain DDP, a chain of futures, a wrapper over a
** subgroup.
**
** The reference is this library without a hook, on the same gradients; its own bits are PyTorch's
** (golden_ddp).
*/
#include "core/base/prng.h"
#include "core/hooks/hook.h"
#include "tests/support/tape.h"
#include "tests/unit/core/ddp/fixture.h"

#include <math.h>

static void use(lane *l, const char *name, const char *options)
{
    CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find(name), NULL, options, &l->err));
}

/* ---- 40 × 20 (upstream's test_ddp_hooks) ---- */

enum { ROWS = 40, COLUMNS = 20, NUMEL = ROWS * COLUMNS };

/* The loss is the mean of p · x^(1 + rank), x drawn as from a normal distribution: twelve uniform
** numbers. */
static void draw(uint32_t rank, double scale, float gradient[NUMEL])
{
    cd_prng p = cd_prng_seed(2020);
    for (int i = 0; i < NUMEL; i++) {
        double x = 0;
        for (int k = 0; k < 12; k++)
            x += (double)cd_prng_between(&p, -(1 << 20), 1 << 20) / (1 << 21);
        gradient[i] = (float)(scale * pow(x, 1 + (double)rank) / NUMEL);
    }
}

static void reduce(lane *l, const float gradient[NUMEL], float reduced[NUMEL])
{
    CHECK(l->grads[0].kind == CDDP_GRAD_UNDEFINED);
    lane_forward(l);
    CHECK_OK(cddp_grad_define(&l->grads[0], &l->parameters[0].tensor, &l->err));
    CHECK_OK(l->device->write(&l->grads[0].value, gradient, NUMEL * sizeof *gradient, &l->err));
    lane_hook(l, 0);
    lane_end(l);
    CHECK_OK(l->device->read(&l->grads[0].value, reduced, NUMEL * sizeof *reduced, &l->err));
}

typedef struct parity {
    const char *hook;
    double scale, atol;
} parity;

static double farthest(const float *a, const float *b)
{
    double most = 0;
    for (int i = 0; i < NUMEL; i++) most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

/* QNT-04: the mean over the ranks of half a step of each; the sums in f32 add their own
** rounding. */
static double quantisation_bound(const lane *l, const parity *p)
{
    double bound = 0;
    for (uint32_t r = 0; r < l->w; r++) {
        float gradient[NUMEL], least = 0, most = 0;
        draw(r, p->scale, gradient);
        for (int i = 0; i < NUMEL; i++)
            least = fminf(least, gradient[i]), most = fmaxf(most, gradient[i]);
        bound += ((double)most - (double)least) / 255 / 2 / l->w;
    }
    return bound * (1 + 0x1p-12);
}

static void parity_body(lane *l)
{
    static float reference[LAB_RANKS][NUMEL], hooked[LAB_RANKS][NUMEL], gradient[LAB_RANKS][NUMEL];
    const parity *p = l->lab->data;
    lane_add(l, "p", CDDP_F32, NUMEL);
    draw(l->r, p->scale, gradient[l->r]);
    lane_wrap(l);
    reduce(l, gradient[l->r], reference[l->r]);
    lane_unwrap(l);
    lane_zero_grad(l, true);
    lane_wrap(l);
    use(l, p->hook, NULL);
    reduce(l, gradient[l->r], hooked[l->r]);
    double off = farthest(hooked[l->r], reference[l->r]);
    l->lab->out[l->r][0] = off;
    l->lab->out[l->r][1] = quantisation_bound(l, p);
    l->lab->out[l->r][2] = farthest(gradient[l->r], hooked[l->r]);
    /* TI-D-24: local gradients, reduced by hand, are the reference */
    if (strcmp(p->hook, "noop") == 0) {
        cddp_work *work = NULL;
        const cddp_tensor *g = &l->grads[0].value;
        CHECK(off > p->atol);
        CHECK_OK(g->device->divide(g, g, l->w, NULL, &l->err));
        CHECK_OK(cddp_group_allreduce(l->group, g, CDDP_RED_SUM, &work, &l->err));
        CHECK_OK(cddp_work_wait(work, 0, &l->err));
        CHECK_OK(g->device->read(g, hooked[l->r], sizeof hooked[l->r], &l->err));
        CHECK(memcmp(hooked[l->r], reference[l->r], sizeof hooked[l->r]) == 0);
    }
}

static lab run_parity(parity p)
{
    lab b = {.world_size = 2, .body = parity_body, .data = &p};
    cd_test_row("%s, scale %g", p.hook, p.scale);
    lab_run(&b);
    return b;
}

/* TI-D-21; two ranks: multiplying by 1/2 and dividing by 2 round equally */
TEST(hooks, allreduce_is_plain_ddp)
{
    lab b = run_parity((parity){"allreduce", 1, 0});
    for (int r = 0; r < 2; r++) assert_true(b.out[r][0] == 0);
}

TEST(hooks, that_compress_stay_within_upstreams_tolerance) /* TI-D-22, TI-D-23 */
{
    static const char *const names[3] = {"fp16_compress", "quantize_per_tensor",
                                         "quantize_per_channel"};
    for (int k = 0; k < 3; k++) {
        lab b = run_parity((parity){names[k], 1, 1e-4});
        for (int r = 0; r < 2; r++) {
            assert_true(b.out[r][0] > 0 && b.out[r][0] <= 1e-4); /* the hook is there, and close */
            if (k > 0) assert_true(b.out[r][0] <= b.out[r][1]);
        }
        /* The tolerance is one of these gradients: a hundred times as large they leave it. */
        b = run_parity((parity){names[k], 100, 1e-4});
        for (int r = 0; r < 2; r++) assert_true(b.out[r][0] > 1e-4);
    }
}

TEST(hooks, noop_leaves_what_an_allreduce_by_hand_makes_equal) /* TI-D-24 */
{
    lab b = run_parity((parity){"noop", 1, 1e-4});
    for (int r = 0; r < 2; r++) assert_true(b.out[r][2] == 0);
}

/* ---- a hundred iterations beside plain DDP ---- */

enum { ITERATIONS = 100, START = 10 };

typedef struct local_sgd {
    const char *hook, *options;
    int validated; /* iterations that equal plain DDP; from then on gradients are the rank's own */
} local_sgd;

/* A linear layer of one input, which is the rank: that is the gradient of each weight. Plus the
** iteration, so that no two are alike. */
static void iterate(lane *l, int i, double gradient[2])
{
    lane_zero_grad(l, false);
    lane_forward(l);
    lane_grad(l, 1, 1.0 + i);
    lane_grad(l, 0, (double)l->r + i);
    lane_end(l);
    gradient[0] = lane_value(l, 0);
    gradient[1] = lane_value(l, 1);
}

static void hundred_body(lane *l)
{
    static double plain[LAB_RANKS][ITERATIONS][2];
    const local_sgd *s = l->lab->data;
    double hooked[2];
    lane_add(l, "weight", CDDP_F32, 5);
    lane_add(l, "bias", CDDP_F32, 5);
    lane_wrap(l);
    for (int i = 0; i < ITERATIONS; i++) iterate(l, i, plain[l->r][i]);
    lane_unwrap(l);
    lane_zero_grad(l, true);
    lane_wrap(l);
    use(l, s->hook, s->options);
    for (int i = 0; i < ITERATIONS; i++) {
        const double mean = ((double)l->w - 1) / 2 + i;
        iterate(l, i, hooked);
        CHECK(plain[l->r][i][0] == mean && plain[l->r][i][1] == 1.0 + i);
        CHECK(hooked[1] == plain[l->r][i][1]);
        CHECK(hooked[0] == (i < s->validated ? mean : (double)l->r + i));
    }
}

static void run_hundred(uint32_t world, const local_sgd *settings, size_t count)
{
    for (size_t k = 0; k < count; k++) {
        local_sgd s = settings[k];
        cd_test_row("%s %s over %u ranks", s.hook, s.options != NULL ? s.options : "",
                    (unsigned)world);
        lab_of(world, hundred_body, &s);
    }
}

TEST(hooks, allreduce_is_plain_ddp_for_a_hundred_iterations) /* TI-D-02 */
{
    static const local_sgd settings[1] = {{"allreduce", NULL, ITERATIONS}};
    run_hundred(2, settings, 1);
    run_hundred(4, settings, 1);
}

/* TI-D-04: the world as its own subgroup, a start that never comes, and local gradients from the
** start on. */
TEST(hooks, post_local_sgd_is_plain_ddp_while_it_reduces_over_everybody)
{
    static const local_sgd two[3] = {
        {"post_local_sgd", "start_localSGD_iter=10,subgroup_size=2", ITERATIONS},
        {"post_local_sgd", "start_localSGD_iter=1000,subgroup_size=1", ITERATIONS},
        {"post_local_sgd", "start_localSGD_iter=10,post_local_gradient_allreduce=false", START}};
    static const local_sgd four[2] = {{"post_local_sgd", "start_localSGD_iter=10,subgroup_size=4",
                                       ITERATIONS},
                                      {"post_local_sgd", "start_localSGD_iter=10,subgroup_size=1",
                                       START}};
    run_hundred(2, two, 3);
    run_hundred(4, four, 2);
}

/* VER-13: two backwards over everybody, counted, then none; the counter stands still. Gradients are
** rank + 1. */
LAB(hooks, post_local_sgd_counts_to_its_start_and_stays_there, 2)
{
    static const uint64_t counters[4] = {1, 2, 2, 2};
    const cddp_hook *hook = cd_hook_find("post_local_sgd");
    lane_add(l, "p", CDDP_F32, 3);
    lane_wrap(l);
    use(l, "post_local_sgd", "start_localSGD_iter=2,post_local_gradient_allreduce=false");
    for (int i = 0; i < 4; i++) {
        tape kept = {.used = 0};
        const cddp_state_writer writer = {&kept, tape_write};
        /* the tag of this hook's state, the model (two), the counter, and the seal */
        uint64_t words[5];
        lane_zero_grad(l, true);
        lane_iterate(l, 1.0 + l->r);
        CHECK(lane_value(l, 0) == (i < 2 ? 1.5 : 1.0 + l->r));
        CHECK_OK(hook->save(cddp_ddp_comm_hook_state(l->ddp), &writer, &l->err));
        CHECK(kept.used == sizeof words);
        memcpy(words, kept.bytes, sizeof words);
        CHECK(words[3] == counters[i]);
    }
}

/* ---- a quarter ---- */

typedef struct quarter {
    const char *hook, *inner, *options;
    bool views, static_graph;
} quarter;

/* The loss is the mean of a 2 × 2 parameter and what the rank adds: each rank's gradient is 1/4,
** exact in every dtype. */
static void quarter_body(lane *l)
{
    const quarter *q = l->lab->data;
    l->options.gradient_as_bucket_view = q->views;
    l->options.static_graph = q->static_graph;
    lane_add(l, "t0.p", CDDP_F32, 4);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find(q->hook),
                                         q->inner != NULL ? cd_hook_find(q->inner) : NULL,
                                         q->options, &l->err));
    for (int step = 0; step < 3; step++) {
        float got[4];
        lane_zero_grad(l, true);
        lane_iterate(l, 0.25);
        CHECK_OK(l->device->read(&l->grads[0].value, got, sizeof got, &l->err));
        for (int i = 0; i < 4; i++) CHECK(got[i] == 0.25f);
    }
}

/* TI-D-14, TI-D-15, TI-D-17, TI-D-18: upstream's GPU tests of these hooks, here on the
** simulator. */
TEST(hooks, give_a_quarter_with_views_and_static_graphs)
{
    static const char *const names[5][2] = {{"allreduce", NULL},
                                            {"fp16_compress", NULL},
                                            {"bf16_compress", NULL},
                                            {"fp16_compress_wrapper", "allreduce"},
                                            {"bf16_compress_wrapper", "allreduce"}};
    for (int k = 0; k < 20; k++) {
        quarter q = {.hook = names[k / 4][0],
                     .inner = names[k / 4][1],
                     .views = k % 2 == 1,
                     .static_graph = k / 2 % 2 == 1};
        cd_test_row("%s, views %d, static graph %d", q.hook, q.views, q.static_graph);
        lab_of(2, quarter_body, &q);
    }
    /* the batched form stands where upstream batches tensors of one shape */
    for (int k = 0; k < 16; k++) {
        char options[96];
        snprintf(options, sizeof options, "use_error_feedback=%s,warm_start=%s",
                 k % 2 == 1 ? "true" : "false", k / 2 % 2 == 1 ? "true" : "false");
        quarter q = {.hook = k / 4 % 2 == 1 ? "batched_powersgd" : "powersgd",
                     .options = options,
                     .views = k / 8 == 1};
        cd_test_row("%s %s, views %d", q.hook, options, q.views);
        lab_of(2, quarter_body, &q);
    }
}

/* ---- eleven layers ---- */

typedef struct flags {
    int count;
    bool is_last[64];
} flags;
static flags seen[LAB_RANKS];

static cddp_status note_last(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                             cddp_future *future, cddp_error *err)
{
    (void)self, (void)err;
    flags *f = &seen[cddp_group_rank(group)];
    f->is_last[f->count++] = bucket->is_last;
    future->result = bucket->buffer;
    return CDDP_OK;
}

LAB(hooks, see_is_last_on_the_last_bucket_of_every_iteration, 2) /* TI-D-25 */
{
    static const cddp_hook noter = {.size = sizeof noter,
                                    .abi = CDDP_HOOK_ABI,
                                    .name = "noter",
                                    .run = note_last};
    static const char *const names[11] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"};
    flags *f = &seen[l->r];
    for (int i = 0; i < 11; i++) lane_add(l, names[i], CDDP_F32, i == 0 ? 80 : 1600);
    l->options.bucket_cap_mb = 0.01;
    lane_wrap(l);
    CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, &noter, NULL, NULL, &l->err));
    for (int step = 0; step < 3; step++) {
        f->count = 0;
        lane_zero_grad(l, true);
        lane_iterate(l, 1.0);
        CHECK((uint32_t)f->count == cddp_ddp_bucket_count(l->ddp) && (f->count > 4 || step == 0));
        for (int i = 0; i < f->count; i++) CHECK(f->is_last[i] == (i == f->count - 1));
    }
}

/* ---- a future whose value is changed by what follows it ---- */

static cddp_status add_one(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                           cddp_error *err)
{
    (void)self, (void)err;
    float *at = (float *)bucket->buffer.storage + bucket->buffer.offset;
    for (int64_t i = 0; i < cddp_tensor_numel(&bucket->buffer); i++) at[i] += 1;
    future->result = bucket->buffer;
    return CDDP_OK;
}
static cddp_status multiply_by_three(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                                     cddp_error *err)
{
    (void)self;
    future->next = add_one;
    return bucket->buffer.device->scale(&bucket->buffer, &bucket->buffer, 3, NULL, err);
}
static cddp_status sum_and_more(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                cddp_future *future, cddp_error *err)
{
    (void)self;
    future->next = multiply_by_three;
    return cd_future_add_allreduce(future, bucket, &bucket->buffer, group, err);
}

/* TI-C-06: 2 · W · 3 + 1, in this order */
LAB(future, of_an_allreduce_is_changed_by_what_is_chained_to_it, 3)
{
    static const cddp_hook chained = {.size = sizeof chained,
                                      .abi = CDDP_HOOK_ABI,
                                      .name = "chained",
                                      .run = sum_and_more};
    lane_add(l, "p", CDDP_F32, 3);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, &chained, NULL, NULL, &l->err));
    lane_iterate(l, 2.0);
    CHECK(lane_value(l, 0) == 2.0 * l->w * 3 + 1);
}

/* ---- a wrapper over some of the ranks ---- */

/* PyTorch's Python hooks without a group divide by the world and sum over it (VER-21). Both that
** have a twin in C++, which stays among the wrapper's own ranks. */
static cddp_group *worlds[LAB_RANKS];
static uint16_t halves[LAB_RANKS][NUMEL];

static cddp_group *world_of(const cddp_group *group)
{
    return worlds[cddp_group_world_rank(group)->rank];
}

static cddp_status average_over_the_world(const cddp_grad_bucket *bucket, const cddp_tensor *flat,
                                          cddp_group *group, cddp_future *future, cddp_error *err)
{
    cddp_group *world = world_of(group);
    cddp_status status = flat->device->divide(flat, flat, cddp_group_size(world), NULL, err);
    return status != CDDP_OK ? status : cd_future_add_allreduce(future, bucket, flat, world, err);
}
static cddp_status over_the_world(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                  cddp_future *future, cddp_error *err)
{
    (void)self;
    future->result = bucket->buffer;
    return average_over_the_world(bucket, &bucket->buffer, group, future, err);
}
static const cddp_hook pythons_allreduce = {.size = sizeof(cddp_hook),
                                            .abi = CDDP_HOOK_ABI,
                                            .name = "over_the_world",
                                            .run = over_the_world};

static cddp_tensor half_of(const cddp_grad_bucket *bucket, uint64_t rank)
{
    const int64_t numel = cddp_tensor_numel(&bucket->buffer);
    return cddp_tensor_of(bucket->buffer.device, halves[rank], 0, CDDP_F16, &numel, 1);
}
static cddp_status back_to_full(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                                cddp_error *err)
{
    (void)self;
    const cddp_tensor half = half_of(bucket, future->scratch[0]);
    future->result = bucket->buffer;
    return bucket->buffer.device->copy(&bucket->buffer, &half, NULL, err);
}
static cddp_status over_the_world_in_half(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                          cddp_future *future, cddp_error *err)
{
    (void)self;
    future->scratch[0] = cddp_group_world_rank(group)->rank;
    future->next = back_to_full;
    const cddp_tensor half = half_of(bucket, future->scratch[0]);
    cddp_status status = bucket->buffer.device->copy(&half, &bucket->buffer, NULL, err);
    return status != CDDP_OK ? status : average_over_the_world(bucket, &half, group, future, err);
}
static const cddp_hook pythons_fp16 = {.size = sizeof(cddp_hook),
                                       .abi = CDDP_HOOK_ABI,
                                       .name = "over_the_world_in_half",
                                       .run = over_the_world_in_half};

static bool is_pythons(const cddp_hook *hook)
{
    return hook == &pythons_allreduce || hook == &pythons_fp16;
}

typedef struct hooked_subgroup {
    const cddp_hook *hook;
    const char *inner, *options;
} hooked_subgroup;

/* How the hook of this row changes a gradient of rank + 1. */
static double expected_in_pair(const lane *l, const hooked_subgroup *row)
{
    const uint32_t first = l->r / 2 * 2;
    if (is_pythons(row->hook)) return 2.5;
    if (row->hook == cd_hook_find("noop")) return 1.0 + l->r;
    return (1.0 + first + 2.0 + first) / 2;
}

static void subgroup_body(lane *l)
{
    const hooked_subgroup *row = l->lab->data;
    const uint32_t first = l->r / 2 * 2, members[2] = {first, first + 1};
    const cddp_group_subset subset = {.size = sizeof subset,
                                      .name = first == 0 ? "pair 0" : "pair 2",
                                      .member_count = 2,
                                      .members = members};
    cddp_group *pair = NULL;
    uint32_t strangers = 0;
    worlds[l->r] = l->group;
    CHECK_OK(cddp_group_create_subset(l->group, &subset, &pair, &l->err));
    l->options.group = pair;
    lane_add(l, "p", CDDP_F32, NUMEL);
    l->parameters[0].tensor.dim_count = 2; /* a matrix, so that it is worth compressing */
    memcpy(l->parameters[0].tensor.sizes, (int64_t[2]){ROWS, COLUMNS}, 2 * sizeof(int64_t));
    memcpy(l->parameters[0].tensor.strides, (int64_t[2]){COLUMNS, 1}, 2 * sizeof(int64_t));
    l->ones[0].dim_count = 2;
    memcpy(l->ones[0].sizes, l->parameters[0].tensor.sizes, sizeof l->ones[0].sizes);
    memcpy(l->ones[0].strides, l->parameters[0].tensor.strides, sizeof l->ones[0].strides);
    lane_wrap(l);
    if (row->hook != NULL)
        CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, row->hook,
                                             row->inner != NULL ? cd_hook_find(row->inner) : NULL,
                                             row->options, &l->err));
    lane_mark(l);
    for (int step = 0; step < 4; step++) {
        lane_zero_grad(l, true);
        lane_iterate(l, 1.0 + l->r);
        /* Dyadic numbers; the longest chain of roundings is PowerSGD's: per column (batched: two)
        ** three inner products of up to 40 elements, a root, two divisions and two products. */
        const double wanted = expected_in_pair(l, row);
        CHECK(fabs(lane_value(l, 0) - wanted) <= 2 * (3 * 40 + 5) * 0x1p-24 * wanted);
    }
    for (size_t e = l->since; e < l->sink.count; e++)
        strangers += l->sink.events[e].kind == CDDP_EV_collective_post &&
                     l->sink.events[e].as.collective_post.group == cddp_group_id(l->group);
    CHECK(strangers == (is_pythons(row->hook) ? 4 : 0));
    lane_unwrap(l);
    cddp_group_destroy(pair);
}

/* TI-M-04: HOOK-13 as we decided it. Every hook of the table reduces over the wrapper's own group;
** the twins, which ask for the world as PyTorch's hooks do, show what that would be. */
TEST(hook, of_a_wrapper_over_some_ranks_stays_among_them)
{
    static const struct {
        const char *hook, *inner, *options;
    } settings[] = {{"fp16_compress_wrapper", "allreduce", NULL},
                    /* clang-format off */
                    {"bf16_compress_wrapper", "powersgd", NULL},
                    {"powersgd", NULL, "start_powerSGD_iter=2"},
                    {"batched_powersgd", NULL, "start_powerSGD_iter=2,matrix_approximation_rank=2"}, /* padded: rank 2 */
                    {"topk", NULL, "ratio=1"},
                    /* clang-format on */
                    {"post_local_sgd", NULL, "start_localSGD_iter=2,subgroup_size=2"}};
    hooked_subgroup row = {0};
    cd_test_row("no hook");
    lab_of(4, subgroup_body, &row);
    for (size_t i = 0; cd_hook_get_row(i) != NULL; i++) {
        row = (hooked_subgroup){cd_hook_get_row(i)->hook, NULL, NULL};
        for (size_t k = 0; k < sizeof settings / sizeof settings[0]; k++)
            if (strcmp(settings[k].hook, row.hook->name) == 0)
                row.inner = settings[k].inner, row.options = settings[k].options;
        cd_test_row("%s", row.hook->name);
        lab_of(4, subgroup_body, &row);
    }
    row = (hooked_subgroup){&pythons_allreduce, NULL, NULL};
    lab_of(4, subgroup_body, &row);
    row.hook = &pythons_fp16;
    lab_of(4, subgroup_body, &row);
}

/* The bits of this hook's averages, of numbers whose thirds distinguish a division from a product,
** and one order of cast and division from the other: 5 and 7 (GRD-05), 2049 and 65520 (HK-03). */
enum { THIRDS = 12 };
static const double thirds[THIRDS] = {5,    7,    2049, 65504, 65520,   70000,
                                      1e-7, 6e-8, 3e-5, 0.1,   1.0 / 3, 1.0009765625};
typedef struct averages {
    const cddp_hook *hook;
    float got[2 * THIRDS];
} averages;

static void averages_body(lane *l)
{
    averages *all = l->lab->data;
    worlds[l->r] = l->group;
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, all->hook, NULL, NULL, &l->err));
    /* of one rank, then of all, each with its own number */
    for (size_t i = 0; i < 2 * (size_t)THIRDS; i++) {
        lane_zero_grad(l, true);
        lane_iterate(l, i < THIRDS ? l->r == 0 ? thirds[i] : 0 : thirds[(i + l->r) % THIRDS]);
        if (l->r == 0) all->got[i] = lane_f32(l, 0);
    }
}

/* HOOK-11: over everybody the built-in ones give what the Python ones give, and no hook is taken
** for another. */
TEST(hook, of_pythons_style_and_a_built_in_one_have_the_same_bits_over_everybody)
{
    const cddp_hook *const pairs[2][2] = {{&pythons_allreduce, cd_hook_find("allreduce")},
                                          {&pythons_fp16, cd_hook_find("fp16_compress")}};
    averages all[2][2] = {0};
    for (size_t k = 0; k < 2; k++) {
        cd_test_row("%s", pairs[k][1]->name);
        for (size_t style = 0; style < 2; style++) {
            all[k][style].hook = pairs[k][style];
            lab_of(3, averages_body, &all[k][style]);
        }
        assert_memory_equal(all[k][0].got, all[k][1].got, sizeof all[k][0].got);
    }
    for (size_t style = 0; style < 2; style++) {
        assert_true(all[0][style].got[1] == 7.0f / 3 && all[0][style].got[4] == 21840.0f);
        assert_true(all[1][style].got[2] == 682.5f && isinf(all[1][style].got[4]));
    }
}

TEST_MAIN()
