/* SPDX-License-Identifier: Apache-2.0 */
/* The bounds that hooks state with their laws, as numbers. A looser one accuses nobody, and a
** tighter one accuses only where rounding is at its worst: no run would show either.
**
** A row is the sum of the bounds of one law, over two ranks and four steps. The gradients of a
** tiny row are multiples of the smallest number of f32, where bounds are made of smallest steps.
** When a bound changes on purpose, take the row that the test prints.
*/
#include "tests/unit/core/ddp/fixture.h"

#include "core/base/prng.h"
#include "core/hooks/hook.h"
#include "core/trace/event.h"

#include <math.h>

#define LAWS_MAX 12
#define RELATIVE 1e-9 /* the sums are of f64; a bound that was changed differs by more */

typedef struct sum {
    char law[64];
    uint32_t count;
    double bounds;
} sum;

typedef struct sums {
    const char *hook, *options;
    cddp_dtype dtype;
    double scale;
    sum of[LAWS_MAX];
    size_t count;
} sums;

static void add_bound(sums *all, const char *law, double bound)
{
    size_t i = 0;
    while (i < all->count && strncmp(all->of[i].law, law, sizeof all->of[i].law - 1) != 0) i++;
    if (i == all->count) {
        assert_true(all->count < LAWS_MAX);
        (void)snprintf(all->of[all->count++].law, sizeof all->of[i].law, "%s", law);
    }
    all->of[i].count++;
    all->of[i].bounds += bound;
}

static void add_matrix(lane *l, const char *name, cddp_dtype dtype, int64_t rows, int64_t columns)
{
    const int64_t sizes[2] = {rows, columns};
    const size_t i = l->count++;
    l->parameters[i] = (cddp_parameter){.name = name,
                                        .requires_grad = true,
                                        .grad = &l->grads[i],
                                        .tensor = lane_tensor(l, dtype, sizes, 2, 0.0)};
    l->ones[i] = lane_tensor(l, dtype, sizes, 2, 1.0);
}

static void train_step(lane *l, const sums *all, cd_prng *prng)
{
    double values[64];
    lane_zero_grad(l, true);
    lane_forward(l);
    for (size_t i = l->count; i-- > 0;) {
        lane_accumulate(l, i, 0.0);
        const cddp_tensor *grad = &l->grads[i].value;
        const int64_t numel = cddp_tensor_numel(grad);
        for (int64_t k = 0; k < numel; k++)
            values[k] = all->scale * (double)cd_prng_between(prng, -1024, 1024);
        const cddp_tensor from =
            cddp_tensor_of(l->device, values, 0, CDDP_F64, grad->sizes, grad->dim_count);
        CHECK_OK(l->device->copy(grad, &from, NULL, &l->err));
        lane_hook(l, i);
    }
    lane_end(l);
}

static void bounds_body(lane *l)
{
    sums *all = l->lab->data;
    const cd_prng root = cd_prng_seed(5);
    cd_prng prng = cd_prng_split_index(&root, "gradient", l->r);
    add_matrix(l, "a", all->dtype, 6, 4);
    add_matrix(l, "b", all->dtype, 5, 8);
    lane_add(l, "bias", all->dtype, 7);
    lane_wrap(l);
    CHECK_OK(
        cddp_ddp_register_comm_hook(l->ddp, cd_hook_find(all->hook), NULL, all->options, &l->err));
    for (int step = 0; step < 4; step++) train_step(l, all, &prng);
    for (size_t i = 0; i < l->sink.count; i++) {
        const cddp_event e = cd_memory_sink_get(&l->sink, i);
        if (e.kind == CDDP_EV_hook_law) add_bound(all, e.text, cd_f64_of(e.as.hook_law.bound));
    }
}

typedef struct row {
    const char *hook, *options;
    cddp_dtype dtype;
    double scale;
    const char *law; /* how it begins */
    uint32_t count;
    double bounds;
} row;

#define TINY 0x1p-149
static const row rows[] = {
#include "tests/unit/core/hooks/bounds_golden.def"
};

TEST(bounds, of_every_stated_law_have_their_numbers)
{
    bool differs = false;
    const size_t row_count = sizeof rows / sizeof rows[0];
    for (size_t first = 0, end; first < row_count; first = end) {
        sums all = {.hook = rows[first].hook,
                    .options = rows[first].options,
                    .dtype = rows[first].dtype,
                    .scale = rows[first].scale};
        lab b = {.world_size = 2, .body = bounds_body, .data = &all, .level = CDDP_TRACE_DIGEST};
        lab_run(&b);
        for (end = first; end < row_count && strcmp(rows[end].hook, all.hook) == 0 &&
                          strcmp(rows[end].options, all.options) == 0 &&
                          rows[end].dtype == all.dtype && rows[end].scale == all.scale;)
            end++;
        for (size_t i = 0; i < all.count || first + i < end; i++) {
            const sum none = {"", 0, 0}, *got = i < all.count ? &all.of[i] : &none;
            const row *wanted = first + i < end ? &rows[first + i] : NULL;
            if (wanted != NULL && got->count == wanted->count &&
                strncmp(got->law, wanted->law, strlen(wanted->law)) == 0 &&
                fabs(got->bounds - wanted->bounds) <= RELATIVE * wanted->bounds)
                continue;
            differs = true;
            print_message("{\"%s\", \"%s\", CDDP_%s, %s, \"%.36s\", %u, %.17g},\n", all.hook,
                          all.options, all.dtype == CDDP_F16 ? "F16" : "F32",
                          all.scale == TINY ? "TINY" : "0x1p-6", got->law, got->count, got->bounds);
        }
    }
    assert_false(differs);
}

static void overflow_body(lane *l)
{
    bounds_body(l);
    size_t silent = 0;
    for (size_t i = 0; i < l->sink.count; i++) {
        const cddp_event *e = &l->sink.events[i];
        if (e->kind != CDDP_EV_hook_law || isfinite(cd_f64_of(e->as.hook_law.bound))) continue;
        CHECK(e->as.hook_law.left == 0 && e->as.hook_law.right == 0);
        silent++;
    }
    CHECK(silent > 0);
}

/* An overflow is I-RANGE's: a law of numbers that are none is true for everything. */
TEST(bounds, a_law_without_a_bound_compares_nothing_with_nothing)
{
    static const char *const options[] = {
        "start_powerSGD_iter=2,min_compression_rate=0",
        "start_powerSGD_iter=2,min_compression_rate=0,matrix_approximation_rank=8"};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        cd_test_row("%s", options[i]);
        sums all = {.hook = "powersgd", .options = options[i], .dtype = CDDP_F32, .scale = 0x1p120};
        lab b = {.world_size = 2, .body = overflow_body, .data = &all, .level = CDDP_TRACE_DIGEST};
        lab_run(&b);
    }
}

/* ---- the bytes that hooks promise to send at most ---- */

#define STEPS 3

static struct {
    cddp_hook hook; /* outlives the wrapper, which borrows it */
    const cddp_hook *of;
    uint64_t bytes[STEPS];
    uint32_t call_count;
} promised;

static cddp_status ask_and_run(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                               cddp_future *future, cddp_error *err)
{
    if (cddp_group_rank(group) == 0)
        promised.bytes[promised.call_count++ % STEPS] = promised.of->promise(self, bucket);
    return promised.of->run(self, bucket, group, future, err);
}

static const struct {
    const char *hook, *inner, *options;
    uint64_t first, last; /* bytes of 71 elements in f32: in the first step and in the last one */
} promises[] = {
    {"allreduce", NULL, NULL, 284, 284},
    {"noop", NULL, NULL, 0, 0},
    {"fp16_compress", NULL, NULL, 142, 142},
    {"bf16_compress", NULL, NULL, 142, 142},
    {"fp16_compress_wrapper", "allreduce", NULL, 142, 142},
    {"bf16_compress_wrapper", "topk", "k=5", 5 * (4 + 2), 5 * (4 + 2)},
    /* 12 for the span; of f32 there are at most 15 bins and a row of special codes */
    {"reproducible", NULL, NULL, 12 + 16 * 71 * 4, 12 + 16 * 71 * 4},
    {"powersgd", NULL, "start_powerSGD_iter=2", 284, 4 * (10 + 13 + 7)},
    {"powersgd", NULL, "start_powerSGD_iter=2,min_compression_rate=3", 284, 4 * (24 + 13 + 7)},
    {"batched_powersgd", NULL, "start_powerSGD_iter=2", 284, 4 * (9 + 9)},
    {"topk", NULL, "ratio=0.1", 7 * (4 + 4), 7 * (4 + 4)},
    {"topk", NULL, "k=200", 71 * (4 + 4), 71 * (4 + 4)},
    {"quantize_per_tensor", NULL, NULL, 8 + 71, 8 + 71},
    {"quantize_per_channel", NULL, "bucket_size=16", 5 * (8 + 16), 5 * (8 + 16)},
    {"post_local_sgd", NULL, "start_localSGD_iter=2,subgroup_size=2", 284, 284},
    {"post_local_sgd", NULL, "start_localSGD_iter=2,post_local_gradient_allreduce=false", 284, 0},
};

static void promise_body(lane *l)
{
    const size_t i = *(const size_t *)l->lab->data;
    const cddp_hook *inner = promises[i].inner != NULL ? cd_hook_find(promises[i].inner) : NULL;
    add_matrix(l, "a", CDDP_F32, 6, 4);
    add_matrix(l, "b", CDDP_F32, 5, 8);
    lane_add(l, "bias", CDDP_F32, 7);
    lane_wrap(l);
    CHECK_OK(
        cddp_ddp_register_comm_hook(l->ddp, &promised.hook, inner, promises[i].options, &l->err));
    for (int step = 0; step < STEPS; step++) lane_iterate(l, 1.0 + l->r);
}

TEST(promises, of_every_hook_have_their_bytes)
{
    for (size_t i = 0; i < sizeof promises / sizeof promises[0]; i++) {
        cd_test_row("%s %s", promises[i].hook, promises[i].options);
        promised.of = cd_hook_find(promises[i].hook);
        promised.hook = *promised.of;
        promised.hook.run = ask_and_run;
        promised.call_count = 0;
        lab b = {.world_size = 2, .body = promise_body, .data = &i};
        lab_run(&b);
        assert_int_equal(promised.call_count, STEPS);
        assert_int_equal(promised.bytes[0], promises[i].first);
        assert_int_equal(promised.bytes[STEPS - 1], promises[i].last);
    }
}

TEST_MAIN()
