/* SPDX-License-Identifier: Apache-2.0 */
/* Queries on forms: writes fresh atoms, visits canonical runs, compares, prints. */
#include "core/base/format.h"
#include "core/tensor/symbol_storage.h"

#include "core/base/error.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static cddp_status check(const cddp_tensor *t, const char *operation, cddp_error *err)
{
    CD_TRY(cd_view_check(t, operation, "tensor", err));
    if (t->device->copy != cddp_device_symbol()->copy)
        return cd_fail(err, CDDP_E_ARG, "%s: the tensor is on device %s, not symbol", operation,
                       t->device->name);
    return CDDP_OK;
}

cddp_status cd_symbol_write_atoms(const cddp_tensor *dst, const cd_atom *atom, cddp_error *err)
{
    CD_TRY(check(dst, "write_atoms", err));
    if (atom->kind == CD_ATOM_ONE || cd_dtype_is_integer(dst->dtype))
        return cd_fail(err, CDDP_E_ARG, "write_atoms: the number one, or a %s tensor",
                       cddp_dtype_name(dst->dtype));
    cd_piece_list list = {.allocator = cd_symbol_allocator_of(dst)};
    cd_piece piece = {.length = cddp_tensor_numel(dst)};
    if (piece.length == 0) return CDDP_OK;
    cd_term term = {.atom = *atom, .advance = 1, .coefficient = {1, 1}};
    cd_form_slice slice = {&term, 1, 0, 1};
    CD_TRY(cd_terms_copy(list.allocator, &slice, piece.length == 1, &piece.terms, err));
    cddp_status status = cd_piece_list_push(&list, &piece, err);
    if (status == CDDP_OK) status = cd_symbol_storage_write(dst, &list, err);
    cd_piece_list_fini(&list);
    return status;
}

size_t cd_symbol_run_count(const cddp_tensor *t)
{
    return ((const cd_symbol_storage *)t->storage)->run_count;
}

/* ---- visiting ---- */

static cddp_status collect(const cddp_tensor *src, cd_piece_list *list, cddp_error *err)
{
    cd_piece_reader reader;
    cd_form_slice slice;
    cd_piece_reader_begin(&reader, src);
    for (int64_t length; (length = cd_piece_reader_get(&reader, &slice)) > 0;
         cd_piece_reader_skip(&reader, length)) {
        cd_piece piece = {.length = length};
        CD_TRY(cd_terms_copy(list->allocator, &slice, length == 1, &piece.terms, err));
        CD_TRY(cd_piece_list_push(list, &piece, err));
    }
    return CDDP_OK;
}

cddp_status cd_symbol_visit(const cddp_tensor *src, cd_symbol_visit_fn visit, void *context,
                            cddp_error *err)
{
    CD_TRY(check(src, "visit", err));
    cd_piece_list list = {.allocator = cd_symbol_allocator_of(src)};
    cddp_status status = collect(src, &list, err);
    int64_t first = 0;
    bool more = true;
    for (size_t i = 0; status == CDDP_OK && more && i < list.count; i++) {
        const cd_piece *p = &list.items[i];
        more = visit(context, first, p->length, &(cd_form){p->terms.count, p->terms.items});
        first += p->length;
    }
    cd_piece_list_fini(&list);
    return status;
}

/* ---- comparing ---- */

static void keep(cd_symbol_difference *difference, int64_t index, const cd_terms *actual,
                 const cd_terms *expected)
{
    memset(difference, 0, sizeof *difference);
    difference->index = index;
    difference->actual_count = actual->count;
    difference->expected_count = expected->count;
    for (size_t i = 0; i < actual->count && i < CD_FORM_TERMS_MAX; i++)
        difference->actual[i] = actual->items[i];
    for (size_t i = 0; i < expected->count && i < CD_FORM_TERMS_MAX; i++)
        difference->expected[i] = expected->items[i];
}

typedef struct comparison {
    const cddp_allocator *allocator;
    int64_t index; /* of the next element */
    cd_symbol_difference *difference;
} comparison;

/* One element on each side. */
static cddp_status compare_element(comparison *c, const cd_form_slice *actual,
                                   const cd_form_slice *expected, bool *equal, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_terms a = {0}, e = {0};
    CD_TRY_OUT(cd_terms_copy(c->allocator, actual, true, &a, err));
    CD_TRY_OUT(cd_terms_copy(c->allocator, expected, true, &e, err));
    CD_TRY_OUT(cd_terms_normalize(c->allocator, &e, err));
    *equal = cd_terms_equal(&a, &e);
    if (!*equal) keep(c->difference, c->index, &a, &e);
out:
    cd_terms_fini(c->allocator, &a);
    cd_terms_fini(c->allocator, &e);
    return status;
}

/* Forms that are equal at the first element and advance equally are equal everywhere, when
** `expected` is in normal order. Otherwise every element is compared. */
static bool advance_alike(const cd_form_slice *a, const cd_form_slice *e)
{
    if (a->count != e->count) return false;
    for (size_t i = 0; i < a->count; i++) {
        if (cd_atom_compare(&a->items[i].atom, &e->items[i].atom) != 0) return false;
        if (a->items[i].advance * a->stride != e->items[i].advance * e->stride) return false;
        if (a->items[i].element + a->first * a->items[i].advance !=
            e->items[i].element + e->first * e->items[i].advance)
            return false;
    }
    return true;
}

static cddp_status compare_pieces(comparison *c, cd_form_slice actual, cd_form_slice expected,
                                  int64_t length, bool *equal, cddp_error *err)
{
    int64_t steps = length > 1 && advance_alike(&actual, &expected) ? 1 : length;
    *equal = true;
    for (int64_t i = 0; i < steps && *equal; i++) {
        CD_TRY(compare_element(c, &actual, &expected, equal, err));
        if (!*equal) return CDDP_OK;
        actual.first += actual.stride;
        expected.first += expected.stride;
        c->index++;
    }
    c->index += length - steps;
    return CDDP_OK;
}

cddp_status cd_symbol_compare(const cddp_tensor *actual, const cd_form *expected,
                              cd_symbol_difference *difference, cddp_error *err)
{
    CD_TRY(check(actual, "compare", err));
    cd_symbol_difference found = {.index = -1};
    comparison c = {.allocator = cd_symbol_allocator_of(actual), .difference = &found};
    cd_piece_reader reader;
    cd_form_slice slice;
    bool equal = true;
    cd_piece_reader_begin(&reader, actual);
    for (int64_t length; equal && (length = cd_piece_reader_get(&reader, &slice)) > 0;) {
        cd_form_slice wanted = {expected->terms, expected->term_count, c.index, 1};
        CD_TRY(compare_pieces(&c, slice, wanted, length, &equal, err));
        cd_piece_reader_skip(&reader, length);
    }
    *difference = found;
    return CDDP_OK;
}

cddp_status cd_symbol_compare_views(const cddp_tensor *actual, const cddp_tensor *expected,
                                    cd_symbol_difference *difference, cddp_error *err)
{
    CD_TRY(check(actual, "compare", err));
    CD_TRY(cd_view_check_pair(actual, expected, "compare", err));
    cd_symbol_difference found = {.index = -1};
    comparison c = {.allocator = cd_symbol_allocator_of(actual), .difference = &found};
    cd_piece_reader left, right;
    cd_form_slice a, e;
    bool equal = true;
    cd_piece_reader_begin(&left, actual);
    cd_piece_reader_begin(&right, expected);
    for (int64_t length; equal && (length = cd_piece_reader_get(&left, &a)) > 0;) {
        int64_t other = cd_piece_reader_get(&right, &e);
        if (other < length) length = other;
        CD_TRY(compare_pieces(&c, a, e, length, &equal, err));
        cd_piece_reader_skip(&left, length);
        cd_piece_reader_skip(&right, length);
    }
    *difference = found;
    return CDDP_OK;
}

/* ---- printing ---- */

typedef struct text_writer {
    char *text;
    size_t bytes, used;
} text_writer;

static void put(text_writer *w, const char *format, ...) CDDP_PRINTF(2, 3);
static void put(text_writer *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t space = w->used < w->bytes ? w->bytes - w->used : 0;
    int n = cd_vformat(space > 0 ? w->text + w->used : NULL, space, format, args);
    va_end(args);
    if (n > 0) w->used += (size_t)n;
}

static void put_coefficient(text_writer *w, cd_ratio c, bool first, bool is_number)
{
    uint64_t size = c.numerator < 0 ? 0 - (uint64_t)c.numerator : (uint64_t)c.numerator;
    if (!first)
        put(w, c.numerator < 0 ? " - " : " + ");
    else if (c.numerator < 0)
        put(w, "-");
    if (!is_number && size == 1 && c.denominator == 1) return;
    put(w, "%" PRIu64, size);
    if (c.denominator != 1) put(w, "/%" PRId64, c.denominator);
    if (!is_number) put(w, "·");
}

static void put_atom(text_writer *w, const cd_atom *atom, const cd_symbol_names *names)
{
    static const char *const letters[CD_ATOM_KIND_COUNT] = {"1", "g", "p", "b", "garbage"};
    const char *name = names != NULL ? names->name(names->context, atom->kind, atom->source) : NULL;
    put(w, "%s", (unsigned)atom->kind < CD_ATOM_KIND_COUNT ? letters[atom->kind] : "?");
    if (atom->kind == CD_ATOM_GARBAGE) return;
    if (name != NULL)
        put(w, "(%s)", name);
    else
        put(w, "(#%" PRIu32 ")", atom->source);
}

static void put_term(text_writer *w, const cd_term *t, int64_t length, const cd_symbol_names *names)
{
    if (t->atom.kind == CD_ATOM_ONE) return;
    put_atom(w, &t->atom, names);
    put(w, "[%" PRId64, t->element);
    if (length > 1 && t->advance != 0) put(w, "..%" PRId64, t->element + (length - 1) * t->advance);
    if (length > 1 && t->advance != 1 && t->advance != 0) put(w, ":%" PRId64, t->advance);
    put(w, "]");
    if (t->atom.kind == CD_ATOM_GARBAGE) return;
    put(w, " rank %" PRIu32, t->atom.rank);
    if (t->atom.kind == CD_ATOM_GRADIENT)
        put(w, " micro %" PRIu32 " step %" PRIu64, t->atom.micro_step, t->atom.step);
}

size_t cd_form_print(const cd_form *form, int64_t length, const cd_symbol_names *names, char *text,
                     size_t text_bytes)
{
    static const char ellipsis[] = "…";
    text_writer w = {text, text_bytes, 0};
    if (form->term_count == 0) put(&w, "0");
    for (size_t i = 0; i < form->term_count; i++) {
        const cd_term *t = &form->terms[i];
        put_coefficient(&w, t->coefficient, i == 0, t->atom.kind == CD_ATOM_ONE);
        put_term(&w, t, length, names);
    }
    if (w.used < text_bytes || text_bytes < sizeof ellipsis) return w.used;
    /* Cut back to the start of a character before the ellipsis replaces the end. */
    size_t at = text_bytes - sizeof ellipsis;
    while (at > 0 && ((unsigned char)text[at] & 0xc0u) == 0x80u) at--;
    memcpy(text + at, ellipsis, sizeof ellipsis);
    return w.used;
}
