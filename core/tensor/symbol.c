/* SPDX-License-Identifier: Apache-2.0 */
/* The `symbol` device: checks of operands, numbers in and out, the table. Not here: what operations
** do to forms (symbol_operation.c), term lists (symbol_form.c), runs (symbol_storage.c), what a
** reader asks (symbol_query.c). */
#include "core/tensor/symbol_operation.h"

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/tensor/cpu.h"
#include "core/tensor/dtype.h"

#include <inttypes.h>
#include <string.h>

static cddp_status symbol_allocate(const cddp_device *device, cddp_dtype dtype, int64_t numel,
                                   void **storage, cddp_error *err)
{
    if (numel < 0 || (unsigned)dtype >= CDDP_DTYPE_COUNT)
        return cd_fail(err, CDDP_E_ARG, "allocate: %" PRId64 " elements of dtype %d", numel,
                       (int)dtype);
    cd_symbol_storage *made;
    CD_TRY(cd_symbol_storage_create(cd_device_allocator(device), numel, &made, err));
    *storage = made;
    return CDDP_OK;
}

static void symbol_release(const cddp_device *device, cddp_dtype dtype, int64_t numel,
                           void *storage)
{
    (void)device;
    (void)dtype;
    (void)numel;
    cd_symbol_storage_destroy(storage);
}

/* ---- checks ---- */

static cddp_status check_inside(const cddp_tensor *t, const char *operation, cddp_error *err)
{
    return CD_PASS(
        cd_view_check_inside(t, ((const cd_symbol_storage *)t->storage)->numel, operation, err));
}

static cddp_status check_one(const cddp_tensor *t, const char *operation, cddp_error *err)
{
    CD_TRY(cd_view_check(t, operation, "tensor", err));
    return CD_PASS(check_inside(t, operation, err));
}

static cddp_status check_two(const cddp_tensor *dst, const cddp_tensor *src, const char *operation,
                             cddp_error *err)
{
    CD_TRY(cd_view_check_same(dst, src, operation, err));
    CD_TRY(check_inside(dst, operation, err));
    return CD_PASS(check_inside(src, operation, err));
}

/* ---- the table: moving ---- */

static cddp_status symbol_copy(const cddp_tensor *dst, const cddp_tensor *src, cddp_stream *stream,
                               cddp_error *err)
{
    (void)stream;
    CD_TRY(cd_view_check_pair(dst, src, "copy", err));
    CD_TRY(check_inside(dst, "copy", err));
    CD_TRY(check_inside(src, "copy", err));
    cd_symbol_operation o = {.name = "copy",
                             .apply = dst->dtype == src->dtype ? cd_symbol_piece_copy
                                                               : cd_symbol_piece_cast};
    return CD_PASS(cd_symbol_operation_run(&o, dst, src, err));
}

/* The number in one host element. */
static cddp_status number_of(cddp_dtype dtype, const unsigned char *element, cd_ratio *value,
                             cddp_error *err)
{
    int64_t whole;
    double real;
    if (!cd_dtype_is_integer(dtype)) {
        cd_convert(CDDP_F64, &real, dtype, element, 1);
        if (dtype == CDDP_C64) {
            float parts[2];
            memcpy(parts, element, sizeof parts);
            if (parts[1] != 0)
                return cd_fail(err, CDDP_E_UNSUPPORTED, "write: %g + %gi is not a ratio", real,
                               (double)parts[1]);
        }
        return CD_PASS(cd_ratio_of_double(real, value, err));
    }
    cd_convert(CDDP_I64, &whole, dtype, element, 1);
    return CD_PASS(cd_ratio_make(whole, 1, value, err));
}

static cddp_status collect_numbers(const cddp_tensor *dst, const unsigned char *host,
                                   cd_piece_list *list, cddp_error *err)
{
    size_t bytes = cddp_dtype_bytes(dst->dtype);
    int64_t numel = cddp_tensor_numel(dst);
    for (int64_t i = 0, same; i < numel; i += same) {
        const unsigned char *element = host + (size_t)i * bytes;
        for (same = 1;
             i + same < numel && memcmp(element, element + (size_t)same * bytes, bytes) == 0;)
            same++;
        cd_piece piece = {.length = same};
        cd_ratio value;
        CD_TRY(number_of(dst->dtype, element, &value, err));
        CD_TRY(cd_terms_constant(list->allocator, value, &piece.terms, err));
        CD_TRY(cd_piece_list_push(list, &piece, err));
    }
    return CDDP_OK;
}

static cddp_status symbol_write(const cddp_tensor *dst, const void *host, size_t host_bytes,
                                cddp_error *err)
{
    CD_TRY(check_one(dst, "write", err));
    CD_TRY(cd_view_check_host(dst, host, host_bytes, "write", err));
    cd_piece_list list = {.allocator = cd_symbol_allocator_of(dst)};
    cddp_status status = collect_numbers(dst, host, &list, err);
    if (status == CDDP_OK) status = cd_symbol_storage_write(dst, &list, err);
    cd_piece_list_fini(&list);
    return status;
}

static cddp_status read_piece(const cddp_tensor *src, const cd_form_slice *slice,
                              unsigned char *element, cddp_error *err)
{
    char text[200];
    cd_ratio value;
    cd_terms terms = {(cd_term *)(uintptr_t)slice->items, slice->count};
    if (!cd_terms_is_constant(&terms, &value))
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "read: %s is not a number; device symbol has no values",
                       cd_symbol_terms_print(&terms, text, sizeof text));
    if (cd_dtype_is_integer(src->dtype))
        cd_convert(src->dtype, element, CDDP_I64, &value.numerator, 1);
    else
        cd_element_set(src->dtype, element, (double)value.numerator / (double)value.denominator);
    return CDDP_OK;
}

/* Two passes, so that host is written only on success. */
static cddp_status symbol_read(const cddp_tensor *src, void *host, size_t host_bytes,
                               cddp_error *err)
{
    CD_TRY(check_one(src, "read", err));
    CD_TRY(cd_view_check_host(src, host, host_bytes, "read", err));
    size_t bytes = cddp_dtype_bytes(src->dtype);
    for (int pass = 0; pass < 2; pass++) {
        unsigned char *to = host, element[16];
        cd_piece_reader reader;
        cd_form_slice slice;
        cd_piece_reader_begin(&reader, src);
        for (int64_t length; (length = cd_piece_reader_get(&reader, &slice)) > 0;
             cd_piece_reader_skip(&reader, length)) {
            CD_TRY(read_piece(src, &slice, element, err));
            for (int64_t i = 0; pass == 1 && i < length; i++, to += bytes)
                memcpy(to, element, bytes);
        }
    }
    return CDDP_OK;
}

static cddp_status symbol_fill(const cddp_tensor *dst, double value, cddp_stream *stream,
                               cddp_error *err)
{
    (void)stream;
    CD_TRY(check_one(dst, "fill", err));
    unsigned char element[16];
    cd_ratio ratio;
    if (cd_dtype_is_integer(dst->dtype)) { /* converted as cpu does */
        cd_element_set(dst->dtype, element, value);
        CD_TRY(number_of(dst->dtype, element, &ratio, err));
    } else {
        CD_TRY(cd_ratio_of_double(value, &ratio, err));
    }
    cd_piece_list list = {.allocator = cd_symbol_allocator_of(dst)};
    cd_piece piece = {.length = cddp_tensor_numel(dst)};
    if (piece.length == 0) return CDDP_OK;
    CD_TRY(cd_terms_constant(list.allocator, ratio, &piece.terms, err));
    cddp_status status = cd_piece_list_push(&list, &piece, err);
    if (status == CDDP_OK) status = cd_symbol_storage_write(dst, &list, err);
    cd_piece_list_fini(&list);
    return status;
}

/* ---- the table: arithmetic ---- */

static cddp_status symbol_reduce(cddp_red_op op, const cddp_tensor *dst, const cddp_tensor *src,
                                 cddp_stream *stream, cddp_error *err)
{
    (void)stream;
    CD_TRY(check_two(dst, src, "reduce", err));
    bool bits = op == CDDP_RED_BAND || op == CDDP_RED_BOR || op == CDDP_RED_BXOR;
    bool known = bits || op == CDDP_RED_SUM || op == CDDP_RED_PRODUCT || op == CDDP_RED_MIN ||
                 op == CDDP_RED_MAX;
    if (!known || (bits && !cd_dtype_is_integer(dst->dtype)))
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "reduce: %s is not defined between two elements of %s", cddp_red_op_name(op),
                       cddp_dtype_name(dst->dtype));
    cd_symbol_operation o = {.name = "reduce",
                             .apply =
                                 op == CDDP_RED_SUM ? cd_symbol_piece_add : cd_symbol_piece_reduce,
                             .reads_dst = true,
                             .factor = {1, 1},
                             .red_op = op};
    return CD_PASS(cd_symbol_operation_run(&o, dst, src, err));
}

static cddp_status symbol_divide(const cddp_tensor *dst, const cddp_tensor *src, int64_t n,
                                 cddp_stream *stream, cddp_error *err)
{
    (void)stream;
    if (n < 1)
        return cd_fail(err, CDDP_E_ARG,
                       "divide: the divisor n is %" PRId64 ", it must be at least 1", n);
    CD_TRY(check_two(dst, src, "divide", err));
    cd_symbol_operation o = {.name = "divide",
                             .apply = cd_symbol_piece_divide,
                             .factor = {1, n},
                             .divisor = n};
    return CD_PASS(cd_symbol_operation_run(&o, dst, src, err));
}

/* Both division forms are the exact 1/n here. */
static cddp_status symbol_multiply_reciprocal(const cddp_tensor *dst, const cddp_tensor *src,
                                              int64_t n, cddp_stream *stream, cddp_error *err)
{
    (void)stream;
    if (n < 1)
        return cd_fail(err, CDDP_E_ARG,
                       "multiply_reciprocal: the divisor n is %" PRId64 ", it must be at least 1",
                       n);
    CD_TRY(check_two(dst, src, "multiply_reciprocal", err));
    cd_symbol_operation o = {.name = "multiply_reciprocal",
                             .apply = cd_symbol_piece_scale,
                             .factor = {1, n}};
    return CD_PASS(cd_symbol_operation_run(&o, dst, src, err));
}

static cddp_status symbol_scale(const cddp_tensor *dst, const cddp_tensor *src, double factor,
                                cddp_stream *stream, cddp_error *err)
{
    (void)stream;
    CD_TRY(check_two(dst, src, "scale", err));
    cd_symbol_operation o = {.name = "scale", .apply = cd_symbol_piece_scale};
    CD_TRY(cd_ratio_of_double(factor, &o.factor, err));
    return CD_PASS(cd_symbol_operation_run(&o, dst, src, err));
}

static cddp_status symbol_axpy(const cddp_tensor *dst, double alpha, const cddp_tensor *x,
                               cddp_stream *stream, cddp_error *err)
{
    (void)stream;
    CD_TRY(check_two(dst, x, "axpy", err));
    cd_symbol_operation o = {.name = "axpy", .apply = cd_symbol_piece_add, .reads_dst = true};
    CD_TRY(cd_ratio_of_double(alpha, &o.factor, err));
    return CD_PASS(cd_symbol_operation_run(&o, dst, x, err));
}

static cddp_status symbol_matmul(const cddp_tensor *dst, const cddp_matmul *operands,
                                 cddp_stream *stream, cddp_error *err)
{
    (void)stream;
    cd_matmul_shape shape;
    CD_TRY(cd_view_check_matmul(dst, operands, &shape, err));
    return cd_fail(err, CDDP_E_UNSUPPORTED,
                   "matmul: a product of two forms is not linear; run this on device cpu");
}

static cddp_status symbol_norm(const cddp_tensor *src, double *norm, cddp_error *err)
{
    (void)norm;
    CD_TRY(check_one(src, "norm", err));
    return cd_fail(err, CDDP_E_UNSUPPORTED, "norm: a form has no size; run this on device cpu");
}

/* A form is finite whatever finite values its atoms have. */
static cddp_status symbol_find_nonfinite(const cddp_tensor *src, int64_t *index, cddp_error *err)
{
    CD_TRY(check_one(src, "find_nonfinite", err));
    *index = -1;
    return CDDP_OK;
}

static bool digest_visit(void *context, int64_t first, int64_t length, const cd_form *form)
{
    uint64_t d = cd_hash_mix(*(uint64_t *)context, (uint64_t)first);
    d = cd_hash_mix(d, (uint64_t)length);
    for (size_t i = 0; i < form->term_count; i++) {
        const cd_term *t = &form->terms[i];
        const uint64_t words[] = {(uint64_t)t->atom.kind << 32 | t->atom.source,
                                  (uint64_t)t->atom.rank << 32 | t->atom.micro_step,
                                  t->atom.step,
                                  (uint64_t)t->element,
                                  (uint64_t)t->advance,
                                  (uint64_t)t->coefficient.numerator,
                                  (uint64_t)t->coefficient.denominator};
        for (size_t w = 0; w < sizeof words / sizeof words[0]; w++) d = cd_hash_mix(d, words[w]);
    }
    *(uint64_t *)context = d;
    return true;
}

static cddp_status symbol_digest(const cddp_tensor *src, uint64_t *digest, cddp_error *err)
{
    CD_TRY(check_one(src, "digest", err));
    uint64_t d = (uint64_t)cddp_tensor_numel(src);
    CD_TRY(cd_symbol_visit(src, digest_visit, &d, err));
    *digest = d;
    return CDDP_OK;
}

const cddp_device *cddp_device_symbol(void)
{
    static const cddp_device symbol = {.size = sizeof symbol,
                                       .abi = CDDP_DEVICE_ABI,
                                       .name = "symbol",
                                       .flags = CDDP_DEVICE_EXACT,
                                       .dtypes = CDDP_DTYPE_BIT(CDDP_DTYPE_COUNT) - 1,
                                       .allocate = symbol_allocate,
                                       .release = symbol_release,
                                       .read = symbol_read,
                                       .write = symbol_write,
                                       .copy = symbol_copy,
                                       .copy_many = cd_view_copy_each,
                                       .fill = symbol_fill,
                                       .reduce = symbol_reduce,
                                       .divide = symbol_divide,
                                       .multiply_reciprocal = symbol_multiply_reciprocal,
                                       .scale = symbol_scale,
                                       .axpy = symbol_axpy,
                                       .matmul = symbol_matmul,
                                       .norm = symbol_norm,
                                       .find_nonfinite = symbol_find_nonfinite,
                                       .digest = symbol_digest};
    return &symbol;
}
