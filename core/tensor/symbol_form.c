/* SPDX-License-Identifier: Apache-2.0 */
/* Copying, adding, scaling and comparing term lists. */
#include "core/tensor/symbol_form.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

#include <string.h>

#define ORDER(a, b) ((a) < (b) ? -1 : (a) > (b) ? 1 : 0)

int cd_atom_compare(const cd_atom *a, const cd_atom *b)
{
    int order = ORDER(a->kind, b->kind);
    if (order == 0) order = ORDER(a->source, b->source);
    if (order == 0) order = ORDER(a->step, b->step);
    if (order == 0) order = ORDER(a->micro_step, b->micro_step);
    return order != 0 ? order : ORDER(a->rank, b->rank);
}

static int term_compare(const cd_term *a, const cd_term *b)
{
    int order = cd_atom_compare(&a->atom, &b->atom);
    return order != 0 ? order : ORDER(a->element, b->element);
}

static cddp_status allocate(const cddp_allocator *allocator, size_t count, cd_term **items,
                            cddp_error *err)
{
    *items = NULL;
    if (count == 0) return CDDP_OK;
    *items = cd_allocate_array(allocator, count, sizeof **items);
    if (*items == NULL) return cd_fail_memory(err, "%zu symbol terms", count);
    return CDDP_OK;
}

void cd_terms_fini(const cddp_allocator *allocator, cd_terms *terms)
{
    cd_release(allocator, terms->items, terms->count * sizeof *terms->items);
    *terms = (cd_terms){0};
}

cddp_status cd_terms_copy(const cddp_allocator *allocator, const cd_form_slice *slice, bool single,
                          cd_terms *copy, cddp_error *err)
{
    cd_terms made = {.count = slice->count};
    CD_TRY(allocate(allocator, slice->count, &made.items, err));
    for (size_t i = 0; i < slice->count; i++) {
        cd_term t = slice->items[i];
        t.element += slice->first * t.advance;
        t.advance = single ? 0 : t.advance * slice->stride;
        made.items[i] = t;
    }
    *copy = made;
    return CDDP_OK;
}

bool cd_terms_can_add(const cd_form_slice *a, const cd_form_slice *b)
{
    for (size_t i = 0; i < a->count; i++)
        for (size_t j = 0; j < b->count; j++)
            if (a->items[i].advance * a->stride != b->items[j].advance * b->stride &&
                cd_atom_compare(&a->items[i].atom, &b->items[j].atom) == 0)
                return false;
    return true;
}

/* Releases the unused end of a list, so that its memory is count terms. */
static cddp_status shrink(const cddp_allocator *allocator, cd_terms *terms, size_t used,
                          cddp_error *err)
{
    if (used == terms->count) return CDDP_OK;
    cd_terms fitting = {.count = used};
    CD_TRY(allocate(allocator, used, &fitting.items, err));
    if (used > 0) memcpy(fitting.items, terms->items, used * sizeof *fitting.items);
    cd_terms_fini(allocator, terms);
    *terms = fitting;
    return CDDP_OK;
}

/* The merge of two sorted lists. */
static cddp_status merge(const cd_terms *a, const cd_terms *b, cd_ratio factor, cd_term *out,
                         size_t *used, cddp_error *err)
{
    size_t i = 0, j = 0, n = 0;
    while (i < a->count || j < b->count) {
        int order = i == a->count   ? 1
                    : j == b->count ? -1
                                    : term_compare(&a->items[i], &b->items[j]);
        if (order < 0) {
            out[n++] = a->items[i++];
            continue;
        }
        cd_term t = b->items[j++];
        CD_TRY(cd_ratio_multiply(t.coefficient, factor, &t.coefficient, err));
        if (order == 0)
            CD_TRY(cd_ratio_add(a->items[i++].coefficient, t.coefficient, &t.coefficient, err));
        if (t.coefficient.numerator != 0) out[n++] = t;
    }
    *used = n;
    return CDDP_OK;
}

cddp_status cd_terms_add(const cddp_allocator *allocator, const cd_terms *a, const cd_terms *b,
                         cd_ratio factor, cd_terms *sum, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_terms made = {.count = a->count + b->count};
    size_t used = 0;
    CD_TRY(allocate(allocator, made.count, &made.items, err));
    CD_TRY_OUT(merge(a, b, factor, made.items, &used, err));
    CD_TRY_OUT(shrink(allocator, &made, used, err));
    *sum = made;
    made = (cd_terms){0};
out:
    cd_terms_fini(allocator, &made);
    return status;
}

cddp_status cd_terms_scale(const cddp_allocator *allocator, cd_terms *terms, cd_ratio factor,
                           cddp_error *err)
{
    if (factor.numerator == 0) {
        cd_terms_fini(allocator, terms);
        return CDDP_OK;
    }
    for (size_t i = 0; i < terms->count; i++)
        CD_TRY(cd_ratio_multiply(terms->items[i].coefficient, factor, &terms->items[i].coefficient,
                                 err));
    return CDDP_OK;
}

cddp_status cd_terms_constant(const cddp_allocator *allocator, cd_ratio value, cd_terms *terms,
                              cddp_error *err)
{
    cd_term one = {.atom.kind = CD_ATOM_ONE, .coefficient = value};
    cd_form_slice slice = {&one, value.numerator != 0 ? 1 : 0, 0, 1};
    return CD_PASS(cd_terms_copy(allocator, &slice, false, terms, err));
}

bool cd_terms_is_constant(const cd_terms *terms, cd_ratio *value)
{
    if (terms->count > 1 || (terms->count == 1 && terms->items[0].atom.kind != CD_ATOM_ONE))
        return false;
    *value = terms->count == 1 ? terms->items[0].coefficient : (cd_ratio){0, 1};
    return true;
}

cddp_status cd_terms_normalize(const cddp_allocator *allocator, cd_terms *terms, cddp_error *err)
{
    size_t used = 0;
    /* Insertion into the sorted front; equal ones meet there. Lists are short. */
    for (size_t i = 0; i < terms->count; i++) {
        cd_term t = terms->items[i];
        size_t at = 0;
        while (at < used && term_compare(&terms->items[at], &t) < 0) at++;
        if (at < used && term_compare(&terms->items[at], &t) == 0) {
            CD_TRY(cd_ratio_add(terms->items[at].coefficient, t.coefficient,
                                &terms->items[at].coefficient, err));
            continue;
        }
        memmove(&terms->items[at + 1], &terms->items[at], (used - at) * sizeof t);
        terms->items[at] = t;
        used++;
    }
    size_t kept = 0;
    for (size_t i = 0; i < used; i++)
        if (terms->items[i].coefficient.numerator != 0) terms->items[kept++] = terms->items[i];
    return CD_PASS(shrink(allocator, terms, kept, err));
}

static bool same_coefficients(const cd_terms *a, const cd_terms *b)
{
    if (a->count != b->count) return false;
    for (size_t i = 0; i < a->count; i++) {
        const cd_term *x = &a->items[i], *y = &b->items[i];
        if (cd_atom_compare(&x->atom, &y->atom) != 0) return false;
        if (x->coefficient.numerator != y->coefficient.numerator) return false;
        if (x->coefficient.denominator != y->coefficient.denominator) return false;
    }
    return true;
}

bool cd_terms_equal(const cd_terms *a, const cd_terms *b)
{
    if (!same_coefficients(a, b)) return false;
    for (size_t i = 0; i < a->count; i++)
        if (a->items[i].element != b->items[i].element) return false;
    return true;
}

/* The advance of term i of a when b follows: its own advance, or the distance when a is a single
** element. */
static int64_t advance_of(const cd_piece *a, const cd_piece *b, size_t i)
{
    return a->length == 1 ? b->terms.items[i].element - a->terms.items[i].element
                          : a->terms.items[i].advance;
}

/* Terms of one atom must advance equally, or they could meet later in the run. */
static bool advances_agree(const cd_piece *a, const cd_piece *b)
{
    for (size_t i = 1; i < a->terms.count; i++)
        if (cd_atom_compare(&a->terms.items[i - 1].atom, &a->terms.items[i].atom) == 0 &&
            advance_of(a, b, i - 1) != advance_of(a, b, i))
            return false;
    return true;
}

bool cd_piece_continues(const cd_piece *a, const cd_piece *b)
{
    if (!same_coefficients(&a->terms, &b->terms)) return false;
    for (size_t i = 0; i < a->terms.count; i++) {
        const cd_term *x = &a->terms.items[i], *y = &b->terms.items[i];
        int64_t advance = advance_of(a, b, i);
        if (y->element != x->element + a->length * advance) return false;
        if (b->length > 1 && y->advance != advance) return false;
    }
    return advances_agree(a, b);
}

void cd_piece_extend(cd_piece *a, const cd_piece *b)
{
    for (size_t i = 0; i < a->terms.count; i++) a->terms.items[i].advance = advance_of(a, b, i);
    a->length += b->length;
}
