/* SPDX-License-Identifier: Apache-2.0 */
/* Running statistics after a micro-step, by their definition, from the statistics that the second
** form of the model finds (core/oracle/second):
**
**     mean ← 0.9·mean + 0.1·m,  var ← 0.9·var + 0.1·Σ(x − m)²/(n − 1),  batches ← batches + 1
**
** Link 6 has shown that the rank has the engine's bits. The engine's rule is judged here.
**
** Note [Moves of running statistics] A layer that runs again moves them again, as in PyTorch: of
** several forwards each moves them, and so does a checkpointed layer in its backward. The counter
** says how often. It must be a multiple of the forwards.
*/
#include "core/oracle/state.h"

#include "core/tensor/dtype.h"

#include <math.h>
#include <string.h>

#define MOMENTUM 0.1

/* The buffers of one layer, and the statistics that its forwards have. */
typedef struct layer {
    const cd_second_program *program;
    const cd_second_norm *norms; /* of the first forward; the next one's are `stride` later */
    size_t stride;
    int64_t mean, var, batches; /* buffers */
    size_t moves;               /* of each forward */
} layer;

static int64_t find_buffer(const cd_second_program *program, int64_t weight, const char *name)
{
    const char *parameter = program->parameters[weight].name, *dot = strrchr(parameter, '.');
    const size_t length = dot != NULL ? (size_t)(dot - parameter) + 1 : 0;
    for (size_t i = 0; i < program->buffer_count; i++) {
        const char *buffer = program->buffer_names[i];
        if (strncmp(buffer, parameter, length) == 0 && strcmp(buffer + length, name) == 0)
            return (int64_t)i;
    }
    return -1;
}

/* What one channel must have, and how far it may be off. */
typedef struct moved {
    double value, error;
} moved;

static void move(const cd_oracle *o, const cd_second_channel *c, bool is_var, cddp_dtype dtype,
                 moved *m)
{
    const cd_scalar which = is_var ? c->squares : c->mean;
    const double value = cd_scalars_get(&o->scalars, which),
                 size = is_var ? value + c->size * c->size * (double)c->count : c->size,
                 error = cd_scalars_get_error(&o->scalars, which) +
                         (double)(c->count + 8) * 0x1p-50 * size;
    const double divisor = is_var ? (double)c->count - 1 : 1;
    m->error = (1 - MOMENTUM) * m->error + MOMENTUM * error / divisor;
    m->value = (1 - MOMENTUM) * m->value + MOMENTUM * value / divisor;
    /* rounded once, to the dtype of the buffer, or to that of [mixed_precision] */
    m->error += (cd_dtype_roundoff(dtype) + 0x1p-50) * (fabs(m->value) + m->error) +
                (o->options.rounds_buffers ? cd_dtype_underflow(dtype) : 0) + 0x1p-149;
}

static cddp_status judge_one(cd_oracle *o, const cd_start *start, const layer *l, bool is_var,
                             cddp_error *err)
{
    const int64_t buffer = is_var ? l->var : l->mean;
    const cd_oracle_engine *e = start->engine;
    const cddp_tensor *after = &e->buffers(e->self)[buffer];
    const cddp_dtype dtype = o->options.rounds_buffers ? o->options.buffer_dtype : after->dtype;
    cd_comparison c = {.numel = l->norms->count, .element = -1};
    CD_TRY(cd_numbers_read(&o->numbers, &start->buffers[buffer], err));
    CD_TRY(cd_numbers_read(&o->other, after, err));
    for (size_t k = 0; k < c.numel; k++) {
        moved m = {o->numbers.values[k], 0};
        for (size_t f = 0; f < l->program->forward_count; f++)
            for (size_t i = 0; i < l->moves; i++)
                move(o, &l->norms[f * l->stride].channels[k], is_var, dtype, &m);
        const double actual = o->other.values[k];
        if (!isfinite(m.value) || !isfinite(m.error)) continue;
        if (fabs(actual - m.value) <= m.error) {
            if (c.bad == 0) c.bound = fmax(c.bound, m.error);
            continue;
        }
        if (c.bad++ > 0) continue;
        c.element = (int64_t)k;
        c.expected = m.value;
        c.actual = actual;
        c.bound = m.error;
        c.shape = CD_SHAPE_UNEXPLAINED;
    }
    if (c.bad > 0)
        cd_text_format(c.words, sizeof c.words,
                       "%zu of %zu are not what the statistics of the batch make of them", c.bad,
                       c.numel);
    o->summary.compared++;
    o->summary.differing += c.bad > 0;
    o->summary.bounded++;
    cd_comparison_emit(&(cd_comparison_place){o->options.tracer, CD_LINK_BUFFER, (int32_t)buffer,
                                              "running statistics"},
                       &c);
    return CDDP_OK;
}

static cddp_status count_moves(cd_oracle *o, const cd_start *start, layer *l, cddp_error *err)
{
    const cd_oracle_engine *e = start->engine;
    const size_t forwards = l->program->forward_count;
    CD_TRY(cd_numbers_read(&o->numbers, &start->buffers[l->batches], err));
    CD_TRY(cd_numbers_read(&o->other, &e->buffers(e->self)[l->batches], err));
    const double moves = o->other.values[0] - o->numbers.values[0];
    const bool is_whole = moves >= (double)forwards && fmod(moves, (double)forwards) == 0;
    l->moves = is_whole ? (size_t)moves / forwards : 0;
    if (is_whole) return CDDP_OK;
    cd_comparison c = {.numel = 1,
                       .bad = 1,
                       .expected = o->numbers.values[0] + (double)forwards,
                       .actual = o->other.values[0],
                       .shape = CD_SHAPE_UNEXPLAINED};
    cd_text_format(c.words, sizeof c.words, "%zu forwards are not counted", forwards);
    cd_comparison_emit(&(cd_comparison_place){o->options.tracer, CD_LINK_BUFFER,
                                              (int32_t)l->batches, "running statistics"},
                       &c);
    return CDDP_OK;
}

cddp_status cd_oracle_judge_running(cd_oracle *o, const cd_start *start,
                                    const cd_second_program *program,
                                    const cd_second_result *result, cddp_error *err)
{
    const size_t forwards = program->forward_count;
    const bool is_known = forwards > 0 && start->buffers != NULL &&
                          result->norm_count < CD_SECOND_NORMS_MAX &&
                          result->norm_count % forwards == 0;
    const size_t stride = is_known ? result->norm_count / forwards : 0;
    for (size_t i = 0; i < stride; i++) {
        layer l = {.program = program, .norms = &result->norms[i], .stride = stride};
        if (l.norms->weight < 0) continue;
        l.mean = find_buffer(program, l.norms->weight, "running_mean");
        l.var = find_buffer(program, l.norms->weight, "running_var");
        l.batches = find_buffer(program, l.norms->weight, "num_batches_tracked");
        if (l.mean < 0 || l.var < 0 || l.batches < 0) continue;
        CD_TRY(count_moves(o, start, &l, err));
        if (l.moves == 0) continue;
        CD_TRY(judge_one(o, start, &l, false, err));
        CD_TRY(judge_one(o, start, &l, true, err));
    }
    return CDDP_OK;
}
