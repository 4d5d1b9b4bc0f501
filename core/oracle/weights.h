/* SPDX-License-Identifier: Apache-2.0 */
/* The weights with which contributions of ranks and micro-steps entered a wrong sum.
**
** The local gradients of all ranks and micro-steps are known. So the weights follow from the wrong
** values by least squares. They are rounded to simple fractions and tested on every element. The
** smallest explanation is taken: one contribution before several.
**
** Threads    no state.
** Errors     none; without memory, or when several weights explain the values, nothing is found.
*/
#pragma once
#include "core/oracle/explain.h"

typedef struct cd_weights {
    /* + 1, of every contribution whose weight is not 1; 0: they differ, or it is of all */
    uint32_t source_rank, source_micro;
    double weight;   /* of the only one; 0 of several */
    bool is_missing; /* every weight is 1 or 0 */
    char words[160];
} cd_weights;

/* False when no weights explain the values. comparison: with its bound; suspect: with locals. */
bool cd_weights_find(const cd_comparison *comparison, const cd_suspect *suspect, cd_weights *found);

/* numerator / denominator, denominator ≤ 64, where x is one within a millionth; else 0 / 0. */
typedef struct cd_fraction {
    int64_t numerator, denominator;
} cd_fraction;
cd_fraction cd_fraction_near(double x);
