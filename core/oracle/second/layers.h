/* SPDX-License-Identifier: Apache-2.0 */
/* Layers as loops over scalars. Inside core/oracle/second only.
**
** A value is a block of scalars, (samples, width), row by row. Memory comes from the arena; after
** it ran out every function returns blocks without scalars.
*/
#pragma once
#include "core/oracle/second/program.h"

/* Scalars of (samples, width). */
typedef struct cd_block {
    cd_scalar *x;
    size_t width;
} cd_block;

typedef struct cd_second_writer {
    const cd_second_program *program;
    const cd_second_forward *forward; /* the one that is being written */
    cd_scalars *s;
    cd_arena *arena;
    cd_second_leaves *own; /* (parameter_count) */
    cd_scalar **others;    /* (parameter_count) the same numbers, without a direction; or NULL */
    bool is_frozen;        /* parameters are constants */
    cd_second_norm *norms; /* (CD_SECOND_NORMS_MAX) */
    size_t norm_count;
    const char *refusal;
} cd_second_writer;

/* An option's value in "key=value,key=value", or what is the default. */
int64_t cd_option_number(const cd_second_writer *w, const char *key, int64_t initial);
double cd_option_real(const cd_second_writer *w, const char *key, double initial);
/* Is the option this word? */
bool cd_option_is(const cd_second_writer *w, const char *key, const char *initial,
                  const char *word);
/* Numbers between colons; returns how many. */
size_t cd_option_list(const cd_second_writer *w, const char *key, const char *initial,
                      int64_t *items, size_t capacity);
/* Its text with its length; NULL: it is not given. */
const char *cd_option_text(const cd_second_writer *w, const char *key, size_t *length);

/* The first reason counts. */
void cd_second_refuse(cd_second_writer *w, const char *why);
bool cd_second_stops(const cd_second_writer *w);
/* The number of a parameter; -1: none has the name. */
int64_t cd_second_find(const cd_second_writer *w, const char *name);
/* Element i of a parameter, as a sample uses it. */
cd_scalar cd_second_element(cd_second_writer *w, int64_t parameter, size_t i, size_t sample);
cd_block cd_second_block(cd_second_writer *w, size_t width);
cd_block cd_second_input(cd_second_writer *w, size_t input);

/* "<scope>.weight" and, where it exists, "<scope>.bias", at every one of `places` positions. */
cd_block cd_second_linear(cd_second_writer *w, const char *scope, cd_block x, size_t out,
                          size_t places);
cd_block cd_second_each(cd_second_writer *w, cd_scalar_kind function, cd_block x);
cd_block cd_second_add(cd_second_writer *w, cd_block a, cd_block b);
cd_block cd_second_dropout(cd_second_writer *w, cd_block x, double probability, uint64_t layer);
cd_block cd_second_batch_norm(cd_second_writer *w, const char *scope, cd_block x, size_t channels);
cd_block cd_second_layer_norm(cd_second_writer *w, const char *scope, cd_block x, size_t places);
/* An image of `channels` squares with this side. */
typedef struct cd_second_image {
    size_t channels, side;
} cd_second_image;
typedef struct cd_second_conv {
    size_t out, kernel, stride, padding;
} cd_second_conv;
cd_block cd_second_convolve(cd_second_writer *w, const char *scope, cd_block x,
                            cd_second_image image, cd_second_conv conv);
cd_block cd_second_pool(cd_second_writer *w, cd_block x, cd_second_image image);
cd_block cd_second_upsample(cd_second_writer *w, cd_block x, cd_second_image image);
cd_block cd_second_attention(cd_second_writer *w, cd_block qkv, size_t places, size_t heads,
                             bool is_causal);
/* softmax(x)[at] */
cd_scalar cd_second_share(cd_second_writer *w, const cd_scalar *x, size_t count, size_t at);
/* The losses of an output, added to those of the samples so far. */
void cd_second_loss(cd_second_writer *w, const char *kind, cd_block y,
                    const cd_second_field *target, cd_scalar *losses);
