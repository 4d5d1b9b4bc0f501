/* SPDX-License-Identifier: Apache-2.0 */
/* The layer port, for devices that can train a model where its tensors are. Optional; see
** cddp_device.layers.
**
** A model whose device has this table keeps its whole tape on the device: forward, backward and the
** optimizer are calls in the device's order, and the host waits for nothing. A layer or rule that
** the table does not name is computed on the host, over copies, operation by operation. On a device
** without the table the whole tape is a copy on the host.
**
** Order      calls go to the device's default stream (NULL in the device port) and return at once;
**            what they use may be released, and its memory used again by later operations of that
**            stream, as soon as they returned.
** Operands   contiguous; real numbers are f32 or f64, all of one dtype in a call, but for what is
**            said to be f64 or i64.
** Storage    the tape lives in storage allocated as u8 and viewed as other dtypes at offsets that
**            are multiples of 64 bytes: storage is plain bytes on a device with layers.
** Arithmetic what the cpu does (core/model/layers, docs/determinism.md), sums in the same order; a
** device that sums in
**            another one where that is worth it (large products) says so.
** Errors     another device, dtype or number of operands, gaps; nothing is enqueued then. Sizes are
**            the caller's to get right.
*/
#pragma once
#include "cddp/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CDDP_LAYERS_ABI 1u

/* inputs → outputs; given: further inputs on the device. n: samples, the first dimension. The
** caller fills in "given i64" and the like; they are equal in forward and backward, except where
** noted. */
typedef enum cddp_layer {
    CDDP_LAYER_NONE,
    CDDP_LAYER_LINEAR, /* bias (out) or absent, x (n, …, in), weight (out, in) → y (n, …, out) */
    CDDP_LAYER_RELU,    /* x → y; backward cuts where y <= 0 */
    CDDP_LAYER_GELU,    /* x → y, with erf */
    CDDP_LAYER_TANH,    /* x → y */
    CDDP_LAYER_SIGMOID, /* x → y */
    /* x (n, c, h, w), weight (o, c, kh, kw), bias (o) or absent → y; integers: stride, padding */
    CDDP_LAYER_CONV2D,
    CDDP_LAYER_AVERAGE_POOL, /* x (n, c, h, w) → y; integers: size */
    CDDP_LAYER_UPSAMPLE,     /* x (n, c, h, w) → y; integers: size */
    /* x → y; reals: probability; given: i64 (n, 4), each sample's xoshiro256** at its start */
    CDDP_LAYER_DROPOUT,
    /* table (rows, width) → y (n, positions, width), or (n, width) sums when integers[0] != 0;
    ** given: i64 (n, positions) indices in range; i64 (hit) rows that are hit, increasing; i64 (hit
    ** + 1) where each one's begin in: i64 (n · positions) places, increasing in each */
    CDDP_LAYER_EMBEDDING,
    CDDP_LAYER_LAYER_NORM, /* x (n, …, width), weight, bias (width) → y; reals: eps */
    /* x (n, c) or (n, c, h, w), weight, bias (c) → y; integers: training; reals: eps, momentum;
    ** given: running mean, running variance (c), i64 count of batches, which training moves in
    ** forward; f64 (3, c), written in forward and read in backward */
    CDDP_LAYER_BATCH_NORM,
    /* qkv (n, positions, 3 · width) → y (n, positions, width); integers: heads, causal */
    CDDP_LAYER_ATTENTION,
    CDDP_LAYER_SQUARED_ERROR, /* y, target → losses (n) */
    CDDP_LAYER_BCE,           /* y, target → losses (n); with logits */
    CDDP_LAYER_INNER_PRODUCT, /* y, target → losses (n) */
    /* y (n, …, classes) → losses (n); given: i64 (n, …) classes in range, or -100: ignored */
    CDDP_LAYER_CROSS_ENTROPY,
    /* losses (n) → scalar; reals: divisor, 0: none; given: f64 (n) weights, or absent */
    CDDP_LAYER_WEIGHTED_SUM,
    /* logits (n, experts) → gates (n); given: i64 (n), written in forward: who was chosen */
    CDDP_LAYER_GATE,
    /* x (n, width) → rows of one expert; integers: expert; given: i64 (n) expert, i64 (n) row */
    CDDP_LAYER_TAKE,
    /* gates (n), results of each expert or absent → y (n, width); given: as TAKE */
    CDDP_LAYER_COMBINE,
    /* acc (n) or absent, p, x (n) → y (n): y = acc + x · Σ c[i]·p[i], p flat; p may be c64, then it
    ** is taken as pairs of f32. integers: a key; c[i] is -3, -2, -1, 1, 2, 3 for mix(key, i) mod 6
    ** = 0 … 5 (cd_hash_mix of core/base/hash.h). x wants no gradient */
    CDDP_LAYER_ADD_INNER,
    /* a BATCH_NORM in training that shares its statistics between ranks, in two halves around an
    ** exchange; integers: training, half (1 or 2). given[3]: f64, kept (3c + 1): mean, Σ(x-mean)²,
    ** 1/σ (c each), count; then own (2c + 1); then all (ranks, 2c + 1). forward 1 writes own: mean,
    ** Σ(x-mean)², count of this rank's values; forward 2 reads all, of every rank in rank order,
    ** and writes kept, the running statistics and y. backward 1 writes own: Σdy, Σdy·x̂ (c each),
    ** and the gradients of weight and bias; backward 2 reads own, summed over ranks by then, and
    ** writes the gradient of x */
    CDDP_LAYER_BATCH_NORM_SHARED,
    CDDP_LAYER_COUNT
} cddp_layer;
#define CDDP_LAYER_BIT(layer) (UINT64_C(1) << (layer))

enum { CDDP_LAYER_INTEGERS = 2, CDDP_LAYER_REALS = 2, CDDP_LAYER_GIVEN = 4 };

typedef struct cddp_layer_call {
    uint32_t size; /* sizeof(cddp_layer_call) known to the caller */
    cddp_layer layer;
    bool is_backward;
    uint32_t input_count, output_count;
    const cddp_tensor *inputs; /* (input_count) device NULL: absent */
    /* (output_count) forward writes them; backward sees what forward wrote */
    const cddp_tensor *outputs;
    const cddp_tensor *out_grads; /* (output_count) backward only */
    /* (input_count) backward only: zeros to write to; device NULL: not wanted */
    const cddp_tensor *in_grads;
    cddp_tensor given[CDDP_LAYER_GIVEN];
    int64_t integers[CDDP_LAYER_INTEGERS];
    double reals[CDDP_LAYER_REALS];
} cddp_layer_call;

/* ---- optimizers ---- */

/* Every scalar is rounded to the tensors' dtype once, every operation rounds to it;
** core/model/optim has the formulas. SGD needs no rule here: it is made of the device's own
** operations. */
typedef enum cddp_update_rule {
    /* parameter, gradient, mean, square, maximum or absent; writes all but the gradient */
    CDDP_UPDATE_ADAM,
    CDDP_UPDATE_ADAGRAD, /* parameter, gradient, sum; writes parameter and sum */
    CDDP_UPDATE_COUNT
} cddp_update_rule;
#define CDDP_UPDATE_BIT(rule) (1u << (rule))

typedef struct cddp_adam_scalars {
    double decay;  /* Adam: added to the gradient; 0: none */
    double shrink; /* AdamW: factor on the parameter; 1: none */
    double beta1, beta1_rest, beta2, beta2_rest, correction2_root, eps, step_size_negative, sign;
    bool is_decoupled, has_maximum;
} cddp_adam_scalars;

typedef struct cddp_adagrad_scalars {
    double decay, eps, rate_negative, sign;
} cddp_adagrad_scalars;

enum { CDDP_UPDATE_TENSORS = 5 };

/* Tensors of one floating dtype or all c64 (taken as pairs of f32), with equal sizes; strides as
** they are. */
typedef struct cddp_update_call {
    uint32_t size;
    cddp_update_rule rule;
    const cddp_tensor *tensors[CDDP_UPDATE_TENSORS]; /* in the rule's order; NULL: absent */
    const cddp_adam_scalars *adam;                   /* ADAM */
    const cddp_adagrad_scalars *adagrad;             /* ADAGRAD */
} cddp_update_call;

typedef struct cddp_layers {
    uint32_t size;   /* sizeof(cddp_layers) known to the writer */
    uint32_t abi;    /* CDDP_LAYERS_ABI */
    uint64_t layers; /* CDDP_LAYER_BIT of each that run takes */
    uint32_t rules;  /* CDDP_UPDATE_BIT of each that update takes; 0: update is NULL */
    cddp_status (*run)(const cddp_device *device, const cddp_layer_call *call, cddp_error *err);
    cddp_status (*update)(const cddp_device *device, const cddp_update_call *call, cddp_error *err);
} cddp_layers;

#ifdef __cplusplus
}
#endif
