/* SPDX-License-Identifier: Apache-2.0 */
/* The mask is never stored: a generator per sample gives it twice. */
#include "core/model/layers/dropout.h"

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/prng.h"
#include "core/model/op.h"

typedef struct dropout_state {
    cd_dropout dropout;
    /* i64 (samples, 4) on a device that computes: each sample's generator at its start */
    cddp_tensor there;
} dropout_state;

static cd_prng sample_prng(const cd_dropout *d, int64_t sample)
{
    uint64_t key = cd_hash_mix(cd_hash_mix(cd_hash_mix(d->seed, d->layer), d->iteration),
                               (uint64_t)d->sample_ids[sample]);
    return cd_prng_seed(key);
}

/* 53 random bits against the probability: one draw per element. */
static bool is_kept(const cd_dropout *d, cd_prng *prng)
{
    return (double)(cd_prng_next(prng) >> 11) >= d->probability * 0x1p53;
}

static cddp_status describe(const cd_op_call *c, cddp_layer_call *layer, cddp_error *err)
{
    dropout_state *s = c->state;
    const int64_t samples = c->inputs[0].sizes[0];
    if (s->there.device == NULL) {
        void *memory = NULL;
        CD_TRY(cd_graph_push(c->graph, (size_t)samples * sizeof(cd_prng), &memory, err));
        cd_prng *generators = memory;
        for (int64_t i = 0; i < samples; i++) generators[i] = sample_prng(&s->dropout, i);
        CD_TRY(cd_graph_give(c->graph, CDDP_I64, (const int64_t[2]){samples, 4}, 2, generators,
                             &s->there, err));
    }
    layer->reals[0] = s->dropout.probability;
    layer->given[0] = s->there;
    return CDDP_OK;
}

#define KERNELS "core/model/layers/dropout_kernels.h"
#include "core/model/layers/each_real.h"

static const cd_op dropout_op = CD_OP("Dropout", dropout, CDDP_LAYER_DROPOUT, describe);

cddp_status cd_dropout_layer(cd_graph *graph, cd_value *x, const cd_dropout *dropout, cd_value **y,
                             cddp_error *err)
{
    if (!(dropout->probability >= 0 && dropout->probability < 1))
        return cd_fail(err, CDDP_E_ARG, "dropout: probability %g is not in [0, 1)",
                       dropout->probability);
    CD_TRY(cd_op_check_dtypes("dropout", &x, 1, err));
    if (!graph->training || dropout->probability == 0) {
        *y = x;
        return CDDP_OK;
    }
    void *state = NULL;
    CD_TRY(cd_graph_push(graph, sizeof(dropout_state), &state, err));
    ((dropout_state *)state)->dropout = *dropout;
    cd_apply apply = {.op = &dropout_op,
                      .inputs = &x,
                      .input_count = 1,
                      .state = state,
                      .shapes = &x->tensor,
                      .output_count = 1};
    return CD_PASS(cd_op_apply(graph, &apply, y, err));
}
