/* SPDX-License-Identifier: Apache-2.0 */
/* Sequence covering arrays and the chooser that plays them. See choose_cover.h.
**
** The tuples that are covered are a set of bits, (a, b, c, d) of n^4 at most. It is closed under
** reversal, because orders come in pairs, so the second of a pair covers as many new tuples as the
** first.
*/
#include "sim/choose_cover.h"

#include "core/base/alloc.h"
#include "core/base/arena.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/prng.h"

#include <string.h>

#define ATTEMPTS 24 /* per pair of orders; more attempts gain little */

#define MAKER_BLOCK_BYTES ((size_t)1024)

typedef struct maker {
    uint32_t t, n;
    uint64_t *covered; /* bits */
    size_t words;
    uint64_t missing; /* tuples not covered yet */
    cd_prng prng;
    uint8_t sequence[CD_COVER_EVENTS_MAX], best[CD_COVER_EVENTS_MAX], entries[CD_COVER_EVENTS_MAX];
} maker;

static uint64_t index_of(const maker *m, const uint8_t *tuple)
{
    uint64_t index = 0;
    for (uint32_t i = 0; i < m->t; i++) index = index * m->n + tuple[i];
    return index;
}

static uint32_t is_new(const maker *m, const uint8_t *tuple)
{
    uint64_t i = index_of(m, tuple);
    return (uint32_t)(~(m->covered[i / 64] >> (i % 64)) & 1u);
}

/* The tuples of t places in ascending order out of count, one after the other; false behind the
** last. */
static bool next_places(uint32_t *places, uint32_t t, uint32_t count)
{
    for (uint32_t i = t; i-- > 0;) {
        if (places[i] + (t - i) >= count) continue;
        places[i]++;
        for (uint32_t k = i + 1; k < t; k++) places[k] = places[k - 1] + 1;
        return true;
    }
    return false;
}

/* New tuples in which x stands right behind sequence[at] … or right before it, with both in
** them. */
static int64_t gain_beside(const maker *m, uint32_t length, uint32_t at, uint8_t x, bool behind)
{
    uint8_t tuple[CD_COVER_STRENGTH_MAX];
    uint32_t others = m->t - 2, places[CD_COVER_STRENGTH_MAX] = {0, 1, 2, 3};
    int64_t gain = 0;
    uint8_t y = m->sequence[at];
    if (others > length - 1) return 0;
    do {
        uint32_t k = 0;
        bool is_placed = false;
        for (uint32_t i = 0; i < others; i++) {
            uint32_t place = places[i] + (places[i] >= at); /* the places other than `at` */
            if (place > at && !is_placed) {
                tuple[k++] = behind ? y : x;
                tuple[k++] = behind ? x : y;
                is_placed = true;
            }
            tuple[k++] = m->sequence[place];
        }
        if (!is_placed) {
            tuple[k++] = behind ? y : x;
            tuple[k] = behind ? x : y;
        }
        gain += is_new(m, tuple);
    } while (others > 0 && next_places(places, others, length - 1));
    return gain;
}

/* Inserts x where it covers most; of equally good places one at random. Moving x behind one more
** element changes only the tuples that hold both. */
static void insert(maker *m, uint32_t length, uint8_t x)
{
    int64_t gain = 0, best = 0;
    uint32_t at = 0, equals = 1;
    for (uint32_t i = 0; i < length; i++) {
        gain += gain_beside(m, length, i, x, true) - gain_beside(m, length, i, x, false);
        if (gain > best) equals = 0;
        if (gain < best) continue;
        equals++;
        if (gain > best || cd_prng_below(&m->prng, equals) == 0) at = i + 1;
        best = gain;
    }
    memmove(m->sequence + at + 1, m->sequence + at, length - at);
    m->sequence[at] = x;
}

static uint64_t count_new(maker *m, const uint8_t *sequence, bool cover)
{
    uint32_t places[CD_COVER_STRENGTH_MAX] = {0, 1, 2, 3};
    uint64_t count = 0;
    do {
        uint8_t tuple[CD_COVER_STRENGTH_MAX];
        for (uint32_t i = 0; i < m->t; i++) tuple[i] = sequence[places[i]];
        count += is_new(m, tuple);
        uint64_t index = index_of(m, tuple);
        if (cover) m->covered[index / 64] |= UINT64_C(1) << (index % 64);
    } while (next_places(places, m->t, m->n));
    return count;
}

static void attempt(maker *m)
{
    for (uint32_t i = 0; i < m->n; i++) m->entries[i] = (uint8_t)i;
    for (uint32_t i = m->n; i > 1; i--) {
        uint32_t k = (uint32_t)cd_prng_below(&m->prng, i);
        uint8_t other = m->entries[k];
        m->entries[k] = m->entries[i - 1];
        m->entries[i - 1] = other;
    }
    for (uint32_t i = 0; i < m->n; i++) insert(m, i, m->entries[i]);
}

static cddp_status push_order(maker *m, cd_cover *cover, cddp_error *err)
{
    if (cover->order_count == cover->order_capacity) {
        uint32_t capacity = cover->order_capacity == 0 ? 64 : 2 * cover->order_capacity;
        uint8_t *orders = cd_allocate(cover->allocator, (size_t)capacity * m->n);
        if (orders == NULL) return cd_fail_memory(err, "%u orders of %u gradients", capacity, m->n);
        memcpy(orders, cover->orders != NULL ? cover->orders : orders,
               (size_t)cover->order_count * m->n);
        cd_release(cover->allocator, cover->orders, (size_t)cover->order_capacity * m->n);
        cover->orders = orders;
        cover->order_capacity = capacity;
    }
    uint8_t *order = cover->orders + (size_t)cover->order_count++ * m->n;
    for (uint32_t i = 0; i < m->n; i++) order[m->best[i]] = (uint8_t)i;
    m->missing -= count_new(m, m->best, true);
    return CDDP_OK;
}

static cddp_status make_pair(maker *m, cd_cover *cover, cddp_error *err)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < ATTEMPTS; i++) {
        attempt(m);
        uint64_t count = count_new(m, m->sequence, false);
        if (count <= most && i > 0) continue;
        most = count;
        memcpy(m->best, m->sequence, m->n);
    }
    CD_TRY(push_order(m, cover, err));
    for (uint32_t i = 0; i < m->n / 2; i++) {
        uint8_t other = m->best[i];
        m->best[i] = m->best[m->n - 1 - i];
        m->best[m->n - 1 - i] = other;
    }
    CD_TRY(push_order(m, cover, err));
    return CDDP_OK;
}

cddp_status cd_cover_make(uint32_t strength, uint32_t event_count, uint64_t seed, cd_cover *cover,
                          cddp_error *err)
{
    cddp_status status = CDDP_OK;
    uint32_t most = strength < 4 ? CD_COVER_EVENTS_MAX : CD_COVER_EVENTS_MAX_4;
    CD_ASSERT(strength >= 2 && strength <= CD_COVER_STRENGTH_MAX && event_count >= 2);
    if (event_count > most)
        return cd_fail(err, CDDP_E_LIMIT,
                       "a covering array of strength %u takes at most %u gradients, not %u",
                       strength, most, event_count);
    cd_arena arena;
    cd_arena_init(&arena, cover->allocator, MAKER_BLOCK_BYTES);
    maker *m = cd_arena_push(&arena, sizeof *m);
    if (m == NULL) return cd_fail_memory(err, "a covering array");
    m->t = strength < event_count ? strength : event_count;
    m->n = event_count;
    cd_prng root = cd_prng_seed(seed);
    m->prng = cd_prng_split(&root, "cover");
    uint64_t tuples = 1;
    m->missing = 1;
    for (uint32_t i = 0; i < m->t; i++) {
        tuples *= m->n;
        m->missing *= m->n - i;
    }
    m->words = (size_t)(tuples / 64 + 1);
    m->covered = cd_arena_array(&arena, m->words, sizeof *m->covered);
    if (m->covered == NULL) CD_TRY_OUT(cd_fail_memory(err, "%zu bytes of tuples", m->words * 8));
    cover->strength = m->t;
    cover->event_count = m->n;
    while (m->missing > 0) CD_TRY_OUT(make_pair(m, cover, err));
out:
    cd_arena_fini(&arena);
    if (status != CDDP_OK) cd_cover_fini(cover);
    return status;
}

void cd_cover_fini(cd_cover *cover)
{
    cd_release(cover->allocator, cover->orders, (size_t)cover->order_capacity * cover->event_count);
    *cover = (cd_cover){.allocator = cover->allocator};
}

uint32_t cd_cover_shift(const cd_cover *cover, uint32_t world_size)
{
    uint32_t shift = world_size > 0 ? cover->order_count / world_size : 0;
    return shift > 0 ? shift : 1;
}

/* ---- the chooser ---- */

void cd_cover_chooser_begin(cd_cover_chooser *c, const cd_cover *cover, uint64_t run)
{
    c->cover = cover;
    c->run = run;
    if (c->lane_count == 0) return;
    c->shift = cd_cover_shift(cover, c->lane_count);
    memset(c->lanes, 0, c->lane_count * sizeof *c->lanes);
}

static void learn(cd_cover_chooser *c, const cddp_choice *choice)
{
    if (choice->option_count <= c->event_count) return;
    if (choice->option_count > CD_COVER_EVENTS_MAX) {
        c->too_many = true;
        return;
    }
    c->event_count = 0;
    for (uint32_t i = 0; i < choice->option_count; i++) {
        uint64_t id = choice->options != NULL ? choice->options[i] : i;
        uint32_t k = c->event_count++;
        for (; k > 0 && c->events[k - 1] > id; k--) c->events[k] = c->events[k - 1];
        c->events[k] = id;
    }
}

/* Where the order wants this gradient; those that it does not know come last. */
static uint32_t position_of(const cd_cover_chooser *c, const uint8_t *order, uint64_t id)
{
    uint32_t low = 0, high = c->event_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (c->events[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < c->event_count && c->events[low] == id ? order[low] : UINT32_MAX;
}

uint32_t cd_cover_choose(cd_cover_chooser *c, const cddp_choice *choice)
{
    if (choice->kind != CDDP_CHOICE_READY) return 0;
    if (c->cover->order_count == 0) {
        learn(c, choice);
        return 0;
    }
    uint32_t lane = choice->rank < c->lane_count ? choice->rank : 0, best = 0,
             position = UINT32_MAX;
    uint64_t row = (c->run + (uint64_t)lane * c->shift) % c->cover->order_count;
    const uint8_t *order = c->cover->orders + row * c->cover->event_count;
    for (uint32_t i = 0; i < choice->option_count; i++) {
        uint32_t p = position_of(c, order, choice->options != NULL ? choice->options[i] : i);
        if (p < position) best = i, position = p;
    }
    /* One gradient fewer than before is the same backward, anything else a new one. */
    bool goes_on = c->lanes[lane].options == choice->option_count + 1;
    if (position == UINT32_MAX || (goes_on && position < c->lanes[lane].position))
        c->deviated = true;
    if (!goes_on && choice->option_count != c->event_count) c->deviated = true;
    c->lanes[lane].options = choice->option_count;
    c->lanes[lane].position = position;
    return best;
}
