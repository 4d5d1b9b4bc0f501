/* SPDX-License-Identifier: Apache-2.0 */
/* What must be true of a bucket that PowerSGD compressed, whatever factors it drew.
**
** C is a rank's gradient with its error, A the mean of C over the ranks, Y what came back.
**
**   rank          Y has at most r independent rows
**   projection    Y = P·Pᵀ·A with orthonormal P, so (Y·w)ᵀ·(A - Y)·v = 0 for all w and v. The
**                 columns of Y are combinations of those of P, to which A - Y is orthogonal. It
**                 is also summed over all w = v = e_j
**   warm start    P spans A·Q, and the rows of the last Y span the same as Q. So for v = (last
**                 Y)ᵀ·w A·v lies among the columns of P, and A·v = Y·v
**   draw          where a round begins with random numbers, the same with v = Q·w, where Q is drawn
**                 from random_seed, the variable and the iteration
**
** A is linear in the ranks' C. So each rank states its part, and I-HOOK adds them up.
**
** Note [Bounds of a low rank] Norms are Frobenius. u is the roundoff of the bucket's dtype, d
** = γ(W + 1) of it: a product is rounded, W - 1 more are added, and the sum is divided. s is
** √r·γ(n + c + r) for the terms of a product. They count in f32 where the dtype is narrower,
** as matmul sums them there. M is the mean of ‖C‖ over the ranks.
**
** P is orthonormal and stored as P̃, so P̃ᵀP̃ = I + E with ‖E‖ ≤ 2·u·√r. Q̃ᵀ = P̃ᵀA + E_Qᵀ
** with ‖E_Q‖ ≤ (d + s)·M, as P does not lengthen. Ỹ = P̃Q̃ᵀ + E_Y with ‖E_Y‖ ≤ (u + s)·‖Y‖.
** With z = Ỹw this makes |zᵀ(A - Ỹ)v| ≤ ‖Y‖·‖w‖·‖v‖·M·B with B = d + 3·u + 2·u·√r + 4·s. For
** the sum over w = v = e_j it is the same with ‖w‖·‖v‖ = 1.
**
** Of a warm start the last Y is known to u + s. The basis of Q and P̃ are rounded, 2·u·√r
** each, and A·Q is known to (d + s)·M. So |uᵀ(A - Ỹ)v| ≤ ‖u‖·M·(‖v‖·B' + 2·δ) with B' = 2·d +
** u + 4·u·√r + 3·s and δ = ‖w‖·((u + s)·‖last Y‖ + t·8·√(c·r)) + 2^-30·‖v‖. Here t is the
** trace of the first factor that is added to every last one, and 2^-30 covers dependent
** columns.
**
** Products of two errors are covered by a factor 1 + 4·B. Each stored number may also
** underflow by η: (W + 3)·η for every element of P, Q and Y. A rank states its part of M, so
** bounds add up over the ranks.
*/
#include "core/oracle/hook_law/state.h"

#include "core/base/error.h"
#include "core/oracle/emit.h"
#include "core/tensor/math.h"
#include "core/trace/tracer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define RANK_MAX 8 /* greedy elimination proves nothing for more */

typedef cd_law_matrix matrix;

static matrix square_of(const cd_hook_law *law, const cd_law_bucket *b, const cd_law_flight *f)
{
    int64_t side = 0;
    const int64_t rank = (int64_t)cd_planned_rank(&law->hook, f->iteration);
    while (side * side < f->numel) side++;
    return (matrix){.variable = b->variables[0],
                    .rows = side,
                    .columns = side,
                    .rank = rank < side ? rank : side,
                    .whole = side > 0 ? f->numel / side : 0,
                    .part = side > 0 ? f->numel % side : 0};
}

static matrix matrix_of(const cd_hook_law *law, const cd_law_bucket *b, const cd_law_flight *f,
                        uint32_t place)
{
    const cddp_tensor *form = &law->options.forms[b->variables[place]];
    const int64_t numel = b->lengths[place], rows = form->dim_count > 0 ? form->sizes[0] : 1;
    matrix m = {.variable = b->variables[place],
                .at = b->offsets[place],
                .rows = rows,
                .columns = form->dim_count <= 1 || rows == 0 ? 1 : numel / rows,
                .rank = (int64_t)cd_planned_rank(&law->hook, f->iteration)};
    const int64_t least = m.rows < m.columns ? m.rows : m.columns;
    m.rank = m.rank < least ? m.rank : least;
    m.whole = rows;
    return m;
}

bool cd_law_is_matrix(const cd_hook_law *law, const cd_law_bucket *b, const cd_law_flight *f,
                      uint32_t place)
{
    if (!f->is_compressed) return false;
    if (law->hook.is_batched) return true;
    const matrix m = matrix_of(law, b, f, place);
    return b->lengths[place] > 0 && cd_planned_compresses(&law->hook, m.rows, m.columns, m.rank);
}

int64_t cd_law_low_rank_bytes(const cd_hook_law *law, const cd_law_bucket *b,
                              const cd_law_flight *f)
{
    int64_t sent = 0;
    const matrix square = square_of(law, b, f);
    if (law->hook.is_batched) sent = (square.rows + square.columns) * square.rank;
    for (uint32_t i = 0; i < b->count && !law->hook.is_batched; i++) {
        const matrix m = matrix_of(law, b, f, i);
        sent += cd_law_is_matrix(law, b, f, i) ? (m.rows + m.columns) * m.rank : b->lengths[i];
    }
    return sent * (int64_t)cddp_dtype_bytes(f->dtype);
}

/* Matrices of one shape stand together, in order of first appearance (PSG-06.2). */
static void group_shapes(cd_law_flight *f)
{
    for (uint32_t i = 1; i < f->matrix_count; i++) {
        const matrix moved = f->matrices[i];
        uint32_t place = i;
        for (uint32_t j = 0; j < i; j++)
            if (f->matrices[j].rows == moved.rows && f->matrices[j].columns == moved.columns)
                place = j + 1;
        for (uint32_t k = i; k > place; k--) f->matrices[k] = f->matrices[k - 1];
        f->matrices[place] = moved;
    }
}

cddp_status cd_law_list_matrices(cd_hook_law *law, const cd_law_bucket *b, cd_law_flight *f,
                                 cddp_error *err)
{
    if (f->matrices == NULL || f->matrix_room < b->count) {
        f->matrices = cd_arena_array(&law->memory, b->count, sizeof *f->matrices);
        CD_TRY(cd_arena_check(&law->memory, err, "%u matrices of a bucket", b->count));
        f->matrix_room = b->count;
    }
    f->matrix_count = 0;
    f->p_numel = f->q_numel = f->rest_numel = 0;
    if (law->hook.is_batched) f->matrices[f->matrix_count++] = square_of(law, b, f);
    for (uint32_t i = 0; i < b->count && !law->hook.is_batched; i++) {
        if (cd_law_is_matrix(law, b, f, i))
            f->matrices[f->matrix_count++] = matrix_of(law, b, f, i);
        else
            f->rest_numel += b->lengths[i];
    }
    if (law->hook.groups_shapes) group_shapes(f);
    for (uint32_t i = 0; i < f->matrix_count; i++) {
        matrix *m = &f->matrices[i];
        m->p_at = f->p_numel;
        m->q_at = f->q_numel;
        f->p_numel += m->rows * m->rank;
        f->q_numel += m->columns * m->rank;
    }
    return CDDP_OK;
}

cddp_status cd_law_correct(cd_hook_law *law, const cd_law_bucket *b, cd_law_flight *f,
                           cddp_error *err)
{
    for (uint32_t v = 0; law->hook.has_feedback && v < b->count; v++) {
        double *debt, *share = f->share + b->offsets[v];
        CD_TRY(cd_law_find_debt(law, b->variables[v], b->lengths[v], &debt, err));
        for (int64_t i = 0; i < b->lengths[v]; i++) {
            debt[i] = cd_law_round(f->dtype, share[i] + debt[i]);
            if (f->is_fed_back) share[i] = debt[i];
        }
    }
    return CDDP_OK;
}

/* ---- one matrix ---- */

/* Everything about a matrix that its sums need. */
typedef struct hand {
    const cd_hook_law *law;
    const cd_law_flight *flight;
    matrix m;
    const double *c, *y; /* first elements of the matrix in the share and in the result */
    double c_norm, y_norm;
    double u, b, warm; /* roundoff, B and B' of the bounds */
    double terms;      /* s of the bounds */
    double least, w;   /* what underflows; the world's size */
} hand;

static double norm_of(const double *x, int64_t count)
{
    double squares = 0; /* in order */
    for (int64_t i = 0; i < count; i++) squares += x[i] * x[i];
    return sqrt(squares);
}

static hand hand_of(const cd_hook_law *law, const cd_law_flight *f, const matrix *m,
                    const double *result)
{
    const bool is_narrow = f->dtype == CDDP_F16 || f->dtype == CDDP_BF16;
    const int64_t known = m->whole * m->columns + m->part;
    const uint32_t w = law->options.world_size;
    hand h = {.law = law, .flight = f, .m = *m, .c = f->share + m->at, .y = result + m->at};
    h.c_norm = norm_of(h.c, known);
    h.y_norm = norm_of(h.y, known);
    const double root = sqrt((double)m->rank), d = cd_gamma(f->dtype, w + 1u);
    const uint64_t terms = (uint64_t)(m->rows + m->columns + m->rank);
    h.u = cd_dtype_roundoff(f->dtype);
    h.terms = root * cd_gamma(is_narrow ? CDDP_F32 : f->dtype, terms);
    h.b = d + 3 * h.u + 2 * h.u * root + 4 * h.terms;
    h.warm = 2 * d + h.u + 4 * h.u * root + 3 * h.terms;
    h.b *= 1 + 4 * h.b;
    h.warm *= 1 + 4 * h.warm;
    h.least = cd_dtype_underflow(f->dtype) * (w + 3.0);
    h.w = w;
    return h;
}

/* Elements known of row i, where only columns that every row has may be used. */
static int64_t shared_columns(const matrix *m) { return m->part > 0 ? m->part : m->columns; }

static int64_t known_rows(const matrix *m) { return m->whole + (m->part > 0); }

/* Σ of all elements that two factors could leave at η. */
static double underflow_of(const hand *h)
{
    const double n = (double)h->m.rows, c = (double)h->m.columns, r = (double)h->m.rank;
    return h->least * (sqrt(n * r) + sqrt(c * r) + sqrt(n * c));
}

/* tr(Yᵀ·(A - Y)) over the columns that every row has. */
static cd_law_sum whole_projection(const hand *h)
{
    const int64_t columns = shared_columns(&h->m), rows = known_rows(&h->m);
    cd_law_sum sum = {0, 0, 0};
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            const double y = h->y[i * h->m.columns + j];
            sum.given += y * h->c[i * h->m.columns + j];
            sum.got += y * y;
        }
    sum.given /= h->w;
    sum.bound = h->y_norm * h->c_norm * h->b + (h->y_norm + h->c_norm) * underflow_of(h);
    sum.bound = sum.bound / h->w + 0x1p-50 * (double)(rows * columns) * h->y_norm * h->c_norm;
    return sum;
}

/* (Y·w)ᵀ·C·v and (Y·w)ᵀ·Y·v with weights w and v. */
static cd_law_sum drawn_projection(const hand *h)
{
    const int64_t columns = shared_columns(&h->m), rows = known_rows(&h->m);
    cd_law_sum sum = {0, 0, 0};
    double w_squares = 0, v_squares = 0;
    for (int64_t i = 0; i < rows; i++) {
        const double *c = h->c + i * h->m.columns, *y = h->y + i * h->m.columns;
        double z = 0, cv = 0, yv = 0;
        for (int64_t j = 0; j < columns; j++) {
            const double v = cd_law_weight(h->law, CD_LAW_PROJECTION + 1, j);
            z += y[j] * cd_law_weight(h->law, CD_LAW_PROJECTION, j);
            cv += c[j] * v;
            yv += y[j] * v;
        }
        sum.given += z * cv;
        sum.got += z * yv;
    }
    for (int64_t j = 0; j < columns; j++) {
        const double w = cd_law_weight(h->law, CD_LAW_PROJECTION, j),
                     v = cd_law_weight(h->law, CD_LAW_PROJECTION + 1, j);
        w_squares += w * w;
        v_squares += v * v;
    }
    const double scale = sqrt(w_squares * v_squares);
    sum.given /= h->w;
    sum.bound = scale * (h->y_norm * h->c_norm * h->b + (h->y_norm + h->c_norm) * underflow_of(h));
    sum.bound =
        sum.bound / h->w + 0x1p-50 * (double)(rows * columns) * scale * h->y_norm * h->c_norm;
    return sum;
}

/* uᵀ·C·v and uᵀ·Y·v for a v in the span of Q, of which `unknown` is not. */
static cd_law_sum spanned(const hand *h, const double *v, double unknown)
{
    const int64_t rows = h->m.whole, columns = h->m.columns;
    const double v_norm = norm_of(v, columns);
    cd_law_sum sum = {0, 0, 0};
    double u_squares = 0;
    for (int64_t i = 0; i < rows; i++) {
        const double u = cd_law_weight(h->law, CD_LAW_WARM + 1, i);
        u_squares += u * u;
        for (int64_t j = 0; j < columns; j++) {
            sum.given += u * h->c[i * columns + j] * v[j];
            sum.got += u * h->y[i * columns + j] * v[j];
        }
    }
    const double u_norm = sqrt(u_squares), lost = unknown + 0x1p-30 * v_norm;
    sum.given /= h->w;
    sum.bound = u_norm * (h->c_norm * (v_norm * h->warm + 2 * lost) + v_norm * underflow_of(h));
    sum.bound = sum.bound / h->w +
                0x1p-50 * (double)(rows * columns) * u_norm * v_norm * (h->c_norm + h->y_norm);
    return sum;
}

/* v is a sum of rows of the last result. */
static cd_law_sum warm_start(const hand *h, const cd_law_variable *kept, double *v)
{
    const int64_t rows = h->m.whole, columns = h->m.columns;
    const double r = (double)h->m.rank;
    const double trace = h->flight->dtype == CDDP_F16 ? 0x1p-20 : 0x1p-100;
    double w_squares = 0;
    memset(v, 0, (size_t)columns * sizeof *v);
    for (int64_t i = 0; i < rows; i++) {
        const double w = cd_law_weight(h->law, CD_LAW_WARM, i);
        w_squares += w * w;
        for (int64_t j = 0; j < columns; j++) v[j] += w * kept->last[i * columns + j];
    }
    return spanned(h, v,
                   sqrt(w_squares) * ((h->u + h->terms) * norm_of(kept->last, rows * columns) +
                                      trace * 8 * sqrt((double)columns * r) + underflow_of(h)));
}

/* Box and Muller, two uniforms to one number. */
double cd_law_draw_normal(cd_prng *prng)
{
    const double u = ((double)(cd_prng_next(prng) >> 11) + 1.0) * 0x1p-53,
                 v = (double)(cd_prng_next(prng) >> 11) * 0x1p-53;
    return sqrt(-2.0 * cd_log(u)) * cd_cospi(2.0 * v);
}

cd_prng cd_law_factor_stream(const cd_hook_law *law, const cd_law_flight *f, const matrix *m)
{
    const cd_prng seed = cd_prng_seed(law->hook.seed);
    const cd_prng prng = cd_prng_split_index(&seed, "powersgd", m->variable);
    return law->hook.is_warm ? prng : cd_prng_split_index(&prng, "iteration", f->iteration);
}

/* v is a sum of columns of the factor that the plan's random_seed draws for the variable. */
static cd_law_sum drawn_start(const hand *h, double *v)
{
    const int64_t columns = h->m.columns;
    cd_prng prng = cd_law_factor_stream(h->law, h->flight, &h->m);
    double squares = 0;
    for (int64_t j = 0; j < columns; j++) {
        v[j] = 0;
        for (int64_t k = 0; k < h->m.rank; k++) {
            const double x = cd_law_draw_normal(&prng), w = cd_law_weight(h->law, CD_LAW_DRAWN, k);
            v[j] += w * x;
            squares += w * w * x * x;
        }
    }
    return spanned(h, v, h->u * sqrt(squares) + underflow_of(h));
}

/* How many independent rows Y has, as far as rounding lets it be known; -1: not known. */
static int64_t count_rank(const hand *h, double *rows)
{
    const int64_t n = h->m.whole, c = h->m.columns;
    const double rounding = (h->u + h->terms) * h->y_norm + underflow_of(h),
                 growth = ldexp(sqrt((double)n), (int)h->m.rank);
    if (h->m.rank > RANK_MAX || !isfinite(h->y_norm)) return -1;
    memcpy(rows, h->y, (size_t)(n * c) * sizeof *rows);
    for (int64_t rank = 0;; rank++) {
        double largest = 0, left = 0;
        int64_t pivot = 0;
        for (int64_t i = 0; i < n; i++) {
            const double length = norm_of(rows + i * c, c);
            left += length * length;
            if (length > largest) {
                largest = length;
                pivot = i;
            }
        }
        if (sqrt(left) <= rounding * growth || rank > h->m.rank) return rank;
        const double *p = rows + pivot * c;
        for (int64_t i = 0; i < n; i++) {
            double along = 0;
            for (int64_t j = 0; i != pivot && j < c; j++) along += rows[i * c + j] * p[j];
            along /= largest * largest;
            for (int64_t j = 0; i != pivot && j < c; j++) rows[i * c + j] -= along * p[j];
        }
        memset(rows + pivot * c, 0, (size_t)c * sizeof *rows);
    }
}

static void report_rank(const cd_hook_law *law, const matrix *m, int64_t found)
{
    if (found < 0) return;
    const bool is_bad = found > m->rank;
    cd_comparison c = {.numel = (size_t)(m->rows * m->columns),
                       .bad = is_bad,
                       .element = is_bad ? 0 : -1,
                       .expected = (double)m->rank,
                       .actual = (double)found,
                       .shape = is_bad ? CD_SHAPE_UNEXPLAINED : CD_SHAPE_NONE};
    if (!is_bad) return;
    snprintf(c.words, sizeof c.words, "a matrix of %lld x %lld with more than rank %lld",
             (long long)m->rows, (long long)m->columns, (long long)m->rank);
    cd_comparison_emit(&(cd_comparison_place){law->options.tracer, CD_LINK_LAW,
                                              (int32_t)m->variable, ""},
                       &c);
}

/* ---- a bucket ---- */

typedef struct totals {
    cd_law_sum whole, drawn, warm, begun;
    uint32_t matrices, warm_matrices, begun_matrices;
} totals;

static void add_to(cd_law_sum *total, cd_law_sum part)
{
    total->given += part.given;
    total->got += part.got;
    total->bound += part.bound;
}

static bool is_warm(const cd_hook_law *law, const matrix *m)
{
    const cd_law_variable *kept = &law->variables[m->variable];
    return law->hook.is_warm && kept->last != NULL && kept->last_numel == m->whole * m->columns &&
           kept->last_rank == m->rank &&
           (!law->hook.is_batched || kept->last_layout == law->layouts);
}

static cddp_status keep_last(cd_hook_law *law, const matrix *m, const double *y, cddp_error *err)
{
    cd_law_variable *kept = &law->variables[m->variable];
    const int64_t numel = m->whole * m->columns;
    if (kept->last == NULL || kept->last_numel < numel) {
        kept->last = cd_arena_array(&law->memory, (size_t)numel + 1, sizeof *kept->last);
        CD_TRY(cd_arena_check(&law->memory, err, "the last result of variable %u", m->variable));
    }
    memcpy(kept->last, y, (size_t)numel * sizeof *y);
    kept->last_numel = numel;
    kept->last_rank = m->rank;
    kept->last_layout = law->layouts;
    return CDDP_OK;
}

static cddp_status judge_matrix(cd_hook_law *law, const cd_law_flight *f, const matrix *m,
                                const double *result, totals *t, cddp_error *err)
{
    double *room;
    const hand h = hand_of(law, f, m, result);
    CD_TRY(cd_law_reserve(law, (size_t)((m->whole + 1) * m->columns), &room, err));
    report_rank(law, m, count_rank(&h, room));
    if (law->hook.epsilon != 0) {
        CD_EMIT(law->options.tracer, unjudged,
                "with orthogonalization_epsilon the result is no projection", .link = CDDP_LINK_LAW,
                .count = 1);
        return CDDP_OK;
    }
    t->matrices++;
    add_to(&t->whole, whole_projection(&h));
    add_to(&t->drawn, drawn_projection(&h));
    if (is_warm(law, m)) {
        t->warm_matrices++;
        add_to(&t->warm, warm_start(&h, &law->variables[m->variable], room));
    } else if (!law->hook.is_followed &&
               (!law->hook.is_batched || law->variables[m->variable].last == NULL)) {
        t->begun_matrices++;
        add_to(&t->begun, drawn_start(&h, room));
    }
    return CD_PASS(keep_last(law, m, h.y, err));
}

static void pay_debts(cd_hook_law *law, const cd_law_bucket *b, const cd_law_flight *f,
                      const double *result)
{
    for (uint32_t v = 0; law->hook.has_feedback && v < b->count; v++) {
        double *debt = law->variables[b->variables[v]].debt;
        for (int64_t i = 0; i < b->lengths[v]; i++)
            debt[i] = cd_law_round(f->dtype, debt[i] - result[b->offsets[v] + i]);
    }
}

cddp_status cd_law_judge_low_rank(cd_hook_law *law, const cd_law_bucket *b, const cd_law_flight *f,
                                  const double *result, cddp_error *err)
{
    totals t = {.matrices = 0};
    if (law->hook.is_batched) {
        const matrix m = square_of(law, b, f);
        CD_TRY(judge_matrix(law, f, &m, result, &t, err));
    }
    for (uint32_t i = 0; i < b->count && !law->hook.is_batched; i++) {
        const matrix m = matrix_of(law, b, f, i);
        if (cd_law_is_matrix(law, b, f, i)) CD_TRY(judge_matrix(law, f, &m, result, &t, err));
    }
    pay_debts(law, b, f, result);
    if (t.matrices > 0) {
        cd_law_state(law, b, f, CD_LAW_PROJECTION, "the result is a projection of the mean",
                     &t.whole);
        cd_law_state(law, b, f, CD_LAW_PROJECTION + 1, "the result is a projection of the mean",
                     &t.drawn);
    }
    if (t.warm_matrices > 0)
        cd_law_state(law, b, f, CD_LAW_WARM, "a warm start begins where the last round ended",
                     &t.warm);
    if (t.begun_matrices > 0)
        cd_law_state(law, b, f, CD_LAW_DRAWN, "a round begins with the factor that its seed draws",
                     &t.begun);
    return CDDP_OK;
}
