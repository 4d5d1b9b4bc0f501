/* SPDX-License-Identifier: Apache-2.0 */
/* Term lists: the algebra of linear forms. Inside core/tensor only.
**
** A list is normal when its terms are sorted by atom, then element; no two terms name the same atom
** element; no coefficient is 0. Terms of one atom advance equally (see cd_terms_add), so a list
** that is normal at its first element is normal at every one.
*/
#pragma once
#include "cddp/alloc.h"
#include "core/tensor/symbol.h"

typedef struct cd_terms {
    cd_term *items; /* owned; NULL when count is 0 */
    size_t count;
} cd_terms;

int cd_atom_compare(const cd_atom *a, const cd_atom *b);

/* The beginning of a piece in an advancing form, and the distance of its elements. */
typedef struct cd_form_slice {
    const cd_term *items;
    size_t count;
    int64_t first;
    int64_t stride;
} cd_form_slice;

/* A copy of the slice as a separate form. `single`: of one element only, all advances 0. */
cddp_status cd_terms_copy(const cddp_allocator *allocator, const cd_form_slice *slice, bool single,
                          cd_terms *copy, cddp_error *err);
/* sum = a + factor × b. The caller guarantees cd_terms_can_add for more than one element. */
cddp_status cd_terms_add(const cddp_allocator *allocator, const cd_terms *a, const cd_terms *b,
                         cd_ratio factor, cd_terms *sum, cddp_error *err);
/* False when terms of one atom advance differently: they may meet somewhere, so only single
** elements add. */
bool cd_terms_can_add(const cd_form_slice *a, const cd_form_slice *b);
/* Multiplies in place. */
cddp_status cd_terms_scale(const cddp_allocator *allocator, cd_terms *terms, cd_ratio factor,
                           cddp_error *err);
/* A number. */
cddp_status cd_terms_constant(const cddp_allocator *allocator, cd_ratio value, cd_terms *terms,
                              cddp_error *err);
bool cd_terms_is_constant(const cd_terms *terms, cd_ratio *value);
/* Brings any list of one element into normal form. */
cddp_status cd_terms_normalize(const cddp_allocator *allocator, cd_terms *terms, cddp_error *err);
/* of one element: advances do not count */
bool cd_terms_equal(const cd_terms *a, const cd_terms *b);
void cd_terms_fini(const cddp_allocator *allocator, cd_terms *terms);

/* A form over `length` consecutive elements. */
typedef struct cd_piece {
    int64_t length;
    cd_terms terms;
} cd_piece;

/* May b follow a in one run? A piece of one element takes any advance. */
bool cd_piece_continues(const cd_piece *a, const cd_piece *b);
/* Makes a longer by the elements of b that it continues with (all of them); b keeps its terms. */
void cd_piece_extend(cd_piece *a, const cd_piece *b);
