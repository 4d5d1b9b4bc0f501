/* SPDX-License-Identifier: Apache-2.0 */
/* Layers from their definitions, one scalar at a time: no matrix, no unfolding, no kernel.
**
**     linear      y_o = Σ_i W_oi x_i + b_o
**     norm        (x − m) / √(v + 10⁻⁵) · w + b, m and v the mean and the mean square distance
**     attention   softmax(q·kᵀ / √d) · v, head by head
**     losses      per sample: Σ(y−t)², Σ y·t, Σ log(1+eʸ) − y·t, Σ log Σ_k e^{y_k} − y_class
*/
#include "core/oracle/second/layers.h"

#include "core/base/hash.h"
#include "core/base/prng.h"
#include "core/base/real.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NORM_EPS 1e-5
#define IGNORED_CLASS (-100)

/* ---- options ---- */

const char *cd_option_text(const cd_second_writer *w, const char *key, size_t *length)
{
    const size_t key_length = strlen(key);
    const char *at = w->program->options;
    while (at != NULL && *at != '\0') {
        const char *comma = strchr(at, ',');
        const size_t item = comma != NULL ? (size_t)(comma - at) : strlen(at);
        if (item > key_length && strncmp(at, key, key_length) == 0 && at[key_length] == '=') {
            *length = item - key_length - 1;
            return at + key_length + 1;
        }
        at += item + (comma != NULL);
    }
    *length = 0;
    return NULL;
}

double cd_option_real(const cd_second_writer *w, const char *key, double initial)
{
    size_t length;
    const char *text = cd_option_text(w, key, &length);
    return text != NULL ? cd_real_parse(text, NULL) : initial;
}

int64_t cd_option_number(const cd_second_writer *w, const char *key, int64_t initial)
{
    size_t length;
    const char *text = cd_option_text(w, key, &length);
    return text != NULL ? strtoll(text, NULL, 10) : initial;
}

bool cd_option_is(const cd_second_writer *w, const char *key, const char *initial, const char *word)
{
    size_t length;
    const char *text = cd_option_text(w, key, &length);
    if (text == NULL) return strcmp(initial, word) == 0;
    return length == strlen(word) && strncmp(text, word, length) == 0;
}

size_t cd_option_list(const cd_second_writer *w, const char *key, const char *initial,
                      int64_t *items, size_t capacity)
{
    size_t length, count = 0;
    const char *text = cd_option_text(w, key, &length);
    if (text == NULL) {
        text = initial;
        length = strlen(initial);
    }
    for (const char *at = text; at < text + length && count < capacity;) {
        char *end;
        items[count++] = strtoll(at, &end, 10);
        if (end == at) break;
        at = end + 1;
    }
    return count;
}

/* ---- scalars ---- */

void cd_second_refuse(cd_second_writer *w, const char *why)
{
    if (w->refusal == NULL) w->refusal = why;
}

bool cd_second_stops(const cd_second_writer *w)
{
    return w->refusal != NULL || w->s->has_failed || w->arena->exhausted;
}

int64_t cd_second_find(const cd_second_writer *w, const char *name)
{
    for (size_t i = 0; i < w->program->parameter_count; i++)
        if (strcmp(w->program->parameters[i].name, name) == 0) return (int64_t)i;
    return -1;
}

static int64_t find_in(const cd_second_writer *w, const char *scope, const char *name)
{
    char whole[160];
    snprintf(whole, sizeof whole, "%s.%s", scope, name);
    return cd_second_find(w, whole);
}

static cd_scalar *write_others(cd_second_writer *w, const cd_second_parameter *p)
{
    cd_scalar *made = cd_arena_array(w->arena, p->numel + 1, sizeof *made);
    for (size_t i = 0; made != NULL && i < p->numel; i++)
        made[i] = cd_scalars_leaf(w->s, p->values[i]);
    return made;
}

static bool write_own(cd_second_writer *w, const cd_second_parameter *p, cd_second_leaves *made)
{
    made->leaves = cd_arena_array(w->arena, p->numel + 1, sizeof *made->leaves);
    made->elements = cd_arena_array(w->arena, p->numel + 1, sizeof *made->elements);
    if (made->leaves == NULL || made->elements == NULL) return false;
    for (size_t i = 0; i < p->numel; i++) {
        made->elements[i] = i;
        made->leaves[i] = cd_scalars_parameter(w->s, p->values[i]);
    }
    made->count = p->numel;
    return true;
}

cd_scalar cd_second_element(cd_second_writer *w, int64_t parameter, size_t i, size_t sample)
{
    if (parameter < 0) cd_second_refuse(w, "a parameter of the second form has another name");
    if (cd_second_stops(w)) return w->s->zero;
    const cd_second_parameter *p = &w->program->parameters[parameter];
    if (i >= p->numel) {
        cd_second_refuse(w, "a parameter of the second form has another size");
        return w->s->zero;
    }
    if (w->is_frozen || !w->forward->are_own[sample]) {
        if (w->others[parameter] == NULL) w->others[parameter] = write_others(w, p);
        return w->others[parameter] != NULL ? w->others[parameter][i] : w->s->zero;
    }
    cd_second_leaves *own = &w->own[parameter];
    own->is_used = true;
    if (own->leaves == NULL && !write_own(w, p, own)) return w->s->zero;
    return own->leaves[i];
}

cd_block cd_second_block(cd_second_writer *w, size_t width)
{
    const size_t samples = w->forward->samples;
    if (w->s->term_count > CD_SECOND_TERMS_MAX)
        cd_second_refuse(w, "the model has too many operations for its second form");
    if (width != 0 && samples > CD_SECOND_TERMS_MAX / width)
        cd_second_refuse(w, "the model has too many operations for its second form");
    if (cd_second_stops(w)) return (cd_block){NULL, width};
    return (cd_block){cd_arena_array(w->arena, samples * width + 1, sizeof(cd_scalar)), width};
}

cd_block cd_second_input(cd_second_writer *w, size_t input)
{
    const cd_second_field *field = &w->forward->inputs[input];
    const cd_block x = cd_second_block(w, field->width);
    if (field->values == NULL) cd_second_refuse(w, "an input of the second form is not there");
    for (size_t i = 0; !cd_second_stops(w) && i < w->forward->samples * x.width; i++)
        x.x[i] = cd_scalars_leaf(w->s, field->values[i]);
    return x;
}

/* ---- layers ---- */

cd_block cd_second_linear(cd_second_writer *w, const char *scope, cd_block x, size_t out,
                          size_t places)
{
    const int64_t weight = find_in(w, scope, "weight"), bias = find_in(w, scope, "bias");
    const size_t in = x.width / places;
    const cd_block y = cd_second_block(w, out * places);
    for (size_t row = 0; row < w->forward->samples * places && !cd_second_stops(w); row++) {
        const size_t sample = row / places;
        for (size_t o = 0; o < out && !cd_second_stops(w); o++) {
            /* parameters come first: they may be written now */
            (void)cd_second_element(w, weight, out * in - 1, sample);
            const cd_scalar b = bias >= 0 ? cd_second_element(w, bias, o, sample) : w->s->zero;
            if (cd_second_stops(w)) break;
            cd_scalars_begin_dot(w->s);
            for (size_t i = 0; i < in; i++)
                cd_scalars_add_term(w->s, cd_second_element(w, weight, o * in + i, sample),
                                    x.x[row * in + i]);
            if (bias >= 0) cd_scalars_add_term(w->s, b, w->s->one);
            y.x[row * out + o] = cd_scalars_end_dot(w->s);
        }
    }
    return y;
}

cd_block cd_second_each(cd_second_writer *w, cd_scalar_kind function, cd_block x)
{
    const cd_block y = cd_second_block(w, x.width);
    for (size_t i = 0; !cd_second_stops(w) && i < w->forward->samples * x.width; i++)
        y.x[i] = cd_scalars_apply(w->s, function, x.x[i]);
    return y;
}

cd_block cd_second_add(cd_second_writer *w, cd_block a, cd_block b)
{
    const cd_block y = cd_second_block(w, a.width);
    for (size_t i = 0; !cd_second_stops(w) && i < w->forward->samples * a.width; i++)
        y.x[i] = cd_scalars_add(w->s, a.x[i], b.x[i]);
    return y;
}

/* The mask belongs to the sample, by its number, wherever it stands in a batch. */
cd_block cd_second_dropout(cd_second_writer *w, cd_block x, double probability, uint64_t layer)
{
    if (probability == 0) return x;
    const cd_block y = cd_second_block(w, x.width);
    const cd_second_forward *f = w->forward;
    const cd_scalar kept = cd_scalars_leaf(w->s, 1 / (1 - probability));
    const uint64_t stream = cd_hash_mix(cd_hash_mix(w->program->dropout_seed, layer), f->iteration);
    for (size_t sample = 0; sample < f->samples && !cd_second_stops(w); sample++) {
        cd_prng prng = cd_prng_seed(cd_hash_mix(stream, (uint64_t)f->ids[sample]));
        for (size_t i = sample * x.width; i < (sample + 1) * x.width; i++) {
            const double drawn = ldexp((double)(cd_prng_next(&prng) >> 11), -53);
            y.x[i] = drawn < probability ? w->s->zero : cd_scalars_multiply(w->s, x.x[i], kept);
        }
    }
    return y;
}

/* Scalars that are normalised together: every stride-th of some stretches. */
typedef struct family {
    const cd_scalar *x;
    size_t groups, group_stride, count; /* groups of count scalars that lie side by side */
} family;

static cd_scalar member(const family *f, size_t i)
{
    return f->x[i / f->count * f->group_stride + i % f->count];
}

typedef struct moments {
    cd_scalar mean, squares, inverse;
} moments;

static moments find_moments(cd_second_writer *w, const family *f)
{
    cd_scalars *s = w->s;
    const size_t n = f->groups * f->count;
    const cd_scalar share = cd_scalars_leaf(s, 1 / (double)n), eps = cd_scalars_leaf(s, NORM_EPS);
    cd_scalar *away = cd_arena_array(w->arena, n + 1, sizeof *away);
    if (away == NULL) return (moments){s->zero, s->zero, s->zero};
    cd_scalars_begin_dot(s);
    for (size_t i = 0; i < n; i++) cd_scalars_add_term(s, member(f, i), share);
    const cd_scalar mean = cd_scalars_end_dot(s);
    for (size_t i = 0; i < n; i++) away[i] = cd_scalars_subtract(s, member(f, i), mean);
    cd_scalars_begin_dot(s);
    for (size_t i = 0; i < n; i++) cd_scalars_add_term(s, away[i], away[i]);
    const cd_scalar squares = cd_scalars_end_dot(s);
    cd_scalars_begin_dot(s);
    cd_scalars_add_term(s, squares, share);
    cd_scalars_add_term(s, eps, s->one);
    const cd_scalar variance = cd_scalars_end_dot(s);
    return (moments){mean, squares, cd_scalars_apply(s, CD_SCALAR_INVERSE_ROOT, variance)};
}

static cd_scalar normalise(cd_second_writer *w, cd_scalar x, const moments *m, cd_scalar weight,
                           cd_scalar bias)
{
    const cd_scalar away = cd_scalars_subtract(w->s, x, m->mean);
    const cd_scalar unit = cd_scalars_multiply(w->s, away, m->inverse);
    cd_scalars_begin_dot(w->s);
    cd_scalars_add_term(w->s, unit, weight);
    cd_scalars_add_term(w->s, bias, w->s->one);
    return cd_scalars_end_dot(w->s);
}

static cd_second_norm *add_norm(cd_second_writer *w, size_t channels, int64_t weight)
{
    cd_second_channel *room = cd_arena_array(w->arena, channels + 1, sizeof *room);
    if (room == NULL || w->norm_count == CD_SECOND_NORMS_MAX) return NULL;
    w->norms[w->norm_count] = (cd_second_norm){room, channels, weight};
    return &w->norms[w->norm_count++];
}

static cd_second_channel channel_of(const cd_second_writer *w, const family *f, const moments *m)
{
    cd_second_channel c = {.mean = m->mean, .squares = m->squares, .count = f->groups * f->count};
    for (size_t i = 0; i < c.count; i++) c.size += fabs(cd_scalars_get(w->s, member(f, i)));
    c.size /= (double)c.count;
    return c;
}

cd_block cd_second_batch_norm(cd_second_writer *w, const char *scope, cd_block x, size_t channels)
{
    const int64_t weight = find_in(w, scope, "weight"), bias = find_in(w, scope, "bias");
    const size_t area = x.width / channels;
    const cd_block y = cd_second_block(w, x.width);
    cd_second_norm *norm = add_norm(w, channels, weight);
    for (size_t c = 0; c < channels && !cd_second_stops(w); c++) {
        const family f = {x.x + c * area, w->forward->samples, x.width, area};
        const moments m = find_moments(w, &f);
        if (norm != NULL) norm->channels[c] = channel_of(w, &f, &m);
        for (size_t i = 0; i < w->forward->samples * area && !cd_second_stops(w); i++) {
            const size_t sample = i / area, at = sample * x.width + c * area + i % area;
            const cd_scalar a = cd_second_element(w, weight, c, sample),
                            b = cd_second_element(w, bias, c, sample);
            y.x[at] = normalise(w, x.x[at], &m, a, b);
        }
    }
    return y;
}

cd_block cd_second_layer_norm(cd_second_writer *w, const char *scope, cd_block x, size_t places)
{
    const int64_t weight = find_in(w, scope, "weight"), bias = find_in(w, scope, "bias");
    const size_t width = x.width / places;
    const cd_block y = cd_second_block(w, x.width);
    for (size_t row = 0; row < w->forward->samples * places && !cd_second_stops(w); row++) {
        const family f = {x.x + row * width, 1, 0, width};
        const moments m = find_moments(w, &f);
        for (size_t i = 0; i < width && !cd_second_stops(w); i++) {
            const cd_scalar a = cd_second_element(w, weight, i, row / places),
                            b = cd_second_element(w, bias, i, row / places);
            y.x[row * width + i] = normalise(w, x.x[row * width + i], &m, a, b);
        }
    }
    return y;
}

/* The place of a pixel in the image of a sample; false: it lies in the padding. */
static bool find_pixel(cd_second_image image, int64_t row, int64_t column, size_t *at)
{
    const int64_t side = (int64_t)image.side;
    if (row < 0 || row >= side || column < 0 || column >= side) return false;
    *at = (size_t)(row * side + column);
    return true;
}

typedef struct window {
    const cd_scalar *image; /* of the sample */
    cd_second_image size;
    cd_second_conv conv;
    int64_t weight;
    size_t sample, out;  /* out: the channel that is made */
    int64_t row, column; /* of its first pixel */
} window;

static void add_window(cd_second_writer *w, const window *v)
{
    const size_t kernel = v->conv.kernel, area = v->size.side * v->size.side;
    for (size_t c = 0; c < v->size.channels; c++)
        for (size_t k = 0; k < kernel * kernel; k++) {
            size_t at;
            if (!find_pixel(v->size, v->row + (int64_t)(k / kernel),
                            v->column + (int64_t)(k % kernel), &at))
                continue;
            const size_t element = (v->out * v->size.channels + c) * kernel * kernel + k;
            cd_scalars_add_term(w->s, cd_second_element(w, v->weight, element, v->sample),
                                v->image[c * area + at]);
        }
}

cd_block cd_second_convolve(cd_second_writer *w, const char *scope, cd_block x,
                            cd_second_image image, cd_second_conv conv)
{
    const int64_t bias = find_in(w, scope, "bias");
    const size_t side = (image.side + 2 * conv.padding - conv.kernel) / conv.stride + 1;
    const cd_block y = cd_second_block(w, conv.out * side * side);
    window v = {.size = image, .conv = conv, .weight = find_in(w, scope, "weight")};
    for (size_t i = 0; i < w->forward->samples * y.width && !cd_second_stops(w); i++) {
        const size_t pixel = i % (side * side);
        v.sample = i / y.width;
        v.out = i % y.width / (side * side);
        v.image = x.x + v.sample * x.width;
        v.row = (int64_t)(pixel / side * conv.stride) - (int64_t)conv.padding;
        v.column = (int64_t)(pixel % side * conv.stride) - (int64_t)conv.padding;
        (void)cd_second_element(w, v.weight, 0, v.sample);
        const cd_scalar b = cd_second_element(w, bias, v.out, v.sample);
        if (cd_second_stops(w)) break;
        cd_scalars_begin_dot(w->s);
        add_window(w, &v);
        cd_scalars_add_term(w->s, b, w->s->one);
        y.x[i] = cd_scalars_end_dot(w->s);
    }
    return y;
}

/* Means of 2 × 2 pixels. */
cd_block cd_second_pool(cd_second_writer *w, cd_block x, cd_second_image image)
{
    const size_t side = image.side / 2;
    const cd_block y = cd_second_block(w, image.channels * side * side);
    const cd_scalar quarter = cd_scalars_leaf(w->s, 0.25);
    for (size_t i = 0; i < w->forward->samples * y.width && !cd_second_stops(w); i++) {
        const size_t plane = i / (side * side), row = i % (side * side) / side, column = i % side;
        const cd_scalar *from =
            x.x + plane * image.side * image.side + 2 * row * image.side + 2 * column;
        cd_scalars_begin_dot(w->s);
        for (size_t k = 0; k < 4; k++)
            cd_scalars_add_term(w->s, from[k / 2 * image.side + k % 2], quarter);
        y.x[i] = cd_scalars_end_dot(w->s);
    }
    return y;
}

/* Every pixel four times. */
cd_block cd_second_upsample(cd_second_writer *w, cd_block x, cd_second_image image)
{
    const size_t side = image.side * 2;
    const cd_block y = cd_second_block(w, image.channels * side * side);
    for (size_t i = 0; i < w->forward->samples * y.width && !cd_second_stops(w); i++) {
        const size_t plane = i / (side * side), row = i % (side * side) / side, column = i % side;
        y.x[i] = x.x[plane * image.side * image.side + row / 2 * image.side + column / 2];
    }
    return y;
}

/* ---- softmax ---- */

/* The exponentials of x less the largest of them, and their sum. */
static cd_scalar exponentials(cd_second_writer *w, const cd_scalar *x, size_t count,
                              cd_scalar *powers, double *top)
{
    *top = cd_scalars_get(w->s, x[0]);
    for (size_t i = 1; i < count; i++) *top = fmax(*top, cd_scalars_get(w->s, x[i]));
    const cd_scalar shift = cd_scalars_leaf(w->s, *top); /* cancels: no derivative */
    for (size_t i = 0; i < count; i++)
        powers[i] = cd_scalars_apply(w->s, CD_SCALAR_EXP, cd_scalars_subtract(w->s, x[i], shift));
    cd_scalars_begin_dot(w->s);
    for (size_t i = 0; i < count; i++) cd_scalars_add_term(w->s, powers[i], w->s->one);
    return cd_scalars_end_dot(w->s);
}

static void softmax(cd_second_writer *w, const cd_scalar *x, size_t count, cd_scalar *shares)
{
    double top;
    const cd_scalar sum = exponentials(w, x, count, shares, &top);
    const cd_scalar inverse = cd_scalars_apply(w->s, CD_SCALAR_RECIPROCAL, sum);
    for (size_t i = 0; i < count; i++) shares[i] = cd_scalars_multiply(w->s, shares[i], inverse);
}

cd_scalar cd_second_share(cd_second_writer *w, const cd_scalar *x, size_t count, size_t at)
{
    cd_scalar *shares = cd_arena_array(w->arena, count + 1, sizeof *shares);
    if (shares == NULL || cd_second_stops(w)) return w->s->zero;
    softmax(w, x, count, shares);
    return shares[at];
}

typedef struct head {
    const cd_scalar *qkv;       /* of the sample and the head */
    size_t places, width, size; /* width: of the stream; size: of the head */
    bool is_causal;
} head;

/* What one position takes from those that it sees. */
static void attend(cd_second_writer *w, const head *h, size_t query, cd_scalar *room,
                   cd_scalar *mixed)
{
    cd_scalars *s = w->s;
    const size_t seen = h->is_causal ? query + 1 : h->places, row = 3 * h->width;
    const cd_scalar root = cd_scalars_leaf(s, 1 / sqrt((double)h->size));
    for (size_t k = 0; k < seen; k++) {
        cd_scalars_begin_dot(s);
        for (size_t i = 0; i < h->size; i++)
            cd_scalars_add_term(s, h->qkv[query * row + i], h->qkv[k * row + h->width + i]);
        const cd_scalar score = cd_scalars_end_dot(s);
        room[k] = cd_scalars_multiply(s, score, root);
    }
    softmax(w, room, seen, room + h->places);
    for (size_t i = 0; i < h->size; i++) {
        cd_scalars_begin_dot(s);
        for (size_t k = 0; k < seen; k++)
            cd_scalars_add_term(s, room[h->places + k], h->qkv[k * row + 2 * h->width + i]);
        mixed[i] = cd_scalars_end_dot(s);
    }
}

cd_block cd_second_attention(cd_second_writer *w, cd_block qkv, size_t places, size_t heads,
                             bool is_causal)
{
    const size_t width = qkv.width / places / 3, size = width / heads;
    const cd_block y = cd_second_block(w, places * width);
    cd_scalar *room = cd_arena_array(w->arena, 2 * places + 1, sizeof *room);
    for (size_t i = 0; i < w->forward->samples * heads && !cd_second_stops(w); i++) {
        const size_t sample = i / heads, first = i % heads * size;
        const head h = {qkv.x + sample * qkv.width + first, places, width, size, is_causal};
        for (size_t q = 0; q < places && !cd_second_stops(w); q++)
            attend(w, &h, q, room, y.x + sample * y.width + q * width + first);
    }
    return y;
}

/* ---- losses ---- */

typedef struct pair {
    const cd_scalar *y; /* (width) of the sample */
    const double *t;    /* (width) */
    size_t width;
} pair;

static cd_scalar squared_error(cd_second_writer *w, const pair *p, cd_scalar *room)
{
    for (size_t i = 0; i < p->width; i++)
        room[i] = cd_scalars_subtract(w->s, p->y[i], cd_scalars_leaf(w->s, p->t[i]));
    cd_scalars_begin_dot(w->s);
    for (size_t i = 0; i < p->width; i++) cd_scalars_add_term(w->s, room[i], room[i]);
    return cd_scalars_end_dot(w->s);
}

static cd_scalar inner_product(cd_second_writer *w, const pair *p, cd_scalar *room)
{
    for (size_t i = 0; i < p->width; i++) room[i] = cd_scalars_leaf(w->s, p->t[i]);
    cd_scalars_begin_dot(w->s);
    for (size_t i = 0; i < p->width; i++) cd_scalars_add_term(w->s, p->y[i], room[i]);
    return cd_scalars_end_dot(w->s);
}

static cd_scalar binary_cross_entropy(cd_second_writer *w, const pair *p, cd_scalar *room)
{
    cd_scalar *labels = room + p->width;
    for (size_t i = 0; i < p->width; i++) {
        room[i] = cd_scalars_apply(w->s, CD_SCALAR_SOFTPLUS, p->y[i]);
        labels[i] = cd_scalars_leaf(w->s, -p->t[i]);
    }
    cd_scalars_begin_dot(w->s);
    for (size_t i = 0; i < p->width; i++) {
        cd_scalars_add_term(w->s, room[i], w->s->one);
        cd_scalars_add_term(w->s, p->y[i], labels[i]);
    }
    return cd_scalars_end_dot(w->s);
}

/* p->width counts the positions, each of which has `classes` scalars. */
static cd_scalar cross_entropy(cd_second_writer *w, const pair *p, size_t classes, cd_scalar *room)
{
    cd_scalar total = w->s->zero;
    for (size_t place = 0; place < p->width && !cd_second_stops(w); place++) {
        const cd_scalar *y = p->y + place * classes;
        const int64_t class = (int64_t)p->t[place];
        double top;
        if (class == IGNORED_CLASS) continue;
        const cd_scalar sum = exponentials(w, y, classes, room, &top);
        const cd_scalar log_sum = cd_scalars_apply(w->s, CD_SCALAR_LOG, sum);
        const cd_scalar shift = cd_scalars_leaf(w->s, top);
        cd_scalars_begin_dot(w->s);
        cd_scalars_add_term(w->s, total, w->s->one);
        cd_scalars_add_term(w->s, log_sum, w->s->one);
        cd_scalars_add_term(w->s, shift, w->s->one);
        cd_scalars_add_term(w->s, y[class], w->s->minus_one);
        total = cd_scalars_end_dot(w->s);
    }
    return total;
}

void cd_second_loss(cd_second_writer *w, const char *kind, cd_block y,
                    const cd_second_field *target, cd_scalar *losses)
{
    cd_scalar *room = cd_arena_array(w->arena, 2 * y.width + 2, sizeof *room);
    if (target->values == NULL) cd_second_refuse(w, "an output of the second form has no target");
    for (size_t i = 0; i < w->forward->samples && !cd_second_stops(w); i++) {
        const pair p = {y.x + i * y.width, target->values + i * target->width, target->width};
        cd_scalar loss = w->s->zero;
        if (strcmp(kind, "mse") == 0)
            loss = squared_error(w, &p, room);
        else if (strcmp(kind, "dot") == 0)
            loss = inner_product(w, &p, room);
        else if (strcmp(kind, "bce") == 0)
            loss = binary_cross_entropy(w, &p, room);
        else if (strcmp(kind, "ce") == 0)
            loss = cross_entropy(w, &p, y.width / target->width, room);
        else
            cd_second_refuse(w, "the loss has no second form");
        losses[i] = cd_scalars_add(w->s, losses[i], loss);
    }
}
