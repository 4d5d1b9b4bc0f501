/* SPDX-License-Identifier: Apache-2.0 */
/* The models of docs/models.md a second time: from options, parameters and samples to the loss, as
** a program of scalars. Nothing here is shared with core/model.
**
** Lifetime   a program borrows everything; cd_second_write makes the scalars.
** Errors     memory. A model or option that has no second form is no error: see cd_second_result.
*/
#pragma once
#include "core/base/arena.h"
#include "core/oracle/second/scalars.h"

#define CD_SECOND_INPUTS_MAX 4
#define CD_SECOND_OUTPUTS_MAX 16

typedef struct cd_second_parameter {
    const char *name;
    const double *values; /* (numel) of a complex one: real and imaginary part of each */
    size_t numel;
    double roundoff;  /* u of its gradient's dtype */
    double underflow; /* what may be lost of it at the bottom of that dtype's range */
    bool wants_gradient;
} cd_second_parameter;

typedef struct cd_second_field {
    const double *values; /* (samples, width) classes as numbers; NULL: none */
    size_t width;
} cd_second_field;

/* One forward. Of a synchronised batch norm: that of all ranks, one after the other. */
typedef struct cd_second_forward {
    size_t samples;
    const int64_t *ids;     /* (samples) */
    const double *weights;  /* (samples) */
    const double *divisors; /* (samples) of the loss; 0: none */
    /* (samples, CD_SECOND_OUTPUTS_MAX) in place of them, and (CD_SECOND_OUTPUTS_MAX) what each
    ** output's loss is multiplied with; NULL: none */
    const double *output_divisors, *output_weights;
    const bool *are_own; /* (samples) of the rank whose gradients are judged */
    cd_second_field inputs[CD_SECOND_INPUTS_MAX], targets[CD_SECOND_OUTPUTS_MAX];
    uint64_t iteration;
    uint32_t branch, outputs; /* outputs: bit i: output i enters the loss */
    const uint8_t *uses;      /* (unit_count) how often each unit runs; NULL: once */
    size_t unit_count;
} cd_second_forward;

/* A micro-step of one rank. */
typedef struct cd_second_program {
    const char *model, *options;
    const cd_second_parameter *parameters; /* (parameter_count) */
    size_t parameter_count;
    const cd_second_forward *forwards; /* (forward_count) their losses are added */
    size_t forward_count;
    const char *const *buffer_names; /* (buffer_count) */
    size_t buffer_count;
    double scale; /* of the loss: the loss scale, times the number of backwards */
    uint64_t dropout_seed;
    double roundoff; /* u of the dtype that the engine computes in */
} cd_second_program;

/* The scalars that are elements of a parameter. */
typedef struct cd_second_leaves {
    cd_scalar *leaves; /* (count) */
    size_t *elements;  /* (count) */
    size_t count;
    bool is_used;
} cd_second_leaves;

/* Of one channel, over all samples of a batch norm. */
typedef struct cd_second_channel {
    cd_scalar mean, squares; /* squares: Σ (x − mean)² */
    double size;             /* Σ |x| over their number */
    size_t count;
} cd_second_channel;

/* The batch norms, in the order in which they run. */
typedef struct cd_second_norm {
    cd_second_channel *channels; /* (count) */
    size_t count;
    int64_t weight; /* the parameter, which names the layer; -1: none */
} cd_second_norm;
#define CD_SECOND_NORMS_MAX 64

typedef struct cd_second_result {
    cd_scalar loss;
    cd_second_leaves *parameters; /* (parameter_count) in the arena */
    const char *refusal;          /* why there is no second form; NULL: there is one */
    const cd_second_norm *norms;  /* (norm_count) the first ones */
    size_t norm_count;
} cd_second_result;

/* The largest number of operations that a program may have. */
#define CD_SECOND_TERMS_MAX ((size_t)1 << 22)

cddp_status cd_second_write(const cd_second_program *program, cd_scalars *scalars, cd_arena *arena,
                            cd_second_result *result, cddp_error *err) CDDP_MUST_CHECK;
