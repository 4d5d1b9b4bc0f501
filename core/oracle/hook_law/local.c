/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank sends of a bucket where that follows from the rank's own numbers: the largest
** elements with what is owed, or codes. */
#include "core/oracle/hook_law/state.h"

#include "cddp/device.h"
#include "core/base/error.h"

#include <float.h>
#include <math.h>
#include <string.h>

double cd_law_round(cddp_dtype dtype, double x) { return cd_dtype_round(dtype, x); }

cddp_status cd_law_digest(cd_hook_law *law, cddp_dtype dtype, const double *values, int64_t count,
                          uint64_t *digest, cddp_error *err)
{
    const cddp_device *cpu = cddp_device_cpu();
    double *bytes = NULL; /* room for any dtype */
    const cd_arena_mark mark = cd_arena_get_mark(&law->memory);
    bytes = cd_arena_array(&law->memory, (size_t)count + 1, sizeof *bytes);
    CD_TRY(cd_arena_check(&law->memory, err, "%lld numbers of a bucket", (long long)count));
    const cddp_tensor flat = cddp_tensor_of(cpu, bytes, 0, dtype, &count, 1);
    CD_TRY(cd_numbers_write(&law->scratch, &flat, values, err));
    CD_TRY(cpu->digest(&flat, digest, err));
    cd_arena_rewind(&law->memory, mark);
    return CDDP_OK;
}

/* ---- the largest ---- */

/* Grows with the magnitude; NaN is larger than everything, whatever its bits are. */
static uint64_t size_key(double x)
{
    uint64_t bits;
    const double magnitude = isnan(x) ? (double)NAN : fabs(x);
    memcpy(&bits, &magnitude, sizeof bits);
    return isnan(x) ? UINT64_MAX : bits;
}

/* The key of the k-th largest number, bit by bit: the greatest key that k numbers reach. */
static uint64_t find_least_sent(const double *corrected, int64_t numel, int64_t k)
{
    uint64_t least = 0;
    for (int bit = 63; bit >= 0; bit--) {
        const uint64_t tried = least | UINT64_C(1) << bit;
        int64_t reach = 0;
        for (int64_t i = 0; i < numel; i++) reach += size_key(corrected[i]) >= tried;
        if (reach >= k) least = tried;
    }
    return least;
}

/* The largest come first, of equal ones the first in the bucket. What is not sent becomes the debt.
** values: (k) what is sent, in the order of the bucket. */
static void choose(const double *corrected, int64_t numel, int64_t k, double *values, double *share)
{
    const uint64_t least = find_least_sent(corrected, numel, k);
    int64_t ties = k, sent = 0;
    for (int64_t i = 0; i < numel; i++) ties -= size_key(corrected[i]) > least;
    for (int64_t i = 0; i < numel; i++) {
        const uint64_t key = size_key(corrected[i]);
        const bool is_sent = key > least || (key == least && ties-- > 0);
        share[i] = is_sent ? corrected[i] : 0;
        if (is_sent) values[sent++] = corrected[i];
    }
}

cddp_status cd_law_send_largest(cd_hook_law *law, const cd_law_bucket *bucket,
                                cd_law_flight *flight, uint64_t *posted, cddp_error *err)
{
    const int64_t numel = flight->numel, k = cd_planned_k(&law->hook, numel);
    if (numel == 0) return CDDP_OK;
    for (uint32_t v = 0; law->hook.has_feedback && v < bucket->count; v++) {
        double *debt, *share = flight->share + bucket->offsets[v];
        CD_TRY(cd_law_find_debt(law, bucket->variables[v], bucket->lengths[v], &debt, err));
        for (int64_t i = 0; i < bucket->lengths[v]; i++)
            debt[i] = share[i] = cd_law_round(flight->dtype, share[i] + debt[i]);
    }
    const cd_arena_mark mark = cd_arena_get_mark(&law->memory);
    double *corrected = cd_arena_array(&law->memory, (size_t)numel, sizeof *corrected),
           *values = cd_arena_array(&law->memory, (size_t)k, sizeof *values);
    CD_TRY(cd_arena_check(&law->memory, err, "the order of bucket %u", bucket->index));
    memcpy(corrected, flight->share, (size_t)numel * sizeof *corrected);
    choose(corrected, numel, k, values, flight->share);
    CD_TRY(cd_law_digest(law, flight->dtype, values, k, posted, err));
    cd_arena_rewind(&law->memory, mark);
    for (uint32_t v = 0; law->hook.has_feedback && v < bucket->count; v++) {
        double *debt = law->variables[bucket->variables[v]].debt;
        const double *share = flight->share + bucket->offsets[v];
        for (int64_t i = 0; i < bucket->lengths[v]; i++)
            if (share[i] != 0) debt[i] = 0; /* also NaN, which was sent */
    }
    return CDDP_OK;
}

/* ---- codes ---- */

/* One row: scale and zero point over a range with 0 in it, then every element to the nearest code
** and back, in f32 as the hook is defined. codes: (length), 0 behind the last of count. */
static void code_row(double *values, int64_t count, int64_t length, double *codes)
{
    float least = 0, most = 0, scale, zero;
    bool is_finite = true;
    for (int64_t i = 0; i < count; i++) {
        const float x = (float)values[i];
        is_finite = is_finite && isfinite(x);
        least = x < least ? x : least;
        most = x > most ? x : most;
    }
    scale = (most - least) / 255.0f;
    is_finite = is_finite && isfinite(most - least);
    if (scale < FLT_EPSILON) scale = FLT_EPSILON;
    zero = fminf(fmaxf(-nearbyintf(least / scale), 0.0f), 255.0f);
    const float reciprocal = 1.0f / scale;
    for (int64_t i = 0; i < length; i++) {
        const float x = i < count ? (float)values[i] : 0.0f;
        const float code = fminf(fmaxf(nearbyintf(x * reciprocal) + zero, 0.0f), 255.0f);
        codes[i] = is_finite ? (double)code : 0;
        if (i < count) values[i] = is_finite ? (double)(scale * (code - zero)) : (double)NAN;
    }
}

cddp_status cd_law_send_codes(cd_hook_law *law, cd_law_flight *flight, uint64_t *posted,
                              cddp_error *err)
{
    const int64_t numel = flight->numel,
                  length = law->hook.row != 0 ? (int64_t)law->hook.row : numel,
                  rows = law->hook.row != 0 ? numel / length + 1 : 1;
    const cd_arena_mark mark = cd_arena_get_mark(&law->memory);
    double *codes = cd_arena_array(&law->memory, (size_t)(rows * length) + 1, sizeof *codes);
    CD_TRY(cd_arena_check(&law->memory, err, "the codes of %lld elements", (long long)numel));
    for (int64_t r = 0; r < rows; r++) {
        const int64_t left = numel - r * length;
        code_row(flight->share + r * length, left < length ? left : length, length,
                 codes + r * length);
    }
    CD_TRY(cd_law_digest(law, CDDP_U8, codes, rows * length, posted, err));
    cd_arena_rewind(&law->memory, mark);
    return CDDP_OK;
}
