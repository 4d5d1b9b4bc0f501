/* SPDX-License-Identifier: Apache-2.0 */
/* Points at which the self-test makes a training wrong (tests/selftest/points.def).
**
** A point is a line in the run: a place by name, the rank and the step, and what stands there. In
** the library and in the programs these lines are nothing. The self-test compiles the files that
** have points a second time, with CDDP_INJECT, and strikes at one point at a time.
**
**     CD_INJECT_TENSORS("begin.parameter", rank, step, &p[0].tensor, sizeof p[0], count);
**     CD_INJECT_NUMBER("step.lr", rank, step, lr);
**     if (!CD_INJECT_SKIPS("step.zero_grad", rank, step)) CD_TRY(zero_grad(t, err));
**
** No point stands in core/check, core/oracle or core/reference: they judge.
*/
#pragma once

#ifdef CDDP_INJECT
#include "cddp/tensor.h"

#include <stdbool.h>
#include <stddef.h>

/* Code that the run shares with the judge knows neither rank nor step: it is struck for all. */
#define CD_INJECT_EVERYONE UINT32_MAX

/* Where the run is. */
typedef struct cd_inject_point {
    const char *place;
    uint32_t rank, step;
} cd_inject_point;

/* One of several tensors or all of them: `first`, and the others `stride` bytes apart. */
void cd_inject_tensors(const cd_inject_point *at, const void *first, size_t stride, size_t count);
/* The same of gradients, which may also go missing. */
void cd_inject_gradients(const cd_inject_point *at, void *first, size_t stride, size_t count);
/* One of many that come one by one; id: which. */
void cd_inject_tensor(const cd_inject_point *at, size_t id, const cddp_tensor *tensor);
void cd_inject_number(const cd_inject_point *at, double *number);
void cd_inject_count(const cd_inject_point *at, int64_t *number);
void cd_inject_flag(const cd_inject_point *at, bool *flag);
bool cd_inject_skips(const cd_inject_point *at);
/* Whether something else is taken in the place of what is due. */
bool cd_inject_turns(const cd_inject_point *at);
/* "layer.Linear": a place by what stands there. Borrowed until the next call. */
const char *cd_inject_place(const char *kind, const char *name);

#define CD_INJECT_AT(place, rank, step) \
    (&(const cd_inject_point){(place), (uint32_t)(rank), (uint32_t)(step)})
#define CD_INJECT_TENSORS(place, rank, step, first, stride, count) \
    cd_inject_tensors(CD_INJECT_AT(place, rank, step), first, stride, count)
#define CD_INJECT_GRADIENTS(place, rank, step, first, stride, count) \
    cd_inject_gradients(CD_INJECT_AT(place, rank, step), first, stride, count)
#define CD_INJECT_TENSOR(place, rank, step, id, tensor) \
    cd_inject_tensor(CD_INJECT_AT(place, rank, step), id, tensor)
#define CD_INJECT_NUMBER(place, rank, step, number)                      \
    do {                                                                 \
        double cd_injected = (double)(number);                           \
        cd_inject_number(CD_INJECT_AT(place, rank, step), &cd_injected); \
        (number) = cd_injected;                                          \
    } while (0)
#define CD_INJECT_COUNT(place, rank, step, number)                      \
    do {                                                                \
        int64_t cd_injected = (int64_t)(number);                        \
        cd_inject_count(CD_INJECT_AT(place, rank, step), &cd_injected); \
        (number) = cd_injected;                                         \
    } while (0)
/* What could have been set: a count that is at least `least`, as before. */
#define CD_INJECT_COUNT_FROM(place, rank, step, least, number)       \
    do {                                                             \
        int64_t cd_above = (int64_t)(number) - (int64_t)(least);     \
        if (cd_above < 0) break;                                     \
        cd_inject_count(CD_INJECT_AT(place, rank, step), &cd_above); \
        (number) = cd_above + (int64_t)(least);                      \
    } while (0)
#define CD_INJECT_FLAG(place, rank, step, flag)                        \
    do {                                                               \
        bool cd_injected = (flag);                                     \
        cd_inject_flag(CD_INJECT_AT(place, rank, step), &cd_injected); \
        (flag) = cd_injected;                                          \
    } while (0)
#define CD_INJECT_SKIPS(place, rank, step) cd_inject_skips(CD_INJECT_AT(place, rank, step))
#define CD_INJECT_TURNS(place, rank, step) cd_inject_turns(CD_INJECT_AT(place, rank, step))
/* Two numbers of one type; equal ones are no point. */
#define CD_INJECT_EXCHANGE(place, rank, step, a, b)     \
    do {                                                \
        const int64_t cd_kept = (int64_t)(a);           \
        if (cd_kept == (int64_t)(b)) break;             \
        if (!CD_INJECT_TURNS(place, rank, step)) break; \
        (a) = (b);                                      \
        (b) = cd_kept;                                  \
    } while (0)
#else
#define CD_INJECT_TENSORS(place, rank, step, first, stride, count) ((void)0)
#define CD_INJECT_GRADIENTS(place, rank, step, first, stride, count) ((void)0)
#define CD_INJECT_TENSOR(place, rank, step, id, tensor) ((void)0)
#define CD_INJECT_NUMBER(place, rank, step, number) ((void)0)
#define CD_INJECT_COUNT(place, rank, step, number) ((void)0)
#define CD_INJECT_COUNT_FROM(place, rank, step, least, number) ((void)0)
#define CD_INJECT_FLAG(place, rank, step, flag) ((void)0)
#define CD_INJECT_SKIPS(place, rank, step) false
#define CD_INJECT_TURNS(place, rank, step) false
#define CD_INJECT_EXCHANGE(place, rank, step, a, b) ((void)0)
#endif
