/* SPDX-License-Identifier: Apache-2.0 */
/* The choices of the `compare` event's fields link and shape, which the oracle writes and the
** checks read; their words and values are those of cddp/events.def. */
#pragma once
#include "cddp/trace.h"

/* What is being compared; docs/oracle.md derives the bound of each. */
typedef enum cd_oracle_link {
    CD_LINK_MATHEMATICS = CDDP_LINK_MATHEMATICS,
    CD_LINK_REDUCTION = CDDP_LINK_REDUCTION,
    CD_LINK_PRECISION = CDDP_LINK_PRECISION,
    CD_LINK_UPDATE = CDDP_LINK_UPDATE,
    CD_LINK_OPTIMIZER = CDDP_LINK_OPTIMIZER,
    CD_LINK_BUFFER = CDDP_LINK_BUFFER,
    CD_LINK_PRESENCE = CDDP_LINK_PRESENCE,
    CD_LINK_FREE = CDDP_LINK_FREE,
    CD_LINK_LAW = CDDP_LINK_LAW,
    CD_LINK_STATISTICS = CDDP_LINK_STATISTICS,
    CD_LINK_COLLECTIVE = CDDP_LINK_COLLECTIVE,
    CD_LINK_SHARE = CDDP_LINK_SHARE, /* an update that another rank made and sent */
    CD_LINK_NORM = CDDP_LINK_NORM,
    CD_LINK_FORMULA = CDDP_LINK_FORMULA,       /* of an optimizer, as published */
    CD_LINK_DERIVATIVE = CDDP_LINK_DERIVATIVE, /* of the loss, by a second form of the model */
    CD_LINK_COUNT
} cd_oracle_link;

/* How the wrong values look, tested exactly, the most specific explanation first. */
typedef enum cd_shape {
    CD_SHAPE_NONE = CDDP_SHAPE_NONE,       /* equal, or within the bound */
    CD_SHAPE_RATIO = CDDP_SHAPE_RATIO,     /* actual = ratio × expected on every element */
    CD_SHAPE_LOCAL = CDDP_SHAPE_LOCAL,     /* a rank's own gradient: not reduced */
    CD_SHAPE_MISSING = CDDP_SHAPE_MISSING, /* one contribution (rank, or micro-step) is not in it */
    CD_SHAPE_DOUBLED = CDDP_SHAPE_DOUBLED, /* one contribution is in it twice */
    CD_SHAPE_OTHER = CDDP_SHAPE_OTHER,     /* it is another parameter's */
    CD_SHAPE_ZERO = CDDP_SHAPE_ZERO,       /* all zeros */
    CD_SHAPE_STALE = CDDP_SHAPE_STALE,     /* the value from before */
    CD_SHAPE_NONFINITE = CDDP_SHAPE_NONFINITE, /* NaN or infinity where the exact value is finite */
    CD_SHAPE_PRESENCE =
        CDDP_SHAPE_PRESENCE, /* absent where a value belongs, or the other way round */
    CD_SHAPE_SHIFTED = CDDP_SHAPE_SHIFTED, /* the right values at a wrong offset */
    CD_SHAPE_UNEXPLAINED = CDDP_SHAPE_UNEXPLAINED,
    CD_SHAPE_COUNT
} cd_shape;
