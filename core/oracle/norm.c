/* SPDX-License-Identifier: Apache-2.0 */
/* Link 13, the norm by which gradients are clipped. It is the norm of all gradients, each counted
** once, whichever rank steps them.
**
** Both sides add squares in f64. The run adds per tensor, then tensors, then ranks, with a root and
** a square for each tensor. The oracle adds per rank. With n elements of p tensors on W ranks that
** is at most n + 3p + W + 4 roundings on the run's way and n + W + 4 here, each of 2^-53 of a sum
** of positive terms; the root halves them. A square that underflows loses at most 2^-1074, so the
** root of all of them is off by no more than √(n + p) · 2^-537. */
#include "core/oracle/state.h"

#include "core/base/error.h"

#include <math.h>
#include <string.h>

typedef struct squares {
    double *of_rank, of_all; /* of what one rank steps; of what every rank steps */
    uint64_t elements, tensors;
} squares;

static cddp_status add_squares(cd_oracle *o, const cddp_grad *gradient, size_t i, squares *s,
                               cddp_error *err)
{
    const cd_part *part = &o->parameters[i].part;
    CD_TRY(cd_numbers_read(&o->numbers, &gradient->value, err));
    for (size_t k = 0; k < o->numbers.count; k++) {
        int64_t element = gradient->kind == CDDP_GRAD_SPARSE ? 0 : (int64_t)k; /* never cut */
        double square = o->numbers.values[k] * o->numbers.values[k];
        if (part->share == 0)
            s->of_all += square;
        else
            s->of_rank[(part->start + element) / part->share] += square;
    }
    s->elements += o->numbers.count;
    s->tensors++;
    return CDDP_OK;
}

/* The norm over these ranks. */
static double norm_over(const squares *s, const uint32_t *ranks, uint32_t count)
{
    double sum = count * s->of_all;
    for (uint32_t i = 0; i < count; i++) sum += s->of_rank[ranks[i]];
    return sqrt(sum);
}

static void explain(const cd_oracle_norm *n, const squares *s, cd_comparison *c)
{
    bool is_theirs = fabs(n->norm - norm_over(s, n->ranks, n->rank_count)) <= c->bound;
    c->shape = CD_SHAPE_OTHER;
    if (is_theirs && s->of_all > 0 && n->rank_count > 1)
        cd_text_format(
            c->words, sizeof c->words,
            "over the wrong group: each of %u ranks has these gradients, and all were added",
            n->rank_count);
    else if (is_theirs && n->rank_count == 1)
        cd_text_format(
            c->words, sizeof c->words,
            "over the wrong group: of what rank %u steps alone, and not of what all ranks step",
            n->ranks[0]);
    else if (is_theirs)
        cd_text_format(c->words, sizeof c->words,
                       "over the wrong group: of what %u ranks from rank %u on step, and not of "
                       "what all ranks step",
                       n->rank_count, n->ranks[0]);
    else
        cd_text_format(c->words, sizeof c->words, "of something else than the gradients");
}

cddp_status cd_oracle_judge_norm(cd_oracle *o, const cd_oracle_norm *norm, cddp_error *err)
{
    uint32_t world = o->options.world_size;
    squares s = {.of_rank = o->squares};
    if (!cd_oracle_has_values(o)) return CDDP_OK;
    memset(o->squares, 0, world * sizeof *o->squares);
    for (size_t i = 0; i < o->options.parameter_count; i++)
        if (norm->gradients[i].kind != CDDP_GRAD_UNDEFINED)
            CD_TRY(add_squares(o, &norm->gradients[i], i, &s, err));
    double sum = s.of_all;
    for (uint32_t r = 0; r < world; r++) sum += s.of_rank[r];
    cd_comparison c = {.numel = 1, .element = -1, .expected = sqrt(sum), .actual = norm->norm};
    c.bound = c.expected * cd_gamma(CDDP_F64, 2 * (s.elements + 2 * s.tensors + world + 4)) +
              sqrt((double)(s.elements + s.tensors)) * 0x1p-537;
    /* an overflow is I-RANGE's */
    if (isfinite(c.expected) && !(fabs(c.actual - c.expected) <= c.bound)) {
        c.bad = 1;
        c.element = 0;
        c.ratio = c.actual / c.expected;
        explain(norm, &s, &c);
    }
    cd_comparison_emit(&(cd_comparison_place){o->options.tracer, CD_LINK_NORM, -1, "norm"}, &c);
    return CDDP_OK;
}
