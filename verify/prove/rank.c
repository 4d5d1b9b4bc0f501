/* SPDX-License-Identifier: Apache-2.0 */
/* The search over one rank. See rank.h.
**
** Window by window: the states in which a window can begin (its roots; one, as a rule), every step
** from every state that is reachable inside it, the states in which the next window begins.
**
** Invariants:
**   P1  every firing that is possible in a visited state was made once, from that very state;
**   P2  a state is visited once: its key and its set of fired gradients are those of no other;
**   P3  memory that the search does not put back has the content it had when the window began
**       (snapshots only).
*/
#include "verify/prove/rank.h"

#include "verify/prove/rewind.h"
#include "verify/prove/walk.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/prng.h"
#include "sim/fiber.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOTS_MAX 256       /* states in which one window begins */
#define SAMPLES 1000        /* orders of a window that is too large */
#define SHORTEST_TRIES 4000 /* for a counterexample */
#define STOP_EVERY 256      /* firings */

typedef struct node {
    uint64_t set, key, left; /* fired; state; firings not yet tried from here */
    uint8_t path[CD_PROVE_EVENTS_AGAIN];
} node;

/* Where a window begins: the orders of all windows before it. */
typedef struct root {
    uint64_t key;
    uint8_t *orders; /* (order_count) firings of all windows before, one window after the other */
    size_t order_count;
} root;

typedef struct search {
    const cd_prove_rank_options *options;
    cd_rank_proof *proof;
    cd_calls expected;
    root *roots, *next; /* (root_count), (next_count) */
    size_t root_count, next_count;
    uint64_t proposal; /* of the first order of this window */
    bool has_proposal;
    /* again */
    node *nodes;
    size_t node_count, node_capacity;
    /* snapshots: (2^gradients) the key of the set's first state, 0: not visited; others are
    ** nodes */
    uint64_t *table;
    cd_rewind *rewind;
    bool stopped, parted;
    uint8_t order[CD_PROVE_EVENTS_MAX]; /* of the window being searched, as far as it went */
    uint32_t order_count;
} search;

static bool must_stop(search *s)
{
    if (!s->stopped && s->options->stop != NULL && s->proof->events % STOP_EVERY == 0)
        s->stopped = s->options->stop(s->options->context);
    return s->stopped;
}

/* ---- roots ---- */

static void roots_release(root *roots, size_t count)
{
    for (size_t i = 0; i < count; i++) free(roots[i].orders);
    free(roots);
}

static cddp_status add_root(search *s, const root *from, uint64_t key, uint32_t events,
                            cddp_error *err)
{
    for (size_t i = 0; i < s->next_count; i++)
        if (s->next[i].key == key) return CDDP_OK;
    if (s->next_count == ROOTS_MAX) {
        s->proof->is_complete = false;
        return CDDP_OK;
    }
    if (s->next == NULL) s->next = calloc(ROOTS_MAX, sizeof *s->next);
    size_t before = from != NULL ? from->order_count : 0;
    uint8_t *orders = malloc(before + events + 1);
    if (s->next == NULL || orders == NULL) {
        free(orders);
        return cd_fail_memory(err, "the beginnings of a window");
    }
    if (before > 0) memcpy(orders, from->orders, before);
    memcpy(orders + before, s->order, events);
    s->next[s->next_count++] = (root){.key = key, .orders = orders, .order_count = before + events};
    return CDDP_OK;
}

/* All have fired: what follows, up to the next window. */
static cddp_status cross(search *s, cd_rank_walk *w, const root *from, cddp_error *err)
{
    const uint32_t events = w->firing_count;
    CD_TRY(cd_rank_walk_next_window(w, err));
    return CD_PASS(add_root(s, from, cd_rank_walk_key(w), events, err));
}

/* The proposal that the arrival order of this window makes, seen when its last gradient arrived. */
static void note_proposal(search *s, const cd_rank_walk *w)
{
    uint64_t proposal = cd_rank_walk_proposal(w);
    if (!s->has_proposal) {
        s->has_proposal = true;
        s->proposal = proposal;
    } else if (proposal != s->proposal) {
        s->proof->proposing = (int32_t)w->window;
    }
}

/* ---- parting ---- */

/* The sequence differs, or the rank ends with an error in this order and not in the engine's. */
static void note_parting(search *s, const cd_rank_walk *w, const cddp_error *error)
{
    cd_rank_proof *p = s->proof;
    p->is_refuted = true;
    p->call = w->call_count;
    p->has_said = w->has_said;
    p->said = w->said;
    p->has_expected = w->call_count < s->expected.count;
    if (p->has_expected) p->expected = s->expected.items[w->call_count];
    snprintf(p->message, sizeof p->message, "%s", w->has_parted ? "" : error->message);
    p->counterexample.window = w->window;
    s->parted = true;
}

static bool is_parting(const cd_rank_walk *w, cddp_status status)
{
    return status != CDDP_OK && status != CDDP_E_NOMEM &&
           (w->has_parted || status != CDDP_E_UNSUPPORTED);
}

/* Turns a failure of the rank into a refutation; anything else stays an error. */
static cddp_status judged(search *s, const cd_rank_walk *w, cddp_status status, cddp_error *err)
{
    if (!is_parting(w, status)) return status;
    note_parting(s, w, err);
    cd_error_reset(err);
    return CDDP_OK;
}

/* ---- again: a new rank for every descent ---- */

static cddp_status lead(search *s, cd_rank_walk *w, const root *from, cddp_error *err)
{
    s->proof->runs++;
    CD_TRY(cd_rank_walk_begin(w, err));
    size_t at = 0;
    while (from != NULL && at < from->order_count) {
        const uint32_t events = w->firing_count;
        for (uint32_t k = 0; k < events; k++)
            CD_TRY(cd_rank_walk_fire(w, from->orders[at + k], err));
        at += events;
        CD_TRY(cd_rank_walk_next_window(w, err));
    }
    return CDDP_OK;
}

static cddp_status find_node(search *s, uint64_t set, uint64_t key, uint64_t left, size_t *index,
                             bool *is_new, cddp_error *err)
{
    *is_new = false;
    for (*index = 0; *index < s->node_count; ++*index)
        if (s->nodes[*index].set == set && s->nodes[*index].key == key) return CDDP_OK;
    if (!cd_vec_grow(cddp_allocator_default(), (void **)&s->nodes, &s->node_capacity,
                     s->node_count + 1, sizeof *s->nodes))
        return cd_fail_memory(err, "%zu states", s->node_count);
    node *n = &s->nodes[s->node_count++];
    *n = (node){.set = set, .key = key, .left = left};
    for (uint32_t k = 0; k < s->order_count; k++) n->path[k] = s->order[k];
    s->proof->states++;
    *is_new = true;
    return CDDP_OK;
}

/* From a node with firings left to try, as far down as there are some. */
static cddp_status descend(search *s, cd_rank_walk *w, const root *from, size_t at, cddp_error *err)
{
    const uint64_t all = w->left;
    const uint32_t depth = (uint32_t)__builtin_popcountll(s->nodes[at].set);
    s->order_count = 0;
    for (uint32_t k = 0; k < depth; k++)
        CD_TRY(cd_rank_walk_fire(w, s->order[s->order_count++] = s->nodes[at].path[k], err));
    while (s->nodes[at].left != 0 && !must_stop(s)) {
        const uint32_t e = (uint32_t)__builtin_ctzll(s->nodes[at].left);
        s->nodes[at].left &= ~(UINT64_C(1) << e); /* P1 */
        s->order[s->order_count++] = (uint8_t)e;
        s->proof->events++;
        CD_TRY(cd_rank_walk_fire(w, e, err));
        bool is_new = false;
        /* P2 */
        CD_TRY(find_node(s, all & ~w->left, cd_rank_walk_key(w), w->left, &at, &is_new, err));
        if (w->left == 0) {
            note_proposal(s, w);
            if (is_new) CD_TRY(cross(s, w, from, err));
            return CDDP_OK;
        }
    }
    return CDDP_OK;
}

static cddp_status search_again(search *s, const root *from, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    s->node_count = 0;
    for (size_t at = 0; !s->stopped && !s->parted; at = s->node_count) {
        cd_rank_walk walk;
        cd_rank_walk_init(&walk, s->options, cddp_allocator_default(), &s->expected);
        status = lead(s, &walk, from, err);
        if (status == CDDP_OK && s->node_count == 0) {
            bool is_new;
            size_t first;
            s->order_count = 0;
            status = find_node(s, 0, cd_rank_walk_key(&walk), walk.left, &first, &is_new, err);
            at = s->node_count;
        }
        while (at > 0 && s->nodes[at - 1].left == 0) at--;
        const bool is_done = at == 0;
        if (status == CDDP_OK && !is_done)
            status = judged(s, &walk, descend(s, &walk, from, at - 1, err), err);
        cd_rank_walk_fini(&walk);
        if (status != CDDP_OK || is_done) return status;
    }
    return CDDP_OK;
}

/* ---- too many: some orders ---- */

static cddp_status sample(search *s, const root *from, cddp_error *err)
{
    cd_prng prng = cd_prng_seed(1);
    s->proof->is_complete = false;
    for (uint32_t i = 0; i < SAMPLES && !s->parted && !must_stop(s); i++) {
        cd_rank_walk walk;
        cd_rank_walk_init(&walk, s->options, cddp_allocator_default(), &s->expected);
        cddp_status status = lead(s, &walk, from, err);
        s->order_count = 0;
        while (status == CDDP_OK && walk.left != 0) {
            uint32_t e = (uint32_t)cd_prng_below(&prng, walk.firing_count);
            while ((walk.left >> e & 1) == 0) e = (e + 1) % walk.firing_count;
            s->order[s->order_count++] = (uint8_t)e;
            s->proof->events++;
            status = cd_rank_walk_fire(&walk, e, err);
        }
        if (status == CDDP_OK) {
            note_proposal(s, &walk);
            status = cross(s, &walk, from, err);
        }
        status = judged(s, &walk, status, err);
        cd_rank_walk_fini(&walk);
        if (status != CDDP_OK) return status;
    }
    return CDDP_OK;
}

/* ---- snapshots: one rank, put back after every firing ---- */

/* As a rule a set of fired gradients has one state. */
static cddp_status visit(search *s, uint64_t set, uint64_t key, bool *is_new, cddp_error *err)
{
    const uint64_t entry = key | 1;
    *is_new = s->table[set] != entry;
    if (!*is_new) return CDDP_OK;
    if (s->table[set] == 0) {
        s->table[set] = entry;
        s->proof->states++;
        return CDDP_OK;
    }
    size_t at = 0;
    const uint32_t order_count = s->order_count;
    s->order_count = 0; /* nodes keep no path here */
    cddp_status status = find_node(s, set, entry, 0, &at, is_new, err);
    s->order_count = order_count;
    return status;
}

/* What follows a window gives things back to the device, which cannot be undone: another rank does
** it. */
static cddp_status cross_apart(search *s, const root *from, uint32_t events, cddp_error *err)
{
    cd_rank_walk walk;
    cd_rank_walk_init(&walk, s->options, cddp_allocator_default(), &s->expected);
    cddp_status status = lead(s, &walk, from, err);
    for (uint32_t k = 0; k < events && status == CDDP_OK; k++)
        status = cd_rank_walk_fire(&walk, s->order[k], err);
    if (status == CDDP_OK) status = cross(s, &walk, from, err);
    status = judged(s, &walk, status, err);
    cd_rank_walk_fini(&walk);
    return status;
}

static cddp_status dive(search *s, cd_rank_walk *w, uint64_t all, const root *from, uint32_t depth,
                        cddp_error *err)
{
    if (w->left == 0) return CD_PASS(cross_apart(s, from, depth, err));
    cd_rewind_save(s->rewind, depth);
    for (uint64_t todo = w->left; todo != 0 && !s->parted && !s->rewind->is_torn && !must_stop(s);
         todo &= todo - 1) {
        const uint32_t e = (uint32_t)__builtin_ctzll(todo);
        s->order[depth] = (uint8_t)e;
        s->order_count = depth + 1;
        s->proof->events++;
        __builtin_prefetch(&s->table[(all & ~w->left) | UINT64_C(1) << e]);
        cddp_status status = cd_rank_walk_fire(w, e, err);
        if (status == CDDP_OK) {
            if (w->left == 0) note_proposal(s, w);
            bool is_new = false;
            status = visit(s, all & ~w->left, cd_rank_walk_key(w), &is_new, err);
            if (is_new) status = dive(s, w, all, from, depth + 1, err);
        }
        CD_TRY(judged(s, w, status, err));
        cd_rewind_restore(s->rewind, depth, e);
        cd_rewind_check(s->rewind, false);
    }
    cd_rewind_compare(s->rewind, depth);
    return CDDP_OK;
}

/* Which pieces of memory change while gradients become ready: those of some orders. */
static cddp_status learn(search *s, cd_rank_walk *w, cddp_error *err)
{
    cd_prng prng = cd_prng_seed(2);
    CD_TRY(cd_rewind_begin(s->rewind, err));
    for (uint32_t i = 0; i < 24; i++) {
        while (w->left != 0) {
            uint32_t e = (uint32_t)cd_prng_below(&prng, w->firing_count);
            while ((w->left >> e & 1) == 0) e = (e + 1) % w->firing_count;
            cddp_status status = cd_rank_walk_fire(w, e, err);
            cd_rewind_learn(s->rewind, e);
            if (is_parting(w, status)) { /* found again, with its order, by the search */
                cd_error_reset(err);
                break;
            }
            CD_TRY(status);
        }
        cd_rewind_restore_first(s->rewind);
    }
    return CD_PASS(cd_rewind_fix(s->rewind, err));
}

static cddp_status search_block(search *s, cd_rank_walk *w, const root *from, cddp_error *err)
{
    const uint64_t states = s->proof->states;
    do { /* P3: a piece that changed against what was known makes the window begin anew */
        bool is_new;
        free(s->table);
        s->table = calloc(UINT64_C(1) << w->firing_count, sizeof *s->table);
        if (s->table == NULL)
            return cd_fail_memory(err, "the states of %u gradients", w->firing_count);
        s->proof->states = states;
        s->node_count = 0;
        CD_TRY(learn(s, w, err));
        CD_TRY(visit(s, 0, cd_rank_walk_key(w), &is_new, err));
        CD_TRY(dive(s, w, w->left, from, 0, err));
        cd_rewind_check(s->rewind, true);
        cd_rewind_restore_first(s->rewind);
    } while (s->rewind->is_torn && !s->stopped && !s->parted);
    return CDDP_OK;
}

static cddp_status search_snapshots(search *s, const root *from, cddp_error *err)
{
    CD_TRY(cd_rewind_create(&s->rewind, err));
    cd_rank_walk *walk = cd_rewind_walk(s->rewind);
    cd_rank_walk_init(walk, s->options, cd_rewind_allocator(s->rewind), &s->expected);
    cddp_status status = lead(s, walk, from, err);
    if (status == CDDP_OK) status = cd_rank_walk_warm(walk, err);
    if (status == CDDP_OK) status = search_block(s, walk, from, err);
    cd_rank_walk_fini(walk);
    cd_rewind_destroy(s->rewind);
    s->rewind = NULL;
    return status;
}

/* ---- window by window ---- */

static bool can_snapshot(const cd_prove_rank_options *o)
{
    return o->snapshots && o->plan->settings.model.device == CDDP_MODEL_DEVICE_SHAPE &&
           !cd_fiber_has_shadow();
}

static cddp_status search_root(search *s, uint32_t window, size_t index, cddp_error *err)
{
    const root *from = s->roots != NULL ? &s->roots[index] : NULL;
    const uint32_t events = s->proof->windows[window];
    s->proof->roots++;
    if (can_snapshot(s->options) && events <= CD_PROVE_EVENTS_SNAPSHOT)
        return CD_PASS(search_snapshots(s, from, err));
    if (events <= CD_PROVE_EVENTS_AGAIN) return CD_PASS(search_again(s, from, err));
    return CD_PASS(sample(s, from, err));
}

static void advance_roots(search *s)
{
    roots_release(s->roots, s->root_count);
    s->roots = s->next;
    s->root_count = s->next_count;
    s->next = NULL;
    s->next_count = 0;
    s->has_proposal = false;
}

/* The windows up to the chosen one have their order; what is searched begins behind it. */
static cddp_status skip_to_chosen(search *s, cddp_error *err)
{
    const cd_window_choice *chosen = s->options->chosen;
    cd_rank_walk walk;
    cd_rank_walk_init(&walk, s->options, cddp_allocator_default(), &s->expected);
    cddp_status status = cd_rank_walk_begin(&walk, err);
    root from = {0};
    while (status == CDDP_OK && walk.window <= chosen->window && !walk.has_ended) {
        const bool is_chosen = walk.window == chosen->window;
        uint64_t left = walk.left;
        for (uint32_t k = 0; k < walk.firing_count; k++) {
            uint32_t digit = is_chosen && k < chosen->digit_count ? chosen->digits[k] : 0, e = 0;
            for (uint64_t bits = left;; e++, bits >>= 1)
                if ((bits & 1) != 0 && digit-- == 0) break;
            s->order[k] = (uint8_t)e;
            left &= ~(UINT64_C(1) << e);
        }
        const uint32_t events = walk.firing_count;
        status = cd_rank_walk_choose(&walk, is_chosen ? chosen : NULL, err);
        if (status == CDDP_OK) status = add_root(s, &from, cd_rank_walk_key(&walk), events, err);
        if (status == CDDP_OK) {
            advance_roots(s);
            free(from.orders);
            from = (root){.key = s->roots[0].key,
                          .order_count = s->roots[0].order_count,
                          .orders = malloc(s->roots[0].order_count + 1)};
            if (from.orders == NULL)
                status = cd_fail_memory(err, "the order of a window");
            else
                memcpy(from.orders, s->roots[0].orders, from.order_count);
        }
    }
    free(from.orders);
    status = judged(s, &walk, status, err);
    cd_rank_walk_fini(&walk);
    return status;
}

static cddp_status search_windows(search *s, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const cd_window_choice *chosen = s->options->chosen;
    if (chosen != NULL) CD_TRY(skip_to_chosen(s, err));
    for (uint32_t w = chosen != NULL ? chosen->window + 1 : 0;
         w < s->proof->window_count && !s->stopped && !s->parted; w++) {
        const size_t count = s->roots != NULL ? s->root_count : 1;
        for (size_t i = 0; i < count && !s->stopped && !s->parted && status == CDDP_OK; i++)
            status = search_root(s, w, i, err);
        CD_TRY(status);
        advance_roots(s);
    }
    return CDDP_OK;
}

/* ---- the engine's order first ---- */

static cddp_status walk_first(search *s, cddp_error *err)
{
    cd_rank_proof *p = s->proof;
    cd_rank_walk walk;
    cd_rank_walk_init(&walk, s->options, cddp_allocator_default(), &s->expected);
    walk.grows = s->options->calls == NULL;
    cddp_status status = cd_rank_walk_begin(&walk, err);
    while (status == CDDP_OK && !walk.has_ended) {
        if (p->window_count == CD_PROVE_WINDOWS_MAX) {
            status = cd_fail(err, CDDP_E_LIMIT, "more than %d backwards with a choice",
                             CD_PROVE_WINDOWS_MAX);
            break;
        }
        p->windows[p->window_count++] = walk.firing_count;
        const cd_window_choice *chosen = s->options->chosen;
        status =
            cd_rank_walk_choose(&walk,
                                chosen != NULL && chosen->window == walk.window ? chosen : NULL,
                                err);
        p->window_calls[p->window_count - 1] = walk.fired_calls;
    }
    /* In the recorded run the same rank issued other collectives: the record is not of it. */
    if (walk.has_parted)
        status = cd_fail(
            err, CDDP_E_MISMATCH,
            "rank %u alone does not repeat what it did in the recorded run, from collective %zu on",
            s->options->rank, walk.call_count);
    p->call_count = walk.call_count;
    cd_rank_walk_fini(&walk);
    return status;
}

/* ---- the shortest counterexample ---- */

static cddp_status try_choice(search *s, const cd_window_choice *choice, bool *parts,
                              cddp_error *err)
{
    cd_rank_walk walk;
    cd_rank_walk_init(&walk, s->options, cddp_allocator_default(), &s->expected);
    cddp_status status = cd_rank_walk_begin(&walk, err);
    while (status == CDDP_OK && !walk.has_ended)
        status = cd_rank_walk_choose(&walk, walk.window == choice->window ? choice : NULL, err);
    *parts = is_parting(&walk, status);
    if (*parts) {
        note_parting(s, &walk, err);
        s->proof->counterexample = *choice;
        cd_error_reset(err);
        status = CDDP_OK;
    }
    cd_rank_walk_fini(&walk);
    return status;
}

/* Every choice of `deviations` places at which another gradient than the engine's goes first, in
** order. */
static cddp_status try_deviations(search *s, cd_window_choice *choice, uint32_t from,
                                  uint32_t deviations, uint32_t *tries, bool *parts,
                                  cddp_error *err)
{
    const uint32_t n = choice->digit_count;
    if (deviations == 0) {
        ++*tries;
        return CD_PASS(try_choice(s, choice, parts, err));
    }
    for (uint32_t k = from; k + 1 < n; k++) {
        for (uint32_t digit = 1; digit < n - k; digit++) {
            if (*tries >= SHORTEST_TRIES) return CDDP_OK;
            choice->digits[k] = digit;
            CD_TRY(try_deviations(s, choice, k + 1, deviations - 1, tries, parts, err));
            if (*parts) return CDDP_OK;
        }
        choice->digits[k] = 0;
    }
    return CDDP_OK;
}

static void digits_of(search *s, uint32_t n, cd_window_choice *choice)
{
    uint64_t left = n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
    for (uint32_t k = 0; k < s->order_count && k < n; k++) {
        const uint64_t below = left & ((UINT64_C(1) << s->order[k]) - 1);
        choice->digits[k] = (uint32_t)__builtin_popcountll(below);
        left &= ~(UINT64_C(1) << s->order[k]);
    }
    choice->digit_count = n;
}

static cddp_status shorten(search *s, cddp_error *err)
{
    cd_rank_proof *p = s->proof;
    const uint32_t n =
        p->windows[p->counterexample.window < p->window_count ? p->counterexample.window
                                                              : p->window_count - 1];
    cd_window_choice found = {.window = p->counterexample.window};
    const cd_rank_proof as_found = *p;
    uint32_t tries = 0;
    bool parts = false;
    digits_of(s, n, &found);
    for (uint32_t deviations = 1; deviations < n && !parts && tries < SHORTEST_TRIES;
         deviations++) {
        cd_window_choice choice = {.window = found.window, .digit_count = n};
        CD_TRY(try_deviations(s, &choice, 0, deviations, &tries, &parts, err));
    }
    if (!parts) {
        *p = as_found;
        p->counterexample = found;
    }
    p->is_shortest = parts;
    return CDDP_OK;
}

cddp_status cd_prove_rank(const cd_prove_rank_options *options, cd_rank_proof *proof,
                          cddp_error *err)
{
    cddp_status status = CDDP_OK;
    search s = {.options = options, .proof = proof};
    *proof = (cd_rank_proof){.is_complete = true, .proposing = -1};
    CD_TRY_OUT(cd_rank_watch_begin(options, err));
    if (options->calls != NULL) CD_TRY_OUT(cd_calls_copy(&s.expected, options->calls, err));
    CD_TRY_OUT(walk_first(&s, err));
    CD_TRY_OUT(search_windows(&s, err));
    proof->was_stopped = s.stopped;
    if (s.stopped) proof->is_complete = false;
    if (s.parted) CD_TRY_OUT(shorten(&s, err));
    proof->calls = s.expected;
    s.expected = (cd_calls){0};
out:
    cd_rank_watch_end();
    roots_release(s.roots, s.root_count);
    roots_release(s.next, s.next_count);
    cd_release(cddp_allocator_default(), s.nodes, s.node_capacity * sizeof *s.nodes);
    free(s.table);
    cd_calls_fini(&s.expected);
    return status;
}

static void report_parting(const cd_rank_walk *w, const cddp_error *error, cd_text *how)
{
    if (!w->has_parted) {
        cd_text_push(how, error->message);
        return;
    }
    cd_text_printf(how, "collective %zu is ", w->call_count);
    if (w->has_said)
        cd_call_print(how, &w->said);
    else
        cd_text_push(how, "missing");
    cd_text_push(how, ", not ");
    if (w->call_count < w->expected->count)
        cd_call_print(how, &w->expected->items[w->call_count]);
    else
        cd_text_push(how, "the end");
}

cddp_status cd_prove_rank_repeats(const cd_prove_rank_options *options, bool *repeats, cd_text *how,
                                  cddp_error *err)
{
    cd_calls expected = {0};
    cd_rank_walk walk;
    cddp_status status = cd_calls_copy(&expected, options->calls, err);
    if (status != CDDP_OK) return status;
    cd_rank_walk_init(&walk, options, cddp_allocator_default(), &expected);
    status = cd_rank_watch_begin(options, err);
    if (status == CDDP_OK) status = cd_rank_walk_begin(&walk, err);
    if (status == CDDP_OK) status = cd_rank_walk_to_the_end(&walk, err);
    cd_rank_watch_end();
    *repeats = status == CDDP_OK;
    if (!*repeats && status != CDDP_E_NOMEM) report_parting(&walk, err, how);
    cd_rank_walk_fini(&walk);
    cd_calls_fini(&expected);
    if (status == CDDP_E_NOMEM) return status;
    cd_error_reset(err);
    return CDDP_OK;
}

void cd_rank_proof_fini(cd_rank_proof *proof) { cd_calls_fini(&proof->calls); }
