/* SPDX-License-Identifier: Apache-2.0 */
/* The all-reduces of a hook, stage by stage: from what a rank knows before each stage follows what
** it must post, and from what came back follows the next stage. A hook that averages has one: it
** posts C ÷ W, and the sum is the result. PowerSGD:
**
**   leaves     Q of the last round, or drawn           → Q̃, orthonormal
**   posts P    C·Q̃, with the rank's own C              gives P: the sum of what the ranks posted
**              P̃, orthonormal
**   posts Q    Cᵀ·P̃                                    gives Q: likewise
**   returns    P̃·(Q ÷ W)ᵀ; what is not compressed is its own sum ÷ W. Q ÷ W is kept
**
** Note [Bounds of a stage] Every stage begins with numbers that are known to the bit: C, the random
** numbers, and what an all-reduce gave. So bounds do not add up over stages, and a bound is half a
** unit of the bucket's dtype and little more.
**
** A product of k terms is summed in the dtype, or in f32 where the dtype is narrower, then rounded.
** It is off by γ(k)·Σ|a||b| of the dtype of the sum, u·|a·b|, and η where it underflows. Here it is
** summed in f64, which is off by 2^-52·k·Σ|a||b|.
**
** Gram-Schmidt works in f64. A column of n elements, of which a part ρ is left when the columns
** before it are subtracted, is off by e = (2^-50·(n + 8) + Σ e of those before)/ρ per unit of
** length. So its element x is one of the numbers between the roundings of x - e and x + e. Almost
** always these are one number. Their distance δ enters the next product as Σ|a|·δ. A column is made
** zeros if less than 1e-10 of it is left. Near that bound the matrix is not judged in this round:
** the last digits decide.
**
** The all-reduces are sums. In any order the last addition is off by half a unit of the sum, and
** the W - 2 before it by γ(W - 2)·Σ|x|: partial sums are no larger. I-HOOK adds up what the ranks
** posted: of groups of elements, with weights from the plan's seed, and of single ones.
*/
#include "core/oracle/hook_law/state.h"

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/prng.h"
#include "core/oracle/emit.h"
#include "core/trace/tracer.h"

#include <math.h>
#include <string.h>

#define DEPENDENT 1e-10
#define GROUPS 4u /* of the elements of a factor, by their place */

typedef enum stage { STAGE_REST, STAGE_P, STAGE_Q, STAGE_MEAN } stage;

/* ---- what is compared ---- */

void cd_law_wrong_add(cd_law_wrong *b, int64_t element, double expected, double bound,
                      double actual)
{
    const double off = fabs(actual - expected);
    b->c.numel++;
    if (!isfinite(expected) || !isfinite(bound) || off <= bound) return; /* I-RANGE's */
    b->c.bad++;
    if (b->c.bad > 1 && off - bound <= b->excess) return;
    b->excess = off - bound;
    b->c.element = element;
    b->c.expected = expected;
    b->c.actual = actual;
    b->c.bound = bound;
}

void cd_law_wrong_emit(const cd_hook_law *law, uint32_t variable, const char *words,
                       cd_law_wrong *b)
{
    if (b->c.bad == 0) return;
    b->c.shape = CD_SHAPE_UNEXPLAINED;
    cd_text_format(b->c.words, sizeof b->c.words, "%s", words);
    cd_comparison_emit(&(cd_comparison_place){law->options.tracer, CD_LINK_LAW, (int32_t)variable,
                                              ""},
                       &b->c);
}

/* ---- an orthonormal basis ---- */

static double dot(const double *a, const double *b, int64_t rows, int64_t stride)
{
    double sum = 0;
    for (int64_t i = 0; i < rows; i++) sum += a[i * stride] * b[i * stride];
    return sum;
}

/* Column j of x loses what lies along the columns before it. Returns which part is left. */
static double subtract_columns(double *x, int64_t rows, int64_t columns, int64_t j)
{
    const double before = sqrt(dot(x + j, x + j, rows, columns));
    for (int pass = 0; pass < 2; pass++)
        for (int64_t k = 0; k < j; k++) {
            const double along = dot(x + k, x + j, rows, columns);
            for (int64_t i = 0; i < rows; i++) x[i * columns + j] -= along * x[i * columns + k];
        }
    /* NaN stays NaN */
    return before == 0 ? 0 : sqrt(dot(x + j, x + j, rows, columns)) / before;
}

/* x: (rows, columns), made orthonormal and rounded; off: the δ of each. False: no one can say. */
static bool make_basis(const cd_hook_law *law, cddp_dtype dtype, double *x, double *off,
                       int64_t rows, int64_t columns)
{
    double inherited = 0;
    for (int64_t j = 0; j < columns; j++) {
        const double left = subtract_columns(x, rows, columns, j);
        const bool is_zero = left <= DEPENDENT / 4;
        if (!isfinite(left) || (!is_zero && left < DEPENDENT * 4)) return false;
        const double length = sqrt(dot(x + j, x + j, rows, columns)),
                     error = is_zero ? 0 : (0x1p-50 * ((double)rows + 8) + inherited) / left;
        if (!(error < 0.01)) return false;
        inherited += error;
        for (int64_t i = 0; i < rows; i++)
            x[i * columns + j] = is_zero ? 0 : x[i * columns + j] / (length + law->hook.epsilon);
        for (int64_t i = 0; i < rows; i++) off[i * columns + j] = error;
    }
    for (int64_t i = 0; i < rows * columns; i++) {
        const double least = cd_law_round(dtype, x[i] - off[i]),
                     most = cd_law_round(dtype, x[i] + off[i]);
        x[i] = cd_law_round(dtype, x[i]);
        off[i] = fmax(x[i] - least, most - x[i]);
    }
    return true;
}

/* ---- a product ---- */

/* A sum of products, as it grows. */
typedef struct product {
    double sum, size, off; /* Σ a·b, Σ|a||b|, Σ|a|δ */
    int64_t terms;
} product;

static void product_add(product *p, double a, double b, double off)
{
    p->sum += a * b;
    p->size += fabs(a * b);
    p->off += fabs(a) * off;
    p->terms++;
}

/* See Note [Bounds of a stage] */
static double product_bound(cddp_dtype dtype, const product *p)
{
    const bool is_narrow = dtype == CDDP_F16 || dtype == CDDP_BF16;
    const cddp_dtype wide = is_narrow ? CDDP_F32 : dtype;
    const double summed =
        p->size * (cd_gamma(wide, (uint64_t)p->terms + 1) + 0x1p-52 * (double)(p->terms + 1)) +
        (double)p->terms * cd_dtype_underflow(wide) + p->off;
    const double bound =
        summed + cd_dtype_roundoff(dtype) * (fabs(p->sum) + summed) + cd_dtype_underflow(dtype);
    /* what may overflow is I-RANGE's */
    return isfinite(cd_dtype_round(dtype, fabs(p->sum) + bound)) ? bound : INFINITY;
}

/* ---- random numbers ---- */

static void draw_first(const cd_hook_law *law, const cd_law_flight *f, const cd_law_matrix *m,
                       double *q)
{
    cd_prng prng = cd_law_factor_stream(law, f, m);
    for (int64_t i = 0; i < m->columns * m->rank; i++)
        q[i] = cd_law_round(f->dtype, cd_law_draw_normal(&prng));
}

/* The last Q, and a trace of the first one, from a place on that each iteration draws. */
static void warm_begin(const cd_hook_law *law, const cd_law_flight *f, const cd_law_matrix *m,
                       double *q, double *first)
{
    const int64_t numel = m->columns * m->rank;
    const double trace = f->dtype == CDDP_F16 ? 0x1p-20 : 0x1p-100;
    const cd_prng seed = cd_prng_seed(law->hook.seed);
    cd_prng turns = cd_prng_split_index(&seed, "turn", f->iteration);
    const int64_t turn = numel > 0 ? (int64_t)cd_prng_below(&turns, (uint64_t)numel) : 0;
    memcpy(q, law->variables[m->variable].factor, (size_t)numel * sizeof *q);
    draw_first(law, f, m, first);
    for (int64_t i = 0; i < numel; i++)
        q[i] = cd_law_round(f->dtype,
                            q[i] + cd_law_round(f->dtype, trace * first[(i + turn) % numel]));
}

static bool continues(const cd_hook_law *law, const cd_law_matrix *m)
{
    const cd_law_variable *kept = &law->variables[m->variable];
    return law->hook.is_warm && kept->factor_numel == m->columns * m->rank &&
           kept->factor_rank == m->rank &&
           (!law->hook.is_batched || kept->factor_rebuilds == law->rebuilds);
}

/* ---- leaves ---- */

static cddp_status reserve(cd_hook_law *law, cd_law_flight *f, int64_t count, cddp_error *err)
{
    if (f->factor_room >= count && f->factors != NULL) return CDDP_OK;
    f->factors = cd_arena_array(&law->memory, (size_t)count + 1, sizeof *f->factors);
    f->factor_room = count;
    return CD_PASS(cd_arena_check(&law->memory, err, "the factors of a bucket"));
}

/* p, q, and what is uncompressed, each as it came; with the δ of the factors. */
static double *p_of(const cd_law_flight *f) { return f->factors; }
static double *p_off(const cd_law_flight *f) { return f->factors + f->p_numel; }
static double *q_of(const cd_law_flight *f) { return f->factors + 2 * f->p_numel; }
static double *q_off(const cd_law_flight *f) { return q_of(f) + f->q_numel; }
static double *rest_of(const cd_law_flight *f) { return q_of(f) + 2 * f->q_numel; }
static double *room_of(const cd_law_flight *f) { return rest_of(f) + f->rest_numel; }

cddp_status cd_law_begin_stages(cd_hook_law *law, const cd_law_bucket *b, cd_law_flight *f,
                                cddp_error *err)
{
    CD_TRY(cd_law_list_matrices(law, b, f, err));
    int64_t longest = f->p_numel > f->q_numel ? f->p_numel : f->q_numel;
    longest = longest > f->rest_numel ? longest : f->rest_numel;
    CD_TRY(reserve(law, f, 2 * f->p_numel + 2 * f->q_numel + f->rest_numel + longest, err));
    for (uint32_t i = 0; i < f->matrix_count; i++) {
        cd_law_matrix *m = &f->matrices[i];
        double *q = q_of(f) + m->q_at;
        /* a factor of which nothing is known, and after which no round is known either */
        const bool is_lost = law->variables[m->variable].is_factor_lost;
        m->is_continued = continues(law, m);
        if (m->is_continued)
            warm_begin(law, f, m, q, room_of(f));
        else
            draw_first(law, f, m, q);
        law->variables[m->variable].has_slot = true;
        m->is_known =
            !is_lost && make_basis(law, f->dtype, q, q_off(f) + m->q_at, m->columns, m->rank);
    }
    f->first_stage = law->hook.is_batched ? STAGE_P : STAGE_REST;
    f->turns = law->hook.is_followed ? 0 : STAGE_MEAN - f->first_stage;
    return CDDP_OK;
}

/* ranks: that average it; it is then as if nothing were compressed. */
cddp_status cd_law_begin_mean(cd_hook_law *law, cd_law_flight *f, cddp_error *err)
{
    f->rest_numel = f->numel;
    CD_TRY(reserve(law, f, 2 * f->numel, err));
    f->first_stage = STAGE_MEAN;
    f->turns = law->hook.is_followed ? 0 : 1;
    return CDDP_OK;
}

/* ---- what a rank posts ---- */

static int64_t numel_of(const cd_law_flight *f, stage s)
{
    return s == STAGE_P ? f->p_numel : s == STAGE_Q ? f->q_numel : f->rest_numel;
}

/* Element i, j of this rank's matrix; behind the bucket's end are zeros. */
static double element_of(const cd_law_flight *f, const cd_law_matrix *m, int64_t i, int64_t j)
{
    const int64_t at = m->at + i * m->columns + j;
    return at < f->numel ? f->share[at] : 0;
}

static void judge_posted(const cd_hook_law *law, const cd_law_flight *f, const cd_law_matrix *m,
                         bool is_p, const double *posted)
{
    const int64_t length = is_p ? m->rows : m->columns, terms = is_p ? m->columns : m->rows;
    const double *factor = is_p ? q_of(f) + m->q_at : p_of(f) + m->p_at,
                 *off = is_p ? q_off(f) + m->q_at : p_off(f) + m->p_at;
    cd_law_wrong b = {.c = {.element = -1}};
    if (!m->is_known) return;
    for (int64_t i = 0; i < length; i++)
        for (int64_t r = 0; r < m->rank; r++) {
            product p = {0, 0, 0, 0};
            for (int64_t k = 0; k < terms; k++)
                product_add(&p, is_p ? element_of(f, m, i, k) : element_of(f, m, k, i),
                            factor[k * m->rank + r], off[k * m->rank + r]);
            cd_law_wrong_add(&b, i * m->rank + r, p.sum, product_bound(f->dtype, &p),
                             posted[i * m->rank + r]);
        }
    cd_law_wrong_emit(law, m->variable,
                      is_p ? "the P it posts is not (gradient + error)·Q"
                           : "the Q it posts is not (gradient + error)ᵀ·P",
                      &b);
}

/* What averages divides first, or the sum. */
static void judge_divided(const cd_hook_law *law, const cd_law_flight *f, const double *posted)
{
    const double ranks = f->ranks != 0 ? f->ranks : law->options.world_size;
    cd_law_wrong b = {.c = {.element = -1}};
    for (int64_t i = 0; i < f->numel; i++) {
        const double x =
            law->hook.divides_after ? f->share[i] : cd_law_round(f->dtype, f->share[i] / ranks);
        cd_law_wrong_add(&b, i, x, 0, posted[i]);
    }
    cd_law_wrong_emit(law, f->first_variable,
                      law->hook.divides_after
                          ? "what it posts is not the gradient, cast to the wire"
                          : "what it posts is not the gradient ÷ ranks",
                      &b);
}

/* What an addition of element i may be off by, of which each rank states its part. The last one is
** off by half a unit of what came back; those before it, by roundings of partial sums. */
static double sum_bound(const cd_law_flight *f, uint32_t ranks, double posted, double came)
{
    if (ranks < 2) return 0;
    return cd_dtype_ulp(f->dtype, came) / 2 / ranks + cd_gamma(f->dtype, ranks - 2) * fabs(posted);
}

/* Elements whose sum is stated alone: the first, the last, and drawn ones. */
static int64_t choose_single(const cd_hook_law *law, const cd_law_flight *f, uint32_t k,
                             int64_t count)
{
    const uint64_t drawn = cd_hash_mix(cd_hash_mix(law->options.seed, f->iteration), k);
    if (k == 0) return 0;
    return k == 1 ? count - 1 : (int64_t)(drawn % (uint64_t)count);
}

/* Weighted sums over groups of elements, and a few single ones: what is posted, and what came
** back. */
static void state_sums(const cd_hook_law *law, const cd_law_bucket *b, const cd_law_flight *f,
                       stage s, const double *posted, const double *came)
{
    static const char *const texts[] = {
        [STAGE_REST] = "what is uncompressed comes back as the sum of what was posted",
        [STAGE_P] = "the factors P come back as the sum of those posted",
        [STAGE_Q] = "the factors Q come back as the sum of those posted",
        [STAGE_MEAN] = "shares come back as the sum of those posted"};
    const int64_t count = numel_of(f, s);
    const uint32_t ranks = f->ranks != 0 ? f->ranks : law->options.world_size,
                   first = CD_LAW_FACTORS + (uint32_t)s * 2 * GROUPS;
    for (uint32_t g = 0; g < 2 * GROUPS && count > 0; g++) {
        const bool is_single = g >= GROUPS;
        const int64_t from = is_single ? choose_single(law, f, g - GROUPS, count) : (int64_t)g,
                      step = is_single ? count : (int64_t)GROUPS;
        cd_law_sum sum = {0, 0, 0};
        for (int64_t i = from; i < count; i += step) {
            const double w = is_single ? 1 : cd_law_weight(law, first + g, i),
                         size = fabs(w * posted[i]) + fabs(w * came[i]) / ranks;
            sum.given += w * posted[i];
            sum.got += w * came[i];
            sum.bound += fabs(w) * sum_bound(f, ranks, posted[i], came[i]) +
                         (is_single ? 0x1p-50 : 0x1p-51 * (double)count) * size;
        }
        if (from < count) cd_law_state(law, b, f, first + g, texts[s], &sum);
    }
}

/* ---- turns ---- */

void cd_law_report_shape(const cd_hook_law *law, const cd_law_flight *f, const char *words,
                         int64_t expected, int64_t actual)
{
    cd_law_wrong b = {.c = {.element = -1}};
    const uint32_t variable = f->matrix_count > 0 ? f->matrices[0].variable : f->first_variable;
    cd_law_wrong_add(&b, 0, (double)expected, 0, (double)actual);
    cd_law_wrong_emit(law, variable, words, &b);
}

static void take_posted(cd_hook_law *law, cd_law_flight *f, stage s, const double *numbers)
{
    if (s == STAGE_MEAN) judge_divided(law, f, numbers);
    /* of STAGE_REST, I-HOOK holds the digest against the plan's */
    for (uint32_t i = 0; i < f->matrix_count && (s == STAGE_P || s == STAGE_Q); i++) {
        const cd_law_matrix *m = &f->matrices[i];
        judge_posted(law, f, m, s == STAGE_P, numbers + (s == STAGE_P ? m->p_at : m->q_at));
    }
    memcpy(room_of(f), numbers, (size_t)numel_of(f, s) * sizeof *numbers);
}

static void take_result(cd_hook_law *law, const cd_law_bucket *b, cd_law_flight *f, stage s,
                        const double *numbers)
{
    const double ranks = law->options.world_size;
    double *into = s == STAGE_P ? p_of(f) : s == STAGE_Q ? q_of(f) : rest_of(f);
    const int64_t count = numel_of(f, s);
    state_sums(law, b, f, s, room_of(f), numbers);
    memcpy(into, numbers, (size_t)count * sizeof *into);
    for (uint32_t i = 0; s == STAGE_P && i < f->matrix_count; i++) {
        cd_law_matrix *m = &f->matrices[i];
        const bool is_basis =
            make_basis(law, f->dtype, p_of(f) + m->p_at, p_off(f) + m->p_at, m->rows, m->rank);
        m->is_known = is_basis;
    }
    for (int64_t i = 0; s == STAGE_Q && i < count; i++)
        into[i] = cd_law_round(f->dtype, into[i] / ranks);
}

static uint32_t find_open(const cd_hook_law *law)
{
    for (uint32_t i = 0; i < law->flight_count; i++)
        if (law->flights[i].is_open) return i;
    return UINT32_MAX;
}

cddp_status cd_hook_law_travel(cd_hook_law *law, uint32_t bucket, bool is_result,
                               const cddp_tensor *numbers, cd_law_turn *turn, cddp_error *err)
{
    cd_law_flight *f = bucket < law->flight_count ? &law->flights[bucket] : NULL;
    *turn = (cd_law_turn){(int64_t)bucket, is_result};
    if (law->is_unnamed) return CDDP_OK;
    if (f == NULL || !f->is_open) {
        const uint32_t open = find_open(law);
        /* what was not read when it left is not looked for */
        if (!law->is_blind) turn->bucket = open != UINT32_MAX ? (int64_t)open : -1;
        return CDDP_OK;
    }
    if (f->turns == 0) return CDDP_OK;
    if (f->is_gathered) return CD_PASS(cd_law_take_gathered(law, f, is_result, numbers, turn, err));
    turn->is_result = f->posts > f->results;
    if (turn->is_result != is_result) return CDDP_OK;
    const uint32_t s = f->first_stage + (is_result ? f->results : f->posts);
    f->posts += !is_result;
    f->results += is_result;
    if (s >= f->first_stage + f->turns || !f->is_regular) return CDDP_OK;
    f->is_regular = cddp_tensor_numel(numbers) == numel_of(f, s);
    if (!f->is_regular) {
        cd_law_report_shape(law, f, "an all-reduce has another length than the plan's factors",
                            numel_of(f, s), cddp_tensor_numel(numbers));
        return CDDP_OK;
    }
    if (numel_of(f, s) == 0) return CDDP_OK;
    CD_TRY(cd_numbers_read(&law->numbers, numbers, err));
    const cd_law_bucket place = {.index = bucket, .generation = f->generation};
    if (is_result)
        take_result(law, &place, f, s, law->numbers.values);
    else
        take_posted(law, f, s, law->numbers.values);
    return CDDP_OK;
}

/* ---- returns ---- */

static void judge_result(const cd_hook_law *law, const cd_law_flight *f, const cd_law_matrix *m,
                         const double *result)
{
    const double *p = p_of(f) + m->p_at, *off = p_off(f) + m->p_at, *q = q_of(f) + m->q_at;
    cd_law_wrong b = {.c = {.element = -1}};
    if (!m->is_known) return;
    for (int64_t i = 0; i < m->rows; i++)
        for (int64_t j = 0; j < m->columns && m->at + i * m->columns + j < f->numel; j++) {
            product y = {0, 0, 0, 0};
            for (int64_t r = 0; r < m->rank; r++)
                product_add(&y, q[j * m->rank + r], p[i * m->rank + r], off[i * m->rank + r]);
            cd_law_wrong_add(&b, i * m->columns + j, y.sum, product_bound(f->dtype, &y),
                             result[m->at + i * m->columns + j]);
        }
    cd_law_wrong_emit(law, m->variable, "the result is not P·Qᵀ of what came back", &b);
}

/* What an all-reduce gave is the result, in the bucket's dtype. */
static void judge_whole(const cd_hook_law *law, const cd_law_bucket *b, const cd_law_flight *f,
                        const double *result)
{
    const double divisor = law->hook.divides_after ? law->options.world_size : 1;
    for (uint32_t v = 0; v < b->count; v++) {
        cd_law_wrong c = {.c = {.element = -1}};
        for (int64_t i = b->offsets[v]; i < b->offsets[v] + b->lengths[v]; i++) {
            const double x = cd_law_round(f->dtype, rest_of(f)[i] / divisor);
            cd_law_wrong_add(&c, i - b->offsets[v], cd_law_round(b->flat->dtype, x), 0, result[i]);
        }
        cd_law_wrong_emit(law, b->variables[v],
                          law->hook.divides_after
                              ? "the result is not the sum that came back ÷ ranks"
                              : "the result is not the average that came back",
                          &c);
    }
}

static void judge_rest(const cd_hook_law *law, const cd_law_bucket *b, const cd_law_flight *f,
                       const double *result)
{
    const double ranks = law->options.world_size;
    int64_t at = 0;
    for (uint32_t v = 0; v < b->count; v++) {
        cd_law_wrong c = {.c = {.element = -1}};
        if (cd_law_is_matrix(law, b, f, v)) continue;
        for (int64_t i = 0; i < b->lengths[v]; i++) {
            const double x = cd_law_round(f->dtype, rest_of(f)[at++] / ranks);
            cd_law_wrong_add(&c, i, x, 0, result[b->offsets[v] + i]);
        }
        cd_law_wrong_emit(law, b->variables[v],
                          "what it leaves uncompressed is not the sum that came back ÷ W", &c);
    }
}

static cddp_status keep_factor(cd_hook_law *law, const cd_law_flight *f, const cd_law_matrix *m,
                               cddp_error *err)
{
    cd_law_variable *kept = &law->variables[m->variable];
    const int64_t numel = m->columns * m->rank;
    if (kept->factor == NULL || kept->factor_room < numel) {
        kept->factor = cd_arena_array(&law->memory, (size_t)numel + 1, sizeof *kept->factor);
        CD_TRY(cd_arena_check(&law->memory, err, "the factor of variable %u", m->variable));
        kept->factor_room = numel;
    }
    memcpy(kept->factor, q_of(f) + m->q_at, (size_t)numel * sizeof *kept->factor);
    kept->factor_numel = numel;
    kept->factor_rank = m->rank;
    kept->factor_rebuilds = law->rebuilds;
    kept->is_factor_lost = false;
    return CDDP_OK;
}

/* Every all-reduce of the plan's hook was seen, and nothing else. */
static bool is_complete(const cd_hook_law *law, const cd_law_flight *f)
{
    if (f->posts == 0 && f->results == 0)
        CD_EMIT(law->options.tracer, unjudged, "the all-reduces of the comm hook were not observed",
                .link = CDDP_LINK_LAW, .count = 1);
    else if (f->posts != f->turns || f->results != f->turns)
        cd_law_report_shape(law, f, "it posts more or fewer all-reduces than the plan's hook",
                            f->turns, f->posts < f->results ? f->posts : f->results);
    return f->posts == f->turns && f->results == f->turns && f->is_regular;
}

cddp_status cd_law_end_stages(cd_hook_law *law, const cd_law_bucket *b, cd_law_flight *f,
                              const double *result, cddp_error *err)
{
    if (f->turns == 0) return CDDP_OK;
    if (f->is_gathered) return CD_PASS(cd_law_end_gathered(law, b, f, result, err));
    const bool is_whole = !law->is_unnamed && is_complete(law, f);
    for (uint32_t i = 0; i < f->matrix_count && !is_whole; i++)
        law->variables[f->matrices[i].variable].is_factor_lost = law->hook.is_warm;
    /* the state of an average is its iteration */
    law->is_lost = law->is_lost || (!is_whole && f->first_stage != STAGE_MEAN);
    if (law->is_unnamed)
        CD_EMIT(law->options.tracer, unjudged,
                "the all-reduces of a comm hook in the first pass of a static graph",
                .link = CDDP_LINK_LAW, .count = 1);
    if (f->first_stage != STAGE_MEAN) {
        law->elements_before += (uint64_t)f->numel;
        law->elements_after += (uint64_t)(f->rest_numel + f->p_numel + f->q_numel);
    }
    for (uint32_t i = 0; i < f->matrix_count && is_whole; i++) {
        judge_result(law, f, &f->matrices[i], result);
        if (law->hook.is_warm) CD_TRY(keep_factor(law, f, &f->matrices[i], err));
        if (!f->matrices[i].is_known)
            CD_EMIT(law->options.tracer, unjudged,
                    "columns of a factor of the comm hook are too close to dependent",
                    .link = CDDP_LINK_LAW, .count = 1);
    }
    if (is_whole && f->first_stage == STAGE_MEAN) judge_whole(law, b, f, result);
    if (is_whole && f->first_stage == STAGE_REST) judge_rest(law, b, f, result);
    return CDDP_OK;
}
