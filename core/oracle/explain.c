/* SPDX-License-Identifier: Apache-2.0 */
/* Candidate explanations, from the most to the least specific. */
#include "core/oracle/explain.h"

#include "core/base/error.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "core/oracle/numbers.h"
#include "core/oracle/weights.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LOCALS_BLOCK_BYTES ((size_t)4096)

cddp_status cd_locals_init(cd_locals *locals, const cddp_allocator *allocator, cddp_error *err)
{
    const size_t parts = (size_t)locals->rank_count * locals->micro_count;
    cd_arena *arena = &locals->arena;
    cd_arena_init(arena, allocator, LOCALS_BLOCK_BYTES);
    locals->values = cd_arena_array(arena, parts * locals->numel, sizeof *locals->values);
    locals->present =
        cd_arena_array(arena, parts * locals->parameter_count, sizeof *locals->present);
    locals->magnitudes = cd_arena_array(arena, locals->numel, sizeof *locals->magnitudes);
    locals->samples = cd_arena_array(arena, parts, sizeof *locals->samples);
    cddp_status status =
        cd_arena_check(arena, err, "%zu local gradients of %zu elements", parts, locals->numel);
    if (status != CDDP_OK) cd_locals_fini(locals);
    return status;
}

void cd_locals_fini(cd_locals *locals)
{
    cd_arena_fini(&locals->arena);
    locals->values = locals->magnitudes = NULL;
    locals->present = NULL;
    locals->samples = NULL;
}

double *cd_locals_get(const cd_locals *locals, uint32_t rank, uint32_t micro, size_t parameter)
{
    size_t part = (size_t)rank * locals->micro_count + (micro - locals->micro_first);
    return locals->values + part * locals->numel + locals->offsets[parameter];
}

bool *cd_locals_presence(const cd_locals *locals, uint32_t rank, uint32_t micro, size_t parameter)
{
    size_t part = (size_t)rank * locals->micro_count + (micro - locals->micro_first);
    return locals->present + part * locals->parameter_count + parameter;
}

uint32_t *cd_locals_samples(const cd_locals *locals, uint32_t rank, uint32_t micro)
{
    return locals->samples + (size_t)rank * locals->micro_count + (micro - locals->micro_first);
}

void cd_locals_close(cd_locals *locals)
{
    size_t parts = (size_t)locals->rank_count * locals->micro_count;
    for (size_t i = 0; i < locals->numel; i++) locals->magnitudes[i] = 0;
    for (size_t part = 0; part < parts; part++)
        for (size_t i = 0; i < locals->numel; i++)
            locals->magnitudes[i] += fabs(locals->values[part * locals->numel + i]);
}

typedef struct context {
    cd_comparison *c;
    const cd_suspect *s;
    bool is_exact; /* candidates must match bit for bit */
} context;

static bool settle(const context *x, cd_shape shape, const char *format, ...) CDDP_PRINTF(3, 4);
static bool settle(const context *x, cd_shape shape, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    cd_vformat(x->c->words, sizeof x->c->words, format, args);
    va_end(args);
    x->c->shape = shape;
    return true;
}

/* Where the division rounds, the expected and the actual value have different roundings. Each side
** has one per contribution and one more, each at most half an ulp of the sum of magnitudes. */
static double rounding(const context *x, size_t i)
{
    const cd_locals *l = x->s->locals;
    if (x->is_exact || x->c->bound != 0 || l == NULL) return 0;
    double parts = (double)l->rank_count * l->micro_count;
    double magnitude = l->magnitudes[l->offsets[x->s->parameter] + i];
    return 2 * (parts + 1) *
           ldexp(magnitude / (double)x->s->divisor, -cd_dtype_precision(x->s->dtype));
}

/* Is element i the candidate? */
static bool near(const context *x, size_t i, double candidate)
{
    double actual = x->s->actual[i];
    if (actual == candidate) return true;
    double slack =
        x->is_exact ? 0 : x->c->bound + rounding(x, i) + 2 * cd_dtype_ulp(x->s->dtype, candidate);
    return fabs(actual - candidate) <= slack;
}

/* actual = expected + sign · Σ of the contributions of rank (or all) at micro-step (or all) /
** divisor. */
typedef struct selection {
    int64_t rank, micro; /* -1: all */
    double sign;
} selection;

static double selected_sum(const context *x, const selection *pick, size_t i)
{
    const cd_locals *l = x->s->locals;
    double sum = 0;
    uint32_t first = pick->rank < 0 ? 0 : (uint32_t)pick->rank,
             count = pick->rank < 0 ? l->rank_count : 1;
    for (uint32_t r = first; r < first + count; r++)
        for (uint32_t m = l->micro_first; m < l->micro_first + l->micro_count; m++)
            if (pick->micro < 0 || pick->micro == (int64_t)m)
                sum += cd_locals_get(l, r, m, x->s->parameter)[i];
    return sum;
}

static bool fits_selection(const context *x, const selection *pick)
{
    bool differs = false;
    for (size_t i = 0; i < x->c->numel; i++) {
        double change = pick->sign * selected_sum(x, pick, i) / (double)x->s->divisor;
        if (!near(x, i, x->s->expected[i] + change)) return false;
        /* by more than rounding */
        differs = differs || (change != 0 && !near(x, i, x->s->expected[i]));
    }
    return differs;
}

static bool is_nonfinite(const context *x)
{
    for (size_t i = 0; i < x->c->numel; i++)
        if (!isfinite(x->s->actual[i]) && isfinite(x->s->expected[i]))
            return settle(x, x->c->in_range ? CD_SHAPE_UNEXPLAINED : CD_SHAPE_NONFINITE,
                          "not finite at element %zu, where %.9g belongs%s", i, x->s->expected[i],
                          x->c->in_range ? " and nothing overflows" : "");
    return false;
}

static bool is_zero(const context *x)
{
    for (size_t i = 0; i < x->c->numel; i++)
        if (x->s->actual[i] != 0) return false;
    return settle(x, CD_SHAPE_ZERO, "all zeros");
}

static bool is_stale(const context *x)
{
    if (x->s->before == NULL) return false;
    for (size_t i = 0; i < x->c->numel; i++)
        if (x->s->actual[i] != x->s->before[i]) return false;
    return settle(x, CD_SHAPE_STALE, "%s",
                  x->s->before_words != NULL ? x->s->before_words
                                             : "unchanged since the beginning of the step");
}

/* For an update: wrong elements have the value from before, and the rest is right. */
static bool is_partly_stale(const context *x)
{
    long long first = -1, last = -1, count = 0;
    for (size_t i = 0; x->s->before_words != NULL && i < x->c->numel; i++) {
        if (near(x, i, x->s->expected[i])) continue;
        if (x->s->actual[i] != x->s->before[i]) return false;
        first = first < 0 ? (long long)i : first;
        last = (long long)i;
        count++;
    }
    if (count == 0) return false;
    first += x->s->first;
    last += x->s->first;
    if (first == last) return settle(x, CD_SHAPE_STALE, "element %lld was not updated", first);
    return settle(x, CD_SHAPE_STALE, "%lld elements from %lld to %lld were not updated", count,
                  first, last);
}

static bool is_local(const context *x)
{
    const cd_locals *l = x->s->locals;
    for (uint32_t r = 0; l != NULL && r < l->rank_count; r++) {
        selection pick = {r, -1, 1};
        size_t i = 0;
        while (i < x->c->numel && near(x, i, selected_sum(x, &pick, i))) i++;
        if (i == x->c->numel)
            return settle(x, CD_SHAPE_LOCAL, "equals the local gradient of rank %u: not reduced",
                          r);
    }
    return false;
}

/* The ratio that all elements share, from the largest expected one; *support counts elements that
** are not zero. */
static bool shared_ratio(const context *x, double *ratio, size_t *support)
{
    size_t largest = 0;
    *support = 0;
    for (size_t i = 0; i < x->c->numel; i++) {
        if (fabs(x->s->expected[i]) > fabs(x->s->expected[largest])) largest = i;
        *support += x->s->expected[i] != 0;
    }
    if (x->c->numel == 0 || x->s->expected[largest] == 0 || !isfinite(x->s->expected[largest]))
        return false;
    *ratio = x->s->actual[largest] / x->s->expected[largest];
    for (size_t i = 0; i < x->c->numel; i++) {
        double candidate = *ratio * x->s->expected[i];
        double slack = (x->is_exact ? 0 : (x->c->bound + rounding(x, i)) * fmax(1, fabs(*ratio))) +
                       2 * cd_dtype_ulp(x->s->dtype, candidate);
        if (fabs(x->s->actual[i] - candidate) > slack) return false;
    }
    return true;
}

static bool is_ratio(const context *x, size_t support_min, bool closed_only)
{
    double ratio;
    size_t support;
    if (!shared_ratio(x, &ratio, &support) || support < support_min) return false;
    if (fabs(ratio - 1) < 1e-3) return false; /* wrong bits, not a wrong scale */
    double w = (double)x->s->divisor, k = x->s->locals != NULL ? x->s->locals->micro_count : 1;
    const struct {
        double value;
        const char *words;
    } forms[] = {{1 / w, "divided twice"},
                 {w, "the sum, not the mean"},
                 {1 / k, "divided by the number of micro-steps as well"},
                 {k, "multiplied by the number of micro-steps"},
                 {1 / (w * w), "divided three times"},
                 {-1, "the sign is wrong"},
                 {2, "counted twice"},
                 {0.5, "half of it"}};
    char words[120] = "";
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (forms[i].value == 1 ||
            fabs(ratio - forms[i].value) > 1e-3 * fabs(forms[i].value) * (x->is_exact ? 1e-4 : 1))
            continue;
        /* with two ranks, say, half of it is also what a second division makes */
        const size_t used = strlen(words);
        snprintf(words + used, sizeof words - used, "%s%s", used > 0 ? ", or " : "",
                 forms[i].words);
    }
    if (words[0] != '\0') {
        x->c->ratio = ratio;
        if (ratio < 1 && ratio > 0)
            return settle(x, CD_SHAPE_RATIO, "ratio 1/%.6g on every element: %s", 1 / ratio, words);
        return settle(x, CD_SHAPE_RATIO, "ratio %s on every element: %s",
                      cd_ratio_print(ratio).text, words);
    }
    if (closed_only) return false;
    x->c->ratio = ratio;
    return settle(x, CD_SHAPE_RATIO, "ratio %s on every element", cd_ratio_print(ratio).text);
}

/* A single contribution that explains the error names the culprit. Several may explain it, because
** they are alike or differ by less than rounding. Then naming the first could blame an innocent
** rank. */
static bool is_one_contribution(const context *x, double sign, bool per_micro, cd_shape shape,
                                const char *words)
{
    const cd_locals *l = x->s->locals;
    uint32_t fits = 0, rank = 0, micro = 0;
    for (uint32_t r = 0; r < l->rank_count; r++)
        for (uint32_t m = 0; m < (per_micro ? l->micro_count : 1); m++) {
            if (!fits_selection(x, &(selection){r, per_micro ? (int64_t)(l->micro_first + m) : -1,
                                                sign}))
                continue;
            if (fits++ > 0) continue;
            rank = r;
            micro = l->micro_first + m;
        }
    if (fits == 0) return false;
    char which[64];
    if (per_micro)
        snprintf(which, sizeof which, "micro-step %u of rank %u", micro, rank);
    else
        snprintf(which, sizeof which, "the contribution of rank %u", rank);
    if (fits == 1) {
        x->c->source_rank = rank + 1;
        x->c->source_micro = per_micro ? micro + 1 : 0;
        return settle(x, shape, "%s %s", words, which);
    }
    const char *one = fits == 2 ? " that explains" : "s that explain";
    return settle(x, shape, "%s %s, or %u other%s it as well", words, which, fits - 1, one);
}

static bool is_missing_or_doubled(const context *x)
{
    const cd_locals *l = x->s->locals;
    if (l == NULL) return false;
    for (int sign = -1; sign <= 1; sign += 2) {
        cd_shape shape = sign < 0 ? CD_SHAPE_MISSING : CD_SHAPE_DOUBLED;
        const char *words = sign < 0 ? "missing" : "counted twice:";
        for (uint32_t m = l->micro_first; l->micro_count > 1 && m < l->micro_first + l->micro_count;
             m++)
            if (fits_selection(x, &(selection){-1, m, sign}))
                return settle(x, shape, "%s micro-step %u of all ranks", words, m);
        if (is_one_contribution(x, sign, false, shape, words)) return true;
        if (l->micro_count > 1 && is_one_contribution(x, sign, true, shape, words)) return true;
    }
    return false;
}

/* Another parameter of the same size: its mean, or a rank's own gradient of it. */
static bool is_other(const context *x)
{
    const cd_locals *l = x->s->locals;
    for (size_t q = 0; l != NULL && q < l->parameter_count; q++) {
        if (q == x->s->parameter || l->offsets[q + 1] - l->offsets[q] != x->c->numel) continue;
        context other = *x;
        cd_suspect suspect = *x->s;
        suspect.parameter = q;
        other.s = &suspect;
        const char *name = x->s->names != NULL ? x->s->names[q] : "another parameter";
        for (int64_t r = -1; r < (int64_t)l->rank_count; r++) {
            selection pick = {r, -1, 1};
            double divisor = r < 0 ? (double)x->s->divisor : 1;
            size_t i = 0;
            while (i < x->c->numel && near(x, i, selected_sum(&other, &pick, i) / divisor)) i++;
            if (i < x->c->numel) continue;
            if (r < 0) return settle(x, CD_SHAPE_OTHER, "equals the gradient of %s", name);
            return settle(x, CD_SHAPE_OTHER, "equals the gradient of %s on rank %lld", name,
                          (long long)r);
        }
    }
    return false;
}

/* What the step before had in its place, alone or added to the right value. */
static bool is_previous(const context *x)
{
    const double *previous = x->s->previous;
    for (int added = 0; previous != NULL && added < 2; added++) {
        bool differs = false;
        size_t i = 0;
        for (; i < x->c->numel; i++) {
            if (!near(x, i, previous[i] + (added ? x->s->expected[i] : 0))) break;
            differs = differs || !near(x, i, x->s->expected[i]);
        }
        if (i < x->c->numel || !differs) continue;
        return settle(x, CD_SHAPE_STALE, "%s",
                      added ? "the value of the step before is added to it"
                            : "it is the value of the step before");
    }
    return false;
}

static bool is_weighted(const context *x)
{
    cd_weights found;
    if (!cd_weights_find(x->c, x->s, &found)) return false;
    x->c->ratio = found.weight;
    x->c->source_rank = found.source_rank;
    x->c->source_micro = found.source_micro;
    return settle(x, found.is_missing ? CD_SHAPE_MISSING : CD_SHAPE_RATIO, "%s", found.words);
}

static bool is_shifted(const context *x)
{
    int64_t n = (int64_t)x->c->numel, reach = n / 2 < 64 ? n / 2 : 64;
    for (int64_t shift = -reach; shift <= reach; shift++) {
        bool fits = shift != 0;
        for (int64_t i = 0; fits && i < n; i++) {
            int64_t from = i + shift;
            if (from >= 0 && from < n) fits = near(x, (size_t)i, x->s->expected[from]);
        }
        if (fits)
            return settle(x, CD_SHAPE_SHIFTED, "the right values, shifted by %lld element%s",
                          (long long)-shift, cd_plural((uint64_t)(shift < 0 ? -shift : shift)));
    }
    return false;
}

/* Wrong bits, not a wrong scale: in 16 bits a ratio of 1.005 may be one unit in the last place. */
static bool is_rounded(const context *x)
{
    double most = 0;
    for (size_t i = 0; i < x->c->numel; i++) {
        const double wanted = x->s->expected[i];
        const double units = fabs(x->s->actual[i] - wanted) / cd_dtype_ulp(x->s->dtype, wanted);
        if (!(units <= 2)) return false;
        most = fmax(most, units);
    }
    return settle(x, CD_SHAPE_UNEXPLAINED,
                  "%zu of %zu elements differ by %.3g unit%s in the last place: rounded in "
                  "another way",
                  x->c->bad, x->c->numel, most, most == 1 ? "" : "s");
}

void cd_explain(cd_comparison *comparison, const cd_suspect *suspect)
{
    bool power_of_two = (suspect->divisor & (suspect->divisor - 1)) == 0;
    context x = {comparison, suspect, comparison->bound == 0 && power_of_two};
    if (comparison->bad == 0) return;
    bool explained = is_nonfinite(&x) || is_zero(&x) || is_stale(&x) || is_partly_stale(&x) ||
                     is_local(&x) || is_ratio(&x, 2, true) || is_missing_or_doubled(&x) ||
                     is_previous(&x) || is_other(&x) || is_shifted(&x) || is_rounded(&x) ||
                     is_ratio(&x, 3, false) || is_weighted(&x) || is_ratio(&x, 1, true);
    if (!explained)
        (void)settle(&x, CD_SHAPE_UNEXPLAINED,
                     "%zu of %zu elements differ, without a simple explanation", comparison->bad,
                     comparison->numel);
}
