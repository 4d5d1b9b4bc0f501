/* SPDX-License-Identifier: Apache-2.0 */
/* What a judge would hear, as digests. See Note [Known runs] in witness.h. */
#include "verify/explore/witness.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"

#include <string.h>

#define KEYS_MAX ((size_t)1 << 20)
#define RANK_KEY UINT64_C(0x72616e6b)
#define RUN_KEY UINT64_C(0x72756e)

/* Digits of square roots of primes: a word of an event is folded with those of its place. Two words
** are multiplied with each other. One that equals its digits would hide the other one: that is as
** likely as two equal digests. */
static const uint64_t places[] = {UINT64_C(0x6a09e667f3bcc909), UINT64_C(0xbb67ae8584caa73b),
                                  UINT64_C(0x3c6ef372fe94f82b), UINT64_C(0xa54ff53a5f1d36f1),
                                  UINT64_C(0x510e527fade682d1), UINT64_C(0x9b05688c2b3e6c1f),
                                  UINT64_C(0x1f83d9abfb41bd6b), UINT64_C(0x5be0cd19137e2179),
                                  UINT64_C(0xcbbb9d5dc1059ed9), UINT64_C(0x629a292a367cd507),
                                  UINT64_C(0x9159015a3070dd17), UINT64_C(0x152fecd8f70e5939),
                                  UINT64_C(0x67332667ffc00b31), UINT64_C(0x8eb44a8768581511)};
_Static_assert(CDDP_EVENT_FIELDS + 3 <= sizeof places / sizeof places[0], "a constant per word");

/* A product that keeps its upper half. Those of the words of an event do not wait for each other:
** a run is some hundred events, and each is digested. */
static uint64_t fold(uint64_t a, uint64_t b)
{
    __extension__ typedef unsigned __int128 product;
    const product p = (product)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

/* Most texts are short: of up to 16 bytes the first and the last ones, which overlap, are all of
** it. */
static uint64_t fold_text(const char *text)
{
    const size_t n = strlen(text);
    uint64_t first = 0, last = 0;
    uint32_t low = 0, high = 0;
    if (n > 2 * sizeof first) return cd_hash64(text, n, 0);
    if (n >= sizeof first) {
        memcpy(&first, text, sizeof first);
        memcpy(&last, text + n - sizeof last, sizeof last);
    } else if (n >= sizeof low) {
        memcpy(&low, text, sizeof low);
        memcpy(&high, text + n - sizeof high, sizeof high);
        first = (uint64_t)low << 32 | high;
    } else if (n > 0) {
        memcpy(&first, text, 1);
        memcpy((unsigned char *)&first + 1, text + n / 2, 1);
        memcpy((unsigned char *)&first + 2, text + n - 1, 1);
    }
    return fold(first ^ places[0], last ^ places[1]) + n * places[2];
}

static uint64_t digest_of(const cddp_event *event)
{
    const size_t field_count = cddp_event_describe(event->kind)->field_count;
    const int64_t *fields = event->as.field;
    uint64_t h =
        fold(event->time_ns ^ places[0], ((uint64_t)event->rank << 32 | event->kind) ^ places[1]);
    h += fold(((uint64_t)event->step << 32 | event->micro_step) ^ places[2], places[3]);
    size_t i = 0;
    for (; i + 1 < field_count; i += 2)
        h += fold((uint64_t)fields[i] ^ places[i + 3], (uint64_t)fields[i + 1] ^ places[i + 4]);
    if (i < field_count) h += fold((uint64_t)fields[i] ^ places[i + 3], places[i + 2]);
    return event->text != NULL ? cd_hash_mix(h, fold_text(event->text)) : h;
}

/* ---- values ---- */

/* More than half of all events are values. The text of one is the name of the tensor that its
** number stands for: events of the construction have it, and it never changes. */

/* What the values of a kind have in common at a moment. */
static uint64_t head_of(const cddp_event *event)
{
    const cddp_event_value *v = &event->as.value;
    return fold(((uint64_t)event->rank << 32 | event->kind) ^ places[1],
                ((uint64_t)event->step << 32 | event->micro_step) ^ places[2]) +
           fold((uint64_t)v->what ^ places[3], (uint64_t)v->moment ^ places[4]);
}

static uint64_t row_of(const cddp_event *event)
{
    const cddp_event_value *v = &event->as.value;
    return fold(event->time_ns ^ places[0], (uint64_t)v->id ^ places[5]) +
           fold((uint64_t)v->digest ^ places[6], (uint64_t)v->param ^ places[7]) +
           fold((uint64_t)v->presence ^ places[8], (uint64_t)v->nonfinite ^ places[9]);
}

/* Values in a row are the coefficients of a polynomial, which is folded with the next event of
** another kind. */
static void add_value(cd_witness_rank *r, uint64_t digest)
{
    r->values.others = r->values.others * places[10] + digest;
    r->values.all = r->values.all * places[10] + digest + r->ready * places[0];
    r->values.count++;
}

static void end_values(cd_witness_rank *r)
{
    if (r->values.count == 0) return;
    r->others = cd_hash_mix(cd_hash_mix(r->others, r->values.count), r->values.others);
    r->all = cd_hash_mix(cd_hash_mix(r->all, r->values.count), r->values.all);
    r->values.count = r->values.others = r->values.all = 0;
}

static cd_witness_rank *rank_of(const cd_witness *w, const cddp_event *event)
{
    return &w->ranks[event->rank < w->world_size ? event->rank : w->world_size];
}

static void begin_values(void *self, const cddp_event *common)
{
    rank_of(self, common)->values.head = head_of(common);
}

static void take_value(void *self, const cddp_event *event)
{
    cd_witness_rank *r = rank_of(self, event);
    add_value(r, r->values.head + row_of(event));
}

/* ---- events ---- */

/* Its place among those of the other parameters does not count. Whoever takes a digest mixes it:
** it is a sum. */
static void become_ready(cd_witness_rank *r, uint64_t parameter, uint64_t digest)
{
    uint64_t *place = &r->places[parameter % CD_WITNESS_PLACES];
    r->ready -= *place;
    *place = cd_hash_mix(*place, digest);
    r->ready += *place;
}

static void take_event(void *self, const cddp_event *event)
{
    const cd_witness *w = self;
    /* A choice is not judged; what follows from it is. */
    if (event->kind >= CDDP_EV_COUNT || event->kind == CDDP_EV_choice) return;
    if (w->is_closed || cd_recall_is_speaking(w->recall)) return;
    cd_witness_rank *r = rank_of(w, event);
    if (event->kind == CDDP_EV_value) {
        add_value(r, head_of(event) + row_of(event));
        return;
    }
    const uint64_t digest = digest_of(event);
    if (event->kind == CDDP_EV_grad_local) {
        become_ready(r, (uint64_t)event->as.grad_local.param, digest);
    } else if (event->kind == CDDP_EV_mark_ready) {
        become_ready(r, (uint64_t)event->as.mark_ready.param, digest);
    } else {
        end_values(r);
        r->others = cd_hash_mix(r->others, digest);
        r->all = cd_hash_mix(r->all, digest + r->ready * places[0]);
    }
}

cddp_status cd_witness_create(const cddp_allocator *allocator, const cd_recall *recall,
                              uint32_t world_size, cd_witness **witness, cddp_error *err)
{
    const size_t ranks_bytes = (world_size + (size_t)1) * sizeof(cd_witness_rank);
    cd_witness *w = cd_allocate_zero(allocator, sizeof *w + ranks_bytes);
    if (w == NULL) return cd_fail_memory(err, "the digests of %u ranks", world_size);
    *w = (cd_witness){
        .sink = {.size = sizeof w->sink, .abi = CDDP_TRACE_ABI, .self = w, .event = take_event},
        .values = {.self = w, .begin = begin_values, .take = take_value},
        .recall = recall,
        .world_size = world_size,
        .ranks = (cd_witness_rank *)(w + 1)};
    *witness = w;
    return CDDP_OK;
}

void cd_witness_close(cd_witness *witness) { witness->is_closed = true; }

/* A rank that was stopped may have values as its last events. */
static void end_all_values(const cd_witness *w)
{
    for (uint32_t i = 0; i <= w->world_size; i++) end_values(&w->ranks[i]);
}

/* The run is otherwise the same. */
static uint64_t key_of_rank(const cd_witness *w, uint64_t run, uint32_t rank)
{
    const uint64_t h = cd_hash_mix(cd_hash_mix(run, RANK_KEY), rank);
    return cd_hash_mix(h, w->ranks[rank].all);
}

static uint64_t key_of_run(const cd_witness *w)
{
    end_all_values(w);
    uint64_t h = cd_hash_mix(RUN_KEY, cd_recall_get_digest(w->recall));
    for (uint32_t i = 0; i <= w->world_size; i++)
        h = cd_hash_mix(cd_hash_mix(h, w->ranks[i].others), w->ranks[i].ready);
    return h;
}

uint64_t cd_witness_get_digest(const cd_witness *witness)
{
    const uint64_t run = key_of_run(witness);
    uint64_t h = run;
    for (uint32_t i = 0; i <= witness->world_size; i++)
        h = cd_hash_mix(h, key_of_rank(witness, run, i));
    return h;
}

/* ---- runs that were judged ---- */

void cd_known_fini(cd_known *known)
{
    cd_digest_set_fini(&known->keys);
    *known = (cd_known){.is_full = false};
}

static void add_key(cd_known *known, uint64_t key)
{
    known->is_full = known->is_full || known->keys.count >= KEYS_MAX ||
                     cd_digest_set_add(&known->keys, key) == CD_DIGEST_NO_MEMORY;
}

void cd_known_add(cd_known *known, const cd_witness *witness)
{
    const uint64_t run = key_of_run(witness);
    add_key(known, run);
    for (uint32_t i = 0; i <= witness->world_size; i++)
        add_key(known, key_of_rank(witness, run, i));
}

bool cd_known_has(const cd_known *known, const cd_witness *witness)
{
    const uint64_t run = key_of_run(witness);
    bool has = cd_digest_set_has(&known->keys, run);
    for (uint32_t i = 0; has && i <= witness->world_size; i++)
        has = cd_digest_set_has(&known->keys, key_of_rank(witness, run, i));
    return has;
}
