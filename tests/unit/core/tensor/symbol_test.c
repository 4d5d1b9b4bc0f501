/* SPDX-License-Identifier: Apache-2.0 */
/* The symbol device: the algebra of forms, runs, canonical content, exactness, refusals. A model
** that keeps one dense vector of coefficients per element judges random programs of operations. */
#include "core/base/prng.h"
#include "core/tensor/cpu.h"
#include "core/tensor/symbol.h"
#include "core/tensor/symbol_storage.h"
#include "tests/unit/core/tensor/fixture.h"

#include <math.h>
#include <stdio.h>

static const cddp_device *symbol(void) { return cddp_device_symbol(); }

static const char *name_of(void *context, cd_atom_kind kind, uint32_t source)
{
    (void)context;
    return kind == CD_ATOM_GRADIENT ? (source == 0 ? "conv1.weight" : "fc.bias") : NULL;
}
static const cd_symbol_names names = {name_of, NULL};

static cd_atom gradient(uint32_t source, uint32_t rank, uint32_t micro)
{
    return (cd_atom){
        .kind = CD_ATOM_GRADIENT, .source = source, .rank = rank, .micro_step = micro, .step = 2};
}

typedef struct printout {
    char text[2048];
} printout;

static bool print_run(void *context, int64_t first, int64_t length, const cd_form *form)
{
    printout *p = context;
    size_t used = strlen(p->text);
    snprintf(p->text + used, sizeof p->text - used, "%s%d: ", used > 0 ? "; " : "", (int)first);
    used = strlen(p->text);
    cd_form_print(form, length, &names, p->text + used, sizeof p->text - used);
    return true;
}

/* The canonical runs of a view as one line. */
static const char *content(fixture *f, const cddp_tensor *t, printout *p)
{
    p->text[0] = '\0';
    cd_symbol_storage_audit(t->storage);
    assert_ok(cd_symbol_visit(t, print_run, p, &f->err), &f->err);
    return p->text;
}

static cddp_tensor fresh(fixture *f, int64_t numel)
{
    return fixture_make(f, symbol(), CDDP_F32, &numel, 1);
}

static void write_atoms(fixture *f, const cddp_tensor *t, cd_atom atom)
{
    assert_ok(cd_symbol_write_atoms(t, &atom, &f->err), &f->err);
}

/* ---- ratios ---- */

TEST(ratio, sums_and_products_are_exact_and_reduced)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_ratio r;
    assert_ok(cd_ratio_make(-6, -4, &r, &err), &err);
    assert_true(r.numerator == 3 && r.denominator == 2);
    assert_ok(cd_ratio_add((cd_ratio){1, 6}, (cd_ratio){1, 10}, &r, &err), &err);
    assert_true(r.numerator == 4 && r.denominator == 15);
    assert_ok(cd_ratio_add((cd_ratio){1, 3}, (cd_ratio){-1, 3}, &r, &err), &err);
    assert_true(r.numerator == 0 && r.denominator == 1);
    assert_ok(cd_ratio_multiply((cd_ratio){INT64_MAX, 2}, (cd_ratio){2, INT64_MAX}, &r, &err),
              &err);
    assert_true(r.numerator == 1 && r.denominator == 1);
    assert_ok(cd_ratio_make(INT64_MIN, 2, &r, &err), &err);
    assert_true(r.numerator == INT64_MIN / 2 && r.denominator == 1);
}

TEST(ratio, overflow_is_refused_and_never_wraps)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_ratio r = {42, 1};
    assert_fails(cd_ratio_make(INT64_MIN, 1, &r, &err), CDDP_E_LIMIT, &err, "does not fit");
    assert_fails(cd_ratio_make(1, INT64_MIN, &r, &err), CDDP_E_LIMIT, &err, "does not fit");
    assert_fails(cd_ratio_make(1, 0, &r, &err), CDDP_E_ARG, &err, "divided by 0");
    assert_fails(cd_ratio_add((cd_ratio){INT64_MAX, 1}, (cd_ratio){1, 1}, &r, &err), CDDP_E_LIMIT,
                 &err, "+ 1/1");
    assert_fails(cd_ratio_add((cd_ratio){1, 4294967291}, (cd_ratio){1, 4294967279}, &r, &err),
                 CDDP_E_LIMIT, &err, "fit");
    assert_fails(cd_ratio_multiply((cd_ratio){INT64_C(1) << 32, 1}, (cd_ratio){INT64_C(1) << 31, 1},
                                   &r, &err),
                 CDDP_E_LIMIT, &err, "×");
    assert_fails(cd_ratio_multiply((cd_ratio){1, 3037000501}, (cd_ratio){1, 3037000499}, &r, &err),
                 CDDP_E_LIMIT, &err, "×");
    assert_true(r.numerator == 42);
}

TEST(ratio, a_double_stands_for_the_ratio_it_was_written_as)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_ratio r;
    for (int64_t q = 1; q < 400; q++)
        for (int64_t p = -40; p < 40; p++) {
            cd_ratio wanted;
            assert_ok(cd_ratio_make(p, q, &wanted, &err), &err);
            assert_ok(cd_ratio_of_double((double)p / (double)q, &r, &err), &err);
            assert_true(r.numerator == wanted.numerator && r.denominator == wanted.denominator);
        }
    static const struct {
        double value;
        int64_t numerator, denominator;
    } cases[] = {{0.1, 1, 10},
                 {1e-3, 1, 1000},
                 {3e-4, 3, 10000},
                 {0.9, 9, 10},
                 {0.999, 999, 1000},
                 {1e-8, 1, 100000000},
                 {0x1p-40, 1, INT64_C(1) << 40},
                 {0x1p53, INT64_C(1) << 53, 1},
                 {(double)(float)0.1, 13421773, 134217728}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%.17g", cases[i].value);
        assert_ok(cd_ratio_of_double(cases[i].value, &r, &err), &err);
        assert_true(r.numerator == cases[i].numerator && r.denominator == cases[i].denominator);
    }
    assert_fails(cd_ratio_of_double(NAN, &r, &err), CDDP_E_LIMIT, &err, "not a number");
    assert_fails(cd_ratio_of_double(1e300, &r, &err), CDDP_E_LIMIT, &err, "at most 2^53");
    assert_fails(cd_ratio_of_double(1e-300, &r, &err), CDDP_E_LIMIT, &err, "no ratio");
}

/* ---- forms ---- */

TEST(symbol, an_average_of_gradients_reads_as_what_it_is)
{
    fixture f = FIXTURE_INIT;
    printout p;
    cddp_tensor bucket = fresh(&f, 20), peer = fresh(&f, 20);
    cddp_tensor slice = cddp_tensor_slice(&bucket, 4, 12),
                peer_slice = cddp_tensor_slice(&peer, 4, 12);
    assert_ok(symbol()->fill(&bucket, 0, NULL, &f.err), &f.err);
    assert_ok(symbol()->fill(&peer, 0, NULL, &f.err), &f.err);
    write_atoms(&f, &slice, gradient(0, 0, 0));
    write_atoms(&f, &peer_slice, gradient(0, 1, 0));
    assert_ok(symbol()->multiply_reciprocal(&bucket, &bucket, 3, NULL, &f.err), &f.err);
    assert_ok(symbol()->divide(&peer, &peer, 3, NULL, &f.err), &f.err);
    assert_ok(symbol()->reduce(CDDP_RED_SUM, &bucket, &peer, NULL, &f.err), &f.err);
    assert_string_equal(content(&f, &bucket, &p),
                        "0: 0; 4: 1/3·g(conv1.weight)[0..11] rank 0 micro 0 step 2 + "
                        "1/3·g(conv1.weight)[0..11] rank 1 micro 0 step 2; 16: 0");
    assert_int_equal(cd_symbol_run_count(&bucket), 3);
    fixture_fini(&f);
}

TEST(symbol, stale_content_is_garbage_and_stays_visible)
{
    fixture f = FIXTURE_INIT;
    printout p;
    cddp_tensor t = fresh(&f, 10), part = cddp_tensor_slice(&t, 2, 3);
    write_atoms(&f, &part, gradient(1, 0, 0));
    assert_ok(symbol()->scale(&t, &t, 2, NULL, &f.err), &f.err);
    assert_string_equal(
        content(&f, &t, &p),
        "0: 2·garbage[0..1]; 2: 2·g(fc.bias)[0..2] rank 0 micro 0 step 2; 5: 2·garbage[5..9]");
    fixture_fini(&f);
}

TEST(symbol, a_dropped_doubled_or_misplaced_contribution_is_a_difference)
{
    fixture f = FIXTURE_INIT;
    cddp_tensor t = fresh(&f, 100), other = fresh(&f, 100);
    cd_symbol_difference d;
    /* not sorted */
    const cd_term terms[] = {{gradient(0, 1, 0), 0, 1, {1, 2}}, {gradient(0, 0, 0), 0, 1, {1, 2}}};
    const cd_form wanted = {2, terms};
    write_atoms(&f, &t, gradient(0, 0, 0));
    write_atoms(&f, &other, gradient(0, 1, 0));
    assert_ok(symbol()->reduce(CDDP_RED_SUM, &t, &other, NULL, &f.err), &f.err);
    assert_ok(symbol()->divide(&t, &t, 2, NULL, &f.err), &f.err);
    assert_ok(cd_symbol_compare(&t, &wanted, &d, &f.err), &f.err);
    assert_int_equal(d.index, -1);

    cddp_tensor one = cddp_tensor_slice(&t, 57, 1), twice = cddp_tensor_slice(&other, 57, 1);
    assert_ok(symbol()->axpy(&one, 0.5, &twice, NULL, &f.err), &f.err); /* doubled */
    assert_ok(cd_symbol_compare(&t, &wanted, &d, &f.err), &f.err);
    assert_int_equal(d.index, 57);
    assert_true(d.actual_count == 2 && d.actual[1].coefficient.numerator == 1 &&
                d.actual[1].coefficient.denominator == 1);
    assert_true(d.expected[1].coefficient.denominator == 2 && d.expected[1].element == 57);

    cddp_tensor moved = cddp_tensor_slice(&t, 0, 50), from = cddp_tensor_slice(&t, 1, 50);
    assert_ok(symbol()->copy(&moved, &from, NULL, &f.err), &f.err); /* shifted by one */
    assert_ok(cd_symbol_compare(&t, &wanted, &d, &f.err), &f.err);
    assert_int_equal(d.index, 0);
    assert_true(d.actual[0].element == 1 && d.expected[0].element == 0);
    fixture_fini(&f);
}

TEST(symbol, terms_that_cancel_disappear)
{
    fixture f = FIXTURE_INIT;
    printout p;
    cddp_tensor t = fresh(&f, 8), g = fresh(&f, 8);
    write_atoms(&f, &g, gradient(0, 0, 0));
    assert_ok(symbol()->copy(&t, &g, NULL, &f.err), &f.err);
    assert_ok(symbol()->axpy(&t, -1, &g, NULL, &f.err), &f.err);
    assert_string_equal(content(&f, &t, &p), "0: 0");
    fixture_fini(&f);
}

TEST(symbol, a_step_of_sgd_is_exact_in_decimal_learning_rates)
{
    fixture f = FIXTURE_INIT;
    printout p;
    cddp_tensor w = fresh(&f, 3), g = fresh(&f, 3);
    write_atoms(&f, &w, (cd_atom){.kind = CD_ATOM_PARAMETER, .source = 5});
    write_atoms(&f, &g, gradient(1, 2, 1));
    assert_ok(symbol()->axpy(&w, -0.1, &g, NULL, &f.err), &f.err);
    assert_string_equal(content(&f, &w, &p),
                        "0: -1/10·g(fc.bias)[0..2] rank 2 micro 1 step 2 + p(#5)[0..2] rank 0");
    fixture_fini(&f);
}

TEST(symbol, permuted_copies_come_back_and_content_is_canonical)
{
    fixture f = FIXTURE_INIT;
    printout p;
    cddp_tensor a = fixture_make(&f, symbol(), CDDP_F32, SIZES(2, 3, 4)),
                b = fixture_make(&f, symbol(), CDDP_F32, SIZES(2, 3, 4));
    cddp_tensor last = fixture_permuted(&b),
                c = fixture_make(&f, symbol(), CDDP_F32, SIZES(2, 3, 4));
    uint64_t da, dl, db;
    write_atoms(&f, &a, gradient(0, 0, 0));
    assert_ok(symbol()->copy(&last, &a, NULL, &f.err), &f.err);
    assert_string_equal(content(&f, &last, &p), "0: g(conv1.weight)[0..23] rank 0 micro 0 step 2");
    assert_ok(symbol()->digest(&a, &da, &f.err), &f.err);
    assert_ok(symbol()->digest(&last, &dl, &f.err), &f.err);
    assert_ok(symbol()->digest(&b, &db, &f.err), &f.err);
    assert_true(da == dl && da != db);
    assert_ok(symbol()->copy(&c, &last, NULL, &f.err), &f.err);
    assert_int_equal(cd_symbol_run_count(&c), 1);
    cd_symbol_difference d;
    assert_ok(cd_symbol_compare_views(&c, &a, &d, &f.err), &f.err);
    assert_int_equal(d.index, -1);
    assert_ok(cd_symbol_compare_views(&b, &a, &d, &f.err), &f.err);
    assert_int_equal(d.index, 1);
    fixture_fini(&f);
}

TEST(symbol, a_million_elements_are_a_few_runs)
{
    fixture f = FIXTURE_INIT;
    cddp_tensor t = fresh(&f, 1000000), g = fresh(&f, 250000);
    for (uint32_t i = 0; i < 4; i++) {
        cddp_tensor slice = cddp_tensor_slice(&t, i * 250000, 250000);
        write_atoms(&f, &g, gradient(i, 0, 0));
        assert_ok(symbol()->copy_many(symbol(), &(cddp_copy_pair){slice, g}, 1, CDDP_COPY_MULTIPLY,
                                      7, NULL, &f.err),
                  &f.err);
    }
    assert_int_equal(cd_symbol_run_count(&t), 4);
    for (int64_t i = 0; i < 1000000; i += 250000) { /* cut apart and written back: merges again */
        cddp_tensor left = cddp_tensor_slice(&t, i, 100), copy = cddp_tensor_slice(&g, 0, 100);
        assert_ok(symbol()->copy(&copy, &left, NULL, &f.err), &f.err);
        assert_ok(symbol()->fill(&left, 0, NULL, &f.err), &f.err);
        assert_ok(symbol()->copy(&left, &copy, NULL, &f.err), &f.err);
    }
    assert_int_equal(cd_symbol_run_count(&t), 4);
    fixture_fini(&f);
}

/* ---- numbers ---- */

TEST(symbol, numbers_are_written_reduced_and_read)
{
    fixture f = FIXTURE_INIT;
    cddp_tensor a = fixture_make(&f, symbol(), CDDP_I32, SIZES(5)),
                b = fixture_make(&f, symbol(), CDDP_I32, SIZES(5));
    cddp_tensor w = fixture_make(&f, symbol(), CDDP_I64, SIZES(5));
    static const struct {
        cddp_red_op op;
        int32_t wanted[5];
    } cases[] = {{CDDP_RED_SUM, {1, 2, 0, -1, 10}}, {CDDP_RED_MIN, {0, 1, 0, -3, 4}},
                 {CDDP_RED_MAX, {1, 1, 0, 2, 6}},   {CDDP_RED_PRODUCT, {0, 1, 0, -6, 24}},
                 {CDDP_RED_BOR, {1, 1, 0, -1, 6}},  {CDDP_RED_BAND, {0, 1, 0, 0, 4}},
                 {CDDP_RED_BXOR, {1, 0, 0, -1, 2}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int32_t got[5];
        fixture_write(&f, &a, (int32_t[]){1, 1, 0, 2, 6});
        fixture_write(&f, &b, (int32_t[]){0, 1, 0, -3, 4});
        assert_ok(symbol()->reduce(cases[i].op, &a, &b, NULL, &f.err), &f.err);
        fixture_read(&f, &a, got);
        cd_test_row("%s", cddp_red_op_name(cases[i].op));
        assert_memory_equal(got, cases[i].wanted, sizeof got);
    }
    int64_t wide[5];
    fixture_write(&f, &a, (int32_t[]){-7, 7, 8, 9, 10});
    assert_ok(symbol()->copy(&w, &a, NULL, &f.err), &f.err);
    assert_ok(symbol()->divide(&w, &w, 2, NULL, &f.err), &f.err);
    fixture_read(&f, &w, wide);
    assert_true(wide[0] == -3 && wide[1] == 3 && wide[2] == 4);
    fixture_fini(&f);
}

TEST(symbol, what_is_not_exact_or_not_linear_is_refused_and_changes_nothing)
{
    fixture f = FIXTURE_INIT;
    printout p;
    cddp_error *e = &f.err;
    cddp_tensor g = fresh(&f, 4), h = fixture_make(&f, symbol(), CDDP_F16, SIZES(4)),
                d = fixture_make(&f, symbol(), CDDP_F64, SIZES(4));
    cddp_tensor i = fixture_make(&f, symbol(), CDDP_I32, SIZES(4)),
                m = fixture_make(&f, symbol(), CDDP_F32, SIZES(2, 2));
    float values[4];
    double norm;
    write_atoms(&f, &g, gradient(0, 0, 0));
    assert_fails(symbol()->copy(&h, &g, NULL, e), CDDP_E_UNSUPPORTED, e,
                 "from f32 to f16 may round");
    assert_ok(symbol()->copy(&d, &g, NULL, e), e);
    assert_fails(symbol()->copy(&g, &d, NULL, e), CDDP_E_UNSUPPORTED, e, "from f64 to f32");
    assert_fails(symbol()->copy(&i, &g, NULL, e), CDDP_E_UNSUPPORTED, e, "from f32 to i32");
    assert_fails(symbol()->reduce(CDDP_RED_MAX, &g, &g, NULL, e), CDDP_E_UNSUPPORTED, e,
                 "max of g(#0)[0");
    assert_fails(symbol()->reduce(CDDP_RED_PRODUCT, &g, &g, NULL, e), CDDP_E_UNSUPPORTED, e,
                 "product");
    assert_fails(symbol()->reduce(CDDP_RED_AVG, &g, &g, NULL, e), CDDP_E_UNSUPPORTED, e, "avg");
    assert_fails(symbol()->matmul(&m, &(cddp_matmul){.a = &m, .b = &m}, NULL, e),
                 CDDP_E_UNSUPPORTED, e, "linear");
    assert_fails(symbol()->norm(&g, &norm, e), CDDP_E_UNSUPPORTED, e, "norm");
    assert_fails(symbol()->read(&g, values, sizeof values, e), CDDP_E_UNSUPPORTED, e,
                 "not a number");
    assert_fails(symbol()->read(&i, values, sizeof values, e), CDDP_E_UNSUPPORTED, e, "garbage[0]");
    assert_fails(symbol()->fill(&g, NAN, NULL, e), CDDP_E_LIMIT, e, "not a number");
    fixture_write(&f, &i, (int32_t[]){INT32_MAX, 1, 1, 1});
    assert_fails(symbol()->reduce(CDDP_RED_SUM, &i, &i, NULL, e), CDDP_E_LIMIT, e,
                 "4294967294 does not fit into i32");
    for (int n = 0; n < 3; n++) assert_ok(symbol()->scale(&g, &g, 0x1p20, NULL, e), e);
    assert_fails(symbol()->scale(&g, &g, 0x1p20, NULL, e), CDDP_E_LIMIT, e, "does not fit");
    assert_string_equal(content(&f, &g, &p),
                        "0: 1152921504606846976·g(conv1.weight)[0..3] rank 0 micro 0 step 2");
    cddp_tensor beyond = g;
    beyond.offset = 1;
    assert_fails(symbol()->fill(&beyond, 0, NULL, e), CDDP_E_ARG, e,
                 "elements 1…4 of a storage of 4");
    cddp_tensor expanded = cddp_tensor_slice(&g, 0, 2);
    expanded.strides[0] = 0;
    assert_fails(symbol()->fill(&expanded, 0, NULL, e), CDDP_E_ARG, e, "overlaps itself");
    fixture_fini(&f);
}

TEST(symbol, long_forms_are_cut_with_an_ellipsis_at_a_character)
{
    char text[64];
    cd_term terms[3] = {{gradient(0, 0, 0), 0, 1, {1, 3}},
                        {gradient(0, 1, 0), 0, 1, {-2, 3}},
                        {{0}, 0, 0, {5, 1}}};
    terms[2].atom.kind = CD_ATOM_ONE;
    for (size_t bytes = 8; bytes < sizeof text; bytes++) {
        memset(text, 'x', sizeof text);
        assert_true(cd_form_print(&(cd_form){3, terms}, 2, NULL, text, bytes) >= bytes);
        assert_true(strlen(text) < bytes);
        assert_string_equal(text + strlen(text) - strlen("…"), "…");
    }
    assert_int_equal(cd_form_print(&(cd_form){0, NULL}, 1, NULL, text, sizeof text), 1);
    assert_string_equal(text, "0");
}

/* ---- random programs against a dense model ---- */

enum { CELLS = 24, ATOMS = 2 * CELLS + 1, TENSORS = 3 };

/* Coefficient of g0[i], g1[i] and 1 for each element, over a common denominator that a short
** program cannot exceed. */
typedef struct model {
    int64_t at[TENSORS][CELLS][ATOMS];
} model;
#define DENOMINATOR INT64_C(720720)

static int64_t model_coefficient(const cd_symbol_difference *d, size_t i)
{
    const cd_term *t = &d->actual[i];
    assert_int_equal(DENOMINATOR % t->coefficient.denominator, 0);
    return t->coefficient.numerator * (DENOMINATOR / t->coefficient.denominator);
}

static void check_element(fixture *f, const cddp_tensor *t, int64_t index, const int64_t *wanted)
{
    int64_t got[ATOMS] = {0};
    cd_symbol_difference d;
    cddp_tensor one = cddp_tensor_slice(t, index, 1);
    const cd_term never = {gradient(99, 0, 0), 0, 0, {1, 1}};
    assert_ok(cd_symbol_compare(&one, &(cd_form){1, &never}, &d, &f->err), &f->err);
    assert_true(d.index == 0 && d.actual_count <= CD_FORM_TERMS_MAX);
    for (size_t i = 0; i < d.actual_count; i++) {
        const cd_atom *atom = &d.actual[i].atom;
        int64_t slot = atom->kind == CD_ATOM_ONE
                           ? 2 * CELLS
                           : (int64_t)atom->source * CELLS + d.actual[i].element;
        got[slot] = model_coefficient(&d, i);
    }
    assert_memory_equal(got, wanted, sizeof got);
}

typedef struct window {
    size_t tensor;
    int64_t start;
    bool backwards; /* stride -1 */
} window;

static cddp_tensor view_of(const cddp_tensor *tensors, window w, int64_t length)
{
    cddp_tensor v = cddp_tensor_slice(&tensors[w.tensor], w.start, length);
    if (!w.backwards) return v;
    v.offset += length - 1;
    v.strides[0] = -1;
    return v;
}

static int64_t cell_of(window w, int64_t length, int64_t i)
{
    return w.start + (w.backwards ? length - 1 - i : i);
}

static void random_step(fixture *f, cddp_tensor *tensors, model *m, cd_prng *prng)
{
    model before = *m;
    int64_t length = cd_prng_between(prng, 1, CELLS);
    window dw = {cd_prng_below(prng, TENSORS), cd_prng_between(prng, 0, CELLS - length),
                 cd_prng_chance(prng, 1, 4)};
    window sw = {cd_prng_below(prng, TENSORS), cd_prng_between(prng, 0, CELLS - length),
                 cd_prng_chance(prng, 1, 4)};
    cddp_tensor dst = view_of(tensors, dw, length), src = view_of(tensors, sw, length);
    int op = (int)cd_prng_below(prng, 5);
    if (op == 0) assert_ok(symbol()->copy(&dst, &src, NULL, &f->err), &f->err);
    if (op == 1) assert_ok(symbol()->reduce(CDDP_RED_SUM, &dst, &src, NULL, &f->err), &f->err);
    if (op == 2) assert_ok(symbol()->axpy(&dst, -2, &src, NULL, &f->err), &f->err);
    if (op == 3) write_atoms(f, &dst, gradient((uint32_t)cd_prng_below(prng, 2), 0, 0));
    if (op == 4) assert_ok(symbol()->fill(&dst, 1, NULL, &f->err), &f->err);
    for (int64_t i = 0; i < length; i++) {
        int64_t *to = m->at[dw.tensor][cell_of(dw, length, i)];
        const int64_t *from = before.at[sw.tensor][cell_of(sw, length, i)];
        for (int a = 0; a < ATOMS; a++) {
            if (op == 0) to[a] = from[a];
            if (op == 1) to[a] += from[a];
            if (op == 2) to[a] -= 2 * from[a];
            if (op == 3 || op == 4) to[a] = 0;
        }
        /* Which gradient was written is read back from the device, as the only thing that is. */
        if (op == 4) to[2 * CELLS] = DENOMINATOR;
    }
    if (op != 3) return;
    cd_symbol_difference d;
    cddp_tensor one = cddp_tensor_slice(&tensors[dw.tensor], cell_of(dw, length, 0), 1);
    assert_ok(cd_symbol_compare(&one, &(cd_form){0, NULL}, &d, &f->err), &f->err);
    for (int64_t i = 0; i < length; i++)
        m->at[dw.tensor][cell_of(dw, length, i)][(int64_t)d.actual[0].atom.source * CELLS + i] =
            DENOMINATOR;
}

TEST(symbol, random_programs_agree_with_a_dense_model)
{
    cd_prng prng = cd_prng_seed(cd_test_seed());
    static model m;
    for (int program = 0; program < 60; program++) {
        fixture f = FIXTURE_INIT;
        cddp_tensor tensors[TENSORS];
        memset(&m, 0, sizeof m);
        for (int t = 0; t < TENSORS; t++) {
            tensors[t] = fresh(&f, CELLS);
            assert_ok(symbol()->fill(&tensors[t], 0, NULL, &f.err), &f.err);
        }
        for (int step = 0; step < 12; step++) {
            cd_test_row("program %d step %d", program, step);
            random_step(&f, tensors, &m, &prng);
            for (int t = 0; t < TENSORS; t++) cd_symbol_storage_audit(tensors[t].storage);
        }
        for (int t = 0; t < TENSORS; t++)
            for (int64_t i = 0; i < CELLS; i++) check_element(&f, &tensors[t], i, m.at[t][i]);
        fixture_fini(&f);
    }
}

/* ---- memory ---- */

static cddp_status strided_sum(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    (void)argument;
    cddp_device mine = cd_device_with_allocator(symbol(), allocator);
    void *a = NULL, *b = NULL;
    cddp_status status = mine.allocate(&mine, CDDP_F32, 6, &a, err);
    if (status == CDDP_OK) status = mine.allocate(&mine, CDDP_F32, 6, &b, err);
    if (status == CDDP_OK) {
        cddp_tensor x = cddp_tensor_of(&mine, a, 0, CDDP_F32, (int64_t[]){2, 3}, 2);
        cddp_tensor y = cddp_tensor_of(&mine, b, 0, CDDP_F32, (int64_t[]){2, 3}, 2),
                    p = fixture_permuted(&y);
        cd_symbol_difference d;
        cd_atom atom = gradient(0, 0, 0);
        status = mine.fill(&x, 0.5, NULL, err);
        if (status == CDDP_OK) status = cd_symbol_write_atoms(&p, &atom, err);
        if (status == CDDP_OK) status = mine.axpy(&p, 0.25, &x, NULL, err);
        cd_symbol_storage_audit(a);
        cd_symbol_storage_audit(b);
        if (status == CDDP_OK) status = cd_symbol_compare_views(&x, &y, &d, err);
    }
    if (a != NULL) mine.release(&mine, CDDP_F32, 6, a);
    if (b != NULL) mine.release(&mine, CDDP_F32, 6, b);
    return status;
}

TEST(symbol, running_out_of_memory_leaves_nothing_behind_and_storage_whole)
{
    assert_true(cd_test_oom_loop(strided_sum, NULL) > 20);
}

TEST_MAIN()
