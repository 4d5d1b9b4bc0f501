/* SPDX-License-Identifier: Apache-2.0 */
/* Runs an operation over pieces; the effect of each operation on one piece. Not here: checks of
** operands, moving numbers in and out (symbol.c); term lists (symbol_form.c); runs
** (symbol_storage.c). */
#include "core/tensor/symbol_operation.h"

#include "core/base/error.h"

#include <inttypes.h>

const char *cd_symbol_terms_print(const cd_terms *terms, char *text, size_t text_bytes)
{
    cd_form_print(&(cd_form){terms->count, terms->items}, 1, NULL, text, text_bytes);
    return text;
}

static bool integer_range(cddp_dtype dtype, int64_t *low, int64_t *high)
{
    switch (dtype) {
    case CDDP_I64:
        *low = INT64_MIN;
        *high = INT64_MAX;
        return true;
    case CDDP_I32:
        *low = INT32_MIN;
        *high = INT32_MAX;
        return true;
    case CDDP_U8:
        *low = 0;
        *high = UINT8_MAX;
        return true;
    default:
        return false;
    }
}

/* Integer tensors contain unwritten garbage, or whole numbers of their range. */
static cddp_status check_holds(cddp_dtype dtype, const cd_terms *terms, const char *operation,
                               cddp_error *err)
{
    char text[200];
    int64_t low, high;
    cd_ratio value;
    if (!integer_range(dtype, &low, &high)) return CDDP_OK;
    if (terms->count == 1 && terms->items[0].atom.kind == CD_ATOM_GARBAGE) return CDDP_OK;
    if (!cd_terms_is_constant(terms, &value) || value.denominator != 1)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "%s: %s cannot hold %s", operation,
                       cddp_dtype_name(dtype), cd_symbol_terms_print(terms, text, sizeof text));
    if (value.numerator < low || value.numerator > high)
        return cd_fail(err, CDDP_E_LIMIT, "%s: %" PRId64 " does not fit into %s", operation,
                       value.numerator, cddp_dtype_name(dtype));
    return CDDP_OK;
}

/* ---- one operation on pieces ---- */

static cddp_status apply_piece(const cd_symbol_operation *o, const cd_form_slice *d,
                               const cd_form_slice *s, int64_t length, cd_piece *result,
                               cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_terms dst = {0}, src = {0};
    *result = (cd_piece){.length = length};
    if (d != NULL) CD_TRY_OUT(cd_terms_copy(o->allocator, d, length == 1, &dst, err));
    CD_TRY_OUT(cd_terms_copy(o->allocator, s, length == 1, &src, err));
    CD_TRY_OUT(o->apply(o, &dst, &src, &result->terms, err));
    status = check_holds(o->dst_dtype, &result->terms, o->name, err);
    if (status != CDDP_OK) cd_terms_fini(o->allocator, &result->terms);
out:
    cd_terms_fini(o->allocator, &dst);
    cd_terms_fini(o->allocator, &src);
    return status;
}

static cddp_status collect(const cd_symbol_operation *o, const cddp_tensor *dst,
                           const cddp_tensor *src, cd_piece_list *list, cddp_error *err)
{
    cd_piece_reader from, to;
    cd_form_slice s, d;
    cd_piece_reader_begin(&from, src);
    cd_piece_reader_begin(&to, dst);
    for (int64_t length; (length = cd_piece_reader_get(&from, &s)) > 0;) {
        if (o->reads_dst) {
            int64_t other = cd_piece_reader_get(&to, &d);
            if (other < length) length = other;
            if (!cd_terms_can_add(&d, &s)) length = 1;
            cd_piece_reader_skip(&to, length);
        }
        cd_piece_reader_skip(&from, length);
        cd_piece piece;
        CD_TRY(apply_piece(o, o->reads_dst ? &d : NULL, &s, length, &piece, err));
        CD_TRY(cd_piece_list_push(list, &piece, err));
    }
    return CDDP_OK;
}

cddp_status cd_symbol_operation_run(cd_symbol_operation *o, const cddp_tensor *dst,
                                    const cddp_tensor *src, cddp_error *err)
{
    o->allocator = cd_symbol_allocator_of(dst);
    o->src_dtype = src->dtype;
    o->dst_dtype = dst->dtype;
    cd_piece_list list = {.allocator = o->allocator};
    cddp_status status = collect(o, dst, src, &list, err);
    if (status == CDDP_OK) status = cd_symbol_storage_write(dst, &list, err);
    cd_piece_list_fini(&list);
    return status;
}

/* ---- linear operations ---- */

static cddp_status copy_terms(const cd_symbol_operation *o, const cd_terms *src, cd_terms *result,
                              cddp_error *err)
{
    cd_form_slice whole = {src->items, src->count, 0, 1};
    return CD_PASS(cd_terms_copy(o->allocator, &whole, false, result, err));
}

cddp_status cd_symbol_piece_copy(const cd_symbol_operation *o, const cd_terms *dst,
                                 const cd_terms *src, cd_terms *result, cddp_error *err)
{
    (void)dst;
    return CD_PASS(copy_terms(o, src, result, err));
}

cddp_status cd_symbol_piece_scale(const cd_symbol_operation *o, const cd_terms *dst,
                                  const cd_terms *src, cd_terms *result, cddp_error *err)
{
    (void)dst;
    cd_terms scaled;
    CD_TRY(copy_terms(o, src, &scaled, err));
    cddp_status status = cd_terms_scale(o->allocator, &scaled, o->factor, err);
    if (status == CDDP_OK)
        *result = scaled;
    else
        cd_terms_fini(o->allocator, &scaled);
    return status;
}

cddp_status cd_symbol_piece_divide(const cd_symbol_operation *o, const cd_terms *dst,
                                   const cd_terms *src, cd_terms *result, cddp_error *err)
{
    cd_ratio value;
    if (!cd_dtype_is_integer(o->dst_dtype) || !cd_terms_is_constant(src, &value))
        return CD_PASS(cd_symbol_piece_scale(o, dst, src, result, err));
    return CD_PASS(
        cd_terms_constant(o->allocator, (cd_ratio){value.numerator / o->divisor, 1}, result, err));
}

cddp_status cd_symbol_piece_add(const cd_symbol_operation *o, const cd_terms *dst,
                                const cd_terms *src, cd_terms *result, cddp_error *err)
{
    return CD_PASS(cd_terms_add(o->allocator, dst, src, o->factor, result, err));
}

/* ---- reductions of numbers ---- */

static cddp_status ratio_less(cd_ratio a, cd_ratio b, bool *less, cddp_error *err)
{
    cd_ratio difference;
    CD_TRY(cd_ratio_add(a, (cd_ratio){-b.numerator, b.denominator}, &difference, err));
    *less = difference.numerator < 0;
    return CDDP_OK;
}

static cddp_status reduce_numbers(const cd_symbol_operation *o, cd_ratio a, cd_ratio b,
                                  cd_ratio *result, cddp_error *err)
{
    bool less;
    switch (o->red_op) {
    case CDDP_RED_PRODUCT:
        return CD_PASS(cd_ratio_multiply(a, b, result, err));
    case CDDP_RED_MIN:
        CD_TRY(ratio_less(b, a, &less, err));
        *result = less ? b : a;
        return CDDP_OK;
    case CDDP_RED_MAX:
        CD_TRY(ratio_less(a, b, &less, err));
        *result = less ? b : a;
        return CDDP_OK;
    case CDDP_RED_BAND:
        *result = (cd_ratio){a.numerator & b.numerator, 1};
        return CDDP_OK;
    case CDDP_RED_BOR:
        *result = (cd_ratio){a.numerator | b.numerator, 1};
        return CDDP_OK;
    case CDDP_RED_BXOR:
        *result = (cd_ratio){a.numerator ^ b.numerator, 1};
        return CDDP_OK;
    default:
        return cd_fail(err, CDDP_E_UNSUPPORTED, "reduce: %s", cddp_red_op_name(o->red_op));
    }
}

cddp_status cd_symbol_piece_reduce(const cd_symbol_operation *o, const cd_terms *dst,
                                   const cd_terms *src, cd_terms *result, cddp_error *err)
{
    char text[200];
    cd_ratio a, b, value;
    bool numbers = cd_terms_is_constant(dst, &a) && cd_terms_is_constant(src, &b);
    if (!numbers) {
        const cd_terms *culprit = cd_terms_is_constant(dst, &a) ? src : dst;
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "reduce: %s of %s is not linear; run this on device cpu",
                       cddp_red_op_name(o->red_op),
                       cd_symbol_terms_print(culprit, text, sizeof text));
    }
    CD_TRY(reduce_numbers(o, a, b, &value, err));
    return CD_PASS(cd_terms_constant(o->allocator, value, result, err));
}

/* ---- casts ---- */

/* The bits of a whole number, or of a significand, that the dtype keeps. */
static uint32_t precision(cddp_dtype dtype)
{
    static const uint32_t bits[CDDP_DTYPE_COUNT] = {53, 24, 11, 8, 24, 63, 31, 8};
    return bits[dtype];
}

/* A cast is exact by type (f32 → f64), or a whole number that fits is converted; the rest would
** round. */
cddp_status cd_symbol_piece_cast(const cd_symbol_operation *o, const cd_terms *dst,
                                 const cd_terms *src, cd_terms *result, cddp_error *err)
{
    (void)dst;
    char text[200];
    cd_ratio value = {0, 1};
    bool number = cd_terms_is_constant(src, &value) && value.denominator == 1;
    int64_t size = value.numerator < 0 ? -(value.numerator + 1) : value.numerator;
    bool widens = cddp_dtype_is_float(o->src_dtype) && cddp_dtype_is_float(o->dst_dtype) &&
                  precision(o->dst_dtype) > precision(o->src_dtype) &&
                  !(o->src_dtype == CDDP_BF16 && o->dst_dtype == CDDP_F16);
    if (!widens && !(number && (uint64_t)size >> (precision(o->dst_dtype) - 1) <= 1))
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "copy: casting %s from %s to %s may round; run this on device cpu",
                       cd_symbol_terms_print(src, text, sizeof text), cddp_dtype_name(o->src_dtype),
                       cddp_dtype_name(o->dst_dtype));
    return CD_PASS(copy_terms(o, src, result, err));
}
