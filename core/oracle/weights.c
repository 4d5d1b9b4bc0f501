/* SPDX-License-Identifier: Apache-2.0 */
/* Weights by least squares. One unknown weight has a closed form, <x, e> / <x, x>. Several are
** solved by modified Gram-Schmidt, twice per column. A column that depends on the ones before it
** ends the search: its weight would be arbitrary. */
#include "core/oracle/weights.h"

#include "core/base/alloc.h"
#include "core/base/format.h"
#include "core/oracle/emit.h"
#include "core/oracle/numbers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define COLUMNS_MAX ((size_t)32)
#define ROWS_MAX ((size_t)1024) /* that are solved; every element is tested afterwards */
#define DENOMINATOR_MAX 64

/* The contributions of a rank (or all) at a micro-step (or all). */
typedef struct column {
    int64_t rank, micro; /* -1: all */
    double weight;
} column;

typedef struct problem {
    const cd_comparison *c;
    const cd_suspect *s;
    size_t count;
    column columns[COLUMNS_MAX];
} problem;

cd_fraction cd_fraction_near(double x)
{
    if (!isfinite(x) || fabs(x) > 1e6) return (cd_fraction){0, 0};
    for (int64_t q = 1; q <= DENOMINATOR_MAX; q++) {
        const double p = nearbyint(x * (double)q);
        if (fabs(x - p / (double)q) <= 1e-6 * fmax(1, fabs(x))) return (cd_fraction){(int64_t)p, q};
    }
    return (cd_fraction){0, 0};
}

static double value_of(const cd_suspect *s, const column *k, size_t i)
{
    const cd_locals *l = s->locals;
    double sum = 0;
    for (uint32_t r = 0; r < l->rank_count; r++) {
        if (k->rank >= 0 && k->rank != (int64_t)r) continue;
        for (uint32_t m = l->micro_first; m < l->micro_first + l->micro_count; m++)
            if (k->micro < 0 || k->micro == (int64_t)m)
                sum += cd_locals_get(l, r, m, s->parameter)[i];
    }
    return sum;
}

/* What the weighted contributions may round to: the comparison's own bound, one rounding for each
** contribution on either side, and the last two. */
static double slack_of(const problem *x, size_t i, double candidate)
{
    const cd_locals *l = x->s->locals;
    double heaviest = 1;
    for (size_t k = 0; k < x->count; k++) heaviest = fmax(heaviest, fabs(x->columns[k].weight));
    const double parts = (double)l->rank_count * l->micro_count;
    const double magnitude = l->magnitudes[l->offsets[x->s->parameter] + i] * heaviest;
    return x->c->bound + 2 * cd_dtype_ulp(x->s->dtype, candidate) +
           2 * (parts + 1) *
               ldexp(magnitude / (double)x->s->divisor, -cd_dtype_precision(x->s->dtype));
}

/* Whether the weights give the wrong values on every element, and the right weights do not. */
static bool fits(const problem *x)
{
    bool differs = false;
    for (size_t i = 0; i < x->c->numel; i++) {
        double candidate = x->s->expected[i];
        for (size_t k = 0; k < x->count; k++)
            candidate += (x->columns[k].weight - 1) * value_of(x->s, &x->columns[k], i) /
                         (double)x->s->divisor;
        const double slack = slack_of(x, i, candidate);
        if (!(fabs(x->s->actual[i] - candidate) <= slack)) return false;
        differs = differs || fabs(x->s->actual[i] - x->s->expected[i]) > slack;
    }
    return differs;
}

static double error_of(const problem *x, size_t i)
{
    return (x->s->actual[i] - x->s->expected[i]) * (double)x->s->divisor;
}

/* Simple fractions where they fit, else the weights as they are, which need more elements. */
static bool fits_rounded(problem *x, size_t rows)
{
    problem rounded = *x;
    for (size_t k = 0; k < x->count; k++) {
        const cd_fraction f = cd_fraction_near(x->columns[k].weight);
        if (f.denominator > 0)
            rounded.columns[k].weight = (double)f.numerator / (double)f.denominator;
    }
    if (rows > x->count && fits(&rounded)) {
        *x = rounded;
        return true;
    }
    return rows > x->count + 1 && fits(x);
}

static bool fit_one(problem *x, const column *candidate)
{
    double squares = 0, product = 0;
    size_t rows = 0;
    for (size_t i = 0; i < x->c->numel; i++) {
        const double v = value_of(x->s, candidate, i);
        squares += v * v;
        product += v * error_of(x, i);
        rows += v != 0;
    }
    if (!(squares > 0) || !isfinite(product / squares) || fabs(product / squares) < 1e-3)
        return false;
    x->count = 1;
    x->columns[0] = *candidate;
    x->columns[0].weight = 1 + product / squares;
    return fits_rounded(x, rows);
}

/* ---- several ---- */

static double dot(const double *a, const double *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += a[i] * b[i]; /* in order */
    return sum;
}

/* basis: (count · rows) the columns, replaced by an orthonormal basis; target: (rows), replaced by
** what is left of it. */
static bool solve(problem *x, double *basis, double *target, size_t rows)
{
    double upper[COLUMNS_MAX][COLUMNS_MAX] = {{0}}, right[COLUMNS_MAX];
    for (size_t j = 0; j < x->count; j++) {
        double *v = basis + j * rows;
        const double before = sqrt(dot(v, v, rows));
        for (int pass = 0; pass < 2; pass++)
            for (size_t k = 0; k < j; k++) {
                const double *q = basis + k * rows, share = dot(q, v, rows);
                upper[k][j] += share;
                for (size_t i = 0; i < rows; i++) v[i] -= share * q[i];
            }
        upper[j][j] = sqrt(dot(v, v, rows));
        if (!(upper[j][j] > 1e-7 * before)) return false;
        for (size_t i = 0; i < rows; i++) v[i] /= upper[j][j];
        right[j] = dot(v, target, rows);
        for (size_t i = 0; i < rows; i++) target[i] -= right[j] * v[i];
    }
    for (size_t j = x->count; j-- > 0;) {
        for (size_t k = j + 1; k < x->count; k++) right[j] -= upper[j][k] * right[k];
        right[j] /= upper[j][j];
        x->columns[j].weight = 1 + right[j];
    }
    return true;
}

/* Weights that are all equal are a ratio. Near to 1 what is left of each is rounding as well. */
static bool are_equal(const problem *x)
{
    double low = x->columns[0].weight, high = low;
    for (size_t k = 1; k < x->count; k++) {
        low = fmin(low, x->columns[k].weight);
        high = fmax(high, x->columns[k].weight);
    }
    const double off = fmax(fabs(low - 1), fabs(high - 1));
    return high - low <= (off < 1e-3 ? off : 1e-6);
}

static bool fit_many(problem *x)
{
    const size_t numel = x->c->numel, stride = numel / ROWS_MAX + 1,
                 rows = (numel - 1) / stride + 1;
    if (x->count < 2 || rows <= x->count) return false;
    const cddp_allocator *allocator = x->s->locals->arena.allocator;
    double *work = cd_allocate_array(allocator, (x->count + 1) * rows, sizeof *work);
    if (work == NULL) return false;
    double *target = work + x->count * rows;
    for (size_t i = 0; i < rows; i++) {
        for (size_t k = 0; k < x->count; k++)
            work[k * rows + i] = value_of(x->s, &x->columns[k], i * stride);
        target[i] = error_of(x, i * stride);
    }
    const bool is_found = solve(x, work, target, rows) && fits_rounded(x, rows) && !are_equal(x);
    cd_release(allocator, work, (x->count + 1) * rows * sizeof *work);
    return is_found;
}

/* Every rank, or every micro-step of every rank; false when they are too many. */
static bool take_columns(problem *x, bool per_micro)
{
    const cd_locals *l = x->s->locals;
    x->count = 0;
    for (uint32_t r = 0; r < l->rank_count; r++)
        for (uint32_t m = 0; m < (per_micro ? l->micro_count : 1); m++) {
            const column k = {r, per_micro ? (int64_t)(l->micro_first + m) : -1, 1};
            double most = 0;
            for (size_t i = 0; i < x->c->numel; i++) most = fmax(most, fabs(value_of(x->s, &k, i)));
            if (most == 0) continue;
            if (x->count == COLUMNS_MAX) return false;
            x->columns[x->count++] = k;
        }
    return true;
}

/* ---- words ---- */

static void print_weight(double weight, char text[32])
{
    const cd_fraction f = cd_fraction_near(weight);
    if (f.denominator > 1)
        snprintf(text, 32, "%lld/%lld", (long long)f.numerator, (long long)f.denominator);
    else
        snprintf(text, 32, "%s", cd_ratio_print(weight).text);
}

static void print_column(const column *k, char text[64])
{
    if (k->micro < 0)
        snprintf(text, 64, "rank %lld", (long long)k->rank);
    else if (k->rank < 0)
        snprintf(text, 64, "micro-step %lld of all ranks", (long long)k->micro);
    else
        snprintf(text, 64, "micro-step %lld of rank %lld", (long long)k->micro, (long long)k->rank);
}

static bool has_own_weight(const column *k) { return fabs(k->weight - 1) > 1e-6; }

static uint64_t samples_of(const cd_locals *l, uint32_t rank)
{
    uint64_t samples = 0;
    for (uint32_t m = l->micro_first; m < l->micro_first + l->micro_count; m++)
        samples += *cd_locals_samples(l, rank, m);
    return samples;
}

/* Whether the weights of ranks, which are not all equal, are in proportion to their samples. */
static bool is_by_samples(const problem *x)
{
    uint64_t all = 0;
    bool is_proportional = true;
    for (size_t k = 0; k < x->count; k++) {
        if (x->columns[k].micro >= 0) return false;
        all += samples_of(x->s->locals, (uint32_t)x->columns[k].rank);
    }
    for (size_t k = 0; k < x->count; k++) {
        const double share = (double)samples_of(x->s->locals, (uint32_t)x->columns[k].rank) *
                             (double)x->count / (double)all;
        is_proportional = is_proportional && fabs(x->columns[k].weight - share) <= 1e-6;
    }
    return is_proportional && all > 0;
}

/* Whether the weights are 1 and 0; in *left: the only column that is left, or NULL. */
static bool is_subset(const problem *x, const column **left)
{
    size_t count = 0, seen = 0;
    for (size_t k = 0; k < x->count; k++) {
        const column *c = &x->columns[k];
        if (has_own_weight(c) && fabs(c->weight) > 1e-6) break;
        seen++;
        if (has_own_weight(c)) continue;
        *left = c;
        count++;
    }
    if (count != 1 || seen < x->count) *left = NULL;
    return seen == x->count;
}

static void list_weights(const problem *x, cd_weights *found)
{
    size_t used = strlen(found->words), named = 0, left = 0;
    for (size_t k = 0; k < x->count; k++) {
        char what[64], weight[48] = "";
        if (!has_own_weight(&x->columns[k])) continue;
        if (named == 4) {
            left++;
            continue;
        }
        print_column(&x->columns[k], what);
        if (!found->is_missing) {
            cd_text_format(weight, sizeof weight, " counts ");
            print_weight(x->columns[k].weight, weight + strlen(weight));
        }
        cd_text_format(found->words + used, sizeof found->words - used, "%s%s%s",
                       named++ > 0 ? ", " : "", what, weight);
        used = strlen(found->words);
    }
    if (left > 0)
        cd_text_format(found->words + used, sizeof found->words - used, " (and %zu more)", left);
}

static void describe_many(const problem *x, cd_weights *found)
{
    const column *left = NULL;
    char what[64];
    found->is_missing = is_subset(x, &left);
    if (is_by_samples(x)) {
        cd_text_format(found->words, sizeof found->words,
                       "every rank is weighted by its own number of samples");
    } else if (left != NULL) {
        print_column(left, what);
        cd_text_format(found->words, sizeof found->words, "nothing but %s is in it", what);
    } else {
        if (found->is_missing) cd_text_format(found->words, sizeof found->words, "missing ");
        list_weights(x, found);
    }
}

/* False where it is 1 but for rounding: that explains nothing. */
static bool describe_ratio(const problem *x, cd_weights *found)
{
    double sum = 0;
    for (size_t k = 0; k < x->count; k++) sum += x->columns[k].weight;
    found->weight = sum / (double)x->count;
    cd_text_format(found->words, sizeof found->words, "ratio %s on every element",
                   cd_ratio_print(found->weight).text);
    return fabs(found->weight - 1) > 5e-7;
}

/* Names the rank, and the micro-step, where all weights other than 1 are of the same. */
static void find_source(const problem *x, cd_weights *found)
{
    bool is_first = true;
    for (size_t k = 0; k < x->count; k++) {
        const column *c = &x->columns[k];
        if (!has_own_weight(c)) continue;
        const uint32_t rank = (uint32_t)(c->rank + 1), micro = (uint32_t)(c->micro + 1);
        found->source_rank = is_first || found->source_rank == rank ? rank : 0;
        found->source_micro = is_first || found->source_micro == micro ? micro : 0;
        is_first = false;
    }
}

/* The first column of a kind that explains the values alone, and how many others do. */
static bool find_one(problem *x, bool per_rank, bool per_micro, cd_weights *found)
{
    const cd_locals *l = x->s->locals;
    uint32_t count = 0;
    problem first = *x;
    for (uint32_t r = 0; r < (per_rank ? l->rank_count : 1); r++)
        for (uint32_t m = 0; m < (per_micro ? l->micro_count : 1); m++) {
            const column k = {per_rank ? (int64_t)r : -1,
                              per_micro ? (int64_t)(l->micro_first + m) : -1, 1};
            if (!fit_one(x, &k)) continue;
            if (count++ == 0) first = *x;
        }
    if (count == 0) return false;
    char what[64], weight[32], others[64] = "";
    *x = first;
    print_column(&x->columns[0], what);
    print_weight(x->columns[0].weight, weight);
    if (count > 1)
        snprintf(others, sizeof others, "; %u others with another weight explain it as well",
                 count - 1);
    else
        find_source(x, found);
    found->weight = x->columns[0].weight;
    cd_text_format(found->words, sizeof found->words, "%s counts %s%s", what, weight, others);
    return true;
}

bool cd_weights_find(const cd_comparison *comparison, const cd_suspect *suspect, cd_weights *found)
{
    problem x = {.c = comparison, .s = suspect};
    *found = (cd_weights){0};
    if (suspect->locals == NULL || comparison->numel == 0) return false;
    const bool has_micros = suspect->locals->micro_count > 1;
    if (has_micros && find_one(&x, false, true, found)) return true;
    if (find_one(&x, true, false, found)) return true;
    if (has_micros && find_one(&x, true, true, found)) return true;
    bool is_found = take_columns(&x, false) && fit_many(&x);
    if (!is_found && has_micros) is_found = take_columns(&x, true) && fit_many(&x);
    if (!is_found) return false;
    if (are_equal(&x)) return describe_ratio(&x, found);
    find_source(&x, found);
    describe_many(&x, found);
    return true;
}
