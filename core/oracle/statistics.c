/* SPDX-License-Identifier: Apache-2.0 */
/* Link 10 statistics: a synchronised layer normalises with the statistics of the whole batch.
**
** The engine knows each rank's mean m_r, spread S_r = Σ(x - m_r)² and count n_r at this exchange.
** With N = Σ n_r the whole batch has mean m = Σ n_r m_r / N and spread S = Σ (S_r + n_r (m_r -
** m)²). This file judges with its own formulas in f64, bounded as docs/oracle.md derives.
** Differences that follow, in later layers and on other ranks, are reported after the first.
*/
#include "core/oracle/state.h"

#include "core/base/error.h"
#include "core/trace/tracer.h"

#include <math.h>
#include <string.h>

typedef struct channel {
    double mean, spread;             /* of the whole batch */
    double mean_bound, spread_bound; /* allowed distance */
} channel;

/* rows (world, 2·channels + 1): means, spreads, count of each rank. */
typedef struct moments {
    const double *rows;
    uint32_t world;
    size_t channels;
} moments;

static const double *row_of(const moments *m, uint32_t rank)
{
    return m->rows + rank * (2 * m->channels + 1);
}

static channel whole_batch(const moments *m, size_t k)
{
    /* both sides round */
    const double u = 0x1p-53, n = m->world + 5.0, gamma = 2 * n * u / (1 - n * u);
    double total = 0, sum = 0, size = 0, away = 0;
    channel c = {.mean = 0};
    for (uint32_t r = 0; r < m->world; r++) {
        const double count = row_of(m, r)[2 * m->channels];
        total += count;
        sum += count * row_of(m, r)[k];
        size += count * fabs(row_of(m, r)[k]);
    }
    c.mean = sum / total;
    c.mean_bound = gamma * size / total;
    for (uint32_t r = 0; r < m->world; r++) {
        const double count = row_of(m, r)[2 * m->channels], distance = row_of(m, r)[k] - c.mean;
        c.spread += row_of(m, r)[m->channels + k] + count * distance * distance;
        away += count * fabs(distance);
    }
    c.spread_bound =
        gamma * c.spread + 2 * c.mean_bound * away + total * c.mean_bound * c.mean_bound;
    return c;
}

/* Is the first wrong number this rank's local statistic? Its spread counts as many elements as the
** whole batch's. */
static bool is_own(const cd_oracle *o, const moments *m, const cd_comparison *c)
{
    const size_t element = (size_t)c->element, k = element % m->channels;
    const double *own = row_of(m, o->options.rank), u = 0x1p-53;
    double total = 0;
    for (uint32_t r = 0; r < m->world; r++) total += row_of(m, r)[2 * m->channels];
    const double wanted =
        element < m->channels ? own[k] : own[m->channels + k] / own[2 * m->channels] * total;
    return fabs(c->actual - wanted) <= c->bound + 4 * (m->world + 5) * u * fabs(wanted);
}

/* Is it a mean that weighs ranks of different counts equally? */
static bool is_unweighted(const moments *m, const cd_comparison *c)
{
    const size_t k = (size_t)c->element;
    double alike = 0, size = 0;
    for (uint32_t r = 0; k < m->channels && r < m->world; r++) {
        alike += row_of(m, r)[k] / m->world;
        size += fabs(row_of(m, r)[k]) / m->world;
    }
    return k < m->channels &&
           fabs(c->actual - alike) <= c->bound + 4 * (m->world + 5) * 0x1p-53 * size;
}

static void explain(const cd_oracle *o, const moments *m, cd_comparison *c)
{
    c->shape = CD_SHAPE_UNEXPLAINED;
    if (!isfinite(c->actual) && isfinite(c->expected)) {
        c->shape = CD_SHAPE_NONFINITE;
        cd_text_format(c->words, sizeof c->words, "not finite at element %lld, where %.9g belongs",
                       (long long)c->element, c->expected);
    } else if (is_own(o, m, c)) {
        c->shape = CD_SHAPE_LOCAL;
        cd_text_format(c->words, sizeof c->words, "the statistics of rank %u alone",
                       o->options.rank);
    } else if (is_unweighted(m, c)) {
        cd_text_format(c->words, sizeof c->words,
                       "every rank weighs alike, although their counts differ");
    } else {
        cd_text_format(c->words, sizeof c->words, "%zu of %zu numbers differ", c->bad, c->numel);
    }
}

/* Numbers are counted through: the means of all channels, and then their spreads. */
static void say_number(const moments *m, cd_comparison *c)
{
    const size_t element = (size_t)c->element, length = strlen(c->words);
    cd_text_format(c->words + length, sizeof c->words - length, "; first the %s of channel %zu",
                   element < m->channels ? "mean" : "spread", element % m->channels);
}

static void judge_number(cd_comparison *c, size_t element, double expected, double actual,
                         double bound)
{
    const bool is_good = fabs(actual - expected) <= bound; /* NaN is not */
    c->bad += !is_good;
    if (is_good) {
        if (c->bad == 0) c->bound = fmax(c->bound, bound);
        return;
    }
    if (c->element >= 0) return; /* the first one explains most: means come before spreads */
    c->element = (int64_t)element;
    c->expected = expected;
    c->actual = actual;
    c->bound = bound;
    c->ulps = (uint64_t)fmin(fabs(actual - expected) / cd_dtype_ulp(CDDP_F64, expected), 0x1p62);
}

static void report(cd_oracle *o, const cd_oracle_moments *used, const cd_comparison *c)
{
    o->summary.compared++;
    o->summary.differing += c->bad > 0;
    o->summary.bounded++;
    cd_comparison_emit(&(cd_comparison_place){o->options.tracer, CD_LINK_STATISTICS,
                                              (int32_t)used->buffer, "statistics"},
                       c);
}

/* For the second form of the model, after the backward. */
static cddp_status keep(cd_oracle *o, const cd_oracle_moments *used, cddp_error *err)
{
    if (o->norm_count == CD_SECOND_NORMS_MAX) return CDDP_OK;
    double *kept = cd_arena_array(&o->norm_room, 2 * used->channels + 1, sizeof *kept);
    CD_TRY(cd_arena_check(&o->norm_room, err, "the statistics of %zu channels", used->channels));
    memcpy(kept, used->mean, used->channels * sizeof *kept);
    memcpy(kept + used->channels, used->spread, used->channels * sizeof *kept);
    cd_oracle_moments *m = &o->norms[o->norm_count++];
    *m = *used;
    m->mean = kept;
    m->spread = kept + used->channels;
    return CDDP_OK;
}

/* Note [Statistics of the whole batch] The second form has the activations of all ranks as scalars
** with a bound on each, and forms mean and spread over all of them at once. So neither a rank's own
** mean nor the rule that combines them is its own witness. */
static void compare_norm(cd_oracle *o, const cd_second_norm *norm, const cd_oracle_moments *used)
{
    cd_comparison c = {.numel = 2 * used->channels, .element = -1};
    for (size_t pass = 0; pass < 2; pass++) {
        for (size_t k = 0; k < used->channels; k++) {
            const cd_second_channel *x = &norm->channels[k];
            const cd_scalar which = pass == 0 ? x->mean : x->squares;
            const double value = cd_scalars_get(&o->scalars, which);
            const double size = pass == 0 ? x->size : value + x->size * x->size * (double)x->count;
            const double bound =
                cd_scalars_get_error(&o->scalars, which) + (double)(x->count + 8) * 0x1p-50 * size;
            if (!isfinite(value) || !isfinite(bound)) continue;
            judge_number(&c, pass * used->channels + k, value,
                         pass == 0 ? used->mean[k] : used->spread[k], bound);
        }
    }
    if (c.bad > 0) {
        c.shape = CD_SHAPE_UNEXPLAINED;
        cd_text_format(c.words, sizeof c.words,
                       "%zu of %zu numbers are not those of the samples of all ranks together",
                       c.bad, c.numel);
    }
    report(o, used, &c);
}

void cd_oracle_compare_norms(cd_oracle *o, const cd_second_result *result, uint32_t micro_step)
{
    for (size_t i = 0; i < o->norm_count; i++) {
        const cd_oracle_moments *used = &o->norms[i];
        if (used->micro_step != micro_step || used->exchange >= result->norm_count) continue;
        const cd_second_norm *norm = &result->norms[used->exchange];
        if (norm->count == used->channels) compare_norm(o, norm, used);
    }
}

/* The layer is named as the reference finds it; unknown: as the run says. */
static cddp_status find_layer(cd_oracle *o, const cd_start *start, cd_oracle_moments *used,
                              moments *m, int64_t *buffer, cddp_error *err)
{
    const cd_oracle_engine *e = start->engine;
    const cd_oracle_part part = {.rank = o->options.rank,
                                 .step = used->step,
                                 .micro_step = used->micro_step,
                                 .sample = CD_ORACLE_ALL};
    cd_oracle_exchange found;
    CD_TRY(e->load(e->self, start->values, start->buffers, err));
    CD_TRY(e->statistics(e->self, &part, used->exchange, 2 * used->channels + 1, &found, err));
    m->rows = found.rows;
    *buffer = found.buffer;
    if (found.buffer >= 0) used->buffer = (uint32_t)found.buffer;
    return CDDP_OK;
}

cddp_status cd_oracle_judge_statistics(cd_oracle *oracle, const cd_oracle_moments *used,
                                       int64_t *buffer, cddp_error *err)
{
    cd_oracle *o = oracle;
    const cd_start start = cd_oracle_get_start(o);
    cd_oracle_moments own = *used;
    moments m = {.world = o->options.world_size, .channels = used->channels};
    cd_comparison c = {.numel = 2 * used->channels, .element = -1};
    *buffer = -1;
    if (start.engine->statistics == NULL || o->is_left_out) return CDDP_OK;
    if (!cd_share_judges_statistics(o->share, used->step, start.digest)) {
        o->is_left_out = true;
        CD_EMIT(o->options.tracer, uncompared, NULL, .references = CD_FAILED_REFERENCES_MAX,
                .statistics = 1);
        return CDDP_OK;
    }
    CD_TRY(find_layer(o, &start, &own, &m, buffer, err));
    CD_TRY(keep(o, &own, err));
    for (size_t k = 0; k < m.channels; k++)
        judge_number(&c, k, whole_batch(&m, k).mean, used->mean[k], whole_batch(&m, k).mean_bound);
    for (size_t k = 0; k < m.channels; k++)
        judge_number(&c, m.channels + k, whole_batch(&m, k).spread, used->spread[k],
                     whole_batch(&m, k).spread_bound);
    if (c.bad > 0) {
        explain(o, &m, &c);
        say_number(&m, &c);
        cd_share_note_wrong_statistics(o->share, used->step, start.digest);
        /* one process has one model: where ranks start apart nothing that they exchange is its */
        CD_EMIT(o->options.tracer, mark, CD_TRACER_STARTS, .value = (int64_t)(start.digest >> 12));
    }
    report(o, &own, &c);
    return CDDP_OK;
}
