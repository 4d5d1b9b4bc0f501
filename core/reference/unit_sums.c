/* SPDX-License-Identifier: Apache-2.0 */
#include "core/reference/unit_sums.h"

#include "core/base/error.h"
#include "core/oracle/emit.h"
#include "core/oracle/numbers.h"

#include <math.h>
#include <string.h>

#define MEMORY_BLOCK_BYTES ((size_t)4 << 10)

/* FSD-06: ÷ before is exact; ÷ after rounds once; × times is exact. */
typedef struct divisor {
    double before, after, times;
} divisor;

static divisor divisor_of(uint32_t ranks)
{
    uint32_t before = 1, after = ranks;
    while (ranks % before == 0 && ranks / before > before) before *= 2;
    uint32_t times = before;
    for (; times > 1 && after % 2 == 0; times /= 2) after /= 2;
    return (divisor){before, after, times};
}

static double divide_after(const divisor *d, cddp_dtype dtype, double x)
{
    return cd_dtype_round(dtype, cd_dtype_round(dtype, x / d->after) * d->times);
}

static double divide_before(const divisor *d, cddp_dtype dtype, double x)
{
    return cd_dtype_round(dtype, cd_dtype_round(dtype, x) / d->before);
}

static bool is_equal(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

cddp_status cd_unit_sums_init(cd_unit_sums *s, const cd_unit_sums_options *options, cddp_error *err)
{
    const cd_module *module = options->module;
    const size_t count = module->parameter_count;
    *s = (cd_unit_sums){.options = *options};
    cd_arena_init(&s->memory, options->allocator, MEMORY_BLOCK_BYTES);
    cd_arena *memory = &s->memory;
    s->offsets = cd_arena_array(memory, count + 1, sizeof *s->offsets);
    s->has_local = cd_arena_array(memory, count + 1, sizeof *s->has_local);
    s->is_expected = cd_arena_array(memory, count + 1, sizeof *s->is_expected);
    s->has_added = cd_arena_array(memory, count + 1, sizeof *s->has_added);
    CD_TRY(cd_arena_check(memory, err, "the sums of rank %u's units", options->rank));
    for (size_t i = 0; i < count; i++)
        s->offsets[i + 1] =
            s->offsets[i] + (size_t)cddp_tensor_numel(&module->parameters[i].tensor);
    s->local = cd_arena_array(memory, s->offsets[count] + 1, sizeof *s->local);
    s->expected = cd_arena_array(memory, s->offsets[count] + 1, sizeof *s->expected);
    s->added = cd_arena_array(memory, s->offsets[count] + 1, sizeof *s->added);
    return cd_arena_check(memory, err, "the sums of rank %u's units", options->rank);
}

void cd_unit_sums_fini(cd_unit_sums *s)
{
    if (s->options.law != NULL) cd_arena_fini(&s->memory);
}

static void begin_window(cd_unit_sums *s)
{
    s->is_in_backward = s->has_unknown = false;
    for (size_t i = 0; i < s->options.module->parameter_count; i++)
        s->has_local[i] = s->is_expected[i] = false;
}

void cd_unit_sums_begin_step(cd_unit_sums *s, uint32_t step)
{
    const bool goes_on = step == s->step;
    s->step = step;
    begin_window(s);
    for (size_t i = 0; i < s->options.module->parameter_count; i++) s->has_added[i] &= goes_on;
}

void cd_unit_sums_accumulated(cd_unit_sums *s, size_t parameter, const double *values,
                              uint32_t micro_step)
{
    const cd_unit_place place = cd_unit_law_get_place(s->options.law, parameter);
    const size_t numel = s->offsets[parameter + 1] - s->offsets[parameter];
    double *local = s->local + s->offsets[parameter];
    /* FMP-04: by rows another dtype adds up, and slots begin anew */
    const bool adds_up = s->options.by_rows && place.wire != place.dtype && s->has_local[parameter];
    s->micro_step = micro_step;
    s->is_in_backward = true;
    for (size_t k = 0; k < numel; k++) {
        const double cast = cd_dtype_round(place.wire, values[k]);
        local[k] = adds_up ? cd_dtype_round(place.wire, local[k] + cast) : cast;
    }
    s->has_local[parameter] = true;
}

/* ---- what is posted ---- */

/* Where an element of a parameter lies in what its unit posts, and in what it gets back. */
typedef struct laying {
    cd_unit_place place;
    int64_t before; /* by rows: elements of a rank's share in front of this parameter's */
    bool is_cut, by_rows;
} laying;

static laying lay_out(const cd_unit_sums *s, size_t parameter)
{
    laying l = {.place = cd_unit_law_get_place(s->options.law, parameter),
                .by_rows = s->options.by_rows};
    l.is_cut = s->options.mesh.shards > 1 && l.place.share > 0; /* ZER-06 */
    for (size_t i = 0; l.by_rows && i < s->options.module->parameter_count; i++) {
        const cd_unit_place other = cd_unit_law_get_place(s->options.law, i);
        if (other.unit == l.place.unit && other.start < l.place.start) l.before += other.part.share;
    }
    return l;
}

static size_t place_of(const laying *l, int64_t element)
{
    if (!l->is_cut || !l->by_rows) return (size_t)(l->place.start + element);
    const int64_t own = l->place.part.share;
    return (size_t)(element / own * l->place.share + l->before + element % own);
}

static void report(const cd_unit_sums *s, size_t parameter, cd_comparison *c)
{
    const cd_comparison_place place = {s->options.tracer, CD_LINK_PRECISION,
                                       s->options.variables[parameter], NULL};
    c->exact = true;
    c->shape = CD_SHAPE_UNEXPLAINED;
    cd_comparison_emit(&place, c);
}

static void note(cd_comparison *c, int64_t element, double expected, double actual)
{
    c->numel++;
    if (is_equal(expected, actual) || c->bad++ > 0) return;
    c->element = element;
    c->expected = expected;
    c->actual = actual;
}

/* A unit of which some parameter has no elements is laid out in a way that nothing follows from. */
static bool is_laid_out(const cd_unit_sums *s, uint32_t unit)
{
    for (size_t i = 0; i < s->options.module->parameter_count; i++)
        if (cd_unit_law_get_place(s->options.law, i).unit == unit &&
            s->offsets[i] == s->offsets[i + 1])
            return false;
    return true;
}

/* Ranks of a sum: a shard group, its replicas, or all where a unit is not cut. */
static uint32_t count_members(const cd_unit_sums *s, bool scatters)
{
    const cd_planned_mesh mesh = s->options.mesh;
    const bool is_hybrid = mesh.shards > 1 && mesh.replicas > 1;
    return scatters ? mesh.shards : is_hybrid ? mesh.replicas : mesh.shards * mesh.replicas;
}

static cddp_status judge_posted(cd_unit_sums *s, const cd_unit_reduction *r, const double *posted,
                                cddp_error *err)
{
    const divisor d = divisor_of(count_members(s, r->op == CDDP_OP_REDUCE_SCATTER));
    const size_t numel = (size_t)r->numel;
    size_t first = s->options.module->parameter_count;
    if (!cd_arena_grow(&s->memory, (void **)&s->is_named, &s->named_capacity, numel + 1,
                       sizeof *s->is_named))
        return cd_fail_memory(err, "what rank %u gives to a sum", s->options.rank);
    memset(s->is_named, 0, numel * sizeof *s->is_named);
    for (size_t i = s->options.module->parameter_count; i-- > 0;) {
        const laying l = lay_out(s, i);
        cd_comparison c = {.element = -1};
        if (l.place.unit != r->unit) continue;
        first = i;
        for (size_t k = s->offsets[i]; k < s->offsets[i + 1]; k++) {
            const size_t at = place_of(&l, (int64_t)(k - s->offsets[i]));
            const double expected = s->has_local[i] ? divide_before(&d, r->dtype, s->local[k]) : 0;
            if (at >= numel) return CDDP_OK; /* I-COUNT */
            note(&c, (int64_t)(k - s->offsets[i]), expected, posted[at]);
            s->is_named[at] = true;
        }
        cd_text_format(c.words, sizeof c.words,
                       "unit '%.40s' gives another number to its reduction than the gradient in "
                       "%s, divided by %.0f",
                       l.place.name, cddp_dtype_name(r->dtype), d.before);
        if (c.bad > 0) report(s, i, &c);
    }
    cd_comparison padding = {.element = -1};
    for (size_t at = 0; at < numel; at++)
        if (!s->is_named[at]) note(&padding, 0, 0, posted[at]);
    cd_text_format(padding.words, sizeof padding.words,
                   "what a unit pads its gradient with is no "
                   "zero in its reduction");
    if (padding.bad > 0 && first < s->options.module->parameter_count) report(s, first, &padding);
    return CDDP_OK;
}

/* ---- what comes back ---- */

static void expect_shard(cd_unit_sums *s, const cd_unit_reduction *r, const double *result,
                         size_t numel)
{
    const uint32_t own = s->options.rank % s->options.mesh.shards;
    for (size_t i = 0; i < s->options.module->parameter_count; i++) {
        const laying l = lay_out(s, i);
        const cddp_dtype dtype = s->options.module->parameters[i].tensor.dtype;
        const int64_t count = (int64_t)(s->offsets[i + 1] - s->offsets[i]);
        if (l.place.unit != r->unit) continue;
        s->is_expected[i] = true;
        for (int64_t e = 0; e < count; e++) {
            const size_t first = l.is_cut ? own * (size_t)l.place.share : 0, at = place_of(&l, e);
            if (at < first || at - first >= numel) continue;
            s->expected[s->offsets[i] + (size_t)e] = cd_dtype_round(dtype, result[at - first]);
        }
    }
}

/* HSD-02: the mean of a shard group goes on to its replicas. */
static cddp_status keep_passed(cd_unit_sums *s, const cd_unit_reduction *r, const double *result,
                               size_t numel, cddp_error *err)
{
    if (!cd_arena_grow(&s->memory, (void **)&s->passed, &s->passed_capacity, numel,
                       sizeof *s->passed))
        return cd_fail_memory(err, "a share of rank %u", s->options.rank);
    memcpy(s->passed, result, numel * sizeof *result);
    s->passed_numel = numel;
    s->passed_unit = r->unit;
    return CDDP_OK;
}

static void judge_passed(cd_unit_sums *s, const cd_unit_reduction *r, const double *posted)
{
    const divisor d = divisor_of(s->options.mesh.replicas);
    cd_comparison c = {.element = -1};
    size_t first = 0;
    if (s->passed_unit != r->unit || s->passed_numel != (size_t)r->numel) return;
    for (size_t k = 0; k < s->passed_numel; k++)
        note(&c, 0, divide_before(&d, r->dtype, s->passed[k]), posted[k]);
    while (first < s->options.module->parameter_count &&
           cd_unit_law_get_place(s->options.law, first).unit != r->unit)
        first++;
    cd_text_format(c.words, sizeof c.words,
                   "the mean of a shard group goes on to its replicas as another number");
    if (c.bad > 0 && first < s->options.module->parameter_count) report(s, first, &c);
}

static bool fits(const cd_unit_sums *s, const cd_observed_summed *m, const cd_unit_reduction *r)
{
    return count_members(s, r->op == CDDP_OP_REDUCE_SCATTER) == m->members && !m->averages &&
           m->operands.count == (size_t)r->numel * m->members;
}

cddp_status cd_unit_sums_summed(cd_unit_sums *s, const cd_observed_summed *m, cddp_error *err)
{
    const cd_planned_mesh mesh = s->options.mesh;
    const bool is_hybrid = mesh.shards > 1 && mesh.replicas > 1;
    cd_unit_reduction r;
    if (!s->is_in_backward || m->members == 0) return CDDP_OK;
    const cd_unit_reduction like = {.step = s->step,
                                    .micro_step = s->micro_step,
                                    .op = m->scatters ? CDDP_OP_REDUCE_SCATTER : CDDP_OP_ALLREDUCE,
                                    .dtype = m->dtype,
                                    .numel = (int64_t)(m->operands.count / m->members),
                                    .replicas = is_hybrid && !m->scatters};
    if (!cd_unit_law_take(s->options.law, &like, &r) || !fits(s, m, &r) ||
        !is_laid_out(s, r.unit)) {
        s->has_unknown = true;
        return CDDP_OK;
    }
    const uint32_t member = m->scatters ? s->options.rank % mesh.shards
                            : is_hybrid ? s->options.rank / mesh.shards
                                        : s->options.rank;
    const double *posted = m->operands.items + (size_t)member * (size_t)r.numel;
    const divisor d = divisor_of(m->members);
    if (r.replicas)
        judge_passed(s, &r, posted);
    else
        CD_TRY(judge_posted(s, &r, posted, err));
    if (!cd_arena_grow(&s->memory, (void **)&s->result, &s->result_capacity, m->result.count + 1,
                       sizeof *s->result))
        return cd_fail_memory(err, "a sum of rank %u", s->options.rank);
    for (size_t k = 0; k < m->result.count; k++)
        s->result[k] = divide_after(&d, r.dtype, m->result.items[k]);
    if (is_hybrid && m->scatters)
        CD_TRY(keep_passed(s, &r, s->result, m->result.count, err));
    else
        expect_shard(s, &r, s->result, m->result.count);
    return CDDP_OK;
}

/* FSY-05: a later reduction of the step is added to what the shard's gradient was shown as. */
static double expect_sum(cd_unit_sums *s, size_t parameter, int64_t element)
{
    const cddp_dtype dtype = s->options.module->parameters[parameter].tensor.dtype;
    const size_t at = s->offsets[parameter] + (size_t)element;
    const double sum = s->has_added[parameter]
                           ? cd_dtype_round(dtype, s->added[at] + s->expected[at])
                           : s->expected[at];
    s->added[at] = cd_dtype_round(cd_unit_law_get_place(s->options.law, parameter).kept, sum);
    return s->added[at];
}

cddp_status cd_unit_sums_reduced(cd_unit_sums *s, const cddp_grad *gradients, cd_numbers *numbers,
                                 bool *is_followed, cddp_error *err)
{
    const cd_module *module = s->options.module;
    bool has_any = false;
    for (size_t i = 0; i < module->parameter_count; i++) {
        cd_comparison c = {.element = -1};
        const cd_unit_place place = cd_unit_law_get_place(s->options.law, i);
        const size_t numel = s->offsets[i + 1] - s->offsets[i];
        has_any |= s->is_expected[i];
        if (!s->is_expected[i] || s->options.variables[i] < 0 || numel == 0 ||
            gradients[i].kind != CDDP_GRAD_DENSE)
            continue;
        const cd_part_range own = cd_part_get(&place.part, (int64_t)numel, s->options.rank);
        CD_TRY(cd_numbers_read_gradient(numbers, &gradients[i], numel, err));
        for (int64_t e = own.first; e < own.end; e++)
            note(&c, e, expect_sum(s, i, e), numbers->values[e]);
        s->has_added[i] = true;
        cd_text_format(c.words, sizeof c.words,
                       "the shard's gradient is not the sum of unit '%.40s', divided and cast "
                       "from %s to %s",
                       place.name, cddp_dtype_name(place.wire), cddp_dtype_name(place.kept));
        if (c.bad > 0) report(s, i, &c);
    }
    *is_followed = has_any && !s->has_unknown &&
                   cd_unit_law_count_left(s->options.law, s->step, s->micro_step) == 0;
    begin_window(s);
    return CDDP_OK;
}
