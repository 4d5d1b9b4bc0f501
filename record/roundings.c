/* SPDX-License-Identifier: Apache-2.0 */
#include "record/roundings.h"

#include "core/base/alloc.h"
#include "core/tensor/dtype.h"

#include <math.h>
#include <stdlib.h>

enum { DEVIATIONS = 9, DISTINCT_MIN = 8, RANKS_MAX = 24, AGREEMENT_MIN = 16 };

static int by_significand(const void *a, const void *b)
{
    const cd_rounding *x = a, *y = b;
    if (x->significand != y->significand) return x->significand < y->significand ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

void cd_roundings_begin(cd_roundings *r)
{
    r->count = 0;
    r->seen = 0;
    r->given = r->got = r->magnitude = 0;
}

void cd_roundings_add(cd_roundings *r, const cddp_tensor *local, const cddp_tensor *result)
{
    const size_t bytes = cddp_dtype_bytes(result->dtype);
    const char *y = (const char *)result->storage + (size_t)result->offset * bytes, *x = y;
    const int64_t count = cddp_tensor_numel(result);
    if (local != NULL) x = (const char *)local->storage + (size_t)local->offset * bytes;
    if (r->drawn == NULL) r->drawn = cd_allocate_array(NULL, CD_ROUNDINGS_MAX, sizeof *r->drawn);
    if (r->drawn == NULL) return;
    for (int64_t i = 0; i < count && r->seen < CD_ROUNDINGS_MAX; i++, r->seen++) {
        const double m = cd_element_get(result->dtype, y + (size_t)i * bytes);
        const double g = local != NULL ? cd_element_get(result->dtype, x + (size_t)i * bytes) : 0;
        int exponent;
        r->given += m < 0 ? -g : m > 0 ? g : 0;
        r->got += fabs(m);
        r->magnitude += fabs(g);
        if (g == 0) continue;
        r->drawn[r->count] = (cd_rounding){frexp(fabs(g), &exponent), fabs(g), r->count};
        r->count++;
    }
}

double cd_roundings_bound(cd_roundings *r, uint32_t ranks, double unit, double tiny)
{
    double squares = 0, alike = 0;
    size_t distinct = 0;
    if (r->drawn == NULL || ranks > RANKS_MAX || !(AGREEMENT_MIN * r->got >= r->magnitude))
        return (double)INFINITY;
    qsort(r->drawn, r->count, sizeof *r->drawn, by_significand);
    for (size_t i = 0; i < r->count; i++) {
        alike += r->drawn[i].size;
        if (i + 1 < r->count && r->drawn[i + 1].significand == r->drawn[i].significand) continue;
        squares += alike * alike;
        alike = 0;
        distinct++;
    }
    if (distinct < DISTINCT_MIN) return (double)INFINITY;
    const double spread = DEVIATIONS * sqrt((double)ranks + 2) * unit * sqrt(squares);
    return (spread + 0x1p-22 * (r->magnitude + r->got)) / ranks + 2 * (double)r->seen * tiny;
}

void cd_roundings_fini(cd_roundings *r)
{
    cd_release(NULL, r->drawn, CD_ROUNDINGS_MAX * sizeof *r->drawn);
    *r = (cd_roundings){.drawn = NULL};
}
