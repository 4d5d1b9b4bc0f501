/* SPDX-License-Identifier: Apache-2.0 */
/* Link 13, the norm by which gradients are clipped. It is the norm of all gradients, each counted
** once, whichever rank steps them.
**
** Of p = 2: both sides add squares in f64. The run adds per tensor, then tensors, then ranks, with
** a root and a square for each tensor. The oracle adds per rank. With n elements of p tensors on W
** ranks that is at most n + 3p + W + 4 roundings on the run's way and n + W + 4 here, each of 2^-53
** of a sum of positive terms; the root halves them. A square that underflows loses at most 2^-1074,
** so the root of all of them is off by no more than √(n + p) · 2^-537. Of other norms it is the
** same with other powers. See Note [Roundings of a p-norm] */
#include "core/oracle/state.h"

#include "core/base/error.h"
#include "core/base/rank_list.h"
#include "core/oracle/power_sum.h"
#include "core/tensor/math.h"

#include <math.h>
#include <string.h>

typedef struct powers {
    double p;
    double *of_rank, of_all; /* of what one rank steps; of what every rank steps */
    double largest;          /* |ln x| */
    uint64_t elements, tensors;
} powers;

static cddp_status add_powers(cd_oracle *o, const cddp_grad *gradient, size_t i, powers *s,
                              cddp_error *err)
{
    const cd_part *part = &o->parameters[i].part;
    CD_TRY(cd_numbers_read(&o->numbers, &gradient->value, err));
    for (size_t k = 0; k < o->numbers.count; k++) {
        int64_t element = gradient->kind == CDDP_GRAD_SPARSE ? 0 : (int64_t)k; /* never cut */
        const double x = o->numbers.values[k], term = cd_power_term(s->p, x);
        if (part->share == 0)
            cd_power_add(s->p, &s->of_all, term);
        else
            cd_power_add(s->p, &s->of_rank[(part->start + element) / part->share], term);
        if (x != 0 && isfinite(x)) s->largest = fmax(s->largest, fabs(cd_log(fabs(x))));
    }
    s->elements += o->numbers.count;
    s->tensors++;
    return CDDP_OK;
}

/* The norm over these ranks. */
static double norm_over(const powers *s, const uint32_t *ranks, uint32_t count)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) cd_power_add(s->p, &sum, s->of_all);
    for (uint32_t i = 0; i < count; i++) cd_power_add(s->p, &sum, s->of_rank[ranks[i]]);
    return cd_power_root(s->p, sum);
}

/* Members of a group may be in any order. */
static uint32_t next_rank(const void *self, uint32_t from)
{
    const cd_oracle_norm *n = self;
    uint32_t next = CD_NO_RANK;
    for (uint32_t i = 0; i < n->rank_count; i++)
        if (n->ranks[i] >= from && n->ranks[i] < next) next = n->ranks[i];
    return next;
}

static void explain(const cd_oracle_norm *n, const powers *s, cd_comparison *c)
{
    char ranks[64];
    bool is_theirs = fabs(n->norm - norm_over(s, n->ranks, n->rank_count)) <= c->bound;
    c->shape = CD_SHAPE_OTHER;
    if (is_theirs && s->of_all > 0 && n->rank_count > 1) {
        cd_text_format(
            c->words, sizeof c->words,
            "over the wrong group: each of %u ranks has these gradients, and all were added",
            n->rank_count);
    } else if (is_theirs && n->rank_count == 1) {
        cd_text_format(
            c->words, sizeof c->words,
            "over the wrong group: of what rank %u steps alone, and not of what all ranks step",
            n->ranks[0]);
    } else if (is_theirs) {
        cd_rank_list_print(&(cd_rank_list){n, next_rank}, CD_NO_RANK, ranks, sizeof ranks);
        cd_text_format(c->words, sizeof c->words,
                       "over the wrong group: of what %s step, and not of what all ranks step",
                       ranks);
    } else {
        cd_text_format(c->words, sizeof c->words, "of something else than the gradients");
    }
}

cddp_status cd_oracle_judge_norm(cd_oracle *o, const cd_oracle_norm *norm, cddp_error *err)
{
    uint32_t world = o->options.world_size;
    powers s = {.p = norm->p, .of_rank = o->powers};
    if (!cd_oracle_has_values(o)) return CDDP_OK;
    memset(o->powers, 0, world * sizeof *o->powers);
    for (size_t i = 0; i < o->options.parameter_count; i++)
        if (norm->gradients[i].kind != CDDP_GRAD_UNDEFINED)
            CD_TRY(add_powers(o, &norm->gradients[i], i, &s, err));
    double sum = s.of_all;
    for (uint32_t r = 0; r < world; r++) cd_power_add(s.p, &sum, s.of_rank[r]);
    cd_comparison c = {.numel = 1,
                       .element = -1,
                       .expected = cd_power_root(s.p, sum),
                       .actual = norm->norm};
    const double roundings = 2 * cd_power_roundings(s.p, s.largest);
    c.bound = c.expected * cd_gamma(CDDP_F64, 2 * (s.elements + 2 * s.tensors + world + 4) +
                                                  (uint64_t)roundings) +
              cd_power_underflow(s.p, (double)(s.elements + s.tensors));
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
