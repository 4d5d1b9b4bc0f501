/* SPDX-License-Identifier: Apache-2.0 */
/* The loops of a projection, compiled for the machine's least processor and for AVX2: the same
** eight sums in both, so the same bits. */
#pragma once
#include "record/projection.h"

#include <math.h>

#define CD_PROJECTION_LANES 8

/* A block, whose weights are in a table: wanted are few operations per element. */
#define CD_PROJECTION_BLOCK(name, type)                                                     \
    static void name(const type *x, const double *weights, int64_t count, cd_projection *p) \
    {                                                                                       \
        double sums[CD_PROJECTION_LANES] = {0}, magnitudes[CD_PROJECTION_LANES] = {0};      \
        int64_t i = 0;                                                                      \
        for (; i + CD_PROJECTION_LANES <= count; i += CD_PROJECTION_LANES)                  \
            for (int k = 0; k < CD_PROJECTION_LANES; k++) {                                 \
                const double term = (double)x[i + k] * weights[i + k];                      \
                sums[k] += term;                                                            \
                magnitudes[k] += fabs(term);                                                \
            }                                                                               \
        for (; i < count; i++) {                                                            \
            const double term = (double)x[i] * weights[i];                                  \
            sums[0] += term;                                                                \
            magnitudes[0] += fabs(term);                                                    \
        }                                                                                   \
        *p = (cd_projection){0};                                                            \
        for (int k = 0; k < CD_PROJECTION_LANES; k++) {                                     \
            p->sum += sums[k];                                                              \
            p->magnitude += magnitudes[k];                                                  \
        }                                                                                   \
    }
