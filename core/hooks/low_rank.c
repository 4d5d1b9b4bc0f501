/* SPDX-License-Identifier: Apache-2.0 */
/* PowerSGD, stage by stage. Per bucket in the compressed phase (PSG-06):
**
**   run      corrected = gradient + error; error = corrected   → all-reduce of the uncompressed
**            P = M·Q
**   stage_p  uncompressed ÷ W, back into the bucket            → all-reduce of P (never divided)
**   stage_q  orthogonalise P; Q = Mᵀ·P                         → all-reduce of Q
**   stage_m  Q ÷ W; M = P·Qᵀ; error -= M
**
** The three chained collectives are issued even when they are empty, so that all ranks issue the
** same. In the vanilla phase a bucket is divided and summed, exactly as in the allreduce hook.
**
** Invariants:
**   L1  a slot's error is what its gradient still owes: Σ outputs = Σ inputs - error, per parameter
**       (PSG-11);
**   L2  Q of a slot has the columns of its matrix and the rank it was made for, or is not there;
**   L3  the iteration grows by one per backward, on its last bucket (PSG-03).
**
** Deviations from PyTorch, on purpose: a zero column stays zero instead of becoming NaN (PSG-08);
** Gram-Schmidt in f64 for every rank and dtype; the padding of the batched form carries no
** error.
*/
#include "core/hooks/low_rank.h"

#include "cddp/device.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/prng.h"
#include "core/hooks/hook.h"
#include "core/hooks/low_rank_parts.h"
#include "core/hooks/points.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* far below half a unit of what a gradient leaves in Q, far above the smallest number */
#define TRACE 0x1p-100
#define TRACE_F16 0x1p-20 /* where numbers end at 2^-24 */

#define NO_SUCH "PyTorch has no such option"

static const cd_option option_table[] = {
    /* clang-format off */
    {"matrix_approximation_rank", CD_OPTION_COUNT, offsetof(cd_low_rank_settings, rank), 1, 4096, NULL},
    {"start_powerSGD_iter", CD_OPTION_COUNT, offsetof(cd_low_rank_settings, start), 0, 1e15, NULL},
    {"min_compression_rate", CD_OPTION_REAL, offsetof(cd_low_rank_settings, min_rate), 0, 1e9, NULL},
    {"use_error_feedback", CD_OPTION_FLAG, offsetof(cd_low_rank_settings, error_feedback), 0, 0, NULL},
    {"error_feedback", CD_OPTION_FLAG, offsetof(cd_low_rank_settings, error_feedback), 0, 0, NULL},
    {"warm_start", CD_OPTION_FLAG, offsetof(cd_low_rank_settings, warm_start), 0, 0, NULL},
    {"orthogonalization_epsilon", CD_OPTION_REAL, offsetof(cd_low_rank_settings, epsilon), 0, 1, NULL},
    {"random_seed", CD_OPTION_COUNT, offsetof(cd_low_rank_settings, seed), 0, 9e15, NULL},
    {"compression_stats_logging_frequency", CD_OPTION_COUNT, offsetof(cd_low_rank_settings, stats_every), 1, 1e15, NULL},
    {"batch_tensors_with_same_shape", CD_OPTION_FLAG, offsetof(cd_low_rank_settings, batch_same_shape), 0, 0, NULL},
    {"feedback_every_n_iters", CD_OPTION_COUNT, offsetof(cd_low_rank_settings, feedback_every), 1, 1e9, NULL},
    {"bytes_per_weight", CD_OPTION_REAL, offsetof(cd_low_rank_settings, bytes_per_weight), 0.125, 64, NULL},
    {"rank_schedule", CD_OPTION_TEXT, offsetof(cd_low_rank_settings, schedule), 0, 0, NULL},
    {"comm_device", CD_OPTION_TEXT, offsetof(cd_low_rank_settings, comm_device), 0, 0, NULL},
    {"update_state", CD_OPTION_REFUSED, 0, 0, 0, NO_SUCH "; the state is updated on every backward"},
    {"warm_up_beta_factor", CD_OPTION_REFUSED, 0, 0, 0, NO_SUCH "; start_powerSGD_iter is the step at which compression begins"},
    {"lr_scheduler", CD_OPTION_REFUSED, 0, 0, 0, NO_SUCH "; a hook has no learning rate, the optimizer has"},
    /* clang-format on */
};

/* "0:1/100:2/500:4": from iteration 100 on rank 2, and so on. Iterations grow. */
static cddp_status schedule_parse(cd_low_rank *s, cddp_error *err)
{
    uint64_t last = 0;
    for (const char *at = s->settings.schedule; *at != '\0';) {
        char *end = NULL;
        unsigned long long from = strtoull(at, &end, 10), rank = 0;
        bool ok = end != at && *end == ':';
        if (ok) {
            at = end + 1;
            rank = strtoull(at, &end, 10);
            ok = end != at && (*end == '/' || *end == '\0') && rank >= 1 && rank <= 4096;
        }
        if (!ok || (s->step_count > 0 && from <= last) || s->step_count == CD_LOW_RANK_STEPS_MAX)
            return cd_fail(err, CDDP_E_CONFIG,
                           "%s: rank_schedule=%s is not iteration:rank/iteration:rank… with "
                           "growing iterations",
                           s->name, s->settings.schedule);
        s->steps[s->step_count++] = (cd_low_rank_step){from, rank};
        last = from;
        at = *end == '/' ? end + 1 : end;
    }
    return CDDP_OK;
}

static cddp_status check_settings(cd_low_rank *s, const cddp_hook_context *context, cddp_error *err)
{
    const cd_low_rank_settings *o = &s->settings;
    if ((o->error_feedback || o->warm_start) && o->start <= 1)
        return cd_fail(err, CDDP_E_CONFIG,
                       "%s: start_powerSGD_iter is %" PRIu64
                       " and must be above 1 with error feedback or warm start: "
                       "buckets are rebuilt after the first iterations",
                       s->name, o->start);
    if (o->feedback_every > 1 && !o->error_feedback)
        return cd_fail(err, CDDP_E_CONFIG,
                       "%s: feedback_every_n_iters has no effect without error feedback", s->name);
    if (o->comm_device[0] != '\0' && strcmp(o->comm_device, "cpu") != 0)
        return cd_fail(err, CDDP_E_CONFIG,
                       "%s: comm_device=%s: tensors are reduced where they live", s->name,
                       o->comm_device);
    if (context->inner != NULL)
        return cd_fail(err, CDDP_E_CONFIG, "%s does not wrap another hook; got %s", s->name,
                       context->inner->name);
    return CD_PASS(schedule_parse(s, err));
}

cddp_status cd_low_rank_create(const cddp_hook_context *context, bool batched, void **self,
                               cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const char *name = batched ? "comm hook batched_powersgd" : "comm hook powersgd";
    cd_low_rank *s = cd_low_rank_make(context->allocator, name);
    if (s == NULL) return cd_fail_memory(err, "%s", name);
    s->batched = batched;
    s->tracer = context->tracer;
    s->group = context->group;
    s->model = cd_state_model_of(context);
    s->world_size = cddp_group_size(context->group);
    s->settings = (cd_low_rank_settings){.rank = 1,
                                         .start = 1000,
                                         .min_rate = 2,
                                         .error_feedback = true,
                                         .warm_start = true,
                                         .stats_every = 10000,
                                         .feedback_every = 1,
                                         .bytes_per_weight = 4};
    CD_TRY_OUT(cd_options_read(name, option_table, sizeof option_table / sizeof option_table[0],
                               context->options, &s->settings, err));
    CD_POINT_OPTIONS(context, option_table, sizeof option_table / sizeof option_table[0],
                     &s->settings);
    CD_TRY_OUT(check_settings(s, context, err));
    cd_options_report(option_table, sizeof option_table / sizeof option_table[0], &s->settings,
                      context->tracer);
    *self = s;
    return CDDP_OK;
out:
    cd_low_rank_destroy(s);
    return status;
}

static uint64_t rank_now(const cd_low_rank *s)
{
    uint64_t rank = s->settings.rank;
    for (uint32_t i = 0; i < s->step_count && s->steps[i].from <= s->iteration; i++)
        rank = s->steps[i].rank;
    return rank;
}

/* ---- matrices of a bucket ---- */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* PSG-05: is it worth it? */
static bool pays(const cd_low_rank *s, int64_t n, int64_t m, int64_t r)
{
    return (double)(n + m) * (double)r * s->settings.min_rate < (double)n * (double)m;
}

static bool same_shape(const cd_low_rank_matrix *a, const cd_low_rank_matrix *b)
{
    return a->rows == b->rows && a->columns == b->columns;
}

/* Groups of one shape stand together, in order of first appearance (PSG-06.2). */
static void group_shapes(cd_low_rank_job *job)
{
    for (uint32_t i = 1; i < job->matrix_count; i++) {
        uint32_t place = i;
        for (uint32_t j = 0; j < i; j++)
            if (same_shape(&job->matrices[j], &job->matrices[i])) place = j + 1;
        cd_low_rank_matrix moved = job->matrices[i];
        for (uint32_t k = i; k > place; k--) job->matrices[k] = job->matrices[k - 1];
        job->matrices[place] = moved;
    }
}

/* PSG-14: the whole bucket. */
static cd_low_rank_matrix square_of(const cd_low_rank *s, const cddp_grad_bucket *bucket)
{
    int64_t side = 0, numel = cddp_tensor_numel(&bucket->buffer);
    while (side * side < numel) side++;
    return (cd_low_rank_matrix){.parameter = bucket->parameter_ids[0],
                                .rows = side,
                                .columns = side,
                                .rank = least(side, (int64_t)rank_now(s)),
                                .is_whole = rank_now(s) >= (uint64_t)side};
}

/* The k-th gradient as a matrix; false where it travels as it is. */
static bool find_matrix(const cd_low_rank *s, const cddp_grad_bucket *bucket, uint32_t k,
                        cd_low_rank_matrix *m)
{
    const cddp_tensor *g = &bucket->gradients[k];
    int64_t numel = bucket->lengths[k], rows = g->dim_count > 0 ? g->sizes[0] : 1,
            columns = rows > 0 ? numel / rows : 0;
    if (g->dim_count <= 1) columns = 1;
    int64_t rank = least(least(rows, columns), (int64_t)rank_now(s));
    *m = (cd_low_rank_matrix){.parameter = bucket->parameter_ids[k],
                              .rows = rows,
                              .columns = columns,
                              .rank = rank,
                              .is_whole = rank_now(s) >= (uint64_t)least(rows, columns),
                              .at = bucket->offsets[k]};
    return numel > 0 && pays(s, rows, columns, rank);
}

static int64_t factor_elements(const cd_low_rank_matrix *m)
{
    return (m->rows + m->columns) * m->rank;
}

uint64_t cd_low_rank_promise(const void *self, const cddp_grad_bucket *bucket)
{
    const cd_low_rank *s = self;
    cd_low_rank_matrix m;
    int64_t sent = 0;
    if (s->iteration < s->settings.start) {
        sent = cddp_tensor_numel(&bucket->buffer);
    } else if (s->batched) {
        m = square_of(s, bucket);
        sent = factor_elements(&m);
    } else {
        for (uint32_t k = 0; k < bucket->parameter_count; k++)
            sent += find_matrix(s, bucket, k, &m) ? factor_elements(&m) : bucket->lengths[k];
    }
    return (uint64_t)sent * cddp_dtype_bytes(bucket->buffer.dtype);
}

static cddp_status split(cd_low_rank *s, cd_low_rank_job *job, const cddp_grad_bucket *bucket,
                         cddp_error *err)
{
    job->matrix_count = job->rest_count = 0;
    job->rest_numel = 0;
    if (s->batched) job->matrices[job->matrix_count++] = square_of(s, bucket);
    for (uint32_t k = 0; k < bucket->parameter_count && !s->batched; k++) {
        cd_low_rank_matrix m;
        if (find_matrix(s, bucket, k, &m)) {
            job->matrices[job->matrix_count++] = m;
        } else {
            job->rest[job->rest_count++] = k;
            job->rest_numel += bucket->lengths[k];
        }
    }
    if (s->settings.batch_same_shape) group_shapes(job);
    job->p_numel = job->q_numel = 0;
    for (uint32_t i = 0; i < job->matrix_count; i++) {
        cd_low_rank_matrix *m = &job->matrices[i];
        m->p_at = job->p_numel;
        m->q_at = job->q_numel;
        job->p_numel += m->rows * m->rank;
        job->q_numel += m->columns * m->rank;
    }
    CD_TRY(cd_low_rank_job_reserve(s, job, bucket, err));
    return CDDP_OK;
}

cddp_tensor cd_low_rank_matrix_view(const cd_low_rank *s, const cd_low_rank_job *job,
                                    const cddp_grad_bucket *bucket, const cd_low_rank_matrix *m)
{
    int64_t sizes[2] = {m->rows, m->columns};
    const cddp_tensor *flat = s->batched ? &job->square : &bucket->buffer;
    return cddp_tensor_of(flat->device, flat->storage, flat->offset + m->at, flat->dtype, sizes, 2);
}

static cddp_tensor factor_of(const cddp_tensor *memory, int64_t at, int64_t rows, int64_t rank)
{
    int64_t sizes[2] = {rows, rank};
    return cddp_tensor_of(memory->device, memory->storage, memory->offset + at, memory->dtype,
                          sizes, 2);
}

cddp_tensor cd_low_rank_p_view(const cd_low_rank_job *job, const cd_low_rank_matrix *m)
{
    return factor_of(&job->p, m->p_at, m->rows, m->rank);
}

cddp_tensor cd_low_rank_q_view(const cd_low_rank_job *job, const cd_low_rank_matrix *m)
{
    return factor_of(&job->q, m->q_at, m->columns, m->rank);
}

/* ---- error feedback ---- */

static bool feeds_back(const cd_low_rank *s)
{
    return s->settings.error_feedback &&
           (s->iteration - s->settings.start) % s->settings.feedback_every == 0;
}

/* Before compression: what is owed goes in, and the corrected gradient is what will be owed if
** nothing is sent. In iterations without feedback the debt only grows. */
static cddp_status errors_begin(cd_low_rank *s, const cddp_grad_bucket *bucket, cddp_error *err)
{
    const cddp_device *d = bucket->buffer.device;
    for (uint32_t k = 0; s->settings.error_feedback && k < bucket->parameter_count; k++) {
        cd_low_rank_slot *slot = NULL;
        cddp_tensor g = cddp_tensor_slice(&bucket->buffer, bucket->offsets[k], bucket->lengths[k]);
        CD_TRY(cd_low_rank_slot_find(s, bucket->parameter_ids[k], &g, &slot, err));
        if (feeds_back(s)) {
            CD_TRY(d->reduce(CDDP_RED_SUM, &g, &slot->error, NULL, err));
            CD_TRY(d->copy(&slot->error, &g, NULL, err));
        } else {
            CD_TRY(d->reduce(CDDP_RED_SUM, &slot->error, &g, NULL, err));
        }
    }
    return CDDP_OK;
}

static cddp_status errors_end(cd_low_rank *s, const cddp_grad_bucket *bucket, cddp_error *err)
{
    const cddp_device *d = bucket->buffer.device;
    for (uint32_t k = 0; s->settings.error_feedback && k < bucket->parameter_count; k++) {
        cd_low_rank_slot *slot = NULL;
        cddp_tensor out =
            cddp_tensor_slice(&bucket->buffer, bucket->offsets[k], bucket->lengths[k]);
        CD_TRY(cd_low_rank_slot_find(s, bucket->parameter_ids[k], &out, &slot, err));
        CD_TRY(d->axpy(&slot->error, -1.0, &out, NULL, err));
    }
    return CDDP_OK;
}

/* ---- factors ---- */

/* Says that a generator is about to be used: its state is what ranks must share. */
static void report_draw(const cd_low_rank *s, const char *label, int64_t stream,
                        const cd_prng *prng)
{
    const cddp_draw draw = {sizeof draw, label, stream, true,
                            cd_hash64(prng->state, sizeof prng->state, 0)};
    cddp_tracer_draw(s->tracer, &draw);
}

/* The first Q of a warm start stays known: see factor_begin. It is drawn again after a resume, from
** the same state, so every iteration that draws it is a stream. */
static cddp_status first_find(cd_low_rank *s, uint32_t parameter, const cddp_tensor *q,
                              cd_prng *prng, cddp_tensor *first, cddp_error *err)
{
    cd_low_rank_slot *slot = &s->slots[parameter];
    bool is_known = slot->first_numel == cddp_tensor_numel(q) && slot->first.device == q->device &&
                    slot->first.dtype == q->dtype;
    if (!is_known) {
        report_draw(s, "powersgd first factor", (int64_t)s->iteration << 24 | parameter, prng);
        CD_TRY(cd_low_rank_fill_normal(s, q, prng, err));
        CD_TRY(cd_low_rank_slot_keep_first(slot, q, err));
    }
    *first = cddp_tensor_of(slot->first.device, slot->first.storage, slot->first.offset,
                            slot->first.dtype, q->sizes, q->dim_count);
    return CDDP_OK;
}

/* The first Q, rotated by a number of elements that is drawn in each iteration. With constant
** columns, an error that waits while gradients are zero would only be sent along these columns. */
static cddp_status trace_add(const cd_low_rank *s, const cd_prng *prng, uint32_t parameter,
                             const cddp_tensor *q, const cddp_tensor *first, cddp_error *err)
{
    const double trace = q->dtype == CDDP_F16 ? TRACE_F16 : TRACE;
    cd_prng drawn = cd_prng_split_index(prng, "turn", s->iteration);
    report_draw(s, "powersgd turn", parameter, &drawn);
    const int64_t numel = cddp_tensor_numel(q),
                  turn = numel > 0 ? (int64_t)cd_prng_below(&drawn, (uint64_t)numel) : 0;
    const cddp_tensor head = cddp_tensor_slice(q, 0, numel - turn),
                      tail = cddp_tensor_slice(q, numel - turn, turn);
    const cddp_tensor from = cddp_tensor_slice(first, turn, numel - turn),
                      rest = cddp_tensor_slice(first, 0, turn);
    CD_TRY(q->device->axpy(&head, trace, &from, NULL, err));
    if (turn > 0) CD_TRY(q->device->axpy(&tail, trace, &rest, NULL, err));
    return CDDP_OK;
}

/* The first Q of a round: the last one when warm, else random normals that are equal on every rank.
**
** A column of the last Q is zero where nothing was sent, for example after a gradient of zeros. It
** would stay zero, and nothing would ever be sent along it again. So a small trace of the first Q
** is added to every last Q. It is too small to change nonzero numbers; where all are zero, it
** remains and gives orthonormal columns. So the code need not test for zeros, and need not wait for
** a device. */
static cddp_status factor_begin(cd_low_rank *s, cd_low_rank_job *job, const cd_low_rank_matrix *m,
                                cddp_error *err)
{
    cddp_tensor q = cd_low_rank_q_view(job, m), first;
    cd_low_rank_slot *slot = &s->slots[m->parameter];
    const bool kept = slot->q_numel == m->columns * m->rank && slot->q_rank == m->rank,
               is_warm = s->settings.warm_start;
    cd_prng seed = cd_prng_seed(s->settings.seed),
            prng = cd_prng_split_index(&seed, "powersgd", m->parameter);
    if (is_warm) {
        CD_TRY(first_find(s, m->parameter, &q, &prng, &first, err));
        CD_TRY(cd_low_rank_bring(s, &q, kept ? &slot->q : &first, err));
    } else if (kept) {
        CD_TRY(cd_low_rank_bring(s, &q, &slot->q, err));
    } else {
        prng = cd_prng_split_index(&prng, "iteration", s->iteration);
        report_draw(s, "powersgd factor", m->parameter, &prng);
        CD_TRY(cd_low_rank_fill_normal(s, &q, &prng, err));
    }
    cd_low_rank_factor_begins(s, job, m, !kept);
    if (is_warm && kept) CD_TRY(trace_add(s, &seed, m->parameter, &q, &first, err));
    CD_TRY(cd_low_rank_orthogonalize(s, &q, err));
    return CDDP_OK;
}

static cddp_status factor_end(cd_low_rank *s, const cd_low_rank_job *job,
                              const cd_low_rank_matrix *m, cddp_error *err)
{
    cd_low_rank_slot *slot = &s->slots[m->parameter];
    cd_low_rank_factor_ended(s, job, m);
    if (!s->settings.warm_start) {
        slot->q_numel = 0; /* a factor set from outside serves once */
        return CDDP_OK;
    }
    cddp_tensor q = cd_low_rank_q_view(job, m);
    CD_TRY(cd_low_rank_slot_keep_q(slot, &q, m->rank, err));
    return CDDP_OK;
}

static cddp_status multiply(const cddp_tensor *dst, cddp_matmul operands, cddp_error *err)
{
    CD_TRY(dst->device->matmul(dst, &operands, NULL, err));
    return CDDP_OK;
}

/* ---- stages ---- */

static cddp_status stage_p(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                           cddp_error *err);
static cddp_status stage_q(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                           cddp_error *err);
static cddp_status stage_m(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                           cddp_error *err);

static cddp_status rest_move(const cd_low_rank_job *job, const cddp_grad_bucket *bucket, bool back,
                             cddp_error *err)
{
    int64_t at = 0;
    for (uint32_t i = 0; i < job->rest_count; i++) {
        uint32_t k = job->rest[i];
        cddp_tensor inside =
            cddp_tensor_slice(&bucket->buffer, bucket->offsets[k], bucket->lengths[k]);
        cddp_tensor outside = cddp_tensor_slice(&job->uncompressed, at, bucket->lengths[k]);
        CD_TRY(
            inside.device->copy(back ? &inside : &outside, back ? &outside : &inside, NULL, err));
        at += bucket->lengths[k];
    }
    return CDDP_OK;
}

/* PSG-14: the bucket, then zeros, as a square. */
static cddp_status square_fill(const cd_low_rank_job *job, const cddp_grad_bucket *bucket,
                               cddp_error *err)
{
    const cddp_device *d = bucket->buffer.device;
    int64_t numel = cddp_tensor_numel(&bucket->buffer), total = cddp_tensor_numel(&job->square);
    cddp_tensor head = cddp_tensor_slice(&job->square, 0, numel),
                tail = cddp_tensor_slice(&job->square, numel, total - numel);
    CD_TRY(d->copy(&head, &bucket->buffer, NULL, err));
    CD_TRY(d->fill(&tail, 0.0, NULL, err));
    return CDDP_OK;
}

static cddp_status vanilla_run(cd_low_rank *s, cddp_grad_bucket *bucket, cddp_group *group,
                               cddp_future *future, cddp_error *err)
{
    if (bucket->is_last) s->iteration++;
    CD_TRY(
        bucket->buffer.device->divide(&bucket->buffer, &bucket->buffer, s->world_size, NULL, err));
    future->result = bucket->buffer;
    CD_TRY(cd_future_add_allreduce(future, bucket, &bucket->buffer, group, err));
    return CDDP_OK;
}

static cddp_status refuse_bucket(const cd_low_rank *s, const cddp_grad_bucket *bucket,
                                 cddp_error *err)
{
    CD_TRY(cd_hook_refuse_sparse(bucket, s->batched ? "batched_powersgd" : "powersgd", err));
    const cddp_device *d = bucket->buffer.device;
    if (!cd_host_can_look(d) && !(cd_host_is_away(d) && CD_DEVICE_HAS(d, orthonormalize)))
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "%s needs numbers in host memory, or a device that can orthonormalize; "
                       "bucket %u is on device %s",
                       s->name, bucket->index, d->name);
    if (!cddp_dtype_is_float(bucket->buffer.dtype) ||
        (bucket->parameter_count > 0 && bucket->gradients[0].dtype == CDDP_C64))
        return cd_fail(err, CDDP_E_UNSUPPORTED, "%s takes real gradients only; bucket %u holds %s",
                       s->name, bucket->index,
                       cddp_dtype_name(bucket->parameter_count > 0 ? bucket->gradients[0].dtype
                                                                   : bucket->buffer.dtype));
    return CDDP_OK;
}

cddp_status cd_low_rank_run(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                            cddp_future *future, cddp_error *err)
{
    cd_low_rank *s = self;
    cd_low_rank_job *job = NULL;
    CD_TRY(refuse_bucket(s, bucket, err));
    if (s->iteration < s->settings.start)
        return CD_PASS(vanilla_run(s, bucket, group, future, err));
    CD_TRY(cd_low_rank_job_find(s, bucket, &job, err));
    cd_low_rank_law_begin(s, job, bucket);
    CD_TRY(errors_begin(s, bucket, err));
    CD_TRY(split(s, job, bucket, err));
    if (job->matrix_count > 0)
        cddp_tracer_mark(s->tracer, "powersgd_compresses", job->matrix_count);
    if (s->batched)
        CD_TRY(square_fill(job, bucket, err));
    else
        CD_TRY(rest_move(job, bucket, false, err));
    cd_low_rank_rest_begin(s, job, bucket);
    cd_low_rank_factors_begin(job);
    for (uint32_t i = 0; i < job->matrix_count; i++) {
        const cd_low_rank_matrix *m = &job->matrices[i];
        CD_TRY(factor_begin(s, job, m, err));
        cddp_tensor matrix = cd_low_rank_matrix_view(s, job, bucket, m),
                    p = cd_low_rank_p_view(job, m), q = cd_low_rank_q_view(job, m);
        CD_TRY(multiply(&p, (cddp_matmul){.a = &matrix, .b = &q}, err));
    }
    cd_low_rank_factors_end(s, job, bucket);
    if (s->batched) {
        CD_TRY(cd_future_add_allreduce(future, bucket, &job->p, group, err));
        future->next = stage_q;
    } else {
        CD_TRY(cd_future_add_allreduce(future, bucket, &job->uncompressed, group, err));
        future->next = stage_p;
    }
    return CDDP_OK;
}

static cddp_status stage_p(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                           cddp_error *err)
{
    cd_low_rank *s = self;
    cd_low_rank_job *job = NULL;
    CD_TRY(cd_low_rank_job_find(s, bucket, &job, err));
    CD_TRY(job->uncompressed.device->divide(&job->uncompressed, &job->uncompressed, s->world_size,
                                            NULL, err));
    CD_TRY(rest_move(job, bucket, true, err));
    cd_low_rank_rest_end(s, job, bucket);
    CD_TRY(cd_future_add_allreduce(future, bucket, &job->p, s->group, err));
    future->next = stage_q;
    return CDDP_OK;
}

static cddp_status stage_q(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                           cddp_error *err)
{
    cd_low_rank *s = self;
    cd_low_rank_job *job = NULL;
    CD_TRY(cd_low_rank_job_find(s, bucket, &job, err));
    for (uint32_t i = 0; i < job->matrix_count; i++) {
        const cd_low_rank_matrix *m = &job->matrices[i];
        cddp_tensor matrix = cd_low_rank_matrix_view(s, job, bucket, m),
                    p = cd_low_rank_p_view(job, m), q = cd_low_rank_q_view(job, m);
        CD_TRY(cd_low_rank_orthogonalize(s, &p, err));
        CD_TRY(multiply(&q, (cddp_matmul){.a = &matrix, .b = &p, .a_transposed = true}, err));
    }
    cd_low_rank_projection_begin(s, job, bucket);
    CD_TRY(cd_future_add_allreduce(future, bucket, &job->q, s->group, err));
    future->next = stage_m;
    return CDDP_OK;
}

static void count_elements(cd_low_rank *s, const cd_low_rank_job *job,
                           const cddp_grad_bucket *bucket)
{
    s->elements_before += (uint64_t)cddp_tensor_numel(&bucket->buffer);
    s->elements_after += (uint64_t)(job->rest_numel + job->p_numel + job->q_numel);
    if (!bucket->is_last) return;
    s->iteration++;
    if (s->iteration % s->settings.stats_every != 0 || s->elements_after == 0) return;
    cd_low_rank_statistics reported = cd_low_rank_get_statistics(s);
    cddp_tracer_mark(s->tracer, "powersgd_compression_permille",
                     (int64_t)(1000 * s->elements_before / s->elements_after));
    cddp_tracer_mark(s->tracer, "powersgd_bytes_before", (int64_t)reported.bytes_before);
    cddp_tracer_mark(s->tracer, "powersgd_bytes_after", (int64_t)reported.bytes_after);
}

static cddp_status stage_m(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                           cddp_error *err)
{
    cd_low_rank *s = self;
    cd_low_rank_job *job = NULL;
    CD_TRY(cd_low_rank_job_find(s, bucket, &job, err));
    CD_TRY(job->q.device->divide(&job->q, &job->q, s->world_size, NULL, err));
    for (uint32_t i = 0; i < job->matrix_count; i++) {
        const cd_low_rank_matrix *m = &job->matrices[i];
        cddp_tensor matrix = cd_low_rank_matrix_view(s, job, bucket, m),
                    p = cd_low_rank_p_view(job, m), q = cd_low_rank_q_view(job, m);
        CD_TRY(multiply(&matrix, (cddp_matmul){.a = &p, .b = &q, .b_transposed = true}, err));
        CD_TRY(factor_end(s, job, m, err));
    }
    cd_low_rank_projection_end(s, job, bucket);
    if (s->batched) {
        cddp_tensor head = cddp_tensor_slice(&job->square, 0, cddp_tensor_numel(&bucket->buffer));
        CD_TRY(bucket->buffer.device->copy(&bucket->buffer, &head, NULL, err));
    }
    CD_TRY(errors_end(s, bucket, err));
    cd_low_rank_law_end(s, job, bucket);
    count_elements(s, job, bucket);
    future->result = bucket->buffer;
    return CDDP_OK;
}

cd_low_rank_statistics cd_low_rank_get_statistics(const void *self)
{
    const cd_low_rank *s = self;
    double weight = s->settings.bytes_per_weight;
    return (cd_low_rank_statistics){s->iteration, s->elements_before, s->elements_after,
                                    weight * (double)s->elements_before,
                                    weight * (double)s->elements_after};
}
