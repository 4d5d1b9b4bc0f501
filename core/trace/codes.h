/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers in the `compare` event's fields link and shape: what the oracle writes and the checks
** read. */
#pragma once

/* What is being compared; docs/oracle.md derives the bound of each. */
typedef enum cd_oracle_link {
    CD_LINK_MATHEMATICS = 1,
    CD_LINK_REDUCTION = 2,
    CD_LINK_PRECISION = 3,
    CD_LINK_UPDATE = 4,
    CD_LINK_OPTIMIZER = 5,
    CD_LINK_BUFFER = 6,
    CD_LINK_PRESENCE = 7,
    CD_LINK_FREE = 8,
    CD_LINK_LAW = 9,
    CD_LINK_STATISTICS = 10,
    CD_LINK_COLLECTIVE = 11,
    CD_LINK_SHARE = 12, /* an update that another rank made and sent */
    CD_LINK_NORM = 13,
    CD_LINK_COUNT
} cd_oracle_link;

/* How the wrong values look, tested exactly, the most specific explanation first. */
typedef enum cd_shape {
    CD_SHAPE_NONE = 0,  /* equal, or within the bound */
    CD_SHAPE_RATIO,     /* actual = ratio × expected on every element */
    CD_SHAPE_LOCAL,     /* a rank's own gradient: not reduced */
    CD_SHAPE_MISSING,   /* one contribution (rank, or micro-step) is not in it */
    CD_SHAPE_DOUBLED,   /* one contribution is in it twice */
    CD_SHAPE_OTHER,     /* it is another parameter's */
    CD_SHAPE_ZERO,      /* all zeros */
    CD_SHAPE_STALE,     /* the value from before */
    CD_SHAPE_NONFINITE, /* NaN or infinity where the exact value is finite */
    CD_SHAPE_PRESENCE,  /* absent where a value belongs, or the other way round */
    CD_SHAPE_SHIFTED,   /* the right values at a wrong offset */
    CD_SHAPE_UNEXPLAINED,
    CD_SHAPE_COUNT
} cd_shape;
