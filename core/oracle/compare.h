/* SPDX-License-Identifier: Apache-2.0 */
/* Comparison of tensors: bitwise or within a bound, the worst element named, and the shape of the error.
**
** Threads    no state.
** Errors     none; a comparison is a value.
*/
#pragma once
#include "cddp/tensor.h"

/* What is being compared: the links of the chain, as the `compare` event numbers them. */
typedef enum cd_link {
    CD_LINK_MATHEMATICS = 1,
    CD_LINK_REDUCTION = 2,
    CD_LINK_PRECISION = 3,
    CD_LINK_UPDATE = 4,
    CD_LINK_OPTIMIZER = 5,
    CD_LINK_BUFFER = 6,
    CD_LINK_PRESENCE = 7,
    CD_LINK_FREE = 8,
    CD_LINK_LAW = 9
} cd_link;

/* How the wrong values look, tested exactly, the most specific first. */
typedef enum cd_shape {
    CD_SHAPE_NONE,        /* equal, or within the bound */
    CD_SHAPE_RATIO,       /* actual = ratio × expected on every element */
    CD_SHAPE_LOCAL,       /* a rank's own gradient: not reduced */
    CD_SHAPE_MISSING,     /* one contribution (rank, micro-step) is not in it */
    CD_SHAPE_DOUBLED,     /* one contribution is in it twice */
    CD_SHAPE_OTHER,       /* it is another parameter's */
    CD_SHAPE_ZERO,        /* all zeros */
    CD_SHAPE_STALE,       /* the value from before */
    CD_SHAPE_NONFINITE,   /* NaN or infinity where the exact value is finite */
    CD_SHAPE_PRESENCE,    /* absent where a value belongs, or the other way round */
    CD_SHAPE_SHIFTED,     /* the right values at a wrong offset */
    CD_SHAPE_UNEXPLAINED
} cd_shape;
