/* SPDX-License-Identifier: Apache-2.0 */
/* Fixed-point accumulation with delayed carries. */
#include "core/oracle/wide_sum.h"

#include "core/base/error.h"
#include "core/oracle/numbers.h"
#include "core/tensor/dtype.h"

#include <math.h>
#include <string.h>

#define LIMB_BITS 32
#define LIMBS_MAX 72
#define SUM_BLOCK_BYTES ((size_t)1024)

/* From the smallest subnormal to the largest finite value, plus 64 bits for 2^31 additions and a
** factor. */
static void range_of(cddp_dtype dtype, int32_t *exponent_min, size_t *limb_count)
{
    bool is_double = dtype == CDDP_F64;
    *exponent_min = is_double ? -1074 : -149;
    *limb_count = is_double ? 70 : 12;
}

cddp_status cd_wide_sum_init(cd_wide_sum *sum, const cddp_allocator *allocator, cddp_dtype dtype,
                             size_t numel, cddp_error *err)
{
    cd_wide_sum made = {.numel = numel};
    range_of(dtype, &made.exponent_min, &made.limb_count);
    cd_arena_init(&made.arena, allocator, SUM_BLOCK_BYTES);
    made.limbs = cd_arena_array(&made.arena, numel * made.limb_count, sizeof *made.limbs);
    made.magnitude = cd_arena_array(&made.arena, numel, sizeof *made.magnitude);
    made.low = cd_arena_array(&made.arena, numel, sizeof *made.low);
    *sum = made;
    cddp_status status = cd_arena_check(&sum->arena, err, "the exact sum of %zu elements", numel);
    if (status == CDDP_OK)
        cd_wide_sum_clear(sum);
    else
        cd_wide_sum_fini(sum);
    return status;
}

cddp_status cd_wide_sum_copy(cd_wide_sum *sum, const cd_wide_sum *from,
                             const cddp_allocator *allocator, cddp_error *err)
{
    cd_wide_sum made = *from;
    cd_arena_init(&made.arena, allocator, SUM_BLOCK_BYTES);
    made.limbs = cd_arena_array(&made.arena, from->numel * from->limb_count, sizeof *made.limbs);
    made.magnitude = cd_arena_array(&made.arena, from->numel, sizeof *made.magnitude);
    made.low = cd_arena_array(&made.arena, from->numel, sizeof *made.low);
    *sum = made;
    const cddp_status status =
        cd_arena_check(&sum->arena, err, "the exact sum of %zu elements", from->numel);
    if (status != CDDP_OK) {
        cd_wide_sum_fini(sum);
        return status;
    }
    memcpy(sum->limbs, from->limbs, from->numel * from->limb_count * sizeof *sum->limbs);
    memcpy(sum->magnitude, from->magnitude, from->numel * sizeof *sum->magnitude);
    memcpy(sum->low, from->low, from->numel * sizeof *sum->low);
    return CDDP_OK;
}

void cd_wide_sum_fini(cd_wide_sum *sum)
{
    cd_arena_fini(&sum->arena);
    *sum = (cd_wide_sum){0};
}

void cd_wide_sum_clear(cd_wide_sum *sum)
{
    memset(sum->limbs, 0, sum->numel * sum->limb_count * sizeof *sum->limbs);
    memset(sum->magnitude, 0, sum->numel * sizeof *sum->magnitude);
    for (size_t i = 0; i < sum->numel; i++) sum->low[i] = INT32_MAX;
    sum->push_count = 0;
}

/* value = mantissa · 2^exponent, mantissa an integer below 2^53. value is finite and not zero. */
static uint64_t take_apart(double value, int32_t *exponent)
{
    int e;
    const uint64_t bits = cd_f64_bits(value), biased = bits >> 52 & 0x7ff;
    if (biased != 0) { /* a normal number is in two parts already */
        *exponent = (int32_t)biased - 1075;
        return (bits & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1) << 52;
    }
    double fraction = frexp(fabs(value), &e);
    *exponent = e - 53;
    return (uint64_t)ldexp(fraction, 53);
}

/* Adds ± mantissa · 2^exponent (mantissa < 2^63) to a row of limbs. Bits below the row are zeros by
** construction. */
static void add_to_row(int64_t *row, int32_t bit, uint64_t mantissa, bool negative)
{
    if (bit < 0) {
        mantissa = bit > -64 ? mantissa >> -bit : 0;
        bit = 0;
    }
    size_t limb = (size_t)bit / LIMB_BITS;
    unsigned shift = (unsigned)bit % LIMB_BITS;
    uint64_t low = (mantissa & UINT32_MAX) << shift, high = (mantissa >> LIMB_BITS) << shift;
    uint64_t middle = (low >> LIMB_BITS) + (high & UINT32_MAX);
    int64_t pieces[3] = {(int64_t)(low & UINT32_MAX), (int64_t)middle,
                         (int64_t)(high >> LIMB_BITS)};
    for (size_t i = 0; i < 3; i++)
        if (pieces[i] != 0) row[limb + i] += negative ? -pieces[i] : pieces[i];
}

static int32_t lowest_bit(uint64_t mantissa, int32_t exponent)
{
    return exponent + __builtin_ctzll(mantissa);
}

void cd_wide_sum_push(cd_wide_sum *sum, const double *values)
{
    for (size_t i = 0; i < sum->numel; i++) {
        double x = values[i];
        sum->magnitude[i] += fabs(x);
        if (!isfinite(x)) sum->low[i] = INT32_MIN;
        if (x == 0 || !isfinite(x)) continue;
        int32_t exponent;
        uint64_t mantissa = take_apart(x, &exponent);
        int32_t low = lowest_bit(mantissa, exponent);
        if (low < sum->low[i]) sum->low[i] = low;
        add_to_row(sum->limbs + i * sum->limb_count, exponent - sum->exponent_min, mantissa, x < 0);
    }
    sum->push_count++;
}

/* Those limbs of an element that may say something: of twelve or seventy mostly two or three. */
typedef struct row {
    int64_t limbs[LIMBS_MAX]; /* (count) */
    size_t count;
    int32_t exponent_min; /* weight of the lowest one's lowest bit */
} row;

/* |value| lies below two to it. */
static int32_t exponent_above(double value)
{
    return (int32_t)(cd_f64_bits(value) >> 52 & 0x7ff) - 1022;
}

/* low: no bit of the values lies lower. size: no smaller than the sum of their magnitudes but for
** its rounding, which one bit more pays for. The highest limb keeps its carry, and the sign. */
static void take_row(row *r, const cd_wide_sum *sum, size_t element, int32_t low, double size)
{
    const int64_t lowest = (int64_t)low - sum->exponent_min,
                  highest = (int64_t)exponent_above(size) + 1 - sum->exponent_min;
    const size_t below = lowest > 0 ? (size_t)lowest / LIMB_BITS : 0,
                 above = (highest > 0 ? (size_t)highest / LIMB_BITS : 0) + 1,
                 end = above < sum->limb_count ? above : sum->limb_count,
                 first = below < end ? below : end;
    r->count = end - first;
    r->exponent_min = sum->exponent_min + (int32_t)first * LIMB_BITS;
    memcpy(r->limbs, sum->limbs + element * sum->limb_count + first, r->count * sizeof *r->limbs);
}

/* Carries so that every limb but the top one lies in [0, 2^32). Division that rounds down, on
** signed limbs. */
static void carry(row *r)
{
    for (size_t i = 0; i + 1 < r->count; i++) {
        int64_t low = r->limbs[i] & (int64_t)UINT32_MAX;
        r->limbs[i + 1] += (r->limbs[i] - low) / ((int64_t)1 << LIMB_BITS);
        r->limbs[i] = low;
    }
}

static bool negate_when_negative(row *r)
{
    if (r->count == 0 || r->limbs[r->count - 1] >= 0) return false;
    for (size_t i = 0; i < r->count; i++) r->limbs[i] = -r->limbs[i];
    carry(r);
    return true;
}

/* bits · 2^weight, rounded once. */
static double scaled(double bits, int32_t weight)
{
    const bool is_normal = weight >= -1022 && weight <= 1023;
    return is_normal ? bits * cd_two_to(weight) : ldexp(bits, weight);
}

/* Rounds a carried, non-negative row to a double, to nearest with ties to even. The 64 leading bits
** and a sticky bit exceed a double, so the conversion rounds once and correctly (normal
** results). */
static double row_to_double(const row *r)
{
    size_t top = r->count;
    while (top > 0 && r->limbs[top - 1] == 0) top--;
    if (top == 0) return 0;
    uint64_t bits = 0;
    unsigned filled = 64 - (unsigned)__builtin_clzll((uint64_t)r->limbs[top - 1]);
    size_t limb = top;
    bits = (uint64_t)r->limbs[--limb];
    int32_t weight = r->exponent_min + (int32_t)limb * LIMB_BITS;
    while (filled < 62 && limb > 0) {
        unsigned room = 62 - filled < LIMB_BITS ? 62 - filled : LIMB_BITS;
        uint64_t next = (uint64_t)r->limbs[limb - 1];
        bits = bits << room | next >> (LIMB_BITS - room);
        weight -= (int32_t)room;
        filled += room;
        if (room < LIMB_BITS) {
            if ((next & ((UINT64_C(1) << (LIMB_BITS - room)) - 1)) != 0) bits |= 1;
            limb--;
            break;
        }
        limb--;
    }
    for (size_t i = 0; i < limb; i++)
        if (r->limbs[i] != 0) bits |= 1;
    return scaled((double)bits, weight);
}

static double read_row(row *r)
{
    carry(r);
    bool negative = negate_when_negative(r);
    double value = row_to_double(r);
    return negative ? -value : value;
}

double cd_wide_sum_get(const cd_wide_sum *sum, size_t element)
{
    row r;
    if (!cd_wide_sum_is_finite(sum, element)) return sum->magnitude[element];
    take_row(&r, sum, element, sum->low[element], sum->magnitude[element]);
    return read_row(&r);
}

double cd_wide_sum_residual(const cd_wide_sum *sum, size_t element, double actual, uint64_t factor)
{
    row r;
    int32_t exponent = INT32_MAX;
    uint64_t mantissa = 0;
    if (!isfinite(actual)) return INFINITY;
    if (actual != 0) mantissa = take_apart(actual, &exponent);
    const int32_t low = sum->low[element] < exponent ? sum->low[element] : exponent;
    const double size = fabs(actual) * (double)factor;
    take_row(&r, sum, element, low, sum->magnitude[element] + size);
    if (actual != 0) {
        const int32_t bit = exponent - r.exponent_min;
        /* mantissa · factor in two halves, each below 2^63. */
        uint64_t lower = (mantissa & UINT32_MAX) * factor, upper = (mantissa >> LIMB_BITS) * factor;
        add_to_row(r.limbs, bit, lower, actual > 0);
        add_to_row(r.limbs, bit + LIMB_BITS, upper, actual > 0);
    }
    return read_row(&r);
}

bool cd_wide_sum_is_finite(const cd_wide_sum *sum, size_t element)
{
    return sum->low[element] != INT32_MIN;
}

bool cd_wide_sum_is_exact(const cd_wide_sum *sum, size_t element, int precision)
{
    if (sum->low[element] == INT32_MAX) return sum->magnitude[element] == 0;
    if (!cd_wide_sum_is_finite(sum, element)) return false;
    /* One part in 2^40 covers the rounding of the magnitude itself. */
    return sum->magnitude[element] * (1 + 0x1p-40) < cd_two_to(precision + sum->low[element]);
}
