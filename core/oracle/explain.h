/* SPDX-License-Identifier: Apache-2.0 */
/* The shape of an error: wrong values that are another known value.
**
** Every candidate is tested on all elements. On exact inputs it must be equal. Otherwise it must
** lie within the comparison's own bound and two ulps. Where only the division rounds, the roundings
** of predicted and found contributions bound it. The most specific true explanation is taken.
*/
#pragma once
#include "core/base/arena.h"
#include "core/oracle/compare.h"

/* Gradient contributions of every rank and micro-step, all parameters, dense. */
typedef struct cd_locals {
    cd_arena arena; /* the four arrays */
    uint32_t rank_count, micro_first, micro_count;
    size_t parameter_count, numel; /* of all parameters together */
    const size_t *offsets;         /* (parameter_count + 1) borrowed */
    double *values;                /* (rank_count · micro_count · numel) */
    /* (numel) Σ|x| over ranks and micro-steps, see cd_locals_close */
    double *magnitudes;
    /* (rank_count · micro_count · parameter_count) a gradient was defined */
    bool *present;
    uint32_t *samples; /* (rank_count · micro_count) how many each computed it from */
} cd_locals;
/* The other fields are filled in. */
cddp_status cd_locals_init(cd_locals *locals, const cddp_allocator *allocator, cddp_error *err);
void cd_locals_close(cd_locals *locals); /* when all values are in */
void cd_locals_fini(cd_locals *locals);
double *cd_locals_get(const cd_locals *locals, uint32_t rank, uint32_t micro, size_t parameter);
bool *cd_locals_presence(const cd_locals *locals, uint32_t rank, uint32_t micro, size_t parameter);
uint32_t *cd_locals_samples(const cd_locals *locals, uint32_t rank, uint32_t micro);

typedef struct cd_suspect {
    const double *expected, *actual; /* (comparison.numel) */
    const double *before;            /* the value at the beginning of the step, or NULL */
    const double *previous;          /* what the step before expected in its place, or NULL */
    const cd_locals *locals;         /* NULL: explanations by contribution are not tried */
    const char *const *names;        /* (parameter_count) of the parameters, or NULL */
    size_t parameter;
    uint64_t divisor;
    cddp_dtype dtype;
    const char *before_words; /* "the parameter was not updated" */
    int64_t first;            /* first element of the compared part of the parameter */
} cd_suspect;

/* Fills shape, ratio and text (`words`) of a comparison that failed. */
void cd_explain(cd_comparison *comparison, const cd_suspect *suspect);
