/* SPDX-License-Identifier: Apache-2.0 */
/* A batch: the samples of one forward, and data that depends on nothing but the seed and the sample
** id.
**
** The values of sample s are the same on every rank, in every batch and at every position. So "the
** same samples on one process" has a meaning.
**
** Lifetime   made in the graph's arena: after cd_graph_begin, until the next one.
*/
#pragma once
#include "core/model/graph.h"

typedef struct cd_model cd_model;

#define CD_BATCH_FIELDS_MAX 4
#define CD_MODEL_OUTPUTS_MAX 16

/* What the loss of one output is divided by and then multiplied with. */
typedef struct cd_loss_term {
    double divisor, weight;
} cd_loss_term;

typedef struct cd_batch {
    int64_t sample_count;
    /* (sample_count) key dropout, routing without arithmetic, and generated data */
    const int64_t *sample_ids;
    /* as in cd_model_inputs; first dimension sample_count */
    cddp_tensor inputs[CD_BATCH_FIELDS_MAX];
    /* one per output; device NULL where its loss needs none */
    cddp_tensor targets[CD_MODEL_OUTPUTS_MAX];
    const double *weights;     /* (sample_count) of each sample's loss; NULL: 1 */
    double divisor;            /* of the weighted sum; 0 or 1: none */
    const cd_loss_term *terms; /* (output_count) in place of the divisor; NULL: none */
    uint64_t iteration;        /* keys dropout together with the sample id */
    /* which way control flow goes, in models that branch */
    uint32_t branch;
    /* (unit_count) how often each unit runs; NULL: the model's own counts */
    const uint8_t *uses;
} cd_batch;

typedef struct cd_batch_request {
    const int64_t *sample_ids; /* (sample_count) copied */
    int64_t sample_count;
    const cd_prng *prng; /* the data's generator, the same on every rank */
    bool exact;          /* small integers over powers of two */
} cd_batch_request;

/* Targets of one sample that count, before any batch is made of it: classes that are not ignored,
** over all outputs; 1 where there are no classes. prng: as in the request. */
int64_t cd_model_token_count(const cd_model *model, const cd_prng *prng, int64_t sample_id);
/* inputs and targets; weights NULL, everything else zero. */
cddp_status cd_batch_make(cd_graph *graph, const cd_model *model, const cd_batch_request *request,
                          cd_batch *batch, cddp_error *err) CDDP_MUST_CHECK;
