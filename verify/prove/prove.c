/* SPDX-License-Identifier: Apache-2.0 */
/* A proof of one scenario. See prove.h. */
#include "verify/prove/prove.h"

#include "core/base/format.h"
#include "verify/worlds/symmetry.h"
#include "verify/prove/likeness.h"
#include "verify/prove/sizes.h"
#include "verify/prove/world.h"
#include "core/base/crew.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/os.h"
#include "core/base/prng.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_SEEN_MAX 65536
#define JOBS_MAX 64
#define STATES_MANY 1e6
#define ORDERS_MANY 1e4 /* more are recorded form by form */
#define ORDERS_DRAWN 64 /* then so many others, too */

/* ---- the proof ---- */

/* Of a rank, in the first recorded run. */
typedef struct first_run {
    uint32_t *sizes; /* gradients of each window; NULL: the rank was not searched yet */
    size_t *begins;  /* calls issued when all of a window had fired */
    uint32_t size_count;
    uint64_t *received; /* digest of the result of each call */
    size_t received_count;
} first_run;

typedef struct proving {
    const cd_prove_options *options;
    const cddp_plan *plan;
    cd_proof *proof;
    first_run *first;  /* (rank_count) */
    int32_t proposing; /* window of rank 0 whose order decides the layout; -1: none */
    /* (seen_count) digests of the sequences of all ranks: worlds already searched */
    uint64_t *seen;
    size_t seen_count;
    uint64_t *forms; /* (form_count) of layouts that were searched on every rank */
    size_t form_count;
    /* of the gradients of that window; see Note [Orders of one form] */
    uint32_t classes[CD_PROVE_EVENTS_MAX];
    bool has_new_form, has_no_form; /* some order of rank 0 since these were cleared */
    bool over;                      /* refuted, or stopped */
    bool has_failed_probe;
    cd_world_failure failed_probe;
    struct shared *shared; /* of several processes; NULL: this is the only one */
    uint32_t job;
    uint64_t order; /* the number of rank 0's order that is being tried */
} proving;

/* What the processes of one proof have in common; each writes its own part only. */
typedef struct part {
    cd_proof proof;
    uint64_t refuted_at; /* the order that was refuted, + 1; 0: none */
    bool is_done;
    uint64_t seen[WORDS_SEEN_MAX], forms[WORDS_SEEN_MAX];
    size_t seen_count, form_count;
    bool has_no_form;
} part;

typedef struct shared {
    uint32_t count;
    part parts[];
} shared;

/* An earlier order was refuted by another process: what comes later does not count. */
static bool is_late(const proving *p)
{
    for (uint32_t j = 0; p->shared != NULL && j < p->shared->count; j++)
        if (p->shared->parts[j].refuted_at != 0 && p->shared->parts[j].refuted_at <= p->order)
            return true;
    return false;
}

static bool must_stop(proving *p)
{
    if (p->over || is_late(p)) return true;
    if (p->options->stop == NULL || !p->options->stop(p->options->context)) return false;
    p->proof->end = CD_PROOF_STOPPED;
    p->over = true;
    return true;
}

static void show(const proving *p)
{
    if (p->options->progress != NULL) p->options->progress(p->options->context, p->proof);
}

static void refute_by_world(proving *p, const cd_world_failure *failed)
{
    cd_proof *proof = p->proof;
    proof->end = CD_PROOF_REFUTED;
    memcpy(proof->culprit, failed->culprit, sizeof proof->culprit);
    memcpy(proof->schedule, failed->schedule, sizeof proof->schedule);
    proof->has_schedule = proof->world_agrees = true;
    p->over = true;
}

static void bound(proving *p, const char *what)
{
    if (p->proof->end != CD_PROOF_HOLDS) return;
    p->proof->end = CD_PROOF_BOUNDED;
    snprintf(p->proof->bound, sizeof p->proof->bound, "%s", what);
}

/* Sequences can fit group by group and still hang: where a rank waits for every collective before
** the next, or where a backend runs one operation at a time. */
static cddp_status compare_ranks(proving *p, const cd_world_run *run, cddp_error *err)
{
    cd_calls_conflict c;
    CD_TRY(cd_calls_compare(run->tap.sequences, run->tap.rank_count, &c, err));
    if (c.end == CD_CALLS_FIT) return CDDP_OK;
    cd_text text;
    cd_text_init(&text, false);
    for (int k = 0; k < 2; k++) {
        cd_text_printf(&text, "%srank %" PRIu32 "%s ",
                       k == 0                   ? ""
                       : c.end == CD_CALLS_PART ? "; "
                                                : " ",
                       c.ranks[k], c.end == CD_CALLS_PART ? ":" : " waits in");
        if (c.has_call[k])
            cd_call_print(&text, &run->tap.sequences[c.ranks[k]].items[c.items[k]]);
        else
            cd_text_push(&text, "nothing more");
        cd_text_printf(&text, " (its collective %zu)", c.items[k]);
        if (c.end == CD_CALLS_WAIT && k == 0) cd_text_push(&text, " for");
    }
    cd_world_failure failed = run->failed;
    snprintf(failed.culprit, sizeof failed.culprit, "%s", cd_text_get(&text));
    cd_text_fini(&text);
    refute_by_world(p, &failed);
    p->proof->world_agrees = false;
    return CDDP_OK;
}

/* A rank issued other collectives than recorded. The whole world runs under that order, the other
** ranks in the engine's, to show what follows. */
static cddp_status refute_by_rank(proving *p, uint32_t rank, cd_rank_proof *parting,
                                  cddp_error *err)
{
    cd_proof *proof = p->proof;
    proof->end = CD_PROOF_REFUTED;
    proof->parting = *parting;
    proof->parting.calls = (cd_calls){0};
    proof->parting_rank = rank;
    p->over = true;
    cd_world_run run = {.chooser = {.choice = &parting->counterexample, .rank = rank}};
    cddp_status status = cd_world_run_record(p->options, p->plan, &run, err);
    if (status == CDDP_OK) {
        memcpy(proof->schedule, run.failed.schedule, sizeof proof->schedule);
        memcpy(proof->culprit, run.failed.culprit, sizeof proof->culprit);
        proof->has_schedule = true;
        proof->world_agrees = run.end == CD_WORLD_FAILED;
        proof->world_runs++;
    }
    cd_world_run_fini(&run);
    return status;
}

/* ---- before the search ---- */

/* Knuth: a random descent meets b1, b2, … options; b1·b2·… is an unbiased estimate of the
** leaves. */
static cddp_status probe(proving *p, cddp_error *err)
{
    cd_prng root = cd_prng_seed(p->plan->world.seed);
    double low = 0, high = 0, sum = 0, states = 0;
    for (uint32_t i = 0; i < p->options->probes && !must_stop(p); i++) {
        cd_prng prng = cd_prng_split_index(&root, "probe", i);
        cd_world_run run = {.chooser = {.random = &prng}};
        cddp_status status = cd_world_run_record(p->options, p->plan, &run, err);
        /* Remembered: the search finds a shorter one, as a rule. */
        if (status == CDDP_OK && run.end == CD_WORLD_FAILED && !p->has_failed_probe) {
            p->has_failed_probe = true;
            p->failed_probe = run.failed;
        }
        const double leaves = run.chooser.leaves;
        states += run.chooser.states;
        cd_world_run_fini(&run);
        CD_TRY(status);
        p->proof->world_runs++;
        p->proof->probes++;
        sum += leaves;
        if (i == 0 || leaves < low) low = leaves;
        if (i == 0 || leaves > high) high = leaves;
        p->proof->estimate = sum / p->proof->probes;
        p->proof->states_estimate = states / p->proof->probes;
    }
    if (sum > 0) p->proof->probe_spread = (uint32_t)(100.0 * (high - low) / p->proof->estimate);
    show(p);
    return CDDP_OK;
}

/* ---- rank by rank ---- */

static uint64_t received_digest(const cd_results *results, uint32_t rank, const cd_calls *calls,
                                size_t call)
{
    uint64_t sequence = 0, digest = 0;
    for (size_t i = 0; i < call; i++) sequence += calls->items[i].group == calls->items[call].group;
    const cd_received *received =
        cd_results_find(results, rank, calls->items[call].group, sequence);
    return received != NULL &&
                   received->tensor.device->digest(&received->tensor, &digest, NULL) == CDDP_OK
               ? digest
               : 0;
}

static cddp_status keep_first(proving *p, const cd_world_run *run, uint32_t rank,
                              const cd_rank_proof *found, cddp_error *err)
{
    const cd_calls *calls = &run->tap.sequences[rank];
    p->first[rank].sizes = calloc(found->window_count + 1, sizeof *p->first[rank].sizes);
    p->first[rank].begins = calloc(found->window_count + 1, sizeof *p->first[rank].begins);
    p->first[rank].received = calloc(calls->count + 1, sizeof *p->first[rank].received);
    if (p->first[rank].sizes == NULL || p->first[rank].begins == NULL ||
        p->first[rank].received == NULL)
        return cd_fail_memory(err, "the windows of rank %u", rank);
    p->first[rank].size_count = found->window_count;
    p->first[rank].received_count = calls->count;
    for (size_t i = 0; i < calls->count; i++)
        p->first[rank].received[i] = received_digest(&run->tap.results, rank, calls, i);
    cd_proof *proof = p->proof;
    if (found->window_count > proof->window_count) proof->window_count = found->window_count;
    for (uint32_t w = 0; w < found->window_count; w++) {
        p->first[rank].sizes[w] = found->windows[w];
        p->first[rank].begins[w] = found->window_calls[w];
        if (found->windows[w] > proof->windows_max) proof->windows_max = found->windows[w];
    }
    return CDDP_OK;
}

/* The last window up to whose last gradient this rank receives what it received in the first run.
** Its states were searched then; what follows is new. -1: none. False: nothing differs at all. */
static bool find_change(const proving *p, const cd_world_run *run, uint32_t rank, int32_t *window)
{
    const cd_calls *calls = &run->tap.sequences[rank];
    size_t call = 0;
    while (call < calls->count && call < p->first[rank].received_count &&
           received_digest(&run->tap.results, rank, calls, call) == p->first[rank].received[call])
        call++;
    *window = -1;
    if (call == calls->count && call == p->first[rank].received_count) return false;
    for (uint32_t w = 0; w < p->first[rank].size_count && p->first[rank].begins[w] <= call; w++)
        *window = (int32_t)w;
    return true;
}

static bool stop_rank(void *context) { return must_stop(context); }

static cddp_status search_rank(proving *p, const cd_world_run *run, uint32_t rank,
                               const cd_window_choice *chosen, cddp_error *err)
{
    cd_proof *proof = p->proof;
    cd_rank_proof found;
    const cd_prove_rank_options options = {.plan = p->plan,
                                           .registry = p->options->registry,
                                           .rank = rank,
                                           .results = &run->tap.results,
                                           .calls = &run->tap.sequences[rank],
                                           .chosen = chosen,
                                           .snapshots = true,
                                           .stop = stop_rank,
                                           .context = p};
    CD_TRY(cd_prove_rank(&options, &found, err));
    proof->states += found.states;
    proof->events += found.events;
    proof->rank_runs += found.runs;
    if (found.call_count > proof->items) proof->items = found.call_count;
    if (rank == 0 && found.proposing > p->proposing) p->proposing = found.proposing;
    if (!found.is_complete && !found.was_stopped)
        bound(p, "a backward has too many gradients: its orders were sampled");
    cddp_status status = CDDP_OK;
    if (p->first[rank].sizes == NULL) status = keep_first(p, run, rank, &found, err);
    if (status == CDDP_OK && found.is_refuted && !p->over)
        status = refute_by_rank(p, rank, &found, err);
    cd_rank_proof_fini(&found);
    show(p);
    return status;
}

static uint64_t digest_of(const cd_world_run *run)
{
    uint64_t h = run->tap.rank_count;
    for (uint32_t r = 0; r < run->tap.rank_count; r++)
        h = cd_hash_mix(h, cd_calls_digest(&run->tap.sequences[r]));
    return h;
}

/* True when a world with the same collectives was searched already. */
static bool was_seen(proving *p, uint64_t digest)
{
    for (size_t i = 0; i < p->seen_count; i++)
        if (p->seen[i] == digest) return true;
    if (p->seen_count < WORDS_SEEN_MAX) p->seen[p->seen_count++] = digest;
    return false;
}

/* Note [Ranks that are one] On device shape no rank has content. If no setting, table or fault of
** the plan names a rank either, all ranks run one program. The runtime asks for its rank only to
** know the root of a broadcast and to name itself in messages. So two ranks with the same recorded
** calls and results need one search: the orders of the one are the orders of the other. Rank 0 is
** always one that is searched, since it is the root. */
static bool are_one(const proving *p, const cd_world_run *run, uint32_t a, uint32_t b)
{
    const cd_calls *x = &run->tap.sequences[a], *y = &run->tap.sequences[b];
    if (x->count != y->count) return false;
    for (size_t i = 0; i < x->count; i++)
        if (!cd_call_fits(&x->items[i], &y->items[i]) || x->items[i].digest != y->items[i].digest ||
            received_digest(&run->tap.results, a, x, i) !=
                received_digest(&run->tap.results, b, y, i))
            return false;
    return p->plan->settings.model.device == CDDP_MODEL_DEVICE_SHAPE &&
           cd_world_find_asymmetry(p->plan) == NULL;
}

/* An earlier rank was searched for this one, in this order of rank 0.
** See Note [Ranks that are one] */
static bool is_searched(const proving *p, const cd_world_run *run, uint32_t rank, bool is_chosen)
{
    const uint32_t first = is_chosen ? 1 : 0; /* rank 0 has another order then */
    return rank > first && are_one(p, run, first, rank);
}

/* Its windows are those of rank 0. */
static cddp_status keep_same(proving *p, uint32_t rank, cddp_error *err)
{
    const uint32_t windows = p->first[0].size_count;
    p->first[rank].sizes = calloc(windows + 1, sizeof *p->first[rank].sizes);
    p->first[rank].begins = calloc(windows + 1, sizeof *p->first[rank].begins);
    p->first[rank].received =
        calloc(p->first[0].received_count + 1, sizeof *p->first[rank].received);
    if (p->first[rank].sizes == NULL || p->first[rank].begins == NULL ||
        p->first[rank].received == NULL)
        return cd_fail_memory(err, "the windows of rank %u", rank);
    memcpy(p->first[rank].sizes, p->first[0].sizes, windows * sizeof *p->first[0].sizes);
    memcpy(p->first[rank].begins, p->first[0].begins, windows * sizeof *p->first[0].begins);
    memcpy(p->first[rank].received, p->first[0].received,
           p->first[0].received_count * sizeof *p->first[0].received);
    p->first[rank].size_count = windows;
    p->first[rank].received_count = p->first[0].received_count;
    p->proof->shared_ranks++;
    return CDDP_OK;
}

/* How a rank is searched in a recorded run. False: it received what it received in the first
** run. */
static bool find_start(const proving *p, const cd_world_run *run, uint32_t rank,
                       const cd_window_choice *chosen, cd_window_choice *same,
                       const cd_window_choice **start)
{
    int32_t window = -1;
    const bool is_new = chosen == NULL || rank == 0 || find_change(p, run, rank, &window);
    *same = (cd_window_choice){.window = (uint32_t)window};
    *start = chosen != NULL && rank == 0 ? chosen : window >= 0 ? same : NULL;
    return is_new;
}

/* The form of this layout, on all ranks. *is_known: one of the same form was searched, and each
** rank walked as recorded. See Note [Layouts that are alike] */
static cddp_status find_form(proving *p, const cd_world_run *run, const cd_window_choice *chosen,
                             uint64_t *form, bool *is_known, cddp_error *err)
{
    cd_proof *proof = p->proof;
    const uint64_t seed = digest_of(run);
    bool all = true;
    *form = proof->rank_count;
    *is_known = false;
    for (uint32_t r = 0; r < proof->rank_count && all; r++) {
        cd_window_choice same;
        const cd_window_choice *start;
        cd_likeness one;
        if (is_searched(p, run, r, chosen != NULL)) continue;
        /* Nothing that this rank receives is new: any start will do. */
        if (!find_start(p, run, r, chosen, &same, &start)) start = NULL;
        const cd_prove_rank_options options = {.plan = p->plan,
                                               .registry = p->options->registry,
                                               .rank = r,
                                               .results = &run->tap.results,
                                               .calls = &run->tap.sequences[r],
                                               .chosen = start};
        CD_TRY(cd_likeness_walk(&options, cd_hash_mix(seed, r), &one, err));
        proof->rank_runs++;
        all = one.is_uniform && one.repeats;
        *form = cd_hash_mix(*form, one.digest);
        for (size_t i = 0; i < run->tap.sequences[r].count; i++) {
            cd_call call = run->tap.sequences[r].items[i];
            call.content = call.digest = 0;
            *form = cd_hash_mix(*form, cd_hash64(&call, sizeof call, 0));
        }
    }
    if (!all) *form = 0;
    for (size_t i = 0; i < p->form_count && all; i++) *is_known |= p->forms[i] == *form;
    return CDDP_OK;
}

static void keep_form(proving *p, uint64_t form)
{
    if (form != 0 && p->form_count < WORDS_SEEN_MAX) p->forms[p->form_count++] = form;
}

/* Records one order of rank 0 and searches every rank behind it. chosen NULL: the engine's order,
** from the start. */
static cddp_status prove_order(proving *p, const cd_window_choice *chosen, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    uint64_t form = 0; /* 0: none */
    cd_world_run run = {.chooser = {.choice = chosen, .rank = 0}};
    CD_TRY_OUT(cd_world_run_record(p->options, p->plan, &run, err));
    p->proof->world_runs++;
    p->proof->orders_tried++;
    if (run.end == CD_WORLD_FAILED) {
        refute_by_world(p, &run.failed);
        goto out;
    }
    if (run.end == CD_WORLD_UNJUDGED) {
        bound(p, run.failed.culprit);
        goto out;
    }
    CD_TRY_OUT(compare_ranks(p, &run, err));
    if (must_stop(p)) goto out;
    if (chosen == NULL) CD_TRY_OUT(probe(p, err));
    if (was_seen(p, digest_of(&run))) goto out;
    p->proof->layouts = p->seen_count;
    if (p->proof->walks_alike && chosen != NULL) {
        bool is_known;
        CD_TRY_OUT(find_form(p, &run, chosen, &form, &is_known, err));
        p->proof->walked += is_known;
        p->has_new_form |= !is_known;
        p->has_no_form |= form == 0;
        show(p);
        if (is_known) goto out;
    }
    for (uint32_t r = 0; r < p->proof->rank_count && !must_stop(p); r++) {
        if (is_searched(p, &run, r, chosen != NULL)) {
            if (chosen == NULL) CD_TRY_OUT(keep_same(p, r, err));
            continue;
        }
        cd_window_choice same;
        const cd_window_choice *start;
        if (find_start(p, &run, r, chosen, &same, &start))
            CD_TRY_OUT(search_rank(p, &run, r, start, err));
    }
    if (!must_stop(p)) keep_form(p, form);
out:
    cd_world_run_fini(&run);
    return status;
}

/* The next order of a window, counting; false behind the last. */
static bool next_order(cd_window_choice *choice)
{
    for (uint32_t k = choice->digit_count; k-- > 0;) {
        if (choice->digits[k] + 1 < choice->digit_count - k) {
            choice->digits[k]++;
            return true;
        }
        choice->digits[k] = 0;
    }
    return false;
}

/* Of like gradients that are left, the first is taken: one order of each form is so. Where this one
** is not, the digits behind the first other choice grow to their end, since none of those orders
** is. */
static bool is_first_of_form(const proving *p, cd_window_choice *choice)
{
    const uint32_t n = choice->digit_count;
    uint64_t left = n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t digit = choice->digits[k], taken = 0;
        bool is_first = true;
        while ((left >> taken & 1) == 0 || digit-- > 0) taken++;
        for (uint32_t i = 0; i < taken; i++)
            is_first = is_first && ((left >> i & 1) == 0 || p->classes[i] != p->classes[taken]);
        if (!is_first) {
            for (uint32_t j = k + 1; j < n; j++) choice->digits[j] = n - j - 1;
            return false;
        }
        left &= ~(UINT64_C(1) << taken);
    }
    return true;
}

/* The next order that is recorded. */
static bool next_recorded(const proving *p, cd_window_choice *choice)
{
    while (next_order(choice))
        if (p->proof->forms == 0 || is_first_of_form(p, choice)) return true;
    return false;
}

/* Every order of rank 0 in the window that decides the layout, or one of each form; of several
** processes each takes every so-manieth. */
static cddp_status prove_orders(proving *p, cddp_error *err)
{
    const uint32_t window = (uint32_t)p->proposing,
                   processes = p->shared != NULL ? p->shared->count : 1;
    cd_window_choice choice = {.window = window, .digit_count = p->first[0].sizes[window]};
    for (p->order = 1; next_recorded(p, &choice) && !must_stop(p); p->order++) {
        if (p->order == p->options->orders_max) {
            char sequences[160];
            snprintf(sequences, sizeof sequences,
                     "%" PRIu64 " of rank 0's orders were tried in the backward that decides the "
                     "rebuilt layout, not all",
                     p->order);
            bound(p, sequences);
            return CDDP_OK;
        }
        if (p->order % processes == p->job) CD_TRY(prove_order(p, &choice, err));
    }
    return CDDP_OK;
}

/* In its own process. What it finds lies in memory that all share, since the others look there for
** an order that was refuted. */
static cddp_status prove_part(void *context, size_t number, cd_text *result, cddp_error *err)
{
    proving *p = context;
    part *mine = &p->shared->parts[number];
    const cd_proof before = *p->proof;
    (void)result;
    p->job = (uint32_t)number;
    p->proof = &mine->proof;
    mine->proof = before;
    mine->proof.states = mine->proof.events = mine->proof.rank_runs = mine->proof.world_runs =
        mine->proof.orders_tried = mine->proof.walked = 0;
    CD_TRY(prove_orders(p, err));
    memcpy(mine->seen, p->seen, p->seen_count * sizeof *p->seen);
    memcpy(mine->forms, p->forms, p->form_count * sizeof *p->forms);
    mine->seen_count = p->seen_count;
    mine->form_count = p->form_count;
    mine->has_no_form = p->has_no_form;
    if (mine->proof.end == CD_PROOF_REFUTED) mine->refuted_at = p->order;
    mine->is_done = true;
    return CDDP_OK;
}

/* What the others found, in the order in which one process would have found it. */
static cddp_status gather(proving *p, const shared *all, cddp_error *err)
{
    cd_proof *proof = p->proof;
    const part *refuting = NULL;
    for (uint32_t j = 0; j < all->count; j++) {
        const part *one = &all->parts[j];
        if (!one->is_done)
            return cd_fail(err, CDDP_E_STATE, "a process of the proof ended without a result");
        proof->states += one->proof.states;
        proof->events += one->proof.events;
        proof->rank_runs += one->proof.rank_runs;
        proof->world_runs += one->proof.world_runs;
        proof->orders_tried += one->proof.orders_tried;
        proof->walked += one->proof.walked;
        for (size_t i = 0; i < one->seen_count; i++) (void)was_seen(p, one->seen[i]);
        for (size_t i = 0; i < one->form_count; i++) keep_form(p, one->forms[i]);
        p->has_no_form |= one->has_no_form;
        if (one->proof.end == CD_PROOF_STOPPED) proof->end = CD_PROOF_STOPPED, p->over = true;
        if (one->proof.end == CD_PROOF_BOUNDED) bound(p, one->proof.bound);
        if (one->refuted_at != 0 && (refuting == NULL || one->refuted_at < refuting->refuted_at))
            refuting = one;
    }
    proof->layouts = p->seen_count;
    if (refuting == NULL) return CDDP_OK;
    const cd_proof sum = *proof;
    *proof = refuting->proof;
    proof->states = sum.states;
    proof->events = sum.events;
    proof->rank_runs = sum.rank_runs;
    proof->world_runs = sum.world_runs;
    proof->orders_tried = sum.orders_tried;
    proof->walked = sum.walked;
    proof->layouts = sum.layouts;
    p->over = true;
    return CDDP_OK;
}

/* A worker that died leaves a part that is not done; `gather` says so. */
static cddp_status take_part(void *context, const cd_crew_end *end, bool *is_last, cddp_error *err)
{
    (void)context, (void)is_last;
    CD_TRY(cd_crew_check_outside(end, "a process of the proof", err));
    return end->status == CDDP_OK ? CDDP_OK : cd_fail(err, end->status, "%s", end->message);
}

static cddp_status prove_in_parts(proving *p, uint32_t count, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    void *memory = NULL;
    const size_t bytes = sizeof(shared) + count * sizeof(part);
    const cd_crew_options crew = {.task_count = count,
                                  .worker_count = count,
                                  .context = p,
                                  .work = prove_part,
                                  .take = take_part};
    cd_crew_count ended;
    CD_TRY(cd_os_shared_open(bytes, &memory, err));
    p->shared = memory;
    p->shared->count = count;
    CD_TRY_OUT(cd_crew_run(&crew, &ended, err));
    CD_TRY_OUT(gather(p, memory, err));
out:
    p->shared = NULL;
    cd_os_shared_close(memory, bytes);
    return status;
}

static bool walks_alike(const proving *p, double orders)
{
    const cd_prove_layouts layouts = p->options->layouts;
    const bool is_wanted =
        layouts == CD_PROVE_LAYOUTS_ALIKE || p->proof->forms > 0 ||
        (layouts == CD_PROVE_LAYOUTS_BY_COST && orders * p->proof->states_estimate > STATES_MANY);
    return is_wanted && cd_likeness_find_obstacle(p->plan) == NULL;
}

/* The engine's order was searched from the start, before anybody asked for its form. */
static cddp_status keep_first_form(proving *p, const cd_world_run *run, cddp_error *err)
{
    uint64_t form = 0;
    bool is_known = false;
    const cd_window_choice engine = {.window = (uint32_t)p->proposing,
                                     .digit_count = p->first[0].sizes[p->proposing]};
    CD_TRY(find_form(p, run, &engine, &form, &is_known, err));
    keep_form(p, form);
    return CDDP_OK;
}

/* How many forms the orders of this window have; 0: its gradients do not all have a form. */
static cddp_status count_forms(proving *p, double orders, double *forms, cddp_error *err)
{
    uint32_t count = 0, same[CD_PROVE_EVENTS_MAX] = {0};
    cd_world_run run = {.chooser = {.rank = 0}};
    *forms = 0;
    cddp_status status = cd_world_run_record(p->options, p->plan, &run, err);
    const cd_prove_rank_options options = {.plan = p->plan,
                                           .registry = p->options->registry,
                                           .results = &run.tap.results,
                                           .calls = &run.tap.sequences[0]};
    if (status == CDDP_OK && run.end != CD_WORLD_FAILED)
        status = cd_likeness_classify(&options, (uint32_t)p->proposing, p->classes, &count, err);
    if (status == CDDP_OK && count > 0) status = keep_first_form(p, &run, err);
    cd_world_run_fini(&run);
    p->proof->world_runs++;
    p->proof->rank_runs++;
    CD_TRY(status);
    if (count != p->first[0].sizes[p->proposing]) return CDDP_OK;
    *forms = orders;
    for (uint32_t i = 0; i < count; i++) *forms /= ++same[p->classes[i]];
    return CDDP_OK;
}

static cddp_status choose_forms(proving *p, double orders, cddp_error *err)
{
    const cd_prove_layouts layouts = p->options->layouts;
    const bool is_wanted = layouts == CD_PROVE_LAYOUTS_FORMS ||
                           (layouts == CD_PROVE_LAYOUTS_BY_COST && orders > ORDERS_MANY);
    p->proof->forms = 0;
    if (!is_wanted || cd_likeness_find_obstacle(p->plan) != NULL) return CDDP_OK;
    return CD_PASS(count_forms(p, orders, &p->proof->forms, err));
}

static cddp_status prove_chosen(proving *p, double orders, cddp_error *err)
{
    const uint32_t jobs = p->options->jobs < JOBS_MAX ? p->options->jobs : JOBS_MAX;
    if (jobs <= 1 || orders < 4 * jobs) return CD_PASS(prove_orders(p, err));
    return CD_PASS(prove_in_parts(p, jobs, err));
}

/* Each must give a form that was searched. */
static cddp_status prove_drawn(proving *p, cddp_error *err)
{
    cd_prng root = cd_prng_seed(p->plan->world.seed);
    cd_window_choice choice = {.window = (uint32_t)p->proposing,
                               .digit_count = p->first[0].sizes[p->proposing]};
    p->has_new_form = false;
    for (uint32_t i = 0; i < ORDERS_DRAWN && !p->has_new_form && !must_stop(p); i++) {
        cd_prng prng = cd_prng_split_index(&root, "order", i);
        for (uint32_t k = 0; k < choice.digit_count; k++)
            choice.digits[k] = (uint32_t)cd_prng_below(&prng, choice.digit_count - k);
        CD_TRY(prove_order(p, &choice, err));
        p->proof->drawn++;
    }
    return CDDP_OK;
}

/* The forms, and then all orders where forms turn out to be no whole story. */
static cddp_status prove_forms(proving *p, cddp_error *err)
{
    p->has_no_form = false;
    CD_TRY(prove_chosen(p, p->proof->forms, err));
    if (must_stop(p) || p->proof->end != CD_PROOF_HOLDS) return CDDP_OK;
    if (!p->has_no_form) CD_TRY(prove_drawn(p, err));
    if (must_stop(p) || !(p->has_no_form || p->has_new_form)) return CDDP_OK;
    p->proof->forms = 0;
    p->proof->drawn = 0;
    p->proof->orders_estimate = p->proof->orders_all;
    return CD_PASS(prove_chosen(p, p->proof->orders_all, err));
}

static cddp_status prove_layouts(proving *p, cddp_error *err)
{
    cd_proof *proof = p->proof;
    double orders = 1;
    for (uint32_t k = 2; k <= p->first[0].sizes[p->proposing]; k++) orders *= k;
    if (proof->end == CD_PROOF_BOUNDED) return CDDP_OK; /* already no proof */
    proof->orders_all = orders;
    CD_TRY(choose_forms(p, orders, err));
    proof->walks_alike = walks_alike(p, orders);
    const double tried = proof->forms > 0 ? proof->forms + ORDERS_DRAWN : orders;
    proof->orders_estimate =
        tried < (double)p->options->orders_max ? tried : (double)p->options->orders_max;
    show(p);
    return CD_PASS(proof->forms > 0 ? prove_forms(p, err) : prove_chosen(p, orders, err));
}

/* ---- counting ---- */

/* Sets of ready gradients of rank 0, over its windows. */
static uint64_t states_of_one(const proving *p)
{
    uint64_t states = 0;
    for (uint32_t w = 0; w < p->first[0].size_count; w++)
        states += UINT64_C(1) << (p->first[0].sizes[w] % 64);
    return states;
}

/* The product as a number with all its digits, in base 10^9. */
static void count_schedules(proving *p)
{
    uint32_t limbs[64] = {1};
    size_t count = 1;
    bool overflow = false;
    double product = 1;
    for (uint32_t r = 0; r < p->proof->rank_count; r++)
        for (uint32_t w = 0; w < p->first[r].size_count; w++)
            for (uint32_t k = 2; k <= p->first[r].sizes[w]; k++) {
                uint64_t carry = 0;
                product *= k;
                for (size_t i = 0; i < count; i++) {
                    carry += (uint64_t)limbs[i] * k;
                    limbs[i] = (uint32_t)(carry % 1000000000u);
                    carry /= 1000000000u;
                }
                if (carry > 0 && count == 64)
                    overflow = true;
                else if (carry > 0)
                    limbs[count++] = (uint32_t)carry;
            }
    cd_proof *proof = p->proof;
    proof->schedules = product;
    if (overflow || product >= 1e27) {
        if (isinf(product))
            snprintf(proof->schedules_exactly, sizeof proof->schedules_exactly, "more than 1e308");
        else
            cd_real_format(proof->schedules_exactly, sizeof proof->schedules_exactly, "%.4g",
                           product);
        return;
    }
    char digits[64], *to = proof->schedules_exactly;
    size_t n = (size_t)snprintf(digits, sizeof digits, "%" PRIu32, limbs[count - 1]);
    for (size_t i = count - 1; i-- > 0;)
        n += (size_t)snprintf(digits + n, sizeof digits - n, "%09" PRIu32, limbs[i]);
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) *to++ = ',';
        *to++ = digits[i];
    }
    *to = '\0';
}

cddp_status cd_prove(const cd_prove_options *options, cd_proof *proof, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    proving p = {.options = options, .plan = options->plan, .proof = proof, .proposing = -1};
    *proof = (cd_proof){.orders_estimate = 1,
                        .rank_count = (uint32_t)options->plan->world.size,
                        .values = options->plan->settings.model.device == CDDP_MODEL_DEVICE_SYMBOL};
    p.seen = calloc(WORDS_SEEN_MAX, sizeof *p.seen);
    p.forms = calloc(WORDS_SEEN_MAX, sizeof *p.forms);
    p.first = calloc(proof->rank_count, sizeof *p.first);
    if (p.seen == NULL || p.forms == NULL || p.first == NULL)
        CD_TRY_OUT(cd_fail_memory(err, "a proof"));
    CD_TRY_OUT(prove_order(&p, NULL, err));
    if (!must_stop(&p) && p.proposing >= 0) CD_TRY_OUT(prove_layouts(&p, err));
    if (!must_stop(&p) && proof->end == CD_PROOF_HOLDS)
        CD_TRY_OUT(cd_prove_sizes(options, states_of_one(&p), proof, err));
    /* Nothing that the argument of this proof knows of, and yet a run that is not verified. */
    if (p.has_failed_probe && proof->end != CD_PROOF_REFUTED) refute_by_world(&p, &p.failed_probe);
    count_schedules(&p);
out:
    for (uint32_t r = 0; p.first != NULL && r < proof->rank_count; r++) {
        free(p.first[r].sizes);
        free(p.first[r].begins);
        free(p.first[r].received);
    }
    free(p.first);
    free(p.seen);
    free(p.forms);
    return status;
}
