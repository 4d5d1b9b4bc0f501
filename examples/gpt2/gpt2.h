/* SPDX-License-Identifier: Apache-2.0 */
/* A GPT-2 in plain C, with the text that it learns, and AdamW.
**
** The forward and the backward take one sequence. Gradients are added to what is there, from the
** last layer to the first; `ready`, when it is set, is called as soon as one is complete.
**
** Lifetime   create → forward and backward, update, … → destroy. The program that trains says where
**            gradients are: gpt2_parameter.gradient.
*/
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { GPT2_LAYERS_MAX = 12, GPT2_PER_LAYER = 12, GPT2_PARAMETERS_MAX = 4 + 12 * 12 };

typedef struct gpt2_config {
    int layers, heads, channels, vocabulary, context;
} gpt2_config;

typedef struct gpt2_parameter {
    char name[64];    /* "h.0.attn.c_attn.weight" */
    int64_t sizes[2]; /* (dimensions) */
    int dimensions;
    size_t count;          /* elements */
    float *values;         /* (count) */
    float *gradient;       /* (count), of whoever trains */
    float *first, *second; /* (count) moments of AdamW */
} gpt2_parameter;

/* What a layer leaves for its backward; (context, …) each. */
typedef struct gpt2_layer {
    float *in, *norm1, *mean1, *scale1, *qkv, *weights, *mix, *middle, *norm2, *mean2, *scale2, *up,
        *act;
} gpt2_layer;

typedef struct gpt2 {
    gpt2_config config;
    int parameter_count;
    gpt2_parameter parameters[GPT2_PARAMETERS_MAX];
    gpt2_layer layers[GPT2_LAYERS_MAX];
    float *out, *norm, *mean, *scale, *probability; /* of the end */
    float *back, *back_norm, *back_wide, *back_up, *back_row;
    float *memory;
    void (*ready)(void *context, int parameter); /* may be NULL */
    void *ready_context;
} gpt2;

/* 0, or -1 without memory. Equal seeds give equal weights. */
int gpt2_create(gpt2 *model, const gpt2_config *config, uint64_t seed);
void gpt2_destroy(gpt2 *model);

/* Sequence `id` of the text: context + 1 tokens. It depends on nothing but its arguments. */
void gpt2_text(const gpt2_config *config, int64_t id, int *tokens);
/* The mean loss of a sequence. The gradient of factor · loss is added to every gradient. */
float gpt2_forward_backward(gpt2 *model, const int *tokens, float factor);

/* AdamW with decay of matrices; step counts from 1. */
void gpt2_update(gpt2_parameter *parameter, int step, float rate);
/* Weights and moments, after `step` steps. 0, or -1: the file says no. */
int gpt2_save(const gpt2 *model, int step, FILE *file);
int gpt2_load(gpt2 *model, int *step, FILE *file);
