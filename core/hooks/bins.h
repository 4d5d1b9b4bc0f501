/* SPDX-License-Identifier: Apache-2.0 */
/* Exact sums of floating-point numbers in absolute bins. The result does not depend on the order of
** additions or on how they are split.
**
** See Note [Absolute bins] in bins.c. A cd_bins holds, per element, the exact sum of everything
** that was added to it. On the wire an element is a row of balanced digits, 24 bits each in an i32.
** Their places do not depend on the data. Rows of several ranks are added digit by digit, and the
** exact quotient is rounded once.
**
** Lifetime   init → add … → span, encode → clear → … → fini. decode needs no cd_bins.
** Errors     memory only. NaN and infinities are kept and come out as IEEE addition in any order
**            would have them.
*/
#pragma once
#include "core/base/arena.h"
#include "core/tensor/linalg.h"
#include "cddp/tensor.h"

#define CD_BINS_DIGIT_BITS 24
#define CD_BINS_RANKS_MAX 255 /* 255 digits of at most 2^23 stay below 2^31 */

/* Which digits are needed: bin j weighs 2^(24·j). Empty when first > last: everything is zero. */
typedef struct cd_bins_span {
    int32_t first, last;
    bool special; /* some element is not finite; one more row marks which */
} cd_bins_span;

/* Rows of i32 that a span takes per element. */
static inline int64_t cd_bins_rows(const cd_bins_span *span)
{
    return (span->first <= span->last ? (int64_t)span->last - span->first + 1 : 0) + span->special;
}

/* Rows of the widest span that numbers of the dtype, or sums of 2^31 of them, can have. */
int64_t cd_bins_rows_most(cddp_dtype dtype);

typedef struct cd_bins {
    cd_arena memory; /* of the arrays below */
    cddp_dtype dtype;
    cd_isa isa; /* which kernels add; all give the same bits */
    int64_t numel;
    double *sums; /* (numel, a block and a cache line) where high lies, now here, now there */
    /* (numel) what a double holds exactly; all that ever is there for sums of a few binades */
    double *high;
    int64_t *spill; /* (numel · spill_bins) the rest, in bins; NULL until something did not fit */
    size_t spill_bins;
    uint32_t *scratch; /* (block) one block widened to f32 */
    uint64_t count;    /* additions since clear */
    bool special;      /* some element is not finite */
    bool spilled;      /* something is in spill since clear */
} cd_bins;

cddp_status cd_bins_init(cd_bins *bins, const cddp_allocator *allocator, cddp_dtype dtype,
                         int64_t numel, cddp_error *err);
void cd_bins_fini(cd_bins *bins); /* accepts a zeroed one */
void cd_bins_clear(cd_bins *bins);
/* Adds one contiguous array of the dtype. */
cddp_status cd_bins_add(cd_bins *bins, const void *values, cddp_error *err);
cd_bins_span cd_bins_get_span(const cd_bins *bins);
/* Writes the rows of `span`, which includes the bins' own, of all elements: row r of element i is
** rows[r * stride + i].
*/
void cd_bins_encode(const cd_bins *bins, const cd_bins_span *span, int32_t *rows, int64_t stride);

/* The same for numbers that are added once: no cd_bins, no memory. */
cd_bins_span cd_bins_span_of(cddp_dtype dtype, const void *values, int64_t numel);
void cd_bins_encode_values(cddp_dtype dtype, const void *values, int64_t numel,
                           const cd_bins_span *span, int32_t *rows, int64_t stride);

/* values[i] = the sum that the rows stand for ÷ divisor, rounded once, to nearest even. A zero sum
** gives +0. */
void cd_bins_decode(cddp_dtype dtype, const int32_t *rows, int64_t stride, const cd_bins_span *span,
                    uint32_t divisor, void *values, int64_t numel);
