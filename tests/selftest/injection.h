/* SPDX-License-Identifier: Apache-2.0 */
/* One injection: what happens at which point, to whom and when. The runtime of core/base/inject.h.
**
** Lifetime   one injection at a time, in force from begin until the next begin.
** Threads    one thread.
*/
#pragma once
#include "core/base/inject.h"

#include <stdint.h>

/* Kinds of points, and of what operators are for. */
#define ST_TENSOR 1u
#define ST_GRADIENT 2u
#define ST_NUMBER 4u
#define ST_COUNT 8u
#define ST_FLAG 16u
#define ST_CALL 32u
#define ST_TURN 64u

typedef enum st_breadth { ST_ONE, ST_BOTH } st_breadth;

typedef enum st_operator {
#define ST_OPERATOR(constant, name, kinds, breadth, doc) ST_OP_##constant,
#include "tests/selftest/operators.def"
#undef ST_OPERATOR
    ST_OPERATORS
} st_operator;

typedef struct st_operator_row {
    const char *name;
    uint32_t kinds;
    st_breadth breadth;
    const char *doc;
} st_operator_row;
extern const st_operator_row st_operators[ST_OPERATORS];

/* Which blame is right besides the struck ranks in the struck step. */
#define ST_RIGHT_THERE 0u
#define ST_NEXT 1u
#define ST_HOOK 2u
#define ST_VARIABLE 4u
#define ST_BUCKET 8u
#define ST_SHOWN 16u
#define ST_COVERAGE 32u
#define ST_LATER 64u
#define ST_SOME 128u
#define ST_VALUES 256u
#define ST_APART 512u

typedef struct st_point {
    const char *place, *file;
    uint32_t kind, blame;
    const char *doc;
    const char *words;  /* apart by '|': one of them names it in a finding; "" for tensors */
    const char *covers; /* apart by ';': "moment: end", "decision: learning rate" */
} st_point;
extern const st_point st_points[];
extern const size_t st_point_count;
/* SIZE_MAX: no such row. */
size_t st_point_find(const char *place);

#define ST_ALL_RANKS (-1)
#define ST_EVERY_STEP (-1)

typedef struct st_injection {
    size_t point; /* in st_points; SIZE_MAX: none, but what is reached is counted */
    st_operator op;
    int32_t rank;      /* ST_ALL_RANKS */
    bool spares_rank;  /* all but that one are struck */
    int64_t step;      /* ST_EVERY_STEP */
    bool everything;   /* all tensors of the point */
    uint64_t draw;     /* which tensor and which elements */
    uint32_t exponent; /* of RATIO: times 1 - 2^-exponent; 0: 6 */
    size_t tensors;    /* of points that see one tensor after another: how many there are */
} st_injection;

/* What came of it. */
typedef struct st_effect {
    uint64_t fired, changed; /* changed: something was different afterwards */
    uint32_t first_step;     /* of a change */
    uint64_t ranks;          /* changed in that step, one bit each */
    size_t tensor;           /* changed there first; SIZE_MAX: none */
    size_t partner;          /* exchanged with it; SIZE_MAX: none */
    uint64_t all_ranks;      /* changed in any step */
} st_effect;

void st_injection_begin(const st_injection *injection);
const st_effect *st_injection_effect(void);
/* How often a point was reached since the last begin. */
uint64_t st_injection_reached(size_t point);
