/* SPDX-License-Identifier: Apache-2.0 */
/* The `symbol` device: an element is an exact linear form over atoms, with rational coefficients.
**
**     1/3·g(conv1.weight)[7] rank 0 micro 0 step 2  +  1/3·g(conv1.weight)[7] rank 1 micro 0 step 2
**
** A test shows that some numbers are right. A form shows that exactly the right contributions
** arrived, for all values. Storage keeps runs of elements whose forms advance together, so a bucket
** of a million elements is a few runs.
**
** Coefficients are int64 ratios, reduced; an overflow is CDDP_E_LIMIT, never wrapped. A double
** given to fill, scale or axpy stands for a simple ratio that rounds to it (cd_ratio_of_double):
** 0.1 is 1/10, 1.0/3.0 is 1/3. Constants (atom ONE) are ordinary numbers: they can be read,
** compared and reduced by every operation, which is what integer control tensors (used maps,
** counters) need. Operations without an exact linear meaning are refused:
** lossy casts, products, MIN and MAX of atoms, matmul, norm.
**
** Lifetime   forms handed out by iteration are borrowed until the next write to that storage.
** Threads    a storage belongs to one thread at a time.
** Errors     as the device's operations: CDDP_E_UNSUPPORTED, CDDP_E_LIMIT, CDDP_E_NOMEM, nothing
**            written.
*/
#pragma once
#include "cddp/device.h"

typedef enum cd_atom_kind {
    CD_ATOM_ONE,       /* the number 1 */
    CD_ATOM_GRADIENT,  /* gradient of parameter `source`, from (rank, step, micro_step) */
    CD_ATOM_PARAMETER, /* initial value of parameter `source` (on rank, when ranks differ) */
    CD_ATOM_BUFFER,    /* initial value of buffer `source` */
    CD_ATOM_GARBAGE,   /* the content of storage before the first write */
    CD_ATOM_KIND_COUNT
} cd_atom_kind;

/* An atom without its element index. */
typedef struct cd_atom {
    cd_atom_kind kind;
    uint32_t source;
    uint32_t rank;
    uint32_t micro_step;
    uint64_t step;
} cd_atom;

typedef struct cd_ratio {
    int64_t numerator;
    int64_t denominator; /* > 0, no common factor */
} cd_ratio;

/* coefficient × atom[element + t × advance], for the t-th element of a run. ONE has element =
** advance = 0. */
typedef struct cd_term {
    cd_atom atom;
    int64_t element;
    int64_t advance;
    cd_ratio coefficient; /* never 0 */
} cd_term;

/* Terms sorted by atom, then element. An empty form is 0. */
typedef struct cd_form {
    size_t term_count;
    const cd_term *terms; /* (term_count) borrowed */
} cd_form;

/* ---- ratios: each fails with CDDP_E_LIMIT when the result does not fit ---- */
cddp_status cd_ratio_make(int64_t numerator, int64_t denominator, cd_ratio *ratio, cddp_error *err);
cddp_status cd_ratio_add(cd_ratio a, cd_ratio b, cd_ratio *sum, cddp_error *err);
cddp_status cd_ratio_multiply(cd_ratio a, cd_ratio b, cd_ratio *product, cddp_error *err);
/* The first convergent of the continued fraction of value that rounds to it: p/q for every double
** that was written as p/q with q below some 10^7. */
cddp_status cd_ratio_of_double(double value, cd_ratio *ratio, cddp_error *err);

/* ---- tensors on device symbol ---- */

/* Element i of the view (in logical order) becomes the atom with element index i, coefficient 1. */
cddp_status cd_symbol_write_atoms(const cddp_tensor *dst, const cd_atom *atom, cddp_error *err);

/* Visits maximal runs in logical order: elements first … first + length - 1 of the view have this
** form. The runs are canonical: they do not depend on the operations that made the content. visit
** returns false to stop. */
typedef bool (*cd_symbol_visit_fn)(void *context, int64_t first, int64_t length,
                                   const cd_form *form);
cddp_status cd_symbol_visit(const cddp_tensor *src, cd_symbol_visit_fn visit, void *context,
                            cddp_error *err);

/* The first difference of a view from the expected form, as forms of that one element (advance
** 0). */
#define CD_FORM_TERMS_MAX 16
typedef struct cd_symbol_difference {
    int64_t index;                       /* logical, -1: equal */
    size_t actual_count, expected_count; /* terms in all; the first CD_FORM_TERMS_MAX are kept */
    cd_term actual[CD_FORM_TERMS_MAX], expected[CD_FORM_TERMS_MAX];
} cd_symbol_difference;

/* Compares every element t of the view with the form `expected` evaluated at t (terms in any order,
** equal atoms added up). */
cddp_status cd_symbol_compare(const cddp_tensor *actual, const cd_form *expected,
                              cd_symbol_difference *difference, cddp_error *err);
/* Compares two views element by element. */
cddp_status cd_symbol_compare_views(const cddp_tensor *actual, const cddp_tensor *expected,
                                    cd_symbol_difference *difference, cddp_error *err);

/* "1/3·g(conv1.weight)[7] rank 0 micro 0 step 2 + …"; names may be NULL (numbers are printed). A
** run of `length` elements prints index ranges. Always terminated; "…" where text_bytes was not
** enough. */
typedef const char *(*cd_symbol_name_fn)(void *context, cd_atom_kind kind, uint32_t source);
typedef struct cd_symbol_names {
    cd_symbol_name_fn name; /* may return NULL for an unknown source */
    void *context;
} cd_symbol_names;
size_t cd_form_print(const cd_form *form, int64_t length, const cd_symbol_names *names, char *text,
                     size_t text_bytes);

/* Runs that the storage behind a view holds now; for tests of cost. */
size_t cd_symbol_run_count(const cddp_tensor *t);
