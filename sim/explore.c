/* SPDX-License-Identifier: Apache-2.0 */
/* Which schedule to try next. See explore.h.
**
** Invariants:
**   X1  exhaustive: the answers of run i+1 are the successor of those of run i in the order of an odometer whose
**       digits are choice points, so every combination comes once and the last one ends the search;
**   X2  a run is a function of its answers, so the same prefix meets the same choices (checked by option counts).
*/
#include "sim/explore.h"

#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/prng.h"

#include <string.h>

const char *cd_strategy_name(cd_strategy strategy)
{
    static const char *const names[CD_STRATEGY_COUNT] = {"random", "pct", "exhaustive"};
    return (unsigned)strategy < CD_STRATEGY_COUNT ? names[strategy] : "?";
}

cddp_status cd_explorer_init(cd_explorer *e, const cd_explore_options *options, cddp_error *err)
{
    *e = (cd_explorer){.options = *options};
    if (options->strategy == CD_STRATEGY_PCT && (options->depth < 1 || options->depth > CD_PCT_DEPTH_MAX))
        return cd_fail(err, CDDP_E_ARG, "a depth of %u; pct takes 1 to %d", options->depth, CD_PCT_DEPTH_MAX);
    e->outcome_capacity = 1024;
    e->outcomes = cd_allocate_array(options->allocator, e->outcome_capacity, sizeof *e->outcomes);
    if (e->outcomes == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory for an exploration");
    return CDDP_OK;
}

void cd_explorer_fini(cd_explorer *e)
{
    cd_release(e->options.allocator, e->outcomes, e->outcome_capacity * sizeof *e->outcomes);
    cd_release(e->options.allocator, e->answers, e->answer_capacity * sizeof *e->answers);
    *e = (cd_explorer){.exhausted = true};
}

/* ---- choosers that count ---- */

static uint32_t choose_random(void *self, const cddp_choice *choice, cd_place place)
{
    cd_explorer *e = self;
    e->choices = place.number + 1;
    if (choice->option_count > e->contenders_max) e->contenders_max = choice->option_count;
    return (uint32_t)cd_prng_below(&e->random.prng, choice->option_count);
}

static uint32_t choose_pct(void *self, const cddp_choice *choice, cd_place place)
{
    cd_explorer *e = self;
    e->choices = place.number + 1;
    if (choice->option_count > e->contenders_max) e->contenders_max = choice->option_count;
    return e->inner.choose(e->inner.self, choice, place);
}

static uint32_t choose_planned(void *self, const cddp_choice *choice, cd_place place)
{
    cd_explorer *e = self;
    e->choices = place.number + 1;
    if (choice->option_count > e->contenders_max) e->contenders_max = choice->option_count;
    if (e->options.choices_max != 0 && place.number >= e->options.choices_max) {
        e->bounded = true;
        return 0;
    }
    size_t i = (size_t)place.number;
    if (i < e->planned) {
        CD_ASSERT(e->answers[i].options == choice->option_count); /* X2 */
        return e->answers[i].value;
    }
    if (e->failed || !cd_vec_grow(e->options.allocator, (void **)&e->answers, &e->answer_capacity, i + 1, sizeof *e->answers)) {
        e->failed = true;
        return 0;
    }
    e->answers[i] = (cd_answer){0, choice->option_count};
    e->answer_count = i + 1;
    return 0;
}

const cd_chooser *cd_explorer_next(cd_explorer *e)
{
    if (e->exhausted || (e->options.runs_max != 0 && e->runs >= e->options.runs_max)) return NULL;
    cd_prng root = cd_prng_seed(e->options.seed), prng = cd_prng_split_index(&root, "explore", e->runs);
    e->choices = 0;
    switch (e->options.strategy) {
    case CD_STRATEGY_RANDOM:
        e->random.prng = prng;
        e->chooser = (cd_chooser){.self = e, .name = "random", .choose = choose_random};
        break;
    case CD_STRATEGY_PCT:
        e->inner = cd_chooser_pct(&e->pct, cd_prng_next(&prng), e->options.depth, e->choices_longest);
        e->chooser = (cd_chooser){.self = e, .name = "pct", .choose = choose_pct};
        break;
    case CD_STRATEGY_EXHAUSTIVE:
    case CD_STRATEGY_COUNT:
        e->planned = e->answer_count;
        e->chooser = (cd_chooser){.self = e, .name = "exhaustive", .choose = choose_planned};
        break;
    }
    return &e->chooser;
}

/* ---- outcomes ---- */

static bool outcome_add(uint64_t *table, size_t capacity, uint64_t outcome)
{
    size_t i = (size_t)outcome & (capacity - 1);
    while (table[i] != 0 && table[i] != outcome) i = (i + 1) & (capacity - 1);
    bool is_new = table[i] == 0;
    table[i] = outcome;
    return is_new;
}

static cddp_status outcome_count(cd_explorer *e, uint64_t outcome, cddp_error *err)
{
    if (2 * (e->outcome_count + 1) > e->outcome_capacity) {
        size_t capacity = e->outcome_capacity * 2;
        uint64_t *table = cd_allocate_array(e->options.allocator, capacity, sizeof *table);
        if (table == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory for %zu outcomes", e->outcome_count);
        for (size_t i = 0; i < e->outcome_capacity; i++)
            if (e->outcomes[i] != 0) outcome_add(table, capacity, e->outcomes[i]);
        cd_release(e->options.allocator, e->outcomes, e->outcome_capacity * sizeof *e->outcomes);
        e->outcomes = table;
        e->outcome_capacity = capacity;
    }
    e->outcome_count += outcome_add(e->outcomes, e->outcome_capacity, outcome != 0 ? outcome : 1);
    return CDDP_OK;
}

/* X1: the last digit that can grow grows, those behind it are forgotten. */
static void odometer_advance(cd_explorer *e)
{
    /* A run may pass fewer choices than were planned when it ended early; what it did not reach is no digit. */
    if (e->choices < e->answer_count) e->answer_count = (size_t)e->choices;
    while (e->answer_count > 0) {
        cd_answer *last = &e->answers[e->answer_count - 1];
        if (last->value + 1 < last->options) {
            last->value++;
            return;
        }
        e->answer_count--;
    }
    e->exhausted = true;
}

cddp_status cd_explorer_done(cd_explorer *e, uint64_t outcome, cddp_error *err)
{
    e->runs++;
    if (e->choices > e->choices_longest) e->choices_longest = e->choices;
    if (e->failed) return cd_fail(err, CDDP_E_NOMEM, "no memory for the choices of a run");
    CD_TRY(outcome_count(e, outcome, err));
    if (e->options.strategy == CD_STRATEGY_EXHAUSTIVE) odometer_advance(e);
    return CDDP_OK;
}

double cd_explorer_miss_chance(const cd_explorer *e, double *inverse)
{
    double n = e->contenders_max > 1 ? (double)e->contenders_max : 1.0, k = e->choices_longest > 1 ? (double)e->choices_longest : 1.0;
    double hit = 1.0 / n, miss = 1.0;
    for (uint32_t i = 1; i < e->options.depth; i++) hit /= k;
    *inverse = 1.0 / hit;
    /* (1 - hit)^runs by squaring: no libm, the same on every machine. */
    double base = 1.0 - hit;
    for (uint64_t r = e->runs; r > 0; r /= 2, base *= base)
        if (r % 2 == 1) miss *= base;
    return miss;
}

double cd_explorer_progress(const cd_explorer *e)
{
    double done = 0.0, weight = 1.0;
    if (e->exhausted) return 1.0;
    for (size_t i = 0; i < e->answer_count && weight > 1e-18; i++) {
        weight /= (double)e->answers[i].options;
        done += weight * (double)e->answers[i].value;
    }
    return done;
}
