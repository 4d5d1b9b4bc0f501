/* SPDX-License-Identifier: Apache-2.0 */
/* The stated orders of summation, bit for bit: every layer that sums is written here again,
** naively, in the order that its kernels state. In f32, where a different order shows in the last
** bits. Also dropout, whose mask no comparison with differences can judge.
*/
#include "tests/unit/core/model/fixture.h"

#include "core/model/layers/attention.h"
#include "core/model/layers/conv.h"
#include "core/model/layers/dropout.h"
#include "core/model/layers/embedding.h"
#include "core/model/layers/linear.h"
#include "core/model/layers/loss.h"
#include "core/model/layers/norm.h"
#include "core/tensor/math.h"

#include <math.h>
#include <string.h>

enum { N = 7 }; /* samples */

typedef struct bench {
    fixture f;
    cd_value *p[3];
    float *x[3];  /* data of the operands */
    float *dx[3]; /* and of their gradients, after go_back */
} bench;

typedef struct operand {
    uint32_t dim_count;
    int64_t sizes[4];
} operand;

static void bench_open(bench *b, const operand *operands, uint32_t count)
{
    static const char *const names[3] = {"x", "w", "b"};
    memset(b, 0, sizeof *b);
    fixture_open(&b->f);
    for (uint32_t i = 0; i < count; i++)
        fixture_parameter(&b->f, names[i], CDDP_F32, operands[i].sizes, operands[i].dim_count);
    fixture_begin(&b->f);
    for (uint32_t i = 0; i < count; i++) {
        assert_ok(cd_graph_parameter(b->f.graph, i, &b->p[i], &b->f.err), &b->f.err);
        b->x[i] = cd_tensor_data(&b->p[i]->tensor);
    }
}

static float slope(int64_t i) { return (float)((double)(i * 7 % 13 + 1) / 9.0); }

/* dy_i = slope(i) */
static void go_back(bench *b, cd_value *y)
{
    cd_gradient gradient = {.kind = CDDP_GRAD_DENSE};
    assert_ok(cd_graph_tensor(b->f.graph, CDDP_F32, y->tensor.sizes, y->tensor.dim_count,
                              &gradient.value, &b->f.err),
              &b->f.err);
    for (int64_t i = 0; i < cddp_tensor_numel(&gradient.value); i++)
        element_set(&gradient.value, i, slope(i));
    cd_backward_options options = {.roots = &y, .root_count = 1, .root_gradients = &gradient};
    assert_ok(cd_graph_backward(b->f.graph, &options, &b->f.err), &b->f.err);
    for (uint32_t i = 0; i < b->f.module->parameter_count; i++)
        b->dx[i] = cd_tensor_data(&b->f.module->parameters[i].grad.value);
}

static void assert_same(const char *what, const float *got, const float *wanted, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!(got[i] == wanted[i]))
            fail_msg("%s %lld: got %a, the stated order gives %a", what, (long long)i, got[i],
                     wanted[i]);
}

TEST(linear, sums_inputs_then_adds_the_bias_and_its_gradients_sum_positions_then_samples)
{
    enum { T = 3, IN = 11, OUT = 5 };
    bench b;
    cd_value *y = NULL;
    static float wanted_y[N * T * OUT], dx[N * T * IN], dw[OUT * IN], db[OUT];
    bench_open(&b, (const operand[]){{3, {N, T, IN}}, {2, {OUT, IN}}, {1, {OUT}}}, 3);
    assert_ok(cd_linear(b.f.graph, b.p[0], b.p[1], b.p[2], &y, &b.f.err), &b.f.err);
    memset(dx, 0, sizeof dx), memset(dw, 0, sizeof dw), memset(db, 0, sizeof db);
    for (int r = 0; r < N * T; r++)
        for (int o = 0; o < OUT; o++) {
            float sum = 0;
            for (int i = 0; i < IN; i++) sum += b.x[0][r * IN + i] * b.x[1][o * IN + i];
            wanted_y[r * OUT + o] = sum + b.x[2][o];
        }
    assert_same("y", cd_tensor_data(&y->tensor), wanted_y, N * T * OUT);
    go_back(&b, y);
    for (int r = 0; r < N * T; r++)
        for (int i = 0; i < IN; i++)
            for (int o = 0; o < OUT; o++) dx[r * IN + i] += slope(r * OUT + o) * b.x[1][o * IN + i];
    for (int s = 0; s < N; s++)
        for (int o = 0; o < OUT; o++) {
            float bias = 0;
            for (int t = 0; t < T; t++) bias += slope((s * T + t) * OUT + o);
            db[o] += bias;
            for (int i = 0; i < IN; i++) {
                float sum = 0;
                for (int t = 0; t < T; t++)
                    sum += slope((s * T + t) * OUT + o) * b.x[0][(s * T + t) * IN + i];
                dw[o * IN + i] += sum;
            }
        }
    assert_same("dx", b.dx[0], dx, N * T * IN);
    assert_same("dw", b.dx[1], dw, OUT * IN);
    assert_same("db", b.dx[2], db, OUT);
    fixture_close(&b.f);
}

TEST(convolution,
     sums_channel_row_column_then_adds_the_bias_and_its_gradients_sum_positions_then_samples)
{
    enum { C = 2, H = 4, W = 5, OUT = 3, PATCH = C * 9, PLANE = H * W };
    bench b;
    cd_value *y = NULL;
    static float wanted_y[N * OUT * PLANE], dw[OUT * PATCH], db[OUT];
    bench_open(&b, (const operand[]){{4, {N, C, H, W}}, {4, {OUT, C, 3, 3}}, {1, {OUT}}}, 3);
    assert_ok(cd_conv2d_layer(b.f.graph, b.p, &(cd_conv2d){1, 1}, &y, &b.f.err), &b.f.err);
    memset(dw, 0, sizeof dw), memset(db, 0, sizeof db);
    for (int s = 0; s < N; s++)
        for (int o = 0; o < OUT; o++) {
            float bias = 0;
            for (int p = 0; p < PLANE; p++) {
                float sum = 0;
                for (int k = 0; k < PATCH; k++) {
                    int row = p / W + k % 9 / 3 - 1, column = p % W + k % 3 - 1;
                    if (row < 0 || row >= H || column < 0 || column >= W) continue;
                    sum += b.x[1][o * PATCH + k] * b.x[0][((s * C + k / 9) * H + row) * W + column];
                }
                wanted_y[(s * OUT + o) * PLANE + p] = sum + b.x[2][o];
                bias += slope((s * OUT + o) * PLANE + p);
            }
            db[o] += bias;
            for (int k = 0; k < PATCH; k++) {
                float sum = 0;
                for (int p = 0; p < PLANE; p++) {
                    int row = p / W + k % 9 / 3 - 1, column = p % W + k % 3 - 1;
                    if (row < 0 || row >= H || column < 0 || column >= W) continue;
                    sum += slope((s * OUT + o) * PLANE + p) *
                           b.x[0][((s * C + k / 9) * H + row) * W + column];
                }
                dw[o * PATCH + k] += sum;
            }
        }
    assert_same("y", cd_tensor_data(&y->tensor), wanted_y, N * OUT * PLANE);
    go_back(&b, y);
    assert_same("dw", b.dx[1], dw, OUT * PATCH);
    assert_same("db", b.dx[2], db, OUT);
    fixture_close(&b.f);
}

TEST(layer_norm, sums_over_the_row_in_index_order)
{
    enum { WIDTH = 9 };
    bench b;
    cd_value *y = NULL;
    float wanted[N * WIDTH], dw[WIDTH] = {0}, db[WIDTH] = {0};
    bench_open(&b, (const operand[]){{2, {N, WIDTH}}, {1, {WIDTH}}, {1, {WIDTH}}}, 3);
    assert_ok(cd_layer_norm(b.f.graph, b.p[0], b.p[1], b.p[2], &y, &b.f.err), &b.f.err);
    for (int s = 0; s < N; s++) {
        const float *x = b.x[0] + s * WIDTH;
        float mean = 0, squares = 0;
        for (int i = 0; i < WIDTH; i++) mean += x[i];
        mean /= WIDTH;
        for (int i = 0; i < WIDTH; i++) squares += (x[i] - mean) * (x[i] - mean);
        float inverse = 1 / sqrtf(squares / WIDTH + 1e-5f);
        for (int i = 0; i < WIDTH; i++) {
            wanted[s * WIDTH + i] = (x[i] - mean) * inverse * b.x[1][i] + b.x[2][i];
            dw[i] += slope(s * WIDTH + i) * ((x[i] - mean) * inverse);
            db[i] += slope(s * WIDTH + i);
        }
    }
    assert_same("y", cd_tensor_data(&y->tensor), wanted, N * WIDTH);
    go_back(&b, y);
    assert_same("dw", b.dx[1], dw, WIDTH);
    assert_same("db", b.dx[2], db, WIDTH);
    fixture_close(&b.f);
}

TEST(attention, sums_the_head_then_the_keys_in_index_order)
{
    enum { T = 5, D = 6 };
    bench b;
    cd_value *y = NULL;
    float wanted[N * T * D];
    bench_open(&b, (const operand[]){{3, {N, T, 3 * D}}}, 1);
    assert_ok(cd_attention_layer(b.f.graph, b.p[0], &(cd_attention){1, false}, &y, &b.f.err),
              &b.f.err);
    for (int s = 0; s < N; s++)
        for (int q = 0; q < T; q++) {
            const float *row = b.x[0] + s * T * 3 * D;
            float share[T], top = -INFINITY, total = 0;
            for (int k = 0; k < T; k++) {
                float score = 0;
                for (int i = 0; i < D; i++) score += row[q * 3 * D + i] * row[k * 3 * D + D + i];
                share[k] = score * (1 / sqrtf(D));
                if (share[k] > top) top = share[k];
            }
            for (int k = 0; k < T; k++) total += share[k] = cd_exp_f32(share[k] - top);
            for (int k = 0; k < T; k++) share[k] /= total;
            for (int i = 0; i < D; i++) {
                float sum = 0;
                for (int k = 0; k < T; k++) sum += share[k] * row[k * 3 * D + 2 * D + i];
                wanted[(s * T + q) * D + i] = sum;
            }
        }
    assert_same("y", cd_tensor_data(&y->tensor), wanted, N * T * D);
    fixture_close(&b.f);
}

TEST(embedding_bag, adds_positions_in_order_and_equal_rows_of_a_sample_before_samples)
{
    enum { T = 4, ROWS = 3, WIDTH = 2 };
    bench b;
    cd_value *y = NULL;
    cddp_tensor index;
    float wanted[N * WIDTH] = {0}, table[ROWS * WIDTH] = {0};
    bench_open(&b, (const operand[]){{2, {ROWS, WIDTH}}}, 1);
    assert_ok(cd_graph_tensor(b.f.graph, CDDP_I64, (const int64_t[2]){N, T}, 2, &index, &b.f.err),
              &b.f.err);
    int64_t *at = index.storage;
    for (int i = 0; i < N * T; i++) at[i] = i * i % ROWS;
    assert_ok(cd_embedding_layer(b.f.graph, b.p[0], &(cd_embedding){&index, true, false}, &y,
                                 &b.f.err),
              &b.f.err);
    for (int s = 0; s < N; s++)
        for (int t = 0; t < T; t++)
            for (int i = 0; i < WIDTH; i++)
                wanted[s * WIDTH + i] += b.x[0][at[s * T + t] * WIDTH + i];
    assert_same("y", cd_tensor_data(&y->tensor), wanted, N * WIDTH);
    go_back(&b, y);
    for (int s = 0; s < N; s++)
        for (int row = 0; row < ROWS; row++)
            for (int i = 0; i < WIDTH; i++) {
                float sum = 0;
                for (int t = 0; t < T; t++)
                    if (at[s * T + t] == row) sum += slope(s * WIDTH + i);
                table[row * WIDTH + i] += sum;
            }
    assert_same("table", b.dx[0], table, ROWS * WIDTH);
    fixture_close(&b.f);
}

/* Without a bag the positions of one sample have different gradients, and their order shows. */
TEST(embedding, sums_equal_rows_of_a_sample_in_order_of_position)
{
    enum { T = 6 };
    bench b;
    cd_value *y = NULL;
    cddp_tensor index;
    float row = 0;
    bench_open(&b, (const operand[]){{2, {1, 1}}}, 1);
    assert_ok(cd_graph_tensor(b.f.graph, CDDP_I64, (const int64_t[2]){N, T}, 2, &index, &b.f.err),
              &b.f.err);
    assert_ok(cd_embedding_layer(b.f.graph, b.p[0], &(cd_embedding){&index, false, false}, &y,
                                 &b.f.err),
              &b.f.err);
    go_back(&b, y);
    for (int s = 0; s < N; s++) {
        float sum = 0;
        for (int t = 0; t < T; t++) sum += slope(s * T + t);
        row += sum;
    }
    assert_same("table", b.dx[0], &row, 1);
    fixture_close(&b.f);
}

TEST(losses, sum_elements_then_weighted_samples_in_order_and_divide_once)
{
    enum { SAMPLES = 61, WIDTH = 9 };
    bench b;
    cd_value *target = NULL, *losses = NULL, *loss = NULL;
    float wanted[SAMPLES], total = 0, dx[SAMPLES * WIDTH];
    double weights[SAMPLES];
    bench_open(&b, (const operand[]){{2, {SAMPLES, WIDTH}}, {2, {SAMPLES, WIDTH}}}, 2);
    for (int s = 0; s < SAMPLES; s++) weights[s] = slope(s);
    assert_ok(cd_graph_detach(b.f.graph, b.p[1], &target, &b.f.err), &b.f.err);
    assert_ok(cd_squared_error(b.f.graph, b.p[0], target, &losses, &b.f.err), &b.f.err);
    assert_ok(cd_weighted_sum(b.f.graph, losses, weights, 7, &loss, &b.f.err), &b.f.err);
    for (int s = 0; s < SAMPLES; s++) {
        wanted[s] = 0;
        for (int i = s * WIDTH; i < (s + 1) * WIDTH; i++)
            wanted[s] += (b.x[0][i] - b.x[1][i]) * (b.x[0][i] - b.x[1][i]);
        total += wanted[s] * (float)weights[s];
    }
    total /= 7;
    assert_same("losses", cd_tensor_data(&losses->tensor), wanted, SAMPLES);
    assert_same("loss", cd_tensor_data(&loss->tensor), &total, 1);
    assert_ok(backward_from(&b.f, loss, false), &b.f.err);
    for (int i = 0; i < SAMPLES * WIDTH; i++)
        dx[i] = (1.0f / 7) * (float)weights[i / WIDTH] * (2 * (b.x[0][i] - b.x[1][i]));
    assert_same("dx", cd_tensor_data(&b.f.module->parameters[0].grad.value), dx, SAMPLES * WIDTH);
    fixture_close(&b.f);
}

/* 1 + 2^-24 rounds to 1; sixty of them first would not vanish. */
TEST(weighted_sum, starts_with_the_first_sample)
{
    enum { SAMPLES = 61 };
    bench b;
    cd_value *loss = NULL;
    bench_open(&b, (const operand[]){{1, {SAMPLES}}}, 1);
    for (int s = 0; s < SAMPLES; s++) b.x[0][s] = s == 0 ? 1 : 0x1p-24f;
    assert_ok(cd_weighted_sum(b.f.graph, b.p[0], NULL, 0, &loss, &b.f.err), &b.f.err);
    assert_true(element_get(&loss->tensor, 0) == 1);
    fixture_close(&b.f);
}

/* ---- dropout ---- */

static void drop(bench *b, const cd_dropout *dropout, float *out)
{
    cd_value *y = NULL;
    assert_ok(cd_dropout_layer(b->f.graph, b->p[0], dropout, &y, &b->f.err), &b->f.err);
    memcpy(out, cd_tensor_data(&y->tensor), (size_t)cddp_tensor_numel(&y->tensor) * sizeof *out);
}

TEST(dropout, keeps_and_scales_or_zeroes_by_seed_layer_iteration_and_sample)
{
    enum { WIDTH = 1000, COUNT = 4 };
    static float first[COUNT * WIDTH], other[COUNT * WIDTH];
    bench b;
    const int64_t ids[COUNT] = {9, 2, 5, 2}, moved[COUNT] = {2, 9, 1, 5};
    bench_open(&b, (const operand[]){{2, {COUNT, WIDTH}}}, 1);
    for (int i = 0; i < COUNT * WIDTH; i++) b.x[0][i] = 3; /* the mask alone */
    cd_dropout d = {.probability = 0.25, .seed = 1, .layer = 2, .iteration = 3, .sample_ids = ids};
    drop(&b, &d, first);
    int zeros = 0;
    for (int i = 0; i < COUNT * WIDTH; i++) {
        assert_true(first[i] == 0 || first[i] == 3 * (float)(1 / 0.75));
        zeros += first[i] == 0;
    }
    /* 4000 draws of 1/4, but sample 2 stands there twice: 3000 free ones, standard deviation below
    ** 50. */
    assert_in_range(zeros, 750, 1250);
    /* sample 2, both times */
    assert_memory_equal(first + WIDTH, first + 3 * WIDTH, WIDTH * sizeof(float));
    assert_memory_not_equal(first, first + WIDTH, WIDTH * sizeof(float));
    d.sample_ids = moved;
    drop(&b, &d, other);
    assert_memory_equal(first, other + WIDTH, WIDTH * sizeof(float));
    assert_memory_equal(first + WIDTH, other, WIDTH * sizeof(float));
    d.sample_ids = ids;
    for (int change = 0; change < 3; change++) {
        cd_dropout e = d;
        e.seed += change == 0;
        e.layer += change == 1;
        e.iteration += change == 2;
        drop(&b, &e, other);
        assert_memory_not_equal(first, other, WIDTH * sizeof(float));
    }
    b.f.graph->training = false;
    drop(&b, &d, other);
    assert_memory_equal(other, b.x[0], sizeof other);
    d.probability = 1;
    cd_value *y = NULL;
    assert_fails(cd_dropout_layer(b.f.graph, b.p[0], &d, &y, &b.f.err), CDDP_E_ARG, &b.f.err,
                 "probability 1 is not in [0, 1)");
    fixture_close(&b.f);
}

TEST_MAIN()
