/* SPDX-License-Identifier: Apache-2.0 */
/* Which schedule to try next. See explore.h.
**
** Invariants:
**   X1  exhaustive: the answers of run i+1 are the successor of those of run i in the order of an
**       odometer whose digits are the choices that are varied, so every combination comes once and
**       the last one ends the search;
**   X2  a run is a function of its answers, so the same prefix meets the same choices (checked by
**       option counts);
**   X3  a state is in `states` exactly when what follows it was tried, or is being tried by the run
**       in progress.
**
** Note [Turns commute] A rank is a sequential program. Direct and model collectives, and messages,
** give each member what a function of all members' contributions gives, whenever they came; a rank
** that waits learns nothing but that. So the ranks are a network of deterministic processes with
** blocking reads (Kahn, 1974): given every rank's own answers, each rank does the same things in
** every order of turns. If one order meets no race (cd_sim_stats.races), then no order does.
**
** Note [Probes] A rank that looks at the tensors of an operation before it waits for it sees its
** contribution, or the result when it posted last. That breaks what Note [Turns commute] assumes,
** and the world cannot see it: reading memory leaves no trace. So run number 2^k, and every 64th,
** draws its turns as well. An outcome that is not verified is found like any other. Exhaustive
** search knows all outcomes of one order of turns at the end. When a probe had another one, the
** order matters, and the search begins again with turns. (With symmetry outcomes are equal only up
** to a renaming, and are not compared.)
**
** Note [Merging] Two runs in one state (sim/past.h) have the same choices before them, and each
** outcome behind is reached from either. The second goes on in fifo order without being varied.
** With a bound on the varied choices the number left is part of the state. After a race the states
** are not sufficient, and nothing is merged.
*/
#include "sim/explore.h"

#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/prng.h"

#include <string.h>

/* the greatest below 2^51, so that a product with 2^12 options fits */
#define PRIME UINT64_C(2251799813685119)
#define PROBES_MIN 8                   /* of an exhaustive search in one order of turns */
#define COVERAGE_MAX ((size_t)1 << 20) /* options that are distinguished */

const char *cd_strategy_name(cd_strategy strategy)
{
    static const char *const names[CD_STRATEGY_COUNT] = {"random", "pct", "exhaustive", "cover"};
    return (unsigned)strategy < CD_STRATEGY_COUNT ? names[strategy] : "?";
}

static bool merges(const cd_explorer *e)
{
    return e->options.strategy == CD_STRATEGY_EXHAUSTIVE && e->options.merge && !e->races;
}

static cddp_status init_parts(cd_explorer *e, cddp_error *err)
{
    const cd_explore_options *o = &e->options;
    if (merges(e)) {
        const cd_past_options past = {.world_size = o->world_size,
                                      .interchangeable = o->symmetry,
                                      .without_rebuild = o->without_rebuild,
                                      .allocator = o->allocator};
        CD_TRY(cd_past_init(&e->past, &past, err));
    }
    if (o->strategy == CD_STRATEGY_COVER) {
        e->covering.lanes =
            cd_allocate_array(o->allocator, o->world_size, sizeof *e->covering.lanes);
        if (e->covering.lanes == NULL)
            return cd_fail_memory(err, "the orders of %u ranks", o->world_size);
        e->covering.lane_count = o->world_size;
    }
    return CDDP_OK;
}

cddp_status cd_explorer_init(cd_explorer *e, const cd_explore_options *options, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const cd_digest_set empty = {.allocator = options->allocator};
    *e = (cd_explorer){.options = *options,
                       .outcomes = empty,
                       .states = empty,
                       .offered = empty,
                       .taken = empty,
                       .probed = empty};
    e->cover.allocator = options->allocator;
    if (options->strategy == CD_STRATEGY_PCT &&
        (options->depth < 1 || options->depth > CD_PCT_DEPTH_MAX))
        return cd_fail(err, CDDP_E_ARG, "a depth of %u; pct takes 1 to %d", options->depth,
                       CD_PCT_DEPTH_MAX);
    if (options->strategy == CD_STRATEGY_COVER &&
        (options->depth < 2 || options->depth > CD_COVER_STRENGTH_MAX))
        return cd_fail(err, CDDP_E_ARG, "a depth of %u; cover takes 2 to %d", options->depth,
                       CD_COVER_STRENGTH_MAX);
    CD_TRY_OUT(init_parts(e, err));
out:
    if (status != CDDP_OK) cd_explorer_fini(e);
    return status;
}

void cd_explorer_fini(cd_explorer *e)
{
    const cddp_allocator *a = e->options.allocator;
    cd_digest_set_fini(&e->outcomes);
    cd_digest_set_fini(&e->states);
    cd_digest_set_fini(&e->probed);
    cd_digest_set_fini(&e->offered);
    cd_digest_set_fini(&e->taken);
    cd_past_fini(&e->past);
    cd_cover_fini(&e->cover);
    cd_release(a, e->covering.lanes, e->covering.lane_count * sizeof *e->covering.lanes);
    cd_release(a, e->answers, e->answer_capacity * sizeof *e->answers);
    *e = (cd_explorer){.exhausted = true};
}

const cddp_trace_sink *cd_explorer_get_sink(const cd_explorer *e)
{
    return merges(e) ? &e->past.sink : NULL;
}

/* ---- what is varied ---- */

/* See Note [Turns commute]. */
static bool is_varied(const cd_explorer *e, const cddp_choice *choice)
{
    bool is_turn = choice->kind == CDDP_CHOICE_RUN || choice->kind == CDDP_CHOICE_COMPLETE;
    return !is_turn || !e->options.reduce || e->turns || e->is_probe;
}

/* See Note [Probes]. It depends on the number and on what is known when its stretch begins. */
static bool is_probe(const cd_explorer *e, uint64_t number)
{
    const bool samples =
        e->options.strategy == CD_STRATEGY_RANDOM || e->options.strategy == CD_STRATEGY_EXHAUSTIVE;
    return samples && e->options.reduce && !e->turns && number > 0 &&
           (e->is_tried || (number & (number - 1)) == 0 || number % 64 == 0);
}

bool cd_explorer_varies(const cd_explorer *e, const cddp_choice *choice)
{
    switch (e->options.strategy) {
    case CD_STRATEGY_COVER:
        return choice->kind == CDDP_CHOICE_READY;
    case CD_STRATEGY_PCT:
        return true;
    default:
        return is_varied(e, choice);
    }
}

uint64_t cd_explorer_get_kind(const cd_explorer *e)
{
    return (uint64_t)e->options.strategy * 4 + (e->options.reduce ? 2 : 0) +
           (e->turns || e->is_probe ? 1 : 0);
}

/* An option of a choice point: who chooses it, and among which others. */
static void count_option(cd_explorer *e, const cddp_choice *choice, uint32_t chosen)
{
    uint64_t point = cd_hash_mix(cd_hash_mix(choice->kind, choice->rank), choice->option_count);
    for (uint32_t i = 0; choice->options != NULL && i < choice->option_count; i++)
        point = cd_hash_mix(point, choice->options[i]);
    if (e->taken.count < COVERAGE_MAX &&
        cd_digest_set_add(&e->taken, cd_hash_mix(point, chosen)) == CD_DIGEST_NO_MEMORY)
        e->failed = true;
    for (uint32_t i = 0; i < choice->option_count && e->offered.count < COVERAGE_MAX; i++)
        if (cd_digest_set_add(&e->offered, cd_hash_mix(point, i)) == CD_DIGEST_NO_MEMORY)
            e->failed = true;
}

static void note(cd_explorer *e, const cddp_choice *choice, cd_place place)
{
    e->choices = place.number + 1;
    if (choice->option_count > e->contenders_max) e->contenders_max = choice->option_count;
}

static uint32_t answer(cd_explorer *e, const cddp_choice *choice, uint32_t chosen)
{
    if (e->is_probe) return chosen;
    e->product = e->product * choice->option_count % PRIME;
    if (!e->options.without_coverage) count_option(e, choice, chosen);
    return chosen;
}

/* ---- choosers that count ---- */

static uint32_t choose_random(void *self, const cddp_choice *choice, cd_place place)
{
    cd_explorer *e = self;
    note(e, choice, place);
    if (!is_varied(e, choice)) return 0;
    return answer(e, choice, (uint32_t)cd_prng_below(&e->random.prng, choice->option_count));
}

static uint32_t choose_pct(void *self, const cddp_choice *choice, cd_place place)
{
    cd_explorer *e = self;
    note(e, choice, place);
    return answer(e, choice, e->inner.choose(e->inner.self, choice, place));
}

static uint32_t choose_covering(void *self, const cddp_choice *choice, cd_place place)
{
    cd_explorer *e = self;
    note(e, choice, place);
    uint32_t chosen = cd_cover_choose(&e->covering, choice);
    return choice->kind == CDDP_CHOICE_READY ? answer(e, choice, chosen) : 0;
}

/* X3. True when what follows was tried. */
static bool merge_here(cd_explorer *e, const cddp_choice *choice)
{
    if (!merges(e)) return false;
    uint64_t digest = cd_past_get(&e->past, choice);
    if (e->options.choices_max != 0) digest = cd_hash_mix(digest, e->digits);
    cd_digest_added added = cd_digest_set_add(&e->states, digest);
    if (added == CD_DIGEST_NO_MEMORY) e->failed = true;
    return added == CD_DIGEST_KNOWN;
}

static bool push_digit(cd_explorer *e, uint32_t options)
{
    size_t i = e->digits;
    if (e->failed || !cd_vec_grow(e->options.allocator, (void **)&e->answers, &e->answer_capacity,
                                  i + 1, sizeof *e->answers)) {
        e->failed = true;
        return false;
    }
    e->answers[i] = (cd_answer){0, options};
    e->answer_count = ++e->digits;
    return true;
}

static uint32_t choose_planned(void *self, const cddp_choice *choice, cd_place place)
{
    cd_explorer *e = self;
    note(e, choice, place);
    if (e->is_merged || !is_varied(e, choice)) return 0;
    if (e->options.choices_max != 0 && e->digits >= e->options.choices_max) {
        e->bounded = true;
        return 0;
    }
    if (e->digits < e->planned) {
        const cd_answer *planned = &e->answers[e->digits++];
        CD_ASSERT(planned->options == choice->option_count); /* X2 */
        return answer(e, choice, planned->value);
    }
    e->is_merged = merge_here(e, choice);
    if (!e->is_merged && push_digit(e, choice->option_count)) return answer(e, choice, 0);
    return 0;
}

static cddp_status finish(void *self, cd_place end, cddp_error *err)
{
    cd_explorer *e = self;
    (void)err;
    e->choices = end.number;
    e->had_races = end.races > 0;
    return CDDP_OK;
}

/* ---- the next run ---- */

static bool is_over(const cd_explorer *e)
{
    if (e->exhausted) return true;
    return e->options.runs_max != 0 && e->runs >= e->options.runs_max;
}

/* Only this function changes what later runs know of earlier ones. */
static void begin_stretch(cd_explorer *e)
{
    if ((e->runs & (e->runs - 1)) != 0) return;
    e->choices_expected = e->choices_longest;
    if (e->options.strategy != CD_STRATEGY_EXHAUSTIVE) e->turns = e->races;
}

const cd_chooser *cd_explorer_next(cd_explorer *e)
{
    if (is_over(e)) return NULL;
    uint64_t number = e->runs;
    begin_stretch(e);
    cd_prng root = cd_prng_seed(e->options.seed),
            prng = cd_prng_split_index(&root, "explore", number);
    e->choices = 0;
    e->digits = 0;
    e->product = 1;
    e->is_merged = e->had_races = false;
    e->is_probe = is_probe(e, number);
    e->chooser =
        (cd_chooser){.self = e, .name = cd_strategy_name(e->options.strategy), .finish = finish};
    switch (e->options.strategy) {
    case CD_STRATEGY_RANDOM:
        e->random.prng = prng;
        e->chooser.choose = choose_random;
        break;
    case CD_STRATEGY_PCT:
        e->inner =
            cd_chooser_pct(&e->pct, cd_prng_next(&prng), e->options.depth, e->choices_expected);
        e->chooser.choose = choose_pct;
        break;
    case CD_STRATEGY_COVER:
        cd_cover_chooser_begin(&e->covering, &e->cover, number > 0 ? number - 1 : 0);
        e->chooser.choose = choose_covering;
        break;
    case CD_STRATEGY_EXHAUSTIVE:
    case CD_STRATEGY_COUNT:
        if (merges(e)) cd_past_begin(&e->past);
        if (e->is_probe) {
            e->random.prng = prng;
            e->chooser.choose = choose_random;
            break;
        }
        e->planned = e->answer_count;
        e->chooser.choose = choose_planned;
        break;
    }
    return &e->chooser;
}

/* ---- after a run ---- */

/* X1: the last digit that can grow grows, those behind it are forgotten. */
static void odometer_advance(cd_explorer *e)
{
    /* A run may pass fewer choices than were planned when it ended early; what it did not reach is
    ** no digit. */
    if (e->digits < e->answer_count) e->answer_count = e->digits;
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

/* The order of turns matters in this run, so results that were found without it cover nothing
** more. */
static void begin_again_with_turns(cd_explorer *e)
{
    e->turns = true;
    e->answer_count = 0;
    e->bounded = false;
    cd_digest_set_fini(&e->states);
}

static bool has_outcome(const cd_explorer *e, uint64_t outcome)
{
    return cd_digest_set_has(&e->outcomes, outcome);
}

/* At the end of a search in one order of turns: did probes meet what it did not? */
static bool probes_disagree(const cd_explorer *e)
{
    bool all = true;
    for (size_t i = 0; i < e->probed.capacity; i++)
        all = all && (e->probed.items[i] == 0 || has_outcome(e, e->probed.items[i]));
    return !all && !e->options.symmetry && !e->bounded;
}

/* Every combination in one order of turns was tried. */
static void end_order(cd_explorer *e)
{
    e->is_tried = true;
    e->exhausted = e->probes >= PROBES_MIN;
    if (!e->exhausted || !probes_disagree(e)) return;
    e->races = true;
    e->exhausted = e->is_tried = false;
    begin_again_with_turns(e);
}

/* Behind the first run the gradients are known. */
static cddp_status cover_advance(cd_explorer *e, cddp_error *err)
{
    cd_cover_chooser *c = &e->covering;
    if (e->cover.order_count == 0) {
        if (c->too_many)
            return cd_fail(
                err, CDDP_E_LIMIT,
                "more than %d gradients are ready at once; a covering array takes no more",
                CD_COVER_EVENTS_MAX);
        if (c->event_count < 2)
            e->exhausted = true; /* nothing to order */
        else
            CD_TRY(
                cd_cover_make(e->options.depth, c->event_count, e->options.seed, &e->cover, err));
        return CDDP_OK;
    }
    if (e->runs > e->cover.order_count) e->exhausted = true;
    return CDDP_OK;
}

static cddp_status count_outcome(cd_explorer *e, uint64_t outcome, cddp_error *err)
{
    if (e->failed) return cd_fail_memory(err, "the choices of a run");
    const bool waits = e->is_probe && e->options.strategy == CD_STRATEGY_EXHAUSTIVE;
    if (cd_digest_set_add(waits ? &e->probed : &e->outcomes, outcome) == CD_DIGEST_NO_MEMORY)
        return cd_fail_memory(err, "%zu outcomes", e->outcomes.count);
    return CDDP_OK;
}

cddp_status cd_explorer_done(cd_explorer *e, uint64_t outcome, cddp_error *err)
{
    if (e->runs > 0 && e->product != e->alternatives && !e->is_probe) e->uneven = true;
    if (!e->is_probe) e->alternatives = e->product;
    e->runs++;
    e->probes += e->is_probe;
    e->merged += e->is_merged;
    if (e->choices > e->choices_longest) e->choices_longest = e->choices;
    CD_TRY(count_outcome(e, outcome, err));
    bool is_news = e->had_races && !e->races && e->options.reduce;
    e->races |= e->had_races;
    if (e->options.strategy == CD_STRATEGY_COVER) CD_TRY(cover_advance(e, err));
    if (e->options.strategy != CD_STRATEGY_EXHAUSTIVE) return CDDP_OK;
    if (is_news)
        begin_again_with_turns(e);
    else if (!e->is_probe)
        odometer_advance(e);
    else
        e->exhausted = e->is_tried;
    if (e->exhausted && e->options.reduce && !e->turns) end_order(e);
    return CDDP_OK;
}

/* ---- parts ---- */

void cd_explorer_begin_part(cd_explorer *e, uint64_t first_run)
{
    begin_stretch(e); /* the copy may begin behind its first run */
    e->runs = first_run;
    e->probes = 0;
    cd_digest_set_fini(&e->outcomes);
    cd_digest_set_fini(&e->offered);
    cd_digest_set_fini(&e->taken);
}

static bool absorb_set(cd_digest_set *set, const cd_digest_set *part)
{
    for (size_t i = 0; i < part->capacity; i++)
        if (part->items[i] != 0 && cd_digest_set_add(set, part->items[i]) == CD_DIGEST_NO_MEMORY)
            return false;
    return true;
}

cddp_status cd_explorer_absorb(cd_explorer *e, const cd_explorer *part, uint64_t part_runs,
                               cddp_error *err)
{
    if (part_runs == 0) return CDDP_OK;
    e->uneven |= part->uneven || (e->runs > 0 && part->alternatives != e->alternatives);
    e->alternatives = part->alternatives;
    e->races |= part->races;
    e->probes += part->probes;
    e->covering.deviated |= part->covering.deviated;
    e->choices_expected = part->choices_expected;
    e->turns = part->turns;
    if (part->choices_longest > e->choices_longest) e->choices_longest = part->choices_longest;
    if (part->contenders_max > e->contenders_max) e->contenders_max = part->contenders_max;
    e->runs += part_runs;
    bool has_memory = absorb_set(&e->outcomes, &part->outcomes) &&
                      absorb_set(&e->offered, &part->offered) &&
                      absorb_set(&e->taken, &part->taken);
    if (!has_memory)
        return cd_fail_memory(err, "the outcomes of %llu schedules", (unsigned long long)e->runs);
    if (e->options.strategy == CD_STRATEGY_COVER) CD_TRY(cover_advance(e, err));
    return CDDP_OK;
}

cddp_status cd_explorer_resume(cd_explorer *e, cddp_error *err)
{
    const cd_cover_chooser *c = &e->covering;
    if (e->options.strategy == CD_STRATEGY_COVER && e->runs > 0 && c->event_count >= 2)
        CD_TRY(cd_cover_make(e->options.depth, c->event_count, e->options.seed, &e->cover, err));
    return CDDP_OK;
}

double cd_explorer_miss_chance(const cd_explorer *e, double *inverse)
{
    double n = e->contenders_max > 1 ? (double)e->contenders_max : 1.0,
           k = e->choices_longest > 1 ? (double)e->choices_longest : 1.0;
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

uint64_t cd_explorer_left(const cd_explorer *e)
{
    uint64_t left = 0;
    for (size_t i = 0; !e->exhausted && i < e->answer_count; i++)
        left += e->answers[i].options - 1 - e->answers[i].value;
    return e->exhausted ? 0 : left + 1;
}
