/* SPDX-License-Identifier: Apache-2.0 */
/* The promises of PowerSGD about one bucket, as numbers in the trace: nothing is lost, and the sent
** part is a projection.
**
** Error feedback (PSG-11) means, element by element,
**
**     gradient + old error  =  output + new error
**
** and therefore for the sums over a bucket too. Signs alternate by place, so that a value moved to
** a neighbour shows. The hook computes both sides separately, from its input and from its output
** and state. Each element is rounded twice: when the error is added and when the output is
** subtracted. Everything else is exact, because the result of the subtraction is stored. So the
** sums may differ by u·Σ|corrected| + u·Σ|new error| and twice the smallest step per element.
**
** Projection (PSG-11): the output P·Qᵀ is the projection of the ranks' mean A (gradients,
** corrected) on the columns of P, so Pᵀ·(A - P·Qᵀ) = 0. A is nowhere in one place, but the identity
** is linear in it: with signs w and v, fixed and arbitrary, so that no error is likely to cancel,
**
**     Σ over ranks  wᵀPᵀ·A_r·v   =   Σ over ranks  wᵀPᵀ·output·v     (the right sides are alike)
**
** where both sides may differ by what rounding leaves, per rank, of a matrix of n × m elements at
** rank r, u the unit roundoff:
**   A_rᵀ·P, its sum over W ranks and the division: (γ(n) + u + γ(W - 1) + u, and their products) ·
**       Σ|w||P|ᵀ|A_r||v|;
**   PᵀP = 1 but for the rounding of P: (2u + u², and n·r·2^-50 for Gram-Schmidt in f64) · r · Σ|Q|;
**   P·Qᵀ: (γ(r) + u) · Σ|w||P|ᵀ|P||Q|ᵀ|v|;
**   the smallest step for every product, and 2^-52 per operation of these sums themselves.
** Matrix products of 16-bit numbers are added up in f32 and rounded once, so that γ is f32's there.
** A column that was left out is zero in P and in Q, and drops out. With orthogonalization_epsilon
** the columns are shorter than 1, and there is no such identity.
**
** Losslessness: where the rank asked for is not below a side of the matrix, min(n, m) = k columns
** span all there is, and the output is A itself, in sums signed by place over the ranks. With δ =
** 2u + u² + n·k·2^-50 for the orthogonality of a factor, of norm at most 1.1, and c for the
** rounding of a product, its sum and the division,
**   n < m: P is square, ‖PPᵀ - 1‖ ≤ n·δ; m ≤ n: Q, where P began, is square, so A = (A·Q)·Qᵀ up to
**   m·δ; A·Q was rounded by c·√k, its columns lie in P's but for what Gram-Schmidt
**          leaves, n·k·2^-50, or takes for dependent, and P was rounded by u: another 3u·√k;
**   then A_rᵀ·P, summed and divided, and P·Qᵀ are rounded: c·√k and (γ(k) + u)·√k;
** each times 1.1³ at most and ‖A_r‖, of which every rank states its own; times √(n·m) for a sum of
** so many. A P of fewer columns than k says nothing, nor do factors whose k·δ is above 0.1. What A
** lacks is not known; and after a mean that lacked some, a warm start may lack what is there now.
**
** The uncompressed part comes back as the mean of what the ranks sent (cd_mean_law).
**
** Factors (PSG-07): what is drawn at random is drawn alike by all ranks. The first rank speaks for
** all: it states W times its signed sum, every rank its own, and the sums of both sides agree but
** for the rounding of W additions. A warm start begins with the very numbers that the round before
** ended with.
**
** Not here: who judges it (core/check/hook.c).
*/
#include "core/hooks/low_rank_parts.h"

#include "core/base/error.h"
#include "core/hooks/host.h"
#include "core/tensor/linalg.h"

#include <math.h>

static void add_errors(const cd_low_rank *s, const cddp_grad_bucket *bucket, cd_host_sums *sums)
{
    for (uint32_t k = 0; k < bucket->parameter_count; k++) {
        uint32_t parameter = bucket->parameter_ids[k];
        if (parameter >= s->slot_count || s->slots[parameter].error.device == NULL) continue;
        cd_host_add_all(sums, bucket->offsets[k], &s->slots[parameter].error);
    }
}

/* A law is stated where the host can look without waiting. */
static bool states_law(const cd_low_rank *s, const cddp_grad_bucket *bucket)
{
    return s->tracer != NULL && s->settings.error_feedback &&
           cd_host_can_look(bucket->buffer.device);
}

void cd_low_rank_law_begin(const cd_low_rank *s, cd_low_rank_job *job,
                           const cddp_grad_bucket *bucket)
{
    cd_host_sums in = {.count = 0};
    if (!states_law(s, bucket)) return;
    cd_host_add_all(&in, 0, &bucket->buffer);
    add_errors(s, bucket, &in);
    job->law_right = in.sum;
    job->law_magnitude = in.magnitude;
}

void cd_low_rank_law_end(const cd_low_rank *s, const cd_low_rank_job *job,
                         const cddp_grad_bucket *bucket)
{
    cd_host_sums owed = {.count = 0}, out = {.count = 0};
    if (!states_law(s, bucket)) return;
    add_errors(s, bucket, &owed);
    cd_host_add_all(&out, 0, &bucket->buffer);
    /* an overflow is I-RANGE's: this rank's, or another's that came back to it */
    if (!isfinite(job->law_right) || !isfinite(out.sum + owed.sum)) return;
    double unit = cd_host_unit(bucket->buffer.dtype), least = cd_host_least(bucket->buffer.dtype);
    double sums = 0x1p-52 * (double)(out.count + owed.count) *
                  (job->law_magnitude + out.magnitude + owed.magnitude);
    cddp_law law = {sizeof(cddp_law),
                    "gradient + old error = output + new error, signed sums over the bucket",
                    (int64_t)bucket->index,
                    out.sum + owed.sum,
                    job->law_right,
                    unit * (job->law_magnitude + owed.magnitude) + 2.0 * (double)out.count * least +
                        sums,
                    false};
    cddp_tracer_law(s->tracer, &law);
}

/* ---- what stays uncompressed ---- */

static bool states_rest(const cd_low_rank *s, const cd_low_rank_job *job,
                        const cddp_grad_bucket *bucket)
{
    return s->tracer != NULL && !s->batched && job->rest_count > 0 &&
           cd_host_can_look(bucket->buffer.device);
}

static void add_rest(const cd_low_rank_job *job, const cddp_grad_bucket *bucket, cd_host_sums *sums)
{
    for (uint32_t i = 0; i < job->rest_count; i++) {
        uint32_t k = job->rest[i];
        cddp_tensor slice =
            cddp_tensor_slice(&bucket->buffer, bucket->offsets[k], bucket->lengths[k]);
        cd_host_add_all(sums, bucket->offsets[k], &slice);
    }
}

void cd_low_rank_rest_begin(const cd_low_rank *s, cd_low_rank_job *job,
                            const cddp_grad_bucket *bucket)
{
    job->rest_sent = (cd_host_sums){.count = 0};
    if (states_rest(s, job, bucket)) add_rest(job, bucket, &job->rest_sent);
}

void cd_low_rank_rest_end(const cd_low_rank *s, const cd_low_rank_job *job,
                          const cddp_grad_bucket *bucket)
{
    if (!states_rest(s, job, bucket)) return;
    cd_host_sums has = {.count = 0};
    add_rest(job, bucket, &has);
    const cd_mean_law law = {(int64_t)bucket->index, s->world_size,   bucket->buffer.dtype,
                             bucket->buffer.dtype,   &job->rest_sent, &has};
    cd_mean_law_state(&law, s->tracer);
}

/* ---- factors ---- */

static bool states_factors(const cd_low_rank *s, const cd_low_rank_job *job)
{
    return s->tracer != NULL && job->matrix_count > 0 && cd_host_can_look(job->q.device);
}

static cd_host_sums sums_of_factor(const cd_low_rank_job *job, const cd_low_rank_matrix *m)
{
    cd_host_sums sums = {.count = 0};
    const cddp_tensor factor = cddp_tensor_slice(&job->q, m->q_at, m->columns * m->rank);
    /* the same places in every round, wherever the factor lies */
    cd_host_add_all(&sums, (int64_t)m->parameter << 32, &factor);
    return sums;
}

void cd_low_rank_factors_begin(cd_low_rank_job *job)
{
    job->drawn = (cd_host_sums){.count = 0};
    job->warm = job->warm_ended = 0;
    job->warm_count = 0;
}

void cd_low_rank_factor_begins(const cd_low_rank *s, cd_low_rank_job *job,
                               const cd_low_rank_matrix *m, bool is_drawn)
{
    if (!states_factors(s, job)) return;
    const cd_low_rank_slot *slot = &s->slots[m->parameter];
    const cd_host_sums sums = sums_of_factor(job, m);
    if (is_drawn) {
        job->drawn.sum += sums.sum;
        job->drawn.magnitude += sums.magnitude;
        job->drawn.count += sums.count;
    }
    if (!s->settings.warm_start || slot->ended_numel != m->columns * m->rank ||
        slot->ended_rank != m->rank || slot->q.dtype != job->q.dtype)
        return; /* another dtype: it was rounded since */
    job->warm += sums.sum;
    job->warm_ended += slot->ended;
    job->warm_count++;
}

void cd_low_rank_factors_end(const cd_low_rank *s, const cd_low_rank_job *job,
                             const cddp_grad_bucket *bucket)
{
    if (!states_factors(s, job)) return;
    const double ranks = s->world_size;
    if (job->drawn.count > 0) {
        const cddp_law alike = {sizeof(cddp_law),
                                "random factors are drawn alike, signed sums over the bucket",
                                (int64_t)bucket->index,
                                cddp_group_rank(s->group) == 0 ? ranks * job->drawn.sum : 0,
                                job->drawn.sum,
                                0x1p-52 * ranks * job->drawn.magnitude,
                                true};
        cddp_tracer_law(s->tracer, &alike);
    }
    if (job->warm_count == 0 || !isfinite(job->warm_ended)) return;
    const cddp_law warm = {
        sizeof(cddp_law),
        "a warm start begins where the last round ended, signed sums over the bucket",
        (int64_t)bucket->index,
        job->warm,
        job->warm_ended,
        0,
        false};
    cddp_tracer_law(s->tracer, &warm);
}

void cd_low_rank_factor_ended(cd_low_rank *s, const cd_low_rank_job *job,
                              const cd_low_rank_matrix *m)
{
    cd_low_rank_slot *slot = &s->slots[m->parameter];
    if (!states_factors(s, job)) return;
    slot->ended_numel = m->columns * m->rank;
    slot->ended_rank = m->rank;
    slot->ended = sums_of_factor(job, m).sum;
}

void cd_low_rank_factor_loaded(cd_low_rank_slot *slot, uint32_t parameter)
{
    cd_host_sums sums = {.count = 0};
    if (slot->q_numel == 0) return;
    cd_host_add_all(&sums, (int64_t)parameter << 32, &slot->q);
    slot->ended_numel = slot->q_numel;
    slot->ended_rank = slot->q_rank;
    slot->ended = sums.sum;
}

void cd_low_rank_factor_forget(cd_low_rank_slot *slot) { slot->ended_numel = slot->ended_rank = 0; }

/* ---- projection ---- */

static bool states_projection(const cd_low_rank *s, const cd_low_rank_job *job)
{
    return s->tracer != NULL && job->matrix_count > 0 && !(s->settings.epsilon > 0) &&
           cd_host_can_look(job->p.device);
}

typedef struct along {
    double sum, magnitude; /* wᵀPᵀ·matrix·v, and the same of absolute values */
} along;

static along along_p(const cddp_tensor *matrix, const cddp_tensor *p)
{
    int64_t rows = matrix->sizes[0], columns = matrix->sizes[1], rank = p->sizes[1];
    along a = {0, 0};
    for (int64_t i = 0; i < rows; i++) {
        double left = 0, left_magnitude = 0, right = 0, right_magnitude = 0;
        for (int64_t k = 0; k < rank; k++) {
            double x = cd_host_get(p, i * rank + k);
            left += cd_host_sign(k) * x;
            left_magnitude += fabs(x);
        }
        for (int64_t j = 0; j < columns; j++) {
            double x = cd_host_get(matrix, i * columns + j);
            right += cd_host_sign(j) * x;
            right_magnitude += fabs(x);
        }
        a.sum += left * right;
        a.magnitude += left_magnitude * right_magnitude;
    }
    return a;
}

/* γ(k) of a matrix product in this dtype, with the rounding of its result. */
static double product_rounding(cddp_dtype dtype, int64_t k)
{
    double unit = dtype == CDDP_F64 ? 0x1p-53 : 0x1p-24;
    return (double)k * unit / (1 - (double)k * unit) + cd_host_unit(dtype);
}

/* The rounding of a product of this many terms, its sum over the ranks and the division, relative
** to the sum of magnitudes. */
static double average_rounding(const cd_low_rank *s, cddp_dtype dtype, int64_t terms)
{
    double unit = cd_host_unit(dtype), ranks = (s->world_size - 1) * unit;
    return (1 + product_rounding(dtype, terms)) * (1 + ranks / (1 - ranks)) * (1 + unit) - 1;
}

/* The rounding of evaluating along_p. */
static double evaluation(const cd_low_rank_job *job, const cd_low_rank_matrix *m)
{
    return 0x1p-52 * (double)(m->rows + m->columns + m->rank + job->matrix_count);
}

/* The difference of PᵀP from 1, per element. */
static double orthogonality(const cddp_tensor *p, int64_t rank)
{
    double unit = cd_host_unit(p->dtype), n = (double)p->sizes[0];
    return 2 * unit + unit * unit + n * (double)rank * 0x1p-50 + 2 * n * cd_host_least(p->dtype);
}

/* ---- losslessness ---- */

static bool has_zero_column(const cddp_tensor *p)
{
    for (int64_t k = 0; k < p->sizes[1]; k++) {
        bool is_zero = true;
        for (int64_t i = 0; i < p->sizes[0]; i++)
            is_zero = is_zero && cd_host_get(p, i * p->sizes[1] + k) == 0;
        if (is_zero) return true;
    }
    return false;
}

static double whole_rounding(const cd_low_rank *s, const cd_low_rank_matrix *m,
                             const cddp_tensor *p, double norm)
{
    const double n = (double)m->rows, columns = (double)m->columns, k = fmin(n, columns),
                 root = sqrt(k), delta = orthogonality(p, (int64_t)k);
    const double least = cd_host_least(p->dtype), steps = 4 *
                                                          (n + columns + k + s->world_size + 2) *
                                                          sqrt(n * columns) * least * (1 + norm);
    const double sums =
        root * (average_rounding(s, p->dtype, m->rows) + product_rounding(p->dtype, (int64_t)k));
    double off = n * delta;
    if (columns <= n)
        off = columns * delta +
              root * (CD_ORTHONORMAL_DEPENDENT + n * k * 0x1p-50 + 3 * cd_host_unit(p->dtype) +
                      average_rounding(s, p->dtype, m->columns));
    if (!(k * delta <= 0.1) || has_zero_column(p)) return INFINITY;
    return sqrt(n * columns) * (1.1 * 1.1 * 1.1 * (off + sums) * norm + steps);
}

static void whole_begin(const cd_low_rank *s, cd_low_rank_job *job, const cd_low_rank_matrix *m,
                        const cddp_tensor *matrix, const cddp_tensor *p)
{
    double squares = 0;
    if (!m->is_whole) return;
    cd_host_add_all(&job->whole, m->at, matrix);
    for (int64_t i = 0; i < m->rows * m->columns; i++)
        squares += cd_host_get(matrix, i) * cd_host_get(matrix, i);
    job->whole_bound +=
        whole_rounding(s, m, p, sqrt(squares) * (1 + 0x1p-52 * (double)(m->rows * m->columns)));
}

static void whole_end(const cd_low_rank *s, const cd_low_rank_job *job,
                      const cddp_grad_bucket *bucket, const cd_host_sums *has)
{
    if (has->count == 0) return;
    const double magnitude = job->whole.magnitude + has->magnitude;
    /* where nothing is derived, two sums are no farther apart than all that is in them */
    double bound = (isinf(job->whole_bound) ? magnitude : job->whole_bound) +
                   0x1p-52 * (double)has->count * magnitude;
    /* an overflow is I-RANGE's */
    bool can_say = isfinite(job->whole.sum) && isfinite(has->sum) && bound >= 0;
    cddp_law law = {sizeof(cddp_law),
                    "at full rank nothing is lost: mean of gradient + error = output, signed sums "
                    "over the bucket",
                    (int64_t)bucket->index,
                    can_say ? has->sum : 0,
                    can_say ? job->whole.sum : 0,
                    can_say ? bound : INFINITY,
                    true};
    cddp_tracer_law(s->tracer, &law);
}

void cd_low_rank_projection_begin(const cd_low_rank *s, cd_low_rank_job *job,
                                  const cddp_grad_bucket *bucket)
{
    job->projected = job->projected_bound = job->whole_bound = 0;
    job->whole = (cd_host_sums){.count = 0};
    for (uint32_t i = 0; i < job->matrix_count && states_projection(s, job); i++) {
        const cd_low_rank_matrix *m = &job->matrices[i];
        cddp_tensor matrix = cd_low_rank_matrix_view(s, job, bucket, m),
                    p = cd_low_rank_p_view(job, m);
        along a = along_p(&matrix, &p);
        job->projected += a.sum;
        job->projected_bound +=
            (average_rounding(s, matrix.dtype, m->rows) + evaluation(job, m)) * a.magnitude;
        whole_begin(s, job, m, &matrix, &p);
    }
}

/* Σ|w||P|ᵀ|P||Q|ᵀ|v|, and Σ|Q|. */
static along magnitude_of_factors(const cddp_tensor *p, const cddp_tensor *q)
{
    int64_t rank = p->sizes[1];
    along a = {0, 0};
    for (int64_t k = 0; k < rank; k++) {
        double of_q = 0, of_p = 0;
        for (int64_t j = 0; j < q->sizes[0]; j++) of_q += fabs(cd_host_get(q, j * rank + k));
        for (int64_t i = 0; i < p->sizes[0]; i++) {
            double row = 0;
            for (int64_t l = 0; l < rank; l++) row += fabs(cd_host_get(p, i * rank + l));
            of_p += row * fabs(cd_host_get(p, i * rank + k));
        }
        a.magnitude += of_p * of_q;
        a.sum += of_q;
    }
    return a;
}

/* The rounding of the products and the orthogonalisation of one matrix, and of its evaluation
** here. */
static double matrix_rounding(const cd_low_rank_matrix *m, const cddp_tensor *p,
                              const cddp_tensor *q)
{
    double n = (double)m->rows, columns = (double)m->columns, r = (double)m->rank;
    along factors = magnitude_of_factors(p, q);
    double least = cd_host_least(p->dtype), steps = 4 * n * columns * r * least;
    return orthogonality(p, m->rank) * r * factors.sum +
           product_rounding(p->dtype, m->rank) * factors.magnitude + steps;
}

void cd_low_rank_projection_end(const cd_low_rank *s, const cd_low_rank_job *job,
                                const cddp_grad_bucket *bucket)
{
    if (!states_projection(s, job)) return;
    double right = 0, bound = job->projected_bound;
    cd_host_sums has = {.count = 0};
    for (uint32_t i = 0; i < job->matrix_count; i++) {
        const cd_low_rank_matrix *m = &job->matrices[i];
        cddp_tensor matrix = cd_low_rank_matrix_view(s, job, bucket, m),
                    p = cd_low_rank_p_view(job, m), q = cd_low_rank_q_view(job, m);
        along out = along_p(&matrix, &p);
        right += out.sum;
        if (m->is_whole) cd_host_add_all(&has, m->at, &matrix);
        bound += matrix_rounding(m, &p, &q) + evaluation(job, m) * out.magnitude;
    }
    /* an overflow is I-RANGE's */
    bool can_say = isfinite(job->projected) && isfinite(right) && bound >= 0;
    cddp_law law = {sizeof(cddp_law),
                    "Pᵀ·(mean of gradient + error) = Pᵀ·output, signed sums over the bucket",
                    (int64_t)bucket->index,
                    can_say ? job->projected : 0,
                    can_say ? right : 0,
                    can_say ? bound : INFINITY,
                    true};
    cddp_tracer_law(s->tracer, &law);
    whole_end(s, job, bucket, &has);
}
