/* SPDX-License-Identifier: Apache-2.0 */
/* Features of a training and their levels, of which programs are drawn; and which of them exclude
** each other.
**
** Lifetime   drawn features are values; a plan is the caller's.
** Threads    no state.
** Errors     a plan that the reader refuses is NULL.
*/
#pragma once
#include "cddp/plan.h"
#include "core/base/prng.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LEVELS_MAX 9

/* A feature is a key and the values it may take; "" leaves the default. */
typedef struct feature {
    const char *key;
    const char *levels[LEVELS_MAX];
} feature;

enum {
    WORLD,
    MODEL,
    DTYPE,
    EXACT,
    OPTIMIZER,
    MOMENTUM,
    MICROS,
    ZERO_GRAD,
    LOSS,
    CAP,
    UNUSED,
    VIEW,
    STATIC,
    BATCHED,
    BUFFERS,
    HOOK,
    CHOOSER,
    READY,
    JOIN,
    DIVIDE,
    AMP,
    CLIP,
    SAMPLES,
    SHUFFLE,
    DEVICE,
    STEPS,
    BRANCH,
    MIXED,
    REDUCE,
    IN_BACKWARD,
    OVERLAP,
    CUT,
    OBJECTIVE,
    DELAYED,
    CREATE_GRAPH,
    REPLACE,
    STREAMS,
    NORM,
    COLLECTIVE,
    REDUCTION,
    IN_PLACE,
    PLACE,
    AVERAGER,
    PERIODS,
    SHARD,
    CLIP_GROUP,
    RESUME,
    FORWARDS,
    SYNC,
    OWN_MICROS,
    INIT,
    DROPOUT,
    EVALUATE,
    POISON,
    FEATURES
};

extern const feature features[FEATURES];

typedef struct feature_draw {
    uint32_t level[FEATURES];
    uint64_t seed;
} feature_draw;

uint32_t feature_level_count(const feature *f);
const char *feature_value(const feature_draw *d, size_t f);
/* A valid program, in which common features are common. */
void feature_draw_any(cd_prng *prng, feature_draw *d);
/* The same with two levels given; false: `tries` draws were none, nor is it valid with all other
** features left alone. */
typedef struct feature_pair {
    size_t a, b;
    uint32_t i, j;
} feature_pair;
bool feature_draw_pair(cd_prng *prng, const feature_pair *pair, uint32_t tries, feature_draw *d);
/* NULL: the reader refuses the combination. */
cddp_plan *feature_plan(const feature_draw *d);
