/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks that all-gather what every rank sends, after which each rank adds it up by itself:
**
**   top-k     indices and values of every rank;
**             result[index] += value ÷ W, ranks 0, 1, 2 … in order
**   codes     scale and zero point of every row, and the codes, of every rank;
**             result = (Σ of scale · (code − zero), ranks 0, 1, 2 … in order) ÷ W, in f32
**
** Nothing in this depends on a choice. So from what came back every bit of the result follows,
** however wide the bound of such a sum is. What came back of this rank is what the rank should have
** sent; the judges of the others say the same of theirs, and I-COLL that all received the same. */
#include "core/oracle/hook_law/state.h"

#include "core/base/error.h"
#include "core/trace/tracer.h"

#include <math.h>
#include <string.h>

enum { PART_PLACES, PART_VALUES }; /* indices and values; or rows and codes */

static bool is_codes(const cd_hook_law *law) { return law->hook.kind == CD_PLANNED_CODES; }

static int64_t row_length(const cd_hook_law *law, const cd_law_flight *f)
{
    return law->hook.row != 0 ? (int64_t)law->hook.row : f->numel;
}

static int64_t row_count(const cd_hook_law *law, const cd_law_flight *f)
{
    return law->hook.row != 0 ? f->numel / (int64_t)law->hook.row + 1 : 1;
}

/* Numbers of one rank in a part. */
static int64_t numel_of(const cd_hook_law *law, const cd_law_flight *f, int part)
{
    if (!is_codes(law)) return cd_planned_k(&law->hook, f->numel);
    return part == PART_PLACES ? 2 * row_count(law, f) : row_count(law, f) * row_length(law, f);
}

/* How a plugin's hook puts its share on the wire is its own. */
void cd_law_begin_gathered(cd_hook_law *law, cd_law_flight *f)
{
    f->is_gathered = true;
    f->turns = law->hook.is_followed || f->numel == 0 ? 0 : 2;
    f->part_numel[PART_PLACES] = f->part_numel[PART_VALUES] = 0;
}

static int part_of(const cd_hook_law *law, cddp_dtype dtype)
{
    return dtype == (is_codes(law) ? CDDP_U8 : CDDP_I32) ? is_codes(law) : !is_codes(law);
}

cddp_status cd_law_take_gathered(cd_hook_law *law, cd_law_flight *f, bool is_result,
                                 const cddp_tensor *numbers, cd_law_turn *turn, cddp_error *err)
{
    turn->is_result = f->posts == f->turns;
    f->posts += !is_result;
    f->results += is_result;
    if (turn->is_result != is_result || !is_result || f->results > f->turns || !f->is_regular)
        return CDDP_OK;
    const int part = part_of(law, numbers->dtype);
    const int64_t count = cddp_tensor_numel(numbers),
                  planned = numel_of(law, f, part) * law->options.world_size;
    f->is_regular = count == planned;
    if (!f->is_regular) {
        cd_law_report_shape(law, f, "an all-gather has another length than what the ranks send",
                            planned, count);
        return CDDP_OK;
    }
    if (f->parts[part] == NULL || f->part_room[part] < count) {
        f->parts[part] = cd_arena_array(&law->memory, (size_t)count + 1, sizeof *f->parts[part]);
        f->part_room[part] = count;
        CD_TRY(cd_arena_check(&law->memory, err, "what the ranks sent of a bucket"));
    }
    CD_TRY(cd_numbers_read(&law->numbers, numbers, err));
    memcpy(f->parts[part], law->numbers.values, (size_t)count * sizeof *f->parts[part]);
    f->part_numel[part] = count;
    return CDDP_OK;
}

/* ---- what follows from it ---- */

/* Element i of the bucket as a rank's codes have it. */
static float decode(const cd_hook_law *law, const cd_law_flight *f, uint32_t rank, int64_t i)
{
    const int64_t length = row_length(law, f);
    const double *row =
        f->parts[PART_PLACES] + rank * numel_of(law, f, PART_PLACES) + i / length * 2;
    const double code = f->parts[PART_VALUES][rank * numel_of(law, f, PART_VALUES) + i];
    return (float)row[0] * ((float)code - (float)row[1]);
}

static void add_codes(const cd_hook_law *law, const cd_law_flight *f, double *sum)
{
    for (int64_t i = 0; i < f->numel; i++) {
        float x = 0;
        for (uint32_t r = 0; r < law->options.world_size; r++) x += decode(law, f, r, i);
        sum[i] = (double)(x / (float)law->options.world_size);
    }
}

/* False: an index lies outside the bucket. */
static bool add_largest(const cd_hook_law *law, const cd_law_flight *f, double *sum)
{
    const double ranks = law->options.world_size;
    const int64_t count = f->part_numel[PART_VALUES];
    memset(sum, 0, (size_t)f->numel * sizeof *sum);
    for (int64_t j = 0; j < count; j++) {
        const double at = f->parts[PART_PLACES][j];
        if (!(at >= 0 && at < (double)f->numel)) return false;
        const int64_t i = (int64_t)at;
        sum[i] = cd_law_round(f->dtype,
                              sum[i] + cd_law_round(f->dtype, f->parts[PART_VALUES][j] / ranks));
    }
    return true;
}

/* What came back of this rank, as the elements that it sent; 0 elsewhere. */
static void find_own(const cd_hook_law *law, const cd_law_flight *f, double *own)
{
    const uint32_t rank = law->options.rank;
    const int64_t k = numel_of(law, f, PART_VALUES);
    if (is_codes(law)) {
        for (int64_t i = 0; i < f->numel; i++) own[i] = (double)decode(law, f, rank, i);
        return;
    }
    memset(own, 0, (size_t)f->numel * sizeof *own);
    for (int64_t j = rank * k; j < (rank + 1) * k; j++)
        own[(int64_t)f->parts[PART_PLACES][j]] = f->parts[PART_VALUES][j];
}

static void compare(const cd_hook_law *law, const cd_law_bucket *b, const double *expected,
                    const double *actual, cddp_dtype dtype, const char *words)
{
    for (uint32_t v = 0; v < b->count; v++) {
        cd_law_wrong w = {.c = {.element = -1}};
        for (int64_t i = b->offsets[v]; i < b->offsets[v] + b->lengths[v]; i++)
            cd_law_wrong_add(&w, i - b->offsets[v], cd_law_round(dtype, expected[i]), 0, actual[i]);
        cd_law_wrong_emit(law, b->variables[v], words, &w);
    }
}

static void give_up(const cd_hook_law *law, const char *why)
{
    CD_EMIT(law->options.tracer, unjudged, why, .link = CDDP_LINK_LAW, .count = 1);
}

cddp_status cd_law_end_gathered(cd_hook_law *law, const cd_law_bucket *b, cd_law_flight *f,
                                const double *result, cddp_error *err)
{
    if (law->is_unnamed || (f->posts == 0 && f->results == 0)) {
        give_up(law, "the all-gathers of the comm hook were not observed");
        return CDDP_OK;
    }
    if (f->posts != f->turns || f->results != f->turns)
        cd_law_report_shape(law, f, "it posts more or fewer all-gathers than the plan's hook",
                            f->turns, f->posts < f->results ? f->posts : f->results);
    if (f->posts != f->turns || f->results != f->turns || !f->is_regular ||
        f->part_numel[PART_PLACES] == 0 || f->part_numel[PART_VALUES] == 0)
        return CDDP_OK;
    const cd_arena_mark mark = cd_arena_get_mark(&law->memory);
    double *sum = cd_arena_array(&law->memory, (size_t)f->numel + 1, sizeof *sum);
    CD_TRY(cd_arena_check(&law->memory, err, "the sum of bucket %u", b->index));
    const bool is_inside = is_codes(law) || add_largest(law, f, sum);
    if (!is_inside) cd_law_report_shape(law, f, "an index lies outside the bucket", f->numel, -1);
    if (is_codes(law)) add_codes(law, f, sum);
    if (is_inside) {
        compare(law, b, sum, result, b->flat->dtype,
                "the result is not the mean of what came back");
        /* in a smaller group ranks have other places */
        if (law->options.world_size == law->planned_size) {
            find_own(law, f, sum);
            compare(law, b, sum, f->share, is_codes(law) ? CDDP_F32 : f->dtype,
                    "what came back of this rank is not what it sends");
        }
    }
    cd_arena_rewind(&law->memory, mark);
    return CDDP_OK;
}
