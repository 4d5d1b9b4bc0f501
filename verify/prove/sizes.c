/* SPDX-License-Identifier: Apache-2.0 */
/* Other numbers of ranks. See sizes.h.
**
** Three steps, each of which may end the claim with a reason:
**
**   1  Worlds of 2, 3, 4 and 5 ranks are run. All of their ranks must issue the collectives of this
**      world, and in the larger ones they must receive results of the same kind.
**   2  Every recorded rank, and further ranks doing as their models, run alone in much larger
**      worlds. They receive numbers of the recorded kinds and must issue the recorded collectives.
**   3  Where that is affordable, one of them does so in every order of its gradients.
**
** Limitations: a decision that depends on the number of ranks itself is seen in these worlds only.
*/
#include "verify/prove/sizes.h"

#include "core/base/format.h"
#include "verify/prove/world.h"
#include "core/base/error.h"
#include "core/comm/operands.h"
#include "core/plan/plan.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE_MOST 4096    /* the largest world that a scenario can have */
#define STATES_AGAIN 4096 /* a search that is repeated in a large world */

typedef struct sizing {
    const cd_prove_options *options;
    cd_proof *proof;
    cddp_plan other;            /* the plan, for another number of ranks */
    uint32_t models[SIZE_MOST]; /* by rank of any world: the recorded rank with the same program */
    cd_world_run here;
    bool over;
} sizing;

static void miss(sizing *s, const char *format, ...) CDDP_PRINTF(2, 3);
static void miss(sizing *s, const char *format, ...)
{
    va_list args;
    s->over = true;
    va_start(args, format);
    cd_vformat(s->proof->any_missing, sizeof s->proof->any_missing, format, args);
    va_end(args);
}

static bool must_stop(sizing *s)
{
    const cd_prove_options *o = s->options;
    if (!s->over && o->stop != NULL && o->stop(o->context))
        miss(s, "the search was stopped before");
    return s->over;
}

/* ---- further ranks ---- */

/* A root is a rank of its group: one of the world's where the group has all of them, and otherwise
** no model, as members are none. */
static bool has_world_root(const cddp_plan *plan, const cddp_plan_collective *collective,
                           uint32_t rank)
{
    bool is_whole = true;
    for (size_t g = 0; collective->group != NULL && g < plan->group_count; g++)
        if (strcmp(plan->groups[g].name, collective->group) == 0)
            is_whole = plan->groups[g].members.count == 0;
    return is_whole && cd_op_is_rooted(cd_plan_op(collective)) && collective->root == rank;
}

/* No table of the plan tells these ranks apart. */
static bool is_same_program(const cddp_plan *plan, uint32_t a, uint32_t b)
{
    for (size_t i = 0; i < plan->override_count; i++)
        if (cddp_selector_has(&plan->overrides[i].ranks, a) !=
            cddp_selector_has(&plan->overrides[i].ranks, b))
            return false;
    for (size_t i = 0; i < plan->when_count; i++)
        if (cddp_selector_has(&plan->whens[i].ranks, a) !=
            cddp_selector_has(&plan->whens[i].ranks, b))
            return false;
    for (size_t i = 0; i < plan->collective_count; i++)
        if (cddp_selector_has(&plan->collectives[i].ranks, a) !=
                cddp_selector_has(&plan->collectives[i].ranks, b) ||
            has_world_root(plan, &plan->collectives[i], a) ||
            has_world_root(plan, &plan->collectives[i], b))
            return false;
    return true;
}

static bool is_in_a_group(const cddp_plan *plan, uint32_t rank)
{
    for (size_t g = 0; g < plan->group_count; g++)
        for (size_t i = 0; i < plan->groups[g].members.count; i++)
            if (plan->groups[g].members.items[i] == rank) return true;
    return false;
}

static void note_model(cd_proof *proof, uint32_t rank)
{
    for (uint32_t i = 0; i < proof->model_count; i++)
        if (proof->models[i] == rank) return;
    if (proof->model_count < CD_PROVE_MODELS) proof->models[proof->model_count++] = rank;
}

/* Recorded ranks that further ones do as: the last that has the same tables. */
static void find_models(sizing *s)
{
    const cddp_plan *plan = s->options->plan;
    const uint32_t recorded = (uint32_t)plan->world.size;
    if (plan->world.batch > 0) {
        miss(s, "the batch is split over the ranks, so that what each has depends on their number");
        return;
    }
    for (uint32_t rank = 0; rank < SIZE_MOST; rank++) {
        uint32_t model = rank < recorded ? rank + 1 : recorded;
        while (model > 0 && rank >= recorded &&
               (is_in_a_group(plan, model - 1) || !is_same_program(plan, model - 1, rank)))
            model--;
        if (model == 0) {
            miss(s, "no rank of the scenario does what rank %" PRIu32 " of a larger world would do",
                 rank);
            return;
        }
        s->models[rank] = model - 1;
        if (rank >= recorded) note_model(s->proof, model - 1);
    }
}

/* ---- worlds that are run ---- */

static bool sequences_fit(const cd_calls *a, const cd_calls *b, bool same_world)
{
    if (a->count != b->count) return false;
    for (size_t i = 0; i < a->count; i++) {
        cd_call x = a->items[i], y = b->items[i];
        /* who has the longest input, say: one rank, but another one elsewhere */
        if (!same_world) x.root = y.root = 0;
        if (!cd_call_fits(&x, &y)) return false;
    }
    return true;
}

static bool has_one_sequence(const cd_world_run *run)
{
    bool fits = true;
    for (uint32_t r = 1; r < run->tap.rank_count; r++)
        fits = fits && sequences_fit(&run->tap.sequences[0], &run->tap.sequences[r], true);
    return fits;
}

static void count_kinds(sizing *s)
{
    for (size_t i = 0; i < s->here.tap.results.count; i++) {
        const cd_received *received = &s->here.tap.results.items[i];
        if (received->rank != 0) continue;
        const cd_received_kind kind = cd_received_find_kind(received);
        s->proof->steering += kind != CD_RECEIVED_CONTENT;
        s->proof->counting += kind == CD_RECEIVED_COUNT || kind == CD_RECEIVED_RANK;
        s->proof->sharing += kind == CD_RECEIVED_SHARES;
    }
}

static bool is_received_alike(const cd_world_run *here, const cd_world_run *there)
{
    for (size_t i = 0; i < here->tap.results.count; i++) {
        const cd_received *received = &here->tap.results.items[i];
        const cd_received *other = cd_results_find(&there->tap.results, received->rank,
                                                   received->group, received->sequence);
        if (other == NULL || !cd_received_is_alike(received, other)) return false;
    }
    return true;
}

static cddp_status record(sizing *s, uint32_t size, cd_world_run *run, bool *is_possible,
                          cddp_error *err)
{
    s->other.world.size = size;
    *is_possible = cddp_plan_check(&s->other, NULL) == CDDP_OK;
    if (!*is_possible) return CDDP_OK;
    cddp_status status = cd_world_run_record(s->options, &s->other, run, err);
    s->proof->world_runs++;
    if (status != CDDP_E_CONFIG && status != CDDP_E_UNSUPPORTED) return status;
    *is_possible = false; /* the scenario is one for other numbers of ranks */
    cd_error_reset(err);
    return CDDP_OK;
}

static cddp_status compare_world(sizing *s, uint32_t size, cddp_error *err)
{
    cd_world_run run = {0};
    bool is_possible = false;
    cddp_status status = record(s, size, &run, &is_possible, err);
    if (status == CDDP_OK && is_possible) {
        if (run.end != CD_WORLD_VERIFIED)
            miss(s, "a world of %" PRIu32 " ranks is not verified: %s", size, run.failed.culprit);
        else if (!has_one_sequence(&run) ||
                 !sequences_fit(&s->here.tap.sequences[0], &run.tap.sequences[0], false))
            miss(s, "the ranks of a world of %" PRIu32 " issue other collectives", size);
        else if (size > s->proof->rank_count && !is_received_alike(&s->here, &run))
            miss(s, "ranks of a world of %" PRIu32 " receive numbers of another kind", size);
        else
            s->proof->worlds[s->proof->world_count++] = size;
    }
    cd_world_run_fini(&run);
    return status;
}

/* ---- a rank alone ---- */

#define WHOLE_RANKS_MAX \
    64 /* a larger world is not run as a whole only to look for a counterexample */

/* A rank issues other collectives in a larger world: that world is run as a whole. If it fails, it
** is a counterexample. */
static cddp_status try_whole_world(sizing *s, uint32_t size, cddp_error *err)
{
    cd_world_run run = {0};
    bool is_possible = false;
    if (size > WHOLE_RANKS_MAX) {
        const size_t used = strlen(s->proof->any_missing);
        snprintf(s->proof->any_missing + used, sizeof s->proof->any_missing - used,
                 "; that world was not run as a whole, since it has more than %d ranks",
                 WHOLE_RANKS_MAX);
        return CDDP_OK;
    }
    cddp_status status = record(s, size, &run, &is_possible, err);
    if (status == CDDP_OK && is_possible && run.end == CD_WORLD_FAILED) {
        cd_proof *proof = s->proof;
        proof->end = CD_PROOF_REFUTED;
        proof->refuted_size = size;
        memcpy(proof->culprit, run.failed.culprit, sizeof proof->culprit);
        memcpy(proof->schedule, run.failed.schedule, sizeof proof->schedule);
        proof->has_schedule = proof->world_agrees = true;
    }
    cd_world_run_fini(&run);
    return status;
}

typedef struct slot {
    uint32_t size, rank, as; /* as: the recorded rank whose program and results it has */
} slot;

static cd_prove_rank_options options_of(const sizing *s, const slot *at,
                                        const cd_projection *projection)
{
    return (cd_prove_rank_options){.plan = &s->other,
                                   .registry = s->options->registry,
                                   .rank = at->rank,
                                   .results = &s->here.tap.results,
                                   .calls = &s->here.tap.sequences[at->as],
                                   .projection = projection,
                                   .stop = s->options->stop,
                                   .context = s->options->context};
}

static cddp_status repeat_calls(sizing *s, const slot *at, cddp_error *err)
{
    bool repeats = true, has_choice = false;
    cddp_status status = CDDP_OK;
    cd_text how;
    cd_text_init(&how, false);
    for (uint32_t turn = 0; turn < CD_PROJECTION_TURNS && repeats && !must_stop(s); turn++) {
        const cd_projection projection = {.rank = at->as,
                                          .models = s->models,
                                          .turn = turn,
                                          .has_choice = &has_choice};
        const cd_prove_rank_options options = options_of(s, at, &projection);
        CD_TRY_OUT(cd_prove_rank_repeats(&options, &repeats, &how, err));
        s->proof->projected++;
        if (!has_choice) break;
    }
    s->proof->has_choice = s->proof->has_choice || has_choice;
    if (!repeats) {
        miss(s,
             "rank %" PRIu32 " alone, in a world of %" PRIu32
             ", issues other collectives than rank %" PRIu32 " here: %s",
             at->rank, at->size, at->as, cd_text_get(&how));
        CD_TRY_OUT(try_whole_world(s, at->size, err));
    }
out:
    cd_text_fini(&how);
    return status;
}

static cddp_status fill_large_world(sizing *s, uint32_t size, cddp_error *err)
{
    const uint32_t recorded = s->proof->rank_count;
    const uint32_t further[] = {recorded, recorded + 1, size / 2, size - 2, size - 1};
    s->other.world.size = size;
    if (cddp_plan_check(&s->other, NULL) != CDDP_OK) {
        miss(s, "the scenario is not possible with %" PRIu32 " ranks", size);
        return CDDP_OK;
    }
    for (uint32_t r = 0; r < recorded && !must_stop(s); r++)
        CD_TRY(repeat_calls(s, &(slot){size, r, r}, err));
    for (size_t i = 0; i < sizeof further / sizeof further[0] && !must_stop(s); i++)
        if (further[i] >= recorded && further[i] < size)
            CD_TRY(repeat_calls(s, &(slot){size, further[i], s->models[further[i]]}, err));
    if (!s->over) s->proof->large[s->proof->large_count++] = size;
    return CDDP_OK;
}

/* Not only in the engine's order. */
static cddp_status search_large_world(sizing *s, uint32_t size, cddp_error *err)
{
    cd_rank_proof found;
    bool has_choice = false;
    const slot at = {size, size - 1, s->models[size - 1]};
    const cd_projection projection = {.rank = at.as,
                                      .models = s->models,
                                      .turn = CD_PROJECTION_TURNS - 1,
                                      .has_choice = &has_choice};
    s->other.world.size = size;
    cd_prove_rank_options options = options_of(s, &at, &projection);
    options.snapshots = true;
    CD_TRY(cd_prove_rank(&options, &found, err));
    s->proof->rank_runs += found.runs;
    if (found.is_refuted)
        miss(s,
             "rank %" PRIu32 " alone, in a world of %" PRIu32
             ", issues other collectives in some order of its gradients",
             at.rank, at.size);
    s->proof->projected_in_every_order = found.is_complete && !found.is_refuted;
    cd_rank_proof_fini(&found);
    return CDDP_OK;
}

/* All numbers below this one, down to which worlds were run one by one. */
static uint32_t smallest_in_a_row(const cd_proof *proof)
{
    uint32_t from = proof->rank_count;
    for (bool found = true; found;) {
        found = false;
        for (uint32_t i = 0; i < proof->world_count && !found; i++)
            found = proof->worlds[i] + 1 == from;
        from -= found;
    }
    return from;
}

cddp_status cd_prove_sizes(const cd_prove_options *options, uint64_t states, cd_proof *proof,
                           cddp_error *err)
{
    static const uint32_t small[CD_PROVE_SIZES] = {2, 3, 4, 5},
                          large[CD_PROVE_LARGE_SIZES] = {7, 1000, SIZE_MOST};
    cddp_status status = CDDP_OK;
    sizing *s = calloc(1, sizeof *s);
    if (s == NULL) return cd_fail_memory(err, "worlds of other sizes");
    *s = (sizing){.options = options, .proof = proof, .other = *options->plan};
    CD_TRY_OUT(cd_world_run_record(options, options->plan, &s->here, err));
    count_kinds(s);
    find_models(s);
    if (!s->over && !has_one_sequence(&s->here))
        miss(s, "ranks issue different collectives, by the groups that they are in");
    for (size_t i = 0; i < CD_PROVE_SIZES && !must_stop(s); i++)
        CD_TRY_OUT(compare_world(s, small[i], err));
    for (size_t i = 0; i < CD_PROVE_LARGE_SIZES && !must_stop(s); i++)
        if (large[i] > proof->rank_count) CD_TRY_OUT(fill_large_world(s, large[i], err));
    if (!must_stop(s) && states <= STATES_AGAIN) CD_TRY_OUT(search_large_world(s, large[1], err));
    if (!s->over) proof->any_from = smallest_in_a_row(proof);
out:
    cd_world_run_fini(&s->here);
    free(s);
    return status;
}
