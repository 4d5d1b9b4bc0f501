/* SPDX-License-Identifier: Apache-2.0 */
/* Loops are written so that the last index is contiguous and sums run over rows: a C compiler makes
** vectors of them without reordering a sum. */
#include "gpt2.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The order of parameters: two tables, twelve per layer, two at the end. */
enum { TOKENS, POSITIONS, FIRST_LAYER };
enum {
    NORM1_W,
    NORM1_B,
    QKV_W,
    QKV_B,
    PROJ_W,
    PROJ_B,
    NORM2_W,
    NORM2_B,
    UP_W,
    UP_B,
    DOWN_W,
    DOWN_B
};

static int of_layer(int layer, int which) { return FIRST_LAYER + GPT2_PER_LAYER * layer + which; }
static int norm_w(const gpt2 *m) { return of_layer(m->config.layers, 0); }

static float *value(gpt2 *m, int p) { return m->parameters[p].values; }
static float *slope(gpt2 *m, int p) { return m->parameters[p].gradient; }
static void done(const gpt2 *m, int p)
{
    if (m->ready != NULL) m->ready(m->ready_context, p);
}

/* ---- numbers that look random ---- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30, x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27, x *= UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* In (-1, 1), the mean of four: narrow in the middle, as weights should be. */
static float draw(uint64_t seed, uint64_t k)
{
    double sum = 0;
    for (uint64_t i = 0; i < 4; i++)
        sum += (double)(mix(seed * UINT64_C(0x9e3779b97f4a7c15) + 4 * k + i + 1) >> 11) * 0x1p-53;
    return (float)(sum / 2 - 1);
}

/* A walk over the vocabulary: the next token follows from this one by one of three rules. */
void gpt2_text(const gpt2_config *c, int64_t id, int *tokens)
{
    const uint64_t seed = mix((uint64_t)id + 1);
    uint64_t token = seed % (uint64_t)c->vocabulary;
    for (int t = 0; t <= c->context; t++) {
        tokens[t] = (int)token;
        const uint64_t rule = mix(seed + (uint64_t)t) % 3;
        token = (token * (rule + 2) + 3 * rule + 1) % (uint64_t)c->vocabulary;
    }
}

/* ---- layers: forward, and backward, which adds to d* ---- */

/* y = x·w + b, with w (in, out) as in GPT-2. */
static void linear(float *y, const float *x, const float *w, const float *b, int rows, int in,
                   int out)
{
    for (int t = 0; t < rows; t++) {
        float *yt = y + (size_t)t * (size_t)out;
        memcpy(yt, b, (size_t)out * sizeof *yt);
        for (int i = 0; i < in; i++) {
            const float a = x[t * in + i];
            const float *wi = w + (size_t)i * (size_t)out;
            for (int o = 0; o < out; o++) yt[o] += a * wi[o];
        }
    }
}

enum { LANES = 8 };

static float dot(const float *a, const float *b, int count)
{
    float lanes[LANES] = {0}, sum = 0;
    int i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int k = 0; k < LANES; k++) lanes[k] += a[i + k] * b[i + k];
    for (; i < count; i++) sum += a[i] * b[i];
    for (int k = 0; k < LANES; k++) sum += lanes[k];
    return sum;
}

typedef struct linear_slopes {
    float *dx, *dw, *db; /* dx is written, the others are added to */
} linear_slopes;

static void linear_back(linear_slopes s, const float *dy, const float *x, const float *w, int rows,
                        int in, int out)
{
    for (int t = 0; t < rows; t++) {
        const float *dyt = dy + (size_t)t * (size_t)out;
        for (int o = 0; o < out; o++) s.db[o] += dyt[o];
        for (int i = 0; i < in; i++) {
            const size_t row = (size_t)i * (size_t)out;
            const float a = x[t * in + i];
            s.dx[t * in + i] = dot(dyt, w + row, out);
            for (int o = 0; o < out; o++) s.dw[row + (size_t)o] += a * dyt[o];
        }
    }
}

static void layer_norm(float *y, float *mean, float *scale, const float *x, const float *w,
                       const float *b, int rows, int width)
{
    for (int t = 0; t < rows; t++, x += width, y += width) {
        float sum = 0, square = 0;
        for (int i = 0; i < width; i++) sum += x[i];
        mean[t] = sum / (float)width;
        for (int i = 0; i < width; i++) square += (x[i] - mean[t]) * (x[i] - mean[t]);
        scale[t] = 1 / sqrtf(square / (float)width + 1e-5f);
        for (int i = 0; i < width; i++) y[i] = (x[i] - mean[t]) * scale[t] * w[i] + b[i];
    }
}

/* dx is added to: it has the residual's part already. */
static void layer_norm_back(linear_slopes s, const float *dy, const float *x, const float *mean,
                            const float *scale, const float *w, int rows, int width)
{
    for (int t = 0; t < rows; t++, x += width, dy += width, s.dx += width) {
        float along = 0, across = 0;
        for (int i = 0; i < width; i++) {
            const float hat = (x[i] - mean[t]) * scale[t], d = dy[i] * w[i];
            s.dw[i] += dy[i] * hat;
            s.db[i] += dy[i];
            along += d;
            across += d * hat;
        }
        along /= (float)width, across /= (float)width;
        for (int i = 0; i < width; i++) {
            const float hat = (x[i] - mean[t]) * scale[t];
            s.dx[i] += (dy[i] * w[i] - along - hat * across) * scale[t];
        }
    }
}

/* qkv (rows, 3·width); weights (heads, rows, rows) */
static void attention(const gpt2_config *c, float *y, float *weights, const float *qkv)
{
    const int rows = c->context, width = c->channels, size = width / c->heads;
    const float scale = 1 / sqrtf((float)size);
    memset(y, 0, (size_t)rows * (size_t)width * sizeof *y);
    for (int h = 0; h < c->heads; h++)
        for (int t = 0; t < rows; t++) {
            const float *q = qkv + (size_t)t * 3 * (size_t)width + h * size;
            float *w = weights + ((size_t)h * (size_t)rows + (size_t)t) * (size_t)rows;
            float top = -INFINITY, sum = 0;
            for (int u = 0; u <= t; u++) {
                w[u] = dot(q, qkv + (size_t)u * 3 * (size_t)width + width + h * size, size) * scale;
                if (w[u] > top) top = w[u];
            }
            for (int u = 0; u <= t; u++) sum += w[u] = expf(w[u] - top);
            for (int u = 0; u <= t; u++) {
                const float *v = qkv + (size_t)u * 3 * (size_t)width + 2 * width + h * size;
                w[u] /= sum;
                for (int i = 0; i < size; i++) y[t * width + h * size + i] += w[u] * v[i];
            }
        }
}

static void attention_back(const gpt2_config *c, float *dqkv, float *row, const float *dy,
                           const float *qkv, const float *weights)
{
    const int rows = c->context, width = c->channels, size = width / c->heads;
    const float scale = 1 / sqrtf((float)size);
    memset(dqkv, 0, (size_t)rows * 3 * (size_t)width * sizeof *dqkv);
    for (int h = 0; h < c->heads; h++)
        for (int t = 0; t < rows; t++) {
            const size_t at = (size_t)t * 3 * (size_t)width + (size_t)(h * size);
            const float *d = dy + t * width + h * size;
            const float *w = weights + ((size_t)h * (size_t)rows + (size_t)t) * (size_t)rows;
            float sum = 0;
            for (int u = 0; u <= t; u++) {
                const size_t other = (size_t)u * 3 * (size_t)width + (size_t)(h * size);
                row[u] = dot(d, qkv + other + 2 * width, size);
                sum += row[u] * w[u];
                for (int i = 0; i < size; i++)
                    dqkv[other + 2 * (size_t)width + (size_t)i] += w[u] * d[i];
            }
            for (int u = 0; u <= t; u++) {
                const size_t other =
                    (size_t)u * 3 * (size_t)width + (size_t)(h * size) + (size_t)width;
                const float ds = w[u] * (row[u] - sum) * scale;
                for (int i = 0; i < size; i++) {
                    dqkv[at + (size_t)i] += ds * qkv[other + (size_t)i];
                    dqkv[other + (size_t)i] += ds * qkv[at + (size_t)i];
                }
            }
        }
}

#define GELU_SCALE 0.7978845608f /* sqrt(2/pi) */

static void gelu(float *y, const float *x, int count)
{
    for (int i = 0; i < count; i++)
        y[i] = 0.5f * x[i] * (1 + tanhf(GELU_SCALE * (x[i] + 0.044715f * x[i] * x[i] * x[i])));
}

static void gelu_back(float *dx, const float *x, int count)
{
    for (int i = 0; i < count; i++) {
        const float inner = tanhf(GELU_SCALE * (x[i] + 0.044715f * x[i] * x[i] * x[i]));
        const float within = GELU_SCALE * (1 + 3 * 0.044715f * x[i] * x[i]);
        dx[i] *= 0.5f * (1 + inner) + 0.5f * x[i] * (1 - inner * inner) * within;
    }
}

static void add(float *y, const float *x, int count)
{
    for (int i = 0; i < count; i++) y[i] += x[i];
}

/* ---- the model ---- */

static void layer_forward(gpt2 *m, int l, float *next)
{
    const int rows = m->config.context, width = m->config.channels, all = rows * width;
    const gpt2_layer *a = &m->layers[l];
    layer_norm(a->norm1, a->mean1, a->scale1, a->in, value(m, of_layer(l, NORM1_W)),
               value(m, of_layer(l, NORM1_B)), rows, width);
    linear(a->qkv, a->norm1, value(m, of_layer(l, QKV_W)), value(m, of_layer(l, QKV_B)), rows,
           width, 3 * width);
    attention(&m->config, a->mix, a->weights, a->qkv);
    linear(a->middle, a->mix, value(m, of_layer(l, PROJ_W)), value(m, of_layer(l, PROJ_B)), rows,
           width, width);
    add(a->middle, a->in, all);
    layer_norm(a->norm2, a->mean2, a->scale2, a->middle, value(m, of_layer(l, NORM2_W)),
               value(m, of_layer(l, NORM2_B)), rows, width);
    linear(a->up, a->norm2, value(m, of_layer(l, UP_W)), value(m, of_layer(l, UP_B)), rows, width,
           4 * width);
    gelu(a->act, a->up, 4 * all);
    linear(next, a->act, value(m, of_layer(l, DOWN_W)), value(m, of_layer(l, DOWN_B)), rows,
           4 * width, width);
    add(next, a->middle, all);
}

static linear_slopes slopes(gpt2 *m, int l, int weight, float *dx)
{
    return (linear_slopes){dx, slope(m, of_layer(l, weight)), slope(m, of_layer(l, weight + 1))};
}

static void both_done(const gpt2 *m, int l, int weight)
{
    done(m, of_layer(l, weight + 1));
    done(m, of_layer(l, weight));
}

/* m->back is the slope of the layer's output, then of its input. */
static void layer_backward(gpt2 *m, int l)
{
    const int rows = m->config.context, width = m->config.channels;
    const gpt2_layer *a = &m->layers[l];
    linear_back(slopes(m, l, DOWN_W, m->back_up), m->back, a->act, value(m, of_layer(l, DOWN_W)),
                rows, 4 * width, width);
    both_done(m, l, DOWN_W);
    gelu_back(m->back_up, a->up, 4 * rows * width);
    linear_back(slopes(m, l, UP_W, m->back_norm), m->back_up, a->norm2, value(m, of_layer(l, UP_W)),
                rows, width, 4 * width);
    both_done(m, l, UP_W);
    layer_norm_back(slopes(m, l, NORM2_W, m->back), m->back_norm, a->middle, a->mean2, a->scale2,
                    value(m, of_layer(l, NORM2_W)), rows, width);
    both_done(m, l, NORM2_W);
    linear_back(slopes(m, l, PROJ_W, m->back_norm), m->back, a->mix, value(m, of_layer(l, PROJ_W)),
                rows, width, width);
    both_done(m, l, PROJ_W);
    attention_back(&m->config, m->back_wide, m->back_row, m->back_norm, a->qkv, a->weights);
    linear_back(slopes(m, l, QKV_W, m->back_norm), m->back_wide, a->norm1,
                value(m, of_layer(l, QKV_W)), rows, width, 3 * width);
    both_done(m, l, QKV_W);
    layer_norm_back(slopes(m, l, NORM1_W, m->back), m->back_norm, a->in, a->mean1, a->scale1,
                    value(m, of_layer(l, NORM1_W)), rows, width);
    both_done(m, l, NORM1_W);
}

/* The table of tokens is also the last layer: what a position says of each token. */
static float predict(gpt2 *m, const int *tokens)
{
    const int rows = m->config.context, width = m->config.channels, many = m->config.vocabulary;
    float loss = 0;
    for (int t = 0; t < rows; t++) {
        float *p = m->probability + (size_t)t * (size_t)many, top = -INFINITY, sum = 0;
        for (int v = 0; v < many; v++) {
            p[v] = dot(m->norm + t * width, value(m, TOKENS) + v * width, width);
            if (p[v] > top) top = p[v];
        }
        for (int v = 0; v < many; v++) sum += p[v] = expf(p[v] - top);
        for (int v = 0; v < many; v++) p[v] /= sum;
        loss -= logf(p[tokens[t + 1]]);
    }
    return loss / (float)rows;
}

static void predict_back(gpt2 *m, const int *tokens, float factor)
{
    const int rows = m->config.context, width = m->config.channels, many = m->config.vocabulary;
    memset(m->back_norm, 0, (size_t)rows * (size_t)width * sizeof(float));
    for (int t = 0; t < rows; t++) {
        float *p = m->probability + (size_t)t * (size_t)many, *d = m->back_norm + t * width;
        p[tokens[t + 1]] -= 1;
        for (int v = 0; v < many; v++) {
            const float s = p[v] * factor / (float)rows;
            const float *w = value(m, TOKENS) + v * width;
            float *dw = slope(m, TOKENS) + v * width;
            for (int i = 0; i < width; i++) d[i] += s * w[i];
            for (int i = 0; i < width; i++) dw[i] += s * m->norm[t * width + i];
        }
    }
}

static void embed(gpt2 *m, const int *tokens, float *x)
{
    const int width = m->config.channels;
    for (int t = 0; t < m->config.context; t++)
        for (int i = 0; i < width; i++)
            x[t * width + i] =
                value(m, TOKENS)[tokens[t] * width + i] + value(m, POSITIONS)[t * width + i];
}

static void embed_back(gpt2 *m, const int *tokens)
{
    const int width = m->config.channels;
    for (int t = 0; t < m->config.context; t++)
        for (int i = 0; i < width; i++) {
            slope(m, TOKENS)[tokens[t] * width + i] += m->back[t * width + i];
            slope(m, POSITIONS)[t * width + i] += m->back[t * width + i];
        }
}

float gpt2_forward_backward(gpt2 *m, const int *tokens, float factor)
{
    const int rows = m->config.context, width = m->config.channels, layers = m->config.layers;
    const int last_w = norm_w(m), last_b = last_w + 1;
    embed(m, tokens, layers > 0 ? m->layers[0].in : m->out);
    for (int l = 0; l < layers; l++)
        layer_forward(m, l, l + 1 < layers ? m->layers[l + 1].in : m->out);
    layer_norm(m->norm, m->mean, m->scale, m->out, value(m, last_w), value(m, last_b), rows, width);
    const float loss = predict(m, tokens);
    predict_back(m, tokens, factor);
    memset(m->back, 0, (size_t)rows * (size_t)width * sizeof(float));
    layer_norm_back((linear_slopes){m->back, slope(m, last_w), slope(m, last_b)}, m->back_norm,
                    m->out, m->mean, m->scale, value(m, last_w), rows, width);
    done(m, last_b);
    done(m, last_w);
    for (int l = layers; l-- > 0;) layer_backward(m, l);
    embed_back(m, tokens);
    done(m, POSITIONS);
    done(m, TOKENS);
    return loss;
}

/* ---- AdamW ---- */

void gpt2_update(gpt2_parameter *p, int step, float rate)
{
    const float unbias1 = 1 - powf(0.9f, (float)step), unbias2 = 1 - powf(0.999f, (float)step);
    const float decay = p->dimensions == 2 ? 0.1f : 0;
    for (size_t i = 0; i < p->count; i++) {
        const float g = p->gradient[i];
        p->first[i] = 0.9f * p->first[i] + 0.1f * g;
        p->second[i] = 0.999f * p->second[i] + 0.001f * g * g;
        p->values[i] -= rate * (p->first[i] / unbias1 / (sqrtf(p->second[i] / unbias2) + 1e-8f) +
                                decay * p->values[i]);
    }
}

/* ---- files ---- */

int gpt2_save(const gpt2 *m, int step, FILE *file)
{
    int failed = fwrite(&m->config, sizeof m->config, 1, file) != 1;
    failed |= fwrite(&step, sizeof step, 1, file) != 1;
    for (int p = 0; p < m->parameter_count; p++) {
        const gpt2_parameter *q = &m->parameters[p];
        failed |= fwrite(q->values, sizeof(float), q->count, file) != q->count;
        failed |= fwrite(q->first, sizeof(float), q->count, file) != q->count;
        failed |= fwrite(q->second, sizeof(float), q->count, file) != q->count;
    }
    return failed ? -1 : 0;
}

int gpt2_load(gpt2 *m, int *step, FILE *file)
{
    gpt2_config config;
    int failed =
        fread(&config, sizeof config, 1, file) != 1 || fread(step, sizeof *step, 1, file) != 1;
    if (failed || memcmp(&config, &m->config, sizeof config) != 0) return -1;
    for (int p = 0; p < m->parameter_count; p++) {
        gpt2_parameter *q = &m->parameters[p];
        failed |= fread(q->values, sizeof(float), q->count, file) != q->count;
        failed |= fread(q->first, sizeof(float), q->count, file) != q->count;
        failed |= fread(q->second, sizeof(float), q->count, file) != q->count;
    }
    return failed ? -1 : 0;
}

/* ---- life ---- */

static void name_parameter(gpt2 *m, const char *name, int rows, int columns)
{
    gpt2_parameter *p = &m->parameters[m->parameter_count++];
    snprintf(p->name, sizeof p->name, "%s", name);
    p->dimensions = columns > 0 ? 2 : 1;
    p->sizes[0] = rows;
    p->sizes[1] = columns;
    p->count = (size_t)rows * (size_t)(columns > 0 ? columns : 1);
}

static void name_parameters(gpt2 *m)
{
    static const struct {
        const char *name;
        int rows, columns; /* in channels; rows 0: a vector */
    } of_a_layer[GPT2_PER_LAYER] = {{"ln_1.weight", 0, 1},        {"ln_1.bias", 0, 1},
                                    {"attn.c_attn.weight", 1, 3}, {"attn.c_attn.bias", 0, 3},
                                    {"attn.c_proj.weight", 1, 1}, {"attn.c_proj.bias", 0, 1},
                                    {"ln_2.weight", 0, 1},        {"ln_2.bias", 0, 1},
                                    {"mlp.c_fc.weight", 1, 4},    {"mlp.c_fc.bias", 0, 4},
                                    {"mlp.c_proj.weight", 4, 1},  {"mlp.c_proj.bias", 0, 1}};
    const gpt2_config *c = &m->config;
    name_parameter(m, "wte.weight", c->vocabulary, c->channels);
    name_parameter(m, "wpe.weight", c->context, c->channels);
    for (int l = 0; l < c->layers; l++)
        for (int k = 0; k < GPT2_PER_LAYER; k++) {
            char name[64];
            const int rows = of_a_layer[k].rows * c->channels,
                      wide = of_a_layer[k].columns * c->channels;
            snprintf(name, sizeof name, "h.%d.%s", l, of_a_layer[k].name);
            name_parameter(m, name, rows > 0 ? rows : wide, rows > 0 ? wide : 0);
        }
    name_parameter(m, "ln_f.weight", c->channels, 0);
    name_parameter(m, "ln_f.bias", c->channels, 0);
}

/* Everything lies in one block. Called twice: to count, and to share out. */
static size_t share_out(gpt2 *m, float *block)
{
    const size_t rows = (size_t)m->config.context, width = (size_t)m->config.channels;
    const size_t all = rows * width;
    size_t used = 0;
#define TAKE(pointer, count) \
    ((pointer) = block != NULL ? block + used : NULL, used += ((size_t)(count) + 15) / 16 * 16)
    for (int p = 0; p < m->parameter_count; p++) {
        gpt2_parameter *q = &m->parameters[p];
        TAKE(q->values, q->count), TAKE(q->first, q->count), TAKE(q->second, q->count);
    }
    for (int l = 0; l < m->config.layers; l++) {
        gpt2_layer *a = &m->layers[l];
        TAKE(a->in, all), TAKE(a->norm1, all), TAKE(a->mean1, rows), TAKE(a->scale1, rows);
        TAKE(a->qkv, 3 * all), TAKE(a->weights, (size_t)m->config.heads * rows * rows);
        TAKE(a->mix, all), TAKE(a->middle, all), TAKE(a->norm2, all), TAKE(a->mean2, rows);
        TAKE(a->scale2, rows), TAKE(a->up, 4 * all), TAKE(a->act, 4 * all);
    }
    TAKE(m->out, all), TAKE(m->norm, all), TAKE(m->mean, rows), TAKE(m->scale, rows);
    TAKE(m->probability, rows * (size_t)m->config.vocabulary);
    TAKE(m->back, all), TAKE(m->back_norm, all), TAKE(m->back_wide, 3 * all);
    TAKE(m->back_up, 4 * all), TAKE(m->back_row, rows);
#undef TAKE
    return used;
}

/* Scales are 1, biases 0, matrices small; those that write to the residual are smaller. */
static void draw_parameters(gpt2 *m, uint64_t seed)
{
    for (int p = 0; p < m->parameter_count; p++) {
        gpt2_parameter *q = &m->parameters[p];
        const int is_scale = strstr(q->name, "ln_") != NULL && strstr(q->name, "weight") != NULL;
        const int writes = strstr(q->name, "c_proj") != NULL;
        const float size = writes ? 0.12f / sqrtf(2 * (float)m->config.layers) : 0.12f;
        for (size_t i = 0; i < q->count; i++)
            q->values[i] =
                q->dimensions == 2 ? size * draw(seed + (uint64_t)p, i) : (float)is_scale;
    }
}

int gpt2_create(gpt2 *m, const gpt2_config *config, uint64_t seed)
{
    memset(m, 0, sizeof *m);
    m->config = *config;
    name_parameters(m);
    m->memory = calloc(share_out(m, NULL), sizeof(float));
    if (m->memory == NULL) return -1;
    share_out(m, m->memory);
    draw_parameters(m, seed);
    return 0;
}

void gpt2_destroy(gpt2 *m)
{
    free(m->memory);
    memset(m, 0, sizeof *m);
}
