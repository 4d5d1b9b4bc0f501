/* SPDX-License-Identifier: Apache-2.0 */
/* Links 1 mathematics, 2 reduction, 3 precision, 6 buffers and 7 presence: a rank's tensors after a
** backward. */
#include "core/oracle/state.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/format.h"
#include "core/base/hash.h"
#include "core/oracle/carried.h"
#include "core/oracle/form_quotient.h"
#include "core/trace/tracer.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* A relative bound below which a common ratio is not looked for. */
#define NARROW 1e-5

/* ---- link 3: the local gradient is what one process computes on the same samples ---- */

/* In which dtype gradients of a parameter are born; CDDP_DTYPE_COUNT: its own. */
static cddp_dtype local_of(const cd_oracle *o, const cd_oracle_reduction *r, size_t i)
{
    const cd_oracle_casts *casts = &o->parameters[i].casts;
    if (casts->is_given) return casts->local;
    return r->accumulates_low ? r->local : CDDP_DTYPE_COUNT;
}

/* What the result of the reduction is cast to (FMP-08). */
static cddp_dtype result_of(const cd_oracle *o, size_t i)
{
    const cd_oracle_casts *casts = &o->parameters[i].casts;
    const bool is_kept = casts->is_given && casts->kept != CDDP_DTYPE_COUNT;
    return is_kept ? casts->kept : o->parameters[i].dtype;
}

/* One process makes a gradient here, besides what was kept from an earlier step. Under mixed
** precision what was kept is cast down first, and may be another number then. */
static cddp_status is_new_gradient(cd_oracle *o, const cd_oracle_reduction *r, size_t i,
                                   const cddp_grad *replica, bool *is_new, cddp_error *err)
{
    cd_comparison c = {.bad = 0};
    *is_new = replica->kind != CDDP_GRAD_UNDEFINED;
    if (replica->kind != CDDP_GRAD_DENSE || o->kept[i].kind != CDDP_GRAD_DENSE) return CDDP_OK;
    CD_TRY(cd_oracle_compare_tensors(o, &replica->value, &o->kept[i].value, &c, err));
    *is_new = c.bad > 0;
    const cddp_dtype local = local_of(o, r, i);
    if (c.bad == 0 || local == CDDP_DTYPE_COUNT || cd_oracle_is_exact_device(o)) return CDDP_OK;
    for (size_t k = 0; k < o->other.count; k++)
        o->other.values[k] = cd_dtype_round(local, o->other.values[k]);
    c = cd_compare_bits(o->parameters[i].dtype, o->other.values, o->numbers.values, c.numel);
    *is_new = c.bad > 0;
    return CDDP_OK;
}

static const char averaged_each_time[] =
    "a delayed gradient is averaged in every backward of its window, so that the last addend has "
    "other ranks' gradients in it";

static const char never_reduced[] =
    "a backward inside no_sync that no optimizer takes is not reduced";
static const char routed_by_others[] =
    "under local SGD other ranks choose experts by their own parameters";
static const char averaged_over_others[] = "a delayed gradient is averaged over all ranks, and "
                                           "under local SGD these have other parameters";

static cddp_status judge_local(cd_oracle *o, const cd_oracle_reduction *r, size_t i,
                               const cddp_grad *replica, cddp_error *err)
{
    bool present = replica->kind != CDDP_GRAD_UNDEFINED;
    if (o->parameters[i].path == CD_ORACLE_PATH_DELAYED && r->micro_step > r->micro_first) {
        cd_oracle_give_up(o, CD_LINK_PRECISION, 1, averaged_each_time);
        return CDDP_OK;
    }
    if (!o->captured[i]) {
        bool is_new = false;
        CD_TRY(is_new_gradient(o, r, i, replica, &is_new, err));
        if (!is_new) return CDDP_OK;
        o->local_present[i] = false; /* it never arrived */
    }
    cd_comparison c = {.element = -1, .exact = true};
    if (present != o->local_present[i]) {
        c = (cd_comparison){.bad = 1,
                            .element = 0,
                            .expected = present,
                            .actual = !present,
                            .exact = true,
                            .shape = CD_SHAPE_PRESENCE};
        cd_text_format(c.words, sizeof c.words,
                       present ? "no local gradient, where one process gets one"
                               : "a local gradient, where one process gets none");
        cd_oracle_report(o, CD_LINK_PRECISION, i, &c);
        return CDDP_OK;
    }
    if (!present) return CDDP_OK;
    if (cd_oracle_is_exact_device(o)) {
        CD_TRY(cd_oracle_compare_forms(o, &replica->value, &o->local_forms[i].value, &c, err));
        cd_oracle_report(o, CD_LINK_PRECISION, i, &c);
        return CDDP_OK;
    }
    size_t numel = o->offsets[i + 1] - o->offsets[i];
    CD_TRY(cd_numbers_read_gradient(&o->other, replica, numel, err));
    c = cd_compare_bits(o->parameters[i].dtype, o->other.values, o->local + o->offsets[i], numel);
    if (c.bad > 0) {
        /* The explanation runs the engine again, which overwrites the gradients that were just
        ** read. So keep a copy. */
        CD_TRY(cd_numbers_read_gradient(&o->numbers, replica, numel, err));
        cd_suspect s = {.expected = o->numbers.values,
                        .actual = o->local + o->offsets[i],
                        .parameter = i,
                        .divisor = r->divisor};
        cd_oracle_explain(o, &c, &s);
    }
    cd_oracle_report(o, CD_LINK_PRECISION, i, &c);
    return CDDP_OK;
}

static bool is_added_up(const cd_oracle *o, const cd_oracle_reduction *r, size_t i)
{
    return r->separate && o->parameters[i].path != CD_ORACLE_PATH_LOCAL &&
           o->parameters[i].path != CD_ORACLE_PATH_DELAYED;
}

static cddp_status judge_locals(cd_oracle *o, const cd_start *start, const cd_oracle_reduction *r,
                                cddp_error *err)
{
    /* a hook that adds up takes the gradients of its buckets alone: others accumulate as ever */
    size_t apart = 0;
    for (size_t i = 0; i < o->options.parameter_count; i++) apart += !is_added_up(o, r, i);
    for (int adds_up = r->separate ? 1 : 0; adds_up >= 0; adds_up--) {
        cd_oracle_reduction own = *r;
        own.spans = NULL;
        if (adds_up) own.micro_first = r->micro_step;
        own.has_forgotten = adds_up && r->micro_step > r->micro_first;
        if (apart == 0 && !adds_up && r->separate) break;
        CD_TRY(cd_start_run_rank(start, &own, o->options.rank, err));
        const cddp_grad *replica = start->engine->gradients(start->engine->self);
        for (size_t i = 0; i < o->options.parameter_count; i++)
            if (is_added_up(o, r, i) == (adds_up != 0))
                CD_TRY(judge_local(o, r, i, &replica[i], err));
    }
    return CDDP_OK;
}

/* ---- links 1, 2 and 7 ---- */

/* The reduction at hand and what one process computes for it. */
typedef struct judged {
    const cd_oracle_reduction *reduction;
    const cd_start *start;
    cd_window *window;
} judged;

/* Gathers every rank's own gradients, which may explain a wrong sum. */
static cddp_status find_locals(cd_oracle *o, const judged *j, cd_suspect *s, cddp_error *err)
{
    cd_share_note_failed(o->share, j->window);
    CD_TRY(cd_share_gather(o->share, j->window, j->start, j->reduction, err));
    s->locals = j->window->has_locals ? &j->window->locals : NULL;
    return CDDP_OK;
}

/* What the step before expected in place of a parameter's sum, where its window is still there. */
static cddp_status find_previous(const cd_oracle *o, const judged *j, size_t i, double **previous,
                                 cddp_error *err)
{
    const cd_window *w = cd_share_previous(o->share, j->window);
    *previous = NULL;
    if (w == NULL || i >= w->parameter_count || w->parameters[i].contributions.limbs == NULL ||
        w->parameters[i].contributions.numel != j->window->parameters[i].contributions.numel)
        return CDDP_OK;
    const cd_wide_sum *sum = &w->parameters[i].contributions;
    double *values = cd_allocate_array(o->options.allocator, sum->numel + 1, sizeof *values);
    if (values == NULL) return cd_fail_memory(err, "the step before of %s", o->parameters[i].name);
    const double divisor = w->divided ? 1 : (double)w->divisor;
    for (size_t k = 0; k < sum->numel; k++) values[k] = cd_wide_sum_get(sum, k) / divisor;
    *previous = values;
    return CDDP_OK;
}

/* Each way in which this rank may have given its gradient to the reduction, as a digest. */
typedef struct given {
    uint64_t reciprocal, divided, plain;
} given;

/* On an exact device both divisions are 1/n. The copy of the gradient is not needed any more. */
static cddp_status digest_form(cd_oracle *o, const judged *j, size_t i, given *g, cddp_error *err)
{
    if (!o->local_present[i] || o->local_forms[i].kind != CDDP_GRAD_DENSE) return CDDP_OK;
    const cddp_tensor *t = &o->local_forms[i].value;
    CD_TRY(t->device->digest(t, &g->plain, err));
    bool is_quotient; /* judge_reduced says where it is none */
    CD_TRY(cd_form_quotient(t, (int64_t)j->reduction->divisor, &is_quotient, err));
    CD_TRY(t->device->digest(t, &g->divided, err));
    g->reciprocal = g->divided;
    return CDDP_OK;
}

/* A gradient that never came is packed as zeros, if none was kept. Of a gradient that is added up
** in another dtype, or by the hook, the bytes in the bucket do not follow from its values. */
static bool is_derived(const cd_oracle *o, const cd_oracle_reduction *r, size_t i)
{
    const bool came = o->captured[i] || o->kept[i].kind == CDDP_GRAD_UNDEFINED;
    return came && local_of(o, r, i) == CDDP_DTYPE_COUNT && !r->separate &&
           o->parameters[i].path == CD_ORACLE_PATH_BUCKET;
}

static cddp_status digest_given(cd_oracle *o, const judged *j, size_t i, given *g, cddp_error *err)
{
    const cd_oracle_reduction *r = j->reduction;
    const cddp_tensor *t = &j->window->parameters[i].expected;
    const cddp_device *device = t->device;
    *g = (given){0};
    if (!is_derived(o, r, i)) return CDDP_OK;
    if (cd_oracle_is_exact_device(o))
        return o->captured[i] ? CD_PASS(digest_form(o, j, i, g, err)) : CDDP_OK;
    cd_numbers *values = &o->before;
    for (int way = 0; way < 3; way++) {
        if (o->captured[i] && o->local_present[i])
            CD_TRY(cd_numbers_write(&o->other, t, o->local + o->offsets[i], err));
        else
            CD_TRY(device->fill(t, 0, NULL, err));
        if (way > 0) {
            CD_TRY(cd_numbers_read(values, t, err));
            (way == 1 ? cd_dtype_multiply_reciprocal : cd_dtype_divide)(t->dtype, values->values,
                                                                        values->count,
                                                                        (int64_t)r->divisor);
            CD_TRY(cd_numbers_write(&o->other, t, values->values, err));
        }
        CD_TRY(device->digest(t,
                              way == 0   ? &g->plain
                              : way == 1 ? &g->reciprocal
                                         : &g->divided,
                              err));
    }
    /* as declared, whatever the rank says that it did */
    if (r->division == CD_ORACLE_DIVISION_TRUE) g->reciprocal = g->divided;
    if (r->division == CD_ORACLE_DIVISION_RECIPROCAL) g->divided = g->reciprocal;
    return CDDP_OK;
}

/* What the checks need to tell at which stage the average went wrong: packed, reduced or written
** back. */
static cddp_status emit_contribution(cd_oracle *o, const judged *j, size_t i,
                                     const cd_comparison *c, cddp_error *err)
{
    const cddp_grad *grad = &j->reduction->gradients[i];
    const uint64_t start = cd_hash_mix(o->digest, (uint64_t)cd_f64_bits(j->reduction->loss_scale));
    uint64_t judged_digest = 0;
    given g;
    CD_TRY(digest_given(o, j, i, &g, err));
    if (grad->kind == CDDP_GRAD_DENSE)
        CD_TRY(grad->value.device->digest(&grad->value, &judged_digest, err));
    CD_EMIT(o->options.tracer, contribution, NULL, .param = o->parameters[i].variable,
            .start = c->bad > 0 ? (int64_t)start : 0, .reciprocal = (int64_t)g.reciprocal,
            .divided = (int64_t)g.divided, .plain = (int64_t)g.plain,
            .dtype = j->window->parameters[i].expected.dtype, .judged = (int64_t)judged_digest,
            .source = (int64_t)c->source_rank - 1, .source_micro = (int64_t)c->source_micro - 1,
            .weight = cd_f64_bits(c->ratio));
    return CDDP_OK;
}

/* Loss and objective divide by different numbers: that explains what no single shape does, and why
** contributions have weights. */
static void add_normalisation(cd_comparison *c, const cd_oracle_reduction *r)
{
    char words[sizeof c->words];
    if (c->shape == CD_SHAPE_UNEXPLAINED) {
        cd_text_format(c->words, sizeof c->words, "%zu of %zu elements differ: %s", c->bad,
                       c->numel, r->normalisation);
    } else if (c->shape == CD_SHAPE_RATIO) {
        memcpy(words, c->words, sizeof words);
        cd_text_format(c->words, sizeof c->words, "%s; %s", r->normalisation, words);
    }
}

static void name_ratio(cd_comparison *c, const cd_wide_sum *sum, const double *actual,
                       const cd_sum_rule *rule)
{
    size_t largest = 0;
    for (size_t i = 1; i < sum->numel; i++)
        if (sum->magnitude[i] > sum->magnitude[largest]) largest = i;
    c->bad = sum->numel;
    c->element = (int64_t)largest;
    c->expected = cd_wide_sum_get(sum, largest) / (double)rule->divisor;
    c->actual = actual[largest];
    c->shape = CD_SHAPE_RATIO;
}

/* Does the ratio leave every element near what it must be? Two elements that changed places bend
** the least squares, too. */
static bool explains(const cd_wide_sum *sum, const double *actual, const cd_sum_rule *rule,
                     double ratio)
{
    const double gamma = 2 * cd_gamma(rule->dtype, rule->roundings) / (double)rule->divisor;
    const double least =
        2 * (double)rule->addends * fmax(rule->underflow, cd_dtype_underflow(rule->dtype));
    for (size_t i = 0; i < sum->numel; i++) {
        const double expected = ratio * cd_wide_sum_get(sum, i) / (double)rule->divisor;
        const double allowed = (1 + fabs(ratio)) * gamma * sum->magnitude[i] + least;
        if (!(fabs(actual[i] - expected) <= allowed)) return false;
    }
    return true;
}

/* See Note [A common ratio]. By itself, or together with all that were compared before. */
static cddp_status judge_ratio(cd_oracle *o, const cd_wide_sum *sum, const cd_sum_rule *rule,
                               cd_oracle_link link, cd_comparison *c, cddp_error *err)
{
    cd_ratio_evidence own = {.distinct = 0};
    cd_ratio_evidence *all = &o->ratios[link == CD_LINK_MATHEMATICS];
    const double *actual = o->numbers.values;
    double ratio;
    const bool is_wrong = c->bad > 0;
    cd_sum_rule last = *rule; /* the last cast is one more rounding, in the coarser dtype */
    if (rule->is_cast) {
        last.roundings++;
        last.underflow = fmax(last.underflow, cd_dtype_underflow(rule->dtype));
        if (cd_dtype_precision(rule->cast) < cd_dtype_precision(rule->dtype))
            last.dtype = rule->cast;
        rule = &last;
    }
    /* what fits into a narrow bound does no harm */
    if (c->exact || cd_gamma(rule->dtype, rule->roundings) < NARROW) return CDDP_OK;
    if (is_wrong && c->shape != CD_SHAPE_UNEXPLAINED) return CDDP_OK;
    CD_TRY(cd_common_ratio_add(&own, sum, actual, rule, o->options.allocator, err));
    const bool is_alone = cd_common_ratio_is_significant(&own, &ratio);
    if (!is_wrong) cd_common_ratio_merge(all, &own);
    /* The statistics of a batch are rounded once, and every local gradient behind them shares that:
    ** tensors are no independent evidence then. What the reduction rounds is. */
    const bool shares_roundings =
        is_wrong || (link == CD_LINK_MATHEMATICS && o->options.buffer_count > 0);
    if (!is_alone && (shares_roundings || !cd_common_ratio_is_significant(all, &ratio)))
        return CDDP_OK;
    if (is_wrong && !explains(sum, actual, rule, ratio)) return CDDP_OK;
    name_ratio(c, sum, actual, rule);
    c->ratio = ratio;
    cd_text_format(c->words, sizeof c->words, "ratio %s, %s%s", cd_ratio_print(ratio).text,
                   is_alone ? "estimated from the whole tensor"
                            : "estimated from all gradients of this rank up to this one",
                   is_wrong ? "" : ", though each element lies within its bound");
    return CDDP_OK;
}

/* Link 2 where every addend is known: the result must be one that some order of the additions has.
** See Note [Every order] */
static void judge_order(const cd_oracle *o, const judged *j, size_t i, cd_comparison *c)
{
    cd_window_parameter *p = &j->window->parameters[i];
    cd_any_order *a = &p->addends;
    const cd_any_order_rule rule = {p->added_in, result_of(o, i), p->divided_after, p->times_after};
    double worst = 0;
    if (c->exact || c->bad > 0 || !cd_any_order_find(a, &rule)) return;
    c->bound = 0;
    for (size_t k = 0; k < a->count; k++) {
        const double actual = o->numbers.values[k * a->stride];
        const cd_any_order_range *r = &a->ranges[k];
        const double width = r->high - r->low;
        if (cd_any_order_has(a, &rule, k, actual)) {
            if (c->bad == 0 && isfinite(width)) c->bound = fmax(c->bound, width);
            continue;
        }
        const double nearest = fmin(fmax(actual, r->low), r->high);
        const double ulp = cd_dtype_ulp(rule.dtype, nearest);
        const double distance = fabs(actual - nearest) / ulp;
        if (c->bad++ != 0 && distance <= worst) continue;
        worst = distance;
        c->element = (int64_t)(k * a->stride);
        c->expected = cd_dtype_round(rule.dtype, nearest);
        c->actual = actual;
        c->bound = width;
        c->ulps = (uint64_t)fmin(distance + 0.5, 0x1p62);
    }
    if (c->bad > 0) c->shape = CD_SHAPE_UNEXPLAINED;
}

/* Is every element this ratio times one that some order gives? */
static bool fits_ratio(const cd_oracle *o, const cd_any_order *a, const cd_any_order_rule *rule,
                       double ratio)
{
    for (size_t k = 0; k < a->count; k++) {
        const double actual = o->numbers.values[k * a->stride];
        const double from = cd_dtype_round(rule->dtype, actual / ratio);
        const double away = fabs(actual - ratio * from);
        if (!cd_any_order_has(a, rule, k, from) || !(away <= cd_dtype_ulp(rule->result, actual)))
            return false;
    }
    return true;
}

/* A factor behind a narrow sum: the largest element says which, and all others agree. */
static void name_order_ratio(const cd_oracle *o, const judged *j, size_t i, cd_comparison *c)
{
    const cd_any_order *a = &j->window->parameters[i].addends;
    const cd_any_order_rule rule = {j->window->parameters[i].added_in, result_of(o, i),
                                    j->window->parameters[i].divided_after,
                                    j->window->parameters[i].times_after};
    size_t largest = 0;
    if (!a->is_found || c->shape != CD_SHAPE_UNEXPLAINED || a->count < 4) return;
    for (size_t k = 1; k < a->count; k++)
        if (fabs(a->ranges[k].low) > fabs(a->ranges[largest].low)) largest = k;
    const double ends[] = {a->ranges[largest].low, a->ranges[largest].high};
    const double actual = o->numbers.values[largest * a->stride];
    for (size_t e = 0; e < 2; e++) {
        const double ratio = actual / ends[e];
        if (ends[e] == 0 || !isfinite(ratio) || ratio == 0 || ratio == 1) continue;
        if (!fits_ratio(o, a, &rule, ratio)) continue;
        c->shape = CD_SHAPE_RATIO;
        c->ratio = ratio;
        cd_text_format(c->words, sizeof c->words, "ratio %s on every element",
                       cd_ratio_print(ratio).text);
        return;
    }
}

static const char hidden_share[] =
    "the bound of a sum of so many ranks in a narrow dtype is as large as the share of one of them";

/* Of copies that wait for their bucket what was packed is known for all of it, or for none. */
static bool is_pack_known(const cd_oracle *o, const cd_oracle_reduction *r, size_t parameter)
{
    if (!r->is_batched) return is_derived(o, r, parameter);
    for (size_t i = 0; i < o->options.parameter_count; i++)
        if (o->parameters[i].path == CD_ORACLE_PATH_BUCKET && !is_derived(o, r, i)) return false;
    return true;
}

/* In a bound of this size the whole share of a rank may hide, and what it packed is not derived. */
static bool may_hide(const cd_oracle *o, const judged *j, size_t i, const cd_sum_rule *rule)
{
    const cd_oracle_reduction *r = j->reduction;
    const uint64_t ranks = r->rank_count != 0 ? r->rank_count : o->options.world_size;
    return !rule->rounded_once && !r->is_followed && !is_pack_known(o, r, i) &&
           !j->window->parameters[i].addends.is_found &&
           cd_gamma(rule->dtype, rule->roundings) * (double)ranks >= 1;
}

static cddp_status judge_sum(cd_oracle *o, const judged *j, size_t i, const cd_wide_sum *sum,
                             const cd_sum_rule *rule, cd_oracle_link link, cddp_error *err)
{
    const cd_oracle_reduction *r = j->reduction;
    CD_TRY(cd_numbers_read_gradient(&o->numbers, &r->gradients[i], sum->numel, err));
    cd_comparison c = cd_compare_sum(sum, o->numbers.values, rule);
    const bool adds = o->added[i].kind == CDDP_GRAD_DENSE;
    if (link == CD_LINK_REDUCTION && !rule->rounded_once && !adds) judge_order(o, j, i, &c);
    if (c.bad > 0) {
        double *expected = cd_allocate_array(o->options.allocator, sum->numel, sizeof *expected);
        if (expected == NULL)
            return cd_fail_memory(err, "the explanation of %s", o->parameters[i].name);
        for (size_t k = 0; k < sum->numel; k++)
            expected[k] = cd_wide_sum_get(sum, k) / (double)rule->divisor;
        cd_suspect s = {.expected = expected,
                        .actual = o->numbers.values,
                        .parameter = i,
                        .divisor = r->divisor};
        double *previous = NULL;
        cddp_status status = find_locals(o, j, &s, err);
        if (status == CDDP_OK) status = find_previous(o, j, i, &previous, err);
        s.previous = previous;
        if (status == CDDP_OK) cd_oracle_explain(o, &c, &s);
        if (status == CDDP_OK && link == CD_LINK_REDUCTION && !adds) name_order_ratio(o, j, i, &c);
        cd_release(o->options.allocator, previous, (sum->numel + 1) * sizeof *previous);
        cd_release(o->options.allocator, expected, sum->numel * sizeof *expected);
        if (status == CDDP_OK && link == CD_LINK_REDUCTION)
            status = emit_contribution(o, j, i, &c, err);
        if (status != CDDP_OK) return status;
        if (link == CD_LINK_MATHEMATICS && r->normalisation != NULL) add_normalisation(&c, r);
    }
    /* Within a wide bound a share may be missing. What a rank packs is known to the bit, however
    ** many add theirs. */
    const bool is_wide = !c.exact && cd_gamma(rule->dtype, rule->roundings) >= NARROW;
    if (c.bad == 0 && is_wide && link == CD_LINK_REDUCTION)
        CD_TRY(emit_contribution(o, j, i, &c, err));
    CD_TRY(judge_ratio(o, sum, rule, link, &c, err));
    if (link == CD_LINK_MATHEMATICS && !c.exact) cd_oracle_note_gap(o, CD_FREE_ROUNDED);
    if (c.bad == 0 && !c.exact && may_hide(o, j, i, rule))
        cd_oracle_give_up(o, link, 1, hidden_share);
    else
        cd_oracle_report(o, link, i, &c);
    return CDDP_OK;
}

/* What a sum that is divided again between its additions has below its last place. */
static int places_of(uint64_t divisor, uint64_t times)
{
    int places = 0;
    for (uint64_t left = divisor; left > 1 && times > 0; left >>= 1) places += (int)times;
    return places;
}

/* FSY-05: divisor times what was there before. Its mean is that itself. */
static cddp_status push_added(cd_oracle *o, size_t i, uint64_t divisor, cd_wide_sum *sum,
                              cddp_error *err)
{
    CD_TRY(cd_numbers_read_gradient(&o->numbers, &o->added[i], sum->numel, err));
    for (uint64_t k = 0; k < divisor; k++) cd_wide_sum_push(sum, o->numbers.values);
    return CDDP_OK;
}

/* The same with one more addition, which rounds. */
static cddp_status judge_sum_added(cd_oracle *o, const judged *j, size_t i, const cd_wide_sum *sum,
                                   const cd_sum_rule *rule, cd_oracle_link link, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_wide_sum all = {.numel = 0};
    const cd_any_order none = {.count = 0};
    cd_sum_rule more = *rule;
    if (o->added[i].kind != CDDP_GRAD_DENSE) {
        CD_TRY(judge_sum(o, j, i, sum, rule, link, err));
        if (link == CD_LINK_MATHEMATICS)
            cd_carried_take_gradient(o, i,
                                     &(cd_carried_sum){sum, rule,
                                                       &j->window->parameters[i].addends});
        return CDDP_OK;
    }
    more.roundings++;
    more.addends++;
    more.rounded_once = false;
    CD_TRY_OUT(cd_wide_sum_copy(&all, sum, o->options.allocator, err));
    CD_TRY_OUT(push_added(o, i, rule->divisor, &all, err));
    CD_TRY_OUT(judge_sum(o, j, i, &all, &more, link, err));
    if (link == CD_LINK_MATHEMATICS)
        cd_carried_take_gradient(o, i, &(cd_carried_sum){&all, &more, &none});
out:
    cd_wide_sum_fini(&all);
    return status;
}

static cddp_status compare_form(cd_oracle *o, const judged *j, size_t i, cd_comparison *c,
                                cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cddp_grad sum = {.kind = CDDP_GRAD_UNDEFINED};
    const cddp_tensor *expected = &j->window->parameters[i].expected;
    if (o->added[i].kind == CDDP_GRAD_DENSE) {
        CD_TRY_OUT(cddp_grad_define(&sum, expected, err));
        CD_TRY_OUT(expected->device->copy(&sum.value, expected, NULL, err));
        CD_TRY_OUT(
            expected->device->reduce(CDDP_RED_SUM, &sum.value, &o->added[i].value, NULL, err));
        expected = &sum.value;
    }
    CD_TRY_OUT(cd_oracle_compare_forms(o, expected, &j->reduction->gradients[i].value, c, err));
out:
    cddp_grad_fini(&sum);
    return status;
}

static cddp_status judge_reduced(cd_oracle *o, const judged *j, size_t i, cddp_error *err)
{
    const cd_oracle_reduction *r = j->reduction;
    cd_window *w = j->window;
    const cd_window_parameter *p = &w->parameters[i];
    cd_comparison c;
    if (w->is_exact_device) {
        CD_TRY(compare_form(o, j, i, &c, err));
        if (c.bad == 0 && !p->is_quotient) {
            c.bad = c.numel;
            c.element = 0;
            c.shape = CD_SHAPE_UNEXPLAINED;
            cd_text_format(c.words, sizeof c.words, "device %s does not divide by %" PRIu64,
                           r->gradients[i].value.device->name, (uint64_t)r->divisor);
        }
        if (c.bad > 0) cd_share_note_failed(o->share, w);
        if (c.bad > 0) CD_TRY(emit_contribution(o, j, i, &c, err));
        cd_oracle_report(o, CD_LINK_MATHEMATICS, i, &c);
        return CDDP_OK;
    }
    if (p->samples.limbs == NULL) return CDDP_OK;
    uint64_t ranks = r->rank_count != 0 ? r->rank_count : o->options.world_size;
    uint64_t depth = r->depth != 0 ? r->depth : ranks - 1;
    bool delayed = o->parameters[i].path == CD_ORACLE_PATH_DELAYED;
    if (delayed && ranks < o->options.world_size) {
        cd_oracle_give_up(o, CD_LINK_REDUCTION, 1, averaged_over_others);
        cd_oracle_give_up(o, CD_LINK_MATHEMATICS, 1, averaged_over_others);
        return CDDP_OK;
    }
    /* each backward of the window divides and sums it */
    const uint64_t backwards = delayed ? r->micro_step - r->micro_first + 1u : 1;
    const cddp_dtype wire = cd_window_get_wire(w, &o->parameters[i]), local = local_of(o, r, i);
    uint64_t casts = wire != CDDP_DTYPE_COUNT && !delayed;
    cddp_dtype dtype = casts ? wire : o->parameters[i].dtype;
    /* Local gradients were added in another dtype: the whole sum is no finer than the coarsest
    ** step. */
    bool is_low = local != CDDP_DTYPE_COUNT && !delayed;
    cddp_dtype coarsest =
        is_low && cd_dtype_precision(local) < cd_dtype_precision(dtype) ? local : dtype;
    /* between two backwards a gradient has the parameter's dtype */
    if (is_low && r->micro_step > r->micro_first &&
        cd_dtype_precision(o->parameters[i].dtype) < cd_dtype_precision(coarsest))
        coarsest = o->parameters[i].dtype;
    double underflow = is_low ? fmax(cd_dtype_underflow(local), cd_dtype_underflow(dtype)) : 0;
    /* a rank adds up in the parameter's dtype, which may be coarser than the wire's */
    if (casts && !is_low &&
        cd_dtype_precision(o->parameters[i].dtype) < cd_dtype_precision(coarsest)) {
        coarsest = o->parameters[i].dtype;
        underflow = fmax(cd_dtype_underflow(coarsest), cd_dtype_underflow(dtype));
    }
    const bool narrows = !cd_dtype_has_all(result_of(o, i), dtype);
    bool divided = w->divided && (!casts || w->division == CD_ORACLE_DIVISION_CAST);
    cd_sum_rule reduction = {.dtype = dtype,
                             .divisor = divided ? 1 : r->divisor,
                             .addends = ranks + depth,
                             .roundings = divided ? depth : depth + 2 + casts,
                             .rounded_once = r->rounded_once && !delayed, /* no hook's */
                             .is_cast = narrows,
                             .cast = result_of(o, i),
                             .division_is_exact = divided || cd_is_power_of_two(r->divisor)};
    if (r->separate) { /* a rank adds up what it has of each micro-step */
        const uint64_t apart = r->micro_step - r->micro_first;
        reduction.roundings += apart;
        reduction.addends += apart * ranks;
    }
    cd_sum_rule mathematics = {.dtype = coarsest,
                               .underflow = underflow,
                               .divisor = r->divisor,
                               .addends = backwards * (ranks + depth) + w->parts,
                               .roundings = p->samples.push_count + backwards * (depth + 2) + casts,
                               /* to what was reduced before, it is added as it was rounded */
                               .rounded_once = r->rounded_once && r->separate && !delayed &&
                                               o->kept[i].kind == CDDP_GRAD_UNDEFINED,
                               .places_between = places_of(r->divisor, backwards - 1),
                               .is_cast = narrows,
                               .cast = result_of(o, i),
                               .division_is_exact = cd_is_power_of_two(r->divisor)};
    if (backwards == 1)
        CD_TRY(judge_sum_added(o, j, i, &p->contributions, &reduction, CD_LINK_REDUCTION, err));
    else
        cd_oracle_give_up(o, CD_LINK_REDUCTION, 1, averaged_each_time);
    return CD_PASS(judge_sum_added(o, j, i, &p->samples, &mathematics, CD_LINK_MATHEMATICS, err));
}

/* FPM-07: a parameter of its unit has a gradient. */
static bool is_filled(const cd_oracle *o, const cd_window *w, size_t i)
{
    const uint32_t unit = o->parameters[i].unit;
    for (size_t k = 0; unit != 0 && k < o->options.parameter_count; k++)
        if (o->parameters[k].unit == unit && w->parameters[k].fired) return true;
    return false;
}

/* Where nothing took part the unit brings zeros. */
static cddp_status judge_fill(cd_oracle *o, const cd_oracle_reduction *r, size_t i, cddp_error *err)
{
    const size_t numel = (size_t)o->parameters[i].numel;
    cd_comparison c = {.element = -1, .exact = true, .numel = numel};
    if (cd_oracle_is_exact_device(o)) return CDDP_OK;
    CD_TRY(cd_numbers_read_gradient(&o->numbers, &r->gradients[i], numel, err));
    for (size_t k = 0; k < numel; k++) {
        if (o->numbers.values[k] == 0) continue;
        if (c.bad++ > 0) continue;
        c.element = (int64_t)k;
        c.actual = o->numbers.values[k];
        c.shape = CD_SHAPE_OTHER;
        cd_text_format(c.words, sizeof c.words,
                       "a gradient that no rank contributed to, in a unit that others reduced");
    }
    cd_oracle_report(o, CD_LINK_REDUCTION, i, &c);
    return CDDP_OK;
}

/* Local SGD: others used it or not, as their own parameters decided, which are not these. What this
** rank used, or one that is averaged with it, is there. */
static bool is_up_to_others(const cd_oracle *o, const cd_oracle_reduction *r, const cd_window *w,
                            size_t i)
{
    const bool is_used = (o->captured[i] && o->local_present[i]) ||
                         (r->rank_count != 0 && w->parameters[i].fired_here);
    return o->options.routes_by_values && (r->has_parted || r->rank_count != 0) && !is_used;
}

static cddp_status judge_presence(cd_oracle *o, const cd_oracle_reduction *r, const cd_window *w,
                                  size_t i, bool *comparable, cddp_error *err)
{
    (void)err;
    bool reduced = o->parameters[i].path != CD_ORACLE_PATH_LOCAL;
    bool kept = o->kept[i].kind != CDDP_GRAD_UNDEFINED || o->added[i].kind != CDDP_GRAD_UNDEFINED ||
                o->parameters[i].path == CD_ORACLE_PATH_DELAYED;
    const bool filled = reduced && !w->parameters[i].fired && is_filled(o, w, i);
    /* a probe is not reduced: what others used is not there */
    const bool is_everybodys = reduced && !r->is_probe;
    bool expected =
        kept || filled ||
        (is_everybodys ? w->parameters[i].fired : o->captured[i] && o->local_present[i]);
    bool actual = r->gradients[i].kind != CDDP_GRAD_UNDEFINED;
    cd_comparison c = {.element = -1, .exact = true};
    const bool is_open = reduced && !kept && is_up_to_others(o, r, w, i);
    *comparable = reduced && actual && (is_open || (expected && w->parameters[i].fired));
    if (is_open) {
        cd_oracle_give_up(o, CD_LINK_PRESENCE, 1, routed_by_others);
        return CDDP_OK;
    }
    if (expected != actual) {
        c = (cd_comparison){.bad = 1,
                            .element = 0,
                            .expected = expected,
                            .actual = actual,
                            .exact = true,
                            .shape = CD_SHAPE_PRESENCE};
        cd_text_format(c.words, sizeof c.words,
                       expected ? "absent, where some rank has a gradient"
                                : "present, although no rank used it: absent is not zero");
    }
    cd_oracle_report(o, CD_LINK_PRESENCE, i, &c);
    return filled && actual && o->kept[i].kind == CDDP_GRAD_UNDEFINED &&
                   o->added[i].kind == CDDP_GRAD_UNDEFINED
               ? CD_PASS(judge_fill(o, r, i, err))
               : CDDP_OK;
}

/* ---- link 6 ---- */

static cddp_status judge_buffers(cd_oracle *o, const cd_start *start, const cd_oracle_reduction *r,
                                 const cddp_tensor *buffers, cddp_error *err)
{
    const cd_oracle_engine *e = start->engine;
    cd_oracle_part part = {.rank = o->options.rank,
                           .step = r->step,
                           .micro_step = r->micro_step,
                           .sample = CD_ORACLE_ALL,
                           .reenters = true};
    if (buffers == NULL || !o->has_buffers || e->sample_count(e->self, &part) == 0) return CDDP_OK;
    CD_TRY(e->load(e->self, start->values, o->buffers, err));
    CD_TRY(e->run(e->self, &part, err));
    for (size_t i = 0; i < o->options.buffer_count; i++) {
        cd_comparison c;
        CD_TRY(cd_oracle_compare_tensors(o, &e->buffers(e->self)[i], &buffers[i], &c, err));
        if (c.bad > 0 && c.words[0] == '\0')
            cd_text_format(c.words, sizeof c.words, "%zu of %zu elements differ", c.bad, c.numel);
        o->summary.compared++;
        o->summary.differing += c.bad > 0;
        o->summary.exact++;
        cd_comparison_emit(&(cd_comparison_place){o->options.tracer, CD_LINK_BUFFER, (int32_t)i,
                                                  "buffer"},
                           &c);
    }
    return CDDP_OK;
}

cddp_status cd_oracle_leave_micro(cd_oracle *oracle, uint32_t step, uint32_t micro_step,
                                  const cddp_tensor *buffers, cddp_error *err)
{
    const cd_start start = cd_oracle_get_start(oracle);
    const cd_oracle_reduction micro = {.step = step, .micro_step = micro_step};
    if (oracle->is_left_out || !cd_oracle_has_values(oracle)) return CDDP_OK;
    return CD_PASS(judge_buffers(oracle, &start, &micro, buffers, err));
}

cddp_status cd_oracle_judge_gradients(cd_oracle *oracle, const cd_oracle_reduction *reduction,
                                      const cddp_tensor *buffers, cddp_error *err)
{
    cd_oracle *o = oracle;
    if (!cd_oracle_has_values(o) && !cd_oracle_is_exact_device(o)) return CDDP_OK;
    if (reduction->divisor == 0)
        return cd_fail(err, CDDP_E_ARG, "the oracle was given divisor 0 at step %u",
                       reduction->step);
    if (reduction->rank_count != 0) cd_oracle_note_gap(o, CD_FREE_BLOCK);
    o->loss_scale = reduction->loss_scale;
    if (o->is_left_out) return CDDP_OK;
    cd_start start = cd_oracle_get_start(o);
    cd_oracle_reduction whole = *reduction; /* over all ranks */
    for (uint32_t r = 0; whole.spans != NULL && r < o->options.world_size; r++) {
        const cd_oracle_span *span = &whole.spans[r];
        if (span->end == 0) continue;
        if (span->first < whole.micro_first) whole.micro_first = span->first;
        if (span->end - 1 > whole.micro_step) whole.micro_step = span->end - 1;
    }
    judged j = {.reduction = &whole, .start = &start};
    CD_TRY(cd_share_find(o->share, &start, &whole, &j.window, err));
    CD_TRY(judge_locals(o, &start, reduction, err));
    CD_TRY(cd_oracle_judge_derivatives(o, &start, reduction, err));
    for (size_t i = 0; j.window != NULL && i < o->options.parameter_count; i++) {
        bool comparable;
        CD_TRY(judge_presence(o, &whole, j.window, i, &comparable, err));
        bool lawless = reduction->lossy && o->parameters[i].path == CD_ORACLE_PATH_BUCKET;
        if (comparable && reduction->is_probe) {
            cd_oracle_give_up(o, CD_LINK_REDUCTION, 1, never_reduced);
            cd_oracle_give_up(o, CD_LINK_MATHEMATICS, 1, never_reduced);
        } else if (comparable && !lawless) {
            CD_TRY(judge_reduced(o, &j, i, err));
        }
    }
    if (j.window == NULL)
        CD_EMIT(o->options.tracer, uncompared, NULL, .references = CD_FAILED_REFERENCES_MAX);
    CD_TRY(judge_buffers(o, &start, reduction, buffers, err));
    return CDDP_OK;
}
