/* SPDX-License-Identifier: Apache-2.0 */
/* The models of docs/models.md, from that page: which layers, in which order, with which
** parameters. */
#include "core/oracle/second/layers.h"

#include "core/base/error.h"
#include "core/tensor/constants_code.h"

#include <stdio.h>
#include <string.h>

#define NAME_BYTES 160

typedef struct outputs {
    cd_block values[CD_SECOND_OUTPUTS_MAX]; /* x NULL: not made by this forward */
    cd_second_field targets[CD_SECOND_OUTPUTS_MAX];
    const char *loss[CD_SECOND_OUTPUTS_MAX]; /* NULL: the output is the loss of the sample */
    uint32_t count;
} outputs;

static size_t positive(int64_t number) { return number > 0 ? (size_t)number : 1; }

static size_t number(const cd_second_writer *w, const char *key, int64_t initial)
{
    return positive(cd_option_number(w, key, initial));
}

static uint32_t uses_of(const cd_second_writer *w, size_t unit)
{
    const cd_second_forward *f = w->forward;
    return f->uses != NULL && unit < f->unit_count ? f->uses[unit] : 1;
}

static const char *loss_of(const cd_second_writer *w, const char *initial)
{
    static const char *const kinds[] = {"mse", "dot", "bce", "ce"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (cd_option_is(w, "loss", initial, kinds[i])) return kinds[i];
    return "?";
}

static void set_output(const cd_second_writer *w, outputs *o, uint32_t index, cd_block value,
                       const char *loss)
{
    o->values[index] = value;
    o->targets[index] = w->forward->targets[index];
    o->loss[index] = loss;
    if (index >= o->count) o->count = index + 1;
}

/* ---- mlp, chain, branchy ---- */

static cd_block activate(cd_second_writer *w, cd_block x)
{
    static const struct {
        const char *word;
        cd_scalar_kind kind;
    } rows[] = {{"relu", CD_SCALAR_RELU},
                {"gelu", CD_SCALAR_GELU},
                {"tanh", CD_SCALAR_TANH},
                {"sigmoid", CD_SCALAR_SIGMOID}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (cd_option_is(w, "activation", "relu", rows[i].word))
            return cd_second_each(w, rows[i].kind, x);
    return x;
}

static cd_block hidden_layer(cd_second_writer *w, size_t i, size_t width, cd_block x)
{
    char scope[NAME_BYTES];
    snprintf(scope, sizeof scope, "layers.%zu", i);
    x = cd_second_linear(w, scope, x, width, 1);
    snprintf(scope, sizeof scope, "norms.%zu", i);
    if (cd_option_is(w, "norm", "none", "layer")) x = cd_second_layer_norm(w, scope, x, 1);
    if (cd_option_is(w, "norm", "none", "batch") || cd_option_is(w, "norm", "none", "sync"))
        x = cd_second_batch_norm(w, scope, x, width);
    x = activate(w, x);
    return cd_second_dropout(w, x, cd_option_real(w, "dropout", 0), i);
}

static void write_mlp(cd_second_writer *w, outputs *o)
{
    int64_t widths[64];
    const size_t count = cd_option_list(w, "widths", "8:16:4", widths, 64);
    const uint32_t heads = (uint32_t)number(w, "heads", 1);
    cd_block x = cd_second_input(w, 0);
    if (count < 2 || heads > CD_SECOND_OUTPUTS_MAX) {
        cd_second_refuse(w, "the widths or heads of the mlp have no second form");
        return;
    }
    for (size_t i = 0; i + 2 < count; i++)
        for (uint32_t use = 0; use < uses_of(w, i); use++)
            x = hidden_layer(w, i, positive(widths[i + 1]), x);
    for (uint32_t h = 0; h < heads; h++) {
        char scope[NAME_BYTES] = "out";
        if (heads > 1) snprintf(scope, sizeof scope, "head%u", h);
        set_output(w, o, h, cd_second_linear(w, scope, x, positive(widths[count - 1]), 1),
                   loss_of(w, "mse"));
    }
}

/* y = W x + b, where W may have the name of another layer. */
static cd_block chain_layer(cd_second_writer *w, size_t i, size_t width, cd_block x)
{
    char weight_name[NAME_BYTES], bias_name[NAME_BYTES];
    const bool is_tied = cd_option_number(w, "tied", 0) != 0;
    snprintf(weight_name, sizeof weight_name, "layers.%zu.weight", is_tied ? 0 : i);
    snprintf(bias_name, sizeof bias_name, "layers.%zu.bias", i);
    const int64_t weight = cd_second_find(w, weight_name), bias = cd_second_find(w, bias_name);
    const cd_block y = cd_second_block(w, width);
    for (size_t at = 0; at < w->forward->samples * width && !cd_second_stops(w); at++) {
        const size_t sample = at / width, row = at % width;
        (void)cd_second_element(w, weight, 0, sample);
        const cd_scalar b = bias >= 0 ? cd_second_element(w, bias, row, sample) : w->s->zero;
        if (cd_second_stops(w)) break;
        cd_scalars_begin_dot(w->s);
        for (size_t k = 0; k < width; k++)
            cd_scalars_add_term(w->s, cd_second_element(w, weight, row * width + k, sample),
                                x.x[sample * width + k]);
        cd_scalars_add_term(w->s, b, w->s->one);
        y.x[at] = cd_scalars_end_dot(w->s);
    }
    return y;
}

static void write_chain(cd_second_writer *w, outputs *o)
{
    const size_t depth = number(w, "depth", 3), width = number(w, "width", 4);
    int64_t order[64];
    const size_t listed = cd_option_list(w, "order", "-1", order, 64);
    const bool is_listed = listed > 0 && order[0] >= 0;
    cd_block x = cd_second_input(w, 0);
    for (size_t at = 0; at < (is_listed ? listed : depth) && !cd_second_stops(w); at++) {
        const size_t i = is_listed ? (size_t)order[at] : at;
        for (uint32_t use = 0; use < uses_of(w, i); use++) x = chain_layer(w, i, width, x);
    }
    set_output(w, o, 0, x, loss_of(w, "dot"));
}

static void write_branchy(cd_second_writer *w, outputs *o)
{
    const size_t width = number(w, "width", 5), branches = number(w, "branches", 2);
    char scope[NAME_BYTES];
    snprintf(scope, sizeof scope, "branches.%zu", w->forward->branch % branches);
    cd_block x = cd_second_linear(w, "trunk", cd_second_input(w, 0), width, 1);
    x = cd_second_each(w, CD_SCALAR_RELU, x);
    x = cd_second_linear(w, scope, x, width, 1);
    x = cd_second_each(w, CD_SCALAR_RELU, x);
    set_output(w, o, 0, cd_second_linear(w, "head", x, number(w, "out", 2), 1), loss_of(w, "dot"));
}

/* ---- cnn, gan ---- */

static void write_cnn(cd_second_writer *w, outputs *o)
{
    int64_t channels[16];
    const size_t count = cd_option_list(w, "channels", "1:4:8", channels, 16);
    size_t side = number(w, "size", 8);
    cd_block x = cd_second_input(w, 0);
    for (size_t i = 0; i + 1 < count && !cd_second_stops(w); i++, side /= 2) {
        char scope[NAME_BYTES];
        const size_t out = positive(channels[i + 1]);
        snprintf(scope, sizeof scope, "conv%zu", i + 1);
        x = cd_second_convolve(w, scope, x, (cd_second_image){positive(channels[i]), side},
                               (cd_second_conv){out, 3, 1, 1});
        snprintf(scope, sizeof scope, "bn%zu", i + 1);
        if (!cd_option_is(w, "norm", "none", "none")) x = cd_second_batch_norm(w, scope, x, out);
        x = cd_second_each(w, CD_SCALAR_RELU, x);
        x = cd_second_pool(w, x, (cd_second_image){out, side});
    }
    set_output(w, o, 0, cd_second_linear(w, "fc", x, number(w, "classes", 4), 1), loss_of(w, "ce"));
}

static cd_block generate(cd_second_writer *w, size_t channels, size_t size)
{
    const size_t half = size / 2;
    cd_block x =
        cd_second_linear(w, "generator.project", cd_second_input(w, 1), channels * half * half, 1);
    if (cd_option_is(w, "norm", "none", "batch"))
        x = cd_second_batch_norm(w, "generator.norm", x, channels);
    x = cd_second_each(w, CD_SCALAR_RELU, x);
    x = cd_second_upsample(w, x, (cd_second_image){channels, half});
    x = cd_second_convolve(w, "generator.paint", x, (cd_second_image){channels, size},
                           (cd_second_conv){1, 3, 1, 1});
    return cd_second_each(w, CD_SCALAR_TANH, x);
}

static cd_block discriminate(cd_second_writer *w, cd_block image, size_t channels, size_t size)
{
    cd_block x = cd_second_convolve(w, "discriminator.look1", image, (cd_second_image){1, size},
                                    (cd_second_conv){channels, 4, 2, 1});
    x = cd_second_each(w, CD_SCALAR_RELU, x);
    x = cd_second_convolve(w, "discriminator.look2", x, (cd_second_image){channels, size / 2},
                           (cd_second_conv){2 * channels, 4, 2, 1});
    x = cd_second_each(w, CD_SCALAR_RELU, x);
    return cd_second_linear(w, "discriminator.judge", x, 1, 1);
}

/* A real image should be called 1, a generated one 0; the generator wants its own called 1. */
static void write_gan(cd_second_writer *w, outputs *o)
{
    const size_t channels = number(w, "channels", 4), size = number(w, "size", 8);
    const size_t samples = w->forward->samples, width = w->forward->branch == 0 ? 2 : 1;
    double *labels = cd_arena_array(w->arena, samples * width + 1, sizeof *labels);
    const cd_block y = cd_second_block(w, width);
    if (cd_second_stops(w)) return;
    for (size_t i = 0; i < samples; i++) labels[i * width] = 1;
    w->is_frozen = width == 2;
    const cd_block fake = generate(w, channels, size);
    w->is_frozen = width == 1;
    const cd_block called = discriminate(w, fake, channels, size);
    const cd_block real =
        width == 2 ? discriminate(w, cd_second_input(w, 0), channels, size) : called;
    w->is_frozen = false;
    for (size_t i = 0; i < samples && !cd_second_stops(w); i++) {
        y.x[i * width] = real.x[i];
        if (width == 2) y.x[i * width + 1] = called.x[i];
    }
    const uint32_t output = width == 2 ? 0 : 1;
    set_output(w, o, output, y, "bce");
    o->targets[output] = (cd_second_field){labels, width};
    o->count = 2;
}

/* ---- tables ---- */

/* Row by row: the rows of a table that a field names. */
static cd_block look_up(cd_second_writer *w, const char *name, size_t width,
                        const cd_second_field *rows)
{
    const int64_t table = cd_second_find(w, name);
    const cd_block y = cd_second_block(w, rows->width * width);
    for (size_t i = 0; i < w->forward->samples * y.width && !cd_second_stops(w); i++)
        y.x[i] = cd_second_element(w, table, (size_t)rows->values[i / width] * width + i % width,
                                   i / y.width);
    return y;
}

static void write_embedding_bag(cd_second_writer *w, outputs *o)
{
    const size_t width = number(w, "width", 4), bag = w->forward->inputs[0].width;
    const cd_block rows = look_up(w, "table.weight", width, &w->forward->inputs[0]);
    const cd_block sum = cd_second_block(w, width);
    for (size_t i = 0; i < w->forward->samples * width && !cd_second_stops(w); i++) {
        cd_scalars_begin_dot(w->s);
        for (size_t k = 0; k < bag; k++)
            cd_scalars_add_term(w->s, rows.x[i / width * rows.width + k * width + i % width],
                                w->s->one);
        sum.x[i] = cd_scalars_end_dot(w->s);
    }
    set_output(w, o, 0, cd_second_linear(w, "head", sum, number(w, "out", 2), 1),
               loss_of(w, "dot"));
}

/* The head's weight is the table: class k scores ⟨row k, x⟩. */
static void write_tied_lm(cd_second_writer *w, outputs *o)
{
    const size_t width = number(w, "width", 6), classes = number(w, "vocabulary", 12);
    const size_t places = w->forward->inputs[0].width;
    const int64_t table = cd_second_find(w, "tokens.weight");
    cd_block x = look_up(w, "tokens.weight", width, &w->forward->inputs[0]);
    x = cd_second_linear(w, "hidden", x, width, places);
    x = cd_second_each(w, CD_SCALAR_TANH, x);
    const cd_block y = cd_second_block(w, places * classes);
    for (size_t i = 0; i < w->forward->samples * y.width && !cd_second_stops(w); i++) {
        const size_t row = i / classes, class = i % classes;
        (void)cd_second_element(w, table, 0, row / places);
        cd_scalars_begin_dot(w->s);
        for (size_t k = 0; k < width; k++)
            cd_scalars_add_term(w->s, cd_second_element(w, table, class * width + k, row / places),
                                x.x[row * width + k]);
        y.x[i] = cd_scalars_end_dot(w->s);
    }
    set_output(w, o, 0, y, "ce");
}

static cd_block write_block(cd_second_writer *w, size_t i, size_t width, cd_block x)
{
    const size_t places = x.width / width, heads = number(w, "heads", 2);
    const double probability = cd_option_real(w, "dropout", 0);
    char scope[NAME_BYTES];
#define PART(name) (snprintf(scope, sizeof scope, "blocks.%zu." name, i), scope)
    cd_block v = cd_second_layer_norm(w, PART("norm1"), x, places);
    v = cd_second_linear(w, PART("qkv"), v, 3 * width, places);
    v = cd_second_attention(w, v, places, heads, cd_option_number(w, "causal", 1) != 0);
    v = cd_second_linear(w, PART("projection"), v, width, places);
    const cd_block middle = cd_second_add(w, x, cd_second_dropout(w, v, probability, 2 * i));
    v = cd_second_layer_norm(w, PART("norm2"), middle, places);
    v = cd_second_linear(w, PART("up"), v, 4 * width, places);
    v = cd_second_each(w, CD_SCALAR_GELU, v);
    v = cd_second_linear(w, PART("down"), v, width, places);
#undef PART
    return cd_second_add(w, middle, cd_second_dropout(w, v, probability, 2 * i + 1));
}

static void write_transformer(cd_second_writer *w, outputs *o)
{
    const size_t width = number(w, "width", 8), places = w->forward->inputs[0].width;
    const size_t samples = w->forward->samples;
    double *numbers = cd_arena_array(w->arena, samples * places + 1, sizeof *numbers);
    for (size_t i = 0; numbers != NULL && i < samples * places; i++)
        numbers[i] = (double)(i % places);
    if (cd_second_stops(w)) return;
    const cd_second_field positions = {numbers, places};
    const cd_block tokens = look_up(w, "tokens.weight", width, &w->forward->inputs[0]),
                   at = look_up(w, "places.weight", width, &positions);
    cd_block x = cd_second_add(w, tokens, at);
    for (size_t i = 0; i < number(w, "layers", 2) && !cd_second_stops(w); i++)
        x = write_block(w, i, width, x);
    x = cd_second_layer_norm(w, "norm", x, places);
    set_output(w, o, 0, cd_second_linear(w, "head", x, number(w, "vocabulary", 16), places), "ce");
}

/* ---- moe ---- */

/* x + share · expert(x), with the expert of the largest share. */
static void write_moe(cd_second_writer *w, outputs *o)
{
    const size_t width = number(w, "width", 6), experts = number(w, "experts", 4);
    const size_t hidden = number(w, "hidden", 8);
    const cd_block x = cd_second_linear(w, "entry", cd_second_input(w, 0), width, 1);
    const cd_block gates = cd_second_linear(w, "gate", x, experts, 1);
    const cd_block mixed = cd_second_block(w, width);
    for (size_t sample = 0; sample < w->forward->samples && !cd_second_stops(w); sample++) {
        const cd_scalar *gate = gates.x + sample * experts;
        size_t best = 0;
        for (size_t e = 1; e < experts; e++)
            if (cd_scalars_is_larger(w->s, gate[e], gate[best])) best = e;
        const cd_scalar share = cd_second_share(w, gate, experts, best);
        char scope[NAME_BYTES];
        /* one sample at a time */
        const cd_second_forward *all = w->forward;
        cd_second_forward one = *all;
        one.samples = 1;
        one.are_own = all->are_own + sample;
        w->forward = &one;
        snprintf(scope, sizeof scope, "experts.%zu.up", best);
        cd_block y = cd_second_linear(w, scope, (cd_block){x.x + sample * width, width}, hidden, 1);
        y = cd_second_each(w, CD_SCALAR_RELU, y);
        snprintf(scope, sizeof scope, "experts.%zu.down", best);
        y = cd_second_linear(w, scope, y, width, 1);
        w->forward = all;
        for (size_t i = 0; i < width && !cd_second_stops(w); i++)
            mixed.x[sample * width + i] = cd_scalars_add(w->s, x.x[sample * width + i],
                                                         cd_scalars_multiply(w->s, share, y.x[i]));
    }
    set_output(w, o, 0, cd_second_linear(w, "exit", mixed, number(w, "out", 3), 1),
               loss_of(w, "mse"));
}

/* ---- lists of parameters ---- */

/* A parameter's own elements that are written: all of a small one. Each adds c·x·p to the loss, so
** those that are left out change no derivative of the others. */
#define LISTED_MAX 64

static bool write_listed(cd_second_writer *w, size_t parameter)
{
    const cd_second_parameter *p = &w->program->parameters[parameter];
    cd_second_leaves *own = &w->own[parameter];
    const size_t step = p->numel / LISTED_MAX + 1;
    own->is_used = true;
    if (own->leaves != NULL) return true;
    own->leaves = cd_arena_array(w->arena, LISTED_MAX + 1, sizeof *own->leaves);
    own->elements = cd_arena_array(w->arena, LISTED_MAX + 1, sizeof *own->elements);
    if (own->leaves == NULL || own->elements == NULL) return false;
    for (size_t i = 0; i < p->numel && own->count < LISTED_MAX; i += step) {
        own->elements[own->count] = i + step > p->numel - 1 ? p->numel - 1 : i;
        own->leaves[own->count] = cd_scalars_parameter(w->s, p->values[own->elements[own->count]]);
        own->count++;
    }
    return true;
}

/* acc + x ⟨c, p⟩ for every sample. */
static cd_block use_listed(cd_second_writer *w, size_t parameter, cd_block x, cd_block acc)
{
    const size_t samples = w->forward->samples;
    const cd_block y = cd_second_block(w, 1);
    if (cd_second_stops(w) || !write_listed(w, parameter)) return y;
    const cd_second_leaves *own = &w->own[parameter];
    cd_scalar *constants = cd_arena_array(w->arena, own->count + 1, sizeof *constants);
    if (constants == NULL) return y;
    for (size_t i = 0; i < own->count; i++)
        constants[i] = cd_scalars_leaf(w->s, cd_inner_constant(parameter + UINT64_C(1),
                                                               (int64_t)own->elements[i]));
    cd_scalars_begin_dot(w->s);
    for (size_t i = 0; i < own->count; i++) cd_scalars_add_term(w->s, constants[i], own->leaves[i]);
    const cd_scalar product = cd_scalars_end_dot(w->s);
    for (size_t i = 0; i < samples && !cd_second_stops(w); i++) {
        cd_scalars_begin_dot(w->s);
        cd_scalars_add_term(w->s, x.x[i], product);
        if (acc.x != NULL) cd_scalars_add_term(w->s, acc.x[i], w->s->one);
        y.x[i] = cd_scalars_end_dot(w->s);
    }
    return y;
}

/* "outputN" among the words of the parameter's item in the list. */
static uint32_t output_of(const cd_second_writer *w, const char *name)
{
    size_t length;
    const char *list = cd_option_text(w, "list", &length), *end = list + length;
    const size_t name_length = strlen(name);
    for (const char *at = list; at != NULL && at < end;) {
        const char *stop = memchr(at, ';', (size_t)(end - at));
        if (stop == NULL) stop = end;
        if ((size_t)(stop - at) > name_length && at[name_length] == ':' &&
            strncmp(at, name, name_length) == 0) {
            for (const char *word = at + name_length; word + 7 < stop; word++)
                if (strncmp(word, ":output", 7) == 0)
                    return (uint32_t)(word[7] - '0') +
                           (word + 8 < stop && word[8] >= '0' && word[8] <= '9'
                                ? 9 * (uint32_t)(word[7] - '0') + (uint32_t)(word[8] - '0')
                                : 0);
            return 0;
        }
        at = stop + 1;
    }
    return 0;
}

static void write_list(cd_second_writer *w, outputs *o)
{
    const cd_block x = cd_second_input(w, 0);
    for (size_t i = 0; i < w->program->parameter_count && !cd_second_stops(w); i++) {
        const uint32_t output = output_of(w, w->program->parameters[i].name);
        if (output >= CD_SECOND_OUTPUTS_MAX) continue;
        for (uint32_t use = 0; use < uses_of(w, i); use++)
            set_output(w, o, output, use_listed(w, i, x, o->values[output]), NULL);
    }
}

/* ---- a program ---- */

static void (*const *find_model(const char *name))(cd_second_writer *, outputs *)
{
    static const struct {
        const char *name;
        void (*write)(cd_second_writer *w, outputs *o);
    } models[] = {{"mlp", write_mlp},         {"chain", write_chain},
                  {"branchy", write_branchy}, {"cnn", write_cnn},
                  {"gan", write_gan},         {"embedding_bag", write_embedding_bag},
                  {"tied_lm", write_tied_lm}, {"transformer", write_transformer},
                  {"moe", write_moe},         {"params", write_list},
                  {"resnet", write_list},     {"bert", write_list},
                  {"gpt2", write_list},       {"llama", write_list}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(models[i].name, name) == 0) return &models[i].write;
    return NULL;
}

/* The losses of one output's samples are added to those that are there. */
static void add_losses(cd_second_writer *w, const outputs *o, uint32_t output, cd_scalar *losses)
{
    const cd_second_forward *f = w->forward;
    if (o->loss[output] != NULL) {
        cd_second_loss(w, o->loss[output], o->values[output], &o->targets[output], losses);
        return;
    }
    for (size_t i = 0; i < f->samples; i++)
        losses[i] = cd_scalars_add(w->s, losses[i], o->values[output].x[i]);
}

/* Σ_samples weight / divisor · loss. divisors: of sample i at i · stride. */
static cd_scalar write_sum(cd_second_writer *w, const cd_scalar *losses, const double *divisors,
                           size_t stride)
{
    const cd_second_forward *f = w->forward;
    cd_scalar *shares = cd_arena_array(w->arena, f->samples + 1, sizeof *shares);
    for (size_t i = 0; i < f->samples && !cd_second_stops(w); i++) {
        const double divisor = divisors[i * stride];
        shares[i] = cd_scalars_leaf(w->s, divisor != 0 ? f->weights[i] / divisor : f->weights[i]);
    }
    if (cd_second_stops(w)) return w->s->zero;
    cd_scalars_begin_dot(w->s);
    for (size_t i = 0; i < f->samples; i++) cd_scalars_add_term(w->s, losses[i], shares[i]);
    return cd_scalars_end_dot(w->s);
}

/* Over the outputs that count; where they have losses apart, each one's sum by itself. */
static cd_scalar write_forward(cd_second_writer *w)
{
    const cd_second_forward *f = w->forward;
    void (*const *write)(cd_second_writer *, outputs *) = find_model(w->program->model);
    cd_scalar *losses = cd_arena_array(w->arena, f->samples + 1, sizeof *losses);
    outputs *o = cd_arena_push(w->arena, sizeof *o);
    cd_scalar total = w->s->zero;
    if (write == NULL) cd_second_refuse(w, "the model has no second form");
    if (cd_second_stops(w)) return w->s->zero;
    for (size_t i = 0; i < f->samples; i++) losses[i] = w->s->zero;
    (*write)(w, o);
    for (uint32_t k = 0; k < o->count && !cd_second_stops(w); k++) {
        if ((f->outputs >> k & 1) == 0 || o->values[k].x == NULL) continue;
        add_losses(w, o, k, losses);
        if (f->output_divisors == NULL) continue;
        const cd_scalar sum = write_sum(w, losses, f->output_divisors + k, CD_SECOND_OUTPUTS_MAX);
        if (cd_second_stops(w)) break;
        const cd_scalar weight = cd_scalars_leaf(w->s, f->output_weights[k]);
        total = cd_scalars_add(w->s, total, cd_scalars_multiply(w->s, sum, weight));
        for (size_t i = 0; i < f->samples; i++) losses[i] = w->s->zero;
    }
    if (cd_second_stops(w)) return w->s->zero;
    return f->output_divisors != NULL ? total : write_sum(w, losses, f->divisors, 1);
}

cddp_status cd_second_write(const cd_second_program *program, cd_scalars *scalars, cd_arena *arena,
                            cd_second_result *result, cddp_error *err)
{
    const size_t n = program->parameter_count;
    cd_second_writer w = {.program = program, .s = scalars, .arena = arena};
    cd_scalars_clear(scalars, program->roundoff);
    w.own = cd_arena_array(arena, n + 1, sizeof *w.own);
    w.others = cd_arena_array(arena, n + 1, sizeof *w.others);
    w.norms = cd_arena_array(arena, CD_SECOND_NORMS_MAX, sizeof *w.norms);
    CD_TRY(cd_arena_check(arena, err, "the second form of model %s", program->model));
    cd_scalar loss = scalars->zero;
    for (size_t i = 0; i < program->forward_count && !cd_second_stops(&w); i++) {
        w.forward = &program->forwards[i];
        loss = cd_scalars_add(scalars, loss, write_forward(&w));
    }
    const cd_scalar scale = cd_scalars_leaf(scalars, program->scale);
    loss = cd_scalars_multiply(scalars, loss, scale);
    CD_TRY(cd_arena_check(arena, err, "the second form of model %s", program->model));
    CD_TRY(cd_scalars_check(scalars, err));
    *result = (cd_second_result){loss, w.own, w.refusal, w.norms, w.norm_count};
    return CDDP_OK;
}
